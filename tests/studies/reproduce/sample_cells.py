"""Kinds of cells that tests compute in real processes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def square(config: Mapping[str, Any], seed: int, scratch: Path) -> dict[str, Any]:
    return {"value": config["x"] ** 2 + seed, "process": os.getpid()}


def slow_and_counted(config: Mapping[str, Any], seed: int, scratch: Path) -> dict[str, Any]:
    """Leaves a line in a common file each time it is computed."""
    with Path(config["log"]).open("a") as log:
        log.write(f"{config['x']}\n")
    time.sleep(config["seconds"])
    return {"text": "x" * 20_000}


def refuses_odd(config: Mapping[str, Any], seed: int, scratch: Path) -> dict[str, Any]:
    if config["x"] % 2 and not Path(config["mended"]).exists():
        raise ValueError(f"{config['x']} is odd")
    return {"value": config["x"]}


def dies(config: Mapping[str, Any], seed: int, scratch: Path) -> dict[str, Any]:
    if config["x"] == 0:
        os._exit(1)
    return {"value": config["x"]}
