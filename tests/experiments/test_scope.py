"""docs/scope.md: the limits that the paper names, each against a posterior that is known exactly."""

import types
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scope_cases as cases
from numpyro.contrib.hsgp.approximation import hsgp_squared_exponential
from scope_cases import Exact
from sentences import refused

import epvi
from epvi.hub.trust import verdict
from epvi.hub.trust.reasons import Fault, Reason, Verdict

# Corrected summaries come from about 2,000 draws: a mean is known to 0.02 sds, an sd to two per cent.
MEAN, SD = 0.06, 0.06


def fitted(model, rows, shards, **settings):
    with ThreadPoolExecutor(1) as executor:
        return epvi.fit(model, rows, shards, executor=executor, progress=False, **settings)


def errors(posterior, exact, **of):
    """Of the means in exact sds, and of the sds as ratios."""
    found = posterior.summary(**of)
    return np.abs(found.mean - exact.mean) / exact.sd, found.sd / exact.sd


def assert_near(posterior, exact, mean=MEAN, sd=SD, **of):
    away, ratios = errors(posterior, exact, **of)
    assert np.max(away) < mean
    assert np.max(np.abs(ratios - 1)) < sd


@pytest.mark.slow
def test_a_switch_of_single_rows_is_summed_out_exactly():
    rows = cases.simulate_signal(300, seed=0)
    targets = [epvi.Model(function).on(rows) for function in (cases.signal, cases.signal_by_hand)]
    with jax.enable_x64(True):
        one, other = (jax.jit(target.log_likelihood)(np.array([0.3, 1.5]), rows) for target in targets)
    np.testing.assert_allclose(one, other, rtol=1e-12)
    *_, exact = cases.exact_signal(rows)
    posterior = fitted(epvi.Model(cases.signal), rows, 3, inference=epvi.NVI(1))
    assert posterior.certificate.verdict != Verdict.NOT
    assert_near(posterior, exact)


def chosen(x, y):
    used = numpyro.sample("used", dist.Bernoulli(0.5))
    cases.linear(x, y, used)


def test_a_switch_of_all_rows_is_refused_with_the_remedy():
    """That the evidence is the exact one, tests/hub/trust/test_certify.py says."""
    rows = cases.simulate_linear(60, 0.0, [1.0, 1.0], seed=0)
    refused(lambda: epvi.Model(chosen).on(rows), r"'used' is shared by all rows.* weigh the fits by .*log_evidence")


def test_a_switch_that_only_priors_depend_on_can_be_summed_out_by_hand():
    def spike_and_slab(x, y):
        parts = dist.Normal(0.0, jnp.array([0.1, 3.0]))
        with numpyro.plate("columns", 2):
            w = numpyro.sample("w", dist.MixtureSameFamily(dist.Categorical(jnp.array([0.5, 0.5])), parts))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    rows = cases.simulate_linear(20, 0.0, [1.0, 1.0], seed=0)
    target = epvi.Model(spike_and_slab).on(rows)
    w = np.array([0.05, -1.0])
    densities = [0.5 * np.exp(-0.5 * (w / s) ** 2) / (s * np.sqrt(2 * np.pi)) for s in (0.1, 3.0)]
    with jax.enable_x64(True):
        assert float(jax.jit(target.log_prior)(w)) == pytest.approx(np.sum(np.log(sum(densities))), rel=1e-10)


@pytest.mark.slow
def test_a_simplex_with_an_empty_category_is_the_dirichlet_once_refined():
    rows = {"y": np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [596, 4, 0]))}
    exact = cases.exact_proportions(rows, 3)
    model = epvi.Model(cases.proportions, num_categories=3)
    settings = {"inference": epvi.NVI(1)}
    away, ratios = errors(fitted(model, rows, 4, certify=False, **settings), exact)
    assert np.max(away) > 0.3
    assert np.max(ratios) > 1.2
    # The tail towards the edge is heavier than any Gaussian's, which adaptive rounds mend.
    beside_many = {"y": np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [400, 200, 0]))}
    for one in (rows, beside_many):
        exact = cases.exact_proportions(one, 3)
        posterior = fitted(model, one, 4, **settings)
        assert posterior.certificate.verdict in (Verdict.TRUST, Verdict.CORRECTED)
        assert_near(posterior, exact)
        by_quantiles = fitted(epvi.Model(cases.sticks, num_categories=3), one, 4, **settings)
        assert by_quantiles.certificate.verdict in (Verdict.TRUST, Verdict.CORRECTED)
        assert_near(by_quantiles, exact, of=cases.proportions_of_sticks)


