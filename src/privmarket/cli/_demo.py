"""`privmarket demo`: the whole loop on embedded data, in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from privmarket._files import check_writable
from privmarket._lazy import late, require
from privmarket.cli._federate import LiveRounds, clients_table
from privmarket.cli._options import Seed, note, print_table
from privmarket.cli._progress import Watch

if TYPE_CHECKING:
    from privmarket.reports import (
        _federated_demo as federated_demo,
        _federated_report as federated_report,
        _verdict as verdicts,
    )
    from privmarket.reports._federated_demo import DemoResult
else:
    federated_demo = late("privmarket.reports._federated_demo")
    federated_report = late("privmarket.reports._federated_report")
    verdicts = late("privmarket.reports._verdict")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("out"),
    watch: Watch = None,
    seed: Seed = 0,
) -> None:
    """Run the whole market on handwritten digits: auction, private training, wallets, settlement, report.

    You have 40 digits of your own. Twenty clients hold differently skewed digits and sell privacy over 10 rounds
    to a server that sees only sums, each within a lifetime ε of 1. First comes what your own digits give alone; the
    run is then repeated with a server that sees every update, without noise, without privacy, and with the noise of
    the paper's Algorithm 2.

    [bold]Example[/bold]

      privmarket demo --seed 1 --out demo
    """
    check_writable(out / "demo.html")
    check_writable(watch, "--watch")
    require("torch", "federated")
    with LiveRounds(federated_demo.demo_config(seed), watch, federated_demo.NAMES) as live:
        result = federated_demo.run_demo(seed, on_round=live.show_round, progress=live.say)
    print_table(_closing_table(result))
    print_table(clients_table(result.private.client_rows, limit=20, names=federated_demo.NAMES))
    main = result.private
    print(verdicts.verdict(result.runs, result.misreports, own=result.own))
    print(verdicts.strength_sentence(verdicts.worst_promise(main), verdicts.worst_promise_alone(main)))
    print(verdicts.other_trust_sentence(result.runs))
    print(verdicts.own_records_takeaway(result.own, main.accuracy))
    print(verdicts.sampling_sentence(result.own.tested, main.accuracy))
    command = f"privmarket demo --seed {seed}"
    path = federated_report.write_report(
        out / "demo.html",
        result.runs,
        command=command,
        misreports=result.misreports,
        names=federated_demo.NAMES,
        own=result.own,
        remarks=federated_demo.REMARKS,
    )
    note(f"report: {path}")


def _closing_table(result: DemoResult) -> Table:
    config = result.private.config
    table = Table(title=f"Handwritten digits, {config.clients} clients, {config.rounds} rounds")
    table.add_column("run")
    for column in ("right on the test", f"paid, {verdicts.CURRENCY}", "largest total ε", "if all others collude"):
        table.add_column(column, justify="right")
    for label, row in federated_report.compared_rows(result.runs, result.own):
        table.add_row(label, row["accuracy"], row["spent"], row["largest"], row["alone"])
    return table
