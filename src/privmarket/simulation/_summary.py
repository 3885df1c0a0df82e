"""A finished run as plain data: what it reached, what it cost, and what each client has left."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version
from typing import NotRequired, TypedDict

import numpy as np

from privmarket.privacy._accountant import RdpAccountant
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._gaussian import Array
from privmarket.privacy._release import FLOAT_WARNING
from privmarket.rounds import MICRO, RoundRecord
from privmarket.secagg import alone_noise_multiplier, honest_per_cohort
from privmarket.simulation._config import FederationConfig, statistics_words
from privmarket.simulation._state import RunResult


class ClientRow(TypedDict):
    """What a run did to one client; None where there is nothing to state."""

    client: int
    name: str
    valuation: float
    epsilon_per_round: float
    sales: int
    paid: float
    epsilon_spent: float | None
    epsilon_if_others_collude: float | None
    wallet_left: float | None


class RunSummary(TypedDict):
    """A run as plain data: its configuration, versions, time, totals, clients and rounds."""

    config: dict[str, object]
    versions: dict[str, str]
    seconds: float
    score_name: str
    score: float | None
    scores: dict[str, float]
    score_before: float | None
    own_records: dict[str, object] | None
    accuracy: NotRequired[float]
    spent: float
    epsilon_bought: float
    sellers_per_round: float
    largest_epsilon_spent: float | None
    largest_epsilon_if_others_collude: float | None
    arithmetic: str | None
    statistics: NotRequired[dict[str, object]]
    dropped: dict[str, dict[str, str]]
    clients: list[ClientRow]
    rounds: NotRequired[list[dict[str, object]]]


def client_table(result: RunResult) -> list[ClientRow]:
    """One row per client: its type, how often it sold, what it was paid, its total ε, what its wallet has left."""
    clients, history = result.config.clients, result.wallets.history
    accountant = RdpAccountant(clients)
    accountant.compose(*history)
    epsilon = accountant.epsilon(result.config.delta)
    paid = result.paid_micro.sum(axis=0)
    sales = [sum(event is not None for event in sold) for sold in zip(*history, strict=True)] or [0] * clients
    left = result.wallets.remaining_share
    alone = _epsilon_if_others_collude(result)
    private = result.config.privacy.is_private
    return [
        {
            "client": i,
            "name": result.task.clients[i],
            "valuation": float(result.types.valuation[i]),
            "epsilon_per_round": float(result.types.epsilon[i]),
            "sales": sales[i],
            "paid": int(paid[i]) / MICRO,
            # Without noise nothing is spent: there is no finite ε to state.
            "epsilon_spent": (float(epsilon[i]) if sales[i] else 0.0) if private else None,
            "epsilon_if_others_collude": None if alone is None else float(alone[i]),
            "wallet_left": float(left[i]) if np.isfinite(result.wallets.cap_epsilon[i]) else None,
        }
        for i in range(clients)
    ]


def _epsilon_if_others_collude(result: RunResult) -> Array | None:
    """(clients,) total ε of each client's own shares alone; None where updates are private on their own."""
    rounds = events_if_others_collude(result)
    if rounds is None:
        return None
    accountant = RdpAccountant(result.config.clients)
    accountant.compose(*rounds)
    return accountant.epsilon(result.config.delta)


def events_if_others_collude(result: RunResult) -> list[list[PrivacyEvent | None]] | None:
    """For each round and client, its part of the round's noise as a release of its own; None where it sold nothing.

    None instead of a list for a run whose updates are private on their own, or not at all.
    """
    config = result.config
    if config.trust != "aggregate" or not config.privacy.is_private:
        return None
    family = ReleaseFamily.of(config.training, config.delta)
    rounds = []
    for record in result.records:
        events: list[PrivacyEvent | None] = [None] * config.clients
        if record.sold_epsilon:
            honest = honest_per_cohort(len(record.sold_epsilon), config.honest_share)
            sold = family.noise_multiplier(list(record.sold_epsilon.values()))
            alone = alone_noise_multiplier(sold, honest).tolist()
            for client, noise_multiplier in zip(record.sold_epsilon, alone, strict=True):
                events[result.place[client]] = family.release(noise_multiplier)
        rounds.append(events)
    return rounds


