import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp as their_rdp

from privmarket.errors import PrivacyError
from privmarket.privacy import _accountant as accountant_module, _gaussian as gaussian
from privmarket.privacy._accountant import (
    ORDERS,
    PldAccountant,
    RdpAccountant,
    RdpAccountants,
    accounted_epsilon,
    certify,
    composed_cost,
    composed_epsilon,
    epsilon_from_divergence,
    renyi_epsilon,
    step_divergence,
)
from privmarket.privacy._events import PrivacyEvent, Step, to_dp_event

WHOLE = ORDERS.round() == ORDERS


@pytest.mark.parametrize("rate", [0.001, 0.05, 0.5])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 5.0])
def test_curve_agrees_with_opacus_at_every_order(rate, sigma):
    from opacus.accountants.analysis import rdp as opacus_rdp  # takes seconds

    theirs = opacus_rdp.compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=list(ORDERS))
    np.testing.assert_allclose(step_divergence(sigma, rate), theirs, rtol=1e-6, atol=1e-13)


@pytest.mark.parametrize("rate", [0.001, 0.05, 0.5])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 5.0])
def test_curve_agrees_with_dp_accounting_at_whole_orders_and_is_never_above_it(rate, sigma):
    accountant = their_rdp.RdpAccountant()
    accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma)))
    ours, theirs = step_divergence(sigma, rate), accountant._rdp
    np.testing.assert_allclose(ours[WHOLE], theirs[WHOLE], rtol=1e-7, atol=1e-13)
    # At fractional orders dp-accounting 0.6 adds the absolute values of a series whose signs alternate.
    assert (ours <= theirs * (1 + 1e-7) + 1e-13).all()


def _events(seed, clients, rounds):
    rng = np.random.default_rng(seed)
    sigma = rng.choice(np.geomspace(0.6, 8.0, 12), size=(rounds, clients))
    absent = rng.random((rounds, clients)) < 0.3
    return [
        [None if gone else PrivacyEvent(float(s), 0.1, 5) for s, gone in zip(row, out, strict=True)]
        for row, out in zip(sigma, absent, strict=True)
    ]


def test_many_clients_equal_dp_accounting_client_by_client():
    rounds = _events(0, clients=4, rounds=30)
    accountant = RdpAccountants(4)
    for entry in rounds:
        accountant.compose(entry)
    whole = list(ORDERS[WHOLE])
    for client in range(4):
        theirs = their_rdp.RdpAccountant(orders=whole)
        theirs.compose(to_dp_event([entry[client] for entry in rounds]))
        ours = epsilon_from_divergence(np.where(WHOLE, accountant.divergence[client], np.inf), 1e-5)
        assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-9)
        assert accountant.get_epsilon(1e-5)[client] <= theirs.get_epsilon(1e-5)


def test_the_comparison_catches_an_accountant_that_forgets_counts(monkeypatch):
    """The broken subject: every event counted as a single step."""
    event = PrivacyEvent(1.0, 0.1, 25)
    theirs = their_rdp.RdpAccountant()
    theirs.compose(to_dp_event([event]))
    expected = theirs.get_epsilon(1e-5)
    assert composed_epsilon([event]) == pytest.approx(expected, rel=1e-3)
    monkeypatch.setattr(accountant_module, "step_counts", lambda events: {Step(1.0, 0.1): 1 for _ in events})
    assert composed_epsilon([event]) != pytest.approx(expected, rel=1e-3)


def test_totals_are_recomputed_from_the_events():
    accountant = RdpAccountants(3)
    for number, entry in enumerate(_events(1, 3, 20)):
        accountant.compose(entry, count=1 + number % 3)
    np.testing.assert_allclose(accountant.recomputed().divergence, accountant.divergence, rtol=1e-12)
    assert len(accountant.history) == 20


