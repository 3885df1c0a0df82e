"""`privmarket plan` on embedded data: table, JSON, plot, resuming, a target that no run reaches."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from dataclasses import replace

import click
import numpy as np
import pytest
import typer.main
from typer.testing import CliRunner

import privmarket as pm
from privmarket.cli import app
from privmarket.cli._federate import prepared
from privmarket.cli._options import parse_settings
from privmarket.cli._plan import _advice, _command, _not_reached, _on_flower, _table
from privmarket.errors import PrivmarketError
from privmarket.simulation._config import FederationConfig, recommended_training
from privmarket.simulation._plan import Choice, Options, Plan, Planner, Point, TriedSettings, usual_public
from privmarket.tasks import TaskSource, score
from privmarket.tasks._datasets import Dataset
from privmarket_fixtures.pasted import Pasted, misread
from tests.forked import privmarket
from tests.json_fields import check_fields

WORDS = ["plan", "--dataset", "digits", "--clients", "20", "--effort", "quick", "--rounds", "5", "--money", "4,40"]


def plan(*words: str) -> subprocess.CompletedProcess[str]:
    return privmarket(*WORDS, *words).end()


def test_plan_resumes_and_says_what_it_tried_for_a_target(tmp_path):
    place = ["--folder", str(tmp_path / "cells")]
    first = plan(*place, "--json", "--plot", str(tmp_path / "plan.png"))
    assert first.returncode == 0, first.stderr
    made = json.loads(first.stdout)
    check_fields("plan", made)
    assert [point["total"] for point in made["points"]] == [4, 40]
    assert made["computed"] > 0
    assert (tmp_path / "plan.png").stat().st_size > 5_000
    assert made["own_records"] == usual_public("digits", 20, 0.5) == 64
    assert usual_public("digits", 8, 0.5) == 143, "a client holds more than are kept back"
    assert 0 < made["score_before"] < 1
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "cells").glob("*.json")}
    assert len(kept) == made["computed"]
    again = plan(*place, "--target", "0.999")
    assert again.returncode == 1
    assert again.stdout.startswith("Your own 64 records alone: accuracy ")
    assert {file: file.stat().st_mtime_ns for file in kept} == kept, "no run is made anew"
    said = " ".join(again.stdout.split())
    assert "Not reached: 99.9 %. The best of what was tried:" in said
    # Five rules, and prices beyond the grid while the best lies at its edge.
    assert int(re.search(r"Tried: 5 rounds; (\d+) rules; ", said)[1]) >= 5
    assert "rehearsals on your own records, figures come from 2 seeds." in said
    assert "out of reach" not in said
    # One seed and one number of rounds say nothing about other settings: the next command tries more of them.
    (following,) = re.findall(r"^Next: (privmarket plan .*)$", again.stdout, flags=re.M)
    words = shlex.split(following)
    assert misread(Pasted("plan", following)) is None
    assert words[words.index("--effort") + 1] == "normal"
    assert words[words.index("--target") + 1] == "0.999"
    assert "--rounds" not in words
    assert words[words.index("--folder") + 1] == place[1]


def test_wrong_words_are_refused(tmp_path):
    for words, expected in (
        (["--target", "0.9", "--total", "5"], "exclude each other"),
        (["--money", "ten"], "--money"),
        (["--effort", "heroic"], "heroic"),
        (["--data", str(tmp_path / "none.csv")], "none.csv"),
        (["--plot", str(tmp_path / "plan.txt")], "plan.txt"),
        (["--set", "clip=3"], "clip"),
    ):
        done = CliRunner().invoke(app, [*WORDS, "--folder", str(tmp_path), *words])
        assert isinstance(done.exception, PrivmarketError)
        assert expected in str(done.exception)
    assert not list(tmp_path.glob("*.json"))


@pytest.fixture
def small_mnist(monkeypatch):
    """Pictures of noise in place of MNIST: the files need not be on the machine that runs the tests."""
    rng = np.random.default_rng(0)

    def load(name, measured_on):
        images = rng.normal(size=(2_200, 1, 28, 28)).astype(np.float32)
        labels = rng.integers(0, 10, 2_200)
        return Dataset(name, images[:2_000], labels[:2_000], images[2_000:], labels[2_000:])

    monkeypatch.setattr("privmarket.tasks._builtin.load_dataset", load)


def test_what_is_planned_is_what_federate_would_run(small_mnist, monkeypatch):
    """The plan starts from what is recommended for data set and trust, and its last line names what differs."""

    class Stop(Exception):
        pass

    def keep(base, *_, **__):
        raise Stop(base)

    monkeypatch.setattr("privmarket.simulation._plan.Planner", keep)
    words = ["plan", "--dataset", "mnist", "--trust", "aggregate", "--delta", "1e-6", "--set", "clip_norm=0.7"]
    stopped = CliRunner().invoke(app, words).exception
    assert isinstance(stopped, Stop)
    base = stopped.args[0]
    assert base.training == replace(recommended_training("mnist", "aggregate"), clip_norm=0.7)
    choice = Choice(5, "ration", (("unit_price", 1.0),), "ration", 4.0)
    point = row(10.0, choice, score=0.5, spent=9.0)
    said = _command(base, point, TaskSource())
    assert "--set clip_norm=0.7" in said
    assert "--delta 1e-06" in said
    assert said.count("--set ") == 2
    local = CliRunner().invoke(app, ["plan", "--dataset", "mnist"]).exception.args[0]
    assert local.training == recommended_training("mnist", "aggregate")  # what federate does not take by itself
    assert "--set model=logistic --set features=whitened-scattering" in _command(local, point, TaskSource())


def row(total: float, choice: Choice, *, score: float, spent: float) -> Point:
    return Point(
        total=total,
        choice=choice,
        budget_per_round=total / choice.rounds,
        score=score,
        deviation=0.0,
        lowest=score,
        highest=score,
        score_before=0.4,
        gain=score - 0.4,
        gain_deviation=0.0,
        seeds=1,
        spent=spent,
        lifetime_epsilon=1.0,
        pay_per_client=0.1,
        highest_pay=0.2,
        sellers_per_round=5.0,
    )


def made(target: float | None, spent: float, *, before: float = 0.4) -> Plan:
    """A plan of two points, one of 50 % and one of 60 %."""
    base = FederationConfig(dataset="digits", clients=8, wallet=1.0)
    choice = Choice(30, "ration", (("unit_price", 1.0),), "ration", 2.0)
    points = [
        row(10.0, choice, score=0.5, spent=9.0),
        row(40.0, choice, score=0.6, spent=spent),
    ]
    return Plan(
        base=base,
        points=tuple(replace(one, score_before=before, gain=one.score - before) for one in points),
        score=score("accuracy"),
        own_records=40,
        score_before=before,
        target=target,
        chosen=None,
        cells=9,
        computed=9,
        tried=TriedSettings(rounds=(10, 30), server_rates=(1.0, 2.0), rules=5, rehearsals=12, seeds=3),
    )


def said_of(effort: str, plan: Plan) -> str:
    words = ["--clients", "8", "--target", "0.9", "--set", "clip_norm=2", "--set", "momentum=0.5", "--rounds", "9"]
    with click.Context(typer.main.get_command(app), info_name="privmarket") as above:
        command = above.command.get_command(above, "plan")
        with command.make_context("plan", words, parent=above):
            return "\n".join(_not_reached(plan, 0.9, effort))


def test_what_is_said_of_a_target_follows_from_what_was_tried():
    again = "Next: privmarket plan --clients 8 --target 0.9 --set clip_norm=2 --set momentum=0.5"
    capped = said_of("full", made(0.9, spent=12.0))
    assert "Of the largest total only 12 could be spent" in capped
    assert "within a lifetime ε of 1. More money for these settings will not do" in capped
    assert capped.endswith(f"{again} --rounds 30,90")
    dear = said_of("full", made(0.9, spent=39.0))
    assert "More money may do" in dear
    assert "--rounds 9" in dear
    assert dear.endswith("--money 160,640")
    assert said_of("quick", made(0.9, spent=39.0)).endswith("--set momentum=0.5 --effort normal")
    assert said_of("normal", made(0.9, spent=39.0)).endswith("--effort full")
    assert "Tried: 10 and 30 rounds; 5 rules; 2 totals up to 40." in dear
    assert "chosen by 12 rehearsals on your own records, figures come from 3 seeds." in dear


def test_differences_of_a_plan_have_the_same_decimals():
    plan = made(None, spent=39.0)
    first, second = (
        replace(point, seeds=1, score=0.7, test_error=error, gain=gain)
        for point, error, gain in zip(plan.points, (0.00371, 0.0331), (0.004, -0.02), strict=True)
    )
    ranked = replace(plan, points=(first, second), score=score("auc"))
    cells = [list(column.cells) for column in _table(ranked).columns]
    assert cells[1] == ["0.700", "0.700"]
    assert cells[2] == ["+0.0040 ± 0.0037", "-0.0200 ± 0.0331"]
    wide = (replace(first, test_error=37.1), replace(second, test_error=331.0))
    money = replace(plan, points=wide, score=score("mae"))
    assert list(_table(money).columns[2].cells) == ["+0 ± 37", "-0 ± 331"]
    alike = replace(plan, points=(replace(first, gain=0.0, test_error=0.0),), score=score("auc"))
    assert list(_table(alike).columns[2].cells) == ["+0.00 ± 0.00"]


def test_buy_nothing_is_said_where_buying_does_not_pay():
    source = TaskSource()
    (reached,) = _advice(made(0.9, spent=39.0, before=0.95), "normal", source)
    assert reached == "Buy nothing: your own records reach 90.0 % already."
    (nothing,) = _advice(made(None, spent=39.0, before=0.7), "normal", source)
    assert nothing.startswith("Buy nothing: of 2 totals up to 40 none gave a better accuracy than your own records")
    lines = _advice(made(None, spent=39.0), "normal", source)
    assert lines[0].startswith("For 40: 60.0 % (+20.00 ± 0.00 points over your own records) over 1 seed")
    plan = made(None, spent=39.0)
    cheap, dear = plan.points
    unsure = (replace(cheap, gain=0.12, test_error=0.04), replace(dear, test_error=0.09))
    said = _advice(replace(plan, points=unsure), "normal", source)
    assert said[0].startswith("For 10: ")
    assert said[1] == "That is the cheapest total within one standard error of the best gain, which 40 buys."
    assert lines[1].startswith("privmarket federate --dataset digits")


@pytest.fixture
def shops(tmp_path):
    """A table whose labels follow from small differences of inputs that are nearly equal, and its schema."""
    rng = np.random.default_rng(5)
    common = rng.normal(size=(400, 1))
    apart = 0.1 * rng.normal(size=(400, 6))
    inputs = np.concatenate([common + apart, common - apart], axis=1)
    sold = apart[:, 0] + 0.1 * rng.normal(size=400) > 0
    names = [f"x{i}" for i in range(12)]
    lines = [",".join(["shop", "sold", *names])]
    for number, (row, label) in enumerate(zip(inputs, sold, strict=True)):
        lines.append(",".join([f"s{number % 7}", "yes" if label else "no", *(f"{x:.4f}" for x in row)]))
    table = tmp_path / "shops.csv"
    table.write_text("\n".join(lines) + "\n")
    columns = "".join(f'[columns.{name}]\nkind = "number"\nrange = [-4, 4]\n' for name in names)
    schema = tmp_path / "shops.toml"
    schema.write_text(f'client = "shop"\n[label]\ncolumn = "sold"\nvalues = ["no", "yes"]\n{columns}')
    return TaskSource(data=str(table), schema=str(schema), public_share=0.1)


SMALL_PLAN = Options(rounds=(3,), price_shares=(0.9,), heterogeneities=(), seeds=(1, 2), worlds=1)


def planned(folder, source, training=None, **settings):
    """What a plan of 100 in three rounds prints and chooses, and for each seed (score, money) of its run."""
    run = prepared({"dataset": "digits", "mechanism": "mean-field-menu", **settings}, source, training)
    fixed = tuple(parse_settings(training))
    planner = Planner(run.config, folder, SMALL_PLAN, task=run.task, asked=run.asked, fixed=fixed)
    (point,) = planner.for_totals([100.0]).points
    cells = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    found = {cell["config"]["seed"]: (cell["outcome"]["score"], cell["outcome"]["spent"]) for cell in cells}
    assert sorted(found) == [1, 2]
    return _command(planner.base, point, source), point, found


def bought(line: str, seed: int) -> tuple[float, float]:
    done = privmarket(*shlex.split(line)[1:], "--seed", str(seed), "--json").end()
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    return run["score"], run["spent"]


def test_the_printed_line_makes_the_planned_run(shops, tmp_path):
    """Score and money to the last digit; and with one word less, it is another run."""
    training = ["momentum=0.4"]
    line, point, found = planned(tmp_path, shops, training, trust="aggregate", honest_share=0.7, wallet=3.0)
    assert point.choice.statistics == "free"
    assert {seed: bought(line, seed) for seed in found} == found
    for word in ("--statistics free", "--budget 33.333333", "--wallet 3.0", "--set momentum=0.4"):
        assert word in line
        assert bought(line.replace(word, ""), 1) != found[1], word
    (refused,) = _on_flower(FederationConfig(task="a task"), point, shops)
    assert refused.startswith("on Flower: not this plan. Its inputs are whitened by")


def test_the_printed_line_makes_the_planned_run_on_inputs_as_they_are(shops, tmp_path):
    line, point, found = planned(tmp_path, shops, ["clip_norm=0.7"], trust="local")
    assert "--statistics none --aggregation" in line
    assert bought(line, 2) == found[2]
    (flower,) = _on_flower(FederationConfig(task="a task"), point, shops)
    assert "clip_norm=0.7" in flower
    assert f"aggregation={point.choice.aggregation or FederationConfig.aggregation!r}" in flower


def test_the_printed_line_makes_the_planned_run_of_a_built_in_set(tmp_path):
    line, _, found = planned(tmp_path, TaskSource(public="40"), clients=8, wallet=1.0)
    assert bought(line, 1) == found[1]


def own_records(folder, rows=24):
    """A file of few records whose labels clearly follow from four numbers, and its schema."""
    rng = np.random.default_rng(2)
    inputs = rng.normal(size=(rows, 4))
    likely = 1 / (1 + np.exp(-2 * inputs @ [1.5, -1.0, 0.5, 0.0]))
    lines = [
        ",".join([*(f"{one:.3f}" for one in row), "yes" if label else "no"])
        for row, label in zip(inputs, rng.random(rows) < likely, strict=True)
    ]
    (folder / "ours.csv").write_text("\n".join(["a,b,c,d,ill", *lines]) + "\n")
    numbers = "".join(f'[columns.{name}]\nkind = "number"\nrange = [-2, 2]\n' for name in "abcd")
    (folder / "s.toml").write_text(f'label = {{column = "ill", values = ["no", "yes"]}}\n{numbers}')


def test_a_plan_from_own_records_alone(tmp_path):
    """Nobody's private records are anywhere; the plan says so, and ends with what starts the real market."""
    own_records(tmp_path)
    asks = "".join(f"s{number},0.{number},2\n" for number in range(1, 9))
    (tmp_path / "bids.csv").write_text("client,valuation,epsilon\n" + asks)
    words = ["plan", "--public", "ours.csv", "--schema", "s.toml", "--records", "400", "--bids", "bids.csv"]
    words += ["--trust", "aggregate", "--money", "30", "--rounds", "3", "--effort", "quick"]
    first = privmarket(*words, "--json", cwd=tmp_path).end()
    assert first.returncode == 0, first.stderr
    made = json.loads(first.stdout)
    check_fields("plan", made)
    assert made["score_before_on"] == "cross-validation"
    assert made["score_before_error"] > 0
    assert [*made["config"]["training"]]
    assert "points" not in made
    assert made["worth_buying"]
    # The second time everything is on disk.
    again = privmarket(*words, cwd=tmp_path).end()
    said = " ".join(again.stdout.split())
    assert said.startswith("Your own 24 records alone: AUC ")
    assert "in cross-validation (standard error" in said
    assert "REHEARSED in made-up worlds, not measured" in said
    assert "nothing here was measured on anybody's real records" in said
    (known,) = re.findall(r"^  task = (.*)$", again.stdout, flags=re.M)
    (server,) = re.findall(r"^  server = (.*)$", again.stdout, flags=re.M)
    assert known == "pm.Task.from_own_records('ours.csv', records=400, clients=8, schema='s.toml')"
    chosen = made["rehearsed"][0]["choice"]
    settings = eval(server.replace("pm.flower.server_app(task=task, ", "dict("), {})
    for name in ("rounds", "server_rate", "clip_norm", "averaging"):
        expected = made["config"]["training"][name] if chosen[name] is None else chosen[name]
        assert settings[name] == expected
    assert settings["mechanism"] == chosen["rule"]
    assert settings["trust"] == "aggregate"
    pm.flower.server_app(task=lambda: None, **settings)  # every setting is one that the app knows


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "0.9"], "--target without the clients' records"),
        (["--plot", "p.png"], "--plot without the clients' records"),
        (["--set", "steps=3"], "3 steps a round cannot be rehearsed"),
    ],
)
def test_what_a_plan_from_own_records_cannot_do(tmp_path, words, said):
    own_records(tmp_path)
    known = ["plan", "--public", "ours.csv", "--schema", "s.toml", "--records", "200", "--clients", "8"]
    ended = privmarket(*known, *words, cwd=tmp_path).end()
    assert ended.returncode == 2
    assert said in ended.stderr


def test_a_run_is_not_simulated_without_the_clients_records(tmp_path):
    own_records(tmp_path)
    (tmp_path / "t.py").write_text(
        "import privmarket as pm\n"
        "task = pm.Task.from_own_records('ours.csv', schema='s.toml', records=9, clients=3)\n"
    )
    ended = privmarket("federate", "--task", "t.py:task", cwd=tmp_path).end()
    assert ended.returncode == 2
    assert "a simulated run needs the sellers' records" in ended.stderr
