"""The terms that are published before anyone bids in a round, and the unit of money."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from privmarket._settings import HONEST_SHARE, TRUSTS, Trust
from privmarket.errors import PrivmarketError
from privmarket.privacy._calibration import ReleaseFamily

MICRO = 1_000_000
"""Micro-units of money in one unit: rounds count money in whole micro-units."""
_MOST_MICRO = 10**18  # such amounts, and a rule's rounding errors, fit into 64 bits


class RoundError(PrivmarketError):
    """Raised for terms, an offer or a step that a round does not allow."""

    code = "bad-round"


@dataclass(frozen=True)
class Terms:
    """What is published before anyone bids, the same for everybody.

    Attributes:
        number: which round this is, from 0.
        budget_micro: money held in escrow for this round, micro-units, from 1 to 10¹⁸.
        family: the release each seller will make, up to its noise; holds δ.
        epsilon_max: the public limit on offers.
        rounds: how many rounds the run has; a client that spreads its wallet needs it.
        run: names the run. A wallet counts sales by run and round.
        broker_round: the round's name at a broker, if one holds the auction.
        trust: "local", or "aggregate" if the server sees only a secure sum.
        honest_share: under aggregate trust, the share of a round's sellers whose noise protects each of them; of
            the others half may collude with the server and half may drop out.
    """

    number: int
    budget_micro: int
    family: ReleaseFamily
    epsilon_max: float
    rounds: int = 1
    run: str = ""
    broker_round: str = ""
    trust: Trust = "local"
    honest_share: float = HONEST_SHARE

    def __post_init__(self) -> None:
        if self.budget_micro <= 0:
            raise RoundError(f"round {self.number}: budget of {self.budget_micro} µ", "give a budget above 0")
        if self.budget_micro > _MOST_MICRO:
            raise RoundError(
                f"round {self.number}: budget of {self.budget_micro / MICRO:.6g}",
                f"give at most {_MOST_MICRO // MICRO:,} units",
            )
        if self.trust not in TRUSTS or not 0 < self.honest_share <= 1:
            raise RoundError(
                f"round {self.number}: trust {self.trust!r} with an honest share of {self.honest_share}",
                f"trust is one of {', '.join(TRUSTS)}; the share lies above 0 and at most at 1",
            )


def micro_units(money: float) -> int:
    """Micro-units in an amount as it is written: 4.146558 has 4,146,558 of them, though its float lies below.

    Fractions of a micro-unit are dropped.
    """
    return int(Decimal(str(money)) * MICRO)


def sale_name(run: str, number: int) -> str:
    """Names what is sold in a round of a run, in every wallet."""
    return f"{run}/{number}"
