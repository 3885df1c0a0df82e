"""The report page: self-contained, complete, and true to the run."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from privmarket.reports._federated_demo import NAMES, PRIVATE, demo_config, demo_configs
from privmarket.reports._federated_report import write_report
from privmarket.reports._verdict import (
    MisreportCheck,
    money_takeaway,
    other_trust_sentence,
    percent,
    strength,
    verdict,
    worst_promise,
)
from privmarket.rounds import MICRO, RoundRecord
from privmarket.simulation._config import FederationConfig, Training
from privmarket.simulation._federation import run

CONFIG = FederationConfig(
    clients=6, rounds=3, budget=5.0, wallet=4.0, evaluate_every=1, training=Training(model="logistic")
)


@pytest.fixture(scope="module")
def result():
    return run(CONFIG)


@pytest.fixture(scope="module")
def quiet():
    return run(CONFIG.replace(mode="no-noise"))


def test_the_page_needs_nothing_else(result, tmp_path):
    path = write_report(tmp_path / "deep" / "page.html", {"private": result}, command="x --y")
    page = path.read_text(encoding="utf-8")
    for outside in ("http://", "https://", 'src="', "<script", "@import", "url("):
        assert outside not in page
    assert page.count('class="chart"') == 4
    assert "x --y" in page
    assert percent(result.accuracy) in page
    assert "client 5" in page
    assert path.stat().st_size < 1_000_000


def test_money_of_a_total_comes_back_once(result):
    """What a round leaves of a total is handed on to the next, and comes back only after the last."""
    money = ((1, 9), (2, 17))  # paid and not paid, of 20 in all
    records = tuple(
        RoundRecord(number, spent_micro=paid * MICRO, refunded_micro=left * MICRO)
        for number, (paid, left) in enumerate(money)
    )
    paced = replace(result, config=CONFIG.replace(rounds=2, total_budget=20.0), records=records)
    assert "17.00 of the rounds' money was not needed" in money_takeaway(paced)
    each = replace(result, config=CONFIG.replace(rounds=2), records=records)
    assert "26.00 of the rounds' money was not needed" in money_takeaway(each)


def test_labels_are_escaped(result, tmp_path):
    bad = "<script>alert(1)</script>"
    path = write_report(tmp_path / "p.html", {"<b>run</b>": result}, command=bad, names=[bad] * 6)
    page = path.read_text(encoding="utf-8")
    assert "<script" not in page
    assert "<b>run" not in page


def test_the_verdict_says_money_accuracy_noise_lies_and_the_cap(result, quiet):
    said = verdict({"private": result, "quiet": quiet}, MisreportCheck(0.0, 1.0, 5.0), "pounds")
    assert f"For {result.spent:,.0f} of a budget of 15 pounds" in said
    assert percent(result.accuracy) in said
    assert "Privacy noise cost" in said
    assert "smaller offers that were tried in the first round paid" in said
    assert "Nobody passed the lifetime cap" in said


def test_the_verdict_says_no_more_than_is_known(result, quiet):
    alone = verdict({"private": result})
    assert "noise cost" not in alone
    assert "false prices" not in alone
    assert "own records" not in alone
    assert "No privacy is promised" in verdict({"quiet": quiet})
    assert "gained 0.5" in verdict({"private": result}, MisreportCheck(0.5, 1.0, 5.0))


def test_whether_a_misreport_paid_depends_on_no_currency():
    for unit in (1e-9, 1.0, 1e9):
        assert MisreportCheck(1e-12 * unit, unit, 5 * unit).sentence.startswith("none of the false prices")
        assert "gained" in MisreportCheck(1e-6 * unit, unit, 5 * unit).sentence


def test_words_for_a_promise_follow_what_a_guesser_can_do(result):
    assert [strength(guess) for guess in (0.55, 0.7, 0.9, 0.999, 1.0)] == [
        "strong",
        "moderate",
        "weak",
        "very weak",
        "very weak",
    ]
    promised = worst_promise(result)
    assert promised is not None
    assert promised.epsilon <= 4.0 + 1e-6


def test_both_trusts_stand_side_by_side(result, tmp_path):
    sums = run(CONFIG.replace(trust="aggregate", mechanism="ration", mechanism_settings={"unit_price": 1.0}))
    page = write_report(tmp_path / "p.html", {"a": result, "b": sums}, command="").read_text(encoding="utf-8")
    sides = re.findall(r'<section class="side"><h2>(.*?)</h2>', page)
    assert sides == ["Local trust: the server sees every update", "Aggregate trust: the server sees only sums"]
    assert "asks the same price for a unit of ε under either trust" in page
    turned = write_report(tmp_path / "q.html", {"b": sums, "a": result}, command="").read_text(encoding="utf-8")
    assert re.findall(r'<section class="side"><h2>(\w+)', turned) == ["Aggregate", "Local"]  # the first run first
    said = other_trust_sentence({"a": result, "b": sums})
    assert said.startswith("Under aggregate trust, where the server sees only sums of updates,")
    assert said in page
    assert percent(sums.accuracy) in said
    assert "under aggregate trust" in verdict({"b": sums})
    assert "under local trust" in other_trust_sentence({"b": sums, "a": result}).lower()
    assert other_trust_sentence({"a": result}) == ""


def test_the_demo_is_small_names_its_clients_and_leads_with_a_strong_promise():
    config = demo_config()
    assert (config.dataset, config.clients) == ("digits", 20)
    assert len(set(NAMES)) == config.clients
    assert (config.trust, config.wallet) == ("aggregate", 1.0)
    config = demo_config(3)
    configs = demo_configs(config, config.replace(trust="local"))
    assert next(iter(configs)) == PRIVATE
    assert {run.seed for run in configs.values()} == {3}
    private = [run for run in configs.values() if run.privacy.is_private]
    assert [run.trust for run in private] == ["aggregate", "local"]
    assert {(run.money_in_all, run.wallet) for run in private} == {(50.0, 1.0)}  # the same money and cap


def test_the_demo_chooses_its_settings_on_the_buyers_digits_alone(monkeypatch):
    """With noise in place of the clients' digits, the same settings are chosen."""
    from privmarket.reports import _federated_demo as federated_demo
    from privmarket.tasks import Records

    monkeypatch.setattr(federated_demo, "StandIn", partial(federated_demo.StandIn, worlds=2))
    config = demo_config(2).replace(rounds=2)
    chosen = federated_demo.tuned(config, federated_demo.made_up_worlds(config)).training
    assert chosen != config.training
    real = federated_demo.builtin_task

    def with_other_private_records(given):
        task = real(given)
        other = np.random.default_rng(0).random(task.private.inputs.shape, dtype=np.float32)
        return task.replace(private=Records(other, task.private.labels[::-1].copy()))

    monkeypatch.setattr(federated_demo, "builtin_task", with_other_private_records)
    worlds = federated_demo.made_up_worlds(config)
    assert not np.array_equal(worlds.task.private.labels, real(config).private.labels)
    assert federated_demo.tuned(config, worlds).training == chosen
