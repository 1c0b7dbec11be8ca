"""What sites send of a model with declared groups (`epvi.Model(f, groups="ward")`), and how right it is.

Run: python benchmarks/declared_groups.py [--groups 20,200,2000,10000] [--seed 0]

Five sites, each with a fifth of the groups, of 2 to 18 binary rows each; every site fits, then answers six rounds. The
answer is compared with `epvi.fit` on all rows, of which all effects are parameters of the posterior (global), and with
what `posterior.groups` says of the effects at the first site. Errors of means are in sds of the
posterior of all effects.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
from rounds import verdict

import epvi

SITES, ROUNDS = 5, 6
# Targets: largest error of a mean in sds, and of an sd; what is sent may not grow with the groups, but for numerals.
MOST_OFF, MOST_RATIO, MOST_GROWTH = 0.05, 0.05, 1.02
# Draws of the effects at the site.
DRAWS = 4000


def observed(slope: Any, effect: Any, x: Any, y: Any) -> None:
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=effect + slope * x), obs=y)


def shared() -> tuple[Any, Any, Any]:
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    return mu, tau, numpyro.sample("slope", dist.Normal(0.0, 2.0))


def declared(ward, num_ward, x, y=None):
    mu, tau, slope = shared()
    with numpyro.plate("ward", num_ward):
        a: Any = numpyro.sample("a", dist.Normal(mu, tau))
    observed(slope, a[ward], x, y)


def all_global(num_groups: int):
    def model(ward, x, y=None):
        mu, tau, slope = shared()
        a: Any = numpyro.sample("a", dist.Normal(mu, tau).expand([num_groups]).to_event(1))
        observed(slope, a[ward], x, y)

    return model


def simulated(num_groups: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, num_groups])
    ward = np.repeat(np.arange(num_groups), rng.integers(2, 19, num_groups))
    x = rng.normal(size=len(ward))
    eta = rng.normal(-0.4, 0.7, num_groups)[ward] + 0.5 * x
    return {"ward": ward, "x": x, "y": (rng.random(len(ward)) < 1 / (1 + np.exp(-eta))).astype(np.int32)}


def size(written: Any, folder: Path) -> int:
    """Bytes of the file."""
    path = folder / "sent.epvi"
    written.save(path)
    return path.stat().st_size


def by_files(rows: list[dict[str, np.ndarray]], folder: Path) -> tuple[epvi.Posterior, int, int]:
    """The posterior after all rounds, and the bytes of one site's fit and of the longest of its answers."""
    model = epvi.Model(declared, groups="ward")
    fits = [epvi.fit_shard(model, own, f"{m}/{SITES}") for m, own in enumerate(rows, start=1)]
    posterior, answer = epvi.combine(fits), 0
    for last in (*[False] * (ROUNDS - 1), True):
        draws = posterior.ask()
        scores = [epvi.score(model, own, draws, f"{m}/{SITES}") for m, own in enumerate(rows, start=1)]
        answer = max(answer, size(scores[0], folder))
        posterior = (
            posterior.with_certificate(epvi.certify(posterior, scores)) if last else epvi.refine(posterior, scores)
        )
    return posterior, size(fits[0], folder), answer


def beside(ours: Any, known: epvi.Summary, posterior_groups: Any) -> tuple[np.ndarray, np.ndarray]:
    """Errors of means in sds, and ratios of sds: rows of shared parameters, and of the effects of one site."""
    shared_names = ("mu", "tau", "slope")
    found = [(ours[name]["mean"], ours[name]["sd"], known[name]) for name in shared_names]
    effects = zip(posterior_groups.labels, posterior_groups.mean["a"], posterior_groups.sd["a"], strict=True)
    at_site = [(mean, sd, known[f"a[{label}]"]) for label, mean, sd in effects]

    def judged(moments: list) -> np.ndarray:
        return np.array([(abs(mean - at["mean"]) / at["sd"], sd / at["sd"]) for mean, sd, at in moments])

    return judged(found), judged(at_site)


def cells(errors: np.ndarray) -> str:
    return f"{np.max(errors[:, 0]):12.3f}{np.min(errors[:, 1]):8.3f}-{np.max(errors[:, 1]):5.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", default="20,200,2000,10000", help="numbers of groups, with commas")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    moments = f"{'shared off':>12s}{'sds':>14s}{'effects off':>12s}{'sds':>14s}"
    print(f"{'groups':>7s}{'rows':>9s}{'fit, B':>8s}{'answer, B':>10s}{moments}  verdict")
    sent, judged = [], []
    model = epvi.Model(declared, groups="ward")
    for num_groups in map(int, arguments.groups.split(",")):
        rows, start = simulated(num_groups, arguments.seed), time.perf_counter()
        parts = [{name: column[rows["ward"] % SITES == m] for name, column in rows.items()} for m in range(SITES)]
        with tempfile.TemporaryDirectory() as folder:
            posterior, fit, answer = by_files(parts, Path(folder))
        whole = epvi.fit(all_global(num_groups), rows, SITES, seed=arguments.seed, progress=False)
        of_groups = posterior.groups(model, parts[0], num_samples=DRAWS)
        errors = beside(posterior.summary(), whole.summary(), of_groups)
        sent.append(fit + answer)
        judged += errors
        assert posterior.certificate is not None
        about = f"{posterior.certificate.verdict} ({time.perf_counter() - start:.0f} s)"
        print(
            f"{num_groups:7,d}{len(rows['y']):9,d}{fit:8,d}{answer:10,d}{''.join(map(cells, errors))}  {about}",
            flush=True,
        )
    grown, found = max(sent) / min(sent), np.concatenate(judged)
    off, ratio = np.max(found[:, 0]), np.max(np.abs(found[:, 1] - 1))
    print(
        verdict(
            grown <= MOST_GROWTH,
            f"a site sends as much for many groups as for few ({grown:.3f}x, at most {MOST_GROWTH})",
        )
    )
    print(verdict(off <= MOST_OFF, f"means within {MOST_OFF} sds of the posterior of all effects ({off:.3f})"))
    print(verdict(ratio <= MOST_RATIO, f"sds within {MOST_RATIO:.0%} ({ratio:.1%})"))


if __name__ == "__main__":
    main()
