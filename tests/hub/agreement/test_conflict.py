"""Shards beside the product of the others: formulas, false alarms, and who is named when one shard is off."""

import json
from fractions import Fraction

import mpmath
import naive
import numpy as np
import pytest
from numpyro.distributions import constraints
from scipy.special import softmax
from scipy.stats import binom, chi2, kstest, multivariate_normal
from sentences import refused

import epvi
from epvi import Diagonal, Full, GaussianMixture, Parameter, ShardFit, Space
from epvi.ground.status import Status, StatusCode
from epvi.hub.agreement.conflict import conflict_between
from epvi.models import logistic, simulate_logistic


def reals(d):
    return Space((Parameter("w", (d,), constraints.real),))


def fits_of(mixtures, space, rows=100):
    num = len(mixtures)
    rows = np.broadcast_to(rows, num)
    done, unknown = Status(StatusCode.CONVERGED, "converged."), epvi.Estimate(np.asarray(0.0), np.asarray(0.0))
    return [
        ShardFit(q, space, m, num, f"{m} of {num}", Fraction(1, num), int(n), done, (), unknown, 0.0, 1, 0.0)
        for m, (q, n) in enumerate(zip(mixtures, rows, strict=True), start=1)
    ]


def report_on(mixtures, space=None, rows=100):
    return epvi.combine(fits_of(mixtures, space or reals(mixtures[0].dim), rows)).conflict()


def gaussians(means, sds):
    """One Diagonal Gaussian per shard."""
    means = np.asarray(means, float)
    sds = np.broadcast_to(np.asarray(sds, float), means.shape)
    return [GaussianMixture.from_covariances(m[None], s[None] ** 2) for m, s in zip(means, sds, strict=True)]


def as_one(mixture, draws):
    """Λ and η of a shard, as on paper."""
    weights, means, covariances = naive.dense(mixture)
    logs = [
        np.log(w) + multivariate_normal(m, c).logpdf(draws) for w, m, c in zip(weights, means, covariances, strict=True)
    ]
    r = softmax(np.stack(logs, axis=1), axis=1).mean(axis=0)
    precisions = [np.linalg.inv(c) for c in covariances]
    return sum(r[k] * p for k, p in enumerate(precisions)), sum(r[k] * p @ means[k] for k, p in enumerate(precisions))


@pytest.mark.parametrize("num_components", [1, 3])
@pytest.mark.parametrize(
    "structures", [*([s] * 4 for s in naive.STRUCTURES), ["full", "diagonal", "spherical", "full"]]
)
def test_the_report_is_what_explicit_products_of_the_others_give(structures, num_components):
    rng = np.random.default_rng(0)
    d = 3
    mixtures = [naive.random_mixture(rng, structure, num_components, d) for structure in structures]
    posterior = naive.random_mixture(rng, "diagonal", 2, d)
    found = conflict_between(fits_of(mixtures, reals(d)), posterior, reals(d), seed=5)
    draws = posterior.sample(256, seed=5)
    parts = [as_one(mixture, draws) for mixture in mixtures]
    total = np.linalg.inv(sum(p for p, _ in parts))
    mean = total @ sum(e for _, e in parts)
    for m, (precision, eta) in enumerate(parts):
        own = np.linalg.inv(precision)
        rest = np.linalg.inv(sum(p for n, (p, _) in enumerate(parts) if n != m))
        rest_mean = rest @ sum(e for n, (_, e) in enumerate(parts) if n != m)
        delta = own @ eta - rest_mean
        for i in range(d):
            assert found.z[m, i] == pytest.approx(delta[i] / np.sqrt(own[i, i] + rest[i, i]), rel=1e-9)
            assert found.mean_shift[m, i] == pytest.approx((mean[i] - rest_mean[i]) / np.sqrt(total[i, i]), rel=1e-9)
            assert found.sd_ratio[m, i] == pytest.approx(np.sqrt(rest[i, i] / total[i, i]), rel=1e-9)
            assert found.information[m, i] == pytest.approx(precision[i, i] / sum(p[i, i] for p, _ in parts), rel=1e-9)
        assert found.distance[m] == pytest.approx(delta @ np.linalg.inv(own + rest) @ delta, rel=1e-9)
    np.testing.assert_allclose(found.log_p, np.log(chi2.sf(found.distance, d)))
    np.testing.assert_allclose(found.information.sum(axis=0), 1.0)
    assert np.all(found.sd_ratio > 1)


