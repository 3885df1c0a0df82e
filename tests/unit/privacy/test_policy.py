import math
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from privmarket.errors import ConfigurationError
from privmarket.privacy._policy import (
    MEANINGS,
    TEMPLATE,
    Order,
    PolicyRefusal,
    Reason,
    SellerPolicy,
    model_fingerprint,
    read_policy_file,
)

GOOD = Order(
    delta=1e-5, epsilon=0.5, clip_norm=1.0, learning_rate=0.5, expected_batch=600.0, buyer="b1", broker="http://b"
)


def refused(policy, order):
    with pytest.raises(PolicyRefusal) as caught:
        policy.check(order)
    return caught.value.reason


def read(tmp_path, text):
    file = tmp_path / "seller.toml"
    file.write_text(text, encoding="utf-8")
    found = SellerPolicy.read(file)
    assert found.wallet.startswith(str(tmp_path))  # beside the policy file, wherever the client is started
    return replace(found, wallet=found.wallet.removeprefix(f"{tmp_path}/"))


def test_an_empty_file_and_the_printed_template_are_the_defaults(tmp_path):
    assert read(tmp_path, "") == SellerPolicy() == read(tmp_path, TEMPLATE)
    assert set(tomllib.loads(TEMPLATE)) == {f.name for f in fields(SellerPolicy)}


def test_the_defaults_take_a_plain_order():
    SellerPolicy().check(GOOD)
    SellerPolicy().check(Order(delta=1e-6, sampling_rate=0.05))


@pytest.mark.parametrize(("field", "reason"), [("epsilon", Reason.EPSILON), ("delta", Reason.DELTA)])
def test_a_limit_is_met_up_to_rounding_and_no_further(field, reason):
    limits = {"epsilon": SellerPolicy().epsilon_per_sale, "delta": SellerPolicy().delta}
    most = limits[field] * (1.0 + 1e-9)
    SellerPolicy().check(replace(GOOD, **{field: most}))
    assert refused(SellerPolicy(), replace(GOOD, **{field: np.nextafter(most, np.inf)})) is reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"epsilon": 1.1}, Reason.EPSILON),
        ({"epsilon": 0.0}, Reason.EPSILON),
        ({"epsilon": math.nan}, Reason.EPSILON),
        ({"delta": 0.5}, Reason.DELTA),
        ({"delta": math.nan}, Reason.DELTA),
        ({"sampling_rate": 0.0123, "steps": 77}, Reason.SCHEDULE),
        ({"sampling_rate": 1.0, "steps": 10**9}, Reason.SCHEDULE),
        ({"sampling_rate": 0.0}, Reason.SCHEDULE),
        ({"sampling_rate": math.nan}, Reason.SCHEDULE),
        ({"clip_norm": 1e-9}, Reason.CLIP_NORM),
        ({"clip_norm": math.inf}, Reason.CLIP_NORM),
        ({"learning_rate": 1e9}, Reason.LEARNING_RATE),
        ({"learning_rate": math.nan}, Reason.LEARNING_RATE),
        ({"expected_batch": 1e-30}, Reason.EXPECTED_BATCH),
        ({"trust": "aggregate", "supposed_honest": 0.5}, Reason.TRUST),
        ({"unit": "person"}, Reason.UNIT),
    ],
)
def test_every_order_outside_the_defaults_is_refused_for_its_own_reason(change, reason):
    assert refused(SellerPolicy(), replace(GOOD, **change)) is reason


@pytest.mark.parametrize(
    ("policy", "change", "said"),
    [
        (SellerPolicy(), {"epsilon": 1.1}, "epsilon_per_sale = 1.0"),
        (SellerPolicy(), {"delta": 0.5}, "delta = 1e-05"),
        (SellerPolicy(), {"steps": 10**9}, "steps = 1000"),
        (SellerPolicy(schedules=((0.05, 20),)), {}, "schedules = [[0.05, 20]]"),
        (SellerPolicy(), {"sampling_rate": 0.0123, "steps": 77}, 'schedules = "ready"'),
        (SellerPolicy(), {"clip_norm": 1e-9}, "clip_norm = [0.001, 1000.0]"),
        (SellerPolicy(), {"trust": "aggregate"}, "trust = ['local']"),
        (SellerPolicy(), {"unit": "person"}, 'unit = "record"'),
        (SellerPolicy(buyers=frozenset({"b2"})), {}, "buyers = ['b2']"),
        (SellerPolicy(brokers=frozenset({"http://c"})), {}, "brokers = ['http://c']"),
    ],
)
def test_a_refusal_names_the_key_of_the_policy(policy, change, said):
    with pytest.raises(PolicyRefusal) as caught:
        policy.check(replace(GOOD, **change))
    assert said in caught.value.message


