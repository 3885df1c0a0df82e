"""The free baseline: the best simple model of the buyer's own records, fitted without buying anything.

A buyer with labelled records of its own can fit a model to them without paying, at ε = 0. A market is worth only
what it adds to that, so every report of a bought model states this figure first.

Three models are fitted: multinomial logistic regression, ridge regression (on one-hot targets for a classification)
and ridge regression with a Gaussian kernel. Their hyper-parameters are chosen by cross-validation on the same
records; no other record is looked at. The models are deliberately plain: a buyer has them in any library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, optimize, special

from privmarket._settings import TOLERANCE
from privmarket.errors import DataError, UnknownNameError

Array = NDArray[np.float64]
Goal = Literal["classification", "regression"]
GOALS = ("classification", "regression")

_FOLDS = 5
# A kernel matrix of n records takes n² numbers and n³ operations.
_KERNEL_RECORDS = 8_000
# Hyper-parameters of the slower models are searched on at most this many records.
_SEARCHED_RECORDS = 2_000
# The most steps of a search along one hyper-parameter, in either direction from its start.
_LONGEST_WALK = 7
# With a smaller penalty the equations have no accurate solution in double precision.
_LEAST = 1e-9


@dataclass(frozen=True, eq=False)
class FittedBaseline:
    """A model of the buyer's own records.

    Attributes:
        name: "logistic regression", "ridge" or "kernel ridge".
        goal: "classification" or "regression".
        settings: the hyper-parameters that cross-validation chose.
        cross_validated: accuracy, or R² for a regression, on the buyer's own records, each predicted by a model
            that was fitted without its fold.
        records: how many records the model was fitted on.
        labels: (outputs,) the label that each output stands for; empty for a regression.
        outputs: (rows, features) → (rows, outputs): logarithms of odds for logistic regression, fitted one-hot
            values for the others, or the value in one column for a regression.
    """

    name: str
    goal: Goal
    settings: dict[str, float | str]
    cross_validated: float
    records: int
    labels: NDArray[np.generic]
    outputs: Callable[[ArrayLike], Array]

    def predict(self, inputs: ArrayLike) -> NDArray[np.generic]:
        """(rows, features) → (rows,) labels, or (rows,) values for a regression."""
        found = self.outputs(inputs)
        if self.goal == "regression":
            return found[:, 0]
        chosen: NDArray[np.generic] = self.labels[found.argmax(axis=1)]
        return chosen

    def score(self, inputs: ArrayLike, targets: ArrayLike) -> float:
        """Accuracy on other records, or R² for a regression."""
        return _score(self.goal, self.predict(inputs), np.asarray(targets))


def own_records_alone(
    inputs: ArrayLike, targets: ArrayLike, *, goal: Goal = "classification", seed: int = 0
) -> list[FittedBaseline]:
    """Fits every baseline to the buyer's own records; the best by cross-validation comes first.

    Args:
        inputs: (records, features) or (records, ...), which is flattened; public features of the buyer's records.
        targets: (records,) labels of any type for a classification, numbers for a regression.
        goal: "classification" (scored by accuracy) or "regression" (by R²).
        seed: of the division into folds, of the records that hyper-parameters are searched on (2,000 at most),
            and of those that a kernel is fitted to (8,000 at most).

    Columns are centred. They are also scaled to one deviation each if cross-validation says so, for the kernel by
    itself and for both linear models by ridge regression. Searches move from their start until the best value is
    not at the edge of what was tried (for 7 steps at most), so no choice stands at the end of a fixed grid.
    """
    rows, known = _checked(inputs, targets, goal)
    rng = np.random.default_rng(seed)
    if goal == "classification":
        labels, codes = np.unique(known, return_inverse=True)
        response = np.zeros((len(codes), len(labels)))
        response[np.arange(len(codes)), codes] = 1.0
    else:
        labels = np.empty(0)
        codes = np.zeros(len(known), dtype=np.int64)
        response = known.astype(np.float64)[:, None]
    problem = _Problem(goal, response, labels, known, _fold_of_each(codes, rng))

    plain = _Scaling.of(rows, each_column=False)
    standard = _Scaling.of(rows, each_column=True)
    ridge = _ridge(problem, rows, plain)
    scaled = _ridge(problem, rows, standard)
    scaling = plain
    if scaled.cross_validated > ridge.cross_validated:
        ridge = scaled
        scaling = standard
    fitted = [ridge, _kernel_ridge(problem, rows, [plain, standard], rng)]
    if goal == "classification":
        fitted.append(_logistic(problem, rows, scaling, rng))
    return sorted(fitted, key=lambda model: -model.cross_validated)


@dataclass(frozen=True, eq=False)
class _Problem:
    """What is to be learned, and how cross-validation divides the records.

    Attributes:
        response: (records, outputs) one-hot labels, or the value in one column.
        labels: (outputs,) the label that each column stands for; empty for a regression.
        targets: (records,) as given.
        fold: (records,) which fold a record belongs to.
    """

    goal: Goal
    response: Array
    labels: NDArray[np.generic]
    targets: NDArray[np.generic]
    fold: NDArray[np.int64]

    def folds(self) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Positions of the records that are fitted and of those that are predicted, once per fold."""
        return [(np.flatnonzero(self.fold != k), np.flatnonzero(self.fold == k)) for k in np.unique(self.fold)]

    def decided(self, output: Array) -> NDArray[np.generic]:
        """(rows, outputs) → (rows,) the label of the largest output, or the value."""
        if self.goal == "regression":
            return output[:, 0]
        chosen: NDArray[np.generic] = self.labels[output.argmax(axis=1)]
        return chosen

    def score(self, output: Array) -> float:
        """Accuracy or R² of (records, outputs) predictions of the problem's own records."""
        return _score(self.goal, self.decided(output), self.targets)

    def part(self, rows: NDArray[np.intp]) -> _Problem:
        """The problem restricted to some of the records."""
        return _Problem(self.goal, self.response[rows], self.labels, self.targets[rows], self.fold[rows])


