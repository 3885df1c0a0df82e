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
from privmarket.market._distributions import Distribution
from privmarket.mechanisms.learned._buyer import OBJECTIVES, buyer_value
from privmarket.mechanisms.learned._client_groups import columns_with_clients
from privmarket.mechanisms.learned._lagrangian import Multipliers
from privmarket.mechanisms.learned._market_tensors import Markets, MarketSampler
from privmarket.mechanisms.learned._mean_field_loss import Critic, SolvedMarket, alignment_loss, bellman_loss
from privmarket.mechanisms.learned._misreports import (
    STARTS,
    Misreports,
    ascend,
    best_of,
    cheap_candidates,
    regret,
    sign_steps,
    uniform_reports,
    worst_group_excess,
)
from privmarket.mechanisms.learned._networks import AuctionNetwork, Encoding, Trade
from privmarket.mechanisms.learned._recipes import CLIENT_CLASSES, Recipe, client_class


@dataclass(frozen=True)
class TrainingStep:
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
    laws: Sequence[Distribution]
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
            self.laws,
            self.recipe.clients,
            self.recipe.budget_per_client,
            self.recipe.rows,
            profiles=self.recipe.profiles,
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
            ("hinge", self.recipe.hinge, ("sold", "offered")),
            ("attack.start", self.recipe.attack.start, STARTS),
        ):
            if chosen not in kinds:
                raise ConfigurationError(f"{name} is {chosen!r}", f"choose one of: {', '.join(kinds)}")
            if chosen == "solved" and self.solved is None:
                raise ConfigurationError(
                    f"{name} is 'solved', but no solved game was given",
                    "give train(solved=…) an object with `payment` and `value`, see "
                    "privmarket.mechanisms.learned._mean_field_loss.SolvedMarket",
                )

    def run(self, report: Callable[[TrainingStep], None], until: int | None = None) -> None:
        """Steps until the recipe is done, or until step `until`."""
        for _ in range(self.step, self.recipe.steps if until is None else until):
            report(self.advance())

    def advance(self) -> TrainingStep:
        """One primal and one dual step."""
        drawn, law_of, visit = self._draw()
        classes = torch.as_tensor(law_of * (len(CLIENT_CLASSES) + 1) + client_class(drawn.clients))
        markets = self.network.prepare(drawn)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate * _cosine(self.step / self.recipe.steps)
        encoded = self.network.encode(markets)
        trade = self.network.clear(encoded, markets)
        profile_regret, regret_terms = self._regret(markets, encoded, trade, visit)
        value = buyer_value(self.recipe.objective, markets, trade, self.recipe.kappa, self.recipe.heterogeneity)
        due = markets.valuation * (trade.epsilon if self.recipe.hinge == "sold" else markets.epsilon)
        shortfall = torch.relu(due - trade.payment).sum(-1) / markets.budget[:, 0]
        loss = -value.mean() + self.multipliers.loss(profile_regret, classes, self.step)
        loss = loss + self.recipe.individual_rationality * shortfall.mean() + regret_terms
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
        return TrainingStep(
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

    def _regret(
        self, markets: Markets, encoded: Encoding, trade: Trade, visit: int | None
    ) -> tuple[Tensor, Tensor]:
        """(L,) regret found in each profile as a share of its budget; and the losses of critic and groups."""
        profiles, who = markets.valuation.shape[0], columns_with_clients(markets)
        clients = len(who)
        count = min(clients, max(1, self.recipe.attack.rows // profiles))
        if count < clients:
            chooser = self.generator if visit is None else torch.Generator().manual_seed(visit)
            who = who[torch.randperm(clients, generator=chooser)[:count]]
        valuation, cap = markets.valuation[:, who], markets.epsilon[:, who]
        frozen = encoded.detached()
        with torch.no_grad():
            outside = self.network.deviations(frozen, markets, who)
        tried = cheap_candidates(valuation, cap, self.generator)
        found = self._search(outside, tried, valuation, cap, visit)
        truth = Trade(trade.epsilon[:, who], trade.payment[:, who])

        def outcome(reported: Misreports) -> Trade:
            return self.network.deviate(encoded, markets, reported.valuation, reported.epsilon, who)

        gained, baseline = regret(outcome(found), truth, valuation), self.recipe.baseline
        if mixing := baseline.mixing_at(self.step):
            reported, moved = self._best_advantage(outside, markets, tried, found, valuation, cap)
            advantage = outcome(reported).utility(valuation) - truth.utility(valuation) - moved
            gained = (1 - mixing) * gained + mixing * torch.relu(advantage)
        terms = torch.zeros(())
        if self.critic is not None and baseline.fits_at(self.step):
            with torch.no_grad():
                utility = outside(tried.valuation, tried.epsilon).utility(valuation)
            terms = terms + baseline.critic_weight * bellman_loss(
                self.critic, markets, valuation, cap, tried, utility, baseline.discount_rate
            )
        share = gained * (clients / markets.budget)
        if self.recipe.group_weight:
            terms = terms + self.recipe.group_weight * worst_group_excess(share, valuation).mean()
        return share.mean(-1), terms

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
            start = earlier or self._start(tried, valuation, cap)
            found = ascend(outside, start, valuation, cap, attack.steps, attack.step_size)
        for parameter in self.network.parameters():
            parameter.requires_grad_(True)
        if visit is not None:
            self.misreports[visit] = found
        return found

    def _start(self, tried: Misreports, valuation: Tensor, cap: Tensor) -> Misreports:
        """Where an ascent begins, by the recipe."""
        if self.recipe.attack.start == "truth":
            return Misreports(valuation, cap)
        if self.recipe.attack.start == "uniform":
            return uniform_reports(valuation, cap, self.generator)
        return Misreports(tried.valuation[5], tried.epsilon[5])

    def _best_advantage(
        self,
        outside: Callable[[Tensor, Tensor], Trade],
        markets: Markets,
        tried: Misreports,
        found: Misreports,
        valuation: Tensor,
        cap: Tensor,
    ) -> tuple[Misreports, Tensor]:
        """The report of largest advantage u − Φ among all that were tried, and by how much Φ moves to it.

        Implements: the maximum in Eq. (mfg-regret-vf) of [Sun2026].
        """
        v = torch.cat([tried.valuation, found.valuation[None]])
        e = torch.cat([tried.epsilon, found.epsilon[None]])
        with torch.no_grad():
            moved = self._worth(markets, v, e) - self._worth(markets, valuation, cap)
            best = (outside(v, e).utility(valuation) - moved).argmax(0, keepdim=True)
        chosen = [field.gather(0, best).squeeze(0) for field in (v, e, moved)]
        return Misreports(chosen[0], chosen[1]), chosen[2]

    def _worth(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> Tensor:
        """(..., L, D) Φ in money."""
        if self.critic is None:
            assert self.solved is not None
            return self.solved.value(markets, valuation, epsilon)
        value: Tensor = self.critic(markets, valuation, epsilon)
        return value * (markets.budget / markets.clients)


def _cosine(done: float) -> float:
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
