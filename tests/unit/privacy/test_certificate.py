import dp_accounting
import numpy as np
import pytest

from privmarket.privacy import gaussian
from privmarket.privacy.certificate import certify
from privmarket.privacy.events import PrivacyEvent, to_dp_event


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
