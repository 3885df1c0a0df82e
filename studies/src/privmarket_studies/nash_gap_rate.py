"""Beside the Nash gap: how fast it falls with N, and the paper's one-round proxy of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privmarket.market._attacks import Attack, GridAttack
from privmarket.market._bids import Array
from privmarket.market._distributions import Distribution
from privmarket.market._mechanism import Mechanism


@dataclass(frozen=True)
class PowerLaw:
    """A power law N^slope fitted to means over seeds, with its bootstrap confidence interval."""

    slope: float
    low: float
    high: float


def fit_slope(
    clients: Sequence[int],
    values: Sequence[Array],
    rng: np.random.Generator,
    *,
    confidence: float = 0.95,
    draws: int = 2000,
) -> PowerLaw | None:
    """The log-log slope of mean value against N; None where a mean is not above 0, so no power law fits.

    Args:
        clients: (sizes,) N.
        values: one array (seeds,) per size. Seeds are resampled within each size.
    """
    x = np.log(np.asarray(clients, dtype=np.float64))
    weight = (x - x.mean()) / ((x - x.mean()) ** 2).sum()  # least squares: slope = weight · log(mean)
    means = np.array([v.mean() for v in values])
    if not np.all(means > 0):
        return None
    drawn = np.stack([v[rng.integers(v.size, size=(draws, v.size))].mean(axis=1) for v in values], axis=1)
    positive = drawn[np.all(drawn > 0, axis=1)]
    if len(positive) < 0.5 * draws:
        return None
    slopes = np.log(positive) @ weight
    tail = 0.5 * (1 - confidence)
    return PowerLaw(float(np.log(means) @ weight), *(float(q) for q in np.quantile(slopes, [tail, 1 - tail])))


def one_round_regret(
    mechanism: Mechanism,
    distribution: Distribution,
    clients: int,
    budget_per_client: float,
    *,
    seeds: Sequence[int],
    attack: Attack | None = None,
) -> tuple[Array, Array]:
    """The paper's proxy: mean regret of one round under truthful play, for any mechanism.

    Implements: the empirical approximation error of Fig. (rq4_mnist), panels c and d, of [Sun2026].
    Deviation: misreports come from a grid over (v, ε), stronger than 25 ascent steps.

    Returns:
        (seeds,) mean regret per client, and (seeds,) mean payment per client.
    """
    attack = GridAttack(valuations=21, shares=4, neighbours=4) if attack is None else attack
    regret = np.empty(len(seeds))
    payment = np.empty(len(seeds))
    for k, seed in enumerate(seeds):
        rng = np.random.default_rng([seed, clients])
        types = distribution.sample(rng, clients)
        budget = budget_per_client * clients
        regret[k] = attack(mechanism, types, budget, rng).gain.mean()
        payment[k] = mechanism.run(types, budget).payment.mean()
    return regret, payment
