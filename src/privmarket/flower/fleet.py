"""The server's view of its clients: who answers to which name, what they offer, what they deliver.

A name belongs to the node that first bid under it for as long as that node is there, so no client is paid twice and
none under another's name. Every client's message is its own; only the weights are shared.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from privmarket.errors import PrivmarketError
from privmarket.federated.round import Offer
from privmarket.flower import wire
from privmarket.flower.wire import Arrays, Call, Receipt, Sale

_log = logging.getLogger("privmarket.flower")

NO_ANSWER = "no answer before the deadline"
_POLL_SECONDS = 0.2
_NAMING_VALUES = 1024


@dataclass(frozen=True, eq=False)
class Delivery:
    """What came back for a sale: an update, or why there is none.

    Attributes:
        update: the arrays; None where nothing usable came.
        fault: what was wrong; None for a usable update.
        released: whether anything left the client, so that its privacy is spent.
    """

    update: Arrays | None = None
    fault: str | None = None
    released: bool = True


@dataclass(eq=False)
class Fleet:
    """The nodes of a grid, by the clients' names.

    Attributes:
        node_of: client → the node that bids for it.
        seen: digests of updates that were delivered; the same one is never taken again.
    """

    grid: Grid
    node_of: dict[str, int] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def wait(self, nodes: int, timeout_seconds: float) -> int:
        """Waits until so many nodes are there; returns how many are."""
        end = time.monotonic() + timeout_seconds
        while (there := len(list(self.grid.get_node_ids()))) < nodes and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        return there

    def call_for_bids(
        self,
        call: Call,
        receipts: Mapping[str, Receipt],
        timeout_seconds: float,
        nodes: Iterable[int] | None = None,
    ) -> dict[str, Offer | None]:
        """Every client's offer, sorted by name; None for those that answered without one."""
        there = set(self.grid.get_node_ids())
        # A client whose node is gone may come back on another.
        self.node_of = {client: node for client, node in self.node_of.items() if node in there}
        asked = sorted(there if nodes is None else nodes)
        owner = {node: client for client, node in self.node_of.items()}
        messages = []
        for node in asked:
            content = wire.write_call(call)
            if (receipt := receipts.get(owner.get(node, ""))) is not None:
                wire.add_receipt(content, receipt)
            messages.append(Message(content, node, wire.BID, ttl=timeout_seconds, group_id=str(call.number)))
        replies = self.grid.send_and_receive(messages, timeout=timeout_seconds)
        answers: dict[str, Offer | None] = {}
        for reply in sorted(replies, key=lambda message: message.metadata.src_node_id):
            client, offer = self._offer(reply)
            if client is not None and client not in answers:
                answers[client] = offer
        return dict(sorted(answers.items(), key=lambda item: by_name(item[0])))

    def order(
        self, sales: Mapping[str, Sale], weights: ArrayRecord, shapes: Mapping[str, tuple[int, ...]], timeout: float
    ) -> dict[str, Delivery]:
        """Sends every seller its own order and takes what comes back before the deadline.

        Args:
            sales: client → its own order.
            weights: the global weights, the same for everybody.
            shapes: what an update must look like.
            timeout: seconds.
        """
        messages = []
        for client, sale in sales.items():
            content = RecordDict({wire.WEIGHTS: weights})
            wire.add_sale(content, sale)
            node, group = self.node_of[client], str(sale.number)
            messages.append(Message(content, node, wire.TRAIN, ttl=timeout, group_id=group))
        replies = self.grid.send_and_receive(messages, timeout=timeout)
        return self.take(sales, replies, wire.UPDATE, shapes)

    def take(
        self,
        sales: Mapping[str, Sale],
        replies: Iterable[Message],
        record: str | None,
        shapes: Mapping[str, tuple[int, ...]],
        integers: Collection[str] = (),
    ) -> dict[str, Delivery]:
        """client → what it delivered; a node's first word counts, and only for its own sale.

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
        silent = Delivery(fault=NO_ANSWER, released=False)
        return {client: taken.get(client, silent) for client in sales}

    def send_receipts(self, call: Call, receipts: Mapping[str, Receipt], timeout_seconds: float) -> None:
        """Tells each client what became of its last delivery; who does not answer is not waited for longer."""
        messages = []
        for client, receipt in receipts.items():
            content = wire.write_call(call)
            wire.add_receipt(content, receipt)
            messages.append(Message(content, self.node_of[client], wire.RECEIPT, ttl=timeout_seconds))
        self.grid.send_and_receive(messages, timeout=timeout_seconds)

    def _offer(self, reply: Message) -> tuple[str | None, Offer | None]:
        node = reply.metadata.src_node_id
        if reply.has_error():
            _log.warning("node %s could not bid: %s", node, reply.error.reason)
            return None, None
        try:
            client, offer = wire.read_offer(reply.content)
        except PrivmarketError as error:
            _log.warning("node %s sent no offer: %s", node, error)
            return None, None
        if self.node_of.setdefault(client, node) != node:
            _log.warning("node %s bids as client %s, which another node is", node, client)
            return None, None
        return client, offer

    def _delivery(
        self,
        reply: Message,
        record: str | None,
        shapes: Mapping[str, tuple[int, ...]],
        integers: Collection[str],
    ) -> Delivery:
        if reply.has_error():
            # The client may have trained and released nothing, or died in between; its own wallet knows.
            return Delivery(fault=f"client failed: {reply.error.reason}", released=False)
        try:
            if (reason := wire.read_refusal(reply.content)) is not None:
                return Delivery(fault=f"refused: {reason}", released=False)
            update = wire.read_arrays(reply.content, record)
        except PrivmarketError as error:
            return Delivery(fault=str(error))
        fault = update_fault(update, shapes, integers)
        if fault is None:
            name = wire.digest(update, _NAMING_VALUES)
            if name in self.seen:
                return Delivery(fault="the same update was delivered before")
            self.seen.add(name)
        return Delivery(update if fault is None else None, fault)


def update_fault(
    update: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], integers: Collection[str] = ()
) -> str | None:
    """What is wrong with an update; None if it can be used."""
    if set(update) != set(shapes):
        return f"update has arrays {sorted(update)[:5]}, not {sorted(shapes)[:5]}"
    for name, array in update.items():
        if array.shape != shapes[name]:
            return f"{name} has shape {array.shape}, not {shapes[name]}"
        if name in integers:
            continue
        if array.dtype.kind != "f":
            return f"{name} holds {array.dtype}, not floating-point numbers"
        with np.errstate(over="ignore"):
            if not np.isfinite(array.astype(np.float32, copy=False)).all():
                return "update is not finite"
    return None


def by_name(client: str) -> tuple[float, str]:
    """Sorts client 2 before client 10, and names after numbers: never by who answered first."""
    return (float(client), client) if client.isdecimal() else (float("inf"), client)
