"""The federated runs that are kept: what each is for, the command that gives it, and a loop that makes them.

Each run is one call of `privmarket federate` in a process of its own, so what the page shows is what a reader
would get by typing it. Runs that exist with today's settings are left alone; a stopped one resumes:

    python -m privmarket_studies.federated_runs docs/results/federated/runs --minutes 9
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from privmarket._files import write_atomically
from privmarket.simulation._config import MODES, Training, recommended_training
from privmarket_studies.kept_weights import KeptConfig, read_run, with_weights

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
        """Where the result of this seed is kept."""
        return folder / f"{self.name}-seed-{seed}.json"

    def words(self, seed: int) -> list[str]:
        """The arguments of the command that makes this run."""
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
BESIDE = (
    _menu("mnist-0.1-redrawn", "--dataset mnist --alpha 0.1 --types redrawn"),
    _menu("mnist-0.5-redrawn", "--dataset mnist --alpha 0.5 --types redrawn"),
    KeptRun("mnist-0.5-no-dp", "--dataset mnist --alpha 0.5 --no-dp --rounds 50 --evaluate-every 10", (0,)),
    KeptRun(
        "fashion-mnist-0.5-no-dp",
        "--dataset fashion-mnist --alpha 0.5 --no-dp --rounds 50 --evaluate-every 10",
        (0,),
    ),
)
AGGREGATION = tuple(
    _menu(f"mnist-0.1-{rule}", f"--dataset mnist --alpha 0.1 --aggregation {rule}")
    for rule in ("epsilon", "optimal")
)

# The curve learned for the P2 error against a posted price, where money is short; at 50 a round RQ4 compares them.
_SKEWED = "--dataset mnist --alpha 0.1 --evaluate-every 20"
BUDGET = 5
RULES = {
    "posted": "--mechanism mfg-menunet",
    "p2-curve": "--mechanism mfg-menunet --mechanism-set objective=aggregation-error "
    "--mechanism-set heterogeneity=0.2",
}


def curve_name(rule: str) -> str:
    """The name of the kept run with this rule at the small budget."""
    return f"mnist-0.1-budget-{BUDGET}-{rule}"


CURVES = tuple(KeptRun(curve_name(r), f"{_SKEWED} --budget {BUDGET} {RULES[r]}") for r in RULES)
KEPT = (*PROMISED, *CURVES, *BESIDE, *AGGREGATION)


def _turn(run: KeptRun, seed: int) -> int:
    """When a run is made: every kind once, then the promised ones again, then the rest."""
    if run in CURVES:
        return 1  # a comparison of rules needs all its seeds
    if run in PROMISED:
        return 2 * seed
    return 1 if seed == 0 else 5 + seed


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
    path = kept.path(folder, seed)
    result = with_weights(json.loads(path.read_text(encoding="utf-8")))
    write_atomically(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return True


def _up_to_date(kept: KeptRun, folder: Path, seed: int) -> bool:
    """Whether the file was made by this command, with the weights that ship and the settings recommended today."""
    path = kept.path(folder, seed)
    if not path.exists():
        return False
    result = read_run(path)
    if result is None:
        return False
    return command_of(kept, seed) == result["command"] and settings_are_recommended(kept, result["config"])


def command_of(kept: KeptRun, seed: int) -> str:
    """The command line that makes this run."""
    return " ".join(["privmarket", *kept.words(seed)])


def settings_are_recommended(kept: KeptRun, config: KeptConfig) -> bool:
    """Whether a kept run used the settings that are recommended today, where its command does not say otherwise."""
    if MODES[config["mode"]].on_pixels or "--set" in kept.options.split():
        return True
    return Training(**config["training"]) == recommended_training(config["dataset"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--only", default="", help="runs whose name begins so")
    chosen = parser.parse_args()
    print(f"{make(chosen.folder, chosen.minutes, chosen.only)} runs missing", file=sys.stderr)
