"""A trained network as a mechanism: weights in, the common interface out."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array, Bids
from privmarket.market._certificate import CertifiedRegret
from privmarket.market._facts import offer_limit
from privmarket.market._guarantees import (
    ApproximatelyTruthful,
    BudgetFeasible,
    IndividuallyRational,
    WithinOffer,
)
from privmarket.market._mechanism import Guarantee, Mechanism, budget_column
from privmarket.market._outcome import Outcome
from privmarket.mechanisms.learned import _certified as certified
from privmarket.mechanisms.learned._market_tensors import Markets, from_bids
from privmarket.mechanisms.learned._networks import AuctionNetwork, Encoding, Trade
from privmarket.mechanisms.learned._slopes import Slope
from privmarket.mechanisms.learned._weights import Weights, WeightsError, load, shipped

# Beyond this many clients in all, the network runs in float32; money is float64 throughout.
FLOAT64_ROWS = 100_000
# A client that would sell less than this share of its offer sells nothing: an ε of 10⁻⁸ is of no use to anybody.
LEAST_SHARE = 1e-3


class OutsideTraining(UserWarning):
    """The market differs from those that the network was trained on; its outcome stands, its figures do not."""


class LearnedMechanism(Mechanism):
    """A rule whose parameters were trained.

    Args:
        weights: a file written by `privmarket train`; what ships with the package by default.
        epsilon_max: public limit on offers, by default that of the training.
    """

    market_facts: ClassVar[tuple[str, ...]] = ("epsilon_max",)
    exact_in_batches: ClassVar[bool] = False
    least_share: ClassVar[float] = LEAST_SHARE
    network_class: ClassVar[type[AuctionNetwork]]
    kept_by_construction: ClassVar[tuple[Guarantee, ...]] = (
        IndividuallyRational(),
        BudgetFeasible(),
        WithinOffer(),
    )

    def __init__(self, weights: str | Path | None = None, epsilon_max: float | None = None) -> None:
        stored = load(weights or shipped(self.name), self.name)
        self.facts: Mapping[str, Any] = stored.facts
        self.epsilon_max = offer_limit(stored.facts["epsilon_max"] if epsilon_max is None else epsilon_max)
        self._networks = {
            dtype: build(self.network_class, stored).to(dtype).requires_grad_(False)
            for dtype in (torch.float32, torch.float64)
        }
        self.guarantees = self.kept_by_construction
        if max_regret := stored.facts.get("measured", {}).get("max_regret"):
            self.guarantees = (*self.kept_by_construction, ApproximatelyTruthful(float(max_regret)))
        self._warned = False

    def network(self, dtype: torch.dtype = torch.float64) -> AuctionNetwork:
        """The network itself, without gradients."""
        return self._networks[dtype]

    @abstractmethod
    def _trade(self, network: AuctionNetwork, markets: Markets) -> Trade:
        """Lets the network clear a batch of markets, (L, N)."""

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """The network decides; pay is then computed in float64."""
        bids.refuse_above(self.epsilon_max)
        self._warn_outside(bids, budget)
        dtype = torch.float64 if bids.valuation.size <= FLOAT64_ROWS else torch.float32
        markets = from_bids(bids, budget, self.epsilon_max, dtype)
        trade = self._trade(self.network(dtype), markets)
        return settle(trade, bids, bids, budget)

    def certify(self, bids: Bids, budget: float, closeness: float) -> CertifiedRegret:
        """Bounds from above what any misreport of v gains in one market; see `certified`."""
        return certified.certify(self, bids, budget, closeness)

    def own_trade(self, bids: Bids, budget: float, client: int, centre: Tensor, radius: Tensor) -> Trade:
        """What one client gets for its reports in boxes, as slopes; see `certified`."""
        raise ConfigurationError(f"{self.name}: no upper bound on its regret is known", "attack it instead")

    def _warn_outside(self, bids: Bids, budget: Array) -> None:
        """Once per mechanism. Only the warning looks at the bids, never the outcome."""
        trained = self.facts.get("trained_for")
        if self._warned or not trained:
            return
        low, high = trained["budget_over_valuations"]
        mean = np.maximum(bids.valuation.mean(axis=-1, keepdims=True), 1e-300)
        relative = budget / bids.clients / mean
        few, many = trained["clients"]
        outside = []
        if np.any(relative < low) or np.any(relative > high):
            worst = float(relative.min() if np.any(relative < low) else relative.max())
            outside.append(
                f"a budget of {worst:.3g} per client and mean valuation, trained on {low:.3g} to {high:.3g}"
            )
        if not few <= bids.clients <= many:
            outside.append(f"{bids.clients} clients, trained on {few} to {many}")
        if outside:
            self._warned = True
            warnings.warn(
                f"{self.name}: {' and '.join(outside)}. IR and budget still hold; "
                "audit the regret here, or train for this market",
                OutsideTraining,
                stacklevel=4,
            )


class MeanFieldMechanism(LearnedMechanism):
    """A learned rule in which clients meet only through population sums: all N deviations in O(N)."""

    _last: tuple[Bids, Array, Markets, Encoding] | None = None

    def unilateral(self, bids: Bids, reports: Bids, budget: ArrayLike) -> Outcome:
        """Exact; own terms leave every population sum and the deviating ones enter."""
        reports.refuse_above(self.epsilon_max)
        column = budget_column(budget, bids.shape)
        dtype = torch.float64 if bids.valuation.size <= FLOAT64_ROWS else torch.float32
        network = self.network(dtype)
        markets, encoded = self._encoded(bids, column, dtype)
        answer = from_bids(reports, column, self.epsilon_max, dtype)
        step = max(1, 50_000 // markets.valuation.shape[0])
        parts = []
        for start in range(0, bids.clients, step):
            who = torch.arange(start, min(start + step, bids.clients))
            parts.append(network.deviate(encoded, markets, answer.valuation[:, who], answer.epsilon[:, who], who))
        trade = Trade(torch.cat([p.epsilon for p in parts], -1), torch.cat([p.payment for p in parts], -1))
        return settle(trade, bids, reports, column, guard=False)

    def _encoded(self, bids: Bids, budget: Array, dtype: torch.dtype) -> tuple[Markets, Encoding]:
        """Everybody's rows. An attack asks thousands of times about the same bids, which cannot change."""
        if self._last is None or self._last[0] is not bids or not np.array_equal(self._last[1], budget):
            markets = from_bids(bids, budget, self.epsilon_max, dtype)
            self._last = bids, budget, markets, self._encode(self.network(dtype), markets)
        return self._last[2], self._last[3]

    def own_trade(self, bids: Bids, budget: float, client: int, centre: Tensor, radius: Tensor) -> Trade:
        """What one client gets for its reports in boxes, as slopes: own terms enter the population sums."""
        network = self.network()
        markets = from_bids(bids, np.array([budget]), self.epsilon_max, torch.float64)
        who = torch.tensor([client])
        ones = torch.ones(centre.numel(), 1, 1, dtype=torch.float64)
        report = Slope(centre.reshape(-1, 1, 1), ones, ones, radius)
        offer = markets.epsilon[:, who].expand(centre.numel(), 1, 1)
        trade = network.deviate(network.encode(markets), markets, report, offer, who)  # type: ignore[arg-type]
        return Trade(trade.epsilon[:, 0, 0], trade.payment[:, 0, 0])

    def _encode(self, network: AuctionNetwork, markets: Markets) -> Encoding:
        return network.encode(markets)

    def _trade(self, network: AuctionNetwork, markets: Markets) -> Trade:
        return network.clear(self._encode(network, markets), markets)


