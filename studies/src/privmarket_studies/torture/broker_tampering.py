"""A campaign of tampering with a broker's database, against `broker verify` with what a witness saw.

Five classes: *tables* are edited by SQL; the *schema* is changed; the log is *re-chained* by somebody without the
broker's key, with every hash and table made to fit; the operator rewrites *history* with the key; the operator
*appends* entries with the key after the head that was witnessed. The market is one in which every party signs
everything.

Each edit ends in one of three ways: *found*; *without effect* on any party, where all tables that parties live by
are what they were; or *signed* by the party itself, in whose name every added entry stands. Anything else is
*missed*.

    python -m privmarket_studies.torture.broker_tampering --out docs/results/broker/tampering.json
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from privmarket._files import write_atomically
from privmarket.broker._broker import Broker
from privmarket.broker._database import Database
from privmarket.broker._log import Entry
from privmarket.broker._parties import name_hash
from privmarket.broker._schema import PROJECTIONS
from privmarket.broker._shapes import PartyRow
from privmarket.broker._signatures import (
    SigningKey,
    bid_message,
    canonical,
    key_message,
    log_key_message,
)
from privmarket.broker._statements import STATEMENTS, is_stated
from privmarket.broker._verify import verify
from privmarket.errors import PrivmarketError
from privmarket_fixtures.postgres import new_database, postgres
from privmarket_fixtures.tampering import (
    SIGNING,
    STRANGER,
    Change,
    Target,
    appended,
    checked,
    edited,
    entries_of,
    entry,
    make_target,
    resigned,
    rewritten,
)
from privmarket_studies.torture.broker_simulation import memory_folder
from privmarket_studies.torture.runs import broker_code

CLASSES = ("tables", "schema", "re-chained", "history", "appended")
_DAY_MS = 86_400_000


class Outcome(NamedTuple):
    """What became of an edit (found, without effect, signed, missed or such), and what was seen."""

    result: str
    what: str


@dataclass
class Edit:
    """One way to tamper.

    Attributes:
        statements: SQL, for edits of tables and of the schema.
        change: what becomes of the log, else.
        key: who signs the head afterwards; None leaves the old signature.
        names: parties that are invented, with name and salt.
    """

    kind: str
    name: str
    statements: tuple[str, ...] = ()
    change: Change | None = None
    key: SigningKey | None = None
    names: dict[str, tuple[str, str]] = field(default_factory=dict)


# ---- tables ---------------------------------------------------------------------------------------------------


def table_edits() -> Iterator[Edit]:
    """One edit per column of every table, one row removed from each, and combinations that would pay somebody."""
    for table in PROJECTIONS:
        keys = [column.name for column in table.primary_key]
        listed = ", ".join(keys)
        first = f"({listed}) IN (SELECT {listed} FROM {table.name} ORDER BY {listed} LIMIT 1)"
        yield Edit("tables", f"{table.name}: a row removed", (f"DELETE FROM {table.name} WHERE {first}",))
        for column in table.c:
            name = column.name
            if column.type.python_type is bool:
                changed = f"CASE WHEN {name} THEN FALSE ELSE TRUE END"
            elif column.type.python_type in (int, float):
                changed = f"COALESCE({name}, 0) + 1"
            else:
                changed = f"COALESCE({name}, '') || 'x'"
            yield Edit("tables", f"{table.name}.{name} changed", (f"UPDATE {table.name} SET {name} = {changed}",))
            if column.nullable:
                emptied = f"UPDATE {table.name} SET {name} = NULL WHERE {name} IS NOT NULL"
                yield Edit("tables", f"{table.name}.{name} made empty", (emptied,))
    for name, statement in _TABLES.items():
        yield Edit("tables", name, (statement,))


_TABLES = {
    "a receipt flipped": "UPDATE awards SET usable = NOT usable, fault = NULL WHERE usable",
    "a claim erased": "UPDATE awards SET claim_sha256 = NULL, claimed_ms = NULL",
    "charged becomes void": "UPDATE awards SET charge = 'void' WHERE charge = 'charged'",
    "a ruling reversed": "UPDATE awards SET ruling = NOT ruling WHERE ruling IS NOT NULL",
    "a settled round reopened": "UPDATE rounds SET state = 'cleared' WHERE state = 'settled'",
    "a buyer made an operator": "UPDATE parties SET role = 'operator' WHERE role = 'buyer'",
    "a token handed to somebody else": "UPDATE tokens SET party_id = (SELECT MIN(party_id) FROM tokens)",
    "a back-door operator": "INSERT INTO parties (id, role, name_hash, created_ms, signs) "
    "VALUES ('operator-x', 'operator', 'h', 1, 'nothing')",
    "a back-door token": "INSERT INTO tokens (id, party_id, token_hash, scope, created_ms) "
    "SELECT 'token-x', id, 'h', 'full', 1 FROM parties WHERE role = 'operator'",
    "a balanced forged deposit": "INSERT INTO postings (seq, account, amount_micro) "
    "SELECT 1, 'party:' || id, 5 FROM parties WHERE role = 'buyer' UNION ALL SELECT 1, 'world', -5",
    "a forged bid": "INSERT INTO bids (round_id, seller_id, seq, commitment, created_ms) "
    "SELECT round_id, 'seller-x', 1, 'c', 1 FROM bids LIMIT 1",
    "a forged award": "INSERT INTO awards (round_id, seller_id, seq, epsilon, noise_multiplier, payment_micro, "
    "charge, paid_micro) SELECT round_id, 'seller-x', 1, 1, 1, 1, 'reserved', 0 FROM awards LIMIT 1",
    "a payout invented": "INSERT INTO payouts (seq, party_id, amount_micro) SELECT 1, id, 5 FROM parties",
    "a payout paid by hand": "UPDATE payouts SET paid_seq = 1 WHERE paid_seq IS NULL",
    "a signer made to sign nothing": "UPDATE parties SET signs = 'nothing', public_key = NULL WHERE role = 'buyer'",
    "an answer rewritten": "UPDATE log SET answer = replace(answer, '1', '2') WHERE answer IS NOT NULL",
    "a log entry rewritten": "UPDATE log SET details = replace(details, '50000000', '50000001')",
    "a log entry removed": "DELETE FROM log WHERE seq = 3",
    "the last log entry removed": "DELETE FROM log WHERE seq = (SELECT max(seq) FROM log)",
    "an entry numbered beyond the end": "INSERT INTO log SELECT seq + 1000, at_ms, actor, kind, subject, details, "
    "NULL, NULL, NULL, hash FROM log WHERE kind = 'money.deposit' LIMIT 1",
    "a name swapped": "UPDATE names SET name = 'somebody'",
    "a name removed": "DELETE FROM names",
    "an erased name put back": "INSERT INTO names (party_id, name, salt) SELECT id, 'back', 's' FROM parties "
    "WHERE erased_ms IS NOT NULL",
    "a key of a sealed update taken": "DELETE FROM sealed_keys",
    "a head set back": "UPDATE head SET size = size - 1",
    "a head without signature": "UPDATE head SET signature = ''",
    "a head of another key": "UPDATE head SET signed_by = 'ab'",
    "a head of another log": "UPDATE head SET log_id = 'f' || substr(log_id, 2) || 'f'",
    "a head of another time": "UPDATE head SET at_ms = at_ms + 1",
    "a second head": "INSERT INTO head SELECT 2, log_id, size, root, at_ms, frontier, signature, signed_by, clean "
    "FROM head",
    "a tile that no log gives": "INSERT INTO tiles (level, place, hash) VALUES (1, 0, 'ab')",
    "a file marked as closed": "UPDATE head SET clean = TRUE",
    "a witness invented": "INSERT INTO cosignatures VALUES ('w', 1, 'ab', 1, 'ab', 1, 'ab')",
}  # fmt: skip

# ---- schema ---------------------------------------------------------------------------------------------------

_SCHEMA = {
    "a trigger after inserts": "CREATE TRIGGER later AFTER INSERT ON postings BEGIN SELECT 1; END",
    "a trigger before updates": "CREATE TRIGGER earlier BEFORE UPDATE ON head BEGIN SELECT 1; END",
    "a trigger instead": "CREATE VIEW v AS SELECT 1 AS x; "
    "CREATE TRIGGER w INSTEAD OF INSERT ON v BEGIN SELECT 1; END",
    "a view in the way": "CREATE VIEW richer AS SELECT * FROM parties",
    "a table in a view's place": "CREATE TABLE extra (x INTEGER)",
    "a virtual table": "CREATE VIRTUAL TABLE search USING fts5(x)",
    "a column more": "ALTER TABLE parties ADD COLUMN note TEXT",
    "a column with a default": "ALTER TABLE tokens ADD COLUMN power TEXT DEFAULT 'full'",
    "a generated column": "ALTER TABLE bids ADD COLUMN twice REAL AS (valuation * 2)",
    "keys that may repeat": "DROP INDEX log_of_key",
    "keys unique only where small": "DROP INDEX log_of_key; "
    "CREATE UNIQUE INDEX log_of_key ON log (key_hash, actor) WHERE seq < 10",
    "an index in another order": "DROP INDEX postings_of_account; CREATE INDEX postings_of_account ON postings "
    "(seq, account, amount_micro)",
    "an index that lower-cases": "DROP INDEX awards_of_seller; CREATE INDEX awards_of_seller ON awards "
    "(lower(seller_id), seq)",
    "a data set that may repeat": "DROP INDEX parties_by_dataset; CREATE INDEX parties_by_dataset ON parties "
    "(dataset_sha256)",
    "a nonce that may repeat": "DROP INDEX tasks_by_nonce",
    "one index more": "CREATE UNIQUE INDEX one_bid ON bids (seller_id)",
    "a table missing": "DROP TABLE cosignatures",
    "columns that may be empty": "UPDATE sqlite_master SET "
    "sql = replace(sql, 'VARCHAR(40) NOT NULL', 'VARCHAR(40)') WHERE name = 'awards'",
    "a default for a role": "UPDATE sqlite_master SET sql = replace(sql, 'role VARCHAR(10) NOT NULL', "
    "'role VARCHAR(10) NOT NULL DEFAULT operator') WHERE name = 'parties'",
    "a check that refuses receipts": "UPDATE sqlite_master SET "
    "sql = replace(sql, 'PRIMARY KEY (round_id, seller_id)', "
    "'PRIMARY KEY (round_id, seller_id), CHECK (usable IS NULL)') WHERE name = 'awards'",
    "names that ignore letters": "UPDATE sqlite_master SET sql = replace(sql, 'account VARCHAR(60)', "
    "'account VARCHAR(60) COLLATE NOCASE') WHERE name = 'postings'",
    "another type of money": "UPDATE sqlite_master SET "
    "sql = replace(sql, 'amount_micro BIGINT', 'amount_micro TEXT') WHERE name = 'postings'",
    "a foreign key that deletes": "UPDATE sqlite_master SET sql = replace(sql, 'party_id VARCHAR(40) NOT NULL', "
    "'party_id VARCHAR(40) NOT NULL REFERENCES names ON DELETE CASCADE') WHERE name = 'tokens'",
}  # fmt: skip


_FUNCTION = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
POSTGRESQL_SCHEMA = {
    "a trigger that drops rows": _FUNCTION + "CREATE TRIGGER later BEFORE INSERT ON postings FOR EACH ROW "
    "EXECUTE FUNCTION f()",
    "a trigger at the end": _FUNCTION + "CREATE CONSTRAINT TRIGGER later AFTER INSERT ON postings "
    "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION f()",
    "a trigger for statements": _FUNCTION + "CREATE TRIGGER later AFTER TRUNCATE ON log EXECUTE FUNCTION f()",
    "an event trigger": "CREATE FUNCTION g() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'; "
    "CREATE EVENT TRIGGER everywhere ON ddl_command_start EXECUTE FUNCTION g()",
    "a rule": "CREATE RULE r AS ON INSERT TO postings DO INSTEAD NOTHING",
    "a policy": "ALTER TABLE bids ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON bids USING (FALSE)",
    "row security without a policy": "ALTER TABLE bids FORCE ROW LEVEL SECURITY",
    "a view": "CREATE VIEW richer AS SELECT * FROM parties",
    "a view in a table's place": "ALTER TABLE cosignatures RENAME TO c2; "
    "CREATE VIEW cosignatures AS SELECT * FROM c2",
    "a materialised view": "CREATE MATERIALIZED VIEW richer AS SELECT * FROM parties",
    "a default": "ALTER TABLE parties ALTER role SET DEFAULT 'operator'",
    "an identity": "ALTER TABLE log ALTER seq ADD GENERATED BY DEFAULT AS IDENTITY",
    "a generated column": "ALTER TABLE bids ADD twice float GENERATED ALWAYS AS (valuation * 2) STORED",
    "a check": "ALTER TABLE awards ADD CHECK (usable IS NULL) NOT VALID",
    "a foreign key": "ALTER TABLE tokens ADD FOREIGN KEY (party_id) REFERENCES parties ON DELETE CASCADE",
    "no primary key": "ALTER TABLE postings DROP CONSTRAINT postings_pkey",
    "no unique tokens": "ALTER TABLE tokens DROP CONSTRAINT tokens_token_hash_key",
    "unique tokens at the end only": "ALTER TABLE tokens DROP CONSTRAINT tokens_token_hash_key; "
    "ALTER TABLE tokens ADD CONSTRAINT tokens_token_hash_key UNIQUE (token_hash) DEFERRABLE",
    "a partial index": "DROP INDEX log_of_key; "
    "CREATE UNIQUE INDEX log_of_key ON log (key_hash, actor) WHERE seq < 10",
    "an index over an expression": "DROP INDEX awards_of_seller; CREATE INDEX awards_of_seller ON awards "
    "(lower(seller_id), seq)",
    "an index in another order": "DROP INDEX log_of_kind; CREATE INDEX log_of_kind ON log (kind, seq DESC)",
    "an index of another kind": "DROP INDEX ix_rounds_state; "
    "CREATE INDEX ix_rounds_state ON rounds USING hash (state)",
    "no index": "DROP INDEX log_of_actor",
    "a column of another type": "ALTER TABLE postings ALTER amount_micro TYPE numeric",
    "a column that may be empty": "ALTER TABLE awards ALTER charge DROP NOT NULL",
    "a shorter column": "ALTER TABLE names ALTER name TYPE varchar(81)",
    "names in another order": 'ALTER TABLE names ALTER name TYPE varchar(80) COLLATE "C"',
    "a table that forgets": "ALTER TABLE tiles SET UNLOGGED",
    "rows from another table": "CREATE TABLE more () INHERITS (postings)",
    "a schema in the shadow": "CREATE SCHEMA shadow; CREATE TABLE shadow.postings (LIKE public.postings)",
    "another search path": "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = shadow, public', "
    "current_database()); END $$",
    "constraints switched off": "DO $$ BEGIN EXECUTE format("
    "'ALTER DATABASE %I SET session_replication_role = replica', current_database()); END $$",
    "an operator of its own": "CREATE FUNCTION never(text, text) RETURNS bool LANGUAGE sql AS 'SELECT FALSE'; "
    "CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = never)",
    "a function of its own": "CREATE FUNCTION substr(text, int, int) RETURNS text LANGUAGE sql AS 'SELECT $1'",
    "a cast of its own": "CREATE DOMAIN money2 AS bigint; CREATE FUNCTION c(money2) RETURNS text LANGUAGE sql AS "
    "'SELECT NULL::text'",
    "a sequence": "CREATE SEQUENCE s",
    "a type": "CREATE TYPE colour AS ENUM ('red')",
    "a table missing": "DROP TABLE cosignatures",
}  # fmt: skip


def schema_edits() -> Iterator[Edit]:
    """Changes of what statements do, on SQLite."""
    for name, statement in _SCHEMA.items():
        yield Edit("schema", name, (statement,))


# ---- the log rewritten ----------------------------------------------------------------------------------------


def _altered(kind: str) -> Change:
    """The first entry of a kind says something else: a number one higher, a text with another end."""

    def change(entries: list[Entry]) -> list[Entry]:
        place = next(i for i, one in enumerate(entries) if one.kind == kind)
        fields = entries[place].fields()
        for name, value in fields.items():
            if name in ("signature", "said"):
                continue
            if isinstance(value, bool):
                fields[name] = not value
            elif isinstance(value, int | float):
                fields[name] = value + 1
            elif isinstance(value, str):
                fields[name] = value[:-1] + ("0" if value[-1:] != "0" else "1")
            else:
                continue
            break
        else:
            entries[place] = entries[place]._replace(subject=entries[0].subject)
        entries[place] = entries[place]._replace(details=canonical(fields))
        return entries

    return change


def _removed(kind: str) -> Change:
    """The last entry of a kind never happened."""

    def change(entries: list[Entry]) -> list[Entry]:
        place = max(i for i, one in enumerate(entries) if one.kind == kind)
        return [one for i, one in enumerate(entries) if i != place]

    return change


def _own_key(entries: list[Entry]) -> list[Entry]:
    details = canonical({"public_key": STRANGER.public})
    return [one._replace(details=details) if one.kind == "log.key" else one for one in entries]


def _richer(entries: list[Entry]) -> list[Entry]:
    deposit = next(i for i, one in enumerate(entries) if one.kind == "money.deposit")
    return [*entries[: deposit + 1], entries[deposit]._replace(key_hash=None), *entries[deposit + 1 :]]


def _swapped(entries: list[Entry]) -> list[Entry]:
    bids = [i for i, one in enumerate(entries) if one.kind == "bid.placed"]
    entries[bids[0]], entries[bids[1]] = entries[bids[1]], entries[bids[0]]
    return entries


def rewritten_edits(target: Target) -> Iterator[Edit]:
    """The same rewriting twice: without the broker's key, and with it."""
    kinds = list(dict.fromkeys(one.kind for one in entries_of(target.file)))
    for number, kind in enumerate(kinds):
        # Without the key: unsigned, or signed with another key that the log announces in the old one's place.
        yield Edit("re-chained", f"{kind} altered", change=_altered(kind))
        yield Edit("history", f"{kind} altered", change=_altered(kind), key=SIGNING)
        yield Edit("history", f"{kind} removed", change=_removed(kind), key=SIGNING)
        if number % 3 == 0:
            yield Edit("re-chained", f"{kind} removed", change=_removed(kind))
    yield Edit("re-chained", "another key announced from the start", change=_own_key, key=STRANGER)
    unsigned = lambda entries: [one for one in entries if one.kind != "log.key"]  # noqa: E731
    yield Edit("re-chained", "no key and no signature", change=unsigned)
    taken_over = entry(target.seen.head.at_ms, "system", "log.key", target.log_id, {"public_key": STRANGER.public})
    yield Edit("re-chained", "another key announced at the end", change=appended(taken_over), key=STRANGER)
    for name, change in {"a deposit twice": _richer, "two bids swapped": _swapped, "the end cut": _cut}.items():
        yield Edit("re-chained", name, change=change)
        yield Edit("history", name, change=change, key=SIGNING)
    yield Edit("history", "everything a second later", change=_later, key=SIGNING)


