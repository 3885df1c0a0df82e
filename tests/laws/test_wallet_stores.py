"""Every store of wallets keeps the one rule for when ε is spent: reserved, and void only if nothing left."""

import pytest

from privmarket.errors import WalletError
from privmarket.privacy.accountant import composed_epsilon
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.privacy.wallet import Wallets
from privmarket.privacy.wallet_file import WalletFolder
from privmarket.privacy.wallet_store import MemoryStore, ReleaseBook

FAMILY, CAP = ReleaseFamily(), 3.0
CLIENTS = ("anna", "ben", "carl")
PLACES = {client: at for at, client in enumerate(CLIENTS)}


def in_memory(folder):
    return MemoryStore(PLACES, Wallets([CAP] * 3, expected=[FAMILY.event(1.0)]))


def in_files(folder):
    return WalletFolder(folder / "wallets", CAP, FAMILY)


def without_caps(folder):
    return ReleaseBook()


CAPPED = {"memory": in_memory, "files": in_files}
STORES = {**CAPPED, "book": without_caps}


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    return STORES[request.param](tmp_path)


@pytest.fixture(params=CAPPED)
def capped(request, tmp_path):
    return CAPPED[request.param](tmp_path)


def sold(*epsilon):
    """One event per client of CLIENTS; None is left out."""
    return {client: FAMILY.event(e) for client, e in zip(CLIENTS, epsilon, strict=True) if e is not None}


def check_reserved_counts_at_once(store):
    store.reserve("run/0", sold(1.0, 0.5, None))
    assert store.spent("anna") == (FAMILY.event(1.0),)
    assert store.spent("ben") == (FAMILY.event(0.5),)
    assert store.spent("carl") == store.spent("nobody") == ()


def test_what_is_reserved_counts_as_spent_at_once(store):
    check_reserved_counts_at_once(store)


def test_a_round_is_sold_once(store):
    store.reserve("run/0", sold(1.0, None, None))
    with pytest.raises(WalletError, match="made before"):
        store.reserve("run/0", sold(0.5, None, None))
    assert store.spent("anna") == (FAMILY.event(1.0),)


def test_void_gives_back_one_client_and_leaves_the_others(store):
    store.reserve("run/0", sold(1.0, 1.0, None))
    store.reserve("run/1", sold(0.25, 0.5, 0.5))
    store.void("run/0", ["anna"])
    assert store.spent("anna") == (FAMILY.event(0.25),)
    assert store.spent("ben") == (FAMILY.event(1.0), FAMILY.event(0.5))


@pytest.mark.parametrize(("sale", "client"), [("run/0", "carl"), ("run/7", "anna")])
def test_only_what_was_sold_can_be_void(store, sale, client):
    store.reserve("run/0", sold(1.0, 1.0, None))
    with pytest.raises(WalletError):
        store.void(sale, [client])
    store.void("run/0", ["anna"])
    with pytest.raises(WalletError):
        store.void("run/0", ["anna"])
    assert store.spent("ben") == (FAMILY.event(1.0),)


def test_one_that_does_not_fit_stops_all(capped):
    with pytest.raises(WalletError):
        capped.reserve("run/0", sold(1.0, 1.0, 2 * CAP))
    assert [capped.spent(client) for client in CLIENTS] == [(), (), ()]


def sales_until_full(store, void_every=0):
    """How many sales of ε = 1 go through, and all that anna spent."""
    for number in range(100):
        try:
            store.reserve(f"run/{number}", sold(1.0, None, None))
        except WalletError:
            return number, store.spent("anna")
        if void_every and number % void_every == 0:
            store.void(f"run/{number}", ["anna"])
    raise AssertionError("the cap never held")


def test_the_cap_holds(capped):
    number, spent = sales_until_full(capped)
    assert number == len(spent) > 3  # composition beats adding up
    assert composed_epsilon(spent, FAMILY.delta) <= CAP * (1 + 1e-9)


def test_what_is_void_can_be_sold_again_and_no_more(tmp_path):
    for make in CAPPED.values():
        plain, _ = sales_until_full(make(tmp_path / "plain"))
        voided, spent = sales_until_full(make(tmp_path / "voided"), void_every=2)
        assert len(spent) == plain
        assert voided > plain


def test_files_remember_over_processes(tmp_path):
    from privmarket.privacy import wallet_file

    store = in_files(tmp_path)
    store.reserve("run/0", sold(1.0, 0.5, None))
    store.void("run/0", ["ben"])
    wallet_file._REPLAYS.clear()
    again = in_files(tmp_path)
    assert again.spent("anna") == (FAMILY.event(1.0),)
    assert again.spent("ben") == ()
    with pytest.raises(WalletError, match="made before"):  # void or not, the round was sold
        again.reserve("run/0", sold(None, 0.5, None))


def test_an_update_that_left_cannot_be_void(tmp_path):
    store = in_files(tmp_path)
    store.reserve("run/0", sold(1.0, None, None))
    with store.file("anna").open() as wallet:
        wallet.released("run/0", "00")
    with pytest.raises(WalletError, match="cannot be void"):
        store.void("run/0", ["anna"])
    assert store.spent("anna") == (FAMILY.event(1.0),)


def test_the_wallets_that_a_store_was_given_stay_as_they_were():
    """A run's state before a round is still what it was after it."""
    given = Wallets([CAP] * 3)
    store = MemoryStore(PLACES, given)
    store.reserve("run/0", sold(1.0, 0.5, None))
    after = store.wallets
    store.void("run/0", ["ben"])
    assert given.history == ()
    assert after.history == ((FAMILY.event(1.0), FAMILY.event(0.5), None),)
    assert store.wallets.history == ((FAMILY.event(1.0), None, None),)


def test_the_checks_catch_a_store_that_counts_only_later():
    """The broken subject: between award and training a second sale could use the same ε."""

    class Late(ReleaseBook):
        def reserve(self, sale, events):
            self._waiting = sale, events

    with pytest.raises(AssertionError):
        check_reserved_counts_at_once(Late())