def build(network_class: type[AuctionNetwork], stored: Weights) -> AuctionNetwork:
    """The network that a weights file describes."""
    try:
        network = network_class(**stored.facts["network"])
        state = {name: torch.from_numpy(np.array(array)) for name, array in stored.arrays.items()}
        network.load_state_dict(state)
    except (KeyError, TypeError, RuntimeError) as error:
        raise WeightsError(
            f"weights for {stored.mechanism!r} do not fit its network: {error}", "train them anew"
        ) from error
    return network


def settle(trade: Trade, bids: Bids, reports: Bids, budget: Array, guard: bool = True) -> Outcome:
    """Float64 money from a network's trade, (..., clients).

    Whatever rounding the network did, pay covers the reported cost and, where all entries belong to one
    auction (`guard`), stays within the budget.
    """
    offered, valuation = reports.epsilon, reports.valuation
    share = trade.epsilon.double().numpy().reshape(bids.shape) / offered
    np.clip(share, 0.0, 1.0, out=share)
    markup = trade.payment.double().numpy().reshape(bids.shape) - valuation * offered * share
    share *= share >= LEAST_SHARE
    np.maximum(markup, 0.0, out=markup)
    markup *= share > 0
    epsilon = share
    epsilon *= offered
    payment = valuation * epsilon
    payment += markup
    if guard:
        total = payment.sum(axis=-1, keepdims=True)
        if np.any(total > budget):
            over = np.where(total > budget, (1 - 1e-13) * budget / np.maximum(total, 1e-300), 1.0)
            epsilon *= over
            payment = valuation * epsilon + markup * over
    return Outcome(epsilon, payment)
