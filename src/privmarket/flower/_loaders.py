"""A client's records as apps have them: two arrays, a torch data set, or a `DataLoader` with any kind of batch.

What is taken from a loader is its data set, each record once, with the loader's own way to make batches. Its order
and batch size do not matter: `train_privately` draws its own batches. A sampler that may name a record twice is
refused, because a record that counts twice is protected half as well as its owner was told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
)

from privmarket.errors import DataError
from privmarket.training import Column

_BATCH = 256
_LABELS = ("label", "labels", "target", "targets", "y")
_INPUTS = ("img", "image", "images", "input", "inputs", "x", "features", "data", "pixel_values", "input_ids")


def records_of(data: Any, labels: Column | None = None) -> tuple[Tensor, Tensor]:
    """(inputs, labels) along the first axis, on the processor.

    Args:
        data: a `DataLoader`, a data set of records, or the inputs themselves.
        labels: beside inputs.

    Raises:
        DataError: there are none, or batches in which inputs and labels cannot be told apart.
    """
    if labels is not None:
        return _plain(data), _plain(labels)
    if isinstance(data, DataLoader):
        batches: Iterable[Any] = _once(data)
    elif isinstance(data, Dataset):
        batches = DataLoader(data, batch_size=_BATCH)
    elif isinstance(data, tuple | list) and len(data) == 2:
        return _plain(data[0]), _plain(data[1])
    else:
        raise DataError(
            f"records of type {type(data).__name__}", "give a DataLoader, a data set, or inputs and labels"
        )
    pairs = [_split(batch) for batch in batches]
    if not pairs:
        raise DataError("the loader holds no records", "a client without records cannot sell")
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def columns_of(found: Any) -> tuple[Column, Column, Column | None]:
    """Inputs, labels, and whose records they are or None, from what a client's own data function returned.

    Raises:
        DataError: it is neither a tuple of two or three columns nor a loader or data set.
    """
    if isinstance(found, tuple | list) and len(found) in (2, 3):
        return found[0], found[1], found[2] if len(found) == 3 else None
    inputs, labels = records_of(found)
    return inputs, labels, None


def _once(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A loader of the same records, each once and in order."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        return loader
    sampler = loader.sampler
    if isinstance(sampler, SubsetRandomSampler):
        dataset = Subset(dataset, sorted(set(sampler.indices)))
    elif not isinstance(sampler, SequentialSampler | RandomSampler) or getattr(sampler, "replacement", False):
        raise DataError(
            f"a DataLoader with a {type(sampler).__name__}, which may name a record twice",
            "use shuffle=True, or give the data set itself",
        )
    if type(loader.batch_sampler) not in (BatchSampler, type(None)):
        raise DataError(
            f"a DataLoader with a {type(loader.batch_sampler).__name__}",
            "give the data set itself, or plain batches",
        )
    return DataLoader(dataset, batch_size=loader.batch_size or _BATCH, collate_fn=loader.collate_fn, num_workers=0)


def _split(batch: Any) -> tuple[Tensor, Tensor]:
    """Inputs and labels of one batch: a pair, or a mapping with names that are common."""
    if isinstance(batch, Mapping):
        named = _by_name(batch)
        return _plain(named[0]), _plain(named[1])
    if isinstance(batch, Sequence) and len(batch) == 2:
        return _plain(batch[0]), _plain(batch[1])
    size = f" of {len(batch)}" if isinstance(batch, Sequence) else ""
    raise DataError(
        f"a batch that is a {type(batch).__name__}{size}",
        "let batches be (inputs, labels), or a mapping of the two",
    )


def _by_name(batch: Mapping[str, Any]) -> tuple[Any, Any]:
    keys = list(batch)
    labels = [key for key in keys if key in _LABELS]
    inputs = [key for key in keys if key in _INPUTS]
    if len(labels) == 1 and not inputs and len(keys) == 2:
        inputs = [key for key in keys if key not in labels]
    if len(labels) != 1 or len(inputs) != 1:
        raise DataError(
            f"a batch with {', '.join(map(repr, keys))}: which are the inputs, which the labels?",
            "give them by name: train_privately(message, context, model, batch_inputs, batch_labels)",
        )
    return batch[inputs[0]], batch[labels[0]]


def _plain(column: Any) -> Tensor:
    return torch.as_tensor(column).detach().cpu()
