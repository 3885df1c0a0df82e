import math
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import norm

import privmarket
from privmarket.errors import PrivacyError
from privmarket.privacy import _gaussian as gaussian
from privmarket.privacy._accountant import certify, group_epsilon, guess_accuracy
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._statement import (
    EqualSales,
    Promise,
    lifetime_promise,
    parse_sale,
    promise,
    read_sales,
    rounded_up_percent,
    running_epsilon,
    statement,
)
from privmarket.privacy._wallet import Wallet


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
    said = "ε = 0.9999 at δ = 1e-05, which by itself allows 73.2 % right guesses; the noise here allows fewer"
    assert said in shown.lines()


def test_the_glossary_and_the_bid_form_state_both_bounds():
    """(ε, δ) alone, and one sale with Gaussian noise; percentages are rounded up."""
    any_release, gaussian = [], []
    for epsilon in (1.0, 2.0, 5.0):
        any_release.append(rounded_up_percent(guess_accuracy(epsilon, 1e-5)))
        gaussian.append(rounded_up_percent(promise([ReleaseFamily().event(epsilon)]).guess))
    root = Path(privmarket.__file__).parent
    form = (root / "broker/templates/round.html").read_text(encoding="utf-8")
    glossary = (Path(__file__).parents[3] / "docs/glossary.md").read_text(encoding="utf-8")
    for text in (form, glossary):
        for epsilon, share in zip((1, 2, 5), any_release, strict=True):
            assert f"{share} at ε = {epsilon}" in text.replace(" of the time", "")
        assert "{}, {} and {}".format(*gaussian) in text


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


@pytest.mark.parametrize(
    ("text", "sale"),
    [
        ("0.5", EqualSales(0.5)),
        ("1x200", EqualSales(1.0, count=200)),
        ("1 × 3", EqualSales(1.0, count=3)),
        ("0.5,0.05,20x10", EqualSales(0.5, 0.05, 20, 10)),
        (" 2 , 0.1 , 1 ", EqualSales(2.0, 0.1, 1)),
    ],
)
def test_sales_are_read_from_text(text, sale):
    assert parse_sale(text) == sale


@pytest.mark.parametrize(
    "text",
    ["", "x3", "1x", "1x0", "1x2.5", "1,2", "0", "-1", "nan", "inf", "1,2,3", "1,0.5,0", "a", "1xx2"],
)
def test_bad_sales_are_refused_and_named(text):
    with pytest.raises(PrivacyError) as caught:
        parse_sale(text)
    assert repr(text) in caught.value.message
    assert caught.value.hint


def test_sales_are_read_from_a_file(tmp_path):
    file = tmp_path / "sales.csv"
    file.write_text("epsilon,sampling_rate,steps,count\n1,,,200\n0.5,0.05,20,\n", encoding="utf-8")
    assert read_sales(file) == [EqualSales(1.0, count=200), EqualSales(0.5, 0.05, 20)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("epsilon,count\n1,2\n1,x\n", "line 3"),
        ("epsilon,price\n1,2\n", "columns"),
        ("", "columns"),
        ("epsilon\n", "no sales"),
        ("epsilon,count\n1\n", "line 2"),
        ("epsilon\n1,2,3\n", "line 2"),
        ("epsilon\n-1\n", "line 2"),
    ],
)
def test_bad_files_are_refused_and_the_place_named(tmp_path, text, named):
    file = tmp_path / "sales.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(PrivacyError, match=named):
        read_sales(file)
    with pytest.raises(PrivacyError, match="cannot be read"):
        read_sales(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(PrivacyError, match="cannot be read"):
        read_sales(tmp_path / "binary.csv")


def test_statement_equals_the_certificate_of_its_events():
    account = statement([EqualSales(1.0, count=30), EqualSales(2.0, count=2)])
    first, second = account.lines
    events = [PrivacyEvent(first.noise_multiplier)] * 30 + [PrivacyEvent(second.noise_multiplier)] * 2
    assert account.certificate.epsilon_rdp == pytest.approx(certify(events).epsilon_rdp, rel=1e-9)
    assert account.certificate.epsilon_pld == pytest.approx(certify(events).epsilon_pld, rel=1e-6)
    assert second.epsilon_so_far == pytest.approx(account.certificate.epsilon_rdp)
    assert account.basic == pytest.approx((34.0, 32e-5))


def test_a_cap_lets_through_what_a_wallet_would():
    account = statement([EqualSales(1.0, count=200)], cap_epsilon=8.0)
    within = statement([EqualSales(1.0, count=account.lines[0].fits)])
    wallet = Wallet(8.0)
    for _ in range(account.lines[0].fits):
        wallet.spend(ReleaseFamily().event(1.0))
    assert not wallet.can_spend(ReleaseFamily().event(1.0))
    assert within.certificate.epsilon_pld <= 8.0


def test_running_epsilon_ends_at_the_total():
    account = statement([EqualSales(1.0, count=100), EqualSales(0.5, 0.05, 1, 7)])
    sales, renyi, added = running_epsilon(account)
    assert sales[-1] == 107
    assert renyi[-1] == pytest.approx(account.certificate.epsilon_rdp)
    assert added[-1] == pytest.approx(103.5)
    assert (np.diff(renyi) >= 0).all()


def test_no_sales_are_refused():
    with pytest.raises(PrivacyError):
        statement([])


def test_a_plot_of_sales_begins_with_none():
    sales, renyi, added = running_epsilon(statement([EqualSales(0.5, count=3)]))
    assert (sales[0], renyi[0], added[0]) == (0, 0.0, 0.0)
    assert (sales[-1], added[-1]) == (3, 1.5)


def test_a_million_millions_are_the_most_sales_of_one_kind():
    assert parse_sale("1e-12x1000000000000") == EqualSales(1e-12, count=10**12)
    with pytest.raises(PrivacyError, match="repeated 1000000000001 times") as caught:
        parse_sale("1x1000000000001")
    assert "1e+12" in caught.value.hint
