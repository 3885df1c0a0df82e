"""Files appear whole or not at all, and a bad place is refused before the work."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from privmarket._files import OWNER_ONLY, check_writable, file_beside, write_atomically, write_new
from privmarket.errors import ConfigurationError, WriteError


def test_text_and_bytes_are_written_and_nothing_else_stays(tmp_path):
    target = tmp_path / "new" / "folder" / "a.txt"
    write_atomically(target, "ε\n")
    assert target.read_bytes() == "ε\n".encode()
    write_atomically(target, b"second", previous=target.with_name("a.old"))
    assert target.read_bytes() == b"second"
    assert target.with_name("a.old").read_bytes() == "ε\n".encode()
    assert sorted(p.name for p in target.parent.iterdir()) == ["a.old", "a.txt"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    target = tmp_path / "a.txt"
    write_atomically(target, "old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match="No space left"):
        write_atomically(target, "new")
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_large_file_takes_its_place_when_it_is_whole(tmp_path):
    target = tmp_path / "new" / "a.bin"
    with file_beside(target) as beside, beside.open("wb") as stream:
        for letter in b"abc":
            stream.write(bytes([letter]))
        assert not target.exists()
    assert target.read_bytes() == b"abc"

    def interrupted():
        with file_beside(target) as beside:
            beside.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_bytes() == b"abc"
    assert [path.name for path in target.parent.iterdir()] == ["a.bin"]


def test_files_reach_the_disk_before_they_get_their_name(tmp_path, monkeypatch):
    steps = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, name=name, real=real: (steps.append(name), real(*given))[1])
    with file_beside(tmp_path / "large") as beside:
        beside.write_bytes(b"content")
    write_atomically(tmp_path / "small", b"content")
    assert steps == ["fsync", "replace", "fsync"] * 2  # the file, its name, the folder
    write_new(tmp_path / "key", "secret")
    assert steps[6:] == ["fsync", "fsync"]


@pytest.mark.skipif(os.name == "nt", reason="no such modes there")
def test_secrets_are_their_owners_alone(tmp_path):
    write_atomically(tmp_path / "bids", "{}", mode=OWNER_ONLY)
    write_new(tmp_path / "key", "secret")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("bids", "key")] == [0o600, 0o600]
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "key", "another")
    assert (tmp_path / "key").read_text() == "secret"


def test_a_reader_never_sees_half_a_file(tmp_path):
    target, seen = tmp_path / "a.bin", set()
    write_atomically(target, b"a" * 100_000)
    stop = threading.Event()

    def read():
        while not stop.is_set():
            seen.add(target.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for letter in b"bcdefgh":
        write_atomically(target, bytes([letter]) * 100_000)
    stop.set()
    reader.join()
    assert all(len(content) == 100_000 and len(set(content)) == 1 for content in seen)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    """As root, renaming a file over /dev/stdout would take it from everybody."""
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_atomically(pipe, "hello")
    reader.join(timeout=60)
    assert read == [b"hello"]
    assert pipe.is_fifo()


def test_links_in_a_circle_are_refused_and_stay(tmp_path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(WriteError, match="a link that leads nowhere"):
        write_atomically(tmp_path / "one", "new")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_symlink()) == ["one", "two"]


def test_of_a_link_the_file_behind_it_is_replaced(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    link.symlink_to(file)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"


def test_places_are_checked_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    check_writable(None)
    check_writable(tmp_path / "not" / "yet" / "there.csv")
    check_writable(tmp_path / "file")
    assert not (tmp_path / "not").exists()
    with pytest.raises(ConfigurationError, match="is a folder"):
        check_writable(tmp_path)
    with pytest.raises(ConfigurationError, match="is not a folder"):
        check_writable(tmp_path / "file" / "below.csv")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which nobody can make files")
def test_a_folder_that_takes_no_files_is_found_by_trying():
    with pytest.raises(ConfigurationError, match=r"--model-out /proc/model\.safetensors"):
        check_writable("/proc/model.safetensors", "--model-out")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="may not be written"):
        check_writable(tmp_path / "a.csv")
