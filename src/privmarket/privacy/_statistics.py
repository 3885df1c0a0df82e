"""Single statistics of a client's records, sold at ε with discrete Laplace noise: a count, a mean, a histogram.

A statistic is first turned into whole numbers, which one record moves by at most a known number of steps; then
discrete Laplace noise is added (`_noise.draw_discrete_laplace`). Both are exact, so the release is ε-DP, with δ =
0, in the bits that leave. What leaves is a function of the noisy whole numbers and of public numbers.

The unit is one record that contributes nothing, as everywhere in this package; how many records there are is
public. A value that is not a number, or of no known category, contributes nothing either.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket.errors import PrivacyError
from privmarket.privacy._laplace import DiscreteLaplaceRelease
from privmarket.privacy._noise import NoiseSource, draw_discrete_laplace
from privmarket.privacy._wallet import Wallet

Array = NDArray[np.float64]

# Above this ε per step, noise exceeds 64 bits with probability e^(−2^22); below it, with more.
_LEAST_RATE = 2.0**-40


class Statistic(Protocol):
    """A statistic as whole numbers. One record moves only one of them, by at most `sensitivity`."""

    @property
    def sensitivity(self) -> int:
        """The most by which one record moves the whole number that it moves."""

    def whole_numbers(self, records: ArrayLike) -> NDArray[np.int64]:
        """(numbers,) the statistic of (records,) values, before the noise. Private."""

    def in_units(self, numbers: NDArray[np.int64]) -> Array:
        """(numbers,) noisy whole numbers in the units of the statistic."""


@dataclass(frozen=True)
class Count:
    """How many records are true."""

    @property
    def sensitivity(self) -> int:
        """A record counts once, or not at all."""
        return 1

    def whole_numbers(self, records: ArrayLike) -> NDArray[np.int64]:
        """(1,) the count."""
        return np.array([np.count_nonzero(np.asarray(records, dtype=bool))], dtype=np.int64)

    def in_units(self, numbers: NDArray[np.int64]) -> Array:
        """(1,) the noisy count; it may be negative."""
        return numbers.astype(np.float64)


@dataclass(frozen=True)
class Mean:
    """The mean of values between `low` and `high`; values outside are clipped.

    Attributes:
        low, high: public limits, not read off the records.
        records: the public number of records; the sum is divided by it.
        steps: values are rounded to so many steps on each side of the middle of the range.
    """

    low: float
    high: float
    records: int
    steps: int = 1024

    def __post_init__(self) -> None:
        if not -np.inf < self.low < self.high < np.inf or not np.isfinite(self.high - self.low):
            raise PrivacyError(f"a mean of values in [{self.low}, {self.high}]", "give finite limits, low < high")
        if self.records < 1 or self.steps < 1:
            raise PrivacyError(f"a mean of {self.records} records in {self.steps} steps", "give at least 1 of each")

    @property
    def sensitivity(self) -> int:
        """A record adds between −steps and steps; without it, 0, the middle of the range."""
        return self.steps

    def whole_numbers(self, records: ArrayLike) -> NDArray[np.int64]:
        """(1,) the sum of the values' distances from the middle, in steps."""
        middle = self.low / 2 + self.high / 2
        values = np.nan_to_num(np.asarray(records, dtype=np.float64), nan=middle, posinf=np.inf, neginf=-np.inf)
        scaled = (np.clip(values, self.low, self.high) - middle) / (self.high / 2 - self.low / 2) * self.steps
        # Clipped again, as whole numbers: whatever rounding did before, a record adds no more than `steps`.
        steps = np.clip(np.rint(scaled), -self.steps, self.steps).astype(np.int64)
        return np.array([steps.sum()], dtype=np.int64)

    def in_units(self, numbers: NDArray[np.int64]) -> Array:
        """(1,) the noisy mean; it may lie outside of the range."""
        middle = self.low / 2 + self.high / 2
        return middle + numbers / (self.steps * self.records) * (self.high / 2 - self.low / 2)


@dataclass(frozen=True)
class Histogram:
    """How many records there are of each category. The categories are public, not read off the records."""

    categories: tuple[Hashable, ...]

    def __init__(self, categories: Sequence[Hashable]) -> None:
        object.__setattr__(self, "categories", tuple(categories))
        if not self.categories or len(set(self.categories)) < len(self.categories):
            raise PrivacyError(f"a histogram of {list(categories)}", "name each category once")

    @property
    def sensitivity(self) -> int:
        """A record counts once, in one category."""
        return 1

    def whole_numbers(self, records: ArrayLike) -> NDArray[np.int64]:
        """(categories,) the counts."""
        place = {category: at for at, category in enumerate(self.categories)}
        found = [place[value] for value in np.asarray(records).tolist() if value in place]
        return np.bincount(np.array(found, dtype=np.int64), minlength=len(place)).astype(np.int64)

    def in_units(self, numbers: NDArray[np.int64]) -> Array:
        """(categories,) the noisy counts; they may be negative."""
        return numbers.astype(np.float64)


@dataclass(frozen=True, eq=False)
class ReleasedStatistic:
    """What leaves the client.

    Attributes:
        values: (numbers,) the noisy statistic.
        deviation: the standard deviation of its noise, in the same units; public.
        event: what accountants and wallets are told.
    """

    values: Array
    deviation: float
    event: DiscreteLaplaceRelease


def release_statistic(
    statistic: Statistic,
    records: ArrayLike,
    epsilon: float,
    *,
    wallet: Wallet | None = None,
    source: NoiseSource | None = None,
) -> ReleasedStatistic:
    """Sells a statistic of a client's records at ε: charges the wallet, then reads the records, then adds noise.

    Args:
        statistic: `Count`, `Mean`, `Histogram`, or an object of your own with the three members of `Statistic`.
        records: (records,) one value per record: true or false, a number, a category.
        epsilon: ε of the release, at δ = 0.
        wallet: charged before the records are read.
        source: random bits; the operating system's unless given. A seed is for simulations.

    Raises:
        WalletError: it does not fit; nothing is charged and nothing leaves.
    """
    event = DiscreteLaplaceRelease(float(epsilon), int(statistic.sensitivity))
    if event.epsilon / event.sensitivity < _LEAST_RATE:
        raise PrivacyError(
            f"ε = {event.epsilon:g} at a sensitivity of {event.sensitivity}: more noise than 64 bits can hold",
            "sell a larger ε, or use a coarser grid",
        )
    if wallet is not None:
        wallet.spend(event)
    exact = statistic.whole_numbers(records)
    source = NoiseSource.from_system() if source is None else source
    # ε as the float64 number that it is, divided without rounding.
    noise = draw_discrete_laplace(source, exact.size, Fraction(event.epsilon) / event.sensitivity)
    noisy = np.array([int(number) + one for number, one in zip(exact, noise, strict=True)], dtype=np.int64)
    step = float(statistic.in_units(np.ones_like(noisy))[0] - statistic.in_units(np.zeros_like(noisy))[0])
    return ReleasedStatistic(statistic.in_units(noisy), step * event.deviation, event)
