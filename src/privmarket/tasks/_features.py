"""Fixed transforms of single images: public, untrained, the same for everybody.

A record's features depend on that record alone, so computing them costs no privacy. Better features let the
same noise buy a better model [TramerBoneh2021].
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from privmarket._files import file_beside
from privmarket.errors import DataError, UnknownNameError
from privmarket.privacy._calibration import cache_folder
from privmarket.tasks._datasets import Dataset, Pixels
from privmarket.tasks._scattering import SMALLEST_SIDE, normalised_scattering, to_one_norm
from privmarket.tasks._whitening import public_basis

_DIRECTIONS = 8
_CELL_PIXELS = 4
_BLOCK_ROWS = 500
# Part of the name of a stored file: raise it whenever a transform changes, so that nobody reads old features.
_FORMAT = 1


def with_features(dataset: Dataset, name: str) -> Dataset:
    """The data set with every image replaced by its features, (records, planes, h, w)."""
    if name not in FEATURES:
        raise UnknownNameError(f"unknown features {name!r}", f"choose one of: {', '.join(FEATURES)}")
    if name == "none":
        return dataset
    if name in _STORED and min(dataset.image_shape[1:]) < SMALLEST_SIDE:
        height, width = dataset.image_shape[1:]
        raise DataError(
            f"{name} needs at least {SMALLEST_SIDE} pixels each way; {dataset.name} has {height} × {width}",
            "use features=centred-gradients",
        )
    compute = _stored if name in _STORED else _in_memory
    train, test = (compute(images, name) for images in (dataset.train_images, dataset.test_images))
    return replace(dataset, train_images=train, test_images=test)


def _in_memory(images: Pixels, name: str) -> Pixels:
    """The features of all records, a block at a time."""
    starts = range(0, len(images), _BLOCK_ROWS)
    done: Pixels = torch.cat(
        [_TRANSFORMS[name](torch.from_numpy(images[a : a + _BLOCK_ROWS])) for a in starts]
    ).numpy()
    return done


def _stored(images: Pixels, name: str) -> Pixels:
    """The features of all records, computed once and then read from the cache folder.

    The file is found by a hash of the pixels, so another data set of the same name gets another file. It is mapped
    into memory: only what is used is read.
    """
    digest = hashlib.sha256(f"{_FORMAT} {name} {images.shape}".encode())
    digest.update(np.ascontiguousarray(images).data)
    path = cache_folder() / "features" / f"{name}-{digest.hexdigest()[:24]}.npy"
    try:
        return np.asarray(_mapped(path))
    except (OSError, ValueError):  # absent, or cut short
        _write_features(images, name, path)
        return np.asarray(_mapped(path))


def _mapped(path: Path) -> Pixels:
    mapped: Pixels = np.load(path, mmap_mode="c")
    return mapped


def _write_features(images: Pixels, name: str, path: Path) -> None:
    """Computes block by block into a file beside `path` that gets its name when it is whole."""
    shape = _TRANSFORMS[name](torch.from_numpy(images[:1])).shape[1:]
    with file_beside(path) as partial:
        target = np.lib.format.open_memmap(partial, "w+", np.float32, (len(images), *shape))
        for a in range(0, len(images), _BLOCK_ROWS):
            target[a : a + _BLOCK_ROWS] = _TRANSFORMS[name](torch.from_numpy(images[a : a + _BLOCK_ROWS])).numpy()
        target.flush()


def oriented_gradients(images: Tensor) -> Tensor:
    """How strongly brightness rises in each of 8 directions, averaged over cells of 4 × 4 pixels.

    The square root evens out contrast, and every record is scaled to one norm, so that no record's gradient
    is large merely because its image is bright.

    Args:
        images: (rows, channels, h, w); h and w at least 4.

    Returns:
        (rows, channels·8, ⌈h/4⌉, ⌈w/4⌉), each row of norm 10 (or zero for a blank image).

    Implements: histograms of oriented gradients, after [DalalTriggs2005], with half-wave directions.
    """
    rows, channels, height, width = images.shape
    planes = images.reshape(rows * channels, 1, height, width)
    smooth = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
    slope = torch.tensor([-1.0, -2.0, 0.0, 2.0, 1.0]) / 6
    across = F.conv2d(planes, torch.outer(smooth, slope)[None, None], padding=2)
    down = F.conv2d(planes, torch.outer(slope, smooth)[None, None], padding=2)
    angles = [2 * math.pi * k / _DIRECTIONS for k in range(_DIRECTIONS)]
    rising = torch.cat([F.relu(across * math.cos(a) + down * math.sin(a)) for a in angles], dim=1)
    cells = F.avg_pool2d(rising, _CELL_PIXELS, ceil_mode=True)
    features = cells.reshape(rows, channels * _DIRECTIONS, *cells.shape[2:]).sqrt()
    return to_one_norm(features)


def centred_gradients(images: Tensor) -> Tensor:
    """`oriented_gradients` with the mean over the cells taken off each direction, record by record.

    What all records have in common makes one direction of the loss far steeper than the others and limits the
    step size; a record's own mean takes most of it away and, unlike the population's, costs no privacy.
    """
    features = oriented_gradients(images)
    return to_one_norm(features - features.mean(dim=(2, 3), keepdim=True))


def whitened_scattering(images: Tensor) -> Tensor:
    """`normalised_scattering` in the public basis of `whitening`, (rows, directions, 1, 1), each row of norm 10."""
    channels, height, width = images.shape[1:]
    return to_one_norm(public_basis((channels, height, width))(normalised_scattering(images)))


_TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "oriented-gradients": oriented_gradients,
    "centred-gradients": centred_gradients,
    "scattering": normalised_scattering,
    "whitened-scattering": whitened_scattering,
}
_STORED = ("scattering", "whitened-scattering")
FEATURES = ("none", *_TRANSFORMS)


def feature_names() -> tuple[str, ...]:
    """The transforms that `with_features` takes."""
    return FEATURES
