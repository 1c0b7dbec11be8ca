"""Hierarchies, small shards, edges and ridges: epvi's defaults beside NumPyro's NUTS, against long NUTS runs.

Run: python benchmarks/hierarchies.py [--only "radon;simplex"] [--references FOLDER] [--again 200]. NUTS is timed with
two chains of 1,000 steps of warm-up and 1,000 draws, both methods on their second run, which compiles nothing ("~":
extrapolated from a tenth of the steps); the reference has two of 1,500 and 5,000 steps (500 and 1,500 above 50,000
rows), whose Monte Carlo error is shown too; FOLDER keeps references between runs. Errors of means are in reference sds,
sds are ratios to the reference's; the means of mixtures, whose labels NUTS may exchange, are compared in their order.
With --again every case is fitted with several other seeds of dealing and draws instead, and only errors count. The data
of radon and German credit are not part of the project: --data or EPVI_DATA names their folder; without them these cases
are skipped.
"""

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from hierarchies_cases import Case, cases
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS, Predictive
from posteriors import data_folder

import epvi

# Largest error of a mean in sds, and of an sd, beyond which an answer that is trusted counts as wrong.
WRONG_MEAN, WRONG_SD = 0.2, 0.2
# Above so many rows NUTS has fewer steps, and its time is extrapolated by this factor.
MANY_ROWS, EXTRAPOLATED = 50_000, 10
HEAD = (
    f"{'case':42s}{'N':>8s}{'M':>4s}{'mean off':>9s}{'known ±':>9s}  {'where':12s}{'sds':>13s}{'ESS':>7s}{'rounds':>7s}"
    f"{'epvi, s':>9s}{'NUTS, s':>9s}  verdict"
)


class Reference(NamedTuple):
    """Draws of all parameters by name, as (draws, entries), the largest split R-hat and Monte Carlo error in sds."""

    draws: dict[str, np.ndarray]
    r_hat: float
    error: float


def nuts(case: Case, warm_up: int, draws: int) -> MCMC:
    """Two chains; a second run of them compiles nothing."""
    kernel = NUTS(case.exact or case.model, target_accept_prob=0.95 if draws > 1000 else 0.8)
    return MCMC(kernel, num_warmup=warm_up, num_samples=draws, num_chains=2, progress_bar=False)


def drawn(chains: MCMC, case: Case, seed: int) -> dict[str, np.ndarray]:
    """Draws of the chains by name, (2, draws, entries)."""
    with jax.enable_x64(True):
        chains.run(jax.random.key(seed), **case.rows)
        found = chains.get_samples(group_by_chain=True)
    return {name: np.asarray(value).reshape(2, chains.num_samples, -1) for name, value in found.items()}


def reference(case: Case, folder: Path | None) -> Reference:
    """Long NUTS, from the folder if it has been run before."""
    path = None if folder is None else folder / f"{(case.same_as or case.name).replace(' ', '_').replace('/', '_')}.npz"
    if path is not None and path.is_file():
        with np.load(path) as content:
            draws = {
                name: content[name].reshape(2, -1, content[name].shape[-1]) for name in content.files if name != "rhat"
            }
    else:
        steps = (500, 1500) if case.num_rows > MANY_ROWS else (1500, 5000)
        draws = drawn(nuts(case, *steps), case, 1)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(path, **cast(dict[str, Any], draws))
    told = {name: value for name, value in draws.items() if name not in case.hidden}
    told |= {name: np.sort(value, axis=-1) for name, value in told.items() if name in case.exchangeable}
    r_hat = max(float(np.max(split_gelman_rubin(value))) for value in told.values())
    error = max(float(np.max(effective_sample_size(value) ** -0.5)) for value in told.values())
    return Reference({name: value.reshape(-1, value.shape[-1]) for name, value in told.items()}, r_hat, error)


