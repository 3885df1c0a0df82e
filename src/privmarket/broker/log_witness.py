"""A witness keeps the heads of a broker's log and raises an alarm when they do not continue each other.

Anybody can run one: heads and consistency proofs need no account. The heads are lines of a text file; the first
one pins the log and the key that signs it. Witnesses compare their files (`forks`), so that a broker cannot show
one log to some and another to others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from privmarket.broker.http_client import BrokerClient, LogForkedError, require_continuation
from privmarket.broker.http_errors import BrokerError
from privmarket.broker.signatures import Head


def read_heads(file: Path) -> tuple[str, list[Head]]:
    """The pinned key and the heads in a witness's file, oldest first."""
    if not file.exists():
        return "", []
    lines = file.read_text().splitlines()
    if not lines or not lines[0].startswith("key "):
        raise BrokerError(f"{file} is not the file of a witness", "give another file, or a new one")
    return lines[0].removeprefix("key "), [Head.parse(line) for line in lines[1:]]


class Witness:
    """One broker watched into one file."""

    def __init__(self, client: BrokerClient, file: str | Path, public_key: str | None = None) -> None:
        """`public_key`: the broker's, learnt elsewhere; by default the one it shows first."""
        self.client, self.file = client, Path(file)
        self.key, self.heads = read_heads(self.file)
        if public_key is not None and self.key not in ("", public_key):
            raise BrokerError(f"{file} watches the key {self.key[:16]}…", "give the same key, or another file")
        self.key = self.key or (public_key or "")

    def look(self) -> Head:
        """Fetches the newest head, checks it against the last one kept, and keeps it. Raises `LogForkedError`."""
        answer = self.client.read("/v1/log/head")
        head = Head(*(answer[name] for name in ("log_id", "size", "root", "at_ms", "signature")))
        if not self.key:
            self.key = answer["public_key"]
        if not self.key or not head.is_signed_by(self.key):
            raise LogForkedError(
                f"the head of {head.size} entries is not signed by the key {self.key[:16] or '(none)'}…",
                "ask the operator whether the key was changed, and how they can prove it",
            )
        if self.heads:
            last = self.heads[-1]
            require_continuation(self.client, last, head)
            if (head.size, head.root) == (last.size, last.root):
                return head
        with self.file.open("a") as kept:
            if not self.heads:
                kept.write(f"key {self.key}\n")
            kept.write(head.header() + "\n")
        self.heads.append(head)
        return head


def forks(client: BrokerClient, mine: Sequence[Head], theirs: Sequence[Head]) -> list[str]:
    """What is wrong between the heads of two witnesses: heads that no one log can have had."""
    found = []
    for one, other in ((a, b) for a in mine[-1:] for b in theirs):
        old, new = sorted((one, other), key=lambda head: head.size)
        try:
            require_continuation(client, old, new)
        except LogForkedError as error:
            found.append(f"heads of {old.size} and {new.size} entries: {error.message}")
    return found
