"""One round of the market as a state machine without I/O: publish, bid, clear, train, settle.

Every step returns a new round; nothing is stored, sent or trained here. The simulation, the Flower app and the
broker drive this same machine, so a rule that holds here (payment on delivery, the rest refunded, no sale above
an offer) holds in all of them.

Implements: the six steps of PAG-FL, Sec. IV of [Sun2026]; payments as Algorithm 2 decides them.
Deviation: pay on delivery, in integer micro-units rounded down; an update that cannot be used is not paid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from privmarket.federated.errors import RoundError
from privmarket.market.bids import Array, Bids
from privmarket.market.mechanism import Mechanism
from privmarket.privacy.calibration import ReleaseFamily

MICRO = 1_000_000  # micro-units of money in one unit


class Phase(StrEnum):
    """Where a round stands."""

    OPEN = "open"
    CLEARED = "cleared"
    SETTLED = "settled"


@dataclass(frozen=True)
class Terms:
    """What is published before anyone bids.

    Attributes:
        number: which round this is, from 0.
        budget_micro: money held in escrow for this round, micro-units, > 0.
        family: the release each seller will make, up to its noise; holds δ.
        epsilon_max: the public limit on offers.
    """

    number: int
    budget_micro: int
    family: ReleaseFamily
    epsilon_max: float

    def __post_init__(self) -> None:
        if self.budget_micro <= 0:
            raise RoundError(f"round {self.number}: budget of {self.budget_micro} µ", "give a budget above 0")


@dataclass(frozen=True)
class Offer:
    """One client's bid: money per unit of ε, and the most ε it sells in this round."""

    valuation: float
    epsilon: float
    data_size: float = 1.0
    accuracy: float | None = None


@dataclass(frozen=True)
class Award:
    """What one client sold: ε, the noise that makes it true, and the money due on delivery."""

    epsilon: float
    noise_multiplier: float
    payment_micro: int


@dataclass(frozen=True)
class Settlement:
    """The ledger record of a round. Σ paid + refunded = budget, to the micro-unit.

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
class Round:
    """A round in some phase. Make one with `Round.publish(terms)`.

    Attributes:
        offers: client → offer.
        awards: client → what it sold, for clients that sell.
        deliveries: client → None for a usable update, else what was wrong with it.
    """

    terms: Terms
    phase: Phase = Phase.OPEN
    offers: Mapping[str, Offer] = field(default_factory=dict)
    awards: Mapping[str, Award] = field(default_factory=dict)
    deliveries: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def publish(cls, terms: Terms) -> Round:
        """Opens a round for bids."""
        return cls(terms)

    def bid(self, offers: Mapping[str, Offer]) -> Round:
        """Takes offers; a client that bids again replaces its offer."""
        self._require(Phase.OPEN, "take bids")
        for client, offer in offers.items():
            _check_offer(client, offer, self.terms)
        return replace(self, offers={**self.offers, **offers})

    def clear(self, mechanism: Mechanism) -> Round:
        """Runs the auction on all offers. Nobody bidding, or nobody winning, is a valid outcome."""
        self._require(Phase.OPEN, "clear")
        return replace(self, phase=Phase.CLEARED, awards=self._awards(mechanism) if self.offers else {})

    def deliver(self, reports: Mapping[str, str | None]) -> Round:
        """Takes deliveries: None for a usable update, else what was wrong. The first word counts."""
        self._require(Phase.CLEARED, "take deliveries")
        for client in reports:
            if client not in self.awards:
                raise RoundError(
                    f"round {self.terms.number}: {client} delivered but sold nothing",
                    "only clients with an award deliver",
                )
            if client in self.deliveries:
                raise RoundError(
                    f"round {self.terms.number}: {client} delivered twice", "send one update per round"
                )
        return replace(self, deliveries={**self.deliveries, **reports})

    def settle(self) -> tuple[Round, Settlement]:
        """Closes the round: usable updates are paid, everything else is refunded."""
        self._require(Phase.CLEARED, "settle")
        dropped = {c: "delivered nothing" for c in self.awards if c not in self.deliveries}
        dropped |= {c: fault for c, fault in self.deliveries.items() if fault is not None}
        settlement = Settlement(
            number=self.terms.number,
            budget_micro=self.terms.budget_micro,
            # A faulty update was released all the same: its privacy is spent although it is not paid.
            sold={c: self.awards[c] for c in self.awards if c in self.deliveries},
            paid_micro={c: a.payment_micro for c, a in self.awards.items() if c not in dropped},
            dropped=dropped,
        )
        return replace(self, phase=Phase.SETTLED), settlement

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

    def sold_epsilon(self) -> Array:
        """(clients,) ε of each award in the order of `offers`, 0 for clients that sell nothing."""
        return np.array([self.awards[c].epsilon if c in self.awards else 0.0 for c in self.offers])

    def _awards(self, mechanism: Mechanism) -> dict[str, Award]:
        bids = self.bids()
        outcome = mechanism.run(bids, self.terms.budget_micro / MICRO)
        _check_outcome(outcome.epsilon, outcome.payment, bids, self.terms.number, mechanism)
        # x·10⁶ may round up by one part in 10¹⁶, which cannot lift a sum of integers over an integer budget.
        micro = np.floor(outcome.payment * MICRO).astype(np.int64)
        if int(micro.sum()) > self.terms.budget_micro:
            raise RoundError(
                f"round {self.terms.number}: {mechanism.name} pays {int(micro.sum())} µ of a budget of "
                f"{self.terms.budget_micro} µ",
                "this mechanism is not budget feasible; use another",
            )
        sellers = np.flatnonzero(outcome.epsilon > 0)
        noise = self.terms.family.noise_multiplier(outcome.epsilon[sellers]) if sellers.size else np.zeros(0)
        names = list(self.offers)
        return {
            names[i]: Award(float(outcome.epsilon[i]), float(sigma), int(micro[i]))
            for i, sigma in zip(sellers, noise, strict=True)
        }

    def _require(self, phase: Phase, verb: str) -> None:
        if self.phase is not phase:
            raise RoundError(
                f"round {self.terms.number} is {self.phase}: cannot {verb}", f"it must be {phase} for that"
            )


def _check_offer(client: str, offer: Offer, terms: Terms) -> None:
    if not 0 < offer.epsilon <= terms.epsilon_max:
        raise RoundError(
            f"{client} offers ε = {offer.epsilon}: must lie above 0 and at most {terms.epsilon_max}",
            "the limit is a public constant of this market",
        )
    if not 0 <= offer.valuation < math.inf:
        raise RoundError(f"{client} asks {offer.valuation} per unit of ε", "must be finite and at least 0")


def _check_outcome(epsilon: Array, payment: Array, bids: Bids, number: int, mechanism: Mechanism) -> None:
    """What no mechanism may do here, whatever it promises: sell more than was offered, or fine a client."""
    over = epsilon > bids.epsilon * (1 + 1e-9)
    bad = over | ~(payment >= 0) | ~(epsilon >= 0)
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        raise RoundError(
            f"round {number}: {mechanism.name} sells ε = {epsilon[i]} for {payment[i]} on an offer of "
            f"ε = {bids.epsilon[i]}",
            "a mechanism may neither exceed an offer nor charge a seller",
        )
