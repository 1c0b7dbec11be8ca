"""Time and memory of the four product methods, against a plain implementation of the paper's formulas.

Run: python benchmarks/products.py (about two minutes on two cores; --quick for fewer repeats and no large sizes). epvi
and the plain implementation alternate. Times are medians after a first call, which has its own column because it
includes compilation. Every case runs in a fresh process, whose peak memory is shown.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import plain

import epvi

K, D = 4, 19


def make_shards(m: int, d: int = D, spread: float = 0.5, seed: int = 0) -> plain.Shards:
    """M overlapping unimodal shards: components are about half an sd apart in every coordinate, shards one sd."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(m, 1, d)) + spread * rng.normal(size=(m, K, d))
    return means, rng.gamma(5.0, 0.2, size=(m, K))


def mixtures(shards: plain.Shards) -> list[epvi.GaussianMixture]:
    return [epvi.GaussianMixture.from_covariances(mean, variance) for mean, variance in zip(*shards, strict=True)]


def full_mixtures(m: int, d: int, seed: int = 0) -> list[epvi.GaussianMixture]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(m):
        means = rng.normal(size=(1, d)) + 0.3 * rng.normal(size=(K, d))
        factors = rng.normal(size=(K, d, 2 * d))
        made.append(epvi.GaussianMixture.from_covariances(means, factors @ np.swapaxes(factors, 1, 2) / (2 * d)))
    return made


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def alternate(repeats: int, works: dict[str, Callable[[], Any]]) -> dict[str, dict[str, Any]]:
    """First-call time, median time of the later calls, and last result of each, run alternately."""
    firsts, times, results = {}, {name: [] for name in works}, {}
    for turn in range(repeats + 1):
        for name, work in works.items():
            seconds, results[name] = timed(work)
            if turn == 0:
                firsts[name] = seconds
            else:
                times[name].append(seconds)
    return {
        name: {"first": firsts[name], "warm": statistics.median(times[name]), "result": results[name]} for name in works
    }


def row(name: str, run: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "first": run["first"], "warm": run["warm"], **more}


def chain_rows(repeats: int) -> list[dict]:
    """Cost per component for 10,000 components at M = 200, including a burn-in of 10 sweeps on both sides."""
    shards, r, sweeps, sample = make_shards(200), 10_000, 10, 300
    way, made = epvi.Chain(num_samples=r, burn_in=sweeps, num_chains=20, thin=1), mixtures(shards)
    runs = alternate(
        repeats,
        {
            "plain": lambda: plain.chain(shards, sample, 0, seed=0),
            "epvi": lambda: epvi.multiply(made, way, seed=0),
        },
    )
    per_step = runs["plain"]["warm"] / sample
    per_component = {"plain": per_step * (r + sweeps * 200) / r, "epvi": runs["epvi"]["warm"] / r}
    ratio = per_component["plain"] / per_component["epvi"]
    return [
        row(
            f"plain chain, M = 200 ({sample} steps timed)",
            runs["plain"],
            note=f"{1e6 * per_component['plain']:.0f} µs/comp.",
        ),
        row(
            "Chain, M = 200, 10,000 components",
            runs["epvi"],
            note=f"{1e6 * per_component['epvi']:.1f} µs/comp.",
            target=f"{ratio:.0f}x faster a component (>= 100x)",
        ),
    ]


def step_rows(repeats: int) -> list[dict]:
    """Cost of a step at M = 20 and M = 2,000, from two run lengths each, so that set-up cancels."""
    lengths, works = (20, 120), {}
    for m in (20, 2000):
        made = mixtures(make_shards(m))
        for thin in lengths:
            way = epvi.Chain(num_samples=10_000, burn_in=0, num_chains=100, thin=thin)
            works[f"{m}/{thin}"] = lambda made=made, way=way: epvi.multiply(made, way, seed=0)
    runs = alternate(repeats, works)
    steps = 100 * (lengths[1] - lengths[0])
    cost = {m: (runs[f"{m}/{lengths[1]}"]["warm"] - runs[f"{m}/{lengths[0]}"]["warm"]) / steps for m in (20, 2000)}
    target = f"{cost[2000] / cost[20]:.2f}x the step at M = 20 (<= 1.5x)"
    return [
        row(f"Chain, M = {m}, a step of 100 chains", runs[f"{m}/120"], note=f"{1e6 * cost[m]:.1f} µs/step", target=t)
        for m, t in ((20, ""), (2000, target))
    ]


def exact_rows(repeats: int) -> list[dict]:
    """All 4^10 components."""
    shards, sample = make_shards(10), 3000
    made = mixtures(shards)
    runs = alternate(
        repeats,
        {
            "loop": lambda: plain.exact(shards, sample),
            "vectorised": lambda: plain.exact_vectorised(shards),
            "epvi": lambda: epvi.multiply(made, epvi.Exact(), seed=0),
        },
    )
    loop = runs["loop"]["warm"] * 4**10 / sample
    ratios = loop / runs["epvi"]["warm"], runs["vectorised"]["warm"] / runs["epvi"]["warm"]
    return [
        row(f"plain loop, K^M = 4^10 ({sample} timed)", runs["loop"], note=f"{loop:.0f} s for all"),
        row("plain, vectorised", runs["vectorised"], note="1,048,576 comp."),
        row(
            "Exact, 1,048,576 components",
            runs["epvi"],
            note="1,048,576 comp.",
            target=f"{ratios[0]:.0f}x (>= 20x) and {ratios[1]:.1f}x (>= 2x) faster",
        ),
    ]


