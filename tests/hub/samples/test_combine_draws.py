"""Draws of subposteriors become draws of the posterior: against conjugate answers, loops, and enumeration."""

import re

import arviz_base
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas
import polars
import pytest
import xarray
from numpyro.infer.util import potential_energy
from sentences import refused

import epvi
from epvi.gaussian.structures import form_of
from epvi.ground.seeds import as_key
from epvi.hub.samples.arrival import arrived
from epvi.hub.samples.meeting import Kernels, Meeting

M, N, REPEATS = 4, 400, 8
NOISE = np.array([[2.0, 1.2], [1.2, 1.5]])
PRIOR_MEAN, PRIOR = np.array([1.0, -1.0]), np.array([[1.0, 0.3], [0.3, 2.0]])
ROWS = [np.random.default_rng(m).multivariate_normal([0.5, 2.0], NOISE, size=n) for m, n in enumerate([3, 6, 12, 24])]


def conjugate(rows, share):
    """The Gaussian posterior of a mean, with the prior to the power `share`, as mean and covariance."""
    precision = share * np.linalg.inv(PRIOR) + len(rows) * np.linalg.inv(NOISE)
    eta = share * np.linalg.solve(PRIOR, PRIOR_MEAN) + np.linalg.solve(NOISE, rows.sum(axis=0))
    return np.linalg.solve(precision, eta), np.linalg.inv(precision)


MEAN, COVARIANCE = conjugate(np.concatenate(ROWS), 1.0)
SHARDS = [conjugate(rows, 1 / M) for rows in ROWS]


def drawn(seed, n=N, shards=SHARDS):
    rng = np.random.default_rng([seed, 1])
    counts = np.broadcast_to(n, len(shards))
    return [rng.multivariate_normal(*shard, size=count) for shard, count in zip(shards, counts, strict=True)]


def product(shards):
    precision = sum(np.linalg.inv(covariance) for _, covariance in shards)
    return np.linalg.solve(precision, sum(np.linalg.solve(c, mean) for mean, c in shards)), np.linalg.inv(precision)


def test_the_shards_of_these_tests_multiply_to_the_posterior():
    np.testing.assert_allclose(product(SHARDS)[0], MEAN)
    np.testing.assert_allclose(product(SHARDS)[1], COVARIANCE)


def errors(method, expected, shards=SHARDS, repeats=REPEATS):
    """Means and covariances over repeats, less what is expected, in units of its sds: (repeats, 2 + 4)."""
    root = np.linalg.cholesky(expected[1])
    found = []
    for seed in range(repeats):
        theta = method.combine(arrived(drawn(seed, shards=shards)), None, as_key(seed)).theta
        white = np.linalg.solve(root, (theta - expected[0]).T).T
        found.append(np.concatenate([white.mean(axis=0), (np.cov(white.T) - np.eye(2)).ravel()]))
    return np.stack(found)


def check_unbiased(found, most):
    standard_error = found.std(axis=0, ddof=1) / np.sqrt(REPEATS)
    assert np.all(np.abs(found.mean(axis=0)) < 5 * standard_error)
    assert np.all(standard_error < most)
    assert np.all(np.abs(found.mean(axis=0)) < 0.2)


@pytest.mark.parametrize(
    "method",
    [
        epvi.Consensus(),
        epvi.Parametric(),
        epvi.Semiparametric(bandwidth=2.0, stages=2),
        epvi.Weierstrass(),
        epvi.Weierstrass(bandwidth=1.0),
        epvi.Weierstrass(acceptance=0.5),
    ],
    ids=repr,
)
def test_gaussian_shards_give_the_exact_posterior(method):
    check_unbiased(errors(method, (MEAN, COVARIANCE)), most=0.15)


def test_posteriors_with_the_full_prior_each_give_the_exact_posterior():
    shards = [conjugate(rows, 1.0) for rows in ROWS]
    check_unbiased(errors(epvi.ExponentialFamily(PRIOR_MEAN, PRIOR), (MEAN, COVARIANCE), shards), most=0.15)


