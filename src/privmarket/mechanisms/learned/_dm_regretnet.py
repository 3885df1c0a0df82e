"""DM-RegretNet: discrete privacy levels, a softmax over them in training and one of them at run time.

Notation: M levels, level m sells the fraction m/M of the offered ε; τ = temperature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from privmarket.market._bids import Array, Bids
from privmarket.mechanisms.learned._markets import BID_FEATURES, Markets, Trade, bid_features
from privmarket.mechanisms.learned._networks import multilayer, spending_the_budget
from privmarket.mechanisms.learned._regretnet import (
    FIRST_THRESHOLD,
    ConcatenatedNetwork,
    SeatedMechanism,
)
from privmarket.mechanisms.learned._slopes import Slope


class LevelsNetwork(ConcatenatedNetwork):
    """Per seat a distribution over M + 1 levels, and a share of the budget by a softmax over the seats.

    Level l is accepted below a critical value; critical values step down a ramp about the market's price, which is
    the rung of a ladder that spends the budget (`menus=0`: the network's own guess for each seat). The budget's
    softmax starts at the critical values of the levels sold, which is truthful while nobody moves the price.

    Implements: DM-RegretNet of [Zheng2022].
    Deviation: one-hot levels are drawn by argmax; a client whose share of the budget is below its cost for the
        chosen level sells nothing, so individual rationality holds in the outcome. With `straight_through`,
        training sees that outcome and takes the slopes of the relaxed one.
    """

    def __init__(
        self,
        seats: int = 10,
        levels: int = 8,
        temperature: float = 0.25,
        hidden: int = 128,
        violation_weight: float = 0.02,
        menus: int = 32,
        straight_through: bool = True,
    ) -> None:
        super().__init__()
        self.seats = seats
        self.levels = levels
        self.temperature = temperature
        self.hidden = hidden
        self.violation_weight = violation_weight
        self.menus = menus
        self.straight_through = straight_through
        outputs = seats * (levels + 2) + max(menus - 1, 0)
        self.net = multilayer((BID_FEATURES * seats, hidden, hidden, hidden, outputs), last_gain=0.05)
        self.log_width = nn.Parameter(torch.tensor([math.log(0.2)]))
        self.reserve = nn.Parameter(torch.tensor([0.03]))

    def _heads(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> _Heads:
        """What the dense layers and the ladder say about reports (..., L, seats)."""
        score, pay, money = self._scores(markets, valuation, epsilon)
        return _Heads(torch.softmax(score, dim=-1), pay, money)

    def _scores(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The logarithms of the chances of all levels up to a constant, and the rest of `_Heads`."""
        head = self.net(bid_features(markets, valuation, epsilon).flatten(-2))
        sizes = (self.seats * self.levels, self.seats, self.seats, max(self.menus - 1, 0))
        shift, height, money, aim = head.split(sizes, dim=-1)
        shift = shift.unflatten(-1, (self.seats, self.levels))
        height = height.clamp(-4.0, 4.0)
        s = valuation / markets.unit
        width = self.log_width.exp()
        if self.menus:
            log_price = self._clearing_price(markets, s, epsilon / markets.epsilon_max, height, aim)
        else:
            log_price = torch.full_like(height[..., :1], math.log(FIRST_THRESHOLD))
        threshold = torch.exp(log_price + height)
        rung = torch.arange(1, self.levels + 1, dtype=s.dtype) - 0.5
        # Level l beats level l − 1 where the ramp M·z passes l − ½, shifted by what the network learned.
        beats = self.levels * (0.5 + (1 - s / threshold) / width)[..., None] - rung + shift
        critical = threshold[..., None] * (1 + width * (0.5 - (rung - shift) / self.levels)).clamp_min(0.0)
        pay = critical.cumsum(-1) / self.levels * (markets.unit * epsilon / markets.budget)[..., None]
        nothing = torch.zeros_like(pay[..., :1])
        score = torch.cat((nothing, beats.cumsum(-1)), dim=-1) / self.temperature
        return score, torch.cat((nothing, pay), dim=-1), money

    def _clearing_price(self, markets: Markets, s: Tensor, cap: Tensor, height: Tensor, aim: Tensor) -> Tensor:
        """(..., L, 1) log of the price at which ramps about it, paid their Myerson integral, spend the budget."""
        rungs = torch.linspace(math.log(1.4), math.log(32.0), self.menus, dtype=s.dtype)
        width = self.log_width.exp()
        threshold = torch.exp(rungs + height[..., None])
        z = 0.5 + (1 - s[..., None] / threshold) / width
        ramp = z.clamp(0.0, 1.0)
        spent = s[..., None] * ramp + (0.5 * width) * threshold * ramp * (2 * z - ramp)
        spend = (cap[..., None, :] @ spent).squeeze(-2)
        clients = markets.clients if markets.present is None else markets.present.sum(-1, keepdim=True)
        share = spending_the_budget(spend / clients, 1 - self.reserve + 0.1 * aim, torch.ones_like(width))
        return (share * rungs).sum(-1, keepdim=True)

    def _fractions(self, like: Tensor) -> Tensor:
        """(M + 1,) the share of ε that each level sells."""
        return torch.arange(self.levels + 1, dtype=like.dtype) / self.levels

    def _settle(self, markets: Markets, epsilon: Tensor, heads: _Heads, chance: Tensor) -> Trade:
        """Expected sales, and the softmax over seats and the unspent rest that divides the budget."""
        price = (chance * heads.pay).sum(-1)
        unspent = torch.relu(1 - price.sum(-1, keepdim=True)) + 1e-6
        shares = torch.cat(((price + 1e-12).log() + heads.money, unspent.log()), dim=-1)
        payment = markets.budget * torch.softmax(shares, dim=-1)[..., :-1]
        return Trade(epsilon * (chance @ self._fractions(chance)), payment)

    def outcome(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> Trade:
        """What training differentiates: expected sales, or the one-hot outcome with the slopes of those."""
        heads = self._heads(markets, valuation, epsilon)
        if not self.straight_through:
            return self._settle(markets, epsilon, heads, heads.chance)
        chance = _one_hot(heads.chance) + heads.chance - heads.chance.detach()
        trade = self._settle(markets, epsilon, heads, chance)
        margin = (trade.payment - valuation * trade.epsilon) / (0.05 * markets.unit * markets.epsilon_max)
        willing = torch.sigmoid(margin)
        accepted = (margin >= 0).to(margin.dtype) + willing - willing.detach()
        return Trade(trade.epsilon * accepted, trade.payment * accepted)

    def extra_loss(self, markets: Markets) -> Tensor:
        """Mean distance of the level distributions from one-hot: the deterministic violation."""
        chance = self._heads(markets, markets.valuation, markets.epsilon).chance
        return self.violation_weight * (1 - chance.amax(-1)).mean()

    def final(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> Trade:
        """The likeliest level, or nothing if that would not pay the reported cost."""
        heads = self._heads(markets, valuation, epsilon)
        trade = self._settle(markets, epsilon, heads, _one_hot(heads.chance))
        accepted = (trade.payment >= valuation * trade.epsilon) & (trade.epsilon > 0)
        return Trade(trade.epsilon * accepted, trade.payment * accepted)

    def own_bound(self, markets: Markets, valuation: Slope, epsilon: Tensor, seat: int, worth: float) -> Tensor:
        """(boxes,) an upper bound on what the client in `seat`, to whom ε is worth `worth`, gains in each box.

        Where every seat keeps its level all over the box, pay has a slope there. Elsewhere each seat may be at any
        level whose score can be the largest, and pay is bounded from the ranges of all figures. With price p_j and
        correction e^{m_j} it is B·p_i·e^{m_i}/D, where D = Σ p_j·e^{m_j} + max(1 − Σ p_j, 0) is at least
        1 + Σ p_j·(e^{m_j} − 1) and at least Σ p_j·e^{m_j}. Who would be paid less than its reported cost
        sells nothing. On wide boxes figures overflow; a level is left out, and a gain denied, only where the
        figures say so, so that what is not a number ends as a bound that is none.
        """
        score, pay, money = self._scores(markets, valuation, epsilon)  # type: ignore[arg-type]
        assert isinstance(score, Slope)
        assert isinstance(pay, Slope)
        assert isinstance(money, Slope)
        factor = torch.exp(money)
        sold = epsilon[:, seat, None] * self._fractions(epsilon)  # (boxes, M + 1) ε of each level
        reported = valuation.least[:, seat]  # the least that it asks anywhere in the box
        level = score.middle.argmax(-1, keepdim=True)
        price = pay._shaped(lambda part: part.gather(-1, level).squeeze(-1))
        weighted = (price + 1e-12) * factor
        total = weighted.sum(-1) + torch.relu(1 - price.sum(-1)) + 1e-6
        amount = sold.gather(-1, level[:, seat])[:, 0]
        paid = (markets.budget[:, 0] * (weighted[:, seat] / total)).most
        steady = torch.where(paid < reported * amount, 0.0, paid - worth * amount)

        possible = ~(score.most < score.least.amax(-1, keepdim=True))
        far = torch.full_like(pay.middle, torch.inf)
        least = torch.where(possible, pay.least, far).amin(-1).clamp_min(0.0)
        most = torch.where(possible, pay.most, -far).amax(-1)
        utility = torch.full_like(sold, -torch.inf)
        for own in range(self.levels + 1):
            low = least.index_copy(-1, torch.tensor([seat]), pay.least[:, seat, own, None].clamp_min(0.0))
            high = most.index_copy(-1, torch.tensor([seat]), pay.most[:, seat, own, None])
            under = factor.least.clamp_min(0.0)
            change = torch.minimum(low * (under - 1), high * (under - 1)).sum(-1)
            divisor = torch.maximum(1 + change, (low * under).sum(-1)) + 1e-6
            paid = markets.budget[:, 0] * (high[:, seat] + 1e-12) * factor.most[:, seat] / divisor
            gained = torch.where(paid < reported * sold[:, own], 0.0, paid - worth * sold[:, own])
            utility[:, own] = torch.where(possible[:, seat, own], gained, -torch.inf)
        fixed = possible.sum(-1).eq(1).all(-1)
        return torch.where(fixed, torch.minimum(steady, utility.amax(-1)), utility.amax(-1))


@dataclass(frozen=True)
class _Heads:
    """What the network says about each seat.

    Attributes:
        chance: (..., L, seats, M + 1) distribution over levels.
        pay: (..., L, seats, M + 1) sum of the critical values up to each level, as a share of the budget.
        money: (..., L, seats) logarithm by which the pay is corrected.
    """

    chance: Tensor
    pay: Tensor
    money: Tensor


def _one_hot(chance: Tensor) -> Tensor:
    return functional.one_hot(chance.argmax(-1), chance.shape[-1]).to(chance.dtype)


class DmRegretNet(SeatedMechanism):
    """Learned with discrete privacy levels, in groups of its seats.

    Implements: DM-RegretNet of [Zheng2022].
    """

    name: ClassVar[str] = "dm-regretnet"
    network_class = LevelsNetwork

    def own_utility(
        self, bids: Bids, budget: float, client: int, centre: Tensor, radius: Tensor
    ) -> tuple[Array, Array]:
        """(boxes,) one client's utility at the middle of each box, and a bound over the box; at least 0 each."""
        network, own_group, report, seat = self._own_group(bids, budget, client, centre, radius)
        assert isinstance(network, LevelsNetwork)
        worth = float(bids.valuation[client])
        epsilon = own_group.epsilon.expand(centre.numel(), -1)
        trade = network.final(own_group, report.middle, epsilon)
        middle = trade.payment[:, seat] - worth * trade.epsilon[:, seat]
        bound = network.own_bound(own_group, report, epsilon, seat, worth).nan_to_num(nan=np.inf, posinf=np.inf)
        return middle.clamp_min(0.0).numpy(), bound.clamp_min(0.0).numpy()
