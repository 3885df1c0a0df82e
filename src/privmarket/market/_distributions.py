"""Distributions that clients are drawn from: by name, from past bids, from SciPy, or objects of one's own.

A distribution gives samples. For the bounds it also gives what is known of itself: independent ones their quantile
functions, empirical ones their rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from privmarket._lazy import late
from privmarket._settings import EPSILON_MAX
from privmarket.errors import BidError, ConfigurationError, UnknownNameError
from privmarket.market._bids import Array, Bids, read_bids

# SciPy takes longer to load than all the rest of the market, and few distributions need it.
special = late("scipy.special")
stats = late("scipy.stats")

Quantile = Callable[[Array], Array]


class Sampler(Protocol):
    """An object of one's own that draws clients; `distribution` makes a `Distribution` of it.

    Optional attributes: `name`, `epsilon_max`, and `independent` (see `Distribution`).
    """

    def sample(self, rng: np.random.Generator, clients: int) -> Bids:
        """Draws truthful bids, (clients,), each client independently of the others."""
        ...


class Distribution(ABC):
    """A distribution of clients. The clients of a market are drawn from it independently of each other.

    Attributes:
        name: what tables call it.
        epsilon_max: the public limit on offers in this market, a constant, never computed from bids.
        independent: whether v is independent of ε and of the number of records. Where it is not declared, bounds
            let prices depend on these.
    """

    name: str
    epsilon_max: float
    independent: bool = False

    @abstractmethod
    def sample(self, rng: np.random.Generator, clients: int, markets: tuple[int, ...] = ()) -> Bids:
        """Draws truthful bids of shape (*markets, clients)."""


@dataclass(frozen=True)
class IndependentDistribution(Distribution):
    """Valuation and ε drawn independently, each by its quantile function on (0, 1).

    `data_size`, where given, is drawn independently too; None means that all clients hold as many records. `past`
    are the bids that the quantiles were read off, where there are any.
    """

    name: str
    valuation: Quantile
    epsilon: Quantile
    epsilon_max: float = EPSILON_MAX
    data_size: Quantile | None = None
    past: Bids | None = None
    independent: ClassVar[bool] = True  # type: ignore[misc]

    @staticmethod
    def of_columns(name: str, past: Bids) -> IndependentDistribution:
        """The columns of past bids, each drawn by itself: how a file is declared to be independent."""

        def quantile(column: Array) -> Quantile:
            ranked = np.sort(column)
            return lambda u: ranked[np.minimum((np.asarray(u) * ranked.size).astype(int), ranked.size - 1)]

        sizes = None if past.data_size is None else quantile(past.data_size)
        top = float(past.epsilon.max())
        return IndependentDistribution(name, quantile(past.valuation), quantile(past.epsilon), top, sizes, past)

    def sample(self, rng: np.random.Generator, clients: int, markets: tuple[int, ...] = ()) -> Bids:
        """Draws truthful bids of shape (*markets, clients), valuations and caps independent of each other."""
        shape = (*markets, clients)

        def draw() -> Array:
            # Quantile functions may be infinite at 0 and 1.
            return np.clip(rng.random(shape), 1e-12, 1 - 1e-12)

        valuation = self.valuation(draw())
        epsilon = self.epsilon(draw())
        return Bids(valuation, epsilon, None if self.data_size is None else self.data_size(draw()))


@dataclass(frozen=True)
class EmpiricalDistribution(Distribution):
    """Clients drawn with replacement from the rows of past bids, (clients,), so that v and ε stay together."""

    name: str
    past: Bids
    epsilon_max: float = field(default=0.0)

    def __post_init__(self) -> None:
        if self.past.clients < 2:
            raise ConfigurationError(
                f"{self.name}: a distribution needs at least 2 past bids, got {self.past.clients}",
                "collect more bids, or use a named scenario",
            )
        if self.epsilon_max <= 0:
            object.__setattr__(self, "epsilon_max", float(self.past.epsilon.max()))

    def sample(self, rng: np.random.Generator, clients: int, markets: tuple[int, ...] = ()) -> Bids:
        """Draws truthful bids of shape (*markets, clients) from the past bids, with replacement."""
        return self.past[rng.integers(self.past.clients, size=(*markets, clients))]


def mean_ranks(column: Array) -> Array:
    """The ranks of numbers, same shape; equal ones share the mean of theirs, whatever their order."""
    _, place, times = np.unique(column, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(times) - 0.5 * (times - 1))[place.reshape(column.shape)])


def independence_test(past: Bids, column: str = "epsilon", permutations: int = 999) -> float:
    """How well past bids, (clients,), fit the belief that v has nothing to do with a column: the p-value of a test.

    A permutation test: the column is dealt to the valuations anew, and the share of deals counts that show at least
    as much dependence. Dependence is Spearman's correlation of ranks, of v with the column and of v's distance from
    the median with it, so that a valley or a hill is seen as well as a slope.

    Args:
        column: `epsilon` or `data_size`.
    """

    def centred(column: Array) -> Array:
        ranks = mean_ranks(column)
        return np.asarray(ranks - ranks.mean())

    slope = centred(past.valuation)
    valley = centred(np.abs(slope))
    measures = np.stack([one / max(float(np.linalg.norm(one)), 1e-300) for one in (slope, valley)])
    given = centred(getattr(past, column))
    rng = np.random.default_rng(0)
    dealt = np.stack([given, *(rng.permutation(given) for _ in range(permutations))])
    found = np.abs(dealt @ measures.T).max(axis=1)
    return float((found >= found[0] * (1 - 1e-12)).mean())


@dataclass(frozen=True)
class ValuationFunction:
    """v = a·u/ε + b·|D| + c·Δ, what a client's privacy is worth to it.

    Implements: Eq. (valuation-fn) of [Sun2026]; its experiments set (a, b, c) = (1, 0, 0).
    """

    accuracy_weight: float = 1.0
    size_weight: float = 0.0
    divergence_weight: float = 0.0

    def __call__(self, accuracy: Array, epsilon: Array, data_size: Array, divergence: Array) -> Array:
        """All arguments and the result have one shape, (..., clients)."""
        return (
            self.accuracy_weight * accuracy / epsilon
            + self.size_weight * data_size
            + self.divergence_weight * divergence
        )


@dataclass(frozen=True)
class DerivedDistribution(Distribution):
    """Valuations computed from what a client is, not drawn: they fall with ε, so v and ε are dependent.

    Draws local accuracy from [0.5, 1], records from [100, 1000] and the distance Δ between local and global
    label frequencies from [0, 1], all uniform.
    """

    name: str
    epsilon: Quantile
    function: ValuationFunction = ValuationFunction()
    epsilon_max: float = EPSILON_MAX

    def sample(self, rng: np.random.Generator, clients: int, markets: tuple[int, ...] = ()) -> Bids:
        """Draws truthful bids of shape (*markets, clients), valuations computed from the other fields."""
        return self.clients_with(rng, self.epsilon(rng.random((*markets, clients))))

    def clients_with(self, rng: np.random.Generator, epsilon: Array) -> Bids:
        """Draws clients whose offers are given; the bids have the shape of `epsilon`."""
        shape = epsilon.shape
        accuracy = rng.uniform(0.5, 1.0, shape)
        records = rng.uniform(100.0, 1000.0, shape)
        valuation = self.function(accuracy, epsilon, records, rng.random(shape))
        return Bids(valuation, epsilon, data_size=records, accuracy=accuracy)


def _between(low: float, high: float) -> Quantile:
    return lambda u: low + (high - low) * np.asarray(u)


def _two_groups(u: Array) -> Array:
    """ε of Table II's Bimodal row: half in [0.1, 0.5], half in [2, 5]."""
    u = np.asarray(u)
    return np.where(u < 0.5, 0.1 + 0.8 * u, 2.0 + 6.0 * (u - 0.5))


