"""What is kept of speed and memory: the page follows from the files, and the files reach what was promised."""

import json
from pathlib import Path

import pytest

from privmarket_studies.federated_memory import MemoryReport, measure
from privmarket_studies.federated_speed_page import render

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "speed"


def read(name):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def test_the_page_is_rendered_from_the_files():
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == render(FOLDER)


def test_exact_arithmetic_costs_no_more_than_was_promised():
    """In each of three separate runs. Other aims stand on the page, missed ones too."""
    runs = [read(f"federate-{run}") for run in (1, 2, 3)]
    assert all(run["records"] == 600 for run in runs)
    assert all(run["ratios"]["one step over before"] <= 1.5 for run in runs)
    assert all(run["ratios"]["several steps over before"] <= 3 for run in runs)
    assert all(run["draws_per_second"] >= 20e6 for run in runs)
    steps = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("steps-*.json"))]
    assert steps
    for name, bar in (("mlp", 2.0), ("cnn", 2.5), ("transformer", 2.0)):
        assert all(run["ratios"][f"{name} step over backward"] <= bar for run in steps)


def test_kept_memory_is_below_four_gigabytes_and_grows_no_faster_than_clients():
    peak = {int(n): size for n, size in read("memory")["peak_bytes"].items()}
    assert peak[1000] < 4e9
    assert all(peak[2 * n] <= 2 * peak[n] for n in peak if 2 * n in peak)


def test_memory_is_measured_in_a_process_that_did_the_work():
    report = measure((3,))
    assert report.peak_bytes[3] > 100e6
    assert report.record_bytes == {3: 3 * 600 * 784 * 4}


def test_slope_between_the_smallest_and_the_largest_run():
    assert MemoryReport({10: 100, 20: 150, 30: 300}, {}).bytes_per_client == pytest.approx(10.0)
