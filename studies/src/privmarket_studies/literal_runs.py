"""The paper's federated runs as printed: Algorithm 2 of [Sun2026] with Table III's settings and its own rule.

    python -m privmarket_studies.literal_runs train CACHE [NAME …]   # resumable; without names all runs, in order
    python -m privmarket_studies.literal_page                         # writes docs/results/literal/README.md

CACHE is a folder outside the repository that keeps the weights of unfinished runs. What a run found so far is in
docs/results/literal/runs/NAME.json, written whenever the weights are. With an empty CACHE a run starts again: its
rounds are compared with those of the file, which is written once there are as many of them.

A run is: every client bids (v, ε) of the Uniform scenario; `mfg-regretnet:literal` clears the round; every client
trains the global model for E = 5 epochs in batches of 32 with a step of 0.01; noise of standard deviation
√(2 ln(1.25/δ))·Δf/max(ε, ε_min) with δ = 1/N and Δf = 1 is added to its *weights*; the new global model is their
average by α ∝ ε. It is not differentially private: nothing bounds how far a record moves the weights.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import privmarket as pm
from privmarket._files import write_atomically
from privmarket.market import Bids
from privmarket.privacy._gaussian import literal_noise_multiplier
from privmarket.tasks import Task
from privmarket.training import PrivateModel
from privmarket_studies.literal_training import LocalTraining, cnn, mlp, prepare, train_cnn, train_mlp

RULE = "mfg-regretnet:literal"
CLIENTS = 100
BUDGET = 50.0
# The paper names a floor on ε and gives no number; the least ε that a client of its Uniform scenario offers is 0.1.
EPSILON_MIN = 0.1
LAST_ROUNDS = 5
REPOSITORY = Path(__file__).parents[3]
FOLDER = REPOSITORY / "docs" / "results" / "literal"

# Streams of random numbers, as in a run of `privmarket federate`, so that both draw the same.
_WEIGHTS, _SHUFFLE, _NOISE, _TYPES = 2, 3, 4, 5

# What is kept of every round.
_BY_ROUND = ("accuracy", "left_out", "norm")


@dataclass(frozen=True)
class Reading:
    """One way to read the paper's letter.

    Attributes:
        name: in file names.
        says: what is done, for the page.
        has_noise: whether the noise of Algorithm 2 is added.
        clip_norm: of a batch's gradient in local training; None clips nothing.
        rule: clears the auction.
    """

    name: str
    says: str
    has_noise: bool
    clip_norm: float | None
    rule: str = RULE


READINGS = {
    one.name: one
    for one in (
        Reading("printed", "Algorithm 2 as printed", True, None),
        Reading("clipped", "the same, every batch's gradient clipped to Table III's norm of 1", True, 1.0),
        Reading("sold-out", "as printed, but everybody sells all it offers", True, None, "mfg-pricing:literal"),
        Reading("noise-free", "as printed, the noise left out", False, None),
    )
}


@dataclass(frozen=True)
class LiteralRun:
    """One run: all that decides its numbers."""

    dataset: str
    alpha: float
    seed: int
    reading: str
    rounds: int
    clients: int = CLIENTS
    budget: float = BUDGET

    @property
    def name(self) -> str:
        """Its file's name."""
        return f"{self.dataset}-{self.alpha}-{self.reading}-seed-{self.seed}"


# All runs are taken so far before any of them goes on: the first rounds decide, and what is finished is balanced.
STAGES = (4, 10, 50, 200)


def all_runs() -> list[LiteralRun]:
    """Every run of the page, in the order in which a stage takes them."""
    alphas = (0.5, 0.1)
    made = [LiteralRun("mnist", alpha, seed, "printed", 200) for seed in range(5) for alpha in alphas]
    made += [LiteralRun("mnist", alpha, 0, "noise-free", 200) for alpha in alphas]
    made += [LiteralRun("mnist", alpha, 0, "sold-out", 200) for alpha in alphas]
    made += [LiteralRun("cifar10", 0.5, seed, "printed", 200) for seed in (0, 1)]
    made += [LiteralRun("mnist", alpha, 0, "clipped", 200) for alpha in alphas]
    made += [LiteralRun("cifar10", 0.5, 0, "noise-free", 50)]
    return made


