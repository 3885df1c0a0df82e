"""A wallet for an existing Flower client: a mod that answers bids and releases only what was sold.

With `noise="records"` the app calls `train_privately`, which clips and noises the gradients of records; the mod
releases the weights that this call left in the model and nothing else. With `noise="update"` the mod itself clips
the whole update and adds noise to it, whatever the app does. With `noise="app"` the app trains privately by its own
means, with the noise multiplier that it is given; nobody checks that.

Messages without a sale (evaluation, other queries) would release numbers that no accountant counts, so they are
refused unless allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from privmarket._lazy import late
from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.flower import _guard_release, _refusals as refusals, _trial as trial, _wire as wire
from privmarket.flower._client import fixed_offer, most_epsilon, rules_and_wallet
from privmarket.flower._seller import Job, PerClient, Seller, WalletChoice, partition_name
from privmarket.flower._settings import require_maker
from privmarket.flower._wire import Arrays, Sale
from privmarket.privacy._policy import PolicyRefusal, Reason, SellerPolicy

NOISE = ("records", "update", "app")

if TYPE_CHECKING:
    from torch import nn

    from privmarket import training as engine
else:
    # torch: bids are answered without it
    engine = late("privmarket.training")


class WalletMod:
    """A Flower client mod that enforces a wallet.

    >>> market = WalletMod(valuation=0.3, data_size=480, wallet=8.0, noise="records")  # doctest: +SKIP
    >>> app = ClientApp(mods=[market])  # doctest: +SKIP
    >>> market.answer_bids(app)  # doctest: +SKIP

    Args:
        valuation, epsilon, data_size, policy, wallet, spread, name: as for `client_app`.
        noise: who clips and adds noise, and to what: "records", "update" or "app", see above.
        allow: message types that may pass without a sale, e.g. ("evaluate",).
        metric: the one metric that leaves with an update: the declared data size, which is public.
        model: makes the app's `torch.nn.Module`; a model that mixes records is refused before anything is reserved.
    """

    def __init__(
        self,
        valuation: PerClient,
        epsilon: PerClient | None = None,
        data_size: PerClient = 1.0,
        *,
        policy: SellerPolicy | Path | str | None = None,
        wallet: WalletChoice = None,
        spread: bool = True,
        name: Callable[[Context], str] = partition_name,
        noise: str | None = None,
        allow: Collection[str] = (),
        metric: str = "num-examples",
        model: Callable[[], nn.Module] | None = None,
    ) -> None:
        if noise is None:
            raise ConfigurationError(
                "WalletMod without noise=, which has no default",
                'noise="records" where the app calls train_privately, noise="update" where it does not',
            )
        if noise not in NOISE:
            raise UnknownNameError.among("noise", noise, NOISE)
        require_maker("WalletMod", "model", model)
        offer = fixed_offer(valuation, most_epsilon(epsilon, wallet, policy), data_size)
        rules, wallet_of = rules_and_wallet(policy, wallet, name)
        if noise == "update":  # noise on a whole update is one full release, whatever schedules are known
            rules = replace(rules, schedules=((1.0, 1),))
        self.seller = Seller(_AppTraining(model), offer, wallet_of, spread, name, None, None, rules)
        self.noise = noise
        self.allow = frozenset(allow)
        self.metric = metric
        self._size = data_size

    def answer_bids(self, app: ClientApp) -> None:
        """Registers the handlers of bids and receipts. Call it once, on the app that has this mod."""
        app.query("bid")(self.seller.bid)
        app.query("receipt")(self.seller.receive)

    def __call__(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        """Handles a message as a Flower mod: answers it, refuses it, or lets the app train and adds the noise."""
        kind = message.metadata.message_type
        try:
            if kind == wire.BID:
                return self.seller.bid(message, context)
            if kind == wire.RECEIPT:
                return self.seller.receive(message, context)
            if kind in self.allow:
                return call_next(message, context)
            if wire.SALE not in message.content:
                raise PolicyRefusal(Reason.UNSOLD, f"{kind} without a sale")
            return self._sold(message, context, call_next)
        except Exception as error:
            return refusals.refuse(message, context, error)

    def _sold(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        sale = wire.take(message.content, Sale)
        # The app may change what it gets; the update is clipped relative to what the server sent.
        sent = wire.read_arrays(message.content, None)
        floats = {name: array for name, array in sent.items() if array.dtype.kind == "f"}

        def try_app(job: Job) -> None:
            if self.noise == "records":
                trial.require_runs(call_next, message, context, self._job_record(job), sale.run)

        job = self.seller.accept(sale, context, floats, try_app)
        message.content[wire.JOB] = self._job_record(job)
        # From here on ε is reserved, and every error is answered with the word `failed`.
        try:
            reply = call_next(message, context)
            if reply.has_error():
                raise RuntimeError(reply.error.reason)
            size = float(self._size(context) if callable(self._size) else self._size)
            if self.noise == "update":
                reply.content = self._noisy(message.content, reply.content, sent, job, size)
            elif self.noise == "records":
                trial.require_released(message, sent, wire.read_arrays(reply.content, None))
                reply.content = self._alone(message.content, reply.content, size)
            self.seller.close(sale, wire.read_arrays(reply.content, None), context)
        except Exception as error:
            raise PolicyRefusal(Reason.FAILED, f"the app: {type(error).__name__}: {error}") from error
        return reply

    def _job_record(self, job: Job) -> ConfigRecord:
        """The record that the app gets under `wire.JOB`."""
        sale = job.sale
        family = sale.family
        return ConfigRecord(
            {
                "noise-multiplier": job.noise_multiplier,
                "sampling-rate": family.sampling_rate,
                "steps": family.steps,
                "clip-norm": sale.clip_norm,
                "learning-rate": sale.learning_rate,
                "expected-batch": sale.expected_batch,
                "epsilon": sale.epsilon,
                "delta": family.delta,
                "unit": self.seller.policy.unit,
                "token": trial.new_token(),
            }
        )

    def _alone(self, asked: RecordDict, content: RecordDict, size: float) -> RecordDict:
        """The released arrays under the server's own name, and the declared data size; nothing else."""
        arrays = ArrayRecord({key: Array(array) for key, array in wire.read_arrays(content, None).items()})
        name = next(iter(asked.array_records))
        return RecordDict({name: arrays, "metrics": MetricRecord({self.metric: size})})

    def _noisy(self, asked: RecordDict, content: RecordDict, sent: Arrays, job: Job, size: float) -> RecordDict:
        """The reply with its update clipped and noised, and nothing else from the app."""
        name = next(iter(asked.array_records))
        trained = wire.read_arrays(content, None)
        released = noisy_weights(sent, trained, job.sale, job)
        arrays = ArrayRecord({key: Array(array) for key, array in released.items()})
        return RecordDict({name: arrays, "metrics": MetricRecord({self.metric: size})})


