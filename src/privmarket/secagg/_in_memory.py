"""A whole sum in one process. Every message is written to bytes and read again, as on a network."""

from __future__ import annotations

from collections.abc import Mapping

from privmarket.secagg._client import Client
from privmarket.secagg._errors import SumClosed, SumRefusal
from privmarket.secagg._masks import Integers
from privmarket.secagg._messages import (
    CommitmentList,
    Confirmations,
    DealingCall,
    DealtMessage,
    DeliveredShares,
    InputRequest,
    Invitation,
    KeyList,
    SellerMessage,
    ServerMessage,
    SurvivorList,
    from_bytes,
    to_bytes,
)
from privmarket.secagg._server import OpenedSum, Server
from privmarket.secagg._terms import SumTerms


def answer(client: Client, message: object, vector: Integers | None = None) -> SellerMessage | DealtMessage:
    """What a seller answers to a server's message.

    Args:
        vector: what it adds, needed for that step only. A seller that trains calls `Client.accept`, trains, and
            calls `Client.mask` instead.

    Raises:
        SumRefusal: it refuses, or the message is not one that a server sends.
    """
    if isinstance(message, DealingCall):
        return client.commit(message)
    if isinstance(message, CommitmentList):
        return client.reveal(message)
    if isinstance(message, Invitation):
        return client.advertise(message)
    if isinstance(message, KeyList):
        return client.share(message)
    if isinstance(message, DeliveredShares):
        return client.check(message)
    if isinstance(message, InputRequest) and vector is not None:
        client.accept(message)
        return client.mask(message.sum, vector)
    if isinstance(message, SurvivorList):
        return client.confirm(message)
    if isinstance(message, Confirmations):
        return client.open(message)
    raise SumRefusal("message", f"a {type(message).__name__}, which no server sends, or without a vector to add")


def add_up(terms: SumTerms, clients: Mapping[bytes, Client], vectors: Mapping[bytes, Integers]) -> OpenedSum | None:
    """Runs a sum to its end. Returns the total, or None if too few sellers were left.

    Args:
        clients: registered key → seller; members without one have dropped out from the start.
        vectors: registered key → what it adds; a client without one drops out when it is asked for its vector.
    """
    server = Server(terms)
    messages: Mapping[int, ServerMessage] = server.start()
    try:
        while messages:
            for number, message in messages.items():
                key = terms.members[number]
                if key not in clients or (isinstance(message, InputRequest) and key not in vectors):
                    continue
                try:
                    reply = answer(clients[key], from_bytes(to_bytes(message)), vectors.get(key))
                except SumRefusal:
                    continue
                sent = from_bytes(to_bytes(reply))
                assert isinstance(sent, SellerMessage)
                server.receive(sent)
            messages = server.advance()
    except SumClosed:
        return None
    return server.result
