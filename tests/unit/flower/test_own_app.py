"""An app that one already has: defaults that learn, slips that cost nothing and name their line, stop and go on."""

import json
import logging
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

import privmarket as pm
from privmarket.errors import CheckpointError, ConfigurationError, DataError, UnknownNameError
from privmarket.flower import _defaults as defaults, _failures as failures
from privmarket.flower._app_folder import StoppedError, run_app
from privmarket.flower._training import records_of
from privmarket.privacy._noise import NoiseSource
from tests.unit.flower.toy import Wire, seed_noise

NODES = 3
RNG = np.random.default_rng(0)
LABELS = np.arange(180) % 2
INPUTS = (RNG.normal(size=(180, 4)) + 2.0 * (2 * LABELS[:, None] - 1)).astype(np.float32)


def build():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 2)


def records(context):
    mine = slice(int(context.node_config["partition-id"]), None, NODES)
    return torch.from_numpy(INPUTS[mine]), torch.from_numpy(LABELS[mine])


def accuracy(model):
    with torch.no_grad():
        return float((model(torch.from_numpy(INPUTS)).argmax(1).numpy() == LABELS).mean())


def measured(number, arrays):
    model = build()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(model)})


def app_with(body, folder, noise="records", **options):
    """A template's client around `body(message, context, model)`, which trains."""
    options = {"valuation": 0.2, "data_size": 60, "wallet": 8.0, **options}
    market = pm.flower.WalletMod(noise=noise, **options)
    app = ClientApp(mods=[market])
    market.answer_bids(app)

    @app.train()
    def train(msg, context):
        model = build()
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        body(msg, context, model)
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"train_loss": 0.25})}
        return Message(RecordDict(content), reply_to=msg)

    @app.evaluate()
    def evaluate(msg, context):
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 60})}), reply_to=msg)

    grid = Wire(app, NODES)
    for context in grid.contexts.values():
        context.node_config["wallets"] = str(folder)
    return grid


def privately(msg, context, model):
    x, y = records(context)
    loader = DataLoader([{"img": a, "label": b} for a, b in zip(x, y, strict=True)], batch_size=16, shuffle=True)
    pm.flower.train_privately(msg, context, model, loader)


def bought(grid, rounds=4, inner=None, **options):
    options = {"mechanism": "proportional-share", "budget": 10.0, "model": build, **options}
    strategy = pm.flower.AuctionStrategy(inner or FedAvg(fraction_evaluate=0.0), **options)
    with failures.collected() as found:
        start = ArrayRecord(build().state_dict())
        strategy.start(grid, start, num_rounds=rounds, evaluate_fn=measured)
    return strategy, found


@pytest.mark.parametrize("inner", [FedAvg, FedAvgM, FedAdam])
def test_a_templates_loader_trains_with_defaults(inner, tmp_path, monkeypatch):
    seed_noise(monkeypatch)
    grid = app_with(privately, tmp_path)
    strategy, found = bought(grid, inner=inner(fraction_evaluate=0.0))
    assert not found
    assert strategy.result.accuracy > 0.9  # both classes lie four deviations apart
    assert max(strategy.result.epsilon_spent.values()) <= 8.0
    assert strategy.settings.steps == defaults.STEPS
    assert strategy.settings.rounds == 4  # those of `start`, over which sellers spread their ε
    # What leaves beside the weights is the declared number of records, and no loss.
    for reply in grid.answered:
        for metrics in reply.content.metric_records.values():
            assert set(metrics) == {"num-examples"}


