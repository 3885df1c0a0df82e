"""`privmarket.train`, and its result: the trained mechanism, the training curve and the weights."""

from __future__ import annotations

import csv
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from privmarket._figures import new_figure, write
from privmarket._files import write_atomically
from privmarket._lazy import late
from privmarket._named import names_code
from privmarket._settings import EPSILON_MAX
from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array
from privmarket.market._distributions import Distribution, Source, distribution as distribution_of
from privmarket.market._mechanism import Mechanism
from privmarket.market._objectives import AggregationError, Objective, TotalEpsilon, objective as objective_called
from privmarket.mechanisms._registry import named_object, registered_names
from privmarket.mechanisms.learned._learned_mechanism import LearnedMechanism, network_mechanism
from privmarket.mechanisms.learned._losses import LossLike, training_loss
from privmarket.mechanisms.learned._menu_training import DesignPoint, MenuProgress, MenuTrainer, search_called
from privmarket.mechanisms.learned._menunet import MfgMenuNet
from privmarket.mechanisms.learned._networks import AuctionNetwork
from privmarket.mechanisms.learned._objectives import ObjectiveLike, training_objective
from privmarket.mechanisms.learned._recipes import PAPER_SCENARIOS, Recipe, market_size, own_recipe, recipe
from privmarket.mechanisms.learned._session import (
    EarlyStop,
    Session,
    check_distributions,
    checkpoint_path,
)
from privmarket.mechanisms.learned._trainer import TrainingRun, TrainingStep, mechanism_class, new_trainer
from privmarket.mechanisms.learned._weights import Weights, load, save

if TYPE_CHECKING:
    import pandas

    from privmarket._figures import Figure
else:
    pandas = late("pandas")

Trainable = str | type[AuctionNetwork] | type[LearnedMechanism]
"""A registered rule's name, `package.module:Network` or `file.py:Network`, or the class itself."""
_SHOW_EVERY_SECONDS = 5.0


@dataclass(frozen=True)
class TrainingResult:
    """A trained rule with everything that is known about its training.

    Attributes:
        mechanism: the rule, ready for `run`, `pm.audit` and `pm.compare`.
        untrained: the same rule before its first step, for comparison.
        curve: column → (points,) array; the columns are the fields of `TrainingStep` (of `MenuProgress` for menus).
        steps: steps done.
        seconds: time taken, earlier sessions included.
        resumed_at: the step from which an earlier session was continued, 0 for a new run.
        stopped_early: whether `patience` ended it before its last step.
        weights: arrays and facts, as they are written by `save`.
        path: where `out` said to write them, None where it said nothing.
    """

    mechanism: Mechanism
    untrained: Mechanism
    curve: Mapping[str, Array]
    steps: int
    seconds: float
    resumed_at: int
    stopped_early: bool
    weights: Weights
    path: Path | None = None

    @property
    def finished_before(self) -> bool:
        """Whether an earlier session had finished it, so that nothing was left to do."""
        return self.resumed_at == self.steps

    def __repr__(self) -> str:
        last = {name: values[-1] for name, values in self.curve.items() if values.size and name != "step"}
        figures = ", ".join(f"{name} {last[name]:.4g}" for name in ("objective", "regret") if name in last)
        return f"TrainingResult({self.mechanism.name}: {self.steps} steps in {self.seconds:.0f} s, {figures})"

    def to_frame(self) -> pandas.DataFrame:
        """The training curve as a pandas table, a row per recorded step."""
        return pandas.DataFrame(dict(self.curve))

    def plot(self, path: str | Path | None = None) -> Figure:
        """Objective and, for networks, regret against steps; written to `path` (PNG, SVG, PDF) if given."""
        return plot_curve(self.curve, path)

    def save(self, path: str | Path) -> Path:
        """Writes the weights to `path` and the curve beside it, as `path.curve.csv`; returns the path."""
        place = Path(path)
        save(place, self.weights)
        columns = list(self.curve)
        rows = zip(*(self.curve[name] for name in columns), strict=True)
        lines = [",".join(columns), *(",".join(f"{value:.10g}" for value in row) for row in rows)]
        write_atomically(place.with_suffix(".curve.csv"), ("\n".join(lines) + "\n").encode())
        return place

    @staticmethod
    def load(path: str | Path, rule: Trainable) -> TrainingResult:
        """Reads what `save`, `train(out=…)` or `privmarket train` wrote.

        Args:
            path: the weights file.
            rule: what was trained. A file never says which code to import, so it has to be named.

        Raises:
            WeightsError: the file is not whole, or holds the weights of another rule.
        """
        place = Path(path)
        of = trainable_class(rule)
        stored = load(place, of.name)
        curve = place.with_suffix(".curve.csv")
        steps = int(stored.facts.get("steps_done", 0))
        return TrainingResult(
            mechanism=_made(of, stored, untrained=False),
            untrained=_made(of, stored, untrained=True),
            curve=read_curve(curve) if curve.exists() else {},
            steps=steps,
            seconds=float(stored.facts["seconds"]),
            resumed_at=steps,
            stopped_early=False,
            weights=stored,
            path=place,
        )


