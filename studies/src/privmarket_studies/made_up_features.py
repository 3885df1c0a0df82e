"""Features from images that nobody owns, for `ways_tried`: a second layer of patches, and a trained network.

    python -m privmarket_studies.made_up_features   # trains the network again

All statistics, filters and weights come from scenes drawn at random (overlapping shapes with gradients and
gratings), each seen in two ways; no picture of any data set is used.

- `second-layer`: patches of the maps that the shipped patches make of scenes, put to use as these are. Untrained.
- `contrast`: a network of three convolutions that learned to find the other view of the same scene. Its weights are
  `contrast.safetensors` beside this file.
- `untrained`: the same network before it learned, its statistics of batches taken from scenes.
- `patches-again`: the shipped patches once more, in a basis in which scenes vary alike. What more numbers do alone.

1,400 numbers each; `+name` in `ways_tried` stands for these beside the 2,400 of `patches-and-scattering`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn import functional as F

from privmarket._files import write_atomically
from privmarket.tasks import _features as shipped

WEIGHTS = Path(__file__).with_name("contrast.safetensors")
NAMES = ("second-layer", "contrast", "untrained", "patches-again")
DIRECTIONS = 1400
_SEED = 20_260_101
_SHAPES = 30
_SCENES = 1500  # for statistics, each seen in two ways
_BLOCK = 500
_FLOOR = 1e-3

# Of the second layer.
_MAP_PLANES = 96
_MAP_RIDGE = 0.02
FILTERS = 512
_STEP = 2  # between the pixels of a patch of maps, which stand two pixels of the picture apart
_PATCHES_PER_SCENE = 8
_PATCH_RIDGE = 0.1
_LEAST_LIKENESS = 0.25
_ROWS = 10  # of which the responses fit into a processor's cache

# Of the network and its training.
WIDTHS = (64, 128, 256)
TRAINED_SCENES = 20_000
STEPS = 400
PAIRS = 128
_RATE = 2e-3
_WARM_STEPS = 30
_TEMPERATURE = 0.2
_STRONG, _WEAK = 1.0, 0.6  # changes of colour: to train on, and for statistics


def scenes(count: int, generator: torch.Generator, side: int = 32) -> Tensor:
    """(2, count, 3, side, side) the same scenes seen in two ways, 0..1.

    A scene is a gradient under overlapping ellipses and rectangles, each with a gradient of its own and some with a
    grating. A view is a window of 30 to 100 per cent of its area, mirrored or not, turned and stretched a little.
    """

    def uniform(*shape: int, views: tuple[int, ...] = ()) -> Tensor:
        return torch.rand(*views, count, *shape, 1, 1, generator=generator)

    def normal() -> Tensor:
        return torch.randn(count, 3, 1, 1, generator=generator)

    def of_view() -> Tensor:
        return uniform(1, views=(2,))

    line = (torch.arange(side) + 0.5) / side - 0.5
    down, across = torch.meshgrid(line, line, indexing="ij")
    size = (0.3 + 0.7 * of_view()).sqrt()
    stretch = (0.25 * (of_view() - 0.5)).exp()
    wide, high = size * stretch, size / stretch
    mirror = torch.where(of_view() < 0.5, -1.0, 1.0)
    turn = 0.5 * (of_view() - 0.5)
    left, top = ((of_view() - 0.5) * (1 - length.clamp_max(1.0)) for length in (wide, high))
    a, b = across * wide * mirror, down * high
    x = left + a * turn.cos() - b * turn.sin()
    y = top + a * turn.sin() + b * turn.cos()
    pixel = (wide * high).sqrt() / side
    images = uniform(3) + 0.3 * normal() * x + 0.3 * normal() * y
    for _ in range(_SHAPES):
        radius = (0.05 / (uniform(1) + 0.06)).clamp_max(0.5)
        angle, ratio = math.pi * uniform(1), 0.15 + 0.85 * uniform(1)
        right, below = (place - 1.2 * uniform(1) + 0.6 for place in (x, y))
        along = right * angle.cos() + below * angle.sin()
        beside = (below * angle.cos() - right * angle.sin()) / ratio
        rectangle = torch.maximum(along.abs(), beside.abs())
        distance = torch.where(uniform(1) < 0.5, rectangle, torch.hypot(along, beside))
        cover = ((radius - distance) / pixel + 0.5).clamp(0.0, 1.0)
        frequency, slant = 2 * math.pi * 2 ** (1 + 3 * uniform(1)), math.pi * uniform(1)
        phase = frequency * (along * slant.cos() + beside * ratio * slant.sin()) + 2 * math.pi * uniform(1)
        grating = 0.25 * normal() * (uniform(1) < 0.4) * phase.sin()
        colour = uniform(3) + grating + 0.4 * normal() * along + 0.4 * normal() * beside
        images = images * (1.0 - cover) + colour * cover
    return images.clamp(0.0, 1.0)


def recoloured(images: Tensor, generator: torch.Generator, strength: float) -> Tensor:
    """(rows, 3, h, w) in 0..1, each with other saturation (sometimes none), hues, contrast and brightness."""

    def chance() -> Tensor:
        return torch.rand(len(images), 1, 1, 1, generator=generator)

    grey = images.mean(dim=1, keepdim=True)
    saturation = torch.where(chance() < 0.15, 0.0, 1 + 0.8 * strength * (2 * chance() - 1))
    hues = torch.eye(3) + 0.15 * strength * torch.randn(len(images), 3, 3, generator=generator)
    changed = torch.einsum("nij,njhw->nihw", hues, grey + saturation * (images - grey) - 0.5)
    changed = changed * (1 + 0.5 * strength * (2 * chance() - 1)) + 0.25 * strength * (2 * chance() - 1)
    return (changed + 0.5).clamp(0.0, 1.0)


def scaled(images: Tensor) -> Tensor:
    """0..1 to about the scale of the data sets' pixels."""
    return (images - 0.5) / 0.25


