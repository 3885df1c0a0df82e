"""What each role may see of the log: its lines, and proofs about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, or_, select

from privmarket.broker import (
    _answers as answers,
    _lifecycle as lifecycle,
    _log as the_log,
    _merkle as merkle,
    _signatures as _signatures,
    _sql as sql,
)
from privmarket.broker._answers import Page
from privmarket.broker._database import Transaction
from privmarket.broker._errors import BrokerError, ConflictError, ForbiddenError, NotFoundError
from privmarket.broker._parties import Actor, require
from privmarket.broker._schema import log, round_and_task, rounds
from privmarket.broker._signatures import Cosignature, Head, SigningKey
from privmarket.broker._views import page, visible_round

_LOG = (log.c.seq, log.c.at_ms, log.c.actor, log.c.kind, log.c.subject, log.c.details, log.c.hash)


def log_list(
    connection: Connection, actor: Actor, kind: str | None, about: str | None, after: str | None, limit: int
) -> Page[answers.LogLine]:
    """The log for operators and auditors, newest first: of one kind, or about one party, task or round."""
    require(actor, "operator", "auditor")
    query = select(*_LOG)
    if kind is not None:
        query = query.where(log.c.kind == kind)
    if about is not None:
        query = query.where(or_(log.c.subject == about, log.c.actor == about))
    found = page(answers.LogLine, connection, query, log.c.seq, None, after, limit)
    bid_on = {item["subject"] for item in found["items"] if item["kind"].startswith("bid.")}
    sealed = select(rounds.c.id).where(rounds.c.id.in_(bid_on), rounds.c.state.in_(lifecycle.TAKING_BIDS))
    hidden = set(connection.execute(sealed).scalars()) if bid_on else set()
    for item in found["items"]:
        if item["kind"].startswith("bid.") and item["subject"] in hidden:
            item["details"] = "sealed until the auction"
    return found


def proof(connection: Connection, actor: Actor, seq: int, size: int | None) -> answers.Inclusion:
    """An entry that concerns the caller, and the hashes that lead from it to the root over the first `size`."""
    head = the_log.read_head(connection)
    size = size or head.size
    if not 1 <= seq <= size <= head.size:
        raise BrokerError(f"entry {seq} of the first {size}", f"the log has {head.size} entries")
    entry = the_log.entry(connection, seq)
    if actor.role not in ("operator", "auditor") and actor.party_id not in (entry.actor, entry.subject):
        details = entry.fields()
        if actor.party_id not in (details.get("seller_id"), details.get("buyer_id")):
            raise NotFoundError(f"no entry {seq} that concerns you", "your bids and statement name their entries")
    sealed = entry.kind.startswith("bid.") and entry.actor != actor.party_id
    if sealed and visible_round(connection, actor, entry.subject).state in lifecycle.TAKING_BIDS:
        raise NotFoundError(f"entry {seq} is sealed until the auction", "ask again later")
    path = merkle.inclusion_proof(the_log.Stored(connection), seq - 1, size)
    return {"entry": list(entry), "size": size, "path": [one.hex() for one in path]}


def consistency(connection: Connection, old: int, new: int | None) -> answers.Consistency:
    """The hashes that show that the log of `new` entries begins with the log of `old`. For anybody."""
    head = the_log.read_head(connection)
    new = new or head.size
    if not 1 <= old <= new <= head.size:
        raise BrokerError(f"from {old} to {new} entries", f"the log has {head.size}")
    path = merkle.consistency_proof(the_log.Stored(connection), old, new)
    return {"old": old, "new": new, "path": [one.hex() for one in path]}


def own_entries(connection: Connection, actor: Actor, after: str | None, limit: int) -> Page[answers.LogLine]:
    """The entries that were made in the caller's name, newest first."""
    query = select(*_LOG).where(log.c.actor == actor.party_id)
    return page(answers.LogLine, connection, query, log.c.seq, None, after, limit)


_ENTRIES = (
    "SELECT seq FROM log WHERE (subject = ? OR (subject = ? AND kind = 'task.published')) AND seq > ? ORDER BY seq"
)
_BIDDERS = "SELECT b.seller_id, p.public_key FROM bids b JOIN parties p ON p.id = b.seller_id WHERE b.round_id = ?"


def round_entries(
    connection: Connection, actor: Actor, round_id: str, after: str | None, limit: int
) -> answers.RoundEntries:
    """The task and all entries of a round that has ended, oldest first, each with its proof.

    Bids of others are shown, under pseudonyms, so that whoever took part can run the auction again.
    """
    round_, task = round_and_task(connection, round_id)
    keys = {str(seller): key for seller, key in sql.run(connection, _BIDDERS, round_id)}
    insiders = {task.buyer_id, task.arbiter_id, *keys}
    if actor.role not in ("operator", "auditor") and actor.party_id not in insiders:
        raise NotFoundError(f"no round {round_id} that you took part in", "GET /v1/tasks lists what is offered")
    if round_.state not in ("settled", "aborted"):
        raise ConflictError(f"round {round_id} is {round_.state}", "its entries are shown once it has ended")
    head = the_log.read_head(connection)
    start = int(after) if after is not None and after.isdigit() else 0
    found = sql.run(connection, f"{_ENTRIES} LIMIT {limit + 1}", round_id, task.id, start)
    hashes = the_log.Stored(connection)
    items: list[answers.ProvenEntry] = []
    for (seq,) in found[:limit]:
        path = merkle.inclusion_proof(hashes, seq - 1, head.size)
        items.append({"entry": list(the_log.entry(connection, seq)), "path": [one.hex() for one in path]})
    following = str(found[limit - 1][0]) if len(found) > limit else None
    return {"head": head.header(), "public_keys": keys, "items": items, "next": following}


