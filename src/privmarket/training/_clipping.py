"""Clipping of gradients: sums over clients' records in which no record counts for more than the clip norm C.

Three things are computed for the records i of a client: an upper bound on the norm of the gradient gᵢ
(`_row_gradients`); from it the clip factor fᵢ ≤ min(1, C/‖gᵢ‖), rounded down (`_arithmetic.clip_factors`); and the
sum Σᵢ fᵢ·gᵢ. `_Work._clipped` does the first two, `_Clipped.add` the third. With `unit="person"`, fᵢ is the same
for all records of a person and clips the norm of their sum.

Each contribution has norm at most C in real arithmetic, and the error of the computed sum is within
`privacy._release.sum_inflation`: see docs/theory/finite-arithmetic.md. Per-record gradients come from `_gradients`;
noise is added by `privacy._release`, which `_local` calls.

Implements: per-example clipping of [Abadi2016], by ghost norms where a layer is linear.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from privmarket.privacy._release import BLOCK_RECORDS, BLOCKS_IN_FLOAT32
from privmarket.training._arithmetic import (
    TILE_ROWS,
    Summation,
    clip_factors,
    conventional_products,
    even_blocks,
    group_factors,
    rounded_down,
    row_energy,
    tiled,
)
from privmarket.training._gradients import Method, formed_gradients, guarded_gradients, method_for, stack_pass
from privmarket.training._layers import Slot
from privmarket.training._model import PrivateModel
from privmarket.training._row_gradients import Memo, Outer, RowGradients

# The most rows in one pass of a stack. They bound its memory, whatever the number of clients or the size of a
# batch.
PASS_ROWS = 4096
# Samples of fewer records than this are laid out in smaller tiles, which have fewer unused rows.
_SMALL_SAMPLE = 100
_SMALL_TILE = 8


class _Workspace(threading.local):
    """Buffers for samples that are laid out in tiles, one set per thread."""

    def __init__(self) -> None:
        self.buffers: dict[tuple[str, torch.dtype], Tensor] = {}


_WORKSPACE = _Workspace()


@dataclass(frozen=True, eq=False)
class ClientRecords:
    """The records of some clients, one after the other.

    Attributes:
        inputs: (rows, ...) of any type and shape.
        labels: (rows, ...) of any type and shape.
        sizes: rows per client; may hold zeros.
        persons: (rows,) whole numbers ≥ 0 in any order: the person of each record; needed for `unit="person"`.
    """

    inputs: Tensor
    labels: Tensor
    sizes: list[int]
    persons: Tensor | None = None

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.sizes)

    @property
    def starts(self) -> list[int]:
        """For each client, the number of its first row."""
        return [0, *np.cumsum(self.sizes[:-1]).tolist()]

    def of(self, client: int) -> ClientRecords:
        """The records of one client."""
        start = self.starts[client]
        mine = slice(start, start + self.sizes[client])
        persons = None if self.persons is None else self.persons[mine]
        return ClientRecords(self.inputs[mine], self.labels[mine], [self.sizes[client]], persons)


@dataclass(frozen=True, eq=False)
class Sample:
    """A Poisson sample of each client's records, or of all records of sampled persons.

    Attributes:
        rate: the public probability with which a unit is drawn.
        drawn: per client, the numbers of its drawn records, ascending.
    """

    rate: float
    drawn: Sequence[NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class ClippedSums:
    """The clipped sum of each client. Private: noise must be added before anybody sees it.

    Attributes:
        values: (clients, parameters), float32 where every client's sum is; else float64.
        single: per client, whether its sum was added up in float32.
    """

    values: Tensor
    single: list[bool]

    def of(self, client: int) -> Tensor:
        """(parameters,) one client's sum in the precision in which it was added up.

        So each client's release does not depend on the other clients in the chunk.
        """
        mine = self.values[client]
        return mine.float() if self.single[client] else mine


def clipped_sums(
    model: PrivateModel,
    weights: Tensor,
    records: ClientRecords,
    clip_norm: float,
    *,
    sample: Sample | None = None,
    mask_seeds: Sequence[int] | None = None,
    present: Tensor | None = None,
) -> ClippedSums:
    """Each client's sum of contributions of norm ≤ `clip_norm` each, of records or, if given, of persons.

    A record whose gradient is not finite, or on which the module or the loss raises an error, contributes exactly
    nothing. Otherwise one record could decide whether there is a sum at all.

    Args:
        weights: (1, parameters) shared by all clients, or (clients, parameters).
        records: persons, if given, are equal numbers one after the other, different ones for different clients
            (`by_person`); then each person's sum is clipped.
        sample: which records were drawn, if a step takes a Poisson sample.
        mask_seeds: per client; what a module draws, such as masks of dropout, depends only on this and on the
            record's number. Needed if `method_for` says `random`.
        present: (rows,) booleans, false for records that are blanked and contribute nothing.
    """
    sums = torch.empty(records.clients, model.parameters)
    single: list[bool] = []
    for client, total in each_clipped_sum(
        model, weights, records, clip_norm, sample=sample, mask_seeds=mask_seeds, present=present
    ):
        if total.dtype != sums.dtype and sums.dtype == torch.float32:
            sums = sums.double()
        sums[client] = total
        single.append(total.dtype == torch.float32)
    return ClippedSums(sums, single)


def each_clipped_sum(
    model: PrivateModel,
    weights: Tensor,
    records: ClientRecords,
    clip_norm: float,
    *,
    sample: Sample | None = None,
    mask_seeds: Sequence[int] | None = None,
    present: Tensor | None = None,
    out: Tensor | None = None,
) -> Generator[tuple[int, Tensor], None, None]:
    """`clipped_sums`, client by client: yields its number and (parameters,) its sum, valid until the next step.

    A sum of few records is float32, others are float64. A client's weights may be changed once its sum was yielded.

    Args:
        out: float32 buffer (clients, parameters) that may be used for sums.
    """
    method = method_for(model, records.inputs, records.labels)
    work = _Work(model, method, weights, records, clip_norm, sample, mask_seeds, present)
    with conventional_products():
        yield from work.by_stack(out) if method.kind == "stack" else work.by_blocks()


def gradient_sums(
    model: PrivateModel,
    weights: Tensor,
    inputs: Tensor,
    labels: Tensor,
    sizes: list[int],
    clip_norm: float | None,
) -> Tensor:
    """(clients, parameters) float32: each client's Σ of gradients, each clipped to `clip_norm` unless that is None.

    Args:
        weights: (1, parameters) shared by all clients, or (clients, parameters).
        inputs, labels: the clients' batches one after the other.
        sizes: rows per client; may hold zeros.
    """
    records = ClientRecords(inputs, labels, sizes)
    if clip_norm is not None:
        return clipped_sums(model, weights, records, clip_norm).values.float()
    sums = torch.zeros(len(sizes), model.parameters)
    add_plain_sums(model, weights, records, sums)
    return sums


def add_plain_sums(
    model: PrivateModel, weights: Tensor, records: ClientRecords, sums: Tensor, scale: Tensor | None = None
) -> None:
    """Adds each client's Σ of gradients, unclipped, times its entry of `scale` to `sums`: no privacy.

    If all rows fit one pass, all gradients are known before the first is added, and `sums` may be `weights` itself.
    """
    method = method_for(model, records.inputs, records.labels)
    each = torch.ones(records.clients) if scale is None else scale
    if method.kind != "stack":
        for client in range(records.clients):
            mine = records.of(client)
            if mine.sizes[0]:
                own = weights[client if len(weights) > 1 else 0]
                sums[client].add_(_plain_gradient(model, own, mine), alpha=float(each[client]))
        return
    rows_scale = each.repeat_interleave(torch.tensor(records.sizes))
    for first, last, clients, counts in _passes(records.sizes, PASS_ROWS):
        if first == last:
            continue
        x = records.inputs[first:last]
        y = records.labels[first:last]
        if len(weights) == 1:
            run = stack_pass(model, weights, x, y, [last - first])
        else:
            run = stack_pass(model, weights[clients], x, y, counts, list(range(len(counts))))
        memo = Memo(rows_scale[first:last])
        plain = [Summation.PLAIN] * len(counts)
        nobody: list[Tensor | None] = [None] * len(counts)
        for number, gradient in run.gradients().items():
            slot = model.slots[number]
            parts = sums[clients, slot.start : slot.stop].unbind(0)
            gradient.add_sums(parts, counts, memo, plain, nobody, [False] * len(counts))


def _plain_gradient(model: PrivateModel, flat: Tensor, records: ClientRecords) -> Tensor:
    """(parameters,) the gradient of the summed loss, by torch alone; blocks bound the memory."""
    total = torch.zeros(model.parameters)
    for start in range(0, records.sizes[0], PASS_ROWS // 8):
        own = flat.clone().requires_grad_()
        rows = slice(start, start + PASS_ROWS // 8)
        losses = model.loss(
            functional_call(model.module, model.named(own), (records.inputs[rows],)), records.labels[rows]
        )
        (found,) = torch.autograd.grad(losses.sum(), own)
        total += found
    return total


# --- sums ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Work:
    """One call of `clipped_sums`."""

    model: PrivateModel
    method: Method
    weights: Tensor
    records: ClientRecords
    clip_norm: float
    sample: Sample | None
    mask_seeds: Sequence[int] | None
    present: Tensor | None

    def summation(self, client: int) -> Summation:
        """How a client's rows are added up: in float32 if the proof covers it, independent of the other clients.

        The blocks of a sample shift if one record more is drawn, so only a sample of a single block may be added in
        float32.
        """
        if self.records.persons is not None:
            return Summation.DOUBLE
        if self.sample is not None:
            few = self.method.kind == "stack" and self.sample.drawn[client].size <= BLOCK_RECORDS
            return Summation.FEW if few else Summation.DOUBLE
        if self.method.kind == "stack":
            few = self.records.sizes[client] <= BLOCK_RECORDS * BLOCKS_IN_FLOAT32
        else:
            few = sum(1 for _ in self._blocks(client)) <= BLOCKS_IN_FLOAT32
        return Summation.FEW if few else Summation.BLOCKS

    # Rows of many clients in one pass.

    def by_stack(self, out: Tensor | None) -> Iterator[tuple[int, Tensor]]:
        """Each client's sum, for a plain stack: rows of many clients in one pass."""
        records = self.records
        persons = records.persons
        shared = len(self.weights) == 1
        layout = None
        inputs = records.inputs
        labels = records.labels
        sizes = records.sizes
        cuts = persons
        if self.sample is not None:
            tiles = [self._tile(size) for size in sizes]
            layout = _Layout.of(records, self.sample, tiles)
            inputs = layout.laid_out(inputs, "inputs")
            labels = layout.laid_out(labels, "labels")
            sizes = layout.sizes
            cuts = None
        whole_clients = layout is not None and persons is not None
        few = torch.empty(records.clients, self.model.parameters) if out is None else out
        many: dict[int, Tensor] = {}
        done = [0] * records.clients  # rows of each client that were added up
        finished = -1  # the last client whose sum was handed over: those without rows come with several passes
        for first, last, clients, counts in _passes(sizes, PASS_ROWS, cuts, whole_clients):
            gradients: dict[int, RowGradients] = {}
            present = None if self.present is None else self.present[first:last]
            mine = None if persons is None else persons[first:last]
            whose = list(range(len(counts)))
            pieces = counts
            rows_added = counts
            if layout is not None:
                # One product per tile: each copy of the weights is used as often as its client has tiles.
                tile_sizes = layout.tiles[clients]
                repeats = [count // tile for count, tile in zip(counts, tile_sizes, strict=True)]
                pieces = [tile for tile, n in zip(tile_sizes, repeats, strict=True) for _ in range(n)]
                whose = [client for client, n in enumerate(repeats) for _ in range(n)]
            elif shared:
                pieces = [last - first]
            if first < last:
                own = self.weights if shared else self.weights[clients]
                copies = None if shared else whose
                run = stack_pass(self.model, own, inputs[first:last], labels[first:last], pieces, copies)
                gradients = run.gradients()
            if layout is not None:
                inside, rows_added = layout.counting(first, last, clients)
                gradients = _kept(gradients, layout.places[inside] - first)
                numbers = layout.drawn[inside]
                present = None if self.present is None else self.present[numbers]
                mine = None if persons is None else persons[numbers]
            clipped = self._clipped(gradients, sum(rows_added), None, present, mine)
            chosen = [client for client in range(*clients.indices(len(sizes))) if client > finished]
            skipped = len(counts) - len(chosen)  # without rows, and handed over with an earlier piece
            how = [self.summation(client) for client in chosen]
            totals: list[Tensor] = []
            for client, way in zip(chosen, how, strict=True):
                if way is not Summation.FEW and client not in many:
                    many[client] = torch.zeros(self.model.parameters, dtype=torch.float64)
                totals.append(few[client] if way is Summation.FEW else many[client])
            fresh = [not done[client] for client in chosen]
            clipped.add(totals, rows_added[skipped:], how, fresh)
            for client, count in zip(chosen, counts[skipped:], strict=True):
                done[client] += count
            for client, total in zip(chosen, totals, strict=True):
                if done[client] >= sizes[client]:
                    finished = client
                    many.pop(client, None)
                    yield client, total

    def _tile(self, size: int) -> int:
        """Rows of each tile of a client's sample, from public numbers: the rate, and the number of its records."""
        assert self.sample is not None
        small = self.method.even and self.sample.rate * size <= _SMALL_SAMPLE
        return _SMALL_TILE if small else TILE_ROWS

    # One client's rows in blocks.

    def by_blocks(self) -> Iterator[tuple[int, Tensor]]:
        """Each client's sum, block by block, for modules of any other kind."""
        buffers = _Buffers(self.model.parameters)
        for client in range(self.records.clients):
            how = self.summation(client)
            total = buffers.of(how, fresh=True)
            with torch.random.fork_rng(devices=[]):
                self._add_client(client, total, how)
            yield client, total

    def _add_client(self, client: int, total: Tensor, how: Summation) -> None:
        mine = self.records.of(client)
        weights = self.weights[client if len(self.weights) > 1 else 0]
        seed = 0 if self.mask_seeds is None else self.mask_seeds[client]
        first = self.records.starts[client]
        people = None if mine.persons is None else _PersonSums(total, self.clip_norm)
        fresh = True
        for taken, counting in self._blocks(client):
            rows = torch.from_numpy(taken)
            places = torch.from_numpy(counting)
            x = mine.inputs[rows]
            y = mine.labels[rows]
            gradients, failing = guarded_gradients(self.model, self.method, weights, x, y, seed + int(taken[0]))
            if counting.size < taken.size:
                gradients = _kept(gradients, places)
                failing = None if failing is None else failing[places]
            present = None if self.present is None else self.present[first + rows[places]]
            if people is None:
                clipped = self._clipped(gradients, counting.size, failing, present, None)
                clipped.add([total], [counting.size], [how], [fresh])
                fresh = False
                continue
            assert mine.persons is not None
            formed = formed_gradients(self.model, gradients, counting.size)
            energy = row_energy(formed)
            bad = ~torch.isfinite(energy)
            if failing is not None:
                bad |= failing
            if present is not None:
                bad |= ~present
            formed.masked_fill_(bad[:, None], 0.0)
            people.add(mine.persons[rows[places]], formed.double(), energy.masked_fill(bad, 0.0))
        if people is not None:
            people.finish()
        elif fresh:
            total.zero_()

    def _blocks(self, client: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Which of a client's records are computed at once, and which of those rows count.

        Rows that do not fill a whole block go into tiles. That is at most seven more additions in float64, which
        the allowance of `privacy._release.sum_inflation` for float32 sums covers many times over.

        In a Poisson sample each record has a place of its own in a tile, or each person has tiles of its own, so a
        record's place does not depend on which others were drawn. If the module draws masks, the tile does not
        depend on it either: record r is in tile ⌊r/16⌋, together with records that may not count, and always gets
        the same mask.
        """
        records = self.records.sizes[client]
        if self.sample is None and self.method.whole and not self.method.random:
            for block in even_blocks(records, self.method.block_rows):
                rows = np.arange(block.start, block.stop)
                yield rows, np.arange(rows.size)
            return
        if self.sample is None:
            step = self.method.block_rows
            whole = records - records % step
            for start in range(0, whole, step):
                yield np.arange(start, start + step), np.arange(step)
            for start in range(whole, records, TILE_ROWS):
                rows = np.arange(start, min(start + TILE_ROWS, records))
                yield np.resize(rows, TILE_ROWS), np.arange(rows.size)
            return
        drawn = self.sample.drawn[client]
        persons = self.records.persons
        if persons is not None:
            start = self.records.starts[client]
            whose = persons.numpy()[start : start + records][drawn]
            starts = np.flatnonzero(np.diff(whose, prepend=-1))
            for one in np.split(drawn, starts[1:]):
                filled = np.resize(one, -(-one.size // TILE_ROWS) * TILE_ROWS)
                yield from _tiles(filled, np.arange(one.size))
        elif self.method.random:
            tiles, starts = np.unique(drawn // TILE_ROWS, return_index=True)
            for tile, inside in zip(tiles, np.split(drawn, starts[1:]), strict=False):  # no tiles: one part
                rows = np.arange(tile * TILE_ROWS, min((tile + 1) * TILE_ROWS, records))
                yield np.resize(rows, TILE_ROWS), inside - rows[0]
        else:
            yield from _tiles(*tiled(drawn, TILE_ROWS))

    def _clipped(
        self,
        gradients: dict[int, RowGradients],
        rows: int,
        failing: Tensor | None,
        present: Tensor | None,
        persons: Tensor | None,
    ) -> _Clipped:
        """The contributions of some rows, with their clip factors."""
        memo = Memo()
        memo.measure(gradients.values())
        squared = torch.zeros(rows, dtype=torch.float64)
        spread: Tensor | None = None
        for gradient in gradients.values():
            bound, wide = gradient.squared_norms(memo)
            squared += bound
            if wide is not None:
                spread = wide if spread is None else spread + wide
        if failing is not None:
            squared.masked_fill_(failing, torch.inf)
        bad = ~torch.isfinite(squared)
        if persons is None:
            factor = clip_factors(squared, self.clip_norm, spread)
        else:
            factor = _person_factors(gradients, squared, bad, self.clip_norm, persons)
        if present is not None:
            factor.masked_fill_(~present, 0.0)
        memo.factor = factor
        memo.bad = bad if bool(bad.any()) else None
        return _Clipped(self.model.slots, gradients, memo)


@dataclass(frozen=True, eq=False)
class _Clipped:
    """The contributions of some rows: their gradients, and in the memo their clip factors."""

    slots: Sequence[Slot]
    gradients: dict[int, RowGradients]
    memo: Memo

    def add(
        self, totals: Sequence[Tensor], counts: list[int], how: Sequence[Summation], fresh: Sequence[bool]
    ) -> None:
        """Adds the contributions of clients' rows, `counts` of each, to their sums, (parameters,) each.

        A `fresh` float32 sum is overwritten.
        """
        bad: Sequence[Tensor | None] = [None] * len(counts)
        if self.memo.bad is not None:
            bad = self.memo.bad.split_with_sizes(counts)
        for number, slot in enumerate(self.slots):
            parts = [total[slot.start : slot.stop] for total in totals]
            if number in self.gradients:
                self.gradients[number].add_sums(parts, counts, self.memo, how, bad, fresh)
                continue
            for part, way, is_fresh in zip(parts, how, fresh, strict=True):
                if is_fresh and way is Summation.FEW:
                    part.zero_()


class _Buffers:
    """Buffers for one sum at a time, in either precision."""

    def __init__(self, parameters: int) -> None:
        self.parameters = parameters
        self._made: dict[torch.dtype, Tensor] = {}

    def of(self, how: Summation, *, fresh: bool) -> Tensor:
        """(parameters,) float32 for few records, else float64, which begins with zeros if it is `fresh`."""
        dtype = torch.float32 if how is Summation.FEW else torch.float64
        if dtype not in self._made:
            self._made[dtype] = torch.empty(self.parameters, dtype=dtype)
        if fresh and how is not Summation.FEW:
            self._made[dtype].zero_()
        return self._made[dtype]


def _kept(gradients: dict[int, RowGradients], rows: Tensor) -> dict[int, RowGradients]:
    """The gradients for some of the rows; a tensor that several of them share is copied once."""
    known: dict[int, tuple[Tensor, Tensor]] = {}

    def take(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = tensor, tensor[rows]
        return known[id(tensor)][1]

    return {slot: gradient.keep(take) for slot, gradient in gradients.items()}


def _tiles(
    rows: NDArray[np.int64], places: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Cuts rows that are laid out in tiles, with the places in them that count."""
    for start in range(0, rows.size, TILE_ROWS):
        inside = places[(places >= start) & (places < start + TILE_ROWS)]
        yield rows[start : start + TILE_ROWS], inside - start


@dataclass(frozen=True, eq=False)
class _Layout:
    """Poisson samples of many clients in tiles, one client's after the other; see `tiled`.

    Attributes:
        sizes: rows per client.
        tiles: rows of one tile of each client.
        drawn: (drawn,) the numbers of the drawn records, counted over all clients.
        places: (drawn,) the row in which each stands.
        counts: drawn records per client.
    """

    sizes: list[int]
    tiles: list[int]
    drawn: Tensor
    places: Tensor
    counts: list[int]

    @classmethod
    def of(cls, records: ClientRecords, sample: Sample, tiles: list[int]) -> _Layout:
        """Lays out each client's sample in tiles of its own size."""
        sizes: list[int] = []
        places: list[NDArray[np.int64]] = []
        numbers: list[NDArray[np.int64]] = []
        for drawn, start, tile in zip(sample.drawn, records.starts, tiles, strict=True):
            rows, where = tiled(drawn, tile)
            places.append(where + sum(sizes))
            numbers.append(drawn + start)
            sizes.append(rows.size)
        return cls(
            sizes,
            tiles,
            torch.from_numpy(np.concatenate(numbers)),
            torch.from_numpy(np.concatenate(places)),
            [one.size for one in sample.drawn],
        )

    def laid_out(self, records: Tensor, what: str) -> Tensor:
        """(rows, ...) each drawn record in its place.

        Unused rows hold whatever was there before, zeros or records of earlier steps. They are computed, and the
        results ignored. The buffer is kept for the next step.
        """
        shape = (sum(self.sizes), *records.shape[1:])
        size = math.prod(shape)
        kept = _WORKSPACE.buffers.get((what, records.dtype))
        if kept is None or kept.numel() < size:
            kept = torch.zeros(size, dtype=records.dtype)
            _WORKSPACE.buffers[what, records.dtype] = kept
        rows = kept[:size].view(shape)
        rows.index_copy_(0, self.places, records.index_select(0, self.drawn))
        return rows

    def counting(self, first: int, last: int, clients: slice) -> tuple[Tensor, list[int]]:
        """The drawn records in the rows `first` to `last`, and how many of them belong to each of these clients."""
        inside = torch.nonzero((self.places >= first) & (self.places < last)).flatten()
        ends = torch.tensor(self.counts).cumsum(0)
        counts = torch.searchsorted(inside, ends).diff(prepend=torch.zeros(1, dtype=torch.int64))
        return inside, counts.tolist()[clients]


def _passes(
    sizes: Sequence[int], most: int, persons: Tensor | None = None, whole_clients: bool = False
) -> Iterator[tuple[int, int, slice, list[int]]]:
    """(first row, last row, clients, their rows) of passes of at most about `most` rows.

    A pass holds whole clients, or a piece of one client that has too many rows. A client whose sum is added in
    float32 is never cut in two, and neither is a person; with `whole_clients` no client is.
    """
    row = 0
    first_client = 0
    counts: list[int] = []
    for client, size in enumerate(sizes):
        held = sum(counts)
        if held and held + size > most:
            yield row - held, row, slice(first_client, client), counts
            first_client = client
            counts = []
        if size > most and not whole_clients:
            for start, end in _pieces(row, size, most, persons):
                yield start, end, slice(first_client, client + 1), [*[0] * len(counts), end - start]
            first_client = client + 1
            counts = []
        else:
            counts.append(size)
        row += size
    if counts:
        yield row - sum(counts), row, slice(first_client, len(sizes)), counts


def _pieces(first: int, size: int, most: int, persons: Tensor | None) -> Iterator[tuple[int, int]]:
    """Cuts one client's rows: every `most`, in whole tiles, or at the next change of person."""
    if persons is None:
        step = -(-most // TILE_ROWS) * TILE_ROWS
        cuts = list(range(first, first + size, step))
    else:
        mine = persons[first : first + size]
        changes = (torch.nonzero(mine[1:] != mine[:-1]).flatten() + 1 + first).tolist()
        cuts = [first]
        for change in changes:
            if change - cuts[-1] >= most:
                cuts.append(change)
    yield from zip(cuts, [*cuts[1:], first + size], strict=True)


# --- persons ---------------------------------------------------------------------------------------------


def _person_factors(
    gradients: dict[int, RowGradients], squared: Tensor, bad: Tensor, clip_norm: float, persons: Tensor
) -> Tensor:
    """(rows,) float32 clip factors, the same for all records of a person: they clip the norm of the person's sum.

    Records that are `bad`, (rows,) booleans, count as zeros.
    """
    squared = squared.masked_fill(bad, 0.0)
    factor = torch.empty(persons.shape[0], dtype=torch.float64)
    _, counts = torch.unique_consecutive(persons, return_counts=True)
    starts = counts.cumsum(0) - counts
    for members in counts.unique().tolist():
        groups = starts[counts == members][:, None] + torch.arange(members)
        norms = torch.zeros(groups.shape[0], dtype=torch.float64)
        for gradient in gradients.values():
            norms += _group_squared_norms(gradient, groups, bad)
        factor[groups] = group_factors(norms, squared[groups].sum(1), members, clip_norm)[:, None]
    return rounded_down(factor)


def _group_squared_norms(gradient: RowGradients, groups: Tensor, bad: Tensor) -> Tensor:
    """(groups,) float64 ‖Σ gradients‖² over the records in each row of `groups`, (groups, members).

    By ‖Σ aᵢ gᵢᵀ‖² = Σᵢⱼ (aᵢ·aⱼ)(gᵢ·gⱼ), or for large groups by forming the sum.
    """

    def taken(rows: Tensor) -> Tensor:
        # Padded with zeros, so that every group begins at a multiple of 64 bytes and is computed in the same way.
        mine = rows.masked_fill(bad[:, None], 0.0)[groups].double()
        return torch.nn.functional.pad(mine, (0, -rows.shape[1] % 8))

    if isinstance(gradient, Outer):
        left = taken(gradient.left)
        right = taken(gradient.right)
        if groups.shape[1] ** 2 <= gradient.left.shape[1] * gradient.right.shape[1]:
            return ((left @ left.mT) * (right @ right.mT)).sum((1, 2))
        return (left.mT @ right).square().sum((1, 2))
    return taken(gradient.formed()).sum(1).square().sum(1)


class _PersonSums:
    """Adds up each person's gradients over blocks of records, and each person's clipped sum to a total."""

    def __init__(self, total: Tensor, clip_norm: float) -> None:
        self.total = total
        self.clip_norm = clip_norm
        # The person whose records may continue in the next block: number, sum, energy and members so far.
        self.open: tuple[int, Tensor, Tensor, Tensor] | None = None

    def add(self, numbers: Tensor, gradients: Tensor, energy: Tensor) -> None:
        """Takes a block: (rows,) the person of each record, (rows, parameters) float64, (rows,) squared norms."""
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
        """Adds the clipped sum of the last person."""
        if self.open is not None:
            _, sums, energy, members = self.open
            self._close(sums[None], energy[None], members[None])
        self.open = None

    def _close(self, sums: Tensor, energy: Tensor, members: Tensor) -> None:
        factor = rounded_down(group_factors(sums.square().sum(1), energy, members, self.clip_norm))
        self.total += sums.t() @ factor.double()
