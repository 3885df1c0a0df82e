"""`privmarket witness`: keep the heads of a broker's log, and raise an alarm when they fork."""

from __future__ import annotations

__extra__ = "client"  # named where a package is missing: `privmarket.extras`

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privmarket.cli.options import broker_address, note
from privmarket.counted import counted
from privmarket.lazy import late

if TYPE_CHECKING:
    from privmarket.broker import http_client, log_witness
else:
    http_client = late("privmarket.broker.http_client")
    log_witness = late("privmarket.broker.log_witness")


def witness(
    url: Annotated[str, typer.Argument(help="The broker's address.")],
    file: Annotated[Path, typer.Option(help="Where heads and the broker's key are saved.")] = Path("heads.txt"),
    key: Annotated[str | None, typer.Option(help="The broker's public key, from another source.")] = None,
    every: Annotated[float, typer.Option(help="Seconds between two checks; 0 checks once.", min=0)] = 60.0,
    compare: Annotated[Path | None, typer.Option(help="Another witness's file: compare with it once.")] = None,
) -> None:
    """Keep the heads of a broker's log and check that each continues the last.

    Needs no account. Exit code 2, with the reason on standard error, as soon as the broker shows a log that is not
    a continuation of one that it showed before, or a head that its key did not sign. A broker that does not answer
    is asked again.

    [bold]Examples[/bold]

      privmarket witness https://market.example --file heads.txt

      privmarket witness https://market.example --file heads.txt --compare theirs.txt
    """
    with http_client.BrokerClient(broker_address(url)) as client:
        watching = log_witness.Witness(client, file, key)
        while True:
            try:
                head = watching.look()
                note(f"{counted(head.size, 'entry', 'entries')}, root {head.root}")
                found = (
                    log_witness.forks(client, watching.heads, log_witness.read_heads(compare)[1]) if compare else []
                )
            except http_client.LogForkedError as error:
                found = [f"{error.message} ({error.hint})"]
            except http_client.BrokerCallError as error:
                if every == 0 or compare:
                    raise
                note(f"no answer: {error.message}")
                found = []
            for text in found:
                note(f"ALARM: {text}")
            if found:
                raise typer.Exit(2)
            if every == 0 or compare:
                return
            time.sleep(every)
