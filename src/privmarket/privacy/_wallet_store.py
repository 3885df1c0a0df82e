"""Where wallets are kept, and the one rule for when ε is spent.

A sale of ε goes through at most two steps, in every engine and every store:

1. *reserved* when the client has an award. From then on it counts as spent: no second sale can use it, and a
   process that dies has spent. So it is charged before the first private byte is computed, in the same step.
2. *void* only if it is certain that nothing was released: the client refused, or never learned of its award.
   After a missing, faulty or late answer that is not certain, so the sale stays charged.

At a broker, a seller claims its delivery *before* its update leaves. A seller that has not claimed at the published
deadline, after which no claim is accepted, has released nothing, so the broker voids its award. This holds for
sellers that follow the protocol. One that sends an update without a claim exceeds its own limit, is not paid, and
harms nobody else. A Flower client that sells through a broker also has a wallet on its own disk, which stays
charged from the moment it accepts an order, with or without a claim. The stricter of the two wallets decides what
it can still sell.

`WalletStore` names these steps as the driver of a round calls them: all clients of a round are charged, or none.
`MemoryStore` and `ReleaseBook`, in memory, are such stores. A client's file and a broker's database take the same
steps, with the same filter (`Wallets`) and the same errors, but are not called by a driver:

- `OpenWallet` reserves one client's sale while its file is locked, and keeps what the client's statement says of
  the sale. Every client decides for itself, so there is no "all or none".
- `broker._wallets` writes a round's awards into the log, in the transaction that clears it, with payments. Whether
  they fit was checked before, outside that transaction; settlement voids row by row, between other entries.

`tests/laws/test_wallet_stores.py` runs the same tests on all of them, through the calls that the engines make.

A client's wallet file (`WalletFile`) is a list of JSON lines that only grows: `opened`, perhaps `guarded` and
`lowered`, then per sale `reserved`, and `released`, `paid` or `void`. A sale is written and forced to disk *before*
training for it starts, so the sale is charged whenever the process dies after that. A line cut short by a crash
was never forced to disk, hence nothing was released for it, and it is dropped. A lock on the file keeps two
processes of one client from spending the same ε.

Each line ends with a hash over it and the hash of the line before. A line that was changed, left out or put in
between does not fit, and the file is refused; so is an empty one, since a new file has its first line from the
start. The hashes have no key: whoever writes all later lines anew, or removes the last ones, is not noticed by the
file alone. If an older copy of the file is put back, the same ε could be sold again. Two things detect that:

- A *head file* on another disk, written after each line: how many lines there are, and the last of a chain of
  hashes over them. A file that is shorter, or that differs in a line that was counted, is refused. One that is
  longer is not: a crash may come between the two writes.
- A broker's books, if sales go through a broker: each delivery that the broker has from this seller must be in the
  file (`OpenWallet.compare`).

The file in turn detects an older copy of the seller's journal of secure sums (`check_journal`, `confirmed`), so
what protects the wallet also protects the journal.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, NotRequired, Protocol, TypedDict

import numpy as np

from privmarket._files import force_folder, in_words, write_atomically
from privmarket._settings import DELTA, Trust
from privmarket.errors import PrivacyError, PrivmarketError, WalletError
from privmarket.privacy._accountant import composed_epsilon
from privmarket.privacy._calibration import ReleaseFamily, alone_event
from privmarket.privacy._events import PrivacyEvent, Release, Unit, from_json, to_json
from privmarket.privacy._wallet import Measure, Wallets

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


class SoldBeforeError(WalletError):
    """A second sale under one name: a second release would be a second cost."""

    def __init__(self, sale: str) -> None:
        super().__init__(
            f"sale {sale} was made before", "sell in another round: each is sold once, even if its reply was lost"
        )


class WalletStore(Protocol):
    """What clients sold, by clients' names; a round reserves and voids sales here. The module states the rule."""

    def reserve(self, sale: str, events: Mapping[str, PrivacyEvent]) -> None:
        """Sets aside what each client sold; it counts as spent when this returns.

        Args:
            sale: names the round in which it was sold, e.g. `run/round`.
            events: client → the release that it sold.

        Raises:
            WalletError: one does not fit, or was sold under this name before. Then nothing is set aside at all.
        """

    def void(self, sale: str, clients: Collection[str]) -> None:
        """Gives back what was set aside for clients that certainly released nothing.

        Raises:
            WalletError: a client sold nothing under this name, or its update is known to have left.
        """

    def spent(self, client: str) -> tuple[Release, ...]:
        """All that counts as spent by a client, oldest first; empty for a client that is not known."""


