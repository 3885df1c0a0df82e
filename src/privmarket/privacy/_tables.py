"""How much ε each noise multiplier on a public grid costs, for schedules that have no closed form.

A table holds ε(σ_k) on a geometric grid of noise multipliers, computed by dp-accounting's privacy loss
distributions and cached on disk. A lookup returns the smallest σ_k on the grid whose ε is at most the ε
asked for. ε falls with σ (more noise is post-processing), so rounding σ up to the grid can only add noise.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import io
import os
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import numpy as np

from privmarket._files import write_atomically
from privmarket._lazy import late
from privmarket.errors import WriteError
from privmarket.privacy._gaussian import Array, sampled_epsilon, sampled_noise_multiplier

pld = late("dp_accounting.pld.privacy_loss_distribution")

# Neighbours on the grid differ by a factor 2^(1/64): a lookup adds at most 1.1 % noise.
_PER_OCTAVE = 64
# The ε that a table covers; below, `calibration` falls back to closed-form bounds, above, it over-noises.
EPSILON_MIN, EPSILON_MAX = 0.02, 20.0
_FORMAT = "privmarket-noise-table-2"
# This share of δ is kept for finite arithmetic; tables are computed at the rest. See `calibration`.
ARITHMETIC_SHARE = 2.0**-10


@dataclass(frozen=True, eq=False)
class NoiseTable:
    """ε of one release at every noise multiplier of a stretch of the grid.

    Attributes:
        noise_multiplier: (points,) ascending, on the grid.
        epsilon: (points,) non-increasing upper bounds on the exact ε.
    """

    noise_multiplier: Array
    epsilon: Array

    def index(self, epsilon: Array) -> np.ndarray:
        """For each ε the smallest k with epsilon[k] ≤ ε; `points` where no entry is that small."""
        return np.searchsorted(-self.epsilon, -epsilon, side="left")


def on_grid_above(noise_multiplier: Array) -> Array:
    """The next point of the public grid, never below the argument."""
    k = np.ceil(np.log2(noise_multiplier) * _PER_OCTAVE)
    up = np.exp2(k / _PER_OCTAVE)
    # log2 and exp2 round; where they rounded below the argument, the next point is right.
    return np.asarray(np.where(up < noise_multiplier, np.exp2((k + 1) / _PER_OCTAVE), up))


def grid_between(low: float, high: float) -> Array:
    """(points,) the public grid from `low` to just above `high`, ascending."""
    first, last = np.ceil(np.log2([low, high]) * _PER_OCTAVE)
    return np.asarray(np.exp2(np.arange(first, last + 1) / _PER_OCTAVE))


@lru_cache(maxsize=256)
def noise_table(delta: float, sampling_rate: float, steps: int) -> NoiseTable:
    """The table of one schedule: from memory, from the package, from the user's cache, or built now."""
    name = _file_name(delta, sampling_rate, steps)
    shipped = importlib.resources.files("privmarket.privacy") / "noise_tables" / name
    cached = cache_folder() / name
    for place in (shipped, cached):
        table = _read(place, delta, sampling_rate, steps) if place.is_file() else None
        if table is not None:
            return table
    table = build_table(delta, sampling_rate, steps)
    _write(table, cached, delta, sampling_rate, steps)
    return table


def is_ready(delta: float, sampling_rate: float, steps: int) -> bool:
    """Whether the noise of a schedule is known without building a table, which takes up to a minute."""
    if sampling_rate == 1.0 or steps == 1:
        return True
    name = _file_name(delta, sampling_rate, steps)
    shipped = importlib.resources.files("privmarket.privacy") / "noise_tables" / name
    return any(place.is_file() for place in (shipped, cache_folder() / name))


def build_table(delta: float, sampling_rate: float, steps: int) -> NoiseTable:
    """Computes a table anew, some seconds. One privacy loss distribution per grid point, no search.

    The ε are those at δ·(1 − ARITHMETIC_SHARE).
    """
    exact_delta = delta * (1.0 - ARITHMETIC_SHARE)
    noise = _grid_for(exact_delta, sampling_rate, steps)
    exact = np.array([pld_epsilon(s, exact_delta, sampling_rate, steps) for s in noise])
    # ε(σ) is non-increasing in theory; the running maximum from the right only ever raises an entry.
    epsilon = np.maximum.accumulate(exact[::-1])[::-1]
    return NoiseTable(noise, epsilon)


