"""What a study of the Nash gap writes to its file."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

Measure = Literal["hindsight", "own_state", "price_error"]


class Timed(TypedDict):
    """A part of the report; earlier ones have no time."""

    seconds: NotRequired[float]


class Headline(Timed):
    """How the game was solved, and what a client is paid and sells in it."""

    result: str
    iterations: int
    relative_exploitability: float
    mean_payment: float
    mean_epsilon_sold: float


class GapCell(Timed):
    """The measures at one number of clients, one figure per run."""

    clients: int
    own_state_limit: float
    hindsight: list[float]
    own_state: list[float]
    price_error: list[float]
    mean_payment: list[float]


class Shading(TypedDict):
    """What one client gains by shading otherwise, with its standard error."""

    share: float
    extra: float
    gain: float
    standard_error: float


class SearchCell(Timed):
    """What the best shading gains at one number of clients, and what all of them do."""

    clients: int
    seeds: int
    best_gain: float
    standard_error: float
    shadings: list[Shading]


class ProxyCell(TypedDict):
    """The one-round regret of a mechanism at one number of clients, one figure per run."""

    mechanism: str
    weights: NotRequired[str | None]
    clients: int
    regret: list[float]
    mean_payment: list[float]


class Fit(TypedDict):
    """A log-log slope with its interval."""

    slope: float
    low: float
    high: float


class NashGapReport(TypedDict):
    """The file of a study: parts by "population/rule/clients", "population/clients" or "mechanism/clients"."""

    setting: dict[str, object]
    version: str
    equilibria: dict[str, Headline]
    cells: dict[str, GapCell]
    search: dict[str, SearchCell]
    proxy: dict[str, ProxyCell]
    slopes: NotRequired[dict[str, Fit | None]]
