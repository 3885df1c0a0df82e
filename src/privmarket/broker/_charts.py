"""The charts of the broker's pages, made from what the reader's role may see.

Charts are made by `privmarket._svg`, as SVG without a script; colours are classes of the style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection

from privmarket import _svg as svg
from privmarket.broker import _ledger as ledger, _sql as sql, _wallets as wallets
from privmarket.broker._answers import Movement, RoundAnswer, Totals, WalletAnswer
from privmarket.broker._page_frame import rounded_money
from privmarket.broker._parties import Actor

_DOTS = 400
_STEPS = 40
_LONGEST_NAME = 24
# A page must not read a hundred thousand rows to draw dots. Ids of sellers are random and indexed within each
# round, so the first of them in order are a random sample. It is small because SQLite releases and takes Python's
# lock for every row, which is slow while a large round clears.
_SAMPLE = "ORDER BY seller_id LIMIT 250"


@dataclass(frozen=True)
class Chart:
    """A chart of a page.

    Attributes:
        title: what it shows.
        drawing: its HTML, in which all words are escaped.
        strip: whether it is low and as wide as the page.
    """

    title: str
    drawing: str
    strip: bool = False


def _line(
    title: str,
    points: Sequence[tuple[float, float]],
    *,
    x_title: str,
    y_title: str,
    x_ends: tuple[str, str] | None = None,
    levels: Sequence[tuple[str, float]] = (),
    stairs: bool = False,
) -> Chart:
    """A chart of one line, half as wide as the page."""
    x, y = zip(*points, strict=True)
    drawn = svg.Line(y_title, x, y, "line", stairs=stairs, area=True)
    drawing = svg.line_chart(
        [drawn],
        x_title=x_title,
        y_title=y_title,
        y_text=_short,
        levels=levels,
        x_ends=x_ends,
        width=svg.HALF_WIDTH,
    )
    return Chart(title, drawing)


def _short(value: float) -> str:
    """A figure for an axis."""
    for size, mark in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if mark == 'k' else size):.3g}{mark}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


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
    """How many bids had come in, over the time since the round opened; it shows neither bidders nor offers."""
    if not round_["bids"]:
        return None
    query = f"SELECT created_ms FROM bids WHERE round_id = ? {_SAMPLE}"
    times = sorted(at for (at,) in sql.run(connection, query, round_["id"]))
    if not times:
        return None
    end = min(now_ms, round_["bid_deadline_ms"]) if round_["state"] == "open" else times[-1]
    start = round_["opened_ms"]
    each = round_["bids"] / len(times)
    points = [(0.0, 0.0), *((float(at - start), (i + 1) * each) for i, at in enumerate(times))]
    points.append((float(max(end - start, points[-1][0] + 1)), points[-1][1]))
    ends = ("opened", _clock(end))
    return _line(
        "Bids that count, since the round opened",
        _thinned(points),
        x_title="time",
        y_title="bids",
        x_ends=ends,
        stairs=True,
    )


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """A few hundred of the points at most, always with the first and the last."""
    apart = max(1, len(points) // _DOTS)
    return [*points[:-1:apart], points[-1]]


def who_sells(connection: Connection, actor: Actor, round_: RoundAnswer) -> Chart | None:
    """Each sale as a dot: ε against the price per unit. Operators see the offers that lost, too."""
    if round_["state"] == "open" or not round_["sellers"]:
        return None
    query = f"SELECT epsilon, payment_micro, seller_id FROM awards WHERE round_id = ? {_SAMPLE}"
    sold = sql.run(connection, query, round_["id"])
    won = [(e, p / 1e6 / e, f"{name}: ε {e:.3g} for {p / 1e6:.6g}") for e, p, name in sold]
    lost = []
    if actor.role == "operator":
        ceiling = 3 * max((price for _, price, _ in won), default=math.inf)
        lost = _lost(connection, round_["id"], ceiling)
    if not won and not lost:
        return None
    groups = [
        svg.Dots("sells, at the price it gets", won, "won"),
        svg.Dots("does not sell, at the price it asked", lost, "lost"),
    ]
    drawn = svg.scatter(groups, x_title="ε", y_title="price", width=svg.HALF_WIDTH)
    return Chart("Price per unit of ε against ε", drawn)


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
    budget = round_["budget_micro"]
    paid = round_["paid_micro"]
    if round_["state"] in ("settled", "aborted"):
        parts = [("paid", paid, "good"), ("refunded", budget - paid, "rest")]
    else:
        owed = round_["awarded_micro"] if round_["state"] != "open" else 0
        parts = [("owed on delivery", owed, "bar"), ("in escrow", budget - owed, "held")]
    return _strip("Where this round's budget is", parts)


def _strip(title: str, parts: Sequence[tuple[str, int, str]]) -> Chart:
    """An amount of money cut into parts: (name, micro-units, colour) each."""
    shown = [(name, float(micro), rounded_money(micro), colour) for name, micro, colour in parts]
    return Chart(title, svg.strip(shown), strip=True)


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
    title = "Score of the model over money paid"
    ends = (_short(points[0][0]), _short(points[-1][0]))
    return _line(title, points, x_title="paid in these rounds", y_title="score, %", x_ends=ends)


def paid_per_round(actor: Actor, rounds: Sequence[RoundAnswer]) -> Chart | None:
    """Money paid in the latest rounds, of their budget. Not for sellers."""
    done = [round_ for round_ in rounds if round_["state"] == "settled"][:30][::-1]
    if actor.role == "seller" or not done:
        return None
    paid = [r["paid_micro"] / 1e6 for r in done]
    refunded = [(r["budget_micro"] - r["paid_micro"]) / 1e6 for r in done]
    notes = [
        f"round {r['number'] + 1}: {rounded_money(r['paid_micro'])} of {rounded_money(r['budget_micro'])}"
        for r in done
    ]
    drawn = svg.bar_chart(
        [svg.Bars("paid", paid, "bar", notes), svg.Bars("refunded", refunded, "rest", notes)],
        [r["number"] + 1 for r in done],
        x_title="round",
        y_title="money",
        y_text=_short,
        width=svg.HALF_WIDTH,
    )
    return Chart("Paid per round, of the budget", drawn)


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
    return _line(label, points, x_title="round", y_title="price")


def balance_over_time(balance_micro: int, lines: Sequence[Movement]) -> Chart | None:
    """One's balance after each of the latest movements."""
    if len(lines) < 2:
        return None
    balance = balance_micro
    points = []
    for step, movement in enumerate(lines):
        points.append((-float(step), balance / 1e6))
        balance -= movement["amount_micro"]
    ends = (_clock(lines[-1]["created_ms"]), _clock(lines[0]["created_ms"]))
    return _line(
        "Your balance", points[::-1], x_title="latest movements", y_title="balance", x_ends=ends, stairs=True
    )


