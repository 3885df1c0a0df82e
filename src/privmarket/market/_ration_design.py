"""Which prices suit a buyer that wants an accurate sum: the best flat, two-step and graded ration.

Everything here is computed from public facts (a distribution or past bids, the number of clients, the budget),
never from the bids of the round that is cleared. It is a choice, not a promise: a wrong belief about the
distribution costs value, never truthfulness.

Notation: u = share of clients below a price, p(u) = the u-quantile of valuations, ℓ = ration, b = money per
client, X = mean strength E[μ], D = E|μ/X − 1|. Valuations are taken as independent of offers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from privmarket.market._bids import Array, Bids
from privmarket.market._bounds import least_local_error, least_typical_error, virtual_types
from privmarket.market._distributions import Distribution, EmpiricalDistribution, IndependentDistribution
from privmarket.market._menus import RationCurve
from privmarket.market._objectives import AggregateError, LocalError, TypicalAggregateError

# Beyond this share of clients a price may be infinite, or a single past bid.
_MOST = 0.995
_BISECTIONS = 26
_OFFERS = 12
_LOCAL_OFFERS = 40
_STRENGTH_POINTS = 256
# Designs are made for a grid of budgets and of bias-to-noise ratios, so that few are ever computed.
_BUDGETS_PER_DECADE = 8
_RATIOS_PER_DECADE = 4
_LOCAL_RATIOS_PER_DECADE = 16
_SAMPLE_CLIENTS = 20_000
_BULK_SHARES = np.array([0.0, 0.02, 0.06, 0.15, 0.3, 0.5, 0.8])
_MULTIPLES = np.array([2.0, 4.0, 8.0, 32.0, 1024.0])
# Steps of a graded ration, costs that its design tells apart, the least amount that is worth a step as a share of
# the largest, the least share of clients it buys from, and the least ratio of two steps.
_GRADES = 8
_COSTS = 40
_LEAST_AMOUNT = 0.02
_LEAST = 0.01
_LEAST_RATIO = 1.01
# Shares of the ration that the budget allows: where offers differ, the best ration may leave money over.
_PARTS = np.array([1.0, 0.8, 0.6, 0.45, 0.3, 0.2, 0.1])


@dataclass(frozen=True, eq=False)
class Marginals:
    """What a design knows: valuations by share of clients, (points,), and typical offers, (offers,).

    Attributes:
        ranked: all valuations of past bids, ascending; None where valuations have a smooth distribution.
    """

    share: Array
    valuation: Array
    epsilon: Array
    ranked: Array | None = None

    @staticmethod
    def of(distribution: Distribution | Bids, points: int = 1001) -> Marginals:
        """The marginals of a distribution, or of a sample of bids."""
        share = np.linspace(0.0, _MOST, points)
        middles = (np.arange(_OFFERS) + 0.5) / _OFFERS
        if isinstance(distribution, IndependentDistribution):
            ranked = None if distribution.past is None else np.sort(distribution.past.valuation)
            valuation = distribution.valuation(np.maximum(share, 1e-12))
            return Marginals(share, valuation, distribution.epsilon(middles), ranked)
        ranked = None
        if isinstance(distribution, Bids | EmpiricalDistribution):
            rows = distribution if isinstance(distribution, Bids) else distribution.past
            ranked = np.sort(rows.valuation, axis=None)
        else:
            rows = distribution.sample(np.random.default_rng(0), _SAMPLE_CLIENTS)
        return Marginals(share, np.quantile(rows.valuation, share), np.quantile(rows.epsilon, middles), ranked)

    def price(self, share: Array) -> Array:
        """p(u): the price at which a share u of clients sells; above 0, same shape as `share`.

        Past bids are likely to be asked again, and who asks exactly a price does not sell.
        """
        least = 1e-9 * float(self.valuation.max()) or 1e-9
        if self.ranked is None:
            return np.maximum(np.interp(share, self.share, self.valuation), least)
        place = np.ceil(np.asarray(share) * self.ranked.size * (1 - 1e-12)).astype(int) - 1
        return np.asarray(np.maximum(np.nextafter(self.ranked[np.maximum(place, 0)], np.inf), least))


def flat_price(distribution: Distribution, clients: int, budget: float, objective: AggregateError) -> float:
    """The unit price p at which a ration of B/(N·p) gives the least error in the fluid limit."""
    return _flat_price(distribution, *_grid_point(clients, budget, objective), objective.delta)


def two_step_curve(
    distribution: Distribution, clients: int, budget: float, objective: AggregateError
) -> RationCurve:
    """The ration curve of at most two steps that gives the least error in the fluid limit."""
    return _two_step(distribution, *_grid_point(clients, budget, objective), objective.delta)


def graded_curve(
    distribution: Distribution, clients: int, budget: float, objective: TypicalAggregateError
) -> RationCurve:
    """The fluid optimum for the typical error, cut into steps that equally many of the clients that sell reach."""
    return _graded(distribution, *_grid_point(clients, budget, objective), objective.delta)


def local_curvature(distribution: Distribution, clients: int, budget: float, objective: LocalError) -> float:
    """ρ of the fluid optimum of the local error: how fast a client's further precision loses its worth."""
    ratio = objective.heterogeneity**2 * clients / objective.kappa
    if ratio == 0:
        return 0.0
    money = _on_grid(budget / clients, _BUDGETS_PER_DECADE)
    ratio = _on_grid(min(max(ratio, 1e-9), 1e9), _LOCAL_RATIOS_PER_DECADE)
    return _local_curvature(distribution, money, ratio, objective.delta)


