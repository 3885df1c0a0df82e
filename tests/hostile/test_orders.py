"""A malicious server's orders: each succeeds against a client without the guard, and fails against the product.

The subject kept broken on purpose is a gullible client: one whose policy check, award check and guard are taken
out, as before there were any.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from flwr.app import ConfigRecord, Message, RecordDict

import privmarket as pm
from privmarket.broker._api import ServiceSettings, create_app
from privmarket.broker._broker import Broker
from privmarket.broker._client import BrokerClient
from privmarket.flower import _refusals as refusals, _seller as client_module, _wire as wire
from privmarket.flower._training import private_module_update, trainable_arrays
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._policy import PolicyRefusal, Reason, SellerPolicy
from tests.unit.flower.toy import CLIENTS, START, Wire, client, partition, play, refusal_of, server, train

VICTIM = 1001


def altered(change, kind=wire.Sale):
    """A server that changes one client's order, or its call for bids."""

    def tamper(message):
        if message.metadata.dst_node_id == VICTIM and wire.NAMES[kind] in message.content:
            record = wire.take(message.content, kind)
            wire.put(message.content, type(record)(**{**vars(record), **change(record)}))

    return tamper


def both(change):
    """The same change in the call for bids and in the order: the client is offered the bad terms from the start."""
    call, order = altered(change, wire.Terms), altered(change)

    def tamper(message):
        call(message)
        order(message)

    return tamper


@pytest.fixture
def gullible(monkeypatch):
    """The client of old: whatever is asked within the offer is done."""
    monkeypatch.setattr(SellerPolicy, "check", lambda self, order: None)
    monkeypatch.setattr(SellerPolicy, "check_weights", lambda self, weights, shapes=None: None)
    monkeypatch.setattr(refusals, "check_award", lambda sale, broker: None)
    monkeypatch.setattr(refusals, "check_task", lambda asked, task: None)


def victims(tmp_path, **options):
    """Clients whose victim has a wallet and a note of every job that it trained for."""
    jobs = []
    wallet = pm.privacy.WalletFile(tmp_path / "victim.jsonl", 8.0)

    def noted(weights, job):
        if job.client == "1":
            jobs.append(job)
        return train(weights, job)

    app = client(noted, wallet=lambda c: wallet if partition(c) == 1 else "unlimited", **options)
    return app, jobs, wallet


TERMS = {
    "δ of a half": (lambda asked: {"family": replace(asked.family, delta=0.5)}, Reason.DELTA),
    "δ of a thousandth": (lambda asked: {"family": replace(asked.family, delta=1e-3)}, Reason.DELTA),
    "a million steps": (lambda asked: {"family": replace(asked.family, steps=10**6)}, Reason.SCHEDULE),
}


@pytest.mark.parametrize("name", TERMS)
def test_terms_outside_the_policy_get_no_bid(name, tmp_path):
    change, reason = TERMS[name]
    app, jobs, wallet = victims(tmp_path)
    result, _ = play(app, tamper=both(change))
    assert jobs == []
    assert wallet.statement() == []
    assert "1" not in result.paid_micro
    assert result.declined["1"].startswith(reason.value)  # the server shows who refused, in policy terms
    assert set(result.declined) == {"1"}


def test_a_large_delta_buys_nearly_everything_from_a_gullible_client(tmp_path, gullible):
    """At δ = 0.5 a sale of less than ε = 1 gets noise that is worth ε > 7 at the seller's own δ of 1e-5."""
    app, jobs, _ = victims(tmp_path)
    play(app, tamper=both(lambda asked: {"family": replace(asked.family, delta=0.5)}))
    assert jobs[0].sale.epsilon < 1.0
    assert float(ReleaseFamily().epsilon(jobs[0].noise_multiplier)) > 7


