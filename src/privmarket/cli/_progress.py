"""The progress of a long command, on stderr: a bar, or a live view with curves that can also be a page.

The page (`--watch FILE.html`) is a file, rewritten while the work goes on; a browser that shows it reloads it every
two seconds until the work is done. Nothing listens on a port.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar as RichBar
from rich.table import Table

from privmarket import _svg as charts
from privmarket._files import write_atomically
from privmarket.cli._options import note

if TYPE_CHECKING:
    from rich.console import RenderableType

# Where stderr is no terminal: seconds until the first line, and the least time between later ones.
_FIRST_LINE_SECONDS = 2.0
_NEXT_LINE_SECONDS = 10.0


class ProgressBar:
    """A progress bar with the remaining time and a line of figures; shown while it is entered.

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
        """Shows the bar as complete, also if fewer steps were needed than expected."""
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
        """Shows that `done` of `total` are done (0 if the total is not known)."""
        of = f" of {total:,}" if total else ""
        text = f"{self._label}: {done:,}{of} {self._unit}"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total or None, description=text)
            return
        now = time.monotonic()
        if now >= self._next_line:
            self._next_line = now + _NEXT_LINE_SECONDS
            note(f"{text}, {now - self._started:.0f} s")


Watch = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.html",
        help="Also show the live view as a page: open the file in a browser, it renews itself.",
    ),
]
_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 44
_PAGE_SECONDS = 1.0  # between two versions of the page
_LINES_IN_A_LOG = 10  # where stderr is no terminal, so many lines over the whole work


@dataclass(frozen=True)
class Curve:
    """One figure that changes with every step: its name, and how it is written."""

    name: str
    text: Callable[[float], str] = lambda value: f"{value:.4g}"


