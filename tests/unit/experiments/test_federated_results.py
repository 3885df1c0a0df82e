"""The kept results: the page follows from the files, and the files reach what the page is for."""

import json
from pathlib import Path

import numpy as np
import pytest

from privmarket.experiments.federated_results import render
from privmarket.federated.config import FederationConfig
from privmarket.market.scenarios import scenario
from privmarket.mechanisms import mechanism

FOLDER = Path(__file__).parents[3] / "docs" / "results" / "federated"
FILES = sorted(FOLDER.glob("*.json"))


def test_the_page_is_rendered_from_the_files():
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == render(FOLDER)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_result_file_is_complete_and_its_configuration_still_valid(path):
    result = json.loads(path.read_text(encoding="utf-8"))
    config = FederationConfig.from_json(result["config"])
    assert str(config.rounds) in result["accuracy_by_round"]
    assert result["command"].startswith("privmarket federate ")
    assert result["spent"] <= config.budget * config.rounds
    if config.wallet is not None:
        assert result["largest_epsilon_spent"] <= config.wallet + 1e-9


@pytest.mark.parametrize(
    ("name", "bar"),
    [
        ("mnist-alpha-0.5", 0.96),
        ("mnist-alpha-0.1", 0.945),
        ("cifar10-alpha-0.5", 0.45),
    ],
)
def test_bars(name, bar):
    result = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert result["accuracy"] >= bar


def test_noise_costs_fashion_at_most_three_points():
    noisy, quiet = (
        json.loads((FOLDER / f"fashion-alpha-0.5{mode}.json").read_text(encoding="utf-8"))["accuracy"]
        for mode in ("", "-no-noise")
    )
    assert noisy >= quiet - 0.03


def test_the_learned_menu_buys_the_same_in_these_markets():
    """For total ε the curve that MFG-MenuNet learned is the posted price, so the kept runs are its runs too."""
    types = scenario("uniform").sample(np.random.default_rng([0, 5]), 100)
    learned, plain = (mechanism(name).run(types, 50.0) for name in ("mfg-menunet", "mean-field-menu"))
    np.testing.assert_allclose(learned.epsilon, plain.epsilon, rtol=1e-9)
    np.testing.assert_allclose(learned.payment, plain.payment, rtol=1e-6)
