"""Sums of clipped per-record gradients, for many clients in one pass, with a proved bound on each record's share.

Each record's contribution has norm at most C in real arithmetic, and the computed sum differs from the real one by
so little that `privacy.release.sum_inflation` covers it: see docs/theory/finite-arithmetic.md.

Implements: per-example clipping of [Abadi2016], by ghost norms where a layer is linear.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privmarket.federated.layers import Factors, Part, Summation
from privmarket.federated.models import Model
from privmarket.privacy.release import BLOCK_RECORDS, BLOCKS_IN_FLOAT32, CANCELLATION

# Memory of one pass is bounded by the rows in it, not by the number of clients or the size of a batch.
BLOCK_ROWS = 4096
# Rows of every product over a Poisson sample; rows of any width begin at multiples of 64 bytes from tile to tile.
TILE_ROWS = 16

# Clipping stays below C by these shares, which cover the rounding of factors and of norms.
_RECORD_MARGIN, _PERSON_MARGIN, _PERSON_SLACK = 2.0**-20, 2.0**-19, 2.0**-26


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one step, one client's after the other.

    Attributes:
        images: (rows, channels, h, w) float32.
        labels: (rows,) int64.
        sizes: rows per client; may hold zeros.
        present: (rows,) booleans, false for rows that are blanked and contribute nothing; None if there are none.
        persons: (rows that count,) whose record each is, equal numbers one after the other and different ones for
            different clients; None if each record counts alone.
        places: of a Poisson sample, which lies in whole tiles (see `tiled`): (drawn,) where each drawn row stands,
            client by client; all other rows only fill up tiles. None if all rows count.
        drawn: rows that count per client, if they were drawn.
    """

    images: Tensor
    labels: Tensor
    sizes: list[int]
    present: Tensor | None = None
    persons: Tensor | None = None
    places: Tensor | None = None
    drawn: list[int] | None = None

    def counting(self, first: int, last: int) -> tuple[Tensor, list[int]]:
        """Which drawn rows stand among the rows `first` to `last` of the tiles, and how many of each client."""
        assert self.places is not None
        assert self.drawn is not None
        inside = torch.nonzero((self.places >= first) & (self.places < last)).flatten()
        ends = torch.tensor(self.drawn).cumsum(0)
        counts = torch.searchsorted(inside, ends).diff(prepend=torch.zeros(1, dtype=torch.int64))
        return inside, counts.tolist()


