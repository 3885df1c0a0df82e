"""The best truthful rule of a small market, against closed forms and against rules."""

import numpy as np
import pytest

import privmarket as pm
from privmarket.errors import ConfigurationError
from privmarket.market._distributions import SCENARIOS, scenario
from privmarket.market._exact_optimum import TypeGrid, exact_optimum
from privmarket.market._facts import MarketFacts
from privmarket.market._guarantees import BudgetFeasible, IndividuallyRational, Truthful

UNIFORM = scenario("uniform")


def _coin(low, high, offer=1.0):
    return TypeGrid("coin", np.array([low, high]), np.array([offer]), np.array([[0.5], [0.5]]))


@pytest.mark.parametrize(
    ("budget", "best"),
    [
        (0.2, 0.6),  # all from v = 0.2, which sells everything, and from v = 1 what 0.2 pays for
        (1.0, 1.0),
        (0.6, 0.8),
    ],
)
def test_one_client_of_two_types_by_hand(budget, best):
    """Type 0.2 sells x1 for p1, type 1 sells x2 for p2 ≥ x2. Truth of the first: p1 − 0.2·x1 ≥ p2 − 0.2·x2.

    With p1 ≤ B the most is x1 = 1, x2 = (B − 0.2)/0.8 where all money goes to the first; x2 ≤ B as well.
    """
    x2 = min(1.0, budget, (budget - 0.2) / 0.8)
    assert exact_optimum(_coin(0.2, 1.0), 1, budget).total_epsilon == pytest.approx(0.5 * (1 + max(x2, 0.0)))
    assert best >= 0.5 * (1 + max(x2, 0.0)) - 1e-9


def test_enough_money_buys_everything():
    grid = TypeGrid.of(UNIFORM, 4, 2)
    most = 3 * float((grid.probability * grid.epsilons).sum())
    assert exact_optimum(grid, 3, 1e6).total_epsilon == pytest.approx(most)


def test_two_clients_by_brute_force_over_posted_prices():
    """A posted price with the money split evenly is truthful, rational and within budget: it cannot be better."""
    grid = TypeGrid.of(UNIFORM, 5, 2)
    best = exact_optimum(grid, 2, 1.0)
    bids, probability = best.profiles
    assert probability.sum() == pytest.approx(1.0)
    for price in grid.valuations:
        sold = np.where(bids.valuation <= price, np.minimum(bids.epsilon, 0.5 / price), 0.0)
        assert float(probability @ sold.sum(axis=-1)) <= best.total_epsilon + 1e-9


@pytest.mark.parametrize("money", [1e-12, 1e-9, 1e9, 1e12])
@pytest.mark.parametrize("amount", [1e-6, 1.0, 1e6])
def test_the_units_of_money_and_of_epsilon_change_nothing(money, amount):
    grid = TypeGrid.of(UNIFORM, 6, 2)
    other = TypeGrid("other units", grid.valuations * money, grid.epsilons * amount, grid.probability)
    best = exact_optimum(grid, 3, 1.5).total_epsilon
    assert exact_optimum(other, 3, 1.5 * money * amount).total_epsilon == pytest.approx(amount * best, rel=1e-9)


def test_asking_for_truth_in_epsilon_too_never_buys_more():
    for distribution in ("uniform", "bimodal", "valuation-function"):
        grid = TypeGrid.of(SCENARIOS[distribution], 4, 3)
        one = exact_optimum(grid, 2, 1.0).total_epsilon
        both = exact_optimum(grid, 2, 1.0, truthful_in="epsilon").total_epsilon
        assert 0.5 * one < both <= one + 1e-9


def test_the_table_is_truthful_for_every_pair_of_types_although_only_neighbours_are_asked(monkeypatch):
    """The same programme with all pairs of types that a client can deliver gives the same value."""
    from itertools import product

    from scipy.optimize import linprog

    grid = TypeGrid.of(SCENARIOS["bimodal"], 4, 2)
    v, e = np.meshgrid(grid.valuations, grid.epsilons, indexing="ij")
    v, e = v.ravel(), e.ravel()
    kinds, budget = v.size, 0.7
    pairs = list(product(range(kinds), repeat=2))  # own type, the other's; not symmetric, so no trick is shared
    place = {pair: i for i, pair in enumerate(pairs)}
    count = len(pairs)
    rows, limit = [], []

    def row(terms, bound):
        line = np.zeros(2 * count)
        for column, factor in terms:
            line[column] += factor
        rows.append(line)
        limit.append(bound)

    for own, other in pairs:
        here = place[own, other]
        row([(here, v[own]), (count + here, -1)], 0.0)
        row([(count + here, 1), (count + place[other, own], 1)], budget)
        for lie in range(kinds):
            if e[lie] <= e[own]:
                there = place[lie, other]
                row([(count + there, 1), (there, -v[own]), (count + here, -1), (here, v[own])], 0.0)
    chance = grid.probability.ravel()
    gain = np.array([2 * chance[own] * chance[other] for own, other in pairs] + [0.0] * count)
    offers = [(0.0, e[own]) for own, _ in pairs] + [(0.0, None)] * count
    found = linprog(-gain, A_ub=np.array(rows), b_ub=limit, bounds=offers, method="highs")
    best = exact_optimum(grid, 2, budget, truthful_in="epsilon").total_epsilon
    assert best == pytest.approx(-found.fun, rel=1e-9)


