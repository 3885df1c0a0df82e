"""`privmarket train`: quick runs, resuming, and errors in one line."""

from __future__ import annotations

import json
import shlex
import sys
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from privmarket import cli
from privmarket.cli import app
from privmarket.errors import ConfigurationError
from privmarket.mechanisms.learned._weights import load
from tests.json_fields import check_fields

run = CliRunner()


def test_a_menu_curve_is_learned_and_used(tmp_path):
    out = tmp_path / "menu.safetensors"
    done = run.invoke(
        app, ["train", "mfg-menunet", "--scenario", "uniform", "--clients", "12", "--out", str(out), "--json"]
    )
    assert done.exit_code == 0, done.output
    made = json.loads(done.stdout)
    check_fields("train", made)
    assert made["curves"][0]["scenario"] == "uniform"
    audit = ["audit", "--mechanism", "mfg-menunet", "--set", f"weights={out}", "--clients", "5", "--budget", "2"]
    assert run.invoke(app, [*audit, "--profiles", "1"]).exit_code == 0


def test_quick_menu_training_leaves_a_curve_and_resumes(tmp_path):
    out = tmp_path / "menu.safetensors"
    command = ["train", "mfg-menunet", "--scenario", "bimodal", "--clients", "8", "--profile", "quick"]
    for _ in range(2):
        done = run.invoke(app, [*command, "--out", str(out), "--json"])
        assert done.exit_code == 0, done.output
    assert "already finished, at step 60" in done.stderr
    steps = [int(line.split(",")[1]) for line in out.with_suffix(".curve.csv").read_text().splitlines()[1:]]
    assert steps == list(range(1, 61))


@pytest.mark.parametrize("stops", [lambda **_: cli.STOPPED, Mock(side_effect=KeyboardInterrupt)])
@pytest.mark.parametrize("command", ["train", "audit"])
def test_a_stopped_training_says_how_to_go_on_in_every_phase(stops, command, monkeypatch, capsys):
    monkeypatch.setattr(cli, "app", stops)
    monkeypatch.setattr(sys, "argv", ["privmarket", "--verbose", command, "x"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == cli.STOPPED
    assert capsys.readouterr().err == ("stopped; the same command goes on\n" if command == "train" else "stopped\n")


def test_a_network_is_trained_for_the_aggregation_error(tmp_path):
    out = tmp_path / "w.safetensors"
    small = ["--set", "steps=3", "--set", "rows=60", "--set", "network.hidden=8", "--set", "alignment.weight=0"]
    command = [
        "train",
        "mfg-regretnet",
        "--scenario",
        "uniform",
        "--clients",
        "12",
        "--budget",
        "6",
        "--profile",
        "quick",
    ]
    goal = ["--objective", "aggregation-error", "--heterogeneity", "0.4"]
    done = run.invoke(app, [*command, *goal, *small, "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    check_fields("train", json.loads(done.stdout))
    recipe = json.loads(load(out, "mfg-regretnet").facts["recipe"])
    assert (recipe["objective"], recipe["heterogeneity"], recipe["steps"]) == ("aggregation-error", 0.4, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mfg-regretnet", "--budget", "-1"], "--budget is -1"),
        (["mfg-regretnet", "--clients", "1"], "--clients is 1"),
        (["pac"], "not a mechanism that is trained"),
        (["mfg-regretnet", "--profile", "slow"], "unknown profile"),
        (["mfg-regretnet", "--objective", "fame"], "unknown objective"),
        (["mfg-regretnet", "--set", "alignment.wait=1"], "no setting"),
        (["mfg-menunet", "--set", "steps=1"], "--set is for networks"),
        (["mfg-menunet", "--profile", "slow"], "unknown profile"),
    ],
)
def test_bad_input_names_the_value(arguments, message, tmp_path):
    done = run.invoke(app, ["train", *arguments, "--out", str(tmp_path / "w")])
    assert isinstance(done.exception, ConfigurationError)
    assert message in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_three_past_bids_are_refused(tmp_path):
    past = tmp_path / "past.csv"
    past.write_text("client,valuation,epsilon\na,0.1,1\nb,0.2,1\nc,0.3,1\n")
    done = run.invoke(app, ["train", "mfg-regretnet", "--scenario", str(past), "--out", str(tmp_path / "w")])
    assert "too few to learn from" in str(done.exception)
    assert not (tmp_path / "w").exists()


NETWORK = """
import torch
from torch import nn
from privmarket.mechanisms.learned import AuctionNetwork, Trade

class Tiny(AuctionNetwork):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.width = width
        self.layers = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, markets):
        share, markup = torch.sigmoid(self.layers(markets.features())).unbind(-1)
        sold = share * markets.epsilon
        return Trade(sold, (markets.valuation + markets.unit * markup) * sold)

def breadth(markets, trade):
    return (trade.epsilon + 1e-6).sqrt().mean(-1)
"""


def test_an_own_network_is_trained_resumed_and_the_next_command_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own net.py").write_text(NETWORK)
    rows = "".join(f"c{i},{0.05 * (i + 1):.2f},{1 + i % 3}\n" for i in range(25))
    (tmp_path / "past bids.csv").write_text("client,valuation,epsilon\n" + rows)
    small = ["--set", "steps=4", "--set", "rows=24", "--set", "attack.rows=12", "--set", "network.width=3"]
    command = ["train", "own net.py:Tiny", "--scenario", "past bids.csv", "--clients", "6", "--budget", "3"]
    command += ["--objective", "own net.py:breadth", "--loss", "penalty", *small, "--json"]
    done = run.invoke(app, command)
    assert done.exit_code == 0, done.output
    made = json.loads(done.stdout)
    check_fields("train", made)
    assert made["weights"] == "out/train/Tiny.safetensors"
    assert "already finished, at step 4" in run.invoke(app, command).stderr
    audit, federate = made["next"]
    words = shlex.split(audit)
    assert words[:4] == ["privmarket", "audit", "--mechanism", "own net.py:Tiny"]
    attacked = run.invoke(app, [*words[1:], "--profiles", "1", "--json"])
    assert attacked.exit_code == 0, attacked.output
    assert json.loads(attacked.stdout)["mechanism"] == "Tiny"
    assert "before training" not in attacked.stderr
    without = [word for pair in zip(words[2::2], words[3::2], strict=True) if pair[0] != "--set" for word in pair]
    start = run.invoke(app, ["audit", *without, "--profiles", "1", "--attack", "quick", "--json"])
    assert json.loads(start.stdout)["mechanism"] == "Tiny:untrained"
    assert "Tiny:untrained is the network before training; --set weights=FILE" in start.stderr
    assert "--mechanism-set" in federate


def test_the_next_command_of_a_menu_asks_for_its_objective(tmp_path):
    out = tmp_path / "menu.safetensors"
    command = ["train", "mfg-menunet", "--scenario", "uniform", "--clients", "8", "--profile", "quick"]
    done = run.invoke(app, [*command, "--objective", "aggregation-error", "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    for command in json.loads(done.stdout)["next"]:
        assert "objective=aggregation-error" in command
        assert "heterogeneity=" in command
