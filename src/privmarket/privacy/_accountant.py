"""What a sequence of releases costs together, by two accountants.

*Rényi accounting* (`RdpAccountant`, `composed_epsilon`) works sale by sale and for many clients at once. The cost
of a release is a row of numbers that add up under composition: the Rényi divergence at each order of `ORDERS`, the
squared parameter μ² of Gaussian differential privacy, and ε at δ = 0 (infinite for Gaussian releases). Each column
alone gives an upper bound on ε, so the smallest bound holds.

*Privacy loss distributions* (`certify`) give tight figures about a finished list of releases: ε at δ, how often a
guess "was this record used?" can be right, and ε at δ when several records belong to one person.

Notation: α an order, σ the noise multiplier, q the sampling rate, ρ the Rényi divergence at α.
"""

from __future__ import annotations

import math
import pkgutil
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from privmarket._lazy import late
from privmarket._settings import DELTA
from privmarket.errors import PrivacyError
from privmarket.privacy._events import (
    OtherRelease,
    PrivacyEvent,
    Release,
    Step,
    require_delta,
    require_release,
    step_counts,
)
from privmarket.privacy._gaussian import Array, delta_of, epsilon_of

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

pld = late("dp_accounting.pld.privacy_loss_distribution")


# dp-accounting's default orders, so that the two agree to rounding.
ORDERS: Array = np.array(
    [1 + x / 10.0 for x in range(1, 100)] + list(range(11, 64)) + [128, 256, 512, 1024], dtype=np.float64
)
ORDERS.setflags(write=False)

# Orders below this one are integrated numerically. From here on orders are whole, and a binomial sum is exact.
_FIRST_BINOMIAL = 11.0
_SUMMED = ORDERS[ORDERS < _FIRST_BINOMIAL]
_WHOLE = ORDERS[ORDERS >= _FIRST_BINOMIAL].astype(np.int64)


GAUSSIAN = ORDERS.size  # the column of μ²
PURE = ORDERS.size + 1  # the column of ε at δ = 0
COLUMNS = ORDERS.size + 2

# How finely privacy losses are binned. Binning is pessimistic: wider bins give a larger ε, never one below the
# truth.
_BINS_PER_EPSILON = 1500
_MAX_BINS_PER_EPSILON = 200_000
_BINS_PER_STEP = 4

# The costs of releases met so far, one row each, so that a round of a thousand clients is one lookup. Noise
# multipliers come from a grid, so a long run meets few different releases. Both are emptied when there are too
# many.
_COSTS: Array = np.empty((0, COLUMNS))
_ROW_OF: dict[Release | None, int] = {}
_MAX_ROWS = 50_000
# Stands for a cost that is not known. It exceeds every wallet's limit and is still finite.
_UNKNOWN_COST = 1e200
_LOCK = threading.Lock()


def step_divergence(noise_multiplier: ArrayLike, sampling_rate: float) -> Array:
    """ρ(α) of one Poisson-sampled Gaussian step at every order.

    Args:
        noise_multiplier: (n,) or a number.

    Returns:
        (n, orders), or (orders,) for a number.

    Implements: Section 3.3 of [MironovTalwarZhang2019]; of the two directions the one with the record in the
    numerator is the larger, as shown there, so one suffices for add/remove.
    """
    sigma = np.atleast_1d(np.asarray(noise_multiplier, dtype=np.float64))
    if sampling_rate == 1.0:
        rows = ORDERS / (2.0 * sigma[:, None] ** 2)
    else:
        summed = np.stack([_log_moment_integral(s, sampling_rate) for s in sigma])
        whole = _log_moment_binomial(sigma, sampling_rate)
        # log of a moment is ≥ 0; rounding may leave it at −1e-16.
        rows = np.maximum(np.concatenate([summed, whole], axis=1), 0.0) / (ORDERS - 1.0)
    return rows if np.ndim(noise_multiplier) else rows[0]