@dataclass(eq=False)
class MemoryStore:
    """The wallets of a fixed list of clients, in memory.

    Attributes:
        places: client → its position in `wallets`.
        wallets: their wallets. Those that were passed in are not changed; the store replaces them with new ones.
    """

    places: Mapping[str, int]
    wallets: Wallets
    _sales: dict[str, tuple[int, set[str]]] = field(default_factory=dict)

    def reserve(self, sale: str, events: Mapping[str, Release]) -> None:
        """Reserves the releases of a sale for all clients or, if one does not fit, for none."""
        if sale in self._sales:
            raise SoldBeforeError(sale)
        entry: list[Release | None] = [None] * self.wallets.clients
        for client, event in events.items():
            entry[self.places[client]] = event
        charged = copy(self.wallets)
        self._sales[sale] = charged.spend(entry), set(events)
        self.wallets = charged

    def void(self, sale: str, clients: Collection[str]) -> None:
        """Gives back what was reserved, as `WalletStore.void` describes."""
        if sale not in self._sales:
            raise not_reserved(sale)
        entry, sold = self._sales[sale]
        for client in clients:
            if client not in sold:
                raise not_reserved(f"{sale} of {client}")
        kept = copy(self.wallets)
        kept.void(entry, [self.places[client] for client in clients])
        self.wallets = kept
        sold.difference_update(clients)

    def spent(self, client: str) -> tuple[Release, ...]:
        """What counts as spent of a client's wallet, as `WalletStore.spent` describes."""
        if client not in self.places:
            return ()
        at = self.places[client]
        return tuple(event for entry in self.wallets.history if (event := entry[at]) is not None)


class ReleaseBook:
    """What clients sold, without caps: for a server whose clients keep their own wallets."""

    def __init__(self) -> None:
        self._sales: dict[str, dict[str, PrivacyEvent]] = {}

    def reserve(self, sale: str, events: Mapping[str, PrivacyEvent]) -> None:
        """Books the releases of a sale; without a cap every sale fits."""
        if sale in self._sales:
            raise SoldBeforeError(sale)
        self._sales[sale] = dict(events)

    def void(self, sale: str, clients: Collection[str]) -> None:
        """Gives back what was reserved, as `WalletStore.void` describes."""
        if sale not in self._sales:
            raise not_reserved(sale)
        for client in clients:
            if client not in self._sales[sale]:
                raise not_reserved(f"{sale} of {client}")
        for client in clients:
            del self._sales[sale][client]

    def spent(self, client: str) -> tuple[PrivacyEvent, ...]:
        """What counts as spent by a client, as `WalletStore.spent` describes."""
        return tuple(events[client] for events in self._sales.values() if client in events)

    def sales(self) -> tuple[tuple[str, dict[str, PrivacyEvent]], ...]:
        """(name, client → release) of every sale, in order."""
        return tuple((sale, dict(events)) for sale, events in self._sales.items())

    def releases(self) -> dict[str, tuple[PrivacyEvent, ...]]:
        """client → all that counts as spent, for everybody who sold something."""
        found: dict[str, list[PrivacyEvent]] = {}
        for events in self._sales.values():
            for client, event in events.items():
                found.setdefault(client, []).append(event)
        return {client: tuple(events) for client, events in found.items()}


