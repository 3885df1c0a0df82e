"""No kept result is lost unnoticed: the manifest, its history, and ways to lose cells that it must catch."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from privmarket.errors import PrivmarketError
from privmarket_studies.reproduce import manifest, publish
from privmarket_studies.reproduce.cache import read_bundle, write_bundle
from privmarket_studies.reproduce.cells import Scale
from privmarket_studies.reproduce.questions import QUESTIONS

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs/results"
PLACE = f"docs/results/{manifest.NAME}"


@pytest.fixture(scope="module")
def there():
    return manifest.inventory(KEPT)


def test_every_result_of_the_manifest_is_there(there):
    assert manifest.losses(manifest.read(KEPT), there) == []


def test_every_result_is_in_the_manifest(there):
    remedy = "run: python -m privmarket_studies.reproduce.manifest docs/results"
    assert manifest.unlisted(manifest.read(KEPT), there) == [], remedy


@pytest.mark.parametrize("name", sorted(path.name for path in KEPT.iterdir() if path.is_dir()))
def test_every_folder_of_results_belongs_to_a_study(name):
    assert name in {study.partition("/")[0] for study in manifest.read(KEPT)}


@pytest.mark.parametrize("name", manifest.read(KEPT))
def test_the_results_of_a_study_are_those_of_the_manifest(name, there):
    last = manifest.read(KEPT)[name]["history"][-1]
    found = there.get(name, manifest.Inventory({}, ""))  # of a study that was given up nothing is there
    assert (found.results, found.digest) == (last["results"], last["digest"])


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
    assert " (gone: " in said
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


def replace_one(folder: Path) -> None:
    """One cell of a group gives way to another of the same group: the count stays."""
    place = folder / "fairness" / publish.CELLS
    first, *others = read_bundle(place)
    write_bundle(place, [replace(first, cell=replace(first.cell, seed=1_000)), *others])


def test_a_cell_replaced_inside_its_group_needs_a_reason(folder):
    before = manifest.read(folder)
    replace_one(folder)
    (said,) = manifest.losses(before, manifest.inventory(folder))
    assert "10 instead of 10" in said
    with pytest.raises(manifest.LostCellsError, match="gone"):
        manifest.update(folder)
    assert manifest.read(folder) == before
    manifest.update(folder, "the seed was wrong")
    now = manifest.read(folder)
    assert now["fairness"]["history"][-1]["why_fewer"] == "the seed was wrong"
    assert manifest.unexplained(now) == manifest.rewritten(before, now) == []
    del now["fairness"]["history"][-1]["why_fewer"]
    assert manifest.unexplained(now)
    assert manifest.rewritten(before, now) == [
        "fairness: results of fairness csra left the manifest without a reason"
    ]


KINDS_OF_FILES = {
    "a run in a file of its own": ("trust/runs/a-seed-0.json", {}, None),
    "a row of a log": ("broker/kills.json", [{"kills": 1}, {"kills": 2}], [{"kills": 1}]),
    "a row of a table": (
        "aggregate-rules/comparison.json",
        [{"scenario": "uniform", "budget": 1.0}, {"scenario": "uniform", "budget": 2.0}],
        [{"scenario": "uniform", "budget": 1.0}, {"scenario": "uniform", "budget": 3.0}],
    ),
    "a measurement": ("nash-gap/nash-gap.json", {"cells": {"a": 1, "b": 2}}, {"cells": {"a": 1}}),
    "a whole section": ("speed/memory.json", {"peak": 1, "record": 2}, {"peak": 1}),
    "a measured sum": (
        "secure-sums/costs.json",
        {"sums": [{"sellers": 9, "weights": 1, "dropped": 0}], "fuzz": {"rounds": 1}},
        {"sums": [], "fuzz": {"rounds": 1}},
    ),
    "a section beside the sums": (
        "secure-sums/costs.json",
        {"sums": [{"sellers": 9, "weights": 1, "dropped": 0}], "fuzz": {"rounds": 1}},
        {"sums": [{"sellers": 9, "weights": 1, "dropped": 0}]},
    ),
    "a whole file": ("flower/engines.json", {"same": True}, None),
}


@pytest.mark.parametrize("kind", KINDS_OF_FILES)
def test_a_loss_of_any_kind_is_caught(kind, tmp_path):
    name, before, after = KINDS_OF_FILES[kind]
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(before))
    manifest.update(tmp_path)
    assert manifest.losses(manifest.read(tmp_path), manifest.inventory(tmp_path)) == []
    if after is None:
        path.unlink()
    else:
        path.write_text(json.dumps(after))
    assert manifest.losses(manifest.read(tmp_path), manifest.inventory(tmp_path))
    with pytest.raises(manifest.LostCellsError):
        manifest.update(tmp_path)


def test_figures_that_are_measured_again_are_no_loss(tmp_path):
    (tmp_path / "speed").mkdir()
    for peak in (1.0, 2.0):
        (tmp_path / "speed/memory.json").write_text(json.dumps({"peak": {"100": peak}}))
        manifest.update(tmp_path)
    assert len(manifest.read(tmp_path)["speed"]["history"]) == 1


def test_a_new_study_that_nobody_listed_is_caught(folder):
    (folder / "new-study").mkdir()
    (folder / "new-study/results.json").write_text('{"accuracy": 0.9}')
    (said,) = manifest.unlisted(manifest.read(folder), manifest.inventory(folder))
    assert said.startswith("new-study: ")
    (folder / "new-study/results.npz").write_bytes(b"")
    with pytest.raises(PrivmarketError, match=r"results\.npz"):
        manifest.inventory(folder)


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
