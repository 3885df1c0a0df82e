"""Compares a database's whole schema with the one that this version makes.

Whatever can change what a statement does is looked at: tables with their columns, types, defaults, keys and
checks; indexes with their columns, order and conditions; triggers, views, rules, policies, functions; tables of
the same name in another schema. On SQLite the text of every object is compared with that of a fresh database. On
PostgreSQL everything is read from `pg_catalog` by its full name, so that a search_path cannot put something else
in its place, and compared with what the metadata gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from sqlalchemy import Column, Connection, Index, Table, UniqueConstraint, create_engine
from sqlalchemy.dialects import registry
from sqlalchemy.engine import Dialect

from privmarket.broker import _sql as sql
from privmarket.broker._schema import metadata

_DIALECT: Dialect = registry.load("postgresql")()
_VERSIONS = "alembic_version"
_VERSION_TABLE = f"CREATE TABLE {_VERSIONS} (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"


def schema_differences(connection: Connection) -> Iterator[tuple[str, str]]:
    """Differences of a database's schema from that of this version, each as (extension, description).

    `extension` names a PostgreSQL extension that is installed, so that an auditor who knows it can accept it; it is
    empty for all other differences.
    """
    if connection.dialect.name == "sqlite":
        yield from (("", text) for text in _of_sqlite(connection))
    else:
        yield from _of_postgresql(connection)


# ---- SQLite ---------------------------------------------------------------------------------------------------

_OBJECTS = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_stat%' ESCAPE '\\'"


@cache
def _fresh_sqlite() -> dict[tuple[str, str], tuple[str, str]]:
    """Every object of a new database: (kind, name) → table and text."""
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        metadata.create_all(connection)
        connection.exec_driver_sql(_VERSION_TABLE)
        made = _objects(sql.run(connection, _OBJECTS))
    engine.dispose()
    return made


def _objects(rows: list[sql.Values]) -> dict[tuple[str, str], tuple[str, str]]:
    return {(str(kind), str(name)): (str(table), _plain(text)) for kind, name, table, text in rows}


def _plain(text: object) -> str:
    """The text of a statement without needless spaces and without quotes around names."""
    return re.sub(r"\s*([(),])\s*", r"\1", " ".join(str(text or "").replace('"', "").split()))


def _of_sqlite(connection: Connection) -> Iterator[str]:
    for (text,) in sql.run(connection, "PRAGMA integrity_check"):
        if text != "ok":
            yield f"database file: {text}"
    wanted = _fresh_sqlite()
    found = _objects(sql.run(connection, _OBJECTS))
    for kind, name in sorted(wanted.keys() - found.keys()):
        yield f"database: {kind} {name} is missing"
    for kind, name in sorted(found.keys() - wanted.keys()):
        yield f"database: {kind} {name} does not belong here"
    for kind, name in sorted(found.keys() & wanted.keys()):
        if found[kind, name] != wanted[kind, name]:
            yield f"database: {kind} {name} is not as it was made"


# ---- PostgreSQL -----------------------------------------------------------------------------------------------

_FIRST_OWN_OID = 16384  # PostgreSQL's own objects have smaller numbers
_EXTENDED = (
    "NOT EXISTS (SELECT 1 FROM pg_catalog.pg_depend d WHERE d.classid = '{catalog}'::pg_catalog.regclass "
    "AND d.objid = o.oid AND d.deptype = 'e')"
)
# catalog → (column of the name, further condition, kind): objects of which a broker's database has none.
_FOREIGN = {
    "pg_catalog.pg_proc": ("proname", "TRUE", "function"),
    "pg_catalog.pg_operator": ("oprname", "TRUE", "operator"),
    "pg_catalog.pg_cast": ("castsource::pg_catalog.regtype", "TRUE", "cast from"),
    "pg_catalog.pg_language": ("lanname", "TRUE", "language"),
    "pg_catalog.pg_collation": ("collname", "TRUE", "collation"),
    "pg_catalog.pg_event_trigger": ("evtname", "TRUE", "event trigger"),
    "pg_catalog.pg_trigger": ("tgname", "TRUE", "trigger"),
    "pg_catalog.pg_rewrite": ("rulename", "TRUE", "rule"),
    "pg_catalog.pg_policy": ("polname", "TRUE", "policy"),
    "pg_catalog.pg_subscription": ("subname", "TRUE", "subscription"),
    "pg_catalog.pg_namespace": ("nspname", "nspname !~ '^pg_(temp|toast)'", "schema"),
    "pg_catalog.pg_type": ("typname", "typtype IN ('d', 'e', 'r', 'm') OR (typtype = 'b' AND typelem = 0)", "type"),
}
_RELATIONS = (
    "SELECT n.nspname, c.relname, c.relkind, c.relpersistence, c.relrowsecurity OR c.relforcerowsecurity, "
    "EXISTS (SELECT 1 FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid OR i.inhparent = c.oid), c.oid "
    "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname !~ '^pg_(toast|temp_|toast_temp_)' AND c.relkind NOT IN ('i', 'I', 't') "
    f"AND c.oid >= {_FIRST_OWN_OID} AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_depend d "
    "WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'e')"
)
_COLUMNS = (
    "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull, "
    "pg_catalog.pg_get_expr(d.adbin, d.adrelid), a.attidentity, a.attgenerated, "
    "a.attcollation = t.typcollation, a.attislocal "
    "FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid "
    "LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum "
    "WHERE a.attrelid = ? AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
)
_CONSTRAINTS = (
    "SELECT contype, convalidated AND NOT condeferrable, pg_catalog.pg_get_constraintdef(oid) "
    "FROM pg_catalog.pg_constraint WHERE conrelid = ? AND contype <> 'n'"
)
_INDEXES = (
    "SELECT c.relname, i.indisunique, i.indisvalid AND i.indisready AND i.indislive, "
    "pg_catalog.pg_get_indexdef(i.indexrelid) FROM pg_catalog.pg_index i "
    "JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = ? AND NOT EXISTS "
    "(SELECT 1 FROM pg_catalog.pg_constraint k WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u'))"
)
_EXTENSIONS = "SELECT extname FROM pg_catalog.pg_extension WHERE extname <> 'plpgsql'"
_DANGEROUS = ("search_path", "session_replication_role", "row_security", "session_preload_libraries")
_SETTINGS = (
    "SELECT unnest(s.setconfig) FROM pg_catalog.pg_db_role_setting s WHERE s.setdatabase IN "
    "(0, (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()))"
)
_REPLICATION = "SELECT pg_catalog.current_setting('session_replication_role')"
_TYPE_NAMES = {
    "VARCHAR": "character varying",
    "BIGINT": "bigint",
    "INTEGER": "integer",
    "FLOAT": "double precision",
    "BOOLEAN": "boolean",
    "TEXT": "text",
}


def _of_postgresql(connection: Connection) -> Iterator[tuple[str, str]]:
    for (name,) in sql.run(connection, _EXTENSIONS):
        yield str(name), f"database: extension {name} does not belong here"
    for catalog, (column, condition, kind) in _FOREIGN.items():
        own = _EXTENDED.format(catalog=catalog)
        query = f"SELECT {column} FROM {catalog} o WHERE o.oid >= {_FIRST_OWN_OID} AND ({condition}) AND {own}"
        for (name,) in sql.run(connection, query):
            yield "", f"database: {kind} {name} does not belong here"
    for (setting,) in sql.run(connection, _SETTINGS):
        if str(setting).partition("=")[0] in _DANGEROUS:
            yield "", f"database: the setting {setting} does not belong here"
    if sql.run(connection, _REPLICATION)[0][0] != "origin":
        yield "", "database: triggers and constraints are switched off (session_replication_role)"
    wanted = {table.name: table for table in metadata.sorted_tables}
    seen = set()
    for schema, name, kind, persistence, row_security, inherits, oid in sql.run(connection, _RELATIONS):
        shown = name if schema == "public" else f"{schema}.{name}"
        if schema != "public" or kind != "r" or name not in {*wanted, _VERSIONS}:
            yield "", f"database: {_KINDS.get(kind, 'object')} {shown} does not belong here"
            continue
        seen.add(name)
        if persistence != "p" or row_security or inherits:
            yield "", f"database: table {name} is not durable, or hides or inherits rows"
        expected = _version_form() if name == _VERSIONS else _due_form(wanted[name])
        for part, due, query in zip(("columns", "constraints", "indexes"), expected, _PARTS, strict=True):
            if sorted(map(repr, _rows(connection, query, oid))) != sorted(map(repr, due)):
                yield "", f"database: table {name} has other {part} than it was made with"
    for name in sorted({*wanted, _VERSIONS} - seen):
        yield "", f"database: table {name} is missing"


_KINDS = {"r": "table", "v": "view", "m": "view", "f": "foreign table", "S": "sequence", "p": "table", "c": "type"}
_PARTS = (_COLUMNS, _CONSTRAINTS, _INDEXES)
Form = tuple[list[tuple[object, ...]], list[tuple[object, ...]], list[tuple[object, ...]]]


def _rows(connection: Connection, query: str, oid: int) -> list[tuple[object, ...]]:
    return [tuple(row) for row in sql.run(connection, query, oid)]


def _column(name: str, kind: str, required: bool) -> tuple[object, ...]:
    return name, kind, required, None, "", "", True, True


def _due_form(table: Table) -> Form:
    """A table's columns, constraints and indexes as PostgreSQL describes them."""
    key = ", ".join(column.name for column in table.primary_key)
    constraints: list[tuple[object, ...]] = [("p", True, f"PRIMARY KEY ({key})")]
    for one in table.constraints:
        if isinstance(one, UniqueConstraint):
            constraints.append(("u", True, f"UNIQUE ({', '.join(one.columns.keys())})"))
    columns = [_column(c.name, _type_name(c), not c.nullable or c.primary_key) for c in table.c]
    return columns, constraints, [_due_index(table, index) for index in table.indexes]


def _due_index(table: Table, index: Index) -> tuple[object, ...]:
    unique = bool(index.unique)
    columns = ", ".join(column.name for column in index.columns)
    made = f"CREATE {'UNIQUE ' if unique else ''}INDEX {index.name} ON public.{table.name} USING btree ({columns})"
    return index.name, unique, True, made


def _type_name(column: Column[Any]) -> str:
    text = column.type.compile(dialect=_DIALECT)
    name, parenthesis, length = text.partition("(")
    return f"{_TYPE_NAMES[name]}{parenthesis}{length}"


def _version_form() -> Form:
    columns = [_column("version_num", "character varying(32)", True)]
    return columns, [("p", True, "PRIMARY KEY (version_num)")], []
