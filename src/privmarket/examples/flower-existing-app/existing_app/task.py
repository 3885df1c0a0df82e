"""Model and data, as the app had them: a small convolutional network on scikit-learn's handwritten digits."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

TEST_RECORDS = 360


class Net(nn.Module):
    """A convolution and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.head = nn.Linear(16 * 16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(records, 1, 8, 8) to (records, 10)."""
        return self.head(nn.functional.max_pool2d(torch.relu(self.conv(images)), 2).flatten(1))


def records() -> list[dict[str, torch.Tensor]]:
    """All digits, in a fixed order."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return [{"img": image, "label": label} for image, label in zip(pixels, torch.tensor(labels), strict=True)]


def load_data(partition: int, partitions: int, batch_size: int) -> DataLoader:
    """A client's records, in shuffled batches."""
    return DataLoader(records()[TEST_RECORDS + partition :: partitions], batch_size=batch_size, shuffle=True)


def load_test_data() -> DataLoader:
    """The records on which the server measures."""
    return DataLoader(records()[:TEST_RECORDS], batch_size=120)


def train(model: nn.Module, loader: DataLoader, rate: float, device: torch.device) -> float:
    """One pass over the records, without any protection; returns the mean loss."""
    model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    total = 0.0
    for batch in loader:
        optimizer.zero_grad()
        outputs = model(batch["img"].to(device))
        loss = nn.functional.cross_entropy(outputs, batch["label"].to(device))
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def test(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    """The share of records that the model gets right."""
    model.to(device).eval()
    correct = 0
    with torch.no_grad():
        for batch in loader:
            found = model(batch["img"].to(device)).argmax(1)
            correct += int((found == batch["label"].to(device)).sum())
    return correct / len(loader.dataset)
