"""One secure market on four engines: the plain simulation, a grid in this process, Ray, SuperLink and SuperNodes.

`python -m privmarket_studies.flower_engines OUT.json` runs seven clients that train on digits under aggregate trust
and keeps what each engine gave: payments, accuracy, a digest of the model, and how long it took. Engines that the
file holds already for the same configuration are not run again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NotRequired, TypedDict

from privmarket._files import write_atomically
from privmarket.flower import _wire as wire
from privmarket.flower._engine import Engine, write_app
from privmarket.flower._federation import federation_client, federation_server
from privmarket.flower._in_process import run_in_process
from privmarket.flower._result import ResultJson
from privmarket.simulation import _federation as simulation
from privmarket.simulation._config import FederationConfig, Training

CONFIG = FederationConfig(
    clients=7,
    rounds=2,
    budget=14.0,
    evaluate_every=1,
    trust="aggregate",
    mechanism="ration",
    mechanism_settings={"unit_price": 1.0},
    training=Training(model="logistic"),
    seed=11,
)
_PATIENCE_SECONDS = 900.0
_ROUND = ("paid_micro", "sold_epsilon", "accuracy")


class EngineResult(TypedDict):
    """What is compared of a run, and what its rounds took where that is known."""

    rounds: Sequence[Mapping[str, object]]
    weights_sha256: str
    round_seconds: list[float]


class KeptEngine(TypedDict):
    """One engine's run, as it is kept."""

    seconds: float
    round_seconds: list[float]
    load_average: float
    weights_sha256: str
    rounds: list[dict[str, object]]


class EngineReport(TypedDict):
    """The file: what every engine gave for one configuration, and whether all gave the same."""

    config: dict[str, object]
    versions: dict[str, str]
    processors: int | None
    engines: dict[str, KeptEngine]
    same: NotRequired[bool]


def app_code(config: FederationConfig) -> str:
    """The source of a Flower app that runs this configured market."""
    return f"""import json
from privmarket.simulation._config import FederationConfig
from privmarket.flower._federation import federation_client, federation_server
CONFIG = FederationConfig.from_json(json.loads({json.dumps(json.dumps(config.to_json()))}))
server = federation_server(CONFIG, receipts=False, deadline_seconds={_PATIENCE_SECONDS / 2}, bid_seconds=120.0)
client = federation_client(CONFIG)
"""


def plain(config: FederationConfig) -> EngineResult:
    """Runs the plain simulation, without Flower; returns its figures."""
    result = simulation.run(config)
    rounds = [asdict(record) for record in result.records]
    return {"rounds": rounds, "weights_sha256": wire.digest({"weights": result.weights}), "round_seconds": []}


def in_process(config: FederationConfig) -> EngineResult:
    """Runs the market on a grid in this process; returns its figures."""
    client = federation_client(config)
    return _figures(run_in_process(federation_server(config, receipts=False), client, config.clients).to_json())


def on_engine(config: FederationConfig, folder: Path, *, ray: bool) -> EngineResult:
    """Ray, or SuperLink and SuperNodes that are processes of their own."""
    app = write_app(folder / "app", app_code(config), {})
    with Engine(folder, config.clients, simulation=ray, start_seconds=240.0) as engine:
        return _figures(engine.run(app, timeout_seconds=_PATIENCE_SECONDS))


def _figures(result: ResultJson) -> EngineResult:
    return {
        "rounds": result["rounds"],
        "weights_sha256": result["weights_sha256"],
        "round_seconds": result["round_seconds"],
    }


def measure(place: Path, config: FederationConfig = CONFIG) -> EngineReport:
    """What every engine gave, and whether all gave the same; kept in a file after each engine."""
    found: EngineReport = json.loads(place.read_text(encoding="utf-8") if place.exists() else "{}")
    if found.get("config") != config.to_json():
        versions = {name: version(name) for name in ("privmarket", "flwr", "torch")}
        found = {"config": config.to_json(), "versions": versions, "processors": os.cpu_count(), "engines": {}}
    with TemporaryDirectory() as folder:
        engines: dict[str, Callable[[], EngineResult]] = {
            "plain simulation": lambda: plain(config),
            "in-process grid": lambda: in_process(config),
            "Ray": lambda: on_engine(config, Path(folder) / "ray", ray=True),
            f"SuperLink and {config.clients} SuperNodes": lambda: on_engine(
                config, Path(folder) / "deployment", ray=False
            ),
        }
        for name, run in engines.items():
            if name not in found["engines"]:
                found["engines"][name] = _kept(run)
                found["same"] = same(found["engines"])
                write_atomically(place, json.dumps(found, indent=1) + "\n")
    return found


def _kept(run: Callable[[], EngineResult]) -> KeptEngine:
    started = time.perf_counter()
    result = run()
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "round_seconds": result["round_seconds"],
        "load_average": round(os.getloadavg()[1], 1),
        "weights_sha256": result["weights_sha256"],
        "rounds": [{name: one[name] for name in _ROUND} for one in result["rounds"]],
    }


def same(engines: Mapping[str, KeptEngine]) -> bool:
    """Whether all engines gave the same payments, accuracy and model, to the last bit."""
    first, *others = [(one["weights_sha256"], one["rounds"]) for one in engines.values()]
    return all(other == first for other in others)


if __name__ == "__main__":
    kept = measure(Path(sys.argv[1]))
    print({name: one["seconds"] for name, one in kept["engines"].items()}, "same:", kept["same"])
