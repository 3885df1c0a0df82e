"""What buyers publish: tasks, and the rounds that they open with money in escrow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from privmarket.broker import clearing, ledger, noise_tables, parties, rules, sql
from privmarket.broker.answers import Round, Task
from privmarket.broker.database import Transaction
from privmarket.broker.http_errors import BrokerError, ConflictError, NotFoundError
from privmarket.broker.lifecycle import TAKING_BIDS
from privmarket.broker.log import canonical
from privmarket.broker.parties import MONEY_LIMIT_MICRO, Actor, identifier, require
from privmarket.broker.stored_rows import TaskRow, find_task
from privmarket.broker.write_path import WritePath
from privmarket.errors import PrivmarketError
from privmarket.mechanisms import mechanism
from privmarket.plans import MarketPlan
from privmarket.privacy.words import TRUSTS

TASK_DEFAULTS: Mapping[str, object] = {
    "sealing": "broker",
    "buyer_may_close": False,
    "reveal_seconds": 600,
    "review_seconds": 3600,
    "dispute_seconds": 3600,
    "ruling_seconds": 86_400,
    "arbiter_id": None,
    "delivery": "open",
    "attested": False,
    "trust": "local",
    "honest_share": MarketPlan.honest_share,
}
_YEAR_SECONDS = 366 * 24 * 3600
_LIMITS = {
    "budget_micro": (1, MONEY_LIMIT_MICRO),
    "rounds": (1, 100_000),
    "bid_seconds": (1, _YEAR_SECONDS),
    "reveal_seconds": (1, _YEAR_SECONDS),
    "delivery_seconds": (1, _YEAR_SECONDS),
    "review_seconds": (0, _YEAR_SECONDS),
    "dispute_seconds": (0, _YEAR_SECONDS),
    "ruling_seconds": (0, _YEAR_SECONDS),
    "steps": (1, 1_000_000),
}
_WORDS = {"sealing": ("broker", "bidder"), "delivery": ("open", "sealed"), "trust": tuple(TRUSTS)}
_STATES = "SELECT state FROM rounds WHERE task_id = ?"


class TaskCommands(WritePath):
    """Every write about tasks, and the opening of rounds."""

    def publish_task(self, actor: Actor, fields: Mapping[str, object], key: str) -> Task:
        """What the buyer wants trained: budget per round, number of rounds, rule, release, deadlines, arbiter."""
        require(actor, "buyer")
        row = _checked_task(actor.party_id, {**TASK_DEFAULTS, **fields})
        if self.make_mechanism is mechanism:
            rules.check(row.mechanism, json.loads(row.settings))
        self._rule_version(row)
        noise_tables.prepare(clearing.family_of(row))
        stored = {name: value for name, value in row._asdict().items() if name not in ("id", "created_ms")}

        def command(tx: Transaction) -> Task:
            if row.arbiter_id is not None and parties.role_of(tx.connection, row.arbiter_id) != "arbiter":
                raise BrokerError(f"{row.arbiter_id} is not an arbiter", "name a party of that role, or nobody")
            task_id = identifier(self.entropy, "task")
            tx.log("task.published", task_id, **stored)
            return cast(Task, {"id": task_id, **stored, "settings": json.loads(row.settings)})

        asked = {name: value for name, value in stored.items() if name != "buyer_id"}
        return self._write(actor, key, ("publish", {**asked, "settings": json.loads(row.settings)}), command)

    def open_round(self, actor: Actor, task_id: str, key: str) -> Round:
        """Puts the round's budget in escrow and opens it for bids."""
        require(actor, "buyer")
        with self.database.read() as connection:
            task = find_task(connection, task_id)
        if task is None or task.buyer_id != actor.party_id:
            raise NotFoundError(f"no task {task_id}", "GET /v1/tasks lists yours")
        version = self._rule_version(task)
        noise_tables.prepare(clearing.family_of(task))

        def command(tx: Transaction) -> Round:
            past = [str(state) for (state,) in sql.run(tx.connection, _STATES, task_id)]
            if any(state in TAKING_BIDS for state in past):
                raise ConflictError(f"task {task_id} has a round that takes bids", "let it clear, or abort it")
            if len(past) >= task.rounds:
                raise ConflictError(f"task {task_id} has had its {task.rounds} rounds", "publish another task")
            account = ledger.party(actor.party_id)
            ledger.require(tx.connection, account, task.budget_micro, "the escrow of a round")
            round_id = identifier(self.entropy, "round")
            row = {
                "task_id": task_id,
                "number": len(past),
                "budget_micro": task.budget_micro,
                "mechanism_version": version,
                "bid_deadline_ms": tx.now_ms + 1000 * task.bid_seconds,
            }
            tx.log("round.opened", round_id, buyer_id=actor.party_id, **row)
            return cast(Round, {"id": round_id, **row, "state": "open", "opened_ms": tx.now_ms})

        return self._write(actor, key, ("open", task_id), command)

    def _rule_version(self, task: TaskRow) -> str:
        """The version of the rule that a task names; raises where the rule does not take its settings."""
        try:
            rule = clearing.mechanism_of(task.mechanism, task.settings, task.epsilon_max, self.make_mechanism)
            return rules.version_of(rule)
        except PrivmarketError:
            raise
        except Exception as error:
            raise BrokerError(
                f"{task.mechanism} does not take these settings: {type(error).__name__}",
                "GET /v1/mechanisms shows what each rule takes",
            ) from None


def _checked_task(buyer_id: str, fields: Mapping[str, object]) -> TaskRow:
    """A task as it is stored, but for its id and time; raises `BrokerError` where a field is wrong."""
    unknown = set(fields) - set(TaskRow._fields)
    if unknown:
        raise BrokerError(f"a task has no field {min(unknown)!r}", "GET /docs shows the fields of a task")
    amounts = {name: fields[name] for name in ("epsilon_max", "sampling_rate", "delta", "honest_share")}
    numbers = {name: float(value) for name, value in amounts.items() if isinstance(value, int | float)}
    given = {**fields, **numbers, "settings": canonical(fields["settings"])}
    row = TaskRow(**{**given, "id": "", "buyer_id": buyer_id, "created_ms": 0})  # type: ignore[arg-type]
    for name, (low, high) in _LIMITS.items():
        if not low <= getattr(row, name) <= high:
            raise BrokerError(f"{name} is {getattr(row, name)}", f"give {low} to {high}")
    if not 0 < row.epsilon_max <= 100:
        raise BrokerError(f"epsilon_max is {row.epsilon_max}", "give a limit on offers above 0, at most 100")
    if not 0 < len(row.title.strip()) <= 120 or not row.title.isprintable():
        raise BrokerError("a title of the wrong length, or that does not print", "give 1 to 120 characters")
    if not 0 < row.honest_share <= 1:
        raise BrokerError(f"honest_share is {row.honest_share}", "give a share of the sellers, above 0")
    if row.trust == "aggregate" and row.steps != 1:
        raise BrokerError(
            f"trust 'aggregate' with {row.steps} steps a round", "the buyer must not see steps: use steps = 1"
        )
    for name, choices in _WORDS.items():
        if getattr(row, name) not in choices:
            raise BrokerError(f"{name} is {getattr(row, name)!r}", f"choose {' or '.join(choices)}")
    return row
