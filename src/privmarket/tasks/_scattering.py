"""The wavelet scattering transform of single images, to second order, by convolutions.

An image is filtered by oriented waves of two scales, the modulus is taken, the result is filtered and its modulus
taken once more, and everything is averaged over cells of 4 × 4 pixels. Nothing is trained, and a record's features
depend on that record alone.

Implements: the scattering transform of [BrunaMallat2013] with Morlet waves, J = 2 scales and 8 angles.
Deviation: waves are cut at 2.5 deviations and applied as convolutions of the image, continued by reflection; the
usual libraries multiply Fourier transforms and so continue it periodically.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

ANGLES = 8
CELL_PIXELS = 4
# x itself; fine waves; coarse waves; fine waves followed by coarse ones.
ORDERS = (1, ANGLES, ANGLES, ANGLES * ANGLES)
PLANES = sum(ORDERS)
_PLANES_PER_GROUP = 3
_FEATURE_NORM = 10.0

_WIDTH = 0.8  # deviation of the fine wave's envelope along its direction, in pixels; doubles with each scale
_FREQUENCY = 3 * math.pi / 4  # of the fine wave, radians per pixel; halves with each scale
_SLANT = 0.5  # width along the direction of the wave over width across it
_CUT = 2.5  # deviations

SMALLEST_SIDE = math.ceil(_CUT * 2 * _WIDTH / _SLANT) + 1
"""Pixels that an image must have each way, for the coarse wave to be reflected at its border."""


def scattering(images: Tensor) -> Tensor:
    """(rows, channels, h, w) → (rows, channels·81, ⌈h/4⌉, ⌈w/4⌉) scattering coefficients.

    h and w are at least `SMALLEST_SIDE`. Planes of a channel stand one after the other, in the order of
    `ORDERS`. All but the first are ≥ 0, and the transform is homogeneous: twice the contrast, twice the output.
    """
    rows, channels, height, width = images.shape
    planes = images.reshape(rows * channels, 1, height, width)
    fine = _modulus(planes, _waves(0), stride=1)
    coarse = _modulus(planes, _waves(1), stride=2)
    second = _modulus(fine.reshape(-1, 1, height, width), _waves(1), stride=2)
    second = second.reshape(rows * channels, ANGLES * ANGLES, *coarse.shape[2:])
    done = torch.cat(
        [
            _averaged(torch.cat([planes, fine], dim=1), CELL_PIXELS),
            _averaged(torch.cat([coarse, second], dim=1), CELL_PIXELS // 2),
        ],
        dim=1,
    )
    return done.reshape(rows, channels * PLANES, *done.shape[2:])


def normalised_scattering(images: Tensor) -> Tensor:
    """`scattering`, group by group of 3 planes with mean 0 and deviation 1 in each record, then scaled to one norm.

    Args:
        images: (rows, channels, h, w); h and w at least `SMALLEST_SIDE`.

    Returns:
        (rows, channels·81, ⌈h/4⌉, ⌈w/4⌉), each row of norm 10.

    Implements: the features of [TramerBoneh2021] with group normalisation, which needs no private statistics.
    """
    features = scattering(images)
    groups = features.reshape(features.shape[0], features.shape[1] // _PLANES_PER_GROUP, -1)
    groups = groups - groups.mean(dim=2, keepdim=True)
    # Far less than an edge gives; keeps rounding errors of flat groups small.
    groups = groups / (groups.square().mean(dim=2, keepdim=True).sqrt() + 1e-3)
    return to_one_norm(groups.reshape(features.shape))


def to_one_norm(features: Tensor) -> Tensor:
    """(rows, planes, h, w) with every row of norm 10, blank ones of norm 0."""
    norm = features.flatten(1).norm(dim=1).clamp_min(1e-6)
    scaled: Tensor = features * (_FEATURE_NORM / norm)[:, None, None, None]
    return scaled


@cache
def _waves(scale: int) -> Tensor:
    """(2·angles, 1, k, k) real parts of the waves at each angle, then their imaginary parts."""
    width, frequency = _WIDTH * 2**scale, _FREQUENCY / 2**scale
    reach = math.ceil(_CUT * width / _SLANT)
    pixels = torch.arange(-reach, reach + 1, dtype=torch.float64)
    down, across = torch.meshgrid(pixels, pixels, indexing="ij")
    waves = []
    for k in range(ANGLES):
        angle = math.pi * k / ANGLES
        along = across * math.cos(angle) + down * math.sin(angle)
        beside = down * math.cos(angle) - across * math.sin(angle)
        envelope = torch.exp(-(along**2 + (_SLANT * beside) ** 2) / (2 * width**2))
        wave = torch.polar(envelope, frequency * along)
        # Of mean zero, so that a flat image gives nothing.
        wave = wave - envelope * (wave.sum() / envelope.sum())
        waves.append(wave * _SLANT / (2 * math.pi * width**2))
    return torch.stack([w.real for w in waves] + [w.imag for w in waves])[:, None].float()


def _modulus(planes: Tensor, waves: Tensor, stride: int) -> Tensor:
    """(planes, 1, h, w) → (planes, angles, h/stride, w/stride) modulus of the filtered planes."""
    reach = waves.shape[-1] // 2
    filtered = F.conv2d(F.pad(planes, (reach,) * 4, mode="reflect"), waves, stride=stride)
    real, imaginary = filtered[:, :ANGLES], filtered[:, ANGLES:]
    return torch.hypot(real, imaginary)


def _averaged(planes: Tensor, cell: int) -> Tensor:
    """(n, planes, h, w) → (n, planes, ⌈h/cell⌉, ⌈w/cell⌉) Gaussian means around the middle of each cell."""
    height, width = planes.shape[2:]
    return _cells(height, cell) @ planes @ _cells(width, cell).T


@cache
def _cells(pixels: int, cell: int) -> Tensor:
    """(⌈pixels/cell⌉, pixels) weights of the mean around each cell's middle; rows add up to 1."""
    middles = (torch.arange(math.ceil(pixels / cell), dtype=torch.float64) + 0.5) * cell - 0.5
    distance = torch.arange(pixels, dtype=torch.float64)[None] - middles[:, None]
    weights = torch.exp(-0.5 * (distance / (0.4 * cell)) ** 2)
    return (weights / weights.sum(dim=1, keepdim=True)).float()