def _cut(entries: list[Entry]) -> list[Entry]:
    return entries[:-10]


def _later(entries: list[Entry]) -> list[Entry]:
    return [one._replace(at_ms=one.at_ms + 1000) for one in entries]


# ---- entries appended with the key ----------------------------------------------------------------------------


def appended_edits(target: Target) -> Iterator[Edit]:
    """Entries after the witnessed head, hashed, projected and signed by the operator itself."""
    for name, made, names in _forgeries(target):
        yield Edit("appended", name, change=appended(*made), key=SIGNING, names=names)


_Forged = tuple[str, Sequence[Entry], dict[str, tuple[str, str]]]


def _forgeries(t: Target) -> Iterator[_Forged]:
    at = t.seen.last_ms + 1000
    buyer, operator, arbiter = t.buyer, t.operator, t.arbiter
    first, second, third, _ = t.sellers
    nobody: dict[str, tuple[str, str]] = {}

    def one(name: str, actor: str, kind: str, subject: str, at_ms: int = at, /, **details: object) -> _Forged:
        return name, [entry(at_ms, actor, kind, subject, details)], nobody

    # Tokens and parties.
    token = {"id": "token-00", "token_hash": "ab" * 32, "scope": "full", "expires_ms": None}
    yield one("a token minted by anonymous", "anonymous", "token.minted", buyer, **token)
    yield one("a token minted by system", "system", "token.minted", buyer, **token)
    yield one("a token minted by another", first, "token.minted", operator, **token)
    yield one("a token of an unknown scope", operator, "token.minted", operator, **{**token, "scope": "all"})
    yield one("a token for nobody", operator, "token.minted", "seller-ff", **token)
    owned = {one.subject: one.fields()["id"] for one in t.entries("token.minted")}
    yield one("a token revoked by system", "system", "token.revoked", buyer, id=owned[buyer])
    yield one("a token revoked by another", first, "token.revoked", buyer, id=owned[buyer])
    yield one("a token revoked under another name", operator, "token.revoked", first, id=owned[buyer])
    party = {"cap_epsilon": None, "delta": None, "public_key": None, "signs": "nothing"}
    for name, actor, role, extra in (
        ("an operator made by anonymous", "anonymous", "operator", {}),
        ("a second operator made by system", "system", "operator", {}),
        ("an arbiter made by a buyer", buyer, "arbiter", {}),
        ("a seller registered by system", "system", "seller", {"cap_epsilon": 5.0, "delta": 1e-5}),
        ("a seller without a wallet", "anonymous", "seller", {}),
        ("a seller with an endless wallet", "anonymous", "seller", {"cap_epsilon": 1e9, "delta": 1e-5}),
        ("a suspended party registered", "anonymous", "buyer", {"suspended": "from the start"}),
    ):
        who = f"{role}-00000000000000ff"
        words = {"role": role, "name_hash": name_hash(who, "x", "00"), **party, **extra}
        yield name, [entry(at, actor, "party.registered", who, words)], {who: ("x", "00")}
    yield one("suspended by system", "system", "party.suspended", first, suspended="x")
    yield one("suspended by a buyer", buyer, "party.suspended", first, suspended="x")
    yield one("restored without an operator", "system", "party.restored", t.sellers[3], suspended=None)
    yield one("a name erased by system, with money", "system", "party.erased", first)
    yield one(
        "another's key by the operator", operator, "party.key", first, public_key=STRANGER.public, signs="bids"
    )
    yield one("another key that the old one did not sign", first, "party.key", first, public_key=STRANGER.public,
              signs="everything")  # fmt: skip
    yield one("signing switched off", buyer, "party.key", buyer, public_key=t.keys[buyer].public, signs="bids")
    false = STRANGER.sign(key_message(first, STRANGER.public, "everything"))
    yield one("another key that signs for itself", first, "party.key", first, public_key=STRANGER.public,
              signs="everything", signature=false)  # fmt: skip
    yield one("a data set invented", second, "party.dataset", second, dataset_sha256="ee" * 32, signature="00" * 64)
    yield one("the log's key changed by a party", buyer, "log.key", t.log_id, public_key=STRANGER.public)
    alone = STRANGER.sign(log_key_message(t.log_id, SIGNING.public, STRANGER.public))
    words = {"public_key": STRANGER.public, "signature": "00" * 64, "own_signature": alone}
    yield one("the log's key changed without the old one", "system", "log.key", t.log_id, **words)
    # Money.
    yield one(
        "money deposited by system", "system", "money.deposit", first, reference="bank 7", amount_micro=1_000_000
    )
    yield one(
        "money deposited by anonymous",
        "anonymous",
        "money.deposit",
        first,
        reference="bank 7",
        amount_micro=1_000_000,
    )
    yield one(
        "money deposited by its owner", first, "money.deposit", first, reference="bank 7", amount_micro=1_000_000
    )
    yield one("a negative deposit", operator, "money.deposit", first, reference="bank 7", amount_micro=-5)
    yield one("half a micro-unit", operator, "money.deposit", first, reference="bank 7", amount_micro=0.5)
    yield one("a deposit for nobody", operator, "money.deposit", "seller-ff", reference="bank 7", amount_micro=5)
    yield one(
        "a deposit that sets more", operator, "money.deposit", first, reference="bank 7", amount_micro=5, request=3
    )
    yield one("money withdrawn by system", "system", "money.withdraw", first, reference="bank 7", amount_micro=5)
    yield one(
        "money withdrawn that nobody asked for",
        operator,
        "money.withdraw",
        first,
        reference="bank 7",
        amount_micro=5,
    )
    # Bookings that name others.
    deposit = t.entries("money.deposit")[0]
    whole = deposit.fields()["amount_micro"]
    book = {"reference": "bank 7", "amount_micro": whole}
    yield one("what is no booking undone", operator, "money.withdraw", deposit.subject, **book, undoes=1)
    yield one("somebody else's deposit undone", operator, "money.withdraw", first, **book, undoes=deposit.seq)
    yield one(
        "a deposit undone by a deposit", operator, "money.deposit", deposit.subject, **book, undoes=deposit.seq
    )
    yield one("another amount undone", operator, "money.withdraw", deposit.subject, reference="bank 7",
              amount_micro=whole - 1, undoes=deposit.seq)  # fmt: skip
    yield one("a proposal that is not there", operator, "money.deposit", first, **book, proposal=2)
    yield one("a proposal declined that is not there", operator, "money.declined", first, reference="x", proposal=2)
    yield one("a proposal by a party", first, "money.proposed", first, **book, way="deposit")
    yield one("money proposed a third way", operator, "money.proposed", first, **book, way="sideways")
    yield one("a session ended by the operator", operator, "session.ended", first, session="s")
    yield one("events redirected by the operator", operator, "webhook.set", first, url="https://example.org")
    requests = t.entries("money.requested")
    paid, waiting = requests[0], requests[-1]
    yield one("a payout paid twice", operator, "money.withdraw", paid.subject,
              reference="bank 7", amount_micro=paid.fields()["amount_micro"], request=paid.seq)  # fmt: skip
    yield one("a payout of another amount", operator, "money.withdraw", waiting.subject,
              reference="bank 7", amount_micro=999, request=waiting.seq)  # fmt: skip
    yield one("a payout to somebody else", operator, "money.withdraw", second,
              reference="bank 7", amount_micro=waiting.fields()["amount_micro"], request=waiting.seq)  # fmt: skip
    yield one("a payout asked for by nobody", first, "money.requested", first, amount_micro=5, nonce="ab" * 16)
    yield one("a request sent twice", paid.subject, "money.requested", paid.subject, **paid.fields())
    yield one("a request of more, with the old signature", paid.subject, "money.requested", paid.subject,
              **{**paid.fields(), "amount_micro": 11})  # fmt: skip
    # Times.
    alarm = {"fault": "x"}
    yield one("a negative time", "system", "alert", t.rounds["open"], -5, **alarm)
    yield one("a time before the last entry", "system", "alert", t.rounds["open"], t.seen.head.at_ms - 1, **alarm)
    yield one("a time 40 days ahead", "system", "alert", t.rounds["open"], at + 40 * _DAY_MS, **alarm)
    yield one("a time before the witness looked", "system", "alert", t.rounds["open"], t.seen.head.at_ms, **alarm)
    # Bids.
    bid = {"valuation": 0.1, "epsilon": 1.0, "data_size": 1.0, "accuracy": None, "nonce": "00" * 16}
    bid |= {"commitment": "cd" * 32, "replaces": False}
    yield one("a bid that nobody signed", first, "bid.placed", t.rounds["open"], **bid)
    theirs = {**bid, "signature": t.keys[second].sign(bid_message(t.rounds["open"], first, "cd" * 32))}
    yield one("a bid that another signed", first, "bid.placed", t.rounds["open"], **theirs)
    earlier = next(one for one in t.entries("bid.placed") if one.actor == first)
    yield one("a bid of another round", first, "bid.placed", t.rounds["open"], **earlier.fields())
    yield one("a bid of a buyer", buyer, "bid.placed", t.rounds["open"], **bid)
    own = next(one for one in t.entries("bid.placed") if one.subject == t.rounds["open"])
    again = {**own.fields(), "replaces": True}
    yield one("a bid dated back", own.actor, "bid.placed", own.subject, t.seen.head.at_ms, **again)
    late = own.at_ms + 3_700_000
    yield one("a bid long after its deadline", own.actor, "bid.placed", own.subject, late, **again,
              arrived_ms=late - 200_000)  # fmt: skip
    # Tasks and rounds.
    task = t.entries("task.published")[-1]
    yield one("a task sent twice", buyer, "task.published", "task-00000000000000ff", **task.fields())
    words = {**task.fields(), "budget_micro": 40_000_000}
    yield one("a task with more money", buyer, "task.published", "task-00000000000000ff", **words)
    words = {name: value for name, value in task.fields().items() if name not in ("said", "signature")}
    yield one("a task that nobody signed", buyer, "task.published", "task-00000000000000ff", **words)
    opened = next(one for one in t.entries("round.opened") if one.subject == t.rounds["settled"])
    version = opened.fields()["mechanism_version"]
    words = {**opened.fields(), "number": 1, "bid_deadline_ms": at + 60_000}
    yield one("a round that nobody opened", buyer, "round.opened", "round-00000000000000ff", **words)
    words = {**opened.fields(), "bid_deadline_ms": at + 60_000}
    yield one("a round opened twice", buyer, "round.opened", "round-00000000000000ff", **words)
    words = {**opened.fields(), "number": 1, "bid_deadline_ms": at + 60_000, "mechanism_version": "other/1.0.0+00"}
    words["signature"] = t.sign(buyer, "round.opened", opened.fields()["task_id"], number=1)
    yield one("a round of another rule", buyer, "round.opened", "round-00000000000000ff", **words)
    closed = {"state": "closed", "reveal_deadline_ms": None}
    yield one("bidding closed early by the operator", operator, "round.closed", t.rounds["open"], **closed)
    yield one("bidding closed early by system", "system", "round.closed", t.rounds["open"], **closed)
    yield one("bidding closed early for the buyer", buyer, "round.closed", t.rounds["open"], **closed)
    ended = {"buyer_id": buyer, "paid_micro": 0, "refunded_micro": 1_000_000, "fault": "x"}
    yield one("a round aborted for the buyer", buyer, "round.aborted", t.rounds["open"], **ended)
    yield one("a round aborted by system", "system", "round.aborted", t.rounds["open"], **ended)
    yield one("a round aborted after its auction", operator, "round.aborted", t.rounds["cleared"], **ended)
    yield one("a round aborted for another buyer", operator, "round.aborted", t.rounds["open"],
              **{**ended, "buyer_id": first})  # fmt: skip
    yield one("progress that nobody reported", buyer, "round.progress", t.rounds["settled"], model_accuracy=0.99)
    yield from _thefts(t, version)
    # Deliveries.
    waits = t.rounds["waiting"]

    def those(kind: str, name: str = "seller_id") -> list[str]:
        found = [one for one in t.entries(kind) if one.subject == waits]
        return [one.actor if name == "actor" else one.fields()[name] for one in found]

    delivered = those("delivery.claimed", "actor")
    silent = next(one for one in those("award.made") if one not in delivered)
    (disputed,) = those("dispute.opened")
    rejected = next(one for one in those("delivery.judged") if one != disputed)
    claimed = next(one for one in delivered if one not in those("delivery.judged"))
    yield one("a claim invented", silent, "delivery.claimed", waits, update_sha256="ab" * 32)
    other = next(c for c in t.entries("delivery.claimed") if c.actor == silent or c.actor == claimed)
    yield one("a claim of another round", silent, "delivery.claimed", waits, **other.fields())
    yield one("a second claim", claimed, "delivery.claimed", waits, update_sha256="cc" * 32)
    receipt = {"seller_id": claimed, "usable": False, "fault": "no good"}
    yield one("a rejection invented", buyer, "delivery.judged", waits, **receipt)
    yield one("an acceptance invented", buyer, "delivery.judged", waits, seller_id=claimed, usable=True, fault=None)
    judged = next(one for one in t.entries("delivery.judged") if one.subject == waits)
    moved = {**judged.fields(), "seller_id": claimed}
    yield one("a rejection moved to another seller", buyer, "delivery.judged", waits, **moved)
    yield one("a rejection by the operator", operator, "delivery.judged", waits, **receipt)
    yield one("a receipt changed", buyer, "delivery.judged", waits, seller_id=rejected, usable=True, fault=None)
    yield one("a dispute invented", rejected, "dispute.opened", waits, seller_id=rejected, dispute="it is good")
    yield one("a dispute by another", claimed, "dispute.opened", waits, seller_id=rejected, dispute="it is good")
    for name, who in (("arbiter", arbiter), ("operator", operator), ("system", "system"), ("buyer", buyer)):
        ruling = {"seller_id": disputed, "ruling": False, "reason": "no"}
        yield one(f"a ruling invented by the {name}", who, "dispute.ruled", waits, **ruling)
    signed = t.sign(arbiter, "dispute.ruled", waits, seller_id=disputed, pays=True, reason="yes")
    turned = {"seller_id": disputed, "ruling": False, "reason": "yes", "signature": signed}
    yield one("a ruling turned round", arbiter, "dispute.ruled", waits, **turned)
    yield one("a key shown to the operator", operator, "delivery.shown", t.rounds["sealed"], seller_id=first)
    yield one("delivered before it was", buyer, "round.delivered", waits)
    settled = {"buyer_id": buyer, "paid_micro": 0, "refunded_micro": 3_000_000, "fault": None}
    yield one("settled before it was due", "system", "round.settled", waits, **settled)
    yield one(
        "an award made void", "system", "award.settled", waits, seller_id=claimed, paid_micro=0, charge="void"
    )
    yield one("an award paid by hand", operator, "award.settled", waits, seller_id=claimed, paid_micro=2_000_000,
              charge="charged")  # fmt: skip
    yield one("a sale that nobody made", "system", "award.made", t.rounds["open"], seller_id=first, epsilon=1.0,
              noise_multiplier=1.0, payment_micro=5)  # fmt: skip
    yield one("an award of a settled round", "system", "award.made", t.rounds["settled"], seller_id=third,
              epsilon=1.0, noise_multiplier=1.0, payment_micro=5)  # fmt: skip
    # Forms.
    yield one("an unknown kind", "system", "money.printed", first, amount_micro=5)
    yield one("fields that are missing", operator, "money.deposit", first)
    yield "no JSON", [Entry(0, at, operator, "money.deposit", first, "{")], nobody
    yield one("a number as text", operator, "money.deposit", first, reference="bank 7", amount_micro="5")
    # What is no forgery: the operator's own acts, the parties' own words, and what changes nothing.
    yield one("the operator books a deposit", operator, "money.deposit", first, reference="bank 7", amount_micro=5)
    yield one("the operator suspends", operator, "party.suspended", first, suspended="x")
    yield one("the operator replaces a lost token", operator, "token.minted", first, **token)
    yield one("an alert", "system", "alert", t.rounds["open"], fault="nothing")
    mine = t.sign(silent, "delivery.claimed", waits, update_sha256="ab" * 32, key_sha256=None)
    yield one("a claim by its seller", silent, "delivery.claimed", waits, update_sha256="ab" * 32, signature=mine)
    dispute = t.sign(rejected, "dispute.opened", waits, reason="it is good")
    yield one("a dispute by its seller", rejected, "dispute.opened", waits, seller_id=rejected,
              dispute="it is good", signature=dispute)  # fmt: skip
    word = t.sign(buyer, "round.progress", t.rounds["settled"], accuracy=0.8)
    yield one("progress reported by the buyer", buyer, "round.progress", t.rounds["settled"],
              model_accuracy=0.8, signature=word)  # fmt: skip
    nonce = "cd" * 16
    ask = t.sign(second, "money.requested", second, amount_micro=7, nonce=nonce)
    yield one("a payout asked for by its owner", second, "money.requested", second, amount_micro=7, nonce=nonce,
              signature=ask)  # fmt: skip


