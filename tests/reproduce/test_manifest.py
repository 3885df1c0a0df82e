"""No kept result is lost unnoticed: the manifest, its history, and ways to lose cells that it must catch."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from privmarket_studies.reproduce import manifest, publish
from privmarket_studies.reproduce.cache import read_bundle, write_bundle
from privmarket_studies.reproduce.questions import QUESTIONS
from privmarket_studies.reproduce.scale import Scale

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs/results"
PLACE = f"docs/results/{manifest.NAME}"


def test_every_result_of_the_manifest_is_there():
    assert manifest.losses(manifest.read(KEPT), manifest.inventory(KEPT)) == []


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_cells_of_a_question_are_those_of_the_manifest(name):
    last = manifest.read(KEPT)[name]["history"][-1]
    there = manifest.inventory(KEPT)[name]
    assert (there.results, there.digest) == (last["results"], last["digest"])


def test_fewer_results_have_a_reason():
    assert manifest.unexplained(manifest.read(KEPT)) == []


def test_the_manifest_still_says_what_earlier_commits_said():
    git = ["git", "-C", str(ROOT)]
    log = subprocess.run([*git, "log", "--format=%H", "--", PLACE], capture_output=True, text=True, check=False)
    if log.returncode != 0:
        pytest.skip("not a git checkout: only the manifest itself can be compared")
    now = manifest.read(KEPT)
    for commit in log.stdout.split():
        text = subprocess.run([*git, "show", f"{commit}:{PLACE}"], capture_output=True, text=True, check=False)
        if text.returncode == 0:  # a commit that removed the file has none
            assert manifest.rewritten(json.loads(text.stdout), now) == [], f"compared with commit {commit[:8]}"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "fairness").mkdir()
    shutil.copy(KEPT / "fairness" / publish.CELLS, tmp_path / "fairness" / publish.CELLS)
    manifest.update(tmp_path)
    return tmp_path


def drop_one(folder: Path) -> None:
    place = folder / "fairness" / publish.CELLS
    write_bundle(place, read_bundle(place)[1:])


def test_a_dropped_cell_is_named_and_not_published(folder):
    drop_one(folder)
    (said,) = manifest.losses(manifest.read(folder), manifest.inventory(folder))
    assert "fairness: " in said
    assert " instead of " in said
    before = (folder / manifest.NAME).read_text()
    with pytest.raises(manifest.LostCellsError, match="instead of"):
        publish.publish(folder)
    assert (folder / manifest.NAME).read_text() == before


def test_a_dropped_cell_with_a_reason_is_remembered(folder):
    before = manifest.read(folder)
    drop_one(folder)
    manifest.update(folder, "the seed was drawn twice")
    now = manifest.read(folder)
    assert now["fairness"]["history"][-1]["why_fewer"] == "the seed was drawn twice"
    assert manifest.unexplained(now) == []
    assert manifest.rewritten(before, now) == []


def test_a_manifest_edited_to_fewer_cells_is_caught(folder):
    before = manifest.read(folder)
    drop_one(folder)
    manifest.update(folder, "any")
    forged = manifest.read(folder)
    del forged["fairness"]["history"][-1]["why_fewer"]
    assert manifest.unexplained(forged)
    # An older tree put over a newer one: cells, manifest and all.
    assert manifest.rewritten(manifest.read(folder), before)


def test_a_cell_swapped_for_another_changes_the_digest(folder):
    place = folder / "fairness" / publish.CELLS
    written = manifest.read(folder)["fairness"]["history"][-1]["digest"]
    assert manifest.inventory(folder)["fairness"].digest == written
    write_bundle(place, [*read_bundle(place)[1:], *read_bundle(KEPT / "rq3" / publish.CELLS)[:1]])
    assert manifest.inventory(folder)["fairness"].digest != written


def test_keeping_a_quick_run_does_not_drop_the_full_one(folder):
    question = QUESTIONS["fairness"]
    before = (folder / "fairness" / publish.CELLS).read_text()
    with pytest.raises(manifest.LostCellsError, match="kept cells are not among those asked for"):
        publish.keep(question, question.cells(Scale(quick=True)), [], folder)
    assert (folder / "fairness" / publish.CELLS).read_text() == before


def test_a_stale_cell_stays_until_it_is_replaced(folder, monkeypatch):
    from privmarket_studies.reproduce import cells

    question = QUESTIONS["fairness"]
    listed = question.cells(Scale())
    monkeypatch.setattr(cells, "weights_digest", lambda mechanism: "new")
    publish.keep(question, listed, [], folder)
    kept = read_bundle(folder / "fairness" / publish.CELLS)
    assert len(kept) == len(listed)
    assert any(record.stale for record in kept)
