"""The Nash gap: what one of N clients gains by leaving the solved strategy in the finite game.

Two bounds, because two kinds of deviations are meant by "best response":

- *own-state*: the best strategy that looks at the client's own state and the time, against the law of what the
  others do. This is the ε of an ε-Nash equilibrium in Definition (eps-nash) of [Sun2026]. Two estimates: the
  best strategy against half of the runs, scored on the other half (too low by what fitting noise costs), and
  the best strategy against all runs, scored on the same (too high by that much; there the prices of
  different rounds count as independent).
- *hindsight*: the best response of a client who knows in advance everything the others will do. No strategy
  that learns from prices on the way can gain more.

In both, the client's own chance (start, valuations, lots) is integrated out exactly by dynamic programming, and
what the others do later is held fixed. `search` holds nothing fixed: it plays the whole game again with one
client shading its bid otherwise, and so also sees what moving the others' budgets would bring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array
from privmarket.market._mechanism import Mechanism
from privmarket.meanfield._finite_game import Deviation, FiniteGame
from privmarket.meanfield._offered import MenuPath, TabulatedMarket, average
from privmarket.meanfield._solver import Equilibrium

Progress = Callable[[int, int], None]
Met = MenuPath | TabulatedMarket


@dataclass(frozen=True, eq=False)
class Gap:
    """Measured at one number of clients; arrays are (seeds,) and over the whole game.

    Attributes:
        clients: N.
        hindsight: gain of the best response that knows the others' play.
        own_state: gain, on this run, of the own-state best response fitted on the other half of the runs.
        own_state_limit: gain of the own-state best response to all these runs against their mixture, too high by
            what it profits from having seen them. A number.
        price_error: |utility of the solved strategy here − in the mean-field game|: what the proof of
            Theorem (mfg_approx) bounds.
        mean_payment: mean payment per client.
    """

    clients: int
    hindsight: Array
    own_state: Array
    own_state_limit: float
    price_error: Array
    mean_payment: Array


def measure(
    equilibrium: Equilibrium,
    mechanism: Mechanism,
    clients: int,
    *,
    seeds: Sequence[int],
    progress: Progress | None = None,
) -> Gap:
    """The gap with N clients in the finite game that `mechanism` clears, one run per seed."""
    if len(seeds) < 2:
        raise ConfigurationError(f"{len(seeds)} seed given", "use at least 2 seeds, about 20 for a slope")
    finite = FiniteGame(equilibrium, mechanism)
    met: list[Met] = []
    payments = []
    for k, seed in enumerate(seeds):
        run = finite.run(clients, np.random.default_rng([seed, clients]))
        assert run.facing is not None
        met.append(run.facing)
        payments.append(run.mean_payment)
        if progress is not None:
            progress(k + 1, len(seeds))
    played = np.array([_earned(equilibrium, equilibrium.shadow_price, market) for market in met])
    mixture = average(met)
    best = np.array([_best(equilibrium, market) for market in met])
    return Gap(
        clients,
        hindsight=best - played,
        own_state=_own_state(equilibrium, met) - played,
        own_state_limit=_best(equilibrium, mixture) - _earned(equilibrium, equilibrium.shadow_price, mixture),
        price_error=np.abs(played - equilibrium.flow.earned),
        mean_payment=np.array(payments),
    )


SHADINGS: tuple[tuple[float, float], ...] = (
    (0.0, 0.0),
    (0.5, 0.0),
    (0.8, 0.0),
    (1.2, 0.0),
    (1.5, 0.0),
    (2.0, 0.0),
    (1.0, -0.05),
    (1.0, -0.02),
    (1.0, 0.02),
    (1.0, 0.05),
)
"""(a, d): report valuation + a × shadow price + d. (1, 0) is the solved strategy, (0, 0) is truth."""


@dataclass(frozen=True, eq=False)
class Searched:
    """Gains of shadings in the finite game with nothing held fixed, on the same chance as the solved strategy.

    Attributes:
        clients: N.
        shadings: (shadings,) pairs (a, d).
        gain: (shadings, seeds) over the solved strategy, over the whole game.
    """

    clients: int
    shadings: tuple[tuple[float, float], ...]
    gain: Array

    @property
    def best(self) -> tuple[float, float]:
        """Mean and standard error of the best shading: chosen on half of the seeds, scored on the other half."""
        scored = np.empty(self.gain.shape[1])
        for fit, score in ((0, 1), (1, 0)):
            chosen = int(self.gain[:, fit::2].mean(axis=1).argmax())
            scored[score::2] = self.gain[chosen, score::2]
        return float(scored.mean()), float(scored.std(ddof=1) / np.sqrt(scored.size))


def search(
    equilibrium: Equilibrium,
    mechanism: Mechanism,
    clients: int,
    *,
    seeds: Sequence[int],
    shadings: tuple[tuple[float, float], ...] = SHADINGS,
) -> Searched:
    """Client 0 tries shadings in the whole game; the others respond to the prices it moves."""
    finite = FiniteGame(equilibrium, mechanism)

    def gains(deviation: Deviation | None) -> Array:
        draws = (np.random.default_rng([seed, clients]) for seed in seeds)
        return np.array([finite.run(clients, rng, deviation=deviation, record=False).own_gain for rng in draws])

    solved = gains(None)
    rows = [gains(partial(_shaded, share=a, extra=d)) for a, d in shadings]
    return Searched(clients, shadings, np.stack(rows) - solved)


def _shaded(valuation: Array, shadow: Array, *, share: float, extra: float) -> Array:
    return valuation + share * shadow + extra


def _steps(equilibrium: Equilibrium) -> range:
    return range(equilibrium.grid.time_steps)


def _earned(equilibrium: Equilibrium, shadow: Array, market: Met) -> float:
    return equilibrium.game.flow(shadow, _steps(equilibrium), market).earned


def _best(equilibrium: Equilibrium, market: Met) -> float:
    value, _ = equilibrium.game.best_response(_steps(equilibrium), market)
    return equilibrium.game.starting_value(value)


def _own_state(equilibrium: Equilibrium, met: list[Met]) -> Array:
    """(runs,) what the strategy fitted on the other half earns in each run."""
    earned = np.empty(len(met))
    halves = (slice(0, None, 2), slice(1, None, 2))
    for fit, score in (halves, halves[::-1]):
        law = average(met[fit])
        _, shadow = equilibrium.game.best_response(_steps(equilibrium), law)
        earned[score] = [_earned(equilibrium, shadow, market) for market in met[score]]
    return earned
