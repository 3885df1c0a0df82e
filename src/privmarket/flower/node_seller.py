"""A seller inside a Flower client: it bids what the wallet can bear, refuses what the policy forbids, and accounts.

Every handler runs in the client's own process and does not trust the server to keep to the offer, nor its own
process to live until the reply. Before the wallet is charged and a record is read, an order is checked against the
seller's policy, the offer, the broker's award, the shapes and sizes of the weights, and the model's layers, in that
order. Nothing here needs torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from privmarket.errors import ConfigurationError, PrivmarketError
from privmarket.flower import guard, wire
from privmarket.flower.wire import Answer, Arrays, Offered, Receipt, Sale
from privmarket.market.outcome import is_beyond
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.privacy.events import PrivacyEvent
from privmarket.privacy.noise import NoiseSource
from privmarket.privacy.policy import Order, PolicyRefusal, Reason, SellerPolicy
from privmarket.privacy.policy_file import UNLIMITED
from privmarket.privacy.release import ReleaseGrid
from privmarket.privacy.wallet_file import OpenWallet, WalletFile
from privmarket.rounds import Offer, Terms, sale_name

if TYPE_CHECKING:
    from privmarket.broker.http_client import BrokerClient
    from privmarket.broker.signatures import SigningKey
MEMORY = wire.NAMES[Offered]  # where a node remembers its offer from the bid to the sale
_PLAN = ("epsilon", "clip_norm", "learning_rate", "expected_batch")  # what only an order says, not a call for bids

OfferFunction = Callable[[Terms, Context], Offer | None]
PerClient = float | Callable[[Context], float]
Purse = WalletFile | Literal["unlimited"]
WalletChoice = Purse | float | Callable[[Context], Purse] | None


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
    """Trains for a secure sum under aggregate trust: what `client_app(share=…)` takes."""

    def records(self, context: Context) -> int:
        """The number of records that this client holds."""

    def share(self, weights: Arrays, job: Job, grid: ReleaseGrid) -> Mapping[str, np.ndarray]:
        """What the client adds to the sum: its clipped sum on `grid` with its share of the noise, int64 by name."""


class MarketClientApp(ClientApp):
    """A Flower `ClientApp` that sells ε; `seller` holds its handlers. The text of an error never leaves it."""

    seller: Seller

    def __call__(self, message: Message, context: Context) -> Message:
        """Answers a message; an error of a mod or of Flower itself becomes a one-word refusal, too."""
        try:
            return super().__call__(message, context)
        except Exception as error:
            return guard.refuse(message, context, error)


def partition_name(context: Context) -> str:
    """The node's `partition-id`, which Flower's simulation sets and `flower-supernode --node-config` gives."""
    partition = context.node_config.get("partition-id")
    if partition is None:
        raise ConfigurationError(
            "this node has no partition-id", 'start it with --node-config "partition-id=0", or give name='
        )
    return str(partition)


@dataclass(eq=False)
class Seller:
    """Handles the messages of one client app: calls for bids, orders and receipts."""

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
        """Answers a call for bids with what policy and wallet allow, and remembers the offer until the sale.

        A call outside the policy is answered with the reason instead of an offer.
        """
        terms = wire.take(message.content, Terms)
        try:
            self._check_terms(terms, context)
            self._note_receipt(message.content, context)
            wanted = self.offer(terms, context)
            if wanted is not None:
                price = self.policy.price.get(terms.trust, wanted.valuation)
                most = min(wanted.epsilon, self.policy.epsilon_per_sale)
                wanted = replace(wanted, epsilon=most, valuation=price)
                rounds_left = max(1, terms.rounds - terms.number) if self.spread else 1
                with self._wallet(context) as wallet:
                    if wallet is not None:
                        fits = float(wallet.wallets.affordable(terms.family, most, rounds_left)[0])
                        wanted = replace(wanted, epsilon=fits) if fits > 0 else None
            # Before the offer is remembered: an offer that the broker did not take can never be sold.
            client = self.name(context) if self.broker is None else self._bid_at_broker(terms, context, wanted)
            offered = 0.0 if wanted is None else float(wanted.epsilon)
            of_round = terms.run, terms.number, terms.broker_round
            wire.put(context.state, Offered(*of_round, offered, terms.family, terms.trust, terms.honest_share))
        except Exception as error:
            reason = guard.reason_of(error)
            guard.note_refusal(context, reason, error)
            answer = Answer(self.name(context), bids=False, reason=str(reason))
            return Message(wire.put(RecordDict(), answer), reply_to=message)
        answer = Answer(client, bids=False)
        if wanted is not None and self.broker is None:  # at a broker the bid is sealed
            accuracy = None if wanted.accuracy is None else float(wanted.accuracy)
            numbers = float(wanted.valuation), float(wanted.epsilon), float(wanted.data_size)
            answer = Answer(client, True, None, *numbers, accuracy)
        return Message(wire.put(RecordDict(), answer), reply_to=message)

    def _check_terms(self, asked: Terms | Sale, context: Context) -> None:
        """Holds a call or an order against the policy and, where there is a broker, against what it published."""
        if len(asked.run) > guard.LONGEST_TEXT or not asked.run.isprintable():
            raise PolicyRefusal(Reason.MESSAGE, f"a run with a name of {len(asked.run)} characters")
        task = None
        if self.broker is not None:
            with self.broker(context) as broker:
                task = guard.fetch_task(broker, asked.broker_round)
                guard.check_task(asked, task)
        plan = {}
        if isinstance(asked, Sale):
            plan = {name: getattr(asked, name) for name in _PLAN}
        self.policy.check(
            Order(
                delta=asked.family.delta,
                sampling_rate=asked.family.sampling_rate,
                steps=asked.family.steps,
                trust=asked.trust,
                supposed_honest=asked.honest_share,
                unit=self.policy.unit,
                buyer=None if task is None else task.buyer,
                broker=None if task is None else task.broker,
                **plan,
            )
        )

    def sell(self, message: Message, context: Context) -> Message:
        """Checks an order, charges the wallet, trains and replies with the noisy update, or with a refusal."""
        return self.sell_many([(message, context)])[0]

    def sell_many(self, orders: Sequence[tuple[Message, Context]]) -> list[Message]:
        """Trains for sales of one round, or refuses them; several go to nodes that live in this process."""
        replies: dict[int, Message] = {}
        jobs: dict[int, Job] = {}
        weights: Arrays = {}
        for at, (message, context) in enumerate(orders):
            try:
                sale = wire.take(message.content, Sale)
                weights = weights or wire.read_arrays(message.content, wire.WEIGHTS)
                jobs[at] = self.accept(sale, context, weights)
            except Exception as error:
                replies[at] = guard.refuse(message, context, error)
        try:
            if self.train_many is None:
                updates = [self.train(weights, job) for job in jobs.values()]
            else:
                updates = list(self.train_many(weights, list(jobs.values()))) if jobs else []
        except Exception as error:  # whatever it raises, even a refusal, is a failure: ε is reserved by now
            replies |= {at: guard.refuse(*orders[at], error, Reason.FAILED) for at in jobs}
            return [replies[at] for at in range(len(orders))]
        for (at, job), update in zip(jobs.items(), updates, strict=True):
            message, context = orders[at]
            try:
                arrays, share = dict(update), np.float32(job.sale.share)
                if share != 1.0:
                    arrays = {name: array * share for name, array in arrays.items()}
                self.close(job.sale, arrays, context)
                replies[at] = Message(RecordDict({wire.UPDATE: wire.write_arrays(arrays)}), reply_to=message)
            except Exception as error:
                replies[at] = guard.refuse(message, context, error)
        return [replies[at] for at in range(len(orders))]

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
        if self.noise_seed is None:
            noise = NoiseSource.from_system()
        else:
            number = int(client) if client.isdigit() else client
            noise = NoiseSource.from_seed(self.noise_seed, "update", sale.number, number)
        job = Job(sale, event.noise_multiplier, noise, client, context, self.policy.unit)
        check = getattr(self.train, "check", None)
        if check is not None:
            check(weights, job, self.policy)
        with self._wallet(context) as wallet:
            if wallet is not None:
                unit, share = self.policy.unit, sale.honest_share
                name = sale_name(sale.run, sale.number)
                wallet.reserve(name, sale.epsilon, event, unit=unit, trust=sale.trust, honest_share=share)
        # Without a wallet file the node's own memory keeps a round from being sold twice.
        del context.state[MEMORY]
        return job

    def close(self, sale: Sale, update: Arrays, context: Context) -> None:
        """Notes that the update of a sale leaves now, in the wallet and at the broker."""
        with self._wallet(context) as wallet:
            if wallet is None and self.broker is None:
                return
            # A share of a secure sum has little noise of its own: of a few numbers somebody could try out all.
            salt = {"": np.frombuffer(os.urandom(32), dtype=np.uint8)} if sale.trust == "aggregate" else {}
            sha256 = wire.digest({**update, **salt})
            if wallet is not None:
                wallet.released(sale_name(sale.run, sale.number), sha256)
        if self.broker is not None:
            with self.broker(context) as broker:
                broker.claim_delivery(sale.broker_round, sha256)

    def receive(self, message: Message, context: Context) -> Message:
        """Notes in the wallet what the receipt of the last round says: the payment, or why there was none."""
        wire.take(message.content, Terms)
        self._note_receipt(message.content, context)
        return Message(RecordDict(), reply_to=message)

    def _note_receipt(self, content: RecordDict, context: Context) -> None:
        receipt = wire.take(content, Receipt, None)
        if receipt is None:
            return
        if receipt.paid_micro < 0:
            raise PolicyRefusal(Reason.MESSAGE, f"a receipt for {receipt.paid_micro} µ")
        with self._wallet(context) as wallet:
            if wallet is not None:
                fault = guard.one_line(receipt.fault)
                wallet.paid(sale_name(receipt.run, receipt.number), receipt.paid_micro, fault)

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

    def registered_key(self, context: Context) -> SigningKey | None:
        """The key that this client signs its keys of a secure sum with: as given, else the one it bids with."""
        if self.identity is not None:
            return self.identity(context)
        if self.broker is None:
            return None
        with self.broker(context) as broker:
            return broker.key

    def registered_parties(self, context: Context, broker_round: str) -> Collection[str] | None:
        """The public keys that a round's secure sum may consist of: as given, else the broker's for that round."""
        if self.parties is not None:
            return self.parties(context)
        if self.broker is None:
            return None
        with self.broker(context) as broker, guard.becomes(Reason.BROKER, PrivmarketError):
            return {str(seller["public_key"]) for seller in broker.cohort(broker_round)}

    def _bid_at_broker(self, terms: Terms, context: Context, wanted: Offer | None) -> str:
        """The bid goes to the broker, sealed; the server of the training only hears who this is."""
        assert self.broker is not None
        with self.broker(context) as broker:
            if wanted is not None and terms.trust == "aggregate" and self.registered_key(context) is None:
                raise PolicyRefusal(Reason.BROKER, "a secure sum at a broker needs BrokerClient(key=…)")
            if wanted is not None:
                features = {} if wanted.accuracy is None else {"accuracy": wanted.accuracy}
                broker.bid(
                    terms.broker_round,
                    wanted.valuation,
                    wanted.epsilon,
                    data_size=wanted.data_size,
                    **features,
                )
            return str(broker.me()["id"])


@lru_cache(maxsize=4096)
def event_of(family: ReleaseFamily, epsilon: float) -> PrivacyEvent:
    """The release that sells ε; remembered, since calibration takes a millisecond and the same ε is often sold."""
    return family.event(epsilon)


def _check_against_offer(sale: Sale, context: Context) -> None:
    """Refuses an order for which nothing was offered, or more than was offered, or under other terms."""
    offered = wire.take(context.state, Offered, None)
    of_round = sale.run, sale.number, sale.broker_round
    if offered is None or (offered.run, offered.number, offered.broker_round) != of_round:
        raise PolicyRefusal(Reason.OFFER, f"nothing was offered in round {sale.number}, or it is sold already")
    if not sale.epsilon > 0 or is_beyond(sale.epsilon, offered.epsilon):
        raise PolicyRefusal(Reason.OFFER, f"asked for ε = {sale.epsilon:g}, offered {offered.epsilon:g}")
    release = sale.family, sale.trust, sale.honest_share
    if (offered.family, offered.trust, offered.honest_share) != release:
        raise PolicyRefusal(
            Reason.OFFER, f"asked for {sale.family} under {sale.trust} trust, offered for another release"
        )


def trained(train: Callable[[], Mapping[str, np.ndarray]]) -> Mapping[str, np.ndarray]:
    """What training gives. Whatever it raises, even a refusal, is a failure: ε is reserved by now."""
    try:
        return train()
    except Exception as error:
        raise PolicyRefusal(Reason.FAILED, f"training: {type(error).__name__}: {error}") from error
