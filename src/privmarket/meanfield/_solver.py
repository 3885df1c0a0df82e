"""Solving for an equilibrium: a price path and a density flow that reproduce each other.

Each iteration answers a price path with the best strategy (HJB backwards), lets the population play it
(Fokker–Planck forwards, prices cleared on the way) and moves the path towards the prices that came out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array
from privmarket.meanfield._bid_function import BidFunction, Surface
from privmarket.meanfield._game import DiscreteGame, Flow
from privmarket.meanfield._grid import Grid
from privmarket.meanfield._problem import Problem
from privmarket.meanfield._representative import MenuMarket
from privmarket.meanfield._schemes import SCHEMES, BudgetScheme

Progress = Callable[[int, float], None]
_MOST_BOUNDARY_MASS = 1e-3


class Result(Enum):
    """How a solve ended: within the tolerance, at the limit of iterations, or without getting closer."""

    CONVERGED = "converged"
    ITERATION_LIMIT = "iteration-limit"
    STALLED = "stalled"


@dataclass(frozen=True)
class Note:
    """Something about a solution that its reader must know, with the remedy."""

    code: str
    message: str
    remedy: str


@dataclass(frozen=True)
class Statistics:
    """How the solve went.

    Attributes:
        iterations: strategies that were tried.
        seconds: wall time.
        price_change: per iteration, the largest |price that came out − price assumed| ÷ mean price.
    """

    iterations: int
    seconds: float
    price_change: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """A strategy, the flow it makes, and how far it is from a best response to that flow.

    Attributes:
        game: the problem on its mesh.
        result: whether the tolerance was reached; anything but CONVERGED is not a solution.
        value: (steps + 1, kinds, valuations, budgets) Φ against the flow's prices.
        shadow_price: (steps, kinds, valuations, budgets) ∂_rΦ that the population plays.
        flow: mass, prices, spend and sales when everyone plays it.
        exploitability: what one client gains by the best deviation against this flow, over the whole game.
        statistics: iterations, time, history.
        notes: what a reader must know.
    """

    game: DiscreteGame
    result: Result
    value: Array
    shadow_price: Array
    flow: Flow
    exploitability: float
    statistics: Statistics
    notes: tuple[Note, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<equilibrium {self.result.value} after {self.statistics.iterations} iterations on {self.grid}, "
            f"exploitability {self.relative_exploitability:.1e} of the mean payment>"
        )

    @property
    def problem(self) -> Problem:
        """The game that was solved."""
        return self.game.problem

    @property
    def grid(self) -> Grid:
        """The numbers of cells, nodes and steps of the mesh."""
        return self.game.grid

    @property
    def scheme(self) -> BudgetScheme:
        """The finite-difference scheme with which it was solved."""
        return self.game.scheme

    @property
    def price(self) -> Array:
        """(steps,) the price level of each time step."""
        return self.flow.price

    @property
    def mean_payment(self) -> float:
        """The mean over clients of what each is paid in the whole game."""
        return float(self.flow.spend.sum() * self.game.mesh.step)

    @property
    def relative_exploitability(self) -> float:
        """Exploitability ÷ mean payment, both over the whole game."""
        return self.exploitability / self.mean_payment

    def strategy(self, kind: int = 0) -> BidFunction:
        """The bid function of a kind of clients: (valuation, remaining_budget, time) → report."""
        return BidFunction(Surface(self.game.mesh, self.shadow_price[:, kind], budget_offset=-0.5))

    def value_function(self, kind: int = 0) -> Surface:
        """Φ of a kind of clients: (valuation, remaining_budget, time) → worth of the rest of the game."""
        return Surface(self.game.mesh, self.value[:, kind])

    def mean_valuation(self) -> Array:
        """(steps,) the mean valuation of clients who have budget left."""
        active = self.flow.mass[:-1, ..., 1:]
        total = (active * self.game.valuation).sum(axis=(1, 2, 3))
        return np.asarray(total / active.sum(axis=(1, 2, 3)))

    def share_with_budget_left(self) -> Array:
        """(steps + 1,) the share of clients who can still sell."""
        return np.asarray(1.0 - self.flow.mass[..., 0].sum(axis=(1, 2)))

    def mean_bid(self) -> Array:
        """(steps,) b_MFG(t), the mean report of clients who have budget left.

        Implements: Eq. (mfg-bid) of [Sun2026].
        Deviation: the mean is over clients who can still sell; the others do not bid.
        """
        active = self.flow.mass[:-1, ..., 1:]
        reports = self.game.valuation + self.shadow_price[..., 1:]
        return np.asarray((active * reports).sum(axis=(1, 2, 3)) / active.sum(axis=(1, 2, 3)))

    def payment(self, report: ArrayLike, time: float) -> Array:
        """p̃(b; μ_t): what a report is paid per round at the price that the flow clears at.

        Implements: Eq. (mf-payment) of [Sun2026] in the limit of many opponents, without resampling.
        """
        market = self.problem.market
        if not isinstance(market, MenuMarket):
            raise ConfigurationError("only a menu market has payments per report", "solve with a MenuMarket")
        n = min(max(int(time / self.game.mesh.step), 0), self.grid.time_steps - 1)
        return market.payment(np.asarray(report, dtype=np.float64), float(self.price[n]))

    def save(self, path: Path) -> None:
        """Writes value, bids, density, prices and the mesh to a .npz file; `load_bid_function` reads it."""
        mesh = self.game.mesh
        np.savez_compressed(
            path,
            value=self.value,
            shadow_price=self.shadow_price,
            mass=self.flow.mass,
            price=self.price,
            mean_bid=self.mean_bid(),
            kind_mean=self.game.means,
            valuation=mesh.valuation,
            budget=mesh.budget,
            time=mesh.time,
            limits=np.array([mesh.valuation_limit, mesh.budget_limit, mesh.horizon]),
        )

    def summary(self) -> dict[str, object]:
        """What a program wants to know, as plain JSON types."""
        return {
            "result": self.result.value,
            "scenario": self.problem.law.name,
            "scheme": self.scheme.name,
            "grid": str(self.grid),
            "kinds": self.problem.kinds,
            "horizon_rounds": self.problem.horizon,
            "budget_per_client": self.problem.budget_per_client,
            "sale_cap": self.problem.market.most_sold,
            "reversion": self.problem.reversion,
            "volatility": self.problem.volatility,
            "iterations": self.statistics.iterations,
            "seconds": self.statistics.seconds,
            "price_change_history": list(self.statistics.price_change),
            "exploitability": self.exploitability,
            "relative_exploitability": self.relative_exploitability,
            "mean_payment": self.mean_payment,
            "mean_epsilon_sold": float(self.flow.sold.sum() * self.game.mesh.step),
            "mean_gain": self.flow.earned,
            "mass_error": float(np.abs(self.flow.mass.sum(axis=(1, 2, 3)) - 1.0).max()),
            "smallest_density": float(self.flow.mass.min()),
            "time": self.game.mesh.time.tolist(),
            "price": self.price.tolist(),
            "mean_bid": self.mean_bid().tolist(),
            "mean_valuation": self.mean_valuation().tolist(),
            "sold_per_round": self.flow.sold.tolist(),
            "share_with_budget_left": self.share_with_budget_left().tolist(),
            "notes": [asdict(note) for note in self.notes],
        }


def solve(
    problem: Problem,
    scheme: BudgetScheme | str = "explicit",
    *,
    grid: Grid | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 200,
    start: str | Array = "truthful",
    progress: Progress | None = None,
) -> Equilibrium:
    """An equilibrium of the discrete game, with its exploitability.

    Implements: the fixed point of Def. (mfe) of [Sun2026], by damped best response with halving.

    Args:
        problem: the game.
        scheme: how selling is discretised, or its name.
        grid: numbers of valuation cells, budget nodes and time steps; 64 × 64 × 50 unless told.
        tolerance: converged when the prices that come out differ from those assumed by at most this share of
            their mean, and nobody gains more than this share of the mean payment by deviating.
        max_iterations: strategies that may be tried.
        start: the flow that is answered first: that of "truthful" clients, of "patient" ones who ask for an
            extra quarter of the price ceiling, or of a shadow price (steps, kinds, valuations, budgets).
        progress: called with the iteration and its price change.
    """
    if not tolerance > 0 or max_iterations < 1:
        raise ConfigurationError(
            f"tolerance {tolerance} and max_iterations {max_iterations} must be above 0",
            "leave both out for 1e-6 and 200, or raise the one that is too small",
        )
    began = time.perf_counter()
    game = DiscreteGame(problem, _named(scheme), grid or Grid())
    _check_budget(game)
    price = game.flow(_starting_shadow(start, game)).price
    damping, history = _Damping(), list[float]()
    result = Result.ITERATION_LIMIT
    for iteration in range(1, max_iterations + 1):
        _, shadow = game.best_response(price)
        flow = game.flow(shadow)
        history.append(float(np.abs(flow.price - price).max() / flow.price.mean()))
        if progress is not None:
            progress(iteration, history[-1])
        if history[-1] <= tolerance:
            value, gain = _best_deviation(game, flow)
            if gain <= tolerance * flow.spend.sum() * game.mesh.step:
                result = Result.CONVERGED
                break
        if not damping.heed(history[-1]):
            result = Result.STALLED
            break
        price = price + damping.share * (flow.price - price)
    value, gain = _best_deviation(game, flow)
    statistics = Statistics(iteration, time.perf_counter() - began, tuple(history))
    return Equilibrium(game, result, value, shadow, flow, gain, statistics, _notes(game, flow))


class _Damping:
    """How far prices move towards those that came out: half the way, less after overshooting or standing still."""

    share = 0.5
    patience = 15
    least = 1e-3

    def __init__(self) -> None:
        self._best, self._waited = np.inf, 0

    def heed(self, change: float) -> bool:
        """Takes note of a price change; False when smaller steps no longer help."""
        self._waited = 0 if change < 0.9 * self._best else self._waited + 1
        if change > 2.0 * self._best or self._waited > self.patience:
            self.share, self._best, self._waited = 0.5 * self.share, change, 0
        self._best = min(self._best, change)
        return self.share >= self.least


def _best_deviation(game: DiscreteGame, flow: Flow) -> tuple[Array, float]:
    """Value of the best response to a flow's prices, and what it gains over playing along."""
    value, _ = game.best_response(flow.price)
    return value, game.starting_value(value) - flow.earned


