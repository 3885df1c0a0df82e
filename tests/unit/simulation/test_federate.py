"""`federate` and `plan`: their signatures, and the examples in their docstrings."""

import doctest
import inspect
from dataclasses import fields

import pytest

import privmarket as pm
from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.simulation import _federate, _plan
from privmarket.simulation._config import FederationConfig, Training

# Settings whose default depends on the task or on other settings; None asks for it.
OPEN = {"dataset", "clients", "alpha", "sizes", "public", "measured_on", "mechanism", "mechanism_settings"}
OPEN |= {"evaluate_every", "bids", "task", "statistics", "aggregation", *(one.name for one in fields(Training))}


@pytest.mark.parametrize("function", [pm.federate, pm.plan])
def test_signature(function):
    """Named, typed arguments without catch-alls; a default that stands twice is the same twice."""
    parameters = inspect.signature(function).parameters
    kinds = {one.kind for one in parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    assert all(one.annotation is not inspect.Parameter.empty for one in parameters.values())
    assert not any(callable(one.default) for one in parameters.values())
    settings = {one.name: one.default for one in fields(FederationConfig)}
    shared = {name for name in parameters if name in settings and name not in OPEN}
    if function is pm.plan:
        shared.discard("rounds")  # several numbers to try
    assert len(shared) >= 5
    assert {name: parameters[name].default for name in shared} == {name: settings[name] for name in shared}


def test_every_setting_is_an_argument():
    names = {one.name for one in (*fields(FederationConfig), *fields(Training))} - {"training"}
    assert names - set(inspect.signature(pm.federate).parameters) == set()


@pytest.mark.parametrize("module", [_federate, _plan])
def test_docstring_examples(module):
    found = doctest.testmod(module)
    assert found.attempted >= 2
    assert found.failed == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clients": 5}, "clients=5 beside a task"),
        ({"dataset": "digits"}, "dataset='digits' beside a task"),
        ({"public": 0}, "public=0 beside a task"),
    ],
)
@pytest.mark.parametrize("function", [pm.federate, pm.plan])
def test_settings_of_a_data_set_beside_a_task(function, given, message):
    with pytest.raises(ConfigurationError, match=message):
        function("breast-cancer", **given)


def test_plan_refuses():
    with pytest.raises(ConfigurationError, match="exclude each other"):
        pm.plan(dataset="digits", target=0.9, total=5)
    with pytest.raises(ConfigurationError, match="unknown effort 'some'"):
        pm.plan(dataset="digits", clients=5, effort="some")
    with pytest.raises(ConfigurationError, match="money to plan for"):
        pm.plan(dataset="digits", clients=5, money=[0.0])
    with pytest.raises(UnknownNameError, match="data set"):
        pm.plan(dataset="digit")


def test_plan_of_a_data_set(tmp_path):
    """Runs are kept in the folder, and a second plan stands on them."""
    asked = {
        "dataset": "digits",
        "clients": 5,
        "public": 0,
        "money": [20.0, 60.0],
        "rounds": [2],
        "effort": "quick",
    }
    done = []
    plan = pm.plan(**asked, folder=tmp_path, on_cell=lambda count, text: done.append(count))
    assert sum(done) == plan.computed == plan.cells == 4
    again = pm.plan(**asked, folder=tmp_path)
    assert (again.computed, again.points) == (0, plan.points)
    assert pm.plan(**asked).points == plan.points
    frame = plan.to_frame()
    assert frame["money"].tolist() == [20.0, 60.0]
    assert frame["accuracy"].tolist() == [point.score for point in plan.points]
    assert repr(plan).startswith("Plan('digits', 5 clients, local trust, best of 2 totals ")
    assert len(repr(plan)) < 200
