"""Fits with group effects integrated out: against exact posteriors and NUTS, by any number of workers, and as files."""

from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import numpyro
import pytest
from scipy.stats import norm
from sentences import refused
from some_groups import logistic_groups, normal_groups, rows_of_groups

import epvi

G = 30


@pytest.fixture(scope="module")
def normal():
    rows, _ = rows_of_groups(240, G, binary=False)
    # A level without rows, and one with a single row.
    g = np.where(rows["g"] == 3, 4, rows["g"])
    g = np.where((g == 5) & (np.cumsum(g == 5) > 1), 6, g)
    rows = {"g": g, "y": rows["y"]}
    return rows, epvi.fit(epvi.Model(normal_groups(G)), rows, 3, executor=2)


def exact(rows):
    """Weights on a grid of mu and log tau, and the moments of all effects at each point of it."""
    mu, log_tau = np.meshgrid(np.linspace(-0.6, 1.4, 161), np.linspace(-1.6, 0.6, 161), indexing="ij")
    mu, log_tau = mu.ravel()[:, None], log_tau.ravel()[:, None]
    counts, sums = np.bincount(rows["g"], minlength=G), np.bincount(rows["g"], rows["y"], minlength=G)
    squares = np.bincount(rows["g"], rows["y"] ** 2, minlength=G)
    tau2, s2 = np.exp(2 * log_tau), 0.49
    precision = counts / s2 + 1 / tau2
    mean = (sums / s2 + mu / tau2) / precision
    log = -0.5 * (squares / s2 + mu**2 / tau2 - precision * mean**2) - 0.5 * np.log(precision * tau2)
    log = np.sum(log, axis=1) + norm(0, 2).logpdf(mu[:, 0]) + norm(0, 1).logpdf(np.exp(log_tau[:, 0])) + log_tau[:, 0]
    weights = np.exp(log - log.max())
    return weights / weights.sum(), mu[:, 0], np.exp(log_tau[:, 0]), mean, 1 / precision


def test_the_posterior_of_normal_groups(normal):
    rows, posterior = normal
    assert posterior.effects is not None
    assert posterior.status.ok
    assert posterior.num_rows == 240
    summary = posterior.summary()
    weights, mu, tau, mean, variance = exact(rows)

    def moments(values, within=0.0):
        centre = weights @ values
        return centre, np.sqrt(weights @ ((values - centre) ** 2 + within))

    found = {"mu": moments(mu), "tau": moments(tau)}
    found |= {f"a[{g}]": moments(mean[:, g], variance[:, g]) for g in range(G)}
    for name, (centre, sd) in found.items():
        assert abs(summary[name]["mean"] - centre) < 0.05 * sd, name
        assert abs(summary[name]["sd"] / sd - 1) < 0.03, name


def test_draws_have_all_parameters(normal):
    _, posterior = normal
    draws = posterior.sample(4000, seed=1)
    assert {name: value.shape for name, value in draws.items()} == {"mu": (4000,), "tau": (4000,), "a": (4000, G)}
    summary = posterior.summary()
    sds = np.array([summary[f"a[{g}]"]["sd"] for g in range(G)])
    means = np.array([summary[f"a[{g}]"]["mean"] for g in range(G)])
    # Four standard errors of a mean and of an sd of 4,000 draws.
    np.testing.assert_array_less(np.abs(draws["a"].mean(axis=0) - means) / sds, 4 / np.sqrt(4000))
    np.testing.assert_array_less(np.abs(draws["a"].std(axis=0) / sds - 1), 4 / np.sqrt(2 * 4000) + 0.01)


def test_the_density_of_all_parameters(normal):
    _, posterior = normal
    theta = posterior.theta(3, seed=0)
    centre = np.asarray(theta[:1])
    step = 1e-3
    moved = centre.copy()
    moved[0, 2] += step
    again = centre.copy()
    again[0, 2] -= step
    found = posterior.log_density(np.stack([again[0], centre[0], moved[0]]))
    curvature = (found[0] - 2 * found[1] + found[2]) / step**2
    root = posterior.effects.roots(centre[:, :2])[0, 0, 0, 0]
    np.testing.assert_allclose(curvature, -1 / root**2, rtol=1e-4)
    named = {name: value[0] for name, value in posterior.space.constrain(theta).items()}
    np.testing.assert_allclose(posterior.log_density(named), found[1], rtol=1e-9)


