"""Accuracy of epvi and of its peers against reference posteriors, by the number of shards.

Run: python benchmarks/accuracy.py (hours on two cores; --quick for minutes; --only and --methods select posteriors and
methods by parts of their names). The data are not part of the project: --data or EPVI_DATA names their folder, and
posteriors whose data are absent are skipped. A star marks cases with at least five rows per parameter in every shard;
the targets listed at the end apply to these. epvi's seconds are those of the second of two equal fits on one worker
process.
"""

import argparse
import csv
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from accuracy_peers import Answer, Method, peers
from accuracy_scores import Result, counts, rows_allow, score, targets, told
from made import MADE, REFERENCE, SHORT, made_logistic, made_tlsa
from nuts import Lengths
from posteriors import GERMAN, RECIPES, Gold, Moments, data_folder, from_posteriordb, german_credit

import epvi

K = 4
# Draws for the moments of a mixture: the Monte Carlo error of a mean is 0.003 sds, below the differences compared here.
_MANY = 100_000
# The paper's method needs more sweeps than the default allows.
PAPER = epvi.NVI(K, epvi.Spherical(), merge=False, max_sweeps=200)
FAMILIES = {
    "paper": PAPER,
    "diagonal": epvi.NVI(K, epvi.Diagonal()),
    "full, K = 1": epvi.NVI(1, epvi.Full()),
    "full": epvi.NVI(K, epvi.Full()),
}
SETTINGS: dict[str, dict[str, Any]] = {
    **{name: {"inference": nvi, "certify": False, "refine": 0} for name, nvi in FAMILIES.items()},
    **{f"{name}, certified": {"inference": nvi, "certify": True, "refine": 0} for name, nvi in FAMILIES.items()},
    **{
        f"full, refined {rounds}{', certified' if certify else ''}": {
            "inference": FAMILIES["full"],
            "certify": certify,
            "refine": rounds,
        }
        for rounds in (1, 3)
        for certify in (False, True)
    },
    "defaults": {},
}


class Plan(NamedTuple):
    """The size of a run."""

    shards: tuple[int, ...] = (1, 4, 10, 20)  # numbers of shards
    fits: int = 2  # equal fits of each kind, of which the last is timed
    reference: Lengths = REFERENCE  # NUTS runs of the reference posteriors
    peers: Lengths = Lengths(1000, 1000)  # NUTS runs of the peers
    steps: int = 20_000  # steps of Adam


QUICK = Plan((1, 4), 1, SHORT, Lengths(300, 500), 2000)


def by_epvi(settings: dict[str, Any], fits: int) -> Callable[[Gold, int, int], Answer]:
    """A method of epvi, by the arguments of `fit`."""

    def answer(gold: Gold, num_shards: int, seed: int) -> Answer:
        posterior, seconds = None, 0.0
        for _ in range(fits):
            start = time.perf_counter()
            posterior = epvi.fit(gold.model, gold.rows, num_shards, seed=seed, executor=1, progress=False, **settings)
            seconds = time.perf_counter() - start
        assert posterior is not None
        moments, certificate = moments_of(gold, posterior, seed), posterior.certificate
        if certificate is None:
            return Answer(moments, seconds, posterior.bytes_exchanged)
        found = certificate.k_hat, certificate.ess, certificate.verdict
        return Answer(moments, seconds, posterior.bytes_exchanged, *found)

    return answer


def moments_of(gold: Gold, posterior: epvi.Posterior, seed: int) -> Moments:
    """Moments with their Monte Carlo errors; corrected by importance weights if the certificate allows it."""
    certificate = posterior.certificate
    found = posterior.summary(of=gold.derive, num_samples=_MANY, seed=seed)
    error = _MANY**-0.5
    if certificate is not None and certificate.corrects:
        error = float(np.hypot(error, certificate.mean_error))
    return Moments(found.names, found.mean, found.sd, error * found.sd, error * found.sd)


def loaders(folder: Path, reference: Lengths) -> dict[str, Callable[[], Gold] | None]:
    """A function that loads or makes each posterior, by name; `None` if its data are absent."""
    found: dict[str, Callable[[], Gold] | None] = {}
    for name in RECIPES:
        at = folder / "posteriordb" / name
        found[name] = (lambda at=at: from_posteriordb(at)) if at.is_dir() else None
    german = folder / GERMAN
    found[GERMAN] = (lambda: german_credit(german)) if german.is_dir() else None
    makers = (made_logistic, made_tlsa)
    return found | {name: lambda make=make: make(reference) for name, make in zip(MADE, makers, strict=True)}


HEAD = (
    f"{'M':>4s}  {'method':36s}{'means off':>10s}{'±':>8s}  {'where':14s}{'sd ratios':>16s}{'k-hat':>7s}{'ESS':>9s}"
    f"{'seconds':>9s}{'bytes':>12s}  verdict"
)


