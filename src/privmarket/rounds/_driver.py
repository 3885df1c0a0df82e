"""Playing a round with its four parties, wherever they are.

    terms → auctioneer.clear (bidders.offers) → wallets.reserve → trainers.train
          → auctioneer.settle → wallets.void

The simulation, the Flower app and the Flower strategy all play their rounds through this module and implement its
four protocols. A Flower strategy is called twice per round, before and after training, so it calls the two halves
of `play_round`, `hold_auction` and `settle_round`, separately. The broker runs the same `Round` inside its database
transactions, where clearing and reserving must succeed or fail together.

The docstring of each protocol says what an implementation must do; for wallets see `privacy._wallet_store`.
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

        The auction sees the clients in the order of the names, which must not depend on who answered first. None
        stands for a client that takes part without an offer: it sells nothing in this round, or it sent its bid to
        a broker. Offers that break the terms are left out by the auctioneer.
        """


class Auctioneer(Protocol):
    """Who holds the auction: this process, or a broker."""

    def clear(self, terms: Terms, bidders: Bidders) -> Round:
        """Asks all bidders for offers and runs the auction. Bad offers are left out.

        Returns:
            A cleared round. Its terms are those that the bidders saw: a broker adds its own name of the round and
            the money in escrow.
        """

    def settle(self, auction: Round, reports: Mapping[str, str | None], voided: Mapping[str, str]) -> Round:
        """Pays what was delivered and refunds the rest, once per round; the arguments are those of `Round.settle`.

        Returns:
            The settled round, with its record.
        """


@dataclass(frozen=True, eq=False)
class Report:
    """The outcome of one award.

    Attributes:
        fault: what was wrong; None for a usable update.
        refused: the client refused. It certainly released nothing, and its wallet is not charged.
    """

    fault: str | None = None
    refused: bool = False


@dataclass(frozen=True, eq=False)
class Delivered:
    """The answers to the orders of a round.

    Attributes:
        reports: client → the outcome of its award. A client with an award but without a report did not answer: it
            is not paid, and its ε is spent.
        update: (parameters,) float32, the weighted sum of the usable updates; None if there are none, or if
            somebody else adds them up.
    """

    reports: Mapping[str, Report] = field(default_factory=dict)
    update: np.ndarray | None = None


class Trainers(Protocol):
    """Who trains: a pool of processes, a fleet, a fleet under secure aggregation."""

    def train(self, auction: Round) -> Delivered:
        """Lets every client with an award train, and collects the answers that arrive before the deadline."""


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
    """The first half: from the terms to a cleared round whose awards are charged to the wallets."""
    auction = auctioneer.clear(terms, bidders)
    events = {client: award.event for client, award in auction.awards.items()}
    wallets.reserve(sale_name(terms.run, terms.number), events)
    return auction


def settle_round(auction: Round, delivered: Delivered, auctioneer: Auctioneer, wallets: WalletStore) -> Round:
    """The second half: pays usable updates, and gives clients that released nothing their ε back."""
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

    # Settling a round is a step of the state machine and needs no other party.
    settle = staticmethod(Round.settle)
