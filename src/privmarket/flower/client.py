"""The client's side: bid what the wallet can bear, refuse what the policy forbids, train, add noise, account.

Every handler runs in the client's own process and trusts nobody: not the server to keep to the offer, nor its own
process to live until the reply. An order is held against the seller's policy, the offer, the broker's award, the
weights' looks and the model's layers, in that order, before the wallet is charged and a record is read. Bids are
answered without torch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from privmarket.errors import ConfigurationError, PrivmarketError
from privmarket.flower import guard, wire
from privmarket.flower.wire import Arrays, Receipt, Sale
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.privacy.events import PrivacyEvent
from privmarket.privacy.noise import NoiseSource
from privmarket.privacy.policy import UNLIMITED, PolicyRefusal, Reason, SellerPolicy
from privmarket.privacy.release import Grid
from privmarket.privacy.wallet_file import OpenWallet, WalletFile
from privmarket.privacy.words import SEEDED_WARNING, Trust
from privmarket.rounds import Offer, Terms

if TYPE_CHECKING:
    from privmarket.broker.http_client import BrokerClient
    from privmarket.broker.signatures import SigningKey

MEMORY = "privmarket-offer"  # where a node remembers its offer from the bid to the sale

OfferFunction = Callable[[Terms, Context], Offer | None]
PerClient = float | Callable[[Context], float]
Purse = WalletFile | Literal["unlimited"]
WalletChoice = Purse | Callable[[Context], Purse] | None


@dataclass(frozen=True, eq=False)
class Job:
    """What a client trains for.

    Attributes:
        sale: what it sold, and the public plan.
        noise_multiplier: standard deviation of the noise over `sale.clip_norm`, from the client's own calibration.
        noise: where batches and noise are drawn from.
        client: the client's name.
        unit: whose presence the seller's policy protects, `record` or `person`.
    """

    sale: Sale
    noise_multiplier: float
    noise: NoiseSource
    client: str
    context: Context
    unit: str = "record"


TrainFunction = Callable[[Arrays, Job], Mapping[str, np.ndarray]]
"""(global weights, job) ↦ global minus local weights, under the same names. It must add `job`'s noise itself."""
TrainMany = Callable[[Arrays, Sequence[Job]], Sequence[Mapping[str, np.ndarray]]]
"""The same for several clients that live in one process, for simulations: every job gives what it would alone."""


class ShareTraining(Protocol):
    """Training for a secure sum under aggregate trust."""

    def records(self, context: Context) -> int:
        """How many records this client holds."""

    def share(self, weights: Arrays, job: Job, grid: Grid) -> Mapping[str, np.ndarray]:
        """What the client adds to the sum: its clipped sum on `grid` with its share of the noise, int64 by name."""


class MarketClientApp(ClientApp):
    """A Flower `ClientApp` that sells ε; `seller` holds its handlers. No error's text ever leaves it."""

    seller: Seller

    def __call__(self, message: Message, context: Context) -> Message:
        """Answers a message; what a mod or Flower itself raises becomes one word, too."""
        return guard.guarded(super().__call__)(message, context)


