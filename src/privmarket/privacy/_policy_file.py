"""A seller's policy as a TOML file: its values, checked one by one, and a file to start from."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from privmarket.errors import ConfigurationError, PrivmarketError
from privmarket.privacy._guard_policy import TEMPLATE as GUARD_TEMPLATE
from privmarket.privacy._guard_policy import read_guard_table

UNLIMITED: Literal["unlimited"] = "unlimited"
ANY, READY = "any", "ready"
NONE, TENTH = "none", "tenth"


def read_policy_file(place: Path) -> dict[str, Any]:
    """Field of `SellerPolicy` → value, for the keys that the file has.

    Raises:
        ConfigurationError: the file is no TOML, has an unknown key, or a value of the wrong kind.
    """
    try:
        table = tomllib.loads(place.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{place}: {error}", "`privmarket seller policy` prints a file") from error
    for key in table:
        if key not in _READERS:
            near = difflib.get_close_matches(key, _READERS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(_READERS)}"
            raise ConfigurationError(f"{place}: unknown key {key!r}", hint)
    try:
        return {key: _READERS[key](key, value) for key, value in table.items()}
    except _BadValueError as error:
        raise ConfigurationError(f"{place}: {error}", "`privmarket seller policy` shows the form") from error
    except PrivmarketError as error:
        raise ConfigurationError(f"{place}: {error.message}", error.hint) from error


class _BadValueError(ValueError):
    """A key of the policy file has a value of the wrong type or form."""


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise _BadValueError(f"{key} = {value!r}: not a number")
    return float(value)


def _limit(key: str, value: object) -> float:
    if value == UNLIMITED:
        return math.inf
    if (number := _number(key, value)) == math.inf:
        raise _BadValueError(f'{key} = inf: write "{UNLIMITED}" to sell without a limit')
    return number


def _risk(key: str, value: object) -> float | None:
    return None if value == TENTH else _limit(key, value)


def _place(key: str, value: object) -> str | None:
    return None if value == NONE else _text(key, value)


def _whole(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _BadValueError(f"{key} = {value!r}: not a whole number")
    return value


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise _BadValueError(f"{key} = {value!r}: not a text")
    return value


def _range(key: str, value: object) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise _BadValueError(f"{key} = {value!r}: not [least, most]")
    return _number(key, value[0]), _number(key, value[1])


def _list(key: str, value: object) -> list[object]:
    if not isinstance(value, list):
        raise _BadValueError(f"{key} = {value!r}: not a list")
    return value


def _names(key: str, value: object) -> frozenset[str] | None:
    return None if value == ANY else frozenset(_text(key, one) for one in _list(key, value))


def _schedules(key: str, value: object) -> tuple[tuple[float, int], ...] | None:
    if value == READY:
        return None
    pairs = [_list(key, pair) for pair in _list(key, value)]
    if any(len(pair) != 2 for pair in pairs):
        raise _BadValueError(f"{key} = {value!r}: not a list of [sampling rate, steps]")
    return tuple((_number(key, rate), _whole(key, steps)) for rate, steps in pairs)


def _prices(key: str, value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        raise _BadValueError(f"{key} = {value!r}: not a table such as {{ local = 0.5 }}")
    return {trust: _number(key, price) for trust, price in value.items()}


def _texts(key: str, value: object) -> tuple[str, ...]:
    return tuple(_text(key, one) for one in _list(key, value))


_READERS: dict[str, Callable[[str, object], Any]] = {
    "epsilon_per_sale": _limit,
    "epsilon_lifetime": _limit,
    "wallet": _text,
    "head_file": _place,
    "unpaid_epsilon": _risk,
    "delta": _number,
    "schedules": _schedules,
    "steps": _whole,
    "clip_norm": _range,
    "learning_rate": _range,
    "expected_batch": _range,
    "parameters": _whole,
    "weight_magnitude": _number,
    "models": _names,
    "unit": _text,
    "trust": _texts,
    "honest_share": _number,
    "minimum_cohort": _whole,
    "register": _text,
    "declared_records": _text,
    "price": _prices,
    "buyers": _names,
    "brokers": _names,
    "guard": read_guard_table,
}

TEMPLATE = f"""\
# What this client agrees to. Every line is optional; these are the defaults.
epsilon_per_sale = 1.0             # the most ε in one sale
epsilon_lifetime = 8.0             # the wallet's cap, for life; "{UNLIMITED}" must be written out
wallet = "wallet-{{client}}.jsonl"   # where sales are remembered, beside this file
head_file = "{NONE}"                 # a file on another disk that shows when an old wallet file is put back
unpaid_epsilon = "{TENTH}"           # of the wallet, or a number: the most ε that one buyer has not paid for
delta = 1e-5                       # the largest δ; keep it below 1 / number of records
unit = "record"                    # or "person": all records of a person together
declared_records = "rounded"       # up to two digits; or "exact", which tells when a record comes or goes

schedules = "{READY}"              # or a list of [sampling rate, steps], e.g. [[1.0, 1]]
steps = 1000                       # the most noisy steps in one sale
clip_norm = [1e-3, 1e3]            # least, most
learning_rate = [1e-6, 1e3]
expected_batch = [1.0, 1e9]

parameters = 10_000_000            # the most weights of a model
weight_magnitude = 1e4             # the largest absolute value of a weight
models = "{ANY}"                     # or a list of fingerprints; a client's log names each model that it refuses

trust = ["local"]                  # add "aggregate" to sell under secure sums
honest_share = 0.67                # the most honest sellers, as a share, that a promise may rest on
minimum_cohort = 10                # the fewest sellers in a secure sum
register = "required"              # who sells besides: a broker says it; or a register's key; or "none" says it
price = {{}}                         # money per unit of ε, e.g. {{ local = 0.5, aggregate = 0.1 }}

buyers = "{ANY}"                     # or a list of ids, as the broker names them
brokers = "{ANY}"                    # or a list of addresses: then nothing is sold without one of them
{GUARD_TEMPLATE}"""
