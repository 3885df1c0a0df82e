"""The quick form of every table and figure, and the answers that are known beforehand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privmarket.cli import app
from privmarket_studies.reproduce.cache import Cache, Record
from privmarket_studies.reproduce.cells import Scale
from privmarket_studies.reproduce.document import ResultPage, Results, with_command
from privmarket_studies.reproduce.markets import EXACT, LITERAL, RULES
from privmarket_studies.reproduce.questions import QUESTIONS
from tests.once import made_once

# The fixture computes everything, and the machine may be busy with other tests.
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    return made_once(tmp_path_factory, "reproduce-quick", reproduce_all)


def reproduce_all(folder: Path) -> None:
    done = CliRunner().invoke(app, ["reproduce", "all", "--quick", "--out", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["failed"] == 0, done.stderr
    assert report["not_started"] == 0


@pytest.fixture(scope="module")
def results(out) -> Results:
    cache = Cache(out)
    kept = [cache.load(cell) for question in QUESTIONS.values() for cell in question.cells(Scale(quick=True))]
    assert None not in kept
    return Results([record for record in kept if isinstance(record, Record)])


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_page_has_its_text_tables_and_figures(out, name):
    text = (out / name / "README.md").read_text()
    assert text.startswith("# ")
    assert "**Question.**" in text
    assert "**Answer.**" in text or name == "what-money-buys"  # its answer is about other tasks than the quick one
    assert "failed" not in text
    assert "nan" not in text
    for kind in ("png", "svg", "csv"):
        assert list((out / name).glob(f"*.{kind}")), kind


def test_a_page_names_the_command_that_made_it(out):
    for name in QUESTIONS:
        text = (out / name / "README.md").read_text()
        assert text.rstrip().endswith(f"Command: `privmarket reproduce {name} --quick`")
    assert (
        with_command(ResultPage("rq3", "RQ3", []), "").blocks[0].markdown == "Command: `privmarket reproduce rq3`"
    )


def test_one_report_holds_all_pages(out):
    text = (out / "report.html").read_text()
    assert all(f'<section id="{name}">' in text for name in QUESTIONS)
    assert text.count("<svg") >= len(list(out.glob("*/*.svg")))


def test_every_rule_is_in_every_table_of_rq3(out):
    """In those that the page shows, and in the files of the others, which it links."""
    text = (out / "rq3" / "README.md").read_text()
    tables = [part for part in text.split("\n\n") if part.startswith("| mechanism | R |")]
    files = [file.read_text() for file in (out / "rq3").glob("rq3-*-b*.csv")]
    assert len(tables) == 4
    assert len(files) == 11
    for rule in (*RULES, *LITERAL):
        assert all(f"| {rule} |" in table for table in tables)
        assert all(f"\n{rule}," in file for file in files)


def test_pacs_row_is_that_of_ten_clients(results):
    where = {"mechanism": "pac:literal", "scenario": "uniform", "clients": 10, "budget": 50}
    spend = results.measured("spend", "efficiency", **where)
    spread = max(results.values("spend_std_over_markets", "efficiency", **where)) / (40 * spend.seeds) ** 0.5
    assert spend.mean == pytest.approx(90 / 11, abs=5 * spread)


def test_exact_rules_have_no_regret_and_the_check_can_fail(results):
    for rule in EXACT:
        assert set(results.values("maximum", "regret", mechanism=rule)) == {0.0}, rule
    assert max(results.values("maximum", "regret", mechanism="jsam")) > 1.0


def test_matched_runs_are_matched_in_every_round(results):
    ranges = [r.result["mean_epsilon_range"] for r in results.all("federated") if r.cell.config["matched"]]
    assert len(ranges) >= 20
    assert all(low == pytest.approx(0.2, rel=1e-9) == high for low, high in ranges)


def test_no_wallet_spends_more_than_its_cap(results):
    capped = [r for r in results.all("federated") if r.cell.config["wallet"]]
    # A wallet that watches several measures gives each a share of δ, and sells two or three per cent less for it.
    assert any(r.result["largest_epsilon_spent"] > 0.95 * r.cell.config["wallet"] for r in capped)
    assert all(r.result["largest_epsilon_spent"] <= r.cell.config["wallet"] * (1 + 1e-9) for r in capped)


def test_the_learned_menu_posts_the_same_price_for_total_epsilon(results):
    """Said on the page of RQ4: it is not run twice."""
    for figure in ("spend", "epsilon", "welfare"):
        pair = [results.values(figure, "efficiency", mechanism=m) for m in ("mean-field-menu", "mfg-menunet")]
        assert pair[0] == pytest.approx(pair[1], rel=1e-9), figure


def test_a_second_run_computes_nothing(out, tmp_path):
    again = shutil.copytree(out, tmp_path / "again")
    before = {path: path.stat().st_mtime_ns for path in (again / "cells").iterdir()}
    done = CliRunner().invoke(app, ["reproduce", "rq3", "--quick", "--out", str(again)])
    assert done.exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in (again / "cells").iterdir()} == before
