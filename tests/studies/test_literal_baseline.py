"""Proposition 1: a baseline that the misreport does not enter changes nothing; one that it enters is seen."""

import numpy as np
import pytest
import torch

import privmarket as pm
from privmarket.mechanisms.learned._losses import Critic
from privmarket_studies.literal_baseline import (
    RULE,
    Comparison,
    Estimate,
    compared,
    drawn,
    estimate,
    walked,
    worth,
)

WHO = torch.arange(6)


@pytest.fixture(scope="module")
def network():
    return pm.mechanism(RULE).network(torch.float32).requires_grad_(True)


@pytest.fixture(scope="module")
def walk(network):
    return walked(network, drawn(np.random.default_rng(1), 8), WHO, torch.Generator().manual_seed(2))


def test_an_ascent_goes_up(walk):
    assert walk.gain.shape == (26, 8, 6)
    assert float((walk.gain[-1] - walk.gain[0]).mean()) > 0


def test_a_baseline_that_does_not_see_the_misreport_leaves_the_gradient_as_it_is(network, walk):
    raw = estimate(network, walk, torch.zeros_like(walk.gain))
    # Φ of the true report alone: it stands in both terms of the difference.
    of_truth = walk.markets.valuation[:, WHO].expand_as(walk.gain)
    same = estimate(network, walk, of_truth - of_truth)
    np.testing.assert_array_equal(raw.gradient, same.gradient)
    other = estimate(network, walk, walk.path.valuation - of_truth)
    assert np.abs(raw.gradient - other.gradient).max() > 0


def test_the_regret_is_the_largest_gain(network, walk):
    raw = estimate(network, walk, torch.zeros_like(walk.gain))
    assert raw.regret == pytest.approx(float(walk.gain.amax(0).clamp_min(0).mean()), rel=1e-3, abs=1e-6)


def test_the_gradient_by_differences(network, walk):
    raw = estimate(network, walk, torch.zeros_like(walk.gain))
    bias = list(network.parameters())[-1]
    place = raw.gradient.size - bias.numel()
    step = 1e-2
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            bias[0] += sign * step
        values.append(estimate(network, walk, torch.zeros_like(walk.gain)).regret)
        with torch.no_grad():
            bias[0] -= sign * step
    assert raw.gradient[place] == pytest.approx((values[0] - values[1]) / (2 * step), abs=2e-3)


def test_worth_at_the_truth_is_the_critics(walk):
    torch.manual_seed(0)
    critic = Critic()
    v, e = walk.markets.valuation[:, WHO], walk.markets.epsilon[:, WHO]
    torch.testing.assert_close(worth(critic, walk.markets, WHO, v, e), critic(walk.markets, v, e))


def made(rng, batches: int, spread: float, mean: float) -> list[Estimate]:
    return [Estimate(mean + spread * rng.standard_normal(40), 0.1, 0.5) for _ in range(batches)]


def test_a_known_ratio_of_variances_lies_in_the_interval():
    rng = np.random.default_rng(5)
    scalars = rng.standard_normal((300, 6)) * 0.01 + np.array([0.0, 1.0, 0.5, 2.25, 0.0, 0.25])
    found: Comparison = compared(made(rng, 300, 1.0, 1.0), made(rng, 300, 2.0, 1.0), scalars)
    assert found.variance_ratio.low < 4.0 < found.variance_ratio.high
    assert 3.5 < found.variance_ratio.value < 4.5
    assert found.variance_ratio.low > 1.0
    assert found.cosine.value == pytest.approx(1.0, abs=0.02)
    assert found.scalar_variance_ratio.value == pytest.approx(2.0, abs=0.05)
    assert found.claimed_ratio.value == pytest.approx(0.75, abs=0.05)
    assert found.gain_baselined.value - found.gain_raw.value == pytest.approx(0.5, abs=0.01)
