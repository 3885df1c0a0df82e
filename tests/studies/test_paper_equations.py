"""Items of docs/fidelity.md against the paper's equations, written out a second time without the product's code.

`@item(n)` says which items a test is about; the page lists the same numbers.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import optimize, stats

import privmarket as pm
from privmarket.market._distributions import scenario
from privmarket.mechanisms.learned._literal import LiteralNetwork
from privmarket.mechanisms.learned._losses import (
    Alignment,
    Critic,
    Multipliers,
    Steering,
    alignment_loss,
    bellman_loss,
    mean_field_payment,
)
from privmarket.mechanisms.learned._markets import Markets, Trade
from privmarket.mechanisms.learned._misreports import Misreports, ascend, uniform_reports
from privmarket.mechanisms.learned._recipes import Recipe, recipe
from privmarket.mechanisms.learned._weights import load, shipped
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._gaussian import epsilon_of, literal_noise_multiplier, mu_of
from privmarket.rounds import Award, Offer, Phase, Round, Terms
from privmarket.simulation._bidding import measured_types
from privmarket.simulation._config import FederationConfig
from privmarket.simulation._server import seller_weights
from privmarket.tasks import dirichlet_sizes_partition
from privmarket_studies.reproduce import rq3

PAGE = Path(__file__).parents[2] / "docs/fidelity.md"
CHECKED: set[int] = set()


def item(*numbers: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Names the items that a test is about."""
    CHECKED.update(numbers)
    return lambda test: test


def draw(seed: int, clients: int) -> pm.Bids:
    rng = np.random.default_rng(seed)
    return pm.Bids(rng.random(clients), rng.uniform(1.0, 5.0, clients), data_size=rng.uniform(10, 500, clients))


def markets(seed: int, profiles: int, clients: int) -> Markets:
    g = torch.Generator().manual_seed(seed)
    v, u = (torch.rand(profiles, clients, generator=g, dtype=torch.float64) for _ in range(2))
    e = 0.1 + 4.9 * torch.rand(profiles, clients, generator=g, dtype=torch.float64)
    size = torch.ones(profiles, clients, dtype=torch.float64)
    return Markets(v, e, size, u, torch.full((profiles, 1), clients / 2.0, dtype=torch.float64))


def test_the_page_lists_the_items_that_are_checked_here():
    sentence = re.search(r"written out a second time .*?: items ([0-9, –]+)\.", PAGE.read_text(encoding="utf-8"))
    assert sentence is not None, "docs/fidelity.md no longer says which items are checked here"
    listed: set[int] = set()
    for part in sentence[1].split(", "):
        first, _, last = part.partition("–")
        listed.update(range(int(first), int(last or first) + 1))
    assert listed == CHECKED


@item(1, 2, 3)
def test_utility_is_pay_minus_cost_and_welfare_is_their_sum():
    bids = draw(0, 6)
    outcome = pm.mechanism("csra").run(bids, 2.0)
    by_hand = [p - v * e for p, v, e in zip(outcome.payment, bids.valuation, outcome.epsilon, strict=True)]
    np.testing.assert_allclose(outcome.utility(bids), by_hand)
    assert sum(by_hand) == pytest.approx(float(outcome.utility(bids).sum()))


@item(16, 28)
@pytest.mark.parametrize("clients", range(2, 9))
def test_algorithm_1(clients):
    for seed in range(20):
        bids, budget = draw(seed, clients), 0.1 * (seed + 1)
        v = np.sort(bids.valuation)
        fits = [k for k in range(1, clients) if v[k - 1] / (clients - k) <= budget / k]
        k = max(fits, default=0)
        outcome = pm.mechanism("pac:literal").run(bids, budget)
        wins = bids.valuation < (v[k] if k else -1)
        np.testing.assert_allclose(outcome.epsilon, np.where(wins, 1 / (clients - k), 0))
        pay = min(budget / k, v[k] / (clients - k)) if k else 0.0
        np.testing.assert_allclose(outcome.payment, np.where(wins, pay, 0))


