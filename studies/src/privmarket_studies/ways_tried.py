"""Ways of buying more with the same ε, compared on pictures that no client and no test holds.

    python -m privmarket_studies.ways_tried measure   # resumable; docs/results/ways-tried/ways.json
    python -m privmarket_studies.ways_tried page      # writes docs/results/ways-tried/README.md

Of the 5,000 kept-back pictures of a set, 600 are the buyer's, 3,400 stand in for the clients' (with the noise that
all the clients' records would get), and 1,000 are measured on. For every way the best of the same steps is shown,
looked up on these 1,000: that flatters all ways alike, and none of the figures is one of a market.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from privmarket._files import write_atomically
from privmarket.privacy._gaussian import mu_of
from privmarket.secagg import honest_per_cohort
from privmarket.tasks import feature_names, load_dataset, with_features
from privmarket_studies.made_up_features import FILTERS, PAIRS, STEPS, WIDTHS, made_up_features
from privmarket_studies.page_text import table_row
from privmarket_studies.reproduce.document import NOT_COMPUTED
from privmarket_studies.reproduce.statistics import compare

Array = NDArray[np.float64]

FOLDER = Path(__file__).parents[3] / "docs" / "results" / "ways-tried"
NAME = "ways.json"
OWN, STAND_IN = 600, 3_400
# Data set → features of the study, all of its scattering coefficients, and the clients' records.
SETS = {"mnist": ("whitened-scattering", 55_000), "cifar10": ("patches-and-scattering", 45_000)}
EPSILON, DELTA = 1.0, 1e-5
SELLERS, HONEST_SHARE = 100, 2 / 3
ROUNDS = 10
# Length of all steps together, if none were clipped shorter, over the length of the first model's weights.
LENGTHS = (0.125, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0)
_PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)
_FLOOR = 0.1
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Way:
    """One way of training.

    Attributes:
        says: on the page.
        features: instead of the study's, if given, or with "+" beside them. Those of `made_up_features` are for
            CIFAR-10 alone.
        is_warm: whether it starts from a model of the own records, and not from zero.
        is_whitened: whether inputs are whitened by the moments of the own records.
        rounds: how many.
        share: of the precision (1/σ²) in the last round over that in the first; rounds between lie on a line.
    """

    says: str
    features: str = ""
    is_warm: bool = True
    is_whitened: bool = True
    rounds: int = ROUNDS
    share: float = 1.0


WAYS = {
    "usual": Way("own model first, whitened inputs, 10 rounds, ε spread evenly"),
    "plain": Way("the same on inputs as they are", is_whitened=False),
    "zero": Way("from zero on inputs as they are: own records serve for nothing", is_warm=False, is_whitened=False),
    "late": Way("ε unequal: the last round is ten times as precise as the first", share=10.0),
    "early": Way("ε unequal: the first round is ten times as precise as the last", share=0.1),
    "rounds": Way("30 rounds instead of 10", rounds=30),
    "again": Way(
        "beside them: the same patches again, in another basis of made-up scenes", features="+patches-again"
    ),
    "second": Way("beside them: a second layer of made-up patches, untrained", features="+second-layer"),
    "second-plain": Way(
        "the second layer beside them, on inputs as they are", features="+second-layer", is_whitened=False
    ),
    "second-alone": Way("instead: the second layer alone", features="second-layer"),
    "untrained": Way("beside them: a convolutional network before any training", features="+untrained"),
    "contrast": Way("beside them: the network after learning by contrast on made-up scenes", features="+contrast"),
    "contrast-alone": Way("instead: the trained network alone", features="contrast"),
    "all": Way("all scattering coefficients instead", features="scattering"),
}


def is_tried(dataset: str, way: Way) -> bool:
    """Whether a way is one for this data set."""
    return dataset == "cifar10" or not way.features or way.features in feature_names()


def multipliers(way: Way) -> Array:
    """(rounds,) σ of each round's sum over the clip norm, for one lifetime ε in all.

    Precisions add up to μ² whatever their shares are; a secure sum of which two thirds are honest has √(n/h) times
    the noise that is counted.
    """
    parts = np.linspace(1.0, way.share, way.rounds)
    precision = float(mu_of(EPSILON, DELTA)) ** 2 * parts / parts.sum()
    honest = honest_per_cohort(SELLERS, HONEST_SHARE)
    found: Array = np.sqrt(SELLERS / honest / precision)
    return found


@dataclass(frozen=True, eq=False)
class Pictures:
    """Records in their three roles, labels one-hot."""

    own: tuple[Array, Array]
    stand_in: tuple[Array, Array]
    measured: tuple[Array, Array]


@lru_cache(maxsize=4)
def _kept_back(dataset: str, features: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    if features.startswith("+"):
        (usual, labels), (more, _) = (_kept_back(dataset, name) for name in (SETS[dataset][0], features[1:]))
        return np.concatenate([usual, more], axis=1), labels
    found = load_dataset(dataset, measured_on="validation")
    labels = np.asarray(found.test_labels, dtype=np.int64)
    if features not in feature_names():
        return made_up_features(found.test_images, features), labels
    # Clients' records are of no use here, and all of their features would take hours.
    found = with_features(replace(found, train_images=found.test_images[:1]), features)
    return np.asarray(found.test_images, dtype=np.float32).reshape(len(labels), -1), labels


def divided(dataset: str, features: str, seed: int) -> Pictures:
    """The kept-back pictures in three parts."""
    inputs, labels = _kept_back(dataset, features)
    order = np.random.default_rng([seed, 34]).permutation(len(labels))
    target = np.eye(int(labels.max()) + 1)
    cut = (order[:OWN], order[OWN : OWN + STAND_IN], order[OWN + STAND_IN :])
    own, stand_in, measured = ((inputs[rows].astype(np.float64), target[labels[rows]]) for rows in cut)
    return Pictures(own, stand_in, measured)


def whitened(pictures: Pictures) -> Pictures:
    """All inputs turned and scaled by the moments of the own ones, every direction with a floor under its share."""
    own = pictures.own[0]
    mean = own.mean(axis=0)
    size, directions = np.linalg.svd((own - mean) / np.sqrt(len(own)), full_matrices=False)[1:]
    floor = _FLOOR * float((size**2).sum()) / own.shape[1]
    extra = (size**2 + floor) ** -0.5 - floor**-0.5

    def scaled(part: tuple[Array, Array]) -> tuple[Array, Array]:
        centred = part[0] - mean
        return centred * floor**-0.5 + ((centred @ directions.T) * extra) @ directions, part[1]

    return Pictures(scaled(pictures.own), scaled(pictures.stand_in), scaled(pictures.measured))


def one_size(pictures: Pictures) -> Pictures:
    """Inputs over the root mean square length of the own ones."""
    length = float(np.sqrt((pictures.own[0] ** 2).sum(axis=1).mean()))
    return Pictures(*((part[0] / length, part[1]) for part in (pictures.own, pictures.stand_in, pictures.measured)))


def own_model(pictures: Pictures, seed: int) -> tuple[Array, Array]:
    """(inputs, classes) weights and (classes,) bias of logistic regression on the own records."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold

    labels = pictures.own[1].argmax(axis=1)
    # With this penalty the best weights lie in the span of the records: as many directions as records say all.
    sides, sizes, turns = np.linalg.svd(pictures.own[0], full_matrices=False)
    inputs = sides * sizes

    def fitted(rows: NDArray[np.intp], penalty: float) -> Any:
        return LogisticRegression(C=1 / (penalty * len(rows)), max_iter=500).fit(inputs[rows], labels[rows])

    losses = np.zeros(len(_PENALTIES))
    for some, rest in StratifiedKFold(3, shuffle=True, random_state=seed).split(inputs, labels):
        for place, penalty in enumerate(_PENALTIES):
            told = fitted(some, penalty).predict_log_proba(inputs[rest])
            losses[place] -= told[np.arange(len(rest)), labels[rest]].sum()
    best = fitted(np.arange(len(labels)), _PENALTIES[int(losses.argmin())])
    return turns.T @ best.coef_.T.astype(np.float64), best.intercept_.astype(np.float64)


