"""DM-RegretNet: discrete privacy levels, a softmax over them in training and one of them at run time.

Notation: M levels, level m sells the fraction m/M of the offered ε; τ = temperature.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from privmarket.mechanisms.learned.markets import Markets
from privmarket.mechanisms.learned.networks import Trade, multilayer
from privmarket.mechanisms.learned.regretnet import (
    SEAT_FEATURES,
    ConcatenatedNetwork,
    SeatedMechanism,
    seat_features,
)


class LevelsNetwork(ConcatenatedNetwork):
    """Per seat a distribution over M + 1 levels, and a share of the budget by a softmax over the seats.

    Implements: DM-RegretNet of [Zheng2022].
    Deviation: one-hot levels are drawn by argmax; a client whose share of the budget is below its cost for the
        chosen level sells nothing, so individual rationality holds in the outcome.
    """

    def __init__(
        self,
        seats: int = 10,
        levels: int = 8,
        temperature: float = 0.5,
        hidden: int = 128,
        violation_weight: float = 0.2,
    ) -> None:
        super().__init__()
        self.seats, self.levels, self.temperature, self.hidden = seats, levels, temperature, hidden
        self.violation_weight = violation_weight
        self.net = multilayer(
            (SEAT_FEATURES * seats, hidden, hidden, hidden, seats * (levels + 1) + seats + 1), last_gain=0.5
        )

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "seats": self.seats,
            "levels": self.levels,
            "temperature": self.temperature,
            "hidden": self.hidden,
            "violation_weight": self.violation_weight,
        }

    def _heads(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor]:
        """Level probabilities (..., L, seats, M + 1) and payments (..., L, seats)."""
        head = self.net(seat_features(markets, valuation, epsilon).flatten(-2))
        count = self.seats * (self.levels + 1)
        logits = head[..., :count].unflatten(-1, (self.seats, self.levels + 1))
        chance = torch.softmax(logits / self.temperature, dim=-1)
        money = head[..., count:]
        if markets.present is not None:
            nobody = torch.zeros_like(money[..., :-1]).masked_fill(markets.present < 0.5, -1e9)
            money = torch.cat((money[..., :-1] + nobody, money[..., -1:]), dim=-1)
        # The last entry is what stays unspent.
        payment = markets.budget * torch.softmax(money, dim=-1)[..., :-1]
        return chance, payment

    def _fractions(self, like: Tensor) -> Tensor:
        """(M + 1,) the share of ε that each level sells."""
        return torch.arange(self.levels + 1, dtype=like.dtype) / self.levels

    def outcome(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> Trade:
        """Expected sale over the levels: what training differentiates."""
        chance, payment = self._heads(markets, valuation, epsilon)
        return Trade(epsilon * (chance @ self._fractions(chance)), payment)

    def extra_loss(self, markets: Markets) -> Tensor:
        """Mean distance of the level distributions from one-hot: the deterministic violation."""
        chance, _ = self._heads(markets, markets.valuation, markets.epsilon)
        return self.violation_weight * (1 - chance.amax(-1)).mean()

    def final(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> Trade:
        """The likeliest level, or nothing if that would not pay the reported cost."""
        chance, payment = self._heads(markets, valuation, epsilon)
        sold = epsilon * self._fractions(chance)[chance.argmax(-1)]
        worth_it = (payment >= valuation * sold) & (sold > 0)
        zero = torch.zeros_like(sold)
        return Trade(torch.where(worth_it, sold, zero), torch.where(worth_it, payment, zero))


class DmRegretNet(SeatedMechanism):
    """Learned with discrete privacy levels, in groups of its seats.

    Implements: DM-RegretNet of [Zheng2022].
    """

    name: ClassVar[str] = "dm-regretnet"
    network_class = LevelsNetwork
