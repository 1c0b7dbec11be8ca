"""Log densities of groups by terms of higher order, and near modes in float32, against those of all rows."""

from fractions import Fraction

import numpy as np
import pytest
from some_groups import logistic_groups, rows_of_groups

import epvi
from epvi.gaussian.structures import WHOLE
from epvi.site.derivatives.averages import average_curve
from epvi.site.derivatives.expansion import Taylor
from epvi.site.derivatives.expansions import Taylors
from epvi.site.derivatives.group_effects import EffectSearch
from epvi.site.derivatives.integrated import IntegratedModel
from epvi.site.derivatives.near_modes import near_modes
from epvi.site.derivatives.passes import programs_of
from epvi.site.derivatives.smooth_remainder import SmoothRemainder, higher_terms, pays
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.windows import Windows
from epvi.site.rows.bundles import bundle, size_of_bundles

G, N, BATCH, SHARE = 24, 2400, 4, 0.25


@pytest.fixture(scope="module")
def groups():
    """The subposterior of logistic groups, its expansion at the mode, and draws of the Gaussian there."""
    rows, _ = rows_of_groups(N, G)
    model = epvi.Model(logistic_groups(G))
    found = EffectSearch(model.on(rows)).find(rows)
    made = bundle(found.codes, np.arange(N), size_of_bundles(np.bincount(found.codes)))
    columns = made.columns(rows)
    sub = Subposterior.of(programs_of(IntegratedModel(model, found.effects), columns), columns, Fraction(1, 2), 32)
    mode = np.array([0.5, 0.0, 0.4, -0.2])
    for _ in range(6):
        at = sub.full(mode[None])
        mode = mode - np.linalg.solve(at.hessian[0], at.gradient[0])
    at = sub.full(mode[None])
    whole = Taylor(float(at.value[0]), at.gradient[0], at.hessian[0])
    z = np.random.default_rng(1).normal(size=(200, 4))
    return sub, mode, whole, mode + z @ np.linalg.inv(np.linalg.cholesky(-whole.hessian))


@pytest.fixture(scope="module")
def smooth(groups):
    sub, mode, whole, _ = groups
    return SmoothRemainder(mode, whole, sub, higher_terms(sub, mode, whole, BATCH), SHARE)


def test_values_are_as_near_as_their_errors_say(groups, smooth):
    sub, mode, whole, theta = groups
    made, exact = smooth.near(theta, BATCH), sub.value(theta, BATCH)
    left = np.abs(exact - whole.at(theta - mode))
    errors = np.abs(made.value - exact)
    assert np.median(errors) < 0.1 * np.median(left)
    # The standard error stands for a sum of errors of the same sign over all shards.
    ratio = np.sqrt(np.mean((errors / made.error) ** 2)) / np.sqrt(SHARE)
    assert 0.3 < ratio < 3


def test_a_wrong_term_shows_in_the_errors(groups, smooth):
    *_, theta = groups
    wrong = smooth.higher._replace(third=smooth.higher.third + 0.3)
    bad = SmoothRemainder(smooth.centre, smooth.whole, smooth.rows, wrong, SHARE)
    assert np.median(bad.near(theta, BATCH).error) > 5 * np.median(smooth.near(theta, BATCH).error)


@pytest.mark.slow
def test_expected_derivatives(groups, smooth):
    sub, _, whole, theta = groups
    values, gradient, hessian = smooth.expected(theta[:64])
    exact = average_curve(sub, theta[:64], WHOLE, BATCH)
    scale = np.linalg.inv(np.linalg.cholesky(-whole.hessian))
    assert np.max(np.abs(scale @ (gradient - exact.gradient))) < 0.02
    assert np.max(np.abs(scale @ (hessian - exact.hessian) @ scale.T)) < 0.02
    np.testing.assert_allclose(values, exact.value, atol=0.3)


def test_no_terms_where_there_is_no_maximum(groups):
    sub, mode, whole, _ = groups
    assert higher_terms(sub, mode, whole._replace(hessian=-whole.hessian), BATCH) is None


def test_it_pays_where_subsamples_would_be_large(groups):
    sub, *_ = groups
    assert pays(sub, 2048, [])
    assert pays(sub, 256, [8])
    many = Subposterior(sub.programs, {k: np.repeat(x, 400, axis=0) for k, x in sub.rows.items()}, sub.prior, 32)
    assert not pays(many, 2048, [1])


@pytest.mark.slow
def test_values_near_modes(groups):
    sub, mode, _, theta = groups
    sizes = np.array([10, sub.num_rows - 10])
    each = Subposteriors(sub.programs, sub.rows, Windows.of(sizes, 32, int(sizes[1])), np.full(2, 0.25), np.ones(2))
    shards, points = np.array([0, 1]), np.stack([theta[:8], theta[8:16]])
    at = Taylors(np.tile(mode, (2, 1)), *each.second_order(np.tile(mode, (2, 1)), shards))
    found, error = near_modes(each, shards, at, points)
    np.testing.assert_allclose(found, each.value(points, shards), atol=0.01)
    assert np.all(error < 1e-3)
