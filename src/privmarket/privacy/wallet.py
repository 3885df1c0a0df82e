"""A lifetime cap on what each client may sell, that holds even when every sale is chosen by what came before.

A wallet is a *filter*: before each release it says whether the release still fits, and whatever sequence of
releases passes it, chosen adaptively by anyone who saw all the earlier outputs, is (cap, δ)-DP in total.

Adaptive choice is why a wallet watches one Rényi order that is fixed when it is opened. Re-reading the whole
curve after each sale and taking the best order (as the accountant does for a report) is valid for a sequence
fixed in advance, but not as a stopping rule.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket.errors import PrivacyError, WalletError
from privmarket.privacy.accountant import composed_epsilon, release_cost, release_costs
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.privacy.events import DEFAULT_DELTA, PrivacyEvent, from_json, release, require_delta, to_json
from privmarket.privacy.gaussian import Array
from privmarket.privacy.renyi import ORDERS, conversion_cost

# The filter's running sum may exceed the cap's divergence by nothing at all; only trimming needs slack, to
# stay below the cap when its own answer is rounded.
_TRIM_RETRIES = 3


class Wallets:
    """The wallets of many clients, charged together.

    Attributes:
        cap_epsilon: (clients,) lifetime caps; infinite means no cap.
        delta: the δ at which the caps hold.
        order: (clients,) the Rényi order each wallet watches.
        capacity: (clients,) the divergence at that order which may be spent in all.
        spent: (clients,) the divergence at that order which has been spent.

    Implements: the Rényi filter of [FeldmanZrnic2021] (also [Lecuyer2021]): if Σ ρ_t(α) ≤ B almost surely
    for one α fixed in advance, the adaptively chosen sequence is (α, B)-RDP; B is what Proposition 12 of
    [CanonneKamathSteinke2020] turns into the cap at δ.
    """

    def __init__(
        self, cap_epsilon: ArrayLike, delta: float = DEFAULT_DELTA, *, expected: PrivacyEvent | None = None
    ) -> None:
        """`expected` is a typical release, public and chosen in advance: the order is tuned to it."""
        require_delta(delta)
        caps = np.atleast_1d(np.array(cap_epsilon, dtype=np.float64))
        if caps.ndim != 1 or caps.size == 0 or not (caps > 0).all():
            raise PrivacyError(f"wallet caps are {cap_epsilon!r}", "give one ε above 0 per client")
        self.delta = delta
        self.cap_epsilon = caps
        chosen = [_best_order(cap, delta, expected) for cap in caps]
        self._order_at = np.array([at for at, _ in chosen])
        self.capacity: Array = np.array([capacity for _, capacity in chosen])
        self.spent: Array = np.zeros(caps.size)
        self._history: list[tuple[PrivacyEvent | None, ...]] = []
        for array in (self.cap_epsilon, self._order_at, self.capacity):
            array.setflags(write=False)

    @property
    def clients(self) -> int:
        """How many wallets there are."""
        return int(self.cap_epsilon.size)

    @property
    def order(self) -> Array:
        """(clients,) the Rényi order each wallet watches."""
        return np.asarray(ORDERS[self._order_at])

    @property
    def remaining_share(self) -> Array:
        """(clients,) the part of its capacity that each wallet still has, from 1 down to 0."""
        with np.errstate(invalid="ignore"):
            share = 1.0 - self.spent / self.capacity
        return np.asarray(np.where(np.isinf(self.capacity), 1.0, np.maximum(share, 0.0)))

    @property
    def history(self) -> tuple[tuple[PrivacyEvent | None, ...], ...]:
        """One entry per call of `spend`: each client's event, None where it sold nothing."""
        return tuple(self._history)

    def copy(self) -> Wallets:
        """Independent wallets with the same past; the events themselves are shared, as they cannot change."""
        twin = copy.copy(self)
        twin._history = list(self._history)
        return twin

    def can_spend(self, events: Sequence[PrivacyEvent | None]) -> NDArray[np.bool_]:
        """(clients,) whether each client's event still fits; None always does."""
        return self.spent + self._cost(events) <= self.capacity

    def spend(self, events: Sequence[PrivacyEvent | None]) -> None:
        """Charges one event (or None) per client: all of them, or, if one does not fit, none."""
        entry = tuple(events)
        total = self.spent + self._cost(entry)
        over = np.flatnonzero(total > self.capacity)
        if over.size:
            first = int(over[0])
            raise WalletError(
                f"client {first}: {entry[first]} would pass its cap of ε = {self.cap_epsilon[first]:g}"
                f" at δ = {self.delta:g} ({over.size} client(s) in all); nothing was charged",
                "trim the offer first: wallet.trim(family, epsilon)",
            )
        self.spent = total
        self._history.append(entry)

    def trim(self, family: ReleaseFamily, offered: ArrayLike) -> Array:
        """(clients,) the largest ε up to `offered` that each client can still sell; 0 where nothing fits.

        Args:
            family: what is released in the round.
            offered: (clients,) or one ε for all, ≥ 0.
        """
        asked = np.broadcast_to(np.asarray(offered, dtype=np.float64), (self.clients,))
        if not (asked >= 0).all():
            raise PrivacyError(f"offered ε is {asked[~(asked >= 0)][0]}", "offer an ε of at least 0")
        result = np.where(self._fits(family, asked), asked, 0.0)
        left = np.flatnonzero(result < asked)
        if left.size:
            result[left] = self._largest_on_menu(family, left, asked[left])
        return result

    def _fits(self, family: ReleaseFamily, epsilon: Array) -> NDArray[np.bool_]:
        """(clients,) whether selling ε fits; 0 always does."""
        events: list[PrivacyEvent | None] = [None] * epsilon.size
        selling = np.flatnonzero(epsilon > 0)
        if selling.size:
            noise = family.noise_multiplier(epsilon[selling])
            for client, sigma in zip(selling, noise, strict=True):
                events[client] = release(float(sigma), family.sampling_rate, family.steps)
        return self.can_spend(events)

    def _largest_on_menu(self, family: ReleaseFamily, who: NDArray[np.intp], asked: Array) -> Array:
        """(who,) the first, hence largest, entry of the family's menu that fits, below what was asked."""
        menu, cost = _menu_with_costs(family)
        found = np.zeros(who.size)
        for at in np.unique(self._order_at[who]):
            mine = np.flatnonzero(self._order_at[who] == at)
            room = (self.capacity - self.spent)[who[mine]]
            # Costs fall along the menu, so the first that fits is found by bisection.
            first = np.searchsorted(-cost[:, at], -room, side="left")
            first = np.maximum(first, np.searchsorted(-menu, -asked[mine], side="left"))
            found[mine] = np.where(first < menu.size, menu[np.minimum(first, menu.size - 1)], 0.0)
        for _ in range(_TRIM_RETRIES):
            full = np.zeros(self.clients)
            full[who] = found
            bad = ~self._fits(family, full)[who]
            if not bad.any():
                return found
            # The ε of a menu entry, turned back into noise, may land one rounding error below the entry.
            after = np.searchsorted(-menu, -found[bad], side="right")
            found[bad] = np.where(after < menu.size, menu[np.minimum(after, menu.size - 1)], 0.0)
        return np.where(bad, 0.0, found)

    def _cost(self, events: Sequence[PrivacyEvent | None]) -> Array:
        if len(events) != self.clients:
            raise PrivacyError(f"{len(events)} events for {self.clients} wallets", "give one per client")
        rows = release_costs(events)
        return np.asarray(rows[np.arange(self.clients), self._order_at])

    def to_json(self) -> str:
        """Caps, δ, orders and the events; what was spent is recomputed from them."""
        events = [[None if e is None else to_json(e) for e in entry] for entry in self._history]
        caps = [None if np.isinf(c) else float(c) for c in self.cap_epsilon]
        return json.dumps(
            {"cap_epsilon": caps, "delta": self.delta, "order": self.order.tolist(), "events": events}
        )

    @classmethod
    def from_json(cls, text: str) -> Wallets:
        """The wallets that `to_json` wrote, charged again event by event."""
        fields = _parsed(text)
        wallets = cls([np.inf if c is None else c for c in fields["cap_epsilon"]], fields["delta"])
        wallets._watch(fields["order"])
        for entry in fields["events"]:
            wallets.spend([None if e is None else from_json(e) for e in entry])
        return wallets

    def _watch(self, orders: Sequence[float]) -> None:
        """Takes the orders that were fixed when the wallets were first opened."""
        at = np.array([int(np.abs(ORDERS - order).argmin()) for order in orders])
        if at.size != self.clients or not np.array_equal(ORDERS[at], np.asarray(orders, dtype=np.float64)):
            raise PrivacyError(f"stored wallets watch orders {orders}", "the file is damaged")
        self._order_at = at
        self.capacity = self.cap_epsilon - conversion_cost(ORDERS[at], self.delta)


