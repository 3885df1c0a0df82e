"""Where the auction of a round is held: in this process, or at a broker.

Both return the same cleared `Round`, so that delivery, settlement and aggregation do not know the difference.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from privmarket.broker.client import BrokerClient
from privmarket.errors import ConfigurationError
from privmarket.federated.errors import RoundError
from privmarket.federated.round import Award, Offer, Phase, Round, Settlement, Terms
from privmarket.flower.settings import MarketSettings
from privmarket.market.mechanism import Mechanism

_log = logging.getLogger("privmarket.flower")


class AuctionHouse(Protocol):
    """Holds the auctions of a run."""

    def open(self, terms: Terms) -> str:
        """Opens a round; returns its name at the broker, if there is one."""

    def clear(self, terms: Terms, offers: Mapping[str, Offer | None]) -> Round:
        """Ends bidding and runs the auction."""

    def settle(self, market: Round) -> tuple[Round, Settlement]:
        """Pays what was delivered."""


class LocalHouse:
    """The auction in this process, on the offers that clients sent to the server."""

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism = mechanism

    def open(self, terms: Terms) -> str:
        """Nothing to do."""
        return ""

    def clear(self, terms: Terms, offers: Mapping[str, Offer | None]) -> Round:
        """Runs the auction; an offer that breaks the terms is left out, and the others are not held up."""
        market = Round.publish(terms)
        for client, offer in offers.items():
            if offer is not None:
                try:
                    market = market.bid({client: offer})
                except RoundError as error:
                    _log.warning("round %s: offer left out: %s", terms.number, error)
        return market.clear(self.mechanism)

    def settle(self, market: Round) -> tuple[Round, Settlement]:
        """The pure machine's settlement."""
        return market.settle()


class BrokerHouse:
    """The auction at a broker: sellers send it their sealed bids themselves, the server never sees one.

    Args:
        client: a connection with the buyer's token; its account must hold the budget of each round.
    """

    def __init__(self, client: BrokerClient, settings: MarketSettings, title: str = "Flower run") -> None:
        if not isinstance(settings.mechanism, str):
            raise ConfigurationError("a broker wants the auction rule by name", "give mechanism='…'")
        self.client, self.settings, self.title = client, settings, title
        self._task = ""
        self._round = ""

    def open(self, terms: Terms) -> str:
        """Publishes the task before the first round, and opens a round with its money in escrow."""
        if not self._task:
            settings = self.settings
            self._task = self.client.publish_task(
                self.title,
                terms.budget_micro,
                mechanism=settings.mechanism,
                settings=dict(settings.mechanism_settings),
                rounds=settings.rounds,
                epsilon_max=settings.epsilon_max,
                sampling_rate=settings.sampling_rate,
                steps=settings.steps,
                delta=settings.delta,
                # Twice what this server waits: it closes and settles itself, before the broker's clock does.
                bid_seconds=int(2 * settings.bid_seconds) + 1,
                delivery_seconds=int(2 * settings.deadline_seconds) + 1,
            )["id"]
        self._round = self.client.open_round(self._task)["id"]
        return self._round

    def clear(self, terms: Terms, offers: Mapping[str, Offer | None]) -> Round:
        """Closes bidding and fetches who sold what; prices that were asked stay with the broker."""
        self.client.close_round(self._round)
        awards = {
            award["seller_id"]: Award(award["epsilon"], award["noise_multiplier"], award["payment_micro"])
            for award in self.client.awards(self._round)
        }
        known = {seller: awards[seller] for seller in offers if seller in awards}
        if len(known) < len(awards):
            _log.warning("round %s: %s sellers are not in this run", terms.number, len(awards) - len(known))
        sealed = {seller: Offer(0.0, award.epsilon) for seller, award in known.items()}
        return Round(terms, Phase.CLEARED, offers=sealed, awards=awards)

    def settle(self, market: Round) -> tuple[Round, Settlement]:
        """Gives receipts for all awards, so that the broker settles now, and checks its sums against ours."""
        market, settlement = market.settle()
        if market.awards:
            self.client.give_receipts(self._round, {c: settlement.dropped.get(c) for c in market.awards})
            paid = self.client.settle_round(self._round)["paid_micro"]
            if paid != settlement.spent_micro:
                raise RoundError(
                    f"round {market.terms.number}: the broker paid {paid} µ, not {settlement.spent_micro}",
                    "compare the broker's awards with this run's records",
                )
        return market, settlement
