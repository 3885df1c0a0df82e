"""How much noise a sold ε needs: `noise_multiplier(ε, δ)`, never less than the accountant asks for.

Where a closed form exists it is used: the full batch (any number of steps is one Gaussian) and one
Poisson-sampled step. The rest goes through a table built once per (δ, sampling rate, steps).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import ArrayLike

from privmarket.errors import PrivacyError
from privmarket.privacy import gaussian, tables
from privmarket.privacy.events import (
    DEFAULT_DELTA,
    PrivacyEvent,
    release,
    require_delta,
    require_schedule,
)
from privmarket.privacy.gaussian import Array, literal_noise_multiplier

__all__ = ["ReleaseFamily", "literal_noise_multiplier", "noise_multiplier", "release_epsilon"]

# An ε beyond this is treated as this: e^ε stays finite, and more noise than asked for is always allowed.
_EPSILON_CEILING = 500.0


@dataclass(frozen=True)
class ReleaseFamily:
    """The releases that a client sells in a round: all that is open is how much noise they carry.

    The promise: everything released in the round is (ε, δ)-DP for one record added or removed.
    """

    sampling_rate: float = 1.0
    steps: int = 1
    delta: float = DEFAULT_DELTA

    def __post_init__(self) -> None:
        require_schedule(self.sampling_rate, self.steps)
        require_delta(self.delta)

    def noise_multiplier(self, epsilon: ArrayLike) -> Array:
        """For each ε > 0 the noise multiplier that makes the release (ε, δ)-DP. Any shape."""
        asked = _checked(epsilon)
        if self.sampling_rate == 1.0:
            # T full-batch steps are one Gaussian of T times the squared sensitivity.
            return np.asarray(np.sqrt(self.steps) / gaussian.mu_of(asked, self.delta))
        if self.steps == 1:
            exact = gaussian.sampled_noise_multiplier(asked, self.delta, self.sampling_rate)
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
            return gaussian.epsilon_of(np.sqrt(self.steps) / noise, self.delta)
        if self.steps == 1:
            return gaussian.sampled_epsilon(noise, self.delta, self.sampling_rate)
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

    def event(self, epsilon: float) -> PrivacyEvent:
        """The release that sells ε."""
        return release(float(self.noise_multiplier(epsilon)), self.sampling_rate, self.steps)

    def events(self, epsilon: ArrayLike) -> list[PrivacyEvent | None]:
        """One release per entry of (clients,) sold ε; None where nothing is sold (ε = 0)."""
        sold = np.asarray(epsilon, dtype=np.float64)
        made: list[PrivacyEvent | None] = [None] * sold.size
        selling = np.flatnonzero(sold != 0)
        if selling.size:
            for client, sigma in zip(selling, self.noise_multiplier(sold[selling]), strict=True):
                made[client] = release(float(sigma), self.sampling_rate, self.steps)
        return made

    def _table(self) -> tables.NoiseTable:
        return tables.noise_table(self.delta, self.sampling_rate, self.steps)

    def _bound(self, epsilon: Array) -> Array:
        """A sufficient multiplier for ε below the table: the better of two closed-form bounds."""
        unsampled = np.sqrt(self.steps) / gaussian.mu_of(epsilon, self.delta)
        each = gaussian.sampled_noise_multiplier(
            epsilon / self.steps, max(self.delta / self.steps, 1e-15), self.sampling_rate
        )
        # Sampling never costs privacy, and T releases of (ε/T, δ/T) are (ε, δ) by basic composition.
        return tables.on_grid_above(np.minimum(unsampled, each))


@overload
def noise_multiplier(
    epsilon: float, delta: float = ..., *, sampling_rate: float = ..., steps: int = ...
) -> float: ...
@overload
def noise_multiplier(
    epsilon: ArrayLike, delta: float = ..., *, sampling_rate: float = ..., steps: int = ...
) -> Array: ...
def noise_multiplier(
    epsilon: ArrayLike, delta: float = DEFAULT_DELTA, *, sampling_rate: float = 1.0, steps: int = 1
) -> float | Array:
    """The noise multiplier at which a release is (ε, δ)-DP for one record added or removed.

    Args:
        epsilon: what is sold, > 0, a number or an array of any shape.
        delta: the allowed failure probability; keep it below 1 / number of records.
        sampling_rate: the probability with which each record enters a step (Poisson sampling).
        steps: how many noisy sums are released.

    Returns:
        Standard deviation over sensitivity, a float for a number, else an array of ε's shape. Exact for
        sampling rate 1, elsewhere rounded up to a public grid by at most 1.1 %.

    Implements: [BalleWang2018] for sampling rate 1, privacy loss distributions otherwise.
    Deviation: the formula of Algorithm 2 in [Sun2026] is `literal_noise_multiplier`; it needs ε < 1.
    """
    found = ReleaseFamily(sampling_rate, steps, delta).noise_multiplier(epsilon)
    return float(found) if np.ndim(epsilon) == 0 else found


def release_epsilon(event: PrivacyEvent, delta: float = DEFAULT_DELTA) -> float:
    """The ε of one release alone, by the same closed forms and tables."""
    family = ReleaseFamily(event.sampling_rate, event.steps, delta)
    return float(family.epsilon(event.noise_multiplier))


def _checked(epsilon: ArrayLike) -> Array:
    try:
        asked = np.asarray(epsilon, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise PrivacyError(f"epsilon is {epsilon!r}: not a number", "give the ε that is sold") from error
    good = asked > 0
    if not good.all():
        first = asked[~good].flat[0]
        raise PrivacyError(f"epsilon is {first}: must be above 0", "who sells nothing releases nothing")
    return np.minimum(asked, _EPSILON_CEILING)
