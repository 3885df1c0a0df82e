"""The audit's lower bound is above the truth no more often than its confidence says."""

import numpy as np
import pytest
from scipy import stats

from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._release_audit import Scores, audit_any, audit_family, audit_one_run

CLAIM, REPEATS, CONFIDENCE = 3.0, 300, 0.9
SIGMA = float(ReleaseFamily().noise_multiplier(CLAIM))


def false_alarms(bound, sigma=SIGMA):
    return sum(bound(np.random.default_rng(seed), sigma) > CLAIM for seed in range(REPEATS))


def by_family(rng, sigma):
    scores = Scores(1 + sigma * rng.standard_normal(600), sigma * rng.standard_normal(600))
    return audit_family(scores, confidence=CONFIDENCE).epsilon_lower


def by_anything(rng, sigma):
    scores = Scores(1 + sigma * rng.standard_normal(600), sigma * rng.standard_normal(600))
    return audit_any(scores, confidence=CONFIDENCE).epsilon_lower


def by_one_run(rng, sigma):
    included = rng.random(600) < 0.5
    return audit_one_run(included + sigma * rng.standard_normal(600), included, confidence=CONFIDENCE).epsilon_lower


@pytest.mark.parametrize("bound", [by_family, by_anything, by_one_run])
def test_coverage(bound):
    """With a tenth of allowed misses, a count this high has probability below 1e-4."""
    assert false_alarms(bound) <= stats.binom.isf(1e-4, REPEATS, 1 - CONFIDENCE)


def test_the_check_catches_a_bound_that_is_not_one():
    """The broken subject: half the noise than claimed makes the same count overflow."""
    assert false_alarms(by_family, SIGMA / 2) > stats.binom.isf(1e-4, REPEATS, 1 - CONFIDENCE)
