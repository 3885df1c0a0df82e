"""Plans of a buyer who holds none of the sellers' records: what is chosen, what is gained, what is not known."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.unit.simulation.made_tasks import CLIENTS, config_of, half_to_one, made

import privmarket as pm
from privmarket.errors import ConfigurationError, DataError
from privmarket.simulation._own_records import OWN_MODEL, OwnTraining, cross_validated
from privmarket.simulation._plan import Options, Planner, run_figures
from privmarket.simulation._rehearsal import StandIn, explained
from privmarket.simulation._rehearsed_gain import GainRehearsal, MarketAlone
from privmarket.tasks import Task

TINY = Options(rounds=(5,), price_shares=(0.9,), heterogeneities=(), seeds=(1,), worlds=2, gain_worlds=8)


def own(task, **changes):
    """The task as its buyer knows it, without test records."""
    return task.without_private_records().replace(test=None, **changes)


def planner(task, folder, **changes):
    return Planner(config_of(task, **changes), folder, TINY, task=task)


def noise(seed):
    """A buyer whose labels have nothing to do with its inputs."""
    rng = np.random.default_rng(seed)
    return Task.from_own_records(
        (rng.normal(size=(120, 4)).astype(np.float32), rng.integers(0, 2, 120)), clients=CLIENTS, records=100
    )


@pytest.mark.parametrize("goal", ["classification", "regression"])
def test_more_records_help_where_own_ones_are_few(goal, tmp_path):
    """Twenty own records of a strong slope, and 2,400 of sellers: more is certainly better, and money buys it."""
    task = made(goal, public=20, rows=200)
    plan = planner(own(task), tmp_path).for_totals([0.001, 100.0])
    poor, rich = plan.rehearsed
    assert plan.worth_buying
    assert rich.pays
    assert rich.rehearsed_gain > poor.rehearsed_gain
    assert rich.score_in_worlds > rich.score_before_in_worlds
    assert plan.points == ()
    assert plan.score_before_on == "cross-validation"
    # Inputs stay as they are, which a Flower app can do.
    assert {point.choice.statistics for point in plan.rehearsed} == {"none"}
    whole = [
        run_figures(rich.choice.config(config_of(task), 100.0).replace(seed=seed), task, None, {})
        for seed in (1, 2)
    ]
    assert np.mean([run.score - run.score_before for run in whole]) > 0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_labels_that_inputs_say_nothing_about_are_not_worth_buying(seed, tmp_path):
    plan = planner(noise(seed), tmp_path).for_totals([100.0])
    assert plan.worth_buying is False
    assert "buy nothing" in repr(plan)


def test_worlds_that_are_not_as_hard_as_the_records_are_noticed(monkeypatch, tmp_path):
    """The subject is broken on purpose: its worlds take chance in the buyer's records for something to learn."""
    (right,) = planner(noise(0), tmp_path / "right").for_totals([100.0]).rehearsed
    monkeypatch.setattr(GainRehearsal, "contrasts", property(lambda self: (1.0,) * self.worlds))
    (broken,) = planner(noise(0), tmp_path / "broken").for_totals([100.0]).rehearsed
    assert abs(right.score_in_worlds - right.score_before_in_worlds) < 0.01
    assert broken.score_in_worlds - broken.score_before_in_worlds > 0.01


def test_private_records_change_nothing():
    """Two tasks that differ in every private record have the same plan; a third has no private records at all."""
    said = []
    for seed in (0, 1):
        task = made(private_seed=seed)
        plan = pm.plan(own(task), total=20.0, rounds=[3], effort="quick", trust="aggregate")
        said.append(plan.rehearsed)
        assert not plan.points
    assert said[0] == said[1]
    public = made().public
    alone = Task.from_own_records((public.inputs, public.labels), records=40, clients=CLIENTS)
    assert pm.plan(alone, total=20.0, rounds=[3], effort="quick", trust="aggregate").rehearsed == said[0]


def test_a_stopped_plan_rehearses_nothing_twice(tmp_path, monkeypatch):
    task = own(made())
    first = planner(task, tmp_path).for_totals([5.0, 20.0])
    monkeypatch.setattr("privmarket.simulation._plan.rehearsed", lambda *_, **__: pytest.fail("rehearsed again"))
    monkeypatch.setattr(GainRehearsal, "scores", lambda *_: pytest.fail("rehearsed again"))
    monkeypatch.setattr(GainRehearsal, "_worlds", lambda *_: pytest.fail("worlds made again"))
    again = planner(task, tmp_path).for_totals([5.0, 20.0])
    assert again.rehearsed == first.rehearsed
    assert json.loads(json.dumps(again.to_json()))["rehearsed"][0]["total"] == 5.0
    assert set(again.to_frame().columns) >= {"money", "rehearsed_gain", "rule"}


@pytest.mark.parametrize("trust", ["aggregate", "local"])
@pytest.mark.parametrize("wallet", [None, 0.5])
def test_money_and_epsilon_are_those_of_a_whole_run(trust, wallet):
    """Payments and ε do not depend on records: a run on the sellers' records has the same."""
    task = made(owner=half_to_one)
    config = config_of(task, trust=trust, wallet=wallet)
    whole = run_figures(config, task, None, {})
    alone = MarketAlone(config, task=own(task)).figures()
    for name in ("spent", "lifetime_epsilon", "highest_pay", "sellers_per_round", "epsilon_if_others_collude"):
        assert getattr(alone, name) == pytest.approx(getattr(whole, name)), name


