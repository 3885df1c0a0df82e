"""Parties: operators, buyers, sellers, arbiters and auditors, with their tokens and keys.

A token is 32 random bytes; only its hash is stored. Callers may make their token themselves and send its hash, so
that no secret is sent and a registration can be repeated safely. Names are not in the log, which has a salted hash
of each, so an operator can erase a name without breaking the log.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from privmarket.broker import _sql as sql
from privmarket.broker._answers import (
    DatasetAnswer,
    Erased,
    KeyAnswer,
    Registered,
    Revoked,
    Suspended,
    TokenAnswer,
)
from privmarket.broker._database import Transaction
from privmarket.broker._errors import (
    BrokerError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    UnauthenticatedError,
)
from privmarket.broker._log import digest
from privmarket.broker._shapes import WalletForm, checked
from privmarket.broker._signatures import dataset_message, is_public_key, is_signed, key_message
from privmarket.broker._statements import SIGNS
from privmarket.privacy._wallet import Wallet

Entropy = Callable[[int], bytes]
ROLES = ("operator", "buyer", "seller", "arbiter", "auditor")
SCOPES = ("full", "read")
_CALLERS = (
    "SELECT t.token_hash, p.id, p.role, t.scope, t.id, p.suspended IS NOT NULL FROM tokens t "
    "JOIN parties p ON p.id = t.party_id WHERE t.token_hash IN (?*) AND t.revoked_ms IS NULL "
    "AND (t.expires_ms IS NULL OR t.expires_ms > ?)"
)
_HASH = re.compile(r"[0-9a-f]{64}")


class Actor(NamedTuple):
    """Who is asking. `scope` is "read" for a token that may only read."""

    party_id: str
    role: str
    scope: str = "full"
    token_id: str = ""
    suspended: bool = False


ANONYMOUS = Actor("anonymous", "anonymous")
SYSTEM = Actor("system", "operator")


def identifier(entropy: Entropy, kind: str) -> str:
    """An identifier that cannot be guessed and begins with the kind of thing that it names."""
    return f"{kind}-{entropy(8).hex()}"


def hash_token(token: str) -> str:
    """The stored hash of a token. A token has 256 random bits, so a plain hash cannot be inverted."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def bearer_token(authorization: str | None) -> str:
    """The token in an Authorization header."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise UnauthenticatedError("no token", "send Authorization: Bearer TOKEN")
    return token


def actors_of(connection: Connection, token_hashes: Sequence[str], now_ms: int) -> dict[str, Actor]:
    """Token hash → the party behind it, for tokens that are known and neither revoked nor expired."""
    rows = sql.run(connection, _CALLERS, list(token_hashes), now_ms)
    return {row[0]: Actor(row[1], row[2], row[3], row[4], bool(row[5])) for row in rows}


def authenticate(connection: Connection, token: str, now_ms: int) -> Actor:
    """The party behind a token that is known and neither revoked nor expired."""
    hashed = hash_token(token)
    actor = actors_of(connection, [hashed], now_ms).get(hashed)
    if actor is None:
        raise unknown_token()
    return actor


def by_token_id(connection: Connection, token_id: str, now_ms: int) -> Actor:
    """The party behind the token with this id, for a session that began with it."""
    rows = sql.run(connection, "SELECT token_hash FROM tokens WHERE id = ?", token_id)
    found = actors_of(connection, [row[0] for row in rows], now_ms) if rows else {}
    if not found:
        raise unknown_token()
    return next(iter(found.values()))


def unknown_token() -> UnauthenticatedError:
    """The error for a missing, unknown or revoked token."""
    return UnauthenticatedError("unknown, expired or revoked token", "send Authorization: Bearer TOKEN")


def require_full_scope(actor: Actor, *, even_suspended: bool = False) -> None:
    """Refuses a write with a token that may only read, or by somebody who is suspended.

    `even_suspended`: a suspended party may finish rounds that it is in, so that an operator cannot stop one side of
    a sale.
    """
    if actor.scope != "full":
        raise ForbiddenError("this token may only read", "use a token of scope full")
    if actor.suspended and not even_suspended:
        raise ForbiddenError("this account is suspended", "ask the operator why; rounds that you are in go on")


def require(actor: Actor, *roles: str) -> None:
    """Refuses a role that may not do this."""
    if actor.role not in roles:
        raise ForbiddenError(f"a {actor.role} may not do this", f"it needs a {' or a '.join(roles)}")


def role_of(connection: Connection, party_id: str) -> str:
    """A party's role; raises `NotFoundError` if there is no such party."""
    rows = sql.run(connection, "SELECT role FROM parties WHERE id = ?", party_id)
    if not rows:
        raise NotFoundError(f"no party {party_id}", "GET /v1/parties lists them")
    return str(rows[0][0])


