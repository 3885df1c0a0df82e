"""Which torch modules our own clipped-gradient code can train: a layer it knows, or a plain stack of them.

Those run several times faster than per-example gradients by hooks; every other module takes the general path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from privmarket.federated.layers import Convolution, Flatten, Layer, Linear, MaxPool, Relu, Tanh
from privmarket.federated.models import Model
from privmarket.flower.wire import Arrays


@dataclass(frozen=True, eq=False)
class FastModel:
    """A module's layers in our form, and the way between its named arrays and our flat weights.

    Attributes:
        names: per layer with weights, the names of its matrix or kernel and of its bias in the module.
    """

    model: Model
    names: tuple[tuple[str, str], ...]

    def pack(self, arrays: Arrays) -> Tensor:
        """(parameters,) our flat weights. A torch matrix is (outputs, inputs), ours (inputs, outputs)."""
        parts = [np.concatenate([_turned(arrays[w]).ravel(), arrays[b].ravel()]) for w, b in self.names]
        return torch.from_numpy(np.concatenate(parts).astype(np.float32, copy=False))

    def unpack(self, flat: Tensor) -> Arrays:
        """The module's named arrays from our flat weights."""
        with_weights = [layer for layer in self.model.layers if layer.size]
        arrays: Arrays = {}
        start = 0
        for layer, (weight, bias) in zip(with_weights, self.names, strict=True):
            matrix, offset = layer.views(flat[start : start + layer.size])[:2]
            arrays[weight] = np.ascontiguousarray(_turned(matrix.numpy()))
            arrays[bias] = offset.numpy().copy()
            start += layer.size
        return arrays


def fast_model(module: nn.Module) -> FastModel | None:
    """The module in our form; None where it is more than one trainable layer that we know, or a stack of them."""
    if not all(p.requires_grad and p.dtype == torch.float32 for p in module.parameters()):
        return None
    parts = module.named_children() if isinstance(module, nn.Sequential) else [("", module)]
    layers: list[Layer] = []
    names: list[tuple[str, str]] = []
    for name, part in parts:
        layer = _layer(part)
        if layer is None:
            return None
        layers.append(layer)
        if layer.size:
            prefix = f"{name}." if name else ""
            names.append((f"{prefix}weight", f"{prefix}bias"))
    if not names or not isinstance(layers[-1], Linear):
        return None
    # Our activations work in place: on the input itself they would change the client's records.
    if isinstance(next(layer for layer in layers if not isinstance(layer, Flatten)), (Relu, Tanh)):
        return None
    return FastModel(Model("module", tuple(layers)), tuple(names))


def _layer(part: nn.Module) -> Layer | None:
    """Our layer for a torch module; None if there is none that does exactly the same."""
    if type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1):
        return Flatten()
    if type(part) is nn.ReLU:
        return Relu()
    if type(part) is nn.Tanh:
        return Tanh()
    if type(part) is nn.Linear and part.bias is not None:
        return Linear(part.in_features, part.out_features)
    if type(part) is nn.MaxPool2d:
        same = (_both(part.kernel_size), _both(part.stride), _both(part.padding), _both(part.dilation))
        plain = not part.ceil_mode and not part.return_indices
        return MaxPool() if same == (2, 2, 0, 1) and plain else None
    if type(part) is nn.Conv2d:
        size = part.kernel_size[0]
        square = part.kernel_size == (size, size) and size % 2 == 1 and part.padding in ("same", (size // 2,) * 2)
        simple = part.stride == (1, 1) and part.dilation == (1, 1) and part.groups == 1 and part.bias is not None
        plain = square and simple and part.padding_mode == "zeros"
        return Convolution(part.in_channels, part.out_channels, size) if plain else None
    return None


def _both(value: object) -> object:
    """2 for (2, 2) and for 2."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value


def _turned(array: np.ndarray) -> np.ndarray:
    """A matrix turned; a kernel as it is."""
    return array.T if array.ndim == 2 else array