def accuracy(weights: Array, bias: Array, part: tuple[Array, Array]) -> float:
    """On a part of the pictures."""
    return float(((part[0] @ weights + bias).argmax(axis=1) == part[1].argmax(axis=1)).mean())


def bought(
    pictures: Pictures, first: tuple[Array, Array], way: Way, length: float, records: int, seed: int
) -> float:
    """Accuracy after the rounds of one way with steps of one length.

    A round moves by the mean of clipped gradients plus Gaussian noise. The clip norm is a quarter of a long
    gradient of the own records at the first model, a long one being longer than nine in ten.
    """
    rng = np.random.default_rng([seed, 35])
    inputs, target = (part.astype(np.float32) for part in pictures.stand_in)
    norms = np.sqrt((inputs**2).sum(axis=1) + 1.0)
    weights, bias = (part.copy() for part in first)
    scale = float(np.sqrt((weights**2).sum())) or 1.0
    if not way.is_warm:
        weights, bias = np.zeros_like(weights), np.zeros_like(bias)
    own = pictures.own
    slopes = softmax(own[0] @ weights + bias, axis=1) - own[1]
    long = float(np.quantile(np.linalg.norm(slopes, axis=1) * np.sqrt((own[0] ** 2).sum(axis=1) + 1.0), 0.9))
    clip = long / 4
    step = length * scale / (clip * way.rounds)
    for sigma in multipliers(way):
        slopes = softmax(inputs @ weights.astype(np.float32) + bias.astype(np.float32), axis=1) - target
        lengths = np.linalg.norm(slopes, axis=1) * norms
        slopes *= np.minimum(1.0, clip / np.maximum(lengths, 1e-12))[:, None]
        noise = sigma * clip / records
        weights -= step * (inputs.T @ slopes / len(inputs) + noise * rng.standard_normal(weights.shape))
        bias -= step * (slopes.mean(axis=0) + noise * rng.standard_normal(bias.shape))
    return accuracy(weights, bias, pictures.measured)


