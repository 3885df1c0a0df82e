"""What a model will cost: settings chosen on public records, then runs of the whole market over money.

A plan spends nobody's money. Rounds, rule, price, server rate and clip norm are chosen by rehearsals on the buyer's
own records (`_rehearsal`), never on private ones. The figures come from whole runs with seeds of their own,
measured on test records, beside what the buyer's own records give for nothing. Every run is kept on disk under a
digest of its configuration, so a plan that was stopped goes on.

A buyer who holds none of the sellers' records (`Task.from_own_records`) gets the same choices. Nothing can be run
then, so gains are rehearsed, too, in worlds of their own (`_rehearsed_gain`), and stand under other names.
"""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from privmarket import __version__
from privmarket._counted import counted
from privmarket._figures import new_figure, write
from privmarket._files import write_atomically
from privmarket._lazy import late, require
from privmarket._settings import DELTA, HONEST_SHARE, Trust
from privmarket.errors import ConfigurationError
from privmarket.market._distributions import SCENARIOS, Distribution, scenario
from privmarket.market._objectives import AggregateError
from privmarket.market._ration_design import Marginals
from privmarket.simulation._bidding import AskedPrices
from privmarket.simulation._config import FederationConfig, Training, recommended_training
from privmarket.simulation._federate import settings_of
from privmarket.simulation._federation import Federation
from privmarket.simulation._moments import MOST_FREE_INPUTS
from privmarket.simulation._own_records import FEWEST_RECORDS, OWN_MODEL, OwnModel, OwnTraining, own_records
from privmarket.simulation._pool import builtin_task, process_context
from privmarket.simulation._rehearsal import StandIn, free_whitening, rehearsed
from privmarket.simulation._rehearsed_gain import GAIN_WORLDS, GainRehearsal, MarketAlone
from privmarket.simulation._result import UnitPrices
from privmarket.tasks import task as builtin
from privmarket.training import one_thread

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from privmarket.tasks import Score, Task
else:
    pandas = late("pandas")

# Settings are chosen with this seed; figures come from others.
SEARCH_SEEDS = (0,)
REFINEMENTS = 2  # totals tried between the cheapest that reaches a target and the next below it
# How many totals beyond those that were named are tried for a target, and by which factor they differ.
_STEPS_BEYOND = 3
_FACTOR_BEYOND = 4.0
# A posted price is not lowered further where fewer clients than this would ask for less.
_FEWEST_SELLERS = 2.0
# H of the graded ration where none is measured for it, and of the precision menu beside 0.
_USUAL_HETEROGENEITY = 1.0
# The rules that a plan tries, some with several settings; the learned one only for distributions it is made for.
PLANNED_RULES = ("two-step", "mfg-menunet", "graded-ration", "mean-field-menu", "precision-menu")


@dataclass(frozen=True)
class Choice:
    """What a plan chooses, all of it public.

    Attributes:
        rounds: how often money is spent; the total is split evenly.
        rule, settings: the auction rule; `label` names both for tables.
        server_rate: step size of the server's optimiser.
        clip_norm, averaging, momentum, final_rate: of the training; None leaves those of the base configuration.
        statistics: what inputs are scaled by; None leaves what the base configuration says.
        aggregation: how updates are weighted; None leaves what the base configuration says.
    """

    rounds: int
    rule: str
    settings: tuple[tuple[str, object], ...]
    label: str
    server_rate: float
    clip_norm: float | None = None
    averaging: float | None = None
    momentum: float | None = None
    final_rate: float | None = None
    statistics: str | None = None
    aggregation: str | None = None

    def untuned(self) -> Choice:
        """The same choice without what a rehearsal found."""
        return replace(
            self,
            clip_norm=None,
            averaging=None,
            momentum=None,
            final_rate=None,
            statistics=None,
            aggregation=None,
        )

    def tuned(self, training: Training, statistics: str | None = None, aggregation: str | None = None) -> Choice:
        """The same choice with the settings that a rehearsal found."""
        return replace(
            self,
            server_rate=training.server_rate,
            clip_norm=training.clip_norm,
            averaging=training.averaging,
            momentum=training.momentum,
            final_rate=training.final_rate,
            statistics=statistics,
            aggregation=aggregation,
        )

    def training(self, base: Training) -> Training:
        """The training of a run with this choice."""
        names = ("server_rate", "clip_norm", "averaging", "momentum", "final_rate")
        chosen = {name: getattr(self, name) for name in names}
        return replace(base, **{name: value for name, value in chosen.items() if value is not None})

    def config(self, base: FederationConfig, total: float) -> FederationConfig:
        """The configuration of a run that spends `total` with these settings."""
        return base.replace(
            rounds=self.rounds,
            evaluate_every=self.rounds,
            budget=total / self.rounds,
            total_budget=None,
            mechanism=self.rule,
            mechanism_settings=dict(self.settings),
            training=self.training(base.training),
            statistics=base.statistics if self.statistics is None else self.statistics,
            aggregation=base.aggregation if self.aggregation is None else self.aggregation,
        )


@dataclass(frozen=True)
class Options:
    """What a plan tries.

    Attributes:
        rounds: numbers of rounds.
        price_shares: prices, rising, each given as the share of clients that ask for less. Where the lowest or the
            highest looks best, further ones beyond it are tried.
        heterogeneities: values of H for rules that need one, where it is not measured.
        seeds: of the runs that the figures come from.
        worlds: how many made-up worlds a rehearsal takes place in.
        gain_worlds: in how many further ones gains are rehearsed, where the sellers' records are not here.
    """

    rounds: tuple[int, ...] = (5, 15, 50)
    price_shares: tuple[float, ...] = (0.5, 0.75, 0.95)
    heterogeneities: tuple[float, ...] = (0.3, 1.0)
    seeds: tuple[int, ...] = (1, 2, 3)
    worlds: int = 6
    gain_worlds: int = GAIN_WORLDS

    def __post_init__(self) -> None:
        for name in ("rounds", "seeds"):
            if not getattr(self, name):
                raise ConfigurationError(f"plan: no {name} to try", "give at least one")
        if min(self.worlds, self.gain_worlds) < 1:
            raise ConfigurationError(
                f"plan: {min(self.worlds, self.gain_worlds)} worlds to rehearse in", "give at least 1"
            )
        if min(self.rounds) < 1 or {*SEARCH_SEEDS} & {*self.seeds} or min(self.seeds) < 0:
            raise ConfigurationError(
                f"plan: rounds {list(self.rounds)}, seeds {list(self.seeds)}",
                f"rounds must be above 0, seeds other than {SEARCH_SEEDS}, which choose the settings",
            )


EFFORTS = {
    "quick": Options((5, 20), (0.6, 0.95), (0.3,), (1, 2), 4),
    "normal": Options(),
    "full": Options((3, 7, 20, 60), (0.4, 0.6, 0.8, 0.95), (0.1, 0.3, 1.0), (1, 2, 3, 4, 5), 10),
}

# Under aggregate trust the same model takes a fraction of the money: the noise is shared.
_MONEY_PER_CLIENT = {"local": (0.3, 1.0, 3.0, 10.0), "aggregate": (0.03, 0.1, 0.4, 1.5)}