def test_an_unknown_schedule_is_refused_at_once(monkeypatch):
    def never(*_):
        raise AssertionError("a table was built")

    monkeypatch.setattr("privmarket.privacy._calibration.build_table", never)
    assert refused(SellerPolicy(), replace(GOOD, sampling_rate=0.0371, steps=29)) is Reason.SCHEDULE


def test_a_list_of_schedules_takes_those_and_no_others():
    policy = SellerPolicy(schedules=((0.05, 20),))
    policy.check(replace(GOOD, sampling_rate=0.05, steps=20))
    assert refused(policy, GOOD) is Reason.SCHEDULE


def test_aggregate_trust_is_taken_when_it_rests_on_no_more_honest_sellers_than_supposed():
    policy = SellerPolicy(trust=("local", "aggregate"), honest_share=0.6)
    sum_ = replace(GOOD, trust="aggregate", registered=True)
    policy.check(replace(sum_, supposed_honest=0.5))
    assert refused(policy, replace(sum_, supposed_honest=0.9)) is Reason.HONEST_SHARE
    assert refused(policy, replace(sum_, supposed_honest=0.0)) is Reason.HONEST_SHARE
    assert refused(policy, replace(GOOD, trust="hearsay")) is Reason.TRUST


def test_a_secure_sum_needs_enough_sellers_and_a_register():
    policy = SellerPolicy(trust=("local", "aggregate"))
    sum_ = replace(GOOD, trust="aggregate", supposed_honest=0.6, registered=True, sellers=10)
    policy.check(sum_)
    assert refused(policy, replace(sum_, sellers=9)) is Reason.COHORT
    assert refused(policy, replace(sum_, registered=False)) is Reason.REGISTER
    replace(policy, register="none", minimum_cohort=3).check(replace(sum_, registered=False, sellers=3))
    policy.check(replace(GOOD, sellers=0))  # under local trust nothing rests on others


@pytest.mark.parametrize(
    ("limit", "owed", "with_sale", "fits"),
    [
        (None, 0.5, 0.8, True),
        (None, 0.5, 0.81, False),
        (None, 0.0, 1.0, True),
        (2.0, 1.9, 2.0, True),
        (math.inf, 1e9, 2e9, True),
    ],
)
def test_who_would_owe_too_much_is_refused_before_the_sale(limit, owed, with_sale, fits):
    policy = SellerPolicy(unpaid_epsilon=limit)
    if fits:
        policy.check_debt("lab", owed, with_sale, cap_epsilon=8.0)
        return
    with pytest.raises(PolicyRefusal, match="lab has not paid") as caught:
        policy.check_debt("lab", owed, with_sale, cap_epsilon=8.0)
    assert caught.value.reason is Reason.UNPAID
    assert "unpaid_epsilon" in caught.value.hint
    with pytest.raises(PolicyRefusal, match="who all count as one, have not paid") as caught:
        policy.check_debt("", owed, with_sale, cap_epsilon=8.0)
    assert "broker" in caught.value.hint


@pytest.mark.parametrize(
    ("records", "declared"),
    [(1.0, 1.0), (37.0, 37.0), (99.0, 99.0), (100.0, 100.0), (101.0, 110.0), (612.0, 620.0), (600.0, 600.0),
     (45_001.0, 46_000.0), (999.0, 1000.0), (0.5, 0.5)],
)  # fmt: skip
def test_records_are_declared_with_two_digits_and_never_fewer(records, declared):
    assert SellerPolicy().declared(records) == declared
    assert SellerPolicy(declared_records="exact").declared(records) == records


def test_buyers_and_brokers_are_held_to_the_lists():
    policy = SellerPolicy(buyers=frozenset({"b1"}), brokers=frozenset({"http://b"}))
    policy.check(GOOD)
    assert refused(policy, replace(GOOD, buyer="b2")) is Reason.BUYER
    assert refused(policy, replace(GOOD, broker=None)) is Reason.BROKER
    assert refused(SellerPolicy(buyers=frozenset({"b1"})), replace(GOOD, buyer=None)) is Reason.BUYER


def weights(value=0.1, dtype=np.float32):
    return {"w": np.full((3, 2), value, dtype), "b": np.zeros(2, dtype)}


def test_weights_are_taken_when_they_look_like_weights():
    SellerPolicy().check_weights(weights(), {"w": (3, 2), "b": (2,)})
    SellerPolicy(models=frozenset({model_fingerprint(weights())})).check_weights(weights())
    assert model_fingerprint(weights()) == model_fingerprint({"b": (2,), "w": (3, 2)})


