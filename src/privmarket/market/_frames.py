"""The way to and from pandas, which is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket._lazy import late
from privmarket.errors import BidError

if TYPE_CHECKING:
    import pandas
else:
    pandas = late("pandas")


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
