"""Dealing sellers to cohorts: by a seed that nobody controls alone; what several sums cost."""

import math

import numpy as np
import pytest

from privmarket.secagg import (
    SharedSum,
    SumRefusal,
    cohort_sizes,
    cohorts_of,
    commitment,
    crowded_cohort_probability,
    deal_cohorts,
    deal_places,
    dealing_seed,
)
from tests.unit.secagg.parties import IDENTITIES

KEYS = [one.public_key for one in IDENTITIES]
SECRETS = {key: bytes([number]) * 32 for number, key in enumerate(KEYS)}
COMMITMENTS = {key: commitment(key, SECRETS[key]) for key in KEYS}


def test_cohorts_are_as_few_and_as_equal_as_possible():
    cohorts = deal_cohorts(KEYS, b"seed", largest=15)
    assert sorted(len(cohort) for cohort in cohorts) == [13, 13, 14]
    assert sorted(key for cohort in cohorts for key in cohort) == sorted(KEYS)
    assert all(list(cohort) == sorted(cohort) for cohort in cohorts)
    assert deal_cohorts(KEYS, b"seed", largest=40) == (tuple(sorted(KEYS)),)


@pytest.mark.parametrize(("sellers", "sums"), [(0, 1), (1, 1), (400, 1), (401, 2), (1000, 3), (4000, 10)])
def test_the_number_of_sums_and_their_sizes(sellers, sums):
    assert cohorts_of(sellers) == sums
    sizes = cohort_sizes(sellers)
    assert len(sizes) == sums
    assert sum(sizes) == sellers
    assert max(sizes) - min(sizes) <= 1


def test_everybody_computes_the_same_and_another_seed_gives_another():
    assert deal_cohorts(KEYS, b"a", 10) == deal_cohorts(KEYS[::-1], b"a", 10)
    assert deal_cohorts(KEYS, b"a", 10) != deal_cohorts(KEYS, b"b", 10)


def test_every_pair_meets_as_often_as_chance_says():
    """2,000 seeds; two of 40 sellers share one of four cohorts of 10 with probability 9/39."""
    met = sum(int(places[0] == places[1]) for places in (deal_places(40, b"%d" % i, 10) for i in range(2000)))
    expected = 9 / 39
    assert abs(met / 2000 - expected) < 6 * math.sqrt(expected * (1 - expected) / 2000)  # once in 10^9 runs


def test_a_dealing_that_follows_the_list_would_be_noticed(monkeypatch):
    """The subject broken on purpose: neighbours in the list meet far too often, or never."""
    met = sum(int(at[0] == at[1]) for at in (np.arange(40) % 4 for _ in range(2000)))
    assert abs(met / 2000 - 9 / 39) > 6 * math.sqrt(9 / 39 * 30 / 39 / 2000)


def test_the_seed_takes_every_secret_in():
    seed = dealing_seed(COMMITMENTS, SECRETS)
    for key in KEYS[:3]:
        other = {**SECRETS, key: b"z" * 32}
        assert dealing_seed({**COMMITMENTS, key: commitment(key, other[key])}, other) != seed


@pytest.mark.parametrize("opened", [{}, {KEYS[3]: b"another" * 4}])
def test_a_secret_that_stays_closed_stops_the_dealing(opened):
    """Else whoever opens last chooses between two dealings."""
    secrets = {key: secret for key, secret in SECRETS.items() if key != KEYS[3]} | opened
    with pytest.raises(SumRefusal, match="not opened"):
        dealing_seed(COMMITMENTS, secrets)


def test_one_commitment_cannot_be_copied_by_another():
    copied = {**COMMITMENTS, KEYS[1]: COMMITMENTS[KEYS[0]]}
    with pytest.raises(SumRefusal, match="not opened"):
        dealing_seed(copied, {**SECRETS, KEYS[1]: SECRETS[KEYS[0]]})


def test_one_seller_twice_is_refused():
    with pytest.raises(SumRefusal, match="twice"):
        deal_cohorts([*KEYS, KEYS[0]], b"seed")


def test_crowded_cohorts_against_brute_force():
    """Four of 12 sellers collude, cohorts of 6 may have 1: counted over all dealings by the hypergeometric law."""
    total = math.comb(12, 6)
    crowded = sum(math.comb(4, k) * math.comb(8, 6 - k) for k in range(2, 5)) / total
    assert crowded_cohort_probability(12, 4, 2 / 3, 6) == pytest.approx(min(1.0, 2 * crowded))
    assert crowded_cohort_probability(1000, 50, 2 / 3, 400) < 1e-9


def test_noise_of_several_sums_is_larger_by_the_root_of_their_number():
    sigma = np.full(1200, 10.0)
    public = {"clip_norm": 1.0, "parameters": 4, "honest_share": 2 / 3}
    one = SharedSum.plan(sigma, 50, **public)
    for cohorts in (2, 3, 4):
        several = SharedSum.plan(sigma, 50, **public, cohort_of=deal_places(1200, b"s", 1200 // cohorts))
        assert several.cohorts == cohorts
        ratio = several.deviation(range(1200)) / one.deviation(range(1200))
        assert ratio == pytest.approx(math.sqrt(cohorts), rel=2e-3)


def test_a_cohort_that_lost_too_many_is_left_out_and_the_others_count():
    places = deal_places(12, b"s", 6)
    plan = SharedSum.plan(np.full(12, 10.0), 50, clip_norm=1.0, parameters=3, honest_share=2 / 3, cohort_of=places)
    assert plan.thresholds == (5, 5)
    first = [seller for seller in range(12) if places[seller] == 0]
    came = [seller for seller in range(12) if seller not in first[:2]]
    counted = plan.counted(came)
    assert counted == [seller for seller in range(12) if places[seller] == 1]
    shares = np.ones((6, 3), dtype=np.int64)
    np.testing.assert_allclose(plan.opened(shares, counted), 6 / plan.weights[counted].sum())
    assert plan.opened(np.ones((10, 3), dtype=np.int64), came) is None
    assert plan.opened(np.zeros((0, 3), dtype=np.int64), []) is None


@pytest.mark.parametrize("bad", [[0, 2], [0], [0, 0, 1]])
def test_bad_cohorts_are_refused(bad):
    with pytest.raises(Exception, match="cohorts"):
        SharedSum.plan([1.0, 1.0], 5, clip_norm=1.0, parameters=1, honest_share=1.0, cohort_of=bad)