def epsilon_from_divergence(divergence: ArrayLike, delta: float) -> Array:
    """The ε that ρ(α), known at every order, certifies at δ. (..., orders) → (...,).

    Implements: Proposition 12 of [CanonneKamathSteinke2020]; ε = 0 where the total variation, bounded
    through the divergence of order 1 or more, is below δ.
    """
    rho = np.asarray(divergence, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        candidate = rho + conversion_cost(ORDERS, delta)
    # TV ≤ √(1 − e^(−KL)) and KL ≤ ρ(α), Bretagnolle–Huber.
    tiny = -np.expm1(-rho) < delta**2
    return np.asarray(np.maximum(np.where(tiny, 0.0, candidate).min(axis=-1), 0.0))


def conversion_cost(order: ArrayLike, delta: float) -> Array:
    """ε − ρ(α) when the Rényi divergence at order α is converted to ε at δ; negative for some large orders."""
    a = np.asarray(order, dtype=np.float64)
    return np.log1p(-1.0 / a) - np.log(delta * a) / (a - 1.0)


def _log_moment_binomial(sigma: Array, q: float) -> Array:
    """(n, whole orders) log E[(1 − q + q e^loss)^α] by the binomial theorem, in logarithms."""
    starts = np.concatenate([[0], np.cumsum(_WHOLE + 1)[:-1]])
    alpha = np.repeat(_WHOLE, _WHOLE + 1).astype(np.float64)
    i = np.concatenate([np.arange(a + 1) for a in _WHOLE]).astype(np.float64)
    choose = gammaln(alpha + 1) - gammaln(i + 1) - gammaln(alpha - i + 1)
    constant = choose + i * np.log(q) + (alpha - i) * np.log1p(-q)
    terms = constant + (i * i - i) / (2.0 * sigma[:, None] ** 2)
    top = np.maximum.reduceat(terms, starts, axis=1)
    scaled = np.exp(terms - np.repeat(top, _WHOLE + 1, axis=1))
    return np.asarray(top + np.log(np.add.reduceat(scaled, starts, axis=1)))


def _log_moment_integral(sigma: float, q: float) -> Array:
    """(orders below 11,) log E[(1 − q + q e^loss)^α] under N(0, σ²), by the trapezoidal rule.

    The integrand is analytic in a strip of half-width πσ² and falls like a Gaussian, so the rule converges
    exponentially in 1/spacing; the spacing is small against both σ and σ².
    """
    spacing = min(sigma / 8.0, sigma**2 / 2.0)
    z = np.arange(-13.0 * sigma, _SUMMED[-1] + 13.0 * sigma, spacing)
    log_density = -0.5 * (z / sigma) ** 2 - 0.5 * np.log(2 * np.pi) - np.log(sigma)
    log_ratio = np.logaddexp(np.log1p(-q), np.log(q) + (2.0 * z - 1.0) / (2.0 * sigma**2))
    exponent = _SUMMED[:, None] * log_ratio + log_density
    top = exponent.max(axis=1)
    total: NDArray[np.float64] = np.exp(exponent - top[:, None]).sum(axis=1)
    return np.asarray(top + np.log(total * spacing))


def composed_cost(events: Iterable[Release | None]) -> Array:
    """(columns,) the cost of all the releases together.

    Implements: adaptive composition, Proposition 1 of [Mironov2017] for the divergences and Corollary 3.3 of
    [DongRothSu2022] for μ²: in every column costs add up.
    """
    counts = step_counts(events)
    steps = release_costs([PrivacyEvent(*step) if isinstance(step, Step) else step for step in counts])
    return np.array(list(counts.values()), dtype=np.float64) @ steps  # the composition theorem is this line


def release_costs(events: Sequence[Release | None]) -> Array:
    """(events, columns) the cost of each release on its own; zero for None."""
    with _LOCK:  # a broker answers in many threads, and rows must not move while one of them reads
        missing = [event for event in dict.fromkeys(events) if event not in _ROW_OF]
        for event in missing:
            if event is not None:
                require_release(event)
        if missing:
            _remember(missing, events)
        return _COSTS[[_ROW_OF[event] for event in events]]


def epsilon_of_cost(cost: Array, delta: float = DELTA) -> Array:
    """ε at δ of a cost, (..., columns) → (...,): the smallest of the Rényi, the Gaussian and the pure bound.

    The Gaussian bound is exact for full-batch releases and far too large for sampled ones. The pure bound, a sum
    of ε, is finite if every release has an ε at δ = 0, and is then the best one for a few releases.
    """
    require_delta(delta)
    renyi = epsilon_from_divergence(cost[..., :GAUSSIAN], delta)
    normal = epsilon_of(np.sqrt(cost[..., GAUSSIAN]), delta)
    return np.asarray(np.minimum(np.minimum(renyi, normal), cost[..., PURE]))


def composed_epsilon(events: Iterable[Release | None], delta: float = DELTA) -> float:
    """ε at δ of all the releases together."""
    return float(epsilon_of_cost(composed_cost(events), delta))


def renyi_epsilon(events: Iterable[Release | None], delta: float = DELTA) -> float:
    """ε at δ of all the releases together, by Rényi accounting alone."""
    require_delta(delta)
    return float(epsilon_from_divergence(composed_cost(events)[:GAUSSIAN], delta))


class Accountant(Protocol):
    """The two methods of an accountant, named as in dp-accounting. An accountant of your own needs no others."""

    def compose(self, event: Release, count: int = 1) -> object:
        """Adds `count` releases, each at least as private as `event`, to what was released."""

    def get_epsilon(self, delta: float) -> float:
        """An ε, not below the truth, at which everything composed so far is (ε, δ)-DP."""


class RdpAccountant:
    """What one client's releases cost together, by Rényi accounting: `compose`, then `get_epsilon`.

    It composes and is asked like dp-accounting's `RdpAccountant`, for the releases of this package. Full-batch
    Gaussian releases are also counted by μ², which is exact for them, so its ε is never above the one that
    dp-accounting reports.
    """

    def __init__(self) -> None:
        self._all = RdpAccountants(1)

    def compose(self, event: Release | None, count: int = 1) -> RdpAccountant:
        """Adds `count` releases of one kind, and returns the accountant; None adds nothing."""
        self._all.compose([event], count)
        return self

    def get_epsilon(self, delta: float = DELTA) -> float:
        """ε at δ of everything composed so far, had it been fixed in advance."""
        return float(self._all.get_epsilon(delta)[0])


class PldAccountant:
    """What one client's releases cost together, by privacy loss distributions: tighter, but slower when sampled."""

    def __init__(self) -> None:
        self._counts: dict[Release, int] = {}

    def compose(self, event: Release | None, count: int = 1) -> PldAccountant:
        """Adds `count` releases of one kind, and returns the accountant; None adds nothing."""
        require_count(count)
        if event is not None:
            require_release(event)
            self._counts[event] = self._counts.get(event, 0) + count
        return self

    def get_epsilon(self, delta: float = DELTA) -> float:
        """ε at δ of everything composed so far, had it been fixed in advance."""
        require_delta(delta)
        steps: dict[Step | OtherRelease, int] = {}
        bound = RdpAccountant()
        for event, count in self._counts.items():
            bound.compose(event, count)
            for step, times in step_counts([event]).items():
                steps[step] = steps.get(step, 0) + times * count
        return _epsilon_and_advantage(tuple(steps.items()), delta, guess=bound.get_epsilon(delta))[0]


class RdpAccountants:
    """The Rényi accountants of many clients, composed together.

    The list of events is the record; the totals are a cache that can be computed again from it (`recomputed`).

    Attributes:
        cost: (clients, columns) what each client has released so far.
    """

    def __init__(self, clients: int) -> None:
        if clients < 1:
            raise PrivacyError(f"accountants for {clients} clients", "give at least one client")
        self.cost: Array = np.zeros((clients, COLUMNS))
        self._history: list[tuple[tuple[Release | None, ...], int]] = []

    @property
    def clients(self) -> int:
        """The number of clients that are accounted for."""
        return int(self.cost.shape[0])

    @property
    def divergence(self) -> Array:
        """(clients, orders) the Rényi divergence of everything each client has released."""
        return self.cost[:, :GAUSSIAN]

    @property
    def history(self) -> tuple[tuple[tuple[Release | None, ...], int], ...]:
        """One entry per call of `compose`: each client's release, None where there is none, and the count."""
        return tuple(self._history)

    def compose(self, events: Sequence[Release | None], count: int = 1) -> RdpAccountants:
        """Adds a round, `count` times: one release per client, None where a client released nothing.

        Everything is checked before anything changes.
        """
        require_count(count)
        if len(events) != self.clients:
            raise PrivacyError(
                f"{len(events)} events for {self.clients} clients", "give one event (or None) per client"
            )
        self.cost += count * release_costs(events)
        self._history.append((tuple(events), count))
        return self

    def get_epsilon(self, delta: float = DELTA) -> Array:
        """(clients,) ε at δ of everything each client has released."""
        return epsilon_of_cost(self.cost, delta)

    def recomputed(self) -> RdpAccountants:
        """New accountants whose totals are computed again from the events of these."""
        fresh = RdpAccountants(self.clients)
        for events, count in self._history:
            fresh.compose(events, count)
        return fresh


def accounted_epsilon(
    events: Iterable[Release | None], delta: float = DELTA, *, accountant: str | Callable[[], Accountant] = "rdp"
) -> float:
    """ε at δ of all the releases together, by the accountant of your choice.

    Args:
        accountant: "rdp", "pld", a class of your own, or where to import one from, as `package.module:Class`. It is
            made without arguments. Nothing here checks that its ε is an upper bound.
    """
    require_delta(delta)
    make = _accountant_class(accountant) if isinstance(accountant, str) else accountant
    asked = make()
    counts: dict[Release, int] = {}
    for event in events:
        if event is not None:
            counts[event] = counts.get(event, 0) + 1
    for event, count in counts.items():
        asked.compose(event, count)
    return float(asked.get_epsilon(delta))


def _accountant_class(name: str) -> Callable[[], Accountant]:
    if name in _ACCOUNTANTS:
        return _ACCOUNTANTS[name]
    hint = "give rdp, pld, or package.module:Class"
    if ":" not in name:
        raise PrivacyError(f"unknown accountant {name!r}", hint)
    try:
        found: Callable[[], Accountant] = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise PrivacyError(f"accountant {name!r} cannot be imported: {error}", hint) from error
    return found


_ACCOUNTANTS: dict[str, Callable[[], Accountant]] = {"rdp": RdpAccountant, "pld": PldAccountant}


def require_count(count: int) -> None:
    """Refuses a number of releases that is not whole, or below 1."""
    if count != int(count) or count < 1:
        raise PrivacyError(f"{count} releases: must be a whole number, at least 1", "leave out the release")


def _remember(missing: Sequence[Release | None], events: Sequence[Release | None]) -> None:
    """Computes the costs of `missing` releases, in one pass per sampling rate, and keeps them.

    If that makes too many rows, all are dropped and those of `events` are computed again.
    """
    global _COSTS
    if len(_ROW_OF) + len(missing) > _MAX_ROWS:
        _ROW_OF.clear()
        _COSTS = np.empty((0, COLUMNS))
        missing = list(dict.fromkeys(events))
    costs = np.zeros((len(missing), COLUMNS))
    rates = np.array([event.sampling_rate if isinstance(event, PrivacyEvent) else 0.0 for event in missing])
    for rate in dict.fromkeys(rates[rates > 0].tolist()):
        places = np.flatnonzero(rates == rate)
        same = [event for event in missing if isinstance(event, PrivacyEvent) and event.sampling_rate == rate]
        noise, steps = np.array([(event.noise_multiplier, event.steps) for event in same], dtype=np.float64).T
        # Sampling never costs privacy, so a sampled step is also 1/σ-Gaussian.
        costs[places, :PURE] = steps[:, None] * np.column_stack([step_divergence(noise, rate), noise**-2])
        costs[places, PURE] = _UNKNOWN_COST
    for place, event in enumerate(missing):
        if isinstance(event, OtherRelease):
            costs[place] = _other_cost(event)
    _ROW_OF.update({event: len(_COSTS) + row for row, event in enumerate(missing)})
    _COSTS = np.concatenate([_COSTS, costs])


def _other_cost(release: OtherRelease) -> Array:
    """(columns,) what a release of another kind says that it costs."""
    divergence = np.asarray(release.renyi_divergence(ORDERS), dtype=np.float64)
    mu = float(release.gaussian_mu)
    pure = float(release.pure_epsilon)
    if divergence.shape != ORDERS.shape or not (divergence >= 0).all() or not (mu >= 0 and pure >= 0):
        raise PrivacyError(
            f"{release}: a Rényi divergence of shape {divergence.shape}, or figures below 0 or not a number",
            "give one divergence per order, a μ and an ε, all at least 0",
        )
    return np.asarray(np.minimum(np.append(divergence, [min(mu, 1e100) ** 2, pure]), _UNKNOWN_COST))


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
    events: Sequence[Release | None],
    delta: float = DELTA,
    *,
    unit: str = "record",
    arithmetic: str = "exact",
) -> Certificate:
    """How much all the releases together reveal about one unit: whether its contribution was present or zeroed out.

    Both accountants give upper bounds on ε, so the smaller one holds. `guess_accuracy` comes from the whole loss
    distribution, which is far tighter than what (ε, δ) alone says.

    Implements: privacy loss distributions of [KoskelaEtAl2020] with the discretisation of
    [DoroshenkoEtAl2022], by dp-accounting; Rényi accounting of [Mironov2017].
    Assumes: the noise multipliers did not depend on earlier outputs. If they did, only a wallet's cap holds.
    """
    require_delta(delta)
    rdp = renyi_epsilon(events, delta)
    counts = step_counts(events)
    by_pld, advantage = _epsilon_and_advantage(tuple(counts.items()), delta, guess=rdp)
    made = sum(event is not None for event in events)
    epsilon = min(rdp, by_pld)
    accuracy = min(guess_accuracy(epsilon, delta), 0.5 + 0.5 * min(1.0, advantage + 2.0 * delta)) if made else 0.5
    steps = sum(counts.values())
    return Certificate(delta, epsilon, rdp, by_pld, made, steps, accuracy, unit, arithmetic)


