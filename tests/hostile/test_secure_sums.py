"""A malicious server under aggregate trust on Flower: it wants one seller's share, which has little noise.

The protocol itself is attacked in `test_secagg_server`. Here are attacks on what Flower and the order add to it.
The subject kept broken on purpose is a client that does not hold an order against the terms of its sum, or answers
outside of the protocol.
"""

import math

import numpy as np
import pytest
from flwr.app import Message

import privmarket as pm
from privmarket.errors import PrivacyError
from privmarket.flower import (
    _refusals as refusals,
    _sum_seller as sum_seller,
    _sum_server as sums,
    _wire as wire,
)
from privmarket.flower._seller import MarketClientApp
from privmarket.privacy import _noise as integer_noise
from privmarket.privacy._noise import NoiseSource
from privmarket.privacy._release import ReleaseGrid
from privmarket.secagg import InputRequest, SharedSum, modular_sum
from tests.unit.flower.toy import CLIENTS, START, Wire, client, server

VICTIM = 1001
OTHERS = {1000 + i for i in range(CLIENTS)} - {VICTIM}
RECORDS = 40
SIZE = sum(array.size for array in START.values())


class Ones:
    """Every record pushes every weight alike; keeps what each client added to the sum, which nobody should know."""

    def __init__(self):
        self.sent = {}

    def records(self, context):
        return RECORDS

    def share(self, weights, job, grid):
        total = np.full(SIZE, RECORDS * job.sale.clip_norm / math.sqrt(SIZE))
        integers = grid.noisy_integers(total, job.noise)
        self.sent[job.context.node_id] = integers
        parts = np.split(integers, np.cumsum([array.size for array in weights.values()])[:-1])
        return {n: part.reshape(a.shape) for part, (n, a) in zip(parts, weights.items(), strict=True)}


def attacked(monkeypatch, tamper=None, after=None):
    """One round: what clients added, what the server opened (None if nothing), and the wire."""
    ones, opened = Ones(), []
    add_up = sums.secure_sum

    def noted(*arguments):
        deliveries, total = add_up(*arguments)
        opened.append(total)
        return deliveries, total

    monkeypatch.setattr(sums, "secure_sum", noted)
    app = client(share=ones, secure_aggregation=True, data_size=float(RECORDS))
    grid = Wire(app, tamper=tamper, after=after)
    market = server(
        trust="aggregate", mechanism="ration", mechanism_settings={"unit_price": 0.9}, rounds=1, budget=40.0
    )
    pm.flower.run_in_process(market, app, CLIENTS, grid=grid)
    flat = None if opened[0] is None else np.concatenate([a.ravel() for a in opened[0].values()])
    return ones.sent, flat, grid


def reasons(grid):
    return {reason for context in grid.contexts.values() for reason in refusals.refusals(context)}


def asks_for_a_vector(message):
    return wire.SUM in message.content and isinstance(wire.take_sum(message.content), InputRequest)


def test_an_honest_sum_is_the_sum(monkeypatch):
    sent, opened, grid = attacked(monkeypatch)
    assert len(sent) == CLIENTS
    np.testing.assert_array_equal(opened, sum(sent.values()))
    assert reasons(grid) == set()


# Without a mask: Flower hands "train.default" to the handler of "train", and an order needs no protocol in a client
# that sells its updates in the clear.


def sells_in_the_clear(self, message, context):
    """A client app that takes any message of a kind that it knows, and answers orders as they come."""
    if wire.SALE in message.content and message.metadata.message_type == "train.default":
        sale = wire.take(message.content, wire.Sale)
        weights = wire.read_arrays(message.content, wire.WEIGHTS)
        job = self.seller.accept(sale, context, weights)
        share = self.seller.share.share(weights, job, ReleaseGrid(1.0 / sale.weight, sale.levels))
        return Message(wire.RecordDict({wire.UPDATE: wire.write_arrays(share)}), reply_to=message)
    return MarketClientApp.__call__(self, message, context)


def another_type():
    """A server that asks for shares under another name, and keeps what comes back."""
    bare = {}

    def tamper(message):
        if asks_for_a_vector(message):
            return Message(message.content, message.metadata.dst_node_id, "train.default")
        return None

    def after(reply):
        if wire.UPDATE in reply.content:
            arrays = wire.read_arrays(reply.content, wire.UPDATE).values()
            bare[reply.metadata.src_node_id] = np.concatenate([array.ravel() for array in arrays])

    return bare, tamper, after


def test_a_message_of_another_type_leaves_unmasked_from_a_gullible_client(monkeypatch):
    monkeypatch.setattr(sum_seller.SecureClientApp, "__call__", sells_in_the_clear)
    bare, tamper, after = another_type()
    sent, _, _ = attacked(monkeypatch, tamper, after)
    np.testing.assert_array_equal(bare[VICTIM], sent[VICTIM])


