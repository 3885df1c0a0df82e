"""How the learned baselines were tuned: `python -m privmarket_studies.learned_tuning FILE [NAME …]`.

Short trainings of the same length with different settings, judged by one attack in markets that no training saw.
Each finished trial is written into the file at once, so a call that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypedDict

import torch

from privmarket._files import write_atomically
from privmarket.market._attacks import QUICK
from privmarket.market._distributions import scenario
from privmarket.mechanisms import mechanism
from privmarket.mechanisms.learned._losses import Alignment
from privmarket.mechanisms.learned._measure import CaseRow, measure
from privmarket.mechanisms.learned._recipes import Recipe
from privmarket.mechanisms.learned._session import run_recipe
from privmarket_studies.make_weights import BUDGET_PER_CLIENT

# Short, with half the clients per batch and half the attacked ones: a trial takes about a minute.
SHORT: dict[str, object] = {"steps": 100, "rows": 1024, "attack.rows": 320}
MARKETS = {10: 12, 30: 4}
SEED = 99

# Multipliers: as the baselines first had them, as mfg-regretnet has them, and the latter for groups of 5 to 30.
SOFT = {"steering.first": 3.0, "steering.rate": 0.004, "steering.regret_budget": (0.005,) * 5}
STEADY = {
    "steering.first": 10.0,
    "steering.rate": 0.003,
    "steering.regret_budget": (0.008, 0.004, 0.002, 0.0015, 0.0015),
}
GROUPS = {**STEADY, "steering.first": 8.0, "steering.regret_budget": (0.015, 0.006, 0.002, 0.0015, 0.0015)}


class TrialIdentity(TypedDict):
    """What names a trial."""

    mechanism: str
    trial: str
    settings: dict[str, Any]


class TuningRow(TrialIdentity):
    """What a trial led to, and how long training and attack took."""

    train_seconds: float
    attack_seconds: float
    cases: list[CaseRow]


@dataclass(frozen=True)
class Trial:
    """One short training: what is tried, as settings of a recipe that are all written down."""

    mechanism: str
    name: str
    settings: dict[str, object] = field(default_factory=dict)

    def recipe(self) -> Recipe:
        """The recipe; a baseline's own defaults, which follow from these trials, have no part in it."""
        base = Recipe(self.mechanism, alignment=Alignment(weight=0.0))
        return base.with_settings({**SHORT, **self.settings})


def _seats(seats: int, **network: object) -> dict[str, object]:
    return {"clients": (5, seats), "network.seats": seats, **{f"network.{key}": v for key, v in network.items()}}


UNTRAINED = {"steps": 1}
SLOWER = {"learning_rate": 5e-4}
TRIALS: tuple[Trial, ...] = (
    Trial("regretnet", "a threshold per seat, 10 seats", {**_seats(10, menus=0), **SOFT}),
    Trial("regretnet", "ladder of menus, multipliers of mfg-regretnet, 10 seats", {**_seats(10), **STEADY}),
    Trial("regretnet", "the same, 30 seats", {**_seats(30), **STEADY}),
    Trial("regretnet", "the same, multipliers for groups (ships)", {**_seats(30), **GROUPS}),
    Trial("regretnet", "the same, untrained", {**_seats(30), **GROUPS, **UNTRAINED}),
    Trial(
        "dm-regretnet",
        "a threshold per seat, relaxed levels, 10 seats",
        {**_seats(10, menus=0, straight_through=False), **SOFT},
    ),
    Trial("dm-regretnet", "ladder, relaxed levels, 30 seats", {**_seats(30, straight_through=False), **GROUPS}),
    Trial("dm-regretnet", "the same, one-hot levels, half the rate (ships)", {**_seats(30), **GROUPS, **SLOWER}),
)


def run(trial: Trial) -> TuningRow:
    """Trains with the settings of a trial and attacks the result on three distributions and two sizes."""
    torch.set_num_threads(1)
    chosen = trial.recipe()
    with TemporaryDirectory() as folder:
        out = Path(folder) / "w.safetensors"
        done = run_recipe(chosen, [scenario(distribution) for distribution in chosen.scenarios], out)
        cases = [
            (scenario(distribution), clients, money * clients, markets)
            for distribution, money in BUDGET_PER_CLIENT.items()
            for clients, markets in MARKETS.items()
        ]
        started = time.monotonic()
        found = measure(mechanism(trial.mechanism, weights=out), cases, QUICK, SEED)["cases"]
    return {
        "mechanism": trial.mechanism,
        "trial": trial.name,
        "settings": _identity(trial)["settings"],
        "train_seconds": round(done.seconds, 1),
        "attack_seconds": round(time.monotonic() - started, 1),
        "cases": found,
    }


def _identity(trial: Trial) -> TrialIdentity:
    """What a kept row must still be equal to: a trial with other settings is another one."""
    identity: TrialIdentity = json.loads(
        json.dumps({"mechanism": trial.mechanism, "trial": trial.name, "settings": {**SHORT, **trial.settings}})
    )
    return identity


def pending(rows: Sequence[TuningRow], trials: Sequence[Trial] = TRIALS) -> list[Trial]:
    """The trials that have no row yet."""
    done = [_identity_of(row) for row in rows]
    return [trial for trial in trials if _identity(trial) not in done]


def _identity_of(row: TuningRow) -> TrialIdentity:
    return {"mechanism": row["mechanism"], "trial": row["trial"], "settings": row["settings"]}


def main(file: Path, names: Sequence[str] = ()) -> None:
    """Runs what is missing, all of it or named trials and mechanisms; rows stay in the order of `TRIALS`."""
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    for trial in pending(rows):
        if names and not {trial.name, trial.mechanism} & set(names):
            continue
        row = run(trial)
        print(json.dumps(row), file=sys.stderr, flush=True)
        rows = _in_order([*rows, row])
        write_atomically(file, (json.dumps(rows, indent=1) + "\n").encode())


def _in_order(rows: list[TuningRow]) -> list[TuningRow]:
    """Rows of trials that are still listed, in their order."""
    found = []
    for trial in TRIALS:
        identity = _identity(trial)
        found += [row for row in rows if _identity_of(row) == identity][-1:]
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