def client_app(
    train: TrainFunction | None = None,
    *,
    train_many: TrainMany | None = None,
    model: Callable[[], Any] | None = None,
    data: Callable[[Context], tuple[Any, ...]] | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    valuation: PerClient | None = None,
    epsilon: PerClient = 1.0,
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
    mods: list[Any] | None = None,
) -> ClientApp:
    """A Flower `ClientApp` that sells ε.

    Args:
        train: does the training and adds the noise. Or give `model` and `data`, and both are done for you:
        train_many: as `train`, for clients that share a process on an in-process grid; without mods only.
        model: makes the `torch.nn.Module` that is trained, any that can be trained record by record.
        data: the client's (inputs, labels), first axis records; (inputs, labels, persons) where the policy's unit
            is a person: whose record each is, whole numbers ≥ 0.
        loss: (outputs, labels) ↦ one loss per record; cross-entropy unless given.
        valuation: money asked per unit of ε, a number or a function of the node's context.
        epsilon: the most ε on offer in a round.
        data_size: declared number of records; public.
        offer: instead of the three, what to offer in a round.
        policy: what the client accepts, or the file that says so (`privmarket seller policy` prints one). Without
            one the defaults of `SellerPolicy` hold; `epsilon` is the most in a sale, `wallet` the most in all.
        wallet: the client's lifetime wallet, or a function of the node's context. Left out, the policy's;
            "unlimited" sells without limit and remembers nothing, and must be written out.
        spread: keep enough in the wallet to sell as much in all rounds to come; else offer all that is left.
        name: the client's name in the market; its `partition-id` unless given.
        broker: connects to the broker that holds the auction, with the client's own token.
        noise_seed: for simulations only: whoever knows the seed knows the noise. None draws from the system.
        secure_aggregation: updates leave masked, by SecAgg+; without further mods. Needed for aggregate trust.
        share: how to train for aggregate trust, beside a `train` of your own; done for you with `model` and `data`.
        identity: this client's registered signing key; it signs its keys of a secure sum with it.
        parties: the public keys of registered parties; a secure sum with anybody else in it is refused.
        mods: further Flower mods.
    """
    if train is None:
        if model is None or data is None:
            raise ConfigurationError("client_app got neither train nor model and data", "give one of them")
        train = ModuleTraining(model, data, loss)
    if offer is None:
        if valuation is None:
            raise ConfigurationError("client_app got neither valuation nor offer", "say what a unit of ε costs")
        offer = fixed_offer(valuation, epsilon, data_size)
    if noise_seed is not None:
        warnings.warn(SEEDED_WARNING, stacklevel=2)
    naming = name or partition_name
    rules, purse = rules_and_wallet(policy, wallet, naming, secure_aggregation)
    seller = Seller(train, offer, purse, spread, naming, broker, noise_seed, rules)
    seller.train_many = None if mods else train_many
    if secure_aggregation:
        from privmarket.flower.secure_seller import secure_client

        seller.identity, seller.parties = identity, parties
        seller.share = share if share is not None else (train if isinstance(train, ModuleTraining) else None)
        return secure_client(seller)
    app = MarketClientApp(mods=mods)
    app.seller = seller
    app.query("bid")(seller.bid)
    app.query("receipt")(seller.receive)
    app.train()(seller.sell)
    return app


def rules_and_wallet(
    policy: SellerPolicy | Path | str | None,
    wallet: WalletChoice,
    name: Callable[[Context], str],
    secure_aggregation: bool = False,
) -> tuple[SellerPolicy, Callable[[Context], Purse]]:
    """A client's policy, and where its wallet is.

    Raises:
        ConfigurationError: neither names a limit, or the wallet holds more than the policy allows.
    """
    if policy is None:
        # Under secure aggregation each update may still carry all of its own noise: that is local trust, masked.
        trust: tuple[Trust, ...] = ("local", "aggregate") if secure_aggregation else ("local",)
        rules = SellerPolicy(epsilon_per_sale=math.inf, epsilon_lifetime=math.inf, trust=trust)
        if wallet is None:
            raise ConfigurationError(
                "this client has no wallet, so nothing would limit what it sells",
                f'give wallet=WalletFile(...), a policy file, or write wallet="{UNLIMITED}"',
            )
    else:
        rules = policy if isinstance(policy, SellerPolicy) else SellerPolicy.read(policy)

    def of_policy(context: Context) -> Purse:
        if not math.isfinite(rules.epsilon_lifetime):
            return UNLIMITED
        place = rules.wallet.replace("{client}", name(context))
        return WalletFile(place, rules.epsilon_lifetime, rules.delta)

    if wallet is None:
        return rules, of_policy
    if wallet == UNLIMITED and math.isfinite(rules.epsilon_lifetime):
        raise ConfigurationError(
            f'wallet="{UNLIMITED}" beside a policy with a lifetime of ε = {rules.epsilon_lifetime:g}', "drop one"
        )
    return rules, wallet if callable(wallet) else lambda _: wallet


def partition_name(context: Context) -> str:
    """The node's `partition-id`, which Flower's simulation sets and `flower-supernode --node-config` gives."""
    partition = context.node_config.get("partition-id")
    if partition is None:
        raise ConfigurationError(
            "this node has no partition-id", 'start it with --node-config "partition-id=0", or give name='
        )
    return str(partition)


