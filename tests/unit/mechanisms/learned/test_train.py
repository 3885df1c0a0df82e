"""`privmarket.train`: own networks, objectives, losses and distributions; resuming, stopping, saving."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from scipy import stats

import privmarket as pm
from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.mechanisms.learned import (
    EarlyStop,
    Lagrangian,
    Loss,
    Penalty,
    TrainingObjective,
    TrainingResult,
    TrainingStep,
)
from privmarket.mechanisms.learned._recipes import recipe
from privmarket.mechanisms.learned._session import checkpoint_path
from privmarket.mechanisms.learned._trainer import new_trainer
from privmarket.mechanisms.learned._weights import WeightsError
from tests.unit.mechanisms.learned.test_networks import Rows

SMALL = {"clients": 5, "budget": 2.5, "steps": 6, "rows": 40, "progress": False}


def arrays(result):
    return np.concatenate([array.reshape(-1) for _, array in sorted(result.weights.arrays.items())])


def test_the_signature_names_every_argument():
    kinds = {p.kind for p in inspect.signature(pm.train).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    assert {"distribution", "clients", "objective", "loss", "out", "resume", "patience", "progress"} <= set(
        inspect.signature(pm.train).parameters
    )


def test_an_interrupted_run_ends_with_the_weights_of_a_straight_one(tmp_path):
    straight = pm.train(Rows, distribution="uniform", **SMALL)

    def interrupt(step):
        if step.step == 4:
            raise KeyboardInterrupt

    out = tmp_path / "w.safetensors"
    with pytest.raises(KeyboardInterrupt):
        pm.train(Rows, distribution="uniform", **{**SMALL, "progress": interrupt}, out=out)
    assert not out.exists()
    done = pm.train(Rows, distribution="uniform", **SMALL, out=out)
    assert (done.resumed_at, done.steps) == (4, 6)
    np.testing.assert_array_equal(arrays(done), arrays(straight))
    assert not np.array_equal(arrays(done), arrays(pm.train(Rows, distribution="uniform", **SMALL, seed=1)))
    assert pm.train(Rows, distribution="uniform", **SMALL, out=out, resume=False).resumed_at == 0


def test_the_memory_of_a_loss_is_resumed_too(tmp_path):
    class Counting(Loss):
        """A weight of regret that depends on every step before."""

        def __init__(self):
            self.weight = torch.ones(())

        def value(self, batch):
            return -batch.objective.mean() + self.weight * batch.regret.mean()

        def update(self, batch):
            self.weight = self.weight * 1.5

        def state(self):
            return {"weight": self.weight}

        def restore(self, state):
            self.weight = state["weight"]

    class Forgetting(Counting):
        def state(self):
            return {"weight": torch.ones(())}

    def ends(loss_class):
        def interrupt(step):
            if step.step == 3:
                raise KeyboardInterrupt

        out = tmp_path / f"{loss_class.__name__}.safetensors"
        with pytest.raises(KeyboardInterrupt):
            pm.train(Rows, distribution="uniform", loss=loss_class, **{**SMALL, "progress": interrupt}, out=out)
        stopped = pm.train(Rows, distribution="uniform", loss=loss_class, **SMALL, out=out)
        straight = pm.train(Rows, distribution="uniform", loss=loss_class, **SMALL)
        return np.array_equal(arrays(stopped), arrays(straight))

    assert ends(Counting)
    assert not ends(Forgetting)  # what a checkpoint does not keep is noticed here


def test_a_checkpoint_of_other_clients_is_refused(tmp_path):
    """Two files of past bids with one name and other bids: the recipe alone would not tell them apart."""
    rng = np.random.default_rng(0)
    past = tmp_path / "past.csv"
    for shift in (0.0, 0.3):
        rows = [f"c{i},{shift + rng.random():.4f},{0.5 + rng.random():.4f}" for i in range(25)]
        past.write_text("\n".join(["client,valuation,epsilon", *rows]) + "\n")
        if shift:
            with pytest.raises(WeightsError, match="other settings"):
                pm.train(Rows, distribution=past, **SMALL, out=tmp_path / "w.safetensors")
        else:
            pm.train(Rows, distribution=past, **SMALL, out=tmp_path / "w.safetensors")


def test_what_is_saved_is_loaded(tmp_path):
    result = pm.train(Rows, distribution="uniform", **SMALL, settings={"network.width": 4})
    path = result.save(tmp_path / "deep" / "w.safetensors")
    again = TrainingResult.load(path, Rows)
    types = pm.scenario("uniform").sample(np.random.default_rng(0), 5, (3,))
    np.testing.assert_array_equal(again.mechanism.run(types, 2.5).payment, result.mechanism.run(types, 2.5).payment)
    np.testing.assert_array_equal(again.untrained.run(types, 2.5).payment, result.untrained.run(types, 2.5).payment)
    assert not np.array_equal(again.mechanism.run(types, 2.5).payment, again.untrained.run(types, 2.5).payment)
    np.testing.assert_allclose(again.curve["objective"], result.curve["objective"], rtol=1e-9)
    with pytest.raises(WeightsError, match="holds weights for 'Rows'"):
        TrainingResult.load(path, "regretformer")


def test_result_as_table_figure_and_text(tmp_path):
    result = pm.train(Rows, distribution="uniform", **SMALL)
    assert list(result.to_frame().columns) == [
        *("step", "objective", "regret", "shortfall", "multiplier", "penalty"),
    ]
    assert len(result.to_frame()) == 6
    figure = result.plot(tmp_path / "curve.svg")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one batch", "running mean"]
    assert (tmp_path / "curve.svg").stat().st_size > 1000
    assert repr(result).startswith("TrainingResult(Rows: 6 steps in ")


def test_scipy_distributions_and_own_objects_are_trained_for():
    class Dependent:
        epsilon_max = 5.0

        def sample(self, rng, clients):
            epsilon = rng.uniform(0.5, 5.0, clients)
            return pm.Bids(rng.lognormal(0.0, 0.4, clients) / epsilon, epsilon)

    frozen = (stats.lognorm(0.5), stats.uniform(0.1, 4.9))
    one = pm.train(Rows, distribution=frozen, **SMALL)
    other = pm.train(Rows, distribution=Dependent(), **SMALL)
    both = pm.train(Rows, distribution=[frozen, Dependent(), "uniform"], **SMALL)
    assert one.steps == other.steps == both.steps == 6
    assert not np.array_equal(arrays(one), arrays(other))


class SpendLittle(TrainingObjective):
    name = "spend little"

    def value(self, markets, trade):
        return -trade.payment.sum(-1) / markets.budget[:, 0]


def test_an_own_objective_is_followed():
    changes = {**SMALL, "steps": 40, "learning_rate": 0.1, "loss": lambda batch: -batch.objective.mean()}
    stingy = pm.train(Rows, distribution="uniform", objective=SpendLittle, **changes).mechanism
    lavish = pm.train(Rows, distribution="uniform", objective="revenue", **changes).mechanism
    types = pm.scenario("uniform").sample(np.random.default_rng(0), 5, (50,))
    assert stingy.run(types, 2.5).payment.sum() < 0.7 * lavish.run(types, 2.5).payment.sum()


def test_objectives_and_losses_by_name_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "def goal(markets, trade):\n    return trade.epsilon.sum(-1)\n\n"
        "def loss(batch):\n    return -batch.objective.mean()\n"
    )
    named = pm.train(Rows, distribution="uniform", objective="mine.py:goal", loss="mine.py:loss", **SMALL)
    given = pm.train(
        Rows,
        distribution="uniform",
        objective=lambda markets, trade: trade.epsilon.sum(-1),
        loss=lambda batch: -batch.objective.mean(),
        **SMALL,
    )
    np.testing.assert_array_equal(arrays(named), arrays(given))
    assert np.isnan(named.curve["multiplier"]).all()
    with pytest.raises(UnknownNameError, match="objective in mine"):
        pm.train(Rows, distribution="uniform", objective="mine.py:gaol", **SMALL)


@pytest.mark.parametrize("loss", ["lagrangian", "penalty", Lagrangian(), Penalty(5.0), Penalty])
def test_every_built_in_loss_trains(loss):
    assert pm.train(Rows, distribution="uniform", loss=loss, **SMALL).steps == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "fame"}, "unknown objective 'fame'"),
        ({"loss": "grief"}, "unknown loss 'grief'"),
        ({"clients": 1}, "clients is 1"),
        ({"budget": -1.0}, "budget is -1"),
        ({"budget_per_client": (0.1, 1.0)}, "both budget and budget_per_client"),
        ({"settings": {"network.wodth": 3}}, "cannot be made"),
        ({"patience": 0}, "patience is 0"),
        ({"objective": lambda markets, trade: trade.epsilon}, "the objective has shape"),
        ({"loss": lambda batch: batch.objective}, "the loss has shape"),
        ({"loss": lambda batch: batch.objective.mean() / 0}, "the loss is"),
        ({"objective": pm.market.AggregateError()}, "has no gradient"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        pm.train(Rows, distribution="uniform", **{**SMALL, **changes})


@pytest.mark.parametrize("rule", ["pac", "nobody", int])
def test_what_cannot_be_trained_is_refused(rule):
    with pytest.raises(ConfigurationError):
        pm.train(rule, distribution="uniform", **SMALL)


def test_a_run_without_progress_ends_early():
    stop = EarlyStop(patience=10)
    flat = [stop(TrainingStep(step, 1.0, 0.01, 0.0, 1.0, 1.0)) for step in range(1, 40)]
    assert flat.index(True) == 10  # steps 2 to 11 brought nothing
    rising = EarlyStop(patience=10)
    assert not any(rising(TrainingStep(step, 0.1 * step, 0.01, 0.0, 1.0, 1.0)) for step in range(1, 40))


def test_patience_ends_a_training(tmp_path):
    still = {**SMALL, "steps": 60, "learning_rate": 1e-9}
    out = tmp_path / "w.safetensors"
    done = pm.train(Rows, distribution="uniform", **still, patience=3, loss="penalty", out=out)
    assert done.stopped_early
    assert done.steps < 60
    written = out.read_bytes()
    for _ in range(2):  # there is nothing left to do
        again = pm.train(Rows, distribution="uniform", **still, patience=3, loss="penalty", out=out)
        assert again.stopped_early
        assert again.finished_before
        assert again.steps == done.steps
        assert out.read_bytes() == written
    longer = pm.train(Rows, distribution="uniform", **still, patience=5, loss="penalty", out=out)
    assert longer.resumed_at == done.steps < longer.steps


def test_an_interrupt_after_the_last_step_before_patience_ended_is_no_further_step(tmp_path):
    still = {**SMALL, "steps": 60, "learning_rate": 1e-9, "patience": 3, "loss": "penalty"}
    straight = pm.train(Rows, distribution="uniform", **still)

    def interrupt(step):
        if step.step in (straight.steps - 2, straight.steps):
            raise KeyboardInterrupt

    out = tmp_path / "w.safetensors"
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            pm.train(Rows, distribution="uniform", **{**still, "progress": interrupt}, out=out)
    done = pm.train(Rows, distribution="uniform", **still, out=out)
    assert (done.resumed_at, done.steps, done.stopped_early) == (straight.steps, straight.steps, True)
    np.testing.assert_array_equal(arrays(done), arrays(straight))


def test_a_menu_is_learned_by_the_same_door(tmp_path):
    market = {"distribution": "uniform", "clients": 8, "budget": 4.0, "progress": False}
    out = tmp_path / "menu.safetensors"

    def interrupt(progress):
        if progress.step == 3:
            raise KeyboardInterrupt

    goal = pm.market.AggregationError(1.0, 0.4)
    short = {**market, "objective": goal, "profile": "quick", "steps": 5}
    straight = pm.train("mfg-menunet", **short)
    with pytest.raises(KeyboardInterrupt):
        pm.train("mfg-menunet", **{**short, "progress": interrupt}, out=out)
    done = pm.train("mfg-menunet", **short, out=out)
    assert done.resumed_at == 3
    for name, array in straight.weights.arrays.items():
        np.testing.assert_array_equal(done.weights.arrays[name], array)
    assert (done.mechanism.name, done.untrained.name) == ("mfg-menunet", "mfg-menunet:untrained")
    assert checkpoint_path(out).exists()
    with pytest.raises(ConfigurationError, match="for networks"):
        pm.train("mfg-menunet", **market, loss="penalty")


@pytest.mark.parametrize("name", [n for n in pm.mechanisms.learned_names() if n != "mfg-menunet"])
def test_the_untrained_form_is_the_start_of_the_recipe(name):
    rule = pm.mechanism(f"{name}:untrained")
    start = new_trainer(recipe(name), [pm.scenario("uniform")]).network
    for key, tensor in start.state_dict().items():
        torch.testing.assert_close(rule.network().state_dict()[key], tensor.double(), rtol=0, atol=0)
    trained = pm.mechanism(name)
    types = pm.scenario("uniform").sample(np.random.default_rng(0), 12, (3,))
    assert rule.name == f"{name}:untrained"
    assert not np.array_equal(rule.run(types, 6.0).payment, trained.run(types, 6.0).payment)
    assert len(rule.guarantees) <= len(trained.guarantees)


def test_rules_without_training_have_no_untrained_form():
    for name in ("pac:untrained", "nobody:untrained"):
        with pytest.raises(UnknownNameError):
            pm.mechanism(name)
