"""What is worth a look on each page, drawn from what `views` shows to the role that asks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection

from privmarket.broker import _charts as charts
from privmarket.broker import _ledger as ledger
from privmarket.broker import _sql as sql
from privmarket.broker import _wallets as wallets
from privmarket.broker._answers import Movement, RoundAnswer, Totals, WalletAnswer
from privmarket.broker._charts import Chart
from privmarket.broker._page_frame import rounded_money
from privmarket.broker._parties import Actor

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
    return charts.line(
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
    return charts.scatter("Price per unit of ε against ε", groups, x_name="ε", legend=legend)


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
    return charts.stack("Where this round's budget is", shown)


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
    return charts.line("Score of the model, %, over money paid", points, x_name="paid in these rounds")


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
    return charts.columns("Paid per round, of the budget", items, ends, "filled: paid, rest: refunded")


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
    return charts.line(label, points, x_name="round")


def balance_over_time(balance_micro: int, lines: Sequence[Movement]) -> Chart | None:
    """One's balance after each of the latest movements."""
    if len(lines) < 2:
        return None
    balance, points = balance_micro, []
    for step, movement in enumerate(lines):
        points.append((-float(step), balance / 1e6))
        balance -= movement["amount_micro"]
    ends = (_clock(lines[-1]["created_ms"]), _clock(lines[0]["created_ms"]))
    return charts.line("Your balance", points[::-1], x_name="latest movements", x_ends=ends, stairs=True)


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
    return charts.line("Earned in all", _thinned(points), x_name="time (UTC)", x_ends=ends, stairs=True)


def all_the_money(totals: Totals) -> Chart:
    """Deposits: on accounts or in escrow, nowhere else."""
    parts = [
        ("bar", "on accounts", totals["balances_micro"]),
        ("held", "in escrow", totals["escrow_micro"]),
    ]
    shown = [(kind, name, float(value), rounded_money(value)) for kind, name, value in parts]
    return charts.stack("Where the deposits are", shown)


def wallets_left(wallets_of: Mapping[str, WalletAnswer]) -> Chart | None:
    """Spent ε of each seller's lifetime cap, as shares of the cap; sellers by name."""
    if not wallets_of:
        return None
    items = []
    for name, wallet in wallets_of.items():
        used = 1 - wallet["remaining_share"]
        items.append((name, used, 1.0, f"{100 * used:.0f} % of {wallet['cap_epsilon']:g}"))
    return charts.bars("Used of each lifetime cap on ε", items)


def own_spending(connection: Connection, seller_id: str) -> Chart | None:
    """ε spent after each sale, under the lifetime cap: what composition really costs."""
    record = wallets.of_sellers(connection, [seller_id])[seller_id]
    count = len(record.events)
    if not count:
        return None
    marks = sorted({round(i * count / min(count, _STEPS)) for i in range(1, min(count, _STEPS) + 1)})
    spent = wallets.spent_epsilon([record.events[:mark] for mark in marks], record.delta)
    points = [(0.0, 0.0), *zip(map(float, marks), spent, strict=True)]
    return charts.line("ε spent in all, under your cap", points, x_name="sales", limit=record.cap_epsilon)


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S")
