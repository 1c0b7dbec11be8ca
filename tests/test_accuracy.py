"""The suite of known posteriors measures what it says: models, loading, errors, targets and peers, on made-up data."""

import json

import accuracy
import accuracy_peers
import accuracy_scores
import jax
import made
import numpy as np
import numpyro
import numpyro.distributions as dist
import posteriors
import pytest
from accuracy_scores import Result, Score, targets, told
from nuts import Lengths
from posteriors import Gold, Moments
from scipy import stats

import epvi
import epvi.run
from epvi.float64 import promotion_allowed
from epvi.seeds import as_key

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
    target = gold.model.programs(gold.rows).target
    with jax.enable_x64(True), promotion_allowed():
        rows = np.sum(target.log_likelihood(theta, gold.rows))
        return float(target.log_prior(theta) - target.space.log_jacobian(theta) + rows)


@pytest.mark.parametrize("name", posteriors.RECIPES)
def test_a_posterior_of_posteriordb_is_loaded_and_its_density_is_that_of_the_words(tmp_path, name):
    at, data, draws = written(tmp_path, name)
    gold = posteriors.from_posteriordb(at)
    assert gold.reference.names == tuple(map(_down, names_of(name)))
    np.testing.assert_allclose(gold.reference.mean, draws.mean(axis=(0, 1)))
    space = gold.model.programs(gold.rows).target.space
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


def test_a_posterior_without_data_is_skipped_in_one_line(tmp_path, capsys):
    accuracy.main(["--data", str(tmp_path), "--only", "nes1996", "--no-peers"])
    said = [line for line in capsys.readouterr().out.splitlines() if "nes1996" in line]
    assert said == [f"nes1996-nes: skipped, its data are not in {tmp_path}"]


def test_moments_of_chains_have_the_errors_of_independent_draws():
    rng = np.random.default_rng(0)
    chains = {"a": rng.normal(3.0, 2.0, size=(4, 5000)), "b": rng.exponential(size=(4, 5000))}
    found, n = posteriors.moments_of_chains(chains), 20_000
    assert abs(found.mean[0] - 3) < 4 * 2 / n**0.5
    # Var(s²) = (κ − 1) σ⁴ / n with kurtosis κ = 3 and 9; the effective number itself is known to a tenth.
    np.testing.assert_allclose(found.mean_error, np.array([2.0, 1.0]) / n**0.5, rtol=0.15)
    np.testing.assert_allclose(found.sd_error, [2 * (2 / n) ** 0.5 / 2, (8 / n) ** 0.5 / 2], rtol=0.25)


def test_an_answer_is_scored_as_by_hand():
    rng = np.random.default_rng(1)
    names = ("a", "b", "c")
    reference = Moments(names, *(rng.uniform(0.5, 2, 3) * s for s in (1, 1, 0.01, 0.01)))
    other = Moments(names[::-1], *(rng.uniform(0.5, 2, 3) * s for s in (1, 1, 0.02, 0.02)))
    found = accuracy_scores.score(other, reference)
    away, error, ratio, ratio_error = {}, {}, {}, {}
    for i, name in enumerate(names):
        j = 2 - i
        away[name] = abs(other.mean[j] - reference.mean[i]) / reference.sd[i]
        error[name] = (other.mean_error[j] ** 2 + reference.mean_error[i] ** 2) ** 0.5 / reference.sd[i]
        ratio[name] = other.sd[j] / reference.sd[i]
        relative = (other.sd_error[j] / other.sd[j]) ** 2 + (reference.sd_error[i] / reference.sd[i]) ** 2
        ratio_error[name] = ratio[name] * relative**0.5
    worst = max(away, key=lambda name: away[name])
    assert found.where == worst
    expected = away[worst], error[worst], max(away[n] - 3 * error[n] for n in names)
    np.testing.assert_allclose((found.mean, found.mean_error, found.excess), expected)
    np.testing.assert_allclose((found.low, found.high), (min(ratio.values()), max(ratio.values())))
    np.testing.assert_allclose(found.low_excess, min(ratio[n] + 3 * ratio_error[n] for n in names))
    np.testing.assert_allclose(found.high_excess, max(ratio[n] - 3 * ratio_error[n] for n in names))


def test_draws_of_the_reference_itself_score_no_more_than_their_error():
    rng = np.random.default_rng(2)
    gold = known_gold()
    exact = gold.reference
    draws = {"mu": rng.normal(exact.mean, exact.sd, size=(4000, 2))}
    found = accuracy_scores.score(gold.moments(draws), exact)
    assert found.excess < 0.03
    np.testing.assert_allclose(found.mean_error, 4000**-0.5, rtol=0.05)
    assert found.low_excess > 1 > found.high_excess


def result(method, mean, *, m=4, sds=(1.0, 1.0), verdict=None, error=0.001, peer=False, counts=True):
    scored = Score(mean, error, "a", mean - 3 * error, *sds, *sds)
    answer = accuracy_peers.Answer(None, 1.0, None, None, None, verdict)  # pyright: ignore[reportArgumentType]
    return Result("p", True, m, counts, method, peer, answer, scored)


def words(*results):
    return [outcome.word for outcome in targets(results)]


