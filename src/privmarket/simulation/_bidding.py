"""The clients' true valuations in a run, and the valuations that they report.

True valuations are drawn from a distribution, measured from the clients' records, or given client by client.
Clients report them truthfully, by a solved game, or by what was profitable so far. A reporting strategy knows only
what clients
know: their own valuations, what is left of their wallets, and the records of earlier rounds, from which each reads
its own sales and pay.

This module does not need torch, so a client can bid without it.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from privmarket._lazy import late
from privmarket.errors import BidError, ConfigurationError
from privmarket.market._bids import Array, Bids, read_bids
from privmarket.market._distributions import Distribution, IndependentDistribution, ValuationFunction, scenario
from privmarket.market._menus import POSTED_PRICE
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._wallet import Wallets
from privmarket.rounds import MICRO, RoundRecord
from privmarket.simulation._config import FederationConfig
from privmarket.tasks import label_distance

if TYPE_CHECKING:
    from privmarket import meanfield
    from privmarket.tasks import Task
else:
    meanfield = late("privmarket.meanfield")

# Names of streams of random numbers; `tasks` and `_pool` hold the others.
_TYPES = 5
_ACCURACY = 10


@dataclass(frozen=True, eq=False)
class AskedPrices:
    """The price that each client asks, by name.

    Attributes:
        clients: names, in the order of the arrays.
        bids: (clients,) price of a unit of ε, and the most ε a round.
        wallet: (clients,) lifetime limits on ε; infinite where none was given.
        source: the file, for messages.
    """

    clients: tuple[str, ...]
    bids: Bids
    wallet: NDArray[np.float64]
    source: str = "bids"

    @classmethod
    def read(cls, path: str | Path) -> AskedPrices:
        """A CSV file with client, valuation and epsilon, and perhaps wallet; see `market._bid_file`."""
        found = read_bids(path)
        return cls(found.clients, found.bids, _wallets(Path(path), found.clients), str(path))

    def of(self, names: Sequence[str]) -> AskedPrices:
        """The same prices in the order of these clients.

        Raises:
            BidError: a client has no bid, or a bid has no client.
        """
        place = {client: i for i, client in enumerate(self.clients)}
        missing = [name for name in names if name not in place]
        if missing:
            raise BidError(
                f"{self.source}: no bid of {_some(missing)}",
                "give every client a line, with its name as in the data",
            )
        unknown = sorted(set(self.clients) - set(names))
        if unknown:
            raise BidError(
                f"{self.source}: no records are held by {_some(unknown)}",
                "remove these lines, or correct the names",
            )
        order = np.array([place[name] for name in names])
        return AskedPrices(tuple(names), self.bids[order], self.wallet[order], self.source)

    def digest(self) -> str:
        """A digest of these prices; a checkpoint belongs to one."""
        text = repr((self.clients, self.bids.valuation.tolist(), self.bids.epsilon.tolist(), self.wallet.tolist()))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _some(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many there are beyond them."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


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


_ASKS = {"uniform": "Uniform(0, 1)", "bimodal": "Uniform(0, 1)", "lognormal": "LogNormal(0, ½)"}


def asks_sentence(config: FederationConfig) -> str:
    """Where the clients' asks come from, if nobody made them; empty where they were given client by client."""
    if config.bids or not config.privacy.holds_auctions:
        return ""
    source = f"drawn from {_ASKS.get(config.scenario, config.scenario)}"
    if config.valuations == "measured":
        source = "computed from their records"
    return (
        f"What clients ask was {source}, not made by these clients; every sum of money scales with it "
        "(--bids FILE gives real asks)."
    )


def measured_types(config: FederationConfig, number: int, task: Task) -> Bids:
    """(clients,) types whose valuations follow from the clients' own records, in round `number`.

            Caps come from the scenario as usual. Sizes are relative to the mean, Δ is the total-variation distance
    of the client's labels, and the local accuracy u is drawn from [0.5, 1]: a measured one would be a second
    release.

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


Strategy = Callable[[Array, Array, float], Array]
"""(valuation, remaining budget, round) ↦ reported valuation, arrays (clients,); a solved game gives one."""

FACTORS = (0.8, 1.0, 1.1, 1.25, 1.5, 2.0)
"""The factors that learning bidders try on their valuations."""
_EXPLORING = 8  # names the stream of random numbers that decides which client tries which factor
# The probability with which a client tries a factor at random, at first and in the end.
_FIRST_SHARE = 0.5
_LEAST_SHARE = 0.05
_TRUTH = FACTORS.index(1.0)
_SALE_IN_SHARES = 3.0  # the game lets a client sell up to three even shares of its budget in a round


class Bidding(Protocol):
    """A reporting strategy of a run's clients; there are two, `Fixed` and `Learning`."""

    def reports(self, valuation: Array, left: Array, number: int, past: Sequence[RoundRecord]) -> Array:
        """(clients,) the valuation that each client reports in round `number`, given all earlier rounds.

        Args:
            valuation: (clients,) true valuations; left: (clients,) what wallets have left, infinity without one.
        """


