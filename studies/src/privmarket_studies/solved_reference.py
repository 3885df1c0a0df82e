"""A solved mean-field game as the reference of a training: its payments and its value function."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privmarket.market._bids import Array
from privmarket.meanfield import Equilibrium
from privmarket.mechanisms.learned._markets import Markets


@dataclass(frozen=True, eq=False)
class SolvedReference:
    """Implements the `SolvedMarket` protocol of `privmarket.mechanisms.learned._losses`.

    A report (v, ε) is paid what the game pays v per unit of its sale cap, times ε; ε is also the budget that the
    client still has. So the game's sale cap should be the mean offer in training: its prices are those
    of a market of that size. The game knows one budget per client; money is scaled to each market's own.

    Attributes:
        equilibrium: the solved game; its distribution should be that of the training.
        time: the round, from 0, whose price is meant.
    """

    equilibrium: Equilibrium
    time: float = 0.0

    def payment(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> Tensor:
        """(L, D) p̃(v; μ_t)·ε/cap."""
        money = self._money(markets)
        paid = self.equilibrium.payment(_array(valuation / money), self.time)
        cap = self.equilibrium.problem.market.most_sold
        return money * torch.as_tensor(paid, dtype=epsilon.dtype) * epsilon / cap

    def value(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> Tensor:
        """(L, D) Φ(v, r = ε, t)."""
        money = self._money(markets)
        surface = self.equilibrium.value_function()
        worth = surface(_array(valuation / money), _array(epsilon.expand_as(valuation)), self.time)
        return money * torch.as_tensor(worth, dtype=epsilon.dtype)

    def _money(self, markets: Markets) -> Tensor:
        """(L, 1) how much more money a client of this market meets than one of the game."""
        return markets.budget / markets.clients / self.equilibrium.problem.budget_per_client


def _array(tensor: Tensor) -> Array:
    return np.asarray(tensor.detach().double().numpy())
