"""The mean-field menu: a curve of unit prices, scaled for each client by what the *others* cost.

Notation: G = menu curve, s = v/τ, τ = price level, Ḡ = ∫G, T(τ) = Σ_j what client j is paid at level τ,
τ_{−i} = the largest τ with T_{−i}(τ) + ε_max·τ·Ḡ ≤ B, the level that client i faces.

τ_{−i} does not depend on client i's report, so truth is dominant in v (Myerson) and in ε (utility is the
offered ε times a non-negative number). The reserve ε_max·τ·Ḡ covers whatever i itself may be paid, so every
τ_{−i} is at most the level at which all together cost B: the budget holds. See docs/theory/mean-field-menu.md.
"""

from __future__ import annotations

import weakref
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket._settings import EPSILON_MAX
from privmarket.market._bids import Array, Bids
from privmarket.market._facts import offer_limit
from privmarket.market._guarantees import BudgetFeasible, IndividuallyRational, Truthful, WithinOffer
from privmarket.market._mechanism import Mechanism, budget_column
from privmarket.market._menus import POSTED_PRICE, MenuCurve
from privmarket.market._outcome import Outcome
from privmarket.mechanisms._menu_levels import last_level_unsold, levels_of_small_markets, steps_unsold
from privmarket.mechanisms._ranking import Ranking

# Above this many breakpoints, the price level is bracketed first, so that few of them are ever listed.
_LIST_ALL = 2_048
_BRACKET_STEPS = 64


class MeanFieldMenu(Mechanism):
    """Exactly truthful in v and ε, individually rational and within budget, for any menu curve.

    Args:
        curve: which share of its ε a client sells at which relative valuation.
        epsilon_max: public limit on offers, a constant of the market; an offer above it is refused.

    Implements: the per-client price level of the mean-field menu; payments after [Myerson1981].
    Assumes: a client cannot offer more ε than it has (its wallet refuses); it may offer less.
    """

    name: ClassVar[str] = "mean-field-menu"
    guarantees = (
        IndividuallyRational(),
        BudgetFeasible(),
        WithinOffer(),
        Truthful(in_="valuation"),
        Truthful(in_="epsilon"),
    )
    market_facts: ClassVar[tuple[str, ...]] = ("epsilon_max",)

    def __init__(self, curve: MenuCurve = POSTED_PRICE, epsilon_max: float = EPSILON_MAX) -> None:
        self.curve = curve
        self.epsilon_max = offer_limit(epsilon_max)
        self._last: tuple[weakref.ref[Bids], Array, Array] | None = None

    def price_levels(self, bids: Bids, budget: ArrayLike) -> Array:
        """(..., clients) τ_{−i}, the price level that each client faces whatever it reports."""
        column = budget_column(budget, bids.shape)
        # Bids never change, and an attack asks thousands of times about the same market: keep the last answer.
        if self._last is not None and self._last[0]() is bids and np.array_equal(self._last[1], column):
            return self._last[2]
        bids.refuse_above(self.epsilon_max)
        levels = self._levels(bids, column)
        levels.setflags(write=False)
        self._last = (weakref.ref(bids), column, levels)
        return levels

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """Each client meets the price level that the others' bids allow."""
        bids.refuse_above(self.epsilon_max)
        if len(bids.shape) > 1 and self._lists_all(bids):
            return Outcome(*self._at(bids.valuation, bids.epsilon, self._levels(bids, budget)))
        epsilon, payment = np.zeros(bids.shape), np.zeros(bids.shape)
        for market in np.ndindex(bids.shape[:-1]):
            # In rank order, those who can sell at all come first: the others are never touched.
            ranking = Ranking.by(bids.valuation[market])
            offered, money = bids.epsilon[market][ranking.order], float(budget[market][0])
            facing, _ = _ranked_levels(ranking.key, offered, money, self.curve, self.epsilon_max)
            can_sell = ranking.order[: facing.size]
            sold, paid = self._at(ranking.key[: facing.size], offered[: facing.size], facing)
            epsilon[market][can_sell], payment[market][can_sell] = sold, paid
        return Outcome(epsilon, payment)

    def unilateral(self, bids: Bids, reports: Bids, budget: ArrayLike) -> Outcome:
        """All N deviations at once in O(N): no report moves the level that its own client faces."""
        reports.refuse_above(self.epsilon_max)
        return Outcome(*self._at(reports.valuation, reports.epsilon, self.price_levels(bids, budget)))

    def own_pieces(self, bids: Bids, budget: float) -> tuple[Array, Array]:
        """What a client faces in one market: (clients, steps) posted prices, and no kinks in its offer."""
        level = self.price_levels(bids, budget)
        return level[:, None] * self.curve.price, np.empty((bids.clients, 0))

    def why_nothing_sold(self, bids: Bids, budget: float) -> str:
        """The reserve for one more offer of epsilon_max leaves a price level that nobody sells at."""
        level = float(self.price_levels(bids, budget).max())
        return (
            f"the budget must also cover one more offer at the limit (epsilon_max = {self.epsilon_max:g}), so the "
            f"price per unit of ε stays at {level * self.curve.price.max():.4g} or below, and the cheapest client "
            f"asks {float(bids.valuation.min()):.4g}; a lower epsilon_max leaves more for the price"
        )

    def _lists_all(self, bids: Bids) -> bool:
        """Whether a market has so few breakpoints that all are listed; then many are cleared together."""
        return bids.clients * self.curve.price.size <= _LIST_ALL

    def _levels(self, bids: Bids, budget: Array) -> Array:
        """(..., clients) τ_{−i}. budget: (..., 1)."""
        if len(bids.shape) > 1 and self._lists_all(bids):
            return levels_of_small_markets(bids.valuation, bids.epsilon, budget, self.curve, self.epsilon_max)
        levels = np.empty(bids.shape)
        for market in np.ndindex(bids.shape[:-1]):
            ranking = Ranking.by(bids.valuation[market])
            offered, money = bids.epsilon[market][ranking.order], float(budget[market][0])
            facing, rest = _ranked_levels(ranking.key, offered, money, self.curve, self.epsilon_max)
            levels[market][ranking.order[: facing.size]] = facing
            levels[market][ranking.order[facing.size :]] = rest
        return levels

    def _at(self, valuation: Array, epsilon: Array, level: Array) -> tuple[Array, Array]:
        """ε sold and pay at given price levels; all of one shape."""
        unsold = steps_unsold(valuation, level, self.curve)
        return epsilon * self.curve.share_from[unsold], epsilon * level * self.curve.pay_from[unsold]


