from functools import lru_cache
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from privmarket.errors import PrivacyError
from privmarket.privacy import _calibration as tables, _gaussian as gaussian
from privmarket.privacy._calibration import ReleaseFamily, noise_multiplier, release_epsilon
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._release import ReleaseGrid, release_distance, sum_inflation

SHIPPED = sorted((Path(tables.__file__).parent / "noise_tables").glob("noise-*.npz"))
# No table ships for this schedule.
RATE, STEPS = 0.3, 3


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder and an empty memory."""
    monkeypatch.setenv("PRIVMARKET_CACHE", str(tmp_path))
    tables.noise_table.cache_clear()
    yield tmp_path
    tables.noise_table.cache_clear()


@pytest.fixture
def quick_build(monkeypatch):
    """Tables over a short stretch, each computed once: that takes a second, and ten tests want the same one."""
    monkeypatch.setattr(tables, "EPSILON_MIN", 1.2)
    monkeypatch.setattr(tables, "EPSILON_MAX", 1.4)
    monkeypatch.setattr(tables, "build_table", lambda *schedule: _built(*schedule, tables._PER_OCTAVE))


BUILD = tables.build_table


@lru_cache
def _built(delta, rate, steps, points_per_octave):
    return BUILD(delta, rate, steps)


def test_known_answer_of_the_analytic_gaussian():
    exact = 3.7306316348  # dp-accounting's value at the whole δ; a share of 2^−10 of it is for finite arithmetic
    assert exact <= noise_multiplier(1.0, 1e-5) <= exact * 1.0001


def test_a_release_has_its_familys_schedule():
    family = ReleaseFamily(0.25, 3)
    assert family.release(1.5) == PrivacyEvent(1.5, 0.25, 3)
    assert ReleaseFamily().event(1.0) == ReleaseFamily().release(float(ReleaseFamily().noise_multiplier(1.0)))


def test_full_batch_steps_are_one_gaussian():
    assert noise_multiplier(2.0, 1e-6, steps=9) == pytest.approx(3 * noise_multiplier(2.0, 1e-6))


def test_a_number_gives_a_float_and_an_array_its_shape():
    assert isinstance(noise_multiplier(1.0), float)
    assert noise_multiplier(np.ones((2, 3)), sampling_rate=0.1).shape == (2, 3)


def test_table_lookup_is_private_enough_by_an_independent_accountant(cache, quick_build):
    family = ReleaseFamily(RATE, STEPS)
    for epsilon in (1.22, 1.3, 1.39):
        sigma = float(family.noise_multiplier(epsilon))
        exact = pld.from_gaussian_mechanism(sigma, sampling_prob=RATE, value_discretization_interval=1e-4)
        spent = exact.self_compose(STEPS).get_epsilon_for_delta(1e-5)
        assert spent <= epsilon
        assert spent >= epsilon * 0.975  # and not by much: one grid step of 1.1 % in σ


def test_epsilon_below_and_above_the_table_still_gets_enough_noise(cache, quick_build):
    family = ReleaseFamily(RATE, STEPS)
    tiny = family.noise_multiplier([0.05, 1e-3])
    assert (family.epsilon(family.noise_multiplier(0.9)) <= 1.2).all()
    accountant = dp_accounting.pld.PLDAccountant()
    event = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(float(tiny[0])))
    accountant.compose(event, STEPS)
    assert accountant.get_epsilon(1e-5) <= 0.05
    assert family.noise_multiplier(1e6) == tables.noise_table(1e-5, RATE, STEPS).noise_multiplier[0]


def test_events_of_many_clients_are_those_of_each():
    family = ReleaseFamily(0.05)
    assert family.events([0.5, 0.0, 2.0]) == [family.event(0.5), None, family.event(2.0)]
    with pytest.raises(PrivacyError):
        family.events([1.0, -1.0])


def test_release_epsilon_is_what_the_family_says():
    family = ReleaseFamily(0.05)
    assert 1.0327906757 <= release_epsilon(PrivacyEvent(1.0, 0.05)) <= 1.0327906757 * 1.0003
    assert family.epsilon(family.noise_multiplier(0.7)) <= 0.7


def test_table_is_stored_once_and_read_back(cache, quick_build, monkeypatch):
    first = tables.noise_table(1e-5, RATE, STEPS)
    (file,) = cache.iterdir()
    assert file.suffix == ".npz"
    tables.noise_table.cache_clear()
    monkeypatch.setattr(tables, "build_table", lambda *_: pytest.fail("built twice"))
    again = tables.noise_table(1e-5, RATE, STEPS)
    np.testing.assert_array_equal(again.epsilon, first.epsilon)


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "lower-noise"])
def test_damaged_table_is_built_again(cache, quick_build, monkeypatch, damage):
    monkeypatch.setattr(tables, "_PER_OCTAVE", 8)
    first = tables.noise_table(1e-5, RATE, STEPS)
    (file,) = cache.iterdir()
    data = file.read_bytes()
    if damage == "cut":
        file.write_bytes(data[: len(data) // 2])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "flipped":
        file.write_bytes(data[:200] + bytes([data[200] ^ 255]) + data[201:])
    else:  # a file that is whole, but whose figures were changed
        with np.load(file) as stored:
            fields = dict(stored)
        fields["epsilon"] = fields["epsilon"] / 10
        np.savez(file, **fields)
    tables.noise_table.cache_clear()
    np.testing.assert_array_equal(tables.noise_table(1e-5, RATE, STEPS).epsilon, first.epsilon)


@pytest.mark.parametrize("other", [(1e-6, RATE, STEPS), (1e-5, 0.2, STEPS), (1e-5, RATE, 2 * STEPS)])
def test_a_table_under_another_schedules_name_is_refused(cache, quick_build, other):
    """Copying the table of a cheaper schedule would under-noise; the digest holds δ, rate and steps."""
    tables.noise_table(1e-5, RATE, STEPS)
    (file,) = cache.iterdir()
    swapped = cache / tables._file_name(*other)
    swapped.write_bytes(file.read_bytes())
    assert tables._read(file, 1e-5, RATE, STEPS) is not None
    assert tables._read(swapped, *other) is None


@pytest.mark.parametrize(("delta", "steps"), [(1e-12, 10_000), (1e-10, 1_000_000)])
def test_tiny_epsilon_over_many_steps_at_a_tiny_delta(monkeypatch, delta, steps):
    """δ/steps is below what float64 can certify: then only the bound without sampling counts."""
    empty = tables.NoiseTable(np.array([1.0]), np.array([1.0]))
    monkeypatch.setattr(tables, "noise_table", lambda *_: empty)
    sigma = float(ReleaseFamily(0.01, steps, delta).noise_multiplier(1e-3))
    assert gaussian.delta_of(1e-3, np.sqrt(steps) / sigma) <= delta


def test_what_is_beyond_finite_arithmetic_gets_more_noise_than_asked():
    family = ReleaseFamily(delta=1e-9)
    ceiling = family.epsilon_ceiling
    assert (1 + np.exp(ceiling)) * release_distance(2**28) <= 1e-9 * 2.0**-10 * (1 + 1e-9)
    assert family.noise_multiplier(1000.0) == family.noise_multiplier(ceiling)
    assert ReleaseFamily().epsilon_ceiling > 30
    with pytest.raises(PrivacyError, match="finite arithmetic"):
        noise_multiplier(1.0, 1e-12, steps=10**9)


PLD_NEEDS = [(1.0, 1, 0.2), (1.0, 1, 1.0), (1.0, 20, 4.0), (0.05, 1, 0.5), (0.01, 100, 1.0), (0.25, 4, 2.0)]


@pytest.mark.parametrize(("rate", "steps", "epsilon"), PLD_NEEDS)
@pytest.mark.parametrize(("records", "parameters"), [(600, 109_386), (1_000_000, 10_000_000)])
def test_all_charges_together_stay_below_one_and_a_half_per_cent(rate, steps, epsilon, records, parameters):
    """The deviation that is really added, over C, against the smallest multiplier that PLD accounting allows."""

    def spent(sigma):
        loss = pld.from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=epsilon / 1000)
        return loss.self_compose(steps).get_epsilon_for_delta(1e-5)

    sigma = noise_multiplier(epsilon, sampling_rate=rate, steps=steps)
    added = ReleaseGrid.for_release(sigma, 1.0, parameters, sum_inflation(records)).deviation
    assert spent(sigma) <= epsilon * (1 + 1e-6)  # never below what is needed, before the kernel's own charge
    assert spent(added / 1.015) > epsilon  # 1.5 % less than what is added would not do


def test_blanked_neighbours_need_what_added_or_removed_ones_need():
    """dp-accounting's word for blanking under Poisson sampling is REPLACE_SPECIAL."""
    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.1))
    spent = []
    for relation in (
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    ):
        accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
        accountant.compose(event, 7)
        spent.append(accountant.get_epsilon(1e-5))
    assert spent[0] == spent[1]


