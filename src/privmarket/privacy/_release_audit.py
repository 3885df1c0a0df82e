"""An outsider's check: attack the released updates, and turn the attack's success into a lower bound on ε.

A canary is a record that the auditor plants. With white-box access the auditor scores a released vector by
its inner product with the direction the canary pushes. If the canary's presence shows more often than the
claimed ε allows, the claim is false, at a stated confidence.

Three bounds, all valid at their confidence, ordered by what they assume:
- `audit_any`: nothing but (ε, δ)-DP; loose, needs very many trials;
- `audit_family`: the release is of a known family (Gaussian, or Poisson-sampled Gaussian) with unknown noise,
  and only the amount of noise is in doubt; tight for the full batch;
- `audit_one_run`: nothing but (ε, δ)-DP, from a single release with many canaries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, gammaln, ndtri, xlog1py, xlogy

from privmarket._lazy import late
from privmarket._settings import DELTA
from privmarket.errors import PrivacyError
from privmarket.privacy import _gaussian as gaussian
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import require_delta
from privmarket.privacy._gaussian import Array

pld = late("dp_accounting.pld.privacy_loss_distribution")

Dataset = TypeVar("Dataset")
ReleaseFunction = Callable[[Dataset, np.random.Generator], ArrayLike]

# The threshold is chosen on this share of the trials; the bound is computed on the others.
_SELECTION_SHARE = 0.1
# Thresholds that are tried, as quantiles of all scores. There are few on purpose: the best of many noisy
# candidates is an extreme one that does badly on the other trials. Between two Gaussians the middle is best.
_MIDDLE = (0.5,)
_UPPER_HALF = (0.5, 0.7, 0.85, 0.93, 0.97, 0.99)
_MIN_TRIALS = 50


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of an attack on two neighbouring data sets.

    Attributes:
        inside: (trials,) scores of releases with the canary.
        outside: (trials,) scores of releases without it.
    """

    inside: Array
    outside: Array

    def __post_init__(self) -> None:
        for side in ("inside", "outside"):
            scores = getattr(self, side)
            if scores.ndim != 1 or scores.size < _MIN_TRIALS or not np.isfinite(scores).all():
                raise PrivacyError(
                    f"audit: {scores.size} scores {side} (shape {scores.shape}), or some not finite",
                    f"run at least {_MIN_TRIALS} trials on each side and drop broken releases",
                )


@dataclass(frozen=True)
class AuditResult:
    """A lower bound on ε.

    Attributes:
        epsilon_lower: with probability `confidence`, no (ε, δ) below this is true.
        delta: the δ of the claim.
        confidence: the probability that the bound is not above the truth.
        method: which bound it is.
        trials: how many scores, or guesses, the bound uses.
        false_positive_rate: as observed; None where guesses were counted instead.
        false_negative_rate: as observed; None where guesses were counted instead.
    """

    epsilon_lower: float
    delta: float
    confidence: float
    method: str
    trials: int
    false_positive_rate: float | None = None
    false_negative_rate: float | None = None

    def refutes(self, claimed_epsilon: float) -> bool:
        """Whether the claim (claimed_epsilon, δ) is false at the stated confidence."""
        return self.epsilon_lower > claimed_epsilon


def collect_scores(
    release: ReleaseFunction[Dataset],
    with_canary: Dataset,
    without_canary: Dataset,
    direction: ArrayLike,
    trials: int,
    rng: np.random.Generator,
) -> Scores:
    """Runs the release `trials` times on each of two neighbouring data sets and scores every result.

    Args:
        release: (data set, generator) → the released vector (d,), exactly as it leaves the client.
        direction: (d,) where the canary pushes; its length does not matter.
    """
    towards = np.asarray(direction, dtype=np.float64).ravel()

    def score(dataset: Dataset) -> float:
        return float(np.asarray(release(dataset, rng), dtype=np.float64).ravel() @ towards)

    inside = np.array([score(with_canary) for _ in range(trials)])
    outside = np.array([score(without_canary) for _ in range(trials)])
    return Scores(inside, outside)


def audit_family(scores: Scores, family: ReleaseFamily | None = None, *, confidence: float = 0.95) -> AuditResult:
    """The smallest ε, within a family of releases, that is consistent with how often the canary was detected.

    Implements: the lower bound of [NasrEtAl2023], Section 4: Clopper–Pearson limits on both error rates, and
    the trade-off curve of the mechanism that is claimed instead of the two lines of (ε, δ)-DP.
    Assumes: the release is of the family (default: Gaussian noise on the full batch) and only the noise
    multiplier is in doubt; trials are independent.
    """
    family = ReleaseFamily() if family is None else family
    if family.sampling_rate == 1.0:
        positive, negative, rest = _error_limits(scores, _gaussian_mu_lower, _MIDDLE, confidence)
    else:
        positive, negative, rest = _error_limits(scores, _gap_to_chance, _UPPER_HALF, confidence)
    if family.sampling_rate == 1.0:
        mu = float(_gaussian_mu_lower(np.array(positive), np.array(negative)))
        epsilon = float(gaussian.epsilon_of(mu, family.delta)) if mu > 0 else 0.0
    else:
        epsilon = _least_epsilon_on_menu(family, positive, negative)
    return AuditResult(epsilon, family.delta, confidence, "family", *rest)


