"""Lifetime wallets over stored awards: the same filter as everywhere, rebuilt from the events each time.

An award is *reserved* when a round clears, so that two rounds cannot sell the same ε; it becomes *charged* when
something was released, and *void* when nothing was. Reserved and charged awards are what a wallet has spent.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, select

from privmarket.broker.schema import awards, bids, parties, rounds, tasks
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


def load(
    connection: Connection, *, round_id: str | None = None, seller_id: str | None = None
) -> dict[str, WalletRecord]:
    """The wallets of everybody who bids in a round, or of one seller."""
    if round_id is not None:
        chosen = select(bids.c.seller_id).where(bids.c.round_id == round_id, bids.c.current.is_(True))
    else:
        chosen = select(parties.c.id).where(parties.c.id == seller_id)
    sold = (
        select(awards.c.seller_id, awards.c.noise_multiplier, tasks.c.sampling_rate, tasks.c.steps)
        .select_from(
            awards.join(rounds, awards.c.round_id == rounds.c.id).join(tasks, rounds.c.task_id == tasks.c.id)
        )
        .where(awards.c.seller_id.in_(chosen), awards.c.charge != "void")
        .order_by(awards.c.id)
    )
    events: dict[str, list[PrivacyEvent]] = defaultdict(list)
    for seller, noise, rate, steps in connection.execute(sold):
        events[seller].append(release(noise, rate, steps))
    people = select(parties.c.id, parties.c.cap_epsilon, parties.c.delta, parties.c.measure)
    return {
        row.id: WalletRecord(row.cap_epsilon, row.delta, row.measure, tuple(events[row.id]))
        for row in connection.execute(people.where(parties.c.id.in_(chosen)))
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


def by_delta(records: Mapping[str, WalletRecord]) -> list[tuple[list[str], Wallets]]:
    """Sellers grouped by their wallet's δ, which one filter shares."""
    groups: dict[float, list[str]] = defaultdict(list)
    for seller, record in records.items():
        groups[record.delta].append(seller)
    return [(names, restore([records[name] for name in names])) for names in groups.values()]


def trim(
    groups: Sequence[tuple[list[str], Wallets]], family: ReleaseFamily, offered: Mapping[str, float]
) -> dict[str, float]:
    """The most that each seller can still sell, up to its offer; 0 where the wallet is as good as empty."""
    fitting: dict[str, float] = {}
    for names, wallets in groups:
        kept: Array = wallets.trim(family, np.array([offered[name] for name in names]))
        fitting.update(zip(names, (float(e) for e in kept), strict=True))
    return fitting


def reserve(groups: Sequence[tuple[list[str], Wallets]], sold: Mapping[str, PrivacyEvent]) -> dict[str, str]:
    """Charges what was sold, all or nothing; says which measure each seller's wallet watches from now on."""
    measures: dict[str, str] = {}
    for names, wallets in groups:
        wallets.spend([sold.get(name) for name in names])
        measures.update((name, m) for name, m in zip(names, wallets.measure, strict=True) if name in sold)
    return measures


def spent_epsilon(record: WalletRecord) -> float:
    """ε at the wallet's δ of everything sold, as the accountant reports it."""
    from privmarket.privacy.accountant import composed_epsilon

    return composed_epsilon(record.events, record.delta) if record.events else 0.0


def remaining_share(record: WalletRecord) -> float:
    """The part of the wallet that is left, from 1 down to 0."""
    return float(restore([record]).remaining_share[0])
