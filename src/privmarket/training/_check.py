"""Checks whether a module can be trained record by record; server and clients do so before the first round.

Clipping bounds what one record adds to a sum only if a record's output and gradient depend on that record alone. A
layer that normalises over the batch, or a forward pass that subtracts the batch's mean, breaks this silently: one
record then moves the clipped sum by tens of clip norms. Two checks are made:

- `layer_findings` names layers that are known to mix records;
- `row_findings` runs the module on random numbers. Changing row i must not change any bit of another row's output;
  a row alone must give the output and gradient that it gives among others; and no call may influence the next one.
  The same is tried in blocks of the sizes that training uses, in which the gradient that the engine computes for
  each record is compared with the gradient of that record alone. It is also run with the weights that a server
  sent, since a forward pass may depend on them. A module that mixes records only for inputs that random numbers
  never reach is not detected.

A plain stack of known layers (`_stacks`) with one of the built-in losses is tried for its input and output shapes
only: such layers never mix records.

Only the shape and type of records are used, never their values, so the answer reveals nothing about them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from privmarket.errors import PrivacyError
from privmarket.training._arithmetic import TILE_ROWS, conventional_products
from privmarket.training._gradients import (
    block_terms,
    close,
    formed_gradients,
    method_for,
    random_labels,
    random_records,
)
from privmarket.training._losses import LOSSES, Loss
from privmarket.training._model import Column, PrivateModel
from privmarket.training._stacks import is_stack

_ROWS = 5
_SEED = 20260714


class ModelError(PrivacyError):
    """A module that cannot be trained record by record. Nothing was reserved, nothing released."""

    code = "bad-model"


@dataclass(frozen=True)
class Objection:
    """One reason against a module.

    Attributes:
        layer: where: the layer's name in the module and its class, or "forward", "backward", "loss".
        why: what it does.
        instead: what to use.
    """

    layer: str
    why: str
    instead: str


def require_per_record(
    module: nn.Module,
    inputs: Column | None = None,
    labels: Column | None = None,
    *,
    loss: Loss | None = None,
    weights: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Refuses a module that cannot be trained record by record.

    Args:
        module: not changed.
        inputs, labels: records, of which the shape and type are used; with None only the layers are checked.
        loss: (outputs, labels) ↦ one loss per record; cross-entropy unless given.
        weights: trainable arrays by name, as a server sent them; tried in addition to the module's own and random
            ones.

    Raises:
        ModelError: names the first layer, why, and what to use instead.
    """
    found = layer_findings(module)
    if not found and inputs is not None:
        found = row_findings(module, inputs, labels, loss=loss, weights=weights)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ModelError(f"{found[0].layer}: {found[0].why}{more}", f"use {found[0].instead}")


def require_supported(module: nn.Module) -> None:
    """`require_per_record` without records: the module is run on made-up inputs if their shape can be guessed.

    Raises:
        ModelError: the model mixes records.
    """
    require_per_record(module)
    if is_stack(module):
        return
    inputs = plausible_inputs(module)
    if inputs is not None:
        require_per_record(module, inputs, loss=_squares)


def _squares(outputs: Tensor, _: Tensor) -> Tensor:
    """The sum of each record's squared outputs; used if the model's own loss is not known."""
    return outputs.flatten(1).square().sum(1) if outputs.ndim > 1 else outputs.square()


def plausible_inputs(module: nn.Module) -> Tensor | None:
    """Two blank records that the module accepts, guessed from its first layer with weights; None if no guess runs.

    A server holds no records. With a guess it can try the module before anybody sells.
    """
    first = next((m for m in module.modules() if any(True for _ in m.parameters(recurse=False))), None)
    guesses: list[Tensor] = []
    if isinstance(first, nn.Linear):
        guesses = [torch.zeros(2, first.in_features)]
        side = round(first.in_features**0.5)
        if side * side == first.in_features:
            guesses.append(torch.zeros(2, 1, side, side))
    elif isinstance(first, nn.Conv2d):
        guesses = [torch.zeros(2, first.in_channels, side, side) for side in (28, 32, 8, 16, 64, 96, 224)]
    elif isinstance(first, nn.Embedding):
        guesses = [torch.zeros(2, length, dtype=torch.int64) for length in (16, 1)]
    subject = copy.deepcopy(module).eval() if guesses else module
    for guess in guesses:
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                out = subject(guess)
        except Exception:  # the module is the user's code and may raise anything; the inputs were only a guess
            continue
        if isinstance(out, Tensor) and out.ndim > 0 and out.shape[0] == 2:
            return guess
    return None


# --- layers ----------------------------------------------------------------------------------------------


