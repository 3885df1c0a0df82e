"""A lifetime cap on what each client may sell, which holds even if each sale depends on the results before it.

A wallet is a *privacy filter*: before each release it says whether the release still fits, and whatever sequence of
releases passes it, chosen adaptively by anyone who saw all the earlier outputs, is (cap, δ)-DP in total.

It watches a few measures of cost that are fixed before the first sale: μ² of Gaussian differential privacy and the
Rényi divergence at some orders. Measure j has a share δ_j of δ, Σ δ_j ≤ δ, and a limit B_j. A sale fits while, with
it, the total of *one* of them is within its limit; all are charged for every sale. So full-batch sales are counted
by μ² and sampled ones by a Rényi order, whichever kind is sold first.

Why that holds. Let P and Q be the distributions of everything that is ever released, with and without one unit, and
A_j the outcomes in which the total of measure j stays within B_j.

1. Process j is the same run, except that it stops before the first release that would take measure j past B_j.
   Measure j alone is a fully adaptive filter, so what process j releases, P_j against Q_j, is (cap, δ_j)-DP. When
   it stops follows from its own outputs, and on A_j it never stops: there P = P_j and Q = Q_j.
2. Totals only grow and the wallet lets nothing through after which no measure holds, so every outcome lies in some
   A_j. Cut any set S of outcomes into disjoint pieces S_j ⊆ A_j, each outcome into the first A_j that has it.
3. P(S) = Σ P_j(S_j) ≤ Σ (e^cap·Q_j(S_j) + δ_j) ≤ e^cap·Q(S) + δ.

Which measure holds at the end may depend on the outputs: the pieces S_j take care of that. The list of measures
    with their shares must not depend on them. It would be wrong to give each measure *all* of δ and take the best
    one: line 3 would add up to a multiple of δ, and a buyer that looks at its first release before it chooses the
    second could exceed the cap.

What is watched. A measure is a column of a cost (see `_accountant`): μ², or the Rényi divergence at one order. A
new wallet watches `SHARES`: μ², which is exact for full batches, and two Rényi orders for sampled releases. The
orders follow from cap and δ alone. For many small releases the divergence at α grows like α, so the order at which
(limit / α) is largest lets the most of them through. Sales that are large compared with the cap need a lower order.
`privmarket bench wallet` measures how many sales the split of δ costs.

A wallet for releases that are named in advance (`expected`) watches the one measure that suits them best, with all
of δ. For a few releases with Laplace noise this is the sum of their ε (`pure`). Gaussian releases have no ε at δ =
0, so such a wallet refuses all of them.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket._counted import counted
from privmarket._figures import new_figure, write
from privmarket._lazy import late, require
from privmarket._settings import DELTA
from privmarket.errors import PrivacyError, WalletError
from privmarket.privacy import (
    _gaussian as gaussian,
    _laplace,  # noqa: F401  # so that stored Laplace releases can be read
)
from privmarket.privacy._accountant import (
    COLUMNS,
    GAUSSIAN,
    ORDERS,
    PURE,
    RdpAccountant,
    composed_cost,
    composed_epsilon,
    conversion_cost,
    release_costs,
)
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import Release, from_json, require_delta, to_json
from privmarket.privacy._gaussian import Array

if TYPE_CHECKING:
    import pandas

    from privmarket._figures import Figure
else:
    pandas = late("pandas")

# A sale of exactly what is left must fit although μ(ε) and its square are rounded: one part in 10^12 of slack.
_ROUNDING = 1.0 + 1e-12
# A menu entry's ε, turned back into noise, may be off by a rounding error; then the next entry is taken.
_TRIM_RETRIES = 3

# The share of δ for μ², and for each Rényi order; with it, the factor by which α − 1 is below the best one for many
# small releases.
GAUSSIAN_SHARE = 0.775
_RENYI_SHARES = (0.215, 0.01)
_RENYI_FACTORS = (0.95, 0.65)
SHARES = (GAUSSIAN_SHARE, *_RENYI_SHARES)

# The limits of up to this many caps are cached.
_FEW = 32

Measure = tuple[str, float]
"""A measure's name, `gaussian`, `pure`, or `renyi` and the order, and its share of δ."""


class _Stored(TypedDict):
    """The fields that `Wallets.to_json` writes; `history` holds indices into `releases`."""

    cap_epsilon: list[float | None]
    delta: float
    measures: list[list[Measure]]
    releases: list[dict[str, Any]]
    history: list[list[int | None]]


