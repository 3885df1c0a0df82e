from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from privmarket.errors import PrivacyError
from privmarket.privacy import tables
from privmarket.privacy.calibration import ReleaseFamily, noise_multiplier, release_epsilon
from privmarket.privacy.events import SubsampledGaussian

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
    """Tables over a short stretch, so that building one takes a fraction of a second."""
    monkeypatch.setattr(tables, "EPSILON_MIN", 1.2)
    monkeypatch.setattr(tables, "EPSILON_MAX", 1.4)


def test_known_answer_of_the_analytic_gaussian():
    assert noise_multiplier(1.0, 1e-5) == pytest.approx(3.7306316348, rel=1e-9)  # dp-accounting's value


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
    assert release_epsilon(SubsampledGaussian(1.0, 0.05)) == pytest.approx(1.0327906757, rel=1e-8)
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


def test_no_flipped_byte_goes_unnoticed(tmp_path):
    """A shipped file with one byte changed is refused, or, where the byte carries nothing, reads the same."""
    whole, data = tables._read(SHIPPED[0]), SHIPPED[0].read_bytes()
    refused = 0
    for at in range(0, len(data), 37):
        file = tmp_path / "flipped.npz"
        file.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        table = tables._read(file)
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
    table = tables._read(file)
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
        fresh = exact.self_compose(int(steps)).get_epsilon_for_delta(float(delta))
        assert fresh <= stored
        assert fresh == pytest.approx(stored, rel=5e-3)