def name_hash(party_id: str, name: str, salt: str) -> str:
    """The salted hash of a name, which the log holds instead of the name."""
    return digest([party_id, name, salt])


def register(
    tx: Transaction, entropy: Entropy, fields: Mapping[str, object], token_hash: str | None = None
) -> Registered:
    """A new party with its first token; sellers bring a lifetime wallet, and anybody may bring a key to sign
    with."""
    role, name = str(fields["role"]), str(fields["name"]).strip()
    if role not in ROLES:
        raise BrokerError(f"unknown role {role!r}", f"choose one of: {', '.join(ROLES)}")
    if not 0 < len(name) <= 80 or not name.isprintable():
        raise BrokerError(
            "a name of the wrong length, or with characters that do not print", "give 1 to 80 letters"
        )
    cap, delta = _new_wallet(fields) if role == "seller" else (None, None)
    public_key = _checked_key(fields.get("public_key"))
    signs = _checked_signs(fields.get("signs"), public_key)
    party_id, salt = identifier(entropy, role), entropy(16).hex()
    sql.run(tx.connection, "INSERT INTO names (party_id, name, salt) VALUES (?, ?, ?)", party_id, name, salt)
    row = {"role": role, "cap_epsilon": cap, "delta": delta, "public_key": public_key, "signs": signs}
    tx.log("party.registered", party_id, name_hash=name_hash(party_id, name, salt), **row)
    token = mint(tx, entropy, party_id, "full", token_hash=token_hash)
    made: Registered = {
        "role": role,
        "name": name,
        "cap_epsilon": cap,
        "delta": delta,
        "public_key": public_key,
        "signs": signs,
        **token,
    }
    return made


def _new_wallet(fields: Mapping[str, object]) -> tuple[float, float]:
    """The cap on ε of a new wallet, and its δ."""
    cap, delta = fields.get("cap_epsilon"), fields.get("delta")
    if not isinstance(cap, int | float) or not isinstance(delta, int | float):
        raise BrokerError("a seller without a wallet", "give cap_epsilon and delta")
    plan = checked(WalletForm, {"cap_epsilon": cap, "delta": delta})
    Wallet(cap_epsilon=plan.cap_epsilon, delta=plan.delta)  # refuses a cap or a δ that no wallet can have
    return plan.cap_epsilon, plan.delta


def _checked_key(public_key: object) -> str | None:
    if public_key is None:
        return None
    if not (isinstance(public_key, str) and is_public_key(public_key)):
        raise BrokerError("that is not an Ed25519 public key", "give its 64 hexadecimal digits, in lower case")
    return public_key


def _checked_signs(signs: object, public_key: str | None) -> str:
    """What a party signs: everything where it has a key, unless it chose to sign its bids only."""
    chosen = signs or ("nothing" if public_key is None else "everything")
    if chosen not in SIGNS or (chosen == "nothing") != (public_key is None):
        raise BrokerError(f"signs is {chosen!r}", "with a key: everything or bids; without one: nothing")
    return str(chosen)


def change_key(
    tx: Transaction, actor: Actor, public_key: str, signature: str | None, signs: str | None = None
) -> KeyAnswer:
    """Replaces a party's key and what it signs. The old key signs the change, if the party still has it.

    A change that the old key did not sign might have been made by the operator. Every check of the log therefore
    reports it as a difference, until the auditor has asked the party and accepts it.
    """
    _checked_key(public_key)
    query = "SELECT public_key, signs FROM parties WHERE id = ?"
    ((old, before),) = sql.run(tx.connection, query, actor.party_id)
    kept = None if old is None else str(before)
    words = {"public_key": public_key, "signs": _checked_signs(signs or kept, public_key)}
    if old is not None and signature is not None:
        if not is_signed(old, key_message(actor.party_id, public_key, words["signs"]), signature):
            raise ForbiddenError(
                "the change is not signed by your present key", "sign it; BrokerClient(key=…) does"
            )
        words["signature"] = signature
    tx.log("party.key", actor.party_id, **words)
    return {"id": actor.party_id, "public_key": public_key, "signs": words["signs"]}


