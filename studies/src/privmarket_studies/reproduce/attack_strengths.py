"""Attacks of rising strength, from the paper's to one four times as thorough as the audit's.

All work on any rule through `Mechanism.unilateral`, so that every rule is measured with the same searches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from privmarket._settings import EPSILON_MAX
from privmarket.market._attacks import (
    EPSILON_ONLY,
    STRONG,
    VALUATION_ONLY,
    AscentAttack,
    Attack,
    GridAttack,
    Regret,
    combined,
    truthful_utility,
    utility_of,
)
from privmarket.market._bids import Array, Bids
from privmarket.market._mechanism import Mechanism
from privmarket.market._outcome import Outcome

_LEAST_SHARE = 0.02  # of the own ε that the paper's attack and the training's may offer


@dataclass(frozen=True)
class PaperAscent:
    """R plain projected gradient steps of size η; gradients by central differences.

    Implements: Eq. (pga) of [Sun2026], R = 25, η = 0.01.

    Attributes:
        start: "truth", as in the authors' public code, or "uniform": v up to the market's largest, ε up to the own
            cap, both drawn evenly, as the equation says.
    """

    steps: int = 25
    step_size: float = 0.01
    probe: float = 1e-5
    start: str = "truth"

    def __call__(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Regret:
        """Climbs for every client of `types`, (..., clients), and returns each client's best misreport."""
        truth = truthful_utility(mechanism, types, budget)
        best = Regret(np.zeros(types.shape), types.valuation, types.epsilon)
        v, e = self._first(types, rng)
        h = self.probe

        def gain(v: Array, e: Array) -> Array:
            report = types.replace(valuation=v, epsilon=e)
            return utility_of(mechanism, types, report, budget) - truth

        for _ in range(self.steps):
            slope_v = _rise(gain(np.maximum(v - h, 0.0), e), gain(v + h, e)) / (2 * h)
            above = np.minimum(e + h, types.epsilon)
            slope_e = _rise(gain(v, e - h), gain(v, above)) / (above - e + h)
            v = np.maximum(v + self.step_size * slope_v, 0.0)
            e = np.clip(e + self.step_size * slope_e, _LEAST_SHARE * types.epsilon, types.epsilon)
            best = best.worst_of(Regret(gain(v, e), v, e))
        return best

    def _first(self, types: Bids, rng: np.random.Generator) -> tuple[Array, Array]:
        if self.start == "truth":
            return types.valuation, types.epsilon
        even_v, even_e = rng.random((2, *types.shape))
        most: Array = types.valuation.max(axis=-1, keepdims=True)
        return even_v * most, np.maximum(even_e, _LEAST_SHARE) * types.epsilon


