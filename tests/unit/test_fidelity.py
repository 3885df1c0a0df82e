"""docs/fidelity.md has a row for each of the paper's items, and every row's module, test and quoted word are there.

A row cites a test as `file.py::test_name` with a word in quotes, “word”, that says what of the item the test is
about: the word has to occur in the source of that test. A row that cites nothing has “–” there, and may not
claim to be the same.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/fidelity.md"
ITEMS = range(1, 129)
STATUS = {"same", "differs", "beyond", "partly", "missing"}
PLACES = ("src/privmarket", "studies/src", "")
_ROW = re.compile(r"^\| (\d+)(?:–(\d+))? \| (.+?) \| `(.+?)` \| (–|`.+?”) \| (\w+) \| (.+) \|$", re.MULTILINE)
_CITED = re.compile(r"`(.+?)::(test_\w+)` “(.+)”")


@cache
def sources_in(file: str) -> dict[str, str]:
    """Name → source of every test function of a file below tests/, decorators included; {} if there is no file."""
    path = ROOT / "tests" / file
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


def citation_fault(citation: str) -> str | None:
    """What is wrong with a citation: its form, a test that is not there, or a word that the test does not hold."""
    cited = _CITED.fullmatch(citation)
    if cited is None:
        return f"not of the form `file.py::test_name` “word”: {citation}"
    file, name, word = cited.groups()
    source = sources_in(file).get(name)
    if source is None:
        return f"no test {name} in {file}"
    if word.lower() not in source.lower():
        return f"{name} says nothing of {word!r}"
    return None


def faults(page: str) -> list[str]:
    """What is wrong with the page, a sentence each."""
    found = []
    seen: list[int] = []
    for first, last, what, module, citation, status, why in _ROW.findall(page):
        row = f"{first} ({what})"
        seen += range(int(first), int(last or first) + 1)
        if not any((ROOT / place / module).is_file() for place in PLACES):
            found.append(f"{row}: no module {module}")
        if citation == "–":
            if status == "same":
                found.append(f"{row}: called the same, and no test is cited")
        elif (fault := citation_fault(citation)) is not None:
            found.append(f"{row}: {fault}")
        if status not in STATUS:
            found.append(f"{row}: status {status}")
        if status != "same" and len(why) < 10:
            found.append(f"{row}: {status} without a reason")
    found += [f"item {n} has {seen.count(n)} rows" for n in ITEMS if seen.count(n) != 1]
    return found


def test_every_item_has_one_row_with_a_module_and_a_test():
    assert faults(PAGE.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("there", "broken", "said"),
    [
        ("`mechanisms/_pac.py`", "`mechanisms/_gone.py`", "no module"),
        ("test_bounds.py::test_ironing_two_point_masses`", "test_gone.py::test_ironing`", "no test test_ironing"),
        ("::test_ironing_two_point_masses`", "::test_something_else`", "no test test_something_else"),
        ("“ironing”", "“variance”", "says nothing of 'variance'"),
        ("` “ironing”", "` “”", "not of the form"),
        ("::test_algorithm_1` “item(16”", "` “item(16”", "not of the form"),
        ("`studies/test_paper_equations.py::test_algorithm_1` “item(16” | differs", "– | same", "no test is cited"),
        ("| 62 |", "| 63 |", "item 62 has 0 rows"),
        ("| missing |", "| forgotten |", "status forgotten"),
    ],
)
def test_a_row_that_points_nowhere_is_noticed(there, broken, said):
    page = PAGE.read_text(encoding="utf-8")
    assert there in page
    assert any(said in fault for fault in faults(page.replace(there, broken)))
