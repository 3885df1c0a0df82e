"""A guarded site against apps and servers that want more than was paid for.

Each attack is an app that hides one of two secrets somewhere in what it returns. In both worlds the noise is the
same, so whatever differs in the reply, apart from clipped and noised weights, is a leak. The subject kept broken on
purpose is the same app without the guard: there every attack tells its secret.
"""

import math
from contextlib import suppress

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_STATE

import privmarket as pm
from privmarket.errors import WalletError
from privmarket.flower import _wire as wire
from privmarket.flower._guard_mod import GuardRefusal
from privmarket.flower._guard_release import GuardedReply
from privmarket.flower._in_process import InProcessGrid
from privmarket.privacy._noise import NoiseSource
from privmarket.privacy._release import ReleaseGrid, sum_inflation
from privmarket.training import LocalPlan, NoisySum
from tests.unit.flower.guarded import NODE, SITE, START, arrays, ask, plain_app, policy, seed_noise, wallet

SECRETS = ("no", "yes")
MOVED = {name: array + np.float32(0.01) for name, array in START.items()}


def told(message, content):
    return Message(content, reply_to=message)


def good(message, change=None, metrics=None, **records):
    content = {
        "arrays": arrays(change or MOVED),
        "metrics": MetricRecord(metrics or {"num-examples": 57}),
        **records,
    }
    return told(message, RecordDict(content))


def number(secret):
    return 1.0 if secret == "yes" else 0.0


def raises(error):
    raise error


def changed_in_place(message, secret):
    for array in message.content["arrays"].values():
        array.data = Array(np.full(3, number(secret))).data
        array.dtype = secret
    message.metadata.__dict__["_group_id"] = secret
    message.metadata.__dict__["_src_node_id"] = 5 if secret == "yes" else 6
    message.metadata.__dict__["_message_id"] = secret
    return good(message)


def with_metadata(message, secret):
    reply = good(message)
    reply.metadata.group_id = secret
    reply.metadata.ttl = 100.0 + number(secret)
    reply.metadata.dst_node_id = 77 if secret == "yes" else 78
    reply.metadata.message_type = f"query.{secret}"
    return reply


def plus(amount):
    return {name: array + np.float32(amount) for name, array in MOVED.items()}


class Spiteful(MetricRecord):
    """A record that fails when it is read."""

    def get(self, *_):
        raise RuntimeError("spite")

    def items(self):
        raise RuntimeError("spite")


def spiteful_number(message):
    """A metric of a type of its own, which fails when it is used."""

    class Number(float):
        def __float__(self):
            raise RuntimeError("spite")

    reply = good(message)
    reply.content["metrics"].__dict__["_data"]["loss"] = Number(1.0)
    return reply


def nan_payload(secret):
    return float(np.array([0x7FF8000000000000 + (secret == "yes")], dtype=np.uint64).view(np.float64)[0])


