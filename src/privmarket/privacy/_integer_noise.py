"""Integer noise: whole numbers whose law is, to within 2^−109, that of a Gaussian rounded to whole numbers.

A draw is put together from `levels` digits, N = B₀ + 128·B₁ + 128²·B₂ + …, independent and taken from tables: the
lowest is a Gaussian of deviation 256, rounded; the others are discrete Gaussians of parameter 256². Since a digit
is twice as wide as the step of 128 to the next, their sum is a rounded Gaussian again, up to a relative error of
2^−112 (Poisson summation), of deviation s = 256·√(1 + 128² + …): 2^15 for two digits, 2^22 for three.

A digit costs 16 random bits. They name one of 65,536 equal cells of the unit interval; where the distribution
function has no step inside the cell, the digit is decided (97 % of draws). Else 8 further bits decide, where they
do not 64 more, and where those tie with the step's own bits the last 56. So each digit follows its law to within
2^−131, and everything is integer arithmetic: equal keys give equal noise on every machine.

Implements: discrete Gaussians of [CanonneKamathSteinke2020], by inversion; their sums as in [MicciancioWalter2017].
Proof: docs/theory/finite-arithmetic.md.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from privmarket.errors import PrivacyError

DIGIT_DEVIATION, RADIX = 256, 128
# More than five digits would leave the integers that float64 holds exactly.
MIN_LEVELS, MAX_LEVELS = 2, 5
# Total-variation distance of a draw from a rounded Gaussian: 4·1.01·2^−112 + 5·2^−131, lemmas 2 and 3 of the page.
DISTANCE = 2.0**-109

# By number of digits, the deviation of the Gaussian that a draw rounds.
DEVIATIONS = {
    levels: DIGIT_DEVIATION * math.sqrt(sum(RADIX ** (2 * k) for k in range(levels)))
    for levels in range(1, MAX_LEVELS + 1)
}

# Numbers drawn at once: bits, digits and sums of one chunk stay in the processor's second-level cache.
CHUNK = 1 << 15

# Digits up to 14.2 deviations: beyond, a discrete Gaussian of parameter 256² has less than 2^−144.
_REACH = 3640
# A table entry below −_REACH is no digit: it is −2^15 plus the number of the open cell.
_OPEN = -(2**15)
_CELL_BITS, _OCTET_BITS, _WORD_BITS, _TAIL_BITS = 16, 8, 64, 56
_RESOLUTION_BITS = _CELL_BITS + _OCTET_BITS + _WORD_BITS + _TAIL_BITS
_GUARD_BITS = 112


class _Workspace(threading.local):
    """One chunk's digits, one set per thread for all streams, so that it stays in the processor's cache."""

    def __init__(self) -> None:
        self.places: NDArray[np.intp] = np.empty(MAX_LEVELS * CHUNK, dtype=np.intp)
        self.digits: NDArray[np.int16] = np.empty(MAX_LEVELS * CHUNK, dtype=np.int16)
        self.undecided: NDArray[np.bool_] = np.empty(MAX_LEVELS * CHUNK, dtype=np.bool_)


_WORKSPACE = _Workspace()


class Words(Protocol):
    """The interface of a source of random bits; `NoiseSource` has it."""

    def cells(self, count: int) -> NDArray[np.uint16]:
        """`count` words of 16 random bits, valid until the next call."""

    def more_bytes(self, count: int) -> NDArray[np.uint8]:
        """`count` random bytes from a stream of their own."""


def deviation(levels: int) -> float:
    """The deviation of the Gaussian that a draw of so many digits rounds."""
    if levels not in DEVIATIONS:
        raise PrivacyError(f"{levels} digits of integer noise", f"must be 1 to {MAX_LEVELS}")
    return DEVIATIONS[levels]


def largest(levels: int) -> int:
    """No draw of so many digits is larger than this."""
    return _REACH * int(sum(RADIX**k for k in range(levels)))


def draw(source: Words, count: int, levels: int) -> NDArray[np.int64]:
    """(count,) integers, each the rounding of a Gaussian of deviation `deviation(levels)`."""
    out = np.empty(count, dtype=np.int64)
    for start in range(0, count, CHUNK):
        part = out[start : start + CHUNK]
        digits = draw_digits(source.cells(levels * part.size), levels, source)
        np.copyto(part, digits[0])
        for digit in digits[1:]:
            part *= RADIX
            part += digit
    return out


def draw_digits(cells: NDArray[np.uint16], levels: int, source: Words) -> NDArray[np.int16]:
    """(levels, count) digits, the most significant first, from levels·count random words of 16 bits.

    Valid until this thread's next call; count ≤ CHUNK. `source` gives further bits where the first do not decide.
    """
    law, total = tables(), cells.size
    places, digits = _WORKSPACE.places[:total], _WORKSPACE.digits[:total]
    np.copyto(places, cells)
    places[total - total // levels :] += 2**_CELL_BITS  # the lowest digit has the second table
    law.guide.take(places, out=digits, mode="clip")
    undecided = np.flatnonzero(np.less(digits, -_REACH, out=_WORKSPACE.undecided[:total]))
    if undecided.size:  # 8 further bits each
        numbers = digits[undecided].astype(np.intp) - _OPEN
        digits[undecided] = law.fine.take(numbers * 2**_OCTET_BITS + source.more_bytes(undecided.size))
        undecided = undecided[digits[undecided] < -_REACH]
    if undecided.size:  # then 64
        numbers = digits[undecided].astype(np.intp) - _OPEN
        words, threshold = source.more_bytes(8 * undecided.size).view("<u8"), law.threshold[numbers]
        digits[undecided] = law.first[numbers] + (words >= threshold)
        for k in np.flatnonzero(law.crowded[numbers] | (words == threshold)):  # and then 56, as far as needed
            digits[undecided[k]] = law.invert(int(law.part[numbers[k]]), int(words[k]), source)
    return digits.reshape(levels, -1)


@dataclass(frozen=True, eq=False)
class DigitTables:
    """The distribution functions of the two kinds of digits, ready for inversion, one after the other.

    A digit is the number of steps at or below a uniform number of 144 bits, minus `_REACH`.

    Attributes:
        steps: for discrete and for rounded Gaussians (2·_REACH,) P(digit < k)·2^144 for k = −_REACH + 1, …, _REACH.
        guide: (2 · 65536,) the digit of each cell; `_OPEN` plus a number where a step lies inside it.
        fine: (open cells · 256,) the same for each 256th of an open cell.
        first: (open parts,) the digit at the lower end of each part that `fine` leaves open.
        threshold: (open parts,) the 64 bits of its first step that follow the part's own 24.
        crowded: (open parts,) whether more than one step lies inside.
        part: (open parts,) which part it is: kind · 2^24 + cell · 256 + octet.
    """

    steps: tuple[tuple[int, ...], tuple[int, ...]]
    guide: NDArray[np.int16]
    fine: NDArray[np.int16]
    first: NDArray[np.int16]
    threshold: NDArray[np.uint64]
    crowded: NDArray[np.bool_]
    part: NDArray[np.int64]

    def invert(self, part: int, word: int, source: Words) -> int:
        """The digit of the uniform number made of a part's 24 bits, 64 further bits and the last 56."""
        kind, top = divmod(part, 2 ** (_CELL_BITS + _OCTET_BITS))
        tail = int.from_bytes(source.more_bytes(_TAIL_BITS // 8).tobytes(), "little")
        return bisect_right(self.steps[kind], (top << _WORD_BITS | word) << _TAIL_BITS | tail) - _REACH


@lru_cache(maxsize=1)
def tables() -> DigitTables:
    """The tables, computed once per process in integer arithmetic, about a third of a second."""
    steps = digit_steps(discrete_weights), digit_steps(rounded_weights)
    cells = np.arange(2**_CELL_BITS)
    guides, fines, opened = [], [], []
    for kind, mine in enumerate(steps):
        low, high = _digits_at_ends(mine, cells, _CELL_BITS)
        parts = (256 * cells[low < high, None] + np.arange(256)).reshape(-1)
        fine_low, fine_high = _digits_at_ends(mine, parts, _CELL_BITS + _OCTET_BITS)
        guides.append(np.where(low < high, np.iinfo(np.int64).min, low))
        fines.append(np.where(fine_low < fine_high, np.iinfo(np.int64).min, fine_low))
        is_open = fine_low < fine_high
        opened += [
            (kind << 24 | int(part), int(a), int(b))
            for part, a, b in zip(parts[is_open], fine_low[is_open], fine_high[is_open], strict=True)
        ]
    word = 2**_WORD_BITS - 1
    thresholds = [(steps[part >> 24][low + _REACH] >> _TAIL_BITS) & word for part, low, _ in opened]
    return DigitTables(
        steps,
        _with_numbers(np.concatenate(guides)),
        _with_numbers(np.concatenate(fines)),
        np.array([low for _, low, _ in opened], dtype=np.int16),
        np.array(thresholds, dtype=np.uint64),
        np.array([high > low + 1 for _, low, high in opened]),
        np.array([part for part, _, _ in opened]),
    )


def _digits_at_ends(steps: tuple[int, ...], cells: NDArray[np.int64], bits: int) -> tuple[NDArray[np.int64], ...]:
    """The digits of the smallest and of the largest uniform number in each of `cells`, numbers of `bits` bits."""
    rest = _RESOLUTION_BITS - bits
    # A step lies at or below the smallest number of a cell if, rounded up, its top bits do; for the largest, down.
    low = np.searchsorted([-(-step >> rest) for step in steps], cells, side="right")
    high = np.searchsorted([step >> rest for step in steps], cells, side="right")
    return low - _REACH, high - _REACH


def _with_numbers(digits: NDArray[np.int64]) -> NDArray[np.int16]:
    """The same with `_OPEN` plus 0, 1, 2, … where there is no digit."""
    is_open = digits < -_REACH
    return np.where(is_open, _OPEN + np.cumsum(is_open) - 1, digits).astype(np.int16)


def digit_steps(weights_of: Callable[[int], list[int]], bits: int = _RESOLUTION_BITS) -> tuple[int, ...]:
    """P(digit < k)·2^bits, rounded down, for k = −reach + 1, …, reach.

    `weights_of(b)` gives the weights of 0, 1, …, reach in fixed point with b bits, off by far less than 2^−bits.
    """
    weights = weights_of(bits + _GUARD_BITS)
    total = 2 * sum(weights) - weights[0]
    running, steps = 0, []
    for weight in [*weights[:0:-1], *weights[:-1]]:
        running += weight
        steps.append((running << bits) // total)
    return tuple(steps)


def discrete_weights(bits: int) -> list[int]:
    """exp(−x²/2s²)·2^bits for x = 0, …, reach: w(x + 1) = w(x)·r(x), r(x + 1) = r(x)·exp(−1/s²).

    Each of the few thousand products loses less than one unit of the last place.
    """
    step, ratio = (_exp_minus(Fraction(1, k * DIGIT_DEVIATION**2), bits) for k in (2, 1))
    weights = [1 << bits]
    for _ in range(_REACH):
        weights.append(weights[-1] * step >> bits)
        step = step * ratio >> bits
    return weights


def rounded_weights(bits: int) -> list[int]:
    """∫ exp(−t²/2s²) dt·2^bits over [x − ½, x + ½] for x = 0, …, reach.

    That is exp(−x²/2s²) times the integral of f(y) = exp(−(xy + y²/2)/s²) over [−½, ½], whose power series
    f = Σ cₖyᵏ obeys (k + 1)·cₖ₊₁ = −(x·cₖ + cₖ₋₁)/s²; with x ≤ 14.2·s its terms fall by a factor of 36 or more.
    """
    squared = DIGIT_DEVIATION**2
    weights = []
    for x, weight in enumerate(discrete_weights(bits)):
        before, term, integral, k = 0, 1 << bits, 0, 0
        while abs(term) >> k or abs(before) >> k:
            if k % 2 == 0:
                integral += term // ((k + 1) << k)  # ∫ yᵏ over [−½, ½] = 2^−k/(k + 1)
            before, term, k = term, -(x * term + before) // ((k + 1) * squared), k + 1
        weights.append(weight * integral >> bits)
    return weights


def _exp_minus(x: Fraction, bits: int) -> int:
    """e^−x·2^bits for a small x ≥ 0, by its power series."""
    term, total, k = 1 << bits, 0, 0
    while term:
        total += -term if k % 2 else term
        k += 1
        term = term * x.numerator // (x.denominator * k)
    return total
