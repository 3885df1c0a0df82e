"""How much can any report gain? Proven upper bounds on the regret of network rules.

An attack finds a report that gains something; that is a lower bound. Here the reports w of one client, all others
fixed, are cut into boxes. `slopes` bounds on each box what the client can get, u(w) = p(w) − v·ε(w), and boxes that
might still hold the best report are cut again, until the best bound is near the best value seen (branch and bound).

The certificate is about misreports of v, one client at a time, at w from 0 to a stated multiple of the dearest
valuation. It holds up to the rounding of float64, for which a billionth of the budget is added. Where boxes stay
too wide to say anything, nobody gains more than the whole budget: such a bound is reported as not closed.
"""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from privmarket._settings import TOLERANCE
from privmarket.market._bids import Array, Bids
from privmarket.market._certificate import CertifiedRegret
from privmarket.market._guarantees import BudgetFeasible
from privmarket.market._mechanism import Guarantee
from privmarket.market._outcome import Outcome
from privmarket.mechanisms.learned._markets import Trade
from privmarket.mechanisms.learned._slopes import ROUNDING, Slope

FARTHEST = 100.0  # reports up to so many times the dearest valuation
_FIRST_BOXES = 256
_MOST_BOXES = 60_000
_ROUNDS = 40


class BoundedRule(Protocol):
    """What a network rule must offer to be bounded."""

    least_share: ClassVar[float]
    guarantees: tuple[Guarantee, ...]

    def run(self, bids: Bids, budget: float, /) -> Outcome:
        """The rule itself."""

    def unilateral(self, bids: Bids, reports: Bids, budget: float, /) -> Outcome:
        """What each client gets if it alone reports something else."""

    def own_trade(self, bids: Bids, budget: float, client: int, centre: Tensor, radius: Tensor) -> Trade:
        """What one client gets for its reports in boxes |w − centre| ≤ radius, as slopes; (boxes,) each."""


@runtime_checkable
class JumpingRule(Protocol):
    """A rule whose outcome jumps with a report, so that it has no slope there: it bounds utilities itself."""

    def own_utility(
        self, bids: Bids, budget: float, client: int, centre: Tensor, radius: Tensor
    ) -> tuple[Array, Array]:
        """(boxes,) one client's utility at the middle of each box, and a bound over the box; at least 0 each."""


def certify(rule: BoundedRule, bids: Bids, budget: float, closeness: float) -> CertifiedRegret:
    """Bounds what each client of one market, (clients,), gains by any misreport of its valuation.

    Args:
        closeness: boxes are cut until the bound is at most so much of the budget above the best value seen, or
            until there are too many of them.
    """
    truth = rule.run(bids, budget).utility(bids)
    dearest = float(bids.valuation.max()) or budget / float(bids.epsilon.sum())
    reports = np.zeros(bids.clients)
    upper = np.zeros(bids.clients)
    closed = np.ones(bids.clients, dtype=bool)
    most = budget if any(isinstance(one, BudgetFeasible) for one in rule.guarantees) else np.inf
    for client in range(bids.clients):
        reports[client], bound = _search(rule, bids, budget, client, dearest, closeness * budget)
        closed[client] = bound < most
        upper[client] = max(min(bound, most) - truth[client], 0.0) + TOLERANCE * budget
    reached = rule.unilateral(bids, bids.replace(valuation=reports), budget).utility(bids)
    lower = np.maximum(reached - truth, 0.0)
    words = f"any valuation up to {FARTHEST:g} times the dearest, by branch and bound"
    return CertifiedRegret(lower, upper, words, closed, valuation_only=True)


def _search(
    rule: BoundedRule, bids: Bids, budget: float, client: int, dearest: float, near: float
) -> tuple[float, float]:
    """The best report seen, and a bound on the utility over all reports from 0 to `FARTHEST` times the dearest."""
    value = float(bids.valuation[client])
    top = FARTHEST * dearest
    edges = np.unique(
        np.concatenate([np.linspace(0.0, 2 * dearest, _FIRST_BOXES), np.geomspace(2 * dearest, top, 32), [value]])
    )
    low = edges[:-1]
    high = edges[1:]
    best = 0.0  # a client may stay out
    report = value
    settled = 0.0
    seen = 0
    for _ in range(_ROUNDS):
        seen += low.size
        middle, bound = _bounds(rule, bids, budget, client, low, high)
        place = int(np.argmax(middle))
        if middle[place] > best:
            best = float(middle[place])
            report = float(0.5 * (low[place] + high[place]))
        open_boxes = bound > best + near
        if open_boxes.size and not open_boxes.all():
            settled = max(settled, float(bound[~open_boxes].max()))
        if not open_boxes.any():
            return report, max(best, min(settled, best + near))
        if seen + 2 * int(open_boxes.sum()) > _MOST_BOXES:
            return report, max(settled, float(bound[open_boxes].max()))
        low = low[open_boxes]
        high = high[open_boxes]
        centre = 0.5 * (low + high)
        low = np.concatenate([low, centre])
        high = np.concatenate([centre, high])
    return report, max(settled, float(bound.max()))


def _bounds(
    rule: BoundedRule, bids: Bids, budget: float, client: int, low: Array, high: Array
) -> tuple[Array, Array]:
    """(boxes,) the client's utility at the middle of each box, and a bound over the box."""
    centre = torch.from_numpy(0.5 * (low + high))
    radius = torch.from_numpy(0.5 * (high - low) + ROUNDING * high)  # boxes overlap, so that rounding leaves no gap
    if isinstance(rule, JumpingRule):
        return rule.own_utility(bids, budget, client, centre, radius)
    trade = rule.own_trade(bids, budget, client, centre, radius)
    own = float(bids.valuation[client])
    report = Slope(centre, torch.ones_like(centre), torch.ones_like(centre), radius)
    assert isinstance(trade.payment, Slope)
    assert isinstance(trade.epsilon, Slope)
    # p − v·ε with p = w·ε + markup: the difference w − v is small where it matters, so it is taken first.
    markup = trade.payment - report * trade.epsilon
    utility = (report - own) * trade.epsilon + markup
    bound = utility.most.nan_to_num(
        nan=np.inf, posinf=np.inf
    ).numpy()  # where slopes overflowed, nothing is known yet
    # Where next to nothing is sold the rule sells nothing at all, and the client gets 0.
    least = (1 - TOLERANCE) * rule.least_share * float(bids.epsilon[client])
    sells = (trade.epsilon.middle >= least).numpy()
    may_sell = (trade.epsilon.most.nan_to_num(nan=np.inf) >= least).numpy()
    return np.where(sells, np.maximum(utility.middle.numpy(), 0.0), 0.0), np.where(
        may_sell, np.maximum(bound, 0.0), 0.0
    )
