"""A market app in a folder, run on any of the three engines with one call."""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import UserConfigValue

from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.files import write_atomically
from privmarket.flower.engine import Engine
from privmarket.flower.in_process import play_in_process
from privmarket.flower.result import ResultJson, kept_result

RunConfig = Mapping[str, UserConfigValue]

ENGINES = ("in-process", "simulation", "deployment")


def run_app(
    folder: Path,
    engine: str,
    nodes: int,
    settings: RunConfig,
    out: Path,
    timeout_seconds: float,
) -> ResultJson:
    """Runs the app in `folder` and returns its result.

    Args:
        settings: values for keys of the app's `[tool.flwr.app.config]`.
        out: where Flower's home, logs and the result go.
    """
    if engine not in ENGINES:
        raise UnknownNameError(f"unknown engine {engine!r}", f"choose one of: {', '.join(ENGINES)}")
    if nodes < 1:
        raise ConfigurationError(f"{nodes} nodes", "give --nodes at least 1")
    project = folder / "pyproject.toml"
    if not project.is_file():
        raise ConfigurationError(f"{folder} has no pyproject.toml", "give the folder of a Flower app")
    app = tomllib.loads(project.read_text())["tool"]["flwr"]["app"]
    unknown = set(settings) - set(app.get("config", {}))
    if unknown:
        raise ConfigurationError(
            f"unknown settings: {', '.join(sorted(unknown))}", f"choose from [tool.flwr.app.config] in {project}"
        )
    out.mkdir(parents=True, exist_ok=True)
    if engine == "in-process":
        result = _in_process(folder, app, nodes, settings)
        write_atomically(out / "result.json", json.dumps(result, indent=1) + "\n")
        return result
    with Engine(out, nodes, simulation=engine == "simulation") as running:
        return running.run(folder.absolute(), settings, timeout_seconds=timeout_seconds)


def _in_process(folder: Path, app: Mapping[str, Any], nodes: int, settings: RunConfig) -> ResultJson:
    sys.path.insert(0, str(folder.absolute()))
    try:
        server, client = (_component(app["components"][kind]) for kind in ("serverapp", "clientapp"))
    finally:
        sys.path.remove(str(folder.absolute()))
    result = kept_result(play_in_process(server, client, nodes, {**app.get("config", {}), **settings}))
    if result is None:
        raise ConfigurationError(
            "this ServerApp runs no market",
            "make it with pm.flower.server_app, or end AuctionStrategy's run with strategy.report(context, result)",
        )
    return result


def _component(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
