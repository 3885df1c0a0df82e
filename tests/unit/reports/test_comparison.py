"""Several rules on several distributions, sizes and seeds: one table, LaTeX, CSV and figures."""

import csv
from io import StringIO

import numpy as np
import pytest
from scipy.stats import t

import privmarket as pm
from privmarket.errors import ConfigurationError
from privmarket.market._attacks import GridAttack, Level

FEW = Level(
    GridAttack(valuations=5, shares=2, neighbours=2),
    GridAttack(valuations=5, shares=1, neighbours=2),
    GridAttack(shares=3, over_valuation=False),
)


def flat_price(bids, budget):
    sold = np.where(bids.valuation <= 0.5, np.minimum(bids.epsilon, budget / bids.clients / 0.5), 0.0)
    return sold, 0.5 * sold


@pytest.fixture(scope="module")
def found():
    return pm.compare(
        [("my_rule", flat_price), "pac"],
        scenarios=["uniform", "bimodal"],
        clients=[4, 8],
        seeds=3,
        profiles=1,
        attack=FEW,
    )


def test_every_rule_stands_beside_the_others_on_every_market(found):
    assert len(found) == 2 * 2 * 2 * 3
    assert found.markets == [("uniform", 4), ("uniform", 8), ("bimodal", 4), ("bimodal", 8)]
    rows = found.rows()
    assert {(row[0], row[1], row[2]) for row in rows} == {
        (rule, distribution, size)
        for rule in ("my_rule", "pac")
        for distribution in ("uniform", "bimodal")
        for size in ("4", "8")
    }
    assert {report.budget for report in found} == {2.0, 4.0}
    assert "3 seeds" in found.title


def test_intervals_are_students(found):
    cell = found.cells("uniform", 8)[0]
    values = [report.fluid_ratio for report in cell.reports]
    low, high = t.interval(0.95, 2, np.mean(values), np.std(values, ddof=1) / np.sqrt(3))
    assert cell.half_width("fluid_ratio") == pytest.approx((high - low) / 2)
    assert f"{np.mean(values):.3f} ± {(high - low) / 2:.3f}" in cell.row(with_market=True, with_optimum=False)


def test_latex_and_csv(found, tmp_path):
    latex = found.to_latex()
    assert latex.count("\\\\") == 1 + len(found.rows())
    assert "my\\_rule" in latex
    assert "$\\pm$" in latex
    text = found.to_csv(tmp_path / "rules.csv")
    rows = list(csv.DictReader(StringIO((tmp_path / "rules.csv").read_text())))
    assert text.count("\n") == len(rows) + 1 == len(found) + 1
    assert float(rows[0]["regret.mean"]) == found.reports[0].regret.mean


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_figures(found, tmp_path, suffix):
    figure = found.plot(tmp_path / f"rules.{suffix}", width=3.4)
    assert figure.get_size_inches()[0] == 3.4
    assert (tmp_path / f"rules.{suffix}").stat().st_size > 1000
    lines = {line.get_label() for line in figure.axes[0].containers}
    assert lines == {"my_rule", "pac"}


def test_one_size_is_drawn_over_the_distributions(tmp_path):
    found = pm.compare([flat_price], scenarios=["uniform", "lognormal"], clients=4, profiles=1, attack=FEW)
    figure = found.plot(tmp_path / "distributions.png")
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == ["uniform", "lognormal"]


def test_the_optimum_is_a_column_where_it_was_asked_for():
    found = pm.compare([flat_price], clients=2, profiles=1, attack=FEW, exact=True)
    assert found.columns[-1] == "of optimum"
    assert 0 < float(found.rows()[0][-1]) <= 1


def test_nothing_to_compare_on_is_refused():
    with pytest.raises(ConfigurationError):
        pm.compare([flat_price], scenarios=[])