# What an app may try to hide its secret in: (message, secret) ↦ its reply.
APPS = {
    "a metric": lambda m, s: good(m, metrics={"num-examples": 57, "loss": number(s)}),
    "many metrics": lambda m, s: good(m, metrics={f"m{i}": number(s) for i in range(50)} | {"num-examples": 57}),
    "a list of numbers": lambda m, s: good(m, metrics={"num-examples": 57, "bits": [number(s)] * 9}),
    "a huge integer": lambda m, s: good(m, metrics={"num-examples": 57 + (s == "yes") * 2**60}),
    "the number of examples": lambda m, s: good(m, metrics={"num-examples": 57 + (s == "yes")}),
    "a metric's name": lambda m, s: good(m, metrics={"num-examples": 57, s: 0.0}),
    "the payload of a NaN": lambda m, s: good(m, metrics={"num-examples": 57, "loss": nan_payload(s)}),
    "text": lambda m, s: good(m, config=ConfigRecord({"note": s})),
    "bytes": lambda m, s: good(m, config=ConfigRecord({"note": s.encode()})),
    "a record's name": lambda m, s: good(m, **{s: ConfigRecord({})}),
    "the name of the arrays": lambda m, s: told(m, RecordDict({s: arrays(MOVED), "metrics": MetricRecord({})})),
    "an array's name": lambda m, s: good(m, change={**MOVED, s: np.zeros(1)}),
    "an array more": lambda m, s: good(m, change=MOVED if s == "yes" else {**MOVED, "more": np.zeros(1)}),
    "an array less": lambda m, s: good(m, change=MOVED if s == "yes" else {"bias": MOVED["bias"]}),
    "the order of arrays": lambda m, s: good(m, change=dict(sorted(MOVED.items(), reverse=s == "yes"))),
    "a dtype": lambda m, s: good(m, change={k: a.astype("f8" if s == "yes" else "f4") for k, a in MOVED.items()}),
    "a shape": lambda m, s: good(m, change={k: a[None] if s == "yes" else a for k, a in MOVED.items()}),
    "text in an array": lambda m, s: good(m, change={**MOVED, "bias": np.array([s] * 3)}),
    "two records of arrays": lambda m, s: good(m, **({"more": arrays()} if s == "yes" else {})),
    "numbers that are none": lambda m, s: good(m, change=plus(math.nan if s == "yes" else 0)),
    "endless numbers": lambda m, s: good(m, change=plus(math.inf if s == "yes" else 0)),
    "the text of an error": lambda m, s: raises(ValueError(f"record 7 is {s}")),
    "the kind of an error": lambda m, s: raises(ValueError() if s == "yes" else KeyError()),
    "whether it fails": lambda m, s: raises(ValueError()) if s == "yes" else good(m),
    "an exit code": lambda m, s: raises(SystemExit(s)),
    "an error reply": lambda m, s: Message(Error(ErrorCode.UNKNOWN, s), reply_to=m),
    "an error's code": lambda m, s: Message(Error(100 + (s == "yes"), ""), reply_to=m),
    "an exception that is none": lambda m, s: raises(BaseException(s)),
    "a record that cannot be read": lambda m, s: good(m, more=Spiteful({"a": 1.0})) if s == "yes" else good(m),
    "a number that cannot be read": lambda m, s: spiteful_number(m) if s == "yes" else good(m),
    "no reply": lambda m, s: None if s == "yes" else good(m),
    "a refusal of the wallet": lambda m, s: raises(WalletError("no", "no")) if s == "yes" else good(m),
    "a refusal of the guard": lambda m, s: raises(GuardRefusal("weights", "")) if s == "yes" else good(m),
    "metadata": with_metadata,
    "the message that came": changed_in_place,
}  # fmt: skip


def hostile(secret, attack, mods):
    """An app that hides a secret in its answers to training and evaluation."""
    app = ClientApp(mods=mods)
    app.train()(lambda message, context: attack(message, secret))
    app.evaluate()(lambda message, context: attack(message, secret))
    return app


def outside(reply):
    """All that a reply carries, but for the values of weights and when it was made."""
    meta = {
        k: v for k, v in vars(reply.metadata).items() if k not in ("_created_at", "_ttl", "_run_id", "_message_id")
    }
    if reply.has_error():
        return meta, reply.error.code, reply.error.reason
    records = []
    for name, record in reply.content.items():
        if isinstance(record, ArrayRecord):
            records.append((name, [(k, a.dtype, a.shape, a.stype, a.numpy().dtype) for k, a in record.items()]))
        else:
            records.append((name, list(record.items())))
    return meta, repr(records)


def weights(reply):
    values = [a.numpy().astype(np.float64).ravel() for a in reply.content["arrays"].values()]
    return np.concatenate(values)


def replies(attack, monkeypatch, mods, kind="train", content=None):
    """The replies in both worlds, with the same noise."""
    found = []
    for secret in SECRETS:
        seed_noise(monkeypatch)
        found.append(ask(hostile(secret, attack, mods()), kind, content and content()))
    return found


@pytest.mark.parametrize("name", APPS)
def test_what_an_app_returns_tells_nothing_but_a_noisy_change(name, tmp_path, monkeypatch):
    site = policy(tmp_path, SITE + "[guard.train]\nconstant = 0.5\n")
    no, yes = replies(APPS[name], monkeypatch, lambda: [pm.flower.GuardMod(policy=site)])
    assert outside(no) == outside(yes)
    assert not no.has_error()
    assert dict(no.content["metrics"]) == {"num-examples": 60, "constant": 0.5}
    # The same noise in both worlds: what differs is the clipped change, of norm at most 2.
    assert np.linalg.norm(weights(no) - weights(yes)) <= 2.0 + 1e-4
    assert np.linalg.norm(weights(no)) > 2.0  # and there is noise
    assert len(wallet(tmp_path).statement()) == 2  # both were charged
    assert all(sale["released"] for sale in wallet(tmp_path).statement())


