"""Derivatives through gathers of parameters by columns of the rows, against JAX's own of the whole log density."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from quick import quick_for

from epvi import Model
from epvi.ground.errors import EpviError
from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.order import Order
from epvi.site.derivatives.passes import Programs
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.windows import Windows
from epvi.site.tasks.predictive import log_likelihoods

RNG = np.random.default_rng(5)
N, V, G, H, BLOCK = 75, 3, 11, 4, 32
PARENTS = RNG.integers(0, H, G)
ROWS = {
    "x": RNG.normal(size=(N, V)),
    "g": RNG.integers(0, G, N),
    "h": RNG.integers(0, H, N).astype(np.int32),
    "y": RNG.integers(0, 2, N),
}
REAL, COUNTS = RNG.normal(size=N), RNG.integers(0, 5, N)


def normal(name, *shape, scale=1.0):
    return numpyro.sample(name, dist.Normal(0.0, scale).expand(list(shape)).to_event(len(shape)))


def positive(name):
    return numpyro.sample(name, dist.HalfNormal(1.0))


def labels(y, logits):
    with numpyro.plate("rows", logits.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def intercepts(x, g, h, y):
    labels(y, x @ normal("w", V) + normal("a", G)[g])


def intercepts_alone(x, g, h, y):
    labels(y, normal("a", G)[g])


def hierarchy(x, g, h, y):
    labels(y, normal("mu") + x @ normal("w", V) + normal("a", G, scale=positive("s"))[g])


def crossed(x, g, h, y):
    labels(y, x @ normal("w", V) + normal("a", G)[g] + normal("b", H)[h])


def nested(x, g, h, y):
    labels(y, normal("a", G)[g] + normal("b", H)[jnp.asarray(PARENTS)[g]])


def nested_in_theta(x, g, h, y):
    """The effect of a group about that of its parent, which is a gather among the parameters."""
    labels(y, (normal("b", H)[PARENTS] + positive("s") * normal("z", G))[g])


def interaction(x, g, h, y):
    labels(y, normal("a", G)[g] + normal("b", G, H)[g, h] + normal("c", H, G)[h, g])


def slopes(x, g, h, y):
    labels(y, x @ normal("w", V) + normal("a", G)[g] + normal("b", G)[g] * x[:, 0])


def crossed_slopes(x, g, h, y):
    labels(y, x @ normal("w", V) + normal("a", G, 2)[g, 0] + normal("b", H, 2)[h, 1] * x[:, 1])


def several_slopes(x, g, h, y):
    labels(y, jnp.sum(x * normal("b", G, V)[g], axis=1))


def last_axis(x, g, h, y):
    a = normal("a", 2, G)[:, g]
    labels(y, a[0] + a[1] * x[:, 0])


def non_centred(x, g, h, y):
    labels(y, x @ normal("w", V) + (normal("mu") + positive("s") * normal("z", G))[g])


def correlated(x, g, h, y):
    """Intercepts and slopes made of independent numbers by a matrix of parameters."""
    made = normal("z", G, 2) @ jnp.array([[1.0, 0.3], [0.0, 1.0]]) * jnp.exp(normal("s", 2))
    labels(y, made[g, 0] + made[g, 1] * x[:, 0])


def baseline(x, g, h, y):
    labels(y, normal("mu") + jnp.concatenate([jnp.zeros(1), normal("a", G - 1)])[g])


def tied(x, g, h, y):
    """The same effects in two ways, one of them not linear."""
    a = normal("a", G)
    labels(y, a[g] + jnp.sin(a[(g + 1) % G]) * x[:, 0])


def several_memberships(x, g, h, y):
    labels(y, jnp.sum(normal("a", G)[jnp.stack([g, (g + h) % G], axis=1)], axis=1))


def taken(x, g, h, y):
    a = jnp.take(normal("a", G), g) + jnp.take(normal("b", G), g, mode="clip") * x[:, 0]
    labels(y, a + jnp.take(normal("c", G), g, mode="wrap") * x[:, 1])


def row_by_row(x, g, h, y):
    a, w = normal("a", G), normal("w", V)
    labels(y, jax.vmap(lambda row, code: row @ w + a[code])(x, g))


def computed(x, g, h, y):
    labels(y, normal("a", 2)[(x[:, 0] > 0).astype(int)] + normal("b", G)[jnp.abs(g - 5)])


def masked(x, g, h, y):
    """Rows without a group have the code -1."""
    code = jnp.where(h == 0, -1, g)
    labels(y, x @ normal("w", V) + jnp.where(code >= 0, normal("a", G)[code], 0.0))


def with_a_scale(x, g, h, y):
    mean = normal("mu") + x @ normal("w", V) + normal("a", G)[g]
    scale = positive("s") * jnp.exp(0.1 * normal("b", H))[h]
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def counts(x, g, h, y):
    rate = jnp.exp(0.3 * (x @ normal("w", V)) + normal("a", G)[g])
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def many_slopes(x, g, h, y):
    """Twelve predictors that are summed to one number."""
    wide = jnp.concatenate([x, x**2, x**3], axis=1)
    labels(y, x @ normal("w", V) + normal("a", H)[h] + normal("mu") + jnp.sum(wide * normal("b", H, 9)[h], axis=1))


def used_twice(x, g, h, y):
    """A number that is used in two ways, of which one is linear."""
    both = x @ normal("w", V) + normal("a", G)[g]
    distribution = dist.Normal(both + normal("b"), jnp.exp(0.2 * (both - x[:, 0])))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", distribution, obs=y)


# The model, its observations if not labels, whether ψ is made of coordinates of θ, and the number of values that the
# link is differentiated with respect to.
FOUND = {
    "intercepts": (intercepts, None, True, 1),
    "intercepts alone": (intercepts_alone, None, True, 1),
    "hierarchy": (hierarchy, None, True, 1),
    "crossed": (crossed, None, True, 1),
    "nested": (nested, None, True, 1),
    "nested in theta": (nested_in_theta, None, False, 1),
    "interaction": (interaction, None, True, 1),
    "slopes": (slopes, None, True, 1),
    "crossed slopes": (crossed_slopes, None, True, 1),
    "several slopes": (several_slopes, None, True, 1),
    "last axis": (last_axis, None, True, 1),
    "non-centred": (non_centred, None, False, 1),
    "correlated": (correlated, None, False, 1),
    "baseline": (baseline, None, False, 1),
    "tied": (tied, None, True, 2),
    "several memberships": (several_memberships, None, True, 1),
    "taken": (taken, None, True, 1),
    "row by row": (row_by_row, None, True, 1),
    "computed": (computed, None, True, 1),
    "masked": (masked, None, True, 1),
    "with a scale": (with_a_scale, REAL, False, 3),
    "counts": (counts, COUNTS, True, 1),
    "many slopes": (many_slopes, None, True, 1),
    "used twice": (used_twice, REAL, True, 2),
}


def subposterior(model, rows):
    return Subposterior.of(Programs(Model(model).on(rows)), rows, Fraction(1, 3), BLOCK)


def rows_of(name):
    y = FOUND[name][1]
    return ROWS if y is None else ROWS | {"y": y}


def linked(sub):
    return sub.programs.linked({name: column[:BLOCK] for name, column in sub.rows.items()})


def some_points(sub, number):
    return 0.4 * np.random.default_rng(4).normal(size=(number, sub.dim))


def expected(sub, points):
    """Value, gradient and Hessian of a third of the prior and all rows at once, and outer products of rows' scores."""
    target = sub.programs.target

    def whole(theta):
        return target.log_prior(theta) / 3 + jnp.sum(target.log_likelihood(theta, sub.rows))

    def products(theta):
        scores = jax.jacfwd(lambda theta: target.log_likelihood(theta, sub.rows))(theta)
        return scores.T @ scores

    def derived(theta):
        return whole(theta), jax.grad(whole)(theta), jax.hessian(whole)(theta), products(theta)

    with jax.enable_x64(True), promotion_allowed():
        return [np.asarray(part) for part in jax.jit(jax.vmap(derived))(points)]


