"""The server's side of secure sums on Flower: it carries the messages of `secagg.Server` over the grid.

A secure sum adds up integers of which the server sees only the total. Under aggregate trust (`secure_sum`) these
are clipped sums, each with a share of a common noise. Under local trust (`secure_order`) they are whole updates
with all of their own noise, rounded; client i of n sends n·α_i·update_i, so that the mean is Σ α_i·update_i. What
nobody can do any more is look at one update: a client is paid for a masked vector, and one that sends garbage
spoils the sum for all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from privmarket.errors import PrivmarketError
from privmarket.flower import wire
from privmarket.flower.fleet import Delivery, Fleet, in_policy_terms
from privmarket.flower.secure_seller import ROUNDED_STEPS, array_layout, binding, largest_share
from privmarket.flower.wire import Arrays, Refusal, Sale
from privmarket.privacy.policy import Reason
from privmarket.secagg import (
    InputRequest,
    OpenedSum,
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
"""A seller's integers are made in 64-bit floats, which hold them exactly up to 2⁵³."""
_log = logging.getLogger("privmarket.flower")


def clipping_range(sales: Iterable[Sale], deviations: float = 8.0) -> float:
    """A public bound on what honest sellers send: clipped means of at most C each, and 8 deviations of noise."""

    def largest(sale: Sale) -> float:
        noise = float(sale.family.noise_multiplier(sale.epsilon)) * np.sqrt(sale.family.steps) / sale.expected_batch
        return sale.share * sale.learning_rate * sale.clip_norm * float(sale.family.steps + deviations * noise)

    return float(max(largest(sale) for sale in sales))


def secure_sum(
    grid: Grid,
    fleet: Fleet,
    sales: Mapping[str, Sale],
    weights: Arrays,
    records: Mapping[str, float],
    timeout_seconds: float,
    parties: Mapping[str, str] | None = None,
) -> tuple[dict[str, Delivery], Arrays | None]:
    """Aggregate trust: sends every seller its order and adds up their integers, exactly.

    Args:
        records: client → how many records it declared.
        parties: awarded seller → the public key that it is registered with, also of those that are not here; the
            keys that clients bid with unless given.

    Returns:
        What each client delivered (without its share), and the sum over those that did, int64 by name; None where
        fewer than are needed came through, or the sum would be too large: then nothing is uncovered.
    """
    keys = fleet.sum_keys if parties is None else {client: bytes.fromhex(key) for client, key in parties.items()}
    largest = max(largest_share(sale, records[client]) for client, sale in sales.items())
    run = SumRun.of(grid, fleet, sales, weights, keys, largest, timeout_seconds, set(sales) | set(parties or ()))
    if run.terms.bits > SUM_BITS:
        fault = f"a sum of {run.terms.bits} bits: sell less ε a round, or use fewer records a client"
        return {client: Delivery(fault=fault, refused=True) for client in sales}, None
    opened = run.play()
    return run.deliveries(), None if opened is None else _named(opened.total, weights)


def secure_order(
    grid: Grid, fleet: Fleet, sales: Mapping[str, Sale], weights: Arrays, timeout_seconds: float
) -> tuple[dict[str, Delivery], Arrays | None]:
    """Local trust under a mask: sends every seller its order and adds up what comes back.

    Returns:
        What each client delivered (without its update), and the mean over those that did of what they sent.
    """
    known = {client: sale for client, sale in sales.items() if client in fleet.sum_keys}
    without = {client: Delivery(fault=NO_KEY, refused=True) for client in sales if client not in known}
    if not known:
        return without, None
    reach = clipping_range(known.values())
    orders = {client: replace(sale, reach=reach, sellers=len(known)) for client, sale in known.items()}
    run = SumRun.of(grid, fleet, orders, weights, fleet.sum_keys, ROUNDED_STEPS, timeout_seconds, set(orders))
    opened = run.play()
    deliveries = without | run.deliveries()
    if opened is None:
        return deliveries, None
    step = reach / ROUNDED_STEPS / len(opened.survivors)
    return deliveries, {name: array * step for name, array in _named(opened.total, weights).items()}


