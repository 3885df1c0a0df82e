"""`privmarket bench`: speed, as ratios against stated references in the same run."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privmarket._lazy import late
from privmarket.cli._options import Json, Seed, note, print_json, print_table
from privmarket.errors import ConfigurationError
from privmarket_studies.commands.bench_broker import bench_broker

if TYPE_CHECKING:
    from rich import console, table as tables

    from privmarket import mechanisms
    from privmarket_studies import (
        auction_speed,
        federated_memory,
        federated_speed,
        flower_speed,
        learned_speed,
        privacy_speed,
        wallet_costs,
    )
else:
    console, tables = late("rich.console"), late("rich.table")
    mechanisms = late("privmarket.mechanisms")
    auction_speed = late("privmarket_studies.auction_speed")
    federated_memory = late("privmarket_studies.federated_memory")
    federated_speed = late("privmarket_studies.federated_speed")
    flower_speed = late("privmarket_studies.flower_speed")
    learned_speed = late("privmarket_studies.learned_speed")
    privacy_speed = late("privmarket_studies.privacy_speed")
    wallet_costs = late("privmarket_studies.wallet_costs")

app = typer.Typer(
    help="Speed, as ratios against stated references in the same run.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.callback()
def bench() -> None:
    """Speed, as ratios against stated references in the same run."""


@app.command("privacy")
def privacy(
    normals: Annotated[int, typer.Option(help="How many normals to draw.")] = 1 << 24,
    turns: Annotated[int, typer.Option(help="Each task is timed this often; the best counts.")] = 5,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Noise, accounting and calibration: seconds, and ratios to stated references in the same run.

    [bold]Example[/bold]

      privmarket bench privacy --json
    """
    rows = privacy_speed.measure(seed=seed, normals=normals, turns=turns)
    if json:
        print_json([{**asdict(row), "ratio": row.ratio} for row in rows])
        return
    table = tables.Table(title="one thread; ratio below 1 is faster than the reference")
    for column in ("task", "seconds", "reference", "its seconds", "ratio"):
        table.add_column(column, justify="left" if column in ("task", "reference") else "right")
    for row in rows:
        figures = (f"{row.seconds:.4f}", row.reference, f"{row.reference_seconds:.3g}", f"{row.ratio:.2g}")
        table.add_row(row.task, *figures)
    print_table(table)


@app.command("wallet")
def wallet(json: Json = False) -> None:
    """Sales that fit a wallet, which watches several measures, beside one whose only measure suits the first sale.

    [bold]Example[/bold]

      privmarket bench wallet --json
    """
    rows = wallet_costs.measure()
    seconds = wallet_costs.seconds_per_round()
    if json:
        print_json({"rows": [{**asdict(row), "ratio": row.ratio} for row in rows], "round_seconds": seconds})
        return
    table = tables.Table(title="sales until the first refusal, δ = 1e-5")
    for column in ("history", "cap", "one measure, tuned", "several measures", "ratio"):
        table.add_column(column, justify="left" if column == "history" else "right")
    for row in rows:
        ratio = "–" if row.ratio is None else f"{row.ratio:.3f}" if row.kind != "mixed" else f"{row.ratio:.0f} ×"
        table.add_row(f"{row.kind}: {row.history}", f"{row.cap:g}", str(row.tuned), str(row.several), ratio)
    print_table(table)
    print(f"1,000 wallets trimmed and checked: {1000 * seconds:.1f} ms")


app.command("broker")(bench_broker)


@app.command("flower")
def flower(
    dataset: Annotated[str, typer.Option(help="digits, mnist, fashion-mnist or cifar10.")] = "mnist",
    turns: Annotated[int, typer.Option(help="Each task is timed this often; the best counts.")] = 3,
    json: Json = False,
) -> None:
    """A round on Flower's in-process grid beside the same round of the plain simulation, and calls for bids.

    [bold]Example[/bold]

      privmarket bench flower --dataset mnist --json
    """
    report = flower_speed.measure(dataset, turns=turns, progress=note)
    if json:
        print_json(report)
        return
    table = tables.Table(title=f"seconds per round on {dataset}, one thread")
    for column in ("local training", "clients", "sellers", "plain simulation", "in-process grid", "ratio"):
        table.add_column(column, justify="left" if column == "local training" else "right")
    for row in report["overhead"]:
        figures = (f"{row['plain_seconds']:.3f}", f"{row['grid_seconds']:.3f}", f"{row['ratio']:.2f}")
        table.add_row(row["work"], str(row["clients"]), f"{row['sellers']:.0f}", *figures)
    print_table(table)
    print(f"bids of {report['bids']['clients']} clients: {report['bids']['seconds']:.3f} s")


