"""What a client's owner reads in the log where client, server and files do not fit."""

import logging

import pytest
import torch
from torch import nn

import privmarket as pm
from tests.unit.flower.guarded import SITE, ask, plain_app, policy
from tests.unit.flower.toy import Wire, client, server


def plain(outputs=2):
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, outputs))


def normalised():
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def records(context=None):
    return torch.randn(60, 5), torch.zeros(60, dtype=torch.long)


def sold(model, caplog, served=plain, **options):
    """The outcome of one round, and what the client's log says."""
    options = {"wallet": "unlimited", **options}
    seller = pm.flower.client_app(model=model, data=records, valuation=0.1, data_size=60, **options)
    with caplog.at_level(logging.WARNING):
        result = pm.flower.run_in_process(pm.flower.server_app(model=served, rounds=1, budget=1.0), seller, 1)
    return result.records[0].dropped.get("0", "") + result.declined.get("0", "")


def test_a_layer_in_which_records_mix_is_named_although_its_arrays_do_not_fit_either(caplog):
    assert sold(normalised, caplog).startswith("refused: model")
    assert "BatchNorm" in caplog.text


def test_arrays_that_differ_are_named(caplog):
    assert sold(lambda: plain(3), caplog).startswith("refused: weights")
    assert "2.weight (2, 4) (the client's (3, 4))" in caplog.text
    assert "must build the same model" in caplog.text


def test_missing_persons_name_the_door(caplog):
    rules = pm.privacy.SellerPolicy(unit="person", epsilon_lifetime=float("inf"))
    assert sold(plain, caplog, policy=rules).startswith("refused: records")
    assert "(inputs, labels, persons)" in caplog.text
    assert "ClientRecords" not in caplog.text


@pytest.fixture
def nowhere(tmp_path):
    """A place for wallets where nothing can be written, also by root: below a file."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "wallet-{client}.jsonl"


def test_a_wallet_that_cannot_be_written_is_a_matter_of_the_guards_setup(nowhere, tmp_path, caplog):
    text = SITE.replace("wallet-{client}.jsonl", str(nowhere))
    assert ask(plain_app([pm.flower.GuardMod(policy=policy(tmp_path, text))])).error.reason.startswith(
        "privmarket guard: setup"
    )
    assert "cannot be written" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_wallet_that_cannot_be_written_sells_nothing_and_says_so_in_a_line(nowhere, caplog):
    wallet = pm.privacy.WalletFile(nowhere, 8.0)
    grid = Wire(client(wallet=lambda context: wallet))
    with caplog.at_level(logging.WARNING):
        result = pm.flower.run_in_process(server(rounds=1), grid.client_app, 6, grid=grid)
    assert all(why.startswith("wallet") for why in result.declined.values())
    assert "cannot be written" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_wallet_that_is_short_promises_no_more_than_it_keeps(tmp_path, caplog):
    """Smaller releases go on: a priced evaluation after the last update."""
    text = SITE.replace("6.0", "1.1") + "[guard.evaluate]\naccuracy = { range = [0, 1], epsilon = 0.05 }\n"
    app = plain_app([pm.flower.GuardMod(policy=policy(tmp_path, text))])
    assert not ask(app).has_error()
    assert ask(app).has_error()
    assert not ask(app, "evaluate").has_error()
    assert "smaller ones as long as they fit" in caplog.text
    assert "takes part no more" not in caplog.text
