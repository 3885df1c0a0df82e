"""The state of a clean check, kept by an auditor and signed with the auditor's key, from which the next one goes
on.

Two files: FILE holds the tables as the log gave them, FILE.note the head of the log at that point and the digest of
FILE, signed. The broker has no part in it, so nothing that an operator changes reaches it.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from privmarket._files import OWNER_ONLY, file_beside, write_atomically
from privmarket.broker._http_errors import BrokerError
from privmarket.broker._signatures import Head, SigningKey, is_signed

_TITLE = "privmarket audit v1"


def _note_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.note")


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def save(file: Path, state: Path, head: Head, key: SigningKey) -> None:
    """Puts the state of a check in place, and signs for it."""
    text = f"{_TITLE}\n{_digest(state)}\n{head.header()}\n"
    with file_beside(file, mode=OWNER_ONLY) as unfinished:
        shutil.copyfile(state, unfinished)
    write_atomically(_note_file(file), f"{text}{key.sign(text.encode())}\n", mode=OWNER_ONLY)


def load(file: Path, key: SigningKey) -> Head:
    """The head at which a saved state stands.

    Raises:
        BrokerError: the state is not the one that this key signed for.
    """
    note = _note_file(file)
    if not note.is_file():
        raise BrokerError(f"there is no {note}", "delete the checkpoint: the next check then begins anew")
    text, _, signature = note.read_text().rstrip("\n").rpartition("\n")
    signed = is_signed(key.public, f"{text}\n".encode(), signature)
    lines = text.split("\n")
    if not signed or len(lines) != 3 or lines[0] != _TITLE or lines[1] != _digest(file):
        raise BrokerError(
            f"{file} is not the checkpoint that this key signed",
            "give the auditor's own key, or delete the checkpoint and check everything",
        )
    return Head.parse(lines[2])
