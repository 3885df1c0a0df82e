"""Learning menu curves by gradient, for a distribution of clients and the buyer's objective.

The exact menus hold for every curve, so a curve may be searched by any means. Sampled markets are cleared at the
level that spends the budget, with prices smoothed so that the objective has a gradient; the width of the
smoothing shrinks to almost nothing. The objective has several local optima (one posted price is one of them
whenever the bias counts), so the search starts from a good curve, and the exact mechanism on fresh markets
decides between where it started, where it ended and a posted price.

- Menus of shares (total ε, aggregation error): a softmax over a grid of relative prices, from the best of a small
  family of two-step curves.
- Menus of rations (aggregate errors): prices and multiples of a few steps move together, from the best menu in
  the fluid limit (two steps, or graded ones for the typical error).

Notation: see `market._menus`; A_m = min(ε, a_m(ℓ)), L = markets, N = clients, M = steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NotRequired, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Bids
from privmarket.market._distributions import Distribution
from privmarket.market._menus import POSTED_PRICE, MenuCurve, RationCurve
from privmarket.market._objectives import (
    AggregateError,
    AggregationError,
    Objective,
    TotalEpsilon,
    TypicalAggregateError,
)
from privmarket.market._outcome import Outcome
from privmarket.market._ration_design import graded_curve, two_step_curve
from privmarket.mechanisms._mean_field_menu import MeanFieldMenu
from privmarket.mechanisms._ration_menu import face
from privmarket.mechanisms.learned._menunet import CurveFacts, MfgMenuNet, PublicFacts, bias_to_noise, curve_arrays
from privmarket.mechanisms.learned._objectives import aggregation_error
from privmarket.mechanisms.learned._session import check_distributions, finish
from privmarket.mechanisms.learned._trainer import (
    TrainingRun,
    below,
    fingerprint,
    optimizer_arrays,
    restore_optimizer,
)
from privmarket.mechanisms.learned._weights import Weights

# Two-step curves of shares that a search may start from.
_RATIOS = (1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0)
_SHARES = (0.05, 0.1, 0.2, 0.3, 0.45)
# Steps of a ration curve beyond the ration: below, at and above the price of the design's bulk.
_BELOW = 3
_ABOVE = 2
_STRENGTH_POINTS = 512
_BISECTIONS = 30
# Multiples that differ by less are one step.
_LEAST_RATIO = 1.005


@dataclass(frozen=True)
class CurveSearch:
    """How long and how finely to search for a menu of shares.

    Attributes:
        prices: points of the grid, log-spaced over `span` (relative to the lower step of the start).
        steps, markets: gradient steps, and markets drawn for each.
        learning_rate: of Adam, falling linearly.
        widths: first and last width of the smoothing, in log-price.
        validation: fresh markets on which the exact mechanism decides.
    """

    prices: int = 40
    span: tuple[float, float] = (0.2, 12.0)
    steps: int = 120
    markets: int = 16
    learning_rate: float = 0.06
    widths: tuple[float, float] = (0.06, 0.015)
    validation: int = 60
    least_weight: float = 1e-3


DEFAULT_SEARCH = CurveSearch()


@dataclass(frozen=True)
class RationSearch:
    """How long to search for a menu of rations.

    Attributes:
        steps, markets: gradient steps, and markets drawn for each.
        learning_rate: of Adam, falling linearly.
        widths: first and last width of the smoothing, in log-price.
        validation: fresh markets on which the exact mechanism decides.
    """

    steps: int = 150
    markets: int = 16
    learning_rate: float = 0.03
    widths: tuple[float, float] = (0.1, 0.03)
    validation: int = 100


SEARCHES = {"quick": CurveSearch(steps=60, markets=8, validation=40), "full": DEFAULT_SEARCH}


def search_called(profile: str) -> CurveSearch:
    """How long to search: `quick` or `full`."""
    if profile not in SEARCHES:
        raise ConfigurationError(f"unknown profile {profile!r}", f"choose one of: {', '.join(SEARCHES)}")
    return SEARCHES[profile]


@dataclass(frozen=True)
class DesignPoint:
    """A market that a menu curve is learned for."""

    distribution: Distribution
    clients: int
    budget: float
    objective: Objective

    def public(self) -> PublicFacts:
        """What a curve may depend on, as JSON values."""
        return {
            "objective": self.objective.name,
            "scenario": self.distribution.name,
            "clients": self.clients,
            "budget_per_client": self.budget / self.clients,
            "bias_to_noise": bias_to_noise(self.objective, self.clients),
        }


class CurveValues(TypedDict):
    """What a curve and the rules beside it achieve on validation markets."""

    value: float
    posted_price_value: float
    two_step_value: NotRequired[float]


class CurveRun:
    """One curve in the making: its start, gradient steps, and at the end the choice on fresh markets.

    Args:
        point: the market that the curve is for.
        rng: all chance of this curve.
        search: how long to search.
    """

    def __init__(self, point: DesignPoint, rng: np.random.Generator, search: CurveSearch | RationSearch) -> None:
        self.point = point
        self.rng = rng
        self.search = search
        self.step = 0
        self.smooth: _Smooth
        if isinstance(point.objective, AggregateError):
            start = fluid_design(point.distribution, point.clients, point.budget, point.objective)
            self.smooth = _SmoothCurve(start, point.distribution.epsilon_max, point.objective)
        else:
            assert isinstance(search, CurveSearch)
            sample = point.distribution.sample(rng, point.clients, (search.markets,))
            self.smooth = _SmoothShares.best_of_family(point, sample, search)
        self.optimizer = torch.optim.Adam(self.smooth.parameters(), lr=search.learning_rate)

    def advance(self) -> float:
        """One gradient step on fresh markets; the smoothed objective before it."""
        done = self.step / self.search.steps
        for group in self.optimizer.param_groups:
            group["lr"] = self.search.learning_rate * (1 - 0.9 * done)
        bids = self.point.distribution.sample(self.rng, self.point.clients, (self.search.markets,))
        first, last = self.search.widths
        loss, value = self.smooth.loss(bids, self.point.budget, first * (last / first) ** done)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.step += 1
        return value

    def finish(self) -> tuple[MenuCurve | RationCurve, CurveValues]:
        """The best of a posted price, the start and the end, by the exact mechanism on fresh markets."""
        point = self.point
        fresh = point.distribution.sample(self.rng, point.clients, (self.search.validation,))
        tried = [POSTED_PRICE, self.smooth.start, self.smooth.exact()]
        values = [
            curve_value(curve, fresh, point.budget, point.objective, point.distribution.epsilon_max)
            for curve in tried
        ]
        best = int(np.argmax(values) if point.objective.larger_is_better else np.argmin(values))
        found: CurveValues = {"value": values[best], "posted_price_value": values[0]}
        if isinstance(point.objective, AggregateError):
            found["two_step_value"] = values[1]
        return tried[best], found

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What the next step depends on. The start follows from the first draws, which are made anew."""
        arrays = {f"curve/{i}": p.detach().numpy() for i, p in enumerate(self.smooth.parameters())}
        return arrays | optimizer_arrays(self.optimizer), {
            "step": self.step,
            "chance": self.rng.bit_generator.state,
        }

    def restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        """Takes back what `state` gave."""
        with torch.no_grad():
            for index, parameter in enumerate(self.smooth.parameters()):
                parameter.copy_(below(arrays, "curve")[str(index)])
        restore_optimizer(self.optimizer, arrays)
        self.step = facts["step"]
        self.rng.bit_generator.state = facts["chance"]


