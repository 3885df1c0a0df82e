"""The page of examples with real data: intervals, verdicts, and a table that states what was kept."""

import pytest
from scipy import stats

from privmarket_studies import examples_with_data as examples


def a_run(seed, before, after, better="higher"):
    return {"seed": seed, "before": before, "after": after, "better": better}


def test_intervals_are_those_of_student():
    values = [0.1, 0.3, 0.2]
    mean, half = examples.interval(values)
    low, high = stats.t.interval(0.95, 2, loc=0.2, scale=stats.sem(values))
    assert (mean - half, mean + half) == pytest.approx((low, high))


def test_a_gain_counts_only_beyond_its_interval_and_in_the_right_direction():
    better = [a_run(k, 0.5, 0.6 + 0.001 * k) for k in range(3)]
    assert examples.verdict(better) == "better"
    assert examples.verdict([a_run(k, run["after"], run["before"]) for k, run in enumerate(better)]) == "worse"
    assert examples.verdict([a_run(k, 2.0, 1.5 + 0.01 * k, "lower") for k in range(3)]) == "better"
    assert examples.verdict([a_run(k, 0.5, 0.5 + 0.1 * (k - 1)) for k in range(3)]) == "nothing beyond chance"


def test_the_page_states_what_was_kept():
    kept = examples.read()
    assert set(kept) <= set(examples.CASES)
    table = examples.table(kept)
    assert table in examples.PAGE.read_text(encoding="utf-8")
    for name, runs in kept.items():
        seeds = [run["seed"] for run in runs]
        assert len(set(seeds)) == len(seeds)
        if len(seeds) == len(examples.CASES[name].seeds):
            assert f"| {name} |" in table


def test_a_run_is_kept_with_its_baseline_and_its_price():
    run = examples.measure(examples.task("bird-strikes", seed=5), 5)
    assert (run["score_name"], run["clients"], run["seed"]) == ("auc", 41, 5)
    assert 0.5 < run["before"] < 1
    assert 0 < run["spent"] <= 10 * 0.5 * 41
    assert 0 < run["epsilon"] <= examples.WALLET < run["epsilon_if_others_collude"]
