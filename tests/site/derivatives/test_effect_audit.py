"""Effects whose distribution given the rest is known: gamma distributions, of rates behind Poisson counts."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from test_integrated import integrated

from epvi.gaussian.skewed import Skewed
from epvi.hub.trust.effects import effect_errors
from epvi.hub.trust.reasons import Reason
from epvi.site.derivatives.effect_audit import standardised
from epvi.site.tasks.effects import effects_given

G = 24
PHI = np.log([[1.2, 0.8], [0.9, 1.1]])


def rates(g, y):
    a = numpyro.sample("a", dist.Gamma(2.0, 1.0))
    r = numpyro.sample("r", dist.Gamma(2.0, 1.0))
    with numpyro.plate("groups", G):
        rate = numpyro.sample("rate", dist.Gamma(a, r))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Poisson(rate[g]), obs=y)


def locations_and_scales(g, y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    t = numpyro.sample("t", dist.HalfNormal(1.0))
    with numpyro.plate("groups", G):
        loc = numpyro.sample("loc", dist.Normal(mu, 1.0))
        scale = numpyro.sample("scale", dist.LogNormal(0.0, t))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Normal(loc[g], scale[g]), obs=y)


def rows_of():
    rng = np.random.default_rng(0)
    g = np.concatenate([np.arange(G), rng.integers(0, G, 30)])
    return {"g": g, "y": rng.poisson(rng.gamma(1.2, 1 / 0.8, G)[g])}


@pytest.fixture(scope="module")
def gamma():
    rows = rows_of()
    counts, sums = np.bincount(rows["g"], minlength=G), np.bincount(rows["g"], rows["y"], minlength=G)
    a, r = np.exp(PHI).T[..., None] + np.stack([np.broadcast_to(sums, (2, G)), np.broadcast_to(counts, (2, G))])
    made = effects_given(*integrated(rates, rows), PHI, np.zeros(0, int), PHI)
    return made, a[:, made.levels], r[:, made.levels]


def test_wide_nodes_are_exact(gamma):
    made, a, r = gamma
    np.testing.assert_allclose(made.audited.mean[..., 0], a / r, rtol=1e-4)
    np.testing.assert_allclose(made.audited.variance[..., 0], a / r**2, rtol=1e-3)


def test_skewed_effects_are_approximated(gamma):
    made, a, r = gamma
    errors = effect_errors([made.audited], G)
    assert errors.levels == G
    assert errors.shift < 0.01
    assert errors.change < 0.03
    assert errors.doubt < 0.01
    assert not errors.faults
    assert made.audited.approximate_mean.shape == (2, G, 1)
    np.testing.assert_allclose(made.audited.approximate_mean[..., 0], a / r, rtol=0.01)


def test_normal_effects_would_not_be_trusted(gamma):
    made, _, _ = gamma
    e = np.linspace(-8, 8, 4001)
    weights = np.exp(-0.5 * e**2) / np.sum(np.exp(-0.5 * e**2))
    z = made.mean[..., 0, None] + np.exp(made.root[..., 0, None]) * e
    mean = np.exp(z) @ weights
    variance = np.exp(2 * z) @ weights - mean**2
    audited = made.audited._replace(approximate_mean=mean[..., None], approximate_variance=variance[..., None])
    errors = effect_errors([audited], G)
    assert errors.change > 0.1
    assert [fault.reason for fault in errors.faults] == [Reason.EFFECTS]


def test_several_effects_of_a_level():
    rng = np.random.default_rng(1)
    g = np.repeat(np.arange(G), 4)
    rows = {"g": g, "y": rng.normal(0, 1, len(g))}
    phi = np.array([[0.1, -0.5], [-0.1, -0.3]])
    made = effects_given(*integrated(locations_and_scales, rows), phi, np.zeros(0, int), phi)
    errors = effect_errors([made.audited], G)
    assert errors.shift < 0.02
    assert errors.change < 0.03
    # The approximation's own nodes are those that `Skewed` draws.
    h = standardised(made.shape)
    assert h.shape == (2, 16, G, 2)
    skewed = Skewed.of(made.shape[..., 0], made.shape[..., 1])
    np.testing.assert_allclose(h[:, 3], skewed(np.full(1, np.linspace(-6.5, 6.5, 16)[3])), rtol=1e-12)
    assert np.all(np.isfinite(jnp.asarray(made.audited.log_integral)))
