"""Rounds on the grid: paid for what was delivered, in time, once; and nobody's business is another's."""

from types import SimpleNamespace
from typing import get_type_hints

import numpy as np
import pytest
from flwr.app import Message, RecordDict

import privmarket as pm
from privmarket.errors import ConfigurationError
from privmarket.flower import _in_process as in_process, _wire as wire
from privmarket.flower._result import RoundJson
from privmarket.rounds import RoundRecord
from tests.unit.flower.toy import (
    BUDGET,
    CLIENTS,
    START,
    balanced,
    client,
    partition,
    play,
    refusal_of,
    server,
    train,
)


@pytest.mark.parametrize(
    ("money", "offered"),
    [({"budget": 4.0}, "of 8 offered in 2 rounds"), ({"budget": 99.0, "total_budget": 30.0}, "of 30 offered")],
)
def test_the_summary_says_what_the_rounds_offered(money, offered):
    """A total is offered once, whatever the budget per round says and however much of round 0 went back."""

    def gone(weights, job):
        if (job.client, job.sale.number) == ("0", 0):
            raise RuntimeError("gone")
        return train(weights, job)

    result, _ = play(client(gone), server(**money))
    assert result.records[0].refunded_micro > 0
    assert offered in result.summary()[-1]


def test_a_round_of_a_result_file_has_the_fields_of_its_record():
    assert list(get_type_hints(RoundJson).items()) == list(get_type_hints(RoundRecord).items())


def test_everybody_who_delivers_is_paid():
    result, grid = play()
    assert balanced(result)
    assert [r.sellers for r in result.records] == [CLIENTS, CLIENTS]
    assert sum(result.paid_micro.values()) <= 2 * BUDGET * 1_000_000
    assert result.weights["a"].shape == (2, 3)
    # Updates are 1 plus noise, and the server moves against them.
    assert -8 < result.weights["b"].mean() < 4
    assert len(grid.orders()) == 2 * CLIENTS


def faulty(kind, clock):
    """A client app of which client 2 misbehaves in the second round; `clock` holds the seconds that have passed."""

    def bad(weights, job):
        update = train(weights, job)
        if (job.client, job.sale.number) != ("2", 1):
            return update
        if kind == "NaN":
            update["a"][0, 0] = np.nan
        elif kind == "infinite in float32":
            update = {name: np.full(array.shape, 1e300) for name, array in update.items()}
        elif kind == "wrong shape":
            update["a"] = update["a"].T.copy()
        elif kind == "missing array":
            del update["b"]
        elif kind == "extra array":
            update["c"] = update["b"]
        elif kind == "integers":
            update["b"] = np.ones(4, dtype=np.int64)
        elif kind == "raises":
            raise RuntimeError("disk full")
        elif kind == "late":
            clock[0] += 61.0
        return update

    return client(bad)


REASONS = {
    "NaN": "not finite",
    "infinite in float32": "not finite",
    "wrong shape": "shape",
    "missing array": "arrays",
    "extra array": "arrays",
    "integers": "int64",
    "raises": "refused: failed",
    "late": "no answer",
}


