"""`privmarket train`: learn a mechanism for a law of clients; a stopped run goes on where it was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privmarket.cli.options import Json, Seed, law_of, note, parse_settings, print_json
from privmarket.errors import ConfigurationError
from privmarket.extras import require

if TYPE_CHECKING:
    from privmarket.market.objectives import Objective
    from privmarket.market.scenarios import Law
    from privmarket.mechanisms.learned.trainer import Progress


RecipeSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting of a network's training, e.g. --set alignment.weight=0."
    ),
]


def train(
    mechanism: Annotated[
        str,
        typer.Argument(help="mfg-menunet, mfg-regretnet, regretnet, dm-regretnet or mfg-regretnet:literal."),
    ],
    scenario: Annotated[
        list[str] | None,
        typer.Option(help="A law of clients by name, or a CSV file of past bids; may be given several times."),
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Clients in each market; by default 10 to 1,000.")] = None,
    budget: Annotated[
        float | None, typer.Option(help="Money per round for that many clients; by default a range.")
    ] = None,
    profile: Annotated[str, typer.Option(help="quick (under 3 minutes) or full.")] = "full",
    objective: Annotated[
        str,
        typer.Option(help="total-epsilon, aggregation-error, aggregate-error (menus), or revenue (networks)."),
    ] = "",
    kappa: Annotated[float, typer.Option(help="Weight of noise in either error.")] = 1.0,
    heterogeneity: Annotated[float, typer.Option(help="Weight of bias in either error.")] = 0.1,
    settings: RecipeSettings = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the weights.")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Learn a mechanism. Shows objective, regret, IR and multipliers as it goes, saves checkpoints and a curve.

    Run the same command again to go on after an interruption.

    [bold]Examples[/bold]

      privmarket train mfg-regretnet --scenario past-bids.csv --clients 50 --budget 20 --profile quick

      privmarket train mfg-menunet --scenario uniform --clients 100 --budget 50 --objective aggregation-error

      privmarket train mfg-regretnet --profile quick --set alignment.weight=0 --set network.mean_field=false

      privmarket audit --mechanism mfg-regretnet --set weights=out/train/mfg-regretnet.safetensors
    """
    from privmarket.files import check_writable

    check_writable(out)
    names = scenario or ["uniform", "bimodal", "lognormal"]
    laws = [law_of(name) for name in names]
    place = out or Path("out/train") / (mechanism.replace(":", "-") + ".safetensors")
    if budget is not None and budget <= 0:
        raise ConfigurationError(f"--budget is {budget:g}: must be above 0", "give the money per round")
    require("matplotlib", "learn")
    if clients is not None and clients < 2:
        raise ConfigurationError(f"--clients is {clients}: must be at least 2", "a market needs somebody else")
    if mechanism == "mfg-menunet":
        if settings:
            raise ConfigurationError("--set is for networks", "mfg-menunet has --profile, --objective, --kappa …")
        goal = _objective(objective or "total-epsilon", kappa, heterogeneity)
        result = _learn_menus(laws, clients or 100, budget, goal, profile, place, seed)
    else:
        from privmarket.mechanisms.learned.recipes import market_size

        changes: dict[str, object] = {"scenarios": tuple(names), "seed": seed}
        if objective:
            changes |= {"objective": objective, "kappa": kappa, "heterogeneity": heterogeneity}
        if clients is not None:
            changes |= market_size(mechanism, clients)
        if budget is not None:
            changes["budget_per_client"] = _around(budget, clients or 100)
        result = _train_network(mechanism, profile, laws, changes, parse_settings(settings), place)
    if json:
        print_json(result)
    else:
        for key, value in result.items():
            note(f"{key}: {value}")


def _train_network(
    mechanism: str,
    profile: str,
    laws: list[Law],
    changes: dict[str, object],
    settings: dict[str, object],
    place: Path,
) -> dict[str, object]:
    import torch

    from privmarket.mechanisms.learned.recipes import recipe
    from privmarket.mechanisms.learned.session import train as run

    torch.set_num_threads(1)
    chosen = recipe(mechanism, profile, **changes).with_settings(settings)
    bar = _Bar(chosen.steps)
    with bar:
        done = run(chosen, laws, place, _NetworkFigures(bar).show)
    if done.resumed_at:
        note(f"went on from step {done.resumed_at}")
    figure = _draw(done.curve)
    return {
        "weights": str(done.weights),
        "curve": str(done.curve),
        "figure": str(figure),
        "steps": done.steps,
        "seconds": round(done.seconds, 1),
    }


def _around(budget: float, clients: int) -> tuple[float, float]:
    """Budgets a quarter up and down, so that the rule is not tied to one figure."""
    return 0.8 * budget / clients, 1.25 * budget / clients


def _objective(name: str, kappa: float, heterogeneity: float) -> Objective:
    from privmarket.market.objectives import TotalEpsilon, objective

    weights = {} if name == TotalEpsilon.name else {"kappa": kappa, "heterogeneity": heterogeneity}
    return objective(name, **weights)


def _learn_menus(
    laws: list[Law],
    clients: int,
    budget: float | None,
    objective: Objective,
    profile: str,
    place: Path,
    seed: int,
) -> dict[str, object]:
    import torch

    from privmarket.mechanisms.learned.menu_session import DesignPoint, MenuProgress, learn_menus, search_called

    torch.set_num_threads(1)
    search = search_called(profile)
    points = [DesignPoint(law, clients, budget or clients / 2, objective) for law in laws]
    bar = _Bar(len(points) * search.steps)

    def show(progress: MenuProgress) -> None:
        law = laws[progress.curve].name
        figures = f"curve {progress.curve + 1} of {len(laws)} ({law})  {objective.name} {progress.objective:.4g}"
        bar.show(progress.curve * search.steps + progress.step, figures)

    with bar:
        done = learn_menus(points, place, seed, search, show)
    if done.resumed_at:
        note(f"went on after {done.resumed_at} of {len(points)} curves")
    return {
        "weights": str(done.weights),
        "curve": str(done.curve),
        "curves": done.facts,
        "seconds": round(done.seconds, 1),
    }


class _Bar:
    """Live figures on stderr."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=Console(stderr=True),
        )
        self.task = self.bar.add_task("training", total=total, figures="")

    def __enter__(self) -> None:
        self.bar.start()

    def show(self, step: int, figures: str) -> None:
        """Moves the bar."""
        self.bar.update(self.task, completed=step, figures=figures)

    def __exit__(self, *exc: object) -> None:
        self.bar.stop()


class _NetworkFigures:
    """Running means of a network's figures: single batches are small."""

    def __init__(self, bar: _Bar) -> None:
        self.bar = bar
        self.mean: list[float] | None = None

    def show(self, progress: Progress) -> None:
        """One more step."""
        new = [progress.objective, progress.regret, progress.shortfall]
        self.mean = new if self.mean is None else [0.95 * a + 0.05 * b for a, b in zip(self.mean, new, strict=True)]
        figures = (
            f"objective {self.mean[0]:.3f}  regret {self.mean[1]:.3%}  underpaid {self.mean[2]:.3%}  "
            f"λ {progress.multiplier:.3g}  ρ {progress.penalty:.3g}"
        )
        self.bar.show(progress.step, figures)


def _draw(curve: Path) -> Path:
    """Objective and regret against steps, beside the CSV file."""
    import numpy as np

    from privmarket.reports.palette import new_figure, save

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
