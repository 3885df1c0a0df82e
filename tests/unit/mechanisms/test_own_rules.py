"""Rules from outside the package: functions, classes, objects, `module:Rule`, entry points."""

from __future__ import annotations

import importlib
import re
import sys
from importlib.metadata import EntryPoint

import numpy as np
import pytest

import privmarket as pm
from privmarket.errors import ConfigurationError, MissingPartError, OutcomeError, UnknownNameError
from privmarket.market._facts import MarketFacts
from privmarket.mechanisms import FunctionRule, _registry as registry, resolve
from privmarket.mechanisms._proportional_share import ProportionalShare

BIDS = pm.Bids([0.2, 0.9, 0.4], [1.0, 2.0, 0.5])


def posted_price(bids, budget, price: float = 0.5):
    """Everybody below the price sells, as long as the money lasts."""
    sold = np.where(bids.valuation <= price, bids.epsilon, 0.0)
    scale = min(1.0, budget / max(price * sold.sum(), 1e-12))
    return sold * scale, price * sold * scale


class Half(pm.Mechanism):
    """Buys half of what proportional share buys."""

    name = "half"
    market_facts = ("epsilon_max",)

    def __init__(self, epsilon_max: float = 5.0, factor: float = 0.5) -> None:
        self.epsilon_max, self.factor = epsilon_max, factor

    def clear(self, bids, budget):
        whole = ProportionalShare().clear(bids, budget)
        return pm.Outcome(whole.epsilon * self.factor, whole.payment * self.factor)


def test_a_function_of_one_market_clears_batches():
    rule = resolve(posted_price)
    assert isinstance(rule, FunctionRule)
    assert rule.name == "posted_price"
    one = rule.run(BIDS, 1.0)
    assert one.epsilon.tolist() == [1.0, 0.0, 0.5]
    assert one.payment.tolist() == [0.5, 0.0, 0.25]
    many = rule.run(pm.Bids(np.tile(BIDS.valuation, (2, 3, 1)), np.tile(BIDS.epsilon, (2, 3, 1))), 1.0)
    assert np.array_equal(many.payment, np.broadcast_to(one.payment, (2, 3, 3)))


def test_a_rule_that_misses_a_setting_is_refused_by_name():
    def needs(bids, budget, *, price, **more):
        return posted_price(bids, budget, price)

    with pytest.raises(ConfigurationError, match="needs the setting 'price'"):
        resolve(needs)
    assert resolve(needs, price=0.3).run(BIDS, 1.0).epsilon.tolist() == [1.0, 0.0, 0.0]  # nor anything for **more


def test_a_function_takes_settings_and_facts():
    assert resolve(posted_price, price=0.3).run(BIDS, 1.0).epsilon.tolist() == [1.0, 0.0, 0.0]
    with pytest.raises(UnknownNameError, match="did you mean 'price'"):
        resolve(posted_price, prise=0.3)
    with pytest.raises(ConfigurationError, match=r"price is 'high'.*must be a number"):
        resolve(posted_price, price="high")
    with pytest.raises(UnknownNameError, match="budget"):  # an argument that every auction gives is no setting
        resolve(posted_price, budget=3.0)

    def limit(bids, budget, epsilon_max=1.0):
        return np.minimum(bids.epsilon, epsilon_max), np.zeros(bids.clients)

    assert resolve(limit, market=MarketFacts(epsilon_max=0.7)).run(BIDS, 1.0).epsilon.max() == 0.7


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (np.zeros(3), "returned ndarray, not a pair"),
        ((np.zeros(2), np.zeros(2)), r"shape \(2,\) where the bids have \(3,\)"),
        ((np.zeros(3), np.zeros(2)), "payment: shape"),
        ((np.zeros(3), [0.0, np.nan, 0.0]), "payment of client 1 is nan"),
        ((np.full(3, 9.0), np.zeros(3)), "epsilon of client 0 is 9"),
        (("all", "nothing"), "not an array of numbers"),
    ],
)
def test_what_a_function_returns_is_checked(answer, message):
    with pytest.raises(OutcomeError, match=message):
        resolve(lambda bids, budget: answer).run(BIDS, 1.0)


def test_classes_and_objects():
    assert resolve(Half, market=MarketFacts(epsilon_max=3.0)).epsilon_max == 3.0
    made = Half(factor=0.25)
    assert resolve(made) is made
    with pytest.raises(ConfigurationError, match="already made"):
        resolve(made, factor=0.5)
    with pytest.raises(ConfigurationError, match="no auction rule"):
        resolve(int)
    with pytest.raises(ConfigurationError, match=r"no auction rule.*\(bids, budget\)"):
        resolve(lambda: None)