class Fixed:
    """Reports by a fixed function of (valuation, what is left of the wallet, round)."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def reports(self, valuation: Array, left: Array, number: int, past: Sequence[RoundRecord]) -> Array:
        """The reports that the function gives for these valuations, wallets and this round, (clients,)."""
        return self.strategy(valuation, left, float(number))


class Learning:
    """Every client tries factors on its valuation and mostly uses the one with the largest surplus so far.

    It starts with the truth. In round t it tries a random factor with probability ½/√(t + 1), at least 0.05;
    otherwise it uses the factor with the largest mean surplus p − v·ε. Valuations are assumed to be persistent. The
    random choices follow from seed and round, and the rest from the records, so a resumed run continues unchanged.
    """

    def __init__(self, names: Sequence[str], seed: int) -> None:
        self.clients = len(names)
        self.seed = seed
        self._place = {name: i for i, name in enumerate(names)}
        self._gain = np.zeros((len(FACTORS), self.clients))
        self._tries = np.zeros((len(FACTORS), self.clients))
        self._learned = 0

    def reports(self, valuation: Array, left: Array, number: int, past: Sequence[RoundRecord]) -> Array:
        """Each client's valuation times the factor that it tries in this round, (clients,)."""
        for record in past[self._learned :]:
            self._learn(valuation, record)
        asked: Array = valuation * np.array(FACTORS)[self.choices(number)]
        return asked

    def choices(self, number: int) -> np.ndarray:
        """(clients,) which factor each client uses in round `number`, after all rounds before it."""
        rng = np.random.default_rng([self.seed, _EXPLORING, number])
        tries = rng.random(self.clients) < max(_LEAST_SHARE, _FIRST_SHARE / (number + 1) ** 0.5)
        mean = np.where(self._tries > 0, self._gain / np.maximum(self._tries, 1), 0.0)
        # Ties are broken in favour of the truth.
        best = np.where(mean[_TRUTH] >= mean.max(axis=0) * (1 - 1e-9), _TRUTH, mean.argmax(axis=0))
        if number == 0:
            return best
        return np.where(tries, rng.integers(len(FACTORS), size=self.clients), best)

    def _learn(self, valuation: Array, record: RoundRecord) -> None:
        """Adds each client's surplus in a round to the account of the factor that it used."""
        used = self.choices(record.number)
        surplus = np.zeros(self.clients)
        for client, epsilon in record.sold_epsilon.items():
            place = self._place[client]
            surplus[place] -= valuation[place] * epsilon
        for client, paid in record.paid_micro.items():
            surplus[self._place[client]] += paid / MICRO
        everyone = np.arange(self.clients)
        self._gain[used, everyone] += surplus
        self._tries[used, everyone] += 1
        self._learned += 1


def bidding_of(
    config: FederationConfig,
    names: Sequence[str],
    distribution: Distribution,
    family: ReleaseFamily,
    strategy: Strategy | None,
) -> Bidding | None:
    """The reporting strategy of a run, None for the truth. A `strategy` given in code has precedence.

    Raises:
        ConfigurationError: `equilibrium` without a wallet, or with a distribution without valuations of its own.
    """
    if strategy is not None:
        return Fixed(strategy)
    if config.strategy == "learning":
        return Learning(names, config.seed)
    if config.strategy == "equilibrium":
        return Fixed(_equilibrium(config, distribution, family))
    return None


def _equilibrium(config: FederationConfig, distribution: Distribution, family: ReleaseFamily) -> Strategy:
    """The bid function of the mean-field game that fits the run: its horizon, money and lifetime ε.

    In the game a budget is spent in proportion to ε; a wallet counts a privacy measure. A client's budget in the
    game is therefore set to what it can sell in all if it sells evenly over the rounds.
    """
    if config.wallet is None or not isinstance(distribution, IndependentDistribution):
        raise ConfigurationError(
            f"strategy 'equilibrium' with wallet {config.wallet} and scenario {config.scenario!r}",
            "looking ahead needs a lifetime limit: give --wallet, and uniform, bimodal or lognormal as scenario",
        )
    wallets = Wallets(np.full(1, config.wallet), config.delta)
    even = float(wallets.affordable(family, distribution.epsilon_max, config.rounds)[0])
    lifetime = even * config.rounds
    wallet = config.wallet
    game = meanfield.Problem.from_scenario(
        IndependentDistribution(
            distribution.name, distribution.valuation, lambda u: np.full(np.shape(u), lifetime), lifetime
        ),
        budget_per_client=config.budget_per_round / config.clients,
        horizon=float(config.rounds),
        market=meanfield.MenuMarket(POSTED_PRICE, sale_cap=_SALE_IN_SHARES * even),
        reversion=0.0,
        relative_volatility=0.0 if config.types == "persistent" else 1.0,
    )
    solved = meanfield.solve(game, grid=meanfield.Grid(32, 32, 100), tolerance=1e-4)
    if solved.result is not meanfield.Result.CONVERGED:
        raise ConfigurationError(
            f"the clients' game has no solution here: {solved.result.value}",
            "change budget, wallet or rounds, or report truthfully",
        )
    bid = solved.strategy()
    return lambda valuation, left, number: bid(valuation, left / wallet * lifetime, number)
