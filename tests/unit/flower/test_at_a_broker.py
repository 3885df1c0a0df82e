"""The auction at a broker: sealed bids go there, money and wallets are there, and the books agree."""

from dataclasses import replace

import numpy as np
import pytest
from fastapi.testclient import TestClient

import privmarket as pm
from privmarket.broker import _wallets as wallets
from privmarket.broker._api import ServiceSettings, create_app
from privmarket.broker._broker import Broker
from privmarket.broker._client import BrokerClient
from privmarket.broker._signatures import SigningKey
from privmarket.broker._verify import verify
from privmarket.errors import ConfigurationError
from privmarket.flower import _refusals as refusals, _sum_seller as sum_seller, _wire as wire
from privmarket.secagg import AdvertisedKeys, Invitation, KeyList, SigningIdentity
from privmarket.simulation._config import FederationConfig, Training
from privmarket.simulation._federation import run as simulate
from privmarket_fixtures.market import BROKER_KEY, Clock
from tests.unit.flower.toy import CLIENTS, VALUATIONS, Wire, client, partition, server, train


def make_service(tmp_path, clock=None):
    """A broker, a funded buyer, and a seller per client."""
    broker = Broker(f"sqlite:///{tmp_path / 'market.db'}", clock=clock, key=BROKER_KEY)
    token = broker.first_operator()
    api = create_app(broker, ServiceSettings())

    def connect(token, key=None):
        return BrokerClient("http://broker", token, http=TestClient(api, base_url="http://broker"), key=key)

    operator = connect(token)
    buyer = operator.register("buyer", "lab")
    operator.deposit(buyer.me()["id"], 100_000_000)
    sellers = [
        operator.register("seller", f"clinic {i}", cap_epsilon=8.0, delta=1e-5).token for i in range(CLIENTS)
    ]
    return broker, connect, buyer, sellers


@pytest.fixture
def service(tmp_path):
    return make_service(tmp_path)


def play(service, spoil=lambda weights, job: train(weights, job), wallet="unlimited", **options):
    _, connect, buyer, sellers = service
    app = client(spoil, broker=lambda context: connect(sellers[partition(context)]), wallet=wallet)
    grid = Wire(app)
    market = server(broker=connect(buyer.token), deadline_seconds=30.0, bid_seconds=30.0, **options)
    return pm.flower.run_in_process(market, app, CLIENTS, grid=grid), grid


def test_a_run_with_the_auction_at_a_broker(service):
    broker, connect, buyer, sellers = service
    result, grid = play(service)
    local = pm.flower.run_in_process(server(), client(), CLIENTS)
    # The same money as in process, under the names that the broker gave.
    assert sorted(result.records[0].paid_micro.values()) == sorted(local.records[0].paid_micro.values())
    balances = {c.me()["id"]: c.me()["balance_micro"] for c in map(connect, sellers)}
    assert {c: b for c, b in balances.items() if b} == result.paid_micro
    assert buyer.me()["balance_micro"] == 100_000_000 - sum(result.paid_micro.values())
    assert verify(broker).difference is None
    # No bid passes the server: what clients answer holds no price.
    for reply in grid.answered:
        if reply.metadata.message_type == wire.BID:
            assert not wire.take(reply.content, wire.Answer).bids
            assert not set(VALUATIONS) & set(reply.content["privmarket-offer"].values())


def test_a_total_is_shared_evenly_and_the_records_say_what_the_broker_had_in_escrow(service):
    """A task has one budget: nothing is handed on to later rounds, neither there nor in this run's records."""
    broker, _, buyer, _ = service

    def spoil(weights, job):
        update = train(weights, job)
        if job.sale.number == 0:  # a round that pays nothing leaves its money to the rounds to come
            update = {name: np.full_like(array, np.nan) for name, array in update.items()}
        return update

    result, _ = play(service, spoil, rounds=3, budget=50.0, total_budget=10.0)
    (task,) = buyer.tasks()
    assert (task["budget_micro"], task["rounds"]) == (3_333_333, 3)
    escrow = {one["number"]: one["budget_micro"] for one in buyer.rounds(task["id"])}
    assert escrow == dict.fromkeys(range(3), 3_333_333)
    assert {r.number: r.spent_micro + r.refunded_micro for r in result.records} == escrow
    assert result.records[0].spent_micro == 0
    assert 0 < sum(r.spent_micro for r in result.records) <= 10_000_000
    assert "of 10 offered in 3 rounds" in result.summary()[-1]
    assert verify(broker).difference is None


