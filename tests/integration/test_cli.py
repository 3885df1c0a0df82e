"""The command line as a stranger uses it: real processes, real files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html import unescape

import pytest

from tests.forked import privmarket
from tests.json_fields import check_fields

COMMAND = [sys.executable, "-m", "privmarket"]


def run(*arguments, cwd=None):
    return privmarket(*arguments, cwd=cwd).end()


@pytest.fixture
def bids(tmp_path):
    path = tmp_path / "bids.csv"
    path.write_text("client,valuation,epsilon\nann,0.2,1\nbob,0.9,2\ncyd,0.4,0.5\n")
    return path


def test_auction_as_json(bids):
    done = run("auction", bids, "--mechanism", "proportional-share", "--budget", 1, "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    check_fields("auction", data)
    assert data["totals"]["epsilon"] == 1.5
    assert [row["client"] for row in data["clients"] if row["epsilon"] > 0] == ["ann", "cyd"]
    assert data["totals"]["spend"] == pytest.approx(1.0)


def test_auction_as_a_table_and_a_file(bids, tmp_path):
    out = tmp_path / "result.csv"
    done = run("auction", bids, "--mechanism", "mean-field-menu", "--budget", 3, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "ann" in done.stdout
    assert "of 3 clients sell" in done.stdout
    assert out.read_text().splitlines()[0] == "client,valuation,offered,epsilon,payment"
    assert "result.csv" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--mechanism", "pack", "--budget", 1), "unknown mechanism 'pack'"),
        (("--mechanism", "pac", "--budget", -1), "budget is -1.0"),
        (("--mechanism", "pac", "--budget", "nan"), "budget is nan"),
        (("--mechanism", "pac", "--budget", 1, "--set", "limit=3"), "unknown setting 'limit'"),
        (("--mechanism", "mean-field-menu", "--budget", 1, "--set", "epsilon_max=1.5"), "client 'bob' offers"),
    ],
)
def test_mistakes_end_in_one_line_and_write_nothing(bids, tmp_path, arguments, words):
    out = tmp_path / "result.csv"
    done = run("auction", bids, *arguments, "--out", out)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert words in done.stderr
    assert not out.exists()


def test_a_bad_file_is_named_by_line_and_field(tmp_path):
    path = tmp_path / "bids.csv"
    path.write_text("client,valuation,epsilon\nann,0.2,1\nbob,oops,2\n")
    done = run("auction", path, "--budget", 1)
    assert done.returncode == 2
    assert "bids.csv, line 3, field valuation: 'oops'" in done.stderr


def test_audit_as_json_and_as_a_table():
    small = ("--mechanism", "mean-field-menu", "--clients", 12, "--budget", 6, "--profiles", 1)
    data = json.loads(run("audit", *small, "--json").stdout)
    check_fields("audit", data)
    assert data["regret"]["maximum"] <= 1e-9
    assert data["broken"] == []
    assert data["fluid_ratio"] > 0
    table = run("audit", *small).stdout
    assert "surplus over budget (SW/B)" in table
    assert "ratio to the first-best bound" in table


def test_audit_takes_past_bids(bids):
    done = run(
        "audit", "--mechanism", "proportional-share", "--scenario", bids, "--clients", 6, "--budget", 2,
        "--profiles", 1, "--json",
    )  # fmt: skip
    assert json.loads(done.stdout)["scenario"] == "bids"


RULES = """
import numpy as np

from privmarket.market import BudgetFeasible, Regret, Truthful


def pay_as_bid(bids, budget):
    share = min(1.0, budget / float((bids.valuation * bids.epsilon).sum()))
    return share * bids.epsilon, share * bids.epsilon * bids.valuation


pay_as_bid.guarantees = (BudgetFeasible(), Truthful(in_="valuation"))


def lottery(bids, budget, rng):
    sold = np.zeros(bids.clients)
    winner = rng.integers(bids.clients)
    sold[winner] = min(bids.epsilon[winner], budget)
    return sold, sold


lottery.guarantees = (BudgetFeasible(),)


class Halves:
    def __call__(self, mechanism, types, budget, rng):
        return Regret(np.ones(types.shape), types.valuation, types.epsilon / 2)
