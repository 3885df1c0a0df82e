"""The record of the tuning is whole, and what ships is one of the trials."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from privmarket.mechanisms.learned._recipes import recipe
from privmarket_studies.learned_tuning import TRIALS, main, pending

KEPT = Path(__file__).parents[2] / "docs" / "results" / "learned" / "tuning.json"


def test_every_trial_has_its_row_and_another_setting_would_be_another_trial():
    rows = json.loads(KEPT.read_text(encoding="utf-8"))
    assert pending(rows) == []
    assert len(rows) == len(TRIALS)
    other = replace(TRIALS[0], settings={**TRIALS[0].settings, "learning_rate": 0.5})
    assert pending(rows, [*TRIALS, other]) == [other]


def test_a_whole_record_is_not_touched(tmp_path):
    copy = tmp_path / "tuning.json"
    copy.write_bytes(KEPT.read_bytes())
    main(copy)
    assert copy.read_bytes() == KEPT.read_bytes()


@pytest.mark.parametrize("name", ["regretnet", "dm-regretnet"])
def test_what_ships_was_tried(name):
    (tried,) = [t.recipe() for t in TRIALS if t.mechanism == name and "(ships)" in t.name]
    ships = recipe(name)
    assert replace(tried, steps=ships.steps, rows=ships.rows, attack=ships.attack) == ships
