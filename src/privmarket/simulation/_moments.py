"""Bought statistics: means and second moments of the inputs, sold in the first round.

If the buyer has few records or none, nobody knows in which directions the inputs vary, and gradient descent is slow
in those where they vary little. So the first round may sell, instead of gradients, the noisy sum of x̃x̃ᵀ, x̃ = (x,
1), over all records of all sellers. It costs a seller as much as a round of gradients, by the same auction, the
same secure sum and the same wallet. From then on every client multiplies its inputs by a public matrix that makes
them vary equally in all directions (whitening), and the remaining rounds train on those.

The second moment of a record is the gradient of the bilinear form x̃ᵀΘx̃ by Θ. So the one private-gradient engine
clips it, adds it up and protects it, and the proof of docs/theory/finite-arithmetic.md holds as it stands.

What was measured, and where it does not pay: docs/decisions/bought-statistics.md.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privmarket._settings import TrainingPlan, require_one_step
from privmarket.errors import ConfigurationError
from privmarket.simulation._own_records import FEWEST_RECORDS, is_linear_in_inputs
from privmarket.training import (
    LocalPlan,
    Loss,
    PrivateModel,
    binary_cross_entropy,
    cross_entropy,
    inner_product,
)

if TYPE_CHECKING:
    from privmarket.simulation._config import FederationConfig
    from privmarket.tasks import Task

Array = NDArray[np.float64]
Plan = TypeVar("Plan", bound=TrainingPlan)

MOST_INPUTS = 500
# Moments of public records are not sold, so more inputs can be scaled by them.
MOST_FREE_INPUTS = 2_500
# The quantile of the public records' norms at which a record's moments are clipped.
_NORM_QUANTILE = 0.95
# Eigenvalues below this share of the mean eigenvalue are raised to it.
_SMALLEST_SHARE = 0.01
# The largest eigenvalue of symmetric noise is about 2σ√(n/2); this share of it is added to every eigenvalue.
_NOISE_SHARE = 0.3
# The step on the mean gradient for server_rate = 1, by loss. For a squared error it is the inverse of the largest
# curvature. For a cross-entropy it is about four times that, because the usual curvature is far smaller.
_STEPS: dict[Loss, float] = {cross_entropy: 8.0, binary_cross_entropy: 16.0}


@dataclass(frozen=True, eq=False)
class Moments:
    """Means and second central moments of the inputs, as far as they are publicly known.

    Attributes:
        mean: (inputs,).
        covariance: (inputs, inputs), symmetric; may have eigenvalues below 0 where it carries noise.
        deviation: of the noise of its entries.
    """

    mean: Array
    covariance: Array
    deviation: float = 0.0

    @property
    def inputs(self) -> int:
        """How many inputs there are."""
        return self.mean.size

    def mixed(self, other: Moments, variance: float) -> Moments:
        """The mean of these noisy moments and `other`, of error `variance`, weighted for the least variance."""
        share = variance / (variance + self.deviation**2)
        mean = share * self.mean + (1.0 - share) * other.mean
        covariance = share * self.covariance + (1.0 - share) * other.covariance
        return Moments(mean, covariance, share * self.deviation)


@dataclass(frozen=True, eq=False)
class Whitening:
    """A public map of inputs, z = A(x − mean) with a symmetric A, after which they vary equally in all directions.

    A is the inverse square root of the covariance, to whose eigenvalues a floor is added, so that directions in
    which only noise is known are not amplified.

    Attributes:
        moments: what it was made from.
    """

    moments: Moments

    @cached_property
    def _spectrum(self) -> tuple[Array, Array, Array]:
        """The eigenvalues, the eigenvalues plus the floor, and the eigenvectors."""
        values, vectors = np.linalg.eigh(self.moments.covariance)
        values = np.maximum(values, 0.0)
        noise = _NOISE_SHARE * self.moments.deviation * math.sqrt(2.0 * (self.moments.inputs + 1))
        lifted = values + noise + max(_SMALLEST_SHARE * float(values.mean()), 1e-12)
        return values, lifted, vectors

    @cached_property
    def matrix(self) -> Array:
        """(inputs, inputs) A."""
        _, lifted, vectors = self._spectrum
        return np.asarray((vectors / np.sqrt(lifted)) @ vectors.T)

    @cached_property
    def inverse(self) -> Array:
        """(inputs, inputs) A⁻¹."""
        _, lifted, vectors = self._spectrum
        return np.asarray((vectors * np.sqrt(lifted)) @ vectors.T)

    @cached_property
    def usual_norm(self) -> float:
        """The root mean square of ‖(z, 1)‖ if the moments are exact: √(Σ λ/(λ + floor) + 1)."""
        values, lifted, _ = self._spectrum
        return math.sqrt(float((values / lifted).sum()) + 1.0)

    @cached_property
    def key(self) -> str:
        """A hash that identifies this map."""
        return hashlib.sha256(self.moments.mean.tobytes() + self.moments.covariance.tobytes()).hexdigest()

    def of(self, inputs: Tensor) -> Tensor:
        """(rows, ...) inputs → z, in the same shape, float32."""
        flat = inputs.flatten(1) - torch.from_numpy(self.moments.mean).float()
        return (flat @ torch.from_numpy(self.matrix).float()).reshape(inputs.shape)

    def folded(self, model: PrivateModel, weights: Tensor) -> Tensor:
        """(parameters,) of a linear model of z → those that give the same outputs for x."""
        return self._moved(model, weights, self.matrix, -self.matrix @ self.moments.mean)

    def unfolded(self, model: PrivateModel, weights: Tensor) -> Tensor:
        """(parameters,) of a linear model of x → those that give the same outputs for z."""
        return self._moved(model, weights, self.inverse, self.moments.mean)

    @staticmethod
    def _moved(model: PrivateModel, weights: Tensor, matrix: Array, shift: Array) -> Tensor:
        """W ← W·matrix, b ← b + W·shift."""
        named = {name: part.double().numpy() for name, part in model.named(weights).items()}
        (weight,) = (name for name, part in named.items() if part.ndim == 2)
        arrays = {name: part + named[weight] @ shift for name, part in named.items() if name != weight}
        arrays[weight] = named[weight] @ matrix
        return model.flat(arrays)

    def training(self, plan: Plan, task: Task) -> Plan:
        """The settings of a round on z: clip_norm in units of the usual norm, server_rate in usual steps."""
        clip_norm = plan.clip_norm * self.usual_norm
        step = _STEPS.get(task.loss, 1.0)
        return replace(plan, clip_norm=clip_norm, server_rate=plan.server_rate * step * clip_norm)


@dataclass(frozen=True, eq=False)
class MomentsSale:
    """What clients release in a round that sells moments.

    Attributes:
        norm: of (x, 1); a record with a larger norm is clipped.
        free: moments that are known for free: those of the public records, or what the schema suggests.
        free_variance: the approximate variance of the entries of `free`.
    """

    norm: float
    free: Moments
    free_variance: float

    @classmethod
    def of(cls, config: FederationConfig, task: Task) -> MomentsSale:
        """The sale of moments of a run on this task; refused before anyone bids if it is impossible.

        Raises:
            ConfigurationError: the run cannot use moments, or no public norm of its inputs is known.
        """
        _require_usable(config, task)
        public = None if task.public is None or len(task.public) < FEWEST_RECORDS else task.public
        norm = config.statistics_norm
        if public is not None:
            rows = public.inputs.reshape(len(public), -1).astype(np.float64)
            norm = norm or float(np.quantile(np.sqrt((rows**2).sum(axis=1) + 1.0), _NORM_QUANTILE))
            free = free_moments(task, rows)
            variance = float((np.diag(free.covariance) ** 2).mean()) / (len(public) + 1)
            return cls(norm, free, variance)
        if norm is None:
            norm = _schema_norm(task)
        guess = _usual_variances(task, norm)
        free = Moments(np.zeros(guess.size), np.diag(guess))
        return cls(norm, free, float((guess**2).mean()))

    @cached_property
    def model(self) -> PrivateModel:
        """x̃ ↦ Θx̃, whose product with x̃ is the "loss": each record's gradient by Θ is x̃x̃ᵀ."""
        size = self.free.inputs + 1
        return PrivateModel(nn.Linear(size, size, bias=False), inner_product, name="moments")

    @property
    def parameters(self) -> int:
        """The number of released entries."""
        return (self.free.inputs + 1) ** 2

    @property
    def clip_norm(self) -> float:
        """The clip norm of x̃x̃ᵀ, norm²: ‖x̃x̃ᵀ‖ = ‖x̃‖²."""
        return self.norm**2

    def plan(self, unit: str) -> LocalPlan:
        """One full-batch step, whose update is the sum itself."""
        return LocalPlan(clip_norm=self.clip_norm, unit=unit)

    @staticmethod
    def rows(inputs: Tensor) -> Tensor:
        """(rows, inputs + 1): x̃."""
        flat = inputs.flatten(1).float()
        return torch.cat([flat, torch.ones(flat.shape[0], 1)], dim=1)

    def bought(self, total: np.ndarray, records: float, deviation: float, unit: str = "record") -> Moments:
        """The moments in a released sum, mixed with those that were known for free.

        The number of a person's rows is not public. If persons are protected, the sum is therefore divided by its
        own last entry, the noisy number of rows, but by no less than half the number of persons.

        Args:
            total: (parameters,) Σ x̃x̃ᵀ with its noise.
            records: the public number of records (or persons) behind it.
            deviation: of the noise of each entry of `total`.
            unit: what is protected, a "record" or a "person".
        """
        size = self.free.inputs + 1
        if unit == "person":
            records = max(float(total[-1]), 0.5 * records)
        second = total.astype(np.float64).reshape(size, size) / records
        second = 0.5 * (second + second.T)
        mean = second[-1, :-1]
        covariance = second[:-1, :-1] - np.outer(mean, mean)
        return Moments(mean, covariance, deviation / records).mixed(self.free, self.free_variance)


