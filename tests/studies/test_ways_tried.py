"""Ways that were tried: the same ε for every way, and a page that follows from what was kept."""

import json
import math
import shutil

import numpy as np
import pytest

from privmarket.privacy._gaussian import mu_of
from privmarket_studies import ways_tried as study


@pytest.mark.parametrize("name", study.WAYS)
def test_every_way_spends_the_same_epsilon(name):
    way = study.WAYS[name]
    sigma = study.multipliers(way) / math.sqrt(100 / 67)
    assert len(sigma) == way.rounds
    assert math.sqrt((1 / sigma**2).sum()) == pytest.approx(float(mu_of(1.0, 1e-5)))
    assert (sigma[0] / sigma[-1]) ** 2 == pytest.approx(way.share)


def made_up(seed=0, records=600):
    rng = np.random.default_rng(seed)
    centres = 2.0 * rng.standard_normal((3, 8))

    def part(rows):
        labels = rng.integers(3, size=rows)
        spread = np.geomspace(0.2, 5.0, 8)
        return centres[labels] + spread * rng.standard_normal((rows, 8)), np.eye(3)[labels]

    return study.Pictures(part(40), part(records), part(400))


def test_whitening_makes_directions_alike():
    before = made_up()
    after = study.whitened(before)

    def stretch(pictures):
        size = np.linalg.svd(pictures.own[0] - pictures.own[0].mean(axis=0), compute_uv=False)
        return size[0] / size[-1]

    assert stretch(after) < stretch(before) / 3


def test_steps_without_noise_learn_and_with_too_much_do_not():
    pictures = study.one_size(study.whitened(made_up()))
    first = study.own_model(pictures, 0)
    before = study.accuracy(*first, pictures.measured)
    way = study.WAYS["usual"]
    many, few = (study.bought(pictures, first, way, 1.0, records, 0) for records in (10**9, 30))
    assert many >= before
    assert few < many


def test_the_page_is_rendered_from_what_was_kept():
    assert (study.FOLDER / "README.md").read_text(encoding="utf-8") == study.render()


def test_another_figure_gives_another_page(tmp_path):
    shutil.copy(study.FOLDER / study.NAME, tmp_path / study.NAME)
    kept = study.read(tmp_path)
    kept["mnist usual 0"]["bought"] = 0.5
    (tmp_path / study.NAME).write_text(json.dumps(kept), encoding="utf-8")
    assert study.render(tmp_path) != study.render()


def test_made_up_features_are_for_colour_pictures():
    ways = study.WAYS.values()
    assert all(study.is_tried("cifar10", way) for way in ways)
    assert {way.features for way in ways if study.is_tried("mnist", way)} == {"", "scattering"}


def test_an_own_model_is_that_of_the_inputs_as_they_are():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(3)
    inputs = rng.standard_normal((30, 90))
    labels = np.arange(30) % 3
    part = inputs, np.eye(3)[labels]
    weights, bias = study.own_model(study.Pictures(part, part, part), 0)
    fits = [
        LogisticRegression(C=1 / (penalty * 30), max_iter=500).fit(inputs, labels) for penalty in study._PENALTIES
    ]
    assert min(np.abs(fit.coef_.T - weights).max() + np.abs(fit.intercept_ - bias).max() for fit in fits) < 1e-3


def test_a_length_that_is_new_is_added_to_what_was_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "WAYS", {"usual": study.WAYS["usual"]})
    monkeypatch.setattr(study, "divided", lambda *_: made_up())
    monkeypatch.setattr(study, "LENGTHS", (0.5, 4.0))
    study.measure(tmp_path, seeds=(0,), sets=("cifar10",))
    before = study.read(tmp_path)["cifar10 usual 0"]
    monkeypatch.setattr(study, "LENGTHS", (0.5, 1.0, 4.0))
    study.measure(tmp_path, seeds=(0,), sets=("cifar10",))
    after = study.read(tmp_path)["cifar10 usual 0"]
    assert list(after["tried"]) == ["0.5", "1", "4"]
    assert {length: after["tried"][length] for length in before["tried"]} == before["tried"]
    assert after["bought"] == max(after["tried"].values())
