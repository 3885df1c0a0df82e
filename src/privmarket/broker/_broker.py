"""The broker: every write as one idempotent command in one transaction, and the thread that meets deadlines.

The HTTP API, the demo, the simulation and the tests all call these methods; nothing else changes the database.
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from privmarket.broker import (
    _auction_process as auction_process,
)
from privmarket.broker import (
    _lifecycle as lifecycle,
)
from privmarket.broker import (
    _noise_tables as noise_tables,
)
from privmarket.broker import (
    _parties as parties,
)
from privmarket.broker import (
    _sql as sql,
)
from privmarket.broker._account_commands import AccountCommands
from privmarket.broker._answers import StepAnswer
from privmarket.broker._bookings import BookingCommands
from privmarket.broker._http_errors import ConflictError
from privmarket.broker._parties import SYSTEM
from privmarket.broker._round_commands import RoundCommands
from privmarket.broker._stored_rows import RoundRow, round_and_task
from privmarket.broker._task_commands import TaskCommands
from privmarket.privacy._calibration import ReleaseFamily

_log = logging.getLogger(__name__)
_DUE = (
    f"SELECT {', '.join(RoundRow._fields)} FROM rounds WHERE (state = 'open' AND bid_deadline_ms <= ?) "
    "OR state IN ('closed', 'revealing', 'delivered') OR (state = 'cleared' AND delivery_deadline_ms <= ?)"
)
_LIVE = (
    "SELECT DISTINCT t.sampling_rate, t.steps, t.delta FROM tasks t JOIN rounds r ON r.task_id = t.id "
    "WHERE r.state IN (?*)"
)


class Broker(AccountCommands, BookingCommands, TaskCommands, RoundCommands):
    """The market's rules over one database."""

    def prepare_schedules(self) -> None:
        """Loads the noise tables of all tasks whose rounds are under way, so that no write waits for one."""
        with self.database.read() as connection:
            families = [ReleaseFamily(*row) for row in sql.run(connection, _LIVE, list(lifecycle.LIVE_STATES))]
        for family in families:
            noise_tables.prepare(family, patience_seconds=0)

    def round_state(self, round_id: str) -> str:
        """A round's state, such as open or cleared."""
        with self.database.read() as connection:
            return round_and_task(connection, round_id)[0].state

    def tick(self) -> list[StepAnswer]:
        """Takes the steps that are due at deadlines: closes rounds, holds auctions, settles where no award waits.

        Very large auctions go on in a thread of their own, so that other rounds keep their deadlines meanwhile.
        """
        now = self.database.now_ms() - self.database.grace_ms
        with self.database.read() as connection:
            waiting = [RoundRow(*row) for row in sql.run(connection, _DUE, now, now)]
        done: list[StepAnswer] = []
        for round_ in waiting:
            # Awards are looked at once per deadline, not with every tick: there may be a hundred thousand.
            passed = sum((at or now + 1) <= now for at in _deadlines(round_))
            if round_.state == "cleared" and self._looked.get(round_.id) == passed:
                continue
            if round_.id in self._clearing:
                continue
            if round_.state == "revealing" and not lifecycle.may_clear(round_, now):
                continue
            if round_.state in lifecycle.TAKING_BIDS and round_.bids >= auction_process.WORTH_A_PROCESS:
                self._clearing.add(round_.id)
                threading.Thread(target=self._move_on_alone, args=(round_, passed), daemon=True).start()
            else:
                done += self._move_on(round_, passed)
        return done

    def _move_on(self, round_: RoundRow, passed: int) -> list[StepAnswer]:
        """The next step of a round whose deadlines have `passed`, where there is one."""
        step = self.settle_round if round_.state in ("cleared", "delivered") else self.close_round
        try:
            made = step(SYSTEM, round_.id, f"deadline:{round_.state}:{passed}:{round_.id}")
            self._looked.pop(round_.id, None)
        except ConflictError:  # another broker, or the buyer, was faster; or an award still waits
            self._looked[round_.id] = passed
            return []
        return [made]

    def _move_on_alone(self, round_: RoundRow, passed: int) -> None:
        try:
            self._move_on(round_, passed)
        except Exception as error:  # a database that is away for a moment: the next tick tries again
            _log.warning("auction of %s: %s", round_.id, type(error).__name__)
        finally:
            self._clearing.discard(round_.id)

    def first_operator(self) -> str | None:
        """Makes the first operator and returns its token; None where one exists already."""
        with self.database.write(SYSTEM.party_id) as tx:
            if sql.run(tx.connection, "SELECT 1 FROM parties WHERE role = 'operator' LIMIT 1"):
                return None
            return parties.register(tx, self.entropy, {"role": "operator", "name": "operator"})["token"]

    def new_operator_token(self) -> str:
        """A fresh token for the first operator, for someone who holds the database but lost the token."""
        with self.database.write(SYSTEM.party_id) as tx:
            query = "SELECT id FROM parties WHERE role = 'operator' ORDER BY created_ms, id LIMIT 1"
            ((operator,),) = sql.run(tx.connection, query)
            parties.revoke_all(tx, operator)
            return str(parties.mint(tx, self.entropy, operator, "full")["token"])


def _deadlines(round_: RoundRow) -> tuple[int | None, ...]:
    return (
        round_.delivery_deadline_ms,
        round_.review_deadline_ms,
        round_.dispute_deadline_ms,
        round_.ruling_deadline_ms,
    )


class Scheduler:
    """Calls `broker.tick()` every so often while it is entered. `seconds` = 0 does nothing."""

    def __init__(self, broker: Broker, seconds: float) -> None:
        self._broker, self._seconds = broker, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)

    def __enter__(self) -> Scheduler:
        if self._seconds > 0:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._seconds > 0:
            self._thread.join(timeout=3)  # a long auction goes on with the next start

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                self._broker.tick()
            # A database that is away for a moment, or one bad round, must not end the thread: it tries again.
            except Exception as error:
                _log.warning("deadlines: %s", type(error).__name__)
