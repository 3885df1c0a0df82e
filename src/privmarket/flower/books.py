"""The server's books over a run: terms of each round, records, releases and receipts of every client."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from privmarket.federated.round import Round, Settlement, Terms
from privmarket.flower.fleet import Delivery, Fleet
from privmarket.flower.settings import MarketSettings
from privmarket.flower.wire import Call, Receipt, Sale
from privmarket.privacy.events import PrivacyEvent, release

if TYPE_CHECKING:
    from privmarket.federated.state import RoundRecord

_log = logging.getLogger("privmarket.flower")


@dataclass(eq=False)
class Books:
    """What a run carries from round to round besides the model.

    Attributes:
        run: the run's name.
        releases: client → what it released.
        receipts: client → what became of its last delivery; told with the next call for bids.
    """

    settings: MarketSettings
    run: str
    records: list[RoundRecord] = field(default_factory=list)
    releases: dict[str, list[PrivacyEvent]] = field(default_factory=dict)
    receipts: dict[str, Receipt] = field(default_factory=dict)
    spent_micro: int = 0

    def terms(self, number: int) -> Terms:
        """What is published before round `number`."""
        budget = self.settings.budget_micro(number, self.spent_micro)
        return Terms(number, budget, self.settings.family, self.settings.epsilon_max)

    def call(self, terms: Terms, broker_round: str = "") -> Call:
        """The call for bids."""
        return Call(
            *(self.run, terms.number, self.settings.rounds, terms.budget_micro, terms.family),
            *(terms.epsilon_max, broker_round),
        )

    def sales(
        self, market: Round, call: Call, fleet: Fleet, shares: Mapping[str, float] | None = None
    ) -> dict[str, Sale]:
        """client → its own order, for those that sold something and are here."""
        plan = self.settings
        return {
            client: Sale(
                *(call.run, call.number, award.epsilon, award.payment_micro, call.family),
                *(plan.clip_norm, plan.learning_rate, plan.expected_batch),
                share=1.0 if shares is None else shares[client],
                broker_round=call.broker_round,
            )
            for client, award in market.awards.items()
            if client in fleet.node_of
        }

    def close(
        self,
        market: Round,
        settlement: Settlement,
        deliveries: Mapping[str, Delivery],
        accuracy: float | None,
    ) -> RoundRecord:
        """Books a settled round."""
        from privmarket.federated.state import RoundRecord

        family = self.settings.family
        for client, award in settlement.sold.items():
            event = release(award.noise_multiplier, family.sampling_rate, family.steps)
            self.releases.setdefault(client, []).append(event)
        self.spent_micro += settlement.spent_micro
        self.receipts = {
            client: Receipt(self.run, settlement.number, settlement.paid_micro.get(client, 0), delivery.fault or "")
            for client, delivery in deliveries.items()
        }
        faults = {client: d.fault for client, d in deliveries.items() if d.fault is not None}
        record = RoundRecord(
            number=settlement.number,
            bidders=len(market.offers),
            sellers=len(settlement.paid_micro),
            total_epsilon=settlement.total_epsilon,
            spent_micro=settlement.spent_micro,
            refunded_micro=settlement.refunded_micro,
            sold_epsilon={client: award.epsilon for client, award in settlement.sold.items()},
            paid_micro=settlement.paid_micro,
            dropped={client: faults.get(client, reason) for client, reason in settlement.dropped.items()},
            accuracy=accuracy,
        )
        self.records.append(record)
        _log.info("round %s: %s sold, dropped %s", record.number, record.sellers, record.dropped)
        return record


def delivered(market: Round, deliveries: Mapping[str, Delivery]) -> Round:
    """The market with its deliveries; who released nothing delivered nothing."""
    return market.deliver({client: d.fault for client, d in deliveries.items() if d.released})
