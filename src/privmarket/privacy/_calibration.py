"""How much noise a sold ε needs: `noise_multiplier(ε, δ)`, never less than the accountant asks for.

Where a closed form exists it is used: the full batch (any number of steps is one Gaussian) and one
Poisson-sampled step. Every other schedule has a table, built once per (δ, sampling rate, steps): ε(σ_k) on a
geometric grid of noise multipliers, computed by dp-accounting's privacy loss distributions and cached on disk. A
lookup returns the smallest σ_k on the grid whose ε is at most the ε asked for. ε falls with σ (more noise is
post-processing), so rounding σ up to the grid can only add noise.

A share of 2^−10 of δ is kept for finite arithmetic: releases are within `release_distance` of the Gaussian
mechanism in total variation, and (1 + e^ε) times that must fit into the share. What finite arithmetic does to the
sensitivity is not charged here but in `ReleaseGrid.for_release`, which adds σ times the real sensitivity.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import io
import math
import os
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, overload

import numpy as np
from numpy.typing import ArrayLike

from privmarket._files import write_atomically
from privmarket._lazy import late
from privmarket._settings import DELTA
from privmarket.errors import PrivacyError, WriteError
from privmarket.privacy import _gaussian as gaussian
from privmarket.privacy._events import PrivacyEvent, Release, require_delta
from privmarket.privacy._gaussian import Array, sampled_epsilon, sampled_noise_multiplier
from privmarket.privacy._release import release_distance

pld = late("dp_accounting.pld.privacy_loss_distribution")


# Neighbours on the grid differ by a factor 2^(1/64): a lookup adds at most 1.1 % noise.
_PER_OCTAVE = 64
# The range of ε that a table covers. Below it `ReleaseFamily` uses closed-form bounds, above it more noise than
# needed.
EPSILON_MIN = 0.02
EPSILON_MAX = 20.0
_FORMAT = "privmarket-noise-table-2"
# This share of δ is kept for finite arithmetic; tables are computed at the rest.
ARITHMETIC_SHARE = 2.0**-10

# The share of δ that is kept for finite arithmetic suffices for releases of up to this many parameters.
_MOST_PARAMETERS = 2**28
# Of an ε that is turned into noise and back, at most this share is a rounding error.
_TURNED_BACK = 1e-6
# Below this value the closed forms of δ lose precision in float64.
_SMALLEST_DELTA = 1e-15


class Schedule(Protocol):
    """Anything with a sampling rate and a number of noisy steps: a training, an event, a sale, a task."""

    @property
    def sampling_rate(self) -> float:
        """Probability with which a record enters a step."""

    @property
    def steps(self) -> int:
        """Noisy steps in a release."""


@dataclass(frozen=True)
class ReleaseFamily:
    """The releases that a client may sell in a round. They differ only in how much noise they carry.

    The promise: everything released in the round is (ε, δ)-DP for one unit (a record or a person) being blanked,
    in the arithmetic that runs. Under Poisson sampling that needs the same noise as adding or removing it.
    """

    sampling_rate: float = 1.0
    steps: int = 1
    delta: float = DELTA

    def __post_init__(self) -> None:
        PrivacyEvent(1.0, self.sampling_rate, self.steps)  # refuses a schedule that no release can have
        require_delta(self.delta)

    @classmethod
    def of(cls, schedule: Schedule, delta: float) -> ReleaseFamily:
        """The releases of a schedule, sold at δ."""
        return cls(schedule.sampling_rate, schedule.steps, delta)

    @cached_property
    def exact_delta(self) -> float:
        """The δ of the Gaussian mechanism in exact arithmetic; the rest of δ is for finite arithmetic."""
        return self.delta * (1.0 - ARITHMETIC_SHARE)

    @cached_property
    def epsilon_ceiling(self) -> float:
        """The largest ε for which (1 + e^ε)·steps·distance fits into the share of δ for finite arithmetic."""
        kept = self.delta * ARITHMETIC_SHARE
        ratio = kept / (self.steps * release_distance(_MOST_PARAMETERS)) - 1.0
        if ratio <= 1.0:
            raise PrivacyError(
                f"{self.steps} steps at delta {self.delta}: finite arithmetic alone would use it up",
                "take fewer steps, or a larger delta",
            )
        return float(np.log(ratio))

    def noise_multiplier(self, epsilon: ArrayLike) -> Array:
        """For each ε > 0 the noise multiplier that makes the release (ε, δ)-DP. Any shape."""
        try:
            asked = np.asarray(epsilon, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise PrivacyError(f"epsilon is {epsilon!r}: not a number", "give the ε that is sold") from error
        if not (asked > 0).all():
            first = asked[~(asked > 0)].flat[0]
            raise PrivacyError(f"epsilon is {first}: must be above 0", "leave out clients that sell nothing")
        # An ε beyond the ceiling is treated as the ceiling: more noise than asked for is always allowed.
        asked = np.minimum(asked, self.epsilon_ceiling)
        if self.sampling_rate == 1.0:
            # T full-batch steps are one Gaussian of T times the squared sensitivity.
            return np.asarray(np.sqrt(self.steps) / gaussian.mu_of(asked, self.exact_delta))
        if self.steps == 1:
            exact = gaussian.sampled_noise_multiplier(asked, self.exact_delta, self.sampling_rate)
            return on_grid_above(exact)
        table = self._table()
        k = table.index(asked)
        inside = k < table.epsilon.size
        found = table.noise_multiplier[np.where(inside, k, -1)]
        return found if inside.all() else np.where(inside, found, self._bound(asked))

    def epsilon(self, noise_multiplier: ArrayLike) -> Array:
        """For each noise multiplier an ε at which the release is (ε, δ)-DP: what it may be sold as.

        Exact where a closed form exists; elsewhere the table's entry at or below the multiplier, infinite
        below the table's first.
        """
        noise = np.asarray(noise_multiplier, dtype=np.float64)
        if self.sampling_rate == 1.0:
            return gaussian.epsilon_of(np.sqrt(self.steps) / noise, self.exact_delta)
        if self.steps == 1:
            return gaussian.sampled_epsilon(noise, self.exact_delta, self.sampling_rate)
        table = self._table()
        k = np.searchsorted(table.noise_multiplier, noise, side="right") - 1
        return np.where(k < 0, np.inf, table.epsilon[np.maximum(k, 0)])

    def menu(self) -> tuple[Array, Array]:
        """(points,) noise multipliers on the public grid, ascending, and the ε each may be sold as, falling.

        Covers ε from about `EPSILON_MAX` down to `EPSILON_MIN`.
        """
        if self.sampling_rate < 1.0 and self.steps > 1:
            table = self._table()
            return table.noise_multiplier, table.epsilon
        ends = self.noise_multiplier([EPSILON_MAX, EPSILON_MIN])
        noise = grid_between(float(ends[0]), float(ends[1]))
        return noise, self.epsilon(noise)

    def release(self, noise_multiplier: float) -> PrivacyEvent:
        """The release of this family with this noise multiplier."""
        return PrivacyEvent(noise_multiplier, self.sampling_rate, self.steps)

    def event(self, epsilon: float) -> PrivacyEvent:
        """The release that sells ε."""
        return self.release(float(self.noise_multiplier(epsilon)))

    def events(self, epsilon: ArrayLike) -> list[PrivacyEvent | None]:
        """One release per entry of (clients,) sold ε; None where nothing is sold (ε = 0)."""
        sold = np.asarray(epsilon, dtype=np.float64)
        made: list[PrivacyEvent | None] = [None] * sold.size
        selling = np.flatnonzero(sold != 0)
        if selling.size:
            for client, sigma in zip(selling, self.noise_multiplier(sold[selling]), strict=True):
                made[client] = self.release(float(sigma))
        return made

    def _table(self) -> NoiseTable:
        return noise_table(self.delta, self.sampling_rate, self.steps)

    def _bound(self, epsilon: Array) -> Array:
        """A sufficient multiplier for ε below the table: the better of two closed-form bounds."""
        # Sampling never costs privacy, and T releases of (ε/T, δ/T) are (ε, δ) by basic composition.
        enough = np.sqrt(self.steps) / gaussian.mu_of(epsilon, self.exact_delta)
        each = self.exact_delta / self.steps
        if each >= _SMALLEST_DELTA:
            parts = gaussian.sampled_noise_multiplier(epsilon / self.steps, each, self.sampling_rate)
            enough = np.minimum(enough, parts)
        return on_grid_above(enough)


@overload
def noise_multiplier(
    epsilon: float, delta: float = ..., *, sampling_rate: float = ..., steps: int = ...
) -> float: ...
@overload
def noise_multiplier(
    epsilon: ArrayLike, delta: float = ..., *, sampling_rate: float = ..., steps: int = ...
) -> Array: ...
def noise_multiplier(
    epsilon: ArrayLike, delta: float = DELTA, *, sampling_rate: float = 1.0, steps: int = 1
) -> float | Array:
    """The noise multiplier at which a release is (ε, δ)-DP for one record blanked, added or removed.

    Args:
        epsilon: what is sold, > 0, a number or an array of any shape.
        delta: the allowed failure probability; keep it below 1 / number of records.
        sampling_rate: the probability with which each record enters a step (Poisson sampling).
        steps: how many noisy sums are released.

    Returns:
        Standard deviation over sensitivity, a float for a number, else an array of ε's shape. For sampling rate 1
        the exact value at δ·(1 − 2^−10), elsewhere rounded up to a public grid by at most 1.1 %.

    Implements: [BalleWang2018] for sampling rate 1, privacy loss distributions otherwise.
    Deviation: the formula of Algorithm 2 in [Sun2026] is `literal_noise_multiplier`; it needs ε < 1.
    """
    found = ReleaseFamily(sampling_rate, steps, delta).noise_multiplier(epsilon)
    return float(found) if np.ndim(epsilon) == 0 else found


def release_epsilon(event: PrivacyEvent, delta: float = DELTA) -> float:
    """The ε of one release alone, by the same closed forms and"""
    family = ReleaseFamily.of(event, delta)
    return float(family.epsilon(event.noise_multiplier))


def _honest_sellers(sellers: int, honest_share: float) -> int:
    """h = ⌈share·n⌉: how many sellers' noise a secure sum of n sellers has at least."""
    return min(sellers, max(1, math.ceil(honest_share * sellers - 1e-9)))


