"""Settings, config files, lists of rules and poor inputs, as typed in a shell."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.forked import privmarket
from tests.json_fields import check_fields

RULES = """def posted(bids, budget, price: float = 0.5):
    sold = bids.epsilon * (bids.valuation <= price)
    return sold, price * sold
"""


def run(*arguments, cwd):
    return privmarket(*arguments, cwd=cwd).end(120)


@pytest.fixture
def here(tmp_path):
    (tmp_path / "bids.csv").write_text("client,valuation,epsilon\nann,0.2,1\nbob,0.9,2\ncyd,0.4,0.5\n")
    (tmp_path / "my_rules.py").write_text(RULES)
    return tmp_path


def test_a_rule_of_ones_own_in_auction_and_audit(here):
    for rule in ("my_rules:posted", "my_rules.py:posted"):
        price = ("--set", "price=0.3")
        done = run("auction", "bids.csv", "--mechanism", rule, "--budget", 5, *price, "--json", cwd=here)
        assert done.returncode == 0, done.stderr
        data = json.loads(done.stdout)
        assert data["schema_version"] == 1
        assert (data["mechanism"], data["totals"]["epsilon"]) == ("posted", 1.0)
    small = ("--clients", 5, "--budget", 50, "--profiles", 1, "--json")
    done = run("audit", "--mechanism", "my_rules:posted", *small, cwd=here)
    assert json.loads(done.stdout)["mechanism"] == "posted", done.stderr


def test_a_fresh_interpreter_finds_the_rule_too(here):
    command = [sys.executable, "-m", "privmarket", "auction", "bids.csv", "--budget", "5", "--json"]
    done = subprocess.run(
        [*command, "--mechanism", "my_rules:posted"], capture_output=True, text=True, cwd=here, timeout=800
    )
    assert json.loads(done.stdout)["totals"]["epsilon"] == 1.5, done.stderr


def test_nothing_sold_is_explained(here):
    done = run("auction", "bids.csv", "--budget", 1, cwd=here)
    assert done.returncode == 0
    assert "epsilon_max = 5" in done.stderr
    assert "proportional-share would sell" in done.stderr


def test_a_config_file_gives_options_and_the_command_line_wins(here):
    (here / "run.toml").write_text('[auction]\nbudget = 5\nmechanism = "my_rules:posted"\nset = ["price=0.3"]\n')
    done = run("--config", "run.toml", "auction", "bids.csv", "--json", cwd=here)
    assert json.loads(done.stdout)["totals"]["epsilon"] == 1.0, done.stderr
    done = run("--config", "run.toml", "auction", "bids.csv", "--json", "--set", "price=0.5", cwd=here)
    assert json.loads(done.stdout)["totals"]["epsilon"] == 1.5, done.stderr


def test_mechanisms_are_listed_with_promises(here):
    listed = json.loads(run("mechanisms", "--json", cwd=here).stdout)
    check_fields("mechanisms", listed)
    rows = {row["name"]: row for row in listed["mechanisms"]}
    assert "truthful in ε, downwards" in rows["mean-field-menu"]["promises"]
    assert rows["vcg"]["settings"] == ["winners"]
    assert "proportional-share" in run("mechanisms", cwd=here).stdout


def test_where_an_error_arose_is_shown_on_request(here):
    assert "Traceback" in run("--verbose", "auction", "no.csv", "--budget", 1, cwd=here).stderr


BAD = [
    (("auction", "bids.csv", "--budget", 1, "--mechanism", "vcg", "--set", "winners=two"), "winners is 'two'"),
    (("auction", "bids.csv", "--budget", 1, "--mechanism", "vcg", "--set", "winners"), "NAME=VALUE"),
    (("auction", "bids.csv", "--budget", 1, "--set", "curve=[1,2]"), "curve is [1, 2] (must be MenuCurve)"),
    (("auction", "bids.csv", "--budget", "much"), "'much' is not a valid float"),
    (("auction", "bids.csv"), "Missing option '--budget'"),
    (("auktion", "bids.csv"), "Did you mean 'auction'"),
    (("--nope",), "No such option"),
    (("train", "mfg-regretnet", "--profile", "quick", "--set", "steps=many"), "steps is 'many'"),
    (("auction", "bids.csv", "--budget", 1, "--mechanism", "pact"), "did you mean 'pac'"),
    (("auction", "bids.csv", "--budget", 1, "--mechanism", "nowhere:rule"), "cannot be imported"),
    (("auction", "bids.csv", "--budget", 1, "--mechanism", "my_rules:postd"), "did you mean 'posted'"),
    (("auction", "bids.csv", "--budget", 1, "--mechanism", "json:dumps"), "no auction rule"),
    (("auction", "bids.csv", "--budget", 1, "--out", "bids.csv/below.csv"), "is not a folder"),
    (("auction", "bids.csv", "--budget", 1, "--out", "."), "is a folder"),
    (("auction", "bids.csv", "--budget", 1, "--set", "epsilon_max=1.5"), "client 'bob' offers ε = 2"),
    (("audit", "--mechanism", "pac", "--scenario", "unifrom"), "did you mean 'uniform'"),
    (("audit", "--mechanism", "pac", "--scenario", "no.csv"), "cannot be read"),
    (("audit", "--mechanism", "pac", "--objective", "total"), "did you mean 'total-epsilon'"),
    (("--config", "no.toml", "auction", "bids.csv"), "No such file"),
    (("--config", "bids.csv", "auction", "bids.csv"), "not TOML"),
    (("--config", "wrong.toml", "auction", "bids.csv"), "unknown option 'bugdet'"),
    (("--config", "wrong2.toml", "auction", "bids.csv"), "did you mean 'auction'"),
    (("account", "--sale", "1", "--plot", "bids.csv/x.png"), "is not a folder"),
    (("equilibrium", "--out", "bids.csv"), "is not a folder"),
    (("train", "mfg-menunet", "--out", "bids.csv/w.safetensors"), "is not a folder"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[" ".join(map(str, a)) for a, _ in BAD])
def test_poor_inputs_end_in_one_line(here, arguments, words):
    (here / "wrong.toml").write_text("[auction]\nbugdet = 5\n")
    (here / "wrong2.toml").write_text("[auctio]\nbudget = 5\n")
    done = run(*arguments, cwd=here)
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
