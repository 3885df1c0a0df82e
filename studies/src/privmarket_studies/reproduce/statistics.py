"""Means over seeds with their spread, and the honest comparison of two of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np


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
        """From one figure per seed."""
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
        """Of the mean; infinite for one seed."""
        return self.std / self.seeds**0.5 if self.seeds > 1 else float("inf")


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Measured | None:
    """a − b over the seeds that both have: what they share (markets, records) cancels; None without any."""
    shared = sorted(a.keys() & b.keys())
    return Measured.of(a[seed] - b[seed] for seed in shared) if shared else None


def interval(difference: Measured, level: float = 0.95) -> tuple[float, float]:
    """Student's confidence interval of a mean over seeds; without limits for one seed."""
    from scipy.special import stdtrit

    if difference.seeds < 2:
        return float("-inf"), float("inf")
    half = float(stdtrit(difference.seeds - 1, 0.5 + level / 2)) * difference.standard_error
    return difference.mean - half, difference.mean + half


def within_noise(a: Mapping[int, float], b: Mapping[int, float], level: float = 0.95) -> bool:
    """Whether the paired t test over shared seeds leaves open that the means are the same.

    With fewer than two shared seeds nothing is known about the noise, so no difference can be claimed. Without any
    spread of the differences (exact rules) every difference counts.
    """
    difference = paired(a, b)
    if difference is None or difference.seeds < 2:
        return True
    low, high = interval(difference, level)
    return low <= 0.0 <= high


def compared(a: Mapping[int, float], b: Mapping[int, float]) -> str:
    """`above`, `below` or `within noise of`, seed by seed."""
    difference = paired(a, b)
    if difference is None or within_noise(a, b):
        return "within noise of"
    return "above" if difference.mean > 0 else "below"
