"""Samples and examples in reach of an installed user: listed, copied, never over something that is there."""

from __future__ import annotations

import csv
import re
import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privmarket.cli import app
from privmarket.errors import ConfigurationError, UnknownNameError, WriteError

ROOT = Path(__file__).parents[3]


def run(*words: str):
    return CliRunner().invoke(app, list(words))


def test_without_a_name_they_say_what_there_is():
    assert run("sample").stdout.split() == [
        "bids.csv",
        "my_rules.py",
        "past-bids.csv",
        "random_sampling.py",
        "sales.csv",
    ]
    assert {"flower-quickstart", "flower-own-model"} <= set(run("example").stdout.split())
    assert "samples" not in run("example").stdout


def test_a_sample_can_be_used_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("bids.csv", "sales.csv"):
        assert run("sample", name).exit_code == 0
    sold = run("auction", "bids.csv", "--mechanism", "proportional-share", "--budget", "2", "--json")
    assert sold.exit_code == 0, sold.output
    assert run("account", "--file", "sales.csv", "--json").exit_code == 0
    with (tmp_path / "bids.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 10


def test_an_example_is_copied_whole(tmp_path):
    assert run("example", "flower-quickstart", "--to", str(tmp_path / "apps")).exit_code == 0
    made = tmp_path / "apps" / "flower-quickstart"
    theirs = {p.relative_to(made) for p in made.rglob("*") if p.is_file()}
    source = ROOT / "src/privmarket/examples" / "flower-quickstart"
    ours = {p.relative_to(source) for p in source.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert theirs == {path for path in ours if path.parts[0] != "out"}


def test_what_is_there_stays_and_what_is_not_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bids.csv").write_text("mine")
    assert isinstance(run("sample", "bids.csv").exception, ConfigurationError)
    assert (tmp_path / "bids.csv").read_text() == "mine"
    unknown = run("example", "flower-quikstart").exception
    assert isinstance(unknown, UnknownNameError)
    assert "did you mean 'flower-quickstart'" in str(unknown)
    assert isinstance(run("sample", "sales.csv", "--to", "bids.csv").exception, WriteError)


@pytest.mark.parametrize(
    "name",
    [
        "bids.csv",
        "my_rules.py",
        "past-bids.csv",
        "random_sampling.py",
        "sales.csv",
    ],
)
def test_samples_are_named_in_their_page(name):
    assert f"`{name}`" in (ROOT / "src/privmarket/examples" / "samples" / "README.md").read_text()


def test_the_sample_that_throws_coins_is_audited(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("sample", "random_sampling.py").exit_code == 0
    given = ["--scenario", "lognormal", "--clients", "10", "--budget", "5", "--profiles", "2", "--attack", "quick"]
    found = run("audit", "--mechanism", "random_sampling.py:random_sampling", *given, "--coins", "2", "--json")
    assert found.exit_code == 0, found.output


def test_the_table_of_ones_own_runs(tmp_path, monkeypatch, capsys):
    """The script makes a task of the table and its schema, and says what the buyer's own records give."""
    assert run("example", "own-data", "--to", str(tmp_path)).exit_code == 0
    monkeypatch.chdir(tmp_path / "own-data")
    assert run("data", "describe", "strikes.csv", "--label", "damage", "--client", "operator").exit_code == 0
    runpy.run_path("strikes.py", run_name="__main__")
    said = capsys.readouterr().out
    assert "clients: 41" in said
    area = float(re.search(r"your own 174 records: AUC (0\.\d+)", said).group(1))
    assert 0.65 < area < 0.85
