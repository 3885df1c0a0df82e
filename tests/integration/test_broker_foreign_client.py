"""A client written from the API's description alone plays a whole market: it imports nothing of privmarket."""

from __future__ import annotations

import hashlib
import json
import secrets
import uuid
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi.testclient import TestClient

from privmarket.broker._api import ServiceSettings, create_app
from privmarket.broker._verify import verify
from privmarket_fixtures.market import Market, make_market


class Stranger:
    """Knows /openapi.json, and what its texts say about tokens, keys, commitments and proofs."""

    def __init__(self, http: TestClient, token: str = "") -> None:
        self.http, self.token = http, token
        self.document = http.get("/openapi.json").json()

    def call(self, operation: str, body: Any = None, **names: str) -> Any:
        method, path = next(
            (verb, path)
            for path, verbs in self.document["paths"].items()
            for verb, about in verbs.items()
            if about["operationId"].startswith(operation)
        )
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        if method != "get":
            headers["Idempotency-Key"] = str(uuid.uuid4())
        reply = self.http.request(method, path.format(**names), json=body, headers=headers)
        assert reply.is_success, (operation, reply.status_code, reply.text)
        return reply.json()

    def enter(self, **form: Any) -> Stranger:
        token = secrets.token_hex(32)
        self.call("register", {**form, "token_sha256": hashlib.sha256(token.encode()).hexdigest()})
        return Stranger(self.http, token)


def text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.fixture
def market(tmp_path: Any) -> Market:
    return make_market(f"sqlite:///{tmp_path}/m.db")


def test_a_stranger_plays_a_whole_market(market: Market) -> None:
    http = TestClient(create_app(market.broker, ServiceSettings(tick_seconds=0)))
    operator = Stranger(http, market.broker.new_operator_token())
    buyer = operator.enter(role="buyer", name="lab")
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw().hex()
    wallet = {"cap_epsilon": 8.0, "delta": 1e-5, "signs": "bids"}
    seller = operator.enter(role="seller", name="clinic", public_key=public, **wallet)
    me, lab = seller.call("me")["id"], buyer.call("me")["id"]
    operator.call("deposit", {"amount_micro": 5_000_000}, party_id=lab)
    rules = buyer.call("list_mechanisms")["items"]
    assert buyer.call("one_mechanism", name=rules[0])["settings"] is not None
    terms = {"title": "digits", "budget_micro": 1_000_000, "sealing": "bidder", "buyer_may_close": True}
    task = buyer.call("publish_task", {**terms, "mechanism": "proportional-share"})
    round_id = buyer.call("open_round", task_id=task["id"])["id"]
    # One bid alone sells nothing under this rule: a second seller of the same making.
    other_key = Ed25519PrivateKey.generate()
    other_public = other_key.public_key().public_bytes_raw().hex()
    other = operator.enter(role="seller", name="lab 2", public_key=other_public, **wallet)
    openings = {}
    for who, signing, price in ((seller, key, 0.2), (other, other_key, 0.4)):
        name = who.call("me")["id"]
        numbers = {"valuation": price, "epsilon": 1.0, "data_size": 600.0, "accuracy": None}
        nonce = secrets.token_hex(16)
        committed = hashlib.sha256(text([round_id, name, numbers, nonce])).hexdigest()
        signature = signing.sign(f"privmarket bid v1\n{round_id}\n{name}\n{committed}\n".encode()).hex()
        taken = who.call("place_bid", {"commitment": committed, "signature": signature}, round_id=round_id)
        openings[name] = {**numbers, "nonce": nonce}
        proof = who.call("log_proof", seq=str(taken["entry"]))
        assert proof["entry"][0] == taken["entry"]
    assert buyer.call("close_round", round_id=round_id)["state"] == "revealing"
    for who in (seller, other):
        who.call("reveal", openings[who.call("me")["id"]], round_id=round_id)
    assert buyer.call("close_round", round_id=round_id)["state"] == "cleared"
    awards = buyer.call("list_awards", round_id=round_id)["items"]
    for who in (seller, other):
        if who.call("me")["id"] in {award["seller_id"] for award in awards}:
            who.call("claim_delivery", {"update_sha256": "ab" * 32}, round_id=round_id)
    buyer.call("give_receipts", {"receipts": {award["seller_id"]: None for award in awards}}, round_id=round_id)
    assert buyer.call("settle_round", round_id=round_id)["state"] == "settled"
    assert seller.call("outcome", round_id=round_id)["sold_epsilon"] > 0
    assert seller.call("me")["balance_micro"] > 0
    assert me in {award["seller_id"] for award in awards}
    assert verify(market.broker).differences == ()
