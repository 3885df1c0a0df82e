"""A wallet for an existing Flower client: a mod that answers bids and lets nothing out that was not sold.

With `noise="update"` the mod makes the release private itself, whatever the app does: it clips the whole update and
adds noise to it. With `noise="app"` the app promises to train privately with the noise multiplier that it is given.
Messages that were not paid for (evaluation, other queries) would release numbers that nobody accounted for, so they
are refused unless allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from privmarket.errors import UnknownNameError, WalletError
from privmarket.flower import wire
from privmarket.flower.client import Job, PerClient, Seller, WalletChoice, fixed_offer, partition_name
from privmarket.flower.wire import Arrays, Refusal, Sale

JOB = "privmarket-job"  # the record in which an app finds its noise multiplier and clipping
NOISE = ("update", "app")


class WalletMod:
    """A Flower client mod that enforces a wallet.

    >>> market = WalletMod(valuation=0.3, epsilon=1.0, wallet=wallet)  # doctest: +SKIP
    >>> app = ClientApp(mods=[market])  # doctest: +SKIP
    >>> market.answer_bids(app)  # doctest: +SKIP

    Args:
        valuation, epsilon, data_size, wallet, spread, name: as for `client_app`.
        noise: who adds it, see above.
        allow: message types that may pass without a sale, e.g. ("evaluate",).
        metric: the one metric that leaves with an update: the declared data size, which is public.
    """

    def __init__(
        self,
        valuation: PerClient,
        epsilon: PerClient = 1.0,
        data_size: PerClient = 1.0,
        *,
        wallet: WalletChoice,
        spread: bool = True,
        name: Callable[[Context], str] = partition_name,
        noise: str = "update",
        allow: Collection[str] = (),
        metric: str = "num-examples",
    ) -> None:
        if noise not in NOISE:
            raise UnknownNameError(f"unknown noise {noise!r}", f"choose one of: {', '.join(NOISE)}")
        offer = fixed_offer(valuation, epsilon, data_size)
        self.seller = Seller(_untrained, offer, wallet, spread, name, None, None)
        self.noise, self.allow, self.metric, self._size = noise, frozenset(allow), metric, data_size

    def answer_bids(self, app: ClientApp) -> None:
        """Registers what the market asks: bids and receipts. Call it once, on the app that has this mod."""
        app.query("bid")(self.seller.bid)
        app.query("receipt")(self.seller.receive)

    def __call__(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        """Flower's mod interface."""
        kind = message.metadata.message_type
        if kind == wire.BID:
            return self.seller.bid(message, context)
        if kind == wire.RECEIPT:
            return self.seller.receive(message, context)
        if kind in self.allow:
            return call_next(message, context)
        try:
            if not wire.has_sale(message.content):
                raise Refusal(f"{kind} without a sale", "what leaves this client is sold, or allowed by its owner")
            return self._sold(message, context, call_next)
        except (Refusal, WalletError) as refusal:
            return Message(wire.write_refusal(str(refusal)), reply_to=message)

    def _sold(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        sale = wire.read_sale(message.content)
        if self.noise == "update" and (sale.family.sampling_rate, sale.family.steps) != (1.0, 1):
            raise Refusal("noise on the update is one full release", "ask for sampling rate 1 and one step")
        # What the app gets may be changed by it; the clipping is against what the server sent.
        sent = wire.read_arrays(message.content, None)
        job = self.seller.accept(sale, context)
        message.content[JOB] = ConfigRecord(
            {"noise-multiplier": job.noise_multiplier, "clip-norm": sale.clip_norm, "epsilon": sale.epsilon}
        )
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        if self.noise == "update":
            size = self._size(context) if callable(self._size) else self._size
            reply.content = self._noisy(reply.content, sent, job, float(size))
        self.seller.close(sale, wire.read_arrays(reply.content, None), context)
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

    One record added or removed may change everything that the app computes, so the clipped change moves by up to
    2·clip_norm: that is the sensitivity to which the noise multiplier refers. Arrays that hold no floating-point
    numbers go back as they came.

    Raises:
        Refusal: the app returned other arrays than it was sent.
    """
    if {n: a.shape for n, a in sent.items()} != {n: a.shape for n, a in trained.items()}:
        raise Refusal("the app returned other arrays than it was sent", "clipping needs the same names and shapes")
    moving = [name for name, array in sent.items() if array.dtype.kind == "f"]
    change = {name: trained[name].astype(np.float64) - sent[name] for name in moving}
    norm = float(np.sqrt(sum(float(np.square(c).sum()) for c in change.values())))
    # A change that is no number counts as none: whether it is one may depend on a single record.
    factor = min(1.0, sale.clip_norm / max(norm, 1e-30)) if np.isfinite(norm) else 0.0
    deviation = job.noise_multiplier * 2.0 * sale.clip_norm
    released = {name: array.copy() for name, array in sent.items()}
    for name in moving:
        moved = np.ascontiguousarray(np.nan_to_num(change[name] * factor, nan=0.0), dtype=np.float32)
        job.noise.add(moved, deviation)
        released[name] = (sent[name] + moved).astype(sent[name].dtype)
    return released


def _untrained(weights: Arrays, job: Job) -> Arrays:
    raise NotImplementedError("the app behind the mod trains")
