"""What every page of the dashboard shares: how it is made, its errors, money in words, and how typed text is read.

Pages are made on the server and escaped by Jinja; a small script fetches the live part again every second, so they
work without it too.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, NamedTuple

from fastapi import Form, Request
from fastapi.responses import RedirectResponse, Response
from fastapi.templating import Jinja2Templates

from privmarket.broker import _callers as callers, _log_views as log_views
from privmarket.broker._broker import Broker
from privmarket.broker._errors import BrokerError, UnauthenticatedError
from privmarket.broker._parties import Actor
from privmarket.broker._schema import find_party
from privmarket.broker._shapes import MONEY_LIMIT_MICRO
from privmarket.errors import PrivmarketError

# What a rule guarantees, in plain words.
_PROMISES = {
    "individually rational": "pays every seller at least what it asks",
    "within budget": "never pays more than the budget",
    "within offers": "never takes more ε than was offered",
    "truthful in v": "asking one's true price is best",
    "truthful in ε, downwards": "offering less ε than one would sell never pays",
    "collusion-proof": "sellers gain nothing by arranging their bids",
}
_templates = Jinja2Templates(Path(__file__).parent / "templates")
_templates.env.filters["money"] = lambda micro: shown_money(micro)
_templates.env.filters["until"] = lambda ms, now: until(ms - now)
_templates.env.filters["duration"] = lambda seconds: until(1000 * seconds).removeprefix("in ")
_templates.env.filters["moment"] = lambda ms: moment(ms)
_templates.env.filters["iso"] = lambda ms: datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
_templates.env.filters["units"] = lambda micro: f"{Decimal(micro) / 1_000_000:f}"
_templates.env.filters["plain"] = lambda value: f"{value:.12f}".rstrip("0").rstrip(".")
_templates.env.filters["words"] = lambda details, names: details_in_words(details, names)
_templates.env.filters["promise"] = lambda label: _PROMISES.get(label, label)
_templates.env.globals["log_line"] = lambda request: log_line(request)
ROWS = 50
Field = Annotated[str, Form(max_length=300)]
# The idempotency key that was drawn with the form, so that the same form posted twice acts once.
Key = Annotated[str, Form(min_length=8, max_length=200)]


class _Html(str):
    """Text that is HTML already: Jinja leaves it as it is."""

    def __html__(self) -> str:
        return str(self)


def log_line(request: Request) -> str:
    """The head of the log and who witnessed it, for the foot of every page."""
    with request.app.state.broker.database.read() as connection:
        return log_views.statement_of_trust(connection)


def shown_money(micro: int) -> str:
    """Money with two decimals; the exact amount, if it has more of them, is shown as a tooltip."""
    exact, short = exact_money(micro), rounded_money(micro)
    return short if exact == short else _Html(f'<span title="{exact}">{short}</span>')


def rounded_money(micro: int) -> str:
    """Micro-units as money with two decimals, rounded towards zero."""
    cents = abs(micro) // 10_000
    return f"{'−' if micro < 0 else ''}{cents // 100:,}.{cents % 100:02d}"


def exact_money(micro: int) -> str:
    """Micro-units as money, exactly, with at least two decimals."""
    whole, rest = divmod(abs(micro), 1_000_000)
    decimals = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{'−' if micro < 0 else ''}{whole:,}.{decimals}"


def details_in_words(details: str, names: Mapping[str, str | None]) -> list[tuple[str, str]]:
    """The details of a log entry as (name, value): money in units, moments as dates, parties by their names."""
    if not details.startswith("{"):
        return [("", details)]
    return [(re.sub("_(micro|ms|id)$", "", name).replace("_", " "), _in_words(name, value, names))
            for name, value in json.loads(details).items() if value not in (None, {}, [])]  # fmt: skip


def _in_words(name: str, value: object, names: Mapping[str, str | None]) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith("_micro"):
        return shown_money(value)
    if isinstance(value, int) and name.endswith("_ms"):
        return moment(value)
    if isinstance(value, str):
        if re.fullmatch("[0-9a-f]{40,}", value):  # a digest, a key or a signature: its beginning tells it apart
            return _Html(f'<code title="{value}">{value[:12]}…</code>')
        return names.get(value) or value
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


def moment(ms: int | None) -> str:
    """A moment as a date, in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if ms else "–"


