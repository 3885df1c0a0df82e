"""The buyer's own model, and settings chosen on its records alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from privmarket.errors import DataError
from privmarket.simulation._config import FederationConfig
from privmarket.simulation._federate import settings_of
from privmarket.simulation._federation import Federation, run
from privmarket.simulation._own_records import OwnTraining, is_linear, own_records
from privmarket.simulation._rehearsal import StandIn, first_round, free_whitening, tuned_settings
from privmarket.tasks import Task

CLIENTS = 12
SLOPE = np.array([1.5, -1.0, 0.5, 0.0])


def made(goal="classification", private_seed=0, public=60, model="linear", rows=40, **changes):
    """A task whose labels follow from a known slope; `private_seed` changes nothing but the private records."""

    def drawn(seed, count):
        rng = np.random.default_rng(seed)
        inputs = rng.normal(size=(count, SLOPE.size)).astype(np.float32)
        values = inputs @ SLOPE
        if goal == "regression":
            return inputs, values + 0.3 * rng.normal(size=count)
        return inputs, (rng.random(count) < 1 / (1 + np.exp(-2 * values))).astype(np.int64)

    inputs, labels = drawn([1, private_seed], CLIENTS * rows)
    extra = {"classes": 2} if goal == "classification" else {"label_range": (-8.0, 8.0)}
    return Task.from_arrays(
        inputs,
        labels,
        clients=[f"site {i % CLIENTS}" for i in range(labels.size)],
        public=drawn(2, public) if public else None,
        test=drawn(3, 400),
        model=model,
        **extra,
        **changes,
    )


def config_of(task, **changes):
    settings = {"trust": "aggregate", "budget": 20.0, "rounds": 5, "mechanism": "ration", "evaluate_every": 5}
    return FederationConfig(**settings_of(task), **{**settings, **changes})


def test_a_linear_model_is_fitted_to_the_end():
    """With the same penalty scikit-learn finds the same probabilities."""
    task = made()
    inputs, labels = task.public.tensors()
    module = OwnTraining(task).fit(inputs, labels, 0.1)
    # Two columns of weights w and −w are penalised twice, of half the size each: ‖W‖² = ‖w₁ − w₀‖²/2.
    theirs = LogisticRegression(C=2 / (0.1 * len(labels)), tol=1e-8).fit(inputs, labels)
    ours = torch.softmax(module(inputs), 1)[:, 1].detach().numpy()
    np.testing.assert_allclose(ours, theirs.predict_proba(inputs)[:, 1], atol=2e-3)


def test_a_regression_is_fitted_to_the_end():
    task = made("regression")
    inputs, labels = task.public.tensors()
    module = OwnTraining(task).fit(inputs, labels, 0.1)
    theirs = Ridge(alpha=0.1 * len(labels)).fit(inputs, labels)
    np.testing.assert_allclose(module(inputs).detach().numpy()[:, 0], theirs.predict(inputs), atol=2e-3)


def test_cross_validation_holds_back_more_where_there_is_little_to_learn():
    strong = OwnTraining(made(public=400)).own_model()
    task = made(public=30)
    shuffled = np.random.default_rng(0).permutation(task.public.labels)
    noise = task.replace(public=replace(task.public, labels=shuffled))
    assert OwnTraining(noise).own_model().strength > strong.strength
    assert strong.held_out_loss < np.log(2)


def test_other_modules_are_stopped_early():
    task = made(model="mlp", public=80)
    own = OwnTraining(task).own_model()
    assert not is_linear(own.module)
    assert own.strength in (2, 5, 10, 20, 40, 80)
    assert task.evaluate_model(own.module)["accuracy"] > 0.75
    assert torch.equal(OwnTraining(task).own_model().module[1].weight, own.module[1].weight)


def test_too_few_records_are_refused():
    with pytest.raises(DataError, match="5 public records"):
        OwnTraining(made(public=5)).own_model()


def test_the_free_baseline_is_the_best_of_what_was_tried():
    task = made()
    own = OwnTraining(task).own_model()
    found = own_records(task, own.module)
    assert set(found.tried) == {"the task's own model", "ridge", "kernel ridge", "logistic regression"}
    assert found.scores[task.score.name] == max(found.tried.values()) == found.tried[found.best]
    assert found.records == 60
    assert own_records(task.replace(test=None), own.module) is None


def test_a_score_that_should_be_small_is_best_when_it_is_small():
    task = made("regression", score="mae")
    found = own_records(task, OwnTraining(task).own_model().module)
    assert found.scores["mae"] == min(found.tried.values())


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


def test_without_public_records_defaults_stand():
    task = made(public=0)
    assert tuned_settings(config_of(task), task) is None
    result = run(config_of(task), task=task)
    assert result.score_before is None
    assert result.own_records is None


def test_the_market_starts_from_the_buyers_own_model():
    task = made()
    with Federation(config_of(task), task=task) as federation:
        own = federation.own_model
        before = task.evaluate(task.outputs(own.module, task.test.inputs), task.test)
        assert federation.scores(federation.start()) == pytest.approx(before, rel=1e-6)


@pytest.mark.parametrize("goal", ["classification", "regression"])
def test_money_adds_to_what_the_buyer_had(goal):
    """Twenty own records, 480 of others: with next to no noise the market's model is near the truth."""
    task = made(goal, public=20, private_seed=1)
    config = config_of(task, budget=400.0, rounds=15)
    tuned = tuned_settings(config, task, worlds=3)
    result = run(tuned.applied(config), task=task, own_model=tuned.own_model)
    assert result.gain > 0
    truth = {"classification": 0.85, "regression": 0.95}[goal]
    assert result.score > truth - 0.05


def test_rehearsals_choose_whitened_inputs_where_one_direction_hides_the_others():
    """Labels follow from the small difference of two inputs that are nearly equal: raw steps learn it slowly."""
    rng = np.random.default_rng(5)

    def drawn(count):
        common = rng.normal(size=(count, 1))
        apart = 0.1 * rng.normal(size=(count, 1))
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


def test_a_rehearsal_on_whitened_inputs_starts_from_the_same_model():
    """Without rounds nothing moves: the loss is that of the buyer's own model, however inputs are looked at."""
    task = made()
    stand_in = StandIn(task, clients=CLIENTS, worlds=2)
    whitening = free_whitening(config_of(task), task)
    everybody = np.ones(2)
    training = config_of(task).training
    before = stand_in.loss_before()
    assert stand_in.loss_after(training, 0, 0.0, everybody, whitening) == pytest.approx(before, rel=1e-5)
