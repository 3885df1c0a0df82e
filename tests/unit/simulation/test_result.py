"""What a run on a task leaves behind: names, statements, tables, figures, model files."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.unit.simulation.made_tasks import CLIENTS, SLOPE, config_of, made
from torch import nn
from typer.testing import CliRunner

import privmarket as pm
from privmarket.cli import app
from privmarket.errors import BidError, CheckpointError, ConfigurationError, DataError
from privmarket.simulation._bidding import AskedPrices
from privmarket.simulation._federation import run
from privmarket.simulation._model_file import card_path, load_model
from privmarket.simulation._result import summarise
from privmarket.tasks import Schema, Task

NAMES = tuple(f"site {i}" for i in range(CLIENTS))


def test_names_are_names_everywhere():
    task = made()
    result = run(config_of(task), task=task)
    assert set(result.records[0].paid_micro) <= set(NAMES)
    assert {row["name"] for row in summarise(result)["clients"]} == set(NAMES)
    seller = max(result.records[0].paid_micro)
    said = result.statement(seller)
    assert said.client == seller
    assert said.paid == sum(record.paid_micro.get(seller, 0) for record in result.records) / 1e6
    assert [number for number, _, _ in said.sales] == [1, 2, 3, 4, 5]
    assert seller in str(said)
    assert "if all others collude" in str(said)
    with pytest.raises(pm.errors.UnknownNameError, match="site 1"):
        result.statement("site l")
    assert "own records" in repr(result)


def test_the_score_is_called_what_it_is():
    task = made("regression")
    summary = summarise(run(config_of(task), task=task))
    assert summary["score_name"] == "r2"
    assert "accuracy" not in summary
    assert "accuracy" not in summary["rounds"][-1]
    assert summary["rounds"][-1]["score"] == summary["score"]
    with pytest.raises(DataError, match="accuracy is no score"):
        _ = run(config_of(task), task=task).accuracy


def test_federate_takes_a_task():
    task = made()
    result = pm.federate(task, trust="aggregate", budget=20, rounds=5, server_rate=2.0)
    assert result.config.mechanism == "graded-ration"
    assert result.config.training.server_rate == 2.0  # given, so not chosen
    assert result.config.training.clip_norm != 1.0  # chosen on public records
    assert result.config.task == task.digest()
    with pytest.raises(ConfigurationError, match="clients=5 beside a task"):
        pm.federate(task, clients=5)


def test_a_checkpoint_belongs_to_one_task(tmp_path):
    path = tmp_path / "run.ckpt"
    task = made()
    whole = run(config_of(task), task=task)
    run(config_of(task, rounds=5), task=task, checkpoint=path, checkpoint_every=1)
    again = run(config_of(task), task=task, checkpoint=path)
    assert np.array_equal(whole.weights, again.weights)
    other = made(private_seed=5)
    with pytest.raises(CheckpointError, match="another run"):
        run(config_of(other), task=other, checkpoint=path)


def test_several_processes_give_the_same(tmp_path):
    task = made()
    alone = run(config_of(task), task=task)
    assert np.array_equal(alone.weights, run(config_of(task), task=task, workers=2).weights)
    unnamed = task.replace(model=lambda: nn.Linear(SLOPE.size, 2))
    with pytest.raises(ConfigurationError, match="cannot be sent to other processes"):
        run(config_of(unnamed), task=unnamed, workers=2)


def test_bids_client_by_client(tmp_path):
    path = tmp_path / "sellers.csv"
    lines = [f"{name},{0.1 * i:g},2,{'0.5' if i == 3 else ''}" for i, name in enumerate(NAMES)]
    path.write_text("client,valuation,epsilon,wallet\n" + "\n".join(reversed(lines)) + "\n", encoding="utf-8")
    asked = AskedPrices.read(path)
    task = made()
    result = run(config_of(task, bids=asked.digest(), trust="local"), task=task, asked=asked)
    assert result.types.valuation[4] == pytest.approx(0.4)
    assert result.wallets.cap_epsilon[3] == 0.5
    assert np.isinf(result.wallets.cap_epsilon[4])
    row = summarise(result)["clients"][3]
    assert row["epsilon_spent"] <= 0.5
    assert row["wallet_left"] is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:-1], "no bid of 'site 11'"),
        (lambda lines: [*lines, "site 99,1,1,"], r"sellers\.csv: no records are held by 'site 99' \(remove"),
        (lambda lines: [lines[0].replace(",2,", ",2,none"), *lines[1:]], "field wallet: 'none'"),
        (lambda lines: [lines[0].replace(",2,", ",2,-1"), *lines[1:]], "field wallet: '-1'"),
    ],
)
def test_bids_that_do_not_fit(tmp_path, change, message):
    path = tmp_path / "sellers.csv"
    lines = change([f"{name},{0.1 * i:g},2," for i, name in enumerate(NAMES)])
    path.write_text("client,valuation,epsilon,wallet\n" + "\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(BidError, match=message):
        AskedPrices.read(path).of(NAMES)


def test_all_records_of_a_person_are_one_unit():
    """A person with a hundred copies of one record moves the model no more than a person with one."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(240, SLOPE.size)).astype(np.float32)
    labels = (inputs @ SLOPE > 0).astype(np.int64)
    clients = ["a"] * 120 + ["b"] * 120
    persons = np.arange(240) // 10
    task = Task.from_arrays(inputs, labels, clients=clients, person=persons, classes=2, test=(inputs, labels))
    assert task.unit == "person"
    result = run(config_of(task, trust="local", budget=5.0), task=task)
    assert result.statement("a").unit == "person"
    assert task.declared_sizes.tolist() == [12, 12]


