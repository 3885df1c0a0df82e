"""Which torch modules our own clipped-gradient code can train: a layer it knows, or a plain stack of them.

Those run several times faster than per-example gradients by hooks; every other module takes the general path.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from privmarket.federated.layers import Convolution, Flatten, Layer, Linear, MaxPool, Relu, Tanh
from privmarket.federated.local import ClientRecords
from privmarket.federated.models import Model
from privmarket.flower.wire import Arrays

_LOG = logging.getLogger(__name__)


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
        """Splits our flat weights, (parameters,), into the module's named arrays."""
        with_weights = [part for (part,) in self.model.parts(flat[None]) if part]
        arrays: Arrays = {}
        for (matrix, offset, _), (weight, bias) in zip(with_weights, self.names, strict=True):
            arrays[weight] = np.ascontiguousarray(_turned(matrix.numpy()))
            arrays[bias] = offset.numpy().copy()
        return arrays

    def usable(self, records: ClientRecords) -> ClientRecords:
        """The records in float32; one whose label names no class becomes one that is not finite and adds nothing.

        An error would tell the buyer that there is such a record; the client's own log tells its owner.
        """
        last = self.model.layers[-1]
        assert isinstance(last, Linear)
        wrong = (records.labels < 0) | (records.labels >= last.outputs)
        images = records.images.float()
        if bool(wrong.any()):
            _LOG.warning("%d records whose labels name no class add nothing", int(wrong.sum()))
            images = images.clone()
            images[wrong] = torch.nan
            records = replace(records, labels=records.labels.masked_fill(wrong, 0))
        return replace(records, images=images)


def fast_model(module: nn.Module) -> FastModel | None:
    """The module in our form; None where it is more than one trainable layer that we know, or a stack of them.

    A stack with a forward pass of its own, with hooks, with one layer in two places, with two activations in a row,
    or with parameters that the layers do not have by themselves is more than that.
    """
    stack = list(module.named_children()) if type(module) is nn.Sequential else [("", module)]
    if type(module) is nn.Sequential and len(stack) != len(module):
        return None
    layers: list[Layer] = []
    names: list[tuple[str, str]] = []
    for name, part in stack:
        layer = None if _has_hooks(part) else _layer(part)
        if layer is None:
            return None
        layers.append(layer)
        if layer.size:
            prefix = f"{name}." if name else ""
            names.append((f"{prefix}weight", f"{prefix}bias"))
    # All there is must be trained, and nothing twice: tied weights have one name.
    own = {n for n, p in module.named_parameters() if p.requires_grad and p.dtype == torch.float32}
    if not names or _has_hooks(module) or own != {one for pair in names for one in pair}:
        return None
    if len(own) != len(list(module.parameters())) or not isinstance(layers[-1], Linear):
        return None
    # Our activations work in place: on the input itself they would change the client's records, one after another
    # what the first kept for its derivative.
    in_place = [isinstance(layer, (Relu, Tanh)) for layer in layers if not isinstance(layer, Flatten)]
    if in_place[0] or any(one and other for one, other in pairwise(in_place)):
        return None
    return FastModel(Model("module", tuple(layers)), tuple(names))


def _has_hooks(part: nn.Module) -> bool:
    """Whether something of the owner's runs when the part does."""
    hooks = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
    return any(hooks) or "forward" in vars(part)


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
    """The number that both entries of a pair have, e.g. 2 for (2, 2); anything else as it is."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value


def _turned(array: np.ndarray) -> np.ndarray:
    """A matrix transposed; a convolution's kernel as it is."""
    return array.T if array.ndim == 2 else array
