"""Who shares masks with whom: the window is large enough, and grows with log n."""

import math

import numpy as np
import pytest

from privmarket.flower import neighbours
from privmarket.flower.cohort import Cohort, CohortError, Member, new_signing_key, sign
from privmarket.flower.neighbours import failure_probability, neighbourhood, ring_order


def test_two_lists_of_survivors_cannot_both_be_confirmed():
    for sellers in range(2, 90):
        for share in (0.5, 2 / 3, 0.9, 1.0):
            plan = neighbourhood(sellers, share)
            honest = math.ceil(share * sellers - 1e-9)
            # Each honest seller signs one list, each other one both.
            assert 2 * plan.needed > honest + 2 * (sellers - honest)
            assert honest <= plan.needed <= sellers
            assert (plan.window, plan.threshold) == (sellers, plan.needed)


def test_windows_grow_with_the_logarithm():
    sizes = [neighbourhood(n, 2 / 3).window for n in (100, 1000, 10_000, 100_000)]
    assert sizes == sorted(sizes)
    assert sizes[0] < 75
    assert sizes[-1] < 330
    assert sizes[3] - sizes[2] < sizes[2] - sizes[1] < 100


def test_the_failure_probability_is_that_of_random_rings():
    """A window that is far too small, where failures can be counted."""
    sellers, colluders, window = 60, 20, 9
    reach, may_drop = window // 2, window // neighbours._MAY_DROP
    rng, cut = np.random.default_rng(0), 0
    for _ in range(1000):
        bad = np.zeros(sellers, dtype=int)
        bad[rng.permutation(sellers)[: colluders - may_drop]] = 1
        runs = np.convolve(np.concatenate([bad, bad[: reach - 1]]), np.ones(reach, dtype=int), "valid")
        cut += bool((runs >= reach - may_drop).any())
    claimed = failure_probability(sellers, colluders, window)
    assert cut / 1000 <= claimed  # a union bound
    assert cut / 1000 > claimed / 20
    assert failure_probability(sellers, 0, window) == 0.0


def test_a_ring_is_symmetric_and_follows_from_the_keys():
    plan, nodes = neighbourhood(120, 2 / 3), list(range(1000, 1120))
    ring = ring_order(b"one", nodes)
    windows = plan.windows(ring)
    assert all(len(window) == plan.window and node in window for node, window in windows.items())
    assert all(node in windows[other] for node, window in windows.items() for other in window)
    assert all(plan.window_of(node, ring) == windows[node] for node in nodes[:5])
    assert ring_order(b"other", nodes) != ring == ring_order(b"one", nodes[::-1])


def test_a_cohort_is_read_as_it_was_written_and_nothing_else():
    keys = {node: new_signing_key() for node in (5, 3, 9)}
    cohort = Cohort.of([*(Member(n, public, public[::-1]) for n, (_, public) in keys.items()), Member(7)])
    again = Cohort.read(cohort.write())
    assert again.members == cohort.members
    assert again.digest == cohort.digest
    survivors = cohort.write_survivors([3, 9])
    assert again.read_survivors(survivors) == {3, 9}
    signed = {node: sign(keys[node][0], cohort.statement(survivors)) for node in (3, 9)}
    assert again.confirmations(survivors, signed) == 2
    assert again.confirmations(survivors, {3: signed[9], 9: signed[9]}) == 1
    assert again.confirmations(cohort.write_survivors([3, 5]), signed) == 0
    twice = cohort.write()[:72] * 2
    for text in (b"x", twice):
        with pytest.raises(CohortError):
            Cohort.read(text)
    with pytest.raises(CohortError):
        again.read_survivors(cohort.write_survivors([7]))  # sent no keys
    with pytest.raises(CohortError):
        again.read_survivors(b"12")