def test_who_does_not_deliver_is_not_paid_by_the_broker(service):
    broker, connect, _, sellers = service

    def spoil(weights, job):
        if job.client == "0":
            raise RuntimeError("gone")
        update = train(weights, job)
        if job.client == "1":
            update["a"] = update["a"][:1]
        return update

    result, _ = play(service, spoil, rounds=1)
    poor = {connect(token).me()["id"] for token in sellers[:2]}
    assert set(result.records[0].dropped) == poor
    assert all(connect(token).me()["balance_micro"] == 0 for token in sellers[:2])
    assert verify(broker).difference is None


def test_without_a_claim_the_broker_gives_back_what_the_clients_own_file_keeps(tmp_path):
    """The broker's clause of the rule in `privacy._wallet_store`, and the stricter wallet on the client's disk."""

    def spoil(weights, job):
        if job.client == "0":
            raise RuntimeError("gone")
        return train(weights, job)

    clock = Clock()
    service = make_service(tmp_path, clock)
    broker, connect, buyer, sellers = service
    files = [pm.privacy.WalletFile(tmp_path / f"{i}.jsonl", 8.0) for i in range(CLIENTS)]
    _, grid = play(service, spoil, wallet=lambda context: files[partition(context)], rounds=1)
    round_id = grid.orders()[0][1].broker_round
    silent, other = (connect(token).me()["id"] for token in sellers[:2])
    charge = lambda: {one["seller_id"]: one["charge"] for one in buyer.awards(round_id)}  # noqa: E731
    assert charge()[silent] == "reserved"  # it might still claim
    clock.now_ms += 86_400_000
    buyer.settle_round(round_id)
    assert (charge()[silent], charge()[other]) == ("void", "charged")
    for spent_at_broker, file, released in ((0, files[0], False), (1, files[1], True)):
        (sale,) = file.statement()
        assert (len(file.spent()), sale["released"], sale.get("void")) == (1, released, None)
        with broker.database.read() as connection:
            seller = connect(sellers[spent_at_broker]).me()["id"]
            assert len(wallets.of_sellers(connection, [seller])[seller].events) == spent_at_broker


def test_a_broker_without_a_token(monkeypatch):
    monkeypatch.delenv("PRIVMARKET_BROKER_TOKEN", raising=False)
    with pytest.raises(ConfigurationError, match="no token"):
        pm.flower.run_in_process(server(broker="http://127.0.0.1:9"), client(), CLIENTS)


# Aggregate trust: the broker knows who a round's sellers are, so a sum cannot be filled with strangers.

SUMS = FederationConfig(
    clients=CLIENTS,
    rounds=1,
    budget=4.0,
    evaluate_every=1,
    seed=5,
    trust="aggregate",
    mechanism="ration",
    mechanism_settings={"unit_price": 0.9},
    training=Training(model="logistic"),
)


@pytest.fixture
def with_keys(service):
    """The service's operator's doing: six sellers more, each with a registered key."""
    broker, connect, buyer, _ = service
    keys = [SigningKey.from_seed(bytes([i + 1]) * 32) for i in range(CLIENTS)]
    anyone = connect(None)
    tokens = [
        anyone.register("seller", f"keyed {i}", cap_epsilon=20.0, delta=1e-5, key=key).token
        for i, key in enumerate(keys)
    ]
    return broker, connect, buyer, list(zip(tokens, keys, strict=True))


def sum_at(service, tamper=None, keyed=True):
    _, connect, buyer, sellers = service
    app = pm.flower.federation_client(SUMS)

    def seller(context):
        token, key = sellers[partition(context)]
        return connect(token, key if keyed else None)

    app.seller.broker = seller
    grid = Wire(app, tamper=tamper)
    market = pm.flower.federation_server(
        SUMS,
        broker=connect(buyer.token),
        mechanism=SUMS.mechanism,
        mechanism_settings=SUMS.mechanism_settings,
        deadline_seconds=30.0,
        bid_seconds=30.0,
    )
    return pm.flower.run_in_process(market, app, CLIENTS, grid=grid), grid


