"""The gated row network: exact deviations, units, and what holds by construction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from privmarket.market._distributions import scenario
from privmarket.mechanisms.learned import _mfg_regretnet as mfg_regretnet
from privmarket.mechanisms.learned._literal import LiteralNetwork
from privmarket.mechanisms.learned._markets import from_bids
from privmarket.mechanisms.learned._mfg_regretnet import MeanFieldNetwork


def network(seed: int = 0, stir: float = 0.5) -> MeanFieldNetwork:
    """A network whose corrections are far from zero, so that nothing holds by the start alone."""
    torch.manual_seed(seed)
    made = MeanFieldNetwork(menus=8, hidden=16, gate_hidden=8).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(stir * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    return made.requires_grad_(False)


def markets(rng, profiles=3, clients=7, budget=3.0):
    bids = scenario("uniform").sample(rng, clients, (profiles,))
    return from_bids(bids, np.full((profiles, 1), budget), 5.0, torch.float64)


def one_by_one(net, market, valuation, epsilon):
    """Each client's own entry of the auction in which it alone deviated, by brute force."""
    sold, paid = torch.empty_like(valuation), torch.empty_like(valuation)
    for client in range(market.clients):
        v, e = market.valuation.clone(), market.epsilon.clone()
        v[:, client], e[:, client] = valuation[:, client], epsilon[:, client]
        moved = replace(market, valuation=v, epsilon=e)
        trade = net.clear(net.encode(moved), moved)
        sold[:, client], paid[:, client] = trade.epsilon[:, client], trade.payment[:, client]
    return sold, paid


@pytest.mark.parametrize("seed", range(5))
def test_deviations_are_exact(seed, rng):
    net, market = network(seed), markets(rng)
    v = torch.tensor(rng.random((3, 7)))
    e = market.epsilon * torch.tensor(rng.uniform(0.2, 1, (3, 7)))
    answered = net.deviate(net.encode(market), market, v, e, torch.arange(7))
    sold, paid = one_by_one(net, market, v, e)
    torch.testing.assert_close(answered.epsilon, sold, rtol=0, atol=1e-11)
    torch.testing.assert_close(answered.payment, paid, rtol=0, atol=1e-11)


def test_deviations_of_some_clients_and_several_tries_at_once(rng):
    net, market = network(), markets(rng)
    who = torch.tensor([5, 1])
    v, e = torch.tensor(rng.random((4, 3, 2))), market.epsilon[:, who].expand(4, 3, 2)
    answered = net.deviate(net.encode(market), market, v, e, who)
    assert answered.epsilon.shape == (4, 3, 2)
    alone = net.deviate(net.encode(market), market, v[2], e[2], who)
    torch.testing.assert_close(answered.payment[2], alone.payment)


@pytest.mark.parametrize("budget", [0.01, 3.0, 500.0])
def test_pay_covers_cost_and_stays_within_the_budget(budget, rng):
    net, market = network(1, stir=1.5), markets(rng, budget=budget)
    trade = net.clear(net.encode(market), market)
    assert (trade.utility(market.valuation) >= -1e-12).all()
    assert (trade.payment.sum(-1) <= budget * (1 + 1e-12)).all()
    assert (trade.epsilon <= market.epsilon).all()


def test_the_unit_of_money_does_not_matter(rng):
    net, market = network(), markets(rng)
    cents = from_bids_like(market, 100.0)
    here, there = net.clear(net.encode(market), market), net.clear(net.encode(cents), cents)
    torch.testing.assert_close(here.epsilon, there.epsilon)
    torch.testing.assert_close(here.payment * 100, there.payment)


def from_bids_like(market, factor):
    return replace(market, valuation=market.valuation * factor, budget=market.budget * factor)


def test_chunked_rows_are_the_same_rows(rng, monkeypatch):
    monkeypatch.setattr(mfg_regretnet, "CHUNK_ROWS", 5)
    net, market = network(), markets(rng)
    whole, chunked = net.encode(market), mfg_regretnet.encode_in_chunks(net, market)
    torch.testing.assert_close(whole.share, chunked.share)
    torch.testing.assert_close(whole.markup, chunked.markup)


def test_the_networks_have_these_numbers_of_weights():
    """The paper says "approximately 50K" for three hidden layers of 128 units."""
    assert sum(p.numel() for p in MeanFieldNetwork().parameters()) == 42_132
    assert sum(p.numel() for p in LiteralNetwork().parameters()) == 34_562


def test_first_order_sums_agree_with_exact_ones_as_one_over_n_squared(rng):
    """The literal network's training deviations, against auctions run one by one, at N and at 4 N."""
    torch.manual_seed(3)
    net = LiteralNetwork(hidden=16).double().requires_grad_(False)

    def error(clients):
        market = markets(np.random.default_rng(5), profiles=6, clients=clients, budget=0.1 * clients)
        v = torch.tensor(np.random.default_rng(6).random((6, clients)))
        e = market.epsilon * 0.5
        answered = net.deviate(net.encode(market), market, v, e, torch.arange(clients))
        sold, paid = one_by_one(net, market, v, e)
        # Relative to the size of the figure: ε shares are of order 1/N themselves.
        return (
            float(((answered.epsilon - sold) / sold).abs().mean()),
            float(((answered.payment - paid) / paid).abs().mean()),
        )

    small, large = error(16), error(128)
    for before, after in zip(small, large, strict=True):
        slope = np.log(before / after) / np.log(128 / 16)
        assert 1.7 < slope < 2.5
