"""What the solved strategy loses when there are N clients and not infinitely many.

`FiniteGame` plays the game with N clients. They hold states on the mesh and each time step is a round: clients with
budget left report valuation + shadow price of the solved strategy, a mechanism clears the round, a client that sold
ε loses one block Δr with probability ε/Δr, and valuations move by the mesh's own transition. With N → ∞ this is
exactly the discrete game that was solved, so what is measured is the effect of N and not of the grid.

`nash_gap` measures what one of the N clients gains by leaving the strategy. Two numbers, because two kinds of
deviations are meant by "best response":

- *own state*: the best strategy that looks at the client's own state and the time, against the distribution of what
  the others do. This is the ε of an ε-Nash equilibrium in Definition (eps-nash) of [Sun2026]. Two estimates: the
  best strategy against half of the runs, scored on the other half (too low by what fitting noise costs), and the
  best strategy against all runs, scored on the same (too high by that much; there the prices of different rounds
  count as independent).
- *hindsight*: the best response of a client who knows in advance everything the others will do. No strategy that
  learns from prices on the way can gain more.

In both, the client's own chance (start, valuations, lots) is integrated out exactly by dynamic programming, and
what the others do later is held fixed. `FiniteGame.run(deviation=…)` holds nothing fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from privmarket._lazy import late
from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array, Bids
from privmarket.market._facts import MarketFacts
from privmarket.market._mechanism import Mechanism
from privmarket.market._menus import MenuCurve
from privmarket.market._randomised import RandomisedMechanism
from privmarket.meanfield._equilibrium import Equilibrium
from privmarket.meanfield._markets import (
    MenuMarket,
    MenuPath,
    RepresentativeMarket,
    TabulatedMarket,
    average,
)
from privmarket.meanfield._schemes import ExplicitUpwind
from privmarket.mechanisms._mean_field_menu import MeanFieldMenu
from privmarket.mechanisms._registry import Rule, resolve

if TYPE_CHECKING:
    import pandas
else:
    pandas = late("pandas")

Progress = Callable[[int, int], None]
Met = MenuPath | TabulatedMarket


@dataclass(frozen=True, eq=False)
class NashGap:
    """What one of N clients gains by leaving the solved strategy; arrays are (runs,), money over the whole game.

    Attributes:
        clients: N.
        hindsight: gain of the best response that knows the others' play, run by run.
        own_state: gain, in each run, of the own-state best response fitted on the other half of the runs.
        own_state_limit: gain of the own-state best response to all runs against their mixture, too high by what it
            profits from having seen them. A number.
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

    def __repr__(self) -> str:
        gains = self.relative()
        hindsight = gains["hindsight"]
        own = gains["own_state"]
        limit = self.own_state_limit / float(self.mean_payment.mean())
        return (
            f"NashGap({self.clients} clients, {self.hindsight.size} runs; of the mean payment, a deviator who "
            f"foresees the others gains {hindsight[0]:.1e} ± {hindsight[1]:.0e}, one who sees its own state "
            f"{own[0]:.1e} ± {own[1]:.0e}, upper estimate {limit:.1e})"
        )

    def relative(self) -> dict[str, tuple[float, float]]:
        """Mean and standard error over the runs of each measure, as shares of the run's mean payment."""
        found = {}
        for name in ("hindsight", "own_state", "price_error"):
            share = getattr(self, name) / self.mean_payment
            found[name] = float(share.mean()), float(share.std(ddof=1) / np.sqrt(share.size))
        return found

    def to_frame(self) -> pandas.DataFrame:
        """One row per run with every measure, indexed by clients and run. Needs pandas."""
        runs = self.hindsight.size
        columns = {
            "hindsight": self.hindsight,
            "own_state": self.own_state,
            "price_error": self.price_error,
            "mean_payment": self.mean_payment,
        }
        index = pandas.MultiIndex.from_product([[self.clients], range(runs)], names=["clients", "run"])
        return pandas.DataFrame(columns, index=index)


