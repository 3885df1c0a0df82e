import json

import pytest
from typer.testing import CliRunner

from privmarket.cli import app
from privmarket.errors import PrivmarketError
from privmarket.simulation._attacks import ATTACKS
from tests.json_fields import check_fields

runner = CliRunner()
QUICK = ["attack", "--records", "40", "--trials", "300", "--canaries", "300", "--rounds", "3", "--targets", "60"]
QUICK += ["--confidence", "0.9999"]


def test_the_product_stands_and_the_figures_are_beside_the_claim(tmp_path):
    plot = tmp_path / "attack.png"
    result = runner.invoke(app, [*QUICK, "--json", "--plot", str(plot)])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    check_fields("attack", found)
    attacks = found["attacks"]
    assert [one["attack"] for one in attacks] == ["canary", "one-run", "membership"]
    assert all(one["epsilon_lower"] <= one["claim_epsilon"] and not one["refuted"] for one in attacks)
    assert plot.stat().st_size > 10_000


def test_every_attack_is_named_in_the_help():
    shown = " ".join(runner.invoke(app, ["attack", "--help"], env={"COLUMNS": "200"}).stdout.split())
    assert f"{', '.join(ATTACKS[:-1])} or {ATTACKS[-1]};" in shown


OWN = """
import torch
class Bright:
    def __call__(self, subject, trials, rng):
        picture = torch.full((1, *subject.records.inputs.shape[1:]), 30.0)
        label = torch.tensor([3])
        direction = next(subject.directions(picture, label))[0]
        return subject.scores(picture, label, direction, trials)
def nothing(subject, trials, rng):
    return trials
def auction_attack(mechanism, types, budget, rng): ...
"""


def test_an_attack_of_ones_own_refutes_a_client_that_cheats_and_not_an_honest_one(tmp_path, monkeypatch):
    (tmp_path / "my_attack.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    own = [*QUICK, "--attack", "my_attack.py:Bright", "--json"]
    honest = runner.invoke(app, own, catch_exceptions=False)
    broken = runner.invoke(app, [*own, "--noise-share", "0.1"], catch_exceptions=False)
    assert (honest.exit_code, broken.exit_code) == (0, 1)
    check_fields("attack", json.loads(honest.stdout))
    assert json.loads(broken.stdout)["attacks"][0]["attack"] == "Bright"


@pytest.mark.parametrize(
    ("name", "said"),
    [("auction_attack", "is no attack"), ("nothing", "returned int"), ("Brigth", "Bright")],
)
def test_an_attack_that_cannot_be_used_is_refused_in_one_line(name, said, tmp_path, monkeypatch):
    (tmp_path / "my_attack.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PrivmarketError) as caught:
        runner.invoke(app, [*QUICK, "--attack", f"my_attack.py:{name}"], catch_exceptions=False)
    assert said in f"{caught.value} {caught.value.hint}"


def test_a_client_that_cheats_ends_in_exit_code_one():
    result = runner.invoke(app, [*QUICK, "--attack", "canary", "--noise-share", "0.1"])
    assert result.exit_code == 1
    assert "REFUTED" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--attack", "canari"],
        ["--dataset", "digit"],
        ["--records", "0"],
        ["--records", "100000"],
        ["--epsilon", "0"],
        ["--noise-share", "7"],
        ["--trials", "10"],
        ["--model", "resnet"],
        ["--attack", "canary", "--plot", f"{__file__}/x.png"],
    ],
)
def test_bad_input_is_one_line_with_a_remedy(arguments):
    with pytest.raises(PrivmarketError) as caught:
        runner.invoke(app, [*QUICK, *arguments], catch_exceptions=False)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_a_run_is_attacked_and_the_report_shows_it(tmp_path):
    page = tmp_path / "run.html"
    arguments = ["federate", "--clients", "8", "--rounds", "3", "--budget", "10", "--attack", "--json"]
    result = runner.invoke(app, [*arguments, "--report", str(page)])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    check_fields("federate", found)
    attacks = found["attacks"]
    assert [one["attack"] for one in attacks] == ["canary", "membership"]
    assert attacks[1]["claim_epsilon"] >= attacks[0]["claim_epsilon"]
    text = page.read_text()
    assert "ε shown at least" in text
    assert "data:image/png;base64," in text


def test_a_run_without_privacy_is_not_attacked():
    with pytest.raises(PrivmarketError, match="sells no privacy"):
        runner.invoke(
            app, ["federate", "--clients", "4", "--rounds", "1", "--no-dp", "--attack"], catch_exceptions=False
        )
