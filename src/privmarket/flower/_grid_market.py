"""The market of one run on a Flower grid: what the server app and the strategy wrapper have in common.

`GridMarket` keeps a run's settings, clients and records; `auctioneer_for` holds the auction in this process or, by
`BrokerAuctioneer`, at a broker; `buy_sum` plays the training of a round under aggregate trust.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from privmarket._counted import counted
from privmarket._settings import require_one_step
from privmarket.broker._client import BrokerCallError, BrokerClient
from privmarket.errors import ConfigurationError, PrivacyError
from privmarket.flower import _checkpoint as checkpoint, _refusals as refusals, _sum_server as sums
from privmarket.flower._checkpoint import OpenOrders, SettledRounds
from privmarket.flower._defaults import LOUD, RoundPlan, plan_round
from privmarket.flower._fleet import Delivery, Fleet
from privmarket.flower._result import SUMMARY_LOG
from privmarket.flower._settings import MarketSettings
from privmarket.flower._sum_server import SUM_BITS, Cohorts, SignRoster
from privmarket.flower._wire import Arrays, Receipt, Sale
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._policy import Reason
from privmarket.privacy._wallet_store import ReleaseBook
from privmarket.rounds import (
    MICRO,
    Auctioneer,
    Award,
    Bidders,
    LocalAuctioneer,
    Offer,
    Pacing,
    Phase,
    Round,
    RoundError,
    RoundRecord,
    Terms,
)
from privmarket.secagg import SharedSum, SumClosed, SumRefusal, bits_at_most

TOKEN_VARIABLE = "PRIVMARKET_BROKER_TOKEN"
_log = logging.getLogger("privmarket.flower")
_summary_log = logging.getLogger(SUMMARY_LOG)
# Failures that will recur in the next round. A missing answer, or a refusal of terms, may not.
_OWN_FAULTS = ("client failed", *(f"refused: {reason.value} " for reason in refusals.OWN_FAULTS))


def too_loud(ratio: float, noise: str, parameters: int) -> str:
    """The server's warning if the noise on a round's average is far longer than the update can be."""
    if noise == "update":
        remedy = 'clip records instead: train_privately in the client and noise="records"'
    else:
        remedy = "more records or clients, more ε, fewer trainable weights"
    return (
        f"the noise on a round's average is {ratio:,.0f} times as long as the longest update of {parameters:,} "
        f"weights (more than {LOUD:g} times is reported): expect no learning. Remedy: {remedy}"
    )


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
    """The state of a run on a grid besides the model.

    Clients keep their own wallets; `wallets` is the server's count of their releases, which is never too small.

    Attributes:
        run: the run's name.
        records: one per round so far.
        declined: client → its latest reason for not bidding, in policy terms.
        cohorts_of: round → the number of its secure sums; under aggregate trust.
        parameters: trainable weights of the model, on which the noise of an order depends.
        server_gain: the factor by which the server's optimiser moves the model further than the average update.
        noise: "records", or "update" if clients clip and noise whole updates.
        plan: the training plan of the last round; None before the first.
        ended: why no further round is played although some are left; empty otherwise.
        open_file: where the orders of a round are kept until it is settled; None without a result file.
    """

    settings: MarketSettings
    auctioneer: Auctioneer
    fleet: Fleet
    run: str
    wallets: ReleaseBook = field(default_factory=ReleaseBook)
    records: list[RoundRecord] = field(default_factory=list)
    declined: dict[str, str] = field(default_factory=dict)
    cohorts_of: dict[int, int] = field(default_factory=dict)
    parameters: int = 1
    server_gain: float = 1.0
    noise: str = "records"
    plan: RoundPlan | None = None
    ended: str = ""
    open_file: Path | None = None
    _open: OpenOrders | None = None
    _declared: float = 0.0
    _why: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_one_step(self.settings.trust, self.settings.steps)
        self.pacing = Pacing(self.settings, self.settings.family, self.settings.epsilon_max, self.run)
        self.objective = self.settings.objective

    def require_sum(self, sellers: int, parameters: int) -> None:
        """Before anyone bids: refuses a secure sum that would not fit the protocol if all sellers sold the maximum.

        Raises:
            ConfigurationError: it does not.
        """
        settings = self.settings
        if settings.expected_batch is None:
            return  # known with the first bids; `shared_sum` checks every sum
        most = settings.epsilon_max
        sigma = float(settings.family.noise_multiplier(most))
        records = math.ceil(settings.expected_batch / settings.sampling_rate)
        sellers = min(sellers, settings.largest_cohort)
        needed = bits_at_most(sellers, records, sigma, parameters, settings.honest_share)
        if needed > SUM_BITS:
            raise ConfigurationError(
                f"a secure sum of {sellers} sellers with {records} records each that sell ε = {most:g} "
                f"needs {needed} bits, the protocol carries {SUM_BITS}",
                "lower epsilon_max, or train on fewer records a client",
            )

    def sales(
        self, auction: Round, shares: Mapping[str, float] | None = None, total: SharedSum | None = None
    ) -> dict[str, Sale]:
        """client → its own order, for those that sold something and are here; `total` under aggregate trust."""
        terms = auction.terms
        plan = self.planned(auction)
        place = {client: at for at, client in enumerate(auction.awards)}
        sizes = None if total is None else np.bincount(total.cohort_of)
        return {
            client: Sale(
                terms.run,
                terms.number,
                award.epsilon,
                award.payment_micro,
                terms.family,
                self.settings.clip_norm,
                plan.learning_rate,
                plan.expected_batch,
                share=1.0 if shares is None else shares[client],
                broker_round=terms.broker_round,
                trust=terms.trust,
                honest_share=terms.honest_share,
                sellers=0 if total is None or sizes is None else int(sizes[total.cohort_of[place[client]]]),
                levels=0 if total is None else total.levels,
                weight=0.0 if total is None else float(total.weights[place[client]]),
                cohorts=1 if total is None else total.cohorts,
            )
            for client, award in self.sellers(auction).items()
        }

    def planned(self, auction: Round) -> RoundPlan:
        """The training plan of a cleared round: as the settings say, the rest from public numbers.

        The declared number of records is that of the first round in which anybody bids, so that the divisor of
        updates is the same in all rounds.
        """
        if not self._declared and auction.offers:
            self._declared = sum(offer.data_size for offer in auction.offers.values()) / len(auction.offers)
        chosen = plan_round(
            self.settings,
            auction,
            self.parameters,
            declared=self._declared,
            server_gain=self.server_gain,
            noise=self.noise,
        )
        if self.plan is None:
            self._tell(chosen)
        self.plan = chosen
        return chosen

    def _tell(self, plan: RoundPlan) -> None:
        """Logs, before the first order, the chosen settings, and a warning if there is too much noise to learn."""
        settings = self.settings
        if self.noise == "records":
            _summary_log.info(
                "training: %s steps a round, sampling rate %g, clip norm %g, learning rate %g, expected batch %g",
                settings.steps,
                settings.sampling_rate,
                settings.clip_norm,
                plan.learning_rate,
                plan.expected_batch,
            )
        if plan.noise_ratio > LOUD:
            _summary_log.warning("%s", too_loud(plan.noise_ratio, self.noise, self.parameters))

    def note_orders(self, auction: Round) -> None:
        """Writes down the orders of a round before they are sent; a broker keeps its own books."""
        sellers = self.sellers(auction)
        terms = auction.terms
        if sellers and not isinstance(self.auctioneer, BrokerAuctioneer):
            due = {client: award.payment_micro for client, award in sellers.items()}
            events = {client: award.event for client, award in sellers.items()}
            self._open = OpenOrders(terms.run, terms.number, terms.trust, due, events)
            self._write_open()

    def _write_open(self) -> None:
        if self.open_file is not None:
            there = [*self.fleet.open_orders, *([] if self._open is None else [self._open])]
            checkpoint.write_open(self.open_file, there)

    def find_open(self) -> None:
        """Reads the orders that stopped runs with this result file left open."""
        settled = {name for name, _ in self._settled_sales()}
        self.fleet.open_orders = [one for one in checkpoint.read_open(self.open_file) if one.sale not in settled]

    def end(self) -> None:
        """After the run: orders stay open only of clients that never came back."""
        if self.open_file is not None:
            checkpoint.write_open(
                self.open_file, [one.unanswered() for one in self.fleet.open_orders if one.due_micro]
            )

    def releases(self) -> dict[str, tuple[PrivacyEvent, ...]]:
        """client → what it released in settled rounds."""
        found: dict[str, list[PrivacyEvent]] = {}
        for _, events in self._settled_sales():
            for client, event in events.items():
                found.setdefault(client, []).append(event)
        return {client: tuple(events) for client, events in found.items()}

    def _settled_sales(self) -> tuple[tuple[str, Mapping[str, PrivacyEvent]], ...]:
        """(name, client → release) of every settled round; the book has one entry per round, in order."""
        return self.wallets.sales()[: len(self.records)]

    def sellers(self, auction: Round) -> dict[str, Award]:
        """client → what it sold, for those that are here."""
        return {client: award for client, award in auction.awards.items() if client in self.fleet.node_of}

    def shared_sum(self, auction: Round, parameters: int, cohorts: Cohorts) -> SharedSum:
        """The public numbers of a round's secure sums under aggregate trust, over all that were awarded.

        With a broker some of them may not be connected: they are members of the sum and count as dropped out.
        """
        here = auction.offers
        return SharedSum.plan(
            [award.event.noise_multiplier for award in auction.awards.values()],
            [here[client].data_size if client in here else 1.0 for client in auction.awards],
            clip_norm=self.settings.clip_norm,
            parameters=parameters,
            honest_share=auction.terms.honest_share,
            cohort_of=[cohorts.cohort_of[client] for client in auction.awards],
        )

    def awarded_keys(self, auction: Round) -> dict[str, bytes]:
        """Awarded seller → the key that it signs with in secure sums: the broker's, else the one that it bid with.

        Raises:
            PrivacyError: one of them has none.
        """
        broker = self.auctioneer
        keys = self.fleet.sum_keys
        if isinstance(broker, BrokerAuctioneer):
            keys = {one: bytes.fromhex(key) for one, key in broker.registered_keys(auction.terms).items()}
        without = [client for client in auction.awards if client not in keys]
        if without:
            raise PrivacyError(f"seller {without[0]} has no key for the secure sum", "register one at the broker")
        return {client: keys[client] for client in auction.awards}

    def close(self, auction: Round, record: RoundRecord) -> RoundRecord:
        """Writes down a settled round, and the receipts that clients get with the next call for bids."""
        terms = auction.terms
        self.fleet.receipts = {
            client: Receipt(
                terms.run,
                terms.number,
                record.paid_micro.get(client, 0),
                record.dropped.get(client, ""),
                terms.trust,
                self.cohorts_of.get(terms.number, 1),
            )
            for client in auction.awards
            if client in self.fleet.node_of
        }
        self.declined |= self.fleet.declined
        self.records.append(record)
        self._open = None
        self._warn_of_declines(record)
        self._look_back(auction, record)
        _log.info("round %s: %s sold, dropped %s", record.number, record.sellers, record.dropped)
        return record

    def _warn_of_declines(self, record: RoundRecord) -> None:
        """Says at once if most clients decline: the others then sell for the whole budget."""
        declined = self.fleet.declined
        if len(self.fleet.node_of) < 2 * len(declined) and len(declined) < len(self.fleet.node_of):
            reasons = "; ".join(
                f"{list(declined.values()).count(why)}: {why}" for why in dict.fromkeys(declined.values())
            )
            line = (
                f"{len(declined)} of {counted(len(self.fleet.node_of), 'client')} decline "
                f"({reasons}); the others sell for the whole budget of a round"
            )
            if line not in self._why.values():
                self._why[line] = line
                _summary_log.warning("round %s: %s", record.number + 1, line)

    def _look_back(self, auction: Round, record: RoundRecord) -> None:
        """Records why a round bought nothing, and ends a run in which everybody fails for the same reason."""
        if record.paid_micro:
            return
        left_out = self._left_out(auction)
        words = set(self.fleet.declined.values())
        number = record.number + 1
        faults = set(record.dropped.values())
        if faults:
            if len(faults) == 1 and next(iter(faults)).startswith(_OWN_FAULTS) and self._is_everybody(record):
                self.ended = f"all {counted(len(record.dropped), 'seller')} of round {number}: {next(iter(faults))}"
        elif auction.offers:
            self._why["price"] = self._too_dear(auction)
        elif left_out:
            self._why |= left_out
        elif self.fleet.declined and len(words) == 1 and len(self.fleet.declined) == len(self.fleet.node_of):
            self.ended = f"nobody bids in round {number}: {next(iter(words))}{self._remedy(next(iter(words)))}"
        elif not self.fleet.node_of:
            self._why["nodes"] = "no node answered the call for bids"
            if any("No query function" in reason for reason in self.fleet.bid_errors):
                self._why["nodes"] += ": the client app has no handler for it; write market.answer_bids(app)"

    def _remedy(self, word: str) -> str:
        """The remedy if everybody declines because server and client app differ in a setting; else empty."""
        if word.startswith(f"{Reason.SCHEDULE} ") and self.noise == "records" and self.settings.steps > 1:
            return '; if the clients say WalletMod(noise="update"), give the strategy noise="update", too'
        if word.startswith(f"{Reason.TRUST} ") and self.settings.trust == "aggregate":
            return "; clients of secure sums are client_app(secure_aggregation=True), not a WalletMod"
        return ""

    def _is_everybody(self, record: RoundRecord) -> bool:
        """Whether everybody who could have sold failed: several sellers, or all bidders."""
        return len(record.dropped) > 1 or len(record.dropped) == record.bidders

    def _left_out(self, auction: Round) -> dict[str, str]:
        """client → why its offer was left out of the auction: it breaks the terms."""
        found: dict[str, str] = {}
        for client, offer in self.fleet.last_offers.items():
            if offer is not None and client not in auction.offers:
                try:
                    offer.check(client, auction.terms)
                except RoundError as error:
                    found[client] = f"offer left out: {error}"
        return found

    def _too_dear(self, auction: Round) -> str:
        """Why a round with offers sold nothing: a comparison of prices and money."""
        cheapest = min(auction.offers.values(), key=lambda offer: offer.valuation)
        budget = auction.terms.budget_micro / MICRO
        return (
            f"{counted(len(auction.offers), 'offer')} and no sale: the cheapest asks {cheapest.valuation:g} per "
            f"unit of ε for up to ε = {cheapest.epsilon:.3g}, the budget of a round is {budget:g}; raise budget=, "
            "or try another mechanism="
        )

    def notes(self) -> list[str]:
        """Lines of the summary about refusals and rounds without sales."""
        lines = list(dict.fromkeys(self._why.values()))
        if self.fleet.paid_late:
            paid = sum(self.fleet.paid_late.values()) / MICRO
            who = ", ".join(self.fleet.paid_late)
            lines.append(f"{paid:.6f} paid for updates of a stopped round, which are lost (clients {who})")
        if self.ended:
            played = len(self.records)
            rounds = self.settings.rounds
            lines.append(f"ended after round {played} of {rounds}: {self.ended}")
        return lines

    def stopped_note(self, partial: Path | None) -> str:
        """The line of a run that was interrupted."""
        done = f"stopped after {counted(len(self.records), 'settled round')} of {self.settings.rounds}"
        if self._open is not None:
            done += f"; the orders of round {self._open.number + 1} are open"
        if partial is None:
            return f"{done}; give a result file, and a stopped run can go on"
        return f"{done}; the same command goes on from there ({partial})"

    def settled(self, arrays: Arrays) -> SettledRounds:
        """The state that is needed to continue after the last settled round."""
        return SettledRounds(
            json.loads(json.dumps(self.settings.to_json())),
            tuple(self.records),
            arrays,
            self._settled_sales(),
            dict(self.fleet.receipts),
            self._declared,
            dict(self.cohorts_of),
        )

    def restore(self, left: SettledRounds) -> None:
        """Continues from the settled rounds of a stopped run."""
        self.records = list(left.records)
        for sale, events in left.releases:
            self.wallets.reserve(sale, events)
        self.fleet.late_receipts = dict(left.receipts)
        self._declared = left.declared
        self.cohorts_of = dict(left.cohorts)
        _summary_log.info("going on after %s of %s rounds", len(self.records), self.settings.rounds)


_log = logging.getLogger("privmarket.flower")


class BrokerAuctioneer:
    """The auction at a broker. Sellers send it their sealed bids; the server of the training never sees one.

    Args:
        client: a connection with the buyer's token; its account must hold the budget of each round.
        settings: the run's; the rule must be given by name.
    """

    def __init__(self, client: BrokerClient, settings: MarketSettings, title: str = "Flower run") -> None:
        if not isinstance(settings.mechanism, str):
            raise ConfigurationError(
                "a broker wants the auction rule by name", "give it, e.g. mechanism='proportional-share'"
            )
        self.client = client
        self.settings = settings
        self.title = title
        self._task = ""

    def clear(self, terms: Terms, bidders: Bidders) -> Round:
        """Opens a round with its money in escrow, has the clients bid there, and fetches who sold what.

        The task is published before the first round. Its budget is the same in every round; with a total, what a
        round does not pay goes back to the buyer's account. Asked prices stay with the broker.

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
                # This server closes a round once all clients have answered, or at the latest after twice its
                # waiting time.
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
        # A winner's declared number of records and its sale are public; the price that it asked is not.
        sealed = {s: Offer(0.0, award.epsilon, sold[s].get("data_size") or 1.0) for s, award in known.items()}
        return Round(terms, Phase.CLEARED, offers=sealed, awards=awards)

    def registered_keys(self, terms: Terms) -> dict[str, str]:
        """seller → the public key that it is registered with, for the sellers of a cleared round."""
        return {one["seller_id"]: one["public_key"] for one in self.client.cohort(terms.broker_round)}

    def settle(self, auction: Round, reports: Mapping[str, str | None], voided: Mapping[str, str]) -> Round:
        """Gives receipts for all claims, lets the broker settle once no award is pending, and checks its sums."""
        settled = auction.settle(reports, voided)
        if not auction.awards or settled.record is None:
            return settled
        name = auction.terms.broker_round
        record = settled.record
        claimed = [award["seller_id"] for award in self.client.awards(name) if award["claim_sha256"]]
        if claimed:
            self.client.give_receipts(name, {c: record.dropped.get(c) for c in claimed})
        try:
            paid = self.client.settle_round(name)["paid_micro"]
        except BrokerCallError as error:
            if error.code != "conflict":
                raise
            # Sellers may still deliver or dispute: the broker settles at the deadlines in the task.
            _log.info("round %s: the broker settles it later: %s", auction.terms.number, error.message)
            return settled
        if paid != record.spent_micro:
            raise RoundError(
                f"round {auction.terms.number}: the broker paid {paid} µ, not {record.spent_micro}",
                "compare the broker's awards with this run's records",
            )
        return settled