def guess_accuracy(epsilon: float, delta: float = DELTA) -> float:
    """The largest share of right guesses that any (ε, δ)-DP release allows, at even odds: (e^ε + δ)/(1 + e^ε).

    Implements: the vertex of the two lines of Theorem 2.1 of [KairouzOhViswanath2015], where the sum of both error
    rates is least: 2(1 − δ)/(1 + e^ε).
    """
    return 1.0 - (1.0 - delta) / (1.0 + math.exp(min(epsilon, 700.0)))


def group_epsilon(events: Sequence[Release | None], delta: float = DELTA, *, records: int = 5) -> float:
    """ε at δ of all the releases together for `records` records of one person, zeroed out at once.

    Infinite where a release does not say what it costs a group (`OtherRelease.for_group`).

    Implements: group privacy of [DongRothSu2022] for full batches, where μ becomes `records`·μ; mixtures of
    Gaussians, [Ganesh2024], where batches are sampled: the number of the person's records in a batch is binomial.
    """
    require_delta(delta)
    if records < 1:
        raise PrivacyError(f"a group of {records} records", "give at least 1")
    bound = renyi_epsilon(events, delta) * records
    return _epsilon_and_advantage(tuple(step_counts(events).items()), delta, guess=bound, records=records)[0]


@lru_cache(maxsize=256)  # an account and its promise ask for the same figures
def _epsilon_and_advantage(
    counted: tuple[tuple[Step | OtherRelease, int], ...], delta: float, guess: float, records: int = 1
) -> tuple[float, float]:
    """ε at δ, and δ at ε = 0: the total variation distance between the two worlds."""
    if not counted:
        return 0.0, 0.0
    counts = {step: count for step, count in counted if isinstance(step, Step)}
    others: dict[OtherRelease, int] = {}
    for release, count in counted:
        if isinstance(release, OtherRelease):
            seen = release if records == 1 else release.for_group(records)
            if seen is None:
                return math.inf, 1.0
            others[seen] = count
    # Gaussians over the full batch merge into one, Σ 1/σ², whose loss distribution is known in closed form.
    inverse_square = sum(n / s.noise_multiplier**2 for s, n in counts.items() if s.sampling_rate == 1.0)
    if not others and all(step.sampling_rate == 1.0 for step in counts):
        mu = records * math.sqrt(inverse_square)
        return float(epsilon_of(mu, delta)), float(delta_of(0.0, mu))
    spacing = _bin_width(list(counts), list(others), max(guess, 0.01), records)
    total = pld.identity(value_discretization_interval=spacing)
    if inverse_square > 0:
        sigma = inverse_square**-0.5 / records
        total = pld.from_gaussian_mechanism(sigma, value_discretization_interval=spacing)
    for step, count in counts.items():
        if step.sampling_rate < 1.0:
            total = total.compose(_sampled(step, records, spacing).self_compose(count))
    for release, count in others.items():
        loss = release.loss_distribution(spacing)
        if loss is None:
            return math.inf, 1.0
        total = total.compose(loss.self_compose(count))
    return float(total.get_epsilon_for_delta(delta)), float(total.get_delta_for_epsilon(0.0))


