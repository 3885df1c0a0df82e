"""Settings against the types that a constructor or function declares."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isclass
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Union, get_args, get_origin, get_type_hints

from privmarket.errors import ConfigurationError

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
