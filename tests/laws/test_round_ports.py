"""Every implementation of the driver's ports keeps the port's contract, and the driver keeps its order of steps."""

from dataclasses import replace

import numpy as np
import pytest
from fastapi.testclient import TestClient
from flwr.app import ArrayRecord

import privmarket as pm
from privmarket.broker._api import ServiceSettings, create_app
from privmarket.broker._broker import Broker
from privmarket.broker._client import BrokerClient
from privmarket.flower import _wire as wire
from privmarket.flower._grid_market import BrokerAuctioneer
from privmarket.flower._server import MarketRun
from privmarket.flower._settings import MarketSettings
from privmarket.mechanisms import mechanism
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._wallet_store import ReleaseBook
from privmarket.rounds import (
    Award,
    Delivered,
    LocalAuctioneer,
    Offer,
    Phase,
    Report,
    Round,
    Terms,
    hold_auction,
    play_round,
    settle_round,
)
from privmarket.simulation._config import FederationConfig, Training
from privmarket.simulation._federation import Federation, SimulatedClients
from tests.unit.flower.toy import CLIENTS, START, Wire, client

FAMILY = ReleaseFamily()
TERMS = Terms(0, 4_000_000, FAMILY, 5.0, rounds=2, run="run")
OFFERS = {"a": Offer(0.1, 1.0), "b": Offer(0.2, 1.5), "c": None, "d": Offer(0.3, 1.0), "e": Offer(0.9, 4.0)}


# ---- auctioneers: here and at a broker --------------------------------------------------------------------


class Here:
    """The auction in this process."""

    def __init__(self, folder):
        self.auctioneer = LocalAuctioneer(mechanism("proportional-share"))

    def bid(self, terms, offers):
        return offers


class AtABroker:
    """The auction at a broker; sellers bid there and the server only hears their names."""

    def __init__(self, folder):
        broker = Broker(f"sqlite:///{folder / 'market.db'}")
        api = create_app(broker, ServiceSettings())
        connect = lambda token: BrokerClient("http://broker", token, http=TestClient(api, base_url="http://broker"))  # noqa: E731
        operator = connect(broker.first_operator())
        buyer = operator.register("buyer", "lab")
        operator.deposit(buyer.me()["id"], 100_000_000)
        self.sellers = {
            name: connect(operator.register("seller", name, cap_epsilon=50.0, delta=1e-5).token) for name in OFFERS
        }
        settings = MarketSettings(mechanism="proportional-share", budget=4.0, rounds=2)
        self.auctioneer = BrokerAuctioneer(connect(buyer.token), settings)

    def bid(self, terms, offers):
        for name, offer in offers.items():
            if offer is not None and offer.epsilon <= terms.epsilon_max:  # a broker refuses bad bids at its door
                self.sellers[name].bid(terms.broker_round, offer.valuation, offer.epsilon, data_size=1.0)
        return {self.sellers[name].me()["id"]: None for name in offers}


@pytest.fixture(params=[Here, AtABroker])
def house(request, tmp_path):
    return request.param(tmp_path)


class Asked:
    """Bidders whose answer is known."""

    def __init__(self, answer):
        self.offers = answer


def cleared(house, offers=OFFERS, terms=TERMS):
    return house.auctioneer.clear(terms, Asked(lambda opened: house.bid(opened, offers)))


def test_an_auction_clears_within_offers_and_budget(house):
    auction = cleared(house)
    assert auction.phase is Phase.CLEARED
    assert len(auction.awards) == 3
    assert sum(award.payment_micro for award in auction.awards.values()) <= TERMS.budget_micro
    for award in auction.awards.values():
        assert award.event.noise_multiplier == pytest.approx(float(FAMILY.noise_multiplier(award.epsilon)))
    assert set(auction.awards) <= set(auction.offers)


def test_a_bad_offer_does_not_hold_up_the_others(house):
    assert len(cleared(house, {**OFFERS, "b": Offer(0.3, 99.0)}).awards) == 2


