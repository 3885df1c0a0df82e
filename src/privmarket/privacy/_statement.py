"""A statement of account: what a list of sales costs in (ε, δ), sale by sale and in all."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from privmarket._settings import DELTA, Trust
from privmarket.errors import PrivacyError
from privmarket.privacy._accountant import renyi_epsilon
from privmarket.privacy._calibration import ReleaseFamily, literal_noise_multiplier
from privmarket.privacy._certificate import Certificate, certify
from privmarket.privacy._events import PrivacyEvent, require_delta
from privmarket.privacy._wallet import Wallet
from privmarket.privacy._words import Promise, Unit, lifetime_promise, promise

_SALE = re.compile(r"^\s*(?P<terms>[^x×]+?)\s*(?:[x×]\s*(?P<count>\S+)\s*)?$")
_FIELDS = ("epsilon", "sampling_rate", "steps", "count")
_LEAST_EPSILON, _MOST_SALES = 1e-12, 10**12  # beyond them the figures overflow
_POINTS_PER_LINE = 40


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
        fits: how many of the sales a wallet with the given cap lets through; None without a cap.
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
        basic: (Σ ε, Σ δ), what adding up like money would say.
        promise: all sales together, in words; it holds for a list that was fixed in advance.
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
    done, basic = 0, 0.0
    before: list[PrivacyEvent] = []
    points = [(0, 0.0, 0.0)]
    for line in account.lines:
        sale, noise = line.sale, line.noise_multiplier
        for k in np.unique(np.linspace(1, sale.count, min(sale.count, _POINTS_PER_LINE)).astype(int)):
            epsilon = renyi_epsilon([*before, _repeated(sale, noise, int(k))], account.certificate.delta)
            points.append((done + int(k), epsilon, basic + k * sale.epsilon))
        before.append(_repeated(sale, noise, sale.count))
        done, basic = done + sale.count, basic + sale.count * sale.epsilon
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
            columns, rows = reader.fieldnames or [], list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PrivacyError(f"{path}: cannot be read as CSV: {error}", "give a text file with a header") from error
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
    except (KeyError, ValueError) as error:
        raise PrivacyError(f"{where}: {error}", "ε and rate are numbers, steps and count whole numbers") from error
    except PrivacyError as error:
        raise PrivacyError(f"{where}: {error.message}", error.hint) from error


def _repeated(sale: EqualSales, noise: float, times: int) -> PrivacyEvent:
    """`times` of the sale's releases, as one event."""
    return PrivacyEvent(noise, sale.sampling_rate, sale.steps * times)


def _sell(wallet: Wallet, sale: EqualSales, noise: float) -> int:
    """Charges as many of the sales as fit, and says how many."""
    low, high = 0, sale.count + 1
    while high - low > 1:
        middle = (low + high) // 2
        if wallet.can_spend(_repeated(sale, noise, middle)):
            low = middle
        else:
            high = middle
    if low:
        wallet.spend(_repeated(sale, noise, low))
    return low
