from copy import copy

import numpy as np
import pytest

from privmarket.errors import PrivacyError, WalletError
from privmarket.privacy import _gaussian as gaussian, _wallet as wallets
from privmarket.privacy._accountant import certify, composed_epsilon, release_costs
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._wallet import COLUMN_OF, GAUSSIAN_SHARE, SHARES, Wallet, Wallets

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


def test_gaussian_sales_use_the_cap_at_their_share_of_delta():
    """Full-batch sales are watched by μ², which loses nothing but the other measures' share of δ."""
    wallet = Wallet(8.0)
    while (epsilon := wallet.trim(FULL_BATCH, 0.3)) > 0:
        wallet.spend(FULL_BATCH.event(epsilon))
    assert wallet.measure == "gaussian"
    mu = np.sqrt(sum(event.noise_multiplier**-2 for event in wallet.history))
    at_share = float(gaussian.epsilon_of(mu, GAUSSIAN_SHARE * 1e-5))
    assert at_share == pytest.approx(8.0, rel=1e-3)
    assert at_share <= 8.0 * (1 + 1e-9)


@pytest.mark.parametrize(("excess", "fits"), [(0.0, True), (0.5e-12, True), (1.5e-12, False)])
def test_rounding_may_use_one_part_in_a_million_millions(excess, fits):
    mu = float(gaussian.mu_of(3.0, GAUSSIAN_SHARE * 1e-5))
    assert Wallet(3.0).can_spend(PrivacyEvent(1.0 / (mu * np.sqrt(1.0 + excess)))) == fits


def test_one_sale_can_use_nearly_all_of_a_cap():
    wallet = Wallet(3.0)
    largest = wallet.trim(FULL_BATCH, 3.0)
    assert 0.97 * 3.0 < largest < 3.0
    wallet.spend(FULL_BATCH.event(largest))
    # Trimmed offers lie on a grid of 1 %.
    assert wallet.remaining_share == pytest.approx(0.0, abs=0.03)
    assert wallet.trim(FULL_BATCH, 1.0) < 0.6
    named = Wallet(3.0, expected=[FULL_BATCH.event(3.0)])
    assert named.trim(FULL_BATCH, 3.0) == 3.0


def copies(wallet, event, most=3000):
    count = 0
    while count < most and wallet.can_spend(event):
        wallet.spend(event)
        count += 1
    return count


@pytest.mark.parametrize("first", [FULL_BATCH.event(0.001), ONE_STEP.event(0.01), PrivacyEvent(50.0, 0.5, 10)])
def test_a_small_first_sale_costs_later_ones_next_to_nothing(first):
    for later in (FULL_BATCH.event(0.5), ONE_STEP.event(0.5)):
        fresh, used = Wallet(8.0), Wallet(8.0)
        used.spend(first)
        assert copies(used, later) >= 0.99 * copies(fresh, later) - 1


def test_every_sale_is_charged_in_every_measure():
    wallets = Wallets([8.0])
    event = ONE_STEP.event(0.5)
    wallets.spend([event])
    wallets.spend([FULL_BATCH.event(0.5)])
    columns = [COLUMN_OF[name] for name, _ in wallets.measures[0]]
    both = release_costs([event, FULL_BATCH.event(0.5)])[:, columns].sum(axis=0)
    np.testing.assert_allclose(wallets.spent[0], both)


def test_what_a_wallet_watches_follows_from_cap_and_delta_alone():
    before = Wallet(8.0).measures
    assert [share for _, share in before] == list(SHARES)
    assert sum(SHARES) == pytest.approx(1.0)
    used = Wallet(8.0)
    used.spend(ONE_STEP.event(0.5))
    assert used.measures == before
    assert [name.split()[0] for name, _ in before] == ["gaussian", "renyi", "renyi"]


def test_a_copy_is_independent():
    wallets = Wallets([8.0, 8.0])
    twin = copy(wallets)
    twin.spend([PrivacyEvent(2.0), None])
    assert wallets.history == ()
    assert (wallets.spent == 0).all()
    third = copy(twin)
    third.void(0, [0])
    assert third.history == ((None, None),)
    assert (third.spent == 0).all()
    assert twin.history == ((PrivacyEvent(2.0), None),)
    assert (twin.spent[0] > 0).all()


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


