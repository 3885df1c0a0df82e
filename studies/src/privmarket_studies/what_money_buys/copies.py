"""What do own pictures give for nothing if warped copies of them are fitted, too?

Whoever has labelled pictures can turn, scale, shift and mirror them: the labels stay, so a model of the copies is
told for nothing what a warp does not change. How strong the warps are, the width and the penalty are chosen by
cross-validation on the own pictures, and a copy never stands in another fold than its original. No private record
is read; test records give the accuracies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from privmarket.tasks import _baselines as baselines, _datasets as datasets, _features as image_features
from privmarket.training import one_thread
from privmarket_studies.reproduce.cells import Config, Result
from privmarket_studies.what_money_buys.runs import task_of

FOLDS = 5
# Hyper-parameters are searched with as many copies as fit into so many rows; the final fit has all of them.
_SEARCHED_ROWS = 1_800
_BLOCK_ROWS = 500
# Names the stream of random numbers that warps are drawn from.
_WARPS_STREAM = 31
_WIDTHS = (0.5, 0.7, 1.0, 1.4)
_FIRST_PENALTY = 1e-6
_PENALTIES = (1e-7, 1e-6, 1e-5, 1e-4)
_LINEAR_PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
Array = NDArray[np.float64]
Rows = NDArray[np.float32]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Warp:
    """How far a copy may be from its picture: each amount is drawn evenly up to plus or minus what stands here.

    Attributes:
        turn: degrees.
        scale: of width and height, each by itself.
        shear: sideways, per pixel of height.
        shift: pixels, in each direction.
        mirror: whether every second copy, at random, is a mirror image.
        whole: whether shifts are of whole pixels, which keep a picture sharp.
    """

    turn: float = 0.0
    scale: float = 0.0
    shear: float = 0.0
    shift: float = 0.0
    mirror: bool = False
    whole: bool = False


# On kept-back pictures that no test holds, clothes gained by these and lost by larger shifts and mirror images.
_DRAWN = {"mild": Warp(6.0, 0.05, 0.06, 0.75), "full": Warp(12.0, 0.1, 0.12, 1.5)}
_PHOTOGRAPH = {
    "mild": Warp(shift=2.0, mirror=True, whole=True),
    "full": Warp(8.0, 0.1, 0.0, 3.0, mirror=True),
}
WARPS: dict[str, dict[str, Warp]] = {
    "digits": {name: replace(warp, shift=warp.shift / 3) for name, warp in _DRAWN.items()},
    "mnist": _DRAWN,
    "fashion-mnist": _DRAWN,
    "cifar10": _PHOTOGRAPH,
}


@dataclass(frozen=True, eq=False)
class Pictures:
    """Rows to be fitted: pictures and copies of them.

    Attributes:
        inputs: (rows, columns), scaled by the pictures alone.
        labels: (rows,).
        original: (rows,) which picture a row is, or is a copy of; the pictures themselves come first.
    """

    inputs: Rows
    labels: Places
    original: Places

    def first(self, copies: int) -> Pictures:
        """The pictures with so many copies of each."""
        rows = (1 + copies) * (int(self.original.max()) + 1)
        return Pictures(self.inputs[:rows], self.labels[:rows], self.original[:rows])


@dataclass(frozen=True)
class Setting:
    """A model and its hyper-parameters; without a width it is linear."""

    penalty: float
    width: float | None = None


@dataclass(frozen=True)
class Tried:
    """How a setting does in cross-validation.

    Attributes:
        right: share of the pictures that get their label.
        error: mean squared difference from one-hot labels.
    """

    right: float
    error: float
    setting: Setting


def run(config: Config, seed: int, scratch: Path) -> Result:
    """Accuracy on test records of each model of the own pictures and their copies, and what cross-validation chose.

    Config: a task of pictures as for a run of the market, and copies: how many of each picture.
    """
    del scratch
    with one_thread():
        return _found(config, seed)


def _found(config: Config, seed: int) -> Result:
    name, features, copies = (config[key] for key in ("task", "features", "copies"))
    raw = task_of({**config, "features": "none"}, seed)
    assert raw.public is not None
    assert raw.test is not None
    images = torch.from_numpy(np.asarray(raw.public.inputs, dtype=np.float32))
    labels = np.asarray(raw.public.labels, dtype=np.int64)
    fold = folds_of(labels, seed)

    plain = _features(images, features)
    mean = plain.mean(axis=0)
    scale = np.float32(np.sqrt(plain.var(axis=0).mean()))
    kinds = {"none": Pictures((plain - mean) / scale, labels, np.arange(len(labels)))}
    rng = np.random.default_rng([seed, _WARPS_STREAM])
    for kind, warp in WARPS[name].items():
        warped = [_features(warped_copies(images, warp, rng), features) for _ in range(copies)]
        rows = (np.concatenate([plain, *warped]) - mean) / scale
        everyone = np.tile(np.arange(len(labels)), 1 + copies)
        kinds[kind] = Pictures(rows, labels[everyone], everyone)

    median = _median(kinds["none"].inputs)
    searched = min(copies, max(1, _SEARCHED_ROWS // len(labels) - 1))
    tried = {
        kind: searches(pictures if kind == "none" else pictures.first(searched), fold, median)
        for kind, pictures in kinds.items()
    }

    new = (_features_of_test(name, features) - mean) / scale
    result: Result = {"accuracy": {}, "chosen": {}, "cross_validated": {}}
    for model in tried["none"]:
        by_kind = {kind: found[model] for kind, found in tried.items()}
        best = _best(by_kind.values())
        kind = next(one for one, found in by_kind.items() if found is best)
        told = _told(kinds[kind], new, best.setting, median)
        result["accuracy"][model] = float((told == raw.test.labels).mean())
        result["chosen"][model] = {"warps": kind, **asdict(best.setting)}
        result["cross_validated"][model] = {one: found.right for one, found in by_kind.items()}
    return result


def folds_of(labels: Places, seed: int) -> Places:
    """(pictures,) the fold of each, with every label spread evenly; a copy is in its picture's fold."""
    return baselines._fold_of_each(labels, np.random.default_rng(seed))


