"""A NumPyro model taken apart: its log prior and the rows' log likelihoods are NumPyro's own density of all rows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import log_density, potential_energy

from epvi import Model

N = 15
rng = np.random.default_rng(0)
ROWS = {
    "x": rng.normal(size=(N, 2)),
    "y": rng.normal(size=N),
    "group": rng.integers(0, 3, N),
    "seen": rng.uniform(size=N) < 0.6,
}


@pytest.fixture(autouse=True)
def _as_numpyro_expects():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"), jax.enable_x64(True):
        yield


def normal(*shape):
    return dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape))


def observe(mean, y, name="y"):
    with numpyro.plate(f"rows of {name}", y.shape[0]):
        numpyro.sample(name, dist.Normal(mean, 1.0), obs=y)


def linear(x, y):
    observe(x @ numpyro.sample("w", normal(2)), y)


def with_deterministic(x, y):
    w = numpyro.sample("w", normal(2))
    numpyro.deterministic("twice", 2 * w)
    observe(numpyro.deterministic("mean", x @ w), y)
    numpyro.sample("anchor", dist.Normal(jnp.sum(w), 0.5), obs=0.3)


def with_factors(x, y):
    w = numpyro.sample("w", normal(2))
    numpyro.factor("prior", -jnp.sum(w**4))
    numpyro.factor("likelihood", -jnp.abs(y - x @ w))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.factor("once per row", -(w[0] ** 2))


def improper(x, y):
    w = numpyro.sample("w", dist.ImproperUniform(constraints.real, (), (2,)))
    sigma = numpyro.sample("sigma", dist.ImproperUniform(constraints.positive, (), ()))
    numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


def every_constraint(x, y):
    def flat(name, support, *shape):
        return numpyro.sample(name, dist.ImproperUniform(support, (), shape))

    values = [
        numpyro.sample("positive", dist.Gamma(2.0, 1.0).expand([2])),
        numpyro.sample("transformed", dist.LogNormal(0.0, 1.0)),
        numpyro.sample("interval", dist.Uniform(-1.0, 3.0).expand([2]).to_event(1)),
        numpyro.sample("unit", dist.Beta(2.0, 3.0)),
        numpyro.sample("angle", dist.VonMises(0.0, 1.0)),
        numpyro.sample("above", dist.TruncatedNormal(0.0, 1.0, low=1.5)),
        numpyro.sample("below", dist.TruncatedNormal(0.0, 1.0, high=1.5)),
        numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)).expand([2])),
        numpyro.sample("cholesky of correlations", dist.LKJCholesky(3, 1.5)),
        numpyro.sample("correlations", dist.LKJ(2, 1.5)),
        numpyro.sample("covariance", dist.Wishart(5.0, jnp.eye(2))),
        numpyro.sample("sum of zero", dist.ZeroSumNormal(1.0, (3,))),
        numpyro.sample("drawn three times", dist.Normal(0.0, 2.0), sample_shape=(3,)),
        numpyro.sample("matrix", dist.MatrixNormal(jnp.zeros((2, 3)), jnp.eye(2), jnp.eye(3))),
        flat("ordered", constraints.ordered_vector, 3),
        flat("positive and ordered", constraints.positive_ordered_vector, 2),
        flat("lower", constraints.lower_cholesky, 2, 2),
        flat("in the ball", constraints.l1_ball, 3),
        flat("softplus", constraints.softplus_positive),
    ]
    slope = sum(jnp.sum(jnp.sin(value)) for value in values)
    observe(slope * x[:, 0], y)


def with_plates(x, y, group, all_of_them=True):
    part = {} if all_of_them else {"subsample_size": 2}
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 3, dim=-2, **part), numpyro.plate("columns", 2, dim=-1):
        w = numpyro.sample("w", dist.Normal(0.0, scale))
    with numpyro.plate("rows", x.shape[0], dim=-2), numpyro.plate("columns of x", 2, dim=-1):
        numpyro.sample("x", dist.Normal(w[group], 1.0), obs=x)
    observe(jnp.sum(w[group], -1), y)


def with_subsampled_latents(x, y, group):
    with_plates(x, y, group, all_of_them=False)


def with_a_total(x, y, total=1000):
    w = numpyro.sample("w", normal(2))
    with numpyro.plate("rows", total, subsample_size=x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def with_batches(x, y):
    w = numpyro.sample("w", normal(2))
    with numpyro.plate("rows", x.shape[0], subsample_size=5):
        numpyro.sample("y", dist.Normal(numpyro.subsample(x, 1) @ w, 1.0), obs=numpyro.subsample(y, 0))


def with_indexed_batches(x, y):
    w = numpyro.sample("w", normal(2))
    with numpyro.plate("rows", x.shape[0], subsample_size=8) as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ w, 1.0), obs=y[rows])


def masked_and_scaled(x, y, seen):
    with handlers.mask(mask=False):
        w = numpyro.sample("w", normal(2))
    with handlers.scale(scale=0.5):
        v = numpyro.sample("v", normal())
    with numpyro.plate("rows", x.shape[0]), handlers.mask(mask=seen), handlers.scale(scale=2.5):
        numpyro.sample("y", dist.Normal(x @ w + v, 1.0), obs=y)
    with handlers.scale(scale=jnp.abs(x[:, 1])):
        numpyro.sample("again", dist.Normal(v, 2.0), obs=y)


def several_without_a_plate(x, y):
    w = numpyro.sample("w", normal(2))
    numpyro.sample("columns", dist.Normal(w, 1.0).expand(x.shape).to_event(1), obs=x)
    numpyro.sample("entries", dist.StudentT(3.0, w, 1.0), obs=x)
    numpyro.sample("upright", dist.Laplace(w[:, None], 1.0), obs=x.T)
    numpyro.sample("vectors", dist.MultivariateNormal(w, 2 * jnp.eye(2)), obs=x)
    numpyro.sample("y", dist.Cauchy(w[0], 1.0), obs=y)


def with_settings(x, y, degree, centre=0.0):
    w = numpyro.sample("w", normal(degree))
    observe(sum(w[i] * (x[:, 0] - centre) ** i for i in range(degree)), y)


def random_walk(x, y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))

    def step(level, _):
        level = numpyro.sample("level", dist.Normal(0.5 * level, scale))
        return level, level

    _, levels = scan(step, 0.0, None, length=4)
    observe(x[:, 0] * jnp.sum(levels), y)


def rows_in_a_scan(x, y):
    w = numpyro.sample("w", normal(2))

    def step(carry, row):
        numpyro.sample("y", dist.Normal(row[0] @ w, 1.0), obs=row[1])
        return carry, None

    scan(step, 0.0, (x, y))


def hierarchy(x, y):
    centre, scale = numpyro.sample("centre", normal()), numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("columns", 2):
        w = numpyro.sample("w", dist.Normal(centre, scale))
    observe(x @ w, y)


def with_a_compiled_part(x, y):
    w = numpyro.sample("w", normal(2))
    size, mean = jax.jit(lambda x, w: (jnp.sum(w**2), x @ w))(x, w)
    v = numpyro.sample("v", dist.Normal(size, 1.0))
    observe(mean + v, y)


def any_columns(**columns):
    linear(columns["x"], columns["y"])


@dataclass(frozen=True)
class Case:
    """A model, its columns and fixed arguments; `meant` is how NumPyro would write it without subsampling."""

    model: Callable
    columns: str = "x y"
    fixed: dict[str, Any] = field(default_factory=dict)
    meant: Callable | None = None
    dtype: Any = np.float64

    @property
    def rows(self):
        chosen = {name: ROWS[name] for name in self.columns.split()}
        return {name: c.astype(self.dtype) if c.dtype.kind == "f" else c for name, c in chosen.items()}


CASES = {
    "deterministic": Case(with_deterministic),
    "factors": Case(with_factors),
    "improper": Case(improper),
    "plates": Case(with_plates, "x y group", {"all_of_them": True}),
    "subsampled latents": Case(with_subsampled_latents, "x y group", meant=with_plates),
    "a total of more rows": Case(with_a_total, meant=linear),
    "a total of these rows": Case(with_a_total, fixed={"total": N}, meant=linear),
    "a total of fewer rows": Case(with_a_total, fixed={"total": 5}, meant=linear),
    "batches": Case(with_batches, meant=linear),
    "indexed batches": Case(with_indexed_batches, meant=linear),
    "masked and scaled": Case(masked_and_scaled, "x y seen"),
    "several without a plate": Case(several_without_a_plate),
    "fixed arguments": Case(with_settings, fixed={"degree": 3, "centre": 0.7}),
    "default argument": Case(with_settings, fixed={"degree": 2}),
    "random walk": Case(random_walk),
    "rows in a scan": Case(rows_in_a_scan),
    "reparametrised": Case(handlers.reparam(hierarchy, config={"w": LocScaleReparam(0)})),
    "conditioned": Case(handlers.condition(hierarchy, {"centre": np.array(0.3)})),
    "compiled part": Case(with_a_compiled_part),
    "any columns": Case(any_columns),
    "float32 rows": Case(hierarchy, dtype=np.float32),
}


def draws(dim, num):
    return np.random.default_rng(1).normal(size=(num, dim))


@pytest.mark.parametrize("name", CASES)
def test_prior_and_rows_make_the_density_of_numpyro(name):
    case = CASES[name]
    rows, model = case.rows, Model(case.model, **case.fixed)
    target = model.on(rows)
    target.check(rows)
    fixed = case.fixed if case.meant is None else {}
    meant = handlers.seed(case.meant or case.model, 0)

    @jax.jit
    def densities(theta):
        single = {name: column[:, None] for name, column in rows.items()}
        return (
            target.log_prior(theta),
            target.log_likelihood(theta, rows),
            jax.vmap(lambda row: target.log_likelihood(theta, row))(single),
            -potential_energy(meant, (), fixed | rows, target.space.parts(theta)),
        )

    for theta in draws(target.space.dim, 3):
        prior, per_row, alone, whole = densities(theta)
        assert per_row.shape == (N,)
        assert alone.shape == (N, 1)
        assert prior.dtype == per_row.dtype == np.float64
        np.testing.assert_allclose(prior + per_row.sum(), whole, rtol=1e-10)
        np.testing.assert_allclose(alone[:, 0], per_row, rtol=1e-10, atol=1e-10)


def test_masks_and_scales_of_a_latent_leave_the_jacobian_alone():
    """NumPyro's potential energy scales and masks it too, so that the posterior depends on the parametrisation."""

    def model(x, y):
        with handlers.scale(scale=0.5):
            sigma = numpyro.sample("sigma", dist.Gamma(2.0, 1.0))
        with handlers.mask(mask=False):
            u = numpyro.sample("u", dist.Beta(2.0, 2.0))
        numpyro.sample("y", dist.Normal(x[:, 0] * u, sigma), obs=y)

    rows = {name: ROWS[name] for name in ("x", "y")}
    target = Model(model).on(rows)
    for theta in map(jnp.asarray, draws(target.space.dim, 3)):
        whole = log_density(model, (), rows, target.space.values(theta))[0] + target.space.log_jacobian(theta)
        split = target.log_prior(theta) + target.log_likelihood(theta, rows).sum()
        np.testing.assert_allclose(split, whole, rtol=1e-12)


