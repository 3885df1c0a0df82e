"""Lifetime wallets over stored awards: the same filter as everywhere, rebuilt from the events each time.

An award is *reserved* when a round clears, so that two rounds cannot sell the same ε; it becomes *charged* when
something was released, and *void* when nothing was. Reserved and charged awards are what a wallet has spent.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from sqlalchemy import Connection

from privmarket.broker import sql
from privmarket.market.bids import Array
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.privacy.events import PrivacyEvent, release, to_json
from privmarket.privacy.wallet import Wallets


@dataclass(frozen=True)
class WalletRecord:
    """What is known of one seller's wallet: its cap, the measure it watches, and all it has sold."""

    cap_epsilon: float
    delta: float
    measure: str
    events: tuple[PrivacyEvent, ...] = ()


_MARGIN = 1e-9
_TOGETHER = 4000
_WORTH_HALVING = 16
_OF_ROUND = "SELECT seller_id FROM bids WHERE round_id = ? AND valuation IS NOT NULL"
_SOLD = (
    "SELECT a.seller_id, a.noise_multiplier, t.sampling_rate, t.steps FROM awards a "
    "JOIN rounds r ON r.id = a.round_id JOIN tasks t ON t.id = r.task_id "
    "WHERE a.seller_id IN ({chosen}) AND a.charge <> 'void' ORDER BY a.seq"
)
_CAPS = "SELECT id, cap_epsilon, delta, measure FROM parties WHERE id IN ({chosen})"


def of_sellers(connection: Connection, seller_ids: Sequence[str]) -> dict[str, WalletRecord]:
    """The wallets of the sellers named."""
    if not seller_ids:
        return {}
    return _load(connection, "?*", list(seller_ids))


def of_round(connection: Connection, round_id: str) -> dict[str, WalletRecord]:
    """The wallets of everybody who bids in a round."""
    return _load(connection, _OF_ROUND, round_id)


def _load(connection: Connection, chosen: str, value: Any) -> dict[str, WalletRecord]:
    events: dict[str, list[PrivacyEvent]] = defaultdict(list)
    for seller, noise, rate, steps in sql.run(connection, _SOLD.format(chosen=chosen), value):
        events[seller].append(release(noise, rate, steps))
    fresh = lru_cache(WalletRecord)  # very many sellers, few kinds of untouched wallets
    return {
        seller: WalletRecord(cap, delta, measure, tuple(events[seller]))
        if seller in events
        else fresh(cap, delta, measure)
        for seller, cap, delta, measure in sql.run(connection, _CAPS.format(chosen=chosen), value)
    }


def restore(records: Sequence[WalletRecord]) -> Wallets:
    """The filter of several sellers that share one δ, charged again with everything they sold."""
    kinds = list(dict.fromkeys(event for record in records for event in record.events))
    place = {kind: at for at, kind in enumerate(kinds)}
    depth = max(len(record.events) for record in records)
    history = [
        [place[record.events[layer]] if layer < len(record.events) else None for record in records]
        for layer in range(depth)
    ]
    fields = {
        "cap_epsilon": [record.cap_epsilon for record in records],
        "delta": records[0].delta,
        "measure": [record.measure for record in records],
        "releases": [to_json(kind) for kind in kinds],
        "history": history,
    }
    return Wallets.from_json(json.dumps(fields))


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
    """The most that each seller can still sell, up to its offer; 0 where the wallet is as good as empty."""
    fresh = _surely_fitting(records, family, offered)
    fitting = {name: offered[name] for name in fresh}
    for names, wallets in _together(records, (name for name in offered if name not in fresh)):
        kept: Array = wallets.trim(family, np.array([offered[name] for name in names]))
        fitting.update(zip(names, (float(e) for e in kept), strict=True))
    return fitting


def empty(records: Mapping[str, WalletRecord], family: ReleaseFamily) -> set[str]:
    """Sellers that can sell nothing of this kind any more, however little."""
    found: set[str] = set()
    for names, wallets in _together(records, records):
        found.update(name for name, is_empty in zip(names, wallets.is_empty(family), strict=True) if is_empty)
    return found


def _surely_fitting(
    records: Mapping[str, WalletRecord], family: ReleaseFamily, offered: Mapping[str, float]
) -> set[str]:
    """Sellers that sold nothing yet and whose offer fits because a larger one fits a smaller wallet.

    A release of less ε costs less in every measure, and a larger cap leaves more room in every measure, so the
    smallest wallet and the largest offer of a group speak for all of it; a group for which they do not is halved.
    The offer is tried a little larger than it is: far more than rounding, so that no smaller one can fail by it.
    """
    alike: dict[float, list[str]] = defaultdict(list)
    for name in offered:
        if not records[name].events:
            alike[records[name].delta].append(name)
    found: set[str] = set()
    for delta, names in alike.items():
        groups = [sorted(names, key=lambda name: records[name].cap_epsilon)]
        while groups:
            caps = [records[group[0]].cap_epsilon for group in groups]
            asked = [(1 + _MARGIN) * max(offered[name] for name in group) for group in groups]
            fits = Wallets(caps, delta).can_spend(family.events(asked))
            found.update(name for group, all_fit in zip(groups, fits, strict=True) if all_fit for name in group)
            doubtful = [group for group, all_fit in zip(groups, fits, strict=True) if not all_fit]
            halves = [(group[: len(group) // 2], group[len(group) // 2 :]) for group in doubtful]
            groups = [half for pair in halves for half in pair if len(pair[0]) >= _WORTH_HALVING]
    return found


def reserve(records: Mapping[str, WalletRecord], sold: Mapping[str, PrivacyEvent]) -> dict[str, str]:
    """Charges what was sold, all or nothing; says which measure each seller's wallet watches from now on."""
    measures: dict[str, str] = {}
    for names, wallets in _together(records, sold):
        wallets.spend([sold[name] for name in names])
        measures.update(zip(names, wallets.measure, strict=True))
    return measures


def spent_epsilon(histories: Sequence[Sequence[PrivacyEvent]], delta: float) -> list[float]:
    """ε at δ of everything that was sold in each history, as the accountant reports it."""
    from privmarket.privacy.accountant import COLUMNS, composed_cost, epsilon_of_cost

    costs = np.stack([composed_cost(events) if events else np.zeros(COLUMNS) for events in histories])
    epsilon = np.where(costs.any(axis=1), epsilon_of_cost(costs, delta), 0.0)
    return [float(one) for one in epsilon]


def standing(records: Mapping[str, WalletRecord]) -> dict[str, tuple[float, float]]:
    """Seller → (ε spent, the part of its wallet that is left, from 1 down to 0), all in one pass per δ."""
    found: dict[str, tuple[float, float]] = {}
    for names, wallets in _together(records, records):
        spent = spent_epsilon([records[name].events for name in names], wallets.delta)
        shares = (float(share) for share in wallets.remaining_share)
        found.update(zip(names, zip(spent, shares, strict=True), strict=True))
    return found
