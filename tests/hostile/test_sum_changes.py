"""A server that changes, between the steps of a secure sum, what is added, by whom and for which offer."""

import math
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Message, RecordDict

import privmarket as pm
from privmarket.flower import (
    _client as client,
    _refusals as refusals,
    _sum_seller as sum_seller,
    _sum_server as sums,
    _wire as wire,
)
from privmarket.flower._fleet import Delivery
from privmarket.flower._seller import Seller
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._policy import Order, PolicyRefusal, SellerPolicy
from privmarket.rounds import Terms
from privmarket.secagg import honest_sellers
from tests.hostile import naive
from tests.hostile.test_secure_sums import OTHERS, VICTIM, asks_for_a_vector, attacked, reasons
from tests.unit.flower.test_at_a_broker import refused, service, sum_at, with_keys  # noqa: F401
from tests.unit.flower.toy import START, Wire, refusal_of, train

# One array in two places: the others' numbers would cancel in the difference, and the victim's be left.


def other_arrays(names):
    """All but the victim are to send these arrays of the model, in this order."""

    def tamper(message):
        if not asks_for_a_vector(message) or message.metadata.dst_node_id == VICTIM:
            return
        listed = {name if name not in names[:at] else f"{name} again": START[name] for at, name in enumerate(names)}
        message.content[wire.WEIGHTS] = wire.write_arrays(listed)

    return tamper


@pytest.mark.parametrize("names", ["bba", "ba"])
def test_other_arrays_or_another_order_of_them_are_refused(names, monkeypatch):
    """All sellers signed their keys for the names, shapes and order of the arrays."""
    sent, opened, grid = attacked(monkeypatch, other_arrays(names))
    assert opened is None
    assert set(sent) <= {VICTIM}
    assert reasons(grid) == {"cohort"}


def test_another_order_of_the_arrays_mixes_the_sum_of_gullible_sellers(monkeypatch):
    for side in (sums, sum_seller):
        monkeypatch.setattr(side, "binding", lambda *_: bytes(32))
    sent, opened, _ = attacked(monkeypatch, other_arrays("ba"))
    meant = sum(one if node == VICTIM else np.concatenate([one[4:], one[:4]]) for node, one in sent.items())
    np.testing.assert_array_equal(opened, sum(sent.values()))
    assert not np.array_equal(opened, meant)


# Another offer in the middle of a sum: what was checked at its beginning was checked for the first one.


def rebidding(monkeypatch):
    """A second call for bids, under local trust, between the first step and the order."""
    calls = {}
    grids = []

    class Remembered(Wire):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            grids.append(self)

    def tamper(message):
        node = message.metadata.dst_node_id
        if message.metadata.message_type == wire.BID:
            calls[node] = wire.take(message.content, Terms)
        elif node in OTHERS and asks_for_a_vector(message):
            again = Message(wire.put(RecordDict(), replace(calls[node], trust="local")), node, wire.BID)
            super(Wire, grids[0]).answer(again)

    monkeypatch.setattr("tests.hostile.test_secure_sums.Wire", Remembered)
    return attacked(monkeypatch, tamper)


def test_a_gullible_seller_serves_two_offers_in_one_sum(monkeypatch):
    """It sells for an offer that it did not make, under another trust than it last agreed to."""
    monkeypatch.setattr("privmarket.flower._seller._check_against_offer", lambda *_: None)
    sent, opened, _ = rebidding(monkeypatch)
    assert set(sent) > OTHERS
    assert opened is not None


def test_a_sum_serves_one_offer_to_its_end(monkeypatch):
    sent, opened, grid = rebidding(monkeypatch)
    assert opened is None
    assert set(sent) <= {VICTIM}
    assert "offer" in reasons(grid)


# A part of the round's sellers: with fewer sellers fewer must be honest.


def play_with_two(monkeypatch, keyed):
    """The buyer plays the sum with two of the sellers that the broker awarded; returns the sum and their shares."""
    real, seen, sent = sums.secure_sum, {}, {}

    def few(grid, fleet, sales, weights, records, timeout, cohorts):
        two = sorted(sales, key=lambda client: fleet.node_of[client])[:2]
        share = math.sqrt(honest_sellers(2, 2 / 3) / honest_sellers(len(sales), 2 / 3))
        orders = {c: replace(sales[c], sellers=2, weight=0.97 * share * sales[c].weight) for c in two}
        known = sums.Cohorts.one({c: cohorts.keys[c] for c in two})
        delivered, seen["sum"] = real(grid, fleet, orders, weights, {c: records[c] for c in two}, timeout, known)
        seen["awarded"] = len(sales)
        return {**{c: Delivery(fault="left out", refused=True) for c in sales}, **delivered}, seen["sum"]

    monkeypatch.setattr(sums, "secure_sum", few)
    made = pm.flower.federation_client

    def client(config):
        app = made(config)
        theirs = app.seller.share

        class Noted:
            records = staticmethod(theirs.records)

            @staticmethod
            def share(weights, job, grid):
                sent[job.context.node_id] = theirs.share(weights, job, grid)
                return sent[job.context.node_id]

        app.seller.share = Noted
        return app

    monkeypatch.setattr(pm.flower, "federation_client", client)
    _, grid = sum_at(keyed)
    assert seen["awarded"] > 2
    return seen["sum"], sent, grid