def test_gaussian_composition_has_its_closed_form():
    cost = 10 * composed_cost([PrivacyEvent(2.0)])
    np.testing.assert_allclose(cost[:-1], np.append(ORDERS * 10 / (2 * 2.0**2), 10 / 2.0**2))
    exact = float(gaussian.epsilon_of(np.sqrt(10) / 2.0, 1e-5))
    assert composed_epsilon([PrivacyEvent(2.0)] * 10) == pytest.approx(exact)
    assert exact < renyi_epsilon([PrivacyEvent(2.0)] * 10)
    assert composed_epsilon([PrivacyEvent(2.0)] * 10) == composed_epsilon([PrivacyEvent(2.0, 1.0, 10)])


def test_nothing_released_costs_nothing():
    assert composed_epsilon([]) == 0.0
    assert (RdpAccountants(5).get_epsilon(1e-5) == 0).all()
    assert RdpAccountant().get_epsilon(1e-5) == PldAccountant().get_epsilon(1e-5) == 0.0


def test_a_bad_round_changes_nothing():
    accountant = RdpAccountants(2)
    with pytest.raises(PrivacyError):
        accountant.compose([PrivacyEvent(1.0)])
    for count in (0, -1, 1.5):
        with pytest.raises(PrivacyError, match="releases"):
            accountant.compose([PrivacyEvent(1.0), None], count)
    assert (accountant.divergence == 0).all()
    assert accountant.history == ()


def test_cumulative_epsilon_of_the_papers_table_is_far_from_its_claim():
    """Row 18: 200 rounds of ε = 0.1 to 5 are claimed to add up to 2 to 100; basic composition says 20 to 1000."""
    from privmarket.privacy._calibration import noise_multiplier

    low, high = (composed_epsilon([PrivacyEvent(noise_multiplier(e))] * 200) for e in (0.1, 5.0))
    assert low < 20  # real accounting beats basic composition of the smallest sale …
    assert high > 100  # … and the largest sale is well beyond the paper's range


def test_a_hundred_clients_over_two_hundred_rounds_in_a_tenth_of_a_second():
    rounds = _events(2, clients=100, rounds=200)
    for entry in rounds:
        RdpAccountants(100).compose(entry)  # curves are precomputed
    accountant = RdpAccountants(100)
    start = time.process_time()
    for entry in rounds:
        accountant.compose(entry)
    accountant.get_epsilon(1e-5)
    assert time.process_time() - start < 0.1


def test_an_accountant_needs_one_client_and_no_more():
    assert RdpAccountants(1).clients == 1
    with pytest.raises(PrivacyError, match="0 clients"):
        RdpAccountants(0)


class SlowNumPy:
    """NumPy, but for a pause where the table of costs grows: long enough for another thread to grow it, too."""

    def __getattr__(self, name):
        return getattr(np, name)

    def concatenate(self, parts):
        longer = np.concatenate(parts)
        time.sleep(0.02)
        return longer


def require_own_costs(monkeypatch, lock):
    """Four threads meet a new release each, all at once: then and later each release has its own cost."""
    monkeypatch.setattr(accountant_module, "np", SlowNumPy())
    monkeypatch.setattr(accountant_module, "_LOCK", lock)
    monkeypatch.setattr(accountant_module, "_ROW_OF", {})
    monkeypatch.setattr(accountant_module, "_COSTS", np.empty((0, accountant_module.COLUMNS)))
    noise = [2.0, 4.0, 8.0, 16.0]

    def ask(sigma):
        return float(accountant_module.release_costs([PrivacyEvent(sigma)])[0, accountant_module.GAUSSIAN])

    with ThreadPoolExecutor(4) as threads:
        at_once = list(threads.map(ask, noise))
    assert at_once == [ask(sigma) for sigma in noise] == [sigma**-2 for sigma in noise]


def test_threads_that_meet_new_releases_at_once_get_their_own_costs(monkeypatch):
    require_own_costs(monkeypatch, threading.Lock())


def test_without_its_lock_the_table_mixes_releases_up(monkeypatch):
    """The broken subject: the table as it was."""
    with pytest.raises((AssertionError, IndexError)):
        require_own_costs(monkeypatch, nullcontext())


