"""How valuations move: dv = κ(m − v) dt + σ dW on [0, limit], reflected at both ends.

The generator is the exponentially fitted one: monotone at every cell Péclet number, of second order where the
grid resolves the drift, with the right stationary law. Time is implicit Euler, so there is no step limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dtbtrs

from privmarket.market._bids import Array


@dataclass(frozen=True)
class ValuationProcess:
    """One step of mean-reverting valuations, as a stochastic matrix P = (I − dt·L)⁻¹ that is never formed.

    Implements: the valuation part of Eq. (sde) of [Sun2026] as an Ornstein–Uhlenbeck process; the flux of
    [ScharfetterGummel1969].

    Attributes:
        cells: number of cells.
        width: width of a cell.
        mean: the personal mean m.
        reversion: κ ≥ 0 per round.
        volatility: σ ≥ 0 per √round.
        step: dt in rounds.
    """

    cells: int
    width: float
    mean: float
    reversion: float
    volatility: float
    step: float

    @cached_property
    def rates(self) -> tuple[Array, Array]:
        """(cells − 1,) twice: rate from cell i up to i + 1, and from i + 1 down to i, per round."""
        drift = self.reversion * (self.mean - np.arange(1, self.cells) * self.width)
        diffusion = 0.5 * self.volatility**2
        if diffusion == 0.0:
            return np.maximum(drift, 0.0) / self.width, np.maximum(-drift, 0.0) / self.width
        peclet = drift * self.width / diffusion
        scale = diffusion / self.width**2
        return scale * _bernoulli(-peclet), scale * _bernoulli(peclet)

    @cached_property
    def _factors(self) -> tuple[Array, Array]:
        """Band storage of L (unit lower) and U (upper) of I − dt·L, without pivoting.

        The matrix is an M-matrix, so elimination needs no pivots, and each later operation adds numbers of
        one sign: that is why a density cannot become negative, not even by rounding.
        """
        up, down = (self.step * rate for rate in self.rates)
        lower, upper = np.zeros((2, self.cells)), np.zeros((2, self.cells))
        lower[0], upper[0, 1:] = 1.0, -up
        # Pivots from row sums, which are 1 at the start: only sums of positive numbers, so the factors are
        # accurate to rounding however stiff the matrix is, and mass is kept to rounding too.
        row_sum = 1.0
        for i in range(self.cells):
            upper[1, i] = row_sum + (up[i] if i < self.cells - 1 else 0.0)
            if i < self.cells - 1:
                lower[1, i] = -down[i] / upper[1, i]
                row_sum = 1.0 - lower[1, i] * row_sum
        return np.asfortranarray(lower), np.asfortranarray(upper)

    def expect(self, value: Array) -> Array:
        """P·value: expected value one step later. Shape (cells, ...)."""
        lower, upper = self._factors
        half = dtbtrs(lower, _columns(value), uplo="L", diag="U")[0]
        return np.asarray(dtbtrs(upper, half, uplo="U")[0]).reshape(value.shape)

    def move(self, mass: Array) -> Array:
        """Pᵀ·mass: where the mass is one step later. Shape (cells, ...)."""
        lower, upper = self._factors
        half = dtbtrs(upper, _columns(mass), uplo="U", trans="T")[0]
        return np.asarray(dtbtrs(lower, half, uplo="L", trans="T", diag="U")[0]).reshape(mass.shape)

    def added_diffusion(self, refinement: float = 1.0) -> Array:
        """(cells,) the scheme's own diffusion ÷ the model's, with cells `refinement` times as narrow.

        At cell Péclet number z = |drift|·width/diffusion it is (z/2)·coth(z/2) − 1: z²/12 where z is small.
        """
        drift = self.reversion * np.abs(self.mean - (np.arange(self.cells) + 0.5) * self.width)
        if self.volatility == 0.0:
            return np.where(drift > 0.0, np.inf, 0.0)
        half = 0.5 * drift * self.width / refinement / (0.5 * self.volatility**2)
        safe = np.maximum(half, 1e-6)
        return np.asarray(safe / np.tanh(safe) - 1.0)


def _columns(array: Array) -> Array:
    return array.reshape(array.shape[0], -1)


def _bernoulli(z: NDArray[np.floating]) -> Array:
    """z/(e^z − 1), 1 at 0."""
    small = np.abs(z) < 1e-8
    safe = np.where(small, 1.0, z)
    return np.where(small, 1.0 - 0.5 * z, safe / np.expm1(np.minimum(safe, 700.0)))
