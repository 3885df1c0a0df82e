"""Local training step by step, against the same steps written out one client at a time."""

import numpy as np
import pytest
import torch

from privmarket.federated import local
from privmarket.federated.gradients import gradient_sums
from privmarket.federated.local import ClientRecords, LocalPlan, plain_updates, private_updates
from privmarket.federated.models import mlp
from privmarket.privacy.noise import NoiseSource

MODEL = mlp((1, 6, 6), 4, hidden=(12, 8))


def records():
    torch.manual_seed(0)
    return ClientRecords(torch.randn(45, 1, 6, 6), torch.randint(0, 4, (45,)), [20, 0, 25])


@pytest.mark.parametrize("block_rows", [4096, 10])
def test_noisy_steps_written_out(monkeypatch, block_rows):
    """Three steps of three clients: batches and noise drawn again from the same keys, one after the other."""
    monkeypatch.setattr(local, "BLOCK_ROWS", block_rows)
    data, weights = records(), MODEL.initial_weights(np.random.default_rng(0))
    plan = LocalPlan(steps=3, sampling_rate=0.5, clip_norm=0.3, learning_rate=0.2, expected_batch=10.0)
    sigmas = [1.5, 0.7, 0.0]
    found = private_updates(MODEL, weights, data, plan, sigmas, [NoiseSource.from_seed(7, i) for i in range(3)])
    for client, sigma in enumerate(sigmas):
        source, mine = NoiseSource.from_seed(7, client), weights.clone()
        first, size = data.starts[client], data.sizes[client]
        for _ in range(3):
            pick = torch.from_numpy(np.flatnonzero(source.bernoulli(0.5, size)) + first)
            total = gradient_sums(MODEL, mine[None], data.images[pick], data.labels[pick], [pick.numel()], 0.3)[0]
            if sigma:
                # training subtracts the gradient and adds noise; noise is symmetric, its sign is free
                total = total - 0.3 * sigma * torch.from_numpy(source.standard_normal(MODEL.parameters))
            mine = mine - 0.2 / 10.0 * total
        torch.testing.assert_close(found[client], weights - mine, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("block_rows", [4096, 10])
def test_plain_steps_written_out(monkeypatch, block_rows):
    monkeypatch.setattr(local, "BLOCK_ROWS", block_rows)
    data, weights = records(), MODEL.initial_weights(np.random.default_rng(0))
    rngs = [np.random.default_rng(i) for i in range(3)]
    found = plain_updates(MODEL, weights, data, batch=8, epochs=2, learning_rate=0.1, rngs=rngs)
    for client in range(3):
        rng, mine = np.random.default_rng(client), weights.clone()
        for _ in range(2):
            order = rng.permutation(data.sizes[client]) + data.starts[client]
            for at in range(0, order.size, 8):
                pick = torch.from_numpy(order[at : at + 8])
                total = gradient_sums(MODEL, mine[None], data.images[pick], data.labels[pick], [pick.numel()], None)
                mine = mine - 0.1 / pick.numel() * total[0]
        torch.testing.assert_close(found[client], weights - mine, atol=1e-5, rtol=1e-4)
