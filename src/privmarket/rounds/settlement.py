"""What a round came to: who is paid, what was released, what goes back to the buyer."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RoundRecord:
    """A settled round, as every engine keeps it. Σ paid + refunded = the round's budget, to the micro-unit.

    Attributes:
        bidders: how many offers the auction had.
        sellers: how many clients delivered and were paid.
        total_epsilon: Σ ε they sold.
        spent_micro: money paid, micro-units.
        refunded_micro: money of this round's budget that goes back to the buyer.
        sold_epsilon: client → ε of what it released, paid or not: this is what its wallet is charged.
        paid_micro: client → money, for clients that delivered a usable update.
        dropped: client → why it was not paid.
        accuracy: test accuracy after the round, None where it was not measured.
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
