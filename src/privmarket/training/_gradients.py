"""Per-record gradients: how a module is differentiated, and the passes that do it.

The method is chosen once per module (`method_for`), by a trial on random records of the same shape, so that the
choice reveals nothing about the records:

- `stack`: a plain stack of layers that keep records apart, with linear maps of vectors. Rows of many clients pass
  in one go, with the weights that they share or each client with its own.
- `rules`: the rules of `_layers`, in blocks of one client's rows.
- `vmap`: `torch.func`, record by record, in the same blocks; for operations without a rule.
- `loop`: one record after the other; for modules that `torch.func` cannot differentiate.

In the trial each record's gradient must be the one of torch's ordinary backward pass; otherwise the next method is
tried.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from privmarket.privacy._release import BLOCK_RECORDS
from privmarket.training._arithmetic import TILE_ROWS, conventional_products
from privmarket.training._layers import NotTold, Run, Slot, watching
from privmarket.training._losses import LOSSES, require_one_each
from privmarket.training._model import PrivateModel
from privmarket.training._row_gradients import Direct, Formed, Outer, RowGradients, TokenOuter
from privmarket.training._stacks import is_stack, run_stack

_LOG = logging.getLogger(__name__)  # the client's own

# Modules other than plain stacks are computed in blocks of these sizes only, which `_check` tries: whole blocks,
# and tiles for samples and for the remaining rows.
BLOCK_ROWS = BLOCK_RECORDS
# Per-record gradients that are formed may take this much memory; above it, tiles are used instead of blocks.
_FORMED_BYTES = 1 << 29
_TRIAL_ROWS = (3, 7)
_TRIAL_SEED = 20260714
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Method:
    """How a module is differentiated on records of one shape.

    Attributes:
        kind: `stack`, `rules`, `vmap` or `loop`, see above.
        whole: it is a plain stack with one of the built-in losses, which never mix records, for any number of rows.
        random: a forward pass draws random numbers, such as masks of dropout.
        formed: how many numbers of each record's gradient are formed.
        even: the widths of all linear layers are even, so that small tiles begin at multiples of 64 bytes.
    """

    kind: str
    whole: bool = False
    random: bool = False
    formed: int = 0
    even: bool = False

    @property
    def block_rows(self) -> int:
        """How many rows of a client are computed at once."""
        return BLOCK_ROWS if 4 * self.formed * BLOCK_ROWS <= _FORMED_BYTES else TILE_ROWS


def method_for(model: PrivateModel, inputs: Tensor, labels: Tensor) -> Method:
    """How this module is differentiated on records of this shape and type, chosen by a trial on random records."""
    key = (inputs.shape[1:], inputs.dtype, labels.shape[1:], labels.dtype, _modes(model))
    found = model._methods.get(key)
    if not isinstance(found, Method):
        with torch.random.fork_rng(devices=[]), conventional_products():
            found = _trial(model, inputs, labels)
        model._methods[key] = found
    return found


def _modes(model: PrivateModel) -> tuple[bool, ...]:
    """Which parts of the module are in training mode; the method may depend on it."""
    return tuple([part.training for part in model._parts])


def _trial(model: PrivateModel, inputs: Tensor, labels: Tensor) -> Method:
    """Tries the rules, then `torch.func`, on a few random records; each must give a record's own gradient."""
    generator = torch.Generator().manual_seed(_TRIAL_SEED)
    whole = is_stack(model.module) and model.loss in LOSSES
    weights = model.built_weights()
    random = False
    told = not any(isinstance(part, nn.RNNBase | nn.MultiheadAttention) for part in model.module.modules())
    gradients: dict[int, RowGradients] = {}
    for rows in _TRIAL_ROWS:
        x = random_records(inputs, rows, generator)
        before = torch.get_rng_state()
        try:
            with torch.no_grad():
                out = functional_call(model.module, model.named(weights), (x.clone(),))
        except Exception:  # the module is the user's code and may raise anything
            random = True
            continue
        random = random or not torch.equal(before, torch.get_rng_state())
        y = random_labels(out, labels, generator)
        if not told:
            continue
        try:
            gradients = _run(model, weights[None], x, y, [rows]).gradients()
        except NotTold as reason:
            _LOG.info("%s: gradients record by record, since %s", model.name, reason)
            told = False
        except Exception:  # as above; it would also fail record by record
            continue
        else:
            if not whole and not random and not _agrees(model, weights, gradients, x, y):
                _LOG.warning("%s: gradients record by record, since a rule gives others than torch", model.name)
                told = False
    if told:
        formed = sum(_formed_size(gradient, model.slots[slot]) for slot, gradient in gradients.items())
        simple = bool(gradients) and all(isinstance(gradient, Outer | Direct) for gradient in gradients.values())
        widths = [
            gradient.left.shape[1] % 2 + gradient.right.shape[1] % 2
            for gradient in gradients.values()
            if isinstance(gradient, Outer)
        ]
        kind = "stack" if whole and simple and not random else "rules"
        return Method(kind, whole, random, formed, not any(widths))
    try:
        x = random_records(inputs, _TRIAL_ROWS[0], generator)
        out = functional_call(model.module, model.named(weights), (x.clone(),))
        y = random_labels(out, labels, generator)
        gradients = _vmapped(model, weights, x, y)
        if random or _agrees(model, weights, gradients, x, y):
            return Method("vmap", random=random, formed=model.parameters)
    except Exception as reason:  # as above
        why = str(reason).splitlines()
        _LOG.info("%s: gradients one record after the other, since %s", model.name, why[0] if why else type(reason))
    return Method("loop", random=random, formed=model.parameters)


