"""`privmarket train`: learn a mechanism for a distribution of clients; a stopped run goes on where it was."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NotRequired, TypedDict

import typer

from privmarket._counted import counted
from privmarket._files import check_writable
from privmarket._lazy import late, require
from privmarket._settings import HETEROGENEITY, KAPPA
from privmarket.cli._options import Json, Seed, note, parse_settings, print_json
from privmarket.cli._progress import Curve, LiveView, Watch
from privmarket.errors import ConfigurationError
from privmarket.market._attacks import QUICK
from privmarket.market._distributions import Distribution, scenario as distribution_called
from privmarket.market._objectives import Objective, TotalEpsilon, objective as objective_called

if TYPE_CHECKING:
    import torch

    from privmarket.mechanisms.learned import (
        _measure as measuring,
        _menu_training as menu_training,
        _train as training,
        _trainer as trainers,
    )
    from privmarket.mechanisms.learned._menu_training import MenuProgress, MenuTrainer
    from privmarket.mechanisms.learned._menunet import CurveFacts
    from privmarket.mechanisms.learned._train import TrainingResult
    from privmarket.mechanisms.learned._trainer import Trainer, TrainingStep
else:
    measuring = late("privmarket.mechanisms.learned._measure")
    menu_training = late("privmarket.mechanisms.learned._menu_training")
    trainers = late("privmarket.mechanisms.learned._trainer")
    training = late("privmarket.mechanisms.learned._train")
    torch = late("torch")

_CLIENTS = 20  # enough to tell rules apart, few enough to attack within seconds
_PROFILES = 2
_FINISHED = "already finished, at step {step}; to train anew remove {path}.checkpoint or choose another --out"

RecipeSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting of a network's training, e.g. --set alignment.weight=0."
    ),
]


_Mechanism = Annotated[
    str,
    typer.Argument(
        help="mfg-menunet, mfg-regretnet, regretnet, dm-regretnet, regretformer, mfg-regretnet:literal; or a "
        "network of your own, as file.py:Network or package.module:Network."
    ),
]
_Scenario = Annotated[
    list[str] | None,
    typer.Option(help="A distribution of clients by name, or a CSV file of past bids; may be given several times."),
]
_Budget = Annotated[float | None, typer.Option(help="Money per round for that many clients; by default a range.")]
_Objective = Annotated[
    str,
    typer.Option(
        help="total-epsilon, aggregation-error, aggregate-error (menus), revenue (networks), or file.py:Objective."
    ),
]
_Loss = Annotated[
    str, typer.Option(help="Of networks: lagrangian (the default), penalty, or your own as file.py:Loss.")
]
_Patience = Annotated[
    int | None, typer.Option(help="Of networks: stop after so many steps without progress; by default never.")
]


def train(
    mechanism: _Mechanism,
    scenario: _Scenario = None,
    clients: Annotated[int | None, typer.Option(help="Clients in each market; by default a range.")] = None,
    budget: _Budget = None,
    profile: Annotated[str, typer.Option(help="quick (under 3 minutes) or full.")] = "full",
    objective: _Objective = "",
    loss: _Loss = "",
    kappa: Annotated[float, typer.Option(help="Weight of noise in either error.")] = KAPPA,
    heterogeneity: Annotated[float, typer.Option(help="Weight of bias in either error.")] = HETEROGENEITY,
    settings: RecipeSettings = None,
    patience: _Patience = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the weights.")] = None,
    watch: Watch = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Learn a mechanism. Shows objective, regret, IR and multipliers as it goes, saves checkpoints and a curve.

    Run the same command again to go on after an interruption. The page "your own network" shows how to write one.

    [bold]Examples[/bold]

      privmarket sample past-bids.csv

      privmarket train mfg-regretnet --scenario past-bids.csv --clients 50 --budget 20 --profile quick

      privmarket train mfg-menunet --scenario uniform --clients 100 --budget 50 --objective aggregation-error

      privmarket audit --mechanism mfg-regretnet --set weights=out/train/mfg-regretnet.safetensors --profiles 1

      privmarket train mfg-regretnet --profile quick --set network.mean_field=false --out out/plain.safetensors
    """
    check_writable(out)
    check_writable(watch, "--watch")
    names = scenario or ["uniform", "bimodal", "lognormal"]
    if budget is not None and budget <= 0:
        raise ConfigurationError(f"--budget is {budget:g}: must be above 0", "give the money per round")
    require("matplotlib", "learn")
    if clients is not None and clients < 2:
        raise ConfigurationError(f"--clients is {clients}: must be at least 2", "give 2 or more")
    menus = mechanism == "mfg-menunet"
    if menus and (settings or loss or patience):
        raise ConfigurationError(
            "--set, --loss and --patience are for networks; --set is for networks only",
            "mfg-menunet has --profile, --objective, --kappa …",
        )
    torch.set_num_threads(1)
    goal: Objective | str | None = objective or None
    chosen = parse_settings(settings)
    if menus:
        goal = _objective(objective or TotalEpsilon.name, kappa, heterogeneity)
    elif objective == "aggregation-error":
        chosen = {"kappa": kappa, "heterogeneity": heterogeneity, **chosen}
    of, run = training.training_run(
        mechanism,
        distribution=[distribution_called(name) for name in names],
        clients=clients,
        budget=budget,
        objective=goal,
        loss=loss or None,
        profile=profile,
        settings=chosen,
        seed=seed,
    )
    place = out or Path("out/train") / (of.name.replace(":", "-") + ".safetensors")
    result: _Result
    if isinstance(run, menu_training.MenuTrainer):
        view = _MenuView(profile, run, watch)
        with view:
            done = training.complete(of, run, place, view.show_step)
        result = _menu_result(mechanism, names[0], run, done)
    else:
        assert isinstance(run, trainers.Trainer)
        network_view = _NetworkView(f"{mechanism}, {profile}", run.steps, watch)
        with network_view:
            done = training.complete(of, run, place, network_view.show_step, patience=patience)
        result = _network_result(mechanism, names[0], run, done)
    if json:
        print_json(result)
    else:
        _say(result)


