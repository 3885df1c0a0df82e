"""The registry: every rule under its name from the literature, imported only when it is asked for."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from privmarket.errors import UnknownNameError
from privmarket.market.mechanism import Mechanism

# name → (module below this package, class, fixed settings). `name:literal` is the paper's letter.
_REGISTRY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "pac": ("pac", "Pac", {}),
    "pac:literal": ("pac", "PacLiteral", {}),
    "vcg": ("vcg", "Vcg", {}),
    "vcg:literal": ("vcg", "VcgLiteral", {}),
    "k-plus-one-price": ("vcg", "KPlusOnePrice", {}),
    "csra": ("csra", "Csra", {}),
    "mfg-pricing": ("mfg_pricing", "MfgPricing", {}),
    "mfg-pricing:literal": ("mfg_pricing", "MfgPricingLiteral", {}),
    "jsam": ("jsam", "Jsam", {}),
    "proportional-share": ("proportional_share", "ProportionalShare", {}),
    "mean-field-menu": ("mean_field_menu", "MeanFieldMenu", {}),
}


def mechanisms() -> tuple[str, ...]:
    """The names that `mechanism` takes."""
    return tuple(_REGISTRY)


def mechanism(name: str, **settings: Any) -> Mechanism:
    """The rule called `name`, configured by `settings`.

    >>> mechanism("proportional-share")
    <mechanism proportional-share>
    """
    if name not in _REGISTRY:
        known = ", ".join(_REGISTRY)
        raise UnknownNameError(f"unknown mechanism {name!r}", f"choose one of: {known}")
    module, cls, fixed = _REGISTRY[name]
    build = partial(getattr(import_module(f"{__name__}.{module}"), cls), **fixed)
    made: Mechanism = build(**settings)
    return made
