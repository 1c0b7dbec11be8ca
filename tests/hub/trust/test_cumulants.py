"""What is said of single parameters where joint weights cannot judge: formulas against loops, and verdicts."""

from fractions import Fraction
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import epvi
from epvi.hub.trust.agreement import Accord, Agreement
from epvi.hub.trust.cumulants import Marginals, marginals_of
from epvi.hub.trust.importance import weigh
from epvi.hub.trust.linear_response import Response
from epvi.hub.trust.propose import Proposal, Source, base_of
from epvi.hub.trust.reasons import Verdict
from epvi.hub.trust.stationarity import step_of
from epvi.hub.trust.verdict import judge
from epvi.wire.answer import Expected
from epvi.wire.request import Asked

D, S = 150, 4096
# Posteriors and answers are stand-ins with only what a verdict reads.
pytestmark = pytest.mark.usefixtures("untyped")


def proposal_of(q, count, inflated=0, seed=0):
    rng = np.random.default_rng(seed)
    mean, root = np.asarray(q.mean()), np.linalg.cholesky(np.asarray(q.covariance()))
    theta = mean + rng.standard_normal((count + inflated, q.dim)) @ root.T
    theta[count:] = mean + 1.02 * (theta[count:] - mean)
    log_q = np.asarray(q.log_density(theta))
    return Proposal(theta, count, log_q, log_q, q, 1, Source(((len(theta), q),)))


def standard(d=D, structure=epvi.Full):
    covariances = np.eye(d)[None] if structure is epvi.Full else np.ones((1, d))
    return epvi.GaussianMixture.from_covariances(np.zeros((1, d)), covariances)


AGREED = Agreement(Accord.UNTESTED, "not tested.", ("1",), (1.0,))


def at_optimum(q):
    """Expectations under q where it has the highest ELBO: E ∇ log p = 0 and E ∇² log p = −Λ."""
    hessian = -np.linalg.inv(np.asarray(q.covariance()))
    return Expected(np.zeros((1, 2)), np.zeros((1, q.dim)), hessian[None])


def judged(log_ratio, q=None, count=S, moments=True, slopes=True, expected=None, skip=0):
    """The verdict on q where the log ratio log p − log q is this function of the draws."""
    q = standard() if q is None else q
    proposal = proposal_of(q, count, seed=skip)
    asked = Asked("", count, 1024, (0, skip), slopes)
    base = base_of(asked, q.dim)
    with jax.enable_x64(True):
        log_p = proposal.log_q + np.asarray(log_ratio(jnp.asarray(proposal.theta)))
        values = np.asarray(log_ratio(jnp.asarray(base))) - 0.5 * np.sum(base**2, axis=1)
        gradients = np.asarray(jax.grad(lambda points: jnp.sum(log_ratio(points)))(jnp.asarray(base))) - base
    best = at_optimum(q)
    answered = SimpleNamespace(
        proposal=proposal,
        log_p=log_p,
        doubt=np.zeros(count),
        moments=Expected(values[None], *(expected or (best.gradient, best.hessian))) if moments else None,
        slopes=gradients if slopes else None,
        scores=(SimpleNamespace(asked=asked),),
    )
    made_of = SimpleNamespace(flat_prior=False, unaligned=())
    fit = SimpleNamespace(
        prior=Fraction(1), shard=1, num_shards=1, is_stand_in=False, stands_alone=True, made_of=made_of
    )
    posterior = SimpleNamespace(mixture=q, fits=[fit], space=epvi.Space(()))
    return judge(posterior, answered, weigh(proposal, log_p, q, posterior.space), AGREED, False, True)


def coupled(size):
    """A log ratio of many weak couplings of three parameters each, with variance `size`."""

    def log_ratio(theta):
        terms = theta * jnp.roll(theta, 1, axis=1) * jnp.roll(theta, 2, axis=1)
        return jnp.sqrt(size / theta.shape[1]) * jnp.sum(terms, axis=1)

    return log_ratio


