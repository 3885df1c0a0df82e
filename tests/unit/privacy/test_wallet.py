from copy import copy

import numpy as np
import pytest

from privmarket.errors import PrivacyError, WalletError
from privmarket.privacy import gaussian
from privmarket.privacy import wallet as wallets
from privmarket.privacy.accountant import composed_epsilon, release_costs
from privmarket.privacy.calibration import ReleaseFamily
from privmarket.privacy.certificate import certify
from privmarket.privacy.events import PrivacyEvent
from privmarket.privacy.wallet import Wallet, Wallets

FULL_BATCH, ONE_STEP = ReleaseFamily(), ReleaseFamily(sampling_rate=0.05)


def sell_until_empty(wallet, family):
    rng = np.random.default_rng(0)
    for _ in range(150):
        epsilon = wallet.trim(family, rng.uniform(0.1, 3.0))
        if epsilon == 0:
            break
        wallet.spend(family.event(epsilon))
    return certify(wallet.history).epsilon


@pytest.mark.parametrize("family", [FULL_BATCH, ONE_STEP])
@pytest.mark.parametrize("cap", [1.0, 5.0])
def test_selling_until_empty_never_passes_the_cap(family, cap):
    wallet = Wallet(cap)
    # The certificate's bins are pessimistic by up to a part in a thousand.
    assert sell_until_empty(wallet, family) <= cap * 1.001
    assert composed_epsilon(wallet.history) <= cap * (1 + 1e-9)
    assert wallet.trim(family, 1.0) == 0


def test_the_check_catches_a_wallet_that_charges_half(monkeypatch):
    """The broken subject: the same sales through a wallet that loses half of every charge."""
    wallets.menu_with_costs(FULL_BATCH)  # remembered as it is before the charges are broken
    monkeypatch.setattr(wallets, "release_costs", lambda events: 0.5 * release_costs(events))
    assert sell_until_empty(Wallet(5.0), FULL_BATCH) > 5.0


def test_gaussian_sales_use_the_whole_cap():
    """Full-batch sales are watched by μ², which loses nothing: the exact ε of the history is the cap."""
    wallet = Wallet(8.0)
    while (epsilon := wallet.trim(FULL_BATCH, 0.3)) > 0:
        wallet.spend(FULL_BATCH.event(epsilon))
    assert wallet.measure == "gaussian"
    mu = np.sqrt(sum(event.noise_multiplier**-2 for event in wallet.history))
    assert float(gaussian.epsilon_of(mu, 1e-5)) == pytest.approx(8.0, rel=1e-3)
    assert float(gaussian.epsilon_of(mu, 1e-5)) <= 8.0 * (1 + 1e-9)


@pytest.mark.parametrize(("excess", "fits"), [(0.0, True), (0.5e-12, True), (1.5e-12, False)])
def test_rounding_may_use_one_part_in_a_million_millions(excess, fits):
    mu = float(gaussian.mu_of(3.0, 1e-5))
    assert Wallet(3.0).can_spend(PrivacyEvent(1.0 / (mu * np.sqrt(1.0 + excess)))) == fits


def test_a_single_sale_of_the_cap_fits_and_empties_the_wallet():
    wallet = Wallet(3.0)
    assert wallet.trim(FULL_BATCH, 3.0) == 3.0
    wallet.spend(FULL_BATCH.event(3.0))
    # A thousandth of a sale's δ is kept for finite arithmetic, so it costs a little less than the cap.
    assert wallet.remaining_share == pytest.approx(0.0, abs=2e-4)
    assert wallet.trim(FULL_BATCH, 1.0) == 0.0


def test_the_first_sale_fixes_the_measure_for_good():
    """After a Gaussian first sale, sampled ones are charged as if unsampled: safe, and dear."""
    wallet = Wallet(8.0)
    assert wallet.measure == "open"
    wallet.spend(ONE_STEP.event(0.5))
    assert wallet.measure.startswith("renyi")
    before = wallet.measure
    wallet.spend(FULL_BATCH.event(0.5))
    assert wallet.measure == before
    other = Wallet(8.0)
    other.spend(FULL_BATCH.event(0.5))
    assert other.measure == "gaussian"
    sampled = ONE_STEP.event(0.5)
    before = other.remaining_share
    other.spend(sampled)
    paid = (before - other.remaining_share) * float(gaussian.mu_of(8.0, 1e-5)) ** 2
    assert paid == pytest.approx(sampled.noise_multiplier**-2)


def test_looking_does_not_fix_the_measure():
    wallet = Wallet(8.0)
    wallet.trim(FULL_BATCH, 20.0)
    wallet.can_spend(PrivacyEvent(1.0))
    assert wallet.measure == "open"


def test_a_copy_is_independent():
    wallets = Wallets([8.0, 8.0])
    twin = copy(wallets)
    twin.spend([PrivacyEvent(2.0), None])
    assert wallets.history == ()
    assert (wallets.spent == 0).all()
    assert wallets.measure == ("open", "open")
    assert twin.measure == ("gaussian", "open")
    third = copy(twin)
    third.void(0, [0])
    assert (third.history, third.spent[0]) == (((None, None),), 0.0)
    assert twin.history == ((PrivacyEvent(2.0), None),)
    assert twin.spent[0] > 0


def test_a_sale_past_the_cap_is_refused_and_nothing_is_charged():
    event = PrivacyEvent(0.5)
    wallet = Wallet(2.0)
    assert not wallet.can_spend(event)
    with pytest.raises(WalletError) as caught:
        wallet.spend(event)
    assert "nothing was charged" in caught.value.message
    assert wallet.history == ()
    assert wallet.remaining_share == 1.0


