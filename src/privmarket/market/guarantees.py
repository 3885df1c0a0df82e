"""What a mechanism may promise, each promise being a check that can be run.

A mechanism lists its promises in `guarantees`. The law tests attack each of them, tables print them, and the
broker checks `IndividuallyRational`, `BudgetFeasible` and `WithinOffer` on every outcome before it counts.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from privmarket.errors import ConfigurationError
from privmarket.market import attacks
from privmarket.market.bids import Array, Bids
from privmarket.market.collusion import CoalitionAttack
from privmarket.market.mechanism import Finding, Guarantee, Mechanism, budget_column
from privmarket.market.outcome import Outcome
from privmarket.plans import TOLERANCE

_SMALLEST = 1e-300  # below this, numbers have fewer digits


class OutcomeGuarantee(Guarantee):
    """A promise that can be read off one outcome, so that a broker can guard it at run time."""

    @abstractmethod
    def excess(self, types: Bids, outcome: Outcome, budget: Array) -> Array:
        """By how much each entry breaks the promise, relative; at most 0 where it holds. budget: (..., 1)."""

    def holds(self, types: Bids, outcome: Outcome, budget: ArrayLike) -> Finding:
        """The promise on one outcome, or on a batch."""
        column = np.broadcast_to(np.asarray(budget, dtype=np.float64), types.shape[:-1])[..., None]
        excess = self.excess(types, outcome, column)
        worst = float(np.max(excess))
        held = bool(np.all(np.isfinite(outcome.payment))) and worst <= TOLERANCE
        at = tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), excess.shape))
        return Finding(self.label, held, max(worst, 0.0), "" if held else f"at {at}")

    def check(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Finding:
        """Runs the mechanism and reads the promise off its outcome."""
        return self.holds(types, mechanism.run(types, budget), budget)


@dataclass(frozen=True)
class IndividuallyRational(OutcomeGuarantee):
    """Nobody who reports the truth is paid less than what it gives up: p_i ≥ v_i·ε_i."""

    @property
    def label(self) -> str:
        """The promise in a few words, for tables."""
        return "individually rational"

    def excess(self, types: Bids, outcome: Outcome, budget: Array) -> Array:
        """(..., clients) shortfall over cost; where nothing was given up, nothing is short."""
        return shortfall(types.valuation * outcome.epsilon, outcome.payment)


def shortfall(cost: Array, payment: Array) -> Array:
    """By how much pay is below cost, relative to the cost; at most 0 where it is not."""
    return (cost - payment) / np.maximum(cost, _SMALLEST)


@dataclass(frozen=True)
class BudgetFeasible(OutcomeGuarantee):
    """Payments never add up to more than the budget."""

    @property
    def label(self) -> str:
        """The promise in a few words, for tables."""
        return "within budget"

    def excess(self, types: Bids, outcome: Outcome, budget: Array) -> Array:
        """(..., 1) by which share of the budget the payments pass it; 0 or less where they do not."""
        return (outcome.spend[..., None] - budget) / budget


@dataclass(frozen=True)
class WithinOffer(OutcomeGuarantee):
    """Nobody sells more ε than it offered."""

    @property
    def label(self) -> str:
        """The promise in a few words, for tables."""
        return "within offers"

    def excess(self, types: Bids, outcome: Outcome, budget: Array) -> Array:
        """(..., clients) by how much what a client sells passes what it offered, as a share of the offer."""
        return (outcome.epsilon - types.epsilon) / types.epsilon


@dataclass(frozen=True)
class Truthful(Guarantee):
    """No misreport pays: of v alone (`in_="valuation"`), or of v and ε together (`in_="epsilon"`).

    Truthfulness in ε has a direction. A client with (v, ε) may report any v and any offer up to ε, and none of
    these reports gains over the truth: withholding never pays. Offers above ε are neither promised nor attacked.
    They can gain where a rule sells less than what was offered, because such a sale can still be delivered.
    """

    in_: Literal["valuation", "epsilon"]

    def __post_init__(self) -> None:
        if self.in_ not in ("valuation", "epsilon"):
            raise ConfigurationError(f"truthful in {self.in_!r}: unknown", "choose valuation or epsilon")

    @property
    def label(self) -> str:
        """The promise in a few words, for tables."""
        return "truthful in v" if self.in_ == "valuation" else "truthful in ε, downwards"

    @property
    def attack(self) -> attacks.Attack:
        """The strong attack, restricted to the misreports that this promise is about."""
        return attacks.STRONG if self.in_ == "epsilon" else attacks.VALUATION_ONLY

    def check(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Finding:
        """Attacks the mechanism; a gain beyond rounding breaks the promise."""
        regret = self.attack(mechanism, types, budget, rng)
        worst = float((regret.gain / budget_column(budget, types.shape)).max())
        return Finding(self.label, worst <= TOLERANCE, worst, "" if worst <= TOLERANCE else _lie(regret, types))


@dataclass(frozen=True)
class ApproximatelyTruthful(Guarantee):
    """The mean gain from the best misreport of (v, ε) is at most `max_regret` times the mean payment.

    Misreports are those of `Truthful(in_="epsilon")`: any v, and offers up to the client's own ε.
    """

    max_regret: float

    @property
    def label(self) -> str:
        """The promise in a few words, for tables."""
        return f"regret ≤ {self.max_regret:.2%} of pay"

    def check(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Finding:
        """Attacks the mechanism and compares the mean gain with the mean payment."""
        regret = attacks.STRONG(mechanism, types, budget, rng)
        paid = float(mechanism.run(types, budget).payment.mean())
        share = float(regret.gain.mean()) / paid if paid > 0 else 0.0
        return Finding(self.label, share <= self.max_regret, max(0.0, share - self.max_regret))


@dataclass(frozen=True)
class CollusionProof(Guarantee):
    """No coalition of bidders gains by joint misreports, even if its members share what they gain.

    Who bids is taken as given: a rule that divides money by the number of bidders gives more to those who stay.
    """

    @property
    def label(self) -> str:
        """The promise in a few words, for tables."""
        return "collusion-proof"

    def check(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Finding:
        """Attacks with coalitions of two and of five clients; a gain beyond rounding breaks the promise."""
        found = [CoalitionAttack(size)(mechanism, types, budget, rng).gain for size in (2, 5)]
        worst = max(float(gain.max()) for gain in found) / float(np.min(np.asarray(budget)))
        return Finding(self.label, worst <= TOLERANCE, worst)


def _lie(regret: attacks.Regret, types: Bids) -> str:
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(regret.gain)), regret.gain.shape))
    return (
        f"client {at} with (v, ε) = ({types.valuation[at]:.6g}, {types.epsilon[at]:.6g}) gains "
        f"{regret.gain[at]:.3g} by reporting ({regret.valuation[at]:.6g}, {regret.epsilon[at]:.6g})"
    )
