"""A real server process: killed and restarted, on SQLite and on PostgreSQL; and the command line around it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select
from typer.testing import CliRunner

from privmarket.broker.broker import Broker
from privmarket.broker.demo import DemoMarket
from privmarket.broker.errors import ConflictError, DatabaseError
from privmarket.broker.schema import transfers
from privmarket.broker.verify import verify
from privmarket.cli import app
from tests.integration import broker_kill
from tests.integration.broker_process import postgres
from tests.unit.broker.market import Market, key, make_market


@pytest.fixture(scope="module")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with postgres(tmp_path_factory.mktemp("postgres")) as url:
        yield url


def test_kill_minus_nine_on_sqlite(tmp_path: Path) -> None:
    figures = broker_kill.run(f"sqlite:///{tmp_path}/market.db", tmp_path, kills=2, seed=1)
    assert figures["bids"] > 0


@pytest.fixture(scope="module")
def postgres_market(postgres_url: str) -> Iterator[Market]:
    market = make_market(postgres_url)
    yield market
    market.broker.database.close()


def test_a_round_on_postgres(postgres_market: Market) -> None:
    round_id = postgres_market.open()
    postgres_market.bid_all(round_id)
    assert postgres_market.finish(round_id)["paid_micro"] == 999_999
    assert verify(postgres_market.broker).difference is None


def test_two_brokers_close_one_round_once(postgres_url: str, postgres_market: Market) -> None:
    market = postgres_market
    brokers = [Broker(postgres_url, clock=market.clock) for _ in range(2)]
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
