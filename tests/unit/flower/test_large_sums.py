"""Sums so large that nobody sees all sellers: neighbours by proof, confirmations by sample, in a sum made small."""

import numpy as np
import pytest

import privmarket as pm
from privmarket.broker.signatures import SigningKey
from privmarket.federated.simulation import run
from privmarket.flower import secure, secure_seller, sum_opening
from privmarket.flower.neighbours import Neighbourhood
from privmarket.flower.sum_server import SumServer
from tests.unit.flower.test_aggregate_trust import CONFIG, STEPS, refused
from tests.unit.flower.toy import Wire, partition

SELLERS = 9
LARGE = CONFIG.replace(clients=SELLERS, rounds=1, budget=40.0, mechanism_settings={"unit_price": 1.0})
EXTRA = "privmarket-cohort"


@pytest.fixture(autouse=True)
def small_plan(monkeypatch):
    """Windows of five, of which four are needed; samples of four, all of them good."""
    for side in (secure, secure_seller):
        monkeypatch.setattr(side, "neighbourhood", lambda sellers, share: Neighbourhood(sellers, 5, 4, 8, 6, 4))
    monkeypatch.setattr(sum_opening, "MAY_MISS", 1000)


def play(tamper=None, parties=None, keys=None):
    app = pm.flower.federation_client(LARGE)
    if keys is not None:
        app.seller.identity = lambda context: keys[partition(context)]
        app.seller.parties = lambda context: parties
    grid = Wire(app, SELLERS, tamper=tamper)
    return pm.flower.run_in_process(pm.flower.federation_server(LARGE), app, SELLERS, grid=grid), grid


def at(stage, change):
    """A server that changes what it shows with one step."""

    def tamper(message):
        configs = message.content.config_records.get(STEPS)
        if configs is not None and configs.get("stage") == stage:
            change(message.content.config_records.get(EXTRA), configs, message.metadata.dst_node_id)

    return tamper


def test_the_sum_is_the_simulation_s_and_nobody_is_shown_everybody():
    (result, grid), plain = play(), run(LARGE)
    assert plain.records[0].sellers == SELLERS
    assert refused(grid) == {}
    assert result.records == plain.records
    assert np.array_equal(result.weights["weights"], plain.weights)
    shown = [m.content[EXTRA] for m in grid.sent if EXTRA in m.content]
    assert {len(record["places"]) for record in shown} == {5, 4}
    assert all(len(record["list"]) == 72 * len(record["places"]) for record in shown)
    assert len({tuple(record["places"]) for record in shown if "signatures" in record}) == 1  # the tree's, for all


def another_seller(extra, configs, node):
    """Somebody else's keys at the last of the places."""
    extra["list"] = extra["list"][:-32] + bytes(range(32))


def another_place(extra, configs, node):
    extra["places"] = [(place + 1) % SELLERS for place in extra["places"]]


def no_proof(extra, configs, node):
    extra["branches"] = b""


def a_half(extra, configs, node):
    """Half of the sellers are asked for the sum without the first seller."""
    if node >= 1000 + SELLERS // 2:
        bits = bytearray(configs["survivors"])
        bits[0] &= 0xFE
        configs["survivors"] = bytes(bits)


def chosen_signatures(extra, configs, node):
    """The server picks whose signatures are looked at."""
    for key in ("places", "signatures"):
        extra[key] = extra[key][:1] * 4


def other_signatures(extra, configs, node):
    extra["signatures"] = [bytes(64)] * 4


def fewer(extra, configs, node):
    extra["signatures"] = extra["signatures"][:-1]


def untyped(extra, configs, node):
    extra["places"] = "0 1 2 3"


ATTACKS = {
    "another seller": ("share_keys", another_seller),
    "another place": ("share_keys", another_place),
    "no proof": ("share_keys", no_proof),
    "places that are text": ("share_keys", untyped),
    "two sums": ("agree", a_half),
    "chosen signatures": ("unmask", chosen_signatures),
    "other signatures": ("unmask", other_signatures),
    "a signature less": ("unmask", fewer),
    "signers that are text": ("unmask", untyped),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_server_that_shows_something_else_is_refused(attack):
    stage, change = ATTACKS[attack]
    result, grid = play(at(stage, change))
    assert set(refused(grid)) == {"cohort"}
    assert result.paid_micro == {}
    assert (result.releases == {}) is (stage == "share_keys")  # refused before any order


KEYS = [SigningKey.from_seed(bytes([i + 1]) * 32) for i in range(SELLERS)]


def test_registered_parties_stand_in_the_order_of_their_keys(monkeypatch):
    """So that none stands twice in a list that nobody sees whole."""
    parties = [key.public for key in KEYS]
    by_node = {1000 + i: key.public for i, key in enumerate(KEYS)}
    made = secure.SumServer
    monkeypatch.setattr(secure, "SumServer", lambda *args: made(*args[:-1], by_node))
    result, grid = play(parties=parties, keys=KEYS)
    assert refused(grid) == {}
    assert result.records[0].sellers == SELLERS
    # One party more than sell, or another one in the place of one: refused.
    stranger = SigningKey.from_seed(bytes([99]) * 32).public
    for others in ([*parties, stranger], [stranger, *parties[1:]]):
        result, grid = play(parties=others, keys=KEYS)
        assert set(refused(grid)) == {"cohort"}
        assert result.paid_micro == {}


def without_proofs(extra, configs, node):
    for key in ("parties", "proofs"):
        extra.pop(key, None)  # all sellers are shown the same record


def with_a_key_of_its_own(extra, configs, node):
    """The server signed in the place of a registered party: a proof by another key than the party's."""
    extra["proofs"] = [bytes(64), *extra["proofs"][1:]]


@pytest.mark.parametrize("change", [without_proofs, with_a_key_of_its_own])
@pytest.mark.parametrize("gullible", [False, True])
def test_the_signatures_that_are_looked_at_are_those_of_registered_parties(change, gullible, monkeypatch):
    """Else a server could confirm two lists in the name of sellers that nobody who looks has as a neighbour."""
    by_node = {1000 + i: key.public for i, key in enumerate(KEYS)}
    made = secure.SumServer
    monkeypatch.setattr(secure, "SumServer", lambda *args: made(*args[:-1], by_node))
    if gullible:
        monkeypatch.setattr(sum_opening, "check_parties", lambda *_: None)
    result, grid = play(at("unmask", change), parties=[key.public for key in KEYS], keys=KEYS)
    assert set(refused(grid)) == (set() if gullible else {"cohort"})
    assert (result.paid_micro == {}) is not gullible


def test_more_sellers_than_the_neighbours_are_refused(monkeypatch):
    """Survivors are counted among those that a seller was shown: with others among them it would count too many."""
    shown = SumServer._shown

    def one_more(self, cohort, places, keys):
        others = [place for place in range(SELLERS) if place not in places] if len(places) == 5 else []
        return shown(self, cohort, sorted([*places, *others[:1]]), keys)

    monkeypatch.setattr(SumServer, "_shown", one_more)
    result, grid = play()
    assert set(refused(grid)) == {"cohort"}
    assert (result.paid_micro, result.releases) == ({}, {})


def test_parties_in_another_order_are_refused():
    """A server that lists sellers by their nodes could list one party twice."""
    result, grid = play(parties=[key.public for key in KEYS], keys=KEYS)
    assert set(refused(grid)) == {"cohort"}
    assert result.paid_micro == {}
