"""Random bits, and the integer noise that is made of them: tables against mpmath, draws against inversion."""

import math
import os
import shutil
import subprocess
import sys
import time
from bisect import bisect_right

import mpmath as mp
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from privmarket.errors import PrivacyError
from privmarket.privacy import _noise as noise
from privmarket.privacy._noise import (
    _REACH,
    DIGIT_DEVIATION,
    MAX_RADIUS,
    RADIX,
    NoiseSource,
    digit_tables,
    draw_digits,
    draw_integers,
)


class FixedWords(NoiseSource):
    """A source whose cipher words are chosen, to reach the corners."""

    def __init__(self, words):
        super().__init__(bytes(16))
        self.next = np.array(words, dtype=np.uint32)

    def _take(self, words):
        taken, self.next = self.next[:words], self.next[words:]
        return taken.copy()


def test_same_seed_same_noise_and_labels_separate_streams():
    first, again = NoiseSource.from_seed(7, "a", 1), NoiseSource.from_seed(7, "a", 1)
    np.testing.assert_array_equal(first.standard_normal(1001), again.standard_normal(1001))
    streams = [
        NoiseSource.from_seed(7),
        NoiseSource.from_seed(8),
        NoiseSource.from_seed(7, 1),
        NoiseSource.from_seed(7, "1"),
        NoiseSource.from_seed(7).child(1),
        NoiseSource.from_seed(7).child(1, 2),
        NoiseSource.from_seed(7).child("1, 2"),
    ]
    assert len({s.standard_normal(4).tobytes() for s in streams}) == len(streams)


def test_children_do_not_depend_on_what_the_parent_drew():
    parent = NoiseSource.from_seed(3)
    before = parent.child(5).standard_normal(10)
    parent.standard_normal(100)
    np.testing.assert_array_equal(parent.child(5).standard_normal(10), before)


def test_system_streams_differ():
    assert NoiseSource.from_system().standard_normal(4).tobytes() != (
        NoiseSource.from_system().standard_normal(4).tobytes()
    )


def repeats_its_parent(source, grandchild=False):
    """Whether a forked copy of a stream draws the same numbers as the stream itself."""
    source.standard_normal(2)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        if grandchild and os.fork() != 0:
            os.wait()
            os._exit(0)
        os.write(writer, source.standard_normal(4).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(reader, 16) == source.standard_normal(4).tobytes()


@pytest.mark.parametrize("grandchild", [False, True])
@pytest.mark.parametrize("make", [NoiseSource.from_system, lambda: NoiseSource.from_system().child(3, "a")])
def test_a_forked_copy_does_not_repeat_its_parents_noise(make, grandchild):
    assert not repeats_its_parent(make(), grandchild)
    assert repeats_its_parent(NoiseSource.from_seed(1), grandchild)  # as it says: reproducible


class KnowsItsProcess(NoiseSource):
    """The broken subject: a stream that compares process numbers."""

    def _renew_after_fork(self):
        if vars(self).setdefault("number", os.getpid()) != os.getpid():
            vars(self).update(vars(NoiseSource.from_system()))


def test_a_fork_in_another_pid_namespace_does_not_repeat_its_parents_noise(monkeypatch):
    """There both processes are number 1."""
    assert not repeats_its_parent(KnowsItsProcess.from_system())
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert not repeats_its_parent(NoiseSource.from_system())
    assert repeats_its_parent(KnowsItsProcess.from_system())


_BOTH_ARE_NUMBER_ONE = """
import ctypes, os
from privmarket.privacy._noise import NoiseSource
source = NoiseSource.from_system()
assert os.getpid() == 1
if ctypes.CDLL(None).unshare(0x20000000) != 0:  # CLONE_NEWPID
    raise SystemExit(77)
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, bytes([os.getpid()]) + source.standard_normal(4).tobytes())
    os._exit(0)
os.wait()
found = os.read(reader, 17)
assert found[0] == 1, found[0]
raise SystemExit(found[1:] == source.standard_normal(4).tobytes())
"""


def test_a_real_pid_namespace():
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("this system makes no PID namespaces for its users")
    code = subprocess.run([*unshare, sys.executable, "-c", _BOTH_ARE_NUMBER_ONE], check=False).returncode
    if code == 77:
        pytest.skip("no PID namespace inside another")
    assert code == 0


def test_normals_are_box_muller_of_the_cipher_stream():
    """An independent reading of the same bits, in float64."""
    key = bytes(range(16))
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(4 * 8))
    words = np.frombuffer(stream, dtype=np.uint32)
    uniform, angle = (words[:4] + 0.5) / 2**32, words[4:].view(np.int32) * np.pi / 2**31
    radius = np.sqrt(-2 * np.log(uniform))
    expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    np.testing.assert_allclose(NoiseSource(key).standard_normal(8), expected, rtol=1e-4, atol=1e-5)


