"""Auction rules, one per file under its name from the literature, and the registry that finds them.

- `mechanism(name)` makes a rule by its name, `resolve(rule)` from whatever a user may give: a name,
  `file.py:Rule`, a class, an object, a function. `mechanism_names()` lists the names.
- Rules of the literature: `Pac`, `Vcg` and `KPlusOnePrice`, `Csra`, `MfgPricing`, `Jsam`, `ProportionalShare`.
- Menus of posted prices: `MeanFieldMenu` sells shares of offers; `Ration`, `TwoStep` and `GradedRation` sell
  amounts. `PrecisionMenu` pays more for a unit of ε to who offers more.
- `learned`: rules with trained weights, and how to train your own.
- `FunctionRule` makes a rule from a function; `why_nothing_sold` explains a market without sales.

Each name is imported when it is first used.
"""

# To read the code, begin with `_proportional_share.py`, the shortest rule. `_registry.py` finds rules,
# `_levels.py` computes the price level that each client faces under a menu.

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