def check(sub, points, tolerance):
    value, gradient, hessian, products = expected(sub, points)
    scale = np.max(np.abs(hessian))
    full, slope, diagonal = sub.full(points), sub.gradient(points), sub.diagonal(points)
    for made in (full, slope, diagonal):
        np.testing.assert_allclose(made.value, value, rtol=tolerance)
        np.testing.assert_allclose(made.gradient, gradient, atol=tolerance * scale)
    np.testing.assert_allclose(full.hessian, hessian, atol=tolerance * scale)
    np.testing.assert_allclose(diagonal.hessian, np.diagonal(hessian, axis1=1, axis2=2), atol=tolerance * scale)
    np.testing.assert_allclose(sub.spread(points[0]), products[0], atol=tolerance * np.max(np.abs(products)))


@pytest.mark.parametrize("name", FOUND)
def test_gathers_of_parameters_by_rows_are_linear_predictors(name):
    sub = subposterior(FOUND[name][0], rows_of(name))
    found = linked(sub)
    assert found is not None
    assert found.width == FOUND[name][3]
    assert (found.places is not None) == FOUND[name][2]
    assert all(found.gives(order) for order in (Order.GRADIENT, Order.DIAGONAL, Order.FULL, Order.SCORES))


QUICK = ("slopes", "interaction", "non-centred", "several memberships")


