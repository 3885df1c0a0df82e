"""Training that is killed, or meets a full disk: the earlier checkpoint is whole, and the result is the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from privmarket.mechanisms.learned.session import checkpoint_path
from privmarket.mechanisms.learned.weights import load

# A session that saves after every step; `SIZE` limits the files that it may write once step 4 is done, and
# `PAUSE` makes steps slow enough to be killed in one.
SESSION = """
import os, resource, sys, time
from pathlib import Path
from privmarket.errors import PrivmarketError
from privmarket.market.scenarios import scenario
from privmarket.mechanisms.learned import session
from privmarket.mechanisms.learned.recipes import MisreportSearch, Recipe

session._SAVE_EVERY_SECONDS = 0.0
recipe = Recipe("mfg-regretnet", scenarios=("uniform",), clients=(5, 20), steps=10, rows=64,
                network={"menus": 4, "hidden": 8, "gate_hidden": 8}, attack=MisreportSearch(rows=32))

def after_step(progress):
    if progress.step == 4 and "SIZE" in os.environ:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ["SIZE"]), resource.RLIM_INFINITY))
    time.sleep(float(os.environ.get("PAUSE", 0)))

try:
    session.train(recipe, [scenario("uniform")], Path(sys.argv[1]), after_step)
except PrivmarketError as error:
    sys.exit(f"{error} | {error.hint}")
"""


def start(out: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SESSION, str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(out: Path, **environment: str) -> tuple[int, str]:
    process = start(out, **environment)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


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
    process = start(out, PAUSE="0.2")
    limit = time.monotonic() + 90
    while not (checkpoint_path(out).exists() and steps_done(out) >= 3):
        assert process.poll() is None, "the session ended before it could be killed"
        assert time.monotonic() < limit
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert 3 <= steps_done(out) < 10
    assert not out.exists()
    assert finish(out) == (0, "")
    assert_same(arrays(out), uninterrupted)


def test_no_room_for_the_next_checkpoint(tmp_path, uninterrupted):
    """The operating system refuses the write: a clear error, the last checkpoint whole, nothing half-written."""
    out = tmp_path / "w.safetensors"
    code, errors = finish(out, SIZE="2000")
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
        process = start(out, PAUSE="0.2")
        while not (checkpoint_path(out).exists() and steps_done(out) >= 2):
            assert process.poll() is None
            time.sleep(0.02)
        with open(fill, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 4096)
            except OSError:
                pass
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "No space left on device" in errors
        kept = steps_done(out)
        assert 2 <= kept < 10
        fill.unlink()
        assert finish(out) == (0, "")
        assert_same(arrays(out), uninterrupted)
    finally:
        subprocess.run(["umount", str(disk)], check=False)
