"""What a budget can buy: bounds that no truthful rule passes, and the first best of known costs.

All are limits for many clients.

- `fluid_bound` holds for every rule that is truthful in v, individually rational and within budget in expectation,
  and that sees nothing of a client but v, ε and records; not for one that prices by reported accuracy.
  Such a rule may let prices depend on the offered ε and on the number of records, which it sees. So it buys at
  virtual costs φ(v) = v + F(v)/f(v), ironed, with F the distribution of v *given ε and records*. Where v is
  independent of them that is one list of prices for all.
- `one_price_bound` is the same for rules that post one list of unit prices to everybody. The two are equal where v
  is independent of ε and records, and differ where they are not: `docs/theory/fluid-bound.md`.
- `first_best_bound` pays each client exactly its cost, which nobody can without knowing it.
- `prior_free_reference` is the share 1 − 1/e of the first best: what the best rule that knows no distribution
  guarantees in large markets [AnariGoelNikzad2014].

The bounds of the typical and of the local error take all clients to hold equally many records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket._lazy import late
from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array, Bids
from privmarket.market._distributions import (
    DerivedDistribution,
    Distribution,
    EmpiricalDistribution,
    IndependentDistribution,
    Quantile,
    refuse_other_sizes,
)
from privmarket.market._objectives import (
    TOTAL_EPSILON,
    AggregateError,
    AggregationError,
    LocalError,
    Objective,
    TotalEpsilon,
    TypicalAggregateError,
    strength,
)
from privmarket.market._precision import Worth

optimize = late("scipy.optimize")

_QUANTILES = 1 << 16
_HULL_POINTS = 1 << 13
# Bisections of a cell of quantiles for the share of clients at which equal valuations end.
_END_BISECTIONS = 30
_SAMPLE_CLIENTS = 200_000
# Costs below this share of the dearest count as much, so that a cost of nothing can be divided by.
_NEXT_TO_NOTHING = 1e-12
# Into so many cells of ε and records a distribution is cut whose valuations depend on them. Each has several
# hundred rows: with few of them the best prices fit the sample better than the distribution.
_CELLS = 256
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

    def hull(self, step: int = 1) -> tuple[Array, Array]:
        """(spend, quantity) of the best mixtures of posted prices: the concave hull from the origin on.

        Its slope is one over the ironed virtual cost.

        Args:
            step: only every so many-th point is looked at, and the last of every equal price; for smooth curves.
        """
        repeats = np.append(np.diff(self.price, prepend=np.nan) == 0, False)
        ends = np.flatnonzero(repeats[:-1] & ~repeats[1:])
        pick = np.unique(np.concatenate([np.arange(0, self.price.size, step), ends, [self.price.size - 1]]))
        return _concave_hull(self.spend[pick], self.quantity[pick])


def supply_curve(distribution: Distribution | Bids) -> SupplyCurve:
    """The supply of a known distribution, or of a sample of bids."""
    if isinstance(distribution, IndependentDistribution) and distribution.past is not None:
        price = np.sort(distribution.past.valuation)
        weight = np.full(price.size, distribution.past.epsilon.mean() / price.size)
    elif isinstance(distribution, IndependentDistribution):
        u, price = _quantiles(distribution.valuation)
        weight = np.diff(u, prepend=0.0) * _mean_epsilon(distribution)
    else:
        rows = _rows(distribution)
        order = np.argsort(rows.valuation, kind="stable")
        price = rows.valuation[order]
        weight = rows.epsilon[order] / rows.clients
    return SupplyCurve(price, np.cumsum(weight), np.cumsum(weight * price))


def _quantiles(valuation: Quantile) -> tuple[Array, Array]:
    """(points,) shares u of the clients and their highest valuations, evenly, and where an equal valuation ends."""
    u = np.append(np.arange(1, _QUANTILES) / _QUANTILES, 1 - 1e-12)
    price = valuation(u)
    at = np.flatnonzero((valuation(u[:-1] + 1e-3 / _QUANTILES) <= price[:-1]) & (price[1:] > price[:-1]))
    low = u[at]
    high = u[at + 1]
    for _ in range(_END_BISECTIONS):
        middle = 0.5 * (low + high)
        same = valuation(middle) <= price[at]
        low = np.where(same, middle, low)
        high = np.where(same, high, middle)
    return np.insert(u, at + 1, low), np.insert(price, at + 1, price[at])


def fluid_bound(
    distribution: Distribution | Bids, clients: int, budget: float, objective: Objective = TOTAL_EPSILON
) -> float:
    """The most that a rule truthful in v buys from `clients` clients with a total budget, in the fluid limit.

    The rule may look at ε and records, too, and at nothing else: one that prices by reported accuracy may buy more.
    For an error: the least error instead. Bids stand for the distribution that draws their rows.
    """
    _refuse_other_sizes(distribution, clients)
    if _is_independent(distribution):
        return one_price_bound(distribution, clients, budget, objective)
    population = _conditional_population(distribution)
    if isinstance(objective, TotalEpsilon):
        return float(clients * np.interp(budget / clients, population.spend, population.quantity))
    return _least_error(_thinned(population.cost, population.rows), clients, budget, objective)


def one_price_bound(
    distribution: Distribution | Bids, clients: int, budget: float, objective: Objective = TOTAL_EPSILON
) -> float:
    """The most that one list of unit prices, posted to all of `clients` clients, buys in the fluid limit."""
    _refuse_other_sizes(distribution, clients)
    if isinstance(objective, TotalEpsilon):
        spend, quantity = _supply_hull(distribution)
        return float(clients * np.interp(budget / clients, spend, quantity))
    types = virtual_types(distribution, *_LOCAL_TYPES) if isinstance(objective, LocalError) else None
    return _least_error(types or virtual_types(distribution), clients, budget, objective)


def prior_free_reference(distribution: Distribution | Bids, clients: int, budget: float) -> float:
    """(1 − 1/e) of the first best of total ε.

    In large markets some truthful rule that knows nothing of the distribution buys that much on every market, and
    none can promise more [AnariGoelNikzad2014]. On a given distribution a rule may well buy more: it is a point of
    reference, not a bound.
    """
    return (1 - 1 / np.e) * first_best_bound(distribution, clients, budget)


def first_best_bound(
    distribution: Distribution | Bids, clients: int, budget: float, objective: Objective = TOTAL_EPSILON
) -> float:
    """The limit when every cost is known and paid exactly."""
    _refuse_other_sizes(distribution, clients)
    if isinstance(objective, TotalEpsilon):
        supply = supply_curve(distribution)
        per_client = np.interp(budget / clients, np.append(0, supply.cost), np.append(0, supply.quantity))
        return float(clients * per_client)
    return _least_error(true_types(distribution), clients, budget, objective)


def _refuse_other_sizes(distribution: Distribution | Bids, clients: int) -> None:
    if isinstance(distribution, Distribution):
        refuse_other_sizes(distribution, clients)


def _least_error(types: Types, clients: int, budget: float, objective: Objective) -> float:
    if isinstance(objective, TypicalAggregateError):
        return least_typical_error(types, clients, budget, objective).error
    if isinstance(objective, AggregateError):
        return least_aggregate_error(types, clients, budget, objective).error
    if isinstance(objective, LocalError):
        return least_local_error(types, clients, budget, objective).error
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
    noise = objective.kappa / clients
    bias = objective.heterogeneity**2
    per_client = budget / clients
    full = float(noise * np.sum(types.probability / types.epsilon**2)) + 4 * bias
    # Scales at which the multipliers are of order one.
    scale = np.array([full / per_client, full, max(4 * bias, 1e-300)])
    center = np.array([0.5, 0.5, 0.5])
    shape = 4.0 * np.eye(3)
    best = 0.0
    for _ in range(250):
        value, gradient = _dual(types, center * scale, noise, bias, per_client)
        outside = np.array([center[0] < 0, False, center[2] < 0 or (bias == 0 and center[2] > 1e-9)])
        if outside.any():
            gradient = np.where(outside, -np.sign(center), 0.0)
        else:
            best = max(best, value)
            gradient = gradient * scale
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
    lam = max(lam, 1e-300)
    nu = max(nu, 0.0)
    unit_cost = np.maximum(types.cost, _NEXT_TO_NOTHING * (float(types.cost.max()) or 1.0))
    epsilon = types.epsilon
    records = types.records
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
    g = np.minimum(1.0, np.cbrt(a / reach) ** 2)
    variance = noise * np.divide(a, epsilon * g, out=np.zeros_like(a), where=g > 0) ** 2
    value = variance + records * (nu * np.abs(a - 1) - mu * (a - 1)) + lam * unit_cost * epsilon * g
    pick = np.argmin(value, axis=0)[None]
    a, g, value = (np.take_along_axis(x, pick, axis=0)[0] for x in (a, g, value))
    p = types.probability
    weight = types.probability * records
    spread = nu / (2 * bias) if bias > 0 else 0.0
    dual = float(p @ value) - lam * budget - bias * spread**2
    gradient = np.array([p @ (unit_cost * epsilon * g) - budget, weight @ (1 - a), weight @ np.abs(a - 1) - spread])
    return dual, gradient


def virtual_types(distribution: Distribution | Bids, quantiles: int = 128, epsilons: int = 16) -> Types:
    """Types with ironed virtual costs: the inverse slope of the supply hull.

    Args:
        quantiles, epsilons: into how many costs and offers an independent distribution is cut.
    """
    spend, quantity = _supply_hull(distribution)
    if isinstance(distribution, IndependentDistribution):
        edges = np.linspace(0.0, quantity[-1], quantiles + 1)
        cost = np.diff(np.interp(edges, quantity, spend)) / np.diff(edges)
        return _product(cost, distribution, epsilons)
    rows = _rows(distribution)
    at = np.interp(rows.valuation, *_price_quantity(distribution))
    slope = np.diff(spend) / np.diff(quantity)
    piece = np.clip(np.searchsorted(quantity, at, side="left") - 1, 0, slope.size - 1)
    return _thinned(slope[piece], rows)


def true_types(distribution: Distribution | Bids, quantiles: int = 128) -> Types:
    """The types of a distribution with their true valuations as costs: what the first best pays."""
    if isinstance(distribution, IndependentDistribution):
        return _product(distribution.valuation((np.arange(quantiles) + 0.5) / quantiles), distribution)
    rows = _rows(distribution)
    return _thinned(rows.valuation, rows)


@dataclass(frozen=True, eq=False)
class _Population:
    """Rows that stand for a distribution in which v depends on ε or records, and what each costs a truthful rule.

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
def _conditional_population(distribution: Distribution | Bids) -> _Population:
    """Irons v within each group of clients of equal ε and records, then buys over all groups by slope.

    Money is split between groups by one Lagrange multiplier: the best use of any budget takes the segments of all
    groups' hulls in the order of their slopes.
    """
    rows = _rows_by_level(distribution)
    cost = np.empty(rows.clients)
    spends = []
    quantities = []
    for members in _groups(distribution, rows):
        order = members[np.argsort(rows.valuation[members], kind="stable")]
        price = rows.valuation[order]
        quantity = np.cumsum(rows.epsilon[order]) / rows.clients
        spend, bought = _concave_hull(price * quantity, quantity)
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


