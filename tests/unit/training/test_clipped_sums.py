"""Clipped sums against independent computations: torch's backward pass record by record, torch.func, Opacus."""

import copy
import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from privmarket.privacy._release import sum_inflation
from privmarket.training import (
    ClientRecords,
    PrivateModel,
    Sample,
    _clipping as clipping,
    _layers as layers,
    _row_gradients as row_gradients,
    build_model,
    clipped_sums,
    cross_entropy,
    gradient_sums,
    method_for,
    squared_error,
)
from privmarket.training._arithmetic import clip_factors, row_energy, tiled
from privmarket.training._clipping import add_plain_sums
from privmarket.training._losses import cross_entropy_slopes

SHAPE = (3, 8, 8)


def flat_like(model, by_name):
    """torch's gradients, (rows, *shape) by name, in the order and layout of the flat vector: (rows, parameters)."""
    rows = len(next(iter(by_name.values())))
    flat = torch.zeros(rows, model.parameters)
    for slot in model.slots:
        slot.of(flat).copy_(by_name[slot.name].detach())
    return flat


def per_example(model, flat, inputs, labels):
    """(rows, parameters) gradients by torch.func."""

    def loss(parameters, one, label):
        out = functional_call(model.module, parameters, (one[None],))
        return F.cross_entropy(out, label[None])

    return flat_like(model, vmap(grad(loss), (None, 0, 0))(model.named(flat), inputs, labels))


def one_by_one(model, flat, inputs, labels):
    """(rows, parameters) gradients by torch's ordinary backward pass, one record at a time."""
    module = copy.deepcopy(model.module)
    twin = PrivateModel(module)
    twin.load(flat)
    each = []
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    for row in range(len(labels)):
        losses = model.loss(module(inputs[row : row + 1]), labels[row : row + 1])
        found = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
        filled = [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters.values(), strict=True)]
        each.append(flat_like(twin, {n: g[None] for n, g in zip(parameters, filled, strict=True)})[0])
    return torch.stack(each)


def clipped(each, clip_norm):
    return each.double() * (clip_norm / each.double().norm(dim=1, keepdim=True)).clamp(max=1.0)


def batch(seed, rows, shape=SHAPE):
    torch.manual_seed(seed)
    return torch.randn(rows, *shape), torch.randint(0, 10, (rows,))


def weights_of(model, copies):
    return torch.stack([model.initial_weights(np.random.default_rng(i)) * 2 for i in range(copies)])


def sums_of(model, weights, inputs, labels, clip_norm, **more):
    persons = more.pop("persons", None)
    records = ClientRecords(inputs, labels, more.pop("sizes", [len(labels)]), persons)
    return clipped_sums(model, weights, records, clip_norm, **more)


# --- the networks that are built in ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "cnn", "logistic"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("clip_norm", [0.5, 3.0, None])
def test_sums_equal_torch_func(name, shared, clip_norm):
    model = build_model(name, SHAPE, 10)
    images, labels = batch(0, 17)
    sizes, offsets = [5, 0, 12], [0, 5, 5, 17]  # the second client has no records in its batch
    weights = weights_of(model, 1 if shared else 3)
    found = gradient_sums(model, weights, images.clone(), labels, sizes, clip_norm)
    for client in range(3):
        rows = slice(offsets[client], offsets[client + 1])
        if offsets[client] == offsets[client + 1]:
            assert not found[client].any()
            continue
        each = per_example(model, weights[0 if shared else client], images[rows], labels[rows])
        if clip_norm is not None:
            each = clipped(each, clip_norm)
        # clipping stays below C by what float32 norms may be off, a few parts in 10,000 for wide layers
        torch.testing.assert_close(found[client], each.sum(0).float(), atol=3e-5, rtol=5e-4)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_sums_equal_opacus(mode):
    from opacus.grad_sample import GradSampleModule
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping,
    )

    model = build_model("mlp", SHAPE, 10)
    images, labels = batch(1, 23)
    weights = weights_of(model, 1)
    found = gradient_sums(model, weights, images.clone(), labels, [23], 0.8)[0]
    net = model.load(weights[0])
    if mode == "hooks":
        wrapped = GradSampleModule(net)
        F.cross_entropy(wrapped(images), labels, reduction="sum").backward()
        each = flat_like(model, {n: p.grad_sample for n, p in net.named_parameters()})
        expected = clipped(each, 0.8).sum(0).float()
    else:
        wrapped = GradSampleModuleFastGradientClipping(
            net, max_grad_norm=0.8, use_ghost_clipping=True, loss_reduction="sum"
        )
        losses = F.cross_entropy(wrapped(images), labels, reduction="none")
        losses.sum().backward(retain_graph=True)
        factors = wrapped.get_clipping_coef()
        net.zero_grad()
        wrapped.disable_hooks()
        (factors * losses).sum().backward()
        expected = flat_like(model, {n: p.grad[None] for n, p in net.named_parameters()})[0]
    torch.testing.assert_close(found, expected.detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["mlp", "cnn", "logistic"])
