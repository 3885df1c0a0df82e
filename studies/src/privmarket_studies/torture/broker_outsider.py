"""A second campaign of tampering, written from the log's format alone by somebody who had not read the checks.

The market is that of `broker_tampering` with what came later: two operators, bookings that were undone, proposed,
approved and declined, a webhook, an ended session, replaced bids, reports that were corrected, keys that changed
there and back, a party that signs nothing, and a log whose own key was handed over.

Five classes as there. History is rewritten in two ways: *against a head*, with a witness that saw the newest one,
and by *rules alone*, with a witness that saw only the first entries. An edit ends as *found*, *without effect* on
any party, *own* (its author says that it is no forgery: a party's own signed word, or an act that operators may do
in the open), or *missed*. An own act that is reported is a *false alarm*.

    python -m privmarket_studies.torture.broker_outsider --postgres --out docs/results/broker/outsider.json
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privmarket._files import write_atomically
from privmarket.broker._bidding import offer_fields
from privmarket.broker._log import Entry
from privmarket.broker._parties import Actor, name_hash
from privmarket.broker._schema import PROJECTIONS
from privmarket.broker._signatures import (
    Head,
    SigningKey,
    bid_message,
    canonical,
    commitment,
    dataset_message,
    key_message,
    log_key_message,
    statement_message,
)
from privmarket.broker._verify import SeenHead
from privmarket.errors import PrivmarketError
from privmarket.rounds import Offer
from privmarket_fixtures.eventful import eventful_market, key
from privmarket_fixtures.market import Market
from privmarket_fixtures.postgres import postgres
from privmarket_fixtures.tampering import (
    Change,
    appended,
    checked,
    edited,
    entries_of,
    entry,
    head_of,
    resigned,
    rewritten,
)
from privmarket_studies.torture.broker_simulation import memory_folder
from privmarket_studies.torture.broker_tampering import Outcome, run_on_postgresql
from privmarket_studies.torture.runs import broker_code

OLD_KEY = SigningKey.from_seed(b"\x21" * 32)
LOG_KEY = SigningKey.from_seed(b"\x22" * 32)
OTHER_KEY = SigningKey.from_seed(b"\x23" * 32)
CLASSES = ("tables", "schema", "re-chained", "history", "appended")
_MILLION = 1_000_000
# Kinds that change no table and concern somebody all the same.
_BESIDE_TABLES = {"webhook.set", "session.ended", "money.proposed", "money.declined", "delivery.shown", "log.key"}


@dataclass
class Attempt:
    """One way to tamper.

    Attributes:
        statements: SQL, for edits of tables and of the schema.
        change: what becomes of the log, else.
        key: who signs the head afterwards; None leaves the old signature.
        own: whether this is no forgery: somebody's own signed word, or an operator's act in the open.
        witnessed: whether the auditor has a head from the end of the honest log, or only from its beginning.
        names: party → name and salt, for parties that are invented.
    """

    kind: str
    name: str
    statements: tuple[str, ...] = ()
    change: Change | None = None
    key: SigningKey | None = LOG_KEY
    own: bool = False
    witnessed: bool = True
    names: dict[str, tuple[str, str]] | None = None


@dataclass
class Victim:
    """The market that is tampered with, closed."""

    file: Path
    market: Market
    log: list[Entry]
    heads: dict[bool, SeenHead]  # by whether the witness saw everything
    now_ms: int
    second: str
    arbiter: str
    plain: str
    rounds: dict[str, str]
    booked: dict[str, int]

    def of(self, kind: str, subject: str | None = None) -> list[Entry]:
        """The entries of a kind, perhaps of one subject."""
        return [one for one in self.log if one.kind == kind and subject in (None, one.subject)]

    def sign(self, who: str, kind: str, about: str, **said: object) -> str:
        """A party's own signature."""
        return self.market.keys[who].sign(statement_message(kind, who, about, said))


def make_victim(folder: Path) -> Victim:
    """The market of the other campaign, and everything that was added since."""
    file = folder / "victim.db"
    market = eventful_market(f"sqlite:///{file}", OLD_KEY, everybody=True)
    broker = market.broker
    first = market.operator
    second = broker.authenticate(broker.register({"role": "operator", "name": "night"}, key(), first)["token"])
    plain = broker.authenticate(broker.register({"role": "buyer", "name": "no key"}, key())["token"])
    booked = _bookings(market, second, plain)
    open_round, settled = _states(file)["open"], _states(file)["settled"]
    market.bid(market.sellers[0], open_round, Offer(0.9, 1.0))
    market.bid(market.sellers[0], open_round, Offer(0.3, 1.0))
    for accuracy in (0.6, 0.8):
        word = market.sign(market.buyer, "round.progress", settled, accuracy=accuracy)
        broker.report_progress(market.buyer, settled, accuracy, key(), signature=word)
    seller = market.sellers[1]
    own, other = market.keys[seller.party_id], SigningKey.from_seed(b"\x31" * 32)
    for old, new in ((own, other), (other, own)):
        word = old.sign(key_message(seller.party_id, new.public, "everything"))
        broker.change_key(seller, new.public, key(), signature=word)
    broker.set_webhook(market.buyer, "https://lab.example/events", key())
    broker.end_session(market.buyer, "5e" * 16)
    broker.rotate_key(LOG_KEY)
    broker.database.close()
    log = entries_of(file)
    last = head_of(file)
    heads = {
        True: SeenHead(last, last.at_ms, last.at_ms + 300_000),
        False: SeenHead(_early_head(folder, file, 16), log[15].at_ms, log[15].at_ms + 1000),
    }
    arbiter = next(one for one in market.keys if one.startswith("arbiter"))
    return Victim(
        file,
        market,
        log,
        heads,
        last.at_ms + 600_000,
        second.party_id,
        arbiter,
        plain.party_id,
        _states(file),
        booked,
    )


def _bookings(market: Market, second: Actor, plain: Actor) -> dict[str, int]:
    """A booking that was undone, one that two operators made, one that waits, one that was declined."""
    broker, first, buyer = market.broker, market.operator, market.buyer.party_id
    booked = {"wrong": int(broker.deposit(first, plain.party_id, 40, key(), "bank 1")["entry"])}
    booked["undo"] = int(broker.undo_booking(first, booked["wrong"], "typed wrongly", key())["entry"])
    booked["right"] = int(broker.deposit(first, plain.party_id, 3 * _MILLION, key(), "bank 2")["entry"])
    booked["paid out"] = int(broker.withdraw(first, plain.party_id, 1000, key(), "bank 3")["entry"])
    broker.second_approver_above_micro = 5 * _MILLION
    booked["proposed"] = int(broker.deposit(first, buyer, 6 * _MILLION, key(), "bank 4")["entry"])
    booked["approved"] = int(broker.approve_booking(second, booked["proposed"], key())["entry"])
    booked["refused"] = int(broker.deposit(first, buyer, 7 * _MILLION, key(), "bank 5")["entry"])
    broker.decline_booking(second, booked["refused"], "never arrived", key())
    booked["waiting"] = int(broker.deposit(first, buyer, 8 * _MILLION, key(), "bank 6")["entry"])
    broker.second_approver_above_micro = None
    market.request_payout(plain, 77)
    return booked


def _states(file: Path) -> dict[str, str]:
    """A round of each kind: open, settled, aborted; cleared (bidders sealed), sealed (updates), waiting."""
    query = (
        "SELECT r.state, r.id, t.delivery, t.sealing FROM rounds r JOIN tasks t ON t.id = r.task_id "
        "ORDER BY r.opened_ms"
    )
    found = {}
    with closing(sqlite3.connect(file)) as connection:
        for state, round_id, delivery, sealing in connection.execute(query):
            name = state
            if state == "cleared":
                name = "sealed" if delivery == "sealed" else "cleared" if sealing == "bidder" else "waiting"
            if state == "settled" and delivery == "sealed":
                name = "opened updates"
            found[name] = round_id
    return found


def _early_head(folder: Path, file: Path, size: int) -> Head:
    """What a witness would have noted after the first entries."""
    copy = folder / "early.db"
    rewritten(file, copy, lambda log: log[:size])
    return head_of(copy).signed(OLD_KEY)


# ---- tables ---------------------------------------------------------------------------------------------------