@dataclass(frozen=True, eq=False)
class _Scaling:
    """Columns minus their means, over their deviations or over one number for all of them."""

    mean: Array
    scale: Array | float
    name: str

    @classmethod
    def of(cls, rows: Array, *, each_column: bool) -> _Scaling:
        deviation = rows.std(axis=0)
        overall = float(np.sqrt((deviation**2).mean())) or 1.0
        if not each_column:
            return cls(rows.mean(axis=0), overall, "as given")
        # A column that never varies stays zero instead of becoming rounding errors of size 1.
        constant = deviation <= TOLERANCE * overall
        return cls(rows.mean(axis=0), np.where(constant, np.inf, deviation), "standardised")

    def __call__(self, inputs: ArrayLike) -> Array:
        rows = np.asarray(inputs, dtype=np.float64)
        scaled: Array = (rows.reshape(len(rows), -1) - self.mean) / self.scale
        return scaled


def _checked(inputs: ArrayLike, targets: ArrayLike, goal: str) -> tuple[Array, NDArray[np.generic]]:
    if goal not in GOALS:
        raise UnknownNameError.among("goal", goal, GOALS)
    given = np.asarray(inputs, dtype=np.float64)
    known = np.asarray(targets)
    if known.ndim != 1 or len(given) != len(known):
        raise DataError(
            f"inputs of shape {given.shape} and targets of shape {known.shape} do not belong together",
            "give one row of inputs and one target per record",
        )
    if len(known) < _FOLDS:
        raise DataError(
            f"{len(known)} records are too few for a model of their own", f"give at least {_FOLDS}, or leave it out"
        )
    rows: Array = given.reshape(len(given), -1)
    if not np.isfinite(rows).all():
        raise DataError("the inputs hold NaN or infinite values", "leave those records out or fill the values in")
    return rows, known


