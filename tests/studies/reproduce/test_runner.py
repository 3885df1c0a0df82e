"""Cells are computed once, failures cost nothing but themselves, and two runs can share a cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save as to_bytes

from privmarket_studies.reproduce import cells as cells_module
from privmarket_studies.reproduce.cache import Cache, Record, read_bundle, versions, write_bundle
from privmarket_studies.reproduce.cells import Cell, parameters_digest, weights_digest
from privmarket_studies.reproduce.estimate import CellTimer
from privmarket_studies.reproduce.publish import versions_of
from privmarket_studies.reproduce.runner import compute, run_cells

HERE = "tests.studies.reproduce.sample_cells"


def squares(count: int = 4) -> list[Cell]:
    return [Cell(f"{HERE}:square", {"x": x}, seed=0) for x in range(count)]


def test_results_come_in_order_and_are_kept(tmp_path):
    cache = Cache(tmp_path)
    first = run_cells(squares(), cache)
    assert [r.result["value"] for r in first] == [0, 1, 4, 9]
    again = run_cells(squares(), cache)
    assert [r.to_json() for r in again] == [r.to_json() for r in first]


def test_a_kept_cell_is_not_computed_again(tmp_path):
    log = tmp_path / "log"
    cell = Cell(f"{HERE}:slow_and_counted", {"x": 1, "log": str(log), "seconds": 0}, 0)
    for _ in range(3):
        run_cells([cell, cell], Cache(tmp_path / "cache"))
    assert log.read_text() == "1\n"


def test_results_kept_elsewhere_are_taken_over_unless_they_are_stale(tmp_path):
    log = tmp_path / "log"
    cells = [Cell(f"{HERE}:slow_and_counted", {"x": x, "log": str(log), "seconds": 0}, 0) for x in (1, 2)]
    good, old = run_cells(cells, Cache(tmp_path / "first"))
    fresh = Cache(tmp_path / "second")
    fresh.adopt([good, replace(old, depends_on={"revision": 0})])
    run_cells(cells, fresh)
    assert log.read_text() == "1\n2\n2\n", "the stale one is computed again, the other not"


def test_configuration_and_seed_name_a_cell():
    base = Cell("efficiency", {"mechanism": "pac", "clients": 10}, 0)
    assert base.key == Cell("efficiency", {"clients": 10, "mechanism": "pac"}, 0).key
    others = [
        Cell("efficiency", {"mechanism": "pac", "clients": 11}, 0),
        Cell("efficiency", {"mechanism": "pac", "clients": 10}, 1),
        Cell("regret", {"mechanism": "pac", "clients": 10}, 0),
    ]
    assert len({base.key, *(cell.key for cell in others)}) == 4


def test_cells_go_stale_with_the_weights_and_with_the_revision(monkeypatch):
    config = {"mechanism": "mfg-regretnet", "clients": 10}
    before = Cell("efficiency", config, 0)
    record = Record(before, before.depends_on, {}, None, 0.0, versions())
    assert weights_digest("mfg-regretnet") in before.depends_on.values()
    assert weights_digest("pac") is None
    assert not record.stale
    monkeypatch.setattr(cells_module, "weights_digest", lambda name: "other weights")
    after = Cell("efficiency", config, 0)
    assert after.slot == before.slot
    assert after.key != before.key
    assert Record(after, before.depends_on, {}, None, 0.0, versions()).stale
    monkeypatch.setitem(cells_module.KINDS, "efficiency", cells_module.Kind("m:f", revision=99))
    assert Cell("efficiency", {"mechanism": "pac"}, 0).depends_on["revision"] == 99


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failing_cell_is_shown_and_the_others_go_on(tmp_path, jobs):
    mended = tmp_path / "mended"
    wanted = [Cell(f"{HERE}:refuses_odd", {"x": x, "mended": str(mended)}, 0) for x in range(4)]
    cache = Cache(tmp_path / "cache")
    found = run_cells(wanted, cache, jobs=jobs)
    assert [r.failure for r in found] == [None, "ValueError: 1 is odd", None, "ValueError: 3 is odd"]
    assert cache.load_failure(wanted[1]).failure == "ValueError: 1 is odd"
    mended.touch()
    again = run_cells(wanted, cache, jobs=jobs)
    assert [r.result["value"] for r in again] == [0, 1, 2, 3]
    assert cache.load_failure(wanted[1]) is None


def test_a_process_that_dies_fails_its_cells_only(tmp_path):
    wanted = [Cell(f"{HERE}:dies", {"x": x}, 0) for x in (1, 2, 0, 3, 4)]
    found = run_cells(wanted, Cache(tmp_path), jobs=1 + 1)
    failed = [r for r in found if r.failure]
    assert 1 <= len(failed) <= 2
    assert all("died" in r.failure for r in failed)
    assert any(r.cell.config["x"] == 0 for r in failed)
    run_cells([c for c in wanted if c.config["x"]], Cache(tmp_path), jobs=1)
    assert all(Cache(tmp_path).load(c) for c in wanted if c.config["x"])


def test_several_processes_are_really_used(tmp_path):
    found = run_cells(squares(3), Cache(tmp_path), jobs=2)
    assert os.getpid() not in {r.result["process"] for r in found}


def test_time_limit_leaves_the_rest_for_the_next_run(tmp_path):
    cache = Cache(tmp_path)
    assert run_cells(squares(), cache, minutes=-1.0) == []
    assert len(run_cells(squares(), cache)) == 4


_ANOTHER_RUN = """
import json, sys
from pathlib import Path
from privmarket_studies.reproduce.cache import Cache
from privmarket_studies.reproduce.cells import Cell
from privmarket_studies.reproduce.runner import run_cells
cells = [Cell(k, c, s) for k, c, s in json.loads(sys.argv[2])]
found = run_cells(cells, Cache(Path(sys.argv[1])), jobs=int(sys.argv[3]))
print(len([r for r in found if r.result]))
"""


def test_runs_at_once_on_one_cache_compute_each_cell_once(tmp_path):
    """Three runs in real processes, all over the same cells, one of them with two workers."""
    log = tmp_path / "log"
    wanted = [(f"{HERE}:slow_and_counted", {"x": x, "log": str(log), "seconds": 0.05}, 0) for x in range(12)]
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", _ANOTHER_RUN, str(tmp_path / "cache"), json.dumps(wanted), jobs],
            stdout=subprocess.PIPE,
            env=environment,
            cwd=root,
        )
        for jobs in ("1", "1", "2")
    ]
    assert [run.communicate(timeout=800)[0].strip() for run in runs] == [b"12"] * 3
    assert sorted(int(line) for line in log.read_text().split()) == list(range(12))
    cache = Cache(tmp_path / "cache")
    assert all(cache.load(Cell(*cell)).result["text"] == "x" * 20_000 for cell in wanted)
    assert not list((tmp_path / "cache" / "cells").glob("*.part"))


def test_somebody_elses_cell_is_not_started(tmp_path):
    cache, cell = Cache(tmp_path), squares(1)[0]
    with cache.lock(cell) as mine:
        assert mine
        assert compute(cell, tmp_path) is None
        # A run waits for it: it is let go after a while, from outside.
        done: list[Record] = []
        waiting = threading.Thread(target=lambda: done.extend(run_cells([cell], cache)))
        waiting.start()
        waiting.join(timeout=0.8)
        assert waiting.is_alive()
    waiting.join(timeout=20)
    assert done[0].result["value"] == 0


def test_a_damaged_file_is_no_result(tmp_path):
    cache, cell = Cache(tmp_path), squares(1)[0]
    run_cells([cell], cache)
    place = next((tmp_path / "cells").glob("*.json"))
    place.write_text(place.read_text()[:40])
    assert cache.load(cell) is None
    assert run_cells([cell], cache)[0].result["value"] == 0
    assert cache.load(cell).result["value"] == 0


def test_a_bundle_gives_back_what_was_kept(tmp_path):
    found = run_cells(squares(), Cache(tmp_path))
    write_bundle(tmp_path / "bundle.jsonl", reversed(found))
    first = (tmp_path / "bundle.jsonl").read_text()
    write_bundle(tmp_path / "bundle.jsonl", found)
    assert (tmp_path / "bundle.jsonl").read_text() == first
    kept = read_bundle(tmp_path / "bundle.jsonl")
    assert {r.cell.slot: r.result for r in kept} == {r.cell.slot: r.result for r in found}


def test_estimates_come_from_measured_times_only():
    clock = CellTimer()
    cheap, dear = Cell("regret", {"mechanism": "pac"}, 0, cost=1), Cell("regret", {"mechanism": "csra"}, 0, cost=5)
    assert str(clock.remaining([cheap, dear], 1)) == "time unknown"
    clock.add(dear, 20.0)
    left = clock.remaining([Cell("regret", {"mechanism": "csra"}, 1, cost=10), cheap], 2)
    assert (left.seconds, left.untimed) == (20.0, 1)
    assert str(left) == "about 20 s left + 1 cells not yet timed"


def test_weights_are_named_by_their_parameters_not_by_what_was_measured_about_them():
    def stored(value: float, note: str) -> bytes:
        return to_bytes({"layer": np.full(3, value)}, metadata={"facts": note})

    assert parameters_digest(stored(1.0, "a")) == parameters_digest(stored(1.0, "measured again"))
    assert parameters_digest(stored(1.0, "a")) != parameters_digest(stored(1.5, "a"))


def test_the_index_names_every_version_with_its_number_of_cells():
    cell = squares(1)[0]
    before = Record(cell, cell.depends_on, {}, None, 0.0, {"privmarket": "0.1.0", "numpy": "2.0"})
    after = Record(cell, cell.depends_on, {}, None, 0.0, {"privmarket": "0.2.0", "numpy": "2.0"})
    assert versions_of([before, after, after]) == {"privmarket": "0.1.0 (1) and 0.2.0 (2)", "numpy": "2.0 (3)"}
