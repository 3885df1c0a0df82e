"""Pieces of keys: any `threshold` of them restore the key, fewer fit every key alike."""

import itertools
import random

import pytest

from privmarket.flower import key_pieces
from privmarket.flower.key_pieces import cut, restore

PEM = 306  # bytes of the private key that Flower has its clients cut


@pytest.mark.parametrize("length", [0, 1, 32, 60, 61, 64, PEM])
@pytest.mark.parametrize(("threshold", "pieces"), [(1, 1), (1, 3), (2, 3), (7, 10), (57, 69)])
def test_any_threshold_of_pieces_restore_the_key(length, threshold, pieces):
    secret, rng = random.Random(length).randbytes(length), random.Random(threshold)
    made = cut(secret, threshold, pieces)
    assert len({piece[:4] for piece in made}) == pieces
    for _ in range(3):
        some = rng.sample(made, threshold)
        assert restore(some) == restore(some, threshold) == secret
    assert restore(made) == restore(made, threshold) == secret


def test_every_choice_of_three_pieces_restores_the_same_key():
    made = cut(b"\xff" * 64, 3, 6)
    assert {restore(some) for some in itertools.permutations(made, 3)} == {b"\xff" * 64}


def test_fewer_pieces_do_not():
    made = cut(bytes(PEM), 5, 9)
    for some in itertools.combinations(made, 4):
        with pytest.raises(ValueError, match="do not restore"):
            restore(some)
    with pytest.raises(ValueError, match="4 pieces of a key that needs 5"):
        restore([*made[:4], made[0]], 5)


def test_fewer_pieces_fit_every_key_alike():
    """For one piece less than needed there is, for each key, exactly one further piece that completes it."""
    first, other = b"the key", b"another"
    prime, made = key_pieces._PRIME, cut(first, 3, 3)
    constants = {key: int.from_bytes(len(key).to_bytes(4, "little") + key, "little") for key in (first, other)}
    factors = key_pieces._factors_at_zero([1, 2, 3])
    values = [int.from_bytes(piece[4:], "little") for piece in made]
    shift = (constants[other] - constants[first]) * pow(factors[2], -1, prime)
    forged = made[2][:4] + ((values[2] + shift) % prime).to_bytes(66, "little")
    assert restore(made) == first
    assert restore([*made[:2], forged]) == other


def test_pieces_are_drawn_anew_and_look_uniform():
    """Pieces of all zeros and of all ones look alike: the top bit of a value is set in half of each."""
    for secret in (bytes(60), b"\xff" * 60):
        tops = [int.from_bytes(piece[4:], "little") >> 520 for _ in range(200) for piece in cut(secret, 2, 5)]
        assert abs(sum(tops) / len(tops) - 0.5) < 0.1  # more than six deviations


def test_damaged_and_mixed_pieces_are_refused():
    made, others = cut(bytes(PEM), 3, 5), cut(bytes(32), 3, 5)
    with pytest.raises(ValueError, match="different keys"):
        restore([*made[:2], others[2]])
    with pytest.raises(ValueError, match="cut short"):
        restore([piece[:-1] for piece in made])
    with pytest.raises(ValueError, match="do not restore"):
        restore([*made[:2], made[2][:-3] + b"abc"])
    with pytest.raises(ValueError, match="number 0"):
        restore([*made[:2], bytes(4) + made[2][4:]])
    with pytest.raises(ValueError, match="different keys"):
        restore([])


@pytest.mark.parametrize(("threshold", "pieces"), [(0, 3), (4, 3)])
def test_a_threshold_that_nobody_can_meet_is_refused(threshold, pieces):
    with pytest.raises(ValueError, match="cannot restore"):
        cut(b"k", threshold, pieces)


@pytest.mark.parametrize(
    "numbers", [[1], [1, 2, 3], [2, 3, 5, 9], [7, 1, 4], list(range(3, 60, 2)), [1, 2**32 - 1]]
)
def test_factors_by_factorials_are_those_one_by_one(numbers):
    """Also for numbers that no honest seller's piece has, for which the slow way is taken."""
    assert key_pieces._factors_at_zero(numbers) == key_pieces._factors_one_by_one(numbers)
