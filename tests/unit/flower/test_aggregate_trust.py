"""Aggregate trust on Flower: the simulation's sum to the last bit, and what a server that wants more is refused."""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.serverapp.strategy import FedMedian

import privmarket as pm
from privmarket.broker._signatures import SigningKey
from privmarket.errors import ConfigurationError
from privmarket.flower import _refusals as refusals, _sum_server as sums, _wire as wire
from privmarket.flower._sum_rehearsal import ATTACKS, IN_PROCESS_ATTACKS, SumPlan, rehearse_sums, sum_verdicts
from privmarket.secagg import (
    Client,
    Invitation,
    MaskedInput,
    MemoryJournal,
    SigningIdentity,
    SurvivorList,
    add_up,
)
from privmarket.simulation._config import FederationConfig, Training
from privmarket.simulation._federation import run
from tests.json_fields import check_fields
from tests.unit.flower.toy import OPEN_TO_SUMS, Wire, refusal_of, seed_noise

CONFIG = FederationConfig(
    clients=6,
    rounds=2,
    budget=4.0,
    evaluate_every=1,
    seed=5,
    trust="aggregate",
    mechanism="ration",
    mechanism_settings={"unit_price": 0.9},
    training=Training(model="logistic"),
)


def sum_message(message):
    """The message of a secure sum that a Flower message carries; None for others."""
    return wire.take_sum(message.content) if wire.SUM in message.content else None


def play(config=CONFIG, folder=None, grid=Wire, **options):
    app = pm.flower.federation_client(config, folder)
    made = grid(app, config.clients, **options)
    return pm.flower.run_in_process(pm.flower.federation_server(config), app, config.clients, grid=made), made


def refused(grid):
    """reason → how often, over all clients."""
    counts = {}
    for context in grid.contexts.values():
        for reason, number in refusals.refusals(context).items():
            counts[reason] = counts.get(reason, 0) + number
    return counts


def test_the_secure_sum_is_the_simulation_to_the_bit(tmp_path):
    plain, (flower, grid) = run(CONFIG), play(folder=tmp_path)
    assert plain.records[0].sellers >= 3
    assert flower.records == plain.records
    assert np.array_equal(flower.weights["weights"], plain.weights)
    assert refused(grid) == {}


def test_under_local_trust_the_model_is_another():
    """The comparison above can fail: there every seller adds all of its noise."""
    assert not np.array_equal(run(CONFIG.replace(trust="local")).weights, run(CONFIG).weights)


def test_nothing_but_masked_vectors_leaves():
    result, grid = play()
    replies = [r for r in grid.answered if r.metadata.message_type == wire.TRAIN]
    assert not any(len(record) for r in replies for record in r.content.array_records.values())
    vectors = [m.vector for m in map(sum_message, replies) if isinstance(m, MaskedInput)]
    assert len(vectors) == sum(record.sellers for record in result.records)
    # About half of all bits are set in every client's vector, but for the unused top bits of its last byte. Of
    # 15,624 fair bits the share has a deviation of 0.004: beyond 0.025 it is by chance in fewer than one of 10⁹
    # vectors.
    for vector in vectors:
        whole = np.frombuffer(vector, dtype=np.uint8).reshape(-1, 4)[:, :3]
        assert abs(np.unpackbits(whole).mean() - 0.5) < 0.025


def told(**changes):
    """A server that changes the terms of its sum for everybody."""

    def tamper(message):
        sent = sum_message(message)
        if isinstance(sent, Invitation):
            terms = replace(sent.terms, **{name: change(sent.terms) for name, change in changes.items()})
            wire.put_sum(message.content, Invitation(terms))

    return tamper


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"honest_share": lambda t: 0.1}, "honest-share"),
        ({"round": lambda t: t.round + 1}, "offer"),
        ({"task": lambda t: "another"}, "offer"),
        ({"bits": lambda t: t.bits - 1}, "noise"),
        ({"largest": lambda t: 2 * t.largest}, "noise"),
        ({"members": lambda t: t.members[::-1]}, "cohort"),
    ],
)
def test_a_server_that_weakens_the_sum_gets_nothing(changes, reason):
    result, grid = play(tamper=told(**changes))
    assert set(refused(grid)) == {reason}
    assert result.paid_micro == {}
    assert result.releases == {}  # refused before any order: nobody has spent anything


