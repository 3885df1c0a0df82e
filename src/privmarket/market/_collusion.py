"""What a coalition gains by joint misreports, with side payments among its members.

A rule can be truthful for every client alone and still be beaten by several who agree on their reports, because
one member's report may move another member's price. The paper names collusion as future work; here it is measured.
The members share what they gain, so only the sum of their utilities counts. What is found is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket.errors import ConfigurationError
from privmarket.market._attacks import can_deliver
from privmarket.market._bids import Array, Bids
from privmarket.market._mechanism import Mechanism

_FACTORS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2.0, 4.0)
_SHARES = (1.0, 0.75, 0.5, 0.25, 0.1)
_QUANTILES = (0.25, 0.5, 0.65, 0.8, 0.9, 0.97)
_OUT_OF_REACH = 100.0  # times the dearest valuation: nobody buys at that


@dataclass(frozen=True, eq=False)
class Collusion:
    """The best joint misreport found for each coalition.

    Attributes:
        members: (markets, coalitions, size) client numbers.
        gain: (markets, coalitions) utility of all members together above what the truth gives them, ≥ 0.
        truthful_pay: (markets, coalitions) what the members are paid when everybody is truthful.
    """

    members: NDArray[np.intp]
    gain: Array
    truthful_pay: Array

    @property
    def share(self) -> float:
        """Mean gain over mean truthful pay of the coalitions; 0 where nobody gains, infinite without any pay."""
        gain, paid = float(self.gain.mean()), float(self.truthful_pay.mean())
        return 0.0 if gain == 0.0 else gain / paid if paid > 0 else np.inf


@dataclass(frozen=True)
class CoalitionAttack:
    """Searches joint misreports of coalitions of `size` clients.

    Tried for each coalition: everybody's valuation times a common factor, a common price floor, some members
    pricing themselves out to lift the price of the rest, each with several shares of ε withheld; then random
    changes of single members are kept as long as they help.

    Attributes:
        size: clients in a coalition; all of them where a market has fewer.
        coalitions: how many per market: the cheapest clients, those around the last seller, the rest by chance.
        steps: random changes tried at the end.
    """

    size: int
    coalitions: int = 6
    steps: int = 120

    def __post_init__(self) -> None:
        if self.size < 1 or self.coalitions < 1:
            raise ConfigurationError(
                f"{self.coalitions} coalitions of {self.size} clients", "give at least 1 of each"
            )

    def __call__(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Collusion:
        """Types have shape (markets, clients) or (clients,); one budget, or one per market."""
        markets = types if len(types.shape) == 2 else types[None]
        members = self._members(mechanism, markets, budget, rng)
        truth = _repeated(markets, self.coalitions)
        money = np.broadcast_to(np.asarray(budget, dtype=np.float64), markets.shape[:1]).repeat(self.coalitions)
        inside = np.zeros(truth.shape, dtype=np.bool_)
        np.put_along_axis(inside, members.reshape(inside.shape[0], -1), True, axis=-1)

        def joint_utility(reports: Bids) -> Array:
            outcome = mechanism.run(reports, money)
            # Who is asked for more ε than it has cannot deliver: such a plan is worthless to the coalition.
            undeliverable = (inside & ~can_deliver(outcome.epsilon, truth.epsilon)).any(axis=-1)
            utility = np.where(inside, outcome.utility(truth), 0.0).sum(axis=-1)
            return np.where(undeliverable, -np.inf, utility)

        honest = mechanism.run(truth, money)
        base = np.where(inside, honest.utility(truth), 0.0).sum(axis=-1)
        best, best_utility = truth, base
        for reports in (*self._plans(truth, inside), *self._withdrawals(truth, inside)):
            best, best_utility = _better(best, best_utility, reports, joint_utility(reports))
        for _ in range(self.steps):
            reports = self._changed(best, truth, inside, rng)
            best, best_utility = _better(best, best_utility, reports, joint_utility(reports))
        shape = members.shape[:2]
        pay = np.where(inside, honest.payment, 0.0).sum(axis=-1)
        return Collusion(members, np.maximum(best_utility - base, 0.0).reshape(shape), pay.reshape(shape))

    def _members(
        self, mechanism: Mechanism, markets: Bids, budget: ArrayLike, rng: np.random.Generator
    ) -> NDArray[np.intp]:
        """(markets, coalitions, size) the clients of each coalition."""
        clients, size = markets.clients, min(self.size, markets.clients)
        order = np.argsort(markets.valuation, axis=-1, kind="stable")
        sellers = np.count_nonzero(mechanism.run(markets, budget).epsilon > 0, axis=-1)
        chosen = []
        for market, ranked in enumerate(order):
            around = int(np.clip(sellers[market] - size // 2, 0, clients - size))
            groups = [ranked[:size], ranked[around : around + size]]
            while len(groups) < self.coalitions:
                groups.append(rng.permutation(clients)[:size])
            chosen.append(np.stack(groups[: self.coalitions]))
        return np.stack(chosen)

    def _plans(self, truth: Bids, inside: NDArray[np.bool_]) -> Iterator[Bids]:
        """Common factors and common price floors, with ε withheld or not."""
        valuation = truth.valuation
        asked = [valuation, *(valuation * factor for factor in _FACTORS)]
        asked += [np.maximum(valuation, np.quantile(valuation, q, axis=-1, keepdims=True)) for q in _QUANTILES]
        for report in asked:
            for share in _SHARES:
                yield _joint(truth, inside, report, truth.epsilon * share)

    def _withdrawals(self, truth: Bids, inside: NDArray[np.bool_]) -> Iterator[Bids]:
        """The dearest members, or the cheapest, price themselves out, the others stay truthful."""
        beyond = _OUT_OF_REACH * np.maximum(truth.valuation.max(axis=-1, keepdims=True), 1e-12)
        size = min(self.size, truth.clients)
        for sign in (-1.0, 1.0):
            rank = np.argsort(np.argsort(np.where(inside, sign * truth.valuation, np.inf), axis=-1), axis=-1)
            for leaving in sorted({1, *(size * k // 8 for k in range(1, 8))} - {0}):
                report = np.where(rank < leaving, beyond, truth.valuation)
                yield _joint(truth, inside, report, truth.epsilon)

    def _changed(self, best: Bids, truth: Bids, inside: NDArray[np.bool_], rng: np.random.Generator) -> Bids:
        """The best plan so far with the reports of about a third of the members moved."""
        moved = inside & (rng.random(truth.shape) < 1 / 3)
        valuation = best.valuation * np.exp(rng.normal(0.0, 0.3, truth.shape))
        epsilon = best.epsilon * np.exp(rng.normal(0.0, 0.3, truth.shape) * (rng.random() < 0.5))
        return _joint(best, moved, valuation, np.minimum(epsilon, truth.epsilon))


def _repeated(markets: Bids, times: int) -> Bids:
    """(markets·times, clients): every market as often as it has coalitions."""
    fields = (markets.valuation, markets.epsilon, markets.data_size, markets.accuracy)
    valuation, epsilon, data_size, accuracy = (
        None if field is None else np.repeat(field, times, axis=0) for field in fields
    )
    assert valuation is not None
    assert epsilon is not None
    return Bids(valuation, epsilon, data_size, accuracy)


def _joint(bids: Bids, members: NDArray[np.bool_], valuation: Array, epsilon: Array) -> Bids:
    """`bids` in which the members of the coalition report `valuation` and `epsilon`."""
    return bids.replace(
        valuation=np.where(members, valuation, bids.valuation), epsilon=np.where(members, epsilon, bids.epsilon)
    )


def _better(best: Bids, utility: Array, reports: Bids, found: Array) -> tuple[Bids, Array]:
    """For each market, whichever of two joint reports gains the coalition more, and that gain."""
    won = (found > utility)[:, None]
    return _joint(best, won, reports.valuation, reports.epsilon), np.maximum(utility, found)
