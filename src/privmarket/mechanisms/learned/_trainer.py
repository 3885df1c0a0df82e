"""Training a network: primal steps on objective and regret, dual steps on the multipliers.

`TrainingRun` has the one training loop. `Trainer` makes its steps for networks, `_menu_training` for menu curves,
and `_session` keeps either on disk.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from privmarket.errors import ConfigurationError
from privmarket.market._distributions import Distribution
from privmarket.mechanisms._registry import registered_class, registered_names
from privmarket.mechanisms.learned._learned_mechanism import LearnedMechanism, new_network
from privmarket.mechanisms.learned._losses import (
    Batch,
    Critic,
    Loss,
    SolvedMarket,
    alignment_loss,
    bellman_loss,
    training_loss,
)
from privmarket.mechanisms.learned._markets import Markets, MarketSampler, Trade, columns_with_clients
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
from privmarket.mechanisms.learned._networks import AuctionNetwork, Encoding
from privmarket.mechanisms.learned._objectives import TrainingObjective, training_objective
from privmarket.mechanisms.learned._recipes import CLIENT_CLASSES, Recipe, client_class
from privmarket.mechanisms.learned._weights import Weights

Progress = TypeVar("Progress")


class TrainingRun(ABC, Generic[Progress]):
    """Something that is learned step by step, and can be stopped and continued at any step.

    Attributes:
        mechanism: the name of the rule that the weights will serve.
        step, steps: steps done, and steps in all.
        progress_class: what `advance` returns, a dataclass of numbers: the columns of the training curve.
    """

    mechanism: str
    progress_class: ClassVar[type]
    step: int
    steps: int

    @abstractmethod
    def advance(self) -> Progress:
        """Makes one step and says what it did."""

    @abstractmethod
    def description(self) -> Mapping[str, Any]:
        """All that decides the result, as JSON values; a checkpoint of another description is refused."""

    @abstractmethod
    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything that the next step depends on: arrays by name, and JSON values."""

    @abstractmethod
    def restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        """Takes back what `state` gave."""

    @abstractmethod
    def weights(self, seconds: float) -> Weights:
        """What was learned, with all that is known about it."""

    def run(
        self,
        report: Callable[[Progress], object],
        until: int | None = None,
        stop: Callable[[Progress], bool] | None = None,
    ) -> bool:
        """Steps until the last one or step `until`; whether `stop` ended it earlier. This is the training loop."""
        last = self.steps if until is None else until
        while self.step < last:
            progress = self.advance()
            ended = stop is not None and stop(progress)
            report(progress)
            if ended:
                return True
        return False


@dataclass(frozen=True)
class TrainingStep:
    """What one step did: means over the batch, as shares (of the reference quantity, of the budget).

    Attributes:
        step: from 1.
        objective: what is to be large; about 1 for a good rule.
        regret: what misreports gain, as a share of the budget.
        shortfall: what pay lacks of reported costs, as a share of the budget.
        multiplier, penalty: weights of regret in the loss.
    """

    step: int
    objective: float
    regret: float
    shortfall: float
    multiplier: float
    penalty: float


