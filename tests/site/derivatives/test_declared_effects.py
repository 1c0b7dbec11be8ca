"""Effects of declared groups: which they are, integrals in five dimensions, draws given the rest, errors measured."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal

import epvi
from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.declared_groups import LOOKED_AT, declared_effects, with_few_groups
from epvi.site.rows.grouped_table import read_grouped
from epvi.site.tasks.integral_error import integral_error
from epvi.site.tasks.prepared import prepared

WARDS = 4


def hospitals(binary):
    """Wards inside hospitals: a hospital has five effects, its own and those of its wards."""

    def model(hospital, num_hospital, ward, y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0).expand([2]).to_event(1))
        with numpyro.plate("hospital", num_hospital):
            a = numpyro.sample("a", dist.Normal(mu, tau[0]))
            with numpyro.plate("ward", WARDS):
                v = numpyro.sample("v", dist.Normal(0.0, tau[1]))
        eta = a[hospital] + v[ward, hospital]
        with numpyro.plate("rows", hospital.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=eta) if binary else dist.Normal(eta, 0.5), obs=y)

    return epvi.Model(model, groups="hospital")


def made_rows(binary, num_hospitals=30, num_rows=150):
    rng = np.random.default_rng(3)
    hospital, ward = rng.integers(0, num_hospitals, num_rows), rng.integers(0, WARDS, num_rows)
    eta = 0.3 + rng.normal(size=num_hospitals)[hospital] + 0.6 * rng.normal(size=(WARDS, num_hospitals))[ward, hospital]
    y = (rng.logistic(size=num_rows) < eta).astype(float) if binary else eta + 0.5 * rng.normal(size=num_rows)
    return {"hospital": hospital, "ward": ward, "y": y}


def target_of(binary):
    model, rows = hospitals(binary), made_rows(binary)
    made = prepared(model, read_grouped(rows, "hospital"), labels=False)
    return rows, made.programs.target, made.columns


def total(target, columns, phi):
    with jax.enable_x64(True), promotion_allowed():
        return float(jnp.sum(jax.jit(target.log_likelihood)(jnp.asarray(phi), columns)))


def test_wards_inside_hospitals_are_effects_of_hospitals():
    rows = made_rows(True)
    columns = with_few_groups("hospital", read_grouped(rows, "hospital").columns)
    found = declared_effects(hospitals(True).with_groups(LOOKED_AT), "hospital", columns)
    assert (found.names, found.axes) == (("a", "v"), (0, 1))


def test_five_effects_of_normal_rows_are_integrated_out_exactly():
    rows, target, columns = target_of(False)
    same = rows["hospital"][:, None] == rows["hospital"]
    ward = same & (rows["ward"][:, None] == rows["ward"])
    for phi in ([0.3, 0.0, -0.5], [-0.5, -1.0, 0.4]):
        t, w = np.exp(2 * np.array(phi[1:]))
        covariance = 0.25 * np.eye(len(same)) + t * same + w * ward
        wanted = multivariate_normal(np.full(len(same), phi[0]), covariance).logpdf(rows["y"])
        assert total(target, columns, phi) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.slow
def test_integrals_of_normal_rows_have_no_error():
    _, target, columns = target_of(False)
    phi = np.array([0.3, 0.0, -0.5]) + 0.1 * np.random.default_rng(0).standard_normal((16, 3))
    assert integral_error(target, columns, phi) < 1e-8


@pytest.mark.slow
def test_five_effects_of_binary_rows_and_the_error_that_is_measured():
    rows, target, columns = target_of(True)
    # By plain Monte Carlo from the prior of the effects: a naive transliteration, with its standard error.
    rng, phi, size = np.random.default_rng(1), np.array([0.2, -0.2, -0.6]), 40_000
    wanted, variance = 0.0, 0.0
    for h in np.unique(rows["hospital"]):
        own = rows["hospital"] == h
        a = phi[0] + np.exp(phi[1]) * rng.normal(size=size)
        v = np.exp(phi[2]) * rng.normal(size=(WARDS, size))
        sign = np.where(rows["y"][own] > 0, 1.0, -1.0)[:, None]
        p = np.exp(-np.sum(np.logaddexp(0, -sign * (a + v[rows["ward"][own]])), axis=0))
        wanted, variance = wanted + np.log(np.mean(p)), variance + np.var(p) / np.mean(p) ** 2 / size
    found = total(target, columns, phi)
    assert abs(found - wanted) < 4 * np.sqrt(variance) + 0.05
    draws = phi + 0.2 * np.random.default_rng(0).standard_normal((16, 3))
    assert 0 < integral_error(target, columns, draws) < 0.05
