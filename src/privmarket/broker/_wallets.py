"""Lifetime wallets, rebuilt from stored awards whenever they are needed, with the same privacy filter as elsewhere.

`privacy._wallet_store` states when ε is spent, and what a broker may take as certain. The steps here are `reserve`,
when a round clears, and `void`, at settlement, for sellers that claimed no delivery. All other sellers are then
*charged*, which changes nothing in their wallets. `at_worst` tells a seller before a bid what it may cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from privmarket.broker import _sql as sql
from privmarket.broker._database import Transaction
from privmarket.broker._shapes import AwardRow
from privmarket.market._bids import Array
from privmarket.market._guarantees import IndividuallyRational
from privmarket.mechanisms import mechanism as rule, mechanism_names
from privmarket.privacy._accountant import COLUMNS, composed_cost, epsilon_of_cost
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._gaussian import delta_of
from privmarket.privacy._statement import promise
from privmarket.privacy._wallet import GAUSSIAN_SHARE, Wallets
from privmarket.privacy._wallet_store import SoldBeforeError, not_reserved
from privmarket.rounds import Award


@dataclass(frozen=True)
class WalletRecord:
    """What is known of one seller's wallet: its cap, its δ, and all it has sold."""

    cap_epsilon: float
    delta: float
    events: tuple[PrivacyEvent, ...] = ()


VOID = "void"
COUNTS_AS_SPENT = f"a.charge <> '{VOID}'"  # SQL, of a row `a` of awards: reserved or charged
_MARGIN = 1e-9
_DELTA_MARGIN = 1e-6  # of μ²: far more than what rounding does to δ
_TOGETHER = 4000
_WORTH_HALVING = 16
_AT_ONCE = 50_000
_SALES_COUNTED = 1 << 20  # more than anybody sells
_BOUNDS = (
    "SELECT p.cap_epsilon, p.delta, COALESCE(s.spent, 0) FROM bids b "
    "JOIN parties p ON p.id = b.seller_id "
    "LEFT JOIN (SELECT a.seller_id, SUM(t.steps / (a.noise_multiplier * a.noise_multiplier)) AS spent "
    f"FROM awards a JOIN rounds r ON r.id = a.round_id JOIN tasks t ON t.id = r.task_id WHERE {COUNTS_AS_SPENT} "
    "AND a.seller_id IN (SELECT seller_id FROM bids WHERE round_id = ?) GROUP BY a.seller_id) s "
    "ON s.seller_id = b.seller_id WHERE b.round_id = ? AND b.valuation IS NOT NULL ORDER BY b.seq"
)
_SOLD = (
    "SELECT a.seller_id, a.noise_multiplier, t.sampling_rate, t.steps, t.delta FROM awards a "
    "JOIN rounds r ON r.id = a.round_id JOIN tasks t ON t.id = r.task_id "
    f"WHERE a.seller_id IN (?*) AND {COUNTS_AS_SPENT} ORDER BY a.seq"
)
_CAPS = "SELECT id, cap_epsilon, delta FROM parties WHERE id IN (?*)"


def of_sellers(connection: Connection, seller_ids: Sequence[str]) -> dict[str, WalletRecord]:
    """The wallets of the sellers named."""
    if not seller_ids:
        return {}
    chosen = list(seller_ids)
    events: dict[str, list[PrivacyEvent]] = defaultdict(list)
    family = lru_cache(ReleaseFamily)  # very many sales, of few tasks
    for seller, noise, *schedule in sql.run(connection, _SOLD, chosen):
        events[seller].append(family(*schedule).release(noise))
    fresh = lru_cache(WalletRecord)  # very many sellers, few kinds of untouched wallets
    return {
        seller: WalletRecord(cap, delta, tuple(events[seller])) if seller in events else fresh(cap, delta)
        for seller, cap, delta in sql.run(connection, _CAPS, chosen)
    }


