"""The game that is solved: who the clients are, how their valuations move, what the buyer spends.

A client's state is (valuation v, remaining budget r). In a round it reports b, sells x(b; τ_t) at price level
τ_t and is paid p(b; τ_t); r falls by x. The buyer spends `budget_per_client` per client and round, which
fixes τ_t.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array, Bids
from privmarket.market._distributions import Distribution, IndependentDistribution, scenario
from privmarket.market._menus import POSTED_PRICE
from privmarket.meanfield._grid import Grid, Mesh
from privmarket.meanfield._markets import MenuMarket, RepresentativeMarket
from privmarket.meanfield._valuations import MeanReverting, ValuationProcess

_QUADRATURE_POINTS = 40_000
_SAMPLES = 400_000


@dataclass(frozen=True)
class Population:
    """Clients who start from one distribution and whose valuations move in one way.

    Attributes:
        distribution: the clients at the start: valuation v, and ε as the whole budget r that may be sold over the
            horizon.
        process: how valuations move.
        share: the share of all clients that belong to this population.
        kinds: into how many groups of equal size, by starting valuation, the clients fall; each group's mean
            is its clients' personal mean.
        name: what figures call it; the distribution's name unless given.
    """

    distribution: Distribution
    process: ValuationProcess
    share: float = 1.0
    kinds: int = 1
    name: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigurationError(f"share is {self.share}: must be above 0 and at most 1", "shares sum to 1")
        if self.kinds < 1:
            raise ConfigurationError(f"kinds is {self.kinds}: must be above 0", "raise kinds to 1 or more")
        if not self.name:
            object.__setattr__(self, "name", self.distribution.name)


@dataclass(frozen=True)
class Problem:
    """A mean-field game of selling privacy budget over many rounds.

    `Problem.from_scenario` fills in the defaults; this constructor leaves everything to you.

    Attributes:
        populations: who the clients are; shares sum to 1.
        market: one round's market; it holds the most ε that is sold per round.
        budget_per_client: what the buyer spends per client and round.
        horizon: number of rounds.
        valuation_limit: the upper wall of the valuation grid.
        price_ceiling: the buyer never pays a price level above this.
        holding_reward: r ↦ reward per round for budget that is still held; None is zero.
        final_value: r ↦ worth of what is left at the end; None is zero.
    """

    populations: tuple[Population, ...]
    market: RepresentativeMarket
    budget_per_client: float
    horizon: float
    valuation_limit: float
    price_ceiling: float
    holding_reward: Callable[[Array], Array] | None = None
    final_value: Callable[[Array], Array] | None = None

    def __post_init__(self) -> None:
        for name in ("budget_per_client", "horizon", "valuation_limit", "price_ceiling"):
            if not 0 < getattr(self, name) < np.inf:
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)}: must be above 0",
                    f"raise {name} to a finite number above 0",
                )
        total = sum(population.share for population in self.populations)
        if abs(total - 1.0) > 1e-9:
            raise ConfigurationError(
                f"the shares of {len(self.populations)} populations sum to {total:g}", "make them sum to 1"
            )

    @classmethod
    def from_scenario(
        cls,
        source: str | Path | Distribution | Bids = "uniform",
        *,
        budget_per_client: float = 0.1,
        horizon: float = 12.0,
        market: RepresentativeMarket | None = None,
        process: ValuationProcess | None = None,
        reversion: float = 0.3,
        relative_volatility: float = 0.35,
        kinds: int = 1,
        valuation_limit: float | None = None,
        price_ceiling: float | None = None,
        holding_reward: Callable[[Array], Array] | None = None,
        final_value: Callable[[Array], Array] | None = None,
    ) -> Problem:
        """The default game among clients of one distribution.

        Args:
            source: `uniform`, `bimodal`, `lognormal` or `valuation-function`, the path of a CSV file of past bids,
                past bids, or a distribution.
            budget_per_client: what the buyer spends per client and round.
            horizon: number of rounds.
            market: one round's market; a posted price that buys at most ε = 0.3 per client and round unless given.
            process: how valuations move; mean reversion with the next two settings unless given.
            reversion: κ, how fast valuations return to their mean, per round.
            relative_volatility: σ per √round over the standard deviation of the valuations at the start, so that
                one default fits distributions of different scale.
            kinds: into how many groups of equal size, by starting valuation, the clients fall.
            valuation_limit: the upper wall of the valuation grid; unless given, high enough for the distribution
                and what mean reversion adds to it, and a quarter above the distribution for other processes.
            price_ceiling: the highest price level; the valuation limit unless given.
            holding_reward: r ↦ reward per round for budget that is still held.
            final_value: r ↦ worth of what is left at the end.
        """
        distribution = scenario(source)
        valuation = _valuations(distribution)
        top = float(np.quantile(valuation, 0.9995))
        if process is None:
            process = MeanReverting(reversion, relative_volatility * float(valuation.std()))
        if valuation_limit is None:
            valuation_limit = top + _room_above(process, top, horizon)
        return cls(
            populations=(Population(distribution, process, kinds=kinds),),
            market=MenuMarket(POSTED_PRICE, sale_cap=0.3) if market is None else market,
            budget_per_client=budget_per_client,
            horizon=horizon,
            valuation_limit=valuation_limit,
            price_ceiling=valuation_limit if price_ceiling is None else price_ceiling,
            holding_reward=holding_reward,
            final_value=final_value,
        )

    @classmethod
    def from_populations(
        cls,
        populations: Sequence[Population],
        *,
        budget_per_client: float = 0.1,
        horizon: float = 12.0,
        market: RepresentativeMarket | None = None,
        valuation_limit: float | None = None,
        price_ceiling: float | None = None,
    ) -> Problem:
        """The default game among several populations that meet in one market; settings as in `from_scenario`."""
        if valuation_limit is None:
            limits = []
            for population in populations:
                top = float(np.quantile(_valuations(population.distribution), 0.9995))
                limits.append(top + _room_above(population.process, top, horizon))
            valuation_limit = max(limits, default=0.0)
        return cls(
            populations=tuple(populations),
            market=MenuMarket(POSTED_PRICE, sale_cap=0.3) if market is None else market,
            budget_per_client=budget_per_client,
            horizon=horizon,
            valuation_limit=valuation_limit,
            price_ceiling=valuation_limit if price_ceiling is None else price_ceiling,
        )

    def __repr__(self) -> str:
        return (
            f"Problem({self.name!r}, {self.horizon:g} rounds, {self.budget_per_client:g} per client and round, "
            f"{type(self.market).__name__}, {self.kinds} kind{'s' if self.kinds > 1 else ''} of clients)"
        )

    @property
    def name(self) -> str:
        """The populations' names."""
        return " + ".join(population.name for population in self.populations)

    @property
    def kinds(self) -> int:
        """The number of kinds of clients in all populations together; arrays hold them in that order."""
        return sum(population.kinds for population in self.populations)

    @property
    def kind_names(self) -> list[str]:
        """(kinds,) what figures call each kind."""
        names = []
        for population in self.populations:
            if population.kinds == 1:
                names.append(population.name)
            else:
                names += [f"{population.name}, kind {k}" for k in range(population.kinds)]
        return names

    def replace(self, **changes: object) -> Problem:
        """A copy of this game with some settings changed, checked again."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def mesh(self, grid: Grid) -> Mesh:
        """The points of `grid` over this game's range of valuations, budgets and time."""
        largest = max(population.distribution.epsilon_max for population in self.populations)
        return Mesh(grid, self.valuation_limit, largest, self.horizon)

    def initial(self, mesh: Mesh) -> tuple[Array, Array]:
        """The starting mass (kinds, valuations, budgets), summing to 1, and the kinds' means (kinds,)."""
        masses = []
        means = []
        for population in self.populations:
            mass, mean = _starting_mass(population, mesh)
            masses.append(population.share * mass)
            means.append(mean)
        return np.concatenate(masses), np.concatenate(means)


