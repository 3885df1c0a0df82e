"""Reading a digit out of an update: exact without noise, nothing with the noise of a sale."""

import numpy as np
import pytest
import torch

from privmarket.errors import ConfigurationError
from privmarket.privacy._calibration import noise_multiplier
from privmarket.privacy._noise import NoiseSource
from privmarket.simulation._gradient_inversion import inverted, likeness
from privmarket.tasks import load_dataset
from privmarket.training import ClientRecords, LocalPlan, build_model, private_updates

RECORDS = 60


def likenesses(model_name, sigma):
    """Of what is read out of the updates of clients that hold one digit each."""
    data = load_dataset("digits")
    images = torch.from_numpy(np.asarray(data.train_images[:RECORDS]))
    labels = torch.from_numpy(data.train_labels[:RECORDS])
    model = build_model(model_name, data.image_shape, data.classes)
    weights = model.initial_weights(np.random.default_rng(0))
    records = ClientRecords(images, labels, [1] * RECORDS)
    sources = [NoiseSource.from_seed(0, "inversion", number) for number in range(RECORDS)]
    updates = private_updates(model, weights, records, LocalPlan(), [sigma] * RECORDS, sources)
    return np.array(
        [likeness(inverted(model, update), image) for update, image in zip(updates, images, strict=True)]
    )


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_without_noise_the_digit_is_read(model):
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
        inverted(model, torch.zeros(model.parameters))
