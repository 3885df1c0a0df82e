"""A million bids for a measurement, copied into PostgreSQL's tables: placing them one by one would take an hour.

What is measured afterwards, the auction and the settlement, reads tables only. The log of such a database does not
hold these rows: it is thrown away after the measurement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import psycopg

from privmarket.market._bids import Array
from privmarket.privacy._calibration import ReleaseFamily

_PAST_SHARE = 0.7  # of all sellers, each in one of two earlier rounds


def copy_market(url: str, round_id: str, caps: Array, first: str, seed: int) -> int:
    """Sellers with caps of their own, a past for most of them, and a bid of each; how many past sales there are."""
    rng, sellers = np.random.default_rng(seed), caps.size
    names = [f"seller-{i:016x}" for i in range(sellers)]
    sold = rng.uniform(0.1, 1.0, sellers)
    noise = ReleaseFamily().noise_multiplier(sold)
    past = [np.flatnonzero(rng.random(sellers) < _PAST_SHARE) for _ in range(2)]
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        task = connection.execute("SELECT task_id FROM rounds WHERE id = %s", (round_id,)).fetchone()
        assert task is not None
        numbers = ("round-past-1", 1), ("round-past-2", 2)
        for name, number in numbers:
            connection.execute(
                "INSERT INTO rounds (id, task_id, number, state, budget_micro, mechanism_version, opened_ms, "
                "bid_deadline_ms, bids, revealed, sellers, awarded_micro, paid_micro, total_epsilon) "
                "VALUES (%s, %s, %s, 'settled', 1, 'x', 1, 1, 0, 0, 0, 0, 0, 0)",
                (name, task[0], number),
            )
        rows: Iterable[Sequence[object]] = (
            (name, "seller", "", 1, float(cap), 1e-5) for name, cap in zip(names, caps, strict=True)
        )
        _copy(connection, "parties (id, role, name_hash, created_ms, cap_epsilon, delta)", rows)
        for (name, _), some in zip(numbers, past, strict=True):
            rows = ((name, names[i], -1, float(sold[i]), float(noise[i]), 5, "charged", 5) for i in some.tolist())
            columns = "(round_id, seller_id, seq, epsilon, noise_multiplier, payment_micro, charge, paid_micro)"
            _copy(connection, f"awards {columns}", rows)
        valuation, epsilon = rng.random(sellers), rng.uniform(0.1, 2.0, sellers)
        rows = (
            (round_id, names[i], i + 1, "", f"{i:032x}", float(valuation[i]), float(epsilon[i]), 600.0, 1)
            for i in range(sellers)
        )
        columns = "(round_id, seller_id, seq, commitment, nonce, valuation, epsilon, data_size, created_ms)"
        _copy(connection, f"bids {columns}", rows)
        connection.execute("UPDATE rounds SET bids = %s WHERE id = %s", (sellers, round_id))
        connection.commit()
        connection.autocommit = True
        connection.execute("ANALYZE")
    return sum(some.size for some in past)


def _copy(connection: psycopg.Connection[object], target: str, rows: Iterable[Sequence[object]]) -> None:
    with connection.cursor().copy(f"COPY {target} FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
