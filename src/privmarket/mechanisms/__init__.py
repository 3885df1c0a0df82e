"""The registry: every rule under its name from the literature, imported only when it is asked for."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import Any

from privmarket.errors import ConfigurationError, UnknownNameError
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
    "mfg-menunet": ("learned.menunet", "MfgMenuNet", {}),
    "mfg-regretnet": ("learned.mfg_regretnet", "MfgRegretNet", {}),
    "mfg-regretnet:literal": ("learned.literal", "MfgRegretNetLiteral", {}),
    "regretnet": ("learned.regretnet", "RegretNet", {}),
    "dm-regretnet": ("learned.dm_regretnet", "DmRegretNet", {}),
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
    build = getattr(import_module(f"{__name__}.{module}"), cls)
    known_settings = [setting for setting in signature(build).parameters if setting not in fixed]
    for setting in settings:
        if setting not in known_settings:
            allowed = ", ".join(known_settings) or "it takes none"
            raise ConfigurationError(f"{name}: unknown setting {setting!r}", f"settings: {allowed}")
    made: Mechanism = build(**fixed, **settings)
    return made


def takes_setting(name: str, setting: str) -> bool:
    """Whether the rule called `name` can be configured by `setting`."""
    if name not in _REGISTRY:
        return False
    module, cls, _ = _REGISTRY[name]
    return setting in signature(getattr(import_module(f"{__name__}.{module}"), cls)).parameters