_TABLES = {
    "a fee taken from every seller": (
        "UPDATE postings SET amount_micro = amount_micro - 1 WHERE account LIKE 'party:seller%'"
    ),
    "two sellers' accounts swapped": (
        "UPDATE postings SET account = CASE account WHEN (SELECT min(account) FROM postings WHERE account "
        "LIKE 'party:s%') THEN (SELECT max(account) FROM postings WHERE account LIKE 'party:s%') ELSE "
        "account END"
    ),
    "a deposit doubled on both sides": "UPDATE postings SET amount_micro = 2 * amount_micro WHERE seq = 6",
    "a transfer between parties under an old entry": (
        "INSERT INTO postings (seq, account, amount_micro) SELECT 7, 'party:' || id, -1000 FROM parties "
        "WHERE role = 'buyer' AND signs = 'everything' UNION ALL SELECT 7, 'party:' || min(id), 1000 FROM "
        "parties WHERE role = 'seller'"
    ),
    "a posting under an entry to come": (
        "INSERT INTO postings (seq, account, amount_micro) SELECT 100000, 'party:' || min(id), 1000 FROM "
        "parties WHERE role = 'seller' UNION ALL SELECT 100000, 'world', -1000"
    ),
    "a zero posting": "INSERT INTO postings (seq, account, amount_micro) VALUES (7, 'party:nobody', 0)",
    "escrow emptied": "DELETE FROM postings WHERE account LIKE 'escrow:%'",
    "money as text": "UPDATE postings SET amount_micro = CAST(amount_micro AS TEXT) || ' '  WHERE seq = 6",
    "money as a fraction": "UPDATE postings SET amount_micro = amount_micro + 0.5 WHERE seq = 6",
    "a cap raised": "UPDATE parties SET cap_epsilon = 1000.0 WHERE role = 'seller'",
    "a cap raised by an ulp": "UPDATE parties SET cap_epsilon = 6.000000000000001 WHERE cap_epsilon = 6.0",
    "a cap as text": "UPDATE parties SET cap_epsilon = '10.0x' WHERE cap_epsilon = 10.0",
    "a wallet freed": "UPDATE awards SET charge = 'void', settled_seq = NULL",
    "an award's epsilon halved": "UPDATE awards SET epsilon = epsilon / 2",
    "an award moved to another round": (
        "UPDATE awards SET round_id = (SELECT id FROM rounds WHERE state = 'open') WHERE rowid = (SELECT "
        "min(rowid) FROM awards)"
    ),
    "less noise in an award": "UPDATE awards SET noise_multiplier = noise_multiplier * 0.999999",
    "a token that never expires": "UPDATE tokens SET expires_ms = NULL WHERE expires_ms IS NOT NULL",
    "a revoked token alive": "UPDATE tokens SET revoked_ms = NULL",
    "a read token made full": "UPDATE tokens SET scope = 'full' WHERE scope = 'read'",
    "the operator's token hash for everybody": "UPDATE tokens SET token_hash = substr(token_hash, 1, 63) || 'g'",
    "a suspension lifted": "UPDATE parties SET suspended = NULL",
    "a suspension with no reason": "UPDATE parties SET suspended = '' WHERE suspended IS NULL",
    "a key in capitals": "UPDATE parties SET public_key = upper(public_key)",
    "keys of two parties swapped": (
        "UPDATE parties SET public_key = (SELECT max(public_key) FROM parties) WHERE role = 'seller'"
    ),
    "a party that signs bids only": "UPDATE parties SET signs = 'bids' WHERE signs = 'everything'",
    "a bidding deadline moved": "UPDATE rounds SET bid_deadline_ms = bid_deadline_ms + 1 WHERE state = 'open'",
    "a ruling deadline moved": "UPDATE rounds SET ruling_deadline_ms = 1 WHERE state = 'cleared'",
    "another arbiter": "UPDATE tasks SET arbiter_id = (SELECT min(id) FROM parties)",
    "no arbiter": "UPDATE tasks SET arbiter_id = NULL",
    "an honest share of one": "UPDATE tasks SET honest_share = 1.0",
    "a sealed bid opened to a lower ask": "UPDATE bids SET valuation = 0.01 WHERE valuation IS NOT NULL",
    "a bid trimmed": "UPDATE bids SET trimmed_epsilon = 0.1",
    "a bid dated": "UPDATE bids SET created_ms = created_ms - 1",
    "a payout for somebody else": (
        "UPDATE payouts SET party_id = (SELECT min(id) FROM parties WHERE role = 'seller')"
    ),
    "a payout paid by the wrong entry": "UPDATE payouts SET paid_seq = paid_seq + 1 WHERE paid_seq IS NOT NULL",
    "a payout larger": "UPDATE payouts SET amount_micro = amount_micro * 10 WHERE paid_seq IS NULL",
    "a wrapped key of another seller": "UPDATE sealed_keys SET wrapped = (SELECT min(wrapped) FROM sealed_keys)",
    "a wrapped key cut": "UPDATE sealed_keys SET wrapped = substr(wrapped, 1, 20)",
    "a wrapped key for nobody": (
        "INSERT INTO sealed_keys (round_id, seller_id, wrapped) SELECT round_id, 'seller-x', wrapped FROM "
        "sealed_keys LIMIT 1"
    ),
    "names of two parties swapped": (
        "UPDATE names SET name = CASE name WHEN 'lab' THEN 'court' WHEN 'court' THEN 'lab' ELSE name END"
    ),
    "a salt changed": "UPDATE names SET salt = 'aa'",
    "a proposal's amount in the log": (
        "UPDATE log SET details = replace(details, '8000000', '9000000') WHERE kind = 'money.proposed'"
    ),
    "an approval's proposal in the log": (
        "UPDATE log SET details = replace(details, '\"proposal\":', '\"proposal\": ') WHERE kind = 'money.deposit'"
    ),
    "a webhook's address in the log": (
        "UPDATE log SET details = replace(details, 'lab.example', 'spy.example') WHERE kind = 'webhook.set'"
    ),
    "a session un-ended": "UPDATE log SET kind = 'alert' WHERE kind = 'session.ended'",
    "an actor replaced": (
        "UPDATE log SET actor = (SELECT max(actor) FROM log WHERE actor LIKE 'operator%') WHERE kind = "
        "'money.proposed'"
    ),
    "a first answer replaced": "UPDATE log SET answer = '{}' WHERE kind = 'money.deposit'",
    "an answer added": (
        "UPDATE log SET answer = '{\"balance_micro\":1}' WHERE answer IS NULL AND key_hash IS NOT NULL"
    ),
    "an idempotency key taken": "UPDATE log SET key_hash = NULL, request_hash = NULL WHERE kind = 'money.deposit'",
    "an idempotency key given": "UPDATE log SET key_hash = 'ab', request_hash = 'cd' WHERE seq = 1",
    "a stored hash changed": "UPDATE log SET hash = 'ff' || substr(hash, 3) WHERE seq = 50",
    "times as text": "UPDATE log SET at_ms = at_ms || '' WHERE seq = 50",
    "the frontier cut": "UPDATE head SET frontier = substr(frontier, 1, 64)",
    "the head signed by the old key": "UPDATE head SET signed_by = '" + OLD_KEY.public + "'",
}

# ---- schema ---------------------------------------------------------------------------------------------------

_SCHEMA = {
    "a trigger that pays the operator": (
        "CREATE TRIGGER tip AFTER INSERT ON payouts BEGIN UPDATE postings SET amount_micro = amount_micro "
        "- 1 WHERE seq = NEW.seq; END"
    ),
    "a trigger that swallows bids": (
        "CREATE TRIGGER deaf BEFORE INSERT ON bids WHEN NEW.seller_id LIKE 'seller-9%' BEGIN SELECT "
        "RAISE(IGNORE); END"
    ),
    "a trigger that keeps revoked tokens": (
        "CREATE TRIGGER keep AFTER UPDATE OF revoked_ms ON tokens BEGIN UPDATE tokens SET revoked_ms = "
        "NULL WHERE id = NEW.id; END"
    ),
    "a trigger on the log": (
        "CREATE TRIGGER mute BEFORE INSERT ON log WHEN NEW.kind = 'dispute.opened' BEGIN SELECT "
        "RAISE(ABORT, 'no'); END"
    ),
    "a trigger on names": (
        "CREATE TRIGGER copy AFTER DELETE ON names BEGIN INSERT INTO names VALUES (OLD.party_id, OLD.name, "
        "OLD.salt); END"
    ),
    "a trigger on cosignatures": (
        "CREATE TRIGGER away BEFORE INSERT ON cosignatures BEGIN SELECT RAISE(IGNORE); END"
    ),
    "a trigger named as an index": "CREATE TRIGGER sqlite_autoindex_x AFTER INSERT ON head BEGIN SELECT 1; END",
    "a trigger on the schema's version table": (
        "CREATE TRIGGER v AFTER UPDATE ON alembic_version BEGIN SELECT 1; END"
    ),
    "a view over tokens": "CREATE VIEW sessions AS SELECT * FROM tokens",
    "a table of erased names": "CREATE TABLE old_names AS SELECT * FROM names",
    "a table as sqlite's own": "CREATE TABLE stat1 (tbl, idx, stat)",
    "statistics": "ANALYZE",
    "a hidden column": "ALTER TABLE postings ADD COLUMN hidden INTEGER GENERATED ALWAYS AS (amount_micro) VIRTUAL",
    "a column renamed": "ALTER TABLE payouts RENAME COLUMN paid_seq TO paid",
    "a column dropped": "ALTER TABLE awards DROP COLUMN fault",
    "a table renamed": "ALTER TABLE payouts RENAME TO payments",
    "payout nonces may repeat": "DROP INDEX payouts_by_nonce",
    "payout nonces unique per amount": (
        "DROP INDEX payouts_by_nonce; CREATE UNIQUE INDEX payouts_by_nonce ON payouts (party_id, nonce, "
        "amount_micro)"
    ),
    "payout nonces not unique": (
        "DROP INDEX payouts_by_nonce; CREATE INDEX payouts_by_nonce ON payouts (party_id, nonce)"
    ),
    "an index descending": (
        "DROP INDEX payouts_of_party; CREATE INDEX payouts_of_party ON payouts (party_id, seq DESC)"
    ),
    "an index with a collation": (
        "DROP INDEX log_of_actor; CREATE INDEX log_of_actor ON log (actor COLLATE NOCASE, seq)"
    ),
    "one bid per task": "CREATE UNIQUE INDEX mine ON bids (round_id, valuation)",
    "an expression index that fails": "CREATE INDEX bad ON parties (abs(cap_epsilon))",
    "a partial index": "CREATE INDEX few ON awards (seller_id) WHERE charge = 'void'",
    "token hashes may repeat": (
        "UPDATE sqlite_master SET sql = replace(sql, 'UNIQUE (token_hash)', 'CHECK (1)') WHERE name = 'tokens'"
    ),
    "rounds may repeat": (
        "UPDATE sqlite_master SET sql = replace(sql, 'UNIQUE (task_id, number)', 'UNIQUE (task_id, number, "
        "id)') WHERE name = 'rounds'"
    ),
    "a key that replaces": (
        "UPDATE sqlite_master SET sql = replace(sql, 'PRIMARY KEY (round_id, seller_id)', 'PRIMARY KEY "
        "(round_id, seller_id) ON CONFLICT IGNORE') WHERE name = 'awards'"
    ),
    "a unique that replaces": (
        "UPDATE sqlite_master SET sql = replace(sql, 'UNIQUE (token_hash)', 'UNIQUE (token_hash) ON "
        "CONFLICT REPLACE') WHERE name = 'tokens'"
    ),
    "not null that ignores": (
        "UPDATE sqlite_master SET sql = replace(sql, 'amount_micro BIGINT NOT NULL', 'amount_micro BIGINT "
        "NOT NULL ON CONFLICT IGNORE') WHERE name = 'postings'"
    ),
    "a default scope": (
        "UPDATE sqlite_master SET sql = replace(sql, 'scope VARCHAR(10) NOT NULL', 'scope VARCHAR(10) "
        "DEFAULT ''full'' NOT NULL') WHERE name = 'tokens'"
    ),
    "a default suspension": (
        "UPDATE sqlite_master SET sql = replace(sql, 'suspended TEXT', 'suspended TEXT DEFAULT ''x''') "
        "WHERE name = 'parties'"
    ),
    "a check on disputes": (
        "UPDATE sqlite_master SET sql = replace(sql, 'dispute TEXT', 'dispute TEXT CHECK (dispute IS "
        "NULL)') WHERE name = 'awards'"
    ),
    "a comment only": (
        "UPDATE sqlite_master SET sql = replace(sql, 'dispute TEXT', 'dispute TEXT /* none */') WHERE name "
        "= 'awards'"
    ),
    "a strict table": "UPDATE sqlite_master SET sql = sql || ' WITHOUT ROWID' WHERE name = 'payouts'",
    "a schema version behind": "UPDATE alembic_version SET version_num = 'x'",
    "a second schema version": "INSERT INTO alembic_version VALUES ('y')",
}