def test_what_is_explained():
    """By hand: the mix of labels explains nothing, certainty everything, and the mean of targets nothing."""
    task = made()
    labels = np.array([0, 0, 0, 1])
    mix = np.log(np.tile([0.75, 0.25], (4, 1))).astype(np.float32)
    np.testing.assert_allclose(explained(task, mix, labels).mean(), 0.0, atol=1e-6)
    sure = np.where(np.arange(2) == labels[:, None], 40.0, -40.0).astype(np.float32)
    np.testing.assert_allclose(explained(task, sure, labels), 1.0, atol=1e-6)
    values = np.array([1.0, 2.0, 6.0], dtype=np.float32)
    regression = made("regression")
    np.testing.assert_allclose(explained(regression, np.full((3, 1), 3.0), values).mean(), 0.0, atol=1e-6)
    np.testing.assert_allclose(explained(regression, values[:, None], values), 1.0)


def test_worlds_are_as_hard_as_the_records():
    """What the buyer's models explain in the worlds is what they explain of its real records."""
    task = own(made(public=200))
    gains = GainRehearsal(task, worlds=8)
    real = explained(task, gains.own.outputs, task.public.labels)
    made_up = gains._worlds(gains.contrasts).explained_before()
    assert abs(made_up - real.mean()) < 2 * real.std() / len(real) ** 0.5
    assert max(gains.contrasts) > min(gains.contrasts)  # how hard they are is not known exactly
    nothing = StandIn(task, clients=CLIENTS, worlds=4, contrasts=[0.0] * 4)
    assert nothing.explained_before() < 0.05


def test_cross_validation_leaves_every_record_out():
    """Against folds by hand, and an error that is √(p(1 − p)/n) for a share of records."""
    task = own(made(public=150), score="accuracy")
    training = OwnTraining(task, 3)
    own_model = training.own_model()
    found = cross_validated(task, own_model, seed=3)
    inputs, labels = task.public.tensors()
    fold = torch.from_numpy(training.fold_of_each(5))
    right = torch.zeros(150, dtype=torch.bool)
    for number in range(5):
        rest = fold == number
        module = training.fit(inputs[~rest], labels[~rest], own_model.strength)
        right[rest] = module(inputs[rest]).argmax(1) == labels[rest]
    assert found.tried[OWN_MODEL] == pytest.approx(float(right.double().mean()))
    assert found.score == max(found.tried.values())
    assert found.error == pytest.approx((found.score * (1 - found.score) / 150) ** 0.5, rel=0.2)


def test_another_free_model_counts_against_buying(tmp_path):
    """Records in and around a circle, which no linear model tells apart and kernel ridge does."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(150, 2)).astype(np.float32)
    task = Task.from_own_records(
        (inputs, (np.square(inputs).sum(1) > 1.4).astype(np.int64)), clients=10, records=100
    )
    plan = planner(task, tmp_path, budget=5.0).for_totals([20.0])
    assert plan.score_before > 0.9
    (point,) = plan.rehearsed
    assert point.rehearsed_gain < point.score_in_worlds - point.score_before_in_worlds - 0.2
    assert plan.worth_buying is False


@pytest.mark.parametrize("reason", ["network", "own loss"])
def test_no_gain_is_stated_where_worlds_cannot_say_one(reason, tmp_path):
    if reason == "network":
        task = own(made(), model="mlp")
    else:
        task = replace(own(made()), goal="own")
    plan = planner(task, tmp_path).for_totals([20.0])
    (point,) = plan.rehearsed
    assert plan.worth_buying is None
    assert point.pays is None
    assert point.rehearsed_gain is None
    assert ("linear model" if reason == "network" else "loss of its own") in plan.no_gain_because
    assert point.choice.server_rate > 0
    assert point.spent > 0
    assert plan.to_json()["worth_buying"] is None
    assert "points" not in plan.to_json()


def test_test_records_of_the_buyer_give_the_score_before(tmp_path):
    task = made().without_private_records()
    plan = planner(task, tmp_path).for_totals([20.0])
    assert plan.score_before_on == "test records"
    assert plan.score_before_error is None
    assert plan.score_before == pytest.approx(planner(made(), tmp_path).score_of_own_records(), abs=0.02)


def test_nobody_who_sells_means_no_gain(tmp_path):
    """Two cents cannot buy from anybody at a price of one."""
    task = own(made())
    tried = replace(TINY, rounds=(1,))
    plan = Planner(config_of(task, trust="local"), tmp_path, tried, task=task).for_totals([1e-6])
    (point,) = plan.rehearsed
    assert (point.spent, point.rehearsed_gain, plan.worth_buying) == (0.0, 0.0, False)


def test_what_needs_the_sellers_records_is_refused(tmp_path):
    task = own(made())
    with pytest.raises(DataError, match="simulated run needs the sellers' records"):
        pm.federate(task, trust="aggregate", rounds=2)
    with pytest.raises(ConfigurationError, match=r"target of 0\.9 without"):
        pm.plan(task, target=0.9)
    with pytest.raises(ConfigurationError, match="no measured scores to draw"):
        planner(task, tmp_path).for_totals([5.0]).plot()
    few = Task.from_own_records((task.public.inputs[:8], task.public.labels[:8]), clients=3, records=10)
    with pytest.raises(ConfigurationError, match="8 records of your own"):
        pm.plan(few, total=1.0)
    with pytest.raises(ConfigurationError, match="statistics='free'"):
        planner(task, tmp_path, statistics="free")
