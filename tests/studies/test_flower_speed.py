"""What Flower costs beside the plain simulation: the bench, and what its page says."""

from __future__ import annotations

import json
from pathlib import Path

from privmarket_studies.flower_speed import measure

ROOT = Path(__file__).resolve().parents[2]


def test_the_bench_gives_ratios():
    report = measure("digits", turns=1)
    assert [row["ratio"] > 0 for row in report["overhead"]] == [True, True]
    assert report["bids"]["clients"] == 1000


def test_the_kept_results_say_what_the_page_says():
    folder = ROOT / "docs" / "results" / "flower"
    page = (folder / "README.md").read_text()
    for name in ("mnist", "digits"):
        for row in json.loads((folder / f"overhead-{name}.json").read_text())["overhead"]:
            assert f"{row['grid_seconds']:.3f} s | {row['ratio']:.2f} |" in page
    rehearsal = json.loads((folder / "rehearsal.json").read_text())
    for promise, kept in rehearsal["verdicts"].items():
        assert f"| {promise} | {'kept' if kept else 'BROKEN'} |" in page