def arithmetic_of(config: FederationConfig) -> str:
    """In which arithmetic the run's releases are private: `exact`, or the warning that they are not."""
    exact = config.training.arithmetic == "exact" or config.trust == "aggregate"
    return "exact" if exact else f"float: {FLOAT_WARNING}"


def brief(result: RunResult, command: str) -> dict[str, object]:
    """What is kept of a run as a result file: totals, the accuracy curve, and the command that gives it again."""
    summary = summarise(result, rounds=False)
    return {
        "command": command,
        **{name: value for name, value in summary.items() if name != "clients"},
        "clients_that_sold": sum(row["sales"] > 0 for row in summary["clients"]),
        "accuracy_by_round": {
            str(r.number + 1): round(r.accuracy, 4) for r in result.records if r.accuracy is not None
        },
    }


def summarise(result: RunResult, *, rounds: bool = True) -> RunSummary:
    """Configuration, versions, time, totals, clients and, if wanted, every round."""
    records = result.records
    table = result.client_rows
    private = result.config.privacy.is_private
    summary: RunSummary = {
        "config": result.config.to_json(),
        "versions": {
            "privmarket": version("privmarket"),
            "torch": version("torch"),
            "python": platform.python_version(),
        },
        "seconds": round(result.seconds, 3),
        "score_name": result.task.score.name,
        "score": None if result.scores is None else result.score,
        "scores": result.scores or {},
        "score_before": result.score_before,
        "own_records": None if result.own_records is None else asdict(result.own_records),
        "spent": result.spent,
        "epsilon_bought": sum(r.total_epsilon for r in records),
        "sellers_per_round": float(np.mean([r.sellers for r in records])),
        "largest_epsilon_spent": _largest(row["epsilon_spent"] for row in table),
        "largest_epsilon_if_others_collude": _largest(row["epsilon_if_others_collude"] for row in table),
        # Shares of a secure sum are integers always.
        "arithmetic": arithmetic_of(result.config) if private else None,
        "dropped": {str(r.number): r.dropped for r in records if r.dropped},
        "clients": table,
    }
    if result.scores is not None and "accuracy" in result.scores:
        summary["accuracy"] = result.scores["accuracy"]
    if result.config.statistics != "none":
        summary["statistics"] = _statistics_row(result)
    if rounds:
        summary["rounds"] = [
            _round_row(record, by_accuracy=result.task.score.name == "accuracy") for record in records
        ]
        for row in summary["rounds"][: result.rounds_of_moments]:
            row["sold"] = "moments"
    return summary


def _statistics_row(result: RunResult) -> dict[str, object]:
    """What whitened the inputs, and what that cost; it is part of the totals, too."""
    sale = result.records[: result.rounds_of_moments]
    row: dict[str, object] = {
        "kind": result.config.statistics,
        "said": statistics_words(result.config),
        "sellers": sum(record.sellers for record in sale),
        "spent": sum(record.spent_micro for record in sale) / MICRO,
        "epsilon_bought": sum(record.total_epsilon for record in sale),
    }
    if result.whitening is not None:
        row["inputs"] = result.whitening.moments.inputs
        row["noise"] = result.whitening.moments.deviation
    return row


def _round_row(record: RoundRecord, *, by_accuracy: bool) -> dict[str, object]:
    """A round as JSON data; the headline score is called accuracy only where it is one."""
    row = asdict(record)
    row["score"] = row["accuracy"]
    if not by_accuracy:
        del row["accuracy"]
    return row


def _largest(values: Iterable[float | None]) -> float | None:
    """The largest that is stated; None where none is."""
    return max((value for value in values if value is not None), default=None)
