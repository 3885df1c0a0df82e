"""The release kernel: a clipped sum goes in, integers on a public grid with exact noise come out.

Every update that a client releases is made here. Let γ be the grid's spacing, S the computed sum, u a uniform
dither and N integer noise (`_noise`). What is released is K + N with K = ⌊S/γ + u⌋, or γ·(K + N) as float32.
Whatever is computed afterwards depends on the records through K + N only, so it is post-processing.

Finite arithmetic is paid for here, by a little more noise than σ·C:

- a record moves the *computed* sum by at most C·(1 + e), e = `sum_inflation` (float32 blocks, float64 totals);
- randomised rounding to the grid widens that to `rounded_sensitivity`, except with probability 2^−80;
- γ is chosen such that the noise's deviation is σ times the whole, which makes the release exactly a Gaussian
  release of noise multiplier σ, up to a total-variation distance of `release_distance`.

Proof: docs/theory/finite-arithmetic.md.
Implements: rounding to a grid before noise, against the attacks of [Mironov2012] and [HaneyEtAl2022].
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from privmarket.errors import PrivacyError
from privmarket.privacy._noise import (
    CHUNK,
    DEVIATIONS,
    DISTANCE,
    MAX_LEVELS,
    MIN_LEVELS,
    RADIX,
    Words,
    draw_digits,
    noise_deviation,
)

# `exact`: integers on a grid, as proved. `float`: floating-point noise on floating-point sums, for experiments.
FLOAT_WARNING = "not private in floating point"

# How many contributions one float32 product adds up, and how many such blocks are added in float32 before the
# total is continued in float64; see `sum_inflation`.
BLOCK_RECORDS = 120
BLOCKS_IN_FLOAT32 = 5
# Rounding to the grid may add this share to the sensitivity. Digits of noise are added until it does not add
# more.
GRID_SHARE = 2.0**-10
# The probability with which, after dithering, neighbours are further apart than `rounded_sensitivity` says.
DITHER_FAILURE = 2.0**-80
_DITHER_BITS = 16
# The contributions of a person's records may be this many times C on average, before they cancel each other.
CANCELLATION = 64.0
# Clip norms outside this range could meet float32's underflow or overflow.
CLIP_NORM_RANGE = (2.0**-40, 2.0**40)

Out = TypeVar("Out", NDArray[np.float32], NDArray[np.int64])

_UNIT32 = 2.0**-24
# What float64 adds per record when S is divided by γ, and what underflow may add anywhere.
_DIVIDING = 2.0**-51
_UNDERFLOW = 2.0**-40


class _Buffers:
    """Arrays for the intermediate numbers of one chunk, in one precision."""

    def __init__(self, dtype: type[np.floating]) -> None:
        self.values = np.empty(CHUNK, dtype=dtype)
        self.spare = np.empty(CHUNK, dtype=dtype)
        self.digit = np.empty(CHUNK, dtype=dtype)


class _Workspace(threading.local):
    """The buffers of both precisions, one set per thread."""

    def __init__(self) -> None:
        self.single = _Buffers(np.float32)
        self.double = _Buffers(np.float64)


_WORKSPACE = _Workspace()


@lru_cache(maxsize=4096)
def sum_inflation(records: int, block_records: int = BLOCK_RECORDS) -> float:
    """e: one record moves the clipped sum, as computed in finite arithmetic, by at most C·(1 + e).

    Args:
        records: how many records the client holds (public).
        block_records: the most contributions that one float32 product adds up.

    A block of b contributions of norm ≤ C is off by at most b·u/(1 − b·u)·b·C, u = 2^−24, in any order of addition.
    Neighbours differ in one block only, so this error counts twice, not once per block. Up to five blocks are then
    added in float32, and a sum of at most five is divided by γ in float32; everything else is float64.
    """
    unit = block_records * _UNIT32
    in_block = 2.0 * block_records * unit / (1.0 - unit)
    among_blocks = 2.0 * (BLOCKS_IN_FLOAT32 - 1) * _UNIT32 * 1.01 * BLOCKS_IN_FLOAT32 * block_records
    onto_grid = 6.0 * _UNIT32 * min(records, BLOCKS_IN_FLOAT32 * block_records)
    totals = 2.0 * records / block_records + 2.0
    in_total = 1.01 * totals * records * 2.0**-52
    return in_block + among_blocks + onto_grid + in_total + (records * _DIVIDING + _UNDERFLOW)


def double_sum_inflation(records: int, block_records: int = 4096) -> float:
    """The bound of `sum_inflation` for products and sums in float64, in blocks of any size.

    If a person's records are clipped together, they may be large one by one and cancel each other: the norms of all
    contributions may add up to `CANCELLATION` times the number of records times C.
    """
    blocks = 2.0 * records / block_records + 2.0
    in_sums = 1.01 * (block_records + blocks) * records * 2.0**-52
    return CANCELLATION * in_sums + (records * _DIVIDING + _UNDERFLOW)


def covered_records(records: int) -> int:
    """The number of records that a release's grid is made for: 2^20, or the next power of two above `records`.

    Whoever sees many released numbers can find the grid's spacing, and the spacing depends on the number of records
    through `sum_inflation`. This way it is the same for all clients of up to 2^20 records, which costs at most
    0.03 % more noise.
    """
    return max(1 << 20, 1 << max(0, records - 1).bit_length())


def rounded_sensitivity(sensitivity: float, parameters: int) -> float:
    """The distance of neighbours after randomised rounding, in grid steps, if it was `sensitivity` steps before.

    Rounding both with the same dither leaves the mean of each coordinate's difference (up to the 16 bits of the
    dither) and adds a variance of at most ¼; Hoeffding's inequality bounds the sum of the squares.

    Args:
        sensitivity: L2 distance of the neighbours in steps.
        parameters: d, how many coordinates there are.
    """
    root = math.sqrt(parameters)
    before = sensitivity + root * 2.0**-_DITHER_BITS
    excess = math.sqrt(-0.5 * math.log(DITHER_FAILURE))
    likely = math.sqrt(before**2 + parameters / 4.0 + (2.0 * before + root) * excess)
    return min(likely, before + root)  # no coordinate moves by more than one step in any case


def release_distance(parameters: int) -> float:
    """Total-variation distance of one noisy sum from the Gaussian mechanism: what it adds to δ, times (1 + e^ε)."""
    return parameters * DISTANCE + DITHER_FAILURE


# A client's grid is the same in every round, and for a small model it takes as long to compute as its noise.
@lru_cache(maxsize=4096)
def _spacing_and_levels(
    noise_multiplier: float, sensitivity: float, parameters: int, most_levels: int
) -> tuple[float, int]:
    """γ, and the fewest digits of noise with which rounding adds no more than `GRID_SHARE` to the sensitivity."""
    for levels in range(MIN_LEVELS, most_levels + 1):
        deviation = DEVIATIONS[levels]
        spacing = noise_multiplier * sensitivity / deviation
        if rounded_sensitivity(sensitivity / spacing, parameters) * spacing > (1 + GRID_SHARE) * sensitivity:
            continue
        # γ·deviation = σ·γ·rounded(C·(1 + e)/γ): the right side grows more slowly than γ, so this converges.
        for _ in range(8):
            spacing *= noise_multiplier * rounded_sensitivity(sensitivity / spacing, parameters) / deviation
        return spacing * (1.0 + 2.0**-40), levels
    raise PrivacyError(
        f"a noise multiplier of {noise_multiplier:g} on {parameters} parameters is beyond the integer noise",
        "sell a larger ε, or a smaller model",
    )


@dataclass(frozen=True)
class ReleaseGrid:
    """A public grid and the noise on it. Both follow from public numbers.

    Attributes:
        spacing: γ, the value of one step.
        levels: digits of the integer noise, whose deviation is `noise_deviation(levels)` steps.
    """

    spacing: float
    levels: int = MIN_LEVELS

    @classmethod
    def for_release(
        cls, noise_multiplier: float, clip_norm: float, parameters: int, inflation: float = 0.0
    ) -> ReleaseGrid:
        """The grid on which noise of multiplier σ protects a sum of sensitivity `clip_norm`·(1 + inflation).

        Args:
            noise_multiplier: σ > 0, as calibrated.
            clip_norm: C.
            parameters: d, how many coordinates are released at once.
            inflation: the result of `sum_inflation`.
        """
        return cls(*_spacing_and_levels(noise_multiplier, clip_norm * (1.0 + inflation), parameters, MAX_LEVELS))

    @property
    def deviation(self) -> float:
        """The noise's standard deviation, in the units of the sum."""
        return self.spacing * noise_deviation(self.levels)

    def noisy_integers(self, sums: NDArray[np.floating], source: Words) -> NDArray[np.int64]:
        """K + N, the release as integers, of the shape of `sums`.

        Every integer is exact. Rounding them would not harm the privacy of one client, but a sum of rounded
        integers over several clients is not a function of the sum of the exact ones.
        """
        flat = np.ascontiguousarray(sums).reshape(-1)
        return self.noisy(flat, source, np.empty(flat.size, dtype=np.int64)).reshape(sums.shape)

    def noisy(
        self, sums: NDArray[np.floating], source: Words, out: Out, scale: float = 1.0, *, add: bool = False
    ) -> Out:
        """Writes scale·γ·(K + N) into `out`, (parameters,) as `sums`, or adds it to what is there.

        Computed in float32 where `sums` and `out` are float32 and two digits of noise suffice, else in float64.

        Args:
            scale: a public factor; multiplying released integers is post-processing.
            out: float32, and may be `sums` itself; or int64, which gets K + N itself, exactly.
            add: `out` holds public numbers, such as weights, and keeps them.
        """
        if sums.ndim != 1 or sums.shape != out.shape:
            raise PrivacyError(
                f"a sum of shape {sums.shape} into {out.shape}", "give one flat vector and its place"
            )
        exact = out.dtype == np.int64
        single = sums.dtype == np.float32 and self.levels == 2 and not exact
        work = _WORKSPACE.single if single else _WORKSPACE.double
        per_value: np.floating = np.float64(1.0 / self.spacing)
        if single:
            # Rounded down, so that neighbours come no further apart.
            per_value = np.nextafter(np.float32(per_value), np.float32(0.0))
        for start in range(0, sums.size, CHUNK):
            given = sums[start : start + CHUNK]
            target = out[start : start + CHUNK]
            values = work.values[: given.size]
            spare = work.spare[: given.size]
            cells = source.cells((self.levels + 1) * given.size)
            np.copyto(spare, cells[: given.size])
            spare *= values.dtype.type(2.0**-_DITHER_BITS)
            np.multiply(given, per_value, out=values)
            values += spare
            np.floor(values, out=values)
            digits = draw_digits(cells[given.size :], self.levels, source)
            np.copyto(spare, digits[0])
            for digit in digits[1:]:
                spare *= RADIX
                np.copyto(work.digit[: given.size], digit)
                spare += work.digit[: given.size]
            values += spare
            # From here on, everything is a function of the released integers and of public numbers.
            if exact:
                np.copyto(target, values, casting="unsafe")
                continue
            values *= values.dtype.type(scale * self.spacing)
            if add:
                np.add(target, values, out=target, casting="same_kind")
            else:
                np.copyto(target, values, casting="same_kind")
        return out
