"""The pages about the mean-field game follow from their kept files, and the files reach their bars."""

import json
from pathlib import Path

from privmarket_studies.game_results import render_equilibrium, render_nash_gap, rendered
from privmarket_studies.reproduce.cells import weights_digest

FOLDER = Path(__file__).parents[2] / "docs" / "results"


def kept(name):
    return json.loads((FOLDER / name / f"{name}.json").read_text(encoding="utf-8"))


def test_the_pages_are_rendered_from_the_files():
    assert [path.name for path, text in rendered(FOLDER).items() if path.read_text(encoding="utf-8") != text] == []


def test_a_changed_figure_would_be_seen():
    facts = kept("equilibrium")
    facts["solved"]["earned"] *= 3.0
    assert render_equilibrium(facts) != (FOLDER / "equilibrium" / "README.md").read_text(encoding="utf-8")
    report = kept("nash-gap")
    report["slopes"]["iid/mean-field-menu/hindsight/relative"]["slope"] = -0.123
    assert "−0.12 [" in render_nash_gap(report)


def test_the_solved_game_reaches_its_bars():
    facts = kept("equilibrium")
    assert facts["exploitability_on_fine_grid"] < 1e-3 < facts["exploitability_of_truth"]
    assert facts["price_difference_of_two_starts"] < 1e-6


def test_the_stand_in_belongs_to_the_weights_that_ship():
    for cell in kept("nash-gap")["proxy"].values():
        assert cell.get("weights") == weights_digest(cell["mechanism"])
