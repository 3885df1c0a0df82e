"""One cell of RQ4: a federated run with a market in every round, resumable, measured where the paper measures."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from privmarket._settings import identity
from privmarket.market._audit import underpaid_share
from privmarket.market._distributions import scenario
from privmarket.rounds import MICRO
from privmarket.simulation._checkpoint import (
    RunState,
    from_checkpoint,
    load_checkpoint,
    save_checkpoint,
    to_checkpoint,
)
from privmarket.simulation._config import FederationConfig, Training, recommended_training
from privmarket.simulation._federation import Federation
from privmarket.simulation._result import RunResult, summarise
from privmarket.tasks import Dataset, Task, drawn_parts, iid_partition, load_dataset, task_of, with_features
from privmarket_studies.reproduce.cells import Config, Result
from privmarket_studies.reproduce.markets import outside_training, rule_for
from privmarket_studies.reproduce.matched import MatchedEpsilon

LAST_ROUNDS = 5
_IID_PARTS = 77  # the stream of random numbers that splits records evenly
_SAVE_SECONDS = 30.0


def run(config: Config, seed: int, scratch: Path) -> Result:
    """Config: dataset, alpha (None: IID), mechanism (empty: No-DP), settings, mode, clients, budget, rounds,
    wallet, matched (mean ε), training, and `plan`: further settings of the run (trust, strategy, sizes …).

    Final accuracy is the mean over the last five rounds, Eq. (A-final) of [Sun2026].
    """
    training = Training(**config["training"])
    dataset = _featured(config["dataset"], training.features)
    # The features are in the data set already: computing them is most of a short run's time.
    plan = _plan(config, seed, replace(training, features="none"))
    task = _shared_out(plan, dataset, evenly=config["alpha"] is None)
    rule = (
        rule_for(config["mechanism"], scenario(plan.scenario), **config["settings"])
        if config["mechanism"]
        else None
    )
    if config["matched"] is not None and rule is not None:
        rule = MatchedEpsilon(rule, config["matched"])
    started = time.perf_counter()
    with outside_training() as said, Federation(plan, task=task, mechanism=rule) as federation:
        state = _all_rounds(federation, scratch / "run.checkpoint")
        result = replace(federation.result(state), seconds=time.perf_counter() - started)
    shutil.rmtree(scratch, ignore_errors=True)
    return {**_figures(result), "outside_training": said}


def _shared_out(plan: FederationConfig, dataset: Dataset, *, evenly: bool) -> Task:
    """The data set among the clients of a run: evenly, or with the skew that its configuration names."""
    if evenly:
        rng = np.random.default_rng([plan.seed, _IID_PARTS])
        parts = iid_partition(dataset.train_labels, plan.clients, rng)
    else:
        parts = drawn_parts(dataset.train_labels, plan.clients, plan.alpha, plan.sizes, plan.seed)
    return task_of(dataset, parts, model=plan.training.model)


def _plan(config: Config, seed: int, training: Training) -> FederationConfig:
    return FederationConfig(
        dataset=config["dataset"],
        clients=config["clients"],
        alpha=config["alpha"] or 1.0,
        mechanism=config["mechanism"] or "mean-field-menu",
        mechanism_settings=dict(config["settings"]) if config["mechanism"] else {},
        budget=config["budget"],
        rounds=config["rounds"],
        wallet=config["wallet"],
        mode=config["mode"],
        evaluate_every=max(1, config["rounds"] // 10),
        seed=seed,
        training=training,
        **config.get("plan", {}),
    )


def _all_rounds(federation: Federation, place: Path) -> RunState:
    saved = load_checkpoint(place)
    same = saved is not None and federation.config.is_same_run(saved.data["config"])
    state = from_checkpoint(saved) if saved is not None and same else federation.start()
    last_save = time.monotonic()
    rounds = federation.config.rounds
    while state.next_round < rounds:
        state = federation.step(state)
        if state.next_round > rounds - LAST_ROUNDS and state.records[-1].accuracy is None:
            state = _measured(federation, state)
        if time.monotonic() - last_save > _SAVE_SECONDS:
            save_checkpoint(place, to_checkpoint(federation.config, state))
            last_save = time.monotonic()
    return state


def _measured(federation: Federation, state: RunState) -> RunState:
    """The same state with the accuracy of its last round measured."""
    last = replace(state.records[-1], accuracy=federation.score(state))
    return replace(state, records=(*state.records[:-1], last))


def _figures(result: RunResult) -> Result:
    records, clients = result.records, result.config.clients
    money = np.cumsum([r.spent_micro for r in records]) / MICRO
    curve = {str(r.number + 1): round(r.accuracy, 4) for r in records if r.accuracy is not None}
    final = [r.accuracy for r in records[-LAST_ROUNDS:] if r.accuracy is not None]
    mean_epsilon = [r.total_epsilon / clients for r in records]
    summary = summarise(result, rounds=False)
    sales = [(r, client) for r in records for client in r.paid_micro]
    paid = np.array([r.paid_micro[c] / MICRO for r, c in sales])
    cost = np.array([result.types.valuation[result.place[c]] * r.sold_epsilon[c] for r, c in sales])
    return {
        "accuracy": float(np.mean(final)),
        "curve": curve,
        "money": {name: round(float(money[int(name) - 1]), 2) for name in curve},
        "spent": float(money[-1]),
        "mean_epsilon": float(np.mean(mean_epsilon)),
        "mean_epsilon_range": [float(min(mean_epsilon)), float(max(mean_epsilon))],
        "sellers_per_round": float(np.mean([r.sellers for r in records])),
        "clients_that_sold": sum(row["sales"] > 0 for row in summary["clients"]),
        "largest_epsilon_spent": summary["largest_epsilon_spent"],
        "underpaid_sales": underpaid_share(cost, paid, coin=1 / MICRO),
        "surplus": sum(paid - cost),
        "epsilon_bought": float(sum(r.total_epsilon for r in records)),
        "dropped": sum(len(r.dropped) for r in records),
    }


@lru_cache(maxsize=1)
def _featured(name: str, features: str) -> Dataset:
    return with_features(load_dataset(name), features)


def training_settings(dataset: str, **changes: Any) -> dict[str, object]:
    """The recommended training of a data set as plain data, with some settings changed."""
    # Settings that were added later and have their default are left out: earlier cells keep their names.
    return identity(replace(recommended_training(dataset), **changes))
