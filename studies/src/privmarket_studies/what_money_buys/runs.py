"""One run of a market on a task, measured as a gain over what the buyer's own records give for nothing.

Records have three roles. *Public* ones are the buyer's: they train the model that the market starts from, choose
the settings and give the free baseline. *Private* ones are the clients': they are touched by sold releases alone.
*Test* records are read once, when the run has ended.

Settings are chosen by rehearsals on public records (`privmarket.simulation`, as `federate` and `plan` do it). For
pictures these are the public records of seed 0, which no client and no test holds with any seed. Of a table every
seed draws other rows for the buyer, the clients and the test, so there each seed chooses on its own public rows.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import privmarket as pm
from privmarket._files import write_atomically
from privmarket.privacy._accountant import RdpAccountant, RdpAccountants
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.rounds import MICRO
from privmarket.secagg import alone_noise_multiplier, honest_per_cohort
from privmarket.simulation._config import FederationConfig, Training
from privmarket.simulation._federate import settings_of
from privmarket.simulation._federation import Federation
from privmarket.simulation._own_records import FEWEST_RECORDS, OwnModel, OwnTraining, own_records
from privmarket.simulation._plan import Options, Planner
from privmarket.simulation._rehearsal import StandIn, rehearsed
from privmarket.simulation._result import RunResult
from privmarket.tasks import Task
from privmarket.tasks._records import Records
from privmarket.training import one_thread
from privmarket_studies.reproduce.cells import Config, Result, kind_of

PICTURES = ("digits", "mnist", "fashion-mnist", "cifar10")
SEARCH_SEED = 0
# The value of the field "choose" of a configuration in which every seed chooses for itself.
EACH_SEED = "each seed"
WORLDS = 4
HONEST_SHARES = (1.0, 2 / 3, 0.5)
KIND = "money"


@dataclass(frozen=True)
class Chosen:
    """What public records chose.

    Attributes:
        rule, settings: the auction rule.
        rounds, training, statistics: of the run.
        tried: loss in rehearsals, of the buyer's own model ("own records") and after a market with each candidate.
        heterogeneity: H as it was measured in rehearsals, where a rule needs it.
        aggregation: how updates are weighted, where there was a choice (local trust, clients of unequal size).
    """

    rule: str
    settings: dict[str, Any]
    rounds: int
    training: dict[str, Any]
    statistics: str
    tried: dict[str, float]
    seconds: float
    heterogeneity: float | None = None
    aggregation: str | None = None


def task_of(config: Config, seed: int) -> Task:
    """The task that a configuration names, with the split and the public records of a seed."""
    name = str(config["task"])
    asked: dict[str, Any] = {"public": config["public"], "seed": seed}
    if name in PICTURES:
        asked |= {"clients": config["clients"], "alpha": config["alpha"]}
        asked |= {"features": config["features"], "model": "linear"}
    for option in ("unit", "model"):
        if option in config:
            asked[option] = config[option]
    if "natural" in config:
        asked["clients"] = config["natural"]
    return pm.task(name, **asked)


def market_of(
    config: Config, task: Task, seed: int, rounds: int, rule: str, settings: Mapping[str, Any]
) -> FederationConfig:
    """The market of a run: who asks what, under which trust, for how much money and lifetime ε."""
    further: dict[str, Any] = dict(config.get("market", {}))
    return FederationConfig(
        **settings_of(task),
        **further,
        trust=config["trust"],
        honest_share=config.get("honest_share", 2 / 3),
        wallet=config["wallet"],
        mechanism=rule,
        mechanism_settings=dict(settings),
        budget=config["money"] / rounds,
        rounds=rounds,
        evaluate_every=rounds,
        seed=seed,
    )


def choosing_seed(config: Config, seed: int) -> int:
    """The seed whose public records choose the settings of a run."""
    return seed if config.get("choose") == EACH_SEED else SEARCH_SEED


def choose(config: Config, task: Task, seed: int, folder: Path) -> Chosen:
    """Rule, rounds, rate, clip norm, averaging and scaling of inputs by rehearsals on the task's public records.

    What clients ask is drawn with `SEARCH_SEED` here: a buyer knows its distribution, and not yet the bids.

    Where money is the limit, the search is that of `privmarket plan`: every rule that it tries, then the rounds.
    Where a lifetime ε is the limit, everybody sells what its wallet allows at a price of 1, and rounds are
    searched. Without public records the documented defaults stand, with the first number of rounds.

    Args:
        task: as the seed draws it.
        folder: where a plan may keep what it makes.
    """
    started = time.perf_counter()
    if config["rule"] == "plan":
        return _planned(config, task, folder, started)
    rounds = list(config["rounds"])
    rule, settings = str(config["rule"]), dict(config["settings"])
    markets = [market_of(config, task, SEARCH_SEED, number, rule, settings) for number in rounds]
    best = None
    tried: dict[str, float] = {}
    if task.public is not None and len(task.public) >= FEWEST_RECORDS:
        with one_thread():
            stand_in = _stand_in(config, task, seed)
            tried["own records"] = stand_in.loss_before()
            for market in markets:
                with Federation(market, task=task) as federation:
                    found = rehearsed(federation, stand_in, fixed=_fixed(config))
                if found is None:
                    continue
                tried[f"{market.rounds} rounds"] = found.loss_after
                if best is None or found.loss_after < best[1].loss_after:
                    best = market.rounds, found
    taken = round(time.perf_counter() - started, 1)
    if best is None:
        return Chosen(rule, settings, rounds[0], asdict(_default(config, markets[0])), "none", tried, taken)
    training, statistics, aggregation = asdict(best[1].training), best[1].statistics, best[1].aggregation
    return Chosen(rule, settings, best[0], training, statistics, tried, taken, aggregation=aggregation)


def _fixed(config: Config) -> tuple[str, ...]:
    """Settings of the run that a configuration names, which no rehearsal changes."""
    return tuple(config.get("market", {}))


def _planned(config: Config, task: Task, folder: Path, started: float) -> Chosen:
    """What the search of `privmarket plan` chooses for this sum of money, on public records."""
    options = Options(rounds=tuple(config["rounds"]), worlds=WORLDS)
    base = market_of(config, task, SEARCH_SEED, options.rounds[0], "mean-field-menu", {})
    planner = Planner(base, folder, options, task=task, fixed=_fixed(config))
    found = planner.search(float(config["money"]))
    tried = {f"{label}, {rounds} rounds": loss for (label, rounds), loss in found.losses.items()}
    training = found.choice.training(base.training)
    return Chosen(
        found.choice.rule,
        dict(found.choice.settings),
        found.choice.rounds,
        asdict(training),
        found.choice.statistics or "none",
        {"own records": found.loss_before, **tried},
        round(time.perf_counter() - started, 1),
        planner.heterogeneity,
        found.choice.aggregation,
    )


def _default(config: Config, market: FederationConfig) -> Training:
    """What the package recommends for a picture set; for other tasks, its default."""
    if config["task"] not in PICTURES[1:]:
        return market.training
    usual = FederationConfig(dataset=str(config["task"]), trust=str(config["trust"])).training
    return replace(usual, model="own", features="none")


# What neighbouring cells share, by the name of its task and seed: one of each is kept, and a few trained models,
# which are small and take long.
_LAST_TASK: list[tuple[str, Task]] = []
_LAST_WORLDS: list[tuple[str, StandIn]] = []
_OWN_MODELS: dict[str, OwnModel] = {}
_MODELS_KEPT = 4


def _stand_in(config: Config, task: Task, seed: int) -> StandIn:
    """The worlds that rehearsals of this task take place in."""
    key = _task_name(config, seed)
    if not _LAST_WORLDS or _LAST_WORLDS[0][0] != key:
        skew = float(config.get("alpha", 0.5))
        made = StandIn(task, clients=len(task.clients), skew=skew, worlds=WORLDS, seed=SEARCH_SEED)
        _LAST_WORLDS[:] = [(key, made)]
    return _LAST_WORLDS[0][1]


def _own_model(config: Config, task: Task, seed: int) -> OwnModel | None:
    """The task's own module trained on the public records, as a run would train it; None with too few of them."""
    if task.public is None or len(task.public) < FEWEST_RECORDS:
        return None
    key = _task_name(config, seed)
    if key not in _OWN_MODELS:
        with one_thread():
            made = OwnTraining(task, seed).own_model()
        if len(_OWN_MODELS) == _MODELS_KEPT:
            _OWN_MODELS.pop(next(iter(_OWN_MODELS)))
        _OWN_MODELS[key] = made
    return _OWN_MODELS[key]


