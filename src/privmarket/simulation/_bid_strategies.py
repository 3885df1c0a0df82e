"""How the clients of a simulated run report: truthfully, by a solved game, or by what has paid so far.

A way of reporting knows what the clients know: their own valuations, what is left of their wallets, and the records
of the rounds so far, in which each reads its own sales and pay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array
from privmarket.market._distributions import Distribution, IndependentDistribution
from privmarket.market._menus import POSTED_PRICE
from privmarket.meanfield import Grid, MenuMarket, Problem, Result, solve
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._wallet import Wallets
from privmarket.rounds import MICRO, RoundRecord
from privmarket.simulation._config import FederationConfig

Strategy = Callable[[Array, Array, float], Array]
"""(valuation, remaining budget, round) ↦ reported valuation, arrays (clients,); a solved game gives one."""

FACTORS = (0.8, 1.0, 1.1, 1.25, 1.5, 2.0)
"""What learning bidders try: their valuation times one of these."""
_EXPLORING = 8  # the stream of random numbers that decides who tries what
_FIRST_SHARE, _LEAST_SHARE = 0.5, 0.05  # how often a client tries a factor at random, at first and at the end
_TRUTH = FACTORS.index(1.0)
_GRID = Grid(32, 32, 100)
_SALE_IN_SHARES = 3.0  # the game lets a client sell up to three even shares of its budget in a round


class Bidding(Protocol):
    """How the clients of a run decide what to report; `Fixed` and `Learning` are the two kinds."""

    def reports(self, valuation: Array, left: Array, number: int, past: Sequence[RoundRecord]) -> Array:
        """(clients,) what each client says its valuation is in round `number`, given all rounds before it.

        Args:
            valuation: (clients,) true valuations; left: (clients,) what wallets have left, infinity without one.
        """


class Fixed:
    """Reports by a function of (valuation, what is left, round) that learns nothing."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def reports(self, valuation: Array, left: Array, number: int, past: Sequence[RoundRecord]) -> Array:
        """The reports that the function gives for these valuations, wallets and this round, (clients,)."""
        return self.strategy(valuation, left, float(number))


class Learning:
    """Every client tries factors on its valuation and mostly uses the one that brought most surplus so far.

    A client that does not know the rule can do no better than to try. It starts with the truth; in round t it tries
    a factor at random with probability ½/√(t + 1), at least 0.05; otherwise it uses the factor with the largest
    mean surplus p − v·ε. Valuations are taken to be persistent. What it tries follows from seed and round, and what
    it has learned from the records, so that a resumed run goes on as it would have.
    """

    def __init__(self, names: Sequence[str], seed: int) -> None:
        self.clients = len(names)
        self.seed = seed
        self._place = {name: i for i, name in enumerate(names)}
        self._gain = np.zeros((len(FACTORS), self.clients))
        self._tries = np.zeros((len(FACTORS), self.clients))
        self._learned = 0

    def reports(self, valuation: Array, left: Array, number: int, past: Sequence[RoundRecord]) -> Array:
        """Each client's valuation times the factor that it tries in this round, (clients,)."""
        for record in past[self._learned :]:
            self._learn(valuation, record)
        asked: Array = valuation * np.array(FACTORS)[self.choices(number)]
        return asked

    def choices(self, number: int) -> np.ndarray:
        """(clients,) which factor each client uses in round `number`, after all rounds before it."""
        rng = np.random.default_rng([self.seed, _EXPLORING, number])
        tries = rng.random(self.clients) < max(_LEAST_SHARE, _FIRST_SHARE / (number + 1) ** 0.5)
        mean = np.where(self._tries > 0, self._gain / np.maximum(self._tries, 1), 0.0)
        # Ties go to the truth: a client that never gained by another report has no reason for one.
        best = np.where(mean[_TRUTH] >= mean.max(axis=0) * (1 - 1e-9), _TRUTH, mean.argmax(axis=0))
        if number == 0:
            return best
        return np.where(tries, rng.integers(len(FACTORS), size=self.clients), best)

    def _learn(self, valuation: Array, record: RoundRecord) -> None:
        """Books each client's surplus of a round to the factor that it used there."""
        used, surplus = self.choices(record.number), np.zeros(self.clients)
        for client, epsilon in record.sold_epsilon.items():
            place = self._place[client]
            surplus[place] -= valuation[place] * epsilon
        for client, paid in record.paid_micro.items():
            surplus[self._place[client]] += paid / MICRO
        everyone = np.arange(self.clients)
        self._gain[used, everyone] += surplus
        self._tries[used, everyone] += 1
        self._learned += 1


def bidding_of(
    config: FederationConfig,
    names: Sequence[str],
    law: Distribution,
    family: ReleaseFamily,
    strategy: Strategy | None,
) -> Bidding | None:
    """The way of reporting that a run asks for, None for the truth; a `strategy` given in code goes first.

    Raises:
        ConfigurationError: `equilibrium` without a wallet, or with a law that has no valuations of its own.
    """
    if strategy is not None:
        return Fixed(strategy)
    if config.strategy == "learning":
        return Learning(names, config.seed)
    if config.strategy == "equilibrium":
        return Fixed(_equilibrium(config, law, family))
    return None


def _equilibrium(config: FederationConfig, law: Distribution, family: ReleaseFamily) -> Strategy:
    """The bid function of the mean-field game that fits the run: its horizon, money and lifetime ε.

    The game spends budget in proportion to ε, a wallet by a privacy measure. The two are tied where it matters: a
    client's budget in the game is what it can sell in all if it sells evenly over the rounds.
    """
    if config.wallet is None or not isinstance(law, IndependentDistribution):
        raise ConfigurationError(
            f"strategy 'equilibrium' with wallet {config.wallet} and scenario {config.scenario!r}",
            "looking ahead needs a lifetime limit: give --wallet, and uniform, bimodal or lognormal as scenario",
        )
    wallets = Wallets(np.full(1, config.wallet), config.delta)
    even = float(wallets.affordable(family, law.epsilon_max, config.rounds)[0])
    lifetime, wallet = even * config.rounds, config.wallet
    game = Problem.from_law(
        IndependentDistribution(law.name, law.valuation, lambda u: np.full(np.shape(u), lifetime), lifetime),
        budget_per_client=config.budget_per_round / config.clients,
        horizon=float(config.rounds),
        market=MenuMarket(POSTED_PRICE, sale_cap=_SALE_IN_SHARES * even),
        reversion=0.0,
        relative_volatility=0.0 if config.types == "persistent" else 1.0,
    )
    solved = solve(game, grid=_GRID, tolerance=1e-4)
    if solved.result is not Result.CONVERGED:
        raise ConfigurationError(
            f"the clients' game has no solution here: {solved.result.value}",
            "change budget, wallet or rounds, or report truthfully",
        )
    bid = solved.strategy()
    return lambda valuation, left, number: bid(valuation, left / wallet * lifetime, number)
