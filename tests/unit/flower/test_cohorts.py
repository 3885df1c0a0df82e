"""Large rounds on Flower: sellers dealt to several sums, rosters that a register signed, journals put back."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import privmarket as pm
from privmarket.cli import app
from privmarket.flower import _refusals as refusals, _sum_server as sums, _wire as wire
from privmarket.flower._seller import Seller, partition_name
from privmarket.flower._sum_rehearsal import rehearsal_keys
from privmarket.privacy._wallet_store import WalletFile
from privmarket.secagg import (
    Confirmation,
    DealingCall,
    Invitation,
    SellerRegister,
    SharedSum,
    SurvivorList,
)
from privmarket.simulation import _server as shares
from privmarket.simulation._config import FederationConfig, Training
from privmarket.simulation._federation import run
from tests.unit.flower.toy import Wire, refusal_of

CLIENTS, LARGEST = 12, 6
CONFIG = FederationConfig(
    clients=CLIENTS,
    rounds=1,
    budget=2.0 * CLIENTS,
    evaluate_every=1,
    seed=5,
    trust="aggregate",
    mechanism="ration",
    mechanism_settings={"unit_price": 1.0},
    training=Training(model="logistic"),
)


def sum_message(message):
    return wire.take_sum(message.content) if wire.SUM in message.content else None


def play(config=CONFIG, folder=None, *, prepare=lambda app: None, register=None, largest=LARGEST, **options):
    """Runs the market; returns its result and the wire. `prepare` changes the clients' app."""
    app = pm.flower.federation_client(config, folder)
    prepare(app)
    grid = Wire(app, config.clients, **options)
    server = pm.flower.federation_server(config, largest_cohort=largest, register=register)
    return pm.flower.run_in_process(server, app, config.clients, grid=grid), grid


def refused(grid):
    counts = {}
    for context in grid.contexts.values():
        for reason, number in refusals.refusals(context).items():
            counts[reason] = counts.get(reason, 0) + number
    return counts


def test_two_cohorts_are_the_simulation_to_the_bit_and_everybody_is_told(tmp_path, monkeypatch):
    dealt = {}
    form = sums.form_cohorts

    def noted(*args):
        dealt["cohorts"] = form(*args)
        return dealt["cohorts"]

    monkeypatch.setattr(sums, "form_cohorts", noted)
    flower, grid = play(folder=tmp_path)
    cohorts = dealt["cohorts"]
    assert cohorts.count == 2
    assert refused(grid) == {}
    places = np.array([cohorts.cohort_of[client] for client in cohorts.keys])
    monkeypatch.setattr(shares, "deal_places", lambda *_: places)
    plain = run(CONFIG)
    assert flower.records == plain.records
    assert np.array_equal(flower.weights["weights"], plain.weights)
    # What the several sums cost is said in the receipt, and stands in the seller's wallet.
    receipts = [wire.take(m.content, wire.Receipt) for m in grid.sent if m.metadata.message_type == wire.RECEIPT]
    assert {receipt.cohorts for receipt in receipts} == {2}
    sales = [
        sale for c in range(CLIENTS) for sale in WalletFile(tmp_path / f"client-{c}.jsonl", math.inf).statement()
    ]
    assert {(sale["sellers"], sale["cohorts"]) for sale in sales} == {(6, 2)}
    cost = "dealt to 2 secure sums: √2 = 1.41 times the noise of one sum of all sellers, for the same ε"
    assert f"  {cost}" in flower.summary()
    shown = CliRunner().invoke(app, ["seller", "statement", str(tmp_path / "client-0.jsonl")])
    assert cost in " ".join(shown.stdout.split())


def test_one_sum_of_all_has_less_noise(monkeypatch):
    """What the receipt's figure says: two cohorts have √2 times the noise, and the model is another."""
    plans = []
    plan = SharedSum.plan.__func__

    def noted(cls, *args, **options):
        plans.append(plan(cls, *args, **options))
        return plans[-1]

    monkeypatch.setattr(SharedSum, "plan", classmethod(noted))
    one, _ = play(largest=CLIENTS)
    two, _ = play()
    sellers = range(CLIENTS)
    assert plans[1].deviation(sellers) / plans[0].deviation(sellers) == pytest.approx(math.sqrt(2), rel=1e-2)
    assert not np.array_equal(one.weights["weights"], two.weights["weights"])


