"""Where noise is drawn: random bits from a cipher, and the exact integer noise that is made of them.

`NoiseSource` is a stream of random bits, AES-128 in counter mode. A statistical generator (NumPy's, torch's) can be
reconstructed from its outputs, and then the noise can be subtracted. Outside tests the key comes from the operating
system; a seed gives reproducible runs.

`draw_integers` makes integer noise from these bits: whole numbers whose distribution is, to within 2^−109, that of
a Gaussian rounded to whole numbers. A draw is put together from `levels` digits, N = B₀ + 128·B₁ + 128²·B₂ + …,
independent and taken from tables: the lowest is a Gaussian of deviation 256, rounded; the others are discrete
Gaussians of parameter 256². Since a digit is twice as wide as the step of 128 to the next, their sum is a rounded
Gaussian again, up to a relative error of 2^−112 (Poisson summation), of deviation s = 256·√(1 + 128² + …): 2^15 for
two digits, 2^22 for three.

A digit costs 16 random bits. They name one of 65,536 equal cells of the unit interval; where the distribution
function has no step inside the cell, the digit is decided (97 % of draws). Otherwise 8 further bits are drawn; if
these do not decide, 64 more; and if these equal the step's own bits, the last 56. So each digit follows its
distribution to within 2^−131. Everything is integer arithmetic: equal keys give equal noise on every machine.

The float32 normals of `NoiseSource.fill` and `add` (Box–Muller, radius cut at `MAX_RADIUS` = 9.49, which one pair
in 2^65 would pass) are for experiments: added to floating-point sums they are not private in the last bits,
whatever their deviation.

Implements: discrete Gaussians of [CanonneKamathSteinke2020], by inversion; their sums as in [MicciancioWalter2017].
Proof: docs/theory/finite-arithmetic.md.
"""

from __future__ import annotations

import hmac
import math
import os
import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from privmarket._lazy import late
from privmarket.errors import PrivacyError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives import ciphers
    from cryptography.hazmat.primitives.ciphers import algorithms, modes
else:
    ciphers = late("cryptography.hazmat.primitives.ciphers")
    algorithms = late("cryptography.hazmat.primitives.ciphers.algorithms")
    modes = late("cryptography.hazmat.primitives.ciphers.modes")


# √(2·65·ln 2): the smallest uniform is half of 2^−64.
MAX_RADIUS = math.sqrt(2 * 65 * math.log(2))

# Normals made at once: the bits, radii and angles of one chunk stay in the processor's second-level cache.
_NORMALS = 1 << 17
_ZEROS = memoryview(bytes(4 * _NORMALS))
# A 32-bit uniform below this value is too coarse for the tail and gets 32 more bits (one pair in 2^20).
_COARSE = np.uint32(1 << 12)
_LARGEST_UNIFORM = np.nextafter(np.float32(1.0), np.float32(0.0))


DIGIT_DEVIATION = 256
RADIX = 128
# With more than five digits the noise would exceed the integers that float64 holds exactly.
MIN_LEVELS = 2
MAX_LEVELS = 5
# Total-variation distance of a draw from a rounded Gaussian: 4·1.01·2^−112 + 5·2^−131, rounded up.
DISTANCE = 2.0**-109

# By number of digits, the deviation of the Gaussian that a draw rounds.
DEVIATIONS = {
    levels: DIGIT_DEVIATION * math.sqrt(sum(RADIX ** (2 * k) for k in range(levels)))
    for levels in range(1, MAX_LEVELS + 1)
}

# Integers drawn at once: bits, digits and sums of one chunk stay in the processor's second-level cache.
CHUNK = 1 << 15

# Digits up to 14.2 deviations: beyond, a discrete Gaussian of parameter 256² has less than 2^−144.
_REACH = 3640
# A table entry below −_REACH is not a digit: it is −2^15 plus the number of the open cell.
_OPEN = -(2**15)
_CELL_BITS = 16
_OCTET_BITS = 8
_WORD_BITS = 64
_TAIL_BITS = 56
_RESOLUTION_BITS = _CELL_BITS + _OCTET_BITS + _WORD_BITS + _TAIL_BITS
_GUARD_BITS = 112


