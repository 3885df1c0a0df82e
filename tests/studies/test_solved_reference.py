"""A solved game as the reference of a training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from privmarket.errors import ConfigurationError
from privmarket.market._distributions import scenario
from privmarket.market._menus import POSTED_PRICE
from privmarket.meanfield import Grid, MenuMarket, Problem, solve
from privmarket.mechanisms.learned._markets import from_bids
from privmarket.mechanisms.learned._recipes import MisreportSearch, recipe
from privmarket.mechanisms.learned._trainer import new_trainer
from privmarket_studies.solved_reference import SolvedReference

UNIFORM = scenario("uniform")


@pytest.fixture(scope="module")
def reference():
    """One round in which clients offer what they offer on average in the scenario."""
    game = Problem.from_scenario(
        "uniform", budget_per_client=0.5, horizon=1.0, market=MenuMarket(POSTED_PRICE, 2.55)
    )
    return SolvedReference(solve(game, grid=Grid.parse("24x24x24"), tolerance=1e-4))


def market(budget_per_client, factor=1.0):
    types = UNIFORM.sample(np.random.default_rng(0), 40)
    return from_bids(
        types.replace(valuation=factor * types.valuation), np.array([40 * budget_per_client]), 5.0, torch.float64
    )


def test_payments_are_the_price_of_the_flow_and_scale_with_money(reference):
    here, cents = market(0.5), market(50.0, factor=100.0)
    paid = reference.payment(here, here.valuation, here.epsilon)
    price = reference.equilibrium.price[0]
    sells = here.valuation <= price
    torch.testing.assert_close(paid, torch.where(sells, price * here.epsilon, 0.0), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(reference.payment(cents, cents.valuation, cents.epsilon), 100 * paid)


def test_more_budget_and_less_cost_are_worth_more(reference):
    here = market(0.5)
    worth = reference.value(here, here.valuation, here.epsilon)
    assert (worth >= -1e-9).all()
    assert (reference.value(here, here.valuation, 0.5 * here.epsilon) <= worth + 1e-9).all()
    assert (reference.value(here, here.valuation + 0.1, here.epsilon) <= worth + 1e-9).all()


def small(**settings):
    base = recipe(
        "mfg-regretnet",
        scenarios=("uniform",),
        clients=(20, 20),
        budget_per_client=(0.5, 0.5),
        steps=40,
        rows=200,
        learning_rate=5e-3,
        network={"menus": 6, "hidden": 8, "gate_hidden": 8},
        attack=MisreportSearch(rows=20),
    )
    return base.with_settings({"alignment.anneal_steps": 1, "alignment.profiles": 10, **settings})


def test_a_recipe_may_refer_to_it(reference):
    """With a heavy weight on L_MFG, payments come closer to the solved ones than without it."""

    def distance(weight):
        chosen = small(**{"alignment.reference": "solved", "alignment.weight": weight, "baseline.source": "solved"})
        run = new_trainer(chosen.with_settings({"baseline.mixing": 0.2}), [UNIFORM], reference)
        run.run(lambda progress: None)
        markets = from_bids(
            UNIFORM.sample(np.random.default_rng(3), 20, (50,)), np.full((50, 1), 10.0), 5.0, torch.float32
        )
        with torch.no_grad():
            paid = run.network.clear(run.network.encode(markets), markets).payment
        return float((paid - reference.payment(markets, markets.valuation, markets.epsilon)).abs().mean())

    assert distance(3.0) < 0.95 * distance(0.0)


@pytest.mark.parametrize("name", ["alignment.reference", "baseline.source"])
def test_a_recipe_that_needs_it_says_so(name):
    with pytest.raises(ConfigurationError, match="no solved game was given"):
        new_trainer(small(**{name: "solved"}), [UNIFORM])
    with pytest.raises(ConfigurationError, match="choose one of"):
        new_trainer(small(**{name: "oracle"}), [UNIFORM])
