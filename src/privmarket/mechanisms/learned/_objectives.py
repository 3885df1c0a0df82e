"""What a network is trained for: total ε, the aggregation error of problem P2, revenue, or an own objective.

Notation: W_i = data share, α_i = aggregation weight, n_i = records over the mean, c_i = κ/(n_i ε_i)².
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from privmarket._named import names_code
from privmarket._settings import HETEROGENEITY, KAPPA
from privmarket.errors import ConfigurationError
from privmarket.market import _objectives as market
from privmarket.mechanisms._registry import named_object
from privmarket.mechanisms.learned._markets import Markets, Trade

# Below this a sale is none: it keeps c_i finite, and so small a sale gets no weight.
LEAST_SALE = 1e-9


class TrainingObjective(ABC):
    """What the buyer wants, as a tensor with gradients. Write `value`.

    An own objective may also be a plain function `(markets, trade) -> (L,)`.
    """

    name: ClassVar[str]

    @abstractmethod
    def value(self, markets: Markets, trade: Trade) -> Tensor:
        """(L,) one figure for each market; larger is better.

        The figures of all markets of a batch are averaged, and regret is subtracted as a share of the budget. So
        each should be of the order of 1 in every market: divide by what a good rule would reach, as
        `reference_quantity(markets)` says it for total ε.
        """


ObjectiveFunction = Callable[[Markets, Trade], Tensor]
"""`(markets, trade) -> (L,)`, larger is better: a `TrainingObjective` as a function."""


@dataclass(frozen=True)
class EpsilonBought(TrainingObjective):
    """Σ ε over `reference_quantity`, so that no market outweighs another."""

    name: ClassVar[str] = "total-epsilon"

    def value(self, markets: Markets, trade: Trade) -> Tensor:
        """(L,) total ε over the reference quantity."""
        return trade.epsilon.sum(-1) / reference_quantity(markets)


@dataclass(frozen=True)
class AccurateAggregate(TrainingObjective):
    """The aggregation error E as 1 − ½·log(E/E₀).

    E₀ is the error if all N clients, equal in data, shared the reference quantity equally. Like total ε, the figure
    then rises by 1 % when 1 % more is bought from everybody.

    Attributes:
        kappa, heterogeneity: weights of noise and of bias.
    """

    kappa: float = KAPPA
    heterogeneity: float = HETEROGENEITY
    name: ClassVar[str] = "aggregation-error"

    def value(self, markets: Markets, trade: Trade) -> Tensor:
        """(L,) 1 − ½·log of the error over its reference."""
        reference = self.kappa * _clients(markets) / reference_quantity(markets).square()
        records = markets.data_size if markets.present is None else markets.data_size * markets.present
        error = aggregation_error(trade.epsilon, records, self.kappa, self.heterogeneity)
        return 1 - 0.5 * torch.log(error / reference)


@dataclass(frozen=True)
class Revenue(TrainingObjective):
    """The money paid over the budget: the paper's objective."""

    name: ClassVar[str] = "revenue"

    def value(self, markets: Markets, trade: Trade) -> Tensor:
        """(L,) Σ p / B."""
        return trade.payment.sum(-1) / markets.budget[:, 0]


@dataclass(frozen=True)
class _Function(TrainingObjective):
    function: ObjectiveFunction
    name: ClassVar[str] = "function"

    def value(self, markets: Markets, trade: Trade) -> Tensor:
        return self.function(markets, trade)


OBJECTIVES = (EpsilonBought.name, AccurateAggregate.name, Revenue.name)
ObjectiveLike = str | TrainingObjective | type[TrainingObjective] | ObjectiveFunction | market.Objective
"""Whatever `training_objective` makes an objective from."""


