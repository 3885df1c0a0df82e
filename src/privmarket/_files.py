"""Writes files in one step, checks before work begins that they can be written, and says why one cannot be read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from json import JSONDecodeError
from pathlib import Path

from privmarket.errors import ConfigurationError, WriteError

OWNER_ONLY = 0o600
_ANYBODY = 0o666  # as far as the process's umask allows


def in_words(error: BaseException) -> str:
    """What the system or a parser says is wrong with a file, without error numbers, byte positions or its path."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    if isinstance(error, JSONDecodeError):
        return f"not JSON: {error.msg} in line {error.lineno}"
    if isinstance(error, KeyError):
        return f"no field {error}"
    if isinstance(error, EOFError | StopIteration):
        return "it ends too early"
    return str(error)


def write_atomically(
    path: str | Path, data: bytes | str, *, previous: Path | None = None, mode: int = _ANYBODY
) -> None:
    """Puts `data` at `path` in one step: a reader sees the old file or the new one, also after a power cut.

    A device or a pipe (`/dev/stdout`) is written to, never replaced. If `path` is a link, the file
    that it points to is replaced.

    Args:
        path: the target; its folder is made where it is missing.
        data: bytes, or text that is stored as UTF-8.
        previous: where the file that stood at `path` goes; it is replaced if left out.
        mode: who may read and write the new file.

    Raises:
        WriteError: the file could not be written; what was at `path` is untouched.
    """
    path = _behind_links(Path(path))
    content = data.encode() if isinstance(data, str) else data
    with _naming(path):
        if path.exists() and not (path.is_file() or path.is_dir()):
            path.write_bytes(content)
            return
    with file_beside(path, previous=previous, mode=mode) as beside:
        beside.write_bytes(content)


@contextmanager
def file_beside(path: str | Path, *, previous: Path | None = None, mode: int = _ANYBODY) -> Iterator[Path]:
    """An empty file beside `path` to fill; when the block ends, it takes the place of `path` in one step.

    Does what `write_atomically` does, for data too large for memory. If the block raises, what was at `path` is
    untouched and the new file is removed.
    """
    path = _behind_links(Path(path))
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with _naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode))
            yield beside
            with beside.open("rb+") as stream:
                os.fsync(stream.fileno())
            if previous is not None and path.exists():
                os.replace(path, previous)
            os.replace(beside, path)
            force_folder(path.parent)
    finally:
        with suppress(OSError):
            beside.unlink()


def write_new(path: str | Path, data: bytes | str) -> None:
    """Makes a file that only its owner may read, on disk when this returns; for keys, which are never replaced.

    Raises:
        FileExistsError: there is such a file already.
    """
    content = data.encode() if isinstance(data, str) else data
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    force_folder(Path(path).parent)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turns an error of the operating system into a `WriteError` that names the file."""
    try:
        yield
    except OSError as error:
        raise WriteError(
            f"could not write {path}: {in_words(error)}",
            "free some space or choose another place; an earlier file is untouched",
        ) from error


def _behind_links(path: Path) -> Path:
    """The file that a link points to, which need not be there yet."""
    # `Path.resolve` raises for links in a circle before Python 3.13 and not from there on; this never does.
    behind = Path(os.path.realpath(path)) if path.is_symlink() else path
    if behind.is_symlink():
        raise WriteError(f"could not write {path}: a link that leads nowhere", "choose another place")
    return behind


def force_folder(folder: Path) -> None:
    """Makes a new or renamed file of this folder survive a power cut, where the system can."""
    if os.name == "nt":  # folders cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_writable(path: str | Path | None, option: str = "--out") -> None:
    """Refuses a place where no file can be written, before the work whose result should go there.

    Args:
        path: the file that will be written; None passes.
        option: what the user called it.
    """
    if path is None:
        return
    path = Path(path)
    if path.is_dir():
        raise ConfigurationError(f"{option} {path} is a folder", "give the name of a file")
    folder = path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise ConfigurationError(f"{option} {path}: {folder} is not a folder", "choose another place")
    target = path if path.exists() else folder
    if not os.access(target, os.W_OK):
        raise ConfigurationError(f"{option} {path}: {target} may not be written", "choose another place")
    if path.exists() and not path.is_file():
        return  # a device or a pipe
    try:
        # Permissions do not tell of a read-only disk or a full one.
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigurationError(f"{option} {path}: {in_words(error)}", "choose another place") from error
