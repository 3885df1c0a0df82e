"""Paper-literal MFG-RegretNet: what the paper prints, so that anyone can check what it does.

Notation: h = heads of AHN(b_i, b_MFG, B/N); with m = 1 privacy level z_i = softmax over *clients* of h^a,
ε_out = z_i·ε_i, p_i = σ(h^p)·v_i ε_i, p̄_i = p_i / max(1, Σp/B).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from privmarket.market.bids import Array, Bids
from privmarket.market.guarantees import BudgetFeasible, Guarantee, WithinOffer
from privmarket.market.outcome import Outcome
from privmarket.mechanisms.learned.learned_mechanism import FLOAT64_ROWS, LearnedMechanism
from privmarket.mechanisms.learned.market_tensors import Markets, from_bids
from privmarket.mechanisms.learned.networks import AuctionNetwork, Trade, multilayer

BID_FEATURES = 4


@dataclass(frozen=True)
class Sums:
    """What a deviation moves besides the client's own row, and how that depends on b_MFG.

    Attributes:
        mean: (L, 1, 4) b_MFG.
        softmax, pay: (L, 1) Σ exp h^a and Σ p.
        softmax_slope, pay_slope: (L, 1, 4) their derivatives with respect to b_MFG.
        own_softmax, own_pay: (L, N) each client's term.
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

    Implements: Eqs. (alloc-net), (alloc-utility), (pay-net), Algorithm 2 of [Sun2026], with m = 1.
    """

    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.hidden = hidden
        self.net = multilayer((2 * BID_FEATURES + 1, hidden, hidden, hidden, 2))

    def settings(self) -> dict[str, object]:
        """The constructor's arguments."""
        return {"hidden": self.hidden}

    def bid_rows(self, markets: Markets, valuation: Tensor, epsilon: Tensor, who: Tensor | None = None) -> Tensor:
        """(..., L, D, 4) scaled bid rows (v, d, u, ε)."""
        size, accuracy = markets.data_size, markets.accuracy
        if who is not None:
            size, accuracy = size[:, who], accuracy[:, who]
        spread = torch.zeros_like(valuation)
        return torch.stack((valuation, size + spread, accuracy + spread, epsilon / markets.epsilon_max), dim=-1)

    def heads(self, rows: Tensor, mean: Tensor, markets: Markets, bid: Tensor) -> tuple[Tensor, Tensor]:
        """(..., L, D) exp h^a and p = σ(h^p)·bid, at population statistics `mean`."""
        money = (markets.budget / markets.clients)[..., None].expand(*rows.shape[:-1], 1)
        head = self.net(torch.cat((rows, mean.expand_as(rows), money), dim=-1))
        return torch.exp(head[..., 0].clamp(-15, 15)), torch.sigmoid(head[..., 1]) * bid

    def encode(self, markets: Markets) -> Sums:
        """Everybody's rows, the two sums, and the sums' slopes in b_MFG."""
        rows = self.bid_rows(markets, markets.valuation, markets.epsilon)
        with torch.enable_grad():
            mean = rows.mean(-2, keepdim=True).detach().requires_grad_()
            bid = markets.valuation * markets.epsilon
            terms = self.heads(rows.detach(), mean, markets, bid)
            slopes = [torch.autograd.grad(t.sum(), mean, retain_graph=True)[0].detach() for t in terms]
        softmax, pay = self.heads(rows, rows.mean(-2, keepdim=True), markets, bid)
        return Sums(
            rows.mean(-2, keepdim=True),
            softmax.sum(-1, keepdim=True),
            pay.sum(-1, keepdim=True),
            slopes[0],
            slopes[1],
            softmax,
            pay,
        )

    def clear(self, encoded: Sums, markets: Markets) -> Trade:
        """The outcome (L, N)."""
        share = encoded.own_softmax / encoded.softmax
        scale = torch.clamp(markets.budget / encoded.pay, max=1.0)
        return Trade(share * markets.epsilon, encoded.own_pay * scale)

    def deviate(self, encoded: Sums, markets: Markets, valuation: Tensor, epsilon: Tensor, who: Tensor) -> Trade:
        """(..., L, D): own row exact, Eq. (mfg-misreport); the others' terms to first order in the move of b_MFG.

        Exact would need everybody's row again for each deviator. The error is second order in a move of 1/N,
        over sums of N terms.
        """
        before = self.bid_rows(markets, markets.valuation[:, who], markets.epsilon[:, who], who)
        rows = self.bid_rows(markets, valuation, epsilon, who)
        move = (rows - before) / markets.clients
        softmax, pay = self.heads(rows, encoded.mean + move, markets, valuation * epsilon)
        # The slope counts all clients; the deviator's own term is replaced whole, so its slope is left in
        # the sum: a term of order 1/N², like the rest of the error.
        all_softmax = (
            encoded.softmax - encoded.own_softmax[:, who] + softmax + (encoded.softmax_slope * move).sum(-1)
        )
        all_pay = encoded.pay - encoded.own_pay[:, who] + pay + (encoded.pay_slope * move).sum(-1)
        scale = torch.clamp(markets.budget / all_pay.clamp_min(1e-30), max=1.0)
        return Trade(softmax / all_softmax * epsilon, pay * scale)


class MfgRegretNetLiteral(LearnedMechanism):
    """Paper-literal: pays at most the bid, cuts pay but not ε, and shares *one* unit among all clients.

    Implements: Algorithm 2 of [Sun2026]. Promises no individual rationality, because it has none.
    """

    name: ClassVar[str] = "mfg-regretnet:literal"
    network_class = LiteralNetwork
    kept_by_construction: ClassVar[tuple[Guarantee, ...]] = (BudgetFeasible(), WithinOffer())

    def _trade(self, network: AuctionNetwork, markets: Markets) -> Trade:
        return network.clear(network.encode(markets), markets)

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """The network decides; payments alone are scaled down to the budget."""
        bids.refuse_above(self.epsilon_max)
        dtype = torch.float64 if bids.valuation.size <= FLOAT64_ROWS else torch.float32
        trade = self._trade(self.network(dtype), from_bids(bids, budget, self.epsilon_max, dtype))
        epsilon = trade.epsilon.double().numpy().reshape(bids.shape)
        payment = trade.payment.double().numpy().reshape(bids.shape)
        total = payment.sum(axis=-1, keepdims=True)
        return Outcome(epsilon, payment * ((budget / total).clip(max=1.0) * (1 - 1e-13)))
