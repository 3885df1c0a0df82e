"""Weights on disk: safetensors with their recipe and measured properties in the header.

Nothing is ever unpickled. A file is written beside its place and moved there in one step, so an interrupted
write or a full disk leaves the earlier file as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from privmarket._files import in_words, write_atomically
from privmarket.errors import PrivmarketError

FORMAT = "privmarket-weights-1"


class WeightsError(PrivmarketError):
    """A weights or checkpoint file that cannot be used."""

    code = "bad-weights"


@dataclass(frozen=True)
class Weights:
    """Arrays by name, and what is known about them.

    Attributes:
        mechanism: the rule that they serve.
        arrays: name → array.
        facts: network settings, recipe, seed, seconds taken, measured properties; JSON values.
    """

    mechanism: str
    arrays: Mapping[str, np.ndarray]
    facts: Mapping[str, Any]


def save(path: str | Path, weights: Weights) -> None:
    """Writes weights to a safetensors file in one step; a reader sees the old file or the new one."""
    header = {
        "format": FORMAT,
        "mechanism": weights.mechanism,
        "facts": json.dumps(dict(weights.facts), sort_keys=True),
    }
    # Not np.ascontiguousarray, which makes a vector of a scalar.
    arrays = {name: np.array(array, order="C") for name, array in weights.arrays.items()}
    write_atomically(path, _ordered(to_bytes(arrays, metadata=header)))


def _ordered(file: bytes) -> bytes:
    """The same file with its metadata sorted: safetensors gives it another order each time."""
    end = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(file[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(end - 8)
    return len(text).to_bytes(8, "little") + text + file[end:]


def load(path: str | Path, mechanism: str) -> Weights:
    """Reads and checks that the file is whole, of this version and for this mechanism."""
    try:
        with safe_open(str(path), framework="np") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise WeightsError(f"no weights at {path}", "train them, or check the path") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightsError(
            f"{path} is not a whole safetensors file: {in_words(error)}", "copy or train it again"
        ) from error
    if header.get("format") != FORMAT:
        found = header.get("format", "no format at all")
        raise WeightsError(f"{path} has format {found!r}, this version reads {FORMAT!r}", "train the weights anew")
    if header.get("mechanism") != mechanism:
        raise WeightsError(
            f"{path} holds weights for {header.get('mechanism')!r}, not for {mechanism!r}",
            f"ask for mechanism {header.get('mechanism')!r}, or train {mechanism!r}",
        )
    return Weights(mechanism, arrays, json.loads(header["facts"]))


def shipped(mechanism: str) -> Path:
    """Where the weights that come with the package are."""
    name = mechanism.replace(":", "-") + ".safetensors"
    return Path(str(files("privmarket.mechanisms.learned").joinpath("weights", name)))
