"""Charts for web pages, as SVG text: reports, live pages and the broker's pages draw with these functions.

Figures for print are made with matplotlib (`privmarket._figures`). Here there is no script and nothing is fetched,
so that a page can be one file. A chart is drawn twice, for a wide and for a narrow window, and the page's style
(`STYLE`) shows one of them, so that text keeps its size on a phone. Every bar, cell, dot and line has a
tooltip with its figures.

A colour is `#rrggbb`, or the name of a class of the page's own style sheet, which may then differ between a light
and a dark theme. Neither style attributes nor style elements are written, because a page may forbid them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

# Okabe–Ito colours: told apart under the common colour-vision deficiencies.
ORANGE = "#D55E00"
BLUE = "#0072B2"
GREEN = "#009E73"
GREY = "#8a8a8a"
PINK = "#CC79A7"
PALE = "#c9d6df"

STYLE = """
  .chart svg { display: block; width: 100%; height: auto; }
  .chart .narrow { display: none; }
  .chart text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #444; }
  .chart .grid { stroke: #e7e3da; stroke-width: 1; } .chart .axis { stroke: #999; stroke-width: 1; }
  .chart .limit { stroke: #333; stroke-dasharray: 5 4; }
  .legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13px; color: #444; margin: 2px 0 8px; }
  .legend svg { height: 11px; vertical-align: middle; margin-right: 6px; }
  .chart polyline { fill: none; stroke-width: 1.8; } .chart polyline.strong { stroke-width: 3; }
  .chart polyline.dashed, .legend .dashed { stroke-dasharray: 3 4; } .chart polygon.area { opacity: 0.15; }
  @media screen and (max-width: 640px) { .chart .wide { display: none; } .chart .narrow { display: block; } }
"""

# How wide the wide drawing of a chart is: as wide as a page, or two beside each other.
FULL_WIDTH = 960.0
HALF_WIDTH = 540.0
_NARROW = 360.0
_LETTER = 7.4  # width of a letter of the charts' 12-pixel type, generously


@dataclass(frozen=True)
class Line:
    """One line of a chart; a point whose y is None is left out.

    Attributes:
        stairs: each value holds until the next point.
        area: what lies between the line and 0 is tinted.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    colour: str
    dashed: bool = False
    strong: bool = False
    dots: bool = False
    stairs: bool = False
    area: bool = False


@dataclass(frozen=True)
class Dots:
    """One group of dots, (x, y, tooltip) each."""

    label: str
    points: Sequence[tuple[float, float, str]]
    colour: str


@dataclass(frozen=True)
class Bars:
    """One layer of stacked bars, a value per position; `notes` are tooltips, the values if left out."""

    label: str
    values: Sequence[float]
    colour: str
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class _Frame:
    """The drawing area inside the margins, and the positions of values in it."""

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
            low = math.log(low)
            high = math.log(high)
            value = math.log(value)
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
    x_ends: tuple[str, str] | None = None,
    width: float = FULL_WIDTH,
) -> str:
    """Lines over a common axis, with a legend above where there are several.

    Args:
        y_text: how a figure on the vertical axis is written.
        levels: (name, y) of dashed horizontal lines.
        names_right: their names stand below the right end, where lines rise early; else above the left end.
        x_ends: what stands below the ends of the horizontal axis, for one without numbers, such as times.
        width: `FULL_WIDTH`, or `HALF_WIDTH` for a chart beside another.
    """
    xs = [x for line in lines for x in line.x] or [0.0, 1.0]
    ys = [y for line in lines for y in line.y if y is not None] + [y for _, y in levels]
    low = min(ys, default=0.0)
    high = max(ys, default=1.0)
    if y_from_zero:
        low = min(0.0, low)
    ticks = _ticks(low, high)
    low = min(low, ticks[0])
    high = max(high, ticks[-1])

    def draw(width: float) -> str:
        height = _height(width)
        left = 28 + _LETTER * max(len(y_text(tick)) for tick in ticks)
        frame = _Frame(width, height, left, 46.0, (min(xs), max(xs)), (low, high), x_log)
        x_ticks = sorted(set(xs)) if x_log else _whole_ticks(min(xs), max(xs), 8 if width == FULL_WIDTH else 5)
        parts = [_axes(frame, x_title, y_title, [] if x_ends else x_ticks, ticks, y_text)]
        parts += [_ends(frame, x_ends)] if x_ends else []
        parts += [_level(frame, name, value, names_right) for name, value in levels]
        parts += [_line(frame, line, y_text) for line in reversed(lines)]
        return _svg(width, height, parts, f"{y_title} over {x_title}")

    return _legend([(line.label, line.colour, line.dashed) for line in lines]) + _both(draw, width)


def scatter(groups: Sequence[Dots], *, x_title: str, y_title: str, width: float = FULL_WIDTH) -> str:
    """Dots in several groups; both axes begin at 0."""
    xs = [x for group in groups for x, _, _ in group.points]
    ys = [y for group in groups for _, y, _ in group.points]
    x_ticks = _ticks(0.0, max(xs, default=1.0))
    y_ticks = _ticks(0.0, max(ys, default=1.0))

    def draw(width: float) -> str:
        height = _height(width)
        left = 28 + _LETTER * max(len(f"{tick:g}") for tick in y_ticks)
        frame = _Frame(width, height, left, 46.0, (0.0, x_ticks[-1]), (0.0, y_ticks[-1]))
        parts = [_axes(frame, x_title, y_title, x_ticks, y_ticks, lambda value: f"{value:g}")]
        for group in groups:
            parts += [_circle(frame.x(x), frame.y(y), group.colour, tip) for x, y, tip in group.points]
        return _svg(width, height, parts, f"{y_title} over {x_title}")

    return _legend([(group.label, group.colour, False) for group in groups if group.points]) + _both(draw, width)


def strip(parts: Sequence[tuple[str, float, str, str]]) -> str:
    """One bar cut into parts, (name, value, value as text, colour) each; the legend names those above 0."""
    total = sum(value for _, value, _, _ in parts) or 1.0

    def draw(width: float) -> str:
        drawn = []
        x = 0.0
        for name, value, text, colour in parts:
            drawn.append(_rect(x, 4, width * value / total, 26, colour, f"{name}: {text}"))
            x += width * value / total
        return _svg(width, 34.0, drawn, ", ".join(f"{name} {text}" for name, _, text, _ in parts))

    named = [(f"{name} {text}", colour, False) for name, value, text, colour in parts if value > 0]
    return _legend(named, always=True) + _both(draw)


def bar_chart(
    layers: Sequence[Bars],
    positions: Sequence[int],
    *,
    x_title: str,
    y_title: str,
    y_text: Callable[[float], str] = lambda value: f"{value:g}",
    x_ends: tuple[str, str] | None = None,
    width: float = FULL_WIDTH,
) -> str:
    """Stacked upright bars over whole numbers such as rounds; the rest as for `line_chart`."""
    totals = [sum(values) for values in zip(*(layer.values for layer in layers), strict=True)] or [0.0]
    ticks = _ticks(0.0, max(totals))

    def draw(width: float) -> str:
        height = 260.0 if width == FULL_WIDTH else 220.0
        left = 28 + _LETTER * max(len(y_text(tick)) for tick in ticks)
        span = (positions[0] - 0.5, positions[-1] + 0.5)
        frame = _Frame(width, height, left, 46.0, span, (0.0, ticks[-1]))
        x_ticks = _whole_ticks(positions[0], positions[-1], 8 if width == FULL_WIDTH else 5)
        parts = [_axes(frame, x_title, y_title, [] if x_ends else x_ticks, ticks, y_text)]
        parts += [_ends(frame, x_ends)] if x_ends else []
        base = [0.0] * len(positions)
        wide = frame.x(0.84) - frame.x(0.0)
        for layer in layers:
            for i, (at, value) in enumerate(zip(positions, layer.values, strict=True)):
                tip = layer.notes[i] if layer.notes else f"{x_title} {at}: {layer.label} {value:,.2f}"
                top = frame.y(base[i] + value)
                parts.append(_rect(frame.x(at - 0.42), top, wide, frame.y(base[i]) - top, layer.colour, tip))
                base[i] += value
        return _svg(width, height, parts, f"{y_title} over {x_title}")

    return _legend([(layer.label, layer.colour, False) for layer in layers]) + _both(draw, width)


def named_bars(
    names: Sequence[str],
    values: Sequence[float],
    *,
    x_title: str,
    limit: tuple[str, float] | None = None,
    colour: str = ORANGE,
    wholes: Sequence[float] = (),
    rest_colour: str = PALE,
    notes: Sequence[str] = (),
    width: float = FULL_WIDTH,
) -> str:
    """Horizontal bars, one per name, with an optional limit as a dashed upright line.

    Args:
        wholes: what each value is a part of; the rest of the bar is drawn in `rest_colour`.
        notes: tooltips; name and value if left out.
    """
    reach = max([*values, *wholes, limit[1] if limit else 0.0, 1e-12])
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
            tip = f"{name}: {notes[i]}" if notes else f"{name}: {value:.2f}"
            if wholes:
                parts.append(_rect(left, y + 3, frame.x(wholes[i]) - left, step - 6, rest_colour, tip))
            parts.append(_rect(left, y + 3, frame.x(value) - left, step - 6, colour, tip))
        if limit:
            x = frame.x(limit[1])
            parts.append(_stroke("limit", x, 16, x, height - 46))
            parts.append(_text(x - 4, 12, limit[0], "end"))
        return _svg(width, height, parts, x_title)

    return _both(draw, width)


def heat_map(
    names: Sequence[str], rows: Sequence[Sequence[float]], columns: Sequence[int], *, x_title: str, what: str
) -> str:
    """A cell per name and column, darker for larger values; equal neighbours are drawn as one, zeros not at all."""
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
                x = frame.x(columns[start] - 0.5)
                past = frame.x(columns[end] + 0.5)
                when = f"{columns[start]}" if start == end else f"{columns[start]}–{columns[end]}"
                tip = f"{name}, {x_title} {when}: {what} {value:.2f}"
                parts.append(_rect(x, y + 0.5, past - x, step - 1, _shade(value / most), tip))
        for tick in _whole_ticks(columns[0], columns[-1], 8 if width == FULL_WIDTH else 5):
            parts.append(_text(frame.x(tick), height - 28, f"{tick:g}", "middle"))
        parts.append(_text(left + (width - left) / 2, height - 8, x_title, "middle"))
        return _svg(width, height, parts, f"{what} over {x_title}")

    shades = ["#f3f1ec", *(_shade(share) for share in (0.05, 0.25, 0.5, 0.75, 1.0))]
    scale = "".join(_rect(18.0 * i, 0, 18, 11, shade, "") for i, shade in enumerate(shades))
    key = f'<svg viewBox="0 0 {18 * len(shades)} 11" aria-hidden="true">{scale}</svg>'
    return f'<div class="legend"><span>{escape(what)}: none {key} {most:.2g}</span></div>' + _both(draw)


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
    pale = (253, 227, 207)
    full = (213, 94, 0)
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


def _ends(frame: _Frame, names: tuple[str, str]) -> str:
    foot = frame.height - frame.bottom + 17
    return _text(frame.left, foot, names[0], "start") + _text(frame.width - frame.right, foot, names[1], "end")


def _upright(frame: _Frame, tick: float, label: str) -> str:
    x = frame.x(tick)
    foot = frame.height - frame.bottom
    return _stroke("grid", x, frame.top, x, foot) + _text(x, foot + 17, label, "middle")


def _level(frame: _Frame, name: str, value: float, right: bool) -> str:
    y = frame.y(value)
    line = _stroke("limit", frame.left, y, frame.width - frame.right, y)
    if right:
        return line + _text(frame.width - frame.right - 4, y + 14, name, "end")
    return line + _text(frame.left + 4, y - 4, name, "start")


def _line(frame: _Frame, line: Line, y_text: Callable[[float], str]) -> str:
    measured = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y is not None]
    if not measured:
        return ""
    points: list[tuple[float, float]] = []
    for x, y in measured:
        if line.stairs and points:
            points.append((frame.x(x), points[-1][1]))
        points.append((frame.x(x), frame.y(y)))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    drawn = ""
    if line.area:
        base = frame.y(max(0.0, frame.y_range[0]))
        around = f"{points[0][0]:.1f},{base:.1f} {path} {points[-1][0]:.1f},{base:.1f}"
        drawn += f'<polygon {_paint("fill", line.colour, "area")} points="{around}"/>'
    kind = " ".join(name for name, said in (("strong", line.strong), ("dashed", line.dashed)) if said)
    tip = f"<title>{escape(line.label)}: {escape(y_text(measured[-1][1]))} at the end</title>"
    drawn += f'<polyline points="{path}" {_paint("stroke", line.colour, kind)}>{tip}</polyline>'
    if line.dots or len(measured) == 1:
        drawn += "".join(_circle(frame.x(x), frame.y(y), line.colour, "", 3.5) for x, y in measured)
    return drawn