def _objective(name: str, kappa: float, heterogeneity: float) -> Objective:
    weights = {} if name == TotalEpsilon.name else {"kappa": kappa, "heterogeneity": heterogeneity}
    return objective_called(name, **weights)


class Gain(TypedDict):
    """A trained rule beside the untrained one: what is measured in words, in which market, and both figures."""

    measure: dict[str, str]
    market: dict[str, str | float]
    untrained: dict[str, float]
    trained: dict[str, float]


class _Result(TypedDict):
    """What a training leaves: its files, how long it took, what it gained, and commands to go on with."""

    weights: str
    curve: str
    figure: NotRequired[str]
    steps: NotRequired[int]
    curves: NotRequired[list[CurveFacts]]
    seconds: float
    gain: Gain
    next: list[str]


def _say(result: _Result) -> None:
    """Prints what was written, what was gained and what to run next."""
    for key, value in result.items():
        if key in ("weights", "curve", "figure", "steps", "seconds"):
            note(f"{key}: {value}")
    for line in gain_lines(result["gain"]):
        print(line)
    print("next:")
    for command in result["next"]:
        print(f"  {command}")


def _network_result(mechanism: str, source: str, run: Trainer, done: TrainingResult) -> _Result:
    assert done.path is not None
    if done.finished_before:
        note(_FINISHED.format(step=done.steps, path=done.path))
    elif done.resumed_at:
        note(f"went on from step {done.resumed_at}")
    if done.stopped_early:
        note(f"stopped after step {done.steps}: no more progress")
    curve = done.path.with_suffix(".curve.csv")
    figure = curve.with_suffix(".png")
    done.plot(figure)
    recipe = run.recipe
    size = min(max(50, recipe.clients[0]), recipe.clients[1])
    money = size * math.sqrt(math.prod(recipe.budget_per_client))
    return {
        "weights": str(done.path),
        "curve": str(curve),
        "figure": str(figure),
        "steps": done.steps,
        "seconds": round(done.seconds, 1),
        "gain": network_gain(run, done),
        "next": _next(mechanism, source, size, money, {"weights": str(done.path)}),
    }


def _menu_result(mechanism: str, source: str, run: MenuTrainer, done: TrainingResult) -> _Result:
    assert done.path is not None
    if done.finished_before:
        note(_FINISHED.format(step=done.steps, path=done.path))
    elif done.resumed_at:
        finished = done.resumed_at // run.search.steps
        note(f"went on after {finished} of {counted(len(run.points), 'curve')}")
    first = run.points[0]
    settings = {"weights": str(done.path)}
    if first.objective.name != TotalEpsilon.name:
        settings["objective"] = first.objective.name
        for name in ("kappa", "heterogeneity"):
            settings[name] = f"{getattr(first.objective, name):g}"
    return {
        "weights": str(done.path),
        "curve": str(done.path.with_suffix(".curve.csv")),
        "curves": run.facts,
        "seconds": round(done.seconds, 1),
        "gain": menu_gain(run.facts[0]),
        "next": _next(mechanism, source, first.clients, first.budget, settings),
    }


