"""Aggregate trust on Flower: the simulation's sum to the last bit, and what a server that wants more is refused."""

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.serverapp.strategy import FedAvg

import privmarket as pm
from privmarket.broker.signatures import SigningKey
from privmarket.errors import ConfigurationError, PrivacyError
from privmarket.federated.config import FederationConfig, Training
from privmarket.federated.simulation import run
from privmarket.flower import guard, masks, wire
from privmarket.flower.sum_rehearsal import ATTACKS, IN_PROCESS_ATTACKS, SumPlan, rehearse_sums, sum_verdicts
from tests.json_fields import check_fields
from tests.unit.flower.toy import Wire, seed_noise

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
STEPS = "secaggplus_configs"


def play(config=CONFIG, folder=None, grid=Wire, **options):
    app = pm.flower.federation_client(config, folder)
    made = grid(app, config.clients, **options)
    return pm.flower.run_in_process(pm.flower.federation_server(config), app, config.clients, grid=made), made


def refused(grid):
    """reason → how often, over all clients."""
    counts = {}
    for context in grid.contexts.values():
        for reason, number in guard.refusals(context).items():
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
    sent = [part for r in replies for part in r.content.config_records[STEPS].get("masked_params", [])]
    modulus = next(iter(grid.contexts.values())).state.config_records["secaggplus_state"]["mod_range"]
    width = len(masks.packed(np.zeros(1, dtype=np.int64), modulus=modulus))
    vectors = [masks.unpacked(part, (len(part) // width,), modulus) for part in sent if len(part) > 800]
    assert len(vectors) == sum(record.sellers for record in result.records)
    # Uniform below the modulus: about half of all bits are set in every client's vector.
    top = modulus.bit_length() - 1
    assert all(0.45 < np.mean([(array >> bit) & 1 for bit in range(top)]) < 0.55 for array in vectors)


def setup_with(**changes):
    """A server that changes the first message of its protocol."""

    def tamper(message):
        configs = message.content.config_records.get(STEPS)
        if configs is not None and configs.get("stage") == "setup":
            for key, value in changes.items():
                configs[key] = value(configs[key])

    return tamper


@pytest.mark.parametrize(
    "changes",
    [{"threshold": lambda t: 2}, {"threshold": lambda t: t - 1}, {"share_num": lambda n: n - 1}],
    ids=["lowest threshold", "one too low", "part of the sellers"],
)
def test_a_server_that_weakens_the_sum_gets_nothing(changes):
    result, grid = play(tamper=setup_with(**changes))
    assert set(refused(grid)) == {"honest-share"}
    assert result.paid_micro == {}
    assert result.releases == {}  # refused before any order: nobody has spent anything


def order_with(**changes):
    """A server that changes its orders."""

    def tamper(message):
        config = message.content.config_records.get("fitins.config")
        if config is not None:
            for key, value in changes.items():
                config[key.replace("_", "-")] = value(config[key.replace("_", "-")])

    return tamper


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weight": lambda w: w * 1.001}, "noise"),
        ({"weight": lambda w: float("nan")}, "noise"),
        ({"sellers": lambda n: n + 1}, "honest-share"),
        ({"honest_share": lambda h: 1.0, "weight": lambda w: w * 1.1}, "honest-share"),
        ({"levels": lambda n: 9}, "schedule"),
        ({"trust": lambda t: "local"}, "offer"),
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
    assert all(pm.flower.WalletFile(path, np.inf).statement() == [] for path in files)


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


# What one malicious seller may answer to each step instead of what belongs there.
NONSENSE = {
    "no record": lambda content: content.config_records.pop(STEPS),
    "no values": lambda content: content.config_records[STEPS].clear(),
    "other types": lambda content: content.config_records[STEPS].update(
        dict.fromkeys(content.config_records[STEPS], 7)
    ),
    "empty lists": lambda content: content.config_records[STEPS].update(
        {key: [] for key, value in content.config_records[STEPS].items() if isinstance(value, list)}
    ),
    "nonsense of the right type": lambda content: content.config_records[STEPS].update(
        {
            key: [type(one)(1) for one in value] if isinstance(value, list) else type(value)(1)
            for key, value in content.config_records[STEPS].items()
        }
    ),
}
STAGES = ("setup", "share_keys", "collect_masked_vectors", "agree", "unmask")
EVERYBODY = CONFIG.replace(rounds=len(STAGES), budget=40.0, mechanism_settings={"unit_price": 1.0})


def spoiled(change):
    """A run in which the first seller spoils its answer to one step in each round, one step after the other."""
    seen = []

    def note(message):
        configs = message.content.config_records.get(STEPS)
        seen[:] = [] if configs is None else [configs["stage"], int(message.metadata.group_id) - 1]

    def spoil(reply):
        if seen and reply.metadata.src_node_id == 1000 and not reply.has_error() and seen[0] == STAGES[seen[1]]:
            change(reply.content)

    return play(EVERYBODY, tamper=note, after=spoil)[0]


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_a_seller_that_answers_nonsense_is_left_out(nonsense):
    """The run goes on, and the others' sum is opened; from the fourth step on the seller's vector is in the sum."""
    result = spoiled(NONSENSE[nonsense])
    first = [] if nonsense == "empty lists" else ["0"]  # there are no lists in the first step's answer
    assert [list(record.dropped) for record in result.records] == [first, ["0"], ["0"], [], []]
    assert all(record.sellers == CONFIG.clients - len(record.dropped) for record in result.records)


def test_false_pieces_of_keys_keep_the_sum_closed():
    def lie(content):
        configs = content.config_records[STEPS]
        if "shares" in configs:
            configs["shares"] = [piece[:-1] + bytes([piece[-1] ^ 1]) for piece in configs["shares"]]

    result = spoiled(lie)
    assert [record.sellers for record in result.records] == [6, 6, 6, 6, 0]
    assert result.records[-1].refunded_micro == 40_000_000


def test_keys_of_one_seller_both_ways_are_refused():
    def tamper(message):
        configs = message.content.config_records.get(STEPS)
        if configs is not None and configs.get("stage") == "unmask":
            configs["dead_nids"] = [configs["active_nids"][0]]

    result, grid = play(tamper=tamper)
    assert set(refused(grid)) == {"cohort"}
    assert result.paid_micro == {}
    assert result.releases  # masked vectors had left: that is spent


def test_a_second_sum_for_one_offer_is_refused():
    first = {}

    def keep(message):
        configs = message.content.config_records.get(STEPS)
        if configs is not None and configs.get("stage") == "setup":
            first[message.metadata.dst_node_id] = dict(configs)

    _, grid = play(tamper=keep)
    node, configs = next(iter(first.items()))
    again = wire.RecordDict({STEPS: wire.ConfigRecord(configs)})
    assert grid.answer(Message(again, node, wire.TRAIN)).has_error()
    assert refused(grid) == {"unsold": 1}


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
    assert len(failed) == 2 + len(ATTACKS) + 1


def test_sellers_that_are_no_registered_parties_are_noticed():
    """With a register every seller proves who it is; one stranger in the cohort, and nobody sells."""
    keys = [SigningKey.from_seed(bytes([i]) * 32) for i in range(CONFIG.clients)]

    def play_with(known):
        app = pm.flower.federation_client(CONFIG)
        app.seller.identity = lambda context: keys[int(context.node_config["partition-id"])]
        app.seller.parties = lambda context: [key.public for key in known]
        grid = Wire(app, CONFIG.clients)
        return pm.flower.run_in_process(pm.flower.federation_server(CONFIG), app, CONFIG.clients, grid=grid), grid

    result, grid = play_with(keys)
    assert result.paid_micro
    assert refused(grid) == {}
    stranger = SigningKey.from_seed(bytes([99]) * 32)
    result, grid = play_with([*keys[:2], stranger, *keys[3:]])
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
        if message.metadata.dst_node_id < 1003 and "fitins.config" in message.content:
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
    with pytest.raises(ConfigurationError, match="strategy"):
        pm.flower.AuctionStrategy(FedAvg(), trust="aggregate")


def test_masks_follow_from_the_whole_key():
    """Flower folds keys to 32 bits: two keys with the same fold give the same masks there, and not here."""
    key, other = bytes(32), bytes([1, 0, 0, 0, 1, 0, 0, 0]) + bytes(24)
    assert np.array_equal(pseudo_rand_gen(key, 2**32, [(4,)])[0], pseudo_rand_gen(other, 2**32, [(4,)])[0])
    ours = masks.strong_masks(key, 2**40, [(1000,), (2, 3)])
    assert not np.array_equal(ours[0], masks.strong_masks(other, 2**40, [(1000,)])[0])
    assert np.array_equal(ours[0], masks.strong_masks(key, 2**40, [(1000,)])[0])
    assert [a.shape for a in ours] == [(1000,), (2, 3)]
    assert ours[0].min() >= 0
    assert 2**39 < ours[0].max() < 2**40
    with pytest.raises(PrivacyError):
        masks.strong_masks(key, 1000, [(1,)])
