"""Per-record gradients of a torch module from one forward and one backward pass: a rule for each kind of layer.

While a module runs, a `Watched` tensor replaces each trainable parameter. An operation on one is looked up in
`_RULES`, at the end of this file: linear maps, convolutions, embeddings, scale and shift (which covers the affine
part of all norms, and bare parameters that are added or multiplied). Its rule computes the output and keeps the
input. In the backward pass it receives the derivative of the loss by the output, called the slope, and records
`RowGradients`; gradients summed over records are never formed. Any other operation on a parameter raises `NotTold`:
the records' shares in its gradient cannot be separated, and the module is differentiated record by record instead
(`_gradients`).

To add one: `add_rule`, or a line in that table; see docs/how-to/your-own-layer.md.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privmarket.errors import ConfigurationError
from privmarket.training._row_gradients import (
    ARENA,
    CACHE_BYTES,
    Direct,
    Formed,
    Lookup,
    Outer,
    RowGradients,
    merged,
    token_gradients,
)


class NotTold(Exception):
    """A parameter is used in a way in which the records' shares in its gradient cannot be separated."""


@dataclass(frozen=True)
class Slot:
    """The place of one trainable parameter in the flat vector.

    Attributes:
        name: in the module.
        shape: in the module.
        start: its first place in the flat vector.
        turned: a matrix of linear layers, which lies as (inputs, outputs); torch's own is (outputs, inputs).
        fan_in: how many numbers an output of its layer is made of, for linear layers and convolutions; else 0.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    turned: bool = False
    fan_in: int = 0

    @property
    def size(self) -> int:
        """The number of its entries."""
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        """One past its last place in the flat vector."""
        return self.start + self.size

    def of(self, flat: Tensor) -> Tensor:
        """(..., parameters) → (..., *shape): the parameter in the module's shape, a view."""
        part = flat[..., self.start : self.stop]
        if self.turned:
            outputs, inputs = self.shape
            return part.view(*part.shape[:-1], inputs, outputs).mT
        return part.view(*part.shape[:-1], *self.shape)

    def stored(self, flat: Tensor) -> Tensor:
        """(..., parameters) → (..., a, b) or (..., n): the parameter as it is stored there, a view."""
        part = flat[..., self.start : self.stop]
        if self.turned:
            outputs, inputs = self.shape
            return part.view(*part.shape[:-1], inputs, outputs)
        return part