def _next(mechanism: str, source: str, clients: int, budget: float, settings: dict[str, str]) -> list[str]:
    """Commands to go on with: attack the trained rule, then use it."""
    market = f"--scenario {shlex.quote(source)} --clients {clients} --budget {budget:.4g}"
    rule = f"--mechanism {shlex.quote(mechanism)}"
    given = [shlex.quote(f"{name}={value}") for name, value in settings.items()]
    audit = " ".join(f"--set {one}" for one in given)
    federate = " ".join(f"--mechanism-set {one}" for one in given)
    return [
        f"privmarket audit {rule} {audit} {market}",
        f"privmarket federate {rule} {federate} {market} --rounds 20",
    ]


def network_gain(run: Trainer, done: TrainingResult) -> Gain:
    """Both networks on the first distribution: ε bought over the fluid bound, gain of misreports over pay.

    The attack is the quick one: it finds gross misreports. `privmarket audit` looks harder.
    """
    low, high = run.recipe.clients
    clients = min(max(_CLIENTS, low), high)
    distribution: Distribution = run.distributions[0]
    per_client = math.sqrt(math.prod(run.recipe.budget_per_client))
    case = [(distribution, clients, clients * per_client, _PROFILES)]
    before = measuring.measure(done.untrained, case, QUICK)["cases"][0]
    after = measuring.measure(done.mechanism, case, QUICK)["cases"][0]
    return {
        "measure": {"fluid_ratio": "ε bought / fluid bound", "regret_share": "mean gain of misreports / mean pay"},
        "market": {"scenario": distribution.name, "clients": clients, "budget": round(clients * per_client, 4)},
        "untrained": {"fluid_ratio": before["fluid_ratio"], "regret_share": before["regret_share"]},
        "trained": {"fluid_ratio": after["fluid_ratio"], "regret_share": after["regret_share"]},
    }


def menu_gain(curve: CurveFacts) -> Gain:
    """A learned curve beside a posted price, where its search starts, on validation markets."""
    return {
        "measure": {"value": str(curve["objective"])},
        "market": {
            "scenario": curve["scenario"],
            "clients": curve["clients"],
            "budget_per_client": curve["budget_per_client"],
        },
        "untrained": {"value": curve["posted_price_value"]},
        "trained": {"value": curve["value"]},
    }


def gain_lines(gain: Gain) -> list[str]:
    """The gain for people, a line per measure."""
    market = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in gain["market"].items())
    lines = [f"gained over the untrained rule ({market}):"]
    for name, words in gain["measure"].items():
        before, after = gain["untrained"][name], gain["trained"][name]
        lines.append(f"  {words}: {before:.4g} → {after:.4g}")
    if gain["untrained"] == gain["trained"]:
        lines.append("  nothing was gained: the untrained rule is as good in this market")
    return lines


class _MenuView(LiveView):
    """The live view of menus that are learned one after the other."""

    def __init__(self, profile: str, run: MenuTrainer, page: Path | None) -> None:
        super().__init__(f"mfg-menunet, {profile}", "step", run.steps, (Curve("objective"),), page)
        self._run = run

    def show_step(self, progress: MenuProgress) -> None:
        """Shows that one more step is done, with its figures."""
        points = self._run.points
        menu = f"{progress.curve + 1} of {len(points)}, for {points[progress.curve].distribution.name}"
        done = progress.curve * self._run.search.steps + progress.step
        self.show(done, {"objective": progress.objective}, {"menu": menu})


class _NetworkView(LiveView):
    """The live view of a network's training: running means, because single batches are small."""

    def __init__(self, title: str, steps: int, page: Path | None) -> None:
        curves = (
            Curve("objective", lambda value: f"{value:.3f}"),
            Curve("regret", lambda value: f"{value:.3%}"),
            Curve("underpaid", lambda value: f"{value:.3%}"),
        )
        super().__init__(title, "step", steps, curves, page)
        self._mean: list[float] | None = None

    def show_step(self, progress: TrainingStep) -> None:
        """Shows that one more step is done, with its figures."""
        new = [progress.objective, progress.regret, progress.shortfall]
        old = self._mean or new
        self._mean = [0.95 * a + 0.05 * b for a, b in zip(old, new, strict=True)]
        figures = dict(zip(("objective", "regret", "underpaid"), self._mean, strict=True))
        multipliers = {"λ": f"{progress.multiplier:.3g}", "ρ": f"{progress.penalty:.3g}"}
        self.show(progress.step, figures, multipliers)