def line(result: Result) -> str:
    begin = f"{result.num_shards:3d}{'*' if result.counts else ' '}  {result.method:36s}"
    found, answer = result.score, result.answer
    if found is None or answer is None:
        return f"{begin}  {result.said}"
    k_hat = "-" if answer.k_hat is None else f"{answer.k_hat:.2f}"
    ess = "-" if answer.ess is None else f"{answer.ess:,.0f}"
    num_bytes = "-" if answer.num_bytes is None else f"{answer.num_bytes:,}"
    return (
        f"{begin}{found.mean:10.3f}{found.mean_error:8.3f}  {found.where:14s}{found.low:6.3f} to {found.high:6.3f}"
        f"{k_hat:>7s}{ess:>9s}{answer.seconds:9.2f}{num_bytes:>12s}  {answer.verdict or '-'}"
    )


FIELDS = (
    *("epvi", "seed", "posterior", "N", "d", "M", "counts", "method", "peer"),
    *("mean_off", "mean_off_error", "where", "excess", "sd_low", "sd_high", "sd_low_excess", "sd_high_excess"),
    *("k_hat", "ess", "verdict", "seconds", "bytes", "said"),
)


def record(result: Result, gold: Gold, seed: int) -> dict[str, Any]:
    """One row of the CSV file."""
    about = (epvi.__version__, seed, gold.name, gold.num_rows, gold.dim, result.num_shards, result.counts)
    scores = result.score or (None,) * 8
    a = result.answer
    took = (None,) * 5 if a is None else (a.k_hat, a.ess, a.verdict, a.seconds, a.num_bytes)
    values = (*about, result.method, result.is_peer, *scores, *took, result.said)
    return dict(zip(FIELDS, values, strict=True))


def append(file: Path, fields: dict[str, Any]) -> None:
    new = not file.exists()
    with open(file, "a", newline="") as opened:
        writer = csv.DictWriter(opened, FIELDS)
        if new:
            writer.writeheader()
        writer.writerow(fields)


def measured(gold: Gold, num_shards: int, method: Method, is_peer: bool, seed: int) -> Result:
    """The result of one method on one posterior; an error counts as a result without an answer."""
    about = gold.name, gold.is_linear, num_shards, counts(gold, num_shards), method.name, is_peer
    try:
        answer = method.answer(gold, num_shards, seed)
    except (epvi.EpviError, RuntimeError, ValueError) as error:
        return Result(*about, None, None, f"no answer: {' '.join(str(error).split())}")
    return Result(*about, answer, score(answer.moments, gold.reference))


def chosen_methods(plan: Plan, words: Sequence[str], with_peers: bool) -> list[tuple[Method, bool]]:
    """The methods of epvi and of the peers whose names match, each with whether it is a peer."""
    ours = [(Method(name, by_epvi(settings, plan.fits), True), False) for name, settings in SETTINGS.items()]
    theirs = [(peer, True) for peer in peers(plan.peers, plan.steps)] if with_peers else []
    return [(method, is_peer) for method, is_peer in (*ours, *theirs) if named(method.name, words)]


def named(name: str, words: Sequence[str]) -> bool:
    return not words or any(word.lower() in name.lower() for word in words)


def runs(gold: Gold, shards: Sequence[int], methods: list[tuple[Method, bool]]) -> list[tuple[int, Method, bool]]:
    """The methods to run at each M: those on all rows once; peers that merge shards' draws only for M > 1."""
    whole = [(1, method, is_peer) for method, is_peer in methods if not method.is_sharded]
    sharded = [
        (m, method, is_peer)
        for m in shards
        for method, is_peer in methods
        if method.is_sharded and rows_allow(gold, m) and not (is_peer and m == 1)
    ]
    return [*whole, *sharded]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="the folder with posteriordb/ and german_credit/")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="posteriors with one of these in the name"
    )
    parser.add_argument(
        "--methods", nargs="+", default=[], metavar="NAME", help="methods with one of these in the name"
    )
    parser.add_argument("--shards", nargs="+", type=int, metavar="M", help="numbers of shards")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help="with NumPyro's methods")
    parser.add_argument("--quick", action="store_true", help="M = 1 and 4, one fit of each kind, short peers")
    parser.add_argument("--output", type=Path, help="append the results to this CSV file")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the fits and the peers")
    chosen = parser.parse_args(arguments)
    plan, folder = QUICK if chosen.quick else Plan(), data_folder(chosen.data)
    methods, results = chosen_methods(plan, chosen.methods, chosen.peers), []
    print(
        "means off: the worst error of a mean in posterior sds, ±: its Monte Carlo error; sd ratios: to the reference's"
    )
    for name, load in loaders(folder, plan.reference).items():
        if not named(name, chosen.only):
            continue
        if load is None:
            print(f"\n{name}: skipped, its data are not in {folder}", flush=True)
            continue
        gold = load()
        known = float(np.max(gold.reference.mean_error / gold.reference.sd))
        about = f"{gold.kind}, N = {gold.num_rows:,}, d = {gold.dim}, means known to {known:.4f} sds"
        print(f"\n{gold.name}: {about}\n{HEAD}", flush=True)
        for m, method, is_peer in runs(gold, chosen.shards or plan.shards, methods):
            result = measured(gold, m, method, is_peer, chosen.seed)
            print(line(result), flush=True)
            results.append(result)
            if chosen.output:
                append(chosen.output, record(result, gold, chosen.seed))
    print("\n" + "\n".join(told(targets(results))))


if __name__ == "__main__":
    main()
