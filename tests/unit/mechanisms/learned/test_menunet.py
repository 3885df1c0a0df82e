"""The exact learned menu: no lie pays on any law, and it buys what it was learned for."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import privmarket as pm
from privmarket.errors import ConfigurationError
from privmarket.market._attacks import AscentAttack, GridAttack, combined
from privmarket.market._bids import Bids
from privmarket.market._bounds import fluid_bound
from privmarket.market._distributions import scenario
from privmarket.market._guarantees import BudgetFeasible, IndividuallyRational, WithinOffer
from privmarket.market._mechanism import Mechanism
from privmarket.market._menus import MenuCurve
from privmarket.market._objectives import AggregationError
from privmarket.market._outcome import Outcome
from privmarket.mechanisms.learned._menu_training import CurveSearch, learn_curve
from privmarket.mechanisms.learned._menunet import Floors, Ladder, MfgMenuNet, ladder_levels
from privmarket.mechanisms.learned._objectives import best_weights
from tests.conftest import awkward_budgets, awkward_markets

P2 = {"objective": "aggregation-error", "heterogeneity": 0.2}
FLOORS = {"service_share": 0.1, "service_valuation": 0.8, "unit_compensation": 0.3}
SETTINGS = {"total ε": {}, "P2": P2, "floors": FLOORS, "P2 with floors": {**P2, **FLOORS}}
ATTACK = combined(GridAttack(21, 6, 8), AscentAttack(6, 12))


def unseen(name, rng, shape):
    if name == "bimodal":
        return scenario(name).sample(rng, shape[-1], shape[:-1])
    v = {
        "beta": lambda: rng.beta(0.5, 2.0, shape),
        "pareto": lambda: 0.1 * (1 + rng.pareto(1.2, shape)),
        "two points": lambda: rng.choice([0.2, 0.7], shape),
        "uniform": lambda: rng.random(shape),
        "lognormal": lambda: rng.lognormal(0, 0.5, shape),
    }[name]()
    return Bids(v, rng.uniform(0.1, 5.0, shape))


@pytest.mark.parametrize("settings", SETTINGS)
def test_no_lie_pays_on_any_law(settings, rng):
    rule = pm.mechanism("mfg-menunet", **SETTINGS[settings])
    # Three markets of each law, attacked together: an attack takes as long on many markets as on one.
    laws = ("uniform", "bimodal", "lognormal", "beta", "pareto", "two points")
    samples = [unseen(law, rng, (3, 25)) for law in laws]
    types = Bids(*(np.concatenate([getattr(one, part) for one in samples]) for part in ("valuation", "epsilon")))
    assert ATTACK(rule, types, 12.0, rng).gain.max() <= 1e-9
    outcome = rule.run(types, 12.0)
    for promise in (IndividuallyRational(), BudgetFeasible(), WithinOffer()):
        assert promise.holds(types, outcome, 12.0).held


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("clients", [1, 4])
def test_promises_hold_on_awkward_markets(settings, clients, rng):
    rule = pm.mechanism("mfg-menunet", **SETTINGS[settings])
    types, budgets = awkward_markets(rng, 8, clients), awkward_budgets(rng, 8)
    for promise in rule.guarantees:
        finding = promise.check(rule, types, budgets, rng)
        assert finding.held, f"{finding.promise}: {finding.worst} {finding.detail}"


def test_a_menu_chosen_by_looking_at_the_bids_would_be_caught(rng):
    """The broken subject: the price level follows the mean report, so a report moves its own menu."""

    class LooksAtBids(MfgMenuNet):
        unilateral = Mechanism.unilateral

        def clear(self, bids, budget):
            level = np.broadcast_to(1.5 * bids.valuation.mean(axis=-1, keepdims=True), bids.shape)
            return Outcome(*self._at(bids.valuation, bids.epsilon, level))

    types = unseen("uniform", rng, (2, 8))
    assert ATTACK(LooksAtBids(), types, 4.0, rng).gain.max() > 1e-3


@pytest.mark.parametrize(("law", "per_client"), [("uniform", 0.5), ("bimodal", 0.5), ("lognormal", 1.0)])
@pytest.mark.parametrize(("clients", "markets", "least"), [(100, 100, 0.96), (1000, 40, 0.99)])
def test_total_epsilon_is_near_the_fluid_bound(law, per_client, clients, markets, least):
    """Table II's budgets at N = 100, and as much per client at N = 1,000."""
    types = scenario(law).sample(np.random.default_rng(4), clients, (markets,))
    budget = per_client * clients
    bought = pm.mechanism("mfg-menunet").run(types, budget).total_epsilon.mean()
    assert bought / fluid_bound(scenario(law), clients, budget) >= least


