"""Rules that throw coins: how they are run, and what truthfulness means for them.

A randomised rule takes its coins as an argument, so that anybody can throw the same ones again. With the coins
fixed it is an ordinary rule. *Universally* truthful means: truthful under every throw, which is what the audit's
attacks on `FixedCoins` test. Truthful *in expectation* is weaker: lies may gain under some throws, but not on
average.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from privmarket.errors import ConfigurationError, OutcomeError
from privmarket.market._attacks import Attack, Regret, utility_of
from privmarket.market._bids import Array, Bids
from privmarket.market._mechanism import Mechanism, require_arguments
from privmarket.market._outcome import Outcome


class RandomisedMechanism(Mechanism):
    """A reverse auction that throws coins.

    Subclasses set `name`, implement `clear_with` in place of `clear`, and draw all chance from its `rng`.
    `run(bids, budget, rng)` clears with fresh coins; `FixedCoins(rule, seed)` is the deterministic rule of one
    throw.
    """

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        require_arguments(cls, "clear_with", "bids", "budget", "rng")

    def run(self, bids: Bids, budget: ArrayLike, rng: np.random.Generator | None = None) -> Outcome:
        """Clears one auction per leading index of `bids`, with coins from `rng`."""
        if rng is None:
            raise ConfigurationError(
                f"{self.name} throws coins", "give them: run(bids, budget, np.random.default_rng(seed))"
            )
        return FixedCoins(self, int(rng.integers(2**63))).run(bids, budget)

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """Never called: a rule with coins is cleared through `clear_with`."""
        raise NotImplementedError

    @abstractmethod
    def clear_with(self, bids: Bids, budget: float, rng: np.random.Generator) -> Outcome:
        """The rule itself on one market. Write this method; call `run`.

        Unlike `Mechanism.clear`, which gets many markets with budgets (..., 1), it gets one market at a time, as a
        function does: the coins are thrown anew for each.

        Args:
            bids: valid offers, every field (clients,).
            budget: the money of this market, a number.
            rng: all chance comes from it, so that the same coins can be thrown again.

        Returns:
            An `Outcome` with `epsilon` and `payment` of shape (clients,).
        """


class FixedCoins(Mechanism):
    """A randomised rule under one throw of its coins: the same in every market and for every report."""

    name: ClassVar[str] = "fixed coins"

    def __init__(self, rule: RandomisedMechanism, seed: int) -> None:
        self.rule = rule
        self.seed = seed
        self.name = rule.name  # type: ignore[misc]
        self.guarantees = rule.guarantees

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """Clears each market with the same coins."""
        epsilon = np.empty(bids.shape)
        payment = np.empty(bids.shape)
        for market in np.ndindex(bids.shape[:-1]):
            coins = np.random.default_rng(self.seed)
            outcome = self.rule.clear_with(bids[market] if market else bids, float(budget[market][0]), coins)
            if not isinstance(outcome, Outcome):
                raise OutcomeError(
                    f"{self.name}: clear_with returned {type(outcome).__name__}, not an Outcome",
                    "return privmarket.Outcome(epsilon, payment)",
                )
            epsilon[market] = outcome.epsilon
            payment[market] = outcome.payment
        return Outcome(epsilon, payment)


class MeanOutcome(Mechanism):
    """The mean of a randomised rule over several throws: utilities are linear, so lies gain here what they gain on
    average over these throws."""

    name: ClassVar[str] = "mean outcome"

    def __init__(self, rule: RandomisedMechanism, seeds: range) -> None:
        self.throws = [FixedCoins(rule, seed) for seed in seeds]
        self.name = rule.name  # type: ignore[misc]

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """The mean of ε and of payments over the throws."""
        found = [throw.clear(bids, budget) for throw in self.throws]
        return Outcome(
            np.mean([one.epsilon for one in found], axis=0), np.mean([one.payment for one in found], axis=0)
        )


@dataclass(frozen=True)
class ExpectedGain:
    """What the best misreport found gains on average over coins, for the client that gains most.

    Attributes:
        gain: mean over fresh coins, in money; it may be negative.
        standard_error: of that mean.
        coins: fresh throws that it was measured with, as many as the misreport was searched with.
    """

    gain: float
    standard_error: float
    coins: int


def gain_in_expectation(
    rule: RandomisedMechanism, types: Bids, budget: float, attack: Attack, coins: int, seed: int = 0
) -> ExpectedGain:
    """Searches misreports against the mean outcome, then measures the best ones on coins that the search never saw.

    Args:
        types: one market, (clients,).
        coins: throws for the search, and as many for the measurement.
    """
    lies = best_on_average(rule, types, budget, attack, coins, seed)
    return measured_gain(rule, types, budget, lies, coins, seed)


def best_on_average(
    rule: RandomisedMechanism, types: Bids, budget: float, attack: Attack, coins: int, seed: int
) -> Regret:
    """The misreports that gain most against the mean outcome of so many throws."""
    search = MeanOutcome(rule, range(seed, seed + coins))
    return attack(search, types, budget, np.random.default_rng(seed))


def measured_gain(
    rule: RandomisedMechanism, types: Bids, budget: float, regret: Regret, coins: int, seed: int
) -> ExpectedGain:
    """What the best of these misreports gains on average over the `coins` throws after those of the search."""
    reports = types.replace(valuation=regret.valuation, epsilon=regret.epsilon)
    gains = []
    for throw in range(seed + coins, seed + 2 * coins):
        fixed = FixedCoins(rule, throw)
        truth = fixed.run(types, budget).utility(types)
        gains.append(utility_of(fixed, types, reports, budget) - truth)
    measured = np.stack(gains)
    client = int(np.argmax(regret.gain))
    error = float(measured[:, client].std(ddof=1) / np.sqrt(coins)) if coins > 1 else float("inf")
    return ExpectedGain(float(measured[:, client].mean()), error, coins)


def gains_by_throw(
    rule: RandomisedMechanism, types: Bids, budget: float, regret: Regret, seeds: range
) -> tuple[FixedCoins, Regret]:
    """What misreports gain under the throw that suits them best.

    A rule that is truthful under every throw gains nobody anything under any of them, so one gain convicts it, with
    no chance of a false alarm, where a mean over throws could be luck.
    """
    reports = types.replace(valuation=regret.valuation, epsilon=regret.epsilon)
    throws = [FixedCoins(rule, seed) for seed in seeds]
    gains = [utility_of(one, types, reports, budget) - one.run(types, budget).utility(types) for one in throws]
    best = int(np.argmax([gain.max() for gain in gains]))
    return throws[best], Regret(np.maximum(gains[best], 0.0), regret.valuation, regret.epsilon)