# Without a guard these end the process, or are no message at all; what they tell is not in a reply.
ELSEWHERE = (
    "an exit code",
    "an exception that is none",
    "no reply",
    "the payload of a NaN",
    "a record that cannot be read",
    "a number that cannot be read",
)


@pytest.mark.parametrize("name", [name for name in APPS if name not in ELSEWHERE])
def test_without_the_guard_the_same_app_tells_its_secret(name, monkeypatch):
    no, yes = replies(APPS[name], monkeypatch, list)
    differs = outside(no) != outside(yes)
    if not differs:  # then the weights themselves tell
        with np.errstate(invalid="ignore"):
            differs = not np.array_equal(weights(no), weights(yes))
    assert differs


@pytest.mark.parametrize("name", APPS)
def test_evaluation_tells_its_priced_metric_and_nothing_else(name, tmp_path, monkeypatch):
    table = "[guard.evaluate]\nloss = { range = [0, 2], epsilon = 0.5 }\n"
    site = policy(tmp_path, SITE + table)
    no, yes = replies(APPS[name], monkeypatch, lambda: [pm.flower.GuardMod(policy=site)], "evaluate")
    assert not no.has_error()
    assert [list(reply.content) for reply in (no, yes)] == [["metrics"]] * 2
    assert [list(reply.content["metrics"]) for reply in (no, yes)] == [["num-examples", "loss"]] * 2
    moved = abs(no.content["metrics"]["loss"] - yes.content["metrics"]["loss"])
    assert moved <= 2.0 + 1e-4  # the range, to which the noise refers
    if name != "a metric":
        assert moved <= 1.0 + 1e-4  # from the app's number to the middle of the range at most
    sold = wallet(tmp_path).statement()
    assert [sale["epsilon"] for sale in sold] == [0.5, 0.5]


QUESTIONS = [
    "query",
    "query.labels",
    "get_parameters",
    "get_properties",
    "reconnect",
    "evaluate",
    "evaluate.labels",
]


@pytest.mark.parametrize("kind", QUESTIONS)
def test_what_is_not_declared_gets_fixed_words(kind, tmp_path):
    asked = []
    app = ClientApp(mods=[pm.flower.GuardMod(policy=policy(tmp_path))])
    for register in (app.query, app.evaluate):
        for action in ("default", "labels"):
            register(action)(lambda message, context: asked.append(1))
    reply = ask(app, kind)
    if kind in ("get_parameters", "get_properties", "reconnect"):
        assert reply.has_error()  # Flower's message API knows no such message; see the older app below
    else:
        assert (
            reply.error.reason == "privmarket guard: not-allowed: the site's policy lets nothing of this kind out"
        )
    assert not asked  # no handler has read a record
    assert not (tmp_path / "wallet-0.jsonl").exists()


def test_custom_training_is_a_release_as_any_other(tmp_path):
    app = ClientApp(mods=[pm.flower.GuardMod(policy=policy(tmp_path))])
    app.train("dump")(lambda message, context: good(message, metrics={"all": 1.0}))
    reply = ask(app, "train.dump")
    assert dict(reply.content["metrics"]) == {"num-examples": 60}
    assert len(wallet(tmp_path).statement()) == 1


ODD = {
    "no numbers": {"weight": np.full((4, 3), np.nan, dtype=np.float32)},
    "endless numbers": {"weight": np.full((4, 3), np.inf, dtype=np.float32)},
    "giant numbers": {"weight": np.full((4, 3), 1e9, dtype=np.float32)},
    "half precision": {"weight": np.zeros((4, 3), dtype=np.float16)},
    "complex numbers": {"weight": np.zeros((4, 3), dtype=np.complex64)},
    "text": {"weight": np.array(["a", "b"])},
    "integers only": {"weight": np.zeros(5, dtype=np.int64)},
    "nothing": {"weight": np.zeros(0, dtype=np.float32)},
}


