"""What an auction decides: how much ε each client sells and what it is paid."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import NDArray

from privmarket._counted import counted
from privmarket._settings import TOLERANCE
from privmarket.errors import OutcomeError
from privmarket.market._bids import Array, Bids, frame_of

if TYPE_CHECKING:
    import pandas


@overload
def is_beyond(figure: float, limit: float) -> bool: ...
@overload
def is_beyond(figure: Array, limit: Array) -> NDArray[np.bool_]: ...
def is_beyond(figure: float | Array, limit: float | Array) -> bool | NDArray[np.bool_]:
    """Whether a figure is above its limit by more than rounding: ε above an offer, pay above a budget."""
    return figure > limit * (1 + TOLERANCE)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of one auction, or of a batch.

    Attributes:
        epsilon: (..., clients) ε sold, ≥ 0; 0 for clients that sell nothing.
        payment: (..., clients) money paid, ≥ 0.
        client_ids: (clients,) names, where the bids had them.

    `len(outcome)` goes over the first axis, as for bids; two outcomes are equal when all their fields are.
    """

    epsilon: Array
    payment: Array
    client_ids: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("epsilon", "payment"):
            given = getattr(self, name)
            try:
                if np.iscomplexobj(given):
                    raise TypeError("complex numbers")
                array = np.asarray(given, dtype=np.float64)
            except (TypeError, ValueError) as error:
                raise OutcomeError(
                    f"{name}: not an array of numbers: {error}", "give one number per client"
                ) from error
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        if self.epsilon.shape != self.payment.shape:
            raise OutcomeError(
                f"payment: shape {self.payment.shape} differs from epsilon's {self.epsilon.shape}",
                "give one payment per client, 0 for those who sell nothing",
            )

    def __len__(self) -> int:
        return int(self.epsilon.shape[0])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Outcome):
            return NotImplemented
        return (
            self.client_ids == other.client_ids
            and np.array_equal(self.epsilon, other.epsilon)
            and np.array_equal(self.payment, other.payment)
        )

    def __hash__(self) -> int:
        return hash((self.epsilon.shape, float(self.epsilon.sum()), float(self.payment.sum())))

    def __repr__(self) -> str:
        *lead, clients = self.epsilon.shape
        sellers = int((self.epsilon > 0).sum())
        said = f"{sellers} of {counted(clients, 'client')} {'sells' if sellers == 1 else 'sell'}"
        what = f"{said} {self.epsilon.sum():.4g} ε for {self.payment.sum():.4g}"
        if lead:
            markets = int(np.prod(lead))
            sold = self.epsilon.sum() / markets
            paid = self.payment.sum() / markets
            what = (
                f"{counted(markets, 'market')} of {counted(clients, 'client')}: on average "
                f"{sellers / markets:.4g} sell {sold:.4g} ε for {paid:.4g}"
            )
        return f"Outcome({what})"

    def _repr_html_(self) -> str:
        if self.epsilon.ndim > 1:
            return f"<p>{escape(repr(self))}</p>"
        names = self.client_ids or [str(i) for i in range(len(self))]
        sellers = [i for i in range(len(self)) if self.epsilon[i] > 0][:20]
        rows = "".join(
            f"<tr><td>{escape(names[i])}</td><td>{self.epsilon[i]:.4g}</td><td>{self.payment[i]:.4g}</td></tr>"
            for i in sellers
        )
        head = "<tr><th>client</th><th>ε sold</th><th>paid</th></tr>"
        return f"<table><caption>{escape(repr(self))}</caption>{head}{rows}</table>"

    def to_frame(self, bids: Bids | None = None) -> pandas.DataFrame:
        """A row per client, and per market of a batch: ε sold and payment. Needs pandas.

        Args:
            bids: what the clients offered; adds `valuation`, `offered`, `cost` and `utility` at these valuations.
        """
        columns = {"epsilon": self.epsilon, "payment": self.payment}
        names = self.client_ids
        if bids is not None:
            cost = bids.valuation * self.epsilon
            offers = {"valuation": bids.valuation, "offered": bids.epsilon}
            columns = {**offers, **columns, "cost": cost, "utility": self.payment - cost}
            names = names or bids.client_ids
        return frame_of(self.epsilon.shape, names, columns)

    @property
    def total_epsilon(self) -> Array:
        """(...,) Σ ε that the clients of each market sell."""
        return np.asarray(self.epsilon.sum(axis=-1))

    @property
    def spend(self) -> Array:
        """(...,) Σ payments of each market, the paper's revenue R."""
        return np.asarray(self.payment.sum(axis=-1))

    def utility(self, types: Bids) -> Array:
        """(..., clients) u_i = p_i − v_i ε_i at the clients' true valuations."""
        return self.payment - types.valuation * self.epsilon

    def welfare(self, types: Bids) -> Array:
        """(...,) participant surplus SW = Σ u_i, Eq. (sw-def) of [Sun2026]."""
        return np.asarray(self.utility(types).sum(axis=-1))


def nothing(shape: tuple[int, ...]) -> Outcome:
    """The outcome in which nobody sells. Shape (..., clients)."""
    return Outcome(np.zeros(shape), np.zeros(shape))
