"""A malicious server, or crafted data, against the arithmetic of a release.

Each attack is run against a subject that is broken on purpose (`naive`, or the product's own float opt-out), where
it must succeed, and against the product, where it must do no better than the sold ε allows. Fixed seeds. With 60
guesses at ε ≤ 1 a right answer has probability at most 0.731, and 54 or more of 60 come up less than once in 200
runs; the attacks below get 60 of 60 from the broken subject.
"""

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from privmarket.privacy import _calibration as tables
from privmarket.privacy._calibration import noise_multiplier
from privmarket.privacy._noise import NoiseSource
from privmarket.privacy._release import ReleaseGrid, double_sum_inflation, sum_inflation
from privmarket.training import (
    ClientRecords,
    LocalPlan,
    NoisySum,
    PrivateModel,
    Sample,
    _clipping as clipping,
    by_person,
    clipped_sums,
    mlp,
    private_updates,
)
from privmarket.training._arithmetic import Summation, add_product, group_factors, row_energy, tiled
from tests.hostile import naive

TRIALS = 60
BY_CHANCE = 54


def right_guesses(release, guess):
    """How often `guess(release(with the record, seed))` is right over fair coins."""
    coins = np.random.default_rng(0).random(TRIALS) < 0.5
    return sum(guess(release(bool(coin), seed)) == coin for seed, coin in enumerate(coins))


def linear_model(inputs, classes):
    """A model without more than one linear layer, and how its flat weights are made of a matrix (no bias used)."""
    return PrivateModel(nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes)))


# 1. Large weights swallow the noise.


def membership_by_large_weights():
    """1,000 known records and a target; the server's weights are so large that only whole ulps survive.

    The learning rate puts the threshold of rounding between the sums with and without the target. Noise of ε = 0.1
    is a few per cent of half an ulp, so it never crosses the threshold once the sum has been rounded.
    """
    clip, inputs = 1.0, torch.zeros(1001, 3)
    inputs[:, 0] = 1.0
    labels = torch.zeros(1001, dtype=torch.int64)
    weights = torch.full((3, 2), 1.5 * 2.0**20)  # equal columns: every slope is ±½, whatever the size
    ulp = 2.0 ** (20 - 23)
    with_it, without = (float(naive.clipped_sum(weights, inputs[:n], labels[:n], clip)[0, 1]) for n in (1001, 1000))
    rate = 0.5 * ulp / (0.5 * (with_it + without))
    return inputs, labels, weights, rate, ulp


def test_large_weights_do_not_swallow_the_noise():
    inputs, labels, weights, rate, ulp = membership_by_large_weights()
    sigma = noise_multiplier(0.1)

    def broken(member, seed):
        rows = 1000 + member
        source = NoiseSource.from_seed(seed)
        return naive.several_steps(weights, inputs[:rows], labels[:rows], 1.0, sigma, source, rate, 1)[0, 1]

    def product(member, seed):
        model = linear_model(3, 2)
        flat = torch.cat([weights.flatten(), torch.zeros(2)])
        records = ClientRecords(inputs.clone()[:, None, None, :], labels, [1001])
        records.inputs[1000] *= member  # blanked, not removed: the number of records is public
        plan = LocalPlan(steps=2, clip_norm=1.0, learning_rate=rate)
        return private_updates(model, flat, records, plan, [sigma], [NoiseSource.from_seed(seed)])[0, 1]

    assert right_guesses(broken, lambda update: abs(float(update)) >= 0.5 * ulp) == TRIALS
    assert right_guesses(product, lambda update: abs(float(update)) >= 0.5 * ulp) < BY_CHANCE


# 5. The last bits, and a radius of exactly 0.


