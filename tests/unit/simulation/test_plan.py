"""Plans: what is tried, what is chosen, on which records, and what is said."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from privmarket.errors import ConfigurationError
from privmarket.market._distributions import scenario
from privmarket.market._guarantees import Truthful
from privmarket.mechanisms import mechanism
from privmarket.reports._plan_figure import write_plan
from privmarket.simulation import _plan as plan_choices, _plan as planning
from privmarket.simulation._config import FederationConfig, recommended_training
from privmarket.simulation._federate import settings_of
from privmarket.simulation._federation import run
from privmarket.simulation._own_records import OwnTraining
from privmarket.simulation._plan import PLANNED_RULES, Options, Planner, RunFigures, rule_choices, run_figures
from privmarket.simulation._rehearsal import ClientSpread
from privmarket.simulation._result import UnitPrices
from privmarket.tasks import Task, score

BASE = FederationConfig(dataset="digits", clients=10, public=40, training=recommended_training("digits"))
OPTIONS = Options(rounds=(10, 20), price_shares=(0.5, 0.9), heterogeneities=(0.3,), seeds=(1, 2), worlds=1)
# What a real plan in a test tries: five rules.
TINY = Options(rounds=(3,), price_shares=(0.9,), heterogeneities=(), seeds=(1,), worlds=1)
UNIFORM = scenario("uniform")
RULES = rule_choices(BASE, UNIFORM, OPTIONS)


class MadeUpRuns:
    """Stands for rehearsals and runs: more money is better, best are 20 rounds and price 0.5."""

    def __init__(self) -> None:
        self.calls: list[FederationConfig] = []
        self.most_spent = np.inf
        self.before: float | None = 0.2
        self.test_error = 0.0
        self.spreads: list[tuple] = []

    def spread(self, training, rounds, whitening=None):
        self.spreads.append((training, rounds))
        # Half of the stand-ins do as much harm as noise of s = 0.5: H = 0.5 on mean gradients.
        return ClientSpread((0.5,), (0.8,), (0.25, 0.5, 1.0), (0.9, 0.8, 0.7))

    @staticmethod
    def score(total, rounds, unit_price):
        return total / (total + 20) - 0.1 * (rounds != 20) - 0.2 * (unit_price != 0.5)

    def rehearse(self, planner, total, choice):
        found = choice.tuned(replace(BASE.training, server_rate=0.5))
        key = (total, replace(choice.untuned(), server_rate=0.0))
        if key not in planner._rehearsed:
            reached = self.score(total, choice.rounds, dict(choice.settings).get("unit_price"))
            planner._rehearsed[key] = (found, -reached)
            planner.on_cell(1, "rehearsed")
        return planner._rehearsed[key]

    def run(self, config, task, asked, own):
        self.calls.append(config)
        total = config.budget * config.rounds
        reached = self.score(total, config.rounds, config.mechanism_settings.get("unit_price"))
        spent = min(0.9 * total, self.most_spent)
        return RunFigures(
            score=reached + 0.001 * config.seed,
            score_before=self.before,
            gain_error=None if self.before is None else self.test_error,
            spent=spent,
            lifetime_epsilon=total / 10,
            highest_pay=total / 5,
            sellers_per_round=7.0,
            seconds=0.1,
            prices=UnitPrices(0.6, 0.4, 0.9),
        )


@pytest.fixture
def made_up(monkeypatch):
    made = MadeUpRuns()
    monkeypatch.setattr(planning, "run_figures", made.run)
    monkeypatch.setattr(planning, "StandIn", lambda *_, **__: made)
    monkeypatch.setattr(Planner, "score_of_own_records", lambda self: made.before)
    monkeypatch.setattr(Planner, "_rehearse", lambda self, total, choice: made.rehearse(self, total, choice))
    return made


def test_amounts_below_the_axis_are_plain_numbers():
    assert planning._tick_labels([14.142, 100.0, 1000.0, 1100.0, 24000.0]) == ["14.1", "100", "1,000", "", "24,000"]


def test_it_finds_the_best_settings_and_states_figures_of_other_seeds(made_up, tmp_path):
    plan = Planner(BASE, tmp_path, OPTIONS).for_totals([20.0, 60.0, 180.0])
    assert [point.total for point in plan.points] == [20, 60, 180]
    for point in plan.points:
        assert (point.choice.rounds, point.choice.server_rate) == (20, 0.5)
        assert dict(point.choice.settings) == {"unit_price": 0.5}
        expected = point.total / (point.total + 20) + 0.0015
        assert point.score == pytest.approx(expected)
        assert (point.lowest, point.highest) == pytest.approx((expected - 0.0005, expected + 0.0005))
        assert point.deviation == pytest.approx(0.001 / np.sqrt(2))
        assert point.gain == pytest.approx(expected - 0.2)
        assert point.spent == pytest.approx(0.9 * point.total)
        assert point.pay_per_client == pytest.approx(0.09 * point.total)
        assert point.lifetime_epsilon == pytest.approx(point.total / 10)
    # What is run is measured on test records, with seeds that chose nothing, at the rate of the rehearsals.
    assert {(config.measured_on, config.seed) for config in made_up.calls} == {("test", 1), ("test", 2)}
    assert {config.training.server_rate for config in made_up.calls} == {0.5}
    assert plan.own_records == 40
    assert plan.score_before == pytest.approx(0.2)
    assert plan.worth_buying


@pytest.mark.parametrize(
    ("best", "shares", "found"),
    [
        (0.24, (0.125, 0.25, 0.5, 0.9), 0.25),
        (1.0, (0.5, 0.9, 0.975, 0.99375), 0.9938),
        (0.6, (0.25, 0.5, 0.9), 0.5),
        (0.0, (0.03125, 0.0625, 0.125, 0.25, 0.5, 0.9), 0.03125),
    ],
    ids=["below", "above", "inside", "too few sellers"],
)
def test_prices_beyond_the_grid_are_tried_until_the_best_has_one_on_either_side(
    made_up, monkeypatch, tmp_path, best, shares, found
):
    made_up.before = None
    away = lambda total, rounds, price: 1.0 - abs((9.0 if price is None else price) - best) / 10  # noqa: E731
    monkeypatch.setattr(made_up, "score", away)
    planner = Planner(BASE.replace(clients=100), tmp_path, OPTIONS)
    plan = planner.for_totals([20.0])
    assert planner.options.price_shares == pytest.approx(shares)
    assert dict(plan.points[0].choice.settings) == {"unit_price": pytest.approx(found)}


def test_the_buyers_own_model_is_trained_once_a_seed(monkeypatch, tmp_path):
    trained = []
    whole = OwnTraining.own_model
    monkeypatch.setattr(OwnTraining, "own_model", lambda self: trained.append(self.seed) or whole(self))
    monkeypatch.setattr(Planner, "rehearses", False)
    task = own_task()
    planner = Planner(FederationConfig(**settings_of(task)), tmp_path, replace(TINY, seeds=(1, 2)), task=task)
    points = planner.for_totals([5.0, 50.0]).points
    assert sorted(trained) == [1, 2]
    assert points[0].score_before == points[1].score_before == planner.score_of_own_records()


def test_a_second_plan_runs_nothing_anew(made_up, tmp_path):
    first = Planner(BASE, tmp_path, OPTIONS).for_totals([20.0, 60.0])
    calls = len(made_up.calls)
    again = Planner(BASE, tmp_path, OPTIONS).for_totals([20.0, 60.0])
    assert len(made_up.calls) == calls == first.computed
    assert (again.computed, again.cells) == (0, first.cells)
    assert again.points == first.points
    victim = next(tmp_path.glob("*.json"))
    victim.write_text("damaged")
    assert Planner(BASE, tmp_path, OPTIONS).for_totals([20.0, 60.0]).computed == 1


def test_the_cheapest_total_for_a_target(made_up, tmp_path):
    plan = Planner(BASE, tmp_path, OPTIONS).for_target(0.7, [10.0, 40.0, 160.0])
    # total/(total + 20) ≥ 0.7 from 46.5 on: between 40 and 160, twice halved in logarithm.
    assert plan.reached
    assert plan.chosen.total == pytest.approx(np.sqrt(40 * np.sqrt(40 * 160)))
    assert plan.to_json()["chosen"]["total"] == plan.chosen.total


def test_nothing_is_rehearsed_or_run_where_own_records_reach_the_target(made_up, tmp_path):
    made_up.before = 0.7
    planner = Planner(BASE, tmp_path, OPTIONS)
    plan = planner.for_target(0.7, [10.0, 40.0])
    assert plan.reached
    assert plan.own_records_suffice
    assert (plan.points, plan.chosen, plan.score_before) == ((), None, 0.7)
    assert not plan.worth_buying
    assert (made_up.calls, planner._rehearsed) == ([], {})
    made_up.before = 0.6999
    assert Planner(BASE, tmp_path, OPTIONS).for_target(0.7, [10.0, 40.0]).points


def test_the_score_of_own_records_is_what_the_runs_of_a_plan_state(tmp_path):
    config = BASE.replace(measured_on="test", rounds=1, evaluate_every=1, budget=1.0)
    stated = [run(config.replace(seed=seed)).score_before for seed in OPTIONS.seeds]
    assert Planner(BASE, tmp_path, OPTIONS).score_of_own_records() == pytest.approx(np.mean(stated), abs=1e-12)
    without = BASE.replace(public=0)
    assert Planner(without, tmp_path, OPTIONS).score_of_own_records() is None


def test_totals_below_those_named_are_tried_while_all_reach_the_target(made_up, tmp_path):
    plan = Planner(BASE, tmp_path, OPTIONS).for_target(0.7, [800.0, 1600.0])
    # From 46.5 on: 200 and 50 reach it, 12.5 does not; then two halvings between 12.5 and 50.
    assert plan.chosen.total == pytest.approx(50.0)
    assert min(point.total for point in plan.points) == pytest.approx(12.5)


def test_no_more_than_three_totals_beyond_those_named_are_tried(made_up, tmp_path):
    plan = Planner(BASE, tmp_path, OPTIONS).for_target(0.7, [80_000.0])
    assert plan.chosen.total == pytest.approx(80_000 / 4**3)


def test_totals_above_those_named_are_tried_while_money_can_be_spent(made_up, tmp_path):
    plan = Planner(BASE, tmp_path, OPTIONS).for_target(0.7, [5.0, 10.0])
    assert plan.reached
    assert 46.5 < plan.chosen.total <= 160.0
    made_up.most_spent = 4.0
    plan = Planner(BASE, tmp_path / "little", OPTIONS).for_target(0.7, [5.0, 10.0])
    assert not plan.reached
    assert max(point.total for point in plan.points) == 10.0  # more money would not be spent


def test_under_aggregate_trust_less_money_is_tried():
    local, aggregate = (plan_choices.usual_totals(100, trust) for trust in ("local", "aggregate"))
    assert all(sum_ < open_ for sum_, open_ in zip(aggregate, local, strict=True))


def test_buying_does_not_pay_where_own_records_are_as_good(made_up, tmp_path):
    made_up.before = 0.9
    plan = Planner(BASE, tmp_path, OPTIONS).for_totals([20.0, 60.0])
    assert not plan.worth_buying
    assert plan.to_json()["worth_buying"] is False
    assert all(point.gain < 0 for point in plan.points)
    made_up.before = 0.75  # the larger total gives 0.7515
    plan = Planner(BASE, tmp_path / "near", OPTIONS).for_totals([20.0, 60.0])
    assert plan.points[1].gain == pytest.approx(0.0015)
    assert plan.worth_buying  # two standard errors are 0.001
    assert not replace(plan.points[1], gain_deviation=0.002).pays
    made_up.before = None
    assert Planner(BASE, tmp_path / "none", OPTIONS).for_totals([20.0]).worth_buying


def test_the_choice_of_test_records_counts_as_chance(made_up, tmp_path):
    made_up.before = 0.7  # the larger total gives 0.7515
    made_up.test_error = 0.02
    plan = Planner(BASE, tmp_path, OPTIONS).for_totals([20.0, 60.0])
    assert plan.points[1].test_error == pytest.approx(0.02)
    assert plan.points[1].gain_error == pytest.approx(np.hypot(0.0005, 0.02), rel=1e-6)
    assert plan.worth_buying
    made_up.test_error = 0.03
    assert not Planner(BASE, tmp_path / "near", OPTIONS).for_totals([20.0, 60.0]).worth_buying


def test_the_cheapest_total_within_an_error_of_the_best_is_recommended(made_up, tmp_path):
    """180 gives 0.9, 60 gives 0.75 and 20 gives 0.5, beside 0.2 for nothing."""
    for error, total in ((0.0, 180.0), (0.1, 180.0), (0.16, 60.0), (0.2, 60.0)):
        made_up.test_error = error
        plan = Planner(BASE, tmp_path / f"{error}", OPTIONS).for_totals([20.0, 60.0, 180.0])
        assert plan.recommended.total == plan.to_json()["recommended_total"] == total
    made_up.test_error = 0.5
    plan = Planner(BASE, tmp_path / "none", OPTIONS).for_totals([20.0, 60.0, 180.0])
    assert plan.recommended is None
    assert Planner(BASE, tmp_path / "one", OPTIONS).for_totals([20.0]).recommended.total == 20.0


def test_a_plan_knows_what_it_tried_and_nothing_more(made_up, tmp_path):
    plan = Planner(BASE, tmp_path, OPTIONS).for_target(0.999, [10.0, 40.0])
    assert not plan.reached
    assert plan.chosen is None
    assert plan.tried.rounds == (10, 20)
    assert plan.tried.server_rates == (0.5,)
    # The lowest price looked best, so one below it was tried.
    assert plan.tried.rules == len(RULES) + 1
    assert plan.tried.seeds == 2
    # A plan that finds its runs on disk stands on the same.
    again = Planner(BASE, tmp_path, OPTIONS).for_target(0.999, [10.0, 40.0])
    assert (again.computed, again.tried) == (0, plan.tried)


def test_without_public_records_documented_defaults_stand(made_up, tmp_path):
    planner = Planner(BASE.replace(public=0), tmp_path, OPTIONS)
    made_up.before = None
    plan = planner.for_totals([20.0, 60.0])
    assert not planner.rehearses
    assert plan.tried.rehearsals == 0
    assert {config.training for config in made_up.calls} == {BASE.training}
    assert plan.score_before is None
    assert plan.own_records == 0


def test_progress_is_told_step_by_step(made_up, tmp_path):
    told = []
    plan = Planner(BASE, tmp_path, OPTIONS, on_cell=lambda done, text: told.append(done)).for_totals([20.0, 60.0])
    assert sum(told) == plan.computed + plan.tried.rehearsals
    expected = plan_choices.expected_cells(OPTIONS, 2, len(RULES), rehearses=True)
    assert sum(told) <= expected
    again = []
    kept = Planner(BASE, tmp_path, OPTIONS, on_cell=lambda done, text: again.append(done)).for_totals([20.0, 60.0])
    assert (kept.computed, sum(again)) == (0, sum(told))  # a resumed plan's bar ends where it should


def test_rules_are_exact_and_prices_come_from_the_law():
    assert [dict(rule.settings).get("unit_price") for rule in RULES[:2]] == [0.5, 0.9]
    assert {rule.rule for rule in RULES} == set(PLANNED_RULES)
    assert all(Truthful(in_="valuation") in mechanism(name).guarantees for name in PLANNED_RULES)
    dear = rule_choices(BASE, scenario("lognormal"), OPTIONS)
    assert dict(dear[0].settings)["unit_price"] == pytest.approx(1.0, rel=1e-3)  # the median of LogNormal(0, ½)


def test_past_bids_from_a_file(tmp_path):
    path = tmp_path / "past.csv"
    rows = "\n".join(f"c{i},{0.02 * (i + 1):.3f},1.5" for i in range(50))
    path.write_text("client,valuation,epsilon\n" + rows + "\n")
    base = BASE.replace(scenario=str(path))
    rules = rule_choices(base, scenario(str(path)), OPTIONS)
    assert "mfg-menunet" not in {rule.rule for rule in rules}
    assert dict(rules[0].settings)["unit_price"] == pytest.approx(0.51, abs=0.02)
    planner = Planner(base, tmp_path, OPTIONS)
    path.write_text(path.read_text() + "late,0.5,1.5\n")
    changed = Planner(base, tmp_path, OPTIONS)
    assert planner._path(planner.base) != changed._path(changed.base)
    outcome = run_figures(rules[0].config(base.replace(seed=1), 20.0).replace(rounds=2), None, None, {})
    assert 0 < outcome.spent <= 20.0


@pytest.mark.parametrize("bad", [[], [0.0], [-1.0], [float("inf")]])
def test_senseless_money_is_refused(bad, made_up, tmp_path):
    with pytest.raises(ConfigurationError, match="money"):
        Planner(BASE, tmp_path, OPTIONS).for_totals(bad)


@pytest.mark.parametrize("target", [1.0, 95.0, float("nan"), float("inf")])
def test_senseless_targets_are_refused(target, made_up, tmp_path):
    with pytest.raises(ConfigurationError, match="target"):
        Planner(BASE, tmp_path, OPTIONS).for_target(target, [10.0])
    assert made_up.calls == []


@pytest.mark.parametrize("bad", [{"rounds": ()}, {"seeds": ()}, {"seeds": (0,)}, {"rounds": (0,)}, {"worlds": 0}])
def test_senseless_options_are_refused(bad):
    with pytest.raises(ConfigurationError, match="plan"):
        Options(**bad)


def heterogeneities(planner, rule):
    return {dict(choice.settings).get("heterogeneity") for _, choice in planner._rehearsed if choice.rule == rule}


def test_h_is_measured_in_rehearsals_and_rules_are_made_for_it(made_up, tmp_path):
    base = BASE.replace(trust="aggregate")
    planner = Planner(base, tmp_path, OPTIONS)
    plan = planner.for_totals([20.0, 60.0])
    records = sum(planner.task.sizes) // 10  # the market counts noise on sums over a client's records
    assert plan.heterogeneity == plan.to_json()["heterogeneity"] == pytest.approx(0.5 * records, rel=0.01)
    assert [(training.server_rate, rounds) for training, rounds in made_up.spreads] == [(0.5, 20)]
    tried = {dict(choice.settings).get("heterogeneity") for _, choice in planner._rehearsed}
    assert tried - {None} >= {plan.heterogeneity}
    assert 0.3 not in tried, "an H that was not measured is not tried"
    assert heterogeneities(planner, "precision-menu") == {0.0, plan.heterogeneity}


def test_under_local_trust_it_is_measured_for_the_rule_whose_error_is_that_of_updates(made_up, tmp_path):
    planner = Planner(BASE, tmp_path, OPTIONS)
    plan = planner.for_totals([20.0])
    assert plan.heterogeneity > 0
    assert heterogeneities(planner, "precision-menu") == {0.0, plan.heterogeneity}
    assert plan.heterogeneity not in heterogeneities(planner, "graded-ration")
    assert heterogeneities(planner, "mfg-menunet") == set(OPTIONS.heterogeneities)


# --- real plans


def own_task(private_seed=0, public=40):
    """Ten clients of known labels; `private_seed` changes nothing but the private records."""
    slope = np.array([1.5, -1.0, 0.5])

    def drawn(seed, rows):
        rng = np.random.default_rng(seed)
        inputs = rng.normal(size=(rows, slope.size)).astype(np.float32)
        return inputs, (rng.random(rows) < 1 / (1 + np.exp(-2 * inputs @ slope))).astype(np.int64)

    inputs, labels = drawn([1, private_seed], 300)
    names = [f"site {i % 10}" for i in range(300)]
    return Task.from_arrays(
        inputs, labels, clients=names, public=drawn(2, public), test=drawn(3, 200), classes=2, model="linear"
    )


def planned(task, folder, options=TINY):
    base = FederationConfig(**settings_of(task), trust="aggregate")
    return Planner(base, folder, options, task=task).for_totals([2.0])


def test_private_records_choose_no_settings(tmp_path):
    """Two tasks that differ in every private record are planned alike; the runs themselves differ."""
    options = replace(TINY, rounds=(2, 4))
    one = planned(own_task(0), tmp_path, options)
    other = planned(own_task(1), tmp_path, options)
    assert one.points[0].choice == other.points[0].choice
    assert one.heterogeneity == other.heterogeneity
    assert one.tried == other.tried
    assert one.points[0].score_before == other.points[0].score_before
    assert (one.computed, other.computed) == (1, 1), "a run of another task is not taken from disk"


def test_a_plan_that_looks_at_private_records_is_noticed(tmp_path, monkeypatch):
    """The subject is broken on purpose: its rehearsals are held on private records."""
    whole = planning.StandIn

    def peeking(task, **settings):
        return whole(task.replace(public=task.private[np.arange(40)]), **settings)

    monkeypatch.setattr(planning, "StandIn", peeking)
    options = replace(TINY, rounds=(2, 4))
    one, other = (planned(own_task(seed), tmp_path, options) for seed in (0, 1))
    assert (one.points[0].choice, one.heterogeneity) != (other.points[0].choice, other.heterogeneity)


def test_what_is_left_if_others_collude_stands_beside_the_lifetime_epsilon(tmp_path):
    base = BASE.replace(public=0)
    point = Planner(base.replace(trust="aggregate"), tmp_path, TINY).for_totals([10.0]).points[0]
    assert point.epsilon_if_others_collude > point.lifetime_epsilon > 0
    assert Planner(base, tmp_path, TINY).for_totals([10.0]).points[0].epsilon_if_others_collude is None


def test_a_kept_run_is_the_run_that_federate_makes():
    config = BASE.replace(rounds=3, budget=5.0, seed=3)
    direct = run(config)
    kept = run_figures(config, None, None, {})
    assert (kept.score, kept.score_before, kept.spent) == (direct.score, direct.score_before, direct.spent)


@pytest.mark.parametrize("task", [None, own_task()], ids=["digits", "own"])
def test_any_number_of_workers_gives_the_same_plan(task, tmp_path):
    base = BASE.replace(public=0) if task is None else FederationConfig(**settings_of(task))
    options = replace(TINY, seeds=(1, 2))
    alone, together = (
        Planner(base, tmp_path / str(workers), options, task=task, workers=workers).for_totals([50.0])
        for workers in (1, 2)
    )
    assert alone.points == together.points
    assert alone.computed == together.computed == 2


def test_aggregate_trust_goes_further(tmp_path):
    """From a public draw, so that what is seen is what the money bought."""
    options = replace(TINY, rounds=(15,))
    local, aggregate = (
        Planner(BASE.replace(trust=trust, public=0), tmp_path, options).for_totals([30.0]).points[0]
        for trust in ("local", "aggregate")
    )
    assert aggregate.score > local.score + 0.05


def test_a_measured_h_is_one_that_rehearsals_gave(tmp_path):
    plan = Planner(BASE.replace(trust="aggregate", alpha=0.1), tmp_path, TINY).for_totals([30.0])
    assert plan.heterogeneity is not None
    assert 0.01 < plan.heterogeneity < 100


def test_a_lifetime_cap_is_kept(tmp_path):
    base = BASE.replace(wallet=1.0, public=0)
    point = Planner(base, tmp_path, replace(TINY, rounds=(6,))).for_totals([100.0]).points[0]
    assert 0 < point.lifetime_epsilon <= 1.0


def test_settings_that_the_buyer_fixed_are_kept(tmp_path):
    given = BASE.replace_training(server_rate=0.7, clip_norm=0.9)
    point = Planner(given, tmp_path, TINY, fixed=("server_rate", "clip_norm")).for_totals([10.0]).points[0]
    assert (point.choice.server_rate, point.choice.clip_norm) == (0.7, 0.9)


def test_the_axis_of_epsilon_has_few_round_numbers():
    assert planning._round_numbers([0.035, 1.14]) == pytest.approx([0.02, 0.05, 0.1, 0.2, 0.5, 1, 2])
    assert planning._round_numbers([7.96, 7.96]) == pytest.approx([5, 10])
    figure = _drawn().plot()
    figure.canvas.draw()
    boxes = [label.get_window_extent() for label in figure.axes[1].get_yticklabels() if label.get_text()]
    assert not any(a.y0 < b.y1 and b.y0 < a.y1 for i, a in enumerate(boxes) for b in boxes[:i])
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == [
        "target",
        "your own 40 records alone",
    ]


def test_totals_for_which_nobody_sells_are_drawn_too(tmp_path):
    plan = _drawn()
    for sold in ([0.0, 0.114, 0.338, 1.14], [0.0] * 4):
        points = [
            replace(point, lifetime_epsilon=epsilon) for point, epsilon in zip(plan.points, sold, strict=True)
        ]
        for name in ("plan.png", "plan.html"):
            assert write_plan(replace(plan, points=tuple(points)), tmp_path / name).stat().st_size > 5_000


def _drawn() -> planning.Plan:
    """A plan over two decades of ε whose target is out of reach."""
    points = tuple(
        planning.Point(
            total=money,
            choice=RULES[0],
            budget_per_round=money / 10,
            score=0.8,
            deviation=0.0,
            lowest=0.8,
            highest=0.8,
            score_before=0.7,
            gain=0.1,
            gain_deviation=0.0,
            seeds=1,
            spent=money,
            lifetime_epsilon=epsilon,
            pay_per_client=0.1,
            highest_pay=0.2,
            sellers_per_round=9.0,
        )
        for money, epsilon in ((3.0, 0.035), (10.0, 0.114), (30.0, 0.338), (100.0, 1.14))
    )
    return planning.Plan(
        base=BASE,
        points=points,
        score=score("accuracy"),
        own_records=40,
        score_before=0.7,
        target=0.94,
        chosen=None,
        cells=4,
        computed=4,
    )


def test_a_real_plan_on_digits(tmp_path):
    options = replace(TINY, rounds=(8, 16), seeds=(1, 2))
    plan = Planner(BASE, tmp_path / "cells", options).for_totals([5.0, 400.0])
    poor, rich = plan.points
    assert rich.score > poor.score + 0.02
    assert rich.gain > 0.02
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


def test_several_totals_are_asked_for_as_money():
    with pytest.raises(ConfigurationError, match="several totals are money"):
        planning.plan("digits", total=[5, 10])


def measured_point(seed, slope, folder):
    """What money buys on a small task, rehearsed on nothing; with slope 0, labels are flipped coins."""

    def drawn(part, rows):
        rng = np.random.default_rng([seed, part])
        inputs = rng.normal(size=(rows, 8)).astype(np.float32)
        return inputs, (rng.random(rows) < 1 / (1 + np.exp(-slope * inputs.sum(axis=1)))).astype(np.int64)

    inputs, labels = drawn(1, 600)
    names = [f"site {i % 12}" for i in range(600)]
    task = Task.from_arrays(
        inputs, labels, clients=names, public=drawn(2, 60), test=drawn(3, 150), classes=2, model="linear"
    )
    base = FederationConfig(**settings_of(task), trust="aggregate", wallet=3.0)
    planner = Planner(base, folder, replace(TINY, price_shares=(0.95,), seeds=(1, 2)), task=task)
    return planner._point(20.0, [replace(planner.rules[0], rounds=5)])


def test_coin_flips_do_not_pay_and_a_signal_does(tmp_path):
    """A verdict that looks at the seeds alone buys coin flips, because all seeds meet the same test records."""
    coins = [measured_point(seed, 0.0, tmp_path) for seed in (0, 3, 4, 8)]
    assert not any(point.pays for point in coins)
    assert any(replace(point, test_error=0.0).pays for point in coins)
    assert measured_point(9, 1.0, tmp_path).pays


def test_a_second_plan_rehearses_nothing_anew(monkeypatch, tmp_path):
    base = FederationConfig(**settings_of(own_task()), trust="aggregate")
    first = Planner(base, tmp_path, TINY, task=own_task()).for_totals([20.0])

    def again(*_, **__):
        raise AssertionError("rehearsed again")

    with monkeypatch.context() as patched:
        patched.setattr(planning, "rehearsed", again)
        patched.setattr(planning, "StandIn", again)
        kept = Planner(base, tmp_path, TINY, task=own_task()).for_totals([20.0])
        assert (kept.points, kept.heterogeneity, kept.tried) == (first.points, first.heterogeneity, first.tried)
        for other in (
            Planner(base, tmp_path, TINY, task=own_task(), fixed=("clip_norm",)),
            Planner(base, tmp_path, replace(TINY, worlds=2), task=own_task()),
            Planner(base.replace(wallet=1.0), tmp_path, TINY, task=own_task()),
        ):
            with pytest.raises(AssertionError, match="rehearsed again"):
                other.for_totals([20.0])
    next((tmp_path / "rehearsals").glob("*.json")).write_text("damaged")
    assert Planner(base, tmp_path, TINY, task=own_task()).for_totals([20.0]).points == first.points
