"""A seller whose policy asks another price under each trust: what it sells for, and what it can show later."""

import json

import numpy as np
import pytest
from torch import nn
from typer.testing import CliRunner

import privmarket as pm
from privmarket.cli import app as command_line

POLICY = """
epsilon_per_sale = 1.0
trust = ["local", "aggregate"]
minimum_cohort = 4
register = "none"
price = { local = 0.5, aggregate = 0.1 }
wallet = "wallet-{client}.jsonl"
"""
CLIENTS, ROUNDS = 4, 1


def records(context):
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    return rng.normal(size=(20, 5)).astype("float32"), rng.integers(0, 3, 20)


def build_model():
    return nn.Sequential(nn.Linear(5, 3))


def market(trust, unit_price):
    server = pm.flower.server_app(
        model=build_model,
        mechanism="ration",
        mechanism_settings={"unit_price": unit_price},
        budget=2.0,
        rounds=ROUNDS,
        clip_norm=1.0,
        expected_batch=20.0,
        trust=trust,
    )
    client = pm.flower.client_app(
        model=build_model,
        data=records,
        valuation=9.0,  # the policy's price goes before it
        epsilon=1.0,
        data_size=20.0,
        policy="seller.toml",
        secure_aggregation=trust == "aggregate",
    )
    return pm.flower.run_in_process(server, client, CLIENTS)


@pytest.mark.parametrize(
    ("trust", "unit_price", "sellers"),
    [("local", 0.6, CLIENTS), ("local", 0.3, 0), ("aggregate", 0.3, CLIENTS), ("aggregate", 0.05, 0)],
)
def test_the_price_of_the_rounds_trust_is_asked(trust, unit_price, sellers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seller.toml").write_text(POLICY)
    (record,) = market(trust, unit_price).records
    assert record.sellers == sellers
    assert record.bidders == CLIENTS
    for client, micro in record.paid_micro.items():
        assert micro == pytest.approx(1e6 * unit_price * record.sold_epsilon[client], abs=2)
        shown = CliRunner().invoke(command_line, ["seller", "statement", f"wallet-{client}.jsonl", "--json"])
        (sale,) = json.loads(shown.stdout)["sales"]
        assert (sale["trust"], sale["paid_micro"], sale["promise"]["trust"]) == (trust, micro, trust)