def test_a_start_and_its_outputs_are_those_of_earlier_versions(name):
    """Kept results depend on it: uniform numbers layer by layer, matrices as (inputs, outputs), then the bias."""
    model = build_model(name, (1, 4, 4), 3)
    found = model.initial_weights(np.random.default_rng(5))
    rng = np.random.default_rng(5)
    layers = [part for part in model.module if isinstance(part, nn.Linear | nn.Conv2d)]
    expected = []
    for layer in layers:
        fan_in = layer.weight[0].numel()
        expected.append(rng.uniform(-1.0, 1.0, layer.weight.numel() + layer.bias.numel()) / fan_in**0.5)
    np.testing.assert_array_equal(found.numpy(), np.concatenate(expected).astype(np.float32))
    images, _ = batch(0, 5, (1, 4, 4))
    model.load(found)
    torch.testing.assert_close(model.outputs(found, images), model.module(images).detach())
    if name != "cnn":
        cut = layers[0].weight.numel()
        matrix = found[:cut].view(layers[0].in_features, layers[0].out_features)
        torch.testing.assert_close(layers[0].weight.data, matrix.t())


def test_known_model_sizes():
    assert build_model("mlp", (1, 28, 28), 10).parameters == 784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10
    assert build_model("logistic", (1, 8, 8), 10).parameters == 650


# --- other modules ---------------------------------------------------------------------------------------


class Words(nn.Module):
    """Tokens with padding, places, a token of the sentence, norms, bare scales, attention."""

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(11, 8, padding_idx=0), nn.Parameter(torch.randn(5, 8))
        self.sentence, self.scale = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.ones(8))
        self.norm, self.rms, self.last = nn.LayerNorm(8), nn.RMSNorm(8), nn.Linear(8, 3)

    def forward(self, tokens):
        h = self.scale * self.norm(self.places + self.table(tokens))
        h = torch.cat([self.sentence.expand(len(tokens), -1, -1), h], 1)
        h = h + torch.softmax(h @ h.transpose(1, 2), -1) @ self.rms(h)
        return self.last(h.mean(1))


class Tied(nn.Module):
    """A table that is also the last matrix, and a layer in two places."""

    def __init__(self):
        super().__init__()
        self.table, self.twice, self.last = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
        self.last.weight = self.table.weight

    def forward(self, tokens):
        return self.last(self.twice(torch.tanh(self.twice(self.table(tokens))))).mean(1)


class Images(nn.Module):
    """Convolutions with every setting, and norms over groups and channels."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, stride=2, padding=1, padding_mode="circular")
        self.second = nn.Conv2d(4, 8, (3, 1), dilation=2, groups=2, padding="same", bias=False)
        self.groups, self.channels = nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True)
        self.last = nn.Conv1d(8, 3, 2)

    def forward(self, x):
        h = self.channels(self.groups(self.second(torch.relu(self.first(x)))))
        return self.last(h.flatten(2)).mean(2)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.core, self.last = nn.Embedding(11, 8), nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, tokens):
        return self.last(self.core(self.table(tokens))[0][:, -1])


class Encoder(nn.Module):
    """nn.MultiheadAttention as torch writes it."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(11, 8), nn.Linear(8, 3)
        self.core = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, tokens):
        return self.last(self.core(self.table(tokens)).mean(1))


class SequenceFirst(nn.Module):
    """Puts the sequence first, so that layers see tokens where records are expected."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x.transpose(0, 1)))).mean(0)


class Places(nn.Module):
    """Looks places up without an axis for records."""

    def __init__(self):
        super().__init__()
        self.places, self.last = nn.Embedding(16, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(x + self.places(torch.arange(16))).mean(1)


class Softened(nn.Module):
    """A parameter that goes through another function first."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(3, 6))

    def forward(self, x):
        return x @ self.matrix.softmax(1).t()


