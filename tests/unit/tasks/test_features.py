"""Fixed features: one record in, its features out, nothing of other records."""

import numpy as np
import pytest
import torch

from privmarket.errors import UnknownNameError
from privmarket.tasks._datasets import load_dataset
from privmarket.tasks._features import centred_gradients, oriented_gradients, with_features


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