def test_the_plan_follows_the_formula():
    """ρ = √d·√(Σα²σ²)/(b·√S), path = min(PATH, 5√d, 2.4·S, DRIFT/ρ), rate = path/(S·C·gain)."""
    from privmarket.flower._settings import MarketSettings
    from privmarket.mechanisms import resolve
    from privmarket.rounds import Offer, Round, Terms

    def planned(parameters, epsilon, rounds=10, **options):
        settings = MarketSettings(rounds=rounds, steps=10, clip_norm=0.5)
        terms = Terms(0, 100_000_000, settings.family, 8.0, rounds, "run")
        offers = {str(i): Offer(0.1, epsilon, 480.0) for i in range(5)}
        cleared = Round(terms, offers=offers).clear(resolve("proportional-share"))
        assert len(cleared.awards) == 5
        plan = defaults.plan_round(settings, cleared, parameters, declared=480.0, **{"server_gain": 1.0, **options})
        sigma = cleared.awards["0"].event.noise_multiplier
        rho = math.sqrt(parameters) * sigma / math.sqrt(5) / 480.0 / math.sqrt(10 * rounds)
        return plan, rho, sigma

    plan, rho, sigma = planned(44_426, 2.0)
    assert plan.learning_rate == pytest.approx(defaults.DRIFT / rho / (100 * 0.5), rel=0.01)
    assert plan.expected_batch == 480.0
    assert plan.noise_ratio == pytest.approx(rho * math.sqrt(100) / math.sqrt(10), rel=1e-6)
    loud, _, sigma = planned(44_426, 2.0, noise="update")
    assert loud.noise_ratio == pytest.approx(2 * math.sqrt(44_426) * sigma / math.sqrt(5), rel=1e-6)
    small, _, _ = planned(11, 2.0)
    assert small.learning_rate == pytest.approx(5 * math.sqrt(11) / (100 * 0.5), rel=0.01)
    fast, _, _ = planned(11, 2.0, server_gain=4.0)
    assert fast.learning_rate == pytest.approx(small.learning_rate / 4, rel=0.01)


def test_the_gain_of_momentum_is_what_it_does():
    """Against the recursion v ← m·v + 1, w ← w + rate·v."""
    for rate, momentum, rounds in ((1.0, 0.9, 10), (0.5, 0.0, 3), (2.0, 0.5, 1)):
        travelled = velocity = 0.0
        for _ in range(rounds):
            velocity = momentum * velocity + 1.0
            travelled += rate * velocity
        assert defaults.optimiser_gain(rate, momentum, rounds) == pytest.approx(travelled / rounds)
    inner = FedAvgM(server_learning_rate=0.5, server_momentum=0.8)
    assert defaults.strategy_gain(inner, 5) == defaults.optimiser_gain(0.5, 0.8, 5)
    assert defaults.strategy_gain(FedAdam(), 5) == 1.0


def test_noise_that_drowns_the_update_is_said_before_anyone_is_paid(tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="flwr.privmarket")
    grid = app_with(lambda *_: None, tmp_path, noise="update", wallet=0.5)
    bought(grid, rounds=1, noise="update")
    assert any("times as long as the longest update of 10 weights" in line for line in caplog.messages)
    with pytest.raises(UnknownNameError, match="did you mean 'records'"):
        pm.flower.WalletMod(valuation=0.2, wallet=8.0, noise="record")
    with pytest.raises(ConfigurationError, match='noise="records" where'):
        pm.flower.WalletMod(valuation=0.2, wallet=8.0)


def typo(msg, context, model):
    pm.flower.train_privately(msg, context, model, *recrods(context))  # noqa: F821


def wrong_shape(msg, context, model):
    x, y = records(context)
    pm.flower.train_privately(msg, context, model, x[:, :3], y)


def wrong_loss(msg, context, model):
    pm.flower.train_privately(msg, context, model, *records(context), loss=torch.nn.functional.mse_loss)


def no_records(msg, context, model):
    x, y = records(context)
    pm.flower.train_privately(msg, context, model, x[:0], y[:0])


def unprotected(msg, context, model):
    with torch.no_grad():
        model.weight.add_(1.0)


