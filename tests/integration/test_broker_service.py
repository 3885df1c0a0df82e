"""A real server process: killed and restarted, on SQLite and on PostgreSQL; and the command line around it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select
from typer.testing import CliRunner

from privmarket.broker.broker import Broker
from privmarket.broker.demo import DemoMarket
from privmarket.broker.errors import BrokerError, ConflictError, DatabaseError
from privmarket.broker.schema import transfers
from privmarket.broker.verify import verify
from privmarket.cli import app
from tests.integration import broker_kill
from tests.integration.broker_process import BrokerProcess
from tests.postgres import new_database
from tests.unit.broker.market import Market, key, make_market


def test_kill_minus_nine(tmp_path: Path, database: str) -> None:
    figures = broker_kill.run(database, tmp_path, kills=2, seed=1)
    assert figures["acknowledged bids"] > 20


def test_the_harness_does_not_go_on_without_a_server(tmp_path: Path) -> None:
    # It once did, on a machine that stood still for a minute, and reported that no round could be opened.
    server = BrokerProcess(f"sqlite:///{tmp_path}/market.db", tmp_path / "log")
    server.patience_seconds = 0.0
    with pytest.raises(RuntimeError, match="did not start"):
        server.start()
    server.kill()


@pytest.fixture
def market(postgres_server: str) -> Iterator[Market]:
    made = make_market(new_database(postgres_server))
    yield made
    made.broker.database.close()


def test_two_brokers_close_one_round_once(market: Market) -> None:
    url = market.broker.database.engine.url.render_as_string(hide_password=False)
    brokers = [Broker(url, clock=market.clock) for _ in range(2)]
    for _ in range(5):
        round_id = market.open()
        market.bid_all(round_id)
        start, won, lost = threading.Barrier(2), [], []

        def close(broker: Broker, round_id: str = round_id, start: threading.Barrier = start) -> None:
            start.wait()
            try:
                won.append(broker.close_round(market.operator, round_id, key()))  # noqa: B023
            except ConflictError as error:
                lost.append(error)  # noqa: B023

        threads = [threading.Thread(target=close, args=(broker,)) for broker in brokers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(lost)) == (1, 1)
        market.broker.give_receipts(market.buyer, round_id, dict.fromkeys(market.winners(round_id)), key())
        market.broker.settle_round(market.buyer, round_id, key())
        with market.broker.database.read() as connection:
            ends = select(func.count()).where(transfers.c.subject == round_id, transfers.c.kind == "settlement")
            assert connection.execute(ends).scalar_one() == 1
    assert verify(market.broker).difference is None
    for broker in brokers:
        broker.database.close()


def test_verify_command(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    market = make_market(url)
    round_id = market.open()
    market.bid_all(round_id)
    market.finish(round_id)
    good = CliRunner().invoke(app, ["broker", "verify", "--database", url, "--json"])
    assert good.exit_code == 0
    verdict = json.loads(good.stdout)
    assert (verdict["difference"], verdict["auctions"]) == (None, 1)
    with market.broker.database.engine.connect() as connection:
        connection.exec_driver_sql("UPDATE awards SET payment_micro = payment_micro + 1")
        connection.commit()
    bad = CliRunner().invoke(app, ["broker", "verify", "--database", url])
    assert bad.exit_code == 1
    assert "another result" in bad.stdout
    gone = CliRunner().invoke(app, ["broker", "verify", "--database", url, "--head", "0" * 64])
    assert gone.exit_code == 1


def test_a_port_that_somebody_has_costs_no_database(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        url = f"sqlite:///{tmp_path}/m.db"
        refused = CliRunner().invoke(app, ["serve", "--database", url, "--port", port])
    assert isinstance(refused.exception, BrokerError)
    assert "another --port" in refused.exception.hint
    assert list(tmp_path.iterdir()) == []


def test_operator_token_command(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    first = CliRunner().invoke(app, ["broker", "operator-token", "--database", url]).stdout.strip()
    second = CliRunner().invoke(app, ["broker", "operator-token", "--database", url]).stdout.strip()
    broker = Broker(url)
    assert broker.authenticate(second).role == "operator"
    with pytest.raises(Exception, match="unknown or revoked"):
        broker.authenticate(first)


def test_a_database_that_cannot_be_opened_says_so_without_the_password() -> None:
    with pytest.raises(DatabaseError) as refused:
        Broker("postgresql+psycopg://market:secret@127.0.0.1:1/none")
    assert "secret" not in str(refused.value)


def test_the_demo_market_trades(tmp_path: Path) -> None:
    broker = Broker(f"sqlite:///{tmp_path}/m.db")
    demo = DemoMarket(broker, seed=3, pace_seconds=0.0)
    round_id = demo.trade_one_round()
    assert broker.round_state(round_id) == "settled"
    assert verify(broker).difference is None
