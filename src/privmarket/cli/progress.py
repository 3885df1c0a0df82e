"""A bar on stderr for work that takes a while."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


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
