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
    FARTHEST,
    FIRST_THRESHOLD,
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
            (SEAT_FEATURES * seats, hidden, hidden, hidden, seats * (levels + 1) + 2 * seats), last_gain=0.1
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
        """Level probabilities (..., L, seats, M + 1) and payments (..., L, seats).

        Starts at a posted price for all levels alike: the logit of a level grows with the distance of the report
        from a threshold, and the budget's softmax starts at what that price would pay.
        """
        head = self.net(seat_features(markets, valuation, epsilon).flatten(-2))
        level, height, money = head.split((self.seats * (self.levels + 1), self.seats, self.seats), dim=-1)
        threshold = FIRST_THRESHOLD * torch.exp(height.clamp(-4.0, 4.0))
        distance = (threshold - valuation / markets.unit) / (0.1 * threshold)
        fractions = self._fractions(head)
        logits = fractions * distance.clamp(FARTHEST, -FARTHEST)[..., None]
        logits = logits + level.unflatten(-1, (self.seats, self.levels + 1))
        chance = torch.softmax(logits / self.temperature, dim=-1)
        price = threshold * markets.unit * epsilon * (chance @ fractions) / markets.budget
        unspent = torch.relu(1 - price.sum(-1, keepdim=True)) + 1e-3
        shares = torch.cat(((price + 1e-12).log() + money, unspent.log()), dim=-1)
        return chance, markets.budget * torch.softmax(shares, dim=-1)[..., :-1]

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