def test_settlement_pays_the_usable_and_adds_up(house):
    auction = cleared(house)
    first, second, third = auction.awards
    record = house.auctioneer.settle(auction, {first: None, second: "spoiled"}, {}).record
    assert record.paid_micro == {first: auction.awards[first].payment_micro}
    assert record.spent_micro + record.refunded_micro == TERMS.budget_micro
    assert set(record.dropped) == {second, third}
    assert set(record.sold_epsilon) == {first, second, third}  # silence is no proof that nothing left


@pytest.mark.parametrize(
    "bad",
    [
        Offer(-1.0, 1.0),
        Offer(float("nan"), 1.0),
        Offer(0.1, float("nan")),
        Offer(0.1, 1.0, data_size=0.0),
        Offer(0.1, 1.0, data_size=float("inf")),
        Offer(0.1, 1.0, accuracy=1.5),
        Offer(0.1, 1.0, accuracy=float("nan")),
    ],
)
def test_every_number_of_an_offer_is_checked(bad):
    bidders = Asked(lambda _: {**OFFERS, "b": bad})
    auction = LocalAuctioneer(mechanism("proportional-share")).clear(TERMS, bidders)
    assert set(auction.offers) == {"a", "d", "e"}


def test_nobody_bids(house):
    auction = cleared(house, {})
    assert auction.awards == {}
    assert house.auctioneer.settle(auction, {}, {}).record.refunded_micro == TERMS.budget_micro


# ---- bidders and trainers: a simulation and a fleet -------------------------------------------------------

SMALL = FederationConfig(
    clients=CLIENTS, rounds=2, budget=4.0, training=Training(model="logistic"), mechanism="proportional-share"
)


class InSimulation:
    def __init__(self):
        self.federation = Federation(SMALL)
        self.bidders = self.party = SimulatedClients(self.federation, self.federation.start())
        self.terms = self.federation.pacing.terms(())


class OnAGrid:
    def __init__(self):
        grid = Wire(client())
        settings = MarketSettings(mechanism="proportional-share", budget=4.0, rounds=2, deadline_seconds=5.0)
        self.party = MarketRun(grid, settings, LocalAuctioneer(settings.rule()), START, None, lambda _: None)
        self.bidders, self.terms = self.party.fleet, self.party.market.pacing.terms(())


@pytest.fixture(params=[InSimulation, OnAGrid])
def crowd(request):
    return request.param()


def test_bidders_answer_by_name_in_a_fixed_order_within_the_terms(crowd):
    offers = crowd.bidders.offers(crowd.terms)
    assert list(offers) == [str(i) for i in range(CLIENTS)] == list(crowd.bidders.offers(crowd.terms))
    for name, offer in offers.items():
        offer.check(name, crowd.terms)
    smaller = crowd.bidders.offers(replace(crowd.terms, epsilon_max=0.3))
    assert all(offer.epsilon <= 0.3 for offer in smaller.values())


def test_trainers_report_on_every_award_and_add_up(crowd):
    auction = LocalAuctioneer(mechanism("proportional-share")).clear(crowd.terms, crowd.bidders)
    delivered = crowd.party.train(auction)
    assert delivered.reports.keys() == auction.awards.keys()
    assert all((report.fault, report.refused) == (None, False) for report in delivered.reports.values())
    assert delivered.update.dtype == np.float32
    assert delivered.update.ndim == 1
    assert np.isfinite(delivered.update).all()


# ---- the driver -------------------------------------------------------------------------------------------


class Diary:
    """All four parties; writes down who is asked in which order, and fails or refuses as told."""

    def __init__(self, reports=None, refused=None, dies=False):
        self.said, self.book, self.dies = [], ReleaseBook(), dies
        faults = reports or {"a": None, "b": None, "d": None}
        refusals = {client: Report(why, refused=True) for client, why in (refused or {}).items()}
        self.delivered = Delivered({client: Report(fault) for client, fault in faults.items()} | refusals)
        self.local = LocalAuctioneer(mechanism("proportional-share"))

    def offers(self, terms):
        self.said.append("offers")
        return OFFERS

    def clear(self, terms, bidders):
        self.said.append("clear")
        return self.local.clear(terms, bidders)

    def settle(self, auction, reports, voided):
        self.said.append("settle")
        return self.local.settle(auction, reports, voided)

    def reserve(self, sale, events):
        self.said.append("reserve")
        self.book.reserve(sale, events)

    def void(self, sale, clients):
        self.said.append("void")
        self.book.void(sale, clients)

    def train(self, auction):
        self.said.append("train")
        assert all(self.book.spent(c) for c in auction.awards)  # paid for before the first private byte
        if self.dies:
            raise RuntimeError("killed")
        return self.delivered


