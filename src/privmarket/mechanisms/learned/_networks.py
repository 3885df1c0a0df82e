"""What an auction network is, and parts to build one from.

Notation: K menus; s = v/unit a valuation in money units (see `Markets.unit`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from inspect import signature
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from privmarket.errors import ConfigurationError
from privmarket.mechanisms.learned._markets import Markets, Trade


@dataclass(frozen=True)
class Encoding:
    """What a network works out once from everybody's reports, for `clear` and `deviate`: fields of tensors.

    This class itself has none, for networks that share nothing.
    """

    def detached(self) -> Self:
        """The same, outside the graph: an attack on it does not train the network."""
        return replace(self, **{f.name: getattr(self, f.name).detach() for f in fields(self)})


class AuctionNetwork(nn.Module):
    """A differentiable auction that `privmarket.train` can train: write `__init__` and `forward`.

    `forward` reads a batch of markets and answers what each client sells and is paid. Whatever it answers is then
    cut to what an auction may do (`keep_promises`): nobody sells more than it offers, is paid less than its
    reported cost, or is paid out of more than the budget. So a network may be as free as it likes, and its
    mechanism still declares and keeps these three promises. How little a misreport gains is what training is for.

    The arguments of `__init__` should be kept as attributes of the same name: they are stored beside the weights,
    and the network is made from them again when the weights are loaded.

    A network in which clients meet only through sums can answer all N deviations faster than by N auctions. Such a
    network overrides `encode`, `clear` and `deviate` as well (`MeanFieldNetwork` does).
    """

    def forward(self, markets: Markets) -> Trade:
        """What each client sells and is paid, (L, N) each; L and N differ from call to call."""
        raise NotImplementedError(f"{type(self).__name__} has no method forward(self, markets) -> Trade")

    def encode(self, markets: Markets) -> Encoding:
        """Computes from all reports what `clear` and `deviate` both need; nothing by default."""
        return Encoding()

    def clear(self, encoded: Encoding, markets: Markets) -> Trade:
        """The outcome (L, N) at the reports in `markets`: what `forward` answers, cut to what an auction may do."""
        trade = self(markets)
        _check_shape(self, trade, markets)
        return keep_promises(trade, markets)

    def deviate(
        self, encoded: Encoding, markets: Markets, valuation: Tensor, epsilon: Tensor, who: Tensor
    ) -> Trade:
        """What each of some clients gets if it alone reports something else. By default, one auction for each.

        Args:
            encoded: `encode(markets)`.
            markets: what the others report.
            valuation: (..., L, D) the other reports; leading dimensions are tried independently.
            epsilon: (..., L, D).
            who: (D,) which clients these are, the same columns in every profile.

        Returns:
            A trade (..., L, D).
        """
        own = functional.one_hot(who, markets.clients).bool()  # (D, N)
        shape = (*valuation.shape, markets.clients)

        def rows(field: Tensor) -> Tensor:
            """(markets, N) from the fields (L, N) of the markets in which somebody deviates."""
            return field[:, None].expand(shape).reshape(-1, markets.clients)

        many = replace(
            markets,
            valuation=torch.where(own, valuation[..., None], markets.valuation[:, None]).reshape(-1, shape[-1]),
            epsilon=torch.where(own, epsilon[..., None], markets.epsilon[:, None]).reshape(-1, shape[-1]),
            data_size=rows(markets.data_size),
            accuracy=rows(markets.accuracy),
            budget=markets.budget.expand(valuation.shape).reshape(-1, 1),
            present=None if markets.present is None else rows(markets.present),
        )
        trade = self.clear(self.encode(many), many)
        mine = who.expand(valuation.shape)[..., None]
        return Trade(
            trade.epsilon.reshape(shape).gather(-1, mine).squeeze(-1),
            trade.payment.reshape(shape).gather(-1, mine).squeeze(-1),
        )

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
        """The arguments with which the network was made, read off the attributes of the same name.

        Raises:
            ConfigurationError: an argument was not kept as an attribute.
        """
        found: dict[str, object] = {}
        for name in signature(type(self)).parameters:
            if not hasattr(self, name):
                raise ConfigurationError(
                    f"{type(self).__name__} does not keep its argument {name!r}",
                    f"write self.{name} = {name} in __init__, or a method settings() that returns all arguments",
                )
            found[name] = getattr(self, name)
        return found


def _check_shape(network: nn.Module, trade: object, markets: Markets) -> None:
    name = type(network).__name__
    if not isinstance(trade, Trade):
        raise ConfigurationError(
            f"{name}.forward returned {type(trade).__name__}", "return Trade(epsilon, payment), tensors (L, N) each"
        )
    wanted = tuple(markets.valuation.shape)
    for field in ("epsilon", "payment"):
        shape = tuple(getattr(trade, field).shape)
        if shape != wanted:
            raise ConfigurationError(
                f"{name}.forward: {field} has shape {shape} where the markets have {wanted}",
                "give one number for each market and client",
            )


def keep_promises(trade: Trade, markets: Markets) -> Trade:
    """The trade (L, N), cut to what an auction may do; with gradients.

    Sales are cut to [0, offer], pay is raised to the reported cost of what is sold, and where the total would
    pass the budget, sales and pay are scaled down together.
    """
    sold = torch.minimum(torch.relu(trade.epsilon), markets.epsilon)
    if markets.present is not None:
        sold = sold * markets.present
    markup = torch.relu(trade.payment - markets.valuation * sold) * (sold > 0)
    total = (markets.valuation * sold + markup).sum(-1, keepdim=True)
    return within_budget(sold, markup, markets.valuation, total, markets.budget)


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


def spending_the_budget(spend: Tensor, target: Tensor, spread: Tensor) -> Tensor:
    """(..., K) weights on a ladder of menus, from cheap to dear, that spend the target.

    Between two neighbours of which one spends less and the other more than the target, linear interpolation spends
    it exactly; a spread above 1 also gives some weight to the menus beside them, so that one client moves the
    weights less.

    Args:
        spend: (..., K) what each menu would spend; rises with k, or is treated as if it did.
        target: (..., K − 1) for each pair of neighbours.
    """
    low = spend[..., :-1]
    high = spend[..., 1:]
    gap = (high - low).clamp_min(1e-3)
    climbed = (0.5 + (target - 0.5 * (low + high)) / (spread * gap)).clamp(0.0, 1.0)
    one = torch.ones_like(climbed[..., :1])
    climbed = torch.cummin(torch.cat((one, climbed), dim=-1), dim=-1).values
    return climbed - torch.cat((climbed[..., 1:], torch.zeros_like(one)), dim=-1)


class MenuLadder(nn.Module):
    """Menus from cheap to dear, each corrected by a network, mixed so that the budget is spent."""

    def __init__(self, menus: int) -> None:
        super().__init__()
        self.menus = menus
        self.log_threshold = nn.Parameter(torch.linspace(math.log(1.4), math.log(32.0), menus))
        self.log_width = nn.Parameter(torch.full((menus,), math.log(0.2)))
        self.log_spread = nn.Parameter(torch.tensor([math.log(1.5)]))
        self.reserve = nn.Parameter(torch.tensor([0.02]))

    def forward(
        self, corrections: Tensor, of_menus: Tensor, markets: Markets, valuation: Tensor, epsilon: Tensor
    ) -> Trade:
        """The outcome of reports (..., L, seats).

        Args:
            corrections: (..., L, seats, 2K) added to the height of each ramp, for the share and for the markup.
            of_menus: (..., L, 2K) what to aim for with each menu, and the log by which its markups are scaled.
        """
        s = valuation / markets.unit
        cap = epsilon / markets.epsilon_max
        share, markup = self._terms(corrections, s[..., None])  # (..., L, seats, K)
        clients = markets.clients if markets.present is None else markets.present.sum(-1, keepdim=True)
        cost = ((cap * s)[..., None, :] @ share).squeeze(-2)
        above = (cap[..., None, :] @ markup).squeeze(-2)
        target = 1 - self.reserve + 0.1 * of_menus[..., 1 : self.menus]
        a = spending_the_budget((cost + above) / clients, target, self.log_spread.exp())
        c = a * torch.exp(of_menus[..., self.menus :])
        total = (a * cost + c * above).sum(-1, keepdim=True) * markets.unit * markets.epsilon_max
        sold = epsilon * (share @ a[..., None]).squeeze(-1)
        extra = epsilon * markets.unit * (markup @ c[..., None]).squeeze(-1)
        return within_budget(sold, extra, valuation, total, markets.budget)

    def _terms(self, corrections: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """Shares and markups (..., K), as in `MeanFieldNetwork.menu_terms`."""
        threshold = self.log_threshold.exp()
        width = threshold * self.log_width.exp()
        height = torch.addcmul(0.5 + threshold / width, s, -1 / width)
        share = (height + corrections[..., : self.menus]).clamp(0.0, 1.0)
        height = height + corrections[..., self.menus :]
        above = height.clamp(0.0, 1.0)
        return share, (0.5 * width) * above * (2 * height - above)
