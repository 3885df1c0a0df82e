import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from privmarket.errors import PrivacyError
from privmarket.privacy import _noise as noise
from privmarket.privacy._noise import MAX_RADIUS, NoiseSource


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


@pytest.mark.parametrize("size", [0, 1, 2, 3, noise._CHUNK - 1, noise._CHUNK, noise._CHUNK + 1])
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
