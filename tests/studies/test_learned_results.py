"""The page of learned mechanisms follows from the weights and the kept files, and the files reach their bars."""

import json
from pathlib import Path

import pytest

from privmarket_studies.learned_results import COMPARED, render

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "learned"


def kept(name):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def test_the_page_is_rendered_from_the_weights_and_the_files():
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == render(FOLDER)


def test_a_changed_figure_would_be_seen(tmp_path):
    for name in ("comparison", "tuning", "frontier", "speed"):
        (tmp_path / f"{name}.json").write_text(json.dumps(kept(name)), encoding="utf-8")
    assert render(tmp_path) == render(FOLDER)
    speed = {**kept("speed"), "forward_ratio": 9.87}
    (tmp_path / "speed.json").write_text(json.dumps(speed), encoding="utf-8")
    assert "9.87" in render(tmp_path)


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
