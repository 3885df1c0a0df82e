"""A mechanism is believed only as far as its outcome shows: declared promises are checked before money moves."""

from __future__ import annotations

import hashlib
import inspect
import sys

import numpy as np

from privmarket import __version__
from privmarket.errors import PrivmarketError
from privmarket.market.bids import Array, Bids
from privmarket.market.guarantees import OutcomeGuarantee
from privmarket.market.mechanism import Mechanism
from privmarket.market.outcome import Outcome


class BrokenPromiseError(PrivmarketError):
    """An outcome that breaks what its mechanism declares."""

    code = "broken-promise"


class Guarded(Mechanism):
    """The same rule, whose outcome is checked against its own declaration before anyone sees it."""

    def __init__(self, mechanism: Mechanism) -> None:
        self._rule = mechanism
        self.name = mechanism.name  # type: ignore[misc]  # a guard speaks under the name of what it guards
        self.guarantees = mechanism.guarantees

    def _clear(self, bids: Bids, budget: Array) -> Outcome:
        outcome = self._rule.run(bids, budget[..., 0])
        if not (np.isfinite(outcome.epsilon).all() and np.isfinite(outcome.payment).all()):
            raise BrokenPromiseError(f"{self.name} decided something that is not a number", "abort the round")
        for promise in self.guarantees:
            if isinstance(promise, OutcomeGuarantee):
                finding = promise.holds(bids, outcome, budget[..., 0])
                if not finding.held:
                    raise BrokenPromiseError(
                        f"{self.name} is not {promise.label}: off by {finding.worst:.3g} {finding.detail}",
                        "the round is aborted and refunded; use another mechanism",
                    )
        return outcome


def version_of(mechanism: Mechanism) -> str:
    """The package's version and a digest of the rule's own source: what must be equal for a replay to be."""
    try:
        source = inspect.getsource(sys.modules[type(mechanism).__module__])
    except (OSError, KeyError, TypeError):
        source = ""
    return f"{__version__}+{hashlib.sha256(source.encode()).hexdigest()[:12]}"
