"""What clients left out cost beside noise: arithmetic by hand, equal and unequal clients, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from privmarket.errors import ConfigurationError
from privmarket.simulation._config import FederationConfig, recommended_training
from privmarket.simulation._rehearsal import ClientSpread, measure_spread
from privmarket.tasks import drawn_parts, load_dataset, task_of


def config(alpha: float) -> FederationConfig:
    training = recommended_training("digits", "aggregate")
    return FederationConfig(
        dataset="digits", clients=20, rounds=6, alpha=alpha, trust="aggregate", training=training
    )


def task(alpha: float):
    """Digits, tested on the records that no client holds."""
    digits = load_dataset("digits", measured_on="validation")
    return task_of(digits, drawn_parts(digits.train_labels, 20, alpha, "equal", 0))


def test_the_exchange_rate_by_hand():
    # At u = ½ accuracy is that of s = 2, at u = ⅕ that of s halfway between 2 and 8: 4. Rates 4/1 and 16/4.
    spread = ClientSpread((0.5, 0.2), (0.8, 0.7), (0.5, 2.0, 8.0), (0.9, 0.8, 0.6))
    assert spread.equal_noise == pytest.approx((2.0, 4.0))
    assert spread.bias_to_noise == pytest.approx(4.0)
    assert spread.heterogeneity == pytest.approx(2.0)


def test_skewed_clients_differ_more_than_equal_ones():
    skewed, equal = (measure_spread(config(alpha), task(alpha), shares=(0.2,), draws=3) for alpha in (0.05, 100.0))
    assert skewed.bias_to_noise > 3 * equal.bias_to_noise
    assert np.all(np.diff(skewed.noise) > 0)
    assert skewed.noise_accuracy[-1] < skewed.noise_accuracy[0]


def test_a_share_must_leave_somebody_out():
    with pytest.raises(ConfigurationError, match="shares"):
        measure_spread(config(0.1), task(0.1), shares=(1.0,))
