"""The search for the only mode of many shards: concave densities, scales, and densities with several modes."""

from fractions import Fraction

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import epvi
from epvi.site.derivatives.passes import programs_of
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.windows import Windows
from epvi.site.fit.newton import Tolerances
from epvi.site.fit.one_mode import OneModeSearch

PRECISION = Tolerances(1e-9, 1e-12)


def with_a_scale(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(2.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, s), obs=y)


def of_a_square(y=None):
    """Two modes where rows are about 4, and one where they are about −2."""
    theta = numpyro.sample("theta", dist.Normal(0.0, 3.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(theta**2, 1.0), obs=y)


def lines(sizes):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(sum(sizes), 3))
    return {"x": x, "y": x @ [0.5, -1.0, 0.2] + 0.4 * rng.normal(size=len(x))}


def search(model, rows, sizes, few=4):
    model = epvi.Model(model)
    programs = programs_of(model, rows)
    shares = np.full(len(sizes), 1 / len(sizes))
    windows = Windows.of(np.array(sizes), 256, max(sizes))
    sub = Subposteriors(programs, rows, windows, shares, np.ones(len(sizes)))
    starts = np.random.default_rng(1).normal(size=(16, sub.dim))
    with jax.enable_x64(True):
        return OneModeSearch(sub, starts, few, PRECISION).run(np.arange(len(sizes)))


@pytest.mark.parametrize("sizes", [[40, 25, 60], [20 + m for m in range(20)]], ids=["few shards", "pooled"])
def test_a_scale_has_one_mode_although_the_density_is_not_concave_everywhere(sizes):
    rows = lines(sizes)
    found = search(with_a_scale, rows, sizes)
    assert np.all(found.fine)
    ends = np.cumsum([0, *sizes])
    for m in (0, len(sizes) - 1):
        part = {name: column[ends[m] : ends[m + 1]] for name, column in rows.items()}
        alone = epvi.fit_shard(with_a_scale, part, shard=f"{m + 1}/{len(sizes)}", seed=3)
        assert alone.mixture.num_components == 1
        sds = np.sqrt(np.diagonal(np.linalg.inv(-found.found.hessian[m])))
        away = np.abs(found.found.points[m] - np.asarray(alone.mixture.means)[0]) / sds
        assert np.max(away) < 1e-6
        assert alone.prior == Fraction(1, len(sizes))


@pytest.mark.parametrize("count", [3, 20])
def test_several_modes_are_no_only_mode(count):
    rng = np.random.default_rng(2)
    rows = {"y": rng.normal(4.0, 1.0, size=10 * count)}
    assert not np.any(search(of_a_square, rows, [10] * count).fine)


def test_only_shards_with_several_modes_are_left_over():
    rng = np.random.default_rng(2)
    # The pool has the mode of the others.
    means = np.repeat([-2.0] * 23 + [6.0], 10)
    found = search(of_a_square, {"y": rng.normal(means, 1.0)}, [10] * 24)
    assert np.array_equal(np.flatnonzero(~found.fine), [23])
