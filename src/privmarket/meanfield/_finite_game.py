"""The game with finitely many clients whose limit is the discrete mean-field game.

N clients hold states on the mesh. Each time step is a round: clients with budget left report valuation + shadow
price of the solved strategy, a mechanism clears the round, a client that sold ε loses one block Δr with
probability ε/Δr, valuations move by the mesh's own transition law. With N → ∞ this is exactly the discrete game
that was solved, so what is measured is the effect of N and not of the grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array, Bids
from privmarket.market._mechanism import Mechanism
from privmarket.market._menus import MenuCurve
from privmarket.meanfield._offered import MenuPath, TabulatedMarket
from privmarket.meanfield._representative import MenuMarket
from privmarket.meanfield._schemes import ExplicitUpwind
from privmarket.meanfield._solver import Equilibrium


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
class Realised:
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


class FiniteGame:
    """N clients who all play a solved strategy in a market that a mechanism clears.

    Args:
        equilibrium: solved with the explicit scheme, whose steps are rounds of a finite game.
        mechanism: clears each round; it sees ε caps of sale_cap × step.
        reports: how many reports are tabulated for rules without a closed form; 1025 for rules that answer many
            at once, 257 for others. The table's spacing h leaves a floor of order h² under a measured gap.
    """

    def __init__(self, equilibrium: Equilibrium, mechanism: Mechanism, *, reports: int | None = None) -> None:
        if not isinstance(equilibrium.scheme, ExplicitUpwind):
            raise ConfigurationError(
                f"the {equilibrium.scheme.name} scheme has no finite game", "solve with the explicit scheme"
            )
        market = equilibrium.problem.market
        if not isinstance(market, MenuMarket):
            raise ConfigurationError("only a menu market has a finite game", "solve with a MenuMarket")
        self.equilibrium, self.mechanism = equilibrium, mechanism
        self.game = equilibrium.game
        mesh = self.game.mesh
        self.cap = market.sale_cap * mesh.step
        count = reports or (1025 if isinstance(mechanism, OffersReports) else 257)
        self.reports = np.linspace(0.0, 1.2 * equilibrium.problem.price_ceiling, count)
        # Cumulative transition law of each kind, (kinds, from, to).
        identity = np.eye(mesh.grid.valuation_cells)
        self._transition = np.stack([np.cumsum(p.expect(identity), axis=1) for p in self.game.processes])

    def run(
        self, clients: int, rng: np.random.Generator, *, deviation: Deviation | None = None, record: bool = True
    ) -> Realised:
        """One game of `clients` clients drawn from the starting mass.

        Args:
            deviation: how client 0 reports instead, (valuation, shadow price) ↦ report; everyone else, and all
                later rounds, feel what it does.
            record: whether to keep what client 0 could have met; costs about as much as the game.
        """
        if clients < 2:
            raise ConfigurationError(f"a game of {clients} clients", "use at least 2 clients")
        mesh, steps = self.game.mesh, self.game.grid.time_steps
        kind, cell, node = self._draw(clients, rng)
        budget = self.equilibrium.problem.budget_per_client * mesh.step * clients
        facing, spend, own_gain = _Recorder(self, budget), np.zeros(steps), 0.0
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
        return Realised(market, float(spend.sum() * mesh.step), spend, own_gain)

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


class _Recorder:
    """Collects what client 0 meets, in whichever form the rule gives it."""

    def __init__(self, game: FiniteGame, budget: float) -> None:
        self._game, self._budget, self._rows = game, budget, list[float | tuple[Array, Array]]()

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