# Settings of a role are those of the whole server, so they come last.
_POSTGRESQL = {
    "another type of money": (
        "CREATE DOMAIN money AS bigint CHECK (VALUE < 1000); ALTER TABLE postings ALTER amount_micro TYPE money"
    ),
    "tokens in a table below": "CREATE TABLE more_tokens () INHERITS (tokens)",
    "another collation": 'ALTER TABLE parties ALTER id TYPE varchar(40) COLLATE "C"',
    "a shorter column": "ALTER TABLE log ALTER subject TYPE varchar(39)",
    "a table that a crash empties": "ALTER TABLE sealed_keys SET UNLOGGED",
    "one bid per seller": "ALTER TABLE bids ADD EXCLUDE USING btree (seller_id WITH =)",
    "an implicit cast": (
        "CREATE FUNCTION c(text) RETURNS bigint LANGUAGE sql AS 'SELECT 5::bigint'; "
        "CREATE CAST (text AS bigint) WITH FUNCTION c(text) AS IMPLICIT"
    ),
    "a function of a known name": (
        "CREATE FUNCTION public.lower(varchar) RETURNS text LANGUAGE sql AS 'SELECT $1::text'"
    ),
    "a second table of tokens": "CREATE SCHEMA market; CREATE TABLE market.tokens (LIKE public.tokens)",
    "a unique index that is not valid": (
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'log_of_key'::regclass"
    ),
    "one request without a nonce": (
        "DROP INDEX payouts_by_nonce; "
        "CREATE UNIQUE INDEX payouts_by_nonce ON payouts (party_id, nonce) NULLS NOT DISTINCT"
    ),
    "payouts that pay themselves": (
        "CREATE SEQUENCE q; ALTER TABLE payouts ALTER paid_seq SET DEFAULT nextval('q')"
    ),
    "constraints off for a database": (
        "DO $$ BEGIN EXECUTE "
        "format('ALTER DATABASE %I SET session_replication_role = replica', current_database()); END $$"
    ),
    "another search path for a role": "ALTER ROLE CURRENT_USER SET search_path = market, public",
}


def sql_attempts() -> Iterator[Attempt]:
    """Edits of tables and of the schema."""
    for name, statement in _TABLES.items():
        yield Attempt("tables", name, (statement,))
    for name, statement in _SCHEMA.items():
        yield Attempt("schema", name, (statement,))


# ---- what the log becomes -------------------------------------------------------------------------------------


def _where(test: Callable[[Entry], bool], edit: Callable[[Entry], Entry]) -> Change:
    """Edits the first entry that passes the test."""

    def change(log: list[Entry]) -> list[Entry]:
        place = next(number for number, one in enumerate(log) if test(one))
        return [*log[:place], edit(log[place]), *log[place + 1 :]]

    return change


def _set(**words: object) -> Callable[[Entry], Entry]:
    return lambda one: one._replace(details=canonical({**one.fields(), **words}))


def _dropped(in_round: str) -> Callable[[Entry], Entry]:
    """Something harmless in its place, so that the numbers of later entries do not tell."""
    words = canonical({"fault": "nothing"})
    return lambda one: Entry(0, one.at_ms, "system", "alert", in_round, words)


def _moved(test: Callable[[Entry], bool], to: int) -> Change:
    """Moves the first entry that passes the test so many places back, with the time of its new neighbour."""

    def change(log: list[Entry]) -> list[Entry]:
        place = next(number for number, one in enumerate(log) if test(one))
        one, rest = log[place], [*log[:place], *log[place + 1 :]]
        new = place - to
        return [*rest[:new], one._replace(at_ms=rest[new].at_ms), *rest[new:]]

    return change


def rechained_attempts(v: Victim) -> Iterator[Attempt]:
    """Rewritten by somebody without the log's key: what such a person can sign with, and claim to be."""
    deposit = _where(lambda one: one.kind == "money.deposit", _set(amount_micro=90 * _MILLION))
    log_id = v.log[0].subject
    other = OTHER_KEY.public
    drop = _dropped(v.of("round.opened")[0].subject)

    def renamed(log: list[Entry]) -> list[Entry]:
        return [one if one.kind != "log.key" else _set(public_key=other)(one) for one in log]

    message = log_key_message(log_id, LOG_KEY.public, other)
    handed = {"public_key": other, "signature": OTHER_KEY.sign(message), "own_signature": OTHER_KEY.sign(message)}
    stolen = {**v.of("log.key")[1].fields(), "public_key": other}
    at = v.log[-1].at_ms
    tries: list[tuple[str, Change, SigningKey | None]] = [
        ("a larger deposit, the old signature", deposit, None),
        ("a larger deposit, signed by a stranger", deposit, OTHER_KEY),
        ("a larger deposit, signed by the key before", deposit, OLD_KEY),
        ("every announcement replaced", lambda log: deposit(renamed(log)), OTHER_KEY),
        ("announcements removed", lambda log: [one for one in log if one.kind != "log.key"], OTHER_KEY),
        (
            "only the first announcement left",
            lambda log: [one for one in log if one.kind != "log.key" or one.seq == 1],
            OLD_KEY,
        ),
        (
            "handed over to a stranger, who signs twice",
            appended(entry(at, "system", "log.key", log_id, handed)),
            OTHER_KEY,
        ),
        (
            "handed over with the signatures of before",
            appended(entry(at, "system", "log.key", log_id, stolen)),
            OTHER_KEY,
        ),
        (
            "handed over with no signatures",
            appended(entry(at, "system", "log.key", log_id, {"public_key": other})),
            OTHER_KEY,
        ),
        (
            "handed back by the old key alone",
            appended(
                entry(
                    at,
                    "system",
                    "log.key",
                    log_id,
                    {
                        "public_key": OLD_KEY.public,
                        "signature": OLD_KEY.sign(log_key_message(log_id, LOG_KEY.public, OLD_KEY.public)),
                        "own_signature": OLD_KEY.sign(log_key_message(log_id, LOG_KEY.public, OLD_KEY.public)),
                    },
                )
            ),
            OLD_KEY,
        ),
        ("the hand-over repeated", appended(v.of("log.key")[1]._replace(at_ms=at)), None),
        ("announced for another log", appended(entry(at, "system", "log.key", "ab" * 16, handed)), OTHER_KEY),
        (
            "a key of small order announced",
            appended(entry(at, "system", "log.key", log_id, {**handed, "public_key": "01" + "00" * 31})),
            None,
        ),
        ("the log ends before the hand-over", lambda log: log[:-1], OLD_KEY),
        ("the log ends with registration", lambda log: log[:16], OLD_KEY),
        ("an empty log", lambda log: [], None),
        ("a bid removed", _where(lambda one: one.kind == "bid.placed", drop), OTHER_KEY),
        ("an entry twice", lambda log: [*log[:6], log[5]._replace(key_hash=None), *log[6:]], OTHER_KEY),
        (
            "all times an hour later",
            lambda log: [one._replace(at_ms=one.at_ms + 3_600_000) for one in log],
            OTHER_KEY,
        ),
        (
            "a webhook's address",
            _where(lambda one: one.kind == "webhook.set", _set(url="https://spy.example/")),
            OTHER_KEY,
        ),
        (
            "a proposal's party",
            _where(lambda one: one.kind == "money.proposed", lambda one: one._replace(subject=v.plain)),
            None,
        ),
    ]
    for name, change, signer in tries:
        yield Attempt("re-chained", name, change=change, key=signer)


