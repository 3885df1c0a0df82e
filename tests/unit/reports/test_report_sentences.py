"""Every figure in a sentence of the federated report, computed again from the records of its run.

Nothing here calls the code that makes the sentences for its expectations: money and sellers come from the rounds'
records, ε from dp-accounting's own accountant, accuracies from the records.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._statement import rounded_down_percent
from privmarket.reports import _verdict as said
from privmarket.reports._federated_report import compared_rows, write_report
from privmarket.reports._own_records import OwnRecords, own_records_of
from privmarket.simulation._bidding import asks_sentence
from privmarket.simulation._config import FederationConfig
from privmarket.simulation._federation import run
from privmarket.simulation._result import client_table
from privmarket.tasks import Score

LOCAL = FederationConfig(clients=8, rounds=4, budget=5.0, wallet=9.0, wallet_policy="spend", evaluate_every=1)
SUMS = FederationConfig(
    clients=8, rounds=4, budget=3.0, wallet=1.0, trust="aggregate", mechanism="graded-ration", evaluate_every=1
)
OWN = OwnRecords(40, 0.612, ((20, 0.5), (40, 0.612), (60, 0.7), (143, 0.93)), 10, 360)


@pytest.fixture(scope="module")
def local():
    return run(LOCAL)


@pytest.fixture(scope="module")
def sums():
    return run(SUMS)


@pytest.fixture(scope="module")
def quiet():
    return run(SUMS.replace(mode="no-noise"))


def plain(sentence):
    return sentence.replace("\N{NO-BREAK SPACE}", " ")


def numbers(sentence):
    return [float(word.replace(",", "")) for word in re.findall(r"\d[\d,]*(?:\.\d+)?", plain(sentence))]


def independent_epsilon(multipliers, delta):
    """ε of Gaussian releases by privacy-loss distributions, an accountant that this package does not use."""
    accountant = PLDAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    for multiplier in multipliers:
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier))
    return accountant.get_epsilon(delta)


def multipliers_of(result, client):
    """The noise multipliers that make each of the client's sales true on its own, from the rounds' records."""
    family = ReleaseFamily.of(result.config.training, result.config.delta)
    sold = [record.sold_epsilon.get(str(client)) for record in result.records]
    return [family.event(epsilon).noise_multiplier for epsilon in sold if epsilon]


def largest_total(result, factor=lambda record: 1.0):
    totals = []
    for client in range(result.config.clients):
        rounds = [record for record in result.records if str(client) in record.sold_epsilon]
        sigma = multipliers_of(result, client)
        totals.append(
            independent_epsilon([s * factor(r) for s, r in zip(sigma, rounds, strict=True)], result.config.delta)
        )
    return max(totals)


@pytest.mark.parametrize("which", ["local", "sums"])
def test_money(which, request):
    result = request.getfixturevalue(which)
    paid = [sum(record.paid_micro.values()) / 1e6 for record in result.records]
    sellers = [len(record.paid_micro) for record in result.records]
    budget = result.config.budget * len(paid)
    assert numbers(said.money_takeaway(result)) == pytest.approx(
        [sum(paid), len(paid), np.mean(paid), np.mean(sellers), budget - sum(paid)], abs=0.05
    )


def test_the_total_is_not_said_to_be_paid_in_one_round(local):
    """The sentence that this replaced gave the money of all rounds for that of a mean one."""
    old = f"{local.spent:,.2f} credits went to 5 sellers in a mean round"
    assert numbers(old)[0] == pytest.approx(len(local.records) * numbers(said.money_takeaway(local))[2], abs=0.03)
    assert old not in said.money_takeaway(local)


@pytest.mark.parametrize("which", ["local", "sums"])
def test_the_largest_total_and_the_guesses(which, request):
    result = request.getfixturevalue(which)
    largest = largest_total(result)
    sentence = plain(said.strength_sentence(said.worst_promise(result), said.worst_promise_alone(result)))
    assert numbers(sentence)[0] == pytest.approx(largest, rel=0.01)
    assert plain(said.epsilon_text(result.config.wallet)) in plain(said.headline({"": result}))
    assert largest <= result.config.wallet * 1.005
    # With Gaussian releases of multipliers σ, a guess is right with probability Φ(½ √Σ 1/σ²).
    clients = range(result.config.clients)
    mu = max(math.sqrt(sum(1.0 / s**2 for s in multipliers_of(result, client))) for client in clients)
    guess = 0.5 * (1.0 + math.erf(mu / 2 / math.sqrt(2.0)))
    stated = float(re.search(r"is right at most ([\d.]+) %", sentence).group(1))
    assert 0.0 <= stated - 100 * guess < 0.15


def test_what_is_left_if_all_others_collude(sums):
    def alone(record):
        """Of the noise σ that h honest sellers make up, one seller's own part is σ/√h."""
        honest = math.ceil(len(record.sold_epsilon) * SUMS.honest_share - 1e-9)
        return 1.0 / math.sqrt(honest)

    left = largest_total(sums, alone)
    sentence = plain(said.strength_sentence(said.worst_promise(sums), said.worst_promise_alone(sums)))
    assert float(re.search(r"server, ε = ([\d.]+) is left", sentence).group(1)) == pytest.approx(left, rel=0.01)
    assert "66.7 % of each round's sellers being honest and present: 16.7 % may work together" in sentence
    assert float(re.search(r"server, ε = ([\d.]+) is left", plain(said.headline({"": sums}))).group(1)) == (
        pytest.approx(left, rel=0.01)
    )
    ((_, row),) = compared_rows({"": sums})
    assert float(row["alone"]) == pytest.approx(left, rel=0.01)


