"""Choices of other builders: the skeletons of docs/extending.md, and a structure that goes through all rooms."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sentences import refused

import epvi
from epvi.gaussian.structures import STRUCTURES, Diagonal, Elementwise
from epvi.ground import registry
from epvi.ground.registry import Registry
from epvi.hub.product.known import PRODUCTS
from epvi.models import logistic, simulate_logistic
from epvi.site.fit.inference import INFERENCES
from epvi.study.study import read_study

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"## ([^\n]+)\n(?:(?!\n## ).)*?```python\n(.*?)```", (ROOT / "docs/extending.md").read_text(), re.S)
QUICK = {"num_starts": 2, "num_draws": 16}


@dataclasses.dataclass(frozen=True)
class Halves(Elementwise):
    """Two variances: one of the first half of the coordinates, one of the others."""

    def counts(self, d):
        return np.array([float(d - d // 2), float(d // 2)])

    def spread(self, packed, d):
        return packed[..., (np.arange(d) >= d - d // 2).astype(int)]

    def gather(self, diagonal):
        d = diagonal.shape[-1]
        return diagonal @ (np.eye(2)[(np.arange(d) >= d - d // 2).astype(int)] / self.counts(d))

    def wider(self):
        return Diagonal()

    def widened(self, root, d):
        return self.spread(root, d)

    def pick(self, packed, coordinates):
        raise epvi.EpviError("a part of the coordinates has other halves.")


@dataclasses.dataclass(frozen=True)
class Matched(epvi.Product):
    """The product of the Gaussians with the shards' moments."""

    most: int = 7
    inner: epvi.Product = dataclasses.field(default_factory=epvi.Exact)

    def multiply(self, mixtures, *, key, executor):
        made = self.inner.multiply([mixture.reduce(1) for mixture in mixtures], key=key, executor=executor)
        return dataclasses.replace(made, status=epvi.Status(epvi.StatusCode.EXACT, "matched."))


@dataclasses.dataclass(frozen=True)
class Flat(epvi.Inference):
    """A unit Gaussian at the origin, whatever the rows."""

    scale: float = 1.0
    points_at_once = 1

    def fit(self, subposterior, columns, *, common, key):
        d = subposterior.dim
        mixture = epvi.GaussianMixture.from_covariances(np.zeros((1, d)), np.full((1, d), self.scale))
        none = epvi.Estimate(np.asarray(0.0), np.asarray(0.0))
        return epvi.LocalFit(mixture, epvi.Status(epvi.StatusCode.CONVERGED, "flat."), (0.0,), none, 0.0, 0)


@pytest.fixture(autouse=True)
def _own_registries(monkeypatch):
    """What a test registers is forgotten after it."""
    for known in (STRUCTURES, PRODUCTS, INFERENCES):
        monkeypatch.setattr(known, "_classes", dict(known._classes))


@pytest.mark.docs
@pytest.mark.parametrize(("title", "block"), BLOCKS, ids=[title for title, _ in BLOCKS])
def test_the_skeletons_run(title, block):
    done = subprocess.run([sys.executable, "-W", "error", "-c", block], check=True, capture_output=True, text=True)
    said = {
        "A product method": r"K=1, d=2, Spherical",
        "A local inference": "trust",
        "Any sampler at a site": r"drawn: 500 draws from 2 shards",
        "A covariance structure": r"\[1\. +1\. +2\.\] \[0\.707\d+ 0\.707\d+ 1\.414\d+\]",
        "A method of combining draws": r"0\.[45]\d",
    }
    assert re.search(said[title], done.stdout)


def test_a_toy_structure_goes_through_fit_product_certificate_refinement_and_files(tmp_path):
    epvi.register(Halves)
    rows, _ = simulate_logistic(200, 3, seed=0)
    sites = [{name: column[m::2] for name, column in rows.items()} for m in range(2)]
    inference = epvi.NVI(2, Halves(), **QUICK)
    fits = [epvi.fit_shard(logistic, site, f"{m}/2", inference=inference) for m, site in enumerate(sites, 1)]
    assert all(fit.mixture.structure == Halves() for fit in fits)
    assert np.asarray(fits[0].mixture.roots).shape[1:] == (2,)
    paths = [fit.save(tmp_path / f"{fit.shard}.epvi") for fit in fits]
    posterior = epvi.combine([epvi.load(path) for path in paths])
    assert posterior.mixture.structure == Halves()
    scores = [epvi.score(logistic, site, posterior.ask(seed=0), f"{m}/2") for m, site in enumerate(sites, 1)]
    certified = posterior.with_certificate(epvi.certify(posterior, scores))
    again = epvi.load(certified.save(tmp_path / "posterior.epvi"))
    assert again.mixture.structure == Halves()
    np.testing.assert_array_equal(again.mixture.roots, posterior.mixture.roots)
    refined = posterior
    for _ in range(25):
        draws = refined.ask(seed=0)
        refined = epvi.refine(refined, [epvi.score(logistic, s, draws, f"{m}/2") for m, s in enumerate(sites, 1)])
        if not refined.step.waits:
            break
    assert refined.certificate.status.ok
    assert float(refined.certificate.elbo.value) > float(certified.certificate.elbo.value)