def test_a_cohort_that_loses_too_many_is_not_opened_and_the_other_is():
    lost = []

    def tamper(message):
        sent = sum_message(message)
        if isinstance(sent, Invitation) and len(lost) < 2 and (not lost or sent.terms.members == lost[0][1]):
            lost.append((message.metadata.dst_node_id, sent.terms.members))
            wire.put_sum(message.content, replace(sent, terms=replace(sent.terms, bits=1)))

    result, _ = play(tamper=tamper)
    (record,) = result.records
    assert len(record.paid_micro) == 6
    assert len(record.dropped) == 6


def test_a_seller_that_keeps_its_secret_stops_the_round_and_costs_nobody_anything():
    def after(reply):
        message = sum_message(reply) if not reply.has_error() else None
        if type(message).__name__ == "OpenedSecret" and message.sender == 3:
            wire.put_sum(reply.content, replace(message, secret=bytes(32)))

    result, _ = play(after=after)
    assert result.paid_micro == {}
    assert result.releases == {}
    assert all("has not opened" in fault for fault in result.records[0].dropped.values())


def test_cohorts_below_the_policy_are_refused_before_anything_is_sold():
    def careful(app):
        app.seller.policy = replace(app.seller.policy, minimum_cohort=7)

    result, grid = play(prepare=careful)
    assert set(refused(grid)) == {"cohort"}
    assert result.releases == {}


def test_a_server_that_deals_itself_is_refused():
    """It leaves the dealing out and sends each half an invitation of its own."""

    def tamper(message):
        sent = sum_message(message)
        if isinstance(sent, Invitation):
            half = sent.terms.members[:3] + sent.terms.members[4:]
            wire.put_sum(message.content, Invitation(replace(sent.terms, members=half)))

    result, grid = play(tamper=tamper)
    assert set(refused(grid)) == {"cohort"}
    assert result.releases == {}


# ---- a register that the policy names ---------------------------------------------------------------------------


@pytest.fixture
def register(tmp_path):
    made = SellerRegister.make(tmp_path / "register")
    for number, key in enumerate(rehearsal_keys(CLIENTS)):
        made.add(key.public, f"clinic {number}")
    return made


def asks(register):
    """Clients whose policies name a register, with the keys that are registered there."""
    keys = rehearsal_keys(CLIENTS)

    def prepare(app):
        app.seller.policy = replace(app.seller.policy, register=register.public_key.hex())
        app.seller.identity = lambda context: keys[int(partition_name(context))]

    return prepare


@pytest.mark.parametrize("largest", [LARGEST, CLIENTS])
def test_a_signed_roster_opens_the_sum(register, largest):
    result, grid = play(prepare=asks(register), register=register.folder, largest=largest)
    assert refused(grid) == {}
    assert len(result.records[0].paid_micro) == CLIENTS


@pytest.mark.parametrize("largest", [LARGEST, CLIENTS])
def test_without_the_registers_signature_every_seller_refuses(register, largest, tmp_path):
    other = SellerRegister.make(tmp_path / "other")
    for number, key in enumerate(rehearsal_keys(CLIENTS)):
        other.add(key.public, f"clinic {number}")
    for signs in (None, other.sign, lambda roster: b""):
        result, grid = play(prepare=asks(register), register=signs, largest=largest)
        assert refused(grid) == {"cohort": CLIENTS}
        assert result.releases == {}


def chosen_part(message):
    """A server that asks five of twelve, and shows them the register's signature for all."""
    sent = sum_message(message)
    if isinstance(sent, Invitation):
        wire.put_sum(message.content, replace(sent, terms=replace(sent.terms, members=sent.terms.members[:5])))


def test_a_chosen_part_of_the_signed_sellers_is_refused(register):
    result, grid = play(prepare=asks(register), register=register.sign, largest=CLIENTS, tamper=chosen_part)
    assert set(refused(grid)) == {"cohort"}
    assert result.releases == {}


def test_a_chosen_part_gets_keys_from_sellers_that_name_no_register(register):
    """The subject broken on purpose."""

    def gullible(app):
        asks(register)(app)
        app.seller.policy = replace(app.seller.policy, register="none")

    _, grid = play(prepare=gullible, register=register.sign, largest=CLIENTS, tamper=chosen_part)
    answered = [type(sum_message(reply)).__name__ for reply in grid.answered if sum_message(reply) is not None]
    assert answered.count("AdvertisedKeys") == 5


def test_a_seller_that_nobody_registered_gets_no_round_signed(tmp_path):
    few = SellerRegister.make(tmp_path / "few")
    for number, key in enumerate(rehearsal_keys(CLIENTS)[:-1]):
        few.add(key.public, f"clinic {number}")
    result, _ = play(prepare=asks(few), register=few.folder)
    assert all("not registered" in fault for fault in result.records[0].dropped.values())
    assert result.releases == {}