def earnings_over_time(connection: Connection, seller_id: str) -> Chart | None:
    """What a seller has earned in total after each of its sales that was paid."""
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
    return _line(
        "Earned in all", _thinned(points), x_title="time (UTC)", y_title="earned", x_ends=ends, stairs=True
    )


def all_the_money(totals: Totals) -> Chart:
    """How much of the deposits is on accounts, and how much in escrow."""
    parts = [("on accounts", totals["balances_micro"], "bar"), ("in escrow", totals["escrow_micro"], "held")]
    return _strip("Where the deposits are", parts)


def wallets_left(wallets_of: Mapping[str, WalletAnswer]) -> Chart | None:
    """Spent ε of each seller's lifetime cap, as shares of the cap; sellers by name."""
    if not wallets_of:
        return None
    used = [100 * (1 - wallet["remaining_share"]) for wallet in wallets_of.values()]
    caps = [wallet["cap_epsilon"] for wallet in wallets_of.values()]
    drawn = svg.named_bars(
        [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in wallets_of],
        used,
        x_title="% of the cap",
        colour="bar",
        wholes=[100.0] * len(used),
        rest_colour="rest",
        notes=[f"{share:.0f} % of {cap:g}" for share, cap in zip(used, caps, strict=True)],
        width=svg.HALF_WIDTH,
    )
    return Chart("Used of each lifetime cap on ε", drawn)


def own_spending(connection: Connection, seller_id: str) -> Chart | None:
    """ε spent in total after each sale, by composition, and the lifetime cap."""
    record = wallets.of_sellers(connection, [seller_id])[seller_id]
    count = len(record.events)
    if not count:
        return None
    marks = sorted({round(i * count / min(count, _STEPS)) for i in range(1, min(count, _STEPS) + 1)})
    spent = wallets.spent_epsilon([record.events[:mark] for mark in marks], record.delta)
    points = [(0.0, 0.0), *zip(map(float, marks), spent, strict=True)]
    levels = [("your cap", record.cap_epsilon)]
    return _line("ε spent in all, under your cap", points, x_title="sales", y_title="ε", levels=levels)


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S")
