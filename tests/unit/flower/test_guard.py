"""The guard under Flower's own servers: what leaves, what it costs, and that a run goes on without a site."""

import math
import sys
from contextlib import suppress
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.server import LegacyContext, ServerConfig, strategy as old
from flwr.server.workflow import DefaultWorkflow
from flwr.serverapp import strategy as new
from torch import nn
from torch.utils.data import DataLoader
from typer.testing import CliRunner

import privmarket as pm
from privmarket.cli import app as cli
from privmarket.errors import ConfigurationError, WalletError
from privmarket.flower._guard_mod import REFUSALS
from privmarket.flower._in_process import InProcessGrid, play_in_process
from privmarket.flower._training import private_module_update, trainable_arrays
from privmarket.privacy._calibration import ReleaseFamily, noise_multiplier
from privmarket.privacy._noise import NoiseSource
from privmarket.training import LocalPlan
from tests.unit.flower.guarded import (
    NODE,
    SITE,
    START,
    arrays,
    ask,
    old_app,
    old_start,
    plain_app,
    policy,
    run,
    seed_noise,
    wallet,
)


def guard(folder, text=SITE, **options):
    return pm.flower.GuardMod(policy=policy(folder, text), **options)


def flat(record):
    return np.concatenate([array.numpy().astype(np.float64).ravel() for array in record.values()])


STRATEGIES = {
    "FedAvg": new.FedAvg,
    "FedProx": lambda: new.FedProx(proximal_mu=0.1),
    "FedAvgM": lambda: new.FedAvgM(server_momentum=0.9),
    "FedAdam": new.FedAdam,
    "FedMedian": new.FedMedian,
    "FedTrimmedAvg": new.FedTrimmedAvg,
    "Krum": lambda: new.Krum(num_malicious_nodes=0),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_of_flower_work_as_they_are(name, tmp_path):
    result = run(STRATEGIES[name](), plain_app([guard(tmp_path)]), nodes=3, rounds=2)
    assert sorted(result.train_metrics_clientapp) == [1, 2]
    assert set(result.arrays) == set(START)
    assert np.isfinite(flat(result.arrays)).all()
    assert not result.evaluate_metrics_clientapp  # refused: nothing is declared
    for client in "012":
        assert [sale["epsilon"] for sale in wallet(tmp_path, client).statement()] == [1.0, 1.0]


def old_run(strategy, app, nodes=2, rounds=1):
    """What an unmodified strategy of the older API makes of an app: its history."""
    grid = InProcessGrid(app, nodes)
    context = Context(grid.run.run_id, 1, {}, RecordDict(), {})
    legacy = LegacyContext(context, config=ServerConfig(num_rounds=rounds, round_timeout=5), strategy=strategy)
    DefaultWorkflow()(grid, legacy)
    return legacy


def test_strategies_of_the_older_api_work_as_they_are(tmp_path):
    text = SITE + "[guard.evaluate]\nloss = { range = [0, 2], epsilon = 0.1 }\naccuracy = 0.5\n"
    means = lambda metrics: {"accuracy": np.mean([m["accuracy"] for _, m in metrics])}  # noqa: E731
    strategy = old.FedAvg(initial_parameters=old_start(), evaluate_metrics_aggregation_fn=means)
    found = old_run(strategy, old_app([guard(tmp_path, text)]), rounds=2)
    assert [number for number, _ in found.history.losses_distributed] == [1, 2]
    assert found.history.metrics_distributed["accuracy"] == [(1, 0.5), (2, 0.5)]
    assert [sale["epsilon"] for sale in wallet(tmp_path).statement()] == [1.0, 0.1, 1.0, 0.1]


@pytest.mark.parametrize("kind", ["get_parameters", "get_properties", "reconnect"])
def test_older_messages_get_fixed_words(kind, tmp_path):
    reply = ask(old_app([guard(tmp_path)]), kind, RecordDict())
    assert reply.error.reason.startswith("privmarket guard: not-allowed")


def test_a_run_goes_on_without_a_site_whose_cap_is_reached(tmp_path, caplog):
    app = plain_app([guard(tmp_path)])
    (tmp_path / "poor").mkdir()
    grid = InProcessGrid(app, 3)
    poor = policy(tmp_path / "poor", SITE.replace("6.0", "1.8"))
    grid.contexts[NODE].node_config["policy"] = str(poor)
    counts = []

    class Counting(new.FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            counts.append(sum(not reply.has_error() for reply in replies))
            return super().aggregate_train(server_round, replies)

    result = Counting().start(grid, arrays(), num_rounds=4)
    paid = len(wallet(tmp_path / "poor").statement())
    assert 1 <= paid <= 3
    assert counts == [3] * paid + [2] * (4 - paid)
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3, 4]
    assert "does not fit" in caplog.text


def test_an_update_has_the_noise_that_the_policy_names(tmp_path, monkeypatch):
    """Standard deviation 2·C·σ for a sensitivity of 2·C; the clipped change has norm C."""
    seed_noise(monkeypatch)
    start = {"w": np.zeros(20_000, dtype=np.float32)}
    text = SITE + "clip_norm = 0.5\nepsilon = 2.0\n"
    reply = ask(plain_app([guard(tmp_path, text)]), content=RecordDict({"arrays": arrays(start)}))
    sigma = noise_multiplier(2.0)
    values = flat(reply.content["arrays"])
    assert np.std(values) == pytest.approx(2 * 0.5 * sigma, rel=0.02)
    (sale,) = wallet(tmp_path).statement()
    assert sale["event"] == {"noise_multiplier": pytest.approx(sigma), "sampling_rate": 1.0, "steps": 1}
    seed_noise(monkeypatch)
    still = ask(plain_app([guard(tmp_path, text)], change=0.0), content=RecordDict({"arrays": arrays(start)}))
    assert np.linalg.norm(values - flat(still.content["arrays"])) == pytest.approx(0.5, rel=0.01)


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))