class Wallets:
    """The wallets of many clients, charged together.

    Attributes:
        clients: how many wallets there are.
        cap_epsilon: (clients,) lifetime caps; infinite means no cap.
        delta: the δ at which the caps hold.
        capacity: (clients, measures) how much of each watched measure may be spent in all.
        spent: (clients, measures) how much of each has been spent.

    Implements: the Rényi filter of [FeldmanZrnic2021] (also [Lecuyer2021]): if Σ ρ_t(α) ≤ B almost surely
    for one α fixed in advance, the adaptively chosen sequence is (α, B)-RDP, and Proposition 12 of
    [CanonneKamathSteinke2020] turns B into the cap at δ_j; and the Gaussian filter of [SmithThakurta2022],
    [KoskelaTobabenHonkela2023]: if Σ μ_t² ≤ B², the sequence is B-GDP. The module shows how they are joined.
    Assumes: whether a sale is void, or is made at all, depends on a client's records only through releases.

    No array and no list inside is changed in place, so `copy.copy` gives independent wallets with the same past.
    """

    def __init__(
        self,
        cap_epsilon: ArrayLike,
        delta: float = DELTA,
        *,
        expected: Sequence[Release] = (),
        measures: Sequence[Sequence[Measure]] | None = None,
    ) -> None:
        """What the wallets watch follows from cap and δ, unless one of the last two is given.

        Args:
            cap_epsilon: (clients,) or one number.
            expected: releases named in advance: then one measure gets all of δ, the one that suits them best.
                Others are still charged safely, but may use up more of the wallet than necessary.
            measures: what each wallet watches, as `measures` gave it; for stores.
        """
        require_delta(delta)
        caps = np.atleast_1d(np.array(cap_epsilon, dtype=np.float64))
        if caps.ndim != 1 or caps.size == 0 or not (caps > 0).all():
            raise PrivacyError(f"wallet caps are {cap_epsilon!r}", "give one ε above 0 per client")
        caps.setflags(write=False)
        self.cap_epsilon: Array = caps
        self.clients = int(caps.size)
        self.delta = delta
        if measures is not None:
            self._watch = Watch.named(caps, delta, measures)
        elif expected:
            self._watch = Watch.single(caps, delta, composed_cost(expected))
        else:
            self._watch = Watch.standard(caps, delta)
        self.capacity: Array = self._watch.limits
        self.spent: Array = np.zeros(self.capacity.shape)
        self._history: tuple[tuple[Release | None, ...], ...] = ()

    @property
    def measures(self) -> list[list[Measure]]:
        """What each wallet watches: its measures (`gaussian`, `pure`, or `renyi` and the order) with their shares
        of δ.
        """
        return self._watch.names()

    @property
    def measure(self) -> tuple[str, ...]:
        """For each wallet, the measure of which the largest part is left."""
        best = np.argmax(self._shares_left(), axis=1)
        return tuple(measure_name(int(row[at])) for row, at in zip(self._watch.columns, best, strict=True))

    @property
    def remaining_share(self) -> Array:
        """(clients,) the part that each wallet still has, from 1 down to 0, in the measure that has most left."""
        return np.asarray(np.maximum(self._shares_left().max(axis=1), 0.0))

    @property
    def history(self) -> tuple[tuple[Release | None, ...], ...]:
        """One entry per call of `spend`: each client's event, None where it sold nothing."""
        return self._history

    def share(self, rounds: int) -> Wallets:
        """Wallets with 1/`rounds` of what is left, for selling equally much in each of so many rounds."""
        shared = copy.copy(self)
        left = self.capacity - self.spent
        # A measure that is used up stays used up.
        shared.capacity = self.spent + np.where(left > 0, left / rounds, left)
        return shared

    def can_spend(self, events: Sequence[Release | None]) -> NDArray[np.bool_]:
        """(clients,) whether each client's event still fits; None always does. Changes nothing."""
        sells = np.array([event is not None for event in events], dtype=bool)
        room = self._room(len(events))
        return np.asarray((self._costs(events) <= room).any(axis=1) | ~sells)

    def spend(self, events: Sequence[Release | None]) -> int:
        """Charges one event (or None) per client: all of them, or, if one does not fit, none.

        Returns:
            The position of this entry in `history`.
        """
        entry = tuple(events)
        room = self._room(len(entry))
        costs = self._costs(entry)
        sells = np.array([event is not None for event in entry], dtype=bool)
        over = np.flatnonzero((costs > room).all(axis=1) & sells)
        if over.size:
            who = int(over[0])
            raise WalletError(
                f"client {who}: {entry[who]} would pass its cap of ε = {self.cap_epsilon[who]:g}"
                f" at δ = {self.delta:g} ({over.size} client(s) in all); nothing was charged",
                "trim the offer first: wallet.trim(family, epsilon)",
            )
        self.spent = self.spent + costs
        self._history = (*self._history, entry)
        return len(self._history) - 1

    def trim(self, family: ReleaseFamily, offered: ArrayLike) -> Array:
        """(clients,) the largest ε up to `offered` that each client can still sell; 0 where nothing fits.

        Args:
            family: what is released in the round.
            offered: (clients,) or one ε for all, ≥ 0.
        """
        asked = np.broadcast_to(np.asarray(offered, dtype=np.float64), (self.clients,))
        if not (asked >= 0).all():
            raise PrivacyError(f"offered ε is {asked[~(asked >= 0)][0]}", "offer an ε of at least 0")
        result = np.where(self.can_spend(family.events(asked)), asked, 0.0)
        left = np.flatnonzero(result < asked)
        if left.size:
            result[left] = self._largest_on_menu(family, left, asked[left])
        return result

    def affordable(self, family: ReleaseFamily, wanted: ArrayLike, rounds_left: int = 1) -> Array:
        """(clients,) the most ε up to `wanted` that each client can sell in `rounds_left` rounds each; 0 if none.

        Args:
            wanted: (clients,) or one ε for all, ≥ 0.
            rounds_left: 1 offers all that is left of a wallet at once.
        """
        if np.isinf(self.cap_epsilon).all():
            return np.broadcast_to(np.asarray(wanted, dtype=np.float64), (self.clients,)).copy()
        return (self.share(rounds_left) if rounds_left > 1 else self).trim(family, wanted)

    def void(self, entry: int, clients: Iterable[int]) -> None:
        """Takes back what some clients were charged in one call of `spend`: nothing was released for it.

        What is spent is added up again from the events that stay.

        Args:
            entry: which call of `spend`, as a position in `history`.
            clients: positions.
        """
        events = list(self._history[entry])
        spent = self.spent.copy()
        for client in clients:
            events[client] = None
            kept = [past[client] for at, past in enumerate(self._history) if at != entry]
            spent[client] = 0.0
            for cost in release_costs(kept)[:, self._watch.columns[client]]:
                spent[client] += cost
        self.spent = spent
        self._history = (*self._history[:entry], tuple(events), *self._history[entry + 1 :])

    def is_empty(self, family: ReleaseFamily) -> NDArray[np.bool_]:
        """(clients,) True where not even the smallest release on the family's menu fits."""
        _, cost = menu_with_costs(family)
        return np.asarray((cost[-1][self._watch.columns] > self._room(self.clients)).all(axis=1))

    def _largest_on_menu(self, family: ReleaseFamily, who: NDArray[np.intp], asked: Array) -> Array:
        """(who,) the first, hence largest, entry of the family's menu that fits, below what was asked."""
        menu, cost = menu_with_costs(family)
        end = np.append(menu, 0.0)  # one past the menu: nothing
        room = self._room(self.clients)[who]
        columns = self._watch.columns[who]
        first = np.searchsorted(-menu, -asked, side="left")
        found = np.maximum(first, first_that_fits(cost, room, columns))
        for _ in range(_TRIM_RETRIES):
            costs = np.take_along_axis(release_costs(family.events(end[found])), columns, axis=1)
            bad = (costs > room).all(axis=1) & (found < menu.size)
            if not bad.any():
                return np.asarray(end[found])
            found = np.minimum(found + bad, menu.size)
        return np.where(bad, 0.0, end[found])

    def _costs(self, events: Sequence[Release | None]) -> Array:
        """(clients, measures) what one event per client costs in the measures that its wallet watches."""
        return np.take_along_axis(release_costs(events), self._watch.columns, axis=1)

    def _room(self, events: int) -> Array:
        """(clients, measures) what is left of each measure for one of so many events per client."""
        if events != self.clients:
            raise PrivacyError(f"{events} events for {self.clients} wallets", "give one per client")
        return self.capacity * _ROUNDING - self.spent

    def _shares_left(self) -> Array:
        """(clients, measures) the part of each limit that is left; below 0 where nothing is."""
        with np.errstate(invalid="ignore", divide="ignore"):
            share = 1.0 - self.spent / self.capacity
        return np.where(np.isinf(self.capacity), 1.0, np.where(self.capacity > 0, share, -np.inf))

    def to_json(self) -> str:
        """Caps, δ, measures and the events; what was spent is recomputed from them."""
        kinds = list(dict.fromkeys(e for entry in self._history for e in entry if e is not None))
        place: dict[Release | None, int | None] = {kind: at for at, kind in enumerate(kinds)}
        fields: _Stored = {
            "cap_epsilon": [None if np.isinf(c) else float(c) for c in self.cap_epsilon],
            "delta": self.delta,
            "measures": self.measures,
            # Long runs repeat few kinds of release: each is written once, the history as places in that list.
            "releases": [to_json(kind) for kind in kinds],
            "history": [[place.get(e) for e in entry] for entry in self._history],
        }
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> Wallets:
        """The wallets that `to_json` wrote, charged again event by event."""
        fields = _parsed(text)
        caps = [np.inf if c is None else c for c in fields["cap_epsilon"]]
        kinds = [from_json(kind) for kind in fields["releases"]]
        entries = ([None if at is None else kinds[at] for at in entry] for entry in fields["history"])
        return cls.restore(caps, fields["delta"], entries, measures=fields["measures"])

    @classmethod
    def restore(
        cls,
        cap_epsilon: ArrayLike,
        delta: float,
        history: Iterable[Sequence[Release | None]],
        *,
        measures: Sequence[Sequence[Measure]] | None = None,
    ) -> Wallets:
        """Wallets from what a store kept of them, charged again entry by entry.

        Args:
            cap_epsilon, delta, measures: as for the constructor.
            history: entries of one event (or None) per client, oldest first.

        Raises:
            WalletError: the history passes a cap.
        """
        wallets = cls(cap_epsilon, delta, measures=measures)
        for entry in history:
            wallets.spend(entry)
        return wallets


