"""Pieces of a secret: any `threshold` of them restore it, fewer fit every secret alike."""

import itertools
import os
import random

import numpy as np
import pytest

from privmarket.secagg import _shamir
from privmarket.secagg._shamir import PIECE_BYTES, SECRET_BYTES, piece_number, restore, split

ONES = b"\xff" * SECRET_BYTES


def values_of(piece):
    """(limbs,) what a piece holds beside its number."""
    return np.frombuffer(piece, dtype="<u2")[1:].astype(int)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("threshold", "pieces"), [(1, 1), (1, 3), (2, 3), (7, 10), (57, 75), (129, 171)])
def test_any_threshold_of_pieces_restore_the_key(seed, threshold, pieces):
    rng = random.Random(seed)
    secret = rng.randbytes(SECRET_BYTES)
    made = split(secret, threshold, pieces)
    assert {len(piece) for piece in made} == {PIECE_BYTES}
    assert len({piece[:2] for piece in made}) == pieces
    some = rng.sample(made, threshold)
    assert restore(some) == secret
    assert restore(made[:threshold]) == secret
    assert [piece_number(piece) for piece in made] == list(range(1, pieces + 1))


@pytest.mark.parametrize("secret", [bytes(SECRET_BYTES), ONES, bytes(range(32))])
def test_every_choice_of_three_pieces_restores_the_same_key(secret):
    assert {restore(some) for some in itertools.permutations(split(secret, 3, 6), 3)} == {secret}


def test_values_are_those_of_polynomials_whose_constant_term_is_the_secret():
    """By whole numbers of any size, where the product of matrices is in floating point."""
    made, prime = split(ONES, 150, 200), _shamir._PRIME
    points = [(int.from_bytes(piece[:2], "little"), values_of(piece)) for piece in made]
    chosen = points[:150]
    for at_zero_or_later in (0, points[-1][0]):
        total = [0] * _shamir._LIMBS
        for x, values in chosen:
            above = below = 1
            for other, _ in chosen:
                if other != x:
                    above, below = above * (at_zero_or_later - other), below * (x - other)
            factor = above % prime * pow(below, -1, prime)
            total = [(t + factor * int(v)) % prime for t, v in zip(total, values, strict=True)]
        expected = _shamir._limbs(ONES) if at_zero_or_later == 0 else points[-1][1]
        assert total == list(expected)


def test_fewer_pieces_do_not():
    """All limbs would have to fit a secret by chance: 2^−32 for each of 126 choices."""
    made = split(bytes(SECRET_BYTES), 5, 9)
    assert {restore(some) for some in itertools.combinations(made, 4)} == {None}


def test_fewer_pieces_fit_every_key_alike():
    """For one piece less than needed there is, for each key, exactly one further piece that completes it."""
    prime, made = _shamir._PRIME, split(bytes(SECRET_BYTES), 3, 3)
    last = int(_shamir._factors_at_zero((1, 2, 3))[2])
    shift = _shamir._limbs(ONES) * pow(last, -1, prime)
    forged = np.concatenate([[3], (values_of(made[2]) + shift) % prime]).astype("<u2").tobytes()
    assert restore(made) == bytes(SECRET_BYTES)
    assert restore([*made[:2], forged]) == ONES


def test_pieces_are_drawn_anew_and_look_uniform():
    """Pieces of all zeros and of all ones look alike: each tenth of the field holds a tenth of the values."""
    for secret in (bytes(SECRET_BYTES), ONES):
        found = np.concatenate([values_of(piece) for _ in range(200) for piece in split(secret, 2, 5)])
        counts, _ = np.histogram(found, bins=10, range=(0, _shamir._PRIME))
        assert np.abs(counts / found.size - 0.1).max() < 0.02  # 6.5 deviations: once in 10⁹ runs


def test_a_scheme_without_random_coefficients_would_not_look_uniform(monkeypatch):
    """The subject broken on purpose for the test above: pieces then are the secret."""
    monkeypatch.setattr(_shamir, "_uniform", lambda rows, _: np.zeros((rows, _shamir._LIMBS)))
    assert set(values_of(split(bytes(SECRET_BYTES), 3, 5)[0])) == {0}


@pytest.mark.parametrize("numbers", [(1,), (1, 2, 3), (2, 3, 5, 9), (7, 1, 4), (*range(3, 60, 2),), (1, 65_520)])
def test_factors_by_logarithms_are_those_of_lagrange(numbers):
    expected, prime = [], _shamir._PRIME
    for own in numbers:
        above = below = 1
        for other in numbers:
            if other != own:
                above, below = above * other, below * (other - own)
        expected.append(above % prime * pow(below, -1, prime) % prime)
    assert _shamir._factors_at_zero(numbers).tolist() == expected


def test_every_number_but_zero_has_its_logarithm():
    logarithms, powers = _shamir._logarithms(), _shamir._generator_powers()
    assert sorted(powers.tolist()) == list(range(1, _shamir._PRIME))
    assert np.array_equal(powers[logarithms[1:]], np.arange(1, _shamir._PRIME))


def test_random_elements_fill_the_field_and_stay_in_it():
    drawn = _shamir._uniform(120_000, os.urandom)  # one of the two ends is missing in one run of 10^14
    assert drawn.shape == (120_000, _shamir._LIMBS)
    assert drawn.max() == _shamir._PRIME - 1
    assert drawn.min() == 0


def test_damaged_and_mixed_pieces_are_refused():
    made, others = split(bytes(SECRET_BYTES), 3, 5), split(ONES, 3, 5)
    bad = {
        "cut short": [piece[:-1] for piece in made[:3]],
        "longer": [*made[:2], made[2] + b"x"],
        "of another secret": [*made[:2], others[2]],
        "overwritten": [*made[:2], made[2][:2] + b"ab" * _shamir._LIMBS],  # unnoticed once in 2^32
        "outside the field": [*made[:2], made[2][:-2] + b"\xff\xff"],
        "number 0, which would be the secret itself": [*made[:2], bytes(2) + made[2][2:]],
        "one twice": [made[0], made[0], made[1]],
        "none": [],
    }
    assert {name: restore(pieces) for name, pieces in bad.items()} == dict.fromkeys(bad)
    assert piece_number(b"") == piece_number(made[0][:-1]) == 0


@pytest.mark.parametrize(("threshold", "pieces"), [(0, 3), (4, 3), (2, 65_521)])
def test_a_threshold_that_nobody_can_meet_is_refused(threshold, pieces):
    with pytest.raises(ValueError, match="cannot restore"):
        split(ONES, threshold, pieces)


@pytest.mark.parametrize("secret", [b"", b"k", bytes(31), bytes(33)])
def test_a_secret_of_another_length_is_refused(secret):
    with pytest.raises(ValueError, match="a secret of"):
        split(secret, 2, 3)
