"""A solved surface as a plain function of (valuation, remaining budget, time)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from privmarket.errors import ConfigurationError
from privmarket.market._bids import Array
from privmarket.meanfield._grid import Grid, Mesh


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
    rows, columns = table.shape[0] if rows is None else rows, table.shape[1]
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
        v, r = np.asarray(valuation, dtype=np.float64), np.asarray(remaining_budget, dtype=np.float64)
        shadow = self.shadow_price(v, r, time)
        return v + np.where(np.isinf(r), 0.0, shadow)


def load_bid_function(path: Path, kind: int = 0) -> BidFunction:
    """Reads the bid function out of a file that `Equilibrium.save` wrote."""
    try:
        with np.load(path) as saved:
            shadow, limits = saved["shadow_price"], saved["limits"]
    except (OSError, KeyError, ValueError) as error:
        raise ConfigurationError(
            f"{path} is not a saved equilibrium: {error}", "make one with `privmarket equilibrium --out FOLDER`"
        ) from error
    if not 0 <= kind < shadow.shape[1]:
        raise ConfigurationError(f"kind {kind} of {shadow.shape[1]}", f"use 0 … {shadow.shape[1] - 1}")
    mesh = Mesh(Grid(shadow.shape[2], shadow.shape[3], shadow.shape[0]), *(float(x) for x in limits))
    return BidFunction(Surface(mesh, shadow[:, kind], budget_offset=-0.5))


def truthful(valuation: ArrayLike, remaining_budget: ArrayLike, time: ArrayLike) -> Array:
    """The strategy of clients who do not look ahead: report the valuation."""
    report: Array = np.broadcast_arrays(np.asarray(valuation, dtype=np.float64), remaining_budget, time)[0]
    return report.copy()