@pytest.mark.parametrize("name", ODD)
def test_odd_arrays_are_refused_before_the_app_is_asked(name, tmp_path):
    asked = []
    app = ClientApp(mods=[pm.flower.GuardMod(policy=policy(tmp_path))])
    app.train()(lambda message, context: asked.append(1))
    reply = ask(app, content=RecordDict({"arrays": arrays(ODD[name])}))
    assert reply.error.reason.startswith("privmarket guard: weights")
    assert not asked
    assert not (tmp_path / "wallet-0.jsonl").exists()


def forged(data, shape=(3,)):
    return Array(dtype="float32", shape=shape, stype="numpy.ndarray", data=data)


def test_bytes_that_are_no_arrays_are_refused(tmp_path):
    app = plain_app([pm.flower.GuardMod(policy=policy(tmp_path))])
    whole = arrays()["bias"].data
    giant = whole.replace(b"(3,)", b"(9999999999999,)")[: len(whole)]
    for data in (b"", b"\x80\x04pickle", whole[:-1], giant):
        reply = ask(app, content=RecordDict({"arrays": ArrayRecord({"bias": forged(data)})}))
        assert reply.error.reason.startswith("privmarket guard: weights")
    for content in (RecordDict(), RecordDict({"a": arrays(), "b": arrays()}), RecordDict({"c": ConfigRecord({})})):
        assert ask(app, content=content).error.reason.startswith("privmarket guard: message")


def test_a_server_cannot_put_an_order_of_ours_before_the_app(tmp_path):
    """An order with little noise, and a job that says so: `train_privately` must not see them."""
    seen = []
    app = ClientApp(mods=[pm.flower.GuardMod(policy=policy(tmp_path))])
    app.train()(lambda message, context: seen.append(list(message.content)) or good(message))
    job = ConfigRecord({"noise-multiplier": 0.0, "unit": "record"})
    ask(app, content=RecordDict({"arrays": arrays(), wire.JOB: job, wire.SALE: job, "config": ConfigRecord({})}))
    assert seen == [["arrays", "config"]]


def test_integers_go_back_as_they_came(tmp_path):
    """A counter of BatchNorm: an app that writes into it writes nowhere."""
    sent = {**START, "counter": np.array(41)}
    app = ClientApp(mods=[pm.flower.GuardMod(policy=policy(tmp_path))])
    app.train()(lambda message, context: good(message, change={**MOVED, "counter": np.array(7)}))
    reply = ask(app, content=RecordDict({"arrays": arrays(sent)}))
    assert reply.content["arrays"]["counter"].numpy().tolist() == 41


def test_the_cap_holds_over_runs_apps_and_restarts(tmp_path):
    site = policy(tmp_path)
    granted = 0
    for run in range(40):  # each a new mod in a new app in a new run: nothing but the file remembers
        app = plain_app([pm.flower.GuardMod(policy=site)], change=float(run))
        reply = ask(app)
        if reply.has_error():
            break
        granted += 1
    text = "privmarket guard: wallet: the site's lifetime privacy budget does not hold another release"
    assert reply.error.reason == text
    account = wallet(tmp_path)
    assert granted == len(account.statement())
    assert 6 < granted < 40  # more than ε = 6 in single releases of ε = 1: they do not add up like money
    assert account.epsilon_spent <= 6.0


@pytest.fixture
def forgetful(monkeypatch):
    """A guard that remembers its wallet only while it lives, as if each app had its own."""
    monkeypatch.setattr(GuardedReply, "check_wallet", lambda reply: None)
    monkeypatch.setattr(GuardedReply, "charge", lambda reply, charges: None)


def test_a_guard_without_its_wallet_never_stops(tmp_path, forgetful):
    site = policy(tmp_path)
    assert not any(ask(plain_app([pm.flower.GuardMod(policy=site)])).has_error() for _ in range(40))


