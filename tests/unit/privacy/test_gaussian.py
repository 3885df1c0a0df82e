import dp_accounting
import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import norm

from privmarket.privacy import _gaussian as gaussian


@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-2])
def test_analytic_gaussian_agrees_with_dp_accounting(delta):
    epsilon = [0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0]
    theirs = [gaussian_mechanism.get_sigma_gaussian(e, delta) for e in epsilon]
    np.testing.assert_allclose(1 / gaussian.mu_of(epsilon, delta), theirs, rtol=1e-9)


def test_delta_is_the_closed_form_in_plain_normals():
    epsilon, mu = 1.3, 0.8
    expected = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert gaussian.delta_of(epsilon, mu) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rate", [0.001, 0.05, 0.5, 0.99])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
def test_one_sampled_step_agrees_with_privacy_loss_distributions(rate, sigma):
    """The numerical distribution covers both directions, so this also checks that one direction suffices."""
    ours = float(gaussian.sampled_epsilon(sigma, 1e-5, rate))
    spacing = min(2e-3, ours / 200)
    distribution = pld.from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=spacing)
    theirs = distribution.get_epsilon_for_delta(1e-5)
    assert ours <= theirs + 1e-9  # theirs is pessimistic
    assert ours == pytest.approx(theirs, rel=2e-3, abs=1e-5)


def test_inverses():
    epsilon = np.geomspace(0.01, 15, 40)
    np.testing.assert_allclose(gaussian.epsilon_of(gaussian.mu_of(epsilon, 1e-6), 1e-6), epsilon, rtol=1e-9)
    sigma = gaussian.sampled_noise_multiplier(epsilon, 1e-5, 0.03)
    np.testing.assert_allclose(gaussian.sampled_epsilon(sigma, 1e-5, 0.03), epsilon, rtol=1e-9)


def test_literal_formulas_differ_by_root_two_and_under_noise_at_large_epsilon():
    """Row 15 of the paper's error table: the two formulas disagree, and the classical bound needs ε < 1."""
    small = gaussian.literal_noise_multiplier(0.5, 1e-5)
    assert gaussian.literal_noise_multiplier(0.5, 1e-5, form="definition") == pytest.approx(small * np.sqrt(2))
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(float(gaussian.literal_noise_multiplier(15.0, 1e-5))))
    assert accountant.get_epsilon(1e-5) > 15.0


def test_delta_of_one_over_the_number_of_clients_halves_the_noise():
    """Row 16: the paper's δ = 1/N = 0.01 has nothing to do with records and asks for half the noise of 1e-5."""
    noise = 1 / gaussian.mu_of(1.0, np.array([1 / 100, 1e-5]))
    np.testing.assert_allclose(noise, [1.8778755609, 3.7306316348], rtol=1e-9)  # dp-accounting's values


def test_the_papers_formulas_by_hand():
    """√(2 ln(1.25/δ))/ε and 2√ln(1.25/δ)/ε at δ = 1e-5, where ln(1.25/δ) = 11.7360690163."""
    np.testing.assert_allclose(
        gaussian.literal_noise_multiplier([0.5, 2.0], 1e-5), [9.68961052521, 2.4224026313], rtol=1e-9
    )
    found = gaussian.literal_noise_multiplier(0.5, 1e-5, form="definition")
    assert found == pytest.approx(13.7031786189, rel=1e-9)