def bias_to_noise(objective: AggregateError, clients: int) -> float:
    """r = H²·N²·(h/n)/κ. Markets with equal r, distribution and budget per client have the same best menu."""
    return objective.heterogeneity**2 * clients**2 * objective.honest_share / objective.kappa


@lru_cache(maxsize=4096)
def _grid_point(clients: int, budget: float, objective: AggregateError) -> tuple[float, float]:
    """Money per client and bias-to-noise ratio, both rounded to a grid."""
    ratio = _on_grid(min(max(bias_to_noise(objective, clients), 1e-9), 1e9), _RATIOS_PER_DECADE)
    return _on_grid(budget / clients, _BUDGETS_PER_DECADE), ratio


def _on_grid(value: float, per_decade: int) -> float:
    return float(10.0 ** (np.round(np.log10(value) * per_decade) / per_decade))


@lru_cache(maxsize=4096)
def _flat_price(distribution: Distribution, money: float, ratio: float, delta: float | None) -> float:
    facts = _marginals(distribution)
    strength = _strength(distribution, delta)
    price = facts.price(facts.share[1:])
    sold = np.minimum(facts.epsilon, (money / price)[:, None])
    error = _error(strength(sold)[..., None], facts.share[1:, None, None], ratio)
    return float(price[int(np.argmin(error))])


@lru_cache(maxsize=4096)
def _two_step(distribution: Distribution, money: float, ratio: float, delta: float | None) -> RationCurve:
    facts = _marginals(distribution)
    strength = _strength(distribution, delta)
    high = np.linspace(0.05, _MOST, 20)
    low = _BULK_SHARES
    multiple = _MULTIPLES
    width = high[1] - high[0]
    u = part = k = ceiling = 0.0
    for _ in range(3):
        shares, parts, multiples = (a.ravel() for a in np.meshgrid(high, low, multiple, indexing="ij"))
        error, level = _two_step_errors(facts, strength, money, ratio, shares, parts * shares, multiples)
        at, kept = np.unravel_index(int(np.argmin(error)), error.shape)
        u = float(shares[at])
        part = float(parts[at])
        k = float(multiples[at])
        ceiling = np.inf if kept == 0 else float(level[at, kept])
        high = np.clip(u + np.linspace(-1, 1, 5) * width, 1e-3, _MOST)
        low = np.clip(part * np.geomspace(0.5, 2.0, 5), 0.0, 0.99)
        multiple = np.maximum(k * np.geomspace(0.6, 1.6, 5), 1.01)
        width /= 3
    ration_price, bulk_price = facts.price(np.array([u, part * u]))
    if part == 0 or bulk_price >= ration_price:
        return RationCurve([ration_price], [1.0], ceiling=ceiling)
    return RationCurve([bulk_price, ration_price], [k, 1.0], ceiling=ceiling)


@lru_cache(maxsize=4096)
def _graded(distribution: Distribution, money: float, ratio: float, delta: float | None) -> RationCurve:
    types = virtual_types(distribution, _COSTS)
    facts = _marginals(distribution)
    best = least_typical_error(types, 1, money, TypicalAggregateError(1.0, ratio**0.5, 1.0, delta))
    if best.amount.min() == best.amount.max():
        # Money is left over: nobody is to sell more than this, even where others sell less than was foreseen.
        # With next to no money the optimum sells nothing; the money itself then limits the ration.
        return RationCurve([float(facts.price(np.array(_MOST)))], [1.0], ceiling=float(best.amount[0]) or np.inf)
    # Virtual costs rise with valuations, so both have the same quantiles.
    order = np.argsort(types.cost, kind="stable")
    reached = np.cumsum(types.probability[order])
    amount = np.interp(types.cost[order], best.cost, best.amount)
    # Who costs nothing is bought whole, however much that is.
    amount = np.where(types.cost[order] > 0, amount, np.minimum(amount, types.epsilon.max()))
    sellers = min(float(reached[np.flatnonzero(amount > 0)[-1]]) if (amount > 0).any() else _LEAST, _MOST)
    shares = sellers * np.arange(1, _GRADES + 1) / _GRADES
    if facts.ranked is not None:
        # Where few different costs occur, each is a step of its own: no price lies between two of them.
        ends = reached[:-1][np.diff(types.cost[order]) > 0]
        ends = np.append(ends[ends < sellers], sellers)
        shares = ends if ends.size <= _GRADES else shares
    widths = np.diff(shares, prepend=0.0)[:, None]
    inner = (shares[:, None] - widths * (np.arange(8) + 0.5) / 8).clip(0, 1)
    if facts.ranked is None:
        amounts = np.interp(inner, reached, amount).mean(axis=1)
    else:
        amounts = amount[np.searchsorted(reached, inner).clip(max=amount.size - 1)].mean(axis=1)
    return _as_curve(facts.price(shares), np.maximum(amounts, 1e-9))


