"""Trained networks as mechanisms: what they are made from, how they clear, and when they warn."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from privmarket._settings import EPSILON_MAX
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
from privmarket.mechanisms.learned._markets import Markets, Trade, from_bids
from privmarket.mechanisms.learned._networks import AuctionNetwork, Encoding
from privmarket.mechanisms.learned._slopes import NoBoundKnownError, Slope, bounded_operations, check_bounded
from privmarket.mechanisms.learned._weights import Weights, WeightsError, load, shipped

# Beyond this many clients in all, the network runs in float32; money is float64 throughout.
FLOAT64_ROWS = 100_000
# Pairs of clients that a network reads at once: attention over large markets fits into memory, and over small ones
# into a processor's cache.
_PAIRS_AT_ONCE = 400_000
_OWN_PACKAGE = "privmarket."
# A client that would sell less than this share of its offer sells nothing: an ε of 10⁻⁸ is of no use to anybody.
LEAST_SHARE = 1e-3


class OutsideTraining(UserWarning):
    """The market differs from those that the network was trained on; its outcome stands, its figures do not."""


class LearnedMechanism(Mechanism):
    """A rule whose parameters were trained.

    Args:
        weights: a file written by `privmarket train`, or weights in memory; what ships with the package by default.
        epsilon_max: public limit on offers, by default that of the training.
        untrained: the network as it was before its first step, so that one sees what training added. The rule is
            then called `name:untrained` and promises nothing about misreports.
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

    def __init__(
        self,
        weights: str | Path | Weights | None = None,
        epsilon_max: float | None = None,
        untrained: bool = False,
    ) -> None:
        stored = weights if isinstance(weights, Weights) else self._stored(weights)
        self.facts: Mapping[str, Any] = stored.facts
        self.epsilon_max = offer_limit(stored.facts["epsilon_max"] if epsilon_max is None else epsilon_max)
        self._networks = {
            dtype: build(self.network_class, stored, untrained).to(dtype).requires_grad_(False).eval()
            for dtype in (torch.float32, torch.float64)
        }
        self.guarantees = self.kept_by_construction
        self.untrained = untrained or stored.facts.get("steps_done") == 0
        if self.untrained:
            self.name = f"{self.name}:untrained"  # type: ignore[misc]
        elif max_regret := stored.facts.get("measured", {}).get("max_regret"):
            self.guarantees = (*self.kept_by_construction, ApproximatelyTruthful(float(max_regret)))
        self._warned = self.untrained

    @classmethod
    def _stored(cls, weights: str | Path | None) -> Weights:
        return load(weights or shipped(cls.name), cls.name)

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
        """Bounds from above what any misreport of v gains in one market; see `certified`.

        Raises:
            ConfigurationError: the network uses an operation for which no bounds are known.
        """
        return certified.certify(self, bids, budget, closeness)

    def check_bounded(self, bids: Bids, budget: float) -> None:
        """Refuses a network for which `certify` could say nothing, within one auction.

        Raises:
            ConfigurationError: names all operations for which no bounds are known.
        """
        box = torch.tensor(bids.valuation[:1])
        bounds = self.own_utility if isinstance(self, certified.JumpingRule) else self.own_trade
        try:
            check_bounded(lambda: bounds(bids, budget, 0, box, torch.zeros_like(box)))
        except NoBoundKnownError as error:
            raise ConfigurationError(
                f"{self.name}: no upper bound on its regret is known: {error.message}",
                f"{error.hint}. Bounds are known for {', '.join(bounded_operations())}",
            ) from error

    def own_trade(self, bids: Bids, budget: float, client: int, centre: Tensor, radius: Tensor) -> Trade:
        """What one client gets for its reports in boxes, as slopes; see `certified`."""
        raise ConfigurationError(f"{self.name}: no upper bound on its regret is known", "attack it instead")

    def _warn_outside(self, bids: Bids, budget: Array) -> None:
        """Warns, once per mechanism, of a market that differs from those of the training."""
        trained = self.facts.get("trained_for")
        if self._warned or not trained:
            return
        low, high = trained["budget_over_valuations"]
        mean = np.maximum(bids.valuation.mean(axis=-1, keepdims=True), 1e-300)
        typical = float(np.median(budget / bids.clients / mean))
        # The mean valuation of n clients varies by about 1/√n, so a market of the trained kind may lie beyond.
        slack = 1.0 + 2.0 / bids.clients**0.5
        few, many = trained["clients"]
        outside = []
        if not low / slack <= typical <= high * slack:
            outside.append(
                f"a budget of {typical:.3g} per client and mean valuation, trained on {low:.3g} to {high:.3g}"
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


class NetworkMechanism(LearnedMechanism):
    """The mechanism of any network that has `forward`; a deviation is a whole new auction.

    `network_mechanism(MyNetwork)` makes this class for a network of your own. Without weights it is untrained, and
    called so.
    """

    _last: tuple[Bids, Array, Markets, Encoding] | None = None

    @classmethod
    def _stored(cls, weights: str | Path | None) -> Weights:
        if weights is not None or cls.network_class.__module__.startswith(_OWN_PACKAGE):
            return super()._stored(weights)
        start = new_network(cls.network_class, {}, seed=0)
        arrays = {name: tensor.detach().numpy() for name, tensor in start.state_dict().items()}
        facts = {"network": start.settings(), "seed": 0, "epsilon_max": EPSILON_MAX, "steps_done": 0}
        return Weights(cls.name, arrays, facts)

    def unilateral(self, bids: Bids, reports: Bids, budget: ArrayLike) -> Outcome:
        """What each client would get if it alone reported `reports[i]`, as the network answers deviations."""
        return self.unilateral_of(bids.clients, bids, reports, budget)

    def unilateral_of(self, first: int, bids: Bids, reports: Bids, budget: ArrayLike) -> Outcome:
        """`unilateral` for the first so many clients, (..., first): a deviation costs a whole auction."""
        reports.refuse_above(self.epsilon_max)
        column = budget_column(budget, bids.shape)
        dtype = torch.float64 if bids.valuation.size <= FLOAT64_ROWS else torch.float32
        network = self.network(dtype)
        markets, encoded = self._encoded(bids, column, dtype)
        answer = from_bids(reports, column, self.epsilon_max, dtype)
        step = self._deviators_at_once(markets)
        parts = []
        for start in range(0, first, step):
            who = torch.arange(start, min(start + step, first))
            parts.append(network.deviate(encoded, markets, answer.valuation[:, who], answer.epsilon[:, who], who))
        trade = Trade(torch.cat([p.epsilon for p in parts], -1), torch.cat([p.payment for p in parts], -1))
        if first < bids.clients:
            bids = bids[..., :first]
            reports = reports[..., :first]
        return settle(trade, bids, reports, column, guard=False)

    def own_trade(self, bids: Bids, budget: float, client: int, centre: Tensor, radius: Tensor) -> Trade:
        """What one client gets for its reports in boxes, as slopes: one auction for each box."""
        network = self.network()
        markets = from_bids(bids, np.array([budget]), self.epsilon_max, torch.float64)
        valuation = markets.valuation.expand(centre.numel(), -1).clone()
        valuation[:, client] = centre
        slope = torch.zeros_like(valuation)
        slope[:, client] = 1.0
        report = Slope(valuation, slope, slope, radius)
        boxes = replace(markets, valuation=report, epsilon=markets.epsilon.expand(centre.numel(), -1))  # type: ignore[arg-type]
        trade = network.clear(network.encode(boxes), boxes)
        return Trade(trade.epsilon[:, client], trade.payment[:, client])

    def _deviators_at_once(self, markets: Markets) -> int:
        """How many deviations are answered together, so that memory stays small; each has N² pairs of clients."""
        return max(1, _PAIRS_AT_ONCE // (markets.valuation.shape[0] * markets.clients**2))

    def _encoded(self, bids: Bids, budget: Array, dtype: torch.dtype) -> tuple[Markets, Encoding]:
        """Everybody's rows. An attack asks thousands of times about the same bids, which cannot change."""
        if self._last is None or self._last[0] is not bids or not np.array_equal(self._last[1], budget):
            markets = from_bids(bids, budget, self.epsilon_max, dtype)
            self._last = bids, budget, markets, self._encode(self.network(dtype), markets)
        return self._last[2], self._last[3]

    def _encode(self, network: AuctionNetwork, markets: Markets) -> Encoding:
        return network.encode(markets)

    def _trade(self, network: AuctionNetwork, markets: Markets) -> Trade:
        step = max(1, _PAIRS_AT_ONCE // markets.clients**2)
        parts = []
        for start in range(0, markets.valuation.shape[0], step):
            some = markets.part(slice(start, start + step))
            parts.append(network.clear(self._encode(network, some), some))
        return Trade(torch.cat([p.epsilon for p in parts]), torch.cat([p.payment for p in parts]))


class MeanFieldMechanism(NetworkMechanism):
    """A learned rule in which clients meet only through population sums: all N deviations in O(N)."""

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

    def _deviators_at_once(self, markets: Markets) -> int:
        return max(1, 50_000 // markets.valuation.shape[0])

    def _trade(self, network: AuctionNetwork, markets: Markets) -> Trade:
        return network.clear(self._encode(network, markets), markets)


_MADE: dict[type[AuctionNetwork], type[NetworkMechanism]] = {}


def network_mechanism(network_class: type[AuctionNetwork]) -> type[NetworkMechanism]:
    """The mechanism class of a network, named like it: takes `weights`, `epsilon_max` and `untrained`."""
    name = network_class.__name__
    return type(
        name, (NetworkMechanism,), {"name": name, "network_class": network_class, "__doc__": network_class.__doc__}
    )


def new_network(network_class: type[AuctionNetwork], settings: Mapping[str, object], seed: int) -> AuctionNetwork:
    """A network at its start, which depends on the seed alone.

    Raises:
        ConfigurationError: the network does not take these settings.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            return network_class(**settings)
        except TypeError as error:
            raise ConfigurationError(
                f"{network_class.__name__} cannot be made: {error}",
                "give its arguments with --set network.NAME=VALUE",
            ) from error


def build(network_class: type[AuctionNetwork], stored: Weights, untrained: bool = False) -> AuctionNetwork:
    """The network that a weights file describes, or its start."""
    try:
        network = new_network(network_class, stored.facts["network"], stored.facts.get("seed", 0))
        if untrained:
            return network
        state = {name: torch.from_numpy(np.array(array)) for name, array in stored.arrays.items()}
        network.load_state_dict(state)
    except (KeyError, ConfigurationError, RuntimeError) as error:
        raise WeightsError(
            f"weights for {stored.mechanism!r} do not fit its network: {error}", "train them anew"
        ) from error
    return network


def settle(trade: Trade, bids: Bids, reports: Bids, budget: Array, guard: bool = True) -> Outcome:
    """Float64 money from a network's trade, (..., clients).

    Whatever rounding the network did, pay covers the reported cost and, where all entries belong to one
    auction (`guard`), stays within the budget.
    """
    offered = reports.epsilon
    valuation = reports.valuation
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