# --- a pass ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Run:
    """The weights and the records of a pass, and the terms it recorded, which are valid until the next pass begins.

    Attributes:
        weights: (copies, parameters).
        rows: how many records there are.
        sizes: the rows of each piece; a piece is computed by one product.
        copies: which copy of the weights each piece uses; the first and only one unless given.
        anchor: a tensor that requires a gradient, so that torch keeps a graph although no weight does.
        uses: by slot, the recorded terms.
    """

    slots: Sequence[Slot]
    weights: Tensor
    rows: int
    sizes: list[int]
    copies: list[int] | None = None
    anchor: Tensor = field(default_factory=lambda: torch.zeros((), requires_grad=True))
    uses: dict[int, list[RowGradients]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ARENA.begin()

    def stored(self, slot: int) -> list[Tensor]:
        """The parameter as it is stored in the flat vector, for each piece of the rows."""
        views = self.slots[slot].stored(self.weights).unbind(0)
        if self.copies is None:
            return [views[0]] * len(self.sizes)
        return [views[copy] for copy in self.copies]

    def note(self, slot: int, gradient: RowGradients) -> None:
        """Records the term of one use of a trainable parameter."""
        self.uses.setdefault(slot, []).append(gradient)

    def require_rows(self, tensor: Tensor, least_dims: int = 1) -> None:
        """Refuses a tensor that does not have the records along its first axis."""
        if isinstance(tensor, Watched) or tensor.ndim < least_dims or tensor.shape[0] != self.rows:
            raise NotTold(f"a layer meets {tuple(tensor.shape)} where {self.rows} records pass")

    def gradients(self) -> dict[int, RowGradients]:
        """By slot, all uses of a parameter as one."""
        return {slot: merged(gradients) for slot, gradients in sorted(self.uses.items())}


class Watched(Tensor):
    """Replaces a trainable parameter while a module runs, so that each operation on it goes through a rule."""

    slot: int
    run: Run

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Applies the rule of an operation, lets shapes and types be read, and refuses the rest."""
        rule = _RULES.get(func)
        if rule is not None:
            return rule(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _HARMLESS or func in _READABLE:
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        raise NotTold(f"a trainable parameter is used by {getattr(func, '__name__', func)}")


_READABLE = {
    getattr(Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "layout", "is_cuda", "requires_grad", "is_nested", "is_sparse")
} | {getattr(Tensor, name).__get__ for name in ("is_leaf", "grad", "is_mkldnn", "is_quantized")}
_HARMLESS = {"size", "dim", "numel", "nelement", "element_size", "is_floating_point", "is_complex", "__len__"}


def stand_in(slot: int, parameter: Tensor) -> Watched:
    """The tensor that replaces a parameter in a module; only its shape and type are used, not its numbers."""
    made: Watched = Tensor._make_subclass(Watched, parameter.detach())
    made.slot = slot
    return made


@contextmanager
def watching(
    stand_ins: Sequence[Watched], owners: Sequence[Sequence[tuple[nn.Module, str]]], run: Run
) -> Iterator[None]:
    """Puts the stand-ins into the module for one pass, and the parameters back afterwards."""
    before = [places[0][0]._parameters[places[0][1]] for places in owners]
    try:
        for one, places in zip(stand_ins, owners, strict=True):
            one.run = run
            for owner, name in places:
                owner._parameters[name] = one  # type: ignore[assignment]
        yield
    finally:
        for one, parameter, places in zip(stand_ins, before, owners, strict=True):
            del one.run  # and with it what the pass kept
            for owner, name in places:
                owner._parameters[name] = parameter


def _slot_of(tensor: Tensor | None) -> int | None:
    return tensor.slot if isinstance(tensor, Watched) else None


def _run_of(*tensors: Tensor | None) -> Run:
    return next(tensor.run for tensor in tensors if isinstance(tensor, Watched))


def _plain(tensor: Tensor) -> Tensor:
    """The numbers of a parameter, watched or not, outside any graph."""
    if isinstance(tensor, Watched):
        return tensor.run.slots[tensor.slot].of(tensor.run.weights[0])
    return tensor.detach()


# --- linear maps -----------------------------------------------------------------------------------------


class LinearMap:
    """x ↦ x·Wᵀ + b for (rows, ..., inputs) in one pass: forward, backward, and the terms that it records.

    Each piece of the rows uses its own copy of the weights.
    """

    def __init__(self, run: Run, weight: Tensor, bias: Tensor | None) -> None:
        self.run = run
        self.matrices = _copies(run, weight)
        self.offsets = None if bias is None else _copies(run, bias)
        self.weight_slot = _slot_of(weight)
        self.bias_slot = _slot_of(bias)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, ..., inputs) → (rows, ..., outputs)."""
        flat = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
        if len(self.matrices) == 1:
            if self.offsets is None:
                out = flat @ self.matrices[0]
            else:
                out = torch.addmm(self.offsets[0], flat, self.matrices[0])
        else:
            out = flat.new_empty(flat.shape[0], self.matrices[0].shape[1])
            sizes = self._sizes(flat)
            pieces = zip(flat.split_with_sizes(sizes), out.split_with_sizes(sizes), self.matrices, strict=True)
            if self.offsets is None:
                for mine, target, matrix in pieces:
                    torch.mm(mine, matrix, out=target)
            else:
                for (mine, target, matrix), offset in zip(pieces, self.offsets, strict=True):
                    torch.addmm(offset, mine, matrix, out=target)
        return out if x.ndim == 2 else out.view(*x.shape[:-1], -1)

    def note(self, x: Tensor, slope: Tensor) -> None:
        """Records the terms of matrix and bias, from the input and the slope by the output."""
        run = self.run
        if x.ndim > 2:
            x = x.reshape(run.rows, -1, x.shape[-1])
            slope = slope.view(run.rows, -1, slope.shape[-1])
        vectors = x.ndim == 2
        if self.weight_slot is not None:
            turned = run.slots[self.weight_slot].turned
            left = x if turned else slope
            right = slope if turned else x
            make: Callable[..., RowGradients] = Outer if vectors else token_gradients
            run.note(self.weight_slot, make(left, right, not turned))
        if self.bias_slot is not None:
            run.note(self.bias_slot, Direct(slope) if vectors else Formed(slope.sum(1)))

    def back(self, slope: Tensor) -> Tensor:
        """(rows, ..., outputs) the slope by the output → (rows, ..., inputs) the slope by the input."""
        flat = slope if slope.ndim == 2 else slope.view(-1, slope.shape[-1])
        if len(self.matrices) == 1:
            back = flat @ self.matrices[0].t()
        else:
            back = flat.new_empty(flat.shape[0], self.matrices[0].shape[0])
            sizes = self._sizes(flat)
            turned = {id(matrix): matrix.t() for matrix in self.matrices}
            for mine, target, matrix in zip(
                flat.split_with_sizes(sizes), back.split_with_sizes(sizes), self.matrices, strict=True
            ):
                torch.mm(mine, turned[id(matrix)], out=target)
        return back if slope.ndim == 2 else back.view(*slope.shape[:-1], -1)

    def _sizes(self, flat: Tensor) -> list[int]:
        per_record = flat.shape[0] // self.run.rows
        return self.run.sizes if per_record == 1 else [size * per_record for size in self.run.sizes]


class _Linear(torch.autograd.Function):
    """`LinearMap` as a node of torch's graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: LinearMap) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        return layer.forward(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        slope = slope.contiguous()
        ctx.layer.note(ctx.saved_tensors[0].detach(), slope)
        return ctx.layer.back(slope) if ctx.needs_input_grad[0] else None, None, None


def _copies(run: Run, parameter: Tensor) -> list[Tensor]:
    """Each copy of a matrix as (inputs, outputs), or of a bias; a frozen parameter has one for all."""
    slot = _slot_of(parameter)
    if slot is None:
        plain = parameter.detach()
        return [plain.t() if plain.ndim == 2 else plain] * len(run.sizes)
    stored = run.stored(slot)
    shape = run.slots[slot].shape
    if len(shape) == 2 and not run.slots[slot].turned:
        return [one.view(shape).t() for one in stored]
    return stored


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    run = _run_of(weight, bias)
    run.require_rows(input, 2)
    result: Tensor = _Linear.apply(input, run.anchor, LinearMap(run, weight, bias))  # type: ignore[no-untyped-call]
    return result


# --- convolutions ----------------------------------------------------------------------------------------


class _Convolution(torch.autograd.Function):
    """A convolution over one or more axes; the gradient of each record by the kernel is formed."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        anchor: Tensor,
        run: Run,
        weight: Tensor,
        bias: Tensor | None,
        settings: tuple[Any, ...],
    ) -> Tensor:
        stride, padding, dilation, groups = settings
        kernel = _plain(weight)
        dims = len(stride)
        out = torch.convolution(
            x, kernel, None if bias is None else _plain(bias), stride, padding, dilation, False, [0] * dims, groups
        )
        ctx.save_for_backward(x)
        ctx.run = run
        ctx.kernel = kernel
        ctx.settings = settings
        ctx.weight_slot = _slot_of(weight)
        ctx.bias_slot = _slot_of(bias)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x = ctx.saved_tensors[0].detach()
        run: Run = ctx.run
        slope = slope.contiguous()
        if ctx.weight_slot is not None:
            run.note(ctx.weight_slot, Formed(kernel_gradients(x, slope, ctx.kernel.shape, ctx.settings)))
        if ctx.bias_slot is not None:
            run.note(ctx.bias_slot, Formed(slope.flatten(2).sum(2)))
        back = None
        if ctx.needs_input_grad[0]:
            stride, padding, dilation, groups = ctx.settings
            zeros = [0] * len(stride)
            wanted = [True, False, False]  # the slope by the input alone
            back = torch.ops.aten.convolution_backward(
                slope, x, ctx.kernel, None, stride, padding, dilation, False, zeros, groups, wanted
            )[0]
        return back, None, None, None, None, None