@pytest.mark.parametrize("covariance", [epvi.Full(), pytest.param(epvi.Diagonal(), marks=pytest.mark.slow)])
def test_kernels_widen_every_shard_by_their_own_covariance(covariance):
    """The product of Gaussians smoothed by h² Σ (or its diagonal) is known."""
    h = 0.7
    kept = np.eye(2) if covariance == epvi.Diagonal() else np.ones((2, 2))
    smoothed = product([(mean, c + h**2 * c * kept) for mean, c in SHARDS])
    method = epvi.Nonparametric(covariance, bandwidth=h * N ** (1 / 6), stages=2)
    assert method._bandwidths(N, 2)[-1] == pytest.approx(h)
    check_unbiased(errors(method, smoothed), most=0.15)


def test_narrower_kernels_are_nearer_to_the_posterior():
    ways = [epvi.Nonparametric(bandwidth=b, stages=2, thin=4) for b in (4.0, 1.0)]
    wide, narrow = (errors(way, (MEAN, COVARIANCE), repeats=3) for way in ways)
    excess = [np.trace(found.mean(axis=0)[2:].reshape(2, 2)) / 2 for found in (wide, narrow)]
    assert excess[0] > 1.0
    assert abs(excess[1]) < 0.4 * excess[0]


def gammas(seed, n):
    """Skewed shards whose product is known: Gamma(3, 1) three times is Gamma(7, 3)."""
    return list(np.random.default_rng(seed).gamma(3.0, size=(3, n, 1)))


@pytest.mark.parametrize(
    "method",
    [
        epvi.Nonparametric(),
        pytest.param(epvi.Semiparametric(), marks=pytest.mark.slow),
        epvi.Weierstrass(bandwidth=0.1),
    ],
    ids=repr,
)
def test_skewed_shards_are_for_the_methods_that_follow_their_shape(method):
    draws = gammas(0, 500)
    found, gaussian = (epvi.combine_draws(draws, way, seed=1) for way in (method, epvi.Parametric()))
    quantiles = np.quantile(np.random.default_rng(1).gamma(7.0, 1 / 3, size=10**6), [0.05, 0.5, 0.95])
    off, gaussian_off = (np.max(np.abs(np.quantile(x.theta, [0.05, 0.5, 0.95]) - quantiles)) for x in (found, gaussian))
    assert off < 0.3 * gaussian_off
    assert found.status.ok
    assert not gaussian.status.ok
    assert "skewness" in gaussian.status.text


def test_weierstrass_leaves_the_consensus_average_as_its_bandwidth_falls():
    draws = gammas(0, 3000)
    means = [epvi.combine_draws(draws, epvi.Weierstrass(bandwidth=h)).theta.mean() for h in (30.0, 1.0, 0.1)]
    consensus = epvi.combine_draws(draws, epvi.Consensus()).theta.mean()
    standard_error = np.sqrt(7) / 3 / np.sqrt(3000)
    assert abs(means[0] - consensus) < 10 * standard_error
    assert means[0] - 7 / 3 > 1.5 * (means[1] - 7 / 3) > 3 * abs(means[2] - 7 / 3)
    assert abs(means[2] - 7 / 3) < 10 * standard_error


def test_two_modes_stay_two():
    rng = np.random.default_rng(0)
    draws = [rng.normal(size=(800, 1)) * 0.7 + rng.choice([-2.0, 2.0], size=(800, 1)) for _ in range(2)]
    found = epvi.combine_draws(draws, epvi.Nonparametric(bandwidth=0.5, thin=10))
    assert np.mean(np.abs(found.theta) > 1) > 0.93
    assert 0.3 < np.mean(found.theta > 0) < 0.7
    flat = epvi.combine_draws(draws, epvi.Parametric())
    assert np.mean(np.abs(flat.theta) > 1) < 0.7
    assert "excess kurtosis" in flat.status.text


