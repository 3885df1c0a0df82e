"""The study of money and accuracy: reading a price off a curve, and kept results of the stated settings."""

import json
from pathlib import Path

import pytest

from privmarket.federated.config import FederationConfig
from privmarket_studies.trust_results import money_for, render
from privmarket_studies.trust_runs import BARS, CURVES, KEPT, MONEY, RULES, missing, selected_rate, server_rate

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "trust"
FILES = sorted((FOLDER / "runs").glob("*.json"))


def _points(*pairs):
    return [(paid, [{"spent": paid, "accuracy": accuracy}]) for paid, accuracy in pairs]


def test_money_for_a_target_is_read_between_points_on_a_logarithmic_scale():
    assert money_for(_points((1, 0.90), (100, 0.98)), 0.94) == pytest.approx(10.0)
    assert money_for(_points((5, 0.95), (100, 0.98)), 0.94) == 5
    assert money_for(_points((1, 0.5), (10, 0.6)), 0.94) is None


def test_runs_have_names_of_their_own_and_valid_settings():
    assert len({run.name for run in KEPT}) == len(KEPT)
    for run in KEPT:
        assert run.config(0).clients == 100
    assert all(run.config(0).trust == "aggregate" for run in BARS)
    assert {run.config(0).trust for run in CURVES} == {"aggregate", "local"}


def test_what_exists_is_not_made_again(tmp_path):
    assert len(list(missing(tmp_path, BARS))) == 3 * len(BARS)
    BARS[0].path(tmp_path, 1).write_text("{}")
    assert (BARS[0], 1) not in list(missing(tmp_path, BARS))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_kept_results_are_of_todays_settings(path):
    result = json.loads(path.read_text(encoding="utf-8"))
    config = FederationConfig.from_json(result["config"])
    name = path.stem.rpartition("-seed-")[0]
    run = next(run for run in KEPT if run.name == name)
    assert config == run.config(config.seed)
    assert config.measured_on == "test"
    assert result["spent"] <= config.budget * config.rounds
    if config.wallet is not None:
        assert result["largest_epsilon_spent"] <= config.wallet + 1e-9


@pytest.mark.skipif(not (FOLDER / "selection.json").exists(), reason="no trials were kept")
def test_rates_are_the_best_on_validation_records():
    for trust in MONEY:
        for rule in RULES:
            for money in MONEY[trust]:
                best = selected_rate(FOLDER / "selection.json", trust, rule, money)
                assert server_rate(trust, rule, money) == best


@pytest.mark.skipif(not (FOLDER / "README.md").exists(), reason="no page yet")
def test_the_page_is_rendered_from_the_files():
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == render(FOLDER)