class Wallet:
    """One client's wallet: the same filter, in scalars."""

    def __init__(
        self, cap_epsilon: float, delta: float = DEFAULT_DELTA, *, expected: PrivacyEvent | None = None
    ) -> None:
        self._one = Wallets([cap_epsilon], delta, expected=expected)

    @property
    def cap_epsilon(self) -> float:
        """The lifetime cap."""
        return float(self._one.cap_epsilon[0])

    @property
    def delta(self) -> float:
        """The δ at which the cap holds."""
        return self._one.delta

    @property
    def order(self) -> float:
        """The Rényi order the filter watches."""
        return float(self._one.order[0])

    @property
    def remaining_share(self) -> float:
        """The part of the wallet that is left, from 1 down to 0."""
        return float(self._one.remaining_share[0])

    @property
    def history(self) -> tuple[PrivacyEvent, ...]:
        """Everything that was sold, oldest first."""
        return tuple(entry[0] for entry in self._one.history if entry[0] is not None)

    @property
    def epsilon_spent(self) -> float:
        """ε at δ of the history by Rényi accounting over all orders: a report, not the filter."""
        return composed_epsilon(self.history, self.delta)

    def can_spend(self, event: PrivacyEvent) -> bool:
        """Whether the release still fits. Changes nothing."""
        return bool(self._one.can_spend([event])[0])

    def spend(self, event: PrivacyEvent) -> None:
        """Charges a release, or raises `WalletError` and charges nothing."""
        self._one.spend([event])

    def trim(self, family: ReleaseFamily, offered: float) -> float:
        """The largest ε up to `offered` that can still be sold; 0 when the wallet is as good as empty."""
        return float(self._one.trim(family, offered)[0])

    def to_json(self) -> str:
        """Cap, δ, order and events."""
        return self._one.to_json()

    @classmethod
    def from_json(cls, text: str) -> Wallet:
        """The wallet that `to_json` wrote."""
        wallet = cls.__new__(cls)
        wallet._one = Wallets.from_json(text)
        if wallet._one.clients != 1:
            raise PrivacyError(f"stored: {wallet._one.clients} wallets, not one", "use Wallets.from_json")
        return wallet


