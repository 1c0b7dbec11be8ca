"""Answers of many parameters, which few Hessians give, against those with a Hessian at every base draw."""

import dataclasses
import functools
from fractions import Fraction

import numpy as np
import pytest

import epvi
from epvi.models import logistic, simulate_logistic
from epvi.site.derivatives.expansions_cache import ExpansionsCache
from epvi.site.derivatives.passes import programs_of
from epvi.site.derivatives.subposterior import Subposterior
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.windows import Windows
from epvi.site.tasks import score_many
from epvi.site.tasks.answers import Asking
from epvi.site.tasks.score import answer, answer_columns
from epvi.site.tasks.score_together import answer_together

LOGISTIC = epvi.Model(logistic)
SIZES = (3000, 1800)


@functools.cache
def rows():
    return simulate_logistic(sum(SIZES), 4, condition=20, seed=3)[0]


@functools.cache
def programs():
    return programs_of(LOGISTIC, rows())


def of_shard(m):
    start = sum(SIZES[:m])
    return {name: column[start : start + SIZES[m]] for name, column in rows().items()}


@functools.cache
def draws():
    inference = epvi.NVI(1, num_starts=4, num_draws=64)
    fits = [epvi.fit_shard(LOGISTIC, of_shard(m), f"{m + 1}/2", inference=inference) for m in range(2)]
    return epvi.combine(fits).ask(64, seed=1)


def asking(exact=False):
    made_of = draws().made_of
    return Asking(256, made_of, exact)


@functools.cache
def naive(m):
    """The answers with all rows at every draw."""
    sub = Subposterior.of(programs(), of_shard(m), Fraction(1, 2), 256)
    return answer(sub, draws(), m + 1, asking(exact=True))


@pytest.fixture
def many(monkeypatch):
    """As if these few parameters were many."""
    monkeypatch.setattr(score_many, "MANY", 1)
    monkeypatch.setattr(score_many, "_MOST_OPERATIONS", 0)


def check(made, m, rtol, *, exact=False):
    """`rtol`: of Hessians, relative to the largest entry of what they are scaled by, their diagonals."""
    right = naive(m)
    if exact:
        np.testing.assert_array_equal(made.errors, 0)
    # Rounding to float32 adds less than is told, and a constant.
    told = 1e-9 * np.abs(right.values) if exact else 5 * made.errors + 1e-7 * np.abs(right.values)
    assert np.all(made.errors < 1e-3)
    assert np.all(np.abs(made.values - right.values) < told)
    for ours, theirs in zip(made.centres, right.centres, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-6)
    np.testing.assert_allclose(made.rows.gradient, right.rows.gradient, rtol=1e-7, atol=1e-6)
    assert np.all(np.abs(made.moments.values - right.moments.values) < np.max(told))
    rounded = {"rtol": 1e-7, "atol": 1e-6} if exact else {"rtol": 1e-5, "atol": 1e-4}
    np.testing.assert_allclose(made.moments.gradient, right.moments.gradient, **rounded)
    unit = np.sqrt(np.abs(np.diagonal(right.moments.hessian[0])))
    off = (made.moments.hessian - right.moments.hessian) / np.outer(unit, unit)
    assert np.max(np.abs(off)) < rtol


@pytest.mark.slow
def test_one_shard_answers_as_with_a_hessian_at_every_draw(many):
    right = naive(0)
    made = answer_columns(programs(), of_shard(0), draws(), draws().shares[0], asking())
    check(made, 0, 0.02)
    # Outer products come from 8 rows per parameter here; the first is a scale, of which rows say nothing.
    ours, theirs = (one.rows.products[1:, 1:] for one in (made, right))
    unit = np.sqrt(np.diagonal(theirs))
    assert np.max(np.abs((ours - theirs) / np.outer(unit, unit))) < 1.0


def test_exact_answers_use_all_rows(many):
    right = naive(0)
    made = answer_columns(programs(), of_shard(0), draws(), draws().shares[0], asking(exact=True))
    check(made, 0, 0.01, exact=True)
    np.testing.assert_allclose(made.rows.products, right.rows.products, rtol=1e-7, atol=1e-6)


def test_shards_that_answer_together_answer_the_same(many):
    made = answer_together(programs(), rows(), SIZES, draws().shares, draws(), asking(), ExpansionsCache())
    for m, one in enumerate(made):
        check(one, m, 0.03)


def test_all_rows_are_used_where_a_subsample_lacks_influential_ones(many):
    """A column that is zero but in a few rows: its curvature comes from them alone."""
    rare = {"x": rows()["x"].copy(), "y": rows()["y"]}
    rare["x"][:, 3] = 0.0
    rare["x"][:6, 3] = 2.0
    sizes, shares = [sum(SIZES)], draws().shares
    windows = Windows.of(np.array(sizes), 512, sizes[0])
    each = Subposteriors(programs(), rare, windows, np.ones(1), np.ones(1))
    centre = draws().centres[:1]
    own = [score_many.Taylors(centre, *each.second_order(centre, np.zeros(1, int)))]
    few = score_many.ManyParameters(each, own, draws(), [shares[0].shard], np.ones(1), False)
    whole = dataclasses.replace(few, exact=True)
    np.testing.assert_allclose(few.moments()[0].hessian, whole.moments()[0].hessian)


def test_a_subsample_pays_only_where_remainders_are_small(many):
    sizes = np.array([sum(SIZES)])
    each = Subposteriors(programs(), rows(), Windows.of(sizes, 512, sum(SIZES)), np.ones(1), np.ones(1))
    assert score_many.sampling_pays(each, draws(), 1, 10.0)
    assert not score_many.sampling_pays(each, draws(), 1, 1e-6)
