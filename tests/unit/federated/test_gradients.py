"""Clipped sums against two independent computations: torch.func, and Opacus' default and ghost modes."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from privmarket.federated import gradients
from privmarket.federated.gradients import Batch, add_plain_sums, clip_factors, clipped_sums, gradient_sums, tiled
from privmarket.federated.layers import Convolution, Linear, MaxPool, Relu, Tanh, row_energy
from privmarket.federated.models import build_model, cnn, logistic, mlp
from privmarket.privacy.release import sum_inflation

SHAPE = (3, 8, 8)


def reference(model, flat):
    """The same network in torch.nn, with the same weights."""
    modules, at = [], 0
    for layer in model.layers:
        part = flat[at : at + layer.size]
        at += layer.size
        if isinstance(layer, Linear):
            module = nn.Linear(layer.inputs, layer.outputs)
            cut = layer.inputs * layer.outputs
            module.weight.data = part[:cut].view(layer.inputs, layer.outputs).t().clone()
            module.bias.data = part[cut:].clone()
        elif isinstance(layer, Convolution):
            module = nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, padding=layer.kernel // 2)
            cut = layer.outputs * layer.fan_in
            module.weight.data = part[:cut].view_as(module.weight).clone()
            module.bias.data = part[cut:].clone()
        elif isinstance(layer, Relu):
            module = nn.ReLU()
        elif isinstance(layer, Tanh):
            module = nn.Tanh()
        elif isinstance(layer, MaxPool):
            module = nn.MaxPool2d(2)
        else:
            module = nn.Flatten()
        modules.append(module)
    return nn.Sequential(*modules)


def flat_like(model, net, gradients_by_name):
    """torch.nn's gradients in our order and layout: (rows, parameters)."""
    parts = []
    for i, layer in enumerate(model.layers):
        if layer.size:
            weight, bias = gradients_by_name[f"{i}.weight"], gradients_by_name[f"{i}.bias"]
            parts += [(weight.transpose(1, 2) if isinstance(layer, Linear) else weight).flatten(1), bias]
    return torch.cat(parts, dim=1)


def per_example(model, flat, images, labels):
    """(rows, parameters) gradients by torch.func."""
    net = reference(model, flat)
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def loss(p, image, label):
        return nn.functional.cross_entropy(functional_call(net, p, (image[None],)), label[None])

    return flat_like(model, net, vmap(grad(loss), (None, 0, 0))(parameters, images, labels))


def batch(seed, rows, shape=SHAPE):
    torch.manual_seed(seed)
    return torch.randn(rows, *shape), torch.randint(0, 10, (rows,))


def weights_of(model, copies):
    return torch.stack([model.initial_weights(np.random.default_rng(i)) * 2 for i in range(copies)])


