"""Means over seeds with their spread, and the honest comparison of two of them."""

from __future__ import annotations

from collections.abc import Iterable
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


def within_noise(a: Measured, b: Measured, level: float = 0.95) -> bool:
    """Whether Welch's t test at this level leaves open that the means are the same.

    With one seed on either side nothing is known about the noise, so no difference can be claimed. Without any
    spread on both sides (exact rules) every difference counts.
    """
    from scipy.special import stdtrit

    if min(a.seeds, b.seeds) < 2:
        return True
    parts = np.array([a.standard_error, b.standard_error]) ** 2
    if parts.sum() == 0.0:
        return a.mean == b.mean
    freedom = parts.sum() ** 2 / (parts**2 / (np.array([a.seeds, b.seeds]) - 1)).sum()
    return bool(abs(a.mean - b.mean) <= stdtrit(freedom, 0.5 + level / 2) * np.sqrt(parts.sum()))


def compared(a: Measured, b: Measured) -> str:
    """`above`, `below` or `within noise of`."""
    if within_noise(a, b):
        return "within noise of"
    return "above" if a.mean > b.mean else "below"
