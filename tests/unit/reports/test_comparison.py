"""Several rules on several distributions, sizes and seeds: one table, LaTeX, CSV and figures."""

import csv
from io import StringIO

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy.stats import t, uniform
from tests.laws.broken import FirstPrice

import privmarket as pm
from privmarket._figures import own_look
from privmarket.errors import ConfigurationError, OutcomeError, UnknownNameError
from privmarket.market._attacks import GridAttack, Level
from privmarket.market._objectives import OBJECTIVES
from privmarket.reports._comparison import Comparison, market_code

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
    assert f"{np.mean(values):.3f} ± {(high - low) / 2:.3f}" in cell.row(found.columns)


def test_latex_and_csv(found, tmp_path):
    latex = found.to_latex()
    assert latex.count("\\\\") == 1 + len(found.rows())
    assert "my\\_rule" in latex
    assert "\\begin{tabular}{llrr" in latex  # names to the left, figures to the right
    assert "$\\pm$" in latex
    text = found.to_csv(tmp_path / "rules.csv")
    rows = list(csv.DictReader(StringIO((tmp_path / "rules.csv").read_text())))
    assert text.count("\n") == len(rows) + 1 == len(found) + 1
    assert float(rows[0]["regret.mean"]) == found.reports[0].regret.mean


def test_latex_of_chosen_columns_and_transposed(found):
    latex = found.to_latex(columns=["of fluid", "clients"])
    assert "\\begin{tabular}{lrr}\n\\toprule\nrule & of fluid & clients" in latex
    one = Comparison(tuple(r for r in found if r.clients == 4 and r.scenario == "uniform"))
    lines = one.to_latex(columns=["spent", "underpaid"], transpose=True).splitlines()
    rules = [cell.rule.replace("_", "\\_") for cell in one.cells()]
    assert lines[1] == "\\begin{tabular}{lrr}"
    assert lines[3] == f"rule & {rules[0]} & {rules[1]} \\\\"
    assert [line.split(" & ")[0] for line in lines[5:7]] == ["spent", "underpaid"]
    with pytest.raises(UnknownNameError, match="unknown column 'spend'"):
        found.to_latex(columns=["spend"])


def test_gains_of_offers_above_the_own_are_shown():
    """pac asks for so little that a client with less ε than the limit can claim the limit."""
    found = pm.compare(["pac", "ration"], clients=20, profiles=2)
    pac = found["pac"]
    assert pac.regret.maximum_share < 1e-9 < 0.1 < pac.regret_in_epsilon_up.maximum_share
    rows = {row[0]: dict(zip(found.columns, row[1:], strict=True)) for row in found.rows()}
    assert rows["pac"]["worst misreport"] == "none"
    assert rows["pac"]["worst over-offer"] == f"{pac.regret_in_epsilon_up.maximum_share:.0%}"
    assert rows["ration"]["worst over-offer"] == "none"
    for text in (found.table(), found.to_latex(), found._repr_html_()):
        assert "worst over-offer: the same by an offer above the own" in text
    figure = found.plot()
    drawn = [line for line in figure.axes[1].get_lines() if line.get_marker() == "D"]
    assert [line.get_xdata()[0] for line in drawn] == [pac.regret_in_epsilon_up.maximum_share]
    assert "by an offer above the own" in figure.get_supxlabel()


def test_upper_bounds_are_a_column_where_they_were_asked_for():
    found = pm.compare(["ration", flat_price], clients=3, profiles=1, attack=FEW, certify=True)
    assert found.columns[-1] == "no gain above"
    assert {row[0]: row[-1] for row in found.rows()} == {"ration": "0.00%", "flat_price": "–"}
    assert "no gain above: upper bound" in found.legend


def test_coins_are_thrown_as_often_as_asked():
    def posted(bids, budget, rng):
        return flat_price(bids, budget)

    found = pm.compare(posted, clients=3, profiles=1, attack=FEW, coins=3)
    assert found["posted"].coins == 3


def test_a_witness_in_a_comparison_can_be_run_again():
    found = pm.compare(FirstPrice, clients=4, profiles=1)
    assert "from tests.laws.broken import FirstPrice" in found.reports[0].replay()


