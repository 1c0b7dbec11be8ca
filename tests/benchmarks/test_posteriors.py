"""Known posteriors are what their words say: models against plain formulas, loading, moments, on made-up data."""

import json

import jax
import made
import numpy as np
import posteriors
import pytest
from quick import quick_for
from scipy import stats

from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.passes import programs_of

N = 6


def norm(x, mean, sd):
    return np.sum(stats.norm.logpdf(x, mean, sd))


def data_of(name, rng):
    """A few rows in posteriordb's layout."""
    real = {c: rng.normal(size=N).tolist() for c in ("x", "y", "Y", "mom_iq", "kid_score", "height")}
    real["earn"] = rng.uniform(1, 9, N).tolist()
    levels = {c: rng.integers(0, 2, N).tolist() for c in ("male", "mom_hs", "gender")}
    levels["age_discrete"] = [1, 2, 3, 4, 4, 2]
    for c in ("real_ideo", "race_adj", "educ1", "income", "partyid7"):
        levels[c] = rng.integers(1, 5, N).tolist()
    matrix = np.column_stack([np.ones(N), rng.normal(size=(N, 2))]).tolist()
    priors = {"pmualpha": 1.5, "psalpha": 4, "pmubeta": 0, "psbeta": 0.5}
    data = {**real, **levels, **priors, "X": matrix, "N": N, "K": 3}
    return {"J": N, "y": real["y"], "sigma": rng.uniform(1, 2, N).tolist()} if name.startswith("eight") else data


# The others take a second or more to compile.
QUICK = set(posteriors.RECIPES) - {"low_dim_gauss_mix-low_dim_gauss_mix", "eight_schools-eight_schools_noncentered"}


def names_of(name):
    """The scalars that posteriordb has of it, counted from 1."""
    several = {
        "nes": ("beta", 9),
        "earn": ("beta", 4),
        "kidiq": ("beta", 4),
        "sblrc": ("beta", 3),
        "diamonds": ("b", 2),
        "eight": ("theta", N),
    }
    if name.startswith("kilpis"):
        return ["alpha", "beta", "sigma"]
    if name.startswith("low"):
        return ["mu[1]", "mu[2]", "sigma[1]", "sigma[2]", "theta"]
    word, count = next(found for start, found in several.items() if name.startswith(start))
    rest = {"diamonds-diamonds": ["Intercept", "sigma"]}.get(name, ["mu", "tau"] if word == "theta" else ["sigma"])
    return [*(f"{word}[{i + 1}]" for i in range(count)), *rest]


def densities(d):
    """The models by hand: log p(values, rows) on constrained values, by posteriordb's name."""
    a = {name: np.asarray(values, float) for name, values in d.items() if np.ndim(values)}

    def interaction(v, one, other, y):
        b = v["beta"]
        return norm(y, b[0] + b[1] * one + b[2] * other + b[3] * one * other, v["sigma"])

    def nes(v):
        age = a["age_discrete"]
        columns = [1 + 0 * age, a["real_ideo"], a["race_adj"], age == 2, age == 3, age == 4]
        columns += [a["educ1"], a["gender"], a["income"]]
        return norm(a["partyid7"], sum(b * c for b, c in zip(v["beta"], columns, strict=True)), v["sigma"])

    def kidiq(v):
        return interaction(v, a["mom_hs"], a["mom_iq"], a["kid_score"]) + stats.halfcauchy.logpdf(v["sigma"], 0, 2.5)

    def kilpisjarvi(v):
        prior = norm(v["alpha"], 1.5, 4) + norm(v["beta"], 0, 0.5)
        return prior + norm(a["y"], v["alpha"] + v["beta"] * a["x"], v["sigma"])

    def blr(v):
        prior = norm(v["beta"], 0, 10) + stats.halfnorm.logpdf(v["sigma"], 0, 10)
        return prior + norm(a["y"], a["X"] @ v["beta"], v["sigma"])

    def diamonds(v):
        x = a["X"][:, 1:] - a["X"][:, 1:].mean(axis=0)
        prior = norm(v["b"], 0, 1) + stats.t.logpdf(v["Intercept"], 3, 8, 10)
        prior += np.log(2) + stats.t.logpdf(v["sigma"], 3, 0, 10)
        return prior + norm(a["Y"], v["Intercept"] + x @ v["b"], v["sigma"])

    def mixture(v):
        prior = norm(v["mu"], 0, 2) + np.sum(stats.halfnorm.logpdf(v["sigma"], 0, 2))
        parts = [stats.norm.pdf(a["y"], v["mu"][k], v["sigma"][k]) for k in (0, 1)]
        rows = np.log(v["theta"] * parts[0] + (1 - v["theta"]) * parts[1])
        return prior + stats.beta.logpdf(v["theta"], 5, 5) + np.sum(rows)

    def schools(v):
        prior = norm(v["mu"], 0, 5) + stats.halfcauchy.logpdf(v["tau"], 0, 5) + norm(v["z"], 0, 1)
        return prior + norm(a["y"], v["mu"] + v["tau"] * v["z"], a["sigma"])

    return {
        "nes1996-nes": nes,
        "earnings-logearn_interaction": lambda v: interaction(v, a["height"], a["male"], np.log(a["earn"])),
        "kidiq-kidscore_interaction": kidiq,
        "kilpisjarvi_mod-kilpisjarvi": kilpisjarvi,
        "sblrc-blr": blr,
        "diamonds-diamonds": diamonds,
        "low_dim_gauss_mix-low_dim_gauss_mix": mixture,
        "eight_schools-eight_schools_noncentered": schools,
    }