def test_breaks_of_the_stick_by_quantiles_have_the_prior_of_the_dirichlet():
    u = np.random.default_rng(0).normal(size=(100_000, 3))
    p = cases.proportions_of_sticks({"u": u})["p"]
    np.testing.assert_allclose(np.sum(p, axis=1), 1.0, rtol=1e-12)
    # Under Dirichlet(1, 1, 1, 1): means 1/4, covariances -1/80 and 3/80.
    np.testing.assert_allclose(np.mean(p, axis=0), 0.25, atol=4 * 0.194 / np.sqrt(len(u)))
    np.testing.assert_allclose(np.cov(p.T), (4 * np.eye(4) - 1) / 80, atol=0.001)


@pytest.mark.slow
def test_a_function_by_a_basis_is_the_gaussian_process_of_all_rows():
    rows, at = cases.simulate_smooth(300, seed=0), np.linspace(-1, 1, 21)
    exact, evidence = cases.exact_smooth(rows, 0.25, at)
    posterior = fitted(epvi.Model(cases.smooth, length=0.25, size=25), rows, 3, inference=epvi.NVI(1))
    basis = cases.features(at, 0.25, 25, np)
    assert posterior.certificate.verdict == Verdict.TRUST
    # The basis is as fine as this; the posterior of its weights is exact.
    assert_near(posterior, exact, mean=0.01, sd=0.01, of=lambda draws: {"f": draws["beta"] @ basis.T})
    found = posterior.certificate.log_evidence
    assert found.value == pytest.approx(evidence, abs=4 * found.standard_error + 0.02)


@pytest.mark.slow
def test_a_kernel_that_is_learned_with_the_function_is_not_trusted():
    def model(x, y):
        amplitude = numpyro.sample("amplitude", dist.LogNormal(0.0, 0.5))
        length = numpyro.sample("length", dist.LogNormal(-1.5, 0.5))
        f = hsgp_squared_exponential(x, alpha=amplitude, length=length, ell=1.5, m=20)
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(f, cases.NOISE), obs=y)

    assert fitted(model, cases.simulate_smooth(400, seed=0), 8).certificate.verdict == Verdict.NOT


COLUMNS = {"correlation": (0.995, [1.0, 1.0]), "scales": (0.0, [1.0, 1000.0])}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["correlation", pytest.param("scales", marks=pytest.mark.slow)])
def test_correlations_and_scales_take_full_covariances_or_a_refinement(name):
    rows = cases.simulate_linear(200, *COLUMNS[name], seed=0)
    mean, covariance = cases.exact_linear(rows)
    exact = Exact(mean, np.sqrt(np.diag(covariance)))
    model, sphere = epvi.Model(cases.linear), epvi.NVI(1, epvi.Spherical())
    full = fitted(model, rows, 3, inference=epvi.NVI(1), certify=False)
    np.testing.assert_allclose(full.mixture.covariance(), covariance, rtol=1e-6, atol=1e-9 * np.max(covariance))
    np.testing.assert_allclose(full.mixture.mean(), mean, rtol=1e-6)
    _, ratios = errors(fitted(model, rows, 3, inference=sphere, certify=False), exact)
    assert np.min(ratios) < 0.2
    refined = fitted(model, rows, 3, inference=sphere)
    assert refined.certificate.verdict == Verdict.TRUST
    assert_near(refined, exact)


@pytest.mark.slow
def test_labels_come_in_one_order_when_they_are_said_to_be_exchangeable():
    centres = [-2.0, 2.0]
    rows = cases.simulate_mixture(300, centres, seed=0)
    models = [epvi.Model(cases.mixture, num_parts=2, exchangeable=groups) for groups in ((), [("mu",)])]
    switched, posterior = fitted(models[0], rows, 3, certify=False), fitted(models[1], rows, 3)
    assert posterior.certificate.verdict == Verdict.TRUST
    order = np.argsort(np.argsort(posterior.summary().mean))
    exact = cases.exact_mixture(rows, centres, seed=0)
    assert_near(posterior, Exact(exact.mean[order], exact.sd[order]), mean=0.1, sd=0.1)
    # Labels of which nothing is said are switched, and predict as well.
    assert np.max(switched.summary().sd) > 1
    told = [np.mean(epvi.log_predictive(models[i], p, rows)) for i, p in enumerate((switched, posterior))]
    assert abs(told[0] - told[1]) < 0.005


@pytest.mark.parametrize(("groups", "said"), [((), True), ((("mu",),), False)])
def test_a_lost_mode_that_no_round_brings_back_may_be_one_of_labels(groups, said):
    space = types.SimpleNamespace(exchangeable=groups)
    mixture = types.SimpleNamespace(structure=epvi.Full())
    parts = {"space": space, "mixture": mixture, "fits": [1, 2], "step": None, "__dataclass_fields__": {}}
    posterior = types.SimpleNamespace(**parts)
    lost = Fault(Reason.LOST_MODE, "it lacks a mode that shards have found")
    text = verdict.when_refined(posterior, [lost])
    assert ("exchangeable=[...]" in text) is said
    assert text.endswith("or MCMC.")
    assert "exchangeable" not in verdict.when_refined(posterior, [Fault(Reason.UNEVEN_WEIGHTS, "too uneven")])
