"""Aggregate trust: noise and privacy of sums, read off what sellers really send.

Fixed seeds. The sample deviation over n normals has the relative error √(1/2n); a limit of five such errors gives a
false alarm less than once in a million. The canary's bound has confidence 99 %.
"""

import dataclasses

import numpy as np
import pytest
import torch

from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._noise import NoiseSource
from privmarket.privacy._release_audit import audit_family, collect_scores
from privmarket.secagg import SharedSum
from privmarket.training import ClientRecords, LocalPlan, build_model, gradient_sums, private_shares

MODEL = build_model("logistic", (1, 8, 8), 10)
PLAN = LocalPlan(clip_norm=0.5, expected_batch=20.0)
SIZES = [20, 5, 30, 12, 20, 20]
SIGMA = np.array([0.6, 8.0, 4.0, 30.0, 5.0, 0.8])


def records(sizes=SIZES, seed=0):
    torch.manual_seed(seed)
    images, labels = torch.randn(sum(sizes), 1, 8, 8), torch.randint(0, 10, (sum(sizes),))
    return ClientRecords(images, labels, list(sizes))


def public_sum(honest_share=2 / 3):
    return SharedSum.plan(
        SIGMA, SIZES, clip_norm=PLAN.clip_norm, parameters=MODEL.parameters, honest_share=honest_share
    )


def cut_to_a_tenth(plan: SharedSum) -> SharedSum:
    """Sellers that weigh their sums ten times too much: their shares protect a tenth as well."""
    return dataclasses.replace(plan, weights=10 * plan.weights, bits=plan.bits + 4)


def sent(plan: SharedSum, seed: int):
    """(sellers, parameters) the integers that all sellers send."""
    weights = MODEL.initial_weights(np.random.default_rng(0))
    sources = [NoiseSource.from_seed(seed, i) for i in range(len(SIZES))]
    grids = [plan.grid(i) for i in range(len(SIZES))]
    return private_shares(MODEL, weights, records(), PLAN, grids, sources)


def test_the_opened_sum_is_the_weighted_mean_with_the_stated_noise():
    plan, survivors = public_sum(), [0, 1, 2, 4, 5]
    weights = MODEL.initial_weights(np.random.default_rng(0))
    data = records()
    sums = gradient_sums(MODEL, weights[None], data.inputs, data.labels, SIZES, PLAN.clip_norm).double().numpy()
    mean = (plan.weights[survivors] / plan.weights[survivors].sum()) @ sums[survivors]
    noise = np.array([plan.opened(sent(plan, seed)[survivors], survivors) - mean for seed in range(30)])
    claimed = plan.deviation(survivors)
    limit = 5 / np.sqrt(2 * noise.size)
    assert noise.std() == pytest.approx(claimed, rel=limit)
    assert abs(noise.mean()) < 5 * claimed / np.sqrt(noise.size)
    # n survivors, the promise counts on h: the noise on the mean is C·√(n/h)/Σμ up to the margin of rounding.
    theory = PLAN.clip_norm * np.sqrt(len(survivors) / plan.honest) / (1 / SIGMA[survivors]).sum()
    assert theory < claimed < 1.02 * theory


def test_a_tenth_of_the_noise_would_be_noticed():
    plan = public_sum()
    weak = cut_to_a_tenth(plan)
    everybody = list(range(len(SIZES)))
    noise = np.array([weak.opened(sent(weak, seed), everybody) for seed in range(8)])
    noise = noise - noise.mean(axis=0)
    assert noise.std() < 0.2 * plan.deviation(everybody)


def canary_bound(plan: SharedSum, seller: int, trials: int):
    """An auditor that knows all but the h honest sellers' shares attacks a record of seller number `seller`."""
    honest = [seller, *(i for i in range(len(SIZES)) if i != seller)][: plan.honest]
    sizes = [SIZES[i] for i in honest]
    full = records(sizes)
    last = SIZES[seller] - 1  # that seller's records come first
    full.inputs[last] *= 5  # its gradient is long enough to be clipped, so it pushes with all of C
    others = torch.arange(sum(sizes)) != last
    without = ClientRecords(full.inputs[others], full.labels[others], [sizes[0] - 1, *sizes[1:]])
    weights = MODEL.initial_weights(np.random.default_rng(0))
    canary = full.inputs[last : last + 1], full.labels[last : last + 1]
    direction = gradient_sums(MODEL, weights[None], *canary, [1], PLAN.clip_norm)[0].numpy()
    grids = [plan.grid(i) for i in honest]

    def release(data, rng):
        sources = [NoiseSource(rng.bytes(16)) for _ in honest]
        return private_shares(MODEL, weights, data, PLAN, grids, sources).sum(axis=0).astype(np.float64)

    scores = collect_scores(release, full, without, direction, trials, np.random.default_rng(1))
    return audit_family(scores, ReleaseFamily(), confidence=0.99)


@pytest.mark.parametrize("seller", [0, 5])
def test_the_canary_stays_below_the_claim_and_a_tenth_of_the_share_is_caught(seller):
    sold = float(ReleaseFamily().epsilon(SIGMA[seller]))
    honest = canary_bound(public_sum(), seller, trials=700)
    assert not honest.refutes(sold)
    assert honest.epsilon_lower > 0.5 * sold
    # Shares that protect a tenth as well give themselves away much sooner.
    assert canary_bound(cut_to_a_tenth(public_sum()), seller, trials=150).refutes(sold)
