"""Tables, comparisons, pages and the report that holds them."""

from __future__ import annotations

import csv
import io
import re

import numpy as np
import pytest

from privmarket._figures import new_figure
from privmarket.errors import UnknownNameError
from privmarket_studies.reproduce.cache import Record
from privmarket_studies.reproduce.cells import Cell
from privmarket_studies.reproduce.document import (
    Figure,
    ResultPage,
    Results,
    Table,
    Text,
    UnexplainedGapError,
    failure_text,
    prose,
)
from privmarket_studies.reproduce.paper import printed
from privmarket_studies.reproduce.questions import questions
from privmarket_studies.reproduce.report import markdown, write_html, write_page
from privmarket_studies.reproduce.statistics import Measured, compare


def record(result: dict | None, failure: str | None = None, seed: int = 0, **config: object) -> Record:
    return Record(Cell("efficiency", config, seed), {"revision": 1}, result, failure, 1.0, {})


def test_mean_and_spread_over_seeds():
    found = Measured.of([1.0, 2.0, 3.0])
    assert (found.mean, found.std, found.seeds) == (2.0, 1.0, 3)
    assert found.text(".1f") == "2.0 ± 1.0"
    assert Measured.of([0.5]).text(".1%") == "50.0%"


def seeds(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def verdict(a: dict[int, float], b: dict[int, float]) -> str:
    found = compare(a, b)
    assert found is not None
    return found.verdict


def test_a_difference_is_claimed_only_where_its_interval_leaves_zero_out():
    steady = seeds(1.0, 1.01, 0.99, 1.0)
    assert verdict(seeds(1.2, 1.21, 1.19, 1.21), steady) == "above"
    assert verdict(seeds(0.8, 0.81, 0.79, 0.8), steady) == "below"
    assert verdict(seeds(1.2, 0.7, 1.6, 0.9), steady) == "open"
    assert verdict(seeds(5.0), steady) == "open", "one seed knows nothing about noise"


def test_what_seeds_share_is_not_noise():
    """Two rules in the same markets: one is better in each, though both vary far more from market to market."""
    worse = seeds(1.0, 5.0, 9.0, 3.0)
    better = seeds(1.11, 5.1, 9.09, 3.1)
    assert verdict(better, worse) == "above"
    assert compare({seed + 10: value for seed, value in better.items()}, worse) is None, "no seed in common"


@pytest.mark.parametrize("gap", [0.01, 0.1, 0.2, 0.3, 0.5])
def test_the_verdict_is_that_of_the_paired_test(gap):
    from scipy.stats import ttest_rel

    rng = np.random.default_rng(3)
    a = rng.normal(size=5)
    b = a + gap + 0.2 * rng.normal(size=5)
    test = ttest_rel(a, b)
    found = compare(seeds(*a), seeds(*b))
    assert found is not None
    assert (found.verdict == "open") == (test.pvalue > 0.05)
    low, high = test.confidence_interval()
    assert found.text("+.4f") == f"{np.mean(a - b):+.4f} [{low:+.4f}, {high:+.4f}]"


def test_exact_figures_differ_without_noise():
    assert verdict(seeds(0.0, 0.0, 0.0), seeds(0.0, 0.0, 0.0)) == "the same"
    assert verdict(seeds(0.1, 0.1, 0.1), seeds(0.0, 0.0, 0.0)) == "above"


def test_few_seeds_with_a_wide_interval_are_not_called_equal():
    """Short trainings at ζ = 0.5: far above the default in every seed, and three seeds prove nothing."""
    wild, calm = seeds(0.14, 0.50, 0.65), seeds(0.001, 0.003, 0.006)
    found = compare(wild, calm)
    assert found is not None
    assert found.verdict == "open"
    assert found.words("+.0%").endswith("3 seeds cannot tell (above in 3 of 3)")
    assert "[-" in found.words("+.0%"), "the interval is shown"
    assert "**" not in found.entry("+.0%")
    assert compare(seeds(0.2, 0.21, 0.22), calm).entry("+.2f").startswith("**+0.2")  # type: ignore[union-attr]
    assert compare(seeds(0.5), calm).words("+.1f") == "+0.5 (one seed), which cannot tell"  # type: ignore[union-attr]
    assert compare(calm, calm).words() == "the same in every seed"  # type: ignore[union-attr]


def test_a_cell_of_two_questions_counts_once():
    shared = record({"a": 1.0}, mechanism="pac")
    assert Results([shared, shared, record({"a": 3.0}, seed=1, mechanism="pac")]).values("a", "efficiency") == [
        1.0,
        3.0,
    ]


def test_tables_say_how_many_seeds_they_have():
    even = [record({"a": 1.0}, seed=s, mechanism=m) for m in ("pac", "vcg") for s in (0, 1)]
    assert Results(even).over_seeds("efficiency") == "mean ± std over 2 seeds"
    assert Results(even[:3]).over_seeds("efficiency") == "mean ± std over 1 to 2 seeds"
    assert Results(even[:1]).over_seeds("efficiency") == "one seed"


def test_results_are_found_by_configuration_and_failures_are_named():
    results = Results([record({"a": 1.0}, mechanism="pac"), record({"a": 3.0}, seed=1, mechanism="pac")])
    assert results.measured("a", "efficiency", mechanism="pac").mean == 2.0
    assert results.measured("a", "efficiency", mechanism="vcg") is None
    assert failure_text(results) == []
    broken = Results([record(None, "ValueError: no", mechanism="vcg", clients=10)])
    assert broken.measured("a", "efficiency", mechanism="vcg") is None
    assert "mechanism vcg, clients 10, seed 0): ValueError: no" in failure_text(broken)[0].markdown


def test_a_table_as_csv_has_spreads_in_their_own_columns():
    table = Table("t", "caption", ("rule", "R"), [("pac", "8.1 ± 0.2"), ("vcg", "older weights")])
    rows = list(csv.reader(io.StringIO(table.csv())))
    assert rows == [["rule", "R", "R (std)"], ["pac", "8.1", "0.2"], ["vcg", "older weights", ""]]
    assert "| pac | 8.1 ± 0.2 |" in table.markdown()


@pytest.mark.parametrize("gap", ["", " ", "-", "–", "—"])
def test_a_table_without_a_figure_has_to_say_why(gap):
    with pytest.raises(UnexplainedGapError, match="table t, row 'vcg': 'R'"):
        Table("t", "caption", ("rule", "R"), [("pac", "8.1"), ("vcg", gap)])
    assert Results([]).absent("efficiency", mechanism="vcg") == "not computed yet"


def sample_page() -> ResultPage:
    def draw():
        figure = new_figure(3, 2)
        figure.subplots().plot([1, 2], [3, 4])
        return figure

    table = Table("t", "A table", ("a", "b"), [("1", "2")])
    return ResultPage(
        "rq9", "Nine", [Text("Some *words*, [RQ1](../rq1/README.md)."), table, Figure("f", "A line", draw)]
    )


def test_a_page_is_written_whole(tmp_path):
    written = {path.name for path in write_page(sample_page(), tmp_path, mark="cells 17")}
    assert written == {"README.md", "t.csv", "f.png", "f.svg"}
    assert "cells 17" in (tmp_path / "f.svg").read_text()
    before = (tmp_path / "f.svg").read_bytes()
    write_page(sample_page(), tmp_path, mark="cells 17")
    assert (tmp_path / "f.svg").read_bytes() == before, "an SVG is the same each time"
    assert "![A line](f.png)" in markdown(sample_page())


def test_a_page_outside_the_documentation_says_in_words_where_others_stand(tmp_path):
    links = "The [bound](../../theory/fluid-bound.md), [RQ1](../rq1/README.md) and [RQ2](../rq2/README.md#all)."
    page = ResultPage("rq3", "RQ3", (Text(links),))
    (tmp_path / "rq1").mkdir()
    (tmp_path / "rq1" / "README.md").touch()
    write_page(page, tmp_path / "rq3")
    assert (tmp_path / "rq3" / "README.md").read_text().splitlines()[-1] == (
        "The bound (docs/theory/fluid-bound.md in the repository), [RQ1](../rq1/README.md) and "
        "RQ2 (docs/results/rq2/README.md#all in the repository)."
    )
    html = write_html([page], tmp_path / "report.html", {}, "privmarket reproduce").read_text()
    assert "The bound (docs/theory/fluid-bound.md in the repository)" in html
    write_page(page, tmp_path / "rq3", published=True)
    assert links in (tmp_path / "rq3" / "README.md").read_text()


def test_the_report_needs_no_other_file_and_no_network(tmp_path):
    write_page(sample_page(), tmp_path / "rq9")
    path = write_html([sample_page()], tmp_path / "report.html", {"cells": "3 <b>"}, "privmarket reproduce")
    text = path.read_text()
    assert "3 &lt;b&gt;" in text
    assert 'href="#rq1"' in text
    assert "<svg" in text
    assert "<em>words</em>" in text
    fetched = re.findall(r'(?:src|href)="([^"#][^"]*)"', text)
    assert not fetched


def test_a_text_with_a_missing_value_is_an_error():
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError):
        prose("rq3-set-up", seeds=1)


def test_the_papers_figures_have_their_place():
    source = printed("efficiency")
    assert "1877" in source.where
    assert source.rows["pac"]["spend"] == 8.1694
    for row in source.rows.values():
        assert row["revenue_share"] == pytest.approx(row["spend"] / 50, abs=6e-5), (
            "the page leaves n_rev out for this"
        )
    assert printed("accuracy").rows["no-dp"]["cifar10/0.5"] == 36.7
    assert printed("latency").rows["pac"][-1] == [500, 0.14, 0.16]


def test_unknown_questions_are_refused():
    with pytest.raises(UnknownNameError, match="rq1"):
        questions("rq17")
