"""The pages without a browser: who sees what, forged forms, escaping, empty and error states."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from privmarket.broker import _clearing as clearing, _views as views, _wallets as wallets
from privmarket.broker._api import create_app
from privmarket.broker._broker import Broker
from privmarket.broker._errors import UnauthenticatedError
from privmarket.broker._page_frame import details_in_words
from privmarket.broker._pages import PARTY
from privmarket.broker._parties import ROLES
from privmarket.broker._signatures import canonical
from privmarket.broker._wallets import WalletRecord
from privmarket.privacy._calibration import ReleaseFamily
from privmarket_fixtures.market import TASK, Market, key
from tests.unit.broker.test_api import PAGE_ROUTES, SETTINGS

PAGES = ("/", "/money", "/privacy", "/people", "/audit", "/tasks/{task}", "/rounds/{round}", "/tokens")
# role → status per page of PAGES
RULES = {
    "operator": (200, 200, 200, 200, 200, 200, 200, 200),
    "buyer": (200, 200, 200, 403, 403, 200, 200, 200),
    "seller": (200, 200, 200, 403, 403, 200, 200, 200),
    "auditor": (200, 200, 200, 403, 200, 200, 200, 200),
    "other buyer": (200, 200, 200, 403, 403, 404, 404, 200),
}


TASK_FIELDS = {"title": "digits", "mechanism": "pac", "budget": "1.5", "rounds": "3", "epsilon_max": "2"}
TASK_FIELDS |= {"bid_minutes": "1", "delivery_minutes": "1"}


def browser(market: Market, token: str) -> TestClient:
    http = TestClient(create_app(market.broker, SETTINGS), follow_redirects=True, raise_server_exceptions=False)
    page = http.get("/sign-in").text
    reply = http.post("/sign-in", data={"token": token, "key": key(), "mark": mark(page)})
    assert reply.status_code == 200, reply.text
    return http


def mark(page: str) -> str:
    return re.search(r'name="mark" value="([0-9a-f]+)"', page).group(1)  # type: ignore[union-attr]


@pytest.fixture
def tokens(market: Market) -> dict[str, str]:
    own = {"operator": market.operator, "buyer": market.buyer, "seller": market.sellers[0]}
    made = {role: market.broker.mint_token(actor, "full", key())["token"] for role, actor in own.items()}
    made["auditor"] = market.broker.register({"role": "auditor", "name": "eyes"}, key(), market.operator)["token"]
    made["other buyer"] = market.broker.register({"role": "buyer", "name": "other"}, key())["token"]
    return made


def test_who_sees_which_page(market: Market, tokens: dict[str, str]) -> None:
    round_id = market.open()
    market.bid_all(round_id, (0.2, 0.9071, 0.4))
    with market.broker.database.read() as connection:
        task_id = connection.exec_driver_sql("SELECT id FROM tasks").scalar()
    for role, expected in RULES.items():
        http = browser(market, tokens[role])
        for page, status in zip(PAGES, expected, strict=True):
            for query in ("", "?part=live"):
                reply = http.get(page.format(task=task_id, round=round_id) + query)
                assert reply.status_code == status, (role, page)
                assert "0.9071" not in reply.text  # a sealed bid of somebody else


def test_an_auditor_looks_and_changes_nothing(market: Market, tokens: dict[str, str]) -> None:
    """It finds the log, where parties of every role have their names, and no button of a round."""
    round_id = market.open()
    market.bid_all(round_id, (0.2, 0.9071, 0.4))
    auditor = browser(market, tokens["auditor"])
    for path in (f"/rounds/{round_id}", "/"):
        page = auditor.get(path).text
        assert '<a href="/audit"' in page
        assert "/people" not in page
    assert 'id="abort"' in browser(market, tokens["operator"]).get(f"/rounds/{round_id}").text
    assert not re.search(rf'action="/rounds/{round_id}', auditor.get(f"/rounds/{round_id}").text)
    market.finish(round_id)
    log = auditor.get("/audit").text
    assert "0.9071" in log
    assert "clinic 1" in log
    assert all(PARTY.fullmatch(f"{role}-{'0a' * 8}") for role in ROLES)
    assert not PARTY.fullmatch(f"stranger-{'0a' * 8}")


def test_nobody_sees_a_page_without_signing_in(market: Market) -> None:
    http = TestClient(create_app(market.broker, SETTINGS), follow_redirects=False)
    for page in PAGES:
        reply = http.get(page)
        assert (reply.status_code, reply.headers["location"]) == (303, "/sign-in")


def test_forged_forms_are_refused(market: Market, tokens: dict[str, str]) -> None:
    round_id = market.open()
    http = browser(market, tokens["buyer"])
    for forged in ("", "0" * 64):
        assert http.post(f"/rounds/{round_id}/close", data={"key": key(), "mark": forged}).status_code in (403, 422)
    assert market.broker.round_state(round_id) == "open"
    good = mark(http.get(f"/rounds/{round_id}").text)
    assert http.post(f"/rounds/{round_id}/close", data={"key": key(), "mark": good}).status_code == 200
    assert market.broker.round_state(round_id) == "settled"
    stranger = TestClient(create_app(market.broker, SETTINGS))
    assert (
        stranger.post("/sign-in", data={"token": tokens["buyer"], "key": "12345678", "mark": "0" * 64}).status_code
        == 403
    )


def test_every_form_needs_its_mark(market: Market, tokens: dict[str, str]) -> None:
    fields = {
        "token": "x",
        "role": "buyer",
        "name": "x",
        "valuation": "1",
        "epsilon": "1",
        "key": "12345678",
        "mark": "0" * 64,
    }
    fields |= {
        "direction": "deposit",
        "amount": "5",
        "party_id": "buyer-x",
        "reference": "x",
        "seller_id": "x",
        "verdict": "accept",
        "scope": "read",
        "days": "1",
        "accuracy": "50",
        "update_sha256": "ab" * 32,
        "kind": "round.closed",
        "about": "round-x",
        "said": "[{}]",
        "signatures": "[]",
        "reason": "x",
        **TASK_FIELDS,
    }
    known = {"task_id": "task-x", "round_id": "round-x", "step": "close"}
    known |= {"token_id": "token-x", "entry": "1", "verdict": "approve"}
    forms = [path.format(**known) for method, path in sorted(PAGE_ROUTES) if method == "POST"]
    assert len(forms) > 10
    for role in ("operator", "buyer", "seller"):
        http = browser(market, tokens[role])
        assert {path: http.post(path, data=fields).status_code for path in forms} == dict.fromkeys(forms, 403), role


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
    bad = http.post(
        f"/rounds/{round_id}/bid", data={"valuation": "lots", "epsilon": "1", "key": key(), "mark": good}
    )
    assert bad.status_code == 400
    assert "is not a number" in bad.text
    for typed, hint in (("5,5", "Write 5.5, with a point"), ("1,000,000", "Write digits, e.g. 0.5")):
        refused = http.post(
            f"/rounds/{round_id}/bid", data={"valuation": typed, "epsilon": "1", "key": key(), "mark": good}
        )
        assert refused.status_code == 400
        assert hint in refused.text
    cookie = http.get("/sign-in").request.headers["cookie"]
    assert tokens["seller"] not in cookie  # the session names the token that began it, and never holds it


def test_the_session_cookie_is_out_of_reach(market: Market, tokens: dict[str, str]) -> None:
    http = TestClient(create_app(market.broker, SETTINGS), follow_redirects=False)
    http.get("/sign-in")
    reply = http.post(
        "/sign-in", data={"token": tokens["buyer"], "key": key(), "mark": mark(http.get("/sign-in").text)}
    )
    attributes = reply.headers["set-cookie"].lower()
    assert "httponly" in attributes
    assert "samesite=strict" in attributes


def test_a_buyer_publishes_and_an_operator_books_money(market: Market, tokens: dict[str, str]) -> None:
    buyer, operator = browser(market, tokens["buyer"]), browser(market, tokens["operator"])
    page = buyer.post("/tasks", data={**TASK_FIELDS, "key": key(), "mark": mark(buyer.get("/").text)})
    assert "digits" in page.text
    assert [
        f"<b{more}>{shown}</b>" in page.text
        for more, shown in (("", "1.50 credits"), ("", "3"), (' class="name"', "pac"))
    ] == [True] * 3
    form = {"direction": "deposit", "party_id": market.buyer.party_id, "amount": "2.000001", "reference": "bank 7"}
    form |= {"key": key(), "mark": mark(operator.get("/people").text)}
    for _ in range(2):  # the same form posted twice, by a double click or a reload, acts once
        operator.post("/bookings", data=form)
        assert "52.000001" in operator.get("/people").text
    for bad in ("0", "-1", "1e99", "0.0000001", "nan", "lots"):
        for path in ("/bookings", "/bookings/confirm"):
            refused = operator.post(path, data={**form, "key": key(), "amount": bad})
            assert refused.status_code == 400, bad
    for name, bad in (("direction", "burn"), ("reference", " "), ("party_id", "buyer-none")):
        assert operator.post("/bookings/confirm", data={**form, name: bad}).status_code in (400, 404, 422), name
    for name, bad in (
        ("rounds", "0"),
        ("budget", "x"),
        ("mechanism", "no-such"),
        ("bid_minutes", "inf"),
        ("title", " "),
    ):
        refused = buyer.post(
            "/tasks", data={**TASK_FIELDS, name: bad, "key": key(), "mark": mark(buyer.get("/").text)}
        )
        assert refused.status_code == 400, name


def fields_of(page: str, action: str, which: int = 0) -> dict[str, str]:
    """What a browser without scripts sends for the form with this action, as the page fills it."""
    form = re.findall(rf'<form[^>]*action="{re.escape(action)}"[^>]*>(.*?)</form>', page, re.DOTALL)[which]
    return dict(re.findall(r'<input[^>]*name="(\w+)"[^>]*value="([^"]*)"', form))


def test_no_javascript_credits_the_chosen_party_after_a_confirmation(
    market: Market, tokens: dict[str, str]
) -> None:
    """The form named the first party of the list; a script put the chosen one in its place."""
    operator, chosen = browser(market, tokens["operator"]), market.sellers[2].party_id
    people = operator.get("/people").text
    assert re.search(r'<select[^>]*name="party_id"', people)
    assert f'<option value="{chosen}">clinic 2 (seller, {chosen[-4:]})</option>' in people
    typed = {**fields_of(people, "/bookings/confirm"), "party_id": chosen, "amount": "7.5", "reference": "bank 9"}
    shown = operator.post("/bookings/confirm", data=typed).text
    for word in ("7.50 credits", "clinic 2", "bank 9", "Credit", chosen):
        assert word in shown
    with market.broker.database.read() as connection:
        assert views.balances(connection, [chosen]) == {chosen: 0}  # nothing was booked yet
    booked = operator.post("/bookings", data=fields_of(shown, "/bookings")).text
    assert "bank 9" in booked
    with market.broker.database.read() as connection:
        everybody = [one.party_id for one in market.sellers]
        assert views.balances(connection, everybody) == {**dict.fromkeys(everybody, 0), chosen: 7_500_000}
    entry = re.search(r'action="/bookings/(\d+)/undo"', booked).group(1)  # type: ignore[union-attr]
    undo = {**fields_of(booked, f"/bookings/{entry}/undo"), "reason": "wrong clinic"}
    assert "undone by entry" in operator.post(f"/bookings/{entry}/undo", data=undo).text
    with market.broker.database.read() as connection:
        assert views.balances(connection, [chosen]) == {chosen: 0}


def test_a_form_without_a_choice_credits_nobody(market: Market, tokens: dict[str, str]) -> None:
    operator = browser(market, tokens["operator"])
    typed = {**fields_of(operator.get("/people").text, "/bookings/confirm"), "amount": "1", "reference": "x"}
    assert "party_id" not in typed  # no party is chosen beforehand
    assert operator.post("/bookings/confirm", data={**typed, "party_id": ""}).status_code in (404, 422)


def test_a_payout_is_asked_for_and_paid_on_the_pages(market: Market, tokens: dict[str, str]) -> None:
    seller, operator = browser(market, tokens["seller"]), browser(market, tokens["operator"])
    market.broker.deposit(market.operator, market.sellers[0].party_id, 3_000_000, key(), "sales")
    page = seller.get("/money").text
    asked = seller.post("/payouts", data={**fields_of(page, "/payouts"), "amount": "2"}).text
    assert "Payouts that you asked for" in asked
    page = operator.get("/money").text
    typed = {**fields_of(page, "/bookings/confirm"), "reference": "transfer 5"}
    shown = operator.post("/bookings/confirm", data=typed).text
    assert "Pay out" in shown
    assert "clinic 0" in shown
    operator.post("/bookings", data=fields_of(shown, "/bookings"))
    assert "Payouts that were asked for" not in operator.get("/money").text
    assert "transfer 5" in seller.get("/money").text


def test_a_second_operator_approves_on_the_page(market: Market, tokens: dict[str, str]) -> None:
    market.broker.second_approver_above_micro = 1_000_000
    market.broker.deposit(market.operator, market.buyer.party_id, 2_000_000, key(), "large one")
    made = market.broker.register({"role": "operator", "name": "second"}, key(), market.operator)
    first, second = browser(market, tokens["operator"]), browser(market, made["token"])
    assert "Approve" not in first.get("/money").text
    page = second.get("/money").text
    entry = re.search(r'action="/proposals/(\d+)/approve"', page).group(1)  # type: ignore[union-attr]
    done = second.post(f"/proposals/{entry}/approve", data=fields_of(page, f"/proposals/{entry}/approve")).text
    assert "wait for a second operator" not in done
    assert "large one" in done


def test_signing_out_ends_the_session_on_the_server(market: Market, tokens: dict[str, str], database: str) -> None:
    """A copy of the cookie was good until the session expired."""
    http = browser(market, tokens["seller"])
    copied = dict(http.cookies)
    elsewhere = Broker(database, clock=market.clock)
    other = TestClient(create_app(elsewhere, SETTINGS), cookies=copied)
    other.app.state.session_secret = http.app.state.session_secret  # type: ignore[attr-defined]
    thief = TestClient(http.app, cookies=copied)
    assert [one.get("/money").url.path for one in (thief, other)] == ["/money"] * 2
    http.post("/sign-out", data={"mark": mark(http.get("/money").text)})
    assert [one.get("/money").url.path for one in (thief, other)] == ["/sign-in"] * 2
    again = browser(market, tokens["seller"])  # the token itself is as good as before
    assert again.get("/money").url.path == "/money"
    elsewhere.database.close()


def test_cookies_are_secure_where_the_page_came_by_tls(market: Market) -> None:
    for scheme, expected in (("http", False), ("https", True)):
        http = TestClient(
            create_app(market.broker, SETTINGS), base_url=f"{scheme}://broker", follow_redirects=False
        )
        assert ("secure" in http.get("/sign-in").headers["set-cookie"].lower()) is expected


def steps(page: str) -> set[str]:
    """The steps that a page offers now."""
    return {step for step, rest in re.findall(r'data-when="(\w+)"([^>]*)>', page) if "hidden" not in rest}


def test_only_the_steps_that_apply_are_offered(market: Market, tokens: dict[str, str]) -> None:
    people = {role: browser(market, tokens[role]) for role in ("operator", "buyer", "seller")}
    round_id = market.open()
    market.bid_all(round_id)

    def offered() -> tuple[set[str], ...]:
        return tuple(steps(http.get(f"/rounds/{round_id}").text) for http in people.values())

    assert offered() == ({"abort"}, {"close", "abort"}, {"bid"})
    market.broker.close_round(market.buyer, round_id, key())
    assert offered() == (set(), {"report"}, {"deliver"})
    form = {
        "update_sha256": "AB" * 32,
        "key": key(),
        "mark": mark(people["seller"].get(f"/rounds/{round_id}").text),
    }
    assert (
        people["seller"].post(f"/rounds/{round_id}/deliver", data={**form, "update_sha256": "x"}).status_code == 400
    )
    assert "sent" in people["seller"].post(f"/rounds/{round_id}/deliver", data=form).text
    assert offered() == (set(), {"accept", "report"}, set())
    for name in market.winners(round_id):
        if name != market.sellers[0].party_id:
            market.broker.claim_delivery(market.seller(name), round_id, "ab" * 32, key())
    good = mark(people["buyer"].get(f"/rounds/{round_id}").text)
    people["buyer"].post(f"/rounds/{round_id}/accept", data={"key": key(), "mark": good})
    assert offered() == ({"settle"}, {"settle", "report"}, set())
    people["buyer"].post(f"/rounds/{round_id}/settle", data={"key": key(), "mark": good})
    assert offered() == (set(), {"report"}, set())


def test_a_round_whose_bidding_has_ended_does_not_say_that_nobody_sold(
    market: Market, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    round_id = market.open()
    market.bid_all(round_id)
    monkeypatch.setattr(clearing, "WORTH_A_PROCESS", 3)
    market.broker.close_round(market.buyer, round_id, key())
    for role in ("operator", "buyer", "seller"):
        page = browser(market, tokens[role]).get(f"/rounds/{round_id}").text
        assert "The auction is being computed." in page
        assert "Nobody sold" not in page
        assert "You sold nothing" not in page
        assert "close" not in steps(page)


def test_a_buyer_sees_no_losing_bid_in_a_plot_but_an_operator_does(market: Market, tokens: dict[str, str]) -> None:
    round_id = market.open()
    market.bid_all(round_id, (0.2, 0.9071, 0.4))
    market.broker.close_round(market.buyer, round_id, key())
    seen = {role: browser(market, tokens[role]).get(f"/rounds/{round_id}").text for role in ("buyer", "seller")}
    assert all("0.9071" not in page for page in seen.values())
    assert "Price per unit of ε against ε" in seen["buyer"]
    assert "Price per unit of ε against ε" not in seen["seller"]
    assert "asked 0.9071" in browser(market, tokens["operator"]).get(f"/rounds/{round_id}").text


def test_what_waits_comes_first_and_the_buyer_judges_each_update(market: Market, tokens: dict[str, str]) -> None:
    people = {role: browser(market, tokens[role]) for role in ("operator", "buyer", "seller")}
    round_id = market.open()
    market.bid_all(round_id)
    assert "closes in 60 s" in people["seller"].get("/").text
    market.broker.close_round(market.buyer, round_id, key())
    assert "claim your delivery" in people["seller"].get("/").text
    market.deliver(round_id)
    home = people["buyer"].get("/").text
    assert "updates to accept or reject: 2; those not answered in time are accepted" in home
    assert "in 2 min" in home
    page = people["buyer"].get(f"/rounds/{round_id}").text
    own = market.sellers[0].party_id
    fields = {"seller_id": own, "verdict": "reject", "key": key(), "mark": mark(page)}
    assert people["buyer"].post(f"/rounds/{round_id}/judge", data=fields).status_code == 400  # no reason given
    seen = people["buyer"].post(f"/rounds/{round_id}/judge", data={**fields, "reason": "wrong shape"})
    assert "rejected: wrong shape" in seen.text
    assert "dispute it" in people["seller"].get("/").text
    form = {"reason": "it is right", "key": key(), "mark": mark(people["seller"].get("/tokens").text)}
    assert "disputed: it is right" in people["seller"].post(f"/rounds/{round_id}/dispute", data=form).text
    assert "ruling: 1;" in people["operator"].get("/").text
    fields = {"seller_id": own, "verdict": "pay", "reason": "it is", "key": key()}
    ruled = people["operator"].post(
        f"/rounds/{round_id}/rule", data={**fields, "mark": mark(people["operator"].get("/people").text)}
    )
    assert "ruled: pay" in ruled.text


def test_tokens_are_made_and_ended_on_their_page(market: Market, tokens: dict[str, str]) -> None:
    http = browser(market, tokens["seller"])
    form = {"scope": "read", "days": "2", "key": key(), "mark": mark(http.get("/tokens").text)}
    page = http.post("/tokens", data=form).text
    token = re.search(r"pm_[0-9a-f]{64}", page).group(0)  # type: ignore[union-attr]
    reader = market.broker.authenticate(token)
    assert reader.scope == "read"
    assert token not in http.get("/tokens").text
    http.post(f"/tokens/{reader.token_id}/revoke", data={"key": key(), "mark": form["mark"]})
    assert market.broker.authenticate(tokens["seller"])
    with pytest.raises(UnauthenticatedError):
        market.broker.authenticate(token)
    expiring = market.broker.mint_token(market.buyer, "full", key(), lifetime_seconds=60)["token"]
    session = browser(market, expiring)
    market.clock.now_ms += 61_000
    assert "/sign-in" in str(session.get("/").url)  # a session ends with the token that began it


def test_the_log_is_searched_by_kind_and_id_and_shows_names(market: Market, tokens: dict[str, str]) -> None:
    http = browser(market, tokens["operator"])
    found = http.get(f"/audit?kind=party.registered&about={market.buyer.party_id}").text
    assert (found.count("<b>party registered</b>"), "lab" in found) == (1, True)
    assert http.get("/audit?about=%00").status_code == 400


def test_a_bid_is_previewed_before_it_is_sent(
    market: Market, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    round_id = market.open()
    seller = browser(market, tokens["seller"])

    def preview(price: str, epsilon: str) -> Any:
        return seller.get(f"/rounds/{round_id}/preview", params={"valuation": price, "epsilon": epsilon})

    shown = preview("0.5", "2").text
    assert "paid at least 1.00 credits" in shown
    assert "falls from 100 % to" in shown
    assert "is right at most" in shown
    monkeypatch.setattr(wallets, "pays_what_is_asked", lambda name: False)
    assert "may be paid less than the 1.00 credits" in preview("0.5", "2").text
    assert [preview("1", bad).status_code for bad in ("0", "-1", "99", "x", "")] == [400] * 5


def test_a_buyer_sees_records_and_the_accuracy_of_its_model(market: Market, tokens: dict[str, str]) -> None:
    task = market.broker.publish_task(market.buyer, TASK, key())
    buyer = browser(market, tokens["buyer"])
    for accuracy in ("70", "81.5"):
        round_id = str(market.broker.open_round(market.buyer, task["id"], key())["id"])
        market.bid_all(round_id)
        market.finish(round_id)
        page = buyer.get(f"/rounds/{round_id}").text
        fields = {"mark": mark(page), "key": key(), "accuracy": accuracy}
        assert buyer.post(f"/rounds/{round_id}/progress", data=fields, follow_redirects=False).status_code == 303
    assert "2 of 2 delivered" in buyer.get(f"/rounds/{round_id}").text
    assert "Score of the model" in buyer.get(f"/tasks/{task['id']}").text
    seller = browser(market, tokens["seller"]).get(f"/tasks/{task['id']}").text
    assert "Score of the model" not in seller
    assert "lab, who bought" in seller


def test_the_log_is_searched_by_name(market: Market, tokens: dict[str, str]) -> None:
    found = browser(market, tokens["operator"]).get("/audit", params={"about": "clinic 1"}).text
    assert market.sellers[1].party_id in found
    assert market.sellers[2].party_id not in found


def test_a_seller_that_sold_nothing_sees_no_deadline_of_others(market: Market, tokens: dict[str, str]) -> None:
    round_id = market.open()
    market.bid_all(round_id, (9.0, 0.3, 0.4))
    assert "Bids until" in browser(market, tokens["seller"]).get(f"/rounds/{round_id}").text
    market.broker.close_round(market.buyer, round_id, key())
    winner = market.broker.mint_token(market.seller(market.winners(round_id)[0]), "full", key())["token"]
    words = ("Deliver until", "Review until", "Dispute until", "Rule until")
    lost, won = (browser(market, one).get(f"/rounds/{round_id}").text for one in (tokens["seller"], winner))
    assert "Bidding ended" in lost
    assert [word in lost for word in words] == [False] * 4
    assert [word in won for word in words] == [True] * 4


def test_homes_show_what_each_role_looks_for(market: Market, tokens: dict[str, str]) -> None:
    people = {role: browser(market, tokens[role]) for role in ("operator", "buyer", "seller")}
    assert "all of ε = 10" in people["seller"].get("/").text
    task = market.broker.publish_task(market.buyer, TASK, key())
    for score in (0.5, 0.62):
        round_id = str(market.broker.open_round(market.buyer, task["id"], key())["id"])
        market.bid_all(round_id)
        market.finish(round_id)
        market.broker.report_progress(market.buyer, round_id, score, key())
    seller = people["seller"].get("/").text
    assert re.search(r"about \d+ more sales", seller)
    assert "% left" not in seller
    assert "Highest price of a unit of ε" in people["seller"].get(f"/tasks/{task['id']}").text
    assert "Earned in all" in people["seller"].get("/money").text
    assert "62.0 %" in people["buyer"].get("/").text
    home = people["operator"].get("/").text
    assert "no open disputes" in home
    assert "every deadline was met" in home
    round_id = market.open(bid_seconds=1)
    market.clock.now_ms += 62_000
    assert "1 rounds are past their deadline" in people["operator"].get("/").text  # nobody ticked


@pytest.mark.parametrize("family", [ReleaseFamily(0.01, 1, 1e-5), ReleaseFamily(1.0, 1, 1e-5)])
def test_more_sales_like_the_last_as_counted_one_by_one(family: ReleaseFamily) -> None:
    assert wallets.sales_like_last(WalletRecord(8.0, 1e-5)) is None
    event = family.event(1.0)
    record = WalletRecord(8.0, 1e-5, (event,))
    wallet = wallets.restore([record])
    count = 0
    while wallet.can_spend([event])[0]:
        wallet.spend([event])
        count += 1
    assert 1 < count == wallets.sales_like_last(record)
    assert wallets.sales_like_last(WalletRecord(8.0, 1e-5, (event,) * (count + 1))) == 0


def test_details_of_the_log_are_told_in_words() -> None:
    details = canonical(
        {"seller_id": "seller-1", "paid_micro": 1_234_567, "bid_deadline_ms": 0, "usable": True, "fault": None,
         "epsilon": 0.1 + 0.2, "nonce": "ab"}
    )  # fmt: skip
    told = details_in_words(details, {"seller-1": "North clinic"})
    assert [(name, str(value)) for name, value in told] == [
        ("bid deadline", "–"),
        ("epsilon", "0.3"),
        ("nonce", "ab"),
        ("paid", '<span title="1.234567">1.23</span>'),
        ("seller", "North clinic"),
        ("usable", "yes"),
    ]
    assert details_in_words("sealed until the auction", {}) == [("", "sealed until the auction")]


def test_every_page_says_how_far_the_log_is_and_who_witnessed_it(market: Market) -> None:
    session = browser(market, market.broker.mint_token(market.buyer, "full", key())["token"])
    size = market.broker.database.newest_head().size
    assert f"log head {size}, not witnessed" in session.get("/money").text