def test_shards_of_one_model_have_normal_zs_and_few_false_alarms(untyped):
    """Exact subposteriors of N(θ, C) rows, each with an eighth of the prior N(0, 10 I), shards of unlike sizes."""
    rng = np.random.default_rng(1)
    num, d, repeats = 8, 5, 600
    precision = np.linalg.inv(naive.random_covariances(rng, "full", 1, d)[0])
    rows = np.array([20, 30, 50, 50, 80, 100, 200, 400])
    roots = np.linalg.cholesky(np.eye(d) / (10 * num) + rows[:, None, None] * precision)
    noise = np.linalg.cholesky(np.linalg.inv(precision))
    space, zs, log_ps, alarms = reals(d), [], [], 0
    for _ in range(repeats):
        theta = np.sqrt(10) * rng.normal(size=d)
        averages = theta + (rng.normal(size=(num, d)) / np.sqrt(rows)[:, None]) @ noise.T
        etas = rows[:, None] * averages @ precision
        means = [np.linalg.solve(root @ root.T, eta) for root, eta in zip(roots, etas, strict=True)]
        mixtures = [GaussianMixture(np.zeros(1), means[m][None], roots[m][None], Full()) for m in range(num)]
        found = conflict_between(fits_of(mixtures, space, rows), mixtures[-1], space)
        zs.append(found.z)
        log_ps.append(found.log_p)
        alarms += not found.status.ok
    squares = np.mean(np.square(zs), axis=(1, 2))
    # The share of the prior, in every factor, holds them together by less than a hundredth.
    assert abs(np.mean(squares) - 1) < 0.01 + 4 * np.std(squares) / np.sqrt(repeats)
    average = np.mean(zs, axis=0)
    assert np.max(np.abs(average)) < 4.5 / np.sqrt(repeats)
    for m in range(num):
        assert kstest(np.exp(log_ps)[:, m], "uniform").pvalue > 1e-3
    assert alarms <= binom.ppf(0.999, repeats, 0.01)


def test_components_count_where_the_posterior_is():
    here, far = np.zeros(2), np.full(2, 30.0)
    two = GaussianMixture.from_covariances([here, far], [[1.0, 1.0], [0.01, 0.01]], [0.1, 0.9])
    one = gaussians([here], 1.0)[0]
    found, plain = report_on([two, one, one]), report_on([one, one, one])
    np.testing.assert_allclose(found.z, plain.z, atol=1e-9)
    np.testing.assert_allclose(found.information, 1 / 3, rtol=1e-9)


def test_an_offset_of_all_means_costs_no_digits():
    means = np.array([[0.0, 0.1], [0.3, -0.2], [-0.1, 0.4]])
    near, far = (report_on(gaussians(means * 2**-10 + offset, 2.0**-10)) for offset in (0.0, 2.0**26))
    np.testing.assert_allclose(far.z, near.z, atol=1e-4)
    np.testing.assert_allclose(far.distance, near.distance, atol=1e-4)


def test_a_shard_that_holds_nearly_everything_has_others_still():
    found = report_on(gaussians([[0.0], [1.0], [1.0]], [[1e-9], [1.0], [1.0]]))
    assert found.z[0, 0] == pytest.approx(-1 / np.sqrt(0.5), rel=1e-9)
    assert found.sd_ratio[0, 0] == pytest.approx(np.sqrt(0.5) / 1e-9, rel=1e-9)


def test_thousands_of_diagonal_parameters_make_no_matrix():
    d = 50_000
    rng = np.random.default_rng(2)
    noise = rng.normal(size=(3, d))
    mixtures = [GaussianMixture(np.zeros(1), mean[None], np.ones((1, d)), Diagonal()) for mean in noise]
    found = conflict_between(fits_of(mixtures, reals(d)), mixtures[0], reals(d))
    np.testing.assert_allclose(found.z[0], (noise[0] - (noise[1] + noise[2]) / 2) / np.sqrt(1.5), atol=1e-12)
    assert found.status.ok


def test_exchangeable_parameters_are_compared_in_one_order():
    space = Space((Parameter("place", (3,), constraints.real),), (("place",),))
    means = np.array([-5.0, 0.0, 5.0])
    mixtures = gaussians([means, means[[2, 0, 1]] + 0.1, means[[1, 2, 0]] - 0.1], 0.5)
    assert report_on(mixtures, space).status.ok
    assert not report_on(mixtures).status.ok


def test_a_p_value_that_underflows_keeps_its_logarithm():
    for d, away in ((1, 60.0), (2, 1e3), (7, 50.0), (400, 4.0)):
        found = report_on(gaussians([np.zeros(d), np.full(d, away)], 1.0))
        with mpmath.workdps(30):
            exact = mpmath.log(mpmath.gammainc(d / 2, found.distance[0] / 2, mpmath.inf, regularized=True))
        assert chi2.sf(found.distance[0], d) < 1e-280
        assert found.log_p[0] == pytest.approx(float(exact), rel=1e-4)


