"""Double entry in integer micro-units: the postings of every log entry sum to zero, and so does the ledger.

Accounts are names: `world` (money outside; its negative is what was deposited and not yet paid out), `party:ID`,
`escrow:ROUND`. Balances are sums of postings, never stored beside them.
"""

from __future__ import annotations

from sqlalchemy import Connection

from privmarket.broker import _sql as sql
from privmarket.broker._http_errors import InsufficientFundsError
from privmarket.broker._projection import WORLD, escrow, party

__all__ = ["WORLD", "balance", "escrow", "party", "require", "totals"]


def balance(connection: Connection, account: str) -> int:
    """Micro-units on one account."""
    query = "SELECT COALESCE(SUM(amount_micro), 0) FROM postings WHERE account = ?"
    return int(sql.run(connection, query, account)[0][0])


def require(connection: Connection, account: str, amount_micro: int, purpose: str) -> None:
    """Refuses where an account holds less than what is to be taken from it."""
    held = balance(connection, account)
    if held < amount_micro:
        raise InsufficientFundsError(
            f"{account} holds {held} µ, {purpose} needs {amount_micro} µ", "deposit money first"
        )


def totals(connection: Connection) -> dict[str, int]:
    """Micro-units deposited (net of payouts), in escrow, and on the accounts of parties."""
    query = "SELECT substr(account, 1, 5), SUM(amount_micro) FROM postings GROUP BY substr(account, 1, 5)"
    sums = {str(name): int(amount) for name, amount in sql.run(connection, query)}
    return {
        "deposited_micro": -sums.get("world", 0),
        "escrow_micro": sums.get("escro", 0),
        "balances_micro": sums.get("party", 0),
    }