TRUTHFUL = [
    name
    for name in pm.mechanism_names()
    if name not in pm.mechanisms.learned_names()
    and {type(g) for g in pm.mechanism(name).guarantees} >= {IndividuallyRational, BudgetFeasible}
    and Truthful("valuation") in pm.mechanism(name).guarantees
]


@pytest.mark.parametrize("distribution", ["uniform", "lognormal"])
@pytest.mark.parametrize("clients", [2, 3])
def test_no_truthful_rule_passes_the_optimum(distribution, clients):
    best = exact_optimum(TypeGrid.of(SCENARIOS[distribution], 4, 2), clients, 0.5 * clients)
    facts = MarketFacts.of(SCENARIOS[distribution])
    for name in TRUTHFUL:
        assert best.ratio(pm.mechanism(name, market=facts)) <= 1 + 1e-9, name


class _KnowsTheCosts(pm.Mechanism):
    """Pays each client what it asks, the cheapest first: rational and within budget, but a lie pays."""

    name = "knows the costs"

    def clear(self, bids, budget):
        order = np.argsort(bids.valuation, axis=-1, kind="stable")
        price = np.take_along_axis(bids.valuation, order, axis=-1)
        offer = np.take_along_axis(bids.epsilon, order, axis=-1)
        before = np.cumsum(price * offer, axis=-1) - price * offer
        sold = np.clip((budget - before) / np.maximum(price, 1e-12), 0.0, offer)
        epsilon = np.zeros(bids.shape)
        np.put_along_axis(epsilon, order, sold, axis=-1)
        return pm.Outcome(epsilon, epsilon * bids.valuation)


def test_a_rule_that_is_not_truthful_can_pass_it():
    best = exact_optimum(TypeGrid.of(UNIFORM, 6, 2), 3, 1.5)
    assert best.ratio(_KnowsTheCosts()) > 1.05
    report = pm.audit(_KnowsTheCosts, clients=3, budget=1.5, profiles=1, attack="quick", exact=True)
    assert report.optimum == pytest.approx(best.total_epsilon)
    assert report.optimum_ratio == pytest.approx(best.ratio(_KnowsTheCosts()))


def test_questions_that_cannot_be_answered():
    with pytest.raises(ConfigurationError, match="give 1 to 4"):
        exact_optimum(UNIFORM, 5, 1.0)
    with pytest.raises(ConfigurationError, match="coarser"):
        exact_optimum(TypeGrid.of(UNIFORM, 20, 10), 4, 1.0)
    with pytest.raises(ConfigurationError, match="choose valuation or epsilon"):
        exact_optimum(UNIFORM, 2, 1.0, truthful_in="money")


def test_a_distribution_of_few_types_has_a_grid_of_these():
    few = scenario(pm.Bids([0.1, 0.2, 0.2, 0.4], [1.0, 1.0, 1.0, 1.0]))
    grid = TypeGrid.of(few)
    assert grid.name == "past bids, 3 × 1 types"
    assert grid.probability.ravel() == pytest.approx([0.25, 0.5, 0.25], abs=0.01)
    alone = TypeGrid.of(scenario(pm.Bids([0.1, 0.2, 0.2, 0.4], [1.0, 1.0, 2.0, 2.0]), independent=True), 4, 2)
    assert alone.probability == pytest.approx(np.outer([0.25, 0.5, 0.25], [0.5, 0.5]))
    report = pm.audit("pac", scenario=few, clients=2, budget=0.5, profiles=1, attack="quick", exact=True)
    assert 0 < report.optimum_ratio <= 1 + 1e-9


def test_rules_that_price_by_records_run_on_the_grid():
    """Every client of the grid declares the same records and accuracy, so such a rule has something to read."""
    grid = TypeGrid.of(scenario("valuation-function"), valuations=3, epsilons=2)
    bids = grid.sample(np.random.default_rng(0), 3, (2,))
    assert bids.data_size is not None
    assert bids.accuracy is not None
    np.testing.assert_allclose(bids.data_size, 550, atol=5)  # uniform on [100, 1000]
    np.testing.assert_allclose(bids.accuracy, 0.75, atol=0.005)  # uniform on [0.5, 1]
    assert TypeGrid.of(UNIFORM).sample(np.random.default_rng(0), 3).data_size is None
