"""Learning a ration curve by gradient, for a buyer that wants an accurate sum under aggregate trust.

Prices and multiples of a few steps move together. Sampled markets are cleared at the ration that spends the budget,
with prices smoothed so that the error has a gradient; the width of the smoothing shrinks. The search starts from
the best menu in the fluid limit (two steps, or graded ones for the typical error), and the exact mechanism on fresh
markets decides between where it started, where it ended and a posted price for everything.

Notation: see `market._menus`; A_m = min(ε, a_m(ℓ)), L = markets, N = clients, M = steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privmarket.market._bids import Bids
from privmarket.market._distributions import Distribution
from privmarket.market._menus import POSTED_PRICE, MenuCurve, RationCurve
from privmarket.market._objectives import AggregateError, TypicalAggregateError
from privmarket.market._outcome import Outcome
from privmarket.market._ration_design import graded_curve, two_step_curve
from privmarket.mechanisms._mean_field_menu import MeanFieldMenu
from privmarket.mechanisms._ration_menu import face

# Steps beyond the ration: below, at and above the price of the design's bulk.
_BELOW, _ABOVE = 3, 2
_STRENGTH_POINTS = 512
_BISECTIONS = 30
# Multiples that differ by less are one step.
_LEAST_RATIO = 1.005


@dataclass(frozen=True)
class RationSearch:
    """How long to search.

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


@dataclass(frozen=True)
class LearnedRation:
    """A curve, and what it achieved on the validation markets next to its start and a posted price."""

    curve: RationCurve | MenuCurve
    value: float
    start_value: float
    posted_price_value: float


def learn_ration_curve(
    law: Distribution,
    clients: int,
    budget: float,
    objective: AggregateError,
    rng: np.random.Generator,
    search: RationSearch,
    report: Callable[[int, float], None] | None = None,
) -> LearnedRation:
    """The best curve found for markets of `clients` clients drawn from `law` with this total budget.

    `report(step, objective)` is called after each gradient step.
    """
    start = fluid_design(law, clients, budget, objective)
    refined = _descend(law, clients, budget, objective, start, rng, search, report)
    fresh = law.sample(rng, clients, (search.validation,))
    tried: list[RationCurve | MenuCurve] = [POSTED_PRICE, start, refined]
    values = [curve_value(curve, fresh, budget, objective, law.epsilon_max) for curve in tried]
    best = int(np.argmin(values))
    return LearnedRation(tried[best], values[best], values[1], values[0])


def fluid_design(law: Distribution, clients: int, budget: float, objective: AggregateError) -> RationCurve:
    """The best menu for very many clients: where a search starts."""
    if isinstance(objective, TypicalAggregateError):
        return graded_curve(law, clients, budget, objective)
    return two_step_curve(law, clients, budget, objective)


def curve_value(
    curve: RationCurve | MenuCurve, bids: Bids, budget: float, objective: AggregateError, epsilon_max: float
) -> float:
    """The mean error of the exact mechanism with this curve on markets (markets, clients)."""
    if isinstance(curve, MenuCurve):
        outcome = MeanFieldMenu(curve, epsilon_max).run(bids, budget)
    else:
        trades = [
            face(curve, bids[k], budget, epsilon_max).trade(bids.valuation[k], bids.epsilon[k])
            for k in range(bids.shape[0])
        ]
        outcome = Outcome(np.stack([sold for sold, _ in trades]), np.stack([paid for _, paid in trades]))
    return float(objective.value(outcome, bids).mean())


def _descend(
    law: Distribution,
    clients: int,
    budget: float,
    objective: AggregateError,
    start: RationCurve,
    rng: np.random.Generator,
    search: RationSearch,
    report: Callable[[int, float], None] | None,
) -> RationCurve:
    curve = _SmoothCurve(start, law.epsilon_max, objective)
    optimizer = torch.optim.Adam([curve.log_price, curve.log_ratio], lr=search.learning_rate)
    first, last = search.widths
    for step in range(search.steps):
        done = step / search.steps
        for group in optimizer.param_groups:
            group["lr"] = search.learning_rate * (1 - 0.9 * done)
        bids = law.sample(rng, clients, (search.markets,))
        error = curve.errors(bids, budget, first * (last / first) ** done).mean()
        optimizer.zero_grad()
        error.log().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if report is not None:
            report(step + 1, float(error.detach()))
    return curve.exact()


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


class _SmoothCurve:
    """A ration curve whose error has a gradient.

    Attributes:
        log_price: (M,) logarithms of prices, in any order while learning; read sorted.
        log_ratio: (M − 1,) logarithms of each multiple over the next one, before a softplus.
    """

    def __init__(self, start: RationCurve, epsilon_max: float, objective: AggregateError) -> None:
        prices, ratios = _more_steps(start) if start.steps <= 2 else _same_steps(start)
        self.log_price = torch.tensor(prices, dtype=torch.float64).requires_grad_()
        self.log_ratio = torch.tensor(np.log(np.expm1(ratios)), dtype=torch.float64).requires_grad_()
        self.ceiling, self.epsilon_max = start.ceiling, epsilon_max
        self.objective = objective
        nodes = np.geomspace(1e-7 * epsilon_max, epsilon_max, _STRENGTH_POINTS)
        self._log_epsilon = torch.tensor(np.log(nodes))
        self._log_mu = torch.tensor(np.log(objective.mu(nodes)))

    def prices(self) -> Tensor:
        """(M,) the unit prices of the steps, ascending."""
        return self.log_price.sort().values.exp()

    def multiples(self) -> Tensor:
        """(M,) the multiples of the steps, descending; the last one is 1."""
        steps = torch.nn.functional.softplus(self.log_ratio).flip(0).cumsum(0).flip(0)
        return torch.cat([steps, torch.zeros(1, dtype=torch.float64)]).exp()

    def exact(self) -> RationCurve:
        """The curve as the mechanism takes it: nearly equal steps are merged, the dearer price stays."""
        prices, multiples = self.prices().detach().numpy(), self.multiples().detach().numpy()
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
        prices, multiples = self.prices(), self.multiples()
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
        excess, goal = strength / total[:, None] - share, self.objective
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
                low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
            nudge = 1e-3
            slope = (spend(low + nudge) - spend(low - nudge)) / (2 * nudge)
        newton = low - (spend(low) - budget) / slope.clamp_min(1e-12)
        return torch.where(saturated, torch.full_like(low, float(np.log(self.epsilon_max))), newton)

    def _mu(self, epsilon: Tensor) -> Tensor:
        """μ(ε) by interpolation between logarithmic points; same shape."""
        x = epsilon.clamp_min(1e-12).log().clamp(self._log_epsilon[0], self._log_epsilon[-1])
        at = torch.searchsorted(self._log_epsilon, x.detach().contiguous()).clamp(1, _STRENGTH_POINTS - 1)
        left, right = self._log_epsilon[at - 1], self._log_epsilon[at]
        part = (x - left) / (right - left)
        return ((1 - part) * self._log_mu[at - 1] + part * self._log_mu[at]).exp()
