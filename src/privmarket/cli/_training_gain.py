"""What a training gained: the trained rule beside the same rule before its first step, on markets of its law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypedDict

from privmarket._lazy import late
from privmarket.market._attacks import QUICK

if TYPE_CHECKING:
    from privmarket.market._distributions import Distribution
    from privmarket.mechanisms.learned import _session as session
    from privmarket.mechanisms.learned import _trained_weights as trained_weights
    from privmarket.mechanisms.learned._menunet import CurveFacts
    from privmarket.mechanisms.learned._recipes import Recipe
else:
    session = late("privmarket.mechanisms.learned._session")
    trained_weights = late("privmarket.mechanisms.learned._trained_weights")

_CLIENTS = 20  # enough to tell rules apart, few enough to attack within seconds
_PROFILES = 2


class Gain(TypedDict):
    """A trained rule beside the untrained one: what is measured in words, in which market, and both figures."""

    measure: dict[str, str]
    market: dict[str, str | float]
    untrained: dict[str, float]
    trained: dict[str, float]


def network_gain(recipe: Recipe, laws: Sequence[Distribution], weights: Path) -> Gain:
    """Both networks on the first law: ε bought over the fluid bound, mean gain of misreports over mean pay.

    The attack is the quick one: it finds gross misreports. `privmarket audit` looks harder.
    """
    low, high = recipe.clients
    clients = min(max(_CLIENTS, low), high)
    law, per_client = laws[0], math.sqrt(math.prod(recipe.budget_per_client))
    case = [(law, clients, clients * per_client, _PROFILES)]
    with TemporaryDirectory() as folder:
        start = Path(folder) / "untrained.safetensors"
        trained_weights.write_weights(start, trained_weights.new_trainer(recipe, laws), 0.0, {})
        before = session.measure(start, recipe.mechanism, case, QUICK)["cases"][0]
    after = session.measure(weights, recipe.mechanism, case, QUICK)["cases"][0]
    return {
        "measure": {"fluid_ratio": "ε bought / fluid bound", "regret_share": "mean gain of misreports / mean pay"},
        "market": {"scenario": law.name, "clients": clients, "budget": round(clients * per_client, 4)},
        "untrained": {"fluid_ratio": before["fluid_ratio"], "regret_share": before["regret_share"]},
        "trained": {"fluid_ratio": after["fluid_ratio"], "regret_share": after["regret_share"]},
    }


def menu_gain(curve: CurveFacts) -> Gain:
    """A learned curve beside a posted price, where its search starts, on validation markets."""
    return {
        "measure": {"value": str(curve["objective"])},
        "market": {
            "scenario": curve["scenario"],
            "clients": curve["clients"],
            "budget_per_client": curve["budget_per_client"],
        },
        "untrained": {"value": curve["posted_price_value"]},
        "trained": {"value": curve["value"]},
    }


def gain_lines(gain: Gain) -> list[str]:
    """The gain for people, a line per measure."""
    market = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in gain["market"].items())
    lines = [f"gained over the untrained rule ({market}):"]
    for name, words in gain["measure"].items():
        before, after = gain["untrained"][name], gain["trained"][name]
        lines.append(f"  {words}: {before:.4g} → {after:.4g}")
    if gain["untrained"] == gain["trained"]:
        lines.append("  nothing was gained: the untrained rule is as good in this market")
    return lines