def nash_gap(
    equilibrium: Equilibrium,
    clients: int,
    mechanism: Rule | None = None,
    *,
    seeds: int | Sequence[int] = 20,
    progress: Progress | None = None,
) -> NashGap:
    """What one of N clients gains by leaving the solved strategy while the others play it.

    Clients gain payment − valuation × sold in a round, as in every `MenuMarket`. A market of your own in which
    selling costs more than that has no finite game here and is refused.

    Args:
        equilibrium: solved with the explicit scheme.
        clients: N, 2 or more.
        mechanism: clears each round: a name, a `Mechanism` (class or object), a function, or whatever else
            `mechanisms.resolve` takes; it is told the limit on offers. Unless given, the exact mean-field menu with
            the curve of the solved market, whose limit for many clients is that market.
        seeds: how many independent runs, or their seeds; 2 or more.
        progress: called with the number of runs done and of all runs.

    Raises:
        ConfigurationError: for an implicit scheme, a rule that throws coins, a market without a menu where no
            mechanism is given, or one in which clients gain anything but payment − valuation × sold.
    """
    runs = range(seeds) if isinstance(seeds, int) else seeds
    if len(runs) < 2:
        raise ConfigurationError(
            f"{len(runs)} seed{'s' * (len(runs) != 1)} given", "use at least 2 seeds, about 20 for a slope"
        )
    finite = FiniteGame(equilibrium, mechanism)
    met: list[Met] = []
    payments = []
    for k, seed in enumerate(runs):
        run = finite.run(clients, np.random.default_rng([seed, clients]))
        assert run.facing is not None
        met.append(run.facing)
        payments.append(run.mean_payment)
        if progress is not None:
            progress(k + 1, len(runs))
    played = np.array([_earned(equilibrium, equilibrium.shadow_price, market) for market in met])
    mixture = average(met)
    best = np.array([_best(equilibrium, market) for market in met])
    return NashGap(
        clients,
        hindsight=best - played,
        own_state=_own_state(equilibrium, met) - played,
        own_state_limit=_best(equilibrium, mixture) - _earned(equilibrium, equilibrium.shadow_price, mixture),
        price_error=np.abs(played - equilibrium.flow.earned),
        mean_payment=np.array(payments),
    )


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
        others = average(met[fit])
        _, shadow = equilibrium.game.best_response(_steps(equilibrium), others)
        earned[score] = [_earned(equilibrium, shadow, market) for market in met[score]]
    return earned


@runtime_checkable
class PriceTaking(Protocol):
    """A rule in which the price level that a client faces does not depend on its own report."""

    curve: MenuCurve

    def price_levels(self, bids: Bids, budget: float) -> Array:
        """(clients,) the price level that each client faces."""


@runtime_checkable
class OffersReports(Protocol):
    """A rule that tells quickly what each possible report of one client would bring."""

    def offers(self, others: Bids, epsilon: float, budget: float, reports: Array) -> tuple[Array, Array]:
        """(reports,) the ε that one client would sell at each report, and its payment."""


@dataclass(frozen=True, eq=False)
class FiniteRun:
    """One run of the finite game.

    Attributes:
        facing: the market that client 0 met, step by step, given what all others did; None if not recorded.
        mean_payment: mean payment per client over the whole game.
        spend: (steps,) mean payment per client and round.
        own_gain: what client 0 itself gained in this run: payments − valuation × sold.
    """

    facing: MenuPath | TabulatedMarket | None
    mean_payment: float
    spend: Array
    own_gain: float


Deviation = Callable[[Array, Array], Array]
"""(valuation, shadow price) ↦ report of the client that leaves the strategy; arrays (1,)."""


