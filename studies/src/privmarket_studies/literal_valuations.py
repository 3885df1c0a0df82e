"""The paper's valuations with its own weights: v = u/ε, Eq. (valuation-fn) of [Sun2026] with (1, 0, 0), u measured.

    python -m privmarket_studies.literal_valuations measure CACHE    # resumable; writes valuations.json

u is the accuracy of a model that a client trains by itself, on a fifth of its own records that the model has not
seen. Such a bid depends on the records, and no noise protects it: whoever sees (v, ε) knows u = v·ε. Real clients
must not bid like this; here it is done once to see what a market of such clients buys.

Rules that need to know the distribution of bids get the bids of other seeds.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import privmarket as pm
from privmarket._files import write_atomically
from privmarket.market import Bids, Distribution, MarketFacts
from privmarket.market._distributions import EmpiricalDistribution, ValuationFunction
from privmarket.simulation._bidding import AskedPrices
from privmarket.tasks import Task

FOLDER = Path(__file__).parents[3] / "docs" / "results" / "literal"
CLIENTS = 100
BUDGET = 50.0
ALPHAS = (0.5, 0.1)
SEEDS = range(5)
PAST_SEEDS = range(100, 103)
RUN_SEEDS = range(3)
RUN_ROUNDS = 15
RULES = (
    "pac",
    "vcg",
    "csra",
    "mfg-pricing",
    "mean-field-menu",
    "mfg-menunet",
    "regretnet",
    "dm-regretnet",
    "mfg-regretnet",
    "mfg-regretnet:literal",
)
# A client offers "little" below this ε: the privacy-sensitive half of the paper's Bimodal scenario.
LITTLE = 0.5
_TYPES = 5


def own_accuracy(inputs: NDArray[np.float64], labels: NDArray[np.int64], seed: int, ridge: float = 30.0) -> float:
    """The share of a held-out fifth of a client's records that a ridge classifier of its other records gets right.

    Args:
        inputs: (records, inputs); labels: (records,).
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    held = order[: max(1, len(order) // 5)]
    rest = order[len(held) :]
    kinds = np.unique(labels)
    marks = 2.0 * (labels[rest, None] == kinds) - 1.0
    rows = np.concatenate((inputs, np.ones((len(inputs), 1))), axis=1)
    kernel = rows[rest] @ rows[rest].T + ridge * np.eye(len(rest))
    scores = rows[held] @ (rows[rest].T @ np.linalg.solve(kernel, marks))
    return float((kinds[scores.argmax(1)] == labels[held]).mean())


@cache
def mnist(alpha: float, seed: int) -> Task:
    """The clients of a run on pixels."""
    return pm.task("mnist", clients=CLIENTS, alpha=alpha, public=0, features="none", model="linear", seed=seed)


def accuracies(alpha: float, seed: int) -> NDArray[np.float64]:
    """(clients,) u of each client."""
    task = mnist(alpha, seed)
    inputs = np.asarray(task.private.inputs, dtype=np.float64).reshape(int(task.sizes.sum()), -1)
    labels = np.asarray(task.private.labels, dtype=np.int64)
    return np.array([own_accuracy(inputs[rows], labels[rows], seed) for rows in task.slices()])


def drawn_bids(seed: int) -> Bids:
    """(clients,) Table II's Uniform scenario, the draw of a federated run with this seed."""
    return pm.scenario("uniform").sample(np.random.default_rng([seed, _TYPES]), CLIENTS)


def paper_bids(accuracy: NDArray[np.float64], seed: int) -> Bids:
    """(clients,) the same caps with v = u/ε."""
    drawn = drawn_bids(seed)
    nothing = np.zeros(CLIENTS)
    return drawn.replace(valuation=ValuationFunction(1.0, 0.0, 0.0)(accuracy, drawn.epsilon, nothing, nothing))


def figures(rule: str, bids: Bids, distribution: Distribution) -> dict[str, float]:
    """What a rule buys in one market."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # learned rules warn of valuations that they were not trained on
        outcome = pm.mechanism(rule, market=MarketFacts.of(distribution)).run(bids, BUDGET)
    sold = outcome.epsilon
    cost = bids.valuation * sold
    little = bids.epsilon < LITTLE
    return {
        "epsilon": float(sold.sum()),
        "spent": float(outcome.payment.sum()),
        "sellers": int((sold > 0).sum()),
        "underpaid": int((outcome.payment < cost - 1e-9).sum()),
        "little_share": float(sold[little].sum() / max(sold.sum(), 1e-30)),
    }


def markets(cache_folder: Path) -> dict[str, Any]:
    """Every rule on both kinds of bids, seed by seed."""
    measured: dict[float, dict[int, NDArray[np.float64]]] = {alpha: {} for alpha in ALPHAS}
    for alpha in ALPHAS:
        for seed in (*SEEDS, *PAST_SEEDS):
            kept = cache_folder / f"accuracy-{alpha}-{seed}.npy"
            if not kept.exists():
                np.save(kept, accuracies(alpha, seed))
                mnist.cache_clear()
                print(kept.stem, flush=True)
            measured[alpha][seed] = np.load(kept)
    found: dict[str, Any] = {"accuracy": {}, "rules": {}}
    uniform = pm.scenario("uniform")
    found["rules"]["Table II"] = {
        rule: [figures(rule, drawn_bids(seed), uniform) for seed in SEEDS] for rule in RULES
    }
    for alpha in ALPHAS:
        everyone = np.concatenate([measured[alpha][seed] for seed in SEEDS])
        found["accuracy"][str(alpha)] = [float(x) for x in np.quantile(everyone, (0, 0.1, 0.5, 0.9, 1))]
        past = [paper_bids(measured[alpha][seed], seed) for seed in PAST_SEEDS]
        pooled = Bids(
            np.concatenate([one.valuation for one in past]), np.concatenate([one.epsilon for one in past])
        )
        distribution = EmpiricalDistribution("past bids", pooled, epsilon_max=uniform.epsilon_max)
        found["rules"][f"v = u/ε, α = {alpha}"] = {
            rule: [figures(rule, paper_bids(measured[alpha][seed], seed), distribution) for seed in SEEDS]
            for rule in RULES
        }
    return found


def federated(cache_folder: Path) -> list[dict[str, Any]]:
    """Private training on MNIST with the default rule, by both kinds of bids."""
    runs = []
    for seed in RUN_SEEDS:
        for alpha in ALPHAS:
            for kind in ("Table II", "v = u/ε"):
                kept = cache_folder / f"run-{alpha}-{seed}-{kind.split()[0]}.json"
                if not kept.exists():
                    started = time.process_time()
                    bids = drawn_bids(seed)
                    if kind != "Table II":
                        bids = paper_bids(np.load(cache_folder / f"accuracy-{alpha}-{seed}.npy"), seed)
                    asked = AskedPrices(
                        tuple(str(client) for client in range(CLIENTS)), bids, np.full(CLIENTS, np.inf)
                    )
                    result = pm.federate(
                        dataset="mnist",
                        alpha=alpha,
                        mechanism="mean-field-menu",
                        bids=asked,
                        rounds=RUN_ROUNDS,
                        budget=BUDGET,
                        seed=seed,
                        evaluate_every=RUN_ROUNDS,
                    )
                    one = {
                        "seed": seed,
                        "alpha": alpha,
                        "bids": kind,
                        "score": result.score,
                        "spent": result.spent,
                        "sellers": float(np.mean([record.sellers for record in result.records])),
                        "epsilon": float(np.mean([record.total_epsilon for record in result.records])),
                        "processor_seconds": round(time.process_time() - started, 1),
                    }
                    write_atomically(kept, json.dumps(one) + "\n")
                    print(json.dumps(one), flush=True)
                runs.append(json.loads(kept.read_text()))
    return runs


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m privmarket_studies.literal_valuations")
    parser.add_argument("command", choices=("measure",))
    parser.add_argument("cache", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    given.cache.mkdir(parents=True, exist_ok=True)
    found = markets(given.cache)
    FOLDER.mkdir(parents=True, exist_ok=True)
    place = FOLDER / "valuations.json"
    # The runs take longer; the markets are worth having without them.
    write_atomically(place, json.dumps({"markets": found, "federated": []}) + "\n")
    write_atomically(place, json.dumps({"markets": found, "federated": federated(given.cache)}) + "\n")


if __name__ == "__main__":
    main()