def _require_usable(config: FederationConfig, task: Task) -> None:
    """Refuses runs that cannot use bought statistics."""
    said = f"statistics={config.statistics!r}"
    if not config.task:
        raise ConfigurationError(f"{said} with a data set's name", "give a task: pm.task(…), or --data")
    if not config.privacy.uses_server_plan:
        raise ConfigurationError(f"{said} with mode {config.mode!r}", "use mode 'private' or 'no-noise'")
    if config.statistics == "moments" and config.trust != "aggregate":
        raise ConfigurationError(f"{said} under local trust", 'moments are a secure sum: use trust="aggregate"')
    if config.statistics == "moments" and config.rounds < 2:
        raise ConfigurationError(
            f"{said} in a run of one round", "the first round sells moments: take at least two"
        )
    require_one_step("aggregate", config.training.steps)
    inputs = math.prod(task.private.inputs.shape[1:])
    if not is_linear_in_inputs(task.build_model(config.seed)) or task.private.inputs.dtype.kind != "f":
        raise ConfigurationError(f"{said} with a model that is not linear", 'use model="linear"')
    most = MOST_INPUTS if config.statistics == "moments" else MOST_FREE_INPUTS
    if inputs > most:
        raise ConfigurationError(f"{said} of {inputs} inputs", f"at most {most}: take fewer features")