def history_attempts(v: Victim) -> Iterator[Attempt]:
    """Rewritten with the key; each once against a witness of the newest head, once against hardly any."""
    buyer = v.market.buyer.party_id
    first, second = v.market.sellers[0].party_id, v.market.sellers[1].party_id
    waiting, settled, sealed = v.rounds["waiting"], v.rounds["opened updates"], v.rounds["cleared"]
    drop = _dropped(v.of("round.opened")[0].subject)

    def a(kind: str, subject: str | None = None, nth: int = 0, **words: object) -> Callable[[Entry], bool]:
        def passes(one: Entry) -> bool:
            if one.kind != kind or subject not in (None, one.subject):
                return False
            return all(one.fields().get(name) == value for name, value in words.items())

        matches = [one.seq for one in v.log if passes(one)]
        return lambda one: one.seq == matches[nth]

    # With only the first entries witnessed: each of these must be found by signatures and rules alone.
    rules = {
        "a bid's valuation": _where(a("bid.placed", waiting), _set(valuation=0.1)),
        "a bid's epsilon": _where(a("bid.placed", waiting), _set(epsilon=2.0)),
        "a bid under another name": _where(a("bid.placed", waiting), lambda one: one._replace(actor=second)),
        "a bid in another round": _where(a("bid.placed", settled), lambda one: one._replace(subject=waiting)),
        "a bid without signature": _where(a("bid.placed", waiting), _set(signature=None)),
        "a bid said to replace nothing": _where(a("bid.placed", replaces=True), _set(replaces=False)),
        "a bid said to replace": _where(a("bid.placed", waiting), _set(replaces=True)),
        "a commitment and its reveal": _where(a("bid.revealed", sealed), _set(valuation=0.05)),
        "a reveal dropped": _where(a("bid.revealed", sealed), drop),
        "a winning bid dropped": _where(a("bid.placed", waiting), drop),
        "awards swapped": _where(a("award.made", waiting), _set(payment_micro=750_001)),
        "an award's seller": _where(a("award.made", waiting), _set(seller_id=first)),
        "an award dropped": _where(a("award.made", waiting), drop),
        "a seed chosen": _where(a("round.cleared", waiting), _set(seed=1)),
        "a bidder trimmed": _where(a("round.cleared", waiting), _set(trimmed={first: 0.1})),
        "sums of a round": _where(a("round.cleared", waiting), _set(total_epsilon=0.1)),
        "a top price": _where(a("round.cleared", waiting), _set(top_price=9.0)),
        "the number of sellers": _where(a("round.cleared", waiting), _set(sellers=40)),
        "a delivery deadline in the past": _where(a("round.cleared", waiting), _set(delivery_deadline_ms=1)),
        "a review deadline later": _where(a("round.cleared", waiting), _set(review_deadline_ms=2_000_000_000_000)),
        "a bidding deadline shorter": _where(a("round.opened", waiting), _set(bid_deadline_ms=1_700_000_732_000)),
        "a round's budget": _where(a("round.opened", waiting), _set(budget_micro=4_000_000)),
        "a round's number": _where(a("round.opened", waiting), _set(number=3)),
        "a round's rule": _where(a("round.opened", waiting), _set(mechanism_version="pac/1.0.0+0000000000000000")),
        "a round paid by another": _where(a("round.opened", waiting), _set(buyer_id=v.plain)),
        "a task's arbiter": _where(a("task.published", nth=1), _set(arbiter_id=v.second)),
        "a task's arbiter removed": _where(a("task.published", nth=1), _set(arbiter_id=None)),
        "a task's delta": _where(a("task.published", nth=1), _set(delta=1e-3)),
        "a task's cap on epsilon": _where(a("task.published", nth=1), _set(epsilon_max=50.0)),
        "a task's honest share": _where(a("task.published", nth=1), _set(honest_share=0.9)),
        "a task's steps": _where(a("task.published", nth=1), _set(steps=2)),
        "a task's rounds": _where(a("task.published", nth=1), _set(rounds=11)),
        "a task's title": _where(a("task.published", nth=1), _set(title="numbers")),
        "a task's review": _where(a("task.published", nth=1), _set(review_seconds=6000)),
        "a task's delivery": _where(a("task.published", nth=1), _set(delivery="sealed")),
        "a task that the buyer may not close": _where(a("task.published", nth=1), _set(buyer_may_close=False)),
        "a task's nonce": _where(
            a("task.published", nth=1), lambda one: _set(said={**one.fields()["said"], "nonce": "00" * 16})(one)
        ),
        "a closing without signature": _where(a("round.closed", waiting), _set(signature=None)),
        "a closing by the operator": _where(a("round.closed", waiting), lambda one: one._replace(actor=v.second)),
        "a claim of other bytes": _where(a("delivery.claimed", waiting), _set(update_sha256="00" * 32)),
        "a claim of another key": _where(a("delivery.claimed", v.rounds["sealed"]), _set(key_sha256="00" * 32)),
        "a rejection made an acceptance": _where(a("delivery.judged", waiting), _set(usable=True, fault=None)),
        "a rejection with usable true": _where(a("delivery.judged", waiting), _set(usable=True)),
        "an acceptance with usable false": _where(a("delivery.judged", usable=True), _set(usable=False)),
        "a reason of a rejection": _where(a("delivery.judged", waiting), _set(fault="very bad")),
        "a dispute's words": _where(a("dispute.opened", waiting), _set(dispute="sorry")),
        "a ruling reversed": _where(a("dispute.ruled"), _set(ruling=False)),
        "a ruling for another seller": _where(a("dispute.ruled"), _set(seller_id=second)),
        "a ruling after settlement": _moved(a("round.settled"), 6),
        "a claim after its judgement": _moved(a("delivery.judged", waiting), 3),
        "paid less": _where(a("award.settled", settled), _set(paid_micro=1)),
        "not paid": _where(a("award.settled", settled), drop),
        "paid to another": _where(a("award.settled", settled), _set(seller_id=first)),
        "charged without pay": _where(a("award.settled", charge="void"), _set(charge="charged")),
        "void though delivered": _where(a("award.settled", charge="charged"), _set(charge="void", paid_micro=0)),
        "another key for the buyer": _where(a("award.settled", settled), _set(key="00" * 32)),
        "no key for the buyer": _where(a("award.settled", settled), _set(key=None)),
        "a refund kept": _where(a("round.settled"), _set(refunded_micro=0)),
        "a refund to another": _where(a("round.settled"), _set(buyer_id=v.plain)),
        "a settled round with a fault": _where(a("round.settled"), _set(fault="bankrupt")),
        "an abort's words": _where(a("round.aborted"), _set(fault="the market failed")),
        "an abort's refund": _where(a("round.aborted"), _set(refunded_micro=1)),
        "a report improved": _where(a("round.progress"), _set(model_accuracy=0.99)),
        "a request for more": _where(a("money.requested"), _set(amount_micro=11)),
        "a withdrawal of more than asked": _where(a("money.withdraw"), _set(amount_micro=11)),
        "a withdrawal without request": _where(a("money.withdraw"), _set(request=None)),
        "a request dropped": _where(a("money.requested"), drop),
        "a data set's digest": _where(a("party.dataset"), _set(dataset_sha256="00" * 32)),
        "a key change to another": _where(a("party.key"), _set(public_key=OTHER_KEY.public)),
        "a key change to sign bids only": _where(a("party.key"), _set(signs="bids")),
        "an undo of more": _where(a("money.withdraw", undoes=v.booked["wrong"]), _set(amount_micro=41)),
        "an undo of another entry": _where(
            a("money.withdraw", undoes=v.booked["wrong"]), _set(undoes=v.booked["right"])
        ),
        "an approval of more": _where(
            a("money.deposit", proposal=v.booked["proposed"]), _set(amount_micro=9 * _MILLION)
        ),
        "an approval for another": _where(
            a("money.deposit", proposal=v.booked["proposed"]), lambda one: one._replace(subject=v.plain)
        ),
        "an approval by the same operator": _where(
            a("money.deposit", proposal=v.booked["proposed"]),
            lambda one: one._replace(actor=v.market.operator.party_id),
        ),
        "an approval of another reference": _where(
            a("money.deposit", proposal=v.booked["proposed"]), _set(reference="bank 44")
        ),
        "a proposal changed after approval": _where(a("money.proposed"), _set(amount_micro=5 * _MILLION)),
        "a proposal the other way": _where(a("money.proposed"), _set(way="withdraw")),
        "a session ended by somebody else": _where(a("session.ended"), lambda one: one._replace(actor=first)),
        "a webhook set by an operator": _where(a("webhook.set"), lambda one: one._replace(actor=v.second)),
        "a hand-over without signature": _where(a("log.key", nth=1), _set(signature=None)),
        "times that run back": _where(a("webhook.set"), lambda one: one._replace(at_ms=one.at_ms - 5)),
        "a token minted by a stranger": _where(
            a("token.minted", buyer, nth=1), lambda one: one._replace(actor=first)
        ),
        "an erasure by a seller": _where(a("party.erased"), lambda one: one._replace(actor=first)),
    }
    for name, change in rules.items():
        yield Attempt("history", f"rules alone: {name}", change=change, witnessed=False)
    yield Attempt("history", "rules alone: nothing at all", change=lambda log: log, witnessed=False, own=True)
    # What leaves a consistent market: only a head that somebody kept can tell.
    heads = {
        "a deposit larger": _where(
            a("money.deposit", v.plain, reference="bank 2"), _set(amount_micro=4 * _MILLION)
        ),
        "a key change dropped": _where(a("party.key", nth=1), drop),
        "a suspension dropped": _where(a("party.suspended"), drop),
        "a corrected report dropped": _where(a("round.progress", nth=2), drop),
        "a better bid dropped": _where(a("bid.placed", v.rounds["open"], nth=2), drop),
        "a webhook dropped": _where(a("webhook.set"), drop),
        "the last ten entries dropped": lambda log: log[:-10],
        "a reference changed": _where(a("money.deposit", v.plain, reference="bank 2"), _set(reference="bank 9")),
        "a decline dropped": _where(a("money.declined"), drop),
    }
    for name, change in heads.items():
        yield Attempt("history", f"against a head: {name}", change=change)


_Made = tuple[str, list[Entry]]


def appended_attempts(v: Victim) -> Iterator[Attempt]:
    """Entries added with the key after the witnessed head."""
    for name, made in [*_money(v), *_people(v), *_market_steps(v), *_replays(v), *_shapes(v)]:
        yield Attempt("appended", name, change=appended(*made), names=_names(made))
    for name, made in _own_acts(v):
        yield Attempt("appended", name, change=appended(*made), own=True, names=_names(made))


_SALT = "00" * 16


def _names(made: list[Entry]) -> dict[str, tuple[str, str]]:
    return {one.subject: ("invented", _SALT) for one in made if one.kind == "party.registered"}


def _party(at: int, by: str, party_id: str, **changes: object) -> Entry:
    words: dict[str, object] = {"role": party_id.split("-")[0], "cap_epsilon": None, "delta": None}
    words |= {"public_key": None, "signs": "nothing", "name_hash": name_hash(party_id, "invented", _SALT)}
    return entry(at, by, "party.registered", party_id, {**words, **changes})