def _room_above(process: ValuationProcess, top: float, horizon: float) -> float:
    """Room above the largest starting valuation for what noise adds before reversion takes it back."""
    if not isinstance(process, MeanReverting):
        return 0.25 * top
    reversion = process.reversion
    duration = min(horizon, 1.0 / (2.0 * reversion) if reversion > 0 else horizon)
    excursion = process.volatility * float(np.sqrt(max(duration, 0.0)))
    return max(2.5 * excursion, 0.05 * top)


def _valuations(distribution: Distribution) -> Array:
    """Many valuations of a distribution, for its quantiles and its spread."""
    if isinstance(distribution, IndependentDistribution):
        points = (np.arange(_QUADRATURE_POINTS) + 0.5) / _QUADRATURE_POINTS
        return np.asarray(distribution.valuation(points))
    return distribution.sample(np.random.default_rng(0), _SAMPLES).valuation


def _starting_mass(population: Population, mesh: Mesh) -> tuple[Array, Array]:
    """The mass (kinds, valuations, budgets) of one population, summing to 1, and its kinds' means (kinds,)."""
    distribution = population.distribution
    if isinstance(distribution, IndependentDistribution):
        # Independent: the product of two one-dimensional distributions, by quantile quadrature.
        points = (np.arange(_QUADRATURE_POINTS) + 0.5) / _QUADRATURE_POINTS
        valuation = np.sort(distribution.valuation(points))
        budget = _to_nodes(distribution.epsilon(points), mesh).mean(axis=0)
    else:
        bids = distribution.sample(np.random.default_rng(0), _SAMPLES)
        order = np.argsort(bids.valuation, kind="stable")
        valuation = bids.valuation[order]
        budget = bids.epsilon[order]
    cells = mesh.grid.valuation_cells
    nodes = mesh.grid.budget_nodes
    mass = np.zeros((population.kinds, cells, nodes))
    means = np.zeros(population.kinds)
    for k, members in enumerate(np.array_split(np.arange(valuation.size), population.kinds)):
        means[k] = valuation[members].mean()
        cell = np.clip((valuation[members] / mesh.valuation_width).astype(int), 0, cells - 1)
        if isinstance(distribution, IndependentDistribution):
            mass[k] = np.bincount(cell, minlength=cells)[:, None] * budget
        else:
            np.add.at(mass[k], cell, _to_nodes(budget[members], mesh))
    return mass / mass.sum(), means


def _to_nodes(budget: Array, mesh: Mesh) -> Array:
    """(clients, nodes): each budget split between its two nodes so that the mean is kept."""
    nodes = mesh.grid.budget_nodes
    place = np.clip(budget / mesh.budget_width, 0.0, nodes - 1.0)
    below = np.minimum(place.astype(int), nodes - 2)
    weights = np.zeros((budget.size, nodes))
    rows = np.arange(budget.size)
    weights[rows, below] = 1.0 - (place - below)
    weights[rows, below + 1] = place - below
    return weights
