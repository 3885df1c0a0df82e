"""Digests that leave a client beside its updates: each must confirm no guess about what it is a digest of.

The subjects kept broken on purpose are digests of the bare bytes.
"""

import hashlib
from contextlib import contextmanager

import numpy as np
import pytest

import privmarket as pm
from privmarket.broker._errors import BrokerError
from privmarket.cli._seller_at_broker import dataset_digest
from privmarket.flower import _wire as wire
from privmarket.privacy import _noise as integer_noise
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._noise import NoiseSource
from tests.unit.flower.toy import Wire, train

AGES = range(120)


def bare(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def ages(folder, last):
    folder.mkdir(exist_ok=True)
    file = folder / "records.csv"
    file.write_text("".join(f"{age}\n" for age in (34, 71, 58, last)))
    return file


@pytest.mark.parametrize(("digest", "confirms"), [(bare, True), (dataset_digest, False)])
def test_an_attested_data_set_confirms_no_guess_about_a_record(digest, confirms, tmp_path):
    """Somebody who knows all records but the last tries out all that it may be."""
    attested = digest(ages(tmp_path / "seller", 42))
    found = [age for age in AGES if attested in (bare(file := ages(tmp_path / str(age), age)), digest(file))]
    assert found == ([42] if confirms else [])


def test_a_data_set_and_its_salt_are_attested_once(tmp_path):
    file = ages(tmp_path, 42)
    first = dataset_digest(file)
    salt = tmp_path / "records.csv.salt"
    assert salt.stat().st_mode & 0o077 == 0
    assert dataset_digest(file) == first
    copy = ages(tmp_path / "copy", 42)
    (copy.parent / salt.name).write_text(salt.read_text())
    assert dataset_digest(copy) == first
    assert dataset_digest(ages(tmp_path, 43)) != first
    salt.write_text("")
    with pytest.raises(BrokerError, match="no salt"):
        dataset_digest(file)


class Claims:
    """A broker that remembers what sellers claim."""

    def __init__(self):
        self.made = []

    def claim_delivery(self, round_id, sha256):
        self.made.append(sha256)


@pytest.mark.parametrize("salted", [False, True])
def test_a_claim_for_a_secure_sum_does_not_uncover_the_share(salted, monkeypatch):
    """A share has 1/√h of the noise that was sold: of one number, a buyer tries out the 2¹⁷ likely ones."""
    if not salted:
        monkeypatch.setattr("privmarket.flower._seller.os.urandom", lambda size: b"")
    broker = Claims()
    app = pm.flower.client_app(
        train, valuation=0.1, wallet="unlimited", broker=contextmanager(lambda context: iter([broker]))
    )
    (context,) = Wire(app, 1).contexts.values()
    share = {"w": 1000.0 + integer_noise.draw_integers(NoiseSource.from_seed(4), 1, 2).astype(np.float64)}
    sale = wire.Sale("r", 0, 0.5, 1, ReleaseFamily(), 1.0, 1.0, 1.0, trust="aggregate", sellers=9, levels=2)
    app.seller.close(sale, share, context)
    head = f"w float64 {(1,)}\n".encode()
    salt = b"" if salted else b" uint8 (0,)\n"
    assert np.abs(share["w"]) < 2**16
    found = [
        guess
        for guess in range(-(2**16), 2**16)
        if hashlib.sha256(salt + head + np.float64(guess).tobytes()).hexdigest() in broker.made
    ]
    assert found == ([] if salted else [int(share["w"][0])])