def tiled(drawn: NDArray[np.int64], tile: int = TILE_ROWS) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lays a Poisson sample out in tiles of equal size: record r stands at place r mod `tile` of one of them.

    How a library computes a row may depend on how many rows there are, and on where the row stands: it adds in
    another order where a row does not begin at a multiple of 16 bytes. So every product is of one tile, and a
    record's place in it does not depend on who else was drawn.

    Args:
        drawn: (drawn,) numbers of records, ascending.

    Returns:
        (rows,) the record in each row, 0 in rows that only fill up; (drawn,) the row of each drawn record.
    """
    slots = drawn % tile
    order = np.argsort(slots, kind="stable")
    counts = np.bincount(slots, minlength=tile)
    nth = np.empty(drawn.size, dtype=np.int64)
    nth[order] = np.arange(drawn.size) - np.repeat(np.cumsum(counts) - counts, counts)
    places = nth * tile + slots
    rows = np.zeros(int(counts.max()) * tile, dtype=np.int64)
    rows[places] = drawn
    return rows, places


def gradient_sums(
    model: Model, weights: Tensor, images: Tensor, labels: Tensor, sizes: list[int], clip_norm: float | None
) -> Tensor:
    """Each client's Σ over its rows of the records' gradients, each clipped to norm ≤ `clip_norm`.

    Args:
        weights: (1, parameters) shared by all clients, or (clients, parameters).
        images: (rows, channels, h, w), the clients' batches one after the other.
        labels: (rows,).
        sizes: rows per client; may hold zeros.
        clip_norm: C; None leaves gradients as they are (no privacy).

    Returns:
        (clients, parameters) float32.
    """
    batch, parts = Batch(images, labels, sizes), model.parts(weights)
    if clip_norm is not None:
        return clipped_sums(model, parts, batch, clip_norm).float()
    sums = torch.zeros(len(sizes), model.parameters)
    add_plain_sums(model, parts, batch, model.parts(sums))
    return sums


def clipped_sums(
    model: Model, weights: list[list[Part]], batch: Batch, clip_norm: float, out: Tensor | None = None
) -> Tensor:
    """Each client's sum of contributions of norm ≤ `clip_norm` each, of records or, if given, of persons.

    Non-finite records contribute exactly nothing. The sums are private: only `privacy.release` may let them out.

    Args:
        weights: `model.parts` of (1, parameters) shared by all clients, or of (clients, parameters).
        out: float32 buffer (clients, parameters) that may be used for the result.

    Returns:
        (clients, parameters), float32 where no client has many rows, else float64; the numbers of a client with
        few rows are float32 numbers in either case.
    """
    how, sampled = summations(batch), batch.places is not None
    if all(one is Summation.FEW for one in how):
        sums = out if out is not None else torch.empty(len(batch.sizes), model.parameters)
    else:
        sums = torch.zeros(len(batch.sizes), model.parameters, dtype=torch.float64)
    targets = model.parts(sums)
    with conventional_products():
        for first, last, clients, counts in _passes(batch):
            if first == last:
                sums[clients] = 0.0
                continue
            rows = slice(first, last)
            mine = weights if len(weights[0]) == 1 else [copies[clients] for copies in weights]
            gradients = _gradients(model, mine, batch.images[rows], batch.labels[rows], counts, sampled)
            norms = (layer.squared_norms(g) for layer, g in zip(model.layers, gradients, strict=True) if layer.size)
            squared = functools.reduce(torch.add, norms)  # never below each record's squared norm over all layers
            present = None if batch.present is None else batch.present[rows]
            persons = None if batch.persons is None or sampled else batch.persons[rows]
            if batch.places is not None:
                inside, whose = batch.counting(first, last)
                counts = whose[clients]
                chosen = batch.places[inside] - first
                squared = squared[chosen]
                gradients = [tuple(factor[chosen] for factor in factors) for factors in gradients]
                persons = None if batch.persons is None else batch.persons[inside]
            bad = ~torch.isfinite(squared)
            if persons is None:
                factor = clip_factors(squared, clip_norm)
            else:
                factor = _person_factors(model, gradients, squared, bad, clip_norm, persons)
            if present is not None:
                factor = factor.masked_fill_(~present, 0.0)
            left_out = bad if bool(bad.any()) else None
            for layer, target, gradient in zip(model.layers, targets, gradients, strict=True):
                if layer.size:
                    layer.add_sums(target[clients], gradient, factor, counts, how[clients], left_out)
    return sums


def summations(batch: Batch) -> list[Summation]:
    """How each client's rows are added up: in float32 as far as the proof goes, whatever other clients are here.

    Blocks of a sample shift when one record more is drawn, so there only a single block may be added in float32.
    """
    sampled = batch.drawn is not None
    limit = BLOCK_RECORDS if sampled else BLOCK_RECORDS * BLOCKS_IN_FLOAT32
    many = Summation.DOUBLE if sampled or batch.persons is not None else Summation.BLOCKS
    counts = zip(batch.drawn or batch.sizes, batch.sizes, strict=True)
    few = [batch.persons is None and n <= limit and rows <= BLOCK_ROWS for n, rows in counts]
    return [Summation.FEW if one else many for one in few]


def add_plain_sums(
    model: Model, weights: list[list[Part]], batch: Batch, sums: list[list[Part]], scale: Tensor | None = None
) -> None:
    """Adds each client's Σ of gradients, unclipped, times its entry of `scale` to `sums`: no privacy.

    In one pass all gradients are known before the first is added, so `sums` may be `weights` itself.
    """
    rows_scale = torch.ones(batch.labels.shape[0])
    if scale is not None:
        rows_scale = scale.repeat_interleave(torch.tensor(batch.sizes))
    for first, last, clients, counts in _passes(batch):
        if first == last:
            continue
        rows = slice(first, last)
        mine = weights if len(weights[0]) == 1 else [copies[clients] for copies in weights]
        gradients = _gradients(model, mine, batch.images[rows], batch.labels[rows], counts, False)
        for layer, target, gradient in zip(model.layers, sums, gradients, strict=True):
            if layer.size:
                layer.add_sums(target[clients], gradient, rows_scale[rows], counts, [Summation.PLAIN] * len(counts))


def _passes(batch: Batch) -> Iterator[tuple[int, int, slice, list[int]]]:
    """(first row, last row, clients, their rows) of passes of bounded size.

    A pass holds whole clients, or a piece of one client that has too many rows; people are never cut in two.
    """
    row, first_client, counts = 0, 0, list[int]()
    for client, size in enumerate(batch.sizes):
        held = sum(counts)
        if held and held + size > BLOCK_ROWS:
            yield row - held, row, slice(first_client, client), counts
            first_client, counts = client, []
        if size > BLOCK_ROWS:
            for start, end in _pieces(batch, row, size):
                yield start, end, slice(first_client, client + 1), [*[0] * len(counts), end - start]
            first_client, counts = client + 1, []
        else:
            counts.append(size)
        row += size
    if counts:
        yield row - sum(counts), row, slice(first_client, len(batch.sizes)), counts


def _pieces(batch: Batch, first: int, size: int) -> Iterator[tuple[int, int]]:
    """Cuts one client's rows: every BLOCK_ROWS, or at the next change of person; a sample of people stays whole."""
    if batch.persons is None:
        step = -(-BLOCK_ROWS // TILE_ROWS) * TILE_ROWS
        cuts = list(range(first, first + size, step))
    elif batch.places is not None:
        cuts = [first]
    else:
        mine = batch.persons[first : first + size]
        changes = (torch.nonzero(mine[1:] != mine[:-1]).flatten() + 1 + first).tolist()
        cuts = [first]
        for change in changes:
            if change - cuts[-1] >= BLOCK_ROWS:
                cuts.append(change)
    yield from zip(cuts, [*cuts[1:], first + size], strict=True)


def _gradients(
    model: Model, weights: list[list[Part]], images: Tensor, labels: Tensor, sizes: list[int], in_tiles: bool
) -> list[Factors]:
    """Per layer what `Layer.gradient` says; nothing for layers without weights."""
    copies = sizes if len(weights[0]) > 1 else [labels.shape[0]]
    if in_tiles:
        # One product per tile: repeat each copy of the weights as often as its client has tiles.
        tiles = [-(-size // TILE_ROWS) for size in copies]
        weights = [[part for part, n in zip(layer, tiles, strict=True) for _ in range(n)] for layer in weights]
        copies = [TILE_ROWS] * sum(tiles)
    logits, kept = model.forward(weights, images, copies)
    gradients: list[Factors] = [()] * len(model.layers)
    # The derivative of each record's cross-entropy by its logits is softmax − one-hot.
    slope = torch.softmax(logits, dim=1)
    slope[torch.arange(labels.shape[0]), labels] -= 1.0
    first = next(i for i, layer in enumerate(model.layers) if layer.size)
    for i in range(len(model.layers) - 1, first - 1, -1):
        layer = model.layers[i]
        if layer.size:
            gradients[i] = layer.gradient(kept[i], slope)
        if i > first:  # nobody needs the derivative by the pixels
            slope = layer.backward(weights[i], kept[i], slope, copies)
    return gradients


def clip_factors(squared_norms: Tensor, clip_norm: float) -> Tensor:
    """(rows,) float32, at most min(1, C/‖g‖) for float64 bounds ‖g‖² from above; 0 where they are not finite."""
    limit = clip_norm * (1.0 - _RECORD_MARGIN)
    squared = squared_norms.double()
    factor = (limit * squared.clamp_min(1e-300).rsqrt()).clamp_max(1.0)
    return rounded_down(torch.where(torch.isfinite(squared), factor, 0.0))


def _person_factors(
    model: Model, gradients: list[Factors], squared: Tensor, bad: Tensor, clip_norm: float, persons: Tensor
) -> Tensor:
    """(rows,) float32: the same factor for all records of a person, which clips the norm of their sum.

    Records that are `bad`, (rows,) booleans, count as zeros.
    """
    gradients = [tuple(factor.masked_fill(bad[:, None], 0.0) for factor in factors) for factors in gradients]
    squared = squared.masked_fill(bad, 0.0)
    factor = torch.empty(persons.shape[0], dtype=torch.float64)
    _, counts = torch.unique_consecutive(persons, return_counts=True)
    starts = counts.cumsum(0) - counts
    for members in counts.unique().tolist():
        groups = starts[counts == members][:, None] + torch.arange(members)
        norms = sum(
            layer.group_squared_norms(gradient, groups)
            for layer, gradient in zip(model.layers, gradients, strict=True)
            if layer.size
        )
        factor[groups] = group_factors(torch.as_tensor(norms), squared[groups].sum(1), members, clip_norm)[:, None]
    return rounded_down(factor)


def group_factors(squared_norms: Tensor, energy: Tensor, members: Tensor | int, clip_norm: float) -> Tensor:
    """(groups,) float64, at most min(1, C/‖Σ g‖) of each group of records that are clipped together.

    With A² = members·Σ‖g‖² ≥ (Σ‖g‖)² the squared norm of the sum is lifted by 2^−26·A², which covers cancellation:
    of records that cancel each other nothing is left but how they were rounded. 64·members·C/A is a second limit,
    so that the sizes of all contributions together stay below 64·members·C.

    Args:
        squared_norms: (groups,) ‖Σ g‖² as computed in float64.
        energy: (groups,) Σ‖g‖² over the group's records.
        members: how many records each group has.
    """
    spread = members * energy
    bound = (squared_norms + _PERSON_SLACK * spread).clamp_min(1e-300)
    limit = clip_norm * (1.0 - _PERSON_MARGIN)
    most = CANCELLATION * members * limit * spread.clamp_min(1e-300).rsqrt()
    return torch.minimum(limit * bound.rsqrt(), most).clamp_max(1.0)


def rounded_down(factor: Tensor) -> Tensor:
    """Rounds float64 to float32 without ever rounding up, same shape."""
    near = factor.float()
    return torch.where(near.double() > factor, torch.nextafter(near, torch.zeros(())), near)


@contextmanager
def conventional_products() -> Iterator[None]:
    """float32 products are float32 inside, even where the caller allowed bfloat16 or TF32 or set up autocast."""
    before = torch.get_float32_matmul_precision()
    if before != "highest":
        torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast("cpu", enabled=False):
            yield
    finally:
        if before != "highest":
            torch.set_float32_matmul_precision(before)