def test_a_roster_of_another_round_is_no_roster(register):
    """The signature of the first round, shown again in the second."""
    first = []

    def tamper(message):
        sent = sum_message(message)
        if isinstance(sent, DealingCall | Invitation) and sent.signature:
            first.append(sent.signature)
            wire.put_sum(message.content, replace(sent, signature=first[0]))

    result, grid = play(
        CONFIG.replace(rounds=2), prepare=asks(register), register=register.sign, largest=CLIENTS, tamper=tamper
    )
    assert [len(record.paid_micro) for record in result.records] == [CLIENTS, 0]
    assert refused(grid) == {"cohort": CLIENTS}


# ---- an older copy of the journal is put back -------------------------------------------------------------------


def signs_two_lists(tmp_path, monkeypatch, *, files=("client-0.sums",), head=False):
    """After a seller has signed a list, its files of just before are put back, and it is shown another list.

    Returns:
        What it answers to that.
    """
    folder = tmp_path / "wallets"
    copies = tmp_path / "copies"
    copies.mkdir()
    grids = []
    seen = {}

    def with_heads(app):
        def wallet(context):
            name = f"client-{partition_name(context)}"
            return WalletFile(folder / f"{name}.jsonl", math.inf, CONFIG.delta, tmp_path / "heads" / name)

        if head:
            (tmp_path / "heads").mkdir()
            app.seller.wallet = wallet

    def tamper(message):
        sent = sum_message(message)
        if not isinstance(sent, SurvivorList):
            return
        if partition_name(grids[0].contexts[message.metadata.dst_node_id]) == "0":
            for name in files:
                shutil.copy(folder / name, copies / name)
            seen["message"] = message
            seen["list"] = sent

    def after(reply):
        if "list" not in seen or "second" in seen or not isinstance(sum_message(reply), Confirmation):
            return
        seen["second"] = None
        for name in files:
            shutil.copy(copies / name, folder / name)
        shorter = SurvivorList(seen["list"].sum, seen["list"].survivors[:-1])
        if sum_message(reply).sender == seen["list"].survivors[-1]:
            shorter = SurvivorList(seen["list"].sum, seen["list"].survivors[1:])
        wire.put_sum(seen["message"].content, shorter)
        seen["second"] = super(Wire, grids[0]).answer(seen["message"])

    class Kept(Wire):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            grids.append(self)

    monkeypatch.setattr("tests.unit.flower.test_cohorts.Wire", Kept)
    config = CONFIG.replace(clients=7, budget=14.0)
    play(config, folder=folder, prepare=with_heads, tamper=tamper, after=after, largest=7)
    return seen["second"]


BOTH = ("client-0.sums", "client-0.jsonl")


def test_a_seller_whose_journal_went_back_signs_no_second_list(tmp_path, monkeypatch):
    assert refusal_of(signs_two_lists(tmp_path, monkeypatch)) == "wallet"


def test_without_the_wallets_note_it_signs_two(tmp_path, monkeypatch):
    """The subject broken on purpose."""
    monkeypatch.setattr(Seller, "note_list", lambda *_: None)
    assert isinstance(sum_message(signs_two_lists(tmp_path, monkeypatch)), Confirmation)


def test_both_files_put_back_are_noticed_by_the_wallets_head_file(tmp_path, monkeypatch):
    assert refusal_of(signs_two_lists(tmp_path, monkeypatch, files=BOTH, head=True)) == "wallet"


def test_both_files_put_back_without_a_head_file_are_not(tmp_path, monkeypatch):
    """What the pages say is not noticed."""
    assert isinstance(sum_message(signs_two_lists(tmp_path, monkeypatch, files=BOTH)), Confirmation)


@pytest.mark.parametrize("gullible", [False, True])
def test_a_journal_of_an_earlier_round_is_noticed(gullible, tmp_path, monkeypatch):
    if gullible:
        monkeypatch.setattr(Seller, "check_journal", lambda *_: None)
    config = CONFIG.replace(clients=7, budget=14.0)
    play(config, folder=tmp_path, largest=7)
    for journal in tmp_path.glob("*.sums"):
        journal.unlink()
    result, grid = play(config.replace(seed=6), folder=tmp_path, largest=7)
    assert refused(grid) == ({} if gullible else {"wallet": 7})
    assert len(result.paid_micro) == (7 if gullible else 0)