@pytest.mark.parametrize(("arithmetic", "succeeds"), [("float", True), ("exact", False)])
def test_last_bits_do_not_tell_whether_something_was_added(arithmetic, succeeds):
    """A sum of 0 leaves small noise its finest bits; a sum of C/√d rounds them away [HaneyEtAl2022]."""
    size = 100_000
    record = torch.full((size,), 1.0 / np.sqrt(size))
    plan = LocalPlan(arithmetic=arithmetic)
    sigma = noise_multiplier(1.0)

    def release(member, seed):
        out = torch.empty(size)
        noisy = NoisySum.of(sigma, NoiseSource.from_seed(seed), plan, 1, size)
        noisy.write(out, record * member, 1.0, fresh=True)
        return out.numpy().astype(np.float64)

    def guess(out):
        small = out[np.abs(out) < 2.0**-10]
        on_the_coarse_grid = small / 2.0**-32 % 1.0 == 0.0
        return bool(on_the_coarse_grid.mean() > 0.9) if small.size else True

    found = right_guesses(release, guess)
    assert (found == TRIALS) if succeeds else (found < BY_CHANCE)


def test_noise_of_exactly_zero_is_no_accident_of_rounding():
    """The largest words gave a radius of exactly 0, and so the bare sum, once in 2^25 pairs."""
    words = np.array([2**32 - 1, 2**32 - 100], dtype=np.uint32)
    assert (naive.uniform(words) == 1.0).all()
    assert (NoiseSource.from_seed(0)._uniform(words) < 1.0).all()


def test_release_is_on_the_same_grid_with_and_without_a_record():
    """Every value that can come out for one neighbour can come out for the other: whole steps of γ."""
    rng, grid = np.random.default_rng(1), ReleaseGrid.for_release(2.0, 1.0, 1000)
    for sums in (np.zeros(1000), rng.standard_normal(1000), 1e6 * rng.standard_normal(1000)):
        integers = grid.noisy_integers(sums, NoiseSource.from_seed(3))
        assert integers.dtype == np.int64
        out = np.empty(1000, dtype=np.float32)
        grid.noisy(sums, NoiseSource.from_seed(3), out)
        np.testing.assert_array_equal(out, (integers * np.float64(grid.spacing)).astype(np.float32))


def test_the_update_mod_releases_on_a_grid():
    """Two apps, one of which moved its weights: both releases are the sent weights plus whole steps of one grid."""
    mod = pytest.importorskip("privmarket.flower._mod")
    sale = SimpleNamespace(clip_norm=0.5)
    sent = {"w": np.zeros(5000, dtype=np.float32)}
    for moved in (0.0, 1.0):
        job = SimpleNamespace(noise_multiplier=1.5, noise=NoiseSource.from_seed(7))
        out = mod.noisy_weights(sent, {"w": np.full(5000, moved, dtype=np.float32)}, sale, job)["w"]
        grid = ReleaseGrid.for_release(1.5, 1.0, 5000, 2.0**-20)
        steps = out.astype(np.float64) / grid.spacing
        whole = np.rint(steps)
        np.testing.assert_array_equal(out, (whole * np.float64(grid.spacing)).astype(np.float32))


# 6. Sums exceed C.


def crossing(rows):
    """Contributions of norm ≤ 1 whose float32 total stands at a power of two when the small ones come.

    Above 2^k they are less than half an ulp and vanish; below it, where the ulp is half as large, each is rounded
    up to a whole one. The target lifts the total above [CasacubertaEtAl2022].
    """
    full = 2 ** int(np.log2(rows * 0.7))
    small = -0.48 * full * 2.0**-23
    contributions = np.full(rows, small, dtype=np.float32)
    contributions[: full + 1] = 1.0
    return contributions, full  # the target stands at `full`


def product_sum(contributions):
    """The same contributions through the product's sums: a linear layer with one input and one output."""
    total = torch.zeros(1, 1, dtype=torch.float64)
    add_product(
        total, torch.from_numpy(contributions)[:, None], torch.ones(len(contributions), 1), Summation.BLOCKS
    )
    return float(total)


@pytest.mark.parametrize("rows", [50_000, 200_000])
def test_no_record_moves_a_long_sum_by_more_than_stated(rows):
    contributions, target = crossing(rows)
    blanked = contributions.copy()
    blanked[target] = 0.0
    assert abs(naive.running_sum(contributions) - naive.running_sum(blanked)) > 10.0
    assert abs(product_sum(contributions) - product_sum(blanked)) <= 1 + sum_inflation(rows)