def test_remembered_costs_stay_few_and_right(monkeypatch):
    monkeypatch.setattr(accountant_module, "_ROW_OF", {})
    monkeypatch.setattr(accountant_module, "_COSTS", np.empty((0, accountant_module.COLUMNS)))
    monkeypatch.setattr(accountant_module, "_MAX_ROWS", 10)
    for first in range(1, 40, 3):
        noise = [float(sigma) for sigma in range(first, first + 4)]
        costs = accountant_module.release_costs([PrivacyEvent(sigma) for sigma in noise])
        # NumPy's power and Python's differ in the last bit on some processors.
        assert costs[:, accountant_module.GAUSSIAN] == pytest.approx([sigma**-2 for sigma in noise], rel=1e-15)
        assert len(accountant_module._ROW_OF) == len(accountant_module._COSTS) <= 10


def test_noise_in_whole_numbers_costs_what_it_costs_in_decimals():
    whole, decimal = ([PrivacyEvent(sigma, 0.5, 3) for sigma in noise] for noise in ((2, 3), (2.0, 3.0)))
    accountant_module._ROW_OF.clear()  # an equal release that was met before would be found
    accountant_module._COSTS = np.empty((0, accountant_module.COLUMNS))
    assert composed_epsilon(whole) == composed_epsilon(decimal)


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


def test_one_client_is_asked_like_dp_accounting():
    """The same two calls, in both libraries; ours is never above theirs, and equal at whole orders."""
    theirs = their_rdp.RdpAccountant()
    theirs.compose(dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.2)), 40)
    theirs.compose(dp_accounting.GaussianDpEvent(9.0))
    ours = RdpAccountant().compose(PrivacyEvent(1.2, 0.1), 40).compose(PrivacyEvent(9.0))
    assert ours.get_epsilon(1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=2e-3)
    assert ours.get_epsilon(1e-5) <= theirs.get_epsilon(1e-5) * (1 + 1e-9)


def test_a_count_is_as_many_calls():
    event = PrivacyEvent(3.0, 0.2, 2)
    for make in (RdpAccountant, PldAccountant):
        at_once = make().compose(event, 12).get_epsilon(1e-5)
        one_by_one = make()
        for _ in range(12):
            one_by_one.compose(event)
        assert at_once == pytest.approx(one_by_one.get_epsilon(1e-5), rel=1e-12)
        assert at_once > make().compose(event).get_epsilon(1e-5)  # an accountant that forgets counts would fail


def test_the_pld_accountant_is_the_certificates_figure():
    events = [PrivacyEvent(1.5, 0.05, 10)] * 3 + [PrivacyEvent(20.0)]
    accountant = PldAccountant().compose(events[0], 3).compose(events[3])
    assert accountant.get_epsilon(1e-5) == pytest.approx(certify(events).epsilon_pld, rel=2e-3)
    assert accounted_epsilon(events, accountant="pld") == accountant.get_epsilon(1e-5)
    assert accounted_epsilon(events, accountant="rdp") == RdpAccountant().compose(events[0], 3).compose(
        events[3]
    ).get_epsilon(1e-5)


class BasicComposition:
    """An accountant of one's own: ε and δ add up, each release at an equal share of δ = 1e-5."""

    def __init__(self):
        self.events = []

    def compose(self, event, count=1):
        self.events += [event] * count

    def get_epsilon(self, delta):
        return sum(composed_epsilon([event], delta / len(self.events)) for event in self.events)


def test_an_accountant_of_ones_own_by_its_place():
    events = [PrivacyEvent(4.0)] * 6 + [None]
    own = accounted_epsilon(events, accountant=BasicComposition)
    assert own == accounted_epsilon(events, accountant=f"{__name__}:BasicComposition")
    assert own == pytest.approx(6 * composed_epsilon([events[0]], 1e-5 / 6))
    assert own > accounted_epsilon(events)
    for wrong in ("basic", "no_such_module:X", f"{__name__}:NoSuchClass"):
        with pytest.raises(PrivacyError, match=r"accountant") as caught:
            accounted_epsilon(events, accountant=wrong)
        assert caught.value.hint
