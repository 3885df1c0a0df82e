"""RegretNet for buying privacy: all bids of a market side by side into one network, no mean field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional

from privmarket.market._bids import Bids
from privmarket.market._mechanism import budget_column
from privmarket.market._outcome import Outcome
from privmarket.mechanisms.learned._learned_mechanism import LearnedMechanism, settle
from privmarket.mechanisms.learned._markets import (
    BID_FEATURES,
    Markets,
    Trade,
    bid_features,
    columns_with_clients,
    from_bids,
    group,
    ungroup,
)
from privmarket.mechanisms.learned._networks import AuctionNetwork, Encoding, MenuLadder, multilayer, within_budget
from privmarket.mechanisms.learned._slopes import Slope

# Beyond this, exponentials are subnormal numbers, ten times as slow and of no consequence.
FARTHEST = -30.0
# In money units: what a posted price would be in the middle of the training's markets.
FIRST_THRESHOLD = 4.0
Rule = Callable[[Markets, Tensor, Tensor], Trade]


class ConcatenatedNetwork(AuctionNetwork):
    """Base of networks that read all seats at once: a deviation is a whole new market.

    So N deviations are N markets of N clients: O(N²) where the mean-field networks need O(N).
    """

    seats: int

    def prepare(self, markets: Markets) -> Markets:
        """Puts the clients of each market into the network's seats; seats without a client stay empty."""
        return group(markets, self.seats)

    def encode(self, markets: Markets) -> Encoding:
        """An empty encoding: this network computes nothing that deviations could share."""
        return Encoding()

    def clear(self, encoded: Encoding, markets: Markets) -> Trade:
        """The outcome (L, seats) at the reports in `markets`."""
        return self.outcome(markets, markets.valuation, markets.epsilon)

    def outcome(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> Trade:
        """The outcome of reports (..., L, seats); subclasses implement it."""
        raise NotImplementedError

    def final(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> Trade:
        """The outcome at run time; differs from `outcome` where training relaxes a discrete choice."""
        return self.outcome(markets, valuation, epsilon)

    def deviate(
        self, encoded: Encoding, markets: Markets, valuation: Tensor, epsilon: Tensor, who: Tensor
    ) -> Trade:
        """The outcome (..., L, D) of each deviator, computed in a market of its own."""
        return self._each_alone(self.outcome, markets, valuation, epsilon, who)

    def deviate_finally(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> Trade:
        """(L, seats): everybody's deviation under the rule of the run time."""
        who = columns_with_clients(markets)
        trade = self._each_alone(self.final, markets, valuation[:, who], epsilon[:, who], who)
        nothing = torch.zeros_like(valuation)
        return Trade(nothing.index_copy(1, who, trade.epsilon), nothing.index_copy(1, who, trade.payment))

    def _each_alone(self, rule: Rule, markets: Markets, valuation: Tensor, epsilon: Tensor, who: Tensor) -> Trade:
        v = _spread(markets.valuation, valuation, who)
        e = _spread(markets.epsilon, epsilon, who)
        present = None if markets.present is None else markets.present[:, None]
        wide = replace(
            markets,
            valuation=markets.valuation[:, None],
            epsilon=markets.epsilon[:, None],
            data_size=markets.data_size[:, None],
            accuracy=markets.accuracy[:, None],
            budget=markets.budget[:, None],
            present=present,
        )
        trade = rule(wide, v, e)  # (..., L, D, seats)
        own = who.expand(*trade.epsilon.shape[:-1])[..., None]
        return Trade(trade.epsilon.gather(-1, own).squeeze(-1), trade.payment.gather(-1, own).squeeze(-1))


def _spread(truth: Tensor, report: Tensor, who: Tensor) -> Tensor:
    """(..., L, D, seats): row d is the truth with client who[d]'s report put in."""
    hot = functional.one_hot(who, truth.shape[-1]).bool()
    return torch.where(hot, report[..., None], truth[:, None, :])


class RegretNetwork(ConcatenatedNetwork):
    """Dense layers over all seats that correct a ladder of menus, seat by seat and menu by menu.

    Menus, markups and the choice between menus by what each would spend are those of the mean-field network, so
    that the two differ only in how they see the market: there a row network per client and population means, here
    all bids side by side.

    Implements: RegretNet of [Dutting2024] for a reverse auction with a budget; with `population_row` the
        concatenated AHN of Eq. (ahn-input) of [Sun2026], and with `selected` the k bidders of Eq. (ahn-output).
    Deviation: payment is reported cost plus a markup, so that individual rationality holds by construction.

    Args:
        population_row: b_MFG, the mean over the clients' rows, is one more row of the input.
        selected: k, how many clients of a group may sell at most, those who would sell most; 0 is all.
    """

    def __init__(
        self,
        seats: int = 10,
        hidden: int = 128,
        layers: int = 3,
        menus: int = 20,
        population_row: bool = False,
        selected: int = 0,
    ) -> None:
        super().__init__()
        self.seats = seats
        self.hidden = hidden
        self.layers = layers
        self.menus = menus
        self.population_row = population_row
        self.selected = selected
        inputs = BID_FEATURES * (seats + population_row)
        outputs = 2 * menus * (seats + 1) if menus else 3 * seats
        gain = 0.05 if menus else 0.1
        self.net = multilayer((inputs, *(hidden,) * layers, outputs), last_gain=gain)
        if menus:
            self.ladder = MenuLadder(menus)

    def outcome(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> Trade:
        """The outcome of reports (..., L, seats)."""
        trade = self._trade(markets, valuation, epsilon)
        if not 0 < self.selected < self.seats:
            return trade
        last = trade.epsilon.topk(self.selected, dim=-1).values[..., -1:]
        chosen = (trade.epsilon >= last).to(trade.epsilon.dtype)
        return Trade(trade.epsilon * chosen, trade.payment * chosen)

    def _trade(self, markets: Markets, valuation: Tensor, epsilon: Tensor) -> Trade:
        rows = bid_features(markets, valuation, epsilon)
        if self.population_row:
            taken = rows[..., 3:].sum(-2, keepdim=True).clamp_min(1.0)
            rows = torch.cat((rows, rows.sum(-2, keepdim=True) / taken), dim=-2)
        head = self.net(rows.flatten(-2))
        if not self.menus:
            return soft_thresholds(head.unflatten(-1, (3, self.seats)), markets, valuation, epsilon)
        of_seats, of_menus = head.split((2 * self.menus * self.seats, 2 * self.menus), dim=-1)
        corrections = of_seats.unflatten(-1, (self.seats, 2 * self.menus))
        trade: Trade = self.ladder(corrections, of_menus, markets, valuation, epsilon)
        return trade


def soft_thresholds(head: Tensor, markets: Markets, valuation: Tensor, epsilon: Tensor) -> Trade:
    """The smallest heads, `menus=0`: per seat one soft threshold, and scaling where the total passes the budget.

    Args:
        head: (..., L, 3, seats) log threshold, and shifts of the share and of the markup.
    """
    height, share, markup = head.unbind(-2)
    threshold = FIRST_THRESHOLD * torch.exp(height.clamp(-4.0, 4.0))
    width = 0.08 * threshold
    distance = (threshold - valuation / markets.unit) / width
    sold = epsilon * torch.sigmoid((distance + share).clamp_min(FARTHEST))
    above = epsilon * markets.unit * width * functional.softplus((distance + markup).clamp_min(FARTHEST))
    total = (valuation * sold + above).sum(-1, keepdim=True)
    return within_budget(sold, above, valuation, total, markets.budget)


class SeatedMechanism(LearnedMechanism):
    """A concatenated network that serves markets of any size, in groups."""

    def _trade(self, network: AuctionNetwork, markets: Markets) -> Trade:
        assert isinstance(network, ConcatenatedNetwork)
        groups = group(markets, network.seats)
        trade = network.final(groups, groups.valuation, groups.epsilon)
        return ungroup(trade, *markets.valuation.shape)

    def own_trade(self, bids: Bids, budget: float, client: int, centre: Tensor, radius: Tensor) -> Trade:
        """What one client gets for its reports in boxes, as slopes: the others of its group keep their bids."""
        network, own_group, report, seat = self._own_group(bids, budget, client, centre, radius)
        epsilon = own_group.epsilon.expand(centre.numel(), -1)
        trade = network.final(own_group, report, epsilon)  # type: ignore[arg-type]
        return Trade(trade.epsilon[:, seat], trade.payment[:, seat])

    def _own_group(
        self, bids: Bids, budget: float, client: int, centre: Tensor, radius: Tensor
    ) -> tuple[ConcatenatedNetwork, Markets, Slope, int]:
        """The network, the client's group, the group's reports (boxes, seats) as slopes, and the client's seat."""
        network = self.network()
        assert isinstance(network, ConcatenatedNetwork)
        markets = from_bids(bids, np.array([budget]), self.epsilon_max, torch.float64)
        groups = group(markets, network.seats)
        # Where the client sits: every seat's number travels back through the seating of the bids.
        numbers = torch.arange(groups.valuation.numel(), dtype=torch.float64).reshape(groups.valuation.shape)
        seats = ungroup(Trade(numbers, numbers), *markets.valuation.shape).epsilon[0]
        row, seat = divmod(int(seats[client]), network.seats)
        own_group = groups.part(slice(row, row + 1))
        count = centre.numel()
        valuation = own_group.valuation.expand(count, -1).clone()
        valuation[:, seat] = centre
        slope = torch.zeros_like(valuation)
        slope[:, seat] = 1.0
        return network, own_group, Slope(valuation, slope, slope, radius), seat

    def unilateral(self, bids: Bids, reports: Bids, budget: ArrayLike) -> Outcome:
        """A deviation reaches the own group only: N small auctions instead of N large ones."""
        reports.refuse_above(self.epsilon_max)
        column = budget_column(budget, bids.shape)
        dtype = torch.float64
        network = self.network(dtype)
        assert isinstance(network, ConcatenatedNetwork)
        markets = from_bids(bids, column, self.epsilon_max, dtype)
        groups = group(markets, network.seats)
        answers = group(from_bids(reports, column, self.epsilon_max, dtype), network.seats)
        trade = network.deviate_finally(groups, answers.valuation, answers.epsilon)
        return settle(ungroup(trade, *markets.valuation.shape), bids, reports, column, guard=False)


class RegretNet(SeatedMechanism):
    """Learned without a mean field; in a market of more than its seats, clients bid in groups.

    Implements: RegretNet of [Dutting2024], the learned baseline of [Sun2026].
    """

    name: ClassVar[str] = "regretnet"
    network_class = RegretNetwork
