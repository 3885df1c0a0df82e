"""The server's view of its clients: their names, offers and deliveries.

A name belongs to the node that first bid under it, as long as that node is connected, so no client is paid twice or
under another's name. Every client gets a message of its own; only the weights are shared.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from privmarket import __version__
from privmarket.errors import PrivmarketError
from privmarket.flower import _wire as wire
from privmarket.flower._checkpoint import OpenOrders
from privmarket.flower._refusals import one_line
from privmarket.flower._wire import Answer, Arrays, Noted, Receipt, Refusal, Sale
from privmarket.privacy._policy import Reason
from privmarket.rounds import Offer, Report, Terms

_log = logging.getLogger("privmarket.flower")

NO_ANSWER = "no answer before the deadline"
RECEIPT_SECONDS = 60.0  # seconds to wait until clients have received their last receipts
_POLL_SECONDS = 0.2
_NAMING_VALUES = 1024
_KEY_BYTES = 32


@dataclass(frozen=True, eq=False)
class Delivery(Report):
    """The answer to an order: an update, or the reason why there is none.

    Attributes:
        update: the arrays; None if nothing usable came.
    """

    update: Arrays | None = None


@dataclass(eq=False)
class Fleet:
    """The nodes of a grid, by the clients' names; the bidders of `rounds._driver`.

    Attributes:
        bid_seconds: how long to wait for bids.
        chosen: the nodes to ask for bids; None asks all.
        receipts: client → the receipt of its last delivery, sent with the next call for bids.
        node_of: client → the node that bids for it.
        sum_keys: client → the key with which it signs in secure sums, as it answered the last call for bids.
        key_owner: such a key → the client that sent it first.
        needs_keys: whether offers without such a key are ignored.
        seen: digests of delivered updates; none of them is accepted again.
        declined: client → why it did not bid in the last round, in policy terms.
        bid_errors: the errors of nodes that failed at a call for bids.
        waited_seconds: how long each call for bids took.
        last_offers: all offers in the last round, including those that the auction left out.
        late_receipts: client → a receipt from a stopped run, sent when the client answers again.
        open_orders: the orders of stopped rounds. Their clients are asked about them when they answer again.
        paid_late: client → what it was paid for updates of stopped rounds, which are lost.
    """

    grid: Grid
    bid_seconds: float
    chosen: Collection[int] | None = None
    receipts: Mapping[str, Receipt] = field(default_factory=dict)
    node_of: dict[str, int] = field(default_factory=dict)
    sum_keys: dict[str, bytes] = field(default_factory=dict)
    key_owner: dict[bytes, str] = field(default_factory=dict)
    needs_keys: bool = False
    seen: set[str] = field(default_factory=set)
    declined: dict[str, str] = field(default_factory=dict)
    bid_errors: set[str] = field(default_factory=set)
    waited_seconds: list[float] = field(default_factory=list)
    last_offers: dict[str, Offer | None] = field(default_factory=dict)
    late_receipts: dict[str, Receipt] = field(default_factory=dict)
    open_orders: list[OpenOrders] = field(default_factory=list)
    paid_late: dict[str, int] = field(default_factory=dict)

    def wait(self, nodes: int, timeout_seconds: float) -> int:
        """Waits until this many nodes are connected; returns how many are."""
        end = time.monotonic() + timeout_seconds
        while (there := len(list(self.grid.get_node_ids()))) < nodes and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        return there

    def offers(self, terms: Terms) -> dict[str, Offer | None]:
        """Every client's offer, sorted by name; None for those that answered without one.

        Clients that get a receipt of a stopped run are asked a second time, since they may have declined before.
        """
        started = time.perf_counter()
        self.declined = {}
        self.sum_keys = {}
        answers = self._asked(terms, self.chosen)
        if paid := self._send_late_receipts(terms):
            declined = {client for client in paid if client in self.declined}
            self.declined = {client: why for client, why in self.declined.items() if client not in declined}
            answers |= self._asked(terms, {self.node_of[client] for client in declined})
        self.waited_seconds.append(time.perf_counter() - started)
        # Client 2 before client 10, and names after numbers, not in the order of answers.
        order = {name: (float(name) if name.isdecimal() else math.inf, name) for name in answers}
        self.last_offers = {name: answers[name] for name in sorted(answers, key=order.__getitem__)}
        return dict(self.last_offers)

    def _asked(self, terms: Terms, chosen: Collection[int] | None) -> dict[str, Offer | None]:
        """The offers of some nodes, or of all."""
        there = set(self.grid.get_node_ids())
        # A client whose node is gone may come back on another.
        self.node_of = {client: node for client, node in self.node_of.items() if node in there}
        owner = {node: client for client, node in self.node_of.items()}
        messages = []
        for node in sorted(there if chosen is None else chosen):
            content = wire.put(RecordDict(), terms)
            if (receipt := self.receipts.get(owner.get(node, ""))) is not None:
                wire.put(content, receipt)
            messages.append(Message(content, node, wire.BID, ttl=self.bid_seconds, group_id=str(terms.number)))
        replies = self.grid.send_and_receive(messages, timeout=self.bid_seconds)
        answers: dict[str, Offer | None] = {}
        for reply in sorted(replies, key=lambda message: message.metadata.src_node_id):
            client, offer = self._offer(reply)
            if client is not None and self.needs_keys and offer is not None and client not in self.sum_keys:
                self.declined[client] = "it sent no key for the secure sum, or another client's"
                offer = None
            if client is not None and client not in answers:
                answers[client] = offer
        return answers

    def _send_late_receipts(self, terms: Terms) -> set[str]:
        """Sends clients that are connected again what a stopped run owes them; returns these clients."""
        due = {client: one for client, one in self.late_receipts.items() if client in self.node_of}
        if due:
            self._send(due, terms, RECEIPT_SECONDS)
            self.late_receipts = {c: one for c, one in self.late_receipts.items() if c not in due}
        told = set(due)
        for at, orders in enumerate(self.open_orders):
            asked = {client: orders.receipt(client) for client in orders.due_micro if client in self.node_of}
            clients = {self.node_of[client]: client for client in asked}
            for reply in self._send(asked, terms, RECEIPT_SECONDS) if asked else ():
                noted = None if reply.has_error() else wire.take(reply.content, Noted, None)
                client = clients.pop(reply.metadata.src_node_id, None)
                if noted is None or client is None:
                    continue
                if noted.released:
                    self.paid_late[client] = self.paid_late.get(client, 0) + orders.due_micro[client]
                self.open_orders[at] = orders = orders.answered(client, noted)
                told.add(client)
        return told

    def take(
        self,
        sales: Mapping[str, Sale],
        replies: Iterable[Message],
        record: str | None,
        shapes: Mapping[str, tuple[int, ...]],
        integers: Collection[str] = (),
    ) -> dict[str, Delivery]:
        """client → what it delivered; a node's first reply counts, and only for its own sale.

        `integers` names arrays, such as counters among a model's buffers, that need not hold fractions.
        """
        owner = {self.node_of[client]: client for client in sales}
        taken: dict[str, Delivery] = {}
        for reply in replies:
            client = owner.get(reply.metadata.src_node_id)
            if client is None or client in taken:
                _log.warning("node %s delivers what it did not sell, or twice", reply.metadata.src_node_id)
                continue
            taken[client] = self._delivery(reply, record, shapes, integers)
        return {client: taken.get(client, Delivery(fault=NO_ANSWER)) for client in sales}

    def send_receipts(self, terms: Terms, timeout_seconds: float) -> None:
        """Sends each client the receipt of its last delivery, and waits for answers at most until the timeout."""
        self._send(self.receipts, terms, timeout_seconds)

    def _send(self, receipts: Mapping[str, Receipt], terms: Terms, timeout_seconds: float) -> Iterable[Message]:
        messages = []
        for client, receipt in receipts.items():
            content = wire.put(wire.put(RecordDict(), terms), receipt)
            messages.append(Message(content, self.node_of[client], wire.RECEIPT, ttl=timeout_seconds))
        return self.grid.send_and_receive(messages, timeout=timeout_seconds)

    def _offer(self, reply: Message) -> tuple[str | None, Offer | None]:
        node = reply.metadata.src_node_id
        if reply.has_error():
            _log.warning("node %s could not bid: %s", node, reply.error.reason)
            self.bid_errors.add(reply.error.reason or "")
            return None, None
        kind = Refusal if wire.NAMES[Refusal] in reply.content else Answer
        if wire.NAMES[kind] in reply.content and (other := wire.other_version(reply.content, kind)):
            return self._of_other_version(reply, other), None
        try:
            if (refused := wire.take(reply.content, Refusal, None)) is not None:
                _log.warning("node %s does not bid: %s", node, in_policy_terms(refused.reason))
                return None, None
            answer = wire.take(reply.content, Answer)
            offer = None
            if answer.bids:
                valuation, epsilon, size = answer.valuation, answer.epsilon, answer.data_size
                if valuation is None or epsilon is None or size is None:
                    raise wire.WireError("an offer without price, ε or records", "send all three")
                offer = Offer(valuation, epsilon, size, answer.accuracy)
        except PrivmarketError as error:
            _log.warning("node %s sent no offer: %s", node, error)
            return None, None
        client = answer.client
        if answer.reason is not None:
            self.declined[client] = in_policy_terms(answer.reason)
            _log.warning("client %s does not bid: %s", client, self.declined[client])
        if self.node_of.setdefault(client, node) != node:
            _log.warning("node %s bids as client %s, which another node is", node, client)
            return None, None
        key = _key(answer.sum_key)
        # Other clients learn a client's key in its first sum, and might claim it.
        if key is not None and self.key_owner.setdefault(key, client) == client:
            self.sum_keys.setdefault(client, key)
        return client, offer

    def _of_other_version(self, reply: Message, other: str) -> str:
        """Notes a client with which this server may not speak; returns its name."""
        node = reply.metadata.src_node_id
        record = reply.content.config_records.get(wire.NAMES[Answer])
        name = None if record is None else record.get("client")
        client = one_line(str(name)) if name is not None else f"at node {node}"
        self.node_of.setdefault(client, node)
        self.declined[client] = f"it runs privmarket {other}, this server {__version__}: {wire.VERSION_HINT}"
        _log.warning("client %s does not bid: %s", client, self.declined[client])
        return client

    def _delivery(
        self,
        reply: Message,
        record: str | None,
        shapes: Mapping[str, tuple[int, ...]],
        integers: Collection[str],
    ) -> Delivery:
        """The delivery in one reply: a usable update, or what is wrong with it."""
        if reply.has_error():
            return Delivery(fault=f"client failed: {reply.error.reason}")
        try:
            if (refusal := wire.take(reply.content, Refusal, None)) is not None:
                # A failed training may depend on the records, so what was reserved for it is spent.
                fault = f"refused: {in_policy_terms(refusal.reason)}"
                return Delivery(fault, refused=refusal.reason != Reason.FAILED)
            update = wire.read_arrays(reply.content, record)
        except PrivmarketError as error:
            return Delivery(fault=str(error))
        if set(update) != set(shapes):
            return Delivery(fault=f"update has arrays {sorted(update)[:5]}, not {sorted(shapes)[:5]}")
        for name, array in update.items():
            if array.shape != shapes[name]:
                return Delivery(fault=f"{name} has shape {array.shape}, not {shapes[name]}")
            if name in integers:
                continue
            if array.dtype.kind != "f":
                return Delivery(fault=f"{name} holds {array.dtype}, not floating-point numbers")
            with np.errstate(over="ignore"):
                if not np.isfinite(array.astype(np.float32, copy=False)).all():
                    return Delivery(fault="update is not finite")
        named = wire.digest(update, _NAMING_VALUES)
        if named in self.seen:
            return Delivery(fault="the same update was delivered before")
        self.seen.add(named)
        return Delivery(update=update)


def _key(text: str | None) -> bytes | None:
    """A public key of 32 bytes, from hexadecimal; None if the text is not one."""
    try:
        key = bytes.fromhex(text or "")
    except ValueError:
        return None
    return key if len(key) == _KEY_BYTES else None


def in_policy_terms(word: str) -> str:
    """The word of a refusal with its meaning. An unknown word is not repeated, since it may contain anything."""
    try:
        return f"{word} ({Reason(word).meaning})"
    except ValueError:
        return "for a reason of its own"