def test_the_estimates_are_the_cumulants_written_as_loops():
    rng = np.random.default_rng(1)
    factor = rng.normal(size=(3, 3))
    q = epvi.GaussianMixture.from_covariances(rng.normal(size=(1, 3)), (factor @ factor.T + np.eye(3))[None])
    proposal = proposal_of(q, 40, inflated=5)
    log_p = proposal.log_q + 0.3 * rng.normal(size=45)
    found = marginals_of(proposal, log_p, q)
    sd = np.sqrt(np.diag(q.covariance()))
    ratio = [log_p[s] - proposal.log_q[s] for s in range(40)]
    for i in range(3):
        z = [(proposal.theta[s, i] - float(q.mean()[i])) / sd[i] for s in range(40)]
        hermite = [z, [(x**2 - 1) / 2**0.5 for x in z], [(x**3 - 3 * x) / 6**0.5 for x in z]]
        hermite.append([(x**4 - 6 * x**2 + 3) / 24**0.5 for x in z])
        r = np.array(ratio) - np.mean(ratio)
        for h, total, error, first, first_error in (
            (hermite[0], found.shift[i], found.shift_error[i], found.shape[0, i], found.shape_error[0, i]),
            (
                hermite[1],
                found.change[i] * 2**0.5,
                found.change_error[i] * 2**0.5,
                found.shape[1, i],
                found.shape_error[1, i],
            ),
        ):
            centred = np.array(h) - np.mean(h)
            plain = np.mean(centred * r) + 0.5 * np.mean(centred * r * r)
            assert total == pytest.approx(plain, abs=1e-13)
            assert first == pytest.approx(np.mean(centred * r), abs=1e-13)
            both = centred * (r + 0.5 * (r**2 - np.mean(r**2)))
            assert error == pytest.approx(np.std(both, ddof=1) / np.sqrt(40), rel=1e-9)
            assert first_error == pytest.approx(np.std(centred * r, ddof=1) / np.sqrt(40), rel=1e-9)
        for k in (2, 3):
            centred = np.array(hermite[k]) - np.mean(hermite[k])
            assert found.shape[k, i] == pytest.approx(np.mean(centred * r), abs=1e-13)
    assert found.num_draws == 40


def test_the_series_finds_shifted_means_and_other_sds():
    # log p is that of independent N(δ, s²): the neglected terms are of the third order in δ and s − 1.
    shift, scale = np.array([0.05, -0.03, 0.0, 0.1]), np.array([1.0, 1.04, 0.95, 1.02])
    q = standard(4)
    proposal = proposal_of(q, 200_000)
    log_p = np.sum(-0.5 * ((proposal.theta - shift) / scale) ** 2 - np.log(scale), axis=1)
    found = marginals_of(proposal, log_p, q)
    assert np.all(np.abs(found.shift - shift) < 5 * found.shift_error + 0.003)
    exact = 0.5 * (scale**2 + shift**2 - 1)
    assert np.all(np.abs(found.change - exact) < 5 * found.change_error + 0.003)


def test_only_parameters_that_clearly_differ_count():
    rng = np.random.default_rng(2)
    error = np.full(1000, 0.2)
    found = Marginals(
        shift=0.2 * rng.standard_normal(1000),
        shift_error=error,
        change=0.05 + 0 * error,
        change_error=0.01 + 0 * error,
        shape=np.zeros((4, 1000)),
        shape_error=np.ones((4, 1000)),
        num_draws=1000,
        skewness=0.0,
        excess=0.0,
    )
    assert found.unlike(0.1) == 0
    found.shape[2, 7] = 6.2
    found.shift[9] = 1.4
    assert found.unlike(0.1) == 2
    found.change[11] = 0.3
    none, nothing = np.zeros((3, 1000)), np.zeros(1000)
    told = Response(none, none, np.where(np.arange(1000) == 11, 0.4, 0.0), nothing, nothing)
    assert found.unlike(0.1) == 3
    assert found.less(told).unlike(0.1) == 2


def test_means_and_sds_are_trusted_where_weights_are_uneven_by_dimension_alone():
    made = judged(coupled(4.0))
    assert made.verdict is Verdict.MARGINALS
    assert made.verdict.status_code.ok
    assert not made.corrects
    assert not made.faults
    assert "joint weights cannot judge 150 parameters" in made.text
    # κ(z², r, r)/4 for a sum of products of three, each parameter in three of them with the same coefficient.
    assert made.scales == pytest.approx(np.full(D, np.sqrt(1 / (1 - 3 * 4.0 / D))), rel=0.02)


def test_correct_weights_that_are_vague_give_way_to_single_parameters():
    assert judged(coupled(1.0)).verdict is Verdict.MARGINALS
    assert judged(coupled(1.0), slopes=False).verdict is Verdict.CORRECTED
    assert judged(coupled(0.05)).verdict is Verdict.TRUST


def one_is_skewed(theta):
    return coupled(4.0)(theta) + 0.8 * (theta[:, 7] ** 3 - 3 * theta[:, 7]) / 6**0.5 - 0.05 * theta[:, 7] ** 4


def funnel(theta):
    # Effects whose scale is the exponential of the first parameter.
    rest, log_scale = theta[:, 1:60], 0.3 * theta[:, 0]
    inner = 0.5 * jnp.sum(rest**2 * (1 - jnp.exp(-2 * log_scale[:, None])), axis=1) - rest.shape[1] * log_scale
    return coupled(2.0)(theta) + inner


