"""The page of the paper's letter follows from the files beside it."""

import json
import shutil

import pytest

from privmarket_studies.literal_page import FOLDER, Findings, final_accuracy, render, with_interval


def test_the_page_is_rendered_from_the_files():
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == render(FOLDER)


def test_another_figure_gives_another_page(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "kept")
    run = tmp_path / "kept" / "runs" / "mnist-0.5-printed-seed-0.json"
    found = json.loads(run.read_text(encoding="utf-8"))
    found["accuracy"] = [1.0] * len(found["accuracy"])
    run.write_text(json.dumps(found), encoding="utf-8")
    assert "No printed run ends above 100.0 %" in render(tmp_path / "kept")


def test_a_run_without_all_its_rounds_is_named(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "kept")
    run = tmp_path / "kept" / "runs" / "mnist-0.5-printed-seed-0.json"
    found = json.loads(run.read_text(encoding="utf-8"))
    for name in ("accuracy", "left_out", "norm"):
        found[name] = found[name][:7]
    run.write_text(json.dumps(found), encoding="utf-8")
    assert "`mnist-0.5-printed-seed-0` (7 of 200 rounds)" in render(tmp_path / "kept")


def test_rounds_computed_again_are_counted(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "kept")
    for at, path in enumerate(sorted((tmp_path / "kept" / "runs").iterdir())):
        found = json.loads(path.read_text(encoding="utf-8"))
        found.pop("again", None)
        if at < 2:
            found["again"] = {"rounds": 600, "equal": 600 - at}
        path.write_text(json.dumps(found), encoding="utf-8")
    assert "1,200 rounds were computed a second time from nothing: 1,199 of them" in render(tmp_path / "kept")


@pytest.mark.parametrize(("accuracy", "rounds", "short"), [(0.5, 200, True), (0.95, 200, False), (0.5, 7, False)])
def test_what_selling_everything_comes_to(tmp_path, accuracy, rounds, short):
    shutil.copytree(FOLDER, tmp_path / "kept")
    for alpha in (0.5, 0.1):
        source = tmp_path / "kept" / "runs" / f"mnist-{alpha}-printed-seed-0.json"
        found = json.loads(source.read_text(encoding="utf-8"))
        found["run"]["reading"] = "sold-out"
        found |= {"accuracy": [accuracy] * rounds, "left_out": [0] * rounds, "norm": [1.0] * rounds}
        target = tmp_path / "kept" / "runs" / f"mnist-{alpha}-sold-out-seed-0.json"
        target.write_text(json.dumps(found), encoding="utf-8")
    page = render(tmp_path / "kept")
    assert f"{100 * accuracy:.1f} % after {rounds} rounds at α = 0.1" in page
    # Table V: 91.9 and 84.8.
    assert ("The paper prints 35–42 points more." in page) is short
    assert ("whatever the rule sells" in page) is short


def test_final_accuracy_is_the_mean_of_the_last_five_rounds():
    assert final_accuracy({"accuracy": [0.9, 0.1, 0.2, 0.3, 0.4, 0.5]}) == pytest.approx(30.0)


def test_intervals_are_students():
    # Four values 1 … 4: mean 2.5, standard error 0.6455, t(3) at 97.5 % is 3.1824.
    assert with_interval([1, 2, 3, 4], 2) == "2.50 [0.45, 4.55]"
    assert with_interval([7.0]) == "7.0"


def test_every_kept_run_has_as_many_figures_as_rounds():
    for run in Findings().runs:
        assert len(run["accuracy"]) == len(run["left_out"]) == len(run["norm"]) <= run["run"]["rounds"]
