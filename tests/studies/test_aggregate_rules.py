"""The page that compares exact rules under aggregate trust."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privmarket_studies.aggregate_rules import FIXED, LEARNED, compare_row, render, typical_row

KEPT = Path(__file__).parents[2] / "docs/results/aggregate-rules"


def test_the_kept_page_is_what_its_file_gives():
    rows, typical = (json.loads((KEPT / name).read_text()) for name in ("comparison.json", "typical.json"))
    assert (KEPT / "README.md").read_text() == render(rows, typical)


def test_a_kept_row_comes_out_again():
    kept = json.loads((KEPT / "comparison.json").read_text())[0]
    row = compare_row(kept["scenario"], kept["heterogeneity"], kept["budget"], kept["markets"])
    for name in (*FIXED, LEARNED):
        assert row["error"][name] == pytest.approx(kept["error"][name], rel=1e-6)
    assert row["money"] == pytest.approx(kept["money"], rel=1e-2)


def test_a_worse_learned_menu_would_be_seen():
    row = compare_row("uniform", 0.1, 20.0, 10)
    worse = {**row, "error": {**row["error"], LEARNED: 2 * row["error"]["two-step"]}, "gain": -1.0, "money": 2.0}
    typical = json.loads((KEPT / "typical.json").read_text())
    assert "in 0 of 1 rows" in render([worse], typical)
    assert "-100.0%" in render([worse], typical)


def test_a_kept_row_of_the_typical_error_comes_out_again():
    kept = json.loads((KEPT / "typical.json").read_text())[0]
    row = typical_row(kept["scenario"], kept["heterogeneity"], kept["budget"], kept["markets"])
    for name in ("graded", "learned", "for_the_worst", "fluid_bound"):
        assert row[name] == pytest.approx(kept[name], rel=1e-3)