@app.command("auction")
def auction(
    mechanism: Annotated[list[str] | None, typer.Option(help="Only these; may be repeated.")] = None,
    largest: Annotated[int, typer.Option(help="Largest number of clients.")] = 1_000_000,
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("out"),
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Latency and memory of every mechanism for 10 … 1,000,000 clients, over np.argsort of as many numbers.

    [bold]Example[/bold]

      privmarket bench auction --largest 100000 --json
    """
    sizes = tuple(size for size in auction_speed.SIZES if size <= largest)
    with console.Console(stderr=True).status("starting") as status:
        report = auction_speed.measure(
            mechanism or mechanisms.mechanism_names(), sizes, seed=seed, progress=status.update
        )
    paths = auction_speed.figure(report, out / "bench-auction")
    if json:
        print_json(report.to_dict())
    else:
        growth = f"argsort ∝ N^{report.argsort_exponent:.2f}"
        table = tables.Table(title=f"time over np.argsort of as many numbers ({growth})")
        table.add_column("mechanism")
        for size in sizes:
            table.add_column(f"N = {size:,}", justify="right")
        for column in ("memory / bids", "exponent"):
            table.add_column(column, justify="right")
        for name, exponent in report.exponent.items():
            rows = [row for row in report.rows if row.mechanism == name]
            times = [f"{row.over_argsort:.2f} ({_time(row.seconds)})" for row in rows]
            table.add_row(name, *times, f"{rows[-1].memory_over_bids:.1f}", f"{exponent:.2f}")
        print_table(table)
    for path in paths:
        note(f"figure: {path}")


@app.command("federate")
def federate(
    clients: Annotated[int, typer.Option(help="Clients in the round.")] = 100,
    records: Annotated[int, typer.Option(help="Records per client.")] = 600,
    turns: Annotated[int, typer.Option(help="How often each contender runs; the median turn counts.")] = 3,
    opacus: Annotated[bool, typer.Option(help="Time Opacus beside it.")] = True,
    before: Annotated[
        Path | None, typer.Option(help="A checkout of an older tree, whose rounds take turns with ours.")
    ] = None,
    json: Json = False,
) -> None:
    """One private round of many clients, beside Opacus on the same work and our own round without privacy.

    [bold]Example[/bold]

      privmarket bench federate --turns 2 --json
    """
    if opacus and find_spec("opacus") is None:
        note("opacus is not installed: its rows are left out")
        opacus = False
    if before is not None and not (before / "src" / "privmarket").is_dir():
        raise ConfigurationError(f"--before {before}: no checkout of this project", "give the folder that has src/")
    with console.Console(stderr=True).status("starting") as status:
        report = federated_speed.measure(
            clients, records, turns=turns, opacus=opacus, before=before, progress=status.update
        )
    if json:
        print_json(report.to_dict())
        return
    table = tables.Table(title=f"one round, {clients} clients × {records} records, MLP 784-128-64-10, one thread")
    for column in ("contender", "processor seconds", "over ours, private"):
        table.add_column(column, justify="left" if column == "contender" else "right")
    for name, seconds in report.seconds.items():
        table.add_row(name, f"{seconds:.2f}", f"{seconds / report.seconds['private']:.2f} ×")
    for grown, seconds in report.growth.items():
        table.add_row(f"private, {grown} clients", f"{seconds:.2f}", f"{1000 * seconds / grown:.1f} ms per client")
    for name, contenders in report.steps.items():
        plain = f"{name} step over backward"
        for contender, each in contenders.items():
            over = f"{report.ratios[plain]:.2f} × backward" if contender == "private" else ""
            table.add_row(f"{name}, full batch: {contender}", f"{min(each):.2f}", over)
    table.add_row("accounting, 100 clients × 200 rounds", f"{report.accounting_seconds:.3f}", "")
    table.add_row("exact draws a second", f"{report.draws_per_second / 1e6:.0f} million", "")
    print_table(table)


@app.command("memory")
def memory(
    clients: Annotated[list[int] | None, typer.Option(help="How many clients; may be given several times.")] = None,
    json: Json = False,
) -> None:
    """Peak memory of a federated run by number of clients, each in a fresh process.

    [bold]Example[/bold]

      privmarket bench memory --clients 100 --clients 1000 --json
    """
    with console.Console(stderr=True).status("starting") as status:
        report = federated_memory.measure(tuple(clients or (125, 250, 500, 1000)), progress=status.update)
    if json:
        print_json(report.to_dict())
        return
    table = tables.Table(title="two rounds, 600 records of 784 numbers per client, MLP 784-128-64-10")
    for column in ("clients", "peak memory, GB", "of which the records"):
        table.add_column(column, justify="right")
    for count, size in report.peak_bytes.items():
        table.add_row(f"{count:,}", f"{size / 1e9:.2f}", f"{report.record_bytes[count] / 1e9:.2f}")
    print_table(table)


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


@app.command("train")
def train(
    forward_clients: Annotated[int, typer.Option(help="Clients of the large auction.")] = 1_000_000,
    repeats: Annotated[int, typer.Option(help="The best of so many.")] = 3,
    json: Json = False,
) -> None:
    """Learned mechanisms on one thread: a training step against a concatenated network's, growth in N, and one
    auction against the bare matrix products of its network.

    [bold]Example[/bold]

      privmarket bench train --json
    """
    with console.Console(stderr=True).status("starting") as status:
        report = learned_speed.measure(forward_clients=forward_clients, repeats=repeats, progress=status.update)
    if json:
        print_json(report.to_dict())
        return
    table = tables.Table(title="learned mechanisms, one thread", show_header=False)
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in report.to_dict().items():
        table.add_row(name.replace("_", " "), f"{value:.4g}")
    print_table(table)
