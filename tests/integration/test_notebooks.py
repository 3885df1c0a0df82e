"""The documentation's notebooks run, and show what is stored in them."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from privmarket_studies.notebooks import run, shown_text

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == [
        "auction-and-audit",
        "broker-from-python",
        "federated-run-both-trusts",
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
