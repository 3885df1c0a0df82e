"""Checks whether a module can be trained record by record; server and clients do so before the first round.

Clipping bounds what one record adds to a sum only if a record's output and gradient depend on that record alone. A
layer that normalises over the batch, or a forward pass that subtracts the batch's mean, breaks this silently: one
record then moves the clipped sum by tens of clip norms. Two checks are made:

- `layer_findings` names layers that are known to mix records, or that have no per-record gradients;
- `row_findings` runs the module on random numbers and watches: changing row i must leave every other row's output
  as it was, to the last bit; a row alone must give the output and gradient that it gives among others; and no call
  may leave a trace in the next one. The same in blocks of just the sizes in which training computes, where what
  the hooks hold for each record is compared with the gradient of that record alone. It is run with the weights
  that a server sent, too: what a forward pass does may depend on them. A module that mixes records only for inputs
  that random ones never reach is not caught.

Values of records are never used, only their shape and type, so that the answer tells nothing about them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privmarket.errors import PrivacyError
from privmarket.federated.record_gradients import BLOCK_ROWS, TILE_ROWS, Loss, block_gradients

_ROWS = 5
# Rounding differs between one row and several; a record that reads others differs by far more than this.
_TOLERANCE = 1e-3
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
    inputs: object = None,
    labels: object = None,
    *,
    loss: Loss | None = None,
    weights: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Refuses a module that cannot be trained record by record.

    Args:
        module: not changed.
        inputs, labels: records whose shape and type are taken; None looks at the layers only.
        loss: (outputs, labels) ↦ one loss per record; cross-entropy unless given.
        weights: trainable arrays by name, as a server sent them; tried beside the module's own and random ones.

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
    """As `require_per_record`, before anyone has records: tried on made-up inputs where their shape can be guessed.

    Raises:
        ModelError: the model mixes records.
    """
    require_per_record(module)
    if (inputs := plausible_inputs(module)) is not None:
        require_per_record(module, inputs, loss=_squares)


def _squares(outputs: Tensor, _: Tensor) -> Tensor:
    """The sum of each record's squared outputs: stands in where the model's own loss is not known."""
    return outputs.flatten(1).square().sum(1) if outputs.ndim > 1 else outputs.square()


def plausible_inputs(module: nn.Module) -> Tensor | None:
    """Two blank records that the module takes, guessed from its first layer with weights; None if no guess runs.

    For a server, which holds no records: a guess that fits lets it run the module before anybody sells.
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
    """What can be told from the layers alone, trainable or not, whatever mode they are in."""
    found = [finding for name, layer in module.named_modules() for finding in _layer_findings(module, name, layer)]
    trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not trainable:
        advice = "a layer whose parameters require gradients"
        found.append(Objection("the module", "has no trainable layer", advice))
    for name, parameter in trainable:
        if parameter.dtype != torch.float32:
            found.append(Objection(f"parameter {name}", f"holds {parameter.dtype}", "float32 parameters"))
    return found


def _layer_findings(module: nn.Module, name: str, layer: nn.Module) -> Iterator[Objection]:
    shown = f"layer {name or '(root)'} ({type(layer).__name__}{_inside(module, name)})"
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        yield Objection(
            shown,
            "normalises every record by the others of its batch, frozen or not: training sets it to train mode",
            f"GroupNorm({_groups(layer.num_features)}, {layer.num_features}), or fold frozen statistics into a "
            "fixed scale and shift",
        )
    elif isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
        yield Objection(shown, "keeps running statistics of all records", "track_running_stats=False")
    elif isinstance(layer, nn.RNNBase):
        kind = type(layer).__name__
        yield Objection(shown, "has no gradients record by record", f"opacus.layers.DP{kind} with batch_first=True")
    elif isinstance(layer, nn.MultiheadAttention):
        yield Objection(
            shown,
            "has no gradients record by record",
            "opacus.layers.DPMultiheadAttention with batch_first=True, in an encoder layer of your own",
        )
    elif isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        yield Objection(shown, "with max_norm rewrites weights while it reads records", "max_norm=None")
    elif isinstance(layer, torch.jit.ScriptModule):
        yield Objection(shown, "is compiled, so that no per-record gradients can be taken", "the plain module")
    if any(isinstance(p, nn.UninitializedParameter) for p in layer.parameters(recurse=False)):
        yield Objection(shown, "has no size before it sees a record", "the layer that is not lazy")