def _money(v: Victim) -> Iterator[_Made]:
    """Bookings, undo entries, proposals and approvals, payouts."""
    at, one, two = v.now_ms - 200_000, v.market.operator.party_id, v.second
    buyer, plain = v.market.buyer.party_id, v.plain
    first = v.market.sellers[0].party_id
    booked = v.booked

    def book(name: str, by: str, kind: str, who: str, amount: object, **words: object) -> _Made:
        details = {"amount_micro": amount, "reference": "bank 7", **words}
        return name, [entry(at, by, f"money.{kind}", who, details)]

    yield book("money of a signer paid out unasked", one, "withdraw", first, 1000)
    yield book(
        "a request paid twice over", one, "withdraw", first, 2000, request=v.of("money.requested", first)[-1].seq
    )
    yield book(
        "a request of another paid", one, "withdraw", buyer, 1000, request=v.of("money.requested", first)[-1].seq
    )
    yield book(
        "a paid request paid again",
        one,
        "withdraw",
        v.of("money.requested")[0].subject,
        10,
        request=v.of("money.requested")[0].seq,
    )
    yield book("a request that is a deposit", one, "withdraw", buyer, 50 * _MILLION, request=6)
    yield book("a request to come", one, "withdraw", first, 10, request=100_000)
    yield book("a request named by a word", one, "withdraw", first, 10, request="42")
    yield book("a withdrawal that undoes nothing", one, "withdraw", first, 1000, undoes=1)
    yield book(
        "a withdrawal that undoes a payment", one, "withdraw", first, 750_000, undoes=v.of("award.settled")[1].seq
    )
    yield book("a withdrawal that undoes another's deposit", one, "withdraw", first, 50 * _MILLION, undoes=6)
    yield book("more undone than booked", one, "withdraw", plain, 3 * _MILLION - 999, undoes=booked["wrong"])
    yield book("undone twice", one, "withdraw", plain, 40, undoes=booked["wrong"])
    yield book("an undo undone", one, "deposit", plain, 40, undoes=booked["undo"])
    yield book("a deposit that undoes a deposit", one, "deposit", plain, 3 * _MILLION, undoes=booked["right"])
    yield book("part of a booking undone", one, "withdraw", plain, 5, undoes=booked["right"])
    yield book("undone by true", one, "withdraw", plain, 5, undoes=True)
    yield book("an entry to come undone", one, "withdraw", plain, 5, undoes=100_000)
    yield book("undone by null", one, "withdraw", first, 1000, undoes=None)
    yield book(
        "a payout undone that was a request",
        one,
        "deposit",
        plain,
        77,
        undoes=v.of("money.requested", plain)[0].seq,
    )
    yield book(
        "approved by its proposer",
        one,
        "deposit",
        buyer,
        8 * _MILLION,
        reference="bank 6",
        proposal=booked["waiting"],
    )
    yield book(
        "more approved than proposed",
        two,
        "deposit",
        buyer,
        80 * _MILLION,
        reference="bank 6",
        proposal=booked["waiting"],
    )
    yield book(
        "approved for another party",
        two,
        "deposit",
        plain,
        8 * _MILLION,
        reference="bank 6",
        proposal=booked["waiting"],
    )
    yield book(
        "approved the other way",
        two,
        "withdraw",
        buyer,
        8 * _MILLION,
        reference="bank 6",
        proposal=booked["waiting"],
    )
    yield book("approved under another reference", two, "deposit", buyer, 8 * _MILLION, proposal=booked["waiting"])
    yield book(
        "approved twice", two, "deposit", buyer, 6 * _MILLION, reference="bank 4", proposal=booked["proposed"]
    )
    yield book(
        "approved though declined",
        two,
        "deposit",
        buyer,
        7 * _MILLION,
        reference="bank 5",
        proposal=booked["refused"],
    )
    yield book("approved what nobody proposed", two, "deposit", buyer, 5, proposal=booked["right"])
    yield book("approved what is to come", two, "deposit", buyer, 5, proposal=100_000)
    yield book(
        "approved by a buyer", plain, "deposit", buyer, 8 * _MILLION, reference="bank 6", proposal=booked["waiting"]
    )
    yield book(
        "an approval that also undoes",
        two,
        "deposit",
        buyer,
        8 * _MILLION,
        reference="bank 6",
        proposal=booked["waiting"],
        undoes=booked["right"],
    )
    yield book("a deposit of nothing", one, "deposit", buyer, 0)
    yield book("a negative deposit", one, "deposit", first, -5)
    yield book("a negative withdrawal", one, "withdraw", first, -5)
    yield book("a deposit of half a unit", one, "deposit", first, 0.5)
    yield book("a deposit of a whole float", one, "deposit", first, 5.0)
    yield book("a deposit of true", one, "deposit", first, True)
    yield book("a deposit beyond the limit", one, "deposit", first, 2**62)
    yield book("a deposit by a seller", first, "deposit", first, 5)
    yield book("a deposit by an arbiter", v.arbiter, "deposit", first, 5)
    yield book("a deposit by nobody", "operator-0000000000000000", "deposit", first, 5)
    yield book("a deposit for nobody", one, "deposit", "seller-0000000000000000", 5)
    yield book("a deposit into an escrow", one, "deposit", v.rounds["open"], 5)
    yield book("a withdrawal of more than there is", one, "withdraw", plain, 900 * _MILLION)
    yield book("no reference", one, "deposit", first, 5, reference="")
    yield book("a reference that does not print", one, "deposit", first, 5, reference="a\nb")
    yield book("a reference of a megabyte", one, "deposit", first, 5, reference="x" * _MILLION)
    yield book("a reference that is a number", one, "deposit", first, 5, reference=7)
    yield book("a booking with a field more", one, "deposit", first, 5, note="for the operator")
    yield book("a proposal by a seller", first, "proposed", first, 5, way="deposit")
    yield book("a proposal by system", "system", "proposed", first, 5, way="deposit")
    yield book("a proposal of no way", one, "proposed", first, 5, way="gift")
    yield book("a proposal of a negative amount", one, "proposed", first, -5, way="deposit")
    yield book("a proposal for nobody", one, "proposed", "seller-0000000000000000", 5, way="deposit")
    yield book(
        "a proposal to undo what was undone", one, "proposed", plain, 40, way="withdraw", undoes=booked["wrong"]
    )
    yield book("a proposal to undo another's", one, "proposed", first, 40, way="withdraw", undoes=booked["right"])
    proposed = {"way": "withdraw", "amount_micro": 1000, "reference": "bank 8"}
    size = len(v.log)
    unasked = [
        entry(at, one, "money.proposed", first, proposed),
        entry(
            at, two, "money.withdraw", first, {"amount_micro": 1000, "reference": "bank 8", "proposal": size + 1}
        ),
    ]
    yield "money of a signer paid out by two operators, unasked", unasked
    invented = [
        entry(at, one, "money.proposed", plain, {**proposed, "amount_micro": 10, "undoes": booked["right"]}),
        entry(
            at,
            two,
            "money.withdraw",
            plain,
            {"amount_micro": 10, "reference": "bank 8", "proposal": size + 1, "undoes": booked["right"]},
        ),
    ]
    yield "two operators undo another amount", invented
    undo = {"way": "withdraw", "amount_micro": 3 * _MILLION, "reference": "b", "undoes": booked["right"]}
    book_it = {"amount_micro": 3 * _MILLION, "reference": "b", "undoes": booked["right"]}
    more = entry(at, one, "money.deposit", plain, {"amount_micro": 9 * _MILLION, "reference": "bank 9"})
    twice = [entry(at, one, "money.proposed", plain, undo), entry(at, one, "money.proposed", plain, undo)]
    twice += [
        entry(at, two, "money.withdraw", plain, {**book_it, "proposal": size + 2 + number}) for number in range(2)
    ]
    yield "two proposals to undo one booking, both approved", [more, *twice]
    for name, by in (("a seller", first), ("system", "system"), ("anonymous", "anonymous")):
        words = {"proposal": booked["waiting"], "reference": "no"}
        yield f"declined by {name}", [entry(at, by, "money.declined", buyer, words)]
    yield (
        "declined for another party",
        [entry(at, two, "money.declined", plain, {"proposal": booked["waiting"], "reference": "no"})],
    )
    yield (
        "declined though approved",
        [entry(at, two, "money.declined", buyer, {"proposal": booked["proposed"], "reference": "no"})],
    )
    yield (
        "declined what nobody proposed",
        [entry(at, two, "money.declined", buyer, {"proposal": 6, "reference": "no"})],
    )
    for name, words in {
        "a payout asked for unsigned": {"amount_micro": 5, "nonce": "ab" * 16},
        "a payout asked for with the signature of before": {
            **v.of("money.requested", first)[-1].fields(),
            "amount_micro": 5,
        },
        "a payout asked for again": v.of("money.requested", first)[-1].fields(),
    }.items():
        yield name, [entry(at, first, "money.requested", first, words)]
    yield (
        "a payout asked for by the operator",
        [entry(at, one, "money.requested", plain, {"amount_micro": 5, "nonce": None})],
    )
    yield (
        "a payout of more than there is",
        [entry(at, plain, "money.requested", plain, {"amount_micro": 900 * _MILLION, "nonce": None})],
    )
    yield "a negative payout", [entry(at, plain, "money.requested", plain, {"amount_micro": -5, "nonce": None})]


