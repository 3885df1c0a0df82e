"""Local training step by step, against the same steps written out one client at a time."""

import numpy as np
import pytest
import torch

from privmarket.errors import ConfigurationError
from privmarket.privacy._noise import NoiseSource
from privmarket.privacy._release import ReleaseGrid, covered_records, sum_inflation
from privmarket.training import (
    ClientRecords,
    LocalPlan,
    PrivateModel,
    _clipping as clipping,
    _local as local,
    by_person,
    cnn,
    gradient_sums,
    mlp,
    plain_updates,
    private_updates,
)

MODEL = PrivateModel(mlp((1, 6, 6), 4, hidden=(12, 8)), name="mlp")
CNN = PrivateModel(cnn((1, 6, 6), 4, channels=(3, 4)), name="cnn")


def records():
    torch.manual_seed(0)
    return ClientRecords(torch.randn(45, 1, 6, 6), torch.randint(0, 4, (45,)), [20, 0, 25])


@pytest.mark.parametrize("model", [MODEL, CNN], ids=lambda m: m.name)
@pytest.mark.parametrize("block_rows", [4096, 10])
@pytest.mark.parametrize(("rate", "steps"), [(0.5, 3), (1.0, 2), (0.5, 1), (1.0, 1)])
def test_noisy_steps_written_out(monkeypatch, model, block_rows, rate, steps):
    """Steps of three clients: batches and noise drawn again from the same keys, one after the other."""
    monkeypatch.setattr(clipping, "PASS_ROWS", block_rows)
    data, weights = records(), model.initial_weights(np.random.default_rng(0))
    plan = LocalPlan(steps, rate, clip_norm=0.3, learning_rate=0.2, expected_batch=10.0)
    sigmas = [1.5, 0.7, 0.0]
    found = private_updates(model, weights, data, plan, sigmas, [NoiseSource.from_seed(7, i) for i in range(3)])
    for client, sigma in enumerate(sigmas):
        source, mine = NoiseSource.from_seed(7, client), weights.clone()
        first, size = data.starts[client], data.sizes[client]
        for _ in range(steps):
            drawn = source.bernoulli(rate, size) if rate < 1 else np.ones(size, dtype=bool)
            pick = torch.from_numpy(np.flatnonzero(drawn) + first)
            total = gradient_sums(model, mine[None], data.inputs[pick], data.labels[pick], [pick.numel()], 0.3)[0]
            if sigma:
                grid = ReleaseGrid.for_release(sigma, 0.3, model.parameters, sum_inflation(covered_records(size)))
                total = torch.from_numpy(grid.noisy_integers(total.numpy(), source) * grid.spacing)
            mine = mine - 0.2 / 10.0 * total.float()
        torch.testing.assert_close(found[client], weights - mine, atol=1e-5, rtol=1e-4)


def test_float_noise_is_an_option():
    data, weights = records(), MODEL.initial_weights(np.random.default_rng(0))
    exact, loose = (LocalPlan(clip_norm=0.3, arithmetic=name) for name in ("exact", "float"))
    quiet, one, other = (
        private_updates(MODEL, weights, data, plan, [sigma] * 3, [NoiseSource.from_seed(7, i) for i in range(3)])
        for plan, sigma in ((loose, 0.0), (exact, 2.0), (loose, 2.0))
    )
    assert (one != other).all()
    for noisy in (one, other):
        assert float((noisy - quiet).std()) == pytest.approx(0.6, rel=0.1)


@pytest.mark.parametrize("model", [MODEL, CNN], ids=lambda m: m.name)
def test_what_a_chunk_holds_changes_no_bit(model):
    """Clients alone and together give the same bits, one step or several, whole batch or sample."""
    data, weights = records(), model.initial_weights(np.random.default_rng(0))
    for plan in (LocalPlan(2, 0.5, 0.3), LocalPlan(1, 0.5, 0.3), LocalPlan(2, 1.0, 0.3)):
        together = private_updates(
            model, weights, data, plan, [1.0] * 3, [NoiseSource.from_seed(1, i) for i in range(3)]
        )
        for i, (start, size) in enumerate(zip(data.starts, data.sizes, strict=True)):
            rows = slice(start, start + size)
            alone = ClientRecords(data.inputs[rows], data.labels[rows], [size])
            found = private_updates(model, weights, alone, plan, [1.0], [NoiseSource.from_seed(1, i)])
            assert torch.equal(found[0], together[i])


