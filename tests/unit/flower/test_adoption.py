"""Parts for existing Flower apps: an auction around FedAvg, and a mod that enforces a wallet."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import privmarket as pm
from privmarket.errors import PrivacyError, UnknownNameError
from privmarket.flower import _wire as wire
from privmarket.flower._in_process import play_in_process
from privmarket.flower._mod import _AppTraining, noisy_weights
from privmarket.flower._result import saved_result
from privmarket.flower._seller import Job
from privmarket.flower._wire import Sale
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._noise import NoiseSource
from privmarket.privacy._policy import PolicyRefusal
from tests.unit.flower.guarded import ask, plain_app, run
from tests.unit.flower.toy import VALUATIONS, Wire, partition, seed_noise

NODES = 6
START = ArrayRecord({"w": wire.Array(np.zeros(5, dtype=np.float32)), "steps": wire.Array(np.array([3]))})


def existing_app(market, spoil=None):
    """An app as users have it: it knows nothing of the market but its mod."""
    app = ClientApp(mods=[market])
    market.answer_bids(app)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        weights = {k: a.numpy().copy() for k, a in message.content["arrays"].items()}
        weights["w"] += 1.0 + partition(context)
        if spoil and partition(context) == 2:
            weights = spoil(weights, message)
        content = {"arrays": ArrayRecord({k: wire.Array(a) for k, a in weights.items()})}
        content["metrics"] = MetricRecord({"num-examples": 10, "train_loss": 0.123})
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"m": MetricRecord({"num-examples": 1, "accuracy": 0.5})}), reply_to=message)

    return app


def mod(folder, **options):
    options = {"noise": "update", "epsilon": lambda context: 0.5 + 0.07 * partition(context), **options}
    return pm.flower.WalletMod(
        valuation=lambda context: VALUATIONS[partition(context)],
        wallet=lambda context: pm.privacy.WalletFile(folder / f"{partition(context)}.jsonl", 4.0),
        **options,
    )


def play(app, rounds=2, **options):
    grid = Wire(app, NODES)
    options = {"mechanism": "proportional-share", "budget": 5.0, "clip_norm": 0.5, "noise": "update", **options}
    strategy = pm.flower.AuctionStrategy(FedAvg(fraction_evaluate=1.0), **options)
    result = strategy.start(grid, START, num_rounds=rounds)
    return strategy, result, grid


def test_fedavg_buys_and_pays(tmp_path):
    strategy, result, grid = play(existing_app(mod(tmp_path)))
    assert [r.number for r in strategy.records] == [0, 1]
    for record in strategy.records:
        assert record.sellers == len(record.paid_micro) > 2
        assert record.spent_micro + record.refunded_micro == 5_000_000
    sold = {node for node, _ in grid.orders()}
    trained = {m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == wire.TRAIN}
    assert trained == sold  # who sold nothing does not train
    assert np.isfinite(result.arrays["w"].numpy()).all()
    # Every order is in a message of its own: no two nodes are sent the same ε or money.
    per_node = {}
    for node, sale in grid.orders():
        per_node.setdefault(node, set()).update({sale.epsilon, sale.payment_micro})
    everything = [value for values in per_node.values() for value in values]
    assert len(everything) == len(set(everything))


def test_evaluation_is_refused_unless_the_owner_allows_it(tmp_path):
    _, closed, _ = play(existing_app(mod(tmp_path / "a")), rounds=1)
    _, opened, _ = play(existing_app(mod(tmp_path / "b", allow=("evaluate",))), rounds=1)
    assert closed.evaluate_metrics_clientapp == {}
    assert opened.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(0.5)


def test_weights_follow_what_was_sold(tmp_path):
    """Without noise to speak of, FedAvg's mean is Σ α_i w_i with α ∝ 1/σ²."""

    def loud(weights, message):
        return weights

    app = existing_app(mod(tmp_path, noise="app"), loud)
    _, result, grid = play(app, rounds=1)
    sales = {grid.contexts[node].node_config["partition-id"]: sale for node, sale in grid.orders()}
    sigma = {i: float(s.family.noise_multiplier(s.epsilon)) for i, s in sales.items()}
    total = sum(sigma[i] ** -2 for i in sigma)
    expected = sum((1.0 + i) * sigma[i] ** -2 / total for i in sigma)
    assert result.arrays["w"].numpy() == pytest.approx(np.full(5, expected), rel=1e-5)
    assert result.arrays["steps"].numpy() == pytest.approx([3])  # a counter goes back as it came


@pytest.mark.parametrize("kind", ["NaN", "other arrays", "raises"])
def test_a_broken_app_is_not_paid_and_has_spent(kind, tmp_path):
    def spoil(weights, message):
        if kind == "NaN":
            weights["w"][0] = math.nan
        elif kind == "other arrays":
            weights = {"v": weights["w"]}
        else:
            raise RuntimeError("no memory")
        return weights

    noise = "update" if kind == "other arrays" else "app"
    strategy, result, _ = play(existing_app(mod(tmp_path, noise=noise), spoil), rounds=1)
    assert "2" in strategy.records[0].dropped
    assert "2" not in strategy.records[0].paid_micro
    assert np.isfinite(result.arrays["w"].numpy()).all()
    (sale,) = pm.privacy.WalletFile(tmp_path / "2.jsonl", 4.0).statement()
    assert sale["epsilon"] > 0


