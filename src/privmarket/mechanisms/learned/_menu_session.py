"""Learning menu curves on disk: one curve per design point, kept as soon as it is learned."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from privmarket._files import write_atomically
from privmarket.errors import ConfigurationError
from privmarket.market._distributions import Distribution
from privmarket.market._menus import MenuCurve, RationCurve
from privmarket.market._objectives import AggregateError, Objective
from privmarket.mechanisms.learned._menu_learning import DEFAULT_SEARCH, CurveSearch, learn_curve
from privmarket.mechanisms.learned._menunet import CurveFacts, MfgMenuNet, PublicFacts, bias_to_noise, curve_arrays
from privmarket.mechanisms.learned._ration_learning import RationSearch, learn_ration_curve
from privmarket.mechanisms.learned._session import check_laws, checkpoint_path
from privmarket.mechanisms.learned._training_checkpoint import SUFFIX
from privmarket.mechanisms.learned._weights import Weights, WeightsError, load, save

SEARCHES = {"quick": CurveSearch(steps=60, markets=8, validation=40), "full": DEFAULT_SEARCH}


class _Values(TypedDict):
    """What a curve and the rules beside it achieve on validation markets."""

    value: float
    posted_price_value: float
    two_step_value: NotRequired[float]


@dataclass(frozen=True)
class DesignPoint:
    """A market that a menu curve is learned for."""

    law: Distribution
    clients: int
    budget: float
    objective: Objective

    def public(self) -> PublicFacts:
        """What a curve may depend on, as JSON values."""
        return {
            "objective": self.objective.name,
            "scenario": self.law.name,
            "clients": self.clients,
            "budget_per_client": self.budget / self.clients,
            "bias_to_noise": bias_to_noise(self.objective, self.clients),
        }


@dataclass(frozen=True)
class MenuProgress:
    """One gradient step: which curve, which step, the smoothed objective (total ε bought, or the error)."""

    curve: int
    step: int
    objective: float


@dataclass(frozen=True)
class LearnedMenus:
    """What a session left behind.

    Attributes:
        facts: one per curve: its public description, its value and a posted price's on validation markets.
        resumed_at: how many curves an earlier session had learned.
    """

    weights: Path
    curve: Path
    facts: list[CurveFacts]
    seconds: float
    resumed_at: int


def search_called(profile: str) -> CurveSearch:
    """How long to search: `quick` or `full`."""
    if profile not in SEARCHES:
        raise ConfigurationError(f"unknown profile {profile!r}", f"choose one of: {', '.join(SEARCHES)}")
    return SEARCHES[profile]


def learn_menus(
    points: Sequence[DesignPoint],
    out: Path,
    seed: int = 0,
    search: CurveSearch = DEFAULT_SEARCH,
    report: Callable[[MenuProgress], None] = lambda progress: None,
) -> LearnedMenus:
    """Learns a curve for each design point and writes them as weights of `mfg-menunet`.

    A checkpoint beside `out` keeps every finished curve; a session that was stopped repeats at most the curve
    it was at. Each curve has its own chance, so resuming changes nothing.
    """
    check_laws([point.law for point in points])
    recipe = {"points": [point.public() for point in points], "seed": seed, "search": asdict(search)}
    state = _State.begin(checkpoint_path(out), recipe)
    resumed_at, begin = len(state.facts), time.monotonic() - state.seconds

    for index in range(resumed_at, len(points)):

        def step_done(step: int, value: float, index: int = index) -> None:
            progress = MenuProgress(index, step, value)
            state.trace.append(list(astuple(progress)))
            report(progress)

        point = points[index]
        rng = np.random.default_rng([seed, index])
        learned, values = _learn(point, rng, search, step_done)
        arrays, kind = curve_arrays(learned, index)
        state.arrays |= arrays
        state.facts.append({**point.public(), **kind, **values})
        state.seconds = time.monotonic() - begin
        state.save()

    facts = {"curves": state.facts, "seed": seed, "search": asdict(search), "seconds": round(state.seconds, 1)}
    save(out, Weights(MfgMenuNet.name, state.arrays, facts))
    curve = out.with_suffix(".curve.csv")
    write_atomically(curve, _as_csv(state.trace).encode())
    return LearnedMenus(out, curve, state.facts, state.seconds, resumed_at)


def _learn(
    point: DesignPoint, rng: np.random.Generator, search: CurveSearch, report: Callable[[int, float], None]
) -> tuple[MenuCurve | RationCurve, _Values]:
    """The curve for one market, and what it and the rules beside it achieve on validation markets."""
    market = (point.law, point.clients, point.budget)
    if isinstance(point.objective, AggregateError):
        rations = RationSearch(steps=search.steps, markets=search.markets, validation=search.validation)
        found = learn_ration_curve(*market, point.objective, rng, rations, report)
        return found.curve, {
            "value": found.value,
            "two_step_value": found.start_value,
            "posted_price_value": found.posted_price_value,
        }
    learned = learn_curve(*market, point.objective, rng, search, report)
    return learned.curve, {"value": learned.value, "posted_price_value": learned.posted_price_value}


@dataclass
class _State:
    """What a session saves between two searches."""

    path: Path
    recipe: dict[str, object]
    arrays: dict[str, NDArray[np.float64]]
    facts: list[CurveFacts]
    trace: list[list[float]]
    seconds: float

    @staticmethod
    def begin(path: Path, recipe: dict[str, object]) -> _State:
        if not path.exists():
            return _State(path, recipe, {}, [], [], 0.0)
        stored = load(path, MfgMenuNet.name + SUFFIX)
        if stored.facts["recipe"] != _plain(recipe):
            raise WeightsError(
                f"{path} belongs to a run with other settings", "repeat those settings, or choose another --out"
            )
        kept = stored.facts
        return _State(path, recipe, dict(stored.arrays), kept["facts"], kept["trace"], kept["seconds"])

    def save(self) -> None:
        kept = {"recipe": self.recipe, "facts": self.facts, "trace": self.trace, "seconds": self.seconds}
        save(self.path, Weights(MfgMenuNet.name + SUFFIX, self.arrays, kept))


def _plain(recipe: dict[str, object]) -> object:
    """The recipe as JSON gives it back, with lists for tuples, for comparing."""
    return json.loads(json.dumps(recipe))


def _as_csv(trace: list[list[float]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([field.name for field in fields(MenuProgress)])
    writer.writerows(trace)
    return text.getvalue()
