"""The two mean-field terms of the paper's loss: payment alignment and the value critic.

Notation: K resampled opponent profiles, ν the population statistic, Φ the critic's value in units of B/N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from privmarket.mechanisms.learned._market_tensors import Markets
from privmarket.mechanisms.learned._misreports import Misreports
from privmarket.mechanisms.learned._networks import AuctionNetwork, Trade, multilayer


class SolvedMarket(Protocol):
    """What a solved mean-field game says about one client's report. Solvers live in a layer not known here."""

    def payment(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> Tensor:
        """(L, D) what a client with this report is paid in the limit of many clients."""
        ...

    def value(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> Tensor:
        """(L, D) what the rest of the game is worth to it."""
        ...


@dataclass(frozen=True)
class Alignment:
    """L_MFG: payments should be what a client expects when its opponents are drawn anew.

    Attributes:
        resamples: K.
        weight: λ_MFG at the end of the annealing; it starts at 0.
        anneal_steps: how many steps the weight takes to get there.
        moment: β, the weight of the budget moment.
        huber: δ of the Huber loss.
        valuation_power: γ in ω ∝ v^γ.
        profiles: how many profiles of a batch are aligned.
        reference: "resampled" opponents, or "solved": the payment that a `SolvedMarket` states.
    """

    resamples: int = 32
    weight: float = 0.01
    anneal_steps: int = 2000
    moment: float = 0.5
    huber: float = 1.0
    valuation_power: float = 0.0
    profiles: int = 2
    reference: str = "resampled"

    def weight_at(self, step: int) -> float:
        """The weight of the alignment loss at this step: it rises from 0 to `weight` over `anneal_steps`."""
        return self.weight * min(1.0, step / max(1, self.anneal_steps))


_ROWS_AT_ONCE = 8192  # clients of resampled profiles that are encoded together


def mean_field_payment(
    network: AuctionNetwork, markets: Markets, who: Tensor, resamples: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mean and spread over K draws of what clients `who` are paid against resampled opponents, (L, D) each.

    The opponents of profile l are drawn with replacement from profile l. Client i takes seat i of each drawn
    profile, which is a unilateral deviation there, so any network can be asked.

    Implements: Eq. (mf-payment) of [Sun2026].
    Deviation: data size and accuracy stay with the seats. They are public, client i sits in its own seat, and
        training draws them independently of (v, ε), so that drawing them anew would give the same law of opponents.
    """
    shape = markets.valuation.shape
    drawn = torch.stack([torch.randint(shape[1], shape, generator=generator) for _ in range(resamples)])
    together = max(1, _ROWS_AT_ONCE // markets.valuation.numel())
    seen = []
    with torch.no_grad():
        for seats in torch.split(drawn, together):
            many = _repeated(markets, len(seats))
            flat = seats.reshape(-1, shape[1])
            opponents = replace(
                many, valuation=many.valuation.gather(1, flat), epsilon=many.epsilon.gather(1, flat)
            )
            encoded = network.encode(opponents)
            mine = network.deviate(encoded, opponents, many.valuation[:, who], many.epsilon[:, who], who)
            seen.append(mine.payment.reshape(len(seats), shape[0], -1))
    payments = torch.cat(seen)
    return payments.mean(0), payments.std(0) if resamples > 1 else torch.zeros_like(payments[0])


def _repeated(markets: Markets, times: int) -> Markets:
    """The same L markets again and again, (times · L, N)."""
    there = markets.present
    return replace(
        markets,
        valuation=markets.valuation.repeat(times, 1),
        epsilon=markets.epsilon.repeat(times, 1),
        data_size=markets.data_size.repeat(times, 1),
        accuracy=markets.accuracy.repeat(times, 1),
        budget=markets.budget.repeat(times, 1),
        present=None if there is None else there.repeat(times, 1),
    )


def alignment_loss(
    network: AuctionNetwork,
    markets: Markets,
    trade: Trade,
    settings: Alignment,
    generator: torch.Generator,
    solved: SolvedMarket | None = None,
    most_clients: int = 64,
) -> Tensor:
    """Huber distance of payments from their mean-field reference, plus the squared budget moment.

    Implements: Eq. (L-mfg) of [Sun2026]; the reference is outside the graph.
    Deviation: at most `most_clients` clients of `profiles` profiles, drawn at random, instead of all.
    """
    some = slice(0, settings.profiles)
    sub = replace(
        markets,
        valuation=markets.valuation[some],
        epsilon=markets.epsilon[some],
        data_size=markets.data_size[some],
        accuracy=markets.accuracy[some],
        budget=markets.budget[some],
        present=None if markets.present is None else markets.present[some],
    )
    who = torch.randperm(markets.clients, generator=generator)[:most_clients]
    if settings.reference == "solved":
        assert solved is not None
        reference = solved.payment(sub, sub.valuation[:, who], sub.epsilon[:, who])
        spread = torch.zeros_like(reference)
    else:
        reference, spread = mean_field_payment(network, sub, who, settings.resamples, generator)
    paid = trade.payment[some][:, who]
    weight = sub.valuation[:, who].clamp_min(1e-6) ** settings.valuation_power
    weight = weight / weight.mean()
    per_client = sub.budget / markets.clients
    off = (paid - reference) / (spread + 0.05 * per_client)
    pointwise = functional.huber_loss(off, torch.zeros_like(off), reduction="none", delta=settings.huber)
    moment = ((paid - reference).mean(-1, keepdim=True) / per_client).square()
    return (weight * pointwise).mean() + settings.moment * moment.mean()


class Critic(nn.Module):
    """Φ(b, ν): what a client with report b is worth, in units of B/N, in a population ν.

    Implements: the critic of Eq. (L-hjb-critic) of [Sun2026].
    """

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.net = multilayer((4, hidden, hidden, 1), last_gain=0.1)

    def forward(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> Tensor:
        """(..., L, D) from reports (..., L, D)."""
        s, cap = torch.log1p(valuation / markets.unit), epsilon / markets.epsilon_max
        mean_s = torch.log1p(markets.valuation / markets.unit).mean(-1, keepdim=True).expand_as(s)
        mean_cap = (markets.epsilon / markets.epsilon_max).mean(-1, keepdim=True).expand_as(s)
        value: Tensor = self.net(torch.stack((s, cap, mean_s, mean_cap), dim=-1)).squeeze(-1)
        return value


@dataclass(frozen=True)
class Baseline:
    """How much of the regret is value-baselined, and the critic's own terms.

    ζ = 0 by default: Φ(b') depends on the misreport, so it does not cancel from the difference and the
    mixture is a biased regret. It never enters an evaluation.

    Attributes:
        mixing: ζ.
        source: Φ is a trained "critic", or the value function of a "solved" game (`SolvedMarket`).
        critic_weight, discount_rate: weight and discount of the critic's Bellman residual.
        frozen_after: the critic is fitted for so many steps, with ζ = 0, and then kept as it is; 0 fits it
            together with the network to the end.
    """

    mixing: float = 0.0
    source: str = "critic"
    critic_weight: float = 0.1
    discount_rate: float = 1.0
    frozen_after: int = 0

    def mixing_at(self, step: int) -> float:
        """ζ, the weight of the baseline, at this step: 0 before step `frozen_after`, then `mixing`."""
        return self.mixing if step >= self.frozen_after else 0.0

    def fits_at(self, step: int) -> bool:
        """Whether the critic is still trained at this step."""
        return not self.frozen_after or step < self.frozen_after


def bellman_loss(
    critic: Critic, markets: Markets, truth: Tensor, cap: Tensor, tried: Misreports, gain: Tensor, rate: float
) -> Tensor:
    """Squared residual of Φ against the best of the tried reports plus its discounted, frozen value.

    Implements: Eq. (L-hjb-critic) of [Sun2026].

    Args:
        truth: (L, D) true valuations; cap: (L, D) true caps.
        tried: misreports (C, L, D); gain: their utility, (C, L, D), in money.
    """
    per_client = markets.budget / markets.clients
    with torch.no_grad():
        onward = math.exp(-rate) * critic(markets, tried.valuation, tried.epsilon)
        target = (gain / per_client + onward).amax(0)
    residual: Tensor = critic(markets, truth, cap) - target
    return residual.square().mean()
