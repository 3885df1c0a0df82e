"""A bar on stderr for work that takes a while."""

from __future__ import annotations

import sys
import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from privmarket.cli._options import note

# Where stderr is no terminal, a line is written after so many seconds, and then not more often than this.
_FIRST_LINE_SECONDS = 2.0
_NEXT_LINE_SECONDS = 10.0


class ProgressBar:
    """How much is done, how long the rest will take, and a line of figures; shown while it is entered.

    Args:
        label: what is being done, one word.
        total: how many steps there are; where it is a guess, more may be taken, and `finish` ends it early.
        transient: whether the bar disappears at the end.
    """

    def __init__(self, label: str, total: int, *, transient: bool = False) -> None:
        self._bar = Progress(
            TextColumn(label),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=transient,
        )
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, done: int, figures: str = "") -> None:
        """Moves the bar to `done` steps and replaces the figures."""
        self._bar.update(self._task, completed=done, description=figures)

    def advance(self, steps: int, figures: str = "") -> None:
        """Moves the bar on by `steps` and replaces the figures."""
        self._bar.update(self._task, advance=steps, description=figures)
        task = self._bar.tasks[0]
        if task.total is not None and task.completed > task.total:
            self._bar.update(self._task, total=task.completed)

    def finish(self) -> None:
        """Says that all is done, where fewer steps were needed than expected."""
        self._bar.update(self._task, total=self._bar.tasks[0].completed)

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        if text:
            self._bar.console.print(f"[dim]{text}[/dim]")


class WorkBar:
    """A bar for work whose size may not be known: moving on a terminal, a line now and then elsewhere.

    Work that is done within two seconds leaves no line behind.

    Args:
        label: what is being done, such as "reading table.csv".
        unit: what is counted, such as "rows".
    """

    def __init__(self, label: str, unit: str) -> None:
        self._label = label
        self._unit = unit
        self._started = time.monotonic()
        self._next_line = self._started + _FIRST_LINE_SECONDS
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(label, total=None)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: int, total: int) -> None:
        """Says that so many are done, of so many (0 if that is not known)."""
        of = f" of {total:,}" if total else ""
        text = f"{self._label}: {done:,}{of} {self._unit}"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total or None, description=text)
            return
        now = time.monotonic()
        if now >= self._next_line:
            self._next_line = now + _NEXT_LINE_SECONDS
            note(f"{text}, {now - self._started:.0f} s")
