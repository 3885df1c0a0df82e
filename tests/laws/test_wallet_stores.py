"""Every store of wallets keeps the one rule for when ε is spent: reserved, and void only if nothing left.

A store in memory is a `WalletStore` as it stands. A client's file and a broker's database are looked at as one by
`InFiles` and `InSql`, which add nothing but the names: each step is the function that the engine itself calls.
"""

import pytest

from privmarket.broker import _lifecycle as lifecycle, _wallets as wallets
from privmarket.broker._schema import awards_of, round_and_task
from privmarket.errors import WalletError
from privmarket.privacy._accountant import composed_epsilon
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._wallet import Wallets
from privmarket.privacy._wallet_store import MemoryStore, ReleaseBook, WalletFile, not_reserved
from privmarket.rounds import Award
from privmarket_fixtures.market import make_market

FAMILY, CAP = ReleaseFamily(), 3.0
CLIENTS = ("anna", "ben", "carl")
PLACES = {client: at for at, client in enumerate(CLIENTS)}


def in_memory(folder):
    return MemoryStore(PLACES, Wallets([CAP] * 3))


class InFiles:
    """A file per client, as Flower's clients keep them."""

    def __init__(self, folder):
        self.folder = folder / "wallets"

    def file(self, client):
        return WalletFile(self.folder / f"client-{client}.jsonl", CAP, FAMILY.delta)

    def reserve(self, sale, events):
        done = []
        for client, event in events.items():
            try:
                with self.file(client).open() as wallet:
                    wallet.reserve(sale, float(FAMILY.epsilon(event.noise_multiplier)), event)
            except WalletError:
                self.void(sale, done)
                raise
            done.append(client)

    def void(self, sale, clients):
        for client in clients:
            with self.file(client).open() as wallet:
                wallet.void(sale)

    def spent(self, client):
        return self.file(client).spent()


class InSql:
    """The awards of a broker on SQLite; a sale is a round, reserved as at clearing and void as at settlement."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        self.market = make_market(f"sqlite:///{folder / 'market.db'}", len(CLIENTS), (CAP,))
        self.ids = {client: seller.party_id for client, seller in zip(CLIENTS, self.market.sellers, strict=True)}
        self.rounds = {}

    def write(self):
        return self.market.broker.database.write("system")

    def reserve(self, sale, events):
        if sale not in self.rounds:
            self.rounds[sale] = self.market.open(budget_micro=1)
        round_id = self.rounds[sale]
        sold = {self.ids[client]: event for client, event in events.items()}
        awards = {name: Award(float(FAMILY.epsilon(e.noise_multiplier)), e, 0) for name, e in sold.items()}
        with self.write() as tx:
            wallets.StoredWallets(tx.connection, round_id).check(sold)
            wallets.reserve(tx, round_id, awards)

    def void(self, sale, clients):
        with self.write() as tx:
            rows = {row.seller_id: row for row in awards_of(tx.connection, self.rounds.get(sale, ""))}
            for client in clients:
                if self.ids[client] not in rows:
                    raise not_reserved(f"{sale} of {client}")
                wallets.void(tx, rows[self.ids[client]])

    def spent(self, client):
        seller = self.ids.get(client, client)
        with self.market.broker.database.read() as connection:
            records = wallets.of_sellers(connection, [seller])
        return records[seller].events if seller in records else ()


def without_caps(folder):
    return ReleaseBook()


CAPPED = {"memory": in_memory, "files": InFiles, "sql": InSql}
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
    said = "nothing is reserved for .*: it cannot be void"  # one text for every store
    with pytest.raises(WalletError, match=said):
        store.void(sale, [client])
    store.void("run/0", ["anna"])
    with pytest.raises(WalletError, match=said):
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
    from privmarket.privacy import _wallet_store as wallet_file

    store = InFiles(tmp_path)
    store.reserve("run/0", sold(1.0, 0.5, None))
    store.void("run/0", ["ben"])
    wallet_file._REPLAYS.clear()
    again = InFiles(tmp_path)
    assert again.spent("anna") == (FAMILY.event(1.0),)
    assert again.spent("ben") == ()
    with pytest.raises(WalletError, match="made before"):  # void or not, the round was sold
        again.reserve("run/0", sold(None, 0.5, None))


def test_sql_remembers_what_was_void_and_what_a_claim_announced(tmp_path):
    """At a broker an update counts as gone from its seller's claim on."""
    store = InSql(tmp_path)
    store.reserve("run/0", sold(1.0, 0.5, None))
    with pytest.raises(WalletError, match="made before"):
        store.reserve("run/0", sold(None, None, 0.5))
    round_id, anna = store.rounds["run/0"], store.ids["anna"]
    with store.write() as tx:
        tx.log("round.cleared", round_id, trimmed={}, delivery_deadline_ms=tx.now_ms + 1, review_deadline_ms=2,
               dispute_deadline_ms=3, ruling_deadline_ms=4)  # fmt: skip
    with store.market.broker.database.write(anna) as tx:
        lifecycle.claim(tx, anna, *round_and_task(tx.connection, round_id), "ab" * 32, None, None)
    with pytest.raises(WalletError, match="nothing is reserved"):
        store.void("run/0", ["anna"])
    store.void("run/0", ["ben"])
    assert store.spent("anna") == (FAMILY.event(1.0),)
    assert store.spent("ben") == ()


def test_an_update_that_left_cannot_be_void(tmp_path):
    store = InFiles(tmp_path)
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