class Wallet:
    """One client's lifetime cap on ε and everything it has sold; refuses a sale that does not fit.

    In the field's words a *privacy filter*: whatever sequence of releases passes it, chosen adaptively by anyone
    who saw all the earlier outputs, is (cap, δ)-DP in total. The module explains why. `Wallets` is the same for
    many clients, `WalletFile` the same on a client's disk.

    Args:
        cap_epsilon: the most ε in all, at `delta`; infinite means no cap.
        expected: releases named in advance, for which the wallet is then best suited. Others are still charged
            safely, but may use up more of the wallet than necessary."""

    def __init__(self, cap_epsilon: float, delta: float = DELTA, *, expected: Sequence[Release] = ()) -> None:
        self._one = Wallets([cap_epsilon], delta, expected=expected)

    @property
    def cap_epsilon(self) -> float:
        """The most ε that this wallet ever lets its client sell, at `delta`."""
        return float(self._one.cap_epsilon[0])

    @property
    def delta(self) -> float:
        """The δ at which the cap holds."""
        return self._one.delta

    @property
    def measure(self) -> str:
        """The measure of which the largest part is left: `gaussian`, `pure`, or `renyi` and the order."""
        return self._one.measure[0]

    @property
    def measures(self) -> list[Measure]:
        """All measures that the filter watches, each with its share of δ."""
        return self._one.measures[0]

    @property
    def remaining_share(self) -> float:
        """The part of the wallet that is left, from 1 down to 0."""
        return float(self._one.remaining_share[0])

    @property
    def history(self) -> tuple[Release, ...]:
        """Every release that was sold, oldest first."""
        return tuple(entry[0] for entry in self._one.history if entry[0] is not None)

    @property
    def epsilon_spent(self) -> float:
        """ε at δ of the history, as the accountant reports it; the filter itself is stricter."""
        return composed_epsilon(self.history, self.delta)

    def can_spend(self, event: Release) -> bool:
        """Whether this release still fits under the cap; changes nothing."""
        return bool(self._one.can_spend([event])[0])

    def spend(self, event: Release) -> None:
        """Charges a release, or raises `WalletError` and charges nothing."""
        self._one.spend([event])

    def trim(self, family: ReleaseFamily, offered: float) -> float:
        """The largest ε up to `offered` that can still be sold; 0 if nothing fits."""
        return float(self._one.trim(family, offered)[0])

    def __repr__(self) -> str:
        sales = counted(len(self.history), "sale")
        return f"Wallet(ε ≤ {self.cap_epsilon:g} at δ = {self.delta:g}, {sales}, {self.remaining_share:.1%} left)"

    def to_frame(self) -> pandas.DataFrame:
        """One row per sale, oldest first, as a pandas data frame.

        Columns: `release` (what was sold), `epsilon_so_far` (ε at δ of this and all earlier ones, had they been
        fixed in advance) and `remaining_share` (what was left of the wallet after it).
        """
        require("pandas")
        epsilon, left = self._course()
        sold = [str(event) for event in self.history]
        return pandas.DataFrame({"release": sold, "epsilon_so_far": epsilon[1:], "remaining_share": left[1:]})

    def plot(self, path: str | Path | None = None) -> Figure:
        """What was left of the wallet, and ε so far, after each sale; also written to `path` if it is given."""
        require("matplotlib")
        epsilon, left = self._course()
        figure = new_figure(6.4, 4.0)
        upper, lower = figure.subplots(2, 1, sharex=True)
        upper.step(range(len(left)), left, where="post", color="C0")
        upper.set(ylabel="part that is left", ylim=(0, 1.05))
        lower.step(range(len(epsilon)), epsilon, where="post", color="C1", label="ε of the sales so far")
        if math.isfinite(self.cap_epsilon):
            lower.axhline(self.cap_epsilon, color="C3", linewidth=1, label="the wallet's cap")
        lower.set(xlabel="sales", ylabel=f"ε at δ = {self.delta:g}", xlim=(0, None), ylim=(0, None))
        lower.legend(frameon=False)
        if path is not None:
            write(figure, path)
        return figure

    def _course(self) -> tuple[list[float], list[float]]:
        """(1 + sales,) ε so far, and the part that was left, before the first sale and after each."""
        again = Wallets([self.cap_epsilon], self.delta, measures=self._one.measures)
        accountant = RdpAccountant()
        epsilon = [0.0]
        left = [1.0]
        for event in self.history:
            again.spend([event])
            epsilon.append(accountant.compose(event).get_epsilon(self.delta))
            left.append(float(again.remaining_share[0]))
        return epsilon, left

    def to_json(self) -> str:
        """The wallet as JSON text: its cap, δ, measures and releases."""
        return self._one.to_json()

    @classmethod
    def from_json(cls, text: str) -> Wallet:
        """Restores the wallet that `to_json` wrote."""
        wallet = cls.__new__(cls)
        wallet._one = Wallets.from_json(text)
        if wallet._one.clients != 1:
            raise PrivacyError(f"stored: {wallet._one.clients} wallets, not one", "use Wallets.from_json")
        return wallet