@pytest.mark.parametrize(
    ("body", "word", "said"),
    [
        (typo, "app", "in typo: NameError: name 'recrods' is not defined"),
        (wrong_shape, "model", "does not take records of shape (3,)"),
        (wrong_loss, "model", "loss"),
        (no_records, "records", "no records"),
        (unprotected, "app", "without pm.flower.train_privately"),
    ],
)
def test_a_slip_costs_no_epsilon_and_names_its_line(body, word, said, tmp_path):
    strategy, found = bought(app_with(body, tmp_path))
    assert len(strategy.records) == 1  # everybody failed for the same reason: no further round
    assert all(why.startswith(f"refused: {word} ") for why in strategy.records[0].dropped.values())
    assert set(found) == {"0", "1", "2"}
    assert all(said in line for line in found.values())
    if body in (typo, wrong_shape):
        assert all(Path(__file__).name in line for line in found.values())
    assert all(not pm.privacy.WalletFile(path, 8.0).statement() for path in tmp_path.glob("*.jsonl"))
    assert any("ended after round 1 of 4" in line for line in strategy.result.summary())


def goes_on(msg, context, model):
    """Private training, and then some more that nobody noised."""
    privately(msg, context, model)
    unprotected(msg, context, model)


def test_what_train_privately_did_not_make_never_leaves(tmp_path):
    grid = app_with(goes_on, tmp_path)
    strategy, found = bought(grid)
    assert all("weight is not as train_privately left it" in line for line in found.values())
    assert strategy.records[0].paid_micro == {}
    assert not any(reply.content.array_records for reply in grid.answered)


def test_only_a_part_that_fails_does_not_end_the_run(tmp_path):
    def sometimes(msg, context, model):
        if context.node_config["partition-id"] == 1:
            raise OSError("no disk")
        privately(msg, context, model)

    strategy, found = bought(app_with(sometimes, tmp_path), rounds=2)
    assert len(strategy.records) == 2
    assert set(found) == {"1"}
    assert set(strategy.records[1].paid_micro) == {"0", "2"}


# --- loaders -------------------------------------------------------------------------------------------------


def test_every_kind_of_loader_gives_each_record_once():
    x, y = torch.from_numpy(INPUTS), torch.from_numpy(LABELS)
    pairs = TensorDataset(x, y)
    dicts = [{"image": a, "label": b} for a, b in zip(x, y, strict=True)]
    loaders = (
        pairs,
        DataLoader(pairs, batch_size=7, shuffle=True, drop_last=True),
        DataLoader(dicts, batch_size=7, shuffle=True),
        DataLoader(pairs, batch_size=None),
    )
    for loader in loaders[:3]:
        inputs, labels = records_of(loader)
        assert torch.equal(inputs, x)
        assert torch.equal(labels, y)
    some = DataLoader(pairs, sampler=SubsetRandomSampler([5, 3, 3]), batch_size=2)
    assert torch.equal(records_of(some)[0], x[[3, 5]])


def test_loaders_that_count_a_record_twice_or_hide_its_label_are_refused():
    pairs = TensorDataset(torch.from_numpy(INPUTS), torch.from_numpy(LABELS))
    weighted = DataLoader(pairs, sampler=WeightedRandomSampler([1.0] * 180, 400))
    with pytest.raises(DataError, match="twice"):
        records_of(weighted)
    with pytest.raises(DataError, match="which are the inputs"):
        records_of(DataLoader([{"a": 1, "b": 2, "label": 0}]))
    with pytest.raises(DataError, match="a batch that is a"):
        records_of(DataLoader(TensorDataset(torch.zeros(4, 2))))


# --- arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: pm.flower.server_app(model=build, buget=3), UnknownNameError, "did you mean 'budget'"),
        (lambda: pm.flower.server_app(model=build, rounds=2.5), ConfigurationError, "whole number"),
        (lambda: pm.flower.server_app(model=build()), ConfigurationError, "leave out the brackets"),
        (lambda: pm.flower.client_app(model=build(), data=records), ConfigurationError, "leave out the brackets"),
        (lambda: pm.flower.AuctionStrategy("FedAvg"), ConfigurationError, r"did you mean AuctionStrategy\(FedAvg"),
        (lambda: pm.flower.AuctionStrategy(FedAvg), ConfigurationError, r"did you mean AuctionStrategy\(FedAvg"),
        (lambda: pm.flower.AuctionStrategy(FedAvg(), modle=build), UnknownNameError, "did you mean 'model'"),
    ],
)
def test_slips_in_arguments_are_said_at_once(make, error, said):
    with pytest.raises(error, match=said):
        make()


