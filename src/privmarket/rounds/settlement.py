"""What a round came to: who is paid, what was released, what goes back to the buyer; and the record kept of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from privmarket.rounds.awards import Award


@dataclass(frozen=True)
class Settlement:
    """The money and the releases of a round. Σ paid + refunded = budget, to the micro-unit.

    Attributes:
        sold: what each client released in this round, paid or not: this is what its wallet is charged.
        paid_micro: money per client that delivered a usable update.
        dropped: client → why it was not paid.
    """

    number: int
    budget_micro: int
    sold: dict[str, Award]
    paid_micro: dict[str, int]
    dropped: dict[str, str]

    @property
    def spent_micro(self) -> int:
        """Σ payments."""
        return sum(self.paid_micro.values())

    @property
    def refunded_micro(self) -> int:
        """What goes back to the buyer."""
        return self.budget_micro - self.spent_micro

    @property
    def total_epsilon(self) -> float:
        """Σ ε over the clients that were paid."""
        return math.fsum(self.sold[client].epsilon for client in self.paid_micro)


@dataclass(frozen=True)
class RoundRecord:
    """What is kept of a round, in every engine.

    Attributes:
        bidders: how many offers the auction had.
        sellers: how many clients delivered and were paid.
        total_epsilon: Σ ε they sold.
        spent_micro: money paid, micro-units.
        refunded_micro: money of this round's budget that went back.
        sold_epsilon: client → ε of what it released, paid or not.
        paid_micro: client → money.
        dropped: client → why it was not paid.
        accuracy: test accuracy after the round, None where it was not measured.
    """

    number: int
    bidders: int
    sellers: int
    total_epsilon: float
    spent_micro: int
    refunded_micro: int
    sold_epsilon: dict[str, float]
    paid_micro: dict[str, int]
    dropped: dict[str, str]
    accuracy: float | None

    @classmethod
    def of(cls, settlement: Settlement, bidders: int, accuracy: float | None = None) -> RoundRecord:
        """The record of a settled round."""
        return cls(
            number=settlement.number,
            bidders=bidders,
            sellers=len(settlement.paid_micro),
            total_epsilon=settlement.total_epsilon,
            spent_micro=settlement.spent_micro,
            refunded_micro=settlement.refunded_micro,
            sold_epsilon={client: award.epsilon for client, award in settlement.sold.items()},
            paid_micro=settlement.paid_micro,
            dropped=settlement.dropped,
            accuracy=accuracy,
        )
