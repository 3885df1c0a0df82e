"""Laplace releases against brute force, mpmath and dp-accounting; in accountants and in wallets."""

import json
import subprocess
import sys
from dataclasses import dataclass

import dp_accounting
import mpmath as mp
import numpy as np
import pytest
from dp_accounting import rdp as their_rdp
from dp_accounting.pld import pld_privacy_accountant as their_pld
from scipy.special import ndtr

from privmarket.errors import PrivacyError, WalletError
from privmarket.privacy._accountant import (
    ORDERS,
    PldAccountant,
    RdpAccountant,
    certify,
    composed_epsilon,
    group_epsilon,
    renyi_epsilon,
)
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import OtherRelease, PrivacyEvent, from_json, to_dp_event, to_json
from privmarket.privacy._laplace import DiscreteLaplaceRelease, LaplaceRelease
from privmarket.privacy._statement import lifetime_promise, promise
from privmarket.privacy._wallet import Wallet, Wallets
from privmarket.privacy._wallet_store import WalletFile, WalletFileError

EPSILONS = (1e-7, 1e-3, 0.1, 1.0, 5.0, 40.0)
GAUSSIAN = ReleaseFamily().event(0.5)


@dataclass(frozen=True)
class RandomisedResponse(OtherRelease):
    """A release of one's own: a bit that is told truly with probability e^ε/(1 + e^ε)."""

    epsilon: float

    def renyi_divergence(self, orders):
        true = 1 / (1 + np.exp(-self.epsilon))
        with np.errstate(over="ignore"):
            return np.log(
                true**orders * (1 - true) ** (1 - orders) + (1 - true) ** orders * true ** (1 - orders)
            ) / (orders - 1)


@dataclass(frozen=True)
class HalfTold(LaplaceRelease):
    """Broken on purpose: Laplace noise that states half of what it costs."""

    def renyi_divergence(self, orders):
        return super().renyi_divergence(orders) / 2

    @property
    def gaussian_mu(self):
        return super().gaussian_mu / np.sqrt(2)


def test_the_laplace_curve_is_dp_accountings():
    for epsilon in (0.1, 1.0, 5.0):
        theirs = their_rdp.RdpAccountant(list(ORDERS))
        theirs.compose(dp_accounting.LaplaceDpEvent(1 / epsilon), 7)
        ours = RdpAccountant().compose(LaplaceRelease(epsilon), 7)
        np.testing.assert_allclose(7 * LaplaceRelease(epsilon).renyi_divergence(ORDERS), theirs._rdp, rtol=1e-9)
        assert ours.get_epsilon(1e-5) <= theirs.get_epsilon(1e-5) * (1 + 1e-9)


def exact_divergence(release, order):
    """By mpmath: an integral for the continuous curve, a sum for the discrete one."""
    with mp.workdps(40):
        a, e = mp.mpf(float(order)), mp.mpf(release.epsilon)
        if isinstance(release, LaplaceRelease):
            moment = a / (2 * a - 1) * mp.e ** ((a - 1) * e) + (a - 1) / (2 * a - 1) * mp.e ** (-a * e)
            return mp.log(moment) / (a - 1)
        shift = release.sensitivity
        p = mp.e ** (-e / shift)
        inside = mp.fsum(p ** (a * k + (1 - a) * (shift - k)) for k in range(1, shift))
        ends = (p ** ((1 - a) * shift) + p ** (a * shift)) / (1 - p)
        return mp.log((1 - p) / (1 + p) * (ends + inside)) / (a - 1)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("make", [LaplaceRelease, DiscreteLaplaceRelease, lambda e: DiscreteLaplaceRelease(e, 37)])
def test_curves_are_never_below_the_truth_and_hardly_above(make, epsilon):
    release = make(epsilon)
    orders = ORDERS[[0, 9, 40, 98, 120, -1]]
    exact = np.array([float(exact_divergence(release, order)) for order in orders])
    found = release.renyi_divergence(orders)
    assert (found >= exact * (1 - 1e-15)).all()
    assert (found <= exact * 1.0001).all()


