"""A lifetime cap on what each client may sell, that holds even when every sale is chosen by what came before.

A wallet is a *filter*: before each release it says whether the release still fits, and whatever sequence of
releases passes it, chosen adaptively by anyone who saw all the earlier outputs, is (cap, δ)-DP in total.

Adaptive choice is why a wallet watches a single measure of cost, fixed before its first sale: the Rényi
divergence at one order, or μ² of Gaussian differential privacy. Re-reading all of them after each sale and
taking the best (as the accountant does for a report) is valid for a sequence fixed in advance, but not as a
stopping rule. The first sale itself picks the measure: nothing had been released when it was chosen.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket.errors import PrivacyError, WalletError
from privmarket.plans import DELTA
from privmarket.privacy.accountant import COLUMNS, composed_cost, composed_epsilon, release_costs
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.privacy.events import PrivacyEvent, from_json, require_delta
from privmarket.privacy.gaussian import Array
from privmarket.privacy.renyi import ORDERS
from privmarket.privacy.wallet_measures import (
    COLUMN_OF,
    best_columns,
    capacities,
    first_that_fits,
    measure_name,
    menu_with_costs,
)

# A sale of exactly the cap must fit although μ(ε) and its square are rounded: one part in 10^12 of slack.
_ROUNDING = 1.0 + 1e-12
# A menu entry's ε, turned back into noise, may land one rounding error off; then the next entry is taken.
_TRIM_RETRIES = 3


class _Stored(TypedDict):
    """The fields that `Wallets.to_json` writes; `history` holds indices into `releases`."""

    cap_epsilon: list[float | None]
    delta: float
    measure: Sequence[str]
    releases: list[dict[str, float | int]]
    history: list[list[int | None]]


class Wallets:
    """The wallets of many clients, charged together.

    Attributes:
        clients: how many wallets there are.
        cap_epsilon: (clients,) lifetime caps; infinite means no cap.
        delta: the δ at which the caps hold.
        capacity: (clients,) how much of the watched measure may be spent in all.
        spent: (clients,) how much of it has been spent.

    Implements: the Rényi filter of [FeldmanZrnic2021] (also [Lecuyer2021]): if Σ ρ_t(α) ≤ B almost surely
    for one α fixed in advance, the adaptively chosen sequence is (α, B)-RDP, and Proposition 12 of
    [CanonneKamathSteinke2020] turns B into the cap at δ; and the Gaussian filter of [SmithThakurta2022],
    [KoskelaTobabenHonkela2023]: if Σ μ_t² ≤ B², the sequence is B-GDP.
    Assumes: what a client sells first does not depend on its own records.

    No array and no list inside is changed in place, so `copy.copy` gives independent wallets with the same past.
    """

    def __init__(
        self, cap_epsilon: ArrayLike, delta: float = DELTA, *, expected: Sequence[PrivacyEvent] = ()
    ) -> None:
        """`expected` are releases named in advance, the measure is tuned to them; else to the first sale."""
        require_delta(delta)
        caps = np.atleast_1d(np.array(cap_epsilon, dtype=np.float64))
        if caps.ndim != 1 or caps.size == 0 or not (caps > 0).all():
            raise PrivacyError(f"wallet caps are {cap_epsilon!r}", "give one ε above 0 per client")
        caps.setflags(write=False)
        self.cap_epsilon: Array = caps
        self.clients = int(caps.size)
        self.delta = delta
        self.spent: Array = np.zeros(caps.size)
        # Until its first sale a wallet shows the order that suits many small Gaussian releases, ρ(α) ∝ α.
        typical = composed_cost(expected) if expected else np.append(ORDERS, np.inf)
        self._capacities: Array = capacities(caps, delta)  # (clients, columns)
        self._column: NDArray[np.intp] = best_columns(self._capacities, typical)
        self._fixed: NDArray[np.bool_] = np.full(caps.size, bool(expected))
        self._history: tuple[tuple[PrivacyEvent | None, ...], ...] = ()
        _require_room(self)

    @property
    def capacity(self) -> Array:
        """(clients,) how much of the watched measure may be spent in all."""
        return np.asarray(self._capacities[np.arange(self.clients), self._column])

    @property
    def measure(self) -> tuple[str, ...]:
        """What each wallet watches: `gaussian`, or `renyi` and the order; `open` before the first sale."""
        return tuple(
            measure_name(int(c)) if fixed else "open" for c, fixed in zip(self._column, self._fixed, strict=True)
        )

    @property
    def remaining_share(self) -> Array:
        """(clients,) the part of its capacity that each wallet still has, from 1 down to 0."""
        capacity = self.capacity
        with np.errstate(invalid="ignore"):
            share = 1.0 - self.spent / capacity
        return np.asarray(np.where(np.isinf(capacity), 1.0, np.maximum(share, 0.0)))

    @property
    def history(self) -> tuple[tuple[PrivacyEvent | None, ...], ...]:
        """One entry per call of `spend`: each client's event, None where it sold nothing."""
        return self._history

    def share(self, rounds: int) -> Wallets:
        """Wallets with an even share of what is left, so that as much can be sold in each of `rounds` rounds."""
        purse, free = copy.copy(self), ~self._fixed
        left = (purse.capacity - purse.spent) / rounds
        # A wallet that has sold nothing has not chosen its measure: it gets an even share of each.
        purse._capacities = np.where(free[:, None], self._capacities / rounds, self._capacities)
        purse.spent = np.where(free, 0.0, self.capacity - left)
        return purse

    def can_spend(self, events: Sequence[PrivacyEvent | None]) -> NDArray[np.bool_]:
        """(clients,) whether each client's event still fits; None always does. Changes nothing."""
        return np.asarray((release_costs(events) <= self._room(len(events))).any(axis=1))

    def spend(self, events: Sequence[PrivacyEvent | None]) -> int:
        """Charges one event (or None) per client: all of them, or, if one does not fit, none.

        Returns:
            The position of this entry in `history`.
        """
        entry = tuple(events)
        room, costs = self._room(len(entry)), release_costs(entry)
        sells = np.array([event is not None for event in entry])
        over = np.flatnonzero((costs > room).all(axis=1) & sells)
        if over.size:
            who = int(over[0])
            raise WalletError(
                f"client {who}: {entry[who]} would pass its cap of ε = {self.cap_epsilon[who]:g}"
                f" at δ = {self.delta:g} ({over.size} client(s) in all); nothing was charged",
                "trim the offer first: wallet.trim(family, epsilon)",
            )
        first = ~self._fixed & sells
        if first.any():
            column = self._column.copy()
            column[first] = best_columns(self._capacities[first], costs[first])
            self._column, self._fixed = column, self._fixed | first
        self.spent = self.spent + costs[np.arange(self.clients), self._column]
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

        What is spent is added up again from the events that stay. A measure that was fixed stays fixed.

        Args:
            entry: which call of `spend`, as a position in `history`.
            clients: positions.
        """
        events, spent = list(self._history[entry]), self.spent.copy()
        for client in clients:
            events[client] = None
            kept = [past[client] for at, past in enumerate(self._history) if at != entry]
            spent[client] = 0.0
            for cost in release_costs(kept)[:, self._column[client]]:
                spent[client] += cost
        self.spent = spent
        self._history = (*self._history[:entry], tuple(events), *self._history[entry + 1 :])

    def is_empty(self, family: ReleaseFamily) -> NDArray[np.bool_]:
        """(clients,) where not even the smallest release on the family's menu fits any more."""
        _, cost = menu_with_costs(family)
        return np.asarray((cost[-1] > self._room(self.clients)).all(axis=1))

    def _largest_on_menu(self, family: ReleaseFamily, who: NDArray[np.intp], asked: Array) -> Array:
        """(who,) the first, hence largest, entry of the family's menu that fits, below what was asked."""
        menu, cost = menu_with_costs(family)
        end = np.append(menu, 0.0)  # one past the menu: nothing
        room = self._room(self.clients)[who]
        first = np.searchsorted(-menu, -asked, side="left")
        found = np.maximum(first, first_that_fits(cost, room))
        for _ in range(_TRIM_RETRIES):
            events = family.events(end[found])
            bad = (release_costs(events) > room).all(axis=1)
            if not bad.any():
                return np.asarray(end[found])
            found = np.minimum(found + bad, menu.size)
        return np.where(bad, 0.0, end[found])

    def _room(self, events: int) -> Array:
        """(clients, columns) what is left in each measure for one of so many events per client.

        −∞ in the measures that a wallet does not watch; one that has sold nothing may still choose its measure.
        """
        if events != self.clients:
            raise PrivacyError(f"{events} events for {self.clients} wallets", "give one per client")
        capacity = self._capacities * _ROUNDING
        watched = ~self._fixed[:, None] | (np.arange(COLUMNS) == self._column[:, None])
        return np.asarray(np.where(watched, capacity - self.spent[:, None], -np.inf))

    def to_json(self) -> str:
        """Caps, δ, measures and the events; what was spent is recomputed from them."""
        kinds = list(dict.fromkeys(e for entry in self._history for e in entry if e is not None))
        place: dict[PrivacyEvent | None, int | None] = {kind: at for at, kind in enumerate(kinds)}
        fields: _Stored = {
            "cap_epsilon": [None if np.isinf(c) else float(c) for c in self.cap_epsilon],
            "delta": self.delta,
            "measure": self.measure,
            # Long runs repeat few kinds of release: each is written once, the history as places in that list.
            "releases": [asdict(kind) for kind in kinds],
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
        return cls.restore(caps, fields["delta"], fields["measure"], entries)

    @classmethod
    def restore(
        cls,
        cap_epsilon: ArrayLike,
        delta: float,
        measure: Sequence[str],
        history: Iterable[Sequence[PrivacyEvent | None]],
    ) -> Wallets:
        """Wallets from what a store kept of them, charged again entry by entry.

        Args:
            cap_epsilon, delta: as for the constructor.
            measure: what each wallet watches, as `measure` gave it.
            history: entries of one event (or None) per client, oldest first.

        Raises:
            WalletError: the history passes a cap.
        """
        wallets = cls(cap_epsilon, delta)
        wallets._watch(measure)
        for entry in history:
            wallets.spend(entry)
        return wallets

    def _watch(self, measures: Sequence[str]) -> None:
        """Takes the measures that were fixed when the wallets made their first sales."""
        if len(measures) != self.clients or not set(measures) <= {*COLUMN_OF, "open"}:
            raise PrivacyError(f"stored wallets watch {measures}", "restore the file from a copy")
        self._fixed = np.array([name != "open" for name in measures])
        kept = zip(self._column, measures, strict=True)
        self._column = np.array([COLUMN_OF.get(name, before) for before, name in kept], dtype=np.intp)


class Wallet:
    """One client's lifetime cap on ε and everything it has sold; refuses a sale that does not fit."""

    def __init__(
        self, cap_epsilon: float, delta: float = DELTA, *, expected: Sequence[PrivacyEvent] = ()
    ) -> None:
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
        """What the filter watches: `gaussian`, or `renyi` and the order; `open` before the first sale."""
        return self._one.measure[0]

    @property
    def remaining_share(self) -> float:
        """The part of the wallet that is left, from 1 down to 0."""
        return float(self._one.remaining_share[0])

    @property
    def history(self) -> tuple[PrivacyEvent, ...]:
        """Every release that was sold, oldest first."""
        return tuple(entry[0] for entry in self._one.history if entry[0] is not None)

    @property
    def epsilon_spent(self) -> float:
        """ε at δ of the history, as the accountant reports it; the filter itself is stricter."""
        return composed_epsilon(self.history, self.delta)

    def can_spend(self, event: PrivacyEvent) -> bool:
        """Whether this release still fits under the cap; changes nothing."""
        return bool(self._one.can_spend([event])[0])

    def spend(self, event: PrivacyEvent) -> None:
        """Charges a release, or raises `WalletError` and charges nothing."""
        self._one.spend([event])

    def trim(self, family: ReleaseFamily, offered: float) -> float:
        """The largest ε up to `offered` that can still be sold; 0 when the wallet is as good as empty."""
        return float(self._one.trim(family, offered)[0])

    def to_json(self) -> str:
        """The wallet as JSON text: its cap, δ, measure and releases."""
        return self._one.to_json()

    @classmethod
    def from_json(cls, text: str) -> Wallet:
        """Restores the wallet that `to_json` wrote."""
        wallet = cls.__new__(cls)
        wallet._one = Wallets.from_json(text)
        if wallet._one.clients != 1:
            raise PrivacyError(f"stored: {wallet._one.clients} wallets, not one", "use Wallets.from_json")
        return wallet


def _require_room(wallets: Wallets) -> None:
    bad = np.flatnonzero(~(wallets.capacity > 0))
    if bad.size:
        raise PrivacyError(
            f"a lifetime cap of ε = {wallets.cap_epsilon[bad[0]]:g} at δ = {wallets.delta:g} leaves no room",
            "raise the cap or δ",
        )


def _parsed(text: str) -> _Stored:
    try:
        fields: _Stored = json.loads(text)
    except ValueError as error:
        raise PrivacyError(f"stored wallets are not JSON: {error}", "restore the file from a copy") from error
    known = _Stored.__required_keys__
    if not isinstance(fields, dict) or set(fields) != known:
        raise PrivacyError("stored wallets lack their fields", f"expected {', '.join(sorted(known))}")
    return fields