def heavy(theta):
    return coupled(2.0)(theta) + jnp.sum(theta[:, :20] ** 2, axis=1) ** 2 / 150


def far_from_gaussian(theta):
    return coupled(25.0)(theta)


@pytest.mark.parametrize("log_ratio", [one_is_skewed, funnel, heavy, far_from_gaussian])
@pytest.mark.parametrize("seeds", [(0,), pytest.param((1, 2), marks=pytest.mark.slow)])
def test_what_is_wrong_about_parameters_is_not_trusted(log_ratio, seeds):
    for seed in seeds:
        assert judged(log_ratio, skip=seed).verdict is Verdict.NOT


@pytest.mark.parametrize("wrong", ["means", "sds"])
def test_means_or_sds_that_are_all_a_little_off_are_not_trusted(wrong):
    _, gradient, hessian = at_optimum(standard())
    if wrong == "means":
        made = judged(
            lambda theta: coupled(2.0)(theta) + 0.1 * jnp.sum(theta, axis=1), expected=(gradient + 0.1, hessian)
        )
    else:
        made = judged(
            lambda theta: coupled(2.0)(theta) + 0.05 * jnp.sum(theta**2, axis=1),
            expected=(gradient, 0.9 * hessian),
        )
    assert made.verdict is Verdict.NOT
    assert "expected gradients and Hessians would move a mean by" in made.text


def test_without_curvature_between_parameters_or_with_few_of_them_nothing_is_said_of_marginals():
    diagonal = judged(coupled(4.0), q=standard(structure=epvi.Diagonal))
    unasked = judged(coupled(4.0), moments=False)
    without = judged(coupled(4.0), slopes=False)
    few = judged(coupled(6.0), q=standard(20))
    for made in (diagonal, unasked, without, few):
        assert made.verdict is Verdict.NOT
        assert "too uneven to correct it" in made.text


def test_what_a_step_would_change_is_that_of_newton_s_method():
    rng = np.random.default_rng(0)
    a, b = (x @ x.T + np.eye(6) for x in rng.normal(size=(2, 6, 8)))
    q = epvi.GaussianMixture.from_covariances(rng.normal(size=(1, 6)), a[None])
    gradient = rng.normal(size=6)
    found = step_of(q, Expected(np.zeros((1, 2)), gradient[None], -b[None]))
    sd = np.sqrt(np.diag(a))
    assert found.shift == pytest.approx(np.max(np.abs(np.linalg.solve(b, gradient)) / sd))
    assert found.change == pytest.approx(np.max(np.abs(np.sqrt(np.diag(np.linalg.inv(b))) / sd - 1)))
    assert step_of(q, Expected(np.zeros((1, 2)), gradient[None], b[None])) == (np.inf, np.inf)


@pytest.mark.parametrize("wrong", ["mean", "sd"])
def test_a_single_wrong_mean_or_sd_is_seen_by_expected_derivatives(wrong):
    """Too small a fault for cumulants of the log ratios, whose errors are as large."""
    _, gradient, hessian = at_optimum(standard())
    if wrong == "mean":
        gradient[0, 7] = 0.1
    else:
        hessian[0, 7, 7] *= 1.1
    made = judged(coupled(4.0), expected=(gradient, hessian))
    assert made.verdict is Verdict.NOT
    assert "expected gradients and Hessians would move a mean by" in made.text
    assert [fault.reason for fault in made.faults] == ["uneven-weights"]


def test_impossible_draws_give_no_estimates():
    proposal = proposal_of(standard(3), 20)
    assert marginals_of(proposal, np.where(np.arange(20) == 3, -np.inf, proposal.log_q), standard(3)) is None
    assert marginals_of(proposal, proposal.log_q + 1, standard(3)) is None


def many(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


@pytest.mark.slow
def test_a_fit_of_many_parameters_with_few_rows_for_each_ends_in_trusted_means_and_sds(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((480, 160))
    y = (rng.uniform(size=480) < 1 / (1 + np.exp(-x @ rng.standard_normal(160) / 160**0.5))).astype(int)
    posterior = epvi.fit(epvi.Model(many), {"x": x, "y": y}, 2, executor=1, seed=0)
    assert posterior.certificate.verdict in (Verdict.MARGINALS, Verdict.CORRECTED)
    again = epvi.load(posterior.save(tmp_path / "posterior.epvi"))
    assert again.certificate.verdict is posterior.certificate.verdict
    assert again.status.ok
