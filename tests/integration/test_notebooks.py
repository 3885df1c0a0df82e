"""The documentation's notebooks run, and show what is stored in them."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

import privmarket as pm
from privmarket_fixtures.notebooks import run, shown_text

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_they_are_all_here():
    assert [path.stem for path in NOTEBOOKS] == [
        "accounting",
        "auction-and-audit",
        "broker-from-python",
        "equilibrium",
        "federated-run-both-trusts",
        "learning",
        "own-data",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_shows_what_is_stored_in_it(path, tmp_path):
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert shown_text(run(stored, tmp_path)) == shown_text(stored)


def test_a_changed_output_and_a_failing_cell_are_noticed(tmp_path):
    cell = {"cell_type": "code", "metadata": {}, "source": ["print(1)\n", "1 + 1"], "outputs": []}
    made = run({"cells": [cell]}, tmp_path)
    assert shown_text(made) == ["1\n2"]
    changed = copy.deepcopy(made)
    changed["cells"][0]["source"] = ["print(2)"]
    assert shown_text(run(changed, tmp_path)) != shown_text(made)
    broken = {"cells": [{**cell, "source": ["1 / 0"]}]}
    with pytest.raises(ZeroDivisionError):
        run(broken, tmp_path)


def test_the_auction_notebook_describes_the_figure_that_it_draws():
    """It once told of a scatter plot ("far right", "high up") below a figure of bars."""
    cells = json.loads((FOLDER / "auction-and-audit.ipynb").read_text(encoding="utf-8"))["cells"]
    (at,) = [i for i, cell in enumerate(cells) if "".join(cell["source"]).endswith(".plot()")]
    told = "".join(cells[at + 1]["source"])
    drawn = pm.compare(["pac", "mean-field-menu"], clients=6, budget=3.0, profiles=1).plot()
    left, right = drawn.axes
    assert left.get_xlabel().startswith("ε bought / fluid bound")
    assert "Left, ε bought as a share of the fluid bound" in told
    assert right.get_xscale() == "log"
    assert "Right, on\na logarithmic axis, the most that a client gained by a misreport" in told
    assert right.get_xlabel().startswith("worst misreport")
    assert len(left.patches) == 2  # one row per rule
    assert "One row per rule" in told
