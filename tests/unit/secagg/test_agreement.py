"""Keys that two sellers agree on, what is sealed under them, and signatures."""

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from privmarket.secagg import SigningIdentity, SumRefusal, _keys
from privmarket.secagg._keys import (
    Agreement,
    derived,
    is_usable,
    label,
    new_secret,
    public_of,
    seal,
    unseal,
    verifies,
)

ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
FIELD = 2**255 - 19
# Every writing of a point whose order divides 8: its coordinate plus multiples of the field's size and the top bit.
SMALL = sorted(
    {
        (value + times * FIELD + top).to_bytes(32, "little")
        for value in _keys._SMALL_ORDER
        for times in (0, 1)
        for top in (0, 2**255)
        if value + times * FIELD < 2**255
    }
)


def side(secret, purpose="masks", bound=b"sum"):
    return Agreement(secret, purpose, bound)


def test_both_sides_agree_and_others_do_not():
    one, other, third = new_secret(), new_secret(), new_secret()
    agreed = side(one).key_with(public_of(other))
    assert agreed == side(other).key_with(public_of(one))
    assert agreed != side(third).key_with(public_of(one))
    assert agreed != side(one, "channel").key_with(public_of(other))
    assert agreed != side(one, bound=b"another sum").key_with(public_of(other))


def test_the_secret_is_rfc_7748_s_under_hkdf():
    """The example of section 6.1; the key that we take is HKDF of it, written out here."""
    alice, bob = public_of(ALICE), public_of(BOB)
    assert alice.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    info = b"privmarket secure sum: masks\x00" + b"sum" + min(alice, bob) + max(alice, bob)
    expected = HKDF(SHA256(), 32, salt=None, info=info).derive(shared)
    assert side(ALICE).key_with(bob) == side(BOB).key_with(alice) == expected


def test_hkdf_is_rfc_5869_s():
    """Test case 3: no salt, no info."""
    okm = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    assert derived(b"\x0b" * 22, b"", 42).hex() == okm


@pytest.mark.parametrize("key", SMALL, ids=lambda key: key.hex()[:8] + key.hex()[-4:])
def test_points_of_small_order_are_refused(key):
    assert not is_usable(key)
    with pytest.raises(SumRefusal) as caught:
        side(ALICE).key_with(key)
    assert caught.value.cause == "keys"


def test_the_list_of_small_orders_is_whole():
    """As many coordinates as the curve and its twist have points whose order divides 8."""
    assert len(_keys._SMALL_ORDER) == 5  # order 2: 0; order 4: 1 and −1; order 8: two more
    assert len(SMALL) == 14


@pytest.mark.parametrize("key", [b"", bytes(31), b"k" * 33])
def test_a_key_of_another_length_is_refused(key):
    assert not is_usable(key)
    with pytest.raises(SumRefusal):
        side(ALICE).key_with(key)


def test_another_writing_of_a_key_agrees_on_another_key():
    """X25519 does not look at the top bit: the secret is the same, the key that we take of it is not."""
    bob = public_of(BOB)
    copied = bob[:-1] + bytes([bob[-1] ^ 0x80])
    assert is_usable(copied)
    assert side(ALICE).key_with(copied) != side(ALICE).key_with(bob)


def test_what_is_sealed_opens_only_under_its_key_unchanged_and_for_its_receiver():
    key, other = bytes(32), b"k" * 32
    sealed = seal(key, b"nonce nonce!", b"pieces", b"from 1 to 2")
    assert unseal(key, sealed, b"from 1 to 2") == b"pieces"
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for under, text, receiver in (
        (other, sealed, b"from 1 to 2"),
        (key, changed, b"from 1 to 2"),
        (key, sealed, b"from 2 to 1"),
        (key, sealed[:20], b"from 1 to 2"),
        (key, b"", b"from 1 to 2"),
    ):
        assert unseal(under, text, receiver) is None


def test_signatures():
    one = SigningIdentity.generate()
    signature = one.sign(label("keys") + b"x")
    assert verifies(one.public_key, signature, label("keys") + b"x")
    assert SigningIdentity(one.secret).public_key == one.public_key
    assert not verifies(one.public_key, signature, label("keys") + b"y")
    assert not verifies(SigningIdentity.generate().public_key, signature, label("keys") + b"x")
    assert not verifies(b"", signature, b"")
    assert not verifies(one.public_key, b"", b"")
