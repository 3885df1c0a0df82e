"""The examples and commands of the Flower part, as a stranger would type them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from privmarket.errors import ConfigurationError
from privmarket.flower.app_folder import run_app
from privmarket_studies.flower_speed import measure

ROOT = Path(__file__).resolve().parents[2]
MAIN = "from privmarket.cli import main; main()"


def privmarket(*words, cwd):
    return subprocess.run(
        [sys.executable, "-c", MAIN, *words], cwd=cwd, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.parametrize("example", ["flower-quickstart", "flower-own-model"])
def test_an_example_learns_and_pays(example, tmp_path):
    done = privmarket("flower", "run", str(ROOT / "src/privmarket/examples" / example), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert len(result["rounds"]) == (10 if example == "flower-quickstart" else 5)
    # By chance 0.1. The noise is the system's, so every run differs: 0.80 to 0.87 were seen.
    assert result["accuracy"] > 0.5
    assert result["spent"] > 0
    assert all(not row["dropped"] for row in result["rounds"])
    wallets = list((tmp_path / "out" / "flower-wallets").glob("*.jsonl"))
    assert len(wallets) == (10 if example == "flower-quickstart" else 0)


@pytest.mark.parametrize(
    ("folder", "engine", "settings", "reason"),
    [
        ("tests", "in-process", {}, "no pyproject.toml"),
        ("src/privmarket/examples/flower-quickstart", "carrier-pigeon", {}, "unknown engine"),
        ("src/privmarket/examples/flower-quickstart", "deployment", {"bugdet": 3}, "unknown settings: bugdet"),
    ],
)
def test_what_cannot_be_run_is_said(folder, engine, settings, reason, tmp_path):
    with pytest.raises(ConfigurationError, match=reason):
        run_app(ROOT / folder, engine, 3, settings, tmp_path, 10.0)


def test_the_bench_gives_ratios():
    report = measure("digits", turns=1)
    assert [row["ratio"] > 0 for row in report["overhead"]] == [True, True]
    assert report["bids"]["clients"] == 1000


def test_the_kept_results_say_what_the_page_says():
    folder = ROOT / "docs" / "results" / "flower"
    page = (folder / "README.md").read_text()
    for name in ("mnist", "digits"):
        for row in json.loads((folder / f"overhead-{name}.json").read_text())["overhead"]:
            assert f"{row['grid_seconds']:.3f} s | {row['ratio']:.2f} |" in page
    rehearsal = json.loads((folder / "rehearsal.json").read_text())
    for promise, kept in rehearsal["verdicts"].items():
        assert f"| {promise} | {'kept' if kept else 'BROKEN'} |" in page