def _thefts(t: Target, version: str) -> Iterator[_Forged]:
    """The whole budget of the open round for somebody who never bid, or for the one bidder, through settlement."""
    open_round = t.rounds["open"]
    bid = next(one for one in t.entries("bid.placed") if one.subject == open_round)
    deadline = next(one for one in t.entries("round.opened") if one.subject == open_round).fields()
    at = int(deadline["bid_deadline_ms"])
    for name, seller, epsilon, noise, pay, said in (
        (
            "theft: an unknown version",
            t.sellers[0],
            1.0,
            4.0,
            1_000_000,
            "proportional-share/9.9.9+0000000000000000",
        ),
        ("theft: another rule's version", t.sellers[0], 1.0, 4.0, 1_000_000, "pac/1.0.0+0000000000000000"),
        ("theft: the right version", t.sellers[0], 1.0, 4.0, 1_000_000, version),
        ("theft: the bidder gets all", bid.actor, 1.0, 4.0, 1_000_000, version),
        ("theft: more ε than offered", bid.actor, 3.0, 1.5, 1_000_000, "proportional-share/9.9.9+0000000000000000"),
        (
            "theft: less noise than sold",
            bid.actor,
            1.0,
            0.1,
            1_000_000,
            "proportional-share/9.9.9+0000000000000000",
        ),
        ("theft: paid less than asked", bid.actor, 1.0, 4.0, 10, "proportional-share/9.9.9+0000000000000000"),
        (
            "theft: more than the budget",
            bid.actor,
            1.0,
            4.0,
            9_000_000,
            "proportional-share/9.9.9+0000000000000000",
        ),
        ("theft: a negative payment", bid.actor, 1.0, 4.0, -5, "proportional-share/9.9.9+0000000000000000"),
    ):
        cleared = {"trimmed": {}, "mechanism_version": said, "sellers": 1, "awarded_micro": pay}
        cleared |= {"total_epsilon": epsilon, "top_price": pay / 1e6 / epsilon, "seed": 5}
        for i, step in enumerate(("delivery", "review", "dispute", "ruling"), 1):
            cleared[f"{step}_deadline_ms"] = at + 60_000 * i
        award = {"seller_id": seller, "epsilon": epsilon, "noise_multiplier": noise, "payment_micro": pay}
        claim: dict[str, Any] = {"update_sha256": "ab" * 32}
        claim["signature"] = t.sign(seller, "delivery.claimed", open_round, **claim, key_sha256=None)
        paid = {"seller_id": seller, "paid_micro": pay, "charge": "charged"}
        ended = {"buyer_id": t.buyer, "paid_micro": pay, "refunded_micro": 1_000_000 - pay, "fault": None}
        closed = {"state": "closed", "reveal_deadline_ms": None}
        made = [
            entry(at, "system", "round.closed", open_round, closed),
            entry(at, "system", "award.made", open_round, award),
            entry(at, "system", "round.cleared", open_round, cleared),
            entry(at, seller, "delivery.claimed", open_round, claim),
            entry(at + 120_000, "system", "award.settled", open_round, paid),
            entry(at + 120_000, "system", "round.settled", open_round, ended),
        ]
        yield name, made, {}


