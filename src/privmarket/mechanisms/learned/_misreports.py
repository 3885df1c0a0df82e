"""How training searches for profitable misreports.

Two searches. `cheap_candidates` + `sign_steps`: a dozen guesses, then a few sign steps from the best; cheaper
and stronger than ascent from one start. `ascend`: the R plain projected gradient steps of the paper.
Evaluation uses neither of them, but `privmarket.market._attacks`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from privmarket.mechanisms.learned._markets import Trade

# What a set of misreports (valuation, epsilon), (..., L, D) each, earns.
Deviation = Callable[[Tensor, Tensor], Trade]

# The least share of its cap that a misreport may offer.
LEAST_OFFER = 0.02
# Where an ascent may begin: see `recipes.MisreportSearch`.
STARTS = ("others", "uniform", "truth")


@dataclass(frozen=True)
class Misreports:
    """One misreport per attacked client: valuation and cap, (L, D) each."""

    valuation: Tensor
    epsilon: Tensor


def cheap_candidates(valuation: Tensor, epsilon: Tensor, generator: torch.Generator) -> Misreports:
    """A dozen guesses per client, (12, L, D): near truth, far, somebody else's v, less ε, both."""

    def normal(scale: float, count: int) -> Tensor:
        return torch.exp(scale * torch.randn((count, *valuation.shape), generator=generator))

    def uniform(count: int) -> Tensor:
        return torch.rand((count, *valuation.shape), generator=generator)

    order = torch.randperm(valuation.numel(), generator=generator)
    others = valuation.reshape(-1)[order].reshape(valuation.shape)
    v = valuation[None]
    e = epsilon[None]
    shifts = (normal(0.03, 1), normal(0.1, 2), normal(0.4, 2), normal(0.03, 2))
    keep = torch.ones_like(v)
    return Misreports(
        torch.cat(
            [
                v * shifts[0],
                v * shifts[1],
                v * shifts[2],
                others[None],
                v * keep,
                v * keep,
                v * keep,
                v * shifts[3],
                others[None],
            ]
        ),
        torch.cat(
            [
                e.expand(6, *e.shape[1:]),
                e * (0.1 + 0.9 * uniform(2)),
                e * (0.9 + 0.1 * uniform(1)),
                e * (0.3 + 0.7 * uniform(2)),
                e * uniform(1).clamp_min(LEAST_OFFER),
            ]
        ),
    )


def best_of(deviation: Deviation, tried: Misreports, true_valuation: Tensor) -> Misreports:
    """The most profitable of (C, L, D) misreports, (L, D)."""
    with torch.no_grad():
        gain = deviation(tried.valuation, tried.epsilon).utility(true_valuation)
        best = gain.argmax(dim=0, keepdim=True)
    return Misreports(tried.valuation.gather(0, best).squeeze(0), tried.epsilon.gather(0, best).squeeze(0))


def sign_steps(
    deviation: Deviation,
    start: Misreports,
    valuation: Tensor,
    epsilon: Tensor,
    sizes: tuple[float, ...] = (0.06, 0.03, 0.015),
) -> Misreports:
    """Steps of fixed relative size along the sign of the utility's gradient; keeps the best point seen."""
    path = _Path(deviation, start, valuation)
    for size in sizes:
        now, slope_v, slope_e = path.slopes()
        path.go_to(
            now.valuation * (1 + size * slope_v.sign()),
            torch.minimum(now.epsilon * (1 + size * slope_e.sign()), epsilon),
        )
    return path.best()


def ascend(
    deviation: Deviation,
    start: Misreports,
    valuation: Tensor,
    epsilon: Tensor,
    steps: int = 25,
    step_size: float = 0.01,
) -> Misreports:
    """R steps of projected gradient ascent over v and ε, the best point of the path.

    Implements: Eq. (pga) of [Sun2026]; warm-started when `start` comes from an earlier visit.
    """
    path = _Path(deviation, start, valuation)
    for _ in range(steps):
        now, slope_v, slope_e = path.slopes()
        path.go_to(
            (now.valuation + step_size * slope_v).clamp_min(0.0),
            torch.minimum(torch.maximum(now.epsilon + step_size * slope_e, LEAST_OFFER * epsilon), epsilon),
        )
    return path.best()


def regret(misreported: Trade, truthful: Trade, valuation: Tensor) -> Tensor:
    """(L, D) what the misreport gains over the truth, at least 0. Eq. (mfg-regret) of [Sun2026]."""
    return torch.relu(misreported.utility(valuation) - truthful.utility(valuation))


def uniform_reports(valuation: Tensor, epsilon: Tensor, generator: torch.Generator) -> Misreports:
    """(L, D) reports drawn evenly: v up to the largest valuation of the profile, ε up to the own cap.

    Implements: the start of Eq. (pga) of [Sun2026].
    """
    even_v, even_e = torch.rand((2, *valuation.shape), generator=generator)
    return Misreports(even_v * valuation.amax(-1, keepdim=True), even_e.clamp_min(LEAST_OFFER) * epsilon)


def worst_group_excess(regret: Tensor, valuation: Tensor, groups: int = 5) -> Tensor:
    """(L,) how far the regret of the worst group lies above the mean regret; groups are fifths of valuations.

    Implements: the group-regularised regret that [Sun2026] names under L2 and leaves open.

    Args:
        regret: (L, D) of the attacked clients; valuation: (L, D) by which they are sorted into groups.
    """
    by_value = regret.gather(-1, valuation.argsort(-1))
    means = torch.stack([part.mean(-1) for part in by_value.tensor_split(min(groups, regret.shape[-1]), -1)])
    return means.amax(0) - regret.mean(-1)


class _Path:
    """The points of an ascent over misreports, and for each client the best one so far.

    The utility at a point comes with its gradient, so no point but the last is evaluated twice.
    """

    def __init__(self, deviation: Deviation, start: Misreports, true_valuation: Tensor) -> None:
        self.deviation = deviation
        self.now = start
        self.true_valuation = true_valuation
        self.kept = start
        self.kept_gain = torch.full_like(start.valuation, -torch.inf)

    def slopes(self) -> tuple[Misreports, Tensor, Tensor]:
        """The present point, and the utility's slopes in v and ε there, (L, D) each."""
        v = self.now.valuation.clone().requires_grad_()
        e = self.now.epsilon.clone().requires_grad_()
        with torch.enable_grad():
            gain = self.deviation(v, e).utility(self.true_valuation)
            slope_v, slope_e = torch.autograd.grad(gain.sum(), (v, e))
        self._keep(gain.detach())
        return self.now, slope_v, slope_e

    def go_to(self, valuation: Tensor, epsilon: Tensor) -> None:
        self.now = Misreports(valuation.detach(), epsilon.detach())

    def best(self) -> Misreports:
        """(L, D) the best point, the present one included."""
        with torch.no_grad():
            self._keep(self.deviation(self.now.valuation, self.now.epsilon).utility(self.true_valuation))
        return self.kept

    def _keep(self, gain: Tensor) -> None:
        better = gain > self.kept_gain
        self.kept_gain = torch.where(better, gain, self.kept_gain)
        self.kept = Misreports(
            torch.where(better, self.now.valuation, self.kept.valuation),
            torch.where(better, self.now.epsilon, self.kept.epsilon),
        )
