"""From a finished run to a weights file: what was trained, how, and what was measured on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from privmarket.errors import ConfigurationError
from privmarket.market._distributions import Distribution
from privmarket.mechanisms._registry import registered_class, registered_names
from privmarket.mechanisms.learned._learned_mechanism import LearnedMechanism
from privmarket.mechanisms.learned._mean_field_loss import SolvedMarket
from privmarket.mechanisms.learned._networks import AuctionNetwork
from privmarket.mechanisms.learned._recipes import Recipe
from privmarket.mechanisms.learned._trainer import Trainer
from privmarket.mechanisms.learned._weights import Weights, save


def mechanism_class(name: str) -> type[LearnedMechanism]:
    """The class of the learned rule called `name`; refused if no network belongs to it."""
    found = registered_class(name) if name in registered_names() else None
    if found is None or not issubclass(found, LearnedMechanism):
        trainable = [one for one in registered_names() if issubclass(registered_class(one), LearnedMechanism)]
        raise ConfigurationError(
            f"{name!r} is not a mechanism with a network", f"choose one of: {', '.join(trainable)}"
        )
    return found


def new_trainer(recipe: Recipe, laws: Sequence[Distribution], solved: SolvedMarket | None = None) -> Trainer:
    """A run at its first step; the network's start comes from the recipe's seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        network: AuctionNetwork = mechanism_class(recipe.mechanism).network_class(**recipe.network)
    return Trainer(recipe, laws, network, solved)


def write_weights(path: str | Path, trainer: Trainer, seconds: float, measured: dict[str, object]) -> None:
    """The network of a run, with all that is known about it."""
    recipe = trainer.recipe
    facts = {
        "network": trainer.network.settings(),
        "epsilon_max": max(law.epsilon_max for law in trainer.laws),
        "trained_for": {
            "laws": [law.name for law in trainer.laws],
            "clients": list(_clients_served(trainer)),
            "budget_over_valuations": list(_budgets_seen(trainer)),
        },
        "recipe": recipe.to_json(),
        "seed": recipe.seed,
        "steps_done": trainer.step,
        "seconds": round(seconds, 1),
        "torch": torch.__version__,
        "measured": measured,
    }
    arrays = {name: t.detach().numpy() for name, t in trainer.network.state_dict().items()}
    save(path, Weights(recipe.mechanism, arrays, facts))


def _clients_served(trainer: Trainer) -> tuple[int, int]:
    """Markets of concatenated networks may be of any size: they are cut into groups of the trained sizes."""
    low, high = trainer.recipe.clients
    return (low, 1_000_000_000) if hasattr(trainer.network, "seats") else (low, high)


def _budgets_seen(trainer: Trainer, batches: int = 40) -> tuple[float, float]:
    """Least and most money per client and mean valuation in markets as training draws them.

    Of each market, not of the law: in ten clients the mean valuation varies by a fifth.
    """
    rng, seen = np.random.default_rng(0), []
    for _ in range(batches):
        markets, _law = trainer.sampler.draw(rng)
        seen.append((markets.budget[:, 0] / markets.valuation.sum(-1)).numpy())
    every = np.concatenate(seen)
    return float(every.min()), float(every.max())