def test_a_file_without_a_name_is_answered_with_the_names_in_it(tmp_path, monkeypatch):
    """Read, not run: the file may do anything when it is imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.py").write_text(
        "import numpy as np\nclass Split: ...\ndef first(bids, budget): ...\ndef _helper(): ...\nraise SystemExit\n"
    )
    for given in ("rules.py", "rules.py:"):
        with pytest.raises(ConfigurationError, match="names a file and no rule in it") as told:
            resolve(given)
        assert told.value.hint == "write rules.py:NAME, with one of: Split, first"
    with pytest.raises(ConfigurationError, match="names a file and no attack in it"):
        pm.audit("pac", attack="rules.py", clients=2, profiles=1)
    with pytest.raises(ConfigurationError, match="names a file and no distribution in it"):
        pm.audit("pac", scenario="rules.py", clients=2, profiles=1)
    (tmp_path / "rules.py").write_text("class Split(:\n")
    with pytest.raises(ConfigurationError, match="names a file") as told:
        resolve("rules.py")
    assert told.value.hint == "write rules.py:NAME"
    with pytest.raises(ConfigurationError, match="names no rule"):
        resolve("nowhere.py")


def test_module_and_file_names(tmp_path, monkeypatch):
    source = "def free(bids, budget):\n    return 0 * bids.epsilon, 0 * bids.epsilon\n"
    (tmp_path / "mine_for_test.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    assert resolve("mine_for_test:free").run(BIDS, 1.0).spend == 0
    assert resolve(f"{tmp_path / 'mine_for_test.py'}:free").name == "free"
    with pytest.raises(UnknownNameError, match="did you mean 'free'"):
        resolve("mine_for_test:fre")
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        resolve("no_such_module_here:rule")
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        resolve("nowhere.py:rule")
    (tmp_path / "torn.py").write_text("def free(:\n")
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        resolve("torn:free")


def test_a_name_never_imports_code():
    """A broker's tasks name rules too: `mechanism` must not import what a stranger names."""
    for name in ("os:system", "tests.unit.mechanisms.test_own_rules:Half"):
        with pytest.raises(UnknownNameError):
            pm.mechanism(name)


def test_did_you_mean():
    with pytest.raises(UnknownNameError, match="did you mean 'mean-field-menu'"):
        pm.mechanism("mean-field-menue")
    with pytest.raises(UnknownNameError, match="did you mean 'pac:literal'"):
        resolve("pac:litteral")
    with pytest.raises(UnknownNameError, match="did you mean 'bimodal'"):
        pm.scenario("bi-modal")


