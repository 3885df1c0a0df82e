"""What a wallet can watch: the columns of a cost, how much of each a cap allows, and what a menu costs in each."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privmarket.privacy import gaussian
from privmarket.privacy.accountant import COLUMNS, GAUSSIAN, release_costs
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.privacy.gaussian import Array
from privmarket.privacy.renyi import ORDERS, conversion_cost

# Up to so many caps, what each allows is remembered.
_FEW = 32


def capacities(caps: Array, delta: float) -> Array:
    """(clients, columns) how much of each measure converts to the cap; not above 0 where none does."""
    distinct, where = np.unique(caps, return_inverse=True)
    if distinct.size <= _FEW:  # the same few wallets are looked at again and again
        return np.concatenate([_capacity_of_one(cap, delta) for cap in distinct.tolist()])[where]
    return _capacity_rows(distinct, delta)[where]


@lru_cache(maxsize=4096)
def _capacity_of_one(cap_epsilon: float, delta: float) -> Array:
    """What a wallet with this cap may spend in each column, (1, columns)."""
    return _capacity_rows(np.array([cap_epsilon]), delta)


def _capacity_rows(caps: Array, delta: float) -> Array:
    """(caps, columns), all in one pass; each row is the same whichever others are asked for with it."""
    rows = np.full((caps.size, COLUMNS), np.inf)
    finite = np.isfinite(caps)
    rows[finite, :GAUSSIAN] = caps[finite, None] - conversion_cost(ORDERS, delta)
    rows[finite, GAUSSIAN] = gaussian.mu_of(caps[finite], delta) ** 2
    return rows


def best_columns(capacity: Array, cost: Array) -> NDArray[np.intp]:
    """(clients,) the measure that admits most copies of a release that costs `cost`, (columns,) or one each."""
    with np.errstate(invalid="ignore"):
        copies = np.where(np.isfinite(capacity), np.maximum(capacity, 0.0) / cost, 0.0)
    return np.asarray(np.argmax(copies, axis=1))


def first_that_fits(cost: Array, room: Array) -> NDArray[np.intp]:
    """(clients,) where along a menu, (points, columns), costs first fall within the room of some column.

    A free wallet, with room in many columns, takes whichever lets it sell most.
    """
    first = np.full(room.shape[0], cost.shape[0])
    for column in np.flatnonzero((room > -np.inf).any(axis=0)):
        # Costs fall along the menu, so the first that fits is found by bisection.
        fits = np.searchsorted(-cost[:, column], -room[:, column], side="left")
        first = np.minimum(first, fits)
    return np.asarray(first, dtype=np.intp)


@lru_cache(maxsize=64)
def menu_with_costs(family: ReleaseFamily) -> tuple[Array, Array]:
    """(points,) ε on offer, falling, and (points, columns) what each costs."""
    noise, epsilon = family.menu()
    return epsilon, release_costs([family.release(float(s)) for s in noise])


def measure_name(column: int) -> str:
    """What a wallet that watches this column says: `gaussian`, or `renyi` and the order."""
    return "gaussian" if column == GAUSSIAN else f"renyi {ORDERS[column]:g}"


COLUMN_OF = {measure_name(column): column for column in range(COLUMNS)}