def test_a_rule_that_breaks_its_promise_is_marked_everywhere():
    found = pm.compare([FirstPrice, "vcg"], clients=[6, 8], profiles=1)
    assert found.broken == {"broken:first-price": ("truthful in v",)}
    assert {row[0] for row in found.rows()} == {"broken:first-price*", "vcg"}
    said = "promised and seen broken: broken:first-price: truthful in v"
    assert said in found.table()
    assert said in found._repr_html_()
    assert said in found.to_latex()
    assert "broken:first-price$^{*}$ &" in found.to_latex()
    rows = list(csv.DictReader(StringIO(found.to_csv())))
    assert {(row["mechanism"], row["broken"]) for row in rows} == {
        ("broken:first-price", "truthful in v"),
        ("vcg", ""),
    }
    legend = found.plot().legends[0]
    # vcg promises nothing about the budget, and passes it.
    assert [text.get_text() for text in legend.get_texts()] == ["broken:first-price*", "vcg†"]
    assert "breaks a promise of its own" in legend.get_title().get_text()
    bars = pm.compare([FirstPrice, "pac"], clients=6, profiles=1).plot(width=3.4)
    names = [label.get_text() for label in bars.axes[0].get_yticklabels()]
    assert sorted(names) == ["broken:first-price*", "pac"]
    assert "breaks a promise" in bars.get_supxlabel()


def test_rules_that_keep_their_promises_have_no_mark(found):
    assert found.broken == {}
    assert "*" not in found.table() + found.to_latex()


def in_view(value, limits):
    return limits[0] <= value <= limits[1]


def overlaps(figure):
    """Pairs of texts of a figure whose boxes meet."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    texts = [figure._suptitle, figure._supxlabel]
    for axes in figure.axes:
        texts += [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label]
        # Labels beyond the ends of an axis are kept, but not drawn.
        texts += [tick for tick in axes.get_xticklabels() if in_view(tick.get_position()[0], axes.get_xlim())]
        texts += [tick for tick in axes.get_yticklabels() if in_view(tick.get_position()[1], axes.get_ylim())]
    for legend in figure.legends:
        texts += legend.get_texts()
    boxes = [
        (text.get_text(), text.get_window_extent(renderer))
        for text in texts
        if text is not None and text.get_visible() and text.get_text()
    ]
    return [
        (one, other)
        for i, (one, box) in enumerate(boxes)
        for other, beside in boxes[:i]
        if box.x0 < beside.x1 and beside.x0 < box.x1 and box.y0 < beside.y1 and beside.y0 < box.y1
    ]


@pytest.mark.parametrize("width", [3.4, 7.0])
def test_no_label_lies_on_another(found, width):
    one_market = Comparison(tuple(r for r in found if r.clients == 4 and r.scenario == "uniform"))
    one_size = Comparison(tuple(report for report in found if report.clients == 4))
    for comparison in (found, one_size, one_market):
        figure = comparison.plot(width=width)
        assert overlaps(figure) == []
        width_in_pixels = figure.get_size_inches()[0] * figure.dpi
        for axes in figure.axes:
            assert axes.get_tightbbox().x0 > 0
            assert axes.get_tightbbox().x1 < width_in_pixels + 1


def test_labels_that_do_meet_are_seen(found):
    figure = found.plot(width=3.4)
    figure.axes[0].set_title("a title that is far too long for its panel and runs into the next one", fontsize=20)
    figure.axes[1].set_title("another one", fontsize=20)
    assert overlaps(figure)


def test_bars_are_means_over_seeds_with_whiskers(found):
    one = Comparison(tuple(r for r in found if r.clients == 4 and r.scenario == "uniform"))
    value = one.plot().axes[0]
    labels = [label.get_text() for label in value.get_yticklabels()]
    assert sorted(labels) == ["my_rule", "pac"]
    bars = [container for container in value.containers if hasattr(container, "errorbar") and container.errorbar]
    drawn = {labels[i]: bar.patches[0].get_width() for i, bar in enumerate(bars)}
    assert drawn == pytest.approx({cell.rule: cell.mean("fluid_ratio") for cell in one.cells()})


def test_a_comparison_is_short_to_read(found):
    assert repr(found).startswith("<Comparison of 2 rules: uniform, bimodal; 4, 8 clients")


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


def test_two_rules_of_one_name_are_refused():
    """Or a sweep over a setting would be averaged as if its points were seeds of one rule."""
    rules = [pm.mechanism("pac", offer_limit=0.5), pm.mechanism("pac", offer_limit=1.0)]
    with pytest.raises(ConfigurationError, match="two rules are called 'pac'"):
        pm.compare(rules, clients=4, profiles=1)
    named = pm.compare([("low", rules[0]), ("high", rules[1])], clients=4, profiles=1)
    assert named["low"].mechanism == "low"


def test_one_of_several_reports_is_not_picked_silently():
    several = pm.compare("pac", scenarios=["uniform", "bimodal"], clients=4, profiles=1)
    with pytest.raises(ConfigurationError, match="has 2 reports"):
        _ = several["pac"]


def test_the_page_of_audit_names_every_objective():
    for name in OBJECTIVES:
        assert f"`{name}`" in (pm.audit.__doc__ or ""), name


def test_rules_with_and_without_coins_are_lines_of_one_csv():
    def posted(bids, budget, rng):
        return flat_price(bids, budget)

    found = pm.compare([("coins", posted), ("none", flat_price)], clients=4, profiles=1, attack=FEW)
    lines = {line["mechanism"]: line for line in csv.DictReader(StringIO(found.to_csv()))}
    assert lines["coins"]["regret_in_expectation.coins"] == "20"
    assert lines["none"]["regret_in_expectation.coins"] == ""
    assert list(found.to_frame().columns) == list(lines["none"])[1:]


def test_names_are_escaped_for_latex():
    found = pm.compare([(r"R&D_1 {50%} #2 $x$ ~^\<ε>", flat_price)], clients=4, profiles=1, attack=FEW)
    name = r"R\&D\_1 \{50\%\} \#2 \$x\$ \textasciitilde{}\textasciicircum{}\textbackslash{}$<$$\varepsilon$$>$"
    assert found.to_latex().splitlines()[5].split(" & ")[0] == name


def test_rules_of_ones_own_have_markers_that_can_be_read_and_nobody_has_a_star():
    """A letter is unreadable behind an error bar, and a star means a broken promise."""
    looks = [own_look(f"mine {number}", number) for number in range(6)]
    assert len({look["marker"] for look in looks}) == 6
    assert all(look["marker"] in "os^Dvp" and look["mec"] == "black" for look in looks)
    assert own_look("mean-field-menu", 0)["marker"] != "*"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": "5"}, "budget is '5'"),
        ({"clients": 2.5}, "clients is 2.5"),
        ({"clients": "5"}, "clients is '5'"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_numbers_that_are_none_are_refused_with_a_hint(given, words):
    for run in (pm.audit, lambda rule, **given: pm.compare([rule], **given)):
        with pytest.raises(ConfigurationError, match=words) as caught:
            run("pac", profiles=1, **given)
        assert "give" in caught.value.hint


OWN_FILE = """
import privmarket as pm
class Few:
    epsilon_max = 3.0
    def sample(self, rng, clients):
        return pm.Bids(rng.random(clients), rng.uniform(0.1, 3.0, clients))
