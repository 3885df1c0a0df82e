"""Every setting is declared once: engines, command line and broker agree on defaults, and limits are checked."""

import hashlib
import inspect
import json
import re
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from privmarket._settings import EPSILON_MAX, MarketPlan, TrainingPlan, check_settings, setting
from privmarket.broker import _answers as answers
from privmarket.broker._errors import BrokerError
from privmarket.broker._schema import tasks
from privmarket.broker._shapes import TaskForm, TaskRow
from privmarket.cli._federate import federate as command
from privmarket.errors import ConfigurationError, PrivmarketError, UnknownNameError
from privmarket.flower._grid_market import GridMarket
from privmarket.flower._settings import MarketSettings
from privmarket.rounds import LocalAuctioneer
from privmarket.simulation._config import DATASETS, FederationConfig, Training
from privmarket.simulation._federation import Federation
from privmarket.tasks._datasets import FILES


def declared_again(record, plans):
    """Settings of `plans` that `record` declares a second time, with another default."""
    return [
        one.name for plan in plans for one in fields(plan) if getattr(record, one.name) != getattr(plan(), one.name)
    ]


def test_the_simulation_and_flower_have_one_set_of_defaults():
    assert declared_again(FederationConfig(), [MarketPlan]) == []
    assert declared_again(Training(), [TrainingPlan]) == []
    assert declared_again(MarketSettings(), [MarketPlan, TrainingPlan]) == []


def test_a_second_set_of_defaults_is_caught():
    @dataclass(frozen=True, kw_only=True)
    class Mine(MarketPlan):
        rounds: int = 7

    assert declared_again(Mine(), [MarketPlan]) == ["rounds"]


def test_a_round_of_a_plan_with_a_total_has_an_even_share_of_it():
    assert MarketPlan(rounds=4, budget=2.5).budget_per_round == 2.5
    assert MarketPlan(rounds=4, budget=2.5, total_budget=20.0).budget_per_round == 5.0


def test_aggregate_trust_with_several_steps_is_refused_in_the_same_words_everywhere():
    two = Training(model="logistic", steps=2)
    settings = MarketSettings(trust="aggregate", steps=2)
    refusals = (
        lambda: TaskForm.checked({"title": "t", "budget_micro": 1, "trust": "aggregate", "steps": 2}),
        lambda: Federation(FederationConfig(clients=2, trust="aggregate", training=two)),
        lambda: GridMarket(settings, LocalAuctioneer(settings.rule()), None, "run"),
    )
    for refuse in refusals:
        with pytest.raises(PrivmarketError) as refused:
            refuse()
        assert refused.value.message == "trust 'aggregate' with 2 steps a round"
        assert refused.value.hint == "nobody may see single steps: use steps = 1"


def test_the_accuracy_is_measured_every_so_often_and_at_the_end():
    plan = MarketPlan(rounds=7, evaluate_every=3)
    assert [number for number in range(7) if plan.measures_after(number)] == [2, 5, 6]


def test_the_command_line_takes_its_options_from_the_configuration():
    options, config = inspect.signature(command).parameters, FederationConfig()
    # What a task, public records or bids come from is typed; the configuration keeps how many or a digest.
    other = ("training", "task", "public", "bids")
    shared = [name for name in options if hasattr(config, name) and name not in other]
    assert len(shared) >= 16
    assert {name: options[name].default for name in shared} == {name: getattr(config, name) for name in shared}


LIMITS = ("above", "at_least", "at_most", "below")


def test_the_brokers_form_agrees():
    form = TaskForm(title="t", budget_micro=1)
    assert (form.mechanism, form.delta, form.epsilon_max) == (
        MarketPlan().mechanism,
        MarketPlan().delta,
        EPSILON_MAX,
    )
    assert (form.sampling_rate, form.steps) == (TrainingPlan().sampling_rate, TrainingPlan().steps)


def test_a_brokers_task_is_a_plan_but_for_what_it_names():
    plans = {one.name: one for plan in (MarketPlan, TrainingPlan) for one in fields(plan)}
    shared = {name: (one, plans[name]) for name, one in TaskForm.model_fields.items() if name in plans}
    assert {"mechanism", "rounds", "delta", "trust", "honest_share", "sampling_rate", "steps"} == set(shared)
    limits = {
        name: (form_limits(TaskForm, name), {word: theirs.metadata[word] for word in LIMITS})
        for name, (_, theirs) in shared.items()
    }
    assert {name for name, (mine, theirs) in shared.items() if mine.default != theirs.default} == {"rounds"}
    assert {name for name, (mine, theirs) in limits.items() if mine != theirs} == {
        "rounds",
        "delta",
        "sampling_rate",
        "steps",
    }


def form_limits(form, name):
    """The limits of a form's field, by the names of `setting`."""
    words = {"gt": "above", "ge": "at_least", "le": "at_most", "lt": "below"}
    found = {words[n]: getattr(m, n) for m in form.model_fields[name].metadata for n in words if hasattr(m, n)}
    return {name: found.get(name) for name in words.values()}


