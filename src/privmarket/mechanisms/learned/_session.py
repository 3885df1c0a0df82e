"""A training session on disk: starts or resumes, saves as it goes, ends with a weights file and its curve.

One session serves networks and menus: it drives any `TrainingRun`. A checkpoint holds everything that the next step
depends on, in one file, written atomically, so a run that was killed goes on from its last checkpoint and ends with
the same weights. What is written is a copy that was taken between two steps: an interrupt may land inside one.
"""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar

from privmarket._files import write_atomically
from privmarket.errors import ConfigurationError
from privmarket.market._distributions import Distribution, EmpiricalDistribution
from privmarket.mechanisms.learned._losses import SolvedMarket
from privmarket.mechanisms.learned._recipes import Recipe
from privmarket.mechanisms.learned._trainer import TrainingRun, TrainingStep, new_trainer
from privmarket.mechanisms.learned._weights import Weights, WeightsError, load, save

SUFFIX = "#checkpoint"
LEAST_PAST_BIDS = 20
_SAVE_EVERY_SECONDS = 5.0
_CURVE_POINTS = 500
Progress = TypeVar("Progress")


def check_distributions(distributions: Sequence[Distribution]) -> None:
    """Refuses past bids that are too few to learn from."""
    for distribution in distributions:
        if isinstance(distribution, EmpiricalDistribution) and distribution.past.clients < LEAST_PAST_BIDS:
            raise ConfigurationError(
                f"{distribution.name}: {distribution.past.clients} past bids are too few to learn from",
                f"collect at least {LEAST_PAST_BIDS}, or use a named scenario",
            )


def checkpoint_path(out: Path) -> Path:
    """Where a session that will write `out` keeps its state."""
    return out.with_name(out.name + ".checkpoint")


class SoFar(TypedDict, total=False):
    """The state of a session: seconds it took, rows of its curve, and the memory of its early stop."""

    seconds: float
    curve: list[list[float]]
    patience: dict[str, float]


def copied(run: TrainingRun[Any], so_far: SoFar) -> Weights:
    """Everything the next step depends on, as it is now. `so_far` is kept for the caller."""
    arrays, state = run.state()
    return deepcopy(Weights(run.mechanism + SUFFIX, arrays, {"step": run.step, "state": state, "so_far": so_far}))


def save_checkpoint(path: str | Path, run: TrainingRun[Any], state: Weights) -> None:
    """Writes what `copied` gave, in one file, atomically."""
    save(path, replace(state, facts={**state.facts, "description": run.description()}))


def load_checkpoint(path: str | Path, run: TrainingRun[Any]) -> SoFar:
    """Puts a run where the checkpoint left; returns the caller's facts.

    Raises:
        WeightsError: the checkpoint was written by a run with other settings or other distributions.
    """
    stored = load(path, run.mechanism + SUFFIX)
    described = json.loads(json.dumps(run.description()))  # with lists for tuples, as JSON gives it back
    if stored.facts.get("description") != described:
        raise WeightsError(
            f"{path} belongs to a run with other settings", "repeat those settings, or choose another --out"
        )
    run.restore(stored.arrays, stored.facts["state"])
    run.step = int(stored.facts["step"])
    so_far: SoFar = stored.facts["so_far"]
    return so_far


@dataclass
class EarlyStop:
    """Ends a training in which neither objective nor regret improves any more.

    Objective and regret are followed as running means. An objective that is higher than ever by more than 0.001,
    or a regret that is lower than ever by more than a fiftieth, is progress; `patience` steps without any end the
    run.

    Attributes:
        patience: how many steps without progress are allowed.
    """

    patience: int
    memory: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ConfigurationError(f"patience is {self.patience}", "give a number of steps, at least 1")

    def __call__(self, progress: TrainingStep) -> bool:
        """Whether the run should end after this step."""
        now = self.memory
        if not now:
            now.update(objective=progress.objective, regret=progress.regret)
            now.update(best_objective=-math.inf, best_regret=math.inf, progress_at=progress.step)
        now["objective"] += 0.05 * (progress.objective - now["objective"])
        now["regret"] += 0.05 * (progress.regret - now["regret"])
        if now["objective"] > now["best_objective"] + 0.001:
            now["best_objective"] = now["objective"]
            now["progress_at"] = progress.step
        if now["regret"] < 0.98 * now["best_regret"]:
            now["best_regret"] = now["regret"]
            now["progress_at"] = progress.step
        return self.ended(progress.step)

    def ended(self, step: int) -> bool:
        """Whether a run that is at this step has ended."""
        return bool(self.memory) and step - self.memory["progress_at"] >= self.patience


