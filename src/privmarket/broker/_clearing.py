"""The auction of a round: the bids that count, trimmed to the wallets, and the outcome of the rule.

It is computed on a snapshot of the database, outside any transaction (`prepare`), so that nobody waits for it.
Before it is logged, `still_valid` checks the wallets that have changed since: the rule sees only the trimmed
offers, so if these are the same, the auction is the same.

A very large auction runs in a separate process, because Python's threads share one interpreter and pages and bids
would become slow. The process reads the database itself, computes at a lower priority, and writes its result to
standard output. Its memory is freed when it ends.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import os
import pickle
import subprocess
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, TypedDict

import numpy as np
from sqlalchemy import Connection

from privmarket._settings import TOLERANCE, Trust
from privmarket.broker import _log as log, _sql as sql, _wallets as wallets
from privmarket.broker._database import Database
from privmarket.broker._errors import BrokerError
from privmarket.broker._log import canonical
from privmarket.broker._rules import BrokenPromiseError, Guarded, MakeMechanism, as_recorded, version_of
from privmarket.broker._schema import round_and_task
from privmarket.broker._shapes import RoundRow, TaskRow
from privmarket.errors import PrivmarketError
from privmarket.market._bids import Array
from privmarket.market._facts import MarketFacts
from privmarket.market._mechanism import Mechanism
from privmarket.mechanisms import mechanism
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.rounds import MICRO, Award, Offer, Round, Terms

RECHECK_MOST = 20_000  # wallets that are checked again inside a write; with more, the auction is computed again
# The bidders of a round whose wallets changed after a given log entry, because they sold or a reservation was
# freed, and the ε that they offer.
_MOVED = (
    "SELECT DISTINCT b.seller_id, b.epsilon FROM awards a JOIN bids b ON b.seller_id = a.seller_id "
    "WHERE b.round_id = ? AND b.valuation IS NOT NULL AND a.round_id IN "
    "(SELECT subject FROM log WHERE seq > ? AND kind IN ('award.made', 'award.settled')) "
    f"AND (a.seq > ? OR (a.settled_seq > ? AND NOT ({wallets.COUNTS_AS_SPENT}))) LIMIT {RECHECK_MOST + 1}"
)


@dataclass(frozen=True)
class StandingBids:
    """The bids that count in an auction, oldest first: placed in time and, where the bidder seals, revealed.

    Stored as columns, because there may be a million. `numbers` is (bids, 4): valuation, epsilon, data size,
    accuracy (NaN if none was given).
    """

    COLUMNS: ClassVar = ("seller_id", "valuation", "epsilon", "data_size", "accuracy", "nonce")
    sellers: list[str]
    nonces: list[str]
    numbers: Array

    @classmethod
    def of(cls, rows: Iterable[tuple[str, float, float, float, float | None, str]]) -> StandingBids:
        """From rows of `COLUMNS`."""
        sellers, nonces, numbers = [], [], array("d")
        for seller, valuation, epsilon, data_size, accuracy, nonce in rows:
            sellers.append(seller)
            nonces.append(nonce)
            numbers.extend((valuation, epsilon, data_size, math.nan if accuracy is None else accuracy))
        return cls(sellers, nonces, np.array(numbers).reshape(-1, 4))

    def offer(self, i: int, epsilon: float) -> Offer:
        """Bid number `i` with the ε that the wallet allows."""
        valuation, _, data_size, accuracy = self.numbers[i].tolist()
        return Offer(valuation, epsilon, data_size, None if math.isnan(accuracy) else accuracy)


_STANDING = (
    f"SELECT {', '.join(StandingBids.COLUMNS)} FROM bids WHERE round_id = ? AND valuation IS NOT NULL ORDER BY seq"
)


def family_of(task: TaskRow) -> ReleaseFamily:
    """The release family of this task's sales: sampling rate, steps and δ."""
    return ReleaseFamily.of(task, task.delta)


def terms_of(round_: RoundRow, task: TaskRow) -> Terms:
    """A round's terms."""
    release = task.sampling_rate, task.steps, task.delta
    return terms(round_.number, round_.budget_micro, task.epsilon_max, *release, task.trust, task.honest_share)


@lru_cache(maxsize=256)
def terms(
    number: int,
    budget_micro: int,
    epsilon_max: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    trust: Trust,
    honest_share: float,
) -> Terms:
    """A round's terms, from the columns of the round and its task; they do not change."""
    family = ReleaseFamily(sampling_rate, steps, delta)
    return Terms(number, budget_micro, family, epsilon_max, trust=trust, honest_share=honest_share)


