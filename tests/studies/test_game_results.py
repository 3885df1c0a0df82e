"""The pages about the mean-field game follow from their kept files, and the files reach their bars."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from privmarket.meanfield import METHODS, DiscreteGame, ExplicitUpwind, Grid, Problem
from privmarket_studies import solver_comparison
from privmarket_studies.game_results import render_equilibrium, render_nash_gap, rendered
from privmarket_studies.reproduce.cells import weights_digest
from privmarket_studies.solver_comparison import SharedGame

FOLDER = Path(__file__).parents[2] / "docs" / "results"


def kept(page, name=None):
    return json.loads((FOLDER / page / f"{name or page}.json").read_text(encoding="utf-8"))


def solved_game():
    return [kept("equilibrium", name) for name in ("equilibrium", "methods", "mfglib")]


def test_the_pages_are_rendered_from_the_files():
    assert [path.name for path, text in rendered(FOLDER).items() if path.read_text(encoding="utf-8") != text] == []


def test_a_changed_figure_would_be_seen():
    facts, methods, shared = solved_game()
    facts["solved"]["earned"] *= 3.0
    assert render_equilibrium(facts, methods, shared) != (FOLDER / "equilibrium" / "README.md").read_text(
        encoding="utf-8"
    )
    report = kept("nash-gap")
    report["slopes"]["iid/mean-field-menu/hindsight/relative"]["slope"] = -0.123
    assert "−0.12 [" in render_nash_gap(report)


def test_the_solved_game_reaches_its_bars():
    facts = kept("equilibrium")
    assert facts["exploitability_on_fine_grid"] < 1e-3 < facts["exploitability_of_truth"]
    assert facts["price_difference_of_two_starts"] < 1e-6


def test_the_stand_in_belongs_to_the_weights_that_ship():
    for cell in kept("nash-gap")["proxy"].values():
        assert cell.get("weights") == weights_digest(cell["mechanism"])


def test_all_methods_and_mfglib_find_one_equilibrium():
    _, methods, shared = solved_game()
    assert {row["method"] for row in methods["rows"]} == set(METHODS)
    for row in methods["rows"]:
        assert row["exploitability"][-1] < 1e-4, (row["game"], row["method"])
        assert row["exploitability"][-1] < 0.05 * row["exploitability"][0]
    assert max(shared["same_algorithm_price_difference"].values()) < 1e-9
    assert shared["ours_by_their_score"] < 0.01 * shared["truth_by_their_score"]
    mirror = shared["runs"][0]
    assert mirror["price_difference"] < 0.01
    assert mirror["our_exploitability"] < 1e-3


class TestSharedGame:
    """Our game in MFGLib's form, checked without MFGLib: its arrays are our own steps, written out."""

    @pytest.fixture
    def shared(self):
        game = DiscreteGame(Problem.from_scenario(), ExplicitUpwind(), Grid(16, 12, 12))
        return SharedGame(game, np.linspace(0.0, 0.6, 5))

    def joint(self, shared, action):
        joint = np.zeros((16, 12, 5))
        joint[..., action] = shared.game.initial_mass[0]
        return torch.from_numpy(joint)

    def test_prices_and_moves_are_those_of_the_flow(self, shared):
        for action in (0, 2):
            flow = shared.game.flow(np.full((12, 1, 16, 12), shared.additions[action]))
            joint = self.joint(shared, action)
            assert shared.price(joint.numpy()) == pytest.approx(flow.price[0], rel=1e-9)
            chances = shared.transition(None, 0, joint).numpy()
            assert chances.min() >= 0
            np.testing.assert_allclose(chances.sum(axis=(0, 1)), 1.0, atol=1e-12)
            moved = np.einsum("abcd,cd->ab", chances[..., action], shared.game.initial_mass[0])
            np.testing.assert_allclose(moved, flow.mass[1, 0], atol=1e-12)

    def test_rewards_add_up_to_what_is_earned(self, shared):
        joint = self.joint(shared, 2)
        reward = (shared.reward(None, 0, joint) * joint).sum().item()
        market, level = shared.game.problem.market, shared.price(joint.numpy())
        mass, width = shared.game.initial_mass[0], shared.game.mesh.valuation_width
        valuation = shared.game.mesh.valuation
        report = valuation + shared.additions[2]
        gain = market.spend(report, level, width) - valuation * market.sold(report, level, width)
        # Within a cell those with the lowest valuations sell: they earn a little more than at its centre.
        expected = shared.game.mesh.step * (mass[:, 1:].sum(axis=1) @ gain)
        assert reward == pytest.approx(expected, rel=0.02)


def test_without_mfglib_the_comparison_is_left_as_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(solver_comparison, "find_spec", lambda name: None)
    monkeypatch.setattr(solver_comparison, "compare_methods", lambda place: place.write_text("measured"))
    (tmp_path / "equilibrium").mkdir()
    solver_comparison.main(tmp_path)
    assert "mfglib is not installed" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "equilibrium").iterdir()] == ["methods.json"]


def test_a_small_comparison_of_methods_resumes(monkeypatch, tmp_path):
    monkeypatch.setattr(solver_comparison, "games", lambda: {"small": Problem.from_scenario()})
    monkeypatch.setattr(solver_comparison, "AFTER", (1, 5))
    place = tmp_path / "methods.json"
    rows = solver_comparison.compare_methods(place, grid="16x12x12")["rows"]
    assert [row["method"] for row in rows] == list(METHODS)
    for row in rows:
        assert row["after"] == [1, 5]
        assert row["exploitability"][1] < row["exploitability"][0]
        assert 0 < row["seconds"][0] < row["seconds"][1]
    monkeypatch.setattr(solver_comparison, "solve", None)  # nothing is left to measure
    assert solver_comparison.compare_methods(place, grid="16x12x12")["rows"] == rows
