"""The public basis: what it does to made-up images, and that it looks at no record."""

import pytest
import torch

from privmarket.tasks import _features as whitening
from privmarket.tasks._features import normalised_scattering, overlapping_shapes, public_basis, whitened_scattering

SHAPE = (1, 12, 12)


@pytest.fixture(autouse=True)
def few_images(monkeypatch):
    monkeypatch.setattr(whitening, "_IMAGES", 400)
    monkeypatch.setattr(whitening, "_BLOCK_IMAGES", 200)
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


def test_directions_are_orthogonal_and_have_a_fixed_sign():
    basis = public_basis(SHAPE)
    for directions in (basis.planes, basis.cells):
        torch.testing.assert_close(directions.T @ directions, torch.eye(len(directions)), atol=1e-5, rtol=0)
        largest = directions.gather(0, directions.abs().argmax(dim=0, keepdim=True))
        assert (largest > 0).all()
    assert basis.chosen.unique().numel() == basis.chosen.numel()


def test_energy_is_spread_more_evenly_on_images_that_it_has_not_seen():
    images = _fresh()
    assert _spread(whitened_scattering(images)) < 0.5 * _spread(normalised_scattering(images))


def test_a_record_is_transformed_alone_and_has_one_norm():
    images = torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(2))
    together = whitened_scattering(images)
    torch.testing.assert_close(
        together, torch.cat([whitened_scattering(i[None]) for i in images]), atol=1e-4, rtol=0
    )
    torch.testing.assert_close(together.flatten(1).norm(dim=1), torch.full((4,), 10.0))


def test_the_basis_is_the_same_every_time():
    first = public_basis(SHAPE)
    public_basis.cache_clear()
    again = public_basis(SHAPE)
    assert first is not again
    torch.testing.assert_close(first.planes, again.planes)
    assert torch.equal(first.chosen, again.chosen)


def test_shapes_are_images_of_the_asked_size():
    images = overlapping_shapes(5, (3, 10, 14), torch.Generator().manual_seed(0))
    assert images.shape == (5, 3, 10, 14)
    assert images.abs().max() <= 2.0
    assert images.std() > 0.3
