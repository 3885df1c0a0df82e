"""RegretFormer: clients look at each other by attention, so that one set of weights serves markets of any size.

Notation: N clients, K menus, d = width of a client's row; s = v/unit a valuation in money units (see
`Markets.unit`).
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from privmarket.mechanisms.learned._learned_mechanism import NetworkMechanism
from privmarket.mechanisms.learned._markets import BID_FEATURES, Markets, Trade
from privmarket.mechanisms.learned._networks import AuctionNetwork, Encoding, MenuLadder

# Clients at which the feature FEW/N, by which rows know how much one client weighs, is 1.
FEW = 10


class AttentionBlock(nn.Module):
    """Self-attention over the clients of a market, then a layer per client; both are added to the input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, rows: Tensor) -> Tensor:
        """(L, N, d) from (L, N, d)."""
        size = rows.shape[-1] // self.heads

        def split(linear: nn.Linear) -> Tensor:
            parts: Tensor = linear(rows).unflatten(-1, (self.heads, size))
            return parts.transpose(-2, -3)  # (L, heads, N, d/heads)

        score = split(self.query) @ split(self.key).transpose(-1, -2) / math.sqrt(size)
        seen = torch.softmax(score, dim=-1) @ split(self.value)
        rows = rows + self.out(seen.transpose(-2, -3).flatten(-2))
        mixed: Tensor = rows + self.outer(torch.relu(self.inner(rows)))
        return mixed


class AttentionNetwork(AuctionNetwork):
    """Attention blocks over the clients that correct a ladder of menus, client by client and menu by menu.

    Nothing depends on a client's place in the list: the network is permutation equivariant. Menus, markups and
    the choice between menus by what each would spend are those of `RegretNetwork` and `MeanFieldNetwork`, so that
    the three differ only in how a client sees the others: side by side, by population means, or by attention.

    Implements: the attention layers of RegretFormer of [IvanovEtAl2022] for a reverse auction with a budget.
    Deviation: one good, so attention runs over clients only; payment is reported cost plus a markup, so that
        individual rationality holds by construction; no layer normalisation.

    Args:
        width: d, numbers per client; a multiple of `heads`.
        heads, blocks: attention heads, and attention blocks one after the other.
        menus: K.
    """

    def __init__(self, width: int = 32, heads: int = 2, blocks: int = 2, menus: int = 16) -> None:
        super().__init__()
        self.width = width
        self.heads = heads
        self.blocks = blocks
        self.menus = menus
        self.embed = nn.Linear(BID_FEATURES + 1, width)
        self.layers = nn.Sequential(*(AttentionBlock(width, heads) for _ in range(blocks)))
        self.of_client = nn.Linear(width, 2 * menus)
        self.of_market = nn.Linear(width, 2 * menus)
        self.ladder = MenuLadder(menus)
        with torch.no_grad():
            for head in (self.of_client, self.of_market):
                head.weight.mul_(0.05)
                head.bias.zero_()

    def forward(self, markets: Markets) -> Trade:
        """The outcome (L, N) at the reports in `markets`."""
        features = markets.features()
        few = torch.full_like(features[..., :1], FEW / markets.clients)
        rows = self.layers(self.embed(torch.cat((features, few), dim=-1)))
        trade: Trade = self.ladder(
            self.of_client(rows), self.of_market(rows.mean(-2)), markets, markets.valuation, markets.epsilon
        )
        return trade

    def clear(self, encoded: Encoding, markets: Markets) -> Trade:
        """The outcome (L, N); the ladder keeps all promises, so nothing has to be cut."""
        return self.forward(markets)


class RegretFormer(NetworkMechanism):
    """Learned with attention between clients; one network for markets of any size, no groups and no mean field.

    A deviation is a whole new market, so N deviations are N markets of N clients, each with N² pairs.

    Implements: RegretFormer of [IvanovEtAl2022].
    """

    name: ClassVar[str] = "regretformer"
    network_class = AttentionNetwork
