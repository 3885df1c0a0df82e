"""MFG-RegretNet, corrected: the paper's own mechanism with heads that keep IR and the budget."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from privmarket.mechanisms.learned._learned_mechanism import MeanFieldMechanism
from privmarket.mechanisms.learned._market_tensors import Markets
from privmarket.mechanisms.learned._mean_field_network import FEW, ROW_FEATURES, MeanFieldNetwork, Rows
from privmarket.mechanisms.learned._networks import AuctionNetwork

CHUNK_ROWS = 2000


class MfgRegretNet(MeanFieldMechanism):
    """Trained to buy much ε at little regret; individually rational and within budget by construction.

    Implements: Algorithm 2 and Section VII of [Sun2026], the auction part.
    Deviation: see `MeanFieldNetwork` and `within_budget`.
    """

    name: ClassVar[str] = "mfg-regretnet"
    network_class = MeanFieldNetwork

    def _encode(self, network: AuctionNetwork, markets: Markets) -> Rows:
        assert isinstance(network, MeanFieldNetwork)
        return encode_in_chunks(network, markets)


def encode_in_chunks(network: MeanFieldNetwork, markets: Markets) -> Rows:
    """`network.encode`, some hundred clients at a time in buffers that stay in the processor's cache."""
    shape, menus = markets.valuation.shape, network.menus
    s = (markets.valuation / markets.unit).reshape(-1)
    cap = (markets.epsilon / markets.epsilon_max).reshape(-1)
    count = s.shape[0]
    columns = _room(s, ROW_FEATURES, count)  # column by column: logarithms of strided numbers are slow
    columns[0], columns[2], columns[4] = 1.0, cap, FEW / markets.clients
    torch.log1p(s, out=columns[1])
    torch.log(cap + 0.02, out=columns[3])
    torch.sub(markets.data_size.reshape(-1), 1, out=columns[5])
    torch.sub(markets.accuracy.reshape(-1), 0.75, out=columns[6])
    features, s, cap = columns.T, s[:, None], cap[:, None]
    share, markup = _room(s, count, menus), _room(s, count, menus)
    layers, ramps = _Layers(network), _Ramps(network)
    for start in range(0, count, CHUNK_ROWS):
        rows = slice(start, min(start + CHUNK_ROWS, count))
        ramps(layers.hidden(features[rows]), s[rows], share[rows], markup[rows])
    fields = (features, share, markup, cap, s)
    return Rows(*(field.reshape(*shape, -1) for field in fields))


def _room(like: Tensor, rows: int, columns: int) -> Tensor:
    """Unwritten memory from NumPy, which asks for large pages: twice as fast to write for the first time."""
    return torch.from_numpy(np.empty((rows, columns), dtype=str(like.dtype).removeprefix("torch.")))


class _Layers:
    """The row network's hidden layers in two buffers that take turns."""

    def __init__(self, network: MeanFieldNetwork) -> None:
        layers = [layer for layer in network.row if isinstance(layer, torch.nn.Linear)]
        self.weights = [layer.weight.detach().T.contiguous() for layer in layers]
        widest = max(weight.shape[1] for weight in self.weights)
        self.buffers = self.weights[0].new_empty(2, CHUNK_ROWS * widest)

    def hidden(self, rows: Tensor) -> Tensor:
        """(rows, hidden) what the last layer reads. Valid until the next call."""
        for turn, weight in enumerate(self.weights[:-1]):
            rows = torch.mm(rows, weight, out=self._out(turn, rows, weight)).relu_()
        return rows

    def _out(self, turn: int, rows: Tensor, weight: Tensor) -> Tensor:
        shape = rows.shape[0], weight.shape[1]
        return self.buffers[turn % 2, : shape[0] * shape[1]].view(shape)


class _Ramps:
    """The last layer and `MeanFieldNetwork.menu_terms`, in place."""

    def __init__(self, network: MeanFieldNetwork) -> None:
        last = network.row[-1]
        assert isinstance(last, torch.nn.Linear)
        threshold = network.log_threshold.exp()
        width = threshold * network.log_width.exp()
        self.weight, self.menus = last.weight.detach().T.contiguous(), network.menus
        self.offset, self.slope = (0.5 + threshold / width).repeat(2), (-1 / width).repeat(2)
        self.scale = -0.5 * width
        self.height = width.new_empty(CHUNK_ROWS, 2 * network.menus)

    def __call__(self, hidden: Tensor, s: Tensor, share: Tensor, markup: Tensor) -> None:
        """Writes shares and markups (rows, K)."""
        height = self.height[: s.shape[0]]
        torch.addcmul(self.offset, s, self.slope, out=height)
        height.addmm_(hidden, self.weight)
        torch.clamp(height[:, : self.menus], 0.0, 1.0, out=share)
        height = height[:, self.menus :]
        torch.clamp(height, 0.0, 1.0, out=markup)
        torch.sub(markup, height, alpha=2.0, out=height)
        markup.mul_(height).mul_(self.scale)
