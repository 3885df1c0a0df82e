"""Who shares masks with whom: the window is large enough, and grows with log n."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, hypergeom

from privmarket.federated.shares import colluders_allowed, honest_sellers, survivors_needed
from privmarket.flower import neighbours
from privmarket.flower.cohort import Cohort, CohortError, Member, new_signing_key, sampled_places, sign
from privmarket.flower.hash_tree import HashTree, root_of
from privmarket.flower.neighbours import failure_probability, neighbourhood, ring_order


def test_two_lists_of_survivors_cannot_both_be_confirmed():
    for sellers in range(2, 90):
        for share in (0.5, 2 / 3, 0.9, 1.0):
            plan = neighbourhood(sellers, share)
            honest = math.ceil(share * sellers - 1e-9)
            colluders = math.ceil((sellers - honest) / 2)
            # Each honest seller signs one list, each colluder both.
            assert 2 * plan.signed > (sellers - colluders) + 2 * colluders
            assert plan.signed <= plan.needed
            # Whoever is said to have dropped out, h honest ones are among the survivors.
            assert honest + colluders <= plan.needed <= sellers
            assert (plan.window, plan.threshold) == (sellers, plan.needed)


def test_windows_grow_with_the_logarithm():
    """From the first ring on, no window is wider than 12 log₂ n, and none is narrower than 8 log₂ n."""
    sizes = {n: neighbourhood(n, 2 / 3).window for n in (100, 200, 300, 1000, 2500, 10_000, 100_000, 1_000_000)}
    assert list(sizes.values()) == sorted(sizes.values())
    assert all(8 < window / math.log2(n) < 12 for n, window in sizes.items())


@pytest.mark.parametrize("sellers", [100, 300, 1000, 10_000])
def test_a_window_is_the_smallest_that_is_safe_and_seldom_too_thin(sellers):
    colluders, window = math.ceil((sellers - math.ceil(2 * sellers / 3)) / 2), neighbourhood(sellers, 2 / 3).window

    def good(width):
        thin = sellers * binom.sf(width // 4, width - 1, 0.1)
        return failure_probability(sellers, colluders, width) <= 2.0**-40 and thin <= 0.01

    assert good(window)
    assert not good(window - 4)


def cut_in_two(bad, reach, may_drop):
    """Whether two runs of `reach` places that do not overlap hold all but `may_drop` colluders each."""
    sellers = bad.size
    runs = np.convolve(np.concatenate([bad, bad[: reach - 1]]), np.ones(reach, dtype=int), "valid")
    at = np.flatnonzero(runs >= reach - may_drop)
    apart = np.abs(at[:, None] - at[None, :])
    return bool(((apart >= reach) & (apart <= sellers - reach)).any())


def test_the_failure_probability_is_that_of_random_rings():
    """A window that is far too small, where failures can be counted."""
    sellers, colluders, window = 60, 9, 11
    reach, may_drop = window // 2, window // neighbours._MAY_DROP
    rng, cut = np.random.default_rng(0), 0
    for _ in range(2000):
        bad = np.zeros(sellers, dtype=int)
        bad[rng.permutation(sellers)[:colluders]] = 1
        cut += cut_in_two(bad, reach, may_drop)
    claimed = failure_probability(sellers, colluders, window)
    assert cut / 2000 <= claimed  # a union bound
    assert cut / 2000 > claimed / 30
    assert failure_probability(sellers, 0, window) == 0.0


@pytest.mark.parametrize(("sellers", "colluders", "reach", "least"), [(12, 4, 3, 2), (14, 5, 3, 2), (30, 9, 5, 3)])
def test_two_runs_are_no_likelier_than_their_product(sellers, colluders, reach, least):
    """Places of colluders are negatively associated; here by the exact joint law."""

    def ways(n, k):
        return math.comb(n, k) if 0 <= k <= n else 0

    both = sum(
        ways(reach, x) * ways(reach, y) * ways(sellers - 2 * reach, colluders - x - y)
        for x in range(least, reach + 1)
        for y in range(least, reach + 1)
    ) / math.comb(sellers, colluders)
    one = neighbours._chance_of(least, reach, colluders, sellers)
    assert 0 < both <= one**2


def test_one_gap_leaves_the_honest_connected_and_two_do_not():
    """By search in the graph itself: who is at most m places away masks against whom, but for those who are out."""

    def parts(out, sellers, reach):
        left, found = set(range(sellers)) - set(out), 0
        while left:
            found, todo = found + 1, [left.pop()]
            while todo:
                at = todo.pop()
                near = {(at + step) % sellers for step in range(-reach, reach + 1)} & left
                left -= near
                todo += near
        return found

    assert parts(range(6), 20, 6) == 1  # one run of m
    assert parts([*range(6), *range(9, 14)], 20, 6) == 1  # and one of m − 1
    assert parts([*range(6), *range(9, 15)], 20, 6) == 2


class Ring:
    """A small ring, sets of places as bits: what a server may do to read a sum of some honest sellers only."""

    def __init__(self, sellers, window):
        self.sellers, self.reach, self.may_drop = sellers, window // 2, window // 4
        self.windows = [self.arc(at - self.reach, window) for at in range(sellers)]
        self.runs = [self.arc(at, self.reach) for at in range(sellers)]

    def arc(self, start, length):
        return sum(1 << (start + step) % self.sellers for step in range(length))

    def two_runs(self, colluders):
        """Whether two runs of m places that do not overlap hold all but a quarter of a window of colluders each."""
        full = [run for run in self.runs if (colluders & run).bit_count() >= self.reach - self.may_drop]
        return any(one & other == 0 for one, other in itertools.combinations(full, 2))

    def crowded(self, colluders, honest):
        """Whether some window holds colluders but for so many."""
        return any((w & ~colluders).bit_count() <= honest for w in self.windows)

    def read(self, mine, others, gone):
        """Whether the sum of the sellers in `mine` can be read while `others` are named as survivors.

        Each in `mine` masks against none of `others`, so these are few in its window; who lacks a survivor's pieces
        does not answer, and neither do those in `gone`, and of each window in question only few may not answer.
        """
        near = sum(1 << at for at in range(self.sellers) if mine >> at & 1 and self.windows[at] & others)
        return all(
            (self.windows[at] & others).bit_count() <= self.may_drop
            and (self.windows[at] & (gone | near)).bit_count() <= self.may_drop
            for at in range(self.sellers)
            if mine >> at & 1
        )

    def attacks(self, colluders):
        """Every way to part those who do not collude: read, named as survivors but not read, said to be gone."""
        rest = [1 << at for at in range(self.sellers) if not colluders >> at & 1]
        for parts in itertools.product((0, 1, 2), repeat=len(rest)):
            mine, others, gone = (sum(b for b, p in zip(rest, parts, strict=True) if p == k) for k in range(3))
            if mine and others and self.read(mine, others, gone):
                yield mine, others, gone


def test_no_part_of_a_sum_is_read_without_two_full_runs_or_a_crowded_window():
    """The lemma on the ring, for all places of colluders of a small one and everything that a server may do."""
    ring, tried = Ring(9, 7), 0
    for size in range(3, 8):
        for places in itertools.combinations(range(1, 9), size):
            colluders = sum(1 << at for at in places)
            if not ring.two_runs(colluders) and not ring.crowded(colluders, 2 * ring.may_drop):
                tried += 1
                assert next(ring.attacks(colluders), None) is None
    assert tried > 50
    # With a fuller ring a part can be read, so the search would have found it.
    full = ring.arc(1, 3) | ring.arc(5, 3)
    assert ring.two_runs(full)
    assert next(ring.attacks(full), None)


def test_hidden_links_uncover_a_seller_that_two_runs_and_a_betrayed_centre_do_not_explain():
    """Why a window counts as lost with two quarters of it honest, not one: as this package once counted."""
    ring = Ring(17, 11)
    colluders = ring.arc(-5, 5) | ring.arc(4, 2)
    mine, gone = ring.arc(0, 1), ring.arc(3, 1)
    others = ring.arc(0, 17) & ~(colluders | mine | gone)
    assert ring.read(mine, others, gone)
    assert not ring.two_runs(colluders)
    assert not ring.crowded(colluders, ring.may_drop)
    assert ring.crowded(colluders, 2 * ring.may_drop)
    # With one colluder less nobody is read.
    fewer = colluders & ~ring.arc(5, 1)
    assert not ring.read(mine, others, gone | ring.arc(5, 1))
    assert not ring.read(mine, others | ring.arc(5, 1), gone)
    assert not ring.crowded(fewer, 2 * ring.may_drop)


def test_counting_such_windows_changes_no_window_s_width():
    """The pairs of runs outweigh them by far, wherever a ring is used."""
    for sellers in (150, 300, 1000, 10_000, 1_000_000):
        for share in (0.5, 2 / 3, 0.8):
            window, colluders = neighbourhood(sellers, share).window, colluders_allowed(sellers, share)
            run = neighbours._chance_of(window // 2 - window // 4, window // 2, colluders, sellers)
            pairs = sellers * (sellers - 1) / 2 * run**2
            assert failure_probability(sellers, colluders, window) == pytest.approx(pairs, rel=2**-10)


def test_a_ring_is_symmetric_and_follows_from_the_keys():
    plan = neighbourhood(120, 2 / 3)
    ring = ring_order(b"one", 120)
    windows = plan.windows(ring)
    assert sorted(ring) == list(range(120))
    assert all(len(window) == plan.window and place in window for place, window in windows.items())
    assert all(place in windows[other] for place, window in windows.items() for other in window)
    assert all(plan.window_of(place, ring) == windows[place] for place in range(5))
    assert np.array_equal(ring, ring_order(b"one", 120))
    assert not np.array_equal(ring, ring_order(b"other", 120))


def test_every_order_of_a_ring_is_as_likely():
    """Six orders of three, 6,000 seeds: each comes within five deviations of 1,000."""
    counts = np.zeros(6, dtype=int)
    orders = list(itertools.permutations(range(3)))
    for number in range(6000):
        counts[orders.index(tuple(ring_order(number.to_bytes(4, "little"), 3)))] += 1
    assert np.abs(counts - 1000).max() < 5 * math.sqrt(1000 * 5 / 6)


@pytest.mark.parametrize("share", [0.5, 0.6, 2 / 3, 0.9])
@pytest.mark.parametrize("sellers", [500, 1000, 5000, 123_457])
def test_a_sample_of_signatures_is_worth_all_of_them(sellers, share):
    """2⁻⁸¹ for a list that too few signed, and no two lists that enough signed; one signature less would not do."""
    plan, honest = neighbourhood(sellers, share), math.ceil(share * sellers - 1e-9)
    colluders = math.ceil((sellers - honest) / 2)
    assert 2 * plan.signed > sellers + colluders >= 2 * (plan.signed - 1)
    if not plan.sample:
        assert (sellers, share) in {(500, 0.5), (500, 0.6), (1000, 0.5)}  # the sample would be no smaller
        return
    too_few, missing = (plan.signed - 1) / plan.needed, plan.sample // neighbours.MAY_MISS
    assert binom.sf(plan.sample - missing - 1, plan.sample, too_few) <= 2.0**-81
    assert binom.sf(plan.sample - missing - 2, plan.sample, too_few) > 2.0**-81
    assert plan.sample < plan.signed
    # Drawn without replacement, as it is; and no more often where more than T survived.
    for survivors in (plan.needed, (plan.needed + sellers) // 2, sellers):
        assert hypergeom.sf(plan.sample - missing - 1, survivors, plan.signed - 1, plan.sample) <= 2.0**-81


def test_small_sums_read_as_many_signatures_as_are_needed():
    first = next(n for n in range(100, 1000) if neighbourhood(n, 2 / 3).sample)
    assert 400 < first < 500
    assert neighbourhood(5000, 0.34).sample == 0  # a sample would not be smaller


def test_a_list_that_too_few_signed_passes_as_seldom_as_claimed():
    """A sample that is far too small, where passing can be counted, drawn as sellers draw it."""
    sellers, signed, count, missing = 200, 140, 12, 2
    alive, good, passed = np.ones(sellers, dtype=bool), np.arange(sellers) < signed, 0
    for number in range(4000):
        drawn = sampled_places(number.to_bytes(4, "little"), alive, count)
        passed += int(good[drawn].sum()) >= count - missing
    claimed = binom.sf(count - missing - 1, count, signed / sellers)
    assert passed / 4000 == pytest.approx(claimed, rel=0.15)


@pytest.mark.parametrize(("survivors", "good", "drawn"), [(10, 7, 5), (40, 28, 20), (834, 583, 259)])
def test_drawing_without_replacement_passes_no_more_often(survivors, good, drawn):
    """The exact tails, from one above the mean on: what the claim about a sample rests on."""
    for least in range(math.ceil(drawn * good / survivors) + 1, drawn + 1):
        exact, bound = hypergeom.sf(least - 1, survivors, good, drawn), binom.sf(least - 1, drawn, good / survivors)
        assert exact <= bound * (1 + 1e-9)


def test_from_a_third_on_enough_signatures_are_no_more_than_h_and_c():
    for sellers in (30, 300, 3000, 300_000):
        for share, is_sum in ((0.3, False), (0.4, True), (0.5, True), (2 / 3, True), (1.0, True)):
            both = honest_sellers(sellers, share) + colluders_allowed(sellers, share)
            assert (survivors_needed(sellers, share) == both) is is_sum


def members(nodes):
    keys = {node: new_signing_key() for node in nodes}
    return keys, [Member(n, public, public[::-1]) for n, (_, public) in keys.items()]


def test_a_cohort_is_read_as_it_was_written_and_nothing_else():
    keys, present = members((5, 3, 9))
    cohort = Cohort.of([*present, Member(7)])
    again = Cohort.read(cohort.write())
    assert again.members == cohort.members
    assert again.digest == cohort.digest
    survivors = cohort.write_survivors([3, 9])
    assert again.read_survivors(survivors).tolist() == [True, False, False, True]  # 3, 5, 7, 9
    signed = {at: sign(keys[node][0], cohort.statement(survivors)) for at, node in ((0, 3), (3, 9))}
    assert again.confirmations(survivors, signed) == 2
    assert again.confirmations(survivors, signed, 1) == 1  # looks no further than is needed
    assert again.confirmations(survivors, {0: signed[3], 3: signed[3]}) == 1
    assert again.confirmations(cohort.write_survivors([3, 5]), signed) == 0
    twice = cohort.write()[:72] * 2
    for text in (b"", b"x", twice):
        with pytest.raises(CohortError):
            Cohort.read(text)
    with pytest.raises(CohortError):
        again.read_survivors(cohort.write_survivors([7]))  # sent no keys
    with pytest.raises(CohortError):
        again.read_survivors(b"12")
    with pytest.raises(CohortError):
        again.read_survivors(bytes([0b11001]))  # a fifth seller of four


def test_a_part_of_a_cohort_leads_to_its_root_or_to_another():
    _, present = members(range(1000, 1021))
    cohort, places = Cohort.of(present), [0, 3, 4, 20]
    text, proof = cohort.write(places), cohort.tree.prove(places)
    part = Cohort.read_part(cohort.size, places, text, proof)
    assert (part.root, part.digest) == (cohort.root, cohort.digest)
    assert np.array_equal(part.ring, cohort.ring)
    assert part.place_of == {1000 + at: at for at in places}
    for size, where, what, why in (
        (21, [0, 3, 5, 20], text, proof),  # elsewhere
        (22, places, text, proof),  # of another list
        (21, places, text[:72] + cohort.write([2, 4, 20]), proof),  # somebody else
        (21, places, text, proof[:-1] + bytes([proof[-1] ^ 1])),
    ):
        try:
            other = Cohort.read_part(size, where, what, why)
        except CohortError:
            continue
        assert other.root != cohort.root
    for where, what, why in (
        (places, text, proof + bytes(32)),
        (places, text[:-1], proof),
        ([0, 3, 4, 4], text, proof),
        ([0, 3, 4, 21], text, proof),
        ([], b"", proof),
    ):
        with pytest.raises(CohortError):
            Cohort.read_part(cohort.size, where, what, why)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 33])
def test_a_proof_for_any_places_of_any_list(size):
    items = [bytes([at]) for at in range(size)]
    tree, rng = HashTree(items), np.random.default_rng(size)
    for _ in range(20):
        places = sorted(set(rng.integers(0, size, rng.integers(1, size + 1)).tolist()))
        proof = tree.prove(places)
        assert root_of(size, {at: items[at] for at in places}, proof) == tree.root
        assert root_of(size, dict.fromkeys(places, b"other"), proof) != tree.root
        if proof:
            with pytest.raises(ValueError, match="proof"):
                root_of(size, {at: items[at] for at in places}, proof + proof[:32])
