"""One function that plays a round, wherever its four parties are.

    terms → auctioneer.clear (bidders.offers) → wallets.reserve → trainers.train
          → auctioneer.settle → wallets.void

The simulation, the Flower app and the Flower strategy all play their rounds through this module; what differs
between them stands behind four ports. A Flower strategy is called twice per round, before and after training, so
it plays the two halves of `play_round`, `hold_auction` and `settle_round`, by themselves. The broker runs the same
`Round` inside its database transactions, where clearing and reserving must succeed or fail together.

What each port must do stands in its docstring here; for wallets, in `privacy._wallet_store`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from privmarket.market._mechanism import Mechanism
from privmarket.privacy._wallet_store import WalletStore
from privmarket.rounds._awards import Offer, RoundRecord
from privmarket.rounds._machine import Round
from privmarket.rounds._terms import RoundError, Terms, sale_name

_log = logging.getLogger("privmarket.rounds")


class Bidders(Protocol):
    """Who bids: the clients of a simulation, a fleet of Flower nodes."""

    def offers(self, terms: Terms) -> Mapping[str, Offer | None]:
        """Every client's offer for a round, by name.

        The order of the names is the order in which the auction sees the clients; it depends on who the clients
        are, never on who answered first. None is a client that takes part and offers nothing here: it sells nothing
        in this round, or it sent its bid to a broker. An offer may break the terms; the auctioneer leaves it out.
        """


class Auctioneer(Protocol):
    """Who holds the auction: this process, or a broker."""

    def clear(self, terms: Terms, bidders: Bidders) -> Round:
        """Asks everybody for offers and runs the auction; bad offers do not hold up good ones.

        Returns:
            A cleared round. Its terms are those that the bidders saw: a broker adds its own name of the round and
            says how much money is in escrow.
        """

    def settle(self, auction: Round, reports: Mapping[str, str | None], voided: Mapping[str, str]) -> Round:
        """Pays what was delivered and refunds the rest, once per round; the arguments are those of `Round.settle`.

        Returns:
            The settled round, with its record.
        """


@dataclass(frozen=True, eq=False)
class Report:
    """What became of one award.

    Attributes:
        fault: what was wrong; None for a usable update.
        refused: the client said no: it certainly released nothing, and gets its ε back.
    """

    fault: str | None = None
    refused: bool = False


@dataclass(frozen=True, eq=False)
class Delivered:
    """What came back for the orders of a round.

    Attributes:
        reports: client → what became of its award. A client with an award that is not there was silent: it is not
            paid, and its ε is spent.
        update: (parameters,) float32, the usable updates added up with their weights; None where there is none, or
            where somebody else adds them up.
    """

    reports: Mapping[str, Report] = field(default_factory=dict)
    update: np.ndarray | None = None


class Trainers(Protocol):
    """Who trains: a pool of processes, a fleet, a fleet under secure aggregation."""

    def train(self, auction: Round) -> Delivered:
        """Has every client with an award train for it, and takes what comes back before the deadline."""


def play_round(
    terms: Terms, bidders: Bidders, auctioneer: Auctioneer, trainers: Trainers, wallets: WalletStore
) -> tuple[Round, RoundRecord, Delivered]:
    """Plays a round from its terms to its settlement.

    Returns:
        The round with its awards, its record, and what was delivered (its `update` moves the model).
    """
    auction = hold_auction(terms, bidders, auctioneer, wallets)
    delivered = trainers.train(auction) if auction.awards else Delivered()
    settled = settle_round(auction, delivered, auctioneer, wallets)
    assert settled.record is not None
    return settled, settled.record, delivered


def hold_auction(terms: Terms, bidders: Bidders, auctioneer: Auctioneer, wallets: WalletStore) -> Round:
    """The first half: from the terms to a cleared round whose awards the wallets have paid for."""
    auction = auctioneer.clear(terms, bidders)
    events = {client: award.event for client, award in auction.awards.items()}
    wallets.reserve(sale_name(terms.run, terms.number), events)
    return auction


def settle_round(auction: Round, delivered: Delivered, auctioneer: Auctioneer, wallets: WalletStore) -> Round:
    """The second half: usable updates are paid, and clients that released nothing get their ε back."""
    refused = {client: report.fault or "" for client, report in delivered.reports.items() if report.refused}
    faults = {client: report.fault for client, report in delivered.reports.items() if not report.refused}
    settled = auctioneer.settle(auction, faults, refused)
    if refused:
        wallets.void(sale_name(auction.terms.run, auction.terms.number), refused)
    return settled


class LocalAuctioneer:
    """The auction in this process.

    Args:
        mechanism: the rule.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism = mechanism

    def clear(self, terms: Terms, bidders: Bidders) -> Round:
        """Runs the auction, in time linear in the offers. An offer that breaks the terms is left out and logged."""
        good: dict[str, Offer] = {}
        for client, offer in bidders.offers(terms).items():
            if offer is not None:
                try:
                    offer.check(client, terms)
                    good[client] = offer
                except RoundError as error:
                    _log.warning("round %s: offer left out: %s", terms.number, error)
        return Round(terms, offers=good).clear(self.mechanism)

    # Closing a round is a step of the machine and needs no one else.
    settle = staticmethod(Round.settle)
