"""What sellers are told: words, wallets and seeds that promise more than they hold, and what holds instead."""

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from typer.testing import CliRunner

import privmarket as pm
from privmarket.cli import app as cli
from privmarket.errors import ConfigurationError
from privmarket.flower import _wire as wire
from privmarket.privacy import _gaussian as gaussian
from privmarket.privacy._accountant import composed_epsilon
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._policy import SellerPolicy
from privmarket.privacy._statement import ODOMETER_LABEL, ODOMETER_NOTE, lifetime_promise
from privmarket.privacy._wallet import Wallets
from privmarket.secagg import alone_noise_multiplier
from tests.unit.flower.toy import VALUATIONS, Wire, client, partition, play, server

# --- "ε so far" is not a promise -------------------------------------------------------------------------


def broken_share(epsilon, loss):
    """The δ that privacy losses show at `epsilon`: E[(1 − e^(ε − L))⁺]."""
    return float(np.mean(np.maximum(0.0, 1.0 - np.exp(epsilon - loss))))


def test_who_stops_when_it_suits_breaks_the_sum_so_far_but_not_the_cap():
    """A buyer that sees every release stops buying when the loss has just passed the ε reported so far.

    One record of the client is the only thing that is not known; a sale's privacy loss is then normal, and the
    losses add up. The broken subject is a promise made of the sum so far: at the moment of stopping it fails with
    three times its δ. The wallet's cap holds for the same buyer.
    """
    cap, delta, walks = 4.0, 0.02, 20_000
    sale = ReleaseFamily(delta=delta).event(0.2)
    wallet = Wallets([cap], delta)
    while wallet.can_spend([sale])[0]:
        wallet.spend([sale])
    rounds, mu = len(wallet.history), 1.0 / sale.noise_multiplier
    so_far = np.array([float(gaussian.epsilon_of(mu * np.sqrt(t), delta)) for t in range(1, rounds + 1)])

    normal = np.random.default_rng(0).standard_normal((walks, rounds))
    loss = np.cumsum(mu * normal + mu**2 / 2, axis=1)
    noise = 4 * np.sqrt(delta / walks)
    assert broken_share(so_far[-1], loss[:, -1]) < delta + noise  # true of a number of sales fixed in advance

    passed = loss > so_far + 0.3
    stop = np.where(passed.any(axis=1), passed.argmax(axis=1), rounds - 1)
    stopped = loss[np.arange(walks), stop]
    assert broken_share(so_far[stop], stopped) > 2.5 * delta
    assert broken_share(cap, stopped) < delta + noise


def test_the_sum_so_far_is_called_what_it_is(tmp_path):
    wallet = pm.privacy.WalletFile(tmp_path / "w.jsonl", 8.0)
    result, _ = play(client(wallet=lambda context: wallet if partition(context) == 1 else "unlimited"))
    told = result.to_json()["epsilon_spent_is"]
    assert ODOMETER_LABEL in told
    assert "only the wallet's cap holds" in ODOMETER_NOTE
    assert ODOMETER_NOTE in told


def test_a_lifetime_with_a_secure_sum_in_it_is_not_called_local(tmp_path):
    """Against all others together a share in a sum of a hundred protects with σ/√67 only."""
    wallet = pm.privacy.WalletFile(tmp_path / "w.jsonl", 4.0)
    event = ReleaseFamily().event(1.0)
    with wallet.open() as book:
        book.reserve("run/0", 1.0, event)
        book.reserve("run/1", 1.0, event, trust="aggregate")
    claimed = lifetime_promise(4.0, measures=wallet.measures)  # the subject of old: whatever the sales were
    alone = PrivacyEvent(float(alone_noise_multiplier(event.noise_multiplier, 67)))
    assert claimed.trust == "local"
    assert composed_epsilon([event, alone]) > 2 * claimed.epsilon

    shown = CliRunner().invoke(cli, ["seller", "statement", str(wallet.path), "--json"]).stdout
    assert json.loads(shown)["lifetime"]["trust"] == "aggregate"
    (tmp_path / "seller.toml").write_text('trust = ["local", "aggregate"]\n')
    shown = CliRunner().invoke(cli, ["seller", "check", str(tmp_path / "seller.toml"), "--json"]).stdout
    assert [json.loads(shown)[scope]["trust"] for scope in ("sale", "lifetime")] == ["aggregate", "aggregate"]


# --- a wallet is not optional ----------------------------------------------------------------------------


def test_no_wallet_is_no_client():
    with pytest.raises(ConfigurationError, match="unlimited"):
        client(wallet=None)
    with pytest.raises(ConfigurationError, match="leave out the wallet"):
        client(wallet="unlimited", policy=SellerPolicy())


