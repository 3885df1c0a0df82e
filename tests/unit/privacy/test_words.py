import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import norm

from privmarket.errors import PrivacyError
from privmarket.privacy import _gaussian as gaussian
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._certificate import certify, group_epsilon, guess_accuracy
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._wallet import Wallet
from privmarket.privacy._words import Promise, lifetime_promise, promise, rounded_up_percent


def best_guess(p, q):
    """Brute force: the most often that a guess between two distributions on the same points is right."""
    return 0.5 * np.maximum(p, q).sum()


def test_the_issues_sentence_is_what_epsilon_one_says():
    assert guess_accuracy(1.0, 0.0) == pytest.approx(math.e / (1 + math.e))
    assert round(guess_accuracy(1.0), 2) == 0.73


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (1.0, 0.05), (3.0, 1e-3)])
def test_the_guess_is_the_best_that_any_private_release_allows(epsilon, delta):
    # Four outcomes are enough for the worst (ε, δ)-DP release: a linear programme over p and q finds it.
    points = 4
    variables = 2 * points  # p, then q
    best = 0.0
    for sign in np.ndindex(*(2,) * points):
        s = np.where(np.array(sign) == 1, 1.0, -1.0)
        cost = -np.concatenate([s, -s])  # total variation for the outcomes where p is guessed to be larger
        rows, limits = [], []
        for subset in np.ndindex(*(2,) * points):
            chosen = np.array(subset, dtype=float)
            for a, b in ((0, 1), (1, 0)):
                row = np.zeros(variables)
                row[a * points : (a + 1) * points] = chosen
                row[b * points : (b + 1) * points] = -math.exp(epsilon) * chosen
                rows.append(row)
                limits.append(delta)
        sums = np.zeros((2, variables))
        sums[0, :points] = 1.0
        sums[1, points:] = 1.0
        found = linprog(cost, np.array(rows), limits, sums, [1.0, 1.0])
        best = max(best, 0.5 + 0.25 * -found.fun)
    assert guess_accuracy(epsilon, delta) == pytest.approx(best, abs=1e-9)


def test_the_curve_says_more_than_epsilon_and_delta():
    event = ReleaseFamily().event(1.0)
    shown = promise([event])
    exact = norm.cdf(0.5 / event.noise_multiplier)
    assert exact <= shown.guess <= exact + 2e-5
    assert shown.guess < guess_accuracy(1.0)
    assert "55.4 %" in shown.sentence


def test_a_sampled_releases_guess_is_the_overlap_of_its_two_worlds():
    sigma, rate = 0.8, 0.3
    x = np.linspace(-15, 16, 400_001)
    step = x[1] - x[0]
    absent = norm.pdf(x, scale=sigma) * step
    present = (1 - rate) * absent + rate * norm.pdf(x, loc=1.0, scale=sigma) * step
    found = certify([PrivacyEvent(sigma, rate)]).guess_accuracy
    assert best_guess(absent, present) <= found <= best_guess(absent, present) + 1e-3


def test_five_records_of_one_person_turn_epsilon_one_into_six():
    assert group_epsilon([ReleaseFamily().event(1.0)], records=5) == pytest.approx(6.17, abs=0.01)
    assert "6.17" in promise([ReleaseFamily().event(1.0)]).group_line


def test_a_sampled_groups_epsilon_is_that_of_the_mixture():
    sigma, rate, k, delta = 2.0, 0.25, 3, 1e-5
    x = np.linspace(-40, 45, 600_001)
    step = x[1] - x[0]
    absent = norm.pdf(x, scale=sigma) * step
    weights = [math.comb(k, j) * rate**j * (1 - rate) ** (k - j) for j in range(k + 1)]
    present = sum(w * norm.pdf(x, loc=j, scale=sigma) * step for j, w in enumerate(weights))
    found = group_epsilon([PrivacyEvent(sigma, rate)], delta, records=k)
    worst = max(np.maximum(a - math.exp(found) * b, 0).sum() for a, b in ((absent, present), (present, absent)))
    assert 0.95 * delta < worst <= 1.01 * delta
    assert group_epsilon([PrivacyEvent(sigma, rate)], records=1) == pytest.approx(
        certify([PrivacyEvent(sigma, rate)]).epsilon_pld, rel=1e-6
    )


