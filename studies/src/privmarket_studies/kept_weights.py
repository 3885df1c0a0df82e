"""Which weights a kept federated run was made with, so that a page shows no run of weights that no longer ship.

A run that is made today carries the digest of its rule's weights. Runs of before did not. For them
`earlier-weights.json`, beside the folder of runs, has the digest of the weights in the commit that brought the run
in its present form; `python -m privmarket_studies.kept_weights docs/results/federated` reads it from git.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from privmarket._files import write_atomically
from privmarket.errors import PrivmarketError
from privmarket.mechanisms.learned._menunet import AGGREGATE_WEIGHTS
from privmarket_studies.reproduce.cells import parameters_digest, weights_digest

EARLIER = "earlier-weights.json"
FIELD = "weights"
_SHIPPED = "src/privmarket/mechanisms/learned/weights"


class KeptConfig(TypedDict):
    """Of a kept run's configuration, what pages and loops read."""

    dataset: str
    mechanism: str
    mechanism_settings: Mapping[str, object]
    mode: str
    types: str
    wallet: float | None
    aggregation: str
    rounds: int
    seed: int
    honest_share: float
    training: dict[str, Any]


class KeptResult(TypedDict):
    """Of a kept run's result file, what pages read; `privmarket.simulation._result.brief` writes it."""

    command: str
    config: KeptConfig
    accuracy: float
    spent: float
    epsilon_bought: float
    sellers_per_round: float
    clients_that_sold: int
    largest_epsilon_spent: float | None
    largest_epsilon_if_others_collude: float | None
    weights: NotRequired[str]


def weights_of(config: Mapping[str, object]) -> str:
    """The name under which the weights of a run's rule ship, if it has any."""
    settings = config["mechanism_settings"]
    for_sums = isinstance(settings, Mapping) and settings.get("objective") == "aggregate-error"
    return AGGREGATE_WEIGHTS if for_sums and config["mechanism"] == "mfg-menunet" else str(config["mechanism"])


def with_weights(result: Mapping[str, object]) -> dict[str, object]:
    """A run's result with the digest of the weights that ship for its rule; as it is for rules without weights."""
    config = result["config"]
    digest = weights_digest(weights_of(config)) if isinstance(config, Mapping) else None
    return {**result, FIELD: digest} if digest else dict(result)


def read_run(path: Path) -> KeptResult | None:
    """The result in a file, or None if it was made with weights that do not ship, or nobody knows which."""
    result: KeptResult = json.loads(path.read_text(encoding="utf-8"))
    config: Mapping[str, object] = result.get("config", {})
    today = weights_digest(weights_of(config)) if "mechanism" in config else None
    if today is None or today == result.get(FIELD, earlier(path.parent.parent).get(path.stem)):
        return result
    return None


def earlier(folder: Path) -> dict[str, str]:
    """Run → digest of its weights, for runs that do not carry it themselves."""
    path = folder / EARLIER
    if not path.exists():
        return {}
    listed: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    return {name: entry[FIELD] for name, entry in listed.items()}


def establish(folder: Path) -> Path:
    """Writes `earlier-weights.json` from git for the runs of learned rules that carry no digest.

    Raises:
        PrivmarketError: if a run differs from what is committed, or its commit has no weights for its rule.
    """
    listed = {}
    for path in sorted((folder / "runs").glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        name = weights_of(result["config"])
        if FIELD in result or weights_digest(name) is None:
            continue
        commit = _git(folder, "log", "-1", "--format=%H", "--", str(path)).decode().strip()
        listed[path.stem] = {"commit": commit[:12], FIELD: digest_in(folder, commit, path, name)}
    place = folder / EARLIER
    write_atomically(place, json.dumps(listed, indent=1) + "\n")
    return place


def digest_in(folder: Path, commit: str, run: Path, name: str) -> str:
    """The digest of the weights called `name` in the commit that brought `run` in its present form."""
    root = Path(_git(folder, "rev-parse", "--show-toplevel").decode().strip())
    committed = _git(folder, "show", f"{commit}:{run.resolve().relative_to(root).as_posix()}")
    if committed != run.read_bytes():
        raise PrivmarketError(f"{run.name} is not what commit {commit[:12]} has", "commit it, or make it again")
    return parameters_digest(_git(folder, "show", f"{commit}:{_SHIPPED}/{name}.safetensors"))


def _git(folder: Path, *words: str) -> bytes:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, check=False)
    if done.returncode != 0:
        raise PrivmarketError(done.stderr.decode().strip(), "run this in a checkout with the whole history")
    return done.stdout


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Finds in git which weights kept runs were made with.")
    parser.add_argument("folder", type=Path, help="docs/results/federated")
    print(establish(parser.parse_args().folder.resolve()))
