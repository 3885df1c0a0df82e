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
    assert "a buyer that owes for more than ε = 0.8 is refused" in shown
    assert "an older copy of the wallet file, put back: not noticed" in shown
    assert "if all other sellers of the sum work together with the server: ε = 2.95" in shown


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
        book.reserve("run/1", 0.5, family.event(0.5), unit="person", trust="aggregate", due_micro=7)
        book.reserve("run/2", 0.5, family.event(0.5))
        book.void("run/2")
    before = wallet.path.read_bytes()
    shown = runner.invoke(app, ["seller", "statement", str(wallet.path)])
    assert shown.exit_code == 0
    for word in ("6.17", "55.4 %", "2.5", "void", "aggregate", "had they been fixed in advance", "not a promise"):
        assert word in shown.stdout
    found = json.loads(runner.invoke(app, ["seller", "statement", str(wallet.path), "--json"]).stdout)
    check_fields("seller statement", found)
    assert found["sales"][1]["promise"]["unit"] == "person"
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
        assert ("so this is what is promised" in shown) != registered
        assert ("the server may own all of them" in shown) != registered


@pytest.mark.parametrize("text", ["", "hello\n", '{"kind": "opened"}\n'])
def test_what_is_no_wallet_is_one_line(tmp_path, text):
    file = tmp_path / "wallet.jsonl"
    file.write_text(text)
    for place in (file, tmp_path / "absent.jsonl"):
        with pytest.raises(PrivmarketError, match="not a wallet file"):
            runner.invoke(app, ["seller", "statement", str(place)], catch_exceptions=False)
    with pytest.raises(PrivmarketError, match=r"no such file \(name the file of a client; its first sale"):
        runner.invoke(app, ["seller", "statement", str(tmp_path / "absent.jsonl")], catch_exceptions=False)
