"""What buyers publish: tasks, and the rounds that they open with money in escrow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import cast

from sqlalchemy import Connection

from privmarket.broker import (
    _clearing as clearing,
)
from privmarket.broker import (
    _ledger as ledger,
)
from privmarket.broker import (
    _noise_tables as noise_tables,
)
from privmarket.broker import (
    _parties as parties,
)
from privmarket.broker import (
    _rules as rules,
)
from privmarket.broker import (
    _sql as sql,
)
from privmarket.broker._answers import RoundAnswer, TaskAnswer
from privmarket.broker._database import Transaction
from privmarket.broker._http_errors import BrokerError, ConflictError, NotFoundError
from privmarket.broker._lifecycle import TAKING_BIDS
from privmarket.broker._log import canonical
from privmarket.broker._parties import Actor, identifier, require
from privmarket.broker._statements import countersigned
from privmarket.broker._stored_rows import TaskRow, find_task
from privmarket.broker._task_plan import TaskPlan, checked
from privmarket.broker._write_path import WritePath
from privmarket.errors import PrivmarketError
from privmarket.mechanisms import mechanism

_PROMISED = (
    "SELECT SUM(t.budget_micro) FROM tasks t WHERE t.buyer_id = ? "
    "AND NOT EXISTS (SELECT 1 FROM rounds r WHERE r.task_id = t.id)"
)
_STATES = "SELECT state FROM rounds WHERE task_id = ?"


class TaskCommands(WritePath):
    """Every write about tasks, and the opening of rounds."""

    def publish_task(
        self,
        actor: Actor,
        given: Mapping[str, object],
        key: str,
        *,
        nonce: str | None = None,
        signature: str | None = None,
    ) -> TaskAnswer:
        """What the buyer wants trained: `given` are fields of a `TaskPlan`.

        Args:
            nonce, signature: of a buyer that signs everything; `given` with the nonce in it is what it signed.
        """
        require(actor, "buyer")
        row = _task_row(actor.party_id, checked(TaskPlan, given))
        if self.make_mechanism is mechanism:
            rules.check(row.mechanism, json.loads(row.settings))
        self._rule_version(row)
        with self.database.read() as connection:
            _require_first_escrow(connection, actor.party_id, row.budget_micro)
        noise_tables.prepare(clearing.family_of(row), actor.party_id)
        made_here = ("id", "created_ms", "nonce")
        stored = {name: value for name, value in row._asdict().items() if name not in made_here}

        def command(tx: Transaction) -> TaskAnswer:
            if row.arbiter_id is not None and parties.role_of(tx.connection, row.arbiter_id) != "arbiter":
                raise BrokerError(f"{row.arbiter_id} is not an arbiter", "name a party of that role, or nobody")
            _require_first_escrow(tx.connection, actor.party_id, row.budget_micro)
            task_id = identifier(self.entropy, "task")
            words = stored if nonce is None else {**stored, "said": {**given, "nonce": nonce}}
            stated = countersigned(tx.connection, actor.party_id, "task.published", task_id, words, signature)
            known = "SELECT 1 FROM tasks WHERE buyer_id = ? AND nonce = ?"
            if nonce is not None and sql.run(tx.connection, known, actor.party_id, nonce):
                raise ConflictError("this task was published before", "sign another one with a fresh nonce")
            tx.log("task.published", task_id, **stated)
            return cast(TaskAnswer, {"id": task_id, **stored, "settings": json.loads(row.settings)})

        asked = {name: value for name, value in stored.items() if name != "buyer_id"}
        return self._write(actor, key, ("publish", {**asked, "settings": json.loads(row.settings)}), command)

    def open_round(self, actor: Actor, task_id: str, key: str, *, signature: str | None = None) -> RoundAnswer:
        """Puts the round's budget in escrow and opens it for bids."""
        require(actor, "buyer")
        with self.database.read() as connection:
            task = find_task(connection, task_id)
        if task is None or task.buyer_id != actor.party_id:
            raise NotFoundError(f"no task {task_id}", "GET /v1/tasks lists yours")
        version = self._rule_version(task)
        noise_tables.prepare(clearing.family_of(task), actor.party_id)

        def command(tx: Transaction) -> RoundAnswer:
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
            words = {"buyer_id": actor.party_id, **row}
            stated = countersigned(tx.connection, actor.party_id, "round.opened", round_id, words, signature)
            tx.log("round.opened", round_id, **stated)
            return cast(RoundAnswer, {"id": round_id, **row, "state": "open", "opened_ms": tx.now_ms})

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


def _require_first_escrow(connection: Connection, buyer_id: str, budget_micro: int) -> None:
    """Refuses a task whose first round its buyer could not pay, beside those of its other tasks without a round.

    So nobody fills the list with tasks that will never open, or has noise tables computed for them.
    """
    ((promised,),) = sql.run(connection, _PROMISED, buyer_id)
    needed = budget_micro + int(promised or 0)
    ledger.require(connection, ledger.party(buyer_id), needed, "the first round of each task without one")


def _task_row(buyer_id: str, plan: TaskPlan) -> TaskRow:
    """A task as it is stored, but for its id and time."""
    stored = {one.name: getattr(plan, one.name) for one in fields(plan)}
    return TaskRow(
        **{
            **stored,
            "id": "",
            "buyer_id": buyer_id,
            "created_ms": 0,
            "nonce": None,
            "settings": canonical(plan.settings),
        }
    )
