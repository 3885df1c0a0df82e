"""The server's side of secure sums on Flower: it transports the messages of `secagg.Server` over the grid.

A round with more sellers than one sum allows begins with a dealing (`form_cohorts`, `secagg.Dealer`) and has
several sums, whose messages are sent together, step by step.

A secure sum adds up integers of which the server sees only the total. Under aggregate trust (`secure_sum`) these
are clipped sums, each with a share of a common noise. Under local trust (`secure_order`) they are whole updates
with all of their own noise, rounded; client i of n sends n·α_i·update_i, so that the mean is Σ α_i·update_i. Nobody
can check a single update: a client is paid for a masked vector, and one that sends garbage spoils the sum for all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from privmarket.errors import PrivmarketError
from privmarket.flower import _wire as wire
from privmarket.flower._fleet import Delivery, Fleet, in_policy_terms
from privmarket.flower._sum_seller import ROUNDED_STEPS, array_layout, binding, largest_share
from privmarket.flower._wire import Arrays, Refusal, Sale
from privmarket.privacy._policy import Reason
from privmarket.rounds import Terms
from privmarket.secagg import (
    Dealer,
    DealingTerms,
    DealtMessage,
    InputRequest,
    Message as SumMessage,
    Parcel,
    Roster,
    SellerMessage,
    Server,
    ServerMessage,
    SumClosed,
    SumTerms,
    exact_bits,
)

FAILED = "the secure sum was not opened: too few sellers came through"
SILENT = "no masked update before the deadline"
NO_KEY = "sent no key for the secure sum"
SUM_BITS = 54
"""A seller's integers are computed as 64-bit floats, which hold integers exactly up to 2⁵³."""
SignRoster = Callable[[Roster], bytes]
"""Asks a register to sign the roster of a round; returns its signature."""
_log = logging.getLogger("privmarket.flower")


def clipping_range(sales: Iterable[Sale], deviations: float = 8.0) -> float:
    """A public bound on what honest sellers send: clipped means of at most C each, and 8 deviations of noise."""

    def largest(sale: Sale) -> float:
        noise = float(sale.family.noise_multiplier(sale.epsilon)) * np.sqrt(sale.family.steps) / sale.expected_batch
        return sale.share * sale.learning_rate * sale.clip_norm * float(sale.family.steps + deviations * noise)

    return float(max(largest(sale) for sale in sales))


@dataclass(frozen=True, eq=False)
class Cohorts:
    """The cohorts of a round's secure sums.

    Attributes:
        keys: awarded seller → the key that it signs with, including sellers that are not connected.
        cohort_of: awarded seller → the number of its cohort, from 0 on.
        signature: of the register under the roster, if there is one.
        dealing, secrets: prove to sellers that the server did not choose the cohorts; empty if there is one cohort.
    """

    keys: Mapping[str, bytes]
    cohort_of: Mapping[str, int]
    signature: bytes = b""
    dealing: bytes = b""
    secrets: tuple[Parcel, ...] = ()

    @classmethod
    def one(cls, keys: Mapping[str, bytes], signature: bytes = b"") -> Cohorts:
        """All of them in one sum."""
        return cls(keys, dict.fromkeys(keys, 0), signature)

    @property
    def count(self) -> int:
        """How many sums there are; the noise grows with its square root."""
        return max(self.cohort_of.values()) + 1

    def members(self, cohort: int) -> dict[str, bytes]:
        """Seller → key, of one cohort."""
        return {client: key for client, key in self.keys.items() if self.cohort_of[client] == cohort}


def form_cohorts(
    grid: Grid,
    fleet: Fleet,
    terms: Terms,
    keys: Mapping[str, bytes],
    largest_cohort: int,
    timeout_seconds: float,
    register: SignRoster | None = None,
) -> Cohorts:
    """Lets the register sign the roster, and deals the sellers to cohorts if they are too many for one sum.

    Args:
        keys: awarded seller → its key.
        largest_cohort: the most sellers of one sum.

    Raises:
        SumClosed: the dealing was not finished. Nobody has trained, and nobody is charged.
        SumRefusal: the register does not sign, or the cohorts would be too small.
    """
    roster = Roster(terms.run, terms.number, tuple(sorted(keys.values())), terms.honest_share)
    signature = b"" if register is None else register(roster)
    if len(keys) <= largest_cohort:
        return Cohorts.one(keys, signature)
    dealer = Dealer(DealingTerms(roster, largest_cohort), signature)
    client_of = {roster.members.index(key): client for client, key in keys.items() if client in fleet.node_of}
    messages = dealer.start()
    while messages:
        contents = {client_of[n]: wire.put_sum(RecordDict(), m) for n, m in messages.items() if n in client_of}
        for client, reply in _exchange(grid, fleet, contents, terms.number, timeout_seconds).items():
            answered, word = _read(client, reply)
            number = roster.members.index(keys[client])
            if word is None and isinstance(answered, DealtMessage) and answered.sender == number:
                dealer.receive(answered)
        messages = dealer.advance()
    cohort_of = {key: number for number, cohort in enumerate(dealer.cohorts) for key in cohort}
    places = {client: cohort_of[key] for client, key in keys.items()}
    return Cohorts(keys, places, signature, dealer.digest, dealer.secrets)