@dataclass(frozen=True)
class Finished:
    """Where a training session wrote its weights and curve, and how long it took.

    Attributes:
        steps: steps done; fewer than the recipe has where it was stopped.
        resumed_at: the step from which an earlier session was continued, 0 for a new one.
        stopped_early: whether it ended because nothing improved any more.
    """

    weights: Path
    curve: Path
    steps: int
    seconds: float
    resumed_at: int
    stopped_early: bool = False


class Session(Generic[Progress]):
    """A run under way, in memory or with a checkpoint on disk.

    Args:
        run: what is trained.
        checkpoint: where its state is kept; None keeps it nowhere. A checkpoint that is there is continued.
        report: called after every step.
        early_stop: asked after every step.
    """

    def __init__(
        self,
        run: TrainingRun[Progress],
        checkpoint: Path | None,
        report: Callable[[Progress], object] | None = None,
        early_stop: EarlyStop | None = None,
    ) -> None:
        self.run = run
        self.path = checkpoint
        self.report = report
        self.early_stop = early_stop
        so_far: SoFar = {"seconds": 0.0, "curve": []}
        if checkpoint is not None and checkpoint.exists():
            so_far = load_checkpoint(checkpoint, run)
            if early_stop is not None:
                early_stop.memory.update(so_far.get("patience", {}))
        self.curve = so_far["curve"]
        self.columns: list[str] = []
        self.resumed_at = run.step
        self.stopped_early = early_stop is not None and early_stop.ended(run.step)
        self.seconds = so_far["seconds"]  # spent on steps, earlier sessions included
        self._started = time.monotonic() - self.seconds
        self._saved = time.monotonic()
        self._every = max(1, run.steps // _CURVE_POINTS)
        self._latest: Weights | None = None  # after the last whole step

    def train(self, until: int | None = None) -> None:
        """Runs to the end, to step `until`, or until nothing is gained any more; the state is kept on the way."""
        if self.stopped_early:
            return
        try:
            self.stopped_early = self.run.run(self._after_step, until, self.early_stop)  # type: ignore[arg-type]
        finally:
            self.save()

    def _after_step(self, progress: Progress) -> None:
        if self.run.step % self._every == 0:
            self.curve.append([float(value) for value in asdict(progress).values()])  # type: ignore[call-overload]
        self.seconds = time.monotonic() - self._started
        if self.path is not None:
            so_far: SoFar = {"seconds": self.seconds, "curve": self.curve}
            if self.early_stop is not None:
                so_far["patience"] = self.early_stop.memory
            self._latest = copied(self.run, so_far)
        if time.monotonic() - self._saved > _SAVE_EVERY_SECONDS:
            self.save()
        if self.report is not None:
            self.report(progress)

    def save(self) -> None:
        """Writes the checkpoint, if a step was made since the last one."""
        self._saved = time.monotonic()
        if self.path is not None and self._latest is not None:
            save_checkpoint(self.path, self.run, self._latest)
            self._latest = None


def finish(
    run: TrainingRun[Progress],
    out: Path,
    report: Callable[[Progress], object] | None = None,
    until: int | None = None,
    early_stop: EarlyStop | None = None,
) -> Finished:
    """Runs to the end (or to step `until`), resuming from the checkpoint beside `out` if there is one.

    Weights are written when the run is done; a keyboard interrupt leaves a checkpoint.
    """
    session = Session(run, checkpoint_path(out), report, early_stop)
    session.train(until)
    if run.step >= run.steps or session.stopped_early:
        save(out, run.weights(session.seconds))
    curve = out.with_suffix(".curve.csv")
    write_atomically(curve, curve_csv(run, session.curve).encode())
    return Finished(out, curve, run.step, session.seconds, session.resumed_at, session.stopped_early)


def run_recipe(
    recipe: Recipe,
    distributions: Sequence[Distribution],
    out: Path,
    report: Callable[[TrainingStep], object] | None = None,
    until: int | None = None,
    solved: SolvedMarket | None = None,
) -> Finished:
    """Trains the network of a registered rule by a recipe; `privmarket.train` is the public way."""
    check_distributions(distributions)
    return finish(new_trainer(recipe, distributions, solved), out, report, until)


def curve_csv(run: TrainingRun[Any], rows: list[list[float]]) -> str:
    """The training curve as CSV, with a header."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([column.name for column in fields(run.progress_class)])
    writer.writerows(rows)
    return text.getvalue()