def test_one_shard_has_nothing_to_be_compared_with():
    found = report_on(gaussians([[1.0, 2.0]], 1.0))
    assert found.status == Status(StatusCode.NOTHING_TO_COMPARE, "nothing to compare: fewer than two shards have rows.")
    assert np.all(np.isnan(found.z))
    np.testing.assert_array_equal(found.information, 1.0)
    assert str(found).splitlines()[1].split() == ["1", "of", "1", "100", "100.0", "%", *"-----"]
    assert found.shard(1) == str(found.status)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["z"] == [[None, None]]


def test_a_shard_without_rows_is_a_factor_and_gets_no_verdict():
    mixtures = gaussians([[0.0], [0.5], [90.0]], [[1.0], [1.0], [3.0]])
    assert not report_on(mixtures).status.ok
    found = report_on(mixtures, rows=[100, 100, 0])
    # It pulls both of the others' comparisons the same way, by little.
    np.testing.assert_allclose(found.information[:, 0], np.array([9, 9, 1]) / 19)
    assert not found.flagged[2]
    assert str(found).splitlines()[3].split()[-5:] == ["-"] * 5
    alone = report_on(mixtures, rows=[100, 0, 0])
    assert alone.status.ok
    assert "fewer than two shards have rows" in alone.status.text


def test_of_two_shards_neither_is_called_wrong():
    found = report_on(gaussians([[0.0, 3.0], [0.0, 9.0]], 0.5))
    assert np.all(found.flagged)
    assert "shards 1 of 2 and 2 of 2 are 8.5 sds apart in w[1]" in found.status.text
    assert "neither can be called the wrong one" in found.status.text
    assert "mirrored" not in found.status.text
    turned = report_on(gaussians([[2.0, 3.0], [-2.0, -3.0]], 0.3))
    assert "One shard's coefficients look mirrored" in turned.status.text


def test_a_second_outlier_is_not_hidden_behind_the_first():
    means = np.zeros((6, 2))
    means[1], means[4] = (20.0, 0.0), (0.0, 9.0)
    text = report_on(gaussians(means, 0.5)).status.text
    assert "shard 2 of 6 is" in text
    assert "in w[0]" in text
    assert "Without it the others still disagree (5 flagged)" in text
    means[4] = 0.0
    assert "Flagged with it: 5 more. Without it the others agree." in report_on(gaussians(means, 0.5)).status.text


TRUTH = np.array([1.0, -2.0, 0.5, 1.5])
# What the third of five shards has instead of the truth, and what is asked about it.
SHIFTS = {
    "all signs": (-TRUTH, "Its coefficients look mirrored: are its labels the other way round?"),
    "one sign": (TRUTH * [1, -1, 1, 1], "With w[1] mirrored it would agree"),
    "two signs": (TRUTH * [1, -1, 1, -1], None),
    "other units": (TRUTH * [1, 1e-3, 1, 1], None),
    "other units and sign": (TRUTH * [1, -0.3, 1, 1], None),
    "nothing": (np.zeros(4), None),
    "twice": (TRUTH * 2, None),
    "elsewhere": (np.array([1.0, -2.0, 0.5, 4.5]), None),
}


@pytest.mark.parametrize("name", SHIFTS)
def test_signs_are_asked_about_only_when_they_explain_the_conflict(name):
    value, question = SHIFTS[name]
    noise = 0.1 * np.random.default_rng(3).normal(size=(5, 4))
    means = TRUTH + noise
    means[2] = value + noise[2]
    found = report_on(gaussians(means, 0.1))
    assert "shard 3 of 5 is" in found.status.text
    if question is None:
        assert "mirrored" not in found.status.text
    else:
        assert question in found.status.text


def test_positive_parameters_are_not_mirrored():
    space = Space((Parameter("scale", (2,), constraints.positive),))
    means = np.array([[1.0, 2.0], [1.0, 2.0], [-1.0, -2.0]])
    found = report_on(gaussians(means, 0.1), space)
    assert "shard 3 of 3 is" in found.status.text
    assert "in scale[1]" in found.status.text
    assert "mirrored" not in found.status.text


SITES = ["ca", "ny", "tx", "va"]


def hospitals(change):
    rows, _ = simulate_logistic(1200, 4, intercept=True, seed=1)
    site = np.array(SITES)[np.arange(1200) % 4]
    change(rows, site)
    return epvi.fit(logistic, {**rows, "site": site}, by="site", executor=1, certify=False).conflict()


