"""The page of learned mechanisms follows from the weights and the kept files, and the files reach their bars."""

import json
import shutil
from pathlib import Path

import pytest

from privmarket_studies.learned_results import COMPARED, render

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "learned"


def kept(name):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def test_the_page_is_rendered_from_the_weights_and_the_files():
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == render(FOLDER)


def test_a_changed_figure_would_be_seen(tmp_path):
    folder = tmp_path / "learned"
    folder.mkdir()
    (tmp_path / "rq1").mkdir()
    shutil.copy(FOLDER.parent / "rq1" / "cells.jsonl", tmp_path / "rq1")
    for name in ("comparison", "misreports", "tuning", "frontier", "speed"):
        (folder / f"{name}.json").write_text(json.dumps(kept(name)), encoding="utf-8")
    assert render(folder) == render(FOLDER)
    speed = {**kept("speed"), "forward_ratio": 9.87}
    (folder / "speed.json").write_text(json.dumps(speed), encoding="utf-8")
    assert "9.87" in render(folder)


def test_a_thousand_clients_are_attacked_in_many_markets():
    """One market of a thousand clients is no mean: markets differ by a factor of two and more."""
    shown = [line for line in render(FOLDER).splitlines() if line.startswith("| `mfg-regretnet` | uniform")]
    rows = [line.split(" | ") for line in shown]
    (large,) = [row for row in rows if row[2] == "1,000"]
    assert int(large[4]) >= 20


def test_speed_as_it_was_measured():
    report = kept("speed")
    assert report["step_ratio"] <= 1 / 3
    assert report["forward_ratio"] <= 1.5
    assert report["mean_field_exponent"] <= 1.1
    assert report["peak_gigabytes"] < 2


@pytest.mark.parametrize("row", kept("comparison"), ids=lambda row: f"{row['scenario']}-{row['clients']}")
def test_networks_and_classical_rules_stand_as_the_theory_page_says(row):
    ratio, small = row["ratio"], row["clients"] <= 30
    assert set(ratio) == set(COMPARED)
    classical = max(ratio[name] for name in ("mfg-menunet", "proportional-share", "pac"))
    assert min(ratio["mfg-regretnet"], ratio["regretnet"]) > classical
    assert ratio["regretnet"] == pytest.approx(ratio["mfg-regretnet"], abs=0.01)
    levels = ratio["dm-regretnet"]
    assert levels > classical if small else levels == pytest.approx(classical, abs=0.02)
    assert (levels < ratio["mfg-regretnet"]) == (row["clients"] > 10)
