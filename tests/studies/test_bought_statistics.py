"""The page on bought statistics follows from its runs, and its runs are equal in ε and money."""

import json
from collections import defaultdict
from dataclasses import asdict

import pytest

from privmarket_studies.bought_statistics import ARMS, FOLDER, Run, interval, kept, render


def test_the_page_is_rendered_from_its_runs():
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == render()


def test_columns_are_equal_in_money_and_epsilon():
    """Nobody gains by spending more: the three runs of a cell differ in what is sold, and in nothing else."""
    spent = defaultdict(set)
    for run in kept():
        if run.statistics in ARMS:
            spent[run.task, run.public, run.wallet, run.seed].add((run.spent, run.largest_epsilon))
    assert all(len(found) == 1 for found in spent.values())


def test_intervals_are_of_paired_differences(tmp_path):
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.302653 / 3**0.5)  # Student's t with two degrees of freedom, deviation 1
    base = Run("medpar", 0, 1.0, "none", 0, "auc", 0.5, 5.0, 0.5, 1.0)
    runs = []
    for seed in range(3):
        for arm, gain in zip(ARMS, (0.0, 0.3, 0.1), strict=True):
            runs.append(asdict(base) | {"seed": seed, "statistics": arm, "score": 0.5 + 0.01 * seed + gain})
    (tmp_path / "runs.json").write_text(json.dumps(runs), encoding="utf-8")
    page = render(tmp_path)
    assert "+0.1000 ± 0.0000 | -0.2000 ± 0.0000 | 3 |" in page
    assert "*moments − none* lies above 0 on medpar (at ε = 1)" in page
    assert "*moments − free* on no task" in page  # what loses is not said to win


def test_the_verdict_says_at_which_epsilon(tmp_path):
    base = Run("medpar", 0, 1.0, "none", 0, "auc", 0.5, 5.0, 0.5, 1.0)
    runs = []
    for wallet, gain in ((0.3, 0.0), (1.0, 0.1)):
        for seed in range(3):
            for arm in ARMS:
                score = 0.5 + 0.01 * seed + (gain if arm == "moments" else 0.0)
                runs.append(asdict(base) | {"seed": seed, "statistics": arm, "score": score, "wallet": wallet})
    (tmp_path / "runs.json").write_text(json.dumps(runs), encoding="utf-8")
    page = render(tmp_path)
    assert "*moments − free* on medpar (at ε = 1; not at 0.3)" in page
    assert "(2 rows each, without a correction for their number)" in page
