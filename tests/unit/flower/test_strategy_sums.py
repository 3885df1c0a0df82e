"""Aggregate trust around a Flower strategy: it sees the opened average, and nothing else."""

import math
from dataclasses import replace

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian

import privmarket as pm
from privmarket.errors import ConfigurationError
from privmarket.flower import _refusals as refusals, _wire as wire
from privmarket.flower._checkpoint import SettledRounds
from privmarket.flower._defaults import plan_round
from privmarket.privacy._accountant import certify
from privmarket.privacy._policy import SellerPolicy
from privmarket.secagg import MaskedInput
from tests.unit.flower.toy import Wire

CLIENTS = 6
START = {"w": np.zeros((3, 2), dtype=np.float32), "b": np.zeros(4, dtype=np.float32)}
MARKET = {
    "trust": "aggregate",
    "mechanism": "ration",
    "mechanism_settings": {"unit_price": 0.9},
    "budget": 6.0,
    "expected_batch": 40.0,
    "learning_rate": 0.5,
}


class Shares:
    """Integers that a client would train: its number in every place, and noise of the seller's source."""

    @staticmethod
    def records(context):
        return 40

    @staticmethod
    def share(weights, job, grid):
        rng = np.random.default_rng([int(job.client), job.sale.number])
        return {name: rng.integers(-1000, 1000, array.shape) for name, array in weights.items()}


def client(policy=None):
    return pm.flower.client_app(
        lambda weights, job: weights,
        share=Shares,
        valuation=0.1,
        epsilon=1.0,
        data_size=40.0,
        policy=policy
        or SellerPolicy(
            epsilon_per_sale=math.inf,
            epsilon_lifetime=math.inf,
            trust=("aggregate",),
            minimum_cohort=2,
            register="none",
        ),
        wallet="unlimited",
        secure_aggregation=True,
    )


def play(inner, app=None, rounds=2, **changes):
    grid = Wire(app or client(), CLIENTS)
    strategy = pm.flower.AuctionStrategy(inner, **{**MARKET, **changes})
    result = strategy.start(grid, wire.write_arrays(START), num_rounds=rounds)
    return strategy, result, grid


def test_fedavg_is_the_markets_own_server_without_momentum():
    strategy, result, _ = play(FedAvg(fraction_evaluate=0.0))
    server = pm.flower.server_app(
        initial_weights=lambda: START, rounds=2, momentum=0.0, final_rate=1.0, averaging=0.0, **MARKET
    )
    own = pm.flower.run_in_process(server, client(), CLIENTS, grid=Wire(client(), CLIENTS))
    assert [record.paid_micro for record in strategy.records] == [record.paid_micro for record in own.records]
    assert len(strategy.records[0].paid_micro) == CLIENTS
    for name, array in own.weights.items():
        np.testing.assert_allclose(result.arrays[name].numpy(), array, rtol=1e-6, atol=1e-9)
        assert np.abs(array).max() > 0


def test_no_single_update_reaches_the_server():
    _, _, grid = play(FedAdam(fraction_evaluate=0.0))
    replies = [reply for reply in grid.answered if reply.metadata.message_type == wire.TRAIN]
    assert not any(len(record) for reply in replies for record in reply.content.array_records.values())
    masked = [wire.take_sum(reply.content) for reply in replies if wire.SUM in reply.content]
    assert sum(isinstance(message, MaskedInput) for message in masked) == 2 * CLIENTS


def test_a_sum_that_stays_closed_moves_nothing_and_pays_nobody():
    careful = SellerPolicy(
        epsilon_per_sale=math.inf, epsilon_lifetime=math.inf, trust=("aggregate",), register="none"
    )
    strategy, result, grid = play(FedAvg(fraction_evaluate=0.0), client(careful), rounds=1)
    assert strategy.records[0].paid_micro == {}
    assert not result.arrays["w"].numpy().any()  # as it began
    assert all(refusals.refusals(context) == {"cohort": 1} for context in grid.contexts.values())


def test_a_strategy_that_compares_updates_is_refused():
    with pytest.raises(ConfigurationError, match="FedMedian"):
        pm.flower.AuctionStrategy(FedMedian(), **MARKET)

    class Mine(FedAvg):
        uses_only_average = True

    pm.flower.AuctionStrategy(Mine(), **MARKET)


def test_a_statement_says_what_is_left_if_all_others_collude():
    strategy, _, _ = play(FedAvg(fraction_evaluate=0.0))
    statement = strategy.result.statement("0")
    # Each of six sellers adds a quarter of the noise variance: four of them must be honest.
    alone = [replace(e, noise_multiplier=e.noise_multiplier / 2.0) for e in strategy.result.releases["0"]]
    assert statement.epsilon_if_others_collude == pytest.approx(certify(alone, strategy.settings.delta).epsilon)
    assert statement.epsilon_if_others_collude > statement.epsilon
    assert "if all others collude" in str(statement)


def test_a_run_that_goes_on_still_knows_its_cohorts(tmp_path):
    settled = SettledRounds({}, (), {"w": np.zeros(2)}, (), cohorts={0: 2, 3: 1})
    settled.write(tmp_path / "result.partial.npz")
    assert SettledRounds.read(tmp_path / "result.partial.npz").cohorts == {0: 2, 3: 1}


def test_the_chosen_rate_knows_that_several_sums_have_more_noise():
    strategy, _, _ = play(FedAvg(fraction_evaluate=0.0), rounds=1)
    auction = strategy._open[0]
    one, two = (
        plan_round(replace(strategy.settings, largest_cohort=largest), auction, 10, declared=40.0, server_gain=1.0)
        for largest in (CLIENTS, CLIENTS // 2)
    )
    assert two.noise_ratio == pytest.approx(math.sqrt(2.0) * one.noise_ratio)
