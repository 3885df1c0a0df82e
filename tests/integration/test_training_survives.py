"""Training that is killed, or meets a full disk: the earlier checkpoint is whole, and the result is the same."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privmarket.errors import PrivmarketError
from privmarket.market._distributions import scenario
from privmarket.mechanisms.learned import _session as session
from privmarket.mechanisms.learned._recipes import MisreportSearch, Recipe
from privmarket.mechanisms.learned._session import checkpoint_path
from privmarket.mechanisms.learned._trainer import TrainingStep
from privmarket.mechanisms.learned._weights import load
from tests.forked import Forked

RECIPE = Recipe(
    "mfg-regretnet",
    scenarios=("uniform",),
    clients=(5, 20),
    steps=10,
    rows=64,
    network={"menus": 4, "hidden": 8, "gate_hidden": 8},
    attack=MisreportSearch(rows=32),
)
LONGER = replace(RECIPE, rows=4096, steps=30)  # steps long enough to be hit inside


def train(out: Path, largest_file: int | None, until: Path | None) -> None:
    """A session that saves after every step.

    Args:
        largest_file: once step 4 is done, the operating system refuses larger files.
        until: once step 4 is done, goes on when this file is there, so that it can be killed before.
    """
    session._SAVE_EVERY_SECONDS = 0.0

    def after_step(progress: TrainingStep) -> None:
        if progress.step == 4 and largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
        while progress.step == 4 and until is not None and not until.exists():
            time.sleep(0.02)

    try:
        session.run_recipe(RECIPE, [scenario("uniform")], out, after_step)
    except PrivmarketError as error:
        sys.exit(f"{error} | {error.hint}")


def whole(out: Path) -> None:
    session.run_recipe(LONGER, [scenario("uniform")], out)


def interrupted(out: Path, share: float) -> None:
    """A session to which SIGINT comes when `share` of its third step is done."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
    ended = [time.monotonic()]

    def after_step(_: TrainingStep) -> None:
        ended.append(time.monotonic())
        if len(ended) == 3:
            signal_self = threading.Timer(share * (ended[2] - ended[1]), os.kill, (os.getpid(), signal.SIGINT))
            signal_self.start()
        if len(ended) == 5:
            time.sleep(60)  # on a busy machine the signal may come late: it ends this

    try:
        session.run_recipe(LONGER, [scenario("uniform")], out, after_step)
    except KeyboardInterrupt:
        sys.exit(3)


def start(out: Path, *, largest_file: int | None = None, until: Path | None = None) -> Forked:
    return Forked(train, out, largest_file, until)


def finish(out: Path, **settings: Any) -> tuple[int, str]:
    done = start(out, **settings).end(120)
    return done.returncode, done.stderr


def arrays(out: Path) -> dict[str, np.ndarray]:
    return dict(load(out, "mfg-regretnet").arrays)


def steps_done(out: Path) -> int:
    return int(load(checkpoint_path(out), "mfg-regretnet#checkpoint").facts["step"])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("straight") / "w.safetensors"
    assert finish(out) == (0, "")
    return arrays(out)


def assert_same(found, known):
    assert found.keys() == known.keys()
    for name, array in known.items():
        np.testing.assert_array_equal(found[name], array)


def test_killed_without_warning(tmp_path, uninterrupted):
    """kill -9 between two checkpoints; the next session goes on and ends with the same weights."""
    out = tmp_path / "w.safetensors"
    under_way = start(out, until=tmp_path / "never")
    limit = time.monotonic() + 90
    while not (checkpoint_path(out).exists() and steps_done(out) >= 3):
        assert under_way.process.is_alive(), "the session ended before it could be killed"
        assert time.monotonic() < limit
        time.sleep(0.02)
    under_way.process.kill()
    assert under_way.end().returncode == -signal.SIGKILL
    assert 3 <= steps_done(out) < 10
    assert not out.exists()
    assert finish(out) == (0, "")
    assert_same(arrays(out), uninterrupted)


def test_interrupts_inside_steps_leave_the_state_of_whole_steps(tmp_path):
    """The stranger's: an interrupt in the middle of a step left chance and misreports half changed."""
    straight, out = tmp_path / "straight.safetensors", tmp_path / "w.safetensors"
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        assert Forked(interrupted, out, share).end(60).returncode == 3
    assert 10 <= steps_done(out) < 30
    for place in (straight, out):
        assert Forked(whole, place).end(60).returncode == 0
    assert_same(arrays(out), arrays(straight))


def test_no_room_for_the_next_checkpoint(tmp_path, uninterrupted):
    """The operating system refuses the write: a clear error, the last checkpoint whole, nothing half-written."""
    out = tmp_path / "w.safetensors"
    code, errors = finish(out, largest_file=2000)
    assert code == 1
    assert "could not write" in errors
    assert "an earlier file is untouched" in errors
    assert "Traceback" not in errors
    assert steps_done(out) == 4
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint_path(out).name]
    assert finish(out) == (0, "")
    assert_same(arrays(out), uninterrupted)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_disk_that_is_really_full(tmp_path, uninterrupted):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("this machine does not allow mounting")
    try:
        out = disk / "w.safetensors"
        fill = disk / "other"
        under_way = start(out, until=tmp_path / "filled")
        while not (checkpoint_path(out).exists() and steps_done(out) >= 2):
            assert under_way.process.is_alive()
            time.sleep(0.02)
        with open(fill, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 4096)
            except OSError:
                pass
        (tmp_path / "filled").touch()
        done = under_way.end(120)
        assert done.returncode == 1
        assert "No space left on device" in done.stderr
        kept = steps_done(out)
        assert 2 <= kept < 10
        fill.unlink()
        assert finish(out) == (0, "")
        assert_same(arrays(out), uninterrupted)
    finally:
        subprocess.run(["umount", str(disk)], check=False)