@lru_cache(maxsize=1)
def _for_statistics() -> Tensor:
    """(2·scenes, 3, 32, 32) views from a fixed seed."""
    generator = torch.Generator().manual_seed(_SEED)
    views = torch.cat([scenes(_BLOCK, generator).flatten(0, 1) for _ in range(_SCENES // _BLOCK)])
    return scaled(recoloured(views, generator, _WEAK))


def _in_basis(pooled: Tensor, reference: Tensor) -> Tensor:
    """(rows, planes, 2, 2) ≥ 0 → (rows, directions) in a basis in which roots of `reference` vary alike."""
    roots = reference.sqrt()
    deviation = roots.std(dim=0) + 1e-3 * roots.std()
    mean = roots.mean(dim=0)
    moments = shipped._second_moments(shipped.to_one_norm((roots - mean) / deviation))
    basis = shipped._basis(*moments, DIRECTIONS, _FLOOR)
    found: Tensor = shipped.to_one_norm(basis(shipped.to_one_norm((pooled.sqrt() - mean) / deviation))).flatten(1)
    return found


def _soft(answer: Tensor) -> Tensor:
    """How far answers are above ¼, then how far below −¼."""
    return torch.cat([F.relu(answer - _LEAST_LIKENESS), F.relu(-_LEAST_LIKENESS - answer)], dim=1)


def _maps(images: Tensor) -> list[Tensor]:
    """Blocks of (rows, 512, 13, 13): roots of what the shipped patches answer, averaged over 4 × 4 pixels."""
    patches = shipped.public_patches((3, 32, 32))
    box = torch.full_like(patches.filters[:1], 1.0 / patches.filters[0].numel())
    done = []
    for block in torch.split(images, _ROWS):
        variance = F.conv2d(block.square(), box) - F.conv2d(block, box).square()
        answer = F.conv2d(block, patches.filters)
        answer *= (variance.clamp_min(0.0) + shipped._PATCH_VARIANCE).rsqrt()
        answer -= patches.offset[:, None, None]
        done.append(F.avg_pool2d(_soft(answer), 4, 2).sqrt())
    return done


def _again(images: Tensor) -> Tensor:
    """(rows, 512, 2, 2) what the shipped patches answer."""
    patches = shipped.public_patches((3, 32, 32))
    return shipped.patch_likeness(images, patches.filters, patches.offset)


class SecondLayer:
    """Random 3 × 3 patches of the maps of scenes, evened out, as filters on whitened maps."""

    def __init__(self, images: Tensor) -> None:
        generator = torch.Generator().manual_seed(_SEED + 1)
        maps = _maps(images)
        # A third of the places say enough about 512 planes.
        flat = torch.cat(
            [block[:, :, ::2, ::2].permute(0, 2, 3, 1).reshape(-1, block.shape[1]) for block in maps[::3]]
        )
        self.mean = flat.mean(dim=0)
        centred = (flat - self.mean).double()
        energy, directions = shipped._directions(centred.T @ centred / len(centred))
        strong = energy[-_MAP_PLANES:]
        self.planes = (directions[:, -_MAP_PLANES:] * (strong + _MAP_RIDGE * strong.mean()).rsqrt()).float()
        patches = torch.cat([self._random_patches(self._white(block), generator) for block in maps])
        patches = F.normalize(patches, dim=1) * math.sqrt(patches.shape[1])
        middle = patches.mean(dim=0)
        centred = (patches - middle).double()
        energy, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
        evened = ((directions * (energy.clamp_min(0.0) + _PATCH_RIDGE).rsqrt()) @ directions.T).float()
        chosen = torch.randperm(len(patches), generator=generator)[:FILTERS]
        filters = F.normalize((patches[chosen] - middle) @ evened, dim=1) @ evened
        self.offset = filters @ middle
        self.filters = filters.reshape(FILTERS, _MAP_PLANES, 3, 3)

    def _white(self, maps: Tensor) -> Tensor:
        return torch.einsum("nchw,ck->nkhw", maps - self.mean[:, None, None], self.planes).contiguous()

    def _random_patches(self, maps: Tensor, generator: torch.Generator) -> Tensor:
        places = F.unfold(maps, 3, dilation=_STEP)
        chosen = torch.randint(places.shape[2], (len(maps), 1, _PATCHES_PER_SCENE), generator=generator)
        return places.gather(2, chosen.expand(-1, places.shape[1], -1)).transpose(1, 2).flatten(0, 1)

    def __call__(self, images: Tensor) -> Tensor:
        """(rows, 3, 32, 32) → (rows, 1024, 2, 2) how much each quarter looks like each filter, or its negative."""
        box = torch.full_like(self.filters[:1], 1.0 / self.filters[0].numel())
        done = []
        for maps in _maps(images):
            block = self._white(maps)
            size = F.conv2d(block.square(), box, dilation=_STEP).sqrt()
            answer = F.conv2d(block, self.filters, dilation=_STEP) / (size + 0.1) - self.offset[:, None, None]
            done.append(F.adaptive_avg_pool2d(_soft(answer), 2))
        return torch.cat(done)


class Network(nn.Module):
    """Three convolutions; while it learns, two more layers on the mean over places, which are then thrown away."""

    def __init__(self) -> None:
        super().__init__()
        fine, middle, coarse = WIDTHS
        self.first = self._layer(3, fine, 4, 2)
        self.second = self._layer(fine, middle, 3, 2)
        self.third = self._layer(middle, coarse, 3, 1)
        self.head = nn.Sequential(
            nn.Linear(coarse, coarse), nn.BatchNorm1d(coarse), nn.ReLU(), nn.Linear(coarse, 128)
        )

    @staticmethod
    def _layer(inputs: int, outputs: int, pixels: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, pixels, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
        )

    def maps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, 128, 8, 8) and (rows, 256, 8, 8), ≥ 0."""
        middle = self.second(self.first(images.contiguous(memory_format=torch.channels_last)))
        return middle, self.third(middle)

    def forward(self, images: Tensor) -> Tensor:
        """(rows, 128) of norm 1."""
        return F.normalize(self.head(self.maps(images)[1].mean(dim=(2, 3))), dim=1)

    @torch.no_grad()
    def quarters(self, images: Tensor) -> Tensor:
        """(rows, 384, 2, 2) means of both maps over each quarter."""
        self.eval()
        blocks = torch.split(images, 100)
        return torch.cat([F.adaptive_avg_pool2d(torch.cat(self.maps(block), dim=1), 2) for block in blocks])


def contrast(rows: Tensor) -> Tensor:
    """Mean −log share of a view's partner among all others; rows are all first views, then all second ones."""
    likeness = rows @ rows.T / _TEMPERATURE
    likeness = likeness.masked_fill(torch.eye(len(rows), dtype=torch.bool), -torch.inf)
    return F.cross_entropy(likeness, torch.arange(len(rows)).roll(len(rows) // 2))


def _untrained() -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        return Network()


def trained(count: int = TRAINED_SCENES, steps: int = STEPS, pairs: int = PAIRS) -> tuple[Network, list[float]]:
    """The network after its training, and the loss of every step."""
    generator = torch.Generator().manual_seed(_SEED + 2)
    parts = []
    for start in range(0, count, _BLOCK):
        parts.append((255 * scenes(min(_BLOCK, count - start), generator)).round().byte())
    views = torch.cat(parts, dim=1)
    network = _untrained()
    optimizer = torch.optim.AdamW(network.parameters(), _RATE, weight_decay=1e-4)
    losses = []
    for step in range(steps):
        rate = _RATE * min(1.0, (step + 1) / _WARM_STEPS) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        chosen = torch.randint(count, (pairs,), generator=generator)
        seen = recoloured(views[:, chosen].flatten(0, 1).float() / 255, generator, _STRONG)
        loss = contrast(network(scaled(seen)))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
        if step % 50 == 49:
            print(step + 1, np.mean(losses[-50:]), flush=True)
    return network, losses


def _kept(network: Network) -> dict[str, Tensor]:
    """What the network needs without its head, in half the precision."""
    return {
        name: (part.half() if part.is_floating_point() else part).contiguous()
        for name, part in network.state_dict().items()
        if not name.startswith("head")
    }


@lru_cache(maxsize=2)
def _network(is_trained: bool) -> Network:
    network = _untrained()
    if is_trained:
        network.load_state_dict(load(WEIGHTS.read_bytes()), strict=False)
        return network
    with torch.no_grad():
        for block in torch.split(_for_statistics(), 2 * PAIRS):
            network(block)
    return network


@lru_cache(maxsize=1)
def _second_layer() -> SecondLayer:
    return SecondLayer(_for_statistics())


@torch.no_grad()
def made_up_features(images: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    """(rows, 3, 32, 32) → (rows, 1400) of the features called `name`, each row of norm 10."""
    pixels = torch.from_numpy(np.ascontiguousarray(images))
    transform: Callable[[Tensor], Tensor]
    if name == "second-layer":
        transform = _second_layer()
    elif name == "patches-again":
        transform = _again
    else:
        transform = _network(name == "contrast").quarters
    reference = transform(_for_statistics())
    done: NDArray[np.float32] = _in_basis(transform(pixels), reference).numpy()
    return done


def main() -> None:
    """Trains the network and keeps its weights."""
    torch.set_num_threads(1)
    network, _ = trained()
    write_atomically(WEIGHTS, save(_kept(network)))


if __name__ == "__main__":
    main()