@dataclass(eq=False)
class SumRun:
    """One secure sum on a grid.

    Attributes:
        terms: its public numbers.
        client_of: a seller's number → the client, for those that are here.
        words: client → what it answered instead of a step's reply.
        ordered: the clients that were sent an order: only these can have released anything.
    """

    grid: Grid
    fleet: Fleet
    sales: Mapping[str, Sale]
    weights: Arrays
    timeout_seconds: float
    terms: SumTerms
    client_of: Mapping[int, str]
    words: dict[str, str] = field(default_factory=dict)
    ordered: set[str] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        grid: Grid,
        fleet: Fleet,
        sales: Mapping[str, Sale],
        weights: Arrays,
        keys: Mapping[str, bytes],
        largest: int,
        timeout_seconds: float,
        members: Iterable[str],
    ) -> SumRun:
        """The sum of these members; those that have no order are not here, and count as dropped out.

        Args:
            keys: client → its signing key.
            largest: the largest integer that a seller may have to send.
        """
        sale = next(iter(sales.values()))
        listed = tuple(sorted(keys[client] for client in members))
        terms = SumTerms(
            task=sale.run,
            round=sale.number,
            members=listed,
            honest_share=sale.honest_share,
            length=sum(array.size for array in weights.values()),
            bits=exact_bits(largest, len(listed)),
            largest=largest,
            binding=binding(sale, array_layout(weights)),
        )
        client_of = {listed.index(keys[client]): client for client in sales}
        return cls(grid, fleet, sales, weights, timeout_seconds, terms, client_of)

    def play(self) -> OpenedSum | None:
        """The opened sum; None where it stays closed."""
        self.server = Server(self.terms)
        messages = self.server.start()
        try:
            while messages:
                self._exchange(messages)
                messages = self.server.advance()
        except SumClosed as error:
            _log.warning("a secure sum stays closed: %s", error)
        for number, fault in self.server.left_out.items():
            _log.warning("client %s is left out of the secure sum: %s", self.client_of.get(number), fault)
        return self.server.result

    def deliveries(self) -> dict[str, Delivery]:
        """client → what became of its order; `refused` where it certainly released nothing."""
        survivors = {self.client_of[number] for number in self.server.survivors}
        opened = self.server.result is not None

        def delivery(client: str) -> Delivery:
            if client in survivors:
                return Delivery(fault=None if opened else FAILED)
            word = self.words.get(client)
            said = FAILED if word is None else f"refused: {in_policy_terms(word)}"
            if client not in self.ordered:
                return Delivery(fault=said, refused=True)
            # That training failed is itself something the records told: what was reserved for it is spent.
            if word in {reason.value for reason in Reason} - {Reason.FAILED.value}:
                return Delivery(fault=said, refused=True)
            return Delivery(fault=SILENT if word is None else f"client failed: {word}")

        return {client: delivery(client) for client in self.sales}

    def _exchange(self, messages: Mapping[int, ServerMessage]) -> None:
        """Sends a step's messages and hands the answers to the server; a node's first answer counts."""
        sent: dict[int, int] = {}
        outgoing = []
        arrays = wire.write_arrays(self.weights)
        for number, message in messages.items():
            client = self.client_of.get(number)
            if client is None:
                continue
            content = wire.put_sum(RecordDict(), message)
            if isinstance(message, InputRequest):
                content[wire.WEIGHTS] = arrays
                wire.put(content, self.sales[client])
                self.ordered.add(client)
            node = self.fleet.node_of[client]
            sent[node] = number
            group = str(self.terms.round)
            outgoing.append(Message(content, node, wire.TRAIN, ttl=self.timeout_seconds, group_id=group))
        for reply in self.grid.send_and_receive(outgoing, timeout=self.timeout_seconds):
            number_of = sent.pop(reply.metadata.src_node_id, None)
            if number_of is None:
                continue
            fault = self._take(number_of, reply)
            if fault is not None:
                _log.warning("client %s: %s", self.client_of[number_of], fault)

    def _take(self, number: int, reply: Message) -> str | None:
        """Hands a reply to the protocol, or notes the word of a refusal; what is wrong with it otherwise."""
        client = self.client_of[number]
        if reply.has_error():
            self.words[client] = str(reply.error.reason)
            return "no answer"
        try:
            refused = wire.take(reply.content, Refusal, None)
            if refused is not None:
                self.words[client] = refused.reason
                return f"refused: {in_policy_terms(refused.reason)}"
            answered = wire.take_sum(reply.content)
        except PrivmarketError as error:
            return error.message
        if not isinstance(answered, SellerMessage) or answered.sender != number:
            return "a message that is not its own"
        self.server.receive(answered)
        return None


def _named(total: np.ndarray, weights: Arrays) -> Arrays:
    """Splits a flat vector into arrays of the names and shapes of the weights."""
    cuts = np.cumsum([array.size for array in weights.values()])[:-1]
    parts = np.split(total, cuts)
    return {name: part.reshape(array.shape) for part, (name, array) in zip(parts, weights.items(), strict=True)}
