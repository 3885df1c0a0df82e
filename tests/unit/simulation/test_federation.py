"""Whole runs: money, privacy, secure sums, checkpoints and processes."""

from __future__ import annotations

import re

import click
import numpy as np
import pytest

from privmarket.cli import _stopped
from privmarket.errors import CheckpointError, ConfigurationError, DataError, UnknownNameError
from privmarket.privacy._wallet_store import MemoryStore
from privmarket.rounds import MICRO, LocalAuctioneer, hold_auction
from privmarket.secagg import honest_sellers
from privmarket.simulation import _federation as simulation, _pool as pool
from privmarket.simulation._checkpoint import load_checkpoint
from privmarket.simulation._config import FederationConfig, Training
from privmarket.simulation._federation import Federation, SimulatedClients, run
from privmarket.simulation._pool import ClientPool
from privmarket.simulation._result import arithmetic_of, summarise
from privmarket.tasks import Dataset, task_of

SMALL = FederationConfig(clients=12, rounds=6, budget=5.0, training=Training(model="logistic"), seed=3)


def same(one, other):
    return (
        np.array_equal(one.weights, other.weights)
        and one.records == other.records
        and one.wallets.to_json() == other.wallets.to_json()
    )


def toy(sizes, classes=3):
    """A data set in which client i holds `sizes[i]` records, and its parts."""
    rng = np.random.default_rng(0)
    total = sum(sizes)
    labels = np.arange(total) % classes
    images = (labels[:, None, None, None] + 0.1 * rng.normal(size=(total, 1, 4, 4))).astype(np.float32)
    ends = np.cumsum(sizes)
    parts = [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return Dataset("toy", images, labels, images, labels, classes), parts


def federation_on(config, data, parts):
    return Federation(config, task=task_of(data, parts, model=config.training.model))


def step_all(federation):
    state = federation.start()
    while state.next_round < federation.config.rounds:
        state = federation.step(state)
    return state


def test_same_seed_same_result_and_other_seed_not():
    assert same(run(SMALL), run(SMALL))
    assert not same(run(SMALL), run(SMALL.replace(seed=4)))


def test_any_number_of_workers_gives_the_same_bits():
    many = SMALL.replace(clients=30, rounds=2, training=Training(model="mlp", sampling_rate=0.3))
    assert same(run(many), run(many, workers=2))


@pytest.mark.parametrize("killed_after", [1, 3, 5])
def test_a_killed_run_resumes_to_the_identical_result(tmp_path, killed_after):
    class Killed(Exception):
        pass

    def kill(record):
        if record.number + 1 == killed_after + 1:
            raise Killed

    path = tmp_path / "run.ckpt"
    config = SMALL.replace(wallet=6.0, total_budget=20.0, training=Training(model="logistic", averaging=0.5))
    with pytest.raises(Killed):
        run(config, checkpoint=path, checkpoint_every=1, on_round=kill)
    seen = []
    resumed = run(config, checkpoint=path, checkpoint_every=1, on_round=seen.append)
    assert same(resumed, run(config))
    assert [r.number for r in seen] == list(range(6))  # each round once: nothing lost, nothing twice


def test_a_checkpoint_cut_short(tmp_path):
    """The one before is used; if that is gone too, the run stops and says so."""
    path = tmp_path / "run.ckpt"
    whole = run(SMALL, checkpoint=path, checkpoint_every=1)
    path.write_bytes(path.read_bytes()[:-100])
    assert load_checkpoint(path).data["next_round"] == 5
    assert same(run(SMALL, checkpoint=path, checkpoint_every=1), whole)
    for place in tmp_path.iterdir():
        place.write_bytes(place.read_bytes()[:50])
    with pytest.raises(CheckpointError, match="cut short or altered"):
        run(SMALL, checkpoint=path)


def test_a_checkpoint_of_another_run(tmp_path):
    path = tmp_path / "run.ckpt"
    run(SMALL, checkpoint=path)
    other = SMALL.replace(budget=6.0, task="").replace_training(clip_norm=0.7)
    said = f"another run: budget was {SMALL.budget} and is 6.0; clip_norm was {SMALL.training.clip_norm} and is 0.7"
    with pytest.raises(CheckpointError, match=re.escape(said)):
        run(other, checkpoint=path)
    assert SMALL.replace(bids="a").differences(SMALL.to_json()) == ["clients ask otherwise"]


def test_a_run_stopped_by_ctrl_c_keeps_all_its_rounds_and_says_where_it_goes_on(tmp_path):
    def stop(record):
        if record.number == 2:
            raise KeyboardInterrupt

    path = tmp_path / "run.ckpt"
    with pytest.raises(KeyboardInterrupt, match="the same command goes on from round 4"):
        run(SMALL, checkpoint=path, on_round=stop)
    assert load_checkpoint(path).data["next_round"] == 3
    had = []
    assert same(run(SMALL, checkpoint=path, on_resume=had.append), run(SMALL))
    assert had == [3]
    with pytest.raises(KeyboardInterrupt) as bare:
        run(SMALL, on_round=stop)
    assert not str(bare.value)


def test_what_ctrl_c_says(monkeypatch):
    abort = click.Abort()
    abort.__cause__ = KeyboardInterrupt("the same command goes on from round 4")
    assert _stopped(abort) == "stopped; the same command goes on from round 4"
    said_by = {"federate": "nothing is kept", "plan": "the same command goes on", "demo": "stopped"}
    for command, said in said_by.items():
        monkeypatch.setattr("sys.argv", ["privmarket", command])
        assert said in _stopped(KeyboardInterrupt())


def test_money_adds_up_and_stays_within_the_budget():
    result = run(SMALL)
    for record in result.records:
        assert record.spent_micro == sum(record.paid_micro.values())
        assert record.spent_micro + record.refunded_micro == 5 * MICRO
    assert result.spent <= 30.0


def test_a_total_budget_is_paced():
    result = run(SMALL.replace(total_budget=12.0))
    spent = 0
    for record in result.records:
        share = (12 * MICRO - spent) // (6 - record.number)
        assert record.spent_micro + record.refunded_micro == share
        spent += record.spent_micro
    assert spent <= 12 * MICRO


def test_persistent_and_redrawn_types():
    with Federation(SMALL) as fixed, Federation(SMALL.replace(types="redrawn")) as fresh:
        assert np.array_equal(fixed.types(0).valuation, fixed.types(5).valuation)
        assert not np.array_equal(fresh.types(0).valuation, fresh.types(5).valuation)


def test_wallets_are_charged_with_what_was_sold_and_never_pass_their_cap():
    capped = run(SMALL.replace(wallet=3.0, wallet_policy="spend", rounds=8))
    assert (capped.wallets.remaining_share >= 0).all()
    assert capped.wallets.remaining_share.min() < 0.2
    free = run(SMALL)
    sold = [sum(e is not None for e in entry) for entry in free.wallets.history]
    assert sold == [r.sellers + len(r.dropped) for r in free.records]


def test_an_empty_wallet_does_not_offer():
    config = SMALL.replace(wallet=1.0, wallet_policy="spend", rounds=12)
    result = run(config)
    assert result.records[0].sellers > 0
    assert result.records[-1].bidders < result.records[0].bidders


def test_spreading_a_wallet_keeps_every_round_alive():
    spread = run(SMALL.replace(wallet=3.0, rounds=10))
    assert min(r.sellers for r in spread.records) > 0


def test_without_noise_the_same_clients_sell_and_no_privacy_is_claimed():
    config = SMALL.replace(wallet=3.0, wallet_policy="spend")
    noisy, quiet = run(config), run(config.replace(mode="no-noise"))
    assert [r.sold_epsilon for r in quiet.records] == [r.sold_epsilon for r in noisy.records]
    assert summarise(quiet)["largest_epsilon_spent"] is None
    assert summarise(noisy)["largest_epsilon_spent"] <= 3.0


def test_a_record_with_nan_counts_as_nothing():
    """Whether an update can be used must not depend on one record, so nobody is dropped for it."""
    data, parts = toy([40] * 5)
    data.train_images[parts[2][0]] = np.nan
    config = SMALL.replace(clients=5, rounds=2, budget=100.0)
    with federation_on(config, data, parts) as federation:
        state = step_all(federation)
    assert all(record.dropped == {} and "2" in record.paid_micro for record in state.records)
    assert np.isfinite(state.server.weights.numpy()).all()


def test_an_update_that_is_not_finite_is_dropped_unpaid_and_named(monkeypatch):
    whole = ClientPool.train

    def broken(self, order):
        updates = whole(self, order)
        updates[[client == 2 for client in order.clients]] = np.nan
        return updates

    monkeypatch.setattr(ClientPool, "train", broken)
    data, parts = toy([40] * 5)
    config = SMALL.replace(clients=5, rounds=2, budget=100.0)
    with federation_on(config, data, parts) as federation:
        state = step_all(federation)
    for record in state.records:
        assert record.dropped == {"2": "update is not finite"}
        assert "2" not in record.paid_micro
        assert record.sellers == 4
        assert record.spent_micro + record.refunded_micro == 100 * MICRO
    assert np.isfinite(state.server.weights.numpy()).all()
    assert all(entry[2] is not None for entry in state.wallets.history)  # released, so charged


def test_clients_without_records_with_one_record_and_with_one_class():
    data, parts = toy([0, 1, 30, 29])
    parts[2] = parts[2][data.train_labels[parts[2]] == 0]
    config = SMALL.replace(clients=4, rounds=3, budget=100.0)
    with federation_on(config, data, parts) as federation:
        state = step_all(federation)
    assert all("0" not in record.paid_micro for record in state.records)
    assert all({"1", "2", "3"} == set(record.paid_micro) for record in state.records)


def test_nobody_has_records():
    data, _ = toy([10])
    with pytest.raises(DataError, match="no client has any records"):
        federation_on(SMALL.replace(clients=2), data, [np.zeros(0, dtype=np.int64)] * 2)


def test_a_budget_that_buys_nothing():
    result = run(SMALL.replace(budget=1e-6))
    assert result.spent == 0.0
    assert all(r.sellers == 0 and r.refunded_micro == 1 for r in result.records)
    assert result.accuracy > 0  # the run goes on with the weights it has


def test_accuracy_improves_and_noise_costs_something():
    config = SMALL.replace(clients=10, rounds=25, budget=20.0, evaluate_every=25)
    assert run(config).accuracy > 0.8
    scarce = {"mechanism": "ration", "mechanism_settings": {"unit_price": 0.9}, "budget": 1.0}  # ε = 0.1 each
    quiet, noisy = run(config.replace(**scarce, mode="no-noise")), run(config.replace(**scarce))
    assert noisy.accuracy > 0.3
    assert quiet.accuracy > noisy.accuracy + 0.2


def test_literal_noise_is_the_papers(monkeypatch):
    """σ = √(2 ln(1.25 N))/ε on the weights, aggregated by ε, no server optimiser."""
    config = SMALL.replace(mode="literal", rounds=1, clients=12, budget=5.0)
    with Federation(config) as federation:
        state = federation.start()
        captured = []

        def capture(weights, updates):
            captured.append((weights, updates))
            return updates[0]

        monkeypatch.setattr(simulation, "aggregate", capture)
        federation.step(state)
        weights, updates = captured[0]
        offers = SimulatedClients(federation, state).offers(federation.pacing.terms(state.records))
    assert weights.sum() == pytest.approx(1.0)
    sold = weights / weights.max()
    spread = updates.std(axis=1)
    assert spread[np.argmin(sold)] > spread[np.argmax(sold)]  # less ε, more noise
    epsilon = max(o.epsilon for o in offers.values())
    assert updates.std() > np.sqrt(2 * np.log(1.25 * 12)) / epsilon / 2


def test_the_rule_gets_its_settings_and_the_markets_limit():
    config = SMALL.replace(mechanism="mean-field-menu", mechanism_settings={"epsilon_max": 7.0})
    with Federation(config) as told, Federation(SMALL) as untold:
        assert told.mechanism.epsilon_max == 7.0
        assert untold.mechanism.epsilon_max == untold.distribution.epsilon_max


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"dataset": "imagenet"}, UnknownNameError, "imagenet"),
        ({"mode": "secret"}, UnknownNameError, "no-noise"),
        ({"rounds": 0}, ConfigurationError, "rounds"),
        ({"budget": -1.0}, ConfigurationError, "budget"),
        ({"wallet": float("nan")}, ConfigurationError, "wallet"),
        ({"seed": -1}, ConfigurationError, "seed"),
    ],
)
def test_bad_settings(changes, error, message):
    with pytest.raises(error, match=message):
        SMALL.replace(**changes)