def train(
    rule: Trainable,
    *,
    distribution: Source | Sequence[Source] = PAPER_SCENARIOS,
    clients: int | tuple[int, int] | None = None,
    budget: float | None = None,
    budget_per_client: tuple[float, float] | None = None,
    objective: ObjectiveLike | None = None,
    loss: LossLike | None = None,
    profile: Literal["quick", "full"] = "full",
    steps: int | None = None,
    rows: int | None = None,
    learning_rate: float | None = None,
    settings: Mapping[str, object] | None = None,
    out: str | Path | None = None,
    resume: bool = True,
    patience: int | None = None,
    progress: bool | Callable[[TrainingStep], object] | Callable[[MenuProgress], object] = True,
    seed: int = 0,
) -> TrainingResult:
    """Trains a rule for the markets of a distribution.

    Args:
        rule: what to train: a learned rule by its name (`regretformer`, `regretnet`, `mfg-regretnet`,
            `dm-regretnet`, `mfg-regretnet:literal`; `mfg-menunet` learns an exactly truthful menu), an
            `AuctionNetwork` of your own, or `package.module:Network` or `file.py:Network`.
        distribution: what clients are drawn from: a scenario's name, the path of a CSV file of past bids, a pair
            of SciPy's frozen distributions (valuation, epsilon), or an object with `sample(rng, clients) -> Bids`,
            in which v may depend on ε; see `privmarket.market.distribution`. Of a list, each market draws one.
        clients: clients in each market, a number or (least, most); the recipe's range by default.
        budget: money of a market with that many clients; trained from four fifths to five quarters of it.
        budget_per_client: (least, most) money per client, instead of `budget`.
        objective: `total-epsilon` (the default), `aggregation-error`, `revenue`, an own `TrainingObjective`, a
            function `(markets, trade) -> (L,)`, or `file.py:Objective`. For `mfg-menunet` an objective of
            `privmarket.market`.
        loss: `lagrangian` (the default: multipliers that keep regret at a budget), `penalty` (a fixed weight), an
            own `Loss`, a function `(batch) -> scalar`, or `file.py:Loss`.
        profile: `quick` takes minutes and shows whether a setting works; `full` is for a rule that is to be used.
        steps, rows, learning_rate: gradient steps, clients per batch, and the first rate of Adam; as the recipe has
            them by default.
        settings: further settings of the recipe by dotted names, such as
            {"network.hidden": 64, "attack.rows": 300}.
        out: where to write the weights. Beside them stand the training curve and a checkpoint. None keeps
            everything in memory.
        resume: whether to go on from the checkpoint beside `out`, if there is one. False begins anew.
        patience: ends the run after so many steps without progress (see `EarlyStop`); None never does.
        progress: True prints a line now and then, False nothing; a function is called with every step.
        seed: of all chance. The same call on the same machine gives the same weights, also when it was interrupted.

    Returns:
        The trained rule, the same rule untrained, and the training curve.

    Raises:
        ConfigurationError: a setting that does not exist or does not fit, fewer than 20 past bids, a loss that is
            not finite.
        WeightsError: the checkpoint beside `out` belongs to a run with other settings.
    """
    of, run = training_run(
        rule,
        distribution=distribution,
        clients=clients,
        budget=budget,
        budget_per_client=budget_per_client,
        objective=objective,
        loss=loss,
        profile=profile,
        steps=steps,
        rows=rows,
        learning_rate=learning_rate,
        settings=settings,
        seed=seed,
    )
    report = progress if callable(progress) else _Lines(run.steps) if progress else None
    result = complete(of, run, None if out is None else Path(out), report, resume, patience)
    if isinstance(report, _Lines) and result.finished_before:
        print(f"already finished, at step {result.steps}", file=sys.stderr, flush=True)
    return result


