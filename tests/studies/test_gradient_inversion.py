"""Pictures out of releases: found without noise, alone and in batches, and not with the noise of a sale."""

import numpy as np
import pytest
import torch

from privmarket.errors import ConfigurationError
from privmarket.privacy import NoiseSource, noise_multiplier
from privmarket.tasks import load_dataset
from privmarket.training import ClientRecords, LocalPlan, build_model, private_updates
from privmarket_studies.gradient_inversion import (
    DELTA,
    Case,
    Search,
    Setting,
    clipped_sums,
    gaussian_noise,
    likeness,
    matched,
    read_off,
    record_gradients,
)

RECORDS = 60
SEARCH = Search(steps=150, variation=1e-3)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_the_attackers_gradients_are_what_clients_release(model):
    case = Case.of(Setting("digits", model, batch=3, releases=4))
    rows = record_gradients(case.model.module, case.pictures.flatten(0, 1), case.labels.flatten()).detach()
    torch.testing.assert_close(clipped_sums(rows, 1.0, 3), case.released(None), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("model", "batch"), [("cnn", 1), ("cnn", 2), ("mlp", 2)])
def test_without_noise_pictures_are_found_and_with_it_they_are_not(model, batch):
    case = Case.of(Setting("digits", model, batch=batch, releases=6 // batch))
    blind = np.mean(case.blind()["error"])
    quiet = case.judged(case.attacked(None, SEARCH))
    assert np.mean(quiet["error"]) < 0.6 * blind
    assert np.mean(quiet["likeness"]) > 0.8
    sold = case.judged(case.attacked(5.0, SEARCH))
    assert np.mean(sold["error"]) > 0.9 * blind


def test_the_noise_of_a_thousandth_does_not_hide_pictures():
    """The subject that must be caught: a client that adds a thousandth of its noise."""
    case = Case.of(Setting("digits", "cnn", batch=1, releases=6))
    found = case.judged(case.attacked(5.0, SEARCH, noise_share=1e-3))
    assert np.mean(found["error"]) < 0.6 * np.mean(case.blind()["error"])


def test_the_noise_is_the_products_and_goes_on_beyond_it():
    for epsilon in (0.1, 1.0, 10.0, 30.0):
        # The product rounds up, by at most a thousandth.
        assert gaussian_noise(epsilon, DELTA) == pytest.approx(float(noise_multiplier(epsilon, DELTA)), rel=1e-3)
        assert gaussian_noise(epsilon, DELTA) <= float(noise_multiplier(epsilon, DELTA))
    # For large ε the privacy loss is normal with mean μ²/2 and deviation μ: ε = μ²/2 − μ·Φ⁻¹(δ).
    mu = 1.0 / gaussian_noise(1e5, DELTA)
    assert mu**2 / 2 + 4.2649 * mu == pytest.approx(1e5, rel=1e-3)


def test_pictures_are_matched_whatever_their_order():
    rng = torch.Generator().manual_seed(0)
    truth = torch.rand((4, 1, 5, 5), generator=rng)
    error, alike = matched(truth[[2, 0, 3, 1]] + 0.1, truth)
    assert error == pytest.approx([0.1] * 4)
    assert alike == pytest.approx([1.0] * 4)


def likenesses(model_name, sigma):
    """Of what is read off the updates of clients that hold one digit each."""
    data = load_dataset("digits")
    images = torch.from_numpy(np.asarray(data.train_images[:RECORDS]))
    labels = torch.from_numpy(data.train_labels[:RECORDS])
    model = build_model(model_name, data.image_shape, data.classes)
    weights = model.initial_weights(np.random.default_rng(0))
    records = ClientRecords(images, labels, [1] * RECORDS)
    sources = [NoiseSource.from_seed(0, "inversion", number) for number in range(RECORDS)]
    updates = private_updates(model, weights, records, LocalPlan(), [sigma] * RECORDS, sources)
    return np.array(
        [likeness(read_off(model, update), image) for update, image in zip(updates, images, strict=True)]
    )


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_without_noise_the_digit_is_read_off(model):
    assert likenesses(model, 0.0).min() > 0.999


@pytest.mark.parametrize("model", ["logistic", "mlp"])
@pytest.mark.parametrize("epsilon", [1.0, 5.0])
def test_with_the_noise_of_a_sale_nothing_is(model, epsilon):
    """The mean over many digits is that of an unrelated picture, within four of its standard errors."""
    found = likenesses(model, float(noise_multiplier(epsilon)))
    assert abs(found.mean()) < 4 * found.std() / RECORDS**0.5
    assert found.max() < 0.6


def test_with_a_hundredth_of_that_noise_the_digit_shows_again():
    assert likenesses("logistic", 0.01 * float(noise_multiplier(5.0))).mean() > 0.5


def test_a_model_without_such_a_layer_is_refused():
    data = load_dataset("digits")
    model = build_model("cnn", data.image_shape, data.classes)
    with pytest.raises(ConfigurationError, match="begins with weights of shape"):
        read_off(model, torch.zeros(model.parameters))