def _parsed(text: str) -> _Stored:
    try:
        fields: _Stored = json.loads(text)
    except ValueError as error:
        raise PrivacyError(f"stored wallets are not JSON: {error}", "restore the file from a copy") from error
    known = _Stored.__required_keys__
    if not isinstance(fields, dict) or set(fields) != known:
        raise PrivacyError("stored wallets lack their fields", f"expected {', '.join(sorted(known))}")
    return fields


@dataclass(frozen=True, eq=False)
class Watch:
    """What the wallets of many clients watch.

    Attributes:
        columns: (clients, measures) which columns of a cost each watches.
        shares: (measures,) of δ; their sum is at most 1.
        limits: (clients, measures) how much of each may be spent in all; where it is not above 0, that measure
            never holds.
    """

    columns: NDArray[np.intp]
    shares: tuple[float, ...]
    limits: Array

    @classmethod
    def standard(cls, caps: Array, delta: float) -> Watch:
        """The measures that every new wallet watches."""
        distinct, where = np.unique(caps, return_inverse=True)
        if distinct.size <= _FEW:  # the same few wallets are asked about again and again
            rows = [_standard_row(cap, delta) for cap in distinct.tolist()]
            columns, limits = (np.concatenate(part) for part in zip(*rows, strict=True))
        else:
            columns, limits = _standard_rows(distinct, delta)
        return cls(columns[where], SHARES, limits[where])

    @classmethod
    def single(cls, caps: Array, delta: float, cost: Array) -> Watch:
        """One measure with all of δ: the one that admits most copies of a release that costs `cost`, (columns,)."""
        all_limits = np.stack([_limits(caps, delta, np.full(caps.size, column)) for column in range(COLUMNS)], 1)
        with np.errstate(invalid="ignore"):
            copies = np.where(np.isfinite(all_limits), np.maximum(all_limits, 0.0) / cost, 0.0)
        best = np.argmax(copies, axis=1)[:, None]
        return cls(best, (1.0,), np.take_along_axis(all_limits, best, axis=1))

    @classmethod
    def named(cls, caps: Array, delta: float, measures: Sequence[Sequence[Measure]]) -> Watch:
        """The measures that a store kept, one list for each client, as `names` gave them.

        Raises:
            PrivacyError: a measure is not known, or the shares of δ are more than all of it.
        """
        hint = "restore the file from a copy"
        try:
            shares = tuple(float(share) for _, share in measures[0])
            same = all(tuple(float(share) for _, share in one) == shares for one in measures)
            columns = np.array([[COLUMN_OF[name] for name, _ in one] for one in measures], dtype=np.intp)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise PrivacyError(f"stored wallets watch {list(measures)[:1]}", hint) from error
        if not shares or len(measures) != caps.size or not same or min(shares) <= 0 or sum(shares) > 1 + 1e-12:
            raise PrivacyError(f"stored wallets watch measures with shares {shares} of δ", hint)
        limits = [_limits(caps, delta * share, columns[:, at]) for at, share in enumerate(shares)]
        return cls(columns, shares, np.stack(limits, axis=1))

    def names(self) -> list[list[Measure]]:
        """The measures of each client, by name, with their shares of δ."""
        return [
            [(measure_name(int(column)), share) for column, share in zip(row, self.shares, strict=True)]
            for row in self.columns
        ]