def nuts_seconds(case: Case) -> float:
    """The time of a second run, which compiles nothing; extrapolated where there are many rows."""
    factor = EXTRAPOLATED if case.num_rows > MANY_ROWS else 1
    chains = nuts(case, 1000 // factor, 1000 // factor)
    drawn(chains, case, 0)
    start = time.perf_counter()
    drawn(chains, case, 1)
    return factor * (time.perf_counter() - start)


class Line(NamedTuple):
    """What one fit showed."""

    worst: float
    where: str
    low: float
    high: float
    posterior: Any
    seconds: float
    # Monte Carlo error of the reference's means, in sds.
    known: float

    @property
    def trusted(self) -> bool:
        return self.posterior.certificate.verdict != "do not trust"

    @property
    def wrong(self) -> bool:
        """Whether a trusted answer is not right."""
        return self.trusted and (self.worst > WRONG_MEAN or max(1 / self.low, self.high) > 1 + WRONG_SD)


def fitted(case: Case, num_shards: int, seed: int = 0) -> epvi.Posterior:
    shards: dict[str, Any] = {"by": case.by} if case.by else {"shards": num_shards}
    return epvi.fit(case.model, case.rows, **shards, seed=seed, progress=False)


def warm(case: Case, num_shards: int, against: Reference) -> Line:
    """The second fit, which compiles nothing."""
    fitted(case, num_shards)
    return line(case, num_shards, against)


def derived(case: Case, names: list[str]) -> Any:
    """What the model computes of draws of its parameters, `numpyro.deterministic`; rows play no part in it."""
    few = {name: column[:1] for name, column in case.rows.items()}
    return lambda draws: Predictive(case.model, draws, return_sites=names)(jax.random.key(0), **few)


def line(case: Case, num_shards: int, against: Reference, seed: int = 0) -> Line:
    start = time.perf_counter()
    posterior = fitted(case, num_shards, seed)
    seconds = time.perf_counter() - start
    own, worst, where, ratios = posterior.summary(), 0.0, "", []
    absent = sorted(set(against.draws) - {name.split("[")[0] for name in own.names})
    rest = posterior.summary(of=derived(case, absent)) if absent else None
    for parameter, draws in against.draws.items():
        summary = rest if parameter in absent and rest is not None else own
        entries = np.array([i for i, name in enumerate(summary.names) if name.split("[")[0] == parameter])
        if parameter in case.exchangeable:
            entries = entries[np.argsort(summary.mean[entries])]
        sds = np.std(draws, axis=0)
        off = np.abs(summary.mean[entries] - np.mean(draws, axis=0)) / sds
        ratios.append(summary.sd[entries] / sds)
        if np.max(off) > worst:
            worst, where = float(np.max(off)), summary.names[entries[np.argmax(off)]]
    ratio = np.concatenate(ratios)
    return Line(worst, where, float(np.min(ratio)), float(np.max(ratio)), posterior, seconds, against.error)


def told(case: Case, num_shards: int, found: Line, seconds: float) -> str:
    certificate, step = found.posterior.certificate, found.posterior.step
    errors = f"{found.worst:9.3f}{found.known:9.3f}  {found.where:12s}{found.low:6.3f}-{found.high:6.3f}"
    work = f"{certificate.ess:7,.0f}{0 if step is None else step.rounds:7d}"
    times = f"{found.seconds:9.2f}{'~' if case.num_rows > MANY_ROWS else ' '}{seconds:8.2f}"
    verdict = f"{certificate.verdict}{' WRONG' if found.wrong else ''}"
    return f"{case.name:42s}{case.num_rows:8,d}{num_shards:4d}{errors}{work}{times}  {verdict}"


def again(chosen: list[Case], count: int, folder: Path | None) -> None:
    """About so many fits with other seeds, in the order of the cases."""
    pairs = [(case, num_shards) for case in chosen for num_shards in case.shards]
    seeds = range(1, 1 + max(1, round(count / len(pairs))))
    wrong, refused, trusted = [], [], 0
    for case, num_shards in pairs:
        against = reference(case, folder)
        jax.clear_caches()
        for seed in seeds:
            label = f"{case.name}, M = {num_shards}, seed {seed}"
            try:
                found = line(case, num_shards, against, seed)
            except epvi.EpviError as error:
                refused.append(label)
                print(f"{label}: refused: {str(error)[:120]}", flush=True)
                continue
            trusted += found.trusted
            if found.wrong:
                wrong.append(label)
            if found.wrong or not found.trusted:
                print(told(case, num_shards, found, np.nan), flush=True)
    total = len(pairs) * len(seeds)
    print(
        f"{total} fits: {trusted} trusted ({trusted / total:.1%}), {len(refused)} refused, {len(wrong)} trusted and"
        f" wrong{': ' if wrong else ''}{'; '.join(wrong)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of names of cases, with semicolons")
    parser.add_argument("--data", type=Path, default=None, help="folder with radon/radon_mn.json")
    parser.add_argument("--references", type=Path, default=None, help="folder that keeps reference draws")
    parser.add_argument("--no-nuts", action="store_true", help="do not time NUTS")
    parser.add_argument("--most-rows", type=int, default=None, help="leave out cases with more rows")
    parser.add_argument("--again", type=int, default=0, help="about how many fits with other seeds, and nothing else")
    arguments = parser.parse_args()
    parts = arguments.only.split(";")
    chosen = [case for case in cases(data_folder(arguments.data)) if any(part in case.name for part in parts)]
    if arguments.most_rows is not None:
        chosen = [case for case in chosen if case.num_rows <= arguments.most_rows]
    print(HEAD)
    if arguments.again:
        again(chosen, arguments.again, arguments.references)
        return
    wrong = refused = total = 0
    for case in chosen:
        against = reference(case, arguments.references)
        seconds = np.nan if arguments.no_nuts else nuts_seconds(case)
        for num_shards in case.shards:
            total += 1
            try:
                found = warm(case, num_shards, against)
            except epvi.EpviError as error:
                refused += 1
                print(f"{case.name:42s}{case.num_rows:8,d}{num_shards:4d}  refused: {str(error)[:120]}", flush=True)
                continue
            wrong += found.wrong
            print(told(case, num_shards, found, seconds), flush=True)
        if against.r_hat > 1.01:
            print(f"    the reference of {case.name} has an R-hat of {against.r_hat:.3f}")
        # Compiled programs of all cases together have more memory maps than a process may.
        jax.clear_caches()
    print(f"{total} fits: {refused} refused, {wrong} trusted and wrong")


if __name__ == "__main__":
    main()
