"""The auction of a Flower run held at a broker: an auctioneer for `rounds._driver`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from privmarket.broker._http_client import BrokerCallError, BrokerClient
from privmarket.errors import ConfigurationError
from privmarket.flower._settings import MarketSettings
from privmarket.rounds import Award, Bidders, Offer, Phase, Round, RoundError, Terms

_log = logging.getLogger("privmarket.flower")


class BrokerAuctioneer:
    """Sellers send the broker their sealed bids themselves; the server of the training never sees one.

    Args:
        client: a connection with the buyer's token; its account must hold the budget of each round.
        settings: the run's; the rule must be given by name.
    """

    def __init__(self, client: BrokerClient, settings: MarketSettings, title: str = "Flower run") -> None:
        if not isinstance(settings.mechanism, str):
            raise ConfigurationError(
                "a broker wants the auction rule by name", "give it, e.g. mechanism='proportional-share'"
            )
        self.client, self.settings, self.title = client, settings, title
        self._task = ""

    def clear(self, terms: Terms, bidders: Bidders) -> Round:
        """Opens a round with its money in escrow, has the clients bid there, and fetches who sold what.

        The task is published before the first round. Its budget is the same in every round: of a total, what a
        round does not pay goes back to the buyer's account. Prices that were asked stay with the broker.

        Returns:
            A cleared round whose terms name the broker's round and its escrow.
        """
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
                trust=settings.trust,
                honest_share=settings.honest_share,
                # This server closes a round once all clients have answered; twice what it waits is the latest.
                buyer_may_close=True,
                bid_seconds=int(2 * settings.bid_seconds) + 1,
                delivery_seconds=int(2 * settings.deadline_seconds) + 1,
            )["id"]
        opened = self.client.open_round(self._task)
        terms = replace(terms, broker_round=opened["id"], budget_micro=opened["budget_micro"])
        offers = bidders.offers(terms)
        self.client.close_round(terms.broker_round)
        sold = {award["seller_id"]: award for award in self.client.awards(terms.broker_round)}
        awards = {
            seller: Award.stored(terms, award["epsilon"], award["noise_multiplier"], award["payment_micro"])
            for seller, award in sold.items()
        }
        known = {seller: awards[seller] for seller in offers if seller in awards}
        if len(known) < len(awards):
            _log.warning("round %s: %s sellers are not in this run", terms.number, len(awards) - len(known))
        # A winner's declared number of records is public, as is what it sold; the price that it asked is not.
        sealed = {s: Offer(0.0, award.epsilon, sold[s].get("data_size") or 1.0) for s, award in known.items()}
        return Round(terms, Phase.CLEARED, offers=sealed, awards=awards)

    def registered_keys(self, terms: Terms) -> dict[str, str]:
        """seller → the public key that it is registered with, for the sellers of a cleared round."""
        return {one["seller_id"]: one["public_key"] for one in self.client.cohort(terms.broker_round)}

    def settle(self, market: Round, reports: Mapping[str, str | None], voided: Mapping[str, str]) -> Round:
        """Gives receipts for all claims, has the broker settle once no award waits, checks its sums."""
        settled = market.settle(reports, voided)
        if not market.awards or settled.record is None:
            return settled
        name, record = market.terms.broker_round, settled.record
        claimed = [award["seller_id"] for award in self.client.awards(name) if award["claim_sha256"]]
        if claimed:
            self.client.give_receipts(name, {c: record.dropped.get(c) for c in claimed})
        try:
            paid = self.client.settle_round(name)["paid_micro"]
        except BrokerCallError as error:
            if error.code != "conflict":
                raise
            # Somebody may still deliver or dispute: the broker settles at the deadlines that the task published.
            _log.info("round %s: the broker settles it later: %s", market.terms.number, error.message)
            return settled
        if paid != record.spent_micro:
            raise RoundError(
                f"round {market.terms.number}: the broker paid {paid} µ, not {record.spent_micro}",
                "compare the broker's awards with this run's records",
            )
        return settled
