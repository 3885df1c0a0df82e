"""`privmarket equilibrium` as a stranger uses it."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from privmarket.cli import main
from privmarket.meanfield import load_bid_function
from tests.forked import privmarket
from tests.json_fields import check_fields

SMALL = ("--grid", "24x24x30", "--tolerance", "1e-5")


def run(*arguments):
    return privmarket(*arguments).end()


def test_solves_writes_and_plugs_in(tmp_path):
    done = run("equilibrium", "--scenario", "bimodal", *SMALL, "--out", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    check_fields("equilibrium", data)
    assert data["result"] == "converged"
    assert data["relative_exploitability"] < 1e-3
    assert len(data["price"]) == 30
    assert (tmp_path / "equilibrium.png").stat().st_size > 10_000
    bid = load_bid_function(tmp_path / "equilibrium.npz")
    report = bid(np.array([0.2, 0.5]), np.array([0.3, 4.0]), 2.0)
    assert report[0] > 0.2
    with np.load(tmp_path / "equilibrium.npz") as saved:
        np.testing.assert_allclose(saved["mass"].sum(axis=(1, 2, 3)), 1.0, atol=1e-12)


def test_a_table_for_people():
    done = run("equilibrium", *SMALL, "--menu", "linear", "--kinds", 2)
    assert done.returncode == 0, done.stderr
    assert "converged after" in done.stdout
    assert "mean bid" in done.stdout


def test_past_bids_are_a_law(tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"c{i},{v:.4f},{e:.4f}" for i, (v, e) in enumerate(rng.random((50, 2)) + np.array([0.0, 0.5]))]
    path = tmp_path / "past.csv"
    path.write_text("client,valuation,epsilon\n" + "\n".join(rows) + "\n")
    done = run(
        "equilibrium", "--scenario", path, *SMALL, "--horizon", 4, "--sale-cap", 0.1, "--budget", 0.03, "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scenario"] == "past"


def test_non_convergence_has_an_exit_code():
    done = run("equilibrium", *SMALL, "--max-iterations", 2, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["result"] == "iteration-limit"
    assert "not converged" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--budget", "0.45"), "use a budget below"),
        (("--budget", "0.0001"), "raise the budget"),
        (("--grid", "64x64"), "not of the form"),
        (("--grid", "64x200x50"), "or the implicit scheme"),
        (("--volatility", "0.02"), "too coarse for the drift"),
        (("--menu", "square"), "choose posted or linear"),
        (("--scenario", "pareto"), "choose one of"),
        (("--scheme", "magic"), "choose one of"),
    ],
)
def test_bad_input_ends_in_one_line_with_the_remedy(arguments, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["privmarket", "equilibrium", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