def kernel_gradients(x: Tensor, slope: Tensor, shape: Sequence[int], settings: tuple[Any, ...]) -> Tensor:
    """(rows, kernel's size) each record's gradient by the kernel: products of patches and slopes.

    Args:
        x: (rows, inputs, *spatial).
        slope: (rows, outputs, *spatial after).
        shape: of the kernel, (outputs, inputs/groups, *kernel).
        settings: stride, padding and dilation for each axis, and groups.
    """
    stride, padding, dilation, groups = settings
    rows = x.shape[0]
    outputs = shape[0] // groups
    fan_in = math.prod(shape[1:])
    places = math.prod(slope.shape[2:])
    out = ARENA.take(rows * groups, outputs, fan_in)
    step = max(1, CACHE_BYTES // max(1, 4 * groups * fan_in * places))
    borders = [side for pad in reversed(padding) for side in (pad, pad)]
    for start in range(0, rows, step):
        mine = x[start : start + step]
        if any(borders):
            mine = F.pad(mine, borders)
        strides = mine.stride()
        across = [strides[2 + axis] * dilation[axis] for axis in range(len(stride))]
        along = [strides[2 + axis] * stride[axis] for axis in range(len(stride))]
        patches = mine.as_strided(
            (mine.shape[0], mine.shape[1], *shape[2:], *slope.shape[2:]),
            (strides[0], strides[1], *across, *along),
            mine.storage_offset(),
        ).reshape(mine.shape[0] * groups, fan_in, places)
        steep = slope[start : start + step].reshape(-1, outputs, places)
        torch.bmm(steep, patches.mT, out=out[start * groups : start * groups + steep.shape[0]])
    return out.view(rows, -1)


def _convolution_rule(dims: int) -> Callable[..., Tensor]:
    def rule(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        run = _run_of(weight, bias)
        run.require_rows(input, dims + 2)
        if len(run.sizes) > 1:
            raise NotTold("several copies of a kernel")
        stride = _each(stride, dims)
        dilation = _each(dilation, dims)
        if padding == "valid":
            padding = 0
        if padding == "same":
            totals = [gap * (size - 1) for gap, size in zip(dilation, weight.shape[2:], strict=True)]
            input = F.pad(input, [side for total in reversed(totals) for side in (total // 2, total - total // 2)])
            padding = 0
        settings = stride, _each(padding, dims), dilation, groups
        given = input, run.anchor, run, weight, bias, settings
        result: Tensor = _Convolution.apply(*given)  # type: ignore[no-untyped-call]
        return result

    return rule


def _each(value: Any, dims: int) -> list[int]:
    """One number for each axis."""
    if isinstance(value, int):
        return [value] * dims
    numbers = [int(one) for one in value]
    return numbers * dims if len(numbers) == 1 else numbers


# --- embeddings ------------------------------------------------------------------------------------------


class _Embedding(torch.autograd.Function):
    """Looks up lines of a table by their numbers: (rows, ...) → (rows, ..., width)."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, lines: Tensor, run: Run, weight: Watched, padding: int | None) -> Tensor:
        ctx.lines = lines
        ctx.run = run
        ctx.slot = weight.slot
        ctx.padding = padding
        return F.embedding(lines, _plain(weight))

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        run: Run = ctx.run
        lines = ctx.lines.reshape(run.rows, -1)
        slopes = slope.reshape(run.rows, lines.shape[1], -1)
        slot = run.slots[ctx.slot]
        lookup = Lookup.of(lines, slopes, slot.shape, ctx.padding)
        run.note(ctx.slot, Formed(_as_stored(slot, lookup.formed())) if slot.turned else lookup)
        return None, None, None, None, None


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    if not isinstance(weight, Watched):
        raise NotTold("a parameter that is looked up")
    run = weight.run
    run.require_rows(input)
    if max_norm is not None or scale_grad_by_freq or len(run.sizes) > 1:
        raise NotTold("an embedding that reads other records")
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    result: Tensor = _Embedding.apply(run.anchor, input, run, weight, padding_idx)  # type: ignore[no-untyped-call]
    return result


def _as_stored(slot: Slot, rows: Tensor) -> Tensor:
    """(rows, size) in the module's order → in the order of the flat vector."""
    if not slot.turned:
        return rows
    return rows.view(-1, *slot.shape).mT.flatten(1)


# --- scale and shift: bare parameters, and the affine part of norms --------------------------------------


class _Affine(torch.autograd.Function):
    """x ↦ x·w + b for a scale and a shift without an axis of records, either of which may be missing."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        anchor: Tensor,
        run: Run,
        scale: Tensor | None,
        shift: Tensor | None,
        shape: tuple[int, ...] | None,
    ) -> Tensor:
        w = None if scale is None else _shaped(_plain(scale), shape)
        b = None if shift is None else _shaped(_plain(shift), shape)
        out = x if w is None else x * w
        if b is not None:
            out = out + b
        ctx.scale_slot = _slot_of(scale)
        ctx.shift_slot = _slot_of(shift)
        ctx.run = run
        ctx.w = w
        ctx.shape = None if w is None and b is None else (w if w is not None else b).shape  # type: ignore[union-attr]
        ctx.save_for_backward(x if ctx.scale_slot is not None else torch.empty(0))
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x = ctx.saved_tensors[0].detach()
        run: Run = ctx.run
        for slot, product in ((ctx.scale_slot, True), (ctx.shift_slot, False)):
            if slot is not None:
                rows = _reduced(slope * x if product else slope, ctx.shape)
                run.note(slot, Formed(_as_stored(run.slots[slot], rows)))
        back = None
        if ctx.needs_input_grad[0]:
            back = slope if ctx.w is None else slope * ctx.w
        return back, None, None, None, None, None


def _shaped(parameter: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    return parameter if shape is None else parameter.view(shape)


def _reduced(slope: Tensor, shape: Sequence[int]) -> Tensor:
    """(rows, ...) summed over the axes along which a parameter of this shape was repeated: (rows, size)."""
    own = [1] * (slope.ndim - len(shape)) + list(shape)
    summed = [axis for axis in range(1, slope.ndim) if own[axis] == 1 and slope.shape[axis] != 1]
    reduced = slope.sum(summed) if summed else slope
    return reduced.reshape(slope.shape[0], -1)


def _affine(x: Tensor, scale: Tensor | None, shift: Tensor | None, shape: tuple[int, ...] | None = None) -> Tensor:
    run = _run_of(scale, shift)
    run.require_rows(x, 2)
    if len(run.sizes) > 1:
        raise NotTold("several copies of a scale")
    for parameter in (scale, shift):
        if parameter is None:
            continue
        own = tuple(parameter.shape) if shape is None else shape
        if len(own) > x.ndim or (len(own) == x.ndim and own[0] != 1):
            raise NotTold(f"a parameter of shape {own} meets {tuple(x.shape)}")
        whole = torch.broadcast_shapes(x.shape, own)  # type: ignore[no-untyped-call]
        if whole != x.shape:
            x = x.expand(whole)
    result: Tensor = _Affine.apply(x, run.anchor, run, scale, shift, shape)  # type: ignore[no-untyped-call]
    return result


def _add(one: Any, other: Any, *, alpha: float = 1, out: Any = None) -> Tensor:
    if alpha != 1 or out is not None:
        raise NotTold("a scaled addition")
    if isinstance(one, Watched):
        one, other = other, one
    if not isinstance(one, Tensor) or isinstance(one, Watched) or not one.is_floating_point():
        raise NotTold("a parameter that is added to no record")
    return _affine(one, None, other)


def _multiply(one: Any, other: Any, *, out: Any = None) -> Tensor:
    if isinstance(one, Watched):
        one, other = other, one
    if out is not None or not isinstance(one, Tensor) or isinstance(one, Watched) or not one.is_floating_point():
        raise NotTold("a parameter that is multiplied by no record")
    return _affine(one, other, None)


class _Expand(torch.autograd.Function):
    """A parameter of shape (1, ...), repeated for each record."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, run: Run, parameter: Watched, shape: tuple[int, ...]) -> Tensor:
        ctx.run = run
        ctx.slot = parameter.slot
        ctx.own = parameter.shape[1:]
        return _plain(parameter).expand(shape).contiguous()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        run: Run = ctx.run
        run.note(ctx.slot, Formed(_as_stored(run.slots[ctx.slot], _reduced(slope, ctx.own))))
        return None, None, None, None


def _expand(parameter: Tensor, *sizes: Any) -> Tensor:
    wanted = list(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else list(sizes)
    if not isinstance(parameter, Watched) or len(wanted) != parameter.ndim or parameter.shape[0] != 1:
        raise NotTold("a parameter that is repeated along new axes")
    run = parameter.run
    shape = [own if size == -1 else size for own, size in zip(parameter.shape, wanted, strict=True)]
    if shape[0] != run.rows or len(run.sizes) > 1:
        raise NotTold("a parameter that is not repeated for each record")
    result: Tensor = _Expand.apply(run.anchor, run, parameter, tuple(shape))  # type: ignore[no-untyped-call]
    return result


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    if input.ndim <= len(normalized_shape):
        raise NotTold("a norm over records")
    return _affine(F.layer_norm(input, list(normalized_shape), None, None, eps), weight, bias)


def _rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    if input.ndim <= len(normalized_shape):
        raise NotTold("a norm over records")
    return _affine(F.rms_norm(input, list(normalized_shape), None, eps), weight, None)


def _group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    shape = (input.shape[1], *[1] * (input.ndim - 2))
    return _affine(F.group_norm(input, num_groups, None, None, eps), weight, bias, shape)


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if running_mean is not None or running_var is not None or not use_input_stats:
        raise NotTold("a norm with running statistics")
    shape = (input.shape[1], *[1] * (input.ndim - 2))
    return _affine(F.instance_norm(input, eps=eps), weight, bias, shape)


# --- the table of rules ----------------------------------------------------------------------------------


_RULES: dict[Any, Callable[..., Any]] = {
    F.linear: _linear,
    torch.conv1d: _convolution_rule(1),
    torch.conv2d: _convolution_rule(2),
    torch.conv3d: _convolution_rule(3),
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.instance_norm: _instance_norm,
    torch.add: _add,
    Tensor.add: _add,
    Tensor.__add__: _add,
    Tensor.__radd__: _add,
    torch.mul: _multiply,
    Tensor.mul: _multiply,
    Tensor.__mul__: _multiply,
    Tensor.__rmul__: _multiply,
    Tensor.expand: _expand,
}


RecordGradients = Callable[..., Mapping[str, Tensor]]
"""(slope, *arguments of the operation) ↦ for each parameter, by its argument's name, (rows, *shape) gradients."""


def add_rule(operation: Callable[..., Tensor], gradients: RecordGradients) -> None:
    """Teaches the engine an operation of torch, so that layers that use it are differentiated in one pass.

    Without a rule a module works too, but record by record, which is slower. A rule says what the gradient of each
    record is. It is checked on random records before the first training (`method_for`): a rule whose gradients are
    not those of torch's own backward pass is not used for that module.

    Args:
        operation: a function of torch with records along the first axis of its inputs and of its output, such as
            `torch.nn.functional.bilinear`.
        gradients: a function with the operation's arguments, in its order and under its names, after `slope`. It is
            called in the backward pass with the slope, (rows, ...), the derivative of the loss by the output; with
            the inputs; and with parameters as plain tensors. Returns (rows, *shape of the parameter) for each
            parameter that can be trained, by the name of its argument. A row may depend on its own record only.

    Raises:
                ConfigurationError: the operation has a rule already, or is a class of layers.
    """
    if isinstance(operation, type):
        raise ConfigurationError(
            f"a rule for the class {operation.__name__}",
            "give the function that its layers call, such as torch.nn.functional.bilinear for torch.nn.Bilinear",
        )
    if operation in _RULES:
        name = getattr(operation, "__name__", str(operation))
        raise ConfigurationError(f"{name} has a rule already", "use the one that is there")
    names = list(inspect.signature(gradients).parameters)[1:]

    def rule(*given: Any, **named: Any) -> Tensor:
        if len(given) > len(names) or not set(named) <= set(names):
            raise NotTold("an argument that the rule does not know")
        arguments = dict(zip(names, given, strict=False)) | named
        parameters = {name: value for name, value in arguments.items() if isinstance(value, Watched)}
        inputs = [
            name
            for name, value in arguments.items()
            if isinstance(value, Tensor) and not isinstance(value, Watched | nn.Parameter)
        ]
        run = _run_of(*parameters.values())
        if len(run.sizes) > 1:
            raise NotTold("several copies of a parameter")
        for name in inputs:
            run.require_rows(arguments[name])
        use = _Use(run, operation, gradients, arguments, len(given), parameters, tuple(inputs))
        result: Tensor = _Added.apply(run.anchor, use, *[arguments[name] for name in inputs])  # type: ignore[no-untyped-call]
        return result

    _RULES[operation] = rule


@dataclass(frozen=True, eq=False)
class _Use:
    """One call of an operation that `add_rule` added.

    Attributes:
        arguments: by name; the first `positional` of them were passed by position.
        parameters: those that are trained.
        inputs: names of those that hold records.
    """

    run: Run
    operation: Callable[..., Tensor]
    gradients: RecordGradients
    arguments: dict[str, Any]
    positional: int
    parameters: dict[str, Watched]
    inputs: tuple[str, ...]

    def plain(self, inputs: Sequence[Tensor]) -> dict[str, Any]:
        """The arguments, with these inputs and with plain tensors for the parameters."""
        numbers = {name: _plain(parameter) for name, parameter in self.parameters.items()}
        return {**self.arguments, **numbers, **dict(zip(self.inputs, inputs, strict=True))}

    def outputs(self, inputs: Sequence[Tensor]) -> Tensor:
        """The operation's outputs for these inputs."""
        arguments = self.plain(inputs)
        by_place = list(arguments.values())[: self.positional]
        by_name = dict(list(arguments.items())[self.positional :])
        return self.operation(*by_place, **by_name)


class _Added(torch.autograd.Function):
    """An operation whose rule gives each record's gradient; slopes by its inputs come from torch's own graph."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, use: _Use, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        ctx.use = use
        return use.outputs(inputs)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        use: _Use = ctx.use
        inputs = [value.detach() for value in ctx.saved_tensors]
        try:
            noted = use.gradients(slope, **use.plain(inputs))
            rows_of = {
                parameter.slot: noted[name].reshape(use.run.rows, use.run.slots[parameter.slot].size)
                for name, parameter in use.parameters.items()
            }
        except Exception as error:  # the rule is the user's code and may raise anything
            raise NotTold(f"an added rule failed: {type(error).__name__}: {error}") from error
        for at, rows in rows_of.items():
            use.run.note(at, Formed(_as_stored(use.run.slots[at], rows.contiguous())))
        wanted = [number for number in range(len(inputs)) if ctx.needs_input_grad[2 + number]]
        back: list[Tensor | None] = [None] * len(inputs)
        if wanted:
            with torch.enable_grad():
                for number in wanted:
                    inputs[number].requires_grad_()
                out = use.outputs(inputs)
                found = torch.autograd.grad((out * slope).sum(), [inputs[number] for number in wanted])
            for number, value in zip(wanted, found, strict=True):
                back[number] = value
        return None, None, *back
