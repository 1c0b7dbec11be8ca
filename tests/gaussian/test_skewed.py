"""Standardised skewed distributions: moments by quadrature, and distributions that are known."""

import numpy as np
import pytest
from scipy.stats import beta, expon, gamma, loggamma, lognorm, norm, t

from epvi.gaussian.skewed import Skewed

SCORES = np.linspace(-9, 9, 4001)
WEIGHTS = np.exp(-0.5 * SCORES**2) / np.sum(np.exp(-0.5 * SCORES**2))


def test_moments_are_the_given_ones():
    skewness, excess = np.array([0.0, 0.3, -0.6, 1.0, -1.5, 0.0]), np.array([0.0, 0.2, 0.8, 1.9, 4.0, 1.2])
    h = Skewed.of(skewness, excess)(SCORES[:, None])
    for power, wanted in zip((1, 2, 3, 4), (0, 1, skewness, 3 + excess), strict=True):
        # Tails beyond |e| = 3.5 are continued by lines.
        np.testing.assert_allclose(WEIGHTS @ h**power, np.broadcast_to(wanted, 6), atol=1e-3 * 5**power / 5)


def test_without_skewness_and_excess_it_is_normal():
    np.testing.assert_allclose(Skewed.of(np.zeros(1), np.zeros(1))(SCORES[:, None])[:, 0], SCORES, atol=1e-12)


def test_the_inverse_and_the_slope():
    made = Skewed.of(np.array([0.4, -1.2, 0.0]), np.array([0.5, 2.5, -0.5]))
    e = np.linspace(-5, 5, 21)[:, None]
    np.testing.assert_allclose(made.inverse(made(e)), np.broadcast_to(e, (21, 3)), atol=1e-9)
    np.testing.assert_allclose(made.slope(e), (made(e + 1e-6) - made(e - 1e-6)) / 2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("law", "tolerance"),
    [(loggamma(1.0), 0.02), (loggamma(3.0), 0.01), (lognorm(0.4), 0.07), (t(9), 0.04), (beta(5, 20), 0.03)],
)
def test_quantiles_of_known_distributions(law, tolerance):
    mean, variance, skewness, excess = (float(x) for x in law.stats("mvsk"))
    at = np.array([0.01, 0.02, 0.05, 0.25, 0.5, 0.75, 0.95, 0.98, 0.99])
    found = Skewed.of(np.array([skewness]), np.array([excess]))(norm.ppf(at))
    np.testing.assert_allclose(found, (law.ppf(at) - mean) / np.sqrt(variance), atol=tolerance)


def test_moments_that_no_increasing_cubic_has_are_approximated():
    laws = [gamma(3), expon(), beta(2, 2)]
    moments = np.array([[float(x) for x in law.stats("sk")] for law in laws] + [[9.0, 200.0], [2.0, -4.0], [0.0, -9.0]])
    h = Skewed.of(*moments.T)(SCORES[:, None])
    assert np.all(np.diff(h, axis=0) > 0)
    np.testing.assert_allclose(WEIGHTS @ h**2, 1, atol=0.02)
