"""`privmarket attack`: canaries and membership inference against releases that the product really makes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from privmarket._figures import write
from privmarket._files import check_writable, in_words
from privmarket._lazy import late
from privmarket._settings import AttackPlan
from privmarket.cli._options import Json, note, print_json, print_table, takes_settings
from privmarket.errors import ConfigurationError
from privmarket.privacy._statement import rounded_up_percent
from privmarket.tasks import SOURCE_OPTIONS, TaskSource

if TYPE_CHECKING:
    from privmarket.reports import _attack_figure as attack_figure
    from privmarket.simulation import _attacks as attacks
    from privmarket.simulation._attacks import AttackResult
else:
    attacks = late("privmarket.simulation._attacks")
    attack_figure = late("privmarket.reports._attack_figure")


# Settings of an attack that are options, in the order of the help text.
_SETTINGS = (
    "dataset",
    "epsilon",
    "delta",
    "records",
    "sampling_rate",
    "steps",
    "trials",
    "canaries",
    "targets",
    "rounds",
    "noise_share",
    "confidence",
    "seed",
)


@takes_settings(AttackPlan, *_SETTINGS)
@takes_settings(TaskSource, *SOURCE_OPTIONS, into="source")
def attack(
    settings: dict[str, Any],
    source: dict[str, Any],
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--attack",
            help="canary, one-run or membership; all unless given. Or your own: package.module:Attack or "
            "file.py:Attack.",
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the attacks to this file (.png, .svg, .pdf).")] = None,
    json: Json = False,
) -> None:
    """Attack real releases and compare what shows with what was claimed.

    The client's noise always comes from the operating system; the seed decides what the attacker plants. A bound on
    ε above the claim refutes the claim (exit code 1); one below proves nothing, but says how near an attack comes.

    [bold]Examples[/bold]

      privmarket attack --epsilon 1 --plot attack.png

      privmarket attack --noise-share 0.1                    # a client that cheats is found

      privmarket attack --dataset mnist --attack canary --trials 5000 --json

      privmarket attack --attack my_attack.py:Bright   # an attack of your own
    """
    check_writable(plot, "--plot")
    given = TaskSource(**source)
    task = given.load() if given.is_given else None
    if task is None:
        given.require_none_of_a_table()
        settings = settings | {"model": given.model}
    plan = AttackPlan(**settings)
    kinds = [attacks.attack_called(name) for name in dict.fromkeys(kind or attacks.ATTACKS)]
    results = attacks.attack_client(plan, kinds, note, task=task)
    if plot is not None:
        _draw(results, plot)
        note(f"written: {plot}")
    if json:
        print_json({"noise_share": plan.noise_share, "attacks": [result.to_json() for result in results]})
    else:
        show_attacks(results)
    if any(result.refuted for result in results):
        raise typer.Exit(1)


def show_attacks(results: list[AttackResult]) -> None:
    """Prints a table of the attacks beside what was claimed."""
    table = Table(title="attacks on real releases")
    columns = ("attack", "claimed ε", "ε shown at least", "right guesses", "allowed", "area", "trials", "claim")
    for column in columns:
        table.add_column(column, justify="left" if column == "attack" else "right")
    for result in results:
        table.add_row(
            result.name,
            f"{result.claim_epsilon:.3g}",
            f"{result.audit.epsilon_lower:.3f}",
            f"{100 * result.guess:.1f} ± {100 * result.guess_margin:.1f} %",
            rounded_up_percent(result.claim_guess),
            f"{result.area:.3f}",
            str(result.audit.trials),
            "REFUTED" if result.refuted else "stands",
        )
    print_table(table)
    print(f"each bound is above the truth with probability at most {1 - results[0].audit.confidence:.2g}")
    print("a claim that stands is not proved by that: the proof is the noise; an attack can only refute")


def _draw(results: list[AttackResult], path: Path) -> None:
    try:
        write(attack_figure.attack_figure(results), path)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"--plot {path}: {in_words(error)}", "name a writable .png, .svg or .pdf"
        ) from error
