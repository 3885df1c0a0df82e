"""Arguments of apps, checked before the first message: misspelt names, a module in place of its maker."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from numbers import Real
from typing import Any

from flwr.app import ArrayRecord, MetricRecord

from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.flower import _failures as failures
from privmarket.flower._settings import MarketSettings

_log = logging.getLogger("flwr.privmarket")


def settings_from(place: str, given: Mapping[str, Any], others: Iterable[str]) -> MarketSettings:
    """Settings by name.

    Args:
        place: whose arguments they are, for messages.
        others: further names that `place` takes, for guesses.

    Raises:
        UnknownNameError: a name is no setting; with the nearest one.
        ConfigurationError: a value is outside its limits.
    """
    known = [one.name for one in fields(MarketSettings)]
    for name in given:
        if name not in known:
            raise UnknownNameError.among(f"argument of {place}", name, [*known, *others])
    return MarketSettings(**given)


def own_arguments(function: Callable[..., object]) -> list[str]:
    """The names that a function takes beside its settings."""
    return [name for name, one in inspect.signature(function).parameters.items() if one.kind is not one.VAR_KEYWORD]


def require_maker(place: str, name: str, value: object) -> None:
    """Refuses a thing where a function that makes it is wanted: `model=build()` for `model=build`.

    Raises:
        ConfigurationError: it cannot be called without arguments, or is a module.
    """
    if value is None:
        return
    kind = type(value).__name__
    made = hasattr(value, "state_dict") and not isinstance(value, type)
    if made:
        raise ConfigurationError(
            f"{place}: {name} is a {kind}, not a function that makes one",
            f"leave out the brackets: {name}=build, not {name}=build(); or {name}=lambda: {kind}(…)",
        )
    if not callable(value):
        raise ConfigurationError(
            f"{place}: {name} is {value!r}, not a function", f"give a function without arguments as {name}="
        )


def score_of(value: object, function: Callable[..., object]) -> float:
    """One number out of what a function for measuring returned.

    Raises:
        ConfigurationError: it is none; with the function's file and line.
    """
    plain = value.item() if hasattr(value, "item") and getattr(value, "size", 1) in (1,) else value
    if callable(plain):
        plain = None
    if isinstance(plain, Real) and not isinstance(plain, bool) and math.isfinite(float(plain)):
        return float(plain)
    hint = "return one finite number, the higher the better"
    if isinstance(value, Mapping):
        key = next(iter(value), "accuracy")
        hint = f"return one number, for instance result[{str(key)!r}]"
    elif isinstance(value, tuple | list):
        hint = "return one number, for instance the last of these"
    raise ConfigurationError(f"{where(function)}: evaluate returned {value!r:.80}", hint)


def where(function: Callable[..., object]) -> str:
    """`file.py, line 12`, where a function stands."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return getattr(function, "__qualname__", type(function).__name__)
    return f"{code.co_filename}, line {code.co_firstlineno}"


def tried_score(measure: Callable[..., object], *arguments: Any) -> float:
    """The first score, taken before anyone is asked for a bid: what fails here has cost nothing.

    Raises:
        ConfigurationError: the function raised an error, or returned no number.
    """
    try:
        value = measure(*arguments)
    except ConfigurationError:
        raise
    except Exception as error:  # the function is the user's and may raise anything
        raise ConfigurationError(
            f"evaluate failed before the first round: {failures.story(error)}", "correct that line"
        ) from error
    return score_of(value, measure)


def later_score(measure: Callable[..., object], *arguments: Any) -> float | None:
    """A score after a round; None, with a line in the log, where it fails: the round is paid and must be kept."""
    try:
        return score_of(measure(*arguments), measure)
    except Exception as error:  # the function is the user's and may raise anything
        _log.error("evaluate failed after a round that is paid; the run goes on: %s", failures.story(error))
        return None


def checked_evaluation(
    evaluate: Callable[[int, ArrayRecord], MetricRecord | None],
) -> Callable[[int, ArrayRecord], MetricRecord | None]:
    """A strategy's `evaluate_fn`, which fails before the first round or not at all."""

    def measure(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        try:
            value = evaluate(number, arrays)
            if value is not None and not isinstance(value, MetricRecord):
                wanted = (
                    f"return MetricRecord({value})" if isinstance(value, dict) else "return a MetricRecord, or None"
                )
                raise ConfigurationError(f"{where(evaluate)}: evaluate_fn returned {value!r:.80}", wanted)
            return value
        except Exception as error:  # the function is the user's and may raise anything
            if number == 0:
                if isinstance(error, ConfigurationError):
                    raise
                raise ConfigurationError(
                    f"evaluate_fn failed before the first round: {failures.story(error)}", "correct that line"
                ) from error
            _log.error("evaluate_fn failed after a round that is paid; the run goes on: %s", failures.story(error))
            return None

    return measure