def test_accuracy(sums, quiet):
    sentence = plain(said.accuracy_takeaway({"a": sums, "b": quiet}))
    rounds = [record.accuracy for record in sums.records]
    first = next(i + 1 for i, accuracy in enumerate(rounds) if accuracy >= 0.95 * rounds[-1])
    expected = [4, 100 * rounds[-1], 100 * quiet.records[-1].accuracy, first, 95]
    assert numbers(sentence) == pytest.approx(expected, abs=0.051)
    shown = round(100 * quiet.accuracy, 1) - round(100 * sums.accuracy, 1)
    cost = plain(said.details({"a": sums, "b": quiet}))
    assert f"cost {shown:.1f} points" in cost if shown > 0 else "cost nothing" in cost


def test_what_noise_cost_needs_the_same_run_without_it(sums, local, quiet):
    assert said.noise_free_twin({"a": sums, "b": quiet}) is quiet
    assert said.noise_free_twin({"a": local, "b": quiet}) is None
    assert said.details({"a": local, "b": quiet}) == ""
    other = replace(quiet, config=quiet.config.replace(budget=4.0))
    assert said.noise_free_twin({"a": sums, "b": other}) is None


def test_sales(local):
    sellers = {client for record in local.records for client, epsilon in record.sold_epsilon.items() if epsilon > 0}
    asks = {str(i): ask for i, ask in enumerate(local.types.valuation)}
    others = [ask for client, ask in asks.items() if client not in sellers]
    expected = [len(sellers), local.config.clients]
    if others and min(others) >= max(asks[client] for client in sellers):
        expected.append(min(others))
    assert numbers(said.sales_takeaway(local)) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("which", ["local", "sums"])
def test_wallets(which, request):
    """With full-batch steps a wallet adds up μ² = 1/σ²; its cap is a μ² by the Gaussian curve, at its part of δ."""
    result = request.getfixturevalue(which)
    rows = client_table(result)
    cap = squared_mu_of(result.config.wallet, 0.775 * result.config.delta)
    clients = range(result.config.clients)
    used = [sum(1.0 / s**2 for s in multipliers_of(result, client)) / cap for client in clients]
    for row, share in zip(rows, used, strict=True):
        assert row["wallet_left"] == pytest.approx(max(0.0, 1.0 - share), abs=0.01)
    sentence = plain(said.wallet_takeaway(rows, result.config.wallet))
    empty = sum(share > 0.99 for share in used)
    assert numbers(sentence)[:4] == pytest.approx([empty, result.config.clients, 1, result.config.wallet], abs=0.01)
    if "client" in sentence:
        client = int(re.search(r"client (\d+)", sentence).group(1))
        assert numbers(sentence)[-1] == pytest.approx(100 * used[client], abs=1.0)
        assert numbers(sentence)[-2] == pytest.approx(
            independent_epsilon(multipliers_of(result, client), result.config.delta), rel=0.01
        )


