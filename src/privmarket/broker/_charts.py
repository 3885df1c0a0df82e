"""Plots as plain SVG marks, made on the server: no script, nothing from elsewhere, readable on a phone.

A chart is a box of `WIDTH` × `HEIGHT`; a template draws its marks. Colours are classes of the style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

WIDTH, HEIGHT = 600, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 14, 34


@dataclass
class Chart:
    """Marks: rectangles (class, x, y, width, height, note), lines (class, points), dots, texts (anchored)."""

    label: str
    height: int = HEIGHT
    strip: bool = False
    rects: list[tuple[str, float, float, float, float, str]] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    dots: list[tuple[str, float, float, str]] = field(default_factory=list)
    texts: list[tuple[float, float, str, str]] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Axes:
    """From data to the box; both axes begin at `low` and end at `high`."""

    x: tuple[float, float]
    y: tuple[float, float]

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a point is drawn."""
        across = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        up = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1)
        left = _LEFT + across * (WIDTH - _LEFT - _RIGHT)
        return round(left, 1), round(HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM), 1)


def _framed(label: str, axes: Axes, x_name: str, x_ends: tuple[str, str] | None = None) -> Chart:
    chart = Chart(label)
    bottom = HEIGHT - _BOTTOM
    for value in (axes.y[0], (axes.y[0] + axes.y[1]) / 2, axes.y[1]):
        y = axes.place(axes.x[0], value)[1]
        chart.lines.append(("axis", f"{_LEFT},{y} {WIDTH - _RIGHT},{y}"))
        chart.texts.append((_LEFT - 6, y + 4, "end", short(value)))
    low, high = x_ends or (short(axes.x[0]), short(axes.x[1]))
    chart.texts += [(_LEFT, bottom + 16, "start", low), (WIDTH - _RIGHT, bottom + 16, "end", high)]
    chart.texts.append(((WIDTH + _LEFT) / 2, bottom + 28, "middle", x_name))
    return chart


def line(
    label: str,
    points: Sequence[tuple[float, float]],
    *,
    x_name: str,
    x_ends: tuple[str, str] | None = None,
    limit: float | None = None,
    stairs: bool = False,
) -> Chart:
    """A line through points, as stairs where the value holds until the next; `limit` is drawn across."""
    values = [y for _, y in points] + ([limit] if limit is not None else [])
    axes = Axes((points[0][0], points[-1][0]), (min(0.0, *values), _round_up(max(values))))
    chart = _framed(label, axes, x_name, x_ends)
    drawn = []
    for before, (x, y) in zip([None, *points], points, strict=False):
        if stairs and before is not None:
            drawn.append(axes.place(x, before[1]))
        drawn.append(axes.place(x, y))
    base = axes.place(0, max(0.0, axes.y[0]))[1]
    chart.lines.append(("area", _joined([(drawn[0][0], base), *drawn, (drawn[-1][0], base)])))
    chart.lines.append(("line", _joined(drawn)))
    if limit is not None:
        chart.lines.append(("limit", _joined([axes.place(axes.x[0], limit), axes.place(axes.x[1], limit)])))
    return chart


def scatter(
    label: str, groups: Mapping[str, Sequence[tuple[float, float, str]]], *, x_name: str, legend: dict[str, str]
) -> Chart:
    """Dots by class, (x, y, note) each, from zero."""
    every = [dot for dots in groups.values() for dot in dots]
    axes = Axes((0.0, _round_up(max(x for x, _, _ in every))), (0.0, _round_up(max(y for _, y, _ in every))))
    chart = _framed(label, axes, x_name)
    for kind, dots in groups.items():
        chart.dots += [(kind, *axes.place(x, y), note) for x, y, note in dots]
    chart.legend = [(kind, name) for kind, name in legend.items() if groups.get(kind)]
    return chart


def bars(label: str, items: Sequence[tuple[str, float, float, str]]) -> Chart:
    """One row per item: (name, filled, whole, note)."""
    row, name_width = 26, 170
    largest = max((whole for _, _, whole, _ in items), default=1.0) or 1.0
    chart = Chart(label, height=row * len(items) + 6)
    for i, (name, filled, whole, note) in enumerate(items):
        y, scale = 4 + i * row, (WIDTH - name_width - 130) / largest
        chart.texts.append((name_width - 8, y + 14, "end", name if len(name) <= 24 else name[:23] + "…"))
        chart.rects.append(("rest", name_width, y, max(whole * scale, 1), row - 9, note))
        chart.rects.append(("bar", name_width, y, filled * scale, row - 9, note))
        chart.texts.append((name_width + whole * scale + 6, y + 14, "start", note))
    return chart


def stack(label: str, parts: Sequence[tuple[str, str, float, str]]) -> Chart:
    """One bar cut into parts: (class, name, value, shown)."""
    total = sum(value for _, _, value, _ in parts) or 1.0
    chart, x = Chart(label, height=34, strip=True), 0.0
    for kind, name, value, shown in parts:
        width = WIDTH * value / total
        chart.rects.append((kind, round(x, 1), 4, round(width, 1), 26, f"{name}: {shown}"))
        x += width
    chart.legend = [(kind, f"{name} {shown}") for kind, name, value, shown in parts if value]
    return chart


def columns(label: str, items: Sequence[tuple[float, float, str]], x_ends: tuple[str, str], x_name: str) -> Chart:
    """Upright bars, (filled, whole, note) each, side by side."""
    axes = Axes((0.0, float(len(items))), (0.0, _round_up(max(whole for _, whole, _ in items))))
    chart = _framed(label, axes, x_name, x_ends)
    width = min(34.0, (WIDTH - _LEFT - _RIGHT) / len(items) * 0.72)
    for i, (filled, whole, note) in enumerate(items):
        for kind, value in (("rest", whole), ("bar", filled)):
            x, y = axes.place(i + 0.5, value)
            chart.rects.append((kind, round(x - width / 2, 1), y, round(width, 1), HEIGHT - _BOTTOM - y, note))
    return chart


def _round_up(value: float) -> float:
    """Where an axis ends: the next round figure whose half is round, too; 1 for nothing."""
    if value <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(
        step * size for step in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10) if step * size >= value * (1 - 1e-9)
    )


def short(value: float) -> str:
    """A figure for an axis."""
    for size, mark in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if mark == 'k' else size):.3g}{mark}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _joined(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)
