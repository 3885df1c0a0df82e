"""`privmarket broker`: looking after a broker's database."""

from __future__ import annotations

from typing import Annotated

import typer

from privmarket.cli.options import Json, note, print_json
from privmarket.cli.serve import DEFAULT_DATABASE, Database

app = typer.Typer(
    help="Look after a broker: verify its books, replace a lost operator token.", no_args_is_help=True
)


@app.command("verify")
def verify(
    database: Database = DEFAULT_DATABASE,
    head: Annotated[str | None, typer.Option(help="A head noted earlier; the log must still contain it.")] = None,
    json: Json = False,
) -> None:
    """Replay every auction, wallet and payment from the recorded bids and walk the hash chain.

    Exit code 0: everything agrees. Exit code 1: it does not, and the first difference is shown. Keep the head
    that is printed somewhere else: with --head, even a log that was rewritten from the start is found out.

    [bold]Example[/bold]

      privmarket broker verify --database sqlite:///market.db
    """
    from dataclasses import asdict

    from privmarket.broker.broker import Broker
    from privmarket.broker.verify import verify as replay

    verdict = replay(Broker(database), head)
    if json:
        print_json(asdict(verdict))
    elif verdict.difference is None:
        print(
            f"all agrees: {verdict.entries} log entries, {verdict.auctions} auctions replayed, "
            f"{verdict.postings} postings, head {verdict.head}"
        )
    else:
        print(f"first difference: {verdict.difference}")
    raise typer.Exit(0 if verdict.difference is None else 1)


@app.command("operator-token")
def operator_token(database: Database = DEFAULT_DATABASE) -> None:
    """Make a new token for the first operator and end its old ones.

    For somebody who holds the database but lost the token.

    [bold]Example[/bold]

      privmarket broker operator-token --database sqlite:///market.db
    """
    from privmarket.broker.broker import Broker

    broker = Broker(database)
    print(broker.first_operator() or broker.new_operator_token())
    note("older tokens of this operator no longer work")