def _fold_of_each(codes: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """(records,) numbers of folds, drawn at random, with each label spread evenly over the folds."""
    shuffled = rng.permutation(len(codes))
    by_label = shuffled[np.argsort(codes[shuffled], kind="stable")]
    fold = np.empty(len(codes), dtype=np.int64)
    fold[by_label] = np.arange(len(codes)) % _FOLDS
    return fold


def _score(goal: str, predicted: NDArray[np.generic], targets: NDArray[np.generic]) -> float:
    if goal == "classification":
        return float((predicted == targets).mean())
    values = targets.astype(np.float64)
    left = float(((values - predicted.astype(np.float64)) ** 2).sum())
    whole = float(((values - values.mean()) ** 2).sum())
    if whole == 0.0:
        return 1.0 if left == 0.0 else 0.0
    return 1.0 - left / whole


def _climb(score: Callable[[float], float], start: float, factor: float) -> tuple[float, float]:
    """Moves by `factor` up or down from `start` while the score grows; returns the best value and its score.

    The larger value is tried first and keeps ties, so that equal scores choose the smoother model.
    """
    best = start
    top = score(start)
    for step in (factor, 1.0 / factor):
        for _ in range(_LONGEST_WALK):
            if best * step < _LEAST:
                break
            found = score(best * step)
            if found <= top:
                break
            best *= step
            top = found
        if best != start:
            break
    return best, top


def _ridge(problem: _Problem, rows: Array, scaling: _Scaling) -> FittedBaseline:
    """Least squares with a penalty on the squared weights; the penalty is per record and by cross-validation."""
    scaled, directions = _within_span(scaling(rows))
    gram = scaled.T @ scaled
    held_out = []
    for fitted, rest in problem.folds():
        middle = scaled[fitted].mean(axis=0)
        centred = gram - scaled[rest].T @ scaled[rest] - len(fitted) * np.outer(middle, middle)
        held_out.append((fitted, rest, middle, centred))

    def score(penalty: float) -> float:
        output = np.empty_like(problem.response)
        for fitted, rest, middle, centred in held_out:
            mean = problem.response[fitted].mean(axis=0)
            against = scaled[fitted].T @ (problem.response[fitted] - mean)
            output[rest] = mean + (scaled[rest] - middle) @ _solved(centred, penalty * len(fitted), against)
        return problem.score(output)

    penalty, cross_validated = _climb(score, 1e-2, 10.0)
    mean = problem.response.mean(axis=0)
    weights = _solved(gram, penalty * len(scaled), scaled.T @ (problem.response - mean))
    if directions is not None:
        weights = directions @ weights

    def outputs(inputs: ArrayLike) -> Array:
        found: Array = mean + scaling(inputs) @ weights
        return found

    settings: dict[str, float | str] = {"penalty": penalty, "columns": scaling.name}
    return FittedBaseline("ridge", problem.goal, settings, cross_validated, len(scaled), problem.labels, outputs)


def _solved(products: Array, penalty: float, against: Array) -> Array:
    """(products + penalty · 1)⁻¹ against, for a symmetric matrix without negative eigenvalues."""
    lifted = products.copy()
    lifted[np.diag_indices_from(lifted)] += penalty
    factor = linalg.cho_factor(lifted, lower=True, overwrite_a=True, check_finite=False)
    solution: Array = linalg.cho_solve(factor, against, check_finite=False)
    return solution


def _kernel_ridge(
    problem: _Problem, rows: Array, scalings: list[_Scaling], rng: np.random.Generator
) -> FittedBaseline:
    """Ridge regression with the kernel exp(−|x − y|² / (2 w² m)), m the median squared distance between records.

    The scaling of columns, the width w and the penalty are searched on at most 2,000 records; the score that is
    returned is of all the records that are fitted (8,000 at most), divided into folds once more.
    """
    chosen = np.sort(rng.permutation(len(rows))[:_KERNEL_RECORDS])
    whole = problem.part(chosen)
    searched = np.sort(rng.permutation(len(chosen))[:_SEARCHED_RECORDS])
    part = whole.part(searched)
    found = [_searched_kernel(part, scaling(rows[chosen[searched]])) for scaling in scalings]
    best = max(range(len(scalings)), key=lambda place: found[place].cross_validated)
    scaling = scalings[best]
    kernel_of = found[best].kernel_of
    penalty = found[best].penalty
    cross_validated = found[best].cross_validated
    scaled = scaling(rows[chosen])
    kernel = kernel_of(scaled, scaled)
    if len(searched) < len(scaled):
        cross_validated = _kernel_score(whole, kernel, penalty)
    mean = whole.response.mean(axis=0)
    weights = _solved(kernel, penalty * len(scaled), whole.response - mean)

    def outputs(inputs: ArrayLike) -> Array:
        found: Array = mean + kernel_of(scaling(inputs), scaled) @ weights
        return found

    settings: dict[str, float | str] = {"penalty": penalty, "width": found[best].width, "columns": scaling.name}
    return FittedBaseline(
        "kernel ridge", problem.goal, settings, cross_validated, len(scaled), problem.labels, outputs
    )


@dataclass(frozen=True)
class _GaussianKernel:
    """The hyper-parameters of a kernel ridge regression, and their cross-validated score."""

    median: float
    width: float
    penalty: float
    cross_validated: float

    def kernel_of(self, some: Array, others: Array) -> Array:
        """(a, d), (b, d) → (a, b)."""
        kernel: Array = np.exp(-_squared_distances(some, others) / (2.0 * self.width**2 * self.median))
        return kernel


def _searched_kernel(problem: _Problem, scaled: Array) -> _GaussianKernel:
    """The width and penalty with the best cross-validated score, each moved while the other is held, twice."""
    apart = _squared_distances(scaled, scaled)
    median = float(np.median(apart[np.triu_indices_from(apart, 1)])) or 1.0
    tried: dict[tuple[float, float], float] = {}

    def score(penalty: float, width: float) -> float:
        if (width, penalty) not in tried:
            kernel = np.exp(-apart / (2.0 * width**2 * median))
            tried[width, penalty] = _kernel_score(problem, kernel, penalty)
        return tried[width, penalty]

    width = 1.0
    penalty = 1e-5
    cross_validated = 0.0
    for _ in range(2):
        width = _climb(partial(score, penalty), width, 2.0)[0]
        penalty, cross_validated = _climb(partial(score, width=width), penalty, 10.0)
    return _GaussianKernel(median, width, penalty, cross_validated)


def _kernel_score(problem: _Problem, kernel: Array, penalty: float) -> float:
    output = np.empty_like(problem.response)
    for fitted, rest in problem.folds():
        mean = problem.response[fitted].mean(axis=0)
        inner = kernel[np.ix_(fitted, fitted)]
        weights = _solved(inner, penalty * len(fitted), problem.response[fitted] - mean)
        output[rest] = mean + kernel[np.ix_(rest, fitted)] @ weights
    return problem.score(output)


def _squared_distances(some: Array, others: Array) -> Array:
    """(a, d), (b, d) → (a, b), never below 0."""
    squares = (some**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)
    apart: Array = np.maximum(squares - 2.0 * some @ others.T, 0.0)
    return apart


def _logistic(problem: _Problem, rows: Array, scaling: _Scaling, rng: np.random.Generator) -> FittedBaseline:
    """Multinomial logistic regression with a penalty on the squared weights (not on the intercepts).

    The penalty is searched on at most 2,000 records; the score that is returned is of all records.
    """
    scaled = scaling(rows)
    searched = np.sort(rng.permutation(len(scaled))[:_SEARCHED_RECORDS])
    part = problem.part(searched)
    part_rows = _within_span(scaled[searched])[0]

    def searched_score(penalty: float) -> float:
        return _LogisticFit(part_rows, part, penalty).cross_validated()

    penalty, cross_validated = _climb(searched_score, 1e-4, 10.0)
    coordinates, directions = _within_span(scaled)
    fit = _LogisticFit(coordinates, problem, penalty)
    if len(searched) < len(scaled):
        cross_validated = fit.cross_validated()
    found = fit.weights(fit.moved(np.arange(len(scaled)), 1e-7))
    weights = found[:-1] if directions is None else directions @ found[:-1]
    intercepts = found[-1]

    def outputs(inputs: ArrayLike) -> Array:
        found: Array = scaling(inputs) @ weights + intercepts
        return found

    settings: dict[str, float | str] = {"penalty": penalty, "columns": scaling.name}
    return FittedBaseline(
        "logistic regression", problem.goal, settings, cross_validated, len(scaled), problem.labels, outputs
    )


class _LogisticFit:
    """Minimises mean log loss + penalty/2 · |weights|² over (features + 1, labels) weights, intercepts last.

    L-BFGS in coordinates in which the curvature is of one size in all directions: the Hessian of the mean loss is a
    part of the inputs' second moments, half of them at most [Bohning1992]; such a part plus the penalty is factored
    once, for all folds. Data are in single precision, which halves the time.
    """

    def __init__(self, rows: Array, problem: _Problem, penalty: float) -> None:
        count, features = rows.shape
        self.problem = problem
        self.penalty = penalty
        self.outputs = problem.response.shape[1]
        with_one = np.concatenate([rows, np.ones((count, 1))], axis=1).astype(np.float32)
        curvature = (with_one.T @ with_one).astype(np.float64) / (2.0 * self.outputs * count)
        curvature[np.diag_indices(features)] += penalty
        curvature[-1, -1] += 1e-6
        factor = linalg.cholesky(curvature, lower=True, overwrite_a=True, check_finite=False)
        # weights = factor⁻ᵀ moved
        inverse = linalg.solve_triangular(factor, np.eye(features + 1), lower=True, check_finite=False)
        self.back: Array = inverse.T
        self.turned = with_one @ self.back.astype(np.float32)
        self.penalised = self.back[:-1].astype(np.float32)

    def moved(self, fitted: NDArray[np.intp], tolerance: float = 1e-5) -> Array:
        """(features + 1, labels) the minimum for these records, in the coordinates of the search."""
        turned = self.turned[fitted]
        wanted = self.problem.response[fitted].astype(np.float32)
        penalty = np.float32(self.penalty)

        def loss(flat: Array) -> tuple[float, Array]:
            moved = flat.reshape(-1, self.outputs).astype(np.float32)
            weights = self.penalised @ moved
            logs = special.log_softmax(turned @ moved, axis=1)
            value = -float((wanted * logs).sum(dtype=np.float64)) / len(fitted)
            value += 0.5 * self.penalty * float((weights**2).sum(dtype=np.float64))
            slope = turned.T @ (np.exp(logs) - wanted) / np.float32(len(fitted))
            slope += penalty * (self.penalised.T @ weights)
            return value, slope.astype(np.float64).ravel()

        first = np.zeros(turned.shape[1] * self.outputs)
        options = {"maxiter": 500, "ftol": tolerance}
        found = optimize.minimize(loss, first, jac=True, method="L-BFGS-B", options=options)
        moved: Array = found.x.reshape(-1, self.outputs)
        return moved

    def weights(self, moved: Array) -> Array:
        """(features + 1, labels) weights of the columns, intercepts last."""
        return np.asarray(self.back @ moved)

    def cross_validated(self) -> float:
        """The share of records to which a fit without their fold gives the right label."""
        output = np.empty_like(self.problem.response)
        for fitted, rest in self.problem.folds():
            output[rest] = self.turned[rest] @ self.moved(fitted).astype(np.float32)
        return self.problem.score(output)


def _within_span(rows: Array) -> tuple[Array, Array | None]:
    """Rows in an orthonormal basis of their span, if they have more columns than there are rows, and that basis.

    Penalised weights lie in the span of the records, so a fit in this basis is the same with fewer unknowns.
    """
    if rows.shape[1] <= rows.shape[0]:
        return rows, None
    directions: Array = np.linalg.qr(rows.T)[0]
    return rows @ directions, directions
