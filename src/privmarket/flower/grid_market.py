"""The market of one run on a Flower grid: what the server app and the strategy wrapper have in common."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from privmarket.broker.http_client import BrokerClient
from privmarket.errors import ConfigurationError
from privmarket.flower.broker_auction import BrokerAuctioneer
from privmarket.flower.fleet import Fleet
from privmarket.flower.secure import SUM_BITS
from privmarket.flower.settings import MarketSettings
from privmarket.flower.wire import Receipt, Sale
from privmarket.plans import require_one_step
from privmarket.privacy.wallet_store import ReleaseBook
from privmarket.rounds import Auctioneer, Award, LocalAuctioneer, Pacing, Round, RoundRecord
from privmarket.secagg import SharedSum, bits_at_most

TOKEN_VARIABLE = "PRIVMARKET_BROKER_TOKEN"
_log = logging.getLogger("privmarket.flower")


def auctioneer_for(
    settings: MarketSettings, broker: str | BrokerClient | None = None, token: str | None = None
) -> Auctioneer:
    """The auction in this process, or at a broker."""
    if not broker:
        return LocalAuctioneer(settings.rule())
    if isinstance(broker, BrokerClient):
        return BrokerAuctioneer(broker, settings)
    token = token or os.environ.get(TOKEN_VARIABLE)
    if not token:
        raise ConfigurationError(f"no token for the broker at {broker}", f"set {TOKEN_VARIABLE}")
    return BrokerAuctioneer(BrokerClient(broker, token), settings)


@dataclass(eq=False)
class GridMarket:
    """What a run on a grid carries from round to round besides the model.

    Clients keep their own wallets; `purses` is the server's count of what they released, never less than what left.

    Attributes:
        run: the run's name.
        records: one per round so far.
        declined: client → why it did not bid when it last did not, in policy terms.
    """

    settings: MarketSettings
    auctioneer: Auctioneer
    fleet: Fleet
    run: str
    purses: ReleaseBook = field(default_factory=ReleaseBook)
    records: list[RoundRecord] = field(default_factory=list)
    declined: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_one_step(self.settings.trust, self.settings.steps)
        self.pacing = Pacing(self.settings, self.settings.family, self.settings.epsilon_max, self.run)
        self.objective = self.settings.objective

    def require_sum(self, sellers: int, parameters: int) -> None:
        """Before anyone bids: a secure sum of so many sellers must fit the protocol if all sell the most they may.

        Raises:
            ConfigurationError: it does not.
        """
        plan = self.settings
        sigma = float(plan.family.noise_multiplier(plan.epsilon_max))
        records = math.ceil(plan.expected_batch / plan.sampling_rate)
        needed = bits_at_most(sellers, records, sigma, parameters, plan.honest_share)
        if needed > SUM_BITS:
            raise ConfigurationError(
                f"a secure sum of {sellers} sellers with {records} records each that sell ε = {plan.epsilon_max:g} "
                f"needs {needed} bits, the protocol carries {SUM_BITS}",
                "lower epsilon_max, or train on fewer records a client",
            )

    def sales(
        self, market: Round, shares: Mapping[str, float] | None = None, total: SharedSum | None = None
    ) -> dict[str, Sale]:
        """client → its own order, for those that sold something and are here; `total` under aggregate trust."""
        terms, plan = market.terms, self.settings
        place = {client: at for at, client in enumerate(market.awards)}
        return {
            client: Sale(
                *(terms.run, terms.number, award.epsilon, award.payment_micro, terms.family),
                *(plan.clip_norm, plan.learning_rate, plan.expected_batch),
                share=1.0 if shares is None else shares[client],
                broker_round=terms.broker_round,
                trust=terms.trust,
                honest_share=terms.honest_share,
                sellers=0 if total is None else len(total.weights),
                levels=0 if total is None else total.levels,
                weight=0.0 if total is None else float(total.weights[place[client]]),
            )
            for client, award in self.sellers(market).items()
        }

    def sellers(self, market: Round) -> dict[str, Award]:
        """client → what it sold, for those that are here."""
        return {client: award for client, award in market.awards.items() if client in self.fleet.node_of}

    def shared_sum(self, market: Round, parameters: int) -> SharedSum:
        """The public numbers of a round's secure sum under aggregate trust, over all that were awarded.

        At a broker some of them may not be here: they are members of the sum, and drop out of it.
        """
        here = market.offers
        return SharedSum.plan(
            [award.event.noise_multiplier for award in market.awards.values()],
            [here[client].data_size if client in here else 1.0 for client in market.awards],
            clip_norm=self.settings.clip_norm,
            parameters=parameters,
            honest_share=market.terms.honest_share,
        )

    def registered_keys(self, market: Round) -> dict[str, str] | None:
        """client → its key at the broker that held the auction; None without a broker."""
        broker = self.auctioneer
        return broker.registered_keys(market.terms) if isinstance(broker, BrokerAuctioneer) else None

    def close(self, market: Round, record: RoundRecord, accuracy: float | None = None) -> RoundRecord:
        """Writes down a settled round, and the receipts that clients get with the next call for bids."""
        terms = market.terms
        self.fleet.receipts = {
            client: Receipt(
                *(terms.run, terms.number, record.paid_micro.get(client, 0)),
                *(record.dropped.get(client, ""), terms.trust),
            )
            for client in market.awards
            if client in self.fleet.node_of
        }
        self.declined |= self.fleet.declined
        record = replace(record, accuracy=accuracy)
        self.records.append(record)
        _log.info("round %s: %s sold, dropped %s", record.number, record.sellers, record.dropped)
        return record
