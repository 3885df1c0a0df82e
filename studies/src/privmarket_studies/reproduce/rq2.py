"""RQ2: how an auction grows with the number of clients, in time and memory, and what the mean-field form is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from privmarket._figures import line_look, new_figure
from privmarket_studies.reproduce.cells import Cell, Scale
from privmarket_studies.reproduce.document import (
    NOT_COMPUTED,
    Block,
    Figure,
    ResultPage,
    Results,
    Table,
    Text,
    failure_text,
    prose,
)
from privmarket_studies.reproduce.markets import IN_PAIRS, MOST_IN_PAIRS, RULES
from privmarket_studies.reproduce.paper import printed, speed_up_claimed
from privmarket_studies.reproduce.statistics import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

SIZES = (10, 100, 500, 1_000, 10_000, 100_000, 1_000_000)
NOT_TIMED = "not timed: N² pairs"
DEVIATION_SIZES = (10, 30, 100, 300, 1_000)
_QUICK_SIZES = (10, 500, 10_000)
_SLOPE_FROM = 10_000
TITLE = "RQ2: how does an auction scale?"


def cells(scale: Scale) -> list[Cell]:
    """One auction at every size, and all N deviations at the sizes where rules without a shortcut still finish."""
    sizes = _QUICK_SIZES if scale.quick else SIZES
    deviation_sizes = DEVIATION_SIZES[:3] if scale.quick else DEVIATION_SIZES
    seconds = 0.02 if scale.quick else 0.25
    seeds = scale.seeds_or(3, 1)
    made = [
        Cell("latency", _config(rule, n, seconds), s, 0.4 + n / 1e5)
        for n in sizes
        for rule in RULES
        if is_timed(rule, n)
        for s in seeds
    ]
    made += [
        Cell("deviations", _config(rule, n, seconds), s, 0.4 + (n / 1e3) ** 2)
        for n in deviation_sizes
        for rule in RULES
        for s in seeds
    ]
    return made


def is_timed(rule: str, clients: int) -> bool:
    """Whether an auction of this size is asked of a rule; one that compares all pairs of clients is spared."""
    return rule != IN_PAIRS or clients <= MOST_IN_PAIRS


def _absent(results: Results, kind: str, rule: str, clients: int) -> str:
    return results.absent(kind, mechanism=rule, clients=clients) if is_timed(rule, clients) else NOT_TIMED


def _config(rule: str, clients: int, seconds: float) -> dict[str, object]:
    return {"mechanism": rule, "clients": clients, "seconds": seconds}


def render(results: Results) -> ResultPage:
    """Renders the page from the kept cells."""
    blocks: list[Block] = [
        prose("rq2-set-up", answer=_learned(results).markdown, seeds=results.seeds),
        Figure("rq2-auction", _AUCTION, lambda: _draw(results)),
        _time_table(results),
        _memory_table(results),
        Text("## The paper's figures beside ours"),
        _paper_table(results),
        _reasons(results),
        prose("rq2-deviations"),
        Figure("rq2-deviations", _DEVIATIONS, lambda: _draw_deviations(results)),
        _deviation_table(results),
        *failure_text(results),
    ]
    return ResultPage("rq2", TITLE, blocks)


# Those left out of the figures run beside one of these: a sort and a few sums.
_DRAWN = (
    "pac",
    "csra",
    "mfg-pricing",
    "mean-field-menu",
    "regretnet",
    "dm-regretnet",
    "regretformer",
    "mfg-regretnet",
)
_AUCTION = "One auction, the paper's Fig. 5: (a) time, (b) peak memory. Rules that are not drawn are in the tables."
_DEVIATIONS = "All N clients: what would one other report bring? Rules that are not drawn are in the table."


def _best(results: Results, kind: str, rule: str, clients: int, figure: str = "seconds") -> float | None:
    values = [v for v in results.values(figure, kind, mechanism=rule, clients=clients) if v is not None]
    return min(values) if values else None


def _sizes(results: Results, kind: str) -> list[int]:
    return sorted({r.cell.config["clients"] for r in results.records if r.cell.kind == kind})


def slope(results: Results, kind: str, rule: str, least: int) -> Measured | None:
    """Of log time against log N from `least` clients on, seed by seed; None with fewer than two sizes."""
    sizes = [n for n in _sizes(results, kind) if n >= least]
    times = [results.values("seconds", kind, mechanism=rule, clients=n) for n in sizes]
    seeds = min((len(t) for t in times), default=0)
    if len(sizes) < 2 or seeds == 0:
        return None
    logs = np.log([t[:seeds] for t in times])
    return Measured.of(np.polyfit(np.log(sizes), logs, 1)[0])


def _time_table(results: Results) -> Table:
    sizes = _sizes(results, "latency")
    rows = []
    for rule in RULES:
        times = [_spread(results, "latency", rule, n) for n in sizes]
        over = results.measured("over_argsort", "latency", mechanism=rule, clients=sizes[-1]) if sizes else None
        fitted = slope(results, "latency", rule, _SLOPE_FROM)
        absent = _absent(results, "latency", rule, sizes[-1]) if sizes else NOT_COMPUTED
        tail = [absent if m is None else m.text(spec) for m, spec in ((fitted, ".2f"), (over, ".1f"))]
        rows.append([rule, *times, *tail])
    columns = ("mechanism", *(f"N = {n:,}" for n in sizes), "slope", f"× argsort at N = {sizes[-1]:,}")
    return Table("rq2-time", f"Time of one auction; {results.over_seeds('latency')}", columns, rows)


def _memory_table(results: Results) -> Table:
    sizes = [n for n in _sizes(results, "latency") if n >= 10_000]
    rows = []
    for rule in RULES:
        peaks = [_best(results, "latency", rule, n, "peak_bytes") for n in sizes]
        absent = [_absent(results, "latency", rule, n) for n in sizes]
        rows.append([rule, *(a if p is None else _megabytes(p) for p, a in zip(peaks, absent, strict=True))])
    rows.append(["the bids themselves", *(_megabytes(16.0 * n, 0) for n in sizes)])
    columns = ("mechanism", *(f"N = {n:,}" for n in sizes))
    return Table("rq2-memory", "Peak memory of one auction, MB", columns, rows)


def _paper_table(results: Results) -> Table:
    source = printed("latency")
    rows = []
    for rule, points in source.rows.items():
        for clients, low, high in points:
            theirs = _time(low) if low == high else f"{_time(low)} – {_time(high)}"
            rows.append([rule, f"{clients}", theirs, _spread(results, "latency", rule, clients)])
    return Table(
        "rq2-paper",
        f"Paper: {source.where} ({source.setting}). Ours: {results.over_seeds('latency')}",
        ("mechanism", "N", "paper", "ours"),
        rows,
    )


def _reasons(results: Results) -> Text:
    low, high = speed_up_claimed()
    pac, net = (_best(results, "latency", rule, 500) for rule in ("pac", "mfg-regretnet"))
    nets = ("regretnet", "dm-regretnet", "mfg-regretnet")
    times = {
        n: (_best(results, "latency", "pac", n), [_best(results, "latency", rule, n) for rule in nets])
        for n in _sizes(results, "latency")
    }
    faster = all(
        mine is not None and all(t is not None and mine < t for t in theirs) for mine, theirs in times.values()
    )
    return prose("rq2-reasons", low=low, high=high, pac=pac, net=net, time=_time, faster=faster)


def _deviation_table(results: Results) -> Table:
    sizes = _sizes(results, "deviations")
    rows = []
    for rule in RULES:
        times = [_spread(results, "deviations", rule, n) for n in sizes]
        fitted = slope(results, "deviations", rule, sizes[-1] // 10) if sizes else None
        absent = results.absent("deviations", mechanism=rule)
        rows.append([rule, *times, absent if fitted is None else fitted.text(".2f")])
    columns = ("mechanism", *(f"N = {n:,}" for n in sizes), "slope over the last decade")
    caption = f"All N unilateral deviations; {results.over_seeds('deviations')}"
    return Table("rq2-deviations", caption, columns, rows)


def _learned(results: Results) -> Text:
    largest = _sizes(results, "latency")[-1]
    times = {rule: t for rule in RULES if (t := _best(results, "latency", rule, largest)) is not None}
    ranked = sorted(times, key=times.__getitem__)
    slopes = [s for rule in RULES if (s := slope(results, "latency", rule, _SLOPE_FROM)) is not None]
    return prose(
        "rq2-learned",
        largest=f"{largest:,}",
        fastest=(ranked[0], _time(times[ranked[0]])) if ranked else None,
        slowest=(ranked[-1], _time(times[ranked[-1]])) if ranked else None,
        slopes=(min(s.mean for s in slopes), max(s.mean for s in slopes)) if slopes else None,
        net=slope(results, "deviations", "mfg-regretnet", 100),
        attention=slope(results, "deviations", IN_PAIRS, 100),
        csra=slope(results, "deviations", "csra", 100),
    )


def _draw(results: Results) -> Drawing:
    drawing = new_figure(11.0, 4.8)
    left, right = drawing.subplots(1, 2)
    sizes = _sizes(results, "latency")
    for rule in _DRAWN:
        _line(left, results, "latency", rule, "seconds", 1.0)
        _line(right, results, "latency", rule, "peak_bytes", 1e-6)
    sort = [(n, min(results.values("argsort_seconds", "latency", clients=n))) for n in sizes]
    left.plot(*zip(*sort, strict=True), color="#555555", lw=4, alpha=0.35, label="np.argsort")
    _guides(left, sizes, 2e-5)
    left.set(xscale="log", yscale="log", xlabel="clients N", ylabel="seconds per auction", title="(a) time")
    right.set(
        xscale="log", yscale="log", xlabel="clients N", ylabel="peak memory, MB", title="(b) memory above 1 MB"
    )
    handles, labels = left.get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.25)
    return drawing


def _draw_deviations(results: Results) -> Drawing:
    drawing = new_figure(8.0, 4.6)
    axes = drawing.subplots()
    for rule in _DRAWN:
        _line(axes, results, "deviations", rule, "seconds", 1.0)
    _guides(axes, _sizes(results, "deviations"), 5e-5)
    axes.set(xscale="log", yscale="log", xlabel="clients N", ylabel="seconds for all N deviations")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    axes.grid(alpha=0.25)
    return drawing


def _line(axes: Axes, results: Results, kind: str, rule: str, figure: str, scale: float) -> None:
    points = [(n, scale * t) for n in _sizes(results, kind) if (t := _best(results, kind, rule, n, figure))]
    if points:
        axes.plot(*zip(*points, strict=True), lw=1.3, label=rule, **line_look(rule))


def _guides(axes: Axes, sizes: list[int], start: float) -> None:
    """O(N) and O(N²) through one point, as far as the axes go."""
    n = np.array([sizes[0], sizes[-1]], dtype=np.float64)
    axes.plot(n, start * n / n[0], "k--", lw=0.8, label="O(N)")
    end = min(n[1], n[0] * 1e3)
    square = np.array([n[0], end])
    axes.plot(square, start * (square / n[0]) ** 2, "k:", lw=0.8, label="O(N²)")


def _time(seconds: float | None) -> str:
    if seconds is None:
        return NOT_COMPUTED
    unit, size = next(((u, s) for u, s in _UNITS if seconds >= s), _UNITS[-1])
    return f"{_three_digits(seconds / size)} {unit}"


def _spread(results: Results, kind: str, rule: str, clients: int) -> str:
    """Mean ± std over seeds in the unit of the mean."""
    found = results.measured("seconds", kind, mechanism=rule, clients=clients)
    if found is None:
        return _absent(results, kind, rule, clients)
    unit, size = next(((u, s) for u, s in _UNITS if found.mean >= s), _UNITS[-1])
    mean = _three_digits(found.mean / size)
    digits = len(mean.partition(".")[2])
    return f"{mean} ± {found.std / size:.{digits}f} {unit}" if found.seeds > 1 else f"{mean} {unit}"


def _three_digits(value: float) -> str:
    """The number with at least three digits and without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


def _megabytes(size: float, least: float = 1e6) -> str:
    return "< 1" if size < least else _three_digits(size / 1e6)
