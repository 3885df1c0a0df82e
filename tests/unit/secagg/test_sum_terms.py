"""The public numbers of a sum: what follows from them, what is refused, who signed them."""

import math

import pytest

from privmarket.secagg import SumRefusal, exact_bits, survivors_needed
from tests.unit.secagg.parties import IDENTITIES, STRANGER, terms_of


def test_threshold_follows_from_sellers_and_share():
    terms = terms_of(12)
    assert (terms.sellers, terms.honest, terms.colluders, terms.threshold) == (12, 8, 2, 10)
    assert terms.threshold == survivors_needed(12, 2 / 3)
    terms.check()


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"members": ()}, "members"),
        ({"members": (bytes(31),)}, "members"),
        ({"members": tuple(one.public_key for one in IDENTITIES[6::-1])}, "members"),
        ({"members": (IDENTITIES[0].public_key,) * 2}, "members"),
        ({"honest_share": 0.0}, "terms"),
        ({"honest_share": 1.01}, "terms"),
        ({"honest_share": math.nan}, "terms"),
        ({"bits": 0}, "terms"),
        ({"bits": 63}, "terms"),
        ({"length": 0}, "terms"),
        ({"largest": 0}, "terms"),
        ({"bits": exact_bits(1000, 7) - 1}, "terms"),
        ({"binding": b""}, "terms"),
        ({"task": ""}, "terms"),
        ({"task": "t" * 1000}, "terms"),
    ],
)
def test_bad_terms_are_refused(changes, cause):
    with pytest.raises(SumRefusal) as caught:
        terms_of(**changes).check()
    assert caught.value.cause == cause


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "runs"},
        {"round": 1},
        {"members": tuple(one.public_key for one in IDENTITIES[1:8])},
        {"honest_share": 0.6},
        {"length": 6},
        {"bits": 20},
        {"largest": 999},
        {"binding": bytes(32)},
    ],
)
def test_digest_names_every_number(changes):
    assert terms_of(**changes).digest != terms_of().digest


def test_exact_bits_hold_the_largest_sum_and_no_bit_more():
    for sellers in (1, 3, 100):
        for largest in (1, 5, 127, 128, 10**9):
            bits = exact_bits(largest, sellers)
            assert sellers * largest < 2 ** (bits - 1) <= 2 * sellers * largest


def test_members_must_be_the_awarded_sellers():
    roster = terms_of().roster
    roster.check_members(set(roster.members))
    for awarded in (
        [*roster.members, STRANGER.public_key],
        roster.members[1:],
        [*roster.members[1:], STRANGER.public_key],
        [],
    ):
        with pytest.raises(SumRefusal) as caught:
            roster.check_members(awarded)
        assert caught.value.cause == "members"


def test_a_register_signs_exactly_one_roster():
    register = IDENTITIES[30]
    signature = terms_of().roster.signed_by(register)
    terms_of().roster.check_signature(register.public_key, signature)
    for terms, key, signed in (
        (terms_of(round=1), register.public_key, signature),
        (terms_of(6), register.public_key, signature),
        (terms_of(task="another"), register.public_key, signature),
        (terms_of(honest_share=0.5), register.public_key, signature),
        (terms_of(), STRANGER.public_key, signature),
        (terms_of(), register.public_key, b""),
    ):
        with pytest.raises(SumRefusal, match="not signed"):
            terms.roster.check_signature(key, signed)
