"""What clients offer: a valuation and a cap on ε each, with two public features. Also: bids from CSV files.

Notation: valuation = v (money per unit of ε), epsilon = ε̂ (the most a client will sell in this round),
data_size = d, accuracy = u in the paper's b_i = (v_i, d_i, u_i, ε_i).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from html import escape
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket._counted import counted
from privmarket._files import in_words
from privmarket._lazy import late
from privmarket.errors import BidError

if TYPE_CHECKING:
    import pandas
else:
    pandas = late("pandas")

Array = NDArray[np.float64]
_OneIndex = int | slice | EllipsisType | None | NDArray[np.integer] | NDArray[np.bool_] | Sequence[int]
Index = _OneIndex | tuple[_OneIndex, ...]
"""What NumPy takes between brackets."""
_SHOWN_IN_HTML = 20


class Bid(NamedTuple):
    """One client's offer, as `for bid in bids` gives it."""

    client: str
    valuation: float
    epsilon: float
    data_size: float | None
    accuracy: float | None


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Bids:
    """Offers of n clients in one market, or in a batch of markets.

    Attributes:
        valuation: (..., clients) money asked per unit of ε, finite and ≥ 0.
        epsilon: (..., clients) the most ε that is offered, finite and > 0.
        data_size: (..., clients) number of records, > 0, public; None means all equal.
        accuracy: (..., clients) local accuracy in [0, 1], public; None means unknown.
        client_ids: (clients,) names, the same in every market of a batch; None means that clients are known by
            their positions.
        shape: (..., clients).

    The arrays are private read-only copies: bids cannot change after they were made. Two bids are equal when all
    their fields are. `len(bids)` and iteration go over the first axis: over the clients of one market (each a
    `Bid`), or over the markets of a batch (each a `Bids`).
    """

    valuation: Array
    epsilon: Array
    data_size: Array | None = None
    accuracy: Array | None = None
    client_ids: tuple[str, ...] | None = None
    shape: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        valuation: ArrayLike,
        epsilon: ArrayLike,
        data_size: ArrayLike | None = None,
        accuracy: ArrayLike | None = None,
        client_ids: Sequence[object] | None = None,
    ) -> None:
        names = None if client_ids is None else tuple(str(client) for client in client_ids)
        object.__setattr__(self, "client_ids", names)
        shape: tuple[int, ...] | None = None  # of the valuations, which come first
        for name, given in zip(_RULES, (valuation, epsilon, data_size, accuracy), strict=True):
            if given is None and name in ("data_size", "accuracy"):
                object.__setattr__(self, name, None)
                continue
            try:
                array = np.array(given, dtype=np.float64)
            except (TypeError, ValueError) as error:
                hint = "give one number per client"
                raise BidError(f"{name}: not an array of numbers: {error}", hint) from error
            if array.ndim == 0 or array.shape[-1] == 0:
                raise BidError(f"{name}: no clients (shape {array.shape})", "an auction needs at least one bid")
            if shape is not None and array.shape != shape:
                raise BidError(
                    f"{name}: shape {array.shape} differs from valuation's {shape}", "give one number per client"
                )
            acceptable, expectation, remedy = _RULES[name]
            bad = ~acceptable(array)
            if bad.any():
                at = tuple(int(i) for i in np.argwhere(bad)[0])
                where = at[0] if len(at) == 1 else at
                who = f" of client {names[at[-1]]!r}" if names is not None and len(names) > at[-1] else ""
                raise BidError(f"{name}[{where}]{who} is {array[at]!s}: must be {expectation}", remedy)
            array.setflags(write=False)
            object.__setattr__(self, name, array)
            shape = array.shape
        object.__setattr__(self, "shape", shape)
        if names is not None:
            _validate_ids(names, self.clients)

    @property
    def clients(self) -> int:
        """The number of clients that bid in each market."""
        return int(self.valuation.shape[-1])

    @property
    def data_share(self) -> Array:
        """(..., clients) W_i = d_i / Σd, or 1/n where sizes were not given."""
        if self.data_size is None:
            return np.full(self.shape, 1.0 / self.clients)
        return np.asarray(self.data_size / self.data_size.sum(axis=-1, keepdims=True))

    def label(self, at: tuple[int, ...]) -> str:
        """What errors call the client at this index, (...,) with the client's position last."""
        client = f"client {at[-1]}" if self.client_ids is None else f"client {self.client_ids[at[-1]]!r}"
        return client if len(at) == 1 else f"{client} of market {at[0] if len(at) == 2 else at[:-1]}"

    def refuse_above(self, epsilon_max: float) -> None:
        """Raises `BidError`, naming the client, if an offer passes the market's public limit."""
        if self.epsilon.max() > epsilon_max:
            at = tuple(int(i) for i in np.argwhere(self.epsilon > epsilon_max)[0])
            raise BidError(
                f"{self.label(at)} offers ε = {self.epsilon[at]:g}: above the market's limit "
                f"epsilon_max = {epsilon_max:g}",
                "offer less, or set up the market with a larger epsilon_max",
            )

    def replace(self, **changes: object) -> Bids:
        """A copy of these bids with some fields changed, checked again."""
        fields = {name: getattr(self, name) for name in (*_RULES, "client_ids")}
        return Bids(**{**fields, **changes})

    def __getitem__(self, index: Index) -> Bids:
        """Markets (or clients) picked by a NumPy index, applied to every field.

        Names stay with their clients where each is picked at most once, or where whole markets are picked.
        """
        names: Sequence[object] | None = None
        if self.client_ids is not None:
            if self.valuation.ndim == 1:
                picked = np.asarray(self.client_ids, dtype=object)[index]
                # Drawn with replacement, or into a batch: then these are no longer the clients of those names.
                if np.ndim(picked) == 1 and len(set(picked)) == len(picked):
                    names = list(picked)
            elif not isinstance(index, tuple) or len(index) < self.valuation.ndim:
                names = self.client_ids
        return Bids(
            self.valuation[index],
            self.epsilon[index],
            None if self.data_size is None else self.data_size[index],
            None if self.accuracy is None else self.accuracy[index],
            names,
        )

    def __len__(self) -> int:
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        if len(self.shape) > 1:
            return (self[market] for market in range(len(self)))
        names = self.client_ids or tuple(str(i) for i in range(self.clients))
        arrays = [getattr(self, name) for name in _RULES]
        columns = [[None] * self.clients if array is None else array.tolist() for array in arrays]
        return (Bid(*row) for row in zip(names, *columns, strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bids):
            return NotImplemented
        return self.client_ids == other.client_ids and all(
            (a is None) == (b is None) and (a is None or np.array_equal(a, b))
            for a, b in ((getattr(self, name), getattr(other, name)) for name in _RULES)
        )

    def __hash__(self) -> int:
        return hash((self.shape, float(self.valuation.sum()), float(self.epsilon.sum())))

    def __repr__(self) -> str:
        *lead, clients = self.shape
        markets = f"{' × '.join(str(n) for n in lead)} markets of " if lead else ""
        given = [f"{name} {_span(getattr(self, name))}" for name in _RULES if getattr(self, name) is not None]
        return f"Bids({markets}{counted(clients, 'client')}: {', '.join(given)})"

    def _repr_html_(self) -> str:
        if len(self.shape) > 1:
            return f"<p>{escape(repr(self))}</p>"
        given = [name for name in _RULES if getattr(self, name) is not None]
        head = "".join(f"<th>{name}</th>" for name in ("client", *given))
        rows = [
            f"<tr><td>{escape(bid.client)}</td>"
            + "".join(f"<td>{getattr(bid, name):.4g}</td>" for name in given)
            + "</tr>"
            for _, bid in zip(range(_SHOWN_IN_HTML), self, strict=False)
        ]
        more = f"<p>{self.clients - _SHOWN_IN_HTML} more</p>" if self.clients > _SHOWN_IN_HTML else ""
        return f"<table><tr>{head}</tr>{''.join(rows)}</table>{more}"

    @classmethod
    def from_frame(cls, frame: pandas.DataFrame, *, client: str = "client") -> Bids:
        """One market from a data frame with a row per client.

        Args:
            frame: columns `valuation`, `epsilon` and, where known, `data_size` and `accuracy`; other columns are
                ignored.
            client: the column with the clients' names; without it, the frame's index names them.
        """
        for name in ("valuation", "epsilon"):
            if name not in frame.columns:
                found = ", ".join(str(column) for column in frame.columns) or "none"
                raise BidError(f"data frame: no column {name!r} (found: {found})", "rename or add the column")
        fields = {name: column_of(frame, name) for name in _RULES if name in frame.columns}
        names = frame[client] if client in frame.columns else frame.index
        return cls(**fields, client_ids=[str(name) for name in names])

    def to_frame(self) -> pandas.DataFrame:
        """A row per client, and per market of a batch. Needs pandas."""
        given = {name: getattr(self, name) for name in _RULES if getattr(self, name) is not None}
        return frame_of(self.shape, self.client_ids, given)


# field → (what must hold; the same in words; the remedy). Comparisons with NaN are false, so each refuses NaN too.
_RULES: dict[str, tuple[Callable[[Array], NDArray[np.bool_]], str, str]] = {
    "valuation": (
        lambda a: (a >= 0) & (a < np.inf),
        "finite and at least 0",
        "a valuation is money per unit of ε",
    ),
    "epsilon": (lambda a: (a > 0) & (a < np.inf), "finite and above 0", "leave out a client that sells nothing"),
    "data_size": (lambda a: (a > 0) & (a < np.inf), "finite and above 0", "leave out a client without records"),
    "accuracy": (lambda a: (a >= 0) & (a <= 1), "between 0 and 1", "give a share, not per cent"),
}


def _span(array: Array) -> str:
    low = float(array.min())
    high = float(array.max())
    return f"{low:.4g}" if low == high else f"{low:.4g}…{high:.4g}"


def _validate_ids(names: tuple[str, ...], clients: int) -> None:
    if len(names) != clients:
        raise BidError(f"client_ids: {len(names)} names for {clients} clients", "give one name per client")
    if len(set(names)) < clients:
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise BidError(f"client_ids: {twice!r} appears twice", "keep one bid per client")


def column_of(frame: pandas.DataFrame, name: str) -> NDArray[np.float64]:
    """(rows,) a column of a data frame as numbers."""
    try:
        return np.asarray(frame[name], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BidError(f"data frame, column {name!r}: not numbers: {error}", "convert the column first") from error


def frame_of(
    shape: tuple[int, ...], client_ids: Sequence[str] | None, columns: Mapping[str, NDArray[np.float64]]
) -> pandas.DataFrame:
    """A data frame with a row per entry of arrays of one shape (..., clients).

    Rows are indexed by `client`, and by `market`, counted from 0, where there is more than one.
    """
    *lead, clients = shape
    markets = int(np.prod(lead)) if lead else 1
    names = list(range(clients)) if client_ids is None else list(client_ids)
    index: dict[str, ArrayLike] = {"market": np.repeat(np.arange(markets), clients)} if lead else {}
    index["client"] = names * markets
    frame = pandas.DataFrame({**index, **{name: array.ravel() for name, array in columns.items()}})
    return frame.set_index(list(index))


_REQUIRED = ("client", "valuation", "epsilon")
_OPTIONAL = ("data_size", "accuracy")


@dataclass(frozen=True)
class BidFile:
    """Named bids. clients: one name per bid; bids: (clients,)."""

    clients: tuple[str, ...]
    bids: Bids


def read_bids(path: str | Path) -> BidFile:
    """Reads and checks a file of bids; the first thing wrong is named with its line, field and value."""
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            separator = _separator(stream)
            return _parse(path, csv.reader(stream, delimiter=separator), separator)
    except OSError as error:
        raise BidError(f"{path}: cannot be read: {in_words(error)}", "check the path") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BidError(f"{path}: not a CSV text file: {in_words(error)}", "save it as UTF-8 CSV") from error


def _separator(stream: TextIO) -> str:
    """The separator of the header line, which has no numbers in it."""
    header = stream.readline()
    stream.seek(0)
    return max(",;\t", key=header.count) if any(mark in header for mark in ",;\t") else ","


def _parse(path: Path, rows: csv._reader, separator: str) -> BidFile:  # type: ignore[name-defined]
    header = [name.strip() for name in next(rows, [])]
    _check_header(path, header)
    numeric = [name for name in _FIELD_RULES if name in header]
    columns: dict[str, list[float]] = {name: [] for name in numeric}
    line_of: dict[str, int] = {}
    for row in rows:
        line = rows.line_num
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(header):
            raise BidError(
                f"{path}, line {line}: {len(row)} fields where the header has {len(header)}",
                "give every column a value; numbers with decimal commas need semicolons between the columns",
            )
        cells = dict(zip(header, (cell.strip() for cell in row), strict=True))
        client = cells["client"]
        if not client:
            raise BidError(f"{path}, line {line}, field client: empty", "name the client")
        if client in line_of:
            raise BidError(
                f"{path}, line {line}, field client: {client!r} was already on line {line_of[client]}",
                "keep one bid per client",
            )
        line_of[client] = line
        for name in numeric:
            columns[name].append(_number(path, line, name, cells[name], separator))
    if not line_of:
        raise BidError(f"{path}: no bids below the header", "an auction needs at least one bid")
    bids = Bids(**columns, client_ids=tuple(line_of))
    return BidFile(tuple(line_of), bids)


def _check_header(path: Path, header: Sequence[str]) -> None:
    missing = [name for name in _REQUIRED if name not in header]
    if missing:
        near = get_close_matches(missing[0], header, n=1)
        guess = f"rename {near[0]!r}? " if near else ""
        raise BidError(
            f"{path}, line 1: missing column {missing[0]!r} (found: {', '.join(header) or 'nothing'})",
            f"{guess}the first line must name {', '.join(_REQUIRED)}[, {', '.join(_OPTIONAL)}]",
        )
    known = _REQUIRED + _OPTIONAL
    for name in header:
        if name in known and header.count(name) > 1:
            raise BidError(f"{path}, line 1: column {name!r} appears twice", "remove one")
        # A column of another meaning is ignored; a misspelt one would be lost silently.
        near = get_close_matches(name.lower().replace(" ", "_"), _OPTIONAL, n=1, cutoff=0.8)
        if name not in known and near and near[0] not in header:
            raise BidError(f"{path}, line 1: unknown column {name!r}", f"did you mean {near[0]!r}?")


# field → (test, what is expected)
_FIELD_RULES: dict[str, tuple[Callable[[float], bool], str]] = {
    "valuation": (lambda x: 0 <= x < math.inf, "a finite number of at least 0"),
    "epsilon": (lambda x: 0 < x < math.inf, "a finite number above 0"),
    "data_size": (lambda x: 0 < x < math.inf, "a finite number above 0"),
    "accuracy": (lambda x: 0 <= x <= 1, "a number between 0 and 1"),
}


def _number(path: Path, line: int, name: str, text: str, separator: str) -> float:
    accept, expected = _FIELD_RULES[name]
    plain = text.replace(",", ".") if separator != "," and "." not in text and text.count(",") == 1 else text
    try:
        value = float(plain)
    except ValueError:
        value = math.nan
    if not accept(value):
        raise BidError(f"{path}, line {line}, field {name}: {text!r}", f"must be {expected}")
    return value
