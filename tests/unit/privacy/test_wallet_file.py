"""Wallet files: they outlive processes, and what was about to be released counts as spent."""

import json
import os
import signal
import subprocess
import sys

import pytest

from privmarket.errors import WalletError
from privmarket.privacy import _wallet_file as wallet_file
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._wallet import Wallet
from privmarket.privacy._wallet_file import WalletFile, WalletFileError

FAMILY = ReleaseFamily()


@pytest.fixture
def wallet(tmp_path):
    return WalletFile(tmp_path / "sub" / "wallet.jsonl", cap_epsilon=3.0)


def forget():
    """As a new process: nothing is known but the files."""
    wallet_file._REPLAYS.clear()


def sell(wallet, sale, epsilon=1.0):
    with wallet.open() as book:
        book.reserve(sale, epsilon, FAMILY.event(epsilon))


def left(wallet):
    with wallet.open() as book:
        return book.remaining_share


def test_the_statement_says_which_share_of_honest_sellers_a_sum_rests_on(wallet):
    with wallet.open() as book:
        for sale, trust, share in (("a", "aggregate", 0.6), ("b", "aggregate", None), ("c", "local", 0.6)):
            book.reserve(sale, 0.1, FAMILY.event(0.1), trust=trust, honest_share=share)
    forget()
    said = {line["sale"]: (line["trust"], line.get("honest_share")) for line in wallet.statement()}
    assert said == {"a": ("aggregate", 0.6), "b": ("aggregate", None), "c": ("local", None)}


def test_a_sale_is_charged_once_and_for_ever(wallet):
    sell(wallet, "a/0")
    before = left(wallet)
    forget()
    assert left(wallet) == before < 1
    with pytest.raises(WalletError, match="made before"):
        sell(wallet, "a/0")
    assert left(wallet) == before


def test_the_cap_holds_over_restarts(wallet):
    sold = 0
    try:
        for sold in range(100):
            forget()
            sell(wallet, f"run-{sold}/0")
    except WalletError as error:
        assert "does not fit" in str(error)  # noqa: PT017
    assert 3 < sold < 12  # composition beats adding up, and still the cap is finite
    with wallet.open() as book:
        assert 0 < float(book.wallets.affordable(FAMILY, 5.0)[0]) < 1
        assert float(book.wallets.affordable(FAMILY, 5.0, rounds_left=4)[0]) < float(
            book.wallets.affordable(FAMILY, 5.0)[0]
        )


def test_another_cap_is_refused(wallet):
    sell(wallet, "a/0")
    with pytest.raises(WalletError, match="for life"):
        left(WalletFile(wallet.path, cap_epsilon=30.0))


def test_a_line_cut_short_was_never_sold(wallet):
    sell(wallet, "a/0")
    share = left(wallet)
    whole = wallet.path.read_bytes()
    sell(wallet, "a/1")
    for cut in (1, 20, 60):
        wallet.path.write_bytes(wallet.path.read_bytes()[: len(whole) + cut])
        forget()
        assert left(wallet) == share
        assert wallet.path.read_bytes() == whole
        sell(wallet, "a/1")


@pytest.mark.parametrize("line", ["{}", "not json", '{"kind": "paid", "sale": "x/9", "paid_micro": 1}'])
def test_a_damaged_file_sells_nothing(wallet, line):
    sell(wallet, "a/0")
    lines = wallet.path.read_text().splitlines()
    wallet.path.write_text("\n".join([lines[0], line, *lines[1:], ""]))
    forget()
    with pytest.raises(WalletFileError, match="line 2"):
        sell(wallet, "a/1")


def test_what_another_process_sold_is_seen(wallet):
    sell(wallet, "a/0")
    copy = wallet.path.read_bytes()
    sell(wallet, "a/1")
    share = left(wallet)
    with wallet.path.open("ab") as stream:  # a second process, by hand
        entry = json.loads(copy.splitlines()[1]) | {"sale": "b/0"}
        stream.write(json.dumps(entry).encode() + b"\n")
    assert left(wallet) < share
    assert [sale["sale"] for sale in wallet.statement()] == ["a/0", "a/1", "b/0"]


def test_a_process_killed_while_it_trains_has_spent(tmp_path):
    """The line is on disk before training starts: SIGKILL in training, or before the reply, changes nothing."""
    code = f"""
from privmarket.privacy._wallet_file import WalletFile
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._wallet import Wallet
import time
family = ReleaseFamily()
wallet = WalletFile({str(tmp_path / "w.jsonl")!r}, 3.0)
with wallet.open() as book:
    book.reserve("run/0", 1.0, family.event(1.0))
print("training", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "training\n"
        os.kill(process.pid, signal.SIGKILL)
    wallet = WalletFile(tmp_path / "w.jsonl", 3.0)
    assert left(wallet) < 1
    with pytest.raises(WalletError, match="made before"):
        sell(wallet, "run/0")
    assert [sale["released"] for sale in wallet.statement()] == [False]


def test_a_file_says_for_life_what_it_watches(wallet):
    sell(wallet, "a/0")
    first = json.loads(wallet.path.read_text().splitlines()[0])
    assert [tuple(one) for one in first["measures"]] == Wallet(3.0).measures == wallet.measures
    plain = Wallet(3.0)
    plain.spend(FAMILY.event(1.0))
    assert left(wallet) == plain.remaining_share
    # Another version may watch something else in new files; this one stays as it was opened.
    other = WalletFile(wallet.path.parent / "other.jsonl", 3.0)
    other.path.write_text(json.dumps(first | {"measures": [["gaussian", 1.0]]}) + "\n")
    assert other.measures == [("gaussian", 1.0)]
    more = WalletFile(wallet.path.parent / "more.jsonl", 3.0)
    more.path.write_text(json.dumps(first | {"measures": [["gaussian", 1.0], ["renyi 8", 0.5]]}) + "\n")
    with pytest.raises(WalletFileError, match="shares"):
        left(more)


def test_a_new_wallet_spreads_what_it_has_over_the_rounds_to_come(wallet):
    with wallet.open() as book:
        share = float(book.wallets.affordable(FAMILY, 5.0, rounds_left=10)[0])
    for number in range(10):
        sell(wallet, f"a/{number}", share)
    with pytest.raises(WalletError):
        sell(wallet, "a/10", share)
    assert left(wallet) < 0.03


def test_a_wallet_that_was_never_opened_is_full(tmp_path):
    fresh = WalletFile(tmp_path / "fresh.jsonl", 8.0)
    assert fresh.remaining_share == 1.0
    with fresh.open() as opened:
        opened.reserve("r/0", 1.0, ReleaseFamily().event(1.0))
    assert 0.9 < fresh.remaining_share < 1.0