@pytest.mark.parametrize(("heterogeneity", "least_gain"), [(0.1, 0.15), (0.2, 0.35)])
def test_aggregation_error_beats_the_best_classical_truthful_rule(heterogeneity, least_gain):
    goal = AggregationError(1.0, heterogeneity)
    types = scenario("uniform").sample(np.random.default_rng(8), 100, (60,))

    def error(name, **settings):
        return float(np.mean(goal.value(pm.mechanism(name, **settings).run(types, 50.0), types)))

    classical = min(error(name) for name in ("pac", "proportional-share", "mean-field-menu"))
    assert error("mfg-menunet", objective=goal) <= (1 - least_gain) * classical


def test_where_noise_alone_counts_a_posted_price_is_right():
    rule = pm.mechanism("mfg-menunet", objective="aggregation-error", heterogeneity=0.01)
    assert rule.curve_for(100, 0.5).price.size == 1


def test_the_curve_is_chosen_by_public_facts_only(rng):
    """Two markets with other bids, equal in number and budget, are offered the same menu."""
    rule = pm.mechanism("mfg-menunet", **P2)
    assert rule.curve_for(50, 0.4) is rule.curve_for(50, 0.4)
    assert "bids" not in type(rule).curve_for.__code__.co_varnames


def test_service_floor_serves_everyone_up_to_the_stated_valuation(rng):
    rule = pm.mechanism("mfg-menunet", service_share=0.15, service_valuation=0.7)
    types = scenario("uniform").sample(rng, 200, (5,))
    served = rule.run(types, 100.0).epsilon / types.epsilon
    assert served[types.valuation <= 0.7].min() >= 0.15 - 1e-12
    plain = pm.mechanism("mfg-menunet").run(types, 100.0).epsilon / types.epsilon
    assert (plain[types.valuation <= 0.7] < 0.15).any()


def test_compensation_floor_pays_every_sold_unit(rng):
    rule = pm.mechanism("mfg-menunet", unit_compensation=0.6)
    types = scenario("uniform").sample(rng, 200, (5,))
    outcome = rule.run(types, 100.0)
    sold = outcome.epsilon > 0
    assert sold.any()
    assert (outcome.payment[sold] / outcome.epsilon[sold]).min() >= 0.6 - 1e-12
    plain = pm.mechanism("mfg-menunet").run(types, 100.0)
    assert (plain.payment[plain.epsilon > 0] / plain.epsilon[plain.epsilon > 0]).min() < 0.6


def test_an_unaffordable_floor_is_rationed_not_overspent(rng):
    rule = pm.mechanism("mfg-menunet", service_share=0.9, service_valuation=1.0)
    types = scenario("uniform").sample(rng, 50)
    outcome = rule.run(types, 5.0)
    assert 0 < outcome.spend <= 5.0


def test_floors_without_a_floor_are_the_plain_menu(rng):
    curve = MenuCurve([0.6, 1.7], [0.35, 0.65])
    types = scenario("uniform").sample(rng, 40)
    facing = ladder_levels(Ladder(curve, Floors()), types.valuation, types.epsilon, 15.0, 5.0)
    plain = pm.mechanism("mean-field-menu", curve=curve).price_levels(types, 15.0)
    np.testing.assert_allclose(facing[1], plain, rtol=1e-12)


@pytest.mark.parametrize(
    "bad", [{"service_share": 1.5}, {"unit_compensation": -1.0}, {"service_valuation": np.inf}]
)
def test_senseless_floors_are_refused(bad):
    with pytest.raises(ConfigurationError):
        pm.mechanism("mfg-menunet", **bad)


def test_fast_weights_are_the_optimal_ones(rng):
    import torch

    epsilon = rng.uniform(0.05, 5.0, (4, 30))
    bids = Bids(np.ones_like(epsilon), epsilon)
    goal = AggregationError(1.0, 0.2)
    exact = goal.optimal_weights(epsilon, bids)
    unit = torch.tensor(1.0 / epsilon**2)
    fast = best_weights(unit, torch.full_like(unit, 1 / 30), 0.2, bisections=40).numpy()
    np.testing.assert_allclose(goal.error(epsilon, fast, bids), goal.error(epsilon, exact, bids), rtol=1e-6)


def test_learning_beats_a_posted_price_where_bias_counts(rng):
    search = CurveSearch(prices=20, steps=15, markets=4, validation=12)
    learned = learn_curve(scenario("uniform"), 40, 20.0, AggregationError(1.0, 0.4), rng, search)
    assert learned.value < 0.9 * learned.posted_price_value


def test_running_it_does_not_import_torch():
    code = (
        "import sys, privmarket as pm; pm.mechanism('mfg-menunet').run(pm.Bids([.1, .2], [1., 1.]), 1.0);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