@item(20)
def test_the_printed_vcg_row_is_pacs():
    for seed in range(10):
        pac, vcg = (pm.mechanism(name).run(draw(seed, 10), 50.0) for name in ("pac:literal", "vcg:literal"))
        np.testing.assert_allclose(vcg.epsilon, pac.epsilon)
        np.testing.assert_allclose(vcg.payment.sum(), pac.payment.sum())


@item(21)
@pytest.mark.parametrize("seed", range(10))
def test_csra_by_its_definition(seed):
    """q = (ε/Σε)(d/Σd), b = vε, ranked by q/b; largest k with (b/q)_{k+1} Σ_{i≤k} q_i ≤ B; pay (b/q)_{k+1} q_i."""
    bids, budget = draw(seed, 9), 3.0
    q = bids.epsilon / bids.epsilon.sum() * bids.data_size / bids.data_size.sum()
    b = bids.valuation * bids.epsilon
    order = np.argsort(-q / b)
    k = max((k for k in range(9) if (b / q)[order[k]] * q[order[:k]].sum() <= budget), default=0)
    pay = np.zeros(9)
    pay[order[:k]] = (b / q)[order[k]] * q[order[:k]]
    outcome = pm.mechanism("csra").run(bids, budget)
    np.testing.assert_allclose(outcome.payment, pay)
    np.testing.assert_allclose(outcome.epsilon, np.where(pay > 0, bids.epsilon, 0))
    literal = pm.mechanism("csra:literal").run(bids, budget)
    np.testing.assert_allclose(literal.payment, pay)
    np.testing.assert_allclose(literal.epsilon, np.where(pay > 0, 1 / (9 - k), 0))


@item(23)
def test_literal_pricing_splits_the_budget_by_epsilon():
    bids = draw(3, 5)
    outcome = pm.mechanism("mfg-pricing:literal").run(bids, 7.0)
    np.testing.assert_allclose(outcome.payment, [7.0 * e / sum(bids.epsilon) for e in bids.epsilon])


@item(26)
def test_jsam_is_the_minimum_of_the_weighted_noise():
    bids, budget = draw(5, 4), 1.5
    w = bids.data_size / bids.data_size.sum()
    found = optimize.minimize(
        lambda e: float(np.sum(w**2 / e**2)),
        np.full(4, 0.3),
        bounds=[(1e-3, cap) for cap in bids.epsilon],
        constraints={"type": "ineq", "fun": lambda e: budget - bids.valuation @ e},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    np.testing.assert_allclose(pm.mechanism("jsam").run(bids, budget).epsilon, found.x, rtol=1e-3)


@item(32)
def test_measured_valuations_follow_the_equation():
    labels = np.random.default_rng(0).integers(0, 3, 600)
    parts = [np.arange(0, 100), np.arange(100, 400), np.arange(400, 600)]
    config = FederationConfig(
        dataset="digits", clients=3, valuations="measured", valuation_weights="0,2,3", aggregation="epsilon"
    )
    holders = np.repeat(["0", "1", "2"], [100, 300, 200])
    task = pm.Task.from_arrays(np.zeros((600, 1)), labels, clients=holders, classes=3)
    types = measured_types(config, 0, task)
    overall = np.bincount(labels, minlength=3) / 600
    for client, part in enumerate(parts):
        mix = np.bincount(labels[part], minlength=3) / part.size
        distance = 0.5 * np.abs(mix - overall).sum()
        assert types.valuation[client] == pytest.approx(2 * part.size / 200 + 3 * distance)


@item(33, 34, 35)
@pytest.mark.parametrize(
    ("distribution", "valuation", "epsilon"),
    [
        ("uniform", stats.uniform(0, 1), stats.uniform(0.1, 4.9)),
        ("lognormal", stats.lognorm(0.5), stats.uniform(0.1, 4.9)),
        ("bimodal", stats.uniform(0, 1), None),
    ],
)
def test_distributions_of_table_ii(distribution, valuation, epsilon):
    """Kolmogorov–Smirnov at a false-alarm rate of 1 in 1,000, fixed seed."""
    bids = scenario(distribution).sample(np.random.default_rng(11), 20_000)
    assert stats.kstest(bids.valuation, valuation.cdf).pvalue > 1e-3
    if epsilon is not None:
        assert stats.kstest(bids.epsilon, epsilon.cdf).pvalue > 1e-3
        return
    small = bids.epsilon < 1
    assert abs(small.mean() - 0.5) < 3.3 * 0.5 / 20_000**0.5
    assert stats.kstest(bids.epsilon[small], stats.uniform(0.1, 0.4).cdf).pvalue > 1e-3
    assert stats.kstest(bids.epsilon[~small], stats.uniform(2, 3).cdf).pvalue > 1e-3


@item(36)
def test_budgets_of_table_ii():
    assert rq3.BUDGETS == (10, 50, 100, 200)
    assert rq3.OTHER_DISTRIBUTIONS == {"bimodal": (50, 100), "lognormal": (100,)}


@item(38, 39)
def test_both_printed_noise_scales():
    epsilon, delta = np.array([0.5, 2.0]), 0.01
    algorithm = np.sqrt(2 * math.log(1.25 / delta)) / epsilon
    np.testing.assert_allclose(literal_noise_multiplier(epsilon, delta), algorithm)
    defined = literal_noise_multiplier(epsilon, delta, form="definition")
    np.testing.assert_allclose(defined, 2 * math.sqrt(math.log(1.25 / delta)) / epsilon)
    np.testing.assert_allclose(defined / algorithm, math.sqrt(2))


@item(42)
@pytest.mark.parametrize(("sold", "stated"), [(0.1, 1.8), (5.0, 192.0)])
def test_two_hundred_sales_compose_to_what_the_page_says(sold, stated):
    """Gaussian releases of μ compose to μ√200; δ(ε; μ) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) by [BalleWang2018]."""

    def delta(epsilon: float, mu: float) -> float:
        tail = epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu)
        return float(stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(tail))

    one = optimize.brentq(lambda mu: delta(sold, mu) - 1e-5, 1e-3, 10)
    assert float(mu_of(sold, 1e-5)) == pytest.approx(one, rel=1e-6)
    total = optimize.brentq(lambda e: delta(e, one * 200**0.5) - 1e-5, 1e-3, 400)
    assert float(epsilon_of(one * 200**0.5, 1e-5)) == pytest.approx(total, rel=1e-6)
    assert total == pytest.approx(stated, rel=0.02)


