"""Groups declared by `epvi.Model(f, groups=...)`: integrals against exact posteriors, effects, prediction, refusals."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import norm
from sentences import refused

import epvi
from epvi.site.rows.grouped_table import read_grouped
from epvi.site.tasks.prepared import prepared

G, NOISE = 12, 0.7
LABELS = np.array([f"ward {g:02d}" for g in range(G)])


def normal(ward, num_ward, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("ward", num_ward):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    with numpyro.plate("rows", ward.shape[0]):
        numpyro.sample("y", dist.Normal(a[ward], NOISE), obs=y)


MODEL = epvi.Model(normal, groups="ward")


def made_rows(seed=0):
    """Rows of groups with one to eleven rows, in mixed order; their codes."""
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.repeat(np.arange(G), np.arange(G) % 11 + 1))
    effects = rng.normal(0.4, 0.8, G)
    return {"ward": LABELS[codes], "y": effects[codes] + NOISE * rng.normal(size=len(codes))}, codes


def exact(rows, codes):
    """Means and sds of mu, tau and all effects on a grid of mu and log tau."""
    mu, log_tau = np.meshgrid(np.linspace(-1.5, 2.5, 161), np.linspace(-2.5, 1.2, 161), indexing="ij")
    mu, log_tau = mu.ravel()[:, None], log_tau.ravel()[:, None]
    counts, sums = np.bincount(codes, minlength=G), np.bincount(codes, rows["y"], minlength=G)
    tau2, s2 = np.exp(2 * log_tau), NOISE**2
    precision = counts / s2 + 1 / tau2
    mean = (sums / s2 + mu / tau2) / precision
    log = -0.5 * (mu**2 / tau2 - precision * mean**2) - 0.5 * np.log(precision * tau2)
    log = np.sum(log, axis=1) + norm(0, 2).logpdf(mu[:, 0]) + norm(0, 1).logpdf(np.exp(log_tau[:, 0])) + log_tau[:, 0]
    weights = np.exp(log - log.max())
    weights /= weights.sum()

    def moments(values, within=0.0):
        centre = weights @ values
        return centre, np.sqrt(weights @ ((values - centre) ** 2 + within))

    found = {"mu": moments(mu[:, 0]), "tau": moments(np.exp(log_tau[:, 0]))}
    return found, np.array([moments(mean[:, g], 1 / precision[:, g]) for g in range(G)])


@pytest.fixture(scope="module")
def fitted():
    rows, codes = made_rows()
    return rows, codes, epvi.fit(MODEL, rows, 3, executor=1)


@pytest.mark.slow
def test_the_posterior_of_the_shared_parameters(fitted):
    rows, codes, posterior = fitted
    assert posterior.status.ok
    assert list(posterior.space.by_name) == ["mu", "tau"]
    assert posterior.num_rows == len(codes)
    assert "effects of ward were integrated out" in posterior.certificate.text
    summary, (wanted, _) = posterior.summary(), exact(rows, codes)
    for name, (centre, sd) in wanted.items():
        assert abs(summary[name]["mean"] - centre) < 0.05 * sd, name
        assert abs(summary[name]["sd"] / sd - 1) < 0.05, name


@pytest.mark.slow
def test_the_effects_of_groups_at_their_site(fitted):
    rows, codes, posterior = fitted
    site = np.isin(codes, [2, 5, 9])
    found = posterior.groups(MODEL, {name: column[site] for name, column in rows.items()}, num_samples=2000)
    _, wanted = exact(rows, codes)
    assert found.labels.tolist() == LABELS[[2, 5, 9]].tolist()
    mean, sd = wanted[[2, 5, 9]].T
    # Four standard errors of 2,000 draws, and what the posterior of the shared parameters may be off.
    assert np.all(np.abs(found.mean["a"] - mean) < (0.05 + 4 / np.sqrt(2000)) * sd)
    assert np.all(np.abs(found.sd["a"] / sd - 1) < 0.05 + 4 / np.sqrt(2 * 2000))
    assert np.all(np.abs(found.draws["a"].mean(axis=0) - mean) < (0.05 + 4 / np.sqrt(2000)) * sd)
    assert np.all(np.abs(found.draws["a"].std(axis=0) / sd - 1) < 0.05 + 4 / np.sqrt(2 * 2000))
    assert found["ward 05"]["a"]["50 %"] == found.quantiles["a"][1, 1]
    assert "ward 05" in str(found)
    refused(lambda: found["ward 99"], "ward has no group 'ward 99'")


@pytest.mark.slow
def test_known_and_new_groups_are_predicted(fitted):
    rows, codes, posterior = fitted
    (shared, effects), size = exact(rows, codes), 2000
    new = {"ward": np.array(["ward 10", "nowhere"])}
    known = epvi.predict(MODEL, posterior, new, given=rows, num_samples=size)["y"]
    unknown = epvi.predict(MODEL, posterior, new, num_samples=size)["y"]
    for column in (known[:, 1], unknown[:, 0], unknown[:, 1]):
        assert abs(column.mean() - shared["mu"][0]) < 5 * column.std() / np.sqrt(size) + 0.05 * shared["mu"][1]
        assert column.std() > shared["tau"][0]
    mean, sd = effects[10]
    spread = np.hypot(sd, NOISE)
    assert abs(known[:, 0].mean() - mean) < 5 * spread / np.sqrt(size) + 0.05 * sd
    assert abs(known[:, 0].std() / spread - 1) < 4 / np.sqrt(2 * size) + 0.05


@pytest.mark.slow
def test_the_log_predictive_density_of_known_groups(fitted):
    rows, codes, posterior = fitted
    _, effects = exact(rows, codes)
    one = {"ward": LABELS[[10]], "y": np.array([0.3])}
    found = epvi.log_predictive(MODEL, posterior, one, given=rows, num_samples=4000)
    mean, sd = effects[10]
    # A group with eleven rows: its effect is nearly normal.
    assert found == pytest.approx(norm(mean, np.hypot(sd, NOISE)).logpdf(0.3), abs=0.03)
    assert epvi.log_predictive(MODEL, posterior, one, num_samples=4000) < found + 1.0


@pytest.mark.slow
def test_sites_exchange_numbers_that_do_not_grow_with_groups(fitted, tmp_path):
    rows, codes, _ = fitted
    sites = [{name: column[codes % 3 == m] for name, column in rows.items()} for m in range(3)]
    fits = [epvi.fit_shard(MODEL, site, f"{m + 1}/3") for m, site in enumerate(sites)]
    for fit in fits:
        content = fit.save(tmp_path / f"{fit.shard}.epvi").read_bytes()
        assert b"ward " not in content
        assert fit.space.dim == 2
        assert fit.made_of.groups == "ward"
    posterior = epvi.combine([epvi.load(tmp_path / f"{m}.epvi") for m in (1, 2, 3)])
    for number in range(3):
        draws = posterior.ask()
        scores = [epvi.score(MODEL, site, draws, f"{m + 1}/3") for m, site in enumerate(sites)]
        assert len({one.num_numbers for one in scores}) == 1
        if number < 2:
            posterior = epvi.refine(posterior, scores)
    certificate = epvi.certify(posterior, scores)
    assert certificate.verdict != "do not trust", certificate.text
    assert "effects of ward were integrated out" in certificate.text
    summary, (wanted, _) = posterior.with_certificate(certificate).summary(), exact(rows, codes)
    for name, (centre, sd) in wanted.items():
        assert abs(summary[name]["mean"] - centre) < 0.05 * sd, name
        assert abs(summary[name]["sd"] / sd - 1) < 0.05, name


def test_a_fingerprint_does_not_depend_on_the_number_of_groups():
    rows, codes = made_rows()
    parts = [{n: c[some] for n, c in rows.items()} for some in (codes < 4, codes == 7)]
    made = [prepared(MODEL, read_grouped(part, "ward"), labels=False).made_of for part in parts]
    assert made[0].prior_values == made[1].prior_values
    assert made[0].row_values == made[1].row_values
    assert made[0].fixed == made[1].fixed == {}


# Refusals.


def refused_model(function, message, **columns):
    rows, _ = made_rows()
    refused(lambda: epvi.fit_shard(epvi.Model(function, groups="ward"), {**rows, **columns}, "1/2"), message)


def walk(ward, num_ward, y=None):
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    a = numpyro.sample("a", dist.GaussianRandomWalk(tau, num_ward))
    with numpyro.plate("rows", ward.shape[0]):
        numpyro.sample("y", dist.Normal(a[ward], NOISE), obs=y)


def neighbours(ward, num_ward, y=None):
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("ward", num_ward):
        a = numpyro.sample("a", dist.Normal(0.0, tau))
    with numpyro.plate("rows", ward.shape[0]):
        numpyro.sample("y", dist.Normal(a[ward] + a[0], NOISE), obs=y)


def nested(ward, room, num_ward, y=None):
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("ward", num_ward):
        a = numpyro.sample("a", dist.Normal(0.0, tau))
        v = numpyro.sample("v", dist.Normal(0.0, tau))
    with numpyro.plate("rows", ward.shape[0]):
        numpyro.sample("y", dist.Normal(a[ward] + v[room], NOISE), obs=y)


def numbered(ward, num_ward, y=None):
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("ward", num_ward):
        a = numpyro.sample("a", dist.Normal(0.0, tau))
    with numpyro.plate("rows", ward.shape[0]):
        numpyro.sample("y", dist.Normal(a[ward] + 0.1 * ward, NOISE), obs=y)


def without_effects(ward, num_ward, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", ward.shape[0]):
        numpyro.sample("y", dist.Normal(mu + 0.0 * ward, NOISE), obs=y)


def test_groups_that_are_not_independent_are_refused_by_name():
    refused_model(walk, "the prior of a does not give each group of ward effects of its own")
    refused_model(neighbours, "the likelihood of a row uses a otherwise than by the entries of its own group")
    refused_model(numbered, "the model treats groups of ward differently by their numbers")
    refused_model(without_effects, "no parameter has an axis of length num_ward")


def test_effects_that_are_read_by_another_column_are_refused():
    _, codes = made_rows()
    refused_model(nested, "rows read 'v' by something else than ward", room=(codes + 1) % 5)


def test_a_model_needs_two_arguments_for_its_groups():
    refused(lambda: epvi.Model(normal, groups="hospital"), "normal has no argument 'hospital'")
    refused(lambda: epvi.Model(normal, groups="y"), "normal has no argument 'num_y'")
    refused(lambda: epvi.Model(normal, groups="ward", num_ward=3), "num_ward is fixed, and with groups='ward' epvi")


def test_a_split_that_divides_a_group_is_refused():
    rows, codes = made_rows()
    site = codes % 2
    site[np.flatnonzero(codes == 4)[0]] = 1
    refused(
        lambda: epvi.fit(MODEL, {**rows, "site": site}, by="site"), "group ward 04 of ward has rows in shards 1 of 2"
    )
    refused(lambda: epvi.fit(MODEL, rows, 2, shuffle=False), "no shard may hold a part of a group")
    refused(lambda: epvi.fit(MODEL, rows, G + 1), "there are 13 shards for 12 groups of ward")


def test_groups_with_missing_labels_are_refused():
    rows, _ = made_rows()
    rows["ward"] = np.where(np.arange(len(rows["y"])) == 3, None, rows["ward"])
    refused(lambda: epvi.fit_shard(MODEL, rows, "1/2"), "column 'ward' has 1 missing values: every row needs a group")


@pytest.mark.slow
def test_other_groups_are_refused_with_a_posterior(fitted):
    rows, _, posterior = fitted
    plain = epvi.Model(normal, num_ward=G)
    refused(lambda: posterior.groups(plain, rows), "model has no groups")
    refused(lambda: epvi.predict(plain, posterior, {"ward": [0, 1]}, given=rows), "given are rows of known groups")
