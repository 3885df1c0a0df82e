"""What sales promise to a seller, in words and figures that the seller can check.

A `Promise` explains an (ε, δ): the unit it protects, whom the seller must trust, the arithmetic in which it holds,
how often a guess about a record can be right, and what is left for someone with several records. `promise` makes
the one for releases that are fixed in advance, `lifetime_promise` the one for a wallet. A `Statement` is an account
of a list of sales: what they cost in (ε, δ), sale by sale and in all.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from privmarket._files import in_words
from privmarket._settings import ARITHMETICS, DELTA, TRUSTS, Arithmetic, Trust
from privmarket.errors import PrivacyError
from privmarket.privacy import _gaussian as gaussian
from privmarket.privacy._accountant import (
    GAUSSIAN,
    ORDERS,
    PURE,
    Certificate,
    certify,
    group_epsilon,
    guess_accuracy,
    renyi_epsilon,
)
from privmarket.privacy._calibration import ReleaseFamily, alone_event
from privmarket.privacy._events import PrivacyEvent, Release, Unit, require_delta
from privmarket.privacy._gaussian import literal_noise_multiplier
from privmarket.privacy._wallet import Measure, Wallet, Watch

# The number of records of one person that the line on group privacy assumes.
GROUP_RECORDS = 5
# A lifetime promise is evaluated at this many values of ε between 0 and the cap.
_CURVE_POINTS = 401

SEEDED_WARNING = (
    "the noise comes from a seed and is the same in every run: no ε here holds against those who know the seed, "
    "or who see two runs. Leave the seed out to draw noise from the operating system"
)
# A simulation always has a seed, even if the user gave none.
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


_SALE = re.compile(r"^\s*(?P<terms>[^x×]+?)\s*(?:[x×]\s*(?P<count>\S+)\s*)?$")
_FIELDS = ("epsilon", "sampling_rate", "steps", "count")
# beyond them the figures overflow
_LEAST_EPSILON = 1e-12
_MOST_SALES = 10**12
_POINTS_PER_LINE = 40


@dataclass(frozen=True)
class Promise:
    """What a seller is promised, for one sale or for a lifetime.

    Attributes:
        epsilon, delta: everything that is covered is (ε, δ)-DP.
        guess: the largest share of right guesses on whether a unit was used, for someone who starts at 50:50.
        unit, trust, arithmetic: see `UNITS`, `plans.TRUSTS`, `plans.ARITHMETICS`.
        honest_share: under aggregate trust, what was agreed on; None where that is not known.
        registered: under aggregate trust, whether a register says who the other sellers are. Where none does, a
            server may own all of them, and ε is what is left then.
        epsilon_alone: under aggregate trust, ε if all other sellers of the sum work together with the server; None
            where their number is not known.
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
    registered: bool = True
    epsilon_alone: float | None = None

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
    def _any_release(self) -> str:
        """What (ε, δ) would allow without the noise that is known, where that is more."""
        most = guess_accuracy(self.epsilon, self.delta) if math.isfinite(self.epsilon) else 1.0
        if not self.guess < most:
            return ""
        return f", which by itself allows {rounded_up_percent(most)} right guesses; the noise here allows fewer"

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

    @property
    def alone_lines(self) -> list[str]:
        """What is left if all other sellers of a secure sum work together with the server: a line, or none."""
        if self.trust != "aggregate" or self.epsilon_alone is None:
            return []
        return [f"if all other sellers of the sum work together with the server: ε = {self.epsilon_alone:.3g}"]

    def lines(self) -> list[str]:
        """The promise for people, a line each."""
        shown = [
            self.sentence,
            f"ε = {self.epsilon:.4g} at δ = {self.delta:g}{self._any_release}",
            f"unit: {self.unit} ({UNITS[self.unit]})",
            f"trust: {self.trust} ({trust_words(self.trust, self.honest_share, self.registered)})",
            *self.alone_lines,
            f"arithmetic: {self.arithmetic} ({_ARITHMETIC_WORDS[self.arithmetic]})",
            self.group_line,
        ]
        return shown + ([f"warning: {SEEDED_WARNING}"] if self.seeded else [])

    def to_json(self) -> dict[str, float | str | bool | None]:
        """The promise for programs, with the sentence."""
        plain = {k: None if isinstance(v, float) and math.isinf(v) else v for k, v in asdict(self).items()}
        return {**plain, "group_records": GROUP_RECORDS, "sentence": self.sentence}