@item(69, 70, 71, 72, 73)
def test_literal_heads_by_their_equations():
    """Column softmax over clients, ε_out = Σ_j z_ij ε_ij, p_i = Σ_j σ(h_ij) b_ij, cut to the budget."""
    torch.manual_seed(0)
    network, drawn = LiteralNetwork(hidden=8, levels=3).double(), markets(1, 1, 4)
    drawn = Markets(drawn.valuation, drawn.epsilon, drawn.data_size, drawn.accuracy, torch.tensor([[0.5]]).double())
    v, e = drawn.valuation[0], drawn.epsilon[0]
    rows = torch.stack([v, drawn.data_size[0], drawn.accuracy[0], e / 5.0], dim=1)
    money = torch.full((4, 1), 0.5 / 4).double()
    head = network.net(torch.cat([rows, rows.mean(0).expand(4, 4), money], dim=1)).detach().numpy()
    levels = np.array([1 / 3, 2 / 3, 1])
    offered = e.numpy()[:, None] * levels
    z = np.exp(head[:, :3]) / np.exp(head[:, :3]).sum(axis=0)
    pay = (1 / (1 + np.exp(-head[:, 3:])) * v.numpy()[:, None] * offered).sum(axis=1)
    assert pay.sum() > 0.5, "the projection has something to do"
    trade = network.clear(network.encode(drawn), drawn)
    np.testing.assert_allclose(z.sum(axis=0), 1)
    np.testing.assert_allclose(trade.epsilon.detach().numpy()[0], (z * offered).sum(axis=1), rtol=1e-9)
    np.testing.assert_allclose(trade.payment.detach().numpy()[0], pay / max(1, pay.sum() / 0.5), rtol=1e-9)


