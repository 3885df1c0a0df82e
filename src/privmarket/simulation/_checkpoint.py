"""Saving a run so that a kill at any moment loses at most the rounds since the last save.

A checkpoint is one file: a line with the SHA-256 of the rest, then arrays and JSON. It is written beside its
place and renamed, and the one before is kept, so a file cut short is noticed and the older one is used. Money
and privacy spent travel in the same file as the weights: they cannot get out of step.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privmarket._files import write_atomically
from privmarket.errors import CheckpointError

_MAGIC = b"privmarket-checkpoint-1 "


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a file of a run holds: arrays by name, and JSON data."""

    arrays: dict[str, np.ndarray]
    data: Mapping[str, Any]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Writes the file in one step; the checkpoint before it stays as `<name>.previous`."""
    buffer = io.BytesIO()
    text = np.frombuffer(json.dumps(checkpoint.data).encode(), dtype=np.uint8)
    np.savez(buffer, __data__=text, **checkpoint.arrays)  # type: ignore[arg-type]
    payload = buffer.getvalue()
    head = _MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n"
    write_atomically(path, head + payload, previous=_previous(path))


def load_checkpoint(path: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None if there is none at all.

    Raises:
        CheckpointError: files are there, and none of them is whole.
    """
    present = [p for p in (path, _previous(path)) if p.exists()]
    for place in present:
        found = _read(place)
        if found is not None:
            return found
    if present:
        raise CheckpointError(
            f"{', '.join(p.name for p in present)} in {path.parent}: cut short or altered",
            "delete the file to start over",
        )
    return None


def _previous(path: Path) -> Path:
    return path.with_name(path.name + ".previous")


def _read(path: Path) -> Checkpoint | None:
    head, _, payload = path.read_bytes().partition(b"\n")
    if head != _MAGIC + hashlib.sha256(payload).hexdigest().encode():
        return None
    try:
        with np.load(io.BytesIO(payload), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files if name != "__data__"}
            data = json.loads(stored["__data__"].tobytes())
    except (ValueError, KeyError, zipfile.BadZipFile):
        return None
    return Checkpoint(arrays, data)