def records(context=None):
    inputs = torch.randn(60, 5, generator=torch.Generator().manual_seed(1))
    return inputs, (inputs[:, 0] > 0).long()


def torch_app(mods, before=None, after=None):
    """An app that trains by `train_privately`; `before` spoils the model, `after` what is returned."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message, context):
        model = build()
        if before:
            before(model)
        pm.flower.train_privately(message, context, model, *records())
        content = RecordDict(
            {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 57})}
        )
        return Message(after(content) if after else content, reply_to=message)

    return app


RECORDS = SITE + 'training = "records"\nlearning_rate = 0.5\nclip_norm = 0.7\n'
MODEL = {name: tensor.numpy() for name, tensor in build().state_dict().items()}


def model_message():
    return RecordDict({"arrays": arrays(MODEL)})


def spoil(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 100.0  # as if it had learnt something elsewhere


def expected(seed):
    """What the training engine alone makes of the same weights, records, plan and noise."""
    module = build()
    weights = trainable_arrays(module)
    plan = LocalPlan(1, 1.0, 0.7, 0.5, 60.0)

    class Sale:
        family = ReleaseFamily()
        clip_norm, learning_rate, expected_batch = plan.clip_norm, plan.learning_rate, plan.expected_batch

    class Job:
        sale, unit, noise = Sale, "record", NoiseSource.from_seed(seed)
        noise_multiplier = float(noise_multiplier(1.0))

    update = private_module_update(module, weights, *records(), Job)
    return {name: weights[name] - update[name] for name in weights}


def test_training_by_records_releases_what_the_engine_makes(tmp_path, monkeypatch):
    seed_noise(monkeypatch)
    reply = ask(torch_app([guard(tmp_path, RECORDS)]), content=model_message())
    for name, array in expected(0).items():
        assert np.allclose(reply.content["arrays"][name].numpy(), array, atol=1e-6), name
    assert [sale["unit"] for sale in wallet(tmp_path).statement()] == ["record"]


def test_what_the_app_returns_beside_it_does_not_count(tmp_path, monkeypatch):
    """Neither weights that the model brought along, nor what becomes of the reply, nor an error afterwards."""
    raw = lambda content: RecordDict({"arrays": arrays({"raw": np.full(9, 3.0)})})  # noqa: E731
    for before, after in ((spoil, None), (None, raw), (None, lambda content: 1 / 0)):
        seed_noise(monkeypatch)
        reply = ask(torch_app([guard(tmp_path, RECORDS)], before, after), content=model_message())
        for name, array in expected(0).items():
            assert np.allclose(reply.content["arrays"][name].numpy(), array, atol=1e-6), name


def loader(context):
    inputs, labels = records()
    return DataLoader([{"img": x, "label": y} for x, y in zip(inputs, labels, strict=True)], batch_size=16)


@pytest.mark.parametrize("data", [lambda context: records(), loader])
def test_a_model_and_its_data_can_be_handed_over(data, tmp_path, monkeypatch):
    seed_noise(monkeypatch)
    asked = []
    app = ClientApp(mods=[guard(tmp_path, RECORDS, model=build, data=data)])
    app.train()(lambda message, context: asked.append(1))
    reply = ask(app, content=model_message())
    assert not asked
    for name, array in expected(0).items():
        assert np.allclose(reply.content["arrays"][name].numpy(), array, atol=1e-6), name


def test_weights_without_names_are_taken_in_order(tmp_path, monkeypatch):
    """Strategies of the older API number the arrays."""
    seed_noise(monkeypatch)
    app = ClientApp(mods=[guard(tmp_path, RECORDS, model=build, data=records)])
    app.train()(lambda message, context: None)
    numbered = {str(at): array for at, array in enumerate(MODEL.values())}
    reply = ask(app, content=RecordDict({"fitins.parameters": arrays(numbered)}))
    there = reply.content["fitres.parameters"]
    for (name, array), key in zip(expected(0).items(), numbered, strict=True):
        assert np.allclose(there[key].numpy(), array, atol=1e-6), name


@pytest.mark.parametrize("steps", [1, 4])
def test_noise_alone_looks_like_training_without_usable_records(steps, tmp_path, monkeypatch):
    """An app that fails before it trains: the same deviation as lr/n·√steps·σ·C on every weight."""
    seed_noise(monkeypatch)
    big = {"w": np.zeros(20_000, dtype=np.float32)}
    app = ClientApp(mods=[guard(tmp_path, RECORDS + f"steps = {steps}\n")])
    app.train()(lambda message, context: 1 / 0)
    reply = ask(app, content=RecordDict({"arrays": arrays(big)}))
    sigma = ReleaseFamily(1.0, steps).noise_multiplier(1.0)
    deviation = 0.5 / 60 * math.sqrt(steps) * sigma * 0.7
    assert np.std(flat(reply.content["arrays"])) == pytest.approx(deviation, rel=0.02)
    assert [sale["event"]["steps"] for sale in wallet(tmp_path).statement()] == [steps]


def test_a_policy_for_records_lets_no_other_training_out(tmp_path, monkeypatch, caplog):
    """The app's own change is not in the reply at all, whatever its size."""
    found = []
    for change in (0.0, 5.0):
        seed_noise(monkeypatch)
        found.append(flat(ask(plain_app([guard(tmp_path, RECORDS)], change)).content["arrays"]))
    assert np.array_equal(*found)
    assert "did not train by train_privately" in caplog.text