class Branching(nn.Module):
    """What it does depends on the record in a way that torch.func cannot follow."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(3, 6))

    def forward(self, x):
        return F.linear(x, self.matrix.exp() if float(x.sum()) > 0 else self.matrix)


def several_tokens():
    """Matrices so large, for so few tokens, that records' gradients are not formed."""
    return nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 200), nn.Flatten(), nn.Linear(800, 3))


def frozen_start():
    return nn.Sequential(nn.Linear(6, 8).requires_grad_(False), nn.ReLU(), nn.Linear(8, 3))


def frozen_matrix():
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    module[2].weight.requires_grad_(False)
    return module


def normed_weights():
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)))


TOKENS, VECTORS, SEQUENCES = (5,), (6,), (16, 6)
MODULES = {
    "words": (Words, TOKENS, "rules"),
    "tied": (Tied, TOKENS, "rules"),
    "images": (Images, (2, 8, 8), "rules"),
    "several tokens": (several_tokens, (4, 6), "rules"),
    "frozen start": (frozen_start, VECTORS, "stack"),
    "frozen matrix": (frozen_matrix, VECTORS, "stack"),
    "LSTM": (Recurrent, TOKENS, "vmap"),
    "encoder": (Encoder, TOKENS, "vmap"),
    "sequence first": (SequenceFirst, SEQUENCES, "vmap"),
    "places": (Places, SEQUENCES, "vmap"),
    "softened": (Softened, VECTORS, "vmap"),
    "normed weights": (normed_weights, VECTORS, "vmap"),
    "branching": (Branching, VECTORS, "loop"),
}


def subject(name, rows=150):
    """A module, its weights, records for it, and each record's gradient by torch alone."""
    torch.manual_seed(0)
    build, shape, _ = MODULES[name]
    model = PrivateModel(build(), name=name)
    x = torch.randint(0, 11, (rows, *shape)) if shape == TOKENS else torch.randn(rows, *shape)
    y = torch.randint(0, 3, (rows,))
    flat = model.built_weights()
    each = one_by_one(model, flat, x, y)
    return model, flat, x, y, each, float(each.norm(dim=1).median())


@pytest.mark.parametrize("name", MODULES)
def test_any_module_has_the_sums_of_its_own_records(name):
    """Whole batch, sample, and persons, each against torch's ordinary backward pass on one record at a time."""
    model, flat, x, y, each, clip = subject(name)
    assert method_for(model, x, y).kind == MODULES[name][2]
    scale = float(clipped(each, clip).sum(0).abs().max())
    found = sums_of(model, flat[None], x, y, clip).of(0).double()
    assert float((found - clipped(each, clip).sum(0)).abs().max()) < 1e-4 * scale
    drawn = np.flatnonzero(np.arange(150) % 5 < 2)
    found = sums_of(model, flat[None], x, y, clip, sample=Sample(0.4, [drawn])).of(0).double()
    assert float((found - clipped(each, clip)[drawn].sum(0)).abs().max()) < 1e-4 * scale
    persons = torch.arange(150) // 4
    together = torch.stack([each[persons == one].sum(0) for one in persons.unique()])
    found = sums_of(model, flat[None], x, y, clip, persons=persons).of(0).double()
    assert float((found - clipped(together, clip).sum(0)).abs().max()) < 1e-4 * scale


@pytest.mark.parametrize("name", ["words", "several tokens", "LSTM"])
def test_no_record_of_any_module_counts_for_more_than_the_clip_norm(name):
    model, flat, x, y, _, clip = subject(name, rows=30)
    for row in range(30):
        one = sums_of(model, flat[None], x[row : row + 1], y[row : row + 1], clip / 3).of(0)
        assert float(one.double().norm()) <= clip / 3


def test_uses_of_one_parameter_that_are_not_added_up_before_the_norm_are_noticed(monkeypatch):
    """The subject broken on purpose: only the first use of a parameter counts."""
    monkeypatch.setattr(layers, "merged", lambda terms: terms[0])
    model, flat, x, y, each, clip = subject("tied", rows=20)
    method = clipping.Method("rules")
    monkeypatch.setattr(clipping, "method_for", lambda *_: method)
    found = sums_of(model, flat[None], x, y, clip).of(0).double()
    assert float((found - clipped(each, clip).sum(0)).abs().max()) > 1e-2 * clip