def order_with(**changes):
    """A server that changes its orders."""

    def tamper(message):
        config = message.content.config_records.get(wire.SALE)
        if config is not None:
            for key, value in changes.items():
                config[key.replace("_", "-")] = value(config[key.replace("_", "-")])

    return tamper


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weight": lambda w: w * 1.001}, "noise"),
        ({"weight": lambda w: float("nan")}, "noise"),
        ({"sellers": lambda n: n + 1}, "cohort"),
        ({"honest_share": lambda h: 1.0, "weight": lambda w: w * 1.1}, "cohort"),
        ({"levels": lambda n: 9}, "cohort"),
        ({"trust": lambda t: "local"}, "cohort"),
    ],
    ids=["more weight", "NaN", "more sellers", "more honest sellers", "no such digits", "all of its own"],
)
def test_a_client_checks_its_part_of_the_sum(changes, reason, tmp_path):
    """More weight than its ε allows, or noise of sellers that are not there: refused before anything is spent."""
    result, grid = play(folder=tmp_path, tamper=order_with(**changes))
    assert set(refused(grid)) == {reason}
    assert result.paid_micro == {}
    files = list(tmp_path.glob("*.jsonl"))
    assert files
    assert all(pm.privacy.WalletFile(path, np.inf).statement() == [] for path in files)


def test_a_sum_that_every_seller_refuses_costs_nobody_anything():
    """Orders had gone out, and every seller said no: neither wallets nor the server's books count a release."""
    result, grid = play(tamper=order_with(weight=lambda w: w * 1.001))
    assert set(refused(grid)) == {"noise"}
    assert result.releases == {}
    assert {fault for r in result.records for fault in r.dropped.values()} == {
        "refused: noise (noise that cannot be drawn exactly, or that would not reach the sum whole)"
    }


def test_a_round_with_one_seller_is_the_simulation_s():
    """Its share carries all of the noise that was sold, so the sum may be opened, in both engines."""
    alone = CONFIG.replace(clients=1, rounds=1, budget=1.0)
    plain, (flower, grid) = run(alone), play(alone)
    assert plain.records[0].sellers == 1
    assert flower.records == plain.records
    assert np.array_equal(flower.weights["weights"], plain.weights)
    assert refused(grid) == {}


def in_anothers_name(message):
    """The same message from another member; a seller's number follows from its key, so it may be any."""
    return replace(message, sender=0 if message.sender else 1)


# What one malicious seller may answer to each step instead of what belongs there.
NONSENSE = {
    "no record": lambda content: content.config_records.pop(wire.SUM),
    "no values": lambda content: content.config_records[wire.SUM].clear(),
    "another type": lambda content: content.config_records[wire.SUM].update({"message": 7}),
    "no bytes": lambda content: content.config_records[wire.SUM].update({"message": b""}),
    "nonsense": lambda content: content.config_records[wire.SUM].update({"message": bytes(range(200))}),
    "another's message": lambda content: wire.put_sum(content, in_anothers_name(wire.take_sum(content))),
}
STEPS = ("KeyList", "DeliveredShares", "InputRequest", "SurvivorList", "Confirmations", "after")
EVERYBODY = CONFIG.replace(rounds=6, budget=40.0, mechanism_settings={"unit_price": 1.0})


def spoiled(change):
    """A run in which the first seller spoils its answer to one step in each round, one step after the other."""
    seen = []
    order = ["Invitation", *STEPS]

    def note(message):
        sent = sum_message(message)
        seen[:] = [] if sent is None else [type(sent).__name__, int(message.metadata.group_id)]

    def spoil(reply):
        mine = seen and reply.metadata.src_node_id == 1000 and wire.SUM in reply.content
        if mine and seen[0] == order[seen[1]]:
            change(reply.content)

    return play(EVERYBODY, tamper=note, after=spoil)[0]


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_a_seller_that_answers_nonsense_is_left_out(nonsense):
    """The run goes on, and the others' sum is opened; from the fifth step on the seller's vector is in the sum."""
    result = spoiled(NONSENSE[nonsense])
    assert [list(record.dropped) for record in result.records] == [["0"], ["0"], ["0"], ["0"], [], []]
    assert all(record.sellers == CONFIG.clients - len(record.dropped) for record in result.records)


