"""Where rules are found: by name, by `package.module:Rule`, as a class, an object or a function.

The module of a registered rule is imported when the rule is asked for: the learned ones need torch, the others
do not. Other distributions add rules through the entry-point group `privmarket.mechanisms`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import Parameter, isabstract, isclass, signature
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, TypeGuard, Union, get_args, get_origin, get_type_hints

from privmarket._lazy import late, needed
from privmarket._named import names_code, object_named
from privmarket.errors import ConfigurationError, OutcomeError, PrivmarketError, UnknownNameError
from privmarket.market._facts import MarketFacts
from privmarket.market._mechanism import Guarantee, Mechanism
from privmarket.market._randomised import RandomisedMechanism
from privmarket.mechanisms._function_rule import RuleFunction, function_rule, function_settings

if TYPE_CHECKING:
    from privmarket.mechanisms.learned import _learned_mechanism as learned_mechanism
    from privmarket.mechanisms.learned._networks import AuctionNetwork
else:
    learned_mechanism = late("privmarket.mechanisms.learned._learned_mechanism")

GROUP = "privmarket.mechanisms"
UNTRAINED = ":untrained"

# name → (module below this package, class). `name:literal` does what the paper prints, also where that is wrong.
_REGISTRY: dict[str, tuple[str, str]] = {
    "pac": ("_pac", "Pac"),
    "pac:literal": ("_pac", "PacLiteral"),
    "vcg": ("_vcg", "Vcg"),
    "vcg:literal": ("_vcg", "VcgLiteral"),
    "k-plus-one-price": ("_vcg", "KPlusOnePrice"),
    "csra": ("_csra", "Csra"),
    "csra:literal": ("_csra", "CsraLiteral"),
    "mfg-pricing": ("_mfg_pricing", "MfgPricing"),
    "mfg-pricing:literal": ("_mfg_pricing", "MfgPricingLiteral"),
    "jsam": ("_jsam", "Jsam"),
    "proportional-share": ("_proportional_share", "ProportionalShare"),
    "mean-field-menu": ("_mean_field_menu", "MeanFieldMenu"),
    "ration": ("_ration", "Ration"),
    "two-step": ("_two_step", "TwoStep"),
    "graded-ration": ("_graded_ration", "GradedRation"),
    "precision-menu": ("_precision_menu", "PrecisionMenu"),
    "mfg-menunet": ("learned._menunet", "MfgMenuNet"),
    "mfg-regretnet": ("learned._mfg_regretnet", "MfgRegretNet"),
    "mfg-regretnet:literal": ("learned._literal", "MfgRegretNetLiteral"),
    "regretnet": ("learned._regretnet", "RegretNet"),
    "dm-regretnet": ("learned._dm_regretnet", "DmRegretNet"),
    "regretformer": ("learned._regretformer", "RegretFormer"),
}

Rule = Union[str, Mechanism, type[Mechanism], RuleFunction, "type[AuctionNetwork]"]
"""What a rule may be given as: a registered name; `file.py:Rule` or `package.module:Rule`; a `Mechanism`, class or
object; a function (see `RuleFunction`); or a subclass of `AuctionNetwork`. `resolve` makes a mechanism from it."""


def mechanism_names() -> tuple[str, ...]:
    """The names that `mechanism` takes: those of this package, then those that other distributions add."""
    return (*_REGISTRY, *sorted(_added()))


def mechanism(name: str, /, *, market: MarketFacts | None = None, **settings: object) -> Mechanism:
    """The rule called `name`.

    Args:
        name: one of `mechanism_names()`, or a learned rule's name with `:untrained` for the rule before its first
            training step. Nothing else is ever imported, so a name may come from a stranger.
        market: what is publicly known about the market. A rule is told the facts that it lists in
            `market_facts`, where they are known, and not the others.
        settings: arguments of the rule's constructor. They win over `market`.

    >>> mechanism("proportional-share")
    <mechanism proportional-share>
    """
    if not isinstance(name, str):
        raise ConfigurationError(
            f"a rule called {name!r}", "a rule of your own is made by privmarket.mechanisms.resolve(rule)"
        )
    learned = name.removesuffix(UNTRAINED)
    if name in _REGISTRY:
        found: object = registered_class(name)
    elif name.endswith(UNTRAINED) and learned in learned_names():
        found = registered_class(learned)
        settings = {**settings, "untrained": True}
    elif name in _added():
        found = _loaded(_added()[name])
    else:
        raise UnknownNameError.among("mechanism", name, mechanism_names())
    return _build(name, found, market, settings)


def resolve(rule: Rule, /, *, market: MarketFacts | None = None, **settings: object) -> Mechanism:
    """The mechanism that `rule` means. Every command and public function that takes a rule calls this.

    Args:
        rule: a registered name; `package.module:Rule` or `path/to/file.py:Rule`, which imports that code; a
            subclass of `Mechanism` or of `AuctionNetwork`; a function `(bids, budget) -> (epsilon, payment)` of
            one market; or a mechanism, which is used as it is and takes no settings.
        market: public facts, handed to the rule as `mechanism` does. A function is told those that its further
            arguments name.
        settings: arguments of the constructor, or further arguments of the function.
    """
    if not isinstance(rule, str):
        return _build(getattr(rule, "__name__", type(rule).__name__), rule, market, settings)
    if rule in mechanism_names() or not names_code(rule):
        return mechanism(rule, market=market, **settings)
    place = rule.rpartition(":")[0]
    if place in mechanism_names():  # a misspelt form of a registered rule, not a module
        return mechanism(rule, market=market, **settings)
    return _build(rule, named_object("rule", rule), market, settings)


def named_object(kind: str, path: str) -> object:
    """What `package.module:Name` or `path/to/file.py:Name` stands for; imports that code.

    Args:
        kind: what is looked for, such as "rule", for error messages.

    Raises:
        ConfigurationError: the module cannot be imported.
        UnknownNameError: it has nothing of that name.
    """
    others = f", or one of: {', '.join(mechanism_names())}" if kind == "rule" else ""
    try:
        return object_named(kind, path, others)
    except SystemExit as error:
        raise OutcomeError.of_exit(path.rpartition(":")[0], error) from error


def learned_names() -> tuple[str, ...]:
    """The names of this package's rules that have trained weights; each also has a form `name:untrained`."""
    return tuple(name for name, (module, _) in _REGISTRY.items() if module.startswith("learned."))