def mechanism_of(name: str, settings: str, epsilon_max: float, make: MakeMechanism) -> Mechanism:
    """A task's rule with its settings (JSON text) and the public limit on offers."""
    return make(name, market=MarketFacts(epsilon_max=epsilon_max), **json.loads(settings))


class Summary(TypedDict):
    """The result of an auction as columns of its round."""

    mechanism_version: str
    sellers: int
    awarded_micro: int
    total_epsilon: float
    top_price: float | None
    seed: int


@dataclass(frozen=True)
class Auction:
    """The result of an auction.

    Attributes:
        awards: seller → what it sold.
        trimmed: seller → the ε to which its wallet trimmed its offer, if that is less.
        seed: orders equal bids; drawn from everybody's nonces, so that nobody chooses it.
    """

    awards: Mapping[str, Award]
    trimmed: Mapping[str, float]
    seed: int
    version: str

    def summary(self) -> Summary:
        """The columns of a round that it fills."""
        return {
            "mechanism_version": self.version,
            "sellers": len(self.awards),
            "awarded_micro": sum(a.payment_micro for a in self.awards.values()),
            "total_epsilon": math.fsum(a.epsilon for a in self.awards.values()),
            "top_price": max((a.payment_micro / MICRO / a.epsilon for a in self.awards.values()), default=None),
            "seed": self.seed,
        }


def seed_of(round_id: str, nonces: Sequence[str]) -> int:
    """56 bits from all nonces of a round."""
    drawn = hashlib.sha256(canonical([round_id, sorted(nonces)]).encode()).digest()
    return int.from_bytes(drawn[:7], "big")


def auction(
    round_id: str,
    terms: Terms,
    bids: StandingBids,
    bidders: wallets.BidderWallets,
    mechanism: Mechanism,
    version: str,
) -> Auction:
    """Runs the rule, of this version, on the bids as trimmed to the wallets. A check of the log calls it, too."""
    seed, sellers = seed_of(round_id, bids.nonces), bids.sellers
    fitting = bidders.trim(terms.family, sellers, bids.numbers[:, 1])
    kept = fitting.tolist()
    order = np.random.default_rng(seed).permutation(len(sellers)).tolist()
    offers = {sellers[i]: bids.offer(i, kept[i]) for i in order if kept[i] > 0}
    machine = Round.publish(terms).bid(offers).clear(Guarded(mechanism))
    broken = next(broken_terms(terms, offers, machine.awards), None)
    if broken is not None:
        raise BrokenPromiseError(
            f"{mechanism.name}: {broken}", "the round is aborted and refunded; use another mechanism"
        )
    sold = {seller: award.event for seller, award in machine.awards.items()}
    bidders.check(sold)
    cut = np.flatnonzero(fitting != bids.numbers[:, 1]).tolist()
    return Auction(machine.awards, {sellers[i]: kept[i] for i in cut}, seed, version)


def broken_terms(terms: Terms, offers: Mapping[str, Offer], awards: Mapping[str, Award]) -> Iterator[str]:
    """What is wrong with these awards, by conditions that hold for every rule.

    Winners have bid, sell at most what they offered and the task allows, with the noise that this ε needs, are
    paid at least what they ask, and all of them together no more than the budget. Payments are whole micro-units,
    rounded down, so a payment may be a micro-unit or two below the ask.
    """
    for seller in awards:
        if seller not in offers:
            yield f"{seller} sells without a bid that counts"
    sellers = [seller for seller in awards if seller in offers]
    sold = np.array([awards[seller].epsilon for seller in sellers])
    offered = np.array([min(offers[seller].epsilon, terms.epsilon_max) for seller in sellers])
    for i in np.flatnonzero(~((sold > 0) & (sold <= offered * (1 + TOLERANCE)))).tolist():
        yield f"{sellers[i]} sells ε = {sold[i]:g} of an offer of {offered[i]:g}"
    noise = np.array([awards[seller].event.noise_multiplier for seller in sellers])
    if (sold > 0).all() and sellers:
        needed = terms.family.noise_multiplier(sold)
        for i in np.flatnonzero(~(noise >= needed * (1 - TOLERANCE))).tolist():
            yield f"{sellers[i]} sells ε = {sold[i]:g} with noise {noise[i]:g} instead of {needed[i]:g}"
    paid_micro = np.array([awards[seller].payment_micro for seller in sellers], dtype=float)
    ask_micro = sold * np.array([offers[seller].valuation for seller in sellers]) * MICRO
    for i in np.flatnonzero(~(paid_micro >= ask_micro * (1 - TOLERANCE) - 2)).tolist():
        yield f"{sellers[i]} is paid {paid_micro[i]:.0f} µ and asks {ask_micro[i]:.0f} µ"
    paid = sum(award.payment_micro for award in awards.values())
    if paid > terms.budget_micro or any(award.payment_micro < 0 for award in awards.values()):
        yield f"{paid} µ are paid of a budget of {terms.budget_micro} µ"


