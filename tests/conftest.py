"""Shared by all tests: small markets of every awkward kind."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

from privmarket.market.bids import Bids


def awkward_markets(rng: np.random.Generator, markets: int, clients: int) -> Bids:
    """(markets, clients) bids with ties, zeros, equal bids and very different scales mixed in."""
    v = rng.random((markets, clients))
    kind = rng.integers(6, size=(markets, 1))
    v = np.where(kind == 0, np.round(v * 4) / 4, v)  # ties and zeros
    v = np.where(kind == 1, v[:, :1], v)  # all equal
    v = np.where(kind == 2, v**6 * 100, v)  # skewed
    v = np.where(kind == 3, np.where(rng.random(v.shape) < 0.4, 0.0, v), v)  # many zeros
    epsilon = np.clip(np.where(kind % 2 == 0, rng.uniform(0.1, 5, v.shape), 1.0), 0.1, 5.0)
    epsilon = np.where(kind == 4, np.round(epsilon * 2) / 2 + 0.5, epsilon).clip(0.1, 5.0)
    return Bids(v, epsilon)


def awkward_budgets(rng: np.random.Generator, markets: int) -> np.ndarray:
    """(markets,) from next to nothing to more than everybody together asks."""
    return 10.0 ** rng.uniform(-3, 3, markets)


def pytest_collection_finish() -> None:
    """Before the first test: the garbage collector is spared what was imported and collected.

    The server of `tests.forked` starts now, because the product would start it with less imported.
    """
    gc.collect()
    gc.freeze()
    if (forked := sys.modules.get("tests.forked")) is not None:
        forked.start_server()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261115)
