"""A seller's state on disk: written before a message leaves, locked, whole or refused."""

import os
import stat
import threading

import numpy as np
import pytest

from privmarket.errors import WriteError
from privmarket.secagg import Client, FileJournal, SumRefusal, _journal as journal_module, answer
from tests.unit.secagg.parties import IDENTITIES, Play, terms_of, total_of, vector_of


def journals(folder, sellers=7):
    return {number: FileJournal(folder / f"seller-{number}.sums") for number in range(sellers)}


def test_a_sum_on_disk_is_the_sum(tmp_path):
    play = Play(journals=journals(tmp_path))
    np.testing.assert_array_equal(play.run(), total_of(range(7)))


def test_every_step_may_be_taken_by_another_process(tmp_path):
    """Nothing but the file goes from step to step: each seller gets a new client and a new journal each time."""
    play = Play(journals=journals(tmp_path))
    going = True
    while going:
        play.clients = [Client(play.identities[i], journals(tmp_path)[i]) for i in range(7)]
        going = play.step()
    np.testing.assert_array_equal(play.server.result.total, total_of(range(7)))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_only_the_owner_reads_it(tmp_path):
    play = Play(journals=journals(tmp_path)).until("SHARES")
    path = play.journals[0].path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("phase", ["KEYS", "SHARES", "CHECKS", "INPUTS", "CONFIRMATIONS", "OPENINGS"])
def test_a_step_that_cannot_be_written_sends_nothing(phase, tmp_path, monkeypatch):
    play = Play(journals=journals(tmp_path)).until(phase)
    message = play.waiting[3]
    before = play.journals[3].path.read_bytes() if play.journals[3].path.exists() else None

    def full(*_, **__):
        raise WriteError("no space left", "free some")

    monkeypatch.setattr(journal_module, "write_atomically", full)
    with pytest.raises(SumRefusal) as caught:
        answer(play.clients[3], message, vector_of(3))
    assert caught.value.cause == "disk"
    monkeypatch.undo()
    assert (play.journals[3].path.read_bytes() if before is not None else None) == before
    assert play.run() is not None  # the step was not taken, so it can be


@pytest.mark.parametrize("change", [lambda d: d[:-1], lambda d: d + b"x", lambda d: b"", lambda d: d[:40] + d[41:]])
def test_a_damaged_file_is_refused(change, tmp_path):
    play = Play(journals=journals(tmp_path)).until("SHARES")
    path = play.journals[2].path
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(SumRefusal) as caught:
        answer(play.clients[2], play.waiting[2])
    assert caught.value.cause == "disk"
    assert "damaged" in caught.value.message


