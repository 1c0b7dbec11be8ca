"""The benchmark of costs measures what it says: references, outcomes and limits, and the script prints its table."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scaling
import scaling_methods
import scaling_reference
from newton import logistic_derivatives
from posteriors import Moments
from scaling_data import CROSSED, DENSE, GROUPS, INDICATORS, NUMERIC, RARE, Work
from scaling_methods import Answer
from scaling_race import Race, Racer, Result
from scaling_table import FAILED, MET, MISSED, OPEN, SHOWN, compared, judged, slope
from scipy.special import expit

from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.passes import programs_of

WORK = Work(DENSE, 1000, 2)
OURS, PEER = Racer(scaling_methods.EPVI, WORK, 4), Racer(scaling_methods.NEWTON, WORK)


def test_derivatives_are_those_of_the_log_likelihood():
    rows, w = Work(DENSE, 40, 3).rows(), np.array([0.3, -0.2, 0.5])

    def value(w):
        return jnp.sum(rows["y"] * (rows["x"] @ w) - jax.nn.softplus(rows["x"] @ w))

    with jax.enable_x64(True), promotion_allowed(), jax.numpy_rank_promotion("allow"):
        expected = jax.grad(value)(w), -jax.hessian(value)(w)
    for found, one in zip(logistic_derivatives(rows["x"], rows["y"], w), expected, strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-10)


def test_the_reference_of_a_regression_has_the_moments_of_a_grid():
    work = Work(DENSE, 30, 1)
    rows, w = work.rows(), np.linspace(-4, 6, 20_001)
    odds = rows["x"] @ w[None]
    density = np.exp(rows["y"] @ odds - np.sum(np.logaddexp(0, odds), axis=0) - w**2 / 2)
    density /= np.sum(density)
    mean = density @ w
    found = scaling_reference.reference(work).moments
    assert abs(found.mean[0] - mean) < 4 * found.mean_error[0] < 0.1 * found.sd[0]
    assert abs(found.sd[0] - np.sqrt(density @ (w - mean) ** 2)) < 4 * found.sd_error[0] < 0.2 * found.sd[0]


def test_a_reference_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = scaling_reference.cached(WORK)
    monkeypatch.setattr(scaling_reference, "reference", None)
    again = scaling_reference.cached(WORK)
    assert again.text == found.text
    assert again.moments.names == found.moments.names == ("w[0]", "w[1]")
    for one, other in zip(again.moments[1:], found.moments[1:], strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_reference_of_groups_integrates_every_group():
    work = Work(GROUPS, 60, 3)
    rows, padded = work.rows(), scaling_reference._padded(work)
    theta, other = np.array([-0.4, -0.5, 0.3, 0.1, -0.2, 0.0, 0.4]), np.array([-0.2, -0.3, 0.2, 0.2, -0.1, 0.1, 0.3])
    a = np.linspace(-8, 8, 4001)

    def naive(theta):
        loc, s, w = theta[0], np.exp(theta[1]), theta[2:]
        total = np.log(s) - s**2 / 2 - loc**2 / (2 * 3.0**2) - w @ w / 2
        means = []
        for g in range(3):
            here = rows["g"] == g
            p = expit((rows["x"][here] @ w)[:, None] + a)
            likelihood = np.prod(np.where(rows["y"][here][:, None] == 1, p, 1 - p), axis=0)
            joint = likelihood * np.exp(-((a - loc) ** 2) / (2 * s**2)) / s
            total += np.log(np.sum(joint) * (a[1] - a[0]))
            means.append(joint @ a / np.sum(joint))
        return total, np.array(means)

    with jax.enable_x64(True), promotion_allowed(), jax.numpy_rank_promotion("allow"):
        nodes = scaling_reference._nodes(padded, theta)
        for at in (theta, other):
            value, means, _ = scaling_reference._marginal(padded, nodes, at)
            expected, expected_means = naive(at)
            np.testing.assert_allclose(value, expected, atol=1e-4)
            np.testing.assert_allclose(means, expected_means, atol=1e-4)


@pytest.mark.parametrize("kind", [RARE, GROUPS, CROSSED])
def test_models_and_rows_of_a_kind_belong_together(kind):
    work = Work(kind, 400, 20)
    rows, again = work.rows(), Work(kind, 400, 20).rows()
    assert all(len(column) == 400 and np.array_equal(column, again[name]) for name, column in rows.items())
    space = programs_of(work.model(), rows).target.space
    shared = 2 + 5
    assert space.dim == {RARE: 1 + NUMERIC + INDICATORS, GROUPS: shared + 20, CROSSED: 10 + 2 * (20 + 2)}[kind]


def moments(sd=1.0, error=0.0):
    return Moments(("w[0]", "w[1]"), np.zeros(2), np.full(2, sd), np.full(2, error), np.full(2, error))


def outcome(ours, peer, most=2.0, reference=None, **asked):
    return compared((OURS, ours), (PEER, peer), most, reference or moments(), **asked).outcome


def test_a_target_is_met_in_time_with_a_verdict_and_right_sds():
    fit, peer = Result((1.0, 3.0, 2.0), Answer(moments(), verdict="trust", structure="Full")), Result((1.0,))
    assert compared((OURS, fit), (PEER, peer), 2.0, moments()).figure == "2x"
    assert outcome(fit, peer) == MET
    assert outcome(fit, peer, None) == SHOWN
    assert outcome(fit, peer, 1.9) == f"{MISSED}: time"
    assert outcome(fit, peer, reference=moments(1.05)) == f"{MISSED}: sds"
    assert outcome(fit, peer, reference=moments(1.05, 0.01)) == MET  # known to 1 % only
    cold = peer._replace(compiled=False)
    assert outcome(fit, cold) == OPEN
    assert outcome(fit, cold, 1.9) == f"{MISSED}: time"
    doubted = fit._replace(answer=Answer(moments(), verdict="do not trust", structure="Diagonal"))
    assert outcome(doubted, peer, full=True) == f"{MISSED}: verdict, structure"


def test_runs_that_fail_or_take_too_long_are_said_so():
    fit = Result((1.0,), Answer(moments(), verdict="trust"))
    failed, over = Result(failure="no"), Result(failure="no", over=300)
    assert outcome(failed, fit) == FAILED
    assert outcome(fit, failed) == SHOWN  # a missing peer
    assert outcome(over, fit) == f"{MISSED}: time"
    line = compared((OURS, fit), (PEER, over), 1 / 50, moments())
    assert (line.its_seconds, line.figure, line.outcome) == ("> 300", "< 0.00333x", MET)


def test_figures_are_judged_from_above_or_below():
    assert judged(0.95, 0.9, "x", at_least=True) == ("0.95x", ">= 0.9x", MET)
    assert judged(0.95, 0.9, "x") == ("0.95x", "<= 0.9x", MISSED)
    assert judged(math.nan, 0.9, "x")[2] == FAILED
    assert slope([1, 10, 100], [2, 2 * 10**0.5, 20]) == pytest.approx(0.5)
    assert slope([1, 10, 100], [2, math.nan, 20]) == pytest.approx(0.5)
    assert math.isnan(slope([1, 10], [math.nan, 20]))


@pytest.mark.slow
def test_the_table_has_a_line_for_every_target_and_goes_on_without_peers(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "scaling.csv"
    chosen = ["--only", "shards,groups", "--scale", "0.003", "--repeats", "1", "--limit", "200"]
    lines = scaling.main([*chosen, "--output", str(file)])
    assert [line.method for line in lines] == ["epvi, M = 2", "epvi, M = 2", "epvi, M = 20"]
    for line in lines:
        assert line.verdict in ("trust", "corrected weights")
        assert float(line.means_off) < 0.1
    assert len(file.read_text().splitlines()) == 1 + len(lines)
    printed = capsys.readouterr().out
    assert "groups: no size of it fits this many rows" in printed
    for line in lines[:2]:
        if line.its_seconds == "failed":
            assert f"{line.beside} on 3,000 x 18: sklearn is not installed: pip install 'epvi[bench]'" in printed


@pytest.mark.slow
def test_a_run_that_takes_too_long_is_ended_and_the_others_go_on():
    fits = [Racer(scaling_methods.EPVI, WORK, m) for m in (2, 3)]
    with Race(1, 60) as race:
        first = race.run(fits[:1])
        race._limit = 0.01
        assert race.run(fits[1:])[fits[1]].over == 0.01
        race._limit = 60
        again = race.run(fits[:1])
    for one in (first[fits[0]], again[fits[0]]):
        assert len(one.seconds) == 1
        assert one.compiled
