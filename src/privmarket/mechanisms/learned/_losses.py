"""What training minimises besides the buyer's objective: regret by multipliers, and the paper's mean-field terms.

Notation: λ multiplier, ρ penalty; K resampled opponent profiles, ν the population statistic, Φ the critic's value
in units of B/N.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from privmarket._named import names_code
from privmarket.errors import ConfigurationError
from privmarket.mechanisms._registry import named_object
from privmarket.mechanisms.learned._markets import Markets, Trade
from privmarket.mechanisms.learned._misreports import Misreports
from privmarket.mechanisms.learned._networks import AuctionNetwork, multilayer


@dataclass(frozen=True)
class Batch:
    """What one step of training found, for a loss: L markets, cleared and attacked.

    Attributes:
        step, steps: this step, from 0, and how many there will be.
        markets, trade: the markets and what the network does in them, (L, N).
        objective: (L,) what is to be large.
        regret: (L,) what misreports gain in each market, as a share of its budget; 0 for a truthful rule.
        shortfall: (L,) what pay lacks of the reported cost, as a share of the budget; 0 for rules that keep IR.
        market_class: (L,) the class of each market: one for each distribution and range of sizes.
        classes: how many classes there are.
    """

    step: int
    steps: int
    markets: Markets
    trade: Trade
    objective: Tensor
    regret: Tensor
    shortfall: Tensor
    market_class: Tensor
    classes: int


class Loss(ABC):
    """What a step of training makes small. Write `value`; the rest is for losses with a memory.

    An own loss may also be a plain function `(batch) -> scalar`.
    """

    name: ClassVar[str] = "own"

    @abstractmethod
    def value(self, batch: Batch) -> Tensor:
        """A scalar with gradients, such as −mean(objective) + 10·mean(regret)."""

    def update(self, batch: Batch) -> None:
        """Called after each step of the network; here multipliers move."""
        return

    def state(self) -> dict[str, Tensor]:
        """What the next step depends on; kept in the checkpoint."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Takes back what `state` gave."""
        return

    def weights_at(self, step: int) -> tuple[float, float]:
        """Multiplier and penalty of regret at this step, for the training curve; NaN where there are none."""
        return math.nan, math.nan


LossFunction = Callable[[Batch], Tensor]
"""`(batch) -> scalar`: a `Loss` as a function."""


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
    """λ and a running mean of the regret for each class of market, (distributions · sizes,) each."""

    def __init__(self, distributions: int, steering: Steering) -> None:
        self.steering = steering
        self.target = torch.tensor(steering.regret_budget).repeat(distributions)
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


class Lagrangian(Loss):
    """−objective + λ·regret + ρ/2·regret² + γ·shortfall, with one λ per class of market.

    λ is steered to a stated regret budget, or, where that is 0, only ever raised: see `Steering`.

    Args:
        steering: how the multipliers move.
        individual_rationality: γ.
    """

    name: ClassVar[str] = "lagrangian"

    def __init__(self, steering: Steering | None = None, individual_rationality: float = 10.0) -> None:
        self.steering = steering or Steering()
        self.individual_rationality = individual_rationality
        self.multipliers: Multipliers | None = None

    def _of(self, batch: Batch) -> Multipliers:
        if self.multipliers is None:
            self.multipliers = Multipliers(batch.classes // len(self.steering.regret_budget), self.steering)
        return self.multipliers

    def value(self, batch: Batch) -> Tensor:
        """The augmented Lagrangian of the batch."""
        loss = -batch.objective.mean() + self._of(batch).loss(batch.regret, batch.market_class, batch.step)
        return loss + self.individual_rationality * batch.shortfall.mean()

    def update(self, batch: Batch) -> None:
        """Moves the multipliers."""
        self._of(batch).update(batch.regret, batch.market_class, batch.step)

    def state(self) -> dict[str, Tensor]:
        """Multipliers, and the regret they have seen."""
        if self.multipliers is None:
            return {}
        return {"value": self.multipliers.value, "seen": self.multipliers.seen}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Takes back what `state` gave."""
        if state:
            distributions = state["value"].numel() // len(self.steering.regret_budget)
            self.multipliers = Multipliers(distributions, self.steering)
            self.multipliers.value = state["value"]
            self.multipliers.seen = state["seen"]

    def weights_at(self, step: int) -> tuple[float, float]:
        """Mean λ, and ρ."""
        if self.multipliers is None:
            return self.steering.first, self.steering.penalty_at(step)
        return self.multipliers.value.mean().item(), self.steering.penalty_at(step)


class Penalty(Loss):
    """−objective + λ·regret + γ·shortfall with a fixed λ: nothing moves, so runs are easy to compare.

    Args:
        regret_weight: λ.
        individual_rationality: γ.
    """

    name: ClassVar[str] = "penalty"

    def __init__(self, regret_weight: float = 10.0, individual_rationality: float = 10.0) -> None:
        self.regret_weight = regret_weight
        self.individual_rationality = individual_rationality

    def value(self, batch: Batch) -> Tensor:
        """The weighted sum."""
        regret = self.regret_weight * batch.regret.mean()
        return -batch.objective.mean() + regret + self.individual_rationality * batch.shortfall.mean()

    def weights_at(self, step: int) -> tuple[float, float]:
        """λ, and no penalty."""
        return self.regret_weight, 0.0


class _Function(Loss):
    def __init__(self, function: LossFunction) -> None:
        self.function = function

    def value(self, batch: Batch) -> Tensor:
        return self.function(batch)


LOSSES = (Lagrangian.name, Penalty.name)
LossLike = str | Loss | type[Loss] | LossFunction
"""Whatever `training_loss` makes a loss from."""


def training_loss(given: LossLike, steering: Steering, individual_rationality: float) -> Loss:
    """The loss that is meant.

    Args:
        given: one of `LOSSES`, `package.module:Class` or `file.py:function`, a `Loss` or its class, or a function
            `(batch) -> scalar`.
        steering, individual_rationality: of the losses that are given by their names.

    Raises:
        ConfigurationError: there is no such loss.
    """
    if isinstance(given, str):
        if given == Lagrangian.name:
            return Lagrangian(steering, individual_rationality)
        if given == Penalty.name:
            return Penalty(steering.first, individual_rationality)
        if not names_code(given):
            raise ConfigurationError(
                f"unknown loss {given!r}", f"choose one of: {', '.join(LOSSES)}, or give file.py:Class"
            )
        found = named_object("loss", given)
    else:
        found = given
    if isinstance(found, type) and issubclass(found, Loss):
        found = found()
    if isinstance(found, Loss):
        return found
    if callable(found) and not isinstance(found, type):
        return _Function(found)
    raise ConfigurationError(f"loss {found!r} is none", "give a Loss or a function (batch) -> scalar")


def _class_means(values: Tensor, of: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """(classes,) mean per class (0 where absent) and whether it is present."""
    count = torch.zeros(classes).index_add(0, of, torch.ones_like(values))
    total = torch.zeros(classes).index_add(0, of, values)
    return total / count.clamp_min(1.0), (count > 0).to(values.dtype)


class SolvedMarket(Protocol):
    """What a solved mean-field game says about one client's report.

    `privmarket.meanfield` solves games; this package does not import it.
    """

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
        training draws them independently of (v, ε), so that drawing them anew would give the same distribution of
        opponents.
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
    sub = markets.part(some)
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
        s = torch.log1p(valuation / markets.unit)
        cap = epsilon / markets.epsilon_max
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