def layer_findings(module: nn.Module) -> list[Objection]:
    """Objections that follow from the layers alone, trainable or not, in either mode."""
    found = [finding for name, layer in module.named_modules() for finding in _layer_findings(name, layer)]
    trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not trainable:
        advice = "a layer whose parameters require gradients"
        found.append(Objection("the module", "has no trainable layer", advice))
    for name, parameter in trainable:
        if parameter.dtype != torch.float32:
            found.append(Objection(f"parameter {name}", f"holds {parameter.dtype}", "float32 parameters"))
    return found


def _layer_findings(name: str, layer: nn.Module) -> Iterator[Objection]:
    shown = f"layer {name or '(root)'} ({type(layer).__name__})"
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        yield Objection(
            shown,
            "normalises every record by the others of its batch, frozen or not: training sets it to train mode",
            f"GroupNorm({_groups(layer.num_features)}, {layer.num_features}), or fold frozen statistics into a "
            "fixed scale and shift",
        )
    elif isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
        yield Objection(shown, "keeps running statistics of all records", "track_running_stats=False")
    elif isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        yield Objection(shown, "with max_norm rewrites weights while it reads records", "max_norm=None")
    elif isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.scale_grad_by_freq:
        yield Objection(
            shown, "divides gradients by how often other records name a line", "scale_grad_by_freq=False"
        )
    elif isinstance(layer, torch.jit.ScriptModule):
        yield Objection(shown, "is compiled, so that no per-record gradients can be taken", "the plain module")
    if any(isinstance(p, nn.UninitializedParameter) for p in layer.parameters(recurse=False)):
        yield Objection(shown, "has no size before it sees a record", "the layer that is not lazy")


def _groups(channels: int) -> int:
    """The largest number of groups up to 32 that divides the channels."""
    return max(n for n in range(1, min(32, channels) + 1) if channels % n == 0)


# --- rows ------------------------------------------------------------------------------------------------


def row_findings(
    module: nn.Module,
    inputs: Column,
    labels: Column | None = None,
    *,
    loss: Loss | None = None,
    weights: Mapping[str, np.ndarray] | None = None,
    random_weights: bool = True,
) -> list[Objection]:
    """Objections from running the module on random numbers of the records' shape and type.

    With `weights` and without `random_weights` only the weights that were sent are tried: the quick form for every
    order after the first.
    """
    subject = copy.deepcopy(module)
    subject.train()
    model = PrivateModel(subject, loss)
    like = torch.as_tensor(inputs)
    targets = None if labels is None else torch.as_tensor(labels)
    simple = is_stack(module) and model.loss in LOSSES
    with torch.random.fork_rng(devices=[]), conventional_products():
        generator = torch.Generator().manual_seed(_SEED)
        for scale in _weight_settings(model, weights, random_weights and not simple, generator):
            try:
                if simple:
                    found = _shape_findings(model, like, targets, generator)
                else:
                    found = _probe(model, like, targets, scale, generator)
            except Exception as error:  # the module is the user's code and may raise anything
                why = f"fails on random records ({_first_line(error)})"
                found = [Objection("forward", why, "a module that fits the records")]
            if found:
                return found
    return []


def _weight_settings(
    model: PrivateModel, weights: Mapping[str, np.ndarray] | None, random: bool, generator: torch.Generator
) -> Iterator[float]:
    """Sets the weights to try, one after the other, and gives the scale of inputs that goes with each."""
    if weights is not None:
        model.load(model.flat(weights))
    yield 1.0
    for scale in (1.0, 30.0) if random else ():
        drawn = torch.randn(model.parameters, generator=generator)
        for slot in model.slots:
            fan_in = max(1, int(np.prod(slot.shape[1:])) if len(slot.shape) > 1 else 1)
            slot.of(drawn).div_(fan_in**0.5)
        model.load(drawn)
        yield scale


def _shape_findings(
    model: PrivateModel, like: Tensor, labels: Tensor | None, generator: torch.Generator
) -> list[Objection]:
    """Whether a plain stack accepts such records, and gives one row and one loss for each."""
    out = _run(model, random_records(like, _ROWS, generator))
    return _output_findings(out) or _loss_findings(model.loss(out, random_labels(out, labels, generator)))


def _probe(
    model: PrivateModel, like: Tensor, labels: Tensor | None, scale: float, generator: torch.Generator
) -> list[Objection]:
    subject = model.module
    x = random_records(like, _ROWS, generator, scale)
    before = {name: buffer.clone() for name, buffer in subject.named_buffers()}
    out = _run(model, x)
    found = _output_findings(out)
    if found:
        return found
    if not _same(_run(model, x), out) or any(not _same(b, before[n]) for n, b in subject.named_buffers()):
        return [Objection("forward", "remembers earlier calls", "a forward pass without running state")]
    found = _mixing_findings(model, x, random_records(like, _ROWS, generator, scale), range(_ROWS))
    found = found or _gradient_findings(model, x, random_labels(out, labels, generator))
    if found:
        return found
    block = method_for(model, like, random_labels(out, labels, generator)).block_rows
    for rows in sorted({TILE_ROWS, block}):
        found = found or _block_findings(model, like, labels, scale, rows, generator)
    return found


