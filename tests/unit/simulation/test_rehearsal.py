"""Settings chosen on the buyer's records alone, and H measured by trainings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.unit.simulation.made_tasks import CLIENTS, config_of, half_to_one, made

from privmarket.errors import ConfigurationError
from privmarket.simulation._config import FederationConfig, recommended_training
from privmarket.simulation._federation import Federation, run
from privmarket.simulation._rehearsal import (
    _SCALES,
    ClientSpread,
    StandIn,
    _LinearRecords,
    first_round,
    free_whitening,
    measure_spread,
    rehearsed,
    tuned_settings,
    weightings,
)
from privmarket.tasks import Task, drawn_parts, load_dataset, task_of
from privmarket.training import ClientRecords, PrivateModel, clipped_sums


def chosen_by(task):
    return tuned_settings(config_of(task), task, worlds=2).rehearsal


def test_private_records_choose_nothing():
    """Two tasks that differ in every private record get the same model to start from and the same settings."""
    one = made(private_seed=0)
    other = made(private_seed=1)
    assert not np.array_equal(one.private.inputs, other.private.inputs)
    assert chosen_by(one) == chosen_by(other)
    with Federation(config_of(one), task=one) as first, Federation(config_of(other), task=other) as second:
        assert torch.equal(first.first_weights(), second.first_weights())
        assert first_round(first).noise == first_round(second).noise


def test_a_choice_on_private_records_is_noticed(monkeypatch):
    """The subject is broken on purpose: its worlds are made of private records."""
    whole = StandIn.__init__

    def peeking(self, task, **settings):
        some = task.private[np.arange(60)]
        whole(self, task.replace(public=replace(some, persons=None)), **settings)

    monkeypatch.setattr(StandIn, "__init__", peeking)
    assert chosen_by(made(private_seed=0)) != chosen_by(made(private_seed=1))


def test_rehearsals_like_small_steps_where_noise_is_large():
    task = made()
    stand_in = StandIn(task, clients=CLIENTS, worlds=3)
    everyone = np.full(CLIENTS, 1 / CLIENTS)
    training = config_of(task).training
    quiet = stand_in.rehearse(training, 10, 0.0, everyone)
    loud = stand_in.rehearse(training, 10, 1.0, everyone)
    assert quiet.gain > 0
    assert quiet.gain > loud.gain
    assert loud.training.server_rate < quiet.training.server_rate
    fixed = stand_in.rehearse(training, 10, 0.0, everyone, fixed=("server_rate", "clip_norm", "averaging"))
    assert fixed.training == training


def test_buying_from_few_stand_ins_harms():
    stand_in = StandIn(made(), clients=CLIENTS, worlds=3, skew=0.1)
    everyone = np.full(CLIENTS, 1 / CLIENTS)
    np.testing.assert_allclose(stand_in.group_weights(everyone), 1.0)
    alone = np.zeros(CLIENTS)
    alone[np.argmax(stand_in._mixes[:, 0])] = 1.0
    training = stand_in.rehearse(config_of(made()).training, 10, 0.0, everyone).training
    fair = stand_in.loss_after(training, 10, 0.0, stand_in.group_weights(everyone))
    assert stand_in.loss_after(training, 10, 0.0, stand_in.group_weights(alone)) > fair


def test_few_sellers_hold_few_records():
    """Against sums by hand: records count in full at equal weights, and by (Σ wn)²/Σ w²n otherwise."""
    task = made()
    stand_in = StandIn(task, clients=CLIENTS, worlds=3, skew=100.0)
    records = len(task.private)
    everyone = np.full(CLIENTS, 1 / CLIENTS)
    assert stand_in.held_share(everyone) == pytest.approx(1.0)
    alone = np.eye(CLIENTS)[0]
    assert stand_in.held_share(alone) == pytest.approx(task.sizes[0] / records)
    pair = 0.75 * np.eye(CLIENTS)[0] + 0.25 * np.eye(CLIENTS)[1]
    first, second = (float(size) for size in task.sizes[:2])
    by_hand = (0.75 * first + 0.25 * second) ** 2 / (0.75**2 * first + 0.25**2 * second)
    assert stand_in.held_share(pair) == pytest.approx(by_hand / records)
    world = stand_in._worlds[0]
    some = world.held_by_sellers(0.5)
    assert all(abs(2 * size - whole) <= 1 for size, whole in zip(some.sizes, world.sizes, strict=True))
    np.testing.assert_array_equal(
        some.inputs[-some.sizes[-1] :], world.inputs[-world.sizes[-1] :][: some.sizes[-1]]
    )
    training = stand_in.rehearse(config_of(task).training, 10, 0.0, everyone).training
    groups = stand_in.group_weights(everyone)
    few, all_of_them = (stand_in.loss_after(training, 10, 0.0, groups, held=share) for share in (0.05, 1.0))
    assert few > all_of_them


def local(task, **changes):
    """A run under local trust in which everybody sells a lifetime ε of 1."""
    usual = {"trust": "local", "wallet": 1.0, "budget": 1e4, "mechanism_settings": {"unit_price": 1.0}}
    return config_of(task, **{**usual, **changes})


@pytest.mark.parametrize("scheme", ["epsilon-squared", "precision"])
def test_noise_is_judged_beside_the_signal_of_unequal_sellers(scheme):
    """By hand, for one seller of 260 records and eleven of 20, whose wallets allow different noise."""
    task = made(owner=half_to_one)
    sizes = np.array([260.0] + [20.0] * 11)
    assert [*task.declared_sizes] == [*sizes]
    stand_in = StandIn(task, clients=CLIENTS, worlds=1)
    with Federation(local(task), task=task) as federation:
        first = first_round(federation, scheme)
        offered = federation.wallets().affordable(federation.family, federation.types(0).epsilon, 5)
        sigma = federation.family.noise_multiplier(offered)
    raw = (sizes if scheme == "precision" else 1.0) / sigma**2
    share = stand_in._sizes @ stand_in._mixes / stand_in._sizes.sum()
    signal = float(stand_in.group_weights(first.weights) @ share)
    if scheme == "precision":
        assert signal == pytest.approx(1.0)  # as long as with equal weights
    by_hand = np.sqrt(raw**2 @ sigma**2) / (raw @ sizes)
    assert first.noise / signal == pytest.approx(by_hand, rel=1e-6)
    effective = (raw @ sizes) ** 2 / (raw**2 @ sizes)
    assert stand_in.held_share(first.weights) == pytest.approx(effective / 480)


def test_large_sellers_count_for_more_where_noise_dominates(monkeypatch):
    """With little ε, counting on the one large seller halves the noise; with no noise at all its mix of labels and
    its fewer records are a loss. The subject is broken on purpose last: it takes all for equally large."""
    task = made(owner=half_to_one, public=20, rows=100)
    stand_in = StandIn(task, clients=CLIENTS, worlds=3, skew=5.0)

    def chosen(**changes):
        with Federation(local(task, wallet=0.3, **changes), task=task) as federation:
            return rehearsed(federation, stand_in)

    assert chosen().aggregation == "precision"
    assert chosen(mode="no-noise").aggregation == "epsilon-squared"
    assert chosen(trust="aggregate").aggregation is None
    monkeypatch.setattr(stand_in, "_sizes", np.full(CLIENTS, 100.0))
    assert chosen().aggregation == "epsilon-squared"


def test_chosen_weights_are_those_of_the_run():
    task = made(owner=half_to_one)
    config = local(task)
    tuned = tuned_settings(config, task, worlds=2)
    assert tuned.rehearsal.aggregation == tuned.applied(config).aggregation == "precision"
    for kept in (
        tuned_settings(config, task, worlds=2, fixed=("aggregation",)),
        tuned_settings(config.replace(aggregation="optimal"), task, worlds=2),
    ):
        assert kept.rehearsal.aggregation is None
    assert kept.applied(config.replace(aggregation="optimal")).aggregation == "optimal"


def test_where_all_hold_equally_many_nothing_changes():
    """Stand-ins hold what sellers hold, to the bit, and there is one way to weigh them."""
    task = made(rows=137)  # declared as 140
    stand_in = StandIn(task, clients=CLIENTS, worlds=1)
    assert np.array_equal(stand_in._sizes, task.sizes)
    assert np.array_equal(StandIn(task, clients=7, worlds=1)._sizes, np.full(7, len(task.private) / 7))
    with Federation(local(task), task=task) as federation:
        assert weightings(federation) == ("epsilon-squared",)
        assert rehearsed(federation, stand_in).aggregation is None


def test_without_public_records_defaults_stand():
    task = made(public=0)
    assert tuned_settings(config_of(task), task) is None
    result = run(config_of(task), task=task)
    assert result.score_before is None
    assert result.own_records is None


def config(alpha: float) -> FederationConfig:
    training = recommended_training("digits", "aggregate")
    return FederationConfig(
        dataset="digits", clients=20, rounds=6, alpha=alpha, trust="aggregate", training=training
    )


def task(alpha: float):
    """Digits, tested on the records that no client holds."""
    digits = load_dataset("digits", measured_on="validation")
    return task_of(digits, drawn_parts(digits.train_labels, 20, alpha, "equal", 0))


def test_the_exchange_rate_by_hand():
    # At u = ½ accuracy is that of s = 2, at u = ⅕ that of s halfway between 2 and 8: 4. Rates 4/1 and 16/4.
    spread = ClientSpread((0.5, 0.2), (0.8, 0.7), (0.5, 2.0, 8.0), (0.9, 0.8, 0.6))
    assert spread.equal_noise == pytest.approx((2.0, 4.0))
    assert spread.bias_to_noise == pytest.approx(4.0)
    assert spread.heterogeneity == pytest.approx(2.0)


def test_skewed_clients_differ_more_than_equal_ones():
    skewed, equal = (measure_spread(config(alpha), task(alpha), shares=(0.2,), draws=3) for alpha in (0.05, 100.0))
    assert skewed.bias_to_noise > 3 * equal.bias_to_noise
    assert np.all(np.diff(skewed.noise) > 0)
    assert skewed.noise_accuracy[-1] < skewed.noise_accuracy[0]


def test_a_share_must_leave_somebody_out():
    with pytest.raises(ConfigurationError, match="shares"):
        measure_spread(config(0.1), task(0.1), shares=(1.0,))


def test_rehearsals_choose_whitened_inputs_where_one_direction_hides_the_others():
    """Labels follow from small differences of inputs that are nearly equal: raw steps learn them slowly."""
    rng = np.random.default_rng(5)

    def drawn(count):
        common = rng.normal(size=(count, 1))
        apart = 0.1 * rng.normal(size=(count, 6))
        inputs = np.concatenate([common + apart, common - apart], axis=1).astype(np.float32)
        return inputs, (apart[:, 0] + 0.05 * rng.normal(size=count) > 0).astype(np.int64)

    inputs, labels = drawn(CLIENTS * 40)
    clients = [i % CLIENTS for i in range(labels.size)]
    task = Task.from_arrays(inputs, labels, clients=clients, public=drawn(60), test=drawn(400), classes=2)
    config = config_of(task, rounds=3)
    tuned = tuned_settings(config, task, worlds=2)
    assert tuned.rehearsal.statistics == "free"
    kept = tuned_settings(config, task, worlds=2, fixed=("statistics",))
    assert kept.rehearsal.statistics == "none"
    assert tuned.rehearsal.loss_after < kept.rehearsal.loss_after
    assert tuned.applied(config).statistics == "free"


def test_a_scale_of_outputs_changes_no_choice():
    """The loss of a classifier in a world is that at the best scale: ten times the weights decide alike."""
    stand_in = StandIn(made(), clients=CLIENTS, worlds=1)
    world = stand_in._worlds[0]
    assert stand_in._loss(world, 2.0 * world.start) == pytest.approx(stand_in._loss(world, world.start), rel=0.02)
    opposite = stand_in._loss(world, -world.start)
    assert opposite > 1.5 * stand_in._loss(world, world.start)


def test_the_best_scale_is_that_of_all_scales():
    stand_in = StandIn(made(), clients=CLIENTS, worlds=1)
    world = stand_in._worlds[0]
    draws = torch.Generator().manual_seed(3)
    found = set()
    for factor in (0.01, 0.3, 1.0, 3.0, 100.0, 1e30):
        weights = factor * (world.start + 0.5 * torch.randn(world.start.shape, generator=draws))
        outputs = stand_in.model.outputs(weights, world.checked_inputs, 10_000)
        losses = [float(stand_in.task.loss(s * outputs, world.checked_labels).double().mean()) for s in _SCALES]
        found.add(int(np.argmin(losses)))
        assert stand_in._loss(world, weights) == pytest.approx(min(losses), rel=1e-6)
    assert min(found) == 0
    assert max(found) == len(_SCALES) - 1
    assert len(found) > 2
    assert stand_in._loss(world, torch.full_like(world.start, torch.inf)) == np.inf


def test_worlds_have_more_records_than_the_buyer():
    """Stand-in sellers hold inputs that the buyer does not, as long as public ones and with their energy."""
    task = made()
    stand_in = StandIn(task, clients=CLIENTS, worlds=2)
    world = stand_in._worlds[0]
    assert len(world.own_inputs) == len(task.public)
    assert len(world.inputs) == len(task.private)
    public = torch.from_numpy(task.public.inputs).flatten(1)
    lengths = public.norm(dim=1)
    drawn = world.inputs.flatten(1).norm(dim=1)
    assert drawn.min() >= lengths.min() * 0.999
    assert drawn.max() <= lengths.max() * 1.001
    energy = public.square().mean(dim=0)
    found = world.inputs.flatten(1).square().mean(dim=0)
    np.testing.assert_allclose(found.mean(), energy.mean(), rtol=0.1)


def test_less_noise_never_chooses_a_worse_market():
    """Settings that did well under more noise are found again under less: losses fall with the noise."""
    stand_in = StandIn(made(), clients=CLIENTS, worlds=2)
    everyone = np.full(CLIENTS, 1 / CLIENTS)
    training = config_of(made()).training
    losses = [stand_in.rehearse(training, 5, noise, everyone).loss_after for noise in (0.3, 0.03, 0.003)]
    assert losses[1] <= losses[0] * 1.01
    assert losses[2] <= losses[1] * 1.01


def test_a_rehearsal_on_whitened_inputs_starts_from_the_same_model():
    """Without rounds nothing moves: the loss is that of the buyer's own model, however inputs are looked at."""
    task = made()
    stand_in = StandIn(task, clients=CLIENTS, worlds=2)
    whitening = free_whitening(config_of(task), task)
    everybody = np.ones(2)
    training = config_of(task).training
    before = stand_in.loss_before()
    assert stand_in.loss_after(training, 0, 0.0, everybody, whitening) == pytest.approx(before, rel=1e-5)


