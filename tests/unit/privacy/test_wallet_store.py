"""Wallets on disk: what counts as spent, whatever dies in between, and whether an old copy is noticed."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from privmarket.errors import WalletError
from privmarket.privacy import _wallet_store as wallet_file
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._wallet import Wallet
from privmarket.privacy._wallet_store import WalletFile, WalletFileError

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


def line_of(entry):
    """A first line with its hash, as another version of the package writes it."""
    return wallet_file._line("", {key: value for key, value in entry.items() if key != "hash"})


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
    for cap, delta in ((30.0, 1e-5), (float("inf"), 1e-5), (3.0, 1e-6)):
        with pytest.raises(WalletError, match="for life"):
            left(WalletFile(wallet.path, cap, delta))


def test_a_cap_can_be_lowered_for_good(wallet):
    sell(wallet, "a/0")
    measures = wallet.measures
    lower = WalletFile(wallet.path, cap_epsilon=2.0)
    with lower.open() as book:
        assert float(book.wallets.cap_epsilon[0]) == 2.0
        with pytest.raises(WalletError, match="does not fit"):
            book.reserve("a/1", 1.9, FAMILY.event(1.9))
        book.reserve("a/1", 0.7, FAMILY.event(0.7))
    forget()
    assert lower.measures == measures  # chosen before the first sale
    assert lower.epsilon_spent <= 2.0
    assert WalletFile.existing(wallet.path).cap_epsilon == 2.0
    with pytest.raises(WalletError, match="cap of ε = 2"):
        left(wallet)
    with pytest.raises(WalletError, match="has sold more"):
        left(WalletFile(wallet.path, cap_epsilon=0.5))
    assert left(lower) < 0.6
    assert [json.loads(line)["kind"] for line in wallet.path.read_text().splitlines()].count("lowered") == 1


def test_a_lowered_wallet_gives_a_sale_back(wallet):
    sell(wallet, "a/0")
    sell(wallet, "a/1", 0.2)
    lower = WalletFile(wallet.path, cap_epsilon=2.0)
    with lower.open() as book:
        before = book.remaining_share
        book.void("a/1")
        assert book.remaining_share > before
    forget()
    assert left(lower) > before


def test_a_wallet_counts_one_unit(tmp_path):
    records = WalletFile(tmp_path / "w.jsonl", 3.0)
    sell(records, "a/0")
    persons = WalletFile(tmp_path / "w.jsonl", 3.0, unit="person")
    with pytest.raises(WalletError, match="per record, not per person") as caught:
        left(persons)
    assert 'unit = "record"' in caught.value.hint
    with records.open() as book, pytest.raises(WalletError, match="do not add up"):
        book.reserve("a/1", 0.1, FAMILY.event(0.1), unit="person")
    assert WalletFile.existing(records.path).unit == "record"
    assert {sale["unit"] for sale in records.statement()} == {"record"}


def test_the_folder_of_a_head_file_is_never_made(tmp_path):
    """A disk that is not mounted: a head file in its place would be lost when it is."""
    wallet = WalletFile(tmp_path / "w.jsonl", 3.0, head_file=tmp_path / "disk" / "w.head")
    with pytest.raises(WalletFileError, match="there is no folder") as caught:
        left(wallet)
    assert "mount the disk" in caught.value.hint
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "disk").mkdir()
    sell(wallet, "a/0")
    assert wallet.head_file.exists()


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
    sell(wallet, "a/1")
    share = left(wallet)
    known = wallet_file._REPLAYS.pop(wallet.path)
    sell(wallet, "b/0")  # a second process
    wallet_file._REPLAYS[wallet.path] = known
    assert left(wallet) < share
    assert [sale["sale"] for sale in wallet.statement()] == ["a/0", "a/1", "b/0"]


def test_a_process_killed_while_it_trains_has_spent(tmp_path):
    """The line is on disk before training starts: SIGKILL in training, or before the reply, changes nothing."""
    code = f"""
