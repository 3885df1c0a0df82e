"""Price levels of the mean-field menu in many small markets at once.

Notation: see `mean_field_menu`. Every step below is the one that `mean_field_menu` takes for a single market, on
arrays with one row per market and in the same order of additions, so the levels are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from privmarket.market._bids import Array
from privmarket.market._menus import MenuCurve
from privmarket.mechanisms._ranking import Ranking

# How many breakpoints are listed at once.
_CHUNK_CELLS = 1_000_000


def steps_unsold(valuation: Array, level: Array | np.float64, curve: MenuCurve) -> NDArray[np.intp]:
    """How many steps a client does not sell: those with τ·s_m ≤ v. Same shape as `valuation`.

    The product decides, not the quotient v/τ that finds it quickly: breakpoints below are exact for it.
    """
    if curve.price.size == 1:
        return np.asarray(valuation >= level * curve.price[0], dtype=np.intp)
    found = np.searchsorted(curve.price, valuation / level, side="right")
    padded = np.concatenate([[-np.inf], curve.price, [np.inf]])
    found = found - (valuation < level * padded[found])
    return np.asarray(found + (valuation >= level * padded[found + 1]), dtype=np.intp)


def last_level_unsold(valuation: Array, price: Array) -> Array:
    """The largest float τ with τ·price ≤ v, at which the client does not sell yet. Same shape as `valuation`."""
    point = valuation / price
    # The quotient may be an ulp or two off either way.
    for _ in range(3):
        point = np.where(point * price > valuation, np.nextafter(point, 0.0), point)
    for _ in range(3):
        above = np.nextafter(point, np.inf)
        point = np.where(above * price <= valuation, above, point)
    return point


def levels_of_small_markets(
    valuation: Array, epsilon: Array, budget: Array, curve: MenuCurve, epsilon_max: float
) -> Array:
    """(..., clients) τ_{−i}, from (..., clients) bids and (..., 1) budgets."""
    ranking = Ranking.by(valuation)
    flat = (-1, valuation.shape[-1])
    asked, offered, money = ranking.key.reshape(flat), ranking.sort(epsilon).reshape(flat), budget.reshape(-1, 1)
    size = max(1, _CHUNK_CELLS // (valuation.shape[-1] * curve.price.size))
    parts = [slice(start, start + size) for start in range(0, len(asked), size)]
    found = [_ranked_levels(asked[part], offered[part], money[part], curve, epsilon_max) for part in parts]
    levels = np.empty(valuation.shape)
    np.put_along_axis(levels, ranking.order, np.concatenate(found).reshape(valuation.shape), axis=-1)
    return levels


def _ranked_levels(valuation: Array, epsilon: Array, budget: Array, curve: MenuCurve, epsilon_max: float) -> Array:
    """(markets, clients) τ_{−i} in rank order; every breakpoint is listed.

    Args:
        valuation: (markets, clients) ascending in each market.
        epsilon: (markets, clients) in the same order.
        budget: (markets, 1).
    """
    prefix = np.zeros((valuation.shape[0], valuation.shape[1] + 1))
    np.cumsum(epsilon, axis=-1, out=prefix[:, 1:])
    low = 0.5 * budget / (curve.area * (prefix[:, -1:] + epsilon_max))
    first = np.count_nonzero(valuation[:, None] < (low * curve.price)[..., None], axis=-1)
    point, rate = _breakpoints(valuation, epsilon, prefix, first, low, curve)
    rate += epsilon_max * curve.area
    with np.errstate(invalid="ignore"):
        slack = np.where(np.isinf(point), np.inf, rate - budget / point)
    own = epsilon * curve.pay_from[steps_unsold(valuation, low, curve)]
    interval = _search(point, lambda at: np.take_along_axis(slack, at, axis=-1) < own, own.shape)

    def own_beyond(at: NDArray[np.intp]) -> Array:
        beyond = np.nextafter(np.take_along_axis(point, at, axis=-1), np.inf)
        return epsilon * curve.pay_from[steps_unsold(valuation, beyond, curve)]

    def affordable(at: NDArray[np.intp]) -> NDArray[np.bool_]:
        others = np.take_along_axis(rate, at, axis=-1) - own_beyond(at)
        return np.take_along_axis(point, at, axis=-1) * others < budget

    # Clients that start to sell a step at one of the breakpoints do not count their own part.
    moving = np.arange(valuation.shape[-1]) >= first[:, :1]
    reached = _search(point, affordable, own.shape)
    interval, own = np.where(moving, reached, interval), np.where(moving, own_beyond(reached), own)
    ends = np.concatenate([point[:, 1:], np.full((point.shape[0], 1), np.inf)], axis=-1)
    there = np.take_along_axis(rate, interval, axis=-1)
    return np.asarray(np.minimum(np.take_along_axis(ends, interval, axis=-1), budget / (there - own)))


def _breakpoints(
    valuation: Array, epsilon: Array, prefix: Array, first: NDArray[np.intp], low: Array, curve: MenuCurve
) -> tuple[Array, Array]:
    """(markets, points) levels at which somebody starts to sell a step, ascending from `low`; pay rate beyond.

    Rows with fewer breakpoints end in infinite ones.

    Args:
        first: (markets, steps) the ranks from here on start to sell step m above `low`; all others sell it there.
    """
    markets, clients = valuation.shape
    price, weight = curve.price[:, None], curve.weight[:, None]
    above = np.arange(clients) >= first[..., None]
    listed = np.where(above, last_level_unsold(valuation[:, None], price), np.inf).reshape(markets, -1)
    order = np.argsort(listed, axis=-1, kind="stable")
    jump = np.where(above, epsilon[:, None] * weight * price, 0.0).reshape(markets, -1)
    added = np.cumsum(np.take_along_axis(jump, order, axis=-1), axis=-1)
    # One scalar product per market: a product of matrices would add in another order.
    terms = curve.weight * curve.price
    base = np.array([terms @ row for row in np.take_along_axis(prefix, first, axis=-1)])[:, None]
    rate = base + np.concatenate([np.zeros((markets, 1)), added], axis=-1)
    point = np.concatenate([low, np.take_along_axis(listed, order, axis=-1)], axis=-1)
    # Equal levels are one breakpoint: between them a client's own jump could be counted without the others'.
    single = np.concatenate([point[:, 1:] != point[:, :-1], np.isfinite(point[:, -1:])], axis=-1)
    packed = np.argsort(~single, axis=-1, kind="stable")
    point = np.take_along_axis(np.where(single, point, np.inf), packed, axis=-1)
    return point, np.take_along_axis(rate, packed, axis=-1)


def _search(
    point: Array, reached: Callable[[NDArray[np.intp]], NDArray[np.bool_]], shape: tuple[int, ...]
) -> NDArray[np.intp]:
    """The last interval of its row's finite points that each client reaches; the first is always reached.

    Args:
        reached: (markets, clients) intervals → whether each client reaches its own; true, then false, in a row.
    """
    start = np.zeros(shape, dtype=np.intp)
    stop = np.broadcast_to(np.count_nonzero(np.isfinite(point), axis=-1)[:, None], shape)
    while np.any(stop - start > 1):
        middle = (start + stop) // 2
        yes = reached(middle)
        start, stop = np.where(yes, middle, start), np.where(yes, stop, middle)
    return start