PLANS = {
    "clip norm of nothing": ({"clip_norm": 1e-30}, Reason.CLIP_NORM),
    "endless clip norm": ({"clip_norm": math.inf}, Reason.CLIP_NORM),
    "clip norm that is no number": ({"clip_norm": math.nan}, Reason.CLIP_NORM),
    "learning rate that swallows": ({"learning_rate": 1e30}, Reason.LEARNING_RATE),
    "learning rate below zero": ({"learning_rate": -1.0}, Reason.LEARNING_RATE),
    "divisor near zero": ({"expected_batch": 1e-300}, Reason.EXPECTED_BATCH),
    "another trust": ({"trust": "aggregate"}, Reason.TRUST),
    "more ε": ({"epsilon": 1.5}, Reason.OFFER),
    "ε that is no number": ({"epsilon": math.nan}, Reason.EPSILON),
    "another round": ({"number": 77}, Reason.OFFER),
}


@pytest.mark.parametrize("name", PLANS)
def test_orders_outside_policy_or_offer_are_refused_in_one_word(name, tmp_path):
    change, reason = PLANS[name]
    app, jobs, wallet = victims(tmp_path)
    result, grid = play(app, tamper=altered(lambda sale: change))
    assert jobs == []
    assert wallet.statement() == []
    for record in result.records:
        assert record.dropped["1"].startswith(f"refused: {reason.value} (")
    assert "1" not in result.releases  # nothing released, nothing counted
    words = {refusal_of(m) for m in grid.answered} - {None}
    assert words == {reason.value}
    assert refusals.refusals(grid.contexts[VICTIM]) == {reason.value: 2}  # accounted for, on the client


@pytest.mark.parametrize("name", ["clip norm of nothing", "learning rate that swallows", "divisor near zero"])
def test_a_gullible_client_trains_for_them(name, tmp_path, gullible):
    app, jobs, _ = victims(tmp_path)
    play(app, tamper=altered(lambda sale: PLANS[name][0]))
    assert jobs


def bad_weights(change):
    def tamper(message):
        if message.metadata.dst_node_id == VICTIM and wire.NAMES[wire.Sale] in message.content:
            arrays = {name: array.copy() for name, array in wire.read_arrays(message.content, wire.WEIGHTS).items()}
            message.content[wire.WEIGHTS] = wire.write_arrays(change(arrays))

    return tamper


