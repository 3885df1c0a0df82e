"""Flower's own mods and wrappers beside a guard: what docs/how-to/guard-a-site.md says of each."""

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.client import mod as old_mods
from flwr.clientapp import mod as mods
from flwr.server import LegacyContext, ServerConfig, strategy as old
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow, SecAggWorkflow
from flwr.serverapp import strategy as new

import privmarket as pm
from privmarket.flower._in_process import InProcessGrid
from privmarket.privacy._calibration import noise_multiplier
from tests.unit.flower.guarded import SITE, ask, old_app, old_start, plain_app, policy, run, seed_noise, wallet

NODES = 3
START = {"w": np.zeros(5000, dtype=np.float32)}
# The noise on FedAvg's mean of three sites, each 2·C·σ; and LocalDpMod's own by the classical formula, as it says.
GUARDED = 2.0 * float(noise_multiplier(1.0)) / np.sqrt(NODES)
LOCAL = 2.0 * np.sqrt(2 * np.log(1.25 / 1e-5)) / np.sqrt(NODES)


def local_dp():
    return mods.LocalDpMod(clipping_norm=1e9, sensitivity=2.0, epsilon=1.0, delta=1e-5)


def client_side_fixed():
    return new.DifferentialPrivacyClientSideFixedClipping(
        new.FedAvg(), noise_multiplier=0.0, clipping_norm=1.0, num_sampled_clients=NODES
    )


def client_side_adaptive():
    return new.DifferentialPrivacyClientSideAdaptiveClipping(
        new.FedAvg(), noise_multiplier=0.1, num_sampled_clients=NODES
    )


def server_side_fixed():
    return new.DifferentialPrivacyServerSideFixedClipping(
        new.FedAvg(), noise_multiplier=0.0, clipping_norm=1.0, num_sampled_clients=NODES
    )


def deviation(folder, monkeypatch, before=(), after=(), strategy=new.FedAvg, text=SITE):
    """Of the weights that an unmodified server has after a round; None where no site answered."""
    seed_noise(monkeypatch)
    np.random.seed(0)  # noqa: NPY002  # Flower's own noise
    app = plain_app([*before, pm.flower.GuardMod(policy=policy(folder, text)), *after], change=0.0)
    result = run(strategy(), app, NODES, start=START)
    return float(np.std(result.arrays["w"].numpy())) if result.train_metrics_clientapp else None


@pytest.mark.parametrize("mod", [mods.arrays_size_mod, mods.message_size_mod], ids=lambda mod: mod.__name__)
def test_mods_that_only_count_work_on_both_sides(mod, tmp_path, monkeypatch):
    for places in ({"before": [mod]}, {"after": [mod]}):
        assert deviation(tmp_path, monkeypatch, **places) == pytest.approx(GUARDED, rel=0.05)


def test_flowers_local_noise_comes_on_top(tmp_path, monkeypatch, caplog):
    both = deviation(tmp_path, monkeypatch, before=[local_dp()])
    assert both == pytest.approx(np.hypot(GUARDED, LOCAL), rel=0.05)
    assert "LocalDpMod adds noise of its own" in caplog.text
    # Behind the guard its noise is part of the change, which the guard clips.
    assert deviation(tmp_path, monkeypatch, after=[local_dp()]) == pytest.approx(GUARDED, rel=0.05)


def test_client_side_clipping_works_behind_the_guard_and_destroys_before_it(tmp_path, monkeypatch):
    fixed = {"strategy": client_side_fixed}
    behind = deviation(tmp_path, monkeypatch, after=[mods.fixedclipping_mod], **fixed)
    assert behind == pytest.approx(GUARDED, rel=0.05)
    assert deviation(tmp_path, monkeypatch, before=[mods.fixedclipping_mod], **fixed) < 0.01 * GUARDED