def _limits(caps: Array, delta: float, columns: NDArray[np.intp]) -> Array:
    """(clients,) how much of each client's column converts to its cap at δ; infinite without a cap."""
    found = np.full(caps.size, np.inf)
    finite = np.isfinite(caps)
    renyi = finite & (columns < GAUSSIAN)
    found[renyi] = caps[renyi] - conversion_cost(ORDERS[columns[renyi]], delta)
    normal = finite & (columns == GAUSSIAN)
    if normal.any():
        found[normal] = gaussian.mu_of(caps[normal], delta) ** 2
    pure = finite & (columns == PURE)
    found[pure] = caps[pure]  # Σ ε ≤ cap needs no δ at all [RogersEtAl2016]
    return found


@lru_cache(maxsize=4096)
def _standard_row(cap_epsilon: float, delta: float) -> tuple[NDArray[np.intp], Array]:
    return _standard_rows(np.array([cap_epsilon]), delta)


def _standard_rows(caps: Array, delta: float) -> tuple[NDArray[np.intp], Array]:
    """(caps, measures) columns and limits; each row is the same whichever others are asked for with it."""
    columns = [np.full(caps.size, GAUSSIAN, dtype=np.intp)]
    limits = [_limits(caps, delta * GAUSSIAN_SHARE, columns[0])]
    for share, factor in zip(_RENYI_SHARES, _RENYI_FACTORS, strict=True):
        cost = conversion_cost(ORDERS, delta * share)
        room = np.where(np.isfinite(caps), caps, 1.0)[:, None] - cost
        linear = ORDERS[np.argmax(room / ORDERS, axis=1)]
        wanted = 1.0 + factor * (linear - 1.0)
        column = np.argmin(np.abs(ORDERS - wanted[:, None]), axis=1)
        columns.append(column)
        limits.append(_limits(caps, delta * share, column))
    return np.stack(columns, axis=1), np.stack(limits, axis=1)


