"""Tight figures about a finished list of releases, by privacy loss distributions.

Three questions about one loss distribution: ε at δ; how often a guess "was this record used?" can be right; and
ε at δ when several records belong to one person.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from privmarket._lazy import late
from privmarket._settings import DELTA
from privmarket.errors import PrivacyError
from privmarket.privacy._accountant import renyi_epsilon
from privmarket.privacy._events import PrivacyEvent, Step, require_delta, step_counts
from privmarket.privacy._gaussian import delta_of, epsilon_of

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

pld = late("dp_accounting.pld.privacy_loss_distribution")

# How finely losses are binned: binning is pessimistic, so it costs tightness, never validity.
_BINS_PER_EPSILON, _MAX_BINS_PER_EPSILON, _BINS_PER_STEP = 1500, 200_000, 4


@dataclass(frozen=True)
class Certificate:
    """What a list of releases adds up to.

    Attributes:
        delta: the δ at which both figures hold.
        epsilon: the better of the two.
        epsilon_rdp: by Rényi accounting.
        epsilon_pld: by privacy loss distributions.
        releases: how many events were counted.
        steps: how many noisy sums they held.
        guess_accuracy: the largest share of right guesses on whether a unit was used, at even odds.
        unit: what is zeroed out: a record, or all records of a person.
        arithmetic: `exact` for the bits that leave the machine, or `float`: not private in floating point.
    """

    delta: float
    epsilon: float
    epsilon_rdp: float
    epsilon_pld: float
    releases: int
    steps: int
    guess_accuracy: float
    unit: str = "record"
    arithmetic: str = "exact"


def certify(
    events: Sequence[PrivacyEvent | None],
    delta: float = DELTA,
    *,
    unit: str = "record",
    arithmetic: str = "exact",
) -> Certificate:
    """What all the releases together tell about one unit: its contribution present, or zeroed out.

    Both accountants give upper bounds on ε, so the smaller one holds. `guess_accuracy` comes from the whole loss
    distribution, which is far tighter than what (ε, δ) alone says.

    Implements: privacy loss distributions of [KoskelaEtAl2020] with the discretisation of
    [DoroshenkoEtAl2022], by dp-accounting; Rényi accounting of [Mironov2017].
    Assumes: the list of noise multipliers did not depend on earlier outputs. Where it did, a wallet's cap is
    what holds.
    """
    require_delta(delta)
    rdp = renyi_epsilon(events, delta)
    counts = step_counts(events)
    pld, advantage = _epsilon_and_advantage(tuple(counts.items()), delta, guess=rdp)
    made = sum(event is not None for event in events)
    epsilon = min(rdp, pld)
    accuracy = min(guess_accuracy(epsilon, delta), 0.5 + 0.5 * min(1.0, advantage + 2.0 * delta)) if made else 0.5
    steps = sum(counts.values())
    return Certificate(delta, epsilon, rdp, pld, made, steps, accuracy, unit, arithmetic)


def guess_accuracy(epsilon: float, delta: float = DELTA) -> float:
    """The largest share of right guesses that any (ε, δ)-DP release allows, at even odds: (e^ε + δ)/(1 + e^ε).

    Implements: the vertex of the two lines of Theorem 2.1 of [KairouzOhViswanath2015], where the sum of both error
    rates is least: 2(1 − δ)/(1 + e^ε).
    """
    return 1.0 - (1.0 - delta) / (1.0 + math.exp(min(epsilon, 700.0)))


def group_epsilon(events: Sequence[PrivacyEvent | None], delta: float = DELTA, *, records: int = 5) -> float:
    """ε at δ of all the releases together for `records` records of one person, zeroed out at once.

    Implements: group privacy of [DongRothSu2022] for full batches, where μ becomes `records`·μ; mixtures of
    Gaussians, [Ganesh2024], where batches are sampled: the number of the person's records in a batch is binomial.
    """
    require_delta(delta)
    if records < 1:
        raise PrivacyError(f"a group of {records} records", "give at least 1")
    bound = renyi_epsilon(events, delta) * records
    return _epsilon_and_advantage(tuple(step_counts(events).items()), delta, guess=bound, records=records)[0]


@lru_cache(maxsize=256)  # an account and its promise ask the same
def _epsilon_and_advantage(
    counted: tuple[tuple[Step, int], ...], delta: float, guess: float, records: int = 1
) -> tuple[float, float]:
    """ε at δ, and δ at ε = 0: the total variation distance between the two worlds."""
    counts = dict(counted)
    if not counts:
        return 0.0, 0.0
    # Gaussians over the full batch merge into one, Σ 1/σ², whose loss distribution is known in closed form.
    inverse_square = sum(n / s.noise_multiplier**2 for s, n in counts.items() if s.sampling_rate == 1.0)
    if all(step.sampling_rate == 1.0 for step in counts):
        mu = records * math.sqrt(inverse_square)
        return float(epsilon_of(mu, delta)), float(delta_of(0.0, mu))
    spacing = _bin_width(list(counts), max(guess, 0.01), records)
    total = pld.identity(value_discretization_interval=spacing)
    if inverse_square > 0:
        sigma = inverse_square**-0.5 / records
        total = pld.from_gaussian_mechanism(sigma, value_discretization_interval=spacing)
    for step, count in counts.items():
        if step.sampling_rate < 1.0:
            total = total.compose(_sampled(step, records, spacing).self_compose(count))
    return float(total.get_epsilon_for_delta(delta)), float(total.get_delta_for_epsilon(0.0))


def _sampled(step: Step, records: int, spacing: float) -> PrivacyLossDistribution:
    """The loss distribution of one Poisson-sampled step for a group of records."""
    if records == 1:
        return pld.from_gaussian_mechanism(
            step.noise_multiplier, sampling_prob=step.sampling_rate, value_discretization_interval=spacing
        )
    q, drawn = step.sampling_rate, range(records + 1)
    return pld.from_mixture_gaussian_mechanism(
        step.noise_multiplier,
        [float(j) for j in drawn],
        [math.comb(records, j) * q**j * (1.0 - q) ** (records - j) for j in drawn],
        value_discretization_interval=spacing,
    )


def _bin_width(steps: Sequence[Step], total: float, records: int = 1) -> float:
    """Fine against the total ε and against the spread of each step's loss, which the bins widen.

    The loss of a sampled step has standard deviation near q·√(e^(1/σ²) − 1), that of a group at least `records`
    times that; a bin of h adds up to h²/4. A group's bins are dear, so they are as wide as its losses are.
    """
    spread = min(s.sampling_rate * math.sqrt(math.expm1(min(s.noise_multiplier**-2, 50.0))) for s in steps)
    width = records * min(total / _BINS_PER_EPSILON, spread / _BINS_PER_STEP, 4e-3)
    return max(width, total / _MAX_BINS_PER_EPSILON)