def read(folder: Path = FOLDER) -> dict[str, Any]:
    """What was kept: "data set way seed" → figures."""
    place = folder / NAME
    found: dict[str, Any] = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    return found


def measure(folder: Path = FOLDER, seeds: Sequence[int] = SEEDS, sets: Sequence[str] = tuple(SETS)) -> None:
    """Runs what is missing; ways with features of their own, which take longest, come last and one by one."""
    groups = [[name for name, way in WAYS.items() if not way.features]]
    groups += [[name] for name, way in WAYS.items() if way.features]
    for names, seed in itertools.product(groups, seeds):
        for dataset in sets:
            usual, records = SETS[dataset]
            models: dict[tuple[str, bool], tuple[Pictures, tuple[Array, Array]]] = {}
            for name in names:
                way = WAYS[name]
                kept = read(folder)
                place = f"{dataset} {name} {seed}"
                tried = kept[place]["tried"] if place in kept else {}
                missing = [x for x in LENGTHS if f"{x:g}" not in tried]
                if not missing or not is_tried(dataset, way):
                    continue
                key = (way.features or usual, way.is_whitened)
                if key not in models:
                    pictures = divided(dataset, key[0], seed)
                    pictures = one_size(whitened(pictures) if way.is_whitened else pictures)
                    models[key] = pictures, own_model(pictures, seed)
                pictures, first = models[key]
                tried |= {f"{x:g}": bought(pictures, first, way, x, records, seed) for x in missing}
                kept[place] = {
                    "own": accuracy(*first, pictures.measured),
                    "bought": max(tried.values()),
                    "tried": {length: tried[length] for length in sorted(tried, key=float)},
                }
                folder.mkdir(parents=True, exist_ok=True)
                write_atomically(folder / NAME, json.dumps(kept, indent=1) + "\n")
                print(place, kept[place], file=sys.stderr, flush=True)


def render(folder: Path = FOLDER) -> str:
    """The page, from what was kept."""
    kept = read(folder)
    columns = ("pictures", "way", "own records alone, %", "bought, %", "against the first row [95 %]", "seeds")
    text = table_row(columns) + table_row(["---"] * len(columns))
    for dataset in SETS:
        by_way: dict[str, dict[int, Any]] = {
            name: {seed: kept[key] for seed in SEEDS if (key := f"{dataset} {name} {seed}") in kept}
            for name in WAYS
        }
        for name, way in WAYS.items():
            runs = by_way[name]
            if not is_tried(dataset, way):
                continue
            if not runs:
                text += table_row((dataset, way.says, *[NOT_COMPUTED] * 3, "0"))
                continue
            own, after = (100 * np.mean([run[field] for run in runs.values()]) for field in ("own", "bought"))
            pair = compare(*({s: 100 * run["bought"] for s, run in by_way[w].items()} for w in (name, "usual")))
            against = "the reference" if name == "usual" or pair is None else pair.words("+.1f")
            edges = (f"{LENGTHS[0]:g}", f"{LENGTHS[-1]:g}")
            at_edge = any(
                run["tried"][x] > max(v for k, v in run["tried"].items() if k not in edges)
                for run in runs.values()
                for x in edges
            )
            bought = f"{after:.1f}{' †' if at_edge else ''}"
            text += table_row((dataset, way.says, f"{own:.1f}", bought, against, str(len(runs))))
    return _PAGE.format(
        own=OWN,
        stand_in=f"{STAND_IN:,}",
        epsilon=f"{EPSILON:g}",
        features=" and ".join(f"`{features}` on {name}" for name, (features, _) in SETS.items()),
        lengths=len(LENGTHS),
        table=text.rstrip(),
        filters=FILTERS,
        widths=", ".join(f"{width}" for width in WIDTHS),
        steps=STEPS,
        pairs=PAIRS,
        gains=_gains(kept),
    )


