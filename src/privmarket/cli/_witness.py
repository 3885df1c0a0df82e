"""`privmarket witness`: keep the heads of a broker's log, and raise an alarm when they fork."""

from __future__ import annotations

__extra__ = "client"  # named where a package is missing: `privmarket._lazy`

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privmarket._counted import counted
from privmarket._lazy import late
from privmarket.cli._options import broker_address, note

if TYPE_CHECKING:
    from privmarket.broker import _client as clients, _signatures as signatures, _witness as witnesses
else:
    signatures = late("privmarket.broker._signatures")
    clients = late("privmarket.broker._client")
    witnesses = late("privmarket.broker._witness")


def witness(
    url: Annotated[str, typer.Argument(help="The broker's address.")],
    file: Annotated[Path, typer.Option(help="Where heads and the broker's key are saved.")] = Path("heads.txt"),
    key: Annotated[str | None, typer.Option(help="The broker's public key, from another source.")] = None,
    every: Annotated[float, typer.Option(help="Seconds between two checks; 0 checks once.", min=0)] = 60.0,
    name: Annotated[str, typer.Option(help="What you are called where you cosign: a host name, say.")] = "",
    own_key: Annotated[
        Path | None, typer.Option(help="Your own key: cosign each head, and leave that with the broker.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="Of your account as auditor, to cosign. Keep it safe: it reads all tasks, winners and the log.",
            envvar="PRIVMARKET_BROKER_TOKEN",
        ),
    ] = None,
    compare: Annotated[Path | None, typer.Option(help="Another witness's file: compare with it once.")] = None,
) -> None:
    """Keep the heads of a broker's log and check that each continues the last.

    Needs no account. Exit code 2, with the reason on standard error, as soon as the broker shows a log that is not
    a continuation of one that it showed before, a head that its key did not sign, entries that are dated back, or a
    clock that is more than a minute off. A broker that does not answer is asked again. `privmarket broker verify
    --witness FILE` compares every entry's time with what is in the file.

    [bold]Examples[/bold]

      privmarket witness https://market.example --file heads.txt

      privmarket witness https://market.example --file heads.txt --name w.example --own-key witness.pem

      privmarket witness https://market.example --file heads.txt --compare theirs.txt
    """
    with clients.BrokerClient(broker_address(url), token) as client:
        own = None if own_key is None else signatures.SigningKey.read(own_key)
        watching = witnesses.Witness(client, file, key, name=name, own_key=own)
        while True:
            try:
                head = watching.look()
                note(f"{counted(head.size, 'entry', 'entries')}, root {head.root}")
                found = (
                    witnesses.forks(client, watching.heads, witnesses.read_heads(compare).heads) if compare else []
                )
            except clients.LogForkedError as error:
                found = [f"{error.message} ({error.hint})"]
            except clients.BrokerCallError as error:
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
