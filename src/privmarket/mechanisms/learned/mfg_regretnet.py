"""MFG-RegretNet, corrected: the paper's own mechanism with heads that keep IR and the budget."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from privmarket.mechanisms.learned.markets import Markets
from privmarket.mechanisms.learned.mean_field_network import CHUNK_ROWS, FARTHEST, MeanFieldNetwork, Rows
from privmarket.mechanisms.learned.mechanism import MeanFieldMechanism
from privmarket.mechanisms.learned.networks import AuctionNetwork


class MfgRegretNet(MeanFieldMechanism):
    """Trained to buy much ε at little regret; individually rational and within budget by construction.

    Implements: Algorithm 2 and Section VII of [Sun2026], the auction part.
    Deviation: see `MeanFieldNetwork` and `within_budget`.
    """

    name: ClassVar[str] = "mfg-regretnet"
    network_class = MeanFieldNetwork

    def _encode(self, network: AuctionNetwork, markets: Markets) -> Any:
        assert isinstance(network, MeanFieldNetwork)
        return encode_in_chunks(network, markets)


def encode_in_chunks(network: MeanFieldNetwork, markets: Markets) -> Rows:
    """`network.encode`, a few hundred clients at a time in buffers that stay in the processor's cache."""
    s = (markets.valuation / markets.unit).reshape(-1, 1)
    cap = (markets.epsilon / markets.epsilon_max).reshape(-1, 1)
    size, accuracy = markets.data_size.reshape(-1, 1), markets.accuracy.reshape(-1, 1)
    features = torch.cat((torch.log1p(s), cap, torch.log(cap + 0.02), size - 1, accuracy - 0.75), dim=1)
    count, menus = features.shape[0], network.menus
    share, markup = features.new_empty(count, menus), features.new_empty(count, menus)
    threshold = network.log_threshold.exp()
    width = threshold * network.log_width.exp()
    offset, slope = threshold / width, -1 / width
    layers = _Layers(network)
    for start in range(0, count, CHUNK_ROWS):
        rows = slice(start, min(start + CHUNK_ROWS, count))
        correction = layers(features[rows], relu=True)
        distance = torch.addcmul(offset, s[rows], slope)
        torch.sigmoid(correction[:, :menus].add_(distance).clamp_min_(FARTHEST), out=share[rows])
        above = functional.softplus(distance.add_(correction[:, menus:]).clamp_min_(FARTHEST))
        torch.mul(above, width, out=markup[rows])
    shape = markets.valuation.shape
    fields = (features, share, markup, cap, s)
    return Rows(*(field.reshape(*shape, -1) for field in fields))


class _Layers:
    """The row network's layers with one output buffer each."""

    def __init__(self, network: MeanFieldNetwork) -> None:
        layers = [layer for layer in network.row if isinstance(layer, torch.nn.Linear)]
        self.weights = [layer.weight.detach().T.contiguous() for layer in layers]
        self.biases = [layer.bias.detach() for layer in layers]
        self.buffers = [weight.new_empty(CHUNK_ROWS, weight.shape[1]) for weight in self.weights]

    def __call__(self, rows: Tensor, *, relu: bool) -> Tensor:
        """(rows, outputs); without `relu` the matrix products alone. Valid until the next call."""
        for weight, bias, buffer in zip(self.weights, self.biases, self.buffers, strict=True):
            out = buffer[: rows.shape[0]]
            if relu:
                torch.addmm(bias, rows, weight, out=out)
                rows = out.relu_() if bias is not self.biases[-1] else out
            else:
                rows = torch.mm(rows, weight, out=out)
        return rows


def bare_products(network: MeanFieldNetwork, features: Tensor) -> Tensor:
    """The matrix products of the row network and nothing else, in the same chunks: the yardstick of speed."""
    layers, result = _Layers(network), features
    for start in range(0, features.shape[0], CHUNK_ROWS):
        result = layers(features[start : start + CHUNK_ROWS], relu=False)
    return result
