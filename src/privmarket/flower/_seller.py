"""A seller inside a Flower client: it bids within its wallet, refuses what its policy forbids, and charges each
sale.

Every handler runs in the client's own process. It does not rely on the server to keep to the offer, nor on its own
process to exist until the reply. Before the wallet is charged and a record is read, an order is checked against the
seller's policy, the offer, the broker's award, the shapes and sizes of the weights, and the model's layers, in that
order. This module does not need torch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from privmarket._files import in_words
from privmarket.errors import ConfigurationError, PrivmarketError
from privmarket.flower import _refusals as refusals, _wire as wire
from privmarket.flower._bundle import warn_if_packed
from privmarket.flower._wire import Answer, Arrays, Noted, Offered, Receipt, Sale
from privmarket.market._outcome import is_beyond
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._noise import NoiseSource
from privmarket.privacy._policy import UNLIMITED, Order, PolicyRefusal, Reason, SellerPolicy
from privmarket.privacy._release import ReleaseGrid
from privmarket.privacy._wallet_store import OpenWallet, WalletFile, WalletFileError
from privmarket.rounds import Offer, Terms, sale_name
from privmarket.secagg import FileJournal, Signer, Step, SumJournal, SurvivorList

if TYPE_CHECKING:
    from privmarket.broker._client import BrokerClient
    from privmarket.broker._signatures import SigningKey
MEMORY = wire.NAMES[Offered]  # where a node remembers its offer from the bid to the sale
_COMPARED = 50  # this many of a seller's newest sales at a broker are compared with its wallet
_MOST_FAILURES = 2  # sales that failed here in one run; then this client sells no more in it
_PLAN = ("epsilon", "clip_norm", "learning_rate", "expected_batch")  # what only an order says, not a call for bids

OfferFunction = Callable[[Terms, Context], Offer | None]
PerClient = float | Callable[[Context], float]
WalletOfClient = WalletFile | Literal["unlimited"]
WalletChoice = WalletOfClient | float | Callable[[Context], WalletOfClient] | None

WALLETS_KEY = "wallets"  # in a node's configuration: the folder of its wallet
WALLETS_VARIABLE = "PRIVMARKET_WALLETS"  # in the environment of the process in which a node's app runs
WALLETS_FOLDER = "out/flower-wallets"  # where neither says anything: below the folder in which the app runs


def own_file(context: Context, name: str) -> Path:
    """A file of the node, in a folder that the node's owner named.

    The folder never comes from the run's configuration, which is written by whoever submits the run: a new folder
    would be a new wallet.
    """
    folder = str(context.node_config.get(WALLETS_KEY) or os.environ.get(WALLETS_VARIABLE) or WALLETS_FOLDER)
    return Path(folder).absolute() / name


def relative_place(policy: Path | str) -> str:
    """What to tell a site whose policy is named by a relative path; empty for a full one.

    Such a file is looked for where the process was started, which need not be the app's folder: Flower's local
    SuperLink stays where its first run began, so another app's file of that name would be read.
    """
    if Path(policy).is_absolute():
        return ""
    return f"the policy {policy} is read from {Path(policy).absolute()}: name it by its full path to be sure which"


@dataclass(frozen=True, eq=False)
class Job:
    """The order for which a client trains, with its own noise.

    Attributes:
        sale: what it sold, and the public plan.
        noise_multiplier: standard deviation of the noise over `sale.clip_norm`, from the client's own calibration.
        noise: the source of batches and noise.
        client: the client's name.
        unit: the unit of the seller's policy, `record` or `person`.
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
"""The same for several clients in one process, for simulations; each job has the same result as alone."""


class ShareTraining(Protocol):
    """Training for a secure sum under aggregate trust: the argument `client_app(share=…)`."""

    def records(self, context: Context) -> int:
        """The number of records that this client holds."""

    def share(self, weights: Arrays, job: Job, grid: ReleaseGrid) -> Mapping[str, np.ndarray]:
        """The client's part of the sum: its clipped sum on `grid` with its share of the noise, int64 by name."""


