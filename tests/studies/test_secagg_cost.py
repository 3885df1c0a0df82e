"""The page on secure sums follows from its kept measurements; bytes of today's messages are those kept."""

import copy
import json
from pathlib import Path

import pytest

from privmarket.secagg import DEFAULT_COHORT
from privmarket_studies import secagg_cost

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def costs():
    return json.loads((DOCS / secagg_cost.COSTS).read_text(encoding="utf-8"))


def test_the_page_is_rendered_from_the_file(costs):
    page = (DOCS / secagg_cost.PAGE).read_text(encoding="utf-8")
    assert secagg_cost.render(costs) == page
    changed = copy.deepcopy(costs)
    changed["sums"][0]["bytes_up"] *= 2
    assert secagg_cost.render(changed) != page


def test_the_default_cohort_was_measured(costs):
    assert DEFAULT_COHORT in {one["sellers"] for one in costs["sums"]}
    assert max(one["sellers"] for one in costs["sums"]) == DEFAULT_COHORT


def test_bytes_of_a_sum_today_are_those_kept(costs):
    """With few weights: what is beside the vector is the same for any number of them."""
    kept = next(one for one in costs["sums"] if one["sellers"] == 50 and not one["dropped"])
    today = secagg_cost.measured_sum(50, weights=10)
    width = -(-kept["bits"] // 8)
    assert today["bytes_up"] - 11 * width == kept["bytes_up"] - (kept["weights"] + 1) * width
    assert today["bytes_down"] == kept["bytes_down"]


def test_ten_thousand_sums_had_no_fault(costs):
    assert costs["fuzz"]["rounds"] == secagg_cost.FUZZ_ROUNDS
    assert costs["fuzz"]["faults"] == []
