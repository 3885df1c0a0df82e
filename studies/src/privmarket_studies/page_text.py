"""Texts that several result pages share: a row of a table, and the accuracy of some kept runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from privmarket_studies.kept_weights import KeptResult
from privmarket_studies.reproduce.statistics import Measured


def table_row(cells: Iterable[str]) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(cells)} |\n"


def accuracy_text(results: Sequence[KeptResult]) -> str:
    """Mean ± standard deviation in per cent, or the one figure there is."""
    return f"{Measured.of(100 * result['accuracy'] for result in results).text()} %"