def _log_normal(u: Array) -> Array:
    return np.asarray(np.exp(0.5 * special.ndtri(u)))


# Table II of [Sun2026]. It leaves v open for Bimodal and ε open for LogNormal: we keep the Uniform row's.
SCENARIOS: dict[str, Distribution] = {
    "uniform": IndependentDistribution("uniform", _between(0.0, 1.0), _between(0.1, 5.0)),
    "bimodal": IndependentDistribution("bimodal", _between(0.0, 1.0), _two_groups),
    "lognormal": IndependentDistribution("lognormal", _log_normal, _between(0.1, 5.0)),
    "valuation-function": DerivedDistribution("valuation-function", _between(0.1, 5.0)),
}


@dataclass(frozen=True, eq=False)
class SampledDistribution(Distribution):
    """A distribution known only by its samples: an object of the user's own."""

    name: str
    sampler: Sampler
    epsilon_max: float = EPSILON_MAX
    independent: bool = False

    def sample(self, rng: np.random.Generator, clients: int, markets: tuple[int, ...] = ()) -> Bids:
        """Draws truthful bids of shape (*markets, clients), one market after the other.

        Raises:
            BidError: the object returned something else than `clients` bids, or offers above the limit.
        """
        count = int(np.prod(markets))
        drawn = [self._market(rng, clients) for _ in range(count)]
        fields: dict[str, Any] = {}
        for name in ("valuation", "epsilon", "data_size", "accuracy"):
            columns = [getattr(one, name) for one in drawn]
            if all(column is not None for column in columns):
                fields[name] = np.stack(columns).reshape(*markets, clients)
        return Bids(**fields)

    def _market(self, rng: np.random.Generator, clients: int) -> Bids:
        found = self.sampler.sample(rng, clients)
        if not isinstance(found, Bids) or found.shape != (clients,):
            what = f"bids of shape {found.shape}" if isinstance(found, Bids) else type(found).__name__
            raise BidError(
                f"{self.name}: sample(rng, {clients}) returned {what}",
                f"return privmarket.Bids(valuation, epsilon) of {clients} clients",
            )
        found.refuse_above(self.epsilon_max)
        return found


