"""What a sequence of releases costs: the costs of single releases, added up, for many clients at once.

A cost is a row of numbers that add up under composition: the Rényi divergence at each order of `ORDERS`, and
in a last column the squared parameter μ² of Gaussian differential privacy. Each column alone bounds ε.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import numpy as np

from privmarket._settings import DELTA
from privmarket.errors import PrivacyError
from privmarket.privacy._events import PrivacyEvent, require_delta, step_counts
from privmarket.privacy._gaussian import Array, epsilon_of
from privmarket.privacy._renyi import ORDERS, epsilon_from_divergence, step_divergence

COLUMNS = ORDERS.size + 1
GAUSSIAN = ORDERS.size  # the column of μ²

# Costs of releases already met, and the row of each: a round of a thousand clients is one lookup. Noise multipliers
# come from a grid, so a long run meets few different releases; both are emptied when there are too many.
_COSTS: Array = np.empty((0, COLUMNS))
_ROW_OF: dict[PrivacyEvent | None, int] = {}
_MAX_ROWS = 50_000
_LOCK = threading.Lock()


def composed_cost(events: Iterable[PrivacyEvent | None]) -> Array:
    """(columns,) the cost of all the releases together.

    Implements: adaptive composition, Proposition 1 of [Mironov2017] for the divergences and Corollary 3.3 of
    [DongRothSu2022] for μ²: in every column costs add up.
    """
    counts = step_counts(events)
    steps = release_costs([PrivacyEvent(*step) for step in counts])
    return np.array(list(counts.values()), dtype=np.float64) @ steps  # the composition theorem is this line


def release_costs(events: Sequence[PrivacyEvent | None]) -> Array:
    """(events, columns) the cost of each release on its own; zero for None."""
    with _LOCK:  # a broker answers in many threads, and rows must not move while one of them reads
        missing = [event for event in dict.fromkeys(events) if event not in _ROW_OF]
        if missing:
            _remember(missing, events)
        return _COSTS[[_ROW_OF[event] for event in events]]


def epsilon_of_cost(cost: Array, delta: float = DELTA) -> Array:
    """ε at δ of a cost, (..., columns) → (...,): the smaller of the Rényi and the Gaussian bound.

    The Gaussian one is exact for full-batch releases, and far too large for sampled ones.
    """
    require_delta(delta)
    renyi = epsilon_from_divergence(cost[..., :GAUSSIAN], delta)
    return np.minimum(renyi, epsilon_of(np.sqrt(cost[..., GAUSSIAN]), delta))


def composed_epsilon(events: Iterable[PrivacyEvent | None], delta: float = DELTA) -> float:
    """ε at δ of all the releases together."""
    return float(epsilon_of_cost(composed_cost(events), delta))


def renyi_epsilon(events: Iterable[PrivacyEvent | None], delta: float = DELTA) -> float:
    """ε at δ of all the releases together, by Rényi accounting alone."""
    require_delta(delta)
    return float(epsilon_from_divergence(composed_cost(events)[:GAUSSIAN], delta))


class RdpAccountant:
    """The releases of many clients, with running totals of their costs.

    The list of events is what counts; the totals are a cache that can be computed again from it (`recomputed`).

    Attributes:
        cost: (clients, columns) what each client has released so far.
    """

    def __init__(self, clients: int = 1) -> None:
        if clients < 1:
            raise PrivacyError(f"an accountant for {clients} clients", "give at least one client")
        self.cost: Array = np.zeros((clients, COLUMNS))
        self._history: list[tuple[PrivacyEvent | None, ...]] = []

    @property
    def clients(self) -> int:
        """The number of clients that are accounted for."""
        return int(self.cost.shape[0])

    @property
    def divergence(self) -> Array:
        """(clients, orders) the Rényi divergence of everything each client has released."""
        return self.cost[:, :GAUSSIAN]

    @property
    def history(self) -> tuple[tuple[PrivacyEvent | None, ...], ...]:
        """One entry per round: each client's event, None where it released nothing."""
        return tuple(self._history)

    def compose(self, *events: PrivacyEvent | Sequence[PrivacyEvent | None] | None) -> None:
        """Adds one round per argument: an event for every client alike, or one event (or None) per client.

        All arguments are checked before anything changes.
        """
        rounds = [self._one_per_client(given) for given in events]
        costs = [release_costs(entry) for entry in rounds]
        for entry, cost in zip(rounds, costs, strict=True):
            self.cost += cost
            self._history.append(entry)

    def epsilon(self, delta: float = DELTA) -> Array:
        """(clients,) ε at δ of everything each client has released."""
        return epsilon_of_cost(self.cost, delta)

    def recomputed(self) -> RdpAccountant:
        """A new accountant whose totals are computed again from this one's events."""
        fresh = RdpAccountant(self.clients)
        fresh.compose(*self._history)
        return fresh

    def _one_per_client(
        self, given: PrivacyEvent | Sequence[PrivacyEvent | None] | None
    ) -> tuple[PrivacyEvent | None, ...]:
        entry = tuple(given) if isinstance(given, Sequence) else (given,) * self.clients
        if len(entry) != self.clients:
            raise PrivacyError(
                f"{len(entry)} events for {self.clients} clients", "give one event (or None) per client"
            )
        return entry


def _remember(missing: Sequence[PrivacyEvent | None], events: Sequence[PrivacyEvent | None]) -> None:
    """Computes the costs of missing releases, in one pass for all of a sampling rate, and keeps them.

    Where that would be too many, all are forgotten and those of `events` are computed anew.
    """
    global _COSTS
    if len(_ROW_OF) + len(missing) > _MAX_ROWS:
        _ROW_OF.clear()
        _COSTS, missing = np.empty((0, COLUMNS)), list(dict.fromkeys(events))
    costs = np.zeros((len(missing), COLUMNS))
    rates = np.array([0.0 if event is None else event.sampling_rate for event in missing])
    for rate in dict.fromkeys(rates[rates > 0].tolist()):
        places = np.flatnonzero(rates == rate)
        same = [event for event in missing if event is not None and event.sampling_rate == rate]
        noise, steps = np.array([(event.noise_multiplier, event.steps) for event in same], dtype=np.float64).T
        # Sampling never costs privacy, so a sampled step is also 1/σ-Gaussian.
        costs[places] = steps[:, None] * np.column_stack([step_divergence(noise, rate), noise**-2])
    _ROW_OF.update({event: len(_COSTS) + row for row, event in enumerate(missing)})
    _COSTS = np.concatenate([_COSTS, costs])
