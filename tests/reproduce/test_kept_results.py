"""What docs and README show is what the kept cells give; cells older than the weights are named."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from privmarket.experiments.reproduce import publish, summary
from privmarket.experiments.reproduce.cache import write_bundle
from privmarket.experiments.reproduce.document import Results, Table
from privmarket.experiments.reproduce.markets import EXACT, RULES
from privmarket.experiments.reproduce.questions import QUESTIONS
from privmarket.experiments.reproduce.report import markdown

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs/results"


def differences(folder: Path) -> list[str]:
    """Files whose text is not what the kept cells give."""
    expected: dict[Path, str] = {folder / "README.md": publish.index(folder)}
    expected[folder / "summary.md"] = summary.block(publish.all_kept(folder))
    for question in publish.kept_questions(folder):
        page = publish.render_kept(question, folder)
        expected[folder / question.name / "README.md"] = markdown(page)
        for block in page.blocks:
            if isinstance(block, Table):
                expected[folder / question.name / f"{block.name}.csv"] = block.csv()
    return [str(p.relative_to(folder)) for p, text in expected.items() if not p.exists() or p.read_text() != text]


@pytest.fixture(scope="module")
def results() -> Results:
    return publish.all_kept(KEPT)


def test_all_questions_are_kept():
    assert [q.name for q in publish.kept_questions(KEPT)] == list(QUESTIONS)


def test_pages_and_tables_are_what_the_cells_give():
    assert differences(KEPT) == []


def test_a_figure_typed_by_hand_is_found(tmp_path):
    shutil.copytree(KEPT / "rq3", tmp_path / "rq3", ignore=shutil.ignore_patterns("*.png", "*.svg"))
    for name in ("README.md", "summary.md"):
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


def test_cells_of_earlier_weights_are_named_on_the_first_page(tmp_path, results):
    stale = {str(r.cell.config.get("mechanism") or r.cell.kind) for r in results.records if r.stale}
    named = (KEPT / "README.md").read_text()
    assert ("Older than the weights" in named) == bool(stale)
    # One that is made old on purpose must be named.
    record = next(r for r in results.all("efficiency", mechanism="mfg-regretnet"))
    old = replace(record, depends_on={**record.depends_on, "weights": "000000000000"})
    write_bundle(tmp_path / "rq3" / publish.CELLS, [old])
    assert "the cells of `mfg-regretnet` were computed with earlier ones" in publish.index(tmp_path)


def test_readme_shows_the_summary_as_rendered(results):
    page = (ROOT / "README.md").read_text()
    assert summary.BEGIN in page, "README has lost the markers of its table"
    assert summary.between_markers(page, summary.block(results, "docs/results/")) == page


def test_the_summary_goes_between_the_markers_and_nowhere_else():
    page = f"head\n{summary.BEGIN}\nold\n{summary.END}\ntail\n"
    assert summary.between_markers(page, "new\n") == f"head\n{summary.BEGIN}\nnew\n{summary.END}\ntail\n"


def test_pacs_row_of_the_papers_table_is_ten_clients(results):
    where = {"mechanism": "pac:literal", "scenario": "uniform", "clients": 10, "budget": 50}
    for figure, answer in (("spend", 90 / 11), ("welfare", 45 / 11)):
        found = results.measured(figure, "efficiency", **where)
        assert found.mean == pytest.approx(answer, abs=5 * found.standard_error)


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
