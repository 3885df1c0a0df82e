"""The port for a second way of adding up: what a market needs of a secure sum, whoever computes it.

`Server` and `Client` are the one backend that is built. From some hundreds of sellers a sum costs each of them
more than training; beyond, two aggregators that do not work together are the better construction (Prio3, a
verifiable distributed aggregation function): each seller sends one share to either, both add theirs up, and both
totals together are the sum. It needs a second operator, and a proof of range from each seller in place of our
bound on what it can send. A backend of that kind has this interface; `SharedSum` and the DP proof stay as they
are, with c counted over sellers and the assumption that one of the two aggregators is honest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from privmarket.secagg._masks import Integers
from privmarket.secagg._server import OpenedSum
from privmarket.secagg._terms import SumTerms


class SumBackend(Protocol):
    """Adds up vectors of which nobody sees a single one."""

    def add_up(self, terms: SumTerms, vectors: Mapping[bytes, Integers]) -> OpenedSum | None:
        """The exact sum over at least `terms.threshold` of the members, or None.

        Args:
            terms: the public numbers.
            vectors: registered key → that seller's integers. A backend that runs on several machines sees only its
                own seller's.
        """
