"""The page on scale follows from its kept measurements, and its arithmetic from the rounds that were measured."""

import copy
import json
import math
from pathlib import Path

import pytest

from privmarket.errors import PrivacyError
from privmarket.federated.shares import honest_sellers, require_covered
from privmarket.flower.hash_tree import HASH_BYTES, HashTree
from privmarket.flower.neighbours import ring_order
from privmarket_studies import secure_parts, secure_scale
from privmarket_studies.secure_rounds import HONEST_SHARE, measure_rounds, measured_round

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def parts():
    return json.loads((DOCS / secure_scale.PARTS).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page():
    return (DOCS / "scale.md").read_text(encoding="utf-8")


def test_the_page_is_rendered_from_the_file(parts, page):
    assert secure_scale.render(parts) == page


def test_a_changed_figure_would_be_seen(parts, page):
    changed = copy.deepcopy(parts)
    changed["seconds"]["agreement"] *= 2.0
    assert secure_scale.render(changed) != page
    changed = copy.deepcopy(parts)
    changed["rounds"][0]["secure"]["bytes_up"] *= 2.0
    assert secure_scale.render(changed) != page


def test_computed_rounds_are_like_those_measured(parts):
    """Bytes to a tenth; seconds to a factor, as parts leave out what Flower does around them, milliseconds each."""
    for row in parts["rounds"]:
        cost, kept = secure_scale.measured_cost(row, parts), row["secure"]
        assert cost.bytes_up == pytest.approx(kept["bytes_up"], rel=0.1)
        assert cost.bytes_down == pytest.approx(kept["bytes_down"], rel=0.1)
        assert 0.25 < cost.client_seconds / kept["client_seconds"] < 1.6


def test_bytes_of_a_round_today_are_those_kept(parts):
    """Bytes do not depend on the machine: the protocol sends what the page says."""
    (row,) = measure_rounds(((10, 10_000),), turns=1)
    (kept,) = (one for one in parts["rounds"] if (one["sellers"], one["weights"]) == (10, 10_000))
    for kind in ("plain", "secure"):
        for figure in ("bytes_up", "bytes_down"):
            assert row[kind][figure] == pytest.approx(kept[kind][figure], rel=0.01)


def test_bytes_of_parts_today_are_those_kept(parts):
    small = secure_parts.measure_parts(1000, [(2, 3)], flower=False)
    assert small["bytes"] == parts["bytes"]
    assert set(small["seconds"]) == set(parts["seconds"])


def test_the_largest_sum_is_the_last_that_is_not_refused():
    for weights in (7850, secure_scale.WEIGHTS):
        most = secure_scale.most_sellers(weights)
        require_covered(honest_sellers(most, HONEST_SHARE), weights)
        with pytest.raises(PrivacyError):
            require_covered(honest_sellers(most + 1, HONEST_SHARE), weights)


def test_a_round_grows_no_faster_than_the_page_says(parts):
    """Computed: n log n up to 100,000 sellers; beyond, each client's order of the whole ring outweighs the rest."""
    first, last = (secure_scale.secure_cost(n, secure_scale.WEIGHTS, parts) for n in (1_000, 100_000))
    logarithm = math.log(100_000) / math.log(1_000)
    for figure in ("bytes_up", "bytes_down", "client_seconds"):
        assert getattr(last, figure) / getattr(first, figure) < logarithm, figure
    assert last.server_seconds / first.server_seconds < 100 * logarithm


def test_measured_rounds_grow_no_faster_than_n_log_n_once_signatures_are_sampled(parts):
    """To a twentieth, on a busy machine; and the sample begins between the rounds of 300 and of 1,000 sellers."""
    rows = secure_scale.over_n_log_n(parts["rounds"])
    assert [row["sellers"] for row in rows] == [100, 300, 1000, 2500]
    assert [bool(row["plan"].sample) for row in rows] == [False, False, True, True]
    for figure in ("clients", "server"):
        assert rows[-1][figure] <= 1.05 * rows[-2][figure], figure
    slower = copy.deepcopy(parts)
    slower["rounds"][-1]["secure"]["client_seconds"] *= 2.0  # not one of these rows: nothing changes
    assert secure_scale.over_n_log_n(slower["rounds"]) == rows


@pytest.mark.parametrize(("size", "places"), [(1000, 200), (5000, 512)])
def test_proofs_have_the_length_that_is_computed(size, places):
    tree = HashTree([bytes([number % 256]) for number in range(size)])
    proof = tree.prove(ring_order(b"some", size)[:places].tolist())
    assert secure_scale.proof_hashes(size, places) == pytest.approx(len(proof) / HASH_BYTES, rel=0.1)


def test_failure(parts):
    for n in secure_scale.SELLERS:
        assert secure_scale.privacy_failure(n) <= 2.0**-40
        chances = [secure_scale.not_opened(n, dropout) for dropout in (0.01, 0.05, 0.3)]
        assert chances == sorted(chances)
        assert chances[0] < 1e-6
    assert secure_scale.not_opened(10_000, 0.3) == 1.0


def test_simulated_losses_lie_below_their_bound(parts):
    assert secure_scale.simulated_loss(100, 0.1) == parts["lost"]["100"]["0.1"]
    assert 0.0 < secure_scale.simulated_loss(100, 0.1) <= secure_scale.not_opened(100, 0.1)
    assert secure_scale.simulated_loss(10, 0.9, rounds=10) == 1.0  # too few in all, without a ring
    assert secure_scale.simulated_loss(1000, 0.0, rounds=10) == 0.0


def test_the_page_says_whether_the_simulation_keeps_its_bar(parts):
    for aggregate, said in ((1.2, "1.3, is met by the median"), (1.4, "1.3, is missed")):
        turns = [{"local": 1.0, "aggregate": aggregate}]
        changed = {**parts, "simulation": {"clients": 100, "turns": turns, "load_average": 0.5}}
        assert said in secure_scale.render(changed)


def test_a_round_in_which_somebody_does_not_sell_is_no_measurement(monkeypatch):
    monkeypatch.setattr("privmarket_studies.secure_rounds._Drawn.share", lambda *_: 1 / 0)
    with pytest.raises(RuntimeError, match="of 3 sold"):
        measured_round(3, 10, secure=True)
