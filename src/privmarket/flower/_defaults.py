"""Default training settings, chosen from public numbers alone: what was sold, and for how many weights.

Let T rounds take k full-batch steps each, S = T·k in all, with step size r and clip norm C. Without noise the
weights travel at most L = S·r·C: the *path*. Seller i adds noise of deviation σ_i·C to each sum, the server weighs
its update by α_i, and sums are divided by the expected batch b. With d weights the noise moves the model by about

    √S · r·C · √d · √(Σ α_i²·σ_i²) / b  =  L · ρ,      ρ = √d · √(Σ α_i²·σ_i²) / (b·√S).

A sale of ε over k steps has σ ∝ √k, so ρ does not depend on the number of steps: more steps make the path smoother
and cost time, not privacy. So only the length of the path is chosen. It is `PATH`, or less if the model is small
(`PATH_PER_ROOT`·√d), if the noise would move the model further than `DRIFT`, or if single steps would be longer
than `LONGEST_STEP`.

These constants and the number of steps were chosen on Fashion-MNIST and on scikit-learn's digits, with networks
like that of Flower's PyTorch template. Records of sellers are never used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privmarket.secagg import cohorts_of
from privmarket.simulation._server import seller_weights

if TYPE_CHECKING:
    from flwr.serverapp.strategy import Strategy

    from privmarket.flower._settings import MarketSettings
    from privmarket.rounds import Round

STEPS = 10
PATH = 240.0
PATH_PER_ROOT = 5.0
DRIFT = 22.0
LONGEST_STEP = 2.4
# If the noise is this many times as long as the longest update, the server warns before anyone is paid.
LOUD = 5.0


@dataclass(frozen=True)
class RoundPlan:
    """The training settings in the orders of a round.

    Attributes:
        learning_rate, expected_batch: as given, or chosen here.
        noise_ratio: the length of the noise on the round's average over the largest possible length of the average
            without noise. Above 1 a single round contributes little; many rounds may still help.
    """

    learning_rate: float
    expected_batch: float
    noise_ratio: float


def steps_for(trust: str, noise: str = "records") -> int:
    """Noisy steps in a round: one under aggregate trust, or if whole updates are clipped."""
    return 1 if trust == "aggregate" or noise == "update" else STEPS


def plan_round(
    settings: MarketSettings,
    cleared: Round,
    parameters: int,
    *,
    declared: float,
    server_gain: float,
    noise: str = "records",
) -> RoundPlan:
    """The training plan of a cleared round.

    Args:
        parameters: trainable weights of the model.
        declared: mean number of records that clients declare.
        server_gain: the factor by which the server's optimiser moves the model further than the average update.
        noise: "records", or "update" if clients clip whole updates.
    """
    batch = settings.expected_batch
    if batch is None:
        batch = max(1.0, settings.sampling_rate * declared)
    per_step = _noise_per_step(settings, cleared, parameters)
    if noise == "update":
        # The clipped change moves by up to twice the clip norm.
        return RoundPlan(settings.learning_rate or 1.0, batch, 2.0 * per_step)
    ratio = per_step / batch / math.sqrt(settings.steps)
    rate = settings.learning_rate
    if rate is None:
        steps = settings.steps * settings.rounds
        drift = per_step / batch / math.sqrt(steps)
        longest = min(PATH, PATH_PER_ROOT * math.sqrt(parameters), LONGEST_STEP * steps)
        path = min(longest, DRIFT / max(drift, 1e-12))
        rate = path / (steps * settings.clip_norm * server_gain)
        # Three digits, so that the printed and sent number is the number that is used.
        rate = float(f"{rate:.3g}")
    return RoundPlan(rate, batch, ratio)


def _noise_per_step(settings: MarketSettings, cleared: Round, parameters: int) -> float:
    """√d·√(Σ α²σ²): the length of the weighted noise of one step over the clip norm."""
    sellers = [client for client in cleared.offers if client in cleared.awards]
    sigma = np.array([cleared.awards[client].event.noise_multiplier for client in sellers])
    if not sigma.size:
        return 0.0
    if settings.trust == "aggregate":
        # Shares of one sum: weights 1/σ, and the noise of the honest sellers protects each.
        total = math.sqrt(sigma.size / max(1.0, settings.honest_share * sigma.size)) / float((1.0 / sigma).sum())
        # Sellers that are dealt to k sums: each sum has the noise of its own honest sellers.
        cohorts = cohorts_of(sigma.size, settings.largest_cohort)
        return math.sqrt(parameters * cohorts) * total
    alpha = seller_weights(cleared, sellers, settings.aggregation, settings.objective)
    return math.sqrt(parameters) * float(np.sqrt((alpha**2 * sigma**2).sum()))


def optimiser_gain(rate: float, momentum: float, rounds: int, final_rate: float = 1.0) -> float:
    """The factor by which a server with momentum moves the model further than the sum of all updates, in a run.

    An update of round t of T counts (1 − m^(T − t))/(1 − m) times, t from 0; the rate falls linearly.
    """
    if momentum == 0.0:
        return rate * (1.0 + final_rate) / 2.0
    total = sum((1.0 - momentum ** (rounds - t)) / (1.0 - momentum) for t in range(rounds))
    return rate * (1.0 + final_rate) / 2.0 * total / rounds


def strategy_gain(strategy: Strategy, rounds: int) -> float:
    """The same for a Flower strategy that has a server rate or momentum; 1 for others."""
    numbers: Mapping[str, object] = vars(strategy)
    rate = numbers.get("server_learning_rate", 1.0)
    momentum = numbers.get("server_momentum", 0.0)
    if not isinstance(rate, int | float) or not isinstance(momentum, int | float):
        return 1.0
    return optimiser_gain(float(rate), float(momentum), rounds)
