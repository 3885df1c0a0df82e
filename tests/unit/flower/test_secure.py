"""Masked updates under local trust: the same model as in the clear, and no update in the clear."""

import numpy as np
import pytest
from flwr.app import ArrayRecord

from privmarket.flower import _wire as wire
from tests.unit.flower.toy import CLIENTS, balanced, client, partition, play, server


def run(secure, **options):
    app = client(secure_aggregation=secure, noise_seed=7, epsilon=lambda c: 0.5 + 0.1 * partition(c), **options)
    market = server(secure_aggregation=secure, aggregation="epsilon-squared", rounds=2, server_rate=0.2)
    return play(app, market)


def test_the_model_is_that_of_open_aggregation():
    (secure, _), (opened, _) = run(True), run(False)
    assert [r.paid_micro for r in secure.records] == [r.paid_micro for r in opened.records]
    assert balanced(secure)
    for name, array in opened.weights.items():
        # Coordinates are rounded to range/2²¹ where the range is below 200, so to 1e-4, and then scaled by 0.2.
        np.testing.assert_allclose(secure.weights[name], array, atol=2e-4)


def test_nothing_leaves_in_the_clear():
    """No reply of a secure run carries an update; of an open run they do."""
    for secure in (True, False):
        _, grid = run(secure)
        replies = [r for r in grid.answered if r.metadata.message_type == wire.TRAIN and not r.has_error()]
        carried = [a for r in replies for a in r.content.values() if isinstance(a, ArrayRecord) and len(a)]
        assert bool(carried) is not secure


def test_a_client_that_drops_out_is_not_paid_and_its_weight_goes_to_the_others():
    def train(weights, job):
        if job.client == "1":
            raise RuntimeError("gone")
        return {name: np.full_like(array, 2.0) for name, array in weights.items()}

    result, _ = run(True, train=train)
    for record in result.records:
        assert list(record.dropped) == ["1"]
        assert record.sellers == CLIENTS - 1
    assert balanced(result)
    assert result.weights["b"] == pytest.approx(np.full(4, -2 * 0.2 * 2.0), abs=1e-4)


def test_an_order_is_still_private():
    _, grid = run(True)
    orders = grid.orders()
    own = {}
    for node, sale in orders:
        own.setdefault(node, set()).update({sale.epsilon, sale.share})
    values = [value for values in own.values() for value in values]
    assert len(orders) == 2 * CLIENTS
    assert len(values) == len(set(values))
