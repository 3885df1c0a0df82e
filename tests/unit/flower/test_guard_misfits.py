"""A guarded app that does not fit what it is sent: refused, uncharged. What may depend on records stays hidden."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

import privmarket as pm
from privmarket.flower._guard_misfit import Misfit
from privmarket.flower._in_process import InProcessGrid
from privmarket.privacy._policy import model_fingerprint
from tests.unit.flower.guarded import SITE, arrays, ask, policy, wallet

RECORDS = SITE + 'training = "records"\n'
PERSONS = 'unit = "person"\n' + RECORDS
WEIGHTS, SETUP = "privmarket guard: weights", "privmarket guard: setup"


def linear(outputs=2):
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, outputs))


def normalised():
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


class Centred(nn.Module):
    """Records mix in its own code."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, inputs):
        return self.layer(inputs - inputs.mean(0))


def records(count=60):
    inputs = torch.randn(count, 5, generator=torch.Generator().manual_seed(1))
    return inputs, (inputs[:, 0] > 0).long()


def sent(build=linear):
    state = {name: tensor.numpy() for name, tensor in build().state_dict().items()}
    return RecordDict({"arrays": arrays(state), "config": ConfigRecord({"lr": 0.1})})


def app_of(folder, text=RECORDS, build=linear, before=lambda message, context: None, data=records, **options):
    """An app as an owner writes it; `before` runs first."""
    app = ClientApp(mods=[pm.flower.GuardMod(policy=policy(folder, text), **options)])

    @app.train()
    def train(message, context):
        before(message, context)
        model = build()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        pm.flower.train_privately(message, context, model, *data())
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 60})}
        return Message(RecordDict(content), reply_to=message)

    return app


def asks(wrong):
    return {"before": lambda message, context: wrong(message, context)}


MISTAKES = {
    "the server's model is larger": ({}, lambda: linear(3), WEIGHTS),
    "the server's model has other layers": ({}, normalised, WEIGHTS),
    "records mix in a layer": ({"build": normalised}, normalised, SETUP),
    "records mix in the model's own code": ({"build": Centred}, Centred, SETUP),
    "no persons": ({"text": PERSONS}, linear, SETUP),
    "a misspelt record": (asks(lambda message, context: message.content["array"]), linear, SETUP),
    "a misspelt setting": (asks(lambda message, context: message.content["config"]["rl"]), linear, SETUP),
    "a misspelt key of the run": (asks(lambda message, context: context.run_config["round"]), linear, SETUP),
    "a misspelt key of the node": (asks(lambda message, context: context.node_config["part-id"]), linear, SETUP),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_that_no_record_has_part_in_costs_nothing(name, tmp_path):
    options, build, word = MISTAKES[name]
    app = app_of(tmp_path, **options)
    grid = InProcessGrid(app, 1)
    for _ in range(3):
        assert ask(app, content=sent(build), grid=grid).error.reason.startswith(word)
    assert not wallet(tmp_path).statement()


def raises(error):
    raise error


HIDDEN = {
    "no records": {"data": lambda: records(0)},
    "records of another shape": {"data": lambda: (torch.zeros(60, 7), torch.zeros(60, dtype=torch.long))},
    "labels of another type": {"data": lambda: (records()[0], torch.full((60,), torch.nan))},
    "fewer labels than records": {"data": lambda: (records()[0], records()[1][:50])},
    "a missing column": {"data": lambda: {}["age of patient 4711"]},
    "an error of its own": asks(lambda message, context: raises(ValueError("record 7"))),
    "a misfit of its own making": asks(lambda message, context: raises(Misfit("setup", "", ""))),
}  # fmt: skip


@pytest.mark.parametrize("name", HIDDEN)
def test_what_may_depend_on_records_stays_hidden_and_charged(name, tmp_path):
    reply = ask(app_of(tmp_path, **HIDDEN[name]), content=sent())
    assert not reply.has_error()
    assert [sale["epsilon"] for sale in wallet(tmp_path).statement()] == [1.0]


def test_a_server_that_changes_its_arrays_within_a_run_is_refused(tmp_path):
    app = app_of(tmp_path)
    grid = InProcessGrid(app, 1)
    assert not ask(app, content=sent(), grid=grid).has_error()
    for _ in range(3):
        reply = ask(app, content=sent(lambda: linear(3)), grid=grid)
        assert reply.error.reason.startswith(WEIGHTS)
    assert not ask(app, content=sent(), grid=grid).has_error()
    assert len(wallet(tmp_path).statement()) == 2


@pytest.mark.parametrize("first", ["fits", "does not"])
def test_a_run_is_decided_at_its_first_message(first, tmp_path):
    """An app that makes mistakes when its records say so could else tell something in every round."""
    answers = []
    told = iter([first == "fits", first != "fits", True, False])
    app = app_of(tmp_path, before=lambda message, context: None if next(told) else message.content["no"])
    grid = InProcessGrid(app, 1)
    for _ in range(4):
        answers.append(ask(app, content=sent(), grid=grid).has_error())
    assert answers == [first != "fits"] * 4


def test_no_app_reads_or_writes_what_was_decided(tmp_path):
    seen = []

    def forge(message, context):
        seen.append(list(context.state))
        context.state["privmarket-guard"] = ConfigRecord({"train": "setup"})

    app = app_of(tmp_path, before=forge)
    grid = InProcessGrid(app, 1)
    assert not any(ask(app, content=sent(), grid=grid).has_error() for _ in range(2))
    assert seen == [[], []]


def test_an_app_cannot_hide_a_misfit_and_send_something_else(tmp_path):
    """`except Exception` around the call: without the refusal the app's own update would leave, noised."""

    def careless(message, context):
        with suppress(Exception):
            pm.flower.train_privately(message, context, normalised(), *records())
        content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 60})}
        return Message(RecordDict(content), reply_to=message)

    app = ClientApp(mods=[pm.flower.GuardMod(policy=policy(tmp_path))])
    app.train()(careless)
    assert ask(app, content=sent(normalised)).error.reason.startswith(SETUP)
    assert not wallet(tmp_path).statement()


