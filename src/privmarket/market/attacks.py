"""How misreports are searched: what is the most a client can gain by lying?

A client's type is (v, ε). It may report any valuation, and any ε up to its own: more than it has it cannot
deliver. Every attack tries reports for all clients at once through `Mechanism.unilateral` and keeps, client by
client, the best one. What is found is a lower bound on the true regret.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from privmarket.market.bids import Array, Bids
from privmarket.market.mechanism import Mechanism

# Offers below this share of the cap are not searched: they sell next to nothing.
_LEAST_SHARE = 1e-3


@dataclass(frozen=True, eq=False)
class Regret:
    """The best lie found for each client. All arrays (..., clients).

    Attributes:
        gain: utility gained over truth, ≥ 0.
        valuation: the report that gains it.
        epsilon: the offer that gains it.
    """

    gain: Array
    valuation: Array
    epsilon: Array

    def worst_of(self, other: Regret) -> Regret:
        """Client by client, the better of two lies."""
        better = other.gain > self.gain
        return Regret(
            np.where(better, other.gain, self.gain),
            np.where(better, other.valuation, self.valuation),
            np.where(better, other.epsilon, self.epsilon),
        )


class Attack(Protocol):
    """Searches misreports against `mechanism` in the markets `types`."""

    def __call__(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Regret:
        """Types have shape (..., clients)."""
        ...


def utility_of(mechanism: Mechanism, types: Bids, reports: Bids, budget: ArrayLike) -> Array:
    """(..., clients) each client's true utility if it alone sends its entry of `reports`.

    Being asked for more ε than the client has counts as −∞: it cannot deliver.
    """
    outcome = mechanism.unilateral(types, reports, budget)
    deliverable = outcome.epsilon <= types.epsilon * (1 + 1e-12)
    return np.where(deliverable, outcome.utility(types), -np.inf)


def truthful_utility(mechanism: Mechanism, types: Bids, budget: ArrayLike) -> Array:
    """(..., clients) what honesty yields, whether or not the rule respects caps."""
    return mechanism.run(types, budget).utility(types)


@dataclass(frozen=True)
class GridAttack:
    """Every pair of a grid of valuations and a grid of ε shares, and values next to the others' bids.

    Attributes:
        valuations: points on [0, 2·max v], with one far above everybody.
        shares: points on (0, 1] times the own cap; 1 leaves ε truthful.
        neighbours: how many of the other bids are tried from just below and just above, where rules jump.
        over_valuation: whether valuations are searched at all, or stay truthful.
    """

    valuations: int = 41
    shares: int = 20
    neighbours: int = 16
    over_valuation: bool = True

    def __call__(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Regret:
        """Types have shape (..., clients)."""
        shares = np.linspace(1.0, 0.0, self.shares, endpoint=False)
        reports = (
            types.replace(valuation=valuation, epsilon=types.epsilon * share)
            for valuation in self._valuations(types)
            for share in shares
        )
        return _best_of(mechanism, types, budget, reports)

    def _valuations(self, types: Bids) -> Iterator[Array]:
        yield types.valuation
        if not self.over_valuation:
            return
        top = types.valuation.max(axis=-1, keepdims=True)
        top = np.where(top > 0, top, 1.0)
        for point in np.append(np.linspace(0.0, 2.0, self.valuations), 100.0):
            yield np.broadcast_to(point * top, types.shape)
        ranked = np.sort(types.valuation, axis=-1)
        count = min(self.neighbours, types.clients)
        for rank in np.unique(np.linspace(0, types.clients - 1, count).astype(int)):
            beside = ranked[..., rank : rank + 1]
            for nudge in (-1e-7, 0.0, 1e-7):
                yield np.broadcast_to(np.maximum(beside * (1 + nudge), 0.0), types.shape)


@dataclass(frozen=True)
class AscentAttack:
    """Projected ascent on (v, ε) from many starts, all clients at once.

    Signs of finite differences give the direction, so the rule need not be differentiable; the step shrinks
    geometrically. `over_valuation=False` keeps v truthful, `over_epsilon=False` keeps ε truthful.
    """

    starts: int = 20
    steps: int = 25
    first_step: float = 0.2
    over_valuation: bool = True
    over_epsilon: bool = True

    def __call__(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Regret:
        """Types have shape (..., clients)."""
        best = _truth(types)
        truth = truthful_utility(mechanism, types, budget)
        for start in range(self.starts):
            for report, utility in self._climb(mechanism, types, budget, rng, near_truth=start % 2 == 0):
                best = best.worst_of(Regret(utility - truth, report.valuation, report.epsilon))
        return best

    def _climb(
        self,
        mechanism: Mechanism,
        types: Bids,
        budget: ArrayLike,
        rng: np.random.Generator,
        *,
        near_truth: bool,
    ) -> Iterator[tuple[Bids, Array]]:
        """Yields (reports, utilities) along one path. Coordinates: v/(2·max v) and ε/cap, both in [0, 1]."""
        top = 2.0 * np.maximum(types.valuation.max(axis=-1, keepdims=True), 1e-12)
        x, y = types.valuation / top, np.ones(types.shape)
        if near_truth:
            x = x + rng.normal(0.0, 0.1, types.shape) * self.over_valuation
            y = y - np.abs(rng.normal(0.0, 0.1, types.shape)) * self.over_epsilon
        else:
            x = rng.random(types.shape) if self.over_valuation else x
            y = 1.0 - rng.random(types.shape) * self.over_epsilon

        def evaluate(x: Array, y: Array) -> tuple[Bids, Array]:
            report = types.replace(
                valuation=top * np.clip(x, 0.0, 1.0), epsilon=types.epsilon * np.clip(y, _LEAST_SHARE, 1.0)
            )
            return report, utility_of(mechanism, types, report, budget)

        width = self.first_step
        for _ in range(self.steps):
            report, here = evaluate(x, y)
            yield report, here
            probe = 0.1 * width
            x_next, y_next = x, y
            if self.over_valuation:
                x_next = np.clip(x + width * _uphill(here, evaluate(x + probe, y)[1], rng), 0.0, 1.0)
            if self.over_epsilon:
                y_next = np.clip(y - width * _uphill(here, evaluate(x, y - probe)[1], rng), _LEAST_SHARE, 1.0)
            x, y = x_next, y_next
            width *= 0.85


def combined(*attacks: Attack) -> Attack:
    """The worst that any of the attacks finds, client by client."""

    def run(mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Regret:
        found = _truth(types)
        for attack in attacks:
            found = found.worst_of(attack(mechanism, types, budget, rng))
        return found

    return run


@dataclass(frozen=True)
class Level:
    """One strength of attack in three forms.

    Attributes:
        joint: lies about valuation and ε together.
        valuation: lies about the valuation while ε is truthful.
        epsilon: withheld ε while the valuation is truthful.
    """

    joint: Attack
    valuation: Attack
    epsilon: Attack


def _level(valuations: int, shares: int, neighbours: int, starts: int, steps: int) -> Level:
    return Level(
        combined(GridAttack(valuations, shares, neighbours), AscentAttack(starts, steps)),
        combined(GridAttack(valuations, 1, neighbours), AscentAttack(starts, steps, over_epsilon=False)),
        combined(
            GridAttack(over_valuation=False, shares=5 * shares),
            AscentAttack(starts, steps, over_valuation=False),
        ),
    )


LEVELS: dict[str, Level] = {
    "quick": _level(valuations=21, shares=6, neighbours=8, starts=3, steps=12),
    "strong": _level(valuations=41, shares=20, neighbours=16, starts=20, steps=25),
}
"""`strong` is what evaluation uses: a 41 × 20 grid with values beside the others' bids, and 20 starts of ascent.
`quick` does a twentieth of that work and finds gross lies, not the last per mille; it is for comparisons."""

QUICK: Attack = LEVELS["quick"].joint
STRONG: Attack = LEVELS["strong"].joint
VALUATION_ONLY: Attack = LEVELS["strong"].valuation
EPSILON_ONLY: Attack = LEVELS["strong"].epsilon


def _truth(types: Bids) -> Regret:
    return Regret(np.zeros(types.shape), types.valuation, types.epsilon)


def _uphill(here: Array, there: Array, rng: np.random.Generator) -> Array:
    """+1 where `there` is better, −1 where it is worse, by chance on plateaus. Same shape as both."""
    direction = (there > here).astype(np.float64) - (there < here)
    return np.where(direction == 0, rng.choice([-1.0, 1.0], direction.shape), direction)


def _best_of(mechanism: Mechanism, types: Bids, budget: ArrayLike, reports: Iterator[Bids]) -> Regret:
    truth = truthful_utility(mechanism, types, budget)
    best = _truth(types)
    for report in reports:
        gain = utility_of(mechanism, types, report, budget) - truth
        best = best.worst_of(Regret(gain, report.valuation, report.epsilon))
    return best
