"""Model and data, as the app had them: a small convolutional network on scikit-learn's handwritten digits."""

import torch
from sklearn.datasets import load_digits
from torch import nn

TEST_RECORDS = 360


class Net(nn.Module):
    """A convolution and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 16, 3, padding=1), nn.Linear(16 * 16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(records, 1, 8, 8) to (records, 10)."""
        return self.head(nn.functional.max_pool2d(torch.relu(self.conv(images)), 2).flatten(1))


def build_model() -> Net:
    """The same start in every run."""
    torch.manual_seed(0)
    return Net()


def records() -> tuple[torch.Tensor, torch.Tensor]:
    """All digits, in a fixed order."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)


def load_data(partition: int, partitions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A client's records."""
    images, labels = records()
    mine = slice(TEST_RECORDS + partition, None, partitions)
    return images[mine], labels[mine]


def accuracy(model: nn.Module) -> float:
    """On the test records."""
    images, labels = records()
    with torch.no_grad():
        return float((model(images[:TEST_RECORDS]).argmax(1) == labels[:TEST_RECORDS]).double().mean())
