"""The client's side: bid what the wallet can bear, refuse more than was offered, train, add noise, account.

Every handler runs in the client's own process and trusts nobody: not the server to keep to the offer, nor its own
process to live until the reply. Bids are answered without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from privmarket.errors import ConfigurationError, WalletError
from privmarket.federated.round import Offer
from privmarket.flower import wire
from privmarket.flower.journal import WalletBook, WalletFile
from privmarket.flower.wire import Arrays, Call, Refusal, Sale
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.privacy.events import PrivacyEvent
from privmarket.privacy.noise import NoiseSource

if TYPE_CHECKING:
    from privmarket.broker.client import BrokerClient

_MEMORY = "privmarket-offer"  # where a node remembers its offer from the bid to the sale

OfferFunction = Callable[[Call, Context], Offer | None]
PerClient = float | Callable[[Context], float]
WalletChoice = WalletFile | Callable[[Context], WalletFile | None] | None


@dataclass(frozen=True, eq=False)
class Job:
    """What a client trains for.

    Attributes:
        sale: what it sold, and the public plan.
        noise_multiplier: standard deviation of the noise over `sale.clip_norm`, from the client's own calibration.
        noise: where batches and noise are drawn from.
        client: the client's name.
    """

    sale: Sale
    noise_multiplier: float
    noise: NoiseSource
    client: str
    context: Context


TrainFunction = Callable[[Arrays, Job], Mapping[str, np.ndarray]]
"""(global weights, job) ↦ global minus local weights, under the same names. It must add `job`'s noise itself."""
TrainMany = Callable[[Arrays, Sequence[Job]], Sequence[Mapping[str, np.ndarray]]]
"""The same for several clients that live in one process, for simulations: every job gives what it would alone."""


class MarketClientApp(ClientApp):
    """A Flower `ClientApp` that sells ε; `seller` holds its handlers."""

    seller: Seller


def client_app(
    train: TrainFunction | None = None,
    *,
    train_many: TrainMany | None = None,
    model: Callable[[], Any] | None = None,
    data: Callable[[Context], tuple[Any, Any]] | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    valuation: PerClient | None = None,
    epsilon: PerClient = 1.0,
    data_size: PerClient = 1.0,
    offer: OfferFunction | None = None,
    wallet: WalletChoice = None,
    spread: bool = True,
    name: Callable[[Context], str] | None = None,
    broker: Callable[[Context], BrokerClient] | None = None,
    noise_seed: int | None = None,
    secure_aggregation: bool = False,
    mods: list[Any] | None = None,
) -> ClientApp:
    """A Flower `ClientApp` that sells ε.

    Args:
        train: does the training and adds the noise. Or give `model` and `data`, and both are done for you:
        train_many: as `train`, for clients that share a process on an in-process grid; without mods only.
        model: makes the `torch.nn.Module` that is trained, any that can be trained record by record.
        data: the client's (inputs, labels), first axis records.
        loss: (outputs, labels) ↦ one loss per record; cross-entropy unless given.
        valuation: money asked per unit of ε, a number or a function of the node's context.
        epsilon: the most ε on offer in a round.
        data_size: declared number of records; public.
        offer: instead of the three, what to offer in a round.
        wallet: the client's lifetime wallet; None sells without limit and remembers nothing.
        spread: keep enough in the wallet to sell as much in all rounds to come; else offer all that is left.
        name: the client's name in the market; its `partition-id` unless given.
        broker: connects to the broker that holds the auction, with the client's own token.
        noise_seed: for simulations only: whoever knows the seed knows the noise. None draws from the system.
        secure_aggregation: updates leave masked, by SecAgg+; without further mods.
        mods: further Flower mods.
    """
    if train is None:
        if model is None or data is None:
            raise ConfigurationError("client_app got neither train nor model and data", "give one of them")
        train = module_training(model, data, loss)
    if offer is None:
        if valuation is None:
            raise ConfigurationError("client_app got neither valuation nor offer", "say what a unit of ε costs")
        offer = fixed_offer(valuation, epsilon, data_size)
    seller = Seller(train, offer, wallet, spread, name or partition_name, broker, noise_seed)
    seller.train_many = None if mods else train_many
    if secure_aggregation:
        from privmarket.flower.secure import secure_client

        return secure_client(seller)
    app = MarketClientApp(mods=mods)
    app.seller = seller
    app.query("bid")(seller.bid)
    app.query("receipt")(seller.receive)
    app.train()(seller.sell)
    return app


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

    def offer(call: Call, context: Context) -> Offer | None:
        numbers = [float(one(context) if callable(one) else one) for one in (valuation, epsilon, data_size)]
        return Offer(numbers[0], min(numbers[1], call.epsilon_max), numbers[2])

    return offer


