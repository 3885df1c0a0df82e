"""Texts that result pages share."""

from __future__ import annotations

import pytest

from privmarket.errors import PrivmarketError
from privmarket_studies.page_text import largest_exposed, largest_spent, table_row


def test_a_row_of_a_table():
    assert table_row(["a", "b"]) == "| a | b |\n"


def test_the_largest_figure_is_shown_and_a_run_without_one_is_refused():
    runs = [
        {"largest_epsilon_spent": 1.5, "largest_epsilon_if_others_collude": 9.0},
        {"largest_epsilon_spent": 2.5, "largest_epsilon_if_others_collude": None},
    ]
    assert largest_spent(runs) == 2.5
    with pytest.raises(PrivmarketError, match="without an ε"):
        largest_exposed(runs)
