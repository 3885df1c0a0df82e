"""The report page: self-contained, complete, and true to the run."""

import re

import pytest

from privmarket.federated.config import FederationConfig, Training
from privmarket.federated.simulation import run
from privmarket.reports.federated_demo import demo_config
from privmarket.reports.federated_report import write_report


@pytest.fixture(scope="module")
def result():
    config = FederationConfig(clients=6, rounds=3, budget=5.0, wallet=4.0, training=Training(model="logistic"))
    return run(config)


def test_the_page_needs_nothing_else(result, tmp_path):
    path = write_report(
        tmp_path / "deep" / "page.html", {"private": result}, facts={"a fact": "42"}, command="x --y"
    )
    page = path.read_text(encoding="utf-8")
    own = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "http://" not in own
    assert "https://" not in own
    assert 'src="' not in own
    assert page.count("Plotly.newPlot") >= 4
    assert "a fact" in own
    assert "x --y" in own
    assert f"{result.accuracy:.1%}" in own


def test_labels_are_escaped(result, tmp_path):
    path = write_report(tmp_path / "p.html", {"<b>run</b>": result}, facts={}, command="<script>alert(1)</script>")
    page = path.read_text(encoding="utf-8")
    assert "<script>alert(1)" not in page
    assert '<td class="main"><b>run' not in page


def test_the_demo_is_small():
    config = demo_config()
    assert (config.dataset, config.clients) == ("digits", 20)
