"""What the buyer wants, as tensors with gradients: total ε, the aggregation error of problem P2, or revenue.

Notation: W_i = data share, α_i = aggregation weight, n_i = records over the mean, c_i = κ/(n_i ε_i)².
"""

from __future__ import annotations

import torch
from torch import Tensor

from privmarket.mechanisms.learned._market_tensors import Markets
from privmarket.mechanisms.learned._networks import Trade

OBJECTIVES = ("total-epsilon", "aggregation-error", "revenue")
# Below this a sale is none: it keeps c_i finite, and so small a sale gets no weight.
LEAST_SALE = 1e-9


def buyer_value(name: str, markets: Markets, trade: Trade, kappa: float, heterogeneity: float) -> Tensor:
    """(L,) the buyer's objective against a reference, so that no market outweighs another; larger is better.

    The aggregation error E counts as 1 − ½·log(E/E₀), with E₀ the error if all N clients, equal in data, shared
    the reference quantity equally: like total ε, it then rises by 1 % when 1 % more is bought from everybody.
    """
    if name == "revenue":
        return trade.payment.sum(-1) / markets.budget[:, 0]
    quantity = reference_quantity(markets)
    if name == "total-epsilon":
        return trade.epsilon.sum(-1) / quantity
    reference = kappa * _clients(markets) / quantity.square()
    records = markets.data_size if markets.present is None else markets.data_size * markets.present
    error = aggregation_error(trade.epsilon, records, kappa, heterogeneity)
    return 1 - 0.5 * torch.log(error / reference)


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
        low, high = torch.zeros_like(nu), 2 / (1 / unit).sum(-1, keepdim=True)
        for _ in range(bisections):
            mu = (low + high) / 2
            enough = clipped(mu, nu).sum(-1, keepdim=True) >= 1
            low, high = torch.where(enough, low, mu), torch.where(enough, mu, high)
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
        low, high = torch.where(too_low, nu, low), torch.where(too_low, high, nu)
    weights = at(high)
    return weights / weights.sum(-1, keepdim=True)