def play(diary, terms=TERMS):
    return play_round(terms, diary, diary, diary, diary)


def test_the_order_of_a_round():
    diary = Diary()
    play(diary)
    assert diary.said == ["clear", "offers", "reserve", "train", "settle"]


def test_the_two_halves_are_the_whole():
    whole, halves = Diary(), Diary()
    auction = hold_auction(TERMS, halves, halves, halves)
    settled = settle_round(auction, halves.train(auction), halves, halves)
    assert play(whole)[:2] == (settled, settled.record)
    assert whole.said == halves.said


def test_a_crash_in_training_has_spent():
    diary = Diary(dies=True)
    with pytest.raises(RuntimeError, match="killed"):
        play(diary)
    assert set(diary.book.releases()) == {"a", "b", "d"}


def test_only_a_refusal_gives_back():
    diary = Diary({"a": "no answer before the deadline"}, {"b": "refused: too much"})
    _, record, _ = play(diary)
    assert set(diary.book.releases()) == {"a", "d"} == set(record.sold_epsilon)
    assert record.paid_micro == {}
    assert record.dropped == {
        "a": "no answer before the deadline",
        "b": "refused: too much",
        "d": "delivered nothing",
    }


def test_nothing_is_trained_when_nobody_sells():
    diary = Diary()
    diary.offers = lambda terms: dict.fromkeys(OFFERS)
    auction, record, delivered = play(diary)
    assert (auction.awards, delivered.update, record.refunded_micro) == ({}, None, TERMS.budget_micro)
    assert "train" not in diary.said


def test_the_order_check_catches_a_driver_that_charges_after_training():
    """The broken subject: trains first, as the simulation once did, and a crash would spend nothing."""
    diary = Diary(dies=True)
    auction = diary.clear(TERMS, diary)
    with pytest.raises(AssertionError):
        diary.train(auction)


def test_flower_strategies_play_the_same_round():
    """`AuctionStrategy` calls the two halves around any strategy; it sells to whom the app's own round does."""
    from flwr.serverapp.strategy import FedAvg

    app = client()
    grid = Wire(app)
    options = {"mechanism": "proportional-share", "budget": 4.0, "rounds": 1}
    strategy = pm.flower.AuctionStrategy(FedAvg(fraction_evaluate=0.0), **options)
    arrays = ArrayRecord({name: wire.Array(array) for name, array in START.items()})
    strategy.start(grid, arrays, num_rounds=1)
    served = pm.flower.server_app(initial_weights=lambda: START, **options)
    result = pm.flower.run_in_process(served, client(), CLIENTS)
    assert [a.paid_micro.keys() | a.dropped.keys() for a in strategy.records] == [
        r.paid_micro.keys() | r.dropped.keys() for r in result.records
    ]


def test_a_round_with_sixteen_thousand_offers_is_cleared_in_one_pass():
    """Every offer is looked at once: the number of checks is the number of offers."""
    counted = []

    class Counted(Offer):
        def check(self, name, terms):
            counted.append(name)
            super().check(name, terms)

    offers = {str(i): Counted(0.001 * (i % 997), 1.0) for i in range(16_000)}
    auction = LocalAuctioneer(mechanism("proportional-share")).clear(TERMS, Asked(lambda _: offers))
    assert len(counted) == len(offers) == len(auction.offers)


def test_awards_from_elsewhere_settle_like_our_own():
    awards = {"a": Award(1.0, PrivacyEvent(3.7), 10)}
    record = Round(TERMS, Phase.CLEARED, awards=awards).settle({"a": None}).record
    assert record.paid_micro == {"a": 10}
