"""Reference posteriors of simulated data: hierarchical logistic regression and source analysis, by long NUTS runs.

The reference draws are cached in the user's cache folder, under a hash of the rows and of the settings of the run.
"""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from nuts import Lengths, Sampler
from posteriors import Draws, Gold, Rows, flattened, moments_of_chains

import epvi
from epvi.models import grid_places, logistic, simulate_logistic, simulate_tlsa, tlsa
from epvi.models.tlsa import EXCHANGEABLE

REFERENCE = Lengths(1000, 20_000, 2)
SHORT = Lengths(300, 500, 2)
MADE = ("made-logistic", "made-tlsa")

# Seed of the rows, independent of the methods' seed. With this one the two sources are well separated.
_SEED = 2


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epvi-benchmarks"


def made_logistic(lengths: Lengths = REFERENCE) -> Gold:
    """2,000 rows with 8 correlated columns."""
    rows, truth = simulate_logistic(2000, 8, condition=80, seed=_SEED)
    model, start = epvi.Model(logistic), {name: np.asarray(value) for name, value in truth.items()}
    chains = cached_chains("made-logistic", model, rows, start, lengths)
    reference = moments_of_chains(_scalars(chains))
    return Gold("made-logistic", "logistic", model, rows, reference, start)


def made_tlsa(lengths: Lengths = REFERENCE) -> Gold:
    """1,000 rows of 20 columns from two sources; the run starts at the true values and must not switch the sources."""
    settings = {"places": grid_places(20), "num_sources": 2, "tau": 0.25}
    rows, truth = simulate_tlsa(1000, 2, rho=5.0, seed=_SEED, **settings)
    start = {name: value[0] for name, value in in_order({n: np.asarray(v)[None] for n, v in truth.items()}).items()}
    model = epvi.Model(tlsa, exchangeable=EXCHANGEABLE, rho=5.0, **settings)
    chains = cached_chains("made-tlsa", model, rows, start, lengths)
    first = chains["centres"][..., 0]
    if not np.all(first[..., 0] < first[..., 1]):
        raise RuntimeError(
            "the sources of made-tlsa changed places in the reference run: make rows that tell them apart"
        )
    reference = moments_of_chains(_scalars(chains))
    return Gold("made-tlsa", "source analysis", model, rows, reference, start, in_order)


def in_order(draws: Draws) -> Draws:
    """The sources of every draw, sorted by the first coordinate of their centres."""
    order = np.argsort(draws["centres"][:, :, 0], axis=1)
    draw = np.arange(len(order))[:, None]
    return {name: values[draw, order] for name, values in draws.items()}


def _scalars(chains: Draws) -> dict[str, np.ndarray]:
    """Chains (chains, n) of every scalar, from those of parameters (chains, n, ...)."""
    shape = next(iter(chains.values())).shape[:2]
    flat = flattened({name: values.reshape((-1, *values.shape[2:])) for name, values in chains.items()})
    return {name: values.reshape(shape) for name, values in flat.items()}


def cached_chains(name: str, model: epvi.Model, rows: Rows, start: Rows, lengths: Lengths) -> dict[str, np.ndarray]:
    """Constrained draws (chains, n, ...) of every parameter by NUTS on all rows, from the cache if it has them."""
    digest = hashlib.sha256(repr((name, lengths, sorted(model.fixed.items(), key=str))).encode())
    for column in rows.values():
        digest.update(np.ascontiguousarray(column).tobytes())
    file = cache_folder() / f"{name}-{digest.hexdigest()[:16]}.npz"
    sampler = Sampler(model, rows, start, lengths)
    if not file.exists():
        print(f"{name}: drawing the reference by NUTS, once ({lengths.chains} x {lengths.draws:,} draws)", flush=True)
        write_arrays(file, theta=sampler.draws(rows, 1.0, jax.random.key(_SEED)))
    with np.load(file) as kept:
        return sampler.space.constrain(kept["theta"])


def write_arrays(file: Path, **arrays: Any) -> None:
    """Write an npz file atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, suffix=".npz")
    try:
        with os.fdopen(handle, "wb") as opened:
            np.savez(opened, **arrays)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