@dataclass(frozen=True, eq=False)
class Market:
    """What a round's auction sells; types persist, so every round sells the same.

    Attributes:
        bids: (clients,) what clients report.
        epsilon, payment: (clients,) of the rule.
    """

    bids: Bids
    epsilon: NDArray[np.float64]
    payment: NDArray[np.float64]

    @classmethod
    def of(cls, run: LiteralRun, task: Task) -> Market:
        """The auction of a run's clients, by its reading's rule."""
        drawn = pm.scenario("uniform").sample(np.random.default_rng([run.seed, _TYPES]), run.clients)
        bids = Bids(drawn.valuation, drawn.epsilon, data_size=task.sizes.astype(np.float64))
        outcome = pm.mechanism(READINGS[run.reading].rule).run(bids, run.budget)
        return cls(bids, outcome.epsilon, outcome.payment)

    def sigma(self) -> NDArray[np.float64]:
        """(clients,) standard deviation of the noise on each weight."""
        return literal_noise_multiplier(np.maximum(self.epsilon, EPSILON_MIN), 1.0 / len(self.epsilon))

    def figures(self) -> dict[str, float]:
        """What the page says about it."""
        cost = self.bids.valuation * self.epsilon
        share = self.epsilon / self.epsilon.sum()
        return {
            "epsilon_offered": float(self.bids.epsilon.sum()),
            "epsilon_sold": float(self.epsilon.sum()),
            "largest_epsilon": float(self.epsilon.max()),
            "below_floor": int((self.epsilon < EPSILON_MIN).sum()),
            "spent": float(self.payment.sum()),
            "underpaid": int((self.payment < cost).sum()),
            "sigma_smallest": float(self.sigma().min()),
            "sigma_of_average": float(np.sqrt(((share * self.sigma()) ** 2).sum())),
        }


class LiteralFederation:
    """The fixed parts of a run, and its step from round to round."""

    def __init__(self, run: LiteralRun) -> None:
        self.run = run
        self.reading = READINGS[run.reading]
        is_cnn = run.dataset == "cifar10"
        self.task = pm.task(
            run.dataset,
            clients=run.clients,
            alpha=run.alpha,
            public=0,
            features="none",
            model="cnn" if is_cnn else "mlp",
            seed=run.seed,
        )
        assert self.task.test is not None
        self.inputs, self.labels = self.task.private.tensors()
        self.test_inputs, self.test_labels = self.task.test.tensors()
        if is_cnn:  # convolutions are several times faster with the channels of a pixel side by side
            self.inputs = self.inputs.contiguous(memory_format=torch.channels_last)
            self.test_inputs = self.test_inputs.contiguous(memory_format=torch.channels_last)
        else:
            self.inputs = self.inputs.flatten(1)
        classes = len(self.task.classes)
        self.model = PrivateModel(cnn(classes) if is_cnn else mlp(self.inputs.shape[1], classes))
        self.rows = self.task.slices()
        self.prepared = None if is_cnn else [prepare(self.inputs[rows]) for rows in self.rows]
        self.plan = LocalTraining(clip_norm=self.reading.clip_norm)
        self.market = Market.of(run, self.task)
        self.sigma = self.market.sigma()

    def first_weights(self) -> Tensor:
        """(parameters,)."""
        return self.model.initial_weights(np.random.default_rng([self.run.seed, _WEIGHTS]))

    def released(self, weights: Tensor, number: int, client: int) -> Tensor | None:
        """(parameters,) what a client uploads in a round; None where its training left the finite numbers."""
        rows = self.rows[client]
        rng = np.random.default_rng([self.run.seed, _SHUFFLE, number, client])
        parts = [part.contiguous() for part in self.model.named(weights).values()]
        if self.prepared is None:
            trained = train_cnn(parts, self.inputs[rows], self.labels[rows], self.plan, rng)
        else:
            trained = train_mlp(parts, self.inputs[rows], self.labels[rows], self.plan, rng, self.prepared[client])
        if trained is None:
            return None
        names = [slot.name for slot in self.model.slots]
        flat = self.model.flat({name: part.numpy() for name, part in zip(names, trained, strict=True)})
        if self.reading.has_noise:
            draws = np.random.default_rng([self.run.seed, _NOISE, number, client])
            noise = draws.standard_normal(flat.numel(), dtype=np.float32)
            flat += float(self.sigma[client]) * torch.from_numpy(noise)
        return flat if bool(torch.isfinite(flat).all()) else None

    def step(self, weights: Tensor, number: int) -> tuple[Tensor, int]:
        """One round: the new global weights, and how many clients are left out because they are not finite.

        As printed, one upload that is not a number makes the average none either. Leaving it out is kinder.
        """
        total = torch.zeros(len(weights), dtype=torch.float64)
        share, left_out = 0.0, 0
        for client in np.flatnonzero(self.market.epsilon > 0):
            upload = self.released(weights, number, int(client))
            if upload is None:
                left_out += 1
                continue
            share += self.market.epsilon[client]
            total.add_(upload, alpha=float(self.market.epsilon[client]))
        return (weights if share == 0 else (total / share).float()), left_out

    def accuracy(self, weights: Tensor) -> float:
        """On the test records, in pieces that stay in the processor's cache."""
        pieces = zip(torch.split(self.test_inputs, 100), torch.split(self.test_labels, 100), strict=True)
        hits = sum(int((self.model.predict(weights, x) == y).sum()) for x, y in pieces)
        return hits / len(self.test_labels)