def promise(
    events: Sequence[Release],
    delta: float = DELTA,
    *,
    epsilon: float | None = None,
    unit: Unit = "record",
    trust: Trust = "local",
    arithmetic: Arithmetic = "exact",
    seeded: bool = False,
    honest_share: float | None = None,
    sellers: int | None = None,
    registered: bool = True,
) -> Promise:
    """What releases promise that were fixed in advance: a sale, or a finished list of sales.

    Args:
        events: what is released.
        epsilon: the ε it was sold as, if that is more than it costs; the smaller of both shares of right guesses is
            given.
        sellers: under aggregate trust, how many sold in the sum.
        registered: under aggregate trust, whether a register says who they are. If none does, the promise is only
            what is left if all of them work together, not what the sum was sold as.
    """
    if trust != "aggregate":
        honest_share = sellers = None
        registered = True
    cost, accuracy, group = _figures(tuple(events), delta)
    sold = cost if epsilon is None else epsilon
    alone: float | None = None
    if sellers is not None and honest_share is not None:
        shares = tuple(alone_event(event, sellers, honest_share) for event in events)
        alone, accuracy_alone, group_alone = _figures(shares, delta)
        if not registered:
            sold = alone
            accuracy = accuracy_alone
            group = group_alone
    return Promise(
        sold,
        delta,
        min(accuracy, guess_accuracy(sold, delta)),
        unit,
        trust,
        arithmetic,
        group if unit == "record" else None,
        seeded,
        honest_share=honest_share,
        registered=registered,
        epsilon_alone=alone,
    )


def cohort_words(cohorts: int) -> str:
    """A sentence on the cost of splitting a round's sellers into several secure sums, each with its full noise."""
    return (
        f"dealt to {cohorts} secure sums: √{cohorts} = {math.sqrt(cohorts):.2f} times the noise of one sum of all "
        "sellers, for the same ε"
    )