def _output_findings(out: object) -> list[Objection]:
    if isinstance(out, Tensor) and out.ndim >= 1 and out.shape[0] == _ROWS:
        return []
    shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
    return [Objection("forward", f"gives {shape} for {_ROWS} records", "one row of output per record")]


def _loss_findings(losses: object) -> list[Objection]:
    if not isinstance(losses, Tensor) or losses.shape != (_ROWS,):
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        why = f"gives shape {shape} for {_ROWS} records"
        return [Objection("loss", why, 'one loss per record, reduction="none"')]
    if not losses.requires_grad:
        return [Objection("backward", "reaches no trainable layer", "a loss that depends on the weights")]
    return []


def _mixing_findings(
    model: PrivateModel, x: Tensor, other: Tensor, tried: range | tuple[int, ...]
) -> list[Objection]:
    """Replaces each of the tried rows by another one: the outputs of all other rows must not change."""
    out = _run(model, x)
    for row in tried:
        changed = x.clone()
        changed[row] = other[row]
        rest = torch.arange(x.shape[0]) != row
        if not _same(_run(model, changed)[rest], out[rest]):
            why = f"record {row} of {x.shape[0]} changes the output of other records"
            return [Objection("forward", why, "nothing that reads across the first axis, such as x.mean(0)")]
    return []


def _gradient_findings(model: PrivateModel, x: Tensor, y: Tensor) -> list[Objection]:
    """Compares each record's loss and gradient among others with those of the record alone."""
    with _without_chance(model, x):
        together = model.loss(_run(model, x), y)
        found = _loss_findings(together)
        if found:
            return found
        for row in range(_ROWS):
            one = slice(row, row + 1)
            alone = model.loss(_run(model, x[one]), y[one])
            if not close(alone, together[one]):
                why = "gives a record another loss alone than among others"
                return [Objection("forward", why, "nothing that reads the number of records")]
            if not close(_gradients(together[row], model), _gradients(alone[0], model)):
                why = "gives a record another gradient alone than among others"
                return [Objection("backward", why, "no backward pass or hook that reads across records")]
    return []


def _block_findings(
    model: PrivateModel,
    like: Tensor,
    labels: Tensor | None,
    scale: float,
    rows: int,
    generator: torch.Generator,
) -> list[Objection]:
    """Tries one block as training computes it: whether rows mix, and whether the engine's gradients are right."""
    x = random_records(like, rows, generator, scale)
    other = random_records(like, rows, generator, scale)
    found = _mixing_findings(model, x, other, (0, rows - 1))
    if found:
        return found
    y = random_labels(_run(model, x), labels, generator)
    with _without_chance(model, x):
        method = method_for(model, x, y)
        try:
            noted = formed_gradients(model, block_terms(model, method, model.built_weights(), x, y, _SEED), rows)
        except Exception as error:  # the module is the user's code and may raise anything
            why = f"has no gradients record by record ({_first_line(error)})"
            return [Objection("backward", why, "layers whose records stand along the first axis")]
        for row in (0, rows // 2, rows - 1):
            one = slice(row, row + 1)
            losses = model.loss(_run(model, x[one]), y[one])
            if not close(noted[row], _gradients(losses[0], model)):
                what = f"gives record {row} of {rows} another gradient than its own"
                return [Objection("backward", what, "layers whose records stand along the first axis")]
    return []


class _without_chance:
    """Puts a module that draws random numbers into eval mode: a record's mask may depend on the other records."""

    def __init__(self, model: PrivateModel, x: Tensor) -> None:
        self.model = model
        self.random = not _same(_run(model, x), _run(model, x, seed=_SEED + 1))

    def __enter__(self) -> None:
        if self.random:
            self.model.module.eval()

    def __exit__(self, *_: object) -> None:
        self.model.module.train()


def _gradients(loss: Tensor, model: PrivateModel) -> Tensor:
    """(parameters,) the gradient of one record's loss by torch alone, in the order of the flat vector."""
    own = [places[0][0]._parameters[places[0][1]] for places in model._owners]
    found = torch.autograd.grad(loss, own, retain_graph=True, allow_unused=True)  # type: ignore[arg-type]
    flat = torch.zeros(model.parameters)
    for slot, gradient in zip(model.slots, found, strict=True):
        if gradient is not None:
            slot.of(flat).copy_(gradient)
    return flat


def _run(model: PrivateModel, x: Tensor, seed: int = _SEED) -> Tensor:
    # Dropout draws the same masks every time. `torch.manual_seed` would seed other devices, too, and takes longer.
    torch.default_generator.manual_seed(seed)
    out: Tensor = model.module(x)
    return out


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _same(one: Tensor, other: Tensor) -> bool:
    return bool(torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)))
