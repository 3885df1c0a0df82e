"""The laws that clients are drawn from: Table II of [Sun2026], a valuation function, past bids.

A law gives samples (`sample`) and, for the bounds, the distribution itself: independent laws by their
quantile functions, empirical ones by their rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from privmarket._lazy import late
from privmarket._plans import EPSILON_MAX
from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.market._bid_file import read_bids
from privmarket.market._bids import Array, Bids

# SciPy takes longer to load than all the rest of the market, and only the log-normal law needs it.
special = late("scipy.special")

Quantile = Callable[[Array], Array]


class Law(ABC):
    """A distribution of clients.

    Attributes:
        name: what tables call it.
        epsilon_max: the public limit on offers in this market, a constant, never computed from bids.
        independent: whether the law declares that v has nothing to do with ε and the number of records. Where it
            does not, bounds let prices depend on these.
    """

    name: str
    epsilon_max: float
    independent: ClassVar[bool] = False

    @abstractmethod
    def sample(self, rng: np.random.Generator, clients: int, markets: tuple[int, ...] = ()) -> Bids:
        """Draws truthful bids of shape (*markets, clients)."""


@dataclass(frozen=True)
class IndependentLaw(Law):
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
    independent: ClassVar[bool] = True

    @staticmethod
    def of_columns(name: str, past: Bids) -> IndependentLaw:
        """The columns of past bids, each drawn by itself: how a file is declared to be independent."""

        def quantile(column: Array) -> Quantile:
            ranked = np.sort(column)
            return lambda u: ranked[np.minimum((np.asarray(u) * ranked.size).astype(int), ranked.size - 1)]

        sizes = None if past.data_size is None else quantile(past.data_size)
        top = float(past.epsilon.max())
        return IndependentLaw(name, quantile(past.valuation), quantile(past.epsilon), top, sizes, past)

    def sample(self, rng: np.random.Generator, clients: int, markets: tuple[int, ...] = ()) -> Bids:
        """Draws truthful bids of shape (*markets, clients), valuations and caps independent of each other."""
        shape = (*markets, clients)

        def draw() -> Array:
            # Quantile functions may be infinite at 0 and 1.
            return np.clip(rng.random(shape), 1e-12, 1 - 1e-12)

        valuation, epsilon = self.valuation(draw()), self.epsilon(draw())
        return Bids(valuation, epsilon, None if self.data_size is None else self.data_size(draw()))


@dataclass(frozen=True)
class EmpiricalLaw(Law):
    """Clients drawn with replacement from the rows of past bids, (clients,), so that v and ε stay together."""

    name: str
    past: Bids
    epsilon_max: float = field(default=0.0)

    def __post_init__(self) -> None:
        if self.past.clients < 2:
            raise ConfigurationError(
                f"{self.name}: a law needs at least 2 past bids, got {self.past.clients}",
                "collect more bids, or use a named scenario",
            )
        if self.epsilon_max <= 0:
            object.__setattr__(self, "epsilon_max", float(self.past.epsilon.max()))

    def sample(self, rng: np.random.Generator, clients: int, markets: tuple[int, ...] = ()) -> Bids:
        """Draws truthful bids of shape (*markets, clients) from the past bids, with replacement."""
        return self.past[rng.integers(self.past.clients, size=(*markets, clients))]


def independence_test(past: Bids, permutations: int = 999) -> float:
    """How well past bids, (clients,), fit the belief that v has nothing to do with ε: the p-value of a test.

    A permutation test: offers are dealt to the valuations anew, and the share of deals counts that show at least as
    much dependence. Dependence is Spearman's correlation of ranks, of v with ε and of v's distance from the median
    with ε, so that a valley or a hill is seen as well as a slope.
    """

    def centred(column: Array) -> Array:
        ranks = np.argsort(np.argsort(column, kind="stable"), kind="stable").astype(np.float64)
        return np.asarray(ranks - ranks.mean())

    slope = centred(past.valuation)
    valley = centred(np.abs(slope))
    measures = np.stack([slope / np.linalg.norm(slope), valley / max(float(np.linalg.norm(valley)), 1e-300)])
    offers = centred(past.epsilon)
    rng = np.random.default_rng(0)
    dealt = np.stack([offers, *(rng.permutation(offers) for _ in range(permutations))])
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
class DerivedLaw(Law):
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
SCENARIOS: dict[str, Law] = {
    "uniform": IndependentLaw("uniform", _between(0.0, 1.0), _between(0.1, 5.0)),
    "bimodal": IndependentLaw("bimodal", _between(0.0, 1.0), _two_groups),
    "lognormal": IndependentLaw("lognormal", _log_normal, _between(0.1, 5.0)),
    "valuation-function": DerivedLaw("valuation-function", _between(0.1, 5.0)),
}


def scenario(source: str | Path | Law | Bids, *, independent: bool = False) -> Law:
    """The law that clients are drawn from.

    Args:
        source: a name (`uniform`, `bimodal`, `lognormal`, `valuation-function`), the path of a CSV file of past
            bids, past bids (clients,), or a law, which is returned as it is.
        independent: declares that in past bids v has nothing to do with ε and records. Then each column is drawn by
            itself; otherwise rows are drawn whole.
    """
    if isinstance(source, Law):
        if independent and isinstance(source, EmpiricalLaw):
            return IndependentLaw.of_columns(source.name, source.past)
        return source
    if isinstance(source, Bids):
        return scenario(EmpiricalLaw("past bids", source), independent=independent)
    text = str(source)
    if text.lower().endswith(".csv"):
        return scenario(EmpiricalLaw(Path(text).stem, read_bids(text).bids), independent=independent)
    if text not in SCENARIOS:
        raise UnknownNameError.among("scenario", text, [*SCENARIOS, "a CSV file of past bids"])
    return SCENARIOS[text]
