"""The least error that buying can reach under aggregate trust, in the limit of many clients.

Notation: c = what a unit of ε costs the buyer, r = records over the mean, A = r·μ(x) = strength of a sale x,
X = E[A], y = A/(r·X) = strength over the ration's, D = E[r·|y − 1|] = bias, d = D/2, b = money per client.

For a given X the problem is: minimise D subject to E[r·y] = 1 and E[c·ε(X·y)] ≤ b, with ε(·) the inverse of μ(·).
That is convex because μ is concave. With ε(·) kept as chords it is a linear programme whose solution is greedy:
every type is cut into slices of strength, those below the ration (y ≤ 1) are bought from the cheapest slice on
until E[r·min(y, 1)] = 1 − d, and those above the ration likewise until they hold d. Where μ is linear that leaves
three values of y: 0 for the dearest, 1 in the middle, everything for the cheapest. Derivation:
docs/theory/aggregate-trust.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from privmarket.market._bids import Array
from privmarket.market._objectives import AggregateError

_NODES = 32
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
    near = minimize_scalar(
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
        nodes = np.append(0.0, np.geomspace(1e-4 * top, top, _NODES))
        mu = objective.mu(nodes)
        slope = np.diff(nodes) / np.diff(mu)
        # Exact: chords would take every client for a little weaker than it is.
        offers, place = np.unique(types.epsilon, return_inverse=True)
        cap = objective.mu(offers)[place]
        low, high = mu[:-1], np.minimum(mu[1:], cap[:, None])
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
        below, above = ration - self.low, self.high - ration
        held = [_running(self.mass * part) / strength for part in (below, above)]
        paid = [_running(self.price * part) for part in (below, above)]

        def cost(d: Array) -> Array:
            return np.interp(1 - d, held[0], paid[0]) + np.interp(d, held[1], paid[1])

        least, most = max(0.0, 1.0 - held[0][-1]), min(1.0, held[1][-1])
        if most < least:
            return 2.0
        d = np.linspace(least, most, _SHARES)
        affordable = cost(d) <= money
        if not affordable.any():
            return 2.0
        first = int(np.argmax(affordable))
        if first == 0:
            return 2.0 * float(least)
        low, high = float(d[first - 1]), float(d[first])
        for _ in range(_REFINEMENTS):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if cost(np.asarray(middle)) <= money else (middle, high)
        return 2.0 * high


def _running(terms: Array) -> Array:
    """(terms + 1,) the partial sums of `terms`, from 0 on."""
    return np.append(0.0, np.cumsum(terms))
