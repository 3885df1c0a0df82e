"""Learning a menu curve by gradient, for a law of clients and the buyer's objective.

The curve is a softmax over a grid of relative prices. Sampled markets are cleared at the price level that
spends the budget, with thresholds smoothed so that the objective has a gradient; the width of the smoothing
shrinks to almost nothing. The objective has several local optima (one posted price is one of them whenever the
bias counts), so the search starts from the best of a small family of two-step curves, and the exact mechanism
on fresh markets decides between where it started, where it ended and a posted price.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privmarket.errors import ConfigurationError
from privmarket.market._distributions import Distribution
from privmarket.market._menus import POSTED_PRICE, MenuCurve
from privmarket.market._objectives import AggregationError, Objective, TotalEpsilon
from privmarket.mechanisms._mean_field_menu import MeanFieldMenu
from privmarket.mechanisms.learned._buyer import aggregation_error

_RATIOS = (1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0)
_SHARES = (0.05, 0.1, 0.2, 0.3, 0.45)


@dataclass(frozen=True)
class CurveSearch:
    """How long and how finely to search.

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
class Learned:
    """A curve, and what it achieved on the validation markets next to a posted price."""

    curve: MenuCurve
    value: float
    posted_price_value: float


def learn_curve(
    law: Distribution,
    clients: int,
    budget: float,
    objective: Objective,
    rng: np.random.Generator,
    search: CurveSearch = DEFAULT_SEARCH,
    report: Callable[[int, float], None] | None = None,
) -> Learned:
    """The best curve found for markets of `clients` clients drawn from `law` with this total budget.

    `report(step, objective)` is called after each gradient step.
    """
    sample = _Sample.draw(law, clients, budget, search.markets, rng)
    family = [POSTED_PRICE] + [MenuCurve([1.0, r], [1 - w, w]) for r in _RATIOS for w in _SHARES]
    losses = [_curve_loss(sample, curve, objective, search.widths[1]) for curve in family]
    start = family[int(np.argmin(losses))]
    refined = _descend(law, clients, budget, objective, start, rng, search, report)
    fresh = law.sample(rng, clients, (search.validation,))

    def value(curve: MenuCurve) -> float:
        outcome = MeanFieldMenu(curve, law.epsilon_max).run(fresh, budget)
        return float(np.mean(objective.value(outcome, fresh)))

    tried = [POSTED_PRICE, start, refined]
    values = [value(curve) for curve in tried]
    best = int(np.argmax(values) if objective.larger_is_better else np.argmin(values))
    return Learned(tried[best], values[best], values[0])


@dataclass(frozen=True)
class _Sample:
    """The markets on which a curve is judged, as tensors (L, N), and their common budget."""

    log_valuation: Tensor
    epsilon: Tensor
    records: Tensor
    budget: float
    epsilon_max: float

    @staticmethod
    def draw(law: Distribution, clients: int, budget: float, markets: int, rng: np.random.Generator) -> _Sample:
        bids = law.sample(rng, clients, (markets,))
        return _Sample(
            torch.tensor(np.log(np.maximum(bids.valuation, 1e-9))),
            torch.tensor(bids.epsilon),
            torch.tensor(bids.data_share * clients),
            budget,
            law.epsilon_max,
        )


def _descend(
    law: Distribution,
    clients: int,
    budget: float,
    objective: Objective,
    start: MenuCurve,
    rng: np.random.Generator,
    search: CurveSearch,
    report: Callable[[int, float], None] | None,
) -> MenuCurve:
    prices = torch.tensor(np.geomspace(*search.span, search.prices))
    spacing = float(torch.log(prices[1] / prices[0]))
    distance = torch.log(prices[:, None] / torch.tensor(start.price)[None])
    spread = torch.exp(-0.5 * (distance / spacing).square()) @ torch.tensor(start.weight)
    logits = torch.log(spread + 1e-4).requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=search.learning_rate)
    first, last = search.widths
    for step in range(search.steps):
        done = step / search.steps
        for group in optimizer.param_groups:
            group["lr"] = search.learning_rate * (1 - 0.9 * done)
        sample = _Sample.draw(law, clients, budget, search.markets, rng)
        width = first * (last / first) ** done
        loss = _loss(_smoothed_sales(sample, prices, torch.softmax(logits, 0), width), sample, objective)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if report is not None:
            report(step + 1, float(torch.exp(loss.detach())))
    weights = torch.softmax(logits, 0).detach().numpy()
    keep = weights > search.least_weight
    return MenuCurve(prices.numpy()[keep], weights[keep] / weights[keep].sum())


def _curve_loss(sample: _Sample, curve: MenuCurve, objective: Objective, width: float) -> float:
    sold = _smoothed_sales(sample, torch.tensor(curve.price), torch.tensor(curve.weight), width)
    return float(_loss(sold, sample, objective))


def _smoothed_sales(sample: _Sample, prices: Tensor, weights: Tensor, width: float) -> Tensor:
    """(L, N) ε sold at the level that spends each market's budget less one client's reserve.

    The level is found by bisection outside the graph; one Newton step inside it carries the implicit
    derivative of the level with respect to the weights.
    """
    log_prices = prices.log()

    def share(log_level: Tensor) -> Tensor:
        return torch.sigmoid((log_level[..., None] + log_prices - sample.log_valuation[..., None]) / width)

    def spend(log_level: Tensor) -> Tensor:
        supply = (sample.epsilon[:, None, :] @ share(log_level))[:, 0]  # (L, K)
        return ((supply + sample.epsilon_max) * weights * prices).sum(-1, keepdim=True) * log_level.exp()

    with torch.no_grad():
        low = torch.full((sample.epsilon.shape[0], 1), -12.0, dtype=torch.float64)
        high = -low
        for _ in range(24):
            middle = (low + high) / 2
            within = spend(middle) <= sample.budget
            low, high = torch.where(within, middle, low), torch.where(within, high, middle)
        nudge = 1e-3
        slope = (spend(low + nudge) - spend(low - nudge)) / (2 * nudge)
    level = low - (spend(low) - sample.budget) / slope
    return (sample.epsilon * (share(level) @ weights)).clamp_min(1e-9)


def _loss(sold: Tensor, sample: _Sample, objective: Objective) -> Tensor:
    """Mean log of the objective, to be minimised."""
    if isinstance(objective, TotalEpsilon):
        return -sold.sum(-1).log().mean()
    if not isinstance(objective, AggregationError):
        raise ConfigurationError(
            f"no menu of shares can be learned for {objective.name!r}", "use total-epsilon or aggregation-error"
        )
    return aggregation_error(sold, sample.records, objective.kappa, objective.heterogeneity).log().mean()