def buy_sum(
    market: GridMarket, auction: Round, weights: Arrays, register: SignRoster | None = None
) -> tuple[dict[str, Delivery], np.ndarray | None]:
    """The training of a round under aggregate trust, from the roster to the opened sums.

    Args:
        market: the run, with its fleet and settings.
        auction: the cleared round.
        weights: the model, array by array.
        register: signs the roster; None without a register.

    Returns:
        What each seller delivered, and the bought step of the model: learning rate × average, (parameters,)
        float32, array after array; None if no sum was opened.
    """
    if not auction.awards:
        return {}, None
    settings = market.settings
    grid = market.fleet.grid
    try:
        keys = market.awarded_keys(auction)
        cohorts = sums.form_cohorts(
            grid, market.fleet, auction.terms, keys, settings.largest_cohort, settings.deadline_seconds, register
        )
        shared = market.shared_sum(auction, sum(array.size for array in weights.values()), cohorts)
    except (PrivacyError, SumRefusal, SumClosed) as error:  # no order was sent, so nobody released anything
        _log.warning("round %s: %s", auction.terms.number, error)
        return {client: Delivery(fault=str(error), refused=True) for client in market.sellers(auction)}, None
    sales = market.sales(auction, total=shared)
    sizes = {client: auction.offers[client].data_size for client in sales}
    market.cohorts_of[auction.terms.number] = cohorts.count
    deliveries, total = sums.secure_sum(
        grid, market.fleet, sales, weights, sizes, settings.deadline_seconds, cohorts
    )
    if total is None:
        return deliveries, None
    place = {client: at for at, client in enumerate(auction.awards)}
    came = [place[client] for client in sales if deliveries[client].fault is None]
    flat = np.concatenate([total[name].ravel() for name in weights])
    chosen = market.planned(auction)
    rate = chosen.learning_rate / chosen.expected_batch
    return deliveries, (rate * (flat / float(shared.weights[came].sum()))).astype(np.float32)