def until(ms: int) -> str:
    """How far away a moment is, in words: "in 42 min", "3 h ago"."""
    seconds = abs(ms) / 1000
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= 2 * size or size == 1:
            text = f"{seconds / size:.0f} {unit}"
            break
    return f"in {text}" if ms >= 0 else f"{text} ago"


def show(request: Request, name: str, **values: object) -> Response:
    """A page: a template, filled with values and what every page shows."""
    return _filled(request, name, 200, values)


def _filled(request: Request, name: str, status: int, values: Mapping[str, object]) -> Response:
    # The live part alone, when the script asks for it.
    partial = request.query_params.get("part") == "live"
    context = {"mark": callers.form_mark(request), "partial": partial, "path": request.url.path, **values}
    context |= {"key": str(uuid.uuid4()), "currency": request.app.state.settings.currency}
    context["now"] = request.app.state.broker.database.now_ms()
    context["signing"] = _signing(request, context.get("actor"))
    return _templates.TemplateResponse(request, name, context, status_code=status)


class Signing(NamedTuple):
    """Which key the reader of a page has, and whether it signs everything that it states."""

    public_key: str | None = None
    everything: bool = False


def _signing(request: Request, actor: object) -> Signing:
    if not isinstance(actor, Actor):
        return Signing()
    with request.app.state.broker.database.read() as connection:
        party = find_party(connection, actor.party_id)
    return Signing() if party is None else Signing(party.public_key, party.signs == "everything")


def actor_and_broker(request: Request) -> tuple[Actor, Broker]:
    """Who is signed in, and the broker; raises `UnauthenticatedError`."""
    return callers.signed_in(request), request.app.state.broker


def is_page(request: Request) -> bool:
    """Whether an error here is shown to a person."""
    path = request.url.path
    return not path.startswith(("/v1", "/static", "/health", "/readyz", "/metrics", "/openapi"))


def error_page(request: Request, status: int, error: PrivmarketError) -> Response:
    """The page that shows an error; a reader who is not signed in is sent to the sign-in page."""
    if isinstance(error, UnauthenticatedError) and request.query_params.get("part") != "live":
        response: Response = RedirectResponse("/sign-in", 303)
        callers.forget_session(response)
        return response
    hint = "" if error.hint.startswith("GET ") else error.hint  # routes of the API help nobody who reads a page
    return _filled(
        request, "error.html", status, {"message": error.message, "hint": hint, "actor": _perhaps(request)}
    )


def _perhaps(request: Request) -> Actor | None:
    """Who is signed in, for the navigation of an error's page; None if nobody is, or if that cannot be read."""
    try:
        return callers.signed_in(request)
    except PrivmarketError:
        return None


def money_typed(name: str, text: str) -> int:
    """Micro-units of an amount typed in units, exactly."""
    try:
        micro = Decimal(text.strip()) * 1_000_000
    except InvalidOperation:
        raise BrokerError(f"{name}: {text!r} is not an amount", "write digits, e.g. 12.50") from None
    if not micro.is_finite() or micro != micro.to_integral_value() or not 0 < micro <= MONEY_LIMIT_MICRO:
        raise BrokerError(f"{name}: {text!r} cannot be booked", "give more than 0, at most six decimals") from None
    return int(micro)


def number_typed(name: str, text: str) -> float:
    """A finite number; `name` is the field's, for the error."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        hint = "write digits, e.g. 0.5"
        pointed = text.strip().replace(",", ".")
        if "," in text and pointed.count(".") == 1:
            hint = f"write {pointed}, with a point"
        raise BrokerError(f"{name}: {text!r} is not a number", hint)
    return value


def reason_typed(text: str) -> str:
    """A reason of at most 200 printable characters."""
    if not 0 < len(text.strip()) <= 200 or not text.strip().isprintable():
        raise BrokerError("no reason, or one that does not print", "say why, in at most 200 characters")
    return text.strip()
