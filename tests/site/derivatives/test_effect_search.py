"""Which models have group effects that can be integrated out, and the densities by level."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from some_groups import logistic_groups, normal_groups, rows_of_groups, slopes

import epvi
from epvi.site.derivatives.group_effects import EffectSearch

G = 24
ROWS, _ = rows_of_groups(200, G)


def found(model, rows):
    return EffectSearch(epvi.Model(model).on(rows)).find(rows)


@pytest.mark.parametrize(
    ("model", "names", "axes"),
    [
        (logistic_groups(G), ("a",), (0,)),
        (logistic_groups(G, centred=False), ("a",), (0,)),
        (slopes(G), ("a", "slope"), (0, 0)),
        (slopes(G, together=True), ("ab",), (0,)),
    ],
)
def test_effects_that_rows_read_by_one_index(model, names, axes):
    made = found(model, ROWS)
    assert (made.effects.names, made.effects.axes, made.effects.num_levels) == (names, axes, G)
    np.testing.assert_array_equal(made.codes, ROWS["g"])


def test_the_factor_with_most_effects():
    def crossed(g, h, x, y=None):
        tau = numpyro.sample("tau", dist.HalfNormal(1.0).expand([2]).to_event(1))
        a = numpyro.sample("a", dist.Normal(0.0, tau[0]).expand([20]).to_event(1))
        b = numpyro.sample("b", dist.Normal(0.0, tau[1]).expand([25]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(a[g] + b[h], 1.0), obs=y)

    rows = {**ROWS, "g": ROWS["g"] % 20, "h": np.arange(200) % 25}
    made = found(crossed, rows)
    assert made.effects.names == ("b",)
    np.testing.assert_array_equal(made.codes, rows["h"])


def walk(g, x, y=None):
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    steps = numpyro.sample("steps", dist.Normal(0.0, 1.0).expand([G]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal((tau * jnp.cumsum(steps))[g], 1.0), obs=y)


def smooth(g, x, y=None):
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([G]).to_event(1))
    numpyro.factor("smooth", -0.5 * jnp.sum((a[1:] - a[:-1]) ** 2) / tau**2)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


def members(g, x, y=None):
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    a = numpyro.sample("a", dist.Normal(0.0, tau).expand([G]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(a[g] + a[(g + 1) % G], 1.0), obs=y)


def also_alone(g, x, y=None):
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    a = numpyro.sample("a", dist.Normal(0.0, tau).expand([G]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(a[g] + jnp.mean(a), 1.0), obs=y)


def flat(g, x, y=None):
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    a = numpyro.sample("a", dist.ImproperUniform(dist.constraints.real, (G,), ()))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(a[g], tau), obs=y)


def few(g, x, y=None):
    """Coefficients of a factor with few levels, whose prior is fixed."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    a = numpyro.sample("a", dist.Normal(0.0, 2.0).expand([5]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x[:, 0] + a[g % 5], 1.0), obs=y)


def few_varying(g, x, y=None):
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    a = numpyro.sample("a", dist.Normal(0.0, tau).expand([5]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(a[g % 5], 1.0), obs=y)


def few_scaled(g, x, y=None):
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal((tau * a)[g % 5], 1.0), obs=y)


@pytest.mark.parametrize("model", [walk, smooth, members, also_alone, flat, few])
def test_models_whose_levels_are_not_independent_are_left_alone(model):
    assert found(model, ROWS) is None


@pytest.mark.parametrize("model", [few_varying, few_scaled])
def test_few_effects_with_a_scale_of_their_own_are_found(model):
    assert found(model, ROWS).effects.num_levels == 5


def test_codes_outside_the_levels_are_left_to_the_joint_fit():
    rows, _ = rows_of_groups(200, G + 1)
    assert found(logistic_groups(G), rows) is None


def test_a_prior_with_other_means_for_each_level():
    means = np.linspace(-1, 1, G)

    def model(g, y=None):
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("levels", G):
            a = numpyro.sample("a", dist.Normal(slope * means, tau))
        with numpyro.plate("rows", g.shape[0]):
            numpyro.sample("y", dist.Normal(a[g], 1.0), obs=y)

    rows = {"g": ROWS["g"], "y": ROWS["y"]}
    assert found(model, rows) is not None
    assert found(normal_groups(G), rows) is not None


def test_log_densities_as_functions():
    def log_prior(values):
        return -0.5 * jnp.exp(-2 * values["s"]) * jnp.sum(values["a"] ** 2) - G * values["s"] - values["s"] ** 2

    def log_likelihood(values, block):
        return -0.5 * (block["y"] - values["a"][block["g"]]) ** 2

    model = epvi.Model.from_log_density(log_prior, log_likelihood, {"a": (G,), "s": ()})
    rows = {"g": ROWS["g"], "y": ROWS["y"]}
    assert EffectSearch(model.on(rows)).find(rows).effects.names == ("a",)
