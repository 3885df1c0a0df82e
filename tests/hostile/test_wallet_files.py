"""What a change of a wallet file by hand gets: refused by the file's own hashes, or only by a head file."""

import json
import shutil

import pytest

from privmarket.privacy import _wallet_store as wallet_file
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._wallet_store import WalletFile, WalletFileError

EVENT = ReleaseFamily().event(0.3)


def sold(folder, head=False):
    """A wallet with three sales, the second of which was void."""
    (folder / "elsewhere").mkdir()
    wallet = WalletFile(folder / "w.jsonl", 3.0, head_file=folder / "elsewhere" / "w.head" if head else None)
    for number in range(3):
        with wallet.open() as book:
            book.reserve(f"a/{number}", 0.3, EVENT)
    with wallet.open() as book:
        book.void("a/1")
        book.released("a/0", "ab")
    return wallet


def sell_again(wallet):
    """A further sale in a new process."""
    wallet_file._REPLAYS.clear()
    with wallet.open() as book:
        book.reserve("a/9", 0.3, EVENT)


def replaced(old, new):
    def change(lines):
        changed = [line.replace(old, new) for line in lines]
        assert changed != lines
        return changed

    return change


def with_more_noise(lines):
    """A sale that pretends to have cost next to nothing."""
    entry = json.loads(lines[3])
    entry["event"]["noise_multiplier"] *= 100
    return [*lines[:3], json.dumps(entry).encode() + b"\n", *lines[4:]]


def with_a_line_made_up(lines):
    entry = {"kind": "void", "sale": "a/2", "hash": "0" * 64}
    return [*lines, json.dumps(entry).encode() + b"\n"]


IN_THE_MIDDLE = {
    "another name": replaced(b'"a/0"', b'"b/0"'),
    "another cap": replaced(b'"cap_epsilon": 3.0', b'"cap_epsilon": 30.0'),
    "another unit": replaced(b'"unit": "record", "measures"', b'"unit": "person", "measures"'),
    "more noise": with_more_noise,
    "a line left out": lambda lines: [lines[0], *lines[2:]],
    "a line twice": lambda lines: [*lines[:2], *lines[1:]],
    "two lines in another order": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "an invented line": with_a_line_made_up,
    "without its first line": lambda lines: lines[1:],
    "emptied": lambda lines: [],
    "cut in its first line": lambda lines: [lines[0][:40]],
    "the last line changed": lambda lines: [*lines[:-1], lines[-1].replace(b'"ab"', b'"cd"')],
}
# Of these a file cannot know by itself.
AT_THE_END = {
    "without its last line": lambda lines: lines[:-1],
    "without its last sale": lambda lines: lines[:3],
    "cut in its last line": lambda lines: [*lines[:-1], lines[-1][:-9]],
    "made anew": lambda lines: None,
}


def apply(change, wallet):
    changed = change(wallet.path.read_bytes().splitlines(keepends=True))
    if changed is None:
        wallet.path.unlink()
    else:
        wallet.path.write_bytes(b"".join(changed))


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("change", IN_THE_MIDDLE)
def test_a_changed_file_is_refused(change, head, tmp_path):
    wallet = sold(tmp_path, head)
    apply(IN_THE_MIDDLE[change], wallet)
    found = wallet.path.read_bytes()
    with pytest.raises(WalletFileError):
        sell_again(wallet)
    with pytest.raises(WalletFileError):
        wallet.statement()
    assert wallet.path.read_bytes() == found  # nothing is repaired away


@pytest.mark.parametrize("change", AT_THE_END)
def test_only_a_head_file_notices_what_is_gone_from_the_end(change, tmp_path):
    (tmp_path / "bare").mkdir()
    (tmp_path / "guarded").mkdir()
    bare = sold(tmp_path / "bare")
    apply(AT_THE_END[change], bare)
    sell_again(bare)
    guarded = sold(tmp_path / "guarded", head=True)
    apply(AT_THE_END[change], guarded)
    with pytest.raises(WalletFileError, match="not the newest copy"):
        sell_again(guarded)


def test_a_file_put_back_sells_on(tmp_path):
    wallet = sold(tmp_path)
    shutil.copy(wallet.path, tmp_path / "copy")
    apply(IN_THE_MIDDLE["more noise"], wallet)
    with pytest.raises(WalletFileError):
        sell_again(wallet)
    wallet.path.write_bytes((tmp_path / "copy").read_bytes())
    with wallet.open() as book:  # also in the process that refused the other one
        book.reserve("a/9", 0.3, EVENT)