def squared_error(outputs, targets):
    return (outputs - targets).square().flatten(1).sum(1) if outputs.ndim > 1 else (outputs - targets).square()


LINEAR = {
    "classes": (lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)), None, 3),
    "no bias": (lambda: torch.nn.Linear(12, 3, bias=False), None, 3),
    "one number": (lambda: torch.nn.Sequential(torch.nn.Linear(12, 1), torch.nn.Flatten(0)), squared_error, 0),
}


@pytest.mark.parametrize("kind", LINEAR)
def test_many_settings_at_once_get_the_sums_of_the_engine(kind):
    """Under weights that have grown beyond all numbers, records count for nothing in either."""
    build, loss, classes = LINEAR[kind]
    model = PrivateModel(build(), loss)
    draws = torch.Generator().manual_seed(7)
    inputs = torch.randn(90, 12, generator=draws)
    labels = torch.arange(90) % classes if classes else torch.randn(90, generator=draws)
    records = ClientRecords(inputs, labels, [20, 0, 70])
    weights = torch.randn(5, model.parameters, generator=draws)
    weights[1] = torch.inf
    norms = [0.01, 0.3, 1.0, 4.0, 1e6]
    groups = torch.tensor([0.5, 2.0, 1.25])
    linear = _LinearRecords.of(model, records)
    together = linear.clipped_sums(weights, norms, groups)
    for one, norm, found in zip(weights, norms, together, strict=True):
        alone = groups @ clipped_sums(model, one[None], records, norm).values.float()
        assert torch.allclose(found, alone, rtol=1e-3, atol=1e-4 * float(alone.abs().max()))


def test_layers_whose_gradients_are_not_outer_products_are_left_to_the_engine():
    records = ClientRecords(torch.ones(4, 6), torch.zeros(4, dtype=torch.long), [4])
    squashed = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Tanh())
    hidden = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Linear(3, 3))
    frozen = torch.nn.Linear(6, 3)
    frozen.bias.requires_grad_(False)
    for module in (squashed, hidden, frozen):
        assert _LinearRecords.of(PrivateModel(module), records) is None
