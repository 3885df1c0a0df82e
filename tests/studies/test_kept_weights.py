"""Runs of learned rules are shown only while the weights that they were made with ship."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from privmarket.errors import PrivmarketError
from privmarket.mechanisms.learned._weights import shipped
from privmarket_studies import federated_results, kept_weights
from privmarket_studies.federated_runs import PROMISED, _up_to_date
from privmarket_studies.kept_weights import (
    EARLIER,
    digest_in,
    earlier,
    establish,
    read_run,
    weights_of,
    with_weights,
)
from privmarket_studies.reproduce.cells import weights_digest

KEPT = Path(__file__).parents[2] / "docs/results"
STUDIES = ("federated",)


@pytest.mark.parametrize("study", STUDIES)
def test_every_kept_run_is_of_the_weights_that_ship(study):
    runs = sorted((KEPT / study / "runs").glob("*.json"))
    assert [path.name for path in runs if read_run(path) is None] == []


@pytest.mark.parametrize("study", STUDIES)
def test_git_has_the_weights_that_earlier_runs_are_said_to_have(study):
    listed = json.loads((KEPT / study / EARLIER).read_text(encoding="utf-8"))
    seen = {}
    for name, entry in listed.items():
        seen.setdefault((entry["commit"], entry["weights"]), KEPT / study / "runs" / f"{name}.json")
    for (commit, digest), run in seen.items():
        config = json.loads(run.read_text(encoding="utf-8"))["config"]
        try:
            assert digest_in(KEPT, commit, run, weights_of(config)) == digest
        except PrivmarketError as error:
            if "git" not in str(error) and "object" not in str(error) and "revision" not in str(error):
                raise
            pytest.skip("not a git checkout with the whole history: nothing to compare with")


def test_federated_runs_of_other_weights_are_not_shown(monkeypatch):
    assert PROMISED[0].name in federated_results.load(KEPT / "federated/runs")
    assert _up_to_date(PROMISED[0], KEPT / "federated/runs", 0)
    monkeypatch.setattr(kept_weights, "weights_digest", lambda name: "new")
    assert PROMISED[0].name not in federated_results.load(KEPT / "federated/runs")
    assert not _up_to_date(PROMISED[0], KEPT / "federated/runs", 0)
    assert f"`{PROMISED[0].name}` (seeds 0, 1, 2)" in federated_results._missing(KEPT / "federated/runs")


@pytest.fixture
def kept(tmp_path):
    """Three kept runs of a learned rule, in a folder of their own."""
    (tmp_path / "runs").mkdir()
    for seed in range(3):
        shutil.copy(KEPT / f"federated/runs/cifar10-0.5-seed-{seed}.json", tmp_path / "runs")
    shutil.copy(KEPT / "federated" / EARLIER, tmp_path / EARLIER)
    return tmp_path


def test_a_run_of_unknown_weights_is_not_shown(kept):
    run = kept / "runs/cifar10-0.5-seed-0.json"
    assert read_run(run) is not None
    (kept / EARLIER).unlink()
    assert earlier(kept) == {}
    assert read_run(run) is None


def test_a_new_run_carries_the_digest_of_its_weights(kept):
    (kept / EARLIER).unlink()
    path = kept / "runs/cifar10-0.5-seed-0.json"
    result = with_weights(json.loads(path.read_text(encoding="utf-8")))
    assert result["weights"] == weights_digest("mfg-menunet") != weights_digest("mfg-menunet-aggregate")
    path.write_text(json.dumps(result), encoding="utf-8")
    assert read_run(path) == result
    plain = {"config": {"mechanism": "ration", "mechanism_settings": {}}}
    assert with_weights(plain) == plain


def test_weights_of_earlier_runs_are_read_from_the_commit_that_brought_the_run(kept):
    def git(*words):
        name = ("-c", "user.name=n", "-c", "user.email=e")
        subprocess.run(["git", "-C", str(kept), *name, *words], check=True, capture_output=True)

    weights = kept / "src/privmarket/mechanisms/learned/weights"
    weights.mkdir(parents=True)
    place = weights / "mfg-menunet.safetensors"
    shutil.copy(shipped("mfg-menunet"), place)
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "run and weights")
    place.unlink()
    git("commit", "--quiet", "-am", "weights that ship are others now")
    (kept / EARLIER).unlink()
    assert json.loads(establish(kept).read_text()).keys() == {f"cifar10-0.5-seed-{seed}" for seed in range(3)}
    assert set(earlier(kept).values()) == {weights_digest("mfg-menunet")}
    changed = kept / "runs/cifar10-0.5-seed-0.json"
    config = json.loads(changed.read_text(encoding="utf-8"))["config"]
    changed.write_text(json.dumps({"config": config}))
    with pytest.raises(PrivmarketError, match="is not what commit"):
        establish(kept)
