"""The paper's runs as printed: a round against `privmarket federate --literal`; going on where a run stopped."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from privmarket.simulation import Federation, FederationConfig
from privmarket_studies.literal_runs import EPSILON_MIN, RULE, LiteralFederation, LiteralRun, all_runs, train

RUN = LiteralRun("digits", 0.5, seed=3, reading="printed", rounds=3, clients=10, budget=5.0)


def test_a_round_is_that_of_the_product():
    config = FederationConfig(
        dataset="digits", alpha=0.5, clients=10, mode="literal", mechanism=RULE, budget=5.0, rounds=1, seed=3
    )
    with Federation(config) as federation:
        expected = federation.step(federation.start()).server.weights
    study = LiteralFederation(RUN)
    found, left_out = study.step(study.first_weights(), 0)
    assert left_out == 0
    quiet = LiteralFederation(replace(RUN, reading="noise-free"))
    without_noise = quiet.step(quiet.first_weights(), 0)[0]
    # The product adds the same noise to the update, which it then subtracts: the sign is the other one.
    torch.testing.assert_close(found - without_noise, without_noise - expected, rtol=1e-4, atol=1e-4)
    assert float((found - without_noise).abs().max()) > 1.0


def test_the_noise_is_that_of_algorithm_2():
    study = LiteralFederation(RUN)
    epsilon = np.maximum(study.market.epsilon, EPSILON_MIN)
    np.testing.assert_allclose(study.sigma, np.sqrt(2 * np.log(1.25 * 10)) / epsilon)
    weights = torch.zeros(study.model.parameters)
    quiet = LiteralFederation(replace(RUN, reading="noise-free")).released(weights, 0, 4)
    noise = (study.released(weights, 0, 4) - quiet).numpy()
    # 17,000 draws: the standard deviation is known to 0.6 %.
    assert noise.std() == pytest.approx(study.sigma[4], rel=0.03)


def test_a_run_goes_on_where_it_stopped(tmp_path):
    train(RUN, tmp_path / "a", tmp_path / "once")
    train(RUN, tmp_path / "b", tmp_path / "twice", until=1)
    train(RUN, tmp_path / "b", tmp_path / "twice")
    once, twice = (
        json.loads((tmp_path / one / "runs" / f"{RUN.name}.json").read_text()) for one in ("once", "twice")
    )
    assert len(once["accuracy"]) == 3
    for key in ("accuracy", "left_out", "norm", "market"):
        assert once[key] == twice[key]


def test_rounds_computed_again_are_compared_and_never_fewer(tmp_path):
    train(RUN, tmp_path / "a", tmp_path)
    place = tmp_path / "runs" / f"{RUN.name}.json"
    first = json.loads(place.read_text())
    assert "again" not in first
    train(RUN, tmp_path / "b", tmp_path, until=2)
    assert json.loads(place.read_text()) == first
    train(RUN, tmp_path / "b", tmp_path)
    assert json.loads(place.read_text())["again"] == {"rounds": 3, "equal": 3}
    first["accuracy"][1] += 0.125
    place.write_text(json.dumps(first))
    train(RUN, tmp_path / "c", tmp_path)
    found = json.loads(place.read_text())
    assert found["again"] == {"rounds": 3, "equal": 2}
    assert found["accuracy"][1] == first["accuracy"][1] - 0.125


def test_the_cache_of_other_settings_is_not_used(tmp_path):
    train(RUN, tmp_path / "a", tmp_path, until=1)
    train(replace(RUN, budget=4.0), tmp_path / "a", tmp_path, until=1)
    kept = json.loads((tmp_path / "runs" / f"{RUN.name}.json").read_text())
    assert kept["run"]["budget"] == 4.0
    assert len(kept["accuracy"]) == 1


def test_runs_have_names_of_their_own():
    names = [run.name for run in all_runs()]
    assert len(set(names)) == len(names)
    printed = [run for run in all_runs() if run.dataset == "mnist" and run.reading == "printed"]
    assert {(run.alpha, run.seed) for run in printed} == {(a, s) for a in (0.1, 0.5) for s in range(5)}
    assert all(run.rounds == 200 for run in printed)


def test_accuracy_in_pieces_is_that_of_the_model():
    study = LiteralFederation(RUN)
    weights = study.first_weights()
    inputs, labels = study.task.test.tensors()
    assert study.accuracy(weights) == pytest.approx(study.model.accuracy(weights, inputs, labels))
    assert len(labels) > 100
