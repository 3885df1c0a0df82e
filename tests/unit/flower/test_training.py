"""Private training of torch modules on Flower: clipped sums against torch.func, and what is refused."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from privmarket.errors import ConfigurationError, PrivacyError
from privmarket.flower._seller import Job
from privmarket.flower._training import load_arrays, private_module_update, trainable_arrays
from privmarket.flower._wire import Sale
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._noise import NoiseSource
from privmarket.privacy._release import ReleaseGrid, covered_records, sum_inflation
from privmarket.training import ClientRecords, PrivateModel, clipped_sums


class Residual(nn.Module):
    """Not a stack: a skip, a norm over groups, and a layer used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Linear(4 * 36, 3)
        self.twice = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = x + self.twice(torch.relu(self.twice(x)))
        return self.last(x.flatten(1))


class Words(nn.Module):
    """Tokens, an embedding, self-attention."""

    def __init__(self):
        super().__init__()
        self.table, self.mix, self.last = nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, tokens):
        h = self.mix(self.table(tokens))
        h = h + torch.softmax(h @ h.transpose(1, 2), -1) @ h
        return self.last(h.mean(1))


MODULES = {
    "logistic": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3)),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.ReLU(), nn.Linear(12, 3)),
    "cnn": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    ),
    "residual": Residual,
    "words": Words,
    "without bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3, bias=False)),
}


def clipped_sum(module, inputs, labels, clip):
    """(parameters,) the clipped sum under the module's own weights."""
    model = PrivateModel(module)
    records = ClientRecords(inputs, labels, [len(labels)])
    return clipped_sums(model, model.built_weights()[None], records, clip).of(0).double()


def records(name, rows=20):
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (rows,), generator=generator)
    if name == "words":
        return torch.randint(0, 11, (rows, 5), generator=generator), labels
    return 3 * torch.randn(rows, 1, 6, 6, generator=generator), labels


def build(name):
    torch.manual_seed(0)
    return MODULES[name]()


def reference(module, x, y, clip_norm):
    """Σ of clipped per-record gradients by torch.func, parameter by parameter."""
    parameters = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    frozen = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}

    def loss(weights, one, label):
        out = functional_call(module, {**weights, **frozen}, (one[None],))
        return nn.functional.cross_entropy(out, label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    norms = torch.stack([g.flatten(1).square().sum(1) for g in each.values()]).sum(0).sqrt()
    factor = (clip_norm / norms).clamp(max=1.0)
    assert (factor < 1).any(), "nothing is clipped: the test says nothing"
    return {name: torch.einsum("n,n...->...", factor, g).numpy() for name, g in each.items()}


def job(noise_multiplier=0.0, steps=1, sampling_rate=1.0, clip_norm=0.5, seed=5, rate=1.0, batch=1.0):
    family = ReleaseFamily(sampling_rate, steps)
    sale = Sale("run", 0, 1.0, 1, family, clip_norm, rate, batch)
    return Job(sale, noise_multiplier, NoiseSource.from_seed(seed), "0", None)


@pytest.mark.parametrize("name", MODULES)
def test_clipped_sums_are_those_of_torch_func(name):
    module = build(name)
    x, y = records(name)
    expected = reference(module, x, y, 0.5)
    update = private_module_update(build(name), trainable_arrays(module), x, y, job())
    for key, want in expected.items():
        np.testing.assert_allclose(update[key], want, atol=2e-5)


def test_a_sum_that_is_not_clipped_is_caught():
    module = build("residual")
    x, y = records("residual")
    expected = reference(module, x, y, 0.5)
    loose = private_module_update(build("residual"), trainable_arrays(module), x, y, job(clip_norm=1e9))
    assert any(not np.allclose(loose[key], want, atol=1e-2) for key, want in expected.items())


def test_the_noise_is_what_the_multiplier_says():
    """Read off the update itself, on records that push nowhere: standard deviation rate·σ·C/batch, three steps."""
    wide = nn.Sequential(nn.Flatten(), nn.Linear(36, 300, bias=False))
    weights = trainable_arrays(wide)
    work = job(noise_multiplier=2.0, steps=3, rate=0.5, batch=10.0, clip_norm=0.7)
    update = private_module_update(wide, weights, torch.zeros(0, 36), torch.zeros(0, dtype=torch.int64), work)
    noise = update["1.weight"].ravel()
    expected = 0.5 * 2.0 * 0.7 / 10.0 * math.sqrt(3)
    # 10,800 normals: the sample deviation is within 4 of its own deviations, 1/√(2n), with probability 1 − 6e-5.
    assert abs(noise.std() / expected - 1) < 4 / math.sqrt(2 * noise.size)


def test_no_record_counts_for_more_than_the_clip_norm():
    """One record added moves the sum by at most C, also when its gradient is infinite or not a number."""
    module = build("residual")
    x, y = records("residual")
    base = clipped_sum(module, x, y, 0.5)
    for outlier in (torch.full((1, 1, 6, 6), 1e20), torch.full((1, 1, 6, 6), math.nan), 100 * x[:1]):
        more = clipped_sum(module, torch.cat([x, outlier]), torch.cat([y, y[:1]]), 0.5)
        moved = float((more - base).norm())
        assert moved <= 0.5 + 1e-4


@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_a_broken_record_does_not_spoil_an_update(name):
    x, y = records(name)
    weights = trainable_arrays(build(name))
    clean = private_module_update(build(name), weights, x, y, job())
    for value in (math.nan, math.inf, 1e38):
        worse = torch.cat([x, torch.full((1, 1, 6, 6), value)])
        update = private_module_update(build(name), weights, worse, torch.cat([y, y[:1]]), job())
        moved = math.sqrt(sum(float(np.square(update[k] - clean[k]).sum()) for k in clean))
        assert moved <= 0.5 + 1e-4


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(1), nn.InstanceNorm2d(1, affine=True, track_running_stats=True)])
def test_modules_that_mix_records_are_refused(layer):
    module = nn.Sequential(layer, nn.Flatten(), nn.Linear(36, 3))
    x, y = records("mlp")
    with pytest.raises(PrivacyError, match=r"layer 0"):
        private_module_update(module, trainable_arrays(module), x, y, job())


