"""Parties that sign everything: over HTTP, with `BrokerClient`, and what a broker without the key cannot invent."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from privmarket.broker import _replay
from privmarket.broker._api import ServiceSettings, create_app
from privmarket.broker._client import BrokerCallError, BrokerClient, LogForkedError
from privmarket.broker._errors import BrokerError, ConflictError, ForbiddenError
from privmarket.broker._routes import Kind
from privmarket.broker._signatures import SigningKey
from privmarket.broker._statements import STATEMENTS
from privmarket.broker._verify import verify
from privmarket_fixtures.market import TASK, Market, key, make_market

SETTINGS = ServiceSettings(tick_seconds=0, requests_per_second=1e6, burst=1e6)


def client_of(market: Market, who: str, role: str, **more: Any) -> BrokerClient:
    """A registered party that signs everything."""
    http = TestClient(create_app(market.broker, SETTINGS), base_url="http://broker")
    operator = BrokerClient(
        "http://broker", market.broker.mint_token(market.operator, "full", key())["token"], http=http
    )
    return operator.register(role, who, key=SigningKey.from_seed(who.encode().ljust(32)[:32]), **more)


@pytest.fixture
def parties(market: Market) -> dict[str, BrokerClient]:
    found = {"buyer": client_of(market, "lab", "buyer"), "arbiter": client_of(market, "court", "arbiter")}
    for name in ("north", "south", "lake"):
        found[name] = client_of(market, name, "seller", cap_epsilon=10.0, delta=1e-5)
    market.broker.deposit(market.operator, str(found["buyer"].me()["id"]), 9_000_000, key())
    return found


def played(parties: dict[str, BrokerClient]) -> str:
    """A round with an acceptance, a dispute and a ruling, settled; its id."""
    buyer, arbiter = parties["buyer"], parties["arbiter"]
    terms = {name: value for name, value in TASK.items() if name not in ("title", "budget_micro")}
    task = buyer.publish_task("digits", 1_000_000, **{**terms, "arbiter_id": arbiter.me()["id"]})
    round_id = str(buyer.open_round(task["id"])["id"])
    for name, valuation in (("north", 0.2), ("south", 0.3), ("lake", 0.9)):
        parties[name].bid(round_id, valuation, 0.5)
    buyer.close_round(round_id)
    winners = {str(one["seller_id"]) for one in buyer.awards(round_id)}
    names = {str(parties[name].me()["id"]): name for name in ("north", "south", "lake")}
    for winner in winners:
        parties[names[winner]].claim_delivery(round_id, "ab" * 32)
    rejected = min(winners)
    buyer.give_receipts(round_id, {one: "no good" if one == rejected else None for one in winners})
    parties[names[rejected]].dispute(round_id, "it is good")
    arbiter.rule(round_id, rejected, True, "it is")
    buyer.settle_round(round_id)
    buyer.report_progress(round_id, 0.5)
    return round_id


def test_every_statement_is_signed_and_the_log_is_clean(market: Market, parties: dict[str, BrokerClient]) -> None:
    round_id = played(parties)
    other = parties["buyer"].open_round(str(next(parties["buyer"].tasks())["id"]))
    parties["buyer"].abort_round(str(other["id"]), "changed my mind")
    seller = next(
        one for one in parties.values() if one.me()["role"] == "seller" and one.me()["balance_micro"] > 1000
    )
    seller.request_payout(1000)
    me = str(seller.me()["id"])
    with pytest.raises(ConflictError, match="has not asked for a payout of 999"):
        market.broker.withdraw(market.operator, me, 999, key())
    market.broker.withdraw(market.operator, me, 1000, key())
    with pytest.raises(ConflictError, match="has not asked"):
        market.broker.withdraw(market.operator, me, 1000, key())
    assert verify(market.broker).differences == ()
    with market.broker.database.read() as connection:
        query = "SELECT kind, details FROM log WHERE substr(actor, 1, 8) <> 'operator' AND actor <> 'system'"
        made = [(str(kind), str(details)) for kind, details in connection.exec_driver_sql(query)]
    assert {kind for kind, _ in made if kind in STATEMENTS} == set(STATEMENTS)
    assert all('"signature":' in details for kind, details in made if kind in STATEMENTS)
    assert {one["kind"] for one in seller.my_entries()} >= {"bid.placed", "delivery.claimed", "money.requested"}
    assert all(one["actor"] == me for one in seller.my_entries())
    assert round_id


def test_without_the_key_nothing_can_be_said_in_ones_name(market: Market, parties: dict[str, BrokerClient]) -> None:
    """A stolen token, or a dashboard without the key, says nothing for a party that signs everything."""
    buyer = parties["buyer"]
    stolen = BrokerClient("http://broker", buyer.token, http=buyer._http)
    with pytest.raises(BrokerCallError, match="signs everything"):
        stolen.publish_task("digits", 1_000_000)
    forger = BrokerClient("http://broker", buyer.token, http=buyer._http, key=SigningKey.from_seed(b"\x01" * 32))
    with pytest.raises(BrokerCallError, match="is not signed by its key"):
        forger.publish_task("digits", 1_000_000)
    with pytest.raises(BrokerCallError, match="signs everything"):
        BrokerClient("http://broker", parties["north"].token, http=buyer._http).request_payout(5)
    assert verify(market.broker).differences == ()


def test_a_party_chooses_what_it_signs(market: Market) -> None:
    own = SigningKey.from_seed(b"\x21" * 32)
    for fields, signs in (
        ({}, "nothing"),
        ({"public_key": own.public}, "everything"),
        ({"public_key": own.public, "signs": "bids"}, "bids"),
    ):
        made = market.broker.register({"role": "buyer", "name": "b", **fields}, key())
        assert made["signs"] == signs
    for wrong in ({"signs": "everything"}, {"public_key": own.public, "signs": "nothing"}):
        with pytest.raises(BrokerError, match="signs is"):
            market.broker.register({"role": "buyer", "name": "b", **wrong}, key())
    market.broker.change_key(market.buyer, own.public, key())
    with pytest.raises(ForbiddenError, match="signs everything"):
        market.broker.publish_task(market.buyer, TASK, key())
    assert verify(market.broker).differences == ()


def test_the_form_names_every_kind_of_statement() -> None:
    assert set(Kind.__args__) == set(STATEMENTS)


def test_everybody_who_took_part_can_run_the_auction_again(
    market: Market, parties: dict[str, BrokerClient]
) -> None:
    round_id = played(parties)
    auditor = client_of(market, "eyes", "auditor")
    for who in ("north", "buyer", "arbiter"):
        found = _replay.replay(parties[who], round_id)
        assert found.problems == ()
        assert (found.bids, found.sellers) == (3, 2)
    assert _replay.replay(auditor, round_id).problems == ()
    stranger = client_of(market, "stranger", "seller", cap_epsilon=10.0, delta=1e-5)
    with pytest.raises(BrokerCallError, match="that you took part in"):
        _replay.replay(stranger, round_id)
    open_round = market.open()
    with pytest.raises(BrokerCallError, match="once it has ended"):
        _replay.replay(auditor, open_round)


def test_a_replay_notices_other_results_and_entries_that_are_not_in_the_log(
    market: Market, parties: dict[str, BrokerClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    round_id = played(parties)
    honest = BrokerClient.read

    def tampered(change: Any) -> Any:
        def read(self: BrokerClient, path: str, query: Any = None) -> Any:
            answer = honest(self, path, query)
            if path.endswith("/entries"):
                change(answer)
            return answer

        return read

    def paid_more(answer: Any) -> None:
        for item in answer["items"]:
            if item["entry"][3] == "award.made":
                item["entry"][5] = item["entry"][5].replace('"payment_micro":', '"payment_micro":1')

    monkeypatch.setattr(BrokerClient, "read", tampered(paid_more))
    with pytest.raises(LogForkedError, match="is not in the log"):
        _replay.replay(parties["north"], round_id)
    monkeypatch.setattr(_replay, "_require_included", lambda *_: None)
    assert any("another result" in one for one in _replay.replay(parties["north"], round_id).problems)

    def without_a_bid(answer: Any) -> None:
        bids = [item for item in answer["items"] if item["entry"][3] == "bid.placed"]
        answer["items"].remove(bids[0])

    monkeypatch.setattr(BrokerClient, "read", tampered(without_a_bid))
    assert _replay.replay(parties["buyer"], round_id).problems


def test_a_market_where_everybody_signs(tmp_path: Any) -> None:
    market = make_market(f"sqlite:///{tmp_path}/m.db", signing=True)
    round_id = market.open()
    market.bid_all(round_id)
    market.finish(round_id)
    assert verify(market.broker).differences == ()
    market.broker.database.close()
