"""Random bits from a cipher, AES-128 in counter mode, and what is made of them: coins, normals, integer noise.

A statistical generator (NumPy's, torch's) can be run backwards from its outputs, and with it the noise that
was sold as privacy. Outside tests the key comes from the operating system; a seed gives reproducible runs.

Releases take `cells` and `more_bytes`, from which `integer_noise` makes exact integers. The float32 normals of
`fill` and `add` (Box–Muller, radius cut at `MAX_RADIUS` = 9.49, which one pair in 2^65 would pass) are for
experiments: added to floating-point sums they are not private in the last bits, whatever their deviation.
"""

from __future__ import annotations

import hmac
import math
import os
import threading
from typing import Protocol, Self

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from privmarket.errors import PrivacyError

# √(2·65·ln 2): the smallest uniform is half of 2^−64.
MAX_RADIUS = math.sqrt(2 * 65 * math.log(2))

# Normals made at once: the bits, radii and angles of one chunk stay in the processor's second-level cache.
_CHUNK = 1 << 17
_ZEROS = memoryview(bytes(4 * _CHUNK))
# Below this a 32-bit uniform is too coarse for the tail and gets 32 more bits (one pair in 2^20).
_COARSE = np.uint32(1 << 12)
_LARGEST_UNIFORM = np.nextafter(np.float32(1.0), np.float32(0.0))


class TorchTensor(Protocol):
    """The two methods of a torch tensor that are called here, so that torch need not be imported."""

    def detach(self) -> TorchTensor:
        """The same numbers outside the graph of derivatives."""

    def numpy(self) -> np.ndarray:
        """The same memory as a NumPy array."""


