"""Plain stacks of known layers. Such layers never mix records, so that no trial is needed.

`is_stack` decides whether a module is one. `run_stack` runs a stack of linear layers and activations forward and
backward without torch's graph, which for small models takes as long as the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from privmarket.training._layers import LinearMap, Run, Watched
from privmarket.training._losses import Loss, cross_entropy, cross_entropy_slopes, require_one_each

_ACTIVATIONS = (
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.Identity,
    nn.LeakyReLU,
    nn.LogSigmoid,
    nn.Mish,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Softsign,
    nn.Tanh,
)
_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.MaxPool1d, nn.MaxPool2d)
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.Dropout, nn.Embedding)


def is_stack(module: nn.Module) -> bool:
    """Whether a module is one known layer or a sequence of known layers, and nothing else.

    A sequence with a forward pass of its own, with hooks, with parametrisations or with additional parameters is
    not.
    """
    if _has_hooks(module):
        return False
    if type(module) is nn.Sequential:
        return not module._parameters and not module._buffers and all(is_stack(part) for part in module)
    if type(module) in _ACTIVATIONS:
        return not getattr(module, "inplace", False)
    if type(module) is nn.Flatten:
        return module.start_dim >= 1
    if type(module) is nn.Embedding:
        return module.max_norm is None and not module.scale_grad_by_freq
    if type(module) is nn.Dropout:
        return not module.inplace
    if type(module) in _POOLS:
        return not getattr(module, "return_indices", False)
    if type(module) in _LAYERS:
        return set(module._parameters) <= {"weight", "bias"} and not module._buffers
    return False


def _has_hooks(part: nn.Module) -> bool:
    """Whether hooks of the user run when the part runs."""
    hooks = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
    return any(hooks) or "forward" in vars(part)


def leaves(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of a plain stack, in the order in which they run."""
    if type(module) is nn.Sequential:
        for part in module:
            yield from leaves(part)
    else:
        yield module


def run_stack(
    layers: list[nn.Module], stand_ins: dict[int, Watched], run: Run, x: Tensor, y: Tensor, loss: Loss
) -> None:
    """Runs a stack whose trainable layers are all linear, and notes each record's gradients in `run`.

    Args:
        layers: as `leaves` gives them.
        stand_ins: for each trainable parameter, by its id.
        loss: one of the built-in losses.
    """
    steps: list[Callable[[Tensor], Tensor]] = []  # from the slope by a layer's output to that by its input
    rows = x
    begun = False
    fresh = False  # not needed elsewhere, so an activation may overwrite the rows
    with torch.no_grad():
        for layer in layers:
            if any(id(parameter) in stand_ins for parameter in layer._parameters.values()):
                assert isinstance(layer, nn.Linear)
                bias = None if layer.bias is None else stand_ins.get(id(layer.bias), layer.bias)
                own = LinearMap(run, stand_ins.get(id(layer.weight), layer.weight), bias)
                steps.append(partial(_through_linear, own, rows, begun))
                rows = own.forward(rows)
                begun = fresh = True
                continue
            if not begun:
                rows = layer(rows)
            elif type(layer) is nn.ReLU:
                rows = rows.relu_() if fresh else rows.relu()
                steps.append(partial(_through_relu, rows))
            elif type(layer) is nn.Tanh:
                rows = rows.tanh_() if fresh else rows.tanh()
                steps.append(partial(_through_tanh, rows))
            else:
                before = rows.detach().requires_grad_()
                with torch.enable_grad():
                    after = layer(before)
                steps.append(partial(_through_graph, before, after))
                rows = after.detach()
            fresh = False
        slope = cross_entropy_slopes(rows, y) if loss is cross_entropy else None
        if slope is None:
            outputs = rows.detach().requires_grad_()
            with torch.enable_grad():
                losses = loss(outputs, y)
                require_one_each(losses, run.rows)
                total = losses.sum()
            (slope,) = torch.autograd.grad(total, outputs)
        for step in reversed(steps):
            slope = step(slope)


def _through_linear(layer: LinearMap, rows: Tensor, needs_slope: bool, slope: Tensor) -> Tensor:
    slope = slope.contiguous()
    layer.note(rows, slope)
    return layer.back(slope) if needs_slope else slope  # the derivative by the records is not needed


def _through_relu(out: Tensor, slope: Tensor) -> Tensor:
    slope = slope.contiguous()  # made in this step, so it may be overwritten
    torch.ops.aten.threshold_backward.grad_input(slope, out, 0, grad_input=slope)
    return slope


def _through_tanh(out: Tensor, slope: Tensor) -> Tensor:
    slope = slope.contiguous()
    torch.ops.aten.tanh_backward.grad_input(slope, out, grad_input=slope)
    return slope


def _through_graph(before: Tensor, after: Tensor, slope: Tensor) -> Tensor:
    # The derivative of Σ after·slope. Passing the slope to torch directly would import modules for about a second.
    with torch.enable_grad():
        total = (after * slope).sum()
    return torch.autograd.grad(total, before)[0]
