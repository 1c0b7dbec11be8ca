"""Deliberate faults: each moves the posterior, and the certificate says so and names it where it can."""

import dataclasses
import re
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.integrate import quad
from scipy.stats import norm
from sentences import refused

import epvi
from epvi.hub.posterior.multiplied import multiplied
from epvi.models import logistic, simulate_logistic
from epvi.run.rounds import Rounds, run_rounds

TRUST, CORRECTED, NOT = "trust", "trust with corrected weights", "do not trust"


def line(x, y=None):
    """A prior that tells about as much as the rows below do."""
    theta = numpyro.sample("theta", dist.Normal(0.0, 0.1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ theta, 1.0), obs=y)


def square(y, z):
    """θ² is known and the sign of θ is not, but for the prior; b are ordinary."""
    theta = numpyro.sample("theta", dist.Normal(0.15, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([z.shape[1]]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(theta**2, 1.0), obs=y)
        numpyro.sample("z", dist.Normal(b, 1.0).to_event(1), obs=z)


class Moments(NamedTuple):
    mean: np.ndarray
    sd: np.ndarray

    def away(self, other):
        """By how many of the other's sds means are away from it at most."""
        return float(np.max(np.abs(self.mean - other.mean) / other.sd))


def moments(posterior):
    return Moments(np.asarray(posterior.mixture.mean()), np.asarray(posterior.mixture.sd()))


def corrected(posterior, certificate):
    found = posterior.with_certificate(certificate).summary()
    return Moments(found.mean, found.sd)


def dealt(rows, num):
    """The rows in `num` parts."""
    n = len(next(iter(rows.values())))
    return [{name: column[m * n // num : (m + 1) * n // num] for name, column in rows.items()} for m in range(num)]


def product_of(fits):
    """Without the refusals of `epvi.combine`."""
    return epvi.Posterior(*multiplied(sorted(fits, key=lambda fit: fit.shard), None, 0))


@dataclasses.dataclass(frozen=True)
class Study:
    """A model and the rows of every site."""

    model: epvi.Model
    parts: list

    def fit(self, m, **settings):
        return epvi.fit_shard(self.model, self.parts[m - 1], f"{m}/{len(self.parts)}", **settings)

    def fits(self, **settings):
        return [self.fit(m, **settings) for m in range(1, len(self.parts) + 1)]

    def scores(self, draws, scoring=None):
        return [
            epvi.score(self.model, self.parts[s.shard - 1], draws, f"{s.shard}/{s.num_shards}") for s in draws.shares
        ]

    def certificate(self, posterior, **settings):
        return epvi.certify(posterior, self.scores(posterior.ask(moments=False, seed=0)), **settings)

    def refined(self, posterior):
        """As `epvi.fit` does it."""
        return run_rounds(posterior, self.scores, Rounds(True, 3), jax.random.key(0))

    def with_rows(self, m, rows):
        return Study(self.model, [*self.parts[: m - 1], rows, *self.parts[m:]])


LINE = epvi.Model(line)


def lines(scale=1.0, correlation=0.0):
    """200 rows in eight parts, and the exact posterior of all of them."""
    rng = np.random.default_rng(0)
    x = scale * rng.normal(size=(200, 2))
    x[:, 1] = correlation * x[:, 0] + np.sqrt(1 - correlation**2) * x[:, 1]
    y = x @ np.array([1.0, -0.5]) + rng.normal(size=200)
    covariance = np.linalg.inv(x.T @ x + np.eye(2) / 0.1**2)
    exact = Moments(covariance @ x.T @ y, np.sqrt(np.diagonal(covariance)))
    return Study(LINE, dealt({"x": x, "y": y}, 8)), exact


@pytest.fixture(scope="module")
def line_study():
    study, exact = lines()
    fits = study.fits()
    assert moments(product_of(fits)).away(exact) < 1e-6
    assert study.certificate(product_of(fits)).verdict == TRUST
    return study, exact, fits


def copied(fits, source, target):
    """The fit of one shard in the place of another's."""
    copy = dataclasses.replace(fits[source - 1], shard=target, label=fits[target - 1].label)
    return [*fits[: target - 1], copy, *fits[target:]]


def test_a_fit_that_was_copied_under_another_number_is_refused_when_its_site_scores_its_own_rows(line_study):
    study, exact, fits = line_study
    bad = product_of(copied(fits, 1, 5))
    assert moments(bad).away(exact) > 0.2
    refused(lambda: epvi.combine(bad.fits), "shard 1 of 8 and shard 5 of 8 were fitted to the same rows")
    refused(lambda: study.certificate(bad), "shard 5 of 8 scored 25 other rows than the 25 that were fitted")


def test_without_hashes_of_rows_honest_scores_mend_a_fit_that_was_copied(line_study):
    study, exact, fits = line_study
    fits = [dataclasses.replace(fit, made_of=dataclasses.replace(fit.made_of, rows="")) for fit in fits]
    bad = product_of(copied(fits, 1, 5))
    assert moments(bad).away(exact) > 0.2
    certificate = study.certificate(bad)
    assert certificate.verdict == CORRECTED
    assert corrected(bad, certificate).away(exact) < 0.1


@pytest.mark.parametrize(
    ("told", "share"),
    [
        ("hash", "1/8"),
        pytest.param("hash", "0", marks=pytest.mark.slow),
        ("scores", "1/8"),
        pytest.param("gradients", "1/8", marks=pytest.mark.slow),
    ],
)
def test_a_site_that_fits_and_scores_the_rows_of_another_is_named(line_study, told, share):
    study, exact, fits = line_study
    study = study.with_rows(5, study.parts[0])
    # Somebody carries the share that the copy does not.
    others = [*fits[:4], *fits[5:7], study.fit(8, prior="1/8" if share == "1/8" else "2/8")]
    bad = product_of([*others, study.fit(5, prior=share)])
    assert moments(bad).away(exact) > 0.2
    scores = study.scores(bad.ask(moments=False, seed=0))
    if told != "hash":
        scores = [dataclasses.replace(one, made_of=dataclasses.replace(one.made_of, rows="")) for one in scores]
    if told == "gradients":
        # Tall shards score parts of their rows, each its own.
        noise = 1e-3 * np.random.default_rng(0).normal(size=(len(scores), 2048))
        scores = [
            dataclasses.replace(one, values=one.values + e, errors=np.full(2048, 1e-3), exact=False)
            for one, e in zip(scores, noise, strict=True)
        ]
    certificate = epvi.certify(bad, scores)
    assert certificate.verdict == NOT
    assert "shard 1 of 8 and shard 5 of 8 have scored the same rows" in certificate.text
    assert "same-rows" in certificate.reasons


def test_shards_of_one_table_may_hold_the_same_values():
    part = lines()[0].parts[0]
    rows = {name: np.concatenate([column] * 8) for name, column in part.items()}
    with ThreadPoolExecutor(1) as executor:
        posterior = epvi.fit(LINE, rows, 8, shuffle=False, executor=executor)
    assert len({fit.made_of.rows for fit in posterior.fits}) == 1
    assert posterior.certificate.verdict == TRUST


def test_a_shard_that_was_lost_with_its_rows_and_its_share_is_named(line_study):
    study, exact, fits = line_study
    bad = product_of(fits[:7])
    assert moments(bad).away(exact) > 0.2
    certificate = study.certificate(bad)
    assert certificate.verdict == NOT
    assert "sum to 7/8" in certificate.text
    assert "the rows of shard 8 are missing" in certificate.text
    assert certificate.reasons[:2] == ("prior-shares", "missing-rows")
    # Accepting the rows' loss does not make up for the prior's.
    assert study.certificate(bad, accept_missing=True).verdict == NOT


def test_a_shard_that_was_lost_with_its_rows_alone_is_named(line_study):
    study, exact, fits = line_study
    bad = epvi.combine([*fits[:2], study.fit(3, prior="2/8"), *(fit for fit in fits[3:] if fit.shard != 5)])
    assert moments(bad).away(exact) > 0.2
    certificate = study.certificate(bad)
    assert certificate.verdict == NOT
    assert "the rows of shard 5 are missing" in certificate.text
    assert certificate.reasons == ("missing-rows",)
    assert study.certificate(bad, accept_missing=True).verdict == TRUST


def test_a_share_of_the_prior_that_was_lost_is_named(line_study):
    study, exact, fits = line_study
    bad = product_of([*fits[:7], study.fit(8, prior=0)])
    assert moments(bad).away(exact) > 0.2
    certificate = study.certificate(bad)
    assert certificate.verdict == NOT
    assert "sum to 7/8" in certificate.text


def test_a_prior_that_was_not_fractioned_is_not_trusted(line_study):
    study, exact, _ = line_study
    bad = product_of([dataclasses.replace(fit, prior=Fraction(1, 8)) for fit in study.fits(prior=1)])
    assert moments(bad).away(exact) > 0.2
    assert study.certificate(bad).verdict == NOT
    refined = study.refined(bad)
    assert refined.certificate.verdict == TRUST
    assert moments(refined).away(exact) < 0.05


def test_spherical_fits_of_a_correlated_posterior_are_not_trusted():
    study, exact = lines(5.0, 0.98)
    bad = product_of(study.fits(inference=epvi.NVI(1, epvi.Spherical())))
    # The 5 % quantiles move.
    assert 1.645 * np.min(np.abs(moments(bad).sd / exact.sd - 1)) > 0.2
    certificate = study.certificate(bad)
    assert certificate.verdict == NOT
    assert "too uneven" in certificate.text
    assert certificate.reasons == ("uneven-weights",)


@pytest.mark.slow
def test_a_site_with_flipped_labels_is_named():
    rows, _ = simulate_logistic(600, 3, intercept=True, seed=1)
    study = Study(epvi.Model(logistic), dealt(rows, 6))
    good = epvi.combine(study.fits())
    third = study.parts[2]
    flipped = study.with_rows(3, {"x": third["x"], "y": 1 - third["y"]})
    bad = epvi.combine([*good.fits[:2], flipped.fit(3), *good.fits[3:]])
    assert moments(bad).away(moments(good)) > 0.2
    healthy = study.certificate(good)
    assert healthy.verdict == CORRECTED
    assert healthy.agreement.verdict == "the shards agree"
    assert "disagree" not in str(healthy)
    # The posterior of these rows can be had; who reads the first line alone still sees that a site disagrees.
    refined = flipped.refined(bad)
    for certificate in (flipped.certificate(bad), refined.certificate):
        assert certificate.agreement.verdict == "the shards disagree"
        assert certificate.agreement.flagged == ("3 of 6",)
        assert "shard 3 of 6 disagrees with the others" in str(certificate).splitlines()[0]
        assert "posterior.conflict()" in str(certificate).splitlines()[1]
        assert not certificate.agreement.status.ok
        assert certificate.to_json()["agreement"]["flagged"] == ["3 of 6"]
        assert set(certificate.reasons) <= {"uneven-weights"}
    assert refined.certificate.verdict in (TRUST, CORRECTED)
    assert refined.status.ok
    assert "shard 3 of 6 disagrees" in repr(refined)
    assert "shard 3 of 6" in bad.conflict().status.text


class TwoModes(NamedTuple):
    """A study whose posterior has two modes in θ, its product of fits, and the true mass where θ > 0."""

    study: Study
    good: epvi.Posterior
    mass: float

    def right(self, mixture):
        """The mass where θ > 0."""
        axis = mixture.marginal([self.coordinate])
        return float(np.asarray(mixture.weights) @ norm.cdf((axis.means * np.ravel(axis.roots)[:, None])[:, 0]))

    @property
    def coordinate(self):
        return self.good.space.slices["theta"].start

    def without(self, sign):
        """The posterior without its components on one side."""
        q = self.good.mixture
        kept = np.asarray(q.means)[:, self.coordinate] * sign < 0
        weights = np.asarray(q.weights)[kept]
        cut = epvi.GaussianMixture(
            np.log(np.maximum(weights / np.sum(weights), 1e-300)),
            np.asarray(q.means)[kept],
            np.asarray(q.roots)[kept],
            q.structure,
        )
        return dataclasses.replace(self.good, product=dataclasses.replace(self.good.product, mixture=cut))


@pytest.fixture(scope="module", params=[(2, 3), pytest.param((10, 8), marks=pytest.mark.slow)], ids=["d = 2", "d = 10"])
def two_modes(request):
    d, num_shards = request.param
    rng = np.random.default_rng(3)
    y, z = 1.2**2 + rng.normal(size=800), 0.3 + rng.normal(size=(800, d - 1))
    study = Study(epvi.Model(square), dealt({"y": y, "z": z}, num_shards))

    def density(theta):
        return np.exp(-0.5 * np.sum((y - theta**2) ** 2 - (y - 1.2**2) ** 2) - 0.5 * (theta - 0.15) ** 2)

    sides = [quad(density, *ends, points=[peak])[0] for ends, peak in (((-3, 0), -1.2), ((0, 3), 1.2))]
    made = TwoModes(study, product_of(study.fits()), sides[1] / sum(sides))
    assert study.certificate(made.good).verdict == TRUST
    return made


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_mode_that_the_product_dropped_is_missed(two_modes, sign):
    study, good, mass = two_modes
    bad = two_modes.without(sign)
    assert abs(two_modes.right(good.mixture) - mass) < 0.01
    assert moments(bad).away(moments(good)) > 0.2
    certificate = study.certificate(bad)
    assert certificate.verdict == NOT
    share = re.search(r"lacks a mode .* about (\d+)% of the mass", certificate.text)
    assert int(share[1]) == pytest.approx(100 * (mass if sign > 0 else 1 - mass), abs=3)


def test_refinement_brings_a_mode_back_that_the_product_dropped(two_modes):
    study, good, mass = two_modes
    refined = study.refined(two_modes.without(1))
    assert refined.certificate.verdict == TRUST
    assert two_modes.right(refined.mixture) == pytest.approx(mass, abs=0.02)
    assert moments(refined).away(moments(good)) < 0.05


def test_a_shard_with_one_component_that_takes_a_mode_from_the_others_is_not_trusted(two_modes):
    study, good, _ = two_modes
    single = study.fit(3, inference=epvi.NVI(1))
    bad = product_of([*good.fits[:2], single, *good.fits[3:]])
    assert moments(bad).away(moments(good)) > 0.2
    certificate = study.certificate(bad)
    assert certificate.verdict == NOT
    assert "lacks a mode" in certificate.text
    assert "lost-mode" in certificate.reasons