def test_zero_words_give_the_largest_radius_and_nothing_infinite():
    source = FixedWords([0, 0])
    source._tail_bits = type("Zeros", (), {"update": staticmethod(lambda b: b)})()
    (value,) = source.standard_normal(1)
    assert value == pytest.approx(MAX_RADIUS, rel=1e-6)
    top = FixedWords([2**32 - 1, 5]).standard_normal(2)
    assert np.isfinite(top).all()
    assert np.abs(top).max() < 1e-3


def test_small_words_get_more_bits():
    source = FixedWords([0, 0] * 50)
    radii = {float(source.standard_normal(1)[0]) for _ in range(50)}
    assert len(radii) > 40  # without the extra bits all would be the same 6.76
    assert min(radii) > 6.6


@pytest.mark.parametrize("size", [0, 1, 2, 3, noise._NORMALS - 1, noise._NORMALS, noise._NORMALS + 1])
def test_every_entry_is_overwritten(size):
    out = np.full(size, 99.0, dtype=np.float32)
    NoiseSource.from_seed(1).fill(out)
    assert (np.abs(out) < MAX_RADIUS).all()


def test_add_scales_the_same_stream():
    out = np.ones(70_000, dtype=np.float32)
    NoiseSource.from_seed(2).add(out, 0.25)
    expected = 1 + 0.25 * NoiseSource.from_seed(2).standard_normal(70_000)
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)


def test_torch_tensors_are_filled_in_place():
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(3, 5, requires_grad=True)
    NoiseSource.from_seed(2).fill(tensor)
    np.testing.assert_array_equal(
        tensor.detach().numpy(), NoiseSource.from_seed(2).standard_normal(15).reshape(3, 5)
    )


def test_noise_does_not_import_torch():
    code = "import sys, privmarket.privacy._noise, privmarket.privacy._wallet, privmarket.privacy._release_audit;"
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "out", [np.zeros(4), np.zeros((4, 4), dtype=np.float32)[:, 1:], np.frombuffer(bytes(16), dtype=np.float32)]
)
def test_buffers_that_cannot_be_filled_in_place_are_refused(out):
    with pytest.raises(PrivacyError):
        NoiseSource.from_seed(0).fill(out)
    with pytest.raises(PrivacyError):
        NoiseSource(b"short")


def test_bernoulli_ends():
    source = NoiseSource.from_seed(4)
    assert source.bernoulli(1.0, 1000).all()
    assert not source.bernoulli(0.0, 1000).any()
    assert source.bernoulli(0.5, 0).shape == (0,)


def test_cells_follow_each_other_without_a_gap():
    whole, pieces = NoiseSource.from_seed(3), NoiseSource.from_seed(3)
    parts = [pieces.cells(4).copy() for _ in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts), whole.cells(12))


mp.mp.dps = 80
DISCRETE, ROUNDED = 0, 1


class FixedBytes:
    """Further random bytes that are chosen, to reach the corners."""

    def __init__(self, more):
        self.more = more

    def more_bytes(self, count):
        taken, self.more = self.more[:count], self.more[count:]
        assert len(taken) == count
        return np.frombuffer(taken, dtype=np.uint8)


def weight(x, variance):
    return mp.exp(-(mp.mpf(x) ** 2) / (2 * mp.mpf(variance)))


def discrete_gaussian(x, variance):
    """P(X = x) of the discrete Gaussian on the integers; from s = 6 on the total is √(2π)·s to 300 digits."""
    return weight(x, variance) / (mp.sqrt(2 * mp.pi) * mp.sqrt(variance))


@pytest.mark.parametrize("k", [-3000, -700, -256, 0, 1, 900, 2500])
def test_steps_are_the_distribution_functions(k):
    discrete = mp.fsum(discrete_gaussian(x, DIGIT_DEVIATION**2) for x in range(-4000, k))
    rounded = mp.ncdf((k - mp.mpf(1) / 2) / DIGIT_DEVIATION)
    for kind, exact in ((DISCRETE, discrete), (ROUNDED, rounded)):
        step = digit_tables().steps[kind][k + _REACH - 1]
        assert 0 <= exact * mp.mpf(2) ** 144 - step < 1.01  # rounded down, the ends cut off


def test_steps_are_symmetric_and_ascending():
    for steps in digit_tables().steps:
        assert list(steps) == sorted(steps)
        assert len(steps) == 2 * _REACH
        assert all(0 <= low + high - 2**144 + 1 <= 1 for low, high in zip(steps, steps[::-1], strict=True))


def digit_of(uniform, kind):
    """What `draw_digits` makes of a uniform number of 144 bits, given as the random words it would draw."""
    raw = uniform.to_bytes(18, "big")
    more = raw[2:3] + raw[3:11][::-1] + raw[11:][::-1]
    cell = np.array([int.from_bytes(raw[:2], "big")] * (2 if kind == DISCRETE else 1), dtype=np.uint16)
    if kind == DISCRETE:  # the first of two digits; the second is the rounded kind, decided by its first bits
        cell[1] = 40_000
    return int(draw_digits(cell, cell.size, FixedBytes(more + bytes(16)))[0, 0])