def attest(tx: Transaction, actor: Actor, dataset_sha256: str, signature: str) -> DatasetAnswer:
    """Records, signed and once for all, which data set a seller sells from.

    Each data set belongs to one account only, so that one wallet counts all its sales.
    """
    query = "SELECT public_key, dataset_sha256 FROM parties WHERE id = ?"
    ((public_key, known),) = sql.run(tx.connection, query, actor.party_id)
    if public_key is None:
        raise ForbiddenError("an attestation is signed", "register a key first: privmarket seller init")
    if not is_signed(public_key, dataset_message(actor.party_id, dataset_sha256), signature):
        raise ForbiddenError("the attestation is not signed by your key", "sign it; BrokerClient(key=…) does")
    if known not in (None, dataset_sha256):
        raise ConflictError("this account attests another data set", "register another account for this data set")
    if known is None:
        if sql.run(tx.connection, "SELECT 1 FROM parties WHERE dataset_sha256 = ?", dataset_sha256):
            error = ConflictError(
                "another account attests this data set",
                "sell from that account, whose wallet counts for this data set",
            )
            error.code = "dataset-in-use"
            raise error
        tx.log("party.dataset", actor.party_id, dataset_sha256=dataset_sha256, signature=signature)
    return {"id": actor.party_id, "dataset_sha256": dataset_sha256}


def forget_idle(tx: Transaction, before_ms: int) -> list[str]:
    """Erases the names of buyers and sellers that hold no money and did nothing since; returns their ids."""
    query = "SELECT DISTINCT actor, subject FROM log WHERE at_ms >= ?"
    active = {name for row in sql.run(tx.connection, query, before_ms) for name in row}
    known = (
        "SELECT id FROM parties WHERE erased_ms IS NULL AND role IN ('buyer', 'seller') AND 0 = COALESCE("
        "(SELECT SUM(amount_micro) FROM postings WHERE account = 'party:' || parties.id), 0) ORDER BY id"
    )
    idle = [str(name) for (name,) in sql.run(tx.connection, known) if name not in active]
    for name in idle:
        erase(tx, name)
    return idle


def mint(
    tx: Transaction,
    entropy: Entropy,
    party_id: str,
    scope: str,
    *,
    token_hash: str | None = None,
    expires_ms: int | None = None,
) -> TokenAnswer:
    """A new token: the caller's own by its hash, or one made here, which the answer shows and nobody stores."""
    if scope not in SCOPES:
        raise BrokerError(f"unknown scope {scope!r}", f"choose one of: {', '.join(SCOPES)}")
    token = None
    if token_hash is None:
        token = "pm_" + entropy(32).hex()
        token_hash = hash_token(token)
    elif not _HASH.fullmatch(token_hash):
        raise BrokerError("token_sha256 is not a digest", "give 64 hexadecimal digits in lower case")
    if sql.run(tx.connection, "SELECT 1 FROM tokens WHERE token_hash = ?", token_hash):
        raise ConflictError("this token is in use", "make a fresh one of 32 random bytes")
    token_id = identifier(entropy, "token")
    tx.log("token.minted", party_id, id=token_id, token_hash=token_hash, scope=scope, expires_ms=expires_ms)
    made: TokenAnswer = {"id": party_id, "token_id": token_id, "scope": scope, "expires_ms": expires_ms}
    if token is not None:
        made["token"] = token
    return made


def revoke(tx: Transaction, actor: Actor, token_id: str) -> Revoked:
    """Ends a token of one's own; an operator may end anybody's."""
    rows = sql.run(tx.connection, "SELECT party_id, revoked_ms FROM tokens WHERE id = ?", token_id)
    if not rows or (rows[0][0] != actor.party_id and actor.role != "operator"):
        raise NotFoundError(f"no token {token_id}", "GET /v1/me/tokens lists yours")
    if rows[0][1] is None:
        tx.log("token.revoked", rows[0][0], id=token_id)
    return {"token_id": token_id, "revoked": True}


def revoke_all(tx: Transaction, party_id: str) -> None:
    """Ends every token of a party."""
    query = "SELECT id FROM tokens WHERE party_id = ? AND revoked_ms IS NULL ORDER BY id"
    for (token_id,) in sql.run(tx.connection, query, party_id):
        tx.log("token.revoked", party_id, id=token_id)


def suspend(tx: Transaction, party_id: str, reason: str | None) -> Suspended:
    """Stops a party from new business, for a reason that the log keeps; reason None ends the suspension.

    What it has begun it may finish: reveal, deliver, accept or reject, dispute, rule.
    """
    role_of(tx.connection, party_id)
    tx.log("party.suspended" if reason else "party.restored", party_id, suspended=reason or None)
    return {"id": party_id, "suspended": reason or None}


def erase(tx: Transaction, party_id: str) -> Erased:
    """Forgets a party's name; its pseudonym, money and privacy record stay."""
    role_of(tx.connection, party_id)
    sql.run(tx.connection, "DELETE FROM names WHERE party_id = ?", party_id)
    tx.log("party.erased", party_id)
    return {"id": party_id, "name": None}