def trust_words(trust: Trust, honest_share: float | None = None, registered: bool = True) -> str:
    """A sentence on whom a seller trusts, with the terms of the secure sum.

    Args:
        honest_share: the share of a round's sellers whose noise must be in every sum; None where it is not known.
        registered: whether a register says who the other sellers are.
    """
    if trust == "aggregate" and not registered:
        return "nobody: no register says who the other sellers are, so the server may own all of them"
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
    measures: Sequence[Measure] | None = None,
    unit: Unit = "record",
    trust: Trust = "local",
    arithmetic: Arithmetic = "exact",
    seeded: bool = False,
    registered: bool = True,
) -> Promise:
    """What a wallet promises for everything that it ever lets through, however later sales are chosen.

    Args:
        cap_epsilon: the wallet's cap; infinite promises nothing.
        measures: what the wallet watches, as in `Wallet.measures`; by default what every new wallet watches.
        registered: under aggregate trust, whether the promise rests on a register. Without one each sale is charged
            with what is left if all other sellers work together with the server, so it rests on nobody.

    Implements: three bounds on the share of right guesses, of which the smallest holds.
    (1) What (cap, δ) allows.
    (2) The argument of `wallet` at any other ε: everything is (ε, Σ δ_j(ε))-DP, where δ_j is the curve of measure j
    at its limit B_j; 2Φ(√B/2) − 1 at ε = 0 for μ² alone [DongRothSu2022].
    (3) Kullback–Leibler divergences add up along a sequence chosen adaptively, and that of each release is at most
    μ²/2 and at most its divergence at any order above 1. So the whole sequence has at most the largest of B/2 and
    B_j over all measures, hence a total variation of at most √(B/2) and √(1 − e^−B) [Canonne2022].
    """
    require_delta(delta)
    if not cap_epsilon > 0:
        raise PrivacyError(f"a wallet's cap is {cap_epsilon}", "give an ε above 0")
    if math.isinf(cap_epsilon):
        return Promise(
            math.inf, delta, 1.0, unit, trust, arithmetic, None, seeded, "lifetime", registered=registered
        )
    caps = np.array([cap_epsilon])
    watch = Watch.standard(caps, delta) if measures is None else Watch.named(caps, delta, [measures])
    epsilons = np.linspace(0.0, cap_epsilon, _CURVE_POINTS)
    fails = np.zeros(epsilons.size)
    divergence = 0.0
    for column, limit in zip(watch.columns[0].tolist(), watch.limits[0].tolist(), strict=True):
        if limit <= 0:
            continue  # a measure that never holds
        if column == GAUSSIAN:
            fails += gaussian.delta_of(epsilons, math.sqrt(limit))
            divergence = max(divergence, limit / 2)
        elif column == PURE:
            # The curve of randomised response, the worst (ε, 0)-DP release there is, and its divergence.
            fails += np.maximum(math.exp(min(limit, 700.0)) - np.exp(np.minimum(epsilons, 700.0)), 0.0) / (
                1.0 + math.exp(min(limit, 700.0))
            )
            divergence = max(divergence, limit * math.tanh(limit / 2))
        else:
            order = float(ORDERS[column])
            # The inverse of `conversion_cost`.
            fails += np.exp(np.minimum((order - 1) * (limit - epsilons + math.log1p(-1 / order)), 700.0)) / order
            divergence = max(divergence, limit)
    by_curve = float((1.0 - (1.0 - np.minimum(fails, 1.0)) / (1.0 + np.exp(np.minimum(epsilons, 700.0)))).min())
    advantage = min(math.sqrt(divergence / 2), math.sqrt(-math.expm1(-divergence)))
    # The share of δ that is kept for finite arithmetic comes on top of bounds on the exact mechanism.
    accuracy = min(guess_accuracy(cap_epsilon, delta), by_curve + delta, 0.5 + advantage / 2 + delta)
    # From (ε, δ) alone k records have (kε, δ·Σ e^{iε}), whose δ is soon above 1; the Gaussian curve says more.
    group: float | None = None
    if unit == "record" and watch.columns[0].tolist() == [GAUSSIAN]:
        mu = math.sqrt(float(watch.limits[0, 0]))
        group = float(gaussian.epsilon_of(GROUP_RECORDS * mu, delta))
    return Promise(
        cap_epsilon, delta, accuracy, unit, trust, arithmetic, group, seeded, "lifetime", registered=registered
    )


def rounded_up_percent(share: float) -> str:
    """A share as a percentage that is never below it, with as few digits as tell it from 100: 0.5533 → 55.4 %."""
    for digits in (1, 2, 3, 4):
        scale = 10**digits
        percent = math.ceil(share * 100 * scale - 1e-9) / scale
        if percent < 100:
            return f"{percent:.{digits}f}".rstrip("0").rstrip(".") + " %"
    return "100 %"


def rounded_down_percent(share: float) -> str:
    """What is left of a wallet as a percentage, never rounded up: 0.996 → 99 %; only an unused wallet has 100 %."""
    if share >= 1.0:
        return "100 %"
    if 0.0 < share < 0.01:
        return "under 1 %"
    return f"{math.floor(100 * share)} %"


@lru_cache(maxsize=1024)
def _figures(events: tuple[Release, ...], delta: float) -> tuple[float, float, float]:
    """ε, share of right guesses, ε of a group; cached, since sellers make the same sale again and again."""
    certificate = certify(events, delta)
    return certificate.epsilon, certificate.guess_accuracy, group_epsilon(events, delta, records=GROUP_RECORDS)


