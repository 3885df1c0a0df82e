import dp_accounting
import numpy as np
import pytest

from privmarket.privacy import _gaussian as gaussian
from privmarket.privacy._certificate import certify
from privmarket.privacy._events import PrivacyEvent, to_dp_event


def test_gaussians_have_their_closed_form():
    events = [PrivacyEvent(3.0)] * 5 + [PrivacyEvent(1.5)]
    mu = np.sqrt(5 / 9 + 1 / 2.25)
    assert certify(events).epsilon == pytest.approx(float(gaussian.epsilon_of(mu, 1e-5)), rel=1e-9)
    theirs = dp_accounting.pld.PLDAccountant()
    theirs.compose(to_dp_event(events))
    assert certify(events).epsilon == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-3)


def test_agrees_with_dp_accounting_and_is_never_above_renyi():
    events = [PrivacyEvent(1.1, 0.05, 20), None, PrivacyEvent(0.9, 0.05, 20), PrivacyEvent(5.0)]
    theirs = dp_accounting.pld.PLDAccountant()
    theirs.compose(to_dp_event(events))
    ours = certify(events)
    assert ours.epsilon == pytest.approx(theirs.get_epsilon(1e-5), rel=2e-3)
    assert ours.epsilon <= ours.epsilon_rdp
    assert (ours.releases, ours.steps) == (3, 41)


def test_nothing_released_is_certified_as_nothing():
    assert certify([None]).epsilon == 0.0


def test_a_certificate_names_its_unit_and_arithmetic():
    plain = certify([PrivacyEvent(3.0)])
    assert (plain.unit, plain.arithmetic) == ("record", "exact")
    other = certify([PrivacyEvent(3.0)], unit="person", arithmetic="float")
    assert (other.unit, other.arithmetic, other.epsilon) == ("person", "float", plain.epsilon)


@pytest.mark.parametrize(("noise", "rate"), [(8.0, 0.1), (20.0, 0.5)])
def test_one_small_release_is_as_tight_as_its_closed_form(noise, rate):
    """Bins as wide as for a large ε would cost half a per cent here."""
    exact = float(gaussian.sampled_epsilon(noise, 1e-5, rate))
    assert exact <= certify([PrivacyEvent(noise, rate)]).epsilon <= exact * 1.001


def test_small_steps_beside_a_large_one_stay_tight():
    """Bins that suit the large step alone would widen each of the many small ones: 2.6 % more."""
    found = certify([PrivacyEvent(1.0, 0.001, 1000), PrivacyEvent(0.7, 0.002)]).epsilon_pld
    assert found == pytest.approx(0.1652304525, rel=5e-3)  # dp-accounting with bins of 5e-5
