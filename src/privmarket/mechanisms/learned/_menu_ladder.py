"""A ladder of menus for networks that read all bids at once: what each menu sells, pays and would spend.

Notation: K menus; s = v/unit a valuation in money units (see `Markets.unit`); menu k sells by a ramp of relative
width w_k about θ_k and pays the ramp's own Myerson integral.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from privmarket.mechanisms.learned._market_tensors import Markets
from privmarket.mechanisms.learned._mean_field_network import spending_the_budget
from privmarket.mechanisms.learned._networks import Trade, within_budget


class MenuLadder(nn.Module):
    """Menus from cheap to dear, each corrected by a network; the market stands where the budget is spent."""

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
        s, cap = valuation / markets.unit, epsilon / markets.epsilon_max
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