def test_the_norm_bit_of_adaptive_clipping_must_be_declared(tmp_path, monkeypatch, caplog):
    app = plain_app([pm.flower.GuardMod(policy=policy(tmp_path)), mods.adaptiveclipping_mod])
    assert ask(app).error.reason.startswith("privmarket guard: setup")
    assert "norm_bit" in caplog.text
    text = SITE + "[guard.train]\nnorm_bit = { range = [0, 1], epsilon = 0.1 }\n"
    options = {"strategy": client_side_adaptive, "text": text}
    assert deviation(tmp_path, monkeypatch, after=[mods.adaptiveclipping_mod], **options) == pytest.approx(
        GUARDED, rel=0.05
    )
    assert [sale["epsilon"] for sale in wallet(tmp_path).statement()] == [1.0, 0.1]


def test_server_side_clipping_works_and_cuts_noise_and_change_alike(tmp_path, monkeypatch):
    assert 0 < deviation(tmp_path, monkeypatch, strategy=server_side_fixed) < 0.01 * GUARDED


def secure_run(folder, mod, workflow, *, mod_first):
    """A round of Flower's secure aggregation, older API: the server's weights, and how often the wallet paid."""
    site = pm.flower.GuardMod(policy=policy(folder))
    grid = InProcessGrid(old_app([mod, site] if mod_first else [site, mod]), NODES)
    context = Context(grid.run.run_id, 1, {}, RecordDict(), {})
    strategy = old.FedAvg(initial_parameters=old_start())
    legacy = LegacyContext(context, config=ServerConfig(num_rounds=1, round_timeout=5), strategy=strategy)
    DefaultWorkflow(fit_workflow=workflow)(grid, legacy)
    (record,) = legacy.state.array_records.values()
    there = np.concatenate([array.numpy().ravel() for array in record.values()])
    paid = len(wallet(folder).statement()) if (folder / "wallet-0.jsonl").exists() else 0
    return there, paid


@pytest.mark.parametrize(
    ("mod", "workflow"),
    [
        (old_mods.secaggplus_mod, lambda: SecAggPlusWorkflow(3, 2, clipping_range=64.0)),
        (old_mods.secagg_mod, lambda: SecAggWorkflow(2, clipping_range=64.0)),
    ],
    ids=["secaggplus_mod", "secagg_mod"],
)
def test_secure_aggregation_of_flower_works_before_the_guard(mod, workflow, tmp_path, monkeypatch):
    seed_noise(monkeypatch)
    there, paid = secure_run(tmp_path, mod, workflow(), mod_first=True)
    assert paid == 1
    assert np.std(there) > 0.5  # the guard's noise, in the sum


def test_secure_aggregation_behind_the_guard_is_refused_by_name(tmp_path, caplog):
    workflow = SecAggPlusWorkflow(3, 2, clipping_range=64.0)
    there, paid = secure_run(tmp_path, old_mods.secaggplus_mod, workflow, mod_first=False)
    assert paid == 0
    assert not there.any()  # the weights are those of the start
    assert "put secaggplus_mod before GuardMod" in caplog.text


def test_a_markets_mod_beside_the_guard_is_refused_by_name(tmp_path, caplog):
    market = pm.flower.WalletMod(valuation=0.3, wallet="unlimited", noise="update")
    app = plain_app([pm.flower.GuardMod(policy=policy(tmp_path)), market])
    assert ask(app).error.reason.startswith("privmarket guard: setup")
    assert "GuardMod and WalletMod" in caplog.text
    caplog.clear()
    market.allow = frozenset({"train"})  # so that the message reaches the guard
    app = plain_app([market, pm.flower.GuardMod(policy=policy(tmp_path))])
    assert ask(app).error.reason.startswith("privmarket guard: setup")
    assert "GuardMod and WalletMod" in caplog.text


def test_a_flower_that_hides_its_mods_gets_a_refusal_and_not_an_unchecked_reply(tmp_path, caplog):
    app = plain_app([pm.flower.GuardMod(policy=policy(tmp_path))])
    assert not ask(app).has_error()
    other = plain_app([pm.flower.GuardMod(policy=policy(tmp_path))])
    del other._mods  # as if a later version kept them under another name
    assert ask(other).error.reason.startswith("privmarket guard: setup")
    assert "does not show the mods of an app" in caplog.text