def test_a_file_keeps_everything(normal, tmp_path):
    _, posterior = normal
    again = epvi.load(posterior.save(tmp_path / "posterior.epvi"))
    np.testing.assert_array_equal(again.theta(50, seed=2), posterior.theta(50, seed=2))
    np.testing.assert_array_equal(again.summary().sd, posterior.summary().sd)
    assert again.certificate.text == posterior.certificate.text
    assert "30 group effects (a) were integrated out" in again.certificate.text
    assert again.num_rows == posterior.num_rows


def test_predictions_and_exports(normal):
    rows, posterior = normal
    model = epvi.Model(normal_groups(G))
    assert epvi.predict(model, posterior, {"g": rows["g"]}, num_samples=20)["y"].shape == (20, 240)
    assert -2 < epvi.log_predictive(model, posterior, rows, num_samples=50) < -0.5
    assert posterior.to_arviz(40)["posterior"]["a"].shape == (4, 10, G)


def test_what_it_cannot_do_is_refused(normal):
    _, posterior = normal
    for call in (posterior.ask, lambda: posterior.update(posterior.fits[0])):
        with pytest.raises(epvi.EpviError, match="group effects were integrated out"):
            call()


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_bits(normal):
    rows, posterior = normal
    one = epvi.fit(epvi.Model(normal_groups(G)), rows, 3, executor=1)
    np.testing.assert_array_equal(one.theta(20, seed=0), posterior.theta(20, seed=0))


@pytest.mark.slow
def test_splits_that_divide_groups_are_fitted_jointly(normal):
    rows, _ = normal
    settings = {"certify": False, "inference": epvi.NVI(2, num_starts=4, num_draws=64)}
    divided = epvi.fit(epvi.Model(normal_groups(G)), rows, 2, shuffle=False, **settings)
    assert divided.effects is None
    order = np.argsort(rows["g"], kind="stable")
    rows = {**{name: column[order] for name, column in rows.items()}, "site": np.sort(rows["g"]) // 15}
    whole = epvi.fit(epvi.Model(normal_groups(G)), rows, by="site", **settings)
    assert whole.effects is not None


@pytest.mark.slow
def test_levels_may_have_names_and_groups_any_size():
    rows, _ = rows_of_groups(160, 25, binary=False, seed=4)
    # Half of the rows in one group, many groups with few rows, and a level without any.
    g = np.where(np.arange(160) < 80, 0, np.where(rows["g"] == 7, 8, rows["g"]))
    names = [f"level {i:02d}" for i in range(25)]
    table = epvi.Rows({"g": np.array(names)[g], "y": rows["y"]}, g="g", y="y", levels={"g": names})
    model, settings = epvi.Model(normal_groups(25)), {"certify": False, "seed": 1}
    named = epvi.fit(model, table, 2, executor=1, **settings)
    with ThreadPoolExecutor(1) as executor:
        coded = epvi.fit(model, {"g": g, "y": rows["y"]}, 2, executor=executor, **settings)
    assert named.effects is not None
    np.testing.assert_allclose(coded.effects.mean, named.effects.mean, rtol=1e-6)
    # The level without rows has the prior's mean, mu.
    np.testing.assert_allclose(named.effects.mean[:, 7, 0], named.effects.supports[:, 0], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("centred", [True, False])
def test_logistic_groups_against_nuts(centred):
    rows, _ = rows_of_groups(2000, 40, seed=2)
    model = logistic_groups(40, centred=centred)
    posterior = epvi.fit(epvi.Model(model), rows, 4)
    assert posterior.effects is not None
    assert posterior.status.ok
    sampler = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model), num_warmup=1000, num_samples=8000, num_chains=1, progress_bar=False
    )
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        sampler.run(jax.random.key(0), **rows)
        draws = sampler.get_samples()
    summary = posterior.summary()
    for name, value in draws.items():
        flat = np.asarray(value, np.float64).reshape(len(value), -1)
        labels = [label for _, label in posterior.space.by_name[name].elements()]
        for label, column in zip(labels, flat.T, strict=True):
            # NUTS has an effective sample size of at least 1,500 here: four standard errors are 0.1 sds, and 7 %.
            assert abs(summary[label]["mean"] - column.mean()) < 0.1 * column.std(), label
            assert abs(summary[label]["sd"] / column.std() - 1) < 0.07, label


def test_a_code_out_of_range_is_refused_with_the_users_row():
    rows, _ = rows_of_groups(200, 24)
    codes = rows["g"].copy()
    codes[77] = 24
    refused(lambda: epvi.fit(logistic_groups(24), {**rows, "g": codes}, 3), "g is 24 in row 78, but the model has 24")