def test_targets_are_held_within_error_or_missed():
    refined = accuracy_scores.REFINED
    assert words(result(refined, 0.04)) == ["held"]
    assert words(result(refined, 0.06, error=0.01)) == ["held within error"]
    assert words(result(refined, 0.06)) == ["missed"]
    assert words(result(refined, 0.04, sds=(0.94, 1.0))) == ["missed"]
    assert words(result(refined, float("nan"))) == ["missed"]
    assert words(result(refined, 0.06, counts=False)) == []


def test_only_a_verdict_that_warns_excuses_one_round():
    assert words(result("defaults", 0.09)) == ["held"]
    assert words(result("defaults", 0.3, verdict="do not trust")) == ["held"]
    for verdict in (None, "trust", "trust with corrected weights"):
        assert words(result("defaults", 0.3, verdict=verdict)) == ["missed"]


def test_a_peer_counts_at_its_own_number_of_shards_and_on_all_rows():
    mine = result(accuracy_scores.REFINED, 0.04)
    better, whole, elsewhere = (result("peer", 0.01, m=m, peer=True) for m in (4, 1, 10))
    assert words(mine, better) == ["held", "missed"]
    assert words(mine, whole) == ["held", "missed"]
    assert words(mine, elsewhere) == ["held"]
    assert words(mine, result("peer", 0.5, peer=True)) == ["held", "held"]
    lines = told(targets([mine, better]))
    assert lines[0].startswith("held: ")
    assert lines[1].startswith("MISSED: ")
    assert lines[2].strip().startswith("missed: p, M = 4: 0.040 beside 0.010")


def known_mean(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 0.1).expand([2]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1.0).to_event(1), obs=y)


def known_gold():
    """A conjugate posterior: half of what is known of mu is the prior's."""
    y = np.random.default_rng(0).normal(0.3, size=(100, 2))
    precision = 100 + len(y)
    zero = np.zeros(2)
    reference = Moments(("mu[0]", "mu[1]"), y.sum(axis=0) / precision, np.full(2, precision**-0.5), zero, zero)
    return Gold("known", "linear", epvi.Model(known_mean), {"y": y}, reference, {"mu": zero})


def finds_the_known(peer, gold, most):
    """A posterior with two priors would be 4 sds away."""
    answer = peer.answer(gold, 2 if peer.is_sharded else 1, 0)
    found = accuracy_scores.score(answer.moments, gold.reference)
    assert found.excess < most, peer.name
    assert found.low_excess > 0.98, peer.name
    assert found.high_excess < 1.02, peer.name


def is_guide(peer):
    return peer.name.startswith("Auto")


def test_peers_find_a_conjugate_posterior_from_shares_of_its_prior():
    peers = [peer for peer in accuracy_peers.peers(Lengths(200, 1000)) if not is_guide(peer)]
    assert len(peers) == 3
    gold = known_gold()
    for peer in peers:
        finds_the_known(peer, gold, 0.02)


@pytest.mark.slow
def test_guides_find_a_conjugate_posterior():
    peers = [peer for peer in accuracy_peers.peers(Lengths(), steps=5000) if is_guide(peer)]
    assert len(peers) == 2
    for peer in peers:
        finds_the_known(peer, known_gold(), 0.05)


def test_peers_have_the_shards_of_fit():
    rows = {"y": np.arange(46.0).reshape(23, 2)}
    table, split = epvi.run._split(epvi.Model(known_mean), rows, 4, None, True, as_key(3))
    for part, shard in zip(accuracy_peers.shards_of(rows, 4, 3), split.shards, strict=True):
        np.testing.assert_array_equal(part["y"], table.columns["y"][shard])


def test_a_shard_must_have_more_rows_than_parameters():
    gold = known_gold()
    methods = accuracy.chosen_methods(accuracy.QUICK, ["paper", "NUTS"], with_peers=True)
    found = [(m, method.name) for m, method, _ in accuracy.runs(gold, (1, 20, 50), methods)]
    assert (1, "NUTS, all rows") in found
    assert (20, "paper") in found
    assert (20, "NUTS per shard, consensus") in found
    assert (1, "NUTS per shard, consensus") not in found
    assert all(m != 50 for m, _ in found)
    assert accuracy_scores.counts(gold, 10)
    assert not accuracy_scores.counts(gold, 11)


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


def test_a_reference_run_is_made_once(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gold = known_gold()
    first, again = (made.cached_chains("known", gold.model, gold.rows, gold.start, Lengths(100, 50, 2)) for _ in "ab")
    assert first["mu"].shape == (2, 50, 2)
    np.testing.assert_array_equal(first["mu"], again["mu"])
    assert capsys.readouterr().out.count("drawing the reference") == 1
    assert len(list((tmp_path / "epvi-benchmarks").iterdir())) == 1


def test_results_are_appended_to_a_file(tmp_path):
    gold, file = known_gold(), tmp_path / "results.csv"
    refusal = Result("known", True, 4, True, "paper", False, None, None, "no answer: refused")
    for found in (result("full", 0.25), refusal):
        accuracy.append(file, accuracy.record(found, gold, 7))
    lines = file.read_text().splitlines()
    assert lines[0] == ",".join(accuracy.FIELDS)
    assert len(lines) == 3
    assert ",0.25," in lines[1]
    assert "refused" in accuracy.line(refusal)
    assert "0.250" in accuracy.line(result("full", 0.25))
