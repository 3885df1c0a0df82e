"""The result of a market on Flower: rounds, money, ε of every client, the certificate, the model."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

import numpy as np
from flwr.app import ConfigRecord, Context

from privmarket._counted import counted
from privmarket._files import write_atomically
from privmarket._lazy import late
from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.flower import _wire as wire
from privmarket.flower._checkpoint import OpenOrders
from privmarket.flower._settings import MarketSettings
from privmarket.privacy._accountant import Certificate, RdpAccountants, certify
from privmarket.privacy._calibration import alone_event
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._statement import ODOMETER_LABEL, ODOMETER_NOTE, cohort_words
from privmarket.rounds import MICRO, RoundRecord, offered_micro

if TYPE_CHECKING:
    from torch import nn

    from privmarket.flower import _model as models
    from privmarket.simulation import _model_file as model_files, _result as statements
    from privmarket.simulation._own_records import OwnRecords
    from privmarket.simulation._result import ClientStatement
    from privmarket.tasks import Task
else:
    models = late("privmarket.flower._model")
    model_files = late("privmarket.simulation._model_file")
    statements = late("privmarket.simulation._result")

SUMMARY_LOG = "flwr.privmarket"
"""The logger of a run's summary; below Flower's own, so that `flwr run` and `flwr log` show it."""
_log = logging.getLogger(SUMMARY_LOG)
RESULT_KEY = "result-file"  # in a run's configuration: where the result is written
RESULT = "privmarket-result"  # in the server's state
RESULT_VARIABLE = "PRIVMARKET_RESULT"  # in a server's environment: where `privmarket flower run` wants the result
MODEL_VARIABLE = "PRIVMARKET_MODEL"  # the same for the model, a .safetensors file


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
    failures: dict[str, str]
    score_before: float | None
    weights_sha256: str
    summary: list[str]
    rounds: list[RoundJson]
    bid_seconds: list[float]
    round_seconds: list[float]
    seconds: float


@dataclass(frozen=True, eq=False)
class MarketResult:
    """A finished run as the server knows it; clients' own wallets may have been charged for more (lost replies).

    Attributes:
        records: one per round, by clients' names.
        weights: the final model, array by array.
        releases: client → what it released, round by round.
        bid_seconds: how long the calls for bids took, per round.
        declined: client → why it did not bid, in the words of its policy, for those that ever did not.
        round_seconds: how long the rounds took.
        cohorts: round → the number of its secure sums; under aggregate trust.
        build: makes the module that was trained; None if the run had arrays only.
        task: what was learned, if the app gave a task.
        lost: what clients sold in rounds that were stopped, as far as their wallets hold it.
        own_records: the models of the buyer's own records; None without such records.
        notes: further lines of the summary: why nothing was bought, what was refused, where a run stopped.
    """

    settings: MarketSettings
    records: tuple[RoundRecord, ...]
    weights: Mapping[str, np.ndarray]
    releases: Mapping[str, tuple[PrivacyEvent, ...]]
    bid_seconds: tuple[float, ...]
    seconds: float
    declined: Mapping[str, str] = field(default_factory=dict)
    round_seconds: tuple[float, ...] = ()
    cohorts: Mapping[int, int] = field(default_factory=dict)
    build: Callable[[], nn.Module] | None = None
    task: Task | None = None
    own_records: OwnRecords | None = None
    notes: Sequence[str] = ()
    lost: Sequence[OpenOrders] = ()

    @cached_property
    def model(self) -> nn.Module:
        """The final model: the app's module with its weights, in evaluation mode.

        Raises:
            ConfigurationError: the run had arrays and no module.
        """
        if self.build is None:
            raise ConfigurationError("this run had arrays and no module", "give model= to the server's side")
        return models.loaded(self.build, self.weights)

    def save_model(self, path: str | Path) -> Path:
        """Writes the model to a .safetensors file, and a JSON card beside it; see `privmarket predict`."""
        return model_files.write_model(self.model, _model_card(self), path)

    def statement(self, client: str) -> ClientStatement:
        """The statement of one client: its sales, its pay, and what they add up to, as the server knows it.

        The wallet on the client's own disk also counts updates that were lost on the way.
        """
        if client not in self.releases:
            raise UnknownNameError.among("client", client, self.releases)
        sales = []
        for record in self.records:
            if client in record.sold_epsilon:
                money = record.paid_micro.get(client, 0) / MICRO
                sales.append((record.number + 1, float(record.sold_epsilon[client]), money))
        aggregate = self.settings.trust == "aggregate"
        return statements.ClientStatement(
            client=client,
            sales=tuple(sales),
            paid=self.paid_micro.get(client, 0) / MICRO,
            epsilon=self.epsilon_spent[client],
            epsilon_if_others_collude=self._epsilon_alone(client) if aggregate else None,
            delta=self.settings.delta,
            wallet_left=None,
            unit="record" if self.task is None else self.task.unit,
            honest_share=self.settings.honest_share if aggregate else None,
        )

    def _epsilon_alone(self, client: str) -> float:
        """ε of a client's sales if all other sellers of its secure sums collude: only its own noise is left.

        A round with several sums counts with the largest of them, in which each share has the least noise.
        """
        rounds = [record for record in self.records if client in record.sold_epsilon]
        events = []
        for record, event in zip(rounds, self.releases[client], strict=True):
            sellers = len({*record.sold_epsilon, *record.dropped})
            largest = math.ceil(sellers / self.cohorts.get(record.number, 1))
            events.append(alone_event(event, largest, self.settings.honest_share))
        lost = [(one.events[client], len(one.events)) for one in self.lost if client in one.events]
        events += [alone_event(event, sellers, self.settings.honest_share) for event, sellers in lost]
        return certify(events, self.settings.delta).epsilon

    @property
    def score(self) -> float | None:
        """The score of the final model: that of the last round in which it was measured."""
        return self.accuracy

    @property
    def score_before(self) -> float | None:
        """The same score of the best model of the buyer's own records; None without a task that has any."""
        if self.own_records is None or self.task is None:
            return None
        return self.own_records.scores[self.task.score.name]

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
    def charged(self) -> dict[str, tuple[PrivacyEvent, ...]]:
        """client → all that its wallet was charged for: its releases, and its sales in rounds that were stopped."""
        found = dict(self.releases)
        for orders in self.lost:
            for client, event in orders.events.items():
                found[client] = (*found.get(client, ()), event)
        return found

    @cached_property
    def epsilon_spent(self) -> dict[str, float]:
        """client → ε of all it released, at the run's δ, had the sales been fixed in advance: a report.

        If sales were chosen after seeing earlier releases, only the cap of each client's wallet is promised.
        """
        charged = self.charged
        if not charged:
            return {}
        accountants = RdpAccountants(len(charged))
        longest = max(len(events) for events in charged.values())
        for at in range(longest):
            accountants.compose([events[at] if at < len(events) else None for events in charged.values()])
        found = accountants.get_epsilon(self.settings.delta)
        return {client: float(one) for client, one in zip(charged, found, strict=True)}

    def certificate(self, client: str | None = None) -> Certificate:
        """The certificate of one client's releases; by default of the client that released most."""
        if client is None:
            client = max(self.epsilon_spent, key=self.epsilon_spent.__getitem__, default="")
        unit = "record" if self.task is None else self.task.unit
        return certify(self.charged.get(client, ()), self.settings.delta, unit=unit)

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
            "failures": {},
            "score_before": self.score_before,
            "weights_sha256": wire.digest(self.weights),
            "summary": self.summary(),
            "rounds": [cast(RoundJson, asdict(record)) for record in self.records],
            "bid_seconds": [round(one, 4) for one in self.bid_seconds],
            "round_seconds": [round(one, 3) for one in self.round_seconds],
            "seconds": round(self.seconds, 3),
        }

    def summary(self) -> list[str]:
        """The result in lines: rounds, then clients with their sales and pay."""
        lines = []
        named = "accuracy" if self.task is None else self.task.score.heading
        if self.own_records is not None and self.score_before is not None:
            held = counted(self.own_records.records, "record")
            lines.append(f"your own {held} alone: {named} {self.score_before:.3f}")
        for r in self.records:
            measured = "" if r.accuracy is None else f", {named} {r.accuracy:.3f}"
            paid = r.spent_micro / MICRO
            lines.append(
                f"round {r.number + 1}: {r.sellers} sold ε = {r.total_epsilon:.2f} for {paid:.6f}{measured}"
            )
            if self.cohorts.get(r.number, 1) > 1:
                lines.append(f"  {cohort_words(self.cohorts[r.number])}")
            lines += [f"  client {client} was not paid: {fault}" for client, fault in r.dropped.items()]
        lines += [f"client {client} does not bid: {reason}" for client, reason in self.declined.items()]
        paid_micro = self.paid_micro
        for client, epsilon in self.epsilon_spent.items():
            paid = paid_micro.get(client, 0) / MICRO
            sales = counted(len(self.charged[client]), "sale")
            stopped = len(self.charged[client]) - len(self.releases.get(client, ()))
            sales += f" ({stopped} of them in a stopped round)" if stopped else ""
            lines.append(f"client {client}: {sales}, ε = {epsilon:.2f} in all, paid {paid:.6f}")
        lines += self.notes
        if self.paid_micro:
            spent = sum(paid_micro.values()) / MICRO
            offered = offered_micro(self.settings, self.records) / MICRO
            lines.append(
                f"in all: {spent:.2f} paid, of {offered:g} offered in {counted(len(self.records), 'round')}"
            )
        else:
            lines.append("nothing was bought in any round")
        return lines

    def save(self, path: Path) -> None:
        """Writes the JSON file in one step, so that nobody reads a part of it."""
        write_atomically(path, json.dumps(self.to_json(), indent=1) + "\n")


