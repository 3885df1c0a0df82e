"""Who plays: populations that share a market, and settings that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from privmarket.errors import ConfigurationError
from privmarket.market._distributions import IndependentDistribution
from privmarket.meanfield import Grid, Population, Problem, Result, solve

GRID = Grid(16, 12, 12)


def with_budget(epsilon: float) -> IndependentDistribution:
    return IndependentDistribution(f"budget {epsilon}", lambda u: u, lambda u: np.full_like(u, epsilon), 5.0)


def test_two_equal_populations_are_one():
    problem = Problem.from_scenario()
    (whole,) = problem.populations
    halves = [Population(whole.distribution, whole.process, 0.5, name=name) for name in ("a", "b")]
    split = problem.replace(populations=tuple(halves))
    assert split.name == "a + b"
    assert split.kind_names == ["a", "b"]
    np.testing.assert_allclose(solve(split, grid=GRID).price, solve(problem, grid=GRID).price, rtol=1e-9)


def test_each_population_bids_by_its_own_future():
    """One whose budget is scarce raises its bids, one with plenty reports its valuation."""
    (uniform,) = Problem.from_scenario().populations
    scarce = Population(with_budget(1.4), uniform.process, 0.5, name="scarce")
    plenty = Population(with_budget(5.0), uniform.process, 0.5, name="plenty")
    problem = Problem.from_populations([scarce, plenty])
    assert problem.valuation_limit == pytest.approx(Problem.from_scenario().valuation_limit)
    found = solve(problem, grid=GRID, tolerance=1e-4)
    assert found.result is Result.CONVERGED
    raised = (found.flow.mass[0] * found.shadow_price[0]).sum(axis=(1, 2)) / 0.5
    assert raised[0] > 0.05
    assert raised[1] < 0.2 * raised[0]


def test_shares_must_sum_to_one():
    (uniform,) = Problem.from_scenario().populations
    half = Population(uniform.distribution, uniform.process, 0.5)
    with pytest.raises(ConfigurationError, match=r"sum to 0\.5"):
        Problem.from_populations([half])
    with pytest.raises(ConfigurationError, match="share is 2"):
        Population(uniform.distribution, uniform.process, 2.0)