def squared_mu_of(epsilon, delta):
    """μ² of a Gaussian mechanism that is (ε, δ)-DP, by bisection on its exact curve [BalleWang2018]."""

    def curve(mu):
        phi = [0.5 * math.erfc(-x / math.sqrt(2.0)) for x in (mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu)]
        return phi[0] - math.exp(epsilon) * phi[1]

    low = 1e-6
    high = 50.0
    for _ in range(200):
        middle = (low + high) / 2
        if curve(middle) < delta:
            low = middle
        else:
            high = middle
    return low**2


def test_a_wallet_that_was_used_is_never_said_to_be_full():
    """ε = 0.99 of 25 uses four thousandths of the wallet; that was shown as 100 % left."""
    left = 1.0 - squared_mu_of(0.99, 1e-5) / squared_mu_of(25.0, 1e-5)
    assert f"{left:.0%}" == "100%"
    assert rounded_down_percent(left) == "99 %"
    shown = [rounded_down_percent(share) for share in (1.0, 0.99999, 0.5, 0.2999, 0.009, 1e-12, 0.0)]
    assert shown == ["100 %", "99 %", "50 %", "29 %", "under 1 %", "under 1 %", "0 %"]


def test_own_records(sums):
    shown = round(100 * sums.accuracy, 1) - 61.2
    headline = plain(said.headline({"": sums}, own=OWN))
    assert headline.startswith(
        "Your own records alone: a model of 40 records is right on 61.2 % of the test, for nothing. For "
    )
    better = replace(OWN, accuracy=sums.accuracy - 0.1)
    assert "10.0 points better than your own records alone" in plain(said.headline({"": sums}, own=better))
    for accuracy in (sums.accuracy, sums.accuracy + 0.2):
        worse = said.headline({"": sums}, own=replace(OWN, accuracy=accuracy))
        assert "no better than your own records alone, so there was nothing to buy here" in worse
    assert ("points better" in headline) == (shown > 0)


def test_a_gain_stands_beside_its_error(sums):
    """Ten points better: beyond chance with a standard error of 4 points, and perhaps chance with one of 6."""
    beyond = "better than your own records alone (standard error 4.0 points)."
    within = "which the choice of 360 test records may explain (standard error 6.0 points)."
    for error, words in ((0.04, beyond), (0.06, within)):
        own = replace(OWN, accuracy=sums.accuracy - 0.1, gain_error=error)
        assert words in plain(said.headline({"": sums}, own=own))
        assert f"has a standard error of {100 * error:.1f} points" in said.uncertainty_sentence(sums, own)
    assert said.uncertainty_sentence(sums, OWN) == said.sampling_sentence(360, sums.accuracy)


def test_what_a_unit_of_epsilon_cost(sums, tmp_path):
    """Paid, asked and the highest ask, from the rounds' records; too much is said where nobody asks half of it."""
    sold = sum(sum(record.sold_epsilon.values()) for record in sums.records)
    paid = sum(record.spent_micro for record in sums.records) / 1e6
    asks = {name: float(ask) for name, ask in zip(sums.task.clients, sums.types.valuation, strict=True)}
    asked = sum(asks[name] * epsilon for record in sums.records for name, epsilon in record.sold_epsilon.items())
    prices = sums.prices
    assert (prices.paid, prices.asked) == (pytest.approx(paid / sold), pytest.approx(asked / sold))
    assert prices.highest == max(asks.values())
    assert not prices.is_too_much
    assert "Try a smaller budget" not in prices.sentence()
    dear = run(LOCAL.replace(rounds=1, budget=1e6))
    assert dear.prices.is_too_much
    assert "No client asks more than" in dear.prices.sentence()
    page = write_report(tmp_path / "p.html", {"": dear}, command="").read_text(encoding="utf-8")
    assert dear.prices.sentence() in page