def pld_epsilon(noise_multiplier: float, delta: float, sampling_rate: float, steps: int) -> float:
    """ε of `steps` Poisson-sampled Gaussian steps: an upper bound, tight to about 0.1 %.

    Implements: privacy loss distributions with the pessimistic connect-the-dots discretisation of
    [DoroshenkoEtAl2022], by dp-accounting.
    Assumes: neighbours differ by adding or removing one record, or by blanking one under Poisson sampling.
    """
    # The grid of losses follows the size of ε, so every point costs about the same time. Any spacing is an
    # upper bound; it only decides how tight.
    one_step = float(sampled_epsilon(noise_multiplier, delta, sampling_rate))
    spacing = float(np.clip(one_step / 100.0, 1e-6, 2e-2))
    loss = pld.from_gaussian_mechanism(
        noise_multiplier, sampling_prob=sampling_rate, value_discretization_interval=spacing
    )
    return float(loss.self_compose(steps).get_epsilon_for_delta(delta))


def _grid_for(delta: float, sampling_rate: float, steps: int) -> Array:
    """(points,) the stretch of the grid on which ε runs from about EPSILON_MAX down to EPSILON_MIN."""
    # One step at EPSILON_MAX needs less noise than `steps` of them, so it bounds the stretch from below.
    start = float(sampled_noise_multiplier(EPSILON_MAX, delta, sampling_rate))
    low = _last_above(EPSILON_MAX, delta, sampling_rate, steps, start)
    high = low
    while pld_epsilon(high, delta, sampling_rate, steps) > EPSILON_MIN:
        high *= 1.5
    return grid_between(low, high)


def _last_above(epsilon: float, delta: float, sampling_rate: float, steps: int, noise: float) -> float:
    """A multiplier whose ε is still above `epsilon`, at most 10 % below the one that meets it."""
    while pld_epsilon(noise * 1.1, delta, sampling_rate, steps) > epsilon:
        noise *= 1.1
    return noise


def cache_folder() -> Path:
    """Where tables are kept: $PRIVMARKET_CACHE, else $XDG_CACHE_HOME/privmarket, else ~/.cache/privmarket."""
    if own := os.environ.get("PRIVMARKET_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "privmarket"


def _file_name(delta: float, sampling_rate: float, steps: int) -> str:
    # repr of a float is exact, so two schedules never share a file.
    return f"noise-{delta!r}-{sampling_rate!r}-{steps}.npz"


def _digest(noise: Array, epsilon: Array, delta: float, sampling_rate: float, steps: int) -> str:
    # With the schedule: a table under another schedule's name is no valid table.
    head = f"{_FORMAT} {_PER_OCTAVE} {ARITHMETIC_SHARE!r} {delta!r} {sampling_rate!r} {steps} "
    text = head.encode() + noise.tobytes() + epsilon.tobytes()
    return hashlib.sha256(text).hexdigest()


def _read(
    place: Path | importlib.resources.abc.Traversable, delta: float, sampling_rate: float, steps: int
) -> NoiseTable | None:
    """The stored table, or None when it is damaged, of another format or another schedule's: built again then."""
    try:
        with place.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            noise, epsilon, digest = stored["noise_multiplier"], stored["epsilon"], str(stored["digest"])
    except Exception:
        # A flipped bit surfaces anywhere in zip, zlib or NumPy's header; whatever it raises, the file is bad.
        return None
    if digest != _digest(noise, epsilon, delta, sampling_rate, steps):
        return None
    return NoiseTable(noise, epsilon)


def _write(table: NoiseTable, place: Path, delta: float, sampling_rate: float, steps: int) -> None:
    """Writes in one step, so that a reader never sees half a file."""
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        noise_multiplier=table.noise_multiplier,
        epsilon=table.epsilon,
        digest=_digest(table.noise_multiplier, table.epsilon, delta, sampling_rate, steps),
        built_with=f"dp-accounting {version('dp-accounting')}",
    )
    try:
        write_atomically(place, buffer.getvalue())
    except WriteError:
        # Where the cache folder cannot be written, every process builds the table again.
        return