@pytest.mark.parametrize("model", [mlp(SHAPE, 10), cnn(SHAPE, 10), logistic(SHAPE, 10)], ids=lambda m: m.name)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("clip_norm", [0.5, 3.0, None])
def test_sums_equal_torch_func(model, shared, clip_norm):
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
            each = each * (clip_norm / each.norm(dim=1, keepdim=True)).clamp(max=1.0)
        # clipping stays below C by what float32 norms may be off, a few parts in 10,000 for wide layers
        torch.testing.assert_close(found[client], each.sum(0), atol=3e-5, rtol=5e-4)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_sums_equal_opacus(mode):
    from opacus.grad_sample import GradSampleModule
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping,
    )

    model = mlp(SHAPE, 10)
    images, labels = batch(1, 23)
    weights = weights_of(model, 1)
    found = gradient_sums(model, weights, images.clone(), labels, [23], 0.8)[0]
    net = reference(model, weights[0])
    if mode == "hooks":
        wrapped = GradSampleModule(net)
        nn.functional.cross_entropy(wrapped(images), labels, reduction="sum").backward()
        each = flat_like(model, net, {n: p.grad_sample for n, p in net.named_parameters()})
        expected = (each * (0.8 / each.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(0)
    else:
        wrapped = GradSampleModuleFastGradientClipping(
            net, max_grad_norm=0.8, use_ghost_clipping=True, loss_reduction="sum"
        )
        losses = nn.functional.cross_entropy(wrapped(images), labels, reduction="none")
        losses.sum().backward(retain_graph=True)
        factors = wrapped.get_clipping_coef()
        net.zero_grad()
        wrapped.disable_hooks()
        (factors * losses).sum().backward()
        expected = flat_like(model, net, {n: p.grad[None] for n, p in net.named_parameters()})[0]
    torch.testing.assert_close(found, expected.detach(), atol=1e-5, rtol=1e-4)


def test_no_record_counts_for_more_than_the_clip_norm():
    model = cnn(SHAPE, 10)
    weights = weights_of(model, 1) * 3
    for i in range(20):
        images, labels = batch(i, 1)
        norm = float(gradient_sums(model, weights, images, labels, [1], 0.01)[0].double().norm())
        assert norm <= 0.01


def test_blocks_do_not_change_the_sums(monkeypatch):
    model = mlp(SHAPE, 10)
    images, labels = batch(2, 50)
    weights, sizes = weights_of(model, 4), [13, 1, 0, 36]
    whole = gradient_sums(model, weights, images, labels, sizes, 1.0)
    monkeypatch.setattr(gradients, "BLOCK_ROWS", 7)
    found = gradient_sums(model, weights, images, labels, sizes, 1.0)
    torch.testing.assert_close(found, whole, atol=1e-5, rtol=0)


def test_plain_sums_are_added_to_what_is_there_and_scaled():
    model = logistic(SHAPE, 10)
    images, labels = batch(3, 6)
    weights, out = weights_of(model, 1), torch.ones(2, model.parameters)
    rows = Batch(images, labels, [2, 4])
    add_plain_sums(model, model.parts(weights), rows, model.parts(out), torch.tensor([2.0, 0.5]))
    expected = gradient_sums(model, weights, images, labels, [2, 4], None) * torch.tensor([[2.0], [0.5]])
    torch.testing.assert_close(out - 1, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("model", [mlp(SHAPE, 10), cnn(SHAPE, 10)], ids=lambda m: m.name)
@pytest.mark.parametrize("rows", [7, 500, 1300])
def test_long_sums_stay_within_their_bound(model, rows):
    """float32 blocks and float64 totals against the sum of the same contributions in float64."""
    images, labels = batch(4, rows)
    weights = weights_of(model, 1)
    parts, clip = model.parts(weights), 0.05
    found = clipped_sums(model, parts, Batch(images, labels, [rows]), clip)[0]
    each = torch.cat([clipped_sums(model, parts, Batch(images, labels, [1] * rows), clip)], dim=0).double()
    assert float(each.norm(dim=1).max()) <= clip
    assert float((found.double() - each.sum(0)).norm()) <= sum_inflation(rows) / 2 * clip * rows
    assert found.dtype == (torch.float32 if rows <= 600 else torch.float64)


def test_large_samples_and_people_in_pieces_give_the_same_sums(monkeypatch):
    """Samples of more than a block are added in float64; people of a long client are never cut in two."""
    model = mlp(SHAPE, 10)
    images, labels = batch(6, 320)
    parts, clip = model.parts(weights_of(model, 1)), 0.05
    each = clipped_sums(model, parts, Batch(images, labels, [1] * 320), clip).double().sum(0)
    places = torch.arange(320)
    sampled = clipped_sums(model, parts, Batch(images, labels, [320], places=places, drawn=[320]), clip)
    assert sampled.dtype == torch.float64
    torch.testing.assert_close(sampled[0], each, atol=1e-6, rtol=1e-5)
    persons = (torch.arange(320) // 7).clone()
    whole = clipped_sums(model, parts, Batch(images, labels, [320], persons=persons), clip)
    monkeypatch.setattr(gradients, "BLOCK_ROWS", 10)
    pieces = clipped_sums(model, parts, Batch(images, labels, [320], persons=persons), clip)
    torch.testing.assert_close(pieces, whole, atol=1e-6, rtol=1e-5)
    assert len(list(gradients._passes(Batch(images, labels, [320], persons=persons)))) > 20


@pytest.mark.parametrize("people", [None, torch.arange(90) // 4])
def test_a_sample_in_tiles_is_the_sum_over_its_records(people):
    """Two clients, one of which drew nothing, and one whose records are drawn out of step."""
    model, (images, labels) = mlp(SHAPE, 10), batch(8, 90)
    parts, clip = model.parts(weights_of(model, 1)), 0.05
    drawn = np.flatnonzero(np.arange(90) % 7 < 4)
    rows, places = tiled(drawn)
    assert rows.size % 16 == 0
    assert (rows[places] == drawn).all()
    assert (places % 16 == drawn % 16).all()
    persons = None if people is None else people[drawn]
    layout = Batch(
        images[rows], labels[rows], [0, rows.size], None, persons, torch.from_numpy(places), [0, drawn.size]
    )
    plain = Batch(images[drawn], labels[drawn], [0, drawn.size], persons=persons)
    found, expected = (clipped_sums(model, parts, one, clip).double() for one in (layout, plain))
    assert not found[0].any()
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert tiled(np.zeros(0, dtype=np.int64))[0].size == 0


def test_records_that_are_not_finite_count_as_zero_and_touch_nobody():
    model = mlp(SHAPE, 10)
    images, labels = batch(5, 40)
    weights = weights_of(model, 1)
    clean = clipped_sums(model, model.parts(weights), Batch(images, labels, [40]), 1.0)
    keep = torch.ones(40, 1, 1, 1)
    for bad in (float("nan"), float("inf"), 1e38):
        broken = images.clone()
        broken[7], broken[31] = bad, -bad
        found = clipped_sums(model, model.parts(weights), Batch(broken, labels, [40]), 1.0)
        assert torch.isfinite(found).all()
        keep[7] = keep[31] = 0
        without = clipped_sums(
            model, model.parts(weights), Batch(images * keep, labels, [40], present=keep.flatten() > 0), 1.0
        )
        torch.testing.assert_close(found, without, atol=1e-5, rtol=0)
        assert not torch.allclose(found, clean)
        assert (broken[7] == bad).all() or bad != bad  # the client's own records are left alone


@pytest.mark.parametrize("model", [mlp((1, 5, 7), 10), cnn(SHAPE, 10)], ids=lambda m: m.name)
def test_a_record_that_is_not_finite_is_a_blanked_one_to_the_last_bit(model):
    """In its own block and in all others, also where the client's records lie askew in memory."""
    shape = (1, 5, 7) if model.name == "mlp" else SHAPE
    images, labels = batch(7, 601, shape)
    images, labels, parts = images[1:], labels[1:], model.parts(weights_of(model, 1))
    present = torch.ones(600, dtype=torch.bool)
    broken = torch.cat([images[:1], images])[1:]  # a view at the same offset
    broken[250], present[250] = float("nan"), False
    found = clipped_sums(model, parts, Batch(broken, labels, [600]), 0.3)
    assert torch.equal(found, clipped_sums(model, parts, Batch(images, labels, [600], present), 0.3))


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
    squared = torch.rand(10_000, dtype=torch.float64) * 100
    factor = clip_factors(squared, 1.3)
    assert factor.dtype == torch.float32
    assert (factor.double() * squared.sqrt() <= 1.3).all()
    assert (factor.double() * squared.sqrt() >= torch.minimum(squared.sqrt(), torch.tensor(1.3)) * (1 - 2e-6)).all()


def test_zero_gradient_is_not_scaled_up():
    assert clip_factors(torch.tensor([0.0, 4.0]), 1.0).tolist() == pytest.approx([1.0, 0.5], rel=1e-5)


def test_known_model_sizes():
    assert build_model("mlp", (1, 28, 28), 10).parameters == 784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10
    assert build_model("logistic", (1, 8, 8), 10).parameters == 650