def exploitability(shadow_price: Array, game: DiscreteGame) -> float:
    """What one client gains by the best deviation when everyone else reports valuation + `shadow_price`.

    Exact on the mesh: the best response's value minus the value of playing along, at the prices that the
    population's own play clears at. Never negative but for rounding.
    """
    return _best_deviation(game, game.flow(shadow_price))[1]


def _named(scheme: BudgetScheme | str) -> BudgetScheme:
    if isinstance(scheme, BudgetScheme):
        return scheme
    if scheme not in SCHEMES:
        raise ConfigurationError(f"unknown scheme {scheme!r}", f"choose one of: {', '.join(SCHEMES)}")
    return SCHEMES[scheme]


def _starting_shadow(start: str | Array, game: DiscreteGame) -> Array:
    shape = (game.grid.time_steps, *game.initial_mass.shape)
    if isinstance(start, str):
        if start not in ("truthful", "patient"):
            raise ConfigurationError(f"unknown start {start!r}", "use truthful, patient, or an array")
        return np.full(shape, 0.0 if start == "truthful" else 0.25 * game.problem.price_ceiling)
    if np.shape(start) != shape:
        raise ConfigurationError(f"start has shape {np.shape(start)}, not {shape}", "give a shadow price per state")
    return np.asarray(start, dtype=np.float64)