def test_a_message_of_another_type_gets_nothing(monkeypatch):
    bare, tamper, after = another_type()
    sent, _, grid = attacked(monkeypatch, tamper, after)
    assert (bare, sent) == ({}, {})
    assert reasons(grid) == {"message"}


def test_an_order_without_the_protocol_gets_nothing(monkeypatch):
    def tamper(message):
        if asks_for_a_vector(message):
            del message.content[wire.SUM]

    sent, opened, grid = attacked(monkeypatch, tamper)
    assert (sent, opened) == ({}, None)
    assert reasons(grid) == {"message"}


# Unequal noise: the victim is told of three digits, and weighted for them; the others add two.


def unequal(message):
    config = message.content.config_records.get(wire.SALE)
    if config is not None and message.metadata.dst_node_id == VICTIM:
        more = integer_noise.noise_deviation(3) / integer_noise.noise_deviation(2)
        config["levels"], config["weight"] = 3, config["weight"] * more * 0.99


def test_unequal_digits_take_the_others_noise_away_from_a_gullible_client(monkeypatch):
    monkeypatch.setattr(sum_seller, "binding", lambda *_: bytes(32))
    monkeypatch.setattr(sums, "binding", lambda *_: bytes(32))
    for side in (sums, sum_seller):  # room for the victim's larger integers
        monkeypatch.setattr(side, "largest_share", lambda *_: 2**34)
    sent, opened, _ = attacked(monkeypatch, unequal)
    promised = math.sqrt(CLIENTS * 2 / 3) * integer_noise.noise_deviation(3)
    assert float(np.std(opened - sent[VICTIM])) < 0.02 * promised  # all that hides the victim's share


def test_unequal_digits_are_refused_before_anything_is_spent(monkeypatch):
    """The terms of the sum, which all sellers signed their keys for, name the digits of everybody's noise."""
    sent, opened, grid = attacked(monkeypatch, unequal)
    assert set(sent) == OTHERS
    assert reasons(grid) == {"cohort"}
    np.testing.assert_array_equal(opened, sum(sent.values()))


def test_integers_that_the_sum_cannot_carry_are_refused_before_training(monkeypatch):
    """A server that says a small bound would have the noise cut off with the rest."""
    monkeypatch.setattr(sums, "largest_share", lambda *_: 1000)
    sent, opened, grid = attacked(monkeypatch)
    assert (sent, opened) == ({}, None)
    assert reasons(grid) == {"noise"}


# The parity of a sum: a share above 2^24 in float32 is even, and the sum of even numbers tells who was odd.


def parity(member, seed, grid, sums, broken):
    """The last bit of one coordinate of the sum over 64 sellers, of which the first holds the record or not."""
    total = 0
    for seller, known in enumerate(sums):
        value = np.array([known + (member and seller == 0)], dtype=np.float32)
        source = NoiseSource.from_seed(seed, seller)
        if broken:
            out = np.empty(1, dtype=np.float32)
            ReleaseGrid(grid.spacing, grid.levels).noisy(value, source, out, 1.0 / grid.spacing)
            total += int(out[0])
        else:
            total += int(grid.noisy_integers(value, source)[0])
    return total % 2


@pytest.mark.parametrize("broken", [True, False])
def test_the_last_bit_of_a_sum_tells_nothing(broken):
    """All others hold sums above 2^24 steps; the record lifts the victim's above it, too."""
    plan = SharedSum.plan([1.0] * 64, 600.0, clip_norm=1.0, parameters=1, honest_share=1.0)
    grid = plan.grid(0)
    border = 2.0**24 * grid.spacing
    sums = [border - 0.5, *[border + 2.0] * 63]
    odd = [sum(parity(member, seed, grid, sums, broken) for seed in range(16)) for member in (True, False)]
    if broken:
        assert odd[0] == 0  # even, always
        assert odd[1] > 0
    else:
        assert min(odd) > 0


def test_a_share_of_a_modular_sum_is_an_exact_integer():
    plan = SharedSum.plan([1.0] * 64, 600.0, clip_norm=1.0, parameters=1000, honest_share=1.0)
    sums = np.full(1000, 500.0, dtype=np.float32)
    integers = plan.grid(0).noisy_integers(sums, NoiseSource.from_seed(1))
    assert int(integers.max()) > 2**24
    assert 300 < int((integers % 2).sum()) < 700
    shares = np.stack([integers, integers])
    np.testing.assert_array_equal(modular_sum(shares, plan.bits), 2 * integers)


def test_more_shares_and_weights_than_the_proof_covers_are_refused():
    with pytest.raises(PrivacyError, match="2\\^30"):
        SharedSum.plan([1.0] * 2000, 10.0, clip_norm=1.0, parameters=10_000_000, honest_share=1.0)
