"""Private training without torch: an app that computes its records' gradients itself, in NumPy or any framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from flwr.app import Context, Message
from numpy.typing import ArrayLike, NDArray

from privmarket.errors import DataError, PrivacyError
from privmarket.flower import _trial as trial
from privmarket.flower._wire import Arrays
from privmarket.training._numpy import clipped_sum, noisy_sum

Gradients = Callable[[Arrays, NDArray[np.int64]], Mapping[str, ArrayLike]]
"""(weights by name, positions of records) ↦ per-record gradients by name, each (positions, *shape of the array)."""
_BLOCK_ROWS = 512


def train_arrays_privately(
    message: Message, context: Context, arrays: Mapping[str, np.ndarray], gradients: Gradients, records: int
) -> Arrays:
    """Trains named arrays for the sale in a message; for apps behind `WalletMod(noise="records")`.

    The steps are those of `train_privately`: Poisson batches, gradients clipped record by record, exact noise.

    Args:
        message: the message that the app was called with.
        context: of its node.
        arrays: the weights in the message, by name; not changed.
        gradients: the gradient of each record's loss, see `Gradients`. A record's gradient may depend on that
            record and the weights only.
        records: how many records the client holds.

    Returns:
        The weights that may be sent back, under the same names.

    Raises:
        PrivacyError: the gradients have other shapes.
        DataError: there are no records.
    """
    job = trial.job_of(message, context)
    if job.unit != "record":
        raise PrivacyError(f"unit {job.unit!r}", "for a person as unit use train_privately, which adds up persons")
    if records < 1:
        raise DataError("no records", "a client without records cannot sell")
    weights = {name: np.array(array, dtype=np.float32) for name, array in arrays.items()}
    if trial.is_trial(message):
        _rows(gradients, weights, np.arange(min(2, records)))
        raise trial.Passed
    sale = job.sale
    rate = np.float32(sale.learning_rate / sale.expected_batch)
    for _ in range(sale.family.steps):
        chosen = np.arange(records)
        if sale.family.sampling_rate < 1.0:
            chosen = np.flatnonzero(job.noise.bernoulli(sale.family.sampling_rate, records))
        total = np.zeros(sum(array.size for array in weights.values()))
        for start in range(0, len(chosen), _BLOCK_ROWS):
            rows = _rows(gradients, weights, chosen[start : start + _BLOCK_ROWS])
            total += clipped_sum(rows, sale.clip_norm)
        released = noisy_sum(
            total,
            clip_norm=sale.clip_norm,
            noise_multiplier=job.noise_multiplier,
            records=records,
            source=job.noise,
        )
        start = 0
        for name, array in weights.items():
            part = released[start : start + array.size].reshape(array.shape)
            weights[name] = array - rate * part
            start += array.size
    sent = {name: weights[name].astype(array.dtype) for name, array in arrays.items()}
    trial.note_release(message, sent)
    return sent


def _rows(gradients: Gradients, weights: Arrays, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """(records, parameters) per-record gradients as one matrix, in the order of the weights."""
    found = gradients({name: array.copy() for name, array in weights.items()}, chosen)
    if set(found) != set(weights):
        raise PrivacyError(
            f"gradients of {sorted(found)[:4]}, weights {sorted(weights)[:4]}", "return one array for each weight"
        )
    parts = []
    for name, array in weights.items():
        part = np.asarray(found[name], dtype=np.float64)
        if part.shape != (len(chosen), *array.shape):
            raise PrivacyError(
                f"gradients of {name} have shape {part.shape} for {len(chosen)} records of weights {array.shape}",
                f"return ({len(chosen)}, *{array.shape}): one gradient per record, not their mean",
            )
        parts.append(part.reshape(len(chosen), -1))
    return np.concatenate(parts, axis=1)
