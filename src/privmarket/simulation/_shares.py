"""The secure sums of a simulated round: one, or several where more sell than one sum is made for."""

from __future__ import annotations

from numpy.typing import ArrayLike

from privmarket.secagg import DEFAULT_COHORT, SharedSum, deal_places


def simulated_sum(
    noise_multiplier: ArrayLike,
    records: ArrayLike,
    *,
    clip_norm: float,
    parameters: int,
    honest_share: float,
    sellers: int,
    seed: str,
    largest_cohort: int = DEFAULT_COHORT,
) -> SharedSum:
    """The public numbers of a round's sums, its sellers dealt to cohorts of at most `largest_cohort`.

    Args:
        noise_multiplier, records, clip_norm, parameters, honest_share: as for `SharedSum.plan`.
        sellers: how many there are.
        seed: names run and round; it stands for the randomness that real sellers make together.
    """
    cohorts = deal_places(sellers, seed.encode(), largest_cohort) if sellers else None
    return SharedSum.plan(
        noise_multiplier,
        records,
        clip_norm=clip_norm,
        parameters=parameters,
        honest_share=honest_share,
        cohort_of=cohorts,
    )
