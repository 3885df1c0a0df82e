"""The auction at a broker: sealed bids go there, money and wallets are there, and the books agree."""

import pytest
from fastapi.testclient import TestClient

import privmarket as pm
from privmarket.broker.api import ServiceSettings, create_app
from privmarket.broker.broker import Broker
from privmarket.broker.http_client import BrokerClient
from privmarket.broker.verify import verify
from privmarket.errors import ConfigurationError
from privmarket.flower import wire
from tests.unit.flower.toy import CLIENTS, VALUATIONS, Wire, client, partition, server, train


@pytest.fixture
def service(tmp_path):
    """A broker, a funded buyer, and a seller per client."""
    broker = Broker(f"sqlite:///{tmp_path / 'market.db'}")
    token = broker.first_operator()
    api = create_app(broker, ServiceSettings())
    connect = lambda token: BrokerClient("http://broker", token, http=TestClient(api, base_url="http://broker"))  # noqa: E731
    operator = connect(token)
    buyer = operator.register("buyer", "lab")
    operator.deposit(buyer.me()["id"], 100_000_000)
    sellers = [
        operator.register("seller", f"clinic {i}", cap_epsilon=8.0, delta=1e-5).token for i in range(CLIENTS)
    ]
    return broker, connect, buyer, sellers


def play(service, spoil=lambda weights, job: train(weights, job), **options):
    _, connect, buyer, sellers = service
    app = client(spoil, broker=lambda context: connect(sellers[partition(context)]))
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
            assert wire.read_offer(reply.content)[1] is None
            assert not set(VALUATIONS) & set(reply.content["privmarket-offer"].values())


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


def test_a_broker_without_a_token(monkeypatch):
    monkeypatch.delenv("PRIVMARKET_BROKER_TOKEN", raising=False)
    with pytest.raises(ConfigurationError, match="no token"):
        pm.flower.run_in_process(server(broker="http://127.0.0.1:9"), client(), CLIENTS)
