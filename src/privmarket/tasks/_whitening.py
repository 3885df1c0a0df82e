"""A public basis for scattering features: statistics of made-up images, so that no record is looked at.

Scattering coefficients are strongly correlated: a few directions carry most of the energy, and gradient descent
needs many rounds, each of them paid for, to learn along the others. Evening out the directions makes a round
learn more. The statistics of the clients' records would have to be bought; those of overlapping shapes of random
size and shade are close enough (docs/decisions/public-whitening.md) and cost nothing.

The covariance of a feature map is modelled as planes × cells (a Kronecker product), which a few thousand images
determine well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from privmarket.tasks._scattering import normalised_scattering

# A direction with the share λ of the strongest one's energy is scaled by (λ + floor)^−strength.
_STRENGTH, _FLOOR = 0.5, 1e-2
_DIRECTIONS = 2000
_IMAGES, _SHAPES_PER_IMAGE, _BLOCK_IMAGES = 3000, 40, 500
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
    """The basis for images of (channels, height, width); the same on every machine up to rounding."""
    generator = torch.Generator().manual_seed(_SEED)
    planes = cells = torch.zeros(())
    for _ in range(0, _IMAGES, _BLOCK_IMAGES):
        maps = normalised_scattering(overlapping_shapes(_BLOCK_IMAGES, image_shape, generator)).flatten(2).double()
        planes = planes + torch.einsum("nps,nqs->pq", maps, maps)
        cells = cells + torch.einsum("nps,npt->st", maps, maps)
    (plane_energy, plane_directions), (cell_energy, cell_directions) = map(_directions, (planes, cells))
    energy = plane_energy.clamp_min(0.0)[:, None] * cell_energy.clamp_min(0.0)
    share = (energy / energy.max()).flatten()
    chosen = share.argsort(descending=True, stable=True)[:_DIRECTIONS]
    scale = (share[chosen] + _FLOOR) ** -_STRENGTH
    return PublicBasis(plane_directions.float(), cell_directions.float(), chosen, scale.float())


def _directions(moments: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) energies, ascending, and (n, n) their directions as columns, each with its largest entry positive."""
    energy, directions = torch.linalg.eigh(moments)
    # An eigenvector's sign is the library's choice; parties on different machines must agree on it.
    largest = directions.gather(0, directions.abs().argmax(dim=0, keepdim=True))
    return energy, directions * largest.sign()


def overlapping_shapes(count: int, image_shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """(count, channels, height, width) overlapping ellipses and rectangles, random in all respects.

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
        angle, ratio = math.pi * uniform(1), 0.15 + 0.85 * uniform(1)
        x, y = across - width * uniform(1), down - height * uniform(1)
        along = x * angle.cos() + y * angle.sin()
        beside = (y * angle.cos() - x * angle.sin()) / ratio
        rectangle = torch.maximum(along.abs(), beside.abs())
        distance = torch.where(uniform(1) < 0.5, rectangle, torch.hypot(along, beside))
        cover = (radius - distance + 0.5).clamp(0.0, 1.0)
        images = images * (1.0 - cover) + uniform(channels) * cover
    return (images - 0.5) / 0.25