@dataclass(frozen=True)
class EqualSales:
    """`count` equal sales of ε, each realised by `steps` noisy sums over Poisson samples."""

    epsilon: float
    sampling_rate: float = 1.0
    steps: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise PrivacyError(f"a sale of ε = {self.epsilon}: must be finite and above 0", "leave it out")
        if self.epsilon < _LEAST_EPSILON:
            raise PrivacyError(
                f"a sale of ε = {self.epsilon}: needs more noise than numbers can hold",
                f"sell at least {_LEAST_EPSILON:g}",
            )
        PrivacyEvent(1.0, self.sampling_rate, self.steps)  # refuses a schedule that no release can have
        if self.count < 1:
            raise PrivacyError(f"a sale repeated {self.count} times", "give a count of at least 1")
        if self.count > _MOST_SALES:
            raise PrivacyError(f"a sale repeated {self.count} times", f"give a count of at most {_MOST_SALES:g}")


@dataclass(frozen=True)
class StatementLine:
    """One line of the statement.

    Attributes:
        sale: what was sold.
        noise_multiplier: what each sale needs.
        literal_noise_multiplier: what the paper's Algorithm 2 would have used.
        epsilon_so_far: ε at δ of this and all earlier lines, by Rényi accounting.
        fits: how many of the sales a wallet with the given cap accepts; None without a cap.
        promise: what one of the sales promises.
    """

    sale: EqualSales
    noise_multiplier: float
    literal_noise_multiplier: float
    epsilon_so_far: float
    fits: int | None
    promise: Promise


@dataclass(frozen=True)
class Statement:
    """The whole account.

    Attributes:
        certificate: the figures of all sales together.
        basic: (Σ ε, Σ δ), the result of basic composition.
        promise: that of all sales together, for a list that was fixed in advance.
        lifetime: what a wallet with this cap promises, however sales are chosen; None without a cap.
    """

    lines: tuple[StatementLine, ...]
    certificate: Certificate
    basic: tuple[float, float]
    cap_epsilon: float | None
    promise: Promise
    lifetime: Promise | None


def statement(
    sales: Sequence[EqualSales],
    delta: float = DELTA,
    *,
    cap_epsilon: float | None = None,
    unit: Unit = "record",
    trust: Trust = "local",
) -> Statement:
    """The account of `sales`, in order.

    Args:
        cap_epsilon: the lifetime cap of a wallet that the sales are charged to.
        unit, trust: what one unit is and whom its owner trusts; they change the words, not the noise.
    """
    require_delta(delta)
    if not sales:
        raise PrivacyError("no sales to account for", "name at least one, e.g. 1.0x200")
    noises = [float(ReleaseFamily.of(sale, delta).noise_multiplier(sale.epsilon)) for sale in sales]
    events = [_repeated(sale, noise, sale.count) for sale, noise in zip(sales, noises, strict=True)]
    wallet = None if cap_epsilon is None else Wallet(cap_epsilon, delta)
    lines = [
        StatementLine(
            sale,
            noise,
            float(literal_noise_multiplier(sale.epsilon, delta)),
            renyi_epsilon(events[: at + 1], delta),
            None if wallet is None else _sell(wallet, sale, noise),
            promise([_repeated(sale, noise, 1)], delta, epsilon=sale.epsilon, unit=unit, trust=trust),
        )
        for at, (sale, noise) in enumerate(zip(sales, noises, strict=True))
    ]
    sold = sum(sale.count for sale in sales)
    basic = (sum(sale.epsilon * sale.count for sale in sales), sold * delta)
    lifetime = None
    if wallet is not None:
        lifetime = lifetime_promise(wallet.cap_epsilon, delta, unit=unit, trust=trust)
    total = certify(events, delta)
    whole = promise(events, delta, unit=unit, trust=trust)
    return Statement(tuple(lines), total, basic, cap_epsilon, whole, lifetime)