def _schema_norm(task: Task) -> float:
    """The largest norm of (x, 1) that a task's schema allows.

    Raises:
        ConfigurationError: the inputs came without a schema.
    """
    if task.pipeline is None:
        raise ConfigurationError(
            "statistics of inputs without schema, public records or public norm", "give statistics_norm=…, e.g. 10"
        )
    squares = 1.0
    for column in task.pipeline.columns:
        squares += 1.0 if column.about.kind in ("category", "text") else max(column.limit**2, 1.0)
    return math.sqrt(squares)


def _usual_variances(task: Task, norm: float) -> Array:
    """(inputs,) variances if numbers are spread over their range, and values of a category are equally frequent."""
    inputs = math.prod(task.private.inputs.shape[1:])
    if task.pipeline is None:
        return np.full(inputs, norm**2 / inputs)
    guess: list[float] = []
    for column in task.pipeline.columns:
        count = len(column.inputs)
        if column.about.kind in ("category", "text"):
            guess += [1.0 / count] * count
        else:
            number = column.limit**2 if column.about.kind == "boolean" else column.limit**2 / 3.0
            guess += [number] + [0.1] * (count - 1)
    return np.array(guess)


def free_moments(task: Task, rows: Array) -> Moments:
    """Moments of (rows, inputs) of a task, shrunk towards a diagonal guess where rows are few."""
    guess = _usual_variances(task, 1.0)
    mean = rows.mean(axis=0)
    covariance = (rows - mean).T @ (rows - mean) / len(rows)
    share = _own_share(rows)
    scaled = guess * (float(np.trace(covariance)) / float(guess.sum()))
    return Moments(mean, share * covariance + (1.0 - share) * np.diag(scaled))


def _own_share(rows: Array) -> float:
    """The weight from 0 to 1 of the second moments of (rows, inputs); a diagonal guess has the rest."""
    return float(len(rows) / (len(rows) + rows.shape[1]))


def further_rows(task: Task, count: int, smoothing: float, rng: np.random.Generator) -> Array:
    """(count, inputs) rows like the public ones, as many as one wants (a smoothed bootstrap).

    Each has the length of a public row. Its deviation from the mean is √(1 − s²) times that of the public row plus
    s times a draw with the moments of `free_moments`, s being `smoothing`. Rows are therefore not confined to the
    few directions that the public ones span.

    Args:
        task: with public records.
        smoothing: s, how much of the deviation is drawn anew, from 0 to 1.
    """
    assert task.public is not None
    rows = task.public.inputs.reshape(len(task.public), -1).astype(np.float64)
    mean = rows.mean(axis=0)
    centred = rows - mean
    guess = _usual_variances(task, 1.0)
    guess = guess * (float(centred.var(axis=0).sum()) / float(guess.sum()))
    share = _own_share(rows)
    chosen = rng.integers(len(rows), size=count)
    mixed = rng.standard_normal((count, len(rows))) @ centred / math.sqrt(len(rows))
    scattered = rng.standard_normal((count, rows.shape[1])) * np.sqrt(guess)
    anew = math.sqrt(share) * mixed + math.sqrt(1.0 - share) * scattered
    moved = mean + math.sqrt(1.0 - smoothing**2) * centred[chosen] + smoothing * anew
    length = np.linalg.norm(rows[chosen], axis=1) / np.maximum(np.linalg.norm(moved, axis=1), 1e-9)
    return np.asarray(moved * length[:, None])
