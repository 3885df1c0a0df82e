"""The one interface of every auction rule: bids and a budget in, an outcome out.

A rule implements `clear`; everybody else calls `run`, which checks what `clear` decided. A rule also declares
what it promises: each promise is a `Guarantee` (`market._guarantees` has them). Tests, tables and the broker check
that same declaration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from inspect import isfunction, signature
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from privmarket.errors import BidError, ConfigurationError, OutcomeError
from privmarket.market._bids import Array, Bids
from privmarket.market._outcome import Outcome, is_beyond

# How many numbers the default `unilateral` may hold in one field at once.
_CHUNK_CELLS = 2_000_000
# So little below 0, as a share of an offer or of the budget, is a difference that should have come out as 0.
_DUST = 1e-12


@dataclass(frozen=True)
class WitnessTypes:
    """The market of a witness in full, so that the rule can be run on it again.

    Attributes:
        valuation, epsilon: the true types of all clients.
        data_size, accuracy: the same of what rules may know besides; None where the market has none.
        budget: money of the market.
        coins: of a rule that throws coins, the seed of the throw; else None.
    """

    valuation: tuple[float, ...]
    epsilon: tuple[float, ...]
    data_size: tuple[float, ...] | None
    accuracy: tuple[float, ...] | None
    budget: float
    coins: int | None = None

    @staticmethod
    def of(market: Bids, budget: float, coins: int | None = None) -> WitnessTypes:
        """The types of one market, (clients,)."""

        def row(column: Array | None) -> tuple[float, ...] | None:
            return None if column is None else tuple(column.tolist())

        valuation = tuple(market.valuation.tolist())
        epsilon = tuple(market.epsilon.tolist())
        return WitnessTypes(valuation, epsilon, row(market.data_size), row(market.accuracy), budget, coins)


@dataclass(frozen=True)
class Witness:
    """One client of one market that shows how a promise breaks: anybody can run the rule on it again.

    Attributes:
        market: index of the market among those that were sampled, () for any other.
        client: index of the client in its market; None where the promise is about the market as a whole.
        valuation, epsilon: the client's true type.
        reported_valuation, reported_epsilon: what it reported; its type where the truth already breaks the promise.
        sold, paid: what the rule gave it for that report.
        gain: money gained over the truth; for a promise about outcomes, money short or too much.
        types: the whole market, where an audit found it.
    """

    market: tuple[int, ...]
    client: int | None
    valuation: float
    epsilon: float
    reported_valuation: float
    reported_epsilon: float
    sold: float
    paid: float
    gain: float
    types: WitnessTypes | None = field(default=None, repr=False)

    def __str__(self) -> str:
        if self.client is None:
            place = f"{f'market {_index(self.market)}' if self.market else 'a market'} pays {self.paid:.6g}"
            return f"{place}, {self.gain:.3g} too much"
        who = f"client {self.client}"
        if self.market:
            who += f" of market {_index(self.market)}"
        who += f" with (v, ε) = ({self.valuation:.6g}, {self.epsilon:.6g})"
        deal = f"sells {self.sold:.6g} for {self.paid:.6g}"
        if (self.reported_valuation, self.reported_epsilon) == (self.valuation, self.epsilon):
            return f"{who} {deal}: {self.gain:.3g} off"
        report = f"({self.reported_valuation:.6g}, {self.reported_epsilon:.6g})"
        return f"{who} reports {report}, {deal}: gains {self.gain:.3g}"


@dataclass(frozen=True)
class CoalitionWitness:
    """Several clients of one market that gain together by what they report, with side payments among them.

    Attributes:
        market: index of the market among those that were tried, () where there was one.
        clients: indices of the members in their market; the other tuples have an entry for each of them.
        valuation, epsilon: the members' true types.
        reported_valuation, reported_epsilon: what they report.
        gain: money that they gain over the truth, all together.
        types: the whole market, where an audit found it.
    """

    market: tuple[int, ...]
    clients: tuple[int, ...]
    valuation: tuple[float, ...]
    epsilon: tuple[float, ...]
    reported_valuation: tuple[float, ...]
    reported_epsilon: tuple[float, ...]
    gain: float
    types: WitnessTypes | None = field(default=None, repr=False)

    def __str__(self) -> str:
        def pairs(valuations: tuple[float, ...], epsilons: tuple[float, ...]) -> str:
            return ", ".join(f"({v:.4g}, {e:.4g})" for v, e in zip(valuations, epsilons, strict=True))

        who = f"clients {', '.join(str(client) for client in self.clients)}"
        if self.market:
            who += f" of market {_index(self.market)}"
        truth = pairs(self.valuation, self.epsilon)
        reports = pairs(self.reported_valuation, self.reported_epsilon)
        return f"{who} with (v, ε) = {truth} report {reports}: gain {self.gain:.3g} together"


def _index(market: tuple[int, ...]) -> str:
    return ", ".join(str(i) for i in market)


@dataclass(frozen=True)
class Finding:
    """Whether a promise held, and by how much it was broken at worst (0 where it held to the last digit)."""

    promise: str
    held: bool
    worst: float
    witness: Witness | CoalitionWitness | None = None

    @property
    def detail(self) -> str:
        """The witness in words, "" where there is none."""
        return "" if self.witness is None else str(self.witness)


class Guarantee(ABC):
    """The interface of a promise that a mechanism makes, such as `Truthful` or `BudgetFeasible`."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The promise in a few words, for tables."""

    @abstractmethod
    def check(self, mechanism: Mechanism, types: Bids, budget: ArrayLike, rng: np.random.Generator) -> Finding:
        """Tries to break the promise on the markets `types`, (..., clients)."""


