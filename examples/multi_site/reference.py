"""The reference: NUTS on the pooled rows of all sites."""

from pathlib import Path

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS

import epvi
from epvi.study.study import load_study

WARM_UP, DRAWS, CHAINS = 500, 2000, 2


def by_nuts(study: Path, files: list[Path]) -> dict[str, np.ndarray]:
    """Draws of every parameter of the study's model, given the rows of all files."""
    described = load_study(study)
    columns = described.rows([str(path) for path in files]).read().columns
    with jax.enable_x64(True):
        kernel = NUTS(described.model().function)
        chain = MCMC(kernel, num_warmup=WARM_UP, num_samples=DRAWS, num_chains=1, progress_bar=False)
        draws = []
        for seed in range(CHAINS):
            chain.run(jax.random.key(seed), **columns)
            draws.append({name: np.asarray(value) for name, value in chain.get_samples().items()})
    return {name: np.concatenate([one[name] for one in draws]) for name in draws[0]}


def compare(posterior: epvi.Posterior, draws: dict[str, np.ndarray]) -> str:
    """A table of unconstrained coordinates: mean and sd by NUTS, error of the mean in sds, and ratio of sds."""
    theta = np.asarray(posterior.space.unconstrain({one.name: draws[one.name] for one in posterior.space.parameters}))
    mean, sd = theta.mean(axis=0), theta.std(axis=0)
    off, ratio = (np.asarray(posterior.mixture.mean()) - mean) / sd, np.asarray(posterior.mixture.sd()) / sd
    lines = [f"{'':22} {'NUTS mean':>9} {'sd':>6} {'off by':>7} {'sd ratio':>8}"]
    for i in range(posterior.space.dim):
        name = posterior.space.coordinate(i)
        lines.append(f"{name:22} {mean[i]:9.3f} {sd[i]:6.3f} {off[i]:+7.2f} {ratio[i]:8.2f}")
    worst = int(np.argmax(np.abs(off)))
    lines.append(
        f"worst mean {posterior.space.coordinate(worst)}, {abs(off[worst]):.2f} sds;"
        f" sds {ratio.min():.2f} to {ratio.max():.2f} times NUTS's"
    )
    return "\n".join(lines)