@pytest.mark.parametrize("root", [np.array([[1.5, 0.0], [0.4, 0.9]]), np.array([1.5, 0.9]), np.array([1.1])])
def test_chains_over_draws_have_the_product_for_their_target(root):
    """Few draws, so that all products of components can be enumerated."""
    rng = np.random.default_rng(0)
    precision = root @ root.T if root.ndim == 2 else np.diag(np.broadcast_to(root, 2) ** 2)
    weights = [rng.dirichlet(np.ones(4)) for _ in range(3)]
    shards = [Kernels(rng.normal(size=(4, 2)), np.log(w), (m + 1) * root, form_of(root)) for m, w in enumerate(weights)]
    mixtures = [
        epvi.GaussianMixture.from_covariances(
            shard.means, np.broadcast_to(np.linalg.inv(precision) / (m + 1) ** 2, (4, 2, 2)), weights[m]
        )
        for m, shard in enumerate(shards)
    ]
    exact = epvi.multiply(mixtures, epvi.Exact()).mixture
    _, kept = Meeting(shards, rng).run(rng.normal(size=(200, 2)), kept=60, thin=5)
    theta, log_density = kept.theta[:, 10:], kept.log_density[:, 10:, 0]
    chain_means = theta.mean(axis=1)
    standard_error = chain_means.std(axis=0) / np.sqrt(200)
    assert np.all(np.abs(chain_means.mean(axis=0) - exact.mean()) < 5 * standard_error)
    squares = np.einsum("cni,cnj->cij", theta - exact.mean(), theta - exact.mean()) / theta.shape[1]
    assert np.all(np.abs(squares.mean(axis=0) - exact.covariance()) < 5 * squares.std(axis=0) / np.sqrt(200))
    constant = exact.log_density(theta[:, 0]) - log_density[:, 0]
    np.testing.assert_allclose(constant, constant[0], atol=1e-9)


def test_semiparametric_kernels_are_gaussians_times_ratios():
    """Each weighted component is N(θ|θ_t, h²Σ) N(θ|μ, Σ) / N(θ_t|μ, Σ), up to a constant common to all."""
    h, (draws,) = 0.6, drawn(0, 20, SHARDS[:1])
    covariance, mean = np.cov(draws.T), draws.mean(axis=0)
    from epvi.hub.samples.moments import fit_gaussians

    (gaussian,) = fit_gaussians(arrived([draws]), epvi.Full())
    made = epvi.Semiparametric().kernels(draws, gaussian, h)
    point = np.array([0.3, 0.8])

    def log_normal(x, at, c):
        return -0.5 * (x - at) @ np.linalg.solve(c, x - at) - 0.5 * np.linalg.slogdet(2 * np.pi * c)[1]

    inverse = np.linalg.inv(made.root @ made.root.T)
    differences = [
        log_normal(point, t, h**2 * covariance) + log_normal(point, mean, covariance) - log_normal(t, mean, covariance)
        - (log_weight + log_normal(point, centre, inverse))
        for t, centre, log_weight in zip(draws, made.means, made.log_weights, strict=True)
    ]  # fmt: skip
    np.testing.assert_allclose(differences, differences[0], atol=1e-9)
    assert np.logaddexp.reduce(made.log_weights) == pytest.approx(0)


