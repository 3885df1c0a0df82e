"""Bars, and the live view: lines without a terminal, a panel on one, and a page that renews itself."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from privmarket.cli import _progress as live, _progress as progress
from privmarket.cli._federate import LiveRounds
from privmarket.cli._progress import Curve, LiveView, ProgressBar, WorkBar, sparkline
from privmarket.rounds import RoundRecord
from privmarket.simulation._config import FederationConfig


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


@pytest.fixture
def view(tmp_path, monkeypatch) -> LiveView:
    monkeypatch.setattr(live, "_PAGE_SECONDS", 0.0)
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: 0.0))  # never stands still
    return LiveView("a <run>", "round", 20, [Curve("accuracy", lambda v: f"{v:.0%}")], tmp_path / "live.html")


def test_a_log_gets_ten_lines_and_every_line_says_where_the_work_stands(view, capsys):
    with view:
        for step in range(1, 21):
            view.show(step, {"accuracy": step / 20}, {"paid": f"{step}"})
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("round")]
    assert len(lines) == 10
    assert lines[-1] == "round 20/20  accuracy 100%  paid 20"


def test_the_page_renews_itself_until_the_work_is_done(view):
    with view:
        view.show(1, {"accuracy": 0.25}, {"paid": "<3>"})
        running = view.page.read_text()
        view.show(20, {"accuracy": None}, {"paid": "4"})
    finished = view.page.read_text()
    assert 'http-equiv="refresh"' in running
    assert 'http-equiv="refresh"' not in finished
    assert "round 1 of 20" in running
    assert "accuracy: 25% (after round 1)" in finished  # not measured since
    assert "&lt;3&gt;" in running
    assert "a <run>" not in running
    assert not re.search(r'src="|https?://|<script', running)


def test_a_view_that_stops_early_leaves_a_page_that_does_not_renew_itself(view):
    with view:
        view.show(1, {"accuracy": 0.25}, {})
        assert "s left" in view.page.read_text()
    page = view.page.read_text()
    assert 'http-equiv="refresh"' not in page
    assert "round 1 of 20, stopped after 0 s" in page


def test_the_panel_of_a_terminal_shows_what_the_page_shows(view):
    for step in range(1, 4):
        view.show(step, {"accuracy": step / 4}, {"paid": "7"})
    text = io.StringIO()
    Console(file=text, width=90).print(view._panel())
    for words in ("a <run>", "round 3/20", "75%", "▁▅█", "paid", "7"):
        assert words in text.getvalue()


def test_sparklines_reach_from_the_lowest_to_the_highest():
    assert sparkline([]) == ""
    assert sparkline([1, 1]) == "▁▁"
    assert sparkline([0, None, 1]) == "▁█"
    assert len(sparkline(list(range(1000)), 40)) == 40


def test_a_round_says_what_was_paid_and_who_earned_most(capsys):
    config = FederationConfig(clients=3, rounds=2, budget=2.0)
    record = RoundRecord(0, 3, 1, 1.0, 500_000, 1_500_000, {"2": 1.0}, {"2": 500_000}, {"1": "late"}, 0.5)
    with LiveRounds(config, names=["Ann", "Bob", "Cyd"]) as shown:
        shown.show_round(record)
    said = capsys.readouterr().err
    assert "paid so far 0.50 of 4.00" in said
    assert "earned most Cyd: 0.50" in said
    assert "dropped, unpaid 1" in said
    assert "accuracy 50.0%" in said