def _model_card(result: MarketResult) -> dict[str, object]:
    """The card of a run's model as JSON data: what it is, its cost in money and in privacy."""
    task = result.task
    settings = result.settings
    if task is not None:
        card = model_files.task_card(task)
        score = {"name": task.score.name, "better": task.score.direction}
    else:
        assert result.build is not None
        card = model_files.module_card(result.build, "a Flower run")
        score = {"name": "accuracy", "better": "higher"}
    return {
        **card,
        "score": score | {"before": result.score_before, "after": result.score},
        "money": sum(result.paid_micro.values()) / MICRO,
        "rounds": len(result.records),
        "privacy": {
            "unit": "record" if task is None else task.unit,
            "delta": settings.delta,
            "trust": settings.trust,
            "honest_share": settings.honest_share if settings.trust == "aggregate" else None,
            "largest_epsilon": _finite(max(result.epsilon_spent.values(), default=0.0)),
        },
        "settings": settings.to_json(),
    }


def result_places(context: Context | None, place: Path | str | None = None) -> list[Path]:
    """The places of a result: as the run's configuration says, else `place`; and for `privmarket flower run`."""
    chosen = place if context is None else context.run_config.get(RESULT_KEY) or place
    wanted = [chosen, os.environ.get(RESULT_VARIABLE)]
    return list(dict.fromkeys(Path(str(one)) for one in wanted if one))


def log_summary(result: MarketResult) -> None:
    """Logs the summary, line by line, where `flwr run` and `flwr log` show it."""
    for line in result.summary():
        _log.info(line)


def save_result(context: Context | None, result: MarketResult, place: Path | str | None = None) -> None:
    """Saves a result at its places and in the server's state, and the model where `privmarket flower run` asks for
    it.

    The result is written last, so the model is there when the result appears.
    """
    model_place = os.environ.get(MODEL_VARIABLE)
    if model_place:
        result.save_model(model_place)
    if context is not None:
        context.state[RESULT] = ConfigRecord({"json": json.dumps(result.to_json())})
    for one in result_places(context, place):
        result.save(one)


def saved_result(context: Context) -> ResultJson | None:
    """The result that a server app left in its state; None if it ran no market."""
    record = context.state.get(RESULT)
    return cast(ResultJson, json.loads(str(record["json"]))) if isinstance(record, ConfigRecord) else None


def _finite(value: float | str) -> float | str | None:
    return value if isinstance(value, str) or math.isfinite(value) else None