@pytest.mark.parametrize("kind", [DISCRETE, ROUNDED])
def test_every_uniform_number_is_inverted(kind):
    """The tables say what bisection of the distribution function says, also on the very edge of a step."""
    rng, steps = np.random.default_rng(0), digit_tables().steps[kind]
    assert (digit_tables().guide[40_000 + 65536] >= -_REACH).all()
    near = [steps[k + _REACH - 1] + shift for k in (-3500, -2000, -5, 0, 1, 700, 3300) for shift in (-1, 0, 1)]
    anywhere = [int.from_bytes(rng.bytes(18), "big") for _ in range(2000)]
    tails = [uniform >> int(rng.integers(0, 100)) for uniform in anywhere]
    for uniform in [0, 2**144 - 1, *near, *anywhere, *tails]:
        assert digit_of(uniform, kind) == bisect_right(steps, uniform) - _REACH


def test_few_cells_are_open():
    law = digit_tables()
    assert 0.02 < np.mean(law.guide < -_REACH) < 0.03
    assert np.mean(law.fine < -_REACH) < 0.006
    assert law.crowded.mean() < 0.05


@pytest.mark.parametrize("levels", [2, 3])
def test_upper_digits_add_up_to_a_discrete_gaussian(levels):
    """Lemma 2 on the integers: the law of 128·A + B over the discrete Gaussian's is constant to 2^−112."""
    upper = DIGIT_DEVIATION**2 * sum(RADIX ** (2 * k) for k in range(levels - 1))
    variance = RADIX**2 * upper + DIGIT_DEVIATION**2
    ratios = []
    for z in (0, 1, 63, 64, -77, 5 * int(math.sqrt(variance)) + 31):
        centre = round(z / RADIX)
        found = mp.fsum(
            discrete_gaussian(x, upper) * discrete_gaussian(z - RADIX * x, DIGIT_DEVIATION**2)
            for x in range(centre - 60, centre + 61)
        )
        ratios.append(found / discrete_gaussian(z, variance))
    assert max(abs(r - 1) for r in ratios) < mp.mpf(2) ** -112
    # and the bound is not idle: with steps as wide as a digit's deviation it would fail
    coarse = [
        mp.fsum(discrete_gaussian(x, 256**2) * discrete_gaussian(z - 256 * x, 256**2) for x in range(-60, 61))
        for z in (0, 128)
    ]
    assert abs(coarse[0] / coarse[1] * weight(128, 256**4 + 256**2) - 1) > 1e-9


def test_with_the_lowest_digit_the_sum_is_a_rounded_gaussian():
    """Lemma 2 on the line: 128·A + round(G) has the probabilities of a rounded Gaussian of deviation 2^15."""
    half, upper = mp.mpf(1) / 2, DIGIT_DEVIATION**2
    whole = mp.sqrt(RADIX**2 * upper + DIGIT_DEVIATION**2)
    assert float(whole) == pytest.approx(noise.noise_deviation(2), rel=1e-15)
    for z in (0, 1, 77, -30_000, 150_001):
        centre = round(z / RADIX)
        found = mp.fsum(
            discrete_gaussian(x, upper)
            * (
                mp.ncdf((z - RADIX * x + half) / DIGIT_DEVIATION)
                - mp.ncdf((z - RADIX * x - half) / DIGIT_DEVIATION)
            )
            for x in range(centre - 60, centre + 61)
        )
        exact = mp.ncdf((z + half) / whole) - mp.ncdf((z - half) / whole)
        assert abs(found / exact - 1) < mp.mpf(2) ** -112


def test_stated_distance():
    theta = 2.0001 * math.exp(-2 * math.pi**2 * 256**2 / (128**2 + 1))
    levels = noise.MAX_LEVELS
    exact = (levels - 1) * 1.01 * theta + levels * 2 * _REACH * 2.0**-144
    assert exact < noise.DISTANCE < 4 * exact
    with pytest.raises(PrivacyError, match="digits"):
        noise.noise_deviation(9)


def test_draws_are_their_digits_and_repeat_with_the_key():
    count = noise.CHUNK + 77
    first, again = (draw_integers(NoiseSource.from_seed(3), count, 4) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first).max() <= noise.largest_noise(4)
    source = NoiseSource.from_seed(3)
    digits = draw_digits(source.cells(4 * noise.CHUNK), 4, source).astype(np.int64)
    expected = 128**3 * digits[0] + 128**2 * digits[1] + 128 * digits[2] + digits[3]
    np.testing.assert_array_equal(first[: noise.CHUNK], expected)


def test_twenty_million_draws_a_second():
    """The aim on one thread is 20 million of any kind; the limit here leaves room for a busy machine."""
    source, count, times = NoiseSource.from_seed(0), noise.CHUNK, 20
    best = math.inf
    for _ in range(5):
        start = time.process_time()
        for _ in range(times):  # so many that any clock sees it
            draw_digits(source.cells(2 * count), 2, source)
        best = min(best, time.process_time() - start)
    assert times * count > 20e6 * best
