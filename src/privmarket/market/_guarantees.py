"""What a mechanism may promise, each promise being a check that can be run.

A mechanism lists its promises in `guarantees`. Tests attack each of them, tables print them, and the broker checks
`IndividuallyRational`, `BudgetFeasible` and `WithinOffer` on every outcome before it counts.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from privmarket._settings import TOLERANCE
from privmarket.errors import ConfigurationError
from privmarket.market import _attacks as attacks
from privmarket.market._bids import Array, Bids
from privmarket.market._mechanism import Finding, Guarantee, Mechanism, Witness, budget_column
from privmarket.market._outcome import Outcome

_SMALLEST = 1e-300  # below this, numbers have fewer digits
# Costs below this share of the budget are dust: a sale that rounding made of nothing owes nobody anything.
_DUST = 1e-12


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
        if bool(np.all(np.isfinite(outcome.payment))) and worst <= TOLERANCE:
            return Finding(self.label, True, max(worst, 0.0))
        at = tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), excess.shape))
        return Finding(self.label, False, max(worst, 0.0), self.witness(at, types, outcome, column))

    def witness(self, at: tuple[int, ...], types: Bids, outcome: Outcome, budget: Array) -> Witness:
        """The client at index `at` of the outcome, as it stands."""
        truth = (float(types.valuation[at]), float(types.epsilon[at]))
        sold = float(outcome.epsilon[at])
        paid = float(outcome.payment[at])
        return Witness(at[:-1], at[-1], *truth, *truth, sold, paid, self.money(truth, sold, paid))

    def money(self, truth: tuple[float, float], sold: float, paid: float) -> float:
        """What the promise is broken by, in money: by how much a payment is short of the cost."""
        return truth[0] * sold - paid

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
        """(..., clients) shortfall over cost; where next to nothing was given up, nothing is short."""
        cost = types.valuation * outcome.epsilon
        return np.where(cost > _DUST * budget, shortfall(cost, outcome.payment), 0.0)


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

    def witness(self, at: tuple[int, ...], types: Bids, outcome: Outcome, budget: Array) -> Witness:
        """The market at index `at`, which no single client stands for."""
        market = at[:-1]
        sold = float(outcome.total_epsilon[market])
        paid = float(outcome.spend[market])
        nobody = float("nan")
        over = paid - float(budget[at])
        return Witness(market, None, nobody, nobody, nobody, nobody, sold, paid, over)


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

    def money(self, truth: tuple[float, float], sold: float, paid: float) -> float:
        """What the ε beyond the offer is worth to the client."""
        return truth[0] * (sold - truth[1])


@dataclass(frozen=True)
class Truthful(Guarantee):
    """No misreport in one direction pays, and the audit attacks it in that direction.

    `in_="valuation"`: no valuation other than the true one gains, while ε is truthful. `in_="epsilon"`: no offer
    below the own ε gains, while v is truthful; withholding never pays. A rule that promises both also promises that
    the two together never gain (`in_="both"`, see `promises_of`). Offers above ε are promised by nobody. They can
    gain where a rule sells less than what was offered, because such a sale can still be delivered; the audit
    reports them as a direction of their own.
    """

    in_: Literal["valuation", "epsilon", "both"]

    def __post_init__(self) -> None:
        if self.in_ not in _LABELS:
            raise ConfigurationError(f"truthful in {self.in_!r}: unknown", "choose valuation, epsilon or both")

    @property
    def label(self) -> str:
        """The promise in a few words, for tables."""
        return _LABELS[self.in_]

    @property
    def attack(self) -> attacks.Attack:
        """The strong attack in the direction of this promise."""
        strong = attacks.LEVELS["strong"]
        return {"valuation": strong.valuation, "epsilon": strong.epsilon, "both": strong.joint}[self.in_]

    def check(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Finding:
        """Attacks the mechanism; a gain beyond rounding breaks the promise."""
        return self.judge(mechanism, types, budget, self.attack(mechanism, types, budget, rng))

    def judge(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, regret: attacks.Regret) -> Finding:
        """Whether the misreports that an attack found break the promise."""
        worst = float((regret.gain / budget_column(budget, types.shape)).max())
        if worst <= TOLERANCE:
            return Finding(self.label, True, worst)
        return Finding(self.label, False, worst, largest_misreport(mechanism, types, budget, regret))


_LABELS = {
    "valuation": "truthful in v",
    "epsilon": "truthful in ε, downwards",
    "both": "truthful in v and ε together",
}


def promises_of(mechanism: Mechanism) -> tuple[Guarantee, ...]:
    """What a rule declares, and that v and ε together never gain where it declares each of them."""
    declared = mechanism.guarantees
    if Truthful("valuation") in declared and Truthful("epsilon") in declared and Truthful("both") not in declared:
        return (*declared, Truthful("both"))
    return declared


@dataclass(frozen=True)
class ApproximatelyTruthful(Guarantee):
    """The mean gain from the best misreport of (v, ε) is at most `max_regret` times the mean payment.

    Misreports are those of `Truthful(in_="both")`: any v, and offers up to the client's own ε. The mean is over
    clients and markets, so a single client may gain many times as much. An audit of several markets calls the
    promise broken where the 95 % interval of the mean lies above it.
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
        held = share <= self.max_regret
        worst = None if held else largest_misreport(mechanism, types, budget, regret)
        return Finding(self.label, held, max(0.0, share - self.max_regret), worst)


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
        found = [attacks.CoalitionAttack(size)(mechanism, types, budget, rng) for size in (2, 5)]
        best = max(found, key=lambda one: float(one.gain.max()))
        worst = float(best.gain.max()) / float(np.min(np.asarray(budget)))
        if worst <= TOLERANCE:
            return Finding(self.label, True, worst)
        return Finding(self.label, False, worst, best.witness(types))


def largest_misreport(mechanism: Mechanism, types: Bids, budget: ArrayLike, regret: attacks.Regret) -> Witness:
    """The misreport that gains most of those found, and what the rule answers to it."""
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(regret.gain)), regret.gain.shape))
    market = at[:-1]
    client = at[-1]
    truth = types[market] if market else types
    valuation = truth.valuation.copy()
    epsilon = truth.epsilon.copy()
    valuation[client] = regret.valuation[at]
    epsilon[client] = regret.epsilon[at]
    money = float(budget_column(budget, types.shape)[(*market, 0)])
    outcome = mechanism.run(truth.replace(valuation=valuation, epsilon=epsilon), money)
    return Witness(
        market,
        client,
        float(types.valuation[at]),
        float(types.epsilon[at]),
        float(regret.valuation[at]),
        float(regret.epsilon[at]),
        float(outcome.epsilon[client]),
        float(outcome.payment[client]),
        float(regret.gain[at]),
    )
