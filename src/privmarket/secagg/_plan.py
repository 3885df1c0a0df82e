"""Aggregate trust: what each seller adds to a sum of which the server learns only the total.

Under secure aggregation the server learns Y = Σ (w_i·S_i + N_i) and no single term. Each seller adds integer noise
N_i of deviation D. Even for a server that colludes with all but h honest sellers, Y has noise of deviation √h·D.
One record of client i moves the sum by w_i·C, so w_i = √h·D/(σ_i·C) makes this a Gaussian release of noise
multiplier σ_i, whatever the others sold. The server divides by Σ w: updates are averaged with weights ∝ 1/σ_i.

A sum is opened only if at least h + c sellers are in it. If at most c of the round's sellers work together with
the server, at least h of those in the sum are honest, even if the server pretends that others dropped out.

A round with more sellers than one sum allows has several sums, one per cohort (`_cohorts`). Each has its full
noise, with its own h; so k cohorts have √k times the noise of one sum of all.

Notation: n sellers, c of them colluding, h honest ones in every opened sum, d parameters, C the clip norm, S_i the
clipped sum of client i.
Proof, including finite arithmetic: docs/theory/secure-sums.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privmarket.errors import PrivacyError
from privmarket.privacy._gaussian import Array
from privmarket.privacy._noise import MAX_LEVELS, largest_noise, noise_deviation
from privmarket.privacy._release import ReleaseGrid, double_sum_inflation, sum_inflation

Integers = NDArray[np.int64]

MODULUS_BITS = 54
"""The most bits of the modulus of a sum.

Shares are made in float64, which holds every integer up to 2^53; no share of a sum below that is larger. Rounding a
share after its noise is added would break the proof.
"""
# Two digits of noise have deviation 2^15, which leaves room for the sum in a modulus of 32 bits.
_MIN_LEVELS = 2
# Rounding to the grid may add this share to the sensitivity; the weight is smaller by as much.
_GRID_SHARE = 2.0**-7
MOST_DRAWS = 2**30
"""The most draws of noise in one sum, sellers × coordinates.

