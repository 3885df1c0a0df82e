"""The buyer's own model, the free baseline, and what money adds to them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from tests.unit.simulation.made_tasks import config_of, made

from privmarket.errors import DataError
from privmarket.simulation._federation import Federation, run
from privmarket.simulation._own_records import OwnTraining, is_linear, own_records
from privmarket.simulation._rehearsal import tuned_settings


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


def test_the_market_starts_from_the_buyers_own_model():
    task = made()
    with Federation(config_of(task), task=task) as federation:
        own = federation.own_model
        before = task.evaluate(task.outputs(own.module, task.test.inputs), task.test)
        assert federation.scores(federation.start()) == pytest.approx(before, rel=1e-6)


@pytest.mark.parametrize("goal", ["classification", "regression"])
def test_money_adds_to_what_the_buyer_had(goal):
    """A dozen own records, 480 of others: with next to no noise the market's model is near the truth."""
    task = made(goal, public=12, private_seed=1)
    config = config_of(task, budget=400.0, rounds=15)
    tuned = tuned_settings(config, task, worlds=3)
    result = run(tuned.applied(config), task=task, own_model=tuned.own_model)
    assert result.gain > 0
    truth = {"classification": 0.85, "regression": 0.95}[goal]
    assert result.score > truth - 0.05
