"""The game that is solved: who the clients are, how their valuations move, what the buyer spends.

A client's state is (valuation v, remaining budget r). In a round it reports b, sells x(b; τ_t) at price level
τ_t and is paid p(b; τ_t); r falls by x. The buyer spends `budget_per_client` per client and round, which
fixes τ_t. Clients of one kind share a personal mean that their valuations revert to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array
from privmarket.market._distributions import Distribution, IndependentDistribution, scenario
from privmarket.market._menus import POSTED_PRICE
from privmarket.meanfield._grid import Grid, Mesh
from privmarket.meanfield._representative import MenuMarket, RepresentativeMarket
from privmarket.meanfield._valuation_process import ValuationProcess

_QUADRATURE_POINTS = 40_000
_SAMPLES = 400_000


@dataclass(frozen=True)
class Problem:
    """A mean-field game of selling privacy budget over many rounds.

    Attributes:
        law: clients at the start: valuation v, and ε as the whole budget r that may be sold over the horizon.
        market: one round's market; it holds the most ε that is sold per round.
        budget_per_client: what the buyer spends per client and round.
        horizon: number of rounds.
        reversion: κ, how fast valuations return to their mean, per round.
        volatility: σ of valuations, per √round.
        kinds: into how many groups of equal size, by starting valuation, the clients fall; each group's mean
            is its clients' personal mean.
        valuation_limit: the upper wall of the valuation grid.
        price_ceiling: the buyer never pays a price level above this.
        holding_reward: r ↦ reward per round for budget that is still held; None is zero.
        final_value: r ↦ worth of what is left at the end; None is zero.
    """

    law: Distribution
    market: RepresentativeMarket
    budget_per_client: float
    horizon: float
    reversion: float
    volatility: float
    valuation_limit: float
    price_ceiling: float
    kinds: int = 1
    holding_reward: Callable[[Array], Array] | None = None
    final_value: Callable[[Array], Array] | None = None

    def __post_init__(self) -> None:
        for name in ("budget_per_client", "horizon", "valuation_limit", "price_ceiling", "kinds"):
            if not 0 < getattr(self, name) < np.inf:
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)}: must be above 0",
                    f"raise {name} to a finite number above 0",
                )
        for name in ("reversion", "volatility"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)}: must be 0 or more", "use 0 or more, and a finite number"
                )

    @classmethod
    def from_scenario(cls, name: str = "uniform", **settings: Any) -> Problem:
        """The default game on one of the scenarios of Table II; settings are those of `from_law`."""
        return cls.from_law(scenario(name), **settings)

    @classmethod
    def from_law(
        cls,
        law: Distribution,
        *,
        budget_per_client: float = 0.1,
        horizon: float = 12.0,
        market: RepresentativeMarket | None = None,
        reversion: float = 0.3,
        relative_volatility: float = 0.35,
        kinds: int = 1,
    ) -> Problem:
        """The default game among clients of a law.

        `relative_volatility` is σ over the standard deviation of the law's valuations, so that one
        default fits laws of different scale.
        """
        valuation = _valuations(law)
        volatility = relative_volatility * float(valuation.std())
        # Room above the law for what noise adds before reversion takes it back.
        duration = min(horizon, 1.0 / (2.0 * reversion) if reversion > 0 else horizon)
        excursion = volatility * np.sqrt(max(duration, 0.0))
        top = float(np.quantile(valuation, 0.9995))
        limit = top + max(2.5 * float(excursion), 0.05 * top)
        return cls(
            law=law,
            market=MenuMarket(POSTED_PRICE, sale_cap=0.3) if market is None else market,
            budget_per_client=budget_per_client,
            horizon=horizon,
            reversion=reversion,
            volatility=volatility,
            valuation_limit=limit,
            price_ceiling=limit,
            kinds=kinds,
        )

    def replace(self, **changes: object) -> Problem:
        """A copy of this game with some settings changed, checked again."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def mesh(self, grid: Grid) -> Mesh:
        """The points of `grid` over this game's range of valuations, budgets and time."""
        return Mesh(grid, self.valuation_limit, self.law.epsilon_max, self.horizon)

    def initial(self, mesh: Mesh) -> tuple[Array, Array]:
        """The starting mass (kinds, valuations, budgets), summing to 1, and the kinds' means (kinds,)."""
        if isinstance(self.law, IndependentDistribution):
            # Independent: the product of two one-dimensional laws, by quantile quadrature.
            points = (np.arange(_QUADRATURE_POINTS) + 0.5) / _QUADRATURE_POINTS
            budget = _to_nodes(self.law.epsilon(points), mesh).mean(axis=0)
            return self._split(np.sort(self.law.valuation(points)), budget, mesh)
        bids = self.law.sample(np.random.default_rng(0), _SAMPLES)
        order = np.argsort(bids.valuation, kind="stable")
        return self._split(bids.valuation[order], bids.epsilon[order], mesh)

    def _split(self, valuation: Array, budget: Array, mesh: Mesh) -> tuple[Array, Array]:
        """Groups sorted valuations into kinds. `budget`: one mass on the nodes, or one number per client."""
        cells, nodes = mesh.grid.valuation_cells, mesh.grid.budget_nodes
        mass, means = np.zeros((self.kinds, cells, nodes)), np.zeros(self.kinds)
        for k, members in enumerate(np.array_split(np.arange(valuation.size), self.kinds)):
            means[k] = valuation[members].mean()
            cell = np.clip((valuation[members] / mesh.valuation_width).astype(int), 0, cells - 1)
            if budget.size == nodes:
                mass[k] = np.bincount(cell, minlength=cells)[:, None] * budget
            else:
                np.add.at(mass[k], cell, _to_nodes(budget[members], mesh))
        return mass / mass.sum(), means

    def process(self, mesh: Mesh, mean: float) -> ValuationProcess:
        """How the valuations of a kind with this mean move over one time step."""
        return ValuationProcess(
            mesh.grid.valuation_cells, mesh.valuation_width, mean, self.reversion, self.volatility, mesh.step
        )


def _valuations(law: Distribution) -> Array:
    """Many valuations of a law, for its quantiles and its spread."""
    if isinstance(law, IndependentDistribution):
        points = (np.arange(_QUADRATURE_POINTS) + 0.5) / _QUADRATURE_POINTS
        return np.asarray(law.valuation(points))
    return law.sample(np.random.default_rng(0), _SAMPLES).valuation


def _to_nodes(budget: Array, mesh: Mesh) -> Array:
    """(clients, nodes): each budget split between its two nodes so that the mean is kept."""
    nodes = mesh.grid.budget_nodes
    place = np.clip(budget / mesh.budget_width, 0.0, nodes - 1.0)
    below = np.minimum(place.astype(int), nodes - 2)
    weights = np.zeros((budget.size, nodes))
    rows = np.arange(budget.size)
    weights[rows, below], weights[rows, below + 1] = 1.0 - (place - below), place - below
    return weights
