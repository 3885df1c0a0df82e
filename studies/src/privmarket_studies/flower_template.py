"""The network of Flower's PyTorch template on MNIST, as a stranger would put it on the market: with defaults.

Five clients of 480 records each, 10 rounds, a wallet of ε = 8; clients and initial weights differ from run to run.
The settings were chosen on Fashion-MNIST and on scikit-learn's digits, never on these records. Test records are
read once, at the end. The noise is the operating system's, so that figures differ a little from time to time.

    python -m privmarket_studies.flower_template docs/results/flower/template.json [RUNS]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import privmarket as pm
from privmarket import tasks
from privmarket._files import write_atomically

CLIENTS = 5
RECORDS = 480
ROUNDS = 10
WALLET = 8.0
BUDGET = 15.0
RUNS = 3


class Net(nn.Module):
    """Two convolutions and three linear layers: the template's network for one channel of 28 × 28."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(records, 1, 28, 28) to (records, 10)."""
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = torch.relu(self.fc1(x.flatten(1)))
        outputs: Tensor = self.fc3(torch.relu(self.fc2(x)))
        return outputs


def pixels(images: Any) -> Tensor:
    """Images with pixels between -1 and 1, as the template scales them; the range is that of the files."""
    plain = torch.tensor(np.asarray(images), dtype=torch.float32).reshape(-1, 1, 28, 28)
    return 2.0 * (plain - plain.min()) / (plain.max() - plain.min()) - 1.0


def one_run(seed: int, wallets: Path) -> dict[str, Any]:
    """One run with its own clients: accuracy, the largest lifetime ε, money."""
    data = tasks.load_dataset("mnist")
    order = np.random.default_rng(seed).permutation(len(data.train_labels))[: CLIENTS * RECORDS]
    images = pixels(data.train_images)[order]
    labels = torch.tensor(np.asarray(data.train_labels)[order]).long()
    torch.manual_seed(seed)
    first = Net()

    market = pm.flower.WalletMod(valuation=0.3, data_size=RECORDS, wallet=WALLET, noise="records")
    app = ClientApp(mods=[market])
    market.answer_bids(app)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = Net()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        start = RECORDS * int(context.node_config["partition-id"])
        mine = TensorDataset(images[start : start + RECORDS], labels[start : start + RECORDS])
        pm.flower.train_privately(message, context, model, DataLoader(mine, batch_size=32, shuffle=True))
        metrics = MetricRecord({"num-examples": RECORDS})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    grid = pm.flower.InProcessGrid(app, CLIENTS)
    for context in grid.contexts.values():
        context.node_config["wallets"] = str(wallets)
    strategy = pm.flower.AuctionStrategy(FedAvg(fraction_evaluate=0.0), model=Net, budget=BUDGET)
    strategy.start(grid, ArrayRecord(first.state_dict()), num_rounds=ROUNDS)
    result = strategy.result
    assert result is not None
    with torch.no_grad():
        found = result.model(pixels(data.test_images)).argmax(1).numpy()
    return {
        "seed": seed,
        "accuracy": float((found == np.asarray(data.test_labels)).mean()),
        "lifetime_epsilon": max(result.epsilon_spent.values()),
        "paid": sum(result.paid_micro.values()) / 1_000_000,
    }


def measure(runs: int = RUNS) -> dict[str, Any]:
    """All runs, and what they share."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = []
    for seed in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            found.append(one_run(seed, Path(folder)))
    return {
        "clients": CLIENTS,
        "records": RECORDS,
        "rounds": ROUNDS,
        "wallet": WALLET,
        "parameters": sum(p.numel() for p in Net().parameters()),
        "runs": found,
    }


if __name__ == "__main__":
    wanted = int(sys.argv[2]) if len(sys.argv) > 2 else RUNS
    write_atomically(Path(sys.argv[1]), json.dumps(measure(wanted), indent=1) + "\n")