@pytest.mark.parametrize("model", [MODEL, CNN], ids=lambda m: m.name)
@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_a_person_counts_once(model, rate):
    """Each person's summed gradient is clipped: against the same written out per person."""
    torch.manual_seed(1)
    images, labels = torch.randn(40, 1, 6, 6), torch.randint(0, 4, (40,))
    persons = torch.randint(0, 9, (40,))
    weights = model.initial_weights(np.random.default_rng(0))
    plan = LocalPlan(sampling_rate=rate, clip_norm=0.4, unit="person")
    data = ClientRecords(images, labels, [25, 15], persons)
    found = private_updates(model, weights, data, plan, [0.0, 0.0], [NoiseSource.from_seed(3, i) for i in range(2)])
    for client, rows in enumerate((slice(0, 25), slice(25, 40))):
        source, total = NoiseSource.from_seed(3, client), torch.zeros(model.parameters)
        people = persons[rows].unique().tolist()
        drawn = source.bernoulli(rate, len(people)) if rate < 1 else [True] * len(people)
        for person, taken in zip(people, drawn, strict=True):
            mine = (persons[rows] == person).nonzero().flatten() + rows.start
            whole = gradient_sums(model, weights[None], images[mine], labels[mine], [mine.numel()], None)[0]
            total += taken * whole * min(1.0, 0.4 / float(whole.norm()))
        torch.testing.assert_close(found[client], total, atol=1e-5, rtol=5e-4)


def test_persons_with_gaps_are_refused():
    images, labels = torch.zeros(3, 1, 6, 6), torch.zeros(3, dtype=torch.int64)
    for bad in (torch.tensor([0, 1]), torch.tensor([0.0, 1.0, float("nan")]), torch.tensor([0, -1, 2])):
        with pytest.raises(ConfigurationError, match="person"):
            by_person(ClientRecords(images, labels, [3], bad))
    plan, weights = LocalPlan(unit="person"), MODEL.initial_weights(np.random.default_rng(0))
    nobody, source = ClientRecords(images, labels, [3]), NoiseSource.from_seed(0)
    with pytest.raises(ConfigurationError, match="person"):
        private_updates(MODEL, weights, nobody, plan, [1.0], [source])
    for wrong in ({"unit": "household"}, {"arithmetic": "double"}, {"clip_norm": 1e-30}, {"clip_norm": 1e30}):
        with pytest.raises(ConfigurationError):
            LocalPlan(**wrong)


@pytest.mark.parametrize("model", [MODEL, CNN], ids=lambda m: m.name)
@pytest.mark.parametrize("block_rows", [4096, 10])
def test_plain_steps_written_out(monkeypatch, model, block_rows):
    monkeypatch.setattr(local, "PASS_ROWS", block_rows)
    monkeypatch.setattr(clipping, "PASS_ROWS", block_rows)
    data, weights = records(), model.initial_weights(np.random.default_rng(0))
    rngs = [np.random.default_rng(i) for i in range(3)]
    found = plain_updates(model, weights, data, batch=8, epochs=2, learning_rate=0.1, rngs=rngs)
    for client in range(3):
        rng, mine = np.random.default_rng(client), weights.clone()
        for _ in range(2):
            order = rng.permutation(data.sizes[client]) + data.starts[client]
            for at in range(0, order.size, 8):
                pick = torch.from_numpy(order[at : at + 8])
                total = gradient_sums(model, mine[None], data.inputs[pick], data.labels[pick], [pick.numel()], None)
                mine = mine - 0.1 / pick.numel() * total[0]
        torch.testing.assert_close(found[client], weights - mine, atol=1e-5, rtol=1e-4)
