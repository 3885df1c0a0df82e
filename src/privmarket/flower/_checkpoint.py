"""Stopping and continuing a run: its settled rounds are kept in a file, and Ctrl-C ends after the current round.

The file is written after every settled round and removed when the result is written. A run that finds the file,
with the same settings and the same model, continues after its last round, with its weights, its records, what every
client has released, and the receipts that clients have not received yet.

If a round is interrupted, sellers have spent ε without being paid, and may then refuse this buyer. So the first
Ctrl-C lets `privmarket flower run` settle the current round (it creates a file that the server looks for after each
round); the second ends at once. Then, or after a crash, the orders of that round are open: they are written into a
file of their own before they are sent, and the next run with the same result file begins by asking the clients what
has become of them. It pays for the updates that have left, though they are lost, and for nothing else.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

import numpy as np

from privmarket._files import in_words, write_atomically
from privmarket._settings import Trust
from privmarket.errors import CheckpointError, PrivmarketError
from privmarket.flower._settings import MarketSettings
from privmarket.flower._wire import Arrays, Noted, Receipt
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.rounds import RoundRecord, sale_name

if sys.platform != "win32":
    import fcntl

_JSON = "privmarket-json"
_PREFIX = "array:"


def partial_path(result: Path) -> Path:
    """The file with the settled rounds of an unfinished run: `result.partial.npz` beside `result.json`."""
    return result.with_suffix(".partial.npz")


def open_path(partial: Path) -> Path:
    """The file with the open orders of an unfinished run: `result.open.json` beside `result.partial.npz`."""
    return partial.with_name(partial.name.replace(".partial.npz", ".open.json"))


@dataclass(frozen=True, eq=False)
class OpenOrders:
    """The orders of a round that were sent, and are not settled.

    Attributes:
        run, number, trust: of the round.
        due_micro: client → what it is paid if its update has left; without clients that have said so.
        events: client → what it sold; without clients that say that they sold nothing.
    """

    run: str
    number: int
    trust: Trust
    due_micro: Mapping[str, int]
    events: Mapping[str, PrivacyEvent]

    @property
    def sale(self) -> str:
        """The sale's name in wallets."""
        return sale_name(self.run, self.number)

    def receipt(self, client: str) -> Receipt:
        """The receipt that asks a client what has become of its order."""
        return Receipt(self.run, self.number, self.due_micro[client], trust=self.trust, stopped=True)

    def answered(self, client: str, noted: Noted) -> OpenOrders:
        """The orders after a client has answered."""
        due = {one: micro for one, micro in self.due_micro.items() if one != client}
        events = {one: event for one, event in self.events.items() if one != client or noted.charged}
        return replace(self, due_micro=due, events=events)

    def unanswered(self) -> OpenOrders:
        """The orders of clients that have not answered."""
        return replace(self, events={client: self.events[client] for client in self.due_micro})


def write_open(path: Path, orders: Iterable[OpenOrders]) -> None:
    """Writes open orders to a file in one step; the file is removed if there are none."""
    told = [asdict(one) for one in orders]
    if told:
        write_atomically(path, json.dumps(told) + "\n")
    else:
        path.unlink(missing_ok=True)


def read_open(path: Path | None) -> list[OpenOrders]:
    """The open orders of earlier runs; none if there is no file.

    Raises:
        CheckpointError: the file cannot be read.
    """
    if path is None or not path.exists():
        return []
    try:
        return [
            OpenOrders(
                str(told["run"]),
                int(told["number"]),
                told["trust"],
                {client: int(micro) for client, micro in told["due_micro"].items()},
                {client: _event(event) for client, event in told["events"].items()},
            )
            for told in json.loads(path.read_text(encoding="utf-8"))
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: not the open orders of a run: {in_words(error)}",
            "remove the file: clients whose updates of that round had left will not be paid for them",
        ) from error