def test_a_client_without_a_wallet_is_bought_out_round_by_round(tmp_path):
    """Ten rounds at ε = 1: the client of old, whose wallet was optional, and one with a lifetime cap of 2."""
    market = lambda: server(budget=50.0, rounds=10)  # noqa: E731
    open_hand, _ = play(client(spread=False), market())
    assert open_hand.certificate().epsilon > 3
    wallet_of = lambda context: pm.privacy.WalletFile(tmp_path / f"{partition(context)}.jsonl", 2.0)  # noqa: E731
    capped, _ = play(client(wallet=wallet_of, spread=False), market())
    assert capped.paid_micro
    assert capped.certificate().epsilon <= 2.0


def test_a_wallet_above_the_policy_sells_nothing(tmp_path):
    wallet = pm.privacy.WalletFile(tmp_path / "w.jsonl", 80.0)
    app = client(wallet=wallet, policy=SellerPolicy())
    result, _ = play(app)
    assert result.paid_micro == {}
    assert not wallet.path.exists()


# --- nobody fixes what a wallet watches ------------------------------------------------------------------

ODD = ReleaseFamily(sampling_rate=0.05, steps=20)


def sales_that_fit(wallets, family=None, epsilon=0.5):
    """How many honest sales a wallet admits."""
    sale = (family or ReleaseFamily()).event(epsilon)
    count = 0
    while wallets.can_spend([sale])[0]:
        wallets.spend([sale])
        count += 1
    return count


def test_neither_a_call_nor_a_small_sale_spoils_a_wallet(tmp_path):
    """The broken subjects take their one measure from the first call or sale, which costs its buyer nothing."""
    small = ReleaseFamily().event(0.001)
    fixed = Wallets([8.0], 1e-5, expected=[small])
    open_ = Wallets([8.0], 1e-5)
    for wallets in (fixed, open_):
        wallets.spend([small])
    assert sales_that_fit(open_, ODD) > 10 * sales_that_fit(fixed, ODD)
    called = Wallets([4.0], 1e-5, expected=[ODD.event(8.0)])
    honest = Wallets([4.0], 1e-5)
    assert sales_that_fit(called) < 0.8 * sales_that_fit(honest)

    wallet = pm.privacy.WalletFile(tmp_path / "w.jsonl", 4.0)
    grid = Wire(client(wallet=lambda context: wallet), 1)
    calling = server(budget=1e-5, sampling_rate=ODD.sampling_rate, steps=ODD.steps, rounds=3)  # buys nothing
    pm.flower.run_in_process(calling, grid.client_app, 1, grid=grid)
    assert [message.metadata.message_type for message in grid.sent].count(wire.BID) == 3
    with wallet.open() as opened:
        assert sales_that_fit(opened.wallets) == sales_that_fit(Wallets([4.0], 1e-5))


# --- noise from a seed -----------------------------------------------------------------------------------


def releases_of(secret, **options):
    """What the server receives in each round from a client whose sum is `secret`, beside its noise."""
    sums = lambda weights, job: {  # noqa: E731
        name: np.float32(secret) + np.float32(job.noise_multiplier) * job.noise.standard_normal(array.shape)
        for name, array in weights.items()
    }
    _, grid = play(client(sums, **options))
    replies = [m for m in grid.answered if m.metadata.message_type == wire.TRAIN and m.has_content()]
    return b"".join(array.tobytes() for m in replies for array in wire.read_arrays(m.content, wire.UPDATE).values())


def test_who_knows_the_seed_sees_through_the_noise():
    """A server that runs the client's code with its seed, once for each guess, reads the secret off the bits."""
    with pytest.warns(UserWarning, match="no ε here holds against those who know the seed"):
        guesses = {secret: releases_of(secret, noise_seed=3) for secret in (0.0, 1.0)}
    assert guesses[1.0]
    for secret in guesses:
        with pytest.warns(UserWarning, match="seed"):
            sent = releases_of(secret, noise_seed=3)
        assert [guess for guess, bits in guesses.items() if bits == sent] == [secret]


@pytest.mark.parametrize("noise_seed", [3, None])
def test_two_runs_with_one_seed_are_seen_through_without_it(noise_seed):
    """A server that does not know the seed orders the same rounds in two runs and subtracts."""
    with nullcontext() if noise_seed is None else pytest.warns(UserWarning, match="or who see two runs"):
        first, second = (
            np.frombuffer(releases_of(secret, noise_seed=noise_seed), dtype=np.float32) for secret in (0.0, 1.0)
        )
    uncovered = np.abs(second - first - 1.0).max() < 1e-5
    assert uncovered == (noise_seed is not None)


def test_noise_of_the_system_cannot_be_computed_again():
    assert len({releases_of(1.0) for _ in range(3)}) == 3