def _task_name(config: Config, seed: int) -> str:
    names = ("task", "public", "clients", "alpha", "features", "natural", "unit", "model")
    return json.dumps([{name: config[name] for name in names if name in config}, seed], sort_keys=True)


def _same_task(config: Config, seed: int) -> Task:
    """The task of a configuration."""
    key = _task_name(config, seed)
    if not _LAST_TASK or _LAST_TASK[0][0] != key:
        _LAST_TASK[:] = []
        _LAST_TASK[:] = [(key, task_of(config, seed))]
    return _LAST_TASK[0][1]


def chosen_for(config: Config, seed: int, folder: Path) -> Chosen:
    """What public records chose for this run, from `folder` if the same code chose it before.

    Neighbours of a cell with other seeds share it where one seed chooses for all.
    """
    by = choosing_seed(config, seed)
    place = folder / f"{_digest({**config, 'by': by, 'revision': kind_of(KIND).revision})}.json"
    try:
        return Chosen(**json.loads(place.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        found = choose(config, _same_task(config, by), by, folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, json.dumps(asdict(found)) + "\n")
        return found


def run(config: Config, seed: int, scratch: Path) -> Result:
    """One run of the market.

    Config: task, public, trust, wallet (lifetime ε or None), money (in all), rounds (to choose from), rule,
    settings; for pictures clients, alpha and features; for natural clients perhaps which ones; perhaps `choose`,
    model, unit, honest_share, and `market`: further settings of the run (scenario, strategy, valuations …).
    """
    started = time.perf_counter()
    chosen = chosen_for(config, seed, scratch.parent.parent / "chosen")
    tuned = time.perf_counter()
    task = _same_task(config, seed)
    market = market_of(config, task, seed, chosen.rounds, chosen.rule, chosen.settings)
    market = replace(
        market,
        training=Training(**chosen.training),
        statistics=chosen.statistics,
        aggregation=chosen.aggregation or market.aggregation,
    )
    own = _own_model(config, task, seed)
    with one_thread(), Federation(market, task=task, own_model=own) as federation:
        state = federation.start()
        while state.next_round < market.rounds:
            state = federation.step(state)
        result = federation.result(state)
    before = result.score_before
    gain = None if before is None else task.score.gain(before, float(result.score))
    return {
        "score": float(result.score),
        "score_name": task.score.name,
        "before": before,
        "before_model": None if result.own_records is None else result.own_records.best,
        "before_tried": {} if result.own_records is None else result.own_records.tried,
        "gain": gain,
        "spent": float(result.spent),
        "spent_if_worst_case": spent_if_worst_case(result),
        "epsilon": lifetime_epsilon(result),
        "units": int(task.units.sum()),
        "sellers": float(np.mean([record.sellers for record in result.records])),
        "chosen": asdict(chosen),
        "seconds_of_choosing": round(tuned - started, 1),
    }


def run_pooled(config: Config, seed: int, scratch: Path) -> Result:
    """What a model of all records would give without privacy: the task's own module on public and private records.

    It is a reference for distances, computed on the simulated clients' records without noise; nothing is chosen by
    it. The strength of the penalty is chosen by cross-validation on the pooled records.
    """
    del scratch
    task = _same_task(config, seed)
    with one_thread():
        pooled = _pooled(task)
        training = OwnTraining(pooled, seed)
        own = training.own_model()
        score = task.evaluate_model(own.module)[task.score.name]
        alone = _own_model(config, task, seed)
        before = None if alone is None else own_records(task, alone.module, seed=seed)
    return {
        "score": float(score),
        "score_name": task.score.name,
        "before": None if before is None else before.scores[task.score.name],
    }


def _pooled(task: Task) -> Task:
    """The same task with all training records in the place of the public ones."""
    parts = [task.private] if task.public is None else [task.public, task.private]
    inputs = np.concatenate([part.inputs for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    return replace(task, public=Records(inputs, labels))


def lifetime_epsilon(result: RunResult) -> dict[str, float | None]:
    """The largest total ε of a client at honest shares 1, 2/3 and 1/2, and if all other sellers collude.

    Each seller adds its part of the noise of the stated number of honest ones, so noise that is seen has the
    variance s²·(honest sellers)/(stated number). Under local trust nothing depends on others.
    """
    config = result.config
    family = ReleaseFamily.of(config.training, config.delta)
    found: dict[str, float | None] = {}
    if config.trust == "local":
        own = _composed(result, family, lambda sigma, _: sigma)
        return {**{f"{share:.3g}": own for share in HONEST_SHARES}, "collude": own}
    stated = config.honest_share
    for share in HONEST_SHARES:

        def seen(sigma: np.ndarray, sellers: int, share: float = share) -> np.ndarray:
            return sigma * math.sqrt(honest_per_cohort(sellers, share) / honest_per_cohort(sellers, stated))

        found[f"{share:.3g}"] = _composed(result, family, seen)
    found["collude"] = _composed(
        result, family, lambda sigma, sellers: alone_noise_multiplier(sigma, honest_per_cohort(sellers, stated))
    )
    return found


def spent_if_worst_case(result: RunResult) -> float:
    """Money for the same releases if sellers charged, per unit, for the ε that is left when all others collude."""
    config = result.config
    if config.trust == "local":
        return float(result.spent)
    family = ReleaseFamily.of(config.training, config.delta)
    total = 0.0
    for record in result.records:
        if not record.sold_epsilon:
            continue
        sold = np.array(list(record.sold_epsilon.values()))
        honest = honest_per_cohort(len(sold), config.honest_share)
        alone = alone_noise_multiplier(family.noise_multiplier(sold), honest)
        paid = np.array([record.paid_micro.get(client, 0) / MICRO for client in record.sold_epsilon])
        total += float((paid * np.array([_epsilon_of(family, float(one)) for one in alone]) / sold).sum())
    return total


def _composed(result: RunResult, family: ReleaseFamily, seen: Any) -> float:
    rounds = []
    for record in result.records:
        events: list[PrivacyEvent | None] = [None] * result.config.clients
        if record.sold_epsilon:
            sigma = np.asarray(family.noise_multiplier(list(record.sold_epsilon.values())))
            for client, one in zip(record.sold_epsilon, seen(sigma, len(record.sold_epsilon)), strict=True):
                events[result.place[client]] = family.release(float(one))
        rounds.append(events)
    accountants = RdpAccountants(result.config.clients)
    for events in rounds:
        accountants.compose(events)
    return float(np.max(accountants.get_epsilon(result.config.delta)))


@lru_cache(maxsize=4096)
def _epsilon_of(family: ReleaseFamily, noise_multiplier: float) -> float:
    return RdpAccountant().compose(family.release(noise_multiplier)).get_epsilon(family.delta)


def _digest(config: Mapping[str, object]) -> str:
    text = json.dumps(dict(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def money_that_buys(share: float, points: Sequence[tuple[float, float]]) -> float | None:
    """Money at which a curve of (money, share of the distance) first reaches `share`; None if it does not.

    Between two points it is read on a logarithmic scale of money. Where the lowest point reaches the share already,
    its money is the answer, which is then an upper limit.
    """
    ordered = sorted(points)
    if ordered and ordered[0][1] >= share:
        return float(ordered[0][0])
    for before, after in itertools.pairwise(ordered):
        if before[1] < share <= after[1]:
            return _between(share, before, after)
    return None


def money_that_keeps(share: float, points: Sequence[tuple[float, float]]) -> float | None:
    """Money from which on the curve stays at or above `share`; None if its last point lies below.

    It is `money_that_buys` where the curve only rises, and more where a larger sum bought less.
    """
    ordered = sorted(points)
    if not ordered or ordered[-1][1] < share:
        return None
    for before, after in reversed([*itertools.pairwise(ordered)]):
        if before[1] < share:
            return _between(share, before, after)
    return float(ordered[0][0])


def _between(share: float, before: tuple[float, float], after: tuple[float, float]) -> float:
    """Where the line between two points has the share, on a logarithmic scale of money."""
    part = (share - before[1]) / (after[1] - before[1])
    return math.exp((1 - part) * math.log(before[0]) + part * math.log(after[0]))
