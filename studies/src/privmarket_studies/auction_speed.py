"""How long an auction takes and how much memory, against np.argsort of as many numbers in the same run."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from privmarket._figures import line_look, new_figure, save
from privmarket.market._bids import Bids
from privmarket.market._distributions import scenario
from privmarket.market._mechanism import Mechanism
from privmarket.market._outcome import Outcome
from privmarket.mechanisms import mechanism
from privmarket_studies.timing import best_in_turn

SIZES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class AuctionSpeedRow:
    """One mechanism at one number of clients.

    Attributes:
        seconds: the best of several auctions.
        over_argsort: `seconds` over the best np.argsort of as many valuations, timed in turn with it.
        memory_over_bids: peak memory allocated during an auction, over the size of the bids.
    """

    mechanism: str
    clients: int
    seconds: float
    over_argsort: float
    memory_over_bids: float


@dataclass(frozen=True)
class AuctionSpeedReport:
    """All rows, and per mechanism the exponent fitted to seconds against clients over the largest sizes."""

    rows: tuple[AuctionSpeedRow, ...]
    exponent: dict[str, float]
    argsort_exponent: float

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return asdict(self)


def measure(
    names: Iterable[str],
    sizes: tuple[int, ...] = SIZES,
    *,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> AuctionSpeedReport:
    """Times every mechanism at every size, Uniform scenario, budget clients/2."""
    rng = np.random.default_rng(seed)
    names = list(names)
    rules = {name: mechanism(name) for name in names}
    rows: list[AuctionSpeedRow] = []
    reference: dict[int, float] = {}
    for clients in sizes:
        bids = scenario("uniform").sample(rng, clients)
        for name, rule in rules.items():
            progress(f"{name}, {clients:,} clients")
            row = _measure_one(rule, bids)
            rows.append(row)
            reference[clients] = min(row.seconds / row.over_argsort, reference.get(clients, np.inf))
    exponent = {name: _exponent([(r.clients, r.seconds) for r in rows if r.mechanism == name]) for name in names}
    return AuctionSpeedReport(tuple(rows), exponent, _exponent(sorted(reference.items())))


def _measure_one(rule: Mechanism, bids: Bids) -> AuctionSpeedRow:
    def clear() -> Outcome:
        return rule.run(bids, bids.clients / 2)

    repeats = int(np.clip(300_000 // bids.clients, 5, 200))
    seconds, sort = best_in_turn([clear, lambda: np.argsort(bids.valuation)], repeats)
    size = bids.valuation.nbytes + bids.epsilon.nbytes
    return AuctionSpeedRow(rule.name, bids.clients, seconds, seconds / sort, _peak_bytes(clear) / size)


def _peak_bytes(job: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        job()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _exponent(points: list[tuple[int, float]]) -> float:
    """Slope of log time against log clients from 10,000 clients on, where overhead no longer counts."""
    large = [(n, t) for n, t in points if n >= 10_000] or points
    if len(large) < 2:
        return float("nan")
    n, t = np.log(np.array(large)).T
    return float(np.polyfit(n, t, 1)[0])


def figure(report: AuctionSpeedReport, stem: Path) -> list[Path]:
    """Draws time and memory against the number of clients on logarithmic axes; returns the files."""
    made = new_figure(9.0, 4.4)
    left, right = made.subplots(1, 2)
    names = list(dict.fromkeys(row.mechanism for row in report.rows))
    for name in names:
        rows = [row for row in report.rows if row.mechanism == name]
        n = [row.clients for row in rows]
        style = {**line_look(name), "label": name}
        left.plot(n, [row.seconds for row in rows], **style)
        right.plot(n, [row.memory_over_bids for row in rows], **style)
    sizes = np.array(sorted({row.clients for row in report.rows}))
    argsort = [min(r.seconds / r.over_argsort for r in report.rows if r.clients == n) for n in sizes]
    left.plot(sizes, argsort, color="#555555", linewidth=3, alpha=0.4, label="np.argsort")
    left.plot(sizes, argsort[-1] * sizes / sizes[-1], "k--", linewidth=0.8, label="∝ N")
    left.set(xscale="log", yscale="log", xlabel="clients N", ylabel="seconds per auction")
    right.set(xscale="log", yscale="log", xlabel="clients N", ylabel="peak memory / size of the bids")
    left.legend(fontsize=6.5, ncols=2)
    for axes in (left, right):
        axes.grid(alpha=0.25, which="both")
    return save(made, stem)