def _paint(what: str, colour: str, kind: str = "") -> str:
    """The attributes that give a mark its colour: `fill` or `stroke`, or a class of the page's style sheet."""
    if colour.startswith("#"):
        kind = f' class="{kind}"' if kind else ""
        return f'{what}="{colour}"{kind}'
    return f'class="{f"{kind} {colour}".strip()}"'


def _circle(x: float, y: float, colour: str, tip: str, radius: float = 5.0) -> str:
    title = f"<title>{escape(tip)}</title>" if tip else ""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" {_paint("fill", colour)}>{title}</circle>'


def _stroke(look: str, x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line class="{look}" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'


def _rect(x: float, y: float, width: float, height: float, colour: str, tip: str) -> str:
    title = f"<title>{escape(tip)}</title>" if tip else ""
    size = f'width="{max(width, 0.0):.1f}" height="{max(height, 0.0):.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} {_paint("fill", colour)}>{title}</rect>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(width: float, height: float, parts: Sequence[str], label: str) -> str:
    """One drawing; `label` is what a screen reader says it is."""
    named = f'role="img" aria-label="{escape(label)}"'
    return f'<svg viewBox="0 0 {width:g} {height:g}" {named}>{"".join(parts)}</svg>'


def _height(width: float) -> float:
    """How high a drawing of lines or dots is."""
    return 320.0 if width == FULL_WIDTH else 260.0


def _both(draw: Callable[[float], str], wide: float = FULL_WIDTH) -> str:
    return f'<div class="chart"><div class="wide">{draw(wide)}</div><div class="narrow">{draw(_NARROW)}</div></div>'


def _legend(entries: Sequence[tuple[str, str, bool]], *, always: bool = False) -> str:
    """Names beside samples of their colours, where there are several; (name, colour, dashed) each."""
    if len(entries) < 2 and not always:
        return ""
    marks = []
    for label, colour, dashed in entries:
        if dashed:
            sample = f'<line x1="0" y1="5" x2="22" y2="5" stroke-width="3" {_paint("stroke", colour, "dashed")}/>'
        else:
            sample = f'<rect x="0" y="3" width="22" height="5" {_paint("fill", colour)}/>'
        key = f'<svg viewBox="0 0 22 11" aria-hidden="true">{sample}</svg>'
        marks.append(f"<span>{key}{escape(label)}</span>")
    return f'<div class="legend">{"".join(marks)}</div>'


def _ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round figures from at or below `low` to at or above `high`."""
    if not high > low:
        high = max(high, low + 1.0)
        low = min(0.0, low)
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(step * i, 12) for i in range(first, last + 1)]


def _whole_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round whole figures inside [low, high], and the first one."""
    first, second = _ticks(low, high, wanted)[:2]
    step = max(1.0, second - first)
    step = 5.0 if step == 2.5 else step
    inner = [tick for i in range(int(high // step) + 1) if low < (tick := step * i) <= high]
    return inner if inner and inner[0] - low < step / 2 else [low, *inner]