def test_a_part_of_the_sellers_is_a_sum_for_who_checks_only_that_nobody_else_is_there(with_keys, monkeypatch):  # noqa: F811
    monkeypatch.setattr(sum_seller.Roster, "check_members", lambda *_: None)
    total, sent, _ = play_with_two(monkeypatch, with_keys)
    assert len(sent) == 2
    assert total is not None  # one colluder in it, and one seller is left with its own noise


def test_all_of_a_rounds_sellers_are_in_its_sum_or_nobody_is(with_keys, monkeypatch):  # noqa: F811
    total, sent, grid = play_with_two(monkeypatch, with_keys)
    assert total is None
    assert sent == {}
    assert refused(grid) == {"cohort"}


# What a server may write on a client's disk.


@pytest.mark.parametrize("gullible", [False, True])
def test_the_buyers_run_configuration_does_not_choose_the_wallet(gullible, tmp_path, monkeypatch):
    """A new folder in every run would be a new lifetime in every run."""
    if gullible:
        monkeypatch.setattr(client, "_wallet_place", naive.fresh_folder)
    monkeypatch.setenv("PRIVMARKET_WALLETS", str(tmp_path / "mine"))
    app = pm.flower.client_app(train, valuation=0.1, epsilon=1.9, wallet=2.0, spread=False)
    sold = 0
    for run in range(3):
        grid = Wire(app, 1, run_config={"wallets": str(tmp_path / f"fresh-{run}")})
        (node,) = grid.contexts
        terms = Terms(0, 10**6, ReleaseFamily(), 5.0, run=f"r{run}")
        grid.answer(Message(wire.put(RecordDict(), terms), node, wire.BID))
        sale = wire.Sale(f"r{run}", 0, 1.9, 0, ReleaseFamily(), 1.0, 1.0, 10.0)
        order = wire.put(RecordDict({wire.WEIGHTS: wire.write_arrays(START)}), sale)
        sold += refusal_of(grid.answer(Message(order, node, wire.TRAIN))) is None
    assert sold == (3 if gullible else 1)
    assert gullible or [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("run", ["\x1b[2J", "r" * 10_000])
def test_names_that_would_fill_or_clear_a_terminal_get_no_bid(run):
    grid = Wire(pm.flower.client_app(train, valuation=0.1, wallet="unlimited"), 1)
    (node,) = grid.contexts
    call = wire.put(RecordDict(), Terms(0, 10**6, ReleaseFamily(), 5.0, run=run))
    grid.answer(Message(call, node, wire.BID))
    assert refusals.refusals(grid.contexts[node]) == {"message": 1}


@pytest.mark.parametrize("trust", ["\x1b[2J", "t" * 1_000_000])
def test_what_a_server_wrote_stands_in_a_clients_log_as_one_short_line(trust, caplog):
    grid = Wire(pm.flower.client_app(train, valuation=0.1, wallet="unlimited"), 1)
    (node,) = grid.contexts
    sale = wire.Sale("r", 0, 0.5, 1, ReleaseFamily(), 1.0, 1.0, 10.0, trust=trust)
    grid.answer(Message(wire.put(RecordDict({wire.WEIGHTS: wire.write_arrays(START)}), sale), node, wire.TRAIN))
    assert "refused, trust" in caplog.text
    assert "\x1b" not in caplog.text
    assert len(caplog.text) < 10_000
    with pytest.raises(PolicyRefusal) as caught:  # the text as it is, which was logged before
        SellerPolicy().check(Order(delta=sale.family.delta, trust=trust))
    assert trust in str(caught.value)


@pytest.mark.parametrize("gullible", [False, True])
def test_a_receipt_leaves_one_short_line(gullible, tmp_path, monkeypatch):
    if gullible:
        monkeypatch.setattr(Seller, "_note_receipt", naive.note_as_it_comes)
    wallet = pm.privacy.WalletFile(tmp_path / "w.jsonl", 8.0)
    app = pm.flower.client_app(train, valuation=0.1, wallet=wallet)
    grid = Wire(app, 1)
    (node,) = grid.contexts
    terms = Terms(0, 10**6, ReleaseFamily(), 5.0, run="r")
    grid.answer(Message(wire.put(RecordDict(), terms), node, wire.BID))
    sale = wire.Sale("r", 0, 0.5, 1, ReleaseFamily(), 1.0, 1.0, 10.0)
    order = wire.put(RecordDict({wire.WEIGHTS: wire.write_arrays(START)}), sale)
    grid.answer(Message(order, node, wire.TRAIN))
    for receipt in (wire.Receipt("r", 0, -5, "\x1b[2J" * 10_000), wire.Receipt("r", 0, 5, "x" * 5_000_000)):
        content = wire.put(wire.put(RecordDict(), replace(terms, number=1)), receipt)
        grid.answer(Message(content, node, wire.RECEIPT))
    assert (wallet.path.stat().st_size > 10_000) == gullible
    assert gullible or all(sale.get("paid_micro", 0) >= 0 for sale in wallet.statement())