@pytest.mark.parametrize("kind", REASONS)
def test_a_bad_update_is_not_paid_and_the_round_goes_on(kind, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(in_process, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    result, _ = play(faulty(kind, clock), server(deadline_seconds=60.0))
    good, bad = result.records
    assert good.dropped == {}
    assert list(bad.dropped) == ["2"]
    assert REASONS[kind] in bad.dropped["2"]
    assert "2" in good.paid_micro
    assert "2" not in bad.paid_micro
    assert bad.sellers == CLIENTS - 1
    assert balanced(result)
    assert all(np.isfinite(array).all() for array in result.weights.values())


def test_the_second_of_two_answers_is_not_paid():
    app = client()
    grid = play(app)[1].__class__(app)
    once = grid.send_and_receive
    # Every node answers every order twice.
    grid.send_and_receive = lambda messages, timeout=None: [r for r in once(messages) for _ in range(2)]
    result = pm.flower.run_in_process(server(), app, CLIENTS, grid=grid)
    assert balanced(result)
    assert result.records[0].paid_micro == play()[0].records[0].paid_micro


def test_an_old_update_is_not_paid_again():
    old = {}

    def lazy(weights, job):
        if job.client == "3":
            return old.setdefault("update", train(weights, job))
        return train(weights, job)

    result, _ = play(client(lazy))
    assert "3" in result.records[0].paid_micro
    assert "delivered before" in result.records[1].dropped["3"]
    assert balanced(result)


def test_two_nodes_under_one_name_are_paid_once():
    def name(context):
        return str(min(partition(context), 4))  # node 5 says that it is client 4

    result, grid = play(client(name=name))
    assert all(r.bidders == CLIENTS - 1 for r in result.records)
    assert {node for node, _ in grid.orders()} == set(sorted(grid.contexts)[:5])


def test_an_update_for_another_client_is_not_taken():
    """Node 1's reply claims to come from node 0: node 0 has answered already, and node 1 never did."""

    def forge(reply):
        if reply.metadata.message_type == wire.TRAIN and reply.metadata.src_node_id == 1001:
            reply.metadata.__dict__["_src_node_id"] = 1000

    result, _ = play(after=forge)
    for record in result.records:
        assert "0" in record.paid_micro
        assert record.dropped == {"1": "no answer before the deadline"}


def test_bids_that_break_the_terms_are_left_out():
    def spoil(reply):
        if reply.metadata.message_type == wire.BID:
            record = reply.content["privmarket-offer"]
            if record["client"] in ("0", "1", "2"):
                key, value = {"0": ("epsilon", 1e9), "1": ("valuation", -1.0), "2": ("epsilon", float("nan"))}[
                    record["client"]
                ]
                record[key] = value

    result, _ = play(after=spoil)
    assert {c for r in result.records for c in r.paid_micro} == {"3", "4", "5"}


def test_answers_that_are_no_offers_are_left_out_and_the_others_sell():
    """A number that is missing or is none, a field that nobody knows, a reason that is no word."""
    changes = {"0": ("epsilon", None), "1": ("valuation", 1), "2": ("price", 0.5), "3": ("reason", 7.0)}

    def spoil(reply):
        if reply.metadata.message_type == wire.BID:
            record = reply.content["privmarket-offer"]
            key, value = changes.get(record["client"], ("bids", True))
            if value is None:
                del record[key]
            else:
                record[key] = value

    result, _ = play(after=spoil)
    assert {c for r in result.records for c in r.paid_micro} == {"4", "5"}


def test_a_node_that_talks_nonsense_is_left_out():
    def nonsense(reply):
        if reply.metadata.src_node_id == 1002:
            reply.content = RecordDict()

    result, _ = play(after=nonsense)
    assert {c for r in result.records for c in r.paid_micro} == {"0", "1", "3", "4", "5"}


# ---- what others may know ---------------------------------------------------------------------------------


def secrets(result):
    """client → numbers that only it may see: its ε when sold, its money."""
    money = {}
    for record in result.records:
        for owner, micro in record.paid_micro.items():
            money.setdefault(owner, set()).add(micro)
        for owner, epsilon in record.sold_epsilon.items():
            money[owner].add(epsilon)
    return money


def numbers(message):
    """Every number and text in a message's records."""
    found = set()
    for record in message.content.config_records.values():
        for value in record.values():
            found |= set(value) if isinstance(value, list) else {value}
    for record in message.content.metric_records.values():
        found |= set(record.values())
    return found


def leaks(result, grid):
    """(to, whose) for every message that holds another client's number."""
    own = secrets(result)
    who = {node: str(context.node_config["partition-id"]) for node, context in grid.contexts.items()}
    return [
        (who[message.metadata.dst_node_id], other)
        for message in grid.sent
        for other, values in own.items()
        if other != who[message.metadata.dst_node_id] and values & numbers(message)
    ]


def distinct():
    """A market in which no two clients' ε or money are equal, so that a leak cannot hide."""
    return client(epsilon=lambda context: 0.5 + 0.07 * partition(context))


def test_a_client_sees_its_own_epsilon_and_money_and_nobody_elses(tmp_path):
    result, grid = play(distinct(), server(rounds=3))
    own = secrets(result)
    assert len(own) >= 3
    assert len({value for values in own.values() for value in values}) == sum(map(len, own.values()))
    assert leaks(result, grid) == []
    # Its own it does see, with the receipt of the round before.
    sent = {str(grid.contexts[node].node_config["partition-id"]): sale for node, sale in grid.orders()}
    assert all(sent[c].payment_micro in own[c] and sent[c].epsilon in own[c] for c in own)


def test_a_server_that_sends_everybody_the_same_record_is_caught():
    """The broken subject of the test above: one configuration for all winners."""
    first = {}

    def shared(message):
        if wire.NAMES[wire.Sale] in message.content:
            sale = first.setdefault(message.metadata.group_id, wire.take(message.content, wire.Sale))
            wire.put(message.content, sale)

    result, grid = play(distinct(), tamper=shared)
    assert leaks(result, grid) != []


# ---- what a client refuses --------------------------------------------------------------------------------


def asked(change):
    """A server that changes its orders to client 1 after clearing."""

    def tamper(message):
        if wire.NAMES[wire.Sale] in message.content and message.metadata.dst_node_id == 1001:
            sale = wire.take(message.content, wire.Sale)
            wire.put(message.content, type(sale)(**{**vars(sale), **change(sale)}))

    return tamper


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda sale: {"epsilon": sale.epsilon * 1.01}, "refused: offer"),
        (lambda sale: {"epsilon": float("nan")}, "refused: epsilon-per-sale"),
        (lambda sale: {"epsilon": -1.0}, "refused: epsilon-per-sale"),
        (lambda sale: {"family": type(sale.family)(steps=2)}, "refused: offer"),
        (lambda sale: {"family": type(sale.family)(delta=0.1)}, "refused: delta"),
        (lambda sale: {"number": sale.number + 1}, "refused: offer"),
        (lambda sale: {"run": "other"}, "refused: offer"),
    ],
    ids=["more ε", "NaN", "negative", "more steps", "larger δ", "another round", "another run"],
)
def test_a_client_refuses_more_than_it_offered(change, reason, tmp_path):
    wallet = pm.privacy.WalletFile(tmp_path / "1.jsonl", 10.0)
    app = client(wallet=lambda context: wallet if partition(context) == 1 else "unlimited")
    result, _ = play(app, tamper=asked(change))
    assert all(reason in r.dropped["1"] for r in result.records)
    assert "1" not in result.paid_micro
    assert wallet.statement() == []  # nothing was released, nothing is spent


