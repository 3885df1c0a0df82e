"""Bids with the paper's weights: v = u/ε of an accuracy that is measured."""

import numpy as np
import pytest

import privmarket as pm
from privmarket_studies.literal_valuations import CLIENTS, drawn_bids, figures, own_accuracy, paper_bids


def test_the_accuracy_of_what_can_and_what_cannot_be_learned():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    learnable = rng.standard_normal((600, 8)) + 6.0 * np.eye(8)[labels]
    assert own_accuracy(learnable, labels, seed=1) > 0.97
    noise = rng.standard_normal((600, 8))
    assert own_accuracy(noise, labels, seed=1) < 0.55
    assert own_accuracy(noise, np.full(600, 7), seed=1) == 1.0


def test_a_bid_discloses_the_accuracy():
    accuracy = np.linspace(0.5, 1.0, CLIENTS)
    bids = paper_bids(accuracy, seed=4)
    np.testing.assert_allclose(bids.valuation * bids.epsilon, accuracy)
    np.testing.assert_array_equal(bids.epsilon, drawn_bids(4).epsilon)


def test_figures_by_hand():
    bids = drawn_bids(2)
    found = figures("mfg-pricing:literal", bids, pm.scenario("uniform"))
    assert found["epsilon"] == pytest.approx(bids.epsilon.sum())
    assert found["spent"] == pytest.approx(50.0)
    assert found["underpaid"] == int(
        (50.0 * bids.epsilon / bids.epsilon.sum() < bids.valuation * bids.epsilon).sum()
    )
    assert found["little_share"] == pytest.approx(bids.epsilon[bids.epsilon < 0.5].sum() / bids.epsilon.sum())