@dataclass(frozen=True)
class TrainingAttack:
    """A dozen guesses and three sign steps from the best: what training searches with, for any rule.

    The guesses are those of `mechanisms.learned._misreports.cheap_candidates`; slopes are finite differences.
    """

    sizes: tuple[float, ...] = (0.06, 0.03, 0.015)

    def __call__(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Regret:
        """Searches for every client of `types`, (..., clients), and returns each client's best misreport."""
        truth = truthful_utility(mechanism, types, budget)
        best = Regret(np.full(types.shape, -np.inf), types.valuation, types.epsilon)

        def gain(v: Array, e: Array) -> Array:
            report = types.replace(valuation=v, epsilon=e)
            return utility_of(mechanism, types, report, budget) - truth

        for v, e in self._guesses(types, rng):
            best = best.worst_of(Regret(gain(v, e), v, e))
        v, e = best.valuation, best.epsilon
        for size in self.sizes:
            h = 1e-4
            slope_v = np.sign(_rise(gain(v * (1 - h), e), gain(v * (1 + h), e)))
            above = np.minimum(e * (1 + h), types.epsilon)
            slope_e = np.sign(_rise(gain(v, e * (1 - h)), gain(v, above)))
            v, e = v * (1 + size * slope_v), np.minimum(e * (1 + size * slope_e), types.epsilon)
            best = best.worst_of(Regret(gain(v, e), v, e))
        return best.worst_of(Regret(np.zeros(types.shape), types.valuation, types.epsilon))

    def _guesses(self, types: Bids, rng: np.random.Generator) -> list[tuple[Array, Array]]:
        v, e = types.valuation, types.epsilon
        others = rng.permuted(v, axis=-1)
        shifted = [v * np.exp(s * rng.standard_normal(v.shape)) for s in (0.03, 0.1, 0.1, 0.4, 0.4, 0.03, 0.03)]
        lower = [e * rng.uniform(low, 1.0, e.shape) for low in (0.1, 0.1, 0.9, 0.3, 0.3, _LEAST_SHARE)]
        about_v = [(w, e) for w in (*shifted[:5], others)]
        about_both = zip((v, v, v, *shifted[5:], others), lower, strict=True)
        return [*about_v, *about_both]


@dataclass(frozen=True)
class OverOfferAttack:
    """Offers of more ε than the client has, up to the market's public limit: the direction that no rule promises.

    A report counts only where the rule buys no more than the client can deliver (`utility_of`). Offers run from the
    own ε to the limit in equal ratios; after the grid, the best report of each client is varied at random.

    Attributes:
        limit: the most that anybody may offer in this market.
        valuations: points on [0, 2·max v] that are tried with every offer; 0 leaves v truthful.
        offers: offers above the own ε.
        neighbours: how many of the other valuations are tried from just below and just above.
        refinements: random variations of the best report found so far, with a shrinking radius.
    """

    limit: float = EPSILON_MAX
    valuations: int = 41
    offers: int = 20
    neighbours: int = 16
    refinements: int = 400

    def __call__(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Regret:
        """Searches for every client of `types`, (..., clients), and returns each client's best over-offer."""
        truth = truthful_utility(mechanism, types, budget)
        best = Regret(np.zeros(types.shape), types.valuation, types.epsilon)
        room = np.log(np.maximum(self.limit / types.epsilon, 1.0))

        def tried(v: Array, u: Array) -> Regret:
            # Rounding must not lift an offer above the limit, which rules refuse.
            e = np.minimum(types.epsilon * np.exp(u * room), self.limit)
            report = types.replace(valuation=v, epsilon=e)
            return Regret(utility_of(mechanism, types, report, budget) - truth, v, e)

        for v in self._valuations(types):
            for u in np.linspace(0.0, 1.0, self.offers + 1)[1:]:
                best = best.worst_of(tried(v, np.full(types.shape, u)))
        top = np.maximum(types.valuation.max(axis=-1, keepdims=True), 1e-12)
        for step in range(self.refinements):
            radius = 0.2 * 0.02 ** (step / self.refinements)
            u = np.log(best.epsilon / types.epsilon) / np.maximum(room, 1e-12)
            u = np.clip(u + radius * rng.standard_normal(types.shape), 0.0, 1.0)
            v = best.valuation
            if self.valuations:
                v = np.maximum(v + radius * top * rng.standard_normal(types.shape), 0.0)
            best = best.worst_of(tried(v, u))
        return best

    def _valuations(self, types: Bids) -> list[Array]:
        if not self.valuations:
            return [types.valuation]
        return list(GridAttack(self.valuations, 1, self.neighbours).reported_valuations(types))


STRENGTHS: dict[str, Attack] = {
    "paper": PaperAscent(),
    "training": TrainingAttack(),
    "quick": combined(GridAttack(valuations=11, shares=4, neighbours=4), AscentAttack(starts=2, steps=8)),
    "strong": STRONG,
    "strongest": combined(
        GridAttack(valuations=81, shares=40, neighbours=32), AscentAttack(starts=40, steps=40, first_step=0.3)
    ),
}
"""Weakest first. A level counts together with all weaker ones, so that its figure is never lower."""

PARTS: dict[str, tuple[Attack, Attack]] = {
    "strong": (VALUATION_ONLY, EPSILON_ONLY),
    "quick": (GridAttack(valuations=11, shares=1, neighbours=4), GridAttack(over_valuation=False, shares=10)),
}
"""Misreports of v alone and of ε alone."""


OVER_OFFERS: dict[str, tuple[Attack, Attack]] = {
    "strong": (OverOfferAttack(valuations=0, offers=100), OverOfferAttack()),
    "quick": (
        OverOfferAttack(valuations=0, offers=10, refinements=20),
        OverOfferAttack(valuations=11, offers=5, neighbours=4, refinements=20),
    ),
}
"""Offers of more ε than a client has: with the true v, and with any v."""


class Counted(Mechanism):
    """A rule that counts how many reports per client were tried against it."""

    name = "counted"

    def __init__(self, rule: Mechanism) -> None:
        self.rule, self.reports = rule, 0

    def run(self, bids: Bids, budget: ArrayLike) -> Outcome:
        """Runs the counted rule."""
        return self.rule.run(bids, budget)

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """Clears with the counted rule."""
        return self.rule.clear(bids, budget)

    def unilateral(self, bids: Bids, reports: Bids, budget: ArrayLike) -> Outcome:
        """Asks the counted rule, and adds the reports to the count."""
        self.reports += 1
        return self.rule.unilateral(bids, reports, budget)


def _rise(low: Array, high: Array) -> Array:
    """high − low, and 0 where either is −∞: a report that cannot be delivered shows no way."""
    known = np.isfinite(low) & np.isfinite(high)
    return np.subtract(high, low, out=np.zeros(low.shape), where=known)