@dataclass(frozen=True)
class Prepared:
    """An auction computed on a snapshot, when the log had `size` entries; `fault` says why there is none."""

    size: int
    auction: Auction | None
    fault: str = ""


@contextmanager
def no_collection() -> Iterator[None]:
    """Keeps the garbage collector out of an auction, which makes no cycles but would pause for up to 60 ms."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@no_collection()
def prepare(connection: Connection, round_id: str, make: MakeMechanism) -> Prepared:
    """Computes a round's auction as of this connection's snapshot. Whatever a rule raises becomes a fault."""
    size = log.read_head(connection).size
    round_, task = round_and_task(connection, round_id)
    try:
        recorded = as_recorded(make, task.mechanism, round_.mechanism_version)
        rule = mechanism_of(task.mechanism, task.settings, task.epsilon_max, recorded)
        version = version_of(rule)
        if version != round_.mechanism_version:
            raise BrokerError(
                f"{task.mechanism} is {version} now, the round was opened with {round_.mechanism_version}",
                "the round is aborted and refunded: open another",
            )
        bidders = wallets.StoredWallets(connection, round_id)
        bids = standing_bids(connection, round_id)
        found = auction(round_id, terms_of(round_, task), bids, bidders, rule, version)
    # If a mechanism raises any error, money must not stay locked: the round is aborted and refunded, with an alert.
    except Exception as error:
        known = isinstance(error, PrivmarketError)
        return Prepared(size, None, str(error) if known else f"{task.mechanism} failed: {type(error).__name__}")
    return Prepared(size, found)


def standing_bids(connection: Connection, round_id: str) -> StandingBids:
    """The bids that count, oldest first."""
    return StandingBids.of(sql.stream(connection, _STANDING, round_id))


def still_valid(connection: Connection, round_id: str, prepared: Prepared) -> Prepared | None:
    """A prepared auction, if the present wallets do not change it; None if it must be computed again.

    Only wallets that changed since are checked. If each trims its owner's offer as before, the auction is the same.
    """
    rows = sql.run(connection, _MOVED, round_id, prepared.size, prepared.size, prepared.size)
    moved: dict[str, float] = dict(rows)
    if not moved:
        return prepared
    found = prepared.auction
    if found is None or len(moved) > RECHECK_MOST:
        return None
    _, task = round_and_task(connection, round_id)
    family = family_of(task)
    bidders = wallets.StoredWallets(connection, round_id)
    if any(kept != found.trimmed.get(seller, moved[seller]) for seller, kept in bidders.trim_some(family, moved)):
        return None
    sold = {seller: found.awards[seller].event for seller in moved if seller in found.awards}
    bidders.check(sold)
    return prepared


# ---- in a process of its own ----------------------------------------------------------------------------------


WORTH_A_PROCESS = 20_000  # bids; starting one takes about a second
_PATIENCE_SECONDS = 3600.0


def prepare_in_a_process(database: Database, round_id: str) -> Prepared | None:
    """The auction of a round, computed in a separate process; None if that failed."""
    url = database.engine.url.render_as_string(hide_password=False)
    asked = pickle.dumps((url, round_id))  # by its standard input: arguments of a process can be seen by others
    done = subprocess.run(
        [sys.executable, "-c", "from privmarket.broker._clearing import main; main()"],
        input=asked,
        stdout=subprocess.PIPE,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )
    if done.returncode:
        return None
    found: Prepared = pickle.loads(done.stdout)
    return found


def main() -> None:
    """Reads what to compute, computes it, writes the result."""
    if hasattr(os, "nice"):  # not on Windows
        os.nice(5)
    url, round_id = pickle.load(sys.stdin.buffer)
    database = Database(url, read_only=True)
    with database.read() as connection:
        found = prepare(connection, round_id, mechanism)
    database.close()
    sys.stdout.buffer.write(pickle.dumps(found))
