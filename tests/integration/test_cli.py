"""The command line as a stranger uses it: real processes, real files."""

from __future__ import annotations

import json
import subprocess
import sys
import time

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


def test_bench_writes_a_figure(tmp_path):
    done = run("bench", "auction", "--largest", 100, "--out", tmp_path / "out", "--json", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert {row["clients"] for row in data["rows"]} == {10, 100}
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
            [sys.executable, "-c", script.format(argv=argv)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr


def test_help_loads_no_numpy():
    """What makes the start quick, on a busy machine, too."""
    code = "import sys, privmarket.cli; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_starts_quickly():
    """Half a second on an idle machine; the bound here is generous because test machines are busy.

    On a slow machine, forty times as long as a bare interpreter, of which an idle machine needs twenty-five.
    """
    best = min(_seconds(*COMMAND, "--help") for _ in range(3))
    assert best < 2.0 or best < 40 * min(_seconds(sys.executable, "-c", "pass") for _ in range(3))


def _seconds(*words):
    start = time.perf_counter()
    subprocess.run(words, capture_output=True, check=True, timeout=60)
    return time.perf_counter() - start


def test_the_version_and_a_warning_are_one_line_each(bids):
    assert run("--version").stdout.split()[0] == "privmarket"
    done = run("auction", bids, "--mechanism", "mfg-regretnet", "--budget", 3)
    assert done.returncode == 0
    assert done.stderr.startswith("warning: mfg-regretnet: 3 clients")
    assert len(done.stderr.strip().splitlines()) == 1
