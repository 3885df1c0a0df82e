"""Plots as plain SVG marks, made on the server: no script, nothing from elsewhere, readable on a phone.

A chart is a box of `WIDTH` × `HEIGHT`; a template draws its marks. Colours are classes of the style sheet.
First come the kinds of charts, then what each page draws, from what the role that looks may see.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy import Connection

from privmarket.broker import _ledger as ledger, _sql as sql, _wallets as wallets
from privmarket.broker._answers import Movement, RoundAnswer, Totals, WalletAnswer
from privmarket.broker._page_frame import rounded_money
from privmarket.broker._parties import Actor

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


# ---- what pages draw ------------------------------------------------------------------------------------------


_DOTS = 400
_STEPS = 40
# Names of sellers are random and indexed within each round, so the first in their order are a random choice: a page
# must not read a hundred thousand rows to draw dots. Few of them, because every row that SQLite returns gives up
# Python's lock and waits for it again, which is long while a large round clears.
_SAMPLE = "ORDER BY seller_id LIMIT 250"


def of_round(connection: Connection, actor: Actor, round_: RoundAnswer, now_ms: int) -> list[Chart | None]:
    """Where the budget is, how bids came in, who sells at what price. Nothing for sellers."""
    if actor.role == "seller":
        return []
    return [
        where_the_budget_went(round_),
        bids_over_time(connection, round_, now_ms),
        who_sells(connection, actor, round_),
    ]


def bids_over_time(connection: Connection, round_: RoundAnswer, now_ms: int) -> Chart | None:
    """How many bids had come in, over the time since the round opened; never who or what."""
    if not round_["bids"]:
        return None
    query = f"SELECT created_ms FROM bids WHERE round_id = ? {_SAMPLE}"
    times = sorted(at for (at,) in sql.run(connection, query, round_["id"]))
    if not times:
        return None
    end = min(now_ms, round_["bid_deadline_ms"]) if round_["state"] == "open" else times[-1]
    start, each = round_["opened_ms"], round_["bids"] / len(times)
    points = [(0.0, 0.0), *((float(at - start), (i + 1) * each) for i, at in enumerate(times))]
    points.append((float(max(end - start, points[-1][0] + 1)), points[-1][1]))
    ends = ("opened", _clock(end))
    return line(
        "Bids that count, since the round opened", _thinned(points), x_name="time", x_ends=ends, stairs=True
    )


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most a few hundred of them, the first and the last always."""
    apart = max(1, len(points) // _DOTS)
    return [*points[:-1:apart], points[-1]]


def who_sells(connection: Connection, actor: Actor, round_: RoundAnswer) -> Chart | None:
    """Each sale as a dot: ε against the price per unit. Operators see the offers that lost, too."""
    if round_["state"] == "open" or not round_["sellers"]:
        return None
    query = f"SELECT epsilon, payment_micro, seller_id FROM awards WHERE round_id = ? {_SAMPLE}"
    sold = sql.run(connection, query, round_["id"])
    groups = {"won": [(e, p / 1e6 / e, f"{name}: ε {e:.3g} for {p / 1e6:.6g}") for e, p, name in sold]}
    if actor.role == "operator":
        ceiling = 3 * max((y for _, y, _ in groups["won"]), default=math.inf)
        groups["lost"] = _lost(connection, round_["id"], ceiling)
    if not any(groups.values()):
        return None
    legend = {"won": "sells, at the price it gets", "lost": "does not sell, at the price it asked"}
    return scatter("Price per unit of ε against ε", groups, x_name="ε", legend=legend)


def _lost(connection: Connection, round_id: str, ceiling: float) -> list[tuple[float, float, str]]:
    """Offers that did not sell, up to a price that leaves the others readable."""
    query = f"SELECT epsilon, valuation, seller_id FROM bids WHERE round_id = ? AND valuation IS NOT NULL {_SAMPLE}"
    offers = sql.run(connection, query, round_id)
    names = [name for _, _, name in offers]
    sellers = sql.run(
        connection, "SELECT seller_id FROM awards WHERE round_id = ? AND seller_id IN (?*)", round_id, names
    )
    won = {name for (name,) in sellers}
    return [(e, v, f"{name}: asked {v:.4g}") for e, v, name in offers if name not in won and v <= ceiling]


def where_the_budget_went(round_: RoundAnswer) -> Chart:
    """Escrow, paid, refunded, as parts of the budget."""
    budget, paid = round_["budget_micro"], round_["paid_micro"]
    if round_["state"] in ("settled", "aborted"):
        parts = [("good", "paid", paid), ("rest", "refunded", budget - paid)]
    else:
        owed = round_["awarded_micro"] if round_["state"] != "open" else 0
        parts = [("bar", "owed on delivery", owed), ("held", "in escrow", budget - owed)]
    shown = [(kind, name, float(value), rounded_money(value)) for kind, name, value in parts]
    return stack("Where this round's budget is", shown)


def score_against_spending(actor: Actor, rounds: Sequence[RoundAnswer]) -> Chart | None:
    """How good the buyer says its model was after each round, over what all rounds until then cost.

    `rounds`: newest first. Sellers see neither.
    """
    if actor.role == "seller":
        return None
    spent = 0.0
    points = []
    for round_ in reversed(rounds):
        spent += round_["paid_micro"] / 1e6
        if round_["model_accuracy"] is not None:
            points.append((spent, 100 * round_["model_accuracy"]))
    if len(points) < 2:
        return None
    return line("Score of the model, %, over money paid", points, x_name="paid in these rounds")


def paid_per_round(actor: Actor, rounds: Sequence[RoundAnswer]) -> Chart | None:
    """Money paid in the latest rounds, of their budget. Not for sellers."""
    done = [round_ for round_ in rounds if round_["state"] == "settled"][:30][::-1]
    if actor.role == "seller" or not done:
        return None
    items = [
        (
            r["paid_micro"] / 1e6,
            r["budget_micro"] / 1e6,
            f"round {r['number'] + 1}: {rounded_money(r['paid_micro'])}",
        )
        for r in done
    ]
    ends = (f"round {done[0]['number'] + 1}", f"round {done[-1]['number'] + 1}")
    return columns("Paid per round, of the budget", items, ends, "filled: paid, rest: refunded")


def price_per_round(actor: Actor, rounds: Sequence[RoundAnswer]) -> Chart | None:
    """What a unit of ε cost in the latest rounds: on average, or for sellers the highest price that was paid."""
    if actor.role == "seller":
        known = [(float(r["number"] + 1), r["top_price"]) for r in rounds if r.get("top_price")]
        label = "Highest price of a unit of ε in each round"
    else:
        known = [
            (float(r["number"] + 1), r["awarded_micro"] / 1e6 / r["total_epsilon"])
            for r in rounds
            if r.get("total_epsilon")
        ]
        label = "Price of a unit of ε in each round"
    points = [(number, float(price or 0.0)) for number, price in known[:30][::-1]]
    if len(points) < 2:
        return None
    return line(label, points, x_name="round")


def balance_over_time(balance_micro: int, lines: Sequence[Movement]) -> Chart | None:
    """One's balance after each of the latest movements."""
    if len(lines) < 2:
        return None
    balance, points = balance_micro, []
    for step, movement in enumerate(lines):
        points.append((-float(step), balance / 1e6))
        balance -= movement["amount_micro"]
    ends = (_clock(lines[-1]["created_ms"]), _clock(lines[0]["created_ms"]))
    return line("Your balance", points[::-1], x_name="latest movements", x_ends=ends, stairs=True)


def earnings_over_time(connection: Connection, seller_id: str) -> Chart | None:
    """What a seller has earned in all, after each of its sales that was paid."""
    query = (
        "SELECT l.at_ms, p.amount_micro FROM postings p JOIN log l ON l.seq = p.seq "
        "WHERE p.account = ? AND l.kind = 'award.settled' ORDER BY p.seq"
    )
    sales = sql.run(connection, query, ledger.party(seller_id))
    if len(sales) < 2:
        return None
    earned = 0.0
    points = []
    for at_ms, amount_micro in sales:
        earned += amount_micro / 1e6
        points.append((float(at_ms), earned))
    ends = (_day(sales[0][0]), _day(sales[-1][0]))
    return line("Earned in all", _thinned(points), x_name="time (UTC)", x_ends=ends, stairs=True)


def all_the_money(totals: Totals) -> Chart:
    """Deposits: on accounts or in escrow, nowhere else."""
    parts = [
        ("bar", "on accounts", totals["balances_micro"]),
        ("held", "in escrow", totals["escrow_micro"]),
    ]
    shown = [(kind, name, float(value), rounded_money(value)) for kind, name, value in parts]
    return stack("Where the deposits are", shown)


def wallets_left(wallets_of: Mapping[str, WalletAnswer]) -> Chart | None:
    """Spent ε of each seller's lifetime cap, as shares of the cap; sellers by name."""
    if not wallets_of:
        return None
    items = []
    for name, wallet in wallets_of.items():
        used = 1 - wallet["remaining_share"]
        items.append((name, used, 1.0, f"{100 * used:.0f} % of {wallet['cap_epsilon']:g}"))
    return bars("Used of each lifetime cap on ε", items)


def own_spending(connection: Connection, seller_id: str) -> Chart | None:
    """ε spent after each sale, under the lifetime cap: what composition really costs."""
    record = wallets.of_sellers(connection, [seller_id])[seller_id]
    count = len(record.events)
    if not count:
        return None
    marks = sorted({round(i * count / min(count, _STEPS)) for i in range(1, min(count, _STEPS) + 1)})
    spent = wallets.spent_epsilon([record.events[:mark] for mark in marks], record.delta)
    points = [(0.0, 0.0), *zip(map(float, marks), spent, strict=True)]
    return line("ε spent in all, under your cap", points, x_name="sales", limit=record.cap_epsilon)


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S")
