"""What the buyer's own records give for no money and at ε = 0: the model a market starts from, and a baseline.

`OwnTraining` trains the task's module on the public records. A market starts from that model (a warm start), so
that sellers are paid only for what the buyer could not have learned alone. How strongly the training is held back
is chosen by cross-validation on the same records; private and test records are not looked at. Two ways of training
are enough: a linear model is fitted to the end with a penalty on its weights; any other module is trained by Adam
for a number of passes over the records, and stopping early is what holds it back.

`own_records` measures on test records what the buyer had before it bought anything: the best of that model and of
ridge, kernel ridge and, for classes, logistic regression on the same inputs (tokens are counted for them). Reports
state this figure first, measured on the same test records as the bought model, so that it shows if buying adds
nothing. `cross_validated` says the same of a buyer without test records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privmarket.errors import DataError
from privmarket.tasks import own_records_alone

if TYPE_CHECKING:
    from privmarket.tasks import FittedBaseline, Records, Task
    from privmarket.training import PrivateModel


_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
_PASSES = (2, 5, 10, 20, 40, 80)
_FOLDS = 5
# With many records more folds of a linear model take time and change little.
_FOLDS_OF_MANY = 3
_MANY_RECORDS = 2_000
# Fewer public records than this are not trained on.
FEWEST_RECORDS = 10
_NEWTON_STEPS = 150
_BATCH = 32
_ADAM_RATE = 3e-3
_BLOCK_ROWS = 4096


@dataclass(frozen=True, eq=False)
class OwnModel:
    """What the buyer has before it buys anything.

    Attributes:
        module: the task's module, trained on all public records.
        strength: what cross-validation chose: the penalty of a linear model, or passes over the records.
        held_out_loss: mean loss per record in cross-validation, each record left out of the training that
            predicts it.
        held_out_spread: of a regression, the deviation of targets from what was predicted for them; else 0.
    """

    module: nn.Module
    strength: float
    held_out_loss: float
    held_out_spread: float


class OwnTraining:
    """Trains a task's module on records that cost nothing.

    Args:
        task: its model and loss are used; of its records only the public ones.
        seed: of initial weights, folds and the order of records.
    """

    def __init__(self, task: Task, seed: int = 0) -> None:
        self.task = task
        self.seed = seed
        self.is_linear = is_linear(task.build_model(seed))

    @property
    def strengths(self) -> Sequence[float]:
        """What cross-validation chooses from."""
        return _PENALTIES if self.is_linear else _PASSES

    def own_model(self) -> OwnModel:
        """The task's module on all public records, with the strength that cross-validation chose.

        Raises:
            DataError: there are too few public records.
        """
        inputs, labels = self._public()
        strength, loss, spread = self.chosen_strength(inputs, labels)
        return OwnModel(self.fit(inputs, labels, strength), strength, loss, spread)

    def chosen_strength(self, inputs: Tensor, labels: Tensor) -> tuple[float, float, float]:
        """The strength with the least mean loss on records that were left out, that loss, and their spread."""
        count = labels.shape[0]
        folds = _FOLDS_OF_MANY if self.is_linear and count > _MANY_RECORDS else _FOLDS
        fold = torch.from_numpy(self.fold_of_each(folds))
        losses = np.zeros(len(self.strengths))
        squares = np.zeros(len(self.strengths))
        for number in range(folds):
            rest = fold == number
            fitted = self._fits(inputs[~rest], labels[~rest], self.strengths)
            for place, module in enumerate(fitted):
                losses[place] += float(self.losses(module, inputs[rest], labels[rest]).sum())
                if self.task.goal == "regression":
                    with torch.no_grad():
                        off = module(inputs[rest]).reshape(labels[rest].shape) - labels[rest]
                    squares[place] += float(off.double().square().sum())
        best = int(np.argmin(losses))
        return float(self.strengths[best]), float(losses[best]) / count, float(squares[best] / count) ** 0.5

    def fit(self, inputs: Tensor, labels: Tensor, strength: float, *, around: Tensor | None = None) -> nn.Module:
        """The task's module trained on these records; inputs (rows, ...), labels (rows, ...).

        Args:
            around: (outputs, inputs) weights towards which the penalty of a linear module pulls; zero if left out.
        """
        return next(self._fits(inputs, labels, (strength,), around))

    def losses(self, module: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        """(rows,) the loss of each record, without gradients."""
        module.eval()
        with torch.no_grad():
            blocks = range(0, labels.shape[0], _BLOCK_ROWS)
            parts = [
                self.task.loss(module(inputs[a : a + _BLOCK_ROWS]), labels[a : a + _BLOCK_ROWS]) for a in blocks
            ]
        return torch.cat(parts)

    def _public(self) -> tuple[Tensor, Tensor]:
        public = self.task.public
        if public is None or len(public) < FEWEST_RECORDS:
            held = 0 if public is None else len(public)
            raise DataError(
                f"{held} public records are too few to train on", f"give at least {FEWEST_RECORDS}, or none"
            )
        return public.tensors()

    def fold_of_each(self, folds: int) -> NDArray[np.int64]:
        """(public records,) which fold a record is in; all records of a person are in one."""
        assert self.task.public is not None
        persons = self.task.public.persons
        rows = len(self.task.public)
        _, unit = np.unique(np.arange(rows) if persons is None else persons, return_inverse=True)
        order = np.random.default_rng([self.seed, rows]).permutation(int(unit.max()) + 1)
        return order[unit] % folds

    def _fits(
        self, inputs: Tensor, labels: Tensor, strengths: Sequence[float], around: Tensor | None = None
    ) -> Iterator[nn.Module]:
        """The module for each strength, weakest penalty or fewest passes first.

        Passes go on where those before ended, so a yielded module must be used before the next one is asked for.
        """
        module = self.task.build_model(self.seed)
        module.train()
        if self.is_linear:
            for penalty in strengths:
                _fit_linear(module, self.task, inputs, labels, penalty, around)
                yield module
            return
        trained = [p for p in module.parameters() if p.requires_grad]
        optimiser = torch.optim.Adam(trained, lr=_ADAM_RATE)
        rng = np.random.default_rng([self.seed, 1])
        done = 0
        for passes in strengths:
            module.train()
            while done < passes:
                order = torch.from_numpy(rng.permutation(labels.shape[0]))
                for start in range(0, order.shape[0], _BATCH):
                    rows = order[start : start + _BATCH]
                    optimiser.zero_grad()
                    self.task.loss(module(inputs[rows]), labels[rows]).mean().backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
                done += 1
            yield module


def flat_weights(model: PrivateModel, module: nn.Module) -> Tensor:
    """(parameters,) the trained parameters of a module that was built as the model's own was."""
    named = {name: p.detach().numpy() for name, p in module.named_parameters() if p.requires_grad}
    return model.flat(named)


