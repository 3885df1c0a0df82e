"""Markets of any size in a network of fixed width."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from privmarket.market._distributions import scenario
from privmarket.mechanisms.learned._dm_regretnet import LevelsNetwork
from privmarket.mechanisms.learned._markets import Trade, from_bids, group, ungroup
from privmarket.mechanisms.learned._regretnet import RegretNetwork


def market(clients, profiles=2, seed=0):
    bids = scenario("uniform").sample(np.random.default_rng(seed), clients, (profiles,))
    return from_bids(bids, np.full((profiles, 1), 3.0), 5.0, torch.float64)


@settings(max_examples=100, deadline=None)
@given(clients=st.integers(1, 60), seats=st.integers(1, 12))
def test_everybody_has_one_seat_and_keeps_its_place(clients, seats):
    given_market = market(clients)
    seated = group(given_market, seats)
    assert seated.valuation.shape[1] == seats
    assert seated.present.sum() == 2 * clients
    torch.testing.assert_close(seated.budget.reshape(2, -1).sum(1), given_market.budget[:, 0])
    back = ungroup(Trade(seated.epsilon, seated.valuation), 2, clients)
    assert torch.equal(back.epsilon, given_market.epsilon)
    assert torch.equal(back.payment, given_market.valuation)


KINDS = {
    "menus": (RegretNetwork, {}),
    "thresholds": (RegretNetwork, {"menus": 0}),
    "levels": (LevelsNetwork, {}),
    "relaxed levels": (LevelsNetwork, {"straight_through": False, "menus": 0}),
}


@pytest.mark.parametrize("name", KINDS)
def test_deviations_equal_auctions_run_one_by_one(name):
    torch.manual_seed(0)
    kind, settings = KINDS[name]
    net = kind(seats=5, hidden=8, **settings).double().requires_grad_(False)
    seated = net.prepare(market(4))
    v, e = torch.rand(2, 5).double(), seated.epsilon * 0.7
    answered = net.deviate(None, seated, v, e, torch.arange(5))
    for client in range(5):
        moved_v, moved_e = seated.valuation.clone(), seated.epsilon.clone()
        moved_v[:, client], moved_e[:, client] = v[:, client], e[:, client]
        alone = net.outcome(seated, moved_v, moved_e)
        torch.testing.assert_close(answered.epsilon[:, client], alone.epsilon[:, client])
        torch.testing.assert_close(answered.payment[:, client], alone.payment[:, client])


@pytest.mark.parametrize("name", KINDS)
def test_an_empty_seat_changes_nothing(name):
    """Sells nothing, is paid nothing, and what is written in it does not matter."""
    torch.manual_seed(0)
    kind, settings = KINDS[name]
    net = kind(seats=5, hidden=8, **settings).double().requires_grad_(False)
    seated = net.prepare(market(4))
    trade = net.outcome(seated, seated.valuation, seated.epsilon)
    assert (trade.epsilon[:, 4] == 0).all()
    assert (trade.payment[:, 4] <= 1e-9).all()
    scribbled = seated.valuation.clone()
    scribbled[:, 4] = 0.7
    again = net.outcome(seated, scribbled, seated.epsilon)
    torch.testing.assert_close(again.epsilon, trade.epsilon)
    torch.testing.assert_close(again.payment, trade.payment)


@pytest.mark.parametrize(("levels", "truthful"), [(1, True), (8, True), (8, False)])
def test_levels_at_a_price_that_nobody_moves_are_truthful(levels, truthful):
    """Critical values are exact for the one-hot rule; paying a tenth above them is caught."""
    net = LevelsNetwork(seats=5, levels=levels, menus=0).double().requires_grad_(False)
    for parameter in net.net.parameters():
        parameter.zero_()
    if not truthful:
        net.net[-1].bias[-5:] = 0.1  # the money head
    unit = 3.0 / (5 * 5.0)
    relative = torch.tensor([[0.5, 9.0, 9.0, 9.0, 9.0]]).double() + torch.linspace(0, 4.5, 200).double()[:, None]
    one = replace(market(5, profiles=200), valuation=relative * unit)
    # Fifty copies of every market, so that fifty lies are tried at once.
    tensors = ("valuation", "epsilon", "data_size", "accuracy", "budget")
    copies = {name: getattr(one, name).repeat(50, 1) for name in tensors}
    seated = net.prepare(replace(one, **copies))
    utility = net.final(seated, seated.valuation, seated.epsilon).utility(seated.valuation)[:, 0]
    best = torch.zeros_like(utility)
    for lies in torch.linspace(0.1, 6.0, 300).reshape(6, 50):
        answered = seated.valuation.clone()
        answered[:, 0] = lies.repeat_interleave(200) * unit
        trade = net.final(seated, answered, seated.epsilon)
        best = torch.maximum(best, trade.utility(seated.valuation)[:, 0])
    gain = ((best - utility) / (unit * seated.epsilon[:, 0])).max().item()
    assert (gain < 1e-4) == truthful


def test_one_hot_levels_keep_individual_rationality_and_the_budget():
    torch.manual_seed(0)
    net = LevelsNetwork(seats=5, hidden=8).double().requires_grad_(False)
    seated = net.prepare(market(9, profiles=50))
    trade = net.final(seated, seated.valuation, seated.epsilon)
    assert (trade.utility(seated.valuation) >= 0).all()
    assert (trade.payment.sum(-1, keepdim=True) <= seated.budget * (1 + 1e-12)).all()
    fractions = (trade.epsilon / seated.epsilon.clamp_min(1e-9)) * net.levels
    torch.testing.assert_close(fractions, fractions.round())