def test_asks_that_nobody_made_are_said_to_be_drawn(sums, tmp_path):
    drawn = "What clients ask was drawn from Uniform(0, 1), not made by these clients"
    assert asks_sentence(SUMS).startswith(drawn)
    assert drawn in write_report(tmp_path / "p.html", {"": sums}, command="").read_text(encoding="utf-8")
    assert "from past.csv" in asks_sentence(SUMS.replace(scenario="past.csv"))
    assert "computed from their records" in asks_sentence(SUMS.replace(valuations="measured"))
    assert asks_sentence(SUMS.replace(bids="a digest")) == asks_sentence(SUMS.replace(mode="no-dp")) == ""


def test_how_many_own_records_would_do_as_well():
    assert numbers(said.own_records_takeaway(OWN, 0.69)) == [10, 143, 69.0, 60, 70.0]
    assert numbers(said.own_records_takeaway(OWN, 0.94)) == [10, 143, 143, 93.0, 94.0]
    assert "less than the market" in said.own_records_takeaway(OWN, 0.94)


def test_own_records_are_those_that_no_client_holds():
    made = own_records_of(SUMS, 40, (20, 200))
    assert [records for records, _ in made.curve] == [20, 40]  # 200 are not kept back
    assert (made.records, made.tested, made.draws) == (40, 360, 10)
    # A nearest-neighbour guess from 40 digits is right on about three quarters; chance is a tenth.
    assert 0.65 < made.accuracy < 0.9
    assert made.curve[0][1] < made.curve[1][1] == made.accuracy


def test_how_uncertain_an_accuracy_is():
    draws = np.random.default_rng(0).binomial(360, 0.86, 20_000) / 3.6
    stated = numbers(said.sampling_sentence(360, 0.86))
    assert stated[:1] == [360]
    assert stated[1] == 3.6
    assert stated[2] == pytest.approx(draws.std(), abs=0.1)


def test_the_page_says_each_of_these_sentences(sums, local, quiet, tmp_path):
    runs = {"a": sums, "b": local, "c": quiet}
    path = write_report(tmp_path / "p.html", runs, command="", own=OWN, remarks=["A remark."])
    page = path.read_text(encoding="utf-8").replace("&#39;", "'")
    for sentence in (
        said.headline(runs, own=OWN),
        said.details(runs),
        said.strength_sentence(said.worst_promise(sums), said.worst_promise_alone(sums)),
        said.other_trust_sentence(runs),
        said.accuracy_takeaway(runs),
        said.own_records_takeaway(OWN, sums.accuracy),
        said.sales_takeaway(sums),
        said.money_takeaway(sums),
        said.wallet_takeaway(client_table(sums), 1.0, [f"client {i}" for i in range(8)]),
        said.sampling_sentence(360, sums.accuracy),
        "A remark.",
    ):
        assert sentence in page
    assert "total over many rounds is less than the sum of its sales" in " ".join(page.split())
    for row in client_table(sums):
        added_up = sum(record.sold_epsilon.get(str(row["client"]), 0.0) for record in sums.records)
        assert row["epsilon_spent"] < added_up


def test_a_score_of_ones_own_gets_no_article(local):
    own = Score("hits", lambda outputs, labels: 0.0, heading="hits in the top tenth", percent=True)
    loss = local.task.replace(score="log-loss")
    assert said.does(replace(local, task=local.task.replace(score=own)), 0.35) == (
        "reaches 35.0 % (hits in the top tenth) on the test"
    )
    assert said.does(replace(local, task=loss), 0.5) == "has a log-loss of 0.500 on the test"
