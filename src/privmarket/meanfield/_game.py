"""The discrete game: the HJB equation backwards, the Fokker–Planck equation forwards, on one mesh.

A time step first sells (a budget scheme), then moves valuations. Backwards that is Φⁿ = sell(P·Φⁿ⁺¹),
forwards mⁿ⁺¹ = Pᵀ·sellᵀ(mⁿ): one matrix and its transpose. So the discrete system is itself a finite-state
game, and what a client could gain against a flow is computed exactly, not estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import brentq

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array
from privmarket.meanfield._grid import Grid, Mesh
from privmarket.meanfield._markets import RepresentativeMarket
from privmarket.meanfield._problem import Problem
from privmarket.meanfield._schemes import BudgetScheme
from privmarket.meanfield._valuations import Diffusion, MeanReverting, Transition, transition_of

_MOST_ADDED_DIFFUSION = 0.25
_FEWEST_CELLS_SOLD = 4.0


@dataclass(frozen=True)
class Flow:
    """What happens when everyone plays one strategy.

    Attributes:
        mass: (steps + 1, kinds, valuations, budgets), each time summing to 1.
        price: (steps,) the price level of each step; NaN where a market of its own kind has none.
        spend: (steps,) mean payment per client and round (mean quantity for a quantity-constrained market).
        sold: (steps,) mean ε sold per client and round.
        at_ceiling: (steps,) whether the price ceiling kept the buyer from spending its budget.
        earned: what a client gains in all, on average over the starting mass.
    """

    mass: Array
    price: Array
    spend: Array
    sold: Array
    at_ceiling: Array
    earned: float


class DiscreteGame:
    """A problem on a mesh under a scheme. Arrays are (kinds, valuations, budgets) unless said otherwise."""

    def __init__(self, problem: Problem, scheme: BudgetScheme, grid: Grid) -> None:
        self.problem = problem
        self.scheme = scheme
        self.grid = grid
        self.mesh: Mesh = problem.mesh(grid)
        scheme.check(self.mesh, problem.market.most_sold)
        self.initial_mass, self.means = problem.initial(self.mesh)
        self.processes = [p.process for p in problem.populations for _ in range(p.kinds)]
        self.transitions: list[Transition] = [
            transition_of(process, self.mesh, float(mean))
            for process, mean in zip(self.processes, self.means, strict=True)
        ]
        _check_resolution(self)

    @cached_property
    def valuation(self) -> Array:
        """(1, valuations, 1) so that it broadcasts against the state arrays."""
        return self.mesh.valuation[None, :, None]

    @cached_property
    def can_sell(self) -> Array:
        """1 where budget is left, 0 at budget 0."""
        return (self.mesh.budget > 0).astype(np.float64)

    @cached_property
    def holding(self) -> Array:
        """(budgets,) the reward per round for budget that is still held."""
        reward = self.problem.holding_reward
        return np.zeros_like(self.mesh.budget) if reward is None else reward(self.mesh.budget)

    def best_response(
        self, levels: Sequence[float] | Array, market: RepresentativeMarket | None = None
    ) -> tuple[Array, Array]:
        """The HJB equation backwards against given price levels.

        Implements: Eq. (hjb) of [Sun2026] with the inner maximum of Eq. (optimal-bid) in closed form.
        Deviation: noise acts on valuations only; σ on the remaining budget would let it rise by itself.

        Returns:
            value, (steps + 1, kinds, valuations, budgets), and shadow price, (steps, kinds, valuations,
            budgets); the best report is valuation + shadow price.
        """
        market = self.problem.market if market is None else market
        shape = self.initial_mass.shape
        steps = self.grid.time_steps
        width = self.mesh.valuation_width
        value = np.zeros((steps + 1, *shape))
        shadow = np.empty((steps, *shape))
        if self.problem.final_value is not None:
            value[steps] = self.problem.final_value(self.mesh.budget)
        for n in reversed(range(steps)):
            level = levels[n]

            def surplus(d: Array, level: float = level) -> Array:
                return market.surplus(self.valuation + d, level, width) * self.can_sell + self.holding

            def rate(d: Array, level: float = level) -> Array:
                return market.sold(self.valuation + d, level, width) * self.can_sell

            expected = self.expect(value[n + 1])
            value[n], shadow[n] = self.scheme.optimise(expected, self.mesh, surplus, rate)
        return value, shadow

    def flow(
        self,
        shadow: Array,
        levels: Sequence[float] | Array | None = None,
        market: RepresentativeMarket | None = None,
    ) -> Flow:
        """The Fokker–Planck equation forwards when everyone reports valuation + shadow price.

        Without `levels` each step's price level is the one at which the buyer spends its budget on this flow;
        with them the flow is that of clients who meet those prices.

        Implements: Eq. (fp) of [Sun2026].
        """
        market = self.problem.market if market is None else market
        steps = self.grid.time_steps
        mass = np.empty((steps + 1, *self.initial_mass.shape))
        mass[0] = self.initial_mass
        price = np.full(steps, np.nan)
        spend = np.empty(steps)
        sold = np.empty(steps)
        ceiling = np.zeros(steps, dtype=bool)
        earned = 0.0
        for n in range(steps):
            report = self.valuation + shadow[n]
            if levels is None:
                level, ceiling[n] = self.clear(mass[n], report, price[n - 1] if n else np.nan)
            else:
                level = levels[n]
            if isinstance(level, float):
                price[n] = level
            rate, exposed = self._sell(mass[n], report, level, market)
            reward = market.reward(self.valuation, report, level, self.mesh.valuation_width) * self.can_sell
            earned += self.mesh.step * float(np.vdot(exposed, reward + self.holding))
            spend[n] = self._spend(exposed, report, level, market)
            sold[n] = float(np.vdot(exposed, rate))
            mass[n + 1] = self.move(self.scheme.move(mass[n], rate, self.mesh))
        if self.problem.final_value is not None:
            earned += float(np.sum(mass[steps] * self.problem.final_value(self.mesh.budget)))
        return Flow(mass, price, spend, sold, ceiling, earned)

    def clear(self, mass: Array, report: Array, guess: float = np.nan) -> tuple[float, bool]:
        """The price level at which the mean spend is the budget per client, and whether the ceiling binds."""
        return self.clear_spend(lambda level: self.mean_spend(mass, report, level), guess)

    def clear_spend(self, mean_spend: Callable[[float], float], guess: float = np.nan) -> tuple[float, bool]:
        """As `clear`, for any rising function from the price level to what is spent per client and round."""
        ceiling = self.problem.price_ceiling

        def excess(level: float) -> float:
            return mean_spend(level) - self.problem.budget_per_client

        if excess(ceiling) <= 0.0:
            return ceiling, True
        low = 0.0
        high = ceiling
        if np.isfinite(guess):
            # Prices move little from step to step: a narrow bracket saves most of the search.
            near = 0.98 * guess
            far = min(1.02 * guess, ceiling)
            low = near if excess(near) < 0 else low
            high = far if excess(far) > 0 else high
        return float(brentq(excess, low, high, xtol=1e-14, rtol=1e-14)), False

    def mean_spend(self, mass: Array, report: Array, level: float) -> float:
        """What the buyer spends per client and round if `mass` sends these reports at this price level."""
        _, exposed = self._sell(mass, report, level, self.problem.market)
        return self._spend(exposed, report, level, self.problem.market)

    def starting_value(self, value: Array) -> float:
        """Expected value of the game at its start, over the starting mass."""
        return float(np.vdot(self.initial_mass, value[0]))

    def _sell(self, mass: Array, report: Array, level: float, market: RepresentativeMarket) -> tuple[Array, Array]:
        rate = market.sold(report, level, self.mesh.valuation_width) * self.can_sell
        return rate, self.scheme.exposure(mass, rate, self.mesh)

    def _spend(self, exposed: Array, report: Array, level: float, market: RepresentativeMarket) -> float:
        spend = market.spend(report, level, self.mesh.valuation_width) * self.can_sell
        return float(np.vdot(exposed, spend))

    def expect(self, value: Array) -> Array:
        """The expected value after valuations have moved by one step."""
        return np.stack([p.expect(value[k]) for k, p in enumerate(self.transitions)])

    def move(self, mass: Array) -> Array:
        """The mass after valuations have moved by one step."""
        return np.stack([p.move(mass[k]) for k, p in enumerate(self.transitions)])


def _check_resolution(game: DiscreteGame) -> None:
    """Refuses meshes on which the answer would be the scheme's and not the game's."""
    mass = game.initial_mass.sum(axis=2)

    def added(refinement: float) -> float:
        # Only where there are clients: without noise the ratio is infinite, and 0 × ∞ is not a number.
        total = 0.0
        for m, mean, process in zip(mass, game.means, game.processes, strict=True):
            if isinstance(process, Diffusion | MeanReverting):
                total += m[m > 0] @ process.added_diffusion(game.mesh, float(mean), refinement)[m > 0]
        return float(total)

    if added(1.0) > _MOST_ADDED_DIFFUSION:
        enough = next((f for f in 1.25 ** np.arange(1, 32) if added(f) <= _MOST_ADDED_DIFFUSION), None)
        cells = int(np.ceil(game.grid.valuation_cells * enough)) if enough else None
        raise ConfigurationError(
            f"grid too coarse for the drift of valuations: for the average client the scheme would add "
            f"{added(1.0):.3g} times the model's own diffusion",
            (f"use about {cells} valuation cells, " if cells else "use ") + "more volatility or less reversion",
        )
    sold = game.problem.market.most_sold * game.problem.horizon / game.mesh.budget_width
    if sold < _FEWEST_CELLS_SOLD:
        nodes = int(np.ceil(_FEWEST_CELLS_SOLD / sold * (game.grid.budget_nodes - 1))) + 1
        raise ConfigurationError(
            f"grid too coarse for what is sold: a client sells at most {sold:.3g} budget cells in all",
            f"use at least {nodes} budget nodes, or a longer horizon",
        )
