"""Plans: what they choose from known outcomes, what they keep, what they refuse; and one real plan on digits."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from privmarket.errors import ConfigurationError, DataError
from privmarket.federated import plan_choices, planning
from privmarket.federated.client_spread import ClientSpread
from privmarket.federated.config import FederationConfig, recommended_training
from privmarket.federated.datasets import load_dataset
from privmarket.federated.plan_choices import Options, rule_choices
from privmarket.federated.plan_runs import PublicProxy, RunFigures, check_proxy, run_cell
from privmarket.federated.planning import Planner
from privmarket.federated.simulation import run
from privmarket.reports.plan_figure import _labels, _round_numbers, plan_figure, write_plan

BASE = FederationConfig(dataset="digits", clients=10, training=recommended_training("digits"))
OPTIONS = Options(rounds=(10, 20), rates=(0.5, 1.0), price_shares=(0.5, 0.9), heterogeneities=(0.3,), seeds=(1, 2))


class Law:
    """Stands for the simulation: accuracy rises with money, is best at 20 rounds, price 0.5 and half the rate."""

    def __init__(self) -> None:
        self.calls: list[FederationConfig] = []

    def __call__(self, config: FederationConfig, proxy: PublicProxy | None) -> RunFigures:
        self.calls.append(config)
        total = config.budget * config.rounds
        accuracy = total / (total + 20) - 0.1 * (config.rounds != 20) - 0.05 * (config.training.server_rate > 0.6)
        accuracy -= 0.2 * (config.mechanism_settings.get("unit_price") != 0.5)
        accuracy += 0.001 * config.seed + 0.2 * (config.mode == "no-noise")
        epsilon = np.inf if config.mode == "no-noise" else total / 10
        return RunFigures(accuracy, 0.9 * total, epsilon, total / 5, 7.0, 0.1)


def test_amounts_below_the_axis_are_plain_numbers():
    assert _labels([14.142, 100.0, 1000.0, 1100.0, 24000.0]) == ["14.1", "100", "1,000", "", "24,000"]


@pytest.fixture
def law(monkeypatch):
    made = Law()
    monkeypatch.setattr(planning, "run_cell", made)
    return made


def test_it_finds_the_best_settings_and_states_figures_of_other_seeds(law, tmp_path):
    plan = Planner(BASE, tmp_path, OPTIONS).for_totals([20.0, 60.0, 180.0])
    assert [point.total for point in plan.points] == [20, 60, 180]
    for point in plan.points:
        assert (point.choice.rounds, point.choice.server_rate) == (20, 0.5)
        assert dict(point.choice.settings) == {"unit_price": 0.5}
        expected = point.total / (point.total + 20) + 0.0015
        assert point.accuracy == pytest.approx(expected)
        assert (point.lowest, point.highest) == pytest.approx((expected - 0.0005, expected + 0.0005))
        assert point.deviation == pytest.approx(0.001 / np.sqrt(2))
        assert point.spent == pytest.approx(0.9 * point.total)
        assert point.pay_per_client == pytest.approx(0.09 * point.total)
        assert point.lifetime_epsilon == pytest.approx(point.total / 10)
    used = {config.measured_on: set() for config in law.calls}
    for config in law.calls:
        used[config.measured_on].add(config.seed)
    assert used == {"validation": {0, 101}, "test": {1, 2}}


def test_a_second_plan_computes_nothing_anew(law, tmp_path):
    first = Planner(BASE, tmp_path, OPTIONS).for_totals([20.0, 60.0])
    calls = len(law.calls)
    again = Planner(BASE, tmp_path, OPTIONS).for_totals([20.0, 60.0])
    assert len(law.calls) == calls == first.computed
    assert (again.computed, again.cells) == (0, first.cells)
    assert again.points == first.points
    victim = next(tmp_path.glob("*.json"))
    victim.write_text("damaged")
    assert Planner(BASE, tmp_path, OPTIONS).for_totals([20.0, 60.0]).computed == 1


def test_the_cheapest_total_for_a_target(law, tmp_path):
    plan = Planner(BASE, tmp_path, OPTIONS).for_target(0.7, [10.0, 40.0, 160.0])
    # total/(total + 20) ≥ 0.7 from 46.5 on: between 40 and 160, twice halved in logarithm.
    assert plan.reached
    assert plan.chosen.total == pytest.approx(np.sqrt(40 * np.sqrt(40 * 160)))
    assert plan.ceiling is None
    assert plan.to_json()["chosen"]["total"] == plan.chosen.total


def test_totals_below_those_named_are_tried_while_all_reach_the_target(law, tmp_path):
    plan = Planner(BASE, tmp_path, OPTIONS).for_target(0.7, [800.0, 1600.0])
    # From 46.5 on: 200 and 50 reach it, 12.5 does not; then two halvings between 12.5 and 50.
    assert plan.chosen.total == pytest.approx(50.0)
    assert min(point.total for point in plan.points) == pytest.approx(12.5)


def test_no_more_than_three_totals_beyond_those_named_are_tried(law, tmp_path):
    plan = Planner(BASE, tmp_path, OPTIONS).for_target(0.7, [80_000.0])
    assert plan.chosen.total == pytest.approx(80_000 / 4**3)


def test_totals_above_those_named_are_tried_while_the_ceiling_is_higher(law, tmp_path, monkeypatch):
    monkeypatch.setattr(Planner, "_ceiling", lambda self, points: 0.9)
    plan = Planner(BASE, tmp_path, OPTIONS).for_target(0.7, [5.0, 10.0])
    assert plan.reached
    assert 46.5 < plan.chosen.total <= 160.0
    monkeypatch.setattr(Planner, "_ceiling", lambda self, points: 0.6)
    plan = Planner(BASE, tmp_path, OPTIONS).for_target(0.7, [5.0, 10.0])
    assert not plan.reached
    assert max(point.total for point in plan.points) == 10.0  # money alone would not do


def test_under_aggregate_trust_less_money_is_tried():
    local, aggregate = (plan_choices.usual_totals(100, trust) for trust in ("local", "aggregate"))
    assert all(sum_ < open_ for sum_, open_ in zip(aggregate, local, strict=True))


def test_less_money_tries_smaller_steps_and_more_money_larger_ones(law, tmp_path):
    Planner(BASE, tmp_path, replace(OPTIONS, rates=(1.0,))).for_totals([5.0, 20.0, 80.0])
    tried = {5.0: set(), 20.0: set(), 80.0: set()}
    for config in law.calls:
        tried[config.budget * config.rounds].add(config.training.server_rate / BASE.training.server_rate)
    assert tried == {5.0: {0.5, 1.0}, 20.0: {1.0}, 80.0: {1.0, 2.0}}


def test_a_target_out_of_reach_shows_the_ceiling(law, tmp_path):
    plan = Planner(BASE, tmp_path, OPTIONS).for_target(0.97, [10.0, 40.0])
    assert not plan.reached
    assert plan.chosen is None
    # All clients, no noise: a ration at a price that nearly everybody accepts.
    free = [config for config in law.calls if config.mode == "no-noise"]
    assert {config.mechanism for config in free} == {"ration"}
    assert all(config.mechanism_settings["unit_price"] > 0.99 for config in free)
    assert plan.ceiling == pytest.approx(40 / 60 + 0.0015)  # the best point: no ceiling lies below it


def test_a_plan_knows_what_it_tried_and_nothing_more(law, tmp_path):
    plan = Planner(BASE, tmp_path, OPTIONS).for_target(0.97, [10.0, 40.0])
    noisy = [config for config in law.calls if config.mode == "private"]
    assert plan.tried.rounds == tuple(sorted({config.rounds for config in noisy})) == (10, 20)
    assert plan.tried.server_rates == tuple(sorted({config.training.server_rate for config in noisy}))
    assert plan.tried.rules == len({(c.mechanism, json.dumps(c.mechanism_settings)) for c in noisy})
    assert (plan.tried.search_seeds, plan.tried.seeds) == (2, 2)
    # A plan that finds its runs on disk stands on the same.
    again = Planner(BASE, tmp_path, OPTIONS).for_target(0.97, [10.0, 40.0])
    assert (again.computed, again.tried) == (0, plan.tried)
    one = Planner(BASE, tmp_path / "one", replace(OPTIONS, search_seeds=1, seeds=(1,))).for_totals([40.0])
    assert (one.tried.search_seeds, one.tried.seeds) == (1, 1)


def test_what_is_left_if_others_collude_stands_beside_the_lifetime_epsilon(tmp_path):
    options = Options(rounds=(3,), rates=(1.0,), price_shares=(0.9,), heterogeneities=(), seeds=(1, 2))
    point = Planner(BASE.replace(trust="aggregate"), tmp_path, options).for_totals([10.0]).points[0]
    assert point.epsilon_if_others_collude > point.lifetime_epsilon > 0
    assert Planner(BASE, tmp_path, options).for_totals([10.0]).points[0].epsilon_if_others_collude is None


def test_a_rule_that_is_best_by_one_seed_s_luck_is_not_chosen(monkeypatch, tmp_path):
    def lucky(config, proxy):
        price = config.mechanism_settings.get("unit_price")
        accuracy = {0.5: 0.9 if config.seed == 0 else 0.5, 0.9: 0.8}.get(price, 0.1)
        return RunFigures(accuracy, 1.0, 1.0, 1.0, 7.0, 0.1)

    monkeypatch.setattr(planning, "run_cell", lucky)
    alone, several = (
        Planner(BASE, tmp_path / str(n), replace(OPTIONS, search_seeds=n)).for_totals([20.0]).points[0].choice
        for n in (1, 2)
    )
    assert dict(alone.settings) == {"unit_price": 0.5}
    assert dict(several.settings) == {"unit_price": 0.9}


def test_progress_is_told_run_by_run(law, tmp_path):
    told = []
    plan = Planner(BASE, tmp_path, OPTIONS, on_cell=lambda done, text: told.append(done)).for_totals([20.0])
    assert sum(told) == plan.computed
    expected = plan_choices.expected_cells(OPTIONS, 1, len(rule_choices(BASE, OPTIONS)), "local")
    assert plan.computed <= expected
    again = []
    kept = Planner(BASE, tmp_path, OPTIONS, on_cell=lambda done, text: again.append(done)).for_totals([20.0])
    assert (kept.computed, sum(again)) == (0, sum(told))  # a resumed plan's bar starts where it was stopped


def test_rules_are_exact_and_prices_come_from_the_law():
    rules = rule_choices(BASE, OPTIONS)
    assert [dict(rule.settings).get("unit_price") for rule in rules[:2]] == [0.5, 0.9]
    assert {rule.rule for rule in rules} == {"two-step", "mfg-menunet", "graded-ration", "mean-field-menu"}
    dear = rule_choices(replace(BASE, scenario="lognormal"), OPTIONS)
    assert dict(dear[0].settings)["unit_price"] == pytest.approx(1.0, rel=1e-3)  # the median of LogNormal(0, ½)


def test_past_bids_from_a_file(tmp_path):
    path = tmp_path / "past.csv"
    rows = "\n".join(f"c{i},{0.02 * (i + 1):.3f},1.5" for i in range(50))
    path.write_text("client,valuation,epsilon\n" + rows + "\n")
    rules = rule_choices(replace(BASE, scenario=str(path)), OPTIONS)
    assert "mfg-menunet" not in {rule.rule for rule in rules}
    assert dict(rules[0].settings)["unit_price"] == pytest.approx(0.51, abs=0.02)
    planner = Planner(replace(BASE, scenario=str(path)), tmp_path, OPTIONS)
    path.write_text(path.read_text() + "late,0.5,1.5\n")
    changed = Planner(replace(BASE, scenario=str(path)), tmp_path, OPTIONS)
    assert planner._path(planner.base) != changed._path(changed.base)
    outcome = run_cell(rules[0].config(replace(BASE, scenario=str(path), seed=1), 20.0).replace(rounds=2), None)
    assert 0 < outcome.spent <= 20.0


@pytest.mark.parametrize("bad", [[], [0.0], [-1.0], [float("inf")]])
def test_senseless_money_is_refused(bad, law, tmp_path):
    with pytest.raises(ConfigurationError, match="money"):
        Planner(BASE, tmp_path, OPTIONS).for_totals(bad)


@pytest.mark.parametrize("target", [0.0, 1.0, 95.0])
def test_senseless_targets_are_refused(target, law, tmp_path):
    with pytest.raises(ConfigurationError, match="target"):
        Planner(BASE, tmp_path, OPTIONS).for_target(target, [10.0])


@pytest.mark.parametrize(
    "bad", [{"rounds": ()}, {"rates": (0.0,)}, {"seeds": (0,)}, {"rounds": (0,)}, {"search_seeds": 0}]
)
def test_senseless_options_are_refused(bad):
    with pytest.raises(ConfigurationError, match="plan"):
        Options(**bad)


@pytest.fixture
def proxy_file(tmp_path):
    whole = load_dataset("digits")
    path = tmp_path / "proxy.npz"
    np.savez(path, images=whole.train_images[:600, 0], labels=whole.train_labels[:600])
    return path


def test_a_proxy_stands_for_the_data_set(proxy_file, tmp_path):
    proxy = PublicProxy.at(proxy_file)
    test, validation = proxy.load("test"), proxy.load("validation")
    assert test.image_shape == (1, 8, 8)
    assert len(test.train_labels) == 400
    assert len(test.test_labels) == len(validation.test_labels) == 100
    assert not np.array_equal(test.test_images, validation.test_images)
    check_proxy(test, "digits")
    with pytest.raises(DataError, match=r"\(1, 8, 8\).*mnist"):
        check_proxy(test, "mnist")
    config = FederationConfig(clients=5, rounds=2, budget=5.0, training=BASE.training)
    assert 0 < run_cell(config, proxy).accuracy < 1
    planner = Planner(BASE, tmp_path, OPTIONS, proxy=proxy)
    assert planner._path(BASE) != Planner(BASE, tmp_path, OPTIONS)._path(BASE)


@pytest.mark.parametrize(
    "arrays",
    [
        {"images": np.zeros((100, 8, 8))},
        {"images": np.zeros((100, 64)), "labels": np.zeros(100, int)},
        {"images": np.zeros((9, 8, 8)), "labels": np.zeros(9, int)},
        {"images": np.zeros((100, 8, 8)), "labels": np.zeros(99, int)},
    ],
)
def test_files_that_are_no_proxy_are_refused(arrays, tmp_path):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=r"bad\.npz"):
        PublicProxy.at(tmp_path / "bad.npz")
    with pytest.raises(DataError, match="no proxy"):
        PublicProxy.at(tmp_path / "nowhere.npz")


def test_a_cell_is_the_run_that_federate_makes():
    """Records with ready features give what `run` gives from the configuration alone."""
    training = replace(BASE.training, features="oriented-gradients")
    config = BASE.replace(rounds=3, budget=5.0, seed=3, training=training)
    direct = run(config)
    cell = run_cell(config, None)
    assert (cell.accuracy, cell.spent) == (direct.accuracy, direct.spent)


def test_any_number_of_workers_gives_the_same_plan(tmp_path):
    options = Options(rounds=(3,), rates=(1.0,), price_shares=(0.9,), heterogeneities=(), seeds=(1, 2))
    alone, together = (
        Planner(BASE, tmp_path / str(workers), options, workers=workers).for_totals([50.0]) for workers in (1, 2)
    )
    assert alone.points == together.points


def test_aggregate_trust_goes_further(tmp_path):
    options = Options(rounds=(15,), rates=(1.0,), price_shares=(0.9,), heterogeneities=(), seeds=(1,))
    local, aggregate = (
        Planner(BASE.replace(trust=trust), tmp_path, options).for_totals([30.0]).points[0]
        for trust in ("local", "aggregate")
    )
    assert aggregate.accuracy > local.accuracy + 0.05


def test_under_aggregate_trust_h_is_measured_once_and_rules_are_made_for_it(law, tmp_path, monkeypatch):
    asked = []

    def spread(config, proxy, on_training):
        asked.append(config)
        on_training()
        # Half of the clients do as much harm as noise of s = 0.5: H = 0.5.
        return ClientSpread((0.5,), (0.8,), (0.25, 0.5, 1.0), (0.9, 0.8, 0.7))

    monkeypatch.setattr(planning, "spread_of", spread)
    base = BASE.replace(trust="aggregate")
    told = []
    planner = Planner(base, tmp_path, OPTIONS, on_cell=lambda done, text: told.append(text))
    plan = planner.for_totals([20.0, 60.0])
    assert plan.heterogeneity == plan.to_json()["heterogeneity"] == pytest.approx(0.5)
    assert told[0] == "how different clients are"
    (config,) = asked
    assert (config.measured_on, config.mode, config.rounds, config.seed) == ("validation", "no-noise", 10, 0)
    tried = {dict(config.mechanism_settings).get("heterogeneity") for config in law.calls} - {None}
    assert tried == {plan.heterogeneity}
    again = Planner(base, tmp_path, OPTIONS).for_totals([20.0, 60.0])
    assert (again.heterogeneity, again.computed, len(asked)) == (plan.heterogeneity, 0, 1)
    assert Planner(BASE, tmp_path, OPTIONS).for_totals([20.0]).heterogeneity is None


def test_a_measured_h_is_one_that_trainings_gave(tmp_path):
    """A real measurement on digits: positive, finite, and the plan says so."""
    options = Options(rounds=(4,), rates=(1.0,), price_shares=(0.9,), heterogeneities=(), seeds=(1,))
    plan = Planner(BASE.replace(trust="aggregate", alpha=0.1), tmp_path, options).for_totals([30.0])
    assert plan.heterogeneity is not None
    assert 0.01 < plan.heterogeneity < 100


def test_a_lifetime_cap_is_kept(tmp_path):
    options = Options(rounds=(6,), rates=(1.0,), price_shares=(0.9,), heterogeneities=(), seeds=(1,))
    point = Planner(BASE.replace(wallet=1.0), tmp_path, options).for_totals([100.0]).points[0]
    assert 0 < point.lifetime_epsilon <= 1.0


def test_the_axis_of_epsilon_has_few_round_numbers():
    assert _round_numbers([0.035, 1.14]) == pytest.approx([0.02, 0.05, 0.1, 0.2, 0.5, 1, 2])
    assert _round_numbers([7.96, 7.96]) == pytest.approx([5, 10])
    figure = plan_figure(_drawn())
    figure.canvas.draw()
    boxes = [label.get_window_extent() for label in figure.axes[1].get_yticklabels() if label.get_text()]
    assert not any(a.y0 < b.y1 and b.y0 < a.y1 for i, a in enumerate(boxes) for b in boxes[:i])
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == [
        "target",
        "all clients, no noise",
    ]


def _drawn() -> planning.Plan:
    """A plan over two decades of ε whose target is out of reach."""
    choice = rule_choices(BASE, OPTIONS)[0]
    points = tuple(
        planning.Point(money, choice, money / 10, 0.8, 0.0, 0.8, 0.8, 1, money, epsilon, 0.1, 0.2, 9.0)
        for money, epsilon in ((3.0, 0.035), (10.0, 0.114), (30.0, 0.338), (100.0, 1.14))
    )
    return planning.Plan(BASE, points, 0.94, None, 0.85, 4, 4)


def test_a_real_plan_on_digits(tmp_path):
    options = Options(rounds=(8, 16), rates=(1.0,), price_shares=(0.9,), heterogeneities=(), seeds=(1, 2))
    plan = Planner(BASE, tmp_path / "cells", options).for_totals([5.0, 400.0])
    poor, rich = plan.points
    assert rich.accuracy > poor.accuracy + 0.1
    # The largest ε need not rise: for little money a rule may buy much of one client and nothing of the others.
    assert min(rich.lifetime_epsilon, poor.lifetime_epsilon) > 0
    assert rich.sellers_per_round > poor.sellers_per_round > 0
    assert poor.spent <= 5.0
    for name in ("plan.png", "plan.html"):
        assert write_plan(plan, tmp_path / name).stat().st_size > 5_000
    with pytest.raises(ConfigurationError, match=r"plan\.txt"):
        write_plan(plan, tmp_path / "plan.txt")
    kept = json.loads(next((tmp_path / "cells").glob("*.json")).read_text())
    assert FederationConfig.from_json(kept["config"]).dataset == "digits"
