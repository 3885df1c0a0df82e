"""What outcomes must keep, tried on every auction that an attack runs and on markets made for the purpose.

A misreport is somebody's possible type. So in each auction of an attack everybody must be paid their cost as
reported, and the budget must hold, as in any market that is sampled.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket._settings import TOLERANCE
from privmarket.errors import OutcomeError
from privmarket.market._attacks import Regret
from privmarket.market._bids import Array, Bids
from privmarket.market._guarantees import IndividuallyRational, OutcomeGuarantee, WithinOffer
from privmarket.market._mechanism import Finding, Mechanism, WitnessTypes, budget_column, deviations
from privmarket.market._outcome import Outcome
from privmarket.market._randomised import FixedCoins

# How far two answers about one market may be apart in a rule whose outcomes differ with the batch, as a share of
# the budget.
_APART_IN_BATCHES = 1e-3
# Reports drawn for each attacked market, and clients asked about each, to compare `unilateral` with `run`.
_REPORTS = 3
_ASKED = 6


class Record:
    """The worst breach seen of each promise about outcomes, with its market."""

    def __init__(self, promises: Sequence[OutcomeGuarantee]) -> None:
        self.promises = tuple(promises)
        self.findings: dict[str, Finding] = {}
        self._worst: dict[str, float] = {}
        self._room: Array = np.empty(0)

    def look(self, rule: Mechanism, bids: Bids, outcome: Outcome, budget: Array) -> None:
        """Holds outcomes (..., clients) of truthful `bids` under `budget`, (..., 1), against every promise."""
        for promise in self.promises:
            if self._surely_kept(promise, rule, bids, outcome):
                continue
            at = self._worse(promise, bids, outcome, budget)
            if at is not None:
                market = at[:-1]
                self._keep(promise, rule, bids[market] if market else bids, float(budget[(*market, 0)]))

    def look_at_deviations(
        self, rule: Mechanism, bids: Bids, reports: Bids, outcome: Outcome, budget: ArrayLike
    ) -> None:
        """The same for the answers of `unilateral`, of which each is about one client's own report."""
        for promise in self.promises:
            about_clients = isinstance(promise, IndividuallyRational | WithinOffer)
            if about_clients and not self._surely_kept(promise, rule, reports, outcome):
                column = budget_column(budget, bids.shape)
                at = self._worse(promise, reports, outcome, column)
                if at is not None:
                    market, client = at[:-1], np.array(at[-1:])
                    one, report = (each[market] if market else each for each in (bids, reports))
                    money = float(column[(*market, 0)])
                    self._keep(promise, rule, deviations(one, report, client)[0], money)
                    refuse_apart(rule, one, report, money, client)

    def _surely_kept(self, promise: OutcomeGuarantee, rule: Mechanism, bids: Bids, outcome: Outcome) -> bool:
        """Whether a promise holds beyond doubt, by less work than it takes to measure by how much."""
        if isinstance(promise, WithinOffer):
            return not rule.sells_beyond_offers  # run refuses such an outcome
        if isinstance(promise, IndividuallyRational):
            # In one place, again and again: fresh memory for each auction takes longer than the product.
            if self._room.shape != bids.shape:
                self._room = np.empty(bids.shape)
            cost = np.multiply(bids.valuation, outcome.epsilon, out=self._room)
            cost *= 1 - TOLERANCE
            return not bool((cost > outcome.payment).any())
        return False

    def _worse(
        self, promise: OutcomeGuarantee, bids: Bids, outcome: Outcome, budget: Array
    ) -> tuple[int, ...] | None:
        """Where the promise is broken by more than was seen before; None where it is not."""
        with np.errstate(over="ignore"):  # pay above a cost of next to nothing
            excess = promise.excess(bids, outcome, budget)
        if float(excess.max()) <= self._worst.get(promise.label, TOLERANCE):
            return None
        self._worst[promise.label] = float(excess.max())
        return tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), excess.shape))

    def _keep(self, promise: OutcomeGuarantee, rule: Mechanism, market: Bids, budget: float) -> None:
        """Runs the market by itself, so that the witness can be run again."""
        finding = promise.holds(market, rule.run(market, budget), budget)
        if finding.held or finding.witness is None:
            return
        coins = rule.seed if isinstance(rule, FixedCoins) else None
        witness = replace(finding.witness, types=WitnessTypes.of(market, budget, coins))
        self.findings[promise.label] = replace(finding, witness=witness)


