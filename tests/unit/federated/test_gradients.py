"""Clipped sums against two independent computations: torch.func, and Opacus' default and ghost modes."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from privmarket.federated import gradients
from privmarket.federated.gradients import add_gradient_sums, clip_factors, gradient_sums
from privmarket.federated.layers import Convolution, Linear, MaxPool, Relu, Tanh
from privmarket.federated.models import build_model, cnn, logistic, mlp

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
        torch.testing.assert_close(found[client], each.sum(0), atol=1e-5, rtol=1e-5)


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


def test_sums_are_added_to_what_is_there_and_scaled():
    model = logistic(SHAPE, 10)
    images, labels = batch(3, 6)
    weights, out = weights_of(model, 1), torch.ones(2, model.parameters)
    add_gradient_sums(
        model, model.parts(weights), images, labels, [2, 4], 1.0, model.parts(out), torch.tensor([2.0, 0.5])
    )
    expected = gradient_sums(model, weights, images, labels, [2, 4], 1.0) * torch.tensor([[2.0], [0.5]])
    torch.testing.assert_close(out - 1, expected, atol=1e-5, rtol=0)


def test_zero_gradient_is_not_scaled_up():
    assert clip_factors(torch.tensor([0.0, 4.0]), 1.0).tolist() == pytest.approx([1.0, 0.5], rel=1e-5)


def test_known_model_sizes():
    assert build_model("mlp", (1, 28, 28), 10).parameters == 784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10
    assert build_model("logistic", (1, 8, 8), 10).parameters == 650
