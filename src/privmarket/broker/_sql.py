"""Plain SQL on the driver's own cursor, for the few statements that every write or every bid runs.

Building and compiling a statement object costs SQLAlchemy up to a hundred times what SQLite needs to run it. These
statements are few, fixed, and the same on SQLite and PostgreSQL except for how a parameter is marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Connection


# What a simulation does before each statement; it has the same hook for SQLAlchemy's own.
BEFORE_STATEMENT = "privmarket_before_statement"
_FETCH = 2_000
_WORTH_COPYING = 50  # rows
_PLAIN_INSERT = re.compile(r"INSERT INTO (\w+ \([^()]*\)) VALUES \([?, ]*\)")

Values = tuple[Any, ...]  # of one row, in the order of the statement


def run(connection: Connection, statement: str, *parameters: object) -> list[Values]:
    """Runs one statement and returns its rows. A parameter is marked `?`, a list `(?*)`; no list may be empty."""
    lengths: tuple[int, ...] = ()
    if "?*" in statement:
        lengths = tuple(len(value) for value in parameters if isinstance(value, list))
        parameters = tuple(one for value in parameters for one in (value if isinstance(value, list) else (value,)))
    cursor = _cursor(connection)
    cursor.execute(_in_dialect(statement, lengths, connection.dialect.name), parameters)
    rows: list[Values] = cursor.fetchall() if cursor.description else []
    return rows


def stream(connection: Connection, statement: str, *parameters: object) -> Iterator[Values]:
    """The rows of one statement, fetched some thousands at a time: a round may have a million."""
    hook_cursor = _cursor(connection)
    text = _in_dialect(statement, (), connection.dialect.name)
    if connection.dialect.name == "sqlite":
        cursor = hook_cursor
    else:  # a server-side cursor; a plain one would fetch all rows at once
        hook_cursor.close()
        cursor = connection.connection.cursor(name="privmarket_stream")
    cursor.execute(text, parameters)
    try:
        while rows := cursor.fetchmany(_FETCH):
            yield from rows
    finally:
        cursor.close()


def run_many(connection: Connection, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
    """Runs the same statement for every row of parameters. On PostgreSQL, many plain inserts are sent as one COPY.

    Few rows are sent to PostgreSQL one by one, because psycopg's `executemany` opens a pipeline. If a broker hangs
    between two messages of a pipeline, PostgreSQL does not end its transaction, and every other broker has to wait.
    """
    if not rows:
        return
    cursor, text = _cursor(connection), _in_dialect(statement, (), connection.dialect.name)
    if connection.dialect.name == "sqlite":
        cursor.executemany(text, rows)
    elif len(rows) >= _WORTH_COPYING and (plain := _PLAIN_INSERT.fullmatch(statement)):
        with cursor.copy(f"COPY {plain[1]} FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
    else:
        for row in rows:
            cursor.execute(text, row)


def _cursor(connection: Connection) -> Any:
    hook = connection.get_execution_options().get(BEFORE_STATEMENT)
    if hook is not None:
        hook()
    driver: Any = connection.connection.dbapi_connection
    return driver.cursor()


@lru_cache(maxsize=4096)
def _in_dialect(statement: str, lengths: tuple[int, ...], dialect: str) -> str:
    for length in lengths:
        statement = statement.replace("?*", ", ".join("?" * length), 1)
    return statement if dialect == "sqlite" else statement.replace("%", "%%").replace("?", "%s")