def restore(records: Sequence[WalletRecord]) -> Wallets:
    """The filter of several sellers that share one δ, charged again with everything they sold."""
    depth = max(len(record.events) for record in records)
    history = (
        [record.events[layer] if layer < len(record.events) else None for record in records]
        for layer in range(depth)
    )
    return Wallets.restore([record.cap_epsilon for record in records], records[0].delta, history)


def _together(records: Mapping[str, WalletRecord], chosen: Iterable[str]) -> Iterator[tuple[list[str], Wallets]]:
    """The chosen sellers in groups that one filter takes: of one δ, and few enough to stay small in memory."""
    groups: dict[float, list[str]] = defaultdict(list)
    for seller in chosen:
        groups[records[seller].delta].append(seller)
    for names in groups.values():
        for start in range(0, len(names), _TOGETHER):
            some = names[start : start + _TOGETHER]
            yield some, restore([records[name] for name in some])


def trim(
    records: Mapping[str, WalletRecord], family: ReleaseFamily, offered: Mapping[str, float]
) -> dict[str, float]:
    """The most that each seller can still sell, up to its offer; 0 if nothing fits."""
    fresh = _surely_fitting(records, family, offered)
    fitting = {name: offered[name] for name in fresh}
    for names, wallets in _together(records, (name for name in offered if name not in fresh)):
        kept: Array = wallets.trim(family, np.array([offered[name] for name in names]))
        fitting.update(zip(names, (float(e) for e in kept), strict=True))
    return fitting


def empty(records: Mapping[str, WalletRecord], family: ReleaseFamily) -> set[str]:
    """Sellers that can sell no release of this kind any more, however small its ε."""
    found: set[str] = set()
    for names, wallets in _together(records, records):
        found.update(name for name, is_empty in zip(names, wallets.is_empty(family), strict=True) if is_empty)
    return found