"""
SMALL = ("--clients", 6, "--budget", 3, "--profiles", 2)


@pytest.fixture
def rules(tmp_path):
    (tmp_path / "my_rules.py").write_text(RULES)
    return tmp_path


def printed_by(code, folder):
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_a_broken_rule_is_convicted_with_a_witness_that_anybody_can_run_again(rules):
    audit = ("audit", "--mechanism", "my_rules.py:pay_as_bid", *SMALL, "--attack", "quick")
    done = run(*audit, "--html", "page.html", cwd=rules)
    assert done.returncode == 1, done.stderr
    data = json.loads(run(*audit, "--json", cwd=rules).stdout)
    check_fields("audit", data)
    assert data["broken"] == ["truthful in v"]
    finding = next(one for one in data["findings"] if not one["held"])
    gain = finding["witness"]["gain"]
    page = (rules / "page.html").read_text(encoding="utf-8")
    assert "BROKEN" in page
    folded = unescape(page.split("<pre>")[1].partition("</pre>")[0])
    shown = done.stdout.partition("again, in Python:")[2]
    for code in (finding["replay"], folded, shown):
        assert printed_by(code, rules) == pytest.approx(gain, rel=1e-6)


def test_the_page_of_an_audit_is_written_where_it_was_asked_for(rules):
    done = run("audit", "--mechanism", "pac", *SMALL, "--attack", "quick", "--html", "out/pac.html", cwd=rules)
    assert done.returncode == 0, done.stderr
    assert "written: out/pac.html" in done.stderr
    page = (rules / "out" / "pac.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "truthful in v" in page
    assert "BROKEN" not in page
    refused = run("audit", "--mechanism", "all", *SMALL, "--html", "all.html", cwd=rules)
    assert refused.returncode == 2
    assert "--html with --mechanism all" in refused.stderr
    assert "is a folder" in run("audit", "--mechanism", "pac", *SMALL, "--html", ".", cwd=rules).stderr


def test_coins_are_thrown_as_often_as_asked(rules):
    audit = ("audit", "--mechanism", "my_rules.py:lottery", *SMALL, "--attack", "quick", "--coins", 3)
    data = json.loads(run(*audit, "--json", cwd=rules).stdout)
    check_fields("audit", data)
    assert data["coins"] == data["regret_in_expectation"]["coins"] == 3
    assert any("3 throws of the coins" in words for words in data["attacks"])
    assert "3 fresh throws of the coins" in run(*audit, cwd=rules).stdout
    assert "is not in the range" in run(*audit[:-1], 0, cwd=rules).stderr


def test_an_attack_of_ones_own(rules):
    audit = ("audit", "--mechanism", "pac", *SMALL, "--attack", "my_rules.py:Halves")
    data = json.loads(run(*audit, "--json", cwd=rules).stdout)
    assert data["attacks"][0] == "v and ε: Halves"
    refused = run(*audit[:-1], "my_rules.py:Thirds", cwd=rules)
    assert refused.returncode == 2
    assert "Thirds" in refused.stderr


def test_rules_side_by_side(rules):
    compare = ("compare", "my_rules.py:pay_as_bid", "pac", "--scenario", "uniform", "--scenario", "bimodal")
    files = ("--figure", "c.svg", "--figure", "c.png", "--width", 3.4, "--latex", "c.tex", "--csv", "c.csv")
    done = run(*compare, "--clients", 6, "--profiles", 1, *files, cwd=rules)
    assert done.returncode == 1, done.stderr
    assert "pay_as_bid*" in done.stdout
    assert "promised and seen broken" in " ".join(done.stdout.split())
    assert "pay\\_as\\_bid$^{*}$" in (rules / "c.tex").read_text()
    assert (rules / "c.csv").read_text().count("\n") == 5
    assert "<svg" in (rules / "c.svg").read_text()[:1000]
    assert (rules / "c.png").read_bytes().startswith(b"\x89PNG")
    told = done.stdout.splitlines()
    command = told[told.index("To see the witness of a broken promise:") + 1].split()
    assert command[:4] == ["privmarket", "audit", "--mechanism", "my_rules.py:pay_as_bid"]
    shown = run(*command[1:], cwd=rules)
    assert shown.returncode == 1
    assert "To run the witness of" in shown.stdout
    fine = run("compare", "pac", "--clients", 6, "--profiles", 1, "--json", cwd=rules)
    assert fine.returncode == 0, fine.stderr
    data = json.loads(fine.stdout)
    check_fields("compare", data)
    assert [report["mechanism"] for report in data["reports"]] == ["pac"]
    bids = rules / "bids.csv"
    bids.write_text("client,valuation,epsilon\n" + "".join(f"c{v},0.{v},{v % 3 + 1}\n" for v in range(1, 30)))
    options = ("--certify", "--coins", 2, "--independent", "--clients", 2, "--profiles", 1, "--json")
    more = run("compare", "ration", "my_rules.py:pay_as_bid", "--scenario", "bids.csv", *options, cwd=rules)
    first, second = json.loads(more.stdout)["reports"]
    assert first["certified"] is not None
    assert second["certified"] is None
    wrong = run("compare", "pac", "--clients", 6, "--figure", "c.xyz", cwd=rules)
    assert wrong.returncode == 2


def test_bench_writes_a_figure(tmp_path):
    rules = ("--mechanism", "pac", "--mechanism", "mean-field-menu", "--mechanism", "mfg-regretnet")
    sizes = ("--largest", 100)
    done = run("bench", "auction", *rules, *sizes, "--out", tmp_path / "out", "--json", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert {row["clients"] for row in data["rows"]} == {10, 100}
    assert {row["mechanism"] for row in data["rows"]} == {*rules[1::2]}
    assert (tmp_path / "out" / "bench-auction.png").stat().st_size > 10_000


def test_help_and_auction_do_not_import_torch(bids):
    script = (
        "import sys; sys.argv = ['privmarket', *{argv!r}]\n"
        "from privmarket.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    for argv in (["--help"], ["auction", str(bids), "--budget", "1"]):
        done = subprocess.run(
            [sys.executable, "-c", script.format(argv=argv)], capture_output=True, text=True, timeout=800
        )
        assert done.returncode == 0, done.stderr


def test_help_loads_no_numpy():
    """What makes the start quick, on a busy machine, too."""
    code = "import sys, privmarket.cli; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_starts_quickly():
    """A quarter of a second of processor time; the bound here is generous because test machines are busy.

    On a slow machine, forty times as long as a bare interpreter, of which an idle machine needs twenty-five.
    """
    best = min(_seconds(*COMMAND, "--help") for _ in range(3))
    assert best < 2.0 or best < 40 * min(_seconds(sys.executable, "-c", "pass") for _ in range(3))


def _seconds(*words):
    start = os.times()
    subprocess.run(words, capture_output=True, check=True, timeout=800)
    end = os.times()
    return end.children_user + end.children_system - start.children_user - start.children_system


def test_the_version_and_a_warning_are_one_line_each(bids):
    assert run("--version").stdout.split()[0] == "privmarket"
    done = run("auction", bids, "--mechanism", "mfg-regretnet", "--budget", 3)
    assert done.returncode == 0
    assert done.stderr.startswith("warning: mfg-regretnet: 3 clients")
    assert len(done.stderr.strip().splitlines()) == 1
