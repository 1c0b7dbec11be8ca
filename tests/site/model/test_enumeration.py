"""Discrete latent sites of single rows: summed out, they are the mixture written by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from quick import quick_for
from scipy import special, stats

from epvi import EpviError, Model

N = 9
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(N, 2)), 2 * rng.normal(size=N)


def normal(*shape):
    return dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape))


def rows_of(y):
    return numpyro.plate("rows", y.shape[0])


def mixture(y):
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
    means = numpyro.sample("means", normal(3))
    with rows_of(y):
        z = numpyro.sample("z", dist.Categorical(shares))
        numpyro.sample("y", dist.Normal(means[z], 1.0), obs=y)


def naive_mixture(i, shares, means):
    return sum(shares[z] * stats.norm.pdf(Y[i], means[z], 1) for z in range(3))


def mixture_of_experts(x, y):
    w, slopes = numpyro.sample("w", normal(2, 3)), numpyro.sample("slopes", normal(3, 2))
    with rows_of(y):
        z = numpyro.sample("z", dist.Categorical(logits=x @ w))
        numpyro.sample("y", dist.Normal(jnp.sum(x * slopes[z], -1), 1.0), obs=y)


def naive_mixture_of_experts(i, w, slopes):
    shares = special.softmax(X[i] @ w)
    return sum(shares[z] * stats.norm.pdf(Y[i], X[i] @ slopes[z], 1) for z in range(3))


def two_sites(x, y):
    w, m = numpyro.sample("w", normal(2)), numpyro.sample("m", normal(2, 3))
    with rows_of(y):
        a = numpyro.sample("a", dist.Bernoulli(logits=x @ w))
        b = numpyro.sample("b", dist.Categorical(logits=m[a]))
        numpyro.sample("y", dist.Normal(m[a, b] + a, 1.0 + b), obs=y)


def naive_two_sites(i, w, m):
    total = 0.0
    for a in range(2):
        for b in range(3):
            odds = stats.bernoulli.pmf(a, special.expit(X[i] @ w)) * special.softmax(m[a])[b]
            total += odds * stats.norm.pdf(Y[i], m[a, b] + a, 1 + b)
    return total


def one_per_column(x):
    p, shift = numpyro.sample("p", dist.Beta(2.0, 2.0)), numpyro.sample("shift", normal(1))
    with numpyro.plate("rows", x.shape[0], dim=-2), numpyro.plate("columns", 2, dim=-1):
        on = numpyro.sample("on", dist.Bernoulli(p))
        numpyro.sample("x", dist.Normal(shift * on, 1.0), obs=x)


def naive_one_per_column(i, p, shift):
    return np.prod([p * stats.norm.pdf(v, shift[0], 1) + (1 - p) * stats.norm.pdf(v) for v in X[i]])


def upright(x):
    p, shift = numpyro.sample("p", dist.Beta(2.0, 2.0)), numpyro.sample("shift", normal(1))
    with numpyro.plate("columns", 2, dim=-2), numpyro.plate("rows", x.shape[0], dim=-1):
        on = numpyro.sample("on", dist.Bernoulli(p))
        numpyro.sample("x", dist.Normal(shift * on, 1.0), obs=x.T)


def one_per_column_by_to_event(x):
    p, shift = numpyro.sample("p", dist.Beta(2.0, 2.0)), numpyro.sample("shift", normal(1))
    with rows_of(x):
        on = numpyro.sample("on", dist.Bernoulli(p).expand([2]).to_event(1))
        numpyro.sample("x", dist.Normal(shift * on, 1.0).to_event(1), obs=x)


def counts(y):
    p, step = numpyro.sample("p", dist.Beta(2.0, 2.0)), numpyro.sample("step", normal(1))
    with numpyro.plate("rows", 1000, subsample_size=y.shape[0]):
        k = numpyro.sample("k", dist.Binomial(3, p))
        j = numpyro.sample("j", dist.DiscreteUniform(2, 3))
        numpyro.sample("y", dist.Normal(step * k - j, 1.0), obs=y)


def naive_counts(i, p, step):
    pairs = [(k, j) for k in range(4) for j in (2, 3)]
    return sum(0.5 * stats.binom.pmf(k, 3, p) * stats.norm.pdf(Y[i], step[0] * k - j, 1) for k, j in pairs)


def only_the_shares(y):
    p = numpyro.sample("p", dist.Beta(2.0, 2.0))
    with rows_of(y):
        on = numpyro.sample("on", dist.Bernoulli(p))
        numpyro.sample("y", dist.Normal(2.0 * on, 1.0), obs=y)


def naive_only_the_shares(i, p):
    return p * stats.norm.pdf(Y[i], 2, 1) + (1 - p) * stats.norm.pdf(Y[i], 0, 1)


def with_prior_and_other_sites(x, y):
    p, m = numpyro.sample("p", dist.Beta(2.0, 2.0)), numpyro.sample("m", normal(2))
    numpyro.sample("anchor", dist.Normal(m[0], 1.0), obs=0.5)
    numpyro.sample("x", dist.Normal(m, 1.0), obs=x)
    with rows_of(y):
        on = numpyro.sample("on", dist.Bernoulli(p))
        numpyro.factor("f", -jnp.abs(y - m[on]))


def naive_with_prior_and_other_sites(i, p, m):
    return np.prod(stats.norm.pdf(X[i], m)) * sum((1 - p, p)[a] * np.exp(-np.abs(Y[i] - m[a])) for a in (0, 1))


CASES = {
    "mixture": (mixture, naive_mixture),
    "probabilities from columns": (mixture_of_experts, naive_mixture_of_experts),
    "two sites": (two_sites, naive_two_sites),
    "one per column": (one_per_column, naive_one_per_column),
    "rows last": (upright, naive_one_per_column),
    "one per column by to_event": (one_per_column_by_to_event, naive_one_per_column),
    "counts in a subsampled plate": (counts, naive_counts),
    "parameters only in the probabilities": (only_the_shares, naive_only_the_shares),
    "prior and other sites": (with_prior_and_other_sites, naive_with_prior_and_other_sites),
}


def columns_of(model):
    names = model.__code__.co_varnames[: model.__code__.co_argcount]
    return {name: {"x": X, "y": Y}[name] for name in names}


def per_row(model, theta=None, dtype=np.float64):
    """The log likelihoods of the rows at a θ, and the constrained values there."""
    rows = {name: column.astype(dtype) for name, column in columns_of(model).items()}
    target = Model(model).on(rows)
    target.check(rows)
    theta = np.random.default_rng(1).normal(size=target.space.dim) if theta is None else theta
    with jax.enable_x64(True):
        logs = np.asarray(jax.jit(target.log_likelihood)(theta, rows))
    values = target.space.constrain(theta[None])
    return logs, {name: value[0] for name, value in values.items()}


@pytest.mark.parametrize(
    "name", quick_for(CASES, ("mixture", "one per column", "parameters only in the probabilities", "two sites"))
)
def test_summed_out_is_summed_by_hand(name):
    model, by_hand = CASES[name]
    logs, values = per_row(model)
    np.testing.assert_allclose(logs, [np.log(by_hand(i, **values)) for i in range(N)], rtol=1e-10)


@pytest.mark.slow
def test_rows_may_be_float32():
    theta = np.random.default_rng(2).normal(size=5)
    np.testing.assert_allclose(per_row(mixture, theta, np.float32)[0], per_row(mixture, theta)[0], rtol=1e-5)


def test_the_gradient_is_finite_where_a_value_is_impossible():
    target = Model(mixture).on({"y": Y})
    theta = np.array([40.0, 0.0, 5.0, -200.0, 3.0])
    with jax.enable_x64(True):
        gradient = jax.jit(jax.grad(lambda t: target.log_likelihood(t, {"y": Y}).sum()))(theta)
    assert np.all(np.isfinite(gradient))


def weighed(handler):
    def model(y):
        m = numpyro.sample("m", normal(2))
        with rows_of(y), handler(y):
            on = numpyro.sample("on", dist.Bernoulli(0.3))
            numpyro.sample("y", dist.Normal(m[on], 1.0), obs=y)

    return model


def test_a_masked_row_says_nothing_of_the_parameters():
    masked = weighed(lambda y: handlers.mask(mask=y > 0))
    seen = Y > 0
    one, other = per_row(masked)[0], per_row(masked, np.array([3.0, -3.0]))[0]
    plain, _ = per_row(weighed(lambda y: handlers.mask(mask=True)))
    np.testing.assert_allclose(one[seen], plain[seen], rtol=1e-10)
    np.testing.assert_allclose(one[~seen], other[~seen], atol=1e-12)
    assert 0 < np.sum(seen) < N


def test_a_scaled_row_is_scaled_inside_the_sum():
    """As NumPyro does it for NUTS: log Σ_z p(y, z)^s."""
    logs, values = per_row(weighed(lambda y: handlers.scale(scale=2.5)))
    joint = np.array([0.7, 0.3]) * stats.norm.pdf(Y[:, None], values["m"], 1)
    np.testing.assert_allclose(logs, np.log(np.sum(joint**2.5, axis=1)), rtol=1e-10)


def shared(y):
    on = numpyro.sample("on", dist.Bernoulli(0.5))
    numpyro.sample("y", dist.Normal(numpyro.sample("m", normal()) * on, 1.0), obs=y)


def poisson(y):
    m = numpyro.sample("m", normal())
    with rows_of(y):
        count = numpyro.sample("count", dist.Poisson(2.0))
        numpyro.sample("y", dist.Normal(m * count, 1.0), obs=y)


def many_levels(y):
    m = numpyro.sample("m", normal())
    with rows_of(y):
        level = numpyro.sample("level", dist.Categorical(jnp.full(300, 1 / 300)))
        numpyro.sample("y", dist.Normal(m * level, 1.0), obs=y)


def many_switches(y):
    m = numpyro.sample("m", normal())
    with numpyro.plate("switches", 9, dim=-2), rows_of(y):
        on = numpyro.sample("on", dist.Bernoulli(0.5))
    numpyro.sample("y", dist.Normal(m * jnp.sum(on, 0), 1.0), obs=y)


def centred(x, y):
    m = numpyro.sample("m", normal(2))
    with rows_of(y):
        on = numpyro.sample("on", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(m[0] * on + m[1] * (x[:, 0] - jnp.mean(x[:, 0])), 1.0), obs=y)


def of_the_row_before(y):
    m = numpyro.sample("m", normal())
    with rows_of(y):
        on = numpyro.sample("on", dist.Bernoulli(0.5))
    numpyro.sample("y", dist.Normal(m * jnp.roll(on, 1), 1.0), obs=y)


def no_parameter(y):
    with rows_of(y):
        on = numpyro.sample("on", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(on, 1.0), obs=y)


REFUSED = {
    "shared": (shared, "discrete parameter 'on' is shared by all rows"),
    "infinite": (poisson, "discrete parameter 'count' has infinitely many values"),
    "many levels": (many_levels, r"parameters level have 300 combinations of values in one row, more than 256"),
    "many switches": (many_switches, r"parameters on have 512 combinations"),
    "no parameter": (no_parameter, "no continuous parameter"),
    "centred": (centred, "does not factor over rows"),
    "of the row before": (of_the_row_before, "does not factor over rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_summed_out_is_refused_in_one_sentence(name):
    model, sentence = REFUSED[name]
    rows = columns_of(model)
    with pytest.raises(EpviError, match=sentence) as error:
        Model(model).on(rows).check(rows)
    assert "\n" not in str(error.value)
