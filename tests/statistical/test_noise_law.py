"""The cipher's normals follow their law. Each check has a false-alarm rate of 1e-4 or less at a fixed seed."""

import numpy as np
import pytest
from scipy import stats

from privmarket.privacy._noise import NoiseSource

DRAWS = 1_000_000
FALSE_ALARM = 1e-4


def p_values(sample: np.ndarray, with_distribution: bool = True) -> dict[str, float]:
    """Two-sided p-values of mean, variance, fourth moment, tails, distribution and neighbours' correlation."""
    x = sample.astype(np.float64)
    n = x.size
    half = n // 2
    squares = x * x
    z = {
        "mean": x.mean() * np.sqrt(n),
        "variance": (np.mean(squares) - 1) * np.sqrt(n / 2),
        "fourth moment": (np.mean(squares * squares) - 3) * np.sqrt(n / 96),
        "neighbours": np.mean(x[:-1] * x[1:]) * np.sqrt(n),
        "pairs": np.mean(x[:half] * x[half : 2 * half]) * np.sqrt(half),
        "squared pairs": np.mean((squares[:half] - 1) * (squares[half : 2 * half] - 1)) / 2 * np.sqrt(half),
    }
    found = {name: 2 * stats.norm.sf(abs(value)) for name, value in z.items()}
    # Sorting takes most of the time; a broken subject that another check is to catch does without.
    if with_distribution:
        found["distribution"] = stats.kstest(x, "norm").pvalue
    found["tail"] = stats.binomtest(int((np.abs(x) > 4).sum()), n, 2 * stats.norm.sf(4)).pvalue
    return found


def rejected(sample: np.ndarray, with_distribution: bool = True) -> list[str]:
    return [name for name, p in p_values(sample, with_distribution).items() if p < FALSE_ALARM]


@pytest.mark.parametrize("seed", [0, 1])
def test_normals_pass(seed):
    assert rejected(NoiseSource.from_seed(seed).standard_normal(DRAWS)) == []


def test_pairs_of_one_box_muller_step_are_independent():
    """Cosine and sine halves of small fills share their radius; they must still be uncorrelated in squares."""
    source = NoiseSource.from_seed(5)
    pairs = np.stack([source.standard_normal(2) for _ in range(40_000)]).astype(np.float64)
    assert rejected(pairs.T.reshape(-1)) == []


def test_streams_of_two_clients_are_independent():
    parent = NoiseSource.from_seed(6)
    both = np.concatenate([parent.child(0, 0).standard_normal(DRAWS), parent.child(0, 1).standard_normal(DRAWS)])
    assert rejected(both) == []


@pytest.mark.parametrize(
    ("broken", "caught_by"),
    [
        (lambda x: x * 0.99, "variance"),
        (lambda x: np.where(np.abs(x) > 3.9, 3.9, x), "tail"),
        (lambda x: x + 0.01, "mean"),
        (lambda x: np.concatenate([x[: x.size // 2]] * 2), "pairs"),
        (lambda x: np.sqrt(1 / 1.01) * (x + 0.1 * np.roll(x, 1)), "neighbours"),
        (lambda x: np.sqrt(3) * (2 * stats.norm.cdf(x) - 1), "distribution"),
    ],
)
def test_the_checks_catch_noise_that_is_off(broken, caught_by):
    sample = broken(NoiseSource.from_seed(0).standard_normal(DRAWS))
    assert caught_by in rejected(sample, with_distribution=caught_by == "distribution")


@pytest.mark.parametrize("rate", [0.001, 0.05, 0.5])
def test_poisson_samples_have_their_rate(rate):
    sample = NoiseSource.from_seed(9).bernoulli(rate, DRAWS)
    assert stats.binomtest(int(sample.sum()), DRAWS, rate).pvalue > FALSE_ALARM
    again = NoiseSource.from_seed(10).bernoulli(rate, DRAWS)
    both = stats.binomtest(int((sample & again).sum()), DRAWS, rate**2)
    assert both.pvalue > FALSE_ALARM
