"""The precision menu: prices by how much ε is offered, for a buyer whose sellers each add their own noise.

Notation: w(x) = worth of a sale of ε = x (`market._precision`), x₀ = its turn, P(z) = the price to post where a
unit of ε is worth z, λ = price level, A = min(ε, x₀). A client may sell

- A as a whole, at the unit price P(λ·w(A)/A), which does not fall with A;
- beyond x₀, part after part, at the unit prices P(λ·w'), as far as its offer reaches.

Client i faces λ_{−i} = the largest level of a public grid with T_{−i}(λ) + R(λ) ≤ B, T_{−i} = what the others are
paid, R = what a client with v = 0 and ε = ε_max would be paid. It does not depend on client i's report, so truth
is dominant in v (posted prices) and in ε (every part of the utility grows with ε); and it is at most the level at
which all together cost B, so the budget holds. Proofs: docs/theory/local-trust.md.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket._settings import DELTA, EPSILON_MAX, KAPPA
from privmarket.market._bids import Array, Bids
from privmarket.market._bounds import selling_prices
from privmarket.market._distributions import Distribution, scenario
from privmarket.market._facts import offer_limit
from privmarket.market._guarantees import BudgetFeasible, IndividuallyRational, Truthful, WithinOffer
from privmarket.market._mechanism import Mechanism, budget_column
from privmarket.market._objectives import LocalError
from privmarket.market._outcome import Outcome
from privmarket.market._precision import Worth
from privmarket.market._ration_design import local_curvature

# Levels of the grid differ by this factor, so at most about so much of the money is left over by it.
_STEP = 1.0005
# The lowest level at which prices are told apart from nothing, and the worth of offers from nothing.
_LEAST = 1e-6
# Up to so many clients, many markets are cleared together.
_SMALL_MARKET = 64
# How many numbers are held at once.
_CELLS = 2_000_000


class PrecisionMenu(Mechanism):
    """The exact rule that gives the least error where every update carries its own noise (local trust).

    Noise then averages with weights μ², and μ² grows faster than ε: who offers much is worth more per unit of ε,
    and is offered a higher price. With H = 0 everybody sells all it offers or nothing. With H > 0 precision from
    few clients is worth less, and clients that offer much may sell a part.

    Exactly truthful in v and ε, individually rational and within budget. The distribution is a public belief; a
    wrong one costs value, never truthfulness. Who asks more than it expects of anybody sells nothing.

    Args:
        distribution: public belief about clients, a distribution or its name. Valuations are taken as independent
            of offers.
        epsilon_max: public limit on offers; an offer above it is refused.
        kappa, heterogeneity, delta: of `LocalError`. Only H²/κ matters.

    Implements: the fluid optimum of docs/theory/local-trust.md; virtual costs of [Myerson1981].
    Assumes: a client cannot offer more ε than it has (its wallet refuses); it may offer less.
    """

    name: ClassVar[str] = "precision-menu"
    guarantees = (
        IndividuallyRational(),
        BudgetFeasible(),
        WithinOffer(),
        Truthful(in_="valuation"),
        Truthful(in_="epsilon"),
    )
    market_facts: ClassVar[tuple[str, ...]] = ("distribution", "epsilon_max")

    def __init__(
        self,
        distribution: Distribution | str = "uniform",
        epsilon_max: float = EPSILON_MAX,
        kappa: float = KAPPA,
        heterogeneity: float = 0.0,
        delta: float = DELTA,
    ) -> None:
        self.epsilon_max = offer_limit(epsilon_max)
        self.distribution = scenario(distribution) if isinstance(distribution, str) else distribution
        self.objective = LocalError(kappa, heterogeneity, delta)
        self._last: tuple[weakref.ref[Bids], Array, Facing] | None = None

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """Each client meets the prices that the others' bids leave money for."""
        return Outcome(*self.facing(bids, budget).trade(bids.valuation, bids.epsilon))

    def unilateral(self, bids: Bids, reports: Bids, budget: ArrayLike) -> Outcome:
        """All N deviations at once in O(N): no report moves what its own client faces."""
        reports.refuse_above(self.epsilon_max)
        column = budget_column(budget, bids.shape)
        # An attack asks thousands of times about the same bids, which cannot change.
        if self._last is None or self._last[0]() is not bids or not np.array_equal(self._last[1], column):
            self._last = weakref.ref(bids), column, self.facing(bids, column)
        return Outcome(*self._last[2].trade(reports.valuation, reports.epsilon))

    def own_pieces(self, bids: Bids, budget: float) -> tuple[Array, Array]:
        """What a client faces in one market: (clients, prices), and (clients, kinks) amounts on offer to it.

        Up to the first kink the price itself rises with the offer, so the utility there is largest at its end.
        """
        facing = self.facing(bids, budget_column(budget, bids.shape))
        prices = facing.postings[0][0].prices_at(bids.epsilon, facing.level[0])
        kinks = facing.postings[0][0].edges
        return prices, np.broadcast_to(kinks, (bids.clients, kinks.size))

    def why_nothing_sold(self, bids: Bids, budget: float) -> str:
        """The reserve for one more offer of epsilon_max leaves prices that nobody sells at."""
        prices, _ = self.own_pieces(bids, budget)
        best = int(np.argmax(prices[:, 0] - bids.valuation))
        return (
            f"the budget must also cover one more offer at the limit (epsilon_max = {self.epsilon_max:g}); the "
            f"client nearest to a sale asks {bids.valuation[best]:.4g} and is offered {prices[best, 0]:.4g} per "
            "unit of ε"
        )

    def posting(self, clients: int, budget: float) -> Posting:
        """The prices of a market of so many clients and so much money, up to their level."""
        curvature = local_curvature(self.distribution, clients, budget, self.objective)
        return Posting.of(self.distribution, curvature, self.epsilon_max, self.objective.delta)

    def facing(self, bids: Bids, budget: Array) -> Facing:
        """What the clients of each market face, whatever they report themselves. budget: (..., 1)."""
        bids.refuse_above(self.epsilon_max)
        money = budget.reshape(-1, 1)
        chosen: dict[int, tuple[Posting, list[int]]] = {}
        for market, amount in enumerate(money[:, 0]):
            posting = self.posting(bids.clients, float(amount))
            chosen.setdefault(id(posting), (posting, []))[1].append(market)
        postings = [(posting, np.array(markets)) for posting, markets in chosen.values()]
        valuation = bids.valuation.reshape(-1, bids.clients)
        epsilon = bids.epsilon.reshape(-1, bids.clients)
        level = np.empty(valuation.shape)
        size = max(1, _CELLS // bids.clients**2) if bids.clients <= _SMALL_MARKET else 1
        for posting, markets in postings:
            for start in range(0, markets.size, size):
                part = markets[start : start + size]
                level[part] = posting.levels(valuation[part], epsilon[part], money[part])
        return Facing(postings, level)


@dataclass(frozen=True, eq=False)
class Facing:
    """What clients face, whatever they report.

    Attributes:
        postings: prices, and the markets that they are for.
        level: (markets, clients) λ_{−i}.
    """

    postings: list[tuple[Posting, NDArray[np.intp]]]
    level: Array

    def trade(self, valuation: Array, epsilon: Array) -> tuple[Array, Array]:
        """(..., clients) ε sold and pay of these reports."""
        asked = valuation.reshape(self.level.shape)
        offered = epsilon.reshape(self.level.shape)
        sold = np.empty(self.level.shape)
        paid = np.empty(self.level.shape)
        for posting, markets in self.postings:
            sold[markets], paid[markets] = posting.trade(asked[markets], offered[markets], self.level[markets])
        return sold.reshape(valuation.shape), paid.reshape(valuation.shape)


@dataclass(frozen=True, eq=False)
class Posting:
    """All prices of a market up to their level λ.

    Attributes:
        worth: w.
        cost, price: P as corners of a rising line: what a unit of ε is worth, and the price to post for it.
        edges: (parts + 1,) amounts x₀ < x₁ < …; slope: (parts,) w' between them.
        first: λ of the first step of the grid; steps: how many there are. At step 0, λ is 0 and nobody sells.
        epsilon_max: public limit on offers.
    """

    worth: Worth
    cost: Array
    price: Array
    edges: Array
    slope: Array
    first: float
    steps: int
    epsilon_max: float

    @staticmethod
    @lru_cache(maxsize=256)
    def of(distribution: Distribution, curvature: float, epsilon_max: float, delta: float | None) -> Posting:
        """The prices for a public belief, the curvature of a sale's worth and a limit on offers."""
        worth = Worth.of(curvature, epsilon_max, delta)
        cost, price = selling_prices(distribution)
        edges, slope = worth.parts()
        rates = np.append(worth.rate, slope)
        # From where the best offer earns next to nothing to where nearly every one earns the highest price.
        least = cost[cost > 0].min(initial=cost[-1] or 1.0) * _LEAST / rates.max()
        most = (cost[-1] or 1.0) / max(rates.min(), _LEAST * rates.max())
        steps = int(np.ceil(np.log(most / least) / np.log(_STEP))) + 1
        return Posting(worth, cost, price, edges, slope, float(least), steps, epsilon_max)

    def level(self, step: NDArray[np.intp]) -> Array:
        """λ of steps of the grid; same shape."""
        return np.where(step > 0, self.first * np.exp(np.log(_STEP) * (step - 1)), 0.0)

    def prices_at(self, epsilon: Array, level: Array) -> Array:
        """(..., 1 + parts) the unit prices that clients who offer `epsilon` face at `level`."""
        whole = self.worth.rate_of(np.minimum(epsilon, self.edges[0]))[..., None]
        parts = np.broadcast_to(self.slope, (*epsilon.shape, self.slope.size))
        worth = level[..., None] * np.concatenate([whole, parts], axis=-1)
        return np.asarray(np.interp(worth, self.cost, self.price))

    def trade(
        self, valuation: Array, epsilon: Array, level: Array, rate: Array | None = None
    ) -> tuple[Array, Array]:
        """ε sold and pay of clients that face `level`; shapes that fit each other.

        Args:
            rate: w(A)/A of these offers, where it is known already.
        """
        whole = np.minimum(epsilon, self.edges[0])
        unit = np.interp(level * (self.worth.rate_of(whole) if rate is None else rate), self.cost, self.price)
        sells = valuation < unit
        sold = np.where(sells, whole, 0.0)
        paid = np.where(sells, whole * unit, 0.0)
        for part, slope in enumerate(self.slope):
            unit = np.interp(level * slope, self.cost, self.price)
            length = np.clip(epsilon, self.edges[part], self.edges[part + 1]) - self.edges[part]
            sells = valuation < unit
            sold = sold + np.where(sells, length, 0.0)
            paid = paid + np.where(sells, length * unit, 0.0)
        return np.minimum(sold, epsilon), paid

    def levels(self, valuation: Array, epsilon: Array, budget: Array) -> Array:
        """(markets, clients) λ_{−i}. budget: (markets, 1).

        Every one lies between the levels at which all together cost B with and without the reserve R.
        """
        rate = self.worth.rate_of(np.minimum(epsilon, self.edges[0]))

        def total(step: NDArray[np.intp]) -> Array:
            """(markets, steps) T of steps of that shape."""
            size = max(1, _CELLS // valuation.size)
            asked, offered, rates = (a[:, None] for a in (valuation, epsilon, rate))
            found = []
            for start in range(0, step.shape[1], size):
                level = self.level(step[:, start : start + size])[..., None]
                found.append(self.trade(asked, offered, level, rates)[1].sum(-1))
            return np.concatenate(found, axis=1)

        def reserve(step: NDArray[np.intp]) -> Array:
            return self.trade(np.array(0.0), np.array(self.epsilon_max), self.level(step))[1]

        nothing = np.zeros(budget.shape, dtype=np.intp)
        everything = np.full(budget.shape, self.steps, dtype=np.intp)
        low = _last(lambda step: total(step) + reserve(step) <= budget, nothing, everything)
        high = _last(lambda step: np.maximum(total(step), reserve(step)) <= budget, low, everything)

        def fits(step: NDArray[np.intp]) -> NDArray[np.bool_]:
            own = self.trade(valuation, epsilon, self.level(step), rate)[1]
            if len(step) > 1:
                cost = total(step)
            else:  # many clients ask for few different levels
                asked, place = np.unique(step, return_inverse=True)
                cost = total(asked[None])[:, place.ravel()]
            return cost - own + reserve(step) <= budget

        return self.level(_last(fits, *(np.broadcast_to(end, valuation.shape) for end in (low, high))))


def _last(
    fits: Callable[[NDArray[np.intp]], NDArray[np.bool_]], low: NDArray[np.intp], high: NDArray[np.intp]
) -> NDArray[np.intp]:
    """The last step from `low` to `high` that fits, by bisection. `low` fits, and after one that does not, none."""
    while np.any(low < high):
        middle = (low + high + 1) // 2
        yes = fits(middle)
        low = np.where(yes, middle, low)
        high = np.where(yes, high, middle - 1)
    return low