def test_the_discrete_curve_is_the_sum_over_all_whole_numbers():
    """By brute force, without the geometric series; a shift by one less costs less."""
    for sensitivity, epsilon in ((1, 0.3), (5, 0.8), (12, 3.0)):
        k = np.arange(-4000, 4001)
        log_p = -np.abs(k) * epsilon / sensitivity
        log_p -= np.log(np.exp(log_p).sum())
        for shift in (sensitivity, sensitivity - 1):
            log_q = np.roll(log_p, shift)
            orders = np.array([1.5, 2.0, 7.0])
            moments = [np.exp(a * log_p + (1 - a) * log_q)[shift:].sum() for a in orders]
            exact = np.log(moments) / (orders - 1)
            stated = DiscreteLaplaceRelease(epsilon, sensitivity).renyi_divergence(orders)
            if shift == sensitivity:
                np.testing.assert_allclose(stated, exact, rtol=1e-9)
            else:
                assert (stated > exact).all()


def trade_off(release):
    """(points,) both error rates of tests by a threshold, from the distribution itself."""
    if isinstance(release, LaplaceRelease):
        s = np.linspace(-3.0, release.epsilon + 3.0, 20_001)
        below = np.where(s < 0, np.exp(s) / 2, 1 - np.exp(-s) / 2)
        shifted = s - release.epsilon
        return 1 - below, np.where(shifted < 0, np.exp(shifted) / 2, 1 - np.exp(-shifted) / 2)
    k = np.arange(-2000, 2001 + release.sensitivity)
    p = np.exp(-np.abs(k) * release.epsilon / release.sensitivity)
    q = np.exp(-np.abs(k - release.sensitivity) * release.epsilon / release.sensitivity)
    return 1 - np.cumsum(p) / p.sum(), np.cumsum(q) / q.sum()


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("make", [LaplaceRelease, DiscreteLaplaceRelease, lambda e: DiscreteLaplaceRelease(e, 4)])
def test_mu_is_the_least_that_lies_below_the_trade_off_curve(make, epsilon):
    """Every test errs at least as often as one between N(0, 1) and N(μ, 1); for a smaller μ some test does not."""
    release = make(epsilon)
    positive, negative = trade_off(release)
    inside = (positive > 1e-9) & (negative > 1e-9)

    def below(mu):
        from scipy.special import ndtri

        return ndtr(-ndtri(positive[inside]) - mu) <= negative[inside] + 1e-12

    assert below(release.gaussian_mu).all()
    assert not below(0.99 * release.gaussian_mu).all()


def test_loss_distributions_are_dp_accountings():
    theirs = their_pld.PLDAccountant(value_discretization_interval=1e-4)
    theirs.compose(dp_accounting.LaplaceDpEvent(2.0), 30)
    theirs.compose(dp_accounting.GaussianDpEvent(4.0))
    ours = PldAccountant().compose(LaplaceRelease(0.5), 30).compose(PrivacyEvent(4.0))
    assert ours.get_epsilon(1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=2e-3)
    events = [LaplaceRelease(0.5)] * 30 + [PrivacyEvent(4.0)]
    found = certify(events)
    assert found.epsilon_pld == pytest.approx(theirs.get_epsilon(1e-5), rel=2e-3)
    assert found.epsilon_pld < found.epsilon_rdp < 30 * 0.5
    assert found.releases == 31


@pytest.mark.parametrize("make", [LaplaceRelease, lambda e: DiscreteLaplaceRelease(e, 8)])
def test_few_releases_cost_the_sum_of_their_epsilons_and_many_far_less(make):
    assert composed_epsilon([make(0.4), make(0.3)]) == pytest.approx(0.7)
    assert composed_epsilon([make(0.05)] * 400) < 0.35 * 20
    assert composed_epsilon([make(0.4), GAUSSIAN]) < 0.4 + 1.0
    assert renyi_epsilon([make(0.05)] * 400) >= certify([make(0.05)] * 400).epsilon_pld


