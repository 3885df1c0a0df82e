"""Where wallets are kept, and the one rule for when ε is spent.

A sale of ε goes through at most two steps, in every engine and every store:

1. *reserved* when the client has an award. From then on it counts as spent: no second sale can use it, and a
   process that dies has spent. So it is charged before the first private byte is computed, in the same step.
2. *void* only where it is certain that nothing was released: the client refused, or never learned of its award.
   A missing, faulty or late answer is no such certainty; the sale stays charged. Except at a broker: there a seller
   claims its delivery *before* its update leaves, so one without a claim at the published deadline, after which no
   claim is taken, has released nothing, and the broker voids its award. That holds for sellers that follow the
   protocol. One that sends an update without a claim passes its own limit, is not paid, and harms nobody else. A
   Flower client that sells through a broker has a wallet of its own on its disk, which stays charged from the
   moment it accepts an order, claim or not: of the two the stricter one decides what it can still sell.

`WalletStore` names these steps as the driver of a round calls them: all clients of a round are charged, or none.
`MemoryStore` and `ReleaseBook`, in memory, are such stores. A client's file and a broker's database take the same
steps, over the same filter (`wallet.Wallets`) and with the same errors, but no driver calls them:

- `wallet_file.OpenWallet` reserves one client's sale while its file is locked, with what its statement says of the
  sale. Every client decides for itself, so there is no "all or none".
- `broker._wallets` writes a round's awards into the log, in the transaction that clears it, with payments. Whether
  they fit was checked before, outside that transaction; settlement voids row by row, between other entries.

One set of laws tests all of them, through the functions that the engines call.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Protocol

from privmarket.errors import WalletError
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._wallet import Wallets


class SoldBeforeError(WalletError):
    """A second sale under one name: a second release would be a second cost."""

    def __init__(self, sale: str) -> None:
        super().__init__(
            f"sale {sale} was made before", "sell in another round: each is sold once, even if its reply was lost"
        )


class WalletStore(Protocol):
    """Whose wallets pay in a round: what clients sold, by clients' names; see the module for the rule."""

    def reserve(self, sale: str, events: Mapping[str, PrivacyEvent]) -> None:
        """Sets aside what each client sold; it counts as spent when this returns.

        Args:
            sale: names the round in which it was sold, e.g. `run/round`.
            events: client → the release that it sold.

        Raises:
            WalletError: one does not fit, or was sold under this name before. Then nothing is set aside at all.
        """

    def void(self, sale: str, clients: Collection[str]) -> None:
        """Gives back what was set aside for clients that certainly released nothing.

        Raises:
            WalletError: a client sold nothing under this name, or its update is known to have left.
        """

    def spent(self, client: str) -> tuple[PrivacyEvent, ...]:
        """All that counts as spent by a client, oldest first; empty for a client that is not known."""


@dataclass(eq=False)
class MemoryStore:
    """The wallets of a fixed list of clients, in memory.

    Attributes:
        places: client → its position in `wallets`.
        wallets: what they have; wallets that were given are not changed, others take their place here.
    """

    places: Mapping[str, int]
    wallets: Wallets
    _sales: dict[str, tuple[int, set[str]]] = field(default_factory=dict)

    def reserve(self, sale: str, events: Mapping[str, PrivacyEvent]) -> None:
        """Reserves the releases of a sale for all clients or, if one does not fit, for none."""
        if sale in self._sales:
            raise SoldBeforeError(sale)
        entry: list[PrivacyEvent | None] = [None] * self.wallets.clients
        for client, event in events.items():
            entry[self.places[client]] = event
        charged = copy(self.wallets)
        self._sales[sale] = charged.spend(entry), set(events)
        self.wallets = charged

    def void(self, sale: str, clients: Collection[str]) -> None:
        """Gives back what was reserved, as `WalletStore.void` describes."""
        if sale not in self._sales:
            raise not_reserved(sale)
        entry, sold = self._sales[sale]
        for client in clients:
            if client not in sold:
                raise not_reserved(f"{sale} of {client}")
        kept = copy(self.wallets)
        kept.void(entry, [self.places[client] for client in clients])
        self.wallets = kept
        sold.difference_update(clients)

    def spent(self, client: str) -> tuple[PrivacyEvent, ...]:
        """What counts as spent of a client's wallet, as `WalletStore.spent` describes."""
        if client not in self.places:
            return ()
        at = self.places[client]
        return tuple(event for entry in self.wallets.history if (event := entry[at]) is not None)


class ReleaseBook:
    """What clients sold, without caps: for a server whose clients keep their own wallets."""

    def __init__(self) -> None:
        self._sales: dict[str, dict[str, PrivacyEvent]] = {}

    def reserve(self, sale: str, events: Mapping[str, PrivacyEvent]) -> None:
        """Books the releases of a sale; without a cap every sale fits."""
        if sale in self._sales:
            raise SoldBeforeError(sale)
        self._sales[sale] = dict(events)

    def void(self, sale: str, clients: Collection[str]) -> None:
        """Gives back what was reserved, as `WalletStore.void` describes."""
        if sale not in self._sales:
            raise not_reserved(sale)
        for client in clients:
            if client not in self._sales[sale]:
                raise not_reserved(f"{sale} of {client}")
        for client in clients:
            del self._sales[sale][client]

    def spent(self, client: str) -> tuple[PrivacyEvent, ...]:
        """What counts as spent by a client, as `WalletStore.spent` describes."""
        return tuple(events[client] for events in self._sales.values() if client in events)

    def sales(self) -> tuple[tuple[str, dict[str, PrivacyEvent]], ...]:
        """(name, client → release) of every sale, in order."""
        return tuple((sale, dict(events)) for sale, events in self._sales.items())

    def releases(self) -> dict[str, tuple[PrivacyEvent, ...]]:
        """client → all that counts as spent, for everybody who sold something."""
        found: dict[str, list[PrivacyEvent]] = {}
        for events in self._sales.values():
            for client, event in events.items():
                found.setdefault(client, []).append(event)
        return {client: tuple(events) for client, events in found.items()}


def not_reserved(sale: str) -> WalletError:
    """What every store says of a sale that cannot be void: never reserved, released, or void already."""
    return WalletError(
        f"nothing is reserved for {sale}: it cannot be void",
        "void a sale once, after reserve() and before its update leaves",
    )
