"""How much noise a sold ε needs: `noise_multiplier(ε, δ)`, never less than the accountant asks for.

Where a closed form exists it is used: the full batch (any number of steps is one Gaussian) and one
Poisson-sampled step. The rest goes through a table built once per (δ, sampling rate, steps).

A share of 2^−10 of δ is kept for finite arithmetic: releases are within `release.release_distance` of the Gaussian
mechanism in total variation, and (1 + e^ε) times that must fit into the share. What finite arithmetic does to the
sensitivity is not charged here but in `release.ReleaseGrid.for_release`, which adds σ times the real sensitivity.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, overload

import numpy as np
from numpy.typing import ArrayLike

from privmarket._settings import DELTA
from privmarket.errors import PrivacyError
from privmarket.privacy import _gaussian as gaussian
from privmarket.privacy import _tables as tables
from privmarket.privacy._events import PrivacyEvent, require_delta
from privmarket.privacy._gaussian import Array, literal_noise_multiplier
from privmarket.privacy._release import release_distance

__all__ = ["ReleaseFamily", "literal_noise_multiplier", "noise_multiplier", "release_epsilon"]

# Releases of so many parameters are covered by the share of δ that is kept for finite arithmetic.
_MOST_PARAMETERS = 2**28
# Below this closed forms of δ lose their digits in float64.
_SMALLEST_DELTA = 1e-15


class Schedule(Protocol):
    """Whatever says how often a client draws records and adds noise: a training, an event, a sale, a task."""

    @property
    def sampling_rate(self) -> float:
        """Probability with which a record enters a step."""

    @property
    def steps(self) -> int:
        """Noisy steps in a release."""


@dataclass(frozen=True)
class ReleaseFamily:
    """The releases that a client sells in a round: all that is open is how much noise they carry.

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
        return self.delta * (1.0 - tables.ARITHMETIC_SHARE)

    @cached_property
    def epsilon_ceiling(self) -> float:
        """The largest ε for which (1 + e^ε)·steps·distance fits into the share of δ for finite arithmetic."""
        kept = self.delta * tables.ARITHMETIC_SHARE
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
            return tables.on_grid_above(exact)
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

        Covers ε from about `tables.EPSILON_MAX` down to `tables.EPSILON_MIN`.
        """
        if self.sampling_rate < 1.0 and self.steps > 1:
            table = self._table()
            return table.noise_multiplier, table.epsilon
        ends = self.noise_multiplier([tables.EPSILON_MAX, tables.EPSILON_MIN])
        noise = tables.grid_between(float(ends[0]), float(ends[1]))
        return noise, self.epsilon(noise)

    def release(self, noise_multiplier: float) -> PrivacyEvent:
        """The release of this family that carries so much noise."""
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

    def _table(self) -> tables.NoiseTable:
        return tables.noise_table(self.delta, self.sampling_rate, self.steps)

    def _bound(self, epsilon: Array) -> Array:
        """A sufficient multiplier for ε below the table: the better of two closed-form bounds."""
        # Sampling never costs privacy, and T releases of (ε/T, δ/T) are (ε, δ) by basic composition.
        enough = np.sqrt(self.steps) / gaussian.mu_of(epsilon, self.exact_delta)
        each = self.exact_delta / self.steps
        if each >= _SMALLEST_DELTA:
            parts = gaussian.sampled_noise_multiplier(epsilon / self.steps, each, self.sampling_rate)
            enough = np.minimum(enough, parts)
        return tables.on_grid_above(enough)


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
    """The ε of one release alone, by the same closed forms and tables."""
    family = ReleaseFamily.of(event, delta)
    return float(family.epsilon(event.noise_multiplier))
