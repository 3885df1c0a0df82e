"""The paper's own figures, kept in one file with the table and the lines that they come from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Printed:
    """One table of the paper.

    Attributes:
        where: table and lines of the paper's source.
        setting: what it says it shows.
        rows: mechanism → column → figure; for `latency` mechanism → list of points.
    """

    where: str
    setting: str
    rows: dict[str, Any]


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    text = (files("privmarket_studies.reproduce") / "paper.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def printed(table: str) -> Printed:
    """The table of the paper called `table`: efficiency, accuracy, latency or regret."""
    found = _data()[table]
    columns = found["columns"]
    flat = {
        name: dict(zip(columns, row, strict=True)) if row and not isinstance(row[0], list) else row
        for name, row in found["rows"].items()
    }
    return Printed(f"{found['table']}, lines {found['lines']}", found["setting"], flat)


def speed_up_claimed() -> tuple[int, int]:
    """How many times faster than PAC, VCG and CSRA the paper's network is said to be at N = 500."""
    low, high = _data()["latency"]["speed_up_at_500"]
    return low, high
