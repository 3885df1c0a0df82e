"""Commands as processes of their own, forked from one that has imported what takes long.

A fresh interpreter that imports torch takes three seconds, a fork of one that has hundredths. A forked command
has its own memory, arguments, folder, environment, output and exit code, and can be killed. What it cannot show is
what a fresh interpreter imports: tests about that start one.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

_PRELOADED = (
    "privmarket.cli",
    "privmarket.simulation._federation",
    "privmarket.mechanisms.learned._session",
    "torch._dynamo",  # which the first optimizer of a process imports, two seconds
    "privmarket.market._audit",
)
_context = multiprocessing.get_context("forkserver")


def start_server() -> None:
    """Starts the process that others are forked from; the product's workers are forked from it, too."""
    _context.set_forkserver_preload([*_PRELOADED])
    multiprocessing.forkserver.ensure_running()


class Forked:
    """A function under way in a process of its own, with what it writes kept in files."""

    def __init__(
        self,
        function: Callable[..., object],
        *arguments: Any,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        place = (str(cwd or os.getcwd()), {**os.environ, **(env or {})}, self._folder.name)
        self.process: ForkServerProcess = _context.Process(target=_inside, args=(place, function, arguments))
        self.process.start()

    def end(self, timeout: float = 800) -> subprocess.CompletedProcess[str]:
        """Waits for it."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise AssertionError(f"still running after {timeout} s")
        output = [(Path(self._folder.name) / name).read_text() for name in ("stdout", "stderr")]
        self._folder.cleanup()
        return subprocess.CompletedProcess([], self.process.exitcode, *output)


def privmarket(*words: object, cwd: Path | str | None = None, env: Mapping[str, str] | None = None) -> Forked:
    """Starts `privmarket WORDS`."""
    return Forked(_command, [str(word) for word in words], cwd=cwd, env=env)


def _command(words: list[str]) -> None:
    from privmarket.cli import main

    sys.argv = ["privmarket", *words]
    main()


def _inside(place: tuple[str, dict[str, str], str], function: Callable[..., object], arguments: Any) -> None:
    folder, environment, outputs = place
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(Path(outputs) / name, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    sys.path.insert(0, folder)
    os.environ.clear()
    os.environ.update(environment)
    function(*arguments)
