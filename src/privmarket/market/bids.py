"""What clients offer: a valuation and a cap on ε each, with two public features.

Notation: valuation = v (money per unit of ε), epsilon = ε̂ (the most a client will sell in this round),
data_size = d, accuracy = u in the paper's b_i = (v_i, d_i, u_i, ε_i).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket.errors import BidError

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Bids:
    """Offers of n clients in one market, or in a batch of markets.

    Attributes:
        valuation: (..., clients) money asked per unit of ε, finite and ≥ 0.
        epsilon: (..., clients) the most ε that is offered, finite and > 0.
        data_size: (..., clients) number of records, > 0, public; None means all equal.
        accuracy: (..., clients) local accuracy in [0, 1], public; None means unknown.

    The arrays are private read-only copies: bids cannot change after they were made.
    """

    valuation: Array
    epsilon: Array
    data_size: Array | None = None
    accuracy: Array | None = None

    def __init__(
        self,
        valuation: ArrayLike,
        epsilon: ArrayLike,
        data_size: ArrayLike | None = None,
        accuracy: ArrayLike | None = None,
    ) -> None:
        fields: dict[str, ArrayLike | None] = {
            "valuation": valuation,
            "epsilon": epsilon,
            "data_size": data_size,
            "accuracy": accuracy,
        }
        shape: tuple[int, ...] | None = None
        for name, given in fields.items():
            array = None if given is None else _own(name, given)
            if array is not None:
                shape = array.shape if shape is None else shape
                _validate(name, array, shape)
            object.__setattr__(self, name, array)

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., clients)."""
        return self.valuation.shape

    @property
    def clients(self) -> int:
        """How many clients bid in each market."""
        return int(self.valuation.shape[-1])

    @property
    def data_share(self) -> Array:
        """(..., clients) W_i = d_i / Σd, or 1/n where sizes were not given."""
        if self.data_size is None:
            return np.full(self.shape, 1.0 / self.clients)
        return np.asarray(self.data_size / self.data_size.sum(axis=-1, keepdims=True))

    def replace(self, **changes: Any) -> Bids:
        """The same bids with some fields given anew."""
        fields = {name: getattr(self, name) for name in _RULES}
        return Bids(**{**fields, **changes})

    def __getitem__(self, index: Any) -> Bids:
        """Markets (or clients) picked by a NumPy index, applied to every field."""
        picked: dict[str, Any] = {
            name: None if a is None else a[index] for name, a in ((n, getattr(self, n)) for n in _RULES)
        }
        return Bids(**picked)

    def __repr__(self) -> str:
        given = [name for name in _RULES if getattr(self, name) is not None]
        return f"Bids(shape={self.shape}, fields={', '.join(given)})"


# field → (what must hold, the remedy)
_RULES: dict[str, tuple[str, str]] = {
    "valuation": ("finite and at least 0", "a valuation is money per unit of ε"),
    "epsilon": ("finite and above 0", "leave out a client that sells nothing"),
    "data_size": ("finite and above 0", "leave out a client without records"),
    "accuracy": ("between 0 and 1", "give a share, not per cent"),
}


def _own(name: str, given: ArrayLike) -> Array:
    try:
        array = np.array(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BidError(f"{name}: not an array of numbers: {error}", "give one number per client") from error
    array.setflags(write=False)
    return array


def _validate(name: str, array: Array, shape: tuple[int, ...]) -> None:
    if array.ndim == 0 or array.shape[-1] == 0:
        raise BidError(f"{name}: no clients (shape {array.shape})", "an auction needs at least one bid")
    if array.shape != shape:
        raise BidError(
            f"{name}: shape {array.shape} differs from valuation's {shape}", "give one number per client"
        )
    expectation, remedy = _RULES[name]
    bad = ~_acceptable(name, array)
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        where = at[0] if len(at) == 1 else at
        raise BidError(f"{name}[{where}] is {array[at]!s}: must be {expectation}", remedy)


def _acceptable(name: str, array: Array) -> NDArray[np.bool_]:
    # Comparisons with NaN are false, so each line also refuses NaN.
    if name == "valuation":
        return (array >= 0) & (array < np.inf)
    if name == "accuracy":
        return (array >= 0) & (array <= 1)
    return (array > 0) & (array < np.inf)