@pytest.mark.parametrize("name", quick_for(FOUND, QUICK))
def test_derivatives_through_gathers_are_those_of_the_whole(name):
    sub = subposterior(FOUND[name][0], rows_of(name))
    check(sub, some_points(sub, 2), 1e-11)


def by_theta(x, g, h, y):
    """Indices that depend on the parameters."""
    w = normal("w", V)
    labels(y, x @ w + normal("a", G)[jnp.where(x @ w > 0, g, 0)])


def of_rows(x, g, h, y):
    """What is indexed depends on the rows."""
    labels(y, (normal("a", G)[None] * x[:, :1])[jnp.arange(len(x)), g])


def with_values_for_the_rest(x, g, h, y):
    labels(y, normal("a", G).at[g + 2].get(mode="fill", fill_value=0.0))


@pytest.mark.parametrize("model", [by_theta, of_rows, with_values_for_the_rest])
def test_other_gathers_are_differentiated_in_general(model):
    sub = subposterior(model, ROWS)
    assert linked(sub) is None
    check(sub, some_points(sub, 2), 1e-11)


def test_too_many_predictors_of_a_row_are_differentiated_in_general():
    sub = subposterior(lambda x, g, h, y: labels(y, jnp.prod(normal("a", G, 9)[g], axis=1)), ROWS)
    assert linked(sub) is None


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.uint16, np.int8, np.float64, bool])
def test_codes_may_have_any_type(dtype):
    codes = (ROWS["g"] % 2 if dtype is bool else ROWS["g"]).astype(dtype)

    def model(x, g, h, y):
        labels(y, x @ normal("w", V) + normal("a", G)[g.astype(int) if dtype in (bool, np.float64) else g])

    sub = subposterior(model, ROWS | {"g": codes})
    sub.refuse_outside()
    points = some_points(sub, 1)
    assert linked(sub) is not None
    np.testing.assert_allclose(sub.full(points).hessian, expected(sub, points)[2], atol=1e-11)


