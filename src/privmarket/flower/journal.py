"""A client's wallet on its own disk: it outlives processes, and what was about to be released counts as spent.

The file is a list of JSON lines that only grows. A sale is written and forced to disk *before* training for it
starts, so whenever the process dies, between that line and the reply or later, the wallet has paid. A line cut
short by a crash was never forced to disk, hence nothing was released for it, and it is dropped. A lock on the
file keeps two processes of one client from spending the same ε.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from privmarket.errors import PrivmarketError, WalletError
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.privacy.events import DEFAULT_DELTA, PrivacyEvent, from_json, to_json
from privmarket.privacy.wallet import Wallets


class JournalError(PrivmarketError):
    """A wallet file that cannot be trusted."""

    code = "bad-journal"


@dataclass
class _Replay:
    """What the first `offset` bytes of a wallet file say. Kept, so that a message reads only what is new."""

    inode: int
    offset: int = 0
    wallets: Wallets | None = None
    sales: dict[str, dict[str, Any]] = field(default_factory=dict)


_REPLAYS: dict[Path, _Replay] = {}


class WalletFile:
    """One client's wallet file.

    Args:
        path: the file; made, with its folder, when the first bid is asked for.
        cap_epsilon: lifetime limit on what the client sells, at `delta`. Fixed when the file is made.
    """

    def __init__(self, path: Path | str, cap_epsilon: float, delta: float = DEFAULT_DELTA) -> None:
        self.path, self.cap_epsilon, self.delta = Path(path).absolute(), float(cap_epsilon), delta

    @contextmanager
    def open(self, family: ReleaseFamily, epsilon_max: float) -> Iterator[WalletBook]:
        """The wallet, locked for this process; a new one watches what suits releases of `family`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            replay = self._replay(stream)
            book = WalletBook(stream, replay)
            if replay.wallets is None:
                cap = None if np.isinf(self.cap_epsilon) else self.cap_epsilon
                expected = to_json(family.event(epsilon_max))
                book._append({"kind": "opened", "cap_epsilon": cap, "delta": self.delta, "expected": expected})
                _force_folder(self.path.parent)
            self._check_cap(replay.wallets)
            yield book

    def statement(self) -> list[dict[str, Any]]:
        """Every sale: its ε, whether it was released, and what was paid for it."""
        if not self.path.exists():
            return []
        with self.path.open("a+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            return [{"sale": name, **sale} for name, sale in self._replay(stream).sales.items()]

    def _replay(self, stream: IO[bytes]) -> _Replay:
        inode, size = os.fstat(stream.fileno()).st_ino, os.fstat(stream.fileno()).st_size
        replay = _REPLAYS.get(self.path)
        if replay is None or replay.inode != inode or replay.offset > size:
            replay = _REPLAYS[self.path] = _Replay(inode)
        stream.seek(replay.offset)
        whole, newline, torn = stream.read().rpartition(b"\n")
        for number, line in enumerate(whole.split(b"\n") if newline else [], 1):
            _apply(replay, line, f"{self.path.name}, line {number} from byte {replay.offset}")
        replay.offset += len(whole) + len(newline)
        if torn:
            stream.truncate(replay.offset)
        return replay

    def _check_cap(self, wallets: Wallets | None) -> None:
        assert wallets is not None
        if float(wallets.cap_epsilon[0]) != self.cap_epsilon or wallets.delta != self.delta:
            raise WalletError(
                f"{self.path.name} was opened with a cap of ε = {wallets.cap_epsilon[0]:g}, δ = {wallets.delta:g}, "
                f"not {self.cap_epsilon:g} at {self.delta:g}",
                "a lifetime cap is for life; give the first one",
            )


class WalletBook:
    """An open wallet file: what may be offered, what is sold, what was paid."""

    def __init__(self, stream: IO[bytes], replay: _Replay) -> None:
        self._stream, self._state = stream, replay

    @property
    def _wallets(self) -> Wallets:
        assert self._state.wallets is not None
        return self._state.wallets

    def affordable(self, family: ReleaseFamily, wanted: float, rounds_left: int = 1) -> float:
        """The most ε up to `wanted` that fits in each of `rounds_left` rounds; 0 if nothing does."""
        if np.isinf(self._wallets.cap_epsilon[0]):
            return wanted
        purse = self._wallets.share(rounds_left) if rounds_left > 1 else self._wallets
        return float(purse.trim(family, wanted)[0])

    def reserve(self, sale: str, epsilon: float, event: PrivacyEvent) -> None:
        """Charges a sale, on disk when this returns.

        Raises:
            WalletError: it does not fit, or was sold before: a second release would be a second cost.
        """
        if sale in self._state.sales:
            raise WalletError(f"sale {sale} was made before", "a round is sold once, even if its reply was lost")
        if not self._wallets.can_spend([event])[0]:
            raise WalletError(
                f"ε = {epsilon:g} does not fit: {self.remaining_share:.1%} of the wallet is left", "offer less"
            )
        self._append({"kind": "reserved", "sale": sale, "epsilon": epsilon, "event": to_json(event)})

    def released(self, sale: str, update_sha256: str) -> None:
        """Notes that the update of a sale left."""
        self._append({"kind": "released", "sale": sale, "update_sha256": update_sha256})

    def paid(self, sale: str, paid_micro: int, fault: str) -> None:
        """Notes what the server said it paid; a receipt that comes twice is noted once."""
        if sale in self._state.sales and "paid_micro" not in self._state.sales[sale]:
            self._append({"kind": "paid", "sale": sale, "paid_micro": paid_micro, "fault": fault})

    @property
    def remaining_share(self) -> float:
        """The part of the wallet that is left."""
        return float(self._wallets.remaining_share[0])

    def _append(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry).encode() + b"\n"
        self._stream.write(line)
        self._stream.flush()
        os.fsync(self._stream.fileno())
        _apply(self._state, line, "a new line")
        self._state.offset += len(line)


def _apply(state: _Replay, line: bytes, place: str) -> None:
    """One line's effect."""
    try:
        entry = json.loads(line)
        kind, sale = entry.pop("kind"), entry.pop("sale", None)
        if kind == "opened" and state.wallets is None:
            cap = np.inf if entry["cap_epsilon"] is None else entry["cap_epsilon"]
            state.wallets = Wallets([cap], entry["delta"], expected=[from_json(entry["expected"])])
        elif kind == "reserved" and state.wallets is not None:
            state.wallets.spend([from_json(entry.pop("event"))])
            state.sales[sale] = {**entry, "released": False}
        elif kind == "released":
            state.sales[sale] |= {**entry, "released": True}
        elif kind == "paid":
            state.sales[sale] |= entry
        else:
            raise ValueError(f"unexpected {kind}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JournalError(
            f"{place}: {line[:80]!r} ({error})", "restore the file from a copy; never edit it"
        ) from error


def _force_folder(folder: Path) -> None:
    """A new file survives a power cut only when its folder is forced to disk, too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