@dataclass
class LiveView:
    """Shows steps of a long work as they come, on stderr and, if asked, as a page.

    Attributes:
        title: what is being done.
        unit: what a step is called, such as "round".
        total: how many steps there will be.
        curves: what is drawn; `show` gives a value for each, or None where it was not measured.
        page: where to write the page; None for the terminal alone.
    """

    title: str
    unit: str
    total: int
    curves: Sequence[Curve]
    page: Path | None = None
    steps: list[int] = field(default_factory=list)
    values: dict[str, list[float | None]] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    _started: float = 0.0
    _page_written: float = 0.0
    _live: Live | None = None
    _ended: bool = False

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        if sys.stderr.isatty():
            self._live = Live(console=Console(stderr=True), get_renderable=self._panel, refresh_per_second=4)
            self._live.start()
        if self.page is not None:
            self._write_page(finished=False)
            note(f"live page: {self.page} (open it in a browser)")
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        self._ended = True
        if self.page is not None:
            self._write_page(finished=True)

    def say(self, text: str) -> None:
        """Prints a line above the view."""
        if self._live is not None:
            self._live.console.print(f"[dim]{text}[/dim]")
        else:
            note(text)

    def show(self, step: int, values: Mapping[str, float | None], facts: Mapping[str, str]) -> None:
        """Shows that one more step is done, with its figures.

        Args:
            step: how many are done now.
            values: curve → value; None where it was not measured.
            facts: label → text, shown beside the curves.
        """
        before = self.steps[-1] if self.steps else 0
        self.steps.append(step)
        for curve in self.curves:
            self.values.setdefault(curve.name, []).append(values.get(curve.name))
        self.facts = facts
        if self._live is None and step * _LINES_IN_A_LOG // self.total > before * _LINES_IN_A_LOG // self.total:
            note(self.line())
        if self.page is not None and time.monotonic() - self._page_written >= _PAGE_SECONDS:
            self._write_page(finished=False)

    def line(self) -> str:
        """One line that says how far the work is, with the latest figures."""
        done = self.steps[-1] if self.steps else 0
        figures = [f"{curve.name} {self._latest(curve)}" for curve in self.curves]
        return "  ".join(
            [f"{self.unit} {done}/{self.total}", *figures, *(f"{k} {v}" for k, v in self.facts.items())]
        )

    def _latest(self, curve: Curve) -> str:
        """The last measured value, with its step if that is not the last one."""
        values = self.values.get(curve.name, [])
        measured = [(step, value) for step, value in zip(self.steps, values, strict=False) if value is not None]
        if not measured:
            return "—"
        step, value = measured[-1]
        when = "" if step == self.steps[-1] else f" (after {self.unit} {step})"
        return curve.text(value) + when

    def _remaining(self) -> str:
        done = self.steps[-1] if self.steps else 0
        elapsed = time.monotonic() - self._started
        if done >= self.total:
            return f"done in {elapsed:.0f} s"
        if self._ended:
            return f"stopped after {elapsed:.0f} s"
        if not done:
            return "starting"
        return f"about {elapsed / len(self.steps) * (self.total - done):.0f} s left"

    def _panel(self) -> RenderableType:
        done = self.steps[-1] if self.steps else 0
        head = Table.grid(padding=(0, 1))
        head.add_row(f"{self.unit} {done}/{self.total}", RichBar(self.total, done, width=30), self._remaining())
        body = Table.grid(padding=(0, 2))
        for curve in self.curves:
            spark = sparkline(self.values.get(curve.name, []))
            body.add_row(curve.name, f"[bold]{self._latest(curve)}[/bold]", f"[cyan]{spark}[/cyan]")
        for label, text in self.facts.items():
            body.add_row(label, "", text)
        return Panel(Group(head, body), title=self.title, title_align="left", expand=False)

    def _write_page(self, *, finished: bool) -> None:
        assert self.page is not None
        self._page_written = time.monotonic()
        drawn = "".join(
            f"<h2>{escape(curve.name)}: {escape(self._latest(curve))}</h2>"
            + charts.line_chart(
                [charts.Line(curve.name, *self._points(curve), charts.ORANGE, strong=True)],
                x_title=self.unit,
                y_title="",
                y_text=curve.text,
            )
            for curve in self.curves
            if any(value is not None for value in self.values.get(curve.name, []))
        )
        facts = "".join(f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in self.facts.items())
        done = self.steps[-1] if self.steps else 0
        write_atomically(
            self.page,
            _PAGE.format(
                refresh="" if finished else '<meta http-equiv="refresh" content="2">',
                style=charts.STYLE,
                title=escape(self.title),
                where=escape(f"{self.unit} {done} of {self.total}, {self._remaining()}"),
                share=100 * done / self.total,
                facts=facts,
                charts=drawn,
            ),
        )

    def _points(self, curve: Curve, most: int = 400) -> tuple[list[int], list[float | None]]:
        """The measured values, thinned out to at most `most` points."""
        found = [(s, v) for s, v in zip(self.steps, self.values[curve.name], strict=True) if v is not None]
        kept = found[:: -(-len(found) // most)]
        if kept[-1] != found[-1]:
            kept.append(found[-1])
        return [step for step, _ in kept], [value for _, value in kept]


def sparkline(values: Sequence[float | None], width: int = _SPARK_WIDTH) -> str:
    """Values as a row of blocks from the lowest to the highest; means of neighbours where there are too many."""
    measured = [value for value in values if value is not None]
    together = -(-len(measured) // width) or 1
    means = [
        sum(part) / len(part) for at in range(0, len(measured), together) if (part := measured[at : at + together])
    ]
    low = min(means, default=0.0)
    high = max(means, default=0.0)
    top = len(_BLOCKS) - 1
    return "".join(
        _BLOCKS[round(top * (value - low) / (high - low))] if high > low else _BLOCKS[0] for value in means
    )


_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">{refresh}
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}: {where}</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 24px auto; padding: 0 14px;
               color: #1f2328; background: #fbfaf7; }}
h1 {{ font-size: 20px; margin: 0; }} h2 {{ font-size: 16px; margin: 26px 0 4px; }}
.done {{ background: #e7e3da; border-radius: 5px; height: 10px; margin: 10px 0; }}
.done i {{ display: block; height: 10px; border-radius: 5px; background: #0072B2; }}
td {{ padding: 2px 18px 2px 0; vertical-align: top; }} td:first-child {{ color: #5c6168; }}
{style}</style></head><body><h1>{title}</h1><div>{where}</div>
<div class="done"><i style="width: {share:.1f}%"></i></div><table>{facts}</table>
{charts}</body></html>
"""