def _people(v: Victim) -> Iterator[_Made]:
    """Accounts, keys, tokens, sessions, webhooks."""
    at, one = v.now_ms - 200_000, v.market.operator.party_id
    buyer, first, second = v.market.buyer.party_id, v.market.sellers[0].party_id, v.market.sellers[1].party_id
    wallet = {"cap_epsilon": 5.0, "delta": 1e-5}
    fresh = "0123456789abcdef"
    small = "01" + "00" * 31
    for name, by, who, words in (
        ("an operator made by a seller", first, f"operator-{fresh}", {}),
        ("an operator made by anonymous", "anonymous", f"operator-{fresh}", {}),
        ("an operator made by system", "system", f"operator-{fresh}", {}),
        ("an arbiter made by the buyer", buyer, f"arbiter-{fresh}", {}),
        ("an auditor made by anonymous", "anonymous", f"auditor-{fresh}", {}),
        ("an operator named as a seller", "anonymous", f"seller-{fresh}", {"role": "operator"}),
        ("a party named system", one, "system", {"role": "operator"}),
        ("a party named world", one, "world", {"role": "seller", **wallet}),
        ("a role that is none", one, f"bank-{fresh}", {}),
        ("a seller without a wallet", "anonymous", f"seller-{fresh}", {}),
        ("a buyer with a wallet", "anonymous", f"buyer-{fresh}", wallet),
        ("a wallet with no end", "anonymous", f"seller-{fresh}", {"cap_epsilon": 1e308, "delta": 1e-5}),
        ("a wallet below nothing", "anonymous", f"seller-{fresh}", {"cap_epsilon": -1.0, "delta": 1e-5}),
        ("a wallet with delta one", "anonymous", f"seller-{fresh}", {"cap_epsilon": 1.0, "delta": 1.0}),
        (
            "a key that anybody signs for",
            "anonymous",
            f"seller-{fresh}",
            {**wallet, "public_key": small, "signs": "everything"},
        ),
        (
            "a key in capitals",
            "anonymous",
            f"seller-{fresh}",
            {**wallet, "public_key": OTHER_KEY.public.upper(), "signs": "everything"},
        ),
        ("a key that signs nothing", "anonymous", f"seller-{fresh}", {**wallet, "public_key": OTHER_KEY.public}),
        ("no key that signs everything", "anonymous", f"seller-{fresh}", {**wallet, "signs": "everything"}),
        (
            "signs something else",
            "anonymous",
            f"seller-{fresh}",
            {**wallet, "public_key": OTHER_KEY.public, "signs": "some"},
        ),
        ("a party twice", one, first, {"role": "seller", "cap_epsilon": 1000.0, "delta": 1e-5}),
        ("a name that does not fit its hash", "anonymous", f"buyer-{fresh}", {"name_hash": "ab" * 32}),
        ("suspended from birth", "anonymous", f"buyer-{fresh}", {"suspended": "x"}),
        ("attested from birth", "anonymous", f"seller-{fresh}", {**wallet, "dataset_sha256": "da" * 31 + "00"}),
        ("erased from birth", "anonymous", f"seller-{fresh}", {**wallet, "erased_ms": 5}),
    ):
        yield name, [_party(at, by, who, **words)]

    def about(name: str, by: str, kind: str, who: str, **words: object) -> _Made:
        return name, [entry(at, by, kind, who, words)]

    other = OTHER_KEY.public
    by_operator = {"public_key": other, "signs": "everything"}
    yield about("a key changed by the operator", one, "party.key", first, **by_operator)
    yield about("a key changed without the old one", first, "party.key", first, **by_operator)
    yield about(
        "a key signed by the new key only",
        first,
        "party.key",
        first,
        **by_operator,
        signature=OTHER_KEY.sign(key_message(first, other, "everything")),
    )
    yield about("a key taken away", first, "party.key", first, public_key=None, signs="nothing")
    bids = v.market.keys[first].sign(key_message(first, other, "everything"))
    yield about(
        "a key change that says less is signed",
        first,
        "party.key",
        first,
        public_key=other,
        signs="bids",
        signature=bids,
    )
    yield about("a key for a party without, by the operator", one, "party.key", v.plain, **by_operator)
    yield about("a key for nobody", one, "party.key", f"seller-{fresh}", **by_operator)
    yield about("a key for an operator by another", one, "party.key", v.second, **by_operator)
    token = {"id": f"token-{fresh}", "token_hash": "ab" * 32, "scope": "full", "expires_ms": None}
    yield about("a token of a buyer for a seller", buyer, "token.minted", first, **token)
    yield about("a token of an operator by a buyer", buyer, "token.minted", one, **token)
    yield about("a token by the arbiter", v.arbiter, "token.minted", first, **token)
    yield about("a token for nobody", one, "token.minted", f"seller-{fresh}", **token)
    yield about("a token of another scope", first, "token.minted", first, **{**token, "scope": "root"})
    yield about("a token that has ended", first, "token.minted", first, **{**token, "expires_ms": 5})
    yield about("a token of two hundred years", first, "token.minted", first, **{**token, "expires_ms": at * 5})
    yield about(
        "a token known already",
        first,
        "token.minted",
        first,
        **{**token, "token_hash": v.of("token.minted")[0].fields()["token_hash"]},
    )
    yield about("a token revoked from birth", one, "token.minted", first, **token, revoked_ms=7)
    yield about(
        "a token in place of another",
        first,
        "token.minted",
        first,
        **{**token, "id": v.of("token.minted")[0].fields()["id"]},
    )
    theirs = v.of("token.minted", second)[0].fields()["id"]
    yield about("a token revoked by another seller", first, "token.revoked", second, id=theirs)
    yield about("a token revoked under one's own name", first, "token.revoked", first, id=theirs)
    yield about("a token revoked by system", "system", "token.revoked", second, id=theirs)
    yield about("a token revoked by anonymous", "anonymous", "token.revoked", second, id=theirs)
    yield about("no token revoked", one, "token.revoked", second, id=f"token-{fresh}")
    yield about("suspended by a buyer", buyer, "party.suspended", first, suspended="x")
    yield about("suspended by system", "system", "party.suspended", first, suspended="x")
    yield about("suspended for no reason", one, "party.suspended", first, suspended=None)
    suspended = v.of("party.suspended")[0].subject
    yield about("restored by itself", suspended, "party.restored", suspended, suspended=None)
    yield about("restored with a reason", one, "party.restored", first, suspended="x")
    yield about("erased by a competitor", second, "party.erased", first)
    yield about("erased by system though active", "system", "party.erased", first)
    yield about("erased by anonymous", "anonymous", "party.erased", first)
    data = {"dataset_sha256": "77" * 32}
    yield about("a data set attested by the operator", one, "party.dataset", second, **data)
    yield about("a data set attested unsigned", second, "party.dataset", second, **data)
    sign = v.market.keys[second].sign
    yield about(
        "a data set of another wallet",
        second,
        "party.dataset",
        second,
        dataset_sha256="da" * 32,
        signature=sign(dataset_message(second, "da" * 32)),
    )
    again = v.market.keys[first].sign(dataset_message(first, "77" * 32))
    yield about("a second data set", first, "party.dataset", first, **data, signature=again)
    yield about("a session ended by the operator", one, "session.ended", buyer, session="aa" * 16)
    yield about("a session ended by system", "system", "session.ended", buyer, session="aa" * 16)
    yield about("a session ended for another", first, "session.ended", second, session="aa" * 16)
    yield about("a session that is none", buyer, "session.ended", buyer)
    yield about("a session that is a number", buyer, "session.ended", buyer, session=5)
    yield about("a webhook set by the operator", one, "webhook.set", buyer, url="https://spy.example/")
    yield about("a webhook set by system", "system", "webhook.set", buyer, url="https://spy.example/")
    yield about("a webhook set by anonymous", "anonymous", "webhook.set", buyer, url="https://spy.example/")
    yield about("a webhook without TLS", buyer, "webhook.set", buyer, url="http://spy.example/")
    yield about("a webhook with a password", buyer, "webhook.set", buyer, url="https://a:b@spy.example/")
    yield about("a webhook that is a number", buyer, "webhook.set", buyer, url=5)
    yield about(
        "a webhook for nobody", f"buyer-{fresh}", "webhook.set", f"buyer-{fresh}", url="https://spy.example/"
    )
    yield about("a webhook switched off by the operator", one, "webhook.set", buyer, url=None)
    yield about("a key shown to a seller", first, "delivery.shown", v.rounds["sealed"], seller_id=second)
    yield about(
        "a key shown to an arbiter without a dispute",
        v.arbiter,
        "delivery.shown",
        v.rounds["sealed"],
        seller_id=second,
    )
    yield about("a log key by the operator", one, "log.key", v.log[0].subject, public_key=other)


