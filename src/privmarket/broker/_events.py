"""Events of the log: by cursor, as a stream, and posted to webhooks.

An event says that something concerns its reader: a round opened, an award was made, money moved. It contains no bid
and no amount; for these ask for the round, the award or the statement. The cursor is the number of the last log
entry that was read, so no event is missed or repeated.

A webhook is signed with the key of the log. It carries the events and the next cursor; a reader that missed one
calls `GET /v1/events` with its last cursor. After a restart of the broker, posting begins with new events. Parties
choose the address, so it must be HTTPS and in the public internet: the name is resolved once, all of its addresses
are checked, and the connection goes to a checked address. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import ipaddress
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from sqlalchemy import Connection

from privmarket.broker import _sql as sql
from privmarket.broker._answers import Event, Events
from privmarket.broker._broker import Broker
from privmarket.broker._database import Database
from privmarket.broker._errors import BrokerError
from privmarket.broker._parties import Actor

POLL_SECONDS = 0.5  # how often a stream checks whether the log has grown
KEEP_ALIVE_SECONDS = 15.0  # a silent stream sends a comment this often, since proxies close silent connections
_SCANNED = 2000  # entries that one call looks through at most
# Everybody who may see a task hears of these.
_PUBLIC = (
    "task.published", "round.opened", "round.closed", "round.cleared", "round.delivered", "round.settled",
    "round.aborted",
)  # fmt: skip
# These are about one seller, and its buyer and arbiter hear of them, too.
_ABOUT_SELLER = (
    "award.made", "delivery.claimed", "delivery.judged", "dispute.opened", "dispute.ruled", "award.settled",
)  # fmt: skip
_ABOUT_PARTY = (
    "money.deposit", "money.withdraw", "money.requested", "party.suspended", "party.restored", "token.minted",
    "token.revoked",
)  # fmt: skip
KINDS = (*_PUBLIC, *_ABOUT_SELLER, *_ABOUT_PARTY)
_NEW = (
    "SELECT l.seq, l.at_ms, l.actor, l.kind, l.subject, l.details, "
    "COALESCE(t.id, u.id), COALESCE(t.buyer_id, u.buyer_id), COALESCE(t.arbiter_id, u.arbiter_id) FROM log l "
    "LEFT JOIN rounds r ON r.id = l.subject LEFT JOIN tasks t ON t.id = r.task_id "
    "LEFT JOIN tasks u ON u.id = l.subject "
    "WHERE l.kind IN (?*) AND l.seq > ? AND l.seq <= ? ORDER BY l.seq LIMIT ?"
)


def events_after(connection: Connection, actor: Actor, after: int, limit: int) -> Events:
    """Events that concern the caller and came after entry `after`, oldest first, and the next cursor.

    A page may be empty while more follow: go on until `next` equals `head`.
    """
    if after < 0:
        raise BrokerError(f"after is {after}", "send `next` of the answer before, or 0")
    ((head,),) = sql.run(connection, "SELECT size FROM head")
    rows = sql.run(connection, _NEW, list(KINDS), after, head, _SCANNED)
    items: list[Event] = []
    for row in rows:
        event = _event(actor, row)
        if event is not None:
            items.append(event)
            if len(items) == limit:
                return {"items": items, "next": event["seq"], "head": head}
    reached = rows[-1][0] if len(rows) == _SCANNED else head
    return {"items": items, "next": max(reached, after), "head": head}


def _event(actor: Actor, row: tuple[Any, ...]) -> Event | None:
    """An entry as the caller may see it; None if the entry does not concern the caller."""
    seq, at_ms, by, kind, subject, details, task_id, buyer_id, arbiter_id = row
    seller_id = None
    if kind in _ABOUT_SELLER:
        seller_id = json.loads(details).get("seller_id", by)
    party_id = subject if kind in _ABOUT_PARTY else seller_id
    concerned = actor.role == "operator" or actor.party_id in (party_id, buyer_id, arbiter_id)
    if not concerned and not (kind in _PUBLIC and actor.role == "seller"):
        return None
    is_round = subject.startswith("round-")
    return {
        "seq": seq,
        "at_ms": at_ms,
        "kind": kind,
        "task_id": task_id,
        "round_id": subject if is_round else None,
        "party_id": party_id,
    }


def log_size(broker: Broker) -> int:
    """How many entries the log has, including those that other brokers on the database wrote."""
    with broker.database.read() as connection:
        ((size,),) = sql.run(connection, "SELECT size FROM head")
    return int(size)


async def stream(
    size: Callable[[], Awaitable[int]],
    told: Callable[[int], Awaitable[tuple[str, int]]],
    after: int,
    is_over: Callable[[], bool],
    *,
    poll_seconds: float = POLL_SECONDS,
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
) -> AsyncIterator[str]:
    """Server-sent events: whatever `told` says when the log has grown beyond `after`, until `is_over`.

    Args:
        size: how long the log is now.
        told: the text of the events after an entry, and the entry up to which they go.
        after: the cursor from which to begin.
    """
    yield "retry: 2000\n\n"
    silent = 0.0
    while not is_over():
        if await size() > after:
            text, after = await told(after)
            if text:
                yield text
                silent = 0.0
                continue
        silent += poll_seconds
        if silent >= keep_alive_seconds:
            silent = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(poll_seconds)


def as_text(found: Events) -> str:
    """Events in the format of server-sent events; each carries its cursor as its id."""
    lines = []
    for event in found["items"]:
        lines.append(f"id: {event['seq']}\nevent: {event['kind']}\ndata: {json.dumps(event)}\n\n")
    return "".join(lines)


# ---- webhooks -------------------------------------------------------------------------------------------------


def is_webhook_url(url: str) -> bool:
    """Whether this is an https:// address with a host, a possible port, and no password."""
    try:
        parts = urlsplit(url)
        port = parts.port or 443
    except ValueError:
        return False
    return (
        parts.scheme == "https" and bool(parts.hostname) and not parts.username and port > 0 and url.isprintable()
    )


