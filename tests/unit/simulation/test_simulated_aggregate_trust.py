"""Runs whose server sees only sums: money and wallets as ever, drop-outs, workers, what is refused."""

import numpy as np
import pytest

from privmarket.errors import ConfigurationError
from privmarket.privacy._wallet_store import MemoryStore
from privmarket.rounds import LocalAuctioneer, hold_auction
from privmarket.secagg import honest_sellers
from privmarket.simulation._config import FederationConfig, Training
from privmarket.simulation._federation import Federation, SimulatedClients, run
from privmarket.simulation._result import summarise

TRAINING = Training(model="logistic", clip_norm=1.0, server_rate=2.0)


def config(**changes) -> FederationConfig:
    given = {
        "clients": 12,
        "rounds": 3,
        "budget": 6.0,
        "mechanism": "ration",
        "mechanism_settings": {"unit_price": 1.0},
        "trust": "aggregate",
        "training": TRAINING,
    }
    return FederationConfig(**{**given, **changes})


def test_money_and_wallets_are_charged_as_under_local_trust():
    sums, updates = run(config()), run(config(trust="local"))
    assert [r.paid_micro for r in sums.records] == [r.paid_micro for r in updates.records]
    assert [r.sold_epsilon for r in sums.records] == [r.sold_epsilon for r in updates.records]
    assert sums.wallets.to_json() == updates.wallets.to_json()
    assert not np.array_equal(sums.weights, updates.weights)


def test_any_number_of_workers_gives_the_same_bits():
    alone, together = run(config(clients=23)), run(config(clients=23), workers=2)
    np.testing.assert_array_equal(alone.weights, together.weights)


def test_the_sum_has_about_the_root_of_n_less_noise_than_local_trust():
    """One round, everybody sells the same: the deviation from the noiseless round is read off the models."""
    one = {"rounds": 1, "clients": 40, "budget": 8.0}
    quiet = run(config(mode="no-noise", **one)).weights
    shared = (run(config(**one)).weights - quiet).std()
    local = (run(config(trust="local", aggregation="inverse-noise", **one)).weights - quiet).std()
    n, h = 40, honest_sellers(40, 2 / 3)
    limit = 5 / np.sqrt(2 * quiet.size)
    assert local / shared == pytest.approx(np.sqrt(n) * np.sqrt(h / n), rel=2 * limit)


def test_updates_are_weighed_by_what_was_sold():
    """Without noise the sum is Σ w·S/Σ w with w ∝ 1/σ, and the secure sum agrees with it up to its noise."""
    with Federation(config(budget=36.0)) as federation:
        state = federation.start()
        clients = SimulatedClients(federation, state)
        store = MemoryStore(federation.place, state.wallets)
        terms, auctioneer = federation.pacing.terms(state.records), LocalAuctioneer(federation.mechanism)
        market = hold_auction(terms, clients, auctioneer, store)
        sellers = list(market.awards)
        quiet = federation.run_clients(state, dict.fromkeys(sellers))
        strength = np.array([1 / award.event.noise_multiplier for award in market.awards.values()])
        assert strength.max() > 1.5 * strength.min()
        mean = (strength / strength.sum()) @ quiet
        plan = federation.shared_sum(market)
        rate = federation.pool.plan.learning_rate / federation.pool.plan.expected_batch
        noise = clients.train(market).update - mean
        claimed = rate * plan.deviation(range(len(sellers)))
    assert noise.std() == pytest.approx(claimed, rel=5 / np.sqrt(2 * noise.size))


def test_dropped_sellers_are_unpaid_and_charged_and_the_rest_is_opened():
    result = run(config(clients=30, dropout=0.15, seed=3))
    record = result.records[0]
    missing = set(record.sold_epsilon) - set(record.paid_micro)
    assert 0 < len(missing) <= 10
    assert missing == set(record.dropped)
    assert all(epsilon > 0 for epsilon in record.sold_epsilon.values())
    assert np.abs(result.weights).sum() > 0


def test_too_few_survivors_reveal_nothing_and_the_budget_goes_back():
    state_before = None
    with Federation(config(clients=30, dropout=0.6, rounds=1)) as federation:
        state_before = federation.start()
        after = federation.step(state_before)
    record = after.records[0]
    assert record.paid_micro == {}
    assert record.spent_micro == 0
    assert after.remaining_micro == state_before.remaining_micro
    assert "25 are needed" in next(why for why in record.dropped.values() if "needed" in why)
    np.testing.assert_array_equal(after.server.weights.numpy(), state_before.server.weights.numpy())
    # who started stays charged
    assert len(record.sold_epsilon) == 30
    assert (after.wallets.remaining_share <= 1).all()
    assert sum(entry is not None for entry in after.wallets.history[-1]) == 30


def test_a_receipt_also_says_what_is_left_if_all_others_collude():
    summary = summarise(run(config()))
    for row in summary["clients"]:
        assert row["epsilon_if_others_collude"] > row["epsilon_spent"] > 0
    local = summarise(run(config(trust="local")))
    assert all(row["epsilon_if_others_collude"] is None for row in local["clients"])


@pytest.mark.parametrize(
    "changes", [{"mode": "literal"}, {"mode": "no-dp"}, {"training": Training(model="logistic", steps=2)}]
)
def test_what_a_secure_sum_cannot_carry_is_refused_before_the_first_round(changes):
    with pytest.raises(ConfigurationError, match="trust 'aggregate'"):
        Federation(config(**changes))


def test_a_modulus_too_small_is_refused_before_the_first_round(monkeypatch):
    monkeypatch.setattr("privmarket.simulation._federation.MODULUS_BITS", 20)
    with pytest.raises(ConfigurationError, match="the modulus has 20"):
        Federation(config())
