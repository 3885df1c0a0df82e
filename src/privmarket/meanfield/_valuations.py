"""How valuations move between rounds, and what this means on the mesh.

A process is asked once per game for its transition over one time step, a row-stochastic matrix P over the valuation
cells. The equation for values applies P, the equation for the population applies its transpose, so that both see
the same chances.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.linalg.lapack import dtbtrs

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array
from privmarket.meanfield._grid import Mesh


class Transition(Protocol):
    """One time step of a valuation process on the cells of a mesh: a row-stochastic matrix P and its transpose."""

    def expect(self, value: Array) -> Array:
        """P·value, the expected value one step later. Shape (cells, ...)."""

    def move(self, mass: Array) -> Array:
        """Pᵀ·mass, where the mass is one step later. Shape (cells, ...)."""


class ValuationProcess(Protocol):
    """How a client's valuation moves; any object with this method is one.

    `Diffusion` and `MeanReverting` cover processes without jumps. For anything else return the matrix.
    """

    def transition(self, mesh: Mesh, mean: float) -> Transition | Array:
        """The chances of one time step.

        Args:
            mesh: `mesh.valuation` holds the centres of the cells, `mesh.step` the length of the step in rounds.
            mean: the personal mean of the kind of clients, to which a process may revert.

        Returns:
            (cells, cells) where entry (i, j) is the probability that a client in cell i is in cell j one step
            later; or an object with `expect` and `move`, where the matrix would be large.
        """


@dataclass(frozen=True, eq=False)
class MatrixTransition:
    """A transition given by its matrix.

    Attributes:
        matrix: (cells, cells), row i the probabilities of a client in cell i.
    """

    matrix: Array

    def expect(self, value: Array) -> Array:
        """P·value."""
        return np.asarray(self.matrix @ _columns(value)).reshape(value.shape)

    def move(self, mass: Array) -> Array:
        """Pᵀ·mass."""
        return np.asarray(self.matrix.T @ _columns(mass)).reshape(mass.shape)


def transition_of(process: ValuationProcess, mesh: Mesh, mean: float) -> Transition:
    """The transition of a process on a mesh; a matrix is checked first."""
    found = process.transition(mesh, mean)
    if not isinstance(found, np.ndarray):
        return found
    cells = mesh.grid.valuation_cells
    matrix = np.asarray(found, dtype=np.float64)
    name = type(process).__name__
    if matrix.shape != (cells, cells):
        raise ConfigurationError(
            f"{name}.transition returned an array of shape {matrix.shape}, not ({cells}, {cells})",
            "return one row of probabilities per valuation cell of the mesh",
        )
    if not np.all(matrix >= 0.0) or np.abs(matrix.sum(axis=1) - 1.0).max() > 1e-9:
        raise ConfigurationError(
            f"{name}.transition: rows must be probabilities, but the smallest entry is {matrix.min():g} and the "
            f"rows sum to {matrix.sum(axis=1).min():g} … {matrix.sum(axis=1).max():g}",
            "divide each row by its sum, and send what would leave the grid to its last cell",
        )
    return MatrixTransition(matrix / matrix.sum(axis=1, keepdims=True))


class _DiffusionProcess(ABC):
    """dv = drift dt + volatility dW on [0, limit], reflected at both ends.

    The generator is the exponentially fitted one: it is monotone at every cell Péclet number, of second order where
    the grid resolves the drift, and has the right stationary distribution. Time is implicit Euler, so there is no
    limit on the step.

    Implements: the valuation part of Eq. (sde) of [Sun2026]; the flux of [ScharfetterGummel1969].
    """

    @abstractmethod
    def drift_at(self, valuation: Array, mean: float) -> Array:
        """The drift per round at these valuations."""

    @abstractmethod
    def volatility_at(self, valuation: Array) -> Array:
        """The volatility per √round at these valuations."""

    def transition(self, mesh: Mesh, mean: float) -> NeighbourTransition:
        """The implicit Euler step of the generator."""
        width = mesh.valuation_width
        edges = np.asarray(np.arange(1, mesh.grid.valuation_cells) * width, dtype=np.float64)
        diffusion = 0.5 * self.volatility_at(edges) ** 2
        # The flux is drift·μ − ∂_v(D·μ) = (drift − D')·μ − D·μ', with D = volatility²/2.
        slope = np.diff(0.5 * self.volatility_at(mesh.valuation) ** 2) / width
        drift = self.drift_at(edges, mean) - slope
        still = diffusion == 0.0
        safe = np.where(still, 1.0, diffusion)
        peclet = drift * width / safe
        scale = safe / width**2
        up = np.where(still, np.maximum(drift, 0.0) / width, scale * _bernoulli(-peclet))
        down = np.where(still, np.maximum(-drift, 0.0) / width, scale * _bernoulli(peclet))
        return NeighbourTransition(up, down, mesh.step)

    def added_diffusion(self, mesh: Mesh, mean: float, refinement: float = 1.0) -> Array:
        """(cells,) the scheme's own diffusion ÷ the process's, with cells `refinement` times as narrow.

        At cell Péclet number z = |drift|·width/diffusion it is (z/2)·coth(z/2) − 1: z²/12 where z is small.
        """
        drift = np.abs(self.drift_at(mesh.valuation, mean))
        diffusion = 0.5 * self.volatility_at(mesh.valuation) ** 2
        still = diffusion == 0.0
        half = 0.5 * drift * mesh.valuation_width / refinement / np.where(still, 1.0, diffusion)
        half = np.maximum(half, 1e-6)
        return np.where(still, np.where(drift > 0.0, np.inf, 0.0), half / np.tanh(half) - 1.0)


@dataclass(frozen=True)
class MeanReverting(_DiffusionProcess):
    """dv = κ(m − v)dt + σdW: valuations are drawn back to the personal mean m of the kind of clients.

    Attributes:
        reversion: κ ≥ 0 per round.
        volatility: σ ≥ 0 per √round.
    """

    reversion: float
    volatility: float

    def __post_init__(self) -> None:
        for name in ("reversion", "volatility"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)}: must be 0 or more", "use 0 or more, and a finite number"
                )

    def drift_at(self, valuation: Array, mean: float) -> Array:
        """κ(m − v)."""
        return self.reversion * (mean - valuation)

    def volatility_at(self, valuation: Array) -> Array:
        """σ everywhere."""
        return np.full_like(valuation, self.volatility)


@dataclass(frozen=True)
class Diffusion(_DiffusionProcess):
    """dv = a(v, m)dt + s(v)dW for functions a and s of your own.

    Attributes:
        drift: a, (valuations, personal mean) ↦ drift per round, an array of the valuations' shape.
        volatility: s, valuations ↦ volatility per √round, an array of the same shape, nowhere negative.
    """

    drift: Callable[[Array, float], Array]
    volatility: Callable[[Array], Array]

    def drift_at(self, valuation: Array, mean: float) -> Array:
        """a(v, m)."""
        return np.broadcast_to(np.asarray(self.drift(valuation, mean), dtype=np.float64), valuation.shape)

    def volatility_at(self, valuation: Array) -> Array:
        """s(v)."""
        return np.broadcast_to(np.asarray(self.volatility(valuation), dtype=np.float64), valuation.shape)


@dataclass(frozen=True, eq=False)
class NeighbourTransition:
    """P = (I − dt·L)⁻¹ for a generator L that moves mass between neighbouring cells. P itself is never formed.

    Attributes:
        up: (cells − 1,) rate from cell i up to i + 1, per round.
        down: (cells − 1,) rate from cell i + 1 down to i.
        step: dt in rounds.
    """

    up: Array
    down: Array
    step: float

    @cached_property
    def _factors(self) -> tuple[Array, Array]:
        """Band storage of L (unit lower) and U (upper) of I − dt·L, without pivoting.

        The matrix is an M-matrix, so elimination needs no pivots, and each later operation adds numbers of
        one sign: that is why a density cannot become negative, not even by rounding.
        """
        up = self.step * self.up
        down = self.step * self.down
        cells = up.size + 1
        lower = np.zeros((2, cells))
        upper = np.zeros((2, cells))
        lower[0] = 1.0
        upper[0, 1:] = -up
        # Pivots from row sums, which are 1 at the start: only sums of positive numbers, so the factors are
        # accurate to rounding however stiff the matrix is, and mass is kept to rounding too.
        row_sum = 1.0
        for i in range(cells):
            upper[1, i] = row_sum + (up[i] if i < cells - 1 else 0.0)
            if i < cells - 1:
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


def _columns(array: Array) -> Array:
    return array.reshape(array.shape[0], -1)


def _bernoulli(z: Array) -> Array:
    """z/(e^z − 1), 1 at 0."""
    small = np.abs(z) < 1e-8
    safe = np.where(small, 1.0, z)
    return np.where(small, 1.0 - 0.5 * z, safe / np.expm1(np.minimum(safe, 700.0)))
