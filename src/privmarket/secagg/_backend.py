"""The interface that a second protocol for secure sums would implement.

`Server` and `Client` are the only backend so far. With more than some hundreds of sellers, a sum costs each of them
more than training. Then two aggregators that do not collude are the better construction (Prio3, a verifiable
distributed aggregation function): each seller sends one share to each aggregator, each adds up its shares, and the
two totals together give the sum. This needs a second operator and, from each seller, a proof that its vector is in
range. `SharedSum` and the DP proof stay as they are; c counts sellers, and one of the two aggregators must be
honest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from privmarket.secagg._masks import Integers
from privmarket.secagg._server import OpenedSum
from privmarket.secagg._terms import SumTerms


class SumBackend(Protocol):
    """Adds up vectors without revealing any of them."""

    def add_up(self, terms: SumTerms, vectors: Mapping[bytes, Integers]) -> OpenedSum | None:
        """The exact sum over at least `terms.threshold` of the members, or None.

        Args:
            terms: the public numbers.
            vectors: registered key → that seller's integers. A backend that runs on several machines sees only its
                own seller's.
        """