def test_a_group_meets_a_larger_shift():
    assert group_epsilon([LaplaceRelease(0.2)], records=5) == pytest.approx(1.0, rel=1e-2)
    assert group_epsilon([DiscreteLaplaceRelease(0.2, 3)] * 2, records=2) == pytest.approx(0.8, rel=1e-2)
    assert group_epsilon([RandomisedResponse(0.2)], records=2) == np.inf


def sold_until_empty(wallet, event, most=400):
    while len(wallet.history) < most and wallet.can_spend(event):
        wallet.spend(event)
    return len(wallet.history)


@pytest.mark.parametrize(
    "event", [LaplaceRelease(0.25), DiscreteLaplaceRelease(0.25, 16), DiscreteLaplaceRelease(1.0)]
)
@pytest.mark.parametrize("expected", [False, True])
def test_what_a_wallet_lets_through_is_within_its_cap(event, expected):
    """By the exact loss distribution of what was sold, which no wallet looks at."""
    wallet = Wallet(3.0, expected=[event] if expected else ())
    sold = sold_until_empty(wallet, event)
    assert sold >= 1
    assert PldAccountant().compose(event, sold).get_epsilon(wallet.delta) <= 3.0
    with pytest.raises(WalletError):
        wallet.spend(event)


def test_a_release_that_states_half_of_its_cost_passes_the_cap():
    """The broken subject: what the check above looks at does notice."""
    wallet = Wallet(3.0)
    sold = sold_until_empty(wallet, HalfTold(0.25))
    assert PldAccountant().compose(LaplaceRelease(0.25), sold).get_epsilon(wallet.delta) > 3.0


def test_a_wallet_that_expects_laplace_noise_adds_up_epsilons():
    wallet = Wallet(2.0, expected=[LaplaceRelease(0.5)])
    assert wallet.measures == [("pure", 1.0)]
    assert sold_until_empty(wallet, LaplaceRelease(0.5)) == 4
    assert not Wallet(2.0, expected=[LaplaceRelease(0.5)]).can_spend(PrivacyEvent(1000.0))
    stated = lifetime_promise(2.0, measures=wallet.measures)
    assert stated.guess == pytest.approx(np.exp(2) / (1 + np.exp(2)), abs=2e-5)


def test_gaussian_and_laplace_sales_share_one_wallet():
    wallet = Wallet(4.0)
    wallet.spend(GAUSSIAN)
    before = wallet.remaining_share
    wallet.spend(DiscreteLaplaceRelease(0.3))
    assert wallet.remaining_share < before
    again = Wallet.from_json(wallet.to_json())
    assert again.history == wallet.history
    assert again.remaining_share == wallet.remaining_share
    assert PldAccountant().compose(GAUSSIAN).compose(DiscreteLaplaceRelease(0.3)).get_epsilon(1e-5) < 4.0


def test_releases_of_ones_own():
    """Only its Rényi divergence is known: wallets and accountants work, loss distributions say nothing."""
    own = RandomisedResponse(0.3)
    wallet = Wallet(2.0)
    sold = sold_until_empty(wallet, own)
    assert sold > 2
    # Randomised response is discrete Laplace noise on a bit, of which everything is known.
    assert PldAccountant().compose(DiscreteLaplaceRelease(0.3), sold).get_epsilon(1e-5) <= 2.0
    found = certify(wallet.history)
    assert found.epsilon == found.epsilon_rdp < found.epsilon_pld == np.inf
    assert promise([own]).guess < 0.7
    uncapped = Wallet(np.inf)
    uncapped.spend(own)
    uncapped.spend(own)
    assert uncapped.remaining_share == 1.0
    assert Wallets([2.0, np.inf]).share(3).can_spend([own, own]).all()


@dataclass(frozen=True)
class Wrong(OtherRelease):
    """A release whose figures make no sense."""

    divergence: float
    mu: float = 1.0

    def renyi_divergence(self, orders):
        return np.full(orders.size - (self.divergence == 7.0), self.divergence)

    @property
    def gaussian_mu(self):
        return self.mu