def usual_totals(clients: int, trust: str) -> list[float]:
    """Totals of money to try where none are named."""
    return [clients * amount for amount in _MONEY_PER_CLIENT[trust]]


def rule_choices(
    base: FederationConfig, distribution: Distribution, options: Options, measured: float | None = None
) -> list[Choice]:
    """The rules that a plan tries: all exactly truthful, so that it holds when clients bid in their own interest.

    Rounds and rate of the result are those of the base configuration.

    Args:
        distribution: what clients ask.
        measured: H where it was measured; else rules that need it are tried with those of the options. Under local
            trust it is for the precision menu only, since other rules with an H are made for the error of a sum.
    """
    facts = Marginals.of(distribution)
    rounds = base.rounds
    rate = base.training.server_rate
    found = []
    for share in options.price_shares:
        price = float(f"{float(facts.price(np.array(share))):.4g}")
        settings = (("unit_price", price),)
        found.append(Choice(rounds, "two-step", settings, f"two-step, one ration at {price:g}", rate))
    of_sums = measured if base.trust == "aggregate" else None
    for heterogeneity in options.heterogeneities if of_sums is None else (of_sums,):
        learned = (("objective", AggregateError.name), ("heterogeneity", heterogeneity))
        if distribution.name in SCENARIOS:
            found.append(Choice(rounds, "mfg-menunet", learned, f"mfg-menunet for H = {heterogeneity:g}", rate))
        else:
            found.append(Choice(rounds, "two-step", learned[1:], f"two-step for H = {heterogeneity:g}", rate))
    grade = _USUAL_HETEROGENEITY if of_sums is None else of_sums
    graded = (("heterogeneity", grade),)
    label = f"graded-ration for H = {grade:g}"
    found.append(Choice(rounds, "graded-ration", graded, label, rate))
    found.append(Choice(rounds, "mean-field-menu", (), "mean-field-menu", rate))
    for heterogeneity in (0.0, _USUAL_HETEROGENEITY if measured is None else measured):
        precise = (("heterogeneity", heterogeneity),)
        found.append(Choice(rounds, "precision-menu", precise, f"precision-menu for H = {heterogeneity:g}", rate))
    return found


def expected_cells(
    options: Options, totals: int, rules: int, *, rehearses: bool, target: bool = False, measures: bool = True
) -> int:
    """About how many rehearsals and runs a plan for so many totals makes; for a target, more totals are tried.

    Args:
        measures: whether figures come from runs; else each total has a rehearsed gain.
    """
    totals += REFINEMENTS if target else 0
    search = rules + len(options.rounds)
    near = min(3, len(options.rounds)) + min(2, rules - 1)
    figures = totals * len(options.seeds) if measures else totals + GainRehearsal.steps
    return (search + (totals - 1) * near if rehearses else 0) + figures


@dataclass(frozen=True)
class RunFigures:
    """What a plan keeps of a run.

    Attributes:
        score: of the model on test records.
        score_before: of the buyer's own records alone; None without any.
        lifetime_epsilon: the largest total ε of a client; infinite for a run without noise.
        epsilon_if_others_collude: the same if all other sellers collude; None under local trust, where each
            update is private by itself.
        gain_error: standard error of the gain from the choice of test records; None without a score before.
        prices: what a unit of ε cost.
    """

    score: float
    score_before: float | None
    gain_error: float | None
    spent: float
    lifetime_epsilon: float
    highest_pay: float
    sellers_per_round: float
    seconds: float
    prices: UnitPrices | None
    epsilon_if_others_collude: float | None = None


@dataclass(frozen=True)
class Point:
    """One row of a plan: what a total of money gives. Figures are over seeds.

    Attributes:
        score, deviation, lowest, highest: mean, standard deviation and range of the headline score.
        score_before: mean score of the buyer's own records alone; None without any.
        gain: mean of score over score_before, above 0 for better whatever the direction; None without the latter.
        gain_deviation: standard deviation of that gain over seeds.
        test_error: standard error of the gain from the choice of test records, which is the same for all seeds.
        spent: mean money that was really paid; `total` is the limit.
        lifetime_epsilon: the largest total ε of any client in any run, at the run's δ.
        pay_per_client, highest_pay: mean over all clients, and the most that one was paid in any run.
        sellers_per_round: mean.
        prices: what a unit of ε cost, in the mean over seeds; None where nothing was sold.
        epsilon_if_others_collude: under aggregate trust, `lifetime_epsilon` if all other sellers collude.
    """

    total: float
    choice: Choice
    budget_per_round: float
    score: float
    deviation: float
    lowest: float
    highest: float
    score_before: float | None
    gain: float | None
    gain_deviation: float
    seeds: int
    spent: float
    lifetime_epsilon: float
    pay_per_client: float
    highest_pay: float
    sellers_per_round: float
    test_error: float = 0.0
    prices: UnitPrices | None = None
    epsilon_if_others_collude: float | None = None

    @property
    def gain_error(self) -> float:
        """Standard error of the gain: over seeds, and from the choice of test records."""
        return math.hypot(self.gain_deviation / math.sqrt(self.seeds), self.test_error)

    @property
    def pays(self) -> bool:
        """Whether buying was better than not buying by more than chance: two standard errors."""
        if self.gain is None:
            return True
        # A difference in the last digits counts as none.
        least = 1e-4 * max(1.0, abs(self.score))
        return self.gain > max(least, 2.0 * self.gain_error)


@dataclass(frozen=True)
class RehearsedPoint:
    """One row of a plan without the sellers' records: what a total of money gives in worlds made up from one's own.

    None of its figures is measured on anybody's real records. Money and ε are those of the market's rules for
    these declared sizes; they do not depend on records.

    Attributes:
        rehearsed_gain: mean over worlds of the score after the market over the score of the buyer's own model
            there, above 0 for better, less what another free model is better than that one on the buyer's real
            records; None where worlds cannot say, see `Plan.no_gain_because`.
        rehearsed_deviation: standard deviation of the gain over worlds.
        worlds: in how many the score could be computed.
        worlds_with_gain: in how many of them the gain is above 0.
        score_in_worlds, score_before_in_worlds: means after and before; of worlds, not of any real records.
        total, choice, budget_per_round, spent, lifetime_epsilon, pay_per_client, highest_pay, sellers_per_round,
            epsilon_if_others_collude: as in `Point`, for one draw of what clients ask.
    """

    total: float
    choice: Choice
    budget_per_round: float
    rehearsed_gain: float | None
    rehearsed_deviation: float
    worlds: int
    worlds_with_gain: int
    score_in_worlds: float | None
    score_before_in_worlds: float | None
    spent: float
    lifetime_epsilon: float
    pay_per_client: float
    highest_pay: float
    sellers_per_round: float
    epsilon_if_others_collude: float | None = None

    @property
    def pays(self) -> bool | None:
        """Whether the gain is beyond its spread over worlds; None where there is no gain to state."""
        if self.rehearsed_gain is None:
            return None
        return self.rehearsed_gain > max(1e-4, self.rehearsed_deviation)


@dataclass(frozen=True)
class TriedSettings:
    """What the rehearsals and runs of a plan differed in.

    Attributes:
        rounds, server_rates: each value, rising.
        rules: how many rules; the same rule with another price counts as another one.
        rehearsals: how many settings were tried on public records.
        seeds: how many seeds the stated figures come from.
    """

    rounds: tuple[int, ...] = ()
    server_rates: tuple[float, ...] = ()
    rules: int = 0
    rehearsals: int = 0
    seeds: int = 0


