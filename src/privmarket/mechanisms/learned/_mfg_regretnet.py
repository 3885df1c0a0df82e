"""MFG-RegretNet, corrected: the paper's own mechanism with heads that keep IR and the budget.

The network answers for each client by a row network, gated by what the population is.

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
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from privmarket.mechanisms.learned._learned_mechanism import MeanFieldMechanism
from privmarket.mechanisms.learned._markets import Markets, Trade
from privmarket.mechanisms.learned._networks import (
    AuctionNetwork,
    Encoding,
    multilayer,
    spending_the_budget,
    within_budget,
)

ROW_FEATURES = 7
# In money units: a posted price in the middle of what clears training markets.
MIDDLE = 4.0
# Clients at which the feature FEW/N, by which rows know how much one client weighs, is 1.
FEW = 10
CHUNK_ROWS = 2000


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
        self.menus = menus
        self.hidden = hidden
        self.gate_hidden = gate_hidden
        self.mean_field = mean_field
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

    def rows(self, markets: Markets, valuation: Tensor, epsilon: Tensor, who: Tensor | None = None) -> Rows:
        """The row network at reports (..., L, D) of the clients `who` (all by default)."""
        size = markets.data_size
        accuracy = markets.accuracy
        if who is not None:
            size = size[:, who]
            accuracy = accuracy[:, who]
        s = valuation / markets.unit
        cap = epsilon / markets.epsilon_max
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
        offset = (0.5 + threshold / width).repeat(2)
        slope = (-1 / width).repeat(2)
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


def _fields(sums: Population) -> tuple[Tensor, Tensor, Tensor]:
    return sums.features, sums.cost, sums.markup


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
    shape = markets.valuation.shape
    menus = network.menus
    s = (markets.valuation / markets.unit).reshape(-1)
    cap = (markets.epsilon / markets.epsilon_max).reshape(-1)
    count = s.shape[0]
    columns = _room(s, ROW_FEATURES, count)  # column by column: logarithms of strided numbers are slow
    columns[0] = 1.0
    columns[2] = cap
    columns[4] = FEW / markets.clients
    torch.log1p(s, out=columns[1])
    torch.log(cap + 0.02, out=columns[3])
    torch.sub(markets.data_size.reshape(-1), 1, out=columns[5])
    torch.sub(markets.accuracy.reshape(-1), 0.75, out=columns[6])
    features = columns.T
    s = s[:, None]
    cap = cap[:, None]
    share = _room(s, count, menus)
    markup = _room(s, count, menus)
    layers = _Layers(network)
    ramps = _Ramps(network)
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
        self.weight = last.weight.detach().T.contiguous()
        self.menus = network.menus
        self.offset = (0.5 + threshold / width).repeat(2)
        self.slope = (-1 / width).repeat(2)
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