def is_linear(module: nn.Module) -> bool:
    """Whether all trainable parameters belong to one `nn.Linear`; the penalised fit then has one optimum."""
    holders = [m for m in module.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]
    return len(holders) == 1 and isinstance(holders[0], nn.Linear)


def is_linear_in_inputs(module: nn.Module) -> bool:
    """Whether the module is linear and has no frozen parameters, which could change the inputs before the layer."""
    return is_linear(module) and len([*module.parameters()]) == len([*trained_linear(module).parameters()])


def trained_linear(module: nn.Module) -> nn.Linear:
    """The `nn.Linear` that is trained in a linear module."""
    return next(m for m in module.modules() if isinstance(m, nn.Linear) and m.weight.requires_grad)


def _fit_linear(
    module: nn.Module, task: Task, inputs: Tensor, labels: Tensor, penalty: float, around: Tensor | None
) -> None:
    """Minimises mean loss + penalty·‖weights − around‖²/2 from zero, by L-BFGS; the bias is not penalised."""
    linear = trained_linear(module)
    with torch.no_grad():
        linear.weight.zero_()
        if linear.bias is not None:
            linear.bias.zero_()
    trained = [p for p in linear.parameters() if p.requires_grad]
    centre = torch.zeros_like(linear.weight) if around is None else around
    optimiser = torch.optim.LBFGS(trained, max_iter=_NEWTON_STEPS, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        for parameter in trained:  # as `zero_grad` does, which takes a tenth of the fit
            parameter.grad = None
        away = (linear.weight - centre).square().sum()
        value: Tensor = task.loss(module(inputs), labels).mean() + 0.5 * penalty * away
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(objective)  # type: ignore[no-untyped-call]


# Models that give no probabilities have no log-loss.
_NEEDS_PROBABILITIES = ("log-loss",)
OWN_MODEL = "the task's own model"
_HAVE_PROBABILITIES = (OWN_MODEL, "logistic regression")
# How often records are drawn anew for the error of a score, and the random stream of these draws.
_REDRAWS = 200
_REDRAWN = 3
# The output for a class that none of the buyer's records has.
_NEVER = -1e3
# Where a record has more inputs than this, only the task's own module is tried.
_MOST_INPUTS = 20_000


@dataclass(frozen=True)
class OwnRecords:
    """The free baseline of a task.

    Attributes:
        records: how many records the buyer holds.
        best: name of the model with the best headline score.
        scores: of that model on the test records, by name of the score.
        tried: headline score of every model that was tried, by name of the model.
        outputs: (test records, ...) of the best model.
    """

    records: int
    best: str
    scores: dict[str, float]
    tried: dict[str, float]
    outputs: NDArray[np.generic] = field(repr=False, compare=False)

    def to_json(self) -> dict[str, object]:
        """The figures as JSON data."""
        return {"records": self.records, "best": self.best, "scores": self.scores, "tried": self.tried}


def own_records(task: Task, module: nn.Module, *, seed: int = 0) -> OwnRecords | None:
    """What the buyer's own records give; None without public or without test records.

    Args:
        module: the task's module, trained on the public records.
    """
    if task.public is None or task.test is None:
        return None
    own = task.outputs(module, task.test.inputs)
    outputs: dict[str, NDArray[np.generic]] = {OWN_MODEL: own}
    found = {OWN_MODEL: task.evaluate(own, task.test)}
    for baseline in _plain_models(task, task.public, seed):
        outputs[baseline.name] = _outputs(task, baseline, task.test)
        scores = task.evaluate(outputs[baseline.name], task.test)
        if baseline.name not in _HAVE_PROBABILITIES:
            scores = {name: value for name, value in scores.items() if name not in _NEEDS_PROBABILITIES}
        found[baseline.name] = scores
    headline = task.score.name
    tried = {name: scores[headline] for name, scores in found.items() if headline in scores}
    best = _best_of(task, tried)
    return OwnRecords(len(task.public), best, found[best], tried, outputs[best])


@dataclass(frozen=True, eq=False)
class CrossValidated:
    """What a buyer's own records say of each other, where there are no test records.

    Attributes:
        best: name of the model with the best headline score.
        score: of that model; each record is predicted by a fit that left it out.
        error: standard error of that score, by drawing records anew.
        tried: headline score of every model that was tried, by name of the model.
        outputs: (records, ...) of the task's own model for records that were left out.
    """

    best: str
    score: float
    error: float
    tried: dict[str, float]
    outputs: NDArray[np.generic]


def cross_validated(task: Task, own: OwnModel, *, seed: int = 0) -> CrossValidated:
    """The models of `own_records` in cross-validation on the public records.

    Args:
        own: the task's module trained on the public records; its strength is kept.

    Raises:
        DataError: the headline score cannot be computed on the public records.
    """
    assert task.public is not None
    training = OwnTraining(task, seed)
    inputs, labels = task.public.tensors()
    fold = training.fold_of_each(_FOLDS)
    found: dict[str, NDArray[np.generic]] = {}
    folds: dict[str, int] = {}
    for number in range(_FOLDS):
        left_out = np.flatnonzero(fold == number)
        kept = torch.from_numpy(fold != number)
        some = task.public[left_out]
        module = training.fit(inputs[kept], labels[kept], own.strength)
        outputs: dict[str, NDArray[np.generic]] = {OWN_MODEL: task.outputs(module, some.inputs)}
        for baseline in _plain_models(task, task.public[fold != number], seed):
            outputs[baseline.name] = _outputs(task, baseline, some)
        for name, values in outputs.items():
            folds[name] = folds.get(name, 0) + 1
            whole = found.setdefault(name, np.zeros((len(fold), *values.shape[1:]), values.dtype))
            whole[left_out] = values
    headline = task.score.name
    tried = {
        name: task.evaluate(outputs, task.public)[headline]
        for name, outputs in found.items()
        if folds[name] == _FOLDS and (name in _HAVE_PROBABILITIES or headline not in _NEEDS_PROBABILITIES)
    }
    best = _best_of(task, tried)
    rng = np.random.default_rng([seed, _REDRAWN])
    again = []
    for _ in range(_REDRAWS):
        rows = rng.integers(0, len(fold), len(fold))
        with suppress(DataError):  # a class is missing
            again.append(task.evaluate(found[best][rows], task.public[rows])[headline])
    error = float(np.std(again, ddof=1)) if len(again) > 1 else float("nan")
    return CrossValidated(best, tried[best], error, tried, found[OWN_MODEL])


def _best_of(task: Task, tried: dict[str, float]) -> str:
    """The name of the best headline score."""
    sign = 1.0 if task.score.higher_is_better else -1.0
    return max(tried, key=lambda name: sign * tried[name] if np.isfinite(tried[name]) else -np.inf)


def _plain_models(task: Task, public: Records, seed: int) -> list[FittedBaseline]:
    """Ridge, kernel ridge and logistic regression on the buyer's records, where they can be fitted."""
    inputs = _plain_inputs(task, public.inputs)
    if task.goal not in ("classification", "regression") or inputs is None or public.labels.ndim != 1:
        return []
    try:
        if task.goal == "classification":
            return own_records_alone(inputs, public.labels, goal="classification", seed=seed)
        return own_records_alone(inputs, public.labels, goal="regression", seed=seed)
    except DataError:  # too few records: the task's own module stands alone
        return []


def _plain_inputs(task: Task, inputs: NDArray[np.generic]) -> NDArray[np.generic] | None:
    """(rows, ...) numbers that the plain models take; None where there are none, or too many a record.

    Numbers of tokens become counts of how often each occurs in the record, scaled to length 1. Padding (token 0) is
    not counted.
    """
    if inputs.dtype.kind == "f":
        return inputs if int(np.prod(inputs.shape[1:])) <= _MOST_INPUTS else None
    columns = () if task.pipeline is None else task.pipeline.columns
    buckets = next((one.about.buckets for one in columns if one.about.kind == "tokens"), 0)
    if not 0 < buckets <= _MOST_INPUTS or inputs.ndim != 2:
        return None
    counts = np.zeros((len(inputs), buckets), dtype=np.float32)
    rows = np.repeat(np.arange(len(inputs)), inputs.shape[1])
    np.add.at(counts, (rows, inputs.astype(np.int64).reshape(-1)), 1.0)
    counts[:, 0] = 0.0
    lengths = np.linalg.norm(counts, axis=1, keepdims=True)
    scaled: NDArray[np.generic] = counts / np.maximum(lengths, 1.0)
    return scaled


def _outputs(task: Task, baseline: FittedBaseline, records: Records) -> NDArray[np.float64]:
    """The baseline's outputs on these records, as the task's scores take them."""
    inputs = _plain_inputs(task, records.inputs)
    assert inputs is not None
    found = baseline.outputs(inputs)
    if task.goal == "regression":
        return found[:, 0]
    whole = np.full((len(found), len(task.classes)), _NEVER)
    whole[:, baseline.labels.astype(np.int64)] = found
    return whole