# ---- heads ----------------------------------------------------------------------------------------------------

_ROTATIONS = "SELECT details FROM log WHERE kind = 'log.key' ORDER BY seq"


def newest(connection: Connection, key: SigningKey | None, now_ms: int) -> answers.LogHead:
    """The newest head, the signed time at which it was shown, and how the signing key was handed on."""
    head = the_log.read_head(connection)
    announced = [json.loads(details) for (details,) in sql.run(connection, _ROTATIONS)]
    steps: list[answers.KeyStep] = []
    for before, after in pairwise(announced):
        signature = str(after.get("signature", ""))
        steps.append({"old": before["public_key"], "new": after["public_key"], "signature": signature})
    return {
        "log_id": head.log_id,
        "size": head.size,
        "root": head.root,
        "at_ms": head.at_ms,
        "signature": head.signature,
        "public_key": key.public if key else "",
        "now_ms": now_ms,
        "now_signature": key.sign(head.shown_message(now_ms)) if key else "",
        "keys": steps,
        "witnesses": witnesses(connection),
    }


_COSIGNATURES = (
    "SELECT witness, public_key, size, root, at_ms, seconds, signature FROM cosignatures ORDER BY size DESC"
)


def _cosignatures(connection: Connection) -> list[Cosignature]:
    log_id = the_log.read_head(connection).log_id
    rows = sql.run(connection, _COSIGNATURES)
    return [Cosignature(row[0], row[1], Head(log_id, row[2], row[3], row[4]), row[5], row[6]) for row in rows]


def witnesses(connection: Connection) -> list[answers.Witnessed]:
    """Each witness with the head that it cosigned last, the newest head first."""
    return [
        {"witness": one.witness, "size": one.head.size, "seconds": one.seconds, "public_key": one.public_key}
        for one in _cosignatures(connection)
    ]


def checkpoint(connection: Connection) -> str:
    """The newest head as a signed note, with the cosignatures that are over this very head."""
    head = the_log.read_head(connection)
    key = the_log.announced_key(connection)
    if not head.signature:
        raise ConflictError("the log is not signed", "start the broker with a key")
    own = [one for one in _cosignatures(connection) if one.head.text() == head.text()]
    return _signatures.checkpoint(head, key, own)


def keep_cosignature(tx: Transaction, actor: Actor, fields: Mapping[str, Any]) -> answers.Witnessed:
    """Keeps a witness's newest cosignature; the name belongs to the key that used it first."""
    require(actor, "auditor")
    connection = tx.connection
    newest_head = the_log.read_head(connection)
    head = Head(newest_head.log_id, fields["size"], fields["root"], fields["at_ms"])
    made = Cosignature(fields["witness"], fields["public_key"], head, fields["seconds"], fields["signature"])
    if not made.is_valid():
        raise ForbiddenError("the cosignature is not valid", "sign the checkpoint as C2SP describes it")
    if head.size > newest_head.size:
        raise BrokerError(f"a head of {head.size} entries", f"the log has {newest_head.size}")
    path = merkle.consistency_proof(the_log.Stored(connection), head.size, newest_head.size)
    if not merkle.extends(
        head.size, bytes.fromhex(head.root), newest_head.size, bytes.fromhex(newest_head.root), path
    ):
        raise ConflictError("this log never had that head", "keep it as evidence, and tell other parties")
    known = sql.run(connection, "SELECT public_key FROM cosignatures WHERE witness = ?", made.witness)
    if known and known[0][0] != made.public_key:
        raise ForbiddenError(f"{made.witness} signs with another key", "choose another name")
    sql.run(connection, "DELETE FROM cosignatures WHERE witness = ?", made.witness)
    columns = "witness, size, root, at_ms, public_key, seconds, signature"
    values = (made.witness, head.size, head.root, head.at_ms, made.public_key, made.seconds, made.signature)
    sql.run(connection, f"INSERT INTO cosignatures ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", *values)
    return {"witness": made.witness, "size": head.size, "seconds": made.seconds, "public_key": made.public_key}


def statement_of_trust(connection: Connection) -> str:
    """One line for pages: the head of the log, and who has witnessed it."""
    head = the_log.read_head(connection)
    names = [f"{one['witness']} (entry {one['size']})" for one in witnesses(connection)]
    return f"log head {head.size}, " + (f"witnessed by {', '.join(names[:3])}" if names else "not witnessed")