def fixed_offer(valuation: PerClient, epsilon: PerClient, data_size: PerClient = 1.0) -> OfferFunction:
    """Offers the same in every round."""

    def offer(terms: Terms, context: Context) -> Offer | None:
        numbers = [float(one(context) if callable(one) else one) for one in (valuation, epsilon, data_size)]
        return Offer(numbers[0], min(numbers[1], terms.epsilon_max), numbers[2])

    return offer


@dataclass(eq=False)
class ModuleTraining:
    """Private training of any module; torch is imported when the first sale comes in, not for bids."""

    model: Callable[[], Any]
    data: Callable[[Context], tuple[Any, ...]]
    loss: Callable[[Any, Any], Any] | None = None
    _checked: bool = field(default=False, init=False)

    def __call__(self, weights: Arrays, job: Job) -> Arrays:
        """See `TrainFunction`."""
        from privmarket.flower.training import private_module_update

        inputs, labels, persons = (*self.data(job.context), None)[:3]
        return private_module_update(self.model(), weights, inputs, labels, job, self.loss, persons)

    def records(self, context: Context) -> int:
        """See `ShareTraining`."""
        return len(self.data(context)[1])

    def share(self, weights: Arrays, job: Job, grid: Grid) -> Arrays:
        """See `ShareTraining`."""
        from privmarket.flower.training import private_module_share

        inputs, labels, persons = (*self.data(job.context), None)[:3]
        return private_module_share(self.model(), weights, inputs, labels, job, grid, self.loss, persons)

    def check(self, weights: Arrays, job: Job, policy: SellerPolicy) -> None:
        """Refuses what could not be trained, before anything is reserved: weights, model, records, noise.

        Raises:
            PolicyRefusal: `weights`, `model`, `records` or `noise`.
        """
        from privmarket.federated.model_check import ModelError
        from privmarket.flower.training import require_noise, require_records, require_trainable, trainable_arrays

        module = self.model()
        policy.check_weights(weights, guard.array_shapes(trainable_arrays(module)))
        inputs, labels, persons = (*self.data(job.context), None)[:3]
        with guard.becomes(Reason.MODEL, ModelError):
            require_trainable(module, inputs, labels, self.loss, weights, quick=self._checked)
        with guard.becomes(Reason.RECORDS, PrivmarketError, ValueError, TypeError):
            require_records(module, inputs, labels, persons, job, self.loss)
        with guard.becomes(Reason.NOISE, PrivmarketError):
            require_noise(job, len(labels), sum(array.size for array in weights.values()))
        self._checked = True


