"""Exchangeable parameters are found by permuting them, and nothing else is taken for exchangeable."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from quick import quick_for

from epvi import EpviError, Model
from epvi.site.derivatives.passes import programs_of
from epvi.site.tasks.labels import settle_labels
from epvi.site.tasks.symmetry import SymmetryTest, find_symmetries

N = 40
RNG = np.random.default_rng(0)
Y, X, CODES = RNG.normal(size=N), RNG.normal(size=(N, 3)), RNG.integers(2, 4, N)


def vector(name, prior, *shape):
    return numpyro.sample(name, prior.expand(list(shape)).to_event(len(shape)))


def observed(distribution, y):
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", distribution, obs=y)


def mixed(weights, parts):
    return dist.MixtureSameFamily(dist.Categorical(weights), parts)


def normals(y):
    """Weights on a simplex, means and sds; and a parameter of the same length that is no part of it."""
    weights, means = numpyro.sample("w", dist.Dirichlet(2 * jnp.ones(3))), vector("mu", dist.Normal(0, 5), 3)
    sds, slopes = vector("s", dist.LogNormal(0, 1), 3), vector("slopes", dist.Normal(0, 1), 3)
    observed(mixed(weights, dist.Normal(means + (jnp.arange(3.0) @ slopes), sds)), y)


def summed_out(y):
    weights = numpyro.sample("w", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("components", 2):
        rates = numpyro.sample("rate", dist.Gamma(1.0, 0.1))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(weights), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Poisson(rates[z]), obs=y)


def regressions(x, y):
    """One column of coefficients for each component, as many rows as columns."""
    weights = numpyro.sample("w", dist.Dirichlet(jnp.ones(3)))
    observed(mixed(weights, dist.Normal(x @ vector("beta", dist.Normal(0, 1), 3, 3), 1.0)), y)


def network(x, y):
    inner, outer = vector("inner", dist.Normal(0, 1), 3, 2), vector("outer", dist.Normal(0, 1), 2)
    observed(dist.Normal(jnp.tanh(x @ inner) @ outer, 1.0), y)


def two_mixtures(x, y):
    """Two independent mixtures of the same number of components."""
    a, b = vector("a", dist.Normal(0, 1), 2), vector("b", dist.Normal(0, 1), 2)
    observed(mixed(jnp.ones(2) / 2, dist.Normal(a, 1.0)), y)
    with numpyro.plate("others", y.shape[0]):
        numpyro.sample("x", mixed(jnp.ones(2) / 2, dist.Normal(b, 1.0)), obs=x[:, 0])


def last_is_different(y):
    weights = numpyro.sample("w", dist.Dirichlet(jnp.array([1.0, 1.0, 9.0])))
    observed(mixed(weights, dist.Normal(vector("mu", dist.Normal(0, 5), 3), 1.0)), y)


def all_are_different(y):
    weights = numpyro.sample("w", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    observed(mixed(weights, dist.Normal(vector("mu", dist.Normal(0, 5), 3), 1.0)), y)


def ordered(y):
    weights = numpyro.sample("w", dist.Dirichlet(jnp.ones(3)))
    means = dist.TransformedDistribution(dist.Normal(0, 5).expand([3]), dist.transforms.OrderedTransform())
    observed(mixed(weights, dist.Normal(numpyro.sample("mu", means), 1.0)), y)


def hidden_states(x):
    """Sequences of a Markov chain: the matrix of transitions is permuted along both of its axes."""
    moves = numpyro.sample("moves", dist.Dirichlet(jnp.ones(2)).expand([2]).to_event(1))
    means = vector("mu", dist.Normal(0, 5), 2)

    def log_density(sequence):
        logs = dist.Normal(means, 1.0).log_prob(sequence[:, None])
        at = logs[0]
        for later in logs[1:]:
            at = jax.nn.logsumexp(at[:, None] + jnp.log(moves), axis=0) + later
        return jax.nn.logsumexp(at)

    with numpyro.plate("rows", x.shape[0]):
        numpyro.factor("sequences", jax.vmap(log_density)(x))


def regression(x, y):
    observed(dist.Normal(x @ vector("w", dist.Normal(0, 1), 3), 1.0), y)


def shrunk(x, y):
    scales = vector("scales", dist.HalfCauchy(1), 3)
    w = numpyro.sample("w", dist.Normal(0, scales).to_event(1))
    observed(dist.Bernoulli(logits=x @ w), y)


def effects(g, y):
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    observed(dist.Normal(vector("b", dist.Normal(0, scale), 6)[g], 1.0), y)


def years(g, y):
    observed(dist.Normal(vector("b", dist.Normal(0, 1), 12)[g - 1990], 1.0), y)


def categories(y):
    observed(dist.Categorical(numpyro.sample("p", dist.Dirichlet(jnp.ones(4)))), y)


def many_categories(y):
    """More of them than made-up codes."""
    observed(dist.Categorical(numpyro.sample("p", dist.Dirichlet(jnp.ones(6)))), y)


def shares(p):
    """Rows on a simplex: no synthetic row is possible."""
    observed(dist.Dirichlet(vector("a", dist.LogNormal(0, 1), 3)), p)


def unused(y):
    vector("z", dist.Normal(0, 1), 3)
    observed(dist.Normal(numpyro.sample("m", dist.Normal(0, 1)), 1.0), y)


def log_sum(values, block):
    return jax.nn.logsumexp(-0.5 * (block["y"][:, None] - values["m"]) ** 2, axis=1)


DENSITY = Model.from_log_density(lambda values: -0.5 * jnp.sum(values["m"] ** 2), log_sum, {"m": 3})
EQUAL, ZERO = X[:, [0, 0, 1]], X * [0.0, 0.0, 1.0]
SIMPLEX = RNG.dirichlet(np.ones(3), N)

FOUND = {
    "normals": (normals, {"y": Y}, ["w, mu, s"]),
    "normals in float32": (normals, {"y": Y.astype(np.float32)}, ["w, mu, s"]),
    "discrete latents": (summed_out, {"y": RNG.poisson(3, N)}, ["w, rate"]),
    "regressions": (regressions, {"x": X, "y": Y}, ["w, beta@1"]),
    "network": (network, {"x": X, "y": Y}, ["inner@1, outer"]),
    "two mixtures": (two_mixtures, {"x": X, "y": Y}, ["a", "b"]),
    "log densities": (DENSITY, {"y": Y}, ["m"]),
    "ordered": (ordered, {"y": Y}, []),
    "all components with priors of their own": (all_are_different, {"y": Y}, []),
    "equal columns": (regression, {"x": EQUAL, "y": Y}, []),
    "columns of zeros": (shrunk, {"x": ZERO, "y": Y > 0}, []),
    "columns of zeros, of whole numbers": (shrunk, {"x": np.zeros((N, 3), np.int8), "y": Y > 0}, []),
    "groups without rows": (effects, {"g": CODES, "y": Y}, []),
    "codes that do not begin at 0": (years, {"g": CODES + 1990, "y": Y}, []),
    "categories without rows": (categories, {"y": np.full(N, 3)}, []),
    "many categories without rows": (many_categories, {"y": np.arange(N) % 2 * 2}, []),
    "rows on a simplex": (shares, {"p": SIMPLEX}, []),
    "parameters without a role": (unused, {"y": Y}, []),
}


QUICK = (
    "normals",
    "regressions",
    "log densities",
    "equal columns",
    "groups without rows",
    "many categories without rows",
)


def found_in(model, rows):
    programs = programs_of(model if isinstance(model, Model) else Model(model), rows)
    return find_symmetries(SymmetryTest(programs, rows))


@pytest.mark.parametrize("name", quick_for(FOUND, QUICK))
def test_exchangeable_parameters_are_found_and_nothing_else(name):
    model, rows, expected = FOUND[name]
    found = found_in(model, rows)
    assert [str(one) for one in found] == expected
    assert all(one.can_be_declared for one in found)


def test_what_cannot_be_aligned_is_named(caplog):
    for model, rows, name in (
        (last_is_different, {"y": Y}, "w, mu (entries 0, 1)"),
        (hidden_states, {"x": X}, "moves, moves@1, mu"),
    ):
        model = Model(model)
        settled = settle_labels(model, programs_of(model, rows), rows)
        assert settled.unaligned == (name,)
        assert settled.model is model
        assert name in caplog.text
        assert "ordered prior" in caplog.text


def test_labels_are_declared_with_the_programs_that_were_compiled(caplog):
    model, rows = Model(normals), {"y": Y}
    programs = programs_of(model, rows)
    settled = settle_labels(model, programs, rows)
    assert settled.unaligned == ()
    assert settled.model.exchangeable == settled.programs.target.space.exchangeable == (("w", "mu", "s"),)
    assert 'exchangeable=[("w", "mu", "s")]' in caplog.text
    assert settled.programs.at_one_point() is programs.at_one_point()
    assert programs_of(settled.model, rows) is settled.programs
    # The user's own model stays as it is, and one that is declared is taken as it is.
    assert model.exchangeable is None
    again = settle_labels(settled.model, settled.programs, rows)
    assert again == (settled.model, settled.programs, ())
    # Nothing is aligned if the user says so, and no such posterior is trusted.
    own = Model(normals, exchangeable=[])
    assert settle_labels(own, programs_of(own, rows), rows) == (own, programs_of(own, rows), ("w, mu, s",))


def test_a_declaration_that_does_not_hold_is_refused():
    rows = {"y": Y}
    weighted = {"supports": {"m": constraints.positive}, "exchangeable": [("m",)]}
    for model in (
        Model(normals, exchangeable=[("w", "mu")]),
        Model.from_log_density(lambda values: -values["m"] @ jnp.arange(3.0), log_sum, {"m": 3}, **weighted),
    ):
        with pytest.raises(EpviError, match="is declared exchangeable, but permuting it changes the log density"):
            settle_labels(model, programs_of(model, rows), rows)