WEBHOOK_POLL_SECONDS = 1.0
TIMEOUT_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 3600.0
_log = logging.getLogger(__name__)
_SET = "SELECT seq, subject, details FROM log WHERE kind = 'webhook.set' AND seq > ? ORDER BY seq"
Resolve = Callable[[str, int], list[str]]
Send = Callable[["Address", bytes, dict[str, str]], int]


class Address(NamedTuple):
    """Where to post: the host by name, the address that was checked, and the rest of the URL."""

    host: str
    checked: str
    port: int
    path: str


def _resolve(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(one[4][0]) for one in found]


def checked_address(url: str, resolve: Resolve = _resolve) -> Address:
    """The address of a webhook; raises `BrokerError` unless it is HTTPS and every address of its host is public."""
    if not is_webhook_url(url):
        raise BrokerError("a webhook is an https:// address without a password", "give https://HOST/PATH")
    parts = urlsplit(url)
    port = parts.port or 443
    host = str(parts.hostname)
    try:
        addresses = resolve(host, port)
    except OSError:
        addresses = []
    if not addresses or not all(_is_public(one) for one in addresses):
        raise BrokerError(f"{host} is not in the public internet", "give a host that other machines can reach")
    query = f"?{parts.query}" if parts.query else ""
    return Address(host, addresses[0], port, (parts.path or "/") + query)


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address)
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_global and not found.is_multicast


def post(to: Address, body: bytes, headers: dict[str, str], context: ssl.SSLContext | None = None) -> int:
    """Posts to the address that was checked, under the host's name and certificate; returns the answer's status."""
    plain = socket.create_connection((to.checked, to.port), timeout=TIMEOUT_SECONDS)
    connection = http.client.HTTPSConnection(to.host, to.port, timeout=TIMEOUT_SECONDS)
    try:
        trusted = context or ssl.create_default_context()
        connection.sock = trusted.wrap_socket(plain, server_hostname=to.host)
        connection.request("POST", to.path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()
        plain.close()


def webhook_message(timestamp_ms: int, party_id: str, body: bytes) -> bytes:
    """What the broker signs: the time, for whom it is, and a digest of the body."""
    digest = hashlib.sha256(body).hexdigest()
    return f"privmarket webhook v1\n{timestamp_ms}\n{party_id}\n{digest}\n".encode()


@dataclass
class _Hook:
    url: str
    after: int
    failures: int = 0
    not_before: float = 0.0


class Webhooks:
    """A context manager that posts new events to every party that asked for it, in a separate thread."""

    def __init__(
        self,
        broker: Broker,
        *,
        send: Send = post,
        resolve: Resolve = _resolve,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._send = send
        self._resolve = resolve
        self._clock = clock
        self._hooks: dict[str, _Hook] = {}
        self._seen = 0
        self._size = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)

    def __enter__(self) -> Webhooks:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(timeout=1)

    def _run(self) -> None:
        while not self._stop.wait(WEBHOOK_POLL_SECONDS):
            try:
                self.tell()
            except Exception as error:  # a database that cannot be reached for a moment must not end the thread
                _log.warning("webhooks: %s", type(error).__name__)

    def tell(self) -> None:
        """Posts to each party what it has not been told yet."""
        size = log_size(self._broker)
        if size > self._size:
            self._read_hooks(self._broker.database, self._size or size)
            self._size = size
        for party_id, hook in list(self._hooks.items()):
            if self._stop.is_set():
                return
            if hook.after < size and self._clock() >= hook.not_before:
                self._tell_one(party_id, hook)

    def _read_hooks(self, database: Database, known: int) -> None:
        with database.read() as connection:
            for seq, party_id, details in sql.run(connection, _SET, self._seen):
                url = json.loads(details)["url"]
                if url is None:
                    self._hooks.pop(party_id, None)
                else:
                    self._hooks[party_id] = _Hook(url, max(seq, known))
                self._seen = seq

    def _tell_one(self, party_id: str, hook: _Hook) -> None:
        database = self._broker.database
        with database.read() as connection:
            ((role,),) = sql.run(connection, "SELECT role FROM parties WHERE id = ?", party_id)
            found = events_after(connection, Actor(party_id, role), hook.after, 200)
        if not found["items"]:
            hook.after = found["next"]
            return
        body = json.dumps({"events": found["items"], "next": found["next"]}).encode()
        now_ms = database.now_ms()
        headers = {"Content-Type": "application/json", "Privmarket-Timestamp": str(now_ms)}
        headers["Privmarket-Party"] = party_id
        if database.key is not None:
            headers["Privmarket-Signature"] = database.key.sign(webhook_message(now_ms, party_id, body))
        try:
            status = self._send(checked_address(hook.url, self._resolve), body, headers)
        except (OSError, BrokerError, http.client.HTTPException):
            status = 0
        if 200 <= status < 300:
            hook.after = found["next"]
            hook.failures = 0
            return
        hook.failures += 1
        hook.not_before = self._clock() + min(2.0**hook.failures, _LONGEST_PAUSE_SECONDS)
