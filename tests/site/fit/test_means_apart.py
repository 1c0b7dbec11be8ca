"""The compiled Newton steps of the means, against the same steps in NumPy."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import epvi
from epvi.site.fit.mean_steps import FirstBound, Placed
from epvi.site.fit.means_apart import maximise
from epvi.site.fit.newton import Tolerances

PRECISION, SINGLE = Tolerances(1e-9, 1e-12), Tolerances(1e-6, 1e-6, 1e-9)
K, D = 3, 2


def bent(x, y=None):
    """A regression on a product of parameters: curved ridges, and two modes that differ in sign."""
    a = numpyro.sample("a", dist.Normal(0.0, 3.0))
    b = numpyro.sample("b", dist.Normal(0.0, 3.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(a * b * x + a, 0.5), obs=y)


@pytest.fixture(scope="module", params=[np.float64, np.float32], ids=str)
def subposterior(request):
    rng = np.random.default_rng(0)
    x = rng.normal(size=30)
    rows = {"x": x.astype(request.param), "y": (2.0 * x + 1.0 + 0.5 * rng.normal(size=30)).astype(request.param)}
    return epvi.subposterior(bent, rows, "1/2")


@pytest.mark.parametrize("structure", [epvi.Spherical(), epvi.Diagonal(), epvi.Full()], ids=str)
@pytest.mark.parametrize("max_steps", [1, 4, 60])
def test_it_takes_the_steps_of_the_plain_form(subposterior, structure, max_steps):
    means = np.array([[3.0, -1.0], [-2.0, 0.5], [0.2, 4.0]])
    covariances = 1e-4 * np.ones((K, *structure.packed_shape(D)))
    if structure == epvi.Full():
        covariances = 1e-4 * np.broadcast_to(np.eye(D), (K, D, D))
    bound = FirstBound(subposterior, structure.packing, covariances)
    placed = Placed.of(means, subposterior.full(means))
    single = subposterior.rows["x"].dtype == np.float32
    precision = SINGLE if single else PRECISION
    quick, plain = maximise(bound, placed, precision, max_steps), bound.maximise(placed, precision, max_steps)
    np.testing.assert_allclose(quick.means, plain.means, atol=1e-3 if single else 1e-8)
    np.testing.assert_allclose(quick.at.value, plain.at.value, rtol=1e-5 if single else 1e-10)
    if not single:
        np.testing.assert_allclose(quick.radii, plain.radii, rtol=1e-6)


def test_it_counts_its_passes_and_reports_them(subposterior):
    means = np.array([[3.0, -1.0], [-2.0, 0.5], [0.2, 4.0]])
    placed, before = Placed.of(means, subposterior.full(means)), subposterior.passes
    maximise(FirstBound(subposterior, epvi.Spherical().packing, np.full((K, 1), 1e-4)), placed, PRECISION, 3)
    # For each step a pass with derivatives and one at least without, and one at the start.
    assert subposterior.passes - before >= 7


def test_means_that_interact_end_at_the_maximum_of_l1(subposterior):
    means = np.array([[1.0, 2.0], [1.1, 1.9], [0.9, 2.1]])
    bound = FirstBound(subposterior, epvi.Spherical().packing, np.full((K, 1), 0.01))
    placed = Placed.of(means, subposterior.full(means))
    quick, plain = maximise(bound, placed, PRECISION, 60), bound.maximise(placed, PRECISION, 60)
    assert bound.value(quick.at.value, quick.means) == pytest.approx(bound.value(plain.at.value, plain.means), abs=1e-4)
