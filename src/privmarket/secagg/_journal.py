"""A seller's state of its secure sums, on its own disk. Each step is written there before its message leaves.

A server must not get two answers from a seller to one step: two signed lists of survivors, or both secrets of one
seller, would reveal a vector. So the state is not kept in the messages' context, which a server's engine can copy
and replay, but in one file that is locked while a step is taken. The file is replaced as a whole and forced to disk
before the step's message is returned. After a crash a step is therefore either not taken or written. If it is
written, it is not taken again; its message may be lost, and then the seller counts as dropped out.

Secrets of a sum are erased when it is opened, or when the next sum of its task begins.

With an older copy of the file, steps could be taken again. A *head file* on another disk detects that: it holds the
number of writes of the journal and a hash of its content. A journal with fewer writes is refused, and so is one
with as many writes and other content. One with more is accepted, since a crash may come between the two writes.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Protocol

from privmarket._files import OWNER_ONLY, in_words, write_atomically
from privmarket.errors import WriteError
from privmarket.secagg._codec import decode, encode
from privmarket.secagg._errors import SumRefusal
from privmarket.secagg._keys import SigningIdentity, label
from privmarket.secagg._messages import AdvertisedKeys, Commitment, Parcel

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_MAGIC = b"privmarket sums\n"
_DIGEST_BYTES = 32


class Step(IntEnum):
    """The last step of a sum that a seller has taken."""

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
        task, round: name the sum. No sum of this or an earlier round begins for this task again.
        digest, terms: the digest and the bytes of the sum's terms.
        step: the last step that was taken, see `Step`.
        channel_secret, mask_secret, seed: this seller's secrets.
        keys: the keys of all sellers, as they were listed.
        shares: seller → the shares that it sealed for this one, opened; this seller's own included.
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
        """The same sum, ended. Its name stays, so that it cannot begin again, and its secrets are gone."""
        return SumState(self.task, self.round, self.digest)


@dataclass(frozen=True)
class DealingState:
    """What a seller remembers of one task's latest dealing.

    Attributes:
        task, round: name it. No dealing of this or an earlier round begins for this task again.
        digest, terms: the digest and the bytes of the dealing's terms.
        secret: the secret that this seller's commitment is the hash of.
        commitments: the one list for which it opened its secret; empty before that.
    """

    task: str
    round: int
    digest: bytes
    terms: bytes
    secret: bytes
    commitments: tuple[Commitment, ...] = ()


@dataclass(frozen=True)
class JournalState:
    """All that a journal holds.

    Attributes:
        writes: how often it was written.
        guarded: 1 with a head file, 0 without.
        identity: the secret signing key of a seller that is not registered anywhere; empty for others.
        sums: the latest sum of each task.
        dealings: the latest dealing of each task.
    """

    writes: int = 0
    guarded: int = 0
    identity: bytes = b""
    sums: tuple[SumState, ...] = ()
    dealings: tuple[DealingState, ...] = ()


class OpenJournal:
    """A journal while it is locked."""

    def __init__(self, state: JournalState, journal: SumJournal) -> None:
        self._state = state
        self._journal = journal

    @property
    def sums(self) -> tuple[SumState, ...]:
        """The latest sum of each task."""
        return self._state.sums

    def latest(self, task: str) -> SumState | None:
        """The latest sum of a task."""
        return next((one for one in self._state.sums if one.task == task), None)

    def named(self, digest: bytes) -> SumState | None:
        """The sum of that digest, if it is the latest of its task."""
        return next((one for one in self._state.sums if one.digest == digest), None)

    def dealing(self, task: str) -> DealingState | None:
        """The latest dealing of a task."""
        return next((one for one in self._state.dealings if one.task == task), None)

    def dealing_named(self, digest: bytes) -> DealingState | None:
        """The dealing of that digest, if it is the latest of its task."""
        return next((one for one in self._state.dealings if one.digest == digest), None)

    def identity(self) -> SigningIdentity:
        """The journal's own signing key, generated on first use."""
        if not self._state.identity:
            made = SigningIdentity.generate().secret
            self._write(replace(self._state, identity=made))
        return SigningIdentity(self._state.identity)

    def write(self, changed: SumState) -> None:
        """Replaces the state of a sum; it is on disk when this returns."""
        others = tuple(one for one in self._state.sums if one.task != changed.task)
        self._write(replace(self._state, sums=(*others, changed)))

    def write_dealing(self, changed: DealingState) -> None:
        """Replaces the state of a dealing; it is on disk when this returns."""
        others = tuple(one for one in self._state.dealings if one.task != changed.task)
        self._write(replace(self._state, dealings=(*others, changed)))

    def _write(self, state: JournalState) -> None:
        counted = replace(state, writes=state.writes + 1)
        self._journal.store(counted)
        self._state = counted


