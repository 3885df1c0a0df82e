"""Auction rules at the broker: their names, settings and versions, and the check of every outcome.

Declared promises are checked on every outcome before money moves. A rule's version is its semantic version and a
digest of its outcomes on fixed probe markets. The digest changes when weights or formulas change, but not with
comments, and a test then asks for another version. Older forms of rules stay in `RETIRED`, so that old rounds can
be replayed.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from privmarket.broker._answers import RuleAnswer, SettingValue
from privmarket.broker._errors import BrokerError
from privmarket.errors import PrivmarketError, UnknownNameError
from privmarket.market._bids import Array, Bids
from privmarket.market._guarantees import (
    ApproximatelyTruthful,
    BudgetFeasible,
    IndividuallyRational,
    OutcomeGuarantee,
    Truthful,
)
from privmarket.market._mechanism import Mechanism
from privmarket.market._outcome import Outcome
from privmarket.mechanisms import mechanism, mechanism_names

MakeMechanism = Callable[..., Mechanism]
# (rule, version) → the function that built it. Whoever changes what a rule does raises its version and keeps the
# function of the old version here.
RETIRED: dict[tuple[str, str], MakeMechanism] = {}
_PROBES = ((5, 1.0), (12, 4.0), (40, 9.0))  # bidders, budget
_SIMPLE = {bool: "boolean", int: "integer", float: "number", str: "string"}


class BrokenPromiseError(PrivmarketError):
    """An outcome that breaks what its mechanism declares."""

    code = "broken-promise"


class Guarded(Mechanism):
    """A rule whose every outcome is checked against the guarantees that it declares, before it is returned."""

    def __init__(self, mechanism: Mechanism) -> None:
        self._rule = mechanism
        self.name = mechanism.name  # type: ignore[misc]  # errors name the rule that is guarded
        self.version = mechanism.version
        self.guarantees = mechanism.guarantees

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """The rule's outcome.

        Raises:
            BrokenPromiseError: the outcome breaks a declared guarantee that can be checked on a single outcome.
        """
        outcome = self._rule.run(bids, budget[..., 0])
        for promise in self.guarantees:
            if isinstance(promise, OutcomeGuarantee):
                finding = promise.holds(bids, outcome, budget[..., 0])
                if not finding.held:
                    raise BrokenPromiseError(
                        f"{self.name} is not {promise.label}: off by {finding.worst:.3g} {finding.detail}",
                        "the round is aborted and refunded; use another mechanism",
                    )
        return outcome


def version_of(mechanism: Mechanism) -> str:
    """A rule's version as NAME/VERSION+DIGEST.

    The digest is of its outcomes on the probe markets, rounded to nine significant digits.
    """
    seen = hashlib.sha256()
    for n, budget in _PROBES:
        rng = np.random.default_rng(n)
        bids = Bids(
            valuation=rng.uniform(0.05, 1.0, n),
            epsilon=rng.uniform(0.2, 2.0, n),
            data_size=rng.integers(50, 900, n).astype(float),
            accuracy=rng.uniform(0.5, 0.9, n),
        )
        try:
            outcome = mechanism.run(bids, budget)
            figures = np.concatenate([outcome.epsilon, outcome.payment])
            seen.update(" ".join(f"{figure:.9g}" for figure in figures).encode())
        except Exception as error:  # a rule that cannot be probed has a version all the same
            seen.update(type(error).__name__.encode())
    return f"{mechanism.name}/{mechanism.version}+{seen.hexdigest()[:16]}"


def as_recorded(make: MakeMechanism, name: str, recorded: str) -> MakeMechanism:
    """What builds a rule in the version that a round recorded: a function of `RETIRED` if listed, else `make`."""
    version = recorded.rpartition("/")[2].partition("+")[0]
    return RETIRED.get((name, version), make)


@lru_cache(maxsize=64)
def describe(name: str) -> RuleAnswer:
    """A rule for people who choose one: what it promises, what to beware of, which settings it takes."""
    promises = mechanism(name).guarantees  # for learned rules, those measured for their weights
    warnings = []
    if not any(isinstance(one, BudgetFeasible) for one in promises):
        warnings.append(
            "does not promise to stay within the budget: a round that would exceed it is aborted and refunded"
        )
    if not any(isinstance(one, IndividuallyRational) for one in promises):
        warnings.append("does not promise to pay each seller at least what it asks")
    if not any(isinstance(one, Truthful | ApproximatelyTruthful) for one in promises):
        warnings.append("does not promise that asking one's true price is best")
    return {
        "name": name,
        "guarantees": [one.label for one in promises],
        "warnings": warnings,
        "settings": {key: {"type": kind, "default": default} for key, (kind, default) in settings_of(name).items()},
    }


@lru_cache(maxsize=64)
def settings_of(name: str) -> Mapping[str, tuple[str, SettingValue]]:
    """The settings of a rule that a task may give: name → (JSON type, default).

    Only numbers and Booleans are included; parameters that are files or objects are left out.
    """
    build = type(mechanism(name))
    hints = typing.get_type_hints(build.__init__)
    found = {}
    for key, parameter in inspect.signature(build).parameters.items():
        kinds = [kind for kind in typing.get_args(hints.get(key)) or (hints.get(key),) if kind is not type(None)]
        kind = float if float in kinds else kinds[0] if len(kinds) == 1 else None
        if kind in (bool, int, float):
            default = None if parameter.default is inspect.Parameter.empty else parameter.default
            found[key] = (_SIMPLE[kind], default)
    return found


def check(name: str, settings: Mapping[str, object]) -> None:
    """Checks that a rule is registered and takes these settings.

    Raises:
        UnknownNameError: there is no rule of that name.
        BrokerError: the rule does not take one of the settings, or takes it as another type.
    """
    if name not in mechanism_names():
        raise UnknownNameError(f"unknown mechanism {name!r}", f"choose one of: {', '.join(mechanism_names())}")
    allowed = settings_of(name)
    for key, value in settings.items():
        if key not in allowed:
            raise BrokerError(
                f"{name} takes no setting {key!r}", f"it takes: {', '.join(allowed) or 'none'} (GET /v1/mechanisms)"
            )
        wanted = allowed[key][0]
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.inf
        fits = {
            "boolean": isinstance(value, bool),
            "integer": abs(number) <= 1e12 and number == int(number),
            "number": abs(number) <= 1e12,
        }
        if not fits[wanted]:
            raise BrokerError(f"{name}: {key} is {value!r}", f"give a {wanted}")