def _is_independent(distribution: Distribution | Bids) -> bool:
    return isinstance(distribution, Distribution) and distribution.independent


def _rows_by_level(distribution: Distribution | Bids) -> Bids:
    """(rows,) a sample that stands for the distribution; where possible, one with few different ε."""
    if isinstance(distribution, DerivedDistribution):
        middle = (np.arange(_CELLS) + 0.5) / _CELLS
        levels = np.repeat(distribution.epsilon(middle), _SAMPLE_CLIENTS // _CELLS)
        return distribution.clients_with(np.random.default_rng(0), levels)
    return _rows(distribution)


def _groups(distribution: Distribution | Bids, rows: Bids) -> list[NDArray[np.intp]]:
    """Indices of the rows, by equal ε and records.

    A file of past bids is grouped exactly, for it is the whole distribution. So is the sample of another one where
    it shows few different values; otherwise it is cut into levels of equally many rows, and the bound is an
    estimate that does not see what differs within a level.
    """
    keys = [rows.epsilon]
    if rows.data_size is not None and not (
        isinstance(distribution, DerivedDistribution) and distribution.function.size_weight == 0
    ):
        keys.append(rows.data_size)
    exact = isinstance(distribution, Bids | EmpiricalDistribution)
    found = [np.unique(key, return_inverse=True)[1] for key in keys]
    columns: list[NDArray[np.intp]] = []
    cells = _CELLS
    for place in sorted(found, key=lambda place: int(place.max())):
        levels = min(int(place.max()) + 1, int(cells ** (1 / (len(keys) - len(columns))) + 1e-9))
        if not exact and levels <= place.max():
            ranks = np.argsort(np.argsort(place, kind="stable"), kind="stable")
            place = ranks * levels // place.size
        cells //= max(levels, 1)
        columns.append(place)
    _, group = np.unique(np.stack(columns), axis=1, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")
    edges = np.flatnonzero(np.diff(group.ravel()[order])) + 1
    return np.split(order, edges)


def _product(cost: Array, distribution: IndependentDistribution, epsilons: int = 16) -> Types:
    epsilon = distribution.epsilon((np.arange(epsilons) + 0.5) / epsilons)
    records = np.ones(1)
    share = np.ones(1)
    if distribution.data_size is not None:
        sizes = distribution.data_size((np.arange(_QUANTILES) + 0.5) / _QUANTILES)
        groups = np.split(sizes, [int(edge * _QUANTILES) for edge in _SIZE_GROUPS])
        records = np.array([group.mean() for group in groups]) / sizes.mean()
        share = np.array([group.size for group in groups]) / _QUANTILES
    rows = np.stack(np.meshgrid(cost, epsilon, records, indexing="ij")).reshape(3, -1)
    return Types(rows[0], rows[1], rows[2], np.tile(share, cost.size * epsilons) / (cost.size * epsilons))


def _thinned(cost: Array, rows: Bids, limit: int = 4_000) -> Types:
    pick = np.linspace(0, cost.size - 1, min(limit, cost.size)).astype(int)
    records = rows.data_share[pick]
    return Types(cost[pick], rows.epsilon[pick], records / records.mean(), np.full(pick.size, 1.0 / pick.size))


def _price_quantity(distribution: Distribution | Bids) -> tuple[Array, Array]:
    supply = supply_curve(distribution)
    return supply.price, supply.quantity


def _rows(distribution: Distribution | Bids) -> Bids:
    """(rows,) a sample that stands for the distribution; the distribution itself where it is a sample."""
    if isinstance(distribution, Bids):
        return (
            distribution
            if distribution.valuation.ndim == 1
            else Bids(distribution.valuation.ravel(), distribution.epsilon.ravel())
        )
    if isinstance(distribution, EmpiricalDistribution):
        return distribution.past
    return distribution.sample(np.random.default_rng(0), _SAMPLE_CLIENTS)


@lru_cache(maxsize=32)
def _supply_hull(distribution: Distribution | Bids) -> tuple[Array, Array]:
    smooth = isinstance(distribution, IndependentDistribution) and distribution.past is None
    return supply_curve(distribution).hull(_QUANTILES // _HULL_POINTS if smooth else 1)


def _mean_epsilon(distribution: IndependentDistribution) -> float:
    return float(distribution.epsilon((np.arange(_QUANTILES) + 0.5) / _QUANTILES).mean())


def _concave_hull(x: Array, y: Array) -> tuple[Array, Array]:
    """Upper hull of the origin and points with ascending x and y. What is had for x = 0 is its first segment."""
    hull = [(0.0, 0.0)]
    for point in zip(x.tolist(), y.tolist(), strict=True):
        while len(hull) >= 2:
            a = hull[-2]
            b = hull[-1]
            if (b[1] - a[1]) * (point[0] - a[0]) > (point[1] - a[1]) * (b[0] - a[0]):
                break
            hull.pop()
        hull.append(point)
    found = np.array(hull)
    return found[:, 0], found[:, 1]


_CHORDS = 32
_STRENGTHS = 24
_SHARES = 257
_REFINEMENTS = 24


@dataclass(frozen=True, eq=False)
class Types:
    """A discrete population, all arrays (types,).

    Attributes:
        cost: what a unit of ε costs the buyer.
        epsilon: the most ε that the type sells.
        records: over their mean, so that the expectation is 1.
        probability: sums to 1.
    """

    cost: Array
    epsilon: Array
    records: Array
    probability: Array


@dataclass(frozen=True)
class FluidOptimum:
    """The best that can be bought.

    Attributes:
        error: the least E.
        strength: X, the mean of r·μ per client.
        bias: D = Σ|α − W| at the optimum, between 0 and 2.
    """

    error: float
    strength: float
    bias: float


def least_aggregate_error(types: Types, clients: int, budget: float, objective: AggregateError) -> FluidOptimum:
    """The fluid optimum of `objective` for a population whose costs per unit of ε are given.

    For a given mean strength X = E[r·μ] it remains to minimise D = E[r·|μ/X − 1|], a convex problem. The best way
    buys the cheapest slices of strength below X until they hold 1 − D/2 of it, and the cheapest above X until they
    hold D/2.

    Accurate to about three digits: ε(μ) is kept as chords between 32 points, and types are discrete.
    """
    slices = _Slices.of(types, objective)
    noise = objective.kappa / objective.honest_share / clients**2
    squared = objective.heterogeneity**2

    def error(strength: float) -> tuple[float, float]:
        bias = slices.least_bias(strength, budget / clients)
        return noise / strength**2 + squared * bias**2, bias

    most = slices.most_strength(budget / clients)
    if most <= 0:
        return FluidOptimum(np.inf, 0.0, 2.0)
    logs = np.log(most) + np.linspace(np.log(1e-3), 0.0, _STRENGTHS)
    tried = [error(float(np.exp(x))) for x in logs]
    best = int(np.argmin([value for value, _ in tried]))
    near = optimize.minimize_scalar(
        lambda x: error(float(np.exp(x)))[0],
        bounds=(logs[max(best - 1, 0)], logs[min(best + 1, logs.size - 1)]),
        method="bounded",
        options={"xatol": 1e-6},
    )
    found = float(near.x if near.fun < tried[best][0] else logs[best])
    value, bias = error(float(np.exp(found)))
    return FluidOptimum(value, float(np.exp(found)), bias)


@dataclass(frozen=True, eq=False)
class _Slices:
    """All slices of strength of all types, from the cheapest per unit of r·μ to the dearest, (slices,) each.

    Attributes:
        low, high: the slice holds strengths μ between these.
        mass: r·probability, per unit of μ.
        price: c·(dε/dμ)·probability, per unit of μ.
    """

    low: Array
    high: Array
    mass: Array
    price: Array

    @staticmethod
    def of(types: Types, objective: AggregateError) -> _Slices:
        top = float(types.epsilon.max())
        nodes = np.append(0.0, np.geomspace(1e-4 * top, top, _CHORDS))
        mu = objective.mu(nodes)
        slope = np.diff(nodes) / np.diff(mu)
        # Exact: chords would take every client for a little weaker than it is.
        offers, place = np.unique(types.epsilon, return_inverse=True)
        cap = objective.mu(offers)[place]
        low = mu[:-1]
        high = np.minimum(mu[1:], cap[:, None])
        mass = np.broadcast_to((types.records * types.probability)[:, None], high.shape)
        price = (types.cost * types.probability)[:, None] * slope
        kept = high > low
        low, high, mass, price = (np.broadcast_to(a, high.shape)[kept] for a in (low, high, mass, price))
        order = np.argsort(price / mass, kind="stable")
        return _Slices(low[order], high[order], mass[order], price[order])

    def most_strength(self, money: float) -> float:
        """The largest X that `money` per client buys when bias does not count."""
        length = self.high - self.low
        return float(np.interp(money, _running(self.price * length), _running(self.mass * length)))

    def least_bias(self, strength: float, money: float) -> float:
        """The least D at which `money` per client buys the mean strength X; 2 where it buys less."""
        ration = np.clip(strength, self.low, self.high)
        below = ration - self.low
        above = self.high - ration
        held = [_running(self.mass * part) / strength for part in (below, above)]
        paid = [_running(self.price * part) for part in (below, above)]

        def cost(d: Array) -> Array:
            return np.interp(1 - d, held[0], paid[0]) + np.interp(d, held[1], paid[1])

        least = max(0.0, 1.0 - held[0][-1])
        most = min(1.0, held[1][-1])
        if most < least:
            return 2.0
        d = np.linspace(least, most, _SHARES)
        affordable = cost(d) <= money
        if not affordable.any():
            return 2.0
        first = int(np.argmax(affordable))
        if first == 0:
            return 2.0 * float(least)
        low = float(d[first - 1])
        high = float(d[first])
        for _ in range(_REFINEMENTS):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if cost(np.asarray(middle)) <= money else (middle, high)
        return 2.0 * high


def _running(terms: Array) -> Array:
    """(terms + 1,) the partial sums of `terms`, from 0 on."""
    return np.append(0.0, np.cumsum(terms))


_MENU_NODES = 96
_SMALLEST_OFFER = 1e-6
_MENU_BISECTIONS = 28
# A minimum is searched on a grid of so many points, so many times, always between the neighbours of the best one.
_GRID_POINTS = 21
_GRIDS = 3
# Largest θ that is tried, over what it is where the cheapest sell the largest offer.
_BEYOND = 1e4


@dataclass(frozen=True, eq=False)
class GradedOptimum:
    """The best that can be bought.

    Attributes:
        error: the least E.
        strength: X, the mean μ per client.
        cost: (costs,) the costs of the population, ascending.
        amount: (costs,) ε that a client of that cost sells if it offers so much; does not rise.
    """

    error: float
    strength: float
    cost: Array
    amount: Array


def least_typical_error(
    types: Types, clients: int, budget: float, objective: TypicalAggregateError
) -> GradedOptimum:
    """The fluid optimum of `objective` for a population whose costs per unit of ε are given.

    With X = E[m], E = (κ' + H²·E[m²])/X² − H². √(E + H²) is a convex function over a positive linear one, so points
    that are stationary under the budget, m + s·c·ε'(m) = θ, are minima.

    Takes every client's records as the mean: a limit for rules that do not look at numbers of records.
    """
    menu = _Menus(types, objective)
    noise = objective.kappa / objective.honest_share / clients**2
    squared = objective.heterogeneity**2
    money = budget / clients

    def error(amount: Array) -> float:
        mean, square = menu.moments(amount)
        return float((noise + squared * square) / mean**2 - squared) if mean > 0 else np.inf

    def found(amount: Array) -> GradedOptimum:
        return GradedOptimum(error(amount), menu.moments(amount)[0], menu.cost, amount)

    # s = 0: the best equal amounts, if money were unlimited. If they can be paid, nothing is better.
    least = float(np.log(menu.epsilon[0]))
    most = float(np.log(menu.epsilon[-1]))
    equal = np.full(
        menu.cost.shape, np.exp(_lowest(lambda x: error(np.full(menu.cost.shape, np.exp(x))), least, most))
    )
    if menu.paid(equal) <= money:
        return found(equal)
    # The cost at which nobody sells any more: from the cheapest few, or those alone that cost nothing, to so high
    # that all sell nearly the same.
    dearest = float(types.cost.max())
    nothing = 1e-9 * dearest
    cheapest = float(types.cost.min(where=types.cost > nothing, initial=dearest))
    low = float(np.log((1.02 if types.cost.min() > nothing else 0.98) * cheapest))
    high = float(np.log(300.0 * dearest))
    best = _lowest(lambda x: error(menu.affordable(float(np.exp(x)), money)), low, high)
    return found(menu.affordable(float(np.exp(best)), money))


def _lowest(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function is least between two numbers, to a four-thousandth of their distance.

    Grids, because a search that compares values near a flat minimum ends elsewhere on every kind of processor.
    """
    for _ in range(_GRIDS):
        points = np.linspace(low, high, _GRID_POINTS)
        best = int(np.argmin([function(float(x)) for x in points]))
        low = float(points[max(best - 1, 0)])
        high = float(points[min(best + 1, _GRID_POINTS - 1)])
    return float(points[best])


class _Menus:
    """Menus m + s·c·ε'(m) = θ on a population, found by their cutoff: the cost at which m reaches 0."""

    def __init__(self, types: Types, objective: TypicalAggregateError) -> None:
        top = float(types.epsilon.max())
        self.epsilon = np.geomspace(_SMALLEST_OFFER * top, top, _MENU_NODES)
        self.mu = objective.mu(self.epsilon)
        # Slopes of a convex function rise; rounding of μ must not make them fall.
        self.slope = np.maximum.accumulate(np.gradient(self.epsilon, self.mu))
        self.cost, place = np.unique(types.cost, return_inverse=True)
        self.place = place
        self.offer = types.epsilon
        self.probability = types.probability
        self.price = types.cost

    def affordable(self, cutoff: float, money: float) -> Array:
        """(costs,) the amounts of the largest menu with this cutoff that costs at most `money` per client."""
        low = np.log(self.epsilon[0])
        high = np.log(_BEYOND * self.epsilon[-1])
        for _ in range(_MENU_BISECTIONS):
            middle = 0.5 * (low + high)
            fits = self.paid(self._amounts(cutoff, float(np.exp(middle)))) <= money
            low, high = (middle, high) if fits else (low, middle)
        return self._amounts(cutoff, float(np.exp(low)))

    def moments(self, amount: Array) -> tuple[float, float]:
        """E[m] and E[m²] of the strength m = μ(ε) of what a client sells, over all types."""
        sold = np.minimum(self.offer, amount[self.place])
        log_mu = np.interp(np.log(np.maximum(sold, self.epsilon[0])), np.log(self.epsilon), np.log(self.mu))
        m = np.where(sold > 0, np.exp(log_mu), 0.0)
        return float(self.probability @ m), float(self.probability @ m**2)

    def paid(self, amount: Array) -> float:
        """E[c·ε]: what a client is paid on average."""
        return float(self.probability @ (self.price * np.minimum(self.offer, amount[self.place])))

    def _amounts(self, cutoff: float, cheap: float) -> Array:
        """(costs,) ε sold at each cost; a client that costs nothing sells `cheap`, or all that anybody offers."""
        theta = float(np.interp(np.log(cheap), np.log(self.epsilon), self.mu)) * max(1.0, cheap / self.epsilon[-1])
        below = self.mu < theta
        s = theta / (cutoff * self.slope[0])  # m = 0 at the cutoff
        # The condition solved for c at every node: c falls as m rises, to 0 at m = θ.
        cost = np.append(0.0, ((theta - self.mu) / (s * self.slope))[below][::-1])
        amount = np.append(cheap, self.epsilon[below][::-1])
        return np.asarray(np.interp(self.cost, cost, amount, right=0.0))


# Bisections of a price level: each type sells or not, so the level jumps, and what is sold on both sides is mixed.
_LEVEL_BISECTIONS = 32
# A curvature at which the largest offer loses less than this share of its worth counts as none.
_FLAT = 1e-6
# Costs and offers that the bound of the local error tells apart: precision is steep in ε.
_LOCAL_TYPES = 64, 64
# A jump of prices at a worth z is spread from z over this factor to z times it.
_STEEP = 1.01


@dataclass(frozen=True)
class LocalOptimum:
    """The best that can be bought.

    Attributes:
        error: the least E.
        precision: mean μ² per client.
        curvature: ρ, with which a sale of precision y is worth y − ρ·y²/2: see `market._precision`.
    """

    error: float
    precision: float
    curvature: float


def least_local_error(types: Types, clients: int, budget: float, objective: LocalError) -> LocalOptimum:
    """The fluid optimum of `objective` for a population whose costs per unit of ε are given.

    With y = μ² of a sale, E + H² = (κ/N·E[y] + H²·E[y²])/E[y]². At an optimum every client sells what makes
    y − ρ·y²/2 less cost·x/λ largest, with one λ as the budget allows and ρ = 2H²/(κ/N + 2H²·E[y²]/E[y]). That
    leaves a search over ρ. Takes every client's records as the mean.
    """
    noise = objective.kappa / clients
    squared = objective.heterogeneity**2
    top = float(types.epsilon.max())
    most = float(strength(np.array(top), objective.delta) ** 2)

    def found(curvature: float) -> LocalOptimum:
        worth = Worth.of(curvature, top, objective.delta)
        mean, square = _bought_precision(types, worth, budget / clients)
        error = (noise * mean + squared * square) / mean**2 - squared if mean > 0 else np.inf
        return LocalOptimum(float(error), mean, curvature)

    if squared * most <= _FLAT * noise:
        return found(0.0)
    # 1/ρ = κ/(2NH²) + E[y²]/E[y], and the second term is at most the precision of the largest offer.
    low = float(np.log(max(noise / (2 * squared), _FLAT * most)))
    high = float(np.log(noise / (2 * squared) + most))
    best = _lowest(lambda x: found(float(np.exp(-x))).error, low, high)
    return found(float(np.exp(-best)))


def _bought_precision(types: Types, worth: Worth, money: float) -> tuple[float, float]:
    """E[y] and E[y²] where `money` per client is spent on what it buys most worth with."""
    rate = worth.rate_of(np.minimum(types.epsilon, worth.turn))
    cost = np.maximum(types.cost, 1e-300)

    def sold(level: float) -> Array:
        slope = cost / level
        part = np.minimum(types.epsilon, worth.amount_at(np.minimum(slope, worth.slope[0])))
        return np.where(slope <= rate, part, 0.0)

    def paid(amount: Array) -> float:
        return float(types.probability @ (types.cost * amount))

    def moments(amount: Array) -> tuple[float, float]:
        y = worth.precision_of(amount)
        return float(types.probability @ y), float(types.probability @ y**2)

    everything = np.minimum(types.epsilon, worth.most)
    if paid(everything) <= money:
        return moments(everything)
    low = float(np.log(cost.min() / rate.max())) - 1.0
    high = float(np.log(cost.max() / rate.min())) + 40.0
    for _ in range(_LEVEL_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if paid(sold(float(np.exp(middle)))) <= money else (low, middle)
    below = sold(float(np.exp(low)))
    above = sold(float(np.exp(high)))
    rise = paid(above) - paid(below)
    share = np.clip((money - paid(below)) / rise, 0.0, 1.0) if rise > 0 else 0.0
    less = moments(below)
    more = moments(above)
    return less[0] + share * (more[0] - less[0]), less[1] + share * (more[1] - less[1])


def selling_prices(distribution: Distribution | Bids) -> tuple[Array, Array]:
    """(costs, prices): the best price to post where a unit of ε is worth so much, corners of a rising line.

    A price p buys from the share F(p) at p·F(p), so a buyer to whom a unit is worth z posts the largest price whose
    (ironed) virtual cost is at most z. Where that jumps over prices that suit nobody, the line is steep instead.
    """
    spend, quantity = _supply_hull(distribution)
    slope = np.diff(spend) / np.diff(quantity)
    # A client that asks exactly a price does not sell, and past bids are likely to be asked again.
    price = np.nextafter(spend[1:] / quantity[1:], np.inf)
    between = 0.5 * (slope[1:] + slope[:-1])
    lower = np.maximum(slope / _STEEP, np.append(0.0, between))
    upper = np.minimum(slope * _STEEP, np.append(between, np.inf))
    costs = np.append(0.0, np.stack([lower, upper], axis=1).ravel())
    prices = np.append(0.0, np.stack([np.append(0.0, price[:-1]), price], axis=1).ravel())
    return np.maximum.accumulate(costs), np.maximum.accumulate(prices)