def test_subsampling_of_other_things_may_meet_the_number_of_rows():
    """The model is tried on 12 and on 8 rows; a plate of that size is not the rows' for that."""

    def model(x, y, size=None):
        with numpyro.plate("items", 30, subsample_size=size):
            u = numpyro.sample("u", dist.Normal(0.0, 1.0))
        observe(x[:, 0] * jnp.sum(u), y)

    rows = {name: ROWS[name] for name in ("x", "y")}
    theta = jnp.asarray(draws(30, 1)[0])
    full = Model(model).on(rows).log_prior(theta)
    for size in (8, 12):
        np.testing.assert_allclose(Model(model, size=size).on(rows).log_prior(theta), full, rtol=1e-12)


def test_shares_of_the_prior_multiply_to_it_only_with_the_jacobian():
    rows, model = Case(every_constraint).rows, Model(every_constraint)
    shards = [{name: column[m::3] for name, column in rows.items()} for m in range(3)]
    one, another = model.on(shards[0]), model.on(shards[1])
    assert one.space.signature() == another.space.signature()
    prior, log_likelihood, jacobian = map(jax.jit, (one.log_prior, another.log_likelihood, one.space.log_jacobian))
    seeded = handlers.seed(every_constraint, 0)
    whole = jax.jit(lambda theta: -potential_energy(seeded, (), rows, one.space.parts(theta)))
    apart = []
    for theta in draws(one.space.dim, 5):
        shares = [prior(theta) / 3 + log_likelihood(theta, shard).sum() for shard in shards]
        np.testing.assert_allclose(sum(shares), whole(theta), rtol=1e-12)
        # Shares of the density of the constrained values, each with a whole Jacobian.
        naively = [share - jacobian(theta) / 3 + jacobian(theta) for share in shares]
        apart.append(sum(naively) - whole(theta))
        np.testing.assert_allclose(apart[-1], 2 * jacobian(theta), rtol=1e-8)
    assert np.std(apart) > 1


def test_float32_parameters_and_rows_stay_float32():
    def model(x, y):
        w, sigma = numpyro.sample("w", normal(2)), numpyro.sample("sigma", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)

    rows = CASES["float32 rows"].rows
    target = Model(model).on(rows)
    theta = jnp.asarray(draws(target.space.dim, 1)[0])
    small = target.log_likelihood(theta.astype(np.float32), rows)
    assert small.dtype == np.float32
    np.testing.assert_allclose(small, target.log_likelihood(theta, rows), rtol=1e-5, atol=1e-5)