def test_a_seed_is_warned_about():
    with pytest.warns(UserWarning, match="seed"):
        client(noise_seed=3)


# --- an app that is trusted with the noise ---------------------------------------------------------------


def careless_app(market, jobs):
    """An existing app that never looks at the noise that it should add, and sends its record as it is."""
    app = ClientApp(mods=[market])
    market.answer_bids(app)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        jobs.append(dict(message.content[wire.JOB]))
        arrays = ArrayRecord({"w": wire.Array(np.full(5, 0.125, dtype=np.float32))})
        return Message(RecordDict({"arrays": arrays, "m": MetricRecord({"num-examples": 1})}), reply_to=message)

    return app


def careless(tmp_path, noise, **terms):
    """What the buyer received of careless apps, and the jobs that they were given."""
    jobs, wallet = [], lambda c: pm.privacy.WalletFile(tmp_path / f"{noise}-{partition(c)}.jsonl", 8.0)
    valuation = lambda context: VALUATIONS[partition(context)]  # noqa: E731
    market = pm.flower.WalletMod(valuation=valuation, epsilon=1.0, wallet=wallet, noise=noise)
    grid = Wire(careless_app(market, jobs))
    options = {"mechanism": "proportional-share", "budget": 5.0, "steps": 1, "clip_norm": 0.5, **terms}
    strategy = pm.flower.AuctionStrategy(FedAvg(fraction_evaluate=0.0), **options)
    strategy.start(grid, ArrayRecord({"w": wire.Array(np.zeros(5, dtype=np.float32))}), num_rounds=1)
    replies = [m.content for m in grid.answered if m.metadata.message_type == wire.TRAIN]
    return [wire.read_arrays(content, None)["w"] for content in replies], jobs


def test_an_app_trusted_with_the_noise_can_send_its_record_bare(tmp_path):
    received, _ = careless(tmp_path, "app")
    assert received
    assert all((update == np.float32(0.125)).all() for update in received)


def test_the_mod_adds_the_noise_whatever_the_app_does(tmp_path):
    received, _ = careless(tmp_path, "update")
    assert received
    assert all((update != np.float32(0.125)).all() for update in received)


def test_a_job_says_for_which_rate_and_steps_its_noise_is(tmp_path):
    """A multiplier alone misleads: taken for one full batch it is worth several times the ε that was sold."""
    _, jobs = careless(tmp_path, "app", sampling_rate=ODD.sampling_rate, steps=ODD.steps)
    for job in jobs:
        sold = ReleaseFamily(job["sampling-rate"], job["steps"], job["delta"])
        assert float(sold.epsilon(job["noise-multiplier"])) <= job["epsilon"] * (1 + 1e-9)
        assert float(ReleaseFamily(delta=job["delta"]).epsilon(job["noise-multiplier"])) > 3 * job["epsilon"]
    assert jobs


def test_noise_of_the_example_with_opacus_is_not_one_of_few(monkeypatch):
    """A torch generator keeps 32 bits of its seed: who tries them all has the noise that Opacus drew from it."""
    from opacus.optimizers.optimizer import _generate_noise  # takes seconds

    few = [_generate_noise(1.0, torch.zeros(9), torch.Generator().manual_seed(5 + k * 2**32)) for k in range(3)]
    assert torch.equal(few[0], few[1])
    assert torch.equal(few[0], few[2])

    class Found(torch.Generator):
        """One whose seed was found."""

        def seed(self):
            return self.manual_seed(5).initial_seed()

    monkeypatch.setattr(torch, "Generator", Found)
    monkeypatch.syspath_prepend(str(Path(pm.__file__).parent / "examples" / "flower-existing-app"))
    from existing_app import opacus_client_app

    Wire(opacus_client_app.app, 1)  # messages are made in a run
    sold = {"noise-multiplier": 1.0, "clip-norm": 1.0, "learning-rate": 1.0, "expected-batch": 64.0, "steps": 1}
    weights = ArrayRecord(opacus_client_app.Net().state_dict())
    sent = []
    for _ in range(2):
        job = ConfigRecord({**sold, "sampling-rate": 1.0})
        message = Message(RecordDict({"arrays": weights, wire.JOB: job}), 1, wire.TRAIN)
        context = Context(1, 1, {"partition-id": 0, "num-partitions": 10}, RecordDict(), {"batch-size": 32})
        sent.append(opacus_client_app.train(message, context).content["arrays"].to_torch_state_dict())
    noise = torch.cat([(one - other).flatten() for one, other in zip(*(s.values() for s in sent), strict=True)])
    assert float(noise.std()) == pytest.approx(2**0.5 / 64, rel=0.1)