def seller(**options):
    options = {"valuation": 0.3, "data_size": 60, "wallet": "unlimited", **options}
    return pm.flower.client_app(model=build, data=records, **options)


@pytest.mark.parametrize(
    ("evaluate", "said"),
    [
        (lambda model: {"acc": 1.0}, r"result\['acc'\]"),
        (lambda model: 1 / 0, "ZeroDivisionError"),
        (lambda model: math.nan, "nan"),
    ],
)
def test_an_evaluation_that_cannot_work_is_tried_before_the_first_message(evaluate, said):
    grid = Wire(seller(), NODES)
    server = pm.flower.server_app(model=build, evaluate=evaluate, rounds=2)
    with pytest.raises(ConfigurationError, match=said) as refused:
        pm.flower.run_in_process(server, grid.client_app, NODES, grid=grid)
    assert Path(__file__).name in str(refused.value)
    assert grid.sent == []


def test_an_evaluation_that_fails_later_costs_its_own_figure_only():
    calls = []

    def fragile(model):
        calls.append(1)
        if len(calls) == 3:
            raise KeyError("gone")
        return 0.5

    server = pm.flower.server_app(model=build, evaluate=fragile, rounds=3, evaluate_every=1)
    result = pm.flower.run_in_process(server, seller(), NODES)
    assert [record.accuracy for record in result.records] == [0.5, None, 0.5]
    assert all(record.paid_micro for record in result.records)


def test_a_strategys_evaluation_must_return_metrics_and_start_gets_what_it_needs(tmp_path):
    grid = app_with(privately, tmp_path)
    strategy = pm.flower.AuctionStrategy(FedAvg(), rounds=5)
    start = ArrayRecord(build().state_dict())
    with pytest.raises(ConfigurationError, match="leave rounds= out"):
        strategy.start(grid, start, num_rounds=3)
    strategy = pm.flower.AuctionStrategy(FedAvg())
    with pytest.raises(ConfigurationError, match="return MetricRecord"):
        strategy.start(grid, start, num_rounds=3, evaluate_fn=lambda number, arrays: {"accuracy": 1.0})
    with pytest.raises(ConfigurationError, match="initial_arrays is a"):
        strategy.start(grid, build(), num_rounds=3)
    assert grid.sent == []