@pytest.mark.parametrize("covariance", [epvi.Full(), epvi.Diagonal(), epvi.Spherical()], ids=repr)
def test_consensus_is_the_weighted_average_written_as_a_loop(covariance):
    draws = drawn(0, [40, 60, 40, 120])
    weights = []
    for shard in draws:
        c = np.cov(shard.T)
        if covariance == epvi.Diagonal():
            c = np.diag(np.diag(c))
        if covariance == epvi.Spherical():
            c = np.eye(2) * np.trace(c) / 2
        weights.append(np.linalg.inv(c))
    expected = []
    for r in range(40):
        total = sum(w @ shard[r * len(shard) // 40] for w, shard in zip(weights, draws, strict=True))
        expected.append(np.linalg.solve(sum(weights), total))
    np.testing.assert_allclose(epvi.combine_draws(draws, epvi.Consensus(covariance)).theta, expected)


METHODS = [
    epvi.Consensus(),
    epvi.Parametric(),
    epvi.Nonparametric(stages=2, thin=2),
    epvi.Semiparametric(epvi.Diagonal(), stages=2, thin=2),
    epvi.Weierstrass(acceptance=0.3),
    epvi.ExponentialFamily(0.0, 100.0),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_every_method_keeps_the_form_and_the_seed(method):
    draws = drawn(0, [200, 240, 200, 300])
    named = [{"w": x[:, :1].reshape(-1, 1, 1), "b": x[:, 1]} for x in draws]
    whole = epvi.combine_draws(named, method, num_samples=150, seed=3)
    assert whole.theta.shape == (150, 2)
    assert {name: value.shape for name, value in whole.draws.items()} == {"w": (150, 1, 1), "b": (150,)}
    np.testing.assert_array_equal(whole.draws["b"], whole.theta[:, 1])
    plain = epvi.combine_draws(draws, method, num_samples=150, seed=3)
    np.testing.assert_array_equal(plain.draws, whole.theta)
    assert len(epvi.combine_draws(draws, method).theta) == 200
    if not isinstance(method, epvi.Consensus):
        assert not np.array_equal(epvi.combine_draws(draws, method, num_samples=150, seed=4).theta, plain.theta)
    assert type(method).__name__ in repr(whole)
    assert "w (1, 1), b" in repr(whole)


def test_data_frames_are_draws_by_name():
    draws = drawn(0, 50)
    named = epvi.combine_draws([{"b": x[:, 1], "a": x[:, 0]} for x in draws], epvi.Consensus())
    for frame in (pandas.DataFrame, polars.DataFrame):
        frames = [frame({"b": x[:, 1], "a": x[:, 0]}) for x in draws[:3]] + [
            frame({"a": draws[3][:, 0], "b": draws[3][:, 1]})
        ]
        found = epvi.combine_draws(frames, epvi.Consensus())
        np.testing.assert_array_equal(found.draws["a"], named.draws["a"])


def test_chains_are_draws_one_after_the_other():
    draws = drawn(0, 200)
    chains = [x.reshape(4, 50, 2) for x in draws]
    np.testing.assert_array_equal(
        epvi.combine_draws(chains, epvi.Consensus()).theta, epvi.combine_draws(draws, epvi.Consensus()).theta
    )


def test_the_posterior_of_one_shard_is_that_shards():
    (draws,) = drawn(0, 100, SHARDS[:1])
    found = epvi.combine_draws([draws], epvi.Semiparametric())
    np.testing.assert_array_equal(found.draws, draws)
    assert found.status.ok
    np.testing.assert_array_equal(epvi.combine_draws([draws], epvi.Consensus(), num_samples=50).theta, draws[::2])
    refused(lambda: epvi.combine_draws([draws], epvi.Consensus(), num_samples=101), "at most as many")


def trees(dims=("feature",)):
    made = []
    for x in drawn(0, 200):
        posterior = {"w": x.reshape(4, 50, 2), "a/b": x[:, 0].reshape(4, 50) * 2 + x[:, 1].reshape(4, 50) ** 2}
        made.append(
            arviz_base.from_dict(
                {"posterior": {k.replace("/", "."): v for k, v in posterior.items()}},
                dims={"w": list(dims)},
                coords={"feature": ["age", "dose"]},
            )
        )
    return made


def test_arviz_data_come_in_and_go_out():
    found = epvi.combine_draws(trees(), epvi.Parametric())
    assert found.draws["w"].shape == (200, 2)
    assert found.draws["a.b"].shape == (200,)
    tree = found.to_arviz(num_chains=2)
    assert dict(tree["posterior"].sizes) == {"chain": 2, "draw": 100, "feature": 2}
    assert list(tree["posterior"]["feature"].values) == ["age", "dose"]
    np.testing.assert_array_equal(tree["posterior"]["w"].values.reshape(-1, 2), found.draws["w"])
    assert tree.attrs["method"] == "Parametric"
    assert tree.attrs["status"] == found.status.text
    datasets = [tree["posterior"].to_dataset() for tree in trees()]
    for others in (datasets, [{"posterior": one} for one in datasets]):
        np.testing.assert_array_equal(epvi.combine_draws(others, epvi.Parametric()).theta, found.theta)
    flat = epvi.combine_draws(drawn(0, 200), epvi.Parametric()).to_arviz()
    assert flat["posterior"]["theta"].shape == (4, 50, 2)
    slashed = epvi.combine_draws([{"a/b": x} for x in drawn(0, 200)], epvi.Parametric()).to_arviz()
    assert slashed["posterior"]["a.b"].shape == (4, 50, 2)
    refused(lambda: found.to_arviz(num_chains=0), "num_chains")
    refused(lambda: found.to_arviz(num_chains=100), "fewer chains")


def test_other_forms_of_arviz_data_are_read_by_their_posterior_attribute():
    class Data:
        """As ArviZ before 1.0 had it."""

        def __init__(self, posterior):
            self.posterior = posterior

    made = [Data(tree["posterior"].to_dataset()) for tree in trees()]
    found = epvi.combine_draws(made, epvi.Consensus())
    np.testing.assert_array_equal(found.theta, epvi.combine_draws(trees(), epvi.Consensus()).theta)
    named = [{"w": x, "a.b": x[:, 0] * 2 + x[:, 1] ** 2} for x in drawn(0, 200)]
    np.testing.assert_array_equal(found.theta, epvi.combine_draws(named, epvi.Consensus()).theta)


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("consensus", r"method is 'consensus': pass Consensus\(\).*brackets"),
        (epvi.Consensus, r"method is Consensus: pass .*brackets"),
        (epvi.Chain(), r"method is Chain\(.*brackets"),
    ],
)
def test_a_method_comes_with_its_brackets(method, sentence, untyped):
    refused(lambda: epvi.combine_draws(drawn(0), method), sentence)


def without_draws(draws):
    return xarray.Dataset({"w": (("chain", "draw"), draws), "c": ("row", np.ones(3))})


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda d: [], "is empty"),
        (lambda d: (x for x in d), "is a generator: pass a list"),
        (lambda d: d[0], "is a ndarray: pass a list"),
        (lambda d: {"site": d[0]}, "is a dict: pass a list"),
        (lambda d: [d[0], d[1][:, 0]], r"shard 1's draws have shape \(30,\).*\(n, 1\)"),
        (lambda d: [d[0], d[1][:, :1]], r"shard 1's theta has shape \(1,\) per draw, shard 0's \(2,\)"),
        (lambda d: [d[0], np.where(d[1] > 0.5, np.nan, d[1])], r"shard 1's theta\[\d\] has \d+ NaN"),
        (lambda d: [d[0], d[1][:9]], "shard 1 has 9 draws"),
        (lambda d: [d[0], d[1] * [1, 0] + [0, 7]], r"shard 1's theta\[1\] is the same in all draws"),
        (lambda d: [d[0], d[1].round().astype(int)], "shard 1 has integers"),
        (lambda d: [d[0], "draws"], "shard 1 cannot be read as numbers"),
        (lambda d: [d[0], [[1.0], [1.0, 2.0]]], "shard 1 cannot be read as numbers"),
        (lambda d: [d[0], d[1], d[0]], "shards 0 and 2 have the same draws"),
        (lambda d: [{"w": d[0]}, d[1]], "shard 1's draws have no names, shard 0's names"),
        (lambda d: [{"w": d[0]}, {"v": d[1]}], "shard 1 has draws of v, shard 0 has not|shard 0 has draws of w"),
        (lambda d: [{"w": d[0], "b": d[0][:, 0]}, {"w": d[1]}], "shard 0 has draws of b, shard 1 has not"),
        (lambda d: [{"w": d[0], "b": d[0][:20, 0]}], "shard 0 has 30 draws of w and 20 of b"),
        (lambda d: [{"w": d[0], "z": d[0][:, 0] > 0}], "shard 0's z has integers or booleans"),
        (lambda d: [{"w": d[0][:, :0]}], "shard 0's parameters are empty"),
        (lambda d: [{}], "shard 0 has no parameters"),
        (lambda d: [{"w": d[0], "b": 1.0}], "shard 0's b is a single number"),
        (lambda d: [{"posterior": without_draws(d[0])}], "shard 0's c has no dimensions chain and draw"),
        (lambda d: [{"posterior": xarray.Dataset(coords={"chain": [0], "draw": [0]})}], "has no variables"),
    ],
)  # fmt: skip
def test_draws_that_cannot_be_combined_are_refused(make, sentence, untyped):
    refused(lambda: epvi.combine_draws(make(drawn(0, 30)), epvi.Parametric()), sentence)


