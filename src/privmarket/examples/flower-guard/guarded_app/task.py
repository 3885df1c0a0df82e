"""Model, data, and testing, as an app has them: a small convolutional network on scikit-learn's digits."""

import torch
from sklearn.datasets import load_digits
from torch import nn

TEST_RECORDS = 360
SITES = 5


class Net(nn.Module):
    """A convolution and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.head = nn.Linear(16 * 16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(records, 1, 8, 8) to (records, 10)."""
        return self.head(nn.functional.max_pool2d(torch.relu(self.conv(images)), 2).flatten(1))


def records() -> tuple[torch.Tensor, torch.Tensor]:
    """All digits, in a fixed order."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)


def load_data(site: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A site's own records: a fifth of those that are not for testing."""
    images, labels = records()
    mine = slice(TEST_RECORDS + site % SITES, None, SITES)
    return images[mine], labels[mine]


def correct(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(records,) 1 where the model is right, else 0."""
    with torch.no_grad():
        return (model(images).argmax(1) == labels).double()


def test_accuracy(model: nn.Module) -> float:
    """On records that no site has."""
    images, labels = records()
    return float(correct(model, images[:TEST_RECORDS], labels[:TEST_RECORDS]).mean())