@dataclass(frozen=True)
class MenuProgress:
    """One gradient step: which curve, which step, the smoothed objective (total ε bought, or the error)."""

    curve: int
    step: int
    objective: float


class MenuTrainer(TrainingRun[MenuProgress]):
    """Curves for several design points, one after the other. Each has its own chance."""

    progress_class: ClassVar[type] = MenuProgress

    def __init__(self, points: Sequence[DesignPoint], seed: int = 0, search: CurveSearch = DEFAULT_SEARCH) -> None:
        self.mechanism = MfgMenuNet.name
        self.points = points
        self.seed = seed
        self.search = search
        self.step = 0
        self.steps = len(points) * search.steps
        self.arrays: dict[str, NDArray[np.float64]] = {}
        self.facts: list[CurveFacts] = []
        self._run: CurveRun | None = None

    def advance(self) -> MenuProgress:
        """One gradient step of the present curve; after its last one the curve is chosen and kept."""
        index = len(self.facts)
        run = self._run or self._begin(index)
        self._run = run
        value = run.advance()
        self.step += 1
        progress = MenuProgress(index, run.step, value)
        if run.step == run.search.steps:
            curve, values = run.finish()
            arrays, kind = curve_arrays(curve, index)
            self.arrays |= arrays
            self.facts.append({**run.point.public(), **kind, **values})
            self._run = None
        return progress

    def _begin(self, index: int) -> CurveRun:
        point = self.points[index]
        rng = np.random.default_rng([self.seed, index])
        if isinstance(point.objective, AggregateError):
            short = self.search
            return CurveRun(point, rng, RationSearch(short.steps, short.markets, validation=short.validation))
        return CurveRun(point, rng, self.search)

    def description(self) -> dict[str, Any]:
        """Markets, seed, search, and what the distributions draw."""
        return {
            "points": [point.public() for point in self.points],
            "seed": self.seed,
            "search": asdict(self.search),
            "distributions": [fingerprint(point.distribution) for point in self.points],
        }

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Finished curves, and the one in the making."""
        arrays: dict[str, np.ndarray] = {f"done/{name}": array for name, array in self.arrays.items()}
        facts: dict[str, Any] = {"curves": self.facts, "run": None}
        if self._run is not None:
            own, facts["run"] = self._run.state()
            arrays |= own
        return arrays, facts

    def restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        """Takes back what `state` gave."""
        self.arrays = {name: tensor.numpy() for name, tensor in below(arrays, "done").items()}
        self.facts = list(facts["curves"])
        self._run = None
        if facts["run"] is not None:
            self._run = self._begin(len(self.facts))
            self._run.restore(arrays, facts["run"])

    def weights(self, seconds: float) -> Weights:
        """All curves."""
        facts = {
            "curves": self.facts,
            "seed": self.seed,
            "search": asdict(self.search),
            "seconds": round(seconds, 1),
        }
        return Weights(MfgMenuNet.name, self.arrays, facts)


def fluid_design(distribution: Distribution, clients: int, budget: float, objective: AggregateError) -> RationCurve:
    """The best menu of rations for very many clients: where a search starts."""
    if isinstance(objective, TypicalAggregateError):
        return graded_curve(distribution, clients, budget, objective)
    return two_step_curve(distribution, clients, budget, objective)


def curve_value(
    curve: RationCurve | MenuCurve, bids: Bids, budget: float, objective: Objective, epsilon_max: float
) -> float:
    """The mean objective of the exact mechanism with this curve on markets (markets, clients)."""
    if isinstance(curve, MenuCurve):
        outcome = MeanFieldMenu(curve, epsilon_max).run(bids, budget)
    else:
        trades = [
            face(curve, bids[k], budget, epsilon_max).trade(bids.valuation[k], bids.epsilon[k])
            for k in range(bids.shape[0])
        ]
        outcome = Outcome(np.stack([sold for sold, _ in trades]), np.stack([paid for _, paid in trades]))
    return float(np.mean(objective.value(outcome, bids)))


class _Smooth(ABC):
    """A curve whose objective has a gradient.

    Attributes:
        start: the curve that it began as.
    """

    start: MenuCurve | RationCurve

    @abstractmethod
    def parameters(self) -> list[Tensor]:
        """What is learned."""

    @abstractmethod
    def loss(self, bids: Bids, budget: float, width: float) -> tuple[Tensor, float]:
        """What is minimised on markets (L, N), and the objective to show. width: of the smoothing, in log-price."""

    @abstractmethod
    def exact(self) -> MenuCurve | RationCurve:
        """The curve as the mechanism takes it."""


class _SmoothShares(_Smooth):
    """A menu of shares: weights on a grid of relative prices, by a softmax."""

    def __init__(self, start: MenuCurve, point: DesignPoint, search: CurveSearch) -> None:
        self.start = start
        self.objective = point.objective
        self.epsilon_max = point.distribution.epsilon_max
        self.least_weight = search.least_weight
        self.prices = torch.tensor(np.geomspace(*search.span, search.prices))
        spacing = float(torch.log(self.prices[1] / self.prices[0]))
        distance = torch.log(self.prices[:, None] / torch.tensor(start.price)[None])
        spread = torch.exp(-0.5 * (distance / spacing).square()) @ torch.tensor(start.weight)
        self.logits = torch.log(spread + 1e-4).requires_grad_()

    @staticmethod
    def best_of_family(point: DesignPoint, sample: Bids, search: CurveSearch) -> _SmoothShares:
        """Starts from the posted price or two-step curve with the least loss on these markets."""
        family = [POSTED_PRICE] + [MenuCurve([1.0, r], [1 - w, w]) for r in _RATIOS for w in _SHARES]
        candidates = [_SmoothShares(curve, point, search) for curve in family]
        losses = [
            float(
                one._log_objective(
                    torch.tensor(c.price), torch.tensor(c.weight), sample, point.budget, search.widths[1]
                )
            )
            for one, c in zip(candidates, family, strict=True)
        ]
        return candidates[int(np.argmin(losses))]

    def parameters(self) -> list[Tensor]:
        return [self.logits]

    def loss(self, bids: Bids, budget: float, width: float) -> tuple[Tensor, float]:
        loss = self._log_objective(self.prices, torch.softmax(self.logits, 0), bids, budget, width)
        return loss, float(torch.exp(loss.detach()))

    def exact(self) -> MenuCurve:
        weights = torch.softmax(self.logits, 0).detach().numpy()
        keep = weights > self.least_weight
        return MenuCurve(self.prices.numpy()[keep], weights[keep] / weights[keep].sum())

    def _log_objective(self, prices: Tensor, weights: Tensor, bids: Bids, budget: float, width: float) -> Tensor:
        """Mean log of the objective, to be minimised."""
        sold = self._sales(prices, weights, bids, budget, width)
        if isinstance(self.objective, TotalEpsilon):
            return -sold.sum(-1).log().mean()
        if not isinstance(self.objective, AggregationError):
            raise ConfigurationError(
                f"no menu of shares can be learned for {self.objective.name!r}",
                "use total-epsilon or aggregation-error",
            )
        records = torch.tensor(bids.data_share * bids.clients)
        return aggregation_error(sold, records, self.objective.kappa, self.objective.heterogeneity).log().mean()

    def _sales(self, prices: Tensor, weights: Tensor, bids: Bids, budget: float, width: float) -> Tensor:
        """(L, N) ε sold at the level that spends each market's budget less one client's reserve.

        The level is found by bisection outside the graph; one Newton step inside it carries the implicit
        derivative of the level with respect to the weights.
        """
        log_valuation = torch.tensor(np.log(np.maximum(bids.valuation, 1e-9)))
        epsilon = torch.tensor(bids.epsilon)
        log_prices = prices.log()

        def share(log_level: Tensor) -> Tensor:
            return torch.sigmoid((log_level[..., None] + log_prices - log_valuation[..., None]) / width)

        def spend(log_level: Tensor) -> Tensor:
            supply = (epsilon[:, None, :] @ share(log_level))[:, 0]  # (L, M)
            return ((supply + self.epsilon_max) * weights * prices).sum(-1, keepdim=True) * log_level.exp()

        with torch.no_grad():
            low = torch.full((epsilon.shape[0], 1), -12.0, dtype=torch.float64)
            high = -low
            for _ in range(24):
                middle = (low + high) / 2
                within = spend(middle) <= budget
                low = torch.where(within, middle, low)
                high = torch.where(within, high, middle)
            nudge = 1e-3
            slope = (spend(low + nudge) - spend(low - nudge)) / (2 * nudge)
        level = low - (spend(low) - budget) / slope
        return (epsilon * (share(level) @ weights)).clamp_min(1e-9)


def _more_steps(start: RationCurve) -> tuple[list[float], list[float]]:
    """Log-prices and log-ratios of multiples for a curve of one or two steps, with room for more around them."""
    ration = float(np.log(start.price[-1]))
    bulk = float(np.log(start.price[0])) if start.steps > 1 else ration - 2.0
    jump = float(np.log(start.multiple[0])) if start.steps > 1 else 0.1
    prices = [*np.linspace(bulk - 1.0, bulk, _BELOW), *np.linspace(bulk, ration, _ABOVE + 2)[1:-1], ration]
    return prices, [0.05] * (_BELOW - 1) + [max(jump, 0.05)] + [0.03] * _ABOVE


def _same_steps(start: RationCurve) -> tuple[list[float], list[float]]:
    """Log-prices and log-ratios of multiples, as they are."""
    ratios = np.log(start.multiple[:-1] / start.multiple[1:])
    return np.log(start.price).tolist(), np.maximum(ratios, np.log(_LEAST_RATIO)).tolist()


class _SmoothCurve(_Smooth):
    """A menu of rations: prices and multiples of a few steps.

    Attributes:
        log_price: (M,) logarithms of prices, in any order while learning; read sorted.
        log_ratio: (M − 1,) logarithms of each multiple over the next one, before a softplus.
    """

    def __init__(self, start: RationCurve, epsilon_max: float, objective: AggregateError) -> None:
        prices, ratios = _more_steps(start) if start.steps <= 2 else _same_steps(start)
        self.log_price = torch.tensor(prices, dtype=torch.float64).requires_grad_()
        self.log_ratio = torch.tensor(np.log(np.expm1(ratios)), dtype=torch.float64).requires_grad_()
        self.start = start
        self.ceiling = start.ceiling
        self.epsilon_max = epsilon_max
        self.objective = objective
        nodes = np.geomspace(1e-7 * epsilon_max, epsilon_max, _STRENGTH_POINTS)
        self._log_epsilon = torch.tensor(np.log(nodes))
        self._log_mu = torch.tensor(np.log(objective.mu(nodes)))

    def parameters(self) -> list[Tensor]:
        return [self.log_price, self.log_ratio]

    def loss(self, bids: Bids, budget: float, width: float) -> tuple[Tensor, float]:
        error = self.errors(bids, budget, width).mean()
        return error.log(), float(error.detach())

    def prices(self) -> Tensor:
        """(M,) the unit prices of the steps, ascending."""
        return self.log_price.sort().values.exp()

    def multiples(self) -> Tensor:
        """(M,) the multiples of the steps, descending; the last one is 1."""
        steps = torch.nn.functional.softplus(self.log_ratio).flip(0).cumsum(0).flip(0)
        return torch.cat([steps, torch.zeros(1, dtype=torch.float64)]).exp()

    def exact(self) -> RationCurve:
        """The curve as the mechanism takes it: nearly equal steps are merged, the dearer price stays."""
        prices = self.prices().detach().numpy()
        multiples = self.multiples().detach().numpy()
        kept = [len(prices) - 1]
        for step in reversed(range(len(prices) - 1)):
            apart = multiples[step] / multiples[kept[-1]] > _LEAST_RATIO
            if apart and prices[step] < prices[kept[-1]]:
                kept.append(step)
        kept.reverse()
        return RationCurve(prices[kept], multiples[kept], ceiling=self.ceiling)

    def errors(self, bids: Bids, budget: float, width: float) -> Tensor:
        """(L,) the error of each market, cleared at the ration that spends its budget but for one reserve."""
        log_valuation = torch.tensor(np.log(np.maximum(bids.valuation, 1e-9)))[..., None]
        offered = torch.tensor(bids.epsilon)[..., None]
        prices = self.prices()
        multiples = self.multiples()
        sells = torch.sigmoid((prices.log() - log_valuation) / width)  # (L, N, M), rising with the price
        others = 1.0 - 1.0 / bids.clients

        def amounts(level: Tensor, limit: Tensor) -> Tensor:
            return torch.minimum(limit, level * multiples)

        def slices(sold: Tensor) -> Tensor:
            return sold - torch.cat([sold[..., 1:], torch.zeros_like(sold[..., :1])], -1)

        most = torch.full((1, 1, 1), self.epsilon_max, dtype=torch.float64)

        def spend(log_level: Tensor) -> Tensor:
            level = log_level.exp()[:, None, None]
            paid = (sells * prices * slices(amounts(level, offered))).sum((-1, -2))
            reserve = (prices * slices(amounts(level, most))).sum((-1, -2))
            return others * paid + reserve

        log_level = self._spending(spend, budget, bids.shape[0])
        top = float(np.log(min(self.epsilon_max, self.ceiling)))
        sold = amounts(log_level.clamp_max(top).exp()[:, None, None], offered)
        chosen = sells - torch.cat([torch.zeros_like(sells[..., :1]), sells[..., :-1]], -1)
        share = torch.tensor(bids.data_share)
        strength = (chosen * self._mu(sold)).sum(-1) * share * bids.clients
        total = strength.sum(-1)
        excess = strength / total[:, None] - share
        goal = self.objective
        if isinstance(goal, TypicalAggregateError):
            bias = bids.clients * excess.square().sum(-1)
        else:
            bias = excess.abs().sum(-1).square()
        return goal.kappa / goal.honest_share / total.square() + goal.heterogeneity**2 * bias

    def _spending(self, spend: Callable[[Tensor], Tensor], budget: float, markets: int) -> Tensor:
        """(L,) log of the level that spends the budget: bisection, then one Newton step that carries gradients."""
        with torch.no_grad():
            low = torch.full((markets,), float(np.log(self.epsilon_max)) - 20.0, dtype=torch.float64)
            high = torch.full((markets,), float(np.log(self.epsilon_max)), dtype=torch.float64)
            saturated = spend(high) <= budget
            for _ in range(_BISECTIONS):
                middle = (low + high) / 2
                fits = spend(middle) <= budget
                low = torch.where(fits, middle, low)
                high = torch.where(fits, high, middle)
            nudge = 1e-3
            slope = (spend(low + nudge) - spend(low - nudge)) / (2 * nudge)
        newton = low - (spend(low) - budget) / slope.clamp_min(1e-12)
        return torch.where(saturated, torch.full_like(low, float(np.log(self.epsilon_max))), newton)

    def _mu(self, epsilon: Tensor) -> Tensor:
        """μ(ε) by interpolation between logarithmic points; same shape."""
        x = epsilon.clamp_min(1e-12).log().clamp(self._log_epsilon[0], self._log_epsilon[-1])
        at = torch.searchsorted(self._log_epsilon, x.detach().contiguous()).clamp(1, _STRENGTH_POINTS - 1)
        left = self._log_epsilon[at - 1]
        right = self._log_epsilon[at]
        part = (x - left) / (right - left)
        return ((1 - part) * self._log_mu[at - 1] + part * self._log_mu[at]).exp()


# ---- one curve, or several on disk ----


@dataclass(frozen=True)
class Learned:
    """A curve, and what it achieved on the validation markets next to its start and a posted price.

    Attributes:
        start_value: of the fluid design, for rations; NaN for menus of shares.
    """

    curve: MenuCurve | RationCurve
    value: float
    start_value: float
    posted_price_value: float


def learn_curve(
    distribution: Distribution,
    clients: int,
    budget: float,
    objective: Objective,
    rng: np.random.Generator,
    search: CurveSearch | RationSearch = DEFAULT_SEARCH,
    report: Callable[[int, float], None] | None = None,
) -> Learned:
    """The best curve found for markets of `clients` clients drawn from `distribution` with this total budget.

    `report(step, objective)` is called after each gradient step.
    """
    run = CurveRun(DesignPoint(distribution, clients, budget, objective), rng, search)
    while run.step < search.steps:
        value = run.advance()
        if report is not None:
            report(run.step, value)
    curve, values = run.finish()
    return Learned(curve, values["value"], values.get("two_step_value", np.nan), values["posted_price_value"])


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


def learn_menus(
    points: Sequence[DesignPoint],
    out: Path,
    seed: int = 0,
    search: CurveSearch = DEFAULT_SEARCH,
    report: Callable[[MenuProgress], object] | None = None,
) -> LearnedMenus:
    """Learns a curve for each design point and writes them as weights; goes on from a checkpoint."""
    check_distributions([point.distribution for point in points])
    run = MenuTrainer(points, seed, search)
    done = finish(run, out, report)
    return LearnedMenus(done.weights, done.curve, run.facts, done.seconds, done.resumed_at // search.steps)