def test_a_toy_structure_has_the_density_draws_and_products_of_the_diagonal_one():
    rng = np.random.default_rng(0)
    means, variances = rng.normal(size=(2, 5)), rng.uniform(0.5, 2.0, size=(2, 2))
    toy = epvi.GaussianMixture.from_covariances(means, variances, structure=Halves())
    plain = epvi.GaussianMixture.from_covariances(means, Halves().spread(variances, 5))
    theta = rng.normal(size=(7, 5))
    np.testing.assert_allclose(toy.log_density(theta), plain.log_density(theta), rtol=1e-13)
    np.testing.assert_allclose(toy.to(epvi.Full()).log_density(theta), plain.log_density(theta), rtol=1e-13)
    np.testing.assert_allclose(toy.covariance(), plain.covariance(), rtol=1e-13)
    np.testing.assert_array_equal(toy.sample(5, seed=0), plain.sample(5, seed=0))
    for one, other in (((toy, toy), (plain, plain)), ((toy, plain), (plain, plain))):
        made, expected = epvi.multiply(one).mixture, epvi.multiply(other).mixture
        np.testing.assert_allclose(made.log_density(theta), expected.log_density(theta), rtol=1e-12)
    assert epvi.multiply((toy, plain)).mixture.structure == epvi.Diagonal()


def test_a_custom_product_is_saved_and_loaded_with_its_settings(tmp_path):
    epvi.register(Matched)
    rows, _ = simulate_logistic(60, 2, seed=0)
    inference = epvi.NVI(1, **QUICK)
    fits = [
        epvi.fit_shard(
            logistic, {name: column[m::2] for name, column in rows.items()}, f"{m + 1}/2", inference=inference
        )
        for m in range(2)
    ]
    chosen = Matched(most=3, inner=epvi.Chain(num_samples=5))
    path = epvi.combine(fits, chosen).save(tmp_path / "posterior.epvi")
    assert epvi.load(path).choices.product == chosen
    del PRODUCTS._classes["matched"]
    refused(lambda: epvi.load(path), r"posterior\.epvi .*its product is not one that this epvi knows")


def test_a_study_names_a_registered_inference(tmp_path):
    epvi.register(Flat)
    text = 'name = "s"\nmodel = "logistic"\nshards = ["a", "b"]\n[arguments]\nx = ["u"]\ny = "v"\n[inference]\n'
    path = tmp_path / "study.toml"
    assert read_study(path, text + 'method = "flat"\nscale = 2.0\n').inference == Flat(2.0)
    assert read_study(path, text + 'covariance = "diagonal"\n').inference == epvi.NVI(covariance=epvi.Diagonal())
    refused(lambda: read_study(path, text + 'method = "flt"\n'), "inference.method in .* is not one of nvi, flat")
    refused(lambda: read_study(path, text + 'method = "flat"\nsize = 2\n'), "size")


def test_what_cannot_be_registered_is_refused_in_a_sentence():
    refused(lambda: epvi.register(int), "<class 'int'> is none of the kinds that can be registered")
    refused(lambda: Registry("thing").add(type("Plain", (), {})), "Plain is no dataclass")
    other = dataclasses.make_dataclass("Halves", [])
    epvi.register(Halves)
    refused(lambda: STRUCTURES.add(other), "there is a covariance structure 'halves' already")
    refused(lambda: STRUCTURES.named("thirds"), "there is no covariance structure 'thirds': it is one of spherical")


def test_plugins_are_imported_when_a_name_is_looked_up(monkeypatch):
    class Plugin:
        name, value = "mine", "mypackage.epvi_choices"

        def __init__(self, load):
            self.load = load

    def broken():
        raise ImportError("no module named nowhere")

    monkeypatch.setattr(registry, "entry_points", lambda group: [Plugin(lambda: epvi.register(Halves))])
    registry._load_plugins.cache_clear()
    assert STRUCTURES.named("halves") is Halves
    monkeypatch.setattr(registry, "entry_points", lambda group: [Plugin(broken)])
    registry._load_plugins.cache_clear()
    refused(STRUCTURES.names, "the plugin 'mine' of epvi .* cannot be imported: ImportError: no module named nowhere")
    registry._load_plugins.cache_clear()


@pytest.mark.parametrize("prior", ["1/3", 0])
def test_the_log_density_of_a_subposterior_can_be_compiled_and_differentiated(prior):
    rows, _ = simulate_logistic(30, 2, seed=0)
    subposterior = epvi.subposterior(logistic, rows, "1/3", prior=prior)
    theta = np.random.default_rng(0).normal(size=(4, subposterior.dim))
    at = subposterior.gradient(theta)
    with jax.enable_x64(True):
        values, gradients = jax.jit(jax.vmap(jax.value_and_grad(subposterior.log_density)))(jnp.asarray(theta))
    np.testing.assert_allclose(values, at.value, rtol=1e-12)
    np.testing.assert_allclose(gradients, at.gradient, rtol=1e-9, atol=1e-12)