def _sampled(step: Step, records: int, spacing: float) -> PrivacyLossDistribution:
    """The loss distribution of one Poisson-sampled step for a group of records."""
    if records == 1:
        return pld.from_gaussian_mechanism(
            step.noise_multiplier, sampling_prob=step.sampling_rate, value_discretization_interval=spacing
        )
    q = step.sampling_rate
    drawn = range(records + 1)
    return pld.from_mixture_gaussian_mechanism(
        step.noise_multiplier,
        [float(j) for j in drawn],
        [math.comb(records, j) * q**j * (1.0 - q) ** (records - j) for j in drawn],
        value_discretization_interval=spacing,
    )


def _bin_width(steps: Sequence[Step], others: Sequence[OtherRelease], total: float, records: int = 1) -> float:
    """The bin width of the losses: small against the total ε and against the spread of each step's loss.

    The loss of a sampled step has standard deviation near q·√(e^(1/σ²) − 1), that of a group at least `records`
    times as much, and bins of width h add up to h²/4 to its variance. The distribution of a group takes long to
    compute, so its bins are as wide as its losses allow.
    """
    spreads = [s.sampling_rate * math.sqrt(math.expm1(min(s.noise_multiplier**-2, 50.0))) for s in steps]
    # The divergence of a small order is about half of the losses' variance.
    spreads += [math.sqrt(2.0 * float(other.renyi_divergence(ORDERS[:1])[0])) for other in others]
    spread = min(spreads)
    width = records * min(total / _BINS_PER_EPSILON, spread / _BINS_PER_STEP, 4e-3)
    return max(width, total / _MAX_BINS_PER_EPSILON)