def alone_event(event: Release, sellers: int, honest_share: float) -> Release:
    """One seller's release in a secure sum if all other sellers' noise is known: noise of σ/√h.

    Each seller adds 1/h of the noise variance that the sum must have, where h = ⌈share·n⌉ sellers are honest. A
    release of another kind is never in a secure sum and is returned unchanged.
    """
    if not isinstance(event, PrivacyEvent):
        return event
    honest = _honest_sellers(sellers, honest_share)
    return replace(event, noise_multiplier=event.noise_multiplier / math.sqrt(honest))


def alone_epsilon(family: ReleaseFamily, epsilon: float, sellers: int, honest_share: float) -> float:
    """The ε that a sold ε in a secure sum becomes if all other sellers' noise is known; infinite for infinity."""
    if math.isinf(epsilon):
        return math.inf
    noise = family.noise_multiplier(epsilon) / math.sqrt(_honest_sellers(sellers, honest_share))
    return float(family.epsilon(noise))


def sold_epsilon(family: ReleaseFamily, alone: float, sellers: int, honest_share: float) -> float:
    """The most ε that may be sold in a secure sum so that `alone` is left if all other sellers' noise is known."""
    if math.isinf(alone):
        return math.inf
    noise = family.noise_multiplier(alone) * math.sqrt(_honest_sellers(sellers, honest_share))
    # A little less, so that the way back through `alone_epsilon` does not end above `alone` by rounding.
    return float(family.epsilon(noise)) * (1.0 - _TURNED_BACK)


