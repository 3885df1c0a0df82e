"""Events by cursor and as a stream, and webhooks: signed, in order, to public addresses only."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import http.server
import ipaddress
import json
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from fastapi.testclient import TestClient
from starlette.types import Message

from privmarket.broker import _events as events
from privmarket.broker._api import create_app
from privmarket.broker._errors import BrokerError
from privmarket.broker._events import Address, Webhooks, checked_address, post, webhook_message
from privmarket.broker._parties import Actor
from privmarket.broker._signatures import SigningKey, is_signed
from privmarket_fixtures.market import Market, key, make_market
from tests.unit.broker.test_api import SETTINGS


def heard(market: Market, actor: Actor, limit: int = 50) -> list[Any]:
    """Everything from the beginning, page after page."""
    found: list[Any] = []
    after = 0
    while True:
        with market.broker.database.read() as connection:
            page = events.events_after(connection, actor, after, limit)
        found += page["items"]
        assert page["next"] > after or page["next"] == page["head"]
        after = page["next"]
        if after == page["head"]:
            return found


def test_everybody_hears_what_concerns_it_and_no_more(market: Market) -> None:
    round_id = market.open()
    market.bid_all(round_id)
    market.finish(round_id)
    winners = set(market.winners(round_id))
    other = market.broker.authenticate(market.broker.register({"role": "buyer", "name": "o"}, key())["token"])
    for seller in market.sellers:
        own = heard(market, seller)
        kinds = [one["kind"] for one in own]
        assert {one["party_id"] for one in own} <= {None, seller.party_id}
        assert ("award.made" in kinds) == ("award.settled" in kinds) == (seller.party_id in winners)
        assert [kind for kind in kinds if kind.startswith("round.")] == [
            "round.opened", "round.closed", "round.cleared", "round.delivered", "round.settled",
        ]  # fmt: skip
    buyer = [one["kind"] for one in heard(market, market.buyer)]
    assert (buyer.count("award.made"), buyer.count("delivery.claimed")) == (2, 2)
    assert {one["kind"] for one in heard(market, other)} == {"token.minted"}
    assert not any(one["kind"].startswith("bid.") for one in heard(market, market.operator))
    text = json.dumps(heard(market, market.operator))
    assert "valuation" not in text
    assert "amount" not in text


def test_a_cursor_misses_nothing_and_repeats_nothing(market: Market, monkeypatch: Any) -> None:
    for _ in range(2):
        round_id = market.open()
        market.bid_all(round_id)
        market.finish(round_id)
    everything = heard(market, market.sellers[0])
    assert [one["seq"] for one in everything] == sorted({one["seq"] for one in everything})
    assert heard(market, market.sellers[0], limit=1) == everything
    monkeypatch.setattr(events, "_SCANNED", 3)  # pages may be empty, and yet others follow
    assert heard(market, market.sellers[0]) == everything


def test_rounds_by_state(market: Market) -> None:

    first, second = market.open(), market.open()
    market.broker.abort_round(market.buyer, first, "no", key())
    http = TestClient(create_app(market.broker, SETTINGS))
    stranger = market.broker.register({"role": "buyer", "name": "o"}, key())["token"]
    seller = market.broker.mint_token(market.sellers[0], "read", key())["token"]

    def rounds(token: str, query: str = "") -> list[str]:
        reply = http.get(f"/v1/rounds{query}", headers={"Authorization": f"Bearer {token}"})
        return [one["id"] for one in reply.json()["items"]]

    assert rounds(seller, "?state=open") == [second]
    assert rounds(seller, "?state=aborted") == [first]
    assert set(rounds(seller)) == {first, second}
    assert rounds(stranger) == []
    bad = http.get("/v1/rounds?state=gone", headers={"Authorization": f"Bearer {seller}"})
    assert (bad.status_code, bad.json()["field"]) == (422, "query.state")


def test_a_stream_tells_what_is_new_and_that_it_lives() -> None:
    sizes = iter([5, 5, 7, 7, 7, 7, 7])

    async def size() -> int:
        return next(sizes, 7)

    async def told(after: int) -> tuple[str, int]:
        return f"data: {after}-7\n\n", 7

    turns = iter([False] * 6 + [True])

    async def collect() -> list[str]:
        streamed = events.stream(size, told, 5, lambda: next(turns), poll_seconds=0.001, keep_alive_seconds=0.003)
        return [part async for part in streamed]

    assert asyncio.run(collect()) == ["retry: 2000\n\n", "data: 5-7\n\n", ": still here\n\n"]


def test_the_stream_of_the_api_begins_where_the_reader_stopped(market: Market) -> None:
    market.open()
    app = create_app(market.broker, SETTINGS)
    token = market.broker.mint_token(market.sellers[0], "read", key())["token"]
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        if b"event: " in message.get("body", b""):
            assert app.state.streams.total == 1
            assert app.state.account_places.total == 0
            app.state.is_stopping = True

    async def receive() -> Message:
        await asyncio.sleep(3600)
        raise AssertionError("never")

    headers = [(b"authorization", f"Bearer {token}".encode()), (b"last-event-id", b"0")]
    scope = {
        "type": "http", "method": "GET", "path": "/v1/events/stream", "headers": headers, "query_string": b"",
        "client": ("a", 1), "http_version": "1.1", "scheme": "http", "server": ("broker", 80), "root_path": "",
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert (b"content-type", b"text/event-stream; charset=utf-8") in sent[0]["headers"]
    text = b"".join(one.get("body", b"") for one in sent).decode()
    assert "event: task.published\n" in text
    assert "event: round.opened\n" in text
    assert app.state.streams.total == 0


URL = "https://clinic.example/hook?from=market"


def public(host: str, port: int) -> list[str]:
    return ["93.184.216.34"]


def test_only_public_https_addresses_are_taken() -> None:
    assert checked_address(URL, public) == Address("clinic.example", "93.184.216.34", 443, "/hook?from=market")
    assert checked_address("https://clinic.example:8443", public)[2:] == (8443, "/")
    for url in (
        "http://clinic.example/",
        "https://",
        "https://me:pw@clinic.example/",
        "https://x:99999/",
        "ftp://x",
    ):
        with pytest.raises(BrokerError):
            checked_address(url, public)
    inside = ("127.0.0.1", "10.1.2.3", "192.168.0.7", "169.254.169.254", "100.64.0.1", "0.0.0.0", "::1", "fe80::1")
    for address in (*inside, "fd00::1", "::ffff:10.0.0.1", "224.0.0.1"):
        with pytest.raises(BrokerError):
            checked_address(URL, lambda host, port, address=address: ["93.184.216.34", address])
    with pytest.raises(BrokerError):
        checked_address(URL, lambda host, port: [])


def test_events_are_posted_signed_in_order_and_again_after_a_failure(tmp_path: Path) -> None:
    signing = SigningKey.generate()
    market = make_market(f"sqlite:///{tmp_path}/m.db", key=signing)
    seller = market.sellers[0]
    market.broker.set_webhook(seller, URL, key())
    posted: list[tuple[bytes, dict[str, str]]] = []
    now = [0.0]
    status = [200]

    def send(to: Address, body: bytes, headers: dict[str, str]) -> int:
        posted.append((body, headers))
        return status[0]

    hooks = Webhooks(market.broker, send=send, resolve=public, clock=lambda: now[0])
    hooks.tell()
    assert posted == []  # what happened before is not told
    round_id = market.open()
    status[0] = 500
    hooks.tell()
    hooks.tell()  # not at once
    assert len(posted) == 1
    market.bid_all(round_id)
    status[0] = 200
    now[0] = 10.0
    hooks.tell()
    hooks.tell()
    assert len(posted) == 2
    body, headers = posted[1]
    told = json.loads(body)
    assert [one["kind"] for one in told["events"]] == ["task.published", "round.opened"]
    signed = webhook_message(int(headers["Privmarket-Timestamp"]), seller.party_id, body)
    assert is_signed(signing.public, signed, headers["Privmarket-Signature"])
    later = webhook_message(int(headers["Privmarket-Timestamp"]) + 1, seller.party_id, body)
    assert not is_signed(signing.public, later, headers["Privmarket-Signature"])
    market.broker.set_webhook(seller, None, key())
    market.finish(round_id)
    hooks.tell()
    assert len(posted) == 2
    market.broker.database.close()


def test_a_broker_that_posts_none_says_so_and_one_that_does_checks_the_address(tmp_path: Path) -> None:
    market = make_market(f"sqlite:///{tmp_path}/m.db")
    headers = {"Authorization": f"Bearer {market.broker.mint_token(market.buyer, 'full', key())['token']}"}

    def put(settings: Any, url: str | None) -> int:
        http_ = TestClient(create_app(market.broker, settings))
        sent = {**headers, "Idempotency-Key": key()}
        return int(http_.put("/v1/me/webhook", json={"url": url}, headers=sent).status_code)

    posting = dataclasses.replace(SETTINGS, webhooks=True)
    assert put(SETTINGS, None) == 403
    assert put(posting, "https://127.0.0.1/hook") == 400
    assert put(posting, "http://clinic.example/") == 422
    assert put(posting, None) == 200
    market.broker.database.close()


def _certificate(folder: Path, name: str) -> tuple[Path, Path]:
    own = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    today = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(own.public_key())
        .serial_number(1)
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(own, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem = own.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(pem)
    return folder / "cert.pem", folder / "key.pem"


def test_the_connection_goes_to_the_checked_address_under_the_host_s_certificate(tmp_path: Path) -> None:
    heard: list[tuple[str, bytes]] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append((self.headers["Host"], self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    certificate, own = _certificate(tmp_path, "clinic.example")
    server = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, own)
    server.socket = serving.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    trusted = ssl.create_default_context(cafile=str(certificate))
    to = Address("clinic.example", "127.0.0.1", server.server_port, "/hook")
    assert ipaddress.ip_address(to.checked).is_loopback  # only a test may connect here
    assert post(to, b"{}", {}, trusted) == 204
    assert heard == [(f"clinic.example:{server.server_port}", b"{}")]
    with pytest.raises(ssl.SSLError):
        post(to._replace(host="other.example"), b"{}", {}, trusted)
    server.shutdown()
    server.server_close()