def test_with_a_model_other_arrays_are_refused_before_the_app_is_called(tmp_path, caplog):
    called = []
    app = app_of(tmp_path, model=linear, before=lambda message, context: called.append(1))
    grid = InProcessGrid(app, 1)
    assert ask(app, content=sent(lambda: linear(3)), grid=grid).error.reason.startswith(WEIGHTS)
    assert not called
    assert "2.weight (3, 4) (the client's (2, 4))" in caplog.text
    assert not ask(app, content=sent(), grid=grid).has_error()  # nothing was decided by the app
    assert called == [1]


def test_an_evaluation_that_cannot_load_the_model_costs_nothing(tmp_path):
    text = SITE + "[guard.evaluate]\naccuracy = { range = [0, 1], epsilon = 0.2 }\n"
    app = ClientApp(mods=[pm.flower.GuardMod(policy=policy(tmp_path, text))])

    @app.evaluate()
    def evaluate(message, context):
        linear().load_state_dict(message.content["arrays"].to_torch_state_dict())
        return Message(RecordDict({"metrics": MetricRecord({"accuracy": 1.0})}), reply_to=message)

    assert ask(app, "evaluate", sent(lambda: linear(3))).error.reason.startswith(WEIGHTS)
    assert not wallet(tmp_path).statement()
    assert not ask(app, "evaluate", sent()).has_error()
    assert [sale["epsilon"] for sale in wallet(tmp_path).statement()] == [0.2]


def test_numpy_apps_are_told_by_the_policys_list_of_models(tmp_path):
    """Without torch nothing says why an app fails; `models` names the forms that the site trains."""
    known = model_fingerprint({"weight": (4, 3)})
    app = app_of(tmp_path, f'models = ["{known}"]\n' + SITE)
    reply = ask(app, content=RecordDict({"arrays": arrays({"weight": np.zeros((4, 2), dtype=np.float32)})}))
    assert reply.error.reason.startswith(WEIGHTS)
    assert not (tmp_path / "wallet-0.jsonl").exists()
