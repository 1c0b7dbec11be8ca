"""Derivatives of marginal likelihoods through the rows' linear predictors, against JAX's of the whole function."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from some_groups import logistic_groups, rows_of_groups, slopes

import epvi
from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.conditional import prepared
from epvi.site.derivatives.group_effects import EffectSearch
from epvi.site.derivatives.integrated import IntegratedModel
from epvi.site.derivatives.order import Order
from epvi.site.derivatives.passes import Programs
from epvi.site.rows.bundles import bundle, size_of_bundles

G, H = 21, 6


def crossed(g, h, x, y=None):
    """Poisson rows with an intercept and a slope per level of g, and effects of h among the other parameters."""
    tau = numpyro.sample("tau", dist.HalfNormal(1.0).expand([3]).to_event(1))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("first", G):
        a = numpyro.sample("a", dist.Normal(0.0, tau[0]))
        b = numpyro.sample("b", dist.Normal(w[0], tau[1]))
    with numpyro.plate("second", H):
        c = numpyro.sample("c", dist.Normal(0.0, tau[2]))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(0.3 * (a[g] + c[h] + b[g] * x[:, 0] + x @ w))), obs=y)


def with_noise(g, x, y=None):
    """Normal rows: the scale of the noise is an argument of the link beside the predictor."""
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("levels", G):
        a = numpyro.sample("a", dist.StudentT(5.0, 0.0, tau))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Normal(a[g] + x @ w, sigma), obs=y)


def rows_for(model):
    rows, _ = rows_of_groups(300, G, binary=model not in (with_noise,))
    # Half of the rows in one group, groups with a single row, and levels without any.
    rows["g"] = np.resize(np.concatenate([np.zeros(30, int), np.repeat([3, 5], 9), np.arange(7, G)]), 300)
    rows["g"] = np.where((rows["g"] == 9) & (np.arange(300) > 60), 0, rows["g"])
    if model is crossed:
        rows["h"] = np.random.default_rng(2).integers(0, H, 300)
    return rows


def target_of(model):
    rows = rows_for(model)
    made = epvi.Model(model)
    found = EffectSearch(made.on(rows)).find(rows)
    counts = np.bincount(found.codes)
    bundles = bundle(found.codes, np.arange(300), size_of_bundles(counts[counts > 0]))
    columns = bundles.columns(rows)
    return IntegratedModel(made, found.effects).on(columns), columns


@pytest.mark.parametrize("near", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(logistic_groups(G), id="centred"),
        pytest.param(logistic_groups(G, centred=False), id="not centred", marks=pytest.mark.slow),
        pytest.param(crossed, id="crossed", marks=pytest.mark.slow),
        pytest.param(with_noise, id="with noise", marks=pytest.mark.slow),
    ],
)
def test_derivatives_are_those_of_the_likelihood(model, near):
    target, columns = target_of(model)
    d = target.space.dim
    phi = 0.3 * np.random.default_rng(1).standard_normal((1, d))
    columns = prepared(target, columns, phi[0] + 0.01) if near else columns
    programs, weights = Programs(target), np.linspace(0.0, 2.0, len(columns["y"]))

    def total(phi):
        rows = target.log_likelihood(phi, columns)
        return jnp.sum(weights * rows)

    def through(order, phi):
        sums = jax.tree.map(jnp.asarray, programs.zero(order, columns, 1))
        sums = linked.add(order, sums, (0,), phi, columns, weights)
        return linked.curve(order, jax.tree.map(lambda x: x[0], sums), phi)

    orders = (Order.GRADIENT, Order.FULL, Order.SCORES)
    with jax.enable_x64(True), promotion_allowed():
        linked, point = programs.linked(columns), jnp.asarray(phi[0])
        assert linked is not None
        wanted = jax.jit(lambda phi: (total(phi), jax.grad(total)(phi), jax.jacfwd(jax.jacfwd(total))(phi)))(point)
        value, gradient, hessian = map(np.asarray, wanted)
        rows = np.asarray(jax.jit(jax.jacfwd(lambda phi: target.log_likelihood(phi, columns)))(point))
        found = jax.jit(lambda phi: [through(order, phi) for order in orders])(point)
    made = {order: list(map(np.asarray, parts)) for order, parts in zip(orders, found, strict=True)}
    for order in (Order.GRADIENT, Order.FULL):
        np.testing.assert_allclose(made[order][0], value, rtol=1e-10)
        np.testing.assert_allclose(made[order][1], gradient, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(made[Order.FULL][2], hessian, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(made[Order.SCORES][0], (weights[:, None] * rows).T @ rows, rtol=1e-8, atol=1e-8)


def test_rows_without_other_parameters_are_left_to_jax():
    target, columns = target_of(slopes(G, together=True))
    assert Programs(target).linked(columns) is None