@pytest.mark.parametrize("size", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_blocks_may_have_as_many_rows_as_another_axis_is_long(size):
    def model(x, g, h, y):
        """Logits with the rows last, each of effects and of a product."""
        both = normal("a", 2, G)[:, g] + normal("w", 2, V) @ x.T + normal("b", 2, 1)
        labels(y, jnp.logaddexp(both[0], both[1]) + jnp.sum(jnp.tanh(both), axis=0))

    rows = {name: column[:12] for name, column in ROWS.items()}
    sub = Subposterior.of(Programs(Model(model).on(rows)), rows, Fraction(1, 3), size)
    points = some_points(sub, 1)
    value, gradient, hessian, _ = expected(sub, points)
    made = sub.full(points)
    np.testing.assert_allclose(made.value, value, rtol=1e-11)
    np.testing.assert_allclose(made.gradient, gradient, atol=1e-11)
    np.testing.assert_allclose(made.hessian, hessian, atol=1e-11)


def test_more_levels_than_a_small_type_can_count():
    def model(x, g, h, y):
        labels(y, normal("a", 300)[g])

    sub = subposterior(model, ROWS | {"g": (ROWS["g"] * 20).astype(np.uint8)})
    points = some_points(sub, 1)
    np.testing.assert_allclose(sub.full(points).hessian, expected(sub, points)[2], atol=1e-11)


def test_float32_rows_lose_no_more_than_their_digits():
    rows = ROWS | {"x": ROWS["x"].astype(np.float32)}
    sub, double = subposterior(slopes, rows), subposterior(slopes, rows | {"x": rows["x"].astype(np.float64)})
    points = some_points(sub, 2)
    value, gradient, hessian, products = expected(double, points)
    made = sub.full(points)
    np.testing.assert_allclose(made.value, value, rtol=1e-6)
    np.testing.assert_allclose(made.gradient, gradient, atol=1e-5)
    np.testing.assert_allclose(made.hessian, hessian, atol=1e-5)
    np.testing.assert_allclose(sub.spread(points[0]), products[0], atol=1e-5)


@pytest.mark.parametrize("name", quick_for(("crossed slopes", "non-centred", "interaction"), ("crossed slopes",)))
def test_shards_together_have_the_derivatives_that_they_have_alone(name):
    rows, sizes = rows_of(name), np.array([20, 0, 40, 15])
    programs = Programs(Model(FOUND[name][0]).on(rows))
    windows, shares = Windows.of(sizes, 64, 40), np.array([0.1, 0.2, 0.3, 0.4])
    together = Subposteriors(programs, rows, windows, shares, np.ones(4))
    theta = 0.4 * np.random.default_rng(4).normal(size=(3, programs.target.space.dim))
    owner, spread = np.array([0, 2, 3]), together.spread(theta[0])
    made = together.second_order(theta, owner)
    for i, m in enumerate(owner):
        own = {n: c[windows.bounds[m] : windows.bounds[m + 1]] for n, c in rows.items()}
        alone = Subposterior.of(programs, own, Fraction(shares[m]), 16)
        for part, whole in zip(alone.second_order(theta[i : i + 1]), made, strict=True):
            np.testing.assert_allclose(whole[i], part[0], atol=1e-10)
        np.testing.assert_allclose(spread[m], alone.spread(theta[0]), atol=1e-10)


def refused(model, **columns):
    with pytest.raises(EpviError) as error:
        subposterior(model, ROWS | columns).refuse_outside()
    return str(error.value)


@pytest.mark.parametrize("code", [G, -1])
def test_codes_out_of_range_are_refused_with_column_and_row(code):
    codes = np.where(np.arange(N) >= 70, code, ROWS["g"])
    said = f"g is {code} in row 71, but the model has 11 levels for it: code them from 0 to 10"
    assert said in refused(intercepts, g=codes)
    assert said in refused(nested, g=codes)
    assert said in refused(interaction, g=codes)
    assert said in refused(by_theta_alone, g=codes)


def by_theta_alone(x, g, h, y):
    """Not a linear predictor, because it has too many columns, and indexed all the same."""
    labels(y, jnp.prod(normal("a", G, 9)[g], axis=1))


def test_new_rows_with_codes_out_of_range_have_no_log_likelihoods():
    sub = subposterior(intercepts, ROWS)
    found = log_likelihoods(sub.programs, ROWS | {"g": np.full(N, G)}, some_points(sub, 1))
    with pytest.raises(EpviError, match="g is 11 in row 1, "):
        next(found)


def test_the_first_of_several_bad_rows_is_named():
    codes, others = ROWS["g"].copy(), ROWS["h"].copy()
    codes[50], others[40] = 99, 7
    assert "h is 7 in row 41, but the model has 4 levels" in refused(crossed, g=codes, h=others)


def test_indices_computed_from_columns_are_refused_by_the_names_of_those():
    def model(x, g, h, y):
        labels(y, normal("a", G)[g - 1])

    assert "the index that the model computes from g is -1 in row" in refused(model, g=np.where(ROWS["g"] > 5, 0, 1))


def test_columns_that_serve_otherwise_too_may_have_any_code():
    def model(x, g, h, y):
        labels(y, jnp.where(g >= 0, normal("a", G)[g], 0.0))

    sub = subposterior(model, ROWS | {"g": np.where(ROWS["g"] == 3, -1, ROWS["g"])})
    sub.refuse_outside()
    check(sub, some_points(sub, 1), 1e-11)
