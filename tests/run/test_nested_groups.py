"""Fits of models with groups in larger groups: both effects are integrated out where one is not enough."""

import jax
import numpy as np
import pytest
from scipy.stats import halfnorm, norm
from some_classes import PARENT, G, H, classes, exact_normal, rows_of_classes

import epvi
from epvi.run import grouping


@pytest.fixture(scope="module")
def fitted():
    rows = rows_of_classes(False, seed=3)
    with pytest.MonkeyPatch.context() as patch:
        # With few normal rows one factor is enough: only the other way is tried.
        patch.setattr(grouping, "_single", lambda *arguments: None)
        return rows, epvi.fit(epvi.Model(classes(False)), rows, 2, executor=2)


@pytest.mark.slow
def test_the_posterior_is_the_exact_one(fitted):
    rows, posterior = fitted
    assert posterior.certificate.verdict in ("trust", "trust with corrected weights")
    assert posterior.effects.names == ("b", "a")
    names = ["w", "mu", "tau", "rho"]
    phi = np.asarray(posterior.mixture.sample(3000, seed=5))
    log, mean, variance = zip(*(exact_normal(rows, one) for one in phi), strict=True)
    scales = np.exp(phi[:, 2:])
    prior = np.sum(norm(0, 2).logpdf(phi[:, :2]), axis=1) + np.sum(halfnorm.logpdf(scales) + phi[:, 2:], axis=1)
    weights = np.exp(np.array(log) + prior - np.asarray(posterior.mixture.log_density(phi)))
    weights /= np.sum(weights)
    assert 1 / np.sum(weights**2) > 1000
    values = np.c_[phi[:, :2], scales, np.array(mean)]
    centre = weights @ values
    sd = np.sqrt(weights @ ((values - centre) ** 2 + np.c_[np.zeros((len(phi), 4)), np.array(variance)]))
    summary = posterior.summary()
    for name, m, s in zip([*names, *(f"b[{h}]" for h in range(H))], centre, sd, strict=True):
        # Both are known to about 1/√1000 sds; sds of skewed scales to about twice that.
        assert abs(summary[name]["mean"] - m) < 0.13 * s, name
        assert abs(summary[name]["sd"] / s - 1) < 0.13, name


@pytest.mark.slow
def test_both_effects_are_drawn_together(fitted):
    _, posterior = fitted
    draws = posterior.sample(4000, seed=0)
    summary = posterior.summary()
    for name, size in (("a", G), ("b", H)):
        for i in range(size):
            one = summary[f"{name}[{i}]"]
            assert abs(np.mean(draws[name][:, i]) - one["mean"]) < 0.15 * one["sd"]
            assert abs(np.std(draws[name][:, i]) / one["sd"] - 1) < 0.15
    # Of a group's level the rows know the sum of both effects: they are negatively correlated.
    correlations = [np.corrcoef(draws["a"][:, g], draws["b"][:, PARENT[g]])[0, 1] for g in range(G)]
    assert np.mean(correlations) < -0.15
    theta = posterior.theta(500, seed=1)
    assert np.all(np.isfinite(posterior.log_density(theta)))


@pytest.mark.slow
def test_a_file_keeps_both_effects(fitted, tmp_path):
    _, posterior = fitted
    read = epvi.load(posterior.save(tmp_path / "posterior.epvi"))
    np.testing.assert_array_equal(read.theta(100, seed=0), posterior.theta(100, seed=0))
    np.testing.assert_array_equal(read.summary().mean, posterior.summary().mean)
    theta = posterior.theta(100, seed=1)
    np.testing.assert_allclose(read.log_density(theta), posterior.log_density(theta), rtol=1e-12)


@pytest.mark.slow
def test_both_ways_are_gone_on_with_in_a_work_folder(monkeypatch, tmp_path, caplog):
    # As if the first way had failed.
    monkeypatch.setattr("epvi.run.fit.helps", lambda certificate: True)
    rows = rows_of_classes(False, seed=3)
    model = epvi.Model(classes(False))
    first = epvi.fit(model, rows, 2, executor=2, work=tmp_path)
    assert first.effects.names == ("b", "a")
    assert len(list(tmp_path.glob("*.epvi"))) == len(list((tmp_path / "nested").glob("*.epvi"))) == 2
    with caplog.at_level("INFO"):
        again = epvi.fit(model, rows, 2, executor=2, work=tmp_path)
    assert "this posterior cannot be trusted: more effects are integrated out" in caplog.text
    np.testing.assert_array_equal(again.summary().mean, first.summary().mean)


def test_the_second_way_has_both_factors():
    rows = rows_of_classes(True)
    model = epvi.Model(classes(True))
    programs = grouping.programs_of(model, rows)
    count = len(rows["g"])
    split = grouping.Split((np.arange(count),), np.array([count]), ("1",))
    ways = grouping.grouped(model, programs, rows, split, True, jax.random.key(0))
    assert [way.outer is not None for way in ways] == [False, True]
    assert ways[0].effects.names == ways[1].effects.names == ("a",)
    assert ways[1].outer.names == ("b",)
