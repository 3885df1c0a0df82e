"""Backups of a broker's database, and restoring them.

A backup has the log and the tables that do not follow from it (names, keys of sealed updates), as JSON lines under
gzip. Restoring writes the log into an empty database, SQLite or PostgreSQL, and rebuilds every table; the head of
the log must be the same.
"""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, select

from privmarket._files import OWNER_ONLY, file_beside, in_words
from privmarket.broker import _log as log, _merkle as merkle, _projection as projection, _sql as sql
from privmarket.broker._database import Database
from privmarket.broker._errors import BrokerError
from privmarket.broker._log import Entry
from privmarket.broker._schema import cosignatures, names, sealed_keys
from privmarket.broker._signatures import Head

_FORMAT = "privmarket broker backup 1"
_BESIDE = {table.name: table for table in (names, sealed_keys, cosignatures)}
_CHUNK = 5000


def backup(database: Database, file: str | Path) -> Head:
    """Writes a backup of one snapshot and returns its head. The broker may be running.

    Raises:
        BrokerError: the file exists already.
    """
    if Path(file).exists():
        raise BrokerError(f"{file} exists", "give the name of a new file")
    with (
        file_beside(file, mode=OWNER_ONLY) as unfinished,
        unfinished.open("wb") as raw,
        io.TextIOWrapper(gzip.GzipFile("", "wb", fileobj=raw)) as out,  # without the temporary file's name
        database.read() as connection,
    ):
        head = log.read_head(connection)
        out.write(json.dumps({"format": _FORMAT, "head": head.header()}) + "\n")
        for table in _BESIDE.values():
            for row in connection.execute(select(table)).mappings():
                out.write(json.dumps({"table": table.name, "row": dict(row)}) + "\n")
        for entry, _ in log.entries(connection):
            out.write(json.dumps({"entry": list(entry)}) + "\n")
    return head


def restore(database: Database, file: str | Path) -> Head:
    """Fills an empty database from a backup and returns the head of its log.

    Raises:
        BrokerError: the backup is incomplete or cannot be read, or the database holds a market already.
    """
    with database.write("system") as tx, gzip.open(file, "rt") as lines:
        connection = tx.connection
        if tx.size or sql.run(connection, "SELECT 1 FROM names LIMIT 1"):
            raise BrokerError("the database holds a market already", "restore into an empty one")
        try:
            first = json.loads(next(lines))
            if first.get("format") != _FORMAT:
                raise BrokerError(f"{file} is not a backup of this version", "give a file that `backup` wrote")
            head = Head.parse(first["head"])
            frontier = merkle.Frontier()
            entries: list[Entry] = []
            for line in lines:
                found: dict[str, Any] = json.loads(line)
                if "entry" in found:
                    entries.append(Entry(*found["entry"]))
                else:
                    _put(connection, _BESIDE[found["table"]], found["row"])
                if len(entries) == _CHUNK:
                    _store(connection, entries, frontier)
                    entries = []
            _store(connection, entries, frontier)
        except (EOFError, OSError, ValueError, StopIteration, KeyError, TypeError) as error:
            raise BrokerError(f"{file}: not a whole backup: {in_words(error)}", "give another backup") from error
        if (frontier.size, frontier.root().hex()) != (head.size, head.root):
            raise BrokerError(f"{file} is not whole: it gives another head than it names", "give another backup")
        sql.run(
            connection,
            "UPDATE head SET log_id = ?, size = ?, root = ?, at_ms = ?, frontier = ?, signature = ?, signed_by = ?",
            head.log_id, head.size, head.root, head.at_ms, frontier.dump(), head.signature,
            log.announced_key(connection) if head.signature else "",
        )  # fmt: skip
    database.head = head
    return head


def _put(connection: Connection, table: Table, row: dict[str, Any]) -> None:
    columns = [column.name for column in table.c]
    statement = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    sql.run(connection, statement, *(row[name] for name in columns))


def _store(connection: Connection, entries: list[Entry], frontier: merkle.Frontier) -> None:
    log.insert(connection, entries, frontier)
    projection.store(connection, [change for entry in entries for change in projection.changes(entry)])