def test_persons_are_protected_together_where_the_policy_says_so(tmp_path, monkeypatch):
    """With persons of one record each it trains as without them; with persons of three it does not."""
    found = []
    for unit, persons in (("record", None), ("person", torch.arange(60)), ("person", torch.arange(60) // 3)):
        seed_noise(monkeypatch)
        folder = tmp_path / unit  # a wallet counts one unit for life
        folder.mkdir(exist_ok=True)
        data = lambda context, persons=persons: (*records(), persons)  # noqa: E731
        app = ClientApp(mods=[guard(folder, f'unit = "{unit}"\n' + RECORDS, model=build, data=data)])
        app.train()(lambda message, context: None)
        found.append(flat(ask(app, content=model_message()).content["arrays"]))
    assert np.allclose(found[0], found[1], atol=1e-3)
    assert not np.allclose(found[1], found[2], atol=1e-3)
    assert [sale["unit"] for sale in wallet(tmp_path / "record").statement()] == ["record"]
    assert [sale["unit"] for sale in wallet(tmp_path / "person").statement()] == ["person", "person"]


def test_a_wallet_of_another_unit_is_refused_and_the_log_says_so(tmp_path, caplog):
    assert not ask(torch_app([guard(tmp_path, RECORDS)]), content=model_message()).has_error()
    reply = ask(torch_app([guard(tmp_path, 'unit = "person"\n' + RECORDS)]), content=model_message())
    assert reply.has_error()
    assert "per record" in caplog.text
    assert len(wallet(tmp_path).statement()) == 1


def test_sampled_steps_are_charged_as_such(tmp_path):
    text = RECORDS + "steps = 10\nsampling_rate = 0.1\n"
    assert not ask(torch_app([guard(tmp_path, text)]), content=model_message()).has_error()
    (sale,) = wallet(tmp_path).statement()
    event = sale["event"]
    assert (event["sampling_rate"], event["steps"]) == (0.1, 10)
    assert event["noise_multiplier"] == pytest.approx(float(ReleaseFamily(0.1, 10).noise_multiplier(1.0)))


def test_a_policy_for_updates_does_not_believe_what_a_record_is(tmp_path, caplog):
    reply = ask(torch_app([guard(tmp_path, SITE + 'training = "update"\n')]), content=model_message())
    assert not reply.has_error()  # noise alone
    assert 'training = "update"' in caplog.text


def evaluating(mods, values=None):
    app = ClientApp(mods=mods)

    @app.evaluate()
    def evaluate(message, context):
        if values is not None:
            pm.flower.average_privately("accuracy", values)
        metrics = MetricRecord({"accuracy": 0.75, "num-examples": 57})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def spread(folder, app, monkeypatch):
    """Mean and deviation of a metric over many evaluations, with seeded noise."""
    seed_noise(monkeypatch)
    found = [ask(app, "evaluate").content["metrics"]["accuracy"] for _ in range(100)]
    return np.mean(found), np.std(found)


def test_a_metric_has_noise_for_its_range_or_for_one_record(tmp_path, monkeypatch):
    text = 'epsilon_lifetime = "unlimited"\nwallet = "wallet-{client}.jsonl"\n[guard]\nexamples = 60\n'
    text += "[guard.evaluate]\naccuracy = { range = [0, 1], epsilon = 1.0 }\n"
    sigma = noise_multiplier(1.0)
    mean, deviation = spread(tmp_path, evaluating([guard(tmp_path, text)]), monkeypatch)
    assert deviation == pytest.approx(sigma, rel=0.25)
    assert mean == pytest.approx(0.75, abs=0.4 * sigma)
    values = torch.tensor([1.0] * 45 + [0.0] * 15)
    mean, deviation = spread(tmp_path, evaluating([guard(tmp_path, text)], values), monkeypatch)
    assert deviation == pytest.approx(0.5 * sigma / 60, rel=0.25)
    assert mean == pytest.approx(0.75, abs=0.4 * deviation)


def test_a_declared_metric_that_the_reply_lacks_is_named_in_the_log(tmp_path, caplog):
    text = SITE + "[guard.evaluate]\nacuracy = { range = [0, 1], epsilon = 0.5 }\n"
    reply = ask(evaluating([guard(tmp_path, text)]), "evaluate")
    assert set(reply.content["metrics"]) == {"acuracy", "num-examples"}
    assert "the policy declares acuracy, and the app's reply has no finite number" in caplog.text
    caplog.clear()
    ask(evaluating([guard(tmp_path, text.replace("acuracy", "accuracy"))]), "evaluate")
    assert "no finite number" not in caplog.text


def test_more_records_than_declared_do_not_inflate_a_mean(tmp_path, monkeypatch, caplog):
    text = SITE + "[guard.evaluate]\naccuracy = { range = [0, 1], epsilon = 2.0 }\n"
    seed_noise(monkeypatch)
    reply = ask(evaluating([guard(tmp_path, text)], [1.0] * 600), "evaluate")
    assert reply.content["metrics"]["accuracy"] == pytest.approx(1.0, abs=0.1)
    assert "the app has 600 records" in caplog.text


def test_a_metric_without_noise_must_be_written_out_and_has_few_digits(tmp_path):
    text = SITE + '[guard.evaluate]\naccuracy = { range = [0, 1], epsilon = "unlimited" }\n'
    app = evaluating([guard(tmp_path, text)], [0.123456789] * 60)
    assert ask(app, "evaluate").content["metrics"]["accuracy"] == 0.123
    said = CliRunner().invoke(cli, ["seller", "check", str(tmp_path / "site.toml")])
    assert "WITHOUT NOISE" in said.output


def test_the_statement_lists_what_left(tmp_path):
    ask(plain_app([guard(tmp_path)]))
    said = CliRunner().invoke(cli, ["seller", "statement", str(tmp_path / "wallet-0.jsonl")], terminal_width=300)
    assert "1 release" in said.output
    assert "train" in said.output
    assert "not yet" not in said.output  # nobody owes money


def test_market_and_guard_share_a_wallet(tmp_path):
    app = plain_app([guard(tmp_path)])
    assert not ask(app).has_error()
    file = pm.privacy.WalletFile(tmp_path / "wallet-0.jsonl", 6.0)
    event = ReleaseFamily().event(1.0)
    with file.open() as sold, suppress(WalletError):  # a market that buys until nothing is left
        for number in range(100):
            sold.reserve(f"run/{number}", 1.0, event)
    assert 1 < len(file.statement()) < 100
    assert ask(app).error.reason.startswith("privmarket guard: wallet")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("[guard]\nclip_nrom = 1\n", "did you mean clip_norm?"),
        ('[guard]\ntraining = "record"\n', "did you mean records?"),
        ('[guard]\nfailures = "tel"\n', "did you mean tell?"),
        ("[guard]\nexamples = 0\n", "at least 1"),
        ("[guard]\nexamples = 2.5\n", "whole number"),
        ("[guard]\nepsilon = 0\n", "above 0"),
        ("[guard]\nsampling_rate = 2\n", "probability"),
        ("guard = 3\n", "write [guard]"),
        ("[guard.evaluate]\naccuracy = { range = [0, 1], epsilo = 1 }\n", "did you mean epsilon?"),
        ("[guard.evaluate]\naccuracy = { range = [1, 0], epsilon = 1 }\n", "range = [0, 1]"),
        ("[guard.evaluate]\naccuracy = { range = [0, 1] }\n", "range = [0, 1]"),
        ("[guard.evaluate]\naccuracy = { range = [0, 1], epsilon = inf }\n", "unlimited"),
        ("[guard.train]\nnum-examples = 3\n", "`examples`"),
    ],
)
def test_a_slip_in_the_file_is_told_when_the_app_starts(text, hint, tmp_path):
    with pytest.raises(ConfigurationError) as caught:
        guard(tmp_path, text)
    assert hint in str(caught.value)
    assert "site.toml" in str(caught.value)