@item(79)
def test_the_papers_weights_are_proportional_to_epsilon():
    epsilon = {"a": 1.0, "b": 2.0, "c": 5.0}
    offers = {client: Offer(v, 5.0) for client, v in zip(("none", *epsilon), draw(2, 4).valuation, strict=True)}
    awards = {client: Award(sold, PrivacyEvent(1.0), 1) for client, sold in epsilon.items()}
    market = Round(Terms(0, 10, ReleaseFamily(), 5.0), Phase.CLEARED, offers, awards)
    np.testing.assert_allclose(seller_weights(market, awards, "epsilon"), np.array([1, 2, 5]) / 8)


@item(81, 84)
def test_the_augmented_lagrangian_and_its_dual_step():
    steering = Steering(regret_budget=(0.0,), first=2.0, penalty=1.0, growth=1.5, growth_every=10, penalty_max=100)
    multipliers, regret = Multipliers(1, steering), torch.tensor([0.1, 0.3])
    rho, mean = 1.5**2, 0.2
    loss = multipliers.loss(regret, torch.tensor([0, 0]), 25)
    assert float(loss) == pytest.approx(2.0 * mean + rho / 2 * mean**2)
    multipliers.update(regret, torch.tensor([0, 0]), 25)
    assert float(multipliers.value[0]) == pytest.approx(2.0 + rho * mean)
    assert steering.penalty_at(10_000) == 100


@item(87)
def test_a_misreport_moves_the_mean_bid_too():
    """What one client would get, against a whole auction with its report replaced, b_MFG with it."""
    bids, rule = scenario("uniform").sample(np.random.default_rng(4), 12), pm.mechanism("mfg-regretnet")
    reports = pm.Bids(0.8 * bids.valuation, 0.5 * bids.epsilon)
    alone = rule.unilateral(bids, reports, 6.0)
    for i in range(12):
        v, e = bids.valuation.copy(), bids.epsilon.copy()
        v[i], e[i] = reports.valuation[i], reports.epsilon[i]
        whole = rule.run(pm.Bids(v, e), 6.0)
        assert alone.epsilon[i] == pytest.approx(whole.epsilon[i], rel=1e-4)
        assert alone.payment[i] == pytest.approx(whole.payment[i], rel=1e-4)


@item(88, 90)
def test_projected_ascent_by_hand():
    """b ← Π(b + η∇u) from a uniform start, the best point of the path; regret is what it gains over the truth."""
    v, cap = torch.tensor([[0.5, 0.2]]), torch.tensor([[1.0, 2.0]])

    def outcome(valuation: torch.Tensor, epsilon: torch.Tensor) -> Trade:
        return Trade(epsilon, v * epsilon - (valuation - 0.9) ** 2 - (epsilon - 1.5) ** 2)

    start = Misreports(torch.tensor([[0.1, 0.8]]), torch.tensor([[0.5, 0.4]]))
    found = ascend(outcome, start, v, cap, steps=3, step_size=0.1)
    for i in range(2):
        a, e = float(start.valuation[0, i]), float(start.epsilon[0, i])
        for _ in range(3):
            a = max(0.0, a - 0.2 * (a - 0.9))
            e = min(max(e - 0.2 * (e - 1.5), 0.02 * float(cap[0, i])), float(cap[0, i]))
        assert float(found.valuation[0, i]) == pytest.approx(a, rel=1e-5)
        assert float(found.epsilon[0, i]) == pytest.approx(e, rel=1e-5)
    many = uniform_reports(
        torch.full((1, 20_000), 0.7), torch.full((1, 20_000), 2.0), torch.Generator().manual_seed(1)
    )
    assert stats.kstest(many.valuation.numpy().ravel(), stats.uniform(0, 0.7).cdf).pvalue > 1e-3
    assert abs(float(many.epsilon.mean()) - 1.0) < 0.02


@item(92)
def test_the_critics_bellman_target():
    torch.manual_seed(3)
    critic, drawn = Critic(hidden=8).double(), markets(2, 2, 3)
    tried = Misreports(torch.rand(5, 2, 3).double(), torch.rand(5, 2, 3).double())
    gain, per_client = torch.rand(5, 2, 3).double(), 0.5
    loss = bellman_loss(critic, drawn, drawn.valuation, drawn.epsilon, tried, gain, rate=0.7).detach()
    total = 0.0
    with torch.no_grad():
        onward, now = critic(drawn, tried.valuation, tried.epsilon), critic(drawn, drawn.valuation, drawn.epsilon)
    for place in itertools.product(range(2), range(3)):
        worth = [float(gain[c][place]) / per_client + math.exp(-0.7) * float(onward[c][place]) for c in range(5)]
        total += (float(now[place]) - max(worth)) ** 2
    assert float(loss) == pytest.approx(total / 6)