# ---- the verdict ----------------------------------------------------------------------------------------------


def all_edits(target: Target) -> list[Edit]:
    """Every edit of the campaign."""
    return [*table_edits(), *schema_edits(), *rewritten_edits(target), *appended_edits(target)]


def run_edit(target: Target, edit: Edit, folder: Path) -> Outcome | None:
    """What becomes of an edit; None where the database itself refuses it, or it changes nothing."""
    copy = folder / "tampered.db"
    if edit.change is None:
        try:
            changed = edited(target.file, copy, *edit.statements)
        except sqlite3.Error:
            return None
        if changed == 0 and edit.kind == "tables":
            return None
    else:
        rewritten(target.file, copy, edit.change, edit.names)
        if edit.key is not None:
            resigned(copy, edit.key)
    late = max([target.now_ms, *(one.at_ms for one in entries_of(copy)[-1:] if "theft" in edit.name)])
    if "deadline" in edit.name:
        late += _DAY_MS
    try:
        verdict = checked(copy, now_ms=late, witnessed=[target.seen], public_key=SIGNING.public)
    except PrivmarketError as error:
        return Outcome("found", f"refused: {error.message}")
    if verdict.differences:
        return Outcome("found", verdict.differences[0])
    new = entries_of(copy)[target.seen.head.size :]
    if _market(copy) == _market(target.file):
        return Outcome("without effect", "the tables that parties live by are the same")
    if new and all(_is_own_word(target, one) for one in new):
        return Outcome("signed", "by the party in whose name it stands")
    return Outcome("missed", "no difference was reported")


