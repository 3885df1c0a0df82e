"""Scores: one number that says how good a model is, with its name and its direction.

A score takes NumPy arrays. For a classification: logits, (rows, classes), and class numbers, (rows,). For a
regression: predictions and true values, (rows,) each, in the unit of the data, not on the scale of training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from privmarket.errors import ConfigurationError, DataError, UnknownNameError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """One way of measuring a model.

    Attributes:
        name: its name in options and JSON.
        value: `(outputs, labels) -> float`.
        higher_is_better: whether a larger value means a better model.
        heading: its name in tables.
        style: a format string for values.
        percent: whether a value is a share, which tables write as a percentage.
        best: the best possible value, if there is one.
    """

    name: str
    value: Callable[[NDArray[np.generic], NDArray[np.generic]], float]
    higher_is_better: bool = True
    heading: str = ""
    style: str = "{:.3f}"
    percent: bool = False
    best: float | None = None

    def __post_init__(self) -> None:
        if not self.heading:
            object.__setattr__(self, "heading", self.name)

    @property
    def direction(self) -> Literal["higher", "lower"]:
        """Whether "higher" or "lower" values are better."""
        return "higher" if self.higher_is_better else "lower"

    def gain(self, before: float, after: float) -> float:
        """How much better `after` is than `before`; negative if it is worse."""
        return after - before if self.higher_is_better else before - after

    def format(self, value: float) -> str:
        """The value as tables print it, such as "84.1 %" or "0.713"."""
        return f"{100 * value:.1f} %" if self.percent else self.style.format(value)


def accuracy(logits: NDArray[np.generic], labels: NDArray[np.generic]) -> float:
    """Share of records whose most likely class is their label."""
    return float((logits.argmax(axis=1) == labels).mean())


def balanced_accuracy(logits: NDArray[np.generic], labels: NDArray[np.generic]) -> float:
    """Mean over the classes that occur of the share of their records that are found."""
    found = logits.argmax(axis=1) == labels
    return float(np.mean([found[labels == c].mean() for c in np.unique(labels)]))


def auc(logits: NDArray[np.generic], labels: NDArray[np.generic]) -> float:
    """Probability that a record of a class ranks above one of another class; 0.5 is chance.

    Two classes: by the difference of the two logits, the second class being the positive one. More: the mean over
    classes of each against the rest, ranked by its probability.
    """
    probability = _probabilities(logits)
    positive = [1] if probability.shape[1] == 2 else list(range(probability.shape[1]))
    margin = logits[:, 1].astype(np.float64) - logits[:, 0].astype(np.float64) if len(positive) == 1 else None
    areas = []
    for c in positive:
        inside = labels == c
        if not inside.any() or inside.all():
            found = "none is" if not inside.any() else "all are"
            raise DataError(
                f"AUC needs records of every class, and {found} of class {c}",
                "measure on more records, or use the score accuracy",
            )
        areas.append(_area(probability[:, c] if margin is None else margin, inside))
    return float(np.mean(areas))


def _area(rank_by: Array, inside: NDArray[np.bool_]) -> float:
    """The Mann–Whitney statistic as a share; ties count one half."""
    _, place, counts = np.unique(rank_by, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    positives = int(inside.sum())
    negatives = inside.size - positives
    return float((ranks[inside].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def log_loss(logits: NDArray[np.generic], labels: NDArray[np.generic]) -> float:
    """Mean of −log of the probability that the model gives to the true class, in nats."""
    real = logits.astype(np.float64)
    top = real.max(axis=1, keepdims=True)
    total = np.log(np.exp(real - top).sum(axis=1)) + top[:, 0]
    return float((total - real[np.arange(len(labels)), labels]).mean())


def _probabilities(logits: NDArray[np.generic]) -> Array:
    real = logits.astype(np.float64)
    shares: Array = np.exp(real - real.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def r2(predicted: NDArray[np.generic], true: NDArray[np.generic]) -> float:
    """Share of the variance that is explained: 1 is perfect, 0 as good as the mean of the measured records."""
    y = true.astype(np.float64)
    around = float(((y - y.mean()) ** 2).sum())
    if around == 0:
        raise DataError("R² needs records with different values", "measure on more records, or use the score mae")
    return 1.0 - float(((y - predicted.astype(np.float64)) ** 2).sum()) / around


def mae(predicted: NDArray[np.generic], true: NDArray[np.generic]) -> float:
    """Mean distance between prediction and true value, in the unit of the data."""
    return float(np.abs(predicted.astype(np.float64) - true.astype(np.float64)).mean())


def rmse(predicted: NDArray[np.generic], true: NDArray[np.generic]) -> float:
    """Root of the mean squared error, in the unit of the data."""
    return float(np.sqrt(((predicted.astype(np.float64) - true.astype(np.float64)) ** 2).mean()))


_OF_CLASSES = {
    "accuracy": Score("accuracy", accuracy, percent=True, best=1.0),
    "balanced-accuracy": Score(
        "balanced-accuracy", balanced_accuracy, heading="balanced accuracy", percent=True, best=1.0
    ),
    "auc": Score("auc", auc, heading="AUC", best=1.0),
    "log-loss": Score("log-loss", log_loss, higher_is_better=False, heading="log-loss", best=0.0),
}
_OF_NUMBERS = {
    "r2": Score("r2", r2, heading="R²", best=1.0),
    "mae": Score("mae", mae, higher_is_better=False, heading="MAE", style="{:.4g}", best=0.0),
    "rmse": Score("rmse", rmse, higher_is_better=False, heading="RMSE", style="{:.4g}", best=0.0),
}
_ALL = {**_OF_CLASSES, **_OF_NUMBERS}


def score_names(goal: str | None = None) -> tuple[str, ...]:
    """Names of the scores for a goal ("classification" or "regression"), or of all of them."""
    known = {"classification": _OF_CLASSES, "regression": _OF_NUMBERS}.get(goal or "", _ALL)
    return tuple(known)


def score(name: str) -> Score:
    """The score of that name."""
    if name not in _ALL:
        raise UnknownNameError.among("score", name, _ALL)
    return _ALL[name]


ScoreLike = str | Score | Callable[[NDArray[np.generic], NDArray[np.generic]], float]


def chosen_scores(asked: ScoreLike | Sequence[ScoreLike] | None, goal: str, classes: int) -> tuple[Score, ...]:
    """The scores of a task: those that were asked for, then the usual ones of its goal.

    A function becomes a score of its own name for which higher is better; make a `Score` to say otherwise.
    """
    if goal == "classification":
        rest = [name for name in _OF_CLASSES if name != "auc"]
        usual = ["auc", *rest] if classes == 2 else rest
    else:
        usual = list(_OF_NUMBERS) if goal == "regression" else []
    if asked is None:
        wanted: list[ScoreLike] = []
    elif isinstance(asked, str | Score) or callable(asked):
        wanted = [asked]
    else:
        wanted = list(asked)
    made = [_as_score(one, goal) for one in wanted]
    made += [_ALL[name] for name in usual if name not in {one.name for one in made}]
    if not made:
        raise ConfigurationError("the task has no score", "give score=…, a function of (outputs, labels)")
    return tuple(made)


def _as_score(one: ScoreLike, goal: str) -> Score:
    if isinstance(one, str):
        found = score(one)
        if goal in ("classification", "regression") and one not in score_names(goal):
            raise ConfigurationError(
                f"score {one!r} does not fit a {goal}", f"choose one of: {', '.join(score_names(goal))}"
            )
        return found
    if isinstance(one, Score):
        return one
    return Score(getattr(one, "__name__", type(one).__name__), one)
