"""A site's answers are what the definitions say, and on a tall shard as certain as they say."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sentences import refused

import epvi
from epvi.models import logistic, simulate_logistic
from epvi.site.derivatives.expansion_cache import ExpansionCache
from epvi.site.derivatives.passes import programs_of
from epvi.site.tasks.answers import Answers, Asking, each_checked
from epvi.site.tasks.score import answer_columns
from epvi.wire.answer import Derivatives, Variation

QUICK = epvi.NVI(1, num_starts=4, num_draws=64)
ROWS = simulate_logistic(240, 2, seed=3)[0]
# One object, so that what this process compiles for it is compiled once.
LOGISTIC = epvi.Model(logistic)
SHARDS = [{name: column[m::2] for name, column in ROWS.items()} for m in range(2)]
TALL, V = 60_000, 3


@functools.cache
def combined():
    fits = [epvi.fit_shard(LOGISTIC, rows, f"{m}/2", inference=QUICK) for m, rows in enumerate(SHARDS, start=1)]
    return epvi.combine(fits)


@functools.cache
def scored():
    posterior = combined()
    draws = posterior.ask(seed=1)
    return draws, [epvi.score(LOGISTIC, rows, draws, f"{m}/2") for m, rows in enumerate(SHARDS, start=1)]


def log_p(rows, share):
    """f log p(θ) with its Jacobian, plus the rows' log likelihoods; θ = (log α, w)."""

    def of_rows(theta):
        return dist.Bernoulli(logits=jnp.asarray(rows["x"]) @ theta[1:]).log_prob(jnp.asarray(rows["y"]))

    def prior(theta):
        alpha = jnp.exp(theta[0])
        normal = jnp.sum(dist.Normal(0.0, alpha**-0.5).log_prob(theta[1:]))
        return dist.Gamma(1.0, 0.01).log_prob(alpha) + theta[0] + normal

    return (lambda theta: share * prior(theta) + jnp.sum(of_rows(theta))), of_rows