def _formed_size(gradient: RowGradients, slot: Slot) -> int:
    return 0 if isinstance(gradient, Outer | Direct | TokenOuter) else slot.size


def _agrees(model: PrivateModel, weights: Tensor, gradients: dict[int, RowGradients], x: Tensor, y: Tensor) -> bool:
    """Whether the gradient computed for each record equals that of torch's ordinary backward pass."""
    found = formed_gradients(model, gradients, x.shape[0])
    for row in range(x.shape[0]):
        alone = _alone(model, weights, x[row : row + 1], y[row : row + 1])
        if not close(found[row], alone):
            return False
    return True


def close(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal up to rounding; mixing records makes a far larger difference."""
    a = torch.nan_to_num(one.detach())
    b = torch.nan_to_num(other.detach())
    size = max(float(a.abs().max()), float(b.abs().max()), 1e-6)
    return float((a - b).abs().max()) <= _TOLERANCE * size


def random_records(like: Tensor, rows: int, generator: torch.Generator, scale: float = 1.0) -> Tensor:
    """(rows, ...) random numbers of the records' shape and type; whole numbers are 0 or 1, valid in every table."""
    shape = (rows, *like.shape[1:])
    if like.dtype.is_floating_point:
        return (torch.randn(shape, generator=generator) * scale).to(like.dtype)
    return torch.randint(0, 2, shape, generator=generator).to(like.dtype)


def random_labels(outputs: Tensor, labels: Tensor | None, generator: torch.Generator) -> Tensor:
    """Random labels for these outputs, of the shape and type of `labels`; classes if there are none.

    Numbers are between 0 and 1, which every loss accepts.
    """
    if labels is None:
        classes = outputs.shape[1] if outputs.ndim > 1 else 1
        return torch.randint(0, classes, (outputs.shape[0], *outputs.shape[2:]), generator=generator)
    shape = (outputs.shape[0], *labels.shape[1:])
    if labels.dtype.is_floating_point:
        return torch.rand(shape, generator=generator).to(labels.dtype)
    return torch.randint(0, 2, shape, generator=generator).to(labels.dtype)


# --- gradients of the rows of one pass -------------------------------------------------------------------


def _run(
    model: PrivateModel, weights: Tensor, x: Tensor, y: Tensor, sizes: list[int], copies: list[int] | None = None
) -> Run:
    """One forward and one backward pass through the rules; see `Run` for the arguments.

    Raises:
                    NotTold: a parameter is used in a way that no rule knows, or rows are not records.
    """
    run = Run(model.slots, weights, x.shape[0], sizes, copies)
    with watching(model._stand_ins, model._owners, run), torch.enable_grad():
        losses = model.loss(model.module(x), y)
        require_one_each(losses, x.shape[0])
        if losses.requires_grad:
            torch.autograd.grad(losses.sum(), run.anchor, allow_unused=True)
    return run


def stack_pass(
    model: PrivateModel, weights: Tensor, x: Tensor, y: Tensor, sizes: list[int], copies: list[int] | None = None
) -> Run:
    """The same for a plain stack of linear layers, without torch's graph."""
    run = Run(model.slots, weights, x.shape[0], sizes, copies)
    for one in model._stand_ins:
        one.run = run
    try:
        run_stack(model._leaves, model._watched, run, x, y, model.loss)
    finally:
        for one in model._stand_ins:
            del one.run
    return run


def _vmapped(model: PrivateModel, weights: Tensor, x: Tensor, y: Tensor) -> dict[int, RowGradients]:
    """Each record's gradient by `torch.func`: the module sees one record at a time, so it cannot mix records."""

    def loss(flat: Tensor, one: Tensor, label: Tensor) -> Tensor:
        losses = model.loss(functional_call(model.module, model.named(flat), (one[None],)), label[None])
        require_one_each(losses, 1)
        return losses[0]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)
        each: Tensor = vmap(grad(loss), (None, 0, 0), randomness="different")(weights, x, y)
    return _by_slot(model, each)


