"""Two runs of adaptive rounds have to agree before either is trusted."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from numpyro.distributions import constraints

from epvi.gaussian.mixture import Estimate, GaussianMixture
from epvi.gaussian.quasi_random import draw, log_density, uniform_points
from epvi.hub.product.result import ProductMixture
from epvi.hub.refine.adaptive import _around, begun, continued, kept_best
from epvi.hub.refine.agreement_of_runs import disagreement, wide
from epvi.hub.refine.pool import ScoredDraws
from epvi.hub.refine.step import Run, Step
from epvi.hub.trust.agreement import Accord, Agreement
from epvi.hub.trust.certify import Certificate
from epvi.hub.trust.importance import weigh
from epvi.hub.trust.propose import Proposal, _source
from epvi.hub.trust.reasons import Fault, Reason, Verdict
from epvi.parameters.space import Parameter, Space

NUM_DRAWS = 2048
# The parameters are all of θ as it is.
REAL = SimpleNamespace(exchangeable=(), parameters=())


def gaussian(mean, sds):
    return GaussianMixture.from_covariances(np.asarray([mean], float), np.diag(np.square(sds))[None])


@dataclasses.dataclass(frozen=True)
class Some:
    """As much of a posterior as adaptive rounds need."""

    product: ProductMixture
    step: object = None
    certificate: Certificate | None = None
    space: object = dataclasses.field(default_factory=lambda: REAL)
    fits: tuple = (None,)

    @property
    def mixture(self):
        return self.product.mixture


def some(mixture):
    return Some(ProductMixture(mixture, None, None, SimpleNamespace(ok=True)))


def scored(posterior, log_p, seed=0):
    """The answer to a round of draws, and the certificate that follows from it."""
    q, past = posterior.mixture, 0 if posterior.step is None else posterior.step.adapted
    source = _source(q, None, NUM_DRAWS, adapted=past > 0)
    points = uniform_points(NUM_DRAWS, q.dim + 1, (seed, past))
    parts = np.split(points, np.cumsum([count for count, _ in source.parts])[:-1])
    theta = np.concatenate([draw(part, u) for (_, part), u in zip(source.parts, parts, strict=True)])
    log_g = source.log_density(theta)
    proposal = Proposal(theta, source.parts[0][0], log_g, log_density(q, theta), q, 1, source)
    found = weigh(proposal, log_p(theta), q, posterior.space)
    even = found.ess > 100 and np.max(found.noise) < 0.1 and (found.k_hat < 0.7 or found.tail < 0.3)
    right = np.max(np.abs(found.shift)) < 0.05 and np.max(np.abs(found.sd_ratio - 1)) < 0.05
    verdict = (Verdict.TRUST if right and found.efficiency > 0.9 else Verdict.CORRECTED) if even else Verdict.NOT
    certificate = Certificate(
        verdict=verdict,
        text=verdict.value,
        corrects=even,
        ess=found.ess,
        efficiency=found.efficiency,
        k_hat=found.k_hat,
        mean_shift=0.0,
        mean_error=0.0,
        sd_ratios=(1.0, 1.0),
        elbo=found.elbo,
        log_evidence=found.log_evidence,
        doubt=0.0,
        agreement=Agreement(Accord.UNTESTED, "not tested.", ("1",), (1.0,)),
        theta=theta,
        weights=found.corrected,
        own=found.own,
        faults=() if even else (Fault(Reason.UNEVEN_WEIGHTS, "uneven"),),
    )
    return SimpleNamespace(proposal=proposal, log_p=log_p(theta)), certificate


def standard_normal(theta):
    return -0.5 * np.sum(theta**2, axis=1)


def ridge(theta):
    """A thin ridge x_i ≈ a², with a ~ N(0, 1.5²): its ends are far from its middle, and out of every straight line."""
    return -0.5 * (theta[:, 0] / 1.5) ** 2 - 2.0 * np.sum((theta[:, 1:] - theta[:, :1] ** 2) ** 2, axis=1)


def cascade(theta):
    """x_1 ~ N(1, 0.7²) and x_{i+1} ~ N(x_i², 0.3²): a thin ridge, on which most of the spread of x_3 is far out."""
    first = -0.5 * ((theta[:, 0] - 1) / 0.7) ** 2
    return first - 0.5 * np.sum(((theta[:, 1:] - theta[:, :-1] ** 2) / 0.3) ** 2, axis=1)


def rounds(log_p, posterior, seed=0):
    """All adaptive rounds, by hand."""
    answered, certificate = scored(posterior, log_p, seed)
    posterior = begun(dataclasses.replace(posterior, certificate=certificate), answered)
    firsts = []
    while posterior.step.waits:
        firsts.append(posterior.step.first is None)
        posterior = continued(posterior, *scored(posterior, log_p, seed))
    return posterior, firsts


@pytest.mark.usefixtures("untyped")
def test_runs_agree_if_their_weighted_draws_do():
    near, far = gaussian([0.3, 0.0], [1.2, 1.0]), gaussian([-0.2, 0.2], [0.9, 1.4])
    (answered, first), (_, second) = (scored(some(q), standard_normal) for q in (near, far))
    pool = ScoredDraws(answered.proposal.theta, answered.log_p, (answered.proposal.source,))
    assert disagreement((near, first), (far, second), pool, REAL) is None
    shifted = scored(some(far), lambda theta: standard_normal(theta - 0.3))[1]
    assert "runs of adaptive rounds differ by 0.3" in disagreement((near, first), (far, shifted), pool, REAL)
    larger = scored(some(far), lambda theta: standard_normal(theta / 1.3))[1]
    assert "in an sd" in disagreement((near, first), (far, larger), pool, REAL)
    heavier = dataclasses.replace(second, log_evidence=Estimate(second.log_evidence.value + 0.3, np.asarray(0.01)))
    assert "evidence" in disagreement((near, first), (far, heavier), pool, REAL)
    elsewhere = dataclasses.replace(pool, theta=pool.theta + 0.3)
    assert "all draws together" in disagreement((near, first), (far, second), elsewhere, REAL)


@pytest.mark.usefixtures("untyped")
def test_scales_are_compared_as_they_are_told():
    """Of log s, a fifth of the mass is far on the left, in one run or not: s itself hardly differs."""

    def scored_of_log(log_p):
        return scored(some(gaussian([0.0], [1.5])), log_p)

    def with_left_tail(theta, share):
        x = theta[:, 0]
        return np.logaddexp(-8 * x**2, np.log(share) - 2 * (x + 4) ** 2)

    (answered, one), (_, other) = (scored_of_log(lambda t, w=w: with_left_tail(t, w)) for w in (2e-3, 6e-3))
    pool = ScoredDraws(answered.proposal.theta, answered.log_p, (answered.proposal.source,))
    q = gaussian([0.0], [1.5])
    assert "in an sd" in disagreement((q, one), (q, other), pool, REAL)
    assert disagreement((q, one), (q, other), pool, Space((Parameter("s", (), constraints.positive),))) is None


@pytest.mark.usefixtures("untyped")
def test_the_second_run_begins_around_the_weighted_draws():
    q = gaussian([0.3, 0.0], [1.2, 1.0])
    around = wide(scored(some(q), standard_normal)[1])
    np.testing.assert_allclose(np.asarray(around.mean()), 0.0, atol=4 / np.sqrt(NUM_DRAWS))
    np.testing.assert_allclose(np.asarray(around.sd()), 3.0, rtol=0.1)


@pytest.mark.usefixtures("untyped")
def test_a_run_alone_is_not_trusted_and_a_confirmed_one_is():
    def heavy(theta):
        return -3.5 * np.log1p(np.sum(theta**2, axis=1) / 5)

    begin = some(gaussian([0.0, 0.0], [0.6, 0.6]))
    found, firsts = rounds(heavy, begin)
    assert found.certificate.verdict == Verdict.TRUST
    assert firsts[0]
    assert not firsts[-1]
    assert found.step.first is None
    assert found.step.pool is None
    answered, certificate = scored(begin, heavy)
    alone = begun(dataclasses.replace(begin, certificate=certificate), answered)
    alone = kept_best(alone, scored(alone, heavy)[1])
    assert alone.certificate.reasons == (Reason.RUNS_DIFFER,)
    assert alone.certificate.verdict == Verdict.NOT


@pytest.mark.usefixtures("untyped")
def test_a_run_is_not_trusted_before_its_surroundings_were_searched():
    begin = some(gaussian([0.0, 0.0], [1.2, 1.2]))
    answered, certificate = scored(begin, standard_normal)
    pool = ScoredDraws(answered.proposal.theta, answered.log_p, (answered.proposal.source,))
    found = _around(begin, Step(1, 1.0, 0.0), Run(begin.mixture, certificate, 0, pool), 1)
    assert certificate.verdict != Verdict.NOT
    cut = kept_best(found, scored(found, standard_normal)[1])
    assert cut.certificate.reasons == (Reason.RUNS_DIFFER,)
    counts = []
    while found.step.waits:
        counts.append(found.step.around)
        found = continued(found, *scored(found, standard_normal))
    assert counts == [1, 2, 3, 4, 5, 6]
    assert found.certificate is certificate
    assert found.mixture is begin.mixture


@pytest.mark.slow
@pytest.mark.usefixtures("untyped")
def test_a_cascade_is_right_or_not_trusted():
    x = np.random.default_rng(0).normal(1, 0.7, (1_000_000, 1))
    # E x_3 is E x_1⁴ + 0.3².
    x = np.concatenate([x, x**2, x**4 + 0.3**2], axis=1)
    found, _ = rounds(cascade, some(gaussian([1.0, 1.2, 1.5], [0.3, 0.4, 0.8])))
    mean = found.certificate.weights @ found.certificate.theta
    off = np.abs(mean - np.mean(x, axis=0)) / np.std(x, axis=0)
    assert found.certificate.verdict == Verdict.NOT or np.max(off) < 0.1


@pytest.mark.slow
@pytest.mark.usefixtures("untyped")
def test_a_long_thin_ridge_is_right_or_not_trusted():
    """Rounds creep along it: their weights become even long before its ends have any draws."""
    d, sd = 5, np.sqrt(2 * 1.5**4 + 0.25)
    for seed in range(2):
        found, _ = rounds(ridge, some(gaussian(np.zeros(d), np.full(d, 0.5))), seed)
        if found.certificate.verdict == Verdict.NOT:
            continue
        mean = found.certificate.weights @ found.certificate.theta
        assert np.max(np.abs(mean[1:] - 1.5**2)) < 0.2 * sd
