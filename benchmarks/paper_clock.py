"""The paper's method by the paper's clock: processor seconds of the slowest shard, for growing numbers M of shards.

Run: python benchmarks/paper_clock.py [--quick] [--repeats 3] [--seed 0]

NVI with four spherical components, none merged, on topographic latent source analysis and on logistic regression, with
1,000 and 20,000 simulated rows. Each shard is fitted alone on one core, after a fit of the same size has compiled its
programs; M = 1 is NVI on all rows. A cell is the median over the repeats of the slowest shard's seconds; beside the
table, the ratios to M = 1 and the slope of log seconds in log M.
"""

import argparse
import itertools
import os
import sys
import time
from typing import Any

# Limits JAX and NumPy to one core, which they read at import.
if "jax" not in sys.modules:
    os.environ.setdefault("NPROC", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from rounds import verdict

import epvi
from epvi.models import grid_places, logistic, simulate_logistic, simulate_tlsa, tlsa
from epvi.models.tlsa import EXCHANGEABLE

Rows = dict[str, np.ndarray]

SHARDS = (1, 2, 5, 10, 20)
# Numbers of rows, and the slope of log seconds in log M that is aimed at.
SIZES = {1_000: 0.0, 20_000: -0.5}
PAPERS = epvi.NVI(num_components=4, covariance=epvi.Spherical(), merge=False)


def source_analysis(num_rows: int, seed: int) -> tuple[epvi.Model, Rows]:
    """As in experiments/figure5.py: 50 columns, 5 covariates, 3 sources."""
    settings: Any = {"places": grid_places(50), "num_sources": 3}
    rows, _ = simulate_tlsa(num_rows, 5, seed=seed, **settings)
    return epvi.Model(tlsa, exchangeable=EXCHANGEABLE, **settings), rows


def regression(num_rows: int, seed: int) -> tuple[epvi.Model, Rows]:
    """18 columns, logits with sd 1."""
    rows, _ = simulate_logistic(num_rows, 18, alpha=18, seed=seed)
    return epvi.Model(logistic), rows


MODELS = {"source analysis": source_analysis, "logistic regression": regression}


def slowest(model: epvi.Model, rows: Rows, num_shards: int, repeats: int) -> float:
    """The median over the repeats of the processor seconds of the slowest shard."""
    ends = np.linspace(0, len(rows["y"]), num_shards + 1).round().astype(int)
    parts = [{name: column[a:b] for name, column in rows.items()} for a, b in itertools.pairwise(ends)]

    def seconds(m: int) -> float:
        start = time.process_time()
        epvi.fit_shard(model, parts[m], f"{m + 1}/{num_shards}", inference=PAPERS)
        return time.process_time() - start

    sizes = [len(part["y"]) for part in parts]
    for size in set(sizes):
        seconds(sizes.index(size))
    return float(np.median([max(seconds(m) for m in range(num_shards)) for _ in range(repeats)]))


def slope(shards: tuple[int, ...], seconds: list[float]) -> float:
    """Of log seconds in log M."""
    return float(np.polyfit(np.log(shards), np.log(seconds), 1)[0])


def table(name: str, shards: tuple[int, ...], sizes: dict[int, float], repeats: int, seed: int) -> None:
    """Print the times of one model, and whether the aims are met."""
    print(f"{name}: processor seconds of the slowest shard (ratio to M = 1)")
    print(f"{'rows':>8s}" + "".join(f"{f'M = {m}':>16s}" for m in shards) + f"{'slope':>8s}")
    for num_rows, aim in sizes.items():
        model, rows = MODELS[name](num_rows, seed)
        found = [slowest(model, rows, m, repeats) for m in shards]
        cells = "".join(f"{f'{one:.3f} ({one / found[0]:.2f})':>16s}" for one in found)
        print(f"{num_rows:8,}{cells}{slope(shards, found):8.2f}", flush=True)
        print(verdict(slope(shards, found) <= aim, f"slope at most {aim:g} with {num_rows:,} rows"))
        print(verdict(max(found[1:]) < found[0], "faster than on all rows at every M"), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="M = 1, 2 and 1,000 rows only, once")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    said = parser.parse_args()
    shards, sizes = (SHARDS[:2], {1_000: SIZES[1_000]}) if said.quick else (SHARDS, SIZES)
    for name in MODELS:
        table(name, shards, sizes, 1 if said.quick else said.repeats, said.seed)


if __name__ == "__main__":
    main()