def registered_names() -> tuple[str, ...]:
    """The names of this package's own rules."""
    return tuple(_REGISTRY)


def setting_names(name: str) -> tuple[str, ...]:
    """The names of the settings that the registered rule called `name` takes."""
    return tuple(signature(registered_class(name)).parameters)


def registered_class(name: str) -> type[Mechanism]:
    """The class of one of `registered_names()`; its module is imported now."""
    module, cls = _REGISTRY[name]
    with needed():
        found: type[Mechanism] = getattr(import_module(f"privmarket.mechanisms.{module}"), cls)
    return found


@cache
def _added() -> Mapping[str, EntryPoint]:
    """Rules of other distributions. A name of this package cannot be taken over."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in _REGISTRY}


def _loaded(point: EntryPoint) -> object:
    try:
        return point.load()
    except SystemExit as error:
        raise OutcomeError.of_exit(f"{point.name} ({point.value})", error) from error
    except PrivmarketError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"mechanism {point.name!r} cannot be loaded from {point.value}: {error}",
            "install the distribution that offers it again, or mend it",
        ) from error


def _build(name: str, found: object, market: MarketFacts | None, settings: Mapping[str, object]) -> Mechanism:
    if isinstance(found, Mechanism):
        if settings:
            raise ConfigurationError(
                f"{found.name}: settings {', '.join(settings)} for a rule that is already made",
                "give them to its constructor",
            )
        return found
    if isclass(found) and issubclass(found, Mechanism):
        if isabstract(found):
            method = (
                "clear_with(self, bids, budget, rng)"
                if issubclass(found, RandomisedMechanism)
                else "clear(self, bids, budget)"
            )
            raise ConfigurationError(
                f"{name} has no method {method.partition('(')[0]}", f"write {method} -> Outcome"
            )
        if not isinstance(getattr(found, "name", None), str):
            raise ConfigurationError(f"{name} has no name", 'write name = "my-rule" in the class')
        parameters = dict(signature(found).parameters)
        _check_settings(name, settings, parameters, declared_types(found.__init__))
        given = {**_told(found.market_facts, market), **settings}
        _check_complete(name, given, parameters)
        try:
            made = found(**given)
        except SystemExit as error:
            raise OutcomeError.of_exit(name, error) from error
        for promise in made.guarantees:
            if not isinstance(promise, Guarantee):
                raise ConfigurationError(
                    f"{name}: {promise!r} among its guarantees is none",
                    "give objects such as privmarket.market.BudgetFeasible()",
                )
        return made
    if _is_network(found):
        return _build(name, learned_mechanism.network_mechanism(found), market, settings)
    if callable(found) and not isclass(found):
        parameters = function_settings(found)
        _check_settings(name, settings, parameters, declared_types(found))
        wanted = tuple(f.name for f in fields(MarketFacts) if f.name in parameters)
        given = {**_told(wanted, market), **settings}
        _check_complete(name, given, parameters)
        return function_rule(found, **given)
    raise ConfigurationError(
        f"{name} is {found!r}: no auction rule",
        "give a Mechanism subclass, a mechanism, a function (bids, budget) -> (epsilon, payment), or an "
        "AuctionNetwork subclass",
    )


def _is_network(found: object) -> TypeGuard[type[AuctionNetwork]]:
    """Whether this is the class of an auction network. Torch is not imported to find out."""
    networks = sys.modules.get("privmarket.mechanisms.learned._networks")
    return networks is not None and isclass(found) and issubclass(found, networks.AuctionNetwork)


def _told(wanted: tuple[str, ...], market: MarketFacts | None) -> dict[str, object]:
    known = {fact: getattr(market, fact, None) for fact in wanted}
    return {fact: value for fact, value in known.items() if value is not None}


def _check_complete(name: str, given: Mapping[str, object], parameters: Mapping[str, Parameter]) -> None:
    """Refuses to make a rule that would miss an argument."""
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    for setting, parameter in parameters.items():
        if parameter.default is Parameter.empty and parameter.kind in named and setting not in given:
            raise ConfigurationError(
                f"{name} needs the setting {setting!r}", f"give --set {setting}=VALUE, or {setting}=… in Python"
            )


def _check_settings(
    name: str, settings: Mapping[str, object], parameters: Mapping[str, Parameter], types: Mapping[str, object]
) -> None:
    """Refuses a setting that the rule does not have, or a value of another type than it declares."""
    if any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    for setting, value in settings.items():
        if setting not in parameters:
            if not parameters:
                raise ConfigurationError(f"{name}: unknown setting {setting!r}", "it takes none")
            unknown = UnknownNameError.among("setting", setting, parameters)
            raise UnknownNameError(f"{name}: {unknown.message}", unknown.hint)
        if setting in types:
            check_type(name, setting, value, types[setting])


# ---- settings against the types that a constructor or function declares ----

_WORDS: dict[object, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    NoneType: "null",
}


def declared_types(of: Callable[..., object] | type) -> dict[str, object]:
    """Argument or field → declared type; empty where the types exist for a type checker only."""
    try:
        return get_type_hints(of)
    except (NameError, TypeError):
        return {}


def check_type(owner: str, setting: str, value: object, wanted: object) -> None:
    """Raises `ConfigurationError`, naming the setting and what it takes, if `value` cannot be a `wanted`."""
    kinds = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
    if not any(_fits(value, kind) for kind in kinds):
        words = [_WORDS.get(kind, getattr(kind, "__name__", str(kind))) for kind in kinds]
        raise ConfigurationError(f"{owner}: setting {setting} is {value!r}", f"must be {' or '.join(words)}")


def _fits(value: object, kind: object) -> bool:
    """Whether a value may be meant for a type. What a type cannot decide is left to the rule itself."""
    if kind is bool or isinstance(value, bool):
        return isinstance(value, bool) and kind in (bool, object)
    if kind is float:
        return isinstance(value, Real)
    if kind is int:
        return isinstance(value, Integral)
    if kind is Path:
        return isinstance(value, str | Path)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple | list)
    if not isclass(kind):
        return True
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol that cannot be checked
        return True