def flipped_labels(rows, site):
    rows["y"] = np.where(site == "tx", 1 - rows["y"], rows["y"])


def other_units(rows, site):
    rows["x"][site == "ny", 2] *= 100


def nothing_wrong(rows, site):
    pass


def test_the_hospital_with_flipped_labels_is_named():
    found = hospitals(flipped_labels)
    assert not found.status.ok
    assert "shard 3 of 4 (site = tx) is" in found.status.text
    assert "Without it the others agree. Its coefficients look mirrored: are its labels" in found.status.text
    assert "\n" not in found.status.text


def test_the_hospital_with_a_column_in_other_units_is_named():
    found = hospitals(other_units)
    assert "shard 2 of 4 (site = ny) is" in found.status.text
    assert "sds from the others in w[2]" in found.status.text
    assert "Without it the others agree." in found.status.text
    assert "mirrored" not in found.status.text
    # It decides that coefficient alone, as its numbers are a hundred times as large.
    assert found.information[1, found.names.index("w[2]")] > 0.99


def test_hospitals_that_agree_are_left_in_peace():
    found = hospitals(nothing_wrong)
    assert found.status.ok
    assert found.names == ("alpha", "w[0]", "w[1]", "w[2]", "w[3]")
    assert found.status.text.startswith("the 4 shards agree: the farthest, ")
    assert not np.any(found.flagged)


def test_the_table_has_a_line_per_shard_and_marks_the_flagged():
    lines = str(report_on(gaussians([[0.0, 0.0], [0.1, 0.0], [0.0, 0.2], [0.0, 30.0]], 1.0), rows=1234)).splitlines()
    assert len(lines) == 6
    assert lines[0].split() == [
        *("shard", "rows", "information", "distance", "(2", "dof)", "farthest", "in", "z"),
        *("mean", "shift", "sd", "ratio"),
    ]
    assert lines[4].split() == [*"!4", "of", "4", "1,234", "25.0", "%", "672.0", "w[1]", "+25.92", "+14.97", "1.15"]
    assert lines[5].startswith("in conflict: shard 4 of 4 is 25.9 sds from the others in w[1] (distance 672 where 2")


def test_of_many_shards_the_worst_are_shown():
    means = np.random.default_rng(4).normal(size=(50, 2))
    means[33] += 20
    rows = np.full(50, 10)
    rows[7] = 0
    found = report_on(gaussians(means, 1.0), rows=rows)
    lines = str(found).splitlines()
    assert len(lines) == 1 + 20 + 2
    assert lines[1].split()[:4] == ["!", "34", "of", "50"]
    assert lines[21] == "(and 30 shards that are less far)"
    shown = [int(line.replace("!", " ").split()[0]) - 1 for line in lines[1:21]]
    hidden = np.setdiff1d(np.arange(50), [*shown, 7])
    assert np.min(found.distance[shown]) >= np.max(found.distance[hidden])


def test_the_table_of_one_shard_has_all_parameters_the_farthest_first():
    found = report_on(gaussians([[0.0, 0.0, 0.0], [1.0, -4.0, 0.5], [0.0, 0.0, 0.0]], 1.0))
    lines = found.shard(2).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["w[1]", "w[0]", "w[2]"]
    assert lines[1].split() == ["w[1]", "-3.27", "-2.31", "1.22", "33.3", "%"]
    assert found.shard("2 of 3") == found.shard(2)
    refused(lambda: found.shard(4), r"there is no shard 4: pass a number or a label from the table \(1, 2, 3\)")
    refused(lambda: found.shard("north"), r"there is no shard 'north': .* \(1 of 3, 2 of 3, 3 of 3\)")


def test_json_holds_plain_finite_numbers():
    found = report_on(gaussians([[0.0, 0.0], [1e6, 0.0], [0.0, 0.2]], 1.0))
    read = json.loads(json.dumps(found.to_json(), allow_nan=False))
    for name in ("z", "mean_shift", "sd_ratio", "information", "distance", "log_p"):
        np.testing.assert_array_equal(np.asarray(read[name], float), getattr(found, name))
    assert read["shards"] == [1, 2, 3]
    assert read["num_rows"] == [100, 100, 100]
    assert read["flagged"] == found.flagged.tolist()
    assert read["ok"] is False
    assert read["status"] == found.status.text


def test_precisions_that_cannot_be_factored_get_one_sentence():
    root = np.array([[[1.0, 0.0], [1.0, 1e-9]]])
    mixture = GaussianMixture(np.zeros(1), np.zeros((1, 2)), root, Full())
    fits = fits_of([mixture, mixture], reals(2))
    refused(lambda: conflict_between(fits, mixture, reals(2)), "cannot be compared, because a precision")
