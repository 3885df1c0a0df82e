"""What it costs a wallet to watch several measures, each with a share of δ: sales that fit, beside two references.

- *tuned*: one measure with all of δ, the one that suits the first sale of the history best. For equal sales nothing
  that is proved sells more; a wallet whose measure the first sale fixed for life sold as many.
- *several*: what every wallet does, `privacy._wallet_measures.SHARES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle

import numpy as np

from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._wallet import Wallets
from privmarket_studies.timing import best_in_turn

_CAPS = (1.0, 3.0, 8.0, 20.0)
_SAMPLED = ((0.01, 100), (0.05, 20), (0.1, 10), (0.5, 5))


@dataclass(frozen=True)
class HistoryRow:
    """One kind of history under one cap: how many sales each kind of wallet lets through.

    Attributes:
        kind: "full batch", "sampled" or "mixed".
        history: in words.
        cap: of the wallet, at δ = 1e-5.
        tuned: sales that fit a wallet whose one measure suits the history's first sale.
        several: sales that fit a wallet that watches several.
    """

    kind: str
    history: str
    cap: float
    tuned: int
    several: int

    @property
    def ratio(self) -> float | None:
        """Sales of a wallet that watches several measures over those of the tuned one; None if that sold none."""
        return self.several / self.tuned if self.tuned else None


def measure() -> list[HistoryRow]:
    """All histories; nothing is drawn."""
    rows = []
    for cap in _CAPS:
        small, large = cap / 40, cap / 8
        for epsilon in (small, large):
            rows.append(
                _row("full batch", f"ε = {epsilon:.3g} over all records", cap, [ReleaseFamily().event(epsilon)])
            )
        for rate, steps in _SAMPLED:
            family = ReleaseFamily(rate, steps)
            for epsilon in (small, large):
                text = f"ε = {epsilon:.3g}, {steps} steps at rate {rate:g}"
                rows.append(_row("sampled", text, cap, [family.event(epsilon)]))
        middle = cap / 16
        sampled = ReleaseFamily(0.05, 20).event(middle)
        one = ReleaseFamily().event(0.001)
        rows.append(
            _row("mixed", f"one of ε = 0.001 over all records, then ε = {middle:.3g} sampled", cap, [sampled], one)
        )
        both = [ReleaseFamily().event(small), sampled]
        rows.append(
            _row("mixed", f"ε = {small:.3g} over all records and ε = {middle:.3g} sampled, in turn", cap, both)
        )
    return rows


def seconds_per_round(clients: int = 1000, turns: int = 5) -> float:
    """How long it takes to trim and charge one round of so many wallets, on one thread."""
    family = ReleaseFamily()
    wallets = Wallets(np.full(clients, 8.0))
    offered = np.random.default_rng(0).uniform(0.1, 1.0, clients)

    def round_() -> None:
        fits = wallets.trim(family, offered)
        wallets.can_spend(family.events(fits))

    return float(best_in_turn([round_], turns)[0])


def _row(
    kind: str, text: str, cap: float, events: list[PrivacyEvent], first: PrivacyEvent | None = None
) -> HistoryRow:
    tuned = Wallets([cap], expected=[first or events[0]])
    several = Wallets([cap])
    return HistoryRow(kind, text, cap, _sold(tuned, events, first), _sold(several, events, first))


def _sold(wallets: Wallets, events: list[PrivacyEvent], first: PrivacyEvent | None) -> int:
    """Sales until one is refused; `first`, which opens the history, is not counted."""
    if first is not None:
        wallets.spend([first])
    for count, event in enumerate(cycle(events)):
        if not wallets.can_spend([event])[0]:
            return count
        wallets.spend([event])
    raise AssertionError("a cycle has no end")
