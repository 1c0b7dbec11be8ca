"""Posteriors that are flat or rise towards one side are refused, and proper ones are not."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpyro.distributions import constraints

from epvi import EpviError
from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.quasi_random import log_density
from epvi.gaussian.structures import Full
from epvi.hub.refine.propriety import refuse_runaway
from epvi.hub.trust.collect import Answered
from epvi.hub.trust.propose import Proposal, Source
from epvi.parameters.space import Parameter, Space
from epvi.wire.answer import Derivatives


@dataclasses.dataclass
class Bare:
    """An approximation of fits that do not stand alone."""

    mixture: GaussianMixture
    space: Space
    fits: tuple = (SimpleNamespace(stands_alone=False),)
    step: None = None


def check(covariance, curvature, log_p=None, *, num_draws=1024, seed=0):
    """Run the check with draws of a Gaussian around 0: of its own density, or one with this negative Hessian there."""
    d = len(covariance)
    q = GaussianMixture.from_covariances(np.zeros((1, d)), covariance[None], np.ones(1), Full())
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(num_draws, d)) @ np.linalg.cholesky(covariance).T
    posterior: Any = Bare(q, Space((Parameter("w", (d,), constraints.real),)))
    log_q = log_density(q, theta)
    proposal = Proposal(theta, num_draws, log_q, log_q, q, 1, Source(((num_draws, q),)))
    values = log_q if log_p is None else log_p(theta)
    centres = Derivatives(np.zeros(1), np.zeros((1, d)), -curvature[None])
    refuse_runaway(posterior, Answered(proposal, (), values, np.zeros(num_draws), centres, None))


@pytest.mark.parametrize("d", [10, 200])
def test_a_gaussian_of_many_parameters_is_not_refused(d):
    for seed in range(4):
        a = np.random.default_rng(seed).normal(size=(d, 2 * d)) / np.sqrt(2 * d)
        check(np.linalg.inv(a @ a.T), a @ a.T, seed=seed)


@pytest.mark.parametrize("num_draws", [128, 1024])
def test_the_noise_of_other_parameters_is_not_taken_for_a_flat_direction(num_draws):
    """Their scatter is in no quadratic."""
    d = 50
    for seed in range(8):
        noise = np.random.default_rng(100 + seed).normal(0, 3, num_draws)
        check(np.eye(d), np.eye(d), lambda x, e=noise: -0.5 * np.sum(x**2, 1) + e, num_draws=num_draws, seed=seed)


@pytest.mark.parametrize("maximum", [0.5, 1.0, 1.5, 3.0])
def test_a_density_whose_maximum_is_elsewhere_is_not_refused(maximum):
    check(np.eye(2), np.eye(2), lambda x: -0.5 * np.sum((x - [maximum, 0]) ** 2, 1))


@pytest.mark.parametrize("slope", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("others", [1, 60])
def test_a_density_that_is_flat_or_rises_on_one_side_is_refused(slope, others):
    def log_p(x):
        return np.where(x[:, 0] > 0, slope * x[:, 0], -0.5 * x[:, 0] ** 2) - 0.5 * np.sum(x[:, 1:] ** 2, 1)

    curvature = np.diag([0.01, *np.ones(others)])
    with pytest.raises(EpviError, match=r"do not bound w\[0\], so that there is no posterior"):
        check(np.eye(1 + others), curvature, log_p)


def test_separated_labels_are_refused():
    """The log density tends to 0, and its curvature where the approximation has arrived is small."""
    with pytest.raises(EpviError, match=r"do not bound w\[0\]"):
        check(np.diag([9.0, 1.0]), np.diag([0.02, 1.0]), lambda x: -0.02 * np.exp(-x[:, 0]) - 0.5 * x[:, 1] ** 2)
