"""The level of a menu that each client faces: computed from the others' bids, exact to the last bit.

Menus of prices (`MeanFieldMenu`) and of rations (`RationMenu`) are posted the same way. A market has one level,
which scales the prices of the first and the amounts of the second, and everybody is paid more the higher it is.
Write T(x) for what all clients together are paid at level x, T_{−i}(x) for all but client i, and R(x) for the
most that one client can be paid. Client i faces

    x_{−i} = the largest x with T_{−i}(x) + R(x) ≤ B.

Both kinds are found alike. The levels at which everybody costs B with and without the reserve R bracket all
x_{−i}. T is linear between the breakpoints in the bracket, at which somebody starts or ceases to sell more. Each
client looks up by bisection the last breakpoint that the budget reaches without the client's own pay, and the
level beyond it follows from a linear equation.

Each kind has two versions, for one market of any size and for many small markets at once. The second takes the
steps of the first, on arrays with one row per market and in the same order of additions, so both give the same
bits.

Notation: price level τ with curve G, Ḡ = ∫G and ration level ℓ with amounts a_m(ℓ), both
of `market._menus`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privmarket.market._bids import Array
from privmarket.market._menus import MenuCurve, RationCurve, StackedCurves
from privmarket.mechanisms._ranking import Ranking

# Above this many breakpoints, the price level is bracketed first, so that few of them are ever listed.
LIST_ALL = 2_048
_BRACKET_STEPS = 64
# Ration levels are bracketed by cutting an interval into so many parts, so many times.
_PARTS = 64
_CUTS = 4
# How many numbers are held at once when many markets are cleared together.
_BREAKPOINT_CELLS = 1_000_000
_COMPARISON_CELLS = 2_000_000


def _last_reached(
    reached: Callable[[NDArray[np.intp]], NDArray[np.bool_]], count: int | NDArray[np.intp], shape: tuple[int, ...]
) -> NDArray[np.intp]:
    """The last of `count` breakpoints that each client reaches, by bisection; the first is always reached.

    Args:
        reached: breakpoints, one for each client → whether the client reaches its own; true up to some breakpoint,
            then false.
        count: how many breakpoints there are, a number or one for each row.
    """
    start = np.zeros(shape, dtype=np.intp)
    stop = np.broadcast_to(np.asarray(count, dtype=np.intp), shape)
    while np.any(stop - start > 1):
        middle = (start + stop) // 2
        yes = reached(middle)
        start = np.where(yes, middle, start)
        stop = np.where(yes, stop, middle)
    return start


# ---- price levels, one market ----


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


def price_levels(
    valuation: Array, epsilon: Array, budget: float, curve: MenuCurve, epsilon_max: float
) -> tuple[Array, float]:
    """τ_{−i} for all i, exact: total pay is linear in τ between breakpoints.

    As τ rises past t_jm, client j starts to sell step m, and total pay per unit of τ jumps by ε_j·w_m·s_m.

    Args:
        valuation: (clients,) ascending.
        epsilon: (clients,) in the same order.

    Returns:
        (can_sell,) the levels of the clients that sell something at some level in question, in rank order, and
        the level that all the others face.
    """
    prefix = np.zeros(valuation.size + 1)
    np.cumsum(epsilon, out=prefix[1:])
    # Below `low` nobody's level can lie, above `high` neither.
    low = 0.5 * budget / (curve.area * (prefix[-1] + epsilon_max))
    high = 2.0 * max(valuation[-1] / curve.price[0], budget / (curve.area * prefix[-1]))
    if valuation.size * curve.price.size > LIST_ALL:
        low, high = _narrowed(low, high, valuation, prefix, budget, curve, epsilon_max)
    first = np.searchsorted(valuation, low * curve.price, side="left")
    last = np.searchsorted(valuation, high * curve.price, side="left")
    point, rate = _breakpoints(valuation, epsilon, prefix, first, last, low, curve)
    rate += epsilon_max * curve.area
    # On (point[k], point[k+1]] everybody together plus the reserve costs rate[k]·τ.
    slack = rate - budget / point
    ends = np.append(point[1:], np.inf)

    can_sell = int(last[-1])
    own = epsilon[:can_sell] * curve.pay_from[steps_unsold(valuation[:can_sell], np.float64(low), curve)]
    own = np.append(own, 0.0)  # and one for all the others, who are paid nothing
    if slack.size > 8:
        interval = np.searchsorted(slack, own, side="left") - 1
    else:  # a few whole-array comparisons beat a binary search
        interval = np.zeros(own.shape, dtype=np.intp)
        for entry in slack[1:]:
            interval += entry < own
    moving = np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)])
    if moving.size:
        value = valuation[moving]
        size = epsilon[moving]

        def own_beyond(at: NDArray[np.intp]) -> Array:
            beyond = np.nextafter(point[at], np.inf)
            return np.asarray(size * curve.pay_from[steps_unsold(value, beyond, curve)])

        # Clients that start to sell a step at one of the breakpoints do not count their own part.
        interval[moving] = _last_reached(
            lambda at: point[at] * (rate[at] - own_beyond(at)) < budget, point.size, moving.shape
        )
        own[moving] = own_beyond(interval[moving])
    levels = np.minimum(ends[interval], budget / (rate[interval] - own))
    return levels[:-1], float(levels[-1])


def _narrowed(
    low: float, high: float, ranked: Array, prefix: Array, budget: float, curve: MenuCurve, epsilon_max: float
) -> tuple[float, float]:
    """Levels (low, high) with low still below every τ_{−i} and high above: by bisection on total pay."""

    def pay_rate(level: float) -> float:
        sellers = np.searchsorted(ranked, level * curve.price, side="left")
        return float((curve.weight * curve.price) @ prefix[sellers])

    below = low
    above = high
    for _ in range(_BRACKET_STEPS):
        middle = 0.5 * (low + above)
        if middle * (pay_rate(middle) + epsilon_max * curve.area) < budget:
            low = middle
        else:
            above = middle
    for _ in range(_BRACKET_STEPS):
        middle = 0.5 * (below + high)
        if middle * pay_rate(middle) > budget:
            high = middle
        else:
            below = middle
    # Strictly below the first breakpoint in question, so that the interval just above `low` is affordable.
    return low * (1 - 1e-12), high


def _breakpoints(
    valuation: Array,
    epsilon: Array,
    prefix: Array,
    first: NDArray[np.intp],
    last: NDArray[np.intp],
    low: float,
    curve: MenuCurve,
) -> tuple[Array, Array]:
    """Levels at which somebody starts to sell a step, ascending from `low`, and total pay per τ beyond each.

    Args:
        first, last: (steps,) the ranks that start to sell step m inside the bracket are first[m] … last[m] − 1.

    Returns:
        (points,) each level, the first being `low`; (points,) the pay rate just above it.
    """
    value = np.concatenate([valuation[a:b] for a, b in zip(first, last, strict=True)])
    size = np.concatenate([epsilon[a:b] for a, b in zip(first, last, strict=True)])
    step = np.repeat(np.arange(curve.price.size), last - first)
    price = curve.price[step]
    point = last_level_unsold(value, price)
    order = np.argsort(point, kind="stable")
    jump = (size * curve.weight[step] * price)[order]
    base = (curve.weight * curve.price) @ prefix[first]
    rate = base + np.concatenate([[0.0], np.cumsum(jump)])
    points = np.concatenate([[low], point[order]])
    # Equal levels are one breakpoint: between them a client's own jump could be counted without the others'.
    last_of_run = np.append(points[1:] != points[:-1], True)
    return points[last_of_run], rate[last_of_run]


# ---- price levels, many small markets ----


def price_levels_of_many(
    valuation: Array, epsilon: Array, budget: Array, curve: MenuCurve, epsilon_max: float
) -> Array:
    """(..., clients) τ_{−i}, from (..., clients) bids and (..., 1) budgets."""
    ranking = Ranking.by(valuation)
    flat = (-1, valuation.shape[-1])
    asked = ranking.key.reshape(flat)
    offered = ranking.sort(epsilon).reshape(flat)
    money = budget.reshape(-1, 1)
    size = max(1, _BREAKPOINT_CELLS // (valuation.shape[-1] * curve.price.size))
    parts = [slice(start, start + size) for start in range(0, len(asked), size)]
    found = [_many_price_levels(asked[part], offered[part], money[part], curve, epsilon_max) for part in parts]
    levels = np.empty(valuation.shape)
    np.put_along_axis(levels, ranking.order, np.concatenate(found).reshape(valuation.shape), axis=-1)
    return levels


def _many_price_levels(
    valuation: Array, epsilon: Array, budget: Array, curve: MenuCurve, epsilon_max: float
) -> Array:
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
    point, rate = _many_breakpoints(valuation, epsilon, prefix, first, low, curve)
    rate += epsilon_max * curve.area
    with np.errstate(invalid="ignore"):
        slack = np.where(np.isinf(point), np.inf, rate - budget / point)
    own = epsilon * curve.pay_from[steps_unsold(valuation, low, curve)]
    listed = np.count_nonzero(np.isfinite(point), axis=-1)[:, None]
    interval = _last_reached(lambda at: np.take_along_axis(slack, at, axis=-1) < own, listed, own.shape)

    def own_beyond(at: NDArray[np.intp]) -> Array:
        beyond = np.nextafter(np.take_along_axis(point, at, axis=-1), np.inf)
        return epsilon * curve.pay_from[steps_unsold(valuation, beyond, curve)]

    def affordable(at: NDArray[np.intp]) -> NDArray[np.bool_]:
        others = np.take_along_axis(rate, at, axis=-1) - own_beyond(at)
        return np.take_along_axis(point, at, axis=-1) * others < budget

    # Clients that start to sell a step at one of the breakpoints do not count their own part.
    moving = np.arange(valuation.shape[-1]) >= first[:, :1]
    reached = _last_reached(affordable, listed, own.shape)
    interval = np.where(moving, reached, interval)
    own = np.where(moving, own_beyond(reached), own)
    ends = np.concatenate([point[:, 1:], np.full((point.shape[0], 1), np.inf)], axis=-1)
    there = np.take_along_axis(rate, interval, axis=-1)
    return np.asarray(np.minimum(np.take_along_axis(ends, interval, axis=-1), budget / (there - own)))


def _many_breakpoints(
    valuation: Array, epsilon: Array, prefix: Array, first: NDArray[np.intp], low: Array, curve: MenuCurve
) -> tuple[Array, Array]:
    """(markets, points) levels at which somebody starts to sell a step, ascending from `low`; pay rate beyond.

    Rows with fewer breakpoints end in infinite ones.

    Args:
        first: (markets, steps) the ranks from here on start to sell step m above `low`; all others sell it there.
    """
    markets, clients = valuation.shape
    price = curve.price[:, None]
    weight = curve.weight[:, None]
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


# ---- ration levels, one market ----


def ration_levels(
    curve: RationCurve, valuation: Array, epsilon: Array, budget: float, epsilon_max: float
) -> tuple[Array, NDArray[np.bool_]]:
    """(clients,) ℓ_{−i}, and whether it is ε_max. Exact: pay is linear in ℓ between breakpoints.

    All ℓ_{−i} lie between the levels at which everybody's pay costs B with and without one client's reserve. Few
    breakpoints lie between those two in a large market, and each client looks up its own among them.
    """
    total = _TotalPay.of(curve, valuation, epsilon)

    def with_reserve(level: Array) -> Array:
        return total(level) + curve.most_pay(epsilon_max, level)

    top = min(epsilon_max, curve.ceiling)
    low, _ = _bracket(lambda x: with_reserve(x) <= budget, 0.0, top)
    _, high = _bracket(lambda x: total(x) <= budget, low, top)
    points = total.breakpoints(low, high, epsilon_max)
    cost = with_reserve(points)

    def others_and_reserve(index: NDArray[np.intp]) -> Array:
        return cost[index] - curve.trade(valuation, epsilon, points[index])[1]

    start = _last_reached(lambda at: others_and_reserve(at) <= budget, points.size, valuation.shape)
    last = start == points.size - 1
    after = np.where(last, start, start + 1)
    here = others_and_reserve(start)
    there = others_and_reserve(after)
    rise = np.where(there > here, there - here, 1.0)
    part = np.clip((budget - here) / rise, 0.0, 1.0)
    level = points[start] + np.where(last, 0.0, part * (points[after] - points[start]))
    return level, last & (points[-1] >= epsilon_max)


@dataclass(frozen=True, eq=False)
class _TotalPay:
    """T(ℓ) from prefix sums of offers: T = Σ_m Σ_{v < p_m} p_m·(min(ε, a_m) − min(ε, a_{m+1})).

    Attributes:
        offers: per step, the offers of the clients with v < p_m, ascending.
        prefix: per step, their running sums from 0 on.
    """

    curve: RationCurve
    offers: list[Array]
    prefix: list[Array]

    @staticmethod
    def of(curve: RationCurve, valuation: Array, epsilon: Array) -> _TotalPay:
        order = np.argsort(epsilon, kind="stable")
        asked = valuation[order]
        offered = epsilon[order]
        offers = [offered[asked < price] for price in curve.price]
        return _TotalPay(curve, offers, [np.append(0.0, np.cumsum(some)) for some in offers])

    def __call__(self, level: Array) -> Array:
        pay = np.zeros(level.shape)
        for step in range(self.curve.steps):
            slices = self._bought(step, self.curve.amount(step, level))
            if step + 1 < self.curve.steps:
                slices = slices - self._bought(step, self.curve.amount(step + 1, level))
            pay = pay + self.curve.price[step] * slices
        return pay

    def _bought(self, step: int, amount: Array) -> Array:
        """Σ min(ε, amount) over the clients with v < p_m."""
        whole = np.searchsorted(self.offers[step], amount, side="left")
        return self.prefix[step][whole] + amount * (self.offers[step].size - whole)

    def breakpoints(self, low: float, high: float, epsilon_max: float) -> Array:
        """Levels from `low` to `high`, ends included, at which the pay of somebody, or the reserve, has a kink."""
        curve = self.curve
        found = [np.array([low, high])]
        for step in range(curve.steps):
            # A slice's lower end counts for every client that sells the slice above it.
            for offers in self.offers[max(step - 1, 0) : step + 1]:
                a, b = np.searchsorted(offers, [curve.amount(step, low), curve.amount(step, high)])
                found.append(curve.level_of(step, offers[a:b]))
            found.append(curve.level_of(step, np.array([epsilon_max])))
        found.append(np.array([curve.floor]))
        points = np.unique(np.concatenate(found))
        return points[(points >= low) & (points <= high)]


def _bracket(fits: Callable[[Array], NDArray[np.bool_]], low: float, top: float) -> tuple[float, float]:
    """Two close levels in [low, top] between which the largest one that fits lies; `low` itself fits.

    The second is `top` where that fits too.
    """
    high = top
    for _ in range(_CUTS):
        points = np.linspace(low, high, _PARTS + 1)
        fitting = int(np.count_nonzero(np.logical_and.accumulate(fits(points[1:]))))
        if fitting == _PARTS:
            return high, high
        low = float(points[fitting])
        high = float(points[fitting + 1])
    return low, high


# ---- ration levels, many small markets ----


def ration_levels_of_many(
    curves: Sequence[RationCurve], valuation: Array, epsilon: Array, budget: Array, epsilon_max: float
) -> tuple[Array, NDArray[np.bool_]]:
    """(markets, clients) ℓ_{−i}, and whether it is ε_max.

    Args:
        curves: one per market.
        valuation, epsilon: (markets, clients).
        budget: (markets, 1).
    """
    size = max(1, _COMPARISON_CELLS // (_PARTS * valuation.shape[-1]))
    parts = [slice(start, start + size) for start in range(0, len(curves), size)]
    found = [
        _many_ration_levels(curves[part], valuation[part], epsilon[part], budget[part], epsilon_max)
        for part in parts
    ]
    return np.concatenate([level for level, _ in found]), np.concatenate([full for _, full in found])


def _many_ration_levels(
    curves: Sequence[RationCurve], valuation: Array, epsilon: Array, budget: Array, epsilon_max: float
) -> tuple[Array, NDArray[np.bool_]]:
    stacked = StackedCurves.of(curves)
    total = _ManyTotalPays.of(stacked, valuation, epsilon)

    def with_reserve(level: Array) -> Array:
        reserve = stacked.trade(np.zeros(level.shape), np.full(level.shape, epsilon_max), level)[1]
        return total(level) + reserve

    top = np.array([[min(epsilon_max, curve.ceiling)] for curve in curves])
    low, _ = _many_brackets(lambda x: with_reserve(x) <= budget, np.zeros(top.shape), top)
    _, high = _many_brackets(lambda x: total(x) <= budget, low, top)
    points, count = total.breakpoints(low, high, epsilon_max)
    cost = with_reserve(points)

    def at(index: NDArray[np.intp]) -> tuple[Array, Array]:
        """The level of a breakpoint, and what all others and the reserve cost there."""
        level = np.take_along_axis(points, index, axis=-1)
        return level, np.take_along_axis(cost, index, axis=-1) - stacked.trade(valuation, epsilon, level)[1]

    start = _last_reached(lambda index: at(index)[1] <= budget, count, valuation.shape)
    last = start == count - 1
    below, here = at(start)
    above, there = at(np.where(last, start, start + 1))
    rise = np.where(there > here, there - here, 1.0)
    part = np.clip((budget - here) / rise, 0.0, 1.0)
    level = below + np.where(last, 0.0, part * (above - below))
    return level, last & (np.take_along_axis(points, count - 1, axis=-1) >= epsilon_max)


@dataclass(frozen=True, eq=False)
class _ManyTotalPays:
    """T(ℓ) of every market, from prefix sums of offers.

    Attributes:
        offered: (markets, clients) ascending in each market.
        sells: (steps, markets, clients) whether the client of that offer asks less than the step's price.
        number, prefix: (steps, markets, clients + 1) how many of the first so many offers sell, and their sum.
    """

    curves: StackedCurves
    offered: Array
    sells: NDArray[np.bool_]
    number: NDArray[np.intp]
    prefix: Array

    @staticmethod
    def of(curves: StackedCurves, valuation: Array, epsilon: Array) -> _ManyTotalPays:
        order = np.argsort(epsilon, axis=-1, kind="stable")
        asked, offered = (np.take_along_axis(a, order, axis=-1) for a in (valuation, epsilon))
        sells = asked < curves.price
        none = np.zeros((*sells.shape[:-1], 1))
        number = np.concatenate([none.astype(np.intp), np.cumsum(sells, axis=-1)], axis=-1)
        prefix = np.concatenate([none, np.cumsum(np.where(sells, offered, 0.0), axis=-1)], axis=-1)
        return _ManyTotalPays(curves, offered, sells, number, prefix)

    def __call__(self, level: Array) -> Array:
        """(markets, points) from levels of that shape."""
        steps = len(self.curves.price)
        amounts = [self.curves.amount(step, level) for step in range(steps)]
        below = [np.count_nonzero(self.offered[:, None] < amount[..., None], axis=-1) for amount in amounts]
        pay = np.zeros(level.shape)
        for step in range(steps):
            slices = self._bought(step, amounts[step], below[step])
            if step + 1 < steps:
                slices = slices - self._bought(step, amounts[step + 1], below[step + 1])
            pay = pay + self.curves.price[step] * slices
        return pay

    def _bought(self, step: int, amount: Array, below: NDArray[np.intp]) -> Array:
        """Σ min(ε, amount) over the clients with v < p_m; `below` counts the offers below the amount."""
        whole = np.take_along_axis(self.number[step], below, axis=-1)
        beyond = self.number[step][:, -1:] - whole
        return np.asarray(np.take_along_axis(self.prefix[step], below, axis=-1) + amount * beyond)

    def breakpoints(self, low: Array, high: Array, epsilon_max: float) -> tuple[Array, NDArray[np.intp]]:
        """(markets, points) ascending levels from `low` to `high` with all kinks between; (markets, 1) how many.

        Rows with fewer end in repeats of `high`.
        """
        found = [low, high, self.curves.floor]
        for step in range(len(self.curves.price)):
            enough = self.offered >= self.curves.amount(step, low)
            inside = self.sells[step] & enough & (self.offered < self.curves.amount(step, high))
            found.append(np.where(inside, self.curves.level_of(step, self.offered), np.inf))
            found.append(self.curves.level_of(step, np.full(low.shape, epsilon_max)))
        points = np.concatenate(found, axis=-1)
        points = np.sort(np.where((points >= low) & (points <= high), points, np.inf), axis=-1)
        repeated = np.concatenate([np.zeros(low.shape, dtype=np.bool_), points[:, 1:] == points[:, :-1]], axis=-1)
        points = np.sort(np.where(repeated, np.inf, points), axis=-1)
        count = np.count_nonzero(points < np.inf, axis=-1)[:, None]
        return np.where(points < np.inf, points, high), count


def _many_brackets(fits: Callable[[Array], NDArray[np.bool_]], low: Array, top: Array) -> tuple[Array, Array]:
    """(markets, 1) two close levels in [low, top] between which the largest one that fits lies; `low` itself fits.

    Both are `top` where that fits too.
    """
    high = top
    for _ in range(_CUTS):
        points = np.arange(_PARTS + 1) * ((high - low) / _PARTS) + low
        points[:, -1:] = high
        fitting = np.count_nonzero(np.logical_and.accumulate(fits(points[:, 1:]), axis=-1), axis=-1)[:, None]
        low, high = (np.take_along_axis(points, np.minimum(fitting + i, _PARTS), axis=-1) for i in (0, 1))
    return low, high