# Markets and clients that are drawn to see whether the clients of one market are independent of each other, and the
# probability with which independent ones are refused.
_CHECKED_MARKETS = 200
_CHECKED_CLIENTS = 10
_FALSE_ALARM = 1e-9
_OWN_PACKAGE = "privmarket."


def _refuse_common_shocks(found: Distribution) -> None:
    """Refuses markets whose clients are alike, for example because one draw scales all their valuations.

    The bounds hold for clients drawn independently. The Kruskal–Wallis test over markets, of ranks and of their
    distance from the middle, sees where markets differ by more than chance, or by less because clients make up for
    each other. Other dependence it does not see.
    """
    bids = found.sample(np.random.default_rng(0), _CHECKED_CLIENTS, (_CHECKED_MARKETS,))
    count = _CHECKED_MARKETS * _CHECKED_CLIENTS
    for name in ("valuation", "epsilon"):
        ranks = mean_ranks(getattr(bids, name))
        for score in (ranks, np.abs(ranks - ranks.mean())):
            spread = ((score - score.mean()) ** 2).sum()
            if spread == 0:
                continue
            between = _CHECKED_CLIENTS * ((score.mean(axis=-1) - score.mean()) ** 2).sum()
            statistic = (count - 1) * between / spread
            if (
                min(tail(_CHECKED_MARKETS - 1, statistic) for tail in (special.chdtrc, special.chdtr))
                < _FALSE_ALARM
            ):
                raise ConfigurationError(
                    f"{found.name}: the {name}s of one market are not drawn independently from one distribution",
                    "share no draw among clients, and let no place be special: the bounds rest on that",
                )


# Rows that are drawn to see whether clients are alike whatever their number.
_COMPARED_ROWS = 4_000


