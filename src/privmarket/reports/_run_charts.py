"""Small charts as SVG text, for pages that are one file: no script, no network, sharp on paper.

A chart is drawn twice, for a wide and for a narrow window, and the page's style (`STYLE`) shows one of them; text
keeps its size on a phone. Every bar, cell and line says its figures in a tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

# Okabe–Ito colours: told apart under the common colour-vision deficiencies.
ORANGE, BLUE, GREEN, GREY, PINK = "#D55E00", "#0072B2", "#009E73", "#8a8a8a", "#CC79A7"
PALE = "#c9d6df"

STYLE = """
  .chart svg { display: block; width: 100%; height: auto; }
  .chart .narrow { display: none; }
  .chart text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #444; }
  .chart .grid { stroke: #e7e3da; stroke-width: 1; } .chart .axis { stroke: #999; stroke-width: 1; }
  .chart .limit { stroke: #333; stroke-dasharray: 5 4; }
  .legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13px; color: #444; margin: 2px 0 8px; }
  .legend i { display: inline-block; width: 22px; height: 0; vertical-align: middle; margin-right: 6px; }
  @media screen and (max-width: 640px) { .chart .wide { display: none; } .chart .narrow { display: block; } }
"""

_WIDE, _NARROW = 960.0, 360.0
_LETTER = 7.4  # width of a letter of the charts' 12-pixel type, generously


@dataclass(frozen=True)
class Line:
    """One line of a chart; a point whose y is None is left out."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    colour: str
    dashed: bool = False
    strong: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Bars:
    """One layer of stacked bars, a value per position."""

    label: str
    values: Sequence[float]
    colour: str


@dataclass(frozen=True)
class _Frame:
    """The drawing area inside the margins, and where figures lie in it."""

    width: float
    height: float
    left: float
    bottom: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_log: bool = False
    top: float = 10.0
    right: float = 14.0

    def x(self, value: float) -> float:
        low, high = self.x_range
        if self.x_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.left + (value - low) / ((high - low) or 1.0) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        low, high = self.y_range
        share = (value - low) / ((high - low) or 1.0)
        return self.height - self.bottom - share * (self.height - self.bottom - self.top)


def line_chart(
    lines: Sequence[Line],
    *,
    x_title: str,
    y_title: str,
    y_text: Callable[[float], str] = lambda value: f"{value:g}",
    y_from_zero: bool = True,
    x_log: bool = False,
    levels: Sequence[tuple[str, float]] = (),
    names_right: bool = False,
) -> str:
    """Lines over a common axis, with a legend above where there are several.

    Args:
        y_text: how a figure on the vertical axis is written.
        levels: (name, y) of dashed horizontal lines.
        names_right: their names stand below the right end, where lines rise early; else above the left end.
    """
    xs = [x for line in lines for x in line.x] or [0.0, 1.0]
    ys = [y for line in lines for y in line.y if y is not None] + [y for _, y in levels]
    low, high = min(ys, default=0.0), max(ys, default=1.0)
    if y_from_zero:
        low = min(0.0, low)
    ticks = _ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def draw(width: float) -> str:
        height = 320.0 if width > _NARROW else 260.0
        left = 22 + _LETTER * max(len(y_text(tick)) for tick in ticks)
        frame = _Frame(width, height, left, 46.0, (min(xs), max(xs)), (low, high), x_log)
        x_ticks = sorted(set(xs)) if x_log else _whole_ticks(min(xs), max(xs), 8 if width > _NARROW else 5)
        parts = [_axes(frame, x_title, y_title, x_ticks, ticks, y_text)]
        parts += [_level(frame, name, value, names_right) for name, value in levels]
        parts += [_line(frame, line, y_text) for line in reversed(lines)]
        return _svg(width, height, parts)

    return _legend([(line.label, line.colour, line.dashed) for line in lines]) + _both(draw)


def bar_chart(layers: Sequence[Bars], positions: Sequence[int], *, x_title: str, y_title: str) -> str:
    """Stacked upright bars over whole numbers such as rounds."""
    totals = [sum(values) for values in zip(*(layer.values for layer in layers), strict=True)] or [0.0]
    ticks = _ticks(0.0, max(totals))

    def draw(width: float) -> str:
        height = 260.0 if width > _NARROW else 220.0
        left = 22 + _LETTER * max(len(f"{tick:g}") for tick in ticks)
        span = (positions[0] - 0.5, positions[-1] + 0.5)
        frame = _Frame(width, height, left, 46.0, span, (0.0, ticks[-1]))
        x_ticks = _whole_ticks(positions[0], positions[-1], 8 if width > _NARROW else 5)
        parts = [_axes(frame, x_title, y_title, x_ticks, ticks, lambda value: f"{value:g}")]
        base = [0.0] * len(positions)
        for layer in layers:
            for i, (at, value) in enumerate(zip(positions, layer.values, strict=True)):
                tip = f"{x_title} {at}: {layer.label} {value:,.2f}"
                top, foot = frame.y(base[i] + value), frame.y(base[i])
                parts.append(
                    _rect(
                        frame.x(at - 0.42),
                        top,
                        frame.x(at + 0.42) - frame.x(at - 0.42),
                        foot - top,
                        layer.colour,
                        tip,
                    )
                )
                base[i] += value
        return _svg(width, height, parts)

    return _legend([(layer.label, layer.colour, False) for layer in layers]) + _both(draw)


def named_bars(
    names: Sequence[str],
    values: Sequence[float],
    *,
    x_title: str,
    limit: tuple[str, float] | None = None,
    colour: str = ORANGE,
) -> str:
    """Horizontal bars, one per name, with an optional limit as a dashed upright line."""
    reach = max([*values, limit[1] if limit else 0.0, 1e-12])
    ticks = _ticks(0.0, reach)
    step = 20.0

    def draw(width: float) -> str:
        height = step * len(names) + 66
        left = 14 + _LETTER * max((len(name) for name in names), default=1)
        frame = _Frame(width, height, left, 46.0, (0.0, max(ticks[-1], reach)), (0.0, float(len(names))), top=20.0)
        parts = [_upright(frame, tick, f"{tick:g}") for tick in ticks]
        parts.append(_text(left + (width - left) / 2, height - 6, x_title, "middle"))
        for i, (name, value) in enumerate(zip(names, values, strict=True)):
            y = 20 + step * i
            parts.append(_text(left - 8, y + 14, name, "end"))
            parts.append(_rect(left, y + 3, frame.x(value) - left, step - 6, colour, f"{name}: {value:.2f}"))
        if limit:
            x = frame.x(limit[1])
            parts.append(_stroke("limit", x, 16, x, height - 46))
            parts.append(_text(x - 4, 12, limit[0], "end"))
        return _svg(width, height, parts)

    return _both(draw)


def heat_map(
    names: Sequence[str], rows: Sequence[Sequence[float]], columns: Sequence[int], *, x_title: str, what: str
) -> str:
    """A cell per name and column, the darker the more; equal neighbours are drawn as one, zeros not at all."""
    most = max((value for row in rows for value in row), default=0.0) or 1.0
    step = 18.0 if len(names) <= 40 else 8.0

    def draw(width: float) -> str:
        height = step * len(names) + 56
        left = 14 + _LETTER * max((len(name) for name in names), default=1)
        frame = _Frame(width, height, left, 46.0, (columns[0] - 0.5, columns[-1] + 0.5), (0.0, 1.0))
        parts = [_rect(left, 10, width - left - frame.right, step * len(names), "#f3f1ec", "")]
        for i, (name, row) in enumerate(zip(names, rows, strict=True)):
            y = 10 + step * i
            if step > 12 or i % 5 == 0:
                parts.append(_text(left - 8, y + min(step, 18.0) - 5, name, "end"))
            for start, end, value in _stretches(row):
                x, past = frame.x(columns[start] - 0.5), frame.x(columns[end] + 0.5)
                when = f"{columns[start]}" if start == end else f"{columns[start]}–{columns[end]}"
                tip = f"{name}, {x_title} {when}: {what} {value:.2f}"
                parts.append(_rect(x, y + 0.5, past - x, step - 1, _shade(value / most), tip))
        for tick in _whole_ticks(columns[0], columns[-1], 8 if width > _NARROW else 5):
            parts.append(_text(frame.x(tick), height - 28, f"{tick:g}", "middle"))
        parts.append(_text(left + (width - left) / 2, height - 8, x_title, "middle"))
        return _svg(width, height, parts)

    scale = "".join(f'<b style="background:{_shade(share)}"></b>' for share in (0.05, 0.25, 0.5, 0.75, 1.0))
    key = (
        f'<div class="legend"><span>{escape(what)}: none <span class="scale"><b style="background:#f3f1ec"></b>'
        f"{scale}</span> {most:.2g}</span></div>"
        "<style>.scale b{display:inline-block;width:18px;height:11px}</style>"
    )
    return key + _both(draw)


def _stretches(row: Sequence[float]) -> list[tuple[int, int, float]]:
    """(first, last, value) of each run of equal values above 0."""
    found: list[tuple[int, int, float]] = []
    for i, value in enumerate(row):
        if value <= 0:
            continue
        if found and found[-1][1] == i - 1 and abs(found[-1][2] - value) < 5e-3:
            found[-1] = (found[-1][0], i, found[-1][2])
        else:
            found.append((i, i, value))
    return found


def _shade(share: float) -> str:
    """A colour between pale and full orange, for a share from 0 to 1."""
    pale, full = (253, 227, 207), (213, 94, 0)
    mixed = (round(p + (f - p) * min(max(share, 0.0), 1.0)) for p, f in zip(pale, full, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def _axes(
    frame: _Frame,
    x_title: str,
    y_title: str,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    y_text: Callable[[float], str],
) -> str:
    parts = []
    for tick in y_ticks:
        y = frame.y(tick)
        parts.append(_stroke("grid", frame.left, y, frame.width - frame.right, y))
        parts.append(_text(frame.left - 6, y + 4, y_text(tick), "end"))
    foot = frame.height - frame.bottom
    parts.append(_stroke("axis", frame.left, foot, frame.width - frame.right, foot))
    parts += [_text(frame.x(tick), foot + 17, f"{tick:,.6g}", "middle") for tick in x_ticks]
    parts.append(
        _text(frame.left + (frame.width - frame.left - frame.right) / 2, frame.height - 8, x_title, "middle")
    )
    middle = frame.top + (foot - frame.top) / 2
    turned = f'transform="rotate(-90 12 {middle:.1f})"'
    parts.append(f'<text x="12" y="{middle:.1f}" text-anchor="middle" {turned}>{escape(y_title)}</text>')
    return "".join(parts)


def _upright(frame: _Frame, tick: float, label: str) -> str:
    x, foot = frame.x(tick), frame.height - frame.bottom
    return _stroke("grid", x, frame.top, x, foot) + _text(x, foot + 17, label, "middle")


def _level(frame: _Frame, name: str, value: float, right: bool) -> str:
    y = frame.y(value)
    line = _stroke("limit", frame.left, y, frame.width - frame.right, y)
    if right:
        return line + _text(frame.width - frame.right - 4, y + 14, name, "end")
    return line + _text(frame.left + 4, y - 4, name, "start")


def _line(frame: _Frame, line: Line, y_text: Callable[[float], str]) -> str:
    points = [(frame.x(x), frame.y(y)) for x, y in zip(line.x, line.y, strict=True) if y is not None]
    if not points:
        return ""
    last = [y for y in line.y if y is not None][-1]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="3 4"' if line.dashed else ""
    tip = f"<title>{escape(line.label)}: {escape(y_text(last))} at the end</title>"
    width = 3 if line.strong else 1.8
    look = f'fill="none" stroke="{line.colour}" stroke-width="{width}"{dash}'
    drawn = f'<polyline points="{path}" {look}>{tip}</polyline>'
    if line.dots or len(points) == 1:
        drawn += "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{line.colour}"/>' for x, y in points)
    return drawn


def _stroke(look: str, x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line class="{look}" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'


def _rect(x: float, y: float, width: float, height: float, colour: str, tip: str) -> str:
    title = f"<title>{escape(tip)}</title>" if tip else ""
    size = f'width="{max(width, 0.0):.1f}" height="{max(height, 0.0):.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{colour}">{title}</rect>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img">{"".join(parts)}</svg>'


def _both(draw: Callable[[float], str]) -> str:
    return (
        f'<div class="chart"><div class="wide">{draw(_WIDE)}</div><div class="narrow">{draw(_NARROW)}</div></div>'
    )


def _legend(entries: Sequence[tuple[str, str, bool]]) -> str:
    if len(entries) < 2:
        return ""
    marks = [
        f'<span><i style="border-top: 3px {"dotted" if dashed else "solid"} {colour}"></i>{escape(label)}</span>'
        for label, colour, dashed in entries
    ]
    return f'<div class="legend">{"".join(marks)}</div>'


def _ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round figures from at or below `low` to at or above `high`."""
    if not high > low:
        low, high = min(0.0, low), max(high, low + 1.0)
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * i, 12) for i in range(first, last + 1)]


def _whole_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round whole figures inside [low, high], and the first one."""
    first, second = _ticks(low, high, wanted)[:2]
    step = max(1.0, second - first)
    step = 5.0 if step == 2.5 else step
    inner = [tick for i in range(int(high // step) + 1) if low < (tick := step * i) <= high]
    return inner if inner and inner[0] - low < step / 2 else [low, *inner]