def secure_sum(
    grid: Grid,
    fleet: Fleet,
    sales: Mapping[str, Sale],
    weights: Arrays,
    records: Mapping[str, float],
    timeout_seconds: float,
    cohorts: Cohorts | None = None,
) -> tuple[dict[str, Delivery], Arrays | None]:
    """Aggregate trust: sends every seller its order and adds up their integers, exactly.

    Args:
        records: client → how many records it declared.
        cohorts: from `form_cohorts`; one of those that have an order, unless given.

    Returns:
        What each client delivered (without its share), and the sum over those whose sums were opened, int64 by
                    name; None if none was, or if the sum would be too large: then nothing is opened.
    """
    if cohorts is None:
        cohorts = Cohorts.one({client: fleet.sum_keys[client] for client in sales})
    largest = max(largest_share(sale, records[client]) for client, sale in sales.items())
    run = SumRun.of(grid, fleet, sales, weights, cohorts, largest, timeout_seconds)
    bits = max(server.terms.bits for server in run.servers)
    if bits > SUM_BITS:
        fault = f"a sum of {bits} bits: sell less ε a round, or use fewer records a client"
        return {client: Delivery(fault=fault, refused=True) for client in sales}, None
    total = run.play()
    return run.deliveries(), None if total is None else _named(total, weights)


def secure_order(
    grid: Grid, fleet: Fleet, sales: Mapping[str, Sale], weights: Arrays, timeout_seconds: float
) -> tuple[dict[str, Delivery], Arrays | None]:
    """Local trust with masks: sends every seller its order and adds up the answers.

    Returns:
        What each client delivered (without its update), and the mean of the vectors that were delivered.
    """
    known = {client: sale for client, sale in sales.items() if client in fleet.sum_keys}
    without = {client: Delivery(fault=NO_KEY, refused=True) for client in sales if client not in known}
    if not known:
        return without, None
    reach = clipping_range(known.values())
    orders = {client: replace(sale, reach=reach, sellers=len(known)) for client, sale in known.items()}
    cohorts = Cohorts.one({client: fleet.sum_keys[client] for client in orders})
    run = SumRun.of(grid, fleet, orders, weights, cohorts, ROUNDED_STEPS, timeout_seconds)
    total = run.play()
    deliveries = without | run.deliveries()
    if total is None:
        return deliveries, None
    step = reach / ROUNDED_STEPS / len(run.survivors)
    return deliveries, {name: array * step for name, array in _named(total, weights).items()}