def _is_own_word(target: Target, made: Entry) -> bool:
    """Whether the party in whose name an entry stands signed it: with its key, or, an operator, with the log's."""
    if made.actor == target.operator:
        return True
    key = target.keys.get(made.actor)
    if made.kind not in STATEMENTS or key is None:
        return False
    party = PartyRow.model_construct(id=made.actor, public_key=key.public, signs="everything")
    return is_stated(party, made.kind, made.subject, made.fields())


def _market(file: Path) -> dict[str, list[Any]]:
    """All tables that parties live by."""
    with closing(sqlite3.connect(file)) as connection:
        found = {}
        for table in PROJECTIONS:
            columns = ", ".join(column.name for column in table.c)
            order = ", ".join(column.name for column in table.primary_key)
            query = f"SELECT {columns} FROM {table.name} ORDER BY {order}"
            found[table.name] = connection.execute(query).fetchall()
        for table_name in ("names", "sealed_keys"):
            found[table_name] = sorted(connection.execute(f"SELECT * FROM {table_name}").fetchall())
    return found


def run_on_postgresql(server: str, statements: str) -> Outcome:
    """What becomes of a change of a PostgreSQL database's schema."""
    url = new_database(server)
    broker = Broker(url, key=SIGNING)
    before = verify(broker).differences
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(statements)
    broker.database.close()
    reader = Database(url, read_only=True)
    found = verify(Broker(reader)).differences
    reader.close()
    if before or not found:
        return Outcome("missed", before[0] if before else "no difference was reported")
    return Outcome("found", found[0])


