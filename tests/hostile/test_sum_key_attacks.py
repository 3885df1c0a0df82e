"""Public keys of a secure sum that are not what they should be: points of small order, copies, another version.

The subject kept broken on purpose takes whatever X25519 gives for an agreed key. Against it a server that shows
the victim keys of small order instead of the others' knows every mask of the victim; and a colluder that hands in
another seller's key, written in another way, has masks cancel between two honest sellers.
"""

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from flwr.app import ConfigRecord
from flwr.common.secure_aggregation.secaggplus_utils import (
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)

from privmarket.flower import key_pieces, masks, secure_seller, sum_keys, sum_replies
from privmarket.flower.cohort import Cohort, Member, masking_digest
from privmarket.flower.sum_keys import PROTOCOL, KeyPair
from tests.hostile.test_secure_sums import OTHERS, STEPS, VICTIM, at, attacked, gullible, reasons  # noqa: F401
from tests.unit.flower.test_sum_keys import SMALL
from tests.unit.flower.toy import START

COHORT = "privmarket-cohort"
SHAPES = [(1,), *(array.shape for array in START.values())]
NODES = sorted(OTHERS | {VICTIM})


def unchecked(self, other):
    """What two sellers agree on for a client that takes whatever comes, zeros too."""
    try:
        shared = self.private.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        shared = bytes(32)
    return hashlib.sha256(shared).digest()


class ShowsSmallOrders:
    """A server that shows the victim a list in which all others' keys are points of small order."""

    def __init__(self):
        self.keys = {node: SMALL[2 * i : 2 * i + 2] for i, node in enumerate(sorted(OTHERS))}
        self.known = hashlib.sha256(bytes(32)).digest()  # what a gullible client "agrees" on with any of them
        self.pieces, self.masked, self.state, self.stage = [], None, {}, None

    def tamper(self, message):
        configs = message.content.config_records.get(STEPS)
        mine = configs is not None and message.metadata.dst_node_id == VICTIM
        self.stage = configs.get("stage") if mine else None
        if self.stage == "setup":
            self.state = dict(configs)
        elif self.stage == "share_keys":
            shown = Cohort.read(message.content.config_records[COHORT]["list"])
            others = [Member(n, shown.by_node[n].signing, masking_digest(self.keys[n])) for n in OTHERS]
            listed = Cohort.of([*others, shown.by_node[VICTIM]]).write()
            message.content[COHORT] = ConfigRecord({"list": listed})  # the others are shown their own
            configs.update({str(node): keys for node, keys in self.keys.items()})
        elif self.stage == "collect_masked_vectors":
            piece = bytes(key_pieces.PIECE_BYTES)
            sources = configs["srcs"]
            configs["ctxts"] = [
                sum_keys.seal(self.known, share_keys_plaintext_concat(s, VICTIM, piece, piece)) for s in sources
            ]

    def after(self, reply):
        if self.stage is None or reply.has_error():
            return
        record = reply.content.config_records[STEPS]
        if self.stage == "share_keys":
            sealed = [sum_keys.unseal(self.known, text) for text in record["ctxts"]]
            self.pieces = [share_keys_plaintext_separate(text)[2] for text in sealed]
        elif self.stage == "collect_masked_vectors":
            self.masked = list(record["masked_params"])

    def uncovered(self):
        """The victim's vector, from what the server made and saw; nobody else had to answer anything."""
        modulus = self.state["mod_range"]
        vector = [masks.unpacked(part, shape, modulus) for part, shape in zip(self.masked, SHAPES, strict=True)]
        own = masks.strong_masks(key_pieces.restore(self.pieces), modulus, SHAPES)
        pairwise = masks.strong_masks(self.known, modulus, SHAPES)
        sign = sum(1 if node < VICTIM else -1 for node in OTHERS)
        bare = [(v - a - sign * b) % modulus for v, a, b in zip(vector, own, pairwise, strict=True)]
        return np.concatenate([array.ravel() for array in bare[1:]]) - int(self.state["clipping_range"])


def test_keys_of_small_order_uncover_a_gullible_seller(monkeypatch, gullible):  # noqa: F811
    """Before any survivor has signed anything: all of its masks are known, and so are the pieces of its seed."""
    monkeypatch.setattr(KeyPair, "agreed", unchecked)
    monkeypatch.setattr(secure_seller, "check_public_key", lambda key: None)
    server = ShowsSmallOrders()
    sent, _, _ = attacked(monkeypatch, server.tamper, server.after)
    np.testing.assert_array_equal(server.uncovered(), sent[VICTIM])