def training_run(
    rule: Trainable,
    *,
    distribution: Source | Sequence[Source] = PAPER_SCENARIOS,
    clients: int | tuple[int, int] | None = None,
    budget: float | None = None,
    budget_per_client: tuple[float, float] | None = None,
    objective: ObjectiveLike | None = None,
    loss: LossLike | None = None,
    profile: str = "full",
    steps: int | None = None,
    rows: int | None = None,
    learning_rate: float | None = None,
    settings: Mapping[str, object] | None = None,
    seed: int = 0,
) -> tuple[type[Mechanism], TrainingRun[Any]]:
    """The rule's class and its training before the first step; the arguments are those of `train`."""
    of = trainable_class(rule)
    distributions = [distribution_of(source) for source in _sources(distribution)]
    check_distributions(distributions)
    if budget is not None and budget <= 0:
        raise ConfigurationError(f"budget is {budget:g}: must be above 0", "give the money of one market")
    if budget is not None and budget_per_client is not None:
        raise ConfigurationError("both budget and budget_per_client are given", "give one of them")
    least = clients if isinstance(clients, int) or clients is None else min(clients)
    if least is not None and least < 2:
        raise ConfigurationError(f"clients is {clients}: must be at least 2", "give 2 or more")
    if issubclass(of, MfgMenuNet):
        if loss is not None or rows is not None or learning_rate is not None or settings:
            raise ConfigurationError(
                f"{of.name}: loss, rows, learning_rate and settings are for networks",
                "a menu has distribution, clients, budget, objective, profile and steps",
            )
        points = _design_points(distributions, clients, budget, budget_per_client, objective)
        search = search_called(profile)
        return of, MenuTrainer(points, seed, search if steps is None else replace(search, steps=steps))
    assert issubclass(of, LearnedMechanism)
    chosen = _recipe(of, profile, distributions, seed)
    chosen = replace(chosen, **_market(chosen, clients, budget, budget_per_client))
    named = {"steps": steps, "rows": rows, "learning_rate": learning_rate}
    chosen = chosen.with_settings({name: value for name, value in named.items() if value is not None})
    chosen = chosen.with_settings(settings or {})
    goal = None
    if isinstance(objective, AggregationError):
        chosen = replace(
            chosen, objective=objective.name, kappa=objective.kappa, heterogeneity=objective.heterogeneity
        )
    elif isinstance(objective, str):
        chosen = replace(chosen, objective=objective)
    elif objective is not None:
        chosen = replace(chosen, objective=_name_of(objective))
        goal = training_objective(objective)
    own_loss = None
    if isinstance(loss, str):
        chosen = replace(chosen, loss=loss)
    elif loss is not None:
        chosen = replace(chosen, loss=_name_of(loss))
        own_loss = training_loss(loss, chosen.steering, chosen.individual_rationality)
    return of, new_trainer(chosen, distributions, network_class=of.network_class, objective=goal, loss=own_loss)


