import json
import math

import pytest
from typer.testing import CliRunner

from privmarket.cli import app
from privmarket.errors import ConfigurationError, PrivmarketError
from privmarket.privacy import _gaussian as gaussian
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._statement import lifetime_promise
from privmarket.privacy._wallet_store import WalletFile
from tests.json_fields import check_fields

runner = CliRunner()


def test_the_printed_policy_passes_the_check(tmp_path):
    file = tmp_path / "seller.toml"
    file.write_text(runner.invoke(app, ["seller", "policy"]).stdout, encoding="utf-8")
    shown = runner.invoke(app, ["seller", "check", str(file)])
    assert shown.exit_code == 0
    assert "is right at most 55.4 % of the time" in shown.stdout
    found = json.loads(runner.invoke(app, ["seller", "check", str(file), "--json"]).stdout)
    check_fields("seller check", found)
    assert found["policy"]["epsilon_lifetime"] == 8.0
    assert found["lifetime"]["epsilon"] == 8.0


def test_the_price_of_each_trust_is_shown(tmp_path):
    file = tmp_path / "seller.toml"
    file.write_text('trust = ["aggregate"]\nprice = { aggregate = 0.1 }\n')
    shown = runner.invoke(app, ["seller", "check", str(file)]).stdout
    assert "trust: aggregate" in shown
    assert "0.1 per unit of ε" in shown
    assert "local" not in shown
    assert "gets another only while all that it owes for is at most ε = 0.8" in shown
    assert "an older copy of the wallet file, put back: not noticed" in shown
    assert "no [guard] table: a GuardMod with this file takes its defaults, ε = 1" in shown
    assert "if all other sellers of the sum work together with the server: ε = 2.95" in shown


GUARD = "[guard]\nexamples = 480\n"
# A policy, and what the check says of it.
DOUBTFUL = {
    'epsilon_lifetime = "unlimited"\n': "there is no [guard] table",
    "delta = 0.01\nepsilon_per_sale = 1.0": "lets 10 of 1000 records be published",
    "delta = 0.0025\n" + GUARD: "lets 1.2 of 480 records be published",
    "epsilon_per_sale = 0.5\n" + GUARD: "limits sales only: an update of the guard costs ε = 1",
    "[guard]\nepsilon = 1.0\n": "examples = 1",
    "epsilon_lifetime = 1.0\nepsilon_per_sale = 2.0": "does not hold a sale of epsilon_per_sale = 2: ε = 0.9",
}
USELESS = {
    "epsilon_lifetime = 1.0\n" + GUARD: ("does not hold a single update", "epsilon_lifetime = 1.1 or more"),
    "epsilon_lifetime = 0.5\n[guard]\nepsilon = 0.1\nexamples = 9\n[guard.evaluate]\n"
    "accuracy = { range = [0, 1], epsilon = 0.6 }": ("does not hold a single evaluation", "0.7 or more"),
    "epsilon_lifetime = 0.001\nepsilon_per_sale = 1.0": ("does not hold a single sale", "raise epsilon_lifetime"),
}


@pytest.mark.parametrize("text", DOUBTFUL)
def test_what_is_doubtful_about_a_policy_is_said(text, tmp_path):
    file = tmp_path / "site.toml"
    file.write_text(text)
    shown = runner.invoke(app, ["seller", "check", str(file)])
    assert shown.exit_code == 0
    assert [DOUBTFUL[text] in line for line in shown.stdout.splitlines() if line.startswith("warning:")] == [True]
    found = json.loads(runner.invoke(app, ["seller", "check", str(file), "--json"]).stdout)
    assert len(found["warnings"]) == 1


@pytest.mark.parametrize("text", USELESS)
def test_a_policy_that_can_never_release_is_refused(text, tmp_path):
    file = tmp_path / "site.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=USELESS[text][0]) as caught:
        runner.invoke(app, ["seller", "check", str(file)], catch_exceptions=False)
    assert USELESS[text][1] in caught.value.hint


def test_a_policy_for_a_guard_has_no_lines_about_a_market(tmp_path):
    file = tmp_path / "site.toml"
    evaluation = "[guard.evaluate]\naccuracy = { range = [0, 1], epsilon = 0.2 }\n"
    file.write_text("epsilon_lifetime = 8.0\n" + GUARD + evaluation)
    shown = runner.invoke(app, ["seller", "check", str(file)]).stdout
    for word in ("sale", "unpaid", "price", "buyer", "warning"):
        assert word not in shown
    assert "a lifetime holds 37 updates" in shown
    assert "noise: 16 on the app's own number, by average_privately 0.017" in shown
    both = runner.invoke(app, ["seller", "policy"]).stdout
    file.write_text(both)
    assert "unpaid" in (shown := runner.invoke(app, ["seller", "check", str(file)]).stdout)
    assert "guarded" in shown
    assert "warning" not in shown


