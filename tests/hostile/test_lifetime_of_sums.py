"""The lifetime cap of a seller in secure sums without a register, where one party may own all the other sellers."""

from dataclasses import replace

import pytest

import privmarket as pm
from privmarket.flower import _refusals as refusals
from privmarket.privacy._accountant import certify
from privmarket.privacy._calibration import alone_event
from privmarket.privacy._events import from_json
from privmarket.privacy._policy import SellerPolicy
from tests.unit.flower.test_seller_limits import Ones
from tests.unit.flower.toy import CLIENTS, Wire, client, partition, server

CAP = 4.0
POLICY = SellerPolicy(
    epsilon_per_sale=3.0,
    epsilon_lifetime=CAP,
    trust=("local", "aggregate"),
    minimum_cohort=2,
    largest_cohort=CLIENTS,
    register="none",
)


def sold(tmp_path, rounds=6, tamper=None, policy=POLICY):
    """The wallets of six sellers after a market under aggregate trust that buys all it can get, and the wire."""
    wallets = {}

    def wallet(context):
        name = partition(context)
        return wallets.setdefault(name, pm.privacy.WalletFile(tmp_path / f"{name}.jsonl", CAP))

    app = client(
        valuation=0.1,
        epsilon=2.0,
        share=Ones(lambda _: 10),
        data_size=10.0,
        secure_aggregation=True,
        policy=policy,
        wallet=wallet,
        spread=False,
    )
    market = server(
        mechanism="ration",
        mechanism_settings={"unit_price": 0.2},
        budget=50.0,
        rounds=rounds,
        trust="aggregate",
        clip_norm=1.0,
    )
    grid = Wire(app, tamper=tamper)
    result = pm.flower.run_in_process(market, app, CLIENTS, grid=grid)
    return result, list(wallets.values()), grid


def against_all_others(wallet):
    """ε of everything that a wallet sold, if the server knows the noise of all other sellers."""
    sales = [sale for sale in wallet.statement() if not sale.get("void")]
    events = [alone_event(from_json(s["event"]), s["sellers"], s["honest_share"]) for s in sales]
    return certify(events, wallet.delta).epsilon


def test_the_cap_holds_against_a_server_that_owns_all_the_others(tmp_path):
    result, wallets, _ = sold(tmp_path)
    assert sum(bool(record.paid_micro) for record in result.records) >= 1
    for wallet in wallets:
        assert wallet.statement()
        assert 0.9 < against_all_others(wallet) <= CAP
        assert wallet.epsilon_spent <= CAP
        assert wallet.remaining_share < 0.5  # and it is charged, not only limited


def test_a_wallet_that_supposes_honest_others_is_passed(tmp_path, monkeypatch):
    """The subject broken on purpose: the same sellers, charged as if a register named the others."""
    monkeypatch.setattr("privmarket.flower._seller.Seller.has_register", True)
    _, wallets, _ = sold(tmp_path)
    assert all(against_all_others(wallet) > CAP for wallet in wallets)
    assert all(wallet.epsilon_spent <= CAP for wallet in wallets)


def test_a_sum_of_more_sellers_than_the_offer_supposed_is_refused(tmp_path):
    """Offers are made before the number of sellers is known: the more there are, the less is a share's noise."""
    result, wallets, grid = sold(tmp_path, rounds=1, policy=replace(POLICY, largest_cohort=CLIENTS - 1))
    assert not any(wallet.statement() for wallet in wallets)
    assert all(refusals.refusals(context) == {"cohort": 1} for context in grid.contexts.values())
    assert not any(result.records[0].paid_micro.values())


def test_one_sale_costs_at_most_what_the_policy_says(tmp_path):
    _, wallets, _ = sold(tmp_path, rounds=1)
    for wallet in wallets:
        (sale,) = wallet.statement()
        assert sale["epsilon"] < 2.0  # ε = 2.0 was on offer
        assert against_all_others(wallet) == pytest.approx(POLICY.epsilon_per_sale, rel=1e-3)


def test_a_sum_of_unknown_size_cannot_be_charged(tmp_path):
    wallet = pm.privacy.WalletFile(tmp_path / "w.jsonl", CAP)
    event = pm.privacy.ReleaseFamily().event(0.1)
    with wallet.open() as book:
        with pytest.raises(pm.PrivmarketError, match="how many sellers"):
            book.reserve("run/0", 0.1, event, trust="aggregate", registered=False)
        assert book.remaining_share == 1.0
