import numpy as np
import pytest
from scipy import stats

from privmarket.errors import PrivacyError
from privmarket.privacy import _release_audit as audit
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._release_audit import Scores, audit_any, audit_family, audit_one_run, collect_scores

DIMENSION, CLIP = 20, 2.0


def clipped_sum(records, rng, sigma):
    """Full-batch DP release: every record clipped to CLIP, summed, Gaussian noise."""
    length = np.linalg.norm(records, axis=1, keepdims=True)
    clipped = records * np.minimum(1.0, CLIP / length)
    return clipped.sum(axis=0) + sigma * CLIP * rng.standard_normal(records.shape[1])


def audited(sigma, trials=3000, seed=0):
    rng = np.random.default_rng(seed)
    records = rng.standard_normal((30, DIMENSION))
    canary = np.zeros((1, DIMENSION))
    canary[0, 3] = 100.0
    return collect_scores(
        lambda data, generator: clipped_sum(data, generator, sigma),
        np.concatenate([records, canary]),
        records,
        canary[0],
        trials,
        rng,
    )


@pytest.mark.parametrize("claim", [2.0, 8.0])
def test_full_batch_bound_is_tight_below_the_claim_and_above_it_with_a_tenth_of_the_noise(claim):
    family = ReleaseFamily()
    sigma = float(family.noise_multiplier(claim))
    honest = audit_family(audited(sigma), confidence=0.99)
    assert 0.7 * claim <= honest.epsilon_lower <= claim
    assert not honest.refutes(claim)
    cheat = audit_family(audited(sigma / 10), confidence=0.99)
    assert cheat.refutes(claim)


def test_bound_that_assumes_nothing_is_looser():
    sigma = float(ReleaseFamily().noise_multiplier(4.0))
    scores = audited(sigma)
    assert 0 < audit_any(scores).epsilon_lower < audit_family(scores).epsilon_lower
    assert audit_any(audited(sigma / 10), confidence=0.99).refutes(4.0)


@pytest.mark.parametrize("steps", [1, 4])
def test_sampled_releases_stay_below_the_claim_and_cheats_do_not(steps):
    family, claim, rng, n = ReleaseFamily(0.25, steps), 3.0, np.random.default_rng(1), 20_000
    sigma = float(family.noise_multiplier(claim))

    def scores(noise):
        inside = rng.binomial(steps, 0.25, n) + np.sqrt(steps) * noise * rng.standard_normal(n)
        return Scores(inside, np.sqrt(steps) * noise * rng.standard_normal(n))

    honest = audit_family(scores(sigma), family, confidence=0.99)
    assert 0.3 * claim < honest.epsilon_lower <= claim
    assert audit_family(scores(sigma / 10), family, confidence=0.99).refutes(claim)


def test_epsilon_from_below_is_below_the_table_and_close():
    family = ReleaseFamily(0.25, 4)
    noise, epsilon = family.menu()
    at = int(np.searchsorted(-epsilon, -2.0))
    below = audit._epsilon_from_below(family, float(noise[at]))
    assert 0.99 * epsilon[at] < below <= epsilon[at]


def test_one_run_bound_stays_below_the_claim_and_a_cheat_is_caught():
    claim, canaries, rng = 4.0, 2000, np.random.default_rng(2)
    sigma = float(ReleaseFamily().noise_multiplier(claim))
    included = rng.random(canaries) < 0.5
    honest = audit_one_run(included + sigma * rng.standard_normal(canaries), included, guesses=200)
    assert honest.trials == 200
    assert 0.2 * claim < honest.epsilon_lower <= claim
    assert audit_one_run(included + 0.1 * sigma * rng.standard_normal(canaries), included).refutes(claim)


def test_one_run_p_value_is_the_binomial_tail_when_delta_is_negligible():
    expected = stats.binom.sf(69, 100, 1 / (1 + np.exp(-0.5)))
    assert audit._one_run_p_value(1000, 100, 70, 0.5, 1e-12) == pytest.approx(expected, rel=1e-5)
    assert audit._one_run_p_value(1000, 100, 70, 0.5, 1e-3) > expected


def test_error_limits_are_clopper_pearson():
    for k, n in ((0, 100), (7, 100), (100, 100)):
        expected = 1.0 if k == n else stats.binomtest(k, n).proportion_ci(0.95, "exact").high
        assert audit._upper_limit(np.array([k]), n, 0.025)[0] == pytest.approx(expected, rel=1e-9)


def test_no_signal_gives_no_bound():
    rng = np.random.default_rng(0)
    scores = Scores(rng.standard_normal(2000), rng.standard_normal(2000))
    assert audit_family(scores).epsilon_lower < 0.5
    assert audit_one_run(rng.standard_normal(500), rng.random(500) < 0.5).epsilon_lower < 0.5


@pytest.mark.parametrize(
    "make",
    [
        lambda: Scores(np.zeros(10), np.zeros(1000)),
        lambda: Scores(np.full(100, np.nan), np.zeros(100)),
        lambda: audit_family(Scores(np.zeros(100), np.zeros(100)), confidence=1.0),
        lambda: audit_one_run(np.zeros(100), np.zeros(99)),
        lambda: audit_one_run(np.zeros(100), np.zeros(100), guesses=400),
        lambda: audit_any(Scores(np.zeros(100), np.zeros(100)), delta=0.9),
    ],
)
def test_bad_input_is_refused_with_a_remedy(make):
    with pytest.raises(PrivacyError) as caught:
        make()
    assert caught.value.hint


def test_a_guess_that_is_never_and_always_wrong_shows_nothing():
    assert audit._gaussian_mu_lower(np.array([0.0]), np.array([1.0])) == [-np.inf]
