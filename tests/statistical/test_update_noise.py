"""The noise is there: its size is read off the updates that clients really release.

Fixed seeds. Each comparison is of a sample deviation over n normals, whose relative error is √(1/2n); a limit
of five such errors gives a false alarm less than once in a million.
"""

import numpy as np
import pytest
import torch

from privmarket.privacy._calibration import noise_multiplier
from privmarket.privacy._noise import NoiseSource
from privmarket.rounds import Round, Terms
from privmarket.simulation._config import FederationConfig, Training
from privmarket.simulation._federation import Federation, SimulatedClients
from privmarket.training import ClientRecords, LocalPlan, build_model, private_updates

SHAPE = (1, 8, 8)


def records(sizes, seed=0):
    torch.manual_seed(seed)
    total = sum(sizes)
    return ClientRecords(torch.randn(total, *SHAPE), torch.randint(0, 10, (total,)), sizes)


def sources(count, seed):
    return [NoiseSource.from_seed(seed, i) for i in range(count)]


MODELS = [build_model(name, SHAPE, 10) for name in ("mlp", "cnn")]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_deviation_of_a_full_batch_release(model):
    """Full batch: the update minus the noiseless update is exactly the noise."""
    plan = LocalPlan(clip_norm=0.7, learning_rate=0.3, expected_batch=50.0)
    weights = model.initial_weights(np.random.default_rng(0))
    data, sigmas = records([30, 1, 80]), [0.5, 2.0, 8.0]
    quiet = private_updates(model, weights, data, plan, [0.0] * 3, sources(3, 1))
    draws = [private_updates(model, weights, data, plan, sigmas, sources(3, s)) - quiet for s in range(2, 22)]
    noise = torch.stack(draws).double()  # (draws, clients, parameters)
    for client, sigma in enumerate(sigmas):
        claimed = sigma * 0.7 * 0.3 / 50.0
        mine = noise[:, client]
        assert float(mine.std()) == pytest.approx(claimed, rel=5 / np.sqrt(2 * mine.numel()))
        assert abs(float(mine.mean())) < 5 * claimed / np.sqrt(mine.numel())
    # clients do not share noise, and neither do draws
    assert abs(float(torch.corrcoef(noise[0, :2])[0, 1])) < 5 / np.sqrt(model.parameters)
    assert abs(float(torch.corrcoef(noise[:2, 0])[0, 1])) < 5 / np.sqrt(model.parameters)


def test_a_tenth_of_the_noise_would_be_noticed():
    """The same comparison on updates that carry a tenth of the claimed noise."""
    model, data = build_model("logistic", SHAPE, 10), records([20])
    weights = model.initial_weights(np.random.default_rng(0))
    quiet, weak = (
        private_updates(model, weights, data, LocalPlan(), [sigma], sources(1, 1)).double() for sigma in (0.0, 0.2)
    )
    assert float((weak - quiet).std()) != pytest.approx(2.0, rel=5 / np.sqrt(2 * model.parameters))


def test_deviation_adds_up_over_steps():
    """With a flat loss (no records) k steps leave exactly k independent noises."""
    model = build_model("logistic", SHAPE, 10)
    plan = LocalPlan(steps=9, sampling_rate=0.5, clip_norm=1.0, learning_rate=1.0, expected_batch=10.0)
    empty = records([0])
    weights = model.initial_weights(np.random.default_rng(0))
    updates = torch.cat(
        [private_updates(model, weights, empty, plan, [2.0], sources(1, s)) for s in range(40)]
    ).double()
    assert float(updates.std()) == pytest.approx(3 * 2.0 / 10.0, rel=5 / np.sqrt(2 * updates.numel()))


def test_sold_epsilon_sets_the_noise_of_a_market_round():
    """From the auction to the update: σ = noise_multiplier(ε sold, δ), whatever was paid."""
    config = FederationConfig(clients=10, rounds=1, budget=3.0, training=Training(clip_norm=0.5))
    with Federation(config) as federation:
        state = federation.start()
        auction = Round.publish(Terms(0, 3_000_000, federation.family, 5.0))
        auction = auction.bid(
            SimulatedClients(federation, state).offers(federation.pacing.terms(state.records))
        ).clear(federation.mechanism)
        assert len(auction.awards) >= 2
        noisy = federation.run_clients(state, auction.awards)
        quiet = federation.run_clients(state, dict.fromkeys(auction.awards))
        plan = federation.pool.plan
    for row, award in enumerate(auction.awards.values()):
        sum_noise = (noisy - quiet)[row] * plan.expected_batch / plan.learning_rate
        sigma = noise_multiplier(award.epsilon, config.delta)
        assert sum_noise.std() == pytest.approx(sigma * plan.clip_norm, rel=5 / np.sqrt(2 * sum_noise.size))


def test_poisson_batches_have_the_stated_rate():
    """Noiseless one-step updates of a client with equal records count how many were drawn."""
    model = build_model("logistic", SHAPE, 10)
    same = ClientRecords(torch.ones(400, *SHAPE), torch.zeros(400, dtype=torch.int64), [400])
    weights = model.initial_weights(np.random.default_rng(0))
    one = ClientRecords(same.inputs[:1], same.labels[:1], [1])
    full = LocalPlan(clip_norm=1.0)
    each = float(private_updates(model, weights, one, full, [0.0], sources(1, 0)).norm())
    plan = LocalPlan(sampling_rate=0.1, clip_norm=1.0)
    counts = [
        float(private_updates(model, weights, same, plan, [0.0], sources(1, s)).norm()) / each for s in range(200)
    ]
    # 200 draws of Binomial(400, 0.1): mean 40 ± 6/√200, deviation 6
    assert np.mean(counts) == pytest.approx(40, abs=5 * 6 / np.sqrt(200))
    assert np.std(counts) == pytest.approx(6, rel=5 / np.sqrt(400))


def test_the_normaliser_is_public():
    """Adding a record changes the sum by at most C over a constant: the private size divides nothing."""
    model = build_model("mlp", SHAPE, 10)
    plan = LocalPlan(clip_norm=0.2, expected_batch=7.0)
    weights = model.initial_weights(np.random.default_rng(0))
    data = records([40])
    fewer = ClientRecords(data.inputs[:-1], data.labels[:-1], [39])
    with_it, without = (
        private_updates(model, weights, d, plan, [0.0], sources(1, 0)).double() for d in (data, fewer)
    )
    assert float((with_it - without).norm()) <= 0.2 / 7.0 * (1 + 1e-6)
