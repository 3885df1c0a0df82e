"""Markets as tensors: what the networks read, and how training draws them.

Notation: L = profiles (markets) in a batch, N = clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privmarket._settings import EPSILON_MAX
from privmarket.market._bids import Bids
from privmarket.market._distributions import Distribution

UNKNOWN_ACCURACY = 0.75


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
    """Draws training markets over laws, numbers of clients and budgets.

    Attributes:
        laws: each profile draws one of them.
        clients: (low, high), one N per batch: log-uniform but for a lean to small markets.
        budget_per_client: (low, high), log-uniform, one per profile.
        rows: about how many clients a batch holds in all.
        profiles: markets per batch, whatever their size; 0 takes as many as `rows` holds.
        public_features: draw data size and accuracy at random, so that a rule for which they do not matter
            learns to ignore them; otherwise what the law gives.
    """

    laws: Sequence[Distribution]
    clients: tuple[int, int]
    budget_per_client: tuple[float, float]
    rows: int = 4096
    public_features: bool = True
    profiles: int = 0

    def draw(self, rng: np.random.Generator) -> tuple[Markets, np.ndarray]:
        """A batch and, per profile, the index of its law, (L,)."""
        low, high = self.clients
        # Small markets more often: there one client weighs most, and most is to be learned.
        place = float(rng.uniform()) ** 1.5
        n = round(float(np.exp(np.log(low) + place * (np.log(high + 0.5) - np.log(low)))))
        n = min(max(n, low), high)
        profiles = self.profiles or max(len(self.laws), self.rows // n)
        law_of = np.sort(rng.permutation(np.arange(profiles) % len(self.laws)))
        parts = [law.sample(rng, n, (int((law_of == index).sum()),)) for index, law in enumerate(self.laws)]
        shape, (poor, rich) = (profiles, n), self.budget_per_client
        if self.public_features:
            size, accuracy = rng.uniform(0.2, 1.8, shape), rng.uniform(0.5, 1.0, shape)
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
        return Markets(v, e, d, u, budget, max(law.epsilon_max for law in self.laws)), law_of