@pytest.mark.parametrize(
    ("policy", "sent", "reason"),
    [
        (SellerPolicy(), weights(np.nan), Reason.WEIGHTS),
        (SellerPolicy(), weights(-np.inf), Reason.WEIGHTS),
        (SellerPolicy(), weights(1e9), Reason.WEIGHTS),
        (SellerPolicy(), weights(-1e9), Reason.WEIGHTS),
        (SellerPolicy(), weights(1, np.int64), Reason.WEIGHTS),
        (SellerPolicy(), weights(1, np.float16), Reason.WEIGHTS),
        (SellerPolicy(), weights(1, np.complex64), Reason.WEIGHTS),
        (SellerPolicy(), {"w": weights()["w"]}, Reason.WEIGHTS),
        (SellerPolicy(), {"w": weights()["w"].T, "b": weights()["b"]}, Reason.WEIGHTS),
        (SellerPolicy(parameters=7), weights(), Reason.WEIGHTS),
        (SellerPolicy(models=frozenset({"0" * 16})), weights(), Reason.MODEL),
    ],
)
def test_other_weights_are_refused(policy, sent, reason):
    with pytest.raises(PolicyRefusal) as caught:
        policy.check_weights(sent, {"w": (3, 2), "b": (2,)})
    assert caught.value.reason is reason


def test_no_weights_at_all_are_refused():
    with pytest.raises(PolicyRefusal):
        SellerPolicy().check_weights({})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("epsilon_per_sail = 1.0", "did you mean epsilon_per_sale"),
        ("zzz = 1", "known: epsilon_per_sale"),
        ("epsilon_lifetime = inf", "unlimited"),
        ('epsilon_lifetime = "none"', "not a number"),
        ("epsilon_lifetime = -1", "above 0"),
        ("delta = 0.9", "delta"),
        ("delta = 0.4", "published outright"),
        ("delta = 0.1", "published outright"),
        ("delta = nan", "not a number"),
        ("delta = true", "not a number"),
        ("steps = 2.5", "whole"),
        ("clip_norm = 1.0", r"\[least, most\]"),
        ("clip_norm = [2.0, 1.0]", "least"),
        ("schedules = [[1.0]]", "sampling rate, steps"),
        ("schedules = [[2.0, 1]]", "schedule"),
        ('trust = ["locl"]', "choose from: local"),
        ("trust = []", "no trust"),
        ("price = 3", "table"),
        ("price = { lokal = 3 }", "choose from"),
        ("price = { local = -3 }", "at least 0"),
        ("honest_share = 1.5", "share"),
        ('unit = "family"', "choose from: record"),
        ("buyers = 3", "not a list"),
        ("minimum_cohort = 0", "at least 1"),
        ('register = "maybe"', "choose from: required"),
        ('declared_records = "guessed"', "choose from: rounded"),
        ("unpaid_epsilon = 0", "above 0"),
        ('unpaid_epsilon = "half"', "not a number"),
        ("head_file = 3", "not a text"),
        ("wallet = ''", "not a text"),
        ("= 3", "seller.toml"),
    ],
)
def test_a_bad_file_is_refused_in_one_line_that_names_it(tmp_path, text, named):
    with pytest.raises(ConfigurationError, match=named) as caught:
        read(tmp_path, text)
    assert "seller.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"absent\.toml"):
        SellerPolicy.read(tmp_path / "absent.toml")


def test_unlimited_must_be_written_out(tmp_path):
    assert read(tmp_path, 'epsilon_lifetime = "unlimited"').epsilon_lifetime == math.inf
    assert math.isfinite(SellerPolicy().epsilon_lifetime)


def test_prices_per_trust(tmp_path):
    policy = read(tmp_path, 'trust = ["local", "aggregate"]\nprice = { local = 0.5, aggregate = 0.1 }')
    assert policy.price == {"local": 0.5, "aggregate": 0.1}
    assert SellerPolicy().price == {}


def test_every_reason_has_a_meaning_and_fits_a_word():
    assert set(MEANINGS) == set(Reason)
    assert all(" " not in reason and len(reason) < 20 for reason in Reason)


def test_every_reason_is_explained_on_its_page():
    page = (Path(__file__).parents[3] / "docs/reference/refusals.md").read_text(encoding="utf-8")
    explained = page.partition("### What to do about a word")[2].partition("###")[0]
    assert [reason for reason in Reason if f"`{reason.value}`" not in explained] == []


def test_every_field_of_a_policy_is_a_key_of_its_file(tmp_path):
    file = tmp_path / "seller.toml"
    file.write_text(TEMPLATE, encoding="utf-8")
    assert set(read_policy_file(file)) == {one.name for one in fields(SellerPolicy)}