class MarketClientApp(ClientApp):
    """A Flower `ClientApp` that sells ε; `seller` has its handlers. Texts of errors never leave it."""

    seller: Seller

    def __call__(self, message: Message, context: Context) -> Message:
        """Answers a message; an error of a mod or of Flower itself becomes a one-word refusal, too."""
        try:
            return super().__call__(message, context)
        except Exception as error:
            return refusals.refuse(message, context, error)


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
    wallet: Callable[[Context], WalletOfClient]
    spread: bool
    name: Callable[[Context], str]
    broker: Callable[[Context], BrokerClient] | None
    noise_seed: int | None
    policy: SellerPolicy
    train_many: TrainMany | None = None
    share: ShareTraining | None = None
    identity: Callable[[Context], SigningKey] | None = None
    parties: Callable[[Context], Collection[str]] | None = None
    masked: bool = False
    journals: Callable[[Context], SumJournal] | None = None
    is_simulated: bool = False  # the other sellers are those of the simulation

    def bid(self, message: Message, context: Context) -> Message:
        """Answers a call for bids with what policy and wallet allow, and remembers the offer until the sale.

        A call outside the policy is answered with the reason instead of an offer.
        """
        terms = wire.take(message.content, Terms)
        try:
            buyer = self._check_terms(terms, context)
            self._note_receipt(message.content, context)
            _check_failures(context)
            wanted = self.offer(terms, context)
            if wanted is not None:
                price = self.policy.price.get(terms.trust, wanted.valuation)
                order = self._order(terms)
                charged = min(self.policy.charged_epsilon(order, wanted.epsilon), self.policy.epsilon_per_sale)
                declared = self.policy.declared(wanted.data_size)
                self._check_count(terms, declared, context)
                rounds_left = max(1, terms.rounds - terms.number) if self.spread else 1
                with self._wallet(context) as wallet:
                    if wallet is not None:
                        charged = float(wallet.wallets.affordable(terms.family, charged, rounds_left)[0])
                        if not charged > 0:
                            raise PolicyRefusal(Reason.WALLET, "the wallet holds no further sale of this kind")
                        self._check_debt(wallet, buyer, event_of(terms.family, charged))
                most = min(wanted.epsilon, self.policy.sold_epsilon(order, charged))
                wanted = replace(wanted, epsilon=most, valuation=price, data_size=declared)
            # Before the offer is remembered, so that an offer that the broker did not accept cannot be sold.
            client = self.name(context) if self.broker is None else self._bid_at_broker(terms, context, wanted)
            offered = 0.0 if wanted is None else float(wanted.epsilon)
            of_round = terms.run, terms.number, terms.broker_round
            wire.put(context.state, Offered(*of_round, offered, terms.family, terms.trust, terms.honest_share))
        except Exception as error:
            reason = refusals.reason_of(error)
            refusals.note_refusal(context, reason, error)
            answer = Answer(self.name(context), bids=False, reason=str(reason))
            return Message(wire.put(RecordDict(), answer), reply_to=message)
        key = self.signer(context).public_key.hex() if self.masked else None
        answer = Answer(client, bids=False, sum_key=key)
        if wanted is not None and self.broker is None:  # at a broker the bid is sealed
            accuracy = None if wanted.accuracy is None else float(wanted.accuracy)
            numbers = float(wanted.valuation), float(wanted.epsilon), float(wanted.data_size)
            answer = Answer(client, True, None, *numbers, accuracy, key)
        return Message(wire.put(RecordDict(), answer), reply_to=message)

    def _check_count(self, terms: Terms, declared: float, context: Context) -> None:
        """Declines if this client holds more records than it declares, so that its integers would not fit a secure
        sum.

        If that happened in the sum, all other sellers would lose ε.
        """
        if terms.trust == "aggregate" and self.share is not None:
            records = self.share.records(context)
            if records > declared:
                raise PolicyRefusal(
                    Reason.RECORDS,
                    f"{records} records, {declared:g} declared",
                    "declare at least as many as there are: data_size=",
                )

    def _check_debt(self, wallet: OpenWallet, buyer: str, event: PrivacyEvent) -> None:
        """Refuses to sell this release, too, to a buyer that has not paid for others."""
        owed = wallet.unpaid_epsilon(buyer)
        if owed <= 0:
            return
        cap = float(wallet.wallets.cap_epsilon[0])
        try:
            self.policy.check_debt(buyer, owed, wallet.unpaid_epsilon(buyer, event), cap)
        except PolicyRefusal as refusal:
            refusal.hint = (
                "wait for the payment, or write a larger unpaid_epsilon into a policy file and name it by policy=, "
                "beside the same wallet="
            )
            raise

    def _check_terms(self, asked: Terms | Sale, context: Context) -> str:
        """Checks a call or an order against the policy and, with a broker, against the published task.

        Returns:
            The buyer's name at the broker; empty without a broker.
        """
        if len(asked.run) > refusals.LONGEST_TEXT or not asked.run.isprintable():
            raise PolicyRefusal(Reason.MESSAGE, f"a run with a name of {len(asked.run)} characters")
        task = None
        if self.broker is not None:
            with self.broker(context) as broker:
                task = refusals.fetch_task(broker, asked.broker_round)
                refusals.check_task(asked, task)
        self.policy.check(self._order(asked, task))
        return "" if task is None else task.buyer

    def _order(self, asked: Terms | Sale, task: refusals.Task | None = None) -> Order:
        """What a call or an order asks for, as the policy looks at it."""
        plan: dict[str, float] = {}
        sellers = None
        if isinstance(asked, Sale):
            plan = {name: getattr(asked, name) for name in _PLAN}
            sellers = asked.sellers
        return Order(
            delta=asked.family.delta,
            sampling_rate=asked.family.sampling_rate,
            steps=asked.family.steps,
            trust=asked.trust,
            supposed_honest=asked.honest_share,
            sellers=sellers,
            registered=self.has_register,
            unit=self.policy.unit,
            buyer=None if task is None else task.buyer,
            broker=None if task is None else task.broker,
            **plan,
        )

    @property
    def has_register(self) -> bool:
        """Whether it relies on its own list, a broker or a register to say who is in a secure sum."""
        if self.policy.register == "none":
            return False
        named = self.parties is not None or self.broker is not None or self.policy.register_key is not None
        return named or self.is_simulated

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
                replies[at] = refusals.refuse(message, context, error)
        try:
            if self.train_many is None:
                updates = [self.train(weights, job) for job in jobs.values()]
            else:
                updates = list(self.train_many(weights, list(jobs.values()))) if jobs else []
        except Exception as error:  # every error, even a refusal, is a failure here, since ε is reserved
            replies |= {at: refusals.refuse(*orders[at], error, Reason.FAILED) for at in jobs}
            return [replies[at] for at in range(len(orders))]
        for (at, job), update in zip(jobs.items(), updates, strict=True):
            message, context = orders[at]
            try:
                arrays = dict(update)
                share = np.float32(job.sale.share)
                if share != 1.0:
                    arrays = {name: array * share for name, array in arrays.items()}
                self.close(job.sale, arrays, context)
                replies[at] = Message(RecordDict({wire.UPDATE: wire.write_arrays(arrays)}), reply_to=message)
            except Exception as error:
                replies[at] = refusals.refuse(message, context, error)
        return [replies[at] for at in range(len(orders))]

    def accept(
        self,
        sale: Sale,
        context: Context,
        weights: Arrays,
        try_app: Callable[[Job], None] = lambda _: None,
    ) -> Job:
        """Checks a sale and its weights, calibrates the noise, and charges the wallet; all before training.

        Args:
            try_app: called before the wallet is charged; an error in it refuses the sale.

        Raises:
            PolicyRefusal: it is outside the policy, the offer or the broker's award, or the model mixes records.
            WalletError: it does not fit, or was made before.
        """
        buyer = self._check_terms(sale, context)
        _check_against_offer(sale, context)
        address = ""
        if self.broker is not None:
            with self.broker(context) as broker:
                refusals.check_award(sale, broker)
                address = broker.url.rstrip("/")
                self._compare(broker, context)
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
        try_app(job)
        with self._wallet(context) as wallet:
            if wallet is not None:
                charged = self.policy.charged_epsilon(self._order(sale), sale.epsilon)
                self._check_debt(wallet, buyer, event_of(sale.family, charged))
                wallet.reserve(
                    sale_name(sale.run, sale.number),
                    sale.epsilon,
                    event,
                    unit=self.policy.unit,
                    trust=sale.trust,
                    honest_share=sale.honest_share,
                    sellers=sale.sellers,
                    cohorts=sale.cohorts,
                    registered=self.has_register,
                    buyer=buyer,
                    broker=address,
                    broker_round=sale.broker_round,
                    due_micro=sale.payment_micro,
                )
        # Without a wallet file, the node's own state prevents a second sale in a round.
        del context.state[MEMORY]
        return job

    def close(self, sale: Sale, update: Arrays, context: Context) -> None:
        """Records that the update of a sale leaves now, in the wallet and at the broker."""
        with self._wallet(context) as wallet:
            if wallet is None and self.broker is None:
                return
            # A share of a secure sum has little noise of its own: with few numbers, somebody could guess it from
            # its hash.
            salt = {"": np.frombuffer(os.urandom(32), dtype=np.uint8)} if sale.trust == "aggregate" else {}
            sha256 = wire.digest({**update, **salt})
            if wallet is not None:
                wallet.released(sale_name(sale.run, sale.number), sha256)
        if self.broker is not None:
            with self.broker(context) as broker:
                broker.claim_delivery(sale.broker_round, sha256)

    def receive(self, message: Message, context: Context) -> Message:
        """Records in the wallet what the receipt of the last round says: the payment, or why there was none."""
        wire.take(message.content, Terms)
        noted = self._note_receipt(message.content, context)
        return Message(RecordDict() if noted is None else wire.put(RecordDict(), noted), reply_to=message)

    def _compare(self, broker: BrokerClient, context: Context) -> None:
        """Compares the wallet with this seller's newest sales in the broker's books, and records payments."""
        if self.wallet(context) == UNLIMITED:
            return
        with refusals.becomes(Reason.BROKER, PrivmarketError):
            newest = list(islice(broker.my_awards(), _COMPARED))
        with self._wallet(context) as wallet:
            if wallet is not None:
                wallet.compare(broker.url.rstrip("/"), newest)

    def _note_receipt(self, content: RecordDict, context: Context) -> Noted | None:
        """Records a receipt, if there is one; returns the answer to that of a round that was stopped."""
        receipt = wire.take(content, Receipt, None)
        if receipt is None:
            return None
        if self.broker is not None:  # payments as the broker states them, not the server
            with self.broker(context) as broker:
                self._compare(broker, context)
            return None
        if receipt.paid_micro < 0:
            raise PolicyRefusal(Reason.MESSAGE, f"a receipt for {receipt.paid_micro} µ")
        name = sale_name(receipt.run, receipt.number)
        noted = None
        if receipt.stopped:
            noted = self._noted(receipt, name, context)
            if not noted.released:
                return noted
        with self._wallet(context) as wallet:
            if wallet is not None:
                wallet.paid(name, receipt.paid_micro, refusals.one_line(receipt.fault))
        return noted

    def _noted(self, receipt: Receipt, name: str, context: Context) -> Noted:
        """What the wallet says about a sale; a client without one knows of none."""
        wallet = self.wallet(context)
        sales = wallet.statement() if isinstance(wallet, WalletFile) else []
        sale = next((one for one in sales if one["sale"] == name and not one.get("void")), None)
        return Noted(receipt.run, receipt.number, sale is not None, sale is not None and sale["released"])

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
        if wallet.unit != self.policy.unit:
            raise ConfigurationError(
                f"the wallet {wallet.path.name} counts ε per {wallet.unit}, the policy per {self.policy.unit}",
                f'give WalletFile(…, unit="{self.policy.unit}")',
            )
        warn_if_packed(wallet.path)
        return _opened(wallet)

    def journal(self, context: Context) -> SumJournal:
        """The journal of this client's secure sums: beside its wallet, unless set otherwise."""
        wallet = self.wallet(context)
        if isinstance(wallet, WalletFile):
            return FileJournal(wallet.path.with_suffix(".sums"))
        if self.journals is not None:
            return self.journals(context)
        return FileJournal(own_file(context, f"client-{self.name(context)}.sums"))

    def check_journal(self, context: Context) -> None:
        """Refuses to continue if the journal of secure sums is an older copy, i.e. lacks a sum that is in the
        wallet.

        Raises:
            WalletFileError: it is.
        """
        begun: dict[str, int] = {}
        with self.journal(context).open() as journal:
            for one in journal.sums:
                begun[one.task] = one.round if one.step >= Step.ACCEPTED else one.round - 1

        def has_begun(sale: str) -> bool:
            run, _, number = sale.rpartition("/")
            return not number.isdecimal() or int(number) <= begun.get(run, -1)

        with self._wallet(context) as wallet:
            if wallet is not None:
                wallet.check_journal(has_begun)

    def note_list(self, context: Context, listed: SurvivorList) -> None:
        """Records in the wallet which list of survivors this client signs: one for each sale.

        With a broker the wallet is compared with the books first, so that not both files can be older copies.

        Raises:
            WalletFileError: it signed another before, or the wallet is an older copy.
        """
        if self.broker is not None:
            with self.broker(context) as broker:
                self._compare(broker, context)
        with self.journal(context).open() as journal:
            signed = journal.named(listed.sum)
        with self._wallet(context) as wallet:
            if wallet is not None and signed is not None:
                sha256 = hashlib.sha256(repr((listed.sum, listed.survivors)).encode()).hexdigest()
                wallet.confirmed(sale_name(signed.task, signed.round), sha256)

    def signer(self, context: Context) -> Signer:
        """The signing key of this client in secure sums: its registered key, else one from its journal."""
        registered = self.registered_key(context)
        if registered is not None:
            return RegisteredSigner(registered)
        with self.journal(context).open() as journal:
            return journal.identity()

    def registered_key(self, context: Context) -> SigningKey | None:
        """The registered key of this client for secure sums: as given, else the one that it bids with."""
        if self.identity is not None:
            return self.identity(context)
        if self.broker is None:
            return None
        with self.broker(context) as broker:
            return broker.key

    def registered_parties(self, context: Context, broker_round: str) -> Collection[str] | None:
        """The public keys of the sellers of a round's secure sum: as given, else the broker's for that round."""
        if self.parties is not None:
            return self.parties(context)
        if self.broker is None:
            return None
        with self.broker(context) as broker, refusals.becomes(Reason.BROKER, PrivmarketError):
            return {str(seller["public_key"]) for seller in broker.cohort(broker_round)}

    def _bid_at_broker(self, terms: Terms, context: Context, wanted: Offer | None) -> str:
        """Sends the bid to the broker, sealed. The server of the training only learns who this client is."""
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


