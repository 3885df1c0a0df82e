"""The least *typical* error that buying can reach under aggregate trust, in the limit of many clients.

Notation: c = what a unit of ε costs the buyer, m = μ of a sale, ε(·) = the inverse of μ(·), X = E[m], b = money
per client, κ' = κ·(n/h)/N².

With α/W = m/X the error is κ'/X² + H²·(E[m²]/X² − 1), to be minimised subject to E[c·ε(m)] ≤ b. Its square root is
a convex function over a positive linear one, so what is stationary is best:

    m + s·c·ε'(m) = θ  where that has a solution m ≥ 0, else m = 0; never more than the client offers.

ε(·) is convex, so m falls with c. Where ε(·) is linear, m falls along a straight line: everybody below a cost sells
in proportion to how far below it is. Derivation: docs/theory/aggregate-trust.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from privmarket.market.aggregate_bound import Types
from privmarket.market.bids import Array
from privmarket.market.objectives import TypicalAggregateError

_NODES = 96
_SMALLEST = 1e-6
_COARSE = 21
_BISECTIONS = 28


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

    Takes costs as independent of records, and every client's records as the mean: other sizes change no α/W.
    """
    menu = _Menus(types, objective)
    noise = objective.kappa / objective.honest_share / clients**2
    squared, money = objective.heterogeneity**2, budget / clients

    def error(log_cutoff: float) -> float:
        mean, square = menu.moments(menu.affordable(float(np.exp(log_cutoff)), money))
        return float((noise + squared * square) / mean**2 - squared) if mean > 0 else np.inf

    # The cost at which nobody sells any more: from the cheapest few to so high that all sell nearly the same.
    cheapest, dearest = max(float(types.cost.min()), 1e-9), max(float(types.cost.max()), 1e-9)
    logs = np.linspace(np.log(1.02 * cheapest), np.log(300.0 * dearest), _COARSE)
    tried = [error(float(x)) for x in logs]
    best = int(np.argmin(tried))
    bounds = (logs[max(best - 1, 0)], logs[min(best + 1, logs.size - 1)])
    near = minimize_scalar(lambda x: error(float(x)), bounds=bounds, method="bounded")
    at = float(near.x if near.fun < tried[best] else logs[best])
    amount = menu.affordable(float(np.exp(at)), money)
    return GradedOptimum(error(at), menu.moments(amount)[0], menu.cost, amount)


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
        low, high = np.log(self.epsilon[0]), np.log(2 * self.epsilon[-1])
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            fits = self._paid(self._amounts(cutoff, float(np.exp(middle)))) <= money
            low, high = (middle, high) if fits else (low, middle)
        return self._amounts(cutoff, float(np.exp(low)))

    def moments(self, amount: Array) -> tuple[float, float]:
        """E[m] and E[m²]."""
        sold = np.minimum(self.offer, amount[self.place])
        log_mu = np.interp(np.log(np.maximum(sold, self.epsilon[0])), np.log(self.epsilon), np.log(self.mu))
        m = np.where(sold > 0, np.exp(log_mu), 0.0)
        return float(self.probability @ m), float(self.probability @ m**2)

    def _paid(self, amount: Array) -> float:
        return float(self.probability @ (self.price * np.minimum(self.offer, amount[self.place])))

    def _amounts(self, cutoff: float, cheap: float) -> Array:
        """(costs,) ε sold at each cost; a client that costs nothing sells `cheap`."""
        theta = float(np.interp(np.log(cheap), np.log(self.epsilon), self.mu))
        below = self.mu < theta
        s = theta / (cutoff * self.slope[0])  # m = 0 at the cutoff
        # The condition solved for c at every node: c falls as m rises, to 0 at m = θ.
        cost = np.append(0.0, ((theta - self.mu) / (s * self.slope))[below][::-1])
        amount = np.append(cheap, self.epsilon[below][::-1])
        return np.asarray(np.interp(self.cost, cost, amount, right=0.0))