def test_a_second_sum_for_one_offer_is_refused():
    first = {}

    def keep(message):
        if isinstance(sum_message(message), Invitation):
            first[message.metadata.dst_node_id] = sum_message(message)

    _, grid = play(tamper=keep)
    node, invitation = next(iter(first.items()))
    content = wire.put_sum(wire.RecordDict(), invitation)
    assert refusal_of(grid.answer(Message(content, node, wire.TRAIN))) == "unsold"
    assert refused(grid) == {"unsold": 1}


def test_state_survives_in_the_file_beside_the_wallet_and_not_in_the_context(tmp_path):
    """A copied context gets nothing: who survived is signed once, whatever state the engine hands in again."""
    copies, asked = {}, []

    def keep(message):
        sent = sum_message(message)
        node = message.metadata.dst_node_id
        if isinstance(sent, SurvivorList) and node == 1002:
            copies[node] = wire.RecordDict(dict(grids[0].contexts[node].state))
            asked.append(Message(wire.RecordDict(dict(message.content)), node, wire.TRAIN))

    grids = []

    def made(*args, **options):
        grids.append(Wire(*args, **options))
        return grids[0]

    result, grid = play(CONFIG.replace(rounds=1), folder=tmp_path, grid=made, tamper=keep)
    assert result.paid_micro
    assert (tmp_path / "client-2.sums").exists()
    grid.contexts[1002].state = copies[1002]
    assert refusal_of(pm.flower.InProcessGrid.answer(grid, asked[0])) == "unsold"


def test_every_attack_of_a_server_is_caught_by_its_sellers(tmp_path):
    """Nothing is opened, nobody is paid; an honest round before and after gives the simulation's model."""
    plan = SumPlan(clients=6, attacks=IN_PROCESS_ATTACKS)
    report = rehearse_sums(tmp_path, plan, deployment=False)
    assert all(report["verdicts"].values()), report["verdicts"]
    check_fields("flower rehearse", {"schema_version": 1, **report})
    assert len(report["verdicts"]) == 5 + len(ATTACKS) + 1
    # The verdicts can fail: sellers that did not notice, and a round that was paid.
    rounds, answers = report["rounds"], {number: {} for number in range(20)}
    wrong = [{**rounds[0]}, {**rounds[1], "paid_micro": {"0": 5}}, *rounds[2:]]
    failed = [promise for promise, kept in sum_verdicts(plan, wrong, answers, tmp_path).items() if not kept]
    assert len(failed) == 2 + sum(bool(words) for _, words in ATTACKS.values()) + 1


def test_sellers_that_are_no_registered_parties_are_noticed():
    """With a register every seller proves who it is; one stranger in the cohort, and nobody sells."""
    keys = [SigningKey.from_seed(bytes([i]) * 32) for i in range(CONFIG.clients)]

    def play_with(known):
        app = pm.flower.federation_client(EVERYBODY)
        app.seller.identity = lambda context: keys[int(context.node_config["partition-id"])]
        app.seller.parties = lambda context: [key.public for key in known]
        grid = Wire(app, CONFIG.clients)
        return pm.flower.run_in_process(pm.flower.federation_server(EVERYBODY), app, 6, grid=grid), grid

    result, grid = play_with(keys)
    assert result.paid_micro
    assert refused(grid) == {}
    stranger = SigningKey.from_seed(bytes([99]) * 32)
    # One stranger in the sum, or one of the register's sellers left out of it.
    for known in ([*keys[:2], stranger, *keys[3:]], [*keys, stranger]):
        result, grid = play_with(known)
        assert result.paid_micro == {}
        assert set(refused(grid)) == {"cohort"}
        assert result.releases == {}


def test_a_sum_that_the_protocol_cannot_carry_is_refused_before_anyone_bids():
    app = pm.flower.federation_client(CONFIG)
    grid = Wire(app, CONFIG.clients)
    market = pm.flower.federation_server(CONFIG, expected_batch=1e11)
    with pytest.raises(ConfigurationError, match="bits"):
        pm.flower.run_in_process(market, app, CONFIG.clients, grid=grid)
    assert grid.sent == []


class Flaky(Wire):
    """Three nodes are gone when their masked vectors are asked for."""

    def answer(self, message):
        reply = super().answer(message)
        if message.metadata.dst_node_id < 1003 and wire.SALE in message.content:
            return Message(Error(20, "gone"), reply_to=message)
        return reply


