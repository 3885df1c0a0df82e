"""The kept results: the page follows from the files, the files from today's settings, and they reach the bars."""

import json
from pathlib import Path

import numpy as np
import pytest

from privmarket.market._distributions import scenario
from privmarket.mechanisms import mechanism
from privmarket.simulation._config import FederationConfig, recommended_training
from privmarket_studies.federated_results import load, paired_difference, render
from privmarket_studies.federated_runs import KEPT, command_of, settings_are_recommended
from privmarket_studies.federated_selection import TASKS, best

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "federated"
RESULTS = load(FOLDER / "runs")


def mean_accuracy(name):
    return np.mean([result["accuracy"] for result in RESULTS[name]])


def test_the_page_is_rendered_from_the_files():
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == render(FOLDER)


THERE = [(run, result) for run in KEPT for result in RESULTS.get(run.name, [])]


@pytest.mark.parametrize(("run", "result"), THERE, ids=[f"{r.name}-{one['config']['seed']}" for r, one in THERE])
def test_kept_runs_are_whole_and_of_todays_settings(run, result):
    config = FederationConfig.from_json(result["config"])
    assert result["command"] == command_of(run, config.seed)
    assert settings_are_recommended(run, result["config"])
    assert config.measured_on == "test"
    assert str(config.rounds) in result["accuracy_by_round"]
    assert result["spent"] <= config.budget * config.rounds
    if config.wallet is not None:
        assert result["largest_epsilon_spent"] <= config.wallet + 1e-9


def test_no_file_lies_about_that_nobody_reads():
    known = {run.path(FOLDER, seed).name for run in KEPT for seed in run.seeds}
    assert {path.name for path in (FOLDER / "runs").glob("*.json")} <= known


def test_a_run_with_other_settings_counts_as_missing():
    run = KEPT[0]
    config = json.loads(run.path(FOLDER / "runs", 0).read_text(encoding="utf-8"))["config"]
    config["training"]["clip_norm"] *= 2
    assert not settings_are_recommended(run, config)


@pytest.mark.parametrize("dataset", [name for name in TASKS if TASKS[name].wallet is None])
def test_recommended_settings_are_the_best_on_validation_records(dataset):
    assert recommended_training(dataset) == best(FOLDER / "selection" / "selection.json", dataset)


@pytest.mark.parametrize(("name", "bar"), [("mnist-0.5", 0.96), ("mnist-0.1", 0.945), ("cifar10-0.5", 0.45)])
def test_bars(name, bar):
    assert mean_accuracy(name) >= bar


def test_noise_costs_fashion_at_most_three_points():
    assert mean_accuracy("fashion-mnist-0.5") >= mean_accuracy("fashion-mnist-0.5-no-noise") - 0.03


def test_noise_on_the_weights_ruins_the_model():
    assert mean_accuracy("mnist-0.5-literal") < 0.15


def test_a_difference_is_claimed_only_where_its_interval_leaves_zero_out():
    def runs(*accuracy):
        return [{"accuracy": a, "config": {"seed": seed}} for seed, a in enumerate(accuracy)]

    base = runs(0.90, 0.92, 0.91)
    assert paired_difference(runs(0.91, 0.91, 0.92), base).endswith("(above in 2 of 3)")
    assert "**+" in paired_difference(runs(0.93, 0.95, 0.9401), base)
    assert "**-" in paired_difference(runs(0.87, 0.89, 0.8801), base)
    assert paired_difference(runs(0.95), base) == "+5.00 (one seed)"


def test_the_learned_menu_buys_the_same_in_these_markets():
    """For total ε the curve that MFG-MenuNet learned is a posted price, that of the plain mean-field menu."""
    types = scenario("uniform").sample(np.random.default_rng([0, 5]), 100)
    learned, plain = (mechanism(name).run(types, 50.0) for name in ("mfg-menunet", "mean-field-menu"))
    np.testing.assert_allclose(learned.epsilon, plain.epsilon, rtol=1e-9)
    np.testing.assert_allclose(learned.payment, plain.payment, rtol=1e-6)
