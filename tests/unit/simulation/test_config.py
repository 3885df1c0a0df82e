"""A run's configuration: the same by record, function and command, and read as it was saved."""

import pytest
from typer.testing import CliRunner

from privmarket.cli import app
from privmarket.simulation._config import FederationConfig, Training, recommended_training
from privmarket.simulation._federate import federate


class Asked(Exception):
    """Instead of a run: the configuration that would be run."""


def ask(config, **_):
    raise Asked(config)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, []),
        ({"dataset": "mnist"}, ["--dataset", "mnist"]),
        ({"dataset": "cifar10", "trust": "aggregate"}, ["--dataset", "cifar10", "--trust", "aggregate"]),
        ({"mode": "literal"}, ["--literal"]),
    ],
)
def test_a_run_is_the_same_by_configuration_function_and_command(monkeypatch, settings, options):
    """With its training: what is recommended for data set and trust, the paper's MLP in a paper-literal run."""
    monkeypatch.setattr("privmarket.simulation._federate.run", ask)
    monkeypatch.setattr("privmarket.simulation._federation.run", ask)
    with pytest.raises(Asked) as called:
        federate(**settings)
    typed = CliRunner().invoke(app, ["federate", *options]).exception
    expected = FederationConfig(**settings)
    assert called.value.args == typed.args == (expected,)
    assert expected.training == (
        Training() if "mode" in settings else recommended_training(expected.dataset, expected.trust)
    )


def test_settings_of_the_training_change_what_is_recommended(monkeypatch):
    monkeypatch.setattr("privmarket.simulation._federate.run", ask)
    monkeypatch.setattr("privmarket.simulation._federation.run", ask)
    expected = FederationConfig().replace_training(clip_norm=0.5)
    assert (expected.training.clip_norm, expected.training.model) == (0.5, "logistic")
    with pytest.raises(Asked) as called:
        federate(clip_norm=0.5)
    typed = CliRunner().invoke(app, ["federate", "--set", "clip_norm=0.5"]).exception
    assert called.value.args == typed.args == (expected,)


def test_a_saved_training_is_read_as_it_was_written():
    """Runs that were saved when an MLP on pixels was the default say so; nothing is recommended over them."""
    old = FederationConfig(clients=3, training=Training())
    assert FederationConfig.from_json(old.to_json()) == old != FederationConfig(clients=3)
    assert FederationConfig.from_json({"clients": 3}) == FederationConfig(clients=3)


def test_a_run_is_measured_about_ten_times_unless_told():
    from privmarket.simulation._config import usual_interval

    for rounds in (1, 3, 10, 15, 20, 50, 99, 100, 200, 1000):
        config = FederationConfig(rounds=rounds, evaluate_every=usual_interval(rounds))
        measured = [number for number in range(rounds) if config.measures_after(number)]
        assert measured[-1] == rounds - 1
        assert len(measured) >= min(10, rounds)
        assert len(measured) <= max(20, rounds // 10 + 1)