def test_no_limit_is_called_by_its_name(tmp_path):
    file = tmp_path / "seller.toml"
    file.write_text('epsilon_lifetime = "unlimited"\nepsilon_per_sale = "unlimited"\n')
    assert "nothing is promised" in runner.invoke(app, ["seller", "check", str(file)]).stdout


def test_a_typo_is_one_line(tmp_path):
    file = tmp_path / "seller.toml"
    file.write_text("epsilon_lifetim = 8\n")
    with pytest.raises(ConfigurationError, match="did you mean epsilon_lifetime"):
        runner.invoke(app, ["seller", "check", str(file)], catch_exceptions=False)


def test_a_statement_says_what_was_sold_and_what_it_means(tmp_path):
    wallet = WalletFile(tmp_path / "wallet.jsonl", 8.0)
    family = ReleaseFamily()
    with wallet.open() as book:
        book.reserve("run/0", 1.0, family.event(1.0))
        book.released("run/0", "0" * 64)
        book.paid("run/0", 2_500_000, "")
        book.reserve("run/1", 0.5, family.event(0.5), trust="aggregate", due_micro=7)
        book.reserve("run/2", 0.5, family.event(0.5))
        book.void("run/2")
    before = wallet.path.read_bytes()
    shown = runner.invoke(app, ["seller", "statement", str(wallet.path)])
    assert shown.exit_code == 0
    for word in ("6.17", "55.4 %", "2.5", "void", "aggregate", "had they been fixed in advance", "not a promise"):
        assert word in shown.stdout
    found = json.loads(runner.invoke(app, ["seller", "statement", str(wallet.path), "--json"]).stdout)
    check_fields("seller statement", found)
    assert found["sales"][1]["promise"]["unit"] == found["lifetime"]["unit"] == "record"
    assert found["sales"][0]["promise"]["group_epsilon"] == pytest.approx(6.17, abs=0.01)
    assert 0 < found["remaining_share"] < 1
    assert found["lifetime"]["guess"] == lifetime_promise(8.0).guess
    assert found["unpaid_epsilon"] == {}  # the unpaid sale has not left
    assert found["rollback_protection"] == ["none"]
    assert wallet.path.read_bytes() == before


def test_without_a_register_the_promise_is_what_is_left_if_all_others_collude(tmp_path):
    """Each of n sellers adds 1/h of the noise: alone it protects with σ/√h."""
    event = ReleaseFamily().event(0.5)
    alone = float(gaussian.epsilon_of(math.sqrt(20) / event.noise_multiplier, 1e-5))
    assert alone > 2.0
    for registered in (True, False):
        wallet = WalletFile(tmp_path / f"{registered}.jsonl", 8.0)
        with wallet.open() as book:
            terms = {"trust": "aggregate", "honest_share": 2 / 3, "sellers": 30, "registered": registered}
            book.reserve("run/0", 0.5, event, **terms)
        found = json.loads(runner.invoke(app, ["seller", "statement", str(wallet.path), "--json"]).stdout)
        words = found["sales"][0]["promise"]
        assert words["epsilon"] == pytest.approx(0.5 if registered else alone, rel=1e-3)
        assert words["epsilon_alone"] == found["epsilon_so_far_alone"] == pytest.approx(alone, rel=1e-3)
        shown = runner.invoke(app, ["seller", "statement", str(wallet.path)]).stdout
        assert ("this is what the wallet was charged" in shown) != registered
        assert ("the server may own all of them" in shown) != registered
        assert wallet.epsilon_spent == pytest.approx(0.5 if registered else alone, rel=1e-2)


def test_a_check_without_a_register_promises_only_what_holds_against_all_others(tmp_path):
    file = tmp_path / "seller.toml"
    file.write_text('trust = ["aggregate"]\nregister = "none"\nlargest_cohort = 30\n')
    shown = runner.invoke(app, ["seller", "check", str(file)]).stdout
    assert "in a secure sum at most ε = 0.19" in shown
    assert shown.count("the server may own all of them") == 3  # a sale, a lifetime, and whom it trusts
    assert "a round's sellers work together" not in shown


@pytest.mark.parametrize("text", ["", "hello\n", '{"kind": "opened"}\n'])
def test_what_is_no_wallet_is_one_line(tmp_path, text):
    file = tmp_path / "wallet.jsonl"
    file.write_text(text)
    for place in (file, tmp_path / "absent.jsonl"):
        with pytest.raises(PrivmarketError, match="not a wallet file"):
            runner.invoke(app, ["seller", "statement", str(place)], catch_exceptions=False)
    with pytest.raises(PrivmarketError, match=r"no such file \(name the file of a client; its first sale"):
        runner.invoke(app, ["seller", "statement", str(tmp_path / "absent.jsonl")], catch_exceptions=False)