def refused(grid):
    return {reason for context in grid.contexts.values() for reason in refusals.refusals(context)}


def test_a_secure_sum_with_the_auction_at_a_broker(with_keys):
    broker, connect, buyer, sellers = with_keys
    result, grid = sum_at(with_keys)
    plain = simulate(SUMS)
    assert refused(grid) == set()
    assert sorted(result.records[0].paid_micro.values()) == sorted(plain.records[0].paid_micro.values())
    # The same integers; Σ w is added up in the order of the broker's names.
    np.testing.assert_allclose(result.weights["weights"], plain.weights, rtol=1e-6, atol=1e-9)
    balances = {c.me()["id"]: c.me()["balance_micro"] for c in (connect(token) for token, _ in sellers)}
    assert {c: b for c, b in balances.items() if b} == result.paid_micro
    (task,) = buyer.tasks()
    assert (task["trust"], task["honest_share"]) == ("aggregate", SUMS.honest_share)
    assert verify(broker).difference is None


def swapped(message, own, sign):
    """A server with a key of its own in place of one seller's: in the terms, or only in the list of keys."""
    sent = wire.take_sum(message.content) if wire.SUM in message.content else None
    if isinstance(sent, Invitation):
        members = sorted([*sent.terms.members[1:], bytes.fromhex(own.public)])
        wire.put_sum(message.content, Invitation(replace(sent.terms, members=tuple(members))))


def forged(message, own, sign):
    """A server that signs keys of its own for the first seller of the sum."""
    sent = wire.take_sum(message.content) if wire.SUM in message.content else None
    if isinstance(sent, KeyList):
        first = replace(sent.keys[0], mask_key=SigningIdentity.generate().public_key)
        signature = bytes.fromhex(own.sign(first.statement)) if sign else first.signature
        wire.put_sum(message.content, KeyList(sent.sum, (replace(first, signature=signature), *sent.keys[1:])))


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize(("attack", "sign"), [(swapped, False), (forged, False), (forged, True)])
def test_a_server_that_swaps_a_key_of_the_sum_is_caught(with_keys, attack, sign, registered):
    """The broker says who sold; keys that none of these signed for this round are noticed by every other seller."""
    _, connect, _, _ = with_keys
    own = SigningKey.from_seed(bytes([77]) * 32)
    if registered:  # a party that sold nothing
        connect(None).register("seller", "the server's own", cap_epsilon=8.0, delta=1e-5, key=own)
    result, grid = sum_at(with_keys, lambda message: attack(message, own, sign))
    assert refused(grid) == {"cohort"}
    assert result.paid_micro == {}
    assert result.releases == {}  # refused before any order: nobody has spent anything


def test_without_that_check_a_stranger_is_in_the_sum(with_keys, monkeypatch):
    """Sellers that do not ask the broker go on with a key of the server's own among them."""
    monkeypatch.setattr(sum_seller.Roster, "check_members", lambda *_: None)
    own = SigningKey.from_seed(bytes([77]) * 32)
    _, grid = sum_at(with_keys, lambda message: swapped(message, own, False))
    assert refused(grid) <= {"cohort"}  # the one whose key is missing
    replies = [wire.take_sum(r.content) for r in grid.answered if wire.SUM in r.content]
    assert any(isinstance(reply, AdvertisedKeys) for reply in replies)


def test_sellers_without_a_registered_key_do_not_bid_for_a_sum(with_keys):
    result, grid = sum_at(with_keys, keyed=False)
    assert refused(grid) == {"broker"}
    assert result.paid_micro == {}


def test_a_call_under_another_trust_than_the_task_s_is_refused(with_keys):
    def tamper(message):
        if wire.NAMES[wire.Terms] in message.content:
            message.content["privmarket-call"]["trust"] = "local"

    _, grid = sum_at(with_keys, tamper)
    assert refused(grid) == {"award"}