def test_the_runs_configuration_names_neither_wallet_nor_policy(tmp_path, caplog):
    loose = tmp_path / "loose"
    loose.mkdir()
    other = policy(loose, "epsilon_lifetime = 1000.0\n[guard]\nepsilon = 50.0\nexamples = 3\n")
    app = plain_app([pm.flower.GuardMod(policy=policy(tmp_path))])
    config = {"policy": str(other), "wallet": str(loose / "w.jsonl"), "wallets": str(loose)}
    reply = ask(app, grid=InProcessGrid(app, 2, config))
    assert dict(reply.content["metrics"]) == {"num-examples": 60}
    assert [sale["epsilon"] for sale in wallet(tmp_path).statement()] == [1.0]
    assert [path.name for path in loose.iterdir()] == ["site.toml"]
    assert "the run's configuration names policy" in caplog.text


def test_the_nodes_own_policy_takes_the_place_of_an_apps(tmp_path, monkeypatch):
    (tmp_path / "app").mkdir()
    loose = policy(tmp_path / "app", "epsilon_lifetime = 1000.0\n[guard]\nepsilon = 50.0\n")
    app = plain_app([pm.flower.GuardMod(policy=loose)])
    grid = InProcessGrid(app, 1)
    grid.contexts[NODE].node_config["policy"] = str(policy(tmp_path))
    ask(app, grid=grid)
    assert [sale["epsilon"] for sale in wallet(tmp_path).statement()] == [1.0]
    monkeypatch.setenv("PRIVMARKET_POLICY", str(tmp_path / "site.toml"))
    ask(app)
    assert len(wallet(tmp_path).statement()) == 2
    assert not (tmp_path / "app" / "wallet-0.jsonl").exists()


def test_an_app_cannot_move_its_node_to_a_fresh_wallet(tmp_path):
    """What it writes into the node's configuration is forgotten; its own state is kept."""

    def moves(message, context):
        context.node_config["partition-id"] = 999
        context.node_config["policy"] = "/nowhere"
        context.state["mine"] = ConfigRecord({"rounds": 1})
        return good(message)

    app = ClientApp(mods=[pm.flower.GuardMod(policy=policy(tmp_path))])
    app.train()(moves)
    grid = InProcessGrid(app, 1)
    for _ in range(2):
        ask(app, grid=grid)
    assert len(wallet(tmp_path).statement()) == 2
    assert grid.contexts[NODE].node_config["partition-id"] == 0
    assert "mine" in grid.contexts[NODE].state


def test_an_app_cannot_write_into_the_state_of_secure_aggregation(tmp_path):
    """Flower's mod stands before the guard and sends what follows from its state in later messages."""

    def writes(message, context):
        context.state[RECORD_KEY_STATE] = ConfigRecord({"sk1": b"a secret"})
        return good(message)

    app = ClientApp(mods=[pm.flower.GuardMod(policy=policy(tmp_path))])
    app.train()(writes)
    grid = InProcessGrid(app, 1)
    ask(app, grid=grid)
    assert RECORD_KEY_STATE not in grid.contexts[NODE].state
    grid.contexts[NODE].state[RECORD_KEY_STATE] = ConfigRecord({"sk1": b"its own"})
    ask(app, grid=grid)
    assert dict(grid.contexts[NODE].state[RECORD_KEY_STATE]) == {"sk1": b"its own"}


def test_training_twice_or_in_an_evaluation_charges_nothing_more(tmp_path):
    """Else an app could empty the wallet, and the wallet's word would tell whether it did."""
    model = torch.nn.Linear(4, 3)
    inputs, labels = torch.randn(60, 4), torch.zeros(60, dtype=torch.long)

    def again(message, context):
        for _ in range(3):
            with suppress(Exception):
                pm.flower.train_privately(message, context, model, inputs, labels)
        return good(message)

    table = "[guard.evaluate]\nloss = { range = [0, 1], epsilon = 0.1 }\n"
    app = ClientApp(mods=[pm.flower.GuardMod(policy=policy(tmp_path, SITE + table))])
    app.train()(again)
    app.evaluate()(again)
    linear = {"weight": np.zeros((3, 4), dtype=np.float32), "bias": np.zeros(3, dtype=np.float32)}
    for kind in ("train", "evaluate"):
        assert not ask(app, kind, RecordDict({"arrays": arrays(linear)})).has_error()
    assert [sale["epsilon"] for sale in wallet(tmp_path).statement()] == [1.0, 0.1]


