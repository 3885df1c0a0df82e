"""The HTTP face: who may do what on every route, one error shape, limits, sealing, pages of lists, the client."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient

import privmarket as pm
from privmarket.broker import _answers as answers, _routes as routes_module
from privmarket.broker._api import ServiceSettings, create_app
from privmarket.broker._broker import Broker
from privmarket.broker._client import BrokerCallError, BrokerClient
from privmarket.broker._limits import Limits, RateLimit
from privmarket.broker._schema import head, metadata
from privmarket.broker._signatures import Head, SigningKey
from privmarket_fixtures.market import TASK, Market, key, make_market
from tests.postgres import new_database

GOLDEN = Path(__file__).parents[2] / "golden"
SETTINGS = ServiceSettings(tick_seconds=0, requests_per_second=1e6, burst=1e6, limits=Limits(body_bytes=20_000))


class Service:
    """A market behind its API, with a token per role."""

    def __init__(self, market: Market, settings: ServiceSettings = SETTINGS) -> None:
        self.market = market
        self.app = create_app(market.broker, settings)
        self.http = TestClient(self.app, raise_server_exceptions=False)
        broker = market.broker
        owners = {"operator": market.operator, "buyer": market.buyer, "seller": market.sellers[0]}
        self.tokens = {role: broker.mint_token(actor, "full", key())["token"] for role, actor in owners.items()}
        others = {
            "other buyer": {"role": "buyer"},
            "other seller": {"role": "seller", "cap_epsilon": 5.0, "delta": 1e-5},
        }
        for name, form in others.items():
            self.tokens[name] = broker.register({**form, "name": name}, key())["token"]
        self.tokens["reader"] = broker.mint_token(market.operator, "read", key())["token"]

    def call(self, who: str | None, method: str, path: str, form: Any = None, **headers: str) -> httpx.Response:
        sent = {"Idempotency-Key": key(), **headers}
        if who is not None:
            sent["Authorization"] = f"Bearer {self.tokens[who]}"
        return self.http.request(method, path, json=form, headers=sent)


@pytest.fixture
def service(market: Market) -> Service:
    return Service(market)


ROLES = ("nobody", "operator", "buyer", "seller", "other buyer", "other seller", "reader")
# route → the status that each role gets, in the order of ROLES, on a round that was just opened and bid on.
# fmt: off
RULES: dict[tuple[str, str], tuple[int, ...]] = {
    ("POST", "/v1/register"):                       (201, 201, 201, 201, 201, 201, 403),
    ("GET", "/v1/mechanisms"):                      (401, 200, 200, 200, 200, 200, 200),
    ("GET", "/v1/mechanisms/{name}"):               (401, 200, 200, 200, 200, 200, 200),
    ("GET", "/v1/me"):                              (401, 200, 200, 200, 200, 200, 200),
    ("GET", "/v1/me/statement"):                    (401, 200, 200, 200, 200, 200, 200),
    ("GET", "/v1/me/awards"):                       (401, 403, 403, 200, 403, 200, 403),
    ("GET", "/v1/me/tokens"):                       (401, 200, 200, 200, 200, 200, 200),
    ("POST", "/v1/me/tokens"):                      (401, 201, 201, 201, 201, 201, 403),
    ("PUT", "/v1/me/key"):                          (401, 200, 200, 200, 200, 200, 403),
    ("POST", "/v1/statements"):                     (401, 404, 404, 403, 404, 403, 403),
    ("POST", "/v1/me/payouts"):                     (401, 409, 201, 409, 409, 409, 403),
    ("GET", "/v1/me/entries"):                      (401, 200, 200, 200, 200, 200, 200),
    ("GET", "/v1/rounds/{round_id}/entries"):       (401, 409, 409, 409, 404, 404, 409),
    ("GET", "/v1/log/checkpoint"):                  (200, 200, 200, 200, 200, 200, 200),
    ("POST", "/v1/log/cosignatures"):               (401, 403, 403, 403, 403, 403, 403),
    ("PUT", "/v1/me/dataset"):                      (401, 403, 403, 403, 403, 403, 403),
    ("DELETE", "/v1/tokens/{token_id}"):            (401, 200, 404, 200, 404, 404, 403),
    ("GET", "/v1/tasks"):                           (401, 200, 200, 200, 200, 200, 200),
    ("POST", "/v1/tasks"):                          (401, 403, 201, 403, 409, 403, 403),
    ("GET", "/v1/tasks/{task_id}"):                 (401, 200, 200, 200, 404, 200, 200),
    ("GET", "/v1/tasks/{task_id}/rounds"):          (401, 200, 200, 200, 404, 200, 200),
    ("POST", "/v1/tasks/{task_id}/rounds"):         (401, 403, 409, 403, 404, 403, 403),
    ("GET", "/v1/rounds"):                          (401, 200, 200, 200, 200, 200, 200),
    ("GET", "/v1/events"):                          (401, 200, 200, 200, 200, 200, 200),
    ("GET", "/v1/rounds/{round_id}"):               (401, 200, 200, 200, 404, 200, 200),
    ("GET", "/v1/rounds/{round_id}/bids"):          (401, 200, 403, 200, 403, 200, 200),
    ("POST", "/v1/rounds/{round_id}/bids"):         (401, 403, 403, 201, 403, 201, 403),
    ("POST", "/v1/rounds/{round_id}/close"):        (401, 409, 200, 403, 404, 403, 403),
    ("GET", "/v1/rounds/{round_id}/awards"):        (401, 200, 200, 200, 404, 200, 200),
    ("GET", "/v1/rounds/{round_id}/cohort"):        (401, 200, 200, 404, 404, 404, 200),
    ("POST", "/v1/rounds/{round_id}/delivery"):     (401, 403, 403, 404, 403, 404, 403),
    ("POST", "/v1/rounds/{round_id}/receipts"):     (401, 403, 409, 403, 404, 403, 403),
    ("POST", "/v1/rounds/{round_id}/reveals"):      (401, 403, 403, 409, 403, 409, 403),
    ("GET", "/v1/rounds/{round_id}/outcome"):       (401, 403, 403, 200, 403, 404, 403),
    ("POST", "/v1/rounds/{round_id}/disputes"):     (401, 403, 403, 404, 403, 404, 403),
    ("POST", "/v1/rounds/{round_id}/disputes/{seller_id}/key"): (401, 404, 403, 403, 403, 403, 403),
    ("POST", "/v1/rounds/{round_id}/progress"):     (401, 403, 409, 403, 404, 403, 403),
    ("POST", "/v1/rounds/{round_id}/rulings"):      (401, 404, 403, 403, 403, 403, 403),
    ("POST", "/v1/rounds/{round_id}/settle"):       (401, 409, 409, 403, 404, 403, 403),
    ("POST", "/v1/rounds/{round_id}/abort"):        (401, 200, 200, 403, 404, 403, 403),
    ("GET", "/v1/parties"):                         (401, 200, 403, 403, 403, 403, 200),
    ("GET", "/v1/parties/{party_id}"):              (401, 200, 404, 200, 404, 404, 200),
    ("POST", "/v1/parties/{party_id}/deposits"):    (401, 201, 403, 403, 403, 403, 403),
    ("POST", "/v1/parties/{party_id}/withdrawals"): (401, 409, 403, 403, 403, 403, 403),
    ("POST", "/v1/parties/{party_id}/tokens"):      (401, 201, 403, 201, 403, 403, 403),
    ("PUT", "/v1/parties/{party_id}/suspension"):   (401, 200, 403, 403, 403, 403, 403),
    ("DELETE", "/v1/parties/{party_id}/name"):      (401, 200, 403, 403, 403, 403, 403),
    ("PUT", "/v1/me/webhook"):                      (401, 403, 403, 403, 403, 403, 403),
    ("GET", "/v1/bookings"):                        (401, 200, 403, 403, 403, 403, 200),
    ("POST", "/v1/bookings/{entry}/undo"):          (401, 404, 403, 403, 403, 403, 403),
    ("GET", "/v1/proposals"):                       (401, 200, 403, 403, 403, 403, 200),
    ("POST", "/v1/proposals/{entry}/approve"):      (401, 404, 403, 403, 403, 403, 403),
    ("POST", "/v1/proposals/{entry}/decline"):      (401, 404, 403, 403, 403, 403, 403),
    ("GET", "/v1/payouts"):                         (401, 200, 200, 200, 200, 200, 200),
    ("GET", "/v1/totals"):                          (401, 200, 403, 403, 403, 403, 200),
    ("GET", "/v1/audit"):                           (401, 200, 403, 403, 403, 403, 200),
    ("GET", "/v1/log/head"):                        (200, 200, 200, 200, 200, 200, 200),
    ("GET", "/v1/log/consistency"):                 (200, 200, 200, 200, 200, 200, 200),
    ("GET", "/v1/log/entries/{seq}/proof"):         (401, 200, 404, 404, 404, 404, 200),
    ("GET", "/metrics"):                            (401, 200, 403, 403, 403, 403, 200),
    ("GET", "/readyz"):                             (200, 200, 200, 200, 200, 200, 200),
    ("GET", "/health"):                             (200, 200, 200, 200, 200, 200, 200),
}
# fmt: on
FORMS: dict[str, Any] = {
    "/v1/register": {"role": "buyer", "name": "new"},
    "/v1/me/tokens": {"scope": "read"},
    "/v1/tasks": TASK,
    "/v1/rounds/{round_id}/bids": {"valuation": 0.3, "epsilon": 1.0},
    "/v1/rounds/{round_id}/delivery": {"update_sha256": "ab" * 32},
    "/v1/rounds/{round_id}/receipts": {"receipts": {"seller-x": None}},
    "/v1/me/dataset": {"dataset_sha256": "ab" * 32, "signature": "00" * 64},
    "/v1/rounds/{round_id}/progress": {"accuracy": 0.5},
    "/v1/me/key": {"public_key": SigningKey.generate().public},
    "/v1/statements": {
        "kind": "round.closed",
        "about": "round-0000000000000000",
        "statements": [{"said": {}, "signature": "00" * 64}],
    },
    "/v1/me/payouts": {"amount_micro": 5},
    "/v1/log/cosignatures": {
        "witness": "w",
        "public_key": "ab" * 32,
        "size": 1,
        "root": "ab" * 32,
        "at_ms": 1,
        "seconds": 1,
        "signature": "00" * 64,
    },
    "/v1/rounds/{round_id}/reveals": {"valuation": 0.3, "epsilon": 1.0, "nonce": "00" * 16},
    "/v1/rounds/{round_id}/disputes": {"reason": "test"},
    "/v1/rounds/{round_id}/rulings": {"seller_id": "seller-x", "pays": True, "reason": "test"},
    "/v1/parties/{party_id}/tokens": {"scope": "read"},
    "/v1/parties/{party_id}/suspension": {"reason": "test"},
    "/v1/rounds/{round_id}/abort": {"reason": "test"},
    "/v1/parties/{party_id}/deposits": {"amount_micro": 5, "reference": "test"},
    "/v1/me/webhook": {"url": None},
    "/v1/bookings/{entry}/undo": {"reason": "test"},
    "/v1/proposals/{entry}/decline": {"reason": "test"},
    "/v1/parties/{party_id}/withdrawals": {"amount_micro": 5},
}


# Never ends where it is allowed: test_events.py reads it.
STREAMS = {("GET", "/v1/events/stream"), ("GET", "/news")}
PUBLIC = {("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/sign-in")}
# Pages: what each role sees is tested in test_pages.py; every POST there needs the mark of its form.
PAGE_ROUTES = {
    *(("GET", page) for page in ("/", "/money", "/privacy", "/people", "/audit", "/tokens")),
    *(("GET", page) for page in ("/tasks/{task_id}", "/rounds/{round_id}", "/rounds/{round_id}/preview")),
    *(("POST", page) for page in ("/sign-in", "/sign-out", "/register", "/tasks", "/tasks/{task_id}/open")),
    *(
        ("POST", f"/rounds/{{round_id}}/{step}")
        for step in ("bid", "progress", "deliver", "abort", "judge", "dispute", "rule", "{step}")
    ),
    ("POST", "/bookings/confirm"),
    ("POST", "/bookings"),
    ("POST", "/bookings/{entry}/undo"),
    ("POST", "/proposals/{entry}/{verdict}"),
    ("POST", "/payouts"),
    ("POST", "/tokens"),
    ("POST", "/tokens/{token_id}/revoke"),
    ("POST", "/signed"),
    ("POST", "/key"),
}


def api_routes(service: Service) -> set[tuple[str, str]]:
    """Every route that the application really serves, described or not."""
    described = service.app.openapi()["paths"]
    found = {(method.upper(), path) for path, verbs in described.items() for method in verbs}
    inner = [getattr(route, "original_router", None) for route in service.app.routes]
    every = [*service.app.routes, *(route for router in inner if router is not None for route in router.routes)]
    for route in every:
        methods = getattr(route, "methods", None) or set()
        found |= {(method, route.path) for method in methods if method not in ("HEAD", "OPTIONS")}
    return found


def test_an_undescribed_route_without_a_rule_is_noticed(service: Service) -> None:
    router = APIRouter()
    router.add_api_route("/v1/back-door", lambda: {}, include_in_schema=False)
    service.app.include_router(router)
    assert ("GET", "/v1/back-door") in api_routes(service) - set(RULES)


def test_the_docs_page_names_every_route(service: Service) -> None:
    page = service.http.get("/docs").text
    assert all(path in page for _, path in RULES if path != "/metrics")
    assert service.http.get("/static/broker.css").status_code == 200


def test_operation_ids_are_those_that_generated_clients_use(service: Service) -> None:
    """A client generated yesterday calls functions by these names: they may be added to, never changed."""
    described = service.app.openapi()["paths"].items()
    found = [
        f"{operation['operationId']} {method.upper()} {path}"
        for path, verbs in described
        for method, operation in verbs.items()
    ]
    assert sorted(found) == (GOLDEN / "broker_operations.txt").read_text().splitlines()
    assert len({one.split()[0] for one in found}) == len(found)


def test_answers_say_what_is_left_and_which_version_speaks(market: Market) -> None:
    few = ServiceSettings(tick_seconds=0, requests_per_second=1e-9, burst=2, address_factor=1e12)
    service = Service(market, few)
    replies = [service.call("buyer", "GET", "/v1/me", **{"X-Request-Id": f"request-{i}"}) for i in range(3)]
    assert [(one.status_code, one.headers["ratelimit-remaining"]) for one in replies] == [
        (200, "1"), (200, "0"), (429, "0"),
    ]  # fmt: skip
    assert {(one.headers["ratelimit-limit"], one.headers["privmarket-version"]) for one in replies} == {("2", "1")}
    assert int(replies[2].headers["retry-after"]) >= 1
    assert replies[2].json()["request_id"] == "request-2"
    assert "ratelimit-limit" not in service.http.get("/health").headers
    wrong = service.http.get("/health", headers={"Privmarket-Version": "2"})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "unknown-version")


def test_one_account_holds_only_its_share_of_the_places(market: Market) -> None:
    one = ServiceSettings(tick_seconds=0, limits=Limits(requests_per_account=1))
    service = Service(market, one)
    service.app.state.account_places.take(market.buyer.party_id)  # a request of the buyer's is under way
    assert service.call("buyer", "GET", "/v1/me").status_code == 429
    assert service.call("seller", "GET", "/v1/me").status_code == 200
    service.app.state.account_places.give_back(market.buyer.party_id)
    assert [service.call("buyer", "GET", "/v1/me").status_code for _ in range(3)] == [200] * 3


def test_every_route_has_a_rule(service: Service) -> None:
    assert api_routes(service) == set(RULES) | PUBLIC | PAGE_ROUTES | STREAMS


def test_every_answer_is_typed_and_every_form_has_an_example(service: Service) -> None:
    """A stranger writes a client from the description alone: no answer is just "an object"."""
    document = service.app.openapi()
    schemas, forms = document["components"]["schemas"], set()
    for path, verbs in document["paths"].items():
        for method, operation in verbs.items():
            done = next(one for status, one in operation["responses"].items() if status.startswith("2"))
            if "text/plain" in done["content"]:
                continue  # a checkpoint, in the format of others
            if path.endswith("/stream"):
                continue  # text, of which each event is described under /v1/events
            named = done["content"]["application/json"]["schema"].get("$ref", "").rpartition("/")[2]
            fields = schemas.get(named, {}).get("properties", {})
            assert fields, f"{method} {path} answers something untyped"
            items = fields.get("items", {}).get("items", {"type": "string"})
            assert items.get("$ref") or items.get("type") == "string", f"{method} {path} lists something untyped"
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            forms |= {body["$ref"].rpartition("/")[2]} if "$ref" in body else set()
    assert [name for name in sorted(forms) if not schemas[name].get("examples")] == []


def test_a_token_that_nobody_has_limits_nobody(market: Market) -> None:
    """7: limits were kept by whatever token was sent; a bid counts against its party, whichever token it uses."""
    http = TestClient(
        create_app(market.broker, ServiceSettings(tick_seconds=0, requests_per_second=0.001, burst=3))
    )
    round_id, form = market.open(), {"valuation": 0.2, "epsilon": 1.0}

    def bid(token: str) -> int:
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key()}
        return int(http.post(f"/v1/rounds/{round_id}/bids", json=form, headers=headers).status_code)

    assert [bid(f"pm_{i:064x}") for i in range(3)] == [401] * 3
    mine = [market.broker.mint_token(market.sellers[0], "full", key())["token"] for _ in range(5)]
    assert [bid(token) for token in mine] == [201, 201, 201, 429, 429]
    other = market.broker.mint_token(market.sellers[1], "full", key())["token"]
    assert bid(other) == 201


def test_every_answer_carries_a_signed_head_from_the_first_on(database: str) -> None:
    signing = SigningKey.generate()
    make_market(database, key=signing).broker.database.close()
    http = TestClient(create_app(Broker(database, key=signing), ServiceSettings(tick_seconds=0)))
    for path in ("/health", "/v1/me", "/v1/no-such", "/sign-in"):
        assert Head.parse(http.get(path).headers["privmarket-head"]).is_signed_by(signing.public), path


class Scene:
    """One market with an open round, which each attempt finds as the first one did."""

    def __init__(self, database: str) -> None:
        self.service = Service(make_market(database))
        market = self.service.market
        round_id = market.open()
        market.bid_all(round_id)
        self.engine = market.broker.database.engine
        with self.engine.connect() as connection:
            task_id = str(connection.exec_driver_sql("SELECT id FROM tasks").scalar())
        token_id = market.broker.mint_token(market.sellers[0], "full", key())["token_id"]
        self.names = {"round_id": round_id, "task_id": task_id, "token_id": token_id}
        self.names |= {"party_id": market.sellers[0].party_id, "name": "pac", "seq": 1, "entry": 1}
        self.names["seller_id"] = market.sellers[0].party_id
        with self.engine.connect() as connection:
            self.rows = {table: connection.execute(table.select()).all() for table in metadata.sorted_tables}

    def head(self) -> object:
        with self.engine.connect() as connection:
            return connection.execute(head.select()).one()

    def restore(self) -> None:
        with self.engine.begin() as connection:
            for table in reversed(metadata.sorted_tables):
                connection.execute(table.delete())
            for table, rows in self.rows.items():
                if rows:
                    connection.execute(table.insert(), [row._asdict() for row in rows])


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    if request.param == "sqlite":
        made = Scene(f"sqlite:///{tmp_path_factory.mktemp('scene')}/market.db")
    else:
        made = Scene(new_database(request.getfixturevalue("postgres_server")))
    yield made
    made.service.market.broker.database.close()


@pytest.mark.parametrize(("method", "path"), RULES)
def test_who_may_do_what(scene: Scene, method: str, path: str) -> None:
    before = scene.head()
    for role, expected in zip(ROLES, RULES[method, path], strict=True):
        form = FORMS.get(path) if method in ("POST", "PUT") else None
        query = "?old=3" if path.endswith("consistency") else ""
        who = None if role == "nobody" else role
        reply = scene.service.call(who, method, path.format(**scene.names) + query, form)
        assert reply.status_code == expected, f"{role}: {reply.text}"
        if reply.status_code >= 400:
            assert set(reply.json()) == {"code", "message", "hint", "field", "request_id"}
        if method != "GET" and reply.status_code < 400:
            scene.restore()
        assert scene.head() == before  # what is refused, or only read, changes nothing


def test_bids_are_sealed_until_closing(service: Service) -> None:
    round_id = service.market.open()
    service.market.bid_all(round_id)
    bids = f"/v1/rounds/{round_id}/bids"
    assert service.call("operator", "GET", bids).json()["items"] == []
    assert _stored(service.market, "SELECT COUNT(seed) FROM rounds") == 0  # nobody knows what will order ties
    assert "0.9," not in service.call("operator", "GET", "/v1/audit").text
    mine = service.call("seller", "GET", bids).json()["items"]
    assert [bid["seller_id"] for bid in mine] == [service.market.sellers[0].party_id]
    assert service.call("buyer", "GET", f"/v1/rounds/{round_id}").json()["bids"] == 3
    assert "bids" not in service.call("seller", "GET", f"/v1/rounds/{round_id}").json()
    service.call("buyer", "POST", f"/v1/rounds/{round_id}/close")
    assert len(service.call("operator", "GET", bids).json()["items"]) == 3
    winners = service.call("buyer", "GET", f"/v1/rounds/{round_id}/awards").json()["items"]
    assert len(winners) == 2
    assert not any("valuation" in award for award in winners)
    assert len(service.call("seller", "GET", f"/v1/rounds/{round_id}/awards").json()["items"]) == 1


def _stored(market: Market, query: str) -> Any:
    with market.broker.database.read() as connection:
        return connection.exec_driver_sql(query).scalar_one()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"valuation": NaN, "epsilon": 1}', 422),
        (b'{"valuation": 1e999, "epsilon": 1}', 422),
        (b'{"valuation": -1, "epsilon": 1}', 400),
        (b'{"valuation": 0.2, "epsilon": 9}', 400),
        (b'{"valuation": 0.2, "epsilon": 1, "extra": 1}', 422),
        (b"not json", 422),
        (b"[" * 9000, 400),
        (b'{"valuation": "\xff"}', 400),
        (b"x" * 20_001, 413),
    ],
)
def test_bad_bodies(service: Service, body: bytes, status: int) -> None:
    path = f"/v1/rounds/{service.market.open()}/bids"
    headers = {"Authorization": f"Bearer {service.tokens['seller']}", "Idempotency-Key": key()}
    reply = service.http.post(path, content=body, headers={**headers, "Content-Type": "application/json"})
    assert reply.status_code == status, reply.text
    assert set(reply.json()) == {"code", "message", "hint", "field", "request_id"}


def test_a_body_without_a_length_is_cut_off(service: Service) -> None:
    pieces = (b"x" * 1000 for _ in range(30))
    assert service.http.post("/v1/register", content=pieces).status_code == 413


def test_errors_have_one_shape_off_the_map_too(service: Service) -> None:
    for reply in (service.http.get("/nowhere"), service.http.put("/v1/me"), service.http.post("/v1/tasks")):
        assert reply.status_code in (401, 404, 405, 422)
        assert set(reply.json()) == {"code", "message", "hint", "field", "request_id"}
    seen = service.http.get("/nowhere", headers={"Accept": "text/html"})
    assert (seen.status_code, "There is no such page" in seen.text) == (404, True)  # a person gets a page
    assert service.http.get("/health").headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in service.http.get("/nowhere").headers["content-security-policy"]


def test_rate_limit(market: Market) -> None:
    slow = Service(market, ServiceSettings(tick_seconds=0, requests_per_second=0.001, burst=3, address_factor=3))
    statuses = [slow.call("buyer", "GET", "/v1/me").status_code for _ in range(5)]
    assert statuses == [200, 200, 200, 429, 429]
    assert slow.call("seller", "GET", "/v1/me").status_code == 200  # one caller's haste is not another's
    headers = [{"Authorization": f"Bearer pm_{i}", "X-Forwarded-For": f"10.0.0.{i}"} for i in range(9)]
    # Tokens that nobody made, and headers that anybody can send, buy no requests: the address is limited too.
    assert [slow.http.get("/v1/me", headers=one).status_code for one in headers][-1] == 429
    now = [0.0]
    limit = RateLimit(2.0, 1.0, clock=lambda: now[0])
    assert [limit.allows("a"), limit.allows("a")] == [True, False]
    now[0] = 0.5
    assert limit.allows("a")


def test_lists_come_in_pages(service: Service) -> None:
    market = service.market
    for i in range(7):
        market.broker.deposit(market.operator, market.buyer.party_id, i + 1, key())
    seen: list[int] = []
    after = ""
    while True:
        page = service.call("buyer", "GET", f"/v1/me/statement?limit=3{after}").json()
        seen += [item["amount_micro"] for item in page["items"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert seen == [7, 6, 5, 4, 3, 2, 1, 50_000_000]
    parties = service.call("operator", "GET", "/v1/parties?limit=2").json()
    rest = service.call("operator", "GET", f"/v1/parties?limit=200&after={parties['next']}").json()
    names = [item["id"] for item in parties["items"] + rest["items"]]
    assert len(names) == len(set(names)) == 7
    assert service.call("buyer", "GET", "/v1/me/statement?after=%00").status_code == 400


def test_the_same_key_twice_over_http(service: Service) -> None:
    path, form, same = f"/v1/rounds/{service.market.open()}/bids", {"valuation": 0.2, "epsilon": 1.0}, key()
    first = service.call("seller", "POST", path, form, **{"Idempotency-Key": same})
    assert service.call("seller", "POST", path, form, **{"Idempotency-Key": same}).json() == first.json()
    other = service.call("seller", "POST", path, {**form, "epsilon": 2.0}, **{"Idempotency-Key": same})
    assert (other.status_code, other.json()["code"]) == (409, "idempotency-conflict")


def test_no_token_in_any_log(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    service.call("seller", "GET", "/v1/me")
    service.call("seller", "GET", "/v1/rounds/none")
    assert service.tokens["seller"] not in caplog.text


def test_closed_registration(market: Market) -> None:
    closed = Service(market, ServiceSettings(tick_seconds=0, open_registration=False))
    form = {"role": "buyer", "name": "x"}
    assert closed.call(None, "POST", "/v1/register", form).status_code == 403
    assert closed.call("operator", "POST", "/v1/register", form).status_code == 201


def test_the_client_runs_a_whole_round(service: Service) -> None:
    operator = pm.BrokerClient("http://broker", service.tokens["operator"], http=service.http)
    buyer = operator.register("buyer", "lab")
    operator.deposit(buyer.me()["id"], 3_000_000)
    task = buyer.publish_task("digits", 1_000_000, mechanism="proportional-share", rounds=2, buyer_may_close=True)
    round_id = buyer.open_round(task["id"])["id"]
    sellers = [operator.register("seller", f"s{i}", cap_epsilon=8.0, delta=1e-5) for i in range(3)]
    for seller, v, e in zip(sellers, (0.2, 0.9, 0.4), (1.0, 2.0, 0.5), strict=True):
        seller.bid(round_id, v, e)
    assert buyer.close_round(round_id)["sellers"] == 2
    assert sellers[1].outcome(round_id)["why"].startswith("asked 0.9 per unit")
    for seller in (sellers[0], sellers[2]):
        seller.claim_delivery(round_id, "ab" * 32)
    buyer.give_receipts(round_id, {award["seller_id"]: None for award in buyer.awards(round_id)})
    assert buyer.settle_round(round_id)["paid_micro"] == 999_999
    me = sellers[0].me()
    assert me["balance_micro"] == 666_666
    assert me["wallet"]["spent_epsilon"] == pytest.approx(1.0, rel=2e-3)  # noise is rounded up to a public grid
    assert 0 < me["wallet"]["remaining_share"] < 1
    assert [line["kind"] for line in buyer.statement()] == ["round.settled", "round.opened", "money.deposit"]
    totals = operator.totals()
    assert totals["deposited_micro"] == totals["escrow_micro"] + totals["balances_micro"] == 53_000_000
    assert {entry["kind"] for entry in operator.audit("round.settled")} == {"round.settled"}
    with pytest.raises(BrokerCallError) as refused:
        sellers[0].bid(round_id, 0.1, 1.0)
    assert (refused.value.status, refused.value.code) == (409, "conflict")
    assert sellers[0].token not in repr(sellers[0])


def test_the_client_repeats_what_broke_and_it_acts_once(service: Service) -> None:
    calls = []

    class Flaky(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            reply = service.http.request(
                request.method, str(request.url), content=request.read(), headers=dict(request.headers)
            )
            calls.append(request.url.path)
            if len(calls) == 1:
                raise httpx.ReadError("the answer was lost")
            return httpx.Response(reply.status_code, content=reply.content)

    http = httpx.Client(base_url="http://testserver", transport=Flaky())
    operator = pm.BrokerClient("http://testserver", service.tokens["operator"], http=http)
    party = service.market.sellers[1].party_id
    assert operator.deposit(party, 5)["balance_micro"] == 5
    assert len(calls) == 2


def test_a_bid_that_breaks_something_is_answered_in_the_one_shape(service: Service) -> None:
    round_id = service.market.open()
    path, bid = f"/v1/rounds/{round_id}/bids", {"valuation": 0.2, "epsilon": 1.0}

    def fail(*arguments: object, **named: object) -> None:
        raise RuntimeError("a fault of ours")

    broker = service.market.broker
    broker.take_bids, working = fail, broker.take_bids  # type: ignore[method-assign, assignment]
    broken = service.call("seller", "POST", path, bid)
    assert (broken.status_code, broken.json()["code"]) == (500, "internal")
    broker.take_bids = working  # type: ignore[method-assign]
    assert service.call("seller", "POST", path, bid).status_code == 201


def test_a_revoked_token_does_not_use_up_its_owner_s_allowance(market: Market) -> None:
    few = ServiceSettings(tick_seconds=0, requests_per_second=1e-9, burst=20, address_factor=1e12)
    service, round_id = Service(market, few), market.open()
    path, bid = f"/v1/rounds/{round_id}/bids", {"valuation": 0.2, "epsilon": 1.0}
    made = market.broker.mint_token(market.sellers[0], "full", key())
    service.tokens["lost"] = made["token"]
    assert service.call("lost", "POST", path, bid).status_code == 201
    market.broker.revoke_token(market.sellers[0], made["token_id"], key())
    assert {service.call("lost", "POST", path, bid).status_code for _ in range(30)} == {401}
    assert service.call("seller", "POST", path, bid).status_code == 201


def answered(client: type) -> dict[str, str]:
    """Public method → the answer that it returns, as its annotation says."""
    methods = {name: one for name, one in vars(client).items() if callable(one) and not name.startswith("_")}
    return {name: one.__annotations__["return"].replace("Iterator[", "Page[") for name, one in methods.items()}


def untyped(client: type) -> list[str]:
    """Methods that return neither a class of `answers` nor one of the client's own."""
    own = {"BrokerClient", "Head", "bytes"}
    known = {name for name, one in vars(answers).items() if isinstance(one, type)}
    found = {name: re.sub(r"Page\[(.*)\]", r"\1", kind).split(" | ") for name, kind in answered(client).items()}
    return [name for name, kinds in found.items() if not {k.removeprefix("answers.") for k in kinds} <= known | own]


def test_the_client_returns_what_the_routes_answer() -> None:
    assert untyped(BrokerClient) == []
    routes = {
        name: one.__annotations__["return"]
        for name, one in vars(routes_module).items()
        if getattr(one, "__module__", "") == routes_module.__name__
        and "return" in getattr(one, "__annotations__", {})
    }
    told = answered(BrokerClient)
    shared = sorted(set(told) & set(routes) - {"log_head", "register"})  # the client makes its own of these
    assert len(shared) >= 18
    # A very large round is asked about until its auction is over.
    differs = {name: told[name] for name in shared if told[name] != routes[name]}
    assert differs == {"close_round": "answers.StepAnswer | answers.RoundAnswer"}


def test_a_method_without_a_typed_answer_is_noticed() -> None:
    class Loose(BrokerClient):
        def anything(self) -> dict[str, Any]:
            return self.read("/v1/me")

    assert untyped(Loose) == ["anything"]