def _inside(module: nn.Module, name: str) -> str:
    """The outermost Transformer part around a layer, as users know it: " in encoder, TransformerEncoder"."""
    parts = name.split(".")
    for end in range(len(parts)):
        outer = module.get_submodule(".".join(parts[:end])) if end else module
        if type(outer).__name__.startswith("Transformer"):
            return f" in {'.'.join(parts[:end]) or '(root)'}, {type(outer).__name__}"
    return ""


def _groups(channels: int) -> int:
    """The largest number of groups up to 32 that divides the channels."""
    return max(n for n in range(1, min(32, channels) + 1) if channels % n == 0)


# --- rows ------------------------------------------------------------------------------------------------


def row_findings(
    module: nn.Module,
    inputs: object,
    labels: object = None,
    *,
    loss: Loss | None = None,
    weights: Mapping[str, np.ndarray] | None = None,
    random_weights: bool = True,
) -> list[Objection]:
    """What shows when the module runs on random numbers of the records' shape and type.

    With `weights` and without `random_weights` only the weights that were sent are tried: the quick form for every
    order after the first.
    """
    subject = copy.deepcopy(module)
    subject.train()
    with torch.random.fork_rng(devices=[]):
        generator = torch.Generator().manual_seed(_SEED)
        for scale in _weight_settings(subject, weights, random_weights, generator):
            try:
                found = _probe(subject, torch.as_tensor(inputs), labels, loss, scale, generator)
            except Exception as error:  # the module is the user's code and may raise anything
                why = f"fails on random records ({_first_line(error)})"
                found = [Objection("forward", why, "a module that fits the records")]
            if found:
                return found
    return []


def _weight_settings(
    subject: nn.Module, weights: Mapping[str, np.ndarray] | None, random: bool, generator: torch.Generator
) -> Iterator[float]:
    """Sets the weights to try, one after the other, and gives the scale of inputs that goes with each."""
    trainable = {name: p for name, p in subject.named_parameters() if p.requires_grad}
    if weights is not None:
        for name, parameter in trainable.items():
            sent = torch.from_numpy(np.array(weights[name], dtype=np.float32))
            parameter.data.copy_(sent.reshape(parameter.shape))
    yield 1.0
    for scale in (1.0, 30.0) if random else ():
        for parameter in trainable.values():
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 1
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / max(1, fan_in) ** 0.5)
        yield scale


def _probe(
    subject: nn.Module, like: Tensor, labels: object, loss: Loss | None, scale: float, generator: torch.Generator
) -> list[Objection]:
    x, other = (_random_rows(like, scale, generator) for _ in range(2))
    before = {name: buffer.clone() for name, buffer in subject.named_buffers()}
    out = _run(subject, x)
    if not isinstance(out, Tensor) or out.ndim < 1 or out.shape[0] != _ROWS:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        return [Objection("forward", f"gives {shape} for {_ROWS} records", "one row of output per record")]
    if not _same(_run(subject, x), out) or any(not _same(b, before[n]) for n, b in subject.named_buffers()):
        return [Objection("forward", "remembers earlier calls", "a forward pass without running state")]
    for row in range(_ROWS):
        changed = x.clone()
        changed[row] = other[row]
        rest = torch.arange(_ROWS) != row
        if not _same(_run(subject, changed)[rest], out[rest]):
            why = f"record {row} changes the output of other records"
            return [Objection("forward", why, "nothing that reads across the first axis, such as x.mean(0)")]
    found = _gradient_findings(subject, x, _random_labels(out, labels, generator), loss)
    for rows in (TILE_ROWS, BLOCK_ROWS):
        found = found or _block_findings(subject, like, labels, loss or _cross_entropy, scale, rows, generator)
    return found


