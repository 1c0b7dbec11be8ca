"""With too many parameters for adaptive rounds, weights that are uneven and move means far are not trusted."""

from types import SimpleNamespace

import numpy as np
import pytest

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.quasi_random import draw, log_density, uniform_points
from epvi.hub.trust.importance import weigh
from epvi.hub.trust.propose import Proposal, _source
from epvi.hub.trust.reasons import Reason
from epvi.hub.trust.verdict import _uneven

NUM_DRAWS = 2048


def fault(log_p, mean, sds):
    """What is found of one Gaussian as the posterior."""
    q = GaussianMixture.from_covariances(np.asarray(mean)[None], np.diag(np.square(sds))[None])
    source = _source(q, None, NUM_DRAWS, adapted=False)
    points = np.split(uniform_points(NUM_DRAWS, q.dim + 1, (0,)), [source.parts[0][0]])
    theta = np.concatenate([draw(part, u) for (_, part), u in zip(source.parts, points, strict=True)])
    log_g = source.log_density(theta)
    proposal = Proposal(theta, source.parts[0][0], log_g, log_density(q, theta), q, 1, source)
    return _uneven(weigh(proposal, log_p(theta), q, SimpleNamespace(exchangeable=())))


def banana(theta):
    """Bent in its first two dimensions: θ_1 ~ N(θ_0², 1)."""
    return -0.5 * np.sum(theta[:, [0, *range(2, theta.shape[1])]] ** 2, 1) - 0.5 * (theta[:, 1] - theta[:, 0] ** 2) ** 2


@pytest.mark.usefixtures("untyped")
def test_a_bent_posterior_of_many_parameters_is_not_trusted_by_its_weights_alone():
    mean, sds = np.zeros(22), np.ones(22)
    # The Gaussian of the highest ELBO, nearly: E x² = 1/2 in the first dimension.
    mean[1], sds[0] = 0.45, 0.67
    found = fault(banana, mean, sds)
    assert found is not None
    assert found.reason is Reason.UNEVEN_WEIGHTS
    assert "curved ridge" in found.finding


@pytest.mark.usefixtures("untyped")
def test_a_shifted_gaussian_of_many_parameters_is_corrected():
    mean = np.zeros(22)
    mean[0] = 0.3
    assert fault(lambda theta: -0.5 * np.sum(theta**2, axis=1), mean, np.ones(22)) is None
