"""`privmarket demo`: the whole loop on embedded data, in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from privmarket.cli.federate import LiveRounds, clients_table
from privmarket.cli.live import Watch
from privmarket.cli.options import Seed, note, print_table
from privmarket.extras import require
from privmarket.files import check_writable
from privmarket.lazy import late

if TYPE_CHECKING:
    from privmarket.federated import summary as summaries
    from privmarket.reports import federated_demo, federated_report
    from privmarket.reports import verdict as verdicts
    from privmarket.reports.federated_demo import DemoResult
else:
    summaries = late("privmarket.federated.summary")
    federated_demo = late("privmarket.reports.federated_demo")
    federated_report = late("privmarket.reports.federated_report")
    verdicts = late("privmarket.reports.verdict")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("out"),
    watch: Watch = None,
    seed: Seed = 0,
) -> None:
    """Run the whole market on handwritten digits: auction, private training, wallets, settlement, report.

    Twenty clients hold differently skewed digits and sell privacy over 40 rounds, each under a lifetime cap. The
    same run is repeated for half the money with a server that sees only sums, without noise, without privacy,
    and with the noise of the paper's Algorithm 2.

    [bold]Example[/bold]

      privmarket demo --seed 1 --out demo
    """
    check_writable(out / "demo.html")
    check_writable(watch, "--watch")
    require("torch", "federated")
    with LiveRounds(federated_demo.demo_config(seed), watch, federated_demo.NAMES) as live:
        result = federated_demo.run_demo(seed, on_round=live.show_round, progress=live.say)
    print_table(_closing_table(result))
    print_table(clients_table(summaries.client_table(result.private), limit=20, names=federated_demo.NAMES))
    print(verdicts.verdict(result.runs, result.misreports))
    print(verdicts.strength_sentence(verdicts.worst_promise(result.private)))
    print(verdicts.other_trust_sentence(result.runs))
    command = f"privmarket demo --seed {seed}"
    path = federated_report.write_report(
        out / "demo.html", result.runs, command=command, misreports=result.misreports, names=federated_demo.NAMES
    )
    note(f"report: {path}")


def _closing_table(result: DemoResult) -> Table:
    table = Table(title="Handwritten digits, 20 clients, 40 rounds")
    for column in ("run", "right on the test", f"paid, {verdicts.CURRENCY}", "largest total ε of a client"):
        table.add_column(column, justify="left" if column == "run" else "right")
    for label, run in result.runs.items():
        largest = summaries.summarise(run, rounds=False)["largest_epsilon_spent"]
        table.add_row(
            label,
            f"{run.accuracy:.1%}",
            f"{run.spent:,.0f}" if run.config.privacy.holds_auctions else "–",
            f"{largest:.3g}" if run.config.privacy.is_private else "no promise",
        )
    return table
