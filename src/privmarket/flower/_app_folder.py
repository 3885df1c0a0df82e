"""A market app in a folder, run on any of the three engines with one call."""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from flwr.app import UserConfigValue

from privmarket._counted import counted
from privmarket._files import write_atomically
from privmarket.errors import ConfigurationError, PrivmarketError, UnknownNameError
from privmarket.flower import _checkpoint as checkpoint, _failures as failures
from privmarket.flower._bundle import wallets_in
from privmarket.flower._checkpoint import SettledRounds, partial_path
from privmarket.flower._engine import Engine, EngineError
from privmarket.flower._in_process import InProcessGrid, play_in_process
from privmarket.flower._result import MODEL_VARIABLE, RESULT_VARIABLE, MarketResult, ResultJson, saved_result
from privmarket.flower._seller import WALLETS_FOLDER, WALLETS_VARIABLE
from privmarket.flower._settings import MarketSettings
from privmarket.privacy._events import PrivacyEvent

_log = logging.getLogger("privmarket.flower")
RunConfig = Mapping[str, UserConfigValue]

ENGINES = ("in-process", "simulation", "deployment")


def run_app(
    folder: Path,
    engine: str,
    nodes: int,
    settings: RunConfig,
    out: Path,
    timeout_seconds: float,
    model_out: Path | None = None,
) -> ResultJson:
    """Runs the app in `folder` and returns its result; an app whose client is guarded is refused, not played.

    Settled rounds are kept in `out` until the run has ended, so that the same call continues after them.

    Args:
        settings: values for keys of the app's `[tool.flwr.app.config]`.
        out: the folder for Flower's home, logs and the result.
        model_out: a .safetensors file for the model.
    """
    if engine not in ENGINES:
        raise UnknownNameError.among("engine", engine, ENGINES)
    if nodes < 1:
        raise ConfigurationError(f"{nodes} nodes", "give --nodes at least 1")
    project = folder / "pyproject.toml"
    app = _app_table(project)
    known = app.get("config", {})
    for name in settings:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            guess = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigurationError(
                f"unknown setting {name!r}", f"{guess}choose from [tool.flwr.app.config] in {project}"
            )
    out.mkdir(parents=True, exist_ok=True)
    # Passed in the environment, so that the app needs no code for writing its result.
    variables = {RESULT_VARIABLE: str((out / "result.json").absolute())}
    if model_out is not None:
        variables[MODEL_VARIABLE] = str(model_out.absolute())
    asked = out / "stop"
    variables[checkpoint.STOP_VARIABLE] = str(asked.absolute())
    with checkpoint.orderly_stop(asked):
        try:
            return _run_on(engine, folder, app, nodes, settings, out, variables, timeout_seconds)
        except (KeyboardInterrupt, checkpoint.StopAskedError):
            raise StoppedError(*_settled(out)) from None
        except EngineError:
            if not asked.exists():
                raise
            raise StoppedError(*_settled(out)) from None


class StoppedError(PrivmarketError):
    """A run that was interrupted; `result` is the result of its settled rounds, None if there are none."""

    code = "stopped"

    def __init__(self, message: str, result: ResultJson | None) -> None:
        super().__init__(message, "the same command goes on from there" if result else "run it again")
        self.result = result


def _settled(out: Path) -> tuple[str, ResultJson | None]:
    """A message, and the result of a stopped run's settled rounds, which is also written to `out`."""
    place = partial_path(out / "result.json")
    left = SettledRounds.read(place) if place.exists() else None
    settled = {sale for sale, _ in left.releases} if left is not None else set()
    left_open = [one for one in checkpoint.read_open(checkpoint.open_path(place)) if one.sale not in settled]
    more = ""
    if left_open:
        sellers = counted(len(left_open[-1].due_micro), "order")
        more = (
            f"; {sellers} of the round in progress had been sent: those whose updates have left are paid next time"
        )
    if left is None:
        return f"stopped before a round was settled{more}", None
    known = {one.name for one in fields(MarketSettings)} - {"mechanism_settings"}
    given: dict[str, Any] = {name: value for name, value in left.settings.items() if name in known}
    releases: dict[str, tuple[PrivacyEvent, ...]] = {}
    for _, events in left.releases:
        for client, event in events.items():
            releases[client] = (*releases.get(client, ()), event)
    settings = MarketSettings(**given)
    weights = {name: array for name, array in left.arrays.items() if not name.startswith("server-")}
    result = MarketResult(settings, left.records, weights, releases, (), 0.0)
    write_atomically(out / "result.json", json.dumps(result.to_json(), indent=1) + "\n")
    done = counted(len(left.records), "settled round")
    return f"stopped after {done} of {settings.rounds}{more}", result.to_json()