from privmarket.privacy._wallet_store import WalletFile
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
    other.path.write_bytes(line_of(first | {"measures": [["gaussian", 1.0]]}))
    assert other.measures == [("gaussian", 1.0)]
    more = WalletFile(wallet.path.parent / "more.jsonl", 3.0)
    more.path.write_bytes(line_of(first | {"measures": [["gaussian", 1.0], ["renyi 8", 0.5]]}))
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


@pytest.fixture
def guarded(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    return WalletFile(tmp_path / "w.jsonl", 3.0, head_file=tmp_path / "elsewhere" / "head.json")


@pytest.fixture
def bare(tmp_path):
    return WalletFile(tmp_path / "bare.jsonl", 3.0)


def sell_with(wallet, sale, **fields):
    forget()
    with wallet.open() as book:
        book.reserve(sale, 0.3, FAMILY.event(0.3), **fields)


def older_copy(wallet, path):
    """Sells once, keeps a copy, sells twice, and puts the copy back."""
    sell_with(wallet, "a/0")
    shutil.copy(wallet.path, path)
    sell_with(wallet, "a/1")
    sell_with(wallet, "a/2")
    shutil.copy(path, wallet.path)


def without_last_line(wallet):
    lines = wallet.path.read_bytes().splitlines(keepends=True)
    wallet.path.write_bytes(b"".join(lines[:-1]))


def cut_in_its_last_line(wallet):
    wallet.path.write_bytes(wallet.path.read_bytes()[:-20])


def with_a_line_changed(wallet):
    wallet.path.write_text(wallet.path.read_text().replace('"a/0"', '"b/0"'))


@pytest.mark.parametrize("attack", [without_last_line, cut_in_its_last_line, with_a_line_changed])
def test_a_shorter_or_changed_file_is_refused_with_the_remedy(guarded, attack):
    for number in range(3):
        sell_with(guarded, f"a/{number}")
    attack(guarded)
    left_behind = guarded.path.read_bytes()
    for again in (guarded, WalletFile(guarded.path, 3.0)):  # also who leaves the head file out
        with pytest.raises(WalletFileError, match=r"not the newest copy|hash does not fit") as caught:
            sell_with(again, "a/9")
        assert "put the newest copy back" in caught.value.hint
    with pytest.raises(WalletFileError):
        guarded.statement()
    assert guarded.path.read_bytes() == left_behind  # nothing is repaired away


def test_an_older_copy_is_refused(guarded, tmp_path):
    older_copy(guarded, tmp_path / "copy")
    with pytest.raises(WalletFileError, match=r"has 3 lines where .*head\.json counted 5"):
        sell_with(guarded, "a/3")


def test_without_a_head_file_an_older_copy_sells_again(bare, tmp_path):
    """The broken subject, and why the statement says what protects a wallet."""
    older_copy(bare, tmp_path / "copy")
    sell_with(bare, "a/1")  # a second time
    assert bare.protections == ("none",)


def test_a_wallet_that_is_gone_is_not_made_anew(guarded):
    sell_with(guarded, "a/0")
    guarded.path.unlink()
    with pytest.raises(WalletFileError, match="the wallet is gone"):
        sell_with(guarded, "a/1")


def test_a_copy_from_before_the_head_file_is_refused(bare, tmp_path):
    sell_with(bare, "a/0")
    shutil.copy(bare.path, tmp_path / "copy")
    guarded = WalletFile(bare.path, 3.0, head_file=tmp_path / "head.json")
    sell_with(guarded, "a/1")
    assert guarded.protections == WalletFile(bare.path, 3.0).protections == ("head-file",)
    shutil.copy(tmp_path / "copy", bare.path)
    with pytest.raises(WalletFileError, match="not the newest copy"):
        sell_with(guarded, "a/1")


def test_a_crash_between_the_two_files_is_no_rollback(guarded):
    sell_with(guarded, "a/0")
    head = guarded.head_file.read_bytes()
    sell_with(guarded, "a/1")
    guarded.head_file.write_bytes(head)  # the line is on disk, the head file was not written any more
    sell_with(guarded, "a/2")
    assert json.loads(guarded.head_file.read_text())["lines"] == len(guarded.path.read_bytes().splitlines())


def test_a_head_file_can_be_moved_but_not_lost(guarded, tmp_path):
    sell_with(guarded, "a/0")
    moved = WalletFile(guarded.path, 3.0, head_file=tmp_path / "new.json")
    shutil.move(guarded.head_file, moved.head_file)
    sell_with(moved, "a/1")
    assert WalletFile(guarded.path, 3.0).statement()[-1]["sale"] == "a/1"
    moved.head_file.unlink()
    with pytest.raises(WalletFileError, match="cannot be read") as caught:
        sell_with(moved, "a/2")
    assert "put the head file back" in caught.value.hint


# --- a broker's books ------------------------------------------------------------------------------------


def delivery(number, sha256="ab", settled=None, paid=0):
    return {
        "round_id": f"round-{number}",
        "claim_sha256": sha256,
        "settled_seq": settled,
        "paid_micro": paid,
        "fault": None,
    }


def sell_at_broker(wallet, number):
    sell_with(wallet, f"a/{number}", buyer="lab", broker="http://b", broker_round=f"round-{number}", due_micro=5)
    with wallet.open() as book:
        book.released(f"a/{number}", "ab")


def compare(wallet, *deliveries):
    forget()
    with wallet.open() as book:
        book.compare("http://b", deliveries)


def test_a_file_that_holds_all_deliveries_is_taken_and_payments_are_noted(bare):
    sell_at_broker(bare, 0)
    sell_at_broker(bare, 1)
    assert bare.unpaid() == {"lab": pytest.approx(bare.epsilon_spent)}
    compare(bare, delivery(1), delivery(0, settled=7, paid=5))
    assert [sale.get("paid_micro") for sale in bare.statement()] == [5, None]
    assert bare.protections == ("broker",)
    compare(bare, delivery(1, settled=9, paid=5), delivery(0, settled=7, paid=5))
    assert bare.unpaid() == {}


def test_a_delivery_that_the_file_lacks_shows_an_older_copy(bare, tmp_path):
    sell_at_broker(bare, 0)
    shutil.copy(bare.path, tmp_path / "copy")
    sell_at_broker(bare, 1)
    compare(bare, delivery(1), delivery(0))
    shutil.copy(tmp_path / "copy", bare.path)
    with pytest.raises(WalletFileError, match="round-1 at http://b"):
        compare(bare, delivery(1), delivery(0))
    with pytest.raises(WalletFileError):
        compare(bare, delivery(0, sha256="cd"))  # another update than the one that the file says has left
    compare(bare, delivery(1, sha256=None), delivery(0))  # awarded and never delivered: nothing has left


# --- what buyers owe -------------------------------------------------------------------------------------


def test_a_payment_in_part_pays_no_debt_and_the_rest_does(bare):
    sell_with(bare, "a/0", due_micro=100)
    sell_with(bare, "a/1")  # given away
    with bare.open() as book:
        assert book.unpaid_epsilon("") == 0.0  # nothing has left yet
        book.released("a/0", "0" * 64)
        owed = book.unpaid_epsilon("")
        assert owed == pytest.approx(0.3, rel=1e-2)
        book.paid("a/0", 0, "late")
        book.paid("a/0", 60, "")
        assert book.unpaid_epsilon("") == owed
        book.paid("a/0", 100, "")
        assert book.unpaid_epsilon("") == 0.0
        book.paid("a/0", 0, "a receipt that comes late")
    forget()
    assert bare.statement()[0]["paid_micro"] == 100


def test_a_void_sale_is_owed_by_nobody(bare):
    sell_with(bare, "a/0", due_micro=100)
    with bare.open() as book:
        book.void("a/0")
        assert book.unpaid_epsilon("") == 0.0
