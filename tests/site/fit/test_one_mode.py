"""The only modes of many shards: what a shard gets does not depend on the others, and two modes are not one."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import epvi
from epvi.site.derivatives.passes import programs_of
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.windows import Windows
from epvi.site.fit import one_mode
from epvi.site.fit.newton import Tolerances
from epvi.site.fit.one_mode import OneModeSearch, climbed, moved_by_scarce
from epvi.site.tasks.fit_shard import FitPlan, fit_regular
from epvi.wire.shard_fit import Part, Provenance


def hierarchical(x, y=None):
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    w = numpyro.sample("w", dist.Normal(0, scale).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def logistic(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def squared(x, y=None):
    """Only |w| is known: two modes."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.sum(w**2) + x @ w * 0, 0.1), obs=y)


def rows_of(sizes, columns=3, *, apart=0.0, counts=False, seed=0):
    """Rows of shards whose coefficients differ by `apart`."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(sum(sizes), columns))
    w = 0.3 + apart * rng.normal(size=(len(sizes), columns))
    eta = np.sum(x * np.repeat(w, sizes, axis=0), axis=1)
    y = rng.poisson(np.exp(eta)) if counts else rng.logistic(size=len(x)) < eta
    return {"x": x, "y": y.astype(np.int64)}


def fitted(model, rows, sizes, chosen):
    """The fits of some shards, each as one of all shards, made together."""
    ends = np.cumsum(sizes)
    places = np.concatenate([np.arange(ends[m] - sizes[m], ends[m]) for m in chosen])
    own = {name: column[places] for name, column in rows.items()}
    parts = [Part(m + 1, len(sizes), str(m + 1), Fraction(1, len(sizes))) for m in chosen]
    plan = FitPlan(epvi.NVI(), 512, np.asarray(jax.random.key_data(jax.random.key(0))), Provenance())
    with jax.enable_x64(True):
        return fit_regular(programs_of(epvi.Model(model), own), own, parts, [sizes[m] for m in chosen], plan)


UNEQUAL = [int(n) for n in np.geomspace(300, 6000, 70)]


@pytest.mark.parametrize(
    ("model", "sizes", "settings"),
    [
        pytest.param(logistic, UNEQUAL, {}, marks=pytest.mark.slow),
        (logistic, UNEQUAL, {"apart": 0.5}),
        (hierarchical, [1200] * 66, {"counts": True}),
    ],
)
def test_a_shard_among_many_gets_what_it_gets_alone(model, sizes, settings):
    rows = rows_of(sizes, **settings)
    together = fitted(model, rows, sizes, range(len(sizes)))
    for m in range(0, len(sizes), 23):
        (alone,) = fitted(model, rows, sizes, [m])
        one = together[m]
        assert one is not None
        assert alone is not None
        assert one.made_of == alone.made_of
        root = np.linalg.cholesky(np.asarray(alone.mixture.covariances())[0])
        away = np.linalg.solve(root, (one.mixture.means - alone.mixture.means)[0])
        assert np.linalg.norm(away) < 1e-6
        np.testing.assert_allclose(one.mixture.roots, alone.mixture.roots, rtol=1e-4, atol=1e-5)
        # Hardly bounded by a small share of the prior, a scale gives the ELBO a standard error of hundreds of nats.
        noise = float(alone.elbo.standard_error)
        np.testing.assert_allclose(float(one.elbo.value), float(alone.elbo.value), rtol=0, atol=1e-4 + 1e-3 * noise)


def with_rare_category(sizes, share):
    """The same with an indicator of a rare category in the last column."""
    rows, rng = rows_of(sizes), np.random.default_rng(3)
    rows["x"][:, -1] = rng.random(sum(sizes)) < share
    return rows


def test_a_shard_with_a_rare_category_gets_what_it_gets_alone():
    sizes = [2000] * 8
    rows = with_rare_category(sizes, 0.003)
    together = fitted(logistic, rows, sizes, range(8))
    for m in (0, 5):
        (alone,) = fitted(logistic, rows, sizes, [m])
        assert alone is not None
        assert together[m] is not None
        root = np.linalg.cholesky(np.asarray(alone.mixture.covariances())[0])
        away = np.linalg.solve(root, (together[m].mixture.means - alone.mixture.means)[0])
        assert np.linalg.norm(away) < 1e-6
        np.testing.assert_allclose(together[m].mixture.roots, alone.mixture.roots, rtol=1e-4, atol=1e-5)


def test_rows_of_a_rare_category_lead_from_the_mode_of_a_pool_to_those_of_shards():
    sizes, shards = [2000] * 8, np.arange(8)
    search = search_of(logistic, sizes, with_rare_category(sizes, 0.003))
    mode = search.of_pool(shards, np.random.default_rng(0))
    assert mode is not None
    sub, start = search.subposteriors, np.tile(mode, (8, 1))
    before = sub.passes.copy()
    near = moved_by_scarce(sub, shards, start, search.precision)
    assert np.all(sub.passes - before == 1)
    ends = climbed(sub, shards, start, search.precision, 30)
    far, left = (np.abs(points[:, -1] - ends.points[:, -1]) for points in (start, near))
    assert np.max(left) < 0.3 * np.max(far)


def search_of(model, sizes, rows):
    windows = Windows.of(np.array(sizes), 512, max(sizes))
    count = len(sizes)
    programs = programs_of(epvi.Model(model), rows)
    sub = Subposteriors(programs, rows, windows, np.full(count, 1 / count), np.ones(count))
    starts = np.random.default_rng(1).normal(size=(4, sub.dim)) * np.array([1.0, 1.0, 0.1, 3.0])[:, None]
    return OneModeSearch(sub, starts, 4, Tolerances(1e-9, 1e-12))


def test_two_modes_of_many_shards_are_not_taken_for_one():
    sizes = [40] * 80
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(sum(sizes), 2)), "y": 1 + 0.1 * rng.normal(size=sum(sizes))}
    assert not np.any(search_of(squared, sizes, rows).run(np.arange(80)).fine)


def watch(monkeypatch):
    """The numbers of climbs of each call."""
    numbers, climb = [], one_mode.climb

    def counted(evaluate, starts, *rest):
        numbers.append(len(starts))
        return climb(evaluate, starts, *rest)

    monkeypatch.setattr(one_mode, "climb", counted)
    return numbers


def test_many_shards_are_climbed_from_the_pool_and_few_from_all_starts(monkeypatch):
    sizes = [60] * 80
    search, numbers = search_of(logistic, sizes, rows_of(sizes)), watch(monkeypatch)
    many, few = search.run(np.arange(80)), search.run(np.arange(10))
    assert numbers == [4, 2 * 80, 4 * 10]
    assert np.all(many.fine)
    assert np.all(few.fine)
    np.testing.assert_allclose(many.found.points[:10], few.found.points, atol=1e-4)


def test_one_shard_that_disagrees_is_left_over_alone():
    sizes = [60] * 80
    rows = rows_of(sizes)
    # The labels of one shard are separated: without a share of the prior it has no mode.
    rows["y"][:60] = rows["x"][:60, 0] > 0
    search = search_of(logistic, sizes, rows)
    search.subposteriors.shares[0] = 0.0
    found = search.run(np.arange(80))
    assert not found.fine[0]
    assert np.all(found.fine[1:])