def training_objective(
    given: ObjectiveLike, kappa: float = KAPPA, heterogeneity: float = HETEROGENEITY
) -> TrainingObjective:
    """The objective that is meant.

    Args:
        given: one of `OBJECTIVES`, `package.module:Class` or `file.py:function`, a `TrainingObjective` or its
            class, a function `(markets, trade) -> (L,)`, or `TotalEpsilon` or `AggregationError` of
            `privmarket.market`.
        kappa, heterogeneity: of the aggregation error, when it is given by its name.

    Raises:
        ConfigurationError: there is no such objective.
    """
    if isinstance(given, str):
        if given == AccurateAggregate.name:
            return AccurateAggregate(kappa, heterogeneity)
        for built_in in (EpsilonBought, Revenue):
            if given == built_in.name:
                return built_in()
        if not names_code(given):
            raise ConfigurationError(
                f"unknown objective {given!r}", f"choose one of: {', '.join(OBJECTIVES)}, or give file.py:Class"
            )
        found = named_object("objective", given)
    else:
        found = given
    if isinstance(found, type) and issubclass(found, TrainingObjective):
        found = found()
    if isinstance(found, TrainingObjective):
        return found
    if isinstance(found, market.TotalEpsilon):
        return EpsilonBought()
    if isinstance(found, market.AggregationError):
        return AccurateAggregate(found.kappa, found.heterogeneity)
    if callable(found) and not isinstance(found, type):
        return _Function(found)
    raise ConfigurationError(
        f"objective {found!r} has no gradient", "give a TrainingObjective or a function (markets, trade) -> (L,)"
    )


def aggregation_error(sold: Tensor, records: Tensor, kappa: float, heterogeneity: float) -> Tensor:
    """(L,) E(ε, α) at the best weights, from sold ε and relative records, (L, N) each.

    The best weights are outside the graph: by the envelope theorem their own change has no first-order effect.
    """
    unit = kappa / (records.clamp_min(LEAST_SALE) * sold.clamp_min(LEAST_SALE)).square()
    share = records / records.sum(-1, keepdim=True)
    with torch.no_grad():
        alpha = best_weights(unit.double(), share.double(), heterogeneity).to(unit.dtype)
    bias = heterogeneity**2 * (alpha - share).abs().sum(-1).square()
    return (unit * alpha.square()).sum(-1) + bias


def reference_quantity(markets: Markets) -> Tensor:
    """(L,) Σε of the cheapest clients whose dearest valuation, paid to all of them, fits the budget.

    At least what the budget buys at the mean valuation: a small market may hold nobody who is cheap enough,
    and dividing by next to nothing would let it outweigh all others.
    """
    valuation, order = markets.valuation.sort(-1)
    bought = markets.epsilon.gather(-1, order).cumsum(-1)
    affordable = (valuation * bought <= markets.budget).to(bought.dtype)
    at_mean = markets.budget[:, 0] * _clients(markets) / markets.valuation.sum(-1).clamp_min(1e-12)
    least = torch.minimum(at_mean, markets.epsilon.sum(-1))
    return torch.maximum((bought * affordable).amax(-1), least)


def _clients(markets: Markets) -> Tensor | int:
    """How many clients each market has, empty seats not counted; (L,) where there may be such."""
    return markets.clients if markets.present is None else markets.present.sum(-1)


def best_weights(unit: Tensor, share: Tensor, heterogeneity: float, bisections: int = 18) -> Tensor:
    """(L, N) P2-optimal weights when everybody sells something, to the precision that a gradient needs.

    The same conditions as `AggregationError.optimal_weights`, with fewer bisections.
    """

    def at(nu: Tensor) -> Tensor:
        # At this μ the lower limits alone sum to 1, so the root lies below it.
        low = torch.zeros_like(nu)
        high = 2 / (1 / unit).sum(-1, keepdim=True)
        for _ in range(bisections):
            mu = (low + high) / 2
            enough = clipped(mu, nu).sum(-1, keepdim=True) >= 1
            low = torch.where(enough, low, mu)
            high = torch.where(enough, mu, high)
        return clipped(high, nu)

    def clipped(mu: Tensor, nu: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(share, mu / (2 * unit)), (mu + nu) / (2 * unit))

    steep = 8 * heterogeneity**2
    low = torch.zeros_like(unit[:, :1])
    high = torch.full_like(low, steep)
    for _ in range(bisections):
        nu = (low + high) / 2
        shortfall = (share - at(nu)).clamp_min(0).sum(-1, keepdim=True)
        too_low = nu < steep * shortfall
        low = torch.where(too_low, nu, low)
        high = torch.where(too_low, high, nu)
    weights = at(high)
    return weights / weights.sum(-1, keepdim=True)