@lru_cache(maxsize=4096)
def _local_curvature(distribution: Distribution, money: float, ratio: float, delta: float | None) -> float:
    types = virtual_types(distribution, _COSTS, _LOCAL_OFFERS)
    return least_local_error(types, 1, money, LocalError(1.0, ratio**0.5, delta)).curvature


def _as_curve(price: Array, amount: Array) -> RationCurve:
    """A curve from prices in rising and amounts in falling order; steps that are no steps are left out."""
    dearest = int(np.flatnonzero(amount >= _LEAST_AMOUNT * amount[0])[-1])
    kept = [dearest]
    for step in reversed(range(dearest)):
        if amount[step] > amount[kept[0]] * _LEAST_RATIO and price[step] < price[kept[0]]:
            kept.insert(0, step)
    return RationCurve(price[kept], np.append(amount[kept[:-1]] / amount[kept[-1]], 1.0))


def _two_step_errors(
    facts: Marginals, strength: _Strength, money: float, ratio: float, high: Array, low: Array, multiple: Array
) -> tuple[Array, Array]:
    """The error of each design at several parts of the ration that the budget allows, and those rations.

    Args:
        high, low: (designs,) shares of clients that sell a ration, and that sell its multiple.

    Returns:
        (designs, parts) each.
    """
    ration_price = facts.price(high)
    bulk_price = np.minimum(facts.price(low), facts.price(high))
    bottom = np.zeros(high.size)
    top = np.full(high.size, facts.epsilon.max())

    def amounts(level: Array) -> tuple[Array, Array]:
        return np.minimum(facts.epsilon, level[:, None]), np.minimum(facts.epsilon, (multiple * level)[:, None])

    for _ in range(_BISECTIONS):
        middle = 0.5 * (bottom + top)
        ration, bulk = amounts(middle)
        paid = ration_price * high * ration.mean(-1) + bulk_price * low * (bulk - ration).mean(-1)
        bottom = np.where(paid <= money, middle, bottom)
        top = np.where(paid <= money, top, middle)
    levels = bottom[:, None] * _PARTS
    share = np.stack([high - low, low], axis=-1)[:, None]
    errors = [_error(strength(np.stack(amounts(level), axis=-1)), share, ratio) for level in levels.T]
    return np.stack(errors, axis=-1), levels


def _error(strength: Array, share: Array, ratio: float) -> Array:
    """(designs,) E up to a constant: 1/X² + r·D².

    Args:
        strength: (designs, offers, groups) μ of what each group sells; who is in no group sells nothing.
        share: (designs, 1, groups) the share of clients in each group.
    """
    mean = (share * strength).mean(axis=1).sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = strength / mean[:, None, None]
        bias = (share * np.abs(relative - 1)).mean(axis=1).sum(axis=-1) + 1 - share.sum(axis=-1)[:, 0]
        return np.where(mean > 0, 1 / mean**2 + ratio * bias**2, np.inf)


class _Strength:
    """μ(ε) by interpolation between logarithmic points; a design needs no more digits."""

    def __init__(self, epsilon_max: float, delta: float | None) -> None:
        self.epsilon = np.geomspace(1e-7 * epsilon_max, epsilon_max, _STRENGTH_POINTS)
        self.log_mu = np.log(AggregateError(delta=delta).mu(self.epsilon))

    def __call__(self, epsilon: Array) -> Array:
        safe = np.log(np.maximum(epsilon, self.epsilon[0]))
        return np.where(epsilon > 0, np.exp(np.interp(safe, np.log(self.epsilon), self.log_mu)), 0.0)


@lru_cache(maxsize=32)
def _marginals(distribution: Distribution) -> Marginals:
    return Marginals.of(distribution)


@lru_cache(maxsize=32)
def _strength(distribution: Distribution, delta: float | None) -> _Strength:
    return _Strength(float(_marginals(distribution).epsilon.max()), delta)
