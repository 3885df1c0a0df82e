"""Attacks of rising strength: they find what is there, and rules without a lie stay at zero."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import privmarket as pm
from privmarket.market.scenarios import scenario
from privmarket_studies.reproduce import regret
from privmarket_studies.reproduce.attack_strengths import STRENGTHS, PaperAscent, TrainingAttack
from tests.laws.broken import FirstPrice


@pytest.fixture
def market(rng):
    return scenario("uniform").sample(rng, 12)


@pytest.mark.parametrize("attack", [PaperAscent(), TrainingAttack()])
def test_a_first_price_rule_is_caught_and_an_exact_one_is_not(attack, market, rng):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert attack(FirstPrice(), market, 6.0, rng).gain.max() > 1e-3
        assert attack(pm.mechanism("mean-field-menu"), market, 6.0, rng).gain.max() <= 1e-9


def test_the_papers_attack_moves_as_far_as_its_steps_allow(market, rng):
    found = PaperAscent(steps=3, step_size=0.01)(FirstPrice(), market, 6.0, rng)
    # A winner's slope is its sold ε, at most 5.
    assert np.abs(found.valuation - market.valuation).max() <= 3 * 0.01 * 5 + 1e-12


def test_a_stronger_level_never_finds_less():
    config = {
        "mechanism": "csra",
        "scenario": "uniform",
        "clients": 8,
        "budget": 4,
        "attack": "quick",
        "parts": "quick",
    }
    result = regret.run(config, 0, Path())
    means = [level["mean"] for level in result["levels"].values()]
    tried = [level["reports"] for level in result["levels"].values()]
    assert list(result["levels"]) == list(STRENGTHS)[:3]
    assert means == sorted(means)
    assert tried == sorted(tried)
    assert len(result["gains"]) == 8
    assert result["mean"] >= means[-1]
