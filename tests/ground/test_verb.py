"""What surrounds every public verb: switches of JAX, exhausted memory, an unknown platform."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import epvi
from epvi.ground.verb import at_work

ROWS = {"x": np.linspace(0.5, 4, 8), "y": np.asarray([1, 0, 2, 3, 1, 4, 6, 9])}


def counts(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 100.0))
    numpyro.sample("y", dist.Poisson(jnp.exp(w * x)), obs=y)


@pytest.mark.parametrize("switch", ["jax_debug_infs", "jax_debug_nans"])
def test_switches_for_debugging_change_nothing(switch):
    plain = epvi.fit_shard(counts, ROWS, "1/1")
    jax.config.update(switch, True)
    try:
        fit = epvi.fit_shard(counts, ROWS, "1/1")
        posterior = epvi.combine([fit])
        # Minus infinity is an answer.
        far = posterior.mixture.log_density(np.full((1, posterior.mixture.dim), 1e200))
        assert getattr(jax.config, switch)
        with pytest.raises(FloatingPointError):
            jnp.log(jnp.zeros(()) - (1 if switch == "jax_debug_nans" else 0)).block_until_ready()
    finally:
        jax.config.update(switch, False)
    assert np.isneginf(far)
    np.testing.assert_array_equal(fit.mixture.means, plain.mixture.means)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("epvi.site.rows.rows.as_columns", "not enough memory for reading the rows"),
        ("epvi.site.tasks.fit_shard.fit_columns", "not enough memory for fitting the shard .*64 GB"),
    ],
)
def test_exhausted_memory_is_a_sentence(monkeypatch, place, sentence):
    def exhausted(*_, **__):
        raise MemoryError("Unable to allocate 64 GB")

    monkeypatch.setattr(place, exhausted)
    with pytest.raises(epvi.EpviError, match=sentence):
        epvi.fit_shard(counts, ROWS, "1/1")


def test_exhausted_memory_in_the_product_is_a_sentence(monkeypatch):
    fits = [epvi.GaussianMixture.from_covariances(np.zeros((1, 2)), np.ones((1, 2))) for _ in range(2)]

    def exhausted(*_, **__):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 64 bytes.")

    monkeypatch.setattr("epvi.hub.product.exact.pairs", exhausted)
    with pytest.raises(epvi.EpviError, match=r"multiplying the shards' fits \(RESOURCE_EXHAUSTED.*take more shards"):
        epvi.multiply(fits)


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="something else"), at_work("a test"):
        raise RuntimeError("something else")
    with pytest.raises(epvi.EpviError, match="as it was"), at_work("a test"):
        raise epvi.EpviError("as it was")


def test_an_unknown_platform_is_a_sentence():
    program = (
        "import numpy as np, epvi\n"
        "try:\n"
        "    epvi.fit_shard(epvi.models.logistic, {'x': np.ones((4, 1)), 'y': np.ones(4, int)}, '1/1')\n"
        "except epvi.EpviError as error:\n"
        "    print(error)\n"
    )
    environment = os.environ | {"JAX_PLATFORMS": "nonsense"}
    done = subprocess.run(
        [sys.executable, "-c", f"import epvi.models\n{program}"], capture_output=True, text=True, env=environment
    )
    assert "JAX cannot use the platform 'nonsense'" in done.stdout, done.stderr
    assert "JAX_PLATFORMS=cpu" in done.stdout
    assert done.stderr == ""
