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


def test_kept_speed_reaches_what_was_promised():
    kept = read("federate")
    assert (kept["clients"], kept["records"]) == (100, 600)
    assert kept["ratios"]["private over non-private"] <= 2.5
    assert kept["ratios"]["opacus ghost clipping"] >= 6
    assert kept["ratios"]["opacus default"] >= 12
    assert kept["accounting_seconds"] < 0.1


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