@pytest.mark.parametrize(
    ("server", "client", "said"),
    [
        ({"budget": 1e-6}, {"valuation": 1e6}, "the cheapest asks 1e"),
        ({}, {"offer": lambda terms, context: pm.rounds.Offer(0.1, 99.0, 60.0)}, "offer left out"),
        ({}, {"wallet": lambda context: pm.privacy.WalletFile(WALLETS / "w.jsonl", 1e-6)}, "wallet"),
    ],
)
def test_nothing_was_bought_says_why(server, client, said, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.WALLETS", tmp_path)
    market = pm.flower.server_app(model=build, rounds=2, **server)
    result = pm.flower.run_in_process(market, seller(**client), NODES)
    summary = result.summary()
    assert summary[-1] == "nothing was bought in any round"
    assert any(said in line for line in summary)


WALLETS = Path()


def test_odd_values_are_told_to_the_client_and_to_nobody_else(caplog):
    caplog.set_level(logging.WARNING, logger="privmarket.client")

    def odd(context):
        x, y = records(context)
        x, y = x.clone(), y.clone()
        x[0, 0] = math.nan
        y[1] = 7
        return x, y

    grid = Wire(pm.flower.client_app(model=build, data=odd, valuation=0.3, data_size=60, wallet="unlimited"), NODES)
    server = pm.flower.server_app(model=build, rounds=1)
    result = pm.flower.run_in_process(server, grid.client_app, NODES, grid=grid)
    assert result.records[0].sellers == NODES
    assert "1 of 60 records hold NaN or infinite numbers and add nothing" in caplog.messages
    assert any(line.startswith("1 of 60 labels name none of the model's 2 classes") for line in caplog.messages)


def test_odd_values_are_in_the_output_of_a_run_in_one_process(caplog):
    def odd(context):
        x, y = records(context)
        return x * math.nan, y

    server = pm.flower.server_app(model=build, rounds=1)
    client = pm.flower.client_app(model=build, data=odd, valuation=0.3, data_size=60, wallet="unlimited")
    with failures.collected() as found:
        logging.getLogger(failures.LOGGER).warning("odd")
        logging.getLogger(failures.LOGGER).warning("odd")
    assert found == {}
    assert pm.flower.run_in_process(server, client, NODES).records[0].sellers == NODES
    told = [record.getMessage() for record in caplog.records if record.name == "flwr.privmarket"]
    assert told.count("a client says: odd") == 1
    assert told.count("a client says: 60 of 60 records hold NaN or infinite numbers and add nothing") == 1


def misspelt(context):
    return recrods  # noqa: F821


def empty(context):
    x, y = records(context)
    return x[:0], y[:0]


@pytest.mark.parametrize(("data", "word", "said"), [(misspelt, "app", "recrods"), (empty, "records", "no records")])
def test_a_slip_in_the_data_function_costs_nothing_and_names_its_line(data, word, said, tmp_path):
    app = pm.flower.client_app(model=build, data=data, valuation=0.3, data_size=60, wallet=8.0)
    grid = Wire(app, NODES)
    for context in grid.contexts.values():
        context.node_config["wallets"] = str(tmp_path)
    result = pm.flower.run_in_process(pm.flower.server_app(model=build, rounds=2), app, NODES, grid=grid)
    assert result.epsilon_spent == {}  # also in the server's own count
    assert set(result.records[0].dropped.values()) == {result.records[0].dropped["0"]}
    assert result.records[0].dropped["0"].startswith(f"refused: {word} ")
    assert f"{__file__}, line {data.__code__.co_firstlineno + (data is misspelt)}" in grid.failures["0"]
    assert said in grid.failures["0"]
    assert not any(pm.privacy.WalletFile.existing(path).epsilon_spent for path in tmp_path.glob("*.jsonl"))


def test_a_data_function_may_return_a_loader(monkeypatch):
    seed_noise(monkeypatch)

    def loader(context):
        x, y = records(context)
        return DataLoader([{"img": a, "label": b} for a, b in zip(x, y, strict=True)], batch_size=16, shuffle=True)

    app = pm.flower.client_app(model=build, data=loader, valuation=0.3, data_size=60, wallet="unlimited")
    server = pm.flower.server_app(model=build, evaluate=accuracy, rounds=3)
    assert pm.flower.run_in_process(server, app, NODES).accuracy > 0.9


def test_two_sides_of_an_app_that_differ_are_told_what_to_write(tmp_path):
    strategy, _ = bought(app_with(lambda *_: None, tmp_path, noise="update"))
    assert any('give the strategy noise="update", too' in line for line in strategy.result.summary())
    strategy, _ = bought(app_with(privately, tmp_path), trust="aggregate")
    assert any("client_app(secure_aggregation=True)" in line for line in strategy.result.summary())
    market = pm.flower.WalletMod(valuation=0.2, wallet=8.0, noise="records")
    strategy, _ = bought(Wire(ClientApp(mods=[market]), NODES), rounds=1)
    assert any("market.answer_bids(app)" in line for line in strategy.result.summary())


# --- stop and go on ------------------------------------------------------------------------------------------

STOPPED = """
import os, signal
from pathlib import Path
import privmarket as pm
from tests.unit.flower.test_own_app import accuracy, build, records

client = pm.flower.client_app(model=build, data=records, valuation=0.2, data_size=60, wallet=8.0)

def stops_once(model):
    place = Path("stopped")
    place.write_text(place.read_text() + "x" if place.exists() else "x")
    if len(place.read_text()) == 2:  # before the first round, after the first
        os.kill(os.getpid(), signal.SIGINT)
    return accuracy(model)

server = pm.flower.server_app(model=build, evaluate=stops_once, rounds=4, budget=10.0, evaluate_every=1)
"""


def test_a_stopped_run_leaves_its_settled_rounds_and_goes_on(tmp_path, monkeypatch):
    from privmarket.flower._engine import write_app

    app = write_app(tmp_path / "app", STOPPED, {"budget": 10.0})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoppedError, match="stopped after 1 settled round of 4") as stopped:
        run_app(app, "in-process", NODES, {}, tmp_path / "out", 60.0)
    left = json.loads((tmp_path / "out" / "result.json").read_text())
    assert left == stopped.value.result
    assert [len(row["paid_micro"]) for row in left["rounds"]] == [NODES]
    with pytest.raises(CheckpointError, match="budget"):
        run_app(app, "in-process", NODES, {"budget": 11.0}, tmp_path / "out", 60.0)
    result = run_app(app, "in-process", NODES, {}, tmp_path / "out", 60.0)
    assert [row["number"] for row in result["rounds"]] == [0, 1, 2, 3]
    assert result["rounds"][0] == left["rounds"][0]
    assert not list((tmp_path / "out").glob("*.partial.npz"))
    (first, *_) = sorted((tmp_path / "out" / "flower-wallets").glob("*.jsonl"))
    wallet = pm.privacy.WalletFile.existing(first)
    assert [sale["paid_micro"] > 0 for sale in wallet.statement()] == [True] * 4
    assert wallet.epsilon_spent <= 8.0 + 1e-9