def test_entry_points_add_rules_but_cannot_replace_ours(monkeypatch):
    points = [
        EntryPoint("half", "tests.unit.mechanisms.test_own_rules:Half", registry.GROUP),
        EntryPoint("pac", "tests.unit.mechanisms.test_own_rules:Half", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    registry._added.cache_clear()
    try:
        assert "half" in pm.mechanism_names()
        assert pm.mechanism("half", factor=0.1).factor == 0.1
        assert pm.mechanism("pac").name == "pac"
    finally:
        registry._added.cache_clear()


class Quits(pm.Mechanism):
    """Ends the program where it should decide, or where it is made."""

    name = "quits"

    def __init__(self, at_once: bool = False) -> None:
        if at_once:
            sys.exit()

    def clear(self, bids, budget):
        sys.exit("done here")


def test_a_rule_that_ends_the_program_is_named(tmp_path, monkeypatch):
    (tmp_path / "quitting_module.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OutcomeError, match="rule quits ended the program by SystemExit: done here"):
        Quits().run(BIDS, 1.0)
    with pytest.raises(OutcomeError, match=r"rule Quits ended the program by SystemExit \("):
        resolve(Quits, at_once=True)
    with pytest.raises(OutcomeError, match="rule quitting_module ended the program by SystemExit: 0"):
        resolve("quitting_module:Rule")
    with pytest.raises(OutcomeError, match="rule quits"):
        pm.audit(Quits(), clients=4, profiles=1)


def test_an_entry_point_that_cannot_be_loaded_is_named(tmp_path, monkeypatch):
    (tmp_path / "quitting_point.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        EntryPoint("gone", "no_such_package:Rule", registry.GROUP),
        EntryPoint("nameless", "json:Rule", registry.GROUP),
        EntryPoint("quits", "quitting_point:Rule", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    registry._added.cache_clear()
    try:
        with pytest.raises(ConfigurationError, match="'gone' cannot be loaded from no_such_package:Rule"):
            pm.mechanism("gone")
        with pytest.raises(ConfigurationError, match="mechanism 'nameless' cannot be loaded from json:Rule"):
            pm.mechanism("nameless")
        with pytest.raises(OutcomeError, match=r"rule quits \(quitting_point:Rule\) ended the program"):
            pm.mechanism("quits")
    finally:
        registry._added.cache_clear()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("vcg", {"winners": "two"}, "winners is 'two'.*must be a whole number or null"),
        ("vcg", {"winners": 1.5}, "winners is 1.5"),
        ("vcg", {"winners": True}, "winners is True"),
        ("mean-field-menu", {"epsilon_max": "big"}, "epsilon_max is 'big'.*must be a number"),
        ("mean-field-menu", {"curve": "steep"}, "curve is 'steep'.*must be MenuCurve"),
        ("pac", {"offer_limit": None}, "offer_limit is None"),
        ("pac", {"offer_limt": 1.0}, "did you mean 'offer_limit'"),
        ("csra", {"anything": 1.0}, "it takes none"),
    ],
)
def test_a_bad_setting_is_named_with_what_is_wanted(name, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        pm.mechanism(name, **settings)


def test_settings_of_the_right_type_pass():
    assert pm.mechanism("vcg", winners=2).winners == 2
    assert pm.mechanism("mean-field-menu", epsilon_max=7).epsilon_max == 7.0
    assert pm.mechanism("mfg-pricing", distribution="bimodal").distribution.name == "bimodal"


def test_audit_and_compare_take_rules_of_any_kind(tmp_path):
    report = pm.audit(posted_price, clients=6, budget=2.0, profiles=1, attack="quick", price=0.4)
    assert report.mechanism == "posted_price"
    assert "best misreport found gains" in str(report)
    found = pm.compare([posted_price, Half, "proportional-share"], clients=6, budget=2.0, profiles=1)
    assert [r.mechanism for r in found] == ["posted_price", "half", "proportional-share"]
    assert len(found) == 3
    assert found["half"].epsilon_bought == pytest.approx(0.5 * found["proportional-share"].epsilon_bought)
    assert "proportional-share" in found.table()
    assert "<td>half</td>" in found._repr_html_()
    frame = found.to_frame()
    assert frame.loc["half", "epsilon_bought"] == found["half"].epsilon_bought
    assert frame.loc["half", "regret.mean"] == found["half"].regret.mean
    found.plot(tmp_path / "rules.png")
    assert (tmp_path / "rules.png").stat().st_size > 5_000
    with pytest.raises(UnknownNameError, match="did you mean 'half'"):
        _ = found["halff"]
    with pytest.raises(UnknownNameError, match="unknown attack 'weak'"):
        pm.audit(Half, attack="weak")


def test_federate_takes_a_rule_of_any_kind():
    settings = {"clients": 5, "budget": 5.0, "rounds": 2, "seed": 1}
    by_name = pm.federate(mechanism="proportional-share", **settings)
    by_object = pm.federate(mechanism=ProportionalShare(), **settings)
    assert by_name.accuracy == by_object.accuracy
    assert by_name.spent == by_object.spent > 0
    own = pm.federate(mechanism=posted_price, mechanism_settings={"price": 0.4}, **settings)
    assert own.config.mechanism == "posted_price"
    assert own.spent > 0
    with pytest.raises(TypeError, match="round"):
        pm.federate(round=3)


def test_rules_whose_extra_is_missing_are_skipped_and_named(monkeypatch):
    def without_torch(name):
        if ".learned." in name:
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return importlib.import_module(name)

    monkeypatch.setattr(registry, "import_module", without_torch)
    with pytest.raises(MissingPartError, match=r"privmarket\[learn\]"):
        pm.mechanism("regretnet")
    found = pm.compare(clients=4, budget=2.0, profiles=1)
    assert "regretnet" not in [report.mechanism for report in found]
    assert any(line.startswith("regretnet: torch is not installed") for line in found.skipped)
    assert "skipped: regretnet" in str(found)


@pytest.mark.parametrize("answer", [lambda sold: sold, lambda sold: (sold, sold, sold), lambda sold: [sold]])
def test_a_rule_returns_two_arrays(answer):
    with pytest.raises(OutcomeError, match="not a pair"):
        FunctionRule(lambda bids, budget: answer(bids.epsilon)).run(pm.Bids([0.2, 0.4], [1.0, 1.0]), 1.0)


def test_what_the_hint_about_guarantees_names_can_be_given():
    class Wordy(Half):
        guarantees = ("truthful",)

    with pytest.raises(ConfigurationError, match="'truthful' among its guarantees is none") as refused:
        resolve(Wordy)
    (place, name), *_ = re.findall(r"([a-z.]+)\.(\w+)\(\)", refused.value.hint)
    promise = getattr(importlib.import_module(place), name)

    class Named(Half):
        guarantees = (promise(),)

    assert resolve(Named).guarantees == (promise(),)


def test_a_misspelt_name_is_no_module():
    for wrong in ("pak", "pac:literall"):
        with pytest.raises(UnknownNameError, match="did you mean 'pac"):
            resolve(wrong)
