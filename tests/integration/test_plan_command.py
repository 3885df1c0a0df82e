"""`privmarket plan` on embedded data: table, JSON, plot, resuming, a target out of reach."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

from typer.testing import CliRunner

from privmarket.cli import app
from privmarket.cli.plan import _command
from privmarket.errors import PrivmarketError
from privmarket.federated.config import recommended_training
from privmarket.federated.plan_choices import Choice
from privmarket.federated.planning import Point
from tests.forked import privmarket
from tests.json_fields import check_fields

WORDS = ["plan", "--dataset", "digits", "--clients", "8", "--effort", "quick", "--rounds", "5", "--money", "4,40"]


def plan(*words: str) -> subprocess.CompletedProcess[str]:
    return privmarket(*WORDS, *words).end()


def test_plan_resumes_and_says_what_is_out_of_reach(tmp_path):
    place = ["--folder", str(tmp_path / "cells")]
    first = plan(*place, "--json", "--plot", str(tmp_path / "plan.png"))
    assert first.returncode == 0, first.stderr
    made = json.loads(first.stdout)
    check_fields("plan", made)
    assert [point["total"] for point in made["points"]] == [4, 40]
    assert made["computed"] > 0
    assert (tmp_path / "plan.png").stat().st_size > 5_000
    again = plan(*place, "--target", "0.999")
    assert again.returncode == 1
    assert "out of reach" in again.stdout
    assert "With all clients and no noise these rounds reach" in again.stdout


def test_wrong_words_are_refused(tmp_path):
    for words, expected in (
        (["--target", "0.9", "--total", "5"], "exclude each other"),
        (["--money", "ten"], "--money"),
        (["--effort", "heroic"], "heroic"),
        (["--proxy", str(tmp_path / "none.npz")], "no proxy"),
        (["--plot", str(tmp_path / "plan.txt")], "plan.txt"),
        (["--set", "clip=3"], "clip"),
    ):
        done = CliRunner().invoke(app, [*WORDS, "--folder", str(tmp_path), *words])
        assert isinstance(done.exception, PrivmarketError)
        assert expected in str(done.exception)
    assert not list(tmp_path.glob("*.json"))


def test_what_is_planned_is_what_federate_would_run(monkeypatch):
    """The plan starts from what is recommended for data set and trust, and its last line names what differs."""

    class Stop(Exception):
        pass

    def keep(base, *_, **__):
        raise Stop(base)

    monkeypatch.setattr("privmarket.federated.planning.Planner", keep)
    words = ["plan", "--dataset", "mnist", "--trust", "aggregate", "--delta", "1e-6", "--set", "clip_norm=0.7"]
    stopped = CliRunner().invoke(app, words).exception
    assert isinstance(stopped, Stop)
    base = stopped.args[0]
    assert base.training == replace(recommended_training("mnist", "aggregate"), clip_norm=0.7)
    choice = Choice(5, "ration", (("unit_price", 1.0),), "ration", 4.0)
    point = Point(10.0, choice, 2.0, *[0.0] * 4, 1, *[0.0] * 5)
    said = _command(base, point)
    assert "--set clip_norm=0.7" in said
    assert "--delta 1e-06" in said
    assert said.count("--set ") == 2
    local = CliRunner().invoke(app, ["plan", "--dataset", "mnist"]).exception.args[0]
    assert local.training == recommended_training("mnist", "aggregate")  # what federate does not take by itself
    assert "--set model=logistic --set features=whitened-scattering" in _command(local, point)
