"""What a market on Flower comes to: rounds, money, ε of every client, the certificate, the model."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypedDict, cast

import numpy as np
from flwr.app import ConfigRecord, Context

from privmarket.counted import counted
from privmarket.files import write_atomically
from privmarket.flower import wire
from privmarket.flower.settings import MarketSettings
from privmarket.privacy.accountant import RdpAccountant
from privmarket.privacy.certificate import Certificate, certify
from privmarket.privacy.events import PrivacyEvent
from privmarket.privacy.words import ODOMETER_LABEL, ODOMETER_NOTE
from privmarket.rounds import MICRO, RoundRecord, offered_micro

SUMMARY_LOG = "flwr.privmarket"
"""The logger of a run's summary; below Flower's own, so that `flwr run` and `flwr log` show it."""
_log = logging.getLogger(SUMMARY_LOG)
RESULT_KEY = "result-file"  # in a run's configuration: where the result is written
RESULT = "privmarket-result"  # in the server's state


class RoundJson(TypedDict):
    """The fields of one round in a result file; `rounds.RoundRecord` describes them."""

    number: int
    bidders: int
    sellers: int
    total_epsilon: float
    spent_micro: int
    refunded_micro: int
    sold_epsilon: dict[str, float]
    paid_micro: dict[str, int]
    dropped: dict[str, str]
    accuracy: float | None


class ResultJson(TypedDict):
    """A result file; every field is described in docs/reference/json.md."""

    settings: dict[str, object]
    accuracy: float | None
    spent: float
    paid_micro: dict[str, int]
    epsilon_spent: dict[str, float]
    epsilon_spent_is: str
    certificate: dict[str, float | str | None]
    declined: dict[str, str]
    weights_sha256: str
    summary: list[str]
    rounds: list[RoundJson]
    bid_seconds: list[float]
    round_seconds: list[float]
    seconds: float


@dataclass(frozen=True, eq=False)
class MarketResult:
    """A finished run, as the server knows it; clients' own wallets may have paid for more (lost replies).

    Attributes:
        records: one per round, by clients' names.
        weights: the final model, array by array.
        releases: client → what it released, round by round.
        bid_seconds: how long the calls for bids took, per round.
        declined: client → why it did not bid, in the words of `privacy.policy`; who bid in every round is absent.
        round_seconds: how long the rounds took.
    """

    settings: MarketSettings
    records: tuple[RoundRecord, ...]
    weights: Mapping[str, np.ndarray]
    releases: Mapping[str, tuple[PrivacyEvent, ...]]
    bid_seconds: tuple[float, ...]
    seconds: float
    declined: Mapping[str, str] = field(default_factory=dict)
    round_seconds: tuple[float, ...] = ()

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the last round in which it was measured; None if it never was."""
        measured = [record.accuracy for record in self.records if record.accuracy is not None]
        return measured[-1] if measured else None

    @property
    def paid_micro(self) -> dict[str, int]:
        """Maps each client to the money it was paid in all rounds, in micro-units."""
        paid: dict[str, int] = {}
        for record in self.records:
            for client, micro in record.paid_micro.items():
                paid[client] = paid.get(client, 0) + micro
        return paid

    @cached_property
    def epsilon_spent(self) -> dict[str, float]:
        """client → ε of all it released, at the run's δ, had the sales been fixed in advance: a report.

        Where sales were chosen after seeing earlier releases, what is promised is each client's wallet's cap.
        """
        if not self.releases:
            return {}
        accountant = RdpAccountant(len(self.releases))
        longest = max(len(events) for events in self.releases.values())
        for at in range(longest):
            accountant.compose([events[at] if at < len(events) else None for events in self.releases.values()])
        found = accountant.epsilon(self.settings.delta)
        return {client: float(one) for client, one in zip(self.releases, found, strict=True)}

    def certificate(self, client: str | None = None) -> Certificate:
        """What one client's releases add up to; of the client that released most unless named."""
        if client is None:
            client = max(self.epsilon_spent, key=self.epsilon_spent.__getitem__, default="")
        return certify(self.releases.get(client, ()), self.settings.delta)

    def to_json(self) -> ResultJson:
        """The result as JSON data, without the model's weights."""
        return {
            "settings": self.settings.to_json(),
            "accuracy": self.accuracy,
            "spent": sum(record.spent_micro for record in self.records) / MICRO,
            "paid_micro": self.paid_micro,
            "epsilon_spent": self.epsilon_spent,
            "epsilon_spent_is": f"{ODOMETER_LABEL}; {ODOMETER_NOTE}",
            "certificate": {key: _finite(value) for key, value in asdict(self.certificate()).items()},
            "declined": dict(self.declined),
            "weights_sha256": wire.digest(self.weights),
            "summary": self.summary(),
            "rounds": [cast(RoundJson, asdict(record)) for record in self.records],
            "bid_seconds": [round(one, 4) for one in self.bid_seconds],
            "round_seconds": [round(one, 3) for one in self.round_seconds],
            "seconds": round(self.seconds, 3),
        }

    def summary(self) -> list[str]:
        """What came out, a line each: rounds, then clients with what they sold and were paid."""
        lines = []
        for r in self.records:
            measured = "" if r.accuracy is None else f", accuracy {r.accuracy:.3f}"
            paid = r.spent_micro / MICRO
            lines.append(
                f"round {r.number + 1}: {r.sellers} sold ε = {r.total_epsilon:.2f} for {paid:.6f}{measured}"
            )
            lines += [f"  client {client} was not paid: {fault}" for client, fault in r.dropped.items()]
        lines += [f"client {client} does not bid: {reason}" for client, reason in self.declined.items()]
        paid_micro = self.paid_micro
        for client, epsilon in self.epsilon_spent.items():
            paid = paid_micro.get(client, 0) / MICRO
            sales = len(self.releases[client])
            lines.append(f"client {client}: {counted(sales, 'sale')}, ε = {epsilon:.2f} in all, paid {paid:.6f}")
        if self.paid_micro:
            spent, offered = sum(paid_micro.values()) / MICRO, offered_micro(self.settings, self.records) / MICRO
            lines.append(
                f"in all: {spent:.2f} paid, of {offered:g} offered in {counted(len(self.records), 'round')}"
            )
        else:
            lines.append("nothing was bought in any round")
        return lines

    def save(self, path: Path) -> None:
        """Writes the JSON in one step: whoever sees the file sees all of it."""
        write_atomically(path, json.dumps(self.to_json(), indent=1) + "\n")


def save_result(context: Context, result: MarketResult, place: Path | str | None = None) -> None:
    """Logs a run's summary; saves its result where the configuration says, else at `place`, and in its state."""
    for line in result.summary():
        _log.info(line)
    chosen = context.run_config.get(RESULT_KEY) or place
    if chosen:
        result.save(Path(str(chosen)))
    context.state[RESULT] = ConfigRecord({"json": json.dumps(result.to_json())})


def saved_result(context: Context) -> ResultJson | None:
    """The result that a server app left in its state; None if it ran no market."""
    record = context.state.get(RESULT)
    return cast(ResultJson, json.loads(str(record["json"]))) if isinstance(record, ConfigRecord) else None


def _finite(value: float | str) -> float | str | None:
    return value if isinstance(value, str) or math.isfinite(value) else None
