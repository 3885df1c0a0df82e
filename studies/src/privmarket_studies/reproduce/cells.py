"""A cell: one mechanism in one setting with one seed, and everything that its result depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

from privmarket.errors import UnknownNameError

# Plain data; each kind of cell says which fields its configurations have, and each page reads those of its kinds.
Config = Mapping[str, Any]
Result = dict[str, Any]
Run = Callable[[Config, int, Path], Result]
"""(configuration, seed, folder for what a killed cell can go on from) ↦ plain data."""


@dataclass(frozen=True)
class Kind:
    """How cells of one kind are computed.

    Attributes:
        where: "module:function" of the `Run`.
        revision: raised by hand whenever the same configuration would give another result; earlier cells go stale.
    """

    where: str
    revision: int = 1


_HERE = "privmarket_studies.reproduce"
KINDS: dict[str, Kind] = {
    "efficiency": Kind(f"{_HERE}.market_cells:run_efficiency"),
    "printed-row": Kind(f"{_HERE}.market_cells:run_printed_row"),
    "regret": Kind(f"{_HERE}.regret:run"),
    "latency": Kind(f"{_HERE}.latency:run"),
    "deviations": Kind(f"{_HERE}.latency:run_deviations"),
    "federated": Kind(f"{_HERE}.federated:run"),
    "nash": Kind(f"{_HERE}.deviation_cells:run_nash"),
    "fairness": Kind(f"{_HERE}.market_cells:run_fairness"),
    "reseeded": Kind(f"{_HERE}.reseeded:run"),
    "reseeded-menu": Kind(f"{_HERE}.reseeded:run_menu"),
    "training": Kind(f"{_HERE}.short_training:run"),
    "strategic": Kind(f"{_HERE}.strategic:run"),
    "ascent": Kind(f"{_HERE}.deviation_cells:run_ascent"),
    "over-offer": Kind(f"{_HERE}.deviation_cells:run_over_offer"),
    "market-regret": Kind(f"{_HERE}.deviation_cells:run_market_regret"),
    "coalition": Kind(f"{_HERE}.deviation_cells:run_coalition"),
    "belief": Kind(f"{_HERE}.belief:run"),
    "belief-training": Kind(f"{_HERE}.belief:run_trained"),
    "money": Kind("privmarket_studies.what_money_buys.runs:run", revision=3),
    "money-pooled": Kind("privmarket_studies.what_money_buys.runs:run_pooled"),
    "money-noise": Kind("privmarket_studies.what_money_buys.noise:run"),
    "money-sceptic": Kind("privmarket_studies.what_money_buys.sceptic:run"),
    "money-copies": Kind("privmarket_studies.what_money_buys.copies:run"),
}


@dataclass(frozen=True, eq=False)
class Cell:
    """What is to be computed.

    Attributes:
        kind: a name of `KINDS`, or "module:function" for a kind of one's own.
        config: plain data; mechanisms whose weights ship are named by `mechanism`.
        cost: expected work in units of its kind, for the time estimate only.
    """

    kind: str
    config: Config
    seed: int
    cost: float = field(default=1.0, compare=False)

    def to_json(self) -> dict[str, object]:
        """What names the cell, whatever code and weights compute it."""
        return {"kind": self.kind, "config": dict(self.config), "seed": self.seed}

    @cached_property
    def slot(self) -> str:
        """Names the place that the cell's result has in tables."""
        return _digest(self.to_json())

    @cached_property
    def depends_on(self) -> dict[str, object]:
        """What a result is only valid with: the kind's revision and the weights that ship."""
        needs: dict[str, object] = {"revision": kind_of(self.kind).revision}
        # An untrained network follows from the recipe that the weights that ship were trained by.
        weights = weights_digest(str(self.config.get("mechanism", "")).removesuffix(":untrained"))
        return {**needs, "weights": weights} if weights else needs

    @property
    def key(self) -> str:
        """Names the result: other weights or another revision, another key."""
        return f"{self.slot}-{_digest(self.depends_on)[:8]}"

    def compute(self, scratch: Path) -> Result:
        """Runs the cell in this process."""
        module, _, name = kind_of(self.kind).where.partition(":")
        run: Run = getattr(import_module(module), name)
        return run(self.config, self.seed, scratch)


@dataclass(frozen=True)
class Scale:
    """How large a reproduction is, which the questions choose their cells by.

    Attributes:
        quick: everything in small: fewer markets, seeds, rounds and sizes.
        seeds: seeds per setting, instead of each question's own number.
    """

    quick: bool = False
    seeds: int | None = None

    def pick(self, full: int, quick: int) -> int:
        """`quick` in the quick form, else `full`."""
        return quick if self.quick else full

    def seeds_or(self, full: int, quick: int) -> range:
        """The seeds: as asked for, or the question's own number."""
        return range(self.seeds if self.seeds is not None else self.pick(full, quick))


def kind_of(name: str) -> Kind:
    """The kind of cells called `name`.

    Raises:
        UnknownNameError: no kind has this name.
    """
    if ":" in name:
        return Kind(name)
    if name not in KINDS:
        raise UnknownNameError(f"unknown kind of cell {name!r}", f"choose one of: {', '.join(KINDS)}")
    return KINDS[name]


@lru_cache(maxsize=64)
def weights_digest(mechanism: str) -> str | None:
    """Names the parameters that ship for a mechanism; None for rules without weights."""
    name = mechanism.replace(":", "-") + ".safetensors"
    file = files("privmarket.mechanisms.learned") / "weights" / name
    return parameters_digest(file.read_bytes()) if file.is_file() else None


def parameters_digest(stored: bytes) -> str:
    """SHA-256 of a safetensors file without its metadata, shortened.

    What was measured about weights is kept in the metadata; measuring more does not change what they do.
    """
    size = int.from_bytes(stored[:8], "little")
    header = json.loads(stored[8 : 8 + size])
    header.pop("__metadata__", None)
    names = json.dumps(header, sort_keys=True).encode()
    return hashlib.sha256(names + stored[8 + size :]).hexdigest()[:12]


def _digest(data: object) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
