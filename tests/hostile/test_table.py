"""The table of breaks names tests that exist, and every break of the list has one."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent


def test_every_break_has_an_attack_that_exists():
    rows = [line for line in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines() if "`test_" in line]
    tests = "".join(path.read_text("utf-8") for path in FOLDER.parent.rglob("test_*.py"))
    defined = set(re.findall(r"^def (test_\w+)", tests, re.M))
    assert [row.split()[1] for row in rows[:10]] == [str(number) for number in range(1, 11)]
    named = {name for row in rows for name in re.findall(r"`(test_\w+)`", row)}
    assert named <= defined
