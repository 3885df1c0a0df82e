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
    mask_seed: int = 0,
) -> Tensor:
    """Σ over records of each one's gradient, clipped to norm ≤ `clip_norm` over all parameters together.

    Records whose gradient is not finite count as nothing: else one record could decide whether there is a sum.

    Args:
        persons: whose record each is, equal numbers one after the other; then each person's sum is clipped.
        drawn: of a Poisson sample, the numbers of the drawn records, ascending: tiles and float64 sums.
        mask_seed: what a module draws, such as masks of dropout, follows from this and a record's number alone.

    Returns:
        (trainable parameters,) float64, in the module's order. Private.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    people = _PersonSums(total, clip_norm)
    with torch.random.fork_rng(devices=[]):
        own_places = drawn is not None and draws_at_random(module, inputs)
        blocks = _blocks(labels.shape[0], persons, drawn, own_places)
        for rows, gradients in per_record_gradients(module, parameters, inputs, labels, loss, blocks, mask_seed):
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


def draws_at_random(module: nn.Module, like: Tensor) -> bool:
    """Whether a forward pass draws random numbers, tried on blank records; a module that fails on them may draw."""
    before = torch.get_rng_state()
    try:
        with torch.no_grad():
            module(torch.zeros((TILE_ROWS, *like.shape[1:]), dtype=like.dtype))
    except Exception:  # the module is the user's code and may raise anything
        return True
    return not torch.equal(before, torch.get_rng_state())


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
        """Adds the clipped sum of the last person, after whose records none follow."""
        if self.open is not None:
            self._close(*(part[None] for part in self.open[1:]))
        self.open = None

    def _close(self, sums: Tensor, energy: Tensor, members: Tensor) -> None:
        factor = rounded_down(group_factors(sums.square().sum(1), energy, members, self.clip_norm))
        self.total += sums.t() @ factor.double()


def _blocks(
    records: int, persons: Tensor | None, drawn: NDArray[np.int64] | None, own_places: bool = False
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Which records are computed at once, and which rows of those count.

    What is left over of whole blocks goes in tiles: at most seven more additions in float64, which what
    `privacy.release.sum_inflation` allows for sums in float32 covers many times over.
    Of a Poisson sample each record stands at a place of its own in a tile, or each person in tiles of its own:
    where it stands does not depend on who else was drawn. With `own_places` neither does the tile: record r is in
    tile ⌊r/16⌋, among records that may not count, and gets the same mask whoever was drawn.
    """
    if drawn is None:
        whole = records - records % BLOCK_ROWS
        for start in range(0, whole, BLOCK_ROWS):
            yield np.arange(start, start + BLOCK_ROWS), np.arange(BLOCK_ROWS)
        for start in range(whole, records, TILE_ROWS):
            rows = np.arange(start, min(start + TILE_ROWS, records))
            yield np.resize(rows, TILE_ROWS), np.arange(rows.size)
        return
    if persons is None and own_places:
        tiles, starts = np.unique(drawn // TILE_ROWS, return_index=True)
        for tile, inside in zip(tiles, np.split(drawn, starts[1:]), strict=False):  # no tiles: one part
            rows = np.arange(tile * TILE_ROWS, min((tile + 1) * TILE_ROWS, records))
            yield np.resize(rows, TILE_ROWS), inside - rows[0]
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
    mask_seed: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Numbers of records and their (records, trainable parameters) gradients, by the hooks of Opacus.

    A record on which the module or the loss raises an error counts as nothing, like one that is not finite: else
    one record could decide whether there is an update at all, and a server could choose weights that ask it.
    torch's generator is set anew for each block, by `mask_seed` and the number of the block's first record.
    """
    hooks: _Hooks | None = None
    try:
        for taken, counting in blocks:
            rows, places = torch.from_numpy(taken), torch.from_numpy(counting)
            x, y, seed = inputs[rows], labels[rows], (mask_seed + int(taken[0])) % 2**63
            hooks = hooks or _Hooks(module, parameters, loss)
            try:
                gradients = hooks.gradients(x, y, seed)
            except Exception as error:  # the module is the user's code and may raise anything
                _LOG.warning("records that raise errors add nothing: %s: %s", type(error).__name__, error)
                hooks.close()  # what an interrupted pass left behind must not reach the next
                hooks = None
                gradients = _without_failing_rows(module, parameters, x, y, loss, seed)
            yield rows[places], gradients[places]
    finally:
        if hooks is not None:
            hooks.close()


class _Hooks:
    """A module with the hooks of Opacus, until `close`."""

    def __init__(self, module: nn.Module, parameters: list[nn.Parameter], loss: Loss) -> None:
        self._before = [(part, set(vars(part))) for part in (*module.modules(), *module.parameters())]
        # Opacus configures logging for everybody when it is imported, and Flower's lines would appear twice.
        handlers = list(logging.root.handlers)
        self._hooked = grad_sample.GradSampleModule(module, loss_reduction="sum", strict=False)
        logging.root.handlers[:] = handlers
        self._parameters, self._loss = parameters, loss
        self._paddings = [
            (part.weight, part.padding_idx)
            for part in module.modules()
            if isinstance(part, nn.Embedding) and part.padding_idx is not None and part.weight.requires_grad
        ]

    def gradients(self, inputs: Tensor, labels: Tensor, seed: int | None = None) -> Tensor:
        """(rows, trainable parameters) what the hooks hold for each row; masks follow from the seed, if given."""
        self._hooked.zero_grad(set_to_none=True)
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        with warnings.catch_warnings():
            # torch warns that a hook of Opacus fires on inputs without gradients, which is as it should be.
            warnings.simplefilter("ignore")
            self._loss(self._hooked(inputs), labels).sum().backward()  # type: ignore[no-untyped-call]
        for weight, padding in self._paddings:  # which Opacus takes for an ordinary row
            _grad_sample(weight, inputs.shape[0])[:, padding] = 0.0
        return torch.cat([_grad_sample(p, inputs.shape[0]).flatten(1) for p in self._parameters], dim=1)

    def close(self) -> None:
        """Takes the hooks off, with all that they put there: an interrupted pass leaves activations behind."""
        self._hooked.to_standard_module()
        for part, names in self._before:
            for name in set(vars(part)) - names:
                del vars(part)[name]


def block_gradients(
    module: nn.Module,
    parameters: list[nn.Parameter],
    inputs: Tensor,
    labels: Tensor,
    loss: Loss,
    seed: int | None = None,
) -> Tensor:
    """(rows, trainable parameters) what the hooks hold for the gradient of each row of one block.

    Raises:
        ValueError: a hook's rows are not the block's.
    """
    hooks = _Hooks(module, parameters, loss)
    try:
        return hooks.gradients(inputs, labels, seed)
    finally:
        hooks.close()


def _without_failing_rows(
    module: nn.Module, parameters: list[nn.Parameter], inputs: Tensor, labels: Tensor, loss: Loss, seed: int
) -> Tensor:
    """As `block_gradients`, by halving; zeros for rows that raise errors by themselves.

    Each try fills the block with copies of a row that is tried, never with something else that might fail where the
    rows do not: that, too, would be an answer.
    """
    gradients = torch.zeros(labels.shape[0], sum(p.numel() for p in parameters))

    def take(chosen: Tensor) -> None:
        block = chosen[:1].repeat(labels.shape[0])
        block[chosen] = chosen
        try:
            found = block_gradients(module, parameters, inputs[block], labels[block], loss, seed)
        except Exception:  # as above
            half = chosen.shape[0] // 2
            if half:
                take(chosen[:half])
                take(chosen[half:])
        else:
            gradients[chosen] = found[chosen]

    take(torch.arange(labels.shape[0]))
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
