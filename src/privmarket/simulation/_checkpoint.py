"""Checkpoints of a run: a process that is killed at any moment loses at most a few rounds.

A checkpoint is one file: a line with the SHA-256 of the rest, then arrays and JSON. It is written under another
name and renamed, and the one before is kept. If a file was cut short, the older one is used. Weights, money and the
privacy that was spent are in the same file, so they always belong to the same round.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privmarket._files import write_atomically
from privmarket.errors import CheckpointError
from privmarket.privacy._wallet import Wallets
from privmarket.rounds import RoundRecord
from privmarket.simulation._config import FederationConfig
from privmarket.simulation._moments import Moments, Whitening
from privmarket.simulation._server import ServerState

_MAGIC = b"privmarket-checkpoint-1 "


@dataclass(frozen=True, eq=False)
class RunState:
    """Everything that a run carries from one round to the next.

    Attributes:
        whitening: the public map of inputs that the server's weights belong to; None if inputs are not mapped.
    """

    next_round: int
    server: ServerState
    wallets: Wallets
    remaining_micro: int
    records: tuple[RoundRecord, ...]
    whitening: Whitening | None = None


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The content of a run's file: arrays by name, and JSON data."""

    arrays: dict[str, np.ndarray]
    data: Mapping[str, Any]


def to_checkpoint(config: FederationConfig, state: RunState) -> Checkpoint:
    """A checkpoint of weights, wallets, money and records."""
    server = state.server
    arrays = {"weights": server.weights, "direction": server.direction, "averaged": server.averaged}
    if state.whitening is not None:
        moments = state.whitening.moments
        known = {"mean": moments.mean, "covariance": moments.covariance, "noise": np.array(moments.deviation)}
        arrays |= {name: torch.from_numpy(array) for name, array in known.items()}
    data = {
        "config": config.to_json(),
        "next_round": state.next_round,
        "remaining_micro": state.remaining_micro,
        "wallets": state.wallets.to_json(),
        "records": [asdict(r) for r in state.records],
    }
    return Checkpoint({name: array.numpy() for name, array in arrays.items()}, data)


def from_checkpoint(saved: Checkpoint) -> RunState:
    """Restores the state that `to_checkpoint` wrote."""
    server = ServerState(*(torch.from_numpy(saved.arrays[n]) for n in ("weights", "direction", "averaged")))
    data = saved.data
    whitening = None
    if "covariance" in saved.arrays:
        known = saved.arrays
        whitening = Whitening(Moments(known["mean"], known["covariance"], float(known["noise"])))
    return RunState(
        data["next_round"],
        server,
        Wallets.from_json(data["wallets"]),
        data["remaining_micro"],
        tuple(RoundRecord(**r) for r in data["records"]),
        whitening,
    )


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
