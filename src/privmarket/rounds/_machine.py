"""One round of the market as a state machine without I/O: publish, bid, clear, settle.

Every step returns a new round; nothing is stored, sent or trained here. Clients have names here; the auction itself
sees arrays in the order of the offers.

Implements: the six steps of PAG-FL, Sec. V of [Sun2026]; payments as Algorithm 2 decides them.
Deviation: pay on delivery, in integer micro-units rounded down; an update that cannot be used is not paid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

import numpy as np

from privmarket.market._bids import Bids
from privmarket.market._mechanism import Mechanism
from privmarket.market._outcome import is_beyond
from privmarket.rounds._awards import Award, Offer, RoundRecord
from privmarket.rounds._terms import MICRO, RoundError, Terms

_NOTHING: Mapping[str, str] = {}


class Phase(StrEnum):
    """The phase of a round: open for bids, cleared, or settled."""

    OPEN = "open"
    CLEARED = "cleared"
    SETTLED = "settled"


@dataclass(frozen=True)
class Round:
    """A round in some phase. Make one with `Round(terms)`, open for bids.

    Attributes:
        offers: client → offer.
        awards: client → what it sold, for clients that sell.
        record: its record, once it is settled.
    """

    terms: Terms
    phase: Phase = Phase.OPEN
    offers: Mapping[str, Offer] = field(default_factory=dict)
    awards: Mapping[str, Award] = field(default_factory=dict)
    record: RoundRecord | None = None

    @classmethod
    def publish(cls, terms: Terms) -> Round:
        """Opens a round under these terms; clients may bid from now on."""
        return cls(terms)

    def bid(self, offers: Mapping[str, Offer]) -> Round:
        """Takes offers; a client that bids again replaces its offer."""
        if self.phase is not Phase.OPEN:
            raise self._out_of_turn(Phase.OPEN, "take bids")
        for client, offer in offers.items():
            offer.check(client, self.terms)
        return replace(self, offers={**self.offers, **offers})

    def clear(self, mechanism: Mechanism) -> Round:
        """Runs the auction on all offers. Nobody bidding, or nobody winning, is a valid outcome.

        Raises:
            RoundError: the rule sells more than was offered, or spends more than the budget.
        """
        if self.phase is not Phase.OPEN:
            raise self._out_of_turn(Phase.OPEN, "clear")
        if not self.offers:
            return replace(self, phase=Phase.CLEARED)
        terms = self.terms
        bids = self.bids
        budget = terms.budget_micro / MICRO
        outcome = mechanism.run(bids, budget)
        epsilon = outcome.epsilon
        payment = outcome.payment
        above = is_beyond(epsilon, bids.epsilon)
        if above.any():
            i = int(np.flatnonzero(above)[0])
            raise RoundError(
                f"round {terms.number}: {mechanism.name} sells ε = {epsilon[i]} for {payment[i]} on an offer of "
                f"ε = {bids.epsilon[i]}",
                "use another mechanism, or correct this one: ε sold is at most ε offered",
            )
        # Compared before it is converted to integers: a sum beyond 64 bits would become negative.
        spend = float(payment.sum())
        if is_beyond(spend, budget):
            raise RoundError(
                f"round {terms.number}: {mechanism.name} pays {spend:.12g} of a budget of {budget:.12g}",
                "this mechanism is not budget feasible; use another",
            )
        micro = np.floor(payment * MICRO).astype(np.int64)
        excess = int(micro.sum()) - terms.budget_micro
        if excess > 0:  # rounding by the rule, with very large budgets: it is taken off the largest payment
            micro[np.argmax(micro)] -= excess
        # Converted to lists first: with thousands of sellers, reading single entries of arrays takes longer than
        # the auction.
        sales = zip(self.offers, epsilon.tolist(), terms.family.events(epsilon), micro.tolist(), strict=True)
        awards = {name: Award(sold, event, pay) for name, sold, event, pay in sales if event is not None}
        return replace(self, phase=Phase.CLEARED, awards=awards)

    def settle(self, reports: Mapping[str, str | None] = _NOTHING, voided: Mapping[str, str] = _NOTHING) -> Round:
        """Closes the round, once: usable updates are paid, everything else is refunded.

        Args:
            reports: client → None for a usable update, else what was wrong.
            voided: client → why it certainly released nothing, e.g. its refusal. Its ε is not spent.

        Returns:
            The round with its `record`. A client with an award that is in neither argument delivered nothing.
        """
        if self.phase is not Phase.CLEARED:
            raise self._out_of_turn(Phase.CLEARED, "settle")
        for client in (*reports, *voided):
            if client not in self.awards:
                raise RoundError(
                    f"round {self.terms.number}: {client} delivered but sold nothing",
                    "deliver only for clients in `awards`",
                )
            if client in reports and client in voided:
                raise RoundError(
                    f"round {self.terms.number}: {client} is both reported and void", "give each client once"
                )
        dropped = {c: "delivered nothing" for c in self.awards if c not in reports and c not in voided}
        dropped |= {c: fault for c, fault in reports.items() if fault is not None}
        dropped |= voided
        paid = {c: award.payment_micro for c, award in self.awards.items() if c not in dropped}
        spent = sum(paid.values())
        record = RoundRecord(
            number=self.terms.number,
            bidders=len(self.offers),
            sellers=len(paid),
            total_epsilon=math.fsum(self.awards[c].epsilon for c in paid),
            spent_micro=spent,
            refunded_micro=self.terms.budget_micro - spent,
            # A missing or bad update does not prove that nothing was released, so ε is spent, though not paid.
            sold_epsilon={c: award.epsilon for c, award in self.awards.items() if c not in voided},
            paid_micro=paid,
            dropped=dropped,
        )
        return replace(self, phase=Phase.SETTLED, record=record)

    @cached_property
    def bids(self) -> Bids:
        """The offers as arrays, (clients,), in the order of `offers`."""
        offers = list(self.offers.values())
        accuracy = None if any(o.accuracy is None for o in offers) else [float(o.accuracy or 0) for o in offers]
        return Bids(
            valuation=[o.valuation for o in offers],
            epsilon=[o.epsilon for o in offers],
            data_size=[o.data_size for o in offers],
            accuracy=accuracy,
        )

    def _out_of_turn(self, needed: Phase, verb: str) -> RoundError:
        return RoundError(
            f"round {self.terms.number} is {self.phase}: cannot {verb}", f"it must be {needed} for that"
        )
