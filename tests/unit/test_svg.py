"""Charts as SVG text: well-formed, escaped, true to their figures, small."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from privmarket import _svg as charts
from privmarket._svg import Bars, Dots, Line

LINE = Line("a <run>", [1, 2, 3], [0.1, None, 0.9], charts.ORANGE)
DRAWN = {
    "lines": charts.line_chart([LINE, LINE], x_title="round", y_title="right", levels=[("target", 0.5)]),
    "money": charts.line_chart([LINE], x_title="money", y_title="right", x_log=True),
    "bars": charts.bar_chart([Bars("paid", [1.0, 2.0], "#000")], [1, 2], x_title="round", y_title="money"),
    "names": charts.named_bars(["a&b", "c"], [1.0, 0.0], x_title="ε", limit=("cap", 2.0)),
    "map": charts.heat_map(["a", "b"], [[0, 1, 1, 2], [0, 0, 0, 0]], [1, 2, 3, 4], x_title="round", what="ε"),
    "nothing": charts.heat_map(["a"], [[0.0]], [1], x_title="round", what="ε"),
    "stairs": charts.line_chart(
        [Line("x", [0, 1, 2], [0.0, 5.0, 3.0], "line", stairs=True, area=True)],
        x_title="time",
        y_title="bids",
        x_ends=("opened", "12:00"),
    ),
    "dots": charts.scatter(
        [Dots("sells", [(1.0, 0.2, "Ada <1>")], "won"), Dots("does not", [(2.0, 0.4, "Ben")], "lost")],
        x_title="ε",
        y_title="price",
    ),
    "strip": charts.strip(
        [("paid", 3.0, "3.00", "good"), ("refunded", 1.0, "1.00", "rest"), ("x", 0.0, "0", "bar")]
    ),
    "parts": charts.named_bars(["a"], [1.0], x_title="ε", wholes=[4.0], notes=["25 % of 4"], rest_colour="rest"),
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


@pytest.mark.parametrize("kind", DRAWN)
def test_no_style_is_written_that_a_page_may_forbid(kind):
    assert "style" not in DRAWN[kind]


def test_a_colour_is_a_value_or_a_class_of_the_page():
    assert f'stroke="{charts.ORANGE}"' in DRAWN["lines"]
    assert 'class="line"' in DRAWN["stairs"]
    assert 'class="area line"' in DRAWN["stairs"]
    assert re.search(r'<circle [^>]*class="won"><title>Ada &lt;1&gt;</title>', DRAWN["dots"])


def test_stairs_hold_each_value_until_the_next_point():
    path = re.search(r'<polyline points="([^"]+)"', DRAWN["stairs"])
    assert path is not None
    points = [tuple(map(float, point.split(","))) for point in path.group(1).split()]
    assert len(points) == 5
    assert [points[i][1] == points[i + 1][1] for i in (0, 2)] == [True, True]
    assert [points[i][0] == points[i + 1][0] for i in (1, 3)] == [True, True]


def test_a_strip_is_cut_in_proportion_and_names_what_is_there():
    wide = DRAWN["strip"].split('class="narrow"')[0]
    chart = wide[wide.index('class="wide"') :]
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', chart)]
    assert widths == pytest.approx([720.0, 240.0, 0.0])
    legend = wide[: wide.index('class="chart"')]
    assert ("paid 3.00" in legend, "refunded 1.00" in legend, "x 0" in legend) == (True, True, False)
