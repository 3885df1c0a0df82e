"""The buyer's objectives as tensors, against their NumPy definitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from privmarket.market._bids import Bids
from privmarket.market._distributions import scenario
from privmarket.market._objectives import AggregationError
from privmarket.market._outcome import Outcome
from privmarket.mechanisms.learned._markets import MarketSampler, Trade, group
from privmarket.mechanisms.learned._objectives import aggregation_error, reference_quantity, training_objective
from privmarket.mechanisms.learned._recipes import MisreportSearch, recipe
from privmarket.mechanisms.learned._trainer import new_trainer

UNIFORM = scenario("uniform")


def test_the_error_is_that_of_the_market_layer_also_where_some_sell_nothing(rng):
    sold = rng.uniform(0.1, 5.0, (4, 20)) * (rng.random((4, 20)) < 0.7)
    size = rng.uniform(0.2, 1.8, (4, 20))
    bids = Bids(np.ones_like(sold), np.full_like(sold, 5.0), data_size=size)
    known = AggregationError(1.0, 0.2).value(Outcome(sold, sold), bids)
    records = torch.tensor(size / size.mean(-1, keepdims=True))
    found = aggregation_error(torch.tensor(sold), records, 1.0, 0.2)
    np.testing.assert_allclose(found.numpy(), known, rtol=1e-4)


def test_its_gradient_is_that_of_the_error_at_the_best_weights(rng):
    """The envelope theorem: holding the weights fixed loses nothing to first order."""
    sold = torch.tensor(rng.uniform(0.5, 5.0, (1, 8)), requires_grad=True)
    records = torch.ones(1, 8, dtype=torch.float64)
    aggregation_error(sold, records, 1.0, 0.3).sum().backward()
    bids = Bids(np.ones((1, 8)), np.full((1, 8), 9.0))
    goal, step = AggregationError(1.0, 0.3), 1e-4
    for client in range(8):
        up, down = (sold.detach().numpy().copy() for _ in range(2))
        up[0, client] += step
        down[0, client] -= step
        slope = (goal.value(Outcome(up, up), bids) - goal.value(Outcome(down, down), bids)) / (2 * step)
        assert sold.grad[0, client].item() == pytest.approx(slope[0], rel=0.02, abs=1e-7)


@pytest.mark.parametrize("budget", [0.3, 30.0])
def test_empty_seats_are_no_part_of_the_reference(budget, rng):
    market, _ = MarketSampler([UNIFORM], (7, 7), (budget, budget), rows=70).draw(rng)
    torch.testing.assert_close(reference_quantity(group(market, 12)), reference_quantity(market))


@pytest.mark.parametrize("name", ["total-epsilon", "aggregation-error", "revenue"])
def test_one_percent_more_from_everybody_is_about_one_percent_better(name, rng):
    market, _ = MarketSampler([UNIFORM], (40, 40), (0.5, 0.5), rows=120).draw(rng)
    trade = Trade(0.4 * market.epsilon, 0.4 * market.epsilon * market.valuation)
    more = Trade(1.01 * trade.epsilon, 1.01 * trade.payment)
    before, after = (training_objective(name, 1.0, 0.0).value(market, t) for t in (trade, more))
    scale = 1.0 if name == "aggregation-error" else before.mean().item()
    assert (after - before).mean().item() == pytest.approx(0.01 * scale, rel=0.02)


def test_a_network_trained_for_the_error_makes_less_of_it_than_one_trained_for_total_epsilon():
    """Where bias counts, from the same start in the same time."""
    steering = replace(recipe("mfg-regretnet").steering, first=1.0)
    goal, fresh = AggregationError(1.0, 0.4), UNIFORM.sample(np.random.default_rng(9), 30, (200,))

    def error_after_training(objective):
        run = new_trainer(
            recipe(
                "mfg-regretnet",
                scenarios=("uniform",),
                clients=(30, 30),
                budget_per_client=(0.5, 0.5),
                objective=objective,
                heterogeneity=0.4,
                steps=30,
                rows=300,
                learning_rate=1e-2,
                network={"hidden": 16, "gate_hidden": 8},
                attack=MisreportSearch(rows=60),
                steering=steering,
                alignment=replace(recipe("mfg-regretnet").alignment, weight=0.0),
            ),
            [UNIFORM],
        )
        run.run(lambda progress: None)
        from privmarket.mechanisms.learned._markets import from_bids

        markets = from_bids(fresh, np.full((200, 1), 15.0), 5.0, torch.float32)
        with torch.no_grad():
            trade = run.network.clear(run.network.encode(markets), markets)
        sold = trade.epsilon.double().numpy()
        return float(np.mean(goal.value(Outcome(sold, sold), fresh)))

    assert error_after_training("aggregation-error") < 0.97 * error_after_training("total-epsilon")