def test_trim_is_the_largest_sale_that_fits():
    wallet = Wallet(2.0)
    largest = wallet.trim(FULL_BATCH, 10.0)
    assert wallet.can_spend(FULL_BATCH.event(largest))
    assert not wallet.can_spend(FULL_BATCH.event(largest * 1.02))


def test_an_offer_that_fits_is_left_alone_and_nothing_stays_nothing():
    wallet = Wallet(8.0)
    assert wallet.trim(ONE_STEP, 0.731) == 0.731
    assert wallet.trim(ONE_STEP, 0.0) == 0.0


def test_expected_release_decides_the_measure_before_the_first_sale():
    event = PrivacyEvent(2.0, 0.02)
    assert Wallet(1.0, expected=[event]).measure.startswith("renyi")
    assert Wallet(1.0, expected=[PrivacyEvent(3.0)]).measure == "gaussian"

    def copies(wallet):
        n = 0
        while wallet.can_spend(event) and n < 3000:
            wallet.spend(event)
            n += 1
        return n

    tuned, mistaken = Wallet(1.0, expected=[event]), Wallet(1.0, expected=[PrivacyEvent(3.0)])
    assert copies(tuned) == copies(Wallet(1.0)) > copies(mistaken)


def test_many_wallets_equal_single_ones():
    caps = np.array([1.0, 4.0, 4.0, np.inf])
    together, alone = Wallets(caps), [Wallet(c) for c in caps]
    rng = np.random.default_rng(3)
    for _ in range(60):
        offered = rng.uniform(0, 2, 4)
        epsilon = together.trim(ONE_STEP, offered)
        np.testing.assert_array_equal(
            epsilon, [w.trim(ONE_STEP, float(o)) for w, o in zip(alone, offered, strict=True)]
        )
        events = ONE_STEP.events(epsilon)
        together.spend(events)
        for wallet, event in zip(alone, events, strict=True):
            if event is not None:
                wallet.spend(event)
    np.testing.assert_allclose(together.remaining_share, [w.remaining_share for w in alone], rtol=1e-9)
    assert together.remaining_share[3] == 1.0


def test_one_client_over_its_cap_stops_the_charge_of_all():
    wallets = Wallets([8.0, 0.5])
    with pytest.raises(WalletError, match="client 1"):
        wallets.spend([PrivacyEvent(2.0), PrivacyEvent(2.0)])
    assert (wallets.spent == 0).all()
    assert wallets.history == ()


def test_a_cap_cannot_be_raised():
    given = np.array([1.0, 2.0])
    pair = Wallets(given)
    with pytest.raises(ValueError, match="read-only"):
        pair.cap_epsilon[0] = 9.0
    given[0] = 9.0
    assert pair.cap_epsilon[0] == 1.0


def test_json_round_trip_keeps_what_is_left():
    wallet = Wallet(3.0, 1e-6, expected=[PrivacyEvent(1.0, 0.02)])
    wallet.spend(PrivacyEvent(4.0))
    again = Wallet.from_json(wallet.to_json())
    assert again.history == wallet.history
    assert (again.cap_epsilon, again.delta, again.measure) == (3.0, 1e-6, wallet.measure)
    assert again.remaining_share == wallet.remaining_share
    assert Wallet.from_json(Wallet(2.0).to_json()).measure == "open"
    assert np.isinf(Wallet.from_json(Wallet(float("inf")).to_json()).cap_epsilon)


def _overdrawn():
    """A stored wallet whose file was changed to hold more than its cap allows."""
    wallet = Wallet(4.0)
    wallet.spend(PrivacyEvent(1.0))
    return wallet.to_json().replace("4.0", "2.0")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Wallet(0.0),
        lambda: Wallet(float("nan")),
        lambda: Wallet(1e-4),
        lambda: Wallet(1.0, delta=0.0),
        lambda: Wallet(1.0).trim(FULL_BATCH, -1.0),
        lambda: Wallet(1.0).trim(FULL_BATCH, float("nan")),
        lambda: Wallets([1.0, 2.0]).spend([None]),
        lambda: Wallet.from_json("{"),
        lambda: Wallet.from_json("{}"),
        lambda: Wallet.from_json(_overdrawn()),
        lambda: Wallet.from_json(Wallets([1.0, 2.0]).to_json()),
        lambda: Wallet.from_json(Wallet(1.0).to_json().replace("open", "renyi 17.95")),
    ],
)
def test_bad_input_is_refused_with_a_remedy(make):
    with pytest.raises(PrivacyError) as caught:
        make()
    assert caught.value.hint


def test_a_wallet_has_the_same_room_whichever_others_are_asked_with_it() -> None:
    # A replay may look at other wallets beside it; the last digit must not depend on them.
    caps = np.concatenate([np.linspace(0.3, 60.0, 97), [np.inf]])
    together = Wallets(caps).capacity
    assert [float(Wallets([cap]).capacity[0]) for cap in caps] == together.tolist()


def test_a_wallet_is_empty_exactly_where_trimming_leaves_nothing() -> None:
    family, rng = ReleaseFamily(), np.random.default_rng(5)
    wallets = Wallets(rng.uniform(0.3, 3.0, 60))
    seen = set()
    for _ in range(12):
        left = wallets.trim(family, 0.7)
        assert wallets.is_empty(family).tolist() == (left == 0).tolist()
        seen |= set(wallets.is_empty(family).tolist())
        wallets.spend(family.events(left))
    assert seen == {True, False}
