"""How much of the saving under aggregate trust is statistics, and how much is the rule: money for equal noise.

No training takes place here: the noise on a round's mean gradient follows from who sells how much, so the money
that a given noise costs can be found for any number of clients.

Notation: μ_i = Gaussian-DP parameter of client i's sale, n sellers of which h are honest. Over the clip norm,
noise is 1/√(Σ μ_i²) under local trust (inverse-variance weights) and √(n/h)/Σ μ_i under aggregate trust.

The rule for local noise is that of `precision-menu` without bias, for a known distribution and without its reserve
for one more client: docs/theory/local-trust.md. For Uniform valuations it posts to each client λ·μ(ε)²/(2ε) a unit
for all of its ε, with λ as the budget allows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privmarket._settings import DELTA, HONEST_SHARE
from privmarket.market import scenario
from privmarket.privacy._gaussian import mu_of
from privmarket.secagg import honest_per_cohort
from privmarket_studies.reproduce.cells import Config, Result

Array = NDArray[np.float64]

# Prices that a ration is posted at; the best of them should lie inside.
PRICES = np.linspace(0.02, 1.0, 50)
_BISECTIONS = 40


def strength(epsilon: Array) -> Array:
    """μ of sales of ε at the usual δ."""
    found: Array = np.interp(epsilon, *_known_strengths())
    return found


@cache
def _known_strengths() -> tuple[Array, Array]:
    grid = np.concatenate([[0.0], np.geomspace(1e-4, 10.0, 2000)])
    return grid, np.concatenate([[0.0], np.asarray(mu_of(grid[1:], DELTA))])


def local_noise(sold: Array) -> float:
    """Noise of the mean over the clip norm, where each update carries its own."""
    return float(1.0 / np.sqrt(max(float((strength(sold) ** 2).sum()), 1e-300)))


def aggregate_noise(sold: Array) -> float:
    """Noise of the mean over the clip norm, under a secure sum with two thirds of the sellers honest."""
    sellers = int((sold > 0).sum())
    if sellers == 0:
        return float("inf")
    return float(np.sqrt(sellers / honest_per_cohort(sellers, HONEST_SHARE)) / strength(sold).sum())


def posted_for_local(valuation: Array, epsilon: Array, scale: float) -> tuple[Array, float]:
    """The rule for local noise: what is sold at λ = `scale`, (clients,), and the money for it."""
    price = np.minimum(scale * strength(epsilon) ** 2 / (2.0 * epsilon), 1.0)
    sold = np.where(valuation < price, epsilon, 0.0)
    return sold, float((price * sold).sum())


def cheapest_ration(
    valuation: Array, epsilon: Array, noise_of: Callable[[Array], float], noise: float, prices: Array = PRICES
) -> tuple[float, float]:
    """(money, price): of rations min(ε, e) posted at one price to all, the cheapest with at most this noise."""
    best = (float("inf"), float("nan"))
    for price in prices:
        offers = np.where(valuation < price, epsilon, 0.0)
        if noise_of(offers) > noise:
            continue
        low, high = 0.0, float(offers.max())
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if noise_of(np.minimum(offers, middle)) <= noise else (middle, high)
        money = float(price * np.minimum(offers, high).sum())
        best = min(best, (money, float(price)))
    return best


def run(config: Config, seed: int, scratch: Path) -> Result:
    """Config: clients, money (of a round, per client, under local trust by the rule for local noise), scenario.

    Money is per client in all figures.
    """
    del scratch
    clients = int(config["clients"])
    types = scenario(config["scenario"]).sample(np.random.default_rng([seed, clients]), clients)
    valuation, epsilon = np.asarray(types.valuation), np.asarray(types.epsilon)
    low, high = 0.0, 1e4
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        _, paid = posted_for_local(valuation, epsilon, middle)
        low, high = (middle, high) if paid <= config["money"] * clients else (low, middle)
    sold, paid = posted_for_local(valuation, epsilon, low)
    noise = local_noise(sold)
    local, local_price = cheapest_ration(valuation, epsilon, local_noise, noise)
    shared, shared_price = cheapest_ration(valuation, epsilon, aggregate_noise, noise)
    same, _ = cheapest_ration(valuation, epsilon, aggregate_noise, noise, np.array([local_price]))
    honest = honest_per_cohort(clients, HONEST_SHARE)
    return {
        "noise": noise,
        "local": paid / clients,
        "local_ration": local / clients,
        "local_price": local_price,
        "aggregate": shared / clients,
        "aggregate_price": shared_price,
        "aggregate_at_local_price": same / clients,
        "root_honest": float(np.sqrt(honest)),
    }
