"""What an auction network may be: the contract, what is made of its answers, and its deviations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import privmarket as pm
from privmarket.errors import ConfigurationError
from privmarket.market._attacks import QUICK
from privmarket.mechanisms import resolve
from privmarket.mechanisms.learned import AuctionNetwork, Trade, keep_promises, network_mechanism
from privmarket.mechanisms.learned._learned_mechanism import NetworkMechanism
from privmarket.mechanisms.learned._markets import from_bids
from privmarket.mechanisms.learned._regretformer import AttentionNetwork
from privmarket.mechanisms.learned._weights import Weights


class Greedy(AuctionNetwork):
    """Sells twice what is offered, for half of what it costs or for the whole budget each."""

    def __init__(self, generous: bool = False) -> None:
        super().__init__()
        self.generous = generous
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, markets):
        sold = 2 * self.weight * markets.epsilon
        pay = markets.budget.expand_as(sold) if self.generous else 0.5 * markets.valuation * sold
        return Trade(sold, pay)


class Rows(AuctionNetwork):
    """One layer per client and a mean over clients: small, permutation equivariant, and all clients matter."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.width = width
        self.embed = nn.Linear(4, width)
        self.head = nn.Linear(width, 2)

    def forward(self, markets):
        rows = torch.tanh(self.embed(markets.features()))
        share, markup = torch.sigmoid(self.head(rows - rows.mean(-2, keepdim=True))).unbind(-1)
        sold = share * markets.epsilon
        return Trade(sold, (markets.valuation + 3 * markets.unit * markup) * sold)


def market(clients=7, markets=3, seed=0, budget=2.0):
    bids = pm.scenario("uniform").sample(np.random.default_rng(seed), clients, (markets,))
    return from_bids(bids, np.full((markets, 1), budget), 5.0, torch.float64)


@pytest.mark.parametrize("generous", [False, True])
def test_whatever_a_network_answers_is_cut_to_what_an_auction_may_do(generous):
    rule = resolve(network_mechanism(Greedy))
    rule._networks[torch.float64] = Greedy(generous).double().requires_grad_(False)
    types = pm.scenario("uniform").sample(np.random.default_rng(1), 9, (20,))
    outcome = rule.run(types, 3.0)
    assert (outcome.epsilon <= types.epsilon * (1 + 1e-12)).all()
    assert (outcome.payment >= types.valuation * outcome.epsilon * (1 - 1e-12)).all()
    assert (outcome.payment.sum(-1) <= 3.0).all()
    assert (outcome.epsilon > 0).any()


def test_the_uncut_answer_would_have_broken_every_promise():
    drawn = market()
    raw, cut = Greedy().double()(drawn), Greedy(True).double()(drawn)
    assert (raw.epsilon > drawn.epsilon).all()
    assert (raw.payment < drawn.valuation * raw.epsilon).all()
    assert (cut.payment.sum(-1) > drawn.budget[:, 0]).all()


def test_an_answer_that_keeps_all_promises_is_left_as_it_is():
    drawn = market(budget=50.0)
    good = Trade(0.5 * drawn.epsilon, 0.5 * drawn.epsilon * (drawn.valuation + 0.1))
    kept = keep_promises(good, drawn)
    torch.testing.assert_close(kept.epsilon, good.epsilon, rtol=0, atol=0)
    torch.testing.assert_close(kept.payment, good.payment)


@pytest.mark.parametrize("network_class", [Rows, AttentionNetwork])
def test_deviations_are_auctions_in_which_one_client_reports_something_else(network_class):
    torch.manual_seed(0)
    network = network_class().double()
    drawn = market()
    who = torch.tensor([1, 4])
    v = torch.rand(5, 3, 2, dtype=torch.float64)
    e = drawn.epsilon[:, who] * torch.rand(5, 3, 2, dtype=torch.float64)
    with torch.no_grad():
        answer = network.deviate(network.encode(drawn), drawn, v, e, who)
        for tried in range(5):
            for place, client in enumerate(who.tolist()):
                valuation, epsilon = drawn.valuation.clone(), drawn.epsilon.clone()
                valuation[:, client], epsilon[:, client] = v[tried, :, place], e[tried, :, place]
                alone = type(drawn)(valuation, epsilon, drawn.data_size, drawn.accuracy, drawn.budget)
                trade = network.clear(network.encode(alone), alone)
                torch.testing.assert_close(answer.epsilon[tried, :, place], trade.epsilon[:, client])
                torch.testing.assert_close(answer.payment[tried, :, place], trade.payment[:, client])


@pytest.mark.filterwarnings("ignore::privmarket.mechanisms.learned.OutsideTraining")
@pytest.mark.parametrize("clients", [2, 7, 40])
def test_attention_does_not_care_about_the_order_of_clients(clients, rng):
    rule = pm.mechanism("regretformer")
    types = pm.scenario("uniform").sample(rng, clients)
    order = rng.permutation(clients)
    moved = pm.Bids(types.valuation[order], types.epsilon[order])
    one = rule.run(types, clients / 2)
    other = rule.run(moved, clients / 2)
    np.testing.assert_allclose(other.epsilon, one.epsilon[order], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(other.payment, one.payment[order], rtol=1e-9, atol=1e-12)


def test_attention_certifies_its_regret():
    """The bound by slopes lies above what an attack finds, for a small attention network."""
    rule = _small_attention()
    types = pm.scenario("uniform").sample(np.random.default_rng(2), 3)
    found = rule.certify(types, 1.0, 0.2)
    attacked = QUICK(rule, types, 1.0, np.random.default_rng(0)).gain
    assert (found.upper >= found.lower).all()
    assert (found.upper >= attacked - 1e-9).all()


def _small_attention():
    torch.manual_seed(3)
    network = AttentionNetwork(width=4, heads=1, blocks=1, menus=4)
    arrays = {name: t.detach().numpy() for name, t in network.state_dict().items()}
    made = type("Small", (NetworkMechanism,), {"name": "small", "network_class": AttentionNetwork})
    facts = {"network": network.settings(), "seed": 3, "epsilon_max": 5.0}
    return made(weights=Weights("small", arrays, facts))


class Forgetful(AuctionNetwork):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(4, width)

    def forward(self, markets):
        return Trade(markets.epsilon, markets.epsilon)


class WrongShape(Rows):
    def forward(self, markets):
        return Trade(markets.epsilon.sum(-1), markets.epsilon)


class NoTrade(Rows):
    def forward(self, markets):
        return markets.epsilon


class NeedsWidth(AuctionNetwork):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width


@pytest.mark.parametrize(
    ("network_class", "message"),
    [
        (Forgetful, "does not keep its argument 'width'"),
        (WrongShape, r"epsilon has shape \(.*\) where the markets have"),
        (NoTrade, "forward returned Tensor"),
        (NeedsWidth, "cannot be made"),
    ],
)
def test_a_network_that_breaks_the_contract_is_told_how(network_class, message):
    with pytest.raises(ConfigurationError, match=message):
        pm.train(network_class, distribution="uniform", clients=4, steps=1, rows=16, progress=False)


def test_a_network_is_a_rule_wherever_one_is_taken():
    report = pm.audit(Rows, scenario="uniform", clients=4, budget=2.0, profiles=1, attack="quick")
    assert report.mechanism == "Rows:untrained"  # no weights were given
    assert report.broken == ()
    assert report.regret.maximum_share > 0.01
