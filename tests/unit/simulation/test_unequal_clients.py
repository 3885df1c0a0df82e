"""Clients that differ in more than labels: sizes by Dirichlet, valuations from the records themselves."""

import numpy as np
import pytest

from privmarket.errors import ConfigurationError
from privmarket.simulation._config import FederationConfig, Training
from privmarket.simulation._federation import Federation
from privmarket.tasks import dirichlet_sizes_partition, label_distance

LABELS = np.repeat(np.arange(10), 100)
CONFIG = FederationConfig(clients=20, rounds=2, budget=4.0, alpha=0.1, training=Training(model="logistic"))


def test_every_record_is_held_once_and_sizes_vary():
    parts = dirichlet_sizes_partition(LABELS, 20, 0.3, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(LABELS.size))
    sizes = np.array([part.size for part in parts])
    assert sizes.max() > 5 * sizes.min()


def test_the_distance_of_labels_is_total_variation():
    one_label, all_labels = np.arange(100), np.arange(0, 1000, 10)
    found = label_distance(LABELS, [one_label, all_labels, np.array([], dtype=np.int64)])
    np.testing.assert_allclose(found, [0.9, 0.0, 0.0])


def test_valuations_follow_from_the_records():
    with Federation(CONFIG.replace(valuations="measured", valuation_weights="0,0,1")) as federation:
        labels = federation.pool.labels.numpy()
        parts = [np.arange(rows.start, rows.stop) for rows in federation.pool.parts]
        np.testing.assert_allclose(federation.types(0).valuation, label_distance(labels, parts))
    varied = CONFIG.replace(valuations="measured", valuation_weights="0,2,0", sizes="dirichlet")
    with Federation(varied) as federation:
        np.testing.assert_allclose(federation.types(0).valuation, 2 * federation.sizes / federation.sizes.mean())


@pytest.mark.parametrize("weights", ["1,2", "a,b,c", "-1,0,0"])
def test_weights_that_make_no_sense_are_refused(weights):
    with pytest.raises(ConfigurationError, match="valuation_weights"):
        Federation(CONFIG.replace(valuations="measured", valuation_weights=weights))
