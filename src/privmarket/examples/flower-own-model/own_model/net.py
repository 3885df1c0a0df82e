"""Your model, as you have it: any module in which one record's output does not depend on other records."""

import torch
from sklearn.datasets import load_digits
from torch import nn

TEST_RECORDS = 360


class Net(nn.Module):
    """A residual block with GroupNorm (BatchNorm mixes records and is refused) and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 12, 3, padding=1)
        self.norm, self.head = nn.GroupNorm(4, 12), nn.Linear(12 * 16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(records, 1, 8, 8) to (records, 10)."""
        x = torch.relu(self.norm(self.stem(images)))
        x = nn.functional.max_pool2d(x + torch.relu(self.inner(x)), 2)
        return self.head(x.flatten(1))


def build() -> Net:
    """The same start for everybody."""
    torch.manual_seed(0)
    return Net()


def smooth_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Your loss, one value per record."""
    return nn.functional.cross_entropy(outputs, labels, reduction="none", label_smoothing=0.05)


def records() -> tuple[torch.Tensor, torch.Tensor]:
    """All digits, as images."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)


def accuracy(model: nn.Module) -> float:
    """On the test records."""
    images, labels = records()
    with torch.no_grad():
        return float((model(images[:TEST_RECORDS]).argmax(1) == labels[:TEST_RECORDS]).double().mean())