def test_a_wallets_words_hold_for_its_whole_capacity():
    wallet = Wallet(8.0, expected=[PrivacyEvent(3.0)])
    shown = lifetime_promise(wallet.cap_epsilon, measures=wallet.measures)
    mu = float(gaussian.mu_of(8.0, 1e-5))
    assert shown.guess == pytest.approx(norm.cdf(mu / 2), abs=2e-5)
    assert shown.guess < lifetime_promise(8.0).guess < guess_accuracy(8.0)
    assert lifetime_promise(8.0).guess == lifetime_promise(8.0, measures=Wallet(8.0).measures).guess


@pytest.mark.parametrize("cap", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("family", [ReleaseFamily(), ReleaseFamily(0.05, 20)])
def test_a_new_wallets_words_cover_what_it_lets_through(cap, family):
    event, wallet = family.event(0.2), Wallet(cap)
    while wallet.can_spend(event):
        wallet.spend(event)
    assert 0.5 < certify(wallet.history).guess_accuracy <= lifetime_promise(cap).guess <= guess_accuracy(cap)


@pytest.mark.parametrize("cap", [0.5, 2.0, 8.0])
def test_a_renyi_wallets_words_cover_what_it_lets_through(cap):
    event = ReleaseFamily(0.05, 20).event(0.2)
    wallet = Wallet(cap, expected=[event])
    assert wallet.measure.startswith("renyi")
    while wallet.can_spend(event):
        wallet.spend(event)
    assert certify(wallet.history).guess_accuracy <= lifetime_promise(cap, measures=wallet.measures).guess
    assert lifetime_promise(cap, measures=wallet.measures).guess <= guess_accuracy(cap)


def test_every_promise_names_unit_trust_arithmetic_and_group():
    text = "\n".join(promise([PrivacyEvent(3.0)]).lines())
    for word in ("unit: record", "public", "trust: local", "arithmetic: exact", "5 of the records"):
        assert word in text
    assert "together" in promise([PrivacyEvent(3.0)], unit="person").group_line
    assert "not private in floating point" in "\n".join(promise([PrivacyEvent(3.0)], arithmetic="float").lines())


def test_seeded_noise_is_warned_about():
    assert "seed" in promise([PrivacyEvent(3.0)], seeded=True).lines()[-1]
    assert "seed" not in "".join(promise([PrivacyEvent(3.0)]).lines())


def test_a_lifetime_says_what_five_records_of_one_person_have():
    """k records of a Gaussian curve of μ have one of k·μ; where a person is the unit, that is said already."""
    of_five = float(gaussian.epsilon_of(5 * gaussian.mu_of(2.0, 1e-5), 1e-5))
    assert lifetime_promise(2.0, measures=[("gaussian", 1.0)]).group_epsilon == pytest.approx(of_five)
    assert lifetime_promise(2.0, measures=[("gaussian", 1.0)], unit="person").group_epsilon is None


def test_no_limit_promises_nothing():
    shown = lifetime_promise(math.inf)
    assert "nothing is promised" in shown.sentence
    assert shown.to_json()["epsilon"] is None


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.5, "50 %"), (0.55332, "55.4 %"), (0.7, "70 %"), (0.99966, "99.97 %"), (0.999_999_9, "100 %"), (1, "100 %")],
)
def test_percentages_are_never_rounded_down(share, text):
    assert rounded_up_percent(share) == text


def test_unknown_words_are_refused():
    with pytest.raises(PrivacyError, match="unit"):
        Promise(1.0, 1e-5, 0.7, unit="family")
    with pytest.raises(PrivacyError):
        lifetime_promise(0.0)
    with pytest.raises(PrivacyError):
        lifetime_promise(1.0, measures=[("gaussian", 0.9), ("renyi 8", 0.2)])


@pytest.mark.parametrize("records", [0, -1])
def test_a_group_has_at_least_one_record(records):
    with pytest.raises(PrivacyError, match="a group of"):
        group_epsilon([ReleaseFamily().event(1.0)], records=records)