def _market_steps(v: Victim) -> Iterator[_Made]:
    """Tasks, rounds, bids, deliveries, disputes and settlements that nobody made, or at the wrong time."""
    at, one = v.now_ms - 200_000, v.market.operator.party_id
    buyer, first, second = v.market.buyer.party_id, v.market.sellers[0].party_id, v.market.sellers[1].party_id
    third = v.market.sellers[2].party_id
    open_round, waiting, sealed, updates = (v.rounds[name] for name in ("open", "waiting", "cleared", "sealed"))
    last = v.of("round.opened")[-1]

    def step(name: str, by: str, kind: str, what: str, *, when: Any = at, **words: object) -> _Made:
        return name, [entry(when, by, kind, what, words)]

    terms = v.of("task.published")[-1].fields()
    task = "task-00000000000000aa"
    yield step("a task unsigned", buyer, "task.published", task, **{**terms, "signature": None})
    yield step("a task of a seller", first, "task.published", task, **{**terms, "buyer_id": first})
    yield step("a task for another buyer", buyer, "task.published", task, **{**terms, "buyer_id": v.plain})
    plain = {**terms, "buyer_id": v.plain, "signature": None}
    yield step("a task of a party that signs nothing, by the operator", one, "task.published", task, **plain)
    yield step("a task of an unknown rule", v.plain, "task.published", task, **{**plain, "mechanism": "mine"})
    yield step("a task of negative budget", v.plain, "task.published", task, **{**plain, "budget_micro": -5})
    yield step("a task with a seller as arbiter", v.plain, "task.published", task, **{**plain, "arbiter_id": first})
    yield step("a task with delta two", v.plain, "task.published", task, **{**plain, "delta": 2.0})
    yield step("a task with no honest seller", v.plain, "task.published", task, **{**plain, "honest_share": 0.0})
    yield step(
        "a task with deadlines of nothing", v.plain, "task.published", task, **{**plain, "review_seconds": -60}
    )
    opened = {**last.fields(), "number": 1, "bid_deadline_ms": at + 3_600_000}
    word = v.sign(buyer, "round.opened", opened["task_id"], number=1)
    new = "round-00000000000000aa"
    yield step("a round unsigned", buyer, "round.opened", new, **{**opened, "signature": None})
    yield step("a round with the signature of the one before", buyer, "round.opened", new, **opened)
    signed = {**opened, "signature": word}
    yield step(
        "a signed round of a longer deadline",
        buyer,
        "round.opened",
        new,
        **{**signed, "bid_deadline_ms": at + 9_000_000},
    )
    yield step(
        "a signed round of a larger budget", buyer, "round.opened", new, **{**signed, "budget_micro": 9 * _MILLION}
    )
    yield step("a signed round opened by the operator", one, "round.opened", new, **signed)
    yield step("a signed round in place of another", buyer, "round.opened", open_round, **signed)
    far = v.sign(buyer, "round.opened", opened["task_id"], number=99)
    yield step(
        "a signed round beyond the task's number",
        buyer,
        "round.opened",
        new,
        **{**opened, "number": 99, "signature": far},
    )
    yield step("a signed round on another's money", buyer, "round.opened", new, **{**signed, "buyer_id": v.plain})
    # Bids.
    offer = offer_fields(Offer(0.01, 1.0))
    nonce = "99" * 16
    committed = commitment(open_round, second, offer, nonce)
    mine = v.market.keys[second].sign(bid_message(open_round, second, committed))
    bid: dict[str, Any] = {**offer, "nonce": nonce, "commitment": committed, "replaces": False, "signature": mine}
    yield step("a bid unsigned", second, "bid.placed", open_round, **{**bid, "signature": None})
    yield step("a bid signed by another", third, "bid.placed", open_round, **bid)
    yield step("a signed bid of another value", second, "bid.placed", open_round, **{**bid, "valuation": 0.02})
    yield step(
        "a signed bid without its words",
        second,
        "bid.placed",
        open_round,
        **{"commitment": committed, "replaces": False, "signature": mine},
    )
    yield step(
        "a signed bid after its deadline",
        second,
        "bid.placed",
        open_round,
        when=last.fields()["bid_deadline_ms"] + 1,
        **bid,
    )
    yield step("a signed bid in a settled round", second, "bid.placed", v.rounds["settled"], **bid)
    yield step("a signed bid that replaces nothing", second, "bid.placed", open_round, **{**bid, "replaces": True})
    yield step("a signed bid dated back", second, "bid.placed", open_round, when=v.log[-1].at_ms - 1000, **bid)
    yield step("a signed bid of before the witness", second, "bid.placed", open_round, when=v.log[-1].at_ms, **bid)
    yield step("a reveal where nobody seals", second, "bid.revealed", open_round, **{**offer, "nonce": nonce})
    hidden = v.of("bid.placed", sealed)[2].actor
    yield step(
        "a reveal that came too late",
        hidden,
        "bid.revealed",
        sealed,
        **{**offer_fields(Offer(0.4, 1.0)), "nonce": "0f" * 16},
    )
    # Rounds.
    yield step(
        "closed early by the second operator",
        v.second,
        "round.closed",
        open_round,
        state="closed",
        reveal_deadline_ms=None,
    )
    close = v.sign(buyer, "round.closed", open_round)
    yield step(
        "a signed closing into another state",
        buyer,
        "round.closed",
        open_round,
        state="revealing",
        reveal_deadline_ms=at + 5,
        signature=close,
    )
    yield step(
        "a signed closing, already settled",
        buyer,
        "round.closed",
        open_round,
        state="settled",
        reveal_deadline_ms=None,
        signature=close,
    )
    yield step(
        "a signed closing with a field more",
        buyer,
        "round.closed",
        open_round,
        state="closed",
        reveal_deadline_ms=None,
        signature=close,
        why="x",
    )
    stop = v.sign(buyer, "round.aborted", open_round, reason="x")
    gone = {"buyer_id": buyer, "paid_micro": 0, "refunded_micro": _MILLION, "fault": "x", "signature": stop}
    yield step(
        "a signed abort with part of the refund",
        buyer,
        "round.aborted",
        open_round,
        **{**gone, "refunded_micro": 5},
    )
    yield step(
        "a signed abort refunded twice",
        buyer,
        "round.aborted",
        open_round,
        **{**gone, "refunded_micro": 2 * _MILLION},
    )
    yield step(
        "a signed abort refunded to another", buyer, "round.aborted", open_round, **{**gone, "buyer_id": v.plain}
    )
    yield step("a signed abort that was paid", buyer, "round.aborted", open_round, **{**gone, "paid_micro": 5})
    yield step("an abort by an arbiter", v.arbiter, "round.aborted", open_round, **gone)
    over = v.sign(buyer, "round.aborted", waiting, reason="x")
    yield step(
        "a signed abort after the auction",
        buyer,
        "round.aborted",
        waiting,
        **{**gone, "refunded_micro": 3 * _MILLION, "signature": over},
    )
    yield step(
        "progress of an open round",
        buyer,
        "round.progress",
        open_round,
        model_accuracy=0.5,
        signature=v.sign(buyer, "round.progress", open_round, accuracy=0.5),
    )
    yield step(
        "progress beyond one",
        buyer,
        "round.progress",
        v.rounds["settled"],
        model_accuracy=5.0,
        signature=v.sign(buyer, "round.progress", v.rounds["settled"], accuracy=5.0),
    )
    yield step("progress by the operator", one, "round.progress", v.rounds["settled"], model_accuracy=0.1)
    # Deliveries.
    claimed = [made.actor for made in v.of("delivery.claimed", waiting)]
    judged = [made.fields()["seller_id"] for made in v.of("delivery.judged", waiting)]
    disputed = v.of("dispute.opened", waiting)[0].actor
    silent = next(
        made.fields()["seller_id"]
        for made in v.of("award.made", waiting)
        if made.fields()["seller_id"] not in claimed
    )
    unjudged = next(who for who in claimed if who not in judged)
    undisputed = next(who for who in judged if who != disputed)
    late = v.of("round.cleared", waiting)[0].fields()
    word = v.sign(silent, "delivery.claimed", waiting, update_sha256="ab" * 32, key_sha256=None)
    claim = {"update_sha256": "ab" * 32, "signature": word}
    yield step(
        "a signed claim after its deadline",
        silent,
        "delivery.claimed",
        waiting,
        when=late["delivery_deadline_ms"] + 1,
        **claim,
    )
    yield step("a signed claim put forward by the operator", one, "delivery.claimed", waiting, **claim)
    yield step(
        "a signed claim with a key added", silent, "delivery.claimed", waiting, **claim, key_sha256="ab" * 32
    )
    nobody = v.sign(first, "delivery.claimed", open_round, update_sha256="ab" * 32, key_sha256=None)
    yield step(
        "a signed claim of a round without auction",
        first,
        "delivery.claimed",
        open_round,
        update_sha256="ab" * 32,
        signature=nobody,
    )
    bad = {"seller_id": unjudged, "usable": False, "fault": "bad"}
    receipt = v.sign(buyer, "delivery.judged", waiting, seller_id=unjudged, fault="bad")
    yield step(
        "a signed rejection said to be usable",
        buyer,
        "delivery.judged",
        waiting,
        **{**bad, "usable": True},
        signature=receipt,
    )
    yield step(
        "a signed rejection after review",
        buyer,
        "delivery.judged",
        waiting,
        when=late["review_deadline_ms"] + 1,
        **bad,
        signature=receipt,
    )
    yield step("a rejection by the arbiter", v.arbiter, "delivery.judged", waiting, **bad)
    unseen = v.sign(buyer, "delivery.judged", waiting, seller_id=silent, fault="bad")
    yield step(
        "a signed rejection of what never came",
        buyer,
        "delivery.judged",
        waiting,
        seller_id=silent,
        usable=False,
        fault="bad",
        signature=unseen,
    )
    yield step(
        "a second, signed receipt",
        buyer,
        "delivery.judged",
        waiting,
        seller_id=undisputed,
        usable=True,
        fault=None,
        signature=v.sign(buyer, "delivery.judged", waiting, seller_id=undisputed, fault=None),
    )
    yield step(
        "a signed dispute of what was not rejected",
        unjudged,
        "dispute.opened",
        waiting,
        seller_id=unjudged,
        dispute="no",
        signature=v.sign(unjudged, "dispute.opened", waiting, reason="no"),
    )
    yield step(
        "a signed dispute too late",
        undisputed,
        "dispute.opened",
        waiting,
        when=late["dispute_deadline_ms"] + 1,
        seller_id=undisputed,
        dispute="no",
        signature=v.sign(undisputed, "dispute.opened", waiting, reason="no"),
    )
    court = SigningKey.from_seed(b"\x41" * 32)
    friend = "arbiter-00000000000000aa"
    said = {"seller_id": disputed, "pays": False, "reason": "no"}
    ruling = {"seller_id": disputed, "ruling": False, "reason": "no"}
    ruling["signature"] = court.sign(statement_message("dispute.ruled", friend, waiting, said))
    yield (
        "a ruling signed by an arbiter of the operator's",
        [
            _party(at, one, friend, public_key=court.public, signs="everything"),
            entry(at, friend, "dispute.ruled", waiting, ruling),
        ],
    )
    yield step(
        "a signed ruling where nobody disputes",
        v.arbiter,
        "dispute.ruled",
        waiting,
        seller_id=undisputed,
        ruling=True,
        reason="no",
        signature=v.sign(v.arbiter, "dispute.ruled", waiting, seller_id=undisputed, pays=True, reason="no"),
    )
    yield step(
        "a signed ruling too late",
        v.arbiter,
        "dispute.ruled",
        waiting,
        when=late["ruling_deadline_ms"] + 1,
        **{**ruling, "signature": v.sign(v.arbiter, "dispute.ruled", waiting, **said)},
    )
    # Settlement.
    yield step("a round delivered that was not", "system", "round.delivered", waiting)
    yield step(
        "an award settled twice",
        "system",
        "award.settled",
        v.rounds["settled"],
        seller_id=first,
        paid_micro=5,
        charge="charged",
    )
    yield step(
        "a round settled twice",
        "system",
        "round.settled",
        v.rounds["settled"],
        buyer_id=buyer,
        paid_micro=0,
        refunded_micro=5,
        fault=None,
    )
    yield step(
        "an aborted round settled",
        "system",
        "round.settled",
        v.rounds["aborted"],
        buyer_id=buyer,
        paid_micro=0,
        refunded_micro=5,
        fault=None,
    )
    yield step("an auction held twice", "system", "round.cleared", waiting, **late)
    yield step(
        "an award more after the auction",
        "system",
        "award.made",
        waiting,
        seller_id=v.plain,
        epsilon=0.1,
        noise_multiplier=20.0,
        payment_micro=5,
    )
    for name, pays in (("everybody is paid though one was rejected", 750_000), ("nobody is paid", 0)):
        end = int(late["ruling_deadline_ms"]) + 1
        sold = [made.fields()["seller_id"] for made in v.of("award.made", waiting)]
        made = [
            entry(
                end, "system", "award.settled", waiting, {"seller_id": who, "paid_micro": pays, "charge": "charged"}
            )
            for who in sold
        ]
        refund = {
            "buyer_id": buyer,
            "paid_micro": 4 * pays,
            "refunded_micro": 3 * _MILLION - 4 * pays,
            "fault": None,
        }
        yield f"after all deadlines {name}", [*made, entry(end, "system", "round.settled", waiting, refund)]
    end = int(v.of("round.cleared", updates)[0].fields()["ruling_deadline_ms"]) + 1
    sold = [made.fields()["seller_id"] for made in v.of("award.made", updates)]
    without = [
        entry(
            end, "system", "award.settled", updates, {"seller_id": who, "paid_micro": 500_000, "charge": "charged"}
        )
        for who in sold
    ]
    refund = {"buyer_id": buyer, "paid_micro": 2 * _MILLION, "refunded_micro": 0, "fault": None}
    yield (
        "sealed updates paid without their keys",
        [*without, entry(end, "system", "round.settled", updates, refund)],
    )
    wrong = [one_._replace(details=canonical({**one_.fields(), "key": "00" * 32})) for one_ in without]
    yield "sealed updates paid with wrong keys", [*wrong, entry(end, "system", "round.settled", updates, refund)]


def _replays(v: Victim) -> Iterator[_Made]:
    """What a party signed once, put forward again when it says something else by now."""
    at = v.now_ms - 200_000
    bid = v.of("bid.placed", v.rounds["open"])[-2]
    again = bid._replace(at_ms=at, details=canonical({**bid.fields(), "replaces": True}))
    yield "an older bid put back over a newer one", [again._replace(key_hash=None, request_hash=None, answer=None)]
    for name, old in (
        ("an older report put back", v.of("round.progress", v.rounds["settled"])[-2]),
        ("an older key put back", v.of("party.key")[0]),
        ("a task published again", v.of("task.published")[-1]._replace(subject="task-00000000000000ab")),
        ("a round opened again", v.of("round.opened")[-1]._replace(subject="round-00000000000000ab")),
        ("a claim repeated", v.of("delivery.claimed", v.rounds["waiting"])[0]),
        ("a receipt repeated", v.of("delivery.judged", v.rounds["waiting"])[0]),
        ("a dispute repeated", v.of("dispute.opened", v.rounds["waiting"])[0]),
        ("a ruling repeated", v.of("dispute.ruled")[0]),
        ("an abort repeated", v.of("round.aborted")[0]),
        ("an attestation repeated", v.of("party.dataset")[0]),
        ("a request repeated", v.of("money.requested")[0]),
    ):
        yield name, [old._replace(at_ms=at, key_hash=None, request_hash=None, answer=None)]