@dataclass(frozen=True, eq=False)
class SettledRounds:
    """The settled rounds of a run that was stopped.

    Attributes:
        settings: of the run, as JSON data.
        records: one per settled round.
        arrays: the model, and the server's momentum and average if it has them.
        releases: (name of a sale, client → release), in order.
        receipts: client → the receipt that it has not received yet.
        declared: mean number of records that clients declared in the first round.
                cohorts: round → the number of its secure sums; under aggregate trust."""

    settings: Mapping[str, object]
    records: tuple[RoundRecord, ...]
    arrays: Arrays
    releases: tuple[tuple[str, Mapping[str, PrivacyEvent]], ...]
    receipts: Mapping[str, Receipt] = field(default_factory=dict)
    declared: float = 0.0
    cohorts: Mapping[int, int] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Writes the file in one step."""
        told = {
            "settings": self.settings,
            "records": [asdict(record) for record in self.records],
            "releases": [[sale, {c: asdict(e) for c, e in events.items()}] for sale, events in self.releases],
            "receipts": {client: asdict(receipt) for client, receipt in self.receipts.items()},
            "declared": self.declared,
            "cohorts": [[number, cohorts] for number, cohorts in self.cohorts.items()],
        }
        content = io.BytesIO()
        named: dict[str, Any] = {f"{_PREFIX}{name}": array for name, array in self.arrays.items()}
        named[_JSON] = np.array(json.dumps(told))
        np.savez(content, allow_pickle=False, **named)
        write_atomically(path, content.getvalue())

    @classmethod
    def read(cls, path: Path) -> SettledRounds:
        """The rounds in a file.

        Raises:
            CheckpointError: the file cannot be read.
        """
        try:
            with np.load(path, allow_pickle=False) as content:
                told = json.loads(str(content[_JSON]))
                arrays = {
                    name.removeprefix(_PREFIX): content[name] for name in content.files if name.startswith(_PREFIX)
                }
            return cls(
                settings=told["settings"],
                records=tuple(RoundRecord(**record) for record in told["records"]),
                arrays=arrays,
                releases=tuple(
                    (sale, {client: _event(event) for client, event in events.items()})
                    for sale, events in told["releases"]
                ),
                receipts={client: Receipt(**receipt) for client, receipt in told["receipts"].items()},
                declared=float(told["declared"]),
                cohorts={int(number): int(cohorts) for number, cohorts in told["cohorts"]},
            )
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            raise CheckpointError(
                f"{path}: not the settled rounds of a run: {in_words(error)}", "remove the file to start anew"
            ) from error


def _event(told: Mapping[str, Any]) -> PrivacyEvent:
    """A release, from its fields."""
    family = ReleaseFamily(float(told["sampling_rate"]), int(told["steps"]))
    return family.release(float(told["noise_multiplier"]))


def found(path: Path | None, settings: MarketSettings, arrays: Mapping[str, np.ndarray]) -> SettledRounds | None:
    """The settled rounds of a stopped run with these settings; None if there are none.

    Args:
        arrays: of the model to be trained; a file of another model is refused.

    Raises:
        CheckpointError: the file is from other settings or another model.
    """
    if path is None or not path.exists():
        return None
    left = SettledRounds.read(path)
    now = json.loads(json.dumps(settings.to_json()))
    differing = sorted(key for key in now if now[key] != left.settings.get(key))
    if differing:
        raise CheckpointError(
            f"{path} holds {len(left.records)} rounds of a run with other settings ({', '.join(differing)})",
            "run with the same settings to go on, or remove the file to start anew",
        )
    shapes = {name: array.shape for name, array in arrays.items()}
    there = {name: left.arrays[name].shape for name in shapes if name in left.arrays}
    if shapes != there:
        raise CheckpointError(
            f"{path} holds rounds of another model", "use the same model to go on, or remove the file to start anew"
        )
    return left


STOP_VARIABLE = "PRIVMARKET_STOP"  # in a server's environment: the file that asks it to stop


def stop_asked() -> bool:
    """Whether the run is to stop after the round that was just settled."""
    place = os.environ.get(STOP_VARIABLE)
    return bool(place) and Path(str(place)).exists()


class StopAskedError(PrivmarketError):
    """A run ends after a settled round, since it was asked to.

    An ordinary error: Flower ends a run on a deployment with it. Of a KeyboardInterrupt the server app would die
    without a word, and its SuperLink and nodes would wait.
    """

    code = "stopped"


RUNNING_VARIABLE = "PRIVMARKET_RUNNING"  # in a server's environment: a file that it keeps locked while it runs


_locked: list[IO[str]] = []  # files that stay open, and so locked, until this process ends


def note_running() -> None:
    """Locks the file of a server for as long as this process lives, however it ends."""
    place = os.environ.get(RUNNING_VARIABLE)
    if place and sys.platform != "win32" and not _locked:
        stream = Path(place).open("a")  # noqa: SIM115
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.write("running\n")
        stream.flush()
        _locked.append(stream)


def has_ended(place: Path) -> bool:
    """Whether a server that kept this file locked runs no more; False if none has begun."""
    if sys.platform == "win32" or not place.exists() or not place.stat().st_size:
        return False
    with place.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


@contextmanager
def orderly_stop(place: Path) -> Iterator[None]:
    """A context in which the first Ctrl-C creates the file `place`; the second has its ordinary effect."""
    place.unlink(missing_ok=True)
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave_file(_: int, frame: FrameType | None) -> None:
        place.touch()
        signal.signal(signal.SIGINT, before)
        print("finishing the round in progress; press Ctrl-C again to stop at once", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGINT, leave_file)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        place.unlink(missing_ok=True)