class TorchTensor(Protocol):
    """The two methods of a torch tensor that are called here, so that torch need not be imported."""

    def detach(self) -> TorchTensor:
        """The same numbers outside the graph of derivatives."""

    def numpy(self) -> np.ndarray:
        """The same memory as a NumPy array."""


class _Workspace(threading.local):
    """Buffers for random numbers: one set per thread, shared by all streams, to stay in the processor's cache."""

    def __init__(self) -> None:
        # The cipher's update_into wants room for one block more than it writes.
        self.words: NDArray[np.uint32] = np.empty(_NORMALS + 4, dtype="<u4")
        self.bytes = self.words.data.cast("B")
        self.radius: NDArray[np.float32] = np.empty(_NORMALS // 2, dtype=np.float32)
        self.angle: NDArray[np.float32] = np.empty(_NORMALS // 2, dtype=np.float32)
        self.cosine: NDArray[np.float32] = np.empty(_NORMALS // 2, dtype=np.float32)


_WORKSPACE = _Workspace()

# How often this process's memory was copied by a fork. The process id would not do: two processes in different
# PID namespaces (containers) may both be number 1.
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # where processes cannot fork there is nothing to count
    os.register_at_fork(after_in_child=_count_fork)


class NoiseSource:
    """A stream of standard normals (and of Poisson samples) that cannot be predicted without its key.

    Equal keys and equal sequences of calls give equal numbers on one machine. Streams for rounds, clients or
    workers come from `child`, never from sharing one stream, so results do not depend on the order of work.

    Args:
        key: 16 bytes; any number of bytes if there are labels.
        labels: name of one of the many streams of a key.
    """

    def __init__(self, key: bytes, *labels: int | str) -> None:
        if labels:  # repr keeps 1 and "1", ("a", "b") and ("ab",) apart
            key = hmac.digest(key, repr(labels).encode(), "sha256")[:16]
        if len(key) != 16:
            raise PrivacyError(f"a noise key of {len(key)} bytes", "AES-128 takes 16; use from_seed or from_system")
        self._made_after: int | None = None  # the count of forks when a system-keyed stream was made
        # Counters start at 0 for every key; keys are never reused for anything else.
        tail_key = hmac.digest(key, repr(("tail",)).encode(), "sha256")[:16]
        bits = algorithms.AES(key)
        tail = algorithms.AES(tail_key)
        self._key = key
        self._bits: ciphers.CipherContext = ciphers.Cipher(bits, modes.CTR(bytes(16))).encryptor()
        self._tail_bits: ciphers.CipherContext = ciphers.Cipher(tail, modes.CTR(bytes(16))).encryptor()

    @classmethod
    def from_system(cls) -> Self:
        """A stream keyed by the operating system: what every real release uses."""
        source = cls(os.urandom(16))
        source._made_after = _forks
        return source

    @classmethod
    def from_seed(cls, seed: int, *labels: int | str) -> Self:
        """A reproducible stream, for tests and simulations: whoever knows the seed knows the noise."""
        return cls(b"privmarket-seed", seed, *labels)

    def child(self, *labels: int | str) -> NoiseSource:
        """An independent stream named by `labels`, for instance (round, client).

        Children of a system-keyed stream belong to this process too: a forked copy of either starts afresh.
        """
        self._renew_after_fork()
        made = NoiseSource(self._key, "child", *labels)
        made._made_after = self._made_after
        return made

    def cells(self, count: int) -> NDArray[np.uint16]:
        """The next `count` ≤ 2·_NORMALS words of 16 random bits; overwritten by the next call in this thread."""
        self._renew_after_fork()
        self._bits.update_into(_ZEROS[: 4 * ((count + 1) // 2)], _WORKSPACE.bytes)
        return _WORKSPACE.words.view(np.uint16)[:count]

    def more_bytes(self, count: int) -> NDArray[np.uint8]:
        """`count` random bytes from a second stream; the position in the first does not change."""
        self._renew_after_fork()
        return np.frombuffer(self._tail_bits.update(bytes(count)), dtype=np.uint8)

    def standard_normal(self, shape: int | tuple[int, ...]) -> NDArray[np.float32]:
        """A new float32 array of this shape, filled with standard normals; for experiments only."""
        out = np.empty(shape, dtype=np.float32)
        self.fill(out)
        return out

    def fill(self, out: NDArray[np.float32] | TorchTensor) -> None:
        """Overwrites a contiguous float32 NumPy array or torch tensor (any shape) with standard normals."""
        flat = _flat_view(out)
        for start in range(0, flat.size, _NORMALS):
            part = flat[start : start + _NORMALS]
            radius, cosine, sine = self._polar(part.size)
            np.multiply(radius, cosine, out=part[: radius.size])
            np.multiply(radius[: sine.size], sine, out=part[radius.size :])

    def add(self, out: NDArray[np.float32] | TorchTensor, scale: float) -> None:
        """Adds N(0, scale²) to every entry of a float32 array or tensor, without a second buffer of its size."""
        flat = _flat_view(out)
        for start in range(0, flat.size, _NORMALS):
            part = flat[start : start + _NORMALS]
            radius, cosine, sine = self._polar(part.size)
            radius *= np.float32(scale)
            cosine *= radius
            part[: radius.size] += cosine
            sine *= radius[: sine.size]
            part[radius.size :] += sine

    def bernoulli(self, probability: float, size: int) -> NDArray[np.bool_]:
        """(size,) independent coins: a Poisson sample, in which each record is drawn with `probability`.

        The probability is rounded down to a multiple of 2^−32, so sampling never exceeds what was accounted.
        """
        if probability >= 1.0:
            return np.ones(size, dtype=np.bool_)
        below = np.uint32(math.floor(probability * 2.0**32))
        coins = np.empty(size, dtype=np.bool_)
        for start in range(0, size, _NORMALS):
            part = coins[start : start + _NORMALS]
            np.less(self._take(part.size), below, out=part)
        return coins

    def _take(self, words: int) -> NDArray[np.uint32]:
        """The next `words` ≤ _NORMALS words of 32 random bits; overwritten by the next call in this thread."""
        return self.cells(2 * words).view(np.uint32)

    def _renew_after_fork(self) -> None:
        """Gives a forked copy of a system-keyed stream a new key; otherwise it would repeat its parent's noise.

        The difference of two releases with the same noise has no noise.
        """
        if self._made_after not in (None, _forks):
            vars(self).update(vars(self.from_system()))

    def _polar(self, count: int) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """r, cos θ and sin θ of `count` ≤ _NORMALS normals r cos θ and r sin θ, where r² = −2 ln u (Box–Muller).

        They lie in the thread's workspace and are overwritten by the next call; an odd count has one sine less.
        """
        pairs = (count + 1) // 2
        words = self._take(2 * pairs)
        radius = self._uniform(words[:pairs])
        np.log(radius, out=radius)
        radius *= np.float32(-2.0)
        np.sqrt(radius, out=radius)
        angle = _WORKSPACE.angle[:pairs]
        cosine = _WORKSPACE.cosine[:pairs]
        np.copyto(angle, words[pairs:].view(np.int32), casting="same_kind")
        angle *= np.float32(math.pi / 2.0**31)  # [−π, π): sines and cosines of small angles keep their bits
        np.cos(angle, out=cosine)
        sine = angle[: count - pairs]
        return radius, cosine, np.sin(sine, out=sine)

    def _uniform(self, words: NDArray[np.uint32]) -> NDArray[np.float32]:
        """Uniforms in (0, 1), never 0 or 1: (k + ½)·2^−32, with 32 further bits where k is small."""
        uniform = _WORKSPACE.radius[: words.size]
        np.copyto(uniform, words, casting="same_kind")
        uniform += np.float32(0.5)
        uniform *= np.float32(2.0**-32)
        # Rounding to float32 may reach 1, whose radius is 0: a normal of exactly 0 in both of a pair.
        np.minimum(uniform, _LARGEST_UNIFORM, out=uniform)
        if words.size and words.min() < _COARSE:
            coarse = np.flatnonzero(words < _COARSE)
            more = np.frombuffer(self._tail_bits.update(bytes(4 * coarse.size)), dtype=np.uint32)
            fine = words[coarse].astype(np.float64) + (more.astype(np.float64) + 0.5) * 2.0**-32
            uniform[coarse] = fine * 2.0**-32
        return uniform


def _flat_view(out: NDArray[np.float32] | TorchTensor) -> NDArray[np.float32]:
    """(n,) the memory of a NumPy array or a torch tensor."""
    array = out if isinstance(out, np.ndarray) else out.detach().numpy()
    if array.dtype != np.float32 or not array.flags.c_contiguous or not array.flags.writeable:
        raise PrivacyError(
            f"noise into a buffer of {array.dtype}, shape {array.shape}",
            "give a float32 array that is contiguous and writeable",
        )
    flat: NDArray[np.float32] = array.reshape(-1)
    return flat


class _DigitWorkspace(threading.local):
    """Buffers for one chunk of digits: one set per thread, shared by all streams, as `_Workspace` is."""

    def __init__(self) -> None:
        self.places: NDArray[np.intp] = np.empty(MAX_LEVELS * CHUNK, dtype=np.intp)
        self.digits: NDArray[np.int16] = np.empty(MAX_LEVELS * CHUNK, dtype=np.int16)
        self.undecided: NDArray[np.bool_] = np.empty(MAX_LEVELS * CHUNK, dtype=np.bool_)


_DIGIT_WORKSPACE = _DigitWorkspace()


class Words(Protocol):
    """The interface of a source of random bits; `NoiseSource` has it."""

    def cells(self, count: int) -> NDArray[np.uint16]:
        """`count` words of 16 random bits, valid until the next call."""

    def more_bytes(self, count: int) -> NDArray[np.uint8]:
        """`count` random bytes from a stream of their own."""


def noise_deviation(levels: int) -> float:
    """The standard deviation of the Gaussian that is rounded in a draw of `levels` digits."""
    if levels not in DEVIATIONS:
        raise PrivacyError(f"{levels} digits of integer noise", f"must be 1 to {MAX_LEVELS}")
    return DEVIATIONS[levels]


def largest_noise(levels: int) -> int:
    """The largest possible draw of `levels` digits."""
    return _REACH * int(sum(RADIX**k for k in range(levels)))


def draw_integers(source: Words, count: int, levels: int) -> NDArray[np.int64]:
    """(count,) integers, each the rounding of a Gaussian of deviation `noise_deviation(levels)`."""
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
    tables = digit_tables()
    total = cells.size
    places = _DIGIT_WORKSPACE.places[:total]
    digits = _DIGIT_WORKSPACE.digits[:total]
    np.copyto(places, cells)
    places[total - total // levels :] += 2**_CELL_BITS  # the lowest digit has the second table
    tables.guide.take(places, out=digits, mode="clip")
    undecided = np.flatnonzero(np.less(digits, -_REACH, out=_DIGIT_WORKSPACE.undecided[:total]))
    if undecided.size:  # 8 further bits each
        numbers = digits[undecided].astype(np.intp) - _OPEN
        digits[undecided] = tables.fine.take(numbers * 2**_OCTET_BITS + source.more_bytes(undecided.size))
        undecided = undecided[digits[undecided] < -_REACH]
    if undecided.size:  # then 64
        numbers = digits[undecided].astype(np.intp) - _OPEN
        words = source.more_bytes(8 * undecided.size).view("<u8")
        threshold = tables.threshold[numbers]
        digits[undecided] = tables.first[numbers] + (words >= threshold)
        for k in np.flatnonzero(tables.crowded[numbers] | (words == threshold)):  # and then 56, as far as needed
            digits[undecided[k]] = tables.invert(int(tables.part[numbers[k]]), int(words[k]), source)
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
def digit_tables() -> DigitTables:
    """The tables, computed once per process in integer arithmetic, about a third of a second."""
    steps = digit_steps(discrete_weights), digit_steps(rounded_weights)
    cells = np.arange(2**_CELL_BITS)
    guides = []
    fines = []
    opened = []
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
    """The same table, with `_OPEN` plus 0, 1, 2, … in the places that have no digit."""
    is_open = digits < -_REACH
    return np.where(is_open, _OPEN + np.cumsum(is_open) - 1, digits).astype(np.int16)


def digit_steps(weights_of: Callable[[int], list[int]], bits: int = _RESOLUTION_BITS) -> tuple[int, ...]:
    """P(digit < k)·2^bits, rounded down, for k = −reach + 1, …, reach.

    `weights_of(b)` gives the weights of 0, 1, …, reach in fixed point with b bits, off by far less than 2^−bits.
    """
    weights = weights_of(bits + _GUARD_BITS)
    total = 2 * sum(weights) - weights[0]
    running = 0
    steps = []
    for weight in [*weights[:0:-1], *weights[:-1]]:
        running += weight
        steps.append((running << bits) // total)
    return tuple(steps)


def discrete_weights(bits: int) -> list[int]:
    """exp(−x²/2s²)·2^bits for x = 0, …, reach: w(x + 1) = w(x)·r(x), r(x + 1) = r(x)·exp(−1/s²).

    Each of the few thousand products loses less than one unit of the last place.
    """
    step = _exp_minus(Fraction(1, 2 * DIGIT_DEVIATION**2), bits)
    ratio = _exp_minus(Fraction(1, DIGIT_DEVIATION**2), bits)
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
        before = 0
        term = 1 << bits
        integral = 0
        k = 0
        while abs(term) >> k or abs(before) >> k:
            if k % 2 == 0:
                integral += term // ((k + 1) << k)  # ∫ yᵏ over [−½, ½] = 2^−k/(k + 1)
            following = -(x * term + before) // ((k + 1) * squared)
            before = term
            term = following
            k += 1
        weights.append(weight * integral >> bits)
    return weights


def _exp_minus(x: Fraction, bits: int) -> int:
    """e^−x·2^bits for a small x ≥ 0, by its power series."""
    term = 1 << bits
    total = 0
    k = 0
    while term:
        total += -term if k % 2 else term
        k += 1
        term = term * x.numerator // (x.denominator * k)
    return total


def draw_discrete_laplace(source: Words, count: int, rate: Fraction) -> list[int]:
    """`count` whole numbers of the discrete Laplace distribution, P(N = k) ∝ e^{−|k|·rate}, exactly.

    It computes with whole numbers only, without a table, rounding or a largest draw; a draw that is not decided
    takes more bits. A draw takes some 20 microseconds, and how long depends on its value.

    Args:
        rate: above 0: ε over the sensitivity. `Fraction(0.1)` is the float64 number 0.1, exactly.

    Implements: Algorithm 2 of [CanonneKamathSteinke2020], with s/t = rate.
    """
    s = rate.numerator
    t = rate.denominator
    if s <= 0:
        raise PrivacyError(f"discrete Laplace noise of rate {rate}", "give a rate above 0")
    bits = _Bits(source)
    drawn: list[int] = []
    while len(drawn) < count:
        remainder = bits.below(t)
        if not bits.exp_minus(remainder, t):
            continue
        whole = 0
        while bits.exp_minus(1, 1):
            whole += 1
        magnitude = (remainder + t * whole) // s
        negative = bits.below(2) == 1
        if negative and magnitude == 0:
            continue  # else zero would be drawn twice as often as it should be
        drawn.append(-magnitude if negative else magnitude)
    return drawn


class _Bits:
    """Random whole numbers and coins from a stream of random bytes, exact for every fraction."""

    def __init__(self, source: Words) -> None:
        self._source = source
        self._held = 0
        self._size = 0

    def below(self, limit: int) -> int:
        """A number from 0 to limit − 1, each equally likely: bits are drawn again until they name one of them."""
        size = (limit - 1).bit_length()
        while True:
            while self._size < size:
                more = self._source.more_bytes(64).tobytes()
                self._held |= int.from_bytes(more, "little") << self._size
                self._size += 8 * len(more)
            number = self._held & ((1 << size) - 1)
            self._held >>= size
            self._size -= size
            if number < limit:
                return number

    def exp_minus(self, numerator: int, denominator: int) -> bool:
        """A coin that is True with probability e^{−x}, x = numerator/denominator ≤ 1.

        The first k for which a coin of probability x/k fails is odd with probability 1 − x + x²/2! − … = e^{−x}.
        """
        k = 1
        while self.below(denominator * k) < numerator:
            k += 1
        return k % 2 == 1