def _ranked_levels(
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
    if valuation.size * curve.price.size > _LIST_ALL:
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
        interval[moving], own[moving] = _last_feasible(
            valuation[moving], epsilon[moving], budget, point, rate, curve
        )
    levels = np.minimum(ends[interval], budget / (rate[interval] - own))
    return levels[:-1], float(levels[-1])


def _narrowed(
    low: float, high: float, ranked: Array, prefix: Array, budget: float, curve: MenuCurve, epsilon_max: float
) -> tuple[float, float]:
    """Levels (low, high) with low still below every τ_{−i} and high above: by bisection on total pay."""

    def pay_rate(level: float) -> float:
        sellers = np.searchsorted(ranked, level * curve.price, side="left")
        return float((curve.weight * curve.price) @ prefix[sellers])

    below, above = low, high
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


def _last_feasible(
    valuation: Array, epsilon: Array, budget: float, point: Array, rate: Array, curve: MenuCurve
) -> tuple[NDArray[np.intp], Array]:
    """Clients whose own sale changes inside the bracket: the last interval that the budget reaches.

    Returns:
        (clients,) the interval, and (clients,) the client's own pay per τ there, which is not counted.
    """
    start = np.zeros(valuation.shape, dtype=np.intp)
    stop = np.full(valuation.shape, point.size, dtype=np.intp)
    while True:
        middle = (start + stop) // 2  # of neighbours, the lower one
        own = epsilon * curve.pay_from[steps_unsold(valuation, np.nextafter(point[middle], np.inf), curve)]
        if np.all(stop - start <= 1):
            return middle, own
        reached = point[middle] * (rate[middle] - own) < budget
        start, stop = np.where(reached, middle, start), np.where(reached, stop, middle)
