"""Gradients at many points together: those that automatic differentiation gives at each point alone."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import epvi
from epvi.site.derivatives.gradients_at import gradients_at
from epvi.site.derivatives.passes import programs_of
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.windows import Windows


def student(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.StudentT(5.0, x @ w, s), obs=y)


@pytest.mark.slow
def test_gradients_of_several_shards_are_those_at_each_point_alone():
    rng = np.random.default_rng(0)
    sizes, shares, weights = np.array([30, 7, 21]), np.array([0.5, 0.2, 0.3]), np.array([1.0, 2.0, 1.0])
    rows = {"x": rng.normal(size=(58, 3)), "y": rng.normal(size=58)}
    programs = programs_of(epvi.Model(student), rows)
    each = Subposteriors(programs, rows, Windows.of(sizes, 16, 30), shares, weights)
    # More points than are computed in one call.
    points = 0.5 * rng.normal(size=(300, 4))
    found = gradients_at(each, points)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    target = programs.target
    with jax.enable_x64(True):
        for b in range(3):
            own = {name: jnp.asarray(column[bounds[b] : bounds[b + 1]]) for name, column in rows.items()}

            def log_p(theta, own=own, b=b):
                return shares[b] * target.log_prior(theta) + weights[b] * jnp.sum(target.log_likelihood(theta, own))

            expected = np.stack([jax.grad(log_p)(jnp.asarray(point)) for point in points[::50]])
            np.testing.assert_allclose(found[b, ::50], expected, rtol=1e-9, atol=1e-9)
