"""Laws of calibration, accounting and wallets, for random sales."""

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings, strategies as st

from privmarket.privacy import _calibration as tables, _gaussian as gaussian
from privmarket.privacy._accountant import RdpAccountants, certify, composed_epsilon
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._wallet import Wallet, Wallets

epsilons = st.floats(0.02, 15.0)
deltas = st.sampled_from([1e-9, 1e-6, 1e-5, 1e-3])
rates = st.sampled_from([0.004, 0.05, 0.3, 0.9, 1.0])
# A schedule whose table ships with the package.
TABLE = ReleaseFamily(sampling_rate=0.25, steps=4)
events = st.builds(
    PrivacyEvent,
    st.sampled_from([0.7, 1.0, 2.5, 8.0]),
    st.sampled_from([0.05, 0.5, 1.0]),
    st.integers(1, 30),
)


def one_step_delta(sigma, epsilon, rate):
    """δ(ε) of one sampled step by numerical integration of both directions, independent of the closed form."""
    x = np.linspace(-14 * sigma - 1, 14 * sigma + 2, 200_001)
    absent = np.exp(-0.5 * (x / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))
    present = (1 - rate) * absent + rate * np.exp(-0.5 * ((x - 1) / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))
    gap = [np.maximum(p - np.exp(epsilon) * q, 0) for p, q in ((present, absent), (absent, present))]
    return max(np.trapezoid(g, x) for g in gap)


@settings(max_examples=100, deadline=None)
@given(epsilons, deltas, rates)
def test_one_step_is_never_under_noised(epsilon, delta, rate):
    family = ReleaseFamily(rate, 1, delta)
    sigma = float(family.noise_multiplier(epsilon))
    assert one_step_delta(sigma, epsilon, rate) <= delta * (1 + 1e-6) + 1e-15


def pld_epsilon(sigma, spacing):
    """An independent setting of the numerical accountant: much finer bins than the table was built with."""
    loss = pld.from_gaussian_mechanism(sigma, sampling_prob=0.25, value_discretization_interval=spacing)
    return loss.self_compose(4).get_epsilon_for_delta(1e-5)


@settings(max_examples=100, deadline=None)
@given(st.floats(tables.EPSILON_MIN, tables.EPSILON_MAX))
def test_table_never_under_noises(epsilon):
    sigma = float(TABLE.noise_multiplier(epsilon))
    assert pld_epsilon(sigma, spacing=max(epsilon / 1500, 1e-5)) <= epsilon


def test_the_check_catches_a_table_that_under_noises():
    """The broken subject: a lookup that rounds to the nearest grid point instead of up."""
    noise, epsilon = TABLE.menu()
    at = int(np.searchsorted(-epsilon, -2.0))
    asked = 0.5 * (epsilon[at - 1] + epsilon[at])
    assert pld_epsilon(float(noise[at - 1]), 1e-3) > asked


@settings(max_examples=100, deadline=None)
@given(st.lists(epsilons, min_size=2, max_size=20), rates)
def test_more_epsilon_never_needs_more_noise(values, rate):
    ordered = np.sort(values)
    noise = ReleaseFamily(rate).noise_multiplier(ordered)
    assert (np.diff(noise) <= 0).all()
    assert (np.diff(TABLE.noise_multiplier(ordered)) <= 0).all()


@settings(max_examples=100, deadline=None)
@given(epsilons, deltas)
def test_closed_forms_are_inverse(epsilon, delta):
    assert gaussian.epsilon_of(gaussian.mu_of(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.lists(events, min_size=1, max_size=12), st.randoms())
def test_order_of_composition_does_not_matter_and_more_costs_more(sold, random):
    shuffled = list(sold)
    random.shuffle(shuffled)
    total = composed_epsilon(sold)
    assert composed_epsilon(shuffled) == pytest.approx(total, rel=1e-9)
    assert composed_epsilon(sold[:-1]) <= total * (1 + 1e-12)


@settings(max_examples=100, deadline=None)
@given(st.lists(events, min_size=1, max_size=12))
def test_one_event_of_n_steps_costs_n_events_of_one(sold):
    split = [PrivacyEvent(e.noise_multiplier, e.sampling_rate, 1) for e in sold for _ in range(e.steps)]
    accountants = RdpAccountants(2)
    for event in sold:
        accountants.compose([event, None])
    assert composed_epsilon(split) == pytest.approx(composed_epsilon(sold), rel=1e-9)
    assert accountants.get_epsilon()[0] == pytest.approx(composed_epsilon(sold), rel=1e-9)
    assert accountants.get_epsilon()[1] == 0.0


@settings(max_examples=100, deadline=None)
@given(
    st.floats(0.3, 30.0),
    st.lists(st.tuples(epsilons, st.sampled_from([ReleaseFamily(), ReleaseFamily(0.05), TABLE])), max_size=25),
)
def test_no_sequence_of_sales_passes_a_cap(cap, offers):
    wallet = Wallet(cap)
    for offered, family in offers:
        sold = wallet.trim(family, offered)
        assert 0 <= sold <= offered
        if sold > 0:
            wallet.spend(family.event(sold))
    assert composed_epsilon(wallet.history) <= cap * (1 + 1e-9)
    assert 0 <= wallet.remaining_share <= 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.3, 30.0), min_size=1, max_size=6), st.lists(epsilons, min_size=1, max_size=6))
def test_trimmed_offers_always_fit(caps, offers):
    wallets = Wallets(caps)
    for offered in offers:
        sold = wallets.trim(TABLE, offered)
        wallets.spend([TABLE.event(float(e)) if e > 0 else None for e in sold])
    assert (wallets.spent <= wallets.capacity * (1 + 1e-9)).any(axis=1).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(events.filter(lambda e: e.noise_multiplier >= 1), min_size=1, max_size=2))
def test_certificate_is_never_above_renyi(sold):
    result = certify(sold)
    assert result.epsilon <= result.epsilon_rdp
    assert result.epsilon_pld <= result.epsilon_rdp * 1.01 + 0.01