def split(pictures: Pictures, fold: Places) -> Iterator[tuple[Places, Places]]:
    """Rows that are fitted, copies among them, and pictures that are predicted, once per fold."""
    of_row = fold[pictures.original]
    for one in np.unique(fold):
        yield np.flatnonzero(of_row != one), np.flatnonzero(fold == one)


def searches(pictures: Pictures, fold: Places, median: float) -> dict[str, Tried]:
    """The best of each model: for a kernel the width at one penalty, then the penalty."""
    apart = _apart(pictures.inputs, pictures.inputs)
    alike = (pictures.inputs @ pictures.inputs.T).astype(np.float64)
    widths = [
        _scored(pictures, fold, _gaussian(apart, width, median), [Setting(_FIRST_PENALTY, width)])
        for width in _WIDTHS
    ]
    width = _best(widths).setting.width
    assert width is not None
    others = [Setting(penalty, width) for penalty in _PENALTIES if penalty != _FIRST_PENALTY]
    return {
        "kernel ridge": _best([*widths, _scored(pictures, fold, _gaussian(apart, width, median), others)]),
        "ridge": _scored(pictures, fold, alike, [Setting(penalty) for penalty in _LINEAR_PENALTIES]),
    }


def _scored(pictures: Pictures, fold: Places, kernel: Array, settings: Sequence[Setting]) -> Tried:
    """The best of some settings with one kernel; each picture is told by a model without its fold."""
    wanted = _one_hot(pictures.labels)
    own = wanted[: len(fold)]
    outputs = np.empty((len(settings), *own.shape))
    for fitted, rest in split(pictures, fold):
        mean = wanted[fitted].mean(axis=0)
        inner, across = kernel[np.ix_(fitted, fitted)], kernel[np.ix_(rest, fitted)]
        for place, setting in enumerate(settings):
            weights = baselines._solved(inner, setting.penalty * len(fitted), wanted[fitted] - mean)
            outputs[place, rest] = mean + across @ weights
    right = (outputs.argmax(axis=2) == pictures.labels[: len(fold)]).mean(axis=1)
    error = ((outputs - own) ** 2).mean(axis=(1, 2))
    return _best(Tried(float(a), float(b), one) for a, b, one in zip(right, error, settings, strict=True))