def wide(n, d=20):
    return list(np.random.default_rng(0).normal(size=(3, n, d)))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: epvi.combine_draws(wide(40), epvi.Parametric()), "shard 0 has 40 draws for a full covariance of 20"),
        (
            lambda: epvi.combine_draws(drawn(0), epvi.Consensus(), num_samples=401),
            "is 401, shard 0 has 400",
        ),
        (lambda: epvi.combine_draws(drawn(0), epvi.Parametric(), num_samples=0), "num_samples is 0"),
        (lambda: epvi.combine_draws(drawn(0), epvi.Parametric(), seed=-1), "seed is -1"),
        (lambda: epvi.Consensus("full"), r"covariance is 'full': pass Full\(\)"),
        (lambda: epvi.Parametric(epvi.Full), "covariance is .*brackets"),
        (lambda: epvi.Nonparametric(bandwidth=0.0), "bandwidth is 0.0: pass a finite positive"),
        (lambda: epvi.Nonparametric(stages=0), "stages is 0"),
        (lambda: epvi.Semiparametric(thin=0), "thin is 0"),
        (lambda: epvi.Weierstrass(acceptance=1.5), "acceptance is 1.5: pass a number between 0 and 1"),
        (lambda: epvi.Weierstrass(bandwidth=-1), "bandwidth is -1"),
        (lambda: epvi.combine_draws(drawn(0), epvi.ExponentialFamily([0.0], 1.0)), r"prior_mean has shape \(1,\)"),
        (lambda: epvi.combine_draws(drawn(0), epvi.ExponentialFamily({"w": 0}, 1.0)), "prior_mean names w"),
        (lambda: epvi.combine_draws(drawn(0), epvi.ExponentialFamily({"theta": [0.0]}, 1.0)), "prior_mean's theta has"),
        (lambda: epvi.combine_draws(drawn(0), epvi.ExponentialFamily(0.0, np.eye(3))), r"has shape \(3, 3\): pass \(2"),
        (lambda: epvi.combine_draws(drawn(0), epvi.ExponentialFamily(np.nan, 1.0)), "prior_mean has NaN"),
        (lambda: epvi.combine_draws(drawn(0), epvi.ExponentialFamily("zero", 1.0)), "prior_mean cannot be read"),
        (lambda: epvi.combine_draws(drawn(0), epvi.ExponentialFamily(0.0, -1.0)), "not positive-definite"),
        (lambda: epvi.combine_draws(drawn(0), epvi.ExponentialFamily(0.0, [[1, 2], [0, 9]])), "not symmetric"),
        (lambda: epvi.combine_draws(drawn(0), epvi.Nonparametric(num_chains=2_000_000)), "GB, over the budget"),
    ],
)
def test_settings_that_cannot_be_are_refused(call, sentence, untyped):
    refused(call, sentence)


