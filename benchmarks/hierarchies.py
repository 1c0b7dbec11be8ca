"""Hierarchies, small shards, edges and ridges: epvi's defaults beside NumPyro's NUTS, against long NUTS runs.

Run: python benchmarks/hierarchies.py [--only radon,simplex] [--references FOLDER]. NUTS is timed with two chains of
1,000 steps of warm-up and 1,000 draws, both methods on their second run. The reference has two chains of 1,500 and
5,000 steps; FOLDER keeps references between runs. Errors of means are in reference sds, sds are ratios to the
reference's; of mixtures, whose labels NUTS may exchange, only what has no label is compared. The data of radon are not
part of the project: --data or EPVI_DATA names their folder, and without them these cases are skipped.
"""

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from hierarchies_cases import Case, cases
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC, NUTS
from posteriors import data_folder

import epvi

# Largest error of a mean in sds, and of an sd, beyond which an answer that is trusted counts as wrong.
WRONG_MEAN, WRONG_SD = 0.2, 0.2
HEAD = (
    f"{'case':42s}{'N':>8s}{'M':>4s}{'mean off':>9s}  {'where':12s}{'sds':>13s}{'ESS':>7s}{'rounds':>7s}{'epvi, s':>9s}"
    f"{'NUTS, s':>9s}  verdict"
)


class Reference(NamedTuple):
    """Draws of all parameters by name, as (draws, entries), and the largest split R-hat."""

    draws: dict[str, np.ndarray]
    r_hat: float


def nuts(case: Case, warm_up: int, draws: int, seed: int) -> dict[str, np.ndarray]:
    """Draws of two chains by name, (2, draws, entries)."""
    kernel = NUTS(case.exact or case.model, target_accept_prob=0.95 if draws > 1000 else 0.8)
    run = MCMC(kernel, num_warmup=warm_up, num_samples=draws, num_chains=2, progress_bar=False)
    with jax.enable_x64(True):
        run.run(jax.random.key(seed), **case.rows)
        found = run.get_samples(group_by_chain=True)
    return {name: np.asarray(value).reshape(2, draws, -1) for name, value in found.items()}


def reference(case: Case, folder: Path | None) -> Reference:
    path = None if folder is None else folder / f"{case.name.replace(' ', '_').replace('/', '_')}.npz"
    if path is None or not path.is_file():
        found = nuts(case, 1500, 5000, 1)
        r_hat = max(float(np.max(split_gelman_rubin(value))) for value in found.values())
        flat = {name: value.reshape(-1, value.shape[-1]) for name, value in found.items()}
        if path is None:
            return Reference(flat, r_hat)
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {"rhat": np.asarray(r_hat), **flat}
        np.savez(path, **arrays)
    with np.load(path) as content:
        return Reference(
            {name: content[name] for name in content.files if name not in ("rhat", "secs")}, float(content["rhat"])
        )


def nuts_seconds(case: Case) -> float:
    """The time of a second run, which compiles nothing."""
    nuts(case, 1000, 1000, 0)
    start = time.perf_counter()
    nuts(case, 1000, 1000, 1)
    return time.perf_counter() - start


class Line(NamedTuple):
    """What one fit showed."""

    worst: float
    where: str
    low: float
    high: float
    posterior: Any
    seconds: float

    @property
    def wrong(self) -> bool:
        """Whether a trusted answer is not right."""
        trusted = self.posterior.certificate.verdict != "do not trust"
        return trusted and (self.worst > WRONG_MEAN or max(1 / self.low, self.high) > 1 + WRONG_SD)


def line(case: Case, num_shards: int, against: Reference) -> Line:
    epvi.fit(case.model, case.rows, num_shards, progress=False)
    start = time.perf_counter()
    posterior = epvi.fit(case.model, case.rows, num_shards, progress=False)
    seconds = time.perf_counter() - start
    found, worst, where, ratios = posterior.summary(), 0.0, "", []
    entries = dict.fromkeys(found.names, 0)
    seen: dict[str, int] = {}
    for name in entries:
        parameter = name.split("[")[0]
        seen[parameter] = seen.get(parameter, -1) + 1
        if parameter not in against.draws or parameter in case.hidden:
            continue
        draws, one = against.draws[parameter][:, seen[parameter]], found[name]
        off = abs(one["mean"] - float(np.mean(draws))) / float(np.std(draws))
        ratios.append(one["sd"] / float(np.std(draws)))
        if off > worst:
            worst, where = off, name
    return Line(worst, where, min(ratios), max(ratios), posterior, seconds)


def told(case: Case, num_shards: int, found: Line, seconds: float) -> str:
    certificate, step = found.posterior.certificate, found.posterior.step
    return (
        f"{case.name:42s}{case.num_rows:8,d}{num_shards:4d}{found.worst:9.3f}  {found.where:12s}"
        f"{found.low:6.3f}-{found.high:6.3f}{certificate.ess:7,.0f}{0 if step is None else step.rounds:7d}"
        f"{found.seconds:9.2f}{seconds:9.2f}  {certificate.verdict}{' WRONG' if found.wrong else ''}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of names of cases, with commas")
    parser.add_argument("--data", type=Path, default=None, help="folder with radon/radon_mn.json")
    parser.add_argument("--references", type=Path, default=None, help="folder that keeps reference draws")
    parser.add_argument("--no-nuts", action="store_true", help="do not time NUTS")
    arguments = parser.parse_args()
    print(HEAD)
    wrong = refused = total = 0
    for case in cases(data_folder(arguments.data)):
        if not any(part in case.name for part in arguments.only.split(",")):
            continue
        against = reference(case, arguments.references)
        seconds = np.nan if arguments.no_nuts else nuts_seconds(case)
        for num_shards in case.shards:
            total += 1
            try:
                found = line(case, num_shards, against)
            except epvi.EpviError as error:
                refused += 1
                print(f"{case.name:42s}{case.num_rows:8,d}{num_shards:4d}  refused: {str(error)[:120]}", flush=True)
                continue
            wrong += found.wrong
            print(told(case, num_shards, found, seconds), flush=True)
        if against.r_hat > 1.01:
            print(f"    the reference of {case.name} has an R-hat of {against.r_hat:.3f}")
    print(f"{total} fits: {refused} refused, {wrong} trusted and wrong")


if __name__ == "__main__":
    main()