@dataclass
class Trainer(TrainingRun[TrainingStep]):
    """A network in training, with its loss, its optimiser and both sources of chance.

    Attributes:
        recipe: all settings; its `objective` and `loss` are names.
        distributions: markets are drawn from these.
        network: changed in place.
        solved: needed by recipes whose alignment or baseline refers to a solved mean-field game.
        objective, loss: those that the recipe names, unless they are given.
    """

    progress_class: ClassVar[type] = TrainingStep
    recipe: Recipe
    distributions: Sequence[Distribution]
    network: AuctionNetwork
    solved: SolvedMarket | None = None
    objective: TrainingObjective | None = None
    loss: Loss | None = None
    step: int = 0
    misreports: dict[int, Misreports] = field(default_factory=dict)

    def __post_init__(self) -> None:
        recipe = self.recipe
        self.mechanism = recipe.mechanism
        self.steps = recipe.steps
        goal = self.objective or training_objective(recipe.objective, recipe.kappa, recipe.heterogeneity)
        self._value = goal.value
        self._loss = self.loss or training_loss(recipe.loss, recipe.steering, recipe.individual_rationality)
        self._check_references()
        self.network.settings()  # refuses now, not after hours, a network that could not be stored
        self.sampler = MarketSampler(
            self.distributions, recipe.clients, recipe.budget_per_client, recipe.rows, profiles=recipe.profiles
        )
        with torch.random.fork_rng():
            torch.manual_seed(recipe.seed)
            trained = recipe.baseline.mixing > 0 and recipe.baseline.source == "critic"
            self.critic = Critic() if trained else None
        parameters = list(self.network.parameters())
        if self.critic is not None:
            parameters += list(self.critic.parameters())
        self.optimizer = torch.optim.Adam(parameters, lr=recipe.learning_rate)
        self.generator = torch.Generator().manual_seed(recipe.seed)
        self.rng = np.random.default_rng(recipe.seed)

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
                    "privmarket.mechanisms.learned._losses.SolvedMarket",
                )

    def advance(self) -> TrainingStep:
        """One step of the network on a fresh batch, then one of the loss's own memory."""
        drawn, distribution_of, visit = self._draw()
        classes = torch.as_tensor(distribution_of * (len(CLIENT_CLASSES) + 1) + client_class(drawn.clients))
        markets = self.network.prepare(drawn)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate * _cosine(self.step / self.recipe.steps)
        encoded = self.network.encode(markets)
        trade = self.network.clear(encoded, markets)
        profile_regret, regret_terms = self._regret(markets, encoded, trade, visit)
        due = markets.valuation * (trade.epsilon if self.recipe.hinge == "sold" else markets.epsilon)
        batch = Batch(
            self.step,
            self.recipe.steps,
            markets,
            trade,
            objective=self._objective(markets, trade),
            regret=profile_regret,
            shortfall=torch.relu(due - trade.payment).sum(-1) / markets.budget[:, 0],
            market_class=classes,
            classes=len(self.distributions) * (len(CLIENT_CLASSES) + 1),
        )
        loss = self._loss.value(batch) + regret_terms
        loss = loss + self.network.extra_loss(markets)
        if weight := self.recipe.alignment.weight_at(self.step):
            loss = loss + weight * alignment_loss(
                self.network, markets, trade, self.recipe.alignment, self.generator, self.solved
            )
        self._check_finite(loss)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self._loss.update(batch)
        self.step += 1
        multiplier, penalty = self._loss.weights_at(self.step)
        return TrainingStep(
            self.step,
            batch.objective.mean().item(),
            batch.regret.mean().item(),
            batch.shortfall.mean().item(),
            multiplier,
            penalty,
        )

    def _objective(self, markets: Markets, trade: Trade) -> Tensor:
        value = self._value(markets, trade)
        if value.shape != markets.budget.shape[:1]:
            raise ConfigurationError(
                f"the objective has shape {tuple(value.shape)} for {markets.budget.shape[0]} markets",
                "give one figure for each market, (L,)",
            )
        return value

    def _check_finite(self, loss: Tensor) -> None:
        if loss.dim() != 0:
            raise ConfigurationError(f"the loss has shape {tuple(loss.shape)}", "give one number")
        if not torch.isfinite(loss):
            raise ConfigurationError(
                f"the loss is {loss.item()} at step {self.step + 1}",
                "lower learning_rate, or look for a division by 0 in your network, objective or loss",
            )

    def description(self) -> dict[str, Any]:
        """The recipe, and what the distributions draw: two files of past bids may have one name."""
        return {
            "recipe": json.loads(self.recipe.to_json()),
            "distributions": [fingerprint(distribution) for distribution in self.distributions],
        }

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Network, critic, optimiser, misreports, memory of the loss, and both generators."""
        arrays = {f"network/{name}": t.detach().numpy() for name, t in self.network.state_dict().items()}
        if self.critic is not None:
            arrays |= {f"critic/{name}": t.detach().numpy() for name, t in self.critic.state_dict().items()}
        arrays |= optimizer_arrays(self.optimizer)
        for visit, found in self.misreports.items():
            arrays[f"misreports/{visit}/valuation"] = found.valuation.numpy()
            arrays[f"misreports/{visit}/epsilon"] = found.epsilon.numpy()
        arrays |= {f"loss/{name}": tensor.detach().numpy() for name, tensor in self._loss.state().items()}
        arrays["chance/torch"] = self.generator.get_state().numpy()
        return arrays, {"chance": self.rng.bit_generator.state}

    def restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        """Takes back what `state` gave."""
        self.network.load_state_dict(below(arrays, "network"))
        if self.critic is not None:
            self.critic.load_state_dict(below(arrays, "critic"))
        restore_optimizer(self.optimizer, arrays)
        found = below(arrays, "misreports")
        visits = {name.partition("/")[0] for name in found}
        self.misreports = {
            int(visit): Misreports(found[f"{visit}/valuation"], found[f"{visit}/epsilon"]) for visit in visits
        }
        self._loss.restore(below(arrays, "loss"))
        self.generator.set_state(torch.from_numpy(np.array(arrays["chance/torch"])))
        self.rng.bit_generator.state = facts["chance"]

    def weights(self, seconds: float) -> Weights:
        """The network as it is now, with the recipe and the markets that it was trained for."""
        facts = {
            "network": self.network.settings(),
            "epsilon_max": max(distribution.epsilon_max for distribution in self.distributions),
            "trained_for": {
                "laws": [distribution.name for distribution in self.distributions],
                "clients": list(self._clients_served()),
                "budget_over_valuations": list(self._budgets_seen()),
            },
            "recipe": self.recipe.to_json(),
            "seed": self.recipe.seed,
            "steps_done": self.step,
            "seconds": round(seconds, 1),
            "torch": torch.__version__,
            "measured": {},
        }
        arrays = {name: t.detach().numpy().copy() for name, t in self.network.state_dict().items()}
        return Weights(self.recipe.mechanism, arrays, facts)

    def _clients_served(self) -> tuple[int, int]:
        """Markets of concatenated networks may be of any size: they are cut into groups of the trained sizes."""
        low, high = self.recipe.clients
        return (low, 1_000_000_000) if hasattr(self.network, "seats") else (low, high)

    def _budgets_seen(self, batches: int = 40) -> tuple[float, float]:
        """Least and most money per client and mean valuation in markets as training draws them.

        Of each market, not of the distribution: in ten clients the mean valuation varies by a fifth.
        """
        rng = np.random.default_rng(0)
        seen = []
        for _ in range(batches):
            markets, _distribution = self.sampler.draw(rng)
            seen.append((markets.budget[:, 0] / markets.valuation.sum(-1)).numpy())
        every = np.concatenate(seen)
        return float(every.min()), float(every.max())

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
        profiles = markets.valuation.shape[0]
        who = columns_with_clients(markets)
        clients = len(who)
        count = min(clients, max(1, self.recipe.attack.rows // profiles))
        if count < clients:
            chooser = self.generator if visit is None else torch.Generator().manual_seed(visit)
            who = who[torch.randperm(clients, generator=chooser)[:count]]
        valuation = markets.valuation[:, who]
        cap = markets.epsilon[:, who]
        frozen = encoded.detached()
        with torch.no_grad():
            outside = self.network.deviations(frozen, markets, who)
        tried = cheap_candidates(valuation, cap, self.generator)
        found = self._search(outside, tried, valuation, cap, visit)
        truth = Trade(trade.epsilon[:, who], trade.payment[:, who])

        def outcome(reported: Misreports) -> Trade:
            return self.network.deviate(encoded, markets, reported.valuation, reported.epsilon, who)

        gained = regret(outcome(found), truth, valuation)
        baseline = self.recipe.baseline
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


def mechanism_class(name: str) -> type[LearnedMechanism]:
    """The class of the learned rule called `name`; refused if no network belongs to it."""
    found = registered_class(name) if name in registered_names() else None
    if found is None or not issubclass(found, LearnedMechanism):
        trainable = [one for one in registered_names() if issubclass(registered_class(one), LearnedMechanism)]
        raise ConfigurationError(
            f"{name!r} is not a mechanism with a network", f"choose one of: {', '.join(trainable)}"
        )
    return found


def new_trainer(
    recipe: Recipe,
    distributions: Sequence[Distribution],
    solved: SolvedMarket | None = None,
    network_class: type[AuctionNetwork] | None = None,
    objective: TrainingObjective | None = None,
    loss: Loss | None = None,
) -> Trainer:
    """A run at its first step; the network's start comes from the recipe's seed alone.

    Args:
        network_class: by default that of the registered rule `recipe.mechanism`.
    """
    made = new_network(
        network_class or mechanism_class(recipe.mechanism).network_class, recipe.network, recipe.seed
    )
    return Trainer(recipe, distributions, made, solved, objective, loss)


def fingerprint(distribution: Distribution) -> str:
    """A short text that differs for distributions that draw different clients."""
    drawn = distribution.sample(np.random.default_rng(0), 32)
    figures = [*drawn.valuation, *drawn.epsilon, *drawn.data_share]
    return hashlib.sha256(" ".join(f"{figure:.5g}" for figure in figures).encode()).hexdigest()[:16]


def optimizer_arrays(optimizer: torch.optim.Optimizer) -> dict[str, np.ndarray]:
    """The optimiser's memory, as arrays of a checkpoint."""
    return {
        f"adam/{index}/{name}": np.asarray(value)
        for index, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, arrays: Mapping[str, np.ndarray]) -> None:
    """Takes back what `optimizer_arrays` gave."""
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in below(arrays, "adam").items():
        index, _, of = name.partition("/")
        moments.setdefault(int(index), {})[of] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})


def below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, Tensor]:
    """The arrays whose names begin with `prefix/`, as tensors, under the rest of their names."""
    start = prefix + "/"
    return {
        name[len(start) :]: torch.from_numpy(np.array(array))
        for name, array in arrays.items()
        if name.startswith(start)
    }
