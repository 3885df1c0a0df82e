"""Private sums for models that are not torch's: per-record gradients as NumPy arrays, from any framework.

A client that computes its own gradients (NumPy, JAX, scikit-learn's linear models) passes them in, one row per
record. `clipped_sum` bounds the contribution of each record, `noisy_sum` releases the sum with the noise that was
sold. Both compute in float64, and the proof of docs/theory/finite-arithmetic.md covers them in the same way as sums
over persons: each contribution has a norm of at most C, and the grid's sensitivity includes the rounding errors of
a sum. This module does not need torch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket.errors import PrivacyError
from privmarket.privacy._noise import NoiseSource
from privmarket.privacy._release import ReleaseGrid, double_sum_inflation

_BLOCK_ROWS = 4096
_SHRINK = 1.0 - 2.0**-40  # larger than all rounding errors of a norm, a factor and a product together


def clipped_sum(gradients: ArrayLike, clip_norm: float) -> NDArray[np.float64]:
    """(parameters,) the sum of per-record gradients, each scaled down to a norm of at most `clip_norm`.

    A record whose gradient is not finite adds nothing.

    Args:
        gradients: (records, parameters), one row per record; a row may depend on its own record only.
        clip_norm: C > 0.

    Raises:
        PrivacyError: the gradients are not a matrix.
    """
    rows = np.asarray(gradients, dtype=np.float64)
    if rows.ndim != 2:
        raise PrivacyError(
            f"gradients of shape {rows.shape}", "give one row per record: (records, parameters), flattened"
        )
    total = np.zeros(rows.shape[1])
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = rows[start : start + _BLOCK_ROWS]
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.sqrt(np.square(block).sum(axis=1))
        usable = np.isfinite(norms)
        factors = np.minimum(1.0, clip_norm / np.maximum(norms[usable], 1e-300)) * _SHRINK
        total += (block[usable] * factors[:, None]).sum(axis=0)
    return total


def noisy_sum(
    total: ArrayLike, *, clip_norm: float, noise_multiplier: float, records: int, source: NoiseSource
) -> NDArray[np.float32]:
    """(parameters,) a clipped sum with exact noise, as it may leave the client.

    Args:
        total: from `clipped_sum`, or a sum of your own in which no record counts for more than `clip_norm`.
        noise_multiplier: σ; the noise has deviation σ·clip_norm in every coordinate.
        records: how many records the client holds, or more.
        source: of randomness; `NoiseSource.from_system()` outside tests.
    """
    sums = np.ascontiguousarray(total, dtype=np.float64).reshape(-1)
    # For blocks of 4096 records or fewer: the bound is largest at one of the two ends.
    inflation = max(double_sum_inflation(records), double_sum_inflation(records, 1))
    grid = ReleaseGrid.for_release(noise_multiplier, clip_norm, sums.size, inflation)
    released: NDArray[np.float32] = grid.noisy(sums, source, np.empty(sums.size, dtype=np.float32))
    return released
