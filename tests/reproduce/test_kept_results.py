"""What docs and README show is what the kept cells give; cells older than the weights are named."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from privmarket.market._objectives import AggregateError
from privmarket_studies.reproduce import found, publish, rq3, rq4_page, summary_table
from privmarket_studies.reproduce.cache import write_bundle
from privmarket_studies.reproduce.document import Figure, Results, Table
from privmarket_studies.reproduce.markets import EXACT, RULES
from privmarket_studies.reproduce.paper import printed
from privmarket_studies.reproduce.questions import QUESTIONS
from privmarket_studies.reproduce.report import markdown

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs/results"


def differences(folder: Path) -> list[str]:
    """Files whose text is not what the kept cells give."""
    expected: dict[Path, str] = {folder / "README.md": publish.index(folder)}
    expected[folder / "summary.md"] = summary_table.block(publish.all_kept(folder))
    expected[folder / found.NAME] = found.page(publish.all_kept(folder), folder)
    for question in publish.kept_questions(folder):
        page = publish.render_kept(question, folder)
        expected[folder / question.name / "README.md"] = markdown(page)
        for block in page.blocks:
            if isinstance(block, Table):
                expected[folder / question.name / f"{block.name}.csv"] = block.csv()
    return [str(p.relative_to(folder)) for p, text in expected.items() if not p.exists() or p.read_text() != text]


def test_the_words_of_the_findings_are_those_of_their_figures(results):
    """Headlines say "less money", "twice", "a third": they follow from what is shown below them."""
    text = (KEPT / found.NAME).read_text()
    titles = ("the same gain takes less money", "lose a third to twenty", "about twice as truthful")
    assert all(title in text for title in titles)

    def shown(pattern: str) -> float:
        return float(re.search(pattern, text)[1])

    assert shown(r"if it sees every update; [0-9.]+ \[([0-9.]+), [0-9.∞]+\] times as much") > 1.5
    assert shown(r"\| MNIST, 600 [^|]+\| \*\*\+[0-9.]+ \[\+([0-9.]+)") > 0, "the first gain's interval"
    assert 0.30 < shown(r"Coalitions of 20 take \*\*([0-9.]+)%") / 100 < 0.40
    assert 1.75 < shown(r"many ascents ([0-9.]+)%") / shown(r"ascent steps find ([0-9.]+)%") < 2.75
    assert shown(r"everybody sells all it offers, which no rule can exceed: ([0-9.]+)") < 20
    assert "over budget in **1,000 of 1,000 markets" in text, "the title says that such a price breaks the budget"
    assert "two thirds of the sellers honest" in text
    assert AggregateError().honest_share == pytest.approx(2 / 3)


def test_the_findings_are_as_many_as_their_page_says_and_no_other_page_counts_them():
    text = (KEPT / found.NAME).read_text()
    words = ("Three", "Four", "Five", "Six", "Seven", "Eight")
    headings = re.findall(r"^## \d+\. ", text, flags=re.M)
    assert f"\n{words[len(headings) - 3]} findings " in text
    for page in ("README.md", "docs/index.md", "docs/results/README.md"):
        counted = re.search(r"\b(three|four|five|six|seven|eight) findings", (ROOT / page).read_text(), flags=re.I)
        assert counted is None, page


def test_the_index_says_of_every_page_what_was_tuned_on_what():
    table = (KEPT / "README.md").read_text().partition("## What was tuned on what")[2].partition("Also kept:")[0]
    pages = {f"{path.parent.name}/README.md" for path in KEPT.glob("*/README.md")}
    assert pages - set(re.findall(r"\]\(([\w-]+/README\.md)\)", table)) == set()


@pytest.fixture(scope="module")
def results() -> Results:
    return publish.all_kept(KEPT)


def test_all_questions_are_kept():
    assert [q.name for q in publish.kept_questions(KEPT)] == list(QUESTIONS)


def test_pages_and_tables_are_what_the_cells_give():
    assert differences(KEPT) == []


def test_a_figure_typed_by_hand_is_found(tmp_path):
    shutil.copytree(KEPT / "rq3", tmp_path / "rq3", ignore=shutil.ignore_patterns("*.png", "*.svg"))
    for name in ("README.md", "summary.md", found.NAME):
        shutil.copy(KEPT / name, tmp_path / name)
    page = tmp_path / "rq3" / "README.md"
    page.write_text(page.read_text().replace("8.", "9.", 1))
    assert "rq3/README.md" in differences(tmp_path)


@pytest.mark.parametrize("name", QUESTIONS)
def test_figures_are_drawn_from_these_cells(name):
    question = QUESTIONS[name]
    figures = list((KEPT / name).glob("*.svg"))
    assert figures
    assert all(publish.mark_of(question, KEPT) in path.read_text() for path in figures)
    assert all(path.with_suffix(".png").exists() for path in figures)


class Refused(dict):
    """A result that nobody may look at."""

    def __getitem__(self, name):
        raise AssertionError(f"an outdated result was used: {name}")

    get = __getitem__


def outdate(records, mechanism):
    """The same records, those of one mechanism as if its weights had been replaced since."""
    return [
        replace(r, depends_on={**r.depends_on, "weights": "0" * 12}, result=Refused())
        if r.cell.config.get("mechanism") == mechanism
        else r
        for r in records
    ]


def rows_of(blocks, mechanism):
    """Rows that show a mechanism; the paper's row of that name may show its literal form instead."""
    rows = [row for block in blocks if isinstance(block, Table) for row in block.rows]
    return [row for row in rows if {mechanism, f"`{mechanism}`"} & set(row) and f"`{mechanism}:literal`" not in row]


