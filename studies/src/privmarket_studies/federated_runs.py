"""The federated runs that are kept: what each is for, the command that gives it, and a loop that makes them.

Each run is one call of `privmarket federate` in a process of its own, so what the page shows is what a reader
would get by typing it. Runs that exist with today's settings are left alone; a stopped one resumes:

    python -m privmarket_studies.federated_runs docs/results/federated/runs --minutes 9
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class KeptRun:
    """One setting, run for several seeds.

    Attributes:
        name: of its files, `name-seed-0.json` and so on.
        options: of `privmarket federate`.
    """

    name: str
    options: str
    seeds: tuple[int, ...] = SEEDS

    def path(self, folder: Path, seed: int) -> Path:
        """The result file of one seed."""
        return folder / f"{self.name}-seed-{seed}.json"

    def words(self, seed: int) -> list[str]:
        """The command without the program's name."""
        return ["federate", *self.options.split(), "--seed", str(seed)]


def _menu(name: str, options: str, seeds: tuple[int, ...] = SEEDS) -> KeptRun:
    return KeptRun(name, f"{options} --mechanism mfg-menunet --evaluate-every 20", seeds)


PROMISED = (
    _menu("mnist-0.5", "--dataset mnist --alpha 0.5"),
    _menu("mnist-0.1", "--dataset mnist --alpha 0.1"),
    _menu("fashion-mnist-0.5", "--dataset fashion-mnist --alpha 0.5"),
    _menu("fashion-mnist-0.5-no-noise", "--dataset fashion-mnist --alpha 0.5 --no-noise"),
    _menu("cifar10-0.5", "--dataset cifar10 --alpha 0.5"),
    _menu("mnist-0.5-wallet-8", "--dataset mnist --alpha 0.5 --wallet 8 --set model=logistic --set server_rate=2"),
    _menu("mnist-0.5-literal", "--dataset mnist --alpha 0.5 --literal --rounds 30", (0,)),
)
_CNN = "--set model=cnn --set features=none --set sampling_rate=0.1 --set clip_norm=1 --set server_rate=0.5"
BESIDE = (
    _menu("mnist-0.1-redrawn", "--dataset mnist --alpha 0.1 --types redrawn"),
    _menu("mnist-0.5-redrawn", "--dataset mnist --alpha 0.5 --types redrawn"),
    KeptRun("mnist-0.5-no-dp", "--dataset mnist --alpha 0.5 --no-dp --rounds 50 --evaluate-every 10", (0,)),
    KeptRun(
        "fashion-mnist-0.5-no-dp",
        "--dataset fashion-mnist --alpha 0.5 --no-dp --rounds 50 --evaluate-every 10",
        (0,),
    ),
    _menu("cifar10-0.5-cnn", f"--dataset cifar10 --alpha 0.5 --rounds 60 {_CNN}", (0,)),
)
AGGREGATION = tuple(
    _menu(f"mnist-0.1-{rule}", f"--dataset mnist --alpha 0.1 --aggregation {rule}")
    for rule in ("epsilon", "optimal")
)

# The curve learned for the P2 error against threshold rules, at equal budgets, severe skew, persistent types.
_SKEWED = "--dataset mnist --alpha 0.1 --evaluate-every 20"
_P2 = "--mechanism mfg-menunet --mechanism-set objective=aggregation-error --mechanism-set heterogeneity=0.2"
RULES = {
    "posted": "--mechanism mfg-menunet",
    "p2-curve": _P2,
    "p2-curve-p2-weights": f"{_P2} --aggregation optimal --heterogeneity 0.2",
    "proportional-share": "--mechanism proportional-share",
}
BUDGETS = (5, 15, 50)


def curve_name(budget: int, rule: str) -> str:
    """Of the kept run; a budget of 50 at a posted price is one of the promised runs."""
    return "mnist-0.1" if (budget, rule) == (50, "posted") else f"mnist-0.1-budget-{budget}-{rule}"


def _curve_runs(budget: int, *rules: str) -> tuple[KeptRun, ...]:
    return tuple(KeptRun(curve_name(budget, r), f"{_SKEWED} --budget {budget} {RULES[r]}") for r in rules)


_SMALL_BUDGETS = (*_curve_runs(5, "posted", "p2-curve"), *_curve_runs(15, "posted", "p2-curve"))
_OTHER_RULES = (
    *_curve_runs(50, "p2-curve"),
    *_curve_runs(5, "p2-curve-p2-weights", "proportional-share"),
    *_curve_runs(15, "p2-curve-p2-weights", "proportional-share"),
)
KEPT = (*PROMISED, *_SMALL_BUDGETS, *BESIDE, *AGGREGATION, *_OTHER_RULES)


def _turn(run: KeptRun, seed: int) -> int:
    """When a run is made: every kind once, then the promised ones again, then the rest."""
    if run in _SMALL_BUDGETS:
        return 1  # a comparison of rules needs all its seeds
    if run in PROMISED:
        return 2 * seed
    return 1 if seed == 0 and run not in _OTHER_RULES else 5 + seed


def make(folder: Path, minutes: float, only: str = "") -> int:
    """Makes what is missing and begins with `only`, until the time is over; returns how many are still missing."""
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * minutes
    wanted = [kept for kept in KEPT if kept.name.startswith(only)]
    missing = [(kept, seed) for kept in wanted for seed in kept.seeds if not _up_to_date(kept, folder, seed)]
    missing.sort(key=lambda item: _turn(*item))
    while missing and time.monotonic() < end:
        kept, seed = missing[0]
        if not _run(kept, folder, seed, end - time.monotonic()):
            break
        missing.pop(0)
        print(f"{kept.path(folder, seed).name} made", file=sys.stderr, flush=True)
    return len(missing)


def _run(kept: KeptRun, folder: Path, seed: int, seconds: float) -> bool:
    """One run, stopped when its time is over; whether it ended."""
    checkpoint = Path(tempfile.gettempdir()) / f"privmarket-kept-{kept.name}-{seed}.checkpoint"
    files = ["--save", str(kept.path(folder, seed)), "--checkpoint", str(checkpoint)]
    command = [sys.executable, "-m", "privmarket", *kept.words(seed), *files]
    try:
        subprocess.run(command, check=True, timeout=seconds, stdout=subprocess.DEVNULL, env=dict(os.environ))
    except subprocess.TimeoutExpired:
        return False
    checkpoint.unlink(missing_ok=True)
    return True


def _up_to_date(kept: KeptRun, folder: Path, seed: int) -> bool:
    """Whether the file is there and was made by this command with the settings that are recommended today."""
    path = kept.path(folder, seed)
    if not path.exists():
        return False
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return command_of(kept, seed) == result["command"] and settings_are_recommended(kept, result["config"])


def command_of(kept: KeptRun, seed: int) -> str:
    """What a reader would type."""
    return " ".join(["privmarket", *kept.words(seed)])


def settings_are_recommended(kept: KeptRun, config: dict[str, Any]) -> bool:
    """Whether a kept run used the settings that are recommended today, where its command does not say otherwise."""
    from privmarket.federated.config import Training
    from privmarket.federated.recommended import recommended_training

    if config["mode"] == "literal" or "--set" in kept.options.split():
        return True
    return Training(**config["training"]) == recommended_training(config["dataset"])


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--only", default="", help="runs whose name begins so")
    chosen = parser.parse_args()
    print(f"{make(chosen.folder, chosen.minutes, chosen.only)} runs missing", file=sys.stderr)
