"""One seed, one market: the in-process grid gives the plain simulation's rounds to the micro-unit."""

import numpy as np
import pytest

import privmarket as pm
from privmarket.simulation._config import FederationConfig, Training
from privmarket.simulation._federation import run

SMALL = FederationConfig(clients=12, rounds=4, budget=5.0, training=Training(model="logistic"), seed=3)

CASES = {
    "plain": SMALL,
    "wallets, paced money, averaging": SMALL.replace(
        wallet=6.0, total_budget=20.0, training=Training(model="logistic", averaging=0.5)
    ),
    "types redrawn, all of the wallet at once": SMALL.replace(types="redrawn", wallet=9.0, wallet_policy="spend"),
    "sampled batches, P2 weights": SMALL.replace(
        training=Training(model="mlp", sampling_rate=0.3), aggregation="optimal", mechanism="csra"
    ),
}


def on_grid(config, folder, **extra):
    server, client = pm.flower.federation_server(config, **extra), pm.flower.federation_client(config, folder)
    return pm.flower.run_in_process(server, client, config.clients)


@pytest.mark.parametrize("case", CASES)
def test_the_grid_gives_the_simulation_to_the_bit(case, tmp_path):
    config = CASES[case]
    plain, flower = run(config), on_grid(config, tmp_path)
    assert flower.records == plain.records  # money in micro-units, ε, accuracy
    assert np.array_equal(flower.weights["weights"], plain.weights)


def test_another_seed_is_another_market(tmp_path):
    """The comparison above can fail."""
    assert on_grid(SMALL.replace(seed=4), tmp_path).records != run(SMALL).records


def test_the_result_says_what_everybody_got(tmp_path):
    result = on_grid(SMALL, tmp_path)
    assert sum(result.paid_micro.values()) == sum(r.spent_micro for r in result.records)
    assert set(result.epsilon_spent) == {c for r in result.records for c in r.sold_epsilon}
    assert result.certificate().epsilon <= max(result.epsilon_spent.values())
    for client in result.paid_micro:  # the client's own books say the same
        wallet = pm.privacy.WalletFile(tmp_path / f"client-{client}.jsonl", np.inf)
        statement = wallet.statement()
        assert sum(sale["paid_micro"] for sale in statement) == result.paid_micro[client]
        assert all(sale["released"] for sale in statement)
