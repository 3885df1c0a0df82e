"""Fixed public transforms of pictures."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from privmarket.errors import DataError, UnknownNameError
from privmarket.tasks import _features as features
from privmarket.tasks._datasets import Dataset, load_dataset
from privmarket.tasks._features import (
    ANGLES,
    ORDERS,
    PLANES,
    SMALLEST_SIDE,
    centred_gradients,
    normalised_scattering,
    oriented_gradients,
    overlapping_shapes,
    public_basis,
    scattering,
    whitened_scattering,
    with_features,
)


@pytest.mark.parametrize("transform", [oriented_gradients, centred_gradients], ids=lambda f: f.__name__)
def test_features_of_a_record_depend_on_it_alone_and_have_one_norm(transform):
    images = torch.randn(5, 2, 12, 12, generator=torch.Generator().manual_seed(0))
    together = transform(images)
    assert together.shape == (5, 16, 3, 3)
    torch.testing.assert_close(together, torch.cat([transform(image[None]) for image in images]))
    torch.testing.assert_close(together.flatten(1).norm(dim=1), torch.full((5,), 10.0))


def test_centred_features_have_no_mean_in_any_direction():
    images = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(centred_gradients(images).mean(dim=(2, 3)), torch.zeros(4, 8), atol=1e-5, rtol=0)


def test_a_blank_image_has_zero_features():
    assert not centred_gradients(torch.zeros(1, 1, 8, 8)).any()


def test_a_data_set_is_transformed_whole_and_only_by_a_known_name():
    data = load_dataset("digits")
    done = with_features(data, "centred-gradients")
    np.testing.assert_array_equal(done.test_images, centred_gradients(torch.from_numpy(data.test_images)).numpy())
    assert done.train_images.shape == (data.train_labels.size, 8, 2, 2)
    with pytest.raises(UnknownNameError, match="pixels"):
        with_features(data, "pixels")


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


def test_scattering_of_a_record_depends_on_it_alone_and_has_one_norm():
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


SHAPE = (1, 12, 12)


@pytest.fixture
def _few_images(monkeypatch):
    monkeypatch.setattr(features, "_IMAGES", 400)
    monkeypatch.setattr(features, "_BLOCK_IMAGES", 200)
    public_basis.cache_clear()
    yield
    public_basis.cache_clear()


def _fresh(count: int = 300) -> torch.Tensor:
    return overlapping_shapes(count, SHAPE, torch.Generator().manual_seed(9))


def _spread(rows: torch.Tensor) -> float:
    """Energy of the strongest direction over the mean of all: 1 is perfectly even."""
    rows = rows.flatten(1)
    energy = torch.linalg.eigvalsh(rows.T @ rows / rows.shape[0])
    return float(energy[-1] / energy.mean())


@pytest.mark.usefixtures("_few_images")
def test_directions_are_orthogonal_and_have_a_fixed_sign():
    basis = public_basis(SHAPE)
    for directions in (basis.planes, basis.cells):
        torch.testing.assert_close(directions.T @ directions, torch.eye(len(directions)), atol=1e-5, rtol=0)
        largest = directions.gather(0, directions.abs().argmax(dim=0, keepdim=True))
        assert (largest > 0).all()
    assert basis.chosen.unique().numel() == basis.chosen.numel()


@pytest.mark.usefixtures("_few_images")
def test_energy_is_spread_more_evenly_on_images_that_it_has_not_seen():
    images = _fresh()
    assert _spread(whitened_scattering(images)) < 0.5 * _spread(normalised_scattering(images))


@pytest.mark.usefixtures("_few_images")
def test_a_record_is_transformed_alone_and_has_one_norm():
    images = torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(2))
    together = whitened_scattering(images)
    torch.testing.assert_close(
        together, torch.cat([whitened_scattering(i[None]) for i in images]), atol=1e-4, rtol=0
    )
    torch.testing.assert_close(together.flatten(1).norm(dim=1), torch.full((4,), 10.0))


@pytest.mark.usefixtures("_few_images")
def test_the_basis_is_the_same_every_time():
    first = public_basis(SHAPE)
    public_basis.cache_clear()
    again = public_basis(SHAPE)
    assert first is not again
    torch.testing.assert_close(first.planes, again.planes)
    assert torch.equal(first.chosen, again.chosen)


@pytest.mark.usefixtures("_few_images")
def test_shapes_are_images_of_the_asked_size():
    images = overlapping_shapes(5, (3, 10, 14), torch.Generator().manual_seed(0))
    assert images.shape == (5, 3, 10, 14)
    assert images.abs().max() <= 2.0
    assert images.std() > 0.3
