"""A wallet for an existing Flower client: a mod that answers bids and lets nothing out that was not sold.

With `noise="update"` the mod makes the release private itself, whatever the app does: it clips the whole update and
adds noise to it. With `noise="app"` the app promises to train privately with the noise multiplier that it is given.
Messages that were not paid for (evaluation, other queries) would release numbers that nobody accounted for, so they
are refused unless allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from privmarket.errors import UnknownNameError
from privmarket.flower import guard, wire
from privmarket.flower.client import fixed_offer, rules_and_wallet
from privmarket.flower.node_seller import Job, PerClient, Seller, WalletChoice, partition_name
from privmarket.flower.wire import Arrays, Sale
from privmarket.lazy import late
from privmarket.privacy.policy import PolicyRefusal, Reason, SellerPolicy
from privmarket.privacy.release import ReleaseGrid

NOISE = ("update", "app")

if TYPE_CHECKING:
    from torch import nn

    from privmarket import training as engine
else:
    # torch: bids are answered without it
    engine = late("privmarket.training")


class WalletMod:
    """A Flower client mod that enforces a wallet.

    >>> market = WalletMod(valuation=0.3, epsilon=1.0, wallet=wallet)  # doctest: +SKIP
    >>> app = ClientApp(mods=[market])  # doctest: +SKIP
    >>> market.answer_bids(app)  # doctest: +SKIP

    Args:
        valuation, epsilon, data_size, policy, wallet, spread, name: as for `client_app`.
        noise: who adds it, see above.
        allow: message types that may pass without a sale, e.g. ("evaluate",).
        metric: the one metric that leaves with an update: the declared data size, which is public.
        model: makes the app's `torch.nn.Module`; one in which records mix is refused before anything is reserved.
    """

    def __init__(
        self,
        valuation: PerClient,
        epsilon: PerClient = 1.0,
        data_size: PerClient = 1.0,
        *,
        policy: SellerPolicy | Path | str | None = None,
        wallet: WalletChoice = None,
        spread: bool = True,
        name: Callable[[Context], str] = partition_name,
        noise: str = "update",
        allow: Collection[str] = (),
        metric: str = "num-examples",
        model: Callable[[], nn.Module] | None = None,
    ) -> None:
        if noise not in NOISE:
            raise UnknownNameError(f"unknown noise {noise!r}", f"choose one of: {', '.join(NOISE)}")
        offer = fixed_offer(valuation, epsilon, data_size)
        rules, purse = rules_and_wallet(policy, wallet, name)
        if noise == "update":  # noise on a whole update is one full release, whatever schedules are known
            rules = replace(rules, schedules=((1.0, 1),))
        self.seller = Seller(_AppTraining(model), offer, purse, spread, name, None, None, rules)
        self.noise, self.allow, self.metric, self._size = noise, frozenset(allow), metric, data_size

    def answer_bids(self, app: ClientApp) -> None:
        """Registers what the market asks: bids and receipts. Call it once, on the app that has this mod."""
        app.query("bid")(self.seller.bid)
        app.query("receipt")(self.seller.receive)

    def __call__(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        """Handles a message as a Flower mod: answers it, refuses it, or has the app train and adds the noise."""
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
            return guard.refuse(message, context, error)

    def _sold(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        sale = wire.take(message.content, Sale)
        # What the app gets may be changed by it; the clipping is against what the server sent.
        sent = wire.read_arrays(message.content, None)
        floats = {name: array for name, array in sent.items() if array.dtype.kind == "f"}
        job = self.seller.accept(sale, context, floats)
        family = sale.family
        message.content[wire.JOB] = ConfigRecord(
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
            }
        )
        # From here on ε is reserved, and whatever goes wrong is the one word `failed`.
        try:
            reply = call_next(message, context)
            if reply.has_error():
                raise RuntimeError(reply.error.reason)
            if self.noise == "update":
                size = self._size(context) if callable(self._size) else self._size
                reply.content = self._noisy(reply.content, sent, job, float(size))
            self.seller.close(sale, wire.read_arrays(reply.content, None), context)
        except Exception as error:
            raise PolicyRefusal(Reason.FAILED, f"the app: {type(error).__name__}: {error}") from error
        return reply

    def _noisy(self, content: RecordDict, sent: Arrays, job: Job, size: float) -> RecordDict:
        """The reply with its update clipped and noised, and with nothing else in it."""
        name = next(iter(content.array_records), "arrays")
        trained = wire.read_arrays(content, None)
        released = noisy_weights(sent, trained, job.sale, job)
        arrays = ArrayRecord({key: Array(array) for key, array in released.items()})
        return RecordDict({name: arrays, "metrics": MetricRecord({self.metric: size})})


def noisy_weights(sent: Arrays, trained: Arrays, sale: Sale, job: Job) -> Arrays:
    """The weights that a client may release: what it was sent, plus its clipped change, plus noise.

    One record blanked may change everything that the app computes, so the clipped change moves by up to
    2·clip_norm: that is the sensitivity to which the noise multiplier refers. The change leaves through
    `privacy.release`. Arrays that hold no floating-point numbers go back as they came.

    Raises:
        ValueError: the app returned other arrays than it was sent.
    """
    if {n: a.shape for n, a in sent.items()} != {n: a.shape for n, a in trained.items()}:
        raise ValueError("the app returned other arrays than it was sent; clipping needs the same names and shapes")
    moving = [name for name, array in sent.items() if array.dtype.kind == "f"]
    released = {name: array.copy() for name, array in sent.items()}
    if not moving:
        return released
    with np.errstate(invalid="ignore", over="ignore"):
        change = np.concatenate([trained[n].astype(np.float64).ravel() - sent[n].ravel() for n in moving])
        norm = float(np.linalg.norm(change))
    # A change that is no number counts as none: whether it is one may depend on a single record.
    finite = np.isfinite(norm)
    change = (
        change * min(1.0, sale.clip_norm * (1.0 - 2.0**-24) / max(norm, 1e-300))
        if finite
        else np.zeros(change.size)
    )
    moved = change.astype(np.float32)
    if job.noise_multiplier:
        grid = ReleaseGrid.for_release(job.noise_multiplier, 2.0 * sale.clip_norm, change.size, 2.0**-20)
        grid.noisy(change, job.noise, moved)
    start = 0
    for name in moving:
        array = sent[name]
        step = moved[start : start + array.size].reshape(array.shape)
        released[name], start = (array + step).astype(array.dtype), start + array.size
    return released


class _AppTraining:
    """The app behind the mod trains; before anything is reserved its model is looked at, where it is known."""

    def __init__(self, model: Callable[[], nn.Module] | None) -> None:
        self._model, self._has_passed = model, False

    def __call__(self, weights: Arrays, job: Job) -> Arrays:
        raise NotImplementedError("the app behind the mod trains")

    def check(self, weights: Arrays, job: Job, policy: SellerPolicy) -> None:
        """Refuses a model in which records mix.

        A model that has passed is not tried again: its maker is the app's own and takes nothing from the server.
        `train_privately` looks at every model that it trains, with the weights and records at hand.

        Raises:
            PolicyRefusal: `model`.
        """
        if self._model is not None and not self._has_passed:
            with guard.becomes(Reason.MODEL, engine.ModelError):
                engine.require_supported(self._model())
            self._has_passed = True