def _best(tried: Iterable[Tried]) -> Tried:
    """The one that tells most pictures right; of equal ones the one whose values are nearest."""
    return max(tried, key=lambda one: (one.right, -one.error))


def _told(pictures: Pictures, new: Rows, setting: Setting, median: float) -> Places:
    """(new rows,) labels by a model of all pictures and copies."""
    wanted = _one_hot(pictures.labels)
    mean = wanted.mean(axis=0)
    known, penalty, width = pictures.inputs, setting.penalty * len(wanted), setting.width
    if width is None:
        # The same weights as by the kernel of products, from fewer equations.
        moments = (known.T @ known).astype(np.float64)
        slopes = baselines._solved(moments, penalty, known.T @ (wanted - mean))
        return np.asarray((mean + new @ slopes).argmax(axis=1))
    kernel = _gaussian(_apart(known, known), width, median)
    weights = baselines._solved(kernel, penalty, wanted - mean)
    told = []
    for start in range(0, len(new), _BLOCK_ROWS):
        apart = _apart(new[start : start + _BLOCK_ROWS], known)
        told.append((mean + _gaussian(apart, width, median) @ weights).argmax(axis=1))
    return np.concatenate(told)


def _apart(some: Rows, others: Rows) -> Rows:
    """(a, columns), (b, columns) → (a, b) squared distances, never below 0; in single precision."""
    squares = (some**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)
    apart: Rows = np.maximum(squares - 2.0 * some @ others.T, 0.0)
    return apart


def _gaussian(apart: NDArray[np.floating], width: float, median: float) -> Array:
    kernel: Array = np.exp(-apart.astype(np.float64) / (2.0 * width**2 * median))
    return kernel


def _median(inputs: Rows) -> float:
    apart = _apart(inputs, inputs)
    return float(np.median(apart[np.triu_indices_from(apart, 1)]))


def _one_hot(labels: Places) -> Array:
    return np.eye(int(labels.max()) + 1)[labels]


def warped_copies(images: torch.Tensor, warp: Warp, rng: np.random.Generator) -> torch.Tensor:
    """(pictures, channels, side, side): one copy of each; what comes in from outside repeats the edge."""
    count, side = len(images), images.shape[-1]

    def up_to(most: float) -> Array:
        return rng.uniform(-most, most, count)

    turn = np.deg2rad(up_to(warp.turn))
    across, down = 1.0 + up_to(warp.scale), 1.0 + up_to(warp.scale)
    if warp.mirror:
        across = across * rng.choice([-1.0, 1.0], count)
    shear = up_to(warp.shear)
    shift = np.stack([up_to(warp.shift), up_to(warp.shift)], axis=1)
    if warp.whole:
        most = math.floor(warp.shift)
        shift = rng.integers(-most, most + 1, (count, 2)).astype(np.float64)
    cos, sin = np.cos(turn), np.sin(turn)
    sampled = np.empty((count, 2, 3))
    # Turned, sheared and scaled about the middle, on a scale of 2 from edge to edge.
    sampled[:, 0, 0], sampled[:, 0, 1] = cos * across, (cos * shear - sin) * down
    sampled[:, 1, 0], sampled[:, 1, 1] = sin * across, (sin * shear + cos) * down
    sampled[:, :, 2] = 2.0 * shift / side
    grid = F.affine_grid(torch.from_numpy(sampled).float(), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _features(images: torch.Tensor, name: str) -> Rows:
    """(pictures, columns) what a fixed public transform makes of pictures."""
    if name == "none":
        return images.flatten(1).numpy()
    transform = image_features._TRANSFORMS[name]
    blocks = [transform(block).flatten(1) for block in torch.split(images, _BLOCK_ROWS)]
    return torch.cat(blocks).numpy()


@lru_cache(maxsize=1)
def _features_of_test(name: str, features: str) -> Rows:
    """(test pictures, columns), as the task has them: read from the cache folder once they were computed."""
    raw = datasets.load_dataset(name, measured_on="test")
    few = replace(raw, train_images=raw.train_images[:1], train_labels=raw.train_labels[:1])
    made = image_features.with_features(few, features).test_images
    return np.array(made.reshape(len(made), -1))
