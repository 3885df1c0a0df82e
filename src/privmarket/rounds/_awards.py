"""Offers, awards and the record of a round."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from privmarket.privacy._events import PrivacyEvent
from privmarket.rounds._terms import RoundError, Terms


@dataclass(frozen=True)
class Offer:
    """One client's bid: money per unit of ε, and the most ε it sells in this round."""

    valuation: float
    epsilon: float
    data_size: float = 1.0
    accuracy: float | None = None

    def check(self, client: str, terms: Terms) -> None:
        """Refuses an offer that breaks the terms.

        Raises:
            RoundError: naming the client, the number that is wrong and its limits.
        """
        if not 0 < self.epsilon <= terms.epsilon_max:
            raise RoundError(
                f"{client} offers ε = {self.epsilon}: must lie above 0 and at most {terms.epsilon_max}",
                f"offer at most {terms.epsilon_max:g}, the public limit of this market",
            )
        if not 0 <= self.valuation < math.inf:
            raise RoundError(f"{client} asks {self.valuation} per unit of ε", "ask a finite amount, at least 0")
        if not 0 < self.data_size < math.inf:
            raise RoundError(f"{client} declares {self.data_size} records", "must be finite and above 0")
        if self.accuracy is not None and not 0 <= self.accuracy <= 1:
            raise RoundError(f"{client} declares an accuracy of {self.accuracy}", "must lie between 0 and 1")


@dataclass(frozen=True)
class Award:
    """What one client sold: the ε, the release that realises it, and the payment.

    Attributes:
        payment_micro: due on delivery, micro-units.
    """

    epsilon: float
    event: PrivacyEvent
    payment_micro: int

    @classmethod
    def stored(cls, terms: Terms, epsilon: float, noise_multiplier: float, payment_micro: int) -> Award:
        """An award from the fields that tables and messages store."""
        return cls(epsilon, terms.family.release(noise_multiplier), payment_micro)


@dataclass(frozen=True)
class RoundRecord:
    """The record of a settled round. Σ paid + refunded = the round's budget, to the micro-unit.

    Attributes:
        bidders: how many offers the auction had.
        sellers: how many clients delivered and were paid.
        total_epsilon: Σ ε they sold.
        spent_micro: money paid, micro-units.
        refunded_micro: money of this round's budget that goes back to the buyer.
        sold_epsilon: client → ε that its wallet is charged: of what it released or may have released, paid or not.
        paid_micro: client → money, for clients that delivered a usable update.
        dropped: client → why it was not paid.
        accuracy: the test accuracy after the round, or the task's other headline score; None if it was not
            measured.
    """

    number: int
    bidders: int = 0
    sellers: int = 0
    total_epsilon: float = 0.0
    spent_micro: int = 0
    refunded_micro: int = 0
    sold_epsilon: dict[str, float] = field(default_factory=dict)
    paid_micro: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    accuracy: float | None = None