def test_releases_named_in_advance_get_all_of_delta():
    event = PrivacyEvent(2.0, 0.02)
    assert Wallet(1.0, expected=[event]).measure.startswith("renyi")
    assert Wallet(1.0, expected=[PrivacyEvent(3.0)]).measures == [("gaussian", 1.0)]
    tuned, mistaken = Wallet(1.0, expected=[event]), Wallet(1.0, expected=[PrivacyEvent(3.0)])
    assert copies(tuned, event) > copies(Wallet(1.0), event) > copies(mistaken, event)


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
    assert (again.cap_epsilon, again.delta, again.measures) == (3.0, 1e-6, wallet.measures)
    assert again.remaining_share == wallet.remaining_share
    assert Wallet.from_json(Wallet(2.0).to_json()).measures == Wallet(2.0).measures
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
        lambda: Wallet(1.0, delta=0.0),
        lambda: Wallet(1.0).trim(FULL_BATCH, -1.0),
        lambda: Wallet(1.0).trim(FULL_BATCH, float("nan")),
        lambda: Wallets([1.0, 2.0]).spend([None]),
        lambda: Wallet.from_json("{"),
        lambda: Wallet.from_json("{}"),
        lambda: Wallet.from_json(_overdrawn()),
        lambda: Wallet.from_json(Wallets([1.0, 2.0]).to_json()),
        lambda: Wallet.from_json(Wallet(1.0).to_json().replace("gaussian", "renyi 17.95")),
        lambda: Wallet.from_json(Wallet(1.0).to_json().replace("0.775", "0.875")),
        lambda: Wallet.from_json(Wallet(1.0).to_json().replace("0.775", "-0.775")),
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
    assert [Wallets([cap]).capacity[0].tolist() for cap in caps] == together.tolist()


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


def sold_twice(cap=3.0):
    wallet = Wallet(cap)
    wallet.spend(ReleaseFamily().event(0.5))
    wallet.spend(ReleaseFamily(0.05, 20).event(1.0))
    return wallet


def test_a_wallet_says_in_a_line_what_it_has_left():
    assert repr(sold_twice()) == f"Wallet(ε ≤ 3 at δ = 1e-05, 2 sales, {sold_twice().remaining_share:.1%} left)"
    assert repr(Wallet(np.inf)) == "Wallet(ε ≤ inf at δ = 1e-05, 0 sales, 100.0% left)"


@pytest.mark.parametrize("cap", [3.0, np.inf])
def test_the_frame_has_a_row_per_sale(cap):
    wallet = sold_twice(cap)
    frame = wallet.to_frame()
    assert frame["release"].tolist() == [str(event) for event in wallet.history]
    assert frame["epsilon_so_far"].tolist() == pytest.approx(
        [composed_epsilon(wallet.history[:1]), wallet.epsilon_spent], rel=1e-9
    )
    assert frame["remaining_share"].iloc[-1] == wallet.remaining_share
    assert Wallet(cap).to_frame().empty


def test_the_figure_has_what_is_left_and_what_is_spent(tmp_path):
    wallet = sold_twice()
    figure = wallet.plot(tmp_path / "wallet.svg")
    left, spent = (axes.lines[0].get_ydata() for axes in figure.axes)
    assert list(left) == [1.0, *wallet.to_frame()["remaining_share"]]
    assert list(spent) == [0.0, *wallet.to_frame()["epsilon_so_far"]]
    assert figure.axes[1].lines[1].get_ydata()[0] == wallet.cap_epsilon
    assert (tmp_path / "wallet.svg").stat().st_size > 1000


def test_a_wrong_value_is_a_value_error():
    for wrong in (lambda: Wallet(-1.0), lambda: PrivacyEvent(0.0), lambda: Wallet(1.0, delta=2.0)):
        with pytest.raises(ValueError, match=r"wallet caps|noise multiplier|delta"):
            wrong()
