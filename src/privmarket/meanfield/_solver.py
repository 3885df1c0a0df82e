"""The fixed point: prices and strategies that reproduce each other.

Each iteration answers a price path with the best strategy (HJB backwards) and lets the population play it
(Fokker–Planck forwards, prices cleared on the way). A method then chooses the price path that is tried next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array
from privmarket.meanfield._equilibrium import Equilibrium, Note, Result, Statistics
from privmarket.meanfield._game import DiscreteGame, Flow
from privmarket.meanfield._grid import Grid
from privmarket.meanfield._markets import check_market
from privmarket.meanfield._methods import METHODS, Method
from privmarket.meanfield._problem import Problem
from privmarket.meanfield._schemes import SCHEMES, BudgetScheme

T = TypeVar("T")
Progress = Callable[[int, float], None]
_MOST_BOUNDARY_MASS = 1e-3


def solve(
    problem: Problem,
    scheme: BudgetScheme | str = "explicit",
    *,
    method: Method | str = "best-response",
    grid: Grid | str | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 200,
    start: str | Array = "truthful",
    track_exploitability: bool = False,
    progress: Progress | None = None,
) -> Equilibrium:
    """An equilibrium of the discrete game, with its exploitability.

    Whatever the method, the strategy that is returned is a best response to the last price path that was tried, and
    its exploitability is computed exactly on the grid.

    Implements: the fixed point of Def. (mfe) of [Sun2026].

    Args:
        problem: the game.
        scheme: how selling is discretised: "explicit", "implicit", or a scheme of your own.
        method: how the next price path is chosen: "best-response" (damped), "fictitious-play",
            "online-mirror-descent", or a `Method` of your own.
        grid: numbers of valuation cells, budget nodes and time steps, also as "64x64x50", the default.
        tolerance: converged when the prices that come out differ from those assumed by at most this share of
            their mean, and nobody gains more than this share of the mean payment by deviating.
        max_iterations: strategies that may be tried.
        start: the flow that is answered first: that of "truthful" clients, of "patient" ones who ask for an
            extra quarter of the price ceiling, or of a shadow price (steps, kinds, valuations, budgets).
        track_exploitability: also compute the exploitability of every iteration's strategy, at the cost of one more
            best response each.
        progress: called with the iteration and its price change.

    Returns:
        the strategy with its flow. Look at `result`: anything but CONVERGED is not a solution.
    """
    if not tolerance > 0 or max_iterations < 1:
        raise ConfigurationError(
            f"tolerance {tolerance} and max_iterations {max_iterations} must be above 0",
            "leave both out for 1e-6 and 200, or raise the one that is too small",
        )
    began = time.perf_counter()
    chosen_scheme = _named("scheme", scheme, SCHEMES) if isinstance(scheme, str) else scheme
    chosen = _named("method", method, METHODS)() if isinstance(method, str) else method
    game = DiscreteGame(problem, chosen_scheme, Grid.parse(grid) if isinstance(grid, str) else grid or Grid())
    check_market(problem.market, problem.price_ceiling, game.mesh.valuation_width)
    _check_budget(game)
    price = game.flow(_starting_shadow(start, game)).price
    chosen.begin(game, price)
    history = list[float]()
    elapsed = list[float]()
    gains = list[float]()
    tracking = 0.0
    result = Result.ITERATION_LIMIT
    for iteration in range(1, max_iterations + 1):
        _, shadow = game.best_response(price)
        flow = game.flow(shadow)
        history.append(float(np.abs(flow.price - price).max() / flow.price.mean()))
        elapsed.append(time.perf_counter() - began - tracking)
        if track_exploitability:
            before = time.perf_counter()
            gains.append(_best_deviation(game, flow)[1] / _paid(game, flow))
            tracking += time.perf_counter() - before
        if progress is not None:
            progress(iteration, history[-1])
        if history[-1] <= tolerance and _best_deviation(game, flow)[1] <= tolerance * _paid(game, flow):
            result = Result.CONVERGED
            break
        following = chosen.next_price(price, shadow, flow)
        if following is None:
            result = Result.STALLED
            break
        price = following
    value, gain = _best_deviation(game, flow)
    seconds = time.perf_counter() - began - tracking
    statistics = Statistics(chosen.name, iteration, seconds, tuple(history), tuple(elapsed), tuple(gains))
    return Equilibrium(game, result, value, shadow, flow, gain, statistics, _notes(game, flow))


def _paid(game: DiscreteGame, flow: Flow) -> float:
    return float(flow.spend.sum() * game.mesh.step)


def _named(what: str, name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        raise ConfigurationError(f"unknown {what} {name!r}", f"choose one of: {', '.join(known)}")
    return known[name]


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