def test_a_model_goes_to_a_file_and_back(tmp_path):
    task = made()
    result = run(config_of(task), task=task)
    path = result.save_model(tmp_path / "model.safetensors")
    saved = load_model(path)
    outputs = task.outputs(result.model, task.test.inputs)
    assert np.array_equal(saved.outputs(task.test.inputs), outputs)
    names, shares = saved.predict(task.test.inputs)
    assert names.tolist() == task.predictions(outputs).tolist()
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    card = json.loads(card_path(path).read_text(encoding="utf-8"))
    assert card["score"]["after"] == result.score
    assert card["score"]["before"] == result.score_before
    assert card["money"] == result.spent
    assert card["privacy"]["largest_epsilon"] <= summarise(result)["largest_epsilon_spent"] + 1e-9
    with pytest.raises(DataError, match="trained on arrays"):
        saved.predict_file(tmp_path / "rows.csv")


def test_predictions_are_printed_with_the_digits_that_they_have(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"s{i % 3},{x:.3f},{20 + 5 * x:.3f}" for i, x in enumerate(rng.normal(size=90))]
    table = tmp_path / "t.csv"
    table.write_text("who,x,y\n" + "\n".join(lines) + "\n", encoding="utf-8")
    about = {
        "client": "who",
        "label": {"column": "y", "range": [0, 40]},
        "columns": {"x": {"kind": "number", "range": [-4, 4]}},
    }
    task = Task.from_csv(table, schema=Schema.from_dict(about, source="s.toml"), test_share=0.2)
    result = run(config_of(task, trust="local", rounds=1, evaluate_every=1), task=task)
    model = result.save_model(tmp_path / "m.safetensors")
    shown = CliRunner().invoke(app, ["predict", str(model), str(table), "--json"])
    values = [row[1] for row in json.loads(shown.stdout)["rows"]]
    assert max(len(f"{value}".replace(".", "").lstrip("0")) for value in values) <= 7
    exact, _ = load_model(model).predict_file(table)
    np.testing.assert_allclose(values, exact, rtol=1e-6)


def test_a_regression_predicts_in_the_unit_of_the_data(tmp_path):
    task = made("regression")
    result = run(config_of(task), task=task)
    values, shares = load_model(result.save_model(tmp_path / "model.safetensors")).predict(task.test.inputs)
    assert shares is None
    np.testing.assert_allclose(values, task.predictions(task.outputs(result.model, task.test.inputs)), rtol=1e-6)


def test_model_files_that_do_not_belong_together(tmp_path):
    task = made()
    result = run(config_of(task), task=task)
    path = result.save_model(tmp_path / "model.safetensors")
    with pytest.raises(ConfigurationError, match=r"\.safetensors"):
        result.save_model(tmp_path / "model.pt")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match="not the weights"):
        load_model(path)
    card_path(path).unlink()
    with pytest.raises(DataError, match="two files"):
        load_model(path)


def build():
    """A network of one's own."""
    return nn.Sequential(nn.Linear(SLOPE.size, 3), nn.Tanh(), nn.Linear(3, 2))


def test_a_network_of_ones_own_has_to_be_named(tmp_path):
    task = made(model=build)
    result = run(config_of(task, rounds=2), task=task)
    path = result.save_model(tmp_path / "model.safetensors")
    with pytest.raises(ConfigurationError, match=r"test_result\.py:build"):
        load_model(path)
    assert torch.equal(load_model(path, build).module[0].weight, result.model[0].weight)
    with pytest.raises(DataError, match="does not fit"):
        load_model(path, lambda: nn.Linear(SLOPE.size, 2))


def test_rounds_as_a_table_and_a_figure(tmp_path):
    task = made()
    result = run(config_of(task, evaluate_every=1), task=task)
    frame = result.to_frame()
    assert frame["paid"].sum() == pytest.approx(result.spent)
    assert frame[task.score.name].iloc[-1] == result.score
    result.plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 5_000


def test_tasks_by_name():
    result = pm.federate("breast-cancer", trust="aggregate", budget=20, rounds=3, seed=1)
    assert result.task.score.name == "auc"
    assert result.own_records is not None


def test_only_trainable_parameters_are_sold():
    """A frozen part of a network is neither sent nor changed."""

    def frozen():
        module = nn.Sequential(nn.Linear(SLOPE.size, 5), nn.Tanh(), nn.Linear(5, 2))
        for parameter in module[0].parameters():
            parameter.requires_grad_(False)
        return module

    task = made(model=frozen)
    result = run(config_of(task), task=task)
    assert result.weights.size == 12
    assert torch.equal(result.model[0].weight, task.build_model(result.config.seed)[0].weight)
    assert replace(result, seconds=1.0).weights.size == 12
