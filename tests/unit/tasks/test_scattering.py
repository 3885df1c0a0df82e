"""The scattering transform: what it must give on images whose answer is known."""

import math

import numpy as np
import pytest
import torch

from privmarket.errors import DataError
from privmarket.tasks import _features as features
from privmarket.tasks._datasets import Dataset
from privmarket.tasks._features import (
    ANGLES,
    ORDERS,
    PLANES,
    SMALLEST_SIDE,
    normalised_scattering,
    scattering,
    with_features,
)


def _stripes(angle: float, frequency: float = 3 * math.pi / 4, side: int = 32) -> torch.Tensor:
    """(1, 1, side, side) a wave that rises in direction `angle`."""
    down, across = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.cos(frequency * (across * math.cos(angle) + down * math.sin(angle)))[None, None].float()


def test_shapes_and_orders():
    assert PLANES == sum(ORDERS) == 81
    assert scattering(torch.randn(2, 3, 32, 28)).shape == (2, 3 * 81, 8, 7)


def test_a_flat_image_leaves_only_its_mean():
    done = scattering(torch.full((1, 1, 28, 28), 0.7))
    torch.testing.assert_close(done[:, :1], torch.full((1, 1, 7, 7), 0.7))
    torch.testing.assert_close(done[:, 1:], torch.zeros(1, 80, 7, 7), atol=1e-6, rtol=0)


@pytest.mark.parametrize("k", range(ANGLES))
def test_stripes_show_up_at_their_own_angle(k):
    done = scattering(_stripes(math.pi * k / ANGLES))[0].mean(dim=(1, 2))
    assert int(done[1 : 1 + ANGLES].argmax()) == k


@pytest.mark.parametrize(("frequency", "scale"), [(3 * math.pi / 4, 0), (3 * math.pi / 8, 1)])
def test_stripes_show_up_at_their_own_scale(frequency, scale):
    done = scattering(_stripes(0.0, frequency))[0].mean(dim=(1, 2))
    strength = [done[1 + ANGLES * j : 1 + ANGLES * (j + 1)].max() for j in (0, 1)]
    assert strength[scale] > 1.5 * strength[1 - scale]


def test_twice_the_contrast_gives_twice_the_output():
    image = torch.randn(1, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(scattering(2 * image), 2 * scattering(image))


def test_it_forgets_a_shift_by_a_pixel_that_the_pixels_do_not():
    image = torch.randn(1, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    moved = image.roll(1, dims=3)
    inside = (slice(None), slice(None), slice(2, -2), slice(2, -2))
    change = (scattering(moved) - scattering(image))[inside].norm() / scattering(image)[inside].norm()
    pixels = (moved - image).norm() / image.norm()
    assert change < 0.35 < 1.2 < pixels


def test_features_of_a_record_depend_on_it_alone_and_have_one_norm():
    images = torch.randn(4, 2, 12, 12, generator=torch.Generator().manual_seed(2))
    together = normalised_scattering(images)
    torch.testing.assert_close(together, torch.cat([normalised_scattering(i[None]) for i in images]))
    torch.testing.assert_close(together.flatten(1).norm(dim=1), torch.full((4,), 10.0))


def _random_dataset(records: int = 30, side: int = 12, seed: int = 3) -> Dataset:
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((records, 1, side, side)).astype(np.float32)
    labels = rng.integers(0, 10, records)
    return Dataset("digits", images, labels, images[:5], labels[:5])


def test_features_are_computed_once_and_then_read(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVMARKET_CACHE", str(tmp_path))
    data = _random_dataset()
    first = with_features(data, "scattering")
    np.testing.assert_allclose(
        first.train_images, normalised_scattering(torch.from_numpy(data.train_images)).numpy(), atol=1e-5
    )
    assert len(list((tmp_path / "features").iterdir())) == 2

    def forbidden(_images):
        raise AssertionError("computed a second time")

    monkeypatch.setitem(features._TRANSFORMS, "scattering", forbidden)
    np.testing.assert_array_equal(with_features(data, "scattering").train_images, first.train_images)
    with pytest.raises(AssertionError, match="second time"):
        with_features(_random_dataset(seed=4), "scattering")  # other pixels under the same name


def test_a_file_that_was_cut_short_is_computed_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVMARKET_CACHE", str(tmp_path))
    whole = np.array(with_features(_random_dataset(), "scattering").train_images)
    for path in (tmp_path / "features").iterdir():
        path.write_bytes(path.read_bytes()[:200])
    np.testing.assert_array_equal(with_features(_random_dataset(), "scattering").train_images, whole)


def test_images_too_small_to_reflect_are_refused():
    with pytest.raises(DataError, match=f"at least {SMALLEST_SIDE} pixels") as refused:
        with_features(_random_dataset(side=8), "scattering")
    assert "centred-gradients" in refused.value.hint
