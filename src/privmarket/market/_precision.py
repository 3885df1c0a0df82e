"""What a sale is worth to a buyer whose sellers each add their own noise, and the prices that follow from it.

Under local trust an update that was sold at ε carries noise of variance 1/μ², μ = μ(ε, δ), and the server weighs it
by its *precision* y = μ². Total precision is what the buyer wants, but much from few is biased, so a sale is worth

    w(x) = y − ρ·y²/2,  y = μ(x)²,

with a curvature ρ that is 0 where clients do not differ. w is convex where ε is small, so a small sale is worth
less per unit of ε than a large one: below the *turn* x₀, where w(x)/x is largest, clients sell all or nothing.
Above it w is concave, and dear clients may sell a part. See docs/theory/local-trust.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from privmarket.market._bids import Array
from privmarket.market._objectives import strength

_NODES = 2048
_SMALLEST = 1e-6
# Between the turn and the largest amount that is worth buying, this many parts are priced by themselves.
_PARTS = 8


@dataclass(frozen=True, eq=False)
class Worth:
    """w(x) for sales up to a limit; all arrays (nodes,), by rising ε.

    Attributes:
        epsilon: amounts x.
        precision: μ(x)².
        rate: w(x)/x up to the turn, which does not fall; afterwards its value there.
        slope: w'(x) beyond the turn, which does not rise; before it the rate at the turn.
        turn: x₀, the amount at which w(x)/x is largest.
        most: the amount beyond which more ε is worth nothing.
    """

    epsilon: Array
    precision: Array
    rate: Array
    slope: Array
    turn: float
    most: float

    @staticmethod
    @lru_cache(maxsize=256)
    def of(curvature: float, epsilon_max: float, delta: float | None) -> Worth:
        """The worth of sales of at most `epsilon_max` at δ, for a curvature ρ ≥ 0."""
        epsilon, precision = _nodes(epsilon_max, delta)
        worth = precision - 0.5 * curvature * precision**2
        peak = int(np.argmax(worth))
        rate = worth / epsilon
        turn = int(np.argmax(rate[: peak + 1]))
        rate = np.append(np.maximum.accumulate(rate[:turn]), np.full(_NODES - turn, rate[turn]))
        rate[:turn] = np.minimum(rate[:turn], rate[turn])
        slope = np.gradient(worth, epsilon)
        slope[: turn + 1] = rate[turn]
        slope[peak:] = 0.0 if peak < _NODES - 1 else slope[peak:]
        slope = np.maximum(np.minimum.accumulate(slope), 0.0)
        return Worth(epsilon, precision, rate, slope, float(epsilon[turn]), float(epsilon[peak]))

    def rate_of(self, amount: Array) -> Array:
        """w(x)/x of amounts up to the turn, and the rate at the turn for larger ones; same shape."""
        return np.interp(amount, self.epsilon, self.rate)

    def precision_of(self, amount: Array) -> Array:
        """μ(x)² of amounts; same shape."""
        found = np.interp(np.log(np.maximum(amount, self.epsilon[0])), np.log(self.epsilon), np.log(self.precision))
        return np.where(amount > 0, np.exp(found), 0.0)

    def amount_at(self, slope: Array) -> Array:
        """The amount from the turn on at which w' falls to `slope`, which is at most the rate at the turn."""
        return np.interp(-np.asarray(slope), -self.slope[self._beyond], self.epsilon[self._beyond])

    def parts(self) -> tuple[Array, Array]:
        """The edges x₀ < x₁ < … of the parts beyond the turn, (parts + 1,), and w' on each of them, (parts,)."""
        epsilon = self.epsilon[self._beyond]
        slope = self.slope[self._beyond]
        if epsilon.size == 1:
            return epsilon, np.empty(0)
        edges = self.amount_at(np.linspace(slope[0], slope[-1], _PARTS + 1))
        edges[0] = self.turn
        edges[-1] = self.most
        edges = np.unique(edges)
        # The mean slope of each part, from the integral of w'; rounding must not make it rise.
        running = np.append(0.0, np.cumsum(0.5 * (slope[1:] + slope[:-1]) * np.diff(epsilon)))
        mean = np.diff(np.interp(edges, epsilon, running)) / np.diff(edges)
        return edges, np.minimum.accumulate(np.minimum(mean, slope[0]))

    @cached_property
    def _beyond(self) -> slice:
        first = int(np.searchsorted(self.epsilon, self.turn))
        return slice(first, int(np.searchsorted(self.epsilon, self.most)) + 1)


@lru_cache(maxsize=32)
def _nodes(epsilon_max: float, delta: float | None) -> tuple[Array, Array]:
    epsilon = np.geomspace(_SMALLEST * epsilon_max, epsilon_max, _NODES)
    return epsilon, strength(epsilon, delta) ** 2
