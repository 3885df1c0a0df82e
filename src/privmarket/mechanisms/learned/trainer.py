"""The training loop: primal steps on objective + penalties, dual steps on the multipliers.

One loop serves every network; a run can stop at any step and go on from its checkpoint as if it had not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from privmarket.errors import ConfigurationError
from privmarket.market.scenarios import Law
from privmarket.mechanisms.learned.buyer import OBJECTIVES, buyer_value
from privmarket.mechanisms.learned.client_groups import columns_with_clients
from privmarket.mechanisms.learned.lagrangian import Multipliers
from privmarket.mechanisms.learned.market_tensors import Markets, MarketSampler
from privmarket.mechanisms.learned.mean_field_loss import Critic, SolvedMarket, alignment_loss, bellman_loss
from privmarket.mechanisms.learned.misreports import (
    Misreports,
    ascend,
    best_of,
    cheap_candidates,
    regret,
    sign_steps,
)
from privmarket.mechanisms.learned.networks import AuctionNetwork, Trade, detached
from privmarket.mechanisms.learned.recipes import CLIENT_CLASSES, Recipe, client_class


@dataclass(frozen=True)
class Progress:
    """What one step did: means over the batch, as shares (of the reference quantity, of the budget)."""

    step: int
    objective: float
    regret: float
    shortfall: float
    multiplier: float
    penalty: float


@dataclass
class Trainer:
    """A run in progress: the network, the multipliers, the optimiser and both sources of chance.

    `solved` is needed by recipes whose alignment or baseline refers to a solved mean-field game.
    """

    recipe: Recipe
    laws: Sequence[Law]
    network: AuctionNetwork
    solved: SolvedMarket | None = None
    step: int = 0
    misreports: dict[int, Misreports] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.recipe.objective not in OBJECTIVES:
            raise ConfigurationError(
                f"unknown objective {self.recipe.objective!r}", f"choose one of: {', '.join(OBJECTIVES)}"
            )
        self._check_references()
        self.sampler = MarketSampler(
            self.laws, self.recipe.clients, self.recipe.budget_per_client, self.recipe.rows
        )
        self.multipliers = Multipliers(len(self.laws), self.recipe.steering)
        with torch.random.fork_rng():
            torch.manual_seed(self.recipe.seed)
            trained = self.recipe.baseline.mixing > 0 and self.recipe.baseline.source == "critic"
            self.critic = Critic() if trained else None
        parameters = list(self.network.parameters())
        if self.critic is not None:
            parameters += list(self.critic.parameters())
        self.optimizer = torch.optim.Adam(parameters, lr=self.recipe.learning_rate)
        self.generator = torch.Generator().manual_seed(self.recipe.seed)
        self.rng = np.random.default_rng(self.recipe.seed)

    def _check_references(self) -> None:
        for name, chosen, kinds in (
            ("alignment.reference", self.recipe.alignment.reference, ("resampled", "solved")),
            ("baseline.source", self.recipe.baseline.source, ("critic", "solved")),
        ):
            if chosen not in kinds:
                raise ConfigurationError(f"{name} is {chosen!r}", f"choose one of: {', '.join(kinds)}")
            if chosen == "solved" and self.solved is None:
                raise ConfigurationError(
                    f"{name} is 'solved', but no solved game was given",
                    "pass one: train(..., solved=SolvedReference(equilibrium))",
                )

    def run(self, report: Callable[[Progress], None], until: int | None = None) -> None:
        """Steps until the recipe is done, or until step `until`."""
        for _ in range(self.step, self.recipe.steps if until is None else until):
            report(self.advance())

    def advance(self) -> Progress:
        """One primal and one dual step."""
        drawn, law_of, visit = self._draw()
        classes = torch.as_tensor(law_of * (len(CLIENT_CLASSES) + 1) + client_class(drawn.clients))
        markets = self.network.prepare(drawn)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate * _cosine(self.step / self.recipe.steps)
        encoded = self.network.encode(markets)
        trade = self.network.clear(encoded, markets)
        profile_regret, critic_loss = self._regret(markets, encoded, trade, visit)
        value = buyer_value(self.recipe.objective, markets, trade, self.recipe.kappa, self.recipe.heterogeneity)
        shortfall = torch.relu(-trade.utility(markets.valuation)).sum(-1) / markets.budget[:, 0]
        loss = -value.mean() + self.multipliers.loss(profile_regret, classes, self.step)
        loss = loss + self.recipe.individual_rationality * shortfall.mean() + critic_loss
        loss = loss + self.network.extra_loss(markets)
        if weight := self.recipe.alignment.weight_at(self.step):
            loss = loss + weight * alignment_loss(
                self.network, markets, trade, self.recipe.alignment, self.generator, self.solved
            )
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.multipliers.update(profile_regret, classes, self.step)
        self.step += 1
        return Progress(
            self.step,
            value.mean().item(),
            profile_regret.mean().item(),
            shortfall.mean().item(),
            self.multipliers.value.mean().item(),
            self.recipe.steering.penalty_at(self.step),
        )

    def _draw(self) -> tuple[Markets, np.ndarray, int | None]:
        """Fresh markets, or with a pool the next batch of it, drawn again from its own seed."""
        if not self.recipe.pool:
            return (*self.sampler.draw(self.rng), None)
        visit = self.step % self.recipe.pool
        own = np.random.default_rng([self.recipe.seed, visit])
        return (*self.sampler.draw(own), visit)

    def _regret(self, markets: Markets, encoded: object, trade: Trade, visit: int | None) -> tuple[Tensor, Tensor]:
        """(L,) regret found in each profile as a share of its budget, and the critic's loss."""
        profiles, who = markets.valuation.shape[0], columns_with_clients(markets)
        clients = len(who)
        count = min(clients, max(1, self.recipe.attack.rows // profiles))
        if count < clients:
            chooser = self.generator if visit is None else torch.Generator().manual_seed(visit)
            who = who[torch.randperm(clients, generator=chooser)[:count]]
        valuation, cap = markets.valuation[:, who], markets.epsilon[:, who]
        frozen = detached(encoded)
        with torch.no_grad():
            outside = self.network.deviations(frozen, markets, who)
        tried = cheap_candidates(valuation, cap, self.generator)
        found = self._search(outside, tried, valuation, cap, visit)
        lie = self.network.deviate(encoded, markets, found.valuation, found.epsilon, who)
        truth = Trade(trade.epsilon[:, who], trade.payment[:, who])
        gained = regret(lie, truth, valuation)
        critic_loss = torch.zeros(())
        if self.recipe.baseline.mixing > 0:
            difference = lie.utility(valuation) - truth.utility(valuation)
            gained = self._baselined(markets, gained, difference, found, valuation, cap)
        if self.critic is not None:
            with torch.no_grad():
                gain = outside(tried.valuation, tried.epsilon).utility(valuation)
            critic_loss = self.recipe.baseline.critic_weight * bellman_loss(
                self.critic, markets, valuation, cap, tried, gain, self.recipe.baseline.discount_rate
            )
        return gained.mean(-1) * clients / markets.budget[:, 0], critic_loss

    def _search(
        self,
        outside: Callable[[Tensor, Tensor], Trade],
        tried: Misreports,
        valuation: Tensor,
        cap: Tensor,
        visit: int | None,
    ) -> Misreports:
        attack = self.recipe.attack
        earlier = None if visit is None else self.misreports.get(visit)
        for parameter in self.network.parameters():
            parameter.requires_grad_(False)
        if earlier is not None:
            tried = Misreports(
                torch.cat([tried.valuation, earlier.valuation[None]]),
                torch.cat([tried.epsilon, earlier.epsilon[None]]),
            )
        if attack.kind == "candidates":
            found = sign_steps(outside, best_of(outside, tried, valuation), valuation, cap)
        else:
            start = earlier or Misreports(tried.valuation[5], tried.epsilon[5])
            found = ascend(outside, start, valuation, cap, attack.steps, attack.step_size)
        for parameter in self.network.parameters():
            parameter.requires_grad_(True)
        if visit is not None:
            self.misreports[visit] = found
        return found

    def _baselined(
        self,
        markets: Markets,
        plain: Tensor,
        difference: Tensor,
        found: Misreports,
        valuation: Tensor,
        cap: Tensor,
    ) -> Tensor:
        """(1 − ζ)·regret + ζ·value-baselined regret, Eq. (mfg-regret-vf) of [Sun2026]."""
        with torch.no_grad():
            moved = self._worth(markets, found.valuation, found.epsilon) - self._worth(markets, valuation, cap)
        mixing = self.recipe.baseline.mixing
        return (1 - mixing) * plain + mixing * torch.relu(difference - moved)

    def _worth(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> Tensor:
        """(L, D) Φ in money."""
        if self.critic is None:
            assert self.solved is not None
            return self.solved.value(markets, valuation, epsilon)
        value: Tensor = self.critic(markets, valuation, epsilon)
        return value * (markets.budget / markets.clients)


def _cosine(done: float) -> float:
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