@dataclass(frozen=True, eq=False)
class NoiseTable:
    """ε of one release at every noise multiplier in an interval of the grid.

    Attributes:
        noise_multiplier: (points,) ascending, on the grid.
        epsilon: (points,) non-increasing upper bounds on the exact ε.
    """

    noise_multiplier: Array
    epsilon: Array

    def index(self, epsilon: Array) -> np.ndarray:
        """For each ε the smallest k with epsilon[k] ≤ ε; `points` where no entry is that small."""
        return np.searchsorted(-self.epsilon, -epsilon, side="left")


def on_grid_above(noise_multiplier: Array) -> Array:
    """The next point of the public grid, never below the argument."""
    k = np.ceil(np.log2(noise_multiplier) * _PER_OCTAVE)
    up = np.exp2(k / _PER_OCTAVE)
    # log2 and exp2 round; where they rounded below the argument, the next point is right.
    return np.asarray(np.where(up < noise_multiplier, np.exp2((k + 1) / _PER_OCTAVE), up))


def grid_between(low: float, high: float) -> Array:
    """(points,) the public grid from `low` to just above `high`, ascending."""
    first, last = np.ceil(np.log2([low, high]) * _PER_OCTAVE)
    return np.asarray(np.exp2(np.arange(first, last + 1) / _PER_OCTAVE))


@lru_cache(maxsize=256)
def noise_table(delta: float, sampling_rate: float, steps: int) -> NoiseTable:
    """The table of one schedule: from memory, from the package, from the user's cache, or built now."""
    name = _file_name(delta, sampling_rate, steps)
    shipped = importlib.resources.files("privmarket.privacy") / "noise_tables" / name
    cached = cache_folder() / name
    for place in (shipped, cached):
        table = _read(place, delta, sampling_rate, steps) if place.is_file() else None
        if table is not None:
            return table
    table = build_table(delta, sampling_rate, steps)
    _write(table, cached, delta, sampling_rate, steps)
    return table


def is_ready(delta: float, sampling_rate: float, steps: int) -> bool:
    """Whether the noise of a schedule is known without building a table, which takes up to a minute."""
    if sampling_rate == 1.0 or steps == 1:
        return True
    name = _file_name(delta, sampling_rate, steps)
    shipped = importlib.resources.files("privmarket.privacy") / "noise_tables" / name
    return any(place.is_file() for place in (shipped, cache_folder() / name))