def _shapes(v: Victim) -> Iterator[_Made]:
    """Entries whose form is not the broker's."""
    at, one, first = v.now_ms - 200_000, v.market.operator.party_id, v.market.sellers[0].party_id
    plain = Entry(0, at, one, "money.deposit", v.plain, canonical({"amount_micro": 5, "reference": "bank 7"}))
    yield (
        "a name twice in one entry",
        [plain._replace(details='{"amount_micro":5,"amount_micro":500,"reference":"b"}')],
    )
    yield "spaces in an entry", [plain._replace(details='{"amount_micro": 5, "reference": "b"}')]
    yield "names out of order", [plain._replace(details='{"reference":"b","amount_micro":5}')]
    yield "details that are a list", [plain._replace(details="[5]")]
    yield "details that are no number", [plain._replace(details='{"amount_micro":NaN,"reference":"b"}')]
    yield "a number without end", [plain._replace(details='{"amount_micro":1e999,"reference":"b"}')]
    yield "a number spelled otherwise", [plain._replace(details='{"amount_micro":5e0,"reference":"b"}')]
    yield "before the last entry", [plain._replace(at_ms=v.log[-1].at_ms - 1)]
    yield "older than the witness's look", [plain._replace(at_ms=v.log[-1].at_ms)]
    yield "an hour ahead of the auditor", [plain._replace(at_ms=v.now_ms + 3_600_000)]
    yield "a kind in capitals", [plain._replace(kind="Money.Deposit")]
    yield "an actor with a space", [plain._replace(actor=one + " ")]
    yield "an idempotency key without a request", [plain._replace(key_hash="ab" * 32)]
    yield "an idempotency key used before", [plain._replace(key_hash=v.log[5].key_hash, request_hash="ab" * 32)]
    yield "an answer that is no JSON", [plain._replace(key_hash="ab" * 32, request_hash="cd" * 32, answer="{")]
    yield "an alert by a seller", [entry(at, first, "alert", v.rounds["open"], {"fault": "the market is broken"})]
    yield "an alert with money", [entry(at, "system", "alert", v.rounds["open"], {"fault": "x", "amount_micro": 5})]


def _own_acts(v: Victim) -> Iterator[_Made]:
    """No forgeries: what operators may do in the open, and parties' own words. They show that checks tell apart."""
    at, one, two = v.now_ms - 200_000, v.market.operator.party_id, v.second
    buyer, first, second = v.market.buyer.party_id, v.market.sellers[0].party_id, v.market.sellers[1].party_id
    booking = {"amount_micro": 8 * _MILLION, "reference": "bank 6", "proposal": v.booked["waiting"]}
    yield "the second operator approves", [entry(at, two, "money.deposit", buyer, booking)]
    words = {"proposal": v.booked["waiting"], "reference": "no"}
    yield "the proposer takes it back", [entry(at, one, "money.declined", buyer, words)]
    undo = {"amount_micro": 1000, "reference": "came back", "undoes": v.booked["paid out"]}
    yield "a payout that came back is undone", [entry(at, one, "money.deposit", v.plain, undo)]
    paid = {"amount_micro": 1000, "reference": "bank 9", "request": v.of("money.requested", first)[-1].seq}
    yield "a request is paid", [entry(at, one, "money.withdraw", first, paid)]
    yield (
        "money of a party that signs nothing",
        [entry(at, one, "money.withdraw", v.plain, {"amount_micro": 5, "reference": "b"})],
    )
    yield (
        "a buyer without a key asks",
        [entry(at, v.plain, "money.requested", v.plain, {"amount_micro": 5, "nonce": None})],
    )
    yield "a webhook of one's own", [entry(at, buyer, "webhook.set", buyer, {"url": "https://lab.example/2"})]
    yield "a webhook ended", [entry(at, buyer, "webhook.set", buyer, {"url": None})]
    yield "a session of one's own", [entry(at, buyer, "session.ended", buyer, {"session": "cc" * 16})]
    signed = v.market.keys[second].sign(key_message(second, OTHER_KEY.public, "bids"))
    change = {"public_key": OTHER_KEY.public, "signs": "bids", "signature": signed}
    yield "a key changed by its owner", [entry(at, second, "party.key", second, change)]
    offer = offer_fields(Offer(0.4, 1.0))
    committed = commitment(v.rounds["open"], second, offer, "99" * 16)
    mine = v.market.keys[second].sign(bid_message(v.rounds["open"], second, committed))
    bid = {**offer, "nonce": "99" * 16, "commitment": committed, "replaces": False, "signature": mine}
    yield "a bid of one's own", [entry(at, second, "bid.placed", v.rounds["open"], bid)]
    yield (
        "the broker notes that a round's deadlines have passed",
        [entry(at, "system", "round.delivered", v.rounds["sealed"], {})],
    )
    answered = entry(at, one, "money.deposit", v.plain, {"amount_micro": 5, "reference": "bank 7"})
    lie = answered._replace(key_hash="ab" * 32, request_hash="cd" * 32, answer='{"balance_micro":999}')
    yield "an operator's booking with a wrong answer to itself", [lie]
    yield "nothing at all", []
    yield "a third operator", [_party(at, one, "operator-00000000000000aa")]


# ---- the verdict ----------------------------------------------------------------------------------------------


def all_attempts(v: Victim) -> list[Attempt]:
    """The whole campaign."""
    return [*sql_attempts(), *rechained_attempts(v), *history_attempts(v), *appended_attempts(v)]


def run_attempt(v: Victim, attempt: Attempt, folder: Path) -> Outcome | None:
    """What becomes of an attempt; None where SQLite itself refuses it, or nothing is changed."""
    copy = folder / "copy.db"
    if attempt.change is None:
        try:
            changed = edited(v.file, copy, *attempt.statements)
        except sqlite3.Error:
            return None
        if changed == 0 and attempt.kind == "tables":
            return None
    else:
        try:
            rewritten(v.file, copy, attempt.change, attempt.names)
        except sqlite3.IntegrityError:
            return None
        if attempt.key is not None:
            resigned(copy, attempt.key)
    new = entries_of(copy)[len(v.log) :] if attempt.kind == "appended" else []
    ahead = "ahead" in attempt.name
    now = v.now_ms if ahead else max([v.now_ms, *(one.at_ms for one in new)])
    seen = [v.heads[attempt.witnessed]]
    try:
        # Sealed keys can be compared with their digests only where the broker's key is.
        own = LOG_KEY if "wrapped" in attempt.name else None
        verdict = checked(copy, now_ms=now, witnessed=seen, public_key=LOG_KEY.public, key=own)
    except PrivmarketError as error:
        return Outcome("found", f"refused: {error.message}")
    if verdict.differences:
        return Outcome("found", verdict.differences[0][:300])
    if attempt.own:
        return Outcome("own", "no forgery, and no difference was reported")
    if _tables(copy) == _tables(v.file) and not any(one.kind in _BESIDE_TABLES for one in new):
        return Outcome("without effect", "the tables that parties live by are the same")
    return Outcome("missed", "no difference was reported")


def _tables(file: Path) -> dict[str, list[Any]]:
    """All rows that parties live by, and the kind, so that text is not taken for a number."""
    found = {}
    with closing(sqlite3.connect(file)) as connection:
        for name in (*(table.name for table in PROJECTIONS), "names", "sealed_keys"):
            try:
                rows = connection.execute(f"SELECT * FROM {name}").fetchall()
            except sqlite3.Error:
                rows = [("no table",)]
            found[name] = sorted(rows, key=repr)
    return found


def main() -> None:
    """Runs the campaign and writes what became of each attempt; goes on where an earlier run stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--postgres", action="store_true", help="also change the schema of a PostgreSQL database")
    arguments = parser.parse_args()
    code = broker_code()
    rows: list[dict[str, str]] = []
    if arguments.out.exists():
        before = json.loads(arguments.out.read_text())
        rows = before["edits"] if before["code"] == code else []
    done = {(row["class"], row["edit"]) for row in rows}
    with tempfile.TemporaryDirectory(prefix="privmarket-outsider-", dir=memory_folder()) as name:
        victim = make_victim(Path(name))
        for attempt in all_attempts(victim):
            if (attempt.kind, attempt.name) in done:
                continue
            outcome = run_attempt(victim, attempt, Path(name))
            if outcome is None:
                outcome = Outcome("refused", "by SQLite, or it changed no row")
            if attempt.own and outcome.result == "found":
                outcome = Outcome("false alarm", outcome.what)
            rows.append({"class": attempt.kind, "edit": attempt.name, **outcome._asdict()})
            if outcome.result in ("missed", "false alarm"):
                print(f"{outcome.result}: {attempt.kind}: {attempt.name}: {outcome.what}", file=sys.stderr)
            if len(rows) % 50 == 0:
                _write(arguments.out, code, rows)
    if arguments.postgres:
        rows += [row for row in _on_postgresql() if (row["class"], row["edit"]) not in done]
    _write(arguments.out, code, rows)
    for kind in CLASSES:
        counts = Counter(row["result"] for row in rows if row["class"] == kind)
        print(f"{kind}: {', '.join(f'{n} {result}' for result, n in sorted(counts.items()))}", file=sys.stderr)
    sys.exit(1 if any(row["result"] in ("missed", "false alarm") for row in rows) else 0)


def _on_postgresql() -> Iterator[dict[str, str]]:
    """What becomes of the changes of a PostgreSQL database's schema."""
    with postgres(durable=False) as server:
        for name, statements in _POSTGRESQL.items():
            outcome = run_on_postgresql(server, statements)
            yield {"class": "schema", "edit": f"PostgreSQL: {name}", **outcome._asdict()}


def _write(out: Path, code: str, rows: list[dict[str, str]]) -> None:
    counts = {kind: Counter(row["result"] for row in rows if row["class"] == kind) for kind in CLASSES}
    report = {"code": code, "counts": counts, "edits": rows}
    write_atomically(out, json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