def running_epsilon(account: Statement) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(points,) number of sales so far, ε by Rényi accounting, ε by basic composition; for a plot."""
    done = 0
    basic = 0.0
    before: list[PrivacyEvent] = []
    points = [(0, 0.0, 0.0)]
    for line in account.lines:
        sale = line.sale
        noise = line.noise_multiplier
        for k in np.unique(np.linspace(1, sale.count, min(sale.count, _POINTS_PER_LINE)).astype(int)):
            epsilon = renyi_epsilon([*before, _repeated(sale, noise, int(k))], account.certificate.delta)
            points.append((done + int(k), epsilon, basic + k * sale.epsilon))
        before.append(_repeated(sale, noise, sale.count))
        done = done + sale.count
        basic = basic + sale.count * sale.epsilon
    sales, renyi, added = (np.array(column) for column in zip(*points, strict=True))
    return sales, renyi, added


def parse_sale(text: str) -> EqualSales:
    """A sale written as EPS[,RATE,STEPS][xCOUNT], e.g. `0.5`, `1x200`, `0.5,0.05,20x10`."""
    match = _SALE.match(text)
    terms = match["terms"].split(",") if match else []
    if match is None or len(terms) not in (1, 3):
        raise PrivacyError(f"sale {text!r}", "write EPS, EPSxCOUNT or EPS,RATE,STEPSxCOUNT, e.g. 0.5,0.05,20x10")
    return _sale_of(dict(zip(_FIELDS, terms, strict=False)), match["count"], where=f"sale {text!r}")


def read_sales(path: Path) -> list[EqualSales]:
    """Sales from a CSV file with columns epsilon[,sampling_rate][,steps][,count]."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            columns = reader.fieldnames or []
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PrivacyError(
            f"{path}: cannot be read as CSV: {in_words(error)}", "check the path; give a text file with a header"
        ) from error
    names = [name.strip() for name in columns]
    if "epsilon" not in names or not set(names) <= set(_FIELDS) or len(set(names)) < len(names):
        raise PrivacyError(
            f"{path}: columns are {', '.join(names) or 'missing'}", "use epsilon[,sampling_rate,steps,count]"
        )
    if not rows:
        raise PrivacyError(f"{path}: no sales below the header", "add one line per sale")
    return [_sale_from_row(row, f"{path}, line {number}") for number, row in enumerate(rows, start=2)]


def _sale_from_row(row: dict[str, str], where: str) -> EqualSales:
    if None in row or None in row.values():
        raise PrivacyError(f"{where}: as many fields as the header has are needed", "check the commas")
    fields = {name.strip(): text for name, text in row.items() if text.strip()}
    return _sale_of(fields, fields.pop("count", None), where)


def _sale_of(fields: dict[str, str], count: str | None, where: str) -> EqualSales:
    try:
        return EqualSales(
            float(fields["epsilon"]),
            float(fields.get("sampling_rate", "1")),
            int(fields.get("steps", "1")),
            int(count or "1"),
        )
    except PrivacyError as error:
        raise PrivacyError(f"{where}: {error.message}", error.hint) from error
    except (KeyError, ValueError) as error:
        raise PrivacyError(f"{where}: {error}", "ε and rate are numbers, steps and count whole numbers") from error


def _repeated(sale: EqualSales, noise: float, times: int) -> PrivacyEvent:
    """`times` of the sale's releases, as one event."""
    return PrivacyEvent(noise, sale.sampling_rate, sale.steps * times)


def _sell(wallet: Wallet, sale: EqualSales, noise: float) -> int:
    """Charges as many of the sales as fit, and returns how many."""
    low = 0
    high = sale.count + 1
    while high - low > 1:
        middle = (low + high) // 2
        if wallet.can_spend(_repeated(sale, noise, middle)):
            low = middle
        else:
            high = middle
    if low:
        wallet.spend(_repeated(sale, noise, low))
    return low
