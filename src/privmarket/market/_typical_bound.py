"""The least *typical* error that buying can reach under aggregate trust, in the limit of many clients.

Notation: c = what a unit of ε costs the buyer, m = μ of a sale, ε(·) = the inverse of μ(·), X = E[m], b = money
per client, κ' = κ·(n/h)/N².

With α/W = m/X the error is κ'/X² + H²·(E[m²]/X² − 1), to be minimised subject to E[c·ε(m)] ≤ b. Its square root is
a convex function over a positive linear one, so what is stationary is best:

    m + s·c·ε'(m) = θ  where that has a solution m ≥ 0, else m = 0; never more than the client offers.

ε(·) is convex, so m falls with c. Where ε(·) is linear, m falls along a straight line: everybody below a cost sells
in proportion to how far below it is. Where the money does not bind, s = 0: everybody sells the same and money is
left, because more from those who offer more would cost more in bias than it saves in noise. Where bias hardly
counts, θ is far beyond what anybody offers: everybody below a cost sells everything. Derivation:
docs/theory/aggregate-trust.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privmarket.market._aggregate_bound import Types
from privmarket.market._bids import Array
from privmarket.market._objectives import TypicalAggregateError

_NODES = 96
_SMALLEST = 1e-6
_BISECTIONS = 28
# A minimum is searched on a grid of so many points, so many times, always between the neighbours of the best one.
_POINTS = 21
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

    Takes every client's records as the mean: a limit for rules that do not look at numbers of records.
    """
    menu = _Menus(types, objective)
    noise = objective.kappa / objective.honest_share / clients**2
    squared, money = objective.heterogeneity**2, budget / clients

    def error(amount: Array) -> float:
        mean, square = menu.moments(amount)
        return float((noise + squared * square) / mean**2 - squared) if mean > 0 else np.inf

    def found(amount: Array) -> GradedOptimum:
        return GradedOptimum(error(amount), menu.moments(amount)[0], menu.cost, amount)

    # s = 0: the best equal amounts, were money no matter. If they can be paid, nothing is better.
    least, most = float(np.log(menu.epsilon[0])), float(np.log(menu.epsilon[-1]))
    equal = np.full(
        menu.cost.shape, np.exp(_lowest(lambda x: error(np.full(menu.cost.shape, np.exp(x))), least, most))
    )
    if menu.paid(equal) <= money:
        return found(equal)
    # The cost at which nobody sells any more: from the cheapest few to so high that all sell nearly the same.
    cheapest, dearest = max(float(types.cost.min()), 1e-9), max(float(types.cost.max()), 1e-9)
    low, high = float(np.log(1.02 * cheapest)), float(np.log(300.0 * dearest))
    best = _lowest(lambda x: error(menu.affordable(float(np.exp(x)), money)), low, high)
    return found(menu.affordable(float(np.exp(best)), money))


def _lowest(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function is least between two numbers, to a four-thousandth of their distance.

    Grids, because a search that compares values near a flat minimum ends elsewhere on every kind of processor.
    """
    for _ in range(_GRIDS):
        points = np.linspace(low, high, _POINTS)
        best = int(np.argmin([function(float(x)) for x in points]))
        low, high = float(points[max(best - 1, 0)]), float(points[min(best + 1, _POINTS - 1)])
    return float(points[best])


class _Menus:
    """Menus m + s·c·ε'(m) = θ on a population, found by their cutoff: the cost at which m reaches 0."""

    def __init__(self, types: Types, objective: TypicalAggregateError) -> None:
        top = float(types.epsilon.max())
        self.epsilon = np.geomspace(_SMALLEST * top, top, _NODES)
        self.mu = objective.mu(self.epsilon)
        # Slopes of a convex function rise; rounding of μ must not make them fall.
        self.slope = np.maximum.accumulate(np.gradient(self.epsilon, self.mu))
        self.cost, place = np.unique(types.cost, return_inverse=True)
        self.place, self.offer, self.probability = place, types.epsilon, types.probability
        self.price = types.cost

    def affordable(self, cutoff: float, money: float) -> Array:
        """(costs,) the amounts of the largest menu with this cutoff that costs at most `money` per client."""
        low, high = np.log(self.epsilon[0]), np.log(_BEYOND * self.epsilon[-1])
        for _ in range(_BISECTIONS):
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
