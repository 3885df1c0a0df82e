"""`privmarket broker`: looking after a broker's database."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privmarket._counted import counted
from privmarket._lazy import late
from privmarket.broker._signatures import SigningKey
from privmarket.cli._options import Json, note, print_json
from privmarket.cli._serve import DEFAULT_DATABASE, Database
from privmarket.errors import ConfigurationError

if TYPE_CHECKING:
    from privmarket.broker import (
        _backup as broker_backup,
        _broker as service,
        _database as databases,
        _log as logs,
        _verify as broker_verify,
        _witness as witnesses,
    )
else:
    witnesses = late("privmarket.broker._witness")
    broker_backup = late("privmarket.broker._backup")
    service = late("privmarket.broker._broker")
    databases = late("privmarket.broker._database")
    logs = late("privmarket.broker._log")
    broker_verify = late("privmarket.broker._verify")

Key = Annotated[
    Path | None,
    typer.Option(
        help="File of the key that signs the log; FILE.key for sqlite:///FILE by default.",
        envvar="PRIVMARKET_BROKER_KEY",
    ),
]

app = typer.Typer(
    help="Look after a broker: verify, back up, restore, erase names, new token.",
    no_args_is_help=True,
)


def _key(database: str, key: Path | None) -> SigningKey | None:
    """The broker's key. A file that the user names must exist; the one beside a SQLite file may be missing."""
    if key is not None:
        return SigningKey.read(key)
    file = databases.default_key_file(database)
    return SigningKey.read(file) if file is not None and file.exists() else None


def _require_there(database: str) -> None:
    """Refuses a database that is not there, which would otherwise be made anew."""
    databases.Database(database, read_only=True).close()


@app.command("verify")
def verify(
    database: Database = DEFAULT_DATABASE,
    head: Annotated[
        str | None, typer.Option(help="A head noted earlier, SIZE:ROOT; the log must still contain it.")
    ] = None,
    key: Key = None,
    public_key: Annotated[
        str | None, typer.Option(help="The broker's public key, from another source; the log must announce it.")
    ] = None,
    witness: Annotated[
        list[Path] | None, typer.Option(help="A witness's file: its heads, and when it saw them; may be repeated.")
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(help="A finding that you have looked into, by the name that its difference gives."),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Keep the state of a clean check here; the next one goes on from it.")
    ] = None,
    auditor_key: Annotated[Path | None, typer.Option(help="Your own key, which signs the checkpoint.")] = None,
    json: Json = False,
) -> None:
    """Rebuild every table from the log, replay every auction, and report all differences.

    The database is opened for reading only; with the broker's key, keys of sealed updates are looked at too. Exit
    code 0: everything agrees. Exit code 1: it does not, and every difference is shown. Keep the head that is shown
    somewhere else, or let a witness do so: with --head or --witness, even a log that was rewritten from the start
    with the broker's own key is found out.

    With --checkpoint, entries before the last clean check are not read again; tables and schema are compared in
    full.

    [bold]Examples[/bold]

      privmarket broker verify --database sqlite:///market.db

      privmarket broker verify --database sqlite:///market.db --witness heads.txt

      privmarket broker verify --database sqlite:///market.db --checkpoint audit.db --auditor-key auditor.pem
    """
    if (checkpoint is None) != (auditor_key is None):
        raise ConfigurationError(
            "a checkpoint is signed with the auditor's own key",
            "give --checkpoint FILE and --auditor-key FILE; privmarket seller init --key FILE makes one",
        )
    seen = [one for file in witness or () for one in witnesses.read_heads(file).heads]
    stored = databases.Database(database, key=_key(database, key), read_only=True)
    verdict = broker_verify.verify(
        service.Broker(stored),
        head,
        public_key=public_key,
        accept=accept or (),
        witnessed=seen,
        checkpoint=checkpoint,
        auditor=None if auditor_key is None else SigningKey.read(auditor_key),
    )
    for name in verdict.unused:
        note(f"--accept {name}: there is no such finding")
    if json:
        print_json(asdict(verdict))
    else:
        for text in verdict.accepted:
            print(f"accepted: {text}")
        for text in verdict.differences:
            print(f"difference: {text}")
        said = counted(len(verdict.differences), "difference") if verdict.differences else "all agrees"
        read = f" ({counted(verdict.since, 'entry', 'entries')} checked before)" if verdict.since else ""
        print(
            f"{said}: {counted(verdict.entries, 'log entry', 'log entries')}{read}, "
            f"{counted(verdict.auctions, 'auction')} replayed, {counted(verdict.postings, 'posting')}, "
            f"head {verdict.head}"
        )
    raise typer.Exit(1 if verdict.differences else 0)


@app.command("operator-token")
def operator_token(database: Database = DEFAULT_DATABASE, key: Key = None) -> None:
    """Make a new token for the first operator and end its old ones.

    For somebody who holds the database but lost the token.

    [bold]Example[/bold]

      privmarket broker operator-token --database sqlite:///market.db
    """
    _require_there(database)
    broker = service.Broker(database, key=_key(database, key))
    print(broker.first_operator() or broker.new_operator_token())
    broker.database.close()
    note("older tokens of this operator no longer work")


@app.command("forget")
def forget(
    idle_days: Annotated[float, typer.Option(help="Days without anything in the log.", min=1)],
    database: Database = DEFAULT_DATABASE,
    key: Key = None,
) -> None:
    """Erase the names of buyers and sellers that hold no money and did nothing for so long.

    Their pseudonyms stay in the log, which notes each erasure. For a timer, beside the backups; older backups still
    hold the names until they are deleted.

    [bold]Example[/bold]

      privmarket broker forget --idle-days 730 --database sqlite:///market.db
    """
    _require_there(database)
    broker = service.Broker(database, key=_key(database, key))
    erased = broker.forget_idle(idle_days)
    broker.database.close()
    print(f"{counted(len(erased), 'name')} erased")


@app.command("backup")
def backup(
    file: Annotated[Path, typer.Argument(help="The new file.")], database: Database = DEFAULT_DATABASE
) -> None:
    """Write the log and what stands beside it to a compressed file, while the broker runs or not.

    Everything else follows from these. Keep the key that signs the log apart from backups.

    [bold]Example[/bold]

      privmarket broker backup market-2026-11-16.jsonl.gz --database sqlite:///market.db
    """
    head = broker_backup.backup(databases.Database(database, read_only=True), file)
    print(f"{counted(head.size, 'entry', 'entries')}, head {head.size}:{head.root}")


@app.command("restore")
def restore(
    file: Annotated[Path, typer.Argument(help="A file that backup wrote.")],
    database: Database = DEFAULT_DATABASE,
    key: Key = None,
) -> None:
    """Fill an empty database, of either kind, from a backup, rebuild every table, and check everything.

    [bold]Example[/bold]

      privmarket broker restore market-2026-11-16.jsonl.gz --database sqlite:///new.db
    """
    if not file.is_file():
        raise ConfigurationError(f"no backup at {file}", "give a file that `privmarket broker backup` wrote")
    stored = databases.Database(database)
    head = broker_backup.restore(stored, file)
    with stored.read() as connection:
        announced = logs.announced_key(connection)
    verdict = broker_verify.verify(service.Broker(stored), f"{head.size}:{head.root}")
    stored.close()
    note(f"start the broker with the key that this log announces: {announced}")
    for text in verdict.differences:
        print(f"difference: {text}")
    print(f"{counted(verdict.entries, 'entry', 'entries')} restored, head {verdict.head}")
    raise typer.Exit(1 if verdict.differences else 0)