@dataclass(frozen=True)
class RegisteredSigner:
    """A key that a client bids with or is registered with, as a `secagg.Signer`."""

    key: SigningKey

    @property
    def public_key(self) -> bytes:
        """The public key, 32 bytes."""
        return bytes.fromhex(self.key.public)

    def sign(self, statement: bytes) -> bytes:
        """The 64 bytes of a signature."""
        return bytes.fromhex(self.key.sign(statement))


@contextmanager
def _opened(wallet: WalletFile) -> Iterator[OpenWallet]:
    """A wallet, opened.

    Raises:
        WalletFileError: its file cannot be written.
    """
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(wallet.open())
        except OSError as error:
            raise WalletFileError(
                f"the wallet {wallet.path} cannot be written: {in_words(error)}",
                "let the user that runs the client write there, or name another place",
            ) from error
        yield opened


@lru_cache(maxsize=4096)
def event_of(family: ReleaseFamily, epsilon: float) -> PrivacyEvent:
    """The release that sells ε; cached, since calibration takes a millisecond and the same ε is often sold."""
    return family.event(epsilon)


def _check_failures(context: Context) -> None:
    """Declines for the rest of a run in which sales failed here: each of them spends ε and earns nothing."""
    failed = refusals.refusals(context).get(Reason.FAILED.value, 0)
    if failed >= _MOST_FAILURES:
        raise PolicyRefusal(
            Reason.FAILED,
            f"{failed} sales of this run failed here, after their ε was spent; no buyer owes anything for them",
            "mend the app by the first error in this log; the next run begins anew",
        )


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
    """The result of training. Every error, even a refusal, becomes a failure, since ε is reserved."""
    try:
        return train()
    except Exception as error:
        raise PolicyRefusal(Reason.FAILED, f"training: {type(error).__name__}: {error}") from error