@item(94)
def test_the_mean_field_payment_against_all_opponents():
    """Two clients: the opponent of each is drawn evenly from both, so the mean is over two auctions."""
    torch.manual_seed(5)
    network, drawn = LiteralNetwork(hidden=8).double(), markets(6, 1, 2)
    found, _ = mean_field_payment(network, drawn, torch.arange(2), 4000, torch.Generator().manual_seed(0))
    for i in range(2):
        pays = []
        for other in range(2):
            v, e = drawn.valuation.clone(), drawn.epsilon.clone()
            v[0, 1 - i], e[0, 1 - i] = drawn.valuation[0, other], drawn.epsilon[0, other]
            replaced = replace(drawn, valuation=v, epsilon=e)
            pays.append(network.clear(network.encode(replaced), replaced).payment[0, i].item())
        assert float(found[0, i]) == pytest.approx(sum(pays) / 2, rel=0.03)
    assert Alignment().resamples == 32


@item(95, 96)
def test_the_alignment_loss():
    """Huber of (p̄ − p̃)/(ς + ε_s), weighed by v^γ, plus β times the squared budget moment."""
    torch.manual_seed(7)
    network, drawn = LiteralNetwork(hidden=8).double(), markets(8, 2, 5)
    settings = Alignment(resamples=6, valuation_power=0.7, moment=0.3, huber=0.5)
    trade = Trade(drawn.epsilon, torch.rand(2, 5).double())
    loss = alignment_loss(network, drawn, trade, settings, torch.Generator().manual_seed(9))
    same = torch.Generator().manual_seed(9)
    who = torch.randperm(5, generator=same)
    reference, spread = (t.numpy() for t in mean_field_payment(network, drawn, who, 6, same))
    paid, v = trade.payment[:, who].numpy(), drawn.valuation[:, who].numpy()
    off = (paid - reference) / (spread + 0.05 * 0.5)
    huber = np.where(np.abs(off) < 0.5, 0.5 * off**2, 0.5 * (np.abs(off) - 0.25))
    weight = v**0.7 / (v**0.7).mean()
    moment = (((paid - reference).sum(axis=1)) / 2.5) ** 2
    assert float(loss) == pytest.approx((weight * huber).mean() + 0.3 * moment.mean())


@item(97, 98, 99)
def test_the_literal_recipe_has_the_printed_numbers():
    literal = recipe("mfg-regretnet:literal")
    assert literal.steps == 200 * 25
    assert literal.profiles == 64
    assert (literal.attack.kind, literal.attack.steps, literal.attack.step_size) == ("ascent", 25, 0.01)
    assert literal.attack.start == "uniform"
    assert literal.learning_rate == 1e-3
    assert literal.individual_rationality == 10
    assert (literal.steering.penalty, literal.steering.growth, literal.steering.penalty_max) == (1.0, 1.5, 100.0)
    assert literal.steering.penalty_at(literal.steps) == 100.0, "the schedule gets there"
    assert literal.alignment.weight_at(0) == 0
    assert 1e-2 <= literal.alignment.weight_at(literal.steps) <= 1e-1
    ships = Recipe.from_json(load(shipped("mfg-regretnet"), "mfg-regretnet").facts["recipe"])
    assert ships.alignment.weight_at(ships.steps) == pytest.approx(0.0075)


@item(103)
def test_each_label_is_shared_out_by_a_dirichlet_draw():
    """One label, α = 0.5, many clients: shares have the Dirichlet's mean 1/n and its variance."""
    labels, clients, alpha = np.zeros(20_000, dtype=np.int64), 50, 0.5
    shares = []
    for seed in range(40):
        parts = dirichlet_sizes_partition(labels, clients, alpha, np.random.default_rng(seed))
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(20_000))
        shares += [part.size / 20_000 for part in parts]
    expected = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert np.var(shares) == pytest.approx(expected, rel=0.15)
