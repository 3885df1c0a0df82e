"""Auction rules, one per file under its name from the literature, and the registry that finds them.

- `pac`, `vcg`, `csra`, `mfg_pricing`, `jsam`, `proportional_share`: rules of the literature.
- `mean_field_menu`, `ration`, `two_step`, `graded_ration`: menus of posted prices; `menu_levels`, `ration_menu` and
  `ration_levels` compute their levels.
- `learned`: rules with trained weights.
- `registry`, `function_rule`, `setting_types`: how a rule is found and given its settings.
- `no_sale`, `ranking`: why a market sold nothing, and sorted views of bids.

Each name is imported when it is first used; `dir` lists them.
"""

from typing import TYPE_CHECKING

from privmarket.lazy import public_names

if TYPE_CHECKING:
    from privmarket.mechanisms import (
        csra,
        function_rule,
        graded_ration,
        jsam,
        learned,
        mean_field_menu,
        menu_levels,
        mfg_pricing,
        no_sale,
        pac,
        proportional_share,
        ranking,
        ration,
        ration_levels,
        ration_menu,
        registry,
        setting_types,
        two_step,
        vcg,
    )
    from privmarket.mechanisms.function_rule import FunctionRule, RuleFunction
    from privmarket.mechanisms.no_sale import why_nothing_sold
    from privmarket.mechanisms.registry import Rule, mechanism, mechanism_names, resolve

__all__ = [
    "FunctionRule",
    "Rule",
    "RuleFunction",
    "csra",
    "function_rule",
    "graded_ration",
    "jsam",
    "learned",
    "mean_field_menu",
    "mechanism",
    "mechanism_names",
    "menu_levels",
    "mfg_pricing",
    "no_sale",
    "pac",
    "proportional_share",
    "ranking",
    "ration",
    "ration_levels",
    "ration_menu",
    "registry",
    "resolve",
    "setting_types",
    "two_step",
    "vcg",
    "why_nothing_sold",
]

# public name → the module that defines it; the other names are modules
_HOMES = {
    "FunctionRule": "privmarket.mechanisms.function_rule",
    "Rule": "privmarket.mechanisms.registry",
    "RuleFunction": "privmarket.mechanisms.function_rule",
    "mechanism": "privmarket.mechanisms.registry",
    "mechanism_names": "privmarket.mechanisms.registry",
    "resolve": "privmarket.mechanisms.registry",
    "why_nothing_sold": "privmarket.mechanisms.no_sale",
}
_HOMES |= {name: f"{__name__}.{name}" for name in __all__ if name not in _HOMES}
if not TYPE_CHECKING:  # so that mypy reports a name that does not exist
    __getattr__, __dir__ = public_names(__name__, _HOMES)