def written(folder, name, seed=0):
    """A folder as posteriordb's: data.json and reference_draws.npz, of positive and increasing draws."""
    rng = np.random.default_rng(seed)
    at = folder / "posteriordb" / name
    at.mkdir(parents=True)
    data = data_of(name, rng)
    (at / "data.json").write_text(json.dumps(data))
    names = names_of(name)
    draws = 0.1 + 0.5 * np.arange(len(names)) / len(names) + 0.01 * rng.normal(size=(4, 50, len(names)))
    np.savez(at / "reference_draws.npz", draws=draws, names=np.array(names))
    return at, data, draws


def log_joint(gold, theta):
    """Without the Jacobian of the constraints."""
    target = programs_of(gold.model, gold.rows).target
    with jax.enable_x64(True), promotion_allowed():
        rows = np.sum(target.log_likelihood(theta, gold.rows))
        return float(target.log_prior(theta) - target.space.log_jacobian(theta) + rows)


@pytest.mark.parametrize("name", quick_for(posteriors.RECIPES, QUICK))
def test_a_posterior_of_posteriordb_is_loaded_and_its_density_is_that_of_the_words(tmp_path, name):
    at, data, draws = written(tmp_path, name)
    gold = posteriors.from_posteriordb(at)
    assert gold.reference.names == tuple(map(_down, names_of(name)))
    np.testing.assert_allclose(gold.reference.mean, draws.mean(axis=(0, 1)))
    space = programs_of(gold.model, gold.rows).target.space
    theta = np.random.default_rng(1).normal(size=space.dim)
    by_hand = densities(data)[name]
    np.testing.assert_allclose(log_joint(gold, theta), by_hand(space.constrain(theta)), rtol=1e-9)
    # Where the peers start is inside the support, and what is measured of draws has the reference's names.
    start = space.constrain(space.unconstrain(gold.start)[None] + np.zeros((3, 1)))
    assert gold.moments(start).names == gold.reference.names


def _down(name):
    head, bracket, rest = name.partition("[")
    return f"{head}[{int(rest[:-1]) - 1}]" if bracket else name


def test_effects_of_schools_are_made_of_their_parameters():
    draws = {"mu": np.array([1.0, 2.0]), "tau": np.array([3.0, 0.5]), "z": np.array([[1.0, -1.0], [2.0, 0.0]])}
    effects = posteriors.schools_effects(draws)["theta"]
    np.testing.assert_allclose(effects, [[4.0, -2.0], [3.0, 2.0]])


def test_german_credit_has_the_intercept_as_its_last_weight(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(N, 2)), np.array([0, 1, 1, 0, 1, 1], np.int8)
    moments = {f"gold_{name}": np.array([1.0, 2.0, 3.0]) for name in ("mean", "sd", "mcse")}
    np.savez(tmp_path / "german_credit_numeric.npz", X=x, y=y, **moments)
    gold = posteriors.german_credit(tmp_path)
    w = np.array([0.3, -0.2, 0.7])
    logits = x @ w[:2] + w[2]
    by_hand = norm(w, 0, 1) + np.sum(y * logits - np.log1p(np.exp(logits)))
    np.testing.assert_allclose(log_joint(gold, w), by_hand, rtol=1e-9)
    assert gold.reference.names == ("w[0]", "w[1]", "w[2]")


def test_the_data_are_where_one_says_else_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("EPVI_DATA", str(tmp_path / "said"))
    assert posteriors.data_folder() == tmp_path / "said"
    assert posteriors.data_folder(tmp_path) == tmp_path
    monkeypatch.delenv("EPVI_DATA")
    assert posteriors.data_folder().parts[-2:] == ("shared", "data")


def test_moments_of_chains_have_the_errors_of_independent_draws():
    rng = np.random.default_rng(0)
    chains = {"a": rng.normal(3.0, 2.0, size=(4, 5000)), "b": rng.exponential(size=(4, 5000))}
    found, n = posteriors.moments_of_chains(chains), 20_000
    assert abs(found.mean[0] - 3) < 4 * 2 / n**0.5
    # Var(s²) = (κ − 1) σ⁴ / n with kurtosis κ = 3 and 9; the effective number itself is known to a tenth.
    np.testing.assert_allclose(found.mean_error, np.array([2.0, 1.0]) / n**0.5, rtol=0.15)
    np.testing.assert_allclose(found.sd_error, [2 * (2 / n) ** 0.5 / 2, (8 / n) ** 0.5 / 2], rtol=0.25)


def test_sources_come_in_one_order():
    rng = np.random.default_rng(0)
    draws = {"centres": rng.uniform(size=(5, 2, 2)), "widths": rng.uniform(size=(5, 2))}
    turned = {name: values[:, ::-1] for name, values in draws.items()}
    found, other = made.in_order(draws), made.in_order(turned)
    assert np.all(found["centres"][:, 0, 0] < found["centres"][:, 1, 0])
    for name, values in found.items():
        np.testing.assert_array_equal(values, other[name])
    first = np.argmin(draws["centres"][:, :, 0], axis=1)
    np.testing.assert_array_equal(found["widths"][:, 0], draws["widths"][np.arange(5), first])