def _run_on(
    engine: str,
    folder: Path,
    app: Mapping[str, Any],
    nodes: int,
    settings: RunConfig,
    out: Path,
    variables: dict[str, str],
    timeout_seconds: float,
) -> ResultJson:
    if engine == "in-process":
        with _environment(variables):
            return _in_process(folder, app, nodes, settings, out)
    if packed := list(wallets_in(folder)):
        raise ConfigurationError(
            f"{counted(len(packed), 'wallet')} in the app's folder, {packed[0]} first: Flower would pack it and "
            "send it to every node",
            f"move it out of {folder}, or name it in {folder / '.gitignore'}",
        )
    known = set(sys.modules)
    client = None
    with suppress(Exception):  # whatever is wrong with the app is told by Flower
        client = _imported(folder, app, "clientapp")
    for name in set(sys.modules) - known:  # the app runs elsewhere; its modules are not kept here
        place = getattr(sys.modules[name], "__file__", None)
        if place is not None and folder.resolve() in Path(place).resolve().parents:
            del sys.modules[name]
    require_market(client)
    # The processes start in `out`; a client has one wallet whichever engine runs it.
    wallets = Path(os.environ.get(WALLETS_VARIABLE) or WALLETS_FOLDER).absolute()
    variables[WALLETS_VARIABLE] = str(wallets)
    told = out / "failures.txt"
    told.unlink(missing_ok=True)
    variables[failures.FILE_VARIABLE] = str(told.absolute())
    with Engine(out, nodes, simulation=engine == "simulation", environment=variables) as running:
        try:
            result = running.run(folder.absolute(), settings, timeout_seconds=timeout_seconds)
        finally:
            text = told.read_text(encoding="utf-8") if told.exists() else ""
            # Flower runs a copy of the app in its own home; messages name the user's files, in `folder`.
            found = failures.in_logs([re.sub(r"\S*/flwr-home/apps/[^/]+/", f"{folder}/", text)])
            _log_failures(found)
    return _with_failures(result, found)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """A context with these environment variables; afterwards the previous ones are restored."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _with_failures(result: ResultJson, found: dict[str, str]) -> ResultJson:
    """The result with the first error of each client that this machine ran."""
    lines = failures.summary_lines(found)
    return {**result, "failures": found, "summary": [*lines, *result["summary"]]}


def _log_failures(found: dict[str, str]) -> None:
    """For runs that end without a result."""
    for line in failures.summary_lines(found):
        _log.error("%s", line)


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


def _in_process(folder: Path, app: Mapping[str, Any], nodes: int, settings: RunConfig, out: Path) -> ResultJson:
    server = _imported(folder, app, "serverapp")
    client = _imported(folder, app, "clientapp")
    require_market(client)
    place = out / "result.json"
    place.unlink(missing_ok=True)
    config = {**app.get("config", {}), **settings}
    grid = InProcessGrid(client, nodes, config)
    try:
        with _lines_of(folder):
            context = play_in_process(server, client, nodes, config, grid)
    except Exception:
        _log_failures(grid.failures)
        raise
    result = saved_result(context)
    if result is None and place.exists():
        result = cast(ResultJson, json.loads(place.read_text(encoding="utf-8")))
    if result is None:
        raise ConfigurationError(
            "this ServerApp runs no market",
            "make it with pm.flower.server_app, or start a pm.flower.AuctionStrategy; for other apps use flwr run",
        )
    result = _with_failures(result, grid.failures)
    write_atomically(place, json.dumps(result, indent=1) + "\n")
    return result


def require_market(client: Any) -> None:
    """Refuses a client app that is guarded and sells nothing: its wallets would be charged in every round.

    Raises:
        ConfigurationError: it is.
    """
    mods = [type(mod).__name__ for mod in getattr(client, "_mods", ())]
    if "GuardMod" in mods:
        raise ConfigurationError(
            "a guarded app runs no market: GuardMod releases for nothing what WalletMod sells",
            "run it by `flwr run`, see docs/how-to/guard-a-site.md; nothing was charged",
        )


def _imported(folder: Path, app: Mapping[str, Any], kind: str) -> Any:
    """One of the two apps, `serverapp` or `clientapp`, imported from its folder."""
    sys.path.insert(0, str(folder.absolute()))
    try:
        with _lines_of(folder):
            return _component(folder, kind, app["components"][kind])
    finally:
        sys.path.remove(str(folder.absolute()))


@contextmanager
def _lines_of(folder: Path) -> Iterator[None]:
    """A context in which errors raised by the app's own files begin with the innermost line of these."""
    try:
        yield
    except PrivmarketError as error:
        where = failures.own_line(error)
        file = where.partition(", line ")[0]
        if where and folder.resolve() in Path(file).resolve().parents and file not in error.message:
            error.message = f"{where}: {error.message}"
        raise


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
    except PrivmarketError:
        raise  # the app's own error
    except ValueError as error:
        raise ConfigurationError(f"{where} names no module", 'write "module:app"') from error
    found = getattr(imported, name, None)
    if not callable(found):
        what = "is no app" if hasattr(imported, name) else f"is not in {module}"
        raise ConfigurationError(f"{where}: {name!r} {what}", "name a ServerApp or a ClientApp of that module")
    return found
