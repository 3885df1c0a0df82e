"""Clipped sums of per-record gradients of any `torch.nn.Module`, by the hooks of Opacus.

A hook takes the first axis of whatever passes its layer for the records. Where a module folds tokens into that
axis, or puts the sequence first, its rows are not the records, and clipping them bounds nothing. So modules are
computed in blocks of two sizes only, and `model_check` compares, in blocks of just these sizes, what the hooks hold
for a record with the gradient of that record alone.

Implements: the clipping of DP-SGD, [Abadi2016].
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from privmarket.federated.gradients import clip_factors, group_factors, rounded_down, tiled
from privmarket.federated.layers import row_energy
from privmarket.lazy import late
from privmarket.privacy.release import BLOCK_RECORDS

if TYPE_CHECKING:
    from opacus import grad_sample
else:
    grad_sample = late("opacus.grad_sample")

# Records are computed in blocks of these sizes and no other: whole blocks, and tiles for samples and what is left.
BLOCK_ROWS, TILE_ROWS = BLOCK_RECORDS, 16

_LOG = logging.getLogger(__name__)  # the client's own

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, labels) ↦ one loss per record."""
Column = Tensor | ArrayLike
"""One value or row per record: a tensor, an array, or a list."""


def clipped_sum(
    module: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    clip_norm: float,
    loss: Loss,
    persons: Tensor | None = None,
    *,
    drawn: NDArray[np.int64] | None = None,
) -> Tensor:
    """Σ over records of each one's gradient, clipped to norm ≤ `clip_norm` over all parameters together.

    Records whose gradient is not finite count as nothing: else one record could decide whether there is a sum.

    Args:
        persons: whose record each is, equal numbers one after the other; then each person's sum is clipped.
        drawn: of a Poisson sample, the numbers of the drawn records, ascending: tiles and float64 sums.

    Returns:
        (trainable parameters,) float64, in the module's order. Private.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    people = _PersonSums(total, clip_norm)
    blocks = _blocks(labels.shape[0], persons, drawn)
    for rows, gradients in per_record_gradients(module, parameters, inputs, labels, loss, blocks):
        energy = row_energy(gradients)
        bad = ~torch.isfinite(energy)
        if bad.any():
            gradients, energy = gradients.masked_fill_(bad[:, None], 0.0), energy.masked_fill(bad, 0.0)
        if persons is not None:
            people.add(persons[rows], gradients.double(), energy)
        elif drawn is None:
            total += gradients.t() @ clip_factors(energy, clip_norm)
        else:
            total += gradients.double().t() @ clip_factors(energy, clip_norm).double()
    people.finish()
    return total


class _PersonSums:
    """Adds up each person's gradients over blocks of records, and each person's clipped sum to a total."""

    def __init__(self, total: Tensor, clip_norm: float) -> None:
        self.total, self.clip_norm = total, clip_norm
        # The person whose records may go on in the next block: number, sum, energy and members so far.
        self.open: tuple[int, Tensor, Tensor, Tensor] | None = None

    def add(self, numbers: Tensor, gradients: Tensor, energy: Tensor) -> None:
        """Takes a block: (rows,) whose record each is, (rows, parameters) float64, (rows,) squared norms."""
        who, places, members = torch.unique_consecutive(numbers, return_inverse=True, return_counts=True)
        sums = torch.zeros(who.shape[0], self.total.shape[0], dtype=torch.float64).index_add_(0, places, gradients)
        energies = torch.zeros(who.shape[0], dtype=torch.float64).index_add_(0, places, energy)
        if self.open is not None and self.open[0] == int(who[0]):
            for mine, before in zip((sums, energies, members), self.open[1:], strict=True):
                mine[0] += before
        else:
            self.finish()
        self._close(sums[:-1], energies[:-1], members[:-1])
        self.open = int(who[-1]), sums[-1], energies[-1], members[-1]

    def finish(self) -> None:
        """There are no further records of the last person."""
        if self.open is not None:
            self._close(*(part[None] for part in self.open[1:]))
        self.open = None

    def _close(self, sums: Tensor, energy: Tensor, members: Tensor) -> None:
        factor = rounded_down(group_factors(sums.square().sum(1), energy, members, self.clip_norm))
        self.total += sums.t() @ factor.double()


def _blocks(
    records: int, persons: Tensor | None, drawn: NDArray[np.int64] | None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Which records are computed at once, and which rows of those count.

    What is left over of whole blocks goes in tiles: at most seven more additions in float64, which what
    `privacy.release.sum_inflation` allows for sums in float32 covers many times over.
    Of a Poisson sample each record stands at a place of its own in a tile, or each person in tiles of its own:
    where it stands does not depend on who else was drawn.
    """
    if drawn is None:
        whole = records - records % BLOCK_ROWS
        for start in range(0, whole, BLOCK_ROWS):
            yield np.arange(start, start + BLOCK_ROWS), np.arange(BLOCK_ROWS)
        for start in range(whole, records, TILE_ROWS):
            rows = np.arange(start, min(start + TILE_ROWS, records))
            yield np.resize(rows, TILE_ROWS), np.arange(rows.size)
        return
    if persons is None:
        groups = [tiled(drawn, TILE_ROWS)]
    else:
        starts = np.flatnonzero(np.diff(persons.numpy()[drawn], prepend=-1))
        filled = [np.resize(one, -(-one.size // TILE_ROWS) * TILE_ROWS) for one in np.split(drawn, starts[1:])]
        groups = [
            (rows, np.arange(one.size)) for rows, one in zip(filled, np.split(drawn, starts[1:]), strict=True)
        ]
    for rows, places in groups:
        for start in range(0, rows.size, TILE_ROWS):
            inside = places[(places >= start) & (places < start + TILE_ROWS)]
            yield rows[start : start + TILE_ROWS], inside - start


def per_record_gradients(
    module: nn.Module,
    parameters: list[nn.Parameter],
    inputs: Tensor,
    labels: Tensor,
    loss: Loss,
    blocks: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> Iterator[tuple[Tensor, Tensor]]:
    """Numbers of records and their (records, trainable parameters) gradients, by the hooks of Opacus.

    A record on which the module or the loss raises an error counts as nothing, like one that is not finite: else
    one record could decide whether there is an update at all, and a server could choose weights that ask it.

    Raises:
        Exception: whatever the module raises on blank records, too.
    """
    hooks: _Hooks | None = None
    try:
        for taken, counting in blocks:
            rows, places = torch.from_numpy(taken), torch.from_numpy(counting)
            x, y = inputs[rows], labels[rows]
            hooks = hooks or _Hooks(module, parameters, loss)
            try:
                gradients = hooks.gradients(x, y)
            except Exception as error:  # anybody's module, on anybody's record
                _LOG.warning("records that raise errors add nothing: %s: %s", type(error).__name__, error)
                hooks.close()  # what an interrupted pass left in them must not reach the next
                hooks = None
                gradients = _without_failing_rows(module, parameters, x, y, loss)
            yield rows[places], gradients[places]
    finally:
        if hooks is not None:
            hooks.close()


class _Hooks:
    """A module with the hooks of Opacus, until `close`."""

    def __init__(self, module: nn.Module, parameters: list[nn.Parameter], loss: Loss) -> None:
        self._hooked = grad_sample.GradSampleModule(module, loss_reduction="sum", strict=False)
        self._parameters, self._loss = parameters, loss
        self._paddings = [
            (part.weight, part.padding_idx)
            for part in module.modules()
            if isinstance(part, nn.Embedding) and part.padding_idx is not None and part.weight.requires_grad
        ]

    def gradients(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """(rows, trainable parameters) what the hooks hold for each row."""
        self._hooked.zero_grad(set_to_none=True)
        with warnings.catch_warnings():
            # torch tells that a hook of Opacus fires on inputs without gradients, which is as it should be.
            warnings.simplefilter("ignore")
            self._loss(self._hooked(inputs), labels).sum().backward()  # type: ignore[no-untyped-call]
        for weight, padding in self._paddings:  # which Opacus takes for an ordinary row
            _grad_sample(weight, inputs.shape[0])[:, padding] = 0.0
        return torch.cat([_grad_sample(p, inputs.shape[0]).flatten(1) for p in self._parameters], dim=1)

    def close(self) -> None:
        """Takes the hooks off."""
        self._hooked.to_standard_module()


def block_gradients(
    module: nn.Module, parameters: list[nn.Parameter], inputs: Tensor, labels: Tensor, loss: Loss
) -> Tensor:
    """(rows, trainable parameters) what the hooks hold for the gradient of each row of one block.

    Raises:
        ValueError: a hook's rows are not the block's.
    """
    hooks = _Hooks(module, parameters, loss)
    try:
        return hooks.gradients(inputs, labels)
    finally:
        hooks.close()


def _without_failing_rows(
    module: nn.Module, parameters: list[nn.Parameter], inputs: Tensor, labels: Tensor, loss: Loss
) -> Tensor:
    """As `block_gradients`; zeros for rows that raise errors, and the others computed as if those were blank."""
    rows = torch.arange(labels.shape[0])

    def computed(chosen: Tensor) -> Tensor:
        """The block with all rows blank but the chosen ones."""
        x, y = torch.zeros_like(inputs), torch.zeros_like(labels)
        x[chosen], y[chosen] = inputs[chosen], labels[chosen]
        return block_gradients(module, parameters, x, y, loss)

    def usable(chosen: Tensor) -> list[Tensor]:
        """The chosen rows without those that raise, by halving."""
        try:
            computed(chosen)
        except Exception:  # as above
            half = chosen.shape[0] // 2
            return [] if not half else usable(chosen[:half]) + usable(chosen[half:])
        return [chosen]

    computed(rows[:0])  # a module that fails on blank records fails whatever the records are
    good = torch.cat([rows[:0], *usable(rows)])
    gradients = torch.zeros(rows.shape[0], sum(p.numel() for p in parameters))
    gradients[good] = computed(good)[good]
    return gradients


def _grad_sample(parameter: Tensor, rows: int) -> Tensor:
    """(rows, *shape) per-example gradients of a parameter; a list of them where it is used more than once."""
    found: Tensor | list[Tensor] | None = getattr(parameter, "grad_sample", None)
    if found is None:
        return torch.zeros(rows, *parameter.shape)
    whole = torch.stack(found).sum(0) if isinstance(found, list) else found
    if whole.shape != (rows, *parameter.shape):
        raise ValueError(f"gradients of shape {tuple(whole.shape)} for {rows} records")
    return whole
