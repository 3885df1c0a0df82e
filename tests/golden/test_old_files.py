"""Files that earlier versions wrote are read as they were meant: a checkpoint in mid-run, a client's wallet.

`old_files` were written by commit e7818cb, before `privmarket.rounds` existed.
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from privmarket.federated.checkpoint import load_checkpoint
from privmarket.federated.config import FederationConfig, Training
from privmarket.federated.simulation import run
from privmarket.privacy.gaussian import mu_of
from privmarket.privacy.wallet import Wallets
from privmarket.privacy.wallet_file import WalletFile

OLD = Path(__file__).parent / "old_files"
CONFIG = FederationConfig(
    dataset="digits",
    clients=12,
    rounds=6,
    budget=8.0,
    evaluate_every=2,
    seed=3,
    wallet=4.0,
    training=Training(model="logistic", final_rate=0.1, averaging=0.8),
)


def test_an_old_checkpoint_goes_on_where_it_was(tmp_path):
    path = tmp_path / "run.ckpt"
    shutil.copy(OLD / "digits-wallet.ckpt", path)
    saved = load_checkpoint(path).data
    assert saved["next_round"] == 4
    resumed = run(CONFIG, checkpoint=path)
    assert [asdict(record) for record in resumed.records[:4]] == saved["records"]
    assert len(resumed.records) == len(resumed.wallets.history) == 6
    # What was sold then is charged as it was then, and the caps hold over both versions.
    assert resumed.wallets.history[:4] == Wallets.from_json(saved["wallets"]).history
    assert (resumed.wallets.spent <= resumed.wallets.capacity * (1 + 1e-9)).all()


def test_an_old_wallet_file_has_spent_what_it_says(tmp_path):
    path = tmp_path / "wallet.jsonl"
    shutil.copy(OLD / "wallet.jsonl", path)
    wallet, before = WalletFile(path, 4.0), path.read_bytes()
    sales = wallet.statement()
    assert len(sales) == 6
    assert all(sale["released"] and sale["paid_micro"] == 894_841 for sale in sales)
    noise = [json.loads(line)["event"]["noise_multiplier"] for line in before.splitlines() if b"reserved" in line]
    # Full-batch Gaussian releases: what is spent is the sum of 1/σ².
    capacity = float(mu_of(4.0, 1e-5)) ** 2
    with wallet.open() as opened:
        assert opened.remaining_share == pytest.approx(1 - sum(s**-2 for s in noise) / capacity, abs=1e-9)
    assert path.read_bytes() == before
