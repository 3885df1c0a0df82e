"""Charts as SVG text: well-formed, escaped, true to their figures, small."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from privmarket.reports import _run_charts as charts
from privmarket.reports._run_charts import Bars, Line

LINE = Line("a <run>", [1, 2, 3], [0.1, None, 0.9], charts.ORANGE)
DRAWN = {
    "lines": charts.line_chart([LINE, LINE], x_title="round", y_title="right", levels=[("target", 0.5)]),
    "money": charts.line_chart([LINE], x_title="money", y_title="right", x_log=True),
    "bars": charts.bar_chart([Bars("paid", [1.0, 2.0], "#000")], [1, 2], x_title="round", y_title="money"),
    "names": charts.named_bars(["a&b", "c"], [1.0, 0.0], x_title="ε", limit=("cap", 2.0)),
    "map": charts.heat_map(["a", "b"], [[0, 1, 1, 2], [0, 0, 0, 0]], [1, 2, 3, 4], x_title="round", what="ε"),
    "nothing": charts.heat_map(["a"], [[0.0]], [1], x_title="round", what="ε"),
    "one point": charts.line_chart([Line("x", [1], [0.0], "#000")], x_title="round", y_title="y"),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_a_chart_is_well_formed_and_drawn_for_both_widths(kind):
    tree = ElementTree.fromstring(f"<div>{DRAWN[kind]}</div>")
    assert [tree.find(f".//div[@class='{width}']/svg") is not None for width in ("wide", "narrow")] == [True, True]
    assert not re.search(r"\bnan\b|\binf\b", DRAWN[kind])


def test_words_are_escaped():
    assert "a &lt;run&gt;" in DRAWN["lines"]
    assert "a&amp;b" in DRAWN["names"]


def test_a_line_leaves_out_what_was_not_measured():
    path = re.search(r'points="([^"]+)"', DRAWN["money"])
    assert path is not None
    assert len(path.group(1).split()) == 2


def test_equal_neighbours_are_one_cell_and_zeros_none():
    tips = re.findall(r"<title>(.*?)</title>", DRAWN["map"].split('class="narrow"')[0])
    assert tips == ["a, round 2–3: ε 1.00", "a, round 4: ε 2.00"]


def test_bars_are_as_long_as_their_values_say():
    wide = DRAWN["names"].split('class="narrow"')[0]
    widths = [float(width) for width in re.findall(r'<rect[^>]* width="([\d.]+)"', wide)]
    cap = float(re.findall(r'class="limit" x1="([\d.]+)"', wide)[-1])
    left = float(re.findall(r'<rect x="([\d.]+)"', wide)[0])
    assert widths[1] == 0
    assert widths[0] == pytest.approx((cap - left) / 2, abs=0.2)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0), (0.02, 0.93), (-3, 7), (0, 12345), (5, 5)])
def test_ticks_are_round_and_reach_over_the_figures(low, high):
    ticks = charts._ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 8


def test_rounds_have_whole_numbers_on_their_axis():
    for low, high in ((10, 30), (1, 13), (1, 2), (0, 250), (7, 7), (1, 20)):
        for wanted in (5, 8):
            ticks = charts._whole_ticks(low, high, wanted)
            assert all(tick == int(tick) and low <= tick <= high for tick in ticks), (low, high, ticks)
