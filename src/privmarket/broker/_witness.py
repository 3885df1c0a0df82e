"""A witness keeps the heads of a broker's log and raises an alarm when they do not continue each other.

Anybody can run one: heads and consistency proofs need no account. The heads are lines of a text file, each with the
times at which the witness first and last saw it by its own clock; the first line pins the log's key. `broker verify
--witness FILE` compares the times of entries with them, so that nothing can be dated back by more than the pause
between two looks. Witnesses compare their files (`forks`), so that a broker cannot show one log to some and another
to others. With a key of its own a witness also cosigns the heads that it saw, and sends the cosignatures to the
broker, where others can read them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from privmarket._files import in_words, write_atomically
from privmarket.broker._client import BrokerClient, LogForkedError, require_continuation
from privmarket.broker._errors import BrokerError
from privmarket.broker._signatures import Head, SigningKey, cosign, is_signed, log_key_message
from privmarket.broker._verify import CLOCK_SKEW_MS, SeenHead


class WitnessFile(NamedTuple):
    """The pinned key and the heads in a witness's file, oldest first."""

    key: str
    heads: list[SeenHead]


def read_heads(file: Path) -> WitnessFile:
    """Reads a witness's file; empty where there is none."""
    if not file.exists():
        return WitnessFile("", [])
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        if not lines or not lines[0].startswith("key "):
            raise ValueError(lines[:1])
        heads = []
        for line in lines[1:]:
            text, first, last = line.rsplit(" ", 2)
            heads.append(SeenHead(Head.parse(text), int(first), int(last)))
    except (OSError, UnicodeDecodeError) as error:
        raise BrokerError(
            f"{file} is not the file of a witness: {in_words(error)}", "give another file, or a new one"
        ) from error
    except (ValueError, BrokerError):
        raise BrokerError(f"{file} is not the file of a witness", "give another file, or a new one") from None
    return WitnessFile(lines[0].removeprefix("key "), heads)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Witness:
    """Watches the log of one broker and keeps its heads in one file."""

    def __init__(
        self,
        client: BrokerClient,
        file: str | Path,
        public_key: str | None = None,
        *,
        name: str = "",
        own_key: SigningKey | None = None,
        clock: Callable[[], int] = _now_ms,
    ) -> None:
        """Starts a new file, or continues an existing one.

        Args:
            public_key: the broker's key, learnt elsewhere; by default the first one that the broker shows.
            name, own_key: the witness's name and key, if it is to cosign the heads that it sees.
        """
        self.client = client
        self.file = Path(file)
        self.key, self.heads = read_heads(self.file)
        if public_key is not None and self.key not in ("", public_key):
            raise BrokerError(f"{file} watches the key {self.key[:16]}…", "give the same key, or another file")
        self.key = self.key or (public_key or "")
        self.name = name
        self.own_key = own_key
        self._clock = clock

    def look(self) -> Head:
        """Fetches the newest head, checks it against the last one kept and against the clock, and keeps it.

        Raises:
            LogForkedError: the head is not signed, does not continue the last one, or its times are wrong.
        """
        answer = self.client.read("/v1/log/head")
        now = self._clock()
        head = Head(*(answer[name] for name in ("log_id", "size", "root", "at_ms", "signature")))
        self.key = self.key or answer["public_key"]
        if answer["public_key"] != self.key:
            self.key = self._next_key(head, answer)
        if not self.key or not head.is_signed_by(self.key):
            raise LogForkedError(
                f"the head of {head.size} entries is not signed by the key {self.key[:16] or '(none)'}…",
                "ask the operator whether the key was changed, and how they can prove it",
            )
        self._check_time(head, int(answer["now_ms"]), str(answer["now_signature"]), now)
        if self.heads:
            require_continuation(self.client, self.heads[-1].head, head)
        self._keep(head, now)
        if self.own_key is not None:
            made = cosign(head, self.name, self.own_key, now // 1000)
            form = {"witness": made.witness, "public_key": made.public_key, "size": head.size, "root": head.root}
            form |= {"at_ms": head.at_ms, "seconds": made.seconds, "signature": made.signature}
            self.client.write("POST", "/v1/log/cosignatures", form)
        return head

    def _next_key(self, head: Head, answer: dict[str, object]) -> str:
        """The key that replaced the pinned one, if each key signed for its successor; else the pinned key."""
        for step in answer.get("keys", []):  # type: ignore[attr-defined]
            old, new = str(step["old"]), str(step["new"])
            message = log_key_message(head.log_id, old, new)
            if old == self.key and is_signed(old, message, step["signature"]):
                self.key = new
        return self.key

    def _check_time(self, head: Head, shown_ms: int, signature: str, now_ms: int) -> None:
        """Raises `LogForkedError` if the times of a head do not fit this witness's clock and its earlier looks.

        The broker signs the time at which it shows a head as its newest, so an old answer cannot pass as new.
        """
        if not is_signed(self.key, head.shown_message(shown_ms), signature):
            raise LogForkedError("the broker does not sign that this head is its newest", "keep this answer")
        if abs(shown_ms - now_ms) > CLOCK_SKEW_MS:
            raise LogForkedError(
                f"the broker's clock is {(shown_ms - now_ms) / 1000:.0f} s away from this one",
                "compare both clocks with another; deadlines of the market are off by as much",
            )
        if head.at_ms > now_ms + CLOCK_SKEW_MS:
            raise LogForkedError(
                f"the newest entry is dated {(head.at_ms - now_ms) / 1000:.0f} s ahead",
                "its deadlines are off by as much: ask the operator, and tell other parties",
            )
        if self.heads and head.size > self.heads[-1].head.size:
            late = self.heads[-1].last_ms - head.at_ms
            if late > CLOCK_SKEW_MS:
                raise LogForkedError(
                    f"new entries are dated back by {late / 1000:.0f} s: this witness saw the log without them",
                    "keep both heads and tell other parties",
                )

    def _keep(self, head: Head, now_ms: int) -> None:
        """Adds the head, or moves the time at which it was last seen."""
        last = self.heads[-1] if self.heads else None
        if last is not None and (last.head.size, last.head.root) == (head.size, head.root):
            self.heads[-1] = last._replace(last_ms=max(last.last_ms, now_ms))
            line = _line(self.heads[-1])
            with self.file.open("r+b") as kept:  # the last line has the same length as before
                kept.seek(-len(line), 2)
                kept.write(line)
            return
        self.heads.append(SeenHead(head, now_ms, now_ms))
        if last is None or not self.file.exists() or read_heads(self.file).key != self.key:
            text = f"key {self.key}\n".encode() + b"".join(_line(one) for one in self.heads)
            write_atomically(self.file, text)
            return
        with self.file.open("ab") as kept:
            kept.write(_line(self.heads[-1]))


def _line(seen: SeenHead) -> bytes:
    return f"{seen.head.header()} {seen.first_ms} {seen.last_ms}\n".encode()


def forks(client: BrokerClient, mine: Sequence[SeenHead], theirs: Sequence[SeenHead]) -> list[str]:
    """Compares the newest head of one witness with all heads of another.

    Returns a message for each pair that cannot belong to the same log. The proofs are fetched from the broker.
    """
    found = []
    for one, other in ((a, b) for a in mine[-1:] for b in theirs):
        old, new = sorted((one.head, other.head), key=lambda head: head.size)
        try:
            require_continuation(client, old, new)
        except LogForkedError as error:
            found.append(f"heads of {old.size} and {new.size} entries: {error.message}")
    return found
