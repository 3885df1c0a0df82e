"""An older copy of a wallet file that is put back is noticed: by a head file, or by a broker's books."""

import json
import shutil

import pytest

from privmarket.privacy import _wallet_file as wallet_file
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._wallet_file import WalletFile, WalletFileError

FAMILY = ReleaseFamily()


@pytest.fixture
def guarded(tmp_path):
    return WalletFile(tmp_path / "w.jsonl", 3.0, head_file=tmp_path / "elsewhere" / "head.json")


@pytest.fixture
def bare(tmp_path):
    return WalletFile(tmp_path / "bare.jsonl", 3.0)


def forget():
    """As a new process: nothing is known but the files."""
    wallet_file._REPLAYS.clear()


def sell(wallet, sale, **fields):
    forget()
    with wallet.open() as book:
        book.reserve(sale, 0.3, FAMILY.event(0.3), **fields)


def older_copy(wallet, path):
    """Sells once, keeps a copy, sells twice, and puts the copy back."""
    sell(wallet, "a/0")
    shutil.copy(wallet.path, path)
    sell(wallet, "a/1")
    sell(wallet, "a/2")
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
        sell(guarded, f"a/{number}")
    attack(guarded)
    left_behind = guarded.path.read_bytes()
    for again in (guarded, WalletFile(guarded.path, 3.0)):  # also who leaves the head file out
        with pytest.raises(WalletFileError, match="not the newest copy") as caught:
            sell(again, "a/9")
        assert "put the newest copy back" in caught.value.hint
    with pytest.raises(WalletFileError):
        guarded.statement()
    assert guarded.path.read_bytes() == left_behind  # nothing is repaired away


def test_an_older_copy_is_refused(guarded, tmp_path):
    older_copy(guarded, tmp_path / "copy")
    with pytest.raises(WalletFileError, match=r"has 3 lines where .*head\.json counted 5"):
        sell(guarded, "a/3")


def test_without_a_head_file_an_older_copy_sells_again(bare, tmp_path):
    """The broken subject, and why the statement says what protects a wallet."""
    older_copy(bare, tmp_path / "copy")
    sell(bare, "a/1")  # a second time
    assert bare.protections == ("none",)


def test_a_wallet_that_is_gone_is_not_made_anew(guarded):
    sell(guarded, "a/0")
    guarded.path.unlink()
    with pytest.raises(WalletFileError, match="the wallet is gone"):
        sell(guarded, "a/1")


def test_a_copy_from_before_the_head_file_is_refused(bare, tmp_path):
    sell(bare, "a/0")
    shutil.copy(bare.path, tmp_path / "copy")
    guarded = WalletFile(bare.path, 3.0, head_file=tmp_path / "head.json")
    sell(guarded, "a/1")
    assert guarded.protections == WalletFile(bare.path, 3.0).protections == ("head-file",)
    shutil.copy(tmp_path / "copy", bare.path)
    with pytest.raises(WalletFileError, match="not the newest copy"):
        sell(guarded, "a/1")


def test_a_crash_between_the_two_files_is_no_rollback(guarded):
    sell(guarded, "a/0")
    head = guarded.head_file.read_bytes()
    sell(guarded, "a/1")
    guarded.head_file.write_bytes(head)  # the line is on disk, the head file was not written any more
    sell(guarded, "a/2")
    assert json.loads(guarded.head_file.read_text())["lines"] == len(guarded.path.read_bytes().splitlines())


def test_a_head_file_can_be_moved_but_not_lost(guarded, tmp_path):
    sell(guarded, "a/0")
    moved = WalletFile(guarded.path, 3.0, head_file=tmp_path / "new.json")
    shutil.move(guarded.head_file, moved.head_file)
    sell(moved, "a/1")
    assert WalletFile(guarded.path, 3.0).statement()[-1]["sale"] == "a/1"
    moved.head_file.unlink()
    with pytest.raises(WalletFileError, match="cannot be read") as caught:
        sell(moved, "a/2")
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
    sell(wallet, f"a/{number}", buyer="lab", broker="http://b", broker_round=f"round-{number}", due_micro=5)
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
    sell(bare, "a/0", due_micro=100)
    sell(bare, "a/1")  # given away
    with bare.open() as book:
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
    sell(bare, "a/0", due_micro=100)
    with bare.open() as book:
        book.void("a/0")
        assert book.unpaid_epsilon("") == 0.0
