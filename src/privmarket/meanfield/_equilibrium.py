"""A solved game: prices, bids, who can still sell, and the bid function as a plain function of arrays."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from privmarket._figures import new_figure, write
from privmarket._files import in_words
from privmarket._lazy import late
from privmarket.errors import ConfigurationError, UnknownNameError
from privmarket.market._bids import Array
from privmarket.meanfield._game import DiscreteGame, Flow
from privmarket.meanfield._grid import Grid, Mesh
from privmarket.meanfield._markets import MenuMarket
from privmarket.meanfield._problem import Problem
from privmarket.meanfield._schemes import BudgetScheme
from privmarket.meanfield._valuations import MeanReverting

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

    from privmarket._figures import Figure
else:
    pandas = late("pandas")


@dataclass(frozen=True, eq=False)
class Surface:
    """Values on the mesh, interpolated linearly in valuation, budget and time, constant beyond its edges.

    Attributes:
        mesh: the mesh.
        values: (times, valuations, budgets); times are the mesh's, as many as there are values.
        budget_offset: where the first budget value sits, in cells above 0: 0 for nodes, −½ for values that
            belong to the cell below their node, such as differences.
    """

    mesh: Mesh
    values: Array
    budget_offset: float = 0.0

    def __call__(self, valuation: ArrayLike, remaining_budget: ArrayLike, time: ArrayLike) -> Array:
        """Values at points, which broadcast against each other.

        One time for all clients, as in a round, is blended once and costs one bilinear interpolation.
        """
        v = _place(valuation, self.mesh.valuation_width, 0.5, self.values.shape[1])
        r = _place(remaining_budget, self.mesh.budget_width, self.budget_offset, self.values.shape[2])
        t = _place(time, self.mesh.step, 0.0, self.values.shape[0])
        if t.ndim == 0:
            n = min(int(t), self.values.shape[0] - 2)
            slice_now: Array = self.values[n] + (t - n) * (self.values[n + 1] - self.values[n])
            return _bilinear(slice_now, v, r)
        n = np.minimum(t.astype(np.intp), self.values.shape[0] - 2)
        flat = self.values.reshape(-1, self.values.shape[2])
        rows = self.values.shape[1]
        early, late = (_bilinear(flat, v, r, first_row=rows * (n + k), rows=rows) for k in (0, 1))
        return np.asarray(early + (t - n) * (late - early))


def _place(coordinate: ArrayLike, width: float, offset: float, points: int) -> Array:
    """Coordinates in units of points, kept inside [0, points − 1]."""
    return np.clip(np.asarray(coordinate, dtype=np.float64) / width - offset, 0.0, points - 1.0)


def _bilinear(
    table: Array, row: Array, column: Array, first_row: Array | int = 0, rows: int | None = None
) -> Array:
    """Bilinear interpolation in `table`, or in the `rows` rows of it that start at `first_row`."""
    rows = table.shape[0] if rows is None else rows
    columns = table.shape[1]
    i = np.minimum(row.astype(np.intp), rows - 2)
    j = np.minimum(column.astype(np.intp), columns - 2)
    corner = (first_row + i) * columns + j
    across = column - j
    flat = table.ravel()
    below = flat[corner]
    below = below + across * (flat[corner + 1] - below)
    corner = corner + columns
    above = flat[corner]
    above = above + across * (flat[corner + 1] - above)
    return np.asarray(below + (row - i) * (above - below))


@dataclass(frozen=True, eq=False)
class BidFunction:
    """The equilibrium report: valuation + shadow price of budget.

    Implements: Eq. (optimal-bid) of [Sun2026], b* = v + ∂_rΦ, the closed form for truthful menus.

    A plain callable, so that a simulation takes it as the clients' strategy without knowing this package.
    """

    shadow_price: Surface

    def __call__(self, valuation: ArrayLike, remaining_budget: ArrayLike, time: ArrayLike) -> Array:
        """Reports for clients; arguments broadcast. Time is counted in rounds from the start.

        A budget without limit (infinity) has no shadow price: the report is the valuation.
        """
        v = np.asarray(valuation, dtype=np.float64)
        r = np.asarray(remaining_budget, dtype=np.float64)
        shadow = self.shadow_price(v, r, time)
        return v + np.where(np.isinf(r), 0.0, shadow)


def load_bid_function(path: Path, kind: int = 0) -> BidFunction:
    """Reads the bid function out of a file that `Equilibrium.save` wrote."""
    try:
        with np.load(path) as saved:
            shadow = saved["shadow_price"]
            limits = saved["limits"]
    except (OSError, KeyError, ValueError) as error:
        raise ConfigurationError(
            f"{path} is not a saved equilibrium: {in_words(error)}",
            "make one with `privmarket equilibrium --out FOLDER`",
        ) from error
    if not 0 <= kind < shadow.shape[1]:
        raise ConfigurationError(f"kind {kind} of {shadow.shape[1]}", f"use 0 … {shadow.shape[1] - 1}")
    mesh = Mesh(Grid(shadow.shape[2], shadow.shape[3], shadow.shape[0]), *(float(x) for x in limits))
    return BidFunction(Surface(mesh, shadow[:, kind], budget_offset=-0.5))


def truthful(valuation: ArrayLike, remaining_budget: ArrayLike, time: ArrayLike) -> Array:
    """The strategy of clients who do not look ahead: report the valuation."""
    report: Array = np.broadcast_arrays(np.asarray(valuation, dtype=np.float64), remaining_budget, time)[0]
    return report.copy()


class Result(Enum):
    """How a solve ended: within the tolerance, at the limit of iterations, or without getting closer."""

    CONVERGED = "converged"
    ITERATION_LIMIT = "iteration-limit"
    STALLED = "stalled"


@dataclass(frozen=True)
class Note:
    """Something about a solution that its reader must know, with the remedy."""

    code: str
    message: str
    remedy: str


@dataclass(frozen=True)
class Statistics:
    """How the solve went.

    Attributes:
        method: how the next prices were chosen.
        iterations: strategies that were tried.
        seconds: wall time.
        price_change: per iteration, the largest |price that came out − price assumed| ÷ mean price.
        elapsed: per iteration, the wall time until then, without what tracking the exploitability took.
        exploitability: per iteration, what the best deviation gains against the strategy of that iteration, over
            the mean payment; empty unless it was tracked.
    """

    method: str
    iterations: int
    seconds: float
    price_change: tuple[float, ...]
    elapsed: tuple[float, ...] = ()
    exploitability: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """A strategy, the flow it makes, and how far it is from a best response to that flow.

    Attributes:
        game: the problem on its mesh.
        result: whether the tolerance was reached; anything but CONVERGED is not a solution.
        value: (steps + 1, kinds, valuations, budgets) Φ against the flow's prices.
        shadow_price: (steps, kinds, valuations, budgets) ∂_rΦ that the population plays.
        flow: mass, prices, spend and sales when everyone plays it.
        exploitability: what one client gains by the best deviation against this flow, over the whole game.
        statistics: iterations, time, history.
        notes: what a reader must know.
    """

    game: DiscreteGame
    result: Result
    value: Array
    shadow_price: Array
    flow: Flow
    exploitability: float
    statistics: Statistics
    notes: tuple[Note, ...] = ()

    def __repr__(self) -> str:
        return (
            f"Equilibrium({self.problem.name!r}, {self.result.value} after {self.statistics.iterations} iterations "
            f"on {self.grid}, prices {self.price.min():.4g} … {self.price.max():.4g}, best deviation gains "
            f"{max(self.relative_exploitability, 0.0):.1e} of the mean payment)"
        )

    @property
    def problem(self) -> Problem:
        """The game that was solved."""
        return self.game.problem

    @property
    def grid(self) -> Grid:
        """The numbers of cells, nodes and steps of the mesh."""
        return self.game.grid

    @property
    def scheme(self) -> BudgetScheme:
        """The finite-difference scheme with which it was solved."""
        return self.game.scheme

    @property
    def price(self) -> Array:
        """(steps,) the price level of each time step."""
        return self.flow.price

    @property
    def mean_payment(self) -> float:
        """The mean over clients of what each is paid in the whole game."""
        return float(self.flow.spend.sum() * self.game.mesh.step)

    @property
    def relative_exploitability(self) -> float:
        """Exploitability ÷ mean payment, both over the whole game."""
        return self.exploitability / self.mean_payment

    def strategy(self, kind: int | str = 0) -> BidFunction:
        """The bid function of a kind of clients: (valuation, remaining_budget, time) → report.

        Args:
            kind: its number or its name, see `Problem.kind_names`.
        """
        return BidFunction(Surface(self.game.mesh, self.shadow_price[:, self._number(kind)], budget_offset=-0.5))

    def value_function(self, kind: int | str = 0) -> Surface:
        """Φ of a kind of clients: (valuation, remaining_budget, time) → worth of the rest of the game.

        Args:
            kind: its number or its name, see `Problem.kind_names`.
        """
        return Surface(self.game.mesh, self.value[:, self._number(kind)])

    def _number(self, kind: int | str) -> int:
        names = self.problem.kind_names
        if isinstance(kind, str):
            if kind not in names:
                raise UnknownNameError.among("kind of clients", kind, names)
            return names.index(kind)
        if not 0 <= kind < len(names):
            raise ConfigurationError(f"kind {kind} of {len(names)}", f"use 0 … {len(names) - 1}, or a name")
        return kind

    def mean_valuation(self) -> Array:
        """(steps,) the mean valuation of clients who have budget left."""
        active = self.flow.mass[:-1, ..., 1:]
        total = (active * self.game.valuation).sum(axis=(1, 2, 3))
        return np.asarray(total / active.sum(axis=(1, 2, 3)))

    def share_with_budget_left(self) -> Array:
        """(steps + 1,) the share of clients who can still sell."""
        return np.asarray(1.0 - self.flow.mass[..., 0].sum(axis=(1, 2)))

    def mean_bid(self) -> Array:
        """(steps,) b_MFG(t), the mean report of clients who have budget left.

        Implements: Eq. (mfg-bid) of [Sun2026].
        Deviation: the mean is over clients who can still sell; the others do not bid.
        """
        active = self.flow.mass[:-1, ..., 1:]
        reports = self.game.valuation + self.shadow_price[..., 1:]
        return np.asarray((active * reports).sum(axis=(1, 2, 3)) / active.sum(axis=(1, 2, 3)))

    def payment(self, report: ArrayLike, time: float) -> Array:
        """p̃(b; μ_t): what a report is paid per round at the price that the flow clears at.

        Implements: Eq. (mf-payment) of [Sun2026] in the limit of many opponents, without resampling.
        """
        market = self.problem.market
        if not isinstance(market, MenuMarket):
            raise ConfigurationError("only a menu market has payments per report", "solve with a MenuMarket")
        n = min(max(int(time / self.game.mesh.step), 0), self.grid.time_steps - 1)
        return market.payment(np.asarray(report, dtype=np.float64), float(self.price[n]))

    def to_frame(self) -> pandas.DataFrame:
        """One row per time step: price, mean bid, mean valuation, ε sold, spend, share that can still sell.

        ε and money are means over all clients, per round. Needs pandas.
        """
        return pandas.DataFrame(
            {
                "price": self.price,
                "mean_bid": self.mean_bid(),
                "mean_valuation": self.mean_valuation(),
                "sold": self.flow.sold,
                "spend": self.flow.spend,
                "share_with_budget_left": self.share_with_budget_left()[:-1],
            },
            index=pandas.Index(self.game.mesh.time[:-1], name="round"),
        )

    def plot(self, path: str | Path | None = None, *, kind: int | str | None = None) -> Figure:
        """Prices and bids, how bids are raised, budgets over time, and how the solver got there, a panel each.

        Args:
            path: where to write the figure too (PNG, PDF, SVG …).
            kind: the number or the name of the kind of clients whose bids are drawn; by default each kind has a
                panel.

        Needs matplotlib.
        """
        kinds = range(self.problem.kinds) if kind is None else [self._number(kind)]
        rows = (len(kinds) + 4) // 2
        made = new_figure(10.0, 3.6 * rows)
        panels = [*made.subplots(rows, 2).ravel()]
        _draw_prices(panels.pop(0), self)
        for one in kinds:
            _draw_shading(made, panels.pop(0), self, one)
        _draw_budgets(panels.pop(0), self)
        _draw_history(panels.pop(0), self)
        for unused in panels:
            unused.remove()
        if path is not None:
            write(made, path)
        return made

    def save(self, path: Path) -> None:
        """Writes value, bids, density, prices and the mesh to a .npz file; `load_bid_function` reads it."""
        mesh = self.game.mesh
        np.savez_compressed(
            path,
            value=self.value,
            shadow_price=self.shadow_price,
            mass=self.flow.mass,
            price=self.price,
            mean_bid=self.mean_bid(),
            kind_mean=self.game.means,
            valuation=mesh.valuation,
            budget=mesh.budget,
            time=mesh.time,
            limits=np.array([mesh.valuation_limit, mesh.budget_limit, mesh.horizon]),
        )

    def summary(self) -> dict[str, object]:
        """What a program wants to know, as plain JSON types."""
        process = self.problem.populations[0].process
        return {
            "result": self.result.value,
            "scenario": self.problem.name,
            "method": self.statistics.method,
            "scheme": self.scheme.name,
            "grid": str(self.grid),
            "kinds": self.problem.kinds,
            "horizon_rounds": self.problem.horizon,
            "budget_per_client": self.problem.budget_per_client,
            "sale_cap": self.problem.market.most_sold,
            "reversion": process.reversion if isinstance(process, MeanReverting) else None,
            "volatility": process.volatility if isinstance(process, MeanReverting) else None,
            "iterations": self.statistics.iterations,
            "seconds": self.statistics.seconds,
            "price_change_history": list(self.statistics.price_change),
            "exploitability": self.exploitability,
            "relative_exploitability": self.relative_exploitability,
            "mean_payment": self.mean_payment,
            "mean_epsilon_sold": float(self.flow.sold.sum() * self.game.mesh.step),
            "mean_gain": self.flow.earned,
            "mass_error": float(np.abs(self.flow.mass.sum(axis=(1, 2, 3)) - 1.0).max()),
            "smallest_density": float(self.flow.mass.min()),
            "time": self.game.mesh.time.tolist(),
            "price": self.price.tolist(),
            "mean_bid": self.mean_bid().tolist(),
            "mean_valuation": self.mean_valuation().tolist(),
            "sold_per_round": self.flow.sold.tolist(),
            "share_with_budget_left": self.share_with_budget_left().tolist(),
            "notes": [asdict(note) for note in self.notes],
        }


_SOLVED = "#D55E00"
_NAIVE = "#0072B2"
_THIRD = "#009E73"


def _draw_prices(axis: Axes, equilibrium: Equilibrium) -> None:
    time = equilibrium.game.mesh.time[:-1]
    naive = equilibrium.game.flow(np.zeros_like(equilibrium.shadow_price))
    axis.plot(time, equilibrium.price, color=_SOLVED, lw=2, label="price, clients look ahead")
    axis.plot(time, naive.price, color=_NAIVE, lw=2, label="price, clients report their valuation")
    axis.plot(time, equilibrium.mean_bid(), color=_SOLVED, ls="--", label="mean bid, looking ahead")
    axis.plot(time, equilibrium.mean_valuation(), color="#777777", ls=":", label="mean valuation, looking ahead")
    axis.set(xlabel="round", ylabel="money per unit of ε", title="Prices and bids")
    # Room above the curves, so that the legend lies on none of them.
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + 0.45 * (high - low))
    axis.legend(fontsize=8, loc="upper left", ncols=1)


def _draw_shading(made: Figure, axis: Axes, equilibrium: Equilibrium, kind: int) -> None:
    mesh = equilibrium.game.mesh
    shadow = equilibrium.shadow_price[0, kind]
    image = axis.pcolormesh(mesh.budget, mesh.valuation, shadow, cmap="viridis", shading="nearest")
    report = mesh.valuation[:, None] + shadow
    price = float(equilibrium.price[0])
    if report.min() < price < report.max():
        axis.contour(mesh.budget, mesh.valuation, report, levels=[price], colors="white")
    of = f", {equilibrium.problem.kind_names[kind]}" if equilibrium.problem.kinds > 1 else ""
    axis.set(
        xlabel="remaining budget (ε)",
        ylabel="valuation",
        title=f"Bid − valuation in the first round{of}\n(below the white line: bids under the price)",
    )
    made.colorbar(image, ax=axis, label="shadow price of budget")


def _draw_budgets(axis: Axes, equilibrium: Equilibrium) -> None:
    mesh = equilibrium.game.mesh
    mass = equilibrium.flow.mass
    shades = ("#bbbbbb", "#88b4d0", "#3a7ca5", "#12355b")
    for shade, n in zip(shades, np.linspace(0, mesh.grid.time_steps, len(shades)).astype(int), strict=True):
        density = mass[n].sum(axis=(0, 1)) / mesh.budget_width
        density[-1] *= 2.0  # the last node stands for half a cell
        out = mass[n, ..., 0].sum()
        label = f"round {mesh.time[n]:.0f}: {100 * out:.0f} % have nothing left"
        axis.plot(mesh.budget[1:], density[1:], color=shade, lw=2, label=label)
    axis.set(xlabel="remaining budget (ε)", ylabel="density of clients", title="Who can still sell", ylim=(0, None))
    axis.set_ylim(0.0, 1.4 * axis.get_ylim()[1])
    axis.legend(fontsize=8, loc="upper right")


def _draw_history(axis: Axes, equilibrium: Equilibrium) -> None:
    statistics = equilibrium.statistics
    rounds = range(1, len(statistics.price_change) + 1)
    label = "largest price change ÷ mean price"
    axis.semilogy(rounds, statistics.price_change, "o-", color=_THIRD, ms=3, label=label)
    if statistics.exploitability:
        shown = np.maximum(statistics.exploitability, 1e-16)
        axis.semilogy(rounds, shown, "s-", color=_NAIVE, ms=3, label="best deviation's gain ÷ mean payment")
        axis.legend(fontsize=8)
    axis.locator_params(axis="x", integer=True)
    verdict = "converged"
    if equilibrium.result is not Result.CONVERGED:
        verdict = f"NOT a solution: {equilibrium.result.value}"
    gain = max(equilibrium.relative_exploitability, 0.0)
    axis.set(
        xlabel="iteration",
        ylabel="" if statistics.exploitability else label,
        title=f"{verdict}; best deviation gains\n{gain:.1e} of the mean payment",
    )