def test_an_app_that_adds_noise_itself_is_told_how_much(tmp_path):
    seen = {}

    def note(weights, message):
        seen.update(message.content[wire.JOB])
        return weights

    play(existing_app(mod(tmp_path, noise="app"), note), rounds=1)
    assert seen["noise-multiplier"] == float(ReleaseFamily().noise_multiplier(seen["epsilon"]))


def test_sales_that_the_mod_cannot_keep_are_refused(tmp_path):
    strategy, _, grid = play(existing_app(mod(tmp_path)), rounds=1, steps=3, sampling_rate=0.5)
    assert strategy.records[0].paid_micro == {}
    bids = [reply for reply in grid.answered if reply.metadata.message_type == wire.BID]
    assert len(bids) == NODES
    assert all(wire.take(reply.content, wire.Answer).reason == "schedule" for reply in bids)
    with pytest.raises(UnknownNameError, match="noise"):
        mod(tmp_path, noise="none")


def test_a_strategy_without_the_market_gets_nothing(tmp_path):
    """A plain FedAvg server that asks a client with a wallet to train is refused, and nothing is spent."""
    grid = Wire(existing_app(mod(tmp_path)), NODES)
    result = FedAvg(fraction_evaluate=0.0).start(grid, START, num_rounds=2)
    assert not result.train_metrics_clientapp
    assert all(reply.error.reason.startswith("privmarket: unsold") for reply in grid.answered)
    assert len(grid.answered) == 2 * NODES
    assert not list(tmp_path.iterdir())


def test_noise_on_an_update_is_that_of_its_sensitivity():
    sent = {"w": np.zeros(20_000, dtype=np.float32)}
    sale = Sale("run", 0, 1.0, 1, ReleaseFamily(), 0.5, 1.0, 1.0)
    job = Job(sale, 1.3, NoiseSource.from_seed(4), "0", None)
    trained = {"w": np.full(20_000, 100.0, dtype=np.float32)}
    released = noisy_weights(sent, trained, sale, job)["w"]
    # Clipped to norm 0.5, spread over 20,000 places; noise of deviation σ·2C.
    assert released.mean() == pytest.approx(0.5 / math.sqrt(20_000), abs=4 * 1.3 / math.sqrt(20_000))
    assert abs(released.std() / (1.3 * 2 * 0.5) - 1) < 4 / math.sqrt(2 * 20_000)
    quiet = Job(sale, 0.0, NoiseSource.from_seed(4), "0", None)
    change = noisy_weights(sent, trained, sale, quiet)["w"]
    assert np.linalg.norm(change) == pytest.approx(0.5, rel=1e-5)
    broken = noisy_weights(sent, {"w": np.full(20_000, np.nan, dtype=np.float32)}, sale, quiet)["w"]
    assert np.array_equal(broken, sent["w"])


def digits_like():
    """An app around a torch module: two classes, 60 records a client."""
    import torch

    rng = np.random.default_rng(0)
    labels = np.arange(360) % 2
    inputs = (rng.normal(size=(360, 4)) + 2.0 * (2 * labels[:, None] - 1)).astype(np.float32)

    def build():
        torch.manual_seed(0)
        return torch.nn.Linear(4, 2)

    def accuracy(state):
        model = build()
        model.load_state_dict(state)
        return float((model(torch.from_numpy(inputs)).argmax(1).numpy() == labels).mean())

    def records(context):
        mine = slice(partition(context), None, NODES)
        return inputs[mine], labels[mine]

    return build, accuracy, records


def retrofit(folder, model=None):
    """The client of an existing app behind the mod, with a wallet per node by default."""
    build, _, records = digits_like()
    market = pm.flower.WalletMod(valuation=0.2, epsilon=3.0, wallet=30.0, noise="records", model=model or build)
    app = ClientApp(mods=[market])
    market.answer_bids(app)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        net = build()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        pm.flower.train_privately(message, context, net, *records(context))
        metrics = MetricRecord({"num-examples": 60})
        content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    grid = Wire(app, NODES)
    for context in grid.contexts.values():
        context.node_config["wallets"] = str(folder)
    return grid


def strategy(**options):
    options = {"mechanism": "proportional-share", "budget": 20.0, "learning_rate": 2.0, "steps": 1, **options}
    return pm.flower.AuctionStrategy(FedAvg(fraction_evaluate=0.0), expected_batch=60.0, **options)


