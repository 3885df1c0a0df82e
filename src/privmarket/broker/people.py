"""Who takes part: operators, buyers and sellers, and the tokens they act with."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, update

from privmarket.broker import ledger, sql
from privmarket.broker.database import Transaction
from privmarket.broker.entropy import Entropy, identifier
from privmarket.broker.errors import BrokerError, ForbiddenError, NotFoundError, UnauthenticatedError
from privmarket.broker.schema import parties, tokens
from privmarket.privacy.wallet import Wallet

ROLES = ("operator", "buyer", "seller")
SCOPES = ("full", "read")
MONEY_LIMIT_MICRO = 10**15
_CALLERS = (
    "SELECT t.token_hash, p.id, p.role, t.scope, t.id FROM tokens t JOIN parties p ON p.id = t.party_id "
    "WHERE t.token_hash IN (?*) AND t.revoked_ms IS NULL"
)


@dataclass(frozen=True)
class Actor:
    """Who is asking. `scope` is "read" for a token that may look but not touch."""

    party_id: str
    role: str
    scope: str = "full"
    token_id: str = ""


ANONYMOUS = Actor("anonymous", "anonymous")
SYSTEM = Actor("system", "operator")


def hash_token(token: str) -> str:
    """What is stored of a token. It holds 256 random bits, so a plain hash cannot be searched backwards."""
    return hashlib.sha256(token.encode()).hexdigest()


def bearer_token(authorization: str | None) -> str:
    """The token in an Authorization header."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise UnauthenticatedError("no token", "send Authorization: Bearer TOKEN")
    return token


def actors_of(connection: Connection, token_hashes: Sequence[str]) -> dict[str, Actor]:
    """Token hash → the party behind it, for tokens that are known and not revoked."""
    return {row[0]: Actor(*row[1:]) for row in sql.run(connection, _CALLERS, list(token_hashes))}


def authenticate(connection: Connection, token: str) -> Actor:
    """The party behind a token that is known and not revoked."""
    hashed = hash_token(token)
    actor = actors_of(connection, [hashed]).get(hashed)
    if actor is None:
        raise unknown_token()
    return actor


def unknown_token() -> UnauthenticatedError:
    """What somebody with a wrong token hears."""
    return UnauthenticatedError("unknown or revoked token", "send Authorization: Bearer TOKEN")


def require_full_scope(actor: Actor) -> None:
    """Refuses a write with a token that may only read."""
    if actor.scope != "full":
        raise ForbiddenError("this token may only read", "use a token of scope full")


def require(actor: Actor, *roles: str) -> None:
    """Refuses a caller whose role may not do this."""
    if actor.role not in roles:
        raise ForbiddenError(f"{actor.role} may not do this", f"it takes the role {' or '.join(roles)}")


def register(tx: Transaction, entropy: Entropy, fields: dict[str, Any]) -> dict[str, Any]:
    """A new party; a seller brings its lifetime cap (ε, δ)."""
    role, name = fields["role"], str(fields["name"]).strip()
    if role not in ROLES:
        raise BrokerError(f"role {role!r} does not exist", f"choose one of: {', '.join(ROLES)}")
    if not name or len(name) > 80 or "\x00" in name:
        raise BrokerError(f"a name of {len(name)} characters", "give 1 to 80 printable characters")
    cap, delta = fields.get("cap_epsilon"), fields.get("delta")
    if role == "seller":
        if cap is None or delta is None or not math.isfinite(cap):
            raise BrokerError("a seller without a lifetime wallet", "give cap_epsilon and delta")
        Wallet(cap, delta)  # refuses a cap that leaves no room
    party_id = identifier(entropy, role)
    row = {"id": party_id, "role": role, "name": name, "created_ms": tx.now_ms, "measure": "open"}
    wallet = {"cap_epsilon": cap, "delta": delta} if role == "seller" else {"cap_epsilon": None, "delta": None}
    tx.connection.execute(insert(parties).values(**row, **wallet))
    tx.log("party.registered", party_id, role=role, name=name, **wallet)
    return {"id": party_id, "role": role, "name": name, **wallet}


def mint(tx: Transaction, entropy: Entropy, party_id: str, scope: str) -> dict[str, Any]:
    """A new token. The plain text is returned once and stored nowhere."""
    if scope not in SCOPES:
        raise BrokerError(f"scope {scope!r} does not exist", f"choose one of: {', '.join(SCOPES)}")
    token, token_id = "pm_" + entropy(32).hex(), identifier(entropy, "token")
    row = {"id": token_id, "party_id": party_id, "token_hash": hash_token(token), "scope": scope}
    tx.connection.execute(insert(tokens).values(**row, created_ms=tx.now_ms))
    tx.log("token.minted", party_id, token=token_id, scope=scope)
    return {"token": token, "token_id": token_id, "scope": scope}


def revoke(tx: Transaction, actor: Actor, token_id: str) -> dict[str, Any]:
    """Ends a token of one's own; an operator may end anybody's."""
    row = tx.connection.execute(select(tokens).where(tokens.c.id == token_id)).first()
    if row is None or (row.party_id != actor.party_id and actor.role != "operator"):
        raise NotFoundError(f"no token {token_id}", "GET /v1/me/tokens lists yours")
    if row.revoked_ms is None:
        tx.connection.execute(update(tokens).where(tokens.c.id == token_id).values(revoked_ms=tx.now_ms))
        tx.log("token.revoked", row.party_id, token=token_id)
    return {"token_id": token_id, "revoked": True}


def move_money(tx: Transaction, kind: str, party_id: str, amount_micro: int) -> dict[str, Any]:
    """A deposit from outside, or a withdrawal to it. Operators only: they see the bank."""
    if not 0 < amount_micro <= MONEY_LIMIT_MICRO:
        raise BrokerError(f"amount of {amount_micro} µ", f"give 1 to {MONEY_LIMIT_MICRO} micro-units")
    role = tx.connection.execute(select(parties.c.role).where(parties.c.id == party_id)).scalar()
    if role is None:
        raise NotFoundError(f"no party {party_id}", "GET /v1/parties lists them")
    account = ledger.party(party_id)
    source, target = (ledger.WORLD, account) if kind == "deposit" else (account, ledger.WORLD)
    ledger.transfer(tx, kind, party_id, source, {target: amount_micro})
    tx.log(f"money.{kind}", party_id, amount_micro=amount_micro)
    return {"party_id": party_id, "balance_micro": ledger.balance(tx.connection, account)}
