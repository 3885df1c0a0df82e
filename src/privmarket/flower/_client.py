"""`client_app`: a Flower `ClientApp` that sells ε, made from a model and data or from a training function."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp

from privmarket._lazy import late
from privmarket._settings import TRUSTS, Trust
from privmarket.errors import ConfigurationError, PrivmarketError
from privmarket.flower import _failures as failures, _refusals as refusals
from privmarket.flower._guard_misfit import unlike
from privmarket.flower._seller import (
    Job,
    MarketClientApp,
    OfferFunction,
    PerClient,
    Seller,
    ShareTraining,
    TrainFunction,
    TrainMany,
    WalletChoice,
    WalletOfClient,
    own_file,
    partition_name,
    relative_place,
)
from privmarket.flower._settings import require_maker, where
from privmarket.flower._wire import Arrays
from privmarket.privacy._policy import UNLIMITED, PolicyRefusal, Reason, SellerPolicy
from privmarket.privacy._release import ReleaseGrid
from privmarket.privacy._statement import SEEDED_WARNING
from privmarket.privacy._wallet_store import WalletFile
from privmarket.rounds import Offer, Terms

if TYPE_CHECKING:
    from flwr.clientapp.typing import Mod
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    from privmarket import training as engine
    from privmarket.broker._client import BrokerClient
    from privmarket.broker._signatures import SigningKey
    from privmarket.flower import _sum_seller as sum_seller, _training as training
    from privmarket.tasks import Task
    from privmarket.training import Column, Loss

    Records = tuple[Column, Column] | tuple[Column, Column, Column] | DataLoader[Any] | Dataset[Any]
    RecordsOf = Callable[[Context], Records]
else:
    engine = late("privmarket.training")
    training = late("privmarket.flower._training")
    sum_seller = late("privmarket.flower._sum_seller")


_log = logging.getLogger(failures.LOGGER)


def client_app(
    train: TrainFunction | None = None,
    *,
    train_many: TrainMany | None = None,
    model: Callable[[], nn.Module] | None = None,
    data: RecordsOf | None = None,
    loss: Loss | None = None,
    task: Task | Callable[[], Task] | None = None,
    valuation: PerClient | None = None,
    epsilon: PerClient | None = None,
    data_size: PerClient = 1.0,
    offer: OfferFunction | None = None,
    policy: SellerPolicy | Path | str | None = None,
    wallet: WalletChoice = None,
    spread: bool = True,
    name: Callable[[Context], str] | None = None,
    broker: Callable[[Context], BrokerClient] | None = None,
    noise_seed: int | None = None,
    secure_aggregation: bool = False,
    share: ShareTraining | None = None,
    identity: Callable[[Context], SigningKey] | None = None,
    parties: Callable[[Context], Collection[str]] | None = None,
    mods: list[Mod] | None = None,
) -> ClientApp:
    """A Flower `ClientApp` that sells ε.

    Args:
        train: trains and adds the noise. With `model` and `data` instead, both are done for you.
        train_many: like `train`, for clients that share a process on an in-process grid; only without mods.
        model: makes the `torch.nn.Module` that is trained, any that can be trained record by record.
        data: gives the client's (inputs, labels), first axis records, or its `DataLoader`; if the policy's unit is
            a person, (inputs, labels, persons), with the person of each record as a whole number ≥ 0.
        loss: (outputs, labels) ↦ one loss per record; cross-entropy unless given.
        task: instead of `model`, `data` and `loss`, a task or a function that makes one: node i is its i-th client.
            For runs on one machine, and for tables that every node holds: a task knows all clients' records.
        valuation: money asked per unit of ε, a number or a function of the node's context.
        epsilon: the most ε on offer in a round; by default what the wallet allows, and 1 if it is unlimited.
        data_size: declared number of records; public.
        offer: instead of these three, a function that makes the offer of a round.
        policy: what the client accepts, or its file (`privmarket seller policy` prints one). Without a policy the
            defaults of `SellerPolicy` hold, with `epsilon` as the most in a sale and `wallet` as the most in all.
        wallet: the most ε in a lifetime, kept in a file per node, see `docs/how-to/flower.md`; or a wallet, or
            a function of the node's context that makes one. By default the policy's. "unlimited" sells without a
            limit and keeps no record of sales.
        spread: keep enough in the wallet to sell as much in all later rounds; otherwise offer all that is left.
        name: the client's name in the market; its `partition-id` unless given.
        broker: connects to the broker that holds the auction, with the client's own token.
        noise_seed: for simulations only: whoever knows the seed knows the noise. With None, noise is keyed by the
            operating system.
        secure_aggregation: updates leave masked, by `privmarket.secagg`; without further mods. Needed for aggregate
            trust. The client's state of its secure sums is a file beside its wallet.
        share: training for aggregate trust, together with a `train` of your own; not needed with `model` and
            `data`.
        identity: this client's registered signing key, which signs its keys of a secure sum. By default, with a
            broker, the key that it bids with.
        parties: the public keys of all sellers of the round, from a list of your own; a secure sum of others, or of
            a part of them, is refused. By default, with a broker, the keys of the round's sellers there.
        mods: further Flower mods.
    """
    require_maker("client_app", "model", model)
    if task is not None:
        if train is not None or model is not None or data is not None:
            raise ConfigurationError("client_app got a task beside train, model or data", "give one of them")
        model, data, loss = _of_task(task)
    if train is None:
        if model is None or data is None:
            raise ConfigurationError("client_app got neither train nor model and data", "give one of them")
        train = ModuleTraining(model, data, loss)
    if offer is None:
        if valuation is None:
            raise ConfigurationError("client_app got neither valuation nor offer", "say what a unit of ε costs")
        offer = fixed_offer(valuation, most_epsilon(epsilon, wallet, policy), data_size)
    if noise_seed is not None:
        warnings.warn(SEEDED_WARNING, stacklevel=2)
    naming = name or partition_name
    rules, wallet_of = rules_and_wallet(policy, wallet, naming, secure_aggregation)
    seller = Seller(train, offer, wallet_of, spread, naming, broker, noise_seed, rules)
    seller.train_many = None if mods else train_many
    if secure_aggregation:
        seller.identity = identity
        seller.parties = parties
        seller.masked = True
        seller.train_many = None  # each trains within its own protocol
        seller.share = share if share is not None else (train if isinstance(train, ModuleTraining) else None)
        return sum_seller.secure_client(seller)
    app = MarketClientApp(mods=mods)
    app.seller = seller
    app.query("bid")(seller.bid)
    app.query("receipt")(seller.receive)
    app.train()(seller.sell)
    return app


def _of_task(
    task: Task | Callable[[], Task],
) -> tuple[Callable[[], nn.Module], RecordsOf, Loss]:
    """Model, records and loss of a task, which is made when the first of them is needed."""
    made: list[Task] = []

    def known() -> Task:
        if not made:
            made.append(task() if callable(task) else task)
        return made[0]

    def records(context: Context) -> tuple[Column, Column] | tuple[Column, Column, Column]:
        place = int(partition_name(context))
        names = known().clients
        if place >= len(names):
            raise ConfigurationError(
                f"partition {place} of a task with {len(names)} clients", f"start at most {len(names)} nodes"
            )
        mine = known().records_of(names[place])
        return (mine.inputs, mine.labels) if mine.persons is None else (mine.inputs, mine.labels, mine.persons)

    return lambda: known().build_model(), records, lambda outputs, labels: known().loss(outputs, labels)


def rules_and_wallet(
    policy: SellerPolicy | Path | str | None,
    wallet: WalletChoice,
    name: Callable[[Context], str],
    secure_aggregation: bool = False,
) -> tuple[SellerPolicy, Callable[[Context], WalletOfClient]]:
    """A client's policy, and a function that finds its wallet.

    Raises:
        ConfigurationError: neither names a limit, or the wallet holds more than the policy allows.
    """
    if policy is None:
        # Under secure aggregation each update may still have all of its own noise: local trust, with masks.
        trust: tuple[Trust, ...] = TRUSTS if secure_aggregation else ("local",)
        rules = SellerPolicy(epsilon_per_sale=math.inf, epsilon_lifetime=math.inf, trust=trust)
        if wallet is None:
            raise ConfigurationError(
                "this client has no wallet, so nothing would limit what it sells",
                f'give wallet=8.0, the most ε in a lifetime, a policy file, or write wallet="{UNLIMITED}"',
            )
    else:
        if not isinstance(policy, SellerPolicy) and (note := relative_place(policy)):
            _log.warning(note)
        rules = policy if isinstance(policy, SellerPolicy) else SellerPolicy.read(policy)

    def of_policy(context: Context) -> WalletOfClient:
        if not math.isfinite(rules.epsilon_lifetime):
            return UNLIMITED
        place = rules.wallet.replace("{client}", name(context))
        head = None if rules.head_file is None else rules.head_file.replace("{client}", name(context))
        return WalletFile(place, rules.epsilon_lifetime, rules.delta, head, rules.unit)

    if wallet is None:
        return rules, of_policy
    if wallet == UNLIMITED and math.isfinite(rules.epsilon_lifetime):
        raise ConfigurationError(
            f'wallet="{UNLIMITED}" beside a policy with a lifetime of ε = {rules.epsilon_lifetime:g}',
            "leave out the wallet, or remove epsilon_lifetime from the policy",
        )
    if isinstance(wallet, int | float):
        cap = float(wallet)
        return rules, lambda context: WalletFile(
            _wallet_place(context, name(context)), cap, rules.delta, unit=rules.unit
        )
    return rules, wallet if callable(wallet) else lambda _: wallet


def _wallet_place(context: Context, client: str) -> Path:
    """The wallet file of a node whose app names only a cap."""
    return own_file(context, f"client-{client}.jsonl")


def most_epsilon(
    epsilon: PerClient | None, wallet: WalletChoice, policy: SellerPolicy | Path | str | None
) -> PerClient:
    """The most ε on offer in a round: as given, else as policy and wallet allow, else 1."""
    if epsilon is not None:
        return epsilon
    return math.inf if wallet != UNLIMITED or policy is not None else 1.0


def fixed_offer(valuation: PerClient, epsilon: PerClient, data_size: PerClient = 1.0) -> OfferFunction:
    """Makes an offer function that offers the same price, ε and number of records in every round."""

    def offer(terms: Terms, context: Context) -> Offer | None:
        numbers = [float(one(context) if callable(one) else one) for one in (valuation, epsilon, data_size)]
        return Offer(numbers[0], min(numbers[1], terms.epsilon_max), numbers[2])

    return offer


@dataclass(eq=False)
class ModuleTraining:
    """Private training of any module; torch is imported with the first sale, not for bids."""

    model: Callable[[], nn.Module]
    data: RecordsOf
    loss: Loss | None = None
    _checked: bool = field(default=False, init=False)
    _noted: set[str] = field(default_factory=set, init=False)

    def __call__(self, weights: Arrays, job: Job) -> Arrays:
        """Trains for a sale and returns the noisy update, as `TrainFunction` describes."""
        inputs, labels, persons = self._columns(job.context)
        return training.private_module_update(self.model(), weights, inputs, labels, job, self.loss, persons)

    def records(self, context: Context) -> int:
        """The number of records this client holds, as `ShareTraining` describes."""
        return int(np.shape(self._columns(context)[1])[0])

    def _columns(self, context: Context) -> tuple[Column, Column, Column | None]:
        """Inputs, labels, and persons or None, from the result of the client's own function.

        Raises:
            PolicyRefusal: `app` if the function fails, `records` if it returns something else.
        """
        try:
            found = self.data(context)
        except Exception as error:  # the function is the owner's own code and may raise anything
            raise PolicyRefusal(Reason.APP, f"{type(error).__name__}: {error}") from error
        with refusals.becomes(Reason.RECORDS, PrivmarketError):
            return training.columns_of(found)

    def share(self, weights: Arrays, job: Job, grid: ReleaseGrid) -> Arrays:
        """See `ShareTraining`."""
        inputs, labels, persons = self._columns(job.context)
        return training.private_module_share(self.model(), weights, inputs, labels, job, grid, self.loss, persons)

    def check(self, weights: Arrays, job: Job, policy: SellerPolicy) -> None:
        """Refuses weights, models, records or noise that cannot be used, before anything is reserved.

        Raises:
            PolicyRefusal: `weights`, `model`, `records` or `noise`.
        """
        with refusals.becomes(Reason.APP, Exception):
            module = self.model()
        with refusals.becomes(Reason.MODEL, engine.ModelError):
            engine.require_per_record(module)  # first the layers, since those in which records mix have arrays, too
        own = refusals.array_shapes(training.trainable_arrays(module))
        if differing := unlike(refusals.array_shapes(weights), own):
            raise PolicyRefusal(Reason.WEIGHTS, differing, "server and client must build the same model")
        policy.check_weights(weights)
        inputs, labels, persons = self._columns(job.context)
        if job.client not in self._noted:
            training.note_values(inputs, labels, self.loss, module)
            self._noted.add(job.client)
        with refusals.becomes(Reason.MODEL, engine.ModelError):
            training.require_trainable(module, inputs, labels, self.loss, weights, quick=self._checked)
        try:
            training.require_records(inputs, labels, persons, job, self.loss)
        except (PrivmarketError, ValueError, TypeError) as error:
            raise PolicyRefusal(Reason.RECORDS, f"{where(self.data)}: {error}") from error
        with refusals.becomes(Reason.NOISE, PrivmarketError):
            training.require_noise(job, int(np.shape(labels)[0]), sum(array.size for array in weights.values()))
        self._checked = True