@dataclass(eq=False)
class SumRun:
    """The secure sums of one round on a grid: one, or one of each cohort.

    Attributes:
        servers: each sum's protocol.
        number_of: client → its sum, as a place in `servers`, and its number there; for connected clients.
        words: client → the word that it answered instead of a step's reply.
        ordered: the clients that were sent an order; only these can have released anything.
        survivors: the clients whose masked vectors came.
        counted: those of them whose sum was opened.
    """

    grid: Grid
    fleet: Fleet
    sales: Mapping[str, Sale]
    weights: Arrays
    timeout_seconds: float
    servers: list[Server]
    number_of: Mapping[str, tuple[int, int]]
    words: dict[str, str] = field(default_factory=dict)
    ordered: set[str] = field(default_factory=set)
    survivors: set[str] = field(default_factory=set)
    counted: set[str] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        grid: Grid,
        fleet: Fleet,
        sales: Mapping[str, Sale],
        weights: Arrays,
        cohorts: Cohorts,
        largest: int,
        timeout_seconds: float,
    ) -> SumRun:
        """The sums of these cohorts; members without an order are not connected, and count as dropped out.

        Args:
            largest: the largest integer that a seller may have to send.
        """
        servers: list[Server] = []
        number_of = {}
        for cohort in range(cohorts.count):
            keys = cohorts.members(cohort)
            here = [client for client in sales if client in keys]
            if not here:  # nobody of this cohort can be asked
                continue
            sale = sales[here[0]]
            listed = tuple(sorted(keys.values()))
            terms = SumTerms(
                task=sale.run,
                round=sale.number,
                members=listed,
                honest_share=sale.honest_share,
                length=sum(array.size for array in weights.values()),
                bits=exact_bits(largest, len(listed)),
                largest=largest,
                binding=binding(sale, array_layout(weights)),
                dealing=cohorts.dealing,
            )
            for client in here:
                number_of[client] = (len(servers), listed.index(keys[client]))
            servers.append(Server(terms, cohorts.signature, cohorts.secrets))
        return cls(grid, fleet, sales, weights, timeout_seconds, servers, number_of)

    def play(self) -> np.ndarray | None:
        """The total of the sums that were opened; None where all stay closed."""
        client_of = {place: client for client, place in self.number_of.items()}
        messages = {at: server.start() for at, server in enumerate(self.servers)}
        while messages:
            named = {
                client_of[at, number]: message
                for at, of_sum in messages.items()
                for number, message in of_sum.items()
                if (at, number) in client_of
            }
            self._step(named)
            messages = {at: following for at in messages if (following := self._advanced(at))}
        total = None
        for at, server in enumerate(self.servers):
            for number, fault in server.left_out.items():
                _log.warning("client %s is left out of the secure sum: %s", client_of.get((at, number)), fault)
            came = {client_of[at, number] for number in server.survivors}
            self.survivors |= came
            if server.result is not None:
                self.counted |= came
                total = server.result.total if total is None else total + server.result.total
        return total

    def deliveries(self) -> dict[str, Delivery]:
        """Client → the outcome of its order; `refused` if it certainly released nothing."""

        def delivery(client: str) -> Delivery:
            if client in self.survivors:
                return Delivery(fault=None if client in self.counted else FAILED)
            word = self.words.get(client)
            said = FAILED if word is None else f"refused: {in_policy_terms(word)}"
            if client not in self.ordered:
                return Delivery(fault=said, refused=True)
            # A failed training may depend on the records, so what was reserved for it is spent.
            if word in {reason.value for reason in Reason} - {Reason.FAILED.value}:
                return Delivery(fault=said, refused=True)
            return Delivery(fault=SILENT if word is None else f"client failed: {word}")

        return {client: delivery(client) for client in self.sales}

    def _advanced(self, at: int) -> dict[int, ServerMessage]:
        """The next messages of one sum; none where it has ended."""
        try:
            return self.servers[at].advance()
        except SumClosed as error:
            _log.warning("a secure sum stays closed: %s", error)
            return {}

    def _step(self, messages: Mapping[str, ServerMessage]) -> None:
        """Sends one step's messages and hands the answers to the sums they belong to."""
        contents = {}
        arrays = wire.write_arrays(self.weights)
        for client, message in messages.items():
            content = wire.put_sum(RecordDict(), message)
            if isinstance(message, InputRequest):
                content[wire.WEIGHTS] = arrays
                wire.put(content, self.sales[client])
                self.ordered.add(client)
            contents[client] = content
        round_ = self.servers[0].terms.round
        for client, reply in _exchange(self.grid, self.fleet, contents, round_, self.timeout_seconds).items():
            answered, word = _read(client, reply)
            if word is not None:
                self.words[client] = word
            if answered is None:
                continue
            at, number = self.number_of[client]
            if isinstance(answered, SellerMessage) and answered.sender == number:
                self.servers[at].receive(answered)
            else:
                _log.warning("client %s: a message that is not its own", client)


def _exchange(
    grid: Grid, fleet: Fleet, contents: Mapping[str, RecordDict], round_: int, timeout_seconds: float
) -> dict[str, Message]:
    """Sends each client its message; client → its reply. A node's first answer counts."""
    client_of = {fleet.node_of[client]: client for client in contents}
    outgoing = [
        Message(contents[client], node, wire.TRAIN, ttl=timeout_seconds, group_id=str(round_))
        for node, client in client_of.items()
    ]
    replies: dict[str, Message] = {}
    for reply in grid.send_and_receive(outgoing, timeout=timeout_seconds):
        client = client_of.pop(reply.metadata.src_node_id, None)
        if client is not None:
            replies[client] = reply
    return replies


def _read(client: str, reply: Message) -> tuple[SumMessage | None, str | None]:
    """The content of a reply: a message of the protocol, or the word of a refusal; neither if it is unreadable."""
    if reply.has_error():
        return None, str(reply.error.reason)
    try:
        refused = wire.take(reply.content, Refusal, None)
        if refused is not None:
            _log.warning("client %s refused: %s", client, in_policy_terms(refused.reason))
            return None, refused.reason
        return wire.take_sum(reply.content), None
    except PrivmarketError as error:
        _log.warning("client %s: %s", client, error.message)
        return None, None


def _named(total: np.ndarray, weights: Arrays) -> Arrays:
    """Splits a flat vector into arrays of the names and shapes of the weights."""
    cuts = np.cumsum([array.size for array in weights.values()])[:-1]
    parts = np.split(total, cuts)
    return {name: part.reshape(array.shape) for part, (name, array) in zip(parts, weights.items(), strict=True)}


_log = logging.getLogger("privmarket.flower")