def test_an_apps_model_is_tried_until_it_passes():
    made = []

    def passing():
        made.append("passing")
        return torch.nn.Sequential(torch.nn.Linear(4, 2))

    def mixing():
        made.append("mixing")
        return torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))

    good, bad = (_AppTraining(make) for make in (passing, mixing))
    for _ in range(2):
        good.check({}, None, None)
        with pytest.raises(PolicyRefusal):
            bad.check({}, None, None)
    assert made == ["passing", "mixing", "mixing"]


def test_an_existing_app_learns_and_its_market_reports(tmp_path, monkeypatch):
    seed_noise(monkeypatch)
    build, accuracy, _ = digits_like()
    grid, buyer = retrofit(tmp_path), strategy(model=build)
    tested = lambda number, arrays: MetricRecord({"accuracy": accuracy(arrays.to_torch_state_dict())})  # noqa: E731
    result = buyer.start(grid, ArrayRecord(build().state_dict()), num_rounds=4, evaluate_fn=tested)
    context = Context(1, 1, {}, RecordDict(), {"result-file": str(tmp_path / "result.json")})
    report = buyer.report(context, result)
    assert report.accuracy > 0.9
    assert any(line.startswith("client 0: 4 sales") for line in report.summary())
    assert saved_result(context) == json.loads((tmp_path / "result.json").read_text())
    wallets = {path.name for path in tmp_path.glob("*.jsonl")}
    assert wallets == {f"client-{i}.jsonl" for i in range(NODES)}  # one for each node
    (first, *_) = pm.privacy.WalletFile(tmp_path / "client-0.jsonl", 30.0).statement()
    assert first["paid_micro"] > 0


def test_a_model_that_mixes_records_is_refused_before_anything_is_reserved(tmp_path):
    import torch

    def mixing():
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))

    build, _, _ = digits_like()
    with pytest.raises(PrivacyError, match="BatchNorm"):
        strategy(model=mixing)
    grid = retrofit(tmp_path, model=mixing)  # a server that does not care
    buyer = strategy()
    result = buyer.start(grid, ArrayRecord(build().state_dict()), num_rounds=1)
    assert all("model" in why for why in buyer.records[0].dropped.values())
    assert all(pm.privacy.WalletFile(path, 30.0).statement() == [] for path in tmp_path.glob("*.jsonl"))
    report = buyer.report(Context(1, 1, {}, RecordDict(), {}), result)
    assert "nothing was bought" in report.summary()[-1]


def test_private_training_needs_a_sale():
    build, _, _ = digits_like()
    Wire(None, 1)  # messages are made in a run
    with pytest.raises(wire.WireError):
        pm.flower.train_privately(Message(RecordDict(), 1, "train"), None, build(), None, None)


def test_the_example_with_opacus_learns_and_its_noise_is_its_own(monkeypatch, tmp_path):
    """Its model seeds torch's generator; noise from there would be the same in every client and in every round."""
    monkeypatch.syspath_prepend(str(Path(pm.__file__).parent / "examples" / "flower-existing-app"))
    monkeypatch.chdir(tmp_path)
    from existing_app import opacus_client_app, server_app

    config = {"num-server-rounds": 2, "budget": 10.0, "batch-size": 32}
    runs = []
    for number in range(2):
        monkeypatch.setenv("PRIVMARKET_WALLETS", str(tmp_path / str(number)))
        grid = Wire(opacus_client_app.app, 6, run_config=config)
        monkeypatch.setenv("PRIVMARKET_RESULT", str(tmp_path / f"{number}.json"))
        play_in_process(server_app.app, opacus_client_app.app, 6, config, grid)
        runs.append(json.loads((tmp_path / f"{number}.json").read_text()))
    assert all(one["accuracy"] > 0.3 for one in runs)  # by chance 0.1
    assert runs[0]["weights_sha256"] != runs[1]["weights_sha256"]
    wallet = pm.privacy.WalletFile.existing(tmp_path / "0" / "client-0.jsonl")
    assert wallet.epsilon_spent == pytest.approx(runs[0]["epsilon_spent"]["0"], rel=0.1)
    assert 0.0 < wallet.epsilon_remaining < wallet.cap_epsilon == 8.0


@pytest.mark.parametrize("kind", ["WalletMod", "client_app"])
def test_a_server_without_a_market_counts_a_failure_and_goes_on(kind, tmp_path):
    """One of two nodes sells its privacy; the other takes part for nothing."""
    if kind == "WalletMod":
        seller = plain_app([pm.flower.WalletMod(0.1, wallet=8.0, noise="records")])
    else:
        seller = pm.flower.client_app(lambda weights, job: weights, valuation=0.1, wallet="unlimited")
    free = plain_app([])

    def both(message, context):
        return (seller if context.node_config["partition-id"] else free)(message, context)

    result = run(FedAvg(min_available_nodes=2), both, rounds=2)
    assert sorted(result.train_metrics_clientapp) == sorted(result.evaluate_metrics_clientapp) == [1, 2]
    reply = ask(seller)
    assert reply.error.reason.startswith("privmarket: ")
    assert ask(seller, "evaluate").has_error()
