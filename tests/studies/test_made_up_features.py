"""Features from scenes that nobody owns: drawn again alike, learned by contrast, and each from its record alone."""

import math

import numpy as np
import pytest
import torch

from privmarket_studies import made_up_features as study


@pytest.fixture
def few_scenes(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    few = study.scaled(study.scenes(40, generator).flatten(0, 1))
    monkeypatch.setattr(study, "_for_statistics", lambda: few)
    for kept in (study._network, study._second_layer):
        kept.cache_clear()
    yield
    for kept in (study._network, study._second_layer):
        kept.cache_clear()


def test_a_seed_gives_the_same_scenes_in_0_to_1():
    one, two = (study.scenes(3, torch.Generator().manual_seed(4)) for _ in range(2))
    assert one.shape == (2, 3, 3, 32, 32)
    assert torch.equal(one, two)
    assert 0.0 <= one.min() < one.max() <= 1.0


def test_views_of_a_scene_have_more_in_common_than_those_of_two():
    first, second = study.scenes(60, torch.Generator().manual_seed(5)).mean(dim=(3, 4))
    between = torch.cdist(first, second)
    assert between.diagonal().mean() < 0.6 * between.mean()


def test_colours_change_and_stay_in_0_to_1():
    generator = torch.Generator().manual_seed(6)
    before = study.scenes(20, generator)[0]
    after = study.recoloured(before, generator, 1.0)
    assert after.shape == before.shape
    assert 0.0 <= after.min() < after.max() <= 1.0
    assert (after - before).abs().mean() > 0.02


def test_contrast_of_views_told_apart_perfectly_is_the_closed_form():
    rows = torch.eye(5).repeat(2, 1)
    assert float(study.contrast(rows)) == pytest.approx(math.log1p(8 * math.exp(-1 / 0.2)), rel=1e-4)


def test_contrast_of_rows_all_alike_is_that_of_chance():
    assert float(study.contrast(torch.ones(10, 4) / 2)) == pytest.approx(math.log(9), rel=1e-5)


def test_a_few_steps_of_training_tell_views_apart_better_than_chance():
    losses = study.trained(count=64, steps=25, pairs=32)[1]
    assert len(losses) == 25
    assert np.mean(losses[-5:]) < np.mean(losses[:3]) - 0.2
    again = study.trained(count=64, steps=2, pairs=32)[1]
    assert study.trained(count=64, steps=2, pairs=32)[1] == again


@pytest.mark.parametrize("name", study.NAMES)
def test_features_of_a_record_depend_on_that_record_alone(name, few_scenes):
    pictures = np.random.default_rng(7).standard_normal((3, 3, 32, 32)).astype(np.float32)
    together = study.made_up_features(pictures, name)
    assert together.shape == (3, study.DIRECTIONS)
    assert np.linalg.norm(together, axis=1) == pytest.approx(10.0, rel=1e-4)
    assert study.made_up_features(pictures[1:2], name)[0] == pytest.approx(together[1], abs=1e-3)


def test_the_kept_network_is_not_the_one_before_training(few_scenes):
    pictures = study._for_statistics()[:4]
    before, after = (study._network(is_trained).quarters(pictures) for is_trained in (False, True))
    assert after.shape == before.shape == (4, 384, 2, 2)
    assert (after - before).abs().mean() > 0.1 * before.abs().mean()


def test_weights_are_small_and_leave_the_head_out():
    assert study.WEIGHTS.stat().st_size < 1_000_000
    kept = study._kept(study._untrained())
    assert not [name for name in kept if name.startswith("head")]
    assert kept["third.0.weight"].dtype == torch.float16
