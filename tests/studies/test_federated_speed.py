"""The speed bench, on a tiny round: every contender runs, and the ratios follow from the seconds."""

import pytest

from privmarket_studies.federated_speed import SpeedReport, accounting_seconds, measure


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_contender_runs():
    report = measure(3, 64, turns=1, growth=(2,))
    assert set(report.seconds) == {"private", "non-private", "opacus ghost clipping", "opacus default"}
    assert report.to_dict()["ratios"]["opacus default"] == report.ratio("opacus default") > 1


def test_ratios():
    report = SpeedReport(1, 1, {"private": 2.0, "non-private": 1.0, "opacus default": 8.0}, {}, 0.1)
    assert report.to_dict()["ratios"] == {"opacus default": 4.0, "private over non-private": 2.0}


def test_accounting_is_a_matter_of_adding_rows():
    assert accounting_seconds(100, 20) < 1.0