def test_what_follows_from_other_parameters_is_named():
    named = [{"w": x, "twice": 2 * x[:, 0]} for x in drawn(0, 100)]
    refused(lambda: epvi.combine_draws(named, epvi.Parametric()), r"shard 0's covariance is singular: (w\[0\]|twice)")
    assert epvi.combine_draws(named, epvi.Parametric(epvi.Diagonal())).theta.shape == (100, 3)


def test_a_quotient_that_is_no_density_is_refused_with_its_direction():
    """Shards wider than the prior: what is left of their precisions is negative."""
    draws = [x * [1, 3] for x in drawn(0, 200)]
    prior = epvi.ExponentialFamily({"theta": 0.0}, {"theta": [100.0, 0.1]})
    refused(
        lambda: epvi.combine_draws(draws, prior),
        r"less 3 times the prior's are not positive-definite \(smallest eigenvalue -\d\S+ prior precisions, mostly"
        r" along theta\[1\]\).*Parametric\(\)",
    )


def test_a_quotient_that_is_barely_one_says_so():
    """The second coordinate has no rows: M priors less M − 1 of them, of which the draws know only so much."""
    rng = np.random.default_rng(0)
    draws = [rng.normal(size=(300, 2)) * [0.1, 1.0] for _ in range(10)]
    found = epvi.combine_draws(draws, epvi.ExponentialFamily(0.0, np.diag([1.0, 1.0])), seed=1)
    assert not found.status.ok
    assert "along theta[1] the shards add little" in found.status.text


