"""A training session on disk: starts or resumes, saves as it goes, ends with a weights file and its curve."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TypedDict

import numpy as np

from privmarket._files import write_atomically
from privmarket.errors import ConfigurationError
from privmarket.market._attacks import STRONG, Attack
from privmarket.market._audit import judge
from privmarket.market._bounds import fluid_bound
from privmarket.market._distributions import Distribution, EmpiricalDistribution
from privmarket.market._mechanism import Mechanism
from privmarket.mechanisms.learned._mean_field_loss import SolvedMarket
from privmarket.mechanisms.learned._recipes import Recipe
from privmarket.mechanisms.learned._trained_weights import mechanism_class, new_trainer, write_weights
from privmarket.mechanisms.learned._trainer import Trainer, TrainingStep
from privmarket.mechanisms.learned._training_checkpoint import SoFar, load_checkpoint, save_checkpoint

LEAST_PAST_BIDS = 20
_SAVE_EVERY_SECONDS = 20.0
_CURVE_POINTS = 500


class FluidRatio(TypedDict):
    """ε bought over the fluid bound, a mean over markets, and its standard error."""

    fluid_ratio: float
    fluid_ratio_error: float


class CaseRow(FluidRatio):
    """What an attack found in markets of one kind."""

    scenario: str
    clients: int
    budget: float
    profiles: int
    regret_share: float
    spend_over_budget: float
    underpaid: float
    over_budget: float


class MeasuredWeights(TypedDict):
    """What is measured on weights, case by case; `max_regret` is what they promise."""

    cases: list[CaseRow]
    max_regret: float


@dataclass(frozen=True)
class Finished:
    """Where a training session wrote its weights and curve, and how long it took."""

    weights: Path
    curve: Path
    steps: int
    seconds: float
    resumed_at: int


def check_laws(laws: Sequence[Distribution]) -> None:
    """Refuses past bids that are too few to learn from."""
    for law in laws:
        if isinstance(law, EmpiricalDistribution) and law.past.clients < LEAST_PAST_BIDS:
            raise ConfigurationError(
                f"{law.name}: {law.past.clients} past bids are too few to learn from",
                f"collect at least {LEAST_PAST_BIDS}, or use a named scenario",
            )


def checkpoint_path(out: Path) -> Path:
    """Where a session that will write `out` keeps its state."""
    return out.with_name(out.name + ".checkpoint")


def train(
    recipe: Recipe,
    laws: Sequence[Distribution],
    out: Path,
    report: Callable[[TrainingStep], None] = lambda progress: None,
    until: int | None = None,
    solved: SolvedMarket | None = None,
) -> Finished:
    """Runs a recipe to its end (or to step `until`), resuming from the checkpoint beside `out` if there is one.

    Weights are written when the recipe is done; a keyboard interrupt leaves a checkpoint.
    """
    check_laws(laws)
    trainer = new_trainer(recipe, laws, solved)
    kept = checkpoint_path(out)
    earlier: SoFar = load_checkpoint(kept, trainer) if kept.exists() else {"seconds": 0.0, "curve": []}
    session = _Session(trainer, kept, earlier["seconds"], earlier["curve"], report)
    resumed_at = trainer.step
    try:
        trainer.run(session.after_step, until)
    finally:
        session.save()
    if trainer.step >= recipe.steps:
        write_weights(out, trainer, session.seconds, {})
    curve = out.with_suffix(".curve.csv")
    write_atomically(curve, _as_csv(session.curve).encode())
    return Finished(out, curve, trainer.step, session.seconds, resumed_at)


class _Session:
    def __init__(
        self,
        trainer: Trainer,
        path: Path,
        seconds: float,
        curve: list[list[float]],
        report: Callable[[TrainingStep], None],
    ) -> None:
        self.trainer, self.path, self.curve, self.report = trainer, path, curve, report
        self.started = time.monotonic() - seconds
        self.saved = time.monotonic()
        self.every = max(1, trainer.recipe.steps // _CURVE_POINTS)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def after_step(self, progress: TrainingStep) -> None:
        if progress.step % self.every == 0:
            self.curve.append([float(value) for value in asdict(progress).values()])
        if time.monotonic() - self.saved > _SAVE_EVERY_SECONDS:
            self.save()
        self.report(progress)

    def save(self) -> None:
        save_checkpoint(self.path, self.trainer, {"seconds": self.seconds, "curve": self.curve})
        self.saved = time.monotonic()


def _as_csv(curve: list[list[float]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([field.name for field in fields(TrainingStep)])
    writer.writerows(curve)
    return text.getvalue()


def value(rule: Mechanism, law: Distribution, clients: int, budget: float, seed: int) -> FluidRatio:
    """ε bought over the fluid bound with its standard error: more markets than can be attacked."""
    markets = max(20, 30_000 // clients)
    types = law.sample(np.random.default_rng([seed, 1]), clients, (markets,))
    ratio = rule.run(types, budget).total_epsilon / fluid_bound(law, clients, budget)
    return {"fluid_ratio": float(ratio.mean()), "fluid_ratio_error": float(ratio.std() / markets**0.5)}


def measure(
    weights: Path | None,
    name: str,
    cases: Sequence[tuple[Distribution, int, float, int]],
    attack: Attack = STRONG,
    seed: int = 12_345,
    progress: Callable[[CaseRow], None] = lambda row: None,
) -> MeasuredWeights:
    """Attacks weights in markets (law, clients, budget, profiles).

    Returns:
        `cases`, one row each, and `max_regret`: the largest mean regret as a share of the mean payment, with a
        quarter on top, because other samples differ.
    """
    rule = mechanism_class(name)(weights=weights)
    rows = []
    for law, clients, budget, profiles in cases:
        rng = np.random.default_rng(seed)
        types = law.sample(rng, clients, (profiles,))
        merit = judge(types, rule.run(types, budget), budget)
        regret = attack(rule, types, budget, rng)
        row: CaseRow = {
            "scenario": law.name,
            "clients": clients,
            "budget": budget,
            "profiles": profiles,
            "regret_share": float(regret.gain.mean() / merit.mean_payment),
            **value(rule, law, clients, budget, seed),
            "spend_over_budget": merit.spend / budget,
            "underpaid": merit.underpaid,
            "over_budget": merit.over_budget,
        }
        rows.append(row)
        progress(row)
    return summary(rows)


def summary(rows: list[CaseRow]) -> MeasuredWeights:
    """What `measure` returns, from its rows."""
    return {"cases": rows, "max_regret": round(1.25 * max(row["regret_share"] for row in rows), 5)}
