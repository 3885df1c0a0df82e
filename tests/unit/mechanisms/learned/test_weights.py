"""Weights files: bad ones end in one clear line, and no write harms what was there."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest

import privmarket as pm
from privmarket.errors import BidError, WriteError
from privmarket.mechanisms.learned import _weights as module
from privmarket.mechanisms.learned._learned_mechanism import OutsideTraining
from privmarket.mechanisms.learned._weights import Weights, WeightsError, load, save, shipped

NETS = tuple(name for name in pm.mechanism_names() if name in pm.mechanisms.learned_names())


def example(tmp_path, mechanism="mfg-regretnet"):
    path = tmp_path / "w.safetensors"
    save(path, Weights(mechanism, {"a": np.arange(1000.0)}, {"seed": 1}))
    return path


def test_what_is_saved_is_loaded(tmp_path):
    stored = load(example(tmp_path), "mfg-regretnet")
    np.testing.assert_array_equal(stored.arrays["a"], np.arange(1000.0))
    assert stored.facts == {"seed": 1}


def test_a_truncated_file_is_refused(tmp_path):
    path = example(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsError, match="not a whole safetensors file"):
        load(path, "mfg-regretnet")


@pytest.mark.parametrize("content", [b"", b"no weights at all", bytes(range(7, 71))], ids=["none", "text", "bytes"])
def test_other_bytes_are_refused(tmp_path, content):
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError):
        load(path, "mfg-regretnet")


def test_weights_of_another_mechanism_are_refused(tmp_path):
    with pytest.raises(WeightsError, match="holds weights for 'regretnet', not for 'mfg-regretnet'"):
        load(example(tmp_path, "regretnet"), "mfg-regretnet")


def test_weights_of_another_version_are_refused(tmp_path, monkeypatch):
    path = example(tmp_path)
    monkeypatch.setattr(module, "FORMAT", "privmarket-weights-2")
    with pytest.raises(WeightsError, match="this version reads 'privmarket-weights-2'"):
        load(path, "mfg-regretnet")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(WeightsError, match="no weights at"):
        pm.mechanism("mfg-regretnet", weights=tmp_path / "absent.safetensors")


def test_weights_that_do_not_fit_the_network_are_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    save(path, Weights("mfg-regretnet", {"a": np.zeros(3)}, {"network": {}, "epsilon_max": 5.0}))
    with pytest.raises(WeightsError, match="do not fit its network"):
        pm.mechanism("mfg-regretnet", weights=path)


def test_a_full_disk_leaves_the_earlier_file(tmp_path, monkeypatch):
    path = example(tmp_path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match="No space left on device"):
        save(path, Weights("mfg-regretnet", {"a": np.zeros(9)}, {}))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("name", NETS)
def test_shipped_weights_say_what_they_are(name):
    facts = load(shipped(name), name).facts
    assert facts["seconds"] > 0
    assert "seed" in facts
    if name != "mfg-menunet":
        assert {"recipe", "measured", "trained_for", "steps_done", "torch"} <= set(facts)
        assert facts["measured"]["cases"]


def test_all_shipped_weights_together_are_under_three_megabytes():
    assert sum(os.path.getsize(shipped(name)) for name in NETS) < 3e6


@pytest.mark.parametrize("name", [n for n in NETS if n != "mfg-menunet"])
@pytest.mark.parametrize("clients", [1, 2, 7, 25, 133])
def test_shipped_weights_serve_any_number_of_clients(name, clients, rng):
    from privmarket.market._distributions import scenario

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideTraining)
        outcome = pm.mechanism(name).run(scenario("uniform").sample(rng, clients, (2,)), clients / 2)
    assert outcome.epsilon.shape == (2, clients)
    assert np.isfinite(outcome.payment).all()


def test_a_budget_outside_the_training_works_and_warns_once(rng):
    from privmarket.market._distributions import scenario

    rule = pm.mechanism("mfg-regretnet")
    bids = scenario("uniform").sample(rng, 50)
    with pytest.warns(OutsideTraining, match="trained on"):
        outcome = rule.run(bids, 1e-3)
    assert outcome.spend <= 1e-3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rule.run(bids, 1e-3)
        pm.mechanism("mfg-regretnet").run(bids, 25.0)


def test_an_offer_above_the_limit_is_refused():
    with pytest.raises(BidError, match="above the market's limit"):
        pm.mechanism("mfg-regretnet").run(pm.Bids([0.1, 0.2], [1.0, 6.0]), 1.0)