def test_an_order_sent_twice_is_released_once(tmp_path):
    wallet = pm.privacy.WalletFile(tmp_path / "w.jsonl", 10.0)
    app = client(wallet=lambda context: wallet if partition(context) == 1 else "unlimited")
    _, grid = play(app)
    order = next(m for m in grid.sent if wire.NAMES[wire.Sale] in m.content and m.metadata.dst_node_id == 1001)
    again = grid.answer(Message(order.content, 1001, wire.TRAIN))
    assert refusal_of(again) == "offer"
    # Even if the node forgot, its wallet does not.
    first = next(m for m in grid.sent if m.metadata.message_type == wire.BID and m.metadata.dst_node_id == 1001)
    grid.answer(Message(first.content, 1001, wire.BID))
    again = grid.answer(Message(order.content, 1001, wire.TRAIN))
    assert refusal_of(again) == "sold-before"
    assert len(wallet.statement()) == 2


def test_a_wallet_holds_against_any_server(tmp_path):
    """Twenty rounds of ε = 1 do not fit into a cap of 2: the client bids less and then nothing, whoever asks."""
    wallet = pm.privacy.WalletFile(tmp_path / "w.jsonl", 2.0)
    app = client(wallet=lambda context: wallet if partition(context) == 0 else "unlimited", spread=False)
    result, _ = play(app, server(rounds=20))
    sold = [r.sold_epsilon.get("0", 0.0) for r in result.records]
    assert sold[0] == 1.0
    assert sold[-1] < 0.1
    assert result.certificate("0").epsilon <= 2.0
    assert result.certificate("1").epsilon > 2.0  # who has no wallet pays in full


def test_settings_come_from_the_run_configuration(tmp_path):
    place = tmp_path / "deep" / "result.json"
    config = {"rounds": 1, "budget": 0.5, "mechanism": "csra", "result-file": str(place), "own-key": 7}
    result = pm.flower.run_in_process(server(), client(), CLIENTS, config)
    assert (result.settings.rounds, result.settings.budget, result.settings.mechanism) == (1, 0.5, "csra")
    assert '"spent"' in place.read_text()


def test_too_few_nodes_and_bad_settings_are_said():
    with pytest.raises(ConfigurationError, match="6 of 9 nodes"):
        play(market=server(min_nodes=9, join_seconds=0.1))
    with pytest.raises(ConfigurationError, match="budget"):
        server(budget=-1.0)
    with pytest.raises(ConfigurationError, match="exactly one"):
        pm.flower.server_app(model=lambda: None, initial_weights=lambda: START)
    with pytest.raises(ConfigurationError, match="valuation"):
        pm.flower.client_app(train)