Each is within 4.05·2^−112 of a rounded Gaussian: all together within 1.02·2^−80, below the 1.5·2^−80 that the
calibration of the noise charges to δ.
"""


def honest_sellers(sellers: int, honest_share: float) -> int:
    """h = ⌈share·n⌉: the number of honest sellers whose noise is in every opened sum of n sellers."""
    # A share such as 2/3 is a rounded number: 2/3·3 must give 2, not 3.
    return min(sellers, max(1, math.ceil(honest_share * sellers - 1e-9)))


def colluders_allowed(sellers: int, honest_share: float) -> int:
    """c = ⌈(n − h)/2⌉: how many of a round's n sellers may collude with the server; n − h − c may drop out."""
    return -(-(sellers - honest_sellers(sellers, honest_share)) // 2)


def survivors_needed(sellers: int, honest_share: float) -> int:
    """How many of a round's n sellers must survive before the sum may be opened: h + c, or more.

    At most c of them collude, so at least h are honest, whoever else is said to have dropped out. Each honest
    seller confirms one list of survivors. Two lists with this many confirmations each would need more than n − c
    honest sellers, even if all c colluders confirm both, so two different sums can never be opened in one round.
    """
    colluders = colluders_allowed(sellers, honest_share)
    return max(honest_sellers(sellers, honest_share) + colluders, (sellers + colluders) // 2 + 1)


@dataclass(frozen=True, eq=False)
class SharedSum:
    """The public numbers of one round's sums. Every seller computes the same numbers from the awards.

    Attributes:
        honest: h of the smallest cohort: the noise of so many sellers protects each of them.
        thresholds: per cohort, the fewest survivors with which its sum is opened, see `survivors_needed`.
        levels: digits of each seller's integer noise.
        weights: (sellers,) w, steps of the sums' grid per unit of a clipped sum.
        bits: sums are taken modulo 2^bits, and cannot wrap.
        cohort_of: (sellers,) in which cohort each seller is.
    """

    honest: int
    thresholds: tuple[int, ...]
    levels: int
    weights: Array
    bits: int
    cohort_of: Integers

    @classmethod
    def plan(
        cls,
        noise_multiplier: ArrayLike,
        records: ArrayLike,
        *,
        clip_norm: float,
        parameters: int,
        honest_share: float,
        modulus_bits: int = MODULUS_BITS,
        cohort_of: ArrayLike | None = None,
    ) -> SharedSum:
        """The sums for these sellers.

        Args:
            noise_multiplier: (sellers,) σ that each sold ε needs.
            records: (sellers,) how many records each holds, as stated in its bid.
            clip_norm: C.
            parameters: d.
            honest_share: h/n, above 0 and at most 1.
            modulus_bits: the largest modulus of the protocol that adds the integers, in bits.
            cohort_of: (sellers,) the cohort of each, from 0 on without gaps, see `deal_places`; default: one
                cohort.
        """
        sigma, held = np.broadcast_arrays(np.asarray(noise_multiplier, float), np.asarray(records, float))
        if sigma.ndim != 1 or not sigma.size or not (np.isfinite(sigma) & (sigma > 0)).all():
            raise PrivacyError(
                f"noise multipliers {noise_multiplier!r}: not a list of numbers above 0", "give one per seller"
            )
        cohorts = np.zeros(sigma.size, dtype=np.int64) if cohort_of is None else np.asarray(cohort_of, np.int64)
        sizes = np.bincount(cohorts)
        if cohorts.shape != sigma.shape or not sizes.all():
            raise PrivacyError(f"cohorts {cohort_of!r}", "give each seller's, from 0 on without gaps")
        # The same for all cohorts, so that every update counts in proportion to what was sold.
        honest = min(honest_sellers(int(size), honest_share) for size in sizes)
        most_honest = max(honest_sellers(int(size), honest_share) for size in sizes)
        require_covered(most_honest, parameters)
        levels = _levels(float(sigma.max()), honest, parameters)
        reach = math.sqrt(honest) * noise_deviation(levels) / sigma
        weights = largest_weights(
            sigma, held, honest=honest, levels=levels, clip_norm=clip_norm, parameters=parameters
        )
        signals = np.bincount(cohorts, weights=held * reach + 1.0)
        needs = [_bits(float(signal), int(size), levels) for signal, size in zip(signals, sizes, strict=True)]
        bits = max(needs)
        if bits > modulus_bits:
            raise PrivacyError(
                f"a sum of {sigma.size} sellers needs {bits} bits, the modulus has {modulus_bits}",
                "use a larger modulus, fewer sellers a round, or sell less ε a round",
            )
        thresholds = tuple(survivors_needed(int(size), honest_share) for size in sizes)
        return cls(honest, thresholds, levels, weights, bits, cohorts)

    @property
    def cohorts(self) -> int:
        """How many sums there are; the noise grows with the square root of it."""
        return len(self.thresholds)

    @property
    def needed(self) -> int:
        """How many sellers of the largest cohort must survive."""
        return max(self.thresholds)

    def grid(self, seller: int) -> ReleaseGrid:
        """The grid to which a seller of the round rounds its sum, and on which it adds noise; one step is 1/w."""
        return ReleaseGrid(1.0 / float(self.weights[seller]), self.levels)

    def counted(self, sellers: Sequence[int]) -> list[int]:
        """The survivors among `sellers` whose cohort has enough survivors: only the sums of these are opened."""
        came = np.bincount(self.cohort_of[list(sellers)], minlength=self.cohorts)
        opens = came >= np.array(self.thresholds)
        return [seller for seller in sellers if opens[self.cohort_of[seller]]]

    def opened(self, shares: Integers, sellers: Sequence[int]) -> NDArray[np.float64] | None:
        """(parameters,) Σ w·S / Σ w over the survivors, with its noise; None if there are too few of them.

        Args:
            shares: (survivors, parameters) what they sent; or sums of what some of them sent.
            sellers: the survivors' numbers, all in cohorts that have enough of them, see `counted`.
        """
        if not sellers or len(self.counted(sellers)) < len(sellers):
            return None
        # Each sum fits into `bits`, and so does the sum of several in a few bits more.
        bits = min(64, self.bits + (self.cohorts - 1).bit_length())
        return modular_sum(shares, bits) / float(self.weights[list(sellers)].sum())

    def deviation(self, sellers: Sequence[int]) -> float:
        """Standard deviation of the noise on `opened`, per coordinate: all survivors' shares together."""
        one = noise_deviation(self.levels)
        return math.sqrt(len(sellers)) * one / float(self.weights[list(sellers)].sum())


def require_covered(honest: int, parameters: int) -> None:
    """Refuses a sum of so many draws that their distance from Gaussians exceeds the share of δ reserved for it.

    Raises:
        PrivacyError: h·d is above 2^30; see docs/theory/secure-sums.md.
    """
    if honest * parameters > MOST_DRAWS:
        raise PrivacyError(
            f"{honest} honest sellers × {parameters} parameters: beyond the 2^30 draws that δ covers",
            "sell in smaller rounds, or train a smaller model",
        )


def largest_weights(
    noise_multiplier: ArrayLike, records: ArrayLike, *, honest: int, levels: int, clip_norm: float, parameters: int
) -> Array:
    """(sellers,) the largest factor for each one's clipped sum. A client checks the server's weight against it.

    Args:
        noise_multiplier, records, clip_norm, parameters: as for `SharedSum.plan`.
        honest: h.
        levels: digits of each seller's integer noise.
    """
    require_covered(honest, parameters)
    # What one record may move the sum by, in steps: h shares of deviation D together over σ.
    reach = math.sqrt(honest) * noise_deviation(levels) / np.asarray(noise_multiplier, float)
    held = np.asarray(records, float)
    inflation = np.array([max(sum_inflation(int(n)), double_sum_inflation(int(n))) for n in held])
    return (reach - math.sqrt(parameters)) / (clip_norm * (1.0 + inflation)) * (1.0 - 2.0**-40)


def modular_sum(shares: Integers, bits: int) -> Integers:
    """(sellers, parameters) → (parameters,) the sum modulo 2^bits, between −2^(bits−1) and 2^(bits−1) − 1."""
    total = shares.view(np.uint64).sum(axis=0, dtype=np.uint64)
    unused = np.uint64(64 - bits)
    # Shifting up drops what lies beyond the modulus; the arithmetic shift down restores the sign.
    signed: Integers = (total << unused).view(np.int64) >> unused.astype(np.int64)
    return signed


def alone_noise_multiplier(noise_multiplier: ArrayLike, honest: int) -> Array:
    """σ/√h: the noise multiplier of a seller's own share, all that is left if every other seller colludes."""
    return np.asarray(noise_multiplier, float) / math.sqrt(honest)


def bits_at_most(
    clients: int, records: int, smallest_noise_multiplier: float, parameters: int, honest_share: float
) -> int:
    """Bits that a round's sum needs if all clients sell the largest ε on offer; known before anyone has bid.

    If some clients sell so little that everybody's noise takes another digit, a round needs seven bits more;
    `SharedSum.plan` counts them and refuses what does not fit.

    Args:
        records: the most that a client holds.
        smallest_noise_multiplier: σ of the largest ε that may be sold.
    """
    honest = honest_sellers(clients, honest_share)
    levels = _levels(smallest_noise_multiplier, honest, parameters)
    reach = math.sqrt(honest) * noise_deviation(levels) / smallest_noise_multiplier
    return _bits(clients * (records * reach + 1.0), clients, levels)


def _levels(largest_noise_multiplier: float, honest: int, parameters: int) -> int:
    """The fewest digits with which rounding d coordinates is a small share of the effect of one record."""
    for levels in range(_MIN_LEVELS, MAX_LEVELS + 1):
        reach = math.sqrt(honest) * noise_deviation(levels) / largest_noise_multiplier
        if math.sqrt(parameters) <= _GRID_SHARE * reach:
            return levels
    raise PrivacyError(
        f"noise multiplier {largest_noise_multiplier:g} on {parameters} parameters is beyond the integer noise",
        "sell a larger ε, or a smaller model",
    )


def _bits(largest_signal: float, sellers: int, levels: int) -> int:
    """Bits of a two's complement that can hold every possible sum, given the bounds on clipped sums and draws."""
    largest = math.ceil(largest_signal) + sellers * largest_noise(levels)
    return largest.bit_length() + 1
