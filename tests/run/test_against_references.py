"""Combined posteriors against long runs of NUTS and against fits of all the data."""

import jax
import numpy as np
import numpyro
import pytest
from numpyro.infer import MCMC, NUTS

import epvi
from epvi.ground.float64 import promotion_allowed
from epvi.models import grid_places, logistic, simulate_logistic, simulate_tlsa, tlsa
from epvi.models.tlsa import EXCHANGEABLE


def nuts(model, rows, num_samples):
    """Draws by NUTS in float64, and their effective sample sizes."""
    with jax.enable_x64(True), promotion_allowed():
        chains = MCMC(NUTS(model), num_warmup=500, num_samples=num_samples, progress_bar=False)
        chains.run(jax.random.key(0), **rows)
        draws = {name: np.asarray(value) for name, value in chains.get_samples().items()}
        sizes = {
            name: numpyro.diagnostics.effective_sample_size(value[None].astype(np.float64))
            for name, value in draws.items()
        }
    return draws, sizes


@pytest.mark.slow
@pytest.mark.parametrize("num_shards", [2, 10])
def test_coefficients_agree_with_nuts(num_shards):
    rows, _ = simulate_logistic(5000, 4, condition=30.0, seed=2)
    draws, sizes = nuts(logistic, rows, 3000)
    posterior = epvi.fit(logistic, rows, num_shards)
    mean, sd = posterior.mixture.mean()[1:], posterior.mixture.sd()[1:]
    reference = draws["w"].mean(axis=0), draws["w"].std(axis=0)
    noise = 1 / np.sqrt(sizes["w"])
    # Shards of 500 rows and more: a third of an sd of bias at most, and sds within 10 %, beyond NUTS's own noise.
    assert np.all(np.abs(mean - reference[0]) / reference[1] < 1 / 3 + 4 * noise)
    assert np.all(np.abs(sd / reference[1] - 1) < 0.1 + 4 * noise / np.sqrt(2))


@pytest.mark.slow
@pytest.mark.parametrize("num_sources", [2, 3, 4])
def test_ten_shards_of_a_source_analysis_predict_as_well_as_all_the_data(num_sources):
    places = grid_places(50)
    rows, _ = simulate_tlsa(1000, 5, places=places, num_sources=num_sources, seed=num_sources)
    train, held_out = ({name: column[part] for name, column in rows.items()} for part in (slice(900), slice(900, None)))
    model = epvi.Model(tlsa, places=places, num_sources=num_sources, exchangeable=EXCHANGEABLE)
    ten, one = (epvi.log_predictive(model, epvi.fit(model, train, m), held_out) for m in (10, 1))
    assert abs(ten - one) < 0.01 * abs(one)
