"""What a budget can buy: bounds that no truthful rule passes, and the first best of known costs.

All are limits for many clients.

- `fluid_bound` holds for every rule that is truthful in v, individually rational and within budget in expectation.
  Such a rule may look at what is no secret between client and rule: the offered ε and the number of records. So it
  buys at virtual costs φ(v) = v + F(v)/f(v), ironed, with F the distribution of v *given ε and records*. Where v is
  independent of them that is one list of prices for all.
- `one_price_bound` is the same for rules that post one list of unit prices to everybody. The two are equal where v
  is independent of ε and records, and differ where they are not: `docs/theory/fluid-bound.md`.
- `first_best_bound` pays each client exactly its cost, which nobody can without knowing it.
- `prior_free_reference` is the share 1 − 1/e of the first best: what the best rule that knows no distribution
  guarantees in large markets [AnariGoelNikzad2014].

The bound of the typical error takes all clients to hold equally many records.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket.errors import ConfigurationError
from privmarket.market._aggregate_bound import Types, least_aggregate_error
from privmarket.market._bids import Array, Bids
from privmarket.market._objectives import (
    TOTAL_EPSILON,
    AggregateError,
    AggregationError,
    Objective,
    TotalEpsilon,
    TypicalAggregateError,
)
from privmarket.market._scenarios import DerivedLaw, EmpiricalLaw, IndependentLaw, Law
from privmarket.market._typical_bound import least_typical_error

_QUANTILES = 1 << 16
_SAMPLE_CLIENTS = 200_000
# Into so many levels of ε a law is cut whose valuations depend on it.
_EPSILON_LEVELS = 256
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
    """The most that a rule truthful in v buys from `clients` clients with a total budget, in the fluid limit.

    For an error: the least error instead. Bids stand for the distribution that draws their rows.
    """
    if _is_independent(law):
        return one_price_bound(law, clients, budget, objective)
    population = _conditional_population(law)
    if isinstance(objective, TotalEpsilon):
        return float(clients * np.interp(budget / clients, population.spend, population.quantity))
    return _least_error(_thinned(population.cost, population.rows), clients, budget, objective)


def one_price_bound(law: Law | Bids, clients: int, budget: float, objective: Objective = TOTAL_EPSILON) -> float:
    """The most that one list of unit prices, posted to all of `clients` clients, buys in the fluid limit."""
    if isinstance(objective, TotalEpsilon):
        spend, quantity = _supply_hull(law)
        return float(clients * np.interp(budget / clients, spend, quantity))
    return _least_error(virtual_types(law), clients, budget, objective)


def prior_free_reference(law: Law | Bids, clients: int, budget: float) -> float:
    """(1 − 1/e) of the first best of total ε.

    In large markets some truthful rule that knows nothing of the distribution buys that much on every market, and
    none can promise more [AnariGoelNikzad2014]. On a given distribution a rule may well buy more: it is a point of
    reference, not a bound.
    """
    return (1 - 1 / np.e) * first_best_bound(law, clients, budget)


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


@dataclass(frozen=True, eq=False)
class _Population:
    """Rows that stand for a law in which v depends on ε or records, with what each really costs a truthful rule.

    Attributes:
        rows: (rows,) equally likely clients.
        cost: (rows,) the ironed virtual cost of each among clients of its own ε and records.
        spend, quantity: corners of the concave curve of ε bought against money spent, both per client.
    """

    rows: Bids
    cost: Array
    spend: Array
    quantity: Array


@lru_cache(maxsize=32)
def _conditional_population(law: Law | Bids) -> _Population:
    """Irons v within each group of clients of equal ε and records, then buys over all groups by slope.

    Money is split between groups by one Lagrange multiplier: the best use of any budget takes the segments of all
    groups' hulls in the order of their slopes.
    """
    rows = _rows_by_level(law)
    cost = np.empty(rows.clients)
    spends = []
    quantities = []
    for members in _groups(law, rows):
        order = members[np.argsort(rows.valuation[members], kind="stable")]
        price = rows.valuation[order]
        quantity = np.cumsum(rows.epsilon[order]) / rows.clients
        spend, bought = _concave_hull(np.append(0.0, price * quantity), np.append(0.0, quantity))
        slope = np.diff(spend) / np.diff(bought)
        piece = np.clip(np.searchsorted(bought, quantity * (1 - 1e-12), side="left") - 1, 0, slope.size - 1)
        cost[order] = slope[piece]
        spends.append(np.diff(spend))
        quantities.append(np.diff(bought))
    money = np.concatenate(spends)
    amount = np.concatenate(quantities)
    by_slope = np.argsort(money / amount, kind="stable")
    return _Population(
        rows,
        cost,
        np.append(0.0, np.cumsum(money[by_slope])),
        np.append(0.0, np.cumsum(amount[by_slope])),
    )


def _is_independent(law: Law | Bids) -> bool:
    return isinstance(law, Law) and law.independent


def _rows_by_level(law: Law | Bids) -> Bids:
    """(rows,) a sample that stands for the law, with few different ε where the law can be asked for that."""
    if isinstance(law, DerivedLaw):
        middle = (np.arange(_EPSILON_LEVELS) + 0.5) / _EPSILON_LEVELS
        levels = np.repeat(law.epsilon(middle), _SAMPLE_CLIENTS // _EPSILON_LEVELS)
        return law.clients_with(np.random.default_rng(0), levels)
    return _rows(law)


def _groups(law: Law | Bids, rows: Bids) -> list[NDArray[np.intp]]:
    """Indices of the rows, by equal ε and records.

    A file of past bids is grouped exactly, for it is the whole distribution. The sample of another law is too where
    it shows few different values; otherwise it is cut into many narrow levels of ε, and the bound is an estimate.
    """
    keys = [rows.epsilon]
    if rows.data_size is not None and not (isinstance(law, DerivedLaw) and law.function.size_weight == 0):
        keys.append(rows.data_size)
    exact = isinstance(law, Bids | EmpiricalLaw | DerivedLaw)
    columns = []
    for key in keys:
        values, place = np.unique(key, return_inverse=True)
        if not exact and values.size > _EPSILON_LEVELS:
            ranks = np.argsort(np.argsort(key, kind="stable"), kind="stable")
            place = ranks * _EPSILON_LEVELS // key.size
        columns.append(place)
    _, group = np.unique(np.stack(columns), axis=1, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")
    edges = np.flatnonzero(np.diff(group.ravel()[order])) + 1
    return np.split(order, edges)


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
