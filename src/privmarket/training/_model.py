"""A torch module whose trainable weights are one flat vector, and a loss with one value for each record.

The flat float32 vector is what clients send and servers add. It holds the parameters that require a gradient, in
the module's order; frozen parameters are neither sent nor sold. Matrices of linear layers lie in it as (inputs,
outputs).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.func import functional_call

from privmarket.errors import PrivacyError
from privmarket.training._layers import Slot, stand_in
from privmarket.training._losses import Loss, cross_entropy
from privmarket.training._stacks import is_stack, leaves

Column = Tensor | ArrayLike
"""Inputs or labels, one value or row per record: a tensor, an array, or a list."""
Arrays = Mapping[str, np.ndarray]
"""Parameters by name, in the module's shapes."""


class PrivateModel:
    """Any torch module with a loss. Its trainable weights are passed in as a flat vector, which clients train.

    >>> model = PrivateModel(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)))
    >>> model.parameters
    7850

    Args:
        module: its parameters with `requires_grad` are trained. The module keeps the weights that it was built with
            until `load` is called.
        loss: one value per record; cross-entropy unless given.
        name: used in messages.

    Attributes:
        module, loss, name: as given.
        slots: where each trainable parameter lies in the flat vector.
        parameters: the length of the flat vector.
    """

    def __init__(self, module: nn.Module, loss: Loss | None = None, *, name: str = "module") -> None:
        self.module = module
        self.loss: Loss = loss or cross_entropy
        self.name = name
        self.slots, self._owners = _slots(module)
        self.parameters = self.slots[-1].stop if self.slots else 0
        self._parts = list(module.modules())
        self._stand_ins = [
            stand_in(number, places[0][0]._parameters[places[0][1]])  # type: ignore[arg-type]
            for number, places in enumerate(self._owners)
        ]
        self._watched = {
            id(places[0][0]._parameters[places[0][1]]): one
            for one, places in zip(self._stand_ins, self._owners, strict=True)
        }
        self._leaves = list(leaves(module)) if is_stack(module) else []
        self._methods: dict[object, object] = {}  # by shape of records, see `_gradients.method_for`

    def built_weights(self) -> Tensor:
        """(parameters,) the weights that the module holds itself."""
        flat = torch.empty(self.parameters)
        with torch.no_grad():
            for slot, places in zip(self.slots, self._owners, strict=True):
                owner, name = places[0]
                slot.of(flat).copy_(owner._parameters[name])  # type: ignore[arg-type]
        return flat

    def initial_weights(self, rng: np.random.Generator) -> Tensor:
        """(parameters,) random initial weights.

        Weights and biases of linear layers and convolutions are drawn from `rng`, uniform within ±1/√fan-in, the
        usual initialisation. All others are as the module was built: norms at 1 and 0, embeddings as torch drew
        them.
        """
        flat = self.built_weights()
        for slot in self.slots:
            if slot.fan_in:
                drawn = rng.uniform(-1.0, 1.0, slot.size) / math.sqrt(slot.fan_in)
                flat[slot.start : slot.stop] = torch.from_numpy(drawn.astype(np.float32))
        return flat

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """(..., parameters) → each trainable parameter by name in the module's shape, views of the vector."""
        return {slot.name: slot.of(flat) for slot in self.slots}

    def arrays(self, flat: Tensor) -> dict[str, np.ndarray]:
        """(parameters,) → the same as contiguous NumPy arrays, the form in which weights are sent."""
        return {name: part.contiguous().numpy().copy() for name, part in self.named(flat).items()}

    def flat(self, arrays: Arrays) -> Tensor:
        """Named arrays, as `arrays` gives them, → (parameters,) float32.

        Raises:
            PrivacyError: the names or shapes are those of another model.
        """
        own = {slot.name: slot.shape for slot in self.slots}
        if set(own) != set(arrays):
            raise PrivacyError(
                f"weights for {sorted(arrays)[:4]} and a module with {sorted(own)[:4]}",
                "server and client must build the same model",
            )
        flat = torch.empty(self.parameters)
        for slot in self.slots:
            given = np.asarray(arrays[slot.name], dtype=np.float32)
            if given.size != slot.size:
                raise PrivacyError(
                    f"weights of shape {given.shape} for {slot.name} of shape {slot.shape}",
                    "server and client must build the same model",
                )
            slot.of(flat).copy_(torch.from_numpy(np.array(given)).reshape(slot.shape))
        return flat

    def load(self, flat: Tensor) -> nn.Module:
        """Copies the weights into the module's own parameters, and returns the module."""
        with torch.no_grad():
            for slot, places in zip(self.slots, self._owners, strict=True):
                owner, name = places[0]
                owner._parameters[name].copy_(slot.of(flat))  # type: ignore[union-attr]
        return self.module

    def state_dict(self, flat: Tensor) -> dict[str, Tensor]:
        """The module's whole state with these weights, frozen parameters and buffers included."""
        state = {name: value.detach().clone() for name, value in self.module.state_dict().items()}
        for slot, places in zip(self.slots, self._owners, strict=True):
            for name, parameter in self.module.named_parameters(remove_duplicate=False):
                if any(owner._parameters[key] is parameter for owner, key in places) and name in state:
                    state[name] = slot.of(flat).contiguous().clone()
        return state

    def outputs(self, flat: Tensor, inputs: Tensor, block_rows: int = 1000) -> Tensor:
        """(rows, ...) the module's outputs for records under these weights, in eval mode, block by block."""
        weights = self.named(flat)
        with torch.no_grad(), _eval_mode(self.module):
            if not inputs.shape[0]:
                return functional_call(self.module, weights, (inputs,))  # type: ignore[no-any-return]
            blocks = [
                functional_call(self.module, weights, (inputs[start : start + block_rows],))
                for start in range(0, inputs.shape[0], block_rows)
            ]
        return torch.cat(blocks)

    def predict(self, flat: Tensor, inputs: Tensor, block_rows: int = 1000) -> Tensor:
        """(rows,) the most likely class of each record under weights (parameters,)."""
        return self.outputs(flat, inputs, block_rows).argmax(1)

    def accuracy(self, flat: Tensor, inputs: Tensor, labels: Tensor) -> float:
        """Share of records whose most likely class is their label."""
        return float((self.predict(flat, inputs) == labels).double().mean())

    def losses(self, flat: Tensor, inputs: Tensor, labels: Tensor, block_rows: int = 1000) -> Tensor:
        """(rows,) the loss of each record under weights (parameters,), in eval mode."""
        found = self.outputs(flat, inputs, block_rows)
        with torch.no_grad():
            return self.loss(found, labels)


