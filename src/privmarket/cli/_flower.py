"""`privmarket flower`: a Flower app on one of its engines, and the rehearsal of a deployment."""

from __future__ import annotations

import logging
import math
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privmarket._files import check_writable
from privmarket._lazy import late
from privmarket.cli._options import Json, note, parse_settings, print_json
from privmarket.errors import ConfigurationError

if TYPE_CHECKING:
    from privmarket.flower import (
        _app_folder as app_folder,
        _rehearsal as rehearsal,
        _result as flower_result,
        _sum_rehearsal as sum_rehearsal,
    )
else:
    app_folder = late("privmarket.flower._app_folder")
    flower_result = late("privmarket.flower._result")
    rehearsal = late("privmarket.flower._rehearsal")
    sum_rehearsal = late("privmarket.flower._sum_rehearsal")

app = typer.Typer(help="The market on Flower: run an app, rehearse a deployment.", no_args_is_help=True)

_WINDOWS = os.name == "nt"
_MOST_NODES = 100_000
_DEADLINE_SECONDS = 40.0
_ENGINES = ("in-process", "simulation", "deployment")


@app.command("run")
def run(
    folder: Annotated[Path, typer.Argument(help="The app: a folder with a pyproject.toml.")],
    nodes: Annotated[int, typer.Option(help="How many clients.")] = 10,
    engine: Annotated[str, typer.Option(help=f"One of: {', '.join(_ENGINES)}.")] = "in-process",
    setting: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the app's run config.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for Flower's home, logs and the result.")] = Path("out/flower"),
    timeout: Annotated[float, typer.Option(help="Seconds after which the run is given up.", min=1)] = 600.0,
    model_out: Annotated[
        Path | None, typer.Option(help="Also write the trained model, a .safetensors file with a card beside it.")
    ] = None,
    json: Json = False,
) -> None:
    """Run a market app in this process, on Flower's simulation (Ray), or on SuperLink and SuperNodes on loopback.

    Nothing is installed at run time and no telemetry is sent; Flower's home is inside --out. Ctrl-C leaves the
    settled rounds in --out, and the same command goes on behind them.

    [bold]Examples[/bold]

      privmarket example flower-quickstart

      privmarket flower run flower-quickstart

      privmarket flower run flower-quickstart --engine deployment --nodes 3 --set rounds=2
    """
    if engine == "deployment":
        _require_processes()
    if not math.isfinite(timeout):
        raise ConfigurationError(f"--timeout {timeout}", "give a number of seconds")
    if nodes > _MOST_NODES:
        raise ConfigurationError(f"{nodes} nodes", f"give --nodes at most {_MOST_NODES:,}")
    # Flower writes run-config keys with dashes.
    given = {name.replace("_", "-"): value for name, value in parse_settings(setting).items()}
    if engine == "in-process":  # the summary is printed below
        logging.getLogger(flower_result.SUMMARY_LOG).setLevel(logging.WARNING)
    if model_out is not None:
        if model_out.suffix != ".safetensors":
            raise ConfigurationError(f"--model-out {model_out}", "let its name end in .safetensors")
        check_writable(model_out, "--model-out")
    try:
        report = app_folder.run_app(folder, engine, nodes, given, out, timeout, model_out)
    except app_folder.StoppedError as stopped:
        for line in [] if stopped.result is None else stopped.result["summary"]:
            note(line)
        note(str(stopped))
        raise typer.Exit(130) from None
    if json:
        print_json(report)
    else:
        for line in report["summary"]:
            print(line)
        print(f"result: {out / 'result.json'}")
        if model_out is not None:
            print(f"model: {model_out}")
    raise typer.Exit(0 if report["paid_micro"] else 1)


@app.command("rehearse")
def rehearse(
    out: Annotated[Path, typer.Option(help="Folder for logs, wallets and Flower's home.")] = Path("out/rehearsal"),
    deadline: Annotated[
        float | None,
        typer.Option(
            help="Seconds that the server waits for clients; 40, or more where SuperNodes start slowly.", min=1
        ),
    ] = None,
    light: Annotated[bool, typer.Option(help="Updates are noise alone: the market without the learning.")] = False,
    sums: Annotated[
        bool, typer.Option(help="Secure sums: a server that cheats, round by round, and a seller that is killed.")
    ] = False,
    in_process: Annotated[
        bool, typer.Option(help="With --sums: every attack, in this process, in a minute.")
    ] = False,
    json: Json = False,
) -> None:
    """Rehearse a deployment: SuperNodes are killed, late, broken or replay a sale. Exit code 1 if a promise breaks.

    [bold]Examples[/bold]

      privmarket flower rehearse --json
      privmarket flower rehearse --sums --in-process
    """
    if in_process and not sums:
        raise ConfigurationError("--in-process without --sums", "only secure sums can be rehearsed in one process")
    if deadline is not None and not math.isfinite(deadline):
        raise ConfigurationError(f"--deadline {deadline}", "give a number of seconds")
    if not in_process:
        _require_processes()
    _empty(out)
    seconds = deadline or _DEADLINE_SECONDS
    stretch = deadline is None
    if sums:
        tried = sum_rehearsal.IN_PROCESS_ATTACKS if in_process else sum_rehearsal.SumPlan.attacks
        sum_plan = sum_rehearsal.SumPlan(attacks=tried, deadline_seconds=seconds)
        report = sum_rehearsal.rehearse_sums(out, sum_plan, deployment=not in_process, stretch=stretch)
    else:
        plan = rehearsal.RehearsalPlan(deadline_seconds=seconds, light=light)
        report = rehearsal.rehearse(out.absolute(), plan, stretch=stretch)
    if json:
        print_json(report)
    else:
        for row in report["rounds"]:
            print(f"round {row['number'] + 1}: paid {sorted(row['paid_micro'])}, not paid {row['dropped']}")
        for promise, kept in report["verdicts"].items():
            print(f"{'kept  ' if kept else 'BROKEN'} {promise}")
    if all(report["verdicts"].values()):
        return
    for name, code in report["ended_alone"].items():
        note(f"{name} ended by itself with code {code}")
    for text in report["logs"].values():
        note(text)
    used = report["plan"]["deadline_seconds"]
    note(f"logs: {out}; a busy machine answers late: try --deadline {4 * used:g} before you blame the code")
    raise typer.Exit(1)


def _empty(out: Path) -> None:
    """Empties the folder of a rehearsal; refuses one that holds files unless an earlier rehearsal made it."""
    mark = out / ".privmarket-rehearsal"
    if out.exists() and not mark.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"--out {out} holds other files", "give a new folder: a rehearsal empties its own")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    mark.touch()


def _require_processes() -> None:
    """Refuses Windows, which cannot start and end SuperLink and SuperNodes in the way that is used here."""
    if _WINDOWS:
        raise ConfigurationError(
            "starting SuperLink and SuperNodes on this machine needs Linux or macOS",
            "use --engine in-process or simulation, or `flwr run` on a deployment of your own",
        )