def _sources(given: Source | Sequence[Source]) -> list[Source]:
    """One source or several; a pair of SciPy's distributions is one."""
    if isinstance(given, list) or (isinstance(given, tuple) and not hasattr(given[0], "ppf")):
        return list(given)
    return [given]  # type: ignore[list-item]


def complete(
    of: type[Mechanism],
    run: TrainingRun[Any],
    out: Path | None,
    report: Callable[[Any], object] | None = None,
    resume: bool = True,
    patience: int | None = None,
) -> TrainingResult:
    """Trains to the end and makes the result; the arguments are those of `train`."""
    checkpoint = None if out is None else checkpoint_path(out)
    if checkpoint is not None and not resume:
        checkpoint.unlink(missing_ok=True)
    if patience is not None and isinstance(run, MenuTrainer):
        raise ConfigurationError("patience is for networks", "a menu has a fixed number of steps; give steps")
    session = Session(run, checkpoint, report, None if patience is None else EarlyStop(patience))
    session.train()
    weights = run.weights(session.seconds)
    names = [column.name for column in fields(run.progress_class)]
    table = np.asarray(session.curve, dtype=np.float64).reshape(-1, len(names))
    result = TrainingResult(
        mechanism=_made(of, weights, untrained=False),
        untrained=_made(of, weights, untrained=True),
        curve={name: table[:, index] for index, name in enumerate(names)},
        steps=run.step,
        seconds=session.seconds,
        resumed_at=session.resumed_at,
        stopped_early=session.stopped_early,
        weights=weights,
        path=out,
    )
    if out is not None:
        result.save(out)
    return result


def trainable_class(rule: Trainable) -> type[Mechanism]:
    """The mechanism class that is trained.

    Raises:
        ConfigurationError: nothing of it can be trained.
    """
    found: object = rule
    if isinstance(rule, str):
        if rule == MfgMenuNet.name:
            return MfgMenuNet
        if rule in registered_names() or not names_code(rule):
            recipe(rule)  # says which rules can be trained
            return mechanism_class(rule)
        found = named_object("network", rule)
    if isinstance(found, type):
        if issubclass(found, AuctionNetwork):
            return network_mechanism(found)
        if issubclass(found, LearnedMechanism | MfgMenuNet):
            return found
    raise ConfigurationError(
        f"{rule!r} cannot be trained", "give the name of a learned rule, or an AuctionNetwork subclass"
    )


def _recipe(of: type[LearnedMechanism], profile: str, distributions: Sequence[Distribution], seed: int) -> Recipe:
    base = recipe(of.name, profile) if of.name in registered_names() else own_recipe(of.name, profile)
    return replace(base, scenarios=tuple(distribution.name for distribution in distributions), seed=seed)


def _market(
    of: Recipe,
    clients: int | tuple[int, int] | None,
    budget: float | None,
    budget_per_client: tuple[float, float] | None,
) -> dict[str, Any]:
    """Changes of a recipe for markets of this size and money; what is None stays as the recipe has it."""
    changes: dict[str, Any] = {}
    if isinstance(clients, int):
        changes |= market_size(of, clients)
    elif clients is not None:
        changes["clients"] = tuple(clients)
    if budget is not None:
        # A quarter up and down, so that the rule is not tied to one figure.
        size = clients if isinstance(clients, int) else math.sqrt(math.prod(clients)) if clients else 100
        changes["budget_per_client"] = (0.8 * budget / size, 1.25 * budget / size)
    elif budget_per_client is not None:
        changes["budget_per_client"] = tuple(budget_per_client)
    return changes


