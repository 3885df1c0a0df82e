"""Compares what a command printed as JSON with the tables of `docs/reference/json.md`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs/reference/json.md"
# A field that is there only sometimes says so at the start of its meaning.
_SOMETIMES = re.compile(r"with `--|\w+ only:")


def sections(text: str) -> dict[str, dict[str, bool]]:
    """Command → its documented fields → whether they are always there."""
    found: dict[str, dict[str, bool]] = {}
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        name, _, body = section.partition("\n")
        rows = re.findall(r"^\| (`.*?) \| (.*) \|$", body, flags=re.M)
        fields = {
            field: not _SOMETIMES.match(meaning)
            for names, meaning in rows
            for field in re.findall("`(.*?)`", names)
        }
        if fields:
            found[name.strip()] = fields
    return found


def names(data: Any, prefix: str = "") -> Iterator[str]:
    """`a.b` and `a[].b` of every value."""
    if isinstance(data, dict) and (data or not prefix):
        for key, value in data.items():
            yield from names(value, f"{prefix}.{key}" if prefix else key)
    elif isinstance(data, list) and data and isinstance(data[0], dict):
        for value in data:
            yield from names(value, f"{prefix}[]")
    else:
        yield prefix


def differences(documented: dict[str, bool], data: dict[str, Any]) -> list[str]:
    """What the document has and the table has not, and the other way round."""
    real = set(names(data)) - {"schema_version"}

    def covers(field: str, name: str) -> bool:
        if not field.endswith(".*"):
            return name == field
        return name == field[:-2] or name.startswith((field[:-1], field[:-2] + "[]"))

    said = [f"not documented: {name}" for name in sorted(real) if not any(covers(one, name) for one in documented)]
    said += [
        f"documented, but not there: {field}"
        for field, always in documented.items()
        if always and not any(covers(field, name) for name in real)
    ]
    return said


def check_fields(command: str, data: dict[str, Any]) -> None:
    """Fails if the page does not say what `privmarket COMMAND --json` prints."""
    assert data["schema_version"] == 1
    said = differences(sections(PAGE.read_text(encoding="utf-8"))[command], data)
    assert not said, f"{command}: {said}"