def _surely_fitting(
    records: Mapping[str, WalletRecord], family: ReleaseFamily, offered: Mapping[str, float]
) -> set[str]:
    """Sellers that sold nothing yet and whose offer fits because a larger one fits the same wallet.

    A release of less ε costs less in every measure. Unused wallets of the same cap and δ are equal, so if the
    largest offer of a group fits, all offers of the group fit. If it does not, the group is halved and both halves
    are tried, down to a least size. The largest offer is tried slightly enlarged, by far more than rounding errors,
    so that these cannot make a smaller offer fail.
    """
    alike: dict[float, dict[float, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in offered:
        record = records[name]
        if not record.events:
            alike[record.delta][record.cap_epsilon].append(name)
    found: set[str] = set()
    for delta, of_cap in alike.items():
        groups = [sorted(names, key=lambda name: offered[name]) for names in of_cap.values()]
        while groups:
            caps = [records[group[0]].cap_epsilon for group in groups]
            asked = [(1 + _MARGIN) * offered[group[-1]] for group in groups]
            fits = Wallets(caps, delta).can_spend(family.events(asked))
            found.update(name for group, all_fit in zip(groups, fits, strict=True) if all_fit for name in group)
            doubtful = [group for group, all_fit in zip(groups, fits, strict=True) if not all_fit]
            halves = [(group[: len(group) // 2], group[len(group) // 2 :]) for group in doubtful]
            groups = [half for pair in halves for half in pair if len(pair[0]) >= _WORTH_HALVING]
    return found


def check(records: Mapping[str, WalletRecord], sold: Mapping[str, PrivacyEvent]) -> None:
    """Raises `WalletError` if one sale does not fit."""
    for names, wallets in _together(records, sold):
        wallets.spend([sold[name] for name in names])


class BidderWallets(Protocol):
    """The wallets of all bidders of a round, as the auction uses them; it only reads them."""

    def trim(self, family: ReleaseFamily, sellers: Sequence[str], offered: Array) -> Array:
        """(bids,) the most that each can still sell, up to its offer; 0 where the wallet is as good as empty."""

    def check(self, sold: Mapping[str, PrivacyEvent]) -> None:
        """Raises `WalletError` if a sale does not fit."""


@dataclass(frozen=True)
class ReplayedWallets:
    """Wallets in memory, for a replay of the log."""

    records: Mapping[str, WalletRecord]

    def trim(self, family: ReleaseFamily, sellers: Sequence[str], offered: Array) -> Array:
        """See `BidderWallets`."""
        fitting = trim(self.records, family, dict(zip(sellers, offered.tolist(), strict=True)))
        return np.array([fitting[name] for name in sellers])

    def check(self, sold: Mapping[str, PrivacyEvent]) -> None:
        """See `BidderWallets`."""
        check(self.records, sold)


class StoredWallets:
    """Wallets in the database, for a round with perhaps a million bids.

    Most offers fit easily. A bound on what each wallet has spent, which the database adds up, shows this for all of
    them at once, and only the other wallets are rebuilt event by event. The bound: a sale with noise multiplier σ
    and T steps costs at most T/σ² in the Gaussian measure, which every wallet uses; sampling only lowers the cost.
    """

    def __init__(self, connection: Connection, round_id: str) -> None:
        self._connection, self._round = connection, round_id

    def trim(self, family: ReleaseFamily, sellers: Sequence[str], offered: Array) -> Array:
        """See `BidderWallets`."""
        fitting, doubtful = offered.copy(), np.flatnonzero(~self._surely_fitting(family, offered)).tolist()
        asked = {sellers[i]: float(offered[i]) for i in doubtful}
        fitting[doubtful] = [kept for _, kept in self.trim_some(family, asked)]
        return fitting

    def trim_some(self, family: ReleaseFamily, offered: Mapping[str, float]) -> Iterator[tuple[str, float]]:
        """Seller and the most that it can still sell, in the order of the offers; each wallet is rebuilt."""
        sellers = list(offered)
        for start in range(0, len(sellers), _TOGETHER):
            some = sellers[start : start + _TOGETHER]
            kept = trim(of_sellers(self._connection, some), family, {name: offered[name] for name in some})
            yield from ((name, kept[name]) for name in some)

    def check(self, sold: Mapping[str, PrivacyEvent]) -> None:
        """See `BidderWallets`."""
        names = list(sold)
        for start in range(0, len(names), _TOGETHER):
            some = names[start : start + _TOGETHER]
            check(of_sellers(self._connection, some), {name: sold[name] for name in some})

    def _surely_fitting(self, family: ReleaseFamily, offered: Array) -> NDArray[np.bool_]:
        """(bids,) True if a wallet certainly has room by the bound; False if that is not known."""
        found = np.zeros(offered.size, dtype=bool)
        rows = sql.stream(self._connection, _BOUNDS, self._round, self._round)
        start = 0
        while some := list(islice(rows, _AT_ONCE)):
            end = start + len(some)
            found[start:end] = _fits_by_bound(some, family, offered[start:end])
            start = end
        return found


def _fits_by_bound(rows: Sequence[tuple[Any, ...]], family: ReleaseFamily, offered: Array) -> NDArray[np.bool_]:
    """(bids,) True if the offer fits by the bound. Each row has a wallet's cap, δ and Σ T/σ² of earlier sales."""
    cap, delta, spent = np.array([row[:3] for row in rows], dtype=float).T
    bound = spent + family.steps / family.noise_multiplier(offered) ** 2
    # δ at the bound is compared, because the largest μ that the wallet allows would have to be searched for.
    leaks = delta_of(cap, np.sqrt(bound * (1 + _DELTA_MARGIN)))
    return np.asarray(leaks <= GAUSSIAN_SHARE * delta)


def reserve(tx: Transaction, round_id: str, awards: Mapping[str, Award]) -> None:
    """Sets aside what was sold in a round; it counts as spent with this write.

    Args:
        awards: seller → what it sold; everything was found to fit by `check`.

    Raises:
        SoldBeforeError: the round has awards already.
    """
    if sql.run(tx.connection, "SELECT 1 FROM awards WHERE round_id = ? LIMIT 1", round_id):
        raise SoldBeforeError(round_id)
    for seller, award in awards.items():
        tx.log(
            "award.made",
            round_id,
            seller_id=seller,
            epsilon=award.epsilon,
            noise_multiplier=award.event.noise_multiplier,
            payment_micro=award.payment_micro,
        )


def void(tx: Transaction, award: AwardRow) -> None:
    """Gives back what was set aside for a seller that released nothing.

    Raises:
        WalletError: the award is settled already, or the seller has claimed a delivery.
    """
    if award.charge != "reserved" or award.claim_sha256 is not None:
        raise not_reserved(f"{award.round_id} of {award.seller_id}")
    tx.log("award.settled", award.round_id, seller_id=award.seller_id, paid_micro=0, charge=VOID)


def spent_epsilon(histories: Sequence[Sequence[PrivacyEvent]], delta: float) -> list[float]:
    """ε at δ of everything that was sold in each history, as the accountant reports it."""
    costs = np.stack([composed_cost(events) if events else np.zeros(COLUMNS) for events in histories])
    epsilon = np.where(costs.any(axis=1), epsilon_of_cost(costs, delta), 0.0)
    return [float(one) for one in epsilon]


def standing(records: Mapping[str, WalletRecord]) -> dict[str, tuple[float, float, str]]:
    """Seller → (ε spent, the part of its wallet that is left from 1 to 0, in which measure), in one pass per δ."""
    found: dict[str, tuple[float, float, str]] = {}
    for names, wallets in _together(records, records):
        spent = spent_epsilon([records[name].events for name in names], wallets.delta)
        shares = [float(share) for share in wallets.remaining_share]
        found.update(zip(names, zip(spent, shares, wallets.measure, strict=True), strict=True))
    return found


def sales_like_last(record: WalletRecord) -> int | None:
    """How many more sales like the last one the wallet admits; None where nothing was sold yet.

    n releases of one kind cost as much as one release of n times as many steps, so n is found by bisection.
    """
    if not record.events:
        return None
    last = record.events[-1]
    wallet = restore([record])

    def fits(copies: int) -> bool:
        together = ReleaseFamily(last.sampling_rate, last.steps * copies, record.delta)
        return bool(wallet.can_spend([together.release(last.noise_multiplier)])[0])

    if not fits(1):
        return 0
    low, high = 1, 2
    while high < _SALES_COUNTED and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


# ---- before a bid ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def pays_what_is_asked(mechanism: str) -> bool:
    """Whether a rule promises to pay each seller at least its price; unknown rules promise nothing."""
    known = rule(mechanism).guarantees if mechanism in mechanism_names() else ()
    return any(isinstance(one, IndividuallyRational) for one in known)


def at_worst(
    record: WalletRecord, family: ReleaseFamily, mechanism: str, price: float, offered: float, currency: str
) -> str:
    """What a bid may cost its seller, in words: pay, wallet before and after, and what the ε means for one record.

    Args:
        record: the seller's wallet.
        family: the kind of release that the task buys.
        mechanism: the name of the auction rule.
        price: money asked per unit of ε.
        offered: the most ε on offer, above 0.
    """
    before = restore([record])
    fits = float(before.trim(family, [offered])[0])
    if fits == 0:
        return "Your lifetime wallet has nothing left for this kind of release."
    after = copy(before)
    after.spend(family.events([fits]))
    share = [f"{100 * float(one.remaining_share[0]):.0f} %" for one in (before, after)]
    cut = "" if fits == offered else f" (your wallet allows no more than ε = {fits:.3g})"
    least = f"{price * fits:,.2f} {currency}"
    money = f"you are paid at least {least}, and less in proportion where you sell less"
    if not pays_what_is_asked(mechanism):
        money = f"you may be paid less than the {least} that you ask: {mechanism} promises no price"
    words = promise([family.event(fits)], family.delta, epsilon=fits).sentence
    cap = f"its cap of ε = {record.cap_epsilon:g}"
    wallet = f"At worst your lifetime wallet falls from {share[0]} to {share[1]} of {cap}."
    return f"If you sell all of it{cut}, {money}. {wallet} {words[0].upper()}{words[1:]}."