def not_reserved(sale: str) -> WalletError:
    """The error of every store for a sale that cannot be void: never reserved, released, or void already."""
    return WalletError(
        f"nothing is reserved for {sale}: it cannot be void",
        "void a sale once, after reserve() and before its update leaves",
    )


class WalletFileError(PrivmarketError):
    """A wallet file is damaged, or was written by something else."""

    code = "bad-wallet-file"


class SaleEntry(TypedDict):
    """One sale in a wallet file: what was reserved, whether it left, and what was paid.

    `buyer`, `broker` and `broker_round` are empty without a broker; `due_micro` is owed on delivery; `sellers`,
    `cohorts` and `registered` are those of a secure sum, `confirmed` is a hash of the list of survivors that the
    seller signed for it.
    """

    epsilon: float
    event: dict[str, Any]
    released: bool
    unit: NotRequired[Unit]
    trust: NotRequired[Trust]
    honest_share: NotRequired[float]
    sellers: NotRequired[int]
    cohorts: NotRequired[int]
    registered: NotRequired[bool]
    confirmed: NotRequired[str]
    buyer: NotRequired[str]
    broker: NotRequired[str]
    broker_round: NotRequired[str]
    due_micro: NotRequired[int]
    void: NotRequired[bool]
    update_sha256: NotRequired[str]
    paid_micro: NotRequired[int]
    fault: NotRequired[str]


class SaleLine(SaleEntry):
    """One sale as a line of the seller's statement: the entry, and the sale's name."""

    sale: str


class BookedDelivery(TypedDict):
    """One of a seller's deliveries as a broker's books have it: see `broker._answers.AwardAnswer`."""

    round_id: str
    claim_sha256: str | None
    settled_seq: int | None
    paid_micro: int
    fault: str | None


Protection = Literal["broker", "head-file", "none"]
PROTECTIONS: dict[Protection, str] = {
    "broker": "refused, since the broker's books are compared with the file before each sale",
    "head-file": "refused, since a second file says how long this one must be",
    "none": "not noticed; it would sell the same ε again (give head_file, or sell at a broker)",
}


@dataclass
class _Replay:
    """The state after the first `offset` bytes of a wallet file; kept, so that only new lines are read later.

    Attributes:
        unit: what one unit of privacy is, for all sales.
        heads: one hash per line, over it and all before it.
        head_file: the second file, as the file itself names it; None where it has none.
    """

    inode: int
    offset: int = 0
    unit: Unit = "record"
    wallets: Wallets | None = None
    sales: dict[str, SaleEntry] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)
    head_file: Path | None = None


_REPLAYS: dict[Path, _Replay] = {}


