"""Two nested factors integrated out: against closed forms and plain quadrature; bundles; which models have them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import halfnorm, norm
from some_classes import PARENT, G, H, classes, exact_normal, rows_of_classes

import epvi
from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.group_effects import EffectSearch, lies_in
from epvi.site.derivatives.nested import NestedModel, inner_columns
from epvi.site.rows.bundles import bundle_nested, size_of_bundles
from epvi.site.tasks.effects import effects_given


def prepared(model, rows):
    model = epvi.Model(model)
    inner, outer = EffectSearch(model.on(rows)).find_nested(rows)
    sizes = np.unique(rows["h"], return_counts=True)[1]
    made = bundle_nested(rows["g"], rows["h"], np.arange(len(rows["g"])), size_of_bundles(sizes))
    columns = made.columns(rows)
    return NestedModel(model, inner.effects, outer.effects).on(columns), columns


@pytest.fixture(
    scope="module", params=[pytest.param(False, id="normal", marks=pytest.mark.slow), pytest.param(True, id="binary")]
)
def case(request):
    rows = rows_of_classes(request.param)
    return request.param, rows, *prepared(classes(request.param), rows)


PHI = np.array([0.4, 0.2, np.log(0.8), np.log(0.5)])


def by_quadrature(rows, phi):
    """The log likelihood of all binary rows, and mean and variance of each b, by the trapezoidal rule."""
    w, mu, (tau, rho) = phi[0], phi[1], np.exp(phi[2:])
    z = np.linspace(-8, 8, 161)
    weights = norm.pdf(z) * (z[1] - z[0])
    total, moments = 0.0, []
    for h in range(H):
        logs = np.log(weights)
        for g in np.flatnonzero(h == PARENT):
            own = rows["g"] == g
            eta = (rows["x"][own] * w)[:, None, None] + (mu + tau * z)[None, :, None] + (rho * z)[None, None]
            each = rows["y"][own][:, None, None] * eta - np.logaddexp(0, eta)
            logs = logs + np.log(weights @ np.exp(np.sum(each, axis=0)))
        total += np.logaddexp.reduce(logs)
        p = np.exp(logs - np.logaddexp.reduce(logs))
        moments.append((p @ (rho * z), p @ (rho * z) ** 2 - (p @ (rho * z)) ** 2))
    return total, *np.array(moments).T


def truth(binary, rows, phi):
    return by_quadrature(rows, phi) if binary else exact_normal(rows, phi)


def values(target, columns, phi):
    with jax.enable_x64(True), promotion_allowed():
        return np.asarray(jax.jit(lambda phi, block: jnp.sum(target.log_likelihood(phi, block)))(phi, columns))


def test_the_integral_is_that_over_both_factors(case):
    binary, rows, target, columns = case
    for phi in (PHI, np.array([-0.5, 1.0, np.log(0.3), np.log(1.5)])):
        wanted = truth(binary, rows, phi)[0]
        np.testing.assert_allclose(values(target, columns, phi), wanted, rtol=0, atol=2e-4 if binary else 1e-8)


@pytest.mark.slow
def test_derivatives_are_those_of_the_integral(case):
    binary, rows, target, columns = case
    along, step = np.array([0.5, -0.3, 0.6, 0.4]), 1e-3
    with jax.enable_x64(True), promotion_allowed():

        def moved(t, block):
            return jnp.sum(target.log_likelihood(PHI + t * along, block))

        found = np.asarray(jax.jit(jax.jacfwd(moved))(0.0, columns))
    ahead, behind = (truth(binary, rows, PHI + t * along)[0] for t in (step, -step))
    np.testing.assert_allclose(found, (ahead - behind) / (2 * step), rtol=1e-3, atol=2e-3 if binary else 1e-5)


def test_the_prior_is_that_of_the_other_parameters(case):
    target = case[2]
    tau, rho = np.exp(PHI[2:])
    wanted = np.sum(norm(0, 2).logpdf(PHI[:2])) + np.sum(halfnorm.logpdf([tau, rho])) + np.sum(PHI[2:])
    with jax.enable_x64(True), promotion_allowed():
        for prior in (target.log_prior, target.log_prior_again):
            np.testing.assert_allclose(np.asarray(prior(jnp.asarray(PHI))), wanted, rtol=1e-9)


@pytest.mark.slow
def test_effects_of_larger_groups_have_their_moments_given_the_rest(case):
    binary, rows, target, columns = case
    phi = np.stack([PHI, PHI + 0.1])
    found = effects_given(target, columns, phi, np.array([H - 1]), phi)
    assert sorted(found.levels) == list(range(H))
    for s, point in enumerate(phi):
        _, mean, variance = truth(binary, rows, point)
        np.testing.assert_allclose(found.mean[s, :, 0], mean[found.levels], atol=2e-3)
        np.testing.assert_allclose(np.exp(2 * found.root[s, :, 0]), variance[found.levels], rtol=1e-2)


@pytest.mark.slow
def test_effects_of_groups_are_those_given_the_larger_ones():
    rows = rows_of_classes(False)
    target, columns = prepared(classes(False), rows)
    # w, mu, tau, rho, b
    b = np.linspace(-0.5, 0.5, H)
    phi = np.stack([np.concatenate([PHI, b])] * 2)
    found = effects_given(target.inner, inner_columns(columns), phi, np.zeros(0, int), phi)
    for place, g in enumerate(found.levels):
        own = rows["g"] == g
        precision = np.sum(own) / 0.49 + np.exp(-2 * PHI[2])
        rest = rows["y"][own] - PHI[0] * rows["x"][own] - b[PARENT[g]]
        wanted = (np.sum(rest) / 0.49 + PHI[1] * np.exp(-2 * PHI[2])) / precision
        np.testing.assert_allclose(found.mean[0, place, 0], wanted, rtol=1e-5)
        np.testing.assert_allclose(found.root[0, place, 0], -0.5 * np.log(precision), rtol=1e-5)


def test_bundles_hold_whole_larger_groups():
    rows = rows_of_classes(True)
    count = len(rows["g"])
    made = bundle_nested(rows["g"], rows["h"], np.arange(count), size_of_bundles(np.bincount(rows["h"])))
    seen = []
    for b, used in enumerate(made.count):
        here = made.rows[b, :used]
        seen += list(here)
        np.testing.assert_array_equal(made.inner_levels[b, made.inner_local[b, :used]], rows["g"][here])
        np.testing.assert_array_equal(made.levels[b, made.local[b, :used]], rows["h"][here])
        there = made.inner_levels[b] >= 0
        np.testing.assert_array_equal(made.levels[b, made.parent[b][there]], PARENT[made.inner_levels[b][there]])
        assert np.all(np.diff(made.inner_local[b]) >= 0)
    assert sorted(seen) == list(range(count))


def test_only_nested_codes_are_taken_for_nested():
    rng = np.random.default_rng(0)
    g = rng.integers(0, G, 300)
    assert lies_in(g, PARENT[g])
    assert not lies_in(PARENT[g], g)
    assert not lies_in(g, rng.integers(0, H, 300))
    assert not lies_in(g, g)


def test_crossed_factors_and_dependent_priors_are_not_nested():
    rows = rows_of_classes(False)
    crossed = {**rows, "h": np.random.default_rng(1).integers(0, H, len(rows["g"]))}
    model = epvi.Model(classes(False))
    assert EffectSearch(model.on(crossed)).find_nested(crossed) is None

    def dependent(x, g, h, y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        b = numpyro.sample("b", dist.Normal(0.0, tau).expand([H]).to_event(1))
        a = numpyro.sample("a", dist.Normal(mu + jnp.sum(b), tau).expand([G]).to_event(1))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(x + a[g] + b[h], 0.7), obs=y)

    assert EffectSearch(epvi.Model(dependent).on(rows)).find_nested(rows) is None