def train(
    run: LiteralRun, cache: Path, folder: Path = FOLDER, *, save_seconds: float = 30.0, until: int | None = None
) -> None:
    """Runs all rounds, or those before `until`, from where the cache left off."""
    torch.set_num_threads(1)
    kept = cache / f"{run.name}.npz"
    place = folder / "runs" / f"{run.name}.json"
    records: dict[str, Any] = {"accuracy": [], "left_out": [], "norm": [], "processor_seconds": 0.0}
    weights = None
    if kept.exists():
        with np.load(kept) as stored:
            saved = json.loads(str(stored["records"]))
            if saved.pop("run") == asdict(run):
                records, weights = saved, torch.from_numpy(stored["weights"])
    known = _known(run, place)
    stop = run.rounds if until is None else min(until, run.rounds)
    if len(records["accuracy"]) >= stop:
        return
    federation = LiteralFederation(run)
    if weights is None:
        weights = federation.first_weights()
    saved_at = time.monotonic()
    for number in range(len(records["accuracy"]), stop):
        started = time.process_time()
        before = weights
        weights, left_out = federation.step(before, number)
        unchanged = weights is before and records["accuracy"]
        records["accuracy"].append(records["accuracy"][-1] if unchanged else federation.accuracy(weights))
        records["left_out"].append(left_out)
        records["norm"].append(float(f"{float(weights.double().norm()):.4g}"))
        records["processor_seconds"] = round(records["processor_seconds"] + time.process_time() - started, 2)
        print(run.name, number + 1, records["accuracy"][-1], left_out, records["norm"][-1], flush=True)
        if number < len(known["accuracy"]):
            same = all(records[key][number] == known[key][number] for key in _BY_ROUND)
            again = records.setdefault("again", {"rounds": 0, "equal": 0})
            again["rounds"] += 1
            again["equal"] += same
            if not same:
                print(run.name, number + 1, "was before:", *[known[key][number] for key in _BY_ROUND], flush=True)
        if time.monotonic() - saved_at > save_seconds or number + 1 == stop:
            saved_at = time.monotonic()
            cache.mkdir(parents=True, exist_ok=True)
            beside = kept.with_suffix(".new.npz")
            np.savez(beside, weights=weights.numpy(), records=json.dumps({"run": asdict(run), **records}))
            beside.replace(kept)
            if number + 1 >= len(known["accuracy"]):
                _keep(run, federation, records, place)


def _known(run: LiteralRun, place: Path) -> dict[str, Any]:
    """What the page's file says of the same run; no rounds where there is no such file."""
    if place.exists():
        found: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        if found["run"] == asdict(run):
            return found
    return {key: [] for key in _BY_ROUND}


def _keep(run: LiteralRun, federation: LiteralFederation, records: dict[str, Any], place: Path) -> None:
    """Writes what is known of a run so far."""
    found = {
        "run": asdict(run),
        "rule": federation.reading.rule,
        "market": federation.market.figures(),
        "parameters": federation.model.parameters,
        "records_per_client": [int(federation.task.sizes.min()), int(federation.task.sizes.max())],
        "versions": {"privmarket": pm.__version__, "torch": torch.__version__, "python": platform.python_version()},
        **records,
    }
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, json.dumps(found) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m privmarket_studies.literal_runs")
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="computes runs, resuming where they stopped")
    training.add_argument("cache", type=Path)
    training.add_argument("names", nargs="*")
    given = parser.parse_args(arguments)
    for stage in STAGES:
        for run in all_runs():
            if not given.names or run.name in given.names:
                train(run, given.cache, until=stage)


if __name__ == "__main__":
    main()