def _block_findings(
    subject: nn.Module,
    like: Tensor,
    labels: object,
    loss: Loss,
    scale: float,
    rows: int,
    generator: torch.Generator,
) -> list[Objection]:
    """One block as training computes it: rows that keep to themselves, and what the hooks hold for some of them."""
    x, other = (_random_rows(like, scale, generator, rows) for _ in range(2))
    out = _run(subject, x)
    for row in (0, rows - 1):
        changed = x.clone()
        changed[row] = other[row]
        rest = torch.arange(rows) != row
        if not _same(_run(subject, changed)[rest], out[rest]):
            why = f"record {row} of {rows} changes the output of other records"
            return [Objection("forward", why, "nothing that reads across the first axis, such as x.mean(0)")]
    y = _random_labels(out, labels, generator)
    parameters = [p for p in subject.parameters() if p.requires_grad]
    advice = "layers that Opacus supports, with the records along the first axis of all that passes them"
    dropout = [part for part in subject.modules() if not any(True for _ in part.parameters(recurse=False))]
    for part in dropout:  # hooks need layers in training mode; what draws at random is switched off
        part.training = False
    try:
        held = block_gradients(subject, parameters, x, y, loss)
        for row in (0, rows // 2, rows - 1):
            one = slice(row, row + 1)
            alone = _gradients(loss(subject(x[one]), y[one])[0], parameters)
            if not _close(held[row], alone):
                what = f"gives record {row} of {rows} another gradient than its own"
                return [Objection("backward", what, advice)]
        return []
    except Exception as error:  # the module is the user's code and may raise anything
        return [Objection("backward", f"has no gradients record by record ({_first_line(error)})", advice)]
    finally:
        subject.train()


def _gradient_findings(subject: nn.Module, x: Tensor, y: Tensor, loss: Loss | None) -> list[Objection]:
    """Each record's loss and gradient among others, against those of the record alone."""
    measure = loss or _cross_entropy
    # With dropout a record alone draws another mask; then the comparison is made with dropout off.
    if not _same(_run(subject, x), _run(subject, x, seed=_SEED + 1)):
        subject.eval()
    try:
        together = measure(_run(subject, x), y)
        if together.shape != (_ROWS,):
            why = f"gives shape {tuple(together.shape)} for {_ROWS} records"
            return [Objection("loss", why, 'one loss per record, reduction="none"')]
        if not together.requires_grad:
            return [Objection("backward", "reaches no trainable layer", "a loss that depends on the weights")]
        parameters = [p for p in subject.parameters() if p.requires_grad]
        for row in range(_ROWS):
            one = slice(row, row + 1)
            alone = measure(_run(subject, x[one]), y[one])
            if not _close(alone, together[one]):
                why = "gives a record another loss alone than among others"
                return [Objection("forward", why, "nothing that reads the number of records")]
            if not _close(_gradients(together[row], parameters), _gradients(alone[0], parameters)):
                why = "gives a record another gradient alone than among others"
                return [Objection("backward", why, "no backward pass or hook that reads across records")]
        return []
    finally:
        subject.train()


def _gradients(loss: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    parts = [torch.zeros(p.numel()) if g is None else g.flatten() for g, p in zip(found, parameters, strict=True)]
    return torch.cat(parts)


def _run(subject: nn.Module, x: Tensor, seed: int = _SEED) -> Tensor:
    # Dropout draws the same masks every time. `torch.manual_seed` would seed other devices, too, and takes longer.
    torch.default_generator.manual_seed(seed)
    out: Tensor = subject(x)
    return out


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _random_rows(like: Tensor, scale: float, generator: torch.Generator, rows: int = _ROWS) -> Tensor:
    """(rows, ...) random numbers of the records' shape and type; whole ones are 0 and 1, which any table holds."""
    shape = (rows, *like.shape[1:])
    if like.dtype.is_floating_point:
        return (torch.randn(shape, generator=generator) * scale).to(like.dtype)
    return torch.randint(0, 2, shape, generator=generator).to(like.dtype)


def _random_labels(out: Tensor, labels: object, generator: torch.Generator) -> Tensor:
    if labels is None:
        classes = out.shape[1] if out.ndim > 1 else 1
        return torch.randint(0, classes, (out.shape[0], *out.shape[2:]), generator=generator)
    return _random_rows(torch.as_tensor(labels), 1.0, generator, out.shape[0])


def _same(one: Tensor, other: Tensor) -> bool:
    return bool(torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)))


def _close(one: Tensor, other: Tensor) -> bool:
    a, b = torch.nan_to_num(one.detach()), torch.nan_to_num(other.detach())
    size = max(float(a.abs().max()), float(b.abs().max()), 1e-6)
    return float((a - b).abs().max()) <= _TOLERANCE * size


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels, reduction="none")