def test_a_guard_without_a_policy_lets_nothing_out(tmp_path, caplog):
    assert ask(plain_app([pm.flower.GuardMod()])).error.reason.startswith("privmarket guard: setup")
    assert "--node-config" in caplog.text
    with pytest.raises(ConfigurationError, match="data without a model"):
        guard(tmp_path, data=records)


def test_a_policy_that_is_gone_is_named_in_the_log(tmp_path, caplog):
    app = plain_app([pm.flower.GuardMod(policy=tmp_path / "gone.toml")])
    assert ask(app).error.reason.startswith("privmarket guard: setup")
    assert str(tmp_path / "gone.toml") in caplog.text


def test_every_word_of_a_guard_is_explained_on_its_page():
    page = (Path(__file__).parents[3] / "docs/reference/refusals.md").read_text(encoding="utf-8")
    explained = page.partition("## A guard")[2]
    assert [word for word in REFUSALS if f"| `{word}` |" not in explained] == []


def test_a_relative_policy_is_named_in_full_in_the_log(tmp_path, monkeypatch, caplog):
    """Where the process was started may be another app's folder."""
    site = policy(tmp_path)
    assert not ask(plain_app([pm.flower.GuardMod(policy=site)])).has_error()
    assert "full path" not in caplog.text
    monkeypatch.chdir(tmp_path)
    assert not ask(plain_app([pm.flower.GuardMod(policy="site.toml")])).has_error()
    assert f"the policy site.toml is read from {site}" in caplog.text
    caplog.clear()
    pm.flower.client_app(lambda weights, job: weights, valuation=0.1, policy="site.toml")
    assert f"the policy site.toml is read from {site}" in caplog.text


def test_a_counter_of_a_layer_keeps_its_shape(tmp_path):
    sent = {**START, "counter": np.array(3)}
    reply = ask(plain_app([guard(tmp_path)]), content=RecordDict({"arrays": arrays(sent)}))
    assert reply.content["arrays"]["counter"].numpy().shape == ()
    assert isinstance(reply.content["arrays"]["counter"], Array)


def test_the_example_runs_and_is_charged(tmp_path, monkeypatch):
    """Its three lines under Flower's FedAvg: an update and an accuracy leave each of three sites in a round."""
    folder = files("privmarket") / "examples" / "flower-guard"
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.toml").write_text((folder / "site.toml").read_text(encoding="utf-8"), encoding="utf-8")
    server = import_module("guarded_app.server_app")
    client = import_module("guarded_app.client_app")
    play_in_process(server.app, client.app, 3, {"num-server-rounds": 1})
    for site in "012":
        assert [sale["epsilon"] for sale in wallet(tmp_path, site).statement()] == [1.0, 0.2]
        assert all(sale["released"] for sale in wallet(tmp_path, site).statement())
    for name in [name for name in sys.modules if name.partition(".")[0] == "guarded_app"]:
        del sys.modules[name]