def module_training(
    model: Callable[[], Any], data: Callable[[Context], tuple[Any, Any]], loss: Callable[[Any, Any], Any] | None
) -> TrainFunction:
    """Private training of any module; torch is imported when the first sale comes in, not for bids."""

    def train(weights: Arrays, job: Job) -> Arrays:
        from privmarket.flower.training import private_module_update

        inputs, labels = data(job.context)
        return private_module_update(model(), weights, inputs, labels, job, loss)

    return train


@dataclass(eq=False)
class Seller:
    """The handlers of one client app."""

    train: TrainFunction
    offer: OfferFunction
    wallet: WalletChoice
    spread: bool
    name: Callable[[Context], str]
    broker: Callable[[Context], BrokerClient] | None
    noise_seed: int | None
    train_many: TrainMany | None = None

    def bid(self, message: Message, context: Context) -> Message:
        """Answers a call for bids."""
        call = wire.read_call(message.content)
        self._note_receipt(message.content, context, call.family, call.epsilon_max)
        return Message(wire.write_offer(*self.make_offer(call, context)), reply_to=message)

    def make_offer(self, call: Call, context: Context) -> tuple[str, Offer | None]:
        """The client's name and what it offers in a round, within its wallet; remembered until the sale."""
        wanted = self.offer(call, context)
        if wanted is not None:
            rounds_left = max(1, call.rounds - call.number) if self.spread else 1
            with self._book(context, call.family, call.epsilon_max) as book:
                fits = wanted.epsilon if book is None else book.affordable(call.family, wanted.epsilon, rounds_left)
            wanted = Offer(wanted.valuation, fits, wanted.data_size, wanted.accuracy) if fits > 0 else None
        context.state[_MEMORY] = _memory(call, wanted)
        if self.broker is not None:
            return self._bid_at_broker(call, context, wanted)
        return self.name(context), wanted

    def sell(self, message: Message, context: Context) -> Message:
        """Trains for a sale, or refuses it."""
        try:
            sale = wire.read_sale(message.content)
            job = self.accept(sale, context)
        except (Refusal, WalletError) as refusal:
            return Message(wire.write_refusal(str(refusal)), reply_to=message)
        return self._reply(message, job, self.train(wire.read_arrays(message.content, wire.WEIGHTS), job))

    def sell_many(self, orders: Sequence[tuple[Message, Context]]) -> list[Message]:
        """As `sell`, for orders of one round to several nodes that live in this process."""
        assert self.train_many is not None
        replies: dict[int, Message] = {}
        jobs: dict[int, Job] = {}
        for at, (message, context) in enumerate(orders):
            try:
                jobs[at] = self.accept(wire.read_sale(message.content), context)
            except (Refusal, WalletError) as refusal:
                replies[at] = Message(wire.write_refusal(str(refusal)), reply_to=message)
        if jobs:
            weights = wire.read_arrays(orders[next(iter(jobs))][0].content, wire.WEIGHTS)
            updates = self.train_many(weights, list(jobs.values()))
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

    def accept(self, sale: Sale, context: Context) -> Job:
        """Checks a sale against the offer, calibrates the noise, and charges the wallet; all before training.

        Raises:
            Refusal: it asks for more than was offered.
            WalletError: it does not fit, or was made before.
        """
        _check_against_offer(sale, context)
        event = _event(sale.family, sale.epsilon)
        with self._book(context, sale.family, sale.epsilon) as book:
            if book is not None:
                book.reserve(sale.name, sale.epsilon, event)
        # Without a wallet file the node's own memory keeps a round from being sold twice.
        del context.state[_MEMORY]
        client = self.name(context)
        noise = NoiseSource.from_system()
        if self.noise_seed is not None:
            number = int(client) if client.isdigit() else client
            noise = NoiseSource.from_seed(self.noise_seed, "update", sale.number, number)
        return Job(sale, event.noise_multiplier, noise, client, context)

    def close(self, sale: Sale, update: Arrays, context: Context) -> None:
        """Notes that the update of a sale leaves now, in the wallet and at the broker."""
        if self.wallet is None and self.broker is None:
            return
        sha256 = wire.digest(update)
        with self._book(context, sale.family, sale.epsilon) as book:
            if book is not None:
                book.released(sale.name, sha256)
        if self.broker is not None:
            with self.broker(context) as broker:
                broker.claim_delivery(sale.broker_round, sha256)

    def receive(self, message: Message, context: Context) -> Message:
        """Takes the receipt of the last round."""
        call = wire.read_call(message.content)
        self._note_receipt(message.content, context, call.family, call.epsilon_max)
        return Message(RecordDict(), reply_to=message)

    def _note_receipt(
        self, content: RecordDict, context: Context, family: ReleaseFamily, epsilon_max: float
    ) -> None:
        receipt = wire.read_receipt(content)
        if receipt is not None:
            with self._book(context, family, epsilon_max) as book:
                if book is not None:
                    book.paid(f"{receipt.run}/{receipt.number}", receipt.paid_micro, receipt.fault)

    def _book(
        self, context: Context, family: ReleaseFamily, epsilon_max: float
    ) -> AbstractContextManager[WalletBook | None]:
        wallet = self.wallet(context) if callable(self.wallet) else self.wallet
        return nullcontext() if wallet is None else wallet.open(family, epsilon_max)

    def _bid_at_broker(self, call: Call, context: Context, wanted: Offer | None) -> tuple[str, None]:
        """The bid goes to the broker, sealed; the server of the training only hears who this is."""
        assert self.broker is not None
        with self.broker(context) as broker:
            if wanted is not None:
                features = {} if wanted.accuracy is None else {"accuracy": wanted.accuracy}
                broker.bid(
                    call.broker_round,
                    wanted.valuation,
                    wanted.epsilon,
                    data_size=wanted.data_size,
                    **features,
                )
            return str(broker.me()["id"]), None