def audit_any(scores: Scores, delta: float = DELTA, *, confidence: float = 0.95) -> AuditResult:
    """The smallest ε of any (ε, δ)-DP mechanism that is consistent with how often the canary was detected.

    Implements: Theorem 2.1 of [KairouzOhViswanath2015] with Clopper–Pearson limits, as in [JagielskiEtAl2020].
    Assumes: trials are independent.
    """
    require_delta(delta)

    def measure(positive: Array, negative: Array) -> Array:
        return _two_line_epsilon(positive, negative, delta)

    positive, negative, rest = _error_limits(scores, measure, _UPPER_HALF, confidence)
    epsilon = float(_two_line_epsilon(np.array(positive), np.array(negative), delta))
    return AuditResult(max(epsilon, 0.0), delta, confidence, "any", *rest)


def audit_one_run(
    scores: ArrayLike,
    included: ArrayLike,
    delta: float = DELTA,
    *,
    guesses: int | None = None,
    confidence: float = 0.95,
) -> AuditResult:
    """A lower bound on ε from one release, in which each of many canaries was included by a fair coin.

    The `guesses`/2 highest scores are guessed to be in, as many of the lowest to be out; no guess about the rest.

    Args:
        scores: (canaries,) inner products of the one released vector with the canaries' directions.
        included: (canaries,) the coins.
        guesses: fixed before looking; default: half of the canaries.

    Implements: Theorem 5.2 of [SteinkeNasrJagielski2023].
    """
    require_delta(delta)
    seen = np.asarray(scores, dtype=np.float64)
    truth = np.asarray(included, dtype=bool)
    if seen.ndim != 1 or seen.shape != truth.shape or seen.size < _MIN_TRIALS:
        raise PrivacyError(
            f"audit in one run: {seen.shape} scores and {truth.shape} coins",
            f"give one of each per canary, for at least {_MIN_TRIALS} canaries",
        )
    half = (seen.size // 2 if guesses is None else guesses) // 2
    if not 1 <= half <= seen.size // 2:
        raise PrivacyError(
            f"audit in one run: {guesses} guesses on {seen.size} canaries", f"guess for 2 to {seen.size} canaries"
        )
    order = np.argsort(seen, kind="stable")
    correct = int(truth[order[-half:]].sum() + (~truth[order[:half]]).sum())
    epsilon = _one_run_epsilon(seen.size, 2 * half, correct, delta, 1.0 - confidence)
    return AuditResult(epsilon, delta, confidence, "one-run", 2 * half)


# --- error rates -----------------------------------------------------------------------------------------


def _error_limits(
    scores: Scores,
    measure: Callable[[Array, Array], Array],
    quantiles: tuple[float, ...],
    confidence: float,
) -> tuple[float, float, tuple[int, float, float]]:
    """Upper limits on both error rates at a threshold chosen on other trials, and the observed rates."""
    if not 0.5 <= confidence < 1.0:
        raise PrivacyError(f"audit confidence is {confidence}", "give a share from 0.5 up to, not including, 1")
    miss = (1.0 - confidence) / 2.0  # two one-sided limits share the error
    inside, inside_rest = _split(scores.inside)
    outside, outside_rest = _split(scores.outside)
    candidates = np.quantile(np.concatenate([inside, outside]), quantiles)
    # The bound that each threshold would give with as many trials as the others are.
    (positives, n_out), (negatives, n_in) = _errors(inside, outside, candidates, 1.0 / _SELECTION_SHARE - 1.0)
    promise = measure(_upper_limit(positives, n_out, miss), _upper_limit(negatives, n_in, miss))
    threshold = candidates[[int(np.argmax(promise))]]
    (positives, n_out), (negatives, n_in) = _errors(inside_rest, outside_rest, threshold)
    positive = float(_upper_limit(positives, n_out, miss)[0])
    negative = float(_upper_limit(negatives, n_in, miss)[0])
    return positive, negative, (int(n_out + n_in), float(positives[0] / n_out), float(negatives[0] / n_in))


def _split(scores: Array) -> tuple[Array, Array]:
    at = max(1, int(scores.size * _SELECTION_SHARE))
    return scores[:at], scores[at:]


def _errors(
    inside: Array, outside: Array, thresholds: Array, scale: float = 1.0
) -> tuple[tuple[Array, float], tuple[Array, float]]:
    """(thresholds,) false positives among how many, and false negatives among how many.

    The counts are multiplied by `scale`, the number of the other trials over that of these.
    """
    below = np.searchsorted(np.sort(outside), thresholds, side="left").astype(np.float64)
    positives: Array = (outside.size - below) * scale
    negatives: Array = np.searchsorted(np.sort(inside), thresholds, side="left").astype(np.float64) * scale
    return (positives, outside.size * scale), (negatives, inside.size * scale)


def _upper_limit(successes: Array, trials: float, miss: float) -> Array:
    """The Clopper–Pearson upper limit: the true rate is above it with probability at most `miss`.

    Implements: [ClopperPearson1934].
    """
    k = np.asarray(successes, dtype=np.float64)
    return np.where(k >= trials, 1.0, betaincinv(k + 1.0, np.maximum(trials - k, 1e-9), 1.0 - miss))


# --- from error rates to ε -------------------------------------------------------------------------------


def _gaussian_mu_lower(positive: Array, negative: Array) -> Array:
    """μ of the Gaussian trade-off curve through the two error rates, [DongRothSu2022]."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nan_to_num(ndtri(1.0 - positive) - ndtri(negative), nan=-np.inf))


def _gap_to_chance(positive: Array, negative: Array) -> Array:
    """Likelihood ratio of a positive guess: the best criterion for a sampled canary, which is rarely present."""
    return np.log(np.maximum(1.0 - negative, 1e-300) / positive)


def _two_line_epsilon(positive: Array, negative: Array, delta: float) -> Array:
    """ε of the two lines FPR + e^ε FNR ≥ 1 − δ and FNR + e^ε FPR ≥ 1 − δ."""
    one = np.log(np.maximum(1.0 - delta - negative, 1e-300) / positive)
    other = np.log(np.maximum(1.0 - delta - positive, 1e-300) / negative)
    return np.maximum(one, other)


def _least_epsilon_on_menu(family: ReleaseFamily, positive: float, negative: float) -> float:
    """The ε of the noisiest entry of the family's menu that the two error rates do not refute."""
    noise, _ = family.menu()
    # entries up to `low` are consistent, from `high` on refuted
    low = -1
    high = noise.size
    while high - low > 1:
        middle = (low + high) // 2
        if _refuted(family, float(noise[middle]), positive, negative):
            high = middle
        else:
            low = middle
    if high == noise.size:
        return 0.0
    # The noise is below that of `high`; if even the first entry is refuted, its ε is still a lower bound.
    return _epsilon_from_below(family, float(noise[high]))


def _epsilon_from_below(family: ReleaseFamily, sigma: float) -> float:
    """ε of the release, not above the exact value: a table's entries are, being safe the other way round."""
    if family.steps == 1:
        return float(family.epsilon(sigma))

    loss = pld.from_gaussian_mechanism(
        sigma,
        sampling_prob=family.sampling_rate,
        value_discretization_interval=1e-3 / family.steps,
        pessimistic_estimate=False,
        use_connect_dots=False,
    )
    return float(loss.self_compose(family.steps).get_epsilon_for_delta(family.delta))


def _refuted(family: ReleaseFamily, sigma: float, positive: float, negative: float) -> bool:
    """Whether some line FNR + e^x FPR ≥ 1 − δ(x) of the release's privacy profile is broken."""
    x = np.linspace(0.0, 30.0, 601)
    profile = _privacy_profile(family, sigma, x)
    one = negative + np.exp(x) * positive < 1.0 - profile
    other = positive + np.exp(x) * negative < 1.0 - profile
    return bool((one | other).any())


def _privacy_profile(family: ReleaseFamily, sigma: float, x: Array) -> Array:
    """δ(x) of the release, for either direction of add/remove."""
    q = family.sampling_rate
    if family.steps == 1:
        return q * gaussian.delta_of(np.log1p(np.expm1(x) / q), 1.0 / sigma)

    loss = pld.from_gaussian_mechanism(sigma, sampling_prob=q, value_discretization_interval=5e-3)
    return np.asarray(loss.self_compose(family.steps).get_delta_for_epsilon(x))


# --- one run ---------------------------------------------------------------------------------------------


def _one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float, miss: float) -> float:
    """The largest ε under which so many correct guesses have probability below `miss`, by bisection."""
    low = 0.0
    high = 50.0
    if _one_run_p_value(canaries, guesses, correct, low, delta) >= miss:
        return 0.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        refuted = _one_run_p_value(canaries, guesses, correct, middle, delta) < miss
        low, high = (middle, high) if refuted else (low, middle)
    return low


def _one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Bounds the probability of at least `correct` right guesses under (ε, δ)-DP.

    Under pure ε the number of right guesses is dominated by a binomial; δ moves at most 2·canaries·δ of
    probability, from the i values just below `correct` at a rate of 1/i.
    """
    chance = 1.0 / (1.0 + np.exp(-epsilon))
    k = np.arange(guesses + 1, dtype=np.float64)
    log_choose = gammaln(guesses + 1.0) - gammaln(k + 1.0) - gammaln(guesses - k + 1.0)
    mass: NDArray[np.float64] = np.exp(log_choose + xlogy(k, chance) + xlog1py(guesses - k, -chance))
    tail = float(mass[correct:].sum())
    below = np.cumsum(mass[:correct][::-1]) / np.arange(1, correct + 1)
    moved = float(below.max()) if correct else 0.0
    return min(tail + 2.0 * canaries * delta * moved, 1.0)