def test_fewer_than_the_honest_sellers_show_nothing():
    """The round is refunded, and what had started stays spent."""
    result, _ = play(grid=Flaky)
    assert result.paid_micro == {}
    assert all(record.refunded_micro == 4_000_000 for record in result.records)
    assert set(result.releases) == {client for record in result.records for client in record.dropped}


def test_a_module_of_ones_own_sells_into_a_sum(monkeypatch):
    """Fast layers and any other module: both give integers, and the model learns."""
    import torch

    seed_noise(monkeypatch)
    rng = np.random.default_rng(0)
    labels = np.arange(240) % 2
    inputs = (rng.normal(size=(240, 4)) + 3.0 * (2 * labels[:, None] - 1)).astype(np.float32)

    def build():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 2))

    def accuracy(module):
        return float((module(torch.from_numpy(inputs)).argmax(1).numpy() == labels).mean())

    def data(context):
        mine = slice(context.node_config["partition-id"], None, 6)
        return torch.from_numpy(inputs[mine]), torch.from_numpy(labels[mine])

    def loss(outputs, targets):
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    for own_loss in (None, loss):
        client = pm.flower.client_app(
            *(),
            model=build,
            data=data,
            loss=own_loss,
            valuation=0.1,
            epsilon=2.0,
            data_size=40.0,
            policy=OPEN_TO_SUMS,
            wallet="unlimited",
            secure_aggregation=True,
        )
        server = pm.flower.server_app(
            model=build,
            evaluate=accuracy,
            trust="aggregate",
            mechanism="ration",
            mechanism_settings={"unit_price": 0.5},
            budget=4.0,
            rounds=3,
            expected_batch=40.0,
        )
        result = pm.flower.run_in_process(server, client, 6)
        assert [record.sellers for record in result.records] == [6, 6, 6]
        assert result.accuracy > 0.9


def test_what_cannot_be_summed_is_refused_at_the_start():
    with pytest.raises(ConfigurationError, match="steps"):
        play(CONFIG.replace(training=Training(model="logistic", steps=2)))
    with pytest.raises(ConfigurationError, match="FedMedian"):
        pm.flower.AuctionStrategy(FedMedian(), trust="aggregate")


def test_a_client_without_a_key_makes_no_offer_for_a_sum():
    """Else it would be awarded, and could not be a member of the sum that has exactly the awarded sellers."""

    def after(reply):
        offer = reply.content.config_records.get(wire.NAMES[wire.Answer])
        if offer is not None and reply.metadata.src_node_id in (1000, 1001):
            offer["sum-key"] = {1000: "no key", 1001: keys.get(1002, "no key yet")}[reply.metadata.src_node_id]
        if offer is not None:
            keys[reply.metadata.src_node_id] = offer["sum-key"]

    keys = {}
    result, _ = play(EVERYBODY.replace(rounds=2), after=after)
    assert [sorted(record.paid_micro) for record in result.records] == [["2", "3", "4", "5"]] * 2
    assert "no key" in result.declined["0"]


def test_the_same_sum_in_memory_and_over_the_grid(monkeypatch):
    """The integers that sellers sent over Flower, added up by `secagg.add_up`: the same bits."""
    sent, opened = {}, []
    play_sum, mask = sums.SumRun.play, Client.mask

    def noted(self, digest, vector):
        sent.setdefault(digest, {})[self._identity.public_key] = vector
        return mask(self, digest, vector)

    def kept(self):
        opened.append((self.servers[0].terms, play_sum(self)))
        return opened[-1][1]

    monkeypatch.setattr(sums.SumRun, "play", kept)
    monkeypatch.setattr(Client, "mask", noted)
    play()
    monkeypatch.undo()
    assert len(opened) == CONFIG.rounds
    for terms, result in opened:
        identities = sorted((SigningIdentity.generate() for _ in terms.members), key=lambda one: one.public_key)
        again = replace(terms, members=tuple(one.public_key for one in identities))
        clients = {one.public_key: Client(one, MemoryJournal()) for one in identities}
        vectors = {new: sent[terms.digest][old] for new, old in zip(again.members, terms.members, strict=True)}
        np.testing.assert_array_equal(add_up(again, clients, vectors).total, result)
