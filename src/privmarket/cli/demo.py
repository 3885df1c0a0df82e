"""`privmarket demo`: the whole loop on embedded data, in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privmarket.cli.options import Seed, note, print_table

if TYPE_CHECKING:
    from rich.table import Table

    from privmarket.reports.federated_demo import DemoResult


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("out"),
    seed: Seed = 0,
) -> None:
    """Run the whole market on handwritten digits: auction, private training, wallets, settlement, report.

    Twenty clients hold differently skewed digits and sell privacy over 40 rounds, each under a lifetime cap. The
    same run is repeated for half the money with a server that sees only sums, without noise, without privacy,
    and with the noise of the paper's Algorithm 2.

    [bold]Example[/bold]

      privmarket demo --seed 1 --out demo
    """
    from privmarket.cli.federate import LiveRounds, clients_table
    from privmarket.federated.summary import client_table
    from privmarket.reports.federated_demo import demo_config, run_demo
    from privmarket.reports.federated_report import write_report

    with LiveRounds(demo_config(seed)) as live:
        result = run_demo(seed, on_round=live.show, progress=live.say)
    print_table(_closing_table(result))
    print_table(clients_table(client_table(result.private), limit=20))
    path = write_report(
        out / "demo.html", result.runs, facts=_facts(result), command=f"privmarket demo --seed {seed}"
    )
    note(f"report: {path}")


def _facts(result: DemoResult) -> dict[str, str]:
    """What stands at the top of the report."""
    run = result.private
    left = run.wallets.remaining_share
    return {
        "test accuracy": f"{run.accuracy:.1%}",
        "without noise": f"{result.runs['no noise'].accuracy:.1%}",
        "paid to clients": f"{run.spent:,.2f}",
        "ε sold": f"{sum(r.total_epsilon for r in run.records):,.0f}",
        "most a lie gains": f"{result.largest_gain:.2g}",
        "wallets nearly empty": f"{int((left < 0.05).sum())} of {left.size}",
    }


def _closing_table(result: DemoResult) -> Table:
    from rich.table import Table

    from privmarket.federated.summary import summarise

    table = Table(title="Handwritten digits, 20 clients, 40 rounds")
    for column in ("run", "test accuracy", "paid", "ε sold", "largest total ε of a client"):
        table.add_column(column, justify="left" if column == "run" else "right")
    for label, run in result.runs.items():
        summary = summarise(run, rounds=False)
        market = run.config.mode != "no-dp"
        table.add_row(
            label,
            f"{run.accuracy:.1%}",
            f"{run.spent:,.2f}" if market else "–",
            f"{summary['epsilon_bought']:,.1f}" if market else "–",
            f"{summary['largest_epsilon_spent']:.1f}" if run.config.mode == "private" else "no guarantee",
        )
    table.caption = (
        f"Largest gain from any lie about v or ε found in round 1: {result.largest_gain:.2g} "
        f"(mean payment {result.mean_payment:.2f})"
    )
    return table