def _check_budget(game: DiscreteGame) -> None:
    """Refuses a buyer who can buy from everybody, or from nobody that the grid can tell apart."""
    truth = np.broadcast_to(game.valuation, game.initial_mass.shape)
    price, at_ceiling = game.clear(game.initial_mass, truth)
    budget = game.problem.budget_per_client
    if at_ceiling:
        most = game.mean_spend(game.initial_mass, truth, price)
        raise ConfigurationError(
            f"a budget of {budget:g} per client and round buys everything: buying from everybody at the "
            f"price ceiling {price:.4g} costs {most:.4g}",
            f"use a budget below {most:.3g}, a higher sale cap or a higher price ceiling",
        )
    if price < game.mesh.valuation_width:
        raise ConfigurationError(
            f"a budget of {budget:g} per client and round buys nothing that the grid resolves: the price "
            f"{price:.3g} lies inside the first valuation cell, {game.mesh.valuation_width:.3g} wide",
            "raise the budget or use more valuation cells",
        )


def _notes(game: DiscreteGame, flow: Flow) -> tuple[Note, ...]:
    notes = []
    edge = float(flow.mass[:, :, -1, :].sum(axis=(1, 2)).max())
    if edge > _MOST_BOUNDARY_MASS:
        notes.append(
            Note(
                "mass-at-boundary",
                f"up to {edge:.2g} of the clients are in the highest valuation cell",
                "raise valuation_limit, or lower the volatility",
            )
        )
    if flow.at_ceiling.any():
        notes.append(
            Note(
                "price-at-ceiling",
                f"in {int(flow.at_ceiling.sum())} of {flow.price.size} steps the budget would buy everything "
                "that is left, and the price stands at its ceiling",
                "lower the budget, shorten the horizon or raise the price ceiling",
            )
        )
    return tuple(notes)
