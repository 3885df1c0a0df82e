"""Every setting is declared once: engines, command line and broker agree on defaults, and limits are checked."""

import hashlib
import inspect
import json
from dataclasses import dataclass, fields

import pytest

from privmarket.broker.forms import TaskForm
from privmarket.cli.federate import federate as command
from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.federated.config import DATASETS, FederationConfig, Training
from privmarket.federated.datasets import FILES
from privmarket.federated.entry_point import federate
from privmarket.flower.settings import MarketSettings
from privmarket.plans import EPSILON_MAX, MarketPlan, TrainingPlan, check_settings, setting


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


def test_the_command_line_takes_its_options_from_the_configuration():
    options, config = inspect.signature(command).parameters, FederationConfig()
    shared = [name for name in options if hasattr(config, name) and name != "training"]
    assert len(shared) >= 16
    assert {name: options[name].default for name in shared} == {name: getattr(config, name) for name in shared}
    for name, parameter in inspect.signature(federate).parameters.items():
        if hasattr(config, name):
            assert parameter.default == getattr(config, name)


def test_the_brokers_form_agrees():
    form = TaskForm(title="t", budget_micro=1)
    assert (form.mechanism, form.delta, form.epsilon_max) == (
        MarketPlan().mechanism,
        MarketPlan().delta,
        EPSILON_MAX,
    )
    assert (form.sampling_rate, form.steps) == (TrainingPlan().sampling_rate, TrainingPlan().steps)


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