def _gains(kept: dict[str, Any]) -> str:
    """Points over the study's features in each division, for ways with made-up features."""
    names = [name for name, way in WAYS.items() if way.features and way.features not in feature_names()]
    text = table_row(("way", *(f"division {seed + 1}" for seed in SEEDS))) + table_row(["---"] * (1 + len(SEEDS)))
    for name in names:
        pairs = [[kept.get(f"cifar10 {way} {seed}") for way in (name, "usual")] for seed in SEEDS]
        told = [
            f"{100 * (run['bought'] - usual['bought']):+.1f}" if run and usual else NOT_COMPUTED
            for run, usual in pairs
        ]
        text += table_row((WAYS[name].says, *told))
    return text.rstrip()


_PAGE = """# Ways that were tried

**Question.** Which ways of training buy more with the same ε, each of them changed alone?

**Answer.** None of the ways that need no new features: starting from the buyer's own model is what counts, the
division of ε over rounds and the number of rounds hardly matter. A second layer of made-up patches may add
about two points on CIFAR-10.

Pictures are the 5,000 of each set that no client and no test holds: {own} as the buyer's, {stand_in} in the
clients' place with the noise that all their records would get at a lifetime ε of {epsilon} (secure sum, two
thirds honest), and 1,000 to measure on. A linear model on {features}; clip norm a quarter of a long gradient.
Every way is shown with the best of {lengths} lengths of steps, looked up on the 1,000, which flatters all ways
alike. No figure here is one of a market, and nothing was tuned on clients' or test records. Seeds are other
divisions into three, and other noise. Whitening is a plainer form of the product's: one floor under all
directions.

{table}

†: in some run the best step was at an edge of those tried.

## Features from images that nobody owns
On CIFAR-10 ways *beside* the study's features or *instead* of them use 1,400 numbers made from scenes drawn at
random: overlapping shapes with gradients and gratings, each seen in two windows and two colourings. No picture
of a data set enters.

- *A second layer of patches* is not trained: {filters} random patches of the maps that the shipped patches make
  of scenes, evened out, with the same soft threshold and quarters.
- *The network* has three convolutions of {widths} planes and learned by contrast, in {steps} steps of {pairs}
  scenes, to find the other view of each.
- *The same patches again* and *the network before any training* say what comes of more numbers alone.

Points over the first row, by division:

{gains}

On whitened inputs the second layer helped in every division, by about two points, which three divisions cannot
tell from chance for sure; more numbers of the first layer do not help. On inputs as they are it helps in some
divisions and harms in others. The buyer's own records gain, too, for nothing. A division measures on 1,000
pictures, where two points are little more than chance, and another draw of the patches moves them as much. The
network that has learned adds less than the second layer. [TangEtAl2023] train far larger ones on images of
random processes, for far longer; what that would give here is not known.

Drafts on the same three divisions, whose runs were not kept: another draw of the second layer gave +1.4, +3.4
and +2.6 points; 1,024 patches in place of {filters}, with as many numbers in the end, +2.0, +2.0 and +1.8 (the
best of four lengths). The closed form of contrast for a linear map (scaling down the directions in which two
views of a scene differ), on patches alone in one division, gave -0.4 to +0.8 points on whitened inputs and +0.6
to +0.8 on inputs as they are; on the second layer alone -0.5 and +2.0.

## Elsewhere, and not tried
Bought second moments, and least squares as one sale: [bought statistics](../bought-statistics/README.md).
Patches of made-up images: [features](../../decisions/public-whitening.md). Not tried, for want of processor
time: a network trained for longer than minutes, and a convolution trained on top of scattering.

## Commands
The second trains the network again, in about two minutes of one core.

    python -m privmarket_studies.ways_tried measure
    python -m privmarket_studies.made_up_features
    python -m privmarket_studies.ways_tried page
"""


if __name__ == "__main__":
    if sys.argv[1:] == ["page"]:
        write_atomically(FOLDER / "README.md", render())
    else:
        measure()
