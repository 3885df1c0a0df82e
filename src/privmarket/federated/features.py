"""Fixed transforms of single images: public, untrained, the same for everybody.

A record's features depend on that record alone, so computing them costs no privacy. Better features let the
same noise buy a better model [TramerBoneh2021].
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from privmarket.errors import UnknownNameError
from privmarket.federated.datasets import Dataset

FEATURES = ("none", "oriented-gradients", "centred-gradients")
_DIRECTIONS = 8
_CELL_PIXELS = 4
_FEATURE_NORM = 10.0
_BLOCK_ROWS = 2000


def with_features(dataset: Dataset, name: str) -> Dataset:
    """The data set with every image replaced by its features, (records, planes, h, w)."""
    if name not in FEATURES:
        raise UnknownNameError(f"unknown features {name!r}", f"choose one of: {', '.join(FEATURES)}")
    if name == "none":
        return dataset
    transform = centred_gradients if name == "centred-gradients" else oriented_gradients
    train, test = (
        torch.cat([transform(torch.from_numpy(images[a : a + _BLOCK_ROWS])) for a in starts])
        for images, starts in (
            (part, range(0, len(part), _BLOCK_ROWS)) for part in (dataset.train_images, dataset.test_images)
        )
    )
    return replace(dataset, train_images=train.numpy(), test_images=test.numpy())


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
    return _to_one_norm(features)


def centred_gradients(images: Tensor) -> Tensor:
    """`oriented_gradients` with the mean over the cells taken off each direction, record by record.

    What all records have in common makes one direction of the loss far steeper than the others and limits the
    step size; a record's own mean takes most of it away and, unlike the population's, costs no privacy.
    """
    features = oriented_gradients(images)
    return _to_one_norm(features - features.mean(dim=(2, 3), keepdim=True))


def _to_one_norm(features: Tensor) -> Tensor:
    """(rows, planes, h, w) with every row of norm 10, blank ones of norm 0."""
    norm = features.flatten(1).norm(dim=1).clamp_min(1e-6)
    scaled: Tensor = features * (_FEATURE_NORM / norm)[:, None, None, None]
    return scaled