WEIGHTS = {
    "large enough to swallow noise": lambda arrays: {**arrays, "a": arrays["a"] + np.float32(2**40)},
    "not a number": lambda arrays: {**arrays, "a": arrays["a"] * np.float32(np.nan)},
    "endless": lambda arrays: {**arrays, "a": arrays["a"] + np.float32(np.inf)},
    "integers": lambda arrays: {**arrays, "a": arrays["a"].astype(np.int32)},
    "half precision": lambda arrays: {**arrays, "a": arrays["a"].astype(np.float16)},
    "none at all": lambda arrays: {},
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_no_honest_server_sends_are_refused(name, tmp_path):
    app, jobs, wallet = victims(tmp_path)
    result, _ = play(app, tamper=bad_weights(WEIGHTS[name]))
    assert jobs == []
    assert wallet.statement() == []
    assert all(record.dropped["1"].startswith("refused: weights") for record in result.records)


def test_a_gullible_client_takes_weights_that_swallow_noise(tmp_path, gullible):
    app, jobs, _ = victims(tmp_path)
    play(app, tamper=bad_weights(WEIGHTS["large enough to swallow noise"]))
    assert jobs


def test_an_unknown_schedule_is_refused_at_once(tmp_path, monkeypatch):
    def never(*_):
        raise AssertionError("a noise table was built")

    monkeypatch.setattr("privmarket.privacy._calibration.build_table", never)
    app, jobs, wallet = victims(tmp_path)
    odd = lambda asked: {"family": ReleaseFamily(0.0417, 33, asked.family.delta)}  # noqa: E731
    result, _ = play(app, tamper=both(odd))
    assert result.declined["1"].startswith("schedule")
    assert (jobs, wallet.statement()) == ([], [])


def test_the_policys_limits_trim_what_is_offered_and_its_price_is_asked(tmp_path):
    policy = SellerPolicy(epsilon_per_sale=0.25, epsilon_lifetime=1.0, price={"local": 0.9})
    policy = replace(policy, wallet=str(tmp_path / "w-{client}.jsonl"))
    offers = []

    def after(reply):
        if reply.metadata.message_type == wire.BID:
            offers.append(wire.take(reply.content, wire.Answer))

    app = client(wallet=None, policy=policy, spread=False)
    result, _ = play(app, server(budget=50.0), after=after)
    assert {offer.epsilon for offer in offers} == {0.25}
    assert {offer.valuation for offer in offers} == {0.9}
    assert len(list(tmp_path.glob("w-*.jsonl"))) == CLIENTS  # a wallet per client, made from the policy
    assert result.certificate().epsilon <= 1.0


# --- at a broker -----------------------------------------------------------------------------------------


@pytest.fixture
def service(tmp_path):
    broker = Broker(f"sqlite:///{tmp_path / 'market.db'}")
    token = broker.first_operator()
    api = create_app(broker, ServiceSettings())
    connect = lambda token: BrokerClient("http://broker", token, http=TestClient(api, base_url="http://broker"))  # noqa: E731
    operator = connect(token)
    buyer = operator.register("buyer", "lab")
    operator.deposit(buyer.me()["id"], 100_000_000)
    sellers = [
        operator.register("seller", f"clinic {i}", cap_epsilon=4.0, delta=1e-5).token for i in range(CLIENTS)
    ]
    return connect, buyer, sellers


def at_broker(service, tamper, jobs, **options):
    connect, buyer, sellers = service

    def noted(weights, job):
        jobs.append(job)
        return train(weights, job)

    app = client(noted, epsilon=3.0, broker=lambda context: connect(sellers[partition(context)]), **options)
    grid = Wire(app, tamper=tamper)
    market = server(
        broker=connect(buyer.token), deadline_seconds=30.0, bid_seconds=30.0, rounds=1, epsilon_max=5.0, budget=2.0
    )
    return pm.flower.run_in_process(market, app, CLIENTS, grid=grid)


def more_than_awarded(sale):
    return {"epsilon": sale.epsilon * 1.3} if sale.epsilon < 2.9 else {"epsilon": sale.epsilon * 0.9}


def test_a_buyer_cannot_go_past_the_brokers_award(service):
    jobs = []
    result = at_broker(service, altered(more_than_awarded), jobs)
    connect, _, sellers = service
    victim = connect(sellers[1]).me()["id"]
    assert result.records[0].dropped[victim].startswith("refused: award")
    assert [job for job in jobs if job.client == "1"] == []


def test_a_gullible_client_sells_what_the_broker_never_awarded(service, gullible):
    jobs = []
    at_broker(service, altered(more_than_awarded), jobs)
    assert [job for job in jobs if job.client == "1"]


def sell_again(service, tmp_path):
    """After a round is over, the same award under the name of another run: what the victim did and was charged."""
    connect, buyer, sellers = service
    jobs, seen = [], {}

    def keep(message):
        if message.metadata.dst_node_id == VICTIM:
            seen[message.metadata.message_type] = message.content

    def noted(weights, job):
        jobs.append(job)
        return train(weights, job)

    wallet = pm.privacy.WalletFile(tmp_path / "victim.jsonl", 8.0)
    mine = lambda context: wallet if partition(context) == 1 else "unlimited"  # noqa: E731
    app = client(noted, epsilon=3.0, broker=lambda context: connect(sellers[partition(context)]), wallet=mine)
    grid = Wire(app, tamper=keep)
    times = {"deadline_seconds": 30.0, "bid_seconds": 30.0}
    market = server(broker=connect(buyer.token), rounds=1, epsilon_max=5.0, budget=2.0, **times)
    pm.flower.run_in_process(market, app, CLIENTS, grid=grid)
    grid.tamper = None
    terms, sale = wire.take(seen[wire.BID], wire.Terms), wire.take(seen[wire.TRAIN], wire.Sale)
    again = wire.put(RecordDict(), replace(terms, run="another"))
    grid.answer(Message(again, VICTIM, wire.BID))
    order = wire.put(RecordDict({wire.WEIGHTS: seen[wire.TRAIN][wire.WEIGHTS]}), replace(sale, run="another"))
    answer = grid.answer(Message(order, VICTIM, wire.TRAIN))
    assert refusal_of(answer) is not None
    return [job.sale.run for job in jobs if job.client == "1"], wallet


def test_an_award_is_sold_once(service, tmp_path):
    """The broker has closed the round, so there is no offer: nothing is trained, no ε is burnt."""
    runs, wallet = sell_again(service, tmp_path)
    assert len(runs) == 1
    assert len(wallet.statement()) == 1


def test_a_client_that_remembers_offers_too_early_burns_epsilon(service, tmp_path, monkeypatch):
    def early(self, terms, context, wanted):
        of_round = terms.run, terms.number, terms.broker_round
        kept = *of_round, wanted.epsilon, terms.family, terms.trust, terms.honest_share
        wire.put(context.state, wire.Offered(*kept))
        return honest(self, terms, context, wanted)

    honest = client_module.Seller._bid_at_broker
    monkeypatch.setattr(client_module.Seller, "_bid_at_broker", early)
    runs, wallet = sell_again(service, tmp_path)
    assert len(runs) == len(wallet.statement()) == 2


def test_an_order_for_another_round_of_the_broker_is_refused(service):
    jobs = []
    result = at_broker(service, altered(lambda sale: {"broker_round": "another"}), jobs)
    assert "1" not in result.paid_micro
    assert [job for job in jobs if job.client == "1"] == []


def test_a_call_that_is_not_the_brokers_task_gets_no_bid(service):
    jobs = []
    result = at_broker(service, both(lambda asked: {"family": replace(asked.family, delta=1e-6)}), jobs)
    assert any(why.startswith("award") for why in result.declined.values())
    assert not [job for job in jobs if job.client == "1"]


def test_buyers_and_brokers_of_the_policy_are_known_by_the_broker(service):
    mine = service[1].me()["id"]
    jobs = []
    open_policy = SellerPolicy(epsilon_per_sale=math.inf, epsilon_lifetime=math.inf)
    good = replace(open_policy, buyers=frozenset({mine}), brokers=frozenset({"http://broker"}))
    assert at_broker(service, None, jobs, policy=good).paid_micro
    for bad in (replace(good, buyers=frozenset({"another"})), replace(good, brokers=frozenset({"http://else"}))):
        result = at_broker(service, None, jobs, policy=bad)
        assert result.paid_micro == {}
        assert len(result.declined) == CLIENTS


# --- words -----------------------------------------------------------------------------------------------


class SecretError(Exception):
    """An error whose text is a record."""


SECRET = "index 7 is out of bounds"


def leaking(weights, job):
    if job.client == "1":
        raise SecretError(SECRET)
    return train(weights, job)


def everything_sent(grid):
    return "".join(str(m.content if m.has_content() else m.error.reason) for m in grid.answered)


def test_no_text_of_an_error_leaves_and_a_failure_is_charged(tmp_path, caplog):
    wallet = pm.privacy.WalletFile(tmp_path / "w.jsonl", 8.0)
    app = client(leaking, wallet=lambda c: wallet if partition(c) == 1 else "unlimited")
    result, grid = play(app, server(rounds=3))
    assert SECRET not in everything_sent(grid)
    assert SECRET not in str(result.to_json())
    assert result.records[0].dropped["1"].startswith("refused: failed")
    assert len(wallet.statement()) == 2  # that training failed is something the records told: it stays spent
    assert wallet.unpaid() == {}  # nothing has left, so no buyer owes anything
    assert result.declined["1"].startswith("failed")  # after two failures it sells no more in this run
    assert "1" in result.releases
    assert SECRET in caplog.text  # the owner's own log has it


def test_the_client_of_old_sends_its_errors_text(monkeypatch):
    def raised(message, context, error, reason=None):
        raise error

    monkeypatch.setattr(refusals, "refuse", raised)
    monkeypatch.setattr(client_module, "trained", lambda training: training())
    _, grid = play(client(leaking))
    assert SECRET in everything_sent(grid)


@pytest.mark.parametrize("kind", [SecretError, PolicyRefusal])
def test_no_text_leaves_a_client_under_secure_aggregation(kind):
    def bad(weights, job):
        if job.client == "1":
            raise PolicyRefusal(Reason.FAILED, SECRET) if kind is PolicyRefusal else SecretError(SECRET)
        return train(weights, job)

    market = server(secure_aggregation=True, rounds=1)
    result, grid = play(client(bad, secure_aggregation=True), market)
    assert SECRET not in everything_sent(grid)
    assert "1" in result.records[0].dropped
    assert len(result.paid_micro) > 1


@pytest.mark.parametrize(
    "broken",
    [
        {"offer": lambda terms, context: 1 / 0},
        {"name": lambda context: str([][7])},
        {"wallet": lambda context: None},
        {"epsilon": lambda context: int(SECRET)},
    ],
    ids=["offer", "name", "wallet", "epsilon"],
)
def test_errors_anywhere_in_a_client_become_one_word(broken):
    result, grid = play(client(**broken))
    text = everything_sent(grid)
    for leaked in ("division", "list index", "None", SECRET, "Traceback", "ValueError"):
        assert leaked not in text
    assert result.paid_micro == {}


@pytest.mark.parametrize("kind", ["train", "evaluate", "query", "query.bid", "query.receipt", "query.else"])
def test_garbage_gets_one_word(kind):
    grid = Wire(client())
    for content in (
        RecordDict(),
        RecordDict({"privmarket-call": ConfigRecord({"number": "x"})}),
        RecordDict({"privmarket-sale": ConfigRecord({"epsilon": 1.0})}),
    ):
        reply = grid.answer(Message(content, VICTIM, kind))
        if content:
            assert not reply.has_error()
            assert refusal_of(reply) in set(Reason)
        else:  # of no market: an error reply, which other servers count as a failure
            word = Reason(reply.error.reason.split(": ")[1])
            assert reply.error.reason == f"privmarket: {word}: {word.meaning}"


def test_terms_that_are_no_terms_are_a_message_that_cannot_be_read():
    grid = Wire(client())
    bad = {"number": 0, "budget-micro": 5, "epsilon-max": 5.0, "sampling-rate": 7.0, "steps": 1, "delta": 1e-5}
    bad |= {"rounds": 1, "run": "r", "broker-round": "", "trust": "local", "honest-share": 0.6}
    content = RecordDict({"privmarket-call": ConfigRecord(bad)})
    assert refusal_of(grid.answer(Message(content, VICTIM, wire.BID))) == "message"


def test_the_market_goes_on_without_the_clients_that_refuse():
    quiet, _ = play(client(), tamper=altered(lambda sale: {"clip_norm": 1e-30}))
    full, _ = play(client())
    others = {c: m for c, m in full.paid_micro.items() if c != "1"}
    assert {c: m for c, m in quiet.paid_micro.items() if c != "1"} == others
    assert set(START) == set(quiet.weights)


def test_a_client_with_a_million_records_sells_like_any_other():
    """Its order passes the whole way: bid, check, exact sum in blocks, noise. Nothing about it is refused."""
    inputs, labels = torch.linspace(-1, 1, 1_000_000)[:, None], torch.arange(1_000_000) % 2
    module = torch.nn.Linear(1, 2)
    start = trainable_arrays(module)
    sold = lambda weights, job: private_module_update(module, weights, inputs, labels, job)  # noqa: E731
    app = pm.flower.client_app(sold, valuation=0.2, epsilon=1.0, data_size=1e6, wallet="unlimited")
    market = pm.flower.server_app(
        initial_weights=lambda: start, mechanism="proportional-share", budget=5.0, rounds=1, expected_batch=1e6
    )
    result = pm.flower.run_in_process(market, app, 1)
    assert list(result.paid_micro) == ["0"]
    assert all(np.isfinite(array).all() for array in result.weights.values())