def test_two_handlers_at_the_same_time_get_one_answer(tmp_path):
    """Sixteen threads with clients of their own ask one seller to sign one of two lists."""
    play = Play(terms_of(14), journals=journals(tmp_path, 14)).until("CONFIRMATIONS")
    lists = [
        play.waiting[3],
        type(play.waiting[3])(play.terms.digest, tuple(n for n in range(14) if n != 5)),
    ]
    signed, refused = [], []
    barrier = threading.Barrier(16)

    def handler(at):
        client = Client(play.identities[3], FileJournal(play.journals[3].path))
        barrier.wait()
        try:
            signed.append(client.confirm(lists[at % 2]))
        except SumRefusal as error:
            refused.append(error.cause)

    threads = [threading.Thread(target=handler, args=(at,)) for at in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(signed) == 1
    assert refused == ["repeated"] * 15


def test_without_the_lock_two_lists_are_signed(tmp_path, monkeypatch):
    """The subject broken on purpose: two handlers that each read the state before the other writes."""
    play = Play(terms_of(14), journals=journals(tmp_path, 14)).until("CONFIRMATIONS")
    other = type(play.waiting[3])(play.terms.digest, tuple(n for n in range(14) if n != 5))
    client = Client(play.identities[3], play.journals[3])
    copied = play.journals[3].path.read_bytes()
    first = client.confirm(play.waiting[3])
    play.journals[3].path.write_bytes(copied)  # what a handler sees that read before
    second = client.confirm(other)
    assert first.signature != second.signature


def test_an_unregistered_seller_keeps_its_key(tmp_path):
    journal = FileJournal(tmp_path / "sums")
    with journal.open() as book:
        made = book.identity().public_key
    with FileJournal(tmp_path / "sums").open() as book:
        assert book.identity().public_key == made


def test_several_tasks_have_a_sum_each(tmp_path):
    shared = journals(tmp_path)
    one = Play(terms_of(task="one"), journals=shared).until("INPUTS")
    other = Play(terms_of(task="other"), journals=shared).until("INPUTS")
    assert one.run() is not None
    assert other.run() is not None


def test_identities_are_those_of_the_register():
    assert len({one.public_key for one in IDENTITIES}) == len(IDENTITIES)


# ---- an older copy is put back ---------------------------------------------------------------------------------


def guarded(folder, sellers=7):
    (folder / "elsewhere").mkdir()
    return {
        number: FileJournal(folder / f"seller-{number}.sums", folder / "elsewhere" / f"head-{number}")
        for number in range(sellers)
    }


def second_list(play):
    """The victim's journal is put back to before it signed; then it is shown a list without seller 5."""
    path = play.journals[3].path
    copied = path.read_bytes()
    play.clients[3].confirm(play.waiting[3])
    path.write_bytes(copied)
    return type(play.waiting[3])(play.terms.digest, tuple(n for n in range(14) if n != 5))


def test_a_head_file_shows_an_older_copy(tmp_path):
    play = Play(terms_of(14), journals=guarded(tmp_path, 14)).until("CONFIRMATIONS")
    other = second_list(play)
    with pytest.raises(SumRefusal) as caught:
        play.clients[3].confirm(other)
    assert caught.value.cause == "disk"
    assert "not the newest copy" in caught.value.message
    assert "put the newest copy back" in caught.value.hint


def test_without_a_head_file_it_signs_again(tmp_path):
    """The subject broken on purpose."""
    play = Play(terms_of(14), journals=journals(tmp_path, 14)).until("CONFIRMATIONS")
    other = second_list(play)
    assert play.clients[3].confirm(other).signature


def test_sums_go_on_under_a_head_file(tmp_path):
    play = Play(journals=guarded(tmp_path))
    np.testing.assert_array_equal(play.run(), total_of(range(7)))


def test_a_crash_between_the_two_files_is_no_rollback(tmp_path):
    play = Play(journals=guarded(tmp_path)).until("SHARES")
    head = play.journals[2].head_file
    before = head.read_bytes()
    play.step()
    head.write_bytes(before)  # the journal was written, its head was not
    assert play.run() is not None


@pytest.mark.parametrize("lost", ["journal", "head"])
def test_a_file_that_is_gone_is_noticed(lost, tmp_path):
    play = Play(journals=guarded(tmp_path)).until("SHARES")
    journal = play.journals[2]
    (journal.path if lost == "journal" else journal.head_file).unlink()
    with pytest.raises(SumRefusal) as caught:
        answer(play.clients[2], play.waiting[2])
    assert caught.value.cause == "disk"


def test_a_journal_keeps_its_head_file(tmp_path):
    play = Play(journals=guarded(tmp_path)).until("SHARES")
    client = Client(play.identities[2], FileJournal(play.journals[2].path))
    with pytest.raises(SumRefusal, match="has a head file"):
        answer(client, play.waiting[2])


def test_the_folder_of_a_journals_head_file_is_never_made(tmp_path):
    journal = FileJournal(tmp_path / "a.sums", tmp_path / "disk" / "a.head")
    with pytest.raises(SumRefusal, match="there is no folder") as caught, journal.open():
        pass
    assert "mount the disk" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_journal_may_get_a_head_file_later(tmp_path):
    play = Play(journals=journals(tmp_path)).until("SHARES")
    play.journals = guarded(tmp_path)
    play.clients = [Client(play.identities[i], play.journals[i]) for i in range(7)]
    assert play.run() is not None