def test_a_rule_that_gives_another_gradient_is_not_used(monkeypatch, caplog):
    """A trial on random records compares each with its own gradient; then torch.func takes over."""
    real = row_gradients.Lookup.of.__func__

    def forgets_padding(cls, lines, slopes, shape, padding):
        return real(cls, lines, slopes, shape, None)

    monkeypatch.setattr(row_gradients.Lookup, "of", classmethod(forgets_padding))
    with caplog.at_level(logging.INFO):
        model, flat, x, y, each, clip = subject("words", rows=20)
    assert method_for(model, x, y).kind == "vmap"
    found = sums_of(model, flat[None], x, y, clip).of(0).double()
    assert float((found - clipped(each, clip).sum(0)).abs().max()) < 1e-4 * clip * 20


def test_numbers_and_losses_of_any_kind():
    """Regression on float labels: one of our own losses, and one that somebody wrote."""
    torch.manual_seed(0)
    x, y = torch.randn(40, 6), torch.randn(40)
    for loss, kind in ((squared_error, "stack"), (lambda out, want: (out[:, 0] - want).square() / 2, "rules")):
        model = PrivateModel(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)), loss)
        flat = model.initial_weights(np.random.default_rng(0))
        assert method_for(model, x, y).kind == kind
        each = one_by_one(model, flat, x, y)
        found = sums_of(model, flat[None], x, y, 0.7).of(0)
        torch.testing.assert_close(found, clipped(each, 0.7).sum(0).float(), atol=1e-5, rtol=1e-4)


def test_a_module_keeps_its_own_weights_and_modes():
    model, flat, x, y, _, clip = subject("words", rows=20)
    model.module.norm.eval()
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    sums_of(model, flat[None] * 1.5, x, y, clip)
    model.outputs(flat * 2, x)
    assert all(torch.equal(before[name], value) for name, value in model.module.state_dict().items())
    assert all(type(parameter) is nn.Parameter for parameter in model.module.parameters())
    assert model.module.training
    assert not model.module.norm.training


def test_named_arrays_and_back():
    model = PrivateModel(Tied())
    flat = torch.randn(model.parameters)
    arrays = model.arrays(flat)
    assert {name: a.shape for name, a in arrays.items()} == {
        name: tuple(p.shape) for name, p in model.module.named_parameters()
    }
    assert torch.equal(model.flat(arrays), flat)
    state = model.state_dict(flat)
    assert set(state) == set(model.module.state_dict())
    assert torch.equal(state["last.weight"], state["table.weight"])
    assert torch.equal(model.load(flat).last.weight.data, state["last.weight"])
    assert torch.equal(model.built_weights(), flat)


# --- blocks, bounds, samples -----------------------------------------------------------------------------


def test_no_record_counts_for_more_than_the_clip_norm():
    model = build_model("cnn", SHAPE, 10)
    weights = weights_of(model, 1) * 3
    for i in range(20):
        images, labels = batch(i, 1)
        norm = float(gradient_sums(model, weights, images, labels, [1], 0.01)[0].double().norm())
        assert norm <= 0.01


def test_passes_do_not_change_the_sums(monkeypatch):
    model = build_model("mlp", SHAPE, 10)
    images, labels = batch(2, 50)
    weights, sizes = weights_of(model, 4), [13, 1, 0, 36]
    whole = gradient_sums(model, weights, images, labels, sizes, 1.0)
    monkeypatch.setattr(clipping, "PASS_ROWS", 7)
    found = gradient_sums(model, weights, images, labels, sizes, 1.0)
    torch.testing.assert_close(found, whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["logistic", "cnn"])