def _design_points(
    distributions: Sequence[Distribution],
    clients: int | tuple[int, int] | None,
    budget: float | None,
    budget_per_client: tuple[float, float] | None,
    objective: ObjectiveLike | None,
) -> list[DesignPoint]:
    if isinstance(clients, tuple):
        raise ConfigurationError(f"clients is {clients}", "a menu is learned for one number of clients")
    size = clients or 100
    if budget_per_client is not None:
        budget = size * math.sqrt(math.prod(budget_per_client))
    goal = objective_called(objective) if isinstance(objective, str) else objective or TotalEpsilon()
    if not isinstance(goal, Objective):
        raise ConfigurationError(
            f"objective {goal!r}: a menu is learned for an objective of privmarket.market",
            "choose total-epsilon, aggregation-error or aggregate-error",
        )
    return [DesignPoint(distribution, size, budget or size / 2, goal) for distribution in distributions]


def _made(of: type[Mechanism], weights: Weights, untrained: bool) -> Mechanism:
    """The mechanism of these weights; a menu for the market of its first curve."""
    if issubclass(of, MfgMenuNet):
        first = weights.facts["curves"][0]
        market = {key: first[key] for key in ("kappa", "heterogeneity") if key in first}
        return of(
            objective=first["objective"],
            scenario=first["scenario"],
            epsilon_max=first.get("epsilon_max", EPSILON_MAX),
            weights=weights,
            untrained=untrained,
            **market,
        )
    assert issubclass(of, LearnedMechanism)
    return of(weights=weights, untrained=untrained)


def _name_of(thing: object) -> str:
    """`module:name` of a class, a function or an object's class, for the recipe."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{named.__qualname__}"


class _Lines:
    """A line on stderr at the first step, every few seconds, and at the last step."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.done = 0
        self.shown = -math.inf

    def __call__(self, progress: TrainingStep | MenuProgress) -> None:
        self.done += 1
        if time.monotonic() - self.shown < _SHOW_EVERY_SECONDS and progress.step != self.steps:
            return
        self.shown = time.monotonic()
        said = f"objective {progress.objective:.4g}"
        if isinstance(progress, TrainingStep):
            said = f"step {progress.step} of {self.steps}: {said}, regret {progress.regret:.3%} of the budget"
        else:
            said = f"curve {progress.curve + 1}, step {progress.step}: {said}"
        print(said, file=sys.stderr, flush=True)


def read_curve(path: Path) -> dict[str, Array]:
    """Column → (points,) array from a training curve's CSV file."""
    with open(path, encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    table = np.asarray(rows, dtype=np.float64).reshape(-1, len(header))
    return {name: table[:, index] for index, name in enumerate(header)}


def plot_curve(curve: Mapping[str, Array], path: str | Path | None = None) -> Figure:
    """Objective and regret against steps, with running means over the noise of single batches."""
    figure = new_figure(7.0, 3.0)
    panels = [("objective", "objective / reference", "linear")]
    if "regret" in curve:
        panels.append(("regret", "regret / budget", "log"))
    for place, (name, label, scale) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), place)
        of = curve["curve"] if "curve" in curve else np.zeros(len(curve["step"]))
        for index in np.unique(of):
            steps = curve["step"][of == index]
            values = curve[name][of == index]
            if scale == "log":
                values = np.maximum(values, 1e-6)
            axes.plot(steps, values, linewidth=0.6, alpha=0.35, color=f"C{int(index) % 10}")
            axes.plot(steps, _running_mean(values), linewidth=1.4, color=f"C{int(index) % 10}")
        axes.set(xlabel="step", ylabel=label, yscale=scale)
        axes.grid(alpha=0.25)
    figure.legend(
        figure.axes[0].get_lines()[:2], ["one batch", "running mean"], loc="outside lower center", ncols=2
    )
    if path is not None:
        write(figure, path)
    return figure


def _running_mean(values: Array) -> Array:
    """(points,) the mean over a window of a twentieth of the points, narrower at both ends."""
    reach = max(1, values.size // 40)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    place = np.arange(values.size)
    low = np.maximum(place - reach, 0)
    high = np.minimum(place + reach + 1, values.size)
    return np.asarray((sums[high] - sums[low]) / (high - low))
