"""A market app in a folder, run on any of the three engines with one call."""

from __future__ import annotations

import importlib
import json
import os
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
from privmarket.flower.node_seller import WALLETS_FOLDER, WALLETS_VARIABLE
from privmarket.flower.result import ResultJson, saved_result

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
    app = _app_table(project)
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
    # The processes start in `out`; a client has one wallet whichever engine runs it.
    wallets = Path(os.environ.get(WALLETS_VARIABLE) or WALLETS_FOLDER).absolute()
    variables = {WALLETS_VARIABLE: str(wallets)}
    with Engine(out, nodes, simulation=engine == "simulation", environment=variables) as running:
        return running.run(folder.absolute(), settings, timeout_seconds=timeout_seconds)


def _app_table(project: Path) -> dict[str, Any]:
    """`[tool.flwr.app]` of a project's file, which must name the two apps."""
    if not project.is_file():
        raise ConfigurationError(f"{project.parent} has no pyproject.toml", "give the folder of a Flower app")
    try:
        table = tomllib.loads(project.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{project}: not TOML: {error}", "correct the line that it names") from error
    app = table.get("tool", {}).get("flwr", {}).get("app", {})
    components = app.get("components", {})
    missing = [kind for kind in ("serverapp", "clientapp") if not isinstance(components.get(kind), str)]
    if missing:
        raise ConfigurationError(
            f"{project}: no {' and no '.join(missing)} under [tool.flwr.app.components]",
            'write for instance serverapp = "module:server"',
        )
    return dict(app)


def _in_process(folder: Path, app: Mapping[str, Any], nodes: int, settings: RunConfig) -> ResultJson:
    sys.path.insert(0, str(folder.absolute()))
    try:
        server, client = (_component(folder, kind, app["components"][kind]) for kind in ("serverapp", "clientapp"))
    finally:
        sys.path.remove(str(folder.absolute()))
    result = saved_result(play_in_process(server, client, nodes, {**app.get("config", {}), **settings}))
    if result is None:
        raise ConfigurationError(
            "this ServerApp runs no market",
            "make it with pm.flower.server_app, or end AuctionStrategy's run with strategy.report(context, result)",
        )
    return result


def _component(folder: Path, kind: str, reference: str) -> Any:
    """The app that `module:name` means; `kind` is the key under which the project names it."""
    where = f"{folder / 'pyproject.toml'}: {kind} = {reference!r}"
    module, _, name = reference.partition(":")
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there and misses another
        raise ConfigurationError(f"{where}: no module {error.name!r} in {folder}", "check the name") from error
    except ValueError as error:
        raise ConfigurationError(f"{where} names no module", 'write "module:app"') from error
    found = getattr(imported, name, None)
    if not callable(found):
        what = "is no app" if hasattr(imported, name) else f"is not in {module}"
        raise ConfigurationError(f"{where}: {name!r} {what}", "name a ServerApp or a ClientApp of that module")
    return found