@dataclass(frozen=True, repr=False)
class Plan:
    """What a model will cost, and what it adds to the buyer's own records: everything `privmarket plan` says.

    Attributes:
        points: by rising money.
        score: what is measured.
        own_records: how many records the buyer holds.
        score_before: mean score of these alone; None without any.
        score_before_on: "test records", or "cross-validation" where there are none; None without a score.
        score_before_error: standard error of a cross-validated score; None otherwise.
        rehearsed: instead of `points`, where the sellers' records are not here.
        no_gain_because: why rehearsals cannot say a gain for this task; empty if they can.
        target: the score asked for; `chosen` is the cheapest point that reaches it, or the point of the total asked
            for, or None. Where `score_before` reaches the target there are no points: nothing needs to be bought.
        cells, computed: how many runs the plan uses, and how many of these this call made; the others were on disk.
        heterogeneity: H as it was measured in rehearsals; None without public records.
        tried: what was tried. It says nothing about settings that were not.
    """

    base: FederationConfig
    points: tuple[Point, ...]
    score: Score
    own_records: int
    score_before: float | None
    target: float | None
    chosen: Point | None
    cells: int
    computed: int
    heterogeneity: float | None = None
    tried: TriedSettings = TriedSettings()
    score_before_on: str | None = None
    score_before_error: float | None = None
    rehearsed: tuple[RehearsedPoint, ...] = ()
    no_gain_because: str = ""

    @property
    def reached(self) -> bool:
        """Whether the buyer's own records or some run reach the target; always true without a target."""
        return self.target is None or self.chosen is not None or self.own_records_suffice

    @property
    def own_records_suffice(self) -> bool:
        """Whether the buyer's own records reach the target already."""
        had = self.score_before
        return self.target is not None and had is not None and self.score.gain(self.target, had) >= 0

    @property
    def worth_buying(self) -> bool | None:
        """Whether buying beats the buyer's own records by more than chance at some total of the plan.

        Of a plan without the sellers' records: whether a rehearsed gain is beyond its spread over worlds; None if
        rehearsals cannot say.
        """
        if self.rehearsed:
            said = [point.pays for point in self.rehearsed]
            return None if None in said else any(said)
        return any(point.pays for point in self.points)

    @property
    def recommended(self) -> Point | None:
        """The point to take: the chosen one, or else the cheapest that pays and is about as good as the best.

        About as good means within one standard error of the best gain: more money bought nothing that chance does
        not explain. None where nothing pays, or where there are no own records to compare with.
        """
        if self.chosen is not None or self.target is not None:
            return self.chosen
        paying = [point for point in self.points if point.gain is not None and point.pays]
        best = max(paying, key=lambda point: point.gain or 0.0, default=None)
        if best is None:
            return None
        assert best.gain is not None
        least = best.gain - best.gain_error
        return min((point for point in paying if (point.gain or 0.0) >= least), key=lambda point: point.total)

    def to_json(self) -> dict[str, object]:
        """The plan as JSON data; `rehearsed` instead of `points` where the sellers' records are not here."""
        rows: dict[str, object] = {"points": [asdict(point) for point in self.points]}
        if self.rehearsed:
            rows = {
                "rehearsed": [asdict(point) for point in self.rehearsed],
                "no_gain_because": self.no_gain_because or None,
            }
        return {
            "score_name": self.score.name,
            "better": self.score.direction,
            "own_records": self.own_records,
            "score_before": self.score_before,
            "score_before_on": self.score_before_on,
            "score_before_error": self.score_before_error,
            "worth_buying": self.worth_buying,
            "target": self.target,
            "reached": self.reached,
            "chosen": None if self.chosen is None else asdict(self.chosen),
            "recommended_total": None if self.recommended is None else self.recommended.total,
            **rows,
            "heterogeneity": self.heterogeneity,
            "tried": asdict(self.tried),
            "cells": self.cells,
            "computed": self.computed,
            "config": self.base.to_json(),
        }

    def to_frame(self) -> pandas.DataFrame:
        """One row per total of money: score, gain, lifetime ε, pay, and the chosen settings; needs pandas."""
        require("pandas", "pandas")
        if self.rehearsed:
            return pandas.DataFrame([self._rehearsed_row(point) for point in self.rehearsed])
        rows = [
            {
                "money": point.total,
                "spent": point.spent,
                self.score.name: point.score,
                "lowest": point.lowest,
                "highest": point.highest,
                "gain": point.gain,
                "lifetime_epsilon": point.lifetime_epsilon,
                "epsilon_if_others_collude": point.epsilon_if_others_collude,
                "pay_per_client": point.pay_per_client,
                "sellers_per_round": point.sellers_per_round,
                "rounds": point.choice.rounds,
                "budget_per_round": point.budget_per_round,
                "rule": point.choice.label,
                "server_rate": point.choice.server_rate,
                "clip_norm": point.choice.training(self.base.training).clip_norm,
                "aggregation": point.choice.aggregation or self.base.aggregation,
            }
            for point in self.points
        ]
        return pandas.DataFrame(rows)

    def _rehearsed_row(self, point: RehearsedPoint) -> dict[str, object]:
        row = {name: value for name, value in asdict(point).items() if name not in ("total", "choice")}
        return {
            "money": point.total,
            **row,
            "rounds": point.choice.rounds,
            "rule": point.choice.label,
            "server_rate": point.choice.server_rate,
            "clip_norm": point.choice.training(self.base.training).clip_norm,
            "aggregation": point.choice.aggregation or self.base.aggregation,
        }

    def plot(self, path: str | Path | None = None) -> Figure:
        """Score, largest lifetime ε and pay over money; saved to `path` if given. Needs matplotlib.

        The band is the range of the score over seeds. For a plan with one total a sentence is drawn instead.

        Raises:
            ConfigurationError: no score was measured, because the sellers' records are not here.
        """
        if self.rehearsed:
            raise ConfigurationError(
                "a plan without the sellers' records has no measured scores to draw", "use to_frame()"
            )
        if len(self.points) == 1:
            figure = new_figure(7.0, 1.2)
            words = "\n".join(textwrap.wrap(self.sentence(), 95))
            figure.text(0.5, 0.5, words, ha="center", va="center", fontsize=9)
            if path is not None:
                write(figure, path)
            return figure
        figure = new_figure(9.5, 3.4)
        money = [point.total for point in self.points]
        panels = figure.subplots(1, 3)
        curves = {
            f"{self.score.heading} on test records": [point.score for point in self.points],
            "largest lifetime ε": [point.lifetime_epsilon for point in self.points],
            "pay per client": [point.pay_per_client for point in self.points],
        }
        for axes, (title, values) in zip(panels, curves.items(), strict=True):
            axes.plot(money, values, "o-", color="#D55E00")
            axes.set(xscale="log", xlabel="money in all", title=title)
            axes.set_xticks(money, _tick_labels(money), minor=False)
            axes.set_xticks([], minor=True)
            axes.grid(alpha=0.25)
        scores = panels[0]
        lowest = [point.lowest for point in self.points]
        highest = [point.highest for point in self.points]
        scores.fill_between(money, lowest, highest, color="#D55E00", alpha=0.2, lw=0)
        scores.yaxis.set_major_formatter(lambda value, _: self.score_text(value))
        if self.target is not None:
            scores.axhline(self.target, color="k", ls="--", lw=0.8, label="target")
        if self.score_before is not None:
            had = counted(self.own_records, "record")
            scores.axhline(self.score_before, color="#009E73", ls=":", lw=1.4, label=f"your own {had} alone")
        if self.chosen is not None:
            scores.plot([self.chosen.total], [self.chosen.score], "s", color="k", ms=7, label="chosen")
        if scores.get_legend_handles_labels()[0]:
            scores.legend(loc="upper left", bbox_to_anchor=(0.0, -0.18), fontsize=8, frameon=False)
        sold = [point.lifetime_epsilon for point in self.points if 0 < point.lifetime_epsilon < math.inf]
        if sold:
            ticks = _round_numbers(sold)
            panels[1].set_yscale("log")
            panels[1].set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
            panels[1].set_yticks([], minor=True)
        if path is not None:
            write(figure, path)
        return figure

    def sentence(self) -> str:
        """What the first total buys, in words."""
        point = self.points[0]
        score = f"{self.score.heading} {self.score_text(point.score)} on test records"
        if point.lowest < point.highest:
            score += f" ({self.score_text(point.lowest)} to {self.score_text(point.highest)} over seeds)"
        own = ""
        if self.score_before is not None:
            had = counted(self.own_records, "record")
            own = f", where your own {had} alone give {self.score_text(self.score_before)}"
        return (
            f"For {amount(point.total)} in all: {score}{own}; the largest lifetime ε is "
            f"{point.lifetime_epsilon:.3g}, and a client is paid {amount(point.pay_per_client)} on average."
        )

    def score_text(self, value: float) -> str:
        """A score as an axis shows it."""
        return f"{100 * value:g}%" if self.score.percent else f"{value:.3g}"

    def __repr__(self) -> str:
        said = f"Plan({self.base.dataset!r}, {counted(self.base.clients, 'client')}, {self.base.trust} trust"
        if self.score_before is not None:
            said += f", {self.score.heading} of own records {self.score.format(self.score_before)}"
        if self.points:
            best = max(self.points, key=lambda point: self.score.gain(0.0, point.score))
            said += f", best of {counted(len(self.points), 'total')} {self.score.format(best.score)}"
            said += f" for {amount(best.total)}"
        if self.rehearsed:
            said += f", {counted(len(self.rehearsed), 'total')} rehearsed, "
            said += {True: "worth buying", False: "buy nothing", None: "no gain known"}[self.worth_buying]
        if self.target is not None:
            reached = "not reached" if self.chosen is None else f"for {amount(self.chosen.total)}"
            if self.own_records_suffice:
                reached = "by own records"
            said += f", target {self.score.format(self.target)} {reached}"
        return said + ")"