def undeclared(row, table, answer):
    """Fields that a stored row, its table and the API's answer do not share."""
    names = set(row.model_fields)
    return sorted((names ^ {column.name for column in table.c}) | (names ^ set(answer.__annotations__)))


def test_a_task_is_declared_once():
    """The form is the declaration: the row adds who and when, the table and the answer are made from the row."""
    assert set(TaskRow.model_fields) - set(TaskForm.model_fields) == {"id", "buyer_id", "nonce", "created_ms"}
    assert undeclared(TaskRow, tasks, answers.TaskAnswer) == ["nonce"]  # of the buyer's signature
    for name in TaskForm.model_fields:
        assert form_limits(TaskRow, name) == form_limits(TaskForm, name) or name == "settings"
    files = list(Path(inspect.getfile(TaskForm)).parent.glob("*.py"))
    named = [file.name for file in files if re.search(r"^ +review_seconds:", file.read_text(), re.M)]
    assert named == ["_shapes.py"]


def test_a_second_declaration_of_a_task_is_caught():
    class Mine(TaskRow):
        colour: str = "red"

    assert undeclared(Mine, tasks, answers.TaskAnswer) == ["colour", "nonce"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"ruling_seconds": 10**9}, "at most 31622400"),
        ({"sealing": "nobody"}, "nobody"),
        ({"delta": 1e-13}, "at least 1e-12"),
        ({"trust": "aggregate", "steps": 2}, "use steps = 1"),
        ({"title": " "}, "1 to 120 characters"),
        ({"budget": 3}, "no field 'budget'"),
    ],
)
def test_limits_of_a_task(change, message):
    with pytest.raises(BrokerError) as caught:
        TaskForm.checked({"title": "t", "budget_micro": 1, **change})
    assert message in f"{caught.value.message} {caught.value.hint}"


def test_a_task_from_fields():
    assert type(TaskForm.checked({"title": "t", "budget_micro": 1, "epsilon_max": 2}).epsilon_max) is float
    with pytest.raises(BrokerError, match="budget_micro is missing"):
        TaskForm.checked({"title": "t"})


def test_names_of_data_sets_are_those_that_can_be_read():
    assert ("digits", *FILES) == DATASETS


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: MarketPlan(budget=0.0), ConfigurationError, "budget is 0.0"),
        (lambda: MarketPlan(total_budget=float("inf")), ConfigurationError, "total_budget is inf"),
        (lambda: MarketPlan(honest_share=1.5), ConfigurationError, "at most 1"),
        (lambda: MarketPlan(trust="blind"), UnknownNameError, "blind"),
        (lambda: MarketPlan(aggregation="epsilon_squared"), UnknownNameError, "did you mean 'epsilon-squared'"),
        (lambda: TrainingPlan(momentum=1.0), ConfigurationError, "below 1"),
        (lambda: TrainingPlan(sampling_rate=float("nan")), ConfigurationError, "sampling_rate is nan"),
        (lambda: MarketSettings(expected_batch=-1.0), ConfigurationError, "expected_batch"),
        (lambda: MarketSettings(steps=0), ConfigurationError, "steps is 0"),
        (lambda: FederationConfig(wallet_policy="hoard"), UnknownNameError, "wallet policy"),
        (lambda: Training(local_rate=0.0), ConfigurationError, "local_rate"),
    ],
)
def test_limits(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert message in f"{caught.value.message} {caught.value.hint}"


def test_none_is_allowed_where_it_is_the_default():
    @dataclass(frozen=True)
    class One:
        size: float | None = setting(None, "Some size.", above=0)

    check_settings(One())
    check_settings(One(2.0))
    with pytest.raises(ConfigurationError):
        check_settings(One(-2.0))


def test_a_configuration_from_before_a_setting_existed_is_the_same_run():
    config = FederationConfig(clients=3)
    # The settings of commit e7818cb, when results were first saved under digests.
    training = ("model", "features", "steps", "sampling_rate", "clip_norm", "local_rate", "server_rate")
    training += ("final_rate", "momentum", "averaging")
    run = ("dataset", "clients", "alpha", "scenario", "mechanism", "mechanism_settings", "budget", "total_budget")
    run += ("rounds", "aggregation", "delta", "wallet", "wallet_policy", "types", "mode", "kappa", "heterogeneity")
    run += ("evaluate_every", "measured_on", "seed")
    values = config.to_json()
    old = {name: values[name] for name in run} | {"training": {name: values["training"][name] for name in training}}
    assert config.is_same_run(old)
    assert not config.is_same_run({**old, "clients": 4})
    assert not config.is_same_run({**old, "unknown": 1})
    text = json.dumps(old, sort_keys=True)
    assert config.digest() == hashlib.sha256(text.encode()).hexdigest()[:16]
    assert config.replace(trust="aggregate").digest() != config.digest()