@pytest.fixture
def promoting():
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def test_answers_are_the_log_density_and_its_derivatives(promoting):
    draws, scores = scored()
    for rows, one in zip(SHARDS, scores, strict=True):
        f, of_rows = log_p(rows, 0.5)
        np.testing.assert_allclose(one.values, jax.jit(jax.vmap(f))(draws.theta), rtol=1e-10)
        assert one.exact
        assert not np.any(one.errors)
        centre = draws.centres[0]
        np.testing.assert_allclose(one.centres.gradient[0], jax.jit(jax.grad(f))(centre), rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(one.centres.hessian[0], jax.jit(jax.hessian(f))(centre), rtol=1e-6, atol=1e-8)
        gradients = jax.jit(jax.jacobian(of_rows))(centre)
        np.testing.assert_allclose(one.rows.gradient, np.sum(gradients, axis=0), rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(one.rows.products, np.asarray(gradients).T @ gradients, rtol=1e-6, atol=1e-8)
        (points,) = draws.points()
        np.testing.assert_allclose(one.moments.values[0], jax.jit(jax.vmap(f))(points), rtol=1e-10)
        np.testing.assert_allclose(
            one.moments.gradient[0], np.mean(jax.jit(jax.vmap(jax.grad(f)))(points), axis=0), rtol=1e-6, atol=1e-8
        )
        np.testing.assert_allclose(
            one.moments.hessian[0], np.mean(jax.jit(jax.vmap(jax.hessian(f)))(points), axis=0), rtol=1e-6, atol=1e-8
        )


def test_scores_sum_to_the_log_joint_of_all_rows(promoting):
    draws, scores = scored()
    whole, _ = log_p(ROWS, 1.0)
    np.testing.assert_allclose(sum(one.values for one in scores), jax.jit(jax.vmap(whole))(draws.theta), rtol=1e-10)


def test_the_certificate_is_that_of_fit():
    by_hand = epvi.certify(combined(), scored()[1])
    assert by_hand.verdict in ("trust", "trust with corrected weights")
    assert by_hand.ess > 100
    assert by_hand.log_evidence is not None


@functools.cache
def tall():
    rows, _ = simulate_logistic(TALL, V, condition=20, seed=5)
    rows = {"x": rows["x"].astype(np.float32), "y": rows["y"]}
    posterior = epvi.combine([epvi.fit_shard(LOGISTIC, rows, "1/1", inference=QUICK)])
    return programs_of(LOGISTIC, rows), rows, posterior


def answers(exact, memory=None, posterior=None):
    programs, rows, own = tall()
    draws = (posterior or own).ask(256)
    asking = Asking(2**12, own.fits[0].made_of, exact, checked=True, memory=memory or ExpansionCache())
    return answer_columns(programs, rows, draws, draws.shares[0], asking)


@pytest.mark.slow
def test_a_tall_shard_answers_in_one_pass_as_certainly_as_it_says():
    exact, near = answers(True), answers(False)
    assert near.passes == 1
    assert not near.exact
    off = near.values - exact.values
    # Errors have seven degrees of freedom, and are those of one draw of rows.
    assert np.sqrt(np.mean(off**2)) < 4 * np.sqrt(np.mean(near.errors**2))
    assert np.median(near.errors) < 0.02
    sd = np.asarray(tall()[2].mixture.sd())
    np.testing.assert_array_less(np.abs(near.moments.gradient - exact.moments.gradient) * sd, 0.05)
    scale = np.sqrt(np.abs(np.diagonal(exact.moments.hessian[0])))
    np.testing.assert_array_less(np.abs(near.moments.hessian - exact.moments.hessian)[0] / np.outer(scale, scale), 0.02)
    np.testing.assert_allclose(near.rows.gradient, exact.rows.gradient, atol=1e-3 * np.max(scale))


def moved(sds):
    """The posterior with its Gaussian moved."""
    posterior = tall()[2]
    mixture = posterior.mixture
    means = np.asarray(mixture.means) + sds * np.asarray(mixture.sd())
    made = epvi.GaussianMixture.from_covariances(means, mixture.covariances())
    return dataclasses.replace(posterior, product=dataclasses.replace(posterior.product, mixture=made))


def test_what_was_expanded_before_is_not_passed_over_again(tmp_path):
    memory = ExpansionCache(tmp_path / "known.npz")
    assert answers(False, memory).passes == 1
    near = moved(0.03)
    again = answers(False, ExpansionCache(tmp_path / "known.npz"), near)
    assert again.passes == 0
    exact = answers(True, posterior=near)
    assert np.sqrt(np.mean((again.values - exact.values) ** 2)) < 4 * np.sqrt(np.mean(again.errors**2))
    assert answers(False, memory, moved(3.0)).passes == 1


def test_a_question_is_for_the_model_and_the_shards_that_were_fitted():
    draws, _ = scored()

    def other(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    refused(lambda: epvi.score(other, SHARDS[0], draws, "1/2"), "the posterior has the parameters .*alpha")
    refused(lambda: epvi.score(LOGISTIC, SHARDS[0], draws, "1/3"), "the draws are for 2 shards")
    refused(lambda: epvi.score(LOGISTIC, SHARDS[0], draws, "3/3"), "do not ask shard 3")


def test_draws_are_what_a_posterior_asks(untyped):
    refused(lambda: epvi.score(LOGISTIC, SHARDS[0], combined(), "1/2"), "draws is a Posterior")
    refused(lambda: combined().ask(10), "num_draws is 10")


def test_answers_that_do_not_belong_are_refused():
    posterior, (draws, scores) = combined(), scored()
    other = epvi.score(LOGISTIC, SHARDS[1], draws, "1/2")
    refused(lambda: epvi.certify(posterior, scores[:1]), "shard 2 has not scored")
    refused(lambda: epvi.certify(posterior, [scores[0], scores[0]]), "answered twice")
    refused(lambda: epvi.certify(posterior, [other, scores[1]]), "other rows than the 120")
    later = epvi.score(LOGISTIC, SHARDS[0], posterior.ask(seed=2), "1/2")
    refused(lambda: epvi.certify(posterior, [later, scores[1]]), "answer different draws")
    refused(lambda: epvi.certify(epvi.combine(posterior.fits, seed=0).update(), []), "there are no scores")
    apart = epvi.combine(
        [
            epvi.fit_shard(LOGISTIC, rows, f"{m}/2", inference=epvi.NVI(1, epvi.Diagonal(), num_starts=4, num_draws=64))
            for m, rows in enumerate(SHARDS, start=1)
        ]
    )
    refused(lambda: epvi.certify(apart, scores), "draws of another posterior")


def test_answers_that_are_not_finite_are_replaced_in_their_own_shard_only():
    def answer(slope):
        centres = Derivatives(np.zeros(2), np.array([[1.0], [slope]]), np.ones((2, 1, 1)))
        return Answers(np.zeros(3), np.zeros(3), centres, Variation(np.ones(1), np.ones((1, 1))), None, True)

    fine, bad = answer(2.0), answer(np.nan)
    assert each_checked([fine, fine]) == [fine, fine]
    first, second = each_checked([fine, bad])
    assert first is fine
    assert np.array_equal(second.centres.gradient, [[1.0], [0.0]])
    assert second.centres.value[1] < -1e90
