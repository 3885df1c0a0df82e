"""Paper-literal MFG-RegretNet: what the paper prints, so that anyone can check what it does.

Notation: h = heads of AHN(b_i, b_MFG, B/N); level j of m is the offer ε_ij = (j/m)·ε_i with bid b_ij = v_i ε_ij;
z_ij = softmax over *clients* of h^a_ij, ε_out = Σ_j z_ij ε_ij, p_i = Σ_j σ(h^p_ij)·b_ij, p̄_i = p_i / max(1, Σp/B).
The weights that ship have m = 1: ε_out = z_i·ε_i and p_i = σ(h^p)·v_i ε_i, at most the bid.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from privmarket.market._bids import Array, Bids
from privmarket.market._guarantees import BudgetFeasible, WithinOffer
from privmarket.market._mechanism import Guarantee
from privmarket.market._outcome import Outcome
from privmarket.mechanisms.learned._learned_mechanism import FLOAT64_ROWS, LearnedMechanism
from privmarket.mechanisms.learned._markets import Markets, Trade, from_bids
from privmarket.mechanisms.learned._networks import AuctionNetwork, Encoding, multilayer
from privmarket.mechanisms.learned._weights import Weights

BID_FEATURES = 4


@dataclass(frozen=True)
class Sums(Encoding):
    """What a deviation moves besides the client's own row, and how that depends on b_MFG.

    Attributes:
        mean: (L, 1, 4) b_MFG.
        softmax, pay: (m, L, 1) and (L, 1), Σ exp h^a and Σ p.
        softmax_slope, pay_slope: (m, L, 1, 4) and (L, 1, 4), their derivatives with respect to b_MFG.
        own_softmax, own_pay: (m, L, N) and (L, N), each client's term.
    """

    mean: Tensor
    softmax: Tensor
    pay: Tensor
    softmax_slope: Tensor
    pay_slope: Tensor
    own_softmax: Tensor
    own_pay: Tensor


class LiteralNetwork(AuctionNetwork):
    """The paper's heads on a shared row network.

    Implements: Eqs. (alloc-net), (alloc-utility), (pay-net), Algorithm 2 of [Sun2026].

    Args:
        levels: m, how many privacy levels each client's offer is split into.
    """

    def __init__(self, hidden: int = 128, levels: int = 1) -> None:
        super().__init__()
        self.hidden = hidden
        self.levels = levels
        self.net = multilayer((2 * BID_FEATURES + 1, hidden, hidden, hidden, 2 * levels))

    def shares(self, like: Tensor) -> Tensor:
        """(m,) j/m, what level j is of the whole offer."""
        return torch.arange(1, self.levels + 1, dtype=like.dtype) / self.levels

    def bid_rows(self, markets: Markets, valuation: Tensor, epsilon: Tensor, who: Tensor | None = None) -> Tensor:
        """(..., L, D, 4) scaled bid rows (v, d, u, ε)."""
        size = markets.data_size
        accuracy = markets.accuracy
        if who is not None:
            size = size[:, who]
            accuracy = accuracy[:, who]
        spread = torch.zeros_like(valuation)
        return torch.stack((valuation, size + spread, accuracy + spread, epsilon / markets.epsilon_max), dim=-1)

    def heads(self, rows: Tensor, mean: Tensor, markets: Markets, bid: Tensor) -> tuple[Tensor, Tensor]:
        """(m, ..., L, D) exp h^a and (..., L, D) p = Σ_j σ(h^p_j)·b_j, at population statistics `mean`."""
        money = (markets.budget / markets.clients)[..., None].expand(*rows.shape[:-1], 1)
        head = self.net(torch.cat((rows, mean.expand_as(rows), money), dim=-1))
        allocation, payment = head.split(self.levels, dim=-1)
        pay = (torch.sigmoid(payment) * self.shares(bid)).sum(-1) * bid
        return torch.exp(allocation.clamp(-15, 15)).movedim(-1, 0), pay

    def everybody(self, markets: Markets) -> tuple[Tensor, Tensor]:
        """(m, L, N) exp h^a and (L, N) p of everybody's own report, before anything is scaled."""
        rows = self.bid_rows(markets, markets.valuation, markets.epsilon)
        return self.heads(rows, rows.mean(-2, keepdim=True), markets, markets.valuation * markets.epsilon)

    def encode(self, markets: Markets) -> Sums:
        """Everybody's rows, the two sums, and the sums' slopes in b_MFG."""
        rows = self.bid_rows(markets, markets.valuation, markets.epsilon)
        bid = markets.valuation * markets.epsilon
        with torch.enable_grad():
            mean = rows.mean(-2, keepdim=True).detach().requires_grad_()
            softmax, pay = self.heads(rows.detach(), mean, markets, bid)
            slopes = [torch.autograd.grad(t.sum(), mean, retain_graph=True)[0].detach() for t in (*softmax, pay)]
        softmax, pay = self.everybody(markets)
        return Sums(
            rows.mean(-2, keepdim=True),
            softmax.sum(-1, keepdim=True),
            pay.sum(-1, keepdim=True),
            torch.stack(slopes[:-1]),
            slopes[-1],
            softmax,
            pay,
        )

    def sold(self, softmax: Tensor, total: Tensor, epsilon: Tensor) -> Tensor:
        """(..., L, D) Σ_j z_j·(j/m)·ε from the terms (m, ..., L, D) and sums of the column softmax."""
        levels = self.shares(epsilon).reshape(-1, *[1] * epsilon.dim())
        return (softmax / total * levels).sum(0) * epsilon

    def clear(self, encoded: Encoding, markets: Markets) -> Trade:
        """The outcome (L, N) at the reports in `markets`."""
        assert isinstance(encoded, Sums)
        scale = torch.clamp(markets.budget / encoded.pay, max=1.0)
        sold = self.sold(encoded.own_softmax, encoded.softmax, markets.epsilon)
        return Trade(sold, encoded.own_pay * scale)

    def deviate(
        self, encoded: Encoding, markets: Markets, valuation: Tensor, epsilon: Tensor, who: Tensor
    ) -> Trade:
        """(..., L, D): own row exact, Eq. (mfg-misreport); the others' terms to first order in the move of b_MFG.

        Exact would need everybody's row again for each deviator. The error is second order in a move of 1/N,
        over sums of N terms.
        """
        assert isinstance(encoded, Sums)
        before = self.bid_rows(markets, markets.valuation[:, who], markets.epsilon[:, who], who)
        rows = self.bid_rows(markets, valuation, epsilon, who)
        move = (rows - before) / markets.clients
        softmax, pay = self.heads(rows, encoded.mean + move, markets, valuation * epsilon)
        # The slope counts all clients; the deviator's own term is replaced whole, so its slope is left in
        # the sum: a term of order 1/N², like the rest of the error.
        others = encoded.softmax - encoded.own_softmax[..., who]  # (m, L, D)
        slope = encoded.softmax_slope
        for _ in range(rows.dim() - 3):  # reports that are tried independently come between levels and profiles
            others = others.unsqueeze(1)
            slope = slope.unsqueeze(1)
        all_softmax = others + softmax + (slope * move).sum(-1)
        all_pay = encoded.pay - encoded.own_pay[:, who] + pay + (encoded.pay_slope * move).sum(-1)
        scale = torch.clamp(markets.budget / all_pay.clamp_min(1e-30), max=1.0)
        return Trade(self.sold(softmax, all_softmax, epsilon), pay * scale)


