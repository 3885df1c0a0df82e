"""Why a market sold nothing, and what would sell."""

from __future__ import annotations

import math

from privmarket.errors import PrivmarketError
from privmarket.market._bids import Bids
from privmarket.market._mechanism import Mechanism
from privmarket.mechanisms._registry import mechanism

# Rules without a reserve, tried in this order as alternatives.
_ALTERNATIVES = ("proportional-share", "csra", "k-plus-one-price", "pac")
_DOUBLINGS = 40
_BISECTIONS = 12


def why_nothing_sold(rule: Mechanism, bids: Bids, budget: float) -> str:
    """A sentence or two for a market (clients,) in which `rule` sells nothing; "" where it sells something.

    It names a budget at which the rule sells, and another rule that sells; both were run on this market.
    """
    if _sold(rule, bids, budget) > 0:
        return ""
    cheapest = float((bids.valuation * bids.epsilon).min())
    reason = rule.why_nothing_sold(bids, budget)
    if not reason and cheapest > budget:
        reason = f"the cheapest whole offer costs {cheapest:.4g}, more than the budget"
    parts = [f"{rule.name} sold nothing at a budget of {budget:g}" + (f": {reason}" if reason else "")]
    enough = _budget_that_sells(rule, bids, budget)
    if enough is not None:
        parts.append(f"it sells from a budget of about {_rounded_up(enough):g}")
    for name in _ALTERNATIVES:
        if name != rule.name and (sold := _sold(mechanism(name), bids, budget)) > 0:
            parts.append(f"{name} would sell {sold:.4g} ε here")
            break
    return "; ".join(parts)


def _sold(rule: Mechanism, bids: Bids, budget: float) -> float:
    try:
        return float(rule.run(bids, budget).total_epsilon)
    except PrivmarketError:  # a rule that refuses this market sells nothing in it
        return 0.0


def _rounded_up(value: float) -> float:
    """To three digits, upwards: a budget that sells, and is not printed as the one that did not."""
    if not 0 < value < math.inf:
        return value
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / step) * step:.3g}")


def _budget_that_sells(rule: Mechanism, bids: Bids, budget: float) -> float | None:
    """A budget from which the rule sells something: doubled until it does, then narrowed down from above."""
    low = budget
    high = budget
    for _ in range(_DOUBLINGS):
        low = high
        high = 2 * high
        if _sold(rule, bids, high) > 0:
            break
    else:
        return None
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if _sold(rule, bids, middle) > 0 else (middle, high)
    return high
