"""The tight figure at the end: ε of a finished list of releases, by privacy loss distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from privmarket.privacy.accountant import renyi_epsilon
from privmarket.privacy.events import DEFAULT_DELTA, PrivacyEvent, Step, require_delta, step_counts
from privmarket.privacy.gaussian import epsilon_of

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
    """

    delta: float
    epsilon: float
    epsilon_rdp: float
    epsilon_pld: float
    releases: int
    steps: int


def certify(events: Sequence[PrivacyEvent | None], delta: float = DEFAULT_DELTA) -> Certificate:
    """ε at δ of all the releases together, for one record added or removed.

    Both accountants give upper bounds, so the smaller one holds.

    Implements: privacy loss distributions of [KoskelaEtAl2020] with the discretisation of
    [DoroshenkoEtAl2022], by dp-accounting; Rényi accounting of [Mironov2017].
    Assumes: the list of noise multipliers did not depend on earlier outputs. Where it did, a wallet's cap is
    what holds.
    """
    require_delta(delta)
    rdp = renyi_epsilon(events, delta)
    pld = _pld_epsilon(events, delta, guess=rdp)
    counts = step_counts(events)
    made = sum(event is not None for event in events)
    return Certificate(delta, min(rdp, pld), rdp, pld, made, sum(counts.values()))


def _pld_epsilon(events: Sequence[PrivacyEvent | None], delta: float, guess: float) -> float:
    counts = step_counts(events)
    # Gaussians over the full batch merge into one, Σ 1/σ², whose loss distribution is known in closed form.
    inverse_square = sum(n / s.noise_multiplier**2 for s, n in counts.items() if s.sampling_rate == 1.0)
    if all(step.sampling_rate == 1.0 for step in counts):
        return float(epsilon_of(math.sqrt(inverse_square), delta)) if counts else 0.0
    spacing = _bin_width(list(counts), max(guess, 0.01))
    from dp_accounting.pld import privacy_loss_distribution as pld

    total = pld.identity(value_discretization_interval=spacing)
    if inverse_square > 0:
        total = pld.from_gaussian_mechanism(inverse_square**-0.5, value_discretization_interval=spacing)
    for step, count in counts.items():
        if step.sampling_rate < 1.0:
            one = pld.from_gaussian_mechanism(
                step.noise_multiplier,
                sampling_prob=step.sampling_rate,
                value_discretization_interval=spacing,
            )
            total = total.compose(one.self_compose(count))
    return float(total.get_epsilon_for_delta(delta))


def _bin_width(steps: Sequence[Step], total: float) -> float:
    """Fine against the total ε and against the spread of each step's loss, which the bins widen.

    The loss of a sampled step has standard deviation near q·√(e^(1/σ²) − 1); a bin of h adds up to h²/4.
    """
    spread = min(s.sampling_rate * math.sqrt(math.expm1(min(s.noise_multiplier**-2, 50.0))) for s in steps)
    width = min(total / _BINS_PER_EPSILON, spread / _BINS_PER_STEP, 4e-3)
    return max(width, total / _MAX_BINS_PER_EPSILON)