class Watched(Mechanism):
    """A rule of which every outcome goes into a record, whoever asks for it."""

    name: ClassVar[str] = "watched"

    def __init__(self, rule: Mechanism, record: Record) -> None:
        self.rule = rule
        self.record = record
        self.name = rule.name  # type: ignore[misc]
        self.version = rule.version
        self.guarantees = rule.guarantees
        self.exact_in_batches = rule.exact_in_batches  # type: ignore[misc]
        self.sells_beyond_offers = rule.sells_beyond_offers  # type: ignore[misc]

    def __getattr__(self, name: str) -> object:
        """What else an attack of somebody's own wants to know of the rule."""
        return getattr(self.__dict__["rule"], name)

    def run(self, bids: Bids, budget: ArrayLike) -> Outcome:
        """What the rule answers."""
        outcome = self.rule.run(bids, budget)
        self.record.look(self.rule, bids, outcome, budget_column(budget, bids.shape))
        return outcome

    def clear(self, bids: Bids, budget: Array) -> Outcome:
        """What the rule answers."""
        return self.rule.clear(bids, budget)


class _WatchedAnswers(Watched):
    """The same of a rule that has its own answer about deviations."""

    def unilateral(self, bids: Bids, reports: Bids, budget: ArrayLike) -> Outcome:
        """What the rule answers."""
        outcome = self.rule.unilateral(bids, reports, budget)
        self.record.look_at_deviations(self.rule, bids, reports, outcome, budget)
        return outcome


def has_own_answers(rule: Mechanism) -> bool:
    """Whether a rule answers deviations by itself, and not by running the auction."""
    return type(rule).unilateral is not Mechanism.unilateral


def watched(rule: Mechanism, record: Record) -> Watched:
    """The rule with its outcomes recorded, attacked at the same speed."""
    return (_WatchedAnswers if has_own_answers(rule) else Watched)(rule, record)


def refuse_apart(rule: Mechanism, bids: Bids, reports: Bids, budget: float, clients: NDArray[np.intp]) -> None:
    """Compares `unilateral` with `run` for these clients of one market, (clients,).

    Raises:
        OutcomeError: they are apart by more than rounding, and an attack on `unilateral` says nothing of the rule.
    """
    told = rule.unilateral(bids, reports, budget)
    runs = rule.run(deviations(bids, reports, clients), budget)
    slack = _slack(rule)
    for row, client in enumerate(clients):
        said = (float(told.epsilon[client]), float(told.payment[client]))
        found = (float(runs.epsilon[row, client]), float(runs.payment[row, client]))
        report = (float(reports.valuation[client]), float(reports.epsilon[client]))
        if abs(said[0] - found[0]) > slack * report[1] or abs(said[1] - found[1]) > slack * budget:
            raise OutcomeError(
                f"{rule.name}: to client {client} reporting (v, ε) = ({report[0]:.6g}, {report[1]:.6g}) unilateral "
                f"answers {said[0]:.6g} for {said[1]:.6g}, and run {found[0]:.6g} for {found[1]:.6g}",
                "mend unilateral, or leave it out: then every deviation is run",
            )