class Mechanism(ABC):
    """A reverse auction for ε under a budget.

    Subclasses set `name` and implement `clear`. Configuration goes to the constructor and never depends on the
    bids.

    Attributes:
        name: what tables and errors call the rule.
        version: its semantic version; raise it whenever the same bids may give another outcome.
        guarantees: what the rule promises; the audit attacks each promise.
        market_facts: fields of `MarketFacts` that the constructor takes under the same name.
        sells_beyond_offers: True for a rule that may award more ε than a client offered, as two rules printed
            in the literature do; `run` refuses such an outcome from any other rule.
        exact_in_batches: False for a rule whose outcome may differ in its last digits with the markets beside it,
            as products of matrices do; attacks ask it about one report at a time.
    """

    name: ClassVar[str]
    version: str = "1.0.0"
    guarantees: tuple[Guarantee, ...] = ()
    market_facts: ClassVar[tuple[str, ...]] = ()
    sells_beyond_offers: ClassVar[bool] = False
    exact_in_batches: ClassVar[bool] = True

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        require_arguments(cls, "clear", "bids", "budget")

    def run(self, bids: Bids, budget: ArrayLike) -> Outcome:
        """Clears one auction per leading index of `bids` and checks the outcome.

        Args:
            bids: offers, (..., clients).
            budget: money that may be spent in each market, a number or an array (...,), > 0.

        Returns:
            ε and payments, (..., clients).

        Raises:
            BidError: `bids` is something else than `Bids`.
            ConfigurationError: the budget is not positive or does not fit the shape of the bids.
            OutcomeError: the rule returned no `Outcome`, one of another shape than the bids, or some client's ε or
                payment is negative, infinite, not a number, or more ε than that client offered; or the rule called
                `sys.exit`.
        """
        if not isinstance(bids, Bids):
            raise BidError(
                f"{self.name}: the bids are a {type(bids).__name__}, not Bids",
                "give privmarket.Bids(valuation=[…], epsilon=[…]), one number for each client",
            )
        column = budget_column(budget, bids.shape)
        try:
            outcome = self.clear(bids, column)
        except SystemExit as error:
            raise OutcomeError.of_exit(self.name, error) from error
        if not isinstance(outcome, Outcome):
            raise OutcomeError(
                f"{self.name}: clear returned {type(outcome).__name__}, not an Outcome",
                "return privmarket.Outcome(epsilon, payment)",
            )
        for name in ("epsilon", "payment"):
            array = getattr(outcome, name)
            if array.shape != bids.shape:
                raise OutcomeError(
                    f"{self.name}: {name} has shape {array.shape} where the bids have {bids.shape}",
                    "give one number per client and market",
                )
            # min and max carry a NaN along, and every comparison with it is false.
            if not (array.min() >= 0 and array.max() < np.inf):
                scale = bids.epsilon if name == "epsilon" else column
                array = np.where((array < 0) & (array >= -_DUST * scale), 0.0, array)
                bad = ~((array >= 0) & (array < np.inf))
                if bad.any():
                    raise self._refusal(bad, name, array, bids, "finite and at least 0")
                outcome = replace(outcome, **{name: array})  # type: ignore[arg-type]
        if not self.sells_beyond_offers and not bool((outcome.epsilon <= bids.epsilon).all()):
            above = is_beyond(outcome.epsilon, bids.epsilon)
            if above.any():
                most = "at most the ε that the client offered"
                raise self._refusal(above, "epsilon", outcome.epsilon, bids, most)
        if bids.client_ids is not None and outcome.client_ids is None:
            return replace(outcome, client_ids=bids.client_ids)
        return outcome

    def _refusal(self, bad: np.ndarray, field: str, array: Array, bids: Bids, expectation: str) -> OutcomeError:
        """Names the first client for whom the rule decided something that it may not decide."""
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        offer = f"valuation {bids.valuation[at]:g}, offered ε {bids.epsilon[at]:g}"
        return OutcomeError(
            f"{self.name}: {field} of {bids.label(at)} is {array[at]:g} ({offer}): must be {expectation}",
            "mend the rule: the outcome was not used",
        )

    @abstractmethod
    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """The rule itself. Write this method; call `run`.

        Args:
            bids: valid offers, every field (..., clients) in float64 and read-only. Leading indices are
                independent markets: there may be none (one market), one, or several.
            budget: (..., 1) positive money per market, ready to be compared with (..., clients).

        Returns:
            An `Outcome` with `epsilon` and `payment` of shape (..., clients): finite, at least 0 (`run` makes 0 of
            what rounding leaves below it), and no client sells more ε than it offered.
        """

    def unilateral(self, bids: Bids, reports: Bids, budget: ArrayLike) -> Outcome:
        """What each client would get if it alone reported `reports[i]` while all others keep `bids`.

        This default runs one auction per client, O(N) auctions of N clients. Rules in which a client meets
        the others only through a population sum override it and answer all N deviations in O(N).

        Args:
            bids: what the others report, (..., clients).
            reports: what each client reports instead, (..., clients).

        Returns:
            An outcome (..., clients) whose entry i comes from the auction in which only i deviated.
        """
        column = budget_column(budget, bids.shape)
        lead = bids.shape[:-1]
        n = bids.clients
        markets = max(1, int(np.prod(lead)))
        step = max(1, _CHUNK_CELLS // (markets * n))
        epsilon = np.empty(bids.shape)
        payment = np.empty(bids.shape)
        for start in range(0, n, step):
            deviators = np.arange(start, min(start + step, n))
            mine = (..., np.arange(deviators.size), deviators)
            money = np.broadcast_to(column, (*lead, deviators.size))
            outcome = self.run(deviations(bids, reports, deviators), money)
            epsilon[..., deviators] = outcome.epsilon[mine]
            payment[..., deviators] = outcome.payment[mine]
        return Outcome(epsilon, payment)

    def why_nothing_sold(self, bids: Bids, budget: float) -> str:
        """In one market (clients,) in which this rule sells nothing: the rule's own reason, or "" for none.

        Override it where the rule has a reserve or a condition that a user cannot see from bids and budget.
        """
        return ""

    def __repr__(self) -> str:
        return f"<mechanism {self.name}>"


def require_arguments(kind: type, method: str, *arguments: str) -> None:
    """Refuses a class whose own `method` cannot be called with these arguments, when the class is made.

    Raises:
        ConfigurationError: it needs others.
    """
    written = vars(kind).get(method)
    if not isfunction(written):
        return
    try:
        signature(written).bind("self", *arguments)
    except TypeError as error:
        coins = "clear_with(self, bids, budget, rng)"
        raise ConfigurationError(
            f"{kind.__name__}.{method}{signature(written)} is called as {method}({', '.join(arguments)}): {error}",
            f"settings are arguments of __init__; a rule that throws coins derives from "
            f"privmarket.market.RandomisedMechanism and writes {coins} in place of clear (page “Your own rule”, "
            "“Settings, public facts, coins”)",
        ) from error


def deviations(bids: Bids, reports: Bids, deviators: np.ndarray) -> Bids:
    """(..., deviators, clients): row r is `bids` with client deviators[r]'s report put in."""

    def spread(name: str) -> Array | None:
        truth = getattr(bids, name)
        report = getattr(reports, name)
        if truth is None:
            return None
        rows = np.repeat(truth[..., None, :], deviators.size, axis=-2)
        rows[..., np.arange(deviators.size), deviators] = report[..., deviators]
        return rows

    return bids.replace(
        valuation=spread("valuation"),
        epsilon=spread("epsilon"),
        data_size=spread("data_size"),
        accuracy=spread("accuracy"),
    )


def budget_column(budget: ArrayLike, shape: tuple[int, ...]) -> Array:
    """(..., 1) from a number or an array (...,)."""
    array = np.asarray(budget, dtype=np.float64)
    if not bool(np.all((array > 0) & (array < np.inf))):
        raise ConfigurationError(f"budget is {array}: must be finite and above 0", "give the money per round")
    try:
        return np.broadcast_to(array, shape[:-1])[..., None]
    except ValueError as error:
        raise ConfigurationError(
            f"budget of shape {array.shape} does not fit bids of shape {shape}", "give one budget per market"
        ) from error
