"""Figures that stand in sentences of the docs and that no renderer wrote are computed again here.

`tests/unit/test_stated_figures.py` holds those about privacy and the paper-literal network; these are the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import privmarket as pm
from privmarket.broker._http_server import THREAD_TURN_SECONDS
from privmarket.market._distributions import scenario
from privmarket.mechanisms.learned._mfg_regretnet import MeanFieldNetwork
from privmarket.mechanisms.learned._recipes import Recipe
from privmarket.mechanisms.learned._weights import load, shipped
from privmarket.privacy._accountant import certify
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.tasks import with_features
from privmarket_studies.reproduce.publish import all_kept

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/results"


def recipe_of(name: str) -> Recipe:
    return Recipe.from_json(load(shipped(name), name).facts["recipe"])


def equilibrium(name: str) -> float:
    return float(json.loads((RESULTS / "equilibrium/equilibrium.json").read_text())[name])


def tries() -> float:
    """Reports per client of the strong attack, weaker levels included, as RQ1's cells counted them."""
    where = {"mechanism": "mean-field-menu", "scenario": "uniform", "clients": 100, "attack": "strong"}
    found = all_kept(RESULTS).all("regret", **where)
    return float(found[0].result["levels"]["strong"]["reports"])


STATED: list[tuple[str, str, Callable[[], float]]] = [
    (
        "docs/glossary.md",
        "200 sales of ε = 1 cost ε = {:.1f}, not 200",
        lambda: certify([ReleaseFamily().event(1.0)] * 200, 1e-5).epsilon,
    ),
    ("docs/mechanisms.md", "({:.0%} of the clients in the Uniform scenario)", lambda: (1 - 0.1) / (5 - 0.1)),
    (
        "docs/theory/learned-mechanisms.md",
        "both together have {:.0f}K weights",
        lambda: sum(p.numel() for p in MeanFieldNetwork().parameters()) / 1000,
    ),
    ("docs/theory/learned-mechanisms.md", "over N from {:.0f} to", lambda: recipe_of("mfg-regretnet").clients[0]),
    ("docs/theory/learned-mechanisms.md", "from 10 to {:,.0f}, B/N", lambda: recipe_of("mfg-regretnet").clients[1]),
    (
        "docs/theory/learned-mechanisms.md",
        "{:g} at the last step",
        lambda: (r := recipe_of("mfg-regretnet")).alignment.weight_at(r.steps),
    ),
    (
        "docs/decisions/two-nash-gaps.md",
        "({:.0e} of the mean payment",
        lambda: equilibrium("exploitability_on_fine_grid"),
    ),
    ("docs/decisions/population-through-gates.md", "(about {:,.0f} reports", lambda: round(tries(), -2)),
    ("docs/decisions/broker-writes-are-serial.md", "turns of {:.1f} ms", lambda: 1000 * THREAD_TURN_SECONDS),
]


def says(page: str, sentence: str, value: float) -> bool:
    """Whether the page has the sentence with this value, whatever its line breaks and spaces before %."""
    text, wanted = (" ".join(t.split()).replace(" %", "%") for t in (page, sentence.format(value)))
    return wanted.replace("e-0", "e-") in text


@pytest.mark.parametrize(
    ("page", "sentence", "compute"), STATED, ids=lambda x: x[:50] if isinstance(x, str) else ""
)
def test_the_page_says_what_the_code_gives(page, sentence, compute):
    assert says((ROOT / page).read_text(encoding="utf-8"), sentence, float(compute()))


def test_another_figure_would_be_found():
    page, sentence, compute = STATED[0]
    assert not says((ROOT / page).read_text(encoding="utf-8"), sentence, 1.1 * compute())


def test_a_record_s_own_mean_is_worth_about_a_point():
    """docs/decisions/public-features.md, from the candidates on validation records."""
    kept = json.loads((RESULTS / "federated/selection/selection.json").read_text())
    page = (ROOT / "docs/decisions/public-features.md").read_text(encoding="utf-8")
    assert "worth about a point on MNIST, Fashion-MNIST and CIFAR-10" in page

    def mean(dataset: str, features: str, like: dict[str, object]) -> float:
        found = [
            run["accuracy"]
            for run in kept.values()
            if run["config"]["dataset"] == dataset
            and run["config"]["wallet"] is None
            and {**run["config"]["training"], "features": ""} == {**like, "features": ""}
            and run["config"]["training"]["features"] == features
        ]
        return float(np.mean(found))

    for dataset in ("mnist", "fashion-mnist", "cifar10"):
        plain = [r["config"]["training"] for r in kept.values() if r["config"]["dataset"] == dataset]
        like = next(t for t in plain if t["features"] == "oriented-gradients")
        gain = mean(dataset, "centred-gradients", like) - mean(dataset, "oriented-gradients", like)
        assert 0.005 < gain < 0.015


def test_oriented_gradients_halve_the_first_layer():
    """docs/decisions/public-features.md: 28 × 28 pixels against the features of such images."""
    from privmarket.tasks import Dataset

    images = np.random.default_rng(0).random((2, 1, 28, 28), dtype=np.float32)
    labels = np.zeros(2, dtype=np.int64)
    made = with_features(Dataset("pixels", images, labels, images, labels, 10), "oriented-gradients")
    assert made.train_images[0].size == pytest.approx(28 * 28 / 2, rel=0.05)


def test_the_bid_of_the_example_is_that_of_the_sentence():
    """docs/how-to/forward-looking-clients.md: the snippet itself is run elsewhere."""
    page = (ROOT / "docs/how-to/forward-looking-clients.md").read_text(encoding="utf-8")
    assert "array([0.51, 0.6 ])" in page
    assert "costs it only 0.2, it asks 0.51" in page
    assert "reports its true 0.6" in " ".join(page.split())


def test_uniform_offers_lie_where_the_share_of_clients_below_one_was_computed():
    epsilon = scenario("uniform").sample(np.random.default_rng(0), 200_000).epsilon
    assert float((epsilon < pm.mechanism("pac").offer_limit).mean()) == pytest.approx(
        (1 - 0.1) / (5 - 0.1), abs=0.005
    )