def noisy_weights(sent: Arrays, trained: Arrays, sale: Sale, job: Job) -> Arrays:
    """The weights that a client may release: what it was sent, plus its clipped change, plus noise.

    See `_guard_release.noisy_weights`, which clips and adds the noise.

    Raises:
        ValueError: the app returned arrays of other names or shapes than it was sent.
    """
    if {n: a.shape for n, a in sent.items()} != {n: a.shape for n, a in trained.items()}:
        raise ValueError("the app returned other arrays than it was sent; clipping needs the same names and shapes")
    return _guard_release.noisy_weights(sent, trained, sale.clip_norm, job.noise_multiplier, job.noise)


class _AppTraining:
    """Training by the app behind the mod; if its model is known, it is checked before anything is reserved."""

    def __init__(self, model: Callable[[], nn.Module] | None) -> None:
        self._model = model
        self._has_passed = False

    def __call__(self, weights: Arrays, job: Job) -> Arrays:
        raise NotImplementedError("the app behind the mod trains")

    def check(self, weights: Arrays, job: Job, policy: SellerPolicy) -> None:
        """Refuses a model in which records mix.

        A model that has passed is not tried again: it is made by the app's own function, which gets nothing from
        the server. `train_privately` checks every model that it trains, with the present weights and records.

        Raises:
            PolicyRefusal: `model`.
        """
        if self._model is not None and not self._has_passed:
            with refusals.becomes(Reason.MODEL, engine.ModelError):
                engine.require_supported(self._model())
            self._has_passed = True
