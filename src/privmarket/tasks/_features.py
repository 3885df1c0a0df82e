"""Fixed transforms of single images: public, untrained, the same for everybody.

A record's features depend on that record alone, so computing them costs no privacy. Better features let the
same noise buy a better model [TramerBoneh2021].

- oriented gradients: how strongly brightness rises in each direction, cell by cell;
- scattering: moduli of wavelet transforms, averaged over cells; two scales, eight angles, second order;
- whitened scattering: the same in a basis in which made-up public images vary alike in all directions;
- patches and scattering: in addition, how much each quarter of the image looks like patches of made-up images.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from privmarket._files import file_beside
from privmarket.errors import DataError, UnknownNameError
from privmarket.privacy._calibration import cache_folder
from privmarket.tasks._datasets import Dataset, Pixels

ANGLES = 8
CELL_PIXELS = 4
# Planes of a channel: the image itself; fine waves; coarse waves; fine waves followed by coarse ones.
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

    An image is filtered by oriented waves of two scales, the modulus is taken, the result is filtered and its
    modulus taken once more, and everything is averaged over cells of 4 × 4 pixels.

    h and w are at least `SMALLEST_SIDE`. Planes of a channel stand one after the other, in the order of
    `ORDERS`. All but the first are ≥ 0, and the transform is homogeneous: twice the contrast, twice the output.

    Implements: the scattering transform of [BrunaMallat2013] with Morlet waves, J = 2 scales and 8 angles.
    Deviation: waves are cut at 2.5 deviations and applied as convolutions of the image, continued by reflection;
    the usual libraries multiply Fourier transforms and so continue it periodically.
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
    # 1e-3 is far less than an edge gives; it keeps rounding errors in flat groups from being scaled up.
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
    width = _WIDTH * 2**scale
    frequency = _FREQUENCY / 2**scale
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
    real = filtered[:, :ANGLES]
    imaginary = filtered[:, ANGLES:]
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


# A direction whose energy is λ times that of the strongest is scaled by (λ + floor)^−strength.
_STRENGTH = 0.5
_FLOOR = 1e-2
_KEPT_DIRECTIONS = 2000
_IMAGES = 3000
_SHAPES_PER_IMAGE = 40
_BLOCK_IMAGES = 500
_SEED = 20_130_801


@dataclass(frozen=True, eq=False)
class PublicBasis:
    """Directions in the space of feature maps, strongest first, and how much each is scaled.

    Attributes:
        planes: (planes, planes) orthogonal, columns are directions among planes.
        cells: (cells, cells) orthogonal, columns are directions among cells.
        chosen: (directions,) which entries of the flattened (planes, cells) are kept.
        scale: (directions,) what they are multiplied by.
    """

    planes: Tensor
    cells: Tensor
    chosen: Tensor
    scale: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """(rows, planes, h, w) → (rows, directions, 1, 1)."""
        turned = self.planes.T @ features.flatten(2) @ self.cells
        kept: Tensor = turned.flatten(1)[:, self.chosen] * self.scale
        return kept[:, :, None, None]


@lru_cache(maxsize=4)
def public_basis(image_shape: tuple[int, int, int]) -> PublicBasis:
    """The basis for images of (channels, height, width); the same on every machine up to rounding.

    Scattering coefficients are strongly correlated: a few directions carry most of the energy, and gradient descent
    needs many rounds, each of them paid for, to learn along the others. Evening out the directions makes a round
    learn more. The statistics of the clients' records would have to be bought; those of overlapping shapes of
    random size and shade are close enough (docs/decisions/public-whitening.md) and cost nothing. The covariance of
    a feature map is modelled as planes × cells (a Kronecker product), which a few thousand images determine well.
    """
    generator = torch.Generator().manual_seed(_SEED)
    planes = cells = torch.zeros(())
    for _ in range(0, _IMAGES, _BLOCK_IMAGES):
        maps = normalised_scattering(overlapping_shapes(_BLOCK_IMAGES, image_shape, generator))
        of_planes, of_cells = _second_moments(maps)
        planes = planes + of_planes
        cells = cells + of_cells
    return _basis(planes, cells, _KEPT_DIRECTIONS, _FLOOR)


def _second_moments(maps: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, planes, h, w) → (planes, planes) and (cells, cells) sums of products over everything else."""
    flat = maps.flatten(2).double()
    return torch.einsum("nps,nqs->pq", flat, flat), torch.einsum("nps,npt->st", flat, flat)


def _basis(planes: Tensor, cells: Tensor, kept: int, floor: float) -> PublicBasis:
    """The `kept` strongest directions of planes × cells, from the second moments of each."""
    (plane_energy, plane_directions), (cell_energy, cell_directions) = map(_directions, (planes, cells))
    energy = plane_energy.clamp_min(0.0)[:, None] * cell_energy.clamp_min(0.0)
    share = (energy / energy.max()).flatten()
    chosen = share.argsort(descending=True, stable=True)[:kept]
    scale = (share[chosen] + floor) ** -_STRENGTH
    return PublicBasis(plane_directions.float(), cell_directions.float(), chosen, scale.float())


