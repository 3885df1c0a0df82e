"""A seller's state of its secure sums, on its own disk: each step is written before its message leaves, once.

A server must not get two answers out of a seller for one step: two signed lists of survivors, or both secrets of
one seller, give a vector away. So the state does not live in the messages' context, which a server's engine copies
and replays, but in one file that is locked while a step is taken. The file is replaced in one piece and forced to
disk before the step's message is returned. After a crash a step is therefore either not taken or written; in the
second case it is not taken again, its message may be lost, and the seller counts as dropped out of it.

Secrets of a sum are erased when it is opened, or when the next sum of its task begins.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Protocol

from privmarket.errors import WriteError
from privmarket.files import OWNER_ONLY, write_atomically
from privmarket.secagg._codec import decode, encode
from privmarket.secagg._errors import SumRefusal
from privmarket.secagg._keys import SigningIdentity, label
from privmarket.secagg._messages import AdvertisedKeys, Parcel

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_MAGIC = b"privmarket sums\n"
_DIGEST_BYTES = 32


class Step(IntEnum):
    """How far a seller is in a sum: the last step that it has taken."""

    ADVERTISED = 1
    SHARED = 2
    CHECKED = 3
    ACCEPTED = 4
    MASKED = 5
    CONFIRMED = 6
    OPENED = 7


@dataclass(frozen=True)
class SumState:
    """What a seller remembers of one task's latest sum.

    Attributes:
        task, round: name the sum; no sum of a smaller or equal round begins for this task any more.
        digest, terms: the digest and the bytes of the sum's terms.
        step: the last step that was taken, see `Step`.
        channel_secret, mask_secret, seed: this seller's secrets.
        keys: the keys of all sellers, as they were listed.
        shares: seller → its shares that were opened from what it sealed for this one, its own included.
        partners: whom this seller masks against, itself included.
        survivors: the list that it signed.
    """

    task: str
    round: int
    digest: bytes = b""
    terms: bytes = b""
    step: int = Step.OPENED
    channel_secret: bytes = b""
    mask_secret: bytes = b""
    seed: bytes = b""
    keys: tuple[AdvertisedKeys, ...] = ()
    shares: tuple[Parcel, ...] = ()
    partners: tuple[int, ...] = ()
    survivors: tuple[int, ...] = ()

    def erased(self) -> SumState:
        """The same sum, ended: its name stays, so that it cannot begin again."""
        return SumState(self.task, self.round, self.digest)


@dataclass(frozen=True)
class JournalState:
    """All that a journal holds.

    Attributes:
        identity: the secret signing key of a seller that is registered nowhere; empty for others.
        sums: the latest sum of each task.
    """

    identity: bytes = b""
    sums: tuple[SumState, ...] = ()


class OpenJournal:
    """A journal while it is locked."""

    def __init__(self, state: JournalState, journal: SumJournal) -> None:
        self._state = state
        self._journal = journal

    def latest(self, task: str) -> SumState | None:
        """The latest sum of a task."""
        return next((one for one in self._state.sums if one.task == task), None)

    def named(self, digest: bytes) -> SumState | None:
        """The sum of that digest, if it is the latest of its task."""
        return next((one for one in self._state.sums if one.digest == digest), None)

    def identity(self) -> SigningIdentity:
        """The journal's own signing key, made when it is first asked for."""
        if not self._state.identity:
            made = SigningIdentity.generate().secret
            self._write(replace(self._state, identity=made))
        return SigningIdentity(self._state.identity)

    def write(self, changed: SumState) -> None:
        """Puts a sum in the place of its task's; on disk when this returns."""
        others = tuple(one for one in self._state.sums if one.task != changed.task)
        self._write(replace(self._state, sums=(*others, changed)))

    def _write(self, state: JournalState) -> None:
        self._journal.store(state)
        self._state = state


class SumJournal(Protocol):
    """Where a seller keeps its state: `FileJournal`, or `MemoryJournal` for simulations in one process."""

    @contextmanager
    def open(self) -> Iterator[OpenJournal]:
        """The journal, locked until the block ends: nobody else takes a step meanwhile."""

    def store(self, state: JournalState) -> None:
        """Replaces all that the journal holds. Only called while it is open."""


class MemoryJournal:
    """A journal that ends with its process: for simulations and tests."""

    def __init__(self) -> None:
        self._state = JournalState()
        self._lock = threading.Lock()

    @contextmanager
    def open(self) -> Iterator[OpenJournal]:
        """The journal, locked against other threads."""
        with self._lock:
            yield OpenJournal(self._state, self)

    def store(self, state: JournalState) -> None:
        """Replaces all that the journal holds."""
        self._state = state


class FileJournal:
    """A journal in one file that only its owner may read; `<file>.lock` beside it is what processes lock.

    Args:
        path: the file; made, with its folder, by the first sum.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()

    @contextmanager
    def open(self) -> Iterator[OpenJournal]:
        """The journal, locked against other processes and threads.

        Raises:
            SumRefusal: `disk`, where the file is damaged or cannot be read.
        """
        lock = self.path.with_name(self.path.name + ".lock")
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            stream = lock.open("ab")
        except OSError as error:
            raise SumRefusal("disk", f"{lock}: {error}", "make the folder writable for this client") from error
        with stream:
            if sys.platform == "win32":
                stream.seek(0)
                msvcrt.locking(stream.fileno(), msvcrt.LK_LOCK, 1)
            else:
                fcntl.flock(stream, fcntl.LOCK_EX)
            yield OpenJournal(self._load(), self)

    def store(self, state: JournalState) -> None:
        """Replaces the file in one step, and forces it to disk.

        Raises:
            SumRefusal: `disk`; then the file is as it was.
        """
        content = encode(state)
        try:
            write_atomically(self.path, _MAGIC + _sealed(content) + content, mode=OWNER_ONLY)
        except WriteError as error:
            raise SumRefusal("disk", error.message, error.hint) from error

    def _load(self) -> JournalState:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return JournalState()
        except OSError as error:
            raise SumRefusal("disk", f"{self.path}: {error}", "let this client read its own file") from error
        head = len(_MAGIC) + _DIGEST_BYTES
        content = data[head:]
        if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : head] != _sealed(content):
            raise SumRefusal(
                "disk",
                f"{self.path.name} is damaged, or no journal of secure sums",
                f"restore it as it was last written; an older copy would let a server open a sum twice "
                f"({os.fspath(self.path)})",
            )
        return decode(JournalState, content)


def _sealed(content: bytes) -> bytes:
    """A hash that notices a damaged file; it is no protection against its owner."""
    return hashlib.sha256(label("journal") + content).digest()
