"""Means over seeds with their spread, and how two of them are compared on every page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit


@dataclass(frozen=True)
class Measured:
    """A figure over seeds.

    Attributes:
        mean, std: over seeds; std is the sample's (n − 1), 0 for one seed.
        seeds: how many.
    """

    mean: float
    std: float
    seeds: int

    @staticmethod
    def of(values: Iterable[float]) -> Measured:
        """The mean and deviation of one figure per seed."""
        array = np.array(list(values), dtype=np.float64)
        std = float(array.std(ddof=1)) if array.size > 1 else 0.0
        return Measured(float(array.mean()), std, int(array.size))

    def text(self, spec: str = ".2f") -> str:
        """`mean ± std`; the mean alone for a single seed, and `0` where it is 0 for every seed."""
        if self.mean == 0 and self.std == 0:
            return "0"
        mean = format(self.mean, spec)
        return f"{mean} ± {format(self.std, spec.lstrip('+'))}" if self.seeds > 1 else mean

    @property
    def standard_error(self) -> float:
        """The standard error of the mean; infinite for one seed."""
        return self.std / self.seeds**0.5 if self.seeds > 1 else float("inf")


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Measured | None:
    """a − b over the seeds that both have: what they share (markets, records) cancels; None without any."""
    shared = sorted(a.keys() & b.keys())
    return Measured.of(a[seed] - b[seed] for seed in shared) if shared else None


def interval(difference: Measured, level: float = 0.95) -> tuple[float, float]:
    """Student's confidence interval of a mean over seeds; without limits for one seed."""
    if difference.seeds < 2:
        return float("-inf"), float("inf")
    half = float(stdtrit(difference.seeds - 1, 0.5 + level / 2)) * difference.standard_error
    return difference.mean - half, difference.mean + half


DECIDED = "differences seed by seed [95 %], in bold where the interval leaves 0 out (elsewhere seeds cannot tell)"


@dataclass(frozen=True)
class PairedComparison:
    """One figure of two rules (or trainings) over the seeds that both have.

    Attributes:
        difference: the first minus the second, seed by seed.
        above, below: in how many of the seeds the first is above or below the second.
    """

    difference: Measured
    above: int
    below: int

    @property
    def verdict(self) -> str:
        """`above`, `below`, `the same` (equal in every seed), or `open` (the 95 % interval holds 0)."""
        if self.above == self.below == 0:
            return "the same"
        low, high = interval(self.difference)
        return "above" if low > 0.0 else "below" if high < 0.0 else "open"

    def text(self, spec: str = "+.2f") -> str:
        """`+0.08 [-0.23, +0.39]`: the mean difference with its 95 % interval; one seed has none."""
        mean = format(self.difference.mean, spec)
        if self.difference.seeds < 2:
            return f"{mean} (one seed)"
        low, high = interval(self.difference)
        return f"{mean} [{format(low, spec)}, {format(high, spec)}]"

    def words(self, spec: str = "+.2f") -> str:
        """The difference, its interval and what may be said of it.

        An interval that holds 0 is no proof that two figures are equal, so it is never called that: it is said how
        many seeds could not decide, and on which side they fell.
        """
        seeds = self.difference.seeds
        if self.verdict == "the same":
            return "the same in every seed" if seeds > 1 else "the same (one seed)"
        if self.verdict != "open":
            return f"{self.text(spec)}, {self.verdict}"
        if seeds < 2:
            return f"{self.text(spec)}, which cannot tell"
        return f"{self.text(spec)}, {seeds} seeds cannot tell ({self._side()})"

    def entry(self, spec: str = "+.2f") -> str:
        """For a table that says `DECIDED` in its caption: bold where the interval leaves 0 out."""
        if self.verdict in ("above", "below"):
            return f"**{self.text(spec)}**"
        if self.verdict == "the same" or self.difference.seeds < 2:
            return self.words(spec).removesuffix(", which cannot tell")
        return f"{self.text(spec)} ({self._side()})"

    def _side(self) -> str:
        """On which side of the second the first lies in how many seeds."""
        side, count = ("above", self.above) if self.difference.mean > 0 else ("below", self.below)
        return f"{side} in {count} of {self.difference.seeds}"


def compare(a: Mapping[int, float], b: Mapping[int, float]) -> PairedComparison | None:
    """a against b over shared seeds by Student's paired test at 95 %; None where no seed is shared.

    Without any spread of the differences (exact rules) every difference counts.
    """
    difference = paired(a, b)
    if difference is None:
        return None
    shared = a.keys() & b.keys()
    above, below = (sum(sign * (a[seed] - b[seed]) > 0 for seed in shared) for sign in (1, -1))
    return PairedComparison(difference, above, below)
