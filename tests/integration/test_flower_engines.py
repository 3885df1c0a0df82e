"""Flower's own engines: Ray gives the plain simulation's market, and a deployment survives its clients."""

import json
import os
import re
import signal
import time

import pytest
import typer.main

from privmarket.cli import app as cli
from privmarket.flower import _wire as wire
from privmarket.flower._engine import Engine, EngineError, write_app
from privmarket.flower._rehearsal import Fault, RehearsalPlan, rehearse, verdicts
from privmarket.simulation._config import FederationConfig, Training
from privmarket.simulation._federation import run
from tests.forked import Forked
from tests.json_fields import check_fields


def test_a_deployed_round_with_a_killed_a_late_a_broken_and_a_greedy_client(tmp_path):
    """SuperLink and five SuperNodes, processes of their own; `privmarket flower rehearse` is the long form."""
    plan = RehearsalPlan(
        clients=4,
        rounds=1,
        deadline_seconds=30.0,
        faults=(Fault(1, "nan", 0), Fault(2, "killed", 0), Fault(3, "late", 0)),
        light=True,
    )
    report = rehearse(tmp_path, plan, stretch=True)
    assert all(report["verdicts"].values()), json.dumps(report, indent=1)
    check_fields("flower rehearse", {"schema_version": 1, **report})
    (only,) = report["rounds"]
    assert set(only["paid_micro"]) == {"0"}
    assert "not finite" in only["dropped"]["1"]
    assert (tmp_path / "flwr-home" / "apps").is_dir()  # Flower's home is the test's folder
    # The verdicts can fail: somebody who misbehaved is paid, and somebody's money is gone.
    wrong = {**only, "paid_micro": {"0": 1, "1": 5}, "dropped": {}}
    failed = {promise for promise, kept in verdicts(plan, [wrong], tmp_path).items() if not kept}
    assert len(failed) == 3


def test_ray_gives_the_plain_market_and_the_same_secure_sum(tmp_path):
    """Under aggregate trust: payments to the micro-unit, and a model to the last bit."""
    config = FederationConfig(
        clients=4,
        rounds=1,
        budget=4.0,
        training=Training(model="logistic"),
        seed=3,
        trust="aggregate",
        mechanism="ration",
        mechanism_settings={"unit_price": 1.0},
    )
    code = f"""import json
from privmarket.simulation._config import FederationConfig
from privmarket.flower._federation import federation_client, federation_server
CONFIG = FederationConfig.from_json(json.loads({json.dumps(json.dumps(config.to_json()))}))
server = federation_server(CONFIG, receipts=False)
client = federation_client(CONFIG)
"""
    app = write_app(tmp_path / "app", code, {"budget": 1.0})
    with Engine(tmp_path, config.clients, simulation=True) as engine:
        result = engine.run(app, {"budget": config.budget}, timeout_seconds=600.0)
    plain = run(config)
    assert plain.records[0].sellers >= 2
    assert result["weights_sha256"] == wire.digest({"weights": plain.weights})
    for mine, its in zip(result["rounds"], plain.records, strict=True):
        assert mine["paid_micro"] == its.paid_micro
        assert mine["sold_epsilon"] == its.sold_epsilon
        assert mine["accuracy"] == its.accuracy


BROKEN_APP = """from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

@server.main()
def main(grid, context):
    raise RuntimeError("this server app breaks on purpose")
"""


def test_a_failed_run_names_who_failed_and_shows_the_end_of_its_log(tmp_path):
    app = write_app(tmp_path / "app", BROKEN_APP, {})
    with Engine(tmp_path, 1) as engine:
        engine.await_nodes()
        assert 0 < engine.ready_seconds < engine.start_seconds
        assert engine.ended_alone() == {}
        node = engine._processes["node-0"]
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()
        with pytest.raises(EngineError) as caught:
            engine.run(app, timeout_seconds=600.0)
    text = str(caught.value)
    assert text.startswith("the run ended without a result (see the logs in ")
    assert "node-0 ended by itself with code -9; node-0.log ends:\n  " in text
    assert "this server app breaks on purpose" in text
    assert "\x1b" not in text


LONG_APP = """import numpy as np
import privmarket as pm

start = {"w": np.zeros(4, dtype=np.float32)}

def train(weights, job):
    noise = job.noise.standard_normal(4)
    return {"w": (job.noise_multiplier * noise).astype(np.float32)}

server = pm.flower.server_app(initial_weights=lambda: start, rounds=100_000, budget=10.0, min_nodes=2)
client = pm.flower.client_app(train, valuation=0.1, epsilon=0.001, wallet="unlimited")
"""


def commanded(app, out):
    """`privmarket flower run` in a process of its own, to which Ctrl-C comes as to any other."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
    main = typer.main.get_command(cli)
    main(
        ["flower", "run", str(app), "--engine", "deployment", "--nodes", "2", "--out", str(out), "--timeout", "900"]
    )


def test_a_deployed_run_ends_after_the_first_interrupt(tmp_path):
    """It has 100,000 rounds; the command returns because the server app ends after the one that it is in."""
    app = write_app(tmp_path / "app", LONG_APP, {})
    under_way = Forked(commanded, app, tmp_path / "out")
    end = time.monotonic() + 400
    while not list((tmp_path / "out").glob("*.partial.npz")) and under_way.process.is_alive():
        assert time.monotonic() < end
        time.sleep(0.2)
    os.kill(under_way.process.pid, signal.SIGINT)
    done = under_way.end(400)
    assert done.returncode == 130, done.stderr
    assert "finishing the round in progress" in done.stderr
    assert re.search(r"stopped after \d+ settled rounds? of 100000", done.stderr)
    assert json.loads((tmp_path / "out" / "result.json").read_text())["rounds"]
    assert "ended without a result" not in done.stderr
