"""What a model will cost: runs of the whole simulation on a data set or a public proxy, over money and settings.

A plan spends nobody's money and touches nobody's data but the data set that it is given. Settings (rounds, rule
and price, server rate) are chosen on validation records with seeds of their own; what is reported comes from other
seeds and test records. Every run is kept on disk under a digest of its configuration, so a plan that was stopped
goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from privmarket.errors import ConfigurationError
from privmarket.federated.client_spread import ClientSpread
from privmarket.federated.config import FederationConfig
from privmarket.federated.datasets import load_dataset
from privmarket.federated.plan_choices import (
    REFINEMENTS,
    SEARCH_SEEDS,
    Choice,
    Options,
    rule_choices,
)
from privmarket.federated.plan_runs import SPREAD_TRAININGS, PublicProxy, RunFigures, run_cell, spread_of
from privmarket.federated.workers import process_context
from privmarket.files import write_atomically
from privmarket.market.ration_design import Marginals
from privmarket.market.scenarios import scenario
from privmarket.version import __version__

_STEPS_BEYOND, _FACTOR_BEYOND = 3, 4.0  # totals beyond those that were named, where a target asks for them
_SPREAD_ROUNDS = 10  # in fewer, leaving clients out harms more than in the trainings that a plan ends with
_NEARLY_ALL = 0.999  # of clients sell at the price of a ceiling


@dataclass(frozen=True)
class Point:
    """One row of a plan: what a total of money gives. Accuracies are shares; figures are over seeds.

    Attributes:
        accuracy, deviation, lowest, highest: mean, standard deviation and range.
        spent: mean money that was really paid; `total` is the limit.
        lifetime_epsilon: the largest total ε of any client in any run, at the run's δ.
        pay_per_client, highest_pay: mean over all clients, and the most that one was paid in any run.
        sellers_per_round: mean.
        epsilon_if_others_collude: under aggregate trust, `lifetime_epsilon` if all other sellers collude.
    """

    total: float
    choice: Choice
    budget_per_round: float
    accuracy: float
    deviation: float
    lowest: float
    highest: float
    seeds: int
    spent: float
    lifetime_epsilon: float
    pay_per_client: float
    highest_pay: float
    sellers_per_round: float
    epsilon_if_others_collude: float | None = None


@dataclass(frozen=True)
class TriedSettings:
    """What the runs of a plan differed in, those without noise left out.

    Attributes:
        rounds, server_rates: each value, rising.
        rules: how many rules, one with another price counted as another.
        search_seeds: how many seeds chose the settings.
        seeds: how many seeds the stated figures come from.
    """

    rounds: tuple[int, ...] = ()
    server_rates: tuple[float, ...] = ()
    rules: int = 0
    search_seeds: int = 0
    seeds: int = 0

    @staticmethod
    def of(configs: Iterable[FederationConfig]) -> TriedSettings:
        """Settings are chosen on validation records, figures come from test records."""
        runs = [config for config in configs if config.privacy.is_private]
        return TriedSettings(
            rounds=tuple(sorted({config.rounds for config in runs})),
            server_rates=tuple(sorted({config.training.server_rate for config in runs})),
            rules=len({(config.mechanism, tuple(sorted(config.mechanism_settings.items()))) for config in runs}),
            search_seeds=len({config.seed for config in runs if config.measured_on == "validation"}),
            seeds=len({config.seed for config in runs if config.measured_on == "test"}),
        )


@dataclass(frozen=True)
class Plan:
    """Everything `privmarket plan` says.

    Attributes:
        points: by rising money.
        target: the accuracy asked for; `chosen` is the cheapest point that reaches it, or the point of the total
            asked for, or None.
        ceiling: accuracy of the best rounds and rate with all clients and without noise, measured where the target
            was not reached.
        cells, computed: runs that the plan stands on, and how many of them this call made.
        heterogeneity: H as it was measured on the plan's records; None under local trust.
        tried: what the plan's runs differed in. It says nothing about settings that were not tried.
    """

    base: FederationConfig
    points: tuple[Point, ...]
    target: float | None
    chosen: Point | None
    ceiling: float | None
    cells: int
    computed: int
    heterogeneity: float | None = None
    tried: TriedSettings = TriedSettings()

    @property
    def reached(self) -> bool:
        """Whether some run of the plan reaches the target; always true without a target."""
        return self.target is None or self.chosen is not None

    def to_json(self) -> dict[str, object]:
        """The plan as JSON data."""
        return {
            "target": self.target,
            "reached": self.reached,
            "ceiling": self.ceiling,
            "chosen": None if self.chosen is None else asdict(self.chosen),
            "points": [asdict(point) for point in self.points],
            "heterogeneity": self.heterogeneity,
            "tried": asdict(self.tried),
            "cells": self.cells,
            "computed": self.computed,
            "config": self.base.to_json(),
        }


OnCell = Callable[[int, str], None]
"""Told how many more runs are done or known to be needed, and what was done last."""


class Planner:
    """Makes plans for one market and one data set.

    Args:
        base: data set, clients, skew, law, trust, wallet, model. Money, rounds, rule and rate are the plan's
            choice.
        folder: where runs are kept.
        options: what is tried.
        proxy: public records to plan on instead of the named data set.
        workers: processes; any number gives the same plan.
        on_cell: told after every run, and of runs that an earlier plan left in the folder.
    """

    def __init__(
        self,
        base: FederationConfig,
        folder: Path,
        options: Options | None = None,
        *,
        proxy: PublicProxy | None = None,
        workers: int = 1,
        on_cell: OnCell = lambda _done, _text: None,
    ) -> None:
        self.base, self.folder, self.options = base, folder, options or Options()
        self.proxy, self.workers, self.on_cell = proxy, workers, on_cell
        self.rules = rule_choices(base, self.options)
        self.heterogeneity: float | None = None
        self._seen: dict[str, FederationConfig] = {}
        self._computed = 0
        self._pool: ProcessPoolExecutor | None = None
        # A run is made again when the records, the past bids or the program are others.
        past = Path(base.scenario)
        self._stands_on = "|".join(
            [
                __version__,
                proxy.digest if proxy else "",
                hashlib.sha256(past.read_bytes()).hexdigest() if past.is_file() else "",
            ]
        )
        # Unknown data and wrong settings are refused before the first run.
        if proxy is None:
            load_dataset(base.dataset)

    def for_totals(self, totals: Sequence[float]) -> Plan:
        """A point for every total, settings chosen for each."""
        with self._processes():
            points = self._points(checked_totals(totals))
        chosen = points[0] if len(points) == 1 else None
        return self._plan(points, None, chosen, None)

    def for_target(self, target: float, totals: Sequence[float]) -> Plan:
        """The cheapest total found that reaches the target, and the points on the way to it."""
        if not 0 < target < 1:
            raise ConfigurationError(f"target accuracy is {target:g}", "give a share between 0 and 1, e.g. 0.95")
        with self._processes():
            points = self._points(checked_totals(totals))
            self._reach_for(target, points)
            good = [point for point in points if point.accuracy >= target]
            if not good:
                return self._plan(points, target, None, self._ceiling(points))
            for _ in range(REFINEMENTS):
                best = min(good, key=lambda point: point.total)
                below = [point.total for point in points if point.total < best.total]
                if not below:
                    break
                tried = self._beside(best, float(np.sqrt(max(below) * best.total)))
                points.append(tried)
                if tried.accuracy >= target:
                    good.append(tried)
        return self._plan(points, target, min(good, key=lambda point: point.total), None)

    def _reach_for(self, target: float, points: list[Point]) -> None:
        """Adds points below all others while even the least money reaches the target, or above while none does."""
        for _ in range(_STEPS_BEYOND):
            lowest, highest = (side(points, key=lambda point: point.total) for side in (min, max))
            reached = any(point.accuracy >= target for point in points)
            if lowest.accuracy < target if reached else self._ceiling(points) < target:
                return
            edge, factor = (lowest, 1.0 / _FACTOR_BEYOND) if reached else (highest, _FACTOR_BEYOND)
            points.append(self._beside(edge, edge.total * factor))

    @contextmanager
    def _processes(self) -> Iterator[None]:
        """Worker processes that stay for the whole plan, so that each reads the records once."""
        if self.workers == 1:
            yield
            return
        with ProcessPoolExecutor(self.workers, mp_context=process_context()) as self._pool:
            try:
                yield
            finally:
                self._pool.shutdown(cancel_futures=True)
                self._pool = None

    def _plan(
        self, points: Iterable[Point], target: float | None, chosen: Point | None, ceiling: float | None
    ) -> Plan:
        ordered = tuple(sorted(points, key=lambda point: point.total))
        return Plan(
            base=self.base,
            points=ordered,
            target=target,
            chosen=chosen,
            ceiling=ceiling,
            cells=len(self._seen),
            computed=self._computed,
            heterogeneity=self.heterogeneity,
            tried=TriedSettings.of(self._seen.values()),
        )

    def _points(self, totals: list[float]) -> list[Point]:
        """Settings are searched widely at the middle total, and near those at the others."""
        if self.base.trust == "aggregate":
            self.heterogeneity = float(f"{self._spread().heterogeneity:.3g}")
            self.rules = rule_choices(self.base, self.options, self.heterogeneity)
        middle = totals[len(totals) // 2]
        anchor = self._search(middle)
        points = {middle: self._point(middle, [anchor])}
        for total in sorted(totals, key=lambda t: abs(np.log(t / middle))):
            if total not in points:
                nearest = min(points, key=lambda t: abs(np.log(t / total)))
                points[total] = self._beside(points[nearest], total)
        return [points[total] for total in totals]

    def _spread(self) -> ClientSpread:
        """How different clients are, in a short training; from disk or measured now."""
        base = self.base.replace(seed=SEARCH_SEEDS[0], measured_on="validation", mode="no-noise")
        rounds = max(min(self.options.rounds), _SPREAD_ROUNDS)
        config = Choice(rounds, "ration", (), "", base.training.server_rate).config(base, 1.0)
        path = self._path(config).with_suffix(".spread.json")
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            spread = ClientSpread(**{name: tuple(values) for name, values in kept.items()})
            self.on_cell(SPREAD_TRAININGS, "saved by an earlier plan")
            return spread
        except (OSError, ValueError, TypeError, AttributeError):
            spread = spread_of(config, self.proxy, lambda: self.on_cell(1, "how different clients are"))
            write_atomically(path, json.dumps(asdict(spread)) + "\n")
            return spread

    def _search(self, total: float) -> Choice:
        """One setting at a time: the rule with its price, then the rounds, then the server rate."""
        options, rate = self.options, self.base.training.server_rate
        # Under local trust rules are compared in a shorter training: of many rounds each buys little, and noise
        # hides what a ration can do.
        middle = (len(options.rounds) - (self.base.trust == "local")) // 2
        best = replace(self.rules[0], rounds=options.rounds[middle], server_rate=rate)
        best = self._best(total, [replace(rule, rounds=best.rounds, server_rate=rate) for rule in self.rules])
        best = self._best(total, [replace(best, rounds=rounds) for rounds in options.rounds])
        return self._best(total, [replace(best, server_rate=rate * factor) for factor in options.rates])

    def _beside(self, point: Point, total: float) -> Point:
        """A point for another total: the known one's choice and its neighbours in rounds, rules and rate."""
        choice = point.choice
        allowed = sorted(self.options.rounds)
        at = allowed.index(choice.rounds)
        found = [replace(choice, rounds=rounds) for rounds in allowed[max(at - 1, 0) : at + 2]]
        rule = [other.label for other in self.rules].index(choice.label)
        for other in (*self.rules[max(rule - 1, 0) : rule], *self.rules[rule + 1 : rule + 2]):
            found.append(replace(other, rounds=choice.rounds, server_rate=choice.server_rate))
        # Less money means more noise, which smaller steps average out.
        factor = 0.5 if total < point.total else 2.0
        found.append(replace(choice, server_rate=choice.server_rate * factor))
        return self._point(total, found)

    def _best(self, total: float, choices: Sequence[Choice]) -> Choice:
        """The choice with the best accuracy on validation records, in the mean over the search's seeds.

        With skewed data it is luck who asks too much and is left out; one seed may favour a rule by that luck.
        """
        if len(choices) == 1:
            return choices[0]
        bases = [
            self.base.replace(seed=seed, measured_on="validation")
            for seed in SEARCH_SEEDS[: self.options.search_seeds]
        ]
        results = self._run([choice.config(base, total) for choice in choices for base in bases])
        accuracy = np.reshape([result.accuracy for result in results], (len(choices), len(bases)))
        return choices[int(np.argmax(accuracy.mean(axis=1)))]

    def _point(self, total: float, choices: Sequence[Choice]) -> Point:
        choice = self._best(total, choices)
        base = self.base.replace(measured_on="test")
        runs = self._run([choice.config(base.replace(seed=seed), total) for seed in self.options.seeds])
        accuracy = np.array([run.accuracy for run in runs])
        return Point(
            total=total,
            choice=choice,
            budget_per_round=total / choice.rounds,
            accuracy=float(accuracy.mean()),
            deviation=float(accuracy.std(ddof=1)) if accuracy.size > 1 else 0.0,
            lowest=float(accuracy.min()),
            highest=float(accuracy.max()),
            seeds=accuracy.size,
            spent=float(np.mean([run.spent for run in runs])),
            lifetime_epsilon=max(run.lifetime_epsilon for run in runs),
            pay_per_client=float(np.mean([run.spent for run in runs])) / self.base.clients,
            highest_pay=max(run.highest_pay for run in runs),
            sellers_per_round=float(np.mean([run.sellers_per_round for run in runs])),
            epsilon_if_others_collude=max(
                (run.epsilon_if_others_collude for run in runs if run.epsilon_if_others_collude is not None),
                default=None,
            ),
        )

    def _ceiling(self, points: Sequence[Point]) -> float:
        """Accuracy of the best point's rounds and rate with all clients and no noise."""
        best = max(points, key=lambda point: point.accuracy)
        dearest = float(Marginals.of(scenario(self.base.scenario)).price(np.array(_NEARLY_ALL)))
        everybody = replace(best.choice, rule="ration", settings=(("unit_price", dearest),))
        base = self.base.replace(measured_on="test", mode="no-noise")
        configs = [everybody.config(base.replace(seed=seed), best.total) for seed in self.options.seeds]
        return max(best.accuracy, float(np.mean([run.accuracy for run in self._run(configs)])))

    def _run(self, configs: Sequence[FederationConfig]) -> list[RunFigures]:
        """The outcome of every configuration, from disk or computed now."""
        paths = [self._path(config) for config in configs]
        missing = {path: config for path, config in zip(paths, configs, strict=True) if _read(path) is None}
        if kept := {path.name for path in paths if path not in missing} - set(self._seen):
            self.on_cell(len(kept), "saved by an earlier plan")
        self._seen.update({path.name: config for path, config in zip(paths, configs, strict=True)})
        for path, config, outcome in self._compute(missing):
            record = {"config": config.to_json(), "outcome": asdict(outcome)}
            write_atomically(path, json.dumps(record, ensure_ascii=False) + "\n")
            self._computed += 1
            self.on_cell(1, f"{outcome.accuracy:.2%} for {outcome.spent:,.0f}")
        done = [_read(path) for path in paths]
        return [outcome for outcome in done if outcome is not None]

    def _compute(
        self, missing: dict[Path, FederationConfig]
    ) -> Iterator[tuple[Path, FederationConfig, RunFigures]]:
        if self._pool is None:
            for path, config in missing.items():
                yield path, config, run_cell(config, self.proxy)
            return
        begun = {self._pool.submit(run_cell, config, self.proxy): path for path, config in missing.items()}
        for future in as_completed(begun):
            path = begun[future]
            yield path, missing[path], future.result()

    def _path(self, config: FederationConfig) -> Path:
        text = json.dumps(config.to_json(), sort_keys=True) + self._stands_on
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"


def checked_totals(totals: Sequence[float]) -> list[float]:
    """The totals in order, each once; refuses what is no money."""
    if not totals or not all(0 < total < np.inf for total in totals):
        raise ConfigurationError(f"money to plan for: {list(totals)}", "give totals above 0, e.g. 100,500,2000")
    return sorted({float(total) for total in totals})


def _read(path: Path) -> RunFigures | None:
    try:
        return RunFigures(**json.loads(path.read_text(encoding="utf-8"))["outcome"])
    except (OSError, ValueError, KeyError, TypeError):
        # A damaged file is no result: the run is made again.
        return None