def test_configuration_survives_json():
    config = SMALL.replace(wallet=8.0)
    assert FederationConfig.from_json(config.to_json()) == config
    assert config.digest() != SMALL.digest()
    with pytest.raises(ConfigurationError, match="budgit"):
        FederationConfig.from_json({"budgit": 3})


def test_float_arithmetic_is_stamped_on_the_result():
    data, parts = toy([40] * 4)
    for arithmetic, stamp in (("exact", "exact"), ("float", "float: not private in floating point")):
        config = SMALL.replace(clients=4, rounds=1, budget=50.0, training=Training(arithmetic=arithmetic))
        with federation_on(config, data, parts) as federation:
            step_all(federation)
            assert federation.pool.plan.arithmetic == arithmetic
        assert arithmetic_of(config) == stamp
    assert FederationConfig().training.arithmetic == "exact"
    assert FederationConfig().digest() == FederationConfig().replace_training(arithmetic="exact").digest()
    with pytest.raises(UnknownNameError, match="arithmetic"):
        Training(arithmetic="double")


def without_privacy(model, rounds=4):
    """Accuracy after training on 28 × 28 images with a shared background and deviation 1, as pixels have."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 1200)
    own, shared = rng.normal(size=(10, 1, 28, 28)), rng.normal(size=(1, 1, 28, 28))
    images = 0.3 * own[labels] + 0.45 * shared + 0.3 * rng.normal(size=(labels.size, 1, 28, 28))
    data = Dataset("toy", *[(images / images.std()).astype(np.float32), labels] * 2, 10)
    config = FederationConfig(clients=2, rounds=rounds, mode="no-dp", training=Training(model=model))
    with federation_on(config, data, [np.arange(600), np.arange(600, 1200)]) as federation:
        return federation.score(step_all(federation))


def test_without_privacy_a_network_learns_from_pixels(monkeypatch):
    assert without_privacy("logistic") > 0.9
    assert without_privacy("mlp") > 0.9
    monkeypatch.setitem(pool.PIXEL_RATES, "mlp", pool.PLAIN_RATE)  # the linear model's step, as it once was
    assert without_privacy("mlp") < 0.3


def test_training_that_diverges_says_so(monkeypatch):
    """Weights that are no numbers would guess class 0 and look like a bad result."""
    monkeypatch.setitem(pool.PIXEL_RATES, "mlp", 1e6)
    with pytest.raises(ConfigurationError, match="diverged in round") as refused:
        without_privacy("mlp")
    assert refused.value.hint == "halve its step: privmarket.simulation._pool.PIXEL_RATES['mlp'] = 500000"


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


def test_any_number_of_workers_gives_the_same_bits_of_a_sum():
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
        auction = hold_auction(terms, clients, auctioneer, store)
        sellers = list(auction.awards)
        quiet = federation.run_clients(state, dict.fromkeys(sellers))
        strength = np.array([1 / award.event.noise_multiplier for award in auction.awards.values()])
        assert strength.max() > 1.5 * strength.min()
        mean = (strength / strength.sum()) @ quiet
        plan = federation.shared_sum(auction)
        rate = federation.pool.plan.learning_rate / federation.pool.plan.expected_batch
        noise = clients.train(auction).update - mean
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
