"""Attacks on real releases."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from privmarket.errors import ConfigurationError
from privmarket.reports._attack_figure import attack_figure
from privmarket.simulation._attacks import (
    Subject,
    canary_attack,
    finished_model_attack,
    membership_attack,
    one_run_attack,
)
from privmarket.training import ClientRecords, LocalPlan, build_model

MODEL = build_model("logistic", (1, 8, 8), 10)


def records(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 1, 8, 8, generator=generator)
    return images, torch.randint(0, 10, (count,), generator=generator)


def subject(epsilon=4.0, noise_share=1.0, model=MODEL, rate=1.0, steps=1, learning_rate=1.0):
    weights = model.initial_weights(np.random.default_rng(0))
    plan = LocalPlan(steps, rate, 1.0, learning_rate, expected_batch=40.0)
    return Subject(model, weights, ClientRecords(*records(40), [40]), plan, epsilon, noise_share=noise_share)


@pytest.mark.parametrize(("rate", "steps", "epsilon"), [(1.0, 1, 4.0), (0.5, 1, 1.5), (1.0, 3, 4.0)])
def test_canaries_stay_below_the_claim_and_find_a_tenth_of_the_noise(rate, steps, epsilon):
    honest, broken = (subject(epsilon, share, rate=rate, steps=steps) for share in (1.0, 0.1))
    seen = canary_attack(honest, np.random.default_rng(1), trials=400, confidence=0.9999)
    assert not seen.refuted
    assert canary_attack(broken, np.random.default_rng(1), trials=400, confidence=0.99).refuted
    if (rate, steps) == (1.0, 1):
        # The attack sees something: blind guesses are right half of the time. The claim's 0.678 is met with a
        # deviation of 0.02 over the system's noise, so this fails in less than one run of ten thousand.
        assert seen.guess > 0.6
        assert seen.guess == pytest.approx(seen.claim_guess, abs=0.1)


def test_one_run_stays_below_the_claim_and_finds_a_tenth_of_the_noise():
    honest = one_run_attack(subject(1.0), np.random.default_rng(1), canaries=600, confidence=0.9999)
    assert not honest.refuted
    assert one_run_attack(subject(1.0, 0.1), np.random.default_rng(1), canaries=600, confidence=0.99).refuted


def test_membership_stays_below_the_claim_and_finds_a_model_that_was_trained_without_noise():
    images, labels = records(150)
    public, model = records(200, seed=1), build_model("mlp", (1, 8, 8), 10)
    arguments = {"targets": 150, "rounds": 150, "clients": 2, "confidence": 0.9999}
    # The records are noise with random labels: whatever a model knows about them it remembers.
    broken = membership_attack(
        subject(0.002, 0.0, model, learning_rate=8.0), images, labels, public, np.random.default_rng(1), **arguments
    )
    assert broken.claim_epsilon < 0.1
    assert broken.refuted
    honest = membership_attack(
        subject(0.002, 1.0, model, learning_rate=8.0), images, labels, public, np.random.default_rng(1), **arguments
    )
    assert not honest.refuted
    assert honest.accuracy is not None


def test_a_finished_model_that_remembers_is_found_and_one_that_does_not_is_not():
    images, labels = records(120)
    others = records(500, seed=1)
    model = build_model("logistic", (1, 8, 8), 10)
    start = model.initial_weights(np.random.default_rng(0))
    memorised = start.clone()
    for _ in range(300):
        slope = torch.softmax(model.outputs(memorised, images), 1)
        slope[torch.arange(120), labels] -= 1
        matrix, bias = model.named(memorised).values()
        matrix -= 0.05 * slope.T @ images.flatten(1)
        bias -= 0.05 * slope.sum(0)
    rng = np.random.default_rng(2)
    found = finished_model_attack(
        model, memorised, (images, labels), others, 0.5, 1e-5, rng, claim_guess=0.6, confidence=0.9999
    )
    assert found.refuted
    fresh = finished_model_attack(
        model, start, (images, labels), others, 0.5, 1e-5, rng, claim_guess=0.6, confidence=0.9999
    )
    assert not fresh.refuted
    assert fresh.area == pytest.approx(0.5, abs=0.12)


def test_the_curve_and_its_area_are_those_of_ranks():
    result = canary_attack(subject(), np.random.default_rng(0), trials=60)
    pairs = result.inside[:, None] > result.outside[None, :]
    assert result.area == pytest.approx(pairs.mean(), abs=1e-9)
    false, true = result.roc()
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)


def test_figures_are_drawn_for_any_choice_of_attacks(tmp_path):
    one = canary_attack(subject(), np.random.default_rng(0), trials=60)
    two = one_run_attack(subject(rate=0.5), np.random.default_rng(0), canaries=100)
    for number, chosen in enumerate(([one], [two, one])):
        attack_figure(chosen).savefig(tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").stat().st_size > 10_000


def test_bad_subjects_are_refused():
    with pytest.raises(ConfigurationError):
        subject(noise_share=2.0)
    good = subject()
    with pytest.raises(ConfigurationError, match="one client"):
        Subject(good.model, good.weights, ClientRecords(*records(4), [2, 2]), good.plan, 1.0)
    with pytest.raises(ConfigurationError, match="targets is 20: there are 10 records"):
        membership_attack(good, *records(10), records(10), np.random.default_rng(0), targets=20)