def first_that_fits(cost: Array, room: Array, columns: NDArray[np.intp]) -> NDArray[np.intp]:
    """(clients,) the first entry of a menu whose cost fits into what is left of some measure.

    Args:
        cost: (points, columns) the cost of each entry, falling.
        room: (clients, measures) what is left.
        columns: (clients, measures) the column of `cost` that each measure is.
    """
    first = np.full(room.shape[0], cost.shape[0])
    for column in np.unique(columns):
        # Costs fall along the menu, so the first that fits is found by bisection.
        here = columns == column
        fits = np.searchsorted(-cost[:, column], -np.where(here, room, -np.inf).max(axis=1), side="left")
        first = np.minimum(first, fits)
    return np.asarray(first, dtype=np.intp)


@lru_cache(maxsize=64)
def menu_with_costs(family: ReleaseFamily) -> tuple[Array, Array]:
    """(points,) ε on offer, falling, and (points, columns) what each costs."""
    noise, epsilon = family.menu()
    return epsilon, release_costs([family.release(float(s)) for s in noise])


def measure_name(column: int) -> str:
    """The name of the measure in this column: `gaussian`, `pure`, or `renyi` and the order."""
    if column == PURE:
        return "pure"
    return "gaussian" if column == GAUSSIAN else f"renyi {ORDERS[column]:g}"


COLUMN_OF = {measure_name(column): column for column in range(COLUMNS)}
