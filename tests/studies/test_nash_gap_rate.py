"""Slopes against N with their intervals, and the one-round proxy of the Nash gap."""

from __future__ import annotations

import numpy as np

from privmarket.market._distributions import scenario
from privmarket.mechanisms import mechanism
from privmarket_studies.nash_gap_rate import fit_slope, one_round_regret


def test_slope_and_its_interval():
    rng = np.random.default_rng(0)
    sizes = [10, 30, 100, 300, 1000]
    values = [n**-0.7 * rng.lognormal(0, 0.3, 30) for n in sizes]
    fit = fit_slope(sizes, values, rng)
    assert fit is not None
    assert fit.low < -0.7 < fit.high
    assert fit.high - fit.low < 0.2
    assert fit_slope(sizes, [v - 1 for v in values], rng) is None


def test_one_round_proxy_is_zero_for_an_exact_rule_and_not_for_another():
    distribution = scenario("uniform")
    exact, paid = one_round_regret(mechanism("mean-field-menu"), distribution, 30, 0.5, seeds=range(2))
    loose, _ = one_round_regret(mechanism("jsam"), distribution, 30, 0.5, seeds=range(2))
    assert exact.max() < 1e-9
    assert loose.min() > 1e-3
    assert paid.min() > 0