def test_each_answer_to_a_replayed_message_is_charged_and_has_its_own_noise(tmp_path):
    app = plain_app([pm.flower.GuardMod(policy=policy(tmp_path))], change=0.0)
    content = RecordDict({"arrays": arrays()})
    first, second = ask(app, content=content), ask(app, content=content)
    assert len(wallet(tmp_path).statement()) == 2
    assert not np.array_equal(weights(first), weights(second))


def test_a_handler_within_a_handler_shares_one_wallet(tmp_path):
    """Two messages at once: the second takes the last ε while the first's app still runs."""
    site = policy(tmp_path, SITE.replace("6.0", "1.2") + 'training = "update"\n')
    inner = plain_app([pm.flower.GuardMod(policy=site)])
    found = []

    def slow(message, context):
        found.append(ask(inner))
        return good(message)

    outer = ClientApp(mods=[pm.flower.GuardMod(policy=site)])
    outer.train()(slow)
    reply = ask(outer)
    assert not found[0].has_error()
    assert reply.error.reason.startswith("privmarket guard: wallet")
    assert len(wallet(tmp_path).statement()) == 1


def counted(released, rate):
    """The number of records whose grid fits released numbers best, for a server that sent zeros."""
    misfit = {}
    for records in range(100, 200):
        spacing = rate * ReleaseGrid.for_release(SIGMA, 1.0, released.size, sum_inflation(records)).spacing
        steps = released / spacing
        misfit[records] = np.abs(steps - np.round(steps)).max()
    return min(misfit, key=misfit.get)


SIGMA = 3.7


@pytest.mark.parametrize("unit", ["record", "person"])
def test_the_grid_does_not_tell_the_number_of_records(unit):
    """Training by records releases numbers on a grid. Made for the exact number of records, it tells it."""
    rate = 2.0 / 140
    seen = []
    for records in (140, 141):
        released = np.zeros(3000, dtype=np.float32)
        broken = ReleaseGrid.for_release(SIGMA, 1.0, released.size, sum_inflation(records))
        broken.noisy(released, NoiseSource.from_seed(1), released, rate)
        assert counted(released, rate) == records
        plan = LocalPlan(1, 1.0, 1.0, 2.0, 140.0, unit=unit)
        total, target = torch.zeros(3000), torch.zeros(3000)
        NoisySum.of(SIGMA, NoiseSource.from_seed(1), plan, records, 3000).write(target, total, rate, fresh=True)
        seen.append(target.numpy())
    assert np.array_equal(*seen)


def test_a_strangers_mod_before_the_guard_is_refused(tmp_path):
    def stranger(message, context, call_next):
        reply = call_next(message, context)
        with suppress(ValueError):
            reply.content["more"] = ConfigRecord({"secret": 1})
        return reply

    reply = ask(plain_app([stranger, pm.flower.GuardMod(policy=policy(tmp_path))]))
    assert reply.error.reason.startswith("privmarket guard: setup")
    inside = ask(plain_app([pm.flower.GuardMod(policy=policy(tmp_path)), stranger]))
    assert list(inside.content) == ["metrics", "arrays"]


def test_a_guard_at_one_function_is_refused(tmp_path):
    app = ClientApp()
    app.train(mods=[pm.flower.GuardMod(policy=policy(tmp_path))])(lambda message, context: good(message))
    assert ask(app).error.reason.startswith("privmarket guard: setup")


def test_an_app_with_a_lifespan_is_warned_about(tmp_path, caplog):
    app = plain_app([pm.flower.GuardMod(policy=policy(tmp_path))])

    @app.lifespan()
    def lifespan(context):
        yield

    assert not ask(app).has_error()
    assert "lifespan" in caplog.text


def test_failures_are_told_only_where_the_policy_says_so(tmp_path):
    app = ClientApp(mods=[pm.flower.GuardMod(policy=policy(tmp_path, SITE + 'failures = "tell"\n'))])
    app.train()(lambda message, context: raises(ValueError("record 7 is yes")))
    reply = ask(app)
    assert (
        reply.error.reason
        == "privmarket guard: failed: the site failed; its owner finds the cause in the site's own log"
    )
    assert not wallet(tmp_path).statement()