def _directions(moments: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) energies, ascending, and (n, n) their directions as columns, each with its largest entry positive."""
    energy, directions = torch.linalg.eigh(moments)
    # An eigenvector's sign is the library's choice; parties on different machines must agree on it.
    largest = directions.gather(0, directions.abs().argmax(dim=0, keepdim=True))
    return energy, directions * largest.sign()


def overlapping_shapes(count: int, image_shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """(count, channels, height, width) overlapping ellipses and rectangles of random place, size, form and shade.

    Implements: the dead-leaves model of natural images, after [LeeMumfordHuang2001].
    """
    channels, height, width = image_shape
    side = max(height, width)
    down, across = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")

    def uniform(*shape: int) -> Tensor:
        return torch.rand(count, *shape, 1, 1, generator=generator)

    images = uniform(channels).expand(count, channels, height, width)
    for _ in range(_SHAPES_PER_IMAGE):
        radius = (1.5 / (uniform(1) + 1.5 / side)).clamp_max(side / 2)
        angle = math.pi * uniform(1)
        ratio = 0.15 + 0.85 * uniform(1)
        x = across - width * uniform(1)
        y = down - height * uniform(1)
        along = x * angle.cos() + y * angle.sin()
        beside = (y * angle.cos() - x * angle.sin()) / ratio
        rectangle = torch.maximum(along.abs(), beside.abs())
        distance = torch.where(uniform(1) < 0.5, rectangle, torch.hypot(along, beside))
        cover = (radius - distance + 0.5).clamp(0.0, 1.0)
        images = images * (1.0 - cover) + uniform(channels) * cover
    return (images - 0.5) / 0.25


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
    """`normalised_scattering` in the basis of `public_basis`, (rows, directions, 1, 1), each row of norm 10."""
    channels, height, width = images.shape[1:]
    return to_one_norm(public_basis((channels, height, width))(normalised_scattering(images)))


_FILTERS = 256
_PATCH_PIXELS = 5
_PATCHES_PER_IMAGE = 20
_PATCH_VARIANCE = 0.05**2  # added to a patch's own, so that noise in a flat one is not scaled up
_LEAST_DEVIATION = 0.1  # of a patch that becomes a filter: flatter ones show no pattern
_PATCH_RIDGE = 0.1  # added to the variances of patches, each about 1 on average, before they are evened out
_LEAST_LIKENESS = 0.25
_PATCH_FLOOR = 1e-3
_PATCH_DIRECTIONS = 1400
_SCATTERING_DIRECTIONS = 1000
_BLOCK_PATCH_ROWS = 10  # their responses fit into a processor's cache: several times faster than 100


@dataclass(frozen=True, eq=False)
class PublicPatches:
    """Filters made of patches of overlapping shapes, and the basis in which their responses are used.

    Attributes:
        filters: (filters, channels, 5, 5), each of mean 0.
        offset: (filters,) what a filter answers to the mean patch.
        mean, deviation: (2·filters, 2, 2) of the square roots of pooled responses to overlapping shapes.
        basis: directions among the standardised responses.
    """

    filters: Tensor
    offset: Tensor
    mean: Tensor
    deviation: Tensor
    basis: PublicBasis

    def __call__(self, images: Tensor) -> Tensor:
        """(rows, channels, h, w) → (rows, directions, 1, 1), each row of norm 10."""
        return to_one_norm(self.basis(self.standardised(patch_likeness(images, self.filters, self.offset))))

    def standardised(self, likeness: Tensor) -> Tensor:
        """The square roots of `likeness`, with mean 0 and deviation 1 among overlapping shapes."""
        return (likeness.sqrt() - self.mean) / self.deviation


def patch_likeness(images: Tensor, filters: Tensor, offset: Tensor) -> Tensor:
    """How much an image's patches look like each filter, or like its negative, averaged over each quarter.

    The patch p at each place is scaled to mean 0 and nearly deviation 1. With the answer z = ⟨filter, p⟩ − offset,
    the planes hold the means of max(0, z − ¼), then of max(0, −z − ¼).

    Args:
        images: (rows, channels, h, w); h and w at least 6.
        filters: (filters, channels, 5, 5), each of mean 0.
        offset: (filters,).

    Returns:
        (rows, 2·filters, 2, 2), ≥ 0.
    """
    box = torch.full_like(filters[:1], 1.0 / filters[0].numel())
    done = []
    for block in torch.split(images, _BLOCK_PATCH_ROWS):
        variance = F.conv2d(block.square(), box) - F.conv2d(block, box).square()
        answer = F.conv2d(block, filters)
        answer *= (variance.clamp_min(0.0) + _PATCH_VARIANCE).rsqrt()
        answer -= offset[:, None, None]
        like = F.adaptive_avg_pool2d(F.relu(answer - _LEAST_LIKENESS), 2)
        unlike = F.adaptive_avg_pool2d(F.relu(-_LEAST_LIKENESS - answer), 2)
        done.append(torch.cat([like, unlike], dim=1))
    return torch.cat(done)


@lru_cache(maxsize=4)
def public_patches(image_shape: tuple[int, int, int]) -> PublicPatches:
    """The patches for images of (channels, height, width); the same on every machine up to rounding."""
    generator = torch.Generator().manual_seed(_SEED)
    images = overlapping_shapes(_IMAGES, image_shape, generator)
    filters, offset = _patch_filters(images, generator)
    likeness = torch.cat([patch_likeness(block, filters, offset) for block in torch.split(images, _BLOCK_IMAGES)])
    roots = likeness.sqrt()
    deviation = roots.std(dim=0) + 1e-3 * roots.std()
    mean = roots.mean(dim=0)
    moments = _second_moments(to_one_norm((roots - mean) / deviation))
    return PublicPatches(filters, offset, mean, deviation, _basis(*moments, _PATCH_DIRECTIONS, _PATCH_FLOOR))


def _patch_filters(images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(filters, channels, 5, 5) filters out of random patches of `images`, and their answers to the mean patch.

    With patches of mean 0 and nearly deviation 1, m their mean and W the symmetric root of the inverse of their
    covariance (with a ridge), the filter of a patch p is W·W·(p − m), divided by the norm of W·(p − m).
    """
    channels = images.shape[1]
    patches = torch.cat([_random_patches(block, generator) for block in torch.split(images, _BLOCK_IMAGES)])
    patches = patches - patches.mean(dim=1, keepdim=True)
    variance = patches.square().mean(dim=1, keepdim=True)
    patches = (patches / (variance + _PATCH_VARIANCE).sqrt())[variance[:, 0].sqrt() > _LEAST_DEVIATION].double()
    mean = patches.mean(dim=0)
    energy, directions = torch.linalg.eigh((patches - mean).T @ (patches - mean) / len(patches))
    evened = (directions * (energy.clamp_min(0.0) + _PATCH_RIDGE).rsqrt()) @ directions.T
    chosen = torch.randperm(len(patches), generator=generator)[:_FILTERS]
    white = (patches[chosen] - mean) @ evened
    filters = (white / white.norm(dim=1, keepdim=True)) @ evened
    offset = filters @ mean
    filters = filters - filters.mean(dim=1, keepdim=True)
    return filters.reshape(-1, channels, _PATCH_PIXELS, _PATCH_PIXELS).float(), offset.float()