class FiniteGame:
    """N clients who all play a solved strategy in a market that a mechanism clears.

    Args:
        equilibrium: solved with the explicit scheme, whose steps are rounds of a finite game.
        mechanism: clears each round, anything that `mechanisms.resolve` takes; it sees ε caps of sale_cap × step.
            Unless given, the exact mean-field menu with the curve of the solved market.
        reports: how many reports are tabulated for rules without a closed form; 1025 for rules that answer many
            at once, 257 for others. The table's spacing h leaves a floor of order h² under a measured gap.
    """

    def __init__(
        self, equilibrium: Equilibrium, mechanism: Rule | None = None, *, reports: int | None = None
    ) -> None:
        if not isinstance(equilibrium.scheme, ExplicitUpwind):
            raise ConfigurationError(
                f"the {equilibrium.scheme.name} scheme has no finite game", "solve with the explicit scheme"
            )
        market = equilibrium.problem.market
        mesh = equilibrium.game.mesh
        if not isinstance(market, MenuMarket):
            _check_gains(market, equilibrium.problem.price_ceiling, mesh.valuation_width)
        most = market.sale_cap if isinstance(market, MenuMarket) else market.most_sold
        self.cap = most * mesh.step
        if mechanism is None:
            if not isinstance(market, MenuMarket):
                raise ConfigurationError(
                    f"no rule is known whose limit for many clients is a {type(market).__name__}",
                    "give the mechanism that clears the rounds, or solve with a MenuMarket",
                )
            mechanism = MeanFieldMenu(curve=market.curve, epsilon_max=self.cap)
        rule = resolve(mechanism, market=MarketFacts(epsilon_max=self.cap))
        if isinstance(rule, RandomisedMechanism):
            raise ConfigurationError(
                f"{rule.name} throws coins", "fix them: privmarket.market.FixedCoins(rule, seed)"
            )
        self.equilibrium = equilibrium
        self.mechanism: Mechanism = rule
        self.game = equilibrium.game
        count = reports or (1025 if isinstance(rule, OffersReports) else 257)
        self.reports = np.linspace(0.0, 1.2 * equilibrium.problem.price_ceiling, count)
        # Cumulative transition probabilities of each kind, (kinds, from, to).
        identity = np.eye(mesh.grid.valuation_cells)
        self._transition = np.stack([np.cumsum(p.expect(identity), axis=1) for p in self.game.transitions])

    def run(
        self, clients: int, rng: np.random.Generator, *, deviation: Deviation | None = None, record: bool = True
    ) -> FiniteRun:
        """One game of `clients` clients drawn from the starting mass.

        Args:
            deviation: how client 0 reports instead, (valuation, shadow price) ↦ report; the others and all
                later rounds are affected by it.
            record: whether to keep what client 0 could have met; costs about as much as the game.
        """
        if clients < 2:
            raise ConfigurationError(f"a game of {clients} clients", "use at least 2 clients")
        mesh = self.game.mesh
        steps = self.game.grid.time_steps
        kind, cell, node = self._draw(clients, rng)
        budget = self.equilibrium.problem.budget_per_client * mesh.step * clients
        facing = _Recorder(self, budget)
        spend = np.zeros(steps)
        own_gain = 0.0
        for n in range(steps):
            # Drawn for all, sellers or not, so that runs with one seed stay comparable.
            taste, lots = rng.random((2, clients))
            valuation = mesh.valuation[cell] + (taste - 0.5) * mesh.valuation_width
            shadow = self.equilibrium.shadow_price[n, kind, cell, node]
            report = np.maximum(valuation + shadow, 0.0)
            if deviation is not None:
                report[:1] = np.maximum(deviation(valuation[:1], shadow[:1]), 0.0)
            active = np.flatnonzero(node > 0)
            if record:
                facing.record(report[active[active != 0]])
            if active.size:
                outcome = self.mechanism.run(Bids(report[active], np.full(active.size, self.cap)), budget)
                spend[n] = outcome.payment.sum() / clients / mesh.step
                if active[0] == 0:
                    own_gain += float(outcome.payment[0] - valuation[0] * outcome.epsilon[0])
                node[active] -= lots[active] < outcome.epsilon / mesh.budget_width
            cell = self._move(kind, cell, rng)
        market = facing.market() if record else None
        return FiniteRun(market, float(spend.sum() * mesh.step), spend, own_gain)

    def offer(self, others: Bids | None, budget: float) -> float | tuple[Array, Array]:
        """What client 0 meets in one round: a price level, or what each tabulated report brings."""
        if isinstance(self.mechanism, PriceTaking):
            probe = _with_probe(others, np.zeros(1), self.cap)
            return float(self.mechanism.price_levels(probe[0], budget)[0])
        if isinstance(self.mechanism, OffersReports) and others is not None:
            return self.mechanism.offers(others, self.cap, budget, self.reports)
        outcome = self.mechanism.run(_with_probe(others, self.reports, self.cap), budget)
        return outcome.epsilon[:, 0], outcome.payment[:, 0]

    def _draw(self, clients: int, rng: np.random.Generator) -> tuple[NDArray[np.intp], ...]:
        mass = self.game.initial_mass
        flat = rng.choice(mass.size, size=clients, p=mass.ravel())
        kind, cell, node = np.unravel_index(flat, mass.shape)
        return kind.astype(np.intp), cell.astype(np.intp), node.astype(np.intp)

    def _move(self, kind: NDArray[np.intp], cell: NDArray[np.intp], rng: np.random.Generator) -> NDArray[np.intp]:
        rows = self._transition[kind, cell]
        draw = rng.random((cell.size, 1))
        return np.asarray(np.minimum((rows < draw).sum(axis=1), rows.shape[1] - 1), dtype=np.intp)


