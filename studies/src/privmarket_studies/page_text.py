"""Texts that several result pages share: a row of a table, and figures of some kept runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from privmarket.errors import PrivmarketError
from privmarket_studies.kept_weights import KeptResult
from privmarket_studies.reproduce.statistics import Measured


def table_row(cells: Iterable[str]) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(cells)} |\n"


def accuracy_text(results: Sequence[KeptResult]) -> str:
    """Mean ± standard deviation in per cent, or the one figure there is."""
    return f"{Measured.of(100 * result['accuracy'] for result in results).text()} %"


def largest_spent(results: Sequence[KeptResult]) -> float:
    """The largest lifetime ε that a client of these private runs spent."""
    return _largest([result["largest_epsilon_spent"] for result in results])


def largest_exposed(results: Sequence[KeptResult]) -> float:
    """The same, were all other sellers to collude with the server."""
    return _largest([result["largest_epsilon_if_others_collude"] for result in results])


def _largest(figures: Sequence[float | None]) -> float:
    known = [figure for figure in figures if figure is not None]
    if len(known) < len(figures):
        why = "a run without an ε stands among private runs"
        raise PrivmarketError(why, "show it as a run without a guarantee")
    return max(known)