@lru_cache(maxsize=32)
def refuse_other_sizes(found: Distribution, clients: int) -> None:
    """Refuses objects of one's own that draw other clients into a market of `clients` than into a large one.

    The bounds are computed from one large sample. A Kolmogorov–Smirnov test compares the two in each column.

    Raises:
        ConfigurationError: the two differ by more than chance.
    """
    if type(found).__module__.startswith(_OWN_PACKAGE) and not isinstance(found, SampledDistribution):
        return
    rng = np.random.default_rng(0)
    here = found.sample(rng, clients, (-(-_COMPARED_ROWS // clients),))
    there = found.sample(rng, 200_000)
    for name in ("valuation", "epsilon", "data_size"):
        columns = getattr(here, name), getattr(there, name)
        if any(column is None for column in columns):
            continue
        if stats.ks_2samp(*(column.ravel() for column in columns), method="asymp").pvalue < _FALSE_ALARM:
            raise ConfigurationError(
                f"{found.name}: {name}s in a market of {clients} are distributed unlike those in a large market",
                "draw every client from one distribution, whatever their number; to study markets of one size, "
                "fix that size inside your object",
            )


class Frozen(Protocol):
    """What is used of a frozen distribution of `scipy.stats`."""

    def ppf(self, q: Array) -> Array:
        """Quantiles at the probabilities `q`, same shape."""
        ...

    def cdf(self, x: float) -> float:
        """The probability of at most `x`."""
        ...


def _range_of(frozen: Frozen) -> tuple[float, float]:
    """The ends of a distribution. Those of SciPy know them; its discrete quantiles at 0 lie one below."""
    support = getattr(frozen, "support", None)
    low, high = frozen.ppf(np.array([0.0, 1.0])) if support is None else support()
    return float(low), float(high)


def _of_scipy(valuation: Frozen, epsilon: Frozen, epsilon_max: float | None) -> IndependentDistribution:
    """Independent valuations and offers from two frozen distributions of SciPy."""

    def ends(what: str, frozen: Frozen) -> tuple[float, float]:
        try:
            low, high = _range_of(frozen)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"{what}: {frozen!r} gives no quantiles: {error}",
                "give a frozen distribution of one number, such as scipy.stats.uniform(0, 1)",
            ) from error
        if not low >= 0:
            raise ConfigurationError(
                f"{what}: the distribution reaches down to {low:g}",
                "give one of numbers of at least 0, such as lognorm, gamma or truncnorm",
            )
        return float(low), float(high)

    ends("valuation", valuation)
    _, most = ends("epsilon", epsilon)
    if epsilon_max is None:
        if not np.isfinite(most):
            raise ConfigurationError(
                "epsilon: the distribution has no upper end", "give epsilon_max=…; it is cut off there"
            )
        epsilon_max = most
    # Cut at the limit: the distribution of ε given ε ≤ ε_max.
    kept = float(epsilon.cdf(epsilon_max))
    name = " × ".join(
        getattr(getattr(one, "dist", one), "name", type(one).__name__) for one in (valuation, epsilon)
    )
    return IndependentDistribution(
        name,
        lambda u: np.asarray(valuation.ppf(np.asarray(u)), dtype=np.float64),
        lambda u: np.minimum(np.asarray(epsilon.ppf(kept * np.asarray(u)), dtype=np.float64), epsilon_max),
        float(epsilon_max),
    )


Source = str | Path | Bids | Distribution | tuple[Frozen, Frozen] | Sampler
"""What `distribution` takes."""


def distribution(source: Source, *, independent: bool = False, epsilon_max: float | None = None) -> Distribution:
    """The distribution that clients are drawn from, for audits, comparisons, training and plans.

    Args:
        source: one of

            - a name: `uniform`, `bimodal`, `lognormal` or `valuation-function`;
            - the path of a CSV file of past bids, or past bids (clients,): rows are drawn with replacement;
            - a pair of frozen distributions of `scipy.stats`, (valuation, epsilon), drawn independently;
            - an own object with `sample(rng, clients) -> Bids`, in which v may depend on ε in any way;
            - a `Distribution`, which is returned as it is; one of your own is checked like an object.
        independent: declares that v is independent of ε and of the number of records. Past bids are then drawn
            column by column.
        epsilon_max: the public limit on offers, for SciPy's distributions (which are cut off there) and own
            objects (whose attribute of that name is used otherwise, or 5).

    Raises:
        UnknownNameError: there is no scenario of that name.
        BidError: the file holds no valid bids.
        ConfigurationError: fewer than 2 past bids; valuations below 0; an ε without an upper end; clients of one
            market that have a shift or a spread in common, or make up for each other.

    >>> from scipy import stats
    >>> offers = distribution((stats.lognorm(0.5), stats.uniform(0.1, 4.9)))
    >>> offers.sample(np.random.default_rng(0), clients=3)
    Bids(3 clients: valuation 0.4191…1.191, epsilon 0.181…4.573)
    """
    if isinstance(source, Distribution):
        if independent and isinstance(source, EmpiricalDistribution):
            return IndependentDistribution.of_columns(source.name, source.past)
        if not type(source).__module__.startswith(_OWN_PACKAGE):
            _refuse_common_shocks(source)
        return source
    if isinstance(source, Bids):
        return distribution(EmpiricalDistribution("past bids", source), independent=independent)
    if isinstance(source, tuple):
        if len(source) != 2 or not all(hasattr(one, "ppf") for one in source):
            raise ConfigurationError(
                f"distribution: {source!r}", "give two frozen distributions of SciPy, (valuation, epsilon)"
            )
        return _of_scipy(source[0], source[1], epsilon_max)
    if isinstance(source, str | Path):
        text = str(source)
        if text.lower().endswith(".csv"):
            past = EmpiricalDistribution(Path(text).stem, read_bids(text).bids)
            return distribution(past, independent=independent)
        if text not in SCENARIOS:
            raise UnknownNameError.among("scenario", text, [*SCENARIOS, "a CSV file of past bids"])
        return SCENARIOS[text]
    if not callable(getattr(source, "sample", None)) or isinstance(source, type):
        raise ConfigurationError(
            f"distribution: {source!r}", "give an object with a method sample(rng, clients) -> privmarket.Bids"
        )
    limit = epsilon_max if epsilon_max is not None else getattr(source, "epsilon_max", EPSILON_MAX)
    found = SampledDistribution(
        str(getattr(source, "name", type(source).__name__)),
        source,
        float(limit),
        independent or bool(getattr(source, "independent", False)),
    )
    _refuse_common_shocks(found)
    return found


def scenario(source: Source, *, independent: bool = False) -> Distribution:
    """The scenario called `uniform`, `bimodal`, `lognormal` or `valuation-function`, Table II of [Sun2026].

    Everything else that `distribution` takes is taken here too.
    """
    return distribution(source, independent=independent)
