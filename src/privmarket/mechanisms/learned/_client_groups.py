"""Markets of any size for networks that read a fixed number of bids side by side.

Such a network has a fixed number of seats. A market with more clients is cut into groups of nearly equal size, in
the order in which clients are listed; each group is a market of its own with a share of the budget in proportion to
its clients. A group with fewer clients than seats is padded with empty seats. Whose group a client is in depends on
no report, so what holds within a group holds for the market.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from privmarket.mechanisms.learned._market_tensors import Markets
from privmarket.mechanisms.learned._networks import Trade


def group(markets: Markets, seats: int) -> Markets:
    """(L·groups, seats) markets from (L, N), with `present` set."""
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
