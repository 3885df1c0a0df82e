"""How fast noise, accounting and calibration are, each against a stated reference in the same run."""

from __future__ import annotations

from dataclasses import dataclass

import dp_accounting
import numpy as np
import opendp.prelude as dp
import torch
from absl import logging
from dp_accounting import rdp

from privmarket.privacy import _noise as integer_noise
from privmarket.privacy._accountant import RdpAccountants
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent, to_dp_event
from privmarket.privacy._noise import NoiseSource
from privmarket.privacy._release import ReleaseGrid
from privmarket_studies.timing import best_in_turn

CLIENTS, ROUNDS, RATE = 100, 200, 0.05


@dataclass(frozen=True)
class SpeedRow:
    """One task: our time, what it is compared with, and that one's time for the same amount of work."""

    task: str
    seconds: float
    reference: str
    reference_seconds: float

    @property
    def ratio(self) -> float:
        """Our time over the reference's; below 1 is faster."""
        return self.seconds / self.reference_seconds


def measure(*, seed: int = 0, normals: int = 1 << 24, turns: int = 5) -> list[SpeedRow]:
    """All tasks, one thread, best of `turns` with ours and the reference taking turns."""
    return [
        _noise(seed, normals, turns),
        _integer_noise(seed, normals, turns),
        _accounting(seed, turns),
        _calibration(seed, turns),
    ]


def _noise(seed: int, normals: int, turns: int) -> SpeedRow:
    torch.set_num_threads(1)
    buffer, source = torch.empty(normals), NoiseSource.from_seed(seed)
    ours, theirs = best_in_turn([lambda: source.fill(buffer), lambda: buffer.normal_()], turns)
    return SpeedRow(f"{normals:,} normals, AES-CTR + Box–Muller", ours, "torch normal_, one thread", theirs)


def _integer_noise(seed: int, draws: int, turns: int) -> SpeedRow:
    """What releases draw: rounding, noise and all; OpenDP's discrete Gaussian for a few, scaled up."""
    dp.enable_features("contrib")
    few = 10_000
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    oracle = space >> dp.m.then_gaussian(scale=integer_noise.noise_deviation(2))
    sums = np.zeros(min(draws, 1 << 20), dtype=np.float32)
    grid, source = ReleaseGrid(1.0, 2), NoiseSource.from_seed(seed)
    ours, theirs = best_in_turn([lambda: grid.noisy(sums, source, sums), lambda: oracle([0] * few)], turns)
    task = f"{draws:,} exact releases, AES-CTR + tables"
    return SpeedRow(task, ours * draws / sums.size, f"OpenDP discrete Gaussian, from {few:,}", theirs * draws / few)


def _sales(seed: int) -> list[list[PrivacyEvent]]:
    """(rounds, clients) sales of ε ~ U[0.1, 5] by one sampled step."""
    epsilon = np.random.default_rng(seed).uniform(0.1, 5.0, (ROUNDS, CLIENTS))
    noise = ReleaseFamily(RATE).noise_multiplier(epsilon)
    return [[PrivacyEvent(float(s), RATE) for s in row] for row in noise]


def _accounting(seed: int, turns: int) -> SpeedRow:
    """Ours for all clients; dp-accounting for one of them, times their number."""
    logging.set_verbosity(logging.ERROR)
    sales = _sales(seed)

    def ours() -> None:
        accountants = RdpAccountants(CLIENTS)
        for entry in sales:
            accountants.compose(entry)
        accountants.get_epsilon()

    ours()  # the curves of the noise levels are computed once

    def theirs() -> None:
        accountant = rdp.RdpAccountant()
        accountant.compose(to_dp_event([entry[0] for entry in sales[:10]]))
        accountant.get_epsilon(1e-5)

    (mine,), (once,) = best_in_turn([ours], turns), best_in_turn([theirs], 1)
    reference = once * CLIENTS * ROUNDS / 10
    task = f"accounting {CLIENTS} clients × {ROUNDS} rounds"
    return SpeedRow(task, mine, "dp-accounting RDP, from 10 rounds of one client", reference)


def _calibration(seed: int, turns: int) -> SpeedRow:
    """Ten thousand lookups; dp-accounting's own calibration of one ε, times ten thousand."""
    family, many = ReleaseFamily(0.25, 4), 10_000
    epsilon = np.random.default_rng(seed).uniform(0.1, 5.0, many)
    family.noise_multiplier(1.0)  # the table is read once

    def event(sigma: float) -> dp_accounting.DpEvent:
        return to_dp_event([PrivacyEvent(sigma, 0.25, 4)])

    def fresh() -> dp_accounting.PrivacyAccountant:
        # Ten times coarser than its default, to its advantage: the answer is the same to four digits.
        return dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)

    def theirs() -> None:
        bracket = dp_accounting.ExplicitBracketInterval(0.5, 10.0)
        dp_accounting.calibrate_dp_mechanism(fresh, event, 1.0, 1e-5, bracket, tol=1e-3)

    (mine,) = best_in_turn([lambda: family.noise_multiplier(epsilon)], turns)
    (once,) = best_in_turn([theirs], 1)
    return SpeedRow(f"noise for {many:,} sold ε", mine, "dp-accounting calibration, from one ε", once * many)
