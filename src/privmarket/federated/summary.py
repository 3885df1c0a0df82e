"""A finished run as plain data: what it reached, what it cost, and what each client has left."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np

from privmarket.federated.round import MICRO
from privmarket.federated.state import RunResult
from privmarket.privacy.accountant import RdpAccountant


def client_table(result: RunResult) -> list[dict[str, Any]]:
    """One row per client: its type, how often it sold, what it was paid, its total ε, what its wallet has left."""
    clients, history = result.config.clients, result.wallets.history
    accountant = RdpAccountant(clients)
    accountant.compose(*history)
    epsilon = accountant.epsilon(result.config.delta)
    paid = np.zeros(clients, dtype=np.int64)
    for record in result.records:
        for client, micro in record.paid_micro.items():
            paid[int(client)] += micro
    sales = [sum(entry[i] is not None for entry in history) for i in range(clients)]
    left = result.wallets.remaining_share
    private = result.config.mode == "private"
    return [
        {
            "client": i,
            "valuation": float(result.types.valuation[i]),
            "epsilon_per_round": float(result.types.epsilon[i]),
            "sales": sales[i],
            "paid": int(paid[i]) / MICRO,
            # Without noise nothing is spent: there is no finite ε to state.
            "epsilon_spent": (float(epsilon[i]) if sales[i] else 0.0) if private else None,
            "wallet_left": float(left[i]) if result.config.wallet is not None else None,
        }
        for i in range(clients)
    ]


def brief(result: RunResult, command: str) -> dict[str, Any]:
    """What is kept of a run as a result file: totals, the accuracy curve, and the command that gives it again."""
    summary = summarise(result, rounds=False)
    table = summary.pop("clients")
    summary["clients_that_sold"] = sum(row["sales"] > 0 for row in table)
    summary["accuracy_by_round"] = {
        str(r.number + 1): round(r.accuracy, 4) for r in result.records if r.accuracy is not None
    }
    return {"command": command, **summary}


def summarise(result: RunResult, *, rounds: bool = True) -> dict[str, Any]:
    """Configuration, versions, time, totals, clients and, if wanted, every round."""
    records = result.records
    table = client_table(result)
    private = result.config.mode == "private"
    summary: dict[str, Any] = {
        "config": result.config.to_json(),
        "versions": {
            "privmarket": version("privmarket"),
            "torch": version("torch"),
            "python": platform.python_version(),
        },
        "seconds": round(result.seconds, 3),
        "accuracy": result.accuracy,
        "spent": result.spent,
        "epsilon_bought": sum(r.total_epsilon for r in records),
        "sellers_per_round": float(np.mean([r.sellers for r in records])),
        "largest_epsilon_spent": max((row["epsilon_spent"] for row in table), default=0.0) if private else None,
        "dropped": {str(r.number): r.dropped for r in records if r.dropped},
        "clients": table,
    }
    if rounds:
        summary["rounds"] = [asdict(r) for r in records]
    return summary
