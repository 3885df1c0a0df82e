"""A client's wallet on its own disk: it outlives processes, and what was about to be released counts as spent.

The file is a list of JSON lines that only grows: `opened`, then per sale `reserved`, and `released`, `paid` or
`void`. A sale is written and forced to disk *before* training for it starts, so whenever the process dies, between
that line and the reply or later, the wallet has paid. A line cut short by a crash was never forced to disk, hence
nothing was released for it, and it is dropped. A lock on the file keeps two processes of one client from spending
the same ε. `wallet_store` states the rule for when ε is spent.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, NotRequired, TypedDict

import numpy as np

from privmarket.errors import PrivmarketError, WalletError
from privmarket.files import force_folder
from privmarket.plans import DELTA, Trust
from privmarket.privacy.accountant import composed_epsilon
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.privacy.events import PrivacyEvent
from privmarket.privacy.wallet import Wallets
from privmarket.privacy.wallet_store import SoldBeforeError, not_reserved
from privmarket.privacy.words import Unit


class WalletFileError(PrivmarketError):
    """A wallet file is damaged, or was written by something else."""

    code = "bad-wallet-file"


class SaleEntry(TypedDict):
    """One sale in a wallet file: what was reserved, whether it left, and what was paid."""

    epsilon: float
    event: dict[str, float]
    released: bool
    unit: NotRequired[Unit]
    trust: NotRequired[Trust]
    honest_share: NotRequired[float]
    void: NotRequired[bool]
    update_sha256: NotRequired[str]
    paid_micro: NotRequired[int]
    fault: NotRequired[str]


class SaleLine(SaleEntry):
    """One sale as a line of the seller's statement: the entry, and the sale's name."""

    sale: str


@dataclass
class _Replay:
    """What the first `offset` bytes of a wallet file say. Kept, so that a message reads only what is new."""

    inode: int
    offset: int = 0
    wallets: Wallets | None = None
    sales: dict[str, SaleEntry] = field(default_factory=dict)


_REPLAYS: dict[Path, _Replay] = {}

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


class WalletFile:
    """One client's wallet file.

    Args:
        path: the file; made, with its folder, when the first bid is asked for.
        cap_epsilon: lifetime limit on what the client sells, at `delta`. Fixed when the file is made.
    """

    def __init__(self, path: Path | str, cap_epsilon: float, delta: float = DELTA) -> None:
        self.path, self.cap_epsilon, self.delta = Path(path).absolute(), float(cap_epsilon), delta

    @contextmanager
    def open(self) -> Iterator[OpenWallet]:
        """The wallet, locked for this process.

        What a new wallet watches is fixed by its first sale, not by the first call for bids, which costs its sender
        nothing.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as stream:
            replay = self._replay(stream)
            if replay.wallets is None:
                cap = None if np.isinf(self.cap_epsilon) else self.cap_epsilon
                _append(stream, replay, {"kind": "opened", "cap_epsilon": cap, "delta": self.delta})
                force_folder(self.path.parent)
            wallets = replay.wallets
            assert wallets is not None
            if float(wallets.cap_epsilon[0]) != self.cap_epsilon or wallets.delta != self.delta:
                raise WalletError(
                    f"{self.path.name} was opened with a cap of ε = {wallets.cap_epsilon[0]:g}, "
                    f"δ = {wallets.delta:g}, not {self.cap_epsilon:g} at {self.delta:g}",
                    "a lifetime cap is for life; give the first one",
                )
            yield OpenWallet(stream, replay, wallets)

    @classmethod
    def existing(cls, path: Path | str) -> WalletFile:
        """A wallet that was made before, with the cap and δ that it was made with."""
        place = Path(path)
        try:
            with place.open("rb") as stream:
                first = json.loads(stream.readline())
            cap = math.inf if first["cap_epsilon"] is None else float(first["cap_epsilon"])
            return cls(place, cap, float(first["delta"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WalletFileError(f"{place}: not a wallet file ({error})", "name the file of a client") from error

    @property
    def measure(self) -> str:
        """What the wallet watches; `open` before the first sale."""
        wallets = self._read().wallets
        return "open" if wallets is None else wallets.measure[0]

    @property
    def remaining_share(self) -> float:
        """The share of the wallet that is left, from 0 to 1."""
        wallets = self._read().wallets
        return 1.0 if wallets is None else float(wallets.remaining_share[0])

    @property
    def epsilon_spent(self) -> float:
        """ε at δ of all sales so far, as the accountant reports it; the wallet's own count is stricter."""
        return composed_epsilon(self.spent(), self.delta)

    @property
    def epsilon_remaining(self) -> float:
        """The most ε that one more sale of one full step may have: `inf` without a cap, 0 if none fits."""
        if math.isinf(self.cap_epsilon):
            return math.inf
        wallets = self._read().wallets or Wallets(self.cap_epsilon, self.delta)
        return float(wallets.affordable(ReleaseFamily(1.0, 1, self.delta), self.cap_epsilon)[0])

    def statement(self) -> list[SaleLine]:
        """Every sale: its ε and release, what ε means, whether it was released, and what was paid for it."""
        return [{"sale": name, **sale} for name, sale in self._read().sales.items()]

    def sales(self) -> set[str]:
        """The names of all sales."""
        return set(self._read().sales)

    def spent(self) -> tuple[PrivacyEvent, ...]:
        """All that counts as spent, oldest first."""
        wallets = self._read().wallets
        return () if wallets is None else tuple(e for entry in wallets.history if (e := entry[0]) is not None)

    def _read(self) -> _Replay:
        if not self.path.exists():
            return _Replay(0)
        with self.path.open("a+b") as stream:
            return self._replay(stream)

    def _replay(self, stream: IO[bytes]) -> _Replay:
        """Waits until no other process has the file, and reads what is new. Closing the file frees the lock."""
        if sys.platform == "win32":
            stream.seek(0)
            msvcrt.locking(stream.fileno(), msvcrt.LK_LOCK, 1)
        else:
            fcntl.flock(stream, fcntl.LOCK_EX)
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


@dataclass(frozen=True, eq=False)
class OpenWallet:
    """A wallet file while it is locked: what may be offered, what is sold, what was paid.

    Attributes:
        wallets: the filter, of one client.
    """

    _stream: IO[bytes]
    _state: _Replay
    wallets: Wallets

    def reserve(
        self,
        sale: str,
        epsilon: float,
        event: PrivacyEvent,
        *,
        unit: str = "record",
        trust: str = "local",
        honest_share: float | None = None,
    ) -> None:
        """Sets a sale aside, on disk when this returns; nothing more has to be written before training starts.

        `unit`, `trust` and, under aggregate trust, `honest_share` say what ε means; they are noted for the seller's
        statement.

        Raises:
            WalletError: it does not fit.
            SoldBeforeError: it was sold before, void or not.
        """
        if sale in self._state.sales:
            raise SoldBeforeError(sale)
        try:
            copy(self.wallets).spend([event])
        except WalletError as error:
            raise WalletError(
                f"ε = {epsilon:g} does not fit: {self.remaining_share:.1%} of the wallet is left", "offer less"
            ) from error
        line: dict[str, object] = {"kind": "reserved", "sale": sale, "epsilon": epsilon, "event": asdict(event)}
        line |= {"unit": unit, "trust": trust}
        if trust == "aggregate" and honest_share is not None:
            line["honest_share"] = honest_share
        _append(self._stream, self._state, line)

    def void(self, sale: str) -> None:
        """Gives a sale back for which nothing was released. The sale cannot be made again.

        Raises:
            WalletError: it was not made, is void already, or its update has left.
        """
        found = self._state.sales.get(sale)
        if found is None or found.get("void") or found["released"]:
            raise not_reserved(sale)
        _append(self._stream, self._state, {"kind": "void", "sale": sale})

    def released(self, sale: str, update_sha256: str) -> None:
        """Notes in the file that the update of a sale has left this machine, with its hash."""
        _append(self._stream, self._state, {"kind": "released", "sale": sale, "update_sha256": update_sha256})

    def paid(self, sale: str, paid_micro: int, fault: str) -> None:
        """Notes what the server said it paid; a receipt that comes twice is noted once."""
        if sale in self._state.sales and "paid_micro" not in self._state.sales[sale]:
            line = {"kind": "paid", "sale": sale, "paid_micro": paid_micro, "fault": fault}
            _append(self._stream, self._state, line)

    @property
    def remaining_share(self) -> float:
        """The share of the wallet that is left, from 0 to 1."""
        return float(self.wallets.remaining_share[0])


def _append(stream: IO[bytes], state: _Replay, entry: Mapping[str, object]) -> None:
    """Writes a line, forces it to disk, and does to the state what reading it would do."""
    line = json.dumps(entry).encode() + b"\n"
    stream.write(line)
    stream.flush()
    os.fsync(stream.fileno())
    _apply(state, line, "a new line")
    state.offset += len(line)


def _apply(state: _Replay, line: bytes, place: str) -> None:
    """Changes the state of a wallet as one line of its file says."""
    try:
        entry = json.loads(line)
        kind, sale = entry.pop("kind"), entry.pop("sale", None)
        if kind == "opened" and state.wallets is None:
            cap = np.inf if entry["cap_epsilon"] is None else entry["cap_epsilon"]
            # Older files name a release that the first call for bids had announced, and watch what suits that.
            expected = [PrivacyEvent(**entry["expected"])] if "expected" in entry else []
            state.wallets = Wallets([cap], entry["delta"], expected=expected)
        elif kind == "reserved" and state.wallets is not None:
            state.wallets.spend([PrivacyEvent(**entry["event"])])
            state.sales[sale] = entry
            state.sales[sale]["released"] = False
        elif kind == "void" and state.wallets is not None:
            state.wallets.void(list(state.sales).index(sale), [0])
            state.sales[sale]["void"] = True
        elif kind == "released":
            state.sales[sale].update(entry)
            state.sales[sale]["released"] = True
        elif kind == "paid":
            state.sales[sale].update(entry)
        else:
            raise ValueError(f"unexpected {kind}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WalletFileError(
            f"{place}: {line[:80]!r} ({error})",
            "restore a copy that holds every sale (an older one would sell the same ε again); never edit it",
        ) from error