def _by_slot(model: PrivateModel, rows: Tensor) -> dict[int, RowGradients]:
    """(rows, parameters) → the part of each parameter, views."""
    return {number: Formed(rows[:, slot.start : slot.stop]) for number, slot in enumerate(model.slots)}


def _alone(model: PrivateModel, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """(parameters,) the gradient of one record by torch's ordinary backward pass; x and y have one row."""
    flat = weights.clone().requires_grad_()
    with torch.enable_grad():
        losses = model.loss(functional_call(model.module, model.named(flat), (x,)), y)
        require_one_each(losses, 1)
        if not losses.requires_grad:
            return torch.zeros_like(weights)
        (found,) = torch.autograd.grad(losses.sum(), flat, allow_unused=True)
    return torch.zeros_like(weights) if found is None else found


def formed_gradients(model: PrivateModel, gradients: dict[int, RowGradients], rows: int) -> Tensor:
    """(rows, parameters) each record's gradient, formed; zeros for parameters that nothing used."""
    whole = torch.zeros(rows, model.parameters)
    for number, gradient in gradients.items():
        slot = model.slots[number]
        whole[:, slot.start : slot.stop] = gradient.formed()
    return whole


def block_terms(
    model: PrivateModel, method: Method, weights: Tensor, x: Tensor, y: Tensor, seed: int
) -> dict[int, RowGradients]:
    """The terms of the rows of one block at weights (parameters,); masks follow from the seed."""
    torch.default_generator.manual_seed(seed % 2**63)
    if method.kind == "vmap":
        return _vmapped(model, weights, x, y)
    if method.kind == "loop":
        each = torch.empty(x.shape[0], model.parameters)
        for row in range(x.shape[0]):
            torch.default_generator.manual_seed((seed + row) % 2**63)
            each[row] = _alone(model, weights, x[row : row + 1], y[row : row + 1])
        return _by_slot(model, each)
    return _run(model, weights[None], x, y, [x.shape[0]]).gradients()


def guarded_gradients(
    model: PrivateModel, method: Method, weights: Tensor, x: Tensor, y: Tensor, seed: int
) -> tuple[dict[int, RowGradients], Tensor | None]:
    """`block_terms`, and which rows raise errors by themselves; those contribute nothing.

    Each try fills the block with copies of the row that is tried. Filling it with something else could raise an
    error that the row itself does not. A row that failed alone is not tried again.
    """
    try:
        return block_terms(model, method, weights, x, y, seed), None
    except Exception as error:  # the module is the user's code and may raise anything
        _LOG.warning("records that raise errors add nothing: %s: %s", type(error).__name__, error)
    rows = x.shape[0]
    failing = torch.zeros(rows, dtype=torch.bool)

    def attempt(chosen: Tensor) -> dict[int, RowGradients] | None:
        block = chosen[:1].repeat(rows)
        block[chosen] = chosen
        try:
            return block_terms(model, method, weights, x[block], y[block], seed)
        except Exception:  # as above
            return None

    def search(chosen: Tensor) -> None:
        if chosen.numel() == 1:
            failing[chosen] = attempt(chosen) is None
            return
        half = chosen.numel() // 2
        for part in (chosen[:half], chosen[half:]):
            if part.numel() == 1 or attempt(part) is None:
                search(part)

    search(torch.arange(rows))
    left = torch.nonzero(~failing).flatten()
    gradients = attempt(left) if left.numel() else None
    if gradients is None:
        return {}, torch.ones(rows, dtype=torch.bool)
    return gradients, failing