def build_table(delta: float, sampling_rate: float, steps: int) -> NoiseTable:
    """Computes a table anew, from one privacy loss distribution per grid point; takes some seconds.

    The ε are those at δ·(1 − ARITHMETIC_SHARE).
    """
    exact_delta = delta * (1.0 - ARITHMETIC_SHARE)
    noise = _grid_for(exact_delta, sampling_rate, steps)
    exact = np.array([pld_epsilon(s, exact_delta, sampling_rate, steps) for s in noise])
    # ε(σ) is non-increasing in theory; the running maximum from the right only ever raises an entry.
    epsilon = np.maximum.accumulate(exact[::-1])[::-1]
    return NoiseTable(noise, epsilon)


def pld_epsilon(noise_multiplier: float, delta: float, sampling_rate: float, steps: int) -> float:
    """ε of `steps` Poisson-sampled Gaussian steps: an upper bound, tight to about 0.1 %.

    Implements: privacy loss distributions with the pessimistic connect-the-dots discretisation of
    [DoroshenkoEtAl2022], by dp-accounting.
    Assumes: neighbours differ by adding or removing one record, or by blanking one under Poisson sampling.
    """
    # The spacing of the losses follows the size of ε, so every point takes about the same time. Every spacing
    # gives an upper bound; a finer one a tighter bound.
    one_step = float(sampled_epsilon(noise_multiplier, delta, sampling_rate))
    spacing = float(np.clip(one_step / 100.0, 1e-6, 2e-2))
    loss = pld.from_gaussian_mechanism(
        noise_multiplier, sampling_prob=sampling_rate, value_discretization_interval=spacing
    )
    return float(loss.self_compose(steps).get_epsilon_for_delta(delta))


def _grid_for(delta: float, sampling_rate: float, steps: int) -> Array:
    """(points,) the interval of the grid on which ε falls from about EPSILON_MAX to EPSILON_MIN."""
    # One step at EPSILON_MAX needs less noise than `steps` of them, so its noise is a lower end of the interval.
    start = float(sampled_noise_multiplier(EPSILON_MAX, delta, sampling_rate))
    low = _last_above(EPSILON_MAX, delta, sampling_rate, steps, start)
    high = low
    while pld_epsilon(high, delta, sampling_rate, steps) > EPSILON_MIN:
        high *= 1.5
    return grid_between(low, high)


def _last_above(epsilon: float, delta: float, sampling_rate: float, steps: int, noise: float) -> float:
    """A multiplier whose ε is still above `epsilon`, at most 10 % below the one that meets it."""
    while pld_epsilon(noise * 1.1, delta, sampling_rate, steps) > epsilon:
        noise *= 1.1
    return noise


def cache_folder() -> Path:
    """Where tables are kept: $PRIVMARKET_CACHE, else $XDG_CACHE_HOME/privmarket, else ~/.cache/privmarket."""
    if own := os.environ.get("PRIVMARKET_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "privmarket"


def _file_name(delta: float, sampling_rate: float, steps: int) -> str:
    # repr of a float is exact, so two schedules never share a file.
    return f"noise-{delta!r}-{sampling_rate!r}-{steps}.npz"


def _digest(noise: Array, epsilon: Array, delta: float, sampling_rate: float, steps: int) -> str:
    # The schedule is part of the digest, so that a table stored under another schedule's name is refused.
    head = f"{_FORMAT} {_PER_OCTAVE} {ARITHMETIC_SHARE!r} {delta!r} {sampling_rate!r} {steps} "
    text = head.encode() + noise.tobytes() + epsilon.tobytes()
    return hashlib.sha256(text).hexdigest()


def _read(
    place: Path | importlib.resources.abc.Traversable, delta: float, sampling_rate: float, steps: int
) -> NoiseTable | None:
    """The stored table, or None if it is damaged, has another format or belongs to another schedule."""
    try:
        with place.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            noise = stored["noise_multiplier"]
            epsilon = stored["epsilon"]
            digest = str(stored["digest"])
    except Exception:
        # A flipped bit can raise anything in zip, zlib or NumPy's header. Whatever it raises, the file is bad.
        return None
    if digest != _digest(noise, epsilon, delta, sampling_rate, steps):
        return None
    return NoiseTable(noise, epsilon)


def _write(table: NoiseTable, place: Path, delta: float, sampling_rate: float, steps: int) -> None:
    """Writes in one step, so that a reader never sees half a file."""
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        noise_multiplier=table.noise_multiplier,
        epsilon=table.epsilon,
        digest=_digest(table.noise_multiplier, table.epsilon, delta, sampling_rate, steps),
        built_with=f"dp-accounting {version('dp-accounting')}",
    )
    try:
        write_atomically(place, buffer.getvalue())
    except WriteError:
        # Where the cache folder cannot be written, every process builds the table again.
        return
