"""The best that any truthful rule can do in a small market, by linear programming.

The bounds for many clients are loose for three. Here types come from a finite grid, (v, ε) ∈ V × E, and a rule is a
table: for every profile of N types, how much each client sells and what it is paid. Truthfulness, individual
rationality, the offers and the budget are linear in this table, for *every* profile, so the best rule in
expectation is the solution of a linear programme.

Symmetry makes it small. Clients are drawn alike, and the mean of a rule over all orders of the clients is truthful,
rational and within budget if the rule is; so a best rule exists that treats clients alike, and its table needs only
the client's own type and the multiset of the others' types.

On the grid a client may claim any type that it can deliver: any v, and any ε up to its own. Utility is linear in v,
so neighbouring valuations suffice, in both directions; and since a client of lower ε is truthful itself, it is
enough that having more ε never hurts: u(v, ε) ≥ u(v, next lower ε).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from math import comb, factorial, prod

import numpy as np
from numpy.typing import NDArray

from privmarket._lazy import late
from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array, Bids
from privmarket.market._distributions import Distribution, IndependentDistribution, refuse_other_sizes
from privmarket.market._mechanism import Mechanism

optimize = late("scipy.optimize")
sparse = late("scipy.sparse")

MOST_CLIENTS = 4
# Profiles of one programme; more take minutes.
_MOST_PROFILES = 60_000
_SAMPLE = 200_000


@dataclass(frozen=True, eq=False)
class TypeGrid(Distribution):
    """A finite distribution: valuations × offers with a probability each.

    Attributes:
        valuations: (V,) ascending.
        epsilons: (E,) ascending.
        probability: (V, E), sums to 1.
        records, accuracy: what every client declares, for rules that ask; None where clients declare none.
    """

    name: str
    valuations: Array
    epsilons: Array
    probability: Array
    records: float | None = None
    accuracy: float | None = None

    @property
    def epsilon_max(self) -> float:  # type: ignore[override]
        """The largest offer of the grid."""
        return float(self.epsilons[-1])

    @staticmethod
    def of(distribution: Distribution, valuations: int = 6, epsilons: int = 2) -> TypeGrid:
        """A grid that stands for a distribution: the middles of equally likely ranges of v and of ε.

        Equal middles, as discrete distributions have them, are one type. Where v depends on ε, the grid keeps how
        often each pair occurs in a large sample of the distribution. Records and accuracy are the sample's means.
        """
        v_middle = (np.arange(valuations) + 0.5) / valuations
        e_middle = (np.arange(epsilons) + 0.5) / epsilons
        records = None
        accuracy = None
        if isinstance(distribution, IndependentDistribution):
            if distribution.data_size is not None:
                records = float(distribution.data_size((np.arange(1_000) + 0.5) / 1_000).mean())
            v, v_count = np.unique(distribution.valuation(v_middle), return_counts=True)
            e, e_count = np.unique(distribution.epsilon(e_middle), return_counts=True)
            probability = np.outer(v_count, e_count) / (valuations * epsilons)
        else:
            rows = distribution.sample(np.random.default_rng(0), _SAMPLE)
            v = np.unique(np.quantile(rows.valuation, v_middle))
            e = np.unique(np.quantile(rows.epsilon, e_middle))
            row = np.searchsorted(0.5 * (v[1:] + v[:-1]), rows.valuation)
            column = np.searchsorted(0.5 * (e[1:] + e[:-1]), rows.epsilon)
            probability = np.zeros((v.size, e.size))
            np.add.at(probability, (row, column), 1.0 / _SAMPLE)
            records = None if rows.data_size is None else float(rows.data_size.mean())
            accuracy = None if rows.accuracy is None else float(rows.accuracy.mean())
        return TypeGrid(f"{distribution.name}, {v.size} × {e.size} types", v, e, probability, records, accuracy)

    def sample(self, rng: np.random.Generator, clients: int, markets: tuple[int, ...] = ()) -> Bids:
        """Draws truthful bids of shape (*markets, clients)."""
        flat = rng.choice(self.probability.size, size=(*markets, clients), p=self.probability.ravel())
        return self.bids(flat.astype(np.intp))

    def bids(self, types: NDArray[np.intp]) -> Bids:
        """The bids of clients whose types are given by their flat index, same shape."""
        row, column = np.unravel_index(types, self.probability.shape)
        return Bids(
            self.valuations[row],
            self.epsilons[column],
            None if self.records is None else np.full(types.shape, self.records),
            None if self.accuracy is None else np.full(types.shape, self.accuracy),
        )


@dataclass(frozen=True, eq=False)
class ExactOptimum:
    """The best truthful, rational, budget-feasible rule on a grid of types.

    Attributes:
        grid: the distribution.
        clients, budget: of each market.
        truthful_in: `valuation`, or `epsilon` for rules that also never gain from a withheld offer.
        total_epsilon: what the best rule buys in expectation over profiles.
    """

    grid: TypeGrid
    clients: int
    budget: float
    truthful_in: str
    total_epsilon: float

    @cached_property
    def profiles(self) -> tuple[Bids, Array]:
        """Every ordered profile of types, (profiles, clients), and its probability."""
        kinds = self.grid.probability.size
        types = np.stack(np.meshgrid(*[np.arange(kinds)] * self.clients, indexing="ij"), axis=-1)
        types = types.reshape(-1, self.clients).astype(np.intp)
        return self.grid.bids(types), self.grid.probability.ravel()[types].prod(axis=-1)

    def value_of(self, rule: Mechanism) -> float:
        """What a rule buys in expectation on the same grid, over every profile."""
        bids, probability = self.profiles
        return float(probability @ rule.run(bids, self.budget).total_epsilon)

    def ratio(self, rule: Mechanism) -> float:
        """What a rule buys over the optimum: above 1 only for a rule that breaks one of the promises."""
        return self.value_of(rule) / self.total_epsilon if self.total_epsilon > 0 else 0.0


def exact_optimum(
    distribution: Distribution, clients: int, budget: float, *, truthful_in: str = "valuation"
) -> ExactOptimum:
    """The most ε that a truthful, individually rational rule within budget buys in expectation.

    Args:
        distribution: a `TypeGrid`, or a distribution from which one of at most 6 × 2 types is made.
        clients: at most 4.
        budget: money of one market, never passed on any profile.
        truthful_in: `valuation` for rules in which no misreport of v gains; `epsilon` if a withheld offer, alone or
            with a misreport of v, must not gain either. The first is the larger optimum.

    >>> grid = TypeGrid("coin", np.array([0.0, 1.0]), np.array([1.0]), np.array([[0.5], [0.5]]))
    >>> exact_optimum(grid, clients=1, budget=1.0).total_epsilon  # posts the price 1
    1.0
    >>> exact_optimum(grid, clients=1, budget=0.5).total_epsilon  # half of it, at 1 a unit, or all from v = 0
    0.75
    """
    if truthful_in not in ("valuation", "epsilon"):
        raise ConfigurationError(f"truthful in {truthful_in!r}: unknown", "choose valuation or epsilon")
    if not 1 <= clients <= MOST_CLIENTS:
        raise ConfigurationError(f"{clients} clients: the exact optimum needs few", f"give 1 to {MOST_CLIENTS}")
    if not budget > 0:
        raise ConfigurationError(f"budget is {budget}", "give money above 0")
    refuse_other_sizes(distribution, clients)
    grid = distribution if isinstance(distribution, TypeGrid) else TypeGrid.of(distribution)
    kinds = grid.probability.size
    if kinds * comb(kinds + clients - 2, clients - 1) > _MOST_PROFILES:
        raise ConfigurationError(f"{kinds} types and {clients} clients: too many profiles", "give a coarser grid")
    # The solver's tolerances are absolute, so money is counted in dearest valuations and ε in largest offers.
    dearest = float(grid.valuations[-1]) or 1.0
    scaled = TypeGrid(grid.name, grid.valuations / dearest, grid.epsilons / grid.epsilon_max, grid.probability)
    money = budget / (dearest * grid.epsilon_max)
    found = grid.epsilon_max * _solve(scaled, clients, money, truthful_in)
    return ExactOptimum(grid, clients, budget, truthful_in, found)


def _solve(grid: TypeGrid, clients: int, budget: float, truthful_in: str) -> float:
    rows, columns = grid.probability.shape
    kinds = int(rows * columns)
    chance = grid.probability.ravel()
    value = np.repeat(grid.valuations, columns)
    others = list(combinations_with_replacement(range(kinds), clients - 1))
    place = {multiset: index for index, multiset in enumerate(others)}
    count = kinds * len(others)

    def sold(kind: int, index: int) -> int:
        """The column of the ε that a client of this type sells beside these others; its pay is `count` further."""
        return index * kinds + kind

    gain = np.zeros(2 * count)
    entries: list[tuple[int, int, float]] = []
    limit: list[float] = []

    def at_most(terms: list[tuple[int, float]], bound: float) -> None:
        for column, factor in terms:
            entries.append((len(limit), column, factor))
        limit.append(bound)

    def prefer(truth: int, report: int, index: int) -> None:
        """A client of type `truth` gains nothing by reporting the type `report`."""
        here = sold(truth, index)
        there = sold(report, index)
        v = float(value[truth])
        at_most([(count + there, 1.0), (there, -v), (count + here, -1.0), (here, v)], 0.0)

    for multiset, index in place.items():
        orders = factorial(clients - 1) / prod(factorial(times) for times in Counter(multiset).values())
        weight = orders * float(np.prod(chance[list(multiset)]))
        for kind in range(kinds):
            row, column = divmod(kind, columns)
            gain[sold(kind, index)] = clients * chance[kind] * weight
            at_most([(sold(kind, index), float(value[kind])), (count + sold(kind, index), -1.0)], 0.0)
            if row + 1 < rows:
                prefer(kind, kind + columns, index)
                prefer(kind + columns, kind, index)
            if truthful_in == "epsilon" and column > 0:
                prefer(kind, kind - 1, index)
    for profile in combinations_with_replacement(range(kinds), clients):
        terms = []
        for kind, times in Counter(profile).items():
            rest = list(profile)
            rest.remove(kind)
            terms.append((count + sold(kind, place[tuple(rest)]), float(times)))
        at_most(terms, budget)
    line, column_of, factor = (np.array(part) for part in zip(*entries, strict=True))
    matrix = sparse.csr_matrix((factor, (line, column_of)), shape=(len(limit), 2 * count))
    offers = np.tile(np.tile(grid.epsilons, rows), len(others))
    upper = np.concatenate([offers, np.full(count, np.inf)])
    bounds = np.stack([np.zeros(2 * count), upper], axis=1)
    found = optimize.linprog(-gain, A_ub=matrix, b_ub=limit, bounds=bounds, method="highs")
    if not found.success:
        raise ConfigurationError(
            f"the linear programme of {grid.name} was not solved: {found.message}", "coarser grid"
        )
    return float(-found.fun)