def _best_order(cap_epsilon: float, delta: float, expected: PrivacyEvent | None) -> tuple[int, float]:
    """Index of the order that admits most copies of the expected release, and its capacity.

    Without one, the order is the best for many small Gaussian releases, for which ρ(α) ∝ α.
    """
    if np.isinf(cap_epsilon):
        return 0, np.inf
    capacity = cap_epsilon - conversion_cost(ORDERS, delta)
    per_release = ORDERS if expected is None else release_cost(expected)
    copies = np.where(capacity > 0, capacity / per_release, -np.inf)
    best = int(np.argmax(copies))
    if not capacity[best] > 0:
        raise PrivacyError(
            f"a lifetime cap of ε = {cap_epsilon:g} at δ = {delta:g} leaves no room for any sale",
            "raise the cap or δ",
        )
    return best, float(capacity[best])


@lru_cache(maxsize=64)
def _menu_with_costs(family: ReleaseFamily) -> tuple[Array, Array]:
    """(points,) ε on offer, falling, and (points, orders) what each costs."""
    noise, epsilon = family.menu()
    cost = release_costs([release(float(s), family.sampling_rate, family.steps) for s in noise])
    return epsilon, cost


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise PrivacyError(f"stored wallets are not JSON: {error}", "restore the file") from error
    known = {"cap_epsilon", "delta", "order", "events"}
    if not isinstance(fields, dict) or set(fields) != known:
        raise PrivacyError("stored wallets lack their fields", f"expected {', '.join(sorted(known))}")
    return fields