def test_no_flipped_byte_goes_unnoticed(tmp_path):
    """A shipped file with one byte changed is refused, or, where the byte carries nothing, reads the same."""
    delta, rate, steps = SHIPPED[0].stem.removeprefix("noise-").replace("1e-05", "1e_05").split("-")
    schedule = float(delta.replace("_", "-")), float(rate), int(steps)
    whole, data = tables._read(SHIPPED[0], *schedule), SHIPPED[0].read_bytes()
    assert whole is not None
    refused = 0
    for at in range(0, len(data), 37):
        file = tmp_path / "flipped.npz"
        file.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        table = tables._read(file, *schedule)
        refused += table is None
        if table is not None:
            np.testing.assert_array_equal(table.epsilon, whole.epsilon)
            np.testing.assert_array_equal(table.noise_multiplier, whole.noise_multiplier)
    assert refused > 50


def test_an_unwritable_cache_costs_only_time(quick_build, monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("PRIVMARKET_CACHE", str(blocked))
    tables.noise_table.cache_clear()
    assert tables.noise_table(1e-5, RATE, STEPS).epsilon.size > 0
    tables.noise_table.cache_clear()


@pytest.mark.parametrize(
    ("epsilon", "settings"),
    [
        (0.0, {}),
        (-1.0, {}),
        (float("nan"), {}),
        ("much", {}),
        (1.0, {"delta": 0.0}),
        (1.0, {"delta": 1.0}),
        (1.0, {"sampling_rate": 0.0}),
        (1.0, {"sampling_rate": 1.2}),
        (1.0, {"steps": 0}),
    ],
)
def test_bad_input_is_refused_with_a_remedy(epsilon, settings):
    with pytest.raises(PrivacyError) as caught:
        noise_multiplier(epsilon, **settings)
    assert caught.value.hint


def test_tables_ship_with_the_package():
    assert SHIPPED


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_table_is_whole_and_holds_at_finer_bins(file):
    """Entries across the table, recomputed with a tenth of the bin width, are not above what is stored."""
    delta, rate, steps = file.stem.removeprefix("noise-").rsplit("-", 2)
    table = tables._read(file, float(delta), float(rate), int(steps))
    assert table is not None
    assert tables._file_name(float(delta), float(rate), int(steps)) == file.name
    assert (np.diff(table.epsilon) <= 0).all()
    assert table.epsilon[0] >= 0.95 * tables.EPSILON_MAX
    assert table.epsilon[-1] <= tables.EPSILON_MIN
    for at in (table.epsilon.size // 4, table.epsilon.size // 2):
        sigma, stored = float(table.noise_multiplier[at]), table.epsilon[at]
        exact = pld.from_gaussian_mechanism(
            sigma, sampling_prob=float(rate), value_discretization_interval=max(stored / 3000, 1e-5)
        )
        fresh = exact.self_compose(int(steps)).get_epsilon_for_delta(float(delta) * (1 - tables.ARITHMETIC_SHARE))
        assert fresh <= stored
        assert fresh == pytest.approx(stored, rel=5e-3)


def test_a_multiplier_just_above_a_grid_point_gets_the_next_one():
    """Rounding of the logarithm takes some of them for the point itself; they must not get less noise."""
    grid = tables.grid_between(0.3, 300.0)
    np.testing.assert_array_equal(tables.on_grid_above(np.nextafter(grid[:-1], np.inf)), grid[1:])


def test_epsilon_is_the_entry_at_or_below_the_multiplier(cache, quick_build):
    family = ReleaseFamily(RATE, STEPS)
    table = tables.noise_table(1e-5, RATE, STEPS)
    noise, epsilon = table.noise_multiplier, table.epsilon
    np.testing.assert_array_equal(family.epsilon(noise), epsilon)
    np.testing.assert_array_equal(family.epsilon(noise * 1.001), epsilon)
    np.testing.assert_array_equal(family.epsilon(noise * 0.999), [np.inf, *epsilon[:-1]])


def test_noise_below_the_table_keeps_each_step_private_and_no_more(cache, quick_build):
    """ε/T and δ/T for each of T steps are enough; by an independent library, and with little to spare."""
    rate, steps, epsilon, delta = 0.01, 3, 0.06, 1e-5
    sigma = float(ReleaseFamily(rate, steps, delta).noise_multiplier(epsilon))

    def failure(noise: float) -> float:
        one = pld.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=1e-5)
        return one.get_delta_for_epsilon(epsilon / steps)

    assert failure(sigma) <= delta / steps
    assert failure(sigma * 0.97) > delta / steps


def test_a_schedule_is_refused_only_where_no_epsilon_is_left_for_it():
    """(1 + e^ε)·steps·distance ≤ the share of δ: ε = log(ratio) is above 0 as soon as the ratio is above 1."""
    kept, each = 1e-9 * tables.ARITHMETIC_SHARE, release_distance(2**28)
    for ratio in (1.1, 1.5, 3.0):
        family = ReleaseFamily(steps=round(kept / (each * (ratio + 1))), delta=1e-9)
        assert family.epsilon_ceiling == pytest.approx(np.log(ratio), rel=1e-6)
    with pytest.raises(PrivacyError, match="finite arithmetic"):
        _ = ReleaseFamily(steps=round(kept / (each * 1.9)), delta=1e-9).epsilon_ceiling


def test_a_menu_of_full_batches_needs_no_table(monkeypatch):
    monkeypatch.setattr(tables, "noise_table", lambda *_: pytest.fail("a table was asked for"))
    family = ReleaseFamily(1.0, 4)
    noise, epsilon = family.menu()
    np.testing.assert_allclose(epsilon, gaussian.epsilon_of(2.0 / noise, family.exact_delta), rtol=1e-12)
    assert epsilon[0] <= tables.EPSILON_MAX * 1.05
    assert epsilon[-1] <= tables.EPSILON_MIN < epsilon[-2]


@pytest.mark.parametrize("meets", [3.0, 20.0, 21.9])
def test_a_table_begins_at_most_a_tenth_below_the_noise_that_meets_its_largest_epsilon(monkeypatch, meets):
    monkeypatch.setattr(tables, "pld_epsilon", lambda noise, *_: meets / noise)
    start = tables._last_above(1.0, 1e-5, RATE, STEPS, 0.5)
    assert meets / 1.1 <= start * (1 + 1e-12)
    assert start < meets


def test_the_family_of_a_schedule_is_sold_at_the_delta_that_is_asked_for():
    event = PrivacyEvent(2.0, 0.25, 4)
    assert ReleaseFamily.of(event, 1e-6) == ReleaseFamily(0.25, 4, 1e-6)
