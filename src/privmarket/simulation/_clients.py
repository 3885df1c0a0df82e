"""What the clients of a run ask for their privacy: drawn from a law, measured, or given client by client.

Needs NumPy only, so that a client can bid without loading torch.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from privmarket.errors import BidError, ConfigurationError
from privmarket.market._bids import Bids, read_bids
from privmarket.market._distributions import ValuationFunction, scenario
from privmarket.simulation._config import FederationConfig
from privmarket.tasks import label_distance

if TYPE_CHECKING:
    from privmarket.tasks import Task

# Streams of random numbers; `tasks` and `pool` hold the others.
_TYPES, _ACCURACY = 5, 10


@dataclass(frozen=True, eq=False)
class AskedPrices:
    """What each client asks, by name.

    Attributes:
        clients: names, in the order of the arrays.
        bids: (clients,) price of a unit of ε, and the most ε a round.
        wallet: (clients,) lifetime limits on ε; infinite where none was given.
    """

    clients: tuple[str, ...]
    bids: Bids
    wallet: NDArray[np.float64]

    @classmethod
    def read(cls, path: str | Path) -> AskedPrices:
        """A CSV file with client, valuation and epsilon, and perhaps wallet; see `market.read_bids`."""
        found = read_bids(path)
        return cls(found.clients, found.bids, _wallets(Path(path), found.clients))

    def of(self, names: Sequence[str]) -> AskedPrices:
        """The same in the order of these clients.

        Raises:
            BidError: a client has no bid, or a bid has no client.
        """
        place = {client: i for i, client in enumerate(self.clients)}
        missing = [name for name in names if name not in place]
        if missing:
            raise BidError(
                f"no bid of {missing[0]!r}" + (f" and {len(missing) - 1} more clients" if len(missing) > 1 else ""),
                "give every client a line, with its name as in the data",
            )
        unknown = sorted(set(self.clients) - set(names))
        if unknown:
            raise BidError(f"a bid of {unknown[0]!r}, who holds no records", "remove the line, or correct the name")
        order = np.array([place[name] for name in names])
        return AskedPrices(tuple(names), self.bids[order], self.wallet[order])

    def digest(self) -> str:
        """Names these prices, so that a checkpoint belongs to them."""
        text = repr((self.clients, self.bids.valuation.tolist(), self.bids.epsilon.tolist(), self.wallet.tolist()))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _wallets(path: Path, clients: Sequence[str]) -> NDArray[np.float64]:
    """The column `wallet` of a file of bids; infinite where it is absent or empty."""
    limits = dict.fromkeys(clients, np.inf)
    with path.open(newline="", encoding="utf-8-sig") as stream:
        header = stream.readline()
        stream.seek(0)
        separator = max(",;\t", key=header.count)
        rows = csv.DictReader(stream, delimiter=separator)
        for row in rows:
            cells = {str(name).strip(): str(text or "").strip() for name, text in row.items()}
            text = cells.get("wallet", "")
            if not text:
                continue
            try:
                limit = float(text.replace(",", ".") if separator != "," else text)
            except ValueError:
                limit = -1.0
            if not limit > 0:
                raise BidError(
                    f"{path}, line {rows.line_num}, field wallet: {text!r}", "must be a number above 0, or empty"
                )
            limits[cells["client"]] = limit
    return np.array([limits[client] for client in clients])


def client_types(config: FederationConfig, number: int) -> Bids:
    """(clients,) the clients' true valuations and caps in round `number`."""
    key = [config.seed, _TYPES] + ([number] if config.types == "redrawn" else [])
    return scenario(config.scenario).sample(np.random.default_rng(key), config.clients)


def measured_types(config: FederationConfig, number: int, task: Task) -> Bids:
    """(clients,) types whose valuations follow from the clients' own records, in round `number`.

    Caps come from the scenario as ever. Sizes are relative to the mean, Δ is the total-variation distance of the
    client's labels, and the local accuracy u is drawn from [0.5, 1]: a measured one would be a second release.

    Implements: Eq. (valuation-fn) of [Sun2026].
    """
    drawn = client_types(config, number)
    sizes = task.sizes.astype(np.float64)
    accuracy = np.random.default_rng([config.seed, _ACCURACY]).uniform(0.5, 1.0, config.clients)
    function = ValuationFunction(*_weights(config.valuation_weights))
    parts = [np.arange(rows.start, rows.stop) for rows in task.slices()]
    distance = label_distance(np.asarray(task.private.labels), parts)
    valuation = function(accuracy, drawn.epsilon, sizes / sizes.mean(), distance)
    return drawn.replace(valuation=valuation)


def _weights(text: str) -> tuple[float, float, float]:
    try:
        a, b, c = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigurationError(f"valuation_weights is {text!r}", "give three numbers a,b,c, e.g. 1,0,1") from None
    if min(a, b, c) < 0 or not np.isfinite(a + b + c):
        raise ConfigurationError(f"valuation_weights is {text!r}", "give numbers that are not negative")
    return a, b, c
