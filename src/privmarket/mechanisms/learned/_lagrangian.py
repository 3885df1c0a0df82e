"""Multipliers for the regret constraint: one per class of market, steered to a stated regret budget."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Steering:
    """How multipliers move.

    Attributes:
        regret_budget: regret as a share of the money budget that is accepted, by class of market size
            (small markets first); 0 asks for none at all, and then λ ← λ + ρ·regret, plain dual ascent.
        first: λ at the start. A large one collapses to buying nothing, because that has no regret.
        rate: how fast log λ moves, up while regret is above its budget, at a third of that below.
        penalty: ρ at the start, grown by `growth` every `growth_every` steps up to `penalty_max`.
    """

    regret_budget: tuple[float, ...] = (0.004, 0.002, 0.001, 0.001, 0.001)
    first: float = 10.0
    rate: float = 0.03
    penalty: float = 1.0
    growth: float = 1.5
    growth_every: int = 500
    penalty_max: float = 100.0

    def penalty_at(self, step: int) -> float:
        """ρ, the weight of the squared regret, at this step of the training."""
        return float(min(self.penalty_max, self.penalty * self.growth ** (step // self.growth_every)))


class Multipliers:
    """λ and a running mean of the regret for each class of market, (laws · sizes,) each."""

    def __init__(self, laws: int, steering: Steering) -> None:
        self.steering = steering
        self.target = torch.tensor(steering.regret_budget).repeat(laws)
        self.value = torch.full_like(self.target, steering.first)
        self.seen = self.target.clone()

    def loss(self, regret: Tensor, of: Tensor, step: int) -> Tensor:
        """Mean over classes present of λ·rgt + ρ/2·rgt².

        Implements: the augmented Lagrangian of [Dutting2024], L_AL of [Sun2026].

        Args:
            regret: (L,) regret of each profile as a share of its budget.
            of: (L,) class of each profile.
        """
        mean, present = _class_means(regret, of, self.value.numel())
        penalty = self.steering.penalty_at(step)
        terms = self.value * mean + 0.5 * penalty * mean.square()
        return (terms * present).sum() / present.sum()

    def update(self, regret: Tensor, of: Tensor, step: int) -> None:
        """Moves each λ towards the class's regret budget: up where the regret passes it, down where it does not.

        Args:
            regret: (L,) regret of each profile as a share of its budget.
            of: (L,) class of each profile.
        """
        mean, present = _class_means(regret.detach(), of, self.value.numel())
        self.seen = torch.where(present > 0, 0.9 * self.seen + 0.1 * mean, self.seen)
        ascent = self.value + present * self.steering.penalty_at(step) * mean
        drift = (self.seen / self.target.clamp_min(1e-12) - 1).clamp(-1 / 3, 1.0)
        steered = self.value * torch.exp(self.steering.rate * drift * present)
        self.value = torch.where(self.target > 0, steered, ascent).clamp(1e-3, 1e4)


def _class_means(values: Tensor, of: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """(classes,) mean per class (0 where absent) and whether it is present."""
    count = torch.zeros(classes).index_add(0, of, torch.ones_like(values))
    total = torch.zeros(classes).index_add(0, of, values)
    return total / count.clamp_min(1.0), (count > 0).to(values.dtype)
