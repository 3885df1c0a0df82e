"""A federated cell: resumable, measured over the last five rounds, with what the market did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privmarket.simulation._config import FederationConfig, Training
from privmarket.simulation._federation import run as plain_run
from privmarket_studies.reproduce import federated

CONFIG = {
    "dataset": "digits",
    "alpha": 0.5,
    "mechanism": "mean-field-menu",
    "settings": {},
    "mode": "private",
    "clients": 10,
    "budget": 5.0,
    "rounds": 8,
    "wallet": None,
    "matched": None,
    "training": federated.training_settings("digits"),
}


def test_it_is_the_run_that_the_command_gives(tmp_path):
    found = federated.run(CONFIG, 3, tmp_path / "scratch")
    training = Training(**CONFIG["training"])
    plain = plain_run(
        FederationConfig("digits", 10, budget=5.0, rounds=8, evaluate_every=1, seed=3, training=training)
    )
    measured = [r.accuracy for r in plain.records]
    assert found["accuracy"] == pytest.approx(np.mean(measured[-5:]))
    assert found["spent"] == pytest.approx(plain.spent)
    assert list(found["curve"]) == [str(n) for n in range(1, 9)]
    assert found["underpaid_sales"] == 0.0


def test_a_killed_cell_goes_on_where_it_was(tmp_path, monkeypatch):
    whole = federated.run(CONFIG, 0, tmp_path / "whole")
    monkeypatch.setattr(federated, "_SAVE_SECONDS", 0.0)
    step, steps = federated.Federation.step, []

    def dies_in_round_five(self, state):
        steps.append(state.next_round)
        if state.next_round == 5 and len(steps) == 6:
            raise KeyboardInterrupt
        return step(self, state)

    monkeypatch.setattr(federated.Federation, "step", dies_in_round_five)
    with pytest.raises(KeyboardInterrupt):
        federated.run(CONFIG, 0, tmp_path / "scratch")
    again = federated.run(CONFIG, 0, tmp_path / "scratch")
    assert steps == [0, 1, 2, 3, 4, 5, 5, 6, 7]
    assert again == whole
    assert not (tmp_path / "scratch").exists()


def test_a_rule_that_underpays_is_seen(tmp_path: Path):
    found = federated.run({**CONFIG, "mechanism": "mfg-pricing:literal", "rounds": 1}, 0, tmp_path)
    assert found["underpaid_sales"] > 0.3