def exact_memory_row(repeats: int) -> list[dict]:
    """Peak memory of `Exact`, alone in its process."""
    made = mixtures(make_shards(10))
    runs = alternate(repeats, {"epvi": lambda: epvi.multiply(made, epvi.Exact(), seed=0)})
    return [row("Exact alone", runs["epvi"], note="1,048,576 comp.", target="memory (< 1 GB)")]


def anchored_rows(repeats: int) -> list[dict]:
    """Effective draws per second of `Anchored`, and of `Chain` as in the paper, by default, and tuned."""
    made = mixtures(make_shards(200))
    ways = {
        "paper": epvi.Chain(num_samples=10_000, thin=1),
        "chain": epvi.Chain(num_samples=10_000),
        "best": epvi.Chain(num_samples=10_000, num_chains=100, thin=600),
        "anchored": epvi.Anchored(num_samples=10_000, num_anchors=256),
    }
    runs = alternate(repeats, {name: lambda way=way: epvi.multiply(made, way, seed=0) for name, way in ways.items()})
    rates = {}
    for name, run in runs.items():
        found = run["result"].diagnostics
        ess = found.ess if name == "anchored" else min(found.ess_means, found.ess_log_weight)
        rates[name] = (ess, ess / run["warm"])
    names = {
        "paper": "Chain, M = 200, every step kept",
        "chain": "Chain, M = 200, one a sweep (default)",
        "best": "Chain, M = 200, 100 chains, every 3rd sweep",
    }
    rows = [row(n, runs[k], note=f"ESS {rates[k][0]:,.0f}, {rates[k][1]:,.0f}/s") for k, n in names.items()]
    ratios = [rates["anchored"][1] / rates[name][1] for name in names]
    note = f"ESS {rates['anchored'][0]:,.0f}, {rates['anchored'][1]:,.0f}/s"
    target = f"{ratios[0]:.0f}x, {ratios[1]:.0f}x, {ratios[2]:.0f}x the chains' ESS/s (>= 20x)"
    return [*rows, row("Anchored, M = 200, 10,000 draws", runs["anchored"], note=note, target=target)]


def large_row(name: str, made: list[epvi.GaussianMixture], way: epvi.Anchored) -> list[dict]:
    runs = alternate(1, {"epvi": lambda: epvi.multiply(made, way, seed=0)})
    found = runs["epvi"]["result"].diagnostics
    return [row(name, runs["epvi"], note=f"ESS {found.ess:,.0f}, modes: {found.num_modes}")]


def many_shards_rows(repeats: int) -> list[dict]:
    made = mixtures(make_shards(10_000))
    return large_row("Anchored, M = 10,000, 10,000 draws", made, epvi.Anchored(num_samples=10_000))


def full_rows(repeats: int) -> list[dict]:
    made = full_mixtures(50, 100)
    return large_row("Anchored, full, d = 100, M = 50, 2,000 draws", made, epvi.Anchored(num_samples=2000))


def subset_rows(repeats: int) -> list[dict]:
    made = mixtures(make_shards(200))
    runs = alternate(repeats, {"epvi": lambda: epvi.multiply(made, epvi.Subset(num_samples=500), seed=0)})
    return [row("Subset, pairs, M = 200, R = 500", runs["epvi"], note="8 rounds")]


CASES = {
    "chain": chain_rows,
    "steps": step_rows,
    "exact": exact_rows,
    "memory": exact_memory_row,
    "subset": subset_rows,
    "anchored": anchored_rows,
    "shards": many_shards_rows,
    "full": full_rows,
}
QUICK = ("chain", "steps", "exact", "memory", "subset", "anchored")


def in_fresh_process(case: str, repeats: int) -> list[dict]:
    command = [sys.executable, __file__, "--case", case, "--repeats", str(repeats)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three repeats, no large sizes")
    parser.add_argument("--case", choices=CASES, help="one case in this process, as JSON")
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    if chosen.case:
        rows = CASES[chosen.case](chosen.repeats)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(json.dumps([{**one, "gigabytes": peak} for one in rows]))
        return
    print(f"K = {K}, d = {D}, spherical, unless said; seconds; GB is the peak of the row's process\n")
    print(f"{'':46s}{'first':>8s}{'warm':>9s}{'GB':>6s}  {'':26s} beside it (target)")
    for case in QUICK if chosen.quick else CASES:
        for one in in_fresh_process(case, 3 if chosen.quick else chosen.repeats):
            figures = f"{one['first']:8.2f}{one['warm']:9.3f}{one['gigabytes']:6.2f}"
            print(f"{one['name']:46s}{figures}  {one['note']:26s} {one.get('target', '')}", flush=True)


if __name__ == "__main__":
    main()