@pytest.mark.parametrize(
    "make",
    [
        lambda: LaplaceRelease(0.0),
        lambda: LaplaceRelease(np.nan),
        lambda: DiscreteLaplaceRelease(1.0, 0),
        lambda: DiscreteLaplaceRelease(1.0, 2.5),
        lambda: composed_epsilon([Wrong(-1.0)]),
        lambda: composed_epsilon([Wrong(np.nan)]),
        lambda: composed_epsilon([Wrong(7.0)]),  # one order too few
        lambda: composed_epsilon([Wrong(1.0, -1.0)]),
        lambda: DiscreteLaplaceRelease(1.0, 10**8).loss_distribution(1e-3),
        lambda: from_json({"release": "no_such_module:Class"}),
        lambda: from_json({"release": "laplace", "scale": 1.0}),
        lambda: from_json({"release": "laplace", "epsilon": "much"}),
        lambda: from_json({"noise_multiplier": 1.0, "sampling_rate": 1.0, "steps": 1.5}),
    ],
)
def test_wrong_figures_are_refused_with_a_remedy(make):
    with pytest.raises(PrivacyError) as caught:
        make()
    assert caught.value.hint


def test_every_release_survives_being_stored():
    for event in (GAUSSIAN, LaplaceRelease(0.3), DiscreteLaplaceRelease(0.3, 7), RandomisedResponse(0.1)):
        assert from_json(json.loads(json.dumps(to_json(event)))) == event
    assert to_json(LaplaceRelease(0.3)) == {"release": "laplace", "epsilon": 0.3}


def test_a_wallet_file_keeps_other_releases_and_imports_nothing(tmp_path, monkeypatch):
    wallet = WalletFile(tmp_path / "w.jsonl", 3.0)
    with wallet.open() as book:
        book.reserve("count/1", 0.5, DiscreteLaplaceRelease(0.5))
        book.reserve("own/1", 0.1, RandomisedResponse(0.1))
    assert wallet.spent() == (DiscreteLaplaceRelease(0.5), RandomisedResponse(0.1))
    monkeypatch.setattr("privmarket.privacy._wallet_store._REPLAYS", {})  # as a new process
    assert wallet.spent() == (DiscreteLaplaceRelease(0.5), RandomisedResponse(0.1))
    known = {name: cls for name, cls in OtherRelease._known.items() if cls is not RandomisedResponse}
    monkeypatch.setattr(OtherRelease, "_known", known)
    monkeypatch.setattr("privmarket.privacy._wallet_store._REPLAYS", {})
    with pytest.raises(WalletFileError, match="RandomisedResponse"):
        wallet.spent()


class NoDataclass(OtherRelease):
    def renyi_divergence(self, orders):
        return orders * 0.01


@pytest.mark.parametrize("stranger", [dp_accounting.GaussianDpEvent(1.0), 0.5, "laplace"])
def test_what_is_no_release_is_refused_and_never_free(stranger):
    wallet = Wallet(2.0)
    for charge in (
        wallet.spend,
        wallet.can_spend,
        RdpAccountant().compose,
        PldAccountant().compose,
        lambda event: certify([event]),
        lambda event: composed_epsilon([event]),
    ):
        with pytest.raises(PrivacyError, match="not a release"):
            charge(stranger)
    assert wallet.history == ()


def test_what_cannot_be_kept_or_translated_is_refused():
    with pytest.raises(PrivacyError, match="dp-accounting"):
        to_dp_event([LaplaceRelease(0.1)])
    with pytest.raises(PrivacyError, match="stored"):
        to_json(NoDataclass())


def test_a_new_process_reads_a_wallet_file_with_laplace_releases(tmp_path):
    """Nothing but the wallet is imported there."""
    wallet = WalletFile(tmp_path / "w.jsonl", 3.0)
    with wallet.open() as book:
        book.reserve("count/1", 0.5, DiscreteLaplaceRelease(0.5, 3))
    code = "import sys, privmarket as pm; print(pm.privacy.WalletFile.existing(sys.argv[1]).spent())"
    done = subprocess.run(
        [sys.executable, "-c", code, str(wallet.path)], capture_output=True, text=True, timeout=800, check=False
    )
    assert done.stdout == "(DiscreteLaplaceRelease(epsilon=0.5, sensitivity=3),)\n", done.stderr