def test_plain_sums_are_added_to_what_is_there_and_scaled(name):
    model = build_model(name, SHAPE, 10)
    images, labels = batch(3, 6)
    weights, out = weights_of(model, 1), torch.ones(2, model.parameters)
    add_plain_sums(model, weights, ClientRecords(images, labels, [2, 4]), out, torch.tensor([2.0, 0.5]))
    each = per_example(model, weights[0], images, labels)
    expected = torch.stack([2.0 * each[:2].sum(0), 0.5 * each[2:].sum(0)])
    torch.testing.assert_close(out - 1, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("rows", [7, 300, 700])
def test_long_sums_stay_within_their_bound(name, rows):
    """float32 blocks and float64 totals against the sum of the same contributions in float64."""
    model = build_model(name, SHAPE, 10)
    images, labels = batch(4, rows)
    weights, clip = weights_of(model, 1), 0.05
    found = sums_of(model, weights, images, labels, clip).values[0]
    each = sums_of(model, weights, images, labels, clip, sizes=[1] * rows).values.double()
    assert float(each.norm(dim=1).max()) <= clip
    assert float((found.double() - each.sum(0)).norm()) <= sum_inflation(rows) / 2 * clip * rows
    assert found.dtype == (torch.float32 if rows <= 600 else torch.float64)


def test_large_samples_and_people_in_pieces_give_the_same_sums(monkeypatch):
    """Samples of more than a block are added in float64; people of a long client are never cut in two."""
    model = build_model("mlp", SHAPE, 10)
    images, labels = batch(6, 320)
    weights, clip = weights_of(model, 1), 0.05
    each = sums_of(model, weights, images, labels, clip, sizes=[1] * 320).values.double().sum(0)
    sampled = sums_of(model, weights, images, labels, clip, sample=Sample(0.9, [np.arange(320)])).values
    assert sampled.dtype == torch.float64
    torch.testing.assert_close(sampled[0], each, atol=1e-6, rtol=1e-5)
    persons = (torch.arange(320) // 7).clone()
    whole = sums_of(model, weights, images, labels, clip, persons=persons).values
    monkeypatch.setattr(clipping, "PASS_ROWS", 10)
    pieces = sums_of(model, weights, images, labels, clip, persons=persons).values
    torch.testing.assert_close(pieces, whole, atol=1e-6, rtol=1e-5)
    assert len(list(clipping._passes([320], 10, persons))) > 20


@pytest.mark.parametrize("people", [None, torch.arange(90) // 4])
@pytest.mark.parametrize("rate", [0.1, 0.9])  # tiles of 8 and of 16
def test_a_sample_in_tiles_is_the_sum_over_its_records(people, rate, monkeypatch):
    """Two clients, one of which drew nothing, and one whose records are drawn out of step."""
    monkeypatch.setattr(clipping, "_SMALL_SAMPLE", 40)
    model, (images, labels) = build_model("mlp", SHAPE, 10), batch(8, 95)
    weights, clip = weights_of(model, 1), 0.05
    drawn = np.flatnonzero(np.arange(90) % 7 < 4)
    for tile in (8, 16):
        rows, places = tiled(drawn, tile)
        assert rows.size % tile == 0
        assert (rows[places] == drawn).all()
        assert (places % tile == drawn % tile).all()
    persons = None if people is None else torch.cat([torch.full((5,), 100), people])
    sample = Sample(rate, [np.zeros(0, dtype=np.int64), drawn])
    found = sums_of(model, weights, images, labels, clip, sizes=[5, 90], persons=persons, sample=sample)
    mine = None if people is None else people[drawn]
    expected = sums_of(model, weights, images[5:][drawn], labels[5:][drawn], clip, persons=mine)
    assert not found.values[0].any()
    torch.testing.assert_close(found.values[1].double(), expected.values[0].double(), atol=1e-6, rtol=1e-5)
    assert tiled(np.zeros(0, dtype=np.int64))[0].size == 0


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_records_that_are_not_finite_count_as_zero_and_touch_nobody(name):
    model = build_model(name, SHAPE, 10)
    images, labels = batch(5, 40)
    weights = weights_of(model, 1)
    clean = sums_of(model, weights, images, labels, 1.0).values
    keep = torch.ones(40, 1, 1, 1)
    for bad in (float("nan"), float("inf"), 1e38):
        broken = images.clone()
        broken[7], broken[31] = bad, -bad
        found = sums_of(model, weights, broken, labels, 1.0).values
        assert torch.isfinite(found).all()
        if name == "mlp":  # what tanh bounds may be finite again
            keep[7] = keep[31] = 0
            without = sums_of(model, weights, images * keep, labels, 1.0, present=keep.flatten() > 0).values
            torch.testing.assert_close(found, without, atol=1e-5, rtol=0)
        assert not torch.allclose(found, clean)
        assert (broken[7] == bad).all() or bad != bad  # the client's own records are left alone


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_record_that_is_not_finite_is_a_blanked_one_to_the_last_bit(name):
    """In its own block and in all others, also where the client's records lie askew in memory."""
    shape = (1, 5, 7) if name == "mlp" else SHAPE
    model = build_model(name, shape, 10)
    images, labels = batch(7, 601, shape)
    images, labels, weights = images[1:], labels[1:], weights_of(model, 1)
    present = torch.ones(600, dtype=torch.bool)
    broken = torch.cat([images[:1], images])[1:]  # a view at the same offset
    broken[250], present[250] = float("nan"), False
    found = sums_of(model, weights, broken, labels, 0.3).values
    assert torch.equal(found, sums_of(model, weights, images, labels, 0.3, present=present).values)


def test_a_label_that_names_no_class_adds_nothing():
    model = build_model("mlp", SHAPE, 10)
    images, labels = batch(9, 20)
    present = torch.ones(20, dtype=torch.bool)
    wrong = labels.clone()
    wrong[3], wrong[8] = 10, -1
    present[3] = present[8] = False
    found = sums_of(model, weights_of(model, 1), images, wrong, 0.3).values
    expected = sums_of(model, weights_of(model, 1), images, labels, 0.3, present=present).values
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=0)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("width", [50, 784, 20_000])
def test_squared_norms_are_bounds_from_above(scale, width):
    """Also for rows of equal numbers, where a float32 sum stagnates."""
    torch.manual_seed(0)
    for rows in (torch.randn(20, width) * scale, torch.full((3, width), 0.1 * scale)):
        exact = rows.double().square().sum(1)
        bound = row_energy(rows)
        assert (bound >= exact).all()
        assert (bound <= exact * 1.003).all()
    assert torch.isinf(row_energy(torch.full((1, width), 1e20))).all()


def test_factors_are_rounded_down():
    torch.manual_seed(0)
    squared = torch.rand(10_000, dtype=torch.float64) * 100
    factor = clip_factors(squared, 1.3)
    assert factor.dtype == torch.float32
    assert (factor.double() * squared.sqrt() <= 1.3).all()
    assert (factor.double() * squared.sqrt() >= torch.minimum(squared.sqrt(), torch.tensor(1.3)) * (1 - 2e-6)).all()


def test_zero_gradient_is_not_scaled_up():
    assert clip_factors(torch.tensor([0.0, 4.0]), 1.0).tolist() == pytest.approx([1.0, 0.5], rel=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_norms_of_tokens_that_are_not_formed_are_bounds_from_above(scale):
    """Also where tokens cancel each other: of large products nothing but a small rest is left."""
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(20, 6, 300, generator=generator), torch.randn(20, 6, 200, generator=generator)
    left[:, 3:], right[:, 3:] = left[:, :3] * scale, -right[:, :3] / scale
    left[:, 5, 0] += 1e-3 * scale
    term = row_gradients.token_gradients(left, right, False)
    assert isinstance(term, row_gradients.TokenOuter)
    memo = row_gradients.Memo()
    memo.measure([term])
    squared, spread = term.squared_norms(memo)
    factor = clip_factors(squared, 0.01, spread)
    memo = row_gradients.Memo(factor)
    for row in range(20):
        exact = left[row].double().t() @ memo.scaled(right)[row].double()
        assert float(exact.norm()) <= 0.01
        pieces = left[row].double().norm(dim=1) * memo.scaled(right)[row].double().norm(dim=1)
        assert float(pieces.sum()) <= 64 * 0.01


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4, 1e38])
def test_slopes_without_a_graph_are_those_of_torch_bit_for_bit(scale):
    generator = torch.Generator().manual_seed(0)
    for rows, classes in ((1, 2), (7, 10), (600, 10), (33, 3)):
        outputs = scale * torch.randn(rows, classes, generator=generator)
        labels = torch.randint(-2, classes + 2, (rows,), generator=generator)  # some name no class
        if rows > 3:
            outputs[1] = torch.nan
            outputs[2, 0] = torch.inf
            outputs[3] = -torch.inf
        watched = outputs.clone().requires_grad_()
        (expected,) = torch.autograd.grad(cross_entropy(watched, labels).sum(), watched)
        found = cross_entropy_slopes(outputs, labels)
        assert found is not None
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.nan_to_num(), expected.nan_to_num())
        if rows == 600:
            # Broken on purpose: labels that name no class must have slopes of 0, not those of another class.
            broken = cross_entropy_slopes(outputs, labels.clamp(0, classes - 1))
            assert not torch.equal(broken.nan_to_num(), expected.nan_to_num())
    assert cross_entropy_slopes(outputs, labels.double()) is None
