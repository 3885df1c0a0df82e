"""Markets and trades as tensors: what networks read and answer, how training draws markets, how large ones are cut.

Notation: L = profiles (markets) in a batch, N = clients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from privmarket._settings import EPSILON_MAX
from privmarket.market._bids import Bids
from privmarket.market._distributions import Distribution

UNKNOWN_ACCURACY = 0.75
BID_FEATURES = 4


@dataclass(frozen=True)
class Markets:
    """A batch of markets.

    Attributes:
        valuation: (L, N) reported v.
        epsilon: (L, N) reported caps.
        data_size: (L, N) records relative to the market's mean, public.
        accuracy: (L, N) local accuracy, public.
        budget: (L, 1) money per market.
        epsilon_max: the public limit on caps.
        present: (L, N) 1 for clients, 0 for padding; None means that all are clients.
    """

    valuation: Tensor
    epsilon: Tensor
    data_size: Tensor
    accuracy: Tensor
    budget: Tensor
    epsilon_max: float = EPSILON_MAX
    present: Tensor | None = None

    @property
    def clients(self) -> int:
        """N: the number of clients in each market, padding included."""
        return self.valuation.shape[-1]

    @property
    def unit(self) -> Tensor:
        """(L, 1) the money unit B/(N·ε_max): what one unit of ε earns if all sell ε_max at one price.

        Valuations are read in this unit, so a network cannot tell euros from cents: (v, B) → (c·v, c·B)
        leaves the sold ε unchanged. It holds no bid.
        """
        clients = self.clients if self.present is None else self.present.sum(-1, keepdim=True)
        return self.budget / (clients * self.epsilon_max)

    def part(self, which: slice) -> Markets:
        """Some of the L markets."""
        return replace(
            self,
            valuation=self.valuation[which],
            epsilon=self.epsilon[which],
            data_size=self.data_size[which],
            accuracy=self.accuracy[which],
            budget=self.budget[which],
            present=None if self.present is None else self.present[which],
        )

    def features(self) -> Tensor:
        """(L, N, 4) the bids as a network may read them, of the order of 1; see `bid_features`."""
        return bid_features(self, self.valuation, self.epsilon)


def bid_features(markets: Markets, valuation: Tensor, epsilon: Tensor) -> Tensor:
    """(..., N, 4) from reports (..., N): log(1 + s)/3, ε/ε_max, 1/(1 + s), whether somebody sits there.

    s = v/unit is the valuation in money units; everything is of the order of 1.
    """
    s = valuation / markets.unit
    cap = epsilon / markets.epsilon_max
    taken = torch.ones_like(s) if markets.present is None else markets.present.expand_as(s)
    return torch.stack((torch.log1p(s) / 3, cap, 1 / (1 + s), taken), dim=-1) * taken[..., None]


@dataclass(frozen=True)
class Trade:
    """ε sold and money paid, (..., N) each, with gradients."""

    epsilon: Tensor
    payment: Tensor

    def utility(self, valuation: Tensor) -> Tensor:
        """(..., N) p − v·ε at the true valuations."""
        return self.payment - valuation * self.epsilon


def from_bids(bids: Bids, budget: np.ndarray, epsilon_max: float, dtype: torch.dtype) -> Markets:
    """Tensors (L, N) from bids (..., clients) and budgets (..., 1)."""
    n = bids.clients

    def flat(array: np.ndarray) -> Tensor:
        return torch.tensor(array.reshape(-1, n), dtype=dtype)

    size = bids.data_share * n
    accuracy = np.full(bids.shape, UNKNOWN_ACCURACY) if bids.accuracy is None else bids.accuracy
    money = torch.tensor(np.broadcast_to(budget, (*bids.shape[:-1], 1)).reshape(-1, 1), dtype=dtype)
    return Markets(flat(bids.valuation), flat(bids.epsilon), flat(size), flat(accuracy), money, epsilon_max)


@dataclass(frozen=True)
class MarketSampler:
    """Draws training markets over distributions, numbers of clients and budgets.

    Attributes:
        distributions: each profile draws one of them.
        clients: (low, high), one N per batch: log-uniform but for a lean to small markets.
        budget_per_client: (low, high), log-uniform, one per profile.
        rows: about how many clients a batch holds in all.
        profiles: markets per batch, whatever their size; 0 takes as many as `rows` holds.
        public_features: draw data size and accuracy at random, so that a rule for which they do not matter
            learns to ignore them; otherwise what the distribution gives.
    """

    distributions: Sequence[Distribution]
    clients: tuple[int, int]
    budget_per_client: tuple[float, float]
    rows: int = 4096
    public_features: bool = True
    profiles: int = 0

    def draw(self, rng: np.random.Generator) -> tuple[Markets, np.ndarray]:
        """A batch and, per profile, the index of its distribution, (L,)."""
        low, high = self.clients
        # Small markets more often: there one client weighs most, and most is to be learned.
        place = float(rng.uniform()) ** 1.5
        n = round(float(np.exp(np.log(low) + place * (np.log(high + 0.5) - np.log(low)))))
        n = min(max(n, low), high)
        profiles = self.profiles or max(len(self.distributions), self.rows // n)
        distribution_of = np.sort(rng.permutation(np.arange(profiles) % len(self.distributions)))
        parts = [
            distribution.sample(rng, n, (int((distribution_of == index).sum()),))
            for index, distribution in enumerate(self.distributions)
        ]
        shape = (profiles, n)
        poor, rich = self.budget_per_client
        if self.public_features:
            size = rng.uniform(0.2, 1.8, shape)
            accuracy = rng.uniform(0.5, 1.0, shape)
        else:
            size = np.concatenate([part.data_share * n for part in parts])
            accuracy = np.full(shape, UNKNOWN_ACCURACY)
        per_client = np.exp(rng.uniform(np.log(poor), np.log(rich), size=(profiles, 1)))
        fields = (
            np.concatenate([part.valuation for part in parts]),
            np.concatenate([part.epsilon for part in parts]),
            size / size.mean(axis=-1, keepdims=True),
            accuracy,
            per_client * n,
        )
        v, e, d, u, budget = (torch.as_tensor(field, dtype=torch.float32) for field in fields)
        return Markets(
            v, e, d, u, budget, max(distribution.epsilon_max for distribution in self.distributions)
        ), distribution_of


# ---- groups: markets of any size for networks with a fixed number of seats ----


def group(markets: Markets, seats: int) -> Markets:
    """Cuts markets (L, N) into groups that fit a network with `seats` seats: (L·groups, seats), with `present` set.

    Groups have nearly equal size, in the order in which clients are listed. Each is a market of its own with a
    share of the budget in proportion to its clients; a group with fewer clients than seats is padded with empty
    seats. Whose group a client is in depends on no report, so what holds within a group holds for the market.
    """
    profiles, clients = markets.valuation.shape
    groups = math.ceil(clients / seats)
    head_count = torch.full((groups,), clients // groups)
    head_count[: clients % groups] += 1
    index = _seating(head_count, seats)
    present = index >= 0

    def place(field: Tensor, empty: float) -> Tensor:
        taken = torch.where(present, field[:, index.clamp_min(0)], torch.full((), empty, dtype=field.dtype))
        return taken.reshape(profiles * groups, seats)

    share = head_count.to(markets.budget.dtype) / clients
    return replace(
        markets,
        valuation=place(markets.valuation, 0.0),
        epsilon=place(markets.epsilon, 0.0),
        data_size=place(markets.data_size, 1.0),
        accuracy=place(markets.accuracy, 0.75),
        budget=(markets.budget * share).reshape(-1, 1),
        present=present.to(markets.budget.dtype).expand(profiles, groups, seats).reshape(-1, seats),
    )


def columns_with_clients(markets: Markets) -> Tensor:
    """(columns,) those in which some market of the batch has a client; empty seats make no reports."""
    if markets.present is None:
        return torch.arange(markets.clients)
    return markets.present.amax(0).nonzero()[:, 0]


def ungroup(trade: Trade, profiles: int, clients: int) -> Trade:
    """(L, N) from the trades of the seated groups."""
    seats = trade.epsilon.shape[-1]
    groups = trade.epsilon.shape[0] // profiles
    head_count = torch.full((groups,), clients // groups)
    head_count[: clients % groups] += 1
    index = _seating(head_count, seats)
    flat = index.reshape(-1)
    seated = flat >= 0

    def collect(field: Tensor) -> Tensor:
        return field.reshape(profiles, groups * seats)[:, seated][:, torch.argsort(flat[seated])]

    return Trade(collect(trade.epsilon), collect(trade.payment))


def _seating(head_count: Tensor, seats: int) -> Tensor:
    """(groups, seats) which client sits where, −1 for an empty seat."""
    first = torch.cumsum(head_count, 0) - head_count
    column = torch.arange(seats)
    return torch.where(column < head_count[:, None], first[:, None] + column, torch.tensor(-1))