@lru_cache(maxsize=4096)
def _event(family: ReleaseFamily, epsilon: float) -> PrivacyEvent:
    """Calibration takes a millisecond, and a client often sells the same ε again."""
    return family.event(epsilon)


def _memory(call: Call, offer: Offer | None) -> ConfigRecord:
    """What a node keeps of its offer; messages of one run may be handled by different processes."""
    family = call.family
    return ConfigRecord(
        {
            "run": call.run,
            "number": call.number,
            "epsilon": 0.0 if offer is None else float(offer.epsilon),
            "family": [float(family.sampling_rate), float(family.steps), float(family.delta)],
        }
    )


def _check_against_offer(sale: Sale, context: Context) -> None:
    memory = context.state.get(_MEMORY)
    if not isinstance(memory, ConfigRecord) or (memory["run"], memory["number"]) != (sale.run, sale.number):
        raise Refusal(f"nothing was offered in round {sale.number}, or it is sold already", "bid first; sell once")
    offered = float(memory["epsilon"])  # type: ignore[arg-type]
    if not 0 < sale.epsilon <= offered * (1 + 1e-9):
        raise Refusal(f"asked for ε = {sale.epsilon:g}, offered {offered:g}", "a sale never exceeds the offer")
    family = sale.family
    if memory["family"] != [float(family.sampling_rate), float(family.steps), float(family.delta)]:
        raise Refusal(f"asked for {family}, offered for another release", "terms stand once bids are called for")