def test_draws_with_one_seed_for_all_shards_are_not_to_be_averaged():
    z = np.random.default_rng(0).normal(size=(200, 2))
    together = [mean + z @ np.linalg.cholesky(c).T for mean, c in SHARDS]
    averaged = epvi.combine_draws(together, epvi.Consensus()).status
    assert not averaged.ok
    assert re.search(r"shards \d and \d move together .*own seed", averaged.text)
    assert epvi.combine_draws(together, epvi.Parametric()).theta.shape == (200, 2)


def test_the_status_says_what_is_wrong():
    far = drawn(0, 400)
    far[2] = far[2] + 20.0
    assert "shard 2 is" in epvi.combine_draws(far, epvi.Parametric()).status.text
    assert not epvi.combine_draws(far, epvi.Parametric()).status.ok
    few = epvi.combine_draws(wide(100), epvi.Parametric()).status
    assert not few.ok
    assert "draws are few for the covariance of 20 parameters" in few.text
    diagonal = epvi.combine_draws(drawn(0), epvi.Consensus(epvi.Diagonal())).status
    assert "theta[0] and theta[1] (correlation" in diagonal.text
    deep = epvi.combine_draws(wide(300, 8), epvi.Nonparametric(stages=2, bandwidth=1.5)).status
    assert "too wide: use Semiparametric()" in deep.text
    stuck = epvi.combine_draws(
        [np.concatenate([x[:50] - 30, x[50:] + 30]) for x in wide(100, 1)], epvi.Nonparametric(stages=1, thin=1)
    ).status
    assert not stuck.ok
    assert "the chains over draws disagree" in stuck.text


def test_chains_that_had_not_converged_show_in_their_halves():
    drifting = [x + np.linspace(-2, 2, 400)[:, None] * np.sqrt(np.diag(COVARIANCE)) * 2 for x in drawn(0, 400)]
    found = epvi.combine_draws(drifting, epvi.Parametric()).status
    assert not found.ok
    assert "two halves of the draws" in found.text
    assert (
        "comparing two halves of the draws: means are off by about 0.0"
        in epvi.combine_draws(drawn(0, 4000), epvi.Parametric()).status.text
    )


def test_weierstrass_gives_up_on_pairs_that_never_meet(monkeypatch):
    from epvi.hub.samples import weierstrass

    monkeypatch.setattr(weierstrass, "_MAX_PAIRS", 10**5)
    draws = wide(100, 2)
    draws[1] = draws[1] + 100.0
    refused(lambda: epvi.combine_draws(draws, epvi.Weierstrass(bandwidth=0.01)), "pairs of shard 0 and shard 1 only 0")
    lone = epvi.combine_draws(draws, epvi.Weierstrass()).status
    assert not lone.ok
    assert "shard 1 is" in lone.text
    many = epvi.combine_draws(list(np.random.default_rng(0).normal(size=(40, 60, 5))), epvi.Weierstrass()).status
    assert not many.ok
    assert "shards hardly overlap, or are many for their draws" in many.text


def test_numpyros_scale_takes_the_jacobian_along():
    """So draws are right in unconstrained coordinates, as the guide says: a positive parameter goes in as its log."""

    def model():
        with numpyro.handlers.scale(scale=0.25):
            numpyro.sample("sigma", dist.Gamma(2.0, 3.0))

    for u in (-1.0, 0.5):
        log_density = -potential_energy(model, (), {}, {"sigma": jnp.asarray(u)})
        expected = 0.25 * (dist.Gamma(2.0, 3.0).log_prob(np.exp(u)) + u)
        np.testing.assert_allclose(log_density, expected, rtol=1e-5)
