"""Every command of every page and of every help text can be pasted: its words are right, and the quick ones run.

`make dist` runs the same from an installed wheel; `python -m privmarket_fixtures.pasted . --program … --slow` also
runs what takes longer.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from privmarket.cli import app
from privmarket_fixtures.pasted import Pasted, by_place, commands, failures, lines_of, misread

ROOT = Path(__file__).parents[2]
FOUND = commands(ROOT)
QUICK = {
    where: lines
    for where, lines in by_place(FOUND).items()
    if any(not one.elsewhere and not one.is_slow for one in lines)
}


@pytest.fixture
def in_process(monkeypatch):
    def run(pasted: Pasted, folder: Path) -> tuple[int, str]:
        monkeypatch.chdir(folder)
        done = CliRunner().invoke(app, pasted.words[1:])
        if pasted.target is not None:
            (folder / pasted.target).write_text(done.stdout, encoding="utf-8")
        return done.exit_code, done.output + repr(done.exception)

    return run


def test_pages_and_help_have_commands():
    assert len(FOUND) > 100
    assert {"docs/index.md", "docs/tutorial.md", "docs/how-to/your-own-rule.md"} <= set(by_place(FOUND))


def test_the_words_of_every_command_are_right():
    assert [(one.where, one.line, why) for one in FOUND if (why := misread(one))] == []


@pytest.mark.parametrize("where", QUICK)
def test_quick_commands_run_in_an_empty_folder(where, in_process, tmp_path, monkeypatch):
    assert failures({where: QUICK[where]}, in_process, slow=False) == []
    monkeypatch.chdir(tmp_path)  # the folder that was worked in is gone


def test_a_wrong_word_and_a_missing_file_are_noticed(in_process, tmp_path, monkeypatch):
    assert misread(Pasted("page", "privmarket auction bids.csv --bugdet 3"))
    assert misread(Pasted("page", "privmarket auktion bids.csv"))
    assert misread(Pasted("page", "privmarket account --sale 1.0x200     200 sales of ε = 1"))
    alone = Pasted("page", "privmarket auction bids.csv --budget 3")
    assert misread(alone) is None
    assert len(failures({"page": [alone]}, in_process, slow=False)) == 1
    monkeypatch.chdir(tmp_path)


def test_only_shell_blocks_are_read():
    page = "```python\nprivmarket x\n```\n```\nprivmarket y  # why\n$ privmarket z\n```\n"
    page += "  ```text\n  privmarket w\n  ```\n"
    assert lines_of(page) == ["privmarket y  # why", "privmarket z"]
