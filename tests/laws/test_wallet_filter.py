"""A wallet never lets more than (cap, δ) out: in lists fixed in advance, or to an adaptive buyer.

Two independent checks. dp-accounting composes what random histories let through. And the leak to an adaptive buyer
is computed exactly, by quadrature: it buys one full-batch release, looks at the privacy loss that it got, and then
takes whichever release the wallet still sells that gives it most.
"""

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from scipy.special import ndtr

from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent, to_dp_event
from privmarket.privacy._wallet import Wallets

DELTA = 1e-5
SCHEDULES = ((1.0, 1), (0.05, 1), (0.05, 20), (0.5, 2), (0.01, 100))
FAMILIES = tuple(ReleaseFamily(rate, steps) for rate, steps in SCHEDULES)


def delta_by_dp_accounting(events, cap):
    """δ at ε = cap of a list of releases, by dp-accounting's privacy loss distributions."""
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(to_dp_event(events))
    return accountant.get_delta(cap)


def sold_until_refused(wallets, seed, kinds=FAMILIES):
    """Random kinds of release until three in a row are refused."""
    rng = np.random.default_rng(seed)
    refused = 0
    while refused < 3:
        event = kinds[rng.integers(len(kinds))].event(float(rng.choice([0.1, 0.4, 1.0])))
        if wallets.can_spend([event])[0]:
            wallets.spend([event])
            refused = 0
        else:
            refused += 1
    return [entry[0] for entry in wallets.history]


@pytest.mark.parametrize(("cap", "seed"), [(1.0, 0), (3.0, 1), (3.0, 2)])
@pytest.mark.parametrize("kinds", [FAMILIES, FAMILIES[:1], FAMILIES[2:3]])
def test_dp_accounting_finds_no_history_past_the_cap(cap, seed, kinds):
    events = sold_until_refused(Wallets([cap]), seed, kinds)
    assert len(events) > 3
    # The bins are pessimistic by a part in a thousand of ε.
    assert delta_by_dp_accounting(events, cap * 1.001) <= DELTA


@pytest.mark.parametrize("kinds", [FAMILIES[:1], FAMILIES[2:3]])
def test_dp_accounting_catches_a_wallet_that_charges_half(monkeypatch, kinds):
    """The broken subject: every measure loses half of each charge."""
    honest = Wallets._costs
    monkeypatch.setattr(Wallets, "_costs", lambda self, events: 0.5 * honest(self, events))
    events = sold_until_refused(Wallets([3.0]), 1, kinds)
    assert delta_by_dp_accounting(events, 3.0) > DELTA


# --- a buyer that chooses by what it saw -----------------------------------------------------------------


class EachWithAllOfDelta(Wallets):
    """The broken subject: the best of the measures, each of which was given the whole δ."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        alone = [Wallets(self.cap_epsilon, self.delta, measures=[[(name, 1.0)]]) for name, _ in self.measures[0]]
        self.capacity = np.concatenate([one.capacity for one in alone], axis=1)


def hockey_stick(epsilon, sigma, rate):
    """(…,) ∫ (p − e^ε q)₊ of one sampled Gaussian step, p with the record and q without, at any ε, also below 0."""
    scale = np.exp(epsilon)
    found = np.maximum(1.0 - scale, 0.0)  # where the density p is everywhere larger
    inside = scale > 1.0 - rate
    loss = np.log((scale[inside] - (1.0 - rate)) / rate)
    start = sigma**2 * loss + 0.5  # p > e^ε q to the right of it
    without, with_ = ndtr(-start / sigma), ndtr((1.0 - start) / sigma)
    found[inside] = (1.0 - rate) * without + rate * with_ - scale[inside] * without
    return np.maximum(found, 0.0)


def least_noise(wallets, rate):
    """The smallest noise multiplier, to 1 %, at which the wallet still sells one sampled step."""
    low, high = 0.3, 100.0
    while high / low > 1.01:
        middle = np.sqrt(low * high)
        if wallets.can_spend([PrivacyEvent(float(middle), rate)])[0]:
            high = middle
        else:
            low = middle
    return float(high)


def leak_to_an_adaptive_buyer(wallets, part):
    """δ at ε = cap of everything that the buyer gets, exact to 1e-4 of it.

    Args:
        part: of the Gaussian measure, spent on the first release.
    """
    cap = float(wallets.cap_epsilon[0])
    budget = float(wallets.capacity[0, 0])
    mu = np.sqrt(part * budget)
    wallets.spend([PrivacyEvent(1.0 / mu)])
    z = np.linspace(-9.0, 9.0, 4001)
    weight = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    seen = mu**2 / 2 + mu * z  # the loss that the buyer saw, under p
    rest = PrivacyEvent(1.0 / np.sqrt((1.0 - part) * budget * (1.0 - 1e-9)))
    assert wallets.can_spend([rest])[0]
    best = hockey_stick(cap - seen, rest.noise_multiplier, 1.0)
    for rate in np.geomspace(1e-6, 0.3, 10):
        best = np.maximum(best, hockey_stick(cap - seen, least_noise(wallets, float(rate)), float(rate)))
    return float(best @ weight)


@pytest.mark.parametrize("part", [0.5, 0.7])
def test_a_buyer_that_chooses_by_what_it_saw_gets_no_more_than_delta(part):
    assert leak_to_an_adaptive_buyer(Wallets([8.0]), part) <= DELTA


def test_such_a_buyer_beats_a_wallet_that_gives_each_measure_all_of_delta():
    """By 1 % of δ, a hundred times what the quadrature may be off."""
    assert leak_to_an_adaptive_buyer(EachWithAllOfDelta([8.0]), 0.7) > 1.005 * DELTA


def test_the_buyer_gets_exactly_delta_where_there_is_one_measure():
    """So the quadrature is right: the Gaussian filter alone is tight."""
    wallets = Wallets([8.0], measures=[[("gaussian", 1.0)]])
    assert leak_to_an_adaptive_buyer(wallets, 0.7) == pytest.approx(DELTA, rel=1e-4)


def test_the_hockey_stick_agrees_with_dp_accounting():
    step = pld.PLDAccountant(value_discretization_interval=1e-4)
    step.compose(dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.2)))
    for epsilon in (0.1, 0.5, 1.0):
        (found,) = hockey_stick(np.array([epsilon]), 1.2, 0.1)
        assert found == pytest.approx(step.get_delta(epsilon), rel=1e-3)