def test_a_million_records_stay_within_the_stated_bound():
    """A blanked record in real sums of a real layer, far into the data."""
    rows, clip = 1_000_000, 1.0
    inputs, labels = torch.rand(rows, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(rows).long()
    model = linear_model(4, 2)
    weights, present = torch.zeros(1, model.parameters), torch.ones(rows, dtype=torch.bool)
    records = ClientRecords(inputs[:, None, None, :], labels, [rows])
    whole = clipped_sums(model, weights, records, clip).values
    present[777_777] = False
    less = clipped_sums(model, weights, records, clip, present=present).values
    assert 0 < float((whole - less).norm()) <= (1 + sum_inflation(rows)) * clip


def test_norms_are_not_underestimated():
    """Rows of equal numbers: a float32 norm is too small, and the record counts for more than C."""
    rows = torch.full((1, 1_000_000), 0.3)
    exact = float(rows.double().norm())
    assert float(torch.linalg.vector_norm(rows)) < exact * (1 - 4e-4)
    assert float(row_energy(rows)) >= exact**2


# 7. NaN and retries.


def test_a_record_with_nan_is_not_seen():
    """One record that overflows made the whole update NaN: the server reads membership off it."""
    model = PrivateModel(mlp((1, 3, 3), 2, hidden=(4,)))
    torch.manual_seed(0)
    images, labels = torch.randn(21, 1, 3, 3), torch.randint(0, 2, (21,))
    weights = model.initial_weights(np.random.default_rng(0))
    images[20] = 1e38
    sigma = noise_multiplier(1.0)

    def broken(member, seed):
        matrix = torch.randn(9, 2, generator=torch.Generator().manual_seed(1)) * 10
        rows = 20 + member
        return naive.one_step(
            matrix, images[:rows].flatten(1), labels[:rows], 1.0, sigma, NoiseSource.from_seed(seed)
        )

    def product(member, seed):
        given = images.clone()
        given[20] *= member
        records = ClientRecords(given, labels, [21])
        return private_updates(model, weights, records, LocalPlan(), [sigma], [NoiseSource.from_seed(seed)])

    assert right_guesses(broken, lambda out: not bool(torch.isfinite(out).all())) == TRIALS
    assert right_guesses(product, lambda out: not bool(torch.isfinite(out).all())) < BY_CHANCE
    # and the record does not even move the release: it counts as zero, on the first and only attempt
    assert torch.equal(product(True, 5), product(True, 5))
    blank = ClientRecords(torch.cat([images[:20], torch.full((1, 1, 3, 3), float("nan"))]), labels, [21])
    plan, source = LocalPlan(), NoiseSource.from_seed(5)
    assert torch.equal(private_updates(model, weights, blank, plan, [sigma], [source]), product(True, 5))


@pytest.mark.parametrize("steps", [1, 3])
def test_weights_that_overflow_tell_nothing(steps):
    """Infinite and huge weights from the server: records that overflow count as zero, noise is still added."""
    model = PrivateModel(mlp((1, 3, 3), 2, hidden=(4,)))
    torch.manual_seed(0)  # other records that do not overflow may move the deviation by more than a tenth
    images, labels = torch.randn(30, 1, 3, 3), torch.randint(0, 2, (30,))
    for bad in (3e38, float("inf"), float("nan")):
        weights = torch.full((model.parameters,), bad)
        records = ClientRecords(images, labels, [30])
        plan = LocalPlan(steps, 1.0)
        sums = clipped_sums(model, weights[None], records, 1.0).values
        assert torch.isfinite(sums).all()
        assert float(sums.norm()) <= 30
        update = private_updates(model, weights, records, plan, [2.0], [NoiseSource.from_seed(0)])
        if steps == 1:
            assert torch.isfinite(update).all()
            assert float(update.std()) == pytest.approx(2.0, rel=0.1)  # 50 numbers of a fixed seed
        if bad != 3e38:  # where all records overflow, other records give the same bits
            other = ClientRecords(torch.randn(30, 1, 3, 3), 1 - labels, [30])
            same = private_updates(model, weights, other, plan, [2.0], [NoiseSource.from_seed(0)])
            torch.testing.assert_close(same, update, rtol=0, atol=0, equal_nan=True)


# 8. Streams after a fork, tables of another schedule.


@pytest.mark.parametrize(("child", "repeats"), [(naive.child, True), (NoiseSource.child, False)])
@pytest.mark.parametrize("made", ["before the fork", "after the fork"])
def test_child_streams_do_not_repeat_after_a_fork(child, repeats, made):
    """Two processes that release with the same noise: the difference of the releases is bare."""
    parent = NoiseSource.from_system()
    stream = child(parent, "round", 3)
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        mine = stream if made == "before the fork" else child(parent, "round", 3)
        os.write(writer, mine.cells(8).tobytes())
        os._exit(0)
    os.waitpid(process, 0)
    mine = stream if made == "before the fork" else child(parent, "round", 3)
    assert (os.read(reader, 16) == mine.cells(8).tobytes()) is repeats


def test_a_cheaper_schedules_table_is_not_believed(tmp_path):
    """Whoever can write the cache puts the table of a cheap schedule under the name of a dear one."""
    cheap = tables.NoiseTable(np.array([0.5, 1.0]), np.array([2.0, 0.1]))
    file = tmp_path / tables._file_name(1e-5, 0.5, 100)
    tables._write(cheap, file, 1e-5, 0.01, 1)
    with np.load(file) as stored:
        old = naive.table_digest(stored["noise_multiplier"], stored["epsilon"])
    assert old == naive.table_digest(cheap.noise_multiplier, cheap.epsilon)  # the old digest had nothing against it
    assert tables._read(file, 1e-5, 0.01, 1) is not None
    assert tables._read(file, 1e-5, 0.5, 100) is None


# Poisson samples: who else was drawn must not change a record's own gradient.


def at_the_kink(rows, width=10):
    """A model with one hidden layer, and equal records for which its ReLUs stand at 0 as far as one can tell.

    Whether a unit is on then depends on how its sum was rounded, and that, for a width that is no multiple of 4, on
    where the row stands among the rows of a product. Even and odd records have different labels.
    """
    generator = torch.Generator().manual_seed(3)
    model = PrivateModel(mlp((1, 28, 28), 2, hidden=(width,)))
    record = torch.randn(784, generator=generator)
    matrix = torch.randn(784, width, generator=generator)
    rows_of_tile, bias = record.repeat(16, 1), torch.zeros(width)
    torn = torch.zeros(width, dtype=torch.bool)
    for step in range(-60, 60):  # biases about −x·w, by half an ulp each, until a unit is on here and off there
        tried = (-(record @ matrix).double() + step * 2.0**-22).float()
        on = torch.addmm(tried, rows_of_tile, matrix) > 0
        found = (on[0] != on[1]) & ~torn
        bias, torn = torch.where(found, tried, bias), torn | found
    if not torn.any():
        pytest.skip("this machine's library gives the same bits at every place of a tile")
    bias = torch.where(torn, bias, torch.full((width,), -1e6))  # units that cannot be torn are off
    last = torch.tensor([[1.0, -1.0]]).repeat(width, 1)
    weights = torch.cat([matrix.flatten(), bias, last.flatten(), torch.zeros(2)])
    images = record.view(1, 1, 28, 28).repeat(rows, 1, 1, 1)
    return model, weights, images, torch.arange(rows) % 2


def one_after_the_other(drawn, tile):
    """How samples were laid out before: a record's place is how many were drawn before it."""
    return np.concatenate([drawn, np.zeros(-drawn.size % tile, dtype=np.int64)]), np.arange(drawn.size)


@pytest.mark.parametrize("small", [0, 1000])  # tiles of 16 and of 8 rows
@pytest.mark.parametrize("layout", [one_after_the_other, tiled])
def test_a_drawn_record_does_not_move_the_others(layout, small, monkeypatch):
    """Record 0 is drawn, or not: all others shift by one place, and with them what their ReLUs do."""
    model, weights, images, labels = at_the_kink(101)
    clip, records = 1.0, ClientRecords(images, labels, [101])
    monkeypatch.setattr(clipping, "tiled", layout)
    monkeypatch.setattr(clipping, "_SMALL_SAMPLE", small)

    def total(drawn):
        return clipped_sums(model, weights[None], records, clip, sample=Sample(0.99, [drawn])).values

    moved = float((total(np.arange(101)) - total(np.arange(1, 101))).norm())
    if layout is tiled:
        assert moved <= (1 + sum_inflation(101)) * clip
    else:
        assert moved > 5 * clip


@pytest.mark.parametrize("small", [0, 1000])
def test_a_records_gradient_is_the_same_whoever_else_is_drawn(small, monkeypatch):
    torch.manual_seed(0)
    model, inputs = PrivateModel(mlp((1, 28, 28), 10, hidden=(64, 10))), torch.randn(40, 1, 28, 28)
    weights = model.initial_weights(np.random.default_rng(0))[None]
    records = ClientRecords(inputs, torch.zeros(40, dtype=torch.int64), [40])
    alone = torch.arange(40) == 7
    monkeypatch.setattr(clipping, "_SMALL_SAMPLE", small)

    def contribution(drawn):
        """What record 7 alone adds in a sample."""
        sample = Sample(0.5, [np.array(drawn)])
        return clipped_sums(model, weights, records, 1.0, sample=sample, present=alone).values

    by_itself = contribution([7])
    for others in ([3, 7], [3, 7, 12, 39], [7, *range(8, 30)], [*range(8), 23]):
        assert torch.equal(contribution(others), by_itself)


# 9. Persons.


@pytest.mark.parametrize(("unit", "most"), [("record", 5.0), ("person", 1.0)])
def test_a_person_with_five_records_counts_as_one_unit_if_that_is_promised(unit, most):
    """Blanking somebody with five records: five clip norms where each record counts alone, else one."""
    model, rows = linear_model(3, 2), 40
    images, labels = torch.full((rows, 1, 1, 3), 50.0), torch.zeros(rows, dtype=torch.int64)
    blanked = images.clone()
    blanked[10:15] = float("nan")  # contributes nothing
    persons = torch.arange(rows) // 5 if unit == "person" else None
    weights = torch.zeros(1, model.parameters)
    whole, less = (
        clipped_sums(model, weights, ClientRecords(x, labels, [rows], persons), 1.0).values
        for x in (images, blanked)
    )
    moved = float((whole.double() - less.double()).norm())
    assert moved == pytest.approx(most, rel=0.01)
    assert unit == "record" or moved <= 1.0 + double_sum_inflation(rows)


def test_a_person_of_one_client_is_not_clipped_with_one_of_another():
    """Two clients number their people from 0; records that cancel each other make one long sum a short one."""
    model, images = linear_model(3, 2), torch.full((2, 1, 1, 3), 50.0)
    records = ClientRecords(images, torch.tensor([0, 1]), [1, 1], torch.tensor([0, 0]))
    weights = torch.zeros(1, model.parameters)
    together = clipped_sums(model, weights, records, 1.0).values
    assert float(together.norm(dim=1).min()) > 50
    apart = clipped_sums(model, weights, by_person(records), 1.0).values
    assert float(apart.norm(dim=1).max()) <= 1.0


def test_a_person_whose_records_cancel_is_what_it_is_in_any_block():
    """Of 1e15 − 1e15 + 1 nothing but rounding is left, and that depends on what is added first."""
    parts = torch.tensor([[2.0**60], [-(2.0**60)], [1.0]], dtype=torch.float64)
    orders = [(parts[0] + parts[1]) + parts[2], parts[0] + (parts[1] + parts[2])]
    assert abs(naive.clipped_person(orders[0], 1.0) - naive.clipped_person(orders[1], 1.0)) > 0.99
    energy = parts.square().sum()[None]
    kept = [one * group_factors(one.square(), energy, 3, 1.0) for one in orders]
    assert abs(float(kept[0] - kept[1])) < 1e-12
