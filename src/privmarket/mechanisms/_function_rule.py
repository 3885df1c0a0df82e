"""A plain Python function as an auction rule."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from privmarket.errors import ConfigurationError, OutcomeError
from privmarket.market._bids import Array, Bids
from privmarket.market._mechanism import Guarantee, Mechanism
from privmarket.market._outcome import Outcome
from privmarket.market._randomised import RandomisedMechanism

COINS = "rng"  # the argument that takes the coins

RuleFunction = Callable[..., tuple[ArrayLike, ArrayLike] | Outcome]
"""`(bids, budget) -> (epsilon, payment)` for one market: `bids` has shape (clients,), `budget` is a number, and
both answers have shape (clients,). An argument called `rng` takes the coins of a rule that throws some; further
arguments are settings of the rule."""


class FunctionRule(Mechanism):
    """A function of one market, called once per market of a batch.

    Args:
        function: the rule, see `RuleFunction`. Its attribute `guarantees`, where it has one, says what it
            promises; without it the audit still attacks it, but there is no promise to break.
        settings: values for the function's further arguments.
    """

    name: ClassVar[str] = "function"

    def __init__(self, function: RuleFunction, **settings: object) -> None:
        self.function = function
        self.settings = settings
        self.name = getattr(function, "__name__", type(function).__name__)  # type: ignore[misc]
        self.guarantees: tuple[Guarantee, ...] = tuple(getattr(function, "guarantees", ()))

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """Calls the function for each market and puts its answers side by side."""
        epsilon = np.empty(bids.shape)
        payment = np.empty(bids.shape)
        for market in np.ndindex(bids.shape[:-1]):
            answer = self.function(bids[market], float(budget[market][0]), **self.settings)
            outcome = _outcome_of(self.name, answer, bids.clients)
            epsilon[market] = outcome.epsilon
            payment[market] = outcome.payment
        return Outcome(epsilon, payment)


class RandomisedFunctionRule(RandomisedMechanism):
    """A function of one market that takes its coins as the argument `rng`."""

    name: ClassVar[str] = "function with coins"

    def __init__(self, function: RuleFunction, **settings: object) -> None:
        self.function = function
        self.settings = settings
        self.name = getattr(function, "__name__", type(function).__name__)  # type: ignore[misc]
        self.guarantees: tuple[Guarantee, ...] = tuple(getattr(function, "guarantees", ()))

    def clear_with(self, bids: Bids, budget: float, rng: np.random.Generator) -> Outcome:
        """Calls the function with these coins."""
        return _outcome_of(self.name, self.function(bids, budget, rng=rng, **self.settings), bids.clients)


def _outcome_of(name: str, answer: object, clients: int) -> Outcome:
    """What a function answered, as an outcome of one market."""
    if isinstance(answer, Outcome):
        answer = (answer.epsilon, answer.payment)
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise OutcomeError(f"{name} returned {type(answer).__name__}, not a pair", "return (epsilon, payment)")
    outcome = Outcome(answer[0], answer[1])
    if outcome.epsilon.shape != (clients,):
        raise OutcomeError(
            f"{name}: epsilon has shape {outcome.epsilon.shape} where the bids have {(clients,)}",
            "give one number per client",
        )
    return outcome


def function_rule(function: RuleFunction, **settings: object) -> Mechanism:
    """The rule of a function: one that throws coins if it has an argument called `rng`."""
    if COINS in signature(function).parameters:
        return RandomisedFunctionRule(function, **settings)
    return FunctionRule(function, **settings)


def function_settings(function: RuleFunction) -> dict[str, Parameter]:
    """The function's arguments after bids and budget, by name.

    Raises:
        ConfigurationError: the function cannot be called with (bids, budget).
    """
    name = getattr(function, "__name__", type(function).__name__)
    parameters = list(signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2 and not any(p.kind is Parameter.VAR_POSITIONAL for p in parameters):
        raise ConfigurationError(
            f"{name}{signature(function)} is no auction rule", "give a function of (bids, budget)"
        )
    fixed = [*positional[:2], *(p for p in parameters if p.name == COINS)]
    return {p.name: p for p in parameters if p not in fixed and p.kind is not Parameter.VAR_POSITIONAL}
