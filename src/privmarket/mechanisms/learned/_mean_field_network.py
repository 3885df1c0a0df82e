"""The network of MFG-RegretNet: a row network per client, gated by what the population is.

Notation: s = v/unit a valuation in money units (see `Markets.unit`); K basic menus; for client j
h_k(b_j) ∈ (0, 1) the share it would sell and m_k(b_j) the markup per offered ε it would be paid in menu k.

    x_j = ε_j Σ_k a_k(M) h_k(b_j),    p_j = v_j x_j + unit·ε_j Σ_k c_k(M) m_k(b_j),    then the budget.

M = b_MFG is a mean over clients, so that it moves by O(1/N) when one client deviates. The population enters
through the gates a, c and nowhere else; hence every sum that a deviation changes - M itself, and the total
that is compared with the budget - is Σ_k gate_k(M)·(sum of row terms), and all N unilateral deviations are
answered *exactly* in O(N·K). With b_MFG inside the row network each deviation would need N new rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from privmarket.mechanisms.learned._market_tensors import Markets
from privmarket.mechanisms.learned._networks import AuctionNetwork, Encoding, Trade, multilayer, within_budget

ROW_FEATURES = 7
# In money units: a posted price in the middle of what clears training markets.
MIDDLE = 4.0
# Clients at which the feature FEW/N, by which rows know how much one client weighs, is 1.
FEW = 10


@dataclass(frozen=True)
class Population:
    """Sums over the clients of a market, from which every gate and total follows.

    Attributes:
        features: (..., L, ROW_FEATURES) Σ of the row features.
        cost: (..., L, K) Σ ε/ε_max · s · h_k, reported cost in menu k.
        markup: (..., L, K) Σ ε/ε_max · m_k.
    """

    features: Tensor
    cost: Tensor
    markup: Tensor


@dataclass(frozen=True)
class Rows(Encoding):
    """What the row network says about clients, (..., K) each; features are (..., ROW_FEATURES)."""

    features: Tensor
    share: Tensor
    markup: Tensor
    relative_cap: Tensor  # (..., 1) ε/ε_max
    relative_valuation: Tensor  # (..., 1) s

    def only(self, who: Tensor) -> Rows:
        """The rows of the clients in `who`, (D,)."""
        return Rows(*(getattr(self, f.name)[..., who, :] for f in fields(self)))

    def terms(self) -> Population:
        """What each client adds to the sums over the population that the network reads."""
        cost = (self.relative_cap * self.relative_valuation) * self.share
        return Population(self.features, cost, self.relative_cap * self.markup)


class MeanFieldNetwork(AuctionNetwork):
    """AHN(b_i, b_MFG, B/N): three hidden layers of 128, an allocation and a payment head, about 50K weights.

    The row network corrects a start that is truthful in the mean-field limit: menu k sells by a soft
    threshold at θ_k and its markup is that threshold's own Myerson integral. The gates start at the menus
    whose total cost is near the budget.

    Implements: Eqs. (ahn-input), (alloc-net), (pay-net) of [Sun2026], as a shared row network.
    `mean_field=False` is an ablation: the gates know N and nothing of the population, and start at thresholds
    about the middle of what clears training markets.

    Deviation: allocation per client instead of a softmax over clients; b_MFG gates the embedding instead of
        being concatenated, and also holds the mean cost of each basic menu.
    """

    def __init__(self, menus: int = 20, hidden: int = 128, gate_hidden: int = 32, mean_field: bool = True) -> None:
        super().__init__()
        self.menus, self.hidden, self.gate_hidden, self.mean_field = menus, hidden, gate_hidden, mean_field
        # No biases: the first feature is constant. Adding them would cost a fifth of a product.
        self.row = multilayer((ROW_FEATURES, hidden, hidden, hidden, 2 * menus), last_gain=0.05, bias=False)
        self.gate = multilayer((ROW_FEATURES + menus + 1, gate_hidden, gate_hidden, 2 * menus), 0.05)
        self.log_threshold = nn.Parameter(torch.linspace(math.log(1.4), math.log(32.0), menus))
        self.log_width = nn.Parameter(torch.full((menus,), math.log(0.2)))
        # Over how many menus the gates spread, and how far below the budget they aim; each as a + b·log(N/100).
        self.log_spread = nn.Parameter(torch.tensor([math.log(1.5), 0.0]))
        self.reserve = nn.Parameter(torch.tensor([0.02, 0.0]))
        with torch.no_grad():
            first = self.row[0]
            assert isinstance(first, nn.Linear)
            first.weight[:, 5:].zero_()  # data size and accuracy start with weight 0

    def settings(self) -> dict[str, object]:
        """The arguments with which the network was made."""
        return {
            "menus": self.menus,
            "hidden": self.hidden,
            "gate_hidden": self.gate_hidden,
            "mean_field": self.mean_field,
        }

    def rows(self, markets: Markets, valuation: Tensor, epsilon: Tensor, who: Tensor | None = None) -> Rows:
        """The row network at reports (..., L, D) of the clients `who` (all by default)."""
        size, accuracy = markets.data_size, markets.accuracy
        if who is not None:
            size, accuracy = size[:, who], accuracy[:, who]
        s, cap = valuation / markets.unit, epsilon / markets.epsilon_max
        one = torch.ones_like(s)
        few = one * (FEW / markets.clients)
        known = (one, torch.log1p(s), cap, torch.log(cap + 0.02), few)
        columns = (*known, (size - 1).expand_as(s), (accuracy - 0.75).expand_as(s))
        features = torch.stack(columns, dim=-1)
        share, markup = self.menu_terms(self.row(features), s[..., None])
        return Rows(features, share, markup, cap[..., None], s[..., None])

    def menu_terms(self, correction: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """Shares and markups (..., K): a ramp about each threshold and the ramp's own Myerson integral."""
        threshold = self.log_threshold.exp()
        width = threshold * self.log_width.exp()
        offset, slope = (0.5 + threshold / width).repeat(2), (-1 / width).repeat(2)
        height = torch.addcmul(correction + offset, s, slope)
        ramp = height.clamp(0.0, 1.0)
        above = ramp[..., self.menus :]
        # With u = clamp(z, 0, 1): u²/2 + max(z − 1, 0) = u·(2·z − u)/2.
        markup = (0.5 * width) * above * torch.sub(2 * height[..., self.menus :], above)
        return ramp[..., : self.menus], markup

    def gates(self, population: Population, clients: int) -> tuple[Tensor, Tensor]:
        """a(M) on the simplex and c(M) > 0, (..., L, K) each."""
        if not self.mean_field:
            return self._blind_gates(population, clients)
        spend = (population.cost + population.markup) / clients  # as a share of the budget
        size = math.log(clients / 100)
        inputs = (
            population.features / clients,
            spend / (1 + spend),
            torch.full_like(spend[..., :1], size / 3),
        )
        correction = self.gate(torch.cat(inputs, dim=-1))
        target = 1 - self.reserve[0] - self.reserve[1] * size + 0.1 * correction[..., 1 : self.menus]
        spread = torch.exp(self.log_spread[0] + self.log_spread[1] * size)
        share = spending_the_budget(spend, target, spread)
        return share, share * torch.exp(correction[..., self.menus :])

    def _blind_gates(self, population: Population, clients: int) -> tuple[Tensor, Tensor]:
        like = population.cost
        nothing = like.new_zeros(*like.shape[:-1], ROW_FEATURES + self.menus)
        size = torch.full_like(nothing[..., :1], math.log(clients / 100) / 3)
        correction = self.gate(torch.cat((nothing, size), dim=-1))
        logits = -4 * (self.log_threshold - math.log(MIDDLE)).square() + correction[..., : self.menus]
        share = torch.softmax(logits, dim=-1)
        return share, share * torch.exp(correction[..., self.menus :])

    def trade(
        self, rows: Rows, population: Population, markets: Markets, valuation: Tensor, epsilon: Tensor
    ) -> Trade:
        """What clients with these rows get in markets with this population.

        `population` is (..., L, 1 or D, K): one per market, or one per deviator.
        """
        a, c = self.gates(population, markets.clients)
        total = (a * population.cost + c * population.markup).sum(-1) * markets.unit * markets.epsilon_max
        sold = epsilon * _contract(rows.share, a)
        markup = epsilon * markets.unit * _contract(rows.markup, c)
        return within_budget(sold, markup, valuation, total, markets.budget)

    def population(self, rows: Rows) -> Population:
        """Sums over clients, (..., L, 1, K): products of row vectors, so that no (L, N, K) array is made."""
        cap = rows.relative_cap.transpose(-1, -2)
        cost = (rows.relative_cap * rows.relative_valuation).transpose(-1, -2)
        return Population(rows.features.sum(-2, keepdim=True), cost @ rows.share, cap @ rows.markup)

    def encode(self, markets: Markets) -> Rows:
        """Runs the row network on every client's report: (L, N) rows."""
        return self.rows(markets, markets.valuation, markets.epsilon)

    def clear(self, encoded: Encoding, markets: Markets) -> Trade:
        """The outcome (L, N) at the reports in `markets`."""
        assert isinstance(encoded, Rows)
        population = self.population(encoded)
        return self.trade(encoded, population, markets, markets.valuation, markets.epsilon)

    def deviate(
        self, encoded: Encoding, markets: Markets, valuation: Tensor, epsilon: Tensor, who: Tensor
    ) -> Trade:
        """What each deviator gets, (..., L, D), computed exactly and for all of them at once."""
        return self.deviations(encoded, markets, who)(valuation, epsilon)

    def deviations(self, encoded: Encoding, markets: Markets, who: Tensor) -> Callable[[Tensor, Tensor], Trade]:
        """Own terms leave every sum once; each misreport's terms enter."""
        assert isinstance(encoded, Rows)
        sums = zip(_fields(self.population(encoded)), _fields(encoded.only(who).terms()), strict=True)
        others = [total - own for total, own in sums]

        def answer(valuation: Tensor, epsilon: Tensor) -> Trade:
            rows = self.rows(markets, valuation, epsilon, who)
            moved = (rest + own for rest, own in zip(others, _fields(rows.terms()), strict=True))
            return self.trade(rows, Population(*moved), markets, valuation, epsilon)

        return answer


