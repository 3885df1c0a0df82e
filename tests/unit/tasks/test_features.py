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
    patch_likeness,
    patches_and_scattering,
    public_basis,
    public_patches,
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


@pytest.mark.parametrize("name", ["scattering", "patches-and-scattering"])
def test_images_too_small_to_reflect_are_refused(name):
    with pytest.raises(DataError, match=f"at least {SMALLEST_SIDE} pixels") as refused:
        with_features(_random_dataset(side=8), name)
    assert "centred-gradients" in refused.value.hint


SHAPE = (1, 12, 12)


@pytest.fixture
def _few_images(monkeypatch):
    monkeypatch.setattr(features, "_IMAGES", 400)
    monkeypatch.setattr(features, "_BLOCK_IMAGES", 200)
    public_basis.cache_clear()
    public_patches.cache_clear()
    yield
    public_basis.cache_clear()
    public_patches.cache_clear()


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


COLOUR = (3, 12, 12)


def _pictures(count: int, seed: int = 9) -> torch.Tensor:
    return overlapping_shapes(count, COLOUR, torch.Generator().manual_seed(seed))


def test_likeness_is_the_mean_of_thresholded_answers_over_quarters():
    generator = torch.Generator().manual_seed(4)
    images = torch.randn(12, 2, 9, 9, generator=generator)  # more rows than are computed at once
    filters = torch.randn(3, 2, 5, 5, generator=generator)
    filters -= filters.mean(dim=(1, 2, 3), keepdim=True)
    offset = torch.randn(3, generator=generator)
    done = patch_likeness(images, filters, offset)
    assert done.shape == (12, 6, 2, 2)
    for row, k, side in ((0, 0, 1), (11, 2, -1)):
        answers = np.empty((5, 5))
        for i in range(5):
            for j in range(5):
                patch = images[row, :, i : i + 5, j : j + 5].double().numpy()
                patch = (patch - patch.mean()) / math.sqrt(patch.var() + 0.05**2)
                answers[i, j] = (filters[k].double().numpy() * patch).sum() - float(offset[k])
        counted = np.maximum(side * answers - 0.25, 0.0)
        halves = (slice(None, 3), slice(2, None))  # an odd side has its middle in both
        expected = [[counted[down, across].mean() for across in halves] for down in halves]
        np.testing.assert_allclose(done[row, k if side > 0 else 3 + k], expected, rtol=1e-3, atol=1e-4)


def _twins(filters: torch.Tensor) -> float:
    """The share of filters that another one repeats."""
    rows = filters.flatten(1) / filters.flatten(1).norm(dim=1, keepdim=True)
    alike = rows @ rows.T - torch.eye(len(rows))
    return float((alike.max(dim=1).values > 0.999).double().mean())


def test_filters_are_centred_and_none_is_made_of_a_flat_patch(monkeypatch):
    images = torch.randn(60, *COLOUR, generator=torch.Generator().manual_seed(3))
    images[30:] = 0.7
    filters, offset = features._patch_filters(images, torch.Generator().manual_seed(0))
    assert filters.shape == (256, 3, 5, 5)
    assert offset.shape == (256,)
    torch.testing.assert_close(filters.sum(dim=(1, 2, 3)), torch.zeros(256), atol=1e-4, rtol=0)
    monkeypatch.setattr(features, "_LEAST_DEVIATION", -1.0)
    with_flat, _ = features._patch_filters(images, torch.Generator().manual_seed(0))
    # Flat patches all give one filter; of noise, only a place that was drawn twice does.
    assert _twins(filters) < 0.25 < 0.4 < _twins(with_flat)


@pytest.mark.usefixtures("_few_images")
@pytest.mark.parametrize("shape", [COLOUR, (1, 9, 14)], ids=["colour", "grey, smallest"])
def test_patches_of_a_record_depend_on_it_alone_and_have_one_norm(shape):
    images = torch.randn(13, *shape, generator=torch.Generator().manual_seed(2))
    together = patches_and_scattering(images)
    torch.testing.assert_close(
        together, torch.cat([patches_and_scattering(i[None]) for i in images]), atol=1e-3, rtol=0
    )
    torch.testing.assert_close(together.flatten(1).norm(dim=1), torch.full((13,), 10.0))


@pytest.mark.usefixtures("_few_images")
def test_scattering_and_patches_have_equal_weight():
    scattered, patched = patches_and_scattering(_pictures(4)).flatten(1).split([1000, 1400], dim=1)
    torch.testing.assert_close(scattered.norm(dim=1), patched.norm(dim=1))
    expected = whitened_scattering(_pictures(4)).flatten(1)[:, :1000]
    torch.testing.assert_close(
        scattered / scattered.norm(dim=1, keepdim=True), expected / expected.norm(dim=1, keepdim=True)
    )


@pytest.mark.usefixtures("_few_images")
def test_energy_of_patches_is_spread_more_evenly_on_images_that_they_have_not_seen():
    patches = public_patches(COLOUR)
    images = _pictures(400)
    before = patches.standardised(patch_likeness(images, patches.filters, patches.offset))
    assert _spread(patches(images)) < 0.5 * _spread(before)


@pytest.mark.usefixtures("_few_images")
def test_the_patches_are_the_same_every_time():
    first = public_patches(COLOUR)
    public_patches.cache_clear()
    again = public_patches(COLOUR)
    assert first is not again
    torch.testing.assert_close(first.filters, again.filters)
    assert torch.equal(first.basis.chosen, again.basis.chosen)


def test_a_blank_image_has_finite_patches():
    filters = torch.randn(2, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    filters -= filters.mean(dim=(1, 2, 3), keepdim=True)
    done = patch_likeness(torch.full((1, 1, 9, 9), 0.7), filters, torch.zeros(2))
    torch.testing.assert_close(done, torch.zeros(1, 4, 2, 2))
