"""The laws that clients are drawn from: Table II of [Sun2026], a valuation function, past bids.

A law gives samples (`sample`) and, for the bounds, the distribution itself: independent laws by their
quantile functions, empirical ones by their rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.lazy import late
from privmarket.market.bid_file import read_bids
from privmarket.market.bids import Array, Bids
from privmarket.plans import EPSILON_MAX

# SciPy takes longer to load than all the rest of the market, and only the log-normal law needs it.
special = late("scipy.special")

Quantile = Callable[[Array], Array]


class Law(ABC):
    """A distribution of clients.

    Attributes:
        name: what tables call it.
        epsilon_max: the public limit on offers in this market, a constant, never computed from bids.
    """

    name: str
    epsilon_max: float

    @abstractmethod
    def sample(self, rng: np.random.Generator, clients: int, markets: tuple[int, ...] = ()) -> Bids:
        """Draws truthful bids of shape (*markets, clients)."""


@dataclass(frozen=True)
class IndependentLaw(Law):
    """Valuation and ε drawn independently, each by its quantile function on (0, 1).

    `data_size`, where given, is drawn independently too; None means that all clients hold as many records.
    """

    name: str
    valuation: Quantile
    epsilon: Quantile
    epsilon_max: float = EPSILON_MAX
    data_size: Quantile | None = None

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
    """Clients drawn with replacement from the rows of past bids, (clients,)."""

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
        shape = (*markets, clients)
        epsilon = self.epsilon(rng.random(shape))
        accuracy, records = rng.uniform(0.5, 1.0, shape), rng.uniform(100.0, 1000.0, shape)
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


def scenario(source: str | Path | Law | Bids) -> Law:
    """The law that clients are drawn from.

    Args:
        source: a name (`uniform`, `bimodal`, `lognormal`, `valuation-function`), the path of a CSV file of past
            bids, past bids (clients,), or a law, which is returned as it is.
    """
    if isinstance(source, Law):
        return source
    if isinstance(source, Bids):
        return EmpiricalLaw("past bids", source)
    text = str(source)
    if text.lower().endswith(".csv"):
        return EmpiricalLaw(Path(text).stem, read_bids(text).bids)
    if text not in SCENARIOS:
        raise UnknownNameError.among("scenario", text, [*SCENARIOS, "a CSV file of past bids"])
    return SCENARIOS[text]
