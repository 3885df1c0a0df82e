"""Runs of learned rules are shown only while the weights that they were made with ship."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from privmarket.errors import PrivmarketError
from privmarket.mechanisms.learned._weights import shipped
from privmarket_studies import federated_results, kept_weights, trust_results
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
from privmarket_studies.trust_runs import missing, point

KEPT = Path(__file__).parents[2] / "docs/results"
STUDIES = ("trust", "federated")
CURVE = point("aggregate", "mfg-menunet", 30, 8.0, 1.66)


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


@pytest.fixture
def trust(tmp_path):
    """The kept runs of one point of a curve, of a learned rule."""
    (tmp_path / "runs").mkdir()
    for path in (KEPT / "trust/runs").glob(f"{CURVE.name}-seed-*.json"):
        shutil.copy(path, tmp_path / "runs" / path.name)
    shutil.copy(KEPT / "trust" / EARLIER, tmp_path / EARLIER)
    return tmp_path


def test_runs_of_other_weights_are_not_shown_and_are_made_again(trust, monkeypatch):
    runs = trust / "runs"
    assert len(trust_results.load(runs, CURVE)) == 3
    assert list(missing(runs, (CURVE,))) == []
    monkeypatch.setattr(kept_weights, "weights_digest", lambda name: "new")
    assert trust_results.load(runs, CURVE) == []
    assert trust_results.curve(runs, "aggregate", "mfg-menunet") == []
    assert f"`{CURVE.name}-seed-0`" in trust_results._outdated(runs)
    assert len(list(missing(runs, (CURVE,)))) == 3


def test_federated_runs_of_other_weights_are_not_shown(monkeypatch):
    assert PROMISED[0].name in federated_results.load(KEPT / "federated/runs")
    assert _up_to_date(PROMISED[0], KEPT / "federated/runs", 0)
    monkeypatch.setattr(kept_weights, "weights_digest", lambda name: "new")
    assert PROMISED[0].name not in federated_results.load(KEPT / "federated/runs")
    assert not _up_to_date(PROMISED[0], KEPT / "federated/runs", 0)
    assert f"`{PROMISED[0].name}` (seeds 0, 1, 2)" in federated_results._missing(KEPT / "federated/runs")


def test_a_run_of_unknown_weights_is_not_shown(trust):
    (trust / EARLIER).unlink()
    assert earlier(trust) == {}
    assert trust_results.load(trust / "runs", CURVE) == []


def test_a_new_run_carries_the_digest_of_its_weights(trust):
    (trust / EARLIER).unlink()
    path = CURVE.path(trust / "runs", 0)
    result = with_weights(json.loads(path.read_text(encoding="utf-8")))
    assert result["weights"] == weights_digest("mfg-menunet-aggregate") != weights_digest("mfg-menunet")
    path.write_text(json.dumps(result), encoding="utf-8")
    assert read_run(path) == result
    plain = {"config": {"mechanism": "ration", "mechanism_settings": {}}}
    assert with_weights(plain) == plain


def test_weights_of_earlier_runs_are_read_from_the_commit_that_brought_the_run(trust):
    def git(*words):
        name = ("-c", "user.name=n", "-c", "user.email=e")
        subprocess.run(["git", "-C", str(trust), *name, *words], check=True, capture_output=True)

    weights = trust / "src/privmarket/mechanisms/learned/weights"
    weights.mkdir(parents=True)
    place = weights / "mfg-menunet-aggregate.safetensors"
    shutil.copy(shipped("mfg-menunet-aggregate"), place)
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "run and weights")
    place.unlink()
    git("commit", "--quiet", "-am", "weights that ship are others now")
    (trust / EARLIER).unlink()
    assert json.loads(establish(trust).read_text()).keys() == {f"{CURVE.name}-seed-{seed}" for seed in range(3)}
    assert set(earlier(trust).values()) == {weights_digest("mfg-menunet-aggregate")}
    CURVE.path(trust / "runs", 0).write_text(json.dumps({"config": CURVE.config(0).to_json()}))
    with pytest.raises(PrivmarketError, match="is not what commit"):
        establish(trust)
