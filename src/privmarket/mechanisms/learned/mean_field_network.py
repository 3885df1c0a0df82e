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
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from privmarket.mechanisms.learned.markets import Markets
from privmarket.mechanisms.learned.networks import AuctionNetwork, Trade, multilayer, within_budget

ROW_FEATURES = 5
# In money units: a posted price in the middle of what clears training markets.
MIDDLE = 4.0
CHUNK_ROWS = 500
# Beyond this, exponentials are subnormal numbers, ten times as slow and of no consequence.
FARTHEST = -30.0


@dataclass(frozen=True)
class Population:
    """Sums over the clients of a market, from which every gate and total follows.

    Attributes:
        features: (..., L, ROW_FEATURES) Σ of the row features.
        supply: (..., L, K) Σ ε/ε_max · h_k.
        cost: (..., L, K) Σ ε/ε_max · s · h_k, reported cost in menu k.
        markup: (..., L, K) Σ ε/ε_max · m_k.
    """

    features: Tensor
    supply: Tensor
    cost: Tensor
    markup: Tensor


@dataclass(frozen=True)
class Rows:
    """What the row network says about clients, (..., K) each; features are (..., ROW_FEATURES)."""

    features: Tensor
    share: Tensor
    markup: Tensor
    relative_cap: Tensor  # (..., 1) ε/ε_max
    relative_valuation: Tensor  # (..., 1) s

    def only(self, who: Tensor) -> Rows:
        """The rows of some clients."""
        return Rows(*(getattr(self, f.name)[..., who, :] for f in fields(self)))

    def terms(self) -> Population:
        """Each client's own terms of the population's sums."""
        supply = self.relative_cap * self.share
        return Population(self.features, supply, self.relative_valuation * supply, self.relative_cap * self.markup)


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

    def __init__(self, menus: int = 32, hidden: int = 128, gate_hidden: int = 64, mean_field: bool = True) -> None:
        super().__init__()
        self.menus, self.hidden, self.gate_hidden, self.mean_field = menus, hidden, gate_hidden, mean_field
        self.row = multilayer((ROW_FEATURES, hidden, hidden, hidden, 2 * menus), last_gain=0.05)
        self.gate = multilayer((ROW_FEATURES + 2 * menus + 1, gate_hidden, gate_hidden, 2 * menus), 0.05)
        threshold = torch.logspace(math.log10(0.8), math.log10(60.0), menus)
        self.log_threshold = nn.Parameter(threshold.log())
        self.log_width = nn.Parameter(torch.full((menus,), math.log(0.04)))
        # How sharply the gates pick menus that cost the budget, and how far below it; each as a + b·log(N/100).
        self.focus = nn.Parameter(torch.tensor([math.log(40.0), 0.0]))
        self.reserve = nn.Parameter(torch.tensor([0.02, 0.0]))
        with torch.no_grad():
            first = self.row[0]
            assert isinstance(first, nn.Linear)
            first.weight[:, 3:].zero_()  # data size and accuracy start without a say

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments."""
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
        spread = torch.zeros_like(s)
        columns = (torch.log1p(s), cap, torch.log(cap + 0.02), size - 1 + spread, accuracy - 0.75 + spread)
        return self._rows(torch.stack(columns, dim=-1), s[..., None], cap[..., None])

    def _rows(self, features: Tensor, s: Tensor, cap: Tensor) -> Rows:
        correction = self.row(features)
        threshold = self.log_threshold.exp()
        width = threshold * self.log_width.exp()
        distance = (threshold - s) / width
        share = torch.sigmoid((distance + correction[..., : self.menus]).clamp_min(FARTHEST))
        markup = width * functional.softplus((distance + correction[..., self.menus :]).clamp_min(FARTHEST))
        return Rows(features, share, markup, cap, s)

    def gates(self, population: Population, clients: int) -> tuple[Tensor, Tensor]:
        """a(M) on the simplex and c(M) > 0, (..., L, K) each."""
        if not self.mean_field:
            return self._blind_gates(population, clients)
        spend = (population.cost + population.markup) / clients  # as a share of the budget
        log_spend = torch.log(spend + 1e-4)
        size = math.log(clients / 100)
        inputs = (
            population.features / clients,
            log_spend,
            torch.log(population.supply / clients + 1e-4),
            torch.full_like(log_spend[..., :1], size / 3),
        )
        correction = self.gate(torch.cat(inputs, dim=-1))
        focus = torch.exp(self.focus[0] + self.focus[1] * size)
        off_budget = log_spend + self.reserve[0] + self.reserve[1] * size
        logits = -focus * off_budget.square().clamp(max=4.0) + correction[..., : self.menus]
        share = torch.softmax(logits, dim=-1)
        return share, share * torch.exp(correction[..., self.menus :])

    def _blind_gates(self, population: Population, clients: int) -> tuple[Tensor, Tensor]:
        like = population.cost
        nothing = like.new_zeros(*like.shape[:-1], ROW_FEATURES + 2 * self.menus)
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
        return Population(
            rows.features.sum(-2, keepdim=True), cap @ rows.share, cost @ rows.share, cap @ rows.markup
        )

    def encode(self, markets: Markets) -> Rows:
        """The row network at everybody's report."""
        return self.rows(markets, markets.valuation, markets.epsilon)

    def clear(self, encoded: Rows, markets: Markets) -> Trade:
        """The outcome (L, N)."""
        population = self.population(encoded)
        return self.trade(encoded, population, markets, markets.valuation, markets.epsilon)

    def deviate(self, encoded: Rows, markets: Markets, valuation: Tensor, epsilon: Tensor, who: Tensor) -> Trade:
        """Exact unilateral deviations, (..., L, D)."""
        return self.deviations(encoded, markets, who)(valuation, epsilon)

    def deviations(self, encoded: Rows, markets: Markets, who: Tensor) -> Callable[[Tensor, Tensor], Trade]:
        """Own terms leave every sum once; each misreport's terms enter."""
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


def _fields(sums: Population) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return sums.features, sums.supply, sums.cost, sums.markup