@dataclass(eq=False)
class Seller:
    """The handlers of one client app."""

    train: TrainFunction
    offer: OfferFunction
    wallet: Callable[[Context], Purse]
    spread: bool
    name: Callable[[Context], str]
    broker: Callable[[Context], BrokerClient] | None
    noise_seed: int | None
    policy: SellerPolicy
    train_many: TrainMany | None = None
    share: ShareTraining | None = None
    identity: Callable[[Context], SigningKey] | None = None
    parties: Callable[[Context], Collection[str]] | None = None

    def bid(self, message: Message, context: Context) -> Message:
        """Answers a call for bids; a call outside the policy is answered with the reason instead of an offer."""
        terms = guard.readable(lambda: wire.take(message.content, Terms))
        try:
            self._check_terms(terms, context)
            self._note_receipt(message.content, context)
            client, offer = self.make_offer(terms, context)
        except Exception as error:
            reason = guard.reason_of(error)
            guard.note_refusal(context, reason, error)
            return Message(wire.write_offer(self.name(context), None, reason), reply_to=message)
        return Message(wire.write_offer(client, offer), reply_to=message)

    def _check_terms(self, asked: Terms | Sale, context: Context) -> None:
        """Holds a call or an order against the policy and, where there is a broker, against what it published."""
        task = None
        if self.broker is not None:
            with self.broker(context) as broker:
                task = guard.fetch_task(broker, asked.broker_round)
                guard.check_task(asked, task)
        self.policy.check(guard.order_of(asked, self.policy.unit, task))

    def make_offer(self, terms: Terms, context: Context) -> tuple[str, Offer | None]:
        """The client's name and what it offers in a round, within policy and wallet; remembered until the sale."""
        wanted = self.offer(terms, context)
        if wanted is not None:
            price = self.policy.price_under(terms.trust)
            most = min(wanted.epsilon, self.policy.epsilon_per_sale)
            wanted = replace(wanted, epsilon=most, valuation=wanted.valuation if price is None else price)
            rounds_left = max(1, terms.rounds - terms.number) if self.spread else 1
            with self._wallet(context) as wallet:
                if wallet is not None:
                    fits = wallet.affordable(terms.family, wanted.epsilon, rounds_left)
                    wanted = replace(wanted, epsilon=fits) if fits > 0 else None
        if self.broker is None:
            client, public = self.name(context), wanted
        else:
            # Before the offer is remembered: an offer that the broker did not take can never be sold.
            client, public = self._bid_at_broker(terms, context, wanted)
        context.state[MEMORY] = _memory(terms, 0.0 if wanted is None else float(wanted.epsilon))
        return client, public

    def sell(self, message: Message, context: Context) -> Message:
        """Trains for a sale, or refuses it."""
        return guard.guarded(self._sell)(message, context)

    def _sell(self, message: Message, context: Context) -> Message:
        sale = guard.readable(lambda: wire.take(message.content, Sale))
        weights = guard.readable(lambda: wire.read_arrays(message.content, wire.WEIGHTS))
        job = self.accept(sale, context, weights)
        return self._reply(message, job, _trained(lambda: self.train(weights, job)))

    def sell_many(self, orders: Sequence[tuple[Message, Context]]) -> list[Message]:
        """As `sell`, for orders of one round to several nodes that live in this process."""
        assert self.train_many is not None
        replies: dict[int, Message] = {}
        jobs: dict[int, Job] = {}
        weights: Arrays | None = None
        for at, (message, context) in enumerate(orders):
            try:
                sale = guard.readable(lambda message=message: wire.take(message.content, Sale))  # type: ignore[misc]
                if weights is None:
                    weights = wire.read_arrays(message.content, wire.WEIGHTS)
                jobs[at] = self.accept(sale, context, weights)
            except Exception as error:
                replies[at] = guard.refuse(message, context, guard.reason_of(error), error)
        if jobs and weights is not None:
            sent = weights
            try:
                updates = list(self.train_many(sent, list(jobs.values())))
            except Exception as error:
                for at in jobs:
                    replies[at] = guard.refuse(*orders[at], Reason.FAILED, error)
                return [replies[at] for at in range(len(orders))]
            for (at, job), update in zip(jobs.items(), updates, strict=True):
                replies[at] = self._reply(orders[at][0], job, update)
        return [replies[at] for at in range(len(orders))]

    def _reply(self, message: Message, job: Job, update: Mapping[str, np.ndarray]) -> Message:
        """Sends an update, after it is noted that it leaves."""
        arrays = dict(update)
        if job.sale.share != 1.0:
            arrays = {name: array * np.float32(job.sale.share) for name, array in arrays.items()}
        self.close(job.sale, arrays, job.context)
        return Message(RecordDict({wire.UPDATE: wire.write_arrays(arrays)}), reply_to=message)

    def accept(self, sale: Sale, context: Context, weights: Arrays) -> Job:
        """Checks a sale and its weights, calibrates the noise, and charges the wallet; all before training.

        Raises:
            PolicyRefusal: it is outside the policy, the offer or the broker's award, or the model mixes records.
            WalletError: it does not fit, or was made before.
        """
        self._check_terms(sale, context)
        _check_against_offer(sale, context)
        if self.broker is not None:
            with self.broker(context) as broker:
                guard.check_award(sale, broker)
        self.policy.check_weights(weights)
        event = event_of(sale.family, sale.epsilon)
        client = self.name(context)
        noise = NoiseSource.from_system()
        if self.noise_seed is not None:
            number = int(client) if client.isdigit() else client
            noise = NoiseSource.from_seed(self.noise_seed, "update", sale.number, number)
        job = Job(sale, event.noise_multiplier, noise, client, context, self.policy.unit)
        check = getattr(self.train, "check", None)
        if check is not None:
            check(weights, job, self.policy)
        with self._wallet(context) as wallet:
            if wallet is not None:
                if wallet.sold(sale.name):
                    raise PolicyRefusal(Reason.SOLD, f"sale {sale.name} was made before")
                wallet.reserve(sale.name, sale.epsilon, event, unit=self.policy.unit, trust=sale.trust)
        # Without a wallet file the node's own memory keeps a round from being sold twice.
        del context.state[MEMORY]
        return job

    def close(self, sale: Sale, update: Arrays, context: Context) -> None:
        """Notes that the update of a sale leaves now, in the wallet and at the broker."""
        with self._wallet(context) as wallet:
            if wallet is None and self.broker is None:
                return
            sha256 = wire.digest(update)
            if wallet is not None:
                wallet.released(sale.name, sha256)
        if self.broker is not None:
            with self.broker(context) as broker:
                broker.claim_delivery(sale.broker_round, sha256)

    def receive(self, message: Message, context: Context) -> Message:
        """Takes the receipt of the last round."""
        guard.readable(lambda: wire.take(message.content, Terms))
        self._note_receipt(message.content, context)
        return Message(RecordDict(), reply_to=message)

    def _note_receipt(self, content: RecordDict, context: Context) -> None:
        if wire.has(content, Receipt):
            receipt = wire.take(content, Receipt)
            with self._wallet(context) as wallet:
                if wallet is not None:
                    wallet.paid(f"{receipt.run}/{receipt.number}", receipt.paid_micro, receipt.fault)

    def _wallet(self, context: Context) -> AbstractContextManager[OpenWallet | None]:
        wallet = self.wallet(context)
        if wallet == UNLIMITED:
            return nullcontext()
        if not isinstance(wallet, WalletFile):
            raise ConfigurationError(f"this client's wallet is {wallet!r}", f'give a WalletFile, or "{UNLIMITED}"')
        if wallet.cap_epsilon > self.policy.epsilon_lifetime:
            raise ConfigurationError(
                f"the wallet {wallet.path.name} holds ε = {wallet.cap_epsilon:g}, "
                f"the policy allows {self.policy.epsilon_lifetime:g} in a lifetime",
                "give the wallet the policy's cap",
            )
        return wallet.open()

    def _bid_at_broker(self, terms: Terms, context: Context, wanted: Offer | None) -> tuple[str, None]:
        """The bid goes to the broker, sealed; the server of the training only hears who this is."""
        assert self.broker is not None
        with self.broker(context) as broker:
            if wanted is not None:
                features = {} if wanted.accuracy is None else {"accuracy": wanted.accuracy}
                broker.bid(
                    terms.broker_round,
                    wanted.valuation,
                    wanted.epsilon,
                    data_size=wanted.data_size,
                    **features,
                )
            return str(broker.me()["id"]), None