def refuse_mixed(rule: Mechanism, market: Bids, budget: float, among_others: Outcome) -> None:
    """Compares what a rule decides for one market, (clients,), alone and in a batch with others.

    Raises:
        OutcomeError: they are apart by more than rounding: attacks run many markets at once, and would say nothing
            of the rule.
    """
    alone = rule.run(market, budget)
    slack = _slack(rule)
    apart = (abs(alone.epsilon - among_others.epsilon) > slack * market.epsilon) | (
        abs(alone.payment - among_others.payment) > slack * budget
    )
    if apart.any():
        client = int(np.argmax(apart))
        raise OutcomeError(
            f"{rule.name}: in a market by itself client {client} sells ε {alone.epsilon[client]:.6g} for "
            f"{alone.payment[client]:.6g}, and with other markets beside it ε {among_others.epsilon[client]:.6g} "
            f"for {among_others.payment[client]:.6g}",
            "markets are independent: give axis=-1 to sums, sorts and the like, or write a function of one market",
        )


def _slack(rule: Mechanism) -> float:
    return TOLERANCE if rule.exact_in_batches else _APART_IN_BATCHES


def check_answers(rule: Watched, types: Bids, budget: float, found: Sequence[Regret]) -> None:
    """Compares a rule's own `unilateral` with `run` on one attacked market, (clients,).

    Asked are the client that gains most in each of `found`, and some clients about random reports.
    """
    if not has_own_answers(rule.rule):
        return
    for regret in found:
        lies = types.replace(valuation=regret.valuation, epsilon=regret.epsilon)
        refuse_apart(rule, types, lies, budget, np.array([int(np.argmax(regret.gain))]))
    rng = np.random.default_rng(0)
    top = max(float(types.valuation.max()), 1e-300)
    for _ in range(_REPORTS):
        valuation = 2.0 * top * rng.random(types.clients)
        epsilon = types.epsilon * (1.0 - rng.random(types.clients))
        clients = rng.permutation(types.clients)[:_ASKED]
        refuse_apart(rule, types, types.replace(valuation=valuation, epsilon=epsilon), budget, clients)


def try_designed_markets(rules: Sequence[Watched], types: Bids, budget: float) -> int:
    """Runs markets that chance seldom makes, with the budget, with one below and with one above all costs.

    Everybody alike, cheap, dear or at an end of what was sampled; one cheap or dear client among others; next to no
    ε; valuations of 0.

    Args:
        types: (markets, clients), the sample.

    Returns:
        On how many of these markets the rule raised an error: no promise is broken there.
    """
    first = types[0]
    designed = [*_designed(types)]
    markets = first[None][np.zeros(len(designed), dtype=np.intp)]
    markets = markets.replace(
        valuation=np.stack([np.broadcast_to(v, first.shape) for v, _ in designed]),
        epsilon=np.stack([np.broadcast_to(e, first.shape) for _, e in designed]),
    )
    cost = first.valuation * first.epsilon
    below = min(budget, 0.5 * float(cost.min())) or 1e-3 * budget
    above = max(budget, 2.0 * float((markets.valuation * markets.epsilon).sum(axis=-1).max()))
    failed = 0
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # a network says that it was not trained for such markets
        for rule in rules:
            for money in (budget, below, above):
                try:
                    rule.run(markets, money)
                except Exception:
                    failed += sum(_fails(rule, market, money) for market in markets)
    return failed


def _fails(rule: Mechanism, market: Bids, budget: float) -> bool:
    try:
        rule.run(market, budget)
    except Exception:
        return True
    return False


def _designed(types: Bids) -> Iterator[tuple[Array | float, Array | float]]:
    """(valuation, ε) of one market each, (clients,) or one number for everybody."""
    v, e = types.valuation[0], types.epsilon[0]
    low, middle, high = (float(end) for end in np.quantile(types.valuation, (0.0, 0.5, 1.0)))
    least, usual, most = (float(end) for end in np.quantile(types.epsilon, (0.0, 0.5, 1.0)))
    cheapest = np.arange(v.size) == np.argmin(v)
    yield middle, usual
    for valuation in (low, high):
        for epsilon in (least, most):
            yield valuation, epsilon
    for factor in (0.0, 0.01, 0.1, 10.0):
        yield factor * v, e
    yield np.where(cheapest, 0.0, v), e
    yield np.where(cheapest, 0.01 * v, 10.0 * high), e
    yield np.where(cheapest, 10.0 * high, v), e
    yield v, 1e-6 * e
