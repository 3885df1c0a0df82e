"""What every auction network has in common: its outcome as tensors, and what a deviation does to it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor, nn

from privmarket.mechanisms.learned._market_tensors import Markets


@dataclass(frozen=True)
class Trade:
    """ε sold and money paid, (..., N) each, with gradients."""

    epsilon: Tensor
    payment: Tensor

    def utility(self, valuation: Tensor) -> Tensor:
        """(..., N) p − v·ε at the true valuations."""
        return self.payment - valuation * self.epsilon


@dataclass(frozen=True)
class Encoding:
    """What a network works out once from everybody's reports, for `clear` and `deviate`: fields of tensors.

    This class itself has none, for networks that share nothing.
    """

    def detached(self) -> Self:
        """The same, outside the graph: an attack on it does not train the network."""
        return replace(self, **{f.name: getattr(self, f.name).detach() for f in fields(self)})


class AuctionNetwork(nn.Module):
    """A differentiable auction in two steps: encode everybody's report once, then clear or deviate from it."""

    @abstractmethod
    def encode(self, markets: Markets) -> Encoding:
        """Computes from all reports what `clear` and `deviate` both need."""

    @abstractmethod
    def clear(self, encoded: Encoding, markets: Markets) -> Trade:
        """The outcome (L, N) at the reports in `markets`."""

    @abstractmethod
    def deviate(
        self, encoded: Encoding, markets: Markets, valuation: Tensor, epsilon: Tensor, who: Tensor
    ) -> Trade:
        """What each of some clients gets if it alone reports something else.

        Args:
            encoded: `encode(markets)`.
            markets: what the others report.
            valuation: (..., L, D) the other reports; leading dimensions are tried independently.
            epsilon: (..., L, D).
            who: (D,) which clients these are, the same columns in every profile.

        Returns:
            A trade (..., L, D).
        """

    def deviations(self, encoded: Encoding, markets: Markets, who: Tensor) -> Callable[[Tensor, Tensor], Trade]:
        """`deviate` for many misreports of the same clients; what they share may be computed once."""
        return lambda valuation, epsilon: self.deviate(encoded, markets, valuation, epsilon, who)

    def prepare(self, markets: Markets) -> Markets:
        """Training markets in the form that the network reads."""
        return markets

    def extra_loss(self, markets: Markets) -> Tensor:
        """What this kind of network adds to the loss."""
        return torch.zeros(())

    def settings(self) -> dict[str, object]:
        """The arguments with which the network was made; they are stored next to the weights."""
        return {}


def multilayer(sizes: tuple[int, ...], last_gain: float = 1.0, bias: bool = True) -> nn.Sequential:
    """Linear layers with ReLU between them; the last layer starts `last_gain` times as large as usual."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs, bias=bias), nn.ReLU()]
    layers.pop()
    last = layers[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.weight.mul_(last_gain)
        if bias:
            last.bias.zero_()
    return nn.Sequential(*layers)


def within_budget(epsilon: Tensor, markup: Tensor, valuation: Tensor, total: Tensor, budget: Tensor) -> Trade:
    """Pays v·ε + markup, and scales ε *and* pay when the market's total would pass its budget.

    Both are scaled, so a client is still paid at least its reported cost for what it sells.

    Implements: Eq. (BF) of [Sun2026].
    Deviation: the paper scales the payment alone, which breaks individual rationality.
    """
    scale = torch.clamp(budget / total.clamp_min(1e-30), max=1.0)
    sold = epsilon * scale
    return Trade(sold, valuation * sold + markup * scale)
