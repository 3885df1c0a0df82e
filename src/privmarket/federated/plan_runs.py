"""One run of a plan, and public records to plan on."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from privmarket.errors import DataError
from privmarket.federated.client_spread import ClientSpread, measure_spread
from privmarket.federated.config import FederationConfig
from privmarket.federated.datasets import FILES, Dataset, load_dataset
from privmarket.federated.features import with_features
from privmarket.federated.simulation import Federation
from privmarket.federated.state import RunResult
from privmarket.federated.summary import client_table
from privmarket.federated.workers import one_thread

# Trainings that tell how different clients are: parts of them without noise, and all of them with noise.
SPREAD_SHARES, SPREAD_DRAWS, SPREAD_OCTAVES = (0.15, 0.4), 2, (-2, 0, 1, 2, 3)
SPREAD_TRAININGS = len(SPREAD_SHARES) * SPREAD_DRAWS + len(SPREAD_OCTAVES)
# Of a proxy's records every sixth is test and every sixth validation: a proxy has no test file of its own.
_HELD_OUT_EVERY = 6


@dataclass(frozen=True)
class RunFigures:
    """What a plan keeps of a run.

    Attributes:
        lifetime_epsilon: the largest total ε of a client; infinite for a run without noise.
        epsilon_if_others_collude: the same if all other sellers collude; None where updates are private alone.
    """

    accuracy: float
    spent: float
    lifetime_epsilon: float
    highest_pay: float
    sellers_per_round: float
    seconds: float
    epsilon_if_others_collude: float | None = None


@dataclass(frozen=True)
class PublicProxy:
    """A file of public records: `images` (records, [channels,] height, width) and `labels` (records,), as .npz."""

    path: Path
    digest: str

    @staticmethod
    def at(path: Path) -> PublicProxy:
        """The file at `path`, read once to see that it is usable."""
        if not path.is_file():
            raise DataError(f"no proxy at {path}", "give an .npz file with arrays `images` and `labels`")
        proxy = PublicProxy(path, hashlib.sha256(path.read_bytes()).hexdigest()[:16])
        proxy.load("test")
        return proxy

    def load(self, measured_on: str) -> Dataset:
        """Records for clients, and those to measure on, `test` or `validation`."""
        try:
            with np.load(self.path, allow_pickle=False) as file:
                images, labels = np.asarray(file["images"]), np.asarray(file["labels"])
        except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile) as error:
            raise DataError(
                f"{self.path}: not a proxy ({error})", "save it by numpy.savez(path, images=…, labels=…)"
            ) from error
        if images.ndim == 3:
            images = images[:, None]
        if images.ndim != 4 or labels.shape != images.shape[:1] or labels.size < 10 * _HELD_OUT_EVERY:
            raise DataError(
                f"{self.path}: images {images.shape} and labels {labels.shape}",
                f"give at least {10 * _HELD_OUT_EVERY} images and one whole-number label for each",
            )
        if labels.dtype.kind not in "iu" or labels.min() < 0:
            raise DataError(f"{self.path}: labels are no whole numbers from 0 on", "number the classes 0, 1, 2 …")
        if images.dtype.kind not in "iuf" or not np.isfinite(images).all():
            raise DataError(f"{self.path}: images are not all finite numbers", "leave out or mend such records")
        scale = 255.0 if images.dtype == np.uint8 else 1.0
        pixels = np.asarray(images / scale, dtype=np.float32)
        place = np.arange(labels.size) % _HELD_OUT_EVERY
        train, measured = place < _HELD_OUT_EVERY - 2, place == _HELD_OUT_EVERY - 1 - (measured_on == "validation")
        whole = labels.astype(np.int64)
        classes = int(whole.max()) + 1
        return Dataset("proxy", pixels[train], whole[train], pixels[measured], whole[measured], classes)


def check_proxy(proxy: Dataset, dataset: str) -> None:
    """Refuses a proxy whose images have another shape than the data set that it stands for."""
    wanted = (1, 8, 8) if dataset == "digits" else FILES[dataset].image_shape
    if proxy.image_shape != wanted:
        raise DataError(
            f"the proxy's images have shape {proxy.image_shape}, those of {dataset} {wanted}",
            "give a proxy of the same channels, height and width, or name the data set that it resembles",
        )


@lru_cache(maxsize=2)
def _records(dataset: str, proxy: PublicProxy | None, measured_on: str, features: str) -> Dataset:
    """Records with their features computed, the same for most runs of a plan."""
    raw = load_dataset(dataset, measured_on=measured_on) if proxy is None else proxy.load(measured_on)
    return with_features(raw, features)


def records_of(config: FederationConfig, proxy: PublicProxy | None, measured_on: str) -> Dataset:
    """The plan's records with their features, to be measured on `test` or `validation` records."""
    return _records(config.dataset, proxy, measured_on, config.training.features)


def spread_of(config: FederationConfig, proxy: PublicProxy | None, on_training: Callable[[], None]) -> ClientSpread:
    """How different clients are, measured on the plan's records; see `client_spread`."""
    records = _records(config.dataset, proxy, config.measured_on, config.training.features)
    return measure_spread(
        config, records, shares=SPREAD_SHARES, draws=SPREAD_DRAWS, octaves=SPREAD_OCTAVES, on_training=on_training
    )


def run_cell(config: FederationConfig, proxy: PublicProxy | None) -> RunFigures:
    """Plays a whole run and keeps its figures."""
    started = time.perf_counter()
    with one_thread():
        records = _records(config.dataset, proxy, config.measured_on, config.training.features)
        ready = config.replace_training(features="none")
        with Federation(ready, dataset=records) as federation:
            state = federation.start()
            while state.next_round < config.rounds:
                state = federation.step(state)
            weights, types = federation.model_weights(state).numpy(), federation.types(config.rounds - 1)
    result = RunResult(config, state.records, weights, state.wallets, types, 0.0)
    rows = client_table(result)
    spent = [math.inf if row["epsilon_spent"] is None else row["epsilon_spent"] for row in rows]
    alone = [row["epsilon_if_others_collude"] for row in rows]
    return RunFigures(
        accuracy=float(result.accuracy),
        spent=float(result.spent),
        lifetime_epsilon=max(spent, default=0.0),
        highest_pay=max((row["paid"] for row in rows), default=0.0),
        sellers_per_round=float(np.mean([record.sellers for record in state.records])),
        seconds=round(time.perf_counter() - started, 3),
        epsilon_if_others_collude=max((one for one in alone if one is not None), default=None),
    )