class _Workspace(threading.local):
    """Where numbers are made, one per thread for all streams, so that it stays in the processor's cache."""

    def __init__(self) -> None:
        # The cipher's update_into wants room for one block more than it writes.
        self.words: NDArray[np.uint32] = np.empty(_CHUNK + 4, dtype="<u4")
        self.bytes = self.words.data.cast("B")
        self.radius: NDArray[np.float32] = np.empty(_CHUNK // 2, dtype=np.float32)
        self.angle: NDArray[np.float32] = np.empty(_CHUNK // 2, dtype=np.float32)
        self.cosine: NDArray[np.float32] = np.empty(_CHUNK // 2, dtype=np.float32)


_WORKSPACE = _Workspace()

# How often this process's memory was copied by a fork. A number of the process would not do: two processes in
# different PID namespaces (containers) may both be number 1.
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # where processes cannot fork there is nothing to count
    os.register_at_fork(after_in_child=_count_fork)


class NoiseSource:
    """A stream of standard normals (and of Poisson samples) that cannot be predicted without its key.

    Equal keys and equal sequences of calls give equal numbers on one machine. Streams for rounds, clients or
    workers come from `child`, never from sharing one stream, so results do not depend on the order of work.

    Args:
        key: 16 bytes; of any length where there are labels.
        labels: name a stream of its own under the key.
    """

    def __init__(self, key: bytes, *labels: int | str) -> None:
        if labels:  # repr keeps 1 and "1", ("a", "b") and ("ab",) apart
            key = hmac.digest(key, repr(labels).encode(), "sha256")[:16]
        if len(key) != 16:
            raise PrivacyError(f"a noise key of {len(key)} bytes", "AES-128 takes 16; use from_seed or from_system")
        self._made_after: int | None = None  # the count of forks when a system-keyed stream was made
        # Counters start at 0 for every key; keys are never reused for anything else.
        tail_key = hmac.digest(key, repr(("tail",)).encode(), "sha256")[:16]
        bits, tail = algorithms.AES(key), algorithms.AES(tail_key)
        self._key = key
        self._bits: CipherContext = Cipher(bits, modes.CTR(bytes(16))).encryptor()
        self._tail_bits: CipherContext = Cipher(tail, modes.CTR(bytes(16))).encryptor()

    @classmethod
    def from_system(cls) -> Self:
        """A stream keyed by the operating system: what every real release uses."""
        source = cls(os.urandom(16))
        source._made_after = _forks
        return source

    @classmethod
    def from_seed(cls, seed: int, *labels: int | str) -> Self:
        """A reproducible stream, for tests and simulations: whoever knows the seed knows the noise."""
        return cls(b"privmarket-seed", seed, *labels)

    def child(self, *labels: int | str) -> NoiseSource:
        """An independent stream named by `labels`, for instance (round, client).

        Children of a system-keyed stream belong to this process too: a forked copy of either starts afresh.
        """
        self._renew_after_fork()
        made = NoiseSource(self._key, "child", *labels)
        made._made_after = self._made_after
        return made

    def cells(self, count: int) -> NDArray[np.uint16]:
        """The next `count` ≤ 2·_CHUNK words of 16 random bits; overwritten by the next call in this thread."""
        self._renew_after_fork()
        self._bits.update_into(_ZEROS[: 4 * ((count + 1) // 2)], _WORKSPACE.bytes)
        return _WORKSPACE.words.view(np.uint16)[:count]

    def more_bytes(self, count: int) -> NDArray[np.uint8]:
        """`count` random bytes from a second stream, so that the first keeps its pace."""
        self._renew_after_fork()
        return np.frombuffer(self._tail_bits.update(bytes(count)), dtype=np.uint8)

    def standard_normal(self, shape: int | tuple[int, ...]) -> NDArray[np.float32]:
        """A new float32 array of this shape, filled with standard normals; for experiments only."""
        out = np.empty(shape, dtype=np.float32)
        self.fill(out)
        return out

    def fill(self, out: NDArray[np.float32] | TorchTensor) -> None:
        """Overwrites a contiguous float32 NumPy array or torch tensor (any shape) with standard normals."""
        flat = _flat_view(out)
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK]
            radius, cosine, sine = self._polar(part.size)
            np.multiply(radius, cosine, out=part[: radius.size])
            np.multiply(radius[: sine.size], sine, out=part[radius.size :])

    def add(self, out: NDArray[np.float32] | TorchTensor, scale: float) -> None:
        """Adds N(0, scale²) to every entry of a float32 array or tensor, without a second buffer of its size."""
        flat = _flat_view(out)
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK]
            radius, cosine, sine = self._polar(part.size)
            radius *= np.float32(scale)
            cosine *= radius
            part[: radius.size] += cosine
            sine *= radius[: sine.size]
            part[radius.size :] += sine

    def bernoulli(self, probability: float, size: int) -> NDArray[np.bool_]:
        """(size,) independent coins: a Poisson sample, in which each record is drawn with `probability`.

        The probability is rounded down to a multiple of 2^−32, so sampling never exceeds what was accounted.
        """
        if probability >= 1.0:
            return np.ones(size, dtype=np.bool_)
        below = np.uint32(math.floor(probability * 2.0**32))
        coins = np.empty(size, dtype=np.bool_)
        for start in range(0, size, _CHUNK):
            part = coins[start : start + _CHUNK]
            np.less(self._take(part.size), below, out=part)
        return coins

    def _take(self, words: int) -> NDArray[np.uint32]:
        """The next `words` ≤ _CHUNK words of 32 random bits; overwritten by the next call in this thread."""
        return self.cells(2 * words).view(np.uint32)

    def _renew_after_fork(self) -> None:
        """Gives a forked copy of a system-keyed stream a new key: else it would repeat its parent's noise.

        The difference of two releases with the same noise would hold none.
        """
        if self._made_after not in (None, _forks):
            vars(self).update(vars(self.from_system()))

    def _polar(self, count: int) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """r, cos θ and sin θ of `count` ≤ _CHUNK normals r cos θ and r sin θ, where r² = −2 ln u (Box–Muller).

        They lie in the thread's workspace and are overwritten by the next call; an odd count has one sine less.
        """
        pairs = (count + 1) // 2
        words = self._take(2 * pairs)
        radius = self._uniform(words[:pairs])
        np.log(radius, out=radius)
        radius *= np.float32(-2.0)
        np.sqrt(radius, out=radius)
        angle, cosine = _WORKSPACE.angle[:pairs], _WORKSPACE.cosine[:pairs]
        np.copyto(angle, words[pairs:].view(np.int32), casting="same_kind")
        angle *= np.float32(math.pi / 2.0**31)  # [−π, π): sines and cosines of small angles keep their bits
        np.cos(angle, out=cosine)
        sine = angle[: count - pairs]
        return radius, cosine, np.sin(sine, out=sine)

    def _uniform(self, words: NDArray[np.uint32]) -> NDArray[np.float32]:
        """Uniforms in (0, 1), never 0 or 1: (k + ½)·2^−32, with 32 further bits where k is small."""
        uniform = _WORKSPACE.radius[: words.size]
        np.copyto(uniform, words, casting="same_kind")
        uniform += np.float32(0.5)
        uniform *= np.float32(2.0**-32)
        # Rounding to float32 may reach 1, whose radius is 0: a normal of exactly 0 in both of a pair.
        np.minimum(uniform, _LARGEST_UNIFORM, out=uniform)
        if words.size and words.min() < _COARSE:
            coarse = np.flatnonzero(words < _COARSE)
            more = np.frombuffer(self._tail_bits.update(bytes(4 * coarse.size)), dtype=np.uint32)
            fine = words[coarse].astype(np.float64) + (more.astype(np.float64) + 0.5) * 2.0**-32
            uniform[coarse] = fine * 2.0**-32
        return uniform


def _flat_view(out: NDArray[np.float32] | TorchTensor) -> NDArray[np.float32]:
    """(n,) the memory of a NumPy array or a torch tensor."""
    array = out if isinstance(out, np.ndarray) else out.detach().numpy()
    if array.dtype != np.float32 or not array.flags.c_contiguous or not array.flags.writeable:
        raise PrivacyError(
            f"noise into a buffer of {array.dtype}, shape {array.shape}",
            "give a float32 array that is contiguous and writeable",
        )
    flat: NDArray[np.float32] = array.reshape(-1)
    return flat
