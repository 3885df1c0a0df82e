"""How selling moves the remaining budget: two monotone upwind schemes and their exact transposes.

Selling only lowers r, so the upwind neighbour is always the one below: ∂_rΦ ≈ (Φ_j − Φ_{j−1})/Δr. With a
fixed policy a step is Φ ↦ advance(Φ, rate, reward), and the mass moves by the transpose of the same matrix:

    ⟨mass, advance(Φ, rate, reward)⟩ = ⟨move(mass, rate), Φ⟩ + dt·⟨exposure(mass, rate), reward⟩

for every mass, Φ and reward. Mass conservation, positivity and an exact exploitability follow from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.linalg.lapack import dtbtrs

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array
from privmarket.meanfield._grid import Mesh

Surplus = Callable[[Array], Array]
Rate = Callable[[Array], Array]


@dataclass(frozen=True)
class AccuracyOrder:
    """Declared order of accuracy in each direction; a test measures each."""

    time: float
    valuation: float
    budget: float


class BudgetScheme(ABC):
    """One step of the selling part, for arrays (kinds, valuations, budgets). Rates are 0 at budget 0.

    Attributes:
        name: what `solve` and the command line call it.
        order: its declared order of accuracy.
        implicit: whether a step's sales are weighed against the value at the step's own time (True) or against the
            expected value one step later (False).
    """

    name: ClassVar[str]
    order: ClassVar[AccuracyOrder]
    implicit: ClassVar[bool] = False

    @abstractmethod
    def check(self, mesh: Mesh, most_sold: float) -> None:
        """Refuses a mesh that the scheme is not stable on."""

    @abstractmethod
    def optimise(self, value: Array, mesh: Mesh, surplus: Surplus, rate: Rate) -> tuple[Array, Array]:
        """The nonlinear step: value a step earlier under the best reports, and the shadow price ∂_rΦ.

        `surplus` and `rate` take a shadow price and give S and what is sold, of the same shape.
        """

    @abstractmethod
    def advance(self, value: Array, rate: Array, reward: Array, mesh: Mesh) -> Array:
        """The linear step under a fixed policy: value a step earlier."""

    @abstractmethod
    def move(self, mass: Array, rate: Array, mesh: Mesh) -> Array:
        """Mass after the step's sales: the transpose of `advance` in its value."""

    @abstractmethod
    def exposure(self, mass: Array, rate: Array, mesh: Mesh) -> Array:
        """The mass that earns the step's reward: the transpose of `advance` in its reward, over dt."""


class ExplicitUpwind(BudgetScheme):
    """Rewards and prices at the start of the step; needs most_sold·dt ≤ Δr.

    The step is a round of a finite game: a client sells one block Δr with probability rate·dt/Δr.

    Implements: the monotone upwind scheme of [AchdouCapuzzo2010] with the control set to the closed form.
    """

    name = "explicit"
    order = AccuracyOrder(time=1, valuation=2, budget=1)

    def check(self, mesh: Mesh, most_sold: float) -> None:
        """Refuses a time step in which a client could sell more than one block of budget."""
        if most_sold * mesh.step > mesh.budget_width * (1 + 1e-12):
            steps = int(np.ceil(most_sold * mesh.horizon / mesh.budget_width))
            raise ConfigurationError(
                f"explicit scheme: {mesh.grid.time_steps} time steps are beyond its stability limit "
                f"(a step sells up to {most_sold * mesh.step:.4g}, a budget cell is {mesh.budget_width:.4g})",
                f"use at least {steps} time steps, fewer budget nodes, or the implicit scheme",
            )

    def optimise(self, value: Array, mesh: Mesh, surplus: Surplus, rate: Rate) -> tuple[Array, Array]:
        """One explicit step of the value, Φ + dt·S(v + ∂_rΦ), and the shadow price ∂_rΦ that it used."""
        shadow = shadow_price(value, mesh)
        return value + mesh.step * surplus(shadow), shadow

    def advance(self, value: Array, rate: Array, reward: Array, mesh: Mesh) -> Array:
        """One explicit step of the value under a given policy: Φ + dt·(reward − rate·∂_rΦ)."""
        lost = _courant(rate, mesh) * mesh.budget_width * shadow_price(value, mesh)
        return value + mesh.step * reward - lost

    def move(self, mass: Array, rate: Array, mesh: Mesh) -> Array:
        """The share rate·dt/Δr of each node's mass falls to the node below."""
        falling = mass * _courant(rate, mesh)
        moved = mass - falling
        moved[..., :-1] += falling[..., 1:]
        return moved

    def exposure(self, mass: Array, rate: Array, mesh: Mesh) -> Array:
        """Sales are made by those who are there at the start of the step."""
        return mass