class Greedy(pm.Mechanism):
    name = "greedy"
    guarantees = (pm.market.BudgetFeasible(),)
    def clear(self, bids, budget):
        return pm.Outcome(bids.epsilon, bids.epsilon * 100.0)
class Sized(pm.Mechanism):
    name = "sized"
    def clear(self, bids, budget):
        return pm.Outcome(bids.data_size.max() * bids.epsilon, bids.epsilon)
"""


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_kind.py").write_text(OWN_FILE)
    return tmp_path / "own_kind.py"


def test_a_distribution_comes_from_a_file(own_file):
    report = pm.audit("pac", scenario="own_kind.py:Few", clients=4, budget=2.0, profiles=1, attack=FEW)
    assert report.scenario == "Few"
    assert pm.compare(["pac"], scenarios=["own_kind.py:Few"], clients=4, profiles=1, attack=FEW)["pac"]
    with pytest.raises(UnknownNameError, match="scenario"):  # nothing else imports code that a name names
        pm.market.distribution("own_kind.py:Few")


def test_a_replay_runs_in_any_folder(own_file, tmp_path, monkeypatch, capsys):
    report = pm.audit("own_kind.py:Greedy", clients=4, budget=2.0, profiles=1, attack=FEW)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    exec(report.replay("within budget"), {})
    assert float(capsys.readouterr().out) == pytest.approx(report.witnesses["within budget"].gain)
    assert market_code("past.csv") == f"pm.market.distribution({str(elsewhere / 'past.csv')!r})"


def test_an_error_of_the_rule_names_its_file_and_line(own_file):
    with pytest.raises(OutcomeError, match=r"sized: .*own_kind.py, line 15: AttributeError: 'NoneType' object"):
        pm.audit("own_kind.py:Sized", clients=4, budget=2.0, profiles=1, attack=FEW)


def test_the_two_step_menu_does_not_know_the_unit_of_money():
    def in_units(unit):
        law = pm.market.distribution((uniform(0.0, unit), uniform(0.1, 4.9)))
        return pm.audit("two-step", scenario=law, clients=5, budget=2.5 * unit, profiles=1, attack=FEW).fluid_ratio

    assert in_units(1e-12) == pytest.approx(in_units(1.0), rel=1e-3)
    assert in_units(1.0) > 0.5