MISSPELT = """
import privmarket as pm
from tests.unit.flower.test_own_app import build, records

client = pm.flower.client_app(model=build, data=records, valuation=0.2, data_size=60, wallet=8.0)
server = pm.flower.server_app(model=build, buget=3)
"""


def test_flower_run_names_the_line_of_a_misspelt_argument(tmp_path, monkeypatch):
    from privmarket.flower._engine import write_app

    monkeypatch.delitem(sys.modules, "market_app", raising=False)  # of another test
    app = write_app(tmp_path / "misspelt", MISSPELT, {})
    with pytest.raises(
        UnknownNameError, match=r"\.py, line 6, in <module>: unknown argument.*did you mean 'budget'"
    ):
        run_app(app, "in-process", NODES, {}, tmp_path / "out", 60.0)


# --- without torch, tasks, results ---------------------------------------------------------------------------


def test_clipped_and_noisy_sums_of_arrays():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [np.inf, 1.0], [0.0, 0.0]])
    total = pm.training.clipped_sum(rows, 1.0)
    assert total == pytest.approx([0.6 + 0.3, 0.8 + 0.4], rel=1e-9)
    assert np.linalg.norm(pm.training.clipped_sum(1e30 * RNG.normal(size=(1, 50)), 0.7)) <= 0.7
    noisy = pm.training.noisy_sum(
        np.zeros(20_000), clip_norm=0.5, noise_multiplier=3.0, records=100, source=NoiseSource.from_seed(1)
    )
    assert abs(noisy.std() / 1.5 - 1) < 4 / math.sqrt(2 * 20_000)
    with pytest.raises(pm.errors.PrivacyError, match="one row per record"):
        pm.training.clipped_sum(np.zeros(3), 1.0)


