"""The way to and from pandas, which is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privmarket.errors import BidError
from privmarket.extras import require


def pandas_module() -> Any:
    """pandas, or one line that says how to get it."""
    require("pandas")
    return import_module("pandas")


def column_of(frame: Any, name: str) -> NDArray[np.float64]:
    """(rows,) a column of a data frame as numbers."""
    try:
        return np.asarray(frame[name], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BidError(f"data frame, column {name!r}: not numbers: {error}", "convert the column first") from error


def frame_of(
    shape: tuple[int, ...], client_ids: Sequence[str] | None, columns: Mapping[str, NDArray[np.float64]]
) -> Any:
    """A data frame with a row per entry of arrays of one shape (..., clients).

    Rows are indexed by `client`, and by `market`, counted from 0, where there is more than one.
    """
    pandas = pandas_module()
    *lead, clients = shape
    markets = int(np.prod(lead)) if lead else 1
    names = list(range(clients)) if client_ids is None else list(client_ids)
    index: dict[str, Any] = {"market": np.repeat(np.arange(markets), clients)} if lead else {}
    index["client"] = names * markets
    frame = pandas.DataFrame({**index, **{name: array.ravel() for name, array in columns.items()}})
    return frame.set_index(list(index))
