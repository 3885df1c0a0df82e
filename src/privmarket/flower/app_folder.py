"""A market app in a folder, run on any of the three engines with one call."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.flower.engine import Engine
from privmarket.flower.in_process import run_in_process

ENGINES = ("in-process", "simulation", "deployment")


def run_app(
    folder: Path, engine: str, nodes: int, settings: Mapping[str, Any], out: Path, timeout_seconds: float
) -> dict[str, Any]:
    """Runs the app in `folder` and returns its result.

    Args:
        settings: values for keys of the app's `[tool.flwr.app.config]`.
        out: where Flower's home, logs and the result go.
    """
    if engine not in ENGINES:
        raise UnknownNameError(f"unknown engine {engine!r}", f"choose one of: {', '.join(ENGINES)}")
    project = folder / "pyproject.toml"
    if not project.is_file():
        raise ConfigurationError(f"{folder} has no pyproject.toml", "give the folder of a Flower app")
    app = tomllib.loads(project.read_text())["tool"]["flwr"]["app"]
    unknown = set(settings) - set(app.get("config", {}))
    if unknown:
        raise ConfigurationError(
            f"unknown settings: {', '.join(sorted(unknown))}", f"choose from [tool.flwr.app.config] in {project}"
        )
    if engine == "in-process":
        return _in_process(folder, app, nodes, settings)
    out.mkdir(parents=True, exist_ok=True)
    with Engine(out, nodes, simulation=engine == "simulation") as running:
        return running.run(folder.absolute(), settings, timeout_seconds=timeout_seconds)


def _in_process(folder: Path, app: Mapping[str, Any], nodes: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    sys.path.insert(0, str(folder.absolute()))
    try:
        server, client = (_component(app["components"][kind]) for kind in ("serverapp", "clientapp"))
    finally:
        sys.path.remove(str(folder.absolute()))
    return run_in_process(server, client, nodes, {**app.get("config", {}), **settings}).to_json()


def _component(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