class ImplicitUpwind(BudgetScheme):
    """Rewards and prices at the end of the step; stable for every time step.

    The nonlinear step is solved by policy iteration, which on an M-matrix with a convex Hamiltonian rises
    monotonically and ends after a few linear solves.

    Implements: implicit upwind of [AchdouCapuzzo2010]; policy iteration of [Howard1960].
    """

    name = "implicit"
    implicit = True
    order = AccuracyOrder(time=1, valuation=2, budget=1)
    max_policy_iterations = 60

    def check(self, mesh: Mesh, most_sold: float) -> None:
        """Accepts every grid: the implicit scheme is stable whatever the time step."""

    def optimise(self, value: Array, mesh: Mesh, surplus: Surplus, rate: Rate) -> tuple[Array, Array]:
        """Solves Φ − dt·S(v + ∂_rΦ) = value for Φ by policy iteration; also returns the shadow price ∂_rΦ."""
        shadow = shadow_price(value, mesh)
        scale = mesh.step * (1e-15 + np.abs(surplus(shadow)).max())
        for _ in range(self.max_policy_iterations):
            sold = rate(shadow)
            # S = reward − shadow·sold, so the policy's reward is its surplus plus the shadow price of sales.
            earlier = self.advance(value, sold, surplus(shadow) + shadow * sold, mesh)
            shadow = shadow_price(earlier, mesh)
            if np.abs(earlier - value - mesh.step * surplus(shadow)).max() <= 1e-13 * scale:
                break
        return earlier, shadow

    def advance(self, value: Array, rate: Array, reward: Array, mesh: Mesh) -> Array:
        """One implicit step of the value under a given policy: (I + dt·rate·∂_r)⁻¹(Φ + dt·reward)."""
        return _solve(rate, value + mesh.step * reward, mesh, "N")

    def move(self, mass: Array, rate: Array, mesh: Mesh) -> Array:
        """Moves the density over one step, by the transpose of the system that `advance` solves."""
        return _solve(rate, mass, mesh, "T")

    def exposure(self, mass: Array, rate: Array, mesh: Mesh) -> Array:
        """Sales are made by those who are there at the end of the step."""
        return _solve(rate, mass, mesh, "T")


def shadow_price(value: Array, mesh: Mesh) -> Array:
    """∂_rΦ by the difference to the node below; budget 0, which has none, gets its neighbour's."""
    shadow = np.empty_like(value)
    np.subtract(value[..., 1:], value[..., :-1], out=shadow[..., 1:])
    shadow[..., 1:] /= mesh.budget_width
    shadow[..., 0] = shadow[..., 1]
    return shadow


def _courant(rate: Array, mesh: Mesh) -> Array:
    """The share of a node's mass that falls in a step. At the stability limit rounding may not pass 1."""
    return np.minimum(rate * (mesh.step / mesh.budget_width), 1.0)


def _solve(rate: Array, right: Array, mesh: Mesh, transposed: str) -> Array:
    """Solves with the bidiagonal I + dt·rate·∂_r, all rows in one band; rate 0 at r = 0 keeps them apart."""
    courant = (rate * (mesh.step / mesh.budget_width)).ravel()
    band = np.empty((2, courant.size), order="F")
    band[0] = 1.0 + courant
    band[1, :-1] = -courant[1:]
    band[1, -1] = 0.0
    solved, _ = dtbtrs(band, right.reshape(-1, 1), uplo="L", trans=transposed)
    return np.asarray(solved).reshape(right.shape)


SCHEMES: dict[str, BudgetScheme] = {s.name: s for s in (ExplicitUpwind(), ImplicitUpwind())}
"""The finite-difference schemes that `solve` knows by name."""
