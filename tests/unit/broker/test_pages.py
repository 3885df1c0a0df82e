"""The pages without a browser: who sees what, forged forms, escaping, empty and error states."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient

from privmarket.broker.api import create_app
from tests.unit.broker.market import Market, key
from tests.unit.broker.test_api import PAGE_ROUTES, SETTINGS

PAGES = ("/", "/money", "/privacy", "/audit", "/tasks/{task}", "/rounds/{round}")
# role → status per page of PAGES
RULES = {
    "operator": (200, 200, 200, 200, 200, 200),
    "buyer": (200, 200, 200, 403, 200, 200),
    "seller": (200, 200, 200, 403, 200, 200),
    "other buyer": (200, 200, 200, 403, 404, 404),
}


def browser(market: Market, token: str) -> TestClient:
    http = TestClient(create_app(market.broker, SETTINGS), follow_redirects=True, raise_server_exceptions=False)
    page = http.get("/sign-in").text
    reply = http.post("/sign-in", data={"token": token, "mark": mark(page)})
    assert reply.status_code == 200, reply.text
    return http


def mark(page: str) -> str:
    return re.search(r'name="mark" value="([0-9a-f]+)"', page).group(1)  # type: ignore[union-attr]


@pytest.fixture
def tokens(market: Market) -> dict[str, str]:
    own = {"operator": market.operator, "buyer": market.buyer, "seller": market.sellers[0]}
    made = {role: market.broker.mint_token(actor, "full", key())["token"] for role, actor in own.items()}
    made["other buyer"] = market.broker.register({"role": "buyer", "name": "other"}, key())["token"]
    return made


def test_who_sees_which_page(market: Market, tokens: dict[str, str]) -> None:
    round_id = market.open()
    market.bid_all(round_id)
    with market.broker.database.read() as connection:
        task_id = connection.exec_driver_sql("SELECT id FROM tasks").scalar()
    for role, expected in RULES.items():
        http = browser(market, tokens[role])
        for page, status in zip(PAGES, expected, strict=True):
            for query in ("", "?part=live"):
                reply = http.get(page.format(task=task_id, round=round_id) + query)
                assert reply.status_code == status, (role, page)
                assert "0.9" not in reply.text  # a sealed bid of somebody else


def test_nobody_sees_a_page_without_signing_in(market: Market) -> None:
    http = TestClient(create_app(market.broker, SETTINGS), follow_redirects=False)
    for page in PAGES:
        reply = http.get(page)
        assert (reply.status_code, reply.headers["location"]) == (303, "/sign-in")


def test_forged_forms_are_refused(market: Market, tokens: dict[str, str]) -> None:
    round_id = market.open()
    http = browser(market, tokens["buyer"])
    for forged in ("", "0" * 64):
        assert http.post(f"/rounds/{round_id}/close", data={"mark": forged}).status_code in (403, 422)
    assert market.broker.round_state(round_id) == "open"
    good = mark(http.get(f"/rounds/{round_id}").text)
    assert http.post(f"/rounds/{round_id}/close", data={"mark": good}).status_code == 200
    assert market.broker.round_state(round_id) == "settled"
    stranger = TestClient(create_app(market.broker, SETTINGS))
    assert stranger.post("/sign-in", data={"token": tokens["buyer"], "mark": "0" * 64}).status_code == 403


@pytest.mark.parametrize("path", [path for method, path in sorted(PAGE_ROUTES) if method == "POST"])
def test_every_form_needs_its_mark(market: Market, tokens: dict[str, str], path: str) -> None:
    fields = {"token": "x", "role": "buyer", "name": "x", "valuation": "1", "epsilon": "1", "mark": "0" * 64}
    address = path.format(task_id="task-x", round_id="round-x", step="close")
    for role in ("operator", "buyer", "seller"):
        http = browser(market, tokens[role])
        assert http.post(address, data=fields).status_code == 403


def test_pages_escape_what_people_typed(market: Market, tokens: dict[str, str]) -> None:
    market.open(title="<img src=x onerror=alert(1)>")
    page = browser(market, tokens["seller"]).get("/").text
    assert "<img" not in page
    assert "&lt;img" in page


def test_empty_and_error_states(market: Market, tokens: dict[str, str]) -> None:
    http = browser(market, tokens["seller"])
    assert "No tasks yet" in http.get("/").text
    assert "Nothing has moved" in http.get("/money").text
    missing = http.get("/rounds/round-none")
    assert missing.status_code == 404
    assert "That did not work" in missing.text
    round_id = market.open()
    good = mark(http.get(f"/rounds/{round_id}").text)
    bad = http.post(f"/rounds/{round_id}/bid", data={"valuation": "lots", "epsilon": "1", "mark": good})
    assert bad.status_code == 400
    assert "is not a number" in bad.text
    cookie = http.get("/sign-in").request.headers["cookie"]
    assert tokens["seller"] in cookie  # kept in an HttpOnly, SameSite=Strict cookie


def test_the_session_cookie_is_out_of_reach(market: Market, tokens: dict[str, str]) -> None:
    http = TestClient(create_app(market.broker, SETTINGS), follow_redirects=False)
    http.get("/sign-in")
    reply = http.post("/sign-in", data={"token": tokens["buyer"], "mark": mark(http.get("/sign-in").text)})
    attributes = reply.headers["set-cookie"].lower()
    assert "httponly" in attributes
    assert "samesite=strict" in attributes
