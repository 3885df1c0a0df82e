"""What money buys: gains, ε under several assumptions, and choices that only public records make."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from privmarket.privacy._gaussian import epsilon_of, mu_of
from privmarket.simulation import _own_records
from privmarket.simulation._plan import PLANNED_RULES
from privmarket_studies.reproduce.cache import Record
from privmarket_studies.reproduce.cells import Cell, Kind, Scale
from privmarket_studies.reproduce.document import NOT_COMPUTED, Results
from privmarket_studies.reproduce.report import markdown
from privmarket_studies.what_money_buys import cells as study, copies, noise, page, runs, sceptic

ROUNDS = 3


@pytest.fixture(scope="module", autouse=True)
def _coarse():
    """Two penalties, two folds and one world instead of many: choices are quick, and as much choices as before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_own_records, "_PENALTIES", (1e-2, 1e-1))
        patch.setattr(_own_records, "_FOLDS", 2)
        patch.setattr(runs, "WORLDS", 1)
        yield


@pytest.fixture(scope="module")
def small():
    """A market of few rounds on scikit-learn's digits."""
    return replace(study.DIGITS, rounds=(ROUNDS,))


@pytest.fixture(scope="module")
def bought(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("money") / "scratch" / "cell"
    return {trust: runs.run(small.capped(1.0, trust=trust), 1, folder) for trust in ("aggregate", "local")}


def test_a_gain_is_over_the_best_model_of_the_own_records(bought):
    for result in bought.values():
        assert result["before"] == max(result["before_tried"].values())
        assert result["gain"] == pytest.approx(result["score"] - result["before"])


def test_epsilon_grows_with_the_number_that_collude(bought):
    epsilon = bought["aggregate"]["epsilon"]
    assert epsilon["1"] < epsilon["0.667"] < epsilon["0.5"] < epsilon["collude"]
    assert epsilon["0.667"] <= 1.0
    assert len(set(bought["local"]["epsilon"].values())) == 1


def test_epsilon_at_other_shares_is_that_of_less_noise(bought):
    """Half instead of two thirds of 20 honest: 10 instead of 14 parts of the noise, by the exact Gaussian curve."""
    epsilon = bought["aggregate"]["epsilon"]
    expected = float(epsilon_of(mu_of(epsilon["0.667"], 1e-5) * math.sqrt(14 / 10), 1e-5))
    # The accountant is an upper bound of a few per cent.
    assert epsilon["0.5"] == pytest.approx(expected, rel=0.05)


def test_sellers_who_price_the_worst_case_cost_more(bought):
    assert bought["aggregate"]["spent_if_worst_case"] > 2 * bought["aggregate"]["spent"]
    assert bought["local"]["spent_if_worst_case"] == bought["local"]["spent"]


@pytest.mark.parametrize(("chosen", "used"), [("precision", "precision"), (None, "epsilon-squared")])
def test_a_run_weighs_updates_as_was_chosen(small, tmp_path, monkeypatch, chosen, used):
    met = []

    def made(market, **given):
        met.append(market.aggregation)
        return federation(market, **given)

    federation = runs.Federation
    monkeypatch.setattr(runs, "Federation", made)
    monkeypatch.setattr(runs, "chosen_for", lambda *_: choice)
    training = runs.asdict(runs.Training(model="own", server_rate=0.1))
    choice = runs.Chosen("ration", {"unit_price": 1.0}, ROUNDS, training, "none", {}, 0.0, aggregation=chosen)
    found = runs.run(small.capped(1.0, trust="local"), 1, tmp_path / "scratch" / "cell")
    assert met == [used]
    assert found["chosen"]["aggregation"] == chosen


def test_private_and_test_records_choose_nothing(small, tmp_path):
    """The same choice from a task whose private and test labels are shuffled; public ones do make a difference."""
    config = small.capped(1.0)
    task = runs.task_of(config, runs.SEARCH_SEED)
    rng = np.random.default_rng(0)

    def shuffled(records):
        return replace(records, labels=rng.permutation(records.labels))

    def choice(of):
        runs._LAST_WORLDS.clear()
        found = runs.choose(config, of, runs.SEARCH_SEED, tmp_path)
        return found.training, found.statistics, found.tried

    usual = choice(task)
    assert choice(task.replace(private=shuffled(task.private), test=shuffled(task.test))) == usual
    assert choice(task.replace(public=shuffled(task.public))) != usual


def test_each_seed_of_a_table_chooses_on_its_own_public_rows(monkeypatch, tmp_path):
    """Rows of a table that are the buyer's with one seed are clients' and test records with another."""
    asked = []

    def choose(config, task, seed, folder):
        asked.append((task, seed))
        return runs.Chosen("ration", {}, 5, {}, "none", {}, 0.0)

    monkeypatch.setattr(runs, "choose", choose)
    monkeypatch.setattr(runs, "_same_task", lambda config, seed: (config["task"], seed))
    for market in (study.STRIKES, study.MNIST):
        for seed in (1, 2, 1):
            runs.chosen_for(market.capped(1.0), seed, tmp_path)
    own, usual = ("bird-strikes", "mnist")
    assert asked == [((own, 1), 1), ((own, 2), 2), ((usual, 0), 0)], "each once, and then kept"
    tables = [cell for cell in study.cells(Scale()) if cell.kind == study.KIND and "alpha" not in cell.config]
    fixed = [cell for cell in tables if "choose" not in cell.config]
    assert {cell.config["task"] for cell in fixed} == {"benefits", "insured"}, "first looks, as they were fixed"


def test_what_other_code_chose_is_not_taken_over(monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr(
        runs, "choose", lambda *_: made.append(1) or runs.Chosen("ration", {}, 5, {}, "none", {}, 0.0)
    )
    monkeypatch.setattr(runs, "_same_task", lambda *_: None)
    for revision in (1, 1, 2):
        monkeypatch.setattr(runs, "kind_of", lambda _, revision=revision: Kind("", revision))
        runs.chosen_for(study.MNIST.capped(1.0), 1, tmp_path)
    assert len(made) == 2


@pytest.mark.parametrize(
    ("points", "money"),
    [
        ([(1.0, 0.1), (10.0, 0.3), (100.0, 0.7)], math.sqrt(1000.0)),
        ([(5.0, 0.6), (50.0, 0.9)], 5.0),
        ([(5.0, 0.6), (20.0, 0.1), (50.0, 0.9)], 5.0),
        ([(5.0, 0.1), (50.0, 0.4)], None),
        ([], None),
    ],
)
def test_money_is_read_between_points_on_a_logarithmic_scale(points, money):
    found = runs.money_that_buys(0.5, points)
    assert found == (None if money is None else pytest.approx(money))


@pytest.mark.parametrize(
    ("points", "money"),
    [
        ([(1.0, 0.1), (10.0, 0.3), (100.0, 0.7)], math.sqrt(1000.0)),
        ([(5.0, 0.6), (50.0, 0.9)], 5.0),
        ([(1.0, 0.6), (10.0, 0.3), (100.0, 0.7)], math.sqrt(1000.0)),
        ([(1.0, 0.6), (10.0, 0.3)], None),
        ([], None),
    ],
)
def test_money_from_which_on_a_share_is_kept(points, money):
    found = runs.money_that_keeps(0.5, points)
    assert found == (None if money is None else pytest.approx(money))


def test_a_share_of_a_distance_has_the_interval_of_a_ratio():
    gained = {1: 0.9, 2: 2.1, 3: 2.7, 4: 4.4}
    distance = {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}
    residuals = np.array([0.9, 2.1, 2.7, 4.4]) - 1.01 * np.array([1.0, 2.0, 3.0, 4.0])
    half = 3.1824 * residuals.std(ddof=1) / 2 / 2.5  # t(3) at 97.5 %
    assert page.share_text(gained, distance) == f"101% [{1.01 - half:.0%}, {1.01 + half:.0%}]"
    assert page.share_text({5: 1.0}, {5: 2.0}) == "50% (one seed)"
    assert "cannot tell from 0" in page.share_text({1: 0.1, 2: 0.2}, {1: -1.0, 2: 2.0})


def test_honest_sellers_are_those_of_one_secure_sum():
    assert page.root_honest(100) == pytest.approx(math.sqrt(67))
    assert page.root_honest(1000) < math.sqrt(400), "a thousand sellers are dealt to several sums"


def test_the_page_says_what_is_not_computed(bought):
    cell = Cell(study.KIND, study.DIGITS.capped(1.0), 1)
    record = Record(cell, cell.depends_on, bought["aggregate"], None, 1.0, {})
    text = markdown(page.render(Results([record])))
    assert "(one seed)" in text
    assert NOT_COMPUTED in text
    listed = {one.slot for one in study.cells(Scale(quick=True))}
    assert f"Of {len(listed)} runs {len(listed) - 1} are not computed" in text


def test_every_listed_run_has_a_seed_that_chose_nothing():
    for scale in (Scale(), Scale(quick=True)):
        assert all(cell.seed != runs.SEARCH_SEED for cell in study.cells(scale))


def test_first_looks_are_told_by_their_runs():
    """The gains as fixed at first stand in the text; without runs it says so."""
    market = study.BENEFITS
    records = [
        Record(
            cell := Cell(study.KIND, study.as_fixed(market.capped(wallet)), seed),
            cell.depends_on,
            {"score": 0.7, "score_name": "auc", "before": 0.6, "gain": 0.1 * wallet + 0.01 * seed},
            None,
            1.0,
            {},
        )
        for wallet in study.WALLETS
        for seed in (1, 2, 3)
    ]
    found = page.Found(Results(records))
    text = page.first_look_text(found).markdown
    for wallet in study.WALLETS:
        assert page.gain_text(found.runs(study.as_fixed(market.capped(wallet)))) in text
    assert text.count(NOT_COMPUTED) == 2, "insurance"
    listed = [cell for cell in study.cells(Scale()) if cell.config.get("task") in ("benefits", "insured")]
    fixed = {cell.slot for cell in listed if cell.kind == study.KIND and "choose" not in cell.config}
    assert len(fixed) == 40, "two tables, two lifetime ε, ten seeds, as they were fixed before any score"


def test_a_person_is_compared_with_a_record_by_its_runs():
    """Gains, their difference seed by seed, and how many persons there are; without runs the text says so."""
    gained = {("record", 1.0): 0.08, ("person", 1.0): 0.05, ("record", 3.0): 0.1, ("person", 3.0): 0.09}
    records = []
    for wallet in study.WALLETS:
        for unit, config in study.person_configs(study.WAGES, wallet).items():
            for seed in (1, 2, 3):
                gain = gained[unit, wallet] + 0.001 * seed * (1 + wallet * (unit == "person"))
                result = {"score": 0.2 + gain, "score_name": "r2", "before": 0.2, "gain": gain}
                result["units"] = {"record": 3200, "person": 1000}[unit]
                result["epsilon"] = {"0.667": wallet - 0.01 * seed, "collude": 3 * wallet}
                cell = Cell(study.KIND, config, seed)
                records.append(Record(cell, cell.depends_on, result, None, 1.0, {}))
    for seed in (1, 2, 3):
        cell = Cell(study.POOLED, study.WAGES.pooled(), seed)
        result = {"score": 0.3, "score_name": "r2", "before": 0.2}
        records.append(Record(cell, cell.depends_on, result, None, 1.0, {}))
    found = page.Found(Results(records))
    text, table = page.person_text(found).markdown, page.person_table(found)
    assert [row[1] for row in table.rows] == ["record", "person"] * 2
    assert table.rows[1][6].startswith("-0.0280 ["), "-0.03 and 0.001 a seed"
    assert table.rows[3][6].startswith("-0.0040 [")
    assert all(row[6] in text for row in table.rows[1::2])
    assert table.rows[0][5].startswith("82% [")
    assert table.rows[0][7] == "0.99 (3.00)"
    for words in (
        "an R² of 0.2000",
        "it is 0.3000",
        "hold 3,200 records",
        "in 2.5 industries",
        "1,000 persons",
        "3.2 records",
    ):
        assert words in text
    assert NOT_COMPUTED in page.person_text(page.Found(Results([]))).markdown
    listed = {cell.slot for cell in study.cells(Scale()) if cell.config.get("task") == "wages"}
    assert len(listed) == 50
    missing = page.missing_text(found)[1].markdown
    assert "- wages, 360 public, ε ≤ 1, aggregate trust, for a person: 7 not computed" in missing


def test_noise_is_that_of_the_closed_forms():
    sold = np.full(9, 1.0)
    mu = float(mu_of(1.0, 1e-5))
    assert noise.local_noise(sold) == pytest.approx(1 / (3 * mu), rel=1e-3)
    assert noise.aggregate_noise(sold) == pytest.approx(math.sqrt(9 / 6) / (9 * mu), rel=1e-3)


def test_at_one_price_money_falls_by_about_the_root_of_the_honest_sellers():
    """Small sales of equal size: μ grows in proportion to ε, so money and noise trade one for one."""
    found = noise.run({"clients": 300, "money": 0.3, "scenario": "uniform"}, 1, None)
    saved = found["local_ration"] / found["aggregate_at_local_price"]
    sellers = 300 * found["local_price"]
    assert 0.7 < saved / math.sqrt(2 / 3 * sellers) < 1.5
    assert found["local"] < found["local_ration"], "the rule for local noise is cheaper than any ration"
    assert noise.PRICES[0] < found["aggregate_price"] < noise.PRICES[-1]
    assert noise.PRICES[0] < found["local_price"] < noise.PRICES[-1]


def test_the_front_page_of_the_site_states_the_figure_s_epsilon():
    docs = Path(__file__).parents[2] / "docs"
    told = " ".join((docs / "index.md").read_text(encoding="utf-8").split())
    shown = (docs / "results/what-money-buys/README.md").read_text(encoding="utf-8")
    honest, collude, local, seeds = re.search(
        r"to (\S+), by the point, if two thirds of a round's sellers are honest "
        r"\(\S+ to (\S+) if all others collude\); local trust: lifetime ε of who sold most "
        r"\S+ to (\S+), by the point \(δ = 1e-5\)\. Mean and 95 % interval over (\d+) seeds",
        shown,
    ).groups()
    assert f"a lifetime ε of at most {float(honest):g} if the server sees only sums" in told
    assert f"({float(collude):g} if all others collude)" in told
    assert f"and at most {float(local):g} if it sees every update" in told
    assert f"mean and 95 % interval over {seeds} seeds" in told


def test_another_library_fits_the_own_records_alone(monkeypatch):
    """Own labels the other way round give models that are wrong; the clients' labels make no difference."""
    config = study.STRIKES.pooled()
    task = runs.task_of(config, 1)
    rng = np.random.default_rng(0)

    def area(of):
        monkeypatch.setattr(sceptic, "task_of", lambda *_: of)
        monkeypatch.setattr(sceptic, "_kernel_ridge", lambda _: sceptic._ridge()[::5])
        return sceptic.run(config, 1, None)["auc"]

    usual = area(task)
    assert min(usual.values()) > 0.65
    others = replace(task.private, labels=rng.permutation(task.private.labels))
    assert area(task.replace(private=others)) == usual
    assert max(area(task.replace(public=replace(task.public, labels=1 - task.public.labels))).values()) < 0.35


def test_a_better_free_baseline_leaves_less_of_the_gain():
    records = [
        Record(
            cell := Cell(study.KIND, study.STRIKES.capped(wallet), seed),
            cell.depends_on,
            {"score": 0.8 + 0.01 * seed, "score_name": "auc", "before": 0.7, "gain": 0.1 + 0.01 * seed},
            None,
            1.0,
            {},
        )
        for wallet in study.WALLETS
        for seed in (1, 2)
    ]
    records += [
        Record(
            cell := Cell(study.SCEPTIC, study.STRIKES.pooled(), seed),
            cell.depends_on,
            {"auc": {"a": 0.65, "b": 0.75}},
            None,
            1.0,
            {},
        )
        for seed in (1, 2)
    ]
    rows = page.sceptic_table(page.Found(Results(records))).rows
    assert [row[1] for row in rows] == ["70.00", "65.00", "75.00", "75.00"]
    assert [row[2].split()[0] for row in rows] == ["+11.50", "+16.50", "+6.50", "+6.50"]


def test_only_searched_cells_depend_on_which_rules_a_plan_tries():
    listed = study.cells(Scale())
    searched = [cell for cell in listed if cell.config.get("rule") == "plan"]
    assert searched
    assert all(cell.config["tries"] == list(PLANNED_RULES) for cell in searched)
    assert not any("tries" in cell.config for cell in listed if cell.config.get("rule") != "plan")


def test_copies_of_a_held_out_picture_are_held_out():
    labels = np.arange(30) % 3
    fold = copies.folds_of(labels, 1)
    everyone = np.tile(np.arange(30), 5)
    pictures = copies.Pictures(np.zeros((150, 2), dtype=np.float32), labels[everyone], everyone)
    held_out = []
    for fitted, rest in copies.split(pictures, fold):
        assert not set(pictures.original[fitted]) & set(rest)
        assert len(fitted) + 5 * len(rest) == 150, "every other picture is fitted with all its copies"
        held_out += list(rest)
    assert sorted(held_out) == list(range(30)), "every picture is told once, and no copy"


def test_copies_help_and_shuffled_labels_give_chance(small, monkeypatch):
    """Copies in another fold than their picture would be told right whatever the labels are."""
    config = {**small.where, "copies": 10}
    task = runs.task_of(config, 1)
    rng = np.random.default_rng(0)

    def found(of):
        monkeypatch.setattr(copies, "task_of", lambda *_: of)
        return copies.run(config, 1, None)

    usual = found(task)
    assert min(usual["accuracy"].values()) > 0.75
    tried = usual["cross_validated"]["kernel ridge"]
    assert tried[usual["chosen"]["kernel ridge"]["warps"]] == max(tried.values()) > tried["none"]
    others = replace(task.private, labels=rng.permutation(task.private.labels))
    assert found(task.replace(private=others)) == usual
    by_chance = found(task.replace(public=replace(task.public, labels=rng.permutation(task.public.labels))))
    assert max(by_chance["accuracy"].values()) < 0.3
    assert max(max(one.values()) for one in by_chance["cross_validated"].values()) < 0.4


def test_tests_of_copies_say_nothing_to_the_choice(small, monkeypatch):
    config = {**small.where, "copies": 3}
    task = runs.task_of(config, 1)
    usual = copies.run(config, 1, None)
    wrong = replace(task.test, labels=(task.test.labels + 1) % 10)
    monkeypatch.setattr(copies, "task_of", lambda *_: task.replace(test=wrong))
    other = copies.run(config, 1, None)
    assert other["chosen"] == usual["chosen"]
    assert max(other["accuracy"].values()) < 0.2 < min(usual["accuracy"].values())


def test_a_warp_of_whole_pixels_shifts_and_mirrors():
    picture = torch.arange(49.0).reshape(1, 1, 7, 7)
    unchanged = copies.warped_copies(picture, copies.Warp(), np.random.default_rng(0))
    assert unchanged.numpy() == pytest.approx(picture.numpy(), abs=1e-4)
    warp = copies.Warp(shift=2.0, mirror=True, whole=True)
    seen = set()
    for seed in range(40):
        made = copies.warped_copies(picture, warp, np.random.default_rng(seed))[0, 0].numpy()
        middle = float(made[3, 3])
        assert middle == pytest.approx(round(middle), abs=1e-4)
        down, across = divmod(round(middle), 7)
        assert max(abs(down - 3), abs(across - 3)) <= 2
        step = float(made[3, 4] - made[3, 3])
        seen.add(round(step))
        assert abs(step) == pytest.approx(1.0, abs=1e-4)
    assert seen == {-1, 1}, "as it is and mirrored"


def test_copies_leave_less_of_the_gain():
    """Figures of the table and of the text follow from runs of the same seeds."""
    market = study.MNIST
    records = [
        Record(
            cell := Cell(study.KIND, market.capped(wallet), seed),
            cell.depends_on,
            {
                "score": 0.97 + 0.001 * wallet + 0.001 * seed,
                "score_name": "accuracy",
                "before": 0.95,
                "before_model": "ridge",
                "gain": 0.02 + 0.001 * wallet + 0.001 * seed,
            },
            None,
            1.0,
            {},
        )
        for wallet in study.WALLETS
        for seed in (1, 2, 3)
    ]
    records += [
        Record(
            cell := Cell(study.COPIES, study.copies_config(market), seed),
            cell.depends_on,
            {
                "accuracy": {"kernel ridge": 0.96 if seed == 1 else 0.94, "ridge": 0.93},
                "chosen": {"kernel ridge": {"warps": "full" if seed == 1 else "mild"}},
            },
            None,
            1.0,
            {},
        )
        for seed in (1, 2)
    ]
    found = page.Found(Results(records))
    row = page.copies_table(found).rows[0]
    assert row[2:6] == ["95.00", "95.00", "mild 1, full 1", "97.25"], "over the two seeds that have both"
    assert row[6].startswith("+2.25 [")
    assert row[7].startswith("+1.75 ["), "1.2 over 96 with copies, and 2.3 over 95 without"
    assert row[8].startswith("78%")
    assert row[9] == "2"
    assert page.left_text(found, market, 1.0) == row[7]
    assert page.answer(found)["mnist_left"] == row[7]
    assert page.answer(found)["cifar_left"] == NOT_COMPUTED
    listed = {cell.slot for cell in study.cells(Scale()) if cell.kind == study.COPIES}
    assert len(listed) == 40
    assert (
        "- mnist, 600 public, own pictures with warped copies: 8 not computed"
        in page.missing_text(found)[1].markdown
    )
