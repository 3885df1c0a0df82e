"""The one interface of every auction rule: bids and a budget in, an outcome out.

A rule implements `clear`; everybody else calls `run`, which checks what `clear` decided. A rule also declares
what it promises: each promise is a `Guarantee` (`guarantees` has them). Tests, tables and the broker all check that
same declaration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from privmarket.errors import ConfigurationError
from privmarket.market.bids import Array, Bids
from privmarket.market.outcome import Outcome, checked

# How many numbers the default `unilateral` may hold in one field at once.
_CHUNK_CELLS = 2_000_000


@dataclass(frozen=True)
class Finding:
    """Whether a promise held, and by how much it was broken at worst (0 where it held to the last digit)."""

    promise: str
    held: bool
    worst: float
    detail: str = ""


class Guarantee(ABC):
    """A promise about a mechanism."""

    @property
    @abstractmethod
    def label(self) -> str:
        """A few words for tables."""

    @abstractmethod
    def check(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Finding:
        """Tries to break the promise on the markets `types`, (..., clients)."""


class Mechanism(ABC):
    """A reverse auction for ε under a budget.

    Subclasses set `name` and implement `clear`. Configuration goes to the constructor and never depends on the
    bids.

    Attributes:
        name: what tables and errors call the rule.
        version: its semantic version; raise it whenever the same bids may give another outcome.
        guarantees: what the rule promises; the audit attacks each promise.
        market_facts: fields of `MarketFacts` that the constructor takes under the same name.
        sells_beyond_offers: True for a rule that may award more ε than a client offered, as two rules printed
            in the literature do; `run` refuses such an outcome from any other rule.
        exact_in_batches: False for a rule whose outcome may differ in its last digits with the markets beside it,
            as products of matrices do; attacks ask it about one report at a time.
    """

    name: ClassVar[str]
    version: str = "1.0.0"
    guarantees: tuple[Guarantee, ...] = ()
    market_facts: ClassVar[tuple[str, ...]] = ()
    sells_beyond_offers: ClassVar[bool] = False
    exact_in_batches: ClassVar[bool] = True

    def run(self, bids: Bids, budget: ArrayLike) -> Outcome:
        """Clears one auction per leading index of `bids` and checks the outcome.

        Args:
            bids: offers, (..., clients).
            budget: money that may be spent in each market, a number or an array (...,), > 0.

        Returns:
            ε and payments, (..., clients).

        Raises:
            ConfigurationError: the budget is not positive or does not fit the shape of the bids.
            OutcomeError: the rule returned something that is no outcome of these bids; the client is named.
        """
        outcome = self.clear(bids, budget_column(budget, bids.shape))
        return checked(outcome, bids, self.name, may_exceed_offers=self.sells_beyond_offers)

    @abstractmethod
    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """The rule itself. Write this method; call `run`.

        Args:
            bids: valid offers, every field (..., clients) in float64 and read-only. Leading indices are
                independent markets: there may be none (one market), one, or several.
            budget: (..., 1) positive money per market, ready to be compared with (..., clients).

        Returns:
            An `Outcome` with `epsilon` and `payment` of shape (..., clients): finite, at least 0, and no client
            sells more ε than it offered.
        """

    def unilateral(self, bids: Bids, reports: Bids, budget: ArrayLike) -> Outcome:
        """What each client would get if it alone reported `reports[i]` while all others keep `bids`.

        This default runs one auction per client, O(N) auctions of N clients. Rules in which a client meets
        the others only through a population sum override it and answer all N deviations in O(N).

        Args:
            bids: what the others report, (..., clients).
            reports: what each client reports instead, (..., clients).

        Returns:
            An outcome (..., clients) whose entry i comes from the auction in which only i deviated.
        """
        column = budget_column(budget, bids.shape)
        lead, n = bids.shape[:-1], bids.clients
        markets = max(1, int(np.prod(lead)))
        step = max(1, _CHUNK_CELLS // (markets * n))
        epsilon, payment = np.empty(bids.shape), np.empty(bids.shape)
        for start in range(0, n, step):
            deviators = np.arange(start, min(start + step, n))
            mine = (..., np.arange(deviators.size), deviators)
            money = np.broadcast_to(column[..., None, :], (*lead, deviators.size, 1))
            moved = _deviations(bids, reports, deviators)
            outcome = self.clear(moved, money)
            outcome = checked(outcome, moved, self.name, may_exceed_offers=self.sells_beyond_offers)
            epsilon[..., deviators] = outcome.epsilon[mine]
            payment[..., deviators] = outcome.payment[mine]
        return Outcome(epsilon, payment)

    def why_nothing_sold(self, bids: Bids, budget: float) -> str:
        """In one market (clients,) in which this rule sells nothing: the rule's own reason, or "" for none.

        Override it where the rule has a reserve or a condition that a user cannot see from bids and budget.
        """
        return ""

    def __repr__(self) -> str:
        return f"<mechanism {self.name}>"


def _deviations(bids: Bids, reports: Bids, deviators: np.ndarray) -> Bids:
    """(..., deviators, clients): row r is `bids` with client deviators[r]'s report put in."""

    def spread(name: str) -> Array | None:
        truth, report = getattr(bids, name), getattr(reports, name)
        if truth is None:
            return None
        rows = np.repeat(truth[..., None, :], deviators.size, axis=-2)
        rows[..., np.arange(deviators.size), deviators] = report[..., deviators]
        return rows

    return Bids(
        *(spread("valuation"), spread("epsilon"), spread("data_size"), spread("accuracy")),  # type: ignore[arg-type]
        client_ids=bids.client_ids,
    )


def budget_column(budget: ArrayLike, shape: tuple[int, ...]) -> Array:
    """(..., 1) from a number or an array (...,)."""
    array = np.asarray(budget, dtype=np.float64)
    if not bool(np.all((array > 0) & (array < np.inf))):
        raise ConfigurationError(f"budget is {array}: must be finite and above 0", "give the money per round")
    try:
        return np.broadcast_to(array, shape[:-1])[..., None]
    except ValueError as error:
        raise ConfigurationError(
            f"budget of shape {array.shape} does not fit bids of shape {shape}", "give one budget per market"
        ) from error
