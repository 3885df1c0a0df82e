"""The paper's assumptions: which hold for our games, and which a rule breaks."""

import numpy as np
import pytest

import privmarket as pm
from privmarket.market._menus import POSTED_PRICE, from_function
from privmarket.meanfield import Diffusion, MenuMarket, Problem, Slope, check_assumptions, payment_slope

LINEAR = from_function(lambda y: np.clip(1.0 - y, 0.0, 1.0), 1.0, steps=10_000)


def test_slopes_with_known_answers():
    assert not (straight := Slope.of(lambda step: 3.0 * step)).jumps
    assert (straight.coarse, straight.fine) == pytest.approx((3.0, 3.0))
    assert Slope.of(lambda step: 0.5).jumps


@pytest.mark.parametrize("law", ["uniform", "bimodal", "lognormal"])
def test_bounded_parts_of_the_regularity_conditions_hold(law):
    problem = Problem.from_scenario(law)
    found = check_assumptions(problem)
    assert found.valuation_slope.fine == pytest.approx(problem.populations[0].process.reversion)
    assert {name for name, holds in found.holds.items() if holds} == {"R2", "R3", "R4"}
    assert 0 < found.largest_report < np.inf
    assert found.largest_cost == problem.valuation_limit * problem.market.most_sold
    assert 0 < found.second_moment < 30


def test_what_a_posted_price_sells_jumps_unless_it_is_averaged_over_a_cell():
    """(R1) fails for a step menu, holds on the solver's grid, and holds for a menu that slopes."""
    posted = Problem.from_scenario("uniform", market=MenuMarket(POSTED_PRICE, sale_cap=0.3))
    assert check_assumptions(posted).sold_slope.jumps
    averaged = check_assumptions(posted, cell=0.05).sold_slope
    assert not averaged.jumps
    assert averaged.fine == pytest.approx(0.3 / 0.05, rel=1e-6)  # the cap over the cell
    sloping = Problem.from_scenario("uniform", market=MenuMarket(LINEAR, sale_cap=0.3))
    assert not check_assumptions(sloping).sold_slope.jumps


def test_a_drift_that_jumps_is_seen():
    regime = Diffusion(lambda v, m: np.where(v < 0.5, 0.2, -0.2), lambda v: 0.3)
    market = MenuMarket(LINEAR, sale_cap=0.3)
    assert check_assumptions(Problem.from_scenario(process=regime, market=market)).valuation_slope.jumps
    steady = check_assumptions(Problem.from_scenario(market=market), pm.mechanism("pac"))
    assert steady.holds == {"R1": True, "R2": True, "R3": True, "R4": True, "Assumption 3": False}


def test_pay_under_algorithm_1_is_not_lipschitz_in_the_others_law():
    """Assumption 3 is said to hold for PAC; its pay jumps from 0 to v where the order of clients changes."""
    for name in ("pac", "mean-field-menu", "proportional-share", "csra", "k-plus-one-price"):
        assert payment_slope(pm.mechanism(name)).jumps, name


@pytest.mark.filterwarnings("ignore")
def test_pay_under_networks_changes_at_a_bounded_rate_there():
    for name in ("mfg-regretnet", "regretnet"):
        found = payment_slope(pm.mechanism(name))
        assert not found.jumps, name
        assert found.fine < 10