class WalletFile:
    """One client's wallet file.

    Args:
        path: the file; made, with its folder, when the first bid is asked for.
        cap_epsilon: lifetime limit on what the client sells, at `delta`. It can be lowered later, never raised.
        head_file: a second file, best on another disk, that shows when an older copy of `path` is put back. A
            wallet that has one keeps it, also where it is left out later. Its folder must be there.
        unit: what one unit of privacy is. Fixed when the file is made: ε per record and per person do not add up.
    """

    def __init__(
        self,
        path: Path | str,
        cap_epsilon: float,
        delta: float = DELTA,
        head_file: Path | str | None = None,
        unit: Unit = "record",
    ) -> None:
        self.path = Path(path).absolute()
        self.cap_epsilon = float(cap_epsilon)
        self.delta = delta
        self.head_file = None if head_file is None else Path(head_file).absolute()
        self.unit: Unit = unit

    @contextmanager
    def open(self) -> Iterator[OpenWallet]:
        """The wallet, locked for this process. Its first line says what it watches, which never changes.

        Raises:
            WalletError: the file was opened with a lower cap, another δ or another unit.
            WalletFileError: it is damaged, changed, or an older copy; or the head file's folder is not there.
        """
        if self.head_file is not None and not self.head_file.parent.is_dir():
            raise WalletFileError(
                f"the head file of {self.path.name} cannot be kept: there is no folder {self.head_file.parent}",
                "mount the disk on which it is, or make the folder yourself",
            )
        if not self.path.exists():
            self._make()
        with self.path.open("a+b") as stream:
            replay = self._replay(stream)
            self._agree(stream, replay)
            if self.head_file is not None and self.head_file != replay.head_file:
                replay.head_file = self.head_file
                _append(stream, replay, {"kind": "guarded", "head_file": str(self.head_file)})
            assert replay.wallets is not None
            yield OpenWallet(stream, replay, replay.wallets)

    def _make(self) -> None:
        """Makes the file with its first line; if another process makes it now, that one's is taken."""
        if self.head_file is not None and self.head_file.exists():
            raise _rolled_back(self.path, f"{self.head_file} belongs to a wallet, and the wallet is gone")
        cap = None if np.isinf(self.cap_epsilon) else self.cap_epsilon
        (measures,) = Wallets(self.cap_epsilon, self.delta).measures
        first = {"kind": "opened", "cap_epsilon": cap, "delta": self.delta, "unit": self.unit, "measures": measures}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            stream = self.path.open("xb")
        except FileExistsError:
            return
        with stream:
            _lock(stream)
            _write(stream, _line("", first))
        force_folder(self.path.parent)

    def _agree(self, stream: IO[bytes], replay: _Replay) -> None:
        """Lowers the cap if a lower one is given; refuses a higher one, another δ and another unit."""
        wallets = replay.wallets
        assert wallets is not None
        cap = float(wallets.cap_epsilon[0])
        if replay.unit != self.unit:
            raise WalletError(
                f"{self.path.name} counts ε per {replay.unit}, not per {self.unit}: the two do not add up",
                f'write unit = "{replay.unit}" into the policy; or name another wallet file, which begins anew and '
                "counts nothing of what this one sold",
            )
        if self.cap_epsilon > cap or wallets.delta != self.delta:
            raise WalletError(
                f"{self.path.name} has a cap of ε = {cap:g} at δ = {wallets.delta:g}, not {self.cap_epsilon:g} at "
                f"{self.delta:g}",
                "a lifetime cap is for life: it can be lowered, not raised, and its δ stays. Give the cap and δ of "
                "the file",
            )
        if self.cap_epsilon < cap:
            try:
                _lowered(wallets, self.cap_epsilon)
            except WalletError as error:
                raise WalletError(
                    f"{self.path.name} has sold more than a cap of ε = {self.cap_epsilon:g} allows",
                    f"give {cap:g}, the cap until now, or a lower one that holds what was sold",
                ) from error
            _append(stream, replay, {"kind": "lowered", "cap_epsilon": self.cap_epsilon})

    @classmethod
    def existing(cls, path: Path | str) -> WalletFile:
        """A wallet that was made before, with the cap and δ that it was made with."""
        place = Path(path)
        try:
            with place.open("rb") as stream:
                first = json.loads(stream.readline())
            cap = math.inf if first["cap_epsilon"] is None else float(first["cap_epsilon"])
            found = cls(place, cap, float(first["delta"]), unit=first["unit"])
        except FileNotFoundError as error:
            raise WalletFileError(
                f"{place}: not a wallet file, since there is no such file",
                "name the file of a client; its first sale or release makes it",
            ) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WalletFileError(
                f"{place}: not a wallet file: {in_words(error)}", "name the file of a client"
            ) from error
        found.cap_epsilon = float(found._wallets().cap_epsilon[0])  # it may have been lowered
        return found

    @property
    def measure(self) -> str:
        """The measure of which the largest part is left: `gaussian`, `pure`, or `renyi` and the order."""
        return self._wallets().measure[0]

    @property
    def measures(self) -> list[Measure]:
        """All measures that the wallet watches, each with its share of δ."""
        return self._wallets().measures[0]

    @property
    def remaining_share(self) -> float:
        """The share of the wallet that is left, from 0 to 1."""
        return float(self._wallets().remaining_share[0])

    @property
    def epsilon_spent(self) -> float:
        """ε at δ of all sales so far, as the accountant reports it; the wallet's own count is stricter."""
        return composed_epsilon(self.spent(), self.delta)

    @property
    def epsilon_remaining(self) -> float:
        """The most ε that one more sale of one full step may have: `inf` without a cap, 0 if none fits."""
        if math.isinf(self.cap_epsilon):
            return math.inf
        return float(self._wallets().affordable(ReleaseFamily(1.0, 1, self.delta), self.cap_epsilon)[0])

    @property
    def protections(self) -> tuple[Protection, ...]:
        """Everything that can detect an older copy of the file; ("none",) if nothing can."""
        replay = self._read()
        found: list[Protection] = []
        if any(sale.get("broker_round") for sale in replay.sales.values()):
            found.append("broker")
        if replay.head_file is not None or self.head_file is not None:
            found.append("head-file")
        return tuple(found) or ("none",)

    def unpaid(self) -> dict[str, float]:
        """Buyer → ε of all that it has not paid for; the empty name stands for buyers without a broker."""
        sales = self._read().sales
        buyers = {sale.get("buyer", "") for sale in sales.values() if _is_owed(sale)}
        return {buyer: _unpaid_epsilon(sales, buyer, self.delta) for buyer in sorted(buyers)}

    def statement(self) -> list[SaleLine]:
        """Every sale: its ε and release, what ε means, whether it was released, and what was paid for it."""
        return [{"sale": name, **sale} for name, sale in self._read().sales.items()]

    def sales(self) -> set[str]:
        """The names of all sales."""
        return set(self._read().sales)

    def spent(self) -> tuple[Release, ...]:
        """All that counts as spent, oldest first."""
        wallets = self._read().wallets
        return () if wallets is None else tuple(e for entry in wallets.history if (e := entry[0]) is not None)

    def _wallets(self) -> Wallets:
        return self._read().wallets or Wallets(self.cap_epsilon, self.delta)

    def _read(self) -> _Replay:
        if not self.path.exists():
            return _Replay(0)
        with self.path.open("a+b") as stream:
            return self._replay(stream)

    def _replay(self, stream: IO[bytes]) -> _Replay:
        """Waits for the lock on the file, and reads the new lines. Closing the file frees the lock."""
        _lock(stream)
        inode = os.fstat(stream.fileno()).st_ino
        size = os.fstat(stream.fileno()).st_size
        replay = _REPLAYS.pop(self.path, None)  # kept again only if all of the file can be read
        if replay is None or replay.inode != inode or replay.offset > size:
            replay = _Replay(inode)
        stream.seek(replay.offset)
        whole, newline, torn = stream.read().rpartition(b"\n")
        for number, line in enumerate(whole.split(b"\n") if newline else [], 1):
            _apply(replay, line, f"{self.path.name}, line {number} from byte {replay.offset}")
        replay.offset += len(whole) + len(newline)
        if replay.wallets is None:
            raise WalletFileError(
                f"{self.path.name} is empty: no wallet begins like that",
                "put the newest copy back. Remove the file only if nothing was ever sold or released from it",
            )
        self._check_head(replay)
        if torn:
            stream.truncate(replay.offset)
        _REPLAYS[self.path] = replay
        return replay

    def _check_head(self, replay: _Replay) -> None:
        """Compares the file with its head file: the one that its own lines name, or else the one that was given."""
        place = replay.head_file
        if place is not None and not place.exists() and self.head_file is not None:
            place = self.head_file  # it was moved
        if place is None:
            place = self.head_file
            if place is None or not place.exists() or not replay.heads:
                return  # there is none yet
        try:
            noted = json.loads(place.read_text(encoding="utf-8"))
            lines = int(noted["lines"])
            head = str(noted["head"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WalletFileError(
                f"the head file of {self.path.name} cannot be read: {place}: {in_words(error)}",
                "put the head file back, or name the place to which it was moved as head_file",
            ) from error
        if lines > len(replay.heads):
            raise _rolled_back(self.path, f"it has {len(replay.heads)} lines where {place} counted {lines}")
        if lines < 1 or replay.heads[lines - 1] != head:
            raise _rolled_back(self.path, f"its first {lines} lines are not those that {place} counted")


@dataclass(frozen=True, eq=False)
class OpenWallet:
    """A wallet file while it is locked. It tells what may be offered, and records what is sold and paid.

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
        event: Release,
        *,
        unit: Unit | None = None,
        trust: str = "local",
        honest_share: float | None = None,
        sellers: int = 0,
        cohorts: int = 1,
        registered: bool = True,
        buyer: str = "",
        broker: str = "",
        broker_round: str = "",
        due_micro: int = 0,
    ) -> None:
        """Sets a sale aside. It is on disk when this returns, so training may start.

        Args:
            unit: what one unit of privacy is in this sale, if that is to be compared with the file's.
            trust: whom the seller trusts, for its statement.
            honest_share, sellers, cohorts, registered: under aggregate trust, what the sum's promise assumes, and
                how many sums the round has. If it is not registered, what is left of this seller's noise against
                all the others is charged, see `_charged`.
            buyer: who buys, as a broker says it.
            broker, broker_round: the broker's address and its name for the round.
            due_micro: what the buyer owes on delivery.

        Raises:
            WalletError: it does not fit.
            SoldBeforeError: it was sold before, void or not.
        """
        if sale in self._state.sales:
            raise SoldBeforeError(sale)
        if unit not in (None, self._state.unit):
            raise WalletError(
                f"ε per {unit}, and this wallet counts ε per {self._state.unit}: the two do not add up",
                "sell with another wallet file, made with that unit",
            )
        line: dict[str, object] = {"kind": "reserved", "sale": sale, "epsilon": epsilon, "event": to_json(event)}
        line |= {"unit": self._state.unit, "trust": trust}
        if trust == "aggregate":
            line |= {"registered": registered}
            if honest_share is not None:
                line["honest_share"] = honest_share
            if sellers:
                line["sellers"] = sellers
            if cohorts > 1:
                line["cohorts"] = cohorts
        if broker_round:
            line |= {"buyer": buyer, "broker": broker, "broker_round": broker_round}
        if due_micro:
            line["due_micro"] = due_micro
        charged = _charged(line)
        try:
            copy(self.wallets).spend([charged])
        except WalletError as error:
            raise WalletError(
                f"ε = {epsilon:g} does not fit: {self.remaining_share:.1%} of the wallet is left", "offer less"
            ) from error
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

    def confirmed(self, sale: str, list_sha256: str) -> None:
        """Notes which list of survivors of a sale's secure sum is signed, before the signature leaves.

        Raises:
            WalletFileError: another list was signed before: the journal of secure sums is an older copy.
        """
        found = self._state.sales.get(sale)
        if found is None:
            raise not_reserved(sale)
        before = found.get("confirmed")
        if before is not None and before != list_sha256:
            raise _journal_rolled_back(Path(self._stream.name), f"another list of survivors of {sale} was signed")
        if before is None:
            _append(self._stream, self._state, {"kind": "confirmed", "sale": sale, "confirmed": list_sha256})

    def check_journal(self, has_begun: Callable[[str], bool]) -> None:
        """Compares the journal of secure sums with this file: each sum that was sold must have begun in the
        journal.

        Args:
            has_begun: whether the journal knows that training for a sale's sum has begun, by the sale's name.

        Raises:
            WalletFileError: one is missing: the journal is an older copy.
        """
        for name, sale in self._state.sales.items():
            if sale.get("trust") == "aggregate" and not has_begun(name):
                raise _journal_rolled_back(Path(self._stream.name), f"it does not know the sum of {name}")

    def paid(self, sale: str, paid_micro: int, fault: str) -> None:
        """Records what the server said it paid. A repeated receipt is recorded once, a larger payment again."""
        known = self._state.sales.get(sale)
        if known is not None and paid_micro > known.get("paid_micro", -1):
            line = {"kind": "paid", "sale": sale, "paid_micro": paid_micro, "fault": fault}
            _append(self._stream, self._state, line)

    def unpaid_epsilon(self, buyer: str, *more: Release) -> float:
        """ε of all that was sold to a buyer and not paid for, and of further releases; void sales do not count."""
        return _unpaid_epsilon(self._state.sales, buyer, self.wallets.delta, *more)

    def compare(self, broker: str, deliveries: Iterable[BookedDelivery]) -> None:
        """Compares the file with a broker's books about this seller, and records what was paid there.

        A delivery is written into the file before the broker learns of it, so each one that the broker has must be
        here.

        Raises:
            WalletFileError: one is missing: this is an older copy of the file, or another seller's.
        """
        here = {
            sale.get("broker_round"): name
            for name, sale in self._state.sales.items()
            if sale.get("broker") == broker
        }
        for delivery in deliveries:
            name = here.get(delivery["round_id"])
            sale = None if name is None else self._state.sales[name]
            claim = delivery["claim_sha256"]
            if claim is not None and (sale is None or sale.get("update_sha256") != claim):
                why = f"it lacks what was delivered in round {delivery['round_id']} at {broker}"
                raise _rolled_back(Path(self._stream.name), why)
            if name is not None and delivery["settled_seq"] is not None:
                self.paid(name, delivery["paid_micro"], delivery["fault"] or "")

    @property
    def remaining_share(self) -> float:
        """The share of the wallet that is left, from 0 to 1."""
        return float(self.wallets.remaining_share[0])


def _charged(sale: Mapping[str, Any]) -> Release:
    """The release that a wallet is charged with for a sale.

    In a secure sum whose sellers no register names, a server may own all of them but this one. What it promised
    there is only this seller's own part of the noise, so that is what the cap counts.
    """
    event = from_json(sale["event"])
    if sale.get("trust") != "aggregate" or sale.get("registered", True):
        return event
    if "sellers" not in sale or "honest_share" not in sale:
        raise WalletError(
            "a secure sum without a register, and not known how many sellers it has",
            "give sellers and honest_share: they say how much of the noise is this seller's own",
        )
    return alone_event(event, sale["sellers"], sale["honest_share"])


def _is_owed(sale: SaleEntry) -> bool:
    """Whether a buyer owes for a sale: only an update that has left is owed for, not a training that failed."""
    return sale["released"] and not sale.get("void") and sale.get("paid_micro", 0) < sale.get("due_micro", 0)


def _unpaid_epsilon(sales: Mapping[str, SaleEntry], buyer: str, delta: float, *more: Release) -> float:
    owed = [_charged(sale) for sale in sales.values() if _is_owed(sale) and sale.get("buyer", "") == buyer]
    return composed_epsilon([*owed, *more], delta) if owed or more else 0.0


def _rolled_back(path: Path, why: str) -> WalletFileError:
    return WalletFileError(
        f"{path.name} is not the newest copy of this wallet: {why}",
        "put the newest copy back; it is the longest one. Where none is left, sell nothing more from these "
        "records: what was sold of them cannot be known",
    )


def _journal_rolled_back(wallet: Path, why: str) -> WalletFileError:
    return WalletFileError(
        f"the journal of secure sums beside {wallet.name} is not its newest copy: {why}",
        "put the newest copy back; where none is left, this client can sell under local trust only",
    )


def _lowered(wallets: Wallets, cap_epsilon: float) -> Wallets:
    """The same wallet with a lower cap. It watches the same measures, so the choice of them stays fixed.

    Whatever stays within the lower limits in all is (lower cap, δ)-DP, from the first sale on.

    Raises:
        WalletError: more was sold.
    """
    return Wallets.restore([cap_epsilon], wallets.delta, wallets.history, measures=wallets.measures)


def _lock(stream: IO[bytes]) -> None:
    """Waits for the lock on a file, which lasts until it is closed."""
    if sys.platform == "win32":
        stream.seek(0)
        msvcrt.locking(stream.fileno(), msvcrt.LK_LOCK, 1)
    else:
        fcntl.flock(stream, fcntl.LOCK_EX)


def _head(before: str, entry: Mapping[str, object]) -> str:
    """The hash of a line: over it and, by the hash of the line before, all earlier ones."""
    return hashlib.sha256(f"{before} {json.dumps(entry)}".encode()).hexdigest()


def _line(before: str, entry: Mapping[str, object]) -> bytes:
    """A line of a wallet file, with its hash."""
    return json.dumps({**entry, "hash": _head(before, entry)}).encode() + b"\n"


def _write(stream: IO[bytes], line: bytes) -> None:
    stream.write(line)
    stream.flush()
    os.fsync(stream.fileno())


def _append(stream: IO[bytes], state: _Replay, entry: Mapping[str, object]) -> None:
    """Writes a line, forces it to disk, and changes the state as reading the line would."""
    line = _line(state.heads[-1], entry)
    _write(stream, line)
    _apply(state, line, "a new line")
    state.offset += len(line)
    if state.head_file is not None:
        # Only after the line is on disk: a crash in between leaves a file longer than its head file says, which is
        # allowed.
        noted = {"lines": len(state.heads), "head": state.heads[-1]}
        write_atomically(state.head_file, json.dumps(noted) + "\n")


def _apply(state: _Replay, line: bytes, place: str) -> None:
    """Changes the state of a wallet as one line of its file says."""
    try:
        entry = json.loads(line)
        told = entry.pop("hash")
        head = _head(state.heads[-1] if state.heads else "", entry)
        if told != head:
            raise ValueError("its hash does not fit: this line was changed, or a line before it is missing")
        kind = entry.pop("kind")
        sale = entry.pop("sale", None)
        if kind == "opened" and state.wallets is None:
            cap = np.inf if entry["cap_epsilon"] is None else entry["cap_epsilon"]
            state.wallets = Wallets([cap], entry["delta"], measures=[entry["measures"]])
            state.unit = entry["unit"]
        elif kind == "lowered" and state.wallets is not None:
            if not entry["cap_epsilon"] < state.wallets.cap_epsilon[0]:
                raise ValueError("the cap is raised")
            state.wallets = _lowered(state.wallets, entry["cap_epsilon"])
        elif kind == "reserved" and state.wallets is not None:
            state.wallets.spend([_charged(entry)])
            state.sales[sale] = entry
            state.sales[sale]["released"] = False
        elif kind == "void" and state.wallets is not None:
            state.wallets.void(list(state.sales).index(sale), [0])
            state.sales[sale]["void"] = True
        elif kind == "guarded":
            state.head_file = Path(entry["head_file"])
        elif kind == "released":
            state.sales[sale].update(entry)
            state.sales[sale]["released"] = True
        elif kind in ("paid", "confirmed"):
            state.sales[sale].update(entry)
        else:
            raise ValueError(f"unexpected {kind}")
        state.heads.append(head)
    except (ValueError, KeyError, TypeError, AttributeError, PrivacyError) as error:
        raise WalletFileError(
            f"{place}: {line[:80]!r} ({error})",
            "put the newest copy back (an older one would sell the same ε again), and never edit it",
        ) from error