def main() -> None:
    """Runs the campaign and writes what became of each edit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--postgres", action="store_true", help="also change the schema of a PostgreSQL database")
    arguments = parser.parse_args()
    rows = []
    counts: dict[str, Counter[str]] = {name: Counter() for name in CLASSES}
    with tempfile.TemporaryDirectory(prefix="privmarket-tampering-", dir=memory_folder()) as name:
        folder = Path(name)
        target = make_target(folder)
        for edit in all_edits(target):
            outcome = run_edit(target, edit, folder)
            if outcome is None:
                continue
            counts[edit.kind][outcome.result] += 1
            rows.append({"class": edit.kind, "edit": edit.name, **outcome._asdict()})
            if outcome.result == "missed":
                print(f"missed: {edit.kind}: {edit.name}", file=sys.stderr, flush=True)
    if arguments.postgres:
        with postgres(durable=False) as server:
            for name in POSTGRESQL_SCHEMA:
                outcome = run_on_postgresql(server, POSTGRESQL_SCHEMA[name])
                counts["schema"][outcome.result] += 1
                rows.append({"class": "schema", "edit": f"PostgreSQL: {name}", **outcome._asdict()})
    for kind, found in counts.items():
        print(
            f"{kind}: {', '.join(f'{count} {result}' for result, count in sorted(found.items()))}", file=sys.stderr
        )
    report = {"code": broker_code(), "counts": {kind: dict(found) for kind, found in counts.items()}, "edits": rows}
    write_atomically(arguments.out, json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    sys.exit(1 if any(found["missed"] for found in counts.values()) else 0)


if __name__ == "__main__":
    main()
