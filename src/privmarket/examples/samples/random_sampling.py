"""A rule that throws coins: random sampling, as textbooks on mechanism design have it.

Each client is dealt to one of two groups by a coin. Each group gets half of the budget and the price that would
have suited the *other* group, so nobody's report moves the price that it faces: under every throw of the coins the
rule is truthful in v, and a lie about ε only forgoes sales.

    privmarket audit --mechanism random_sampling.py:random_sampling --clients 20 --budget 10
"""

import numpy as np

from privmarket.market import BudgetFeasible, IndividuallyRational, Truthful, WithinOffer


def random_sampling(bids, budget, rng):
    """One market: `bids` of shape (clients,). All chance comes from `rng`, so that a throw can be repeated."""
    heads = rng.random(bids.clients) < 0.5
    order = rng.permutation(bids.clients)
    sold = np.zeros(bids.clients)
    paid = np.zeros(bids.clients)
    for group, other in ((heads, ~heads), (~heads, heads)):
        price = best_price(bids.valuation[other], bids.epsilon[other], budget / 2)
        left = budget / 2
        for client in order:
            if group[client] and bids.valuation[client] <= price and price > 0:
                sold[client] = min(bids.epsilon[client], left / price)
                paid[client] = sold[client] * price
                left = max(left - paid[client], 0.0)  # without what rounding leaves below 0
    return sold, paid


def best_price(valuation, epsilon, budget):
    """The price at which these clients together offer what the budget pays for; 0 where there are none."""
    best = 0.0
    most = 0.0
    for price in valuation:
        offered = epsilon[valuation <= price].sum()
        bought = min(offered, budget / price) if price > 0 else offered
        if bought > most:
            best = price
            most = bought
    return best


random_sampling.guarantees = (
    IndividuallyRational(),
    BudgetFeasible(),
    WithinOffer(),
    Truthful(in_="valuation"),
    Truthful(in_="epsilon"),
)
