"""Clients who look ahead in a federated run: the bid function of a solved mean-field game as their strategy."""

import numpy as np
import pytest

from privmarket.market._menus import POSTED_PRICE
from privmarket.meanfield import Grid, MenuMarket, Problem, solve, truthful
from privmarket.simulation._config import FederationConfig, Training
from privmarket.simulation._federation import Federation, SimulatedClients, run

CONFIG = FederationConfig(clients=20, rounds=4, budget=4.0, wallet=3.0, training=Training(model="logistic"), seed=1)


@pytest.fixture(scope="module")
def bid():
    problem = Problem.from_scenario(
        horizon=4.0, market=MenuMarket(POSTED_PRICE, sale_cap=2.0), budget_per_client=0.2
    )
    return solve(problem, grid=Grid(24, 24, 40), tolerance=1e-4).strategy()


def test_truth_as_a_strategy_changes_nothing():
    one, other = run(CONFIG), run(CONFIG, strategy=truthful)
    assert one.records == other.records
    assert np.array_equal(one.weights, other.weights)


def test_clients_who_look_ahead_are_paid_more_per_unit_at_first(bid):
    naive, strategic = run(CONFIG), run(CONFIG, strategy=bid)
    asked = bid(np.array([0.3]), np.array([3.0]), 0.0)
    assert asked > 0.31
    price = [r.records[0].spent_micro / r.records[0].total_epsilon for r in (naive, strategic)]
    assert price[1] > 1.05 * price[0]
    assert strategic.records[0].spent_micro <= 4_000_000


def test_the_strategy_sees_what_the_wallets_have_left():
    seen = []

    def spy(valuation, remaining, time):
        seen.append((remaining.copy(), time))
        return valuation

    run(CONFIG, strategy=spy)
    assert [time for _, time in seen] == [0.0, 1.0, 2.0, 3.0]
    np.testing.assert_allclose(seen[0][0], 3.0)
    assert seen[-1][0].min() < 3.0
    assert np.all(seen[-1][0] <= seen[0][0])


def test_without_a_wallet_there_is_nothing_to_save(bid):
    with Federation(CONFIG.replace(wallet=None), strategy=bid) as federation:
        offers = SimulatedClients(federation, federation.start()).offers(federation.pacing.terms(()))
        types = federation.types(0)
    for client, offer in offers.items():
        assert offer.valuation == pytest.approx(types.valuation[int(client)], abs=1e-12)
