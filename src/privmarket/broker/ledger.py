"""Double entry in integer micro-units: every transfer sums to zero, and so does the ledger.

Accounts are names: `world` (money outside; its negative is what was deposited and not yet paid out),
`party:ID`, `escrow:ROUND`. Balances are sums of postings, never stored beside them.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, func, insert, select

from privmarket.broker.database import Transaction
from privmarket.broker.errors import InsufficientFundsError
from privmarket.broker.schema import postings, transfers

WORLD = "world"


def party(party_id: str) -> str:
    """The account of a buyer or seller."""
    return f"party:{party_id}"


def escrow(round_id: str) -> str:
    """The account that holds a round's budget while it runs."""
    return f"escrow:{round_id}"


def balance(connection: Connection, account: str) -> int:
    """Micro-units on one account."""
    total = select(func.coalesce(func.sum(postings.c.amount_micro), 0)).where(postings.c.account == account)
    return int(connection.execute(total).scalar_one())


def transfer(tx: Transaction, kind: str, subject: str, source: str, amounts: Mapping[str, int]) -> None:
    """Moves money from one account to others. `amounts`: account → micro-units ≥ 0."""
    total = sum(amounts.values())
    if any(amount < 0 for amount in amounts.values()):
        raise InsufficientFundsError(f"{kind} of {subject}: a negative amount", "amounts are at least 0")
    if source != WORLD and balance(tx.connection, source) < total:
        raise InsufficientFundsError(
            f"{source} holds {balance(tx.connection, source)} µ, {kind} needs {total} µ",
            "deposit money first",
        )
    made = tx.connection.execute(
        insert(transfers).values(kind=kind, subject=subject, created_ms=tx.now_ms).returning(transfers.c.id)
    )
    number = int(made.scalar_one())
    rows = [{"transfer_id": number, "account": source, "amount_micro": -total}]
    rows += [{"transfer_id": number, "account": a, "amount_micro": m} for a, m in amounts.items() if m]
    tx.connection.execute(insert(postings), rows)


def first_fault(connection: Connection) -> str | None:
    """What is wrong with the ledger by its own rules, None where it is sound."""
    amount = func.sum(postings.c.amount_micro)
    unbalanced = select(postings.c.transfer_id, amount).group_by(postings.c.transfer_id).having(amount != 0)
    row = connection.execute(unbalanced.order_by(postings.c.transfer_id).limit(1)).first()
    if row is not None:
        return f"ledger: transfer {row[0]} is out by {row[1]} µ"
    overdrawn = select(postings.c.account, amount).where(postings.c.account != WORLD)
    row = connection.execute(overdrawn.group_by(postings.c.account).having(amount < 0).limit(1)).first()
    return None if row is None else f"ledger: account {row[0]} stands at {row[1]} µ"


def totals(connection: Connection) -> dict[str, int]:
    """Micro-units deposited (net of payouts), in escrow, and on the accounts of parties."""
    kind = func.substr(postings.c.account, 1, 5)
    rows = connection.execute(select(kind, func.sum(postings.c.amount_micro)).group_by(kind))
    sums = {str(name): int(amount) for name, amount in rows}
    return {
        "deposited_micro": -sums.get("world", 0),
        "escrow_micro": sums.get("escro", 0),
        "balances_micro": sums.get("party", 0),
    }