def _check_gains(market: RepresentativeMarket, ceiling: float, width: float) -> None:
    """Refuses a market in which the surplus is not spend − cost × sold, looked at in narrow cells.

    In a finite game a client is paid what the buyer spends and loses its valuation of what it sells, nothing else.
    """
    costs = np.linspace(0.0, 1.2 * ceiling, 25)
    narrow = 1e-3 * width
    for level in np.linspace(0.0, ceiling, 9):
        spend = market.spend(costs, level, narrow)
        gain = spend - costs * market.sold(costs, level, narrow)
        off = np.abs(gain - market.surplus(costs, level, narrow))
        if off.max() > 1e-3 * np.abs(spend).max():
            k = int(off.argmax())
            raise ConfigurationError(
                f"{type(market).__name__} has no finite game: at the level {level:.4g} a client with cost "
                f"{costs[k]:.4g} gains {off[k]:.3g} more or less than what is spent on it − cost × sold",
                "nash_gap needs a market in which selling costs the valuation and nothing else",
            )


class _Recorder:
    """Collects what client 0 meets, in whichever form the rule gives it."""

    def __init__(self, game: FiniteGame, budget: float) -> None:
        self._game = game
        self._budget = budget
        self._rows = list[float | tuple[Array, Array]]()

    def record(self, others: Array) -> None:
        bids = Bids(others, np.full(others.size, self._game.cap)) if others.size else None
        self._rows.append(self._game.offer(bids, self._budget))

    def market(self) -> MenuPath | TabulatedMarket:
        step = self._game.game.mesh.step
        mechanism = self._game.mechanism
        if isinstance(mechanism, PriceTaking):
            menu = MenuMarket(mechanism.curve, self._game.cap / step)
            return MenuPath(menu, np.array(self._rows, dtype=np.float64))
        sold, paid = np.moveaxis(np.array(self._rows), 0, 1)
        return TabulatedMarket(self._game.reports, sold / step, paid / step)


def _with_probe(others: Bids | None, reports: Array, cap: float) -> Bids:
    """(reports, clients): client 0 sends each report while the others keep theirs."""
    rest = np.empty(0) if others is None else others.valuation
    rows = np.concatenate([reports[:, None], np.broadcast_to(rest, (reports.size, rest.size))], axis=1)
    return Bids(rows, np.full(rows.shape, cap))
