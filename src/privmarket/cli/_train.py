"""`privmarket train`: learn a mechanism for a law of clients; a stopped run goes on where it was."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NotRequired, TypedDict

import numpy as np
import typer

from privmarket._counted import counted
from privmarket._files import check_writable
from privmarket._lazy import late, require
from privmarket._settings import HETEROGENEITY, KAPPA
from privmarket.cli._live import Curve, LiveView, Watch
from privmarket.cli._options import Json, Seed, note, parse_settings, print_json
from privmarket.cli._training_gain import Gain, gain_lines, menu_gain, network_gain
from privmarket.errors import ConfigurationError
from privmarket.market._distributions import Distribution
from privmarket.market._distributions import scenario as law_called
from privmarket.market._objectives import Objective, TotalEpsilon
from privmarket.market._objectives import objective as objective_called
from privmarket.reports._palette import new_figure, save

if TYPE_CHECKING:
    import torch

    from privmarket.mechanisms.learned import (
        _menu_session as menu_session,
    )
    from privmarket.mechanisms.learned import (
        _recipes as recipes,
    )
    from privmarket.mechanisms.learned import (
        _session as session,
    )
    from privmarket.mechanisms.learned._menunet import CurveFacts
    from privmarket.mechanisms.learned._trainer import TrainingStep
else:
    menu_session = late("privmarket.mechanisms.learned._menu_session")
    recipes = late("privmarket.mechanisms.learned._recipes")
    session = late("privmarket.mechanisms.learned._session")
    torch = late("torch")


RecipeSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting of a network's training, e.g. --set alignment.weight=0."
    ),
]


_Mechanism = Annotated[
    str,
    typer.Argument(help="mfg-menunet, mfg-regretnet, regretnet, dm-regretnet or mfg-regretnet:literal."),
]
_Scenario = Annotated[
    list[str] | None,
    typer.Option(help="A law of clients by name, or a CSV file of past bids; may be given several times."),
]
_Budget = Annotated[float | None, typer.Option(help="Money per round for that many clients; by default a range.")]
_Objective = Annotated[
    str,
    typer.Option(help="total-epsilon, aggregation-error, aggregate-error (menus), or revenue (networks)."),
]


def train(
    mechanism: _Mechanism,
    scenario: _Scenario = None,
    clients: Annotated[int | None, typer.Option(help="Clients in each market; by default 10 to 1,000.")] = None,
    budget: _Budget = None,
    profile: Annotated[str, typer.Option(help="quick (under 3 minutes) or full.")] = "full",
    objective: _Objective = "",
    kappa: Annotated[float, typer.Option(help="Weight of noise in either error.")] = KAPPA,
    heterogeneity: Annotated[float, typer.Option(help="Weight of bias in either error.")] = HETEROGENEITY,
    settings: RecipeSettings = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the weights.")] = None,
    watch: Watch = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Learn a mechanism. Shows objective, regret, IR and multipliers as it goes, saves checkpoints and a curve.

    Run the same command again to go on after an interruption.

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
    laws = [law_called(name) for name in names]
    place = out or Path("out/train") / (mechanism.replace(":", "-") + ".safetensors")
    if budget is not None and budget <= 0:
        raise ConfigurationError(f"--budget is {budget:g}: must be above 0", "give the money per round")
    require("matplotlib", "learn")
    if clients is not None and clients < 2:
        raise ConfigurationError(f"--clients is {clients}: must be at least 2", "give 2 or more")
    if mechanism == "mfg-menunet":
        if settings:
            raise ConfigurationError("--set is for networks", "mfg-menunet has --profile, --objective, --kappa …")
        goal = _objective(objective or "total-epsilon", kappa, heterogeneity)
        result = _learn_menus(laws, clients or 100, budget, goal, profile, place, seed, watch)
    else:
        changes: dict[str, object] = {"scenarios": tuple(names), "seed": seed}
        if objective:
            changes |= {"objective": objective, "kappa": kappa, "heterogeneity": heterogeneity}
        changes |= _market(mechanism, clients, budget)
        result = _train_network(mechanism, profile, laws, changes, parse_settings(settings), place, watch)
    if json:
        print_json(result)
    else:
        _say(result)


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
    """What was written, what was gained, what to run next."""
    for key, value in result.items():
        if key in ("weights", "curve", "figure", "steps", "seconds"):
            note(f"{key}: {value}")
    for line in gain_lines(result["gain"]):
        print(line)
    print("next:")
    for command in result["next"]:
        print(f"  {command}")


def _next(
    mechanism: str, law: str, clients: tuple[int, int], per_client: tuple[float, float], weights: Path
) -> list[str]:
    """Commands to go on with: attack the trained rule, then use it."""
    size = min(max(50, clients[0]), clients[1])
    market = f"--clients {size} --budget {size * math.sqrt(math.prod(per_client)):.4g}"
    rule = f"--mechanism {mechanism} --set weights={weights}"
    trained = f"--mechanism {mechanism} --mechanism-set weights={weights}"
    return [
        f"privmarket audit {rule} --scenario {law} {market}",
        f"privmarket federate {trained} --scenario {law} {market} --rounds 20",
    ]


def _train_network(
    mechanism: str,
    profile: str,
    laws: list[Distribution],
    changes: dict[str, object],
    settings: dict[str, object],
    place: Path,
    watch: Path | None,
) -> _Result:
    torch.set_num_threads(1)
    chosen = recipes.recipe(mechanism, profile, **changes).with_settings(settings)
    with _NetworkView(f"{mechanism}, {profile}", chosen.steps, watch) as view:
        done = session.train(chosen, laws, place, view.show_step)
    if done.resumed_at:
        note(f"went on from step {done.resumed_at}")
    figure = _draw(done.curve)
    return {
        "weights": str(done.weights),
        "curve": str(done.curve),
        "figure": str(figure),
        "steps": done.steps,
        "seconds": round(done.seconds, 1),
        "gain": network_gain(chosen, laws, done.weights),
        "next": _next(mechanism, laws[0].name, chosen.clients, chosen.budget_per_client, place),
    }


def _market(mechanism: str, clients: int | None, budget: float | None) -> dict[str, object]:
    """Changes of a recipe for markets of this size and money; what is None stays as the recipe has it."""
    changes = {} if clients is None else recipes.market_size(mechanism, clients)
    if budget is not None:
        # A quarter up and down, so that the rule is not tied to one figure.
        per_client = budget / (clients or 100)
        changes["budget_per_client"] = (0.8 * per_client, 1.25 * per_client)
    return changes


def _objective(name: str, kappa: float, heterogeneity: float) -> Objective:
    weights = {} if name == TotalEpsilon.name else {"kappa": kappa, "heterogeneity": heterogeneity}
    return objective_called(name, **weights)


def _learn_menus(
    laws: list[Distribution],
    clients: int,
    budget: float | None,
    objective: Objective,
    profile: str,
    place: Path,
    seed: int,
    watch: Path | None,
) -> _Result:
    torch.set_num_threads(1)
    search = menu_session.search_called(profile)
    points = [menu_session.DesignPoint(law, clients, budget or clients / 2, objective) for law in laws]
    view = LiveView(f"mfg-menunet, {profile}", "step", len(points) * search.steps, (Curve("objective"),), watch)

    def show(progress: menu_session.MenuProgress) -> None:
        curve = {"menu": f"{progress.curve + 1} of {len(laws)}, for {laws[progress.curve].name}"}
        view.show(progress.curve * search.steps + progress.step, {"objective": progress.objective}, curve)

    with view:
        done = menu_session.learn_menus(points, place, seed, search, show)
    if done.resumed_at:
        note(f"went on after {done.resumed_at} of {counted(len(points), 'curve')}")
    return {
        "weights": str(done.weights),
        "curve": str(done.curve),
        "curves": done.facts,
        "seconds": round(done.seconds, 1),
        "gain": menu_gain(done.facts[0]),
        "next": _next("mfg-menunet", laws[0].name, (clients, clients), (points[0].budget / clients,) * 2, place),
    }


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
        """One more step."""
        new = [progress.objective, progress.regret, progress.shortfall]
        old = self._mean or new
        self._mean = [0.95 * a + 0.05 * b for a, b in zip(old, new, strict=True)]
        figures = dict(zip(("objective", "regret", "underpaid"), self._mean, strict=True))
        multipliers = {"λ": f"{progress.multiplier:.3g}", "ρ": f"{progress.penalty:.3g}"}
        self.show(progress.step, figures, multipliers)


def _draw(curve: Path) -> Path:
    """Objective and regret against steps, beside the CSV file."""
    table = np.atleast_1d(np.genfromtxt(curve, delimiter=",", names=True))
    made = new_figure(8.0, 3.2)
    left, right = made.subplots(1, 2)
    left.plot(table["step"], table["objective"], linewidth=0.9)
    left.set(xlabel="step", ylabel="objective / reference")
    right.plot(table["step"], np.maximum(table["regret"], 1e-6), linewidth=0.9)
    right.set(xlabel="step", ylabel="regret / budget", yscale="log")
    for axes in (left, right):
        axes.grid(alpha=0.25)
    return save(made, curve.with_suffix(""))[0]
