"""Two points of reference for what a budget buys: the fluid bound, and the first best of known costs.

Both are limits for many clients. The fluid bound buys at virtual costs φ(v) = v + F(v)/f(v), ironed. It bounds the
rules that are truthful in v, individually rational and within budget in expectation, and that offer every client
the same unit prices, whatever ε it offers. Where v and ε are independent, prices that differ with ε would not help,
so it is the limit for all such rules. Where they depend on each other a truthful rule can pass it, by posting
prices that rise with ε: `docs/theory/fluid-bound.md` has one that does. The first-best bound pays each client
exactly its cost, which nobody can without knowing it; no rule that pays at least the cost beats it.

For errors of an aggregate the fluid bound takes v as independent of ε and of the number of records. For laws where
they depend on each other it is a point of reference there, not a proven bound; the first best is one always. The
bound of the typical error takes all clients to hold equally many records.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike

from privmarket.errors import ConfigurationError
from privmarket.market.aggregate_bound import Types, least_aggregate_error
from privmarket.market.bids import Array, Bids
from privmarket.market.objectives import (
    TOTAL_EPSILON,
    AggregateError,
    AggregationError,
    Objective,
    TotalEpsilon,
    TypicalAggregateError,
)
from privmarket.market.scenarios import EmpiricalLaw, IndependentLaw, Law
from privmarket.market.typical_bound import least_typical_error

_QUANTILES = 1 << 16
_SAMPLE_CLIENTS = 200_000
# Clients are grouped by records at these shares: the few with very many of them count most.
_SIZE_GROUPS = (0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 0.999)


@dataclass(frozen=True, eq=False)
class SupplyCurve:
    """How much ε one client offers on average at each unit price. All arrays (points,), ascending.

    Attributes:
        price: unit prices p.
        quantity: E[ε·1{v ≤ p}].
        cost: E[ε·v·1{v ≤ p}].
    """

    price: Array
    quantity: Array
    cost: Array

    @cached_property
    def spend(self) -> Array:
        """(points,) what a client costs on average at each price."""
        return self.price * self.quantity

    def price_that_spends(self, budget: ArrayLike) -> Array:
        """The largest p with p·quantity(p) = the per-capita budget; same shape as `budget`."""
        budget = np.asarray(budget, dtype=np.float64)
        k = np.searchsorted(self.spend, budget, side="right") - 1
        last = self.quantity[np.maximum(k, 0)]
        ceiling = np.where(k + 1 < self.price.size, self.price[np.minimum(k + 1, self.price.size - 1)], np.inf)
        return np.asarray(np.where(k < 0, self.price[0], np.minimum(budget / last, ceiling)))

    def hull(self) -> tuple[Array, Array]:
        """(spend, quantity) of the best mixtures of posted prices: the concave hull from the origin on.

        Its slope is one over the ironed virtual cost.
        """
        step = max(1, self.price.size // 8192)
        pick = np.unique(np.append(np.arange(0, self.price.size, step), self.price.size - 1))
        spend, quantity = self.spend[pick], self.quantity[pick]
        return _concave_hull(np.append(0.0, spend), np.append(0.0, quantity))


def supply_curve(law: Law | Bids) -> SupplyCurve:
    """The supply of a known law, or of a sample of bids."""
    if isinstance(law, IndependentLaw):
        u = np.append(np.arange(1, _QUANTILES) / _QUANTILES, 1 - 1e-12)
        price = law.valuation(u)
        weight = np.diff(u, prepend=0.0) * _mean_epsilon(law)
    else:
        rows = _rows(law)
        order = np.argsort(rows.valuation, kind="stable")
        price, weight = rows.valuation[order], rows.epsilon[order] / rows.clients
    return SupplyCurve(price, np.cumsum(weight), np.cumsum(weight * price))


def fluid_bound(law: Law | Bids, clients: int, budget: float, objective: Objective = TOTAL_EPSILON) -> float:
    """What one unit price, posted to all of `clients` clients, buys with a total budget in the fluid limit.

    For an error: the least error instead. The module says which rules this bounds.
    """
    if isinstance(objective, TotalEpsilon):
        spend, quantity = _supply_hull(law)
        return float(clients * np.interp(budget / clients, spend, quantity))
    return _least_error(virtual_types(law), clients, budget, objective)


def first_best_bound(law: Law | Bids, clients: int, budget: float, objective: Objective = TOTAL_EPSILON) -> float:
    """The limit when every cost is known and paid exactly."""
    if isinstance(objective, TotalEpsilon):
        supply = supply_curve(law)
        per_client = np.interp(budget / clients, np.append(0, supply.cost), np.append(0, supply.quantity))
        return float(clients * per_client)
    return _least_error(true_types(law), clients, budget, objective)


def _least_error(types: Types, clients: int, budget: float, objective: Objective) -> float:
    if isinstance(objective, TypicalAggregateError):
        return least_typical_error(types, clients, budget, objective).error
    if isinstance(objective, AggregateError):
        return least_aggregate_error(types, clients, budget, objective).error
    if isinstance(objective, AggregationError):
        return _least_aggregation_error(types, clients, budget, objective)
    raise ConfigurationError(f"no bound is known for objective {objective.name!r}", "use total-epsilon")


def _least_aggregation_error(types: Types, clients: int, budget: float, objective: AggregationError) -> float:
    """A lower bound on the P2 error in the fluid limit, by Lagrangian duality.

    With α_i = a_i·W_i and r = records over their mean the problem is: minimise κ/N·E[a²/(ε g)²] +
    H²·(E[r·|a − 1|])² over weights a ≥ 0, E[r·a] = 1, and shares sold g ∈ [0, 1], with E[cost·ε·g] ≤ B/N. For given
    multipliers it separates by type, and each type's minimum has five candidates (see `_dual`). Every multiplier
    gives a valid bound; the best is searched by the ellipsoid method, the dual being concave in three variables.
    """
    noise, bias, per_client = objective.kappa / clients, objective.heterogeneity**2, budget / clients
    full = float(noise * np.sum(types.probability / types.epsilon**2)) + 4 * bias
    # Scales at which the multipliers are of order one.
    scale = np.array([full / per_client, full, max(4 * bias, 1e-300)])
    center, shape = np.array([0.5, 0.5, 0.5]), 4.0 * np.eye(3)
    best = 0.0
    for _ in range(250):
        value, gradient = _dual(types, center * scale, noise, bias, per_client)
        outside = np.array([center[0] < 0, False, center[2] < 0 or (bias == 0 and center[2] > 1e-9)])
        if outside.any():
            gradient = np.where(outside, -np.sign(center), 0.0)
        else:
            best, gradient = max(best, value), gradient * scale
        step = shape @ gradient
        norm = float(gradient @ step)
        if norm <= 1e-30:
            break
        step = step / np.sqrt(norm)
        center = center + step / 4.0
        shape = 9.0 / 8.0 * (shape - 0.5 * np.outer(step, step))
    return best


def _dual(types: Types, multipliers: Array, noise: float, bias: float, budget: float) -> tuple[float, Array]:
    """The dual function and a supergradient at (λ, μ, ν) = multipliers of budget, Σα = 1 and bias.

    Per type, with a given: g = min(1, (2·noise·a²/(λ·cost·ε³))^{1/3}). Below the a where g reaches 1 the value is
    concave in a (it grows as a^{2/3}), above it is a quadratic with a kink at 1, so the minimum is at 0, at that
    point, at 1, or at a stationary point of either side of the kink.
    """
    lam, mu, nu = (float(m) for m in multipliers)
    lam, nu = max(lam, 1e-300), max(nu, 0.0)
    unit_cost, epsilon, records = np.maximum(types.cost, 1e-12), types.epsilon, types.records
    reach = np.sqrt(lam * unit_cost * epsilon**3 / (2 * noise))
    stationary = records * epsilon**2 / (2 * noise)
    a = np.stack(
        [
            np.zeros_like(reach),
            reach,
            np.ones_like(reach),
            np.maximum(stationary * (mu - nu), 1.0),
            np.clip(stationary * (mu + nu), 0.0, 1.0),
        ]
    )
    g = np.minimum(1.0, np.cbrt(a**2 / reach**2))
    variance = noise * np.divide(a, epsilon * g, out=np.zeros_like(a), where=g > 0) ** 2
    value = variance + records * (nu * np.abs(a - 1) - mu * (a - 1)) + lam * unit_cost * epsilon * g
    pick = np.argmin(value, axis=0)[None]
    a, g, value = (np.take_along_axis(x, pick, axis=0)[0] for x in (a, g, value))
    p, weight = types.probability, types.probability * records
    spread = nu / (2 * bias) if bias > 0 else 0.0
    dual = float(p @ value) - lam * budget - bias * spread**2
    gradient = np.array([p @ (unit_cost * epsilon * g) - budget, weight @ (1 - a), weight @ np.abs(a - 1) - spread])
    return dual, gradient


def virtual_types(law: Law | Bids, quantiles: int = 128) -> Types:
    """Types with ironed virtual costs: the inverse slope of the supply hull."""
    spend, quantity = _supply_hull(law)
    if isinstance(law, IndependentLaw):
        edges = np.linspace(0.0, quantity[-1], quantiles + 1)
        cost = np.diff(np.interp(edges, quantity, spend)) / np.diff(edges)
        return _product(cost, law)
    rows = _rows(law)
    at = np.interp(rows.valuation, *_price_quantity(law))
    slope = np.diff(spend) / np.diff(quantity)
    piece = np.clip(np.searchsorted(quantity, at, side="left") - 1, 0, slope.size - 1)
    return _thinned(slope[piece], rows)


def true_types(law: Law | Bids, quantiles: int = 128) -> Types:
    """The types of a law with their true valuations as costs: what the first best pays."""
    if isinstance(law, IndependentLaw):
        return _product(law.valuation((np.arange(quantiles) + 0.5) / quantiles), law)
    rows = _rows(law)
    return _thinned(rows.valuation, rows)


def _product(cost: Array, law: IndependentLaw, epsilons: int = 16) -> Types:
    epsilon = law.epsilon((np.arange(epsilons) + 0.5) / epsilons)
    records, share = np.ones(1), np.ones(1)
    if law.data_size is not None:
        sizes = law.data_size((np.arange(_QUANTILES) + 0.5) / _QUANTILES)
        groups = np.split(sizes, [int(edge * _QUANTILES) for edge in _SIZE_GROUPS])
        records = np.array([group.mean() for group in groups]) / sizes.mean()
        share = np.array([group.size for group in groups]) / _QUANTILES
    rows = np.stack(np.meshgrid(cost, epsilon, records, indexing="ij")).reshape(3, -1)
    return Types(rows[0], rows[1], rows[2], np.tile(share, cost.size * epsilons) / (cost.size * epsilons))


def _thinned(cost: Array, rows: Bids, limit: int = 4_000) -> Types:
    pick = np.linspace(0, cost.size - 1, min(limit, cost.size)).astype(int)
    records = rows.data_share[pick]
    return Types(cost[pick], rows.epsilon[pick], records / records.mean(), np.full(pick.size, 1.0 / pick.size))


def _price_quantity(law: Law | Bids) -> tuple[Array, Array]:
    supply = supply_curve(law)
    return supply.price, supply.quantity


def _rows(law: Law | Bids) -> Bids:
    """(rows,) a sample that stands for the law; the law itself where it is a sample."""
    if isinstance(law, Bids):
        return law if law.valuation.ndim == 1 else Bids(law.valuation.ravel(), law.epsilon.ravel())
    if isinstance(law, EmpiricalLaw):
        return law.past
    return law.sample(np.random.default_rng(0), _SAMPLE_CLIENTS)


@lru_cache(maxsize=32)
def _supply_hull(law: Law | Bids) -> tuple[Array, Array]:
    return supply_curve(law).hull()


def _mean_epsilon(law: IndependentLaw) -> float:
    return float(law.epsilon((np.arange(_QUANTILES) + 0.5) / _QUANTILES).mean())


def _concave_hull(x: Array, y: Array) -> tuple[Array, Array]:
    """Upper hull of points with ascending x, from the first to the highest point."""
    kept: list[int] = []
    for i in range(x.size):
        while kept and x[kept[-1]] == x[i] and y[kept[-1]] <= y[i]:
            kept.pop()
        while len(kept) >= 2:
            a, b = kept[-2], kept[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) <= (y[i] - y[a]) * (x[b] - x[a]):
                kept.pop()
            else:
                break
        kept.append(i)
    return x[kept], y[kept]