def test_keys_of_small_order_are_refused_before_any_order(monkeypatch):
    server = ShowsSmallOrders()
    sent, opened, grid = attacked(monkeypatch, server.tamper, server.after)
    assert reasons(grid) == {"cohort"}
    assert VICTIM not in sent
    assert server.pieces == []
    assert opened is not None  # enough others came through


@pytest.mark.parametrize("key", SMALL[:5], ids=lambda key: key.hex()[-6:])
def test_a_server_leaves_out_who_hands_in_such_a_key(key):
    """Else one seller could have all of its neighbours refuse the sum."""
    keys = {"pk1": KeyPair.new().public, "pk2": KeyPair.new().public, "signing_key": KeyPair.new().public}
    sum_replies.read_keys(ConfigRecord(keys))
    for name in ("pk1", "pk2"):
        with pytest.raises(sum_replies.BadReplyError, match="the same secret"):
            sum_replies.read_keys(ConfigRecord({**keys, name: key}))


def left_of_masks(between, victim, copy):
    """What masks leave on the vector of a seller whose number lies between those of the victim and of a copy."""
    modulus, shapes = 2**40, [(1000,)]
    one, other = (masks.strong_masks(between.agreed(key), modulus, shapes)[0] for key in (victim, copy))
    return (one - other) % modulus


def test_a_copied_key_makes_masks_cancel_for_who_hashes_the_bare_secret(monkeypatch):
    """X25519 does not look at the top bit: the copy is another text with the same secret for everybody."""
    seller, victim = KeyPair.new(), KeyPair.new()
    copy = victim.public[:-1] + bytes([victim.public[-1] ^ 0x80])
    assert left_of_masks(seller, victim.public, copy).any()  # the product: two different masks
    monkeypatch.setattr(KeyPair, "agreed", unchecked)
    assert not left_of_masks(seller, victim.public, copy).any()  # nothing is left of either


@pytest.mark.parametrize("version", [None, 1, PROTOCOL + 1, str(PROTOCOL), float(PROTOCOL + 1)])
def test_another_version_of_the_protocol_is_refused_before_keys_are_made(monkeypatch, version):
    change = at("setup", lambda configs: {"protocol": version}, set(NODES)) if version is not None else None

    def without(message):
        configs = message.content.config_records.get(STEPS)
        if configs is not None and configs.get("stage") == "setup":
            del configs["protocol"]

    sent, opened, grid = attacked(monkeypatch, change or without)
    assert reasons(grid) == {"message"}
    assert sent == {}
    assert opened is None


def test_a_seller_of_another_version_is_left_out(monkeypatch, caplog):
    """It answers with keys as version 1 wrote them; the others' sum is opened without it."""
    stage = []

    def tamper(message):
        configs = message.content.config_records.get(STEPS)
        stage[:] = [None if configs is None else configs.get("stage"), message.metadata.dst_node_id]

    def after(reply):
        if stage == ["setup", VICTIM]:
            reply.content.config_records[STEPS]["pk1"] = b"-----BEGIN PUBLIC KEY-----" + bytes(190)

    sent, opened, _ = attacked(monkeypatch, tamper, after)
    assert set(sent) == OTHERS
    np.testing.assert_array_equal(opened, sum(sent.values()))
    assert "another version of the secure sum?" in caplog.text


def test_masks_of_another_version_do_not_cancel(monkeypatch):
    now = masks.strong_masks(bytes(32), 2**40, [(100,)])[0]
    monkeypatch.setattr(masks, "PROTOCOL", PROTOCOL + 1)
    assert (masks.strong_masks(bytes(32), 2**40, [(100,)])[0] != now).all()


def test_a_drop_out_s_key_must_be_its_own(monkeypatch, caplog):
    """Pieces of another key than the one in the list would leave its masks in the total: the sum stays closed."""
    cut = key_pieces.cut
    made = []

    def other_key(secret, threshold, pieces):
        made.append(secret)  # seed and key in turn
        return cut(secret if len(made) % 2 else KeyPair.new().secret, threshold, pieces)

    monkeypatch.setattr(key_pieces, "cut", other_key)

    def vanishes(message):
        configs = message.content.config_records.get(STEPS)
        gone.append(
            configs is not None
            and configs.get("stage") == "collect_masked_vectors"
            and message.metadata.dst_node_id == VICTIM
        )

    gone = []

    def after(reply):
        if gone[-1]:
            reply.content.config_records[STEPS]["masked_params"] = []

    _, opened, _ = attacked(monkeypatch, vanishes, after)
    assert opened is None
    assert "another key than its own" in caplog.text
