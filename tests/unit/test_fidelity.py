"""docs/fidelity.md has a row for each of the paper's 122 items, and every row's module and test are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/fidelity.md"
ITEMS = range(1, 123)
STATUS = {"same", "differs", "beyond", "partly", "missing"}
PLACES = ("src/privmarket", "studies/src", "")
_ROW = re.compile(r"^\| (\d+)(?:–(\d+))? \| (.+?) \| `(.+?)` \| `(.+?)` \| (\w+) \| (.+) \|$", re.MULTILINE)


def faults(page: str) -> list[str]:
    """What is wrong with the page, a sentence each."""
    found, seen = [], []
    for first, last, what, module, test, status, why in _ROW.findall(page):
        seen += range(int(first), int(last or first) + 1)
        if not any((ROOT / place / module).is_file() for place in PLACES):
            found.append(f"{first} ({what}): no module {module}")
        if not (ROOT / "tests" / test).is_file():
            found.append(f"{first} ({what}): no test {test}")
        if status not in STATUS:
            found.append(f"{first} ({what}): status {status}")
        if status != "same" and len(why) < 10:
            found.append(f"{first} ({what}): {status} without a reason")
    found += [f"item {n} has {seen.count(n)} rows" for n in ITEMS if seen.count(n) != 1]
    return found


def test_every_item_has_one_row_with_a_module_and_a_test():
    assert faults(PAGE.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("there", "broken", "said"),
    [
        ("`mechanisms/pac.py`", "`mechanisms/gone.py`", "no module"),
        ("`unit/market/test_bounds.py`", "`unit/market/test_gone.py`", "no test"),
        ("| 62 |", "| 63 |", "item 62 has 0 rows"),
        ("| missing |", "| forgotten |", "status forgotten"),
    ],
)
def test_a_row_that_points_nowhere_is_noticed(there, broken, said):
    page = PAGE.read_text(encoding="utf-8")
    assert there in page
    assert any(said in fault for fault in faults(page.replace(there, broken)))
