"""The bar of long commands."""

from __future__ import annotations

import io

from privmarket.cli import _progress as progress
from privmarket.cli._progress import ProgressBar, WorkBar


def test_a_guess_that_was_too_low_grows_and_one_that_was_too_high_ends(capsys):
    with ProgressBar("planning", 2) as low:
        for _ in range(3):
            low.advance(1)
    with ProgressBar("planning", 9) as high:
        high.advance(3)
        high.finish()
    shown = capsys.readouterr().err
    assert shown.count("3/3") == 2


def test_quick_work_leaves_no_line_and_slow_work_says_how_far_it_is(capsys, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with WorkBar("reading table.csv", "rows") as bar:
        bar.show(10, 0)
        clock[0] += 1.0
        bar.show(500, 0)
        assert capsys.readouterr().err == ""
        clock[0] += 1.5  # the first line comes after two seconds, so that nobody waits in the dark
        bar.show(2_000, 0)
        assert capsys.readouterr().err == "reading table.csv: 2,000 rows, 2 s\n"
        clock[0] += 5.0
        bar.show(3_000, 8_000)
        assert capsys.readouterr().err == ""
        clock[0] += 5.0
        bar.show(4_000, 8_000)
        assert capsys.readouterr().err == "reading table.csv: 4,000 of 8,000 rows, 12 s\n"


def test_on_a_terminal_it_is_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", screen)
    with WorkBar("rehearsing", "settings") as bar:
        bar.show(7, 0)
    assert "rehearsing: 7 settings" in screen.getvalue()