@lru_cache(maxsize=1)  # tests of one question come one after the other
def kept_and_page(name):
    kept = publish.kept_records(QUESTIONS[name], KEPT)
    return kept, QUESTIONS[name].render(Results(kept))


@pytest.mark.parametrize("mechanism", ["mfg-regretnet", "mfg-regretnet:literal"])
@pytest.mark.parametrize("name", QUESTIONS)
def test_results_of_earlier_weights_are_refused_in_every_row(name, mechanism):
    kept, fresh = kept_and_page(name)
    old = QUESTIONS[name].render(Results(outdate(kept, mechanism)))
    shown = rows_of(old.blocks, mechanism)
    assert len(shown) == len(rows_of(fresh.blocks, mechanism)), "a row went away without a word"
    assert all(any("older weights" in text for text in row) for row in shown)
    for block in old.blocks:
        if isinstance(block, Figure) and mechanism == "mfg-regretnet":
            block.draw()  # looks at no refused result either


def test_the_summary_refuses_results_of_earlier_weights(results):
    old = Results(outdate(results.records, "mfg-regretnet"))
    (row,) = [line for line in summary_table.block(old).splitlines() if line.startswith("| `mfg-regretnet` |")]
    assert row.count("older weights") == 8
    summary_table.draw(old)


def test_rq4_says_whether_its_runs_are_better_than_own_records(monkeypatch, results):
    def page():
        return markdown(rq4_page.render(results))

    assert "No run here is worth its money" in page()
    monkeypatch.setattr(rq4_page, "own_records", lambda dataset, trust: {"models": [{"test": 0.9}]})
    assert "No run here is worth its money" not in page()
    assert "There is something to pay for only where" in page()


def test_what_is_outdated_is_named_on_the_first_page(tmp_path, results):
    assert ("Older than the weights" in (KEPT / "README.md").read_text()) == bool(results.outdated)
    kept = results.all("efficiency", mechanism="mfg-regretnet")[:1]
    old = [replace(r, depends_on={**r.depends_on, "weights": "0" * 12}) for r in kept]
    write_bundle(tmp_path / "rq3" / publish.CELLS, old)
    said = "the cells of `mfg-regretnet` were computed with earlier ones and are not shown"
    assert said in publish.index(tmp_path)


def test_pacs_row_of_the_papers_table_is_ten_clients(results):
    where = {"mechanism": "pac:literal", "scenario": "uniform", "clients": 10, "budget": 50}
    for figure, answer in (("spend", 90 / 11), ("welfare", 45 / 11)):
        found = results.measured(figure, "efficiency", **where)
        assert found.mean == pytest.approx(answer, abs=5 * found.standard_error)


@pytest.mark.parametrize("row", printed("efficiency").rows)
def test_every_row_of_the_papers_efficiency_table_is_reproduced(results, row):
    theirs = printed("efficiency").rows[row]
    where = {"mechanism": rq3.PRINTED_BY.get(row, row), "clients": 10}
    for figure, name in (("spend", "spend"), ("welfare", "w_prime")):
        found = results.measured(figure, "printed-row", **where)
        assert found.mean == pytest.approx(theirs[name], rel=0.025)
    # The form of the paper's own equations is far from its row: this check can fail.
    literal = results.measured("spend", "printed-row", mechanism="mfg-regretnet:literal", clients=10)
    assert literal.mean < 0.5 * printed("efficiency").rows["mfg-regretnet"]["spend"]


def test_proportional_share_buys_what_it_is_known_to_buy(results):
    where = {"mechanism": "proportional-share", "scenario": "uniform", "clients": 100, "budget": 50}
    bought = results.measured("epsilon", "efficiency", **where)
    assert bought.mean == pytest.approx(112.3, abs=5 * bought.standard_error)


def test_exact_rules_have_no_regret_under_the_strong_attack(results):
    attacked = {rule: results.values("maximum", "regret", mechanism=rule) for rule in RULES}
    for rule in EXACT:
        assert len(attacked[rule]) >= 5
        assert set(attacked[rule]) == {0.0}
    assert all(max(attacked[rule]) > 0 for rule in ("vcg", "jsam", "dm-regretnet"))


def test_matched_runs_are_matched(results):
    ranges = [r.result["mean_epsilon_range"] for r in results.all("federated") if r.cell.config["matched"]]
    assert ranges
    assert all(low == pytest.approx(0.4, rel=1e-9) == high for low, high in ranges)
