"""Webhooks: the broker posts a party's new events to an address of its choice, signed with the key of the log.

A webhook is a wake-up call. It carries the events and the cursor that follows them; whoever missed one asks
`GET /v1/events` from its last cursor. After a restart of the broker posting begins with what is new.

Strangers choose the address, so it must be HTTPS and lie in the public internet: the name is resolved once, every
address that it has is checked, and the connection goes to the address that was checked. Redirects are not followed.
"""

from __future__ import annotations

import hashlib
import http.client
import ipaddress
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from privmarket.broker import _events as events
from privmarket.broker import _sql as sql
from privmarket.broker._broker import Broker
from privmarket.broker._database import Database
from privmarket.broker._http_errors import BrokerError
from privmarket.broker._parties import Actor
from privmarket.broker._webhook_url import is_webhook_url

POLL_SECONDS = 1.0
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
    """Posts to the address that was checked, under the host's name and certificate; the status of the answer."""
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


def message(timestamp_ms: int, party_id: str, body: bytes) -> bytes:
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
    """Posts new events to everybody who asked for it, in a thread of its own while it is entered."""

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
        while not self._stop.wait(POLL_SECONDS):
            try:
                self.tell()
            except Exception as error:  # a database that is away for a moment must not end the thread
                _log.warning("webhooks: %s", type(error).__name__)

    def tell(self) -> None:
        """Posts to each party what it has not been told yet."""
        size = events.log_size(self._broker)
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
            found = events.events_after(connection, Actor(party_id, role), hook.after, 200)
        if not found["items"]:
            hook.after = found["next"]
            return
        body = json.dumps({"events": found["items"], "next": found["next"]}).encode()
        now_ms = database.now_ms()
        headers = {"Content-Type": "application/json", "Privmarket-Timestamp": str(now_ms)}
        headers["Privmarket-Party"] = party_id
        if database.key is not None:
            headers["Privmarket-Signature"] = database.key.sign(message(now_ms, party_id, body))
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