class MfgRegretNetLiteral(LearnedMechanism):
    """Paper-literal: pays at most the bid, cuts pay but not ε, and shares *one* unit among all clients.

    Implements: Algorithm 2 of [Sun2026]. It is not individually rational and does not promise to be. With several
    levels a client may win most of every column and sell more than it offered, so that is not promised either.
    """

    name: ClassVar[str] = "mfg-regretnet:literal"
    network_class = LiteralNetwork
    kept_by_construction: ClassVar[tuple[Guarantee, ...]] = (BudgetFeasible(), WithinOffer())

    def __init__(
        self,
        weights: str | Path | Weights | None = None,
        epsilon_max: float | None = None,
        untrained: bool = False,
    ) -> None:
        super().__init__(weights, epsilon_max, untrained)
        network = self.network()
        if isinstance(network, LiteralNetwork) and network.levels > 1:
            self.guarantees = tuple(kept for kept in self.guarantees if not isinstance(kept, WithinOffer))

    def _trade(self, network: AuctionNetwork, markets: Markets) -> Trade:
        # Slopes are for training's deviations: an auction does not need them, and they are most of the work.
        assert isinstance(network, LiteralNetwork)
        softmax, pay = network.everybody(markets)
        scale = torch.clamp(markets.budget / pay.sum(-1, keepdim=True), max=1.0)
        return Trade(network.sold(softmax, softmax.sum(-1, keepdim=True), markets.epsilon), pay * scale)

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """The network decides; payments alone are scaled down to the budget."""
        bids.refuse_above(self.epsilon_max)
        dtype = torch.float64 if bids.valuation.size <= FLOAT64_ROWS else torch.float32
        trade = self._trade(self.network(dtype), from_bids(bids, budget, self.epsilon_max, dtype))
        epsilon = trade.epsilon.double().numpy().reshape(bids.shape)
        payment = trade.payment.double().numpy().reshape(bids.shape)
        total = payment.sum(axis=-1, keepdims=True)
        return Outcome(epsilon, payment * ((budget / total).clip(max=1.0) * (1 - 1e-13)))
