"""The loop: resuming changes nothing, multipliers steer, mean-field terms do what they say."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch

import privmarket as pm
from privmarket.errors import ConfigurationError
from privmarket.market._bids import Bids
from privmarket.market._distributions import EmpiricalDistribution, scenario
from privmarket.mechanisms.learned._learned_mechanism import OutsideTraining
from privmarket.mechanisms.learned._losses import (
    Alignment,
    Baseline,
    Critic,
    Multipliers,
    Steering,
    bellman_loss,
    mean_field_payment,
)
from privmarket.mechanisms.learned._markets import MarketSampler, group
from privmarket.mechanisms.learned._mfg_regretnet import MeanFieldNetwork
from privmarket.mechanisms.learned._misreports import Misreports, worst_group_excess
from privmarket.mechanisms.learned._recipes import SEATS, MisreportSearch, Recipe, market_size, recipe
from privmarket.mechanisms.learned._regretnet import RegretNet
from privmarket.mechanisms.learned._session import (
    checkpoint_path,
    copied,
    load_checkpoint,
    run_recipe,
    save_checkpoint,
)
from privmarket.mechanisms.learned._trainer import mechanism_class, new_trainer
from privmarket.mechanisms.learned._weights import WeightsError

LAWS = [scenario("uniform"), scenario("lognormal")]
SMALL = Recipe(
    "mfg-regretnet",
    scenarios=("uniform", "lognormal"),
    clients=(5, 30),
    steps=12,
    rows=64,
    network={"menus": 4, "hidden": 8, "gate_hidden": 8},
    attack=MisreportSearch(rows=32),
    alignment=Alignment(resamples=3, anneal_steps=4),
)
VARIANTS = {
    "default": SMALL,
    "without mean field": SMALL.with_settings({"network.mean_field": False, "alignment.weight": 0.0}),
    "critic": replace(SMALL, baseline=Baseline(mixing=0.5)),
    "pool and ascent": replace(SMALL, pool=3, attack=MisreportSearch(kind="ascent", steps=4, rows=32)),
    "seated": replace(SMALL, mechanism="regretnet", network={"seats": 6, "hidden": 8}, clients=(3, 6)),
    "concatenated with b_MFG, three selected": replace(
        SMALL,
        mechanism="regretnet",
        network={"seats": 6, "hidden": 8, "population_row": True, "selected": 3},
        clients=(3, 6),
    ),
    "levels": replace(
        SMALL, mechanism="dm-regretnet", network={"seats": 6, "levels": 3, "hidden": 8}, clients=(3, 6)
    ),
    "literal": replace(SMALL, mechanism="mfg-regretnet:literal", network={"hidden": 8}, objective="revenue"),
    "literal levels": replace(SMALL, mechanism="mfg-regretnet:literal", network={"hidden": 8, "levels": 3}),
}


def parameters(trainer):
    return torch.cat([p.detach().reshape(-1) for p in trainer.network.parameters()])


@pytest.mark.parametrize("name", VARIANTS)
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(name, tmp_path):
    recipe = replace(VARIANTS[name], steps=8)
    straight = new_trainer(recipe, LAWS)
    straight.run(lambda progress: None)
    first = new_trainer(recipe, LAWS)
    first.run(lambda progress: None, until=5)
    save_checkpoint(tmp_path / "c", first, copied(first, {"seconds": 1.0}))
    second = new_trainer(recipe, LAWS)
    assert load_checkpoint(tmp_path / "c", second) == {"seconds": 1.0}
    second.run(lambda progress: None)
    assert torch.equal(parameters(straight), parameters(second))
    assert not torch.equal(parameters(first), parameters(second))
    assert torch.isfinite(parameters(second)).all()


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    run = new_trainer(SMALL, LAWS)
    save_checkpoint(tmp_path / "c", run, copied(run, {}))
    with pytest.raises(WeightsError, match="other settings"):
        load_checkpoint(tmp_path / "c", new_trainer(replace(SMALL, seed=1), LAWS))


def test_a_killed_session_goes_on_and_ends_with_weights(tmp_path):
    out = tmp_path / "w.safetensors"

    def interrupt(progress):
        if progress.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_recipe(SMALL, LAWS, out, interrupt)
    assert checkpoint_path(out).exists()
    assert not out.exists()
    done = run_recipe(SMALL, LAWS, out)
    assert (done.resumed_at, done.steps) == (4, 12)
    assert out.exists()
    assert done.curve.read_text().startswith("step,objective,regret")


def test_recipes_survive_their_text_form():
    for name in ("mfg-regretnet", "regretnet", "dm-regretnet", "mfg-regretnet:literal"):
        assert Recipe.from_json(recipe(name).to_json()) == recipe(name)
    with pytest.raises(ConfigurationError, match="unknown keys"):
        Recipe.from_json('{"mechanism": "x", "colour": 1}')


@pytest.mark.parametrize("clients", [2, 10, 31, 100, 999])
def test_groups_of_any_larger_market_are_of_a_trained_size(clients):
    changes = market_size(recipe("regretnet"), clients)
    (low, high), seats = changes["clients"], changes["network"]["seats"]
    assert high == seats <= SEATS
    for others in (clients, clients + 1, 2 * clients, 5000):
        taken = group(MarketSampler(LAWS[:1], (others, others), (1, 1)).draw(np.random.default_rng(0))[0], seats)
        assert taken.present.sum(-1).min() >= low


def test_training_for_one_market_serves_it_without_a_warning(tmp_path):
    """What counts as trained for is what the drawn markets were, not the mean of their law."""
    chosen = replace(VARIANTS["seated"], clients=(5, 10), budget_per_client=(0.4, 0.625), steps=1)
    run_recipe(replace(chosen, network={"seats": 10, "hidden": 8}), LAWS[:1], tmp_path / "w")
    rule = RegretNet(weights=tmp_path / "w")
    types = LAWS[0].sample(np.random.default_rng(1), 10, (50,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rule.run(types, 5.0)
    with pytest.warns(OutsideTraining):
        rule.run(types, 50.0)


def test_many_markets_of_the_trained_kind_raise_no_warning():
    """Among thousands of small markets some lie beyond every market that training drew."""
    made = pm.train(
        "regretnet", distribution="uniform", clients=6, budget=3.0, steps=1, rows=60, progress=False,
        settings={"network.hidden": 8},
    )  # fmt: skip
    types = pm.scenario("uniform").sample(np.random.default_rng(1), 6, (5000,))
    _, high = made.mechanism.facts["trained_for"]["budget_over_valuations"]
    relative = 0.5 / types.valuation.mean(-1)
    assert relative.max() > high
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.mechanism.run(types, 3.0)
        for market in np.argsort(relative)[::250]:
            made.mechanism.run(types[market], 3.0)
    with pytest.warns(OutsideTraining, match="trained on"):
        made.mechanism.run(types, 30.0)


def test_settings_change_a_recipe_by_dotted_names():
    changed = SMALL.with_settings(
        {
            "alignment.weight": 0,
            "baseline.mixing": 0.5,
            "attack.kind": "ascent",
            "network.mean_field": False,
            "steering.regret_budget": [0.01] * 5,
            "steps": 3,
        }
    )
    assert (changed.alignment.weight, changed.baseline.mixing, changed.steps) == (0, 0.5, 3)
    assert changed.attack == replace(SMALL.attack, kind="ascent")
    assert changed.network == {**SMALL.network, "mean_field": False}
    assert changed.steering.regret_budget == (0.01,) * 5
    assert Recipe.from_json(changed.to_json()) == changed


@pytest.mark.parametrize(
    "name", ["alignment.wait", "stepz", "alignment", "mechanism", "steps.x", "clients.0", "network"]
)
def test_unknown_settings_are_refused(name):
    with pytest.raises(ConfigurationError, match="no setting"):
        SMALL.with_settings({name: 1})


def test_the_name_of_a_group_is_answered_with_what_is_inside():
    with pytest.raises(ConfigurationError) as caught:
        SMALL.with_settings({"baseline": 1})
    names = ("mixing", "source", "critic_weight", "discount_rate", "frozen_after")
    inside = ", ".join(f"baseline.{name}" for name in names)
    assert caught.value.hint == f"baseline is a group; set one of: {inside}"


def test_without_the_mean_field_the_population_picks_no_menu():
    """Two populations, one network: with b_MFG the gates differ, without it they are the same."""
    rng = np.random.default_rng(0)
    market, _ = MarketSampler(LAWS[:1], (8, 8), (0.5, 0.5), rows=16).draw(rng)
    for mean_field in (True, False):
        torch.manual_seed(0)
        net = MeanFieldNetwork(menus=6, hidden=8, gate_hidden=8, mean_field=mean_field)
        gates, _ = net.gates(net.population(net.encode(market)), 8)
        assert torch.equal(gates[0], gates[1]) is not mean_field


def test_three_past_bids_are_too_few(tmp_path):
    law = EmpiricalDistribution("tiny", Bids([0.1, 0.2, 0.3], [1.0, 1.0, 1.0]))
    with pytest.raises(ConfigurationError, match="3 past bids are too few"):
        run_recipe(SMALL, [law], tmp_path / "w")


def test_multipliers_rise_above_the_budget_and_sink_below_it():
    multipliers = Multipliers(1, Steering(regret_budget=(0.01, 0.01), first=1.0, rate=0.1))
    high, low = torch.tensor([0.5, 0.0]), torch.tensor([0, 1])
    for step in range(20):
        multipliers.update(high, low, step)
    assert multipliers.value[0] > 2
    assert 0.3 < multipliers.value[1] < 1


def test_without_a_regret_budget_multipliers_only_ever_rise():
    steering = Steering(regret_budget=(0.0,), first=1.0, penalty=2.0, growth=1.5, growth_every=1)
    multipliers = Multipliers(1, steering)
    multipliers.update(torch.tensor([0.25]), torch.tensor([0]), step=1)
    assert multipliers.value[0] == pytest.approx(1 + 2.0 * 1.5 * 0.25)
    loss = multipliers.loss(torch.tensor([0.25]), torch.tensor([0]), step=0)
    assert float(loss) == pytest.approx(1.75 * 0.25 + 0.5 * 2.0 * 0.25**2)


def test_mean_field_payment_of_identical_clients_is_their_payment(rng):
    """Opponents drawn from identical clients are the same opponents: no spread, and the payment itself."""
    sampler = MarketSampler(LAWS[:1], (8, 8), (0.5, 0.5), rows=16, public_features=False)
    market, _ = sampler.draw(rng)
    prices, caps = torch.full_like(market.valuation, 0.2), torch.full_like(market.epsilon, 2.0)
    same = replace(market, valuation=prices, epsilon=caps)
    torch.manual_seed(0)
    net = MeanFieldNetwork(menus=4, hidden=8, gate_hidden=8)
    paid = net.clear(net.encode(same), same).payment.detach()
    mean, spread = mean_field_payment(net, same, torch.arange(8), 4, torch.Generator().manual_seed(0))
    torch.testing.assert_close(mean, paid, rtol=1e-4, atol=1e-6)
    assert float(spread.max()) < 1e-5


def test_the_critic_learns_the_discounted_sum_of_a_constant_gain(rng):
    """If every report gains g per round, Φ = g/(1 − e^{−ρ})."""
    market, _ = MarketSampler(LAWS[:1], (8, 8), (0.5, 0.5), rows=64).draw(rng)
    torch.manual_seed(0)
    critic = Critic(16)
    optimizer = torch.optim.Adam(critic.parameters(), lr=0.02)
    tried = Misreports(market.valuation[None], market.epsilon[None])
    gain = torch.full_like(tried.valuation, 0.5 * 0.3)  # B/N is 0.5, so 0.3 in its unit
    for _ in range(300):
        loss = bellman_loss(critic, market, market.valuation, market.epsilon, tried, gain, rate=1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    value = critic(market, market.valuation, market.epsilon).mean()
    assert value.item() == pytest.approx(0.3 / (1 - np.exp(-1.0)), rel=0.05)


def test_training_lowers_regret():
    """A short run on one law from a stirred start: regret falls a lot, value does not collapse."""
    settings = replace(
        SMALL,
        scenarios=("uniform",),
        clients=(20, 20),
        budget_per_client=(0.5, 0.5),
        steps=100,
        rows=100,
        attack=MisreportSearch(rows=50),
        alignment=Alignment(weight=0.0),
        network={"menus": 8, "hidden": 32, "gate_hidden": 16},
        steering=Steering(regret_budget=(0.002,) * 5, first=10.0),
    )
    run = new_trainer(settings, LAWS[:1])
    with torch.no_grad():
        for parameter in run.network.row.parameters():
            parameter.add_(0.15 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    seen = []
    run.run(seen.append)
    early, late = np.mean([p.regret for p in seen[:10]]), np.mean([p.regret for p in seen[-10:]])
    assert late < 0.5 * early
    assert np.mean([p.objective for p in seen[-10:]]) > 0.7


def test_the_literal_recipe_is_the_papers():
    """200 × 25 steps, 64 profiles, R = 25 of 0.01 from uniform starts, ρ from 1 to 100, γ = 10."""
    chosen = recipe("mfg-regretnet:literal")
    assert (chosen.steps, chosen.profiles, chosen.learning_rate) == (200 * 25, 64, 1e-3)
    assert (chosen.attack.steps, chosen.attack.step_size, chosen.attack.start) == (25, 0.01, "uniform")
    assert (chosen.individual_rationality, chosen.hinge, chosen.objective) == (10.0, "offered", "revenue")
    assert (chosen.steering.penalty, chosen.steering.growth) == (1.0, 1.5)
    assert chosen.steering.penalty_at(chosen.steps) == 100.0


def test_batches_hold_as_many_profiles_as_asked_for():
    drawn, _ = MarketSampler(LAWS, (5, 30), (0.5, 0.5), profiles=9).draw(np.random.default_rng(0))
    assert drawn.valuation.shape[0] == 9


@pytest.mark.parametrize(("hinge", "short"), [("sold", False), ("offered", True)])
def test_the_hinge_compares_pay_with_the_cost_it_names(hinge, short):
    """A rule that pays its sellers' cost and sells part of the offer is short of the offer's cost only."""
    trainer = new_trainer(replace(SMALL, hinge=hinge, individual_rationality=1.0), LAWS)
    assert (trainer.advance().shortfall > 1e-3) == short


@pytest.mark.parametrize("start", ["uniform", "truth", "others"])
def test_an_ascent_starts_where_the_recipe_says(start):
    trainer = new_trainer(replace(SMALL, attack=MisreportSearch(kind="ascent", start=start, rows=32)), LAWS)
    v, cap = torch.rand(4, 6) + 0.1, torch.rand(4, 6) + 0.1
    tried = Misreports(torch.full((12, 4, 6), 0.25), cap.expand(12, 4, 6))
    found = trainer._start(tried, v, cap)
    if start == "truth":
        assert torch.equal(found.valuation, v)
    elif start == "others":
        assert torch.equal(found.valuation, tried.valuation[5])
    else:
        assert (found.valuation <= v.amax(-1, keepdim=True)).all()
        assert (found.epsilon <= cap).all()
        assert found.valuation.std() > 0.05


def test_a_frozen_critic_stops_moving_and_only_then_counts():
    trainer = new_trainer(replace(SMALL, baseline=Baseline(mixing=0.5, frozen_after=3)), LAWS)
    weights = []
    for _ in range(6):
        trainer.advance()
        weights.append(torch.cat([p.detach().reshape(-1) for p in trainer.critic.parameters()]).clone())
    assert not torch.equal(weights[0], weights[2])
    assert trainer.recipe.baseline.mixing_at(2) == 0.0
    assert trainer.recipe.baseline.mixing_at(3) == 0.5
    assert torch.equal(weights[2], weights[5])


def test_the_baselined_regret_takes_the_largest_advantage():
    """Eq. (mfg-regret-vf) has the maximum over u − Φ, not Φ at the report with the largest u."""
    trainer = new_trainer(replace(SMALL, baseline=Baseline(mixing=0.5)), LAWS)
    markets, _, _ = trainer._draw()
    who = torch.arange(3)
    v, cap = markets.valuation[:, who], markets.epsilon[:, who]
    outside = trainer.network.deviations(trainer.network.encode(markets), markets, who)
    tried = Misreports(torch.stack([v * f for f in (0.5, 0.9, 1.1, 2.0)]), cap.expand(4, *cap.shape))
    found = Misreports(v, cap)
    lie, moved = trainer._best_advantage(outside, markets, tried, found, v, cap)
    with torch.no_grad():
        best = outside(lie.valuation, lie.epsilon).utility(v) - moved
        for at in range(4):
            other = trainer._worth(markets, tried.valuation[at], cap) - trainer._worth(markets, v, cap)
            assert (outside(tried.valuation[at], cap).utility(v) - other <= best + 1e-6).all()


def test_group_regularised_regret_is_the_worst_fifths_excess():
    regret = torch.tensor([[0.0, 0.0, 0.0, 0.0, 5.0, 5.0, 0.0, 0.0, 0.0, 0.0]])
    valuation = torch.arange(10.0)[None]
    assert worst_group_excess(regret, valuation).item() == pytest.approx(5.0 - 1.0)
    assert worst_group_excess(torch.ones(1, 10), valuation).item() == pytest.approx(0.0)
    trainer = new_trainer(replace(SMALL, group_weight=1.0), LAWS)
    assert np.isfinite(trainer.advance().regret)


def test_at_most_k_clients_are_selected():
    chosen = VARIANTS["concatenated with b_MFG, three selected"]
    trainer = new_trainer(chosen, LAWS)
    markets = trainer.network.prepare(trainer._draw()[0])
    with torch.no_grad():
        sold = trainer.network.clear(None, markets).epsilon
    assert ((sold > 0).sum(-1) <= 3).all()
    assert (sold > 0).any()


def test_a_recipe_that_refers_to_a_solved_game_says_what_to_give():
    with pytest.raises(ConfigurationError, match="no solved game was given") as refused:
        new_trainer(replace(SMALL, baseline=Baseline(source="solved")), LAWS)
    hint = refused.value.hint
    module, name = re.search(r"see ([\w.]+)\.(\w+)$", hint).groups()
    wanted = {method for method in vars(getattr(import_module(module), name)) if not method.startswith("_")}
    assert wanted == set(re.findall(r"`(\w+)`", hint)) == {"payment", "value"}


@pytest.mark.parametrize("name", ["pac", "mfg-menunet", "nobody"])
def test_a_rule_without_a_network_cannot_be_trained(name):
    with pytest.raises(ConfigurationError, match="not a mechanism with a network") as refused:
        mechanism_class(name)
    assert (
        refused.value.hint
        == "choose one of: mfg-regretnet, mfg-regretnet:literal, regretnet, dm-regretnet, regretformer"
    )