def test_frozen_layers_are_neither_sent_nor_trained():
    module = Residual()
    for p in module.first.parameters():
        p.requires_grad_(False)
    x, y = records("residual")
    kept = module.first.weight.clone()
    update = private_module_update(module, trainable_arrays(module), x, y, job(noise_multiplier=1.0))
    assert not any(name.startswith("first") for name in update)
    assert torch.equal(module.first.weight, kept)


def test_own_losses_and_wrong_weights():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 1))
    x, _ = records("mlp")
    targets = torch.randn(20)
    squared = lambda out, want: (out[:, 0] - want) ** 2  # noqa: E731
    twin = copy.deepcopy(module)  # a module is trained in place
    update = private_module_update(twin, trainable_arrays(module), x, targets, job(clip_norm=1e6), squared)
    module.zero_grad()
    ((module(x)[:, 0] - targets) ** 2).sum().backward()
    np.testing.assert_allclose(update["1.weight"], module[1].weight.grad, rtol=1e-4, atol=1e-3)
    with pytest.raises(PrivacyError, match="the same model"):
        load_arrays(module, {"other": np.zeros(3)})
    with pytest.raises(PrivacyError, match="one label"):
        private_module_update(module, trainable_arrays(module), x, targets[:3], job())


def test_a_person_is_clipped_whole():
    x, y = records("mlp", 150)
    persons = torch.zeros(150, dtype=torch.int64)
    weights = trainable_arrays(build("mlp"))
    work = replace(job(clip_norm=1e-3), unit="person")
    update = private_module_update(build("mlp"), weights, x, y, work, None, persons)
    alone = private_module_update(build("mlp"), weights, x, y, job(clip_norm=1e-3))
    sizes = [math.sqrt(sum(float(np.square(a).sum()) for a in one.values())) for one in (update, alone)]
    assert sizes[0] <= 1e-3
    assert sizes[1] > 5e-3
    with pytest.raises(ConfigurationError, match="person"):
        private_module_update(build("mlp"), weights, x, y, work)


@pytest.mark.parametrize("name", ["mlp", "words"])
def test_noise_is_added_on_a_grid(name):
    """Large weights from the server do not swallow it: what leaves is a function of noisy whole numbers."""
    x, y = records(name)
    weights = trainable_arrays(build(name))
    quiet = private_module_update(build(name), weights, x, y, job())
    noisy = private_module_update(build(name), weights, x, y, job(noise_multiplier=2.0))
    size = sum(array.size for array in weights.values())
    grid = ReleaseGrid.for_release(2.0, 0.5, size, sum_inflation(covered_records(20)))
    moved = np.concatenate([(noisy[key] - quiet[key]).ravel() for key in weights])
    assert moved.std() == pytest.approx(grid.deviation, rel=5 / np.sqrt(2 * size))
    assert grid.deviation == pytest.approx(2.0 * 0.5, rel=0.004)


def test_layers_that_are_not_trained_keep_their_mode():
    """A dropout that its owner switched off stays off; only layers with weights of their own are set to train."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 3)).eval()
    x, y = records("mlp")
    weights = trainable_arrays(module)
    update = private_module_update(module, weights, x, y, job())
    assert not module[1].training
    plain = nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(36, 3))
    expected = private_module_update(plain, weights, x, y, job())
    for key in update:
        np.testing.assert_array_equal(update[key], expected[key])


def test_an_activation_on_the_input_leaves_the_records_alone():
    module = nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(36, 3))
    x, y = records("mlp")
    before = x.clone()
    private_module_update(module, trainable_arrays(module), x, y, job())
    assert torch.equal(x, before)
