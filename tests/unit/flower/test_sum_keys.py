"""Keys that two sellers agree on, and what is sealed under them."""

import hashlib

import pytest

from privmarket.flower import sum_keys
from privmarket.flower.sum_keys import BadKeyError, KeyPair, check_public_key, seal, unseal

ALICE = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"
BOB = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
FIELD = 2**255 - 19
# Every writing of a point whose order divides 8: its coordinate plus multiples of the field's size and the top bit.
SMALL = sorted(
    {
        (value + times * FIELD + top).to_bytes(32, "little")
        for value in sum_keys._SMALL_ORDER
        for times in (0, 1)
        for top in (0, 2**255)
        if value + times * FIELD < 2**255
    }
)


def test_both_sides_agree_and_others_do_not():
    one, other, third = KeyPair.new(), KeyPair.new(), KeyPair.new()
    assert one.agreed(other.public) == other.agreed(one.public) == KeyPair.read(one.secret).agreed(other.public)
    assert len({one.agreed(other.public), one.agreed(third.public), other.agreed(third.public)}) == 3


def test_the_shared_secret_is_rfc_7748_s():
    """The example of section 6.1, and the hash that we take of it."""
    alice = KeyPair.read(bytes.fromhex(ALICE))
    bob = KeyPair.read(bytes.fromhex(BOB))
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    keys = b"".join(sorted((alice.public, bob.public)))
    expected = hashlib.sha256(b"privmarket sum 2 agreed key\x00" + keys + shared).digest()
    assert alice.agreed(bob.public) == bob.agreed(alice.public) == expected


@pytest.mark.parametrize("key", SMALL, ids=lambda key: key.hex()[:8] + key.hex()[-4:])
def test_points_of_small_order_are_refused(key):
    """By the list, and by the agreement itself: every one of them gives a secret of zeros."""
    with pytest.raises(BadKeyError, match="the same secret"):
        check_public_key(key)
    with pytest.raises(BadKeyError, match="the same secret"):
        KeyPair.new().agreed(key)


def test_the_list_of_small_orders_is_whole():
    """Eight times a point is the neutral one: as many coordinates as the curve and its twist have such points."""
    assert len(sum_keys._SMALL_ORDER) == 5  # order 2: 0; order 4: 1 and −1; order 8: two more
    assert len(SMALL) == 14


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), b"-----BEGIN PUBLIC KEY-----" * 8])
def test_a_key_of_another_length_is_refused(key):
    with pytest.raises(BadKeyError, match="another version"):
        check_public_key(key)
    with pytest.raises(BadKeyError):
        KeyPair.new().agreed(key)


def test_another_writing_of_a_key_agrees_on_another_key():
    """X25519 does not look at the top bit: the secret is the same, the key that we take of it is not."""
    one, other = KeyPair.new(), KeyPair.new()
    copied = other.public[:-1] + bytes([other.public[-1] ^ 0x80])
    check_public_key(copied)
    assert one.agreed(copied) != one.agreed(other.public)


def test_ordinary_keys_pass():
    for _ in range(20):
        check_public_key(KeyPair.new().public)


def test_what_is_sealed_opens_only_under_its_key_and_unchanged():
    key, other = KeyPair.new().secret, KeyPair.new().secret
    sealed = seal(key, b"pieces")
    assert unseal(key, sealed) == b"pieces"
    assert seal(key, b"pieces") != sealed  # a new nonce
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for where, text in ((other, sealed), (key, changed), (key, sealed[:11]), (key, b""), (key, sealed[1:])):
        with pytest.raises(BadKeyError, match="not sealed"):
            unseal(where, text)