def _contract(rows: Tensor, gates: Tensor) -> Tensor:
    """Σ_k rows·gates, (..., L, D); one gate vector per market is a product of matrices."""
    if gates.shape[-2] == 1:
        return (rows @ gates.transpose(-1, -2)).squeeze(-1)
    return (rows * gates).sum(-1)


def spending_the_budget(spend: Tensor, target: Tensor, spread: Tensor) -> Tensor:
    """(..., K) weights on a ladder of menus, from cheap to dear, that spend the target.

    Between two neighbours of which one spends less and the other more than the target, linear interpolation spends
    it exactly; a spread above 1 also gives some weight to the menus beside them, so that one client moves the
    weights less.

    Args:
        spend: (..., K) what each menu would spend; rises with k, or is treated as if it did.
        target: (..., K − 1) for each pair of neighbours.
    """
    low, high = spend[..., :-1], spend[..., 1:]
    gap = (high - low).clamp_min(1e-3)
    climbed = (0.5 + (target - 0.5 * (low + high)) / (spread * gap)).clamp(0.0, 1.0)
    one = torch.ones_like(climbed[..., :1])
    climbed = torch.cummin(torch.cat((one, climbed), dim=-1), dim=-1).values
    return climbed - torch.cat((climbed[..., 1:], torch.zeros_like(one)), dim=-1)


def _fields(sums: Population) -> tuple[Tensor, Tensor, Tensor]:
    return sums.features, sums.cost, sums.markup
