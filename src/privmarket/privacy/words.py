"""What a sale promises, in words that a seller can check: never ε alone.

Beside every (ε, δ) stand the unit it protects, whom the seller must trust, the arithmetic it holds in, and what it
means for one person: how often a guess about a record can be right, and what is left for someone with several
records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Literal

from scipy.special import ndtr

from privmarket.errors import PrivacyError
from privmarket.plans import ARITHMETICS, DELTA, TRUSTS, Arithmetic, Trust
from privmarket.privacy import gaussian
from privmarket.privacy.certificate import certify, group_epsilon, guess_accuracy
from privmarket.privacy.events import PrivacyEvent, require_delta
from privmarket.privacy.renyi import conversion_cost

Unit = Literal["record", "person"]

# How many records of one person the group-privacy line supposes.
GROUP_RECORDS = 5

SEEDED_WARNING = (
    "the noise comes from a seed and is the same in every run: no ε here holds against those who know the seed, "
    "or who see two runs. Leave the seed out to draw noise from the operating system"
)
# A simulation always has a seed, also where nobody gave one.
SIMULATED_WARNING = (
    "the noise of this simulation follows from seed {seed}, so that the run can be made again: no ε here holds "
    "against those who know the seed. Sellers on Flower draw their noise from the operating system"
)
ODOMETER_LABEL = "ε of the sales so far, had they been fixed in advance"
ODOMETER_NOTE = (
    "a report, not a promise: where later sales were chosen after seeing earlier releases, "
    "only the wallet's cap holds"
)
UNITS: dict[Unit, str] = {
    "record": "one record zeroed out; how many records a seller holds is public",
    "person": "all records of one person zeroed out; how many persons a seller holds is public",
}
_TRUST_WORDS: dict[Trust, str] = {
    "local": "nobody: each update is private before it leaves the seller",
    "aggregate": "the secure sum, and that few of its sellers work together with the server: it sees only the sum",
}
_ARITHMETIC_WORDS: dict[Arithmetic, str] = {
    "exact": "the promise holds for the bits that leave the machine",
    "float": "not private in floating point: for experiments only",
}


@dataclass(frozen=True)
class Promise:
    """What a seller is promised, for one sale or for a lifetime.

    Attributes:
        epsilon, delta: everything that is covered is (ε, δ)-DP.
        guess: the largest share of right guesses on whether a unit was used, for someone who starts at 50:50.
        unit, trust, arithmetic: see `UNITS`, `plans.TRUSTS`, `plans.ARITHMETICS`.
        honest_share: under aggregate trust, what was agreed on; None where that is not known.
        group_epsilon: ε at δ for `GROUP_RECORDS` records of one person; None where the unit is a person already, or
            where nothing better than infinity is known.
        seeded: whether the noise came from a seed.
        scope: "sale" or "lifetime".
    """

    epsilon: float
    delta: float
    guess: float
    unit: Unit = "record"
    trust: Trust = "local"
    arithmetic: Arithmetic = "exact"
    group_epsilon: float | None = None
    seeded: bool = False
    scope: Literal["sale", "lifetime"] = "sale"
    honest_share: float | None = None

    def __post_init__(self) -> None:
        for name, known in (("unit", UNITS), ("trust", TRUSTS), ("arithmetic", ARITHMETICS)):
            if getattr(self, name) not in known:
                raise PrivacyError(f"{name} is {getattr(self, name)!r}", f"choose one of: {', '.join(known)}")

    @property
    def sentence(self) -> str:
        """The promise in one sentence; the share is rounded up."""
        if not math.isfinite(self.epsilon):
            return f"nothing is promised about a {self.unit}: there is no limit on what is sold"
        whose = "your record was" if self.unit == "record" else "your records were"
        when = "" if self.scope == "sale" else " and seeing all that this wallet ever lets through"
        return (
            f"someone who guesses whether {whose} used, starting at 50:50{when}, "
            f"is right at most {rounded_up_percent(self.guess)} of the time"
        )

    @property
    def group_line(self) -> str:
        """What is left for a person with several records."""
        if self.unit == "person":
            return "all records of a person are protected together"
        if self.group_epsilon is None or not math.isfinite(self.group_epsilon):
            return f"someone with {GROUP_RECORDS} records has no promise here that is worth stating"
        return (
            f"if {GROUP_RECORDS} of the records are one person's, that person has ε = {self.group_epsilon:.3g}, "
            f'not {self.epsilon:.3g} (sell with unit = "person" to protect them together)'
        )

    def lines(self) -> list[str]:
        """The promise for people, a line each."""
        shown = [
            self.sentence,
            f"ε = {self.epsilon:.4g} at δ = {self.delta:g}",
            f"unit: {self.unit} ({UNITS[self.unit]})",
            f"trust: {self.trust} ({trust_words(self.trust, self.honest_share)})",
            f"arithmetic: {self.arithmetic} ({_ARITHMETIC_WORDS[self.arithmetic]})",
            self.group_line,
        ]
        return shown + ([f"warning: {SEEDED_WARNING}"] if self.seeded else [])

    def to_json(self) -> dict[str, float | str | bool | None]:
        """The promise for programs, with the sentence."""
        plain = {k: None if isinstance(v, float) and math.isinf(v) else v for k, v in asdict(self).items()}
        return {**plain, "group_records": GROUP_RECORDS, "sentence": self.sentence}


def promise(
    events: Sequence[PrivacyEvent],
    delta: float = DELTA,
    *,
    epsilon: float | None = None,
    unit: Unit = "record",
    trust: Trust = "local",
    arithmetic: Arithmetic = "exact",
    seeded: bool = False,
    honest_share: float | None = None,
) -> Promise:
    """What releases promise that were fixed in advance: a sale, or a finished list of them.

    Args:
        events: what is released.
        epsilon: what it was sold as, where that is more than it costs; the smaller of both guesses is given.
    """
    cost, accuracy, group = _figures(tuple(events), delta)
    sold = cost if epsilon is None else epsilon
    return Promise(
        *(sold, delta, min(accuracy, guess_accuracy(sold, delta)), unit, trust, arithmetic),
        group if unit == "record" else None,
        seeded,
        honest_share=honest_share if trust == "aggregate" else None,
    )


def trust_words(trust: Trust, honest_share: float | None = None) -> str:
    """Whom a seller trusts, with what was agreed on for a secure sum: see `federated.shares.colluders_allowed`.

    Args:
        honest_share: the share of a round's sellers whose noise must be in every sum; None where it is not known.
    """
    if trust != "aggregate" or honest_share is None:
        return _TRUST_WORDS[trust]
    return (
        f"the secure sum, and that at most {50 * (1 - honest_share):.3g} % of a round's sellers work together with "
        f"the server; a sum of less than {50 * (1 + honest_share):.3g} % of them is not opened"
    )


def lifetime_promise(
    cap_epsilon: float,
    delta: float = DELTA,
    *,
    measure: str = "open",
    unit: Unit = "record",
    trust: Trust = "local",
    arithmetic: Arithmetic = "exact",
    seeded: bool = False,
) -> Promise:
    """What a wallet promises for everything that it ever lets through, however later sales are chosen.

    Args:
        cap_epsilon: the wallet's cap; infinite promises nothing.
        measure: what the wallet watches, as `Wallet.measure` says: "gaussian", "renyi 8" or "open".

    Implements: a filter that stops at Σ μ² = B² is B-GDP in all [SmithThakurta2022], so a guess is right with
    probability at most Φ(B/2); one that stops at a Rényi divergence B bounds the Kullback–Leibler divergence by B,
    hence total variation by √(B/2) and √(1 − e^−B) [Canonne2022].
    """
    require_delta(delta)
    if not cap_epsilon > 0:
        raise PrivacyError(f"a wallet's cap is {cap_epsilon}", "give an ε above 0")
    if math.isinf(cap_epsilon):
        return Promise(math.inf, delta, 1.0, unit, trust, arithmetic, None, seeded, "lifetime")
    accuracy = guess_accuracy(cap_epsilon, delta)
    # From (ε, δ) alone k records have (kε, δ·Σ e^{iε}), whose δ is soon above 1; the Gaussian curve says more.
    group: float | None = None
    if measure == "gaussian":
        mu = float(gaussian.mu_of(cap_epsilon, delta))
        accuracy = min(accuracy, float(ndtr(mu / 2)) + delta)
        group = float(gaussian.epsilon_of(GROUP_RECORDS * mu, delta))
    elif measure.startswith("renyi"):
        order = float(measure.split()[-1])
        spent = cap_epsilon - float(conversion_cost(order, delta))
        advantage = min(math.sqrt(spent / 2), math.sqrt(-math.expm1(-spent)))
        accuracy = min(accuracy, 0.5 + advantage / 2 + delta)
    shown = group if unit == "record" else None
    return Promise(cap_epsilon, delta, accuracy, unit, trust, arithmetic, shown, seeded, "lifetime")


def rounded_up_percent(share: float) -> str:
    """A share as a percentage that is never below it, with as few digits as tell it from 100: 0.5533 → 55.4 %."""
    for digits in (1, 2, 3, 4):
        scale = 10**digits
        percent = math.ceil(share * 100 * scale - 1e-9) / scale
        if percent < 100:
            return f"{percent:.{digits}f}".rstrip("0").rstrip(".") + " %"
    return "100 %"


def rounded_down_percent(share: float) -> str:
    """What is left of a wallet as a percentage that is never above it: 0.996 → 99 %; 100 % is an unused one."""
    if share >= 1.0:
        return "100 %"
    if 0.0 < share < 0.01:
        return "under 1 %"
    return f"{math.floor(100 * share)} %"


@lru_cache(maxsize=1024)
def _figures(events: tuple[PrivacyEvent, ...], delta: float) -> tuple[float, float, float]:
    """ε, share of right guesses, ε of a group; sellers make the same sale again and again."""
    certificate = certify(events, delta)
    return certificate.epsilon, certificate.guess_accuracy, group_epsilon(events, delta, records=GROUP_RECORDS)