class SumJournal(Protocol):
    """Where a seller keeps its state: `FileJournal`, or `MemoryJournal` for simulations in one process."""

    @contextmanager
    def open(self) -> Iterator[OpenJournal]:
        """The journal, locked until the block ends, so that nobody else takes a step."""

    def store(self, state: JournalState) -> None:
        """Replaces the whole content of the journal. Only called while it is open."""


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


@contextmanager
def locked(lock: Path) -> Iterator[None]:
    """Waits for the lock on a file, and holds it against other processes and threads until the block ends.

    Raises:
        SumRefusal: `disk`, if the file cannot be made.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        stream = lock.open("ab")
    except OSError as error:
        raise SumRefusal(
            "disk", f"{lock}: {in_words(error)}", "make the folder writable for this client"
        ) from error
    with stream:
        if sys.platform == "win32":
            stream.seek(0)
            msvcrt.locking(stream.fileno(), msvcrt.LK_LOCK, 1)
        else:
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


class FileJournal:
    """A journal in one file that only its owner may read. Processes lock `<file>.lock` beside it.

    Args:
        path: the file; made, with its folder, by the first sum.
        head_file: a second file, best on another disk, with which an older copy of `path` is detected.
    """

    def __init__(self, path: Path | str, head_file: Path | str | None = None) -> None:
        self.path = Path(path).absolute()
        self.head_file = None if head_file is None else Path(head_file).absolute()

    @contextmanager
    def open(self) -> Iterator[OpenJournal]:
        """The journal, locked against other processes and threads.

        Raises:
            SumRefusal: `disk`, if the file is damaged, cannot be read, or is an older copy; or if the head file's
                folder is not there.
        """
        if self.head_file is not None and not self.head_file.parent.is_dir():
            raise SumRefusal(
                "disk",
                f"the head file of {self.path.name} cannot be kept: there is no folder {self.head_file.parent}",
                "mount the disk on which it is, or make the folder yourself",
            )
        with locked(self.path.with_name(self.path.name + ".lock")):
            state = self._load()
            self._check_head(state)
            yield OpenJournal(state, self)

    def store(self, state: JournalState) -> None:
        """Replaces the file in one step and forces it to disk, and then the head file.

        Raises:
            SumRefusal: `disk`, if that fails; then the step's message does not leave.
        """
        content = encode(replace(state, guarded=int(self.head_file is not None)))
        try:
            write_atomically(self.path, _MAGIC + _sealed(content) + content, mode=OWNER_ONLY)
            if self.head_file is not None:
                noted = {"writes": state.writes, "head": _sealed(content).hex()}
                write_atomically(self.head_file, json.dumps(noted) + "\n")
        except WriteError as error:
            raise SumRefusal("disk", error.message, error.hint) from error

    def _load(self) -> JournalState:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return JournalState()
        except OSError as error:
            raise SumRefusal(
                "disk", f"{self.path}: {in_words(error)}", "let this client read its own file"
            ) from error
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

    def _check_head(self, state: JournalState) -> None:
        """Refuses a journal that is older than its head file says."""
        if self.head_file is None:
            if state.guarded:
                raise SumRefusal("disk", f"{self.path.name} has a head file", "name it: FileJournal(head_file=…)")
            return
        try:
            noted = json.loads(self.head_file.read_text(encoding="utf-8"))
            writes = int(noted["writes"])
            head = str(noted["head"])
        except FileNotFoundError:
            if not state.guarded:
                return  # there is none yet
            raise SumRefusal(
                "disk", f"the head file {self.head_file} is gone", "put it back as it was last written"
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SumRefusal(
                "disk",
                f"{self.head_file} cannot be read: {in_words(error)}",
                "put the head file back as it was last written",
            ) from error
        if state.writes < writes:
            raise self._rolled_back(f"it was written {state.writes} times, {self.head_file} counted {writes}")
        if state.writes == writes and _sealed(encode(state)).hex() != head:
            raise self._rolled_back(f"{self.head_file} names another one")

    def _rolled_back(self, why: str) -> SumRefusal:
        return SumRefusal(
            "disk",
            f"{self.path.name} is not the newest copy of this journal: {why}",
            "put the newest copy back; where none is left, remove the journal and its head file, and let this "
            "seller join only tasks that it has not been in",
        )


def _sealed(content: bytes) -> bytes:
    """A hash that detects a damaged file; it does not protect against the file's owner."""
    return hashlib.sha256(label("journal") + content).digest()
