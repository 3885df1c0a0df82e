"""The study of money and accuracy: reading a price off a curve, and kept results of the stated settings."""

import json
from pathlib import Path

import pytest

from privmarket.simulation._config import FederationConfig
from privmarket_studies.trust_front import caption, headline, part
from privmarket_studies.trust_results import (
    RESERVATIONS,
    by_seed,
    compared,
    money_for,
    paired_ratios,
    render,
    same_price,
)
from privmarket_studies.trust_runs import BARS, MONEY, RULES, curve_name, curves, missing
from privmarket_studies.trust_selection import RATES, Selection

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "trust"
CURVES = curves(Selection(FOLDER))
KEPT = (*BARS, *CURVES)
FILES = sorted((FOLDER / "runs").glob("*.json"))


def _points(*pairs):
    return [(paid, [{"spent": paid, "accuracy": accuracy}]) for paid, accuracy in pairs]


def test_money_for_a_target_is_read_between_points_on_a_logarithmic_scale():
    assert money_for(_points((1, 0.90), (100, 0.98)), 0.94) == pytest.approx(10.0)
    assert money_for(_points((5, 0.95), (100, 0.98)), 0.94) == 5
    assert money_for(_points((1, 0.5), (10, 0.6)), 0.94) is None


def test_runs_have_names_of_their_own_and_valid_settings():
    assert len({run.name for run in KEPT}) == len(KEPT)
    for run in KEPT:
        assert run.config(0).clients == 100
    assert all(run.config(0).trust == "aggregate" for run in BARS)
    assert {run.config(0).trust for run in CURVES} == {"aggregate", "local"}


def test_what_exists_is_not_made_again(tmp_path):
    assert len(list(missing(tmp_path, BARS))) == 3 * len(BARS)
    BARS[0].path(tmp_path, 1).write_text("{}")
    assert (BARS[0], 1) not in list(missing(tmp_path, BARS))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_kept_results_are_of_todays_settings(path):
    result = json.loads(path.read_text(encoding="utf-8"))
    config = FederationConfig.from_json(result["config"])
    name = path.stem.rpartition("-seed-")[0]
    run = next(run for run in KEPT if run.name == name)
    assert config == run.config(config.seed)
    assert config.measured_on == "test"
    assert result["spent"] <= config.budget * config.rounds
    if config.wallet is not None:
        assert result["largest_epsilon_spent"] <= config.wallet + 1e-9


def test_the_best_rate_on_validation_records_is_taken(tmp_path):
    trials = {f"ration {rate:g}": 0.9 - abs(rate - 8.0) / 100 for rate in RATES["aggregate"]}
    (tmp_path / "selection.json").write_text(json.dumps({"aggregate 3": trials}))
    chosen = Selection(tmp_path)
    assert chosen.rate("aggregate", "ration", 3) == 8.0
    assert chosen.rate("aggregate", "pac", 3) == 8.0  # decided by the rule most like it
    assert chosen.rate("aggregate", "graded-ration", 3) is None
    kept = Selection(FOLDER)
    assert all(kept.rate(trust, "ration", money) for trust in MONEY for money in MONEY[trust])
    assert {run.settings["mechanism"] for run in CURVES} <= {*RULES, "ration"}


def test_money_is_compared_seed_by_seed(tmp_path):
    # Seed 0 needs 10 and 20, seed 1 needs 1 and 4: ratios a half and a quarter.
    for rule, needs in (("graded-ration", (10, 1)), ("ration", (20, 4))):
        for seed, need in enumerate(needs):
            for money, accuracy in ((3, 0.92), (30, 0.96)):
                spent = need / 10 if money == 3 else need * 10
                found = {"spent": spent, "accuracy": accuracy, "config": {"seed": seed}}
                path = tmp_path / f"{curve_name('aggregate', rule, money)}-seed-{seed}.json"
                path.write_text(json.dumps(found))
    assert paired_ratios(tmp_path, "graded-ration", "ration") == pytest.approx([0.5, 0.25])
    assert by_seed([]) == {}


def _write_point(folder, trust, rule, money, spent, accuracy, **more):
    found = {"spent": spent, "accuracy": accuracy, "config": {"seed": 0, **more}, "sellers_per_round": 50.0}
    path = folder / f"{curve_name(trust, rule, money)}-seed-0.json"
    path.write_text(json.dumps(found))


def test_a_cheaper_price_counts_in_the_comparison(tmp_path):
    """The edge of a grid of prices must not make the other side look dear: 5 against 60, then against 30."""
    _write_point(tmp_path, "aggregate", "ration-0.5", 10, 5.0, 0.95, honest_share=2 / 3)
    _write_point(tmp_path, "local", "ration-0.5", 100, 60.0, 0.95)
    assert compared(tmp_path).ratio == pytest.approx(5 / 60)
    same = same_price(tmp_path)
    assert (same.aggregate, same.local, same.honest) == (5.0, 60.0, 34)
    _write_point(tmp_path, "local", "ration-0.4", 90, 30.0, 0.95)
    assert compared(tmp_path).ratio == pytest.approx(5 / 30)
    assert part(compared(tmp_path).ratio) == "a sixth"
    _write_point(tmp_path, "local", "ration-0.4", 90, 30.0, 0.93)
    assert compared(tmp_path).ratio == pytest.approx(5 / 60)


def test_the_reservations_count_trials_and_seeds_as_they_are():
    trials = json.loads((FOLDER / "selection.json").read_text(encoding="utf-8"))
    made = {trust: sum(len(one) for name, one in trials.items() if name.startswith(trust)) for trust in MONEY}
    seeds = {
        trust: [len({path.stem for path in FILES if path.stem.startswith(f"{name}-seed-")}) for name in names]
        for trust, names in (
            ("aggregate", [curve_name("aggregate", "graded-ration", 5), curve_name("aggregate", "ration", 5)]),
            ("local", [curve_name("local", "ration-0.5", 100), curve_name("local", "ration-0.4", 90)]),
        )
    }
    assert f"{made['aggregate']} trials and 5 to 6 seeds" in RESERVATIONS[2]
    assert f"{made['local']} trials and 3 seeds" in RESERVATIONS[2]
    assert seeds == {"aggregate": [5, 6], "local": [3, 3]}


def test_the_page_is_rendered_from_the_files():
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == render(FOLDER)


@pytest.mark.parametrize(("page", "sentence"), [("README.md", caption), ("README.md", headline)])
def test_the_front_pages_say_what_the_runs_give(page, sentence):
    front = " ".join((FOLDER.parents[2] / page).read_text(encoding="utf-8").split())
    assert sentence(FOLDER) in front


def test_runs_made_again_agree_with_those_kept():
    """Today's code gives what was kept; a page of one that does not would say so."""
    for name, accuracy in json.loads((FOLDER / "again.json").read_text(encoding="utf-8")).items():
        kept = json.loads((FOLDER / "runs" / f"{name}.json").read_text(encoding="utf-8"))["accuracy"]
        assert accuracy == pytest.approx(kept, abs=0.002)
        assert f"{name} {accuracy:.2%} (kept: {kept:.2%})" in (FOLDER / "README.md").read_text(encoding="utf-8")