@lru_cache(maxsize=4096)
def event_of(family: ReleaseFamily, epsilon: float) -> PrivacyEvent:
    """Calibration takes a millisecond, and a client often sells the same ε again."""
    return family.event(epsilon)


def _memory(terms: Terms | Sale, epsilon: float) -> ConfigRecord:
    """What a node keeps of its offer; messages of one run may be handled by different processes."""
    family = terms.family
    return ConfigRecord(
        {
            "run": terms.run,
            "number": terms.number,
            "broker-round": terms.broker_round,
            "epsilon": epsilon,
            "family": [float(family.sampling_rate), float(family.steps), float(family.delta)],
            "trust": terms.trust,
            "honest-share": terms.honest_share,
        }
    )


def _check_against_offer(sale: Sale, context: Context) -> None:
    memory, asked = context.state.get(MEMORY), _memory(sale, sale.epsilon)
    named = ("run", "number", "broker-round")
    if not isinstance(memory, ConfigRecord) or any(memory.get(key) != asked[key] for key in named):
        raise PolicyRefusal(Reason.OFFER, f"nothing was offered in round {sale.number}, or it is sold already")
    offered = float(memory["epsilon"])  # type: ignore[arg-type]
    if not 0 < sale.epsilon <= offered * (1 + 1e-9):
        raise PolicyRefusal(Reason.OFFER, f"asked for ε = {sale.epsilon:g}, offered {offered:g}")
    if any(memory[key] != asked[key] for key in ("family", "trust", "honest-share")):
        raise PolicyRefusal(
            Reason.OFFER, f"asked for {sale.family} under {sale.trust} trust, offered for another release"
        )


def _trained(train: Callable[[], Mapping[str, np.ndarray]]) -> Mapping[str, np.ndarray]:
    """What training gives. Whatever it raises, even a refusal, is a failure: ε is reserved by now."""
    try:
        return train()
    except Exception as error:
        raise PolicyRefusal(Reason.FAILED, f"training: {type(error).__name__}: {error}") from error