def _random_patches(images: Tensor, generator: torch.Generator) -> Tensor:
    """(rows·20, channels·25) patches, 20 random places of every image."""
    places = F.unfold(images, _PATCH_PIXELS)  # (rows, channels·25, places)
    chosen = torch.randint(places.shape[2], (len(images), 1, _PATCHES_PER_IMAGE), generator=generator)
    return places.gather(2, chosen.expand(-1, places.shape[1], -1)).transpose(1, 2).flatten(0, 1)


def patches_and_scattering(images: Tensor) -> Tensor:
    """The strongest 1,000 directions of `whitened_scattering` beside 1,400 of `public_patches`.

    The two say different things about a picture: scattering looks at one colour channel at a time, patches at all
    of them together.

    Args:
        images: (rows, channels, h, w); h and w at least `SMALLEST_SIDE`.

    Returns:
        (rows, directions, 1, 1), each row of norm 10. With 3 channels of 32 × 32 pixels, 2,400 directions.

    Implements: random patches as features, of [CoatesNg2011], with the soft threshold and the quarters used there.
    Deviation: patches come from overlapping shapes instead of the pictures to be learned from, which are private;
    responses enter by their square roots, and in a basis in which overlapping shapes vary alike.
    """
    channels, height, width = images.shape[1:]
    scattered = to_one_norm(whitened_scattering(images)[:, :_SCATTERING_DIRECTIONS])
    patched = public_patches((channels, height, width))(images)
    return to_one_norm(torch.cat([scattered, patched], dim=1))


_TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "oriented-gradients": oriented_gradients,
    "centred-gradients": centred_gradients,
    "scattering": normalised_scattering,
    "whitened-scattering": whitened_scattering,
    "patches-and-scattering": patches_and_scattering,
}
_STORED = ("scattering", "whitened-scattering", "patches-and-scattering")
FEATURES = ("none", *_TRANSFORMS)


def feature_names() -> tuple[str, ...]:
    """The transforms that `with_features` takes."""
    return FEATURES
