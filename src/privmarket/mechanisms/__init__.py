"""Auction rules, one per file under its name from the literature, and the registry that finds them.

- `pac`, `vcg`, `csra`, `mfg_pricing`, `jsam`, `proportional_share`: rules of the literature.
- `mean_field_menu`, `ration`, `two_step`, `graded_ration`: menus of posted prices; `menu_levels`, `ration_menu` and
  `ration_levels` compute their levels.
- `learned`: rules with trained weights.
- `registry`, `function_rule`, `setting_types`: how a rule is found and given its settings.
- `no_sale`, `ranking`: why a market sold nothing, and sorted views of bids.

Each name is imported when it is first used; `dir` lists them.
"""

from privmarket._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