def test_a_client_in_numpy_learns(tmp_path, monkeypatch):
    seed_noise(monkeypatch)

    def by_arrays(msg, context, model):
        x, y = (column.numpy() for column in records(context))

        def gradients(now, rows):
            scores = x[rows] @ now["weight"].T + now["bias"]
            odds = np.exp(scores - scores.max(axis=1, keepdims=True))
            slopes = odds / odds.sum(axis=1, keepdims=True)
            slopes[np.arange(len(rows)), y[rows]] -= 1.0
            return {"weight": slopes[:, :, None] * x[rows][:, None, :], "bias": slopes}

        now = {name: value.numpy() for name, value in model.state_dict().items()}
        trained = pm.flower.train_arrays_privately(msg, context, now, gradients, len(y))
        model.load_state_dict({name: torch.from_numpy(array) for name, array in trained.items()})

    strategy, found = bought(app_with(by_arrays, tmp_path))
    assert not found
    assert strategy.result.accuracy > 0.9


def test_gradients_of_the_wrong_shape_are_refused_before_anything_is_sold(tmp_path):
    def mean_gradient(msg, context, model):
        now = {name: value.numpy() for name, value in model.state_dict().items()}
        pm.flower.train_arrays_privately(msg, context, now, lambda weights, rows: weights, 60)

    strategy, found = bought(app_with(mean_gradient, tmp_path))
    assert all("one gradient per record, not their mean" in line for line in found.values())
    assert strategy.records[0].paid_micro == {}


def test_a_flower_run_gives_what_the_simulation_gives(tmp_path):
    def task():
        return pm.Task.from_arrays(
            INPUTS[:150],
            LABELS[:150],
            clients=np.arange(150) % NODES,
            public=(INPUTS[150:165], LABELS[150:165]),
            test=(INPUTS[165:], LABELS[165:]),
            model="linear",
            name="two classes",
        )

    server = pm.flower.server_app(task=task, rounds=2, budget=10.0, evaluate_every=1)
    client = pm.flower.client_app(task=task, valuation=0.2, data_size=50, wallet="unlimited")
    result = pm.flower.run_in_process(server, client, NODES)
    before = pm.federate(task(), rounds=1, budget=1.0, mechanism="proportional-share").score_before
    assert result.score_before == before
    assert result.summary()[0] == f"your own 15 records alone: AUC {before:.3f}"
    place = result.save_model(tmp_path / "model.safetensors")
    card = json.loads(place.with_suffix(".json").read_text())
    assert card["score"]["before"] == before
    assert card["money"] == pytest.approx(sum(result.paid_micro.values()) / 1e6)
    from privmarket.simulation._model_file import load_model

    saved = load_model(place)
    expected = result.model(torch.from_numpy(INPUTS[:5])).detach().numpy()
    assert saved.outputs(INPUTS[:5]) == pytest.approx(expected)
    statement = result.statement("0")
    assert [sale[0] for sale in statement.sales] == [1, 2]
    assert statement.paid == pytest.approx(result.paid_micro["0"] / 1e6)
    with pytest.raises(UnknownNameError):
        result.statement("nobody")


def test_a_refused_evaluation_is_in_the_summary(tmp_path):
    grid = app_with(privately, tmp_path)
    strategy = pm.flower.AuctionStrategy(FedAvg(fraction_evaluate=1.0), model=build, budget=10.0)
    strategy.start(grid, ArrayRecord(build().state_dict()), num_rounds=1)
    assert any("evaluation was refused by 3 clients" in line for line in strategy.result.summary())


def test_an_app_that_saves_its_model_saves_one_although_nothing_was_bought(tmp_path):
    grid = app_with(typo, tmp_path)
    strategy = pm.flower.AuctionStrategy(FedAvg(fraction_evaluate=0.0), model=build, budget=10.0)
    start = ArrayRecord({name: Array(value.numpy()) for name, value in build().state_dict().items()})
    result = strategy.start(grid, start, num_rounds=2)
    assert set(result.arrays.to_torch_state_dict()) == {"weight", "bias"}


def test_other_lines_than_ones_own_are_not_named():
    with pytest.raises(ValueError, match="Expecting") as raised:
        json.loads("{")
    assert failures.own_line(raised.value).startswith(__file__)
    assert failures.own_line(ValueError("nowhere")) == ""
