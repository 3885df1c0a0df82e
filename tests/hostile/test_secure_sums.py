"""A malicious server under aggregate trust: it wants one seller's share, which carries only a part of the noise.

The subject kept broken on purpose is a client that runs Flower's SecAgg+ without holding the server's steps
against its offer. Against it each attack reads the victim's integers, or takes the others' noise off them; the
product sends nothing, or a sum that nobody can open.
"""

import math

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

import privmarket as pm
from privmarket.errors import PrivacyError
from privmarket.federated.shares import SharedSum, modular_sum
from privmarket.flower import guard, key_pieces, masks, secure, secure_seller, sum_server, wire
from privmarket.flower.sum_keys import KeyPair
from privmarket.privacy import integer_noise
from privmarket.privacy.noise import NoiseSource
from privmarket.privacy.release import ReleaseGrid
from tests.unit.flower.toy import CLIENTS, START, Wire, client, server

STEPS, VICTIM, COLLUDER = "secaggplus_configs", 1001, 1002
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
    add_up = secure.secure_sum

    def noted(*arguments):
        deliveries, total = add_up(*arguments)
        opened.append(total)
        return deliveries, total

    monkeypatch.setattr(secure, "secure_sum", noted)
    app = client(share=ones, secure_aggregation=True, data_size=float(RECORDS))
    grid = Wire(app, tamper=tamper, after=after)
    market = server(
        trust="aggregate", mechanism="ration", mechanism_settings={"unit_price": 0.9}, rounds=1, budget=40.0
    )
    pm.flower.run_in_process(market, app, CLIENTS, grid=grid)
    flat = None if opened[0] is None else np.concatenate([a.ravel() for a in opened[0].values()])
    return ones.sent, flat, grid


def reasons(grid):
    return {reason for context in grid.contexts.values() for reason in guard.refusals(context)}


def at(stage, change, nodes):
    """A server that changes the settings of one stage of its protocol, for some nodes."""

    def tamper(message):
        configs = message.content.config_records.get(STEPS)
        if configs is None or configs.get("stage") != stage or message.metadata.dst_node_id not in nodes:
            return None
        content = RecordDict({**message.content, STEPS: ConfigRecord({**configs, **change(dict(configs))})})
        return Message(content, message.metadata.dst_node_id, wire.TRAIN)

    return tamper


@pytest.fixture
def gullible(monkeypatch):
    """Flower's client as it comes: whatever the server's steps say is done."""
    for check in ("_check_integers", "_check_sources"):
        monkeypatch.setattr(secure_seller, check, lambda *_: None)
    for side in (secure, secure_seller):
        monkeypatch.setattr(side, "largest_share", lambda *_: 2**27)
    for side in (sum_server, secure_seller):
        monkeypatch.setattr(side, "public_numbers", lambda *_: b"")
    monkeypatch.setattr(sum_server.SumServer, "_cancels", lambda *_: True)
    monkeypatch.setattr(secure_seller.SecureClientApp, "__call__", secure_seller.ClientApp.__call__)


def test_an_honest_sum_is_the_sum(monkeypatch):
    sent, opened, grid = attacked(monkeypatch)
    assert len(sent) == CLIENTS
    np.testing.assert_array_equal(opened, sum(sent.values()))
    assert reasons(grid) == set()


# Without a mask: Flower hands "train.default" to the handler of "train", and SecAgg+ passes it through.


def another_type():
    """A server that asks for shares under another name, and keeps what comes back."""
    bare, asked = {}, []

    def tamper(message):
        configs = message.content.config_records.get(STEPS)
        asked.append(message)
        if configs is not None and configs.get("stage") == "collect_masked_vectors":
            asked[-1] = Message(message.content, message.metadata.dst_node_id, "train.default")
        return asked[-1]

    def after(reply):
        if asked[-1].metadata.message_type != "train.default":
            return None
        if not reply.has_error():
            arrays = [a.numpy() for a in reply.content.array_records["fitres.parameters"].values()]
            bare[reply.metadata.src_node_id] = np.concatenate([a.ravel() for a in arrays])
        return Message(Error(0, "the honest code behind this server could not read it"), reply_to=asked[-1])

    return bare, tamper, after


def test_a_message_of_another_type_leaves_unmasked_from_a_gullible_client(monkeypatch, gullible):
    bare, tamper, after = another_type()
    sent, _, _ = attacked(monkeypatch, tamper, after)
    np.testing.assert_array_equal(bare[VICTIM], sent[VICTIM])


def test_a_message_of_another_type_gets_nothing(monkeypatch):
    bare, tamper, after = another_type()
    sent, _, grid = attacked(monkeypatch, tamper, after)
    assert (bare, sent) == ({}, {})
    assert reasons(grid) == {"message"}


# Others silenced: Flower scales, clips and quantises before it masks, as the server says.

OTHERS = {1000 + i for i in range(CLIENTS)} - {VICTIM}


def test_silenced_sellers_leave_the_victim_alone_with_its_own_noise(monkeypatch, gullible):
    sent, opened, _ = attacked(monkeypatch, at("setup", SILENCING["scaled to nothing"], OTHERS))
    np.testing.assert_array_equal(opened, sent[VICTIM])  # the "sum" is one seller's share


