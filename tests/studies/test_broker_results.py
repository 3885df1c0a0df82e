"""The kept page about the broker is what its files say, and the files hold what the issue asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privmarket import broker
from privmarket_studies.broker_results import DATABASES, render
from privmarket_studies.torture.runs import broker_code

FOLDER = Path(__file__).parents[2] / "docs/results/broker"


def test_the_page_is_rendered_from_its_files() -> None:
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == render(FOLDER)


def test_enough_was_tried_on_both_databases() -> None:
    runs = {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in ("kills", "fuzz")}
    for database in DATABASES:
        assert sum(run["kills"] for run in runs["kills"] if run["database"] == database) >= 50
        assert [run for run in runs["fuzz"] if run["database"] == database]


def test_a_failed_run_cannot_hide_among_good_ones(tmp_path: Path) -> None:
    for file in FOLDER.glob("*.json"):
        (tmp_path / file.name).write_text(file.read_text())
    runs = json.loads((tmp_path / "kills.json").read_text())
    runs[0]["verdict"] = "a bid was lost"
    (tmp_path / "kills.json").write_text(json.dumps(runs))
    with pytest.raises(ValueError, match="too many values"):
        render(tmp_path)


def test_a_digest_is_of_what_the_code_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "__file__", str(tmp_path / "__init__.py"))
    code = 'def f():\n    """One."""\n    return 1\n'
    digests = []
    for text in (code, code.replace("One.", "Two.").replace("1\n", "1  # more\n"), code.replace("1\n", "2\n")):
        (tmp_path / "rules.py").write_text(text)
        digests.append(broker_code())
    assert digests[0] == digests[1] != digests[2]