def usable_inputs(module: nn.Module, inputs: Column) -> Tensor:
    """Records in the type that a module needs: float32, or whole numbers if the module may look them up in a table.

    Whole numbers, such as pixels of one byte, become float32 if the module is a plain stack without a table.
    """
    x = torch.as_tensor(inputs)
    if x.dtype == torch.float32:
        return x
    looks_up = any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in module.modules())
    if x.dtype.is_floating_point or (is_stack(module) and not looks_up):
        return x.float()
    return x


def _slots(module: nn.Module) -> tuple[list[Slot], list[list[tuple[nn.Module, str]]]]:
    """Each trainable parameter once, under its first name, and all places in the module where it is used."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    names: dict[int, tuple[str, nn.Parameter]] = {}
    for prefix, owner in module.named_modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None and parameter.requires_grad:
                places.setdefault(id(parameter), []).append((owner, name))
                names.setdefault(id(parameter), (f"{prefix}.{name}" if prefix else name, parameter))
    slots: list[Slot] = []
    start = 0
    for key, (name, parameter) in names.items():
        if isinstance(parameter, nn.UninitializedParameter):
            raise PrivacyError(
                f"parameter {name} has no size before it sees a record", "use the layer that is not lazy"
            )
        owners = places[key]
        turned = parameter.ndim == 2 and all(isinstance(o, nn.Linear) and n == "weight" for o, n in owners)
        slots.append(Slot(name, tuple(parameter.shape), start, turned, _fan_in(owners[0][0])))
        start = slots[-1].stop
    return slots, list(places.values())


def _fan_in(owner: nn.Module) -> int:
    """The number of inputs of each output; 0 for layers that keep torch's initial weights."""
    if isinstance(owner, nn.Linear):
        return owner.in_features
    if isinstance(owner, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return math.prod(owner.weight.shape[1:])
    return 0


@contextmanager
def _eval_mode(module: nn.Module) -> Iterator[None]:
    """A context with the module in eval mode; afterwards each part is in the mode it was in before."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