SILENCING = {
    "scaled to nothing": lambda configs: {"max_weight": 1e30},
    "scaled up": lambda configs: {"max_weight": 0.5},
    "cut off": lambda configs: {"clipping_range": 1.0},
    "cut off, in steps of one": lambda configs: {"clipping_range": 1.0, "target_range": 2},
    "coarse steps": lambda configs: {"target_range": configs["target_range"] // 1024},
    "a modulus that wraps": lambda configs: {"mod_range": 2},
    "overflow": lambda configs: {"clipping_range": 2.0**55, "target_range": 2**56, "mod_range": 2**62},
    "no number": lambda configs: {"clipping_range": math.nan},
}


@pytest.mark.parametrize("name", SILENCING)
def test_settings_that_silence_a_seller_are_refused(name, monkeypatch):
    sent, opened, grid = attacked(monkeypatch, at("setup", SILENCING[name], OTHERS))
    assert opened is None
    assert set(sent) <= {VICTIM}
    assert reasons(grid) <= {"noise", "failed"}
    assert "noise" in reasons(grid)


# Unequal noise: the victim is told of three digits, and weighted for them; the others add two.


def unequal(message):
    config = message.content.config_records.get("fitins.config")
    if config is not None and message.metadata.dst_node_id == VICTIM:
        more = integer_noise.deviation(3) / integer_noise.deviation(2)
        config["levels"], config["weight"] = 3, config["weight"] * more * 0.99


def test_unequal_digits_take_the_others_noise_away_from_a_gullible_client(monkeypatch, gullible):
    sent, opened, _ = attacked(monkeypatch, unequal)
    promised = math.sqrt(CLIENTS * 2 / 3) * integer_noise.deviation(3)
    assert float(np.std(opened - sent[VICTIM])) < 0.02 * promised  # all that hides the victim's share


def test_unequal_digits_give_a_sum_that_nobody_can_open(monkeypatch):
    """Masks are bound to the number of digits: what comes out is uniform, whatever the shares were."""
    for side in (secure, secure_seller):  # room for the victim's larger integers
        monkeypatch.setattr(side, "largest_share", lambda *_: 2**27)
    sent, opened, _ = attacked(monkeypatch, unequal)
    assert set(sent) == OTHERS | {VICTIM}
    assert opened is None or float(np.abs(opened - sum(sent.values())).max()) > 2.0**26


# One seller's mask instead of many: the victim is shown one colluder again and again.


def one_colluder(configs):
    place = configs["srcs"].index(COLLUDER)
    return {name: [configs[name][place]] * len(configs[name]) for name in ("srcs", "ctxts")}


def uncovered(grid, replies):
    """The victim's vector without its masks, from what the server saw and what the colluder knows."""
    shares = []
    for answer in replies["unmask"].values():
        shares += [s for node, s in zip(answer["nids"], answer["shares"], strict=True) if node == VICTIM]
    state = grid.contexts[COLLUDER].state.config_records["secaggplus_state"]
    public_key = replies["setup"][VICTIM]["pk1"]
    shared = KeyPair.read(state["sk1"]).agreed(public_key)
    shapes, modulus = [(1,), *(array.shape for array in START.values())], state["mod_range"]
    sent = replies["collect_masked_vectors"][VICTIM]["masked_params"]
    vector = [masks.unpacked(part, shape, modulus) for part, shape in zip(sent, shapes, strict=True)]
    own = masks.strong_masks(key_pieces.restore(shares), modulus, shapes)
    pairwise = masks.strong_masks(shared, modulus, shapes)
    times = len(OTHERS)  # added where the own number is larger, else subtracted: here it is smaller
    bare = [(v - a + times * b) % modulus for v, a, b in zip(vector, own, pairwise, strict=True)]
    return np.concatenate([array.ravel() for array in bare[1:]]) - int(state["clipping_range"])


def replies_by_stage():
    """stage → node → what it answered; and the tamper and after that keep it."""
    replies, last = {}, []

    def keep(message):
        configs = message.content.config_records.get(STEPS)
        last[:] = [None if configs is None else configs.get("stage")]

    def after(reply):
        if last[0] and not reply.has_error():
            node = reply.metadata.src_node_id
            replies.setdefault(last[0], {})[node] = dict(reply.content.config_records[STEPS])

    return replies, keep, after


@pytest.mark.parametrize("kind", ["gullible", "product"])
def test_one_colluder_named_many_times_does_not_uncover_a_vector(kind, monkeypatch, request):
    if kind == "gullible":
        request.getfixturevalue("gullible")
    replies, keep, after = replies_by_stage()
    name_it = at("collect_masked_vectors", one_colluder, {VICTIM})

    def tamper(message):
        keep(message)
        return name_it(message)

    sent, _, grid = attacked(monkeypatch, tamper, after)
    if kind == "gullible":
        np.testing.assert_array_equal(uncovered(grid, replies), sent[VICTIM])
    else:
        assert VICTIM not in sent
        assert reasons(grid) == {"message"}


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