def amount(money: float) -> str:
    """An amount of money as text: three digits below 100, whole units from there on."""
    return f"{money:,.0f}" if money >= 100 else f"{money:.3g}"


def _tick_labels(money: Sequence[float]) -> list[str]:
    """A label for each tick; empty where the label to its left is too near on the logarithmic scale."""
    apart = 0.12 * math.log(money[-1] / money[0])
    last = -math.inf
    said = []
    for total in money:
        if math.log(total) - last < apart:
            said.append("")
        else:
            said.append(amount(total))
            last = math.log(total)
    return said


def _round_numbers(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten around positive values, for an axis whose labels do not overlap."""
    low = min(values)
    high = max(values)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    steps = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    return [step for step in steps if low / 2.5 <= step <= high * 2.5]


@dataclass(frozen=True)
class Searched:
    """What rehearsals chose for one total of money.

    Attributes:
        choice: the best of all.
        loss_before: mean loss of the buyer's own model in the rehearsals' worlds.
        losses: (rule, rounds) → mean loss after a market with that candidate.
    """

    choice: Choice
    loss_before: float
    losses: dict[tuple[str, int], float]


AnyPoint = TypeVar("AnyPoint", Point, RehearsedPoint)
OnCell = Callable[[int, str], None]
"""Called with how many more rehearsals or runs are done, and with what was done last."""


def _tell_nobody(_done: int, _text: str) -> None:
    return None


def plan(
    task: Task | str | None = None,
    *,
    target: float | None = None,
    total: float | None = None,
    money: Sequence[float] | None = None,
    rounds: Sequence[int] | None = None,
    effort: Literal["quick", "normal", "full"] = "normal",
    dataset: str | None = None,
    clients: int | None = None,
    alpha: float | None = None,
    public: int | None = None,
    # the market
    trust: Trust = "local",
    honest_share: float = HONEST_SHARE,
    delta: float = DELTA,
    wallet: float | None = None,
    bids: AskedPrices | str | Path | None = None,
    scenario: str = "uniform",
    # settings of the training that the plan keeps
    server_rate: float | None = None,
    clip_norm: float | None = None,
    averaging: float | None = None,
    # how it is made
    workers: int = 1,
    folder: str | Path | None = None,
    on_cell: OnCell | None = None,
) -> Plan:
    """Says what a model will cost before anyone is paid, and what it adds to the buyer's own records.

    Rounds, budget a round, rule, price, server rate, clip norm, averaging and, under local trust, the weights of
    updates are chosen by rehearsals on the public records alone. The figures come from whole runs of the market
    with other seeds, measured on test records. Of a task without the sellers' records (`Task.from_own_records`)
    nothing can be run, and `Plan.rehearsed` says what rehearsals gained in made-up worlds.

    >>> import privmarket as pm
    >>> plan = pm.plan("breast-cancer", total=5, rounds=[5], effort="quick", trust="aggregate")
    >>> plan
    Plan('breast-cancer', 10 clients, aggregate trust, AUC of own records 0.994, best of 1 total 0.995 for 5)
    >>> plan.worth_buying
    False

    Args:
        task: what is learned from whose records: a `Task`, or the name of a built-in one.
        target: find the least money for this score, e.g. 0.95; `Plan.chosen` is the point that reaches it.
        total: or plan for this much money in all.
        money: totals to try where neither is given, and around which a target is looked for; by default 0.3 to 10
            per client, 0.03 to 1.5 under aggregate trust.
        rounds: numbers of rounds to try, instead of those of the effort.
        effort: how many settings and seeds are tried.
        dataset: instead of a task: digits (the default), mnist, fashion-mnist or cifar10, dealt anew for each seed.
        clients: with `dataset`, how many clients share its records; 100 unless given.
        alpha: with `dataset`, Dirichlet skew of labels; 0.5 unless given.
        public: with `dataset`, how many kept-back records are the buyer's; as many as a client holds unless given.
        trust, honest_share, delta, wallet, bids, scenario: as for `federate`.
        server_rate, clip_norm, averaging: settings of the training; those that are given are kept, the others
            are chosen by rehearsals.
        workers: processes; the plan does not depend on it.
        folder: where runs are kept, so that a plan that was stopped goes on; nothing is kept unless given.
        on_cell: called after every rehearsal and run, with how many were done and what was done last.

    Raises:
        ConfigurationError: target and total are both given, the total is not a number, a setting of `dataset`
            stands beside a task, or a target is asked for without the sellers' records.
    """
    if target is not None and total is not None:
        raise ConfigurationError("target and total exclude each other", "give one of them")
    if total is not None and not isinstance(total, Real):
        raise ConfigurationError(f"total is {total!r}", "give one number; several totals are money=[…]")
    if isinstance(task, str):
        task = builtin(task)
    of_dataset = {"dataset": dataset, "clients": clients, "alpha": alpha, "public": public}
    settings: dict[str, Any] = {name: value for name, value in of_dataset.items() if value is not None}
    if task is not None:
        for name, value in settings.items():
            raise ConfigurationError(f"{name}={value!r} beside a task", "say it where the task is made")
        settings = {**settings_of(task)}
    else:
        base = FederationConfig(**settings)
        settings["training"] = recommended_training(base.dataset, "aggregate")
        if public is None:
            settings["public"] = usual_public(base.dataset, base.clients, base.alpha)
    asked = AskedPrices.read(bids) if isinstance(bids, str | Path) else bids
    of_training = {"server_rate": server_rate, "clip_norm": clip_norm, "averaging": averaging}
    kept = {name: value for name, value in of_training.items() if value is not None}
    config = FederationConfig(
        **settings,
        trust=trust,
        honest_share=honest_share,
        delta=delta,
        wallet=wallet,
        scenario=scenario,
        bids="" if asked is None else asked.digest(),
    ).replace_training(**kept)
    if money is None:
        money = usual_totals(config.clients, trust)
    totals = checked_totals(money if total is None else [total])
    options = chosen_options(effort, rounds)
    with tempfile.TemporaryDirectory() as scratch:
        planner = Planner(
            config,
            Path(scratch if folder is None else folder),
            options,
            task=task,
            asked=asked,
            workers=workers,
            on_cell=on_cell,
            fixed=tuple(kept),
        )
        return planner.for_totals(totals) if target is None else planner.for_target(target, totals)


def usual_public(dataset: str, clients: int, alpha: float) -> int:
    """How many kept-back records the buyer of a built-in picture set has unless told: as many as a client holds."""
    made = builtin(dataset, clients=clients, alpha=alpha, features="none")
    return 0 if made.public is None else len(made.public)


def chosen_options(effort: str, rounds: Sequence[int] | None = None) -> Options:
    """What a plan of this effort tries, with other numbers of rounds where they are given."""
    if effort not in EFFORTS:
        raise ConfigurationError(f"unknown effort {effort!r}", f"choose one of: {', '.join(EFFORTS)}")
    return EFFORTS[effort] if rounds is None else replace(EFFORTS[effort], rounds=tuple(sorted(rounds)))


class Planner:
    """Makes plans for one market and one task; `plan` makes one from plain arguments.

    Args:
        base: trust, wallet, distribution, training. Money, rounds, rule, rate and clip norm are the plan's choice.
        folder: where runs are kept.
        options: what is tried.
        task: what is learned; else the built-in data set that `base` names, dealt anew for every seed.
        asked: what each client asks, instead of the distribution of `base`.
        workers: processes; any number gives the same plan.
        on_cell: called as for `plan`; runs that an earlier plan left in the folder are counted as well.
        fixed: settings of the training that the plan must not change.
    """

    def __init__(
        self,
        base: FederationConfig,
        folder: Path,
        options: Options | None = None,
        *,
        task: Task | None = None,
        asked: AskedPrices | None = None,
        workers: int = 1,
        on_cell: OnCell | None = None,
        fixed: Sequence[str] = (),
    ) -> None:
        self.base = base
        self.folder = folder
        self.options = options or Options()
        self.workers = workers
        self.on_cell: OnCell = on_cell or _tell_nobody
        self.asked = asked
        self.fixed = tuple(fixed)
        self._given = task
        # Unknown data and wrong settings are refused before the first run.
        self.task = builtin_task(base.replace(seed=SEARCH_SEEDS[0])) if task is None else task
        self.heterogeneity: float | None = None
        self.rules = rule_choices(base, self._distribution(), self.options)
        self._is_prepared = False
        self._rehearsed: dict[tuple[float, Choice], tuple[Choice, float]] = {}
        self._seen: dict[str, FederationConfig] = {}
        self._computed = 0
        # Seed → the model of the buyer's own records, which no choice of a plan changes.
        self._own: dict[int, OwnModel] = {}
        self._gains: GainRehearsal | None = None
        if not self.measures:
            self._require_rehearsals()
        self._pool: ProcessPoolExecutor | None = None
        # A saved run is used only with the same past bids and the same version of this package. The task need not
        # be named here: it is part of the run's configuration.
        past = Path(base.scenario)
        self._stands_on = __version__ + (hashlib.sha256(past.read_bytes()).hexdigest() if past.is_file() else "")

    @property
    def measures(self) -> bool:
        """Whether figures come from whole runs; else, without the sellers' records, all are rehearsed."""
        return self.task.has_private_records

    def _require_rehearsals(self) -> None:
        """Refuses, before anything is rehearsed, what cannot be planned without the sellers' records.

        Raises:
            ConfigurationError: see the message.
        """
        public = self.task.public
        held = 0 if public is None else len(public)
        if held < FEWEST_RECORDS:
            raise ConfigurationError(
                f"{held} records of your own, and none of the sellers'",
                f"give at least {FEWEST_RECORDS} of your own",
            )
        if self.base.training.steps != 1:
            raise ConfigurationError(
                f"{self.base.training.steps} steps a round cannot be rehearsed", "use one step a round"
            )
        if self.base.statistics != "none":
            raise ConfigurationError(
                f"statistics={self.base.statistics!r} in a plan without the sellers' records",
                "leave it out: a Flower app trains on inputs as they are",
            )
        # What is chosen is what a Flower app can do, and it has no whitening.
        self.fixed = (*self.fixed, "statistics")
        if self.task.goal != "own":
            # So a score that cannot be computed is found now.
            assert public is not None
            outputs = self.task.outputs(self.task.build_model(), public.inputs)
            self.task.evaluate(outputs, public)

    def for_totals(self, totals: Sequence[float]) -> Plan:
        """A point for every total, settings chosen for each."""
        if not self.measures:
            return self._rehearsed_plan(checked_totals(totals))
        with self._processes():
            points = self._points(checked_totals(totals), self._point)
        chosen = points[0] if len(points) == 1 else None
        return self._plan(points, None, chosen)

    def for_target(self, target: float, totals: Sequence[float]) -> Plan:
        """The cheapest total found that reaches the target, and the points on the way to it.

        Where the buyer's own records reach it already, nothing is rehearsed or run, and there are no points.
        """
        if not self.measures:
            raise ConfigurationError(
                f"a target of {target:g} without the sellers' records: no score of theirs can be measured",
                "leave the target out, and read the gains of several totals",
            )
        self.check_target(target)
        before = self.score_of_own_records()
        if before is not None and self.task.score.gain(target, before) >= 0:
            return replace(self._plan([], target, None), score_before=before)
        with self._processes():
            points = self._points(checked_totals(totals), self._point)
            self._reach_for(target, points)
            good = [point for point in points if self._reaches(point, target)]
            if not good:
                return self._plan(points, target, None)
            for _ in range(REFINEMENTS):
                best = min(good, key=lambda point: point.total)
                below = [point.total for point in points if point.total < best.total]
                if not below:
                    break
                tried = self._point(float(np.sqrt(max(below) * best.total)), self._beside(best))
                points.append(tried)
                if self._reaches(tried, target):
                    good.append(tried)
        return self._plan(points, target, min(good, key=lambda point: point.total))

    def score_of_own_records(self) -> float | None:
        """Mean score of the buyer's own records alone, over the seeds of the plan; None where it has too few.

        This is the `score_before` of the plan's runs, found without running a market.
        """
        if self.task.test is None or self.task.public is None or len(self.task.public) < FEWEST_RECORDS:
            return None
        found = []
        with one_thread():
            for seed in self.options.seeds:
                task = self._given
                if task is None:
                    task = builtin_task(self.base.replace(measured_on="test", seed=seed))
                self._own[seed] = OwnTraining(task, seed).own_model()
                own = own_records(task, self._own[seed].module, seed=seed)
                if own is not None:
                    found.append(own.scores[task.score.name])
        return float(np.mean(found)) if found else None

    def check_target(self, target: float) -> None:
        """Refuses, before anything is rehearsed, a target that no model reaches."""
        if not math.isfinite(target):
            raise ConfigurationError(f"the target is {target:g}", "give a number, e.g. 0.95")
        score = self.task.score
        if score.best is not None and score.gain(target, score.best) <= 0:
            side = "below" if score.higher_is_better else "above"
            raise ConfigurationError(
                f"the target is {target:g}, and no {score.heading} is better than {score.best:g}",
                f"give a number {side} {score.best:g}",
            )

    def _reaches(self, point: Point, target: float) -> bool:
        return self.task.score.gain(target, point.score) >= 0

    def _reach_for(self, target: float, points: list[Point]) -> None:
        """Adds points below all others while even the least money reaches the target, or above while none does."""
        for _ in range(_STEPS_BEYOND):
            lowest = min(points, key=lambda point: point.total)
            highest = max(points, key=lambda point: point.total)
            reached = any(self._reaches(point, target) for point in points)
            # Where not even half of the money could be spent, more money changes nothing.
            if not self._reaches(lowest, target) if reached else highest.spent < 0.5 * highest.total:
                return
            edge, factor = (lowest, 1.0 / _FACTOR_BEYOND) if reached else (highest, _FACTOR_BEYOND)
            points.append(self._point(edge.total * factor, self._beside(edge)))

    @contextmanager
    def _processes(self) -> Iterator[None]:
        """Worker processes that stay for the whole plan, so that each gets the task once."""
        if self.workers == 1:
            yield
            return
        given = None
        if self._given is not None:
            try:
                given = pickle.dumps(self._given)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ConfigurationError(
                    f"the task {self._given.name!r} cannot be sent to other processes: {error}", "use workers=1"
                ) from error
        with ProcessPoolExecutor(
            self.workers, mp_context=process_context(), initializer=_start, initargs=(given, self.asked)
        ) as self._pool:
            try:
                yield
            finally:
                self._pool.shutdown(cancel_futures=True)
                self._pool = None

    def _plan(self, points: Iterable[Point], target: float | None, chosen: Point | None) -> Plan:
        ordered = tuple(sorted(points, key=lambda point: point.total))
        before = [point.score_before for point in ordered if point.score_before is not None]
        public = self.task.public
        choices = [choice for choice, _ in self._rehearsed.values()] or [point.choice for point in ordered]
        return Plan(
            base=self.base,
            points=ordered,
            score=self.task.score,
            own_records=0 if public is None else len(public),
            score_before=float(np.mean(before)) if before else None,
            target=target,
            chosen=chosen,
            cells=len(self._seen),
            computed=self._computed,
            heterogeneity=self.heterogeneity,
            score_before_on="test records" if before else None,
            tried=TriedSettings(
                rounds=tuple(sorted({choice.rounds for choice in choices})),
                server_rates=tuple(sorted({choice.server_rate for choice in choices})),
                rules=len({choice.label for choice in choices}),
                rehearsals=len(self._rehearsed),
                seeds=len(self.options.seeds) if self.measures else 0,
            ),
        )

    def _rehearsed_plan(self, totals: list[float]) -> Plan:
        """A plan without the sellers' records: what rehearsals choose, and what they gain in further worlds."""
        with one_thread():
            self._gains = GainRehearsal(
                self.task,
                skew=self.base.alpha,
                worlds=self.options.gain_worlds,
                on_step=lambda: self.on_cell(1, "made worlds as hard as your records"),
            )
            own = self._gains.own
            before = own.score
            on = "cross-validation"
            error: float | None = own.error
            if self.task.test is not None:
                tested = own_records(self.task, self._gains.own_model.module, seed=SEARCH_SEEDS[0])
                assert tested is not None
                before = tested.scores[self.task.score.name]
                on = "test records"
                error = None
        points = self._points(totals, self._rehearsed_point)
        return replace(
            self._plan([], None, None),
            rehearsed=tuple(points),
            score_before=before,
            score_before_on=on,
            score_before_error=error,
            no_gain_because=self._no_gain_because,
        )

    @property
    def _no_gain_because(self) -> str:
        """Why worlds cannot say a gain of this task; empty if they can."""
        if self.task.goal == "own":
            return "labels of worlds can be drawn for classes and numbers only, and this task has a loss of its own"
        if not self._stand_in.draws_inputs:
            return (
                "worlds hold as many records as sellers do only for a linear model of at most "
                f"{MOST_FREE_INPUTS:,} numbers; elsewhere stand-in sellers share your own inputs, and a gain "
                "among these says little"
            )
        return ""

    def _rehearsed_point(self, total: float, choices: Sequence[Choice]) -> RehearsedPoint:
        choice = self._best_priced(total, choices)
        config = choice.config(self.base, total).replace(seed=SEARCH_SEEDS[0])
        gains = self._gains
        assert gains is not None
        kept = self._kept(config.to_json(), "gain", gains.key)
        with one_thread():
            market = MarketAlone(config, task=self.task, asked=self.asked, own_model=gains.own_model)
            paid = market.figures()
            scores = None
            if not self._no_gain_because:
                scores = _read_scores(kept)
                if scores is None:
                    scores = gains.scores(market)
                    write_atomically(kept, json.dumps({"scores": scores.tolist()}) + "\n")
        self.on_cell(1, f"rehearsed the gain for {amount(total)}")
        found = np.zeros((0, 2)) if scores is None else scores[np.isfinite(scores).all(axis=1)]
        gained = np.array([self.task.score.gain(had, got) for had, got in found.tolist()])
        own = gains.own
        other = max(0.0, self.task.score.gain(own.tried[OWN_MODEL], own.score))
        if not paid.spent:  # nothing is bought, so nothing changes
            gained = np.zeros(1)
            other = 0.0
        return RehearsedPoint(
            total=total,
            choice=choice,
            budget_per_round=total / choice.rounds,
            rehearsed_gain=float(gained.mean()) - other if gained.size else None,
            rehearsed_deviation=_deviation(gained),
            worlds=len(found),
            worlds_with_gain=int((gained - other > 0).sum()),
            score_in_worlds=float(found[:, 1].mean()) if len(found) else None,
            score_before_in_worlds=float(found[:, 0].mean()) if len(found) else None,
            spent=paid.spent,
            lifetime_epsilon=paid.lifetime_epsilon,
            pay_per_client=paid.spent / len(self.task.clients),
            highest_pay=paid.highest_pay,
            sellers_per_round=paid.sellers_per_round,
            epsilon_if_others_collude=paid.epsilon_if_others_collude,
        )

    def _distribution(self) -> Distribution:
        return scenario(self.base.scenario if self.asked is None else self.asked.bids)

    # --- rehearsals on public records

    @property
    def rehearses(self) -> bool:
        """Whether there are public records to choose settings on; else documented defaults stand."""
        public = self.task.public
        return public is not None and len(public) >= FEWEST_RECORDS and self.base.training.steps == 1

    def search(self, total: float) -> Searched:
        """The settings that rehearsals choose for a total of money; no run of the market is made.

        Raises:
            ConfigurationError: there are too few public records to rehearse on.
        """
        if not self.rehearses:
            raise ConfigurationError(
                "too few public records to choose settings on", f"give at least {FEWEST_RECORDS}"
            )
        self._prepare(total)
        choice = self._search(total)
        losses = {(tried.label, tried.rounds): loss for tried, loss in self._rehearsed.values()}
        return Searched(choice, self._stand_in.loss_before(), losses)

    def _prepare(self, total: float) -> None:
        """Measures H in the worlds that rehearsals take place in, where rules need it."""
        if self.rehearses:
            self._is_prepared = True
            self.heterogeneity = self._measured_heterogeneity(total)
            self.rules = rule_choices(self.base, self._distribution(), self.options, self.heterogeneity)

    @cached_property
    def _stand_in(self) -> StandIn:
        """The worlds that rehearsals take place in."""
        with one_thread():
            return StandIn(
                self.task,
                clients=len(self.task.clients),
                skew=self.base.alpha,
                worlds=self.options.worlds,
                seed=SEARCH_SEEDS[0],
            )

    def _kept(self, *parts: object) -> Path:
        """Where the result of a rehearsal is kept: under a digest of all that it depends on."""
        about = [self.base.to_json(), self.options.worlds, sorted(self.fixed), *parts]
        text = json.dumps(about, sort_keys=True) + self._stands_on
        return self.folder / "rehearsals" / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"

    def _points(self, totals: list[float], point: Callable[[float, Sequence[Choice]], AnyPoint]) -> list[AnyPoint]:
        """A point for each total.

        Settings are searched widely at the middle total. At every other one, only choices near those of the
        nearest total that is done are tried.

        Args:
            point: makes the point of a total from the choices that are to be tried for it.
        """
        middle = totals[len(totals) // 2]
        self._prepare(middle)
        anchor = self._search(middle)
        points = {middle: point(middle, [anchor])}
        for total in sorted(totals, key=lambda t: abs(np.log(t / middle))):
            if total not in points:
                nearest = min(points, key=lambda t: abs(np.log(t / total)))
                points[total] = point(total, self._beside(points[nearest]))
        return [points[total] for total in totals]

    def _measured_heterogeneity(self, total: float) -> float:
        """H of the stand-in sellers, in a training whose rate suits a ration bought from everybody."""
        rounds = self._middle_rounds()
        flat = next((rule for rule in self.rules if rule.rule == "two-step"), self.rules[0])
        tuned, _ = self._rehearse(total, replace(flat, rounds=rounds))
        kept = self._kept("H", rounds, asdict(tuned))
        found = _read_json(kept).get("heterogeneity")
        if found is not None:
            return float(found)
        with one_thread():
            whitening = free_whitening(self.base, self.task) if tuned.statistics == "free" else None
            spread = self._stand_in.spread(tuned.training(self.base.training), rounds, whitening)
        # The market's error counts noise on sums over a client's records, rehearsals on mean gradients.
        federation = Federation(self.base.replace(rounds=rounds), task=self.task, asked=self.asked)
        measured = float(f"{spread.heterogeneity * federation.pool.plan.expected_batch:.3g}")
        write_atomically(kept, json.dumps({"heterogeneity": measured}) + "\n")
        return measured

    def _middle_rounds(self) -> int:
        options = self.options
        # Under local trust rules are compared in a shorter training: if there are many rounds, each of them buys
        # little ε, and noise hides the differences between rules.
        return options.rounds[(len(options.rounds) - (self.base.trust == "local")) // 2]

    def _search(self, total: float) -> Choice:
        """The rule with its price is chosen first, then the rounds; rate and clip norm are tuned for each."""
        rounds = self._middle_rounds()
        best = self._best_priced(total, [replace(rule, rounds=rounds) for rule in self.rules])
        return self._best(total, [replace(best, rounds=other) for other in self.options.rounds])

    def _beside(self, point: Point | RehearsedPoint) -> list[Choice]:
        """What to try for another total: the known one's choice and its neighbours in rounds and rules."""
        choice = point.choice
        allowed = sorted(self.options.rounds)
        at = allowed.index(choice.rounds)
        found = [replace(choice, rounds=rounds) for rounds in allowed[max(at - 1, 0) : at + 2]]
        rule = [other.label for other in self.rules].index(choice.label)
        for other in (*self.rules[max(rule - 1, 0) : rule], *self.rules[rule + 1 : rule + 2]):
            found.append(replace(other, rounds=choice.rounds, server_rate=choice.server_rate))
        return found

    def _best_priced(self, total: float, choices: Sequence[Choice]) -> Choice:
        """The best choice; while its price is the lowest or the highest of the options, one beyond it is added."""
        best = self._best(total, choices)
        while self._is_prepared and (share := self._share_beyond(best)) is not None:
            shares = tuple(sorted((*self.options.price_shares, share)))
            self.options = replace(self.options, price_shares=shares)
            self.rules = rule_choices(self.base, self._distribution(), self.options, self.heterogeneity)
            added = self.rules[shares.index(share)]
            best = self._best(total, [best, replace(added, rounds=best.rounds, server_rate=best.server_rate)])
        return best

    def _share_beyond(self, choice: Choice) -> float | None:
        """Which share of clients to post a further price for; None if the choice's price has one on either side."""
        shares = self.options.price_shares
        posted = [rule.label for rule in self.rules[: len(shares)]]
        clients = len(self.task.clients)
        if not shares or choice.label not in (posted[0], posted[-1]):
            return None
        if choice.label == posted[0] and shares[0] * clients >= 2 * _FEWEST_SELLERS:
            return shares[0] / 2
        left_out = 1.0 - shares[-1]
        if choice.label == posted[-1] and left_out * clients > 1:
            return 1.0 - left_out / 4
        return None

    def _best(self, total: float, choices: Sequence[Choice]) -> Choice:
        """The choice with the least loss in rehearsals, tuned; the first choice where nothing is rehearsed."""
        if not self._is_prepared:
            return choices[0]
        rehearsed = [self._rehearse(total, choice) for choice in choices]
        return min(rehearsed, key=lambda pair: pair[1])[0]

    def _rehearse(self, total: float, choice: Choice) -> tuple[Choice, float]:
        """The choice with its best settings on public records, and the loss it ends at."""
        bare = choice.untuned()
        key = (total, replace(bare, server_rate=0.0))
        if key not in self._rehearsed:
            plain = replace(choice, aggregation=None)
            if choice.statistics == "free":  # settings for whitened inputs mean nothing on others
                plain = replace(bare, server_rate=self.base.training.server_rate)
            config = plain.config(self.base, total).replace(seed=SEARCH_SEEDS[0])
            kept = self._kept(config.to_json())
            found = _read_json(kept)
            if not found:
                chosen, loss = self._rehearsed_anew(config, choice)
                found = {"loss": loss, "choice": {name: getattr(chosen, name) for name in _TUNED}}
                write_atomically(kept, json.dumps(found) + "\n")
            self._rehearsed[key] = (replace(choice, **found["choice"]), found["loss"])
            self.on_cell(1, f"rehearsed {choice.rounds} rounds of {choice.label}")
        return self._rehearsed[key]

    def _rehearsed_anew(self, config: FederationConfig, choice: Choice) -> tuple[Choice, float]:
        """The choice with its best settings, and the loss it ends at, from a rehearsal that is made now."""
        with one_thread(), Federation(config, task=self.task, asked=self.asked) as federation:
            asked = self.base.statistics != "none"
            fixed = (*self.fixed, "statistics") if asked else self.fixed
            found = rehearsed(federation, self._stand_in, fixed=fixed)
        if found is None:
            return choice, self._stand_in.loss_before()
        statistics = None if asked else found.statistics
        return choice.tuned(found.training, statistics, found.aggregation), found.loss_after

    # --- whole runs

    def _point(self, total: float, choices: Sequence[Choice]) -> Point:
        choice = self._best_priced(total, choices)
        base = self.base.replace(measured_on="test")
        runs = self._run([choice.config(base.replace(seed=seed), total) for seed in self.options.seeds])
        scores = np.array([run.score for run in runs])
        before = [run.score_before for run in runs if run.score_before is not None]
        gains = np.array([])
        if len(before) == len(runs):
            gain = self.task.score.gain
            gains = np.array([gain(had, got) for had, got in zip(before, scores.tolist(), strict=True)])
        alone = [run.epsilon_if_others_collude for run in runs if run.epsilon_if_others_collude is not None]
        errors = [run.gain_error for run in runs if run.gain_error is not None]
        return Point(
            total=total,
            choice=choice,
            budget_per_round=total / choice.rounds,
            score=float(scores.mean()),
            deviation=_deviation(scores),
            lowest=float(scores.min()),
            highest=float(scores.max()),
            score_before=float(np.mean(before)) if before else None,
            gain=float(gains.mean()) if gains.size else None,
            gain_deviation=_deviation(gains),
            seeds=scores.size,
            spent=float(np.mean([run.spent for run in runs])),
            lifetime_epsilon=max(run.lifetime_epsilon for run in runs),
            pay_per_client=float(np.mean([run.spent for run in runs])) / len(self.task.clients),
            highest_pay=max(run.highest_pay for run in runs),
            sellers_per_round=float(np.mean([run.sellers_per_round for run in runs])),
            test_error=float(np.sqrt(np.mean(np.square(errors)))) if errors else 0.0,
            prices=UnitPrices.mean([run.prices for run in runs if run.prices is not None]),
            epsilon_if_others_collude=max(alone, default=None),
        )

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
            self.on_cell(1, f"{self.task.score.format(outcome.score)} for {outcome.spent:,.4g}")
        done = [_read(path) for path in paths]
        return [outcome for outcome in done if outcome is not None]

    def _compute(
        self, missing: dict[Path, FederationConfig]
    ) -> Iterator[tuple[Path, FederationConfig, RunFigures]]:
        if self._pool is None:
            for path, config in missing.items():
                yield path, config, run_figures(config, self._given, self.asked, self._own)
            return
        begun = {self._pool.submit(_run_in_process, config): path for path, config in missing.items()}
        for future in as_completed(begun):
            path = begun[future]
            yield path, missing[path], future.result()

    def _path(self, config: FederationConfig) -> Path:
        text = json.dumps(config.to_json(), sort_keys=True) + self._stands_on
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"


def run_figures(
    config: FederationConfig, task: Task | None, asked: AskedPrices | None, own: dict[int, OwnModel]
) -> RunFigures:
    """Plays a whole run and keeps its figures.

    Args:
        own: seed → the model of the buyer's own records; the run's is looked up here, and added if it is missing.
    """
    started = time.perf_counter()
    with (
        one_thread(),
        Federation(config, task=task, asked=asked, own_model=own.get(config.seed)) as federation,
    ):
        if federation.own_model is not None:
            own[config.seed] = federation.own_model
        state = federation.start()
        while state.next_round < config.rounds:
            state = federation.step(state)
        result = federation.result(state)
    rows = result.client_rows
    spent = [math.inf if row["epsilon_spent"] is None else row["epsilon_spent"] for row in rows]
    alone = [row["epsilon_if_others_collude"] for row in rows]
    return RunFigures(
        score=float(result.score),
        score_before=result.score_before,
        gain_error=result.gain_error,
        spent=float(result.spent),
        lifetime_epsilon=max(spent, default=0.0),
        highest_pay=max((row["paid"] for row in rows), default=0.0),
        sellers_per_round=float(np.mean([record.sellers for record in result.records])),
        seconds=round(time.perf_counter() - started, 3),
        prices=result.prices,
        epsilon_if_others_collude=max((one for one in alone if one is not None), default=None),
    )


# What a worker process of a plan was given; set once in each process by `_start`.
_GIVEN: list[tuple[Task | None, AskedPrices | None, dict[int, OwnModel]]] = []


def _start(task: bytes | None, asked: AskedPrices | None) -> None:
    _GIVEN[:] = [(None if task is None else pickle.loads(task), asked, {})]


def _run_in_process(config: FederationConfig) -> RunFigures:
    return run_figures(config, *_GIVEN[0])


def checked_totals(totals: Sequence[float]) -> list[float]:
    """The totals in order, each once; refuses amounts that are not finite and above 0."""
    if not totals or not all(0 < total < np.inf for total in totals):
        raise ConfigurationError(f"money to plan for: {list(totals)}", "give totals above 0, e.g. 100,500,2000")
    return sorted({float(total) for total in totals})


def _read_scores(path: Path) -> np.ndarray | None:
    try:
        scores = np.array(json.loads(path.read_text(encoding="utf-8"))["scores"], dtype=np.float64)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return scores if scores.ndim == 2 else None


def _deviation(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if values.size > 1 else 0.0


# What a rehearsal finds of a choice.
_TUNED = ("server_rate", "clip_norm", "averaging", "momentum", "final_rate", "statistics", "aggregation")


def _read_json(path: Path) -> dict[str, Any]:
    """An object in a file; empty where there is none, or a damaged one."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError):
        return {}


def _read(path: Path) -> RunFigures | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["outcome"]
        prices = found.pop("prices")
        return RunFigures(**found, prices=None if prices is None else UnitPrices(**prices))
    except (OSError, ValueError, KeyError, TypeError):
        # A damaged file is no result: the run is made again.
        return None
